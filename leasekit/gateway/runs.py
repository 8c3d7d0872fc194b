"""Emulated runs over HTTP: folders that `leasekit emulate --out` has written, below one that a deploy file names."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Final, Protocol, TypeVar

import trio
from msgspec import Struct

from leasekit.client.runs import RunAsked, RunMoment, RunsOverview, RunView
from leasekit.client.shapes import At
from leasekit.core.time import Instant
from leasekit.gateway.callers import AUDITOR
from leasekit.gateway.deployment import need_office
from leasekit.gateway.instants import instant, moment
from leasekit.gateway.problems import not_found
from leasekit.gateway.routing import PICTURES, Call, Picture, route

SUMMARY: Final = "summary.json"
NANOSECONDS: Final = 1_000_000
"""In a millisecond."""
T = TypeVar("T")
OPENED: Final = 2
"""How many folders are kept open."""


class OpenedFolder(Protocol):
    """What is known of a folder. What can't be answered raises ``LeasekitError``."""

    def overview(self) -> RunsOverview:
        """Its runs side by side."""

    def calendar(self, run: str, asked: RunAsked) -> RunView:
        """The calendar of a run."""

    def moment(self, run: str, at: Instant) -> RunMoment:
        """A run at an instant."""

    def picture(self, name: str) -> bytes | None:
        """A picture that the overview names, or the same as PNG; None: there is none."""


class RunFolder(Struct, kw_only=True):
    """A folder of runs, and when it was written."""

    folder: str
    written: At


class RunFolders(Struct, kw_only=True):
    """Folders of runs, by name."""

    items: list[RunFolder]


class RunShelf:
    """The folders of runs below ``place``, which ``open_folder`` opens."""

    def __init__(self, place: Path, open_folder: Callable[[Path], OpenedFolder]) -> None:
        self._place = place
        self._opened = lru_cache(OPENED)(lambda folder, _: open_folder(folder))

    def folders(self) -> dict[str, int]:
        """Each folder of runs, by name, and when it was written, in nanoseconds."""
        found = sorted(self._place.glob(f"*/{SUMMARY}"))
        return {file.parent.name: file.stat().st_mtime_ns for file in found}

    def opened(self, folder: str) -> OpenedFolder:
        """A folder, as it is now. Raises ``LeasekitError``."""
        written = self.folders().get(folder)
        if written is None:
            raise not_found("folder of runs", folder)
        return self._opened(self._place / folder, written)


@route("GET", "/runs")
async def list_runs(call: Call) -> RunFolders:
    """List the folders of emulated runs that the deployment keeps."""
    need_office(call, AUDITOR)
    shelf = call.door.runs
    found = {} if shelf is None else await trio.to_thread.run_sync(shelf.folders)
    return RunFolders(items=[RunFolder(folder=name, written=moment(at // NANOSECONDS)) for name, at in found.items()])


async def _asked(call: Call, folder: str, ask: Callable[[OpenedFolder], T]) -> T:
    """What a folder says, in a thread of its own: a large run takes a while. Raises ``LeasekitError``."""
    need_office(call, AUDITOR)
    shelf = call.door.runs
    if shelf is None:
        raise not_found("folder of runs", folder)
    return await trio.to_thread.run_sync(lambda: ask(shelf.opened(folder)))


@route("GET", "/runs/{folder}")
async def show_runs(call: Call, folder: str) -> RunsOverview:
    """Show the runs of a folder side by side: what was set for each, and its figures."""
    return await _asked(call, folder, lambda opened: opened.overview())


class RunCalendarOf(RunAsked, kw_only=True):
    """Of which run of the folder."""

    run: str = ""


@route("GET", "/runs/{folder}/calendar")
async def show_run_calendar(call: Call, folder: str, params: RunCalendarOf) -> RunView:
    """Show who had what when in an emulated run."""
    return await _asked(call, folder, lambda opened: opened.calendar(params.run, params))


@route("GET", "/runs/{folder}/pictures/{name}")
async def show_run_picture(call: Call, folder: str, name: str) -> Picture:
    """Show a picture of a folder, of those that it names: as SVG, or as PNG under the same name with that ending."""
    kind = PICTURES.get(Path(name).suffix, "")
    found = await _asked(call, folder, lambda opened: opened.picture(name))
    if found is None:
        raise not_found("picture", name)
    return Picture(found, kind)


class RunMomentOf(Struct, forbid_unknown_fields=True, kw_only=True):
    """Of which run of the folder, at which instant."""

    at: At
    run: str = ""


@route("GET", "/runs/{folder}/moment")
async def show_run_moment(call: Call, folder: str, params: RunMomentOf) -> RunMoment:
    """Show an instant of an emulated run: its figures then, and the lines of its log about it."""
    return await _asked(call, folder, lambda opened: opened.moment(params.run, instant(params.at) or 0))
