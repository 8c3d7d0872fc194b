"""Leases that follow a load signal (Shirako section 5.2, figures 7 to 9).

Theory of operation. At fixed intervals the guest compares the units that it wants with those that it has. What is
missing it asks for as one elastic lease of one term, in time aligned to the intervals; what is too much goes when the
term of a lease ends. A guest can't give units up in mid-term here, which is what makes long terms follow a load badly:
the experiment measures just that.

The intervals are whole multiples of their length on the guest's clock, so that they don't depend on when the guest was
started, and every observation of the load is one at such an instant. After a restart the filter is fed the past again:
what is wanted is a function of the signal and the time alone. Leases are told by their slice and type, not remembered.

One request goes to one site. If the roomiest site hasn't as many units as were asked for, the lease comes with fewer;
the rest is then asked for after ``settle``, in the same interval, so that several sites fill one surge without losing
intervals. A request that was refused altogether is not repeated before the next interval.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Final, Literal

import attrs

from leasekit.core.mappers import ExtendLease, GuestCycle, GuestDecision, LeaseView, RequestLease, Wake
from leasekit.core.properties import EMPTY, Properties, valid_properties
from leasekit.core.settings import DurationSetting
from leasekit.core.signals import Signal, SignalSoFar, whole_units
from leasekit.core.time import HOUR, MINUTE, SECOND, Instant, Term, format_duration
from leasekit.policies.guest.filters import FlopFlip, FlopFlipSettings

OBSERVATIONS_MAX: Final = 100_000
"""How many past observations a filter is fed after a restart: almost a year of five-minute intervals."""

_CLOSING: Final = frozenset(("closing", "close_wait"))
_ELASTIC: Final = {"elastic": "true", "min_units": "1"}


@attrs.frozen(kw_only=True)
class LoadFollowingSettings:
    """Settings of :class:`LoadFollowing`."""

    type: str = attrs.field(validator=attrs.validators.min_len(1))
    """The resource type of the units."""
    term: DurationSetting = attrs.field(default=12 * HOUR, validator=attrs.validators.ge(1))
    """How long each lease is."""
    interval: DurationSetting = attrs.field(default=5 * MINUTE, validator=attrs.validators.ge(1))
    """How often demand and holdings are compared."""
    slice: str = attrs.field(default="load", validator=attrs.validators.min_len(1))
    """The slice of the leases. All leases of this slice and type count, whoever asked for them."""
    broker: str = ""
    """The broker to ask (default: the guest's default broker)."""
    renew: Literal["expire", "extend"] = "expire"
    """What becomes of a lease at the end of its term: it ends and what is missing is asked for anew, or it is extended
    with as many units as are wanted then."""
    smooth: bool = True
    """Whether the load goes through a flop-flip filter first."""
    filter: FlopFlipSettings = attrs.Factory(FlopFlipSettings)
    """How it smooths."""
    scale: float = attrs.field(default=1.0, validator=attrs.validators.gt(0))
    """Units for each unit of load."""
    minimum: int = attrs.field(default=0, validator=attrs.validators.ge(0))
    """The fewest units to want."""
    maximum: int | None = attrs.field(default=None, validator=attrs.validators.optional(attrs.validators.ge(0)))
    """The most units to want."""
    settle: DurationSetting = 15 * SECOND
    """When to look whether a request came back with fewer units than asked for; 0: not before the next interval."""
    extend_ahead: DurationSetting = 2 * MINUTE
    """With ``renew = "extend"``: how long before the end of its term a lease must be extended at the latest. More than
    the guest's ``extend_lead`` and ``leave_time``."""
    properties: Mapping[str, str] = attrs.field(default=EMPTY, validator=valid_properties)
    """Further request properties."""
    configuration: Mapping[str, str] = attrs.field(default=EMPTY, validator=valid_properties)
    """Configuration properties of each lease."""

    def __attrs_post_init__(self) -> None:
        if self.maximum is not None and self.maximum < self.minimum:
            raise ValueError(f"maximum is {self.maximum}, below minimum, {self.minimum}")
        interval = format_duration(self.interval)
        if self.term < self.interval:
            raise ValueError(f"term is {format_duration(self.term)}, expected at least interval, {interval}")
        if self.settle >= self.interval:
            raise ValueError(f"settle is {format_duration(self.settle)}, expected less than interval, {interval}")
        if self.renew == "extend" and self.term < self.interval + self.extend_ahead:
            least = format_duration(self.interval + self.extend_ahead)
            raise ValueError(
                f"term is {format_duration(self.term)}: to be extended it must be at least interval and extend_ahead "
                f"together, {least}"
            )


class LoadFollowing:
    """A guest's mapper that holds as many units as a signal says."""

    Settings: ClassVar[type[LoadFollowingSettings]] = LoadFollowingSettings
    needs_signal: ClassVar[bool] = True
    inline: ClassVar[bool] = True

    def __init__(self, settings: LoadFollowingSettings, *, signal: Signal | SignalSoFar) -> None:
        self.settings = settings
        self._load = _Load(settings, signal)
        self._seen = -1
        self._asked: Term | None = None

    def wanted(self, now: Instant) -> int:
        """The units wanted in the interval that ``now`` lies in. ``now`` may not run backwards."""
        return self._load.wanted(now)

    def plan(self, cycle: GuestCycle) -> list[GuestDecision]:
        """Ask for what is missing, and say when to look again."""
        settings, now = self.settings, cycle.now
        index = now // settings.interval
        first_look = index != self._seen
        self._seen = index
        holdings, due = self._holdings(cycle.leases, now)
        missing = self._load.wanted(now) - holdings
        decisions: list[GuestDecision] = []
        if due and first_look:
            missing = self._extend(due, missing, decisions)
        again = (index + 1) * settings.interval
        if missing > 0 and (first_look or self._came_short(cycle.leases)):
            self._asked = Term(now, index * settings.interval + settings.term)
            decisions.append(self._request(missing, self._asked))
            if settings.settle:
                again = min(again, now + settings.settle)
        decisions.append(Wake(again))
        return decisions

    def _holdings(self, leases: Sequence[LeaseView], now: Instant) -> tuple[int, list[LeaseView]]:
        """The units that are held, on their way or promised for now, and the leases to be extended in this interval."""
        settings = self.settings
        type_, slice_ = settings.type, settings.slice
        extend_to = now + settings.interval + settings.extend_ahead if settings.renew == "extend" else now
        total = 0
        due: list[LeaseView] = []
        for lease in leases:
            if lease.type != type_ or lease.slice != slice_ or lease.closing:
                continue
            state, pending, units = lease.state, lease.pending, lease.units
            start, end = lease.term
            if state == "active" and pending == "-":
                if now < end < extend_to:
                    due.append(lease)
            elif pending in _CLOSING:
                continue
            elif lease.next_term is not None:
                end, units = lease.next_term.end, lease.next_units
            elif state == "nascent" or pending == "extending_ticket":
                units = lease.requested
            if start <= now < end:
                total += units
        return total, due

    def _extend(self, due: Sequence[LeaseView], missing: int, decisions: list[GuestDecision]) -> int:
        """Extend what is still wanted, the first one grown by what is missing; returns what is missing after that.

        Growth takes effect at the end of the old term, less than an interval and ``extend_ahead`` from now. A lease of
        which nothing is wanted ends by itself.
        """
        settings = self.settings
        for lease in due:
            change = max(missing, -lease.units)
            missing -= change
            if lease.units + change > 0:
                end = lease.term.end + settings.term
                decisions.append(ExtendLease(lease.id, end, lease.units + change, properties=self._wish))
        return missing

    def _came_short(self, leases: Sequence[LeaseView]) -> bool:
        """Whether the last request came back with fewer units than it asked for.

        A broker that got it a little later starts its term a little later: what it is known by is the end.
        """
        settings, asked = self.settings, self._asked
        for lease in reversed(leases) if asked is not None else ():
            mine = lease.type == settings.type and lease.slice == settings.slice
            if mine and asked is not None and asked.contains(lease.term) and lease.term.end == asked.end:
                return lease.state != "nascent" and lease.units < lease.requested
        return False

    def _request(self, units: int, term: Term) -> RequestLease:
        settings = self.settings
        return RequestLease(
            settings.type,
            units,
            term,
            settings.slice,
            broker=settings.broker,
            properties=self._wish,
            configuration=settings.configuration,
        )

    @property
    def _wish(self) -> Properties:
        return {**self.settings.properties, **_ELASTIC}


class _Load:
    """The units wanted at each interval."""

    def __init__(self, settings: LoadFollowingSettings, signal: Signal | SignalSoFar) -> None:
        self._settings = settings
        self._signal = signal
        self._filter = FlopFlip(settings.filter) if settings.smooth else None
        self._next: int | None = None
        self._index = -1
        self._wanted = 0

    def wanted(self, now: Instant) -> int:
        """What is wanted in the interval of ``now``; a filter observes each interval once, also those slept over."""
        index = now // self._settings.interval
        if index != self._index:
            self._index = index
            self._wanted = self._whole(self._smoothed(index))
        return self._wanted

    def _smoothed(self, index: int) -> float:
        settings = self._settings
        if self._filter is None:
            return self._signal.value(index * settings.interval) * settings.scale
        if self._next is None and (first := self._signal.first) is not None:
            self._next = -(-first // settings.interval)
        begin = max(self._next or 0, index + 1 - OBSERVATIONS_MAX)
        if self._next is not None and begin == index:  # as it is, unless intervals were slept over
            self._next = index + 1
            self._filter.observe(self._signal.value(index * settings.interval) * settings.scale)
        elif self._next is not None and begin < index:
            self._next = index + 1
            span = begin * settings.interval, index * settings.interval + 1
            for _, value in self._signal.sampled(*span, settings.interval):
                self._filter.observe(value * settings.scale)
        return self._filter.estimate or 0.0

    def _whole(self, value: float) -> int:
        settings = self._settings
        units = max(settings.minimum, int(whole_units(value)))
        return units if settings.maximum is None else min(units, settings.maximum)
