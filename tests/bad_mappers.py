"""Mappers that misbehave, by the name that scripts know them by."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from leasekit.core.mappers import (
    Assign,
    AuthorityCycle,
    BrokerCycle,
    Go,
    Grant,
    GrantGroup,
    GuestCycle,
    Hold,
    LeaseView,
    Refuse,
    Reject,
    Release,
    RequestLease,
    Wake,
)
from leasekit.core.time import HOUR, Term
from leasekit.policies.authority.first_fit import FirstFit
from leasekit.policies.broker.fcfs import Fcfs
from leasekit.policies.guest.manual import Manual

WORKS_AFTER: Final = 3000
"""From this instant on (ms) those that misbehave first do as they should."""


class BrokerThat:
    """Does ``wrong`` with each request until :data:`WORKS_AFTER`, and then what it should."""

    inline = True

    def __init__(self, wrong: Callable[[BrokerCycle], Iterator[Any]]) -> None:
        self._wrong = wrong

    def allocate(self, cycle: BrokerCycle) -> Any:
        """Wrong first, right later; asks to be called again."""
        if cycle.now >= WORKS_AFTER:
            return Fcfs().allocate(cycle)
        return [*self._wrong(cycle), Wake(WORKS_AFTER)]


class SiteThat:
    """The same for an authority."""

    inline = True

    def __init__(self, wrong: Callable[[AuthorityCycle], Iterator[Any]]) -> None:
        self._wrong = wrong

    def assign(self, cycle: AuthorityCycle) -> Any:
        """Wrong first, right later; asks to be called again."""
        if cycle.now >= WORKS_AFTER:
            return FirstFit().assign(cycle)
        return [*self._wrong(cycle), Wake(WORKS_AFTER)]


class WrongOnce(FirstFit):
    """Gives what it has not got in its first turn, and does not ask for another."""

    def __init__(self) -> None:
        super().__init__()
        self._turns = 0

    def assign(self, cycle: AuthorityCycle) -> list[Any]:
        """Wrong the first time only."""
        self._turns += 1
        return list(_same_unit_twice(cycle)) if self._turns == 1 else super().assign(cycle)


def _raise(cycle: Any) -> Iterator[Any]:
    raise ZeroDivisionError("division by zero")


def _overbook(cycle: BrokerCycle) -> Iterator[Any]:
    for request in cycle.requests:
        (source,) = cycle.sources(request.type)
        yield Grant(request.lease, source.id, request.units, request.term)


def _too_many(cycle: BrokerCycle) -> Iterator[Any]:
    for request in cycle.requests:
        (source,) = cycle.sources(request.type)
        yield Grant(request.lease, source.id, request.units + 1, request.term)


def _wrong_term(cycle: BrokerCycle) -> Iterator[Any]:
    for request in cycle.requests:
        (source,) = cycle.sources(request.type)
        yield Grant(request.lease, source.id, request.units, Term(request.term.start + 1, request.term.end + 1))
        yield Grant(request.lease, source.id, request.units, Term(request.term.start, request.term.end + 1))


def _twice(cycle: BrokerCycle) -> Iterator[Any]:
    for request in cycle.requests:
        (source,) = cycle.sources(request.type)
        yield Grant(request.lease, source.id, request.units, request.term)
        yield Grant(request.lease, source.id, request.units, request.term)


def _nobody(cycle: BrokerCycle) -> Iterator[Any]:
    for request in cycle.requests:
        (source,) = cycle.sources(request.type)
        yield Grant("nobody-1", source.id, request.units, request.term)
        yield Grant(request.lease, "elsewhere", request.units, request.term)


def _part_of_group(cycle: BrokerCycle) -> Iterator[Any]:
    for group in cycle.groups:
        (source,) = cycle.sources(group[0].type)
        grants = [Grant(member.lease, source.id, member.units, member.term) for member in group]
        yield grants[0]
        yield GrantGroup(group[0].group, tuple(grants[:-1]))
        yield GrantGroup(group[0].group, (*grants[:-1], grants[0]))
        yield GrantGroup(group[0].group, (*grants, grants[0]))
        later = Term(grants[-1].term.start + 1, grants[-1].term.end + 1)
        yield GrantGroup(group[0].group, (*grants[:-1], grants[-1]._replace(term=later)))


def _in_the_past(cycle: BrokerCycle) -> Iterator[Any]:
    for request in cycle.requests:
        (source,) = cycle.sources(request.type)
        length = request.term.length
        for start in (request.term.start - HOUR, request.term.start - 1, cycle.now - 1, 0):
            if start >= 0:
                yield Grant(request.lease, source.id, request.units, Term(start, start + length))


def _nonsense(cycle: BrokerCycle) -> Iterator[Any]:
    for request in cycle.requests:
        (source,) = cycle.sources(request.type)
        good = Grant(request.lease, source.id, request.units, request.term)
        yield "give it to them"
        yield None
        yield good._replace(units=float(request.units))  # type: ignore[arg-type]
        yield good._replace(term=(request.term.start, request.term.end))  # type: ignore[arg-type]
        yield good._replace(term=Term(float(request.term.start), request.term.end))  # type: ignore[arg-type]
        yield good._replace(lease=["x"])  # type: ignore[arg-type]
        yield Reject(request.lease, None)  # type: ignore[arg-type]
        yield GrantGroup("g", 5)  # type: ignore[arg-type]
        yield Wake("soon")  # type: ignore[arg-type]


def _same_unit_twice(cycle: AuthorityCycle) -> Iterator[Any]:
    for demand in cycle.demands:
        unit = next(cycle.free(demand.type)).id
        yield Assign(demand.lease, (unit,) * demand.units)


def _one_unit_for_all(cycle: AuthorityCycle) -> Iterator[Any]:
    unit = next(cycle.free(cycle.demands[0].type)).id
    for demand in cycle.demands:
        yield Assign(demand.lease, (unit,))


def _anything(cycle: AuthorityCycle) -> Iterator[Any]:
    for demand in cycle.demands:
        yield Assign(demand.lease, ("no-such-unit",))
        yield Assign(demand.lease, tuple(unit.id for unit in cycle.free(demand.type)))
        yield Assign("nobody-1", ("vm-0",))
        yield Assign(demand.lease, ())
        yield Assign(demand.lease, 7)  # type: ignore[arg-type]
        yield Release(demand.lease, ("vm-0",))
        yield 12


class KeepsAll(FirstFit):
    """Will not hear of a lease that shrinks, until :data:`WORKS_AFTER` has passed for two hours."""

    def assign(self, cycle: AuthorityCycle) -> list[Any]:
        """Refuses to release."""
        if all(demand.units > 0 for demand in cycle.demands) or cycle.now >= 2 * HOUR + WORKS_AFTER:
            return super().assign(cycle)
        lease = cycle.demands[0].lease
        held = cycle.demands[0].held
        return [
            Refuse(lease, "no"),
            Release(lease, held),
            Release(lease, ("no-such-unit",)),
            Wake(2 * HOUR + WORKS_AFTER),
        ]


class Held(Manual):
    """Holds a blocked lease twice, and then lets it go on with a property of its predecessor's units."""

    def __init__(self) -> None:
        super().__init__()
        self._asked = 0

    def unblock(self, lease: LeaseView, predecessor: LeaseView) -> Any:
        """Hold, hold, go."""
        self._asked += 1
        now = max(lease.term.start, predecessor.term.start)
        if self._asked < 3:
            return Hold(now + 20_000 * self._asked)
        hosts = ",".join(unit.properties["host"] for unit in predecessor.members())
        return Go({"servers": hosts})


class UnblockRaises(Manual):
    """Its upcall fails the first two times, each in its own way."""

    def __init__(self) -> None:
        super().__init__()
        self._asked = 0

    def unblock(self, lease: LeaseView, predecessor: LeaseView) -> Any:
        """Raise, say nonsense, and let it go on."""
        self._asked += 1
        if self._asked == 1:
            raise KeyError("host")
        return Go({"n": 5}) if self._asked == 2 else Go()  # type: ignore[dict-item]


class GuestThat:
    """A guest's mapper that decides nonsense first, then asks for one lease."""

    inline = True

    def plan(self, cycle: GuestCycle) -> Any:
        """Nonsense, a request, and nothing after."""
        if cycle.leases:
            return []
        if cycle.now < WORKS_AFTER:
            return [
                "please",
                RequestLease("vm", 0, Term(0, HOUR)),
                RequestLease("vm", 1, Term(HOUR, 0)),
                RequestLease("vm", 1, Term(0, HOUR), broker=["b"]),  # type: ignore[arg-type]
                Wake(cycle.now),
            ]
        if cycle.now == WORKS_AFTER:
            raise RuntimeError("out of ideas")
        return [RequestLease("vm", 1, Term(cycle.now, HOUR), name="web")]


BAD_MAPPERS: Final[Mapping[str, Callable[[], Any]]] = {
    "broker_raises": lambda: BrokerThat(_raise),
    "overbooks": lambda: BrokerThat(_overbook),
    "too_many": lambda: BrokerThat(_too_many),
    "wrong_term": lambda: BrokerThat(_wrong_term),
    "twice": lambda: BrokerThat(_twice),
    "in_the_past": lambda: BrokerThat(_in_the_past),
    "nobody": lambda: BrokerThat(_nobody),
    "part_of_group": lambda: BrokerThat(_part_of_group),
    "nonsense": lambda: BrokerThat(_nonsense),
    "site_raises": lambda: SiteThat(_raise),
    "wrong_once": WrongOnce,
    "same_unit_twice": lambda: SiteThat(_same_unit_twice),
    "one_unit_for_all": lambda: SiteThat(_one_unit_for_all),
    "anything": lambda: SiteThat(_anything),
    "keeps_all": KeepsAll,
    "holds": Held,
    "unblock_raises": UnblockRaises,
    "guest_nonsense": GuestThat,
}
