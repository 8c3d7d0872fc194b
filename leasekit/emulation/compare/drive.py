"""Leads one workload through one mapper, by the interface that a broker calls it by.

There is one delegation of so many units. The mapper has a turn whenever work waits and something has changed: work
was submitted, a lease has ended before its term, or the mapper asked to be called (a term that ends in time is no news
to a broker, so it calls nobody: a mapper that waits for it must ask). All that happens at one instant comes before the
turn of that instant.

A grant is a reservation over the estimate, at once or for later, and stands. Work that is done earlier ends its lease;
what is left of the term is free from then on, for those that have no grant yet. Each decision is checked as a broker
checks it; the first that can't be carried out ends the run with an error.

Best effort can be suspended (``cycle.suspends``; Haizea has it): by a grant of a shorter term than was asked for, or by
a ``Preempt`` of what runs. Its last moments go to saving it. The rest is asked for anew when that term ends, by a
request that names what it goes on from (``resumes``) and needs time to be brought back (``prepare``), at the same site.
"""

from __future__ import annotations

import heapq
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import attrs

from leasekit.core.drivers import SAVES
from leasekit.core.errors import LeasekitError
from leasekit.core.mappers import (
    BrokerCycle,
    BrokerMapper,
    Defer,
    Grant,
    GrantedLease,
    PendingRequest,
    Preempt,
    Reject,
    Source,
    Wake,
)
from leasekit.core.properties import EMPTY
from leasekit.core.time import DAY, INSTANT_MAX, Instant, Term
from leasekit.core.timetable import Shortfall, Timetable
from leasekit.emulation.compare.parts import NO_SITES, NODE, SITE, Parts, Saving, work_of
from leasekit.emulation.compare.queue import Waiting
from leasekit.emulation.compare.works import BEST_EFFORT, Work
from leasekit.policies.broker.ledger import Ledger

REFUSED: Final = -1
CAN_SAVE: Final = {SAVES: "true"}
TELL_EVERY_S: Final = 0.2
USAGE_KEPT: Final = 400 * DAY

Progress = Callable[[float], None]
"""Told the share of the workload that has been submitted, from 0 to 1."""


@attrs.frozen(kw_only=True)
class Outcome:
    """What became of each piece of work, in the order of the workload: ``starts`` in ms (:data:`REFUSED`: never).

    ``reasons`` of those refused, by position. ``turns`` is how often the mapper was called, ``deepest`` how many waited
    at most, ``seconds`` the real time of it all, ``cpu_seconds`` the processor's, whatever else the machine does.
    ``booked_ahead`` is how many starts were granted for later, ``suspended`` when those ran, by position, that were
    suspended on the way, ``suspensions`` how often that was.
    """

    starts: array[int]
    reasons: dict[int, str]
    turns: int
    decisions: int
    deepest: int
    seconds: float
    cpu_seconds: float
    booked_ahead: int = 0
    suspensions: int = 0
    suspended: Mapping[int, Sequence[Term]] = attrs.Factory(dict)


class MapperFault(LeasekitError):
    """The mapper decided what can't be carried out, or raised."""


def drive(
    works: Sequence[Work],
    units: int,
    mapper: BrokerMapper,
    progress: Progress | None = None,
    saving: Saving | None = None,
) -> Outcome:
    """Run a workload, sorted by submission, on ``units``. Raises :class:`MapperFault`."""
    if units < 1:
        raise LeasekitError(f"nodes: found {units}, expected at least 1")
    return _Run(works, units, mapper, saving or Saving()).run(progress)


class _Run:
    """The workload on its way through the mapper."""

    def __init__(self, works: Sequence[Work], units: int, mapper: BrokerMapper, saving: Saving) -> None:
        self._works = works
        self._units = units
        self._mapper = mapper
        self._table = Timetable(units)
        self._span = Term(0, INSTANT_MAX)
        self._waiting = Waiting()
        wants_usage = getattr(mapper, "wants_usage", False) is True
        self._ledger = Ledger(USAGE_KEPT) if wants_usage else None
        self._latest: list[tuple[Instant, str]] = []
        self._ends: list[tuple[Instant, int]] = []
        self._deferred: dict[str, str] = {}
        self._starts = array("q", [REFUSED]) * len(works)
        self._reasons: dict[int, str] = {}
        self._turns = self._decisions = self._deepest = self._ahead = self._arrivals = 0
        self._parts = Parts(works, saving)
        self._again = False

    def run(self, progress: Progress | None) -> Outcome:
        """From the first submission to the last decision."""
        begin = told = time.perf_counter()
        begin_cpu = time.process_time()
        works, ends, waiting = self._works, self._ends, self._waiting
        count, arrived = len(works), 0
        wake: Instant | None = None
        while arrived < count or waiting or self._parts:
            now = works[arrived].submit if arrived < count else INSTANT_MAX
            if waiting or self._parts:
                if ends and ends[0][0] < now:
                    now = ends[0][0]
                if wake is not None and wake < now:
                    now = wake
            if now >= INSTANT_MAX:
                break  # some wait, and nothing more will happen
            changed = self._end(now)
            while arrived < count and works[arrived].submit == now:
                self._arrive(arrived, works[arrived])
                arrived += 1
                changed = True
            if waiting and (changed or wake == now):
                wake = self._turn(now)
                while self._again and waiting:
                    wake = self._turn(now)
            if progress is not None and time.perf_counter() - told > TELL_EVERY_S:
                told = time.perf_counter()
                progress(arrived / count)
        self._give_up()
        self._parts.close()
        if progress is not None:
            progress(1.0)
        return Outcome(
            starts=self._starts, reasons=self._reasons, turns=self._turns, decisions=self._decisions,
            deepest=self._deepest, seconds=time.perf_counter() - begin, cpu_seconds=time.process_time() - begin_cpu,
            booked_ahead=self._ahead, suspensions=self._parts.suspensions, suspended=self._parts.stretches,
        )  # fmt: skip

    # -- what happens ------------------------------------------------------------------------------------------

    def _arrive(self, number: int, work: Work) -> None:
        lease, start = str(number), work.start
        suspends = work.kind == BEST_EFFORT
        properties = self._parts.first if suspends else EMPTY
        self._wait(
            PendingRequest(
                lease, work.holder, "new", NODE, work.units, work.units, Term(start, start + work.estimate),
                work.latest, work.latest, work.submit, "", NO_SITES, "", 0, "", 0, suspends, properties,
            ),
        )  # fmt: skip

    def _wait(self, request: PendingRequest) -> None:
        self._arrivals += 1
        self._waiting.add(self._arrivals, request)
        latest = request.latest_start
        if latest + request.term.length < INSTANT_MAX:
            heapq.heappush(self._latest, (latest, request.lease))

    def _end(self, now: Instant) -> bool:
        """Take what is done by now out of the timetable; says whether that is news: a lease ended before its term, or
        the rest of what was suspended waits.

        All of the reservation goes, its past too: nobody asks about the past, and so it leaves no trace.
        """
        ends, table, news = self._ends, self._table, False
        while ends and ends[0][0] <= now:
            at, number = heapq.heappop(ends)
            if self._parts.moved(number, at):
                continue
            lease = self._parts.lease(number)
            held = table.get(lease)
            assert held is not None, "what ends is booked until then"
            table.release(lease)
            units, (_, end) = held
            if at < end:
                news = True
                if self._ledger is not None:
                    self._ledger.add(self._works[number].holder, NODE, -units, Term(at, end))
            rest = self._parts.ended(number, at, self._starts[number])
            if rest is not None:
                self._wait(rest)
                news = True
        return news

    def _turn(self, now: Instant) -> Instant | None:
        """One turn; returns when the mapper wants the next one, never at this instant again."""
        waiting = self._waiting
        self._again = False
        waiting.at(now)
        self._expire(now)
        if not waiting:
            return None
        self._turns += 1
        self._deepest = max(self._deepest, len(waiting))
        wake: Instant | None = None
        for decision in self._decided(self._cycle(now)):
            self._decisions += 1
            if isinstance(decision, Grant):
                self._grant(now, decision)
            elif isinstance(decision, Defer):
                self._deferred[decision.lease] = decision.reason
            elif isinstance(decision, Reject):
                self._refuse(decision.lease, decision.reason)
            elif isinstance(decision, Wake):
                wake = max(now + 1, decision.at if wake is None else min(wake, decision.at))
            elif isinstance(decision, Preempt):
                self._suspend(now, decision)
            else:
                raise MapperFault(f"decided {decision!r:.80}, which a workload has no use for")
        return wake

    def _cycle(self, now: Instant) -> BrokerCycle:
        return BrokerCycle(now, self._waiting, (), self._sources(), self._granted, self._ledger, True)

    def _granted(self, type_: str) -> Sequence[GrantedLease]:
        """What runs or is to run; best effort can be suspended."""
        found = []
        for key in self._table if type_ == NODE else ():
            held = self._table.get(key)
            assert held is not None, "it is one of its keys"
            lease, (units, term) = str(key), held
            work = self._works[work_of(lease)]
            suspends = work.kind == BEST_EFFORT
            properties = self._parts.first if suspends else EMPTY
            found.append(GrantedLease(lease, work.holder, SITE, NODE, units, term, suspends, 0, properties))
        return found

    def _decided(self, cycle: BrokerCycle) -> Sequence[object]:
        """All decisions of a turn, before any is carried out, as an actor has them."""
        try:
            return list(self._mapper.allocate(cycle))
        except Exception as error:
            # Foreign code: whatever it raises is told, with where.
            raise MapperFault(
                f"raised {type(error).__name__}: {error} (at {cycle.now} ms, {len(cycle.requests)} waiting)"
            ) from error

    def _sources(self) -> Callable[[str], Sequence[Source]]:
        views: list[Source] = []

        def sources(type_: str) -> Sequence[Source]:
            if type_ != NODE:
                return ()
            if not views:
                views.append(Source(SITE, SITE, NODE, self._units, self._span, CAN_SAVE, self._table.overlay()))
            return views

        return sources

    def _expire(self, now: Instant) -> None:
        """A request that can't start any more is refused, as a broker does at its deadline."""
        latest = self._latest
        while latest and latest[0][0] < now:
            lease = heapq.heappop(latest)[1]
            if self._waiting.find(lease) is not None:
                self._refuse(lease, self._deferred.get(lease, "") or "not granted in time")

    def _grant(self, now: Instant, grant: Grant) -> None:
        lease, source, units, term = grant[:4]
        request = self._waiting.find(lease)
        if request is None:
            raise MapperFault(f"granted {lease!r:.60} at {now} ms, for which no request waits (any more)")
        if source != SITE:
            raise MapperFault(f"granted request {lease} from source {source!r:.60}, there is only {SITE!r}")
        start, end = term
        asked = request.term.length
        if units != request.units or (end - start != asked and not self._parts.may_be(request, end - start)):
            raise MapperFault(
                f"granted request {lease} {units} units for {end - start} ms, it asked for {request.units} "
                f"for {asked} ms"
            )
        if not request.term.start <= start <= request.latest_start or grant.booked.start < now:
            raise MapperFault(
                f"granted request {lease} a start at {start}, outside its window, {request.term.start} to "
                f"{request.latest_start}, or prepared in the past (it is {now})"
            )
        try:
            self._table.reserve(lease, units, grant.booked)
        except Shortfall as short:
            raise MapperFault(
                f"overbooked: request {lease} was granted {units} units over {tuple(term)}, but {short.free} were free "
                f"over {tuple(short.term)}"
            ) from short
        self._waiting.remove(lease)
        self._deferred.pop(lease, None)
        number = work_of(lease)
        if self._starts[number] == REFUSED:
            self._starts[number] = start
        self._ahead += grant.booked.start > now
        if self._ledger is not None:
            self._ledger.add(request.holder, NODE, units, grant.booked)
        heapq.heappush(self._ends, (self._parts.begin(number, lease, term, asked), number))

    def _suspend(self, now: Instant, decision: Preempt) -> None:
        """Cut a lease short, so that it is saved by then."""
        lease, at = decision.lease, decision.at
        held = self._table.get(lease)
        if held is None:
            raise MapperFault(f"suspended {lease!r:.60} at {now} ms, which has no units (any more)")
        units, term = held
        number = work_of(lease)
        work = self._works[number]
        if work.kind != BEST_EFFORT:
            raise MapperFault(f"suspended lease {lease}, which is not best effort")
        cut = self._parts.cut(number, now, at, self._starts[number])
        if cut is None or not at < term.end:
            raise MapperFault(
                f"suspended lease {lease} by {at}: it holds its units over {tuple(term)}, it is {now}, and saving it "
                f"takes {self._parts.saving.time} ms"
            )
        self._table.end(lease, at)
        if self._ledger is not None:
            self._ledger.add(work.holder, NODE, -units, Term(at, term.end))
        heapq.heappush(self._ends, (cut, number))
        self._again = True

    def _refuse(self, lease: str, reason: str) -> None:
        if self._waiting.find(lease) is None:
            raise MapperFault(f"refused {lease!r:.60}, for which no request waits (any more)")
        number = work_of(lease)
        if self._starts[number] != REFUSED:
            reason = f"suspended, and not resumed: {reason}"
            self._starts[number] = REFUSED
            self._parts.lost(number)
        self._reasons[number] = reason
        self._waiting.remove(lease)
        self._deferred.pop(lease, None)

    def _give_up(self) -> None:
        """Requests that still wait when nothing more can happen are refused."""
        for lease in [request.lease for request in self._waiting]:
            self._refuse(lease, self._deferred.get(lease, "") or "never decided")
