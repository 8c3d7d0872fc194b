"""Machines on hosts, with victims: a normal lease that has no room gets that of the cheapest set of preemptible ones.

It decides as García et al. (FGCS 2019) have it, by :mod:`leasekit.policies.preempting`: the host in one pass, the
victims exactly. Hosts are kept from turn to turn, and follow what the site says has changed: a turn looks at no other.

A site has a place for each machine before it begins (in its calendars). A host has room for a machine
if it has now, and in the site's calendar up to the end of the lease. While leases leave a host nobody else there is
asked to, and what they leave is for the lease that they make room for.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from operator import add
from typing import ClassVar, Final

import attrs

from leasekit.core.filters import FilterError
from leasekit.core.mappers import (
    AuthorityCycle,
    AuthorityDecision,
    Demand,
    HostView,
    MachineChange,
    MachineView,
    Place,
    Refuse,
    TenantView,
    Wake,
)
from leasekit.core.properties import Vector, amount
from leasekit.core.reasons import Coded
from leasekit.core.settings import DurationSetting
from leasekit.core.time import HOUR, Instant, Term
from leasekit.policies.authority.first_fit import FirstFitTurn
from leasekit.policies.authority.weighing import (
    FREE,
    HostWeigherSettings,
    WeighingSettings,
    request_of,
    reservations,
)
from leasekit.policies.preempting.costs import COSTS, CostError, VictimCost
from leasekit.policies.preempting.hosts import HostedLease, HostRequest, LoadedHost, fits, may_leave, missing
from leasekit.policies.preempting.index import Accept, HostIndex
from leasekit.policies.preempting.rules import PlacingRules, WeigherError
from leasekit.policies.preempting.selection import HostOption, retry
from leasekit.policies.preempting.victims import TABLE_MAX, all_victims, choose_victims

NOBODY: Final = TenantView("", "", 0, False, 0, 0, 0, False)


@attrs.frozen(kw_only=True)
class RetrySettings(WeighingSettings):
    """Settings of :class:`RetryMapper`."""

    cost: str = attrs.field(default="period", validator=attrs.validators.in_(tuple(COSTS)))
    """What a victim costs when it hears of its end: the time into its current billing period (`"period"`, and
    `"price"`, as a site knows no prices), the time since its start (`"lost_work"`), 1 (`"count"`), or 1,000 times what
    one of the class below does (`"priority"`)."""
    period: DurationSetting = attrs.field(default=HOUR, validator=attrs.validators.ge(1))
    """The billing period."""
    budget: int | None = attrs.field(default=None, validator=attrs.validators.optional(attrs.validators.ge(0)))
    """How many leases of one holder and type may be on their way out at once, from their notice to their end."""


@attrs.frozen(kw_only=True)
class HostPreemptionSettings(RetrySettings):
    """Settings of :class:`HostPreemptionMapper`."""

    weighers: tuple[HostWeigherSettings, ...] = ()
    """Which of the hosts are better whose victims cost the same, added up; then it is the first by name."""


class HostPreemptionMapper:
    """The authority's mapper with victims, in one pass. Of types that are not divided it is
    :class:`.first_fit.FirstFit`. One that derives from it may have a ``cost`` of its own, a plug-in.
    """

    Settings: ClassVar[type[RetrySettings]] = HostPreemptionSettings
    inline: ClassVar[bool] = True
    makes_room: ClassVar[bool] = True

    def __init__(self, settings: RetrySettings | None = None, cost: VictimCost | None = None) -> None:
        self.settings = settings or self.Settings()
        self.rules = self.settings.rules(cost or COSTS[self.settings.cost](self.settings.period))
        self.budget = self.settings.budget
        self.watches = self.settings.watches
        self._farms: dict[str, _Farm] = {}

    def assign(self, cycle: AuthorityCycle) -> list[AuthorityDecision]:
        """Decide every demand of the cycle, in its order."""
        turn = VictimsTurn(cycle, self)
        return [decision for demand in cycle.demands for decision in turn.decide(demand)]

    def choose(self, index: HostIndex, request: HostRequest, now: Instant, accept: Accept) -> HostOption | None:
        """The best host that is accepted, and its victims."""
        return index.select(request, now, accept)

    def indexes(self, type_: str) -> list[HostIndex]:
        """The indexes of a type's hosts, one for each class, as of the last turn."""
        farm = self._farms.get(type_)
        return list(farm.indexes.values()) if farm is not None else []

    def farm(self, type_: str, cycle: AuthorityCycle) -> _Farm:
        """The hosts of a type, as a cycle shows them."""
        farm = self._farms.get(type_)
        if farm is None:
            farm = self._farms[type_] = _Farm(type_, self.rules, watches=self.watches)
        farm.follow(cycle)
        return farm


class RetryMapper(HostPreemptionMapper):
    """The same in two passes over all hosts, to compare with: the scheduler without victims, and where it finds
    nothing, once more with them.
    """

    Settings: ClassVar[type[RetrySettings]] = RetrySettings

    def choose(self, index: HostIndex, request: HostRequest, now: Instant, accept: Accept) -> HostOption | None:
        """The best host that is accepted, and its victims."""
        hosts, best = dict(index.hosts), None
        while (one := retry(list(hosts.values()), request, self.rules, now)) is not None:
            if best is not None and best.rank <= one.rank:
                break
            accepted = accept(one)  # with others in the place of victims that the budget rules out it may cost more
            if accepted is not None and (best is None or accepted.rank < best.rank):
                best = accepted
            del hosts[one.host.id]
        return best


class _Known:
    """A host, and what is on it, by what its site has said."""

    __slots__ = ("attributes", "capacity", "holds", "leases", "machines", "stirring", "view")

    def __init__(self, view: HostView, capacity: tuple[int, ...]) -> None:
        self.view, self.capacity = view, capacity
        self.attributes = {**view.properties, "unit": view.id, "type": view.type}
        self.holds: dict[str, str] = {}
        """The lease of each machine, by its own id if it has none."""
        self.machines: dict[str, dict[str, MachineView]] = {}
        """The machines of each lease."""
        self.leases: dict[str, HostedLease] = {}
        """One for all the machines that a lease has there."""
        self.stirring: set[str] = set()
        """Leases that come, or leave: until they have nobody else there is asked to leave."""

    def loaded(self, reserved: Instant | None) -> LoadedHost:
        """The host with its leases, and when it is ``reserved`` next."""
        leases: Iterable[HostedLease] = self.leases.values()
        if self.stirring:
            leases = [one._replace(preemptible=False) for one in leases]
        return LoadedHost(self.view.id, self.capacity, tuple(leases), self.attributes, reserved)


class _Farm:
    """The hosts of a type, by class, as they are now."""

    def __init__(self, type_: str, rules: PlacingRules, *, watches: bool) -> None:
        self._type, self._rules, self._watches = type_, rules, watches
        self._reserved: dict[str, Instant] = {}
        self._cycle: AuthorityCycle | None = None
        self._mark = 0
        self._stale: set[str] = set()
        """Hosts that have changed, or of which a turn has decided something, which the site may not do."""
        self._told: set[str] = set()
        """Leases that are to leave by what this turn has decided."""
        self._clear([])

    def _clear(self, views: Iterable[HostView]) -> None:
        self.names = tuple(sorted({name for view in views for name, _ in view.capacity}))
        self._vectors: dict[Vector, tuple[int, ...]] = {}
        self.known: dict[str, _Known] = {}
        self.indexes: dict[bytes, HostIndex] = {}
        self.on: dict[str, set[str]] = {}
        """The hosts of each lease."""
        self.tenants: dict[str, TenantView] = {}
        self.leaving: dict[str, str] = {}
        """Leases on their way out, and whose they are."""

    def follow(self, cycle: AuthorityCycle) -> None:
        """Take in what has changed since the last turn; what that decided counts as far as the site did it."""
        if self._cycle is cycle:
            return
        self._cycle = cycle
        for lease in self._told:
            self.leaving.pop(lease, None)
        self._told.clear()
        news = cycle.changes(self._type, self._mark)
        changed = news.hosts
        if news.anew or (changed and any(name not in self.names for view in changed for name, _ in view.capacity)):
            changed = changed if news.anew else tuple(cycle.hosts(self._type))
            self._clear(changed)
        for name in news.gone:
            self._drop(name)
        for view in changed:
            self._drop(view.id)
            if view.state == FREE:
                self.known[view.id] = _Known(view, self._vector(view.capacity))
                self._take([MachineChange(view.id, machine.id, machine) for machine in view.machines], cycle)
                self._stale.add(view.id)
        self._take(news.machines, cycle)
        if self._watches:
            before, self._reserved = self._reserved, reservations(cycle, self._type)
            self._stale.update(name for name, _ in before.items() ^ self._reserved.items())
        for name in sorted(self._stale):
            if name in self.known:
                self.put(self.known[name].loaded(self._reserved.get(name)))
        self._stale.clear()
        self._mark = news.mark

    def _drop(self, name: str) -> None:
        known = self.known.pop(name, None)
        if known is None:
            return
        for class_ in known.view.classes:
            self.indexes[class_].discard(name)
        for lease in known.leases:
            self._leaves(lease, name)

    def _leaves(self, lease: str, host: str) -> None:
        there = self.on[lease]
        there.discard(host)
        if not there:
            del self.on[lease], self.tenants[lease]
            self.leaving.pop(lease, None)

    def _take(self, machines: Iterable[MachineChange], cycle: AuthorityCycle) -> None:
        """These machines are on hosts now, or not any more."""
        for host, name, machine in machines:
            known = self.known.get(host)
            if known is None:
                continue
            self._stale.add(host)
            before, lease = known.holds.pop(name, None), (machine.lease or name) if machine is not None else None
            if before is not None:
                del known.machines[before][name]
                if before != lease:
                    self._count(known, before, cycle)
            if machine is not None and lease is not None:
                known.holds[name] = lease
                known.machines.setdefault(lease, {})[name] = machine
                self._count(known, lease, cycle)

    def _count(self, known: _Known, lease: str, cycle: AuthorityCycle) -> None:
        """What a lease has of a host, by its machines there."""
        known.stirring.discard(lease)
        needs: tuple[int, ...] = ()
        for machine in known.machines[lease].values():
            size = self._vector(machine.size)
            needs = tuple(map(add, needs, size)) if needs else size
            if machine.state == FREE:
                known.stirring.add(lease)
        if not needs:
            del known.machines[lease], known.leases[lease]
            self._leaves(lease, known.view.id)
            return
        one = self.tenants[lease] = cycle.tenant(lease) or NOBODY
        known.leases[lease] = HostedLease(lease, needs, one.start, one.preemptible, one.priority, 1, one.min_run)
        if lease in self.on:
            self.on[lease].add(known.view.id)
        else:
            self.on[lease] = {known.view.id}
        if one.is_leaving:
            self.leaving[lease] = one.holder
            known.stirring.add(lease)

    def put(self, host: LoadedHost) -> None:
        """A host as it is, or as it will be."""
        for class_ in self.known[host.id].view.classes:
            if class_ not in self.indexes:
                self.indexes[class_] = HostIndex((), self._rules)
            self.indexes[class_].put(host)

    def guess(self, host: LoadedHost) -> None:
        """A host as it will be, if the site does what was decided."""
        self._stale.add(host.id)
        self.put(host)

    def guess_beside(self, name: str, machine: HostedLease) -> None:
        """One more machine on a host, if nobody leaves that."""
        for class_ in self.known[name].view.classes if name in self.known else ():
            host = self.indexes[class_].hosts.get(name)
            if host is not None:
                self.guess(host.exchanged((), machine))
                return

    def hold(self, lease: str, holder: str) -> None:
        """A lease leaves: nobody else comes to its hosts in this turn, and is asked to leave them until it has."""
        self._told.add(lease)
        self.leaving[lease] = holder
        for name in sorted(self.on[lease]):
            self._stale.add(name)
            for class_ in self.known[name].view.classes:
                self.indexes[class_].discard(name)

    def amounts(self, size: Vector) -> tuple[int, ...] | None:
        """What a machine takes, in the order of what hosts have; None where no host has it."""
        for name, _ in size:
            if name not in self.names:
                return None
        return self._vector(size)

    def of(self, leases: Iterable[HostedLease]) -> dict[str, TenantView]:
        """What the tickets of leases on hosts say."""
        return {one.id: self.tenants[one.id] for one in leases}

    def is_of(self, name: str, class_: bytes) -> bool:
        """Whether a host is there, of a class."""
        known = self.known.get(name)
        return known is not None and class_ in known.view.classes

    def _vector(self, of: Vector) -> tuple[int, ...]:
        """Amounts in the order of what hosts have."""
        found = self._vectors.get(of)
        if found is None:
            found = self._vectors[of] = tuple([amount(of, name) for name in self.names])
        return found


class VictimsTurn(FirstFitTurn):
    """One turn, in which what has no room gets that of preemptible leases."""

    def __init__(self, cycle: AuthorityCycle, mapper: HostPreemptionMapper) -> None:
        super().__init__(cycle)
        self._mapper = mapper

    def decide(self, demand: Demand) -> Iterable[AuthorityDecision]:
        """What a demand gets, or gives up, and who leaves for that."""
        if demand.units < 0 or not (demand.needs and demand.sizes):
            return super().decide(demand)
        return self._place_in(self._mapper.farm(demand.type, self._cycle), demand)

    def expect(self, demand: Demand, machines: Sequence[tuple[str, Vector]]) -> None:
        """Machines of a demand go to these hosts by another's decision, which the site may not carry out."""
        super().expect(demand, machines)
        farm = self._mapper.farm(demand.type, self._cycle)
        for host, size in machines:
            farm.guess_beside(host, HostedLease(demand.lease, farm.amounts(size) or (), self._cycle.now))

    def _place_in(self, farm: _Farm, demand: Demand) -> Iterator[AuthorityDecision]:
        """The machines of a demand where they are best; where that is nowhere, where their places are. If these are the
        places of leases that can't be asked to leave yet, the demand waits until they can.
        """
        search = _Search(self._cycle, self._mapper, farm, demand, self._beside)
        try:
            placed = search.place()
        except (FilterError, WeigherError) as error:
            yield Refuse(demand.lease, Coded(str(error), "weighing_failed"))
        except CostError as error:
            yield Refuse(demand.lease, Coded(str(error), "cost_failed"))
        else:
            at = search.waits_until() if placed is None else None
            if at is not None:
                yield Wake(at)
            else:
                yield placed or self.place(demand)


class _Search:
    """Hosts for the machines of one demand, one after the other: all of them, or nothing has changed."""

    def __init__(
        self,
        cycle: AuthorityCycle,
        mapper: HostPreemptionMapper,
        farm: _Farm,
        demand: Demand,
        beside: defaultdict[str, int],
    ) -> None:
        self._cycle, self._mapper, self._farm, self._demand, self._beside = cycle, mapper, farm, demand, beside
        self._tenant = cycle.tenant(demand.lease) or NOBODY
        self._planned: dict[str, int] = {}
        for host in demand.places:
            self._planned[host] = self._planned.get(host, 0) + 1
        self._hosts: list[str] = []
        self._victims: dict[str, TenantView] = {}
        self._before: list[LoadedHost] = []
        self._taken: dict[str, int] = {}
        """How many machines go to hosts on which they have no place yet."""

    def place(self) -> Place | None:
        """Where they go, and who leaves for that; None if they have no room. Raises ``FilterError``, ``WeigherError``
        and ``CostError``.
        """
        found = False
        try:
            found = self._choose_all()
        finally:
            if not found:
                for host in reversed(self._before):
                    self._farm.put(host)
        if not found or len(self._hosts) != self._demand.units:
            return None
        for lease, one in self._victims.items():
            self._farm.hold(lease, one.holder)
        for name, count in self._taken.items():
            self._beside[name] += count
        return Place(self._demand.lease, tuple(self._hosts), victims=tuple(self._victims))

    def _choose_all(self) -> bool:
        for (class_, count), size in zip(self._demand.classes, self._demand.sizes, strict=True):
            for _ in range(count):
                if not self._choose(class_, size):
                    return False
        return True

    def _choose(self, class_: bytes, size: Vector) -> bool:
        """A host for one machine."""
        needs, index = self._farm.amounts(size), self._farm.indexes.get(class_)
        if needs is None or index is None:
            return False
        request = self._request(needs)
        option = self._mapper.choose(index, request, self._cycle.now, partial(self._accepted, request, size))
        if option is None or (option.victims and self._goes_where_planned(class_, size)):
            return False
        name = option.host.id
        self._hosts.append(name)
        if len(self._hosts) < self._demand.units or not (option.victims or self._victims):
            self._before.append(index.hosts[name])
            machine = HostedLease(self._demand.lease, needs, self._cycle.now)
            self._farm.guess(index.hosts[name].exchanged(option.victims, machine))
        self._victims.update(self._farm.of(option.victims))
        if self._planned.get(name):
            self._planned[name] -= 1
        else:
            self._taken[name] = self._taken.get(name, 0) + 1
        return True

    def waits_until(self) -> Instant | None:
        """When a lease that has its place where others are may have these leave; None if it needs nobody to, or none
        of them may.
        """
        demand, now = self._demand, self._cycle.now
        first: Instant | None = None
        for (class_, _), size in zip(demand.classes, demand.sizes, strict=True):
            needs, index = self._farm.amounts(size), self._farm.indexes.get(class_)
            if self._tenant.preemptible or needs is None or index is None or self._goes_where_planned(class_, size):
                return None
            request = self._request(needs)
            for host in index.hosts.values() if demand.places else ():
                more = may_leave(host, request, now)[1] if fits(needs, host.normal) else None
                if more is not None and (first is None or more < first):
                    first = more
        return first if first is not None and first < demand.term.end else None

    def _request(self, needs: tuple[int, ...]) -> HostRequest:
        mine = self._tenant
        return request_of(self._demand, needs, preemptible=mine.preemptible, priority=mine.priority)

    def _goes_where_planned(self, class_: bytes, size: Vector) -> bool:
        """Whether a machine has its place on a host that has, or will have, room for it: nobody needs to leave."""
        term = self._term(self._cycle.now)
        for name, left in self._planned.items():
            if left > 0 and self._farm.is_of(name, class_) and self._cycle.room(name, size, term) >= 0:
                return True
        return False

    def _term(self, begin: Instant) -> Term:
        return Term(begin, max(self._demand.term.end, begin + 1))

    # -- what is asked of a host ---------------------------------------------------------------------------------------

    def _accepted(self, request: HostRequest, size: Vector, option: HostOption) -> HostOption | None:
        """The option, if the budget allows its victims, or with others that it allows, and if the host has room from
        when they have left up to the end of the lease.
        """
        allowed = self._within_budget(option, request)
        if allowed is None:
            return None
        name, there, now = allowed.host.id, self._farm.on, self._cycle.now
        leave, leaving, begin = self._farm.of(allowed.victims), [], now
        for lease, one in ({**self._victims, **leave} if self._victims else leave).items():
            if name in there.get(lease, ()):
                leaving.append(lease)
                begin = max(begin, now + one.notice, one.start + one.min_run)
        if begin >= self._demand.term.end and leaving:
            return None
        if self._planned.get(name):
            return allowed
        room = self._cycle.room(name, size, self._term(begin), leaving)
        return allowed if room > self._beside[name] + self._taken.get(name, 0) else None

    def _within_budget(self, option: HostOption, request: HostRequest) -> HostOption | None:
        """The option, or that with the cheapest victims on its host of which no holder has too many on their way out;
        None if there are none.
        """
        budget = self._mapper.budget
        if budget is None or not option.victims:
            return option
        left = self._left(budget)
        if _is_within(self._holders(option.victims), left, budget):
            return option
        host, rules, now = option.host, self._mapper.rules, self._cycle.now
        leases, _ = may_leave(host, request, now)
        leases = [one for one in leases if left.get(self._holder(one), budget) > 0]
        short = missing(request.needs, host.full)
        if len(leases) <= TABLE_MAX:
            for found in all_victims(leases, short, rules.cost, now):
                if _is_within(self._holders(found.leases), left, budget):
                    return HostOption(host, *found)
            return None
        while (one := choose_victims(leases, short, rules.cost, now, rules.nodes_max)) is not None:
            if _is_within(self._holders(one.leases), left, budget):
                return HostOption(host, one.leases, one.cost, False, option.cost)
            over = next(name for name, n in self._holders(one.leases).items() if n > left.get(name, budget))
            mine = [lease for lease in one.leases if self._holder(lease) == over]
            leases.remove(max(mine, key=lambda lease: (rules.cost.cost(lease, now), lease.id)))
        return None

    def _left(self, budget: int) -> dict[str, int]:
        """How many more leases of each holder that has some on their way out may be."""
        away = Counter(self._farm.leaving.values())
        away.update(one.holder for one in self._victims.values())
        return {holder: budget - count for holder, count in away.items()}

    def _holder(self, lease: HostedLease) -> str:
        return self._farm.tenants[lease.id].holder

    def _holders(self, leases: Iterable[HostedLease]) -> Counter[str]:
        return Counter(map(self._holder, leases))


def _is_within(holders: Mapping[str, int], left: Mapping[str, int], budget: int) -> bool:
    return all(count <= left.get(name, budget) for name, count in holders.items())
