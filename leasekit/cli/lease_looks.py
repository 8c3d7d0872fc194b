"""``leasekit lease``: list leases, show them, follow them, get into their units.

Guest, broker and site know different things of a lease, and all can be shown.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from leasekit.cli.options import FILE_THERE, Count, Shown, argument, command, now, option, show_when, to_second
from leasekit.cli.output import (
    clean,
    listing,
    pairs,
    print_fields,
    print_json,
    print_json_line,
    print_lines,
    print_table,
)
from leasekit.cli.places import GUEST, DeployPlace, is_there
from leasekit.config.instants import dated, shown
from leasekit.core.errors import LeasekitError
from leasekit.core.leases.machine import NONE
from leasekit.core.reasons import counted
from leasekit.core.time import INSTANT_MAX, Instant, Term

if TYPE_CHECKING:
    from leasekit.config.sockets import ControlAddress
    from leasekit.runtime.client import ControlClient


def show_lease(lease: Mapping[str, Any]) -> None:
    """One lease with all that is known of it."""
    print_fields(_fields(lease))
    units = lease.get("units")
    if isinstance(units, list) and units and isinstance(units[0], dict):
        rows = [(u["unit"], u["state"], u["reason"], pairs(u["properties"])) for u in units]
        print_table(("unit", "state", "reason", "properties"), rows)


def _fields(lease: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    instant = now()
    for key in ("id", "name", "slice", "type", "broker", "site", "holder", "state"):
        yield key, lease.get(key)
    yield "pending", _not_none(lease.get("pending"))
    yield "join", _not_none(lease.get("join"))
    yield "reason", lease.get("reason")
    before = lease.get("resumes")
    yield "resumes", f"{before['lease']}, suspended {show_when(before['suspended'], instant)}" if before else ""
    yield "suspended", "at its end" if lease.get("suspends") else ""
    for key in ("requested", "approved", "granted", "next"):
        yield key, _holding(lease.get(key))
    for extension in (lease.get("renewal"), *lease.get("continuations", ())):
        yield "goes on", _goes_on(extension, lease.get("name") or lease["id"])
    for claim in lease.get("claims", ()):
        yield "claim", f"{_holding(claim)} of {claim['source']}"
    if lease.get("wanted") is not None:
        yield "wanted", f"{counted(lease['wanted'])} over {_term(lease['term'])}"
    if lease.get("end") is not None:
        yield "ended" if lease["state"] in ("closed", "failed") else "ends", show_when(lease["end"], instant)
    for key in ("configuration", "resource"):
        yield key, pairs(lease.get(key) or {})
    units = lease.get("units")
    if isinstance(units, list) and units and isinstance(units[0], str):
        yield "units", " ".join(units)


def _not_none(value: Any) -> str:
    return "" if value in (None, NONE) else str(value)


def _holding(holding: Mapping[str, Any] | None) -> str:
    if not holding:
        return ""
    op = f"{holding['op']}: " if "op" in holding else ""
    extra = pairs(holding.get("properties") or {})
    return f"{op}{counted(holding['units'])} over {_term(holding['term'])}{f' ({extra})' if extra else ''}"


def _goes_on(extension: Mapping[str, Any] | None, name: str) -> str:
    if not extension:
        return ""
    how = f" (`leasekit lease extend {name} --undo` takes it back)" if extension["undo"] else ""
    return f"{_holding(extension)}{how}"


def _term(term: Sequence[int]) -> str:
    return f"{to_second(term[0])} .. {to_second(term[1])}"


def list_leases(leases: Sequence[Mapping[str, Any]]) -> None:
    """Leases, one a line."""
    instant = now()
    whose = "holder" if leases and "holder" in leases[0] else "name"
    grouped = any(lease.get("group") for lease in leases)
    listing(
        "id", whose, "slice", "type", "site", (">units", _count),
        ("state", lambda one: one["state"] if one["pending"] == NONE else f"{one['state']} ({one['pending']})"),
        ("join", lambda lease: _not_none(lease.get("join"))),
        ("starts", lambda lease: to_second(_start(lease))),
        ("ends", lambda lease: show_when(_end(lease), instant)), "reason",
        *(["group"] if grouped else ()), empty="no leases",
    )(leases)  # fmt: skip


def _count(lease: Mapping[str, Any]) -> int:
    units = lease.get("units")
    if isinstance(units, int):
        return units
    if "wanted" in lease:
        return int(lease["wanted"])
    return int(lease["claims"][-1]["units"] if lease.get("claims") else lease["requested"]["units"])


def _start(lease: Mapping[str, Any]) -> int:
    if "start" in lease:
        return int(lease["start"])
    if lease.get("claims"):
        return int(lease["claims"][0]["term"][0])
    return int((lease["term"] if "term" in lease else lease["requested"]["term"])[0])


def _end(lease: Mapping[str, Any]) -> int:
    if "end" in lease:
        return int(lease["end"])
    if lease.get("claims"):
        return int(lease["claims"][-1]["term"][1])
    return int((lease["term"] if "term" in lease else lease["requested"]["term"])[1])


HISTORY: Final = listing(
    ("at", lambda row: shown(row["at"])), "event", ("from", "from_state"), ("to", "to_state"), "why",
    empty="no transitions of such a lease",
)  # fmt: skip


def transition_line(event: Mapping[str, Any]) -> str:
    """One transition as a line of a stream."""
    if "missed" in event:
        return f"... {event['missed']} transitions were too many to show"
    arrow = f" {event['from_state']} -> {event['to_state']}" if event["from_state"] else ""
    change = arrow or (f" {event['to_state']}" if event["to_state"] else "")
    why = f": {event['why']}" if event["why"] else ""
    return f"{shown(event['at'])} {event['lease']} {event['event']}{change}{dated(why)}"


@command(None, name="list")
def list_(
    place: DeployPlace,
    slice_: str = option("Only leases of this slice.", metavar="NAME"),
    holder: str = option("Only leases of this guest, at a broker or site.", metavar="NAME"),
    every: bool = option("Leases that are over as well: the newest 1,000, if no --since.", "--all"),
    since: Instant | None = option("Leases that went on at or after it, over or not.", metavar="TIME"),
    until: Instant | None = option("Leases that began before it, over or not.", metavar="TIME"),
) -> Shown:
    """List leases. A guest's by default; with --actor those that a broker or site knows.

    Example:
      leasekit lease list --slice web
      leasekit lease list --since -7d --actor site --holder web
    """
    period = Term(since or 0, INSTANT_MAX if until is None else until)
    if period.end <= period.start:
        raise click.UsageError("--until is not after --since")
    with place.connect(GUEST, or_only=True) as client:
        if since is None and until is None:
            leases = client.query("leases", all=every, slice=slice_)
        else:
            leases = _over_period(client, period)
        leases = with_topologies(client, leases, every=every or since is not None or until is not None)
    leases = [found for found in leases if slice_ in ("", found["slice"]) and holder in ("", found.get("holder"))]
    return leases, list_leases


def _over_period(client: ControlClient, period: Term) -> list[Mapping[str, Any]]:
    """The leases of a period, those that are over first."""
    known = {lease["id"]: lease for lease in client.query("leases", all=True, slice="")}
    past = [lease for lease in client.past(*period) if lease["id"] not in known]
    return [*past, *(one for one in known.values() if _end(one) >= period.start and _start(one) < period.end)]


@command(None)
def show(place: DeployPlace, name: str = argument("LEASE")) -> Shown:
    """Show a lease: its state and why, what was asked and granted, its units.

    Example:
      leasekit lease show web
    """
    with place.connect(GUEST, or_only=True) as client:
        found = client.query("lease", lease=name)
    return found, show_lease


@command(None)
def history(place: DeployPlace, name: str = argument("LEASE")) -> Shown:
    """List the transitions of a lease: when, from what, to what, why.

    Of leases that are over the newest 1,000 are found by name, all by id.

    Example:
      leasekit lease history web
    """
    with place.connect(GUEST, or_only=True) as client:
        rows = client.history(_id(client, name))

    def told(_: object) -> None:
        if not rows:
            raise LeasekitError(
                f"no lease {name!r} here, nor among those that are over and still kept (`history_kept`);"
                " `leasekit lease list --all` shows those there are"
            )
        HISTORY(rows)

    return rows, told


def _id(client: Any, name: str) -> str:
    """The id of a lease that may be over for so long that only its history is left."""
    from leasekit.runtime.client import RequestError

    with suppress(RequestError):
        return str(client.query("lease", lease=name)["id"])
    return name


def _open(client: Any, name: str) -> str:
    """The id of a lease of which there is something to come. Raises ``LeasekitError``."""
    found = client.query("lease", lease=name)
    if found["state"] in ("closed", "failed"):
        raise LeasekitError(f"lease {found['id']} is {found['state']}: `leasekit lease history` tells how it went")
    return str(found["id"])


@command(None)
def watch(
    place: DeployPlace,
    name: str = argument("[LEASE]", default=""),
    as_json: bool = option("Print a JSON document on each line.", "--json"),
) -> None:
    """Print transitions as they happen, of one lease or of all, until Ctrl-C.

    Example:
      leasekit lease watch web
      leasekit lease watch --actor site --json
    """
    with place.connect(GUEST, or_only=True) as client:
        for event in client.watch(_open(client, name) if name else ""):
            if as_json:
                print_json_line(event)
            else:
                click.echo(clean(transition_line(event)))


@command(None)
def logs(
    place: DeployPlace,
    as_json: bool,
    name: str = argument("LEASE"),
    unit: str = argument(default=""),
    lines: int = option("How many lines of each unit.", type=Count(min=0, max=10_000), shown=50),
    follow: bool = option("Print further lines of the one UNIT as they come, until Ctrl-C."),
) -> None:
    """Print what drivers said of a lease's units: the guest's, and the site's where its daemon is in the same file.

    Example:
      leasekit lease logs web
      leasekit lease logs web vm-0 --follow
    """
    if follow and (not unit or as_json):
        raise click.UsageError("--follow goes with a UNIT, and without --json")
    socket = place.socket(GUEST, or_only=True)
    from leasekit.runtime.client import ControlClient

    with ControlClient(socket) as client:
        found = client.query("lease", lease=name)
    units = [u["unit"] if isinstance(u, dict) else u for u in found["units"]]
    if unit and unit not in units:
        raise LeasekitError(f"lease {found['id']} has no unit {unit!r}; it has {', '.join(units) or 'none'}")
    sources = {"guest": socket, **_site_socket(place, found)}
    if follow:
        with ControlClient(sources.get("site", socket)) as client:
            print_lines(client.unit_log(unit, lines, follow=True))
        return
    found_lines = {
        which: {each: _log_lines(path, each, lines) for each in ([unit] if unit else units)}
        for which, path in sources.items()
    }
    if as_json:
        print_json(found_lines)
        return
    for which, logs_of in found_lines.items():
        for each, text in logs_of.items():
            print_lines(f"{which} {each}: {line}" for line in text)


def _site_socket(place: DeployPlace, found: Mapping[str, Any]) -> dict[str, ControlAddress]:
    """The control socket of the lease's site, if the deploy file has its daemon and that runs here."""
    if place.control is not None or place.gateway or not found.get("site"):
        return {}
    door = next((door for door in place.doors() if door.name == found["site"]), None)
    return {"site": door.control} if door is not None and is_there(door.control) else {}


def _log_lines(path: ControlAddress, unit: str, lines: int) -> list[str]:
    from leasekit.runtime.client import ControlClient

    with ControlClient(path) as client:
        return list(client.unit_log(unit, lines))


def with_topologies(
    client: ControlClient, leases: Sequence[Mapping[str, Any]], *, every: bool
) -> list[Mapping[str, Any]]:
    """The leases, with the topology that each belongs to as its ``group``, where the actor is a guest that has any."""
    if not leases or "holder" in leases[0]:
        return list(leases)
    names = [each["topology"] for each in client.query("topologies", all=every)]
    groups: dict[str, str] = {}
    for found in client.batch(("query", "topology", {"topology": name}) for name in names):
        # One that has been forgotten since is an error in its place.
        if isinstance(found, Mapping):
            groups |= {part["lease"]: found["topology"] for part in found["parts"]}
    return [{**lease, "group": groups[lease["id"]]} if lease["id"] in groups else lease for lease in leases]


def find_unit(client: Any, name: str) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """The lease and the unit that ``name`` means: ``UNIT``, ``LEASE/UNIT``, or a lease that has just one. Raises
    ``LeasekitError`` with those that there are.
    """
    leases = [client.query("lease", lease=lease["id"]) for lease in client.query("leases", all=False, slice="")]
    units = [(lease, unit) for lease in leases for unit in lease["units"]]

    def names(lease: Mapping[str, Any], unit: Mapping[str, Any]) -> set[str]:
        alone = {lease["name"], lease["id"]} if len(lease["units"]) == 1 else set()
        return {unit["unit"], f"{lease['name']}/{unit['unit']}", f"{lease['id']}/{unit['unit']}", *alone}

    found = [(lease, unit) for lease, unit in units if name in names(lease, unit)]
    if len(found) == 1:
        return found[0]
    listed = ", ".join(f"{lease['name'] or lease['id']}/{unit['unit']}" for lease, unit in (found or units)[:20])
    if found:
        raise LeasekitError(f"{name!r} may be any of: {listed}")
    raise LeasekitError(f"no unit {name!r} is leased; there are: {listed or 'none'}")


@command(None, context_settings={"ignore_unknown_options": True})
def ssh(
    place: DeployPlace,
    unit: str = argument(),
    command: Sequence[str] = argument(type=click.UNPROCESSED),
    identity: Path | None = option(
        "Log in with this private key, and no other [those of ssh and its agent].",
        "--identity",
        "-i",
        type=FILE_THERE,
        metavar="FILE",
    ),
    user: str = option("Log in as this user [as the unit's properties say].", "--user", "-l"),
) -> int:
    """Log in to a unit, or run COMMAND there (after -- if it has options).

    The unit's ssh server must have the host key that its site told. UNIT is a unit's name, LEASE/UNIT, or a lease
    that has just one unit.

    Example:
      leasekit lease ssh vm-0
      leasekit lease ssh web/vm-0 -i ~/.ssh/web uptime
    """
    import shutil
    import subprocess
    import tempfile

    from leasekit.drivers.ssh import login_of

    program = shutil.which("ssh")
    if program is None:
        raise LeasekitError("there is no program ssh here (install openssh-client)")
    with place.connect(GUEST) as client:
        _, found = find_unit(client, unit)
    login = login_of(found["properties"], user, strict=False)
    if not login.host_key:
        raise LeasekitError(f"unit {found['unit']} has no property host_key: its site has told of no ssh server there")
    with tempfile.TemporaryDirectory(prefix="leasekit-ssh-") as folder:
        known = Path(folder) / "known_hosts"
        known.write_text(login.known_hosts(), "utf-8")
        words = [program, *login.options(known, identity), "--", login.host, *command]
        done = subprocess.run(words, check=False, env={**os.environ}, stdin=sys.stdin if sys.stdin else None)
    return done.returncode


@command(None)
def console(place: DeployPlace, unit: str = argument()) -> Shown:
    """Print the last lines of a unit's console.

    A console is its site's: the site's daemon must be one of the deploy file's, and run as the same user. Elsewhere ask
    the site's operator, who has `leasekit site console`.

    Example:
      leasekit lease console vm-0
    """
    from leasekit.cli.site import show_console

    with place.connect(GUEST) as client:
        lease, found = find_unit(client, unit)
    if lease["site"] not in {door.name for door in place._replace(control=None).doors()}:
        raise LeasekitError(
            f"unit {found['unit']} is at {lease['site']}, which is not in {place.deploy_file()}: ask its operator"
        )
    return show_console(place._replace(actor=lease["site"]), found["unit"])
