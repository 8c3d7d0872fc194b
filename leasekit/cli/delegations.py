"""What ``leasekit site`` and ``leasekit broker`` have in common: the delegations that an actor has given or holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import click

from leasekit.cli.output import example, json_option, listing, report
from leasekit.cli.places import DeployPlace, daemon_options
from leasekit.cli.times import TERM, WHEN, at, to_second
from leasekit.core.time import Instant


def add_delegation_commands(group: click.Group, role: str) -> None:
    """Give ``group`` the commands ``delegations``, ``delegate`` and ``reclaim`` for an actor of ``role``."""
    noun = group.name

    @group.command(epilog=example(f"leasekit {noun} delegations"))
    @daemon_options
    @json_option
    def delegations(place: DeployPlace, as_json: bool) -> None:
        """List what it has given to brokers."""
        report(place.query(role, "delegations"), DELEGATIONS, as_json=as_json)

    @group.command(
        epilog=example(f"leasekit {noun} delegate broker vm 3", f"leasekit {noun} delegate broker vm --until +30d")
    )
    @click.argument("to", metavar="BROKER")
    @click.argument("type_", metavar="TYPE")
    @click.argument("units", type=click.IntRange(min=1), required=False)
    @click.option("--until", type=WHEN, metavar="TIME", help="Until when [as the deploy file says].")
    @click.option("--site", default="", metavar="SITE", help="Whose units, if a broker gives them [any site's].")
    @daemon_options
    @json_option
    def delegate(
        place: DeployPlace, to: str, type_: str, units: int | None, until: Instant | None, site: str, as_json: bool
    ) -> None:
        """Give units to a broker: again after a reclaim, more than it has, or fewer, or until another time.

        Without UNITS as many as the deploy file says. It stands, also over restarts, until it is said otherwise or
        reclaimed; `leasekit status` says where what is held differs from the deploy file. Of fewer, leases keep what
        they have to their end: `reclaim --deadline` takes that as well.
        """
        arguments: dict[str, Any] = {"broker": to, "type": type_, "site": site, "units": units or 0}
        if until is not None:
            arguments["until"] = until
        given = place.command(role, "delegation.give", **arguments)
        found = given["difference"]
        words = f"{given['line']} is held so already" if found is None else difference_in_words(found)
        report(given, words, as_json=as_json)

    @group.command(epilog=example(f"leasekit {noun} reclaim site/vm@broker --deadline +2h"))
    @click.argument("delegation")
    @click.option("--at", type=WHEN, default="now", metavar="TIME", help="Until when new terms may go at most [now].")
    @click.option("--deadline", type=WHEN, metavar="TIME", help="When leases that exist are closed [they run out].")
    @daemon_options
    @json_option
    def reclaim(place: DeployPlace, delegation: str, at: Instant, deadline: Instant | None, as_json: bool) -> None:
        """Take a delegation back from its broker.

        As soon as the broker has heard of it, it grants only what ends by --at. Leases that have begun by then run
        out, or are closed by --deadline; those that have not are off.
        """
        arguments: dict[str, Any] = {"delegation": delegation, "at": at}
        if deadline is not None:
            arguments["deadline"] = deadline
        taken = place.command(role, "delegation.reclaim", **arguments)
        what = f"leases end by {to_second(taken['deadline'])}" if taken["deadline"] >= 0 else "leases run out"
        begin = to_second(taken["at"])
        words = f"{taken['delegation']} is taken back from {begin} on: what is granted from now on ends by then, {what}"
        report(taken, words, as_json=as_json)


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
        "wished": f"{broker} has {held} {type_}{until} by `delegate`, {said}",
        "unlisted": f"{broker} has {held} {type_}{until}, {said}",
        "in_use": f"{broker} has {held} {type_}, and leases go on to use more{until}: `reclaim --deadline` ends them",
    }
    return f"{row['line']}: {words[row['code']]}"


def state_of(delegation: Mapping[str, Any]) -> str:
    """How a delegation is, and from when on it is taken back."""
    state, at = str(delegation["state"]), delegation["reclaimed"]
    return f"{state} from {to_second(at)}" if at >= 0 and state.startswith("reclaim") else state


DELEGATIONS: Final = listing(
    "delegation", "broker", "site", "type", "units", *TERM, ("state", state_of), ("deadline", at("deadline")), "reason",
    empty="nothing is delegated", right=("units",),
)  # fmt: skip
