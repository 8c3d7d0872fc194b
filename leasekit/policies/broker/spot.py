"""A spot market: preemptible leases bid, and the highest bids have the units; each type has one price at a time.

Requests are decided as by ``fcfs``: first those that are not preemptible, then those that are, the highest bid first.
What fits nowhere gets the place of preemptible leases, as with ``preemption``: those that bid least leave first, and
for a preemptible request those alone that bid less than it.

The price of a type is the highest bid that has no units after a turn, no more than the lowest that has some: nobody who
has units pays more than the bid says. Where all have units it is the least price, ``reserve``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import attrs

from leasekit.core.mappers import BrokerCycle, BrokerDecision, GrantedLease, PendingRequest, Price, Reject
from leasekit.core.reasons import Coded
from leasekit.core.settings import DurationSetting
from leasekit.core.time import HOUR, INSTANT_MAX, MINUTE, Instant
from leasekit.policies.broker.preemption import LookedAtFor, VictimTurn, granted_to
from leasekit.policies.broker.turn import NEW, BrokerTurn, StandardMapper, StandardSettings, decide, items
from leasekit.policies.preempting.hosts import HostedLease


@attrs.frozen(kw_only=True)
class SpotSettings(StandardSettings):
    """Settings of :class:`SpotMapper`."""

    reserve: int = attrs.field(default=0, validator=attrs.validators.ge(0))
    """The least price: what a unit costs in a billing period where nobody bids more. Lower bids are refused."""
    period: DurationSetting = attrs.field(default=HOUR, validator=attrs.validators.ge(MINUTE))
    """The billing period: each that has begun is billed at the price that there is then, but for the last one of a
    lease that its broker has ended."""
    budget: int | None = attrs.field(default=None, validator=attrs.validators.optional(attrs.validators.ge(0)))
    """How many leases of one holder and type may be on their way out at once, from their notice to their end."""


class SpotMapper(StandardMapper):
    """``preemption``, with bids and prices."""

    Settings: ClassVar[type[SpotSettings]] = SpotSettings

    def __init__(self, settings: SpotSettings | None = None) -> None:
        self.settings = settings or SpotSettings()
        super().__init__(self.settings, Bidding(self.settings))
        self.by_itself = self.by_bid = True


class BidCost:
    """What victims bid for their units: the lowest bids leave first."""

    def cost(self, lease: HostedLease, now: Instant) -> int:
        """Its price, which has bid and units."""
        return lease.price


class Bidding:
    """Requests by their bids, and the prices that come of that."""

    bulk = True

    def __init__(self, settings: SpotSettings) -> None:
        self._settings = settings
        self._looked_at_for: LookedAtFor = {}

    def decide(self, turn: BrokerTurn, cycle: BrokerCycle) -> list[BrokerDecision]:
        """Every request of the cycle, and a price for each of their types."""
        victims = VictimTurn(turn, cycle, BidCost(), self._settings.budget, self._looked_at_for)
        decisions: list[BrokerDecision] = []
        losers: dict[str, list[int]] = {}
        winners: dict[str, list[int]] = {}
        for op, _, _, _, _, requests in sorted(items(cycle, _by_bid)):
            first = requests[0]
            if op == NEW and first.preemptible and first.bid < self._settings.reserve:
                decisions.append(Reject(first.lease, self._too_low(first)))
                continue
            found = decide(turn, op, requests)
            if op == NEW and not first.group and granted_to(found[0]) is None:
                found = [victims.make_room(first, found[0])]
            decisions += found
            if first.preemptible:
                won = op != NEW or granted_to(found[0]) is not None
                (winners if won else losers).setdefault(first.type, []).append(first.bid)
        types = dict.fromkeys(request.type for request in [*cycle.requests, *(one[0] for one in cycle.groups)])
        for type_ in types:
            left = victims.outbid(type_)
            running = [one for one in cycle.granted(type_) if one.preemptible and not one.ending and one not in left]
            beaten = [cycle.bids.get(type_, 0), *losers.get(type_, [])]
            decisions.append(self._price(type_, running, left, winners.get(type_, []), beaten))
        self._looked_at_for = victims.go_on()
        return decisions + victims.wakes

    def _price(
        self,
        type_: str,
        running: Sequence[GrantedLease],
        left: Sequence[GrantedLease],
        winners: Sequence[int],
        losers: Sequence[int],
    ) -> Price:
        lowest = min([*(one.bid for one in running), *winners], default=INSTANT_MAX)
        highest = max([*(one.bid for one in left), *losers], default=0)
        return Price(type_, max(self._settings.reserve, min(lowest, highest)), self._settings.period)

    def _too_low(self, request: PendingRequest) -> str:
        words = f"bid: found {request.bid}, the least price of a unit of {request.type!r} is {self._settings.reserve}"
        return Coded(words, "bid_too_low")


def _by_bid(request: PendingRequest) -> int:
    """What is not preemptible goes first."""
    return -request.bid if request.preemptible else -INSTANT_MAX - 1
