"""Pictures of an experiment, each as PNG and SVG: the figures of Shirako's sections 5.1 to 5.3, and site usage.

Every function takes ``stem``, the path of the pictures without a suffix, makes its folder, and returns the two
files that it wrote. The same input gives the same bytes with the same matplotlib: no date, no random ids, no
style of the user's. Only ``Figure`` objects are used, so nothing depends on a display or on global figures.
Time is in ms; the x axis of curves over time is in days since the window's start. Colours are those of Okabe
and Ito, which the colour-blind can tell apart; curves differ in marker or dash as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, cast

import attrs

from leasekit.core.signals import SignalSteps
from leasekit.core.time import DAY, HOUR, MINUTE, SECOND, WEEK, Duration, Term, format_duration
from leasekit.emulation.metrics import summed
from leasekit.emulation.tidy import interval

if TYPE_CHECKING:  # who draws nothing does not wait for matplotlib, which takes as long as all else of an emulation
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

S = TypeVar("S")
BLUE, VERMILION, GREEN, PURPLE = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
ORANGE, SKY, BLACK = "#E69F00", "#56B4E9", "#000000"
YELLOW = "#F0E442"
PALETTE = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, BLACK, YELLOW)
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
SERIES_MAX = len(PALETTE)
"""The most series that can be told apart in one picture."""
DASHES = ("-", "--", "-.", ":")
DEMAND_FILL, DEMAND_EDGE = "#CFCFCF", "#8C8C8C"

STYLE: Mapping[str, Any] = {
    "figure.dpi": 100,
    "savefig.dpi": 150,
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 10,
    "axes.titlesize": 12,
    "axes.titlelocation": "left",
    "axes.titlepad": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E4E4E4",
    "grid.linewidth": 0.7,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "lines.linewidth": 1.6,
    # Names are the user's: a dollar sign in one is a dollar sign.
    "text.parse_math": False,
    "svg.hashsalt": "leasekit",
    "svg.fonttype": "none",
}
WIDTH = 10.0
"""Inches."""

FIRST_DATE = 631_152_000_000
"""1990-01-01."""
DURATION_TICKS = (
    SECOND, 10 * SECOND, MINUTE, 5 * MINUTE, 15 * MINUTE, HOUR, 3 * HOUR, 12 * HOUR, DAY, 3 * DAY, WEEK, 4 * WEEK
)  # fmt: skip


@attrs.frozen(kw_only=True)
class Load:
    """What one guest wanted and what it held, under a name for titles and legends (a guest's, or a term's)."""

    name: str
    demand: SignalSteps
    holdings: SignalSteps
    smoothed: SignalSteps | None = None
    rmse: float | None = None


@attrs.frozen
class Axis:
    """What a horizontal axis shows: durations in ms, on a logarithmic scale, or plain numbers."""

    label: str
    durations: bool


Curves = Mapping[str, Sequence[tuple[float, float]]]
"""Named curves of (x, y) points."""


def demand_and_holdings(stem: Path, load: Load, window: Term, *, units: str = "nodes") -> tuple[Path, ...]:
    """One guest's demand against its holdings over time."""

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        _load(axes, load, window)
        axes.set_title(_titled(load, "demand and holdings"))
        _time_axis(axes, window)
        _amount_axis(axes, units)
        _legend_above(axes)

    return draw_figure(stem, (WIDTH, 4.2), draw)


def terms_side_by_side(
    stem: Path, loads: Sequence[Load], window: Term, *, title: str, units: str = "nodes"
) -> tuple[Path, ...]:
    """The same demand under several lease terms, one panel each, all to one scale (Shirako, figure 7).

    Raises ``ValueError`` without loads.
    """
    _some(loads, "loads")
    panels = [(_titled(load, None), partial(_load, load=load, window=window)) for load in loads]
    return _panels(stem, panels, window, title, units, 1.0, 1.9)


def stacked_guests(
    stem: Path,
    panels: Mapping[str, Mapping[str, SignalSteps]],
    window: Term,
    *,
    title: str,
    capacity: float | None = None,
    units: str = "nodes",
) -> tuple[Path, ...]:
    """The holdings of competing guests stacked, a panel for each lease term (Shirako, figures 8 and 9).

    ``panels`` maps a panel's name to its guests' holdings, the first guest at the bottom; the same guest has the
    same colour in every panel. Raises ``ValueError`` without panels or guests.
    """
    _some(panels, "panels")
    panels = _few_guests(panels, window)
    names = list(dict.fromkeys(name for guests in panels.values() for name in guests))
    _some(names, "guests")

    def fill(axes: Axes, guests: Mapping[str, SignalSteps]) -> None:
        _stack(axes, guests, names, window)
        if capacity is not None:
            axes.axhline(capacity, color=BLACK, linestyle="--", linewidth=1.0, label=f"capacity ({capacity:g})")

    rows = [(panel, partial(fill, guests=guests)) for panel, guests in panels.items()]
    return _panels(stem, rows, window, title, units, 1.2, 2.4)


def site_usage(
    stem: Path, sites: Mapping[str, tuple[SignalSteps, SignalSteps | float]], window: Term, *, units: str = "nodes"
) -> tuple[Path, ...]:
    """What is held at each site against its capacity, one panel each. Raises ``ValueError`` without sites."""
    _some(sites, "sites")
    rows = [(name, partial(_site, held=held, capacity=most, window=window)) for name, (held, most) in sites.items()]
    return _panels(stem, rows, window, "Site usage", units, 1.2, 1.9)


def reported(stem: Path, numbers: Mapping[str, SignalSteps], window: Term, *, title: str) -> tuple[Path, ...]:
    """Numbers over time, a panel each with a scale of its own, from the first instant of each on; a further picture for
    each eight of them. Raises ``ValueError`` without numbers.
    """
    _some(numbers, "numbers")
    named = list(numbers.items())

    def draw(figure: Figure, some: Sequence[tuple[str, SignalSteps]]) -> None:
        rows = stacked(figure, len(some), one_scale=False)
        for axes, (name, number) in zip(rows, some, strict=True):
            begin = min(max(window.start, number.first or 0), window.end - 1)
            days, values = _xy(number, Term(begin, window.end))
            axes.step([at + (begin - window.start) / DAY for at in days], values, where="post", color=BLUE)
            axes.set_title(name, fontsize=10)
        _time_axis(rows[-1], window)
        headline(figure, title)

    return _in_parts(stem, named, lambda some: (WIDTH, 1.0 + 1.9 * len(some)), draw)


def fidelity_against(stem: Path, curves: Curves, x: Axis) -> tuple[Path, ...]:
    """The usable share of the lease term, against its length as in Shirako's figure 5, or against another key.

    ``curves`` are points (x, fidelity from 0 to 1) by kind of resource. Raises ``ValueError`` without curves.
    """

    def finish(axes: Axes) -> None:
        _axis(axes, x, ())
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")

    said = {"title": "Fidelity: usable share of the lease term", "ylabel": "fidelity", "ylim": (0, 1.03)}
    return draw_curves(stem, curves, finish, legend="lower right", **said)


def alpha_curves(
    stem: Path, curves: Curves, *, x: str = "lease term (ticks)", title: str | None = None
) -> tuple[Path, ...]:
    """Overhead per tick, in ms, against the lease term or the number of leases (Shirako, figure 10); log axes.

    ``curves`` are points (x, alpha in ms, both above 0). Raises ``ValueError`` without curves.
    """
    from matplotlib.ticker import LogLocator

    def finish(axes: Axes) -> None:
        _plain_log_axis(axes, [point[0] for points in curves.values() for point in points])
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.yaxis.set_minor_formatter("")

    title = title or f"Overhead per tick against {x.split(' (')[0]}"
    said = {"title": title, "xscale": "log", "yscale": "log", "xlabel": x, "ylabel": "alpha (ms per tick)"}
    return draw_curves(stem, curves, finish, **said)


def rmse_against(stem: Path, curves: Curves, x: Axis, *, units: str = "nodes") -> tuple[Path, ...]:
    """Root mean square error between demand and holdings against what ``x`` says, a curve for each guest.

    ``curves`` are points (x, error in units). Raises ``ValueError`` without curves.
    """
    found = [point for points in curves.values() for point in points]

    def finish(axes: Axes) -> None:
        several = any(len({at for at, _ in points}) < len(points) for points in curves.values())
        for at in () if several else found:
            axes.annotate(f"{at[1]:.1f}", at, textcoords="offset points", xytext=(0, 7), ha="center", fontsize=8)
        _axis(axes, x, [at for at, _ in found])

    most = 1.15 * max((error for _, error in found), default=0.0) or 1.0
    said = {"ylabel": f"root mean square error ({units})", "ylim": (0, most)}
    return draw_curves(stem, curves, finish, title="Error between demand and holdings", **said)


def against(stem: Path, curves: Curves, x: str, y: str, *, title: str) -> tuple[Path, ...]:
    """One figure of runs against another. Raises ``ValueError`` without curves."""
    found = [at for points in curves.values() for at, _ in points]
    few = found if all(at.is_integer() for at in found) else ()
    return draw_curves(stem, curves, lambda axes: _axis(axes, Axis(x, False), few), title=title, ylabel=y)


def purchase(
    stem: Path, panels: Sequence[tuple[str, Curves, bool]], knees: Mapping[str, float], *, title: str, x: str
) -> tuple[Path, ...]:
    """Figures over the units that were bought, one panel each: its name, its curves, and whether these are shares.

    ``knees`` has where more units stop to pay, by curve: a dashed line in each panel. Raises ``ValueError`` without
    panels.
    """
    from matplotlib.ticker import PercentFormatter

    _some(panels, "panels")

    def draw(figure: Figure) -> None:
        rows = [row[0] for row in figure.subplots(len(panels), 1, sharex=True, squeeze=False)]
        for axes, (name, curves, share) in zip(rows, panels, strict=True):
            for index, (label, points) in enumerate(curves.items()):
                draw_curve(axes, index, label, points)
            for label, at in knees.items():
                text = f"knee: {at:g}" if len(knees) == 1 else f"knee of {label}: {at:g}"
                axes.axvline(at, color=BLACK, linestyle="--", linewidth=1.0, label=text)
            axes.set_ylabel(name)
            axes.set_ylim(bottom=0)
            if share:
                axes.yaxis.set_major_formatter(PercentFormatter(1.0))
            axes.legend(loc="best")
        _axis(rows[-1], Axis(x, False), [at for _, curves, _ in panels for one in curves.values() for at, _ in one])
        headline(figure, title)

    return draw_figure(stem, (7.5, 1.0 + 2.2 * len(panels)), draw)


# --- parts of figures -----------------------------------------------------------------------------------------


def _panels(
    stem: Path,
    panels: Sequence[tuple[str, Callable[[Axes], None]]],
    window: Term,
    title: str,
    units: str,
    head: float,
    height: float,
) -> tuple[Path, ...]:
    """Panels of one figure over time, by title: each is ``height`` inches high, and what is above them ``head``."""

    def draw(figure: Figure) -> None:
        rows = stacked(figure, len(panels))
        for axes, (name, fill) in zip(rows, panels, strict=True):
            fill(axes)
            axes.set_title(name, fontsize=10)
            _amount_axis(axes, units)
        _time_axis(rows[-1], window)
        headline(figure, title, rows[0], loc="upper right", ncols=4)

    return draw_figure(stem, (WIDTH, head + height * len(panels)), draw)


def draw_curves(
    stem: Path, curves: Curves, finish: Callable[[Axes], None] | None = None, *, legend: Any = "best", **said: Any
) -> tuple[Path, ...]:
    """A figure of curves, of whose axes is ``said`` what ``Axes.set`` takes, and what ``finish`` does to them; more of
    them where there are more curves than can be told apart in one. Raises ``ValueError`` without curves.
    """
    _some(curves, "curves")
    named = list(curves.items())

    def draw(figure: Figure, some: Sequence[tuple[str, Sequence[tuple[float, float]]]]) -> None:
        axes = figure.subplots()
        for index, (name, points) in enumerate(some):
            draw_curve(axes, index, name, points)
        axes.set(**said)
        if finish is not None:
            finish(axes)
        axes.legend(loc=legend)

    return _in_parts(stem, named, lambda _: (7.5, 4.5), draw)


def _in_parts(
    stem: Path,
    named: Sequence[S],
    size: Callable[[Sequence[S]], tuple[float, float]],
    draw: Callable[..., None],
) -> tuple[Path, ...]:
    """A figure of the first eight, and of each eight more."""
    made: list[Path] = []
    for first in range(0, len(named), SERIES_MAX):
        name = f"{stem.name}-{first // SERIES_MAX + 1}" if first else stem.name
        some = named[first : first + SERIES_MAX]
        made += draw_figure(stem.with_name(name), size(some), partial(draw, some=some))
    return tuple(made)


def _xy(function: SignalSteps, window: Term) -> tuple[list[float], list[float]]:
    """Points for a step plot: days since the window's start, and values; the last value is drawn to the end."""
    days: list[float] = []
    values: list[float] = []
    for start, _, value in function.steps(window):
        if not values or value != values[-1]:
            days.append((start - window.start) / DAY)
            values.append(value)
    days.append(window.length / DAY)
    values.append(values[-1])
    return days, values


def _load(axes: Axes, load: Load, window: Term) -> None:
    days, wanted = _xy(load.demand, window)
    # The edge keeps spikes of a few minutes visible, which as a fill are narrower than a pixel.
    axes.fill_between(
        days, wanted, step="post", facecolor=DEMAND_FILL, edgecolor=DEMAND_EDGE, linewidth=0.6, label="demand"
    )
    if load.smoothed is not None:
        axes.step(*_xy(load.smoothed, window), where="post", color=VERMILION, linewidth=1.0, label="smoothed demand")
    axes.step(*_xy(load.holdings, window), where="post", color=BLUE, label="holdings")


def _few_guests(
    panels: Mapping[str, Mapping[str, SignalSteps]], window: Term
) -> Mapping[str, Mapping[str, SignalSteps]]:
    """No more than can be told apart: those that hold most, and all others as one."""
    sizes: dict[str, float] = {}
    for guests in panels.values():
        for name, held in guests.items():
            sizes[name] = sizes.get(name, 0.0) + held.integral(window)
    if len(sizes) <= SERIES_MAX:
        return panels
    most = set(sorted(sizes, key=lambda name: -sizes[name])[: SERIES_MAX - 1])
    return {
        panel: {
            **{name: held for name, held in guests.items() if name in most},
            f"{len(sizes) - len(most)} others": summed(held for name, held in guests.items() if name not in most),
        }
        for panel, guests in panels.items()
    }


def _stack(axes: Axes, guests: Mapping[str, SignalSteps], names: Sequence[str], window: Term) -> None:
    below: list[SignalSteps] = []
    instants = sorted({start for held in guests.values() for start, _, _ in held.steps(window)} | {window.end})
    days = [(at - window.start) / DAY for at in instants]
    floor = [0.0] * len(instants)
    for name in (name for name in names if name in guests):
        below.append(guests[name])
        total = summed(below)
        # The last instant is the window's end, which belongs to what comes after: draw what held before it.
        top = [total.value(min(at, window.end - 1)) for at in instants]
        colour = PALETTE[names.index(name) % len(PALETTE)]
        axes.fill_between(days, floor, top, step="post", color=colour, alpha=0.85, linewidth=0, label=name)
        floor = top


def _site(axes: Axes, held: SignalSteps, capacity: SignalSteps | float, window: Term) -> None:
    days, units = _xy(held, window)
    axes.fill_between(days, units, step="post", color=SKY, linewidth=0, label="held")
    if isinstance(capacity, SignalSteps):
        axes.step(*_xy(capacity, window), where="post", color=BLACK, linestyle="--", linewidth=1.0, label="capacity")
    else:
        axes.axhline(capacity, color=BLACK, linestyle="--", linewidth=1.0, label="capacity")


def draw_curve(axes: Axes, index: int, name: str, points: Sequence[tuple[float, float]]) -> None:
    """A curve; of points that are above each other, as runs of several seeds are, the mean with its 95% interval."""
    found: dict[float, list[float]] = {}
    for x, y in sorted(points):
        found.setdefault(x, []).append(y)
    rows = [interval(ys) for ys in found.values()]
    style: dict[str, Any] = {
        "color": PALETTE[index % len(PALETTE)], "linestyle": DASHES[index % len(DASHES)],
        "marker": MARKERS[index % len(MARKERS)], "markersize": 5, "label": name,
    }  # fmt: skip
    means = [row["mean"] for row in rows]
    if len(found) == len(points):
        axes.plot(list(found), means, **style)
    else:
        halves = [0.0 if row["high"] is None else row["high"] - row["mean"] for row in rows]
        axes.errorbar(list(found), means, yerr=halves, capsize=3, **style)


def stacked(figure: Figure, count: int, *, one_scale: bool = True) -> list[Axes]:
    """``count`` panels below each other that share both axes, or the horizontal one alone."""
    grid = figure.subplots(count, 1, sharex=True, sharey=one_scale, squeeze=False)
    return [row[0] for row in grid]


def _titled(load: Load, what: str | None) -> str:
    title = load.name if what is None else f"{load.name}: {what}"
    return title if load.rmse is None else f"{title} (RMSE {load.rmse:.2f})"


_STEPS: Final = (
    *(minutes * MINUTE for minutes in (1, 5, 15, 30)),
    *(hours * HOUR for hours in (1, 3, 6, 12)),
    *(days * DAY for days in (1, 2, 7, 14, 30, 60, 180, 365)),
)
"""How far the dates on an axis may be apart."""


def _time_axis(axes: Axes, window: Term) -> None:
    """Days since the start; dates, at whole hours or days, where it lies after 1990 and is one therefore."""
    from matplotlib.ticker import FixedLocator, MaxNLocator

    axes.set_xlim(0, window.length / DAY)
    if window.start >= FIRST_DATE:
        begins = datetime.fromtimestamp(window.start / SECOND, UTC)
        short = "%Y-%m-%d" if window.length >= 4 * DAY else "%m-%d %H:%M"
        step = next((step for step in _STEPS if window.length <= 7 * step), _STEPS[-1] * (window.length // _STEPS[-1]))
        marked = range(-(-window.start // step) * step, window.end + 1, step)
        axes.xaxis.set_major_locator(FixedLocator([(at - window.start) / DAY for at in marked]))
        axes.xaxis.set_major_formatter(lambda at, _: f"{begins + timedelta(days=at):{short}}")
        axes.set_xlabel("UTC")
        return
    axes.xaxis.set_major_locator(MaxNLocator(nbins=12, steps=[1, 2, 5, 10]))
    axes.set_xlabel("days since the start")


def _amount_axis(axes: Axes, units: str) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    axes.set_ylabel(units)


def _axis(axes: Axes, x: Axis, at: Sequence[float]) -> None:
    from matplotlib.ticker import FixedLocator

    if x.durations:
        _duration_axis(axes, x.label, at)
        return
    points = sorted(set(at))
    if 0 < len(points) <= 8:
        axes.xaxis.set_major_locator(FixedLocator(points))
    axes.set_xlabel(x.label)


def _duration_axis(axes: Axes, label: str, at: Sequence[float] = ()) -> None:
    """A logarithmic axis of durations: ticks at round durations, or at the given ones where they are few."""
    from matplotlib.ticker import FixedLocator

    axes.set_xscale("log")
    low, high = axes.get_xlim()
    few = sorted(set(at)) if 0 < len(set(at)) <= 8 else [tick for tick in DURATION_TICKS if low <= tick <= high]
    axes.xaxis.set_major_locator(FixedLocator(few))
    axes.xaxis.set_major_formatter(lambda value, _: _short(round(value)))
    axes.set_xticks([], minor=True)
    axes.set_xlabel(label)


def _short(duration: Duration) -> str:
    return format_duration(duration) if duration != 4 * WEEK else "4w"


def _plain_log_axis(axes: Axes, at: Sequence[float]) -> None:
    """A logarithmic x axis with plain numbers, at the points themselves where they are few."""
    from matplotlib.ticker import FixedLocator

    points = sorted(set(at))
    if 0 < len(points) <= 8:
        axes.xaxis.set_major_locator(FixedLocator(points))
        axes.set_xticks([], minor=True)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.xaxis.set_minor_formatter("")


def _legend_above(axes: Axes) -> None:
    """A legend at the top right above the axes, where it hides nothing."""
    axes.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=4, borderaxespad=0.2)


def headline(figure: Figure, title: str, axes: Axes | None = None, /, **legend: Any) -> None:
    """The figure's title at the left, and one legend for all its panels, of what ``axes`` has, if that is anything."""
    figure.suptitle(title, x=0.01, ha="left", fontsize=12)
    handles, labels = ([], []) if axes is None else axes.get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, **legend)


def _some(things: Sequence[object] | Mapping[str, object], what: str) -> None:
    if not things:
        raise ValueError(f"nothing to draw: found no {what}, allowed is at least one")


@contextmanager
def new_figure(size: tuple[float, float], layout: Literal["constrained"] | None = "constrained") -> Iterator[Figure]:
    """A figure in leasekit's own style, whatever the user's configuration says, which is put back afterwards."""
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with mpl.rc_context():
        mpl.rcdefaults()
        cast(Any, mpl.rcParams).update(STYLE)
        figure = Figure(figsize=size, layout=layout)
        FigureCanvasAgg(figure)
        yield figure


def draw_figure(stem: Path, size: tuple[float, float], draw: Callable[[Figure], None]) -> tuple[Path, Path]:
    stem.parent.mkdir(parents=True, exist_ok=True)
    png, svg = stem.with_name(f"{stem.name}.png"), stem.with_name(f"{stem.name}.svg")
    with new_figure(size) as figure:
        draw(figure)
        figure.savefig(png, format="png", metadata={"Software": "leasekit"})
        figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": "leasekit"})
    return png, svg
