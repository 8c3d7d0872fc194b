"""A site of cores that come and go, under the energy manager's rule: months of a job log in seconds.

Decisions are those of :class:`~leasekit.policies.authority.energy_plan.PowerManager`, the code that switches a site's
units; what is simulated is what happens to cores in between. A request gets the most efficient cores that are on and
idle; where these are too few it waits until those that are coming on, or are switched on for it, are there. One that
was not made in advance leaves idle cores to those that were, and begin soon. Cores are all alike, and numbered from the
most efficient one on.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Sequence
from itertools import chain

import attrs

from leasekit.core.time import MINUTE, SECOND, Duration, Instant
from leasekit.emulation.energy.metrics import Delayed
from leasekit.emulation.energy.requests import Request
from leasekit.emulation.metrics import Series
from leasekit.policies.authority.energy_forecast import Forecast
from leasekit.policies.authority.energy_plan import Fleet, PowerManager, PowerSettings

FEW: int = 8
"""Up to how many cores are put one by one among those that are in order."""


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
        self._off: list[int] = []
        self._suspended: list[int] = []
        self._coming: list[tuple[Instant, int]] = []
        self._ends: list[tuple[Instant, int, list[int]]] = []
        self._waiting: deque[Request] = deque()
        self._in_use = 0
        self._series = (Series(), Series(), Series())
        self._recorded = (-1, -1, -1)
        self._delayed: list[Delayed] = []
        self._queued = self._switched = self._number = self._late = 0
        self._known = _Known(requests, capacity) if reservations else None

    def run(self) -> Course:
        """Let it all happen."""
        requests, decide = self._requests, self._settings.decide
        start = requests[0].start
        self._manager.checks.all_idle(self._idle, start)
        self._record(start)
        decision, index = -(-start // decide) * decide, 0
        ends = self._ends
        arrival: Instant | None = start
        while arrival is not None or ends or self._waiting:
            # At one instant: what ends, then what begins, then the decision.
            until = decision if arrival is None or decision < arrival else arrival
            if ends and ends[0][0] <= until:
                self._end(ends[0][0])
            elif arrival == until:
                self._arrive(requests[index], until)
                index += 1
                arrival = requests[index].start if index < len(requests) else None
            else:
                self._decide(decision)
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
        self._manager.checks.all_busy(cores, now)
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
            self._known.extend(request, now, end)
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
        for at, dark in self._wake(count, now):
            if dark:
                ready, count = max(ready, at), count - len(dark)
                cores += dark
        # There are no others: a reservation that loses them gets what is given back until then.
        while count and self._coming:
            at, core = heapq.heappop(self._coming)
            ready, count = max(ready, at), count - 1
            cores.append(core)
        if count:
            self._manager.checks.all_busy(self._idle[:count], now)
            cores += self._idle[:count]
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
        self._manager.checks.all_idle(cores, now)
        _put(self._idle, cores)

    # -- power -------------------------------------------------------------------------------------------------

    def _wake(self, count: int, now: Instant) -> tuple[tuple[Instant, list[int]], ...]:
        """Begin to switch on so many cores, or what there is, the best first. Returns which are on when."""
        suspended = self._suspended[:count]
        off = self._off[: count - len(suspended)]
        del self._suspended[: len(suspended)], self._off[: len(off)]
        for core in chain(suspended, off):
            self._manager.woken(core, now)
        self._switched += len(suspended) + len(off)
        return (now + self._latencies.resume, suspended), (now + self._latencies.boot, off)

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
            next_due=self._known.first_after(soon) if self._known and self._settings.suspend_below else None,
        )
        switching = self._manager.decide(now, fleet)
        if not (switching.on or switching.off):
            return
        # The manager switches on the first of those that it is shown.
        for at, cores in self._wake(len(switching.on), now):
            for core in cores:
                heapq.heappush(self._coming, (at, core))
        self._switch_off(switching.off, suspend=switching.suspend)
        self._record(now)

    def _switch_off(self, cores: Sequence[int], *, suspend: bool) -> None:
        if cores:
            gone = set(cores)
            _put(self._suspended if suspend else self._off, cores)
            self._idle = [core for core in self._idle if core not in gone]
            self._switched += len(gone)

    def _record(self, now: Instant) -> None:
        values = self._in_use, len(self._off), len(self._suspended)
        if values != self._recorded:
            for series, value, before in zip(self._series, values, self._recorded, strict=True):
                if value != before:
                    series.append(now, value)
            self._recorded = values


def _put(cores: list[int], more: Sequence[int]) -> None:
    """Adds more to cores that are in order."""
    if len(more) < FEW:
        for core in more:
            insort(cores, core)
    else:
        cores.extend(more)
        cores.sort()


class _Known:
    """What a site knows of requests that have been submitted: how many cores they need when.

    Asked for ever later instants. What lies ahead is a short list, as only what was submitted is in it.
    """

    def __init__(self, requests: Sequence[Request], capacity: int) -> None:
        self._to_come = sorted(requests, key=lambda request: request.submit, reverse=True)
        self._capacity = capacity
        self._needed = 0
        self._changes: list[tuple[Instant, int]] = []
        self._starts: list[tuple[Instant, int]] = []

    def _learn(self, now: Instant) -> None:
        changes, to_come = self._changes, self._to_come
        while to_come and to_come[-1].submit <= now:
            start, submit, duration, cores = to_come.pop()
            insort(changes, (start, cores))
            insort(changes, (start + duration, -cores))
            if submit < start:
                insort(self._starts, (start, cores))
        past = bisect_right(changes, (now, self._capacity))
        if past:
            self._needed += sum(change for _, change in changes[:past])
            del changes[:past]

    def peak(self, now: Instant, until: Instant) -> int:
        """The most cores at once that are spoken for in the meantime."""
        self._learn(now)
        most = needed = self._needed
        # At one instant what ends is listed before what begins.
        for at, change in self._changes:
            if at >= until:
                break
            needed += change
            most = max(most, needed)
        return min(self._capacity, most)

    def first_after(self, instant: Instant) -> Instant | None:
        """The first start that is known, at ``instant`` or later."""
        index = bisect_left(self._starts, (instant, 0))
        return self._starts[index][0] if index < len(self._starts) else None

    def begin(self, request: Request, now: Instant) -> bool:
        """A request begins. Returns whether it is one that was made in advance."""
        self._learn(now)
        if request.submit >= request.start:
            return False
        del self._starts[bisect_left(self._starts, (request.start, request.cores))]
        return True

    def extend(self, request: Request, now: Instant, end: Instant) -> None:
        """A request that waited, and begins now, goes on for longer than it was to."""
        was = request.start + request.duration
        if was <= now:
            self._needed += request.cores
        else:
            del self._changes[bisect_left(self._changes, (was, -request.cores))]
        insort(self._changes, (end, -request.cores))

    def held(self, now: Instant, until: Instant) -> int:
        """How many cores requests need that were made in advance, and that begin in the meantime."""
        starts = self._starts
        return sum(cores for _, cores in starts[bisect_left(starts, (now, 0)) : bisect_left(starts, (until, 0))])
