"""A problem file, decided: ``leasekit plan preempt`` without the command line.

Amounts are numbers in units of the writer's choosing, times are seconds. What a victim costs is told in seconds
(``period``, ``lost_work``), in seconds times price (``price``), or as a number of victims (``count``, ``priority``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from math import lcm
from typing import Any, Final, Literal, TypeAlias

import attrs

from leasekit.core.lacking import in_words, lacking
from leasekit.core.settings import SettingsError, expect_one_of, is_name, repeated_ids, structure
from leasekit.core.time import SECOND, Instant
from leasekit.policies.preempting.costs import COSTS, Amount
from leasekit.policies.preempting.hosts import HostedLease, HostRequest, LoadedHost, Vector, fits, may_leave, missing
from leasekit.policies.preempting.index import HostIndex
from leasekit.policies.preempting.rules import PlacingRules
from leasekit.policies.preempting.selection import HostOption, option, ranked
from leasekit.policies.preempting.victims import all_victims

CostName: TypeAlias = Literal["period", "price", "lost_work", "count", "priority"]

NUMBER_MAX: Final = 1e12
"""The largest amount, time or price."""
CLASS_MAX: Final = 100
COUNT_MAX: Final = 100_000
RUNNERS_UP_MAX: Final = 20
"""How many runners-up are told."""
EXPLAINED_MAX: Final = 12
"""Up to how many preemptible leases of a host each set that would do is a runner-up; of others the cheapest is."""


def _amount(_: object, attribute: attrs.Attribute[Any], value: float | None) -> None:
    if value is not None and not 0 <= value <= NUMBER_MAX:
        raise ValueError(f"'{attribute.name}' must be from 0 to {NUMBER_MAX:g}: {value}")


def _amounts(_: object, attribute: attrs.Attribute[Any], value: Mapping[str, float]) -> None:
    for name, amount in value.items():
        if not 0 <= amount <= NUMBER_MAX:
            raise ValueError(f"{name} is {amount}, expected 0 to {NUMBER_MAX:g}")


_CLASS: Final[Any] = attrs.validators.optional([attrs.validators.ge(0), attrs.validators.le(CLASS_MAX)])


@attrs.frozen(kw_only=True)
class PreemptRequest:
    """What asks for places: ``count`` of them, each with these resources, all or none.

    ``priority`` is its class: leases of higher classes stay (None: it is above all).
    """

    resources: Mapping[str, float] = attrs.field(validator=_amounts)
    preemptible: bool = False
    count: int = attrs.field(default=1, validator=[attrs.validators.ge(1), attrs.validators.le(COUNT_MAX)])
    priority: int | None = attrs.field(default=None, validator=_CLASS)


@attrs.frozen(kw_only=True)
class PreemptLease:
    """A lease that runs. It is protected for its first ``min_run_s``; of what it has done, the work of its first
    ``saved_s`` is not lost when it ends.
    """

    id: str = attrs.field(validator=is_name)
    resources: Mapping[str, float] = attrs.field(validator=_amounts)
    runtime_s: float = attrs.field(validator=_amount)
    preemptible: bool
    priority: int = attrs.field(default=0, validator=_CLASS)
    price: float = attrs.field(default=1.0, validator=_amount)
    min_run_s: float = attrs.field(default=0.0, validator=_amount)
    saved_s: float = attrs.field(default=0.0, validator=_amount)


@attrs.frozen(kw_only=True)
class PreemptHost:
    """A host: a resource that ``capacity`` doesn't name is one that it has nothing of."""

    id: str = attrs.field(validator=is_name)
    capacity: Mapping[str, float] = attrs.field(validator=_amounts)
    leases: tuple[PreemptLease, ...] = ()


@attrs.frozen(kw_only=True)
class PreemptProblem:
    """A whole problem."""

    request: PreemptRequest
    hosts: tuple[PreemptHost, ...]
    cost: CostName = "period"
    period_s: float = attrs.field(default=3600.0, validator=_amount)


def read_preempt_problem(content: Mapping[str, Any]) -> PreemptProblem:
    """A problem of what a JSON file holds. Raises ``SettingsError``: each of its lines names a key, what was found
    and what is allowed.
    """
    problem = structure(PreemptProblem, content, "")
    faults = list(_faults(problem))
    if faults:
        raise SettingsError(faults)
    return problem


def _faults(problem: PreemptProblem) -> Iterator[str]:
    """What is wrong with a problem beyond each value by itself."""
    if round(problem.period_s * SECOND) < 1:
        yield f"period_s: found {problem.period_s:g}, expected at least 0.001"
    known = {name for host in problem.hosts for name in host.capacity}
    if not problem.request.resources:
        yield "request.resources: found an empty table, expected at least one resource"
    for name in problem.request.resources:
        if problem.hosts and name not in known:
            yield f"request.resources.{name}: found a resource that no host has, {expect_one_of(name, known)}"
    yield from repeated_ids("hosts", [host.id for host in problem.hosts])
    yield from repeated_ids("hosts.leases", [lease.id for host in problem.hosts for lease in host.leases])
    for index, host in enumerate(problem.hosts):
        held: Counter[str] = Counter()
        for number, lease in enumerate(host.leases):
            held.update({name: Fraction(repr(amount)) for name, amount in lease.resources.items()})
            if lease.saved_s > lease.runtime_s:
                where = f"hosts[{index}].leases[{number}].saved_s"
                yield f"{where}: found {lease.saved_s:g}, expected at most runtime_s ({lease.runtime_s:g})"
        for name, amount in held.items():
            if amount > Fraction(repr(host.capacity.get(name, 0))):
                yield (
                    f"hosts[{index}].leases: found leases with {float(amount):g} {name} in all, expected at most the "
                    f"capacity of host {host.id} ({host.capacity.get(name, 0):g})"
                )


class PreemptDecision:
    """One decision. The clock starts with the oldest lease."""

    def __init__(self, problem: PreemptProblem) -> None:
        self._problem = problem
        hosts = problem.hosts
        self._names = sorted({*problem.request.resources, *(name for host in hosts for name in host.capacity)})
        tables = [problem.request.resources, *(host.capacity for host in hosts)]
        tables += [lease.resources for host in hosts for lease in host.leases]
        self._scales = {name: _scale(table.get(name, 0) for table in tables) for name in self._names}
        leases = [lease for host in hosts for lease in host.leases]
        self._price = _scale(lease.price for lease in leases) if problem.cost == "price" else 1
        self._now: Instant = max((round(lease.runtime_s * SECOND) for lease in leases), default=0)
        self._rules = PlacingRules(cost=COSTS[problem.cost](round(problem.period_s * SECOND)))
        self._hosts = [self._host(host) for host in hosts]
        request = problem.request
        self._request = HostRequest(self._vector(request.resources), request.preemptible, request.priority)

    def answer(self) -> dict[str, Any]:
        """The answer, in the format of ``leasekit plan preempt`` without ``solve_ms``."""
        new = HostedLease("", self._request.needs, self._now, preemptible=self._request.preemptible)
        count = self._problem.request.count
        chosen = HostIndex(self._hosts, self._rules).place(self._request, [new] * count, self._now)
        if len(chosen) < count:
            why = f"only {len(chosen)} of {count} can be placed" if chosen else self._why()
            return self._told("refused", [], [], why)
        others = [
            one for one in self._options() if (one.host.id, one.victims) != (chosen[0].host.id, chosen[0].victims)
        ]
        unproven = [one for one in chosen if not one.proven]
        least = f"bound, not proven: victims cost at least {self._amount(unproven[0].bound)}" if unproven else None
        return self._told("placed", chosen, ranked(others, self._request, self._rules)[:RUNNERS_UP_MAX], least)

    def _told(
        self, status: str, chosen: Sequence[HostOption], others: Sequence[HostOption], reason: str | None
    ) -> dict[str, Any]:
        return {
            "status": status,
            "placements": [self._shown(one) for one in chosen],
            "proven": all(one.proven for one in chosen),
            "runners_up": [self._shown(one) for one in others],
            "reason": reason,
        }

    def _shown(self, one: HostOption) -> dict[str, Any]:
        victims = [lease.id for lease in one.victims]
        return {"host": one.host.id, "victims": victims, "cost": self._amount(one.cost)}

    def _amount(self, cost: Amount) -> Amount:
        """A cost in the units of the file."""
        if self._problem.cost in ("count", "priority"):
            return cost
        told = Fraction(cost) / SECOND / self._price
        return int(told) if told.denominator == 1 else float(told)

    def _options(self) -> Iterator[HostOption]:
        """Hosts with room, and all sets of victims that would do."""
        for host in self._hosts:
            leases, _ = may_leave(host, self._request, self._now)
            if len(leases) > EXPLAINED_MAX or self._request.preemptible or fits(self._request.needs, host.full):
                one = option(host, self._request, self._rules, self._now)
                if one is not None:
                    yield one
            elif fits(self._request.needs, host.normal):
                short = missing(self._request.needs, host.full)
                for victims in all_victims(leases, short, self._rules.cost, self._now):
                    yield HostOption(host, *victims)

    def _why(self) -> str:
        """Why a request is refused."""
        needs = self._request.needs
        if not self._hosts:
            return "there are no hosts"
        if not any(fits(needs, host.capacity) for host in self._hosts):
            wanted = ", ".join(f"{amount:g} {name}" for name, amount in self._problem.request.resources.items())
            return f"no host is large enough for {wanted}: {self._lacking(host.capacity for host in self._hosts)}"
        if self._request.preemptible:
            short = self._lacking(host.full for host in self._hosts)
            return f"no host has room, and a preemptible request takes nobody's place: {short}"
        if any(fits(needs, host.normal) for host in self._hosts):
            short = self._lacking(self._without_victims(host) for host in self._hosts)
            return f"no host has room, not even in place of the leases that it may preempt: {short}"
        short = self._lacking(host.normal for host in self._hosts)
        return f"no host has room beside the leases that are not preemptible: {short}"

    def _without_victims(self, host: LoadedHost) -> Vector:
        """What would be free if all left that may be preempted."""
        able, _ = may_leave(host, self._request, self._now)
        return tuple(map(sum, zip(host.full, *(lease.needs for lease in able), strict=True)))

    def _lacking(self, free: Iterable[Vector]) -> str:
        """What hosts have too little of, in the units of the file."""
        wanted = {name: float(self._problem.request.resources.get(name, 0)) for name in self._names}
        scales = [self._scales[name] for name in self._names]
        return in_words(lacking(wanted, [[much / by for much, by in zip(row, scales, strict=True)] for row in free]))

    # -- whole numbers -------------------------------------------------------------------------------------------------

    def _host(self, host: PreemptHost) -> LoadedHost:
        leases = tuple(self._lease(lease) for lease in host.leases)
        return LoadedHost(id=host.id, capacity=self._vector(host.capacity), leases=leases)

    def _lease(self, lease: PreemptLease) -> HostedLease:
        start = self._now - round(lease.runtime_s * SECOND)
        return HostedLease(
            lease.id,
            self._vector(lease.resources),
            start,
            lease.preemptible,
            lease.priority,
            int(Fraction(repr(lease.price)) * self._price),
            round(lease.min_run_s * SECOND),
            start + round(lease.saved_s * SECOND),
        )

    def _vector(self, amounts: Mapping[str, float]) -> Vector:
        return tuple(int(Fraction(repr(amounts.get(name, 0))) * self._scales[name]) for name in self._names)


def _scale(numbers: Iterable[float]) -> int:
    """The least factor that makes all numbers, as they were written, whole."""
    return lcm(*(Fraction(repr(number)).denominator for number in numbers))
