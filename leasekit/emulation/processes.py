"""Runs of an experiment in several processes."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

W = TypeVar("W")
R = TypeVar("R")


def spread_over(job: Callable[[W], R], work: Sequence[W], jobs: int) -> Iterator[R]:
    """What ``job`` makes of each piece of work, in order, on so many processes."""
    if jobs <= 1:
        yield from map(job, work)
        return
    with multiprocessing.get_context("spawn").Pool(min(jobs, len(work))) as pool:
        yield from pool.imap(job, work)
