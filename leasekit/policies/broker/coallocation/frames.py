"""A request with a window: candidate starts, what is free at each, one optimum per start, and their order.

The timetables are the resource managers'. What is free for a frame ``[start, start + duration)`` is the least over it;
a site, or a class of users, may see only a fraction of that. Starts at which the same can be placed in the same places
share one solution.

Why breakpoints suffice for the true earliest start: what is free over ``[t, t + D)`` grows with t only where a
reservation that lay at its left edge ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from itertools import islice, pairwise
from typing import NamedTuple, final

import attrs

from leasekit.core.time import Duration, Instant, Term
from leasekit.core.timetable import Timetable
from leasekit.core.topology import Mode, Sort
from leasekit.policies.broker.coallocation.bounds import Bounds, Ground, best_of
from leasekit.policies.broker.coallocation.instance import INF, Availability, InstanceOutcome, InstanceShape, Network
from leasekit.policies.broker.coallocation.model import Solver
from leasekit.policies.broker.coallocation.routing import Oracle
from leasekit.policies.broker.coallocation.solve import UNLIMITED_TIME, SolveLimits, solve


@attrs.frozen(kw_only=True)
class FrameWindow:
    """Start in ``[est, lst]`` for ``duration``; times in the timetables' unit.

    ``unit`` is how many of those make one of the requester's, in whole numbers of which equidistant starts lie apart
    from ``est``. ``most`` is how many breakpoints are looked at, the first ones (None: all).
    """

    est: Instant
    lst: Instant
    duration: Duration
    count: int = 10
    mode: Mode = "equidistant"
    unit: int = 1
    most: int | None = None

    def frame(self, start: Instant) -> Term:
        """The term that begins at ``start``."""
        return Term(start, start + self.duration)


@attrs.frozen(kw_only=True)
class Policy:
    """What the user and the administrator want of planning.

    ``fraction`` of what is free is shown, rounded down to whole units (option C, or what a site discloses);
    ``load_balancing`` is option A; ``values`` are those of a CPU by vertex in place of the network's (option B, or
    the user's: prices, or quality). ``best_only`` finds the first plan in the order of ``sort`` and no others.
    """

    fraction: Fraction = Fraction(1)
    load_balancing: bool = False
    values: tuple[int, ...] | None = None
    sort: Sort = "start"
    solver: Solver = "auto"
    best_only: bool = False
    limits: SolveLimits = UNLIMITED_TIME


class FramePlan(NamedTuple):
    """A plan for one start; ``outcome`` has a cost."""

    start: Instant
    outcome: InstanceOutcome


class Refused(NamedTuple):
    """A start without a plan. ``outcome`` is None where a limit was met before it was looked at."""

    start: Instant
    outcome: InstanceOutcome | None


class FramePlanned(NamedTuple):
    """All plans, the preferred one first, and the starts without one, in order of time.

    ``looked_at`` counts starts, ``solved`` those that needed a solution of their own.
    """

    plans: tuple[FramePlan, ...]
    refused: tuple[Refused, ...]
    looked_at: int
    solved: int


@final
class Books:
    """The timetables of a network: of CPUs by vertex (None at exchange points), of bandwidth by link, scaled."""

    def __init__(self, network: Network, cpus: Sequence[Timetable | None], links: Sequence[Timetable]) -> None:
        self.network = network
        self.cpus = tuple(cpus)
        self.links = tuple(links)

    @classmethod
    def empty(cls, network: Network) -> Books:
        """Timetables with all of the network's resources and nothing reserved."""
        sites = set(network.sites)
        cpus = [Timetable(count) if v in sites else None for v, count in enumerate(network.cpus)]
        return cls(network, cpus, [Timetable(bw) for bw in network.bw])

    def free(self, frame: Term, policy: Policy = Policy()) -> Availability:
        """What may be used throughout a frame, and the values of CPUs in it."""
        return View(self, None, frame, policy).free(frame)

    def overlay(self) -> Books:
        """A what-if view."""
        cpus = [None if table is None else table.overlay() for table in self.cpus]
        return Books(self.network, cpus, [table.overlay() for table in self.links])

    def reserve(self, key: str, shape: InstanceShape, plan: FramePlan, duration: Duration) -> None:
        """Take what a plan uses, all or nothing. Raises ``Shortfall`` if it doesn't fit."""
        frame = Term(plan.start, plan.start + duration)
        taken: list[tuple[Timetable, tuple[str, int]]] = []
        try:
            for table, units, part in self._parts(shape, plan.outcome):
                table.reserve((key, part), units, frame)
                taken.append((table, (key, part)))
        except Exception:
            for table, name in taken:
                table.release(name)
            raise

    def release(self, key: str, shape: InstanceShape, plan: FramePlan) -> None:
        """Give up what :meth:`reserve` took under that key."""
        for table, _, part in self._parts(shape, plan.outcome):
            table.release((key, part))

    def _parts(self, shape: InstanceShape, outcome: InstanceOutcome) -> Iterator[tuple[Timetable, int, int]]:
        for j, (v, spot) in enumerate(zip(outcome.sites, shape.spots, strict=True)):
            table = self.cpus[v]
            assert table is not None, "exchange points don't host"
            if spot.cpus:
                yield table, spot.cpus, j
        for number, (path, demand) in enumerate(zip(outcome.paths, shape.demands, strict=True)):
            for pair in pairwise(path):
                yield self.links[self.network.link_of[frozenset(pair)]], demand.bw, number

    def breakpoints(self, after: Instant, until: Instant, most: int | None = None) -> list[Instant]:
        """Where anything changes in ``(after, until]``, in order; the first ``most`` of them."""
        found: set[Instant] = set()
        for table in (*self.cpus, *self.links):
            if table is not None and len(table):
                stretches = table.frees(Term(after, until + 1))
                found.update(start for start, _, _ in islice(stretches, None if most is None else most + 1))
        return sorted(found - {after})[:most]


@final
class View:
    """What a request sees of the books, frame by frame within ``span``.

    What has enough throughout the span for all that the request could want there is looked up once: figures are
    exact only up to that. Without a ``shape`` all are exact.
    """

    def __init__(self, books: Books, shape: InstanceShape | None, span: Term, policy: Policy) -> None:
        network = books.network
        self._policy = policy
        self._share = policy.fraction.as_integer_ratio()
        self._unit = network.scale.value * network.scale.bandwidth
        self._totals = network.cpus
        self._grain = network.scale.bandwidth
        self._values = policy.values or network.vc
        self._cpus = [0 if table is None else max(0, table.available(span)) for table in books.cpus]
        self._bw = [max(0, table.available(span)) for table in books.links]
        least = most = INF
        if shape is not None:
            most = shape.total_bw
            least = max(spot.cpus for spot in shape.spots) if shape.distinct else shape.total_cpus
        if policy.load_balancing:
            least = INF
        self._sites = [
            (v, table)
            for v, table in enumerate(books.cpus)
            if table is not None and len(table) and self._count(self._cpus[v]) < least
        ]
        self._links = [
            (e, table) for e, table in enumerate(books.links) if len(table) and self._width(self._bw[e]) < most
        ]
        self.nodes = 1 + (len(self._sites) + len(self._links)) // 16
        """How many nodes of the search a frame is counted as."""

    def _count(self, free: int) -> int:
        part, whole = self._share
        return free * part // whole

    def _width(self, free: int) -> int:
        part, whole = self._share
        return free if part == whole else free * part // (whole * self._grain) * self._grain

    def free(self, frame: Term) -> Availability:
        """What may be used throughout a frame of the span, and the values of CPUs in it."""
        cpus, bw = self._cpus.copy(), self._bw.copy()
        for v, table in self._sites:
            cpus[v] = max(0, table.available(frame))
        for e, table in self._links:
            bw[e] = max(0, table.available(frame))
        values = self._values
        if self._policy.load_balancing:
            values = tuple(
                [
                    self._unit * (1 + 99 * (total - left) // total if total else 1)
                    for total, left in zip(self._totals, cpus, strict=True)
                ]
            )
        if self._share != (1, 1):
            cpus = [self._count(free) for free in cpus]
            bw = [self._width(free) for free in bw]
        return Availability(tuple(cpus), tuple(bw), values)


def starts(window: FrameWindow, books: Books) -> list[Instant]:
    """The candidate starts of a window, in order; both of its ends are among the equidistant ones."""
    found: set[Instant] = set()
    if window.mode != "breakpoints":
        span, steps = window.lst - window.est, max(1, window.count - 1)
        found.update(
            window.est + span * k // (steps * window.unit) * window.unit for k in range(min(window.count, steps + 1))
        )
    if window.mode != "equidistant":
        found.update((window.est, *books.breakpoints(window.est, window.lst, window.most)))
    return sorted(found)


@final
class FramePlanner:
    """Plans requests over one network's books. What is known of cheapest paths is kept from request to request."""

    def __init__(self, books: Books) -> None:
        self.network = books.network
        self.books = books
        self.oracle = Oracle(books.network)

    def plan(self, shape: InstanceShape, window: FrameWindow, policy: Policy = Policy()) -> FramePlanned:
        """Plans for the candidate starts of a window."""
        candidates = starts(window, self.books)
        looked_at = len(candidates)
        view = View(self.books, shape, Term(candidates[0], candidates[-1] + window.duration), policy)
        frees: Iterable[Availability] = (view.free(window.frame(start)) for start in candidates)
        bounds = None
        if policy.solver != "highs" and len(candidates) > 1 and not (policy.best_only and policy.sort == "start"):
            looked_at = policy.limits.affords(looked_at, view.nodes)
            frees = looked_up = list(islice(frees, looked_at))
            bounds = Bounds(Ground(self.network, shape, best_of(looked_up)), self.oracle)
        known: dict[object, InstanceOutcome] = {}
        plans: list[FramePlan] = []
        refused: list[Refused] = []
        below = INF
        for number, (start, free) in enumerate(zip(candidates, frees, strict=False)):
            if policy.limits.met:
                looked_at = number
                break
            policy.limits.charge(view.nodes)
            key = _essence(shape, free)
            outcome = known.get(key)
            if outcome is None:
                limits = policy.limits.share(len(candidates) - number)
                outcome = known[key] = solve(
                    self.network,
                    shape,
                    free,
                    self.oracle,
                    solver=policy.solver,
                    limits=limits,
                    below=below,
                    bounds=bounds,
                )
            if outcome.cost is None or outcome.cost >= below:
                refused.append(Refused(start, outcome))
                continue
            plans.append(FramePlan(start, outcome))
            if policy.best_only:
                if policy.sort == "start":
                    break
                below = outcome.cost
        refused += [Refused(late, None) for late in candidates[looked_at:]]
        return FramePlanned(tuple(self._sorted(plans, policy.sort)), tuple(refused), len(candidates), len(known))

    def _sorted(self, plans: list[FramePlan], sort: Sort) -> list[FramePlan]:
        rank = self.network.rank

        def order(plan: FramePlan) -> tuple[object, ...]:
            names = tuple(rank[v] for v in plan.outcome.sites)
            cost = plan.outcome.cost or 0
            return (plan.start, cost, names) if sort == "start" else (cost, plan.start, names)

        return sorted(plans, key=order)


def _essence(shape: InstanceShape, free: Availability) -> object:
    """All that a solution depends on: frames that agree in it have the same one."""
    if shape.distinct:
        cpus = free.cpus
        hosts: object = [[cpus[v] >= needed for v in candidates] for needed, candidates in shape.kinds]
    else:
        most = shape.total_cpus
        hosts = [min(count, most) for count in free.cpus]
    most = shape.total_bw
    return repr((hosts, [width if width < most else most for width in free.bw], free.vc))
