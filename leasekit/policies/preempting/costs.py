"""What it costs to preempt leases: plug-ins.

A plug-in has ``cost(lease, now)``, a number of at least 0; what several victims cost is the sum. Two methods are its
own to have or not:

- ``trend(lease, now)``: the cost, by how much it rises with each millisecond, and until when it does. The index
  (:mod:`.index`) then knows what leases cost later on; without it, it asks again at each new instant.
- ``set_cost(leases, now)``: what several victims cost together, where that is no sum. It must be monotone: one victim
  more costs no less.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol, TypeAlias, TypeVar

from leasekit.core.time import HOUR, INSTANT_MAX, Duration, Instant
from leasekit.policies.preempting.hosts import HostedLease

Amount: TypeAlias = int | float
A = TypeVar("A")
T = TypeVar("T")

CLASS_BASE: Final = 1_000
"""What a victim of one class costs in victims of the class below, by priority: nobody has as many on a host."""


class CostError(ValueError):
    """A cost plug-in went wrong: which, for which lease, what it returned, and what it may."""


class VictimCost(Protocol):
    """A cost plug-in."""

    def cost(self, lease: HostedLease, now: Instant) -> Amount:
        """What it costs to preempt ``lease`` at ``now``."""


class PeriodCost:
    """The default: how long ago the lease's current billing period began, in ms, which is not billed if it ends now."""

    def __init__(self, period: Duration = HOUR) -> None:
        self.period = period

    def cost(self, lease: HostedLease, now: Instant) -> int:
        """Runtime mod period."""
        return (now - lease.start) % self.period

    def trend(self, lease: HostedLease, now: Instant) -> tuple[int, int, Instant]:
        """It rises by 1 each ms, up to the end of the period."""
        cost = (now - lease.start) % self.period
        return cost, 1, now + self.period - cost


class PriceCost(PeriodCost):
    """The same times the lease's price: what is not earned."""

    def cost(self, lease: HostedLease, now: Instant) -> int:
        """Runtime mod period, times price."""
        return lease.price * super().cost(lease, now)

    def trend(self, lease: HostedLease, now: Instant) -> tuple[int, int, Instant]:
        """It rises by the price each ms, up to the end of the period."""
        cost, _, until = super().trend(lease, now)
        return lease.price * cost, lease.price, until


class LostWorkCost:
    """What was done since it was saved last, or since the start, in ms."""

    def cost(self, lease: HostedLease, now: Instant) -> int:
        """The time since then."""
        return max(0, now - max(lease.start, lease.saved))

    def trend(self, lease: HostedLease, now: Instant) -> tuple[int, int, Instant]:
        """It rises by 1 each ms, once it has begun."""
        begin = max(lease.start, lease.saved)
        return (now - begin, 1, INSTANT_MAX) if begin <= now else (0, 0, begin)


class CountCost:
    """1 for each victim."""

    def cost(self, lease: HostedLease, now: Instant) -> int:
        """1."""
        return 1

    def trend(self, lease: HostedLease, now: Instant) -> tuple[int, int, Instant]:
        """It never changes."""
        return 1, 0, INSTANT_MAX


class PriorityCost:
    """As few victims of the highest class as can be, then of the next one, and so on: of classes from 0 on, one victim
    counts as :data:`CLASS_BASE` of the class below, and class 0 for 1.
    """

    def cost(self, lease: HostedLease, now: Instant) -> int:
        """A power of the base."""
        return int(CLASS_BASE ** max(0, lease.priority))

    def trend(self, lease: HostedLease, now: Instant) -> tuple[int, int, Instant]:
        """It never changes."""
        return self.cost(lease, now), 0, INSTANT_MAX


COSTS: Final[Mapping[str, Callable[[Duration], VictimCost]]] = {
    "period": PeriodCost,
    "price": PriceCost,
    "lost_work": lambda _: LostWorkCost(),
    "count": lambda _: CountCost(),
    "priority": lambda _: PriorityCost(),
}
"""Costs by name; each is made of the billing period."""


def costs_of(plugin: VictimCost, leases: Sequence[HostedLease], now: Instant) -> list[Amount]:
    """What each of the leases costs, checked. Raises :class:`CostError`."""
    found = _each(plugin, plugin.cost, leases, now)
    for lease, cost in zip(leases, found, strict=True):
        if not _is_cost(cost):
            raise CostError(_wrong(plugin, f"lease {lease.id}", repr(cost)))
    return found


def trends_of(
    plugin: VictimCost, leases: Sequence[HostedLease], now: Instant
) -> tuple[list[Amount], list[Amount], Instant]:
    """What each of the leases costs, by how much that rises with each millisecond, and until when all of that holds.
    Raises :class:`CostError`.
    """
    method: Callable[..., tuple[Amount, Amount, Instant]] = plugin.trend  # type: ignore[attr-defined] # as below
    costs: list[Amount] = []
    rates: list[Amount] = []
    first = INSTANT_MAX
    for lease in leases:
        try:
            cost, rate, until = method(lease, now)
        except Exception as error:  # foreign code
            raise _failed(plugin, lease, error) from error
        whole = type(cost) is type(rate) is int and cost >= 0 <= rate  # as of nearly all: said at once
        if not (whole or (_is_cost(cost) and _is_cost(rate))) or until <= now:
            found = f"{cost!r}, rising by {rate!r} until {until!r}"
            raise CostError(_wrong(plugin, f"lease {lease.id}", found))
        costs.append(cost)
        rates.append(rate)
        if until < first:
            first = until
    return costs, rates, first


def cost_of_set(plugin: VictimCost, leases: Sequence[HostedLease], now: Instant) -> Amount:
    """What the leases cost together, by ``set_cost``, checked. Raises :class:`CostError`."""
    method: Callable[..., Amount] = plugin.set_cost  # type: ignore[attr-defined] # asked for by who has seen it
    found = _each(plugin, method, [leases], now)[0]
    if _is_cost(found):
        return found
    raise CostError(_wrong(plugin, f"leases {', '.join(lease.id for lease in leases)}", repr(found)))


def total(costs: Sequence[Amount]) -> Amount:
    """The sum, rounded once where there are fractions, so that it doesn't depend on the order."""
    found = sum(costs)
    return math.fsum(costs) if isinstance(found, float) else found


def _is_cost(found: object) -> bool:
    return (type(found) is int and found >= 0) or (isinstance(found, float) and 0 <= found < math.inf)


def _each(plugin: VictimCost, method: Callable[[A, Instant], T], arguments: Sequence[A], now: Instant) -> list[T]:
    """What a plug-in returns for each of the arguments."""
    found: list[T] = []
    try:
        for each in arguments:
            found.append(method(each, now))
    except Exception as error:  # foreign code
        raise _failed(plugin, arguments[len(found)], error) from error
    return found


def _failed(plugin: VictimCost, on: object, error: Exception) -> CostError:
    """Whatever a plug-in raises is told by its name."""
    what = f"lease {on.id}" if isinstance(on, HostedLease) else "several leases"
    return CostError(_wrong(plugin, what, f"{type(error).__name__}: {error}"))


def _wrong(plugin: VictimCost, what: str, found: str) -> str:
    return f"cost {type(plugin).__name__} of {what}: found {found:.200}, expected a number of at least 0"
