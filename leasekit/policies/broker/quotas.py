"""Quotas of holders: how many units of a type at once, how many unit-hours in a period, how long, how far ahead.

What is short decides the answer: of a quota that time alone can't lift (a term that is too long) nobody should wait,
of units at once a deferrable request may.

A longest term is evaded by stacking lease upon lease. ``stacked`` caps that: so many units may a holder hold for longer
than ``longest`` without a break of at least ``rest``. What counts is not which lease holds them but how many are held
at each instant, so that it doesn't matter whether they were renewed, asked for anew, or handed from one lease to
another.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple, Protocol

import attrs

from leasekit.core.mappers import PendingRequest, Usage
from leasekit.core.reasons import Coded, counted, mark, marked
from leasekit.core.settings import DurationSetting
from leasekit.core.time import HOUR, INSTANT_MAX, WEEK, Duration, Instant, Term, format_duration

ANY: Final = "*"
SOON: Final = HOUR
"""What begins so early is to be used, and is not booked ahead."""
_UNLIMITED: Final = 1 << 62
_PERIODS_MAX: Final = 10_000


@attrs.frozen(kw_only=True)
class QuotaSettings:
    """One quota. Of several that a request falls under the one counts that names holder and type most closely."""

    holder: str = ANY
    """Whose; ``"*"``: each holder's."""
    type: str = ANY
    """Of which type; ``"*"``: of each."""
    units: int | None = attrs.field(default=None, validator=attrs.validators.optional(attrs.validators.ge(0)))
    """How many units at once."""
    unit_hours: float | None = attrs.field(default=None, validator=attrs.validators.optional(attrs.validators.ge(0)))
    """How many unit-hours in a period."""
    period: DurationSetting = attrs.field(default=WEEK, validator=attrs.validators.ge(HOUR))
    """The period: whole multiples of it on the broker's clock."""
    longest: DurationSetting | None = attrs.field(
        default=None, validator=attrs.validators.optional(attrs.validators.ge(1))
    )
    """The longest term, also of an extend."""
    stacked: int | None = attrs.field(default=None, validator=attrs.validators.optional(attrs.validators.ge(0)))
    """How many units may be held without a break for longer than ``longest``, by whatever leases."""
    rest: DurationSetting = 0
    """How long a break must be to count as one; 0: any."""
    ahead: DurationSetting | None = None
    """How far ahead a term may start."""
    booked_hours: float | None = attrs.field(default=None, validator=attrs.validators.optional(attrs.validators.ge(0)))
    """How much may be booked over terms that have not begun: so many hours of all units of the type. What begins within
    an hour is free of it."""

    def __attrs_post_init__(self) -> None:
        if self.stacked is not None and self.longest is None:
            raise ValueError("stacked: goes with longest, which it guards")


class Short(NamedTuple):
    """Why a quota doesn't let a request have its units over a term; ``lasts`` where no other start would help."""

    reason: str
    lasts: bool


class HeldAccount(Usage, Protocol):
    """What holders have been granted, in the turn as well."""

    @property
    def booked_hours(self) -> int:
        """How much a holder may book ahead that is under no quota (0: as much as there is)."""
        ...

    def booked(self, holder: str, type_: str) -> int:
        """What a holder has over terms that have not begun, in unit-milliseconds."""
        ...

    def units(self, type_: str) -> int:
        """How many units of a type there are to be granted."""
        ...


class Limit:
    """One request under its quota."""

    __slots__ = ("_given_up", "_now", "_quota", "_request", "_usage")

    def __init__(self, quota: QuotaSettings, request: PendingRequest, usage: HeldAccount, now: Instant) -> None:
        self._quota = quota
        self._request = request
        self._usage = usage
        self._now = now
        # A modify gives up what its lease holds from its start on.
        modifies = request.op == "modify" and request.held_until > request.term.start
        self._given_up = Term(request.term.start, request.held_until) if modifies else None

    def units(self, term: Term) -> int:
        """How many units the quota leaves for the request over a term."""
        quota = self._quota
        if quota.longest is not None and term.length > quota.longest:
            return 0
        if quota.ahead is not None and term.start - self._now > quota.ahead:
            return 0
        left = _UNLIMITED
        if quota.units is not None:
            left = quota.units - self._peak(term)
        if quota.unit_hours is not None:
            left = min(left, min(free // inside for _, free, inside in self._periods(term)))
        if self._books(term):
            left = min(left, self._left_ahead() // term.length)
        if quota.stacked is not None and self._run(term).length > (quota.longest or 0):
            left = min(left, quota.stacked - self._peak(term))
        return max(0, left)

    def short(self, term: Term, least: int) -> Short | None:
        """Why the request can't have ``least`` units over a term; None if it can."""
        if self.units(term) >= least:
            return None
        found = self._why_short(term, least)
        return found._replace(reason=Coded(found.reason, "quota"))

    def _why_short(self, term: Term, least: int) -> Short:
        quota, who = self._quota, f"{self._request.holder}'s quota of {self._request.type!r}"
        if quota.longest is not None and term.length > quota.longest:
            longest = format_duration(quota.longest)
            return Short(f"{who}: the longest term is {longest}, this one is {format_duration(term.length)}", True)
        if quota.ahead is not None and term.start - self._now > quota.ahead:
            most = format_duration(quota.ahead)
            return Short(f"{who}: a term starts at most {most} ahead, by {mark(self._now + quota.ahead)} for now", True)
        if quota.units is not None and quota.units - self._peak(term) < least:
            held = self._peak(term)
            return Short(
                f"{who} is {counted(quota.units)} at once: {held} {'is' if held == 1 else 'are'} held within "
                f"{marked(term)}, {least} more {'was' if least == 1 else 'were'} wanted",
                least > quota.units,
            )
        if quota.unit_hours is not None:
            for begin, free, inside in self._periods(term):
                if free // inside < least:
                    return Short(
                        f"{who} is {quota.unit_hours:g} unit-hours in {format_duration(quota.period)}: "
                        f"{max(0, free) / HOUR:.4g} are left from {mark(begin)} on, {least * inside / HOUR:.4g} "
                        f"were wanted",
                        least * inside > quota.unit_hours * HOUR,
                    )
        if self._books(term) and self._left_ahead() // term.length < least:
            left, all_ = max(0, self._left_ahead()) / HOUR, counted(self._usage.units(self._request.type))
            return Short(
                f"{who}: what has not begun may come to {quota.booked_hours:g} hours of all {all_}: {left:.4g} "
                f"unit-hours are left, {least * term.length / HOUR:.4g} were wanted",
                least * term.length > self._most_ahead(),
            )
        run, longest = self._run(term), format_duration(quota.longest or 0)
        rest = f" of at least {format_duration(quota.rest)}" if quota.rest else ""
        return Short(
            f"{who}: more than {counted(quota.stacked or 0)} may not be held for longer than {longest} without a "
            f"break{rest}, with this lease it would be from {mark(run.start)} to {mark(run.end)}", False,
        )  # fmt: skip

    def next_start(self, after: Instant, length: Duration) -> Instant | None:
        """The first later start at which the quota might leave more; None if there is none to be known."""
        quota, found = self._quota, []
        window = Term(after, min(INSTANT_MAX, after + length + (quota.longest or 0) + quota.rest + 1))
        found += [term.end for term, _ in self._held(window) if term.end > after]
        if quota.rest:
            found += [end + quota.rest for end in found]
        if quota.unit_hours is not None:
            found.append((after // quota.period + 1) * quota.period)
        return min((at for at in found if at > after), default=None)

    # -- parts ---------------------------------------------------------------------------------------------------

    def _held(self, window: Term) -> Iterator[tuple[Term, int]]:
        """What the holder holds, without what the request gives up."""
        gone, less = self._given_up, self._request.held
        for term, units in self._usage.held(self._request.holder, self._request.type, window):
            if gone is None or not gone.overlaps(term):
                yield term, units
                continue
            parts = (
                (Term(term.start, gone.start), units),
                (Term(max(term.start, gone.start), min(term.end, gone.end)), units - less),
                (Term(gone.end, term.end), units),
            )
            yield from ((part, count) for part, count in parts if part.length > 0 and count > 0)

    def _books(self, term: Term) -> bool:
        """Whether it would be booked ahead."""
        limited = self._quota.booked_hours is not None and self._request.op == "new"
        return limited and term.start > self._now + SOON

    def _most_ahead(self) -> int:
        return int((self._quota.booked_hours or 0) * HOUR * self._usage.units(self._request.type))

    def _left_ahead(self) -> int:
        return self._most_ahead() - self._usage.booked(self._request.holder, self._request.type)

    def _peak(self, term: Term) -> int:
        return max((units for _, units in self._held(term)), default=0)

    def _periods(self, term: Term) -> Iterable[tuple[Instant, int, Duration]]:
        """Each period that a term touches: its begin, unit-milliseconds left in it, and how much of the term it has."""
        quota = self._quota
        assert quota.unit_hours is not None, "asked only where it is set"
        most = int(quota.unit_hours * HOUR)
        begin = term.start // quota.period * quota.period
        for _ in range(_PERIODS_MAX):
            if begin >= term.end:
                return
            end = begin + quota.period
            used = sum(stretch.length * units for stretch, units in self._held(Term(begin, end)))
            yield begin, most - used, min(term.end, end) - max(term.start, begin)
            begin = end

    def _run(self, term: Term) -> Term:
        """The time around a term in which more than ``stacked`` units are held without a break."""
        quota = self._quota
        longest, rest = quota.longest or 0, quota.rest
        start, end = term
        before = list(self._held(Term(max(0, start - longest - rest), start))) if start else []
        for held, units in reversed(before):
            if units > (quota.stacked or 0) and _near(held.end, start, rest):
                start = held.start
        for held, units in self._held(Term(end, end + longest + rest)):
            if units > (quota.stacked or 0) and _near(end, held.start, rest):
                end = held.end
        return Term(start, end)


def _near(end: Instant, start: Instant, rest: Duration) -> bool:
    """Whether it goes on without a break that counts."""
    return start - end < rest or start <= end
