"""``leasekit usage``: who asked for how much, was granted and has used how much."""

from __future__ import annotations

import csv
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

import click

from leasekit.cli.output import example, json_option, note, print_json, print_table
from leasekit.cli.places import DeployPlace, daemon_options
from leasekit.cli.times import WHEN, now, to_second
from leasekit.core.errors import LeasekitError
from leasekit.core.time import DAY, HOUR, Instant, format_duration

BY: Final = ("holder", "type", "site")
ROLES: Final = ("broker", "authority")
NUMBERS: Final = (
    "leases", "requests", "granted", "refused", "granted_unit_hours", "used_unit_hours", "utilisation",
    "lead_median", "lead_p90",
)  # fmt: skip


@click.command(epilog=example("leasekit usage --since -30d", "leasekit usage --by holder --actor site --csv"))
@daemon_options
@click.option("--since", type=WHEN, metavar="TIME", help="The period's begin (default: 30 days ago).")
@click.option("--until", type=WHEN, metavar="TIME", help="Its end (default: now).")
@click.option("--by", type=click.Choice(BY), multiple=True, help="Add up by this; repeatable (default: all three).")
@click.option("--csv", "as_csv", is_flag=True, help="Print comma-separated values.")
@json_option
def usage(
    place: DeployPlace, since: Instant | None, until: Instant | None, by: Sequence[str], as_csv: bool, as_json: bool
) -> None:
    """Show what was asked for, granted and used, by holder, type and site.

    Brokers tell of requests, refusals and what they granted; sites of what was used, and which share of all their
    units that is.
    """
    end = now() if until is None else until
    start = end - 30 * DAY if since is None else since
    if end <= start:
        raise click.UsageError("--until is not after --since")
    keys = [key for key in BY if key in by] or list(BY)
    rows = []
    for actor, answer in _answers(place, start, end, keys).items():
        rows += [_with_share(actor, row, answer["offered_unit_ms"]) for row in answer["accounts"]]
        if answer["since"] > start and not as_json and not as_csv:
            note(f"{actor}: what its store has begins at {to_second(answer['since'])}")
    if as_json:
        print_json(rows)
        return
    columns, told = ("actor", *keys, *NUMBERS), [_told(row) for row in rows]
    lines = [[row[column] for column in columns] for row in told]
    if as_csv:
        csv.writer(sys.stdout).writerows([columns, *lines])
    else:
        titles = [column.replace("_", " ") for column in columns]
        print_table(titles, lines, empty="no leases", right=[title.replace("_", " ") for title in NUMBERS])


def _answers(place: DeployPlace, start: Instant, end: Instant, keys: Sequence[str]) -> dict[str, dict[str, Any]]:
    """What each broker and site says, or the one that was named."""
    from leasekit.runtime.client import ControlClient

    doors = [door for door in place.doors((place.actor,) if place.actor else ()) if door.role in (*ROLES, "")]
    if not doors:
        raise LeasekitError("there is no broker and no site here: guests keep no accounts")
    found = {}
    for door in doors:
        with ControlClient(door.control) as client:
            found[door.name or str(door.control)] = client.usage(start, end, keys)
    return found


def _with_share(actor: str, row: Mapping[str, Any], offered: Mapping[str, int]) -> dict[str, Any]:
    """A row with how much there was to use at a site, of its type or of all (null at a broker)."""
    there = offered.get(row["type"], 0) if "type" in row else sum(offered.values())
    return {"actor": actor, **row, "offered_unit_ms": there or None}


def _told(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row in the units that people use. What an actor knows nothing of is left empty."""
    there = row["offered_unit_ms"]
    is_broker = there is None
    return {
        **row,
        "refused": " ".join(f"{code}:{count}" for code, count in row["refused"].items()),
        "requests": row["requests"] if is_broker else "",
        "granted": row["granted"] if is_broker else "",
        "granted_unit_hours": f"{row['granted_unit_ms'] / HOUR:.3f}" if is_broker else "",
        "used_unit_hours": "" if is_broker else f"{row['used_unit_ms'] / HOUR:.3f}",
        "utilisation": "" if is_broker else f"{100 * row['used_unit_ms'] / there:.1f}%",
        "lead_median": _span(row["lead_median_ms"]),
        "lead_p90": _span(row["lead_p90_ms"]),
    }


def _span(span: int | None) -> str:
    return "" if span is None else format_duration(span)
