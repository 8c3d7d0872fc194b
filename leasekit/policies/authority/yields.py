"""Virtual clusters: machines are placed, moved and given CPU so that the least yield is as large as it can be.

The yield of a machine is the CPU that it gets over the CPU that it needs (Stillwell et al. 2008). Placements are found
by :mod:`.placing`. A newcomer starts on the host that is best for all; machines that run move if that makes the least
yield larger, within a bound of memory that is moved at once. Caps follow: lowered first, raised last.

A site has a place for each machine before it begins (in its calendars): where nothing better is found,
or a host has no room up to the end of a lease, the machine goes there. So this mapper can't be worse than first fit.
Where not all have room, as when a host has failed, those of the highest class have it first; where it may have
preemptible leases leave, they do for what has none, as :mod:`.preemption` decides.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import count
from math import inf
from typing import ClassVar, Final, Literal, NamedTuple

import attrs

from leasekit.core.mappers import (
    AuthorityCycle,
    AuthorityDecision,
    Cap,
    Demand,
    HostView,
    MachineView,
    Migrate,
    Place,
    Wake,
)
from leasekit.core.properties import CORE, CPU, MEMORY, THOUSAND, Vector, added, amount, is_within
from leasekit.core.settings import DurationSetting
from leasekit.core.time import HOUR, MINUTE, Instant, Term
from leasekit.policies.authority.first_fit import FILTER, FirstFitTurn
from leasekit.policies.authority.placing.model import (
    WEIGHT_MAX,
    WEIGHT_MIN,
    Placement,
    SecondPhase,
    YieldHost,
    YieldProblem,
    YieldTask,
)
from leasekit.policies.authority.placing.moves import Changes, changes
from leasekit.policies.authority.placing.solve import admit
from leasekit.policies.authority.preemption import HostPreemptionMapper, RetrySettings, VictimsTurn
from leasekit.policies.preempting.costs import COSTS

UP: Final = "active"
FREE: Final = "free"
REPLACE: Final = "replace"
WEIGHT, SPREAD, AFFINITY, PARALLEL = "weight", "spread", "affinity", "parallel"
"""Configuration properties of a lease: how much more yield its machines are to have than others (1), a group of which a
host takes one machine at most, one that shares a host, and whether all its machines get the same yield."""


Algorithm = Literal[
    "best", "exact", "rrnd", "rrnz", "gr", "sg", "gb", "sgb", "mcb1", "mcb2", "mcb3", "mcb4", "mcb5", "mcb6", "mcb7",
    "mcb8",
]  # fmt: skip


@attrs.frozen(kw_only=True)
class YieldSettings:
    """Settings of :class:`YieldMapper`."""

    algorithm: Algorithm = "mcb8"
    """How placements are found: `"mcb8"`, `"best"`, `"exact"` or another of [placement.md](placement.md)."""
    local_search: bool = True
    """Whether what is found is made better by single moves and swaps."""
    second_phase: SecondPhase = "average"
    """Who gets the CPU that is left above the least yield: `"average"` (the most machines), `"max_min"` (those with the
    least), `"none"`."""
    migration_bound: int = attrs.field(default=16384, validator=attrs.validators.ge(0))
    """How much memory may be moved at once, in MiB: the machines that migrate in one turn have no more. With 0 nobody
    moves."""
    needs: Literal["given", "measured"] = "given"
    """What machines need of CPU: what was asked for (`"given"`), or what probes see them use and a quarter more, from
    what is guaranteed up to what was asked for (`"measured"`). One that uses nearly all that it may counts as using
    twice that."""
    makes_room: bool = False
    """Whether preemptible leases leave for others of their class or above that have no room, also if machines move: as
    with the mapper `preemption`."""
    cost: str = attrs.field(default="priority", validator=attrs.validators.in_(tuple(COSTS)))
    """What a lease costs that leaves, as for the mapper `preemption`: with `"priority"` the lowest class leaves."""
    period: DurationSetting = attrs.field(default=HOUR, validator=attrs.validators.ge(1))
    """The billing period of that cost."""
    budget: int | None = attrs.field(default=None, validator=attrs.validators.optional(attrs.validators.ge(0)))
    """How many leases of one holder and type may be on their way out at once."""
    least_change: int = attrs.field(default=10, validator=[attrs.validators.ge(0), attrs.validators.le(THOUSAND)])
    """By how many thousandths of a machine's need its cap must change to be changed at all."""


class _Holder(NamedTuple):
    """What is known of a lease that has machines: when it ends, and what its configuration says."""

    end: Instant
    weight: float
    spread: str
    affinity: str
    job: str


class _Newcomer(NamedTuple):
    """A machine that is to start, and where the site has planned it (empty: on a host that is out of service)."""

    demand: Demand
    size: Vector
    given_as: bytes
    planned: str


def _rank(cycle: AuthorityCycle, demand: Demand) -> tuple[int, bool]:
    """Who goes before whom: the highest class first, in a class what is not preemptible."""
    tenant = cycle.tenant(demand.lease)
    return (-tenant.priority, tenant.preemptible) if tenant is not None else (0, False)


class YieldMapper:
    """The authority's mapper of virtual clusters. Of types that are not divided it is :class:`.first_fit.FirstFit`."""

    Settings: ClassVar[type[YieldSettings]] = YieldSettings
    inline: ClassVar[bool] = True
    watches: ClassVar[bool] = True
    filtered_by: ClassVar[str] = FILTER

    def __init__(self, settings: YieldSettings | None = None) -> None:
        self.settings = settings or YieldSettings()
        self.makes_room = self.settings.makes_room
        chosen = RetrySettings(cost=self.settings.cost, period=self.settings.period, budget=self.settings.budget)
        self._others = HostPreemptionMapper(chosen)
        """By what leases leave."""
        self._settled: dict[str, object] = {}
        """What hosts of each type looked like when there was nothing to change."""

    def assign(self, cycle: AuthorityCycle) -> list[AuthorityDecision]:
        """Decide every demand of the cycle; then what changes for machines that run."""
        turn = VictimsTurn(cycle, self._others) if self.makes_room else FirstFitTurn(cycle)
        found: list[AuthorityDecision] = []
        newcomers: dict[str, list[Demand]] = {}
        types = {demand.type: None for demand in cycle.demands}
        for demand in sorted(cycle.demands, key=partial(_rank, cycle)):
            if demand.units > 0 and demand.needs and demand.places:
                newcomers.setdefault(demand.type, []).append(demand)
            else:
                found += turn.decide(demand)
        for type_ in {**types, **dict.fromkeys(self._settled)}:
            hosts = cycle.hosts(type_)
            if hosts:
                taken = {host for one in found if isinstance(one, Place) for host in one.hosts}
                found += self._plan(cycle, type_, hosts, newcomers.get(type_, []), taken, turn)
        return found

    def _seen(self, machine: MachineView) -> tuple[str, str, int, int]:
        """What of a machine is news: of a measured need each tenth of what was asked for."""
        asked = max(1, amount(machine.needs, CPU))
        tenths = _needed(machine) * 10 // asked if self.settings.needs == "measured" else 0
        return machine.id, machine.state, machine.cap, tenths

    def _plan(
        self, cycle: AuthorityCycle, type_: str, hosts: Sequence[HostView], demands: Sequence[Demand], taken: set[str],
        turn: FirstFitTurn,
    ) -> Iterator[AuthorityDecision]:  # fmt: skip
        """What becomes of the machines of a type. ``taken`` are hosts that are leased whole from now on."""
        seen = [(host.id, host.state, [self._seen(one) for one in host.machines]) for host in hosts]
        if not demands and self._settled.get(type_) == seen:
            return
        self._settled[type_] = seen
        settled = _Plan(self.settings, cycle, [h for h in hosts if h.state == FREE and h.id not in taken], demands)
        yield from settled.decisions(turn)


def _cap(machine: MachineView) -> int:
    """How much CPU a machine gets at most: what it asked for, where it has no cap."""
    return machine.cap if machine.cap >= 0 else amount(machine.needs, CPU)


def _needed(machine: MachineView) -> int:
    """What a machine needs of CPU by what it was seen to use, in millicores."""
    asked, least = amount(machine.needs, CPU), amount(machine.size, CPU)
    return asked if machine.used < 0 else max(least, min(asked, machine.used * 5 // 4))


class _Plan:
    """The problem of one turn: machines that run, and newcomers, on hosts that nobody has whole."""

    def __init__(
        self, settings: YieldSettings, cycle: AuthorityCycle, hosts: Sequence[HostView], demands: Sequence[Demand]
    ) -> None:
        self._settings, self._cycle, self._demands = settings, cycle, demands
        self._hosts = {host.id: host for host in hosts}
        names = {name for host in hosts for name, _ in host.capacity if name != CPU}
        self._rigid = sorted(names, key=lambda name: (name != MEMORY, name))
        self._leases = self._known_leases(hosts[0].type) if hosts else {}
        self._running = [(machine, host) for host in hosts for machine in _present(host)]
        self._new = [one for demand in demands for one in _newcomers(demand, self._hosts)]
        self._busiest = self._needs_of_jobs() if settings.needs == "measured" else {}
        self._sent: dict[str, list[Vector]] = {}
        """What this turn has sent to each host so far."""

    def _known_leases(self, type_: str) -> dict[str, _Holder]:
        """Leases by id: of what is booked, and of the demands of this turn."""
        found: dict[str, _Holder] = {}
        for demand in (*self._cycle.booked(type_), *self._demands):
            says = demand.properties
            end = max(demand.term.end, found[demand.lease].end if demand.lease in found else 0)
            weight = _weight(says.get(WEIGHT, ""))
            job = demand.lease if says.get(PARALLEL, "") == "true" else ""
            found[demand.lease] = _Holder(end, weight, says.get(SPREAD, ""), says.get(AFFINITY, ""), job)
        return found

    def _needs_of_jobs(self) -> dict[str, int]:
        """What each machine of a parallel job needs of CPU, in millicores, where needs are measured: as much as the one
        that needs most. The others use less while they wait for that; one that has just come needs what it asked for.
        """
        found: dict[str, int] = {}
        for machine, _ in self._running:
            found[machine.lease] = max(found.get(machine.lease, 0), _needed(machine))
        for one in self._new:
            found[one.demand.lease] = amount(one.demand.needs, CPU)
        return {lease: much for lease, much in found.items() if lease in self._leases and self._leases[lease].job}

    def decisions(self, turn: FirstFitTurn) -> Iterator[AuthorityDecision]:
        """Caps that fall, migrations, newcomers, caps that rise: in this order; then what has no room like that."""
        placed = self._solved() if self._hosts else None
        if placed is None:
            for demand in self._demands:
                yield from turn.decide(demand)
            return
        placement, todo = placed
        ids = list(self._hosts)
        moving = {one.task: one.target for one in todo.migrations}
        yield from self._caps(todo.lowered, moving)
        crowded, leaving = set[str](), set[str]()
        for task, target in moving.items():
            machine, host = self._running[task]
            if self._takes(ids[target], machine.size, machine.lease, now=True):
                leaving.add(host.id)
                why = f"for a least yield of {placement.min_yield:.3f}"
                yield Migrate(
                    machine.id, ids[target], why, self._cap_of(machine.size, placement.cpu[task], ids[target])
                )
            else:
                crowded.add(host.id)
        yield from self._start(placement, turn, crowded, leaving)
        if not moving and len({machine.id for machine, _ in self._running}) == len(self._running):
            yield from self._caps(todo.raised, moving)  # what moves has its CPU on both hosts until it is there

    def _solved(self) -> tuple[Placement, Changes] | None:
        """A placement of all, if one is found, and what leads to it. Machines that could only change places with each
        other, for which there is no room, stay where they are.
        """
        hosts = tuple(
            YieldHost(
                id=one.id, cpu=amount(one.capacity, CPU), core=one.core or inf, domain=one.properties.get("rack", ""),
                rigid=tuple(amount(one.capacity, name) for name in self._rigid),
            )
            for one in self._hosts.values()
        )  # fmt: skip
        tasks = [*(self._task(*each) for each in self._running), *map(self._newcomer, count(), self._new)]
        caps = {at: float(_cap(machine)) for at, (machine, _) in enumerate(self._running)}
        while tasks:
            problem = YieldProblem(hosts=hosts, tasks=tuple(tasks), bound=self._settings.migration_bound)
            found = admit(
                problem, self._settings.algorithm, local_search=self._settings.local_search,
                second_phase=self._settings.second_phase, ranked=self._ranked(),
            )  # fmt: skip
            running = any(t < len(self._running) for t in found.dropped)
            if self._let_go(tasks, _broken(problem) if running else found.dropped):
                continue
            if found.status not in ("optimal", "placed") or running:
                return None
            todo = changes(problem, found, caps)
            if not todo.stuck:
                return found, todo
            for one in todo.stuck:
                home = hosts[one.source].id
                tasks[one.task] = attrs.evolve(tasks[one.task], hosts=frozenset((home,)))
        return None

    @staticmethod
    def _let_go(tasks: list[YieldTask], which: Iterable[int]) -> bool:
        """Whether some of these tasks were of groups; they are of none now: groups are wishes, nobody is without a
        place, or a share, for theirs or for another's.
        """
        grouped = [at for at in which if tasks[at].spread or tasks[at].together]
        for at in grouped:
            tasks[at] = attrs.evolve(tasks[at], spread="", together="")
        return bool(grouped)

    def _ranked(self) -> list[list[int]]:
        """What has room or not: all that runs; then the machines of each demand, if it may have some of them each."""
        found, before = [list(range(len(self._running)))], None
        for at, one in enumerate(self._new, len(self._running)):
            if one.demand is not before or one.demand.op == REPLACE:
                found.append([])
            found[-1].append(at)
            before = one.demand
        return found if self._running else found[1:]

    def _task(self, machine: MachineView, host: HostView) -> YieldTask:
        """A machine that runs: it stays where it is unless it is up and can be moved."""
        tenant = self._cycle.tenant(machine.lease)
        is_leaving = tenant is not None and tenant.is_leaving
        moves = machine.state == UP and "migrate" in host.able and not is_leaving
        id_ = f"{machine.id} on {host.id}"  # one that leaves a host is on two
        return self._made(
            id_, machine.lease, self._needs_of(machine), machine.size,
            self._of_class(machine.given_as) if moves else frozenset((host.id,)), host.id,
        )  # fmt: skip

    def _needs_of(self, machine: MachineView) -> Vector:
        if self._settings.needs == "given":
            return machine.needs
        cpu = self._busiest.get(machine.lease) or _needed(machine)
        return tuple((name, cpu if name == CPU else much) for name, much in machine.needs)

    def _newcomer(self, at: int, one: _Newcomer) -> YieldTask:
        """A machine that is to start. Where its place is that of leases that may leave, others can't come there: who
        moves from there makes room, nobody by moving elsewhere.
        """
        is_alone = not one.planned or self._has_place(one)
        there = self._of_class(one.given_as) if is_alone else frozenset((one.planned,))
        return self._made(f"new {at}", one.demand.lease, one.demand.needs, one.size, there, None)

    def _has_place(self, one: _Newcomer) -> bool:
        """Whether the planned place of a newcomer has room up to the end of its lease, if nobody leaves early."""
        term = Term(self._cycle.now, max(one.demand.term.end, self._cycle.now + 1))
        return self._cycle.room(one.planned, one.size, term) >= 0

    def _of_class(self, class_: bytes) -> frozenset[str]:
        return frozenset(host.id for host in self._hosts.values() if class_ in host.classes)

    def _made(
        self, id_: str, lease: str, needs: Vector, size: Vector, hosts: frozenset[str], host: str | None
    ) -> YieldTask:
        known = self._leases.get(lease, _Holder(0, 1.0, "", "", ""))
        cpu, core = amount(needs, CPU), amount(needs, CORE)
        return YieldTask(
            id=id_, cpu=cpu, rigid=tuple(amount(size, name) for name in self._rigid), host=host,
            cores=max(1, -(-cpu // core)) if core else 1, floor=amount(size, CPU), weight=known.weight, hosts=hosts,
            spread=f"{lease} {known.spread}" if known.spread else "",
            together=f"{lease} {known.affinity}" if known.affinity else "", job=known.job,
        )  # fmt: skip

    # -- what follows --------------------------------------------------------------------------------------------

    def _takes(self, host: str, size: Vector, lease: str, *, now: bool = False) -> bool:
        """Whether a host takes a machine of a lease beside what this turn has sent there: up to the lease's end, and if
        it is to be there ``now``, beside all that is on the host. It counts as sent there then.
        """
        known, at = self._leases.get(lease), self._cycle.now
        sent = [*self._sent.get(host, ()), size]
        fits = known is not None and known.end > at and self._cycle.room(host, added(sent), Term(at, known.end)) > 0
        if fits and now:
            on = [machine.size for machine in self._hosts[host].machines]
            fits = is_within(added([*on, *sent]), self._hosts[host].capacity)
        if fits:
            self._sent[host] = sent
        return fits

    def _start(
        self, placement: Placement, turn: FirstFitTurn, crowded: Container[str], leaving: Container[str]
    ) -> Iterator[AuthorityDecision]:
        """Newcomers where they are best, or where the site has planned them, with their caps. What can only go to hosts
        that machines are ``leaving`` has a place there in the next turn. Hosts are ``crowded`` that machines were to
        leave, and don't.
        """
        ids, chosen, missing, later = list(self._hosts), dict[str, list[tuple[str, Vector, int]]](), [], set[str]()
        for number, one in enumerate(self._new, len(self._running)):
            best = placement.mapping[number]
            host = self._place_of(one, ids[best] if best is not None else "", crowded)
            if host:
                cap = self._cap_of(one.size, placement.cpu[number], host)
                chosen.setdefault(one.demand.lease, []).append((host, one.size, cap))
            elif best is not None and ids[best] in leaving:
                later.add(one.demand.lease)
        for demand in self._demands:
            machines = chosen.get(demand.lease, [])
            if len(machines) == demand.units:
                turn.expect(demand, [(host, size) for host, size, _ in machines])
                yield Place(demand.lease, tuple(host for host, *_ in machines), tuple(cap for *_, cap in machines))
            elif demand.lease in later:
                yield Wake(self._cycle.now + MINUTE)
            else:
                missing.append(demand)
        for demand in missing:
            yield from turn.decide(demand)

    def _place_of(self, one: _Newcomer, best: str, crowded: Container[str]) -> str:
        """Where a newcomer goes; empty if that has no room up to the end of its lease, with nobody leaving early."""
        if best and best != one.planned and best not in crowded and self._takes(best, one.size, one.demand.lease):
            return best
        if not one.planned or (best == one.planned and best in crowded):
            return ""
        return one.planned if best == one.planned or self._has_place(one) else ""

    def _cap_of(self, size: Vector, cpu: float, host: str) -> int:
        """A share as a cap: no less than what is guaranteed; -1 where machines can't be capped."""
        return max(amount(size, CPU), int(cpu)) if "cap" in self._hosts[host].able else -1

    def _caps(self, caps: Mapping[int, float], moving: Container[int]) -> Iterator[Cap]:
        """What is to be capped otherwise, by position of the machine, and does not move."""
        for at, cpu in sorted(caps.items()):
            if at >= len(self._running) or at in moving:
                continue
            machine, host = self._running[at]
            least, needs = amount(machine.size, CPU), amount(machine.needs, CPU)
            now, to = _cap(machine), max(least, int(cpu))
            changes_enough = abs(to - now) * THOUSAND > self._settings.least_change * needs
            if machine.state == UP and "cap" in host.able and changes_enough:
                yield Cap(machine.id, to)


def _broken(problem: YieldProblem) -> Iterator[int]:
    """What runs and is not, where it is, as its groups say: beside one that it is to be apart from, or apart."""
    domain = {host.id: host.domain or f"\0{host.id}" for host in problem.hosts}
    running = [(at, task, task.host) for at, task in enumerate(problem.tasks) if task.host is not None]
    there = Counter((task.spread, domain[host]) for _, task, host in running)
    homes = defaultdict[str, set[str]](set)
    for _, task, host in running:
        homes[task.together].add(host)
    for at, task, host in running:
        if (task.spread and there[task.spread, domain[host]] > 1) or (task.together and len(homes[task.together]) > 1):
            yield at


def _present(host: HostView) -> Iterator[MachineView]:
    """The machines of leases on a host, but for those that wait for others to leave it."""
    machines = [machine for machine in host.machines if machine.lease]
    if not is_within(added([machine.size for machine in machines]), host.capacity):
        machines = [machine for machine in machines if machine.state != FREE]
    yield from machines


def _newcomers(demand: Demand, hosts: Mapping[str, HostView]) -> Iterator[_Newcomer]:
    """The machines that a demand is to get, each with its planned place."""
    sizes = dict(zip((class_ for class_, _ in demand.classes), demand.sizes, strict=True))
    left = Counter(dict(demand.classes))
    for host in demand.places[: demand.units]:
        class_ = next((one for one in hosts[host].classes if left[one] > 0), None) if host in hosts else None
        if class_ is not None:
            left[class_] -= 1
            yield _Newcomer(demand, sizes[class_], class_, host)
    for class_ in left.elements():
        yield _Newcomer(demand, sizes[class_], class_, "")


def _weight(text: str) -> float:
    """The weight that a configuration says; 1 if it is no number above 0, and within what a task may have."""
    try:
        found = float(text or 1)
    except ValueError:
        return 1.0
    return min(max(found, WEIGHT_MIN), WEIGHT_MAX) if found > 0 else 1.0
