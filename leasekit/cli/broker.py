"""``leasekit broker``: what a broker holds, who waits, and how its time is taken."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

import click

from leasekit.cli.delegations import add_delegation_commands
from leasekit.cli.output import clean, console, example, json_option, note, pairs, print_json, print_table
from leasekit.cli.places import Place, daemon_options
from leasekit.cli.times import SPAN, WHEN, to_second
from leasekit.core.errors import LeasekitError
from leasekit.core.leases.machine import NONE
from leasekit.core.time import Duration, Instant, Term, format_duration

BROKER: Final = "broker"
BARS: Final = " ▁▂▃▄▅▆▇█"
COLUMNS_MIN, COLUMNS_MAX = 10, 200

Step = tuple[Instant, Instant, int]
"""From, until, units taken."""


@click.group()
def broker() -> None:
    """Look into a broker."""


@broker.command(epilog=example("leasekit broker sources"))
@daemon_options
@json_option
def sources(place: Place, as_json: bool) -> None:
    """List the delegations that the broker can grant from, and what is free."""
    with place.connect(BROKER) as client:
        found = client.query("sources")
    if as_json:
        print_json(found)
        return
    rows = [
        (
            s["source"],
            s["site"],
            s["type"],
            s["units"],
            s["free_now"],
            s["free_for_a_day"],
            s["reservations"],
            to_second(s["term"][1]),
            pairs(s["properties"]),
        )
        for s in found
    ]
    columns = ("source", "site", "type", "units", "free now", "free for a day", "reservations", "until", "properties")
    print_table(columns, rows, empty="no site has delegated anything", right=columns[3:7])


@broker.command(epilog=example("leasekit broker requests"))
@daemon_options
@json_option
def requests(place: Place, as_json: bool) -> None:
    """List the requests that wait for the broker's mapper, and why."""
    with place.connect(BROKER) as client:
        waiting = [lease for lease in client.query("leases") if lease["pending"] != NONE]
    if as_json:
        print_json(waiting)
        return
    rows = [
        (
            lease["id"],
            lease["holder"],
            lease["requested"]["op"],
            lease["type"],
            lease["requested"]["units"],
            *map(to_second, lease["requested"]["term"]),
            lease["reason"],
        )
        for lease in waiting
    ]
    columns = ("lease", "holder", "op", "type", "units", "from", "until", "reason")
    print_table(columns, rows, empty="no request waits", right=("units",))


@broker.command(epilog=example("leasekit broker calendar", "leasekit broker calendar --for 2h --json"))
@click.option("--from", "begin", type=WHEN, default="now", show_default=True, help="Where the picture begins.")
@click.option("--for", "span", type=SPAN, default="1d", show_default=True, help="How much time it shows.")
@click.option("--source", default="", metavar="SOURCE", help="Only this delegation.")
@daemon_options
@json_option
def calendar(place: Place, begin: Instant, span: Duration, source: str, as_json: bool) -> None:
    """Draw how the units of each delegation are taken over time: a full block where none is free."""
    with place.connect(BROKER) as client:
        found = [s for s in client.query("sources") if not source or s["source"] == source]
        leases = client.query("leases")
    if source and not found:
        raise LeasekitError(f"no source {source!r}; `leasekit broker sources` lists them")
    window = Term(begin, begin + span)
    steps = {s["source"]: taken(s["source"], leases, window) for s in found}
    if as_json:
        print_json(
            [
                {
                    "source": s["source"],
                    "units": s["units"],
                    "steps": [{"from": a, "until": b, "taken": n} for a, b, n in steps[s["source"]]],
                }
                for s in found
            ]
        )
        return
    if not found:
        note("no site has delegated anything")
    for s in found:
        _draw(s["source"], s["units"], steps[s["source"]], window)


def taken(source: str, leases: Sequence[Mapping[str, Any]], window: Term) -> list[Step]:
    """How many units of a delegation are taken over a window, as periods in which that does not change."""
    claims = [claim for lease in leases for claim in lease["claims"] if claim["source"] == source]
    changes: dict[Instant, int] = {window.start: 0, window.end: 0}
    for claim in claims:
        start, end = max(claim["term"][0], window.start), min(claim["term"][1], window.end)
        if start < end:
            changes[start] = changes.get(start, 0) + claim["units"]
            changes[end] = changes.get(end, 0) - claim["units"]
    steps: list[Step] = []
    level = 0
    instants = sorted(changes)
    for start, end in pairwise(instants):
        level += changes[start]
        if steps and steps[-1][2] == level:
            steps[-1] = (steps[-1][0], end, level)
        else:
            steps.append((start, end, level))
    return steps


def bars(steps: Sequence[Step], units: int, window: Term, columns: int) -> str:
    """A picture of ``columns`` characters; each shows the most that is taken at any instant that it stands for."""
    line = []
    for column in range(columns):
        start = window.start + window.length * column // columns
        end = max(window.start + window.length * (column + 1) // columns, start + 1)
        most = max((level for a, b, level in steps if a < end and b > start), default=0)
        share = most / units if units else 0.0
        line.append(BARS[0] if most == 0 else BARS[min(max(1, int(share * (len(BARS) - 1))), len(BARS) - 1)])
    return "".join(line)


def _draw(source: str, units: int, steps: Sequence[Step], window: Term) -> None:
    width = min(max(console().width - 2, COLUMNS_MIN), COLUMNS_MAX)
    peak = max((level for _, _, level in steps), default=0)
    click.echo(f"{clean(source)}: {units} units, at most {peak} taken at once")
    click.echo(f"|{bars(steps, units, window, width)}|")
    left, right = to_second(window.start), to_second(window.end)
    column = (
        f"a column is {format_duration(max(window.length // width // 1000 * 1000, 1))}" if window.length > 0 else ""
    )
    gap = width + 2 - len(left) - len(right)
    click.echo(f"{left}{column.center(gap)}{right}" if gap > len(column) else f"{left} .. {right}")


add_delegation_commands(broker, BROKER)
