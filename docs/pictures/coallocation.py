"""Draws docs/pictures/coallocation.svg: ``python docs/pictures/coallocation.py``; with ``--check`` it only compares.

One request, two sites with bandwidth between them, as the planner really decides it: on the network as it is free, and
on the same with the direct link taken.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from leasekit.policies.broker.coallocation.model import read_problem
from leasekit.policies.broker.coallocation.problem import Decision

FILE: Final = Path(__file__).resolve().with_suffix(".svg")
PLACES: Final = {"A": (0.0, 0.0), "B": (2.0, 0.0), "C": (1.0, -1.2), "X": (1.0, 1.0)}
SITES: Final = {"A": 8, "B": 4, "C": 2}
LINKS: Final = {("A", "B"): 20, ("A", "X"): 100, ("B", "X"): 100, ("C", "A"): 10, ("C", "B"): 10}
REQUEST: Final[Mapping[str, Any]] = {
    "sites": [{"id": "left", "cpus": 4}, {"id": "right", "cpus": 4}],
    "links": [{"from": "left", "to": "right", "bw": 20}],
}
PANELS: Final[Mapping[str, list[Mapping[str, Any]]]] = {
    "4 units at 2 sites, 20 Mbit/s between": [],
    "the same, direct link taken": [{"link": ["A", "B"], "from": 0, "to": 10, "bw": 20}],
}
TAKEN, CHOSEN, IDLE = "#BBBBBB", "#D55E00", "#0072B2"


def planned(reserved: list[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The best plan of the request, with that reserved."""
    vertices = [{"id": name, "kind": "site", "cpus": cpus} for name, cpus in SITES.items()]
    problem = {
        "resources": {
            "vertices": [*vertices, {"id": "X", "kind": "exchange"}],
            "links": [{"a": a, "b": b, "bw": bw} for (a, b), bw in LINKS.items()],
        },
        "request": REQUEST,
        "reserved": reserved,
        "frames": {"est": 0, "lst": 0, "duration": 5, "count": 1},
    }
    plan: Mapping[str, Any] = Decision(read_problem(problem)).answer()["plans"][0]
    return plan


def drawn() -> str:
    """The picture as SVG."""
    with mpl.rc_context({"svg.hashsalt": "leasekit", "svg.fonttype": "none", "font.size": 8}):
        figure = Figure(figsize=(7, 2.8), layout="constrained")
        panels: Any = figure.subplots(1, len(PANELS))
        for axes, (title, reserved) in zip(panels, PANELS.items(), strict=True):
            axes.set_title(title, loc="left")
            _network(axes, planned(reserved), {frozenset(one["link"]) for one in reserved})
        out = io.StringIO()
        canvas: Any = FigureCanvasSVG
        canvas(figure).print_svg(out, metadata={"Date": None, "Creator": None})
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def _network(axes: Axes, plan: Mapping[str, Any], taken: set[frozenset[str]]) -> None:
    (path,) = plan["paths"]
    used = {frozenset(pair) for pair in pairwise(path)}
    for (a, b), bw in LINKS.items():
        ends = frozenset((a, b))
        colour = CHOSEN if ends in used else TAKEN if ends in taken else IDLE
        (xa, ya), (xb, yb) = PLACES[a], PLACES[b]
        axes.plot([xa, xb], [ya, yb], color=colour, linewidth=3.5 if ends in used else 1.2, zorder=1)
        axes.annotate(f"{bw}", ((xa + xb) / 2, (ya + yb) / 2), ha="center", va="center", backgroundcolor="white")
    hosts = {site: requested for requested, site in plan["sites"].items()}
    for name, (x, y) in PLACES.items():
        colour = CHOSEN if name in hosts else IDLE
        axes.scatter([x], [y], s=700, color=colour if name in SITES else "#888888", zorder=2)
        words = f"{name}: {SITES[name]}" if name in SITES else name
        axes.annotate(words, (x, y), ha="center", va="center", color="white", zorder=3)
        if name in hosts:
            axes.annotate(hosts[name], (x, y - 0.38), ha="center", va="top")
    axes.set(xlim=(-0.5, 2.5), ylim=(-1.7, 1.5))
    axes.set_axis_off()


def main() -> int:
    """Write the picture, or with ``--check`` say whether it is what is decided."""
    text = drawn()
    if FILE.exists() and FILE.read_text(encoding="utf-8") == text:
        return 0
    if "--check" in sys.argv[1:]:
        print(f"{FILE.name} is not what is decided")
        return 1
    FILE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
