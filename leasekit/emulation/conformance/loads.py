"""Cycles of any size, made by hand: what a turn costs at 10, 1,000 and 10,000 requests, and turns with nothing in
them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from random import Random
from typing import Any, Final

import attrs

from leasekit.core.mappers import (
    AuthorityCycle,
    BrokerCycle,
    Demand,
    GuestCycle,
    LeaseView,
    PendingRequest,
    Source,
    UnitView,
)
from leasekit.core.properties import EMPTY
from leasekit.core.time import DAY, HOUR, MINUTE, Term
from leasekit.core.timetable import Timetable
from leasekit.emulation.conformance.cases import MadeTurn
from leasekit.emulation.conformance.watched import SURVIVES, Fault, FaultFound, call
from leasekit.policies.registry import METHODS

TRIES: Final = {10: 5, 1_000: 3, 10_000: 1}
"""How often a turn is measured at each size: the larger it is, the less it varies."""
SIZES: Final = tuple(TRIES)
SITES: Final = 4
FAR: Final = 1000 * DAY


@attrs.frozen(kw_only=True)
class Cost:
    """What one turn took at a size: seconds, and microseconds for each request, demand or lease."""

    size: int
    seconds: float
    each_us: float


def cost(role: str, make: Callable[[], Any], made: MadeTurn, limit: float) -> Cost:
    """The cost of one turn, with a mapper that has seen nothing before: the best of a few where that takes no time.
    Raises :class:`FaultFound`.
    """
    seconds = min(play_turn(role, make(), made, cycle_of(role, made), limit)[0] for _ in range(TRIES[made.size]))
    return Cost(size=made.size, seconds=seconds, each_us=1e6 * seconds / made.size)


def play_turn(role: str, mapper: Any, made: MadeTurn, cycle: Any, limit: float) -> tuple[float, list[Any]]:
    """One turn: how many seconds it took, and what was decided. Raises :class:`FaultFound` if the mapper raises, takes
    longer than ``limit`` seconds, decides without end, or gives what isn't there.
    """
    begin = time.perf_counter()
    decided = call(lambda: getattr(mapper, METHODS[role])(cycle), limit, 1000 + 20 * made.size, str(made))
    seconds = time.perf_counter() - begin
    given = [d for d in decided if type(d).__name__ in ("Grant", "GrantGroup", "Assign")]
    if given and not made.is_large:
        raise FaultFound(Fault(SURVIVES, f"gave {given[0]!r:.120}, although there is nothing to give"))
    return seconds, decided


def cycle_of(role: str, made: MadeTurn) -> Any:
    """The cycle of such a turn."""
    if made.there:
        return CYCLES[role](made.size, made.types)
    if role == "broker":
        return _broker(made.size, made.types)._replace(sources=lambda type_: ())
    if role == "authority":
        return _authority(made.size, made.types)._replace(free=lambda type_, filter_="": iter(()))
    return _guest(0, made.types)._replace(now=DAY)


def _broker(size: int, types: Sequence[str]) -> BrokerCycle:
    """Requests of all kinds for four sites that have room for about half of them, each site loaded already."""
    random = Random(size)
    requests = [_pending(random, number, types) for number in range(size)]
    tables = {(site, type_): _loaded(Random(f"{site}{type_}"), size) for site in range(SITES) for type_ in types}
    span = Term(0, FAR)

    @cache
    def sources(type_: str) -> Sequence[Source]:
        return [
            Source(f"site{site}/{kind}", f"site{site}", kind, table.capacity_at(HOUR), span, EMPTY, table.overlay())
            for (site, kind), table in tables.items()
            if kind == type_
        ]

    return BrokerCycle(HOUR, requests, (), sources)


def _pending(random: Random, number: int, types: Sequence[str]) -> PendingRequest:
    units, length = random.choice((1, 1, 2, 4, 8)), random.choice((10, 30, 60, 120, 600)) * MINUTE
    start = HOUR if random.random() < 0.5 else HOUR + random.randrange(24 * 60) * MINUTE
    least = 1 if random.random() < 0.2 else units
    latest = FAR - length if random.random() < 0.5 else start
    return PendingRequest(
        lease=f"l-{number}", holder=f"g{number % 7}", op="new", type=random.choice(types), units=units,
        min_units=least, term=Term(start, start + length), latest_start=latest, deadline=FAR, arrived=number,
        site="", exclude_sites=frozenset(), source="", held=0, group="", priority=random.choice((0, 0, 0, 1)),
        preemptible=False, properties=EMPTY,
    )  # fmt: skip


def _loaded(random: Random, size: int) -> Timetable:
    table = Timetable(max(16, size // 4))
    table.forget_before(0)
    for key in range(min(size, 1000)):
        start = random.randrange(48 * 60) * MINUTE
        term = Term(start, start + random.randrange(1, 300) * MINUTE)
        free = table.available(term)
        if free > 0:
            table.reserve(key, random.randint(1, min(free, 8)), term)
    return table


def _authority(size: int, types: Sequence[str]) -> AuthorityCycle:
    """New leases of one to four units, on a site that has units for all of them."""
    random = Random(size)
    term = Term(HOUR, 2 * HOUR)
    demands = [
        Demand(f"l-{n}", f"g{n % 7}", "new", random.choice(types), random.randint(1, 4), (), (), term, EMPTY)
        for n in range(size)
    ]
    needs: dict[str, int] = {}
    for demand in demands:
        needs[demand.type] = needs.get(demand.type, 0) + demand.units
    units = {
        type_: [UnitView(f"{type_}-{n}", type_, "free", "", 0, EMPTY) for n in range(count)]
        for type_, count in needs.items()
    }
    known = {unit.id: unit for views in units.values() for unit in views}
    return AuthorityCycle(HOUR, demands, lambda type_, filter_="": iter(units.get(type_, ())), known.__getitem__)


def _guest(size: int, types: Sequence[str]) -> GuestCycle:
    """Active leases of one unit each, with a few hours to go."""
    random = Random(size)
    leases = []
    for number in range(size):
        term = Term(HOUR, HOUR * random.randint(2, 9))
        leases.append(
            LeaseView(
                id=f"l-{number}", name="", slice="load", type=random.choice(types), site="a", state="active",
                pending="-", join="joined", requested=1, units=1, term=term, next_term=None, next_units=0,
                closing=False, reason="", properties=EMPTY, members=tuple,
            )
        )  # fmt: skip
    return GuestCycle(HOUR, leases)


CYCLES: Final[Mapping[str, Callable[[int, Sequence[str]], Any]]] = {
    "broker": _broker,
    "authority": _authority,
    "guest": _guest,
}


def told(found: Iterable[Cost]) -> str:
    """In words."""
    return ", ".join(f"{cost.size:,}: {cost.each_us:,.1f} us each" for cost in found)
