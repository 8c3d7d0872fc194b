"""The exact search: depth first over sites, with a tree's lower bound, and joint routing at each full placement.

The spots are visited along a spanning forest of the requested graph. A partial placement costs at least what is
placed, plus for each spot that hangs on a placed one the best option that is still unused, with the lower bound of
everything below it (:mod:`.bounds`). Bounds that other frames share are tried first; where they leave too much to look
at, the frame gets its own.

The search runs twice. First options are tried in order of cost, and only what is cheaper than the best so far is
followed; that ends with the least cost. Then they are tried in order of names, with all that costs more left out,
for the first placement in the order of site names (spot by spot as requested). Spots that could trade places are
only placed in the order of names, in both.

Where the node limit or the deadline is met, the best plan so far is given with the least cost that the parts not
looked at could have.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Final, TypeAlias, final

from leasekit.policies.broker.coallocation.bounds import Bounds, Ground
from leasekit.policies.broker.coallocation.instance import INF, Availability, InstanceOutcome, InstanceShape, Network
from leasekit.policies.broker.coallocation.routing import Oracle, Path, Router

NODES_MAX: Final = 20_000
"""Placements of one spot, and combinations of paths, that are looked at before the search gives up."""

ROUTE_NODES_MAX: Final = 2_000
"""Combinations of paths that are looked at for one placement of all spots."""

SHARED_NODES_MAX: Final = 40
"""Nodes after which bounds of the frame's own are worth what they cost."""

_LOOK: Final = 256
"""How many nodes lie between two looks at the deadline."""


Option: TypeAlias = tuple[int, int, int, int]
"""A vertex for a spot whose parent is placed: the bound for the spot's whole subtree there, the vertex's rank by name,
what the spot itself and its paths to earlier ones cost at least, and the vertex.
"""


@final
class Search:
    """One search, of one frame. ``deadline`` says whether the time is up; ``bounds`` are those that frames share."""

    def __init__(
        self,
        network: Network,
        shape: InstanceShape,
        free: Availability,
        oracle: Oracle,
        *,
        nodes: int = NODES_MAX,
        deadline: Callable[[], bool] | None = None,
        bounds: Bounds | None = None,
    ) -> None:
        self._network = network
        self._shape = shape
        self._free = free
        self._oracle = oracle
        self._limit = nodes
        self._deadline = deadline
        self._nodes = 0
        self._stopped = False
        self._open = INF
        self._best = INF
        self._found: tuple[tuple[int, ...], tuple[Path, ...]] | None = None
        self._options: dict[tuple[int, int], list[Option]] = {}
        self._named: dict[tuple[int, int], list[Option]] = {}
        self._at = [-1] * len(shape.spots)
        self._used = 0
        self._ground = Ground(network, shape, free)
        self._masks = self._ground.masks
        self._candidates = self._ground.candidates
        self._router = Router(oracle, shape.demands, self._masks, free.bw)
        self._bounds = bounds

    def run(self, below: int = INF) -> InstanceOutcome:
        """The cheapest plan of cost less than ``below``, the first in the order of site names among equals.

        ``infeasible`` means that there is none below that cost.
        """
        if not all(self._candidates):
            return InstanceOutcome("infeasible", None, INF)
        self._best = below
        if self._bounds is not None:
            self._begin(self._bounds)
            whole, self._limit = self._limit, min(self._limit, SHARED_NODES_MAX)
            self._place_cheapest(0, 0)
            if self._stopped:
                # Not as quick as hoped: with bounds of its own, and all over again but for the best so far.
                self._limit, self._stopped, self._open = whole, False, INF
                self._begin(Bounds(self._ground, self._oracle))
                self._place_cheapest(0, 0)
        else:
            self._begin(Bounds(self._ground, self._oracle))
            self._place_cheapest(0, 0)
        if self._found is None:
            return InstanceOutcome(
                "infeasible" if self._open >= below else "bound", None, self._open, nodes=self._nodes
            )
        if self._open < self._best:
            return self._outcome("bound", self._open)
        self._stopped = False
        self._limit += self._nodes
        self._place_first(0, 0)
        return self._outcome("optimal", self._best)

    def _begin(self, bounds: Bounds) -> None:
        vc, spots = self._free.vc, self._shape.spots
        self._h = [
            {v: vc[v] * spot.cpus + attach[v] for v in candidates if v in attach}
            for spot, attach, candidates in zip(spots, bounds.attach, self._candidates, strict=True)
        ]
        self._least_back = bounds.back
        self._options.clear()
        self._named.clear()

    def _outcome(self, status: str, bound: int) -> InstanceOutcome:
        assert self._found is not None
        sites, paths = self._found
        vertices = tuple(
            path.vertices if path.vertices[0] == sites[demand.source] else path.vertices[::-1]
            for path, demand in zip(paths, self._shape.demands, strict=True)
        )
        return InstanceOutcome(
            "optimal" if status == "optimal" else "bound", self._best, bound, sites, vertices, nodes=self._nodes
        )

    # -- what can be had where --------------------------------------------------------------------------------------

    def _options_of(self, j: int) -> list[Option]:
        """The options of a spot whose parent is placed (or that has none), in order of their bounds."""
        shape = self._shape
        above = shape.parent[j]
        at = self._at[above] if above >= 0 else -1
        key = (shape.alike[j], at)
        found = self._options.get(key)
        if found is None:
            h, cpus, vc, rank = self._h[j], shape.spots[j].cpus, self._free.vc, self._network.rank
            least = self._least_back[j]
            if above < 0:
                found = [(bound, rank[v], vc[v] * cpus + least[v], v) for v, bound in h.items()]
            else:
                paths = self._paths(j, at)
                found = [
                    (bound + paths[v], rank[v], vc[v] * cpus + least[v] + paths[v], v)
                    for v, bound in h.items()
                    if paths[v] < INF
                ]
            found.sort()
            self._options[key] = found
        return found

    def _paths(self, j: int, at: int) -> Sequence[int]:
        """What the paths of a spot to its parent's vertex cost at least, by vertex."""
        numbers, demands = self._shape.tree[j], self._shape.demands
        found: list[int] = []
        for number in numbers:
            bw = demands[number].bw
            more = [cost * bw for cost in self._row(number, at)]
            found = [a + b for a, b in zip(found, more, strict=True)] if found else more
        if self._shape.distinct:
            found[at] = INF
        return found

    def _row(self, number: int, source: int) -> Sequence[int]:
        demand = self._shape.demands[number]
        return self._oracle.row(source, self._masks[number], demand.hops, demand.latency)

    def _rest(self, k: int) -> int:
        """The least that the spots other than the k-th cost which hang on placed ones, with all that is below them."""
        total, used = 0, self._used if self._shape.distinct else 0
        for group in self._shape.frontier[k]:
            options = self._options_of(group[0])
            wanted = len(group)
            if not self._shape.distinct:
                if not options:
                    return INF
                total += wanted * options[0][0]
                continue
            for bound, _, _, v in options:
                if not used >> v & 1:
                    total += bound
                    wanted -= 1
                    if not wanted:
                        break
            else:
                return INF
        return total

    def _back(self, j: int, v: int) -> int:
        """What the paths from a spot at v to earlier ones outside the tree cost, beyond what bounds count of them."""
        total = -self._least_back[j][v]
        for number in self._shape.back[j]:
            demand = self._shape.demands[number]
            other = self._at[demand.target if demand.source == j else demand.source]
            total += self._row(number, other)[v] * demand.bw
        return total

    # -- the two passes ---------------------------------------------------------------------------------------------

    def _allowed(self, j: int, v: int) -> bool:
        """Whether a spot may be put there: not on another, and behind those that it could trade places with."""
        shape, rank = self._shape, self._network.rank
        if shape.distinct:
            if self._used >> v & 1:
                return False
        elif self._free.cpus[v] < shape.spots[j].cpus + sum(
            shape.spots[k].cpus for k, at in enumerate(self._at) if at == v
        ):
            return False
        for k in shape.peers[j]:
            at = self._at[k]
            if at >= 0 and (rank[at] > rank[v] if k < j else rank[at] < rank[v]):
                return False
        return True

    def _spent(self, bound: int) -> bool:
        """Count a node; when the limit is met, note what was left open, and say so."""
        self._nodes += 1
        if self._nodes >= self._limit or (self._deadline is not None and self._nodes % _LOOK == 0 and self._deadline()):
            self._stopped = True
        if self._stopped:
            self._open = min(self._open, bound)
        return self._stopped

    def _place_cheapest(self, k: int, cost: int) -> None:
        shape = self._shape
        j = shape.order[k]
        options = self._options_of(j)
        base = cost + self._rest(k)
        if not options or base + options[0][0] >= self._best:
            return
        last, links_back = k + 1 == len(shape.order), shape.back[j]
        for bound, _, here, v in options:
            bound += base
            if bound >= self._best:
                return
            if not self._allowed(j, v):
                continue
            back = self._back(j, v) if links_back else 0
            if bound + back >= self._best:
                continue
            if self._spent(bound):
                return
            self._at[j] = v
            self._used |= 1 << v
            if last:
                self._route(cost + here + back)
            else:
                self._place_cheapest(k + 1, cost + here + back)
            self._leave(j, v)
            if self._stopped:
                self._open = min(self._open, bound)
                return

    def _leave(self, j: int, v: int) -> None:
        self._at[j] = -1
        if v not in self._at:
            self._used &= ~(1 << v)

    def _place_first(self, k: int, cost: int) -> bool:
        """Whether a placement of the least cost was found that comes before the one known, in the order of names."""
        shape = self._shape
        if k == len(shape.order):
            return self._route(cost, equal=True)
        j = shape.order[k]
        rest = self._rest(k)
        better = False
        for bound, _, here, v in self._by_name(j):
            bound += cost + rest
            if bound > self._best or not self._allowed(j, v):
                continue
            back = self._back(j, v) if shape.back[j] else 0
            if bound + back > self._best:
                continue
            self._at[j] = v
            self._used |= 1 << v
            if self._could_come_first() and not self._spent(bound):
                better = self._place_first(k + 1, cost + here + back) or better
            self._leave(j, v)
            if self._stopped:
                break
        return better

    def _by_name(self, j: int) -> list[Option]:
        above = self._shape.parent[j]
        key = (self._shape.alike[j], self._at[above] if above >= 0 else -1)
        found = self._named.get(key)
        if found is None:
            found = self._named[key] = sorted(self._options_of(j), key=itemgetter(1))
        return found

    def _could_come_first(self) -> bool:
        """Whether what is placed, and the first names for all else, come before the best placement so far."""
        assert self._found is not None
        rank = self._network.rank
        for j, known in enumerate(self._found[0]):
            at = self._at[j] if self._at[j] >= 0 else self._candidates[j][0]
            if rank[at] != rank[known]:
                return rank[at] < rank[known]
        return False

    def _route(self, cost: int, *, equal: bool = False) -> bool:
        """Route a full placement that costs at least ``cost``; keep it if it is better than the best."""
        if not self._shape.demands:
            self._best, self._found = cost, (tuple(self._at), ())
            return True
        sites = tuple(self._at)
        hosts = cost - self._separate(sites)
        below = self._best - hosts + (1 if equal else 0)
        allowed = max(1, min(ROUTE_NODES_MAX, self._limit - self._nodes))
        routed = self._router.route(sites, below, allowed)
        self._nodes += routed.nodes - 1
        if routed.paths is not None:
            self._best, self._found = hosts + routed.cost, (sites, routed.paths)
            return True
        if routed.cost < below:
            # Too many combinations: left open, though others may still be settled.
            self._open = min(self._open, hosts + routed.cost)
        return False

    def _separate(self, sites: tuple[int, ...]) -> int:
        """What the cheapest path of each demand costs, by itself."""
        return sum(
            self._row(number, sites[demand.source])[sites[demand.target]] * demand.bw
            for number, demand in enumerate(self._shape.demands)
        )
