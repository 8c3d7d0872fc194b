"""``leasekit broker``: what a broker holds, who waits, and how its time is taken."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from leasekit.cli.calendars import calendars, print_calendar
from leasekit.cli.delegations import add_delegation_commands, state_of
from leasekit.cli.output import example, json_option, listing, note, print_json, properties_of, report
from leasekit.cli.places import DeployPlace, daemon_options
from leasekit.cli.ticket import key_words, known_names, stored_rows
from leasekit.cli.times import SPAN, WHEN, at, term_columns
from leasekit.core.claims.statements import decode_statement
from leasekit.core.errors import LeasekitError
from leasekit.core.leases.machine import NONE
from leasekit.core.leases.records import unpack_body
from leasekit.core.reasons import counted, with_article
from leasekit.core.schema import TABLES
from leasekit.core.time import Duration, Instant, Term

BROKER: Final = "broker"
SUFFIXES: Final = (".png", ".svg")


SOURCES: Final = listing(
    "source", "site", "type", ("state", state_of), "units", ("free now", "free_now"),
    ("free for a day", "free_for_a_day"), "reservations", ("until", at("grants_until")), ("properties", properties_of),
    empty="no site has delegated anything", right=("units", "free now", "free for a day", "reservations"),
)  # fmt: skip
REQUESTS: Final = listing(
    ("lease", "id"), "holder", ("op", lambda lease: lease["requested"]["op"]), "type",
    ("units", lambda lease: lease["requested"]["units"]),
    *term_columns(lambda lease: lease["requested"]["term"]), "reason",
    empty="no request waits", right=("units",),
)  # fmt: skip


@click.group()
def broker() -> None:
    """Look into a broker."""


@broker.command(epilog=example("leasekit broker sources"))
@daemon_options
@json_option
def sources(place: DeployPlace, as_json: bool) -> None:
    """List the delegations that the broker holds, what is free of them, and until when it can grant of them."""
    found = place.query(BROKER, "sources")
    report(found, SOURCES, as_json=as_json)


@broker.command(epilog=example("leasekit broker release site/vm@broker"))
@click.argument("source")
@daemon_options
@json_option
def release(place: DeployPlace, source: str, as_json: bool) -> None:
    """Let go of what a site or broker has delegated and is not there any more to take back.

    Nothing is granted of it from now on; leases that have not begun are off, the others run out. When its giver is
    back, it hears of it, and offers anew.
    """
    released = place.command(BROKER, "source.release", source=source)
    words = f"{', '.join(released['sources'])}: nothing more is granted of it, leases run out"
    report(released, words, as_json=as_json)


@broker.command(epilog=example("leasekit broker requests"))
@daemon_options
@json_option
def requests(place: DeployPlace, as_json: bool) -> None:
    """List the requests that wait for the broker's mapper, and why."""
    waiting = [lease for lease in place.query(BROKER, "leases") if lease["pending"] != NONE]
    report(waiting, REQUESTS, as_json=as_json)


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
def calendar(place: DeployPlace, begin: Instant, span: Duration, source: str, out: Path | None, as_json: bool) -> None:
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
def receipts(place: DeployPlace, lease: str, out: Path | None, as_json: bool) -> None:
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
        holder = ("holder", lambda row: key_words(bytes.fromhex(row["holder"]), names))
        listing(
            ("claim", lambda row: row["id"][:16]), "lease", holder, "type", "units", ("from", at("term_start")),
            ("until", at("term_end")), ("ended", at("ended")), empty="no claim has ended early", right=("units",),
        )(found)  # fmt: skip


@broker.command(
    epilog=example(
        "leasekit broker topology", "leasekit broker topology --json", "leasekit broker topology --out net.svg"
    )
)
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE", help="Draw it into FILE, a .png or .svg.")
@daemon_options
@json_option
def topology(place: DeployPlace, out: Path | None, as_json: bool) -> None:
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
