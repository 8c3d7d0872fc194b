"""What a folder of emulated runs is, as the HTTP API and the pages of runs have it."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

from leasekit.client.shapes import At, CalendarRow


class RunsOverview(Struct, kw_only=True):
    """What a folder has: of each run what is ``set`` for it, its ``figures`` by dotted names, and whether it has a
    ``calendar``. ``pictures`` are names of files; ``not_run`` those runs that the emulation did not come to.
    """

    file: str
    deployment: str
    synthetic: bool
    runs: list[dict[str, Any]]
    pictures: list[str]
    not_run: list[str] = []


class RunAsked(Struct, forbid_unknown_fields=True, kw_only=True):
    """What is asked of a run's calendar: from ``since`` to ``until`` (all of it), in as many as ``bins`` stretches, at
    most ``limit`` bars; what ``guest`` has (the first by name) is told apart; ``open`` are the classes (SITE/TYPE, with
    commas between them; a comma or a percent sign of a name is written as in an address) whose units are shown.
    """

    since: At | None = None
    until: At | None = None
    bins: Annotated[int, Meta(ge=1, le=20_000)] = 1_000
    limit: Annotated[int, Meta(ge=0, le=100_000)] = 4_000
    guest: str | None = None
    open: str = ""


class RunRow(CalendarRow, kw_only=True, omit_defaults=True):
    """A class; ``mine[i]`` units at most are the guest's from stretch ``at[i]`` on."""

    mine: list[int] = []


class RunBar(Struct, kw_only=True, omit_defaults=True):
    """What lasted: a lease's units, or (``on``) these units of a row."""

    row: int
    kind: str
    units: int
    start: At
    end: At
    on: list[int] = []
    lease: str = ""
    project: str = ""
    reason: str = ""


class RunView(Struct, kw_only=True):
    """A run's calendar from ``start`` to ``end``, in stretches of ``step``: rows and bars as a live one has them;
    ``more`` bars, the shortest, are left out. ``stays`` are those of single units, but for ``more_stays``. The run is
    from ``begin`` to ``over``.
    """

    begin: At
    over: At
    start: At
    end: At
    step: str
    guests: list[str]
    rows: list[RunRow]
    bars: list[RunBar]
    stays: list[RunBar]
    more: int
    more_stays: int


class RunMoment(Struct, kw_only=True):
    """An instant of a run: what its series are then, and the lines of its log about it."""

    at: At
    series: dict[str, float]
    lines: list[dict[str, Any]]
