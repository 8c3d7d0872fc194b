"""What ``leasekit site`` and ``leasekit broker`` have in common: the delegations that an actor has given or holds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from leasekit.cli.output import example, json_option, note, print_json, print_table
from leasekit.cli.places import Place, daemon_options
from leasekit.cli.times import WHEN, to_second
from leasekit.core.time import Instant


def add_delegation_commands(group: click.Group, role: str) -> None:
    """Give ``group`` the commands ``delegations`` and ``reclaim`` for an actor of ``role``."""
    noun = group.name

    @group.command(epilog=example(f"leasekit {noun} delegations"))
    @daemon_options
    @json_option
    def delegations(place: Place, as_json: bool) -> None:
        """List what it has given to brokers."""
        with place.connect(role) as client:
            given = client.query("delegations")
        if as_json:
            print_json(given)
        else:
            _print(given)

    @group.command(epilog=example(f"leasekit {noun} reclaim site/vm@broker --deadline +2h"))
    @click.argument("delegation")
    @click.option("--at", type=WHEN, default="now", metavar="TIME", help="Until when new terms may go at most [now].")
    @click.option("--deadline", type=WHEN, metavar="TIME", help="When leases that exist are closed [they run out].")
    @daemon_options
    @json_option
    def reclaim(place: Place, delegation: str, at: Instant, deadline: Instant | None, as_json: bool) -> None:
        """Take a delegation back from its broker.

        As soon as the broker has heard of it, it grants only what ends by --at. Leases that have begun by then run
        out, or are closed by --deadline; those that have not are off.
        """
        arguments: dict[str, Any] = {"delegation": delegation, "at": at}
        if deadline is not None:
            arguments["deadline"] = deadline
        with place.connect(role) as client:
            taken = client.request("command", "delegation.reclaim", arguments)
        if as_json:
            print_json(taken)
            return
        what = f"leases end by {to_second(taken['deadline'])}" if taken["deadline"] >= 0 else "leases run out"
        begin = to_second(taken["at"])
        note(f"{taken['delegation']} is taken back from {begin} on: what is granted from now on ends by then, {what}")


def state_of(delegation: Mapping[str, Any]) -> str:
    """How a delegation is, and from when on it is taken back."""
    state, at = str(delegation["state"]), delegation["reclaimed"]
    return f"{state} from {to_second(at)}" if at >= 0 and state.startswith("reclaim") else state


def _print(given: list[dict[str, Any]]) -> None:
    rows = [
        (
            d["delegation"],
            d["broker"],
            d["site"],
            d["type"],
            d["units"],
            *map(to_second, d["term"]),
            state_of(d),
            to_second(d["deadline"]) if d["deadline"] >= 0 else "",
            d["reason"],
        )
        for d in given
    ]
    print_table(
        ("delegation", "broker", "site", "type", "units", "from", "until", "state", "deadline", "reason"),
        rows,
        empty="nothing is delegated",
        right=("units",),
    )
