"""The mixed integer program of virtual clusters, exactly and relaxed, and its rounding to whole placements.

e_ij is 1 if item i is on host j. The compact form minimizes L >= 1 with

    sum_j e_ij = 1        sum_i need_i e_ij <= C_j L        rigid: sum_i m_ir e_ij <= M_jr

and Y = 1 / L; of equal hosts the item of the k-th greatest need is on one of hosts 0 to k,
which breaks symmetry. The paper's form has the CPU
a_tj of each task on each host as columns, and maximizes Y with sum_j a_tj >= c_t v_t Y: it also takes floors. Both take
limits on hosts, cores and domains, and the bound on migration: sum_ij moved_ij e_ij <= B.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from hashlib import blake2b
from itertools import accumulate
from math import inf
from typing import Final, NamedTuple, final

from leasekit.policies.authority.placing.instance import Mapped, Rooms, YieldInstance
from leasekit.policies.solver import MilpRow, Solved, run

GAP: Final = 1e-6
"""How far below the greatest level, relatively, an exact answer may be."""
LEAST_SHARE: Final = 0.01
"""What RRNZ takes in place of a share that is 0."""

Remaining = Callable[[], float] | None


class Exact(NamedTuple):
    """A mapping (None: none was found), a bound on the level, and whether that is the answer, or that there is none."""

    mapping: Mapped | None
    bound: float
    proven: bool


def exact(instance: YieldInstance, *, paper: bool = False, remaining: Remaining = None) -> Exact:
    """The greatest level, and of mapping that reach it one that moves the least memory. Until ``remaining`` (seconds)
    runs out: then what was found so far.
    """
    program = _Program(instance, paper=paper or instance.floors, symmetric=False)
    solved = program.solve(remaining=remaining)
    if not solved.values:
        return Exact(None, 0.0 if solved.done else instance.ceiling(), solved.done)
    bound, mapping = program.level(solved.bound), program.mapping(solved.values)
    if any(instance.homes) and solved.done and instance.moved(mapping):
        nearest = program.nearest(solved.values, remaining)
        mapping = program.mapping(nearest.values) if nearest.values else mapping
    return Exact(mapping, max(bound, instance.level(mapping)), solved.done)


def relaxed_level(instance: YieldInstance) -> float | None:
    """The level of the relaxed program, which bounds all others; None if not even that has a solution.

    Where hosts are equal, and nothing is limited, it is known without a solver.
    """
    if instance.equal_hosts and not instance.limited and not any(instance.homes):
        over = any(sum(sizes) > sum(room) for sizes, room in zip(instance.rigid, instance.room, strict=True))
        return None if over else instance.ceiling()
    program = _Program(instance, paper=instance.floors)
    solved = program.solve(relaxed=True)
    return program.level(solved.bound) if solved.values else None


def rounded(instance: YieldInstance, pinned: Sequence[int], seed: int, *, least: float = 0.0) -> Mapped | None:
    """RRND: each item goes to a host at random, by its shares in a relaxed solution, if it has room and a share at
    all. RRNZ has a ``least`` share for all. None if an item finds no host.
    """
    program = _Program(instance, paper=instance.floors, pinned=pinned)
    solved = program.solve(relaxed=True)
    if not solved.values:
        return None
    mapping, rooms = list(pinned), Rooms(instance, pinned)
    for item, host in enumerate(pinned):
        if host >= 0:
            continue
        columns = program.columns[item]
        shares = {h: max(least, solved.values[column], 0.0) for h, column in columns.items() if rooms.fits(item, h)}
        ends = list(accumulate(shares.values()))
        if not ends or ends[-1] <= 0:
            return None
        drawn = int.from_bytes(blake2b(f"{seed}/{item}".encode(), digest_size=8).digest()) / 2**64 * ends[-1]
        chosen = next(h for h, end in zip(shares, ends, strict=True) if drawn < end)
        rooms.put(item, chosen)
        mapping[item] = chosen
    return mapping


@final
class _Program:
    """Columns: e by item and host, then the level's (L, or Y in the paper's form), then the paper's a."""

    def __init__(
        self, instance: YieldInstance, *, paper: bool, pinned: Sequence[int] = (), symmetric: bool = True
    ) -> None:
        self._of, self._paper = instance, paper
        rank = {item: k for k, item in enumerate(sorted(range(len(instance.need)), key=lambda i: -instance.need[i]))}
        breaks = not symmetric and instance.equal_hosts and not instance.limited and not any(instance.homes)
        self.columns: list[dict[int, int]] = []
        self._count = 0
        self._rows: list[MilpRow] = []
        for item in range(len(instance.need)):
            allowed = instance.allowed[item]
            hosts = range(len(instance.capacity)) if allowed is None else sorted(allowed)
            if pinned and pinned[item] >= 0:
                hosts = [pinned[item]]
            elif breaks:
                hosts = hosts[: rank[item] + 1]
            self.columns.append({host: self._count + number for number, host in enumerate(hosts)})
            self._count += len(hosts)
            self._row(1.0, 1.0, dict.fromkeys(self.columns[-1].values(), 1.0))
        self._level = self._count
        self._count += 1
        self._extra: dict[int, tuple[float, float]] = {self._level: (0.0, 1.0) if paper else (1.0, inf)}
        self._rigid()
        self._domains()
        if paper:
            self._shares()
        else:
            self._loads()
        if instance.problem.bound is not None:
            self._row(-inf, instance.problem.bound, self._moving())

    def solve(self, *, relaxed: bool = False, remaining: Remaining = None) -> Solved:
        """The greatest level, whose ``bound`` is a cost."""
        cost = [0.0] * self._count
        cost[self._level] = -1.0 if self._paper else 1.0
        return run(
            cost, self._rows, columns=self._extra, relaxed=relaxed, remaining=remaining, gap=GAP, nodes=1_000_000
        )

    def nearest(self, values: Sequence[float], remaining: Remaining) -> Solved:
        """Of solutions with that level the one that moves the least."""
        cost = [0.0] * self._count
        scale = sum(home.memory for homes in self._of.homes for home in homes) or 1.0
        for column, memory in self._moving().items():
            cost[column] = memory / scale
        level = values[self._level]
        limits = (level * (1 - GAP), 1.0) if self._paper else (1.0, level * (1 + GAP))
        return run(cost, self._rows, columns={**self._extra, self._level: limits}, remaining=remaining, gap=GAP)

    def level(self, cost: float) -> float:
        """The level of a cost."""
        return min(1.0, -cost if self._paper else 1 / max(cost, 1.0))

    def mapping(self, values: Sequence[float]) -> Mapped:
        """The hosts of a solution."""
        return [max(columns, key=lambda host: values[columns[host]]) for columns in self.columns]

    def _row(self, low: float, high: float, terms: dict[int, float]) -> None:
        self._rows.append(MilpRow(low, high, terms))

    def _moving(self) -> dict[int, float]:
        return {
            column: memory
            for item, columns in enumerate(self.columns)
            for host, column in columns.items()
            if (memory := self._of.moving(item, host))
        }

    def _rigid(self) -> None:
        for sizes, room in zip(self._of.rigid, self._of.room, strict=True):
            for host, capacity in enumerate(room):
                scale = capacity or 1.0
                terms = {
                    columns[host]: sizes[item] / scale
                    for item, columns in enumerate(self.columns)
                    if host in columns and sizes[item]
                }
                self._row(-inf, capacity / scale, terms)

    def _domains(self) -> None:
        rows: defaultdict[tuple[int, int], dict[int, float]] = defaultdict(dict)
        for item, columns in enumerate(self.columns):
            for group, count in self._of.groups[item].items():
                for host, column in columns.items():
                    rows[group, self._of.domain[host]][column] = float(count)
        for (group, _), terms in rows.items():
            self._row(-inf, float(self._of.most[group]), terms)

    def _loads(self) -> None:
        of = self._of
        for host, capacity in enumerate(of.capacity):
            terms = {
                columns[host]: of.need[item] / capacity for item, columns in enumerate(self.columns) if host in columns
            }
            self._row(-inf, 0.0, {**terms, self._level: -1.0})
        for item, columns in enumerate(self.columns):
            for host, column in columns.items():
                if of.edge[item] > of.core[host]:
                    self._row(-inf, 0.0, {column: of.edge[item] / of.core[host], self._level: -1.0})

    def _shares(self) -> None:
        """The paper's form: what each task gets on each host, in shares of its need."""
        of, tasks = self._of, self._of.problem.tasks
        loads: defaultdict[int, dict[int, float]] = defaultdict(dict)
        for item, columns in enumerate(self.columns):
            for t in of.tasks[item]:
                if not tasks[t].cpu:
                    continue
                given = {self._level: -of.value[t]}
                for host, column in columns.items():
                    share, self._count = self._count, self._count + 1
                    most = min(1.0, of.core[host] * tasks[t].cores / tasks[t].cpu)
                    self._extra[share] = (0.0, most)
                    self._row(-inf, 0.0, {share: 1.0, column: -most})
                    if of.floor[t]:
                        self._row(0.0, inf, {share: 1.0, column: -of.floor[t] / tasks[t].cpu})
                    loads[host][share] = tasks[t].cpu / of.capacity[host]
                    given[share] = 1.0
                self._row(0.0, inf, given)
        for terms in loads.values():
            self._row(-inf, 1.0, terms)
