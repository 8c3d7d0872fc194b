"""How a broker's delegations are taken over time, by whom, and when maintenance takes units away: as text and as JSON.

The picture is in :mod:`.calendar_picture`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple, TypeAlias

import click

from leasekit.cli.output import clean, console
from leasekit.cli.times import to_second
from leasekit.core.time import Instant, Term, format_duration

BARS: Final = " ▁▂▃▄▅▆▇█"
COLUMNS_MIN, COLUMNS_MAX = 10, 200
HOLDERS_SHOWN: Final = 12
"""How many holders get a line of their own in text, or a colour in a picture; the others are counted together."""
NAME_WIDTH: Final = 20
OTHERS: Final = "(others)"
GONE: Final = "taken back"
"""What the time is called over which a delegation's giver wants it back."""

Step: TypeAlias = tuple[Instant, Instant, int]
"""From, until, units taken."""


class CalendarReservation(NamedTuple):
    """Units of a delegation that someone has over a term. ``lease`` is empty where they were delegated on."""

    holder: str
    lease: str
    units: int
    term: Term


class CalendarWindow(NamedTuple):
    """Units that the site withholds for maintenance."""

    id: str
    units: int
    term: Term
    reason: str


class Calendar(NamedTuple):
    """One delegation over a window of time: what is reserved, what is withheld; both are not cut to the window.

    ``gone`` is the rest of its term that its giver takes back: nothing is granted then. None if it does not, or not
    within the window.
    """

    source: str
    site: str
    type: str
    units: int
    window: Term
    reservations: tuple[CalendarReservation, ...]
    withheld: tuple[CalendarWindow, ...]
    gone: Term | None = None

    @property
    def steps(self) -> list[Step]:
        """How many units are taken, as periods in which that does not change."""
        return taken(((r.units, r.term) for r in self.reservations), self.window)

    def holdings(self) -> dict[str, list[tuple[int, Term]]]:
        """What each holder has, those with most unit-time first; beyond :data:`HOLDERS_SHOWN` together."""
        held: dict[str, list[tuple[int, Term]]] = {}
        for each in self.reservations:
            held.setdefault(each.holder, []).append((each.units, each.term))
        order = sorted(held, key=lambda holder: (-self._time(held[holder]), holder))
        shown = {holder: held[holder] for holder in order[:HOLDERS_SHOWN]}
        rest = [each for holder in order[HOLDERS_SHOWN:] for each in held[holder]]
        return {**shown, OTHERS: rest} if rest else shown

    def _time(self, held: Iterable[tuple[int, Term]]) -> int:
        return sum(units * _within(term, self.window).length for units, term in held)

    def data(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "source": self.source,
            "site": self.site,
            "type": self.type,
            "units": self.units,
            "steps": [{"from": a, "until": b, "taken": n} for a, b, n in self.steps],
            "reservations": [
                {"holder": r.holder, "lease": r.lease, "units": r.units, "term": list(r.term)}
                for r in self.reservations
            ],
            "maintenance": [
                {"window": w.id, "units": w.units, "term": list(w.term), "reason": w.reason} for w in self.withheld
            ],
            "taken_back": list(self.gone) if self.gone is not None else None,
        }


def calendars(
    sources: Iterable[Mapping[str, Any]],
    leases: Iterable[Mapping[str, Any]],
    delegations: Iterable[Mapping[str, Any]],
    window: Term,
) -> list[Calendar]:
    """The calendars of ``sources`` from what a broker says of itself; what lies outside the window is left out."""
    reserved: dict[str, list[CalendarReservation]] = {}
    for lease in leases:
        for claim in lease["claims"]:
            made = CalendarReservation(lease["holder"], lease["id"], claim["units"], Term(*claim["term"]))
            reserved.setdefault(claim["source"], []).append(made)
    for given in delegations:
        start, end = given["term"]
        end = end if given["freed"] < 0 else min(end, given["freed"])
        if given["state"] not in ("refused", "ended") and start < end:
            made = CalendarReservation(given["broker"], "", given["units"], Term(start, end))
            reserved.setdefault(given["source"], []).append(made)
    found = []
    for source in sources:
        there = [r for r in reserved.get(source["source"], ()) if r.term.overlaps(window)]
        windows = [CalendarWindow(w["window"], w["units"], Term(*w["term"]), w["reason"]) for w in source["withheld"]]
        gone = Term(source["grants_until"], source["term"][1])
        found.append(
            Calendar(
                source["source"], source["site"], source["type"], source["units"], window,
                tuple(sorted(there, key=lambda r: (r.term, r.holder, r.lease))),
                tuple(sorted((w for w in windows if w.term.overlaps(window)), key=lambda w: (w.term, w.id))),
                gone if gone.start < gone.end and gone.overlaps(window) else None,
            )
        )  # fmt: skip
    return found


def taken(held: Iterable[tuple[int, Term]], window: Term) -> list[Step]:
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
        if steps and steps[-1][2] == level:
            steps[-1] = (steps[-1][0], end, level)
        else:
            steps.append((start, end, level))
    return steps


def _within(term: Term, window: Term) -> Term:
    """The part of a term that lies in the window; of length 0 if none does."""
    start = max(term.start, window.start)
    return Term(start, max(start, min(term.end, window.end)))


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


def print_calendar(calendar: Calendar) -> None:
    """For a person: a line of bars for all, one for each holder, one where maintenance is, and the axis."""
    window, units, steps = calendar.window, calendar.units, calendar.steps
    holders = calendar.holdings()
    names = ["all", *holders, *(["maintenance"] if calendar.withheld else []), *([GONE] if calendar.gone else [])]
    margin = min(max(map(len, names)), NAME_WIDTH) + 1
    width = min(max(console().width - 2 - margin, COLUMNS_MIN), COLUMNS_MAX)
    peak = max((level for _, _, level in steps), default=0)
    click.echo(f"{clean(calendar.source)}: {units} units, at most {peak} taken at once")
    _line("all", margin, bars(steps, units, window, width))
    for holder, theirs in holders.items():
        _line(holder, margin, bars(taken(theirs, window), units, window, width))
    if calendar.withheld:
        gone = taken(((w.units, w.term) for w in calendar.withheld), window)
        _line("maintenance", margin, bars(gone, units, window, width))
    if calendar.gone is not None:
        _line(GONE, margin, bars(taken([(units, calendar.gone)], window), units, window, width))
    _axis(window, margin, width)
    if calendar.gone is not None:
        click.echo(f"{GONE} from {to_second(calendar.gone.start)} on: nothing that goes beyond is granted")
    for each in calendar.withheld:
        start, end = map(to_second, each.term)
        click.echo(clean(f"maintenance {each.id}: {each.units} units over {start} .. {end}: {each.reason}"))


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
