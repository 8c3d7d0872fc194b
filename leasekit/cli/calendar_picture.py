"""A broker's calendar as a PNG or SVG picture: a panel for each delegation, a colour for each holder."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, cast

import matplotlib as mpl
import matplotlib.dates
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from leasekit.cli.calendars import GONE, OTHERS, Calendar, Step, taken
from leasekit.cli.times import to_second
from leasekit.config.instants import CALENDAR_END
from leasekit.core.errors import LeasekitError
from leasekit.core.time import Instant
from leasekit.emulation.plots import PALETTE, STYLE, WIDTH

PANEL_HEIGHT, MARGIN_HEIGHT = 1.9, 1.2
"""Inches: of each delegation, and of title and legend."""
OTHERS_COLOUR: Final = "#9A9A9A"
WITHHELD_EDGE: Final = "#666666"
GONE_COLOUR: Final = "#333333"
HATCHES: Final = ("", "//", "..")
"""More holders than colours: the second and third time round a colour has a pattern."""


def draw(calendars: Sequence[Calendar], file: Path) -> None:
    """Draw them into ``file``, whose name ends in .png or .svg. Raises ``LeasekitError`` where that can't be."""
    window = calendars[0].window
    if window.end > CALENDAR_END:
        raise LeasekitError(f"the window ends {to_second(window.end)}: that can't be drawn")
    names = list(dict.fromkeys(name for each in calendars for name in each.holdings() if name != OTHERS))
    with mpl.rc_context():
        mpl.rcdefaults()
        cast(Any, mpl.rcParams).update(STYLE)
        figure = Figure(figsize=(WIDTH, MARGIN_HEIGHT + PANEL_HEIGHT * len(calendars)), layout="constrained")
        FigureCanvasAgg(figure)
        panels = figure.subplots(len(calendars), squeeze=False, sharex=True)[:, 0]
        for axes, calendar in zip(panels, calendars, strict=True):
            _panel(axes, calendar, names)
        _time_axis(panels[-1], calendars[0])
        figure.suptitle(f"{to_second(window.start)} .. {to_second(window.end)}", x=0.01, ha="left", fontsize=12)
        _legend(figure, calendars, names)
        try:
            figure.savefig(file, metadata={"Date": None} if file.suffix == ".svg" else {"Software": None})
        except OSError as error:
            raise LeasekitError(f"can't write {file}: {error.strerror or error}") from error


def _panel(axes: Axes, calendar: Calendar, names: Sequence[str]) -> None:
    window, held = calendar.window, calendar.holdings()
    # Each from the ground up over all that come before it, the highest first: the next one covers what isn't its own.
    below = [each for theirs in held.values() for each in theirs]
    for name, theirs in reversed(held.items()):
        edges, levels = _edges(taken(below, window))
        axes.fill_between(edges, levels, 0, step="post", linewidth=0.4, edgecolor="white", **_look(name, names))
        below = below[: len(below) - len(theirs)]
    if calendar.withheld:
        edges, gone = _edges(taken(((w.units, w.term) for w in calendar.withheld), window))
        lower = [calendar.units - units for units in gone]
        axes.fill_between(edges, lower, calendar.units, step="post", **_WITHHELD)
    if calendar.gone is not None:
        edges, gone = _edges(taken([(calendar.units, calendar.gone)], window))
        axes.fill_between(edges, gone, 0, step="post", **_GONE)
    axes.axhline(calendar.units, color="black", linewidth=1.0)
    peak = max(level for _, _, level in calendar.steps)
    axes.set_ylim(0, max(calendar.units, peak) * 1.05)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=5))
    axes.set_ylabel("units")
    axes.set_title(f"{calendar.source}: {calendar.units} units", fontsize=10)


_WITHHELD: Final[dict[str, Any]] = {
    "facecolor": "none", "edgecolor": WITHHELD_EDGE, "hatch": "xxx", "linewidth": 0.0
}  # fmt: skip


_GONE: Final[dict[str, Any]] = {
    "facecolor": GONE_COLOUR, "alpha": 0.25, "edgecolor": WITHHELD_EDGE, "linewidth": 0.0
}  # fmt: skip


def _look(name: str, names: Sequence[str]) -> dict[str, Any]:
    if name == OTHERS:
        return {"facecolor": OTHERS_COLOUR}
    place = names.index(name)
    return {"facecolor": PALETTE[place % len(PALETTE)], "hatch": HATCHES[place // len(PALETTE) % len(HATCHES)]}


def _edges(steps: Sequence[Step]) -> tuple[Any, list[int]]:
    """For a step plot: dates, and the level from each on."""
    levels = [level for _, _, level in steps]
    return [_date(start) for start, _, _ in steps] + [_date(steps[-1][1])], [*levels, levels[-1]]


def _time_axis(axes: Axes, calendar: Calendar) -> None:
    start, end = calendar.window
    limits: Any = (_date(start), _date(end))
    axes.set_xlim(limits)
    dates: Any = mpl.dates
    locator = dates.AutoDateLocator(tz=UTC)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(dates.ConciseDateFormatter(locator, tz=UTC))
    axes.set_xlabel("UTC")


def _legend(figure: Figure, calendars: Sequence[Calendar], names: Sequence[str]) -> None:
    looks = [(name, _look(name, names)) for name in names]
    if any(OTHERS in each.holdings() for each in calendars):
        looks.append((OTHERS, _look(OTHERS, names)))
    if any(each.withheld for each in calendars):
        looks.append(("maintenance", _WITHHELD))
    if any(each.gone for each in calendars):
        looks.append((GONE, _GONE))
    if looks:
        handles = [Patch(label=name, **look) for name, look in looks]
        figure.legend(handles=handles, loc="outside lower left", ncols=min(len(handles), 8))


def _date(instant: Instant) -> datetime:
    return datetime.fromtimestamp(instant / 1000, UTC)
