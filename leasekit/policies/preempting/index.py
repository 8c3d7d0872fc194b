"""Many hosts, for which a decision doesn't look at each.

For each kind of request that was asked for, the index keeps which hosts have room, and of each other host the cheapest
victims. What these cost rises evenly for a while: so hosts whose victims' cost rises at one rate stay in
one order, and there is a heap for each rate. A host is looked at anew when its leases change, and when its cheapest
victims may be others: a billing period ends, a lease is no longer protected, or other victims become cheaper whose cost
rises less fast. All of that is known beforehand.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from operator import attrgetter
from types import MappingProxyType
from typing import Final, NamedTuple, TypeAlias

from sortedcontainers import SortedSet

from leasekit.core.time import INSTANT_MAX, Instant
from leasekit.policies.preempting.costs import Amount, CostError, total, trends_of
from leasekit.policies.preempting.hosts import HostedLease, HostRequest, LoadedHost, Vector, fits, may_leave, missing
from leasekit.policies.preempting.rules import PlacingRules
from leasekit.policies.preempting.selection import HostOption, weighed
from leasekit.policies.preempting.victims import TABLE_MAX, choose_victims, minimal_sets

KINDS_MAX: Final = 32
"""For how many kinds of requests the index is kept: those that were asked for last."""
VOID_MAX: Final = 1_000
"""How many entries of a heap may be void, beside as many as there are hosts."""


_needs: Final = attrgetter("needs")

Accept: TypeAlias = Callable[["HostOption"], "HostOption | None"]
"""What else is asked of an option: whether it will do (else None), maybe with other victims, which cost no less."""


class HostIndex:
    """Hosts by id, and the best of them for a request. Time must not run backwards."""

    def __init__(self, hosts: Iterable[LoadedHost], rules: PlacingRules) -> None:
        self._hosts = {host.id: host for host in hosts}
        self._rules = rules
        self._kinds: OrderedDict[tuple[Vector, bool, int | None], _Kind] = OrderedDict()

    @property
    def hosts(self) -> Mapping[str, LoadedHost]:
        """The hosts as they are now."""
        return MappingProxyType(self._hosts)

    def put(self, host: LoadedHost) -> None:
        """A host that is new, or whose leases have changed."""
        self._hosts[host.id] = host
        for kind in self._kinds.values():
            kind.changed.add(host.id)

    def discard(self, name: str) -> None:
        """A host that is gone, if it was there."""
        if self._hosts.pop(name, None) is not None:
            for kind in self._kinds.values():
                kind.changed.add(name)

    def select(self, request: HostRequest, now: Instant, accept: Accept | None = None) -> HostOption | None:
        """As :func:`.selection.select` over all hosts that are accepted; raises the same."""
        key = request[:3]
        kind = self._kinds.get(key)
        if kind is None:
            kind = self._kinds[key] = _Kind(HostRequest(*key), self._rules, self._hosts)
            if len(self._kinds) > KINDS_MAX:
                self._kinds.popitem(last=False)
        self._kinds.move_to_end(key)
        return kind.select(self._hosts, request, now, accept or _any)

    def place(self, request: HostRequest, leases: Sequence[HostedLease], now: Instant) -> list[HostOption]:
        """A place for each of several equal leases, one after the other: they are put there, and their victims leave.
        If there are places for some only, these are returned, and nothing has changed. Raises as :meth:`select`.
        """
        chosen: list[HostOption] = []
        for lease in leases:
            one = self.select(request, now)
            if one is None:
                for before in reversed(chosen):
                    self.put(before.host)
                break
            chosen.append(one)
            self.put(one.host.exchanged(one.victims, lease))
        return chosen


def _any(option: HostOption) -> HostOption:
    return option


class _Entry(NamedTuple):
    """The cheapest victims of a host: they cost ``base`` plus ``rate`` times the instant.

    Where ``at`` isn't -1 these are the cheapest at that instant alone, and later on no others cost less than they did.
    """

    base: Amount
    size: int
    host: str
    number: int
    rate: Amount
    at: Instant
    victims: tuple[HostedLease, ...]


class _Kind:
    """What is known of all hosts for one kind of request."""

    def __init__(self, request: HostRequest, rules: PlacingRules, hosts: Iterable[str]) -> None:
        self._request = request
        self._rules = rules
        self._foreseen = hasattr(rules.cost, "trend") and not hasattr(rules.cost, "set_cost")
        self._room: SortedSet[str] = SortedSet()
        self._heaps: dict[Amount, list[_Entry]] = {}
        self._due: list[tuple[Instant, int, str]] = []
        self._looks: dict[str, int] = {}
        """The number of the last look at each host, below 0 if it has room: what earlier ones have found is void."""
        self._number = 0
        self._unproven: dict[str, Amount] = {}
        """Hosts for whose victims the search was given up, and what these cost at least."""
        self.changed = set(hosts)
        """Hosts that must be looked at anew."""

    def select(
        self, hosts: Mapping[str, LoadedHost], request: HostRequest, now: Instant, accept: Accept
    ) -> HostOption | None:
        """The best host, by filters and weighers as well."""
        self._advance(hosts, now)
        rules = self._rules
        rooms: list[HostOption] = []
        for name in self._room:
            if rules.passes(hosts[name], request) and (one := accept(HostOption(hosts[name]))) is not None:
                rooms.append(one)
                if not rules.weighers:
                    break
        found = rooms or self._with_victims(hosts, request, now, accept)
        if not found:
            return None
        best = weighed(found, request, rules)[0] if len(found) > 1 else found[0]
        if not best.victims or not self._unproven:
            return best
        lower = min(self._unproven.values())
        return best._replace(proven=False, bound=lower) if lower < best.cost else best

    def _with_victims(
        self, hosts: Mapping[str, LoadedHost], request: HostRequest, now: Instant, accept: Accept
    ) -> list[HostOption]:
        """The best of the hosts without room: all that are as good as each other, if they are to be weighed."""
        found: list[HostOption] = []
        seen: list[_Entry] = []
        rules, dearer = self._rules, False  # what was accepted with other victims is compared with what comes next
        try:
            while (entry := self._next(now)) is not None:
                cost = entry.base + entry.rate * now
                if found and (
                    not (rules.weighers or dearer) or (cost, entry.size) > min(one.rank for one in found)[1:]
                ):
                    break
                host = hosts[entry.host]
                if entry.at not in (-1, now):
                    self.changed.add(entry.host)  # if its cost can't be told
                    self._look_anew(host, now)
                    self.changed.discard(entry.host)
                    continue
                one = accept(HostOption(host, entry.victims, cost, True, cost)) if rules.passes(host, request) else None
                if one is not None and one.victims is entry.victims and not (found or rules.weighers):
                    return [one]  # it is the best: what comes next is no better
                seen.append(heappop(self._heaps[entry.rate]))
                if one is not None:
                    found.append(one)
                    dearer = dearer or one.victims != entry.victims
        finally:  # also where a filter goes wrong
            for entry in seen:
                heappush(self._heaps.setdefault(entry.rate, []), entry)
        best = min((one.rank for one in found), default=None)
        return [one for one in found if one.rank == best]

    def _next(self, now: Instant) -> _Entry | None:
        """The entry of least cost at an instant."""
        best: _Entry | None = None
        rank: tuple[Amount, int, str] = (0, 0, "")
        for rate, heap in list(self._heaps.items()):
            while heap and self._looks.get(heap[0].host) != heap[0].number:
                heappop(heap)
            if not heap:
                del self._heaps[rate]
                continue
            first = heap[0]
            this = (first.base + rate * now, first.size, first.host)
            if best is None or this < rank:
                best, rank = first, this
        return best

    # -- looking at hosts ----------------------------------------------------------------------------------------------

    def _advance(self, hosts: Mapping[str, LoadedHost], now: Instant) -> None:
        """Look at the hosts that have changed, or whose cheapest victims may be others by now."""
        while self._due and self._due[0][0] <= now:
            _, number, name = heappop(self._due)
            if self._looks.get(name) == number:
                self.changed.add(name)
        names, self.changed = self.changed, set()
        try:
            for name in names:
                if name in hosts:
                    self._look_anew(hosts[name], now)
                else:
                    self._forget(name)
        except CostError:
            self.changed |= names
            raise

    def _forget(self, name: str) -> None:
        if self._looks.pop(name, 0) < 0:
            self._room.discard(name)
        if self._unproven:
            self._unproven.pop(name, None)

    def _look_anew(self, host: LoadedHost, now: Instant) -> None:
        self._forget(host.id)
        self._number += 1
        self._looks[host.id] = self._number
        needs = self._request.needs
        if fits(needs, host.full):
            self._looks[host.id] = -self._number
            self._room.add(host.id)
        elif not self._request.preemptible and fits(needs, host.normal):
            leases, until = may_leave(host, self._request, now)
            if until is not None:
                heappush(self._due, (until, self._number, host.id))
            if self._foreseen and len(leases) <= TABLE_MAX:
                self._look_in_table(host, leases, now)
            else:
                self._search(host, leases, now)

    def _look_in_table(self, host: LoadedHost, leases: Sequence[HostedLease], now: Instant) -> None:
        """The cheapest of a few victims, and until when they are."""
        sets = minimal_sets(tuple(map(_needs, leases)), missing(self._request.needs, host.full))
        if not sets:
            return
        costs, rates, until = trends_of(self._rules.cost, leases, now)
        found: list[tuple[Amount, int, tuple[int, ...], Amount]] = []
        for which in sets:
            if len(which) == 1:
                (only,) = which
                found.append((costs[only], 1, which, rates[only]))
            else:
                rate = total([rates[each] for each in which])
                found.append((total([costs[each] for each in which]), len(which), which, rate))
        cost, size, which, rate = min(found)
        if size > 1 or rate != min(rates):
            for other in found:
                if other[3] < rate:
                    until = min(until, now + max(1, int(-((cost - other[0]) // (rate - other[3])))))
        victims = tuple([leases[each] for each in which])
        self._keep(_Entry(cost - rate * now, size, host.id, self._number, rate, -1, victims), until)

    def _search(self, host: LoadedHost, leases: Sequence[HostedLease], now: Instant) -> None:
        """The cheapest of many victims, now: while costs rise they don't become cheaper."""
        rules = self._rules
        victims = choose_victims(leases, missing(self._request.needs, host.full), rules.cost, now, rules.nodes_max)
        if victims is None:
            return
        until = trends_of(rules.cost, leases, now)[2] if self._foreseen and victims.proven else now + 1
        if not victims.proven:
            self._unproven[host.id] = victims.bound
        count = len(victims.leases)
        self._keep(_Entry(victims.cost, count, host.id, self._number, 0, now, victims.leases), until)

    def _keep(self, entry: _Entry, until: Instant) -> None:
        heap = self._heaps.setdefault(entry.rate, [])
        heappush(heap, entry)
        if until < INSTANT_MAX:
            heappush(self._due, (until, entry.number, entry.host))
        if len(heap) > 2 * len(self._looks) + VOID_MAX:
            heap[:] = [one for one in heap if self._looks.get(one.host) == one.number]
            heapify(heap)
