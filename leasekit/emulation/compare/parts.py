"""Work that runs in parts: how long it has run, when it ends, and what is asked for again after a suspension."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Final, NamedTuple

import attrs

from leasekit.core.mappers import PendingRequest
from leasekit.core.properties import Properties
from leasekit.core.time import INSTANT_MAX, SECOND, Duration, Instant, Term, format_duration
from leasekit.emulation.compare.works import Work

NODE: Final = "node"
SITE: Final = "nodes"
NO_SITES: Final[frozenset[str]] = frozenset()


def work_of(lease: str) -> int:
    """The position of the work that a lease is for: ``12``, or ``12+1`` after it was suspended once."""
    return int(lease.partition("+")[0])


@attrs.frozen(kw_only=True)
class Saving:
    """What it takes to suspend work, and to resume it: the memory of a unit (MB) over the rate (MB/s) at which it is
    written and read. All units of a lease are saved at the same time.
    """

    memory: float = attrs.field(default=1024.0, validator=attrs.validators.gt(0))
    rate: float = attrs.field(default=32.0, validator=attrs.validators.gt(0))

    @property
    def time(self) -> Duration:
        """Milliseconds, at least 1."""
        return max(1, round(self.memory / self.rate * SECOND))


class Pool(NamedTuple):
    """What a workload runs on: how many units, and how long it takes to suspend one."""

    units: int
    saving: Saving = Saving()


class Parts:
    """When each piece of work that runs ends, and how far those are that were suspended.

    True while a lease runs that ends before its work is done.
    """

    def __init__(self, works: Sequence[Work], saving: Saving) -> None:
        self.saving = saving
        self.first: Properties = {"suspend": format_duration(saving.time)}
        self.stretches: dict[int, list[Term]] = {}
        self.suspensions = 0
        self._works = works
        self._ends = array("q", [-1]) * len(works)
        self._done: dict[int, Duration] = {}
        self._begins: dict[int, Instant] = {}
        # How much work those get done that are going to be suspended.
        self._useful: dict[int, Duration] = {}

    def __bool__(self) -> bool:
        return bool(self._useful)

    def may_be(self, request: PendingRequest, length: Duration) -> bool:
        """Whether a term of that length is a part of what a request asks for."""
        return request.preemptible and self.saving.time < length < request.term.length

    def lease(self, number: int) -> str:
        """The lease that a piece of work has now, or has had last."""
        stretches = self.stretches.get(number)
        return f"{number}+{len(stretches)}" if stretches else str(number)

    def moved(self, number: int, at: Instant) -> bool:
        """Whether work doesn't end at ``at`` any more, as was thought before."""
        return self._ends[number] != at

    def begin(self, number: int, lease: str, term: Term, asked: Duration) -> Instant:
        """Work begins, or goes on, over a term out of ``asked`` ms; returns when its lease ends."""
        if "+" in lease:
            self._begins[number] = term.start
        return self._until(number, term, 0 if term.length == asked else self.saving.time)

    def cut(self, number: int, now: Instant, at: Instant, start: Instant) -> Instant | None:
        """What runs has to be saved by ``at``; returns when its lease ends, or None if there is no time for that."""
        begin = self._begins.get(number, start)
        if at - self.saving.time < max(now, begin):
            return None
        if self._ends[number] <= at and number not in self._useful:
            return self._ends[number]
        return self._until(number, Term(begin, at), self.saving.time)

    def ended(self, number: int, at: Instant, start: Instant) -> PendingRequest | None:
        """A lease has ended; returns the request for what is left of its work, if any is."""
        useful = self._useful.pop(number, None)
        begin = self._begins.pop(number, start)
        self._ends[number] = -1
        if useful is None:
            if number in self._done:
                self.stretches[number].append(Term(begin, at))
            return None
        before = self.lease(number)
        self._done[number] = done = self._done.get(number, 0) + useful
        self.stretches.setdefault(number, []).append(Term(begin, begin + useful))
        self.suspensions += 1
        work, again = self._works[number], self.first["suspend"]
        latest = min(work.latest + done, INSTANT_MAX - work.estimate)
        return PendingRequest(
            self.lease(number), work.holder, "new", NODE, work.units, work.units, Term(at, at + work.estimate - done),
            latest, latest, at, SITE, NO_SITES, "", 0, "", 0, True,
            {"suspend": again, "prepare": again, "resumes": before},
        )  # fmt: skip

    def close(self) -> None:
        """Nothing more is decided: what runs goes on to its end."""
        for number, begin in self._begins.items():
            self.stretches[number].append(Term(begin, self._ends[number]))

    def lost(self, number: int) -> None:
        """Work that was suspended is not resumed: what it has done is of no use."""
        del self.stretches[number]

    def _until(self, number: int, term: Term, saving: Duration) -> Instant:
        left = self._works[number].run - self._done.get(number, 0)
        useful = term.length - saving
        if left <= useful:
            self._useful.pop(number, None)
            end = term.start + left
        else:
            self._useful[number] = useful
            end = term.end
        self._ends[number] = end
        return end
