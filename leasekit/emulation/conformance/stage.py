"""Plays a case: two guests, a broker and sites, all production actors, with the mapper under test in one of them.

That a decision can be carried out is the production actor's to say: it checks every one, and what it complains of is
heard here. Judges look at each turn before the actor does: they say first what has a plain name (nobody asked, twice,
in the past), and they know what could have been decided: with only one request waiting and enough free for it, there is
no policy to plead.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

import attrs

from leasekit.actors.base import Actor
from leasekit.actors.broker.broker import Broker
from leasekit.actors.guest.service_manager import ServiceManager
from leasekit.actors.settings import AuthoritySettings, BrokerSettings, DelegationSpec, GuestSettings, Peer, UnitGroup
from leasekit.actors.site.authority import Authority
from leasekit.core.claims.signed import UNSIGNED, UnsignedIdentity
from leasekit.core.errors import CommandError
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
from leasekit.core.reasons import read, words
from leasekit.core.schema import LOG, Change
from leasekit.core.steps import Action
from leasekit.core.time import DAY, HOUR, MINUTE, SECOND, Duration, Instant, Term
from leasekit.emulation.conformance.cases import GUESTS, Case, Event
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
    FaultFound,
    Judge,
    TurnRecord,
    Watched,
    wakes,
)
from leasekit.emulation.world import Outcome, World
from leasekit.policies.authority.first_fit import FirstFit
from leasekit.policies.broker.fcfs import Fcfs
from leasekit.policies.guest.manual import Manual
from leasekit.policies.registry import METHODS
from leasekit.stores.memory import MemoryStore


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


BROKER: Final = "broker"
LATENCIES: Final = {
    "setup": 20 * SECOND,
    "teardown": 10 * SECOND,
    "modify": 5 * SECOND,
    "join": SECOND,
    "leave": SECOND,
    "power_on": 3 * MINUTE,
    "power_off": 30 * SECOND,
    "suspend": 10 * SECOND,
    "resume": 15 * SECOND,
}
AFTERWARDS: Final = DAY
"""How long the world goes on after the last event: what is deferrable is given up by then."""
DEFER_MAX: Final = 8 * HOUR
DELAY: Final[Duration] = 10
RETRY_MAX: Final = 2 * HOUR
"""Nothing is lost here, so that nothing needs to be said again soon."""


@attrs.frozen(kw_only=True)
class Played:
    """How a case went: the first fault, if any; a digest of all decisions; how many turns there were."""

    fault: Fault | None
    digest: str
    turns: int
    journal: Sequence[TurnRecord]


def play(
    case: Case,
    role: str,
    make: Callable[[], Any],
    limit: float,
    *,
    journal: bool = False,
    beat: Callable[[], None] = lambda: None,
) -> Played:
    """Play a case with a mapper that ``make`` makes; a turn may take ``limit`` seconds. ``beat`` is called now and then
    while it goes on.
    """
    judge = JUDGES[role]()
    watched = Watched(make(), METHODS[role], judge.begin, limit, beat)
    watched.keep_journal = journal
    fault: Fault | None = None
    try:
        _Stage(case, role, watched, judge.overdue).run()
    except FaultFound as found:
        fault = found.fault
    return Played(fault=fault, digest=watched.digest, turns=watched.turns, journal=watched.journal)


class _Stage:
    """One case while it is played."""

    def __init__(self, case: Case, role: str, watched: Watched, overdue: dict[str, str]) -> None:
        self._case = case
        self._role = role
        self._watched = watched
        self._overdue = overdue
        self._world = World(delay=lambda sender, receiver: DELAY, observe=self._observed)
        roles = {**dict.fromkeys(GUESTS, "guest"), BROKER: "broker", **dict.fromkeys(case.sites, "authority")}
        self._roles = roles
        self._tested = next((name for name, role_ in roles.items() if role_ == role), "")
        for name in roles:
            self._world.add(self._actor(name), MemoryStore(), self._model(name))

    def run(self) -> None:
        """All events, and the time after them."""
        world = self._world
        world.run_until(SECOND)
        for event in self._case.events:
            world.run_until(max(world.now, event.at + SECOND))
            # What makes no sense (any more) is refused by the guest's actor, and passed over.
            with suppress(CommandError):
                self._command(event)
        last = max((event.at for event in self._case.events), default=0)
        world.run_until(last + AFTERWARDS)

    def _command(self, event: Event) -> None:
        command = self._world.command
        if event.do == "request":
            # The clock is a second ahead of the case, so that delegations are there at its start.
            start = event.start + SECOND
            properties = dict(event.properties)
            if "latest_start" in properties:
                properties["latest_start"] = str(int(properties["latest_start"]) + SECOND)
            command(
                event.guest, "lease.request", type=event.type, units=event.units, term=[start, start + event.length],
                name=event.name, site=event.site, properties=properties,
            )  # fmt: skip
        elif event.do == "close":
            command(event.guest, "lease.close", lease=event.name)
        else:
            end = self._world.query(event.guest, "lease", lease=event.name)["end"] + event.length
            command(event.guest, f"lease.{event.do}", lease=event.name, end=end, units=event.units)

    # -- listening ---------------------------------------------------------------------------------------------

    def _observed(self, at: Instant, actor: str, changes: Sequence[Change]) -> None:
        if actor != self._tested:
            return
        for change in changes:
            if change.table != LOG or change.row is None:
                continue
            _, subject, event, _, _, why = change.row
            if event == "mapper":
                raise FaultFound(complaint(words(read(why))))
            if event == "expire" and subject in self._overdue:
                raise FaultFound(Fault(ANSWERS, f"{self._overdue[subject]}; it expired at {at} ms"))

    # -- building ----------------------------------------------------------------------------------------------

    def _mapper(self, name: str, usual: Callable[[], Any]) -> Any:
        return self._watched if name == self._tested else usual()

    def _actor(self, name: str) -> Actor:
        me = UnsignedIdentity(name)
        peers = [
            Peer(name=other, key=UnsignedIdentity(other).public, role=role)
            for other, role in self._roles.items()
            if other != name
        ]
        role = self._roles[name]
        if role == "guest":
            guest = GuestSettings(defer_max=DEFER_MAX, retry_max=RETRY_MAX)
            return ServiceManager(name, me, UNSIGNED, peers, self._mapper(name, Manual), guest)
        if role == "broker":
            broker = BrokerSettings(defer_max=DEFER_MAX, retry_max=RETRY_MAX, priorities={GUESTS[0]: 1})
            return Broker(name, me, UNSIGNED, peers, self._mapper(name, Fcfs), broker)
        units = self._case.sites[name]
        site = AuthoritySettings(
            retry_max=RETRY_MAX,
            inventory=tuple(
                UnitGroup(type=type_, names=tuple(f"{type_}-{i}" for i in range(count)), power=True)
                for type_, count in units.items()
            ),
            delegations=tuple(DelegationSpec(broker=BROKER, type=type_, units=count) for type_, count in units.items()),
        )
        return Authority(name, me, UNSIGNED, peers, self._mapper(name, FirstFit), site)

    def _model(self, name: str) -> Callable[[Action], Outcome]:
        failing = self._case.failing

        def outcome(action: Action) -> Outcome:
            luck = zlib.crc32(f"{self._case.seed}/{name}/{action.unit}/{action.number}".encode())
            fails = bool(failing) and action.op == "setup" and luck % failing == 0
            return Outcome(LATENCIES.get(action.op, 0), not fails, {}, "no such image" if fails else "")

        return outcome
