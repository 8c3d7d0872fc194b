"""What is looked at in each turn before the actor looks: what an actor can't know, and what it says less clearly.

That a decision can be carried out is the production actor's to say: it checks every one, and :mod:`.stage` hears its
complaints. Judges say first what has a plain name (nobody asked, twice, in the past), and they know what could have
been decided: with only one request waiting and enough free for it, there is no policy to plead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from leasekit.core.mappers import (
    Assign,
    AuthorityCycle,
    AuthorityDecision,
    BrokerCycle,
    BrokerDecision,
    Cap,
    Demand,
    Grant,
    GrantGroup,
    GuestCycle,
    Migrate,
    PendingRequest,
    Place,
    Power,
    Preempt,
    Price,
    Refuse,
    Reject,
    Release,
    ReportNumber,
    RequestLease,
    Wake,
)
from leasekit.core.time import Instant, Term
from leasekit.emulation.conformance.watched import (
    ANSWERS,
    ASKED_MAX,
    GROUPS,
    OVERBOOKS,
    TIME,
    VALID,
    WINDOWS,
    Counter,
    Fault,
    Judge,
    wakes,
)


class BrokerJudge:
    """Of a broker's mapper. ``overdue`` are the leases that could have been granted when nothing else waited."""

    def __init__(self) -> None:
        self.overdue: dict[str, str] = {}

    def begin(self, cycle: BrokerCycle) -> Judge:
        """Before the turn: what could be granted, if one request or one group waits alone."""
        lone = self._lone(cycle)
        return lambda cycle, decisions: self._wrong(cycle, decisions) or self._missed(cycle, lone, decisions)

    @staticmethod
    def _lone(cycle: BrokerCycle) -> tuple[str, str]:
        if len(cycle.requests) == 1 and not cycle.groups:
            return cycle.requests[0].lease, _fits(cycle, cycle.requests[0])
        if len(cycle.groups) == 1 and not cycle.requests:
            return cycle.groups[0][0].lease, _group_fits(cycle, cycle.groups[0])
        return "", ""

    @staticmethod
    def _wrong(cycle: BrokerCycle, decisions: Sequence[Any]) -> Fault | None:
        waiting = {request.lease for request in cycle.requests}
        members = {member.lease: member.group for group in cycle.groups for member in group}
        granted: set[str] = set()
        for decision in decisions:
            if not isinstance(decision, BrokerDecision):
                return _no_decision(decision)
            if isinstance(decision, ReportNumber | Wake | Preempt | Price):
                continue
            if isinstance(decision, Grant) and decision.lease in members:
                group = members[decision.lease]
                return Fault(GROUPS, f"granted {decision.lease} by itself: group {group!r} is granted whole or not")
            grants = decision.grants if isinstance(decision, GrantGroup) else (decision,)
            if not isinstance(grants, tuple):
                return _no_decision(decision)
            for grant in grants:
                lease = getattr(grant, "lease", None)
                if lease not in waiting and lease not in members:
                    return Fault(VALID, f"decided {lease!r:.60} at {cycle.now} ms, which nobody asked for")
                if isinstance(grant, Grant):
                    fault = _wrong_grant(cycle.now, grant, granted)
                    if fault is not None:
                        return fault
                    granted.add(grant.lease)
        return None

    def _missed(self, cycle: BrokerCycle, lone: tuple[str, str], decisions: Sequence[Any]) -> Fault | None:
        lease, fits = lone
        if not fits or any(isinstance(decision, Grant | GrantGroup) for decision in decisions):
            self.overdue.pop(lease, None)
            return None
        refusal = next((decision for decision in decisions if isinstance(decision, Reject)), None)
        if refusal is not None:
            why = f"{refusal.reason!r:.100}"
            return Fault(ANSWERS, f"refused {lease} ({why}) at {cycle.now} ms; nothing else waited, and {fits}")
        text = f"left {lease} undecided at {cycle.now} ms; nothing else waited, and {fits}"
        if not wakes(decisions):
            return Fault(ANSWERS, f"{text}; it asked for no Wake")
        self.overdue[lease] = text
        return None


def _wrong_grant(now: Instant, grant: Grant, granted: set[str]) -> Fault | None:
    if grant.lease in granted:
        return Fault(VALID, f"granted {grant.lease} twice in one turn, at {now} ms")
    term = grant.term
    if isinstance(term, Term) and type(term.start) is int and term.start < now:
        return Fault(WINDOWS, f"granted {grant.lease} a term that began in the past, {tuple(term)}: it is {now}")
    return None


def _no_decision(decision: Any) -> Fault:
    return Fault(VALID, f"returned {decision!r:.80}, which is no decision of this role's mapper")


def _fits(cycle: BrokerCycle, request: PendingRequest) -> str:
    """In words, that the request could be granted at once; empty where it could not, or is a modify."""
    if request.op == "modify":
        return ""
    for source in cycle.sources(request.type):
        allowed = source.id == request.source if request.op == "extend" else request.site in ("", source.site)
        if not allowed or source.site in request.exclude_sites or not source.term.contains(request.term):
            continue
        free = source.free.available(request.term)
        if free >= request.min_units:
            return f"units free for it at {source.site}: {free}"
    return ""


def _group_fits(cycle: BrokerCycle, group: Sequence[PendingRequest]) -> str:
    """The same for a group that fits into one source whole, at the earliest start."""
    start = max(member.term.start for member in group)
    lengths = {member.term.length for member in group}
    if len(lengths) != 1 or start > min(member.latest_start for member in group) or len({m.type for m in group}) != 1:
        return ""
    term = Term(start, start + lengths.pop())
    total = sum(member.min_units for member in group)
    for source in cycle.sources(group[0].type):
        allowed = all(m.site in ("", source.site) and source.site not in m.exclude_sites for m in group)
        if allowed and source.term.contains(term) and source.free.available(term) >= total:
            return f"units free for all of its group at {source.site}: {total}"
    return ""


class AuthorityJudge:
    """Of an authority's mapper."""

    def __init__(self) -> None:
        self.overdue: dict[str, str] = {}

    def begin(self, cycle: AuthorityCycle) -> Judge:
        """Before the turn: how many units could be given, if one lease waits alone."""
        able = self._able(cycle, cycle.demands[0]) if len(cycle.demands) == 1 else 0
        return lambda cycle, decisions: self._wrong(cycle, decisions) or self._missed(cycle, able, decisions)

    @staticmethod
    def _able(cycle: AuthorityCycle, demand: Demand) -> int:
        """How many units the demand could get; negative if it must give some up."""
        if demand.units < 0:
            return demand.units
        named = set(demand.wanted) - set(demand.held)
        free = sum(1 for unit in cycle.free(demand.type) if not named or unit.id in named)
        return min(free, demand.units)

    @staticmethod
    def _wrong(cycle: AuthorityCycle, decisions: Sequence[Any]) -> Fault | None:
        leases = {demand.lease for demand in cycle.demands}
        decided: set[str] = set()
        given: dict[str, str] = {}
        for decision in decisions:
            if not isinstance(decision, AuthorityDecision):
                return _no_decision(decision)
            if isinstance(decision, Migrate | Cap | Power | ReportNumber | Wake):
                continue
            lease = decision.lease
            if lease not in leases:
                return Fault(VALID, f"decided {lease!r:.60} at {cycle.now} ms, which nobody asked for")
            if lease in decided:
                return Fault(VALID, f"decided {lease} twice in one turn, at {cycle.now} ms")
            decided.add(lease)
            for unit in _given(decision):
                if unit in given:
                    whom = f"twice to {lease}" if given[unit] == lease else f"to {given[unit]} and to {lease}"
                    return Fault(OVERBOOKS, f"gave unit {unit!r} {whom} in one turn, at {cycle.now} ms")
                given[unit] = lease
        return None

    @staticmethod
    def _missed(cycle: AuthorityCycle, able: int, decisions: Sequence[Any]) -> Fault | None:
        if able == 0:
            return None
        demand = cycle.demands[0]
        units = next((_named(one) for one in decisions if isinstance(one, Assign | Place | Release)), ())
        if len(units) >= abs(able) or wakes(decisions):
            return None
        did = "gave up" if able < 0 else "got"
        could = f"had to give up {-able}" if able < 0 else f"could have got {able}"
        return Fault(ANSWERS, f"{demand.lease} {did} {len(units)} units at {cycle.now} ms, but {could}")


def _named(decision: Assign | Place | Release) -> tuple[str, ...]:
    """The units that it speaks of: of a type that is not divided, whole hosts are units."""
    return decision.hosts if isinstance(decision, Place) else decision.units


def _given(decision: Assign | Place | Release | Refuse) -> tuple[str, ...]:
    named = _named(decision) if isinstance(decision, Assign | Place) else ()
    return named if isinstance(named, tuple) else ()


class GuestJudge:
    """Of a guest's mapper: what it asks for is its own business, but it must not ask without end."""

    def __init__(self) -> None:
        self.overdue: dict[str, str] = {}
        self._asked = Counter()

    def begin(self, cycle: GuestCycle) -> Judge:
        """Nothing to know before the turn."""
        return self._wrong

    def _wrong(self, cycle: GuestCycle, decisions: Sequence[Any]) -> Fault | None:
        for decision in decisions:
            if not isinstance(decision, tuple) or not hasattr(decision, "_fields"):
                return _no_decision(decision)
            if (
                isinstance(decision, RequestLease)
                and isinstance(decision.term, Term)
                and decision.term.end <= cycle.now
            ):
                return Fault(WINDOWS, f"asked for a term in the past, {tuple(decision.term)}: it is {cycle.now}")
        count = self._asked.add(cycle.now, sum(isinstance(decision, RequestLease) for decision in decisions))
        if count > ASKED_MAX:
            return Fault(TIME, f"asked for more than {ASKED_MAX} leases within an hour, up to {cycle.now} ms")
        return None


JUDGES: dict[str, Callable[[], BrokerJudge | AuthorityJudge | GuestJudge]] = {
    "broker": BrokerJudge,
    "authority": AuthorityJudge,
    "guest": GuestJudge,
}


def complaint(text: str) -> Fault:
    """An actor's complaint about its mapper, under the check that it speaks of."""
    words = text.partition("is not carried out: ")[2] or text
    for sign, check in (("overbook", OVERBOOKS), ("group", GROUPS), ("term", WINDOWS)):
        if sign in words:
            return Fault(check, text)
    return Fault(VALID, text)
