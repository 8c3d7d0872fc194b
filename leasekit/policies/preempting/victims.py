"""The victims on one host: of all sets of leases that make enough room, the one of least cost; of these the smallest,
and of these the first by ids.

Small sets of leases have a table of all sets without a victim too many. For others it is branch and bound, depth
first: what is missing of each resource is covered by fractions of leases at least (and what is missing of all of them,
weighted, too), a lease is only taken when those are that are better in everything (dominance), and a greedy choice is
where it starts. With a limit on nodes the answer is the best found so far, and says that it isn't proven.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate
from operator import ge, mul
from typing import Final, NamedTuple, TypeAlias

from leasekit.core.time import Instant
from leasekit.policies.preempting.costs import Amount, VictimCost, cost_of_set, costs_of, total
from leasekit.policies.preempting.hosts import HostedLease, Vector

TABLE_MAX: Final = 8
"""Up to how many leases there is a table of all sets that will do."""
NODES_MAX: Final = 50_000
"""How many nodes of a search are looked at, unless somebody says otherwise."""

WEIGHT_STEPS: Final = 12
"""How often weights of resources are put right."""

_Key: TypeAlias = tuple[Amount, int, tuple[str, ...]]


class Victims(NamedTuple):
    """Leases by id that make room, and what they cost. Unless it is ``proven`` that no others are better, ``bound`` is
    what any cost at least.
    """

    leases: tuple[HostedLease, ...]
    cost: Amount
    proven: bool
    bound: Amount


def choose_victims(
    leases: Sequence[HostedLease], missing: Vector, plugin: VictimCost, now: Instant, nodes_max: int = NODES_MAX
) -> Victims | None:
    """The cheapest victims among ``leases``, which are sorted by id, that leave what is ``missing`` of each resource;
    None if all of them don't. Raises ``CostError``.
    """
    if len(leases) <= TABLE_MAX:
        return next(all_victims(leases, missing, plugin, now), None)
    if any(sum(lease.needs[which] for lease in leases) < short for which, short in enumerate(missing)):
        return None
    return _VictimSearch(leases, missing, plugin, now).run(nodes_max)


def all_victims(leases: Sequence[HostedLease], missing: Vector, plugin: VictimCost, now: Instant) -> Iterator[Victims]:
    """All sets of a few leases that will do and have no victim too many, the best first. Raises ``CostError``."""
    sets = minimal_sets(tuple([lease.needs for lease in leases]), missing)
    together = hasattr(plugin, "set_cost")
    costs = [] if together or not sets else costs_of(plugin, leases, now)
    found = []
    for which in sets:
        chosen = tuple([leases[each] for each in which])
        cost = cost_of_set(plugin, chosen, now) if together else total([costs[each] for each in which])
        found.append((cost, len(which), which, chosen))
    return (Victims(chosen, cost, True, cost) for cost, _, _, chosen in sorted(found, key=lambda one: one[:3]))


@lru_cache(maxsize=65_536)
def minimal_sets(needs: tuple[Vector, ...], missing: Vector) -> tuple[tuple[int, ...], ...]:
    """The sets of places in ``needs`` that add up to what is missing, and don't without any one of them.

    Hosts that hold leases of the same sizes share an entry.
    """
    enough: list[int] = []
    for mask in sorted(range(1 << len(needs)), key=int.bit_count):
        if not any(mask & smaller == smaller for smaller in enough):
            chosen = [each for which, each in enumerate(needs) if mask >> which & 1]
            if all(sum(each[which] for each in chosen) >= short for which, short in enumerate(missing)):
                enough.append(mask)
    return tuple(tuple(which for which in range(len(needs)) if mask >> which & 1) for mask in enough)


class _Item(NamedTuple):
    """A lease: what it costs in whole numbers, and what it gives of each resource that something is missing of, no more
    than that; last of all of them, weighted.
    """

    lease: HostedLease
    cost: int
    gives: Vector


class _Supply(NamedTuple):
    """Of one resource: what the leases from some place on give, the cheapest for what it gives first, and what that
    costs, each added up from 0; and what they give, the largest first.
    """

    gives: list[int]
    costs: list[int]
    largest: list[int]

    def cost(self, need: int) -> int | None:
        """What so much costs at least, if fractions of leases could be had; None if there isn't as much."""
        last = bisect_left(self.gives, need)
        if last == len(self.gives):
            return None
        gives = self.gives[last] - self.gives[last - 1]
        cost = self.costs[last] - self.costs[last - 1]
        return self.costs[last - 1] - (-cost * (need - self.gives[last - 1]) // gives)


class _Open(NamedTuple):
    """A node that is to be looked at: leases before ``place`` are decided, and those of the bits of ``without`` out."""

    place: int
    without: int
    missing: Vector
    cost: Amount
    chosen: tuple[int, ...]


class _VictimSearch:
    """One search, over leases that make enough room together. Costs that are added up are scaled to whole numbers."""

    def __init__(self, leases: Sequence[HostedLease], missing: Vector, plugin: VictimCost, now: Instant) -> None:
        self._plugin, self._now = plugin, now
        self._together = hasattr(plugin, "set_cost")
        costs: list[Amount] = [0] * len(leases) if self._together else costs_of(plugin, leases, now)
        self._costs = {lease.id: cost for lease, cost in zip(leases, costs, strict=True)}
        self._scale = 1 if self._together else max(Fraction(cost).denominator for cost in costs)
        short = [which for which, amount in enumerate(missing) if amount]
        self._missing = tuple([missing[which] for which in short])
        gives = [tuple([min(lease.needs[which], missing[which]) for which in short]) for lease in leases]
        whole = [int(Fraction(cost) * self._scale) for cost in costs]
        self._weights = _weights(
            self._missing, [(cost, each) for cost, each in zip(whole, gives, strict=True) if any(each)]
        )
        items = [
            _Item(lease, cost, self._weighed(each))
            for lease, cost, each in zip(leases, whole, gives, strict=True)
            if any(each)
        ]
        # A lease that is better than another in everything comes before it.
        items.sort(key=lambda one: (_ratio(one, -1), one.cost, -one.gives[-1], one.lease.id))
        self._items = items
        self._orders = [self._order(which) for which in range(len(short) + 1)]
        self._worse = [0 if self._together else _worse_than(items, place) for place in range(len(items))]
        self._rows: dict[int, list[_Supply]] = {}
        self._best = self._greedy()

    def run(self, nodes_max: int) -> Victims:
        """The best victims, or the best that were found within so many nodes."""
        left = [_Open(0, 0, self._missing, 0, ())]
        for _ in range(nodes_max):
            if not left:
                return self._answer(self._best[0], proven=True)
            left += self._expand(left.pop())
        bounds = [self._bound(node) for node in left]
        return self._answer(min([self._best[0], *(one[0] for one in bounds if one)]), proven=not left)

    def _expand(self, node: _Open) -> Iterator[_Open]:
        """The nodes without and with the next lease of a node that may lead to something better."""
        place = node.place
        while node.without >> place & 1:
            place += 1
        bound = self._bound(node._replace(place=place)) if place < len(self._items) else None
        if bound is None or bound > self._best[:2]:
            return
        item = self._items[place]
        if bound == self._best[:2] and self._first_ids(place, node.chosen) >= self._best[2]:
            return
        yield _Open(place + 1, node.without | self._worse[place], node.missing, node.cost, node.chosen)
        chosen = (*node.chosen, place)
        missing = tuple([max(0, short - gives) for short, gives in zip(node.missing, item.gives, strict=False)])
        cost = self._cost(chosen) if self._together else node.cost + item.cost
        if any(missing):
            yield _Open(place + 1, node.without, missing, cost, chosen)
        else:
            self._best = min(self._best, (cost, len(chosen), self._ids(chosen)))

    # -- bounds --------------------------------------------------------------------------------------------------------

    def _bound(self, node: _Open) -> tuple[Amount, int] | None:
        """What victims cost at least, and how many there are at least, with those of a node; None if none will do."""
        rows = self._rows.get(node.place)
        if rows is None:
            rows = self._rows[node.place] = [self._row(node.place, which) for which in range(len(self._missing) + 1)]
        cost = count = 0
        for row, short in zip(rows, self._weighed(node.missing), strict=True):
            if short:
                more = row.cost(short)
                if more is None:
                    return None
                cost = max(cost, more)
                count = max(count, bisect_left(row.largest, short))
        return node.cost + cost, len(node.chosen) + count

    def _order(self, which: int) -> tuple[list[int], list[int]]:
        """The leases that give of a resource: the cheapest for what they give first, and the largest first."""
        giving = [place for place, one in enumerate(self._items) if one.gives[which]]
        cheapest = sorted(giving, key=lambda place: _ratio(self._items[place], which))
        return cheapest, sorted(giving, key=lambda place: -self._items[place].gives[which])

    def _row(self, begin: int, which: int) -> _Supply:
        """What leases from a place on give of a resource."""
        cheapest, largest = self._orders[which]
        items = [self._items[place] for place in cheapest if place >= begin]
        gives = accumulate([one.gives[which] for one in items], initial=0)
        costs = accumulate([one.cost for one in items], initial=0)
        sizes = accumulate([self._items[place].gives[which] for place in largest if place >= begin], initial=0)
        return _Supply(list(gives), list(costs), list(sizes))

    def _weighed(self, amounts: Vector) -> Vector:
        """Amounts by resource, and their sum by weight."""
        return (*amounts, sum(map(mul, amounts, self._weights)))

    def _first_ids(self, place: int, chosen: tuple[int, ...]) -> tuple[str, ...]:
        """The first ids that as many victims as the best can have."""
        ids = sorted(item.lease.id for item in self._items[place:])
        return tuple(sorted([*self._ids(chosen), *ids[: self._best[1] - len(chosen)]]))

    # -- answers -------------------------------------------------------------------------------------------------------

    def _greedy(self) -> _Key:
        """Leases by what they give for their cost until there is enough, without those that are too many."""
        chosen: list[int] = []
        for place in range(len(self._items)):
            chosen.append(place)
            if self._enough(chosen):
                break
        for place in sorted(chosen, key=lambda one: -self._items[one].cost):
            fewer = [one for one in chosen if one != place]
            if self._enough(fewer):
                chosen = fewer
        return self._cost(chosen), len(chosen), self._ids(chosen)

    def _enough(self, chosen: Sequence[int]) -> bool:
        return all(
            sum(self._items[place].gives[which] for place in chosen) >= short
            for which, short in enumerate(self._missing)
        )

    def _cost(self, chosen: Sequence[int]) -> Amount:
        if self._together:
            leases = [self._items[place].lease for place in chosen]
            return cost_of_set(self._plugin, sorted(leases), self._now)
        return sum(self._items[place].cost for place in chosen)

    def _ids(self, chosen: Sequence[int]) -> tuple[str, ...]:
        return tuple(sorted(self._items[place].lease.id for place in chosen))

    def _answer(self, bound: Amount, *, proven: bool) -> Victims:
        leases = {item.lease.id: item.lease for item in self._items}
        victims = tuple(leases[name] for name in self._best[2])
        if self._together:
            return Victims(victims, self._best[0], proven, bound)
        cost = total([self._costs[name] for name in self._best[2]])
        return Victims(victims, cost, proven, cost if proven else float(Fraction(bound) / self._scale))


def _ratio(item: _Item, which: int) -> int:
    """What a lease costs for what it gives of a resource, times so much that different ratios stay different."""
    return (item.cost << 256) // item.gives[which]


def _worse_than(items: Sequence[_Item], place: int) -> int:
    """A bit for each lease after ``place`` that is no better than the one there in anything: it is no victim unless
    that one is.
    """
    best, worse = items[place], 0
    for other in range(place + 1, len(items)):
        item = items[other]
        cheaper = (best.cost, best.lease.id) < (item.cost, item.lease.id)
        if cheaper and all(map(ge, best.gives, item.gives)):
            worse |= 1 << other
    return worse


def _weights(missing: Vector, items: Sequence[tuple[int, Vector]]) -> list[int]:
    """Weights of resources with which the bound on the cost is high: a resource weighs more the more is missing of it
    where enough is had of all of them together.
    """
    weights = [1 / amount for amount in missing]
    best, bound = weights, -1.0
    for _ in range(WEIGHT_STEPS):
        sums = [(sum(map(mul, gives, weights)), cost, gives) for cost, gives in items]
        need, cost, left = sum(map(mul, missing, weights)), 0.0, list(map(float, missing))
        for gain, price, gives in sorted(sums, key=lambda one: one[1] / one[0]):
            share = min(1.0, need / gain)
            need, cost = need - share * gain, cost + share * price
            left = [amount - share * each for amount, each in zip(left, gives, strict=True)]
            if share < 1:
                break
        if cost > bound:
            best, bound = weights, cost
        weights = [
            one * max(0.1, 1 + amount / short) for one, amount, short in zip(weights, left, missing, strict=True)
        ]
    return [int(one / min(best) * 64) for one in best]
