"""Machines on hosts by filters and weighers, as OpenStack's scheduler places them: of the hosts that have room and that
all filters take, the heaviest; nobody moves, and nobody leaves.

It decides by :func:`leasekit.policies.preempting.selection.filter_and_weigh`, the scheduler that García et al. (FGCS
2019) compare theirs with. Where it finds no host the machine goes where its site has planned a place for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, Final

import attrs

from leasekit.core.filters import FilterError
from leasekit.core.mappers import AuthorityCycle, AuthorityDecision, Demand, HostView, Place, Refuse
from leasekit.core.properties import Properties, Vector, amount
from leasekit.core.reasons import Coded
from leasekit.core.time import Instant, Term
from leasekit.policies.authority.first_fit import FILTER, FirstFitTurn
from leasekit.policies.preempting.costs import PeriodCost, VictimCost
from leasekit.policies.preempting.hosts import HostedLease, HostRequest, LoadedHost
from leasekit.policies.preempting.rules import FILTERS, WEIGHERS, PlacingRules, WeigherError
from leasekit.policies.preempting.selection import filter_and_weigh

NEAR, APART = "near", "apart"
"""Configuration properties: ids of leases, separated by commas, of which one must be, or none may be, on the host."""
FREE: Final = "free"
NO_NAMES: Final = frozenset[str]()


@attrs.frozen(kw_only=True)
class HostWeigherSettings:
    """A weigher, and how much it counts beside others."""

    name: str = attrs.field(validator=attrs.validators.in_(tuple(WEIGHERS)))
    """`"spread"`: the host with the largest share free; `"pack"`: with the least; `"free_time"`: the one that is not
    reserved for longest; `"flops_per_watt"`: the one that computes most with a watt."""
    multiplier: float = 1.0
    """What its weight, from 0 for the least of the hosts that will do to 1 for the largest, is multiplied by."""


@attrs.frozen(kw_only=True)
class WeighingSettings:
    """Settings of :class:`WeighingMapper`."""

    filters: tuple[str, ...] = attrs.field(
        default=tuple(FILTERS), validator=attrs.validators.deep_iterable(attrs.validators.in_(tuple(FILTERS)))
    )
    """Which hosts will do: `"attributes"` (those that the lease's `filter` takes), `"affinity"` (those with a lease
    that its `near` names), `"anti_affinity"` (those with none that its `apart` names)."""
    weighers: tuple[HostWeigherSettings, ...] = (HostWeigherSettings(name="spread"),)
    """Which of them are better, added up."""

    def rules(self, cost: VictimCost | None = None) -> PlacingRules:
        """By what hosts are chosen."""
        return PlacingRules(
            cost=cost or PeriodCost(),
            filters=[FILTERS[name] for name in self.filters],
            weighers=[(WEIGHERS[one.name], one.multiplier) for one in self.weighers],
        )

    @property
    def watches(self) -> bool:
        """Whether what is booked for later counts."""
        return any(one.name == "free_time" for one in self.weighers)


class WeighingMapper:
    """The authority's mapper of filters and weighers. Of types that are not divided it is
    :class:`.first_fit.FirstFit`.
    """

    Settings: ClassVar[type[WeighingSettings]] = WeighingSettings
    inline: ClassVar[bool] = True

    def __init__(self, settings: WeighingSettings | None = None) -> None:
        self.settings = settings or WeighingSettings()
        self._rules = self.settings.rules()
        self.watches = self.settings.watches

    def assign(self, cycle: AuthorityCycle) -> list[AuthorityDecision]:
        """Decide every demand of the cycle, in its order."""
        turn = _WeighingTurn(cycle, self._rules, watches=self.watches)
        return [turn.shrink(demand) if demand.units < 0 else turn.fill(demand) for demand in cycle.demands]


class _WeighingTurn(FirstFitTurn):
    """One turn: hosts as they are, with the machines that were placed in it."""

    def __init__(self, cycle: AuthorityCycle, rules: PlacingRules, *, watches: bool) -> None:
        super().__init__(cycle)
        self._rules, self._watches = rules, watches
        self._hosts: dict[str, Mapping[str, LoadedHost]] = {}
        self._views: dict[str, dict[str, HostView]] = {}
        self._names: dict[str, list[str]] = {}
        """The resources that hosts of a type have: not all have each."""

    def place(self, demand: Demand) -> Place | Refuse:
        """A machine of a demand after the other on the heaviest host; where there is none, on that of its place."""
        if not demand.needs:
            return super().place(demand)
        try:
            hosts = list(self._chosen(demand))
        except (FilterError, WeigherError) as error:
            return Refuse(demand.lease, Coded(str(error), "weighing_failed"))
        return Place(demand.lease, tuple(hosts)) if len(hosts) == demand.units else super().place(demand)

    def _chosen(self, demand: Demand) -> Iterator[str]:
        loaded, planned = dict(self._loaded(demand.type)), Counter(demand.places)
        term = Term(self._cycle.now, max(demand.term.end, self._cycle.now + 1))
        for (class_, count), size in zip(demand.classes, demand.sizes, strict=True):
            for _ in range(count):
                able = [
                    host
                    for name, host in loaded.items()
                    if class_ in self._views[demand.type][name].classes
                    and (planned[name] or self._cycle.room(name, size, term) > self._beside[name])
                ]
                needs = _amounts(size, self._names[demand.type])
                found = filter_and_weigh(able, request_of(demand, needs), self._rules)
                if found is None:
                    return
                host = found.host
                machine = HostedLease(demand.lease, needs, self._cycle.now)
                loaded[host.id] = host.exchanged((), machine)
                self._beside[host.id] += not planned[host.id]
                planned[host.id] -= bool(planned[host.id])
                yield host.id
        self._hosts[demand.type] = loaded

    def _loaded(self, type_: str) -> Mapping[str, LoadedHost]:
        """The hosts of a type that are not leased whole, or out of service."""
        if type_ not in self._hosts:
            views = self._views[type_] = {one.id: one for one in self._cycle.hosts(type_) if one.state == FREE}
            reserved = reservations(self._cycle, type_) if self._watches else {}
            names = self._names[type_] = sorted({name for one in views.values() for name, _ in one.capacity})
            self._hosts[type_] = {name: _loaded(view, names, reserved.get(name)) for name, view in views.items()}
        return self._hosts[type_]


def reservations(cycle: AuthorityCycle, type_: str) -> dict[str, Instant]:
    """When what is planned on each host begins next, for mappers that watch."""
    found: dict[str, Instant] = {}
    for later in cycle.booked(type_):
        for host in later.places if later.op != "held" else ():
            found[host] = min(later.term.start, found.get(host, later.term.start))
    return found


def _loaded(view: HostView, names: Sequence[str], reserved: Instant | None) -> LoadedHost:
    machines = (HostedLease(one.lease, _amounts(one.size, names), 0) for one in view.machines)
    attributes: Properties = {**view.properties, "unit": view.id, "type": view.type}
    capacity = _amounts(view.capacity, names)
    return LoadedHost(view.id, capacity, tuple(machines), attributes, reserved)


def _amounts(of: Vector, names: Sequence[str]) -> tuple[int, ...]:
    """Amounts in the order of these resources."""
    return tuple(amount(of, name) for name in names)


def request_of(
    demand: Demand, needs: tuple[int, ...], *, preemptible: bool = False, priority: int | None = None
) -> HostRequest:
    """What one of a lease's machines asks for."""
    said = demand.properties
    if not said:
        return HostRequest(needs, preemptible, priority)
    near, apart = _names(said.get(NEAR, "")), _names(said.get(APART, ""))
    return HostRequest(needs, preemptible, priority, said.get(FILTER, ""), near, apart)


def _names(text: str) -> frozenset[str]:
    return frozenset([name.strip() for name in text.split(",") if name.strip()]) if text else NO_NAMES
