"""Experiments: a deploy file run in virtual time, in all the variants that its ``[emulation]`` table names.

Each run builds its actors as a daemon would, puts them into a :class:`~leasekit.emulation.world.World`, lets the
horizon pass, and is summed up in one JSON object. The same file and seed give the same summary (but for what was
measured with a clock) and the same transition log, byte for byte.
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

from leasekit.actors.settings import AuthoritySettings
from leasekit.config.build import BuiltActor, build
from leasekit.config.deployment import Deployment
from leasekit.config.emulation import RunSpec
from leasekit.config.load import load
from leasekit.core.errors import LeasekitError
from leasekit.core.steps import Action
from leasekit.core.time import SECOND, Term
from leasekit.emulation import metrics
from leasekit.emulation.pictures import draw
from leasekit.emulation.recorder import Recorder
from leasekit.emulation.world import Outcome, World
from leasekit.stores.memory import MemoryStore

Progress = Callable[[str, float], None]
"""Told the run's name and the share of it that is done, from 0 to 1."""


@attrs.frozen(kw_only=True)
class RunResult:
    """One run: its summary, and the series that pictures are drawn from."""

    spec: RunSpec
    deployment: Deployment
    summary: Mapping[str, Any]
    recorder: Recorder
    window: Term
    actors: Mapping[str, BuiltActor]


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
    (config, missing trace) in words for a user.
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
        out.mkdir(parents=True, exist_ok=True)
    results = [
        run_one(deployment, spec, out, data=data, synthetic=synthetic, progress=progress)
        for spec in deployment.emulation.runs
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
        summary["pictures"] = [path.name for path in draw(deployment, results, out)]
        _write_summary(summary, out)
    return summary


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
    data: Path | None = None,
    synthetic: bool = False,
    progress: Progress | None = None,
) -> RunResult:
    """Run one variant over its horizon."""
    varied = deployment.with_run(spec)
    emulation = varied.emulation
    assert emulation is not None, "a run is of a deployment with an emulation"
    actors = {name: build(varied, name, data=data, synthetic=synthetic, virtual=True) for name in varied.actors}
    with ExitStack() as stack:
        log = None
        if out is not None:
            log = stack.enter_context((out / f"{_stem(spec)}transitions.csv").open("w", encoding="utf-8", newline=""))
        recorder = Recorder({name: actor.role for name, actor in varied.actors.items()}, log)
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
    summary = summarise(varied, spec, world, recorder, window, wall, actors)
    result = RunResult(spec=spec, deployment=varied, summary=summary, recorder=recorder, window=window, actors=actors)
    if out is not None:
        _write_series(result, out)
    return result


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
        of_type = built.model(action.type)
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
    actors: Mapping[str, BuiltActor],
) -> dict[str, Any]:
    """One run as plain data. Figures that a clock measured are under ``measured``: all others repeat for a seed."""
    emulation = deployment.emulation
    assert emulation is not None, "a run is of a deployment with an emulation"
    ticks = emulation.horizon // emulation.tick
    guests = {name: _guest(name, recorder, window, actors[name], emulation.sample) for name in recorder.leased}
    sites = {
        name: {
            "capacity": capacity(deployment, name),
            "usage": metrics.usage(series, capacity(deployment, name), window),
            "peak": series.peak(window),
        }
        for name, series in recorder.in_use.items()
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
        "measured": {
            "wall_s": round(wall_s, 3),
            "alpha_ms": round(wall_s * 1000 / ticks, 6),
            "flips_per_s": round(recorder.flips / wall_s, 1) if wall_s > 0 else None,
            "emulated_per_real": round(emulation.horizon / SECOND / wall_s, 0) if wall_s > 0 else None,
            "rss_peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
        },
    }


def _guest(name: str, recorder: Recorder, window: Term, built: BuiltActor, sample: int) -> dict[str, Any]:
    leased, usable = recorder.leased[name], recorder.usable[name]
    result: dict[str, Any] = {
        "fidelity": metrics.fidelity(usable, leased, window),
        "mean_leased": leased.mean(window),
        "peak_leased": leased.peak(window),
    }
    if built.signal is not None:
        result["mean_demand"] = built.signal.mean(window)
        result["rmse"] = metrics.rmse(built.signal, leased, window, sample)
        result["unserved"] = metrics.unserved(built.signal, leased, window)
        result["idle"] = metrics.idle(built.signal, leased, window)
    return result


def capacity(deployment: Deployment, site: str) -> int:
    """How many units a site has, of all types."""
    settings = deployment.actors[site].settings
    assert isinstance(settings, AuthoritySettings), "a site has an authority's settings"
    return sum(len(group.names) for group in settings.inventory)


def _write_series(result: RunResult, out: Path) -> None:
    recorder, emulation = result.recorder, result.deployment.emulation
    assert emulation is not None, "a run is of a deployment with an emulation"
    columns: dict[str, Any] = {}
    for name, series in recorder.leased.items():
        signal = result.actors[name].signal
        if signal is not None:
            columns[f"{name}.demand"] = signal
        columns[f"{name}.leased"], columns[f"{name}.usable"] = series, recorder.usable[name]
    columns.update({f"{name}.in_use": series for name, series in recorder.in_use.items()})
    metrics.write_csv(out / f"{_stem(result.spec)}series.csv", columns, result.window, emulation.sample)


def _stem(spec: RunSpec) -> str:
    name = "".join(c if c.isalnum() or c in "-_." else "_" for c in spec.name)
    return f"{name}-" if name else ""
