"""Runs of several mappers at once: in processes of this machine, or on a Dask cluster.

A mapper that fails takes its own run with it and no other. One whose turn does not end is given up after ``patience``:
its process is killed (on a cluster, its task is cancelled and the rest waited for no longer).
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any, Final

import attrs

from leasekit.core.errors import LeasekitError
from leasekit.emulation.compare.drive import Share, drive
from leasekit.emulation.compare.measures import Measured, measure
from leasekit.emulation.compare.pool import Pool
from leasekit.emulation.compare.targets import Target
from leasekit.emulation.compare.works import Work
from leasekit.emulation.spread import Progress, dask_client

Tell = Callable[[str, str], None]
"""Told a mapper's label, and a line of what it does wrong."""
Result = Measured | LeasekitError

PATIENCE_S: Final = 60.0


def run_one(
    target: Target,
    works: Sequence[Work],
    pool: Pool,
    progress: Share | None = None,
    tell: Callable[[str], None] | None = None,
) -> Measured:
    """One mapper's run, in this process. Raises ``LeasekitError``."""
    outcome = drive(works, pool.units, target.make(), progress, pool.saving, tell)
    return measure(target.label, works, pool.units, outcome)


# -- processes ---------------------------------------------------------------------------------------------------------


@attrs.define(eq=False)
class _EngineChild:
    target: Target
    process: Any
    connection: Connection
    heard: float


def run_local(
    targets: Sequence[Target],
    works: Sequence[Work],
    pool: Pool,
    *,
    jobs: int,
    report: Progress | None = None,
    tell: Tell | None = None,
    patience: float = PATIENCE_S,
) -> list[Result]:
    """All targets, ``jobs`` at a time, each in a process of its own; results in the order of the targets."""
    context = multiprocessing.get_context("spawn")
    found: dict[str, Result] = {}
    left, running = list(targets), list[_EngineChild]()
    try:
        while left or running:
            while left and len(running) < max(1, jobs):
                running.append(_start(context, left.pop(0), works, pool))
            for child in _heard(running, patience, report, tell, found):
                running.remove(child)
    finally:
        for child in running:
            _end(child)
    return [found[target.label] for target in targets]


def _start(context: Any, target: Target, works: Sequence[Work], pool: Pool) -> _EngineChild:
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(theirs, target, works, pool), daemon=True)
    process.start()
    theirs.close()
    return _EngineChild(target, process, ours, time.monotonic())


def _work(connection: Connection, target: Target, works: Sequence[Work], pool: Pool) -> None:
    """What a child process does."""
    try:
        result: Result = run_one(
            target, works, pool, lambda share: connection.send(("share", share)),
            lambda text: connection.send(("wrong", text)),
        )  # fmt: skip
    except LeasekitError as error:
        result = error
    try:
        connection.send(("done", result if isinstance(result, Measured) else str(result)))
    except BrokenPipeError:
        return  # nobody waits for it any more


def _heard(
    running: Sequence[_EngineChild],
    patience: float,
    report: Progress | None,
    tell: Tell | None,
    found: dict[str, Result],
) -> Iterator[_EngineChild]:
    """Children that are over, with what they found; waits until one says something, or should have."""
    now = time.monotonic()
    limit = min(child.heard for child in running) + patience - now
    ready = set(wait([child.connection for child in running], timeout=max(0.0, limit)))
    for child in list(running):
        label = child.target.label
        if child.connection in ready:
            try:
                what, value = child.connection.recv()
            except EOFError:
                child.process.join()
                found[label] = LeasekitError(f"its process ended by itself, with status {child.process.exitcode}")
                yield child
                continue
            child.heard = time.monotonic()
            if what == "share":
                if report is not None:
                    report(label, value)
                continue
            if what == "wrong":
                if tell is not None:
                    tell(label, value)
                continue
            found[label] = value if isinstance(value, Measured) else LeasekitError(value)
        elif time.monotonic() - child.heard >= patience:
            found[label] = LeasekitError(f"a turn took longer than {patience:g} s; the run was given up")
        else:
            continue
        if report is not None:
            report(label, 1.0)
        _end(child)
        yield child


def _end(child: _EngineChild) -> None:
    child.connection.close()
    child.process.kill()
    child.process.join()


# -- a Dask cluster ----------------------------------------------------------------------------------------------------


def run_dask(
    targets: Sequence[Target], works: Sequence[Work], pool: Pool, *, scheduler: str, report: Progress | None = None
) -> list[Result]:
    """All targets as tasks of the Dask cluster at ``scheduler`` (``tcp://host:8786``), as its workers come free. What a
    mapper does wrong is only counted there.

    The workers need leasekit and the mappers installed. Raises ``LeasekitError`` where the cluster can't be had.
    """
    client = dask_client(scheduler, "--scheduler")
    found: dict[str, Result] = {}
    with client:
        (spread,) = client.scatter([list(works)], broadcast=True)
        tasks = {client.submit(_task, target, spread, pool, pure=False): target for target in targets}
        for task in importlib.import_module("distributed").as_completed(tasks):
            label = tasks[task].label
            raised = task.exception()
            value = task.result() if raised is None else f"{type(raised).__name__}: {raised}"
            found[label] = value if isinstance(value, Measured) else LeasekitError(str(value))
            if report is not None:
                report(label, 1.0)
    return [found[target.label] for target in targets]


def _task(target: Target, works: Sequence[Work], pool: Pool) -> Measured | str:
    """What a worker does; an error becomes text, so that every worker's pickle can carry it."""
    try:
        found: Measured = run_one(target, works, pool)
    except LeasekitError as error:
        return str(error)
    return found


def cpus() -> int:
    """The CPUs that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
