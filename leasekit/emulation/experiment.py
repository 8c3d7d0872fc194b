"""Experiments: a deploy file run in virtual time, in all the variants that its ``[emulation]`` table names.

Each run builds its actors as a daemon would, puts them into a :class:`~leasekit.emulation.world.World`, lets the
horizon pass, and is summed up in one JSON object. The same file and seed give the same summary (but for what was
measured with a clock) and the same transition log, byte for byte.

What the summary says of a run. Units and their time are counted from the warm-up's end to the horizon; events,
messages, actions, transitions and flips from the beginning.

- of each guest ``mean_leased`` and ``peak_leased``: the units that it held, from the start of a term at the site to its
  end; ``leased_unit_h``: their time; ``fidelity``: the share of its terms in which it could use them
  (:func:`.metrics.fidelity`). ``types`` has what it held of each type; that is not added where it leased units of
  several, which may be different things.
- of each guest that follows a load ``rmse``, ``unserved`` and ``idle_leased``: its holdings against the load as the
  file has it, in whole units, before any filter. A filter reacts late on purpose, which is an error like any other
  here. ``idle_leased`` is the share of what it leased that was beyond its load. ``rmse_wanted`` and
  ``unserved_wanted``: against what its mapper wanted to hold, after its filter. Errors are weighted by time, not
  sampled. ``sees_ahead`` is there, and true, where its mapper was shown what is to come of the load.
- of each guest that asked for topologies ``topologies``: how many, and how many of them were ``granted``, ``refused``,
  ``given_up`` by the guest, or ``waiting`` in the end; from the beginning.
- of each site ``capacity`` (the units that were bought), ``bought_unit_h`` (those by the time of the window), and what
  became of them, as shares that add up to 1: ``used``, from setup to the end of teardown; ``out_of_service``, after
  failures; ``idle``, all else. ``peak``: the most in use. A host is used while it is leased whole, or any machine is on
  it. Of each of its ``types`` likewise, and not added where there are several. ``failed`` and ``repaired``: how often a
  unit went out of service and came back; from the beginning.
- ``requests`` of each guest, each of its types, and each of a site's types: :mod:`.request_book`, from the beginning.
- ``reported``: the numbers that mappers report, by actor and name: each one's ``mean`` by time, ``least``, ``most`` and
  ``last``, from when it was first known.
- ``mapper_errors``: what actors had to say of their mappers, by actor and kind (:mod:`leasekit.actors.base`).
- ``mishaps``: what went wrong as the file says: :meth:`.mishaps.Mishaps.summary`.
- of each site that switches units ``energy``: :meth:`.energy.account.EnergyAccount.summary`.
- ``events``: how often an actor was woken with something due, ticks on which nothing was due left out; ``timers``:
  how often by a timer of its own (:attr:`.world.World.timers`); ``flips``: :attr:`.recorder.Recorder.flips`.
- ``measured``: ``wall_s`` and ``cpu_s`` are the real time and the processor time of the run. ``alpha_ms`` is the
  processor time by the ticks in its horizon, whether they were executed or skipped (``ticks_executed`` says which). It
  holds all actors, their mappers, stores in memory, messages (through the wire encoding where every tick is executed,
  signatures are on, or something fails on purpose), signatures if they are on, recording and writing the log; not
  reading traces, building and drawing. ``minimum_term_s``: what one term costs in processor time, where the guests have
  one term: Shirako's minimum term. ``rss_peak_mb`` is the most that the process has held so far, earlier runs included.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple, TextIO

import attrs

from leasekit.config.build import BuiltActor
from leasekit.config.deployment import Deployment
from leasekit.config.emulation import EmulationSpec, RunSpec
from leasekit.config.errors import ConfigErrors
from leasekit.config.load import load
from leasekit.config.sense import capacities, senseless
from leasekit.core.errors import LeasekitError
from leasekit.core.settings import expect_one_of
from leasekit.core.signals import Signal, SignalSteps
from leasekit.core.time import HOUR, INSTANT_MAX, SECOND, Duration, Instant, Term, parse_duration
from leasekit.emulation import metrics
from leasekit.emulation.emulated import Emulated, build_all
from leasekit.emulation.energy.account import EnergyAccount
from leasekit.emulation.kept import keep, made_of, take_up
from leasekit.emulation.mapper_faults import Tell, TurnLimitError, turn_limit
from leasekit.emulation.metrics import Series
from leasekit.emulation.outputs import make_folder, write_json, writing
from leasekit.emulation.pictures import RunResult, bought, draw, emulation_of
from leasekit.emulation.recorder import Outages, Recorder, Topologies, total
from leasekit.emulation.request_book import RequestBook, Tally
from leasekit.emulation.runs.book import SUFFIX
from leasekit.emulation.spread import Progress, spread
from leasekit.emulation.tidy import means, parquet_writer, write_table
from leasekit.emulation.unservable import unservable
from leasekit.emulation.world import World, few_collections
from leasekit.policies.guest.load_following import LoadFollowing
from leasekit.policies.registry import find_mapper, make_mapper, sees_ahead

INTERRUPT: Final = "interrupt"
"""What ``stopped_by`` says of a run that was interrupted."""


def run_file(
    file: Path,
    out: Path | None = None,
    *,
    data: Path | None = None,
    synthetic: bool = False,
    seed: int | None = None,
    seeds: int | None = None,
    signatures: bool | None = None,
    tell: Tell | None = None,
    progress: Progress | None = None,
    **how: Any,
) -> dict[str, Any]:
    """Run every variant of a deploy file's emulation; writes to ``out`` (if given) and returns the summary. ``how`` is
    as :func:`run_deployment` has it.

    ``out`` gets ``summary.json`` and ``measured.json``, per run the transition log and the series as CSV, and the
    pictures that the file asks for. ``seed``, ``seeds`` and ``signatures`` override the file. ``tell`` hears at once
    what mappers do wrong. Raises ``LeasekitError`` (config, missing trace, a folder that can't be written) in words for
    a user.

    An interrupt, and a mapper that does not end its turn, end the run and all that come after it: the summary and the
    pictures are then of those before it, ``stopped_by`` says why, and ``not_run`` has the names of the others.
    """
    deployment = load(file)
    changes: dict[str, Any] = {}
    if seed is not None:
        changes["emulation.seed"] = seed
    if seeds is not None:
        changes["emulation.seeds"] = seeds
    if signatures is not None:
        changes["deployment.signatures"] = signatures
    deployment = deployment.with_overrides(changes)
    return run_deployment(deployment, out, data=data, synthetic=synthetic, tell=tell, progress=progress, **how)[0]


def run_deployment(
    deployment: Deployment,
    out: Path | None = None,
    *,
    data: Path | None = None,
    synthetic: bool = False,
    only: Sequence[str] = (),
    tell: Tell | None = None,
    progress: Progress | None = None,
    jobs: int = 1,
    dask: str = "",
    resume: bool = False,
) -> tuple[dict[str, Any], list[RunResult]]:
    """The same of a deployment: the summary, and the runs that came to their end, or ``only`` those of these names.

    They run in so many processes, or on the cluster of the scheduler at ``dask``, whose workers see the same files;
    ``progress`` is then told of runs that are over. With ``resume`` those are not run again that ``out`` has of an
    earlier time, as far as they were made of the same.
    """
    if deployment.emulation is None:
        raise LeasekitError(f"{deployment.file}: found no [emulation] table, expected one that says how long to run")
    if resume and out is None:
        raise LeasekitError("resume: found no folder of results, expected one to go on with")
    if out is not None:
        make_folder(out)
        parquet_writer()
    if errors := senseless(deployment):
        raise ConfigErrors(errors)
    runs, chosen = deployment.emulation.runs, runs_named(deployment.emulation.runs, only)
    stems = zip(runs, file_stems([spec.name for spec in runs]), strict=True)
    wanted = [_Task(deployment, spec, out, stem, data, synthetic) for spec, stem in stems if spec in chosen]
    done: dict[int, RunResult] = {}
    stopped_by = ""
    try:
        for place, result in _run_all(wanted, jobs, dask, resume, tell, progress):
            done[place] = result
            if out is not None:  # whatever becomes of the next run
                with writing(out):
                    _write_summary(_summed_up(deployment, _in_order(done), synthetic), out)
                    write_table([one.summary for one in _in_order(done)], out)
    except KeyboardInterrupt:
        stopped_by = INTERRUPT
    except TurnLimitError as error:
        stopped_by = str(error)
    results = _in_order(done)
    summary = _summed_up(deployment, results, synthetic)
    if stopped_by:
        not_run = [task for place, task in enumerate(wanted) if place not in done]
        summary |= {"stopped_by": stopped_by, "not_run": [task.spec.name for task in not_run]}
        for task in not_run:
            if out is not None:  # what its process left
                (out / _file(task.stem, "transitions")).unlink(missing_ok=True)
    if out is not None:
        with writing(out):
            if stopped_by and results:  # as the table was written, perhaps
                write_table([one.summary for one in results], out)
            summary["pictures"] = [path.name for path in draw(deployment, results, out)]
            _write_summary(summary, out)
    return summary, results


class _Task(NamedTuple):
    """One run that is to be done, by whichever process."""

    deployment: Deployment
    spec: RunSpec
    out: Path | None
    stem: str
    data: Path | None
    synthetic: bool

    def run(self, tell: Tell | None, progress: Progress | None = None) -> RunResult:
        """As :func:`run_one`."""
        return run_one(
            self.deployment, self.spec, self.out, stem=self.stem, data=self.data, synthetic=self.synthetic,
            tell=tell, progress=progress,
        )  # fmt: skip


class _Ended(NamedTuple):
    """What another process has to say of a run: what it ``told`` meanwhile, and its result, or why there is none."""

    told: Sequence[str]
    result: RunResult | None
    stopped_by: str = ""
    error: str = ""


def _in_order(done: Mapping[int, RunResult]) -> list[RunResult]:
    return [done[place] for place in sorted(done)]


def _run_all(
    tasks: Sequence[_Task], jobs: int, dask: str, resume: bool, tell: Tell | None, progress: Progress | None
) -> Iterator[tuple[int, RunResult]]:
    """All runs with their places, as they are done. Raises :class:`.mapper_faults.TurnLimitError`."""
    left = []
    for place, task in enumerate(tasks):
        found = _kept(task) if resume else None
        if found is None:
            left.append(place)
        else:
            yield place, found
    if resume and tell is not None:
        tell(f"{len(tasks) - len(left)} of {len(tasks)} runs are done already")
    if jobs <= 1 and not dask:
        for place in left:
            yield place, tasks[place].run(tell, progress)
        return
    for over, (number, ended) in enumerate(spread(_run_apart, [tasks[place] for place in left], jobs=jobs, dask=dask)):
        for text in ended.told:
            if tell is not None:
                tell(text)
        if ended.stopped_by:
            raise TurnLimitError(ended.stopped_by)
        if ended.result is None:
            raise LeasekitError(ended.error)
        if progress is not None:
            progress("runs", (over + 1) / len(left))
        yield left[number], ended.result


def _run_apart(task: _Task) -> _Ended:
    """A run in a process of its own."""
    told: list[str] = []
    try:
        return _Ended(told, task.run(told.append))
    except TurnLimitError as error:
        return _Ended(told, None, stopped_by=str(error))
    except LeasekitError as error:
        return _Ended(told, None, error=str(error))


def _kept(task: _Task) -> RunResult | None:
    """The result of a run that an earlier time has come to the end of."""
    assert task.out is not None, "it was checked"
    varied = task.deployment.with_run(task.spec)
    file, digest = _kept_at(task.out, task.stem), made_of(varied, task.spec, task.synthetic)
    if not file.exists():
        return None
    actors = build_all(varied, task.data, task.synthetic)
    window = _window(emulation_of(varied), INSTANT_MAX)
    loads = {"signals": signals_of(actors), "wanted": _all_wanted(actors, window)}
    return take_up(file, digest, task.spec, task.stem, varied, loads)


def runs_named(runs: Sequence[RunSpec], only: Sequence[str]) -> list[RunSpec]:
    """The runs of these names, or all of them. Raises ``LeasekitError`` for a name that is none's."""
    names = [spec.name for spec in runs]
    for name in only:
        if name not in names:
            known = expect_one_of(name, names) if any(names) else "but the file names none ([[emulation.run]])"
            raise LeasekitError(f"run: found {name!r}, {known}")
    return [spec for spec in runs if not only or spec.name in only]


def _summed_up(deployment: Deployment, results: Sequence[RunResult], synthetic: bool) -> dict[str, Any]:
    emulation = emulation_of(deployment)
    return {
        "file": deployment.file.name,
        "deployment": deployment.name,
        "seed": emulation.seed,
        "synthetic": synthetic,
        "signatures": deployment.signatures,
        "mapper_errors_allowed": emulation.mapper_errors == "allow",
        "rmse": {result.spec.name: _rmse(result) for result in results},
        "runs": [dict(result.summary) for result in results],
        "means": means([result.summary for result in results]),
        "purchases": [
            {"plot": plot.file, **one.plain()}
            for plot in emulation.plots
            if plot.kind == "purchase"
            for one in bought(plot, results)
        ],
    }


def file_stems(names: Sequence[str]) -> list[str]:
    """What the names of each run's files begin with: letters, digits and ``-_.`` of its name, an underscore for each
    other character, and a number where that is not different from the others, in upper or lower case.
    """
    taken: set[str] = set()
    stems = []
    for name in names:
        plain = stem = "".join(c if c.isalnum() or c in "-_." else "_" for c in name)
        number = 1
        while stem.casefold() in taken:
            number += 1
            stem = f"{plain}-{number}"
        taken.add(stem.casefold())
        stems.append(stem)
    return stems


def _rmse(result: RunResult) -> dict[str, float]:
    """The error between demand and holdings of each guest that follows a load."""
    return {name: guest["rmse"] for name, guest in result.summary["guests"].items() if "rmse" in guest}


def _write_summary(summary: Mapping[str, Any], out: Path) -> None:
    """What repeats for a seed goes to one file, byte for byte the same; what a clock measured goes to another."""
    runs: Sequence[Mapping[str, Any]] = summary["runs"]
    repeats = {**summary, "runs": [{k: v for k, v in run.items() if k != "measured"} for run in runs]}
    measured = {run["run"]: run["measured"] for run in runs}
    for name, content in (("summary.json", repeats), ("measured.json", measured)):
        write_json(out / name, content)


def run_one(
    deployment: Deployment,
    spec: RunSpec,
    out: Path | None,
    *,
    stem: str = "",
    data: Path | None = None,
    synthetic: bool = False,
    tell: Tell | None = None,
    progress: Progress | None = None,
) -> RunResult:
    """Run one variant over its horizon. ``stem`` begins the names of the files that it writes to ``out``; if the run
    does not come to its end there are none. Raises :class:`.mapper_faults.TurnLimitError`.
    """
    varied = deployment.with_run(spec)
    emulation = emulation_of(varied)
    with ExitStack() as stack:
        log = None
        if out is not None and emulation.log != "none":
            stack.enter_context(writing(out))
            log = stack.enter_context(_whole(out / _file(stem, "transitions")))
        emulated = Emulated(varied, run=spec.name, log=log, data=data, synthetic=synthetic, tell=tell)
        if tell is not None:
            for text in unservable(varied, emulated.actors):
                tell(f"run {spec.name!r}: {text}" if spec.name else text)
        with turn_limit(emulation.turn_limit, emulated.who):
            horizon = Term(emulation.start, emulation.start + emulation.horizon)
            wall, cpu = _run(emulated.world, horizon, spec.name, progress)
    result = result_of(emulated, spec, stem, _measured(varied, wall, cpu, emulated.recorder.flips))
    if out is not None:
        with writing(out):
            _write_series(result, out)
            kept = _kept_at(out, stem)
            calendar = emulated.recorder.calendar
            calendar.write(kept.with_name(f"{kept.stem}{SUFFIX}"), spec.name, stem, horizon, series_of(result))
            keep(result, made_of(varied, spec, synthetic), kept)
    return result


def result_of(emulated: Emulated, spec: RunSpec, stem: str, measured: Mapping[str, Any]) -> RunResult:
    """What has come of a run up to now, at most to its horizon, from the end of its warm-up on."""
    emulation, recorder, actors = emulation_of(emulated.deployment), emulated.recorder, emulated.actors
    window = _window(emulation, emulated.world.now + 1)
    by_type, promised = recorder.leased_by_type, recorder.promised
    leased = {name: total(types) for name, types in by_type.items()}
    wanted = _all_wanted(actors, window)
    guests = {
        name: {
            **_held(window, by_type[name], emulated.requests.of_guest(name)),
            **_followed(window, leased[name], actors[name].signal, wanted.get(name)),
            "fidelity": metrics.fidelity(
                recorder.usable[name], promised[name], window, believed=not emulation.is_still
            ),
            **_sees_ahead(actors[name]),
            **_topologies(recorder.topologies[name]),
            "requests": emulated.requests.by_guest.get(name, Tally()).summary(),
        }
        for name in leased
    }
    summary = {
        **summarise(emulated.deployment, spec, emulated.world, recorder, emulated.requests, window, guests),
        "reported": {actor: _reported(numbers, window) for actor, numbers in recorder.reported.items()},
        "mapper_errors": emulated.faults.summary(),
        "mishaps": emulated.mishaps.summary(window) if emulated.mishaps is not None else [],
        "measured": measured,
    }
    return RunResult(
        spec=spec, stem=stem, deployment=emulated.deployment, summary=summary, window=window, leased_by_type=by_type,
        usable=recorder.usable, in_use_by_type=recorder.in_use_by_type,
        out_by_type={site: {kind: out.out for kind, out in found.items()} for site, found in recorder.outages.items()},
        power={
            site: {"off": account.off, "suspended": account.suspended}
            for site, account in recorder.energy.items()
            if account.switched
        },
        reported=recorder.reported, signals=signals_of(actors), wanted=wanted,
    )  # fmt: skip


def signals_of(actors: Mapping[str, BuiltActor]) -> dict[str, Signal]:
    """The loads of those guests that follow one."""
    return {name: built.signal for name, built in actors.items() if built.signal is not None}


@contextmanager
def _whole(file: Path) -> Iterator[TextIO]:
    """A file that is written whole or not at all."""
    try:
        with file.open("w", encoding="utf-8", newline="") as out:
            yield out
    except BaseException:
        file.unlink(missing_ok=True)
        raise


def _window(emulation: EmulationSpec, end: Instant) -> Term:
    """From the end of the warm-up to that of the horizon, or an ``end`` before it."""
    end = min(emulation.start + emulation.horizon, end)
    return Term(min(emulation.start + emulation.warmup, end - 1), end)


def _all_wanted(actors: Mapping[str, BuiltActor], window: Term) -> dict[str, Signal]:
    return {name: load for name, built in actors.items() if (load := _wanted(built, window)) is not None}


def _wanted(built: BuiltActor, window: Term) -> Signal | None:
    """The units that a load-following mapper wants over the window, told by another one with the same settings."""
    if built.signal is None:
        return None
    spec = built.spec.mapper
    if not issubclass(find_mapper(spec.target, "guest", spec.where), LoadFollowing):
        return None
    mapper: LoadFollowing = make_mapper(spec.target, "guest", spec.settings, spec.where, {"signal": built.signal})
    interval = mapper.settings.interval
    first = window.start // interval * interval
    return Signal(((at, float(mapper.wanted(at))) for at in range(first, window.end, interval)), end=window.end)


def _run(world: World, term: Term, name: str, progress: Progress | None) -> tuple[float, float]:
    """Let the term pass; returns the seconds of real time, and of processor time, that it took."""
    begin, begin_cpu = time.perf_counter(), time.process_time()
    steps = 50 if progress is not None else 1
    with few_collections():
        for step in range(1, steps + 1):
            world.run_until(term.start + term.length * step // steps - (step == steps))
            if progress is not None:
                progress(name, step / steps)
    return time.perf_counter() - begin, time.process_time() - begin_cpu


def summarise(
    deployment: Deployment,
    spec: RunSpec,
    world: World,
    recorder: Recorder,
    requests: RequestBook,
    window: Term,
    guests: Mapping[str, Mapping[str, Any]],
) -> dict[str, Any]:
    """One run as plain data, all of which repeats for a seed."""
    emulation = emulation_of(deployment)
    ticks = emulation.horizon // emulation.tick
    sites = {
        name: {
            **_used(window, capacities(deployment, name), types, recorder.outages[name], requests, name),
            **_energy(recorder.energy.get(name), sum(capacities(deployment, name).values()), window),
        }
        for name, types in recorder.in_use_by_type.items()
    }
    return {
        "run": spec.name,
        "series": spec.series,
        "set": dict(spec.changes),
        "horizon_ms": emulation.horizon,
        "ticks": ticks,
        "ticks_executed": "every" if emulation.ticks == "every" else "only those with something due",
        "seed": emulation.seed,
        "signatures": deployment.signatures,
        "guests": guests,
        "sites": sites,
        "events": world.events,
        "messages": world.messages,
        "timers": world.timers,
        "actions": world.actions,
        "transitions": recorder.transitions,
        "flips": recorder.flips,
    }


def _energy(account: EnergyAccount | None, capacity: int, window: Term) -> dict[str, Any]:
    found = None if account is None else account.summary(capacity, window)
    return {} if found is None else {"energy": found}


def _measured(deployment: Deployment, wall_s: float, cpu_s: float, flips: int) -> dict[str, Any]:
    """What clocks say of a run, the processor's where another process must not count."""
    emulation, term = emulation_of(deployment), _only_term(deployment)
    horizon = emulation.horizon
    return {
        "wall_s": round(wall_s, 3),
        "cpu_s": round(cpu_s, 3),
        "alpha_ms": round(cpu_s * 1000 / (horizon // emulation.tick), 6),
        "minimum_term_s": None if term is None else round(cpu_s * term / horizon, 6),
        "flips_per_s": round(flips / cpu_s, 1) if cpu_s > 0 else None,
        "emulated_per_real": round(horizon / SECOND / wall_s, 0) if wall_s > 0 else None,
        "rss_peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
    }


def _only_term(deployment: Deployment) -> Duration | None:
    """The lease term of the guests' mappers, if they name one and the same."""
    named = [
        actor.mapper.settings["term"]
        for actor in deployment.actors.values()
        if actor.role == "guest" and "term" in actor.mapper.settings
    ]
    terms = {parse_duration(text) for text in named if isinstance(text, str)}
    return terms.pop() if len(terms) == 1 else None


def _held(window: Term, types: Mapping[str, Series], requests: Mapping[str, Tally]) -> dict[str, Any]:
    """What a guest held of each type that it asked for, and of all where there is but one."""
    each: dict[str, dict[str, Any]] = {
        kind: _leased(window, types.get(kind, Series())) for kind in (*types, *(k for k in requests if k not in types))
    }
    whole = dict(next(iter(each.values()))) if len(each) == 1 else {}
    if not each:
        whole = _leased(window, Series())
    for kind, one in each.items():
        one["requests"] = requests.get(kind, Tally()).summary()
    return {**whole, "types": each}


def _leased(window: Term, series: Series) -> dict[str, Any]:
    mean = series.mean(window)
    return {"mean_leased": mean, "peak_leased": series.peak(window), "leased_unit_h": mean * window.length / HOUR}


def _followed(window: Term, leased: Series, demand: Signal | None, wanted: Signal | None) -> dict[str, float]:
    """What a guest held against the load that it follows, and against what its mapper wanted."""
    result: dict[str, float] = {}
    if demand is not None:
        result["mean_demand"] = demand.mean(window)
        result["rmse"] = metrics.rmse(demand, leased, window)
        result["unserved"] = metrics.unserved(demand, leased, window)
        result["idle_leased"] = metrics.idle(demand, leased, window)
    if wanted is not None:
        result["mean_wanted"] = wanted.mean(window)
        result["rmse_wanted"] = metrics.rmse(wanted, leased, window)
        result["unserved_wanted"] = metrics.unserved(wanted, leased, window)
    return result


def _sees_ahead(built: BuiltActor) -> dict[str, bool]:
    ahead = built.signal is not None and sees_ahead(built.actor.turning.mapper)
    return {"sees_ahead": True} if ahead else {}


def _reported(numbers: Mapping[str, Series], window: Term) -> dict[str, dict[str, float]]:
    """What was reported up to the end of the window, from its start or when it was first known on."""
    found = {}
    for name, series in numbers.items():
        begin = max(window.start, series.first or 0)
        if begin < window.end:
            part = Term(begin, window.end)
            values = [value for _, _, value in series.steps(part)]
            found[name] = {"mean": series.mean(part), "least": min(values), "most": max(values), "last": values[-1]}
    return found


def _topologies(counts: Topologies) -> dict[str, Any]:
    return {"topologies": {**attrs.asdict(counts), "waiting": counts.waiting}} if counts.asked else {}


def _used(
    window: Term,
    capacities: Mapping[str, int],
    types: Mapping[str, Series],
    outages: Mapping[str, Outages],
    requests: RequestBook,
    site: str,
) -> dict[str, Any]:
    """What became of what was bought of each of a site's types, and of all where there is but one."""
    each = {}
    for kind, most in capacities.items():
        series, outage = types.get(kind, Series()), outages.get(kind, Outages())
        used, out = metrics.usage(series, most, window), metrics.usage(outage.out, most, window)
        each[kind] = {
            "capacity": most,
            "bought_unit_h": most * window.length / HOUR,
            "used": used,
            "out_of_service": out,
            "idle": None if used is None or out is None else max(0.0, 1 - used - out),
            "peak": series.peak(window),
            "failed": outage.failed,
            "repaired": outage.repaired,
            "requests": requests.by_site[site, kind].summary(),
        }
    if len(each) > 1:
        return {"types": each}
    return {**next(iter(each.values()), {"capacity": 0, "used": None, "idle": None, "peak": 0.0}), "types": each}


def _by_type(name: str, types: Mapping[str, Series]) -> dict[str, Series]:
    """Columns of a count: one for each type where there are several, which may be different things."""
    return {name if len(types) == 1 else f"{name}.{kind}": series for kind, series in types.items()}


def series_of(result: RunResult) -> dict[str, SignalSteps]:
    """The step functions of a run, by the names of their columns."""
    columns: dict[str, SignalSteps] = {}
    for name, series in result.leased.items():
        if name in result.signals:
            columns[f"{name}.demand"] = result.signals[name]
        if name in result.wanted:
            columns[f"{name}.wanted"] = result.wanted[name]
        columns.update(_by_type(f"{name}.leased", result.leased_by_type[name]) or {f"{name}.leased": series})
        columns[f"{name}.usable"] = result.usable[name]
    for name in result.in_use_by_type:
        columns.update(_by_type(f"{name}.in_use", result.in_use(name)) or {f"{name}.in_use": Series()})
        columns.update(_by_type(f"{name}.out_of_service", result.out_by_type[name]))
    for name, power in result.power.items():
        columns |= {f"{name}.{what}": series for what, series in power.items()}
    for name, numbers in result.reported.items():
        columns |= {f"{name}.reported.{what}": series for what, series in numbers.items()}
    return columns


def _write_series(result: RunResult, out: Path) -> None:
    interval = emulation_of(result.deployment).sample
    metrics.write_csv(out / _file(result.stem, "series"), series_of(result), result.window, interval)


def _kept_at(out: Path, stem: str) -> Path:
    return out / "kept" / f"{stem or 'run'}.json"


def _file(stem: str, what: str) -> str:
    return f"{stem}-{what}.csv" if stem else f"{what}.csv"
