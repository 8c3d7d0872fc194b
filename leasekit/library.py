"""leasekit as a library: emulate a deployment, sweep over its keys, or step through it by hand.

What is public is what ``leasekit`` itself names: :func:`emulate`, :func:`sweep`, ``World``, and what these return.
docs/library.md has examples. Instants are milliseconds of the emulation's clock.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import product
from os import PathLike, fspath
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, overload

import attrs

from leasekit.config.deployment import Deployment
from leasekit.config.emulation import RunSpec
from leasekit.config.load import load, resolve_document
from leasekit.core.errors import CommandError, LeasekitError
from leasekit.core.schema import LOG, Change
from leasekit.core.settings import expect_one_of
from leasekit.core.time import Duration, Instant, parse_duration
from leasekit.emulation.emulated import Emulated
from leasekit.emulation.experiment import result_of, run_deployment, series_of
from leasekit.emulation.pictures import RunResult, emulation_of
from leasekit.emulation.spread import spread
from leasekit.emulation.tidy import guest_rows, interval, reported_rows, run_row, site_rows

if TYPE_CHECKING:
    import pandas
    import polars

Config: TypeAlias = "str | PathLike[str] | Mapping[str, Any] | Deployment"
"""A deploy file by its path, or what one holds: tables as ``tomllib`` reads them. Mappers in files are then looked for
from the current folder.
"""
Changes: TypeAlias = Mapping[str, Any]
"""Values at dotted keys of a deploy file, as ``actor.site.inventory.0.units``."""
Tell: TypeAlias = Callable[[str], None]


class Rows(Sequence[Mapping[str, Any]]):
    """Rows that have the same columns; as a data frame of whichever library is installed."""

    def __init__(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """``rows`` may lack columns that others have: their cells are None."""
        given = list(rows)
        self.columns: Final = tuple(dict.fromkeys(key for row in given for key in row))
        self._rows = [{key: row.get(key) for key in self.columns} for row in given]

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> Mapping[str, Any]: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Mapping[str, Any]]: ...
    def __getitem__(self, index: int | slice) -> Mapping[str, Any] | Sequence[Mapping[str, Any]]:
        return self._rows[index]

    def __repr__(self) -> str:
        return f"{len(self)} rows of {', '.join(self.columns)}"

    def column(self, name: str) -> list[Any]:
        """All cells of a column. Raises ``LeasekitError`` for one that is not there."""
        if name not in self.columns:
            raise LeasekitError(f"column: found {name!r}, {expect_one_of(name, self.columns)}")
        return [row[name] for row in self._rows]

    def polars(self) -> polars.DataFrame:
        """As a data frame of polars. Raises ``ImportError`` where that is not installed."""
        import polars

        return polars.DataFrame(self._columns(), strict=False)

    def pandas(self) -> pandas.DataFrame:
        """As a data frame of pandas. Raises ``ImportError`` where that is not installed."""
        import pandas

        return pandas.DataFrame(self._columns())

    def frame(self) -> Any:
        """As a data frame of polars, or of pandas where only that is installed. Raises ``LeasekitError`` where neither
        is.
        """
        for made in (self.polars, self.pandas):
            try:
                return made()
            except ImportError:
                continue
        raise LeasekitError("frame: found neither polars nor pandas; install one: pip install 'leasekit[frames]'")

    def _columns(self) -> dict[str, list[Any]]:
        return {name: [row[name] for row in self._rows] for name in self.columns}


@attrs.frozen(eq=False, repr=False)
class Result:
    """What came of an emulation. ``summary`` is as ``leasekit emulate --json`` prints it."""

    summary: Mapping[str, Any]
    _results: Sequence[RunResult]

    def __repr__(self) -> str:
        return f"<Result of {self.summary['file']}, runs: {len(self._results)}>"

    @property
    def runs(self) -> Rows:
        """A row for each run: its name, what it varies (the dotted keys), and what was counted of all of it."""
        return Rows(run_row(run) for run in self.summary["runs"])

    @property
    def guests(self) -> Rows:
        """A row for each guest of each run: what it held, its error against its load, its requests."""
        return Rows(guest_rows(self.summary))

    @property
    def sites(self) -> Rows:
        """A row for each type of each site of each run: what became of what was bought, and the requests for it."""
        return Rows(site_rows(self.summary))

    @property
    def reported(self) -> Rows:
        """A row for each number that a mapper reports in each run: its mean by time, its least, most and last value."""
        return Rows(reported_rows(self.summary))

    def series(self, run: str = "", every: Duration | str | None = None) -> Rows:
        """What a run counted over time: ``instant_ms``, and a column for each quantity, as ``web.leased``.

        ``every`` is how often it is sampled, in ms or as ``"5m"`` (None: as the deployment says). Raises
        ``LeasekitError`` for a run that is not there.
        """
        names = [result.spec.name for result in self._results]
        if run not in names:
            known = expect_one_of(str(run), names) if any(names) else "but the file names none ([[emulation.run]])"
            raise LeasekitError(f"run: found {run!r}, {known}")
        return _series(self._results[names.index(run)], every)


def emulate(
    config: Config,
    *,
    changes: Changes | None = None,
    runs: Sequence[str] = (),
    seed: int | None = None,
    data: str | PathLike[str] | None = None,
    synthetic: bool = False,
    out: str | PathLike[str] | None = None,
    tell: Tell | None = None,
) -> Result:
    """Run a deployment's emulation: all of its runs, or those of these names.

    ``changes`` are made to the deployment first. Traces are looked for in ``data``, or replaced by generated load with
    ``synthetic``. ``out`` gets the files that ``leasekit emulate --out`` writes. ``tell`` hears at once what mappers do
    wrong. Raises ``LeasekitError`` in words for a user.
    """
    _expect("runs", runs, Iterable, "a list of names")
    deployment, to, traces = deployment_of(config, changes, seed), _path("out", out), _path("data", data)
    summary, results = run_deployment(deployment, to, data=traces, synthetic=synthetic, only=runs, tell=tell)
    return Result(summary, results)


class Swept(NamedTuple):
    """What came of a sweep: ``runs``, ``guests`` and ``sites`` as of a :class:`Result`, with a column for each key that
    was varied, and ``seed``.
    """

    runs: Rows
    guests: Rows
    sites: Rows

    def mean(self, of: str, *, guest: str = "", site: str = "") -> Rows:
        """The mean of a column of all runs, or of a guest's or a site's rows, over the seeds: a row for each
        combination of what was varied, with how many ``seeds`` there are, ``mean``, and ``low`` and ``high``, between
        which the mean of many seeds lies with 95% confidence (Student's t; None for one seed).

        Raises ``LeasekitError`` for a column, guest or site that is not there.
        """
        whole, kind, name = (self.guests, "guest", guest) if guest else (self.sites, "site", site)
        chosen = [row for row in whole if row[kind] == name] if name else list(self.runs)
        if not chosen:
            raise LeasekitError(f"{kind}: found {name!r}, {expect_one_of(name, {row[kind] for row in whole})}")
        values = Rows(chosen).column(of)
        keys = [key for key in self.runs.columns if "." in key and not key.startswith("measured.")]
        grouped: dict[tuple[Any, ...], list[float]] = {}
        for row, value in zip(chosen, values, strict=True):
            if value is not None:
                grouped.setdefault(tuple(map(_hashable, (row[key] for key in keys))), []).append(float(value))
        return Rows({**dict(zip(keys, at, strict=True)), **interval(found)} for at, found in grouped.items())


def sweep(
    config: Config,
    over: Mapping[str, Sequence[Any]],
    *,
    seeds: int | Iterable[int] = (1,),
    jobs: int = 1,
    dask: str = "",
    changes: Changes | None = None,
    data: str | PathLike[str] | None = None,
    synthetic: bool = False,
) -> Swept:
    """Run a deployment once for each combination of the values in ``over``, by dotted keys, and each of the seeds, or
    of so many from the deployment's own on, in ``jobs`` processes, or on the Dask cluster whose scheduler is at the
    address ``dask``. What its own runs vary is left alone.

    Raises ``LeasekitError`` in words for a user.
    """
    deployment = deployment_of(config, changes, None)
    _expect_keys("over", over, "a table of lists of values, by dotted keys")
    for key, values in over.items():
        _expect(f"over: {key}", values, Collection, "a list of values")
        if len(values) == 0:
            raise LeasekitError(f"over: {key}: found {values!r}, expected one value at least")
    _expect("seeds", seeds, Iterable | int, "a list of seeds, or how many")
    _expect("jobs", jobs, int, "a number of processes")
    if jobs < 1:
        raise LeasekitError(f"jobs: found {jobs}, expected a whole number from 1 on")
    _expect("dask", dask, str, "the address of a Dask scheduler")
    first, traces = emulation_of(deployment).seed, _path("data", data)
    chosen = tuple(range(first, first + seeds) if isinstance(seeds, int) else seeds)
    if not chosen:
        raise LeasekitError(f"seeds: found {seeds!r:.60}, expected one at least")
    points = [
        _Point(deployment.file, deployment.document, dict(zip(over, values, strict=True)), seed, traces, synthetic)
        for values in product(*over.values())
        for seed in chosen
    ]
    for point in {repr(point.changes): point for point in points}.values():
        point.deployment()  # what is wrong with one is told before hours of work
    summaries = _all_swept(points, jobs, dask)
    at = [{**point.changes, "seed": point.seed} for point in points]
    tables = (
        Rows({**where, **row} for where, summary in zip(at, summaries, strict=True) for row in rows(summary))
        for rows in (lambda summary: map(run_row, summary["runs"]), guest_rows, site_rows)
    )
    return Swept(*tables)


class LogEntry(NamedTuple):
    """A line of an actor's log: what ``event`` took ``subject`` (a lease, mostly) from which state to which, and why
    (a code with values, or words).
    """

    at: Instant
    actor: str
    subject: str
    event: str
    before: str
    after: str
    why: str


class SteppedWorld:
    """A deployment to step through by hand: the actors that daemons run, in virtual time.

    ``now`` is the instant. Nothing happens but in :meth:`run_for`, :meth:`run_until` and :meth:`command`.
    """

    def __init__(
        self,
        config: Config,
        *,
        changes: Changes | None = None,
        seed: int | None = None,
        data: str | PathLike[str] | None = None,
        synthetic: bool = False,
        tell: Tell | None = None,
    ) -> None:
        """The actors at the start of the emulation, before anything has happened. Raises ``LeasekitError``."""
        deployment = deployment_of(config, changes, seed)
        if deployment.emulation is None:
            raise LeasekitError(f"{deployment.file}: found no [emulation] table, expected one, with a horizon")
        self.transitions: list[LogEntry] = []
        traces = _path("data", data)
        self._emulated = Emulated(deployment, data=traces, synthetic=synthetic, tell=tell, observe=self._observed)

    @property
    def now(self) -> Instant:
        """The instant, in ms."""
        return self._emulated.world.now

    @property
    def actors(self) -> Mapping[str, str]:
        """The roles of all actors, by name."""
        return {name: actor.role for name, actor in self._emulated.deployment.actors.items()}

    @property
    def end(self) -> Instant:
        """When the deployment's emulation ends. A world can be stepped beyond it; results are up to then."""
        emulation = emulation_of(self._emulated.deployment)
        return emulation.start + emulation.horizon

    @property
    def next_at(self) -> Instant | None:
        """When something happens next, if anything will by itself."""
        return self._emulated.world.next_at

    def mapper(self, actor: str) -> object:
        """An actor's mapper, to look at what it keeps, or to tell it something."""
        self._known(actor)
        return self._emulated.actors[actor].actor.turning.mapper

    def run_for(self, time: Duration | str) -> Instant:
        """Let so much time pass, in ms or as ``"2h"``; returns the instant that it is then."""
        return self.run_until(self.now + _duration("time", time))

    def run_until(self, at: Instant) -> Instant:
        """Let time pass up to and including an instant. Raises ``LeasekitError`` for one that is past."""
        _expect("at", at, int, "an instant, in ms")
        if at < self.now:
            raise LeasekitError(f"at: found {at}, which is past: it is {self.now}")
        self._emulated.world.run_until(at)
        return self.now

    def command(self, actor: str, name: str, /, **arguments: Any) -> Any:
        """Have an actor carry out an operator's command now, as ``lease.request``; returns what it answers. Time does
        not pass. Raises ``CommandError`` for what it does not do.
        """
        self._known(actor)
        reply = self._emulated.world.command(actor, name, **arguments)
        if reply.error:
            raise CommandError(reply.error if reply.reason is None else reply.reason)
        return reply.result

    def query(self, actor: str, name: str, /, **arguments: Any) -> Any:
        """What an actor answers, as to ``leases``; nothing changes. Raises ``CommandError``."""
        self._known(actor)
        return self._emulated.world.query(actor, name, **arguments)

    def result(self) -> Result:
        """What has come of it so far, as of an emulation that ends now."""
        deployment = self._emulated.deployment
        found = result_of(self._emulated, RunSpec(), "", {})
        head = {"deployment": deployment.name, "seed": emulation_of(deployment).seed}
        return Result({**head, "runs": [dict(found.summary)]}, [found])

    def _known(self, actor: str) -> None:
        _expect("actor", actor, str, "a name")
        if actor not in self.actors:
            raise LeasekitError(f"actor: found {actor!r}, {expect_one_of(actor, self.actors)}")

    def _observed(self, now: Instant, actor: str, changes: Sequence[Change]) -> None:
        for table, _, row in changes:
            if table == LOG and row is not None:
                at, *rest = row
                self.transitions.append(LogEntry(int(str(at)), actor, *map(str, rest)))


# -- how it is done ----------------------------------------------------------------------------------------------------


class _Point(NamedTuple):
    """One run of a sweep, as another process can be told of it."""

    file: Path
    document: Mapping[str, Any]
    changes: Changes
    seed: int
    data: Path | None
    synthetic: bool

    def deployment(self) -> Deployment:
        """With no runs and pictures of its own."""
        emulation = {key: value for key, value in self.document["emulation"].items() if key not in ("run", "plot")}
        changes = {**self.changes, "emulation.seed": self.seed}
        return resolve_document(self.file, None, {**self.document, "emulation": emulation}, changes)


def _all_swept(points: Sequence[_Point], jobs: int, dask: str) -> list[dict[str, Any]]:
    """The summaries, in order."""
    found = dict(spread(_swept, points, jobs=jobs, dask=dask))
    return [found[place] for place in range(len(points))]


def _swept(point: _Point) -> dict[str, Any]:
    return run_deployment(point.deployment(), data=point.data, synthetic=point.synthetic)[0]


def deployment_of(config: Config, changes: Changes | None, seed: int | None) -> Deployment:
    """A deployment with changes made to it. Raises ``LeasekitError``."""
    _expect("config", config, str | PathLike | Mapping | Deployment, "a deploy file's path, or the table that it holds")
    _expect_keys("changes", {} if changes is None else changes, "a table of values by dotted keys")
    if isinstance(config, Mapping):
        deployment = resolve_document(Path.cwd() / "config", None, config, {})
    else:
        deployment = config if isinstance(config, Deployment) else load(Path(fspath(config)))
    return deployment.with_overrides({**(changes or {}), **({} if seed is None else {"emulation.seed": seed})})


def _expect(name: str, given: object, kinds: type | UnionType, expected: str) -> None:
    """Raises ``LeasekitError`` for an argument that is nothing of what it may be; text is no list of anything."""
    is_text = isinstance(given, str | bytes) and kinds in (Iterable, Iterable | int, Collection)
    if is_text or not isinstance(given, kinds):
        raise LeasekitError(f"{name}: found {given!r:.60}, expected {expected}")


def _expect_keys(name: str, given: object, expected: str) -> None:
    _expect(name, given, Mapping, expected)
    for key in given if isinstance(given, Mapping) else ():
        _expect(f"{name}: a key", key, str, "text with dots, as actor.east.inventory.0.units")


def _path(name: str, given: str | PathLike[str] | None) -> Path | None:
    _expect(name, given, str | PathLike | None, "the path of a folder")
    return None if given is None else Path(fspath(given))


def _duration(name: str, given: Duration | str, least: Duration = 0) -> Duration:
    _expect(name, given, int | str, 'a duration, in ms or as "2h"')
    try:
        found = parse_duration(given) if isinstance(given, str) else given
    except ValueError as error:
        raise LeasekitError(f"{name}: {error}") from None
    if found < least:
        raise LeasekitError(f"{name}: found {given!r}, expected {least} ms at least")
    return found


def _series(result: RunResult, every: Duration | str | None) -> Rows:
    window, columns = result.window, series_of(result)
    step = emulation_of(result.deployment).sample if every is None else _duration("every", every, least=1)
    cells = [[value for _, value in one.sampled(window.start, window.end, step)] for one in columns.values()]
    instants = range(window.start, window.end, step)
    return Rows(
        {"instant_ms": at, **dict(zip(columns, row, strict=True))}
        for at, row in zip(instants, zip(*cells, strict=True), strict=True)
    )


def _hashable(value: Any) -> Any:
    return value if isinstance(value, str | int | float | bool | None) else repr(value)
