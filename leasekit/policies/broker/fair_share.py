"""Fair shares: of those who wait, whoever has had least for their weight goes first.

What a holder has had of a type is counted in unit-time, and counts half after each ``half_life``; what is granted for
times to come counts in full. So who stays away gains on the others, but not for ever. A class goes before all of that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import exp2, log
from typing import ClassVar, NamedTuple

import attrs

from leasekit.core.mappers import PendingRequest, Usage
from leasekit.core.settings import DurationSetting
from leasekit.core.time import INSTANT_MAX, WEEK, Duration, Instant, Term
from leasekit.policies.broker.line import Key, Lane
from leasekit.policies.broker.turn import BrokerTurn
from leasekit.policies.broker.waiting import WaitingMapper, WaitingSettings

REMEMBERED = 10
"""Half-lives after which use counts for nothing."""


def _positive(_: object, field: attrs.Attribute[Mapping[str, float]], found: Mapping[str, float]) -> None:
    for holder, weight in found.items():
        if weight <= 0:
            raise ValueError(f"the weight of {holder!r} is {weight}, expected more than 0")


@attrs.frozen(kw_only=True)
class FairShareSettings(WaitingSettings):
    """Settings of :class:`FairShare`."""

    weights: Mapping[str, float] = attrs.field(factory=dict, validator=_positive)
    """The weight of each holder; 1 for those who aren't named. Who has 2 gets twice as much as who has 1."""
    half_life: DurationSetting = attrs.field(default=WEEK, validator=attrs.validators.ge(1))
    """After how long what was used counts half."""


class FairShare(WaitingMapper):
    """A line in order of what holders have had."""

    Settings: ClassVar[type[FairShareSettings]] = FairShareSettings

    def __init__(self, settings: FairShareSettings | None = None) -> None:
        self.settings = settings or FairShareSettings()
        super().__init__(self.settings, _ByShare(self.settings))
        self.wants_usage = True
        self.usage_kept = max(self.usage_kept, REMEMBERED * self.settings.half_life)


class _ByShare:
    """A lane for each class and holder."""

    def __init__(self, settings: FairShareSettings) -> None:
        self._weights = settings.weights
        self._half_life = settings.half_life
        self._past: dict[tuple[str, str], _Past] = {}

    def lane(self, request: PendingRequest) -> Lane:
        """Of a class and a holder."""
        return -request.priority, request.holder, request.type

    def key(self, request: PendingRequest) -> Key:
        """First come, first served."""
        return (request.arrived,)

    def rank(self, turn: BrokerTurn) -> Callable[[Lane], Key]:
        """Class, then what the holder has had for its weight, then its name."""
        before: dict[tuple[str, str], list[float]] = {}

        def had(holder: str, type_: str) -> float:
            # The sum so far, and of how many of this turn's grants.
            known = before.get((holder, type_))
            if known is None:
                known = before[holder, type_] = [self._had(turn.usage.before, holder, type_, turn.now), 0]
            changed = turn.usage.changed(holder, type_)
            for term, units in changed[int(known[1]) :] if len(changed) > known[1] else ():
                known[0] += sum(_weighed(term, units, turn.now, self._half_life))
                known[1] += 1
            return known[0]

        def ranked(lane: Lane) -> Key:
            less, holder, type_ = lane
            return less, had(holder, type_) / self._weights.get(holder, 1.0), holder

        return ranked

    def _had(self, usage: Usage, holder: str, type_: str, now: Instant) -> float:
        """Unit-milliseconds that a holder has had, those of the past decayed to ``now``, those to come in full. What is
        past hardly ever changes: it is summed up once, and anew only now and then.
        """
        known = self._past.get((holder, type_))
        if known is None or not 0 <= now - known.read <= self._half_life // 8:
            known = _Past(0.0, max(0, now - REMEMBERED * self._half_life), now)
        past, to_come = known.value * exp2((known.at - now) / self._half_life), 0.0
        for term, units in usage.held(holder, type_, Term(known.at, INSTANT_MAX)):
            behind, ahead = _weighed(term, units, now, self._half_life)
            past += behind
            to_come += ahead
        self._past[holder, type_] = _Past(past, now, known.read)
        return past + to_come


class _Past(NamedTuple):
    """What a holder had had at an instant, and when all of it was last summed up."""

    value: float
    at: Instant
    read: Instant


def _weighed(term: Term, units: int, now: Instant, half_life: Duration) -> tuple[float, float]:
    """Unit-milliseconds over a term: those of the past decayed to ``now``, and those to come in full."""
    start, end = term
    past = to_come = 0.0
    if start < now:
        scale = half_life / log(2)
        past = units * scale * (exp2((min(end, now) - now) / half_life) - exp2((start - now) / half_life))
    if end > now:
        to_come = float(units * (end - max(start, now)))
    return past, to_come
