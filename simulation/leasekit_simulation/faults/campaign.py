"""Many seeds, in several processes, until all have run or time is up, and what they came to together; and a failure
made small: operations and faults are dropped, and what is special put aside, for as long as it fails in the same way.

What a run's rates have brought about is first listed fault by fault, so that each can be dropped by itself; then all
operations of an actor or of a kind are dropped, and halves, quarters and single ones, as delta debugging does.
"""

from __future__ import annotations

import itertools
import re
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from typing import Any, Final, TypeVar

import attrs

from leasekit.core.time import HOUR
from leasekit_simulation.faults import marks
from leasekit_simulation.faults.run import Failure, Result, simulate
from leasekit_simulation.faults.scenario import Operation, Rates, Scenario, draw

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


RUNS_MAX: Final = 600
_VARYING: Final = re.compile(r"\b[0-9a-f]{16}-\d+\b|\b[0-9a-f]{8}\b|'[^']*'|\d+")

T = TypeVar("T")


def same_failure(one: Failure, other: Failure | None) -> bool:
    """Whether two failures are of one kind and say the same but for names and numbers."""
    return other is not None and (one.kind, _shape(one.text)) == (other.kind, _shape(other.text))


def _shape(text: str) -> str:
    return _VARYING.sub("#", text)[:80]


class Shrinker:
    """Makes one scenario small."""

    def __init__(
        self, scenario: Scenario, failure: Failure, *, runs_max: int = RUNS_MAX,
        progress: Callable[[int, int, int], None] = lambda runs, operations, faults: None,
    ) -> None:  # fmt: skip
        """``progress`` is told how many runs there were, and how many operations and faults are left."""
        self.scenario = scenario
        self.failure = failure
        self.runs = 0
        self._runs_max = runs_max
        self._progress = progress

    def go(self) -> Scenario:
        """The smallest scenario that was found within the runs allowed."""
        self._list_faults()
        self._try(
            attrs.evolve(
                self.scenario, operations=tuple(d for d in self.scenario.operations if d.at <= self.failure.at)
            )
        )
        self._drop_alike(lambda operation: operation.who)
        self._drop_alike(lambda operation: operation.do)
        before = -1
        while before != self._size() and self.runs < self._runs_max:
            before = self._size()
            self._drop(
                self.scenario.operations, lambda operations: attrs.evolve(self.scenario, operations=tuple(operations))
            )
            if self.scenario.faults is not None:
                self._drop(self.scenario.faults, lambda faults: attrs.evolve(self.scenario, faults=tuple(faults)))
            self._simplify()
        return self.scenario

    def _size(self) -> int:
        return len(self.scenario.operations) + len(self.scenario.faults or ())

    def _list_faults(self) -> None:
        result = simulate(self.scenario)
        self.runs += 1
        if self.scenario.faults is None and result.failure is not None:
            self._try(attrs.evolve(self.scenario, faults=tuple(result.injected), rates=Rates()))

    def _try(self, candidate: Scenario) -> bool:
        """Whether it fails in the same way; then it is taken."""
        if self.runs >= self._runs_max:
            return False
        self.runs += 1
        failure = simulate(candidate).failure
        if not same_failure(self.failure, failure):
            return False
        assert failure is not None
        self.scenario, self.failure = candidate, failure
        self._progress(self.runs, len(candidate.operations), len(candidate.faults or ()))
        return True

    def _drop_alike(self, likeness: Callable[[Operation], str]) -> None:
        """Drop all operations of an actor, or of a kind, at once: the more there are, the sooner."""
        counts = Counter(map(likeness, self.scenario.operations))
        for key, _ in counts.most_common():
            left = tuple(operation for operation in self.scenario.operations if likeness(operation) != key)
            self._try(attrs.evolve(self.scenario, operations=left))

    def _drop(self, items: Sequence[T], build: Callable[[Sequence[T]], Scenario]) -> None:
        """Drop pieces of a list, ever smaller ones."""
        left = list(items)
        size = len(left) // 2 or 1
        while left:
            start = 0
            while start < len(left) and self.runs < self._runs_max:
                candidate = left[:start] + left[start + size :]
                if self._try(build(candidate)):
                    left = candidate
                else:
                    start += size
            if size == 1 or self.runs >= self._runs_max:
                return
            size //= 2

    def _simplify(self) -> None:
        """Put aside what makes the run special, one thing after the other."""
        scenario = self.scenario
        plain: list[dict[str, Any]] = [
            {"channels": False}, {"signed": False}, {"stores": {}}, {"clocks": {}}, {"bad_units": ()}, {"mappers": {}},
        ]  # fmt: skip
        for change in plain:
            if any(getattr(scenario, key) != value for key, value in change.items()):
                self._try(attrs.evolve(self.scenario, **change))
        used = {operation.who for operation in self.scenario.operations}
        for guest in self.scenario.guests:
            if guest not in used and len(self.scenario.guests) > 1:
                self._try(_without(self.scenario, guest))


def _without(scenario: Scenario, guest: str) -> Scenario:
    """The scenario without a guest, and without anything that is said of it."""
    return attrs.evolve(
        scenario,
        guests=tuple(name for name in scenario.guests if name != guest),
        mappers={name: kind for name, kind in scenario.mappers.items() if name != guest},
        clocks={name: clock for name, clock in scenario.clocks.items() if name != guest},
        stores={name: store for name, store in scenario.stores.items() if name != guest},
    )
