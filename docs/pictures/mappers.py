"""Draws the pictures of docs/mappers.md: ``python docs/pictures/mappers.py``; with ``--check`` it only compares.

Each picture is what a mapper really decides on a small example: time runs to the right, units are stacked upwards, and
a box is a lease. What was leased before is hatched. What is suspended is several boxes of one name.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from leasekit.actors.settings import AuthoritySettings, UnitGroup
from leasekit.core.drivers import RESUME, SAVE
from leasekit.core.mappers import Grant
from leasekit.core.properties import SAVES
from leasekit.core.requests import TRUE
from leasekit.core.steps import Action
from leasekit.core.time import Duration, Term
from leasekit.emulation.lean import LeanWorld, lean_world
from leasekit.emulation.world import Outcome
from leasekit.policies.authority.first_fit import FirstFit
from leasekit.policies.registry import make_mapper

HERE: Final = Path(__file__).resolve().parent
COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
END: Final = 1000
LATE: Final = 500
SAVING: Final[Duration] = 2
TYPE: Final = "vm"
BEFORE: Final = "before"
"""Who holds what is leased already."""
STYLE: Final[Any] = {"svg.hashsalt": "leasekit", "svg.fonttype": "none", "font.size": 8}


class Job(NamedTuple):
    """One request of an example: it comes at ``at``; ``fixed`` is the start of one that can't wait."""

    name: str
    units: int
    length: int
    at: int = 0
    fixed: int | None = None
    holder: str = "guest"
    priority: int = 0


class Panel(NamedTuple):
    """One mapper with its settings, on the jobs of its picture."""

    title: str
    mapper: str
    settings: Mapping[str, Any] = {}


class Picture(NamedTuple):
    """Sites with what is leased there already (units, from, to), jobs, and the mappers side by side."""

    sites: Mapping[str, int]
    held: Sequence[tuple[str, int, int, int]]
    jobs: Sequence[Job]
    panels: Sequence[Panel]


QUEUE: Final = (Job("A", 8, 30), Job("B", 3, 60, 1), Job("C", 4, 20, 2), Job("D", 2, 90, 3))
SPREAD: Final = tuple(Job(name, 3, 40) for name in "ABC")
PICTURES: Final[Mapping[str, Picture]] = {
    "fcfs": Picture(
        {"site": 10}, [("site", 6, 0, 30)], QUEUE,
        [Panel("fcfs", "fcfs"), Panel("fcfs, backfill = false", "fcfs", {"backfill": False})],
    ),
    "timetable": Picture(
        {"site": 10}, [("site", 6, 0, 30)],
        (Job("A", 6, 40, 0), Job("B", 8, 20, 0, 30), Job("C", 4, 25, 0, 0)),
        [Panel("fcfs", "fcfs"), Panel("timetable", "timetable")],
    ),
    "backfill": Picture(
        {"site": 10}, [("site", 6, 0, 30)],
        (Job("A", 8, 30), Job("B", 10, 20, 1), Job("C", 2, 80, 2), Job("D", 4, 25, 3)),
        [Panel("easy", "backfill"), Panel("conservative", "backfill", {"mode": "conservative"})],
    ),
    "priority": Picture(
        {"site": 10}, [("site", 10, 0, 20)],
        (Job("A", 6, 30, 0), Job("B", 6, 30, 5), Job("C*", 6, 30, 10, priority=1)),
        [Panel("fcfs", "fcfs"), Panel("priority (C* is of a higher class)", "priority")],
    ),
    "fair_share": Picture(
        {"site": 4}, [("site", 4, 0, 10)],
        (
            *(Job(f"x{n}", 2, 20, n, holder="x") for n in range(4)),
            *(Job(f"y{n}", 2, 20, 5 + n, holder="y") for n in (0, 1)),
        ),
        [Panel("backfill", "backfill"), Panel("fair_share", "fair_share")],
    ),
    "suspension": Picture(
        {"site": 10}, (), (Job("A", 7, 50), Job("R", 6, 20, 5, 20), Job("B", 3, 40, 6)),
        [
            Panel("suspension = none (R is refused)", "backfill", {"suspension": "none"}),
            Panel("suspension = all", "backfill", {"suspension": "all", "least_run": "10ms"}),
        ],
    ),
    "sites": Picture(
        {"a": 8, "b": 10, "c": 4}, [("a", 4, 0, 60), ("b", 5, 0, 60), ("c", 1, 0, 60)], SPREAD,
        [Panel(name, name) for name in ("load_balanced", "first_fit", "best_fit", "worst_fit")],
    ),
}  # fmt: skip


def decided(picture: Picture, panel: Panel) -> list[Grant]:
    """What guests get, where, and when, from a broker with the panel's mapper."""
    sites = {site: (FirstFit(), _settings(site, units)) for site, units in picture.sites.items()}
    holders = list(dict.fromkeys(job.holder for job in picture.jobs))
    mapper = make_mapper(panel.mapper, "broker", panel.settings, "mapper", {})
    world = lean_world([BEFORE, *holders], mapper, sites, model=_model)
    for site, units, start, end in picture.held:
        world.command(BEFORE, "lease.request", type=TYPE, units=units, term=[start, end], site=site)
    world.run_until(0)
    for job in picture.jobs:
        _ask(world, job)
    world.run_until(END)
    return [grant for holder in holders for grant in _granted(world, holder)]


def _settings(site: str, units: int) -> AuthoritySettings:
    names = tuple(f"{site}{number}" for number in range(units))
    return AuthoritySettings(inventory=(UnitGroup(type=TYPE, names=names, properties={SAVES: TRUE}),))


def _ask(world: LeanWorld, job: Job) -> None:
    start = job.at if job.fixed is None else job.fixed
    properties = {"priority": str(job.priority)}
    if job.fixed is None:
        properties |= {"deferrable": TRUE, "latest_start": str(LATE), "preemptible": TRUE, "suspend": f"{SAVING}ms"}
    world.command_at(
        job.at, job.holder, "lease.request", type=TYPE, units=job.units, name=job.name,
        term=[start, start + job.length], properties=properties,
    )  # fmt: skip


def _granted(world: LeanWorld, holder: str) -> Iterator[Grant]:
    """What runs when: a lease that is suspended, until then; one that resumes it, when its units are restored."""
    rows = world.query(holder, "leases", all=True)
    leases = [world.query(holder, "lease", lease=row["id"]) for row in rows]
    resumed = {lease["id"]: lease["resumes"] for lease in leases if lease["resumes"] is not None}
    stopped = {before["lease"]: before["suspended"] for before in resumed.values()}
    for lease in leases:
        if lease["granted"] is not None:
            start, end = lease["granted"]["term"]
            term = Term(start + SAVING * (lease["id"] in resumed), stopped.get(lease["id"], end))
            yield Grant(lease["name"], lease["site"], lease["requested"]["units"], term)


def _model(action: Action) -> Outcome:
    return Outcome(SAVING if SAVE in action.properties or RESUME in action.properties else 0, True, {}, "")


def drawn(picture: Picture) -> str:
    """The picture as SVG: a column for each mapper, a row for each site."""
    columns, sites = len(picture.panels), list(picture.sites)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(9, 0.7 + 1.5 * len(sites)), layout="constrained")
        grid: Any = figure.subplots(len(sites), columns, sharex=True, squeeze=False)
        granted = [decided(picture, panel) for panel in picture.panels]
        end = max(grant.term.end for grants in granted for grant in grants) + 5
        names = [job.name for job in picture.jobs]
        for column, panel in enumerate(picture.panels):
            grid[0][column].set_title(panel.title, loc="left")
            for row, site in enumerate(sites):
                _site(grid[row][column], picture, site, granted[column], names)
                grid[row][column].set_xlim(0, end)
            grid[-1][column].set_xlabel("time")
        for row, site in enumerate(sites):
            grid[row][0].set_ylabel(f"units of {site}" if len(sites) > 1 else "units")
        out = io.StringIO()
        canvas: Any = FigureCanvasSVG
        canvas(figure).print_svg(out, metadata={"Date": None, "Creator": None})
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def _site(axes: Axes, picture: Picture, site: str, grants: Sequence[Grant], names: Sequence[str]) -> None:
    capacity = picture.sites[site]
    used: list[tuple[Term, range]] = []
    boxes = [("", units, Term(start, end)) for where, units, start, end in picture.held if where == site]
    boxes += [
        (grant.lease, grant.units, grant.term) for grant in sorted(grants, key=lambda g: g.term) if grant.source == site
    ]
    for name, units, term in boxes:
        colour = COLOURS[names.index(name) % len(COLOURS)] if name else "#BBBBBB"
        # A lease needn't have neighbouring units: it takes the lowest free ones, in as few boxes as that makes.
        for rows in _lowest(used, units, term, capacity):
            used.append((term, rows))
            axes.add_patch(
                mpl.patches.Rectangle(
                    (term.start, rows.start), term.length, len(rows), facecolor=colour if name else "none",
                    edgecolor="white" if name else "#888888", linewidth=0.8, hatch=None if name else "///",
                )
            )  # fmt: skip
            if name:
                axes.text(
                    term.start + term.length / 2,
                    rows.start + len(rows) / 2,
                    name,
                    ha="center",
                    va="center",
                    color="white",
                )
    axes.set_ylim(0, capacity)
    axes.spines[["top", "right"]].set_visible(False)


def _lowest(used: Sequence[tuple[Term, range]], units: int, term: Term, capacity: int) -> list[range]:
    taken = {row for other, rows in used if other.overlaps(term) for row in rows}
    free = [row for row in range(capacity) if row not in taken][:units]
    assert len(free) == units, "the mapper doesn't overbook"
    found: list[range] = []
    for row in free:
        if found and found[-1].stop == row:
            found[-1] = range(found[-1].start, row + 1)
        else:
            found.append(range(row, row + 1))
    return found


def main() -> int:
    """Write all pictures, or with ``--check`` say which aren't what the mappers decide."""
    stale = []
    for name, picture in PICTURES.items():
        path, text = HERE / f"{name}.svg", drawn(picture)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            stale.append(path.name)
            if "--check" not in sys.argv[1:]:
                path.write_text(text, encoding="utf-8")
    for file in stale:
        print(f"{file} is not what the mappers decide" if "--check" in sys.argv[1:] else f"wrote {file}")
    return 1 if stale and "--check" in sys.argv[1:] else 0


if __name__ == "__main__":
    sys.exit(main())
