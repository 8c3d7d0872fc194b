"""The authority's mapper with victims, on hosts that are made up: as trying everything says, from turn to turn."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection
from itertools import combinations
from random import Random

import attrs
import pytest

from leasekit.core.mappers import (
    AuthorityCycle,
    Demand,
    HostChanges,
    HostView,
    MachineChange,
    MachineView,
    Place,
    Refuse,
    TenantView,
)
from leasekit.core.properties import Vector
from leasekit.core.reasons import of_mapper, words
from leasekit.core.time import HOUR, MINUTE, Instant, Term
from leasekit.policies.authority.preemption import HostPreemptionMapper, HostPreemptionSettings, RetryMapper
from leasekit.policies.authority.weighing import HostWeigherSettings
from leasekit.policies.preempting.hosts import HostedLease

CLASS, TYPE = b"class", "node"
CAPACITY = (("cpu", 8000), ("memory", 16_000))
SIZES: tuple[Vector, ...] = (
    (("cpu", 1000), ("memory", 2000)), (("cpu", 2000), ("memory", 4000)), (("cpu", 2000), ("memory", 7000)),
    (("cpu", 4000), ("memory", 8000)),
)  # fmt: skip
HOLDERS = ("ann", "bob", "eve")


@attrs.define
class Farm:
    """Hosts with leases of one machine each; victims are gone when the next turn comes."""

    hosts: dict[str, list[str]]
    sizes: dict[str, Vector]
    tenants: dict[str, TenantView]
    now: Instant = HOUR
    whole: bool = True
    """Whether hosts are shown whole that have changed, not what has become of machines on them."""
    changed: list[tuple[str, str]] = attrs.field(factory=list)
    later: tuple[Demand, ...] = ()
    """What is booked to begin later."""

    def free(self, host: str, without: Collection[str] = ()) -> Vector:
        """What is free on a host beside some leases."""
        taken: Counter[str] = Counter()
        for lease in self.hosts[host]:
            if lease not in without:
                taken.update(dict(self.sizes[lease]))
        return tuple((name, much - taken[name]) for name, much in CAPACITY)

    def room(self, host: str, size: Vector, term: Term, leaving: Collection[str] = ()) -> int:
        """How many machines have room."""
        free = dict(self.free(host, leaving))
        return min(free[name] // much for name, much in size)

    def changes(self, type_: str, mark: int) -> HostChanges:
        """The hosts, or what is on them, that have changed."""
        news, end = dict.fromkeys(self.changed[mark:]), len(self.changed)
        if mark == 0:
            return HostChanges(end, tuple(map(self.view, self.hosts)), anew=True)
        if self.whole:
            return HostChanges(end, tuple(map(self.view, {host for host, _ in news})))
        machines = (
            MachineChange(host, f"{host}.{one}", self.machine(host, one) if one in self.hosts[host] else None)
            for host, one in news
        )
        return HostChanges(end, machines=tuple(machines))

    def machine(self, host: str, lease: str) -> MachineView:
        """A lease's machine on a host."""
        size = self.sizes[lease]
        return MachineView(f"{host}.{lease}", lease, "active", CLASS, size, size, -1, -1, {})

    def view(self, host: str) -> HostView:
        """A host with its machines."""
        there = tuple(self.machine(host, one) for one in self.hosts[host])
        return HostView(host, TYPE, (CLASS,), "free", CAPACITY, 0, 1000, there, frozenset(), {})

    def put(self, lease: str, host: str, size: Vector, tenant: TenantView) -> None:
        """A lease has a machine on a host."""
        self.hosts[host].append(lease)
        self.sizes[lease], self.tenants[lease] = size, tenant
        self.changed.append((host, lease))

    def end(self, lease: str) -> None:
        """A lease is over."""
        host = next(name for name, there in self.hosts.items() if lease in there)
        self.hosts[host].remove(lease)
        self.changed.append((host, lease))

    def ask(self, mapper: HostPreemptionMapper, lease: str, size: Vector) -> Place | Refuse:
        """What a mapper decides for a lease of one machine."""
        demand = Demand(
            lease, "ann", "new", TYPE, 1, (), (), Term(self.now, self.now + 9 * HOUR), {}, ((CLASS, 1),), (size,), size
        )
        cycle = AuthorityCycle(
            self.now, (demand,), lambda *_: iter(()), lambda name: (_ for _ in ()).throw(KeyError(name)),
            hosts=lambda _: [self.view(host) for host in self.hosts], room=self.room, changes=self.changes,
            tenant=self.tenants.get, booked=lambda _: self.later,
        )  # fmt: skip
        (found,) = mapper.assign(cycle)
        assert isinstance(found, Place | Refuse)
        return found

    def best(self, lease: str, size: Vector, budget: int | None) -> tuple[str, tuple[str, ...]] | None:
        """What trying everything says: a host, and who leaves it."""
        mine = self.tenants[lease]
        ways = []
        for host, there in self.hosts.items():
            able = [
                one
                for one in there
                if (other := self.tenants[one]).preemptible
                and not mine.preemptible
                and other.priority <= mine.priority
                and other.start + other.min_run <= self.now
            ]
            for count in range(len(able) + 1):
                for chosen in combinations(sorted(able), count):
                    holders = Counter(self.tenants[one].holder for one in chosen)
                    if self.room(host, size, Term(0, 1), chosen) and max(holders.values(), default=0) <= (budget or 99):
                        cost = sum((self.now - self.tenants[one].start) % HOUR for one in chosen)
                        ways.append((bool(chosen), cost, count, host, chosen))
        return min(ways)[3:] if ways else None


def made(rng: Random) -> Farm:
    """A few hosts, full of leases."""
    farm = Farm({f"h{number}": [] for number in range(rng.randint(1, 5))}, {}, {})
    for host in farm.hosts:
        for number in range(8):
            size, name = rng.choice(SIZES), f"{host}-{number}"
            if farm.room(host, size, Term(0, 1)):
                farm.put(name, host, size, tenant(rng, name, rng.randrange(HOUR), preemptible=rng.random() < 0.8))
    return farm


def tenant(rng: Random, name: str, start: Instant, *, preemptible: bool) -> TenantView:
    min_run = rng.choice((0, 0, 0, HOUR)) if preemptible else 0
    return TenantView(name, rng.choice(HOLDERS), start, preemptible, rng.choice((0, 0, 1)), 0, min_run, False)


@pytest.mark.parametrize(
    ("kind", "budget"),
    [(HostPreemptionMapper, None), (HostPreemptionMapper, 1), (HostPreemptionMapper, 2), (RetryMapper, None)],
)
def test_it_decides_as_trying_everything_does(kind: type[HostPreemptionMapper], budget: int | None) -> None:
    """Over many turns in which leases come and go, by one index: host and victims are the best."""
    rng, decided = Random(f"{budget}"), Counter[str]()
    for _ in range(60):
        farm = made(rng)
        farm.whole = rng.random() < 0.3
        mapper = HostPreemptionMapper(HostPreemptionSettings(budget=budget)) if kind is HostPreemptionMapper else kind()
        for number in range(8):
            lease, size = f"new{number}", rng.choice((*SIZES, (("cpu", 8000), ("memory", 16_000))))
            farm.tenants[lease] = tenant(rng, lease, farm.now, preemptible=rng.random() < 0.2)
            found, best = farm.ask(mapper, lease, size), farm.best(lease, size, budget)
            if best is None:
                assert isinstance(found, Refuse), (found, farm)
                decided["refused"] += 1
            elif kind is RetryMapper and not best[1]:
                assert isinstance(found, Place) and not found.victims, "the heaviest host with room"
            else:
                assert isinstance(found, Place) and (found.hosts[0], tuple(sorted(found.victims))) == best, (best, farm)
                decided[f"{len(found.victims)} victims"] += 1
            if isinstance(found, Place) and rng.random() < 0.9:  # else the site does not do it
                for victim in found.victims:
                    farm.end(victim)
                farm.put(lease, found.hosts[0], size, farm.tenants[lease])
            if rng.random() < 0.2 and (there := [one for leases in farm.hosts.values() for one in leases]):
                farm.end(rng.choice(sorted(there)))
            farm.now += rng.randrange(20 * MINUTE)
    assert decided["1 victims"] > 20 and decided["2 victims"] > 10 and decided["refused"] > 20, decided


class Odd:
    """A cost plug-in that goes wrong."""

    def __init__(self, found: float | None) -> None:
        self.found = found

    def cost(self, lease: HostedLease, now: Instant) -> float:
        if self.found is None:
            raise RuntimeError("no idea")
        return self.found


@pytest.mark.parametrize(("found", "words"), [(math.nan, "nan"), (-1.0, "-1.0"), (None, "RuntimeError: no idea")])
def test_a_cost_that_is_none_is_told(found: float | None, words: str) -> None:
    """The lease is refused by one message that names the plug-in; who needs no victims has its place."""
    farm = made(Random(1))
    host = min(farm.hosts)
    for lease in list(farm.hosts[host]):
        farm.end(lease)
    mapper = HostPreemptionMapper(cost=Odd(found))
    farm.tenants |= {name: TenantView(name, "ann", farm.now, False, 1, 0, 0, False) for name in ("a", "b")}
    assert farm.ask(mapper, "a", CAPACITY) == Place("a", (host,))
    farm.put("a", host, CAPACITY, farm.tenants["a"])
    refused = farm.ask(mapper, "b", SIZES[0])
    assert isinstance(refused, Refuse) and "cost Odd of" in refused.reason and words in refused.reason


@pytest.mark.parametrize("kind", [HostPreemptionMapper, RetryMapper])
def test_the_host_that_is_free_for_longest_is_the_best_of_equals(kind: type[HostPreemptionMapper]) -> None:
    """Its next reservation is the last, whether somebody leaves or not; others come to be, from turn to turn."""
    farm = Farm({"h0": [], "h1": [], "h2": []}, {}, {})
    farm.tenants["new"] = TenantView("new", "ann", farm.now, False, 1, 0, 0, False)
    mapper = kind(kind.Settings(weighers=(HostWeigherSettings(name="free_time"),)))
    assert mapper.watches and not kind().watches

    def reserved(**hours: int) -> Place | Refuse:
        farm.later = tuple(
            Demand(host, "bob", "new", TYPE, 1, (), (), Term(at * HOUR, 99 * HOUR), {}, places=(host,))
            for host, at in hours.items()
        )
        return farm.ask(mapper, "new", SIZES[0])

    assert reserved(h0=5, h1=9, h2=7) == Place("new", ("h1",))
    assert reserved(h0=5, h1=6) == Place("new", ("h2",))
    for host in farm.hosts:
        name = f"all of {host}"
        farm.put(name, host, CAPACITY, TenantView(name, "bob", farm.now, True, 0, 0, 0, False))
    assert reserved(h0=5, h1=6, h2=9) == Place("new", ("h2",), victims=("all of h2",))
    assert reserved(h0=50, h1=6, h2=9) == Place("new", ("h0",), victims=("all of h0",))


def test_a_refusal_says_what_hosts_have_too_little_of() -> None:
    """Each resource, on how many hosts, and what these have at most."""
    farm = Farm({"h0": [], "h1": []}, {}, {})
    stays = TenantView("a", "ann", farm.now, False, 0, 0, 0, False)
    farm.put("a", "h0", (("cpu", 4000), ("memory", 8000)), stays)
    farm.put("b", "h1", (("cpu", 2000), ("memory", 7000)), stays)
    farm.tenants["new"] = stays
    refused = farm.ask(HostPreemptionMapper(), "new", (("cpu", 5000), ("memory", 10_000)))
    assert isinstance(refused, Refuse) and words(of_mapper(refused.reason)) == (
        "no host of type 'node' has room for what lease new needs: "
        "too little cpu on 1 of 2 hosts: 5 needed, at most 4 free; "
        "too little memory on 2 of 2 hosts: 10000MiB needed, at most 9000MiB free"
    )
