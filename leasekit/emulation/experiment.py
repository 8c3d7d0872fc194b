"""Experiments: a deploy file run in virtual time, in all the variants that its ``[emulation]`` table names.

Each run builds its actors as a daemon would, puts them into a :class:`~leasekit.emulation.world.World`, lets the
horizon pass, and is summed up in one JSON object. The same file and seed give the same summary (but for what was
measured with a clock) and the same transition log, byte for byte.

What the summary says of a run. Units and their time are counted from the warm-up's end to the horizon; events,
messages, actions, transitions and flips from the beginning.

- of each guest ``mean_leased`` and ``peak_leased``: the units that it held, from the start of a term at the site to its
  end; ``fidelity``: the share of its terms in which it could use them (:func:`.metrics.fidelity`). ``types`` has the
  two of each type; they are not added where it leased units of several, which may be different things.
- of each guest that follows a load ``rmse``, ``unserved`` and ``idle``: its holdings against the load as the file has
  it, in whole units, before any filter. A filter reacts late on purpose, which is an error like any other here.
  ``rmse_wanted`` and ``unserved_wanted``: against what its mapper wanted to hold, after its filter. Errors are weighted
  by time, not sampled.
- of each guest that asked for topologies ``topologies``: how many, and how many of them were ``granted``, ``refused``,
  ``given_up`` by the guest, or ``waiting`` in the end; from the beginning.
- of each site ``capacity``, ``usage`` and ``peak``: units, and those in use, from setup to the end of teardown; of each
  of its ``types`` likewise, and not added where there are several.
- of each site that switches units ``energy``: :meth:`.energy.account.EnergyAccount.summary`.
- ``events``: how often an actor was woken with something due, ticks on which nothing was due left out; ``flips``:
  :attr:`.recorder.Recorder.flips`.
- ``measured``: ``alpha_ms`` is the real time of the run by the ticks in its horizon, whether they were executed or
  skipped (``ticks_executed`` says which). It holds all actors, their mappers, stores in memory, messages through the
  wire encoding, signatures if they are on, recording and writing the log; not reading traces, building and drawing.
  ``minimum_term_s``: what one term costs in real time, where the guests have one term: Shirako's minimum term.
  ``rss_peak_mb`` is the most that the process has held so far, earlier runs included.
"""

from __future__ import annotations

import gc
import json
import resource
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import attrs

from leasekit.actors.settings import AuthoritySettings, GuestSettings
from leasekit.config.build import BuiltActor, build
from leasekit.config.deployment import Deployment
from leasekit.config.emulation import RunSpec
from leasekit.config.load import load
from leasekit.config.traces import TraceMissing, data_dir
from leasekit.config.traces.places import missing_traces
from leasekit.core.errors import LeasekitError
from leasekit.core.leases.power import OPERATIONS, power_driver
from leasekit.core.signals import Signal
from leasekit.core.steps import Action
from leasekit.core.time import SECOND, Duration, Term, parse_duration
from leasekit.emulation import metrics
from leasekit.emulation.energy.account import EnergyAccount
from leasekit.emulation.metrics import Series
from leasekit.emulation.outputs import make_folder, writing
from leasekit.emulation.pictures import draw
from leasekit.emulation.recorder import Recorder, Topologies, total
from leasekit.emulation.run_result import RunResult
from leasekit.emulation.world import Outcome, World
from leasekit.policies.guest.load_following import LoadFollowing
from leasekit.policies.registry import find_mapper, make_mapper
from leasekit.stores.memory import MemoryStore

Progress = Callable[[str, float], None]
"""Told the run's name and the share of it that is done, from 0 to 1."""


def run_file(
    file: Path,
    out: Path | None = None,
    *,
    data: Path | None = None,
    synthetic: bool = False,
    seed: int | None = None,
    signatures: bool | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Run every variant of a deploy file's emulation; writes to ``out`` (if given) and returns the summary.

    ``out`` gets ``summary.json`` and ``measured.json``, per run the transition log and the series as CSV, and the
    pictures that the file asks for. ``seed`` and ``signatures`` override the file. Raises ``LeasekitError``
    (config, missing trace, a folder that can't be written) in words for a user.
    """
    deployment = load(file)
    changes: dict[str, Any] = {}
    if seed is not None:
        changes["emulation.seed"] = seed
    if signatures is not None:
        changes["deployment.signatures"] = signatures
    deployment = deployment.with_overrides(changes)
    if deployment.emulation is None:
        raise LeasekitError(f"{file}: found no [emulation] table, expected one that says how long to run")
    if out is not None:
        make_folder(out)
    runs = deployment.emulation.runs
    results = [
        run_one(deployment, spec, out, stem=stem, data=data, synthetic=synthetic, progress=progress)
        for spec, stem in zip(runs, file_stems([spec.name for spec in runs]), strict=True)
    ]
    summary: dict[str, Any] = {
        "file": file.name,
        "deployment": deployment.name,
        "seed": deployment.emulation.seed,
        "synthetic": synthetic,
        "signatures": deployment.signatures,
        "rmse": {result.spec.name: _rmse(result) for result in results},
        "runs": [dict(result.summary) for result in results],
    }
    if out is not None:
        with writing(out):
            summary["pictures"] = [path.name for path in draw(deployment, results, out)]
            _write_summary(summary, out)
    return summary


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
        (out / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def run_one(
    deployment: Deployment,
    spec: RunSpec,
    out: Path | None,
    *,
    stem: str = "",
    data: Path | None = None,
    synthetic: bool = False,
    progress: Progress | None = None,
) -> RunResult:
    """Run one variant over its horizon. ``stem`` begins the names of the files that it writes to ``out``."""
    varied = deployment.with_run(spec)
    emulation = varied.emulation
    assert emulation is not None, "a run is of a deployment with an emulation"
    actors = _build_all(varied, data, synthetic)
    with ExitStack() as stack:
        log = None
        if out is not None:
            stack.enter_context(writing(out))
            log = stack.enter_context((out / _file(stem, "transitions")).open("w", encoding="utf-8", newline=""))
        recorder = Recorder(
            {name: actor.role for name, actor in varied.actors.items()},
            log,
            leave={
                name: actor.settings.leave_time
                for name, actor in varied.actors.items()
                if isinstance(actor.settings, GuestSettings)
            },
            switched=[
                name
                for name, actor in varied.actors.items()
                if isinstance(actor.settings, AuthoritySettings)
                and any(group.power for group in actor.settings.inventory)
            ],
        )
        world = World(
            tick=emulation.tick,
            delay=lambda sender, receiver: emulation.message_latency,
            every_tick=emulation.every_tick,
            observe=recorder.observe,
            start=emulation.start,
        )
        for built in actors.values():
            world.add(built.actor, MemoryStore(keep_log=False), action_model(built))
        wall = _run(world, Term(emulation.start, emulation.start + emulation.horizon), spec.name, progress)
    window = Term(emulation.start + emulation.warmup, emulation.start + emulation.horizon)
    by_type, promised = recorder.leased_by_type, recorder.promised
    leased = {name: total(types) for name, types in by_type.items()}
    wanted = {name: load for name, built in actors.items() if (load := _wanted(built, window)) is not None}
    guests = {
        name: {
            **_held(window, by_type[name]),
            **_followed(window, leased[name], actors[name].signal, wanted.get(name)),
            "fidelity": metrics.fidelity(recorder.usable[name], promised[name], window),
            **_topologies(recorder.topologies[name]),
        }
        for name in leased
    }
    summary = summarise(varied, spec, world, recorder, window, wall, guests)
    result = RunResult(
        spec=spec, stem=stem, deployment=varied, summary=summary, recorder=recorder, leased=leased,
        leased_by_type=by_type, wanted=wanted, window=window, actors=actors,
    )  # fmt: skip
    if out is not None:
        with writing(out):
            _write_series(result, out)
    return result


def _build_all(deployment: Deployment, data: Path | None, synthetic: bool) -> dict[str, BuiltActor]:
    """All actors. Traces that are missing are told in one error."""
    actors: dict[str, BuiltActor] = {}
    missing: dict[str, None] = {}
    for name in deployment.actors:
        try:
            actors[name] = build(deployment, name, data=data, synthetic=synthetic, virtual=True)
        except TraceMissing as error:
            missing.update(dict.fromkeys(error.traces))
    if missing:
        raise missing_traces(list(missing), data_dir(data, config=deployment.file))
    return actors


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


def _run(world: World, term: Term, name: str, progress: Progress | None) -> float:
    """Let the term pass; returns the seconds of real time that it took."""
    # Records are not garbage: looking for cycles among them at every few hundred allocations is wasted time.
    thresholds = gc.get_threshold()
    gc.set_threshold(50_000, 50, 100)
    begin = time.perf_counter()
    steps = 50 if progress is not None else 1
    try:
        for step in range(1, steps + 1):
            world.run_until(term.start + term.length * step // steps - (step == steps))
            if progress is not None:
                progress(name, step / steps)
    finally:
        gc.set_threshold(*thresholds)
    return time.perf_counter() - begin


def action_model(built: BuiltActor) -> Callable[[Action], Outcome]:
    """The latency models that take the place of an actor's drivers, by resource type."""

    def model(action: Action) -> Outcome:
        of_type = built.model(power_driver(action.type) if action.op in OPERATIONS else action.type)
        if of_type is None:
            return Outcome(0, True, {}, "")
        outcome = of_type.outcome(action.op, action.unit, action.number)
        latency = of_type.latency(action.op, action.unit, action.number)
        return Outcome(latency, outcome.ok, dict(outcome.properties), outcome.reason)

    return model


def summarise(
    deployment: Deployment,
    spec: RunSpec,
    world: World,
    recorder: Recorder,
    window: Term,
    wall_s: float,
    guests: Mapping[str, Mapping[str, Any]],
) -> dict[str, Any]:
    """One run as plain data. Figures that a clock measured are under ``measured``: all others repeat for a seed."""
    emulation = deployment.emulation
    assert emulation is not None, "a run is of a deployment with an emulation"
    ticks = emulation.horizon // emulation.tick
    sites = {
        name: {
            **_used(window, capacities(deployment, name), types),
            **_energy(recorder.energy.get(name), capacity(deployment, name), window),
        }
        for name, types in recorder.in_use_by_type.items()
    }
    return {
        "run": spec.name,
        "series": spec.series,
        "set": dict(spec.changes),
        "horizon_ms": emulation.horizon,
        "ticks": ticks,
        "ticks_executed": "every" if emulation.every_tick else "only those with something due",
        "seed": emulation.seed,
        "signatures": deployment.signatures,
        "guests": guests,
        "sites": sites,
        "events": world.events,
        "messages": world.messages,
        "actions": world.actions,
        "transitions": recorder.transitions,
        "flips": recorder.flips,
        "measured": _measured(deployment, wall_s, emulation.horizon, ticks, recorder.flips),
    }


def _energy(account: EnergyAccount | None, capacity: int, window: Term) -> dict[str, Any]:
    found = None if account is None else account.summary(capacity, window)
    return {} if found is None else {"energy": found}


def _measured(deployment: Deployment, wall_s: float, horizon: Duration, ticks: int, flips: int) -> dict[str, Any]:
    term = _only_term(deployment)
    return {
        "wall_s": round(wall_s, 3),
        "alpha_ms": round(wall_s * 1000 / ticks, 6),
        "minimum_term_s": None if term is None else round(wall_s * term / horizon, 6),
        "flips_per_s": round(flips / wall_s, 1) if wall_s > 0 else None,
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


def _held(window: Term, types: Mapping[str, Series]) -> dict[str, Any]:
    """What a guest held of each type, and of all where there is but one."""
    each = {kind: {"mean_leased": one.mean(window), "peak_leased": one.peak(window)} for kind, one in types.items()}
    if len(each) > 1:
        return {"types": each}
    return {**next(iter(each.values()), {"mean_leased": 0.0, "peak_leased": 0.0}), "types": each}


def _followed(window: Term, leased: Series, demand: Signal | None, wanted: Signal | None) -> dict[str, float]:
    """What a guest held against the load that it follows, and against what its mapper wanted."""
    result: dict[str, float] = {}
    if demand is not None:
        result["mean_demand"] = demand.mean(window)
        result["rmse"] = metrics.rmse(demand, leased, window)
        result["unserved"] = metrics.unserved(demand, leased, window)
        result["idle"] = metrics.idle(demand, leased, window)
    if wanted is not None:
        result["mean_wanted"] = wanted.mean(window)
        result["rmse_wanted"] = metrics.rmse(wanted, leased, window)
        result["unserved_wanted"] = metrics.unserved(wanted, leased, window)
    return result


def _topologies(counts: Topologies) -> dict[str, Any]:
    return {"topologies": {**attrs.asdict(counts), "waiting": counts.waiting}} if counts.asked else {}


def _used(window: Term, capacities: Mapping[str, int], types: Mapping[str, Series]) -> dict[str, Any]:
    """What was in use of each of a site's types, and of all where there is but one."""
    each = {}
    for kind, most in capacities.items():
        series = types.get(kind, Series())
        each[kind] = {"capacity": most, "usage": metrics.usage(series, most, window), "peak": series.peak(window)}
    if len(each) > 1:
        return {"types": each}
    return {**next(iter(each.values()), {"capacity": 0, "usage": None, "peak": 0.0}), "types": each}


def capacities(deployment: Deployment, site: str) -> dict[str, int]:
    """How many units a site has of each type."""
    settings = deployment.actors[site].settings
    assert isinstance(settings, AuthoritySettings), "a site has an authority's settings"
    found: dict[str, int] = {}
    for group in settings.inventory:
        found[group.type] = found.get(group.type, 0) + len(group.names)
    return found


def capacity(deployment: Deployment, site: str) -> int:
    """How many units a site has, of all types."""
    return sum(capacities(deployment, site).values())


def _by_type(name: str, types: Mapping[str, Series]) -> dict[str, Series]:
    """Columns of a count: one for each type where there are several, which may be different things."""
    return {name if len(types) == 1 else f"{name}.{kind}": series for kind, series in types.items()}


def _write_series(result: RunResult, out: Path) -> None:
    recorder, emulation = result.recorder, result.deployment.emulation
    assert emulation is not None, "a run is of a deployment with an emulation"
    columns: dict[str, Any] = {}
    for name, series in result.leased.items():
        signal = result.actors[name].signal
        if signal is not None:
            columns[f"{name}.demand"] = signal
        if name in result.wanted:
            columns[f"{name}.wanted"] = result.wanted[name]
        columns.update(_by_type(f"{name}.leased", result.leased_by_type[name]) or {f"{name}.leased": series})
        columns[f"{name}.usable"] = recorder.usable[name]
    for name in recorder.in_use_by_type:
        columns.update(_by_type(f"{name}.in_use", result.in_use(name)) or {f"{name}.in_use": Series()})
    for name, account in recorder.energy.items():
        if account.switched:
            columns[f"{name}.off"], columns[f"{name}.suspended"] = account.off, account.suspended
    metrics.write_csv(out / _file(result.stem, "series"), columns, result.window, emulation.sample)


def _file(stem: str, what: str) -> str:
    return f"{stem}-{what}.csv" if stem else f"{what}.csv"
