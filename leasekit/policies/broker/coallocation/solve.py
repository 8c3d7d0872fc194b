"""One frame's optimum, by the exact search, by HiGHS, or by the first with the other behind it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple, final

from leasekit.policies.broker.coallocation import milp
from leasekit.policies.broker.coallocation.bounds import Bounds
from leasekit.policies.broker.coallocation.instance import INF, Availability, InstanceOutcome, InstanceShape, Network
from leasekit.policies.broker.coallocation.model import Solver
from leasekit.policies.broker.coallocation.routing import Oracle
from leasekit.policies.broker.coallocation.search import NODES_MAX, SHARED_NODES_MAX, Search
from leasekit.policies.solver import MILP_NODES_MAX

SEARCH_ONLY_FACTOR = 50
"""How many times more nodes the search gets where nothing stands behind it."""


def milp_worth(network: Network, shape: InstanceShape) -> int:
    """How many nodes of the search a run of HiGHS is counted as. Its own nodes don't bound its time, which grows faster
    than its columns: a few hundred take about a second, a thousand may take a minute.
    """
    columns = len(shape.spots) * len(network.names) + 2 * len(shape.demands) * len(network.ends)
    return columns * columns // 5


def bounds_worth(network: Network, shape: InstanceShape) -> int:
    """How many nodes of the search a frame's own bounds are counted as: a sweep over the links for each spot, and for
    each requested link.
    """
    return (len(shape.spots) + len(shape.demands)) * len(network.ends) // 24


@final
class Budget:
    """Nodes that are left for all that is done for one request together."""

    __slots__ = ("left",)

    def __init__(self, nodes: int) -> None:
        self.left = nodes


class SolveLimits(NamedTuple):
    """Where a solver gives up: nodes of the search and of HiGHS, and a clock of the caller's, if it has one:
    ``remaining()`` is how many seconds are left. Without a clock the same problem always has the same answer.
    ``budget`` is what all that share these limits may use up.
    """

    nodes: int = NODES_MAX
    milp_nodes: int = MILP_NODES_MAX
    remaining: Callable[[], float] | None = None
    budget: Budget | None = None

    @property
    def met(self) -> bool:
        """Whether nothing is left to look with."""
        if self.budget is not None and self.budget.left <= 0:
            return True
        return self.remaining is not None and self.remaining() <= 0

    def take(self, nodes: int) -> bool:
        """Use up nodes of the budget; False, with nothing used, if it has not so many."""
        if self.budget is not None and self.budget.left < nodes:
            return False
        self.charge(nodes)
        return True

    def charge(self, nodes: int) -> None:
        """Use up nodes of the budget for what has been done."""
        if self.budget is not None:
            self.budget.left -= nodes

    def affords(self, parts: int, nodes: int) -> int:
        """How many of so many parts, of so many nodes each, half of the budget is enough for: one at least."""
        return parts if self.budget is None else max(1, min(parts, self.budget.left // 2 // nodes))

    def share(self, parts: int) -> SolveLimits:
        """Limits for the first of so many parts of the work that is left: an equal share of the time."""
        if self.remaining is None:
            return self
        clock, at = self.remaining, self.remaining()
        return self._replace(remaining=lambda: clock() - at * (1 - 1 / parts))

    @property
    def deadline(self) -> Callable[[], bool] | None:
        """Whether the time is up; None without a clock."""
        clock = self.remaining
        return None if clock is None else lambda: clock() <= 0


UNLIMITED_TIME: Final = SolveLimits()
"""Only nodes are limited."""


def solve(
    network: Network,
    shape: InstanceShape,
    free: Availability,
    oracle: Oracle,
    *,
    solver: Solver = "auto",
    limits: SolveLimits = UNLIMITED_TIME,
    below: int = INF,
    bounds: Bounds | None = None,
) -> InstanceOutcome:
    """The cheapest plan of cost less than ``below``; equal ones by site names. ``infeasible``: there is none.

    With ``bound`` as its status a limit was met: the plan, if any, is the best that was found, and none costs less
    than ``bound``. Raises ``LeasekitError`` if HiGHS is needed and not installed.
    """
    if solver == "highs":
        limits.charge(milp_worth(network, shape))
        return milp.solve(network, shape, free, below=below, nodes=limits.milp_nodes, remaining=limits.remaining)
    nodes = limits.nodes * (SEARCH_ONLY_FACTOR if solver == "search" else 1)
    if limits.budget is not None:
        nodes = max(1, min(nodes, limits.budget.left))
    searched = Search(network, shape, free, oracle, nodes=nodes, deadline=limits.deadline, bounds=bounds).run(below)
    limits.charge(searched.nodes)
    if bounds is None or searched.nodes > SHARED_NODES_MAX:
        limits.charge(bounds_worth(network, shape))
    if searched.status != "bound" or solver == "search" or not limits.take(milp_worth(network, shape)):
        return searched
    ceiling = below if searched.cost is None else searched.cost + 1
    proved = milp.solve(network, shape, free, below=ceiling, nodes=limits.milp_nodes, remaining=limits.remaining)
    if proved.status == "optimal":
        return proved
    if proved.status == "infeasible":
        if searched.cost is None:
            return proved
        return searched._replace(status="optimal", bound=searched.cost)
    bound = max(searched.bound, proved.bound)
    best = searched if proved.cost is None or (searched.cost is not None and searched.cost <= proved.cost) else proved
    if best.cost is not None and bound >= best.cost:
        return best._replace(status="optimal", bound=best.cost)
    return best._replace(status="bound", bound=bound)
