"""Make a failure small: drop deeds and faults, and put aside what is special, for as long as it fails in the same way.

What a run's rates have brought about is first listed fault by fault, so that each can be dropped by itself; then all
deeds of an actor or of a kind are dropped, and halves, quarters and single ones, as delta debugging does.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import attrs

from leasekit_simulation.faults.run import Failure, simulate
from leasekit_simulation.faults.scenario import Deed, Rates, Scenario

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
        progress: Callable[[int, int, int], None] = lambda runs, deeds, faults: None,
    ) -> None:  # fmt: skip
        """``progress`` is told how many runs there were, and how many deeds and faults are left."""
        self.scenario = scenario
        self.failure = failure
        self.runs = 0
        self._runs_max = runs_max
        self._progress = progress

    def go(self) -> Scenario:
        """The smallest scenario that was found within the runs allowed."""
        self._list_faults()
        self._try(attrs.evolve(self.scenario, deeds=tuple(d for d in self.scenario.deeds if d.at <= self.failure.at)))
        self._drop_alike(lambda deed: deed.who)
        self._drop_alike(lambda deed: deed.do)
        before = -1
        while before != self._size() and self.runs < self._runs_max:
            before = self._size()
            self._drop(self.scenario.deeds, lambda deeds: attrs.evolve(self.scenario, deeds=tuple(deeds)))
            if self.scenario.faults is not None:
                self._drop(self.scenario.faults, lambda faults: attrs.evolve(self.scenario, faults=tuple(faults)))
            self._simplify()
        return self.scenario

    def _size(self) -> int:
        return len(self.scenario.deeds) + len(self.scenario.faults or ())

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
        self._progress(self.runs, len(candidate.deeds), len(candidate.faults or ()))
        return True

    def _drop_alike(self, likeness: Callable[[Deed], str]) -> None:
        """Drop all deeds of an actor, or of a kind, at once: the more there are, the sooner."""
        counts = Counter(map(likeness, self.scenario.deeds))
        for key, _ in counts.most_common():
            left = tuple(deed for deed in self.scenario.deeds if likeness(deed) != key)
            self._try(attrs.evolve(self.scenario, deeds=left))

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
        used = {deed.who for deed in self.scenario.deeds}
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
