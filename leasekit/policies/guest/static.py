"""Leases that are simply to be there: each demand of a list is asked for, renewed, and asked for again if it is lost.

Theory of operation. A demand's lease is told by its slice and name, so that nothing need be remembered over a restart.
Where a lease of a demand is still open under that name (a new one follows it, or it is being torn down), the next one
is called ``NAME.2``, ``NAME.3`` and so on. From what is open follows what is covered and up to when; from that, what is
due: a request where nothing is covered, a renewal ``extend_ahead`` before the end of what is. Each attempt is looked at
again after a wait that doubles from ``retry_first`` to ``retry_max`` and starts afresh once the demand is covered
further. Between attempts nothing happens before something is due, except that a lease that was lost is noticed
within ``check``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Final, Literal

import attrs

from leasekit.core.mappers import ExtendLease, GuestCycle, GuestDecision, LeaseView, RequestLease, Wake
from leasekit.core.properties import EMPTY, valid_properties
from leasekit.core.settings import DurationSetting
from leasekit.core.time import MINUTE, SECOND, Duration, Instant, Term, format_duration

AHEAD_LEAST: Final = 2 * MINUTE
AHEAD_MOST: Final = 5 * MINUTE

_CLOSING: Final = frozenset(("closing", "close_wait"))


def _name(_: object, field: attrs.Attribute[str], found: str) -> None:
    base, dot, number = found.rpartition(".")
    if "/" in found or (dot and base and number.isdigit()):
        raise ValueError(f"expected a {field.name} without a slash that doesn't end in a dot and a number")


@attrs.frozen(kw_only=True)
class DemandSettings:
    """One lease that is to be there, or ``count`` of the same kind."""

    type: str = attrs.field(validator=attrs.validators.min_len(1))
    """The resource type of its units."""
    units: int = attrs.field(default=1, validator=attrs.validators.ge(1))
    """How many units."""
    term: DurationSetting = attrs.field(validator=attrs.validators.ge(1))
    """How long each term is."""
    slice: str = attrs.field(default="static", validator=(attrs.validators.min_len(1), _name))
    """The slice of its leases."""
    name: str = attrs.field(default="", validator=_name)
    """What its leases are called (default: the type); where ``count`` is above 1, with ``-1``, ``-2`` and so on."""
    count: int = attrs.field(default=1, validator=attrs.validators.in_(range(1, 10_001)))
    """How many such leases."""
    site: str = ""
    """The site that they must be at (default: any)."""
    broker: str = ""
    """The broker to ask (default: the guest's default broker)."""
    start: DurationSetting = 0
    """When the first is asked for, from the mapper's first turn on."""
    renew: bool | Literal["anew"] = True
    """``true``: extended before it ends; ``"anew"``: followed by another lease for the next term, with no extend;
    ``false``: held for one term."""
    extend_ahead: DurationSetting | None = attrs.field(
        default=None, validator=attrs.validators.optional(attrs.validators.ge(1))
    )
    """How long before the end of its term it is renewed; more than the guest's ``extend_lead`` and ``leave_time``.
    Default: a tenth of the term, but between 2 and 5 minutes, and never more than half the term."""
    properties: Mapping[str, str] = attrs.field(default=EMPTY, validator=valid_properties)
    """Request properties."""
    configuration: Mapping[str, str] = attrs.field(default=EMPTY, validator=valid_properties)
    """Configuration properties."""

    def __attrs_post_init__(self) -> None:
        if not self.name:
            _name(None, attrs.fields(DemandSettings).type, self.type)
        if self.extend_ahead is not None and self.extend_ahead >= self.term:
            term = format_duration(self.term)
            raise ValueError(f"extend_ahead is {format_duration(self.extend_ahead)}, expected less than term, {term}")

    @property
    def ahead(self) -> Duration:
        """How long before the end of its term it is renewed."""
        if self.extend_ahead is not None:
            return self.extend_ahead
        return min(max(min(self.term // 10, AHEAD_MOST), AHEAD_LEAST), self.term // 2)

    def names(self) -> list[str]:
        """What each of its leases is called."""
        base = self.name or self.type
        return [base] if self.count == 1 else [f"{base}-{index}" for index in range(1, self.count + 1)]


@attrs.frozen(kw_only=True)
class StaticSettings:
    """Settings of :class:`StaticDemand`."""

    demands: tuple[DemandSettings, ...] = attrs.field(validator=attrs.validators.min_len(1))
    """What is to be there."""
    retry_first: DurationSetting = attrs.field(default=10 * SECOND, validator=attrs.validators.ge(1))
    """When an attempt is first looked at again."""
    retry_max: DurationSetting = attrs.field(default=10 * MINUTE, validator=attrs.validators.ge(1))
    """The longest wait between two attempts."""
    check: DurationSetting = attrs.field(default=5 * MINUTE, validator=attrs.validators.ge(1))
    """How often it is looked whether all leases are still there."""

    def __attrs_post_init__(self) -> None:
        if self.retry_max < self.retry_first:
            least = format_duration(self.retry_first)
            raise ValueError(f"retry_max is {format_duration(self.retry_max)}, expected at least retry_first, {least}")
        seen: set[tuple[str, str]] = set()
        for demand in self.demands:
            for name in demand.names():
                if (demand.slice, name) in seen:
                    raise ValueError(f"slice {demand.slice!r} has two demands named {name!r}, expected different names")
                seen.add((demand.slice, name))


class StaticDemand:
    """A guest's mapper that keeps a list of demands satisfied.

    A demand that isn't renewed is asked for once for each start of the guest, unless its lease is still open then.
    """

    Settings: ClassVar[type[StaticSettings]] = StaticSettings
    inline: ClassVar[bool] = True

    def __init__(self, settings: StaticSettings) -> None:
        self.settings = settings
        self._keepers: list[_Keeper] | None = None

    def plan(self, cycle: GuestCycle) -> list[GuestDecision]:
        """What is due for each demand, and when something will be due again."""
        now = cycle.now
        if self._keepers is None:
            self._keepers = [
                _Keeper(demand, name, now + demand.start, self.settings)
                for demand in self.settings.demands
                for name in demand.names()
            ]
        by_name = _by_name(cycle.leases)
        decisions: list[GuestDecision] = []
        wake: Instant | None = None
        for keeper in self._keepers:
            at = keeper.plan(by_name.get((keeper.demand.slice, keeper.name), ()), now, decisions)
            if at is not None:
                wake = at if wake is None else min(wake, at)
        if wake is not None:
            decisions.append(Wake(max(wake, now + 1)))
        return decisions


def _by_name(leases: Sequence[LeaseView]) -> dict[tuple[str, str], list[LeaseView]]:
    """Leases by slice and the name of their demand: ``web.2`` is one of ``web``."""
    found: dict[tuple[str, str], list[LeaseView]] = {}
    for lease in leases:
        base, dot, number = lease.name.rpartition(".")
        name = base if dot and base and number.isdigit() else lease.name
        found.setdefault((lease.slice, name), []).append(lease)
    return found


class _Keeper:
    """One demand under one name."""

    __slots__ = ("_covered", "_ends", "_settings", "_tries", "_try_at", "demand", "name")

    def __init__(self, demand: DemandSettings, name: str, start: Instant, settings: StaticSettings) -> None:
        self.demand = demand
        self.name = name
        self._settings = settings
        self._try_at = start
        self._tries = 0
        # Up to when leases that were granted cover it, as far as was seen; for a demand that isn't renewed this is
        # the end of its only term.
        self._covered: Instant = -1
        # Where the term ends that was asked for last.
        self._ends: Instant | None = None

    def plan(self, leases: Sequence[LeaseView], now: Instant, decisions: list[GuestDecision]) -> Instant | None:
        """Add what is due now; returns when to look again, or None if the demand is done with."""
        settings = self._settings
        last = _last_open(leases, now)
        if last is None:
            if self._is_done(now):
                return None
            if self._try_at > now:
                return self._try_at
            self._ask(self._fresh_term(now), leases, now, decisions)
            return self._try_at
        covered = _covered_until(last)
        if last.state != "nascent" and covered > self._covered:
            self._covered, self._tries, self._try_at = covered, 0, now
        check = now + settings.check
        if self.demand.renew is False:
            return min(covered, check)
        at = max(covered - self.demand.ahead, self._try_at)
        if at > now:
            return min(at, check)
        self._renew(last, covered, leases, now, decisions)
        return min(self._try_at, check)

    def _is_done(self, now: Instant) -> bool:
        """Whether the only term of a demand that isn't renewed is over; if it was never seen, it was slept over."""
        ends = self._covered if self._covered >= 0 else self._ends
        return self.demand.renew is False and ends is not None and ends <= now

    def _fresh_term(self, now: Instant) -> Term:
        """A whole term from now on; what is left of it for a demand that isn't renewed and has lost its lease."""
        if self.demand.renew is False and self._covered > now:
            return Term(now, self._covered)
        return Term(now, now + self.demand.term)

    def _renew(
        self,
        last: LeaseView,
        covered: Instant,
        leases: Sequence[LeaseView],
        now: Instant,
        decisions: list[GuestDecision],
    ) -> None:
        demand = self.demand
        if demand.renew == "anew" and last.state != "nascent":
            self._ask(Term(covered, covered + demand.term), leases, now, decisions)
        elif demand.renew is True and last.state == "active" and last.pending == "-":
            decisions.append(ExtendLease(last.id, covered + demand.term, demand.units, properties=demand.properties))
            self._wait(now)
        else:
            self._try_at = now + self._settings.retry_first

    def _ask(self, term: Term, leases: Sequence[LeaseView], now: Instant, decisions: list[GuestDecision]) -> None:
        decisions.append(self._request(term, {lease.name for lease in leases}))
        self._ends = term.end
        self._wait(now)
        if self.demand.renew is False:
            # Look while its lease would be open, so that one that was refused is told from one that is over.
            self._try_at = min(self._try_at, now + max(1, term.length // 2))

    def _wait(self, now: Instant) -> None:
        settings = self._settings
        self._try_at = now + min(settings.retry_first << min(self._tries, 32), settings.retry_max)
        self._tries += 1

    def _request(self, term: Term, taken: set[str]) -> RequestLease:
        demand = self.demand
        name, number = self.name, 1
        while name in taken:
            number += 1
            name = f"{self.name}.{number}"
        return RequestLease(
            demand.type,
            demand.units,
            term,
            demand.slice,
            name,
            broker=demand.broker,
            site=demand.site,
            properties=demand.properties,
            configuration=demand.configuration,
        )


def _last_open(leases: Sequence[LeaseView], now: Instant) -> LeaseView | None:
    """The lease that covers the demand longest, of those that aren't on their way out."""
    last: LeaseView | None = None
    for lease in leases:
        going = lease.closing or lease.pending in _CLOSING or _covered_until(lease) <= now
        if not going and (last is None or _covered_until(lease) > _covered_until(last)):
            last = lease
    return last


def _covered_until(lease: LeaseView) -> Instant:
    return lease.term.end if lease.next_term is None else lease.next_term.end
