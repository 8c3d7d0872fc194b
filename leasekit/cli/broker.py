"""``leasekit broker``: what a broker holds, who waits, how its time is taken, and the network that it can plan on.

The pictures are in :mod:`.pictures`.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, TypeAlias

import click

from leasekit.cli.options import FILE, Shown, argument, at, command, now, option, term_columns, to_second
from leasekit.cli.output import Told, clean, console, listing, note, print_table, properties_of
from leasekit.cli.peer import add_delegation_commands, add_eviction, state_of
from leasekit.cli.places import BROKER, DeployPlace
from leasekit.cli.ticket import key_words, known_names, stored_rows
from leasekit.config.instants import CALENDAR_END
from leasekit.core.accounts import PRICE, prices_of
from leasekit.core.claims.signed import decode_statement
from leasekit.core.errors import LeasekitError
from leasekit.core.leases.broker import NOTICED
from leasekit.core.leases.machine import NONE
from leasekit.core.leases.records import unpack_body
from leasekit.core.reasons import counted, with_article
from leasekit.core.schema import TABLES
from leasekit.core.time import DAY, SECOND, Duration, Instant, Term, format_duration
from leasekit.core.topology import LinkEnds, read_link

BARS: Final = " ▁▂▃▄▅▆▇█"
COLUMNS_MIN, COLUMNS_MAX = 10, 200
HOLDERS_SHOWN: Final = 12
"""How many holders get a line of their own in text, or a colour in a picture; the others are counted together."""
NAME_WIDTH: Final = 20
OTHERS: Final = "(others)"
MAINTENANCE: Final = "maintenance"
GONE: Final = "taken back"
"""What the time is called over which a delegation's issuer wants it back."""

Step: TypeAlias = dict[str, int]
"""``from`` when, ``until`` when, how many units are ``taken``."""
Calendar: TypeAlias = dict[str, Any]
"""A delegation over a window of time: what of it is reserved, and by whom (no ``lease``: it was delegated on), what its
site withholds for maintenance; neither is cut to the window. ``taken_back`` is the rest of its term that its issuer
takes back: nothing is granted then. None if it does not, or not within the window.
"""
Reserved: TypeAlias = tuple[dict[str, Any], Iterable[Mapping[str, Any]]]
"""A reservation, and how many units of each class it has."""
Held: TypeAlias = Sequence[tuple[int, Sequence[int]]]
"""Units, each with the term over which somebody has them."""


def calendars(
    sources: Iterable[Mapping[str, Any]],
    leases: Iterable[Mapping[str, Any]],
    delegations: Iterable[Mapping[str, Any]],
    window: Term,
) -> list[Calendar]:
    """The calendars of ``sources`` from what a broker says of itself; what lies outside the window is left out."""
    claims = [(claim, lease["holder"], lease["id"], *claim["term"]) for lease in leases for claim in lease["claims"]]
    for given in delegations:
        start, end = given["term"]
        end = end if given["freed"] < 0 else min(end, given["freed"])
        if given["state"] not in ("refused", "ended") and start < end:
            claims.append((given, given["broker"], "", start, end))
    of_source: dict[str, list[Reserved]] = {}
    for claim, holder, lease, start, end in claims:
        if Term(start, end).overlaps(window):
            made = {"holder": holder, "lease": lease, "units": claim["units"], "term": [start, end]}
            of_source.setdefault(claim["source"], []).append((made, claim["classes"]))
    return [_calendar(source, of_source.get(source["source"], ()), window) for source in sources]


def _calendar(source: Mapping[str, Any], reserved: Sequence[Reserved], window: Term) -> Calendar:
    of_class: dict[str, list[tuple[int, Sequence[int]]]] = {}
    for made, classes in reserved:
        for one in classes:
            of_class.setdefault(one["class"], []).append((one["units"], made["term"]))
    there = sorted((made for made, _ in reserved), key=lambda one: (one["term"], one["holder"], one["lease"]))
    withheld = [one for one in source["withheld"] if Term(*one["term"]).overlaps(window)]
    gone = Term(source["grants_until"], source["term"][1])
    return {
        **{key: source[key] for key in ("source", "site", "type", "units")},
        "steps": taken(_held(there), window),
        "classes": [
            {**{key: one[key] for key in ("class", "units", "properties")},
             "steps": taken(of_class.get(one["class"], ()), window)}
            for one in source["classes"]
        ],
        "reservations": there,
        "maintenance": sorted(withheld, key=lambda one: (one["term"], one["window"])),
        "taken_back": list(gone) if gone.start < gone.end and gone.overlaps(window) else None,
    }  # fmt: skip


def _held(things: Iterable[Mapping[str, Any]]) -> Held:
    return [(one["units"], one["term"]) for one in things]


def holdings(calendar: Calendar, window: Term) -> dict[str, Held]:
    """What each holder has, those with most unit-time first; beyond :data:`HOLDERS_SHOWN` together."""
    held: dict[str, list[tuple[int, Sequence[int]]]] = {}
    for one in calendar["reservations"]:
        held.setdefault(one["holder"], []).append((one["units"], one["term"]))

    def time(holder: str) -> int:
        return sum(units * _within(term, window).length for units, term in held[holder])

    order = sorted(held, key=lambda holder: (-time(holder), holder))
    rest = [each for holder in order[HOLDERS_SHOWN:] for each in held[holder]]
    return {**{holder: held[holder] for holder in order[:HOLDERS_SHOWN]}, **({OTHERS: rest} if rest else {})}


def others_of(calendar: Calendar) -> Iterator[tuple[str, Held]]:
    """What is not to be had for other reasons than that somebody has it."""
    if calendar["maintenance"]:
        yield MAINTENANCE, _held(calendar["maintenance"])
    if calendar["taken_back"] is not None:
        yield GONE, [(calendar["units"], calendar["taken_back"])]


def taken(held: Held, window: Term) -> list[Step]:
    """How many units are taken over a window, as periods in which that does not change."""
    changes: dict[Instant, int] = {window.start: 0, window.end: 0}
    for units, term in held:
        start, end = _within(term, window)
        if start < end:
            changes[start] = changes.get(start, 0) + units
            changes[end] = changes.get(end, 0) - units
    steps: list[Step] = []
    level = 0
    for start, end in pairwise(sorted(changes)):
        level += changes[start]
        if steps and steps[-1]["taken"] == level:
            steps[-1]["until"] = end
        else:
            steps.append({"from": start, "until": end, "taken": level})
    return steps


def _within(term: Sequence[int], window: Term) -> Term:
    """The part of a term that lies in the window; of length 0 if none does."""
    start = max(term[0], window.start)
    return Term(start, max(start, min(term[1], window.end)))


def bars(steps: Sequence[Step], units: int, window: Term, columns: int) -> str:
    """A picture of ``columns`` characters; each shows the most that is taken at any instant that it stands for."""
    line = []
    for column in range(columns):
        start = window.start + window.length * column // columns
        end = max(window.start + window.length * (column + 1) // columns, start + 1)
        most = max((one["taken"] for one in steps if one["from"] < end and one["until"] > start), default=0)
        share = most / units if units else 0.0
        line.append(BARS[0] if most == 0 else BARS[min(max(1, int(share * (len(BARS) - 1))), len(BARS) - 1)])
    return "".join(line)


def print_calendar(calendar: Calendar, window: Term) -> None:
    """For a person: a line of bars for all, one for each class of which units are taken, for each holder, where
    maintenance is, and the axis.
    """
    units, steps = calendar["units"], calendar["steps"]
    lines = [("all", steps, units)]
    for one in calendar["classes"]:
        if any(step["taken"] for step in one["steps"]):
            lines.append((properties_of(one) or one["class"][:8], one["steps"], one["units"]))
    held = [*holdings(calendar, window).items(), *others_of(calendar)]
    lines += [(name, taken(theirs, window), units) for name, theirs in held]
    margin = min(max(len(clean(name)) for name, _, _ in lines), NAME_WIDTH) + 1
    width = min(max(console().width - 2 - margin, COLUMNS_MIN), COLUMNS_MAX)
    peak = max((step["taken"] for step in steps), default=0)
    click.echo(f"{clean(calendar['source'])}: {units} units, at most {peak} taken at once")
    for name, level, most in lines:
        _line(name, margin, bars(level, most, window, width))
    _axis(window, margin, width)
    if calendar["taken_back"] is not None:
        click.echo(f"{GONE} from {to_second(calendar['taken_back'][0])} on: nothing that goes beyond is granted")
    for each in calendar["maintenance"]:
        start, end = map(to_second, each["term"])
        over = f"over {start} .. {end}" if each["term"][1] <= CALENDAR_END else f"from {start} on"
        click.echo(clean(f"maintenance {each['window']}: {counted(each['units'], 'unit')} {over}: {each['reason']}"))


def _line(name: str, margin: int, line: str) -> None:
    short = clean(name)
    short = short if len(short) < margin else f"{short[: margin - 2]}…"
    click.echo(f"{short:<{margin}}|{line}|")


def _axis(window: Term, margin: int, width: int) -> None:
    left, right = to_second(window.start), to_second(window.end)
    column = (
        f"a column is {format_duration(max(window.length // width // 1000 * 1000, 1))}" if window.length > 0 else ""
    )
    gap = width + 2 - len(left) - len(right)
    indent = " " * margin
    click.echo(f"{indent}{left}{column.center(gap)}{right}" if gap > len(column) else f"{indent}{left} .. {right}")


def topology_of(sources: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The network of a broker's ``sources`` as plain data: sites' units, the names of exchange points, links (with
    bandwidths in Mbit/s; ``site`` is who leases one), and what is wrong with links that can't be read. Several
    delegations of one type and site count as one.
    """
    counts: dict[tuple[str, str], tuple[int, int]] = {}
    links: dict[tuple[str, str], LinkEnds] = {}
    sites: dict[str, list[dict[str, Any]]] = {}
    faults = []
    for source in sources:
        key = source["type"], source["site"]
        try:
            ends = read_link(source["properties"])
        except ValueError as error:
            faults.append(f"link {source['type']} of {source['site']}: {error}")
            continue
        units, free = counts.get(key, (0, 0))
        counts[key] = units + source["units"], free + source["free_now"]
        if ends is not None:
            links.setdefault(key, ends)
    for type_, site in sorted(counts.keys() - links.keys()):
        units, free = counts[type_, site]
        sites.setdefault(site, []).append({"type": type_, "units": units, "free_now": free})
    joined = {end for ends in links.values() for end in (ends.a, ends.b)}
    return {
        "sites": [{"site": site, "types": sites[site]} for site in sorted(sites)],
        "exchange_points": sorted(joined - sites.keys()),
        "links": [_link(*key, links[key], *counts[key]) for key in sorted(links)],
        "faults": faults,
    }


def _link(name: str, site: str, ends: LinkEnds, units: int, free: int) -> dict[str, Any]:
    return {
        "link": name,
        "site": site,
        "a": ends.a,
        "b": ends.b,
        "capacity_mbps": float(ends.granule * units),
        "free_now_mbps": float(ends.granule * free),
        "granule_mbps": float(ends.granule),
        "latency_ms": float(ends.latency),
        "value": float(ends.value),
    }


def _number(key: str) -> Callable[[Mapping[str, Any]], str]:
    return lambda link: f"{link[key]:g}"


HOSTS: Final = listing("site", "type", ">units", (">free now", "free_now"), empty="no site has delegated units")
LINKS: Final = listing(
    "link", "a", "b", (">Mbit/s", _number("capacity_mbps")), (">free now", _number("free_now_mbps")),
    (">latency ms", _number("latency_ms")), (">value", _number("value")), ("leased by", "site"),
    empty="no network authority has delegated links",
)  # fmt: skip


def print_topology(found: Mapping[str, Any]) -> None:
    """For a person: three tables."""
    units = [{"site": one["site"], **type_} for one in found["sites"] for type_ in one["types"]]
    HOSTS(units)
    if found["exchange_points"]:
        print_table(("exchange point",), [(name,) for name in found["exchange_points"]])
    LINKS(found["links"])
    for fault in found["faults"]:
        note(fault)


SUFFIXES: Final = (".png", ".svg")


def _class_words(one: Mapping[str, Any]) -> str:
    return f"{one['class'][:8]} {properties_of(one)}: {one['free_now']} of {one['units']} free"


SOURCES: Final = listing(
    "source", "site", "type", ("state", state_of), ">units", (">free now", "free_now"),
    (">free for a day", "free_for_a_day"), ">reservations", ("until", at("grants_until")),
    ("properties", properties_of), ("classes", lambda source: "; ".join(map(_class_words, source["classes"]))),
    empty="no site has delegated anything",
)  # fmt: skip
PRICES: Final = listing(
    "type", ("from", at("at")), ">price", ("billing period", lambda one: format_duration(one["period_ms"])),
    empty="there was no price: the broker's mapper has no market",
)  # fmt: skip
REQUESTS: Final = listing(
    ("lease", "id"), "holder", ("op", lambda lease: lease["requested"]["op"]), "type",
    (">units", lambda lease: lease["requested"]["units"]),
    *term_columns(lambda lease: lease["requested"]["term"]), ">priority", "reason",
    empty="no request waits",
)  # fmt: skip


@click.group()
def broker() -> None:
    """Look into a broker."""


@command(broker)
def sources(place: DeployPlace) -> Shown:
    """List the delegations that the broker holds, what is free of them, and until when it can grant of them.

    Example:
      leasekit broker sources
    """
    found = place.query(BROKER, "sources")
    return found, SOURCES


@command(broker)
def release(place: DeployPlace, source: str = argument()) -> Shown:
    """Let go of what a site or broker has delegated and is not there any more to take back.

    Nothing is granted of it from now on; leases that have not begun are off, the others run out. When its issuer is
    back, it hears of it, and offers anew.

    Example:
      leasekit broker release site/vm@broker
    """
    released = place.command(BROKER, "source.release", source=source)
    sources = ", ".join(released["sources"])
    words = f"{sources}: nothing more is granted of it; leases that have begun run out, others are off"
    return released, words


@command(broker)
def requests(place: DeployPlace) -> Shown:
    """List the requests that wait for the broker's mapper, with the priority that counts (the class of the holder and
    what was asked for, as far as the holder may), and why they wait.

    Example:
      leasekit broker requests
    """
    waiting = [lease for lease in place.query(BROKER, "leases") if lease["pending"] not in (NONE, NOTICED)]
    return waiting, REQUESTS


@command(broker)
def calendar(
    place: DeployPlace,
    begin: Instant = option("Where the picture begins.", "--from", shown="now"),
    span: Duration = option("How much time it shows.", "--for", shown="1d"),
    source: str = option("Only this delegation.", metavar="SOURCE"),
    out: Path | None = option("Draw it into FILE, a .png or .svg.", metavar="FILE"),
) -> Shown:
    """Draw how the units of each delegation are taken over time, and by whom: a full block where none is free.

    Units that the site needs for maintenance are drawn on a line of their own, as is the time from which on a
    delegation is taken back.

    Example:
      leasekit broker calendar
      leasekit broker calendar --for 2h --json
      leasekit broker calendar --for 1w --out week.png
    """
    _check_picture(out)
    with place.connect(BROKER) as client:
        found = [s for s in client.query("sources") if not source or s["source"] == source]
        leases, given = client.query("leases"), client.query("delegations")
    if source and not found:
        raise LeasekitError(f"no source {source!r}; `leasekit broker sources` lists them")
    window = Term(begin, begin + span)
    made = calendars(found, leases, given, window)
    pictures = [lambda _, each=each: print_calendar(each, window) for each in made]
    told: Told = tuple(pictures) or "no site has delegated anything"
    if out is not None and made:
        from leasekit.cli.pictures import draw

        draw(made, window, out)
        told = f"written to {out}"
    return made, told


@command(broker)
def prices(
    place: DeployPlace,
    since: Instant | None = option("The period's begin (default: a day ago).", metavar="TIME"),
    until: Instant | None = option("Its end (default: now).", metavar="TIME"),
    type_: str = option("Only of this type.", "--type", metavar="TYPE"),
    as_csv: bool = option("Print comma-separated values.", "--csv"),
    out: Path | None = option("Draw them into FILE, a .png or .svg.", metavar="FILE"),
) -> Shown:
    """List what a unit of each type has cost in a billing period, and from when on: where the broker has a market.

    Example:
      leasekit broker prices --since -7d
      leasekit broker prices --csv
      leasekit broker prices --out prices.svg
    """
    _check_picture(out)
    end = now() if until is None else until
    period = Term(end - DAY if since is None else since, end)
    if period.end <= period.start:
        raise click.UsageError("--until is not after --since")
    with place.connect(BROKER) as client:
        found = [one for one in prices_of(client.history(PRICE), period) if type_ in ("", one["type"])]
    if as_csv:
        lines = [(one["type"], to_second(one["at"]), one["price"], one["period_ms"] / SECOND) for one in found]
        return found, lambda _: csv.writer(sys.stdout).writerows([("type", "from", "price", "period_s"), *lines])
    if out is not None and found:
        from leasekit.cli.pictures import draw_prices

        # Without a begin the picture is of what there is: the prices of a new market would be a line at its edge.
        first = period.start if since is not None else min(*(one["at"] for one in found), end - SECOND)
        draw_prices(found, Term(max(first, period.start), end), out)
        return found, f"written to {out}"
    return found, PRICES


@command(broker)
def receipts(
    place: DeployPlace,
    lease: str = option("Only those of this lease, or delegation.", metavar="LEASE"),
    out: Path | None = option("Write them to FILE.", type=FILE, metavar="FILE"),
) -> Shown:
    """List the receipts that sites gave the broker for claims that ended early, or write them to a file.

    Who is accused of having given units away twice brings them: `leasekit evidence verify FILE --against RECEIPTS`.
    They are read from the broker's store, whether its daemon runs or not.

    Example:
      leasekit broker receipts
      leasekit broker receipts --out receipts.txt
    """
    spec = place.stored(BROKER)
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
        return found, f"{counted(len(found), 'receipt')} in {out}"
    holder = ("holder", lambda row: key_words(bytes.fromhex(row["holder"]), names))
    return found, listing(
        ("claim", lambda row: row["id"][:16]), "lease", holder, "type", ">units", ("from", at("term_start")),
        ("until", at("term_end")), ("ended", at("ended")), empty="no claim has ended early",
    )  # fmt: skip


@command(broker)
def topology(
    place: DeployPlace, out: Path | None = option("Draw it into FILE, a .png or .svg.", metavar="FILE")
) -> Shown:
    """Show the network that the broker can plan on: sites, exchange points, links, and what is free of them now.

    Example:
      leasekit broker topology
      leasekit broker topology --json
      leasekit broker topology --out net.svg
    """
    _check_picture(out)
    found = topology_of(place.query(BROKER, "sources"))
    if out is not None:
        from leasekit.cli.pictures import draw_topology

        draw_topology(found, out)
    return found, print_topology if out is None else f"written to {out}"


def _check_picture(out: Path | None) -> None:
    if out is not None and out.suffix not in SUFFIXES:
        raise click.BadParameter(f"found {str(out)!r}, expected a name that ends in .png or .svg", param_hint="--out")


add_delegation_commands(broker, BROKER)
add_eviction(broker, BROKER, "Refuse a request that waits, or end a lease that is preemptible (its site ends others).")
