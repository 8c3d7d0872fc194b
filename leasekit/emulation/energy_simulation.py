"""A site of cores that come and go, under the energy manager's rule: months of a job log in seconds.

Decisions are those of :class:`~leasekit.policies.authority.energy_plan.PowerManager`, the code that switches a site's
units; what is simulated is what happens to cores in between. A request gets the most efficient cores that are on and
idle; where these are too few it waits until those that are coming on, or are switched on for it, are there. One that
was not made in advance leaves idle cores to those that were, and begin soon. Cores are all alike, and numbered from the
most efficient one on.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

import attrs
from sortedcontainers import SortedList

from leasekit.core.time import MINUTE, SECOND, Duration, Instant, Term
from leasekit.core.timetable import Timetable
from leasekit.emulation.energy_metrics import Delayed
from leasekit.emulation.energy_requests import Request
from leasekit.emulation.metrics import Series
from leasekit.policies.authority.energy_forecast import Forecast
from leasekit.policies.authority.energy_plan import Fleet, PowerManager, PowerSettings

FORGET_EVERY: int = 512
"""After how many decisions the timetable forgets what is over."""
FEW: int = 8


@attrs.frozen(kw_only=True)
class Latencies:
    """How long a core needs to come on, in ms. Going off takes no time: it is off from the decision on."""

    boot: Duration = 3 * MINUTE
    resume: Duration = 15 * SECOND


@attrs.frozen(kw_only=True)
class Course:
    """What became of a site: cores in use (with those that requests wait for), off and suspended over time, the
    requests that had to wait for cores to come on (``late`` of them known as far ahead as the manager looks), how many
    waited because all cores were taken, and how often a core was switched."""

    used: Series
    off: Series
    suspended: Series
    delayed: Sequence[Delayed]
    queued: int
    switched: int
    late: int


class EnergySimulation:
    """One site, one strategy."""

    def __init__(
        self,
        requests: Sequence[Request],
        capacity: int,
        settings: PowerSettings,
        forecast: Forecast,
        latencies: Latencies,
        *,
        reservations: bool,
    ) -> None:
        """``requests`` are in order of their start. With ``reservations`` the site knows of each from its
        submission."""
        self._requests = requests
        self._capacity = capacity
        self._settings = settings
        self._latencies = latencies
        self._manager: PowerManager[int] = PowerManager(settings, forecast)
        self._idle = list(range(capacity))
        self._off: SortedList = SortedList()
        self._suspended: SortedList = SortedList()
        self._coming: list[tuple[Instant, int]] = []
        self._ends: list[tuple[Instant, int, list[int]]] = []
        self._waiting: deque[Request] = deque()
        self._in_use = 0
        self._series = (Series(), Series(), Series())
        self._delayed: list[Delayed] = []
        self._queued = self._switched = self._number = self._late = 0
        self._known = _Known(requests, capacity) if reservations else None

    def run(self) -> Course:
        """Let it all happen."""
        requests, decide = self._requests, self._settings.decide
        start = requests[0].start
        for core in self._idle:
            self._manager.checks.idle(core, start)
        self._record(start)
        decision, index = -(-start // decide) * decide, 0
        while index < len(requests) or self._ends or self._waiting:
            arrival = requests[index].start if index < len(requests) else None
            end = self._ends[0][0] if self._ends else None
            now = min(at for at in (arrival, end, decision) if at is not None)
            # At one instant: what ends, then what begins, then the decision.
            if end == now:
                self._end(now)
            elif arrival == now:
                self._arrive(requests[index], now)
                index += 1
            else:
                self._decide(now)
                decision += decide
        used, off, suspended = self._series
        return Course(
            used=used, off=off, suspended=suspended, delayed=self._delayed, queued=self._queued,
            switched=self._switched, late=self._late,
        )  # fmt: skip

    # -- requests ----------------------------------------------------------------------------------------------

    def _arrive(self, request: Request, now: Instant) -> None:
        if self._waiting or request.cores > self._capacity - self._in_use:
            self._waiting.append(request)
            self._queued += 1
            return
        self._begin(request, now)

    def _begin(self, request: Request, now: Instant) -> None:
        self._come_on(now)
        held = 0
        if self._known is not None and not self._known.begin(request, now):
            held = self._known.held(now, now + self._settings.lookahead)
        spare = max(0, len(self._idle) + len(self._coming) - held)
        cores = self._idle[: min(request.cores, spare)]
        del self._idle[: len(cores)]
        busy = self._manager.checks.busy
        for core in cores:
            busy(core, now)
        ready = now
        if len(cores) < request.cores:
            ready = self._fetch(request.cores - len(cores), now, cores, spare - len(cores))
        if ready > now:
            self._delayed.append(Delayed(request.cores, ready - now, request.duration))
            self._late += now - request.submit >= self._settings.lookahead
        self._in_use += request.cores
        self._number += 1
        end = ready + request.duration
        heapq.heappush(self._ends, (end, self._number, cores))
        if self._known is not None and end > request.start + request.duration:
            self._known.extend(request, end)
        self._record(now)

    def _fetch(self, count: int, now: Instant, cores: list[int], spare: int) -> Instant:
        """Put so many cores more into ``cores``: up to ``spare`` that are coming on, then some switched on now.
        Returns when all are on.
        """
        ready = now
        while count and self._coming and spare > 0:
            ready, core = heapq.heappop(self._coming)
            cores.append(core)
            count, spare = count - 1, spare - 1
        for core in list(self._dark(count)):
            ready = max(ready, self._switch_on(core, now))
            cores.append(core)
            count -= 1
        # There are no others: a reservation that loses them gets what is given back until then.
        while count and self._coming:
            at, core = heapq.heappop(self._coming)
            ready, count = max(ready, at), count - 1
            cores.append(core)
        for core in self._idle[:count]:
            self._manager.checks.busy(core, now)
            cores.append(core)
        del self._idle[:count]
        return ready

    def _end(self, now: Instant) -> None:
        _, _, cores = heapq.heappop(self._ends)
        self._in_use -= len(cores)
        self._free(cores, now)
        while self._waiting and self._waiting[0].cores <= self._capacity - self._in_use:
            self._begin(self._waiting.popleft(), now)
        self._record(now)

    def _free(self, cores: Sequence[int], now: Instant) -> None:
        idle = self._manager.checks.idle
        for core in cores:
            idle(core, now)
        if len(cores) < FEW:
            for core in cores:
                insort(self._idle, core)
        else:
            self._idle.extend(cores)
            self._idle.sort()

    # -- power -------------------------------------------------------------------------------------------------

    def _dark(self, count: int) -> Iterator[int]:
        """The cores that are best switched on."""
        return (core for core, _ in zip(chain(self._suspended, self._off), range(count), strict=False))

    def _switch_on(self, core: int, now: Instant) -> Instant:
        self._manager.woken(core, now)
        self._switched += 1
        if core in self._suspended:
            self._suspended.remove(core)
            return now + self._latencies.resume
        self._off.remove(core)
        return now + self._latencies.boot

    def _come_on(self, now: Instant) -> None:
        while self._coming and self._coming[0][0] <= now:
            at, core = heapq.heappop(self._coming)
            self._free((core,), at)

    def _decide(self, now: Instant) -> None:
        self._come_on(now)
        dark = len(self._off) + len(self._suspended)
        soon = now + self._settings.lookahead
        fleet = Fleet(
            in_use=self._in_use,
            reserved=0 if self._known is None else self._known.peak(now, soon),
            on=self._capacity - dark,
            idle=reversed(self._idle),
            dark=chain(self._suspended, self._off),
            next_due=None if self._known is None else self._known.first_after(soon),
        )
        switching = self._manager.decide(now, fleet)
        if not (switching.on or switching.off):
            return
        for core in switching.on:
            heapq.heappush(self._coming, (self._switch_on(core, now), core))
        self._switch_off(switching.off, suspend=switching.suspend)
        self._record(now)

    def _switch_off(self, cores: Iterable[int], *, suspend: bool) -> None:
        gone = set(cores)
        if gone:
            (self._suspended if suspend else self._off).update(gone)
            self._idle = [core for core in self._idle if core not in gone]
            self._switched += len(gone)

    def _record(self, now: Instant) -> None:
        used, off, suspended = self._series
        used.append(now, self._in_use)
        off.append(now, len(self._off))
        suspended.append(now, len(self._suspended))


class _Known:
    """What a site knows of requests that have been submitted: how many cores they need when."""

    def __init__(self, requests: Sequence[Request], capacity: int) -> None:
        self._by_submit = sorted(requests, key=lambda request: request.submit)
        self._table = Timetable(capacity)
        self._capacity = capacity
        self._starts: SortedList = SortedList()
        self._next = 0
        self._asked = 0
        self._keys: dict[Request, list[int]] = {}

    def _learn(self, now: Instant) -> None:
        coming = self._by_submit
        while self._next < len(coming) and coming[self._next].submit <= now:
            request = coming[self._next]
            term = Term(request.start, request.start + request.duration)
            if term.end > now:
                self._table.reserve(self._next, request.cores, term, force=True)
                self._keys.setdefault(request, []).append(self._next)
                if request.submit < request.start:
                    self._starts.add((request.start, request.submit, request.cores))
            self._next += 1
        self._asked += 1
        if self._asked % FORGET_EVERY == 0:
            self._table.forget_before(now)

    def peak(self, now: Instant, until: Instant) -> int:
        """The most cores at once that are spoken for in the meantime."""
        self._learn(now)
        return min(self._capacity, self._capacity - self._table.available(Term(now, until)))

    def first_after(self, instant: Instant) -> Instant | None:
        """The first start that is known, at ``instant`` or later."""
        index = self._starts.bisect_left((instant,))
        return self._starts[index][0] if index < len(self._starts) else None

    def begin(self, request: Request, now: Instant) -> bool:
        """A request begins. Returns whether it is one that was made in advance."""
        self._learn(now)
        if request.submit >= request.start:
            return False
        self._starts.discard((request.start, request.submit, request.cores))
        return True

    def extend(self, request: Request, end: Instant) -> None:
        """A request that waited goes on for longer than it was to."""
        keys = self._keys.get(request)
        if keys and keys[-1] in self._table:
            self._table.change(keys.pop(), term=Term(request.start, end), force=True)

    def held(self, now: Instant, until: Instant) -> int:
        """How many cores requests need that were made in advance, and that begin in the meantime."""
        return sum(cores for _, _, cores in self._starts.irange((now,), (until,)))
