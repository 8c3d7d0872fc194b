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
from leasekit.core.properties import EMPTY, Properties, check_properties
from leasekit.core.settings import DurationSetting
from leasekit.core.time import MINUTE, SECOND, Duration, Instant, Term, format_duration

AHEAD_LEAST: Final = 2 * MINUTE
AHEAD_MOST: Final = 5 * MINUTE

_CLOSING: Final = frozenset(("closing", "close_wait"))


def _positive(_: object, field: attrs.Attribute[int], found: int | None) -> None:
    if found is not None and found < 1:
        raise ValueError(f"expected a duration above 0 for {field.name}")


def _name(_: object, field: attrs.Attribute[str], found: str) -> None:
    base, dot, number = found.rpartition(".")
    if "/" in found or (dot and base and number.isdigit()):
        raise ValueError(f"expected a {field.name} without a slash that doesn't end in a dot and a number")


def _properties(_: object, field: attrs.Attribute[Properties], found: Properties) -> None:
    check_properties(found, field.name)


@attrs.frozen(kw_only=True)
class DemandSettings:
    """One lease that is to be there, or ``count`` of the same kind."""

    type: str = attrs.field(validator=attrs.validators.min_len(1))
    """The resource type of its units."""
    units: int = attrs.field(default=1, validator=attrs.validators.ge(1))
    """How many units."""
    term: DurationSetting = attrs.field(validator=_positive)
    """How long each term is."""
    slice: str = attrs.field(default="static", validator=(attrs.validators.min_len(1), _name))
    """The slice of its leases."""
    name: str = attrs.field(default="", validator=_name)
    """What its leases are called (default: the type). Where ``count`` is above 1, ``-1``, ``-2`` and so on are added."""
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
    extend_ahead: DurationSetting | None = attrs.field(default=None, validator=_positive)
    """How long before the end of its term it is renewed; more than the guest's ``extend_lead`` and ``leave_time``.
    Default: a tenth of the term, but between 2 and 5 minutes, and never more than half the term."""
    properties: Mapping[str, str] = attrs.field(default=EMPTY, validator=_properties)
    """Request properties."""
    configuration: Mapping[str, str] = attrs.field(default=EMPTY, validator=_properties)
    """Configuration properties."""

    def __attrs_post_init__(self) -> None:
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
    retry_first: DurationSetting = attrs.field(default=10 * SECOND, validator=_positive)
    """When an attempt is first looked at again."""
    retry_max: DurationSetting = attrs.field(default=10 * MINUTE, validator=_positive)
    """The longest wait between two attempts."""
    check: DurationSetting = attrs.field(default=5 * MINUTE, validator=_positive)
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

    __slots__ = ("_covered", "_end", "_settings", "_tries", "_try_at", "demand", "name")

    def __init__(self, demand: DemandSettings, name: str, start: Instant, settings: StaticSettings) -> None:
        self.demand = demand
        self.name = name
        self._settings = settings
        self._try_at = start
        self._tries = 0
        self._covered: Instant = -1
        self._end: Instant | None = None

    def plan(self, leases: Sequence[LeaseView], now: Instant, decisions: list[GuestDecision]) -> Instant | None:
        """Add what is due now; returns when to look again, or None if the demand is done with."""
        own = [lease for lease in leases if not lease.closing and lease.pending not in _CLOSING]
        last = max(own, key=_covered_until, default=None)
        covered = _covered_until(last) if last is not None else now
        if last is not None and last.state != "nascent" and covered > self._covered:
            self._covered, self._tries, self._try_at = covered, 0, now
        if last is None:
            if self._end is not None and now >= self._end:
                return None
            due = now
        elif self.demand.renew is False:
            self._end = max(covered, self._end or 0)
            return min(covered, now + self._settings.check)
        else:
            due = covered - self.demand.ahead
        at = max(due, self._try_at)
        if at > now:
            return min(at, now + self._settings.check) if last is not None else at
        self._attempt(last, covered, {lease.name for lease in leases}, now, decisions)
        return self._try_at

    def _attempt(
        self,
        last: LeaseView | None,
        covered: Instant,
        taken: set[str],
        now: Instant,
        decisions: list[GuestDecision],
    ) -> None:
        """Ask for what is due, unless an answer is still on its way, and wait longer before the next attempt."""
        demand, settings = self.demand, self._settings
        if last is None:
            decisions.append(self._request(self._missing_term(now), taken))
        elif last.pending == "-" and last.state == "active":
            if demand.renew is True:
                decisions.append(
                    ExtendLease(last.id, covered + demand.term, demand.units, properties=demand.properties)
                )
            else:
                decisions.append(self._request(Term(covered, covered + demand.term), taken))
        wait = min(settings.retry_first << min(self._tries, 32), settings.retry_max)
        self._tries += 1
        self._try_at = now + wait

    def _missing_term(self, now: Instant) -> Term:
        """A whole term from now on; for a demand that isn't renewed, what is left of its only one."""
        if self.demand.renew is False:
            if self._end is None:
                self._end = now + self.demand.term
            return Term(now, self._end)
        return Term(now, now + self.demand.term)

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


def _covered_until(lease: LeaseView) -> Instant:
    return lease.term.end if lease.next_term is None else lease.next_term.end
