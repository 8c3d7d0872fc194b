"""A site of full hosts among production actors in virtual time, and what its mapper's turns cost.

Hosts have preemptible machines, and half a core each that nobody has: so what is asked for is there, but nowhere in
one piece. They are in the site's store as if they had been leased before; what is asked for comes from a guest, by a
broker.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from random import Random
from typing import Any

from _bench_world import BROKER, GUEST, ROLES, SITE, tune_gc

from leasekit.actors.broker.broker import Broker
from leasekit.actors.guest.service_manager import ServiceManager
from leasekit.actors.settings import AuthoritySettings, DelegationSpec, Peer, UnitGroup
from leasekit.actors.site.authority import Authority
from leasekit.core.claims.claim import EarlyTerms
from leasekit.core.claims.signed import UNSIGNED, Signer, UnsignedIdentity
from leasekit.core.leases import authority as au
from leasekit.core.leases.machine import NONE
from leasekit.core.leases.records import SiteClaim, SiteLease, SiteUnit
from leasekit.core.mappers import AuthorityCycle, AuthorityDecision, Place
from leasekit.core.properties import Vector
from leasekit.core.schema import Change
from leasekit.core.steps import Command, Input, Turn, TurnDone
from leasekit.core.time import DAY, HOUR, INSTANT_MAX, Term
from leasekit.emulation.world import World
from leasekit.policies.authority.preemption import HostPreemptionMapper, HostPreemptionSettings
from leasekit.policies.broker.fcfs import Fcfs
from leasekit.policies.guest.manual import Manual
from leasekit.stores.memory import MemoryStore

TYPE = "node"
CAPACITY = {"capacity.cpu": "8500", "capacity.memory": "16000"}
SPARE = 500
ROUND = 8
"""After so many turns it is measured again what no decision can do without."""
OTHERS = "00"
"""Who has given, and holds, the claims of what is there: nobody that is known."""


def spent_since(begin: float) -> float:
    """Milliseconds of the processor since then."""
    return 1000 * (time.process_time() - begin)


class TimedMapper(HostPreemptionMapper):
    """The mapper, with the time that each of its turns with one demand takes, in which a lease has others leave; and
    the time for each demand of turns with several, which all have others leave.

    Two of :data:`ROUND` turns are for comparison: before one, only what no mapper can do without is done (``least``);
    before the other another mapper decides the same, so that the code is in the processor's caches (``again``).
    """

    def __init__(self) -> None:
        super().__init__(HostPreemptionSettings())
        self.times: list[float] = []
        self.crowds: list[float] = []
        self.least: list[float] = []
        self.again: list[float] = []
        self._other = HostPreemptionMapper(HostPreemptionSettings())
        self._turns = self._mark = 0
        self._table = {f"h{number:05}": 0 for number in range(10_000)}
        self._heap = [(number, host) for number, host in enumerate(self._table)]

    def assign(self, cycle: AuthorityCycle) -> list[AuthorityDecision]:
        """Decide, and note how long it takes."""
        self._turns += 1
        times = {ROUND - 2: None, ROUND - 1: self.again}.get(self._turns % ROUND, self.times)
        if times is None:
            self.least.append(self._spend_least(cycle))
        elif times is self.again:
            self._other.assign(cycle)
        begin = time.process_time()
        found = super().assign(cycle)
        took = spent_since(begin)
        self._mark = cycle.changes(TYPE, self._mark).mark
        made = sum(bool(getattr(one, "victims", ())) for one in found)
        if made > 1 and made == len(cycle.demands):
            self.crowds.append(took / made)
        elif made == len(cycle.demands) and times is not None:
            times.append(took)
        return found

    @property
    def compared(self) -> list[tuple[str, list[float]]]:
        """What was measured for comparison."""
        return [("least", self.least), ("again", self.again)]

    def _spend_least(self, cycle: AuthorityCycle) -> float:
        """Milliseconds to read what has changed and what two tickets say, ask two hosts for room, change an entry of a
        table and of a heap, and say where the first demand goes: with no index, and no choice.
        """
        host = f"h{self._turns:05}"
        victim = self.indexes(TYPE)[0].hosts[host].leases[0].id
        begin = time.process_time()
        cycle.changes(TYPE, self._mark)
        demand, now = cycle.demands[0], cycle.now
        if cycle.tenant(demand.lease) is None or cycle.tenant(victim) is None:
            raise RuntimeError(f"no ticket of {demand.lease} or {victim}")
        term = Term(now, demand.term.end)
        cycle.room(host, demand.sizes[0], term, [victim])
        cycle.room(demand.places[0], demand.sizes[0], term)
        self._table[host] = now
        heappush(self._heap, (now, host))
        heappop(self._heap)
        Place(demand.lease, (host,), victims=(victim,))
        return spent_since(begin)


class TimedAuthority(Authority):
    """A site that notes how long each turn takes in which its mapper has a lease leave: to show what it is about, the
    mapper, and to carry out what it decided; and how long each redeem takes.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.turn_times: list[float] = []
        self.redeems: list[float] = []
        self._shown = 0.0
        self._counted = 0

    def turn(self) -> Turn | None:
        """The next turn, if one is due."""
        begin = time.process_time()
        found = super().turn()
        self._shown = spent_since(begin)
        return found

    def step(self, input: Input) -> None:
        """Take an input."""
        times, leases = self.turning.mapper.times, len(self.leases)  # type: ignore[attr-defined] # a TimedMapper
        begin = time.process_time()
        super().step(input)
        took = spent_since(begin)
        if isinstance(input, TurnDone) and len(times) > self._counted:
            self._counted = len(times)
            self.turn_times.append(self._shown + times[-1] + took)
        elif len(self.leases) > leases:
            self.redeems.append(took)


def machines(rng: Random, host: str, cores: Sequence[int], most: int) -> Iterator[tuple[str, int]]:
    """Preemptible machines that fill a host but for half a core: a name, and how many cores each has."""
    left, number = 8, 0
    while left:
        able = [each for each in cores if each <= left]
        size = left if number == most - 1 else rng.choice(able)
        yield f"{host}-{number}", size
        left, number = left - size, number + 1


def size_of(cores: int) -> Vector:
    """What a machine of so many cores takes."""
    return (("cpu", 1000 * cores), ("memory", 1000 * cores))


def farm(hosts: int, cores: Sequence[int], most: int) -> World:
    """The world, with the site's delegation taken by the broker."""
    tune_gc()
    keys: dict[str, Signer] = {name: UnsignedIdentity(name) for name in ROLES}
    peers = {name: Peer(name=name, key=keys[name].public, role=role) for name, role in ROLES.items()}
    names = tuple(f"h{number:05}" for number in range(hosts))
    settings = AuthoritySettings(
        inventory=(UnitGroup(type=TYPE, names=names, properties=CAPACITY),),
        delegations=(DelegationSpec(broker=BROKER, type=TYPE, units=hosts, length=300 * DAY),),
        kept_bytes=INSTANT_MAX,  # one guest has the leases of all hosts
    )
    site = TimedAuthority(SITE, keys[SITE], UNSIGNED, [peers[GUEST], peers[BROKER]], TimedMapper(), settings)
    store, world = MemoryStore(), World()
    store.commit(list(kept(site, names, cores, most)))
    world.add(site, store)
    for actor in (
        ServiceManager(GUEST, keys[GUEST], UNSIGNED, [peers[BROKER], peers[SITE]], Manual()),
        Broker(BROKER, keys[BROKER], UNSIGNED, [peers[GUEST], peers[SITE]], Fcfs()),
    ):
        world.add(actor, MemoryStore())
    world.run_until(HOUR)
    return world


def kept(site: Authority, names: Sequence[str], cores: Sequence[int], most: int) -> Iterator[Change]:
    """What the site's store has: a lease for each machine, which began within the last hour."""
    rng = Random(19)
    class_ = site.units.inventory.class_of(names[0], TYPE)
    for number, host in enumerate(names, 1):
        yield Change("units", host, SiteUnit(host, TYPE, number=number, classes=(class_,)).row())
        for name, size in machines(rng, host, cores, most):
            needs, unit = size_of(size), f"{host}.{name}"
            machine = SiteUnit(unit, TYPE, au.UP, lease=name, classes=(class_,), given_as=class_, host=host)
            machine.size = machine.needs = needs
            yield Change("units", unit, machine.row())
            lease = SiteLease(
                name, GUEST, "default", TYPE, au.ACTIVE, NONE, name.encode(), Term(rng.randrange(HOUR), 200 * DAY), 1,
                1, units=[unit], preemptible=True, classes=((class_, 1),), sizes=(needs,), needs=needs, places=(host,),
                early=EarlyTerms(notice=0),
            )  # fmt: skip
            yield Change("leases", name, lease.row())
            claim = SiteClaim(
                name.encode().hex(), name, OTHERS, OTHERS, OTHERS, TYPE, 1, lease.term, au.REDEEMED, 0, b"", b""
            )
            yield Change("claims", claim.id, claim.row())


def ask(world: World, number: int, cores: int, count: int = 1) -> None:
    """Have the guest ask for so many leases of a machine that starts now, and let a tenth of a second pass for each."""
    properties = {f"needs.{name}": str(much) for name, much in size_of(cores)}
    term = [world.now, world.now + 100 * DAY]
    wish = {"type": TYPE, "units": 1, "term": term, "properties": properties}
    world.feed(GUEST, [Command(number + each, "lease.request", wish) for each in range(count)])
    world.run_until(world.now + 100 * count)
    world.replies.clear()
