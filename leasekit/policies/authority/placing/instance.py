"""A problem in numbers by position, which all algorithms work on, and what hosts have left as items are put on them.

Tasks that must share a host are one item. An item's ``need`` is its CPU times its weight by the greatest weight: at a
level Y its tasks get ``need x Y``, and at least their floors. Floors are one more rigid resource, of the host's CPU.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from math import inf
from typing import Final, NamedTuple, final

import attrs

from leasekit.policies.authority.placing.model import YieldProblem

EPSILON: Final = 1e-9
"""What sums of fractions may be above a capacity, as a share of it. Whole numbers may not."""

Mapped = list[int]
"""The host of each item by position; -1: none yet."""


class Home(NamedTuple):
    """A task of an item that runs: its position, its host, and its memory."""

    task: int
    host: int
    memory: float


@final
@attrs.frozen(eq=False)
class YieldInstance:
    """Lists by item, by host, or by resource and then one of these; ``value`` (weights) and ``floor`` by task of the
    problem, where ``tasks`` are positions.

    ``edge`` is the need of one virtual CPU, at most ``core`` of its host; ``groups`` are numbers of spread groups, of
    which a domain takes ``most``. ``limited``: an item may be refused by a host that has all that it needs. At a level
    of ``bare`` or more no floor counts.
    """

    problem: YieldProblem
    tasks: list[tuple[int, ...]]
    value: list[float]
    floor: list[float]
    need: list[float]
    rigid: list[list[float]]
    capacity: list[float]
    room: list[list[float]]
    resources: int
    edge: list[float]
    core: list[float]
    allowed: list[frozenset[int] | None]
    groups: list[Counter[int]]
    most: list[int]
    domain: list[int]
    homes: list[tuple[Home, ...]]
    limited: bool = attrs.field(init=False)
    bare: float = attrs.field(init=False)

    @limited.default
    def _is_limited(self) -> bool:
        return any(self.groups) or any(one is not None for one in self.allowed) or min(self.core) < inf

    @bare.default
    def _no_floor_counts(self) -> float:
        tasks = zip(self.problem.tasks, self.value, self.floor, strict=True)
        return max((floor / (task.cpu * value) for task, value, floor in tasks if floor), default=0.0)

    @property
    def floors(self) -> bool:
        """Whether a task has one."""
        return len(self.rigid) > self.resources

    @property
    def equal_hosts(self) -> bool:
        """Whether all hosts have as much of everything."""
        return len(set(zip(self.capacity, self.core, *self.room, strict=True))) == 1

    def moving(self, item: int, host: int) -> float:
        """The memory that is moved if an item is put on a host."""
        return sum(home.memory for home in self.homes[item] if home.host != host)

    def moved(self, mapping: Sequence[int]) -> float:
        """The memory that a mapping moves."""
        return sum(self.moving(item, host) for item, host in enumerate(mapping) if self.homes[item])

    def sizes(self, level: float) -> list[float]:
        """The CPU of each item at a level."""
        if level >= self.bare:
            return [need * level for need in self.need]
        tasks, value, floor = self.problem.tasks, self.value, self.floor
        return [sum(max(floor[t], tasks[t].cpu * value[t] * level) for t in item) for item in self.tasks]

    def level(self, mapping: Sequence[int]) -> float:
        """The greatest level at which a mapping, all of whose items have hosts, fits: from 0 to 1."""
        loads, steepest = [0.0] * len(self.capacity), [0.0] * len(self.capacity)
        for need, edge, host in zip(self.need, self.edge, mapping, strict=True):
            loads[host] += need
            if edge > steepest[host]:
                steepest[host] = edge
        least = 1.0
        for load, capacity, edge, core in zip(loads, self.capacity, steepest, self.core, strict=True):
            if load * least > capacity:
                least = capacity / load
            if edge * least > core:
                least = core / edge
        return least if least >= self.bare else min(self._levels(mapping), default=1.0)

    def _levels(self, mapping: Sequence[int]) -> Iterator[float]:
        """By host and by virtual CPU, where tasks have floors."""
        here: defaultdict[int, list[int]] = defaultdict(list)
        for item, host in enumerate(mapping):
            here[host] += self.tasks[item]
            if self.edge[item] > self.core[host]:
                yield self.core[host] / self.edge[item]
        for host, tasks in here.items():
            needs = [self.problem.tasks[t].cpu * self.value[t] for t in tasks]
            floors, most = [self.floor[t] for t in tasks], [1 / self.value[t] for t in tasks]
            yield min(1.0, water_level(self.capacity[host], needs, floors, most))

    def ceiling(self, pinned: Sequence[int] | None = None) -> float:
        """A level that no mapping exceeds: by all of the CPU, by virtual CPUs, and by what is ``pinned``."""
        total = sum(self.need)
        top = min(1.0, sum(self.capacity) / total if total else 1.0)
        fastest = max(self.core)
        top = min([top, *(fastest / edge for edge in self.edge if edge * top > fastest)])
        loads = [0.0] * len(self.capacity)
        for need, host in zip(self.need, pinned or (), strict=False):
            if host >= 0:
                loads[host] += need
        return min([top, *(c / load for load, c in zip(loads, self.capacity, strict=True) if load * top > c)])


def water_level(capacity: float, needs: Sequence[float], floors: Sequence[float], most: Sequence[float]) -> float:
    """The greatest level, up to the greatest of ``most``, at which the sum of ``min(most x need, max(floor, need x
    level))`` fits a capacity: 0 if not even the floors do.
    """

    def total(level: float) -> float:
        return sum(min(top * n, max(floor, n * level)) for n, floor, top in zip(needs, floors, most, strict=True))

    low, here = 0.0, total(0.0)
    if here > capacity * (1 + EPSILON):
        return 0.0
    for high in sorted({floor / need for need, floor in zip(needs, floors, strict=True) if need} | set(most)):
        there = total(high)
        if there > max(here, capacity):  # linear between two bends; floors may be above by what was rounded
            return low + (high - low) * max(0.0, capacity - here) / (there - here)
        low, here = high, there
    return low


@final
class Rooms:
    """What hosts have left as items are put on them. ``load`` is the need on each host."""

    def __init__(self, instance: YieldInstance, mapping: Sequence[int] = ()) -> None:
        self._of = instance
        self.load = [0.0] * len(instance.capacity)
        self.left = [list(row) for row in instance.room]
        self._groups: Counter[tuple[int, int]] = Counter()
        for item, host in enumerate(mapping):
            if host >= 0:
                self.put(item, host)

    def put(self, item: int, host: int, sign: int = 1) -> None:
        """Put an item on a host, or take it off (``sign`` -1)."""
        of = self._of
        self.load[host] += sign * of.need[item]
        for sizes, left in zip(of.rigid, self.left, strict=True):
            left[host] -= sign * sizes[item]
        for group, count in of.groups[item].items():
            self._groups[group, of.domain[host]] += sign * count

    def fits(self, item: int, host: int, level: float = 0.0) -> bool:
        """Whether a host has room for an item beside what is on it; and its virtual CPUs get a level of their need."""
        of = self._of
        for sizes, left in zip(of.rigid, self.left, strict=True):
            if sizes[item] > left[host]:
                return False
        return self.accepts(item, host, level)

    def accepts(self, item: int, host: int, level: float) -> bool:
        """The same without regard to rigid resources."""
        of = self._of
        allowed = of.allowed[item]
        if allowed is not None and host not in allowed:
            return False
        if of.edge[item] * level > of.core[host]:
            return False
        place = of.domain[host]
        return all(self._groups[group, place] + count <= of.most[group] for group, count in of.groups[item].items())


def compiled(problem: YieldProblem) -> YieldInstance:
    """The instance of a problem that has no faults."""
    hosts, tasks = problem.hosts, problem.tasks
    at = {host.id: number for number, host in enumerate(hosts)}
    heaviest = max((task.weight for task in tasks), default=1.0)
    value = [task.weight / heaviest for task in tasks]
    blocks: dict[tuple[str, int], list[int]] = {}
    for t, task in enumerate(tasks):
        blocks.setdefault((task.together, -1) if task.together else ("", t), []).append(t)
    items = [tuple(block) for block in blocks.values()]
    width = len(hosts[0].rigid)
    rigid = [[sum(tasks[t].rigid[r] for t in item) for item in items] for r in range(width)]
    room = [[_roomy(host.rigid[r]) for host in hosts] for r in range(width)]
    floor = _floors(problem)
    if any(floor):
        rigid.append([sum(floor[t] for t in item) for item in items])
        room.append([_roomy(host.cpu) for host in hosts])
    steepest = max((task.cpu / task.cores for task in tasks), default=0.0)
    spreads = {name: number for number, name in enumerate(dict.fromkeys(task.spread for task in tasks if task.spread))}
    domains = {
        name: number for number, name in enumerate(dict.fromkeys(host.domain or f"\0{host.id}" for host in hosts))
    }
    return YieldInstance(
        problem=problem,
        tasks=items,
        value=value,
        floor=floor,
        need=[sum(tasks[t].cpu * value[t] for t in item) for item in items],
        rigid=rigid,
        capacity=[host.cpu for host in hosts],
        room=room,
        resources=width,
        edge=[max(tasks[t].cpu * value[t] / tasks[t].cores for t in item) for item in items],
        core=[host.core if host.core < steepest else inf for host in hosts],
        allowed=[_allowed(problem, item, floor, at) for item in items],
        groups=[Counter(spreads[tasks[t].spread] for t in item if tasks[t].spread) for item in items],
        most=[problem.spread.get(name, 1) for name in spreads],
        domain=[domains[host.domain or f"\0{host.id}"] for host in hosts],
        homes=[
            tuple(Home(t, at[host], sum(tasks[t].rigid[:1])) for t in item if (host := tasks[t].host) is not None)
            for item in items
        ],
    )


def _roomy(capacity: float) -> float:
    return capacity if isinstance(capacity, int) else capacity * (1 + EPSILON)


def _floors(problem: YieldProblem) -> list[float]:
    """The floor of each task. Those of a job get the same yield: as much of their need as the one with the most."""
    least: defaultdict[str, float] = defaultdict(float)
    for task in problem.tasks:
        if task.floor:
            least[task.job] = max(least[task.job], task.floor / task.cpu)
    return [least[task.job] * task.cpu if task.job and least[task.job] else task.floor for task in problem.tasks]


def _allowed(
    problem: YieldProblem, item: Sequence[int], floor: Sequence[float], at: dict[str, int]
) -> frozenset[int] | None:
    """The hosts that will do for all tasks of an item: by name, and by cores that can give them their floors."""
    tasks = [problem.tasks[t] for t in item]
    some = {task.hosts for task in tasks if task.hosts is not None and len(task.hosts) < len(at)}
    sets = [frozenset(at[name] for name in one) for one in some]
    edge = max(floor[t] / problem.tasks[t].cores for t in item)
    if any(host.core < edge for host in problem.hosts):
        sets.append(frozenset(number for number, host in enumerate(problem.hosts) if host.core >= edge))
    return frozenset.intersection(*sets) if sets else None
