"""``leasekit peer``: whom an actor knows, what each may do there; and the delegations that it has given or holds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import click

from leasekit.cli.options import FILE, TERM, Count, Shown, argument, at, command, option, to_second
from leasekit.cli.output import listing, print_lines
from leasekit.cli.places import DeployPlace
from leasekit.core.errors import LeasekitError
from leasekit.core.reasons import with_article
from leasekit.core.time import Instant


def add_eviction(group: click.Group, role: str, words: str) -> None:
    """Give ``group`` the command ``evict`` for an actor of ``role``; ``words`` say what it does."""

    def evict(
        place: DeployPlace,
        lease: str = argument(),
        instant: Instant | None = option("When it ends [now].", "--at", metavar="TIME"),
        reason: str = option("Why, for its holder."),
    ) -> Shown:
        arguments = {} if instant is None else {"at": instant}
        ended = _ask(place, role, "lease.evict", lease=lease, reason=reason, **arguments)
        holder = ended["holder"]
        return ended, f"lease {lease} of {holder} ends at {to_second(ended['at'])}; {holder} is told"

    example = 'leasekit GROUP evict 3f2a9c0177aa0c1d-2 --at +1h --reason "needed elsewhere"'
    evict.__doc__ = f"{words}\n\nExample:\n  {example}"
    command(group)(evict)


def _ask(place: DeployPlace, role: str, command: str, **arguments: Any) -> Any:
    """A command that brokers and sites have, of an actor of this role; ``--actor`` may have named one of the other."""
    with place.connect(role) as client:
        found = client.query("status")
        if found["role"] != role:
            raise LeasekitError(f"{found['name']} is {with_article(found['role'])}, expected {with_article(role)}")
        return client.request("command", command, arguments)


def add_delegation_commands(group: click.Group, role: str) -> None:
    """Give ``group`` the commands ``delegations``, ``delegate`` and ``reclaim`` for an actor of ``role``."""

    @command(group)
    def delegations(place: DeployPlace) -> Shown:
        """List what it has given to brokers.

        Example:
          leasekit GROUP delegations
        """
        return place.query(role, "delegations"), DELEGATIONS

    @command(group)
    def delegate(
        place: DeployPlace,
        to: str = argument("BROKER"),
        type_: str = argument("TYPE"),
        units: int | None = argument(type=click.IntRange(min=1)),
        until: Instant | None = option("Until when [as the deploy file says].", metavar="TIME"),
        site: str = option("Whose units, if a broker gives them [any site's].", metavar="SITE"),
    ) -> Shown:
        """Give units to a broker: again after a reclaim, more than it has, or fewer, or until another time.

        Without UNITS as many as the deploy file says. It stands, also over restarts, until it is said otherwise or
        reclaimed; `leasekit status` says where what is held differs from the deploy file. Of fewer, leases keep what
        they have to their end: `reclaim --deadline` takes that as well.

        Example:
          leasekit GROUP delegate broker vm 3
          leasekit GROUP delegate broker vm --until +30d
        """
        arguments: dict[str, Any] = {"broker": to, "type": type_, "site": site, "units": units or 0}
        if until is not None:
            arguments["until"] = until
        given = _ask(place, role, "delegation.give", **arguments)
        found = given["difference"]
        words = f"{given['chain']} is held so already" if found is None else difference_in_words(found)
        return given, words

    @command(group)
    def reclaim(
        place: DeployPlace,
        delegation: str = argument(),
        at: Instant = option("Until when new terms may go at most [now].", default="now", metavar="TIME"),
        deadline: Instant | None = option("When leases that exist are closed [they run out].", metavar="TIME"),
    ) -> Shown:
        """Take a delegation back from its broker.

        As soon as the broker has heard of it, it grants only what ends by --at. Leases that have begun by then run
        out, or are closed by --deadline; those that have not are off.

        Example:
          leasekit GROUP reclaim site/vm@broker --deadline +2h
        """
        arguments: dict[str, Any] = {"delegation": delegation, "at": at}
        if deadline is not None:
            arguments["deadline"] = deadline
        taken = _ask(place, role, "delegation.reclaim", **arguments)
        what = f"end by {to_second(taken['deadline'])}" if taken["deadline"] >= 0 else "run out"
        words = (
            f"{taken['delegation']} is taken back from {to_second(taken['at'])} on: what is granted from now on ends by"
            f" then; leases that have begun by then {what}, those that have not are off"
        )
        return taken, words


LATER_ARE_OFF: Final = "leases that have not begun are off; with `--at` those that have not by then"


def difference_in_words(row: Mapping[str, Any]) -> str:
    """Where what is held differs from the deploy file, and why."""
    broker, type_, held, wanted, file = (row[key] for key in ("broker", "type", "held", "wanted", "file"))
    until = f" until {to_second(row['until'])}" if row["until"] >= 0 else ""
    said = f"the deploy file says {file}" if file else "the deploy file does not name it"
    words = {
        "offered": f"{wanted} {type_} are offered to {broker}, which has not answered yet and has {held}",
        "refused": f"{broker} refuses {wanted} {type_} and has {held}: {row['reason']}",
        "reclaimed": f"{type_} of {broker} is reclaimed ({said}): `delegate {broker} {type_}` gives it again",
        "waits": f"{wanted} {type_} are to go to {broker}, which has {held}: they are not free, or it is no peer",
        "overridden": f"{broker} has {held} {type_}{until} by `delegate`, {said}",
        "unlisted": f"{broker} has {held} {type_}{until}, {said}",
        "not_known": f"{row['reason']}; `reclaim {row['chain']}`, then `delegate {broker} {type_}` gives it again"
        f" ({LATER_ARE_OFF})",
        "old_attributes": f"{broker} has {held} {type_}{until} with attributes that some had before: "
        f"`reclaim {row['chain']}`, then `delegate {broker} {type_}` gives all as they are ({LATER_ARE_OFF})",
        "in_use": f"{broker} has {held} {type_}, and leases go on to use more{until}: `reclaim --deadline` ends them",
    }
    return f"{row['chain']}: {words[row['code']]}"


def state_of(delegation: Mapping[str, Any]) -> str:
    """How a delegation is, and from when on it is taken back."""
    state, at = str(delegation["state"]), delegation["reclaimed"]
    return f"{state} from {to_second(at)}" if at >= 0 and state.startswith("reclaim") else state


DELEGATIONS: Final = listing(
    "delegation", "broker", "site", "type", ">units", *TERM, ("state", state_of), ("deadline", at("deadline")),
    "reason", empty="nothing is delegated",
)  # fmt: skip


ROLES = ("guest", "broker", "authority")
PERMISSIONS = ("request", "redeem", "delegate", "endorse", "administer")


PEERS: Final = listing(
    "peer", "role", ("key", "fingerprint"), ("may", lambda known: " ".join(known["may"])),
    (">open requests", "open_requests"), ("priority", "priority_max"), "address", ("known by", "origin"),
    empty="it knows nobody",
)  # fmt: skip


@click.group()
def peer() -> None:
    """Look after whom an actor knows."""


@command(peer, name="list")
def list_(place: DeployPlace) -> Shown:
    """List peers: their keys, what they may do, and who made them known.

    Example:
      leasekit peer list --actor site
    """
    peers = place.query("", "peers")
    return peers, PEERS


@command(peer)
def add(
    place: DeployPlace,
    name: str = argument(),
    role: str = option("What it is.", type=ROLES, required=True),
    key: str = option("Its public key: 64 hex digits, or a .pub file.", required=True, metavar="KEY"),
    address: str = option("Where it is dialled; without, it dials this actor.", metavar="ADDRESS"),
    may: tuple[str, ...] = option("What it may do [what its role may].", type=PERMISSIONS),
    open_requests: int | None = option("Its requests that may be open at once.", type=Count(min=1), metavar="N"),
    priority_max: int = option("The highest priority that it may ask for [0].", default=0, metavar="N"),
) -> Shown:
    """Make a peer known, from now on and after restarts. The deploy file stays as it is.

    Example:
      leasekit peer add lab --role guest --key keys/lab.pub --actor site
    """
    from leasekit.config.keys import load_public

    arguments: dict[str, Any] = {"name": name, "role": role, "key": load_public(key).hex(), "address": address}
    if priority_max:
        arguments["priority_max"] = priority_max
    if may:
        arguments["may"] = list(may)
    if open_requests is not None:
        arguments["open_requests"] = open_requests
    added = place.command("", "peer.add", **arguments)
    return added, f"{name} is known; it may {', '.join(added['may']) or 'do nothing'}"


@command(peer)
def export(
    place: DeployPlace, every: bool = option("Those of the deploy file, and whom brokers made known, as well.", "--all")
) -> Shown:
    """Print the peers that were added by command, as tables of a deploy file: for `peer import`, or for the file.

    What is not in them is a key that such a peer had before: tickets that it holds are to be used up first.

    Example:
      leasekit peer export --actor site > peers.toml
      leasekit peer export --all --json
    """
    peers = [one for one in place.query("", "peers") if every or one["origin"] == "operator"]
    name = place.query("", "status")["name"]
    return peers, lambda found: print_lines("\n".join(_tables(one, name) for one in found).splitlines())


def _tables(known: Mapping[str, Any], actor: str) -> str:
    """A peer as it stands in the deploy file of ``actor``."""
    from leasekit.config.sockets import PLAIN

    place, plain = known["address"].removesuffix(PLAIN), known["address"].endswith(PLAIN)
    address = {**({"address": place} if place else {}), **({"tls": False} if plain else {})}
    permissions = {key: known[key] for key in ("may", "open_requests", "priority_max")}
    return _table(("peer", known["peer"]), {"role": known["role"], "key": known["key"], **address}) + _table(
        ("actor", actor, "permissions", known["peer"]), permissions
    )


def _table(path: tuple[str, ...], values: Mapping[str, Any]) -> str:
    """A table of TOML. Text, lists of text, whole numbers and truth are written as in JSON."""
    head = ".".join(part if part.replace("-", "_").isidentifier() else json.dumps(part) for part in path)
    return f"[{head}]\n" + "".join(f"{key} = {json.dumps(one, ensure_ascii=False)}\n" for key, one in values.items())


@command(peer, name="import")
def import_(place: DeployPlace, source: Path = argument("FILE", type=FILE)) -> Shown:
    """Make the peers in FILE known, all or none, as `peer add` does: FILE is what `peer export` printed.

    Permissions are those that FILE gives for this actor, or for the only one that it has.

    Example:
      leasekit peer import peers.toml --actor site
    """
    from leasekit.config.peers import read_peers

    peers = read_peers(source, place.query("", "status")["name"])
    done = place.command("", "peer.import", peers=peers)
    known = f"known are {', '.join(done['peers'])}" if done["peers"] else f"{source}: there is no [peer.NAME] in it"
    return done, known


@command(peer)
def remove(place: DeployPlace, name: str = argument()) -> Shown:
    """Forget a peer: its connection is closed, and no broker brings it back. Leases that it has stay as they are.

    Example:
      leasekit peer remove lab --actor site
    """
    removed = place.command("", "peer.remove", name=name)
    return removed, f"{name} is not known any more"


@command(peer)
def succeed(
    place: DeployPlace,
    name: str = argument(),
    statement: Path = argument("FILE", type=FILE),
) -> Shown:
    """Know a peer by its next key: FILE is the succession that `leasekit keys rotate` made, signed by both keys.

    Until the instant that it names, the peer may still use tickets that its old key holds.

    Example:
      leasekit peer succeed lab lab.succession --actor site
    """
    from leasekit.config.keys import load_succession

    text = load_succession(statement).encode().hex()
    done = place.command("", "peer.succeed", name=name, succession=text)
    return done, f"{name} has the key {done['key']} from now on"


@command(peer, name="command")
def command_peer(
    place: DeployPlace,
    name: str = argument(),
    command: str = argument(),
    arguments: tuple[str, ...] = argument("[KEY=VALUE]..."),
) -> Shown:
    """Have another actor carry out a command: it must allow this one to administer it.

    Example:
      leasekit peer command site unit.disable unit=vm-3 --actor broker
    """
    given = {}
    for text in arguments:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise LeasekitError(f"argument: found {text!r}, expected KEY=VALUE")
        given[key] = value
    done = place.command("", "peer.command", peer=name, command=command, arguments=given)
    return done, f"{name}: {json.dumps(done)}"
