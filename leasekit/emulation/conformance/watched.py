"""The mapper under test, and what stands between it and its actor: a time limit, a look at what it says, a journal;
and what it was shown, in lines for who replays a case.
"""

from __future__ import annotations

import signal
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple

from leasekit.core.mappers import (
    AuthorityCycle,
    BrokerCycle,
    Demand,
    GuestCycle,
    LeaseView,
    PendingRequest,
    Source,
    Wake,
)
from leasekit.core.properties import Properties
from leasekit.core.time import HOUR, Instant, Term


def shown(cycle: Any) -> tuple[str, ...]:
    """A line for each request, demand or lease of a cycle, and one for each source that they can be filled from."""
    if isinstance(cycle, BrokerCycle):
        return tuple(_requests(cycle)) or ("nothing",)
    if isinstance(cycle, AuthorityCycle):
        return tuple(_demand(demand) for demand in cycle.demands) or ("nothing",)
    if isinstance(cycle, GuestCycle):
        return tuple(_lease(lease) for lease in cycle.leases) or ("nothing",)
    return ("nothing",)


def _requests(cycle: BrokerCycle) -> Iterator[str]:
    for lease in cycle.ended:
        yield f"ended {lease.lease} of {lease.holder} ({lease.why}): ran {_span(Term(lease.start, lease.end))}"
    members = [member for group in cycle.groups for member in group]
    for request in (*cycle.requests, *members):
        yield _request(request)
        for source in cycle.sources(request.type):
            yield f"  {_free(source, request)}"


def _request(request: PendingRequest) -> str:
    least = f"{request.min_units} to " if request.min_units < request.units else ""
    parts = [f"{request.op} {request.lease} of {request.holder}: {least}{request.units} {request.type}"]
    parts.append(_span(request.term))
    if request.latest_start > request.term.start:
        parts.append(f"may start up to {request.latest_start}")
    if request.group:
        parts.append(f"group {request.group}")
    if request.site:
        parts.append(f"at {request.site} only")
    if request.exclude_sites:
        parts.append(f"not at {', '.join(sorted(request.exclude_sites))}")
    if request.source:
        parts.append(f"from {request.source}, holds {request.held}")
    if request.priority:
        parts.append(f"priority {request.priority}")
    if request.preemptible:
        parts.append("preemptible")
    return ", ".join(parts)


def _free(source: Source, request: PendingRequest) -> str:
    if not source.term.contains(request.term):
        return f"{source.id}: delegated {_span(source.term)}"
    return f"{source.id}: {source.free.available(request.term)} of {source.units} free throughout its term"


def _demand(demand: Demand) -> str:
    parts = [f"{demand.op} {demand.lease} of {demand.holder}: {demand.units:+d} {demand.type}", _span(demand.term)]
    if demand.held:
        parts.append(f"has {', '.join(demand.held)}")
    if demand.wanted:
        parts.append(f"wants {', '.join(demand.wanted)}")
    return ", ".join([*parts, *_properties(demand.properties)])


def _lease(lease: LeaseView) -> str:
    state = lease.state if lease.pending in ("", "-") else f"{lease.state}/{lease.pending}"
    return ", ".join((f"{lease.id} {state}: {lease.units} of {lease.requested} {lease.type}", _span(lease.term)))


def _properties(properties: Properties) -> Iterator[str]:
    return (f"{key} = {value}" for key, value in sorted(properties.items()))


def _span(term: Term) -> str:
    return f"{term.start} to {term.end}"


TURNS_MAX: Final = 3_000
"""The most turns within an hour: a mapper that wants almost every tick of an idle world spins."""
BEAT_S: Final = 1.0
"""How often a case that goes on says that it does, in seconds."""
ASKED_MAX: Final = 2_000
"""The most leases that a guest's mapper may ask for within an hour in worlds of a few dozen units."""

VALID: Final = "decides only what was asked for"
OVERBOOKS: Final = "never overbooks"
GROUPS: Final = "respects groups"
WINDOWS: Final = "respects windows"
ANSWERS: Final = "decides every request that it can"
SURVIVES: Final = "survives whatever it is shown"
TIME: Final = "ends its turns in time"
SAME: Final = "decides the same for the same seed"


class Fault(NamedTuple):
    """What a mapper did wrong: against which check, and in words."""

    check: str
    text: str


class FaultFound(BaseException):
    """The first fault of a case. No ``Exception``, so that nothing on the way takes it for the mapper's own."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault)
        self.fault = fault


class _TookTooLong(BaseException):
    """Raised into a turn by its timer."""


class TurnRecord(NamedTuple):
    """One turn, for who replays a case."""

    now: Instant
    shown: tuple[str, ...]
    decided: tuple[str, ...]


Judge = Callable[[Any, Sequence[Any]], Fault | None]
"""Looks at a cycle, and then at what was decided in it."""


class Watched:
    """A mapper of any role. What is wrong with a turn is raised as :class:`FaultFound`.

    ``begin`` makes a judge for each cycle, before the mapper has touched what it is shown.
    """

    inline = True

    def __init__(
        self, mapper: Any, method: str, begin: Callable[[Any], Judge], limit: float, beat: Callable[[], None]
    ) -> None:
        self.journal: list[TurnRecord] = []
        self.keep_journal = False
        self.turns = 0
        self._digest = sha256()
        self._lately = Counter()
        self._call = getattr(mapper, method)
        self._begin = begin
        self._limit = limit
        self._beat = beat
        self._beaten = time.monotonic()
        setattr(self, method, self._turn)
        self._mapper = mapper

    def __getattr__(self, name: str) -> Any:
        """What else the mapper has, as its actor asks for it: ``unblock``, ``wants_usage``."""
        return getattr(self._mapper, name)

    @property
    def digest(self) -> str:
        """Of all that was decided so far."""
        return self._digest.hexdigest()

    def _turn(self, cycle: Any) -> list[Any]:
        judge = self._begin(cycle)
        self.turns += 1
        if time.monotonic() - self._beaten > BEAT_S:
            self._beaten = time.monotonic()
            self._beat()
        if self._lately.add(cycle.now, 1) > TURNS_MAX:
            text = f"had {TURNS_MAX} turns within an hour, up to {cycle.now} ms: it asks to be called all the time"
            raise FaultFound(Fault(TIME, text))
        budget = 1000 + 20 * _size(cycle)
        try:
            decisions = call(lambda: self._call(cycle), self._limit, budget, f"at {cycle.now} ms")
        except FaultFound as found:
            if self.keep_journal:
                self.journal.append(TurnRecord(cycle.now, shown(cycle), (found.fault.text,)))
            raise
        self._digest.update(repr((cycle.now, decisions)).encode())
        if self.keep_journal:
            self.journal.append(TurnRecord(cycle.now, shown(cycle), tuple(map(repr, decisions))))
        fault = judge(cycle, decisions)
        if fault is not None:
            raise FaultFound(fault)
        return decisions


def call(mapper: Callable[[], Iterable[Any]], limit: float, budget: int, where: str) -> list[Any]:
    """One turn: its decisions. Raises :class:`FaultFound` if it raises, takes longer than ``limit`` seconds, or decides
    without end.
    """
    try:
        with _timer(limit):
            found = mapper()
            try:
                decisions = list(islice(iter(found), budget + 1))
            except TypeError as error:
                if isinstance(found, Iterable):
                    raise
                text = f"returned {found!r:.60}, expected its decisions, as a list or by yield ({where})"
                raise FaultFound(Fault(VALID, text)) from error
    except _TookTooLong as error:
        text = f"a turn took longer than {limit:g} s and was given up ({where}{_line(error)})"
        raise FaultFound(Fault(TIME, text)) from error
    except (Exception, SystemExit) as error:
        # Foreign code: whatever it raises is its fault, and told.
        text = f"raised {type(error).__name__}: {error} ({where}{_line(error)})"
        raise FaultFound(Fault(SURVIVES, " ".join(text.split()))) from error
    if len(decisions) > budget:
        raise FaultFound(Fault(TIME, f"decided more than {budget} things in one turn, and was stopped ({where})"))
    return decisions


@contextmanager
def _timer(seconds: float) -> Iterator[None]:
    """Raise into this thread, the main one, after so long; again and again, if that is swallowed.

    It is processor time that counts, so that a busy machine is not held against a mapper; one that only waits is given
    four times as long.
    """

    def ring(_: int, frame: Any) -> None:
        raise _TookTooLong

    timers = ((signal.ITIMER_PROF, signal.SIGPROF, seconds), (signal.ITIMER_REAL, signal.SIGALRM, 4 * seconds))
    before = [(number, signal.signal(number, ring)) for _, number, _ in timers]
    for timer, _, limit in timers:
        signal.setitimer(timer, limit, limit)
    try:
        yield
    finally:
        for timer, _, _ in timers:
            signal.setitimer(timer, 0)
        for number, handler in before:
            signal.signal(number, handler)


def _line(error: BaseException) -> str:
    """Where in the mapper's own code it was: the last frame outside leasekit's emulation and the standard library."""
    here = str(Path(__file__).parent)
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(here)]
    return f"; {Path(frames[-1].filename).name}, line {frames[-1].lineno}" if frames else ""


def _size(cycle: Any) -> int:
    parts = (getattr(cycle, name, ()) for name in ("requests", "groups", "demands", "leases"))
    return sum(len(part) for part in parts)


def wakes(decisions: Sequence[Any]) -> bool:
    """Whether the mapper asks to be called again."""
    return any(isinstance(decision, Wake) for decision in decisions)


class Counter:
    """How many things happened within the last hour."""

    def __init__(self) -> None:
        self._hour: Instant = 0
        self._count = 0

    def add(self, now: Instant, count: int) -> int:
        """Count; returns how many there are in this hour."""
        if now // HOUR != self._hour:
            self._hour, self._count = now // HOUR, 0
        self._count += count
        return self._count
