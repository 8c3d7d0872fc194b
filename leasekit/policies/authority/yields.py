"""Virtual clusters: machines are placed, moved and given CPU so that the least yield is as large as it can be.

The yield of a machine is the CPU that it gets over the CPU that it needs (Stillwell et al. 2008). Placements are found
by :mod:`.placing`. A newcomer starts on the host that is best for all; machines that run move if that makes the least
yield larger, within a bound of memory that is moved at once. Caps follow: lowered first, raised last.

A site has a place for each machine before it begins (in its calendars): where nothing better is found,
or a host has no room up to the end of a lease, the machine goes there. So this mapper can't be worse than first fit.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
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
    Refuse,
)
from leasekit.core.properties import CORE, CPU, MEMORY, THOUSAND, Vector, added, amount, is_within
from leasekit.core.time import Instant, Term
from leasekit.policies.authority.first_fit import FILTER, FirstFitTurn
from leasekit.policies.authority.placing.model import Placement, SecondPhase, YieldHost, YieldProblem, YieldTask
from leasekit.policies.authority.placing.moves import Changes, changes
from leasekit.policies.authority.placing.solve import solve

UP: Final = "active"
FREE: Final = "free"
WEIGHT, SPREAD, AFFINITY = "weight", "spread", "affinity"
"""Configuration properties of a lease: how much more yield its machines are to have than others (1), a group of which a
host takes one machine at most, and one that shares a host."""


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
    least_change: int = attrs.field(default=10, validator=[attrs.validators.ge(0), attrs.validators.le(THOUSAND)])
    """By how many thousandths of a machine's need its cap must change to be changed at all."""


class _Holder(NamedTuple):
    """What is known of a lease that has machines: when it ends, and what its configuration says."""

    end: Instant
    weight: float
    spread: str
    affinity: str


class _Newcomer(NamedTuple):
    """A machine that is to start, and where the site has planned it."""

    demand: Demand
    size: Vector
    given_as: bytes
    planned: str


class YieldMapper:
    """The authority's mapper of virtual clusters. Of types that are not divided it is :class:`.first_fit.FirstFit`."""

    Settings: ClassVar[type[YieldSettings]] = YieldSettings
    inline: ClassVar[bool] = True
    watches: ClassVar[bool] = True
    filtered_by: ClassVar[str] = FILTER

    def __init__(self, settings: YieldSettings | None = None) -> None:
        self.settings = settings or YieldSettings()
        self._settled: dict[str, object] = {}
        """What hosts of each type looked like when there was nothing to change."""

    def assign(self, cycle: AuthorityCycle) -> list[AuthorityDecision]:
        """Decide every demand of the cycle; then what changes for machines that run."""
        turn, found = FirstFitTurn(cycle), list[AuthorityDecision]()
        newcomers: dict[str, list[Demand]] = {}
        types = {demand.type: None for demand in cycle.demands}
        for demand in cycle.demands:
            if demand.units > 0 and demand.needs and demand.places:
                newcomers.setdefault(demand.type, []).append(demand)
            else:
                found.append(turn.shrink(demand) if demand.units < 0 else turn.fill(demand))
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
        self._running = [(machine, host) for host in hosts for machine in host.machines if machine.lease]
        self._new = [one for demand in demands for one in _newcomers(demand, self._hosts)]
        self._sent: dict[str, list[Vector]] = {}
        """What this turn has sent to each host so far."""

    def _known_leases(self, type_: str) -> dict[str, _Holder]:
        """Leases by id: of what is booked, and of the demands of this turn."""
        found: dict[str, _Holder] = {}
        for demand in (*self._cycle.booked(type_), *self._demands):
            says = demand.properties
            end = max(demand.term.end, found[demand.lease].end if demand.lease in found else 0)
            weight = _weight(says.get(WEIGHT, ""))
            found[demand.lease] = _Holder(end, weight, says.get(SPREAD, ""), says.get(AFFINITY, ""))
        return found

    def decisions(self, turn: FirstFitTurn) -> Iterator[AuthorityDecision]:
        """Caps that fall, migrations, newcomers, caps that rise: in this order."""
        placed = self._solved() if self._hosts else None
        if placed is None:
            yield from map(turn.place, self._demands)
            return
        problem, placement, todo = placed
        ids = list(self._hosts)
        moving = {one.task: one.target for one in todo.migrations}
        yield from self._caps(todo.lowered, moving)
        for task, target in moving.items():
            machine = self._running[task][0]
            if self._takes(ids[target], machine.size, machine.lease, now=True):
                why = f"for a least yield of {placement.min_yield:.3f}"
                yield Migrate(
                    machine.id, ids[target], why, self._cap_of(machine.size, placement.cpu[task], ids[target])
                )
        yield from self._start(problem, placement, turn)
        if not moving and len({machine.id for machine, _ in self._running}) == len(self._running):
            yield from self._caps(todo.raised, moving)  # what moves has its CPU on both hosts until it is there

    def _solved(self) -> tuple[YieldProblem, Placement, Changes] | None:
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
            found = solve(
                problem, self._settings.algorithm, local_search=self._settings.local_search,
                second_phase=self._settings.second_phase,
            )  # fmt: skip
            if found.status not in ("optimal", "placed"):
                return None
            todo = changes(problem, found, caps)
            if not todo.stuck:
                return problem, found, todo
            for one in todo.stuck:
                home = hosts[one.source].id
                tasks[one.task] = attrs.evolve(tasks[one.task], hosts=frozenset((home,)))
        return None

    def _task(self, machine: MachineView, host: HostView) -> YieldTask:
        """A machine that runs: it stays where it is unless it is up and can be moved."""
        moves = machine.state == UP and "migrate" in host.able
        id_ = f"{machine.id} on {host.id}"  # one that leaves a host is on two
        return self._made(
            id_, machine.lease, self._needs_of(machine), machine.size,
            self._of_class(machine.given_as) if moves else frozenset((host.id,)), host.id,
        )  # fmt: skip

    def _needs_of(self, machine: MachineView) -> Vector:
        if self._settings.needs == "given":
            return machine.needs
        return tuple((name, _needed(machine) if name == CPU else much) for name, much in machine.needs)

    def _newcomer(self, at: int, one: _Newcomer) -> YieldTask:
        there = self._of_class(one.given_as)
        return self._made(f"new {at}", one.demand.lease, one.demand.needs, one.size, there, None)

    def _of_class(self, class_: bytes) -> frozenset[str]:
        return frozenset(host.id for host in self._hosts.values() if class_ in host.classes)

    def _made(
        self, id_: str, lease: str, needs: Vector, size: Vector, hosts: frozenset[str], host: str | None
    ) -> YieldTask:
        known = self._leases.get(lease, _Holder(0, 1.0, "", ""))
        cpu, core = amount(needs, CPU), amount(needs, CORE)
        return YieldTask(
            id=id_, cpu=cpu, rigid=tuple(amount(size, name) for name in self._rigid), host=host,
            cores=max(1, -(-cpu // core)) if core else 1, floor=amount(size, CPU), weight=known.weight, hosts=hosts,
            spread=f"{lease} {known.spread}" if known.spread else "",
            together=f"{lease} {known.affinity}" if known.affinity else "",
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

    def _start(self, problem: YieldProblem, placement: Placement, turn: FirstFitTurn) -> Iterator[Place | Refuse]:
        """Newcomers where they are best, or where the site has planned them; with their caps."""
        chosen: dict[str, list[tuple[str, int]]] = {}
        for number, one in enumerate(self._new, len(self._running)):
            found = placement.mapping[number]
            best = problem.hosts[found].id if found is not None else one.planned
            fits = best == one.planned or self._takes(best, one.size, one.demand.lease)
            host = best if fits else one.planned
            cap = self._cap_of(one.size, placement.cpu[number], host)
            chosen.setdefault(one.demand.lease, []).append((host, cap))
        for demand in self._demands:
            machines = chosen.get(demand.lease, [])
            if len(machines) == demand.units:
                yield Place(demand.lease, tuple(host for host, _ in machines), tuple(cap for _, cap in machines))
            else:
                yield turn.place(demand)

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


def _newcomers(demand: Demand, hosts: dict[str, HostView]) -> Iterator[_Newcomer]:
    """The machines that a demand is to get, each with its planned place; none if one of these is out of service."""
    sizes = dict(zip((class_ for class_, _ in demand.classes), demand.sizes, strict=True))
    planned = demand.places[: demand.units]
    fitting = [
        [class_ for class_ in hosts[host].classes if class_ in sizes] if host in hosts else [] for host in planned
    ]
    if all(fitting):
        for host, (class_, *_) in zip(planned, fitting, strict=True):
            yield _Newcomer(demand, sizes[class_], class_, host)


def _weight(text: str) -> float:
    try:
        found = float(text or 1)
    except ValueError:
        return 1.0
    return found if 0 < found < inf else 1.0
