"""The rule of mappers that book ahead: every request is decided at once, a deferrable one by a grant for later."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

from leasekit.core.mappers import BrokerCycle, BrokerDecision, PendingRequest
from leasekit.core.time import Instant
from leasekit.policies.broker.turn import BrokerTurn

RANKS = {"extend": 0, "modify": 1}
NEW = 2

Rank: TypeAlias = Callable[[PendingRequest], int]
"""Of two new requests of one class, the one of lower rank is decided first."""

Item: TypeAlias = tuple[int, int, int, Instant, int, tuple[PendingRequest, ...]]
"""Operation, class (negated), rank, arrival, position, and the requests to be decided together."""


def plain(request: PendingRequest) -> int:
    """All alike: the order is that of arrival."""
    return 0


def fixed_first(request: PendingRequest) -> int:
    """What can't be moved goes before what can."""
    return int(request.latest_start > request.term.start)


def items(cycle: BrokerCycle, rank: Rank) -> Iterator[Item]:
    """What is to be decided in a turn; sorted, it is in the order in which it is decided."""
    for index, request in enumerate(cycle.requests):
        op = RANKS.get(request.op, NEW)
        yield op, -request.priority, rank(request) if op == NEW else 0, request.arrived, index, (request,)
    for index, group in enumerate(cycle.groups, len(cycle.requests)):
        priority, arrived = max(member.priority for member in group), max(member.arrived for member in group)
        yield NEW, -priority, max(map(rank, group)), arrived, index, group


def decide(turn: BrokerTurn, op: int, requests: tuple[PendingRequest, ...]) -> list[BrokerDecision]:
    """The decision on one item."""
    if op == NEW:
        return turn.group(requests) if requests[0].group else [turn.new(requests[0])]
    return [turn.extend(requests[0]) if op == 0 else turn.modify(requests[0])]


class Booking:
    """Requests in order, each for itself."""

    bulk = True

    def __init__(self, rank: Rank = plain) -> None:
        self._rank = rank

    def decide(self, turn: BrokerTurn, cycle: BrokerCycle) -> list[BrokerDecision]:
        """Every request of the cycle, in order."""
        decisions: list[BrokerDecision] = []
        for op, _, _, _, _, requests in sorted(items(cycle, self._rank)):
            decisions += decide(turn, op, requests)
        return decisions
