"""What a broker knows as PNG or SVG pictures.

Its calendar has a panel for each delegation, a colour for each holder. Its network has sites on a circle, exchange
points among the sites that they join.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TypeAlias, cast

import matplotlib as mpl
import matplotlib.dates
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from leasekit.cli.broker import GONE, MAINTENANCE, OTHERS, Calendar, Step, holdings, others_of, taken
from leasekit.cli.options import to_second
from leasekit.config.instants import CALENDAR_END
from leasekit.core.errors import LeasekitError
from leasekit.core.time import Instant, Term
from leasekit.emulation.plots import BLUE, GREEN, ORANGE, PALETTE, VERMILION, WIDTH, headline, new_figure

PANEL_HEIGHT, MARGIN_HEIGHT = 1.9, 1.2
"""Inches: of each delegation, and of title and legend."""
OTHERS_COLOUR: Final = "#9A9A9A"
WITHHELD_EDGE: Final = "#666666"
GONE_COLOUR: Final = "#333333"
HATCHES: Final = ("", "//", "..")
"""More holders than colours: the second and third time round a colour has a pattern."""


def draw(calendars: Sequence[Calendar], window: Term, file: Path) -> None:
    """Draw them into ``file``, whose name ends in .png or .svg. Raises ``LeasekitError`` where that can't be."""
    if window.end > CALENDAR_END:
        raise LeasekitError(f"the window ends {to_second(window.end)}: that can't be drawn")
    names = list(dict.fromkeys(name for each in calendars for name in holdings(each, window) if name != OTHERS))
    with new_figure((WIDTH, MARGIN_HEIGHT + PANEL_HEIGHT * len(calendars))) as figure:
        panels = figure.subplots(len(calendars), squeeze=False, sharex=True)[:, 0]
        for axes, calendar in zip(panels, calendars, strict=True):
            _panel(axes, calendar, window, names)
        _time_axis(panels[-1], window)
        headline(figure, f"{to_second(window.start)} .. {to_second(window.end)}")
        _legend(figure, calendars, window, names)
        _save(figure, file)


def draw_prices(prices: Sequence[Mapping[str, Any]], period: Term, file: Path) -> None:
    """Draw what units of each type cost over a period. Raises ``LeasekitError`` where that can't be."""
    if period.end > CALENDAR_END:
        raise LeasekitError(f"the period ends {to_second(period.end)}: that can't be drawn")
    with new_figure((WIDTH, MARGIN_HEIGHT + PANEL_HEIGHT)) as figure:
        axes = figure.subplots()
        for number, type_ in enumerate(dict.fromkeys(one["type"] for one in prices)):
            of_type = [one for one in prices if one["type"] == type_]
            instants = [*(_date(one["at"]) for one in of_type), _date(period.end)]
            costs = [*(one["price"] for one in of_type), of_type[-1]["price"]]
            colour = PALETTE[number % len(PALETTE)]
            axes.step(cast(Any, instants), costs, where="post", label=type_, color=colour)
        axes.set_ylim(bottom=0)
        axes.set_ylabel("price of a unit and period")
        axes.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=5))
        _time_axis(axes, period)
        figure.legend(loc="outside lower left", ncols=8)
        _save(figure, file)


def _save(figure: Figure, file: Path) -> None:
    try:
        figure.savefig(file, metadata={"Date": None} if file.suffix == ".svg" else {"Software": None})
    except OSError as error:
        raise LeasekitError(f"can't write {file}: {error.strerror or error}") from error


def _panel(axes: Axes, calendar: Calendar, window: Term, names: Sequence[str]) -> None:
    units, held = calendar["units"], holdings(calendar, window)
    # Each from the ground up over all that come before it, the highest first: the next one covers what isn't its own.
    below = [each for theirs in held.values() for each in theirs]
    for name, theirs in reversed(held.items()):
        edges, levels = _edges(taken(below, window))
        axes.fill_between(edges, levels, 0, step="post", linewidth=0.4, edgecolor="white", **_look(name, names))
        below = below[: len(below) - len(theirs)]
    for name, theirs in others_of(calendar):
        edges, levels = _edges(taken(theirs, window))
        # Maintenance is drawn from the top.
        lower, upper = ([units - level for level in levels], units) if name == MAINTENANCE else (levels, 0)
        axes.fill_between(edges, lower, upper, step="post", **_LOOKS[name])
    axes.axhline(units, color="black", linewidth=1.0)
    peak = max(step["taken"] for step in calendar["steps"])
    axes.set_ylim(0, max(units, peak) * 1.05)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=5))
    axes.set_ylabel("units")
    axes.set_title(f"{calendar['source']}: {units} units", fontsize=10)


_LOOKS: Final[Mapping[str, dict[str, Any]]] = {
    MAINTENANCE: {"facecolor": "none", "edgecolor": WITHHELD_EDGE, "hatch": "xxx", "linewidth": 0.0},
    GONE: {"facecolor": GONE_COLOUR, "alpha": 0.25, "edgecolor": WITHHELD_EDGE, "linewidth": 0.0},
}


def _look(name: str, names: Sequence[str]) -> dict[str, Any]:
    if name == OTHERS:
        return {"facecolor": OTHERS_COLOUR}
    place = names.index(name)
    return {"facecolor": PALETTE[place % len(PALETTE)], "hatch": HATCHES[place // len(PALETTE) % len(HATCHES)]}


def _edges(steps: Sequence[Step]) -> tuple[Any, list[int]]:
    """For a step plot: dates, and the level from each on."""
    levels = [step["taken"] for step in steps]
    return [_date(at) for at in (*(step["from"] for step in steps), steps[-1]["until"])], [*levels, levels[-1]]


def _time_axis(axes: Axes, window: Term) -> None:
    start, end = window
    limits: Any = (_date(start), _date(end))
    axes.set_xlim(limits)
    dates: Any = mpl.dates
    locator = dates.AutoDateLocator(tz=UTC)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(dates.ConciseDateFormatter(locator, tz=UTC))
    axes.set_xlabel("UTC")


def _legend(figure: Figure, calendars: Sequence[Calendar], window: Term, names: Sequence[str]) -> None:
    looks = [(name, _look(name, names)) for name in names]
    if any(OTHERS in holdings(each, window) for each in calendars):
        looks.append((OTHERS, _look(OTHERS, names)))
    there = {name for each in calendars for name, _ in others_of(each)}
    looks += [(name, look) for name, look in _LOOKS.items() if name in there]
    if looks:
        handles = [Patch(label=name, **look) for name, look in looks]
        figure.legend(handles=handles, loc="outside lower left", ncols=min(len(handles), 8))


def _date(instant: Instant) -> datetime:
    return datetime.fromtimestamp(instant / 1000, UTC)


Place: TypeAlias = tuple[float, float]

SIZE: Final = 8.0
"""Inches, of each side."""
REACH: Final = 1.35
"""What is seen of the plane on which sites stand at 1 from the middle: names have to fit, too."""
ROUNDS: Final = 60
WIDEST, THINNEST = 9.0, 1.5
"""Of lines, in points: the link of most capacity, and one of next to none."""
NEAR, BEND = 0.12, 0.2
"""How near a line may pass a place that is not its own; how far aside it goes otherwise, as a share of its length."""
STEPS: Final = 40
NAMES_MAX: Final = 60
"""Beyond so many places only their names are written, not what is free."""


def draw_topology(found: Mapping[str, Any], file: Path) -> None:
    """Draw it into ``file``, whose name ends in .png or .svg. Raises ``LeasekitError`` where that can't be."""
    places = layout(found)
    with new_figure((SIZE, SIZE), None) as figure:
        axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
        axes.set_axis_off()
        axes.set(xlim=(-REACH, REACH), ylim=(-REACH, REACH))
        most = max((link["capacity_mbps"] for link in found["links"]), default=1.0)
        for link, curve in curves(found, places):
            _line(axes, link, curve, most, words=len(places) <= NAMES_MAX)
        _sites(axes, found, places)
        _exchanges(axes, found, places)
        _save(figure, file)


def layout(found: Mapping[str, Any]) -> Mapping[str, Place]:
    """Where everything is drawn: the same for the same network.

    Sites stand on a circle, those of one exchange point beside each other; each exchange point settles in the middle of
    what it is joined with, pushed off from others that come to the same spot.
    """
    sites, exchanges = [one["site"] for one in found["sites"]], found["exchange_points"]
    joined: dict[str, list[str]] = {name: [] for name in (*sites, *exchanges)}
    for link in found["links"]:
        joined[link["a"]].append(link["b"])
        joined[link["b"]].append(link["a"])
    inner = set(exchanges)
    order = sorted(sites, key=lambda site: (min((n for n in joined[site] if n in inner), default=""), site))
    places = {name: _on_circle(number, len(order), 1.0) for number, name in enumerate(order)}
    places |= {name: _on_circle(number, len(inner), 0.3) for number, name in enumerate(exchanges)}
    for _ in range(ROUNDS):
        for name in exchanges:
            near = [places[other] for other in joined[name]]
            pull = [sum(axis) / len(near) for axis in zip(*near, strict=True)] if near else [0.0, 0.0]
            push = _push(name, places, inner)
            places[name] = (0.7 * pull[0] + push[0], 0.7 * pull[1] + push[1])
    return places


def _on_circle(number: int, count: int, radius: float) -> Place:
    angle = math.pi * (0.5 - 2 * number / max(count, 1))
    return radius * math.cos(angle), radius * math.sin(angle)


def _push(name: str, places: Mapping[str, Place], inner: set[str]) -> Place:
    x, y = places[name]
    total = [0.0, 0.0]
    for other in inner - {name}:
        dx, dy = x - places[other][0], y - places[other][1]
        distance = max(math.hypot(dx, dy), 0.05)
        if distance < 0.5:
            total[0] += 0.1 * dx / distance
            total[1] += 0.1 * dy / distance
    return total[0], total[1]


def curves(found: Mapping[str, Any], places: Mapping[str, Place]) -> Iterator[tuple[Mapping[str, Any], list[Place]]]:
    """Each link with its line; further links between the same two ends pass beside the first."""
    beside: Counter[frozenset[str]] = Counter()
    for link in found["links"]:
        pair = frozenset((link["a"], link["b"]))
        yield link, bend(link, places, beside[pair])
        beside[pair] += 1


def _line(axes: Axes, link: Mapping[str, Any], curve: Sequence[Place], most: float, *, words: bool) -> None:
    capacity, free = link["capacity_mbps"], link["free_now_mbps"]
    share = free / capacity if capacity else 0.0
    colour = GREEN if share > 0.5 else ORANGE if share > 0 else VERMILION
    width = THINNEST + (WIDEST - THINNEST) * (capacity / most if most else 0.0)
    xs, ys = zip(*curve, strict=True)
    axes.plot(xs, ys, color=colour, linewidth=width, alpha=0.6, zorder=1, solid_capstyle="round")
    if words:
        text = f"{link['link']}\n{free:g} of {capacity:g} Mbit/s"
        axes.text(*curve[len(curve) // 2], text, ha="center", va="center", fontsize=8, zorder=3, bbox=_BOX)


def bend(link: Mapping[str, Any], places: Mapping[str, Place], beside: int = 0) -> list[Place]:
    """The points of a link's line: straight, or round whatever place else it would lead through, and the further out
    the more links it passes ``beside``.
    """
    (x0, y0), (x1, y1) = places[link["a"]], places[link["b"]]
    dx, dy = x1 - x0, y1 - y0
    length = max(math.hypot(dx, dy), 1e-9)
    aside = 0.0
    for name, (x, y) in places.items():
        along = ((x - x0) * dx + (y - y0) * dy) / length**2
        across = ((y - y0) * dx - (x - x0) * dy) / length
        if name not in (link["a"], link["b"]) and 0 < along < 1 and abs(across) < NEAR:
            aside = BEND * length if across <= 0 else -BEND * length
    # Whichever of its ends comes first, it turns to the same side.
    turn = 1 if link["a"] < link["b"] else -1
    aside += math.copysign(beside * BEND * length, aside or turn)
    points = []
    for step in range(STEPS + 1):
        share = step / STEPS
        off = aside * 4 * share * (1 - share)
        points.append((x0 + dx * share - dy / length * off, y0 + dy * share + dx / length * off))
    return points


_BOX: Final[dict[str, Any]] = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1.0}


def _sites(axes: Axes, found: Mapping[str, Any], places: Mapping[str, Place]) -> None:
    words = len(places) <= NAMES_MAX
    for one in found["sites"]:
        x, y = places[one["site"]]
        axes.plot([x], [y], marker="s", markersize=16, color=BLUE, zorder=2)
        lines = [one["site"]]
        if words:
            lines += [f"{each['free_now']} of {each['units']} {each['type']}" for each in one["types"]]
        axes.annotate(
            "\n".join(lines), (x, y), xytext=(0, -14), textcoords="offset points", ha="center", va="top", zorder=4,
            fontsize=9, bbox=_BOX,
        )  # fmt: skip


def _exchanges(axes: Axes, found: Mapping[str, Any], places: Mapping[str, Place]) -> None:
    for name in found["exchange_points"]:
        x, y = places[name]
        axes.plot([x], [y], marker="o", markersize=12, color="black", zorder=2)
        axes.annotate(
            name, (x, y), xytext=(0, 10), textcoords="offset points", ha="center", va="bottom", zorder=4, fontsize=9,
            bbox=_BOX,
        )  # fmt: skip
