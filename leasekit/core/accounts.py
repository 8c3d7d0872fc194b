"""Accounts: who asked for how much, was granted and has used how much, as a log of transitions says.

A broker's log says what was asked for, granted and refused; a site's which unit was up for which lease. All is added up
in whole unit-milliseconds, lease by lease, from the lines of the lease itself, and only what lies in the period counts.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby, pairwise
from typing import Any, Final, NamedTuple

import attrs
from msgspec import UNSET

from leasekit.core.answers import AccountDetails
from leasekit.core.leases.authority import CHANGE, UP
from leasekit.core.reasons import Code, Reason, read
from leasekit.core.schema import LogRow
from leasekit.core.time import INSTANT_MAX, Duration, Instant, Term

KEYS: Final = ("holder", "type", "site")
"""What accounts can be added up by."""
INVENTORY: Final = "inventory"
"""The event by which a site notes how many units of a type it has."""

NOT_TAKEN: Final = "not_taken"
"""The event by which a broker notes how many requests of a holder it did not take at all."""
BID: Final = "bid"
"""The event by which a broker notes what a request bids for each unit and billing period."""
PRICE: Final = "price"
"""The event by which a broker notes what a unit of a type costs from then on, and for how long."""
STANDING: Final = frozenset({INVENTORY, PRICE})
"""Events whose notes hold until the same is noted otherwise: the last of each stays in a store, however old it is."""

_ASKING: Final = frozenset({"request", "extend", "modify", "replace"})
_REFUSING: Final = frozenset({"refuse", "expire"})
_IN_USE: Final = (UP, CHANGE)


@attrs.define(eq=False)
class Account:
    """What was asked for, granted, used and billed. Times are unit-milliseconds; ``billed`` is in the broker's own
    money, of leases that bid; ``leads`` are how long before their starts leases were asked for, milliseconds;
    ``refused`` counts refusals by their codes.
    """

    requests: int = 0
    granted: int = 0
    granted_time: int = 0
    used_time: int = 0
    leases: int = 0
    billed: int = 0
    refused: Counter[str] = attrs.field(factory=Counter)
    leads: list[Duration] = attrs.field(factory=list)

    def add(self, other: Account) -> None:
        """Count ``other`` in."""
        self.requests += other.requests
        self.granted += other.granted
        self.granted_time += other.granted_time
        self.used_time += other.used_time
        self.leases += other.leases
        self.billed += other.billed
        self.refused += other.refused
        self.leads += other.leads

    def shown(self, keys: Mapping[str, str]) -> AccountDetails:
        """With what it was added up by, and the median and the 90th percentile of the leads."""
        leads = sorted(self.leads)
        return AccountDetails(
            holder=keys.get("holder", UNSET), type=keys.get("type", UNSET), site=keys.get("site", UNSET),
            leases=self.leases, requests=self.requests, granted=self.granted,
            refused=dict(sorted(self.refused.items())), granted_unit_ms=self.granted_time,
            used_unit_ms=self.used_time, billed=self.billed, lead_median_ms=_percentile(leads, 50),
            lead_p90_ms=_percentile(leads, 90),
        )  # fmt: skip


def _percentile(ordered: Sequence[Duration], percent: int) -> Duration | None:
    """The smallest that so many percent are not above."""
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)] if ordered else None


class Prices:
    """What a unit of each type cost, by a broker's notes, which are in order."""

    def __init__(self, notes: Iterable[LogRow]) -> None:
        self._of: dict[str, list[tuple[Instant, int, Duration]]] = {}
        for row in notes:
            why = read(row.why)
            if why is not None and why.code == Code.PRICE:
                self._of.setdefault(why.what, []).append((row.at, max(0, why.units), max(1, why.of)))

    def at(self, type_: str, at: Instant) -> tuple[int, Duration]:
        """The price of a unit at an instant, and for how long: 0 where there was none before."""
        known = self._of.get(type_, [])
        place = bisect_right(known, at, key=lambda one: one[0])
        return known[place - 1][1:] if place else (0, known[0][2] if known else INSTANT_MAX)


NO_PRICES: Final = Prices(())


def prices_of(notes: Iterable[Mapping[str, Any]], period: Term) -> list[dict[str, Any]]:
    """The prices of a period, by type and in order of time: also those that it began with. A broker that was restarted
    notes a price anew that is no other.
    """
    by_type: dict[str, list[tuple[Instant, int, Duration]]] = {}
    for note_ in notes:
        why = note_["because"]
        known, price = by_type.setdefault(why["what"], []), (why["units"], why["of"])
        if not known or known[-1][1:] != price:
            known.append((note_["at"], *price))
    return [
        {"type": type_, "at": max(at_, period.start), "price": price, "period_ms": length}
        for type_, known in sorted(by_type.items())
        for (at_, price, length), (until, _, _) in pairwise([*known, (INSTANT_MAX, 0, 0)])
        if at_ < period.end and until > period.start
    ]


class Accounts:
    """Accounts over a period, added up by ``keys`` (some of :data:`KEYS`). ``own`` is the actor whose log it is,
    ``prices`` what units cost there.
    """

    def __init__(self, period: Term, keys: Sequence[str], own: str, prices: Prices = NO_PRICES) -> None:
        self._period, self._keys, self._own, self._prices = period, tuple(keys), own, prices
        self._of: dict[tuple[str, ...], Account] = {}

    def count(self, rows: Iterable[LogRow]) -> None:
        """The log of one lease, from its beginning on."""
        lease = _LeaseLines(self._period, self._own)
        for row in rows:
            lease.see(row)
        found = lease.account(self._prices)
        if found.leases:
            self._account(lease.holder, lease.type, lease.site).add(found)

    def count_refused(self, rows: Iterable[LogRow]) -> None:
        """The notes of requests that were not taken."""
        for row in rows:
            why = read(row.why)
            if why is not None and self._period.start <= row.at < self._period.end:
                account = self._account(why.who, why.what, "")
                account.requests += why.units
                account.refused.update({cause.code: why.units for cause in why.causes})

    def _account(self, holder: str, type_: str, site: str) -> Account:
        values = {"holder": holder, "type": type_, "site": site}
        return self._of.setdefault(tuple(values[key] for key in self._keys), Account())

    def shown(self) -> list[AccountDetails]:
        """The accounts, in order of their keys."""
        return [
            account.shown(dict(zip(self._keys, values, strict=True))) for values, account in sorted(self._of.items())
        ]


class GrantedTime(NamedTuple):
    """Units over a term."""

    units: int
    start: Instant
    end: Instant


class _LeaseLines:
    """What the lines about one lease come to."""

    def __init__(self, period: Term, own: str) -> None:
        self.holder = self.type = ""
        self.site = own
        self._period = period
        self._account = Account()
        self._asked, self._replaces = -1, False
        self._grants: list[GrantedTime] = []
        self._up: dict[str, Instant] = {}
        self._bids = self._ended_by_broker = False

    def see(self, row: LogRow) -> None:
        """Take in the next line."""
        event, why = row.event, read(row.why)
        if event.startswith("unit "):
            self._unit(row, why)
            return
        if event == "redeem" and why is not None and why.code == Code.ASKED:
            self.holder, self.type = why.who, why.what
        elif event in _ASKING and why is not None and why.code == Code.ASKED:
            self._ask(row, why)
        elif event == "grant" and why is not None:
            self._grant(row, why)
        elif event in _REFUSING and self._counts(row.at):
            self._account.refused["" if why is None else why.code] += 1
        elif event == BID:
            self._bids = True
        elif event in ("return", "returned", "preempt") and why is not None:
            self._ends(row, why)

    def account(self, prices: Prices) -> Account:
        """The account of the lease; it counts as a lease if anything of it is in the period."""
        found, period = self._account, self._period
        for unit in list(self._up):
            self._down(unit, period.end)
        for grant in self._grants:
            found.granted_time += grant.units * _overlap(Term(grant.start, max(grant.start, grant.end)), period)
        found.billed = self._billed(prices) if self._bids and self._grants else 0
        found.leases = int(bool(found.requests or found.granted_time or found.used_time or found.refused))
        return found

    def _billed(self, prices: Prices) -> int:
        """Each billing period that began in the period of the account, at the price that there was then, but for the
        last one of a lease that its broker has ended within it.
        """
        total, at = 0, min(one.start for one in self._grants)
        last = max(one.end for one in self._grants)
        while at < min(last, self._period.end):
            price, length = prices.at(self.type, at)
            if at >= self._period.start and (at + length <= last or not self._ended_by_broker):
                total += price * sum(one.units for one in self._grants if one.start <= at < one.end)
            at += length
        return total

    def _counts(self, at: Instant) -> bool:
        return self._period.start <= at < self._period.end

    def _ask(self, row: LogRow, why: Reason) -> None:
        if row.event == "request":
            self.holder, self.type, self.site = why.who, why.what, ""
        self._asked, self._replaces = row.at, row.event == "replace"
        self._account.requests += self._counts(row.at)

    def _grant(self, row: LogRow, why: Reason) -> None:
        self.site = why.who
        if self._replaces:  # all of the last one is given up, but its site has yet to say so
            last = self._grants[-1]
            self._grants[-1] = last._replace(end=min(max(why.at, last.start), last.end))
        elif row.from_state.endswith("/modifying"):  # it stands in the place of what it begins in
            cut = (one._replace(end=why.at) if one.start <= why.at < one.end else one for one in self._grants)
            self._grants = [*cut]
        self._grants.append(GrantedTime(why.units, why.at, why.until))
        if self._counts(row.at):
            self._account.granted += 1
            if row.from_state.startswith("nascent/"):
                self._account.leads.append(max(0, why.at - self._asked))

    def _ends(self, row: LogRow, why: Reason) -> None:
        """Something came back, or is to end early: what is said to be left stands for all that went on by then."""
        if row.event == "preempt":
            self._ended_by_broker = True
            self._grants = [one._replace(end=min(one.end, max(one.start, why.at))) for one in self._grants]
            return
        left = [GrantedTime(one.units, one.at, one.until) for one in why.causes]
        starts = {one.start for one in left}
        self._grants = [one for one in self._grants if one.end <= row.at and one.start not in starts] + left

    def _unit(self, row: LogRow, why: Reason | None) -> None:
        name = why.who if why is not None else ""
        if row.to_state not in _IN_USE:
            self._down(name, row.at)
        elif name not in self._up:
            self._up[name] = row.at

    def _down(self, unit: str, at: Instant) -> None:
        since = self._up.pop(unit, -1)
        if since >= 0:
            self._account.used_time += _overlap(Term(since, max(since, at)), self._period)


def _overlap(term: Term, period: Term) -> Duration:
    return max(0, min(term.end, period.end) - max(term.start, period.start))


def offered(rows: Iterable[LogRow], period: Term) -> dict[str, int]:
    """How much of each type a site had to use over a period, in unit-milliseconds, by the notes of its inventory: each
    time all types are noted.
    """
    total: Counter[str] = Counter()
    since, there = period.start, Counter[str]()
    notes = [(at, list(group)) for at, group in groupby(rows, key=lambda row: row.at)]
    for at, group in [*notes, (period.end, [])]:
        length = _overlap(Term(since, max(since, at)), period)
        total.update({type_: units * length for type_, units in there.items()})
        reasons = (read(row.why) for row in group)
        since, there = at, Counter({why.what: max(0, why.units) for why in reasons if why is not None})
    return dict(total)
