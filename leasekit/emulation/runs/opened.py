"""A folder of results as who opens it in a browser asks for it: its runs side by side, and the calendar of each over
virtual time, as coarse as one sees it.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Container, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple, TypeAlias
from urllib.parse import unquote

import msgpack
import numpy as np
from numpy.typing import NDArray

from leasekit.client.runs import RunAsked, RunBar, RunMoment, RunRow, RunsOverview, RunView
from leasekit.client.shapes import ShownUnit
from leasekit.config.instants import dated, format_instant, parse_instant
from leasekit.core.errors import LeasekitError
from leasekit.core.reasons import read, words
from leasekit.core.schema import LOG_COLUMNS
from leasekit.core.time import DAY, HOUR, MINUTE, SECOND, Duration, Instant, format_duration
from leasekit.emulation.runs.book import LEASED, OUT, SUFFIX, USED, VERSION
from leasekit.emulation.tidy import wide_row

Numbers: TypeAlias = NDArray[np.int64]
STEPS: Final[Sequence[Duration]] = (
    SECOND, 5 * SECOND, 15 * SECOND, MINUTE, 5 * MINUTE, 15 * MINUTE, 30 * MINUTE, HOUR, 2 * HOUR, 3 * HOUR, 6 * HOUR,
    12 * HOUR, DAY,
)  # fmt: skip
FINER: Final = 8
"""Bars are as exact as this part of a stretch."""
STAYS_MAX: Final = 20_000
BEFORE, AFTER = 40, 10
"""How many lines of the log are shown of what was before an instant, and of what comes after it."""
BLOCK: Final = 1 << 15
_KINDS: Final = ("<i4", "<i4", "<i4", "<i8", "<i8")
OPENED: Final = 4
"""How many runs stay in memory."""


class _Table(NamedTuple):
    """What lasted: of which class, of what, how many or which, from when to when."""

    classes: Numbers
    of: Numbers
    which: Numbers
    starts: Numbers
    ends: Numbers

    def where(self, chosen: NDArray[Any]) -> _Table:
        """Some of it: a mask, or places."""
        return _Table(*(column[chosen] for column in self))

    def within(self, start: Instant, end: Instant) -> _Table:
        """What lasts at any instant from ``start`` to ``end``."""
        return self.where((self.starts < end) & (self.ends > start))

    def longest(self, most: int) -> _Table:
        """As many of the longest, in order of their starts."""
        if len(self.starts) <= most:
            return self.where(np.argsort(self.starts, kind="stable"))
        chosen = np.argpartition(self.starts - self.ends, most)[:most]
        return self.where(chosen[np.argsort(self.starts[chosen], kind="stable")])


class _Levels(NamedTuple):
    """A count over time: after how many changes it is what."""

    at: Numbers
    level: Numbers

    @classmethod
    def of(cls, *parts: tuple[_Table, Numbers]) -> _Levels:
        """What so many of each add up to."""
        at = np.concatenate([each for one, _ in parts for each in (one.starts, one.ends)])
        by = np.concatenate([each for _, count in parts for each in (count, -count)])
        order = np.lexsort((by, at))
        return cls(at[order], np.concatenate(([0], np.cumsum(by[order]), [0])))

    def most(self, edges: Numbers) -> Numbers:
        """The most that it is between each two edges."""
        first = np.searchsorted(self.at, edges[:-1], "right")
        last = np.searchsorted(self.at, edges[1:], "left") + 1
        return np.maximum.reduceat(self.level, np.stack((first, last), axis=1).ravel())[::2]

    @property
    def peak(self) -> int:
        """The most that it ever is."""
        return int(self.level.max())


class OpenedRun:
    """The calendar of one run. Raises ``LeasekitError`` for a file that another version has written."""

    def __init__(self, file: Path) -> None:
        head, body = _unpacked(file, 2)
        self.start, self.end = head["start"], head["end"]
        self.leases: list[str] = body["leases"]
        self.holders = np.array(body["holders"], dtype=object)
        self.classes: list[tuple[str, str, list[str]]] = [tuple(one) for one in body["classes"]]
        self._tables = {name: _table(columns) for name, columns in body["tables"].items()}
        self._series = {
            name: (np.frombuffer(at, "<i8"), np.frombuffer(values, "<f8"))
            for name, (at, values) in body["series"].items()
        }
        self._levels: dict[tuple[int, str], _Levels] = {}

    def series(self, at: Instant) -> dict[str, float]:
        """What each series is at an instant."""
        found = {}
        for name, (instants, values) in self._series.items():
            index = int(np.searchsorted(instants, at, "right"))
            found[name] = float(values[index - 1]) if index else 0.0
        return found

    def view(self, asked: RunAsked) -> RunView:
        """Its calendar. Raises ``LeasekitError`` for a window that is none."""
        since = self.start if asked.since is None else parse_instant(asked.since)
        until = self.end if asked.until is None else parse_instant(asked.until)
        if until <= since:
            raise LeasekitError("until: expected an instant after since")
        least = -(-(until - since) // asked.bins)
        step = next((one for one in STEPS if one >= least), -(-least // DAY) * DAY)
        edges = np.arange(since // step * step, until + step, step, dtype=np.int64)
        exact, opened = max(1, step // FINER), {unquote(one) for one in asked.open.split(",")}
        inside = self._tables[LEASED].within(since, until)
        chosen = inside.longest(asked.limit)
        columns = [column.tolist() for column in chosen]
        guests = sorted({*self.holders.tolist()} - {""})
        guest = next(iter(guests), "") if asked.guest is None else asked.guest
        shown = [at for at, (site, type_, _) in enumerate(self.classes) if f"{site}/{type_}" in opened]
        stays = {name: self._tables[name].where(np.isin(self._tables[name].classes, shown)) for name in (USED, OUT)}
        stays = {name: table.within(since, until) for name, table in stays.items()}
        return RunView(
            begin=_moment(self.start), over=_moment(self.end),
            start=_moment(int(edges[0])), end=_moment(int(edges[-1])),
            step=format_duration(step), guests=guests,
            rows=[self._row(number, edges, guest) for number in range(len(self.classes))],
            bars=[self._bar(one, exact) for one in zip(*columns, strict=True)],
            stays=[bar for name, table in stays.items() for bar in self._stays(name, table.longest(STAYS_MAX), exact)],
            more=len(inside.starts) - len(chosen.starts),
            more_stays=sum(max(0, len(table.starts) - STAYS_MAX) for table in stays.values()),
        )  # fmt: skip

    def _row(self, number: int, edges: Numbers, guest: str) -> RunRow:
        site, type_, units = self.classes[number]
        booked, out, both = (self._level(number, what) for what in (LEASED, OUT, "both"))
        most = max(len(units), booked.peak)
        mine = self._level(number, f"of {guest}").most(edges)
        columns = np.stack((most - out.most(edges), booked.most(edges), np.maximum(0, most - both.most(edges)), mine))
        changed = np.flatnonzero(np.concatenate(([True], np.any(np.diff(columns, axis=1), axis=0))))
        there, taken, free, own = columns[:, changed].tolist()
        shown = [ShownUnit(name=unit, state="free") for unit in units]
        return RunRow(
            site=site, type=type_, class_="", units=shown, at=changed.tolist(), there=there, booked=taken, free=free,
            mine=own,
        )  # fmt: skip

    def _level(self, number: int, what: str) -> _Levels:
        """A count of a class over the whole run, made when it is first asked for."""
        found = self._levels.get((number, what))
        if found is None:
            leased, out = (one.where(one.classes == number) for one in (self._tables[LEASED], self._tables[OUT]))
            if what.startswith("of "):
                leased = leased.where(self.holders[leased.of] == what[3:])
            parts = {OUT: [], "both": [(leased, leased.which)]}.get(what, [(leased, leased.which)])
            if what in (OUT, "both"):
                parts.append((out, np.ones_like(out.starts)))
            found = self._levels[number, what] = _Levels.of(*parts)
        return found

    def _bar(self, lasted: tuple[int, int, int, Instant, Instant], exact: Duration) -> RunBar:
        row, of, units, start, end = lasted
        lease, holder = self.leases[of], self.holders[of]
        return RunBar(row=row, kind="lease", units=units, lease=lease, project=holder, **_rounded(start, end, exact))

    def _stays(self, name: str, table: _Table, exact: Duration) -> Iterator[RunBar]:
        """What units were used for, or when they were out: those of one lease at once as one."""
        keys = np.stack((table.classes, table.of, table.starts // exact, table.ends // exact))
        order = np.lexsort(keys)
        bounds = np.flatnonzero(np.any(np.diff(keys[:, order], axis=1), axis=0)) + 1
        for part in np.split(order, bounds) if len(order) else ():
            one = int(part[0])
            of = int(table.of[one])
            what: dict[str, Any] = {"kind": "failure", "reason": "failed"} if not of else {"kind": "maintenance"}
            if name == USED:
                what = {"kind": "lease", "lease": self.leases[of], "project": self.holders[of]}
            yield RunBar(
                row=int(table.classes[one]), units=len(part), on=table.which[part].tolist(), **what,
                **_rounded(int(table.starts[one]), int(table.ends[one]), exact),
            )  # fmt: skip


def _unpacked(file: Path, objects: int) -> list[Any]:
    """The first objects of a calendar's file. Raises ``LeasekitError`` for another file."""
    try:
        with file.open("rb") as source:
            told = msgpack.Unpacker(source, read_size=BLOCK, max_buffer_size=0)
            found = [told.unpack() for _ in range(objects)]
    except (OSError, ValueError, msgpack.UnpackException) as error:
        raise LeasekitError(f"{file}: {error}: expected the calendar of a run") from error
    version = found[0].get("version") if isinstance(found[0], dict) else None
    if version != VERSION:
        raise LeasekitError(f"{file}: found version {version!r}, expected {VERSION}: run it again")
    return found


def _table(columns: Sequence[bytes]) -> _Table:
    return _Table(*(np.frombuffer(one, kind).astype(np.int64) for one, kind in zip(columns, _KINDS, strict=True)))


def _rounded(start: Instant, end: Instant, exact: Duration) -> dict[str, Any]:
    return {"start": _moment(start // exact * exact), "end": _moment(max(end, start + exact) // exact * exact)}


class RunsFolder:
    """What ``leasekit emulate --out`` has written to a folder. Raises ``LeasekitError`` where it has not."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._read()

    def _read(self) -> None:
        files, summary = dict[str, tuple[Path, str]](), self.folder / "summary.json"
        try:
            written = summary.stat().st_mtime_ns  # before all else: what is written meanwhile is read the next time
            for file in sorted((self.folder / "kept").glob(f"*{SUFFIX}")):
                (head,) = _unpacked(file, 1)
                files[head["run"]] = (file, head["stem"])
            overview = _overview(json.loads(summary.read_text("utf-8")), files)
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise LeasekitError(
                f"{self.folder}: found no summary.json of runs, expected a folder that `leasekit emulate --out` has "
                "written"
            ) from error
        self._written, self._overview, self._files, self._open = written, overview, files, lru_cache(OPENED)(OpenedRun)

    def overview(self) -> RunsOverview:
        """Its runs side by side. What was not run may be by now, by ``--resume``: then the folder is read anew. Raises
        ``LeasekitError`` where it is none any more.
        """
        summary = self.folder / "summary.json"
        if not summary.is_file() or summary.stat().st_mtime_ns != self._written:
            self._read()
        return self._overview

    def calendar(self, run: str, asked: RunAsked) -> RunView:
        """The calendar of a run. Raises ``LeasekitError`` for a run that has none."""
        return self._open(self._file(run)[0]).view(asked)

    def moment(self, run: str, at: Instant) -> RunMoment:
        """An instant of a run. Raises ``LeasekitError`` for a run that has no calendar."""
        file, stem = self._file(run)
        log = self.folder / (f"{stem}-transitions.csv" if stem else "transitions.csv")
        lines = list(_lines_about(log, at)) if log.is_file() else []
        return RunMoment(at=_moment(at), series=self._open(file).series(at), lines=lines)

    def picture(self, name: str) -> bytes | None:
        """A picture that the summary names, or the same as PNG."""
        file, stem = self.folder / name, name.removesuffix(".png")
        is_named = f"{stem}.svg" in self._overview.pictures if stem != name else name in self._overview.pictures
        return file.read_bytes() if is_named and file.is_file() else None

    def _file(self, run: str) -> tuple[Path, str]:
        if run not in self._files:
            known = ", ".join(map(repr, self._files)) or "none: an older leasekit wrote this folder"
            raise LeasekitError(f"run: found {run!r}, expected one that has a calendar: {known}")
        return self._files[run]


def _overview(summary: Mapping[str, Any], calendars: Container[str]) -> RunsOverview:
    runs = []
    for run in summary["runs"]:
        row = wide_row({**run, "measured": {}})
        figures = {key: row[key] for key in row if key not in ("run", "series", *run["set"])}
        runs.append({"run": run["run"], "set": run["set"], "figures": figures, "calendar": run["run"] in calendars})
    return RunsOverview(
        file=summary["file"], deployment=summary["deployment"], synthetic=summary["synthetic"], runs=runs,
        pictures=[name for name in summary.get("pictures", ()) if name.endswith(".svg") and Path(name).name == name],
        not_run=list(summary.get("not_run", ())),
    )  # fmt: skip


def _lines_about(log: Path, at: Instant) -> Iterator[dict[str, Any]]:
    """Lines of a transition log, which is in order of time, about an instant: found without reading it all."""
    with log.open("rb") as source:
        low, high = 0, log.stat().st_size
        while low < high:
            middle = (low + high) // 2
            instant = _instant_at(source, middle)
            low, high = (middle + 1, high) if instant is not None and instant <= at else (low, middle)
        source.seek(max(0, low - BLOCK))
        text = source.read(2 * BLOCK).decode("utf-8", "replace")
    rows = [row for row in csv.reader(text.split("\n")[1:-1]) if len(row) == len(LOG_COLUMNS) + 1 and row[0].isdigit()]
    over = [row for row in rows if int(row[0]) <= at]
    for row in (*over[-BEFORE:], *(row for row in rows[len(over) : len(over) + AFTER])):
        told = dict(zip(("actor", "lease", "event", "before", "after"), row[1:6], strict=True))
        yield {"at": format_instant(int(row[0])), **told, "why": dated(words(read(row[6])))}


def _instant_at(source: BinaryIO, place: int) -> Instant | None:
    """The instant of the first line that begins after a place of a log; None where none does."""
    source.seek(place)
    source.readline()
    number = source.readline().partition(b",")[0]
    return int(number) if number.isdigit() else None


def _moment(at: Instant) -> Any:
    return format_instant(at)
