"""What all standard mappers of a broker have in common: their settings, and how a turn goes; and the rule of those that
book ahead: every request is decided at once, a deferrable one by a grant for later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar, Protocol, TypeAlias

import attrs

from leasekit.core.mappers import BrokerCycle, BrokerDecision, PendingRequest, Wake
from leasekit.core.settings import DurationSetting
from leasekit.core.time import Instant
from leasekit.policies.broker.capacity import BALANCES, Balance, Choice, SiteFilterSettings, SiteWeigherSettings
from leasekit.policies.broker.quotas import Quotas, QuotaSettings
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
    return [turn.goes_on(requests[0])]


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


def _one_of_each(_: object, field: attrs.Attribute[tuple[QuotaSettings, ...]], found: Sequence[QuotaSettings]) -> None:
    seen: set[tuple[str, str]] = set()
    for quota in found:
        if (quota.holder, quota.type) in seen:
            raise ValueError(f"two quotas of holder {quota.holder!r} and type {quota.type!r}, expected one")
        seen.add((quota.holder, quota.type))


@attrs.frozen(kw_only=True)
class StandardSettings:
    """Settings of every standard mapper of a broker."""

    balance: Balance = attrs.field(default="load_balanced", validator=attrs.validators.in_(BALANCES))
    """The site for a request that may go to several: the one with the largest share free over its term, the first that
    has enough, the one with fewest units free that has enough, the one with most, or one drawn by ``seed``. An elastic
    request that none can fill goes to the one with most."""
    seed: int = 0
    """For ``balance = "random"``: the same seed, the same sites."""
    weighers: tuple[SiteWeigherSettings, ...] = ()
    """What chooses the site instead of `balance`: of those that have enough, the one whose weights have the largest
    sum."""
    filters: tuple[SiteFilterSettings, ...] = ()
    """Which sites will do, for whom: all of those that concern a request must take the site. An extend or a modify goes
    on where its lease is."""
    gather: DurationSetting = 0
    """Decide in rounds of this length, at whole multiples of it on the broker's clock, so that order counts among
    all requests of a round; it delays each of them by up to that. Less than the broker's ``request_timeout``. 0: at
    once."""
    quotas: tuple[QuotaSettings, ...] = attrs.field(default=(), validator=_one_of_each)
    """What holders may have."""


class Rule(Protocol):
    """The order in which requests are decided, and whether deferrable ones are booked ahead or wait."""

    bulk: bool
    """Whether each request of a cycle is looked at by itself."""

    def decide(self, turn: BrokerTurn, cycle: BrokerCycle) -> list[BrokerDecision]:
        """The decisions of a turn."""


class StandardMapper:
    """A rule, with the settings that all have."""

    inline: ClassVar[bool] = True

    def __init__(self, settings: StandardSettings, rule: Rule) -> None:
        self._gather = settings.gather
        self._choice = Choice(settings.balance, settings.seed, settings.weighers, settings.filters)
        self._quotas = Quotas(settings.quotas)
        self.wants_usage = self._quotas.wants_usage
        self.usage_kept = self._quotas.history
        self._rule = rule

    def allocate(self, cycle: BrokerCycle) -> list[BrokerDecision]:
        """Decide what the cycle shows."""
        decisions: list[BrokerDecision] = []
        if self._gather:
            cycle = self._gathered(cycle, decisions)
        turn = BrokerTurn(cycle, self._choice, self._quotas, None if self._rule.bulk else ())
        return decisions + self._rule.decide(turn, cycle)

    def _gathered(self, cycle: BrokerCycle, decisions: list[BrokerDecision]) -> BrokerCycle:
        """The part of the cycle that came before the current round; the rest waits for the next one."""
        begun = cycle.now // self._gather * self._gather
        requests: Sequence[PendingRequest] = cycle.requests
        if requests and requests[-1].arrived >= begun:  # they are in order of arrival
            requests = [request for request in requests if request.arrived < begun]
        groups = [group for group in cycle.groups if max(member.arrived for member in group) < begun]
        if len(requests) + len(groups) < len(cycle.requests) + len(cycle.groups):
            decisions.append(Wake(begun + self._gather))
        return cycle._replace(requests=requests, groups=groups)
