"""Work spread over processes of this machine, or over a Dask cluster, with results as they come."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed, wait
from concurrent.futures.process import BrokenProcessPool
from threading import Thread
from typing import Any, TypeVar

from leasekit.core.errors import LeasekitError

W = TypeVar("W")
R = TypeVar("R")

Progress = Callable[[str, float], None]
"""Told what is done, and the share of it that is, from 0 to 1."""


def spread(job: Callable[[W], R], work: Sequence[W], *, jobs: int = 1, dask: str = "") -> Iterator[tuple[int, R]]:
    """What ``job`` makes of each piece of work, with its place, as each is done: on so many processes, or on the Dask
    cluster whose scheduler is at the address ``dask``. What is not done when the iterator is closed is ended.

    Raises what ``job`` raises, and ``LeasekitError`` for a process that ends by itself and a cluster that can't be had.
    """
    if dask:
        yield from _on_cluster(job, work, dask)
    elif jobs <= 1:
        yield from enumerate(map(job, work))
    else:
        yield from _in_processes(job, work, jobs)


def spread_over(
    job: Callable[[W], R], work: Sequence[W], jobs: int, name: str = "", progress: Progress | None = None
) -> Iterator[R]:
    """What ``job`` makes of each piece of work, in order, on so many processes, as :func:`spread`; ``progress`` is told
    by this ``name``.
    """
    early: dict[int, R] = {}
    following = 0
    for place, found in spread(job, work, jobs=jobs):
        early[place] = found
        while following in early:
            yield early.pop(following)
            following += 1
            if progress is not None:
                progress(name, following / len(work))


def _in_processes(job: Callable[[W], R], work: Sequence[W], jobs: int) -> Iterator[tuple[int, R]]:
    others = set(multiprocessing.active_children())
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(jobs, len(work)) or 1, context, initializer=_begin) as pool:
        places = {pool.submit(_stoppable, job, one): place for place, one in enumerate(work)}
        try:
            for done in as_completed(places):
                yield places[done], done.result()
        except BrokenProcessPool:
            raise LeasekitError(
                "jobs: a process ended by itself, for want of memory perhaps; a script that uses several must do so "
                "below if __name__ == '__main__':"
            ) from None
        finally:  # a process that is stopped still says so: one that is ended as it says something is waited for always
            for task in places:
                task.cancel()
            while left := [task for task in places if not task.done()]:
                for process in set(multiprocessing.active_children()) - others:
                    process.terminate()
                wait(left, timeout=0.5)


def _begin() -> None:
    """A terminal's Ctrl-C reaches all processes: who started these stops what they do. They end with who started them,
    were that killed: they hold both ends of the pipe by which they are given work, and would wait for ever.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    Thread(target=_end_with_starter, daemon=True).start()


def _end_with_starter() -> None:
    starter = multiprocessing.parent_process()
    assert starter is not None, "this is a process of a pool"
    starter.join()
    os._exit(1)


def _stoppable(job: Callable[[W], R], one: W) -> R:
    """The job, which a signal to end interrupts."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return job(one)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def dask_client(address: str, option: str) -> Any:
    """A client of the cluster, which an ``option`` names. Raises ``LeasekitError``."""
    try:
        dask = importlib.import_module("distributed")
    except ImportError as error:
        raise LeasekitError(
            f"{option}: {error.name} is not installed; install the extra: pip install 'leasekit[dask]'"
        ) from error
    try:
        return dask.Client(address, timeout="10s")
    except (OSError, ValueError) as error:
        raise LeasekitError(f"{option}: found {address!r}, where no Dask scheduler answers: {error}") from error


def _on_cluster(job: Callable[[W], R], work: Sequence[W], address: str) -> Iterator[tuple[int, R]]:
    client = dask_client(address, "--dask")
    with client:
        places = {client.submit(job, one, pure=False): place for place, one in enumerate(work)}
        for task in importlib.import_module("distributed").as_completed(places):
            yield places[task], task.result()
