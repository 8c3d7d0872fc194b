"""The integer program of the paper, and HiGHS to solve it: the reference for the exact search, and its fallback.

Variables: x_ij (spot j on vertex i) and y_kl (arc k carries demand l), all 0 or 1. Rows, by the numbers of the paper:

    (3)  min sum vc_i rc_j x_ij + sum vb_k rb_l y_kl
    (4)  sum_i x_ij = 1 for each j             (5) sum_j x_ij <= 1 for each i (distinct sites)
    (6)  sum_j rc_j x_ij <= wc_i               (7) sum_k y_kl >= 1 (with (5) only)
    (8)  sum over both arcs of a link and all l of rb_l y_kl <= wb
    (9)  outflow - inflow of l at m = x_mo - x_mp
    (10) y on both arcs of a link, for one l, <= 1         (11) sum_k y_kl <= Pmax

:func:`plain` is (3) to (9), with (10) and (11) where a demand limits its links ("st"), over all vertices and arcs.
:func:`strengthened` leaves out what can't be (x where a site is short, y where a link is) and adds
out(m, l) >= x_mo, in(m, l) >= x_mp. Both also hold what the paper lacks: transit flags, latency bounds, twins.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import ceil, inf
from typing import Final, NamedTuple, final

from leasekit.policies.broker.coallocation.instance import INF, Availability, InstanceOutcome, InstanceShape, Network
from leasekit.policies.solver import MILP_NODES_MAX, MilpRow, run

_SLACK: Final = 1e-6


class Program(NamedTuple):
    """A 0-1 program: minimize ``cost``. ``x[j][i]`` and ``y[l][k]`` are columns, k = 2e or 2e + 1 an arc of link e."""

    cost: Sequence[float]
    rows: Sequence[MilpRow]
    x: Sequence[Mapping[int, int]]
    y: Sequence[Mapping[int, int]]


def plain(network: Network, shape: InstanceShape, free: Availability) -> Program:
    """The program as the paper has it."""
    return _Builder(network, shape, free, strong=False).program()


def strengthened(network: Network, shape: InstanceShape, free: Availability) -> Program:
    """The program without impossible columns, and with rows that cut off fractions."""
    return _Builder(network, shape, free, strong=True).program()


@final
class _Builder:
    def __init__(self, network: Network, shape: InstanceShape, free: Availability, *, strong: bool) -> None:
        self._network, self._shape, self._free, self._strong = network, shape, free, strong
        self._cost: list[float] = []
        self._rows: list[MilpRow] = []
        self._x = [self._hosts(j) for j in range(len(shape.spots))]
        self._y = [self._arcs(number) for number in range(len(shape.demands))]

    def program(self) -> Program:
        self._sites()
        self._bandwidth()
        for number in range(len(self._shape.demands)):
            self._flow(number)
            self._limits(number)
        return Program(self._cost, self._rows, self._x, self._y)

    def _column(self, cost: int) -> int:
        scale = self._network.scale
        self._cost.append(cost / (scale.bandwidth * scale.value))
        return len(self._cost) - 1

    def _row(self, low: float, high: float, terms: Mapping[int, float]) -> None:
        if terms or low > 0:
            self._rows.append(MilpRow(low, high, terms))

    def _hosts(self, j: int) -> dict[int, int]:
        spot, free = self._shape.spots[j], self._free
        allowed = set(spot.candidates)
        vertices: Iterable[int] = range(len(self._network.names))
        if self._strong:
            vertices = (v for v in spot.candidates if free.cpus[v] >= spot.cpus)
        columns = {v: self._column(free.vc[v] * spot.cpus) for v in vertices}
        barred = {column: 1.0 for v, column in columns.items() if v not in allowed}
        if barred:
            self._row(0.0, 0.0, barred)
        return columns

    def _arcs(self, number: int) -> dict[int, int]:
        demand, network, free = self._shape.demands[number], self._network, self._free
        columns = {}
        for e in range(len(network.ends)):
            if self._shape.avoid >> e & 1 or (self._strong and free.bw[e] < demand.bw):
                continue
            for k in (2 * e, 2 * e + 1):
                columns[k] = self._column(network.vb[e] * demand.bw)
        return columns

    def _sites(self) -> None:
        shape, cpus = self._shape, self._free.cpus
        for columns in self._x:
            self._row(1.0, 1.0, dict.fromkeys(columns.values(), 1.0))
        for v in range(len(self._network.names)):
            here = {
                columns[v]: float(spot.cpus) for columns, spot in zip(self._x, shape.spots, strict=True) if v in columns
            }
            if shape.distinct:
                self._row(-inf, 1.0, dict.fromkeys(here, 1.0))
            self._row(-inf, float(cpus[v]), here)

    def _bandwidth(self) -> None:
        scale = self._network.scale.bandwidth
        for e, free in enumerate(self._free.bw):
            terms = {
                columns[k]: demand.bw / scale
                for columns, demand in zip(self._y, self._shape.demands, strict=True)
                for k in (2 * e, 2 * e + 1)
                if k in columns
            }
            self._row(-inf, free / scale, terms)

    def _flow(self, number: int) -> None:
        demand, ends = self._shape.demands[number], self._network.ends
        columns = self._y[number]
        source, target = self._x[demand.source], self._x[demand.target]
        if self._shape.distinct:
            self._row(1.0, inf, dict.fromkeys(columns.values(), 1.0))
        for v in range(len(self._network.names)):
            leaving, entering = [], []
            for e in self._network.touching[v]:
                if 2 * e in columns:
                    away = 2 * e if ends[e][0] == v else 2 * e + 1
                    leaving.append(columns[away])
                    entering.append(columns[away ^ 1])
            from_here = {source[v]: -1.0} if v in source else {}
            to_here = {target[v]: -1.0} if v in target else {}
            out, into = dict.fromkeys(leaving, 1.0), dict.fromkeys(entering, 1.0)
            balance = {**out, **dict.fromkeys(entering, -1.0), **from_here}
            balance |= dict.fromkeys(to_here, 1.0)
            self._row(0.0, 0.0, balance)
            if self._strong and self._shape.distinct:
                if from_here:
                    self._row(0.0, inf, {**out, **from_here})
                if to_here:
                    self._row(0.0, inf, {**into, **to_here})
            if not self._network.transit[v]:
                self._row(-inf, 0.0, {**out, **from_here})
                self._row(-inf, 0.0, {**into, **to_here})

    def _limits(self, number: int) -> None:
        demand, columns, network = self._shape.demands[number], self._y[number], self._network
        links = sorted({k // 2 for k in columns})
        if demand.hops:
            for e in links:
                self._row(-inf, 1.0, {columns[2 * e]: 1.0, columns[2 * e + 1]: 1.0})
            self._row(-inf, float(demand.hops), dict.fromkeys(columns.values(), 1.0))
        if demand.latency >= 0:
            scale = network.scale.latency
            terms = {
                column: network.latency[k // 2] / scale for k, column in columns.items() if network.latency[k // 2]
            }
            self._row(-inf, demand.latency / scale, terms)
        if demand.twin > number:
            twin = self._y[demand.twin]
            for e in links:
                both = [columns[2 * e], columns[2 * e + 1], twin[2 * e], twin[2 * e + 1]]
                self._row(-inf, 1.0, dict.fromkeys(both, 1.0))


def solve(
    network: Network,
    shape: InstanceShape,
    free: Availability,
    *,
    below: int = INF,
    nodes: int = MILP_NODES_MAX,
    remaining: Callable[[], float] | None = None,
    ordered: bool = True,
) -> InstanceOutcome:
    """The cheapest plan of cost less than ``below``, by HiGHS.

    ``remaining`` says how many seconds are left; without it only ``nodes`` end a run, and the same problem always has
    the same answer. With ``ordered``, of equal plans the first in the order of site names is found, at the price of
    a few more runs.
    """
    program = strengthened(network, shape, free)
    scale = network.scale.bandwidth * network.scale.value
    first = run(
        program.cost, program.rows, nodes=nodes, remaining=remaining, cutoff=below / scale if below < INF else inf
    )
    bound = _whole(first.bound * scale)
    if not first.values:
        if first.done:
            return InstanceOutcome("infeasible", None, INF)
        return InstanceOutcome("bound", None, min(bound, below))
    found = _outcome(network, shape, free, program, first.values)
    assert found.cost is not None
    if found.cost >= below:
        return InstanceOutcome("infeasible" if first.done else "bound", None, INF if first.done else min(bound, below))
    if not first.done:
        return found._replace(status="bound", bound=min(bound, found.cost))
    found = found._replace(status="optimal", bound=found.cost)
    return _first_by_name(network, shape, free, program, found, nodes, remaining) if ordered else found


def _first_by_name(
    network: Network,
    shape: InstanceShape,
    free: Availability,
    program: Program,
    found: InstanceOutcome,
    nodes: int,
    remaining: Callable[[], float] | None,
) -> InstanceOutcome:
    """Of the plans that cost the least, the first by names: spot by spot, the first name that still can be had."""
    assert found.cost is not None
    scale = network.scale.bandwidth * network.scale.value
    ceiling = MilpRow(-inf, found.cost / scale + _SLACK, {c: value for c, value in enumerate(program.cost) if value})
    rows = [*program.rows, ceiling]
    for j, columns in enumerate(program.x):
        names = [0.0] * len(program.cost)
        for v, column in columns.items():
            names[column] = float(network.rank[v])
        solved = run(names, rows, nodes=nodes, remaining=remaining)
        if not solved.done or not solved.values:
            return found
        better = _outcome(network, shape, free, program, solved.values)
        if better.cost != found.cost:
            return found
        found = better._replace(status="optimal", bound=found.cost)
        rows.append(MilpRow(1.0, 1.0, {columns[found.sites[j]]: 1.0}))
    return found


def _outcome(
    network: Network, shape: InstanceShape, free: Availability, program: Program, values: Sequence[float]
) -> InstanceOutcome:
    """The plan that a solution's columns say, cycles stripped, its cost counted anew in whole numbers."""
    sites = tuple(next(v for v, column in columns.items() if values[column] > 0.5) for columns in program.x)
    cost = sum(free.vc[v] * spot.cpus for v, spot in zip(sites, shape.spots, strict=True))
    paths = []
    for demand, columns in zip(shape.demands, program.y, strict=True):
        onward: dict[int, list[int]] = {}
        for k, column in columns.items():
            if values[column] > 0.5:
                a, b = network.ends[k // 2] if k % 2 == 0 else network.ends[k // 2][::-1]
                onward.setdefault(a, []).append(b)
        path = _walk(onward, sites[demand.source], sites[demand.target])
        cost += sum(network.vb[network.link_of[frozenset(pair)]] for pair in itertools.pairwise(path)) * demand.bw
        paths.append(path)
    return InstanceOutcome("bound", cost, cost, sites, tuple(paths))


def _walk(onward: Mapping[int, Sequence[int]], source: int, target: int) -> tuple[int, ...]:
    """A path over chosen arcs, of as few as there is one: cycles that cost nothing may hang on it."""
    paths: list[tuple[int, ...]] = [(source,)]
    for path in paths:
        if path[-1] == target:
            return path
        paths += [(*path, v) for v in onward.get(path[-1], ()) if v not in path]
    raise AssertionError(f"the solver's arcs don't lead from {source} to {target}")


def _whole(bound: float) -> int:
    """The least whole cost that is not below a bound of a solver that rounds."""
    if bound == inf:
        return INF
    return max(0, ceil(bound - _SLACK * max(1.0, abs(bound)))) if bound > -inf else 0
