"""Machines on hosts, with victims: a normal lease that has no room gets that of the cheapest set of preemptible ones.

It decides as García et al. (FGCS 2019) have it, by :mod:`leasekit.policies.preempting`: the host in one pass, the
victims exactly. Hosts are kept from turn to turn, and follow what the site says has changed: a turn looks at no other.

A site has a place for each machine before it begins (:mod:`leasekit.actors.site.hosts`). A host has room for a machine
if it has now, and in the site's calendar up to the end of the lease. While leases leave a host nobody else there is
asked to, and what they leave is for the lease that they make room for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from operator import add
from typing import ClassVar, Final

import attrs

from leasekit.core.filters import FilterError
from leasekit.core.mappers import AuthorityCycle, AuthorityDecision, Demand, HostView, Place, Refuse, TenantView, Wake
from leasekit.core.reasons import Coded
from leasekit.core.settings import DurationSetting
from leasekit.core.time import HOUR, Instant, Term
from leasekit.core.vectors import Vector, amount
from leasekit.policies.authority.first_fit import FirstFitTurn
from leasekit.policies.authority.weighing import FREE, HostWeigherSettings, WeighingSettings, request_of
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
        self._farms: dict[str, _Farm] = {}

    def assign(self, cycle: AuthorityCycle) -> list[AuthorityDecision]:
        """Decide every demand of the cycle, in its order."""
        turn, found = _VictimsTurn(cycle, self), list[AuthorityDecision]()
        for demand in cycle.demands:
            if demand.units < 0:
                found.append(turn.shrink(demand))
            elif demand.needs and demand.sizes:
                found += turn.place_in(self._farm(demand.type, cycle), demand)
            else:
                found.append(turn.fill(demand))
        return found

    def choose(self, index: HostIndex, request: HostRequest, now: Instant, accept: Accept) -> HostOption | None:
        """The best host that is accepted, and its victims."""
        return index.select(request, now, accept)

    def indexes(self, type_: str) -> list[HostIndex]:
        """The indexes of a type's hosts, one for each class, as of the last turn."""
        farm = self._farms.get(type_)
        return list(farm.indexes.values()) if farm is not None else []

    def _farm(self, type_: str, cycle: AuthorityCycle) -> _Farm:
        farm = self._farms.get(type_)
        if farm is None:
            farm = self._farms[type_] = _Farm(type_, self.rules)
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


class _Farm:
    """The hosts of a type, by class, as they are now."""

    def __init__(self, type_: str, rules: PlacingRules) -> None:
        self._type, self._rules = type_, rules
        self._cycle: AuthorityCycle | None = None
        self._mark = 0
        self._guessed: set[str] = set()
        """Hosts of which this turn has decided something, which the site may not do."""
        self._clear([])

    def _clear(self, views: Iterable[HostView]) -> None:
        self.names = tuple(sorted({name for view in views for name, _ in view.capacity}))
        self._vectors: dict[Vector, tuple[int, ...]] = {}
        self.views: dict[str, HostView] = {}
        self.indexes: dict[bytes, HostIndex] = {}
        self.on: dict[str, set[str]] = {}
        """The hosts of each lease."""
        self.leaving: dict[str, str] = {}
        """Leases on their way out, and whose they are."""

    def follow(self, cycle: AuthorityCycle) -> None:
        """Take in what has changed since the last turn; what that decided counts as far as the site did it."""
        if self._cycle is cycle:
            return
        self._cycle = cycle
        news = cycle.changes(self._type, self._mark)
        changed = news.hosts
        if news.anew or any(name not in self.names for view in changed for name, _ in view.capacity):
            changed = changed if news.anew else tuple(cycle.hosts(self._type))
            self._clear(changed)
        for name in news.gone:
            self._drop(name)
        for view in changed:
            self._drop(view.id)
            self._take(view, cycle)
        for name in sorted(self._guessed - {view.id for view in changed} & self.views.keys()):
            view = self.views[name]
            self._drop(name)
            self._take(view, cycle)
        self._guessed.clear()
        self._mark = news.mark

    def _drop(self, name: str) -> None:
        view = self.views.pop(name, None)
        if view is None:
            return
        for class_ in view.classes:
            if name in self.indexes[class_].hosts:
                self.indexes[class_].remove(name)
        for lease in {one.lease or one.id for one in view.machines}:
            there = self.on.get(lease, set())
            there.discard(name)
            if not there:
                self.on.pop(lease, None)
                self.leaving.pop(lease, None)

    def _take(self, view: HostView, cycle: AuthorityCycle) -> None:
        if view.state != FREE:
            return
        self.views[view.id] = view
        host, leaving = self._loaded(view, cycle)
        for lease in host.leases:
            self.on.setdefault(lease.id, set()).add(view.id)
        self.leaving.update(leaving)
        self.put(host)

    def put(self, host: LoadedHost) -> None:
        """A host as it is, or as it will be."""
        for class_ in self.views[host.id].classes:
            if class_ not in self.indexes:
                self.indexes[class_] = HostIndex((), self._rules)
            self.indexes[class_].put(host)

    def guess(self, host: LoadedHost) -> None:
        """A host as it will be, if the site does what was decided."""
        self._guessed.add(host.id)
        self.put(host)

    def hold(self, lease: str) -> None:
        """A lease leaves: nobody else comes to its hosts in this turn, and is asked to leave them until it has."""
        for name in sorted(self.on[lease]):
            self._guessed.add(name)
            for class_ in self.views[name].classes:
                if name in self.indexes[class_].hosts:
                    self.indexes[class_].remove(name)

    def amounts(self, size: Vector) -> tuple[int, ...] | None:
        """What a machine takes, in the order of what hosts have; None where no host has it."""
        if any(name not in self.names for name, _ in size):
            return None
        return self._vector(size)

    def _loaded(self, view: HostView, cycle: AuthorityCycle) -> tuple[LoadedHost, Mapping[str, str]]:
        """A host with its leases, one for all the machines that a lease has there; and those that leave."""
        needs: dict[str, tuple[int, ...]] = {}
        moves = False
        for machine in view.machines:
            name, size = machine.lease or machine.id, self._vector(machine.size)
            needs[name] = tuple(map(add, needs[name], size)) if name in needs else size
            moves = moves or machine.state == FREE
        tenants = [cycle.tenant(name) or NOBODY for name in needs]
        leaving = {one.id: one.holder for one in tenants if one.is_leaving}
        moves = moves or bool(leaving)
        host = LoadedHost(
            id=view.id,
            capacity=self._vector(view.capacity),
            leases=tuple(
                [
                    HostedLease(name, much, one.start, one.preemptible and not moves, one.priority, 1, one.min_run)
                    for (name, much), one in zip(needs.items(), tenants, strict=True)
                ]
            ),
            attributes={**view.properties, "unit": view.id, "type": view.type},
        )
        return host, leaving

    def _vector(self, of: Vector) -> tuple[int, ...]:
        """Amounts in the order of what hosts have."""
        found = self._vectors.get(of)
        if found is None:
            found = self._vectors[of] = tuple([amount(of, name) for name in self.names])
        return found


class _VictimsTurn(FirstFitTurn):
    """One turn."""

    def __init__(self, cycle: AuthorityCycle, mapper: HostPreemptionMapper) -> None:
        super().__init__(cycle)
        self._mapper = mapper

    def place_in(self, farm: _Farm, demand: Demand) -> Iterator[AuthorityDecision]:
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
        self, cycle: AuthorityCycle, mapper: HostPreemptionMapper, farm: _Farm, demand: Demand, beside: Counter[str]
    ) -> None:
        self._cycle, self._mapper, self._farm, self._demand, self._beside = cycle, mapper, farm, demand, beside
        self._tenant = cycle.tenant(demand.lease) or NOBODY
        self._planned = Counter(demand.places)
        self._hosts: list[str] = []
        self._victims: dict[str, TenantView] = {}
        self._before: list[LoadedHost] = []
        self._taken: Counter[str] = Counter()
        """How many machines go to hosts on which they have no place yet."""

    def place(self) -> Place | None:
        """Where they go, and who leaves for that; None if they have no room. Raises ``FilterError``, ``WeigherError``
        and ``CostError``.
        """
        found = False
        try:
            found = all(
                self._choose(class_, size)
                for (class_, count), size in zip(self._demand.classes, self._demand.sizes, strict=True)
                for _ in range(count)
            )
        finally:
            if not found:
                for host in reversed(self._before):
                    self._farm.put(host)
        if not found or len(self._hosts) != self._demand.units:
            return None
        for lease in self._victims:
            self._farm.hold(lease)
            self._farm.leaving[lease] = self._victims[lease].holder
        self._beside.update(self._taken)
        return Place(self._demand.lease, tuple(self._hosts), victims=tuple(self._victims))

    def _choose(self, class_: bytes, size: Vector) -> bool:
        """A host for one machine."""
        needs, index = self._farm.amounts(size), self._farm.indexes.get(class_)
        if needs is None or index is None:
            return False
        request = self._request(needs)
        option = self._mapper.choose(
            index, request, self._cycle.now, lambda one: self._accepted(one, request, size)
        )  # fmt: skip
        if option is None or (option.victims and self._goes_where_planned(class_, size)):
            return False
        name = option.host.id
        self._hosts.append(name)
        if len(self._hosts) < self._demand.units or not (option.victims or self._victims):
            self._before.append(index.hosts[name])
            machine = HostedLease(self._demand.lease, needs, self._cycle.now)
            self._farm.guess(index.hosts[name].exchanged(option.victims, machine))
        for victim in option.victims:
            self._victims[victim.id] = self._cycle.tenant(victim.id) or NOBODY
        self._taken[name] += not self._planned[name]
        self._planned[name] -= bool(self._planned[name])
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
        asked = request_of(self._demand, needs)
        return asked._replace(preemptible=self._tenant.preemptible, priority=self._tenant.priority)

    def _goes_where_planned(self, class_: bytes, size: Vector) -> bool:
        """Whether a machine has its place on a host that has, or will have, room for it: nobody needs to leave."""
        return any(
            left > 0
            and name in self._farm.views
            and class_ in self._farm.views[name].classes
            and self._cycle.room(name, size, self._term(self._cycle.now)) >= 0
            for name, left in self._planned.items()
        )

    def _term(self, begin: Instant) -> Term:
        return Term(begin, max(self._demand.term.end, begin + 1))

    # -- what is asked of a host ---------------------------------------------------------------------------------------

    def _accepted(self, option: HostOption, request: HostRequest, size: Vector) -> HostOption | None:
        """The option, if the budget allows its victims, or with others that it allows, and if the host has room from
        when they have left up to the end of the lease.
        """
        allowed = self._within_budget(option, request)
        if allowed is None:
            return None
        name, there = allowed.host.id, self._farm.on
        leave = dict(self._victims) | {one.id: self._cycle.tenant(one.id) or NOBODY for one in allowed.victims}
        leaving = [lease for lease in leave if name in there.get(lease, ())]
        now = self._cycle.now
        begin = max([now, *(max(now + leave[one].notice, leave[one].start + leave[one].min_run) for one in leaving)])
        if begin >= self._demand.term.end and leaving:
            return None
        if self._planned[name] > 0:
            return allowed
        room = self._cycle.room(name, size, self._term(begin), leaving)
        return allowed if room > self._beside[name] + self._taken[name] else None

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
        return (self._cycle.tenant(lease.id) or NOBODY).holder

    def _holders(self, leases: Iterable[HostedLease]) -> Counter[str]:
        return Counter(map(self._holder, leases))


def _is_within(holders: Mapping[str, int], left: Mapping[str, int], budget: int) -> bool:
    return all(count <= left.get(name, budget) for name, count in holders.items())
