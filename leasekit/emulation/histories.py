"""Histories of daemons: written to files, and set beside an emulation of the same deploy file.

A history is what guests' stores have of their leases: what each came to, and its transitions. The emulation has the
same mappers ask over the same time, from the daemons' first transition to their last. A lease is told by its guest, its
slice, its name (its type, where it has none), and by which of those it is, in order of request. So what an operator
asked for by hand is in the daemons' history only, and is the first difference.

Daemons take a while to be there, to set up units and to answer: instants are the same that are no further apart than
``within``. What has happened in the last ``within`` of a history is not compared, for one side may be ahead. What a
lease has (site, units, term, state) is compared as of the last transition of the daemons; the emulation goes on for
another ``within``, so that it has come as far. Of leases of which it has not, that is left out, and told.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final, NamedTuple

from leasekit.config.deployment import ActorSpec, Deployment
from leasekit.config.load import load
from leasekit.core.commands import by_number
from leasekit.core.errors import LeasekitError
from leasekit.core.leases.records import GuestLease
from leasekit.core.reasons import mark
from leasekit.core.schema import LOG, LOG_COLUMNS, Change, Row
from leasekit.core.time import SECOND, Duration, Instant, format_duration
from leasekit.emulation.emulated import Emulated
from leasekit.emulation.mapper_faults import Tell
from leasekit.emulation.outputs import write_rows, writing
from leasekit.emulation.pictures import emulation_of
from leasekit.stores.sqlite import read_rows

TRANSITIONS, LEASES = "transitions.csv", "leases.csv"
WITHIN: Final[Duration] = 5 * SECOND
_LEASE_COLUMNS: Final = (
    "guest", "lease", "slice", "name", "type", "site", "units", "start_ms", "end_ms", "state", "because",
)  # fmt: skip
_TRANSITION_COLUMNS: Final = ("at", "actor", *list(LOG_COLUMNS)[1:])
_COMPARED: Final = ("site", "units", "start", "end", "state")


class LoggedStep(NamedTuple):
    """A line of a lease's log: what has happened, and the state that it led to."""

    at: Instant
    event: str
    state: str


class LeaseHistory(NamedTuple):
    """What a guest has of one of its leases: the last term and the units of it, and all its transitions. Of an
    emulated one there is also what it was ``after`` so many of these.
    """

    guest: str
    id: str
    slice: str
    name: str
    type: str
    site: str
    units: int
    start: Instant
    end: Instant
    state: str
    because: str
    transitions: tuple[LoggedStep, ...] = ()
    after: Mapping[int, LeaseHistory] = {}


class Difference(NamedTuple):
    """Where two histories differ, from an instant on: ``what``, as the daemons have it, and as emulated."""

    at: Instant
    lease: str
    what: str
    daemons: str
    emulated: str


def leases_of(guest: str, rows: Iterable[Row], log: Iterable[Row]) -> list[LeaseHistory]:
    """A guest's leases, in order of request, from the rows of them and of its log."""
    transitions: dict[str, list[LoggedStep]] = {}
    for at, lease, event, _, state, _ in log:
        transitions.setdefault(lease, []).append(LoggedStep(at, event, state))
    found = sorted((_history(guest, row) for row in rows), key=lambda lease: by_number(lease.id))
    return [one._replace(transitions=tuple(transitions.get(one.id, ()))) for one in found]


def _history(guest: str, row: Row) -> LeaseHistory:
    one = GuestLease.from_row(row)
    because = "" if one.reason is None else one.reason.code
    return LeaseHistory(
        guest, one.id, one.slice, one.name, one.type, one.site, one.latest.units, *one.runs, one.state, because
    )


# -- stores, and files made of them ------------------------------------------------------------------------------------


def export(actors: Sequence[ActorSpec], out: Path) -> dict[str, Any]:
    """Write the histories of actors to two files: the log of all, as ``leasekit emulate --out`` writes it, and what
    guests have of their leases. Returns what was written. Raises ``LeasekitError``.
    """
    logs = [(row[0], actor.name, *row[1:]) for actor in actors for row in _log(_store(actor))]
    logs.sort(key=lambda row: row[0])
    leases = [lease for actor in actors if actor.role == "guest" for lease in _stored(actor.name, _store(actor))]
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
        write_rows(out / TRANSITIONS, list(_TRANSITION_COLUMNS), logs)
        write_rows(out / LEASES, list(_LEASE_COLUMNS), (lease[: len(_LEASE_COLUMNS)] for lease in leases))
    return {"actors": [actor.name for actor in actors], "transitions": len(logs), "leases": len(leases)}


def _store(actor: ActorSpec) -> Path:
    if actor.store is None:
        raise LeasekitError(f"the store of {actor.name} is in its daemon's memory: there is no file to read")
    if not actor.store.exists():
        raise LeasekitError(f"no store at {actor.store}: {actor.name} was never started")
    return actor.store


def _log(store: Path) -> Iterator[Row]:
    return (row[1:] for row in read_rows(store, LOG, "seq"))


def _stored(guest: str, store: Path) -> list[LeaseHistory]:
    return leases_of(guest, read_rows(store, "leases"), _log(store))


def read_histories(deployment: Deployment, paths: Sequence[Path]) -> list[LeaseHistory]:
    """What guests' stores have of their leases: of stores that are named, of folders of them, and of folders that
    :func:`export` has written. Raises ``LeasekitError`` for a path with no history of any of the file's guests.
    """
    stores = {spec.store.name: spec.name for spec in deployment.of_role("guest") if spec.store is not None}
    found: list[LeaseHistory] = []
    for path in paths:
        files = [path / name for name in stores] if path.is_dir() else [path]
        known = [(stores[file.name], file) for file in files if file.name in stores and file.is_file()]
        if (path / LEASES).is_file():
            found += _exported(path)
        elif known:
            found += [lease for guest, file in known for lease in _stored(guest, file)]
        else:
            raise LeasekitError(
                f"{path}: found no history of a guest of {deployment.file.name}, expected a store "
                f"({', '.join(stores) or 'of which it has none'}), a folder of them, or what `leasekit history export` "
                "has written"
            )
    return found


def _exported(folder: Path) -> list[LeaseHistory]:
    transitions: dict[str, list[LoggedStep]] = {}
    for at, actor, lease, event, _, state, _ in _read_csv(folder / TRANSITIONS, _TRANSITION_COLUMNS):
        transitions.setdefault(f"{actor}/{lease}", []).append(LoggedStep(int(at), event, state))
    return [
        LeaseHistory(
            guest, lease, slice_, name, type_, site, int(units), int(start), int(end), state, because,
            tuple(transitions.get(f"{guest}/{lease}", ())),
        )
        for guest, lease, slice_, name, type_, site, units, start, end, state, because in _read_csv(
            folder / LEASES, _LEASE_COLUMNS
        )
    ]  # fmt: skip


def _read_csv(file: Path, columns: Sequence[str]) -> list[list[str]]:
    try:
        with file.open(encoding="utf-8", newline="") as lines:
            found, *rows = csv.reader(lines)
    except (OSError, ValueError) as error:
        raise LeasekitError(f"{file}: {error}, expected a file that `leasekit history export` has written") from None
    if found != list(columns):
        raise LeasekitError(f"{file}: found columns {', '.join(found)}, expected {', '.join(columns)}")
    return rows


# -- beside an emulation -----------------------------------------------------------------------------------------------


class _Observed:
    """What guests commit in an emulation."""

    def __init__(self, guests: Iterable[str]) -> None:
        self.rows: dict[str, dict[str, Row]] = {name: {} for name in guests}
        self.log: dict[str, list[Row]] = {name: [] for name in self.rows}
        self._steps: dict[str, Counter[str]] = {name: Counter() for name in self.rows}
        self._after: dict[str, dict[str, dict[int, Row]]] = {name: {} for name in self.rows}

    def observe(self, now: Instant, actor: str, changes: Sequence[Change]) -> None:
        if actor not in self.rows:
            return
        for table, _, row in changes:
            if table == LOG and row is not None:
                self.log[actor].append(row)
                self._steps[actor][row[1]] += 1
        for table, key, row in changes:
            if table == "leases" and row is not None:
                self.rows[actor][key] = row
                self._after[actor].setdefault(key, {})[self._steps[actor][key]] = row

    def leases(self) -> Iterator[LeaseHistory]:
        for guest, rows in self.rows.items():
            for lease in leases_of(guest, rows.values(), self.log[guest]):
                after = self._after[guest][lease.id]
                yield lease._replace(after={steps: _history(guest, row) for steps, row in after.items()})


def compare_with_daemons(
    file: Path,
    paths: Sequence[Path],
    *,
    within: Duration = WITHIN,
    data: Path | None = None,
    synthetic: bool = False,
    tell: Tell | None = None,
) -> dict[str, Any]:
    """Compare histories of daemons with an emulation of their deploy file, of the guests that have any.

    Raises ``LeasekitError``, also for a history so short that nothing of it is compared.
    """
    deployment = load(file)
    daemons = read_histories(deployment, paths)
    instants = [one.at for lease in daemons for one in lease.transitions]
    if not instants:
        raise LeasekitError(f"{', '.join(map(str, paths))}: found no lease, expected guests that have asked for some")
    begin, end = min(instants), max(instants)
    observed = _Observed({lease.guest for lease in daemons})
    emulated = Emulated(
        deployment.with_overrides(_over(deployment, begin, end + within)), data=data, synthetic=synthetic, tell=tell,
        observe=observed.observe,
    )  # fmt: skip
    emulated.world.run_until(begin + emulation_of(emulated.deployment).horizon - 1)
    until = end - within
    found = compare(daemons, list(observed.leases()), until, within)
    if not found.of:
        raise LeasekitError(
            f"nothing was compared: the history goes from {mark(begin)} to {mark(end)}, and its last "
            f"{format_duration(within)} (--within) are left out; expected a longer one"
        )
    return {
        "file": file.name, "from": begin, "until": until, "within_ms": within, "leases": found.of, "same": found.same,
        "transitions": sum(at <= until for at in instants), "left_out": sum(at > until for at in instants),
        "differences": [one._asdict() for one in found.differences], "only_transitions": found.only_transitions,
    }  # fmt: skip


def _over(deployment: Deployment, begin: Instant, end: Instant) -> Mapping[str, Any]:
    """The emulation over the daemons' time; loads and jobs begin when they do for daemons, in 1970 if unsaid."""
    changes: dict[str, Any] = {
        "deployment.signatures": False,
        "emulation.start": begin,
        "emulation.horizon": f"{end - begin + 1}ms",
        "emulation.warmup": "0s",
    }
    for guest in deployment.of_role("guest"):
        for table in ("signal", "jobs"):
            given = guest.mapper.settings.get(table)
            if isinstance(given, Mapping) and "origin" not in given:
                changes[f"actor.{guest.name}.mapper.{table}.origin"] = 0
    return changes


class Compared(NamedTuple):
    """The differences of two histories, the earliest first; how many leases are the same, ``of`` how many that either
    has; and of which of these the transitions alone were compared, since the emulation has not come as far.
    """

    differences: list[Difference]
    same: int
    of: int
    only_transitions: list[str]


def compare(
    daemons: Sequence[LeaseHistory], emulated: Sequence[LeaseHistory], until: Instant, within: Duration
) -> Compared:
    """Two histories up to an instant."""
    one, other = _by_name(daemons, until), _by_name(emulated, until)
    found, left_out = [], []
    names = {**one, **other}
    for name in names:
        mine, its = one.get(name), other.get(name)
        difference = _difference(name, mine, its, until, within)
        if difference is None and mine is not None and its is not None:
            reached = _as_of(its, mine.transitions)
            left_out += [name] if reached is None else []
            difference = None if reached is None else _state_difference(name, mine, reached, within)
        found += [] if difference is None else [difference]
    return Compared(sorted(found), len(names) - len(found), len(names), left_out)


def _by_name(leases: Sequence[LeaseHistory], until: Instant) -> dict[str, LeaseHistory]:
    counts: Counter[str] = Counter()
    named = {}
    for lease in leases:
        if lease.transitions and lease.transitions[0].at <= until:
            name = f"{lease.guest}: {lease.slice}/{lease.name or lease.type}"
            counts[name] += 1
            named[f"{name} ({counts[name]})" if counts[name] > 1 else name] = lease
    return named


def _difference(
    name: str, one: LeaseHistory | None, other: LeaseHistory | None, until: Instant, within: Duration
) -> Difference | None:
    """The first difference of a lease, None if there is none."""
    if one is None or other is None:
        there = one or other
        assert there is not None, "one of the two has it"
        here = f"{there.units} {there.type} of {there.site or 'no site'}, {there.state}"
        return Difference(there.transitions[0].at, name, "lease", here if one else "none", "none" if one else here)
    lines = zip_longest(*([line for line in side.transitions if line.at <= until] for side in (one, other)))
    for mine, its in lines:
        at = min(line.at for line in (mine, its) if line is not None)
        if mine is None or its is None:
            is_near_end = at + within > until  # the other side may be about to do it
            return None if is_near_end else Difference(at, name, "transition", _words(mine), _words(its))
        if mine[1:] != its[1:]:
            return Difference(at, name, "transition", _words(mine), _words(its))
        if abs(mine.at - its.at) > within:
            return Difference(at, name, f"time of {mine.event}", mark(mine.at), mark(its.at))
    return None


def _as_of(emulated: LeaseHistory, steps: Sequence[LoggedStep]) -> LeaseHistory | None:
    """What an emulated lease was when so much had happened to it; None where it did not come to that."""
    so_far = emulated.transitions[: len(steps)]
    return emulated.after.get(len(steps)) if [one[1:] for one in so_far] == [one[1:] for one in steps] else None


def _state_difference(name: str, one: LeaseHistory, other: LeaseHistory, within: Duration) -> Difference | None:
    """The first difference in what a lease has, None if there is none."""
    for what in _COMPARED:
        found, expected = getattr(one, what), getattr(other, what)
        is_instant = what in ("start", "end")
        if found != expected and not (is_instant and abs(found - expected) <= within):
            show = mark if is_instant else str
            return Difference(one.transitions[-1].at, name, what, show(found), show(expected))
    return None


def _words(line: LoggedStep | None) -> str:
    return "none" if line is None else f"{line.event} to {line.state}"
