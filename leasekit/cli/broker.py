"""``leasekit broker``: what a broker holds, who waits, and how its time is taken."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from leasekit.cli.calendars import calendars, print_calendar
from leasekit.cli.delegations import add_delegation_commands, state_of
from leasekit.cli.output import example, json_option, note, pairs, print_json, print_table
from leasekit.cli.places import Place, daemon_options
from leasekit.cli.ticket import key_words, known_names, stored_rows
from leasekit.cli.times import SPAN, WHEN, to_second
from leasekit.core.claims.statements import decode_statement
from leasekit.core.errors import LeasekitError
from leasekit.core.leases.machine import NONE
from leasekit.core.leases.rows import unpack_body
from leasekit.core.schema import TABLES
from leasekit.core.time import Duration, Instant, Term
from leasekit.core.words import counted, with_article

BROKER: Final = "broker"
SUFFIXES: Final = (".png", ".svg")


@click.group()
def broker() -> None:
    """Look into a broker."""


@broker.command(epilog=example("leasekit broker sources"))
@daemon_options
@json_option
def sources(place: Place, as_json: bool) -> None:
    """List the delegations that the broker holds, what is free of them, and until when it can grant of them."""
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
            state_of(s),
            s["units"],
            s["free_now"],
            s["free_for_a_day"],
            s["reservations"],
            to_second(s["grants_until"]),
            pairs(s["properties"]),
        )
        for s in found
    ]
    columns = (
        "source", "site", "type", "state", "units", "free now", "free for a day", "reservations", "until", "properties",
    )  # fmt: skip
    print_table(columns, rows, empty="no site has delegated anything", right=columns[4:8])


@broker.command(epilog=example("leasekit broker release site/vm@broker"))
@click.argument("source")
@daemon_options
@json_option
def release(place: Place, source: str, as_json: bool) -> None:
    """Let go of what a site or broker has delegated and is not there any more to take back.

    Nothing is granted of it from now on; leases that have not begun are off, the others run out. When its giver is
    back, it hears of it, and offers anew.
    """
    with place.connect(BROKER) as client:
        released = client.request("command", "source.release", {"source": source})
    if as_json:
        print_json(released)
    else:
        note(f"{', '.join(released['sources'])}: nothing more is granted of it, leases run out")


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


@broker.command(
    epilog=example(
        "leasekit broker calendar",
        "leasekit broker calendar --for 2h --json",
        "leasekit broker calendar --for 1w --out week.png",
    )
)
@click.option("--from", "begin", type=WHEN, default="now", show_default=True, help="Where the picture begins.")
@click.option("--for", "span", type=SPAN, default="1d", show_default=True, help="How much time it shows.")
@click.option("--source", default="", metavar="SOURCE", help="Only this delegation.")
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE", help="Draw it into FILE, a .png or .svg.")
@daemon_options
@json_option
def calendar(place: Place, begin: Instant, span: Duration, source: str, out: Path | None, as_json: bool) -> None:
    """Draw how the units of each delegation are taken over time, and by whom: a full block where none is free.

    Units that the site needs for maintenance are drawn on a line of their own, as is the time from which on a
    delegation is taken back.
    """
    _check_picture(out)
    with place.connect(BROKER) as client:
        found = [s for s in client.query("sources") if not source or s["source"] == source]
        leases, given = client.query("leases"), client.query("delegations")
    if source and not found:
        raise LeasekitError(f"no source {source!r}; `leasekit broker sources` lists them")
    made = calendars(found, leases, given, Term(begin, begin + span))
    if out is not None and made:
        from leasekit.cli.calendar_picture import draw

        draw(made, out)
    if as_json:
        print_json([each.data() for each in made])
    elif not made:
        note("no site has delegated anything")
    elif out is not None:
        note(f"written to {out}")
    else:
        for each in made:
            print_calendar(each)


@broker.command(epilog=example("leasekit broker receipts", "leasekit broker receipts --out receipts.txt"))
@click.option("--lease", default="", metavar="LEASE", help="Only those of this lease, or delegation.")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Write them to FILE.")
@daemon_options
@json_option
def receipts(place: Place, lease: str, out: Path | None, as_json: bool) -> None:
    """List the receipts that sites gave the broker for claims that ended early, or write them to a file.

    Who is accused of having given units away twice brings them: `leasekit evidence verify FILE --against RECEIPTS`.
    They are read from the broker's store, whether its daemon runs or not.
    """
    spec = place.spec(BROKER)
    if spec.role != BROKER:
        raise LeasekitError(f"{spec.name} is {with_article(spec.role)}: only brokers keep receipts")
    names = known_names(place)
    found = [
        dict(zip(TABLES["claims"].columns, row, strict=True))
        for row in stored_rows(spec, "claims")
        if not row[1] and lease in ("", row[3])
    ]
    for row in found:
        (data,) = unpack_body(row.pop("body"))
        row |= {"receipt": data.hex(), "ended": decode_statement(data).at}
    if out is not None:
        out.write_text("".join(f"{row['receipt']}\n" for row in found), "ascii")
        note(f"{counted(len(found), 'receipt')} in {out}")
    elif as_json:
        print_json(found)
    else:
        rows = [
            (row["id"][:16], row["lease"], key_words(bytes.fromhex(row["holder"]), names), row["type"], row["units"],
             *map(to_second, (row["term_start"], row["term_end"], row["ended"])))
            for row in found
        ]  # fmt: skip
        columns = ("claim", "lease", "holder", "type", "units", "from", "until", "ended")
        print_table(columns, rows, empty="no claim has ended early", right=("units",))


@broker.command(
    epilog=example(
        "leasekit broker topology", "leasekit broker topology --json", "leasekit broker topology --out net.svg"
    )
)
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE", help="Draw it into FILE, a .png or .svg.")
@daemon_options
@json_option
def topology(place: Place, out: Path | None, as_json: bool) -> None:
    """Show the network that the broker can plan on: sites, exchange points, links, and what is free of them now."""
    from leasekit.cli.network import print_topology, topology_of

    _check_picture(out)
    with place.connect(BROKER) as client:
        found = topology_of(client.query("sources"))
    if out is not None:
        from leasekit.cli.network_picture import draw_topology

        draw_topology(found, out)
    if as_json:
        print_json(found.data())
    elif out is not None:
        note(f"written to {out}")
    else:
        print_topology(found)


def _check_picture(out: Path | None) -> None:
    if out is not None and out.suffix not in SUFFIXES:
        raise click.BadParameter(f"found {str(out)!r}, expected a name that ends in .png or .svg", param_hint="--out")


add_delegation_commands(broker, BROKER)
