"""Fair shares: of those who wait, whoever has had least for their weight goes first.

What a holder has had of a type is counted in unit-time, and counts half after each ``half_life``; what is granted for
times to come counts in full. So who stays away gains on the others, but not for ever. A class goes before all of that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import exp2, log
from typing import ClassVar

import attrs

from leasekit.core.mappers import PendingRequest
from leasekit.core.settings import DurationSetting
from leasekit.core.time import INSTANT_MAX, WEEK, Duration, Instant, Term
from leasekit.policies.broker.backfill import WaitingMapper, WaitingSettings
from leasekit.policies.broker.ledger import Usage
from leasekit.policies.broker.line import Key, Lane
from leasekit.policies.broker.turn import Turn

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
    """A line in order of what holders have had. Where the cycle shows no usage it counts what it granted itself."""

    Settings: ClassVar[type[FairShareSettings]] = FairShareSettings

    def __init__(self, settings: FairShareSettings | None = None) -> None:
        self.settings = settings or FairShareSettings()
        super().__init__(self.settings, _ByShare(self.settings))
        self.wants_usage = True


class _ByShare:
    """A lane for each class and holder."""

    def __init__(self, settings: FairShareSettings) -> None:
        self._weights = settings.weights
        self._half_life = settings.half_life
        self._accounts: dict[tuple[str, str], tuple[float, Instant]] = {}

    def lane(self, request: PendingRequest) -> Lane:
        """Of a class and a holder."""
        return -request.priority, request.holder, request.type

    def key(self, request: PendingRequest) -> Key:
        """First come, first served."""
        return (request.arrived,)

    def rank(self, turn: Turn) -> Callable[[Lane], Key]:
        """Class, then what the holder has had for its weight, then its name."""
        known: dict[Lane, Key] = {}

        def ranked(lane: Lane) -> Key:
            found = known.get(lane)
            if found is None:
                less, holder, type_ = lane
                had = self._had(holder, type_, turn)
                found = known[lane] = (less, had / self._weights.get(holder, 1.0), holder)
            return found

        return ranked

    def granted(self, request: PendingRequest, units: int, term: Term, now: Instant) -> bool:
        """It is charged to the holder at once and in full."""
        had, at = self._accounts.get((request.holder, request.type), (0.0, now))
        had = had * exp2((at - now) / self._half_life) + units * term.length
        self._accounts[request.holder, request.type] = (had, now)
        return True

    def _had(self, holder: str, type_: str, turn: Turn) -> float:
        if turn.usage is not None:
            return decayed(turn.usage, holder, type_, turn.now, self._half_life)
        had, at = self._accounts.get((holder, type_), (0.0, turn.now))
        return had * exp2((at - turn.now) / self._half_life)


def decayed(usage: Usage, holder: str, type_: str, now: Instant, half_life: Duration) -> float:
    """Unit-milliseconds that a holder has had, those of the past decayed to ``now``, those to come in full."""
    total, scale = 0.0, half_life / log(2)
    window = Term(max(0, now - REMEMBERED * half_life), INSTANT_MAX)
    for (start, end), units in usage.held(holder, type_, window):
        if start < now:
            past = min(end, now)
            total += units * scale * (exp2((past - now) / half_life) - exp2((start - now) / half_life))
        if end > now:
            total += units * (end - max(start, now))
    return total
