"""Many seeds, in several processes, until all have run or time is up; and what they came to together."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from typing import Any, Final

import attrs

from leasekit.core.time import HOUR
from leasekit_simulation.faults import marks
from leasekit_simulation.faults.run import Failure, Result, simulate
from leasekit_simulation.faults.scenario import draw

AHEAD: Final = 4
"""How many seeds are handed out for each process beyond the one that it runs."""

Progress = Callable[["Summary"], None]


@attrs.define(kw_only=True)
class Summary:
    """What the seeds of a campaign came to. ``seconds`` is by the clock on the wall, ``lease_ms`` and ``virtual_ms``
    are simulated time.
    """

    first: int = 0
    last: int = -1
    seeds: int = 0
    steps: int = 0
    events: int = 0
    requests: int = 0
    lease_ms: int = 0
    virtual_ms: int = 0
    seconds: float = 0.0
    met: Counter[str] = attrs.Factory(Counter)
    failures: list[Failure] = attrs.Factory(list)

    def add(self, result: Result) -> None:
        """Count one run."""
        self.seeds += 1
        self.last = max(self.last, result.seed)
        self.steps += result.steps
        self.events += result.events
        self.requests += result.requests
        self.lease_ms += result.lease_ms
        self.virtual_ms += result.virtual_ms
        self.met.update(result.met)
        if result.failure is not None:
            self.failures.append(result.failure)

    @property
    def never_met(self) -> list[str]:
        """Marks that should have been met by now."""
        return marks.never_met(self.met, self.seeds)

    @property
    def fine(self) -> bool:
        """Whether all went well, and enough was met."""
        return not self.failures and not self.never_met and not marks.unexpected(self.met)

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        seconds = max(self.seconds, 1e-9)
        return {
            "seeds": self.seeds,
            "first": self.first,
            "last": self.last,
            "failures": [attrs.asdict(failure) for failure in self.failures],
            "never_met": self.never_met,
            "met_unexpectedly": marks.unexpected(self.met),
            "steps": self.steps,
            "requests": self.requests,
            "requests_per_seed": round(self.requests / max(self.seeds, 1), 1),
            "lease_hours": round(self.lease_ms / HOUR, 1),
            "virtual_hours": round(self.virtual_ms / HOUR, 1),
            "seconds": round(self.seconds, 2),
            "steps_per_second": round(self.steps / seconds),
            "lease_hours_per_second": round(self.lease_ms / HOUR / seconds, 2),
            "met": {name: self.met[name] for name in sorted(self.met)},
        }


def run_seed(seed: int) -> Result:
    """One seed; the keys of its small faults stay behind, for there are many."""
    result = simulate(draw(seed))
    result.injected = ()
    return result


def campaign(
    first: int,
    last: int | None,
    *,
    jobs: int = 1,
    minutes: float | None = None,
    failures_max: int | None = None,
    progress: Progress = lambda summary: None,
) -> Summary:
    """Run the seeds from ``first`` to ``last`` (None: on and on), until ``minutes`` are over or ``failures_max`` of
    them have failed. ``progress`` is called after each. An interrupt ends it with what there is.
    """
    summary = Summary(first=first)
    began = time.monotonic()
    seeds: Iterable[int] = itertools.count(first) if last is None else range(first, last + 1)
    deadline = None if minutes is None else began + minutes * 60
    results = _in_turn(seeds, deadline) if jobs <= 1 else _in_processes(seeds, deadline, jobs)
    try:
        for result in results:
            summary.add(result)
            summary.seconds = time.monotonic() - began
            progress(summary)
            if failures_max is not None and len(summary.failures) >= failures_max:
                break
    except KeyboardInterrupt:
        pass  # what has run counts
    finally:
        results.close()
    summary.seconds = time.monotonic() - began
    summary.failures.sort(key=lambda failure: failure.seed)
    return summary


def _in_turn(seeds: Iterable[int], deadline: float | None) -> Generator[Result, None, None]:
    for seed in seeds:
        if deadline is not None and time.monotonic() >= deadline:
            return
        yield run_seed(seed)


def _in_processes(seeds: Iterable[int], deadline: float | None, jobs: int) -> Generator[Result, None, None]:
    left = iter(seeds)
    with ProcessPoolExecutor(jobs) as pool:
        running: set[Future[Result]] = {pool.submit(run_seed, seed) for seed in itertools.islice(left, jobs * AHEAD)}
        try:
            while running:
                done, running = wait(running, return_when=FIRST_COMPLETED)
                if deadline is None or time.monotonic() < deadline:
                    running |= {pool.submit(run_seed, seed) for seed in itertools.islice(left, len(done))}
                for future in done:
                    yield future.result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
