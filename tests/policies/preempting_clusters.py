"""Random clusters with preemptible leases, and the best host and victims by trying everything."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations
from random import Random
from typing import Any, Final

from leasekit.core.time import HOUR, MINUTE
from leasekit.policies.preempting.costs import CountCost, LostWorkCost, PeriodCost, PriceCost, PriorityCost
from leasekit.policies.preempting.hosts import HostedLease, HostRequest, LoadedHost
from leasekit.policies.preempting.selection import HostOption

SIZES: Final = ((1, 2000, 20), (2, 4000, 40), (4, 8000, 80), (1, 6000, 10), (3, 1000, 0))
NOW: Final = 1_000 * HOUR


class LargestCost:
    """Victims cost what the dearest of them does: monotone, and no sum."""

    def cost(self, lease: HostedLease, now: int) -> int:
        """As the default."""
        return PeriodCost().cost(lease, now)

    def set_cost(self, leases: Iterable[HostedLease], now: int) -> int:
        """The most of each."""
        return max((self.cost(lease, now) for lease in leases), default=0)


class SlowCost:
    """A plug-in that doesn't say how its cost grows."""

    def cost(self, lease: HostedLease, now: int) -> int:
        """Jumps without a rule that anybody knows."""
        return (now * 7919 + lease.start * 104_729) % 1000


COSTS: Final = (PeriodCost, PriceCost, LostWorkCost, CountCost, PriorityCost, LargestCost, SlowCost)


def lease(rng: Random, name: str, needs: tuple[int, ...], now: int) -> HostedLease:
    """A lease that has run for a while."""
    return HostedLease(
        name,
        needs,
        now - rng.randrange(400) * MINUTE,
        preemptible=rng.random() < 0.7,
        priority=rng.choice((0, 0, 1, 2)),
        price=rng.choice((1, 2, 5)),
        min_run=rng.choice((0, 0, HOUR)),
        saved=now - rng.randrange(200) * MINUTE,
    )


def cluster(rng: Random, count: int, now: int = NOW) -> list[LoadedHost]:
    """Hosts that are full, or nearly."""
    hosts = []
    for number in range(count):
        capacity = (rng.choice((8, 8, 12)), 16_000, 160)
        left, leases = capacity, []
        for place in range(rng.randint(1, 8)):
            needs = rng.choice(SIZES)
            if all(need <= there for need, there in zip(needs, left, strict=True)):
                left = tuple(there - need for need, there in zip(needs, left, strict=True))
                leases.append(lease(rng, f"L{number}.{place}", needs, now))
        hosts.append(LoadedHost(id=f"h{number}", capacity=capacity, leases=tuple(leases)))
    return hosts


def best(hosts: Iterable[LoadedHost], request: HostRequest, plugin: Any, now: int) -> tuple[Any, ...] | None:
    """The key of the best host and victims, by trying all."""
    found = []
    for host in hosts:
        able = [
            one
            for one in host.leases
            if one.preemptible
            and not request.preemptible
            and (request.priority is None or one.priority <= request.priority)
            and now - one.start >= one.min_run
        ]
        for size in range(len(able) + 1):
            for chosen in combinations(able, size):
                free = [sum(column) for column in zip(host.full, *(one.needs for one in chosen), strict=True)]
                if all(there >= need for there, need in zip(free, request.needs, strict=True)):
                    together = getattr(plugin, "set_cost", None)
                    cost = together(chosen, now) if together else sum(plugin.cost(one, now) for one in chosen)
                    found.append((size > 0, cost, size, host.id, tuple(sorted(one.id for one in chosen))))
    return min(found, default=None)


def key(one: HostOption | None) -> tuple[Any, ...] | None:
    """The same of an answer."""
    return None if one is None else (*one.rank, one.host.id, tuple(victim.id for victim in one.victims))
