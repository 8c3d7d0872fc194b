"""Broker cycles made by hand, and an independent model that checks a mapper's decisions millisecond by millisecond."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from leasekit.core.mappers import (
    BrokerCycle,
    BrokerDecision,
    Defer,
    Grant,
    GrantGroup,
    PendingRequest,
    Reject,
    Source,
    Usage,
)
from leasekit.core.profile import Ledger
from leasekit.core.time import INSTANT_MAX, Duration, Instant, Term
from leasekit.core.timetable import Timetable
from leasekit.policies.broker.fair_share import REMEMBERED, _weighed

FAR = 1_000_000


def request(lease: str, units: int = 1, start: Instant = 0, end: Instant = 10, **changes: Any) -> PendingRequest:
    """A plain request for ``vm``: all of it, then, or nothing."""
    fields: dict[str, Any] = {
        "lease": lease,
        "holder": "guest",
        "op": "new",
        "type": "vm",
        "units": units,
        "min_units": units,
        "term": Term(start, end),
        "latest_start": start,
        "deadline": FAR,
        "arrived": 0,
        "site": "",
        "exclude_sites": frozenset(),
        "source": "",
        "held": 0,
        "group": "",
        "priority": 0,
        "preemptible": False,
        "properties": {},
        "held_until": 0,
    }
    return PendingRequest(**{**fields, **changes})


class Books:
    """A broker's delegations of one type, one per site, each with its timetable."""

    def __init__(self, units: Mapping[str, int], end: Instant = FAR) -> None:
        self.term = Term(0, end)
        self.usage = Ledger()
        self.units = dict(units)
        self.tables = {site: Timetable(0) for site in units}
        for site, table in self.tables.items():
            table.add_capacity(self.term, units[site])

    def book(self, site: str, lease: str, units: int, start: Instant, end: Instant) -> None:
        """A lease that was granted before, as the broker's book keeps it."""
        self.tables[site].reserve(f"{lease}#1", units, Term(start, end))
        self.usage.add("guest", "vm", units, Term(start, end))

    def grant(self, site: str, grant: Grant, holder: str = "guest") -> None:
        """What the mapper has granted."""
        self.tables[site].reserve(grant.lease, grant.units, grant.term)
        self.usage.add(holder, "vm", grant.units, grant.term)

    def cycle(
        self, *requests: PendingRequest, groups: Sequence[tuple[PendingRequest, ...]] = (), type_: str = "vm"
    ) -> BrokerCycle:
        """What the mapper is shown."""
        sources = [
            Source(f"{site}/vm", site, type_, units, self.term, {}, self.tables[site].overlay())
            for site, units in self.units.items()
        ]
        return BrokerCycle(0, requests, groups, lambda asked: sources if asked == type_ else [], usage=self.usage)


class Model:
    """What is free at each site in each millisecond of a short time: slow, and too simple to be wrong."""

    def __init__(self, books: Books, balance: str) -> None:
        self.books = books
        self.balance = balance
        self.free = {
            f"{site}/vm": [table.free_at(at) for at in range(books.term.end)] for site, table in books.tables.items()
        }

    def over(self, source: str, start: Instant, end: Instant) -> int:
        """The units free over a term at a source; 0 where the delegation doesn't reach."""
        if start < 0 or end > self.books.term.end:
            return 0
        return max(0, min(self.free[source][start:end]))

    def take(self, source: str, units: int, term: Term) -> None:
        """Book units, which must be there."""
        assert 0 < units <= self.over(source, *term), f"{units} units of {source} over {term} are not free"
        for at in range(*term):
            self.free[source][at] -= units

    def allowed(self, wish: PendingRequest) -> list[str]:
        """The sources that a request can be filled from."""
        return [
            f"{site}/vm"
            for site in self.books.units
            if (not wish.site or site == wish.site) and site not in wish.exclude_sites
        ]

    def fits(self, wish: PendingRequest, starts: range) -> Instant | None:
        """The first of these starts at which a request fits somewhere, with its fewest units."""
        length = wish.term.length
        for start in starts:
            if any(self.over(source, start, start + length) >= wish.min_units for source in self.allowed(wish)):
                return start
        return None

    def group_fits(self, group: Sequence[PendingRequest], start: Instant) -> bool:
        """Whether all members fit at once, by trying every way to spread them."""
        end = start + group[0].term.length
        for chosen in product(*(self.allowed(member) for member in group)):
            wanted: dict[str, int] = {}
            for member, source in zip(group, chosen, strict=True):
                wanted[source] = wanted.get(source, 0) + member.units
            if all(units <= self.over(source, start, end) for source, units in wanted.items()):
                return True
        return False

    # -- checks ------------------------------------------------------------------------------------------------

    def check(self, cycle: BrokerCycle, decisions: Sequence[BrokerDecision]) -> None:
        """Every decision is the right one after those before it, and each request is decided once."""
        wishes = {wish.lease: wish for wish in (*cycle.requests, *(m for group in cycle.groups for m in group))}
        groups = {member.lease: group for group in cycle.groups for member in group}
        decided: list[str] = []
        for decision in decisions:
            if isinstance(decision, GrantGroup):
                group = groups[decision.grants[0].lease]
                decided += [member.lease for member in group]
                self._check_group_grant(group, decision)
                continue
            assert isinstance(decision, Grant | Defer | Reject)
            if decision.lease in groups:
                group = groups[decision.lease]
                whole = isinstance(decision, Reject)
                decided += [member.lease for member in group] if whole else [decision.lease]
                self._check_no_group(group)
                continue
            decided.append(decision.lease)
            wish = wishes[decision.lease]
            if wish.op == "modify":
                self._check_modify(wish, decision)
            elif isinstance(decision, Grant):
                self._check_grant(wish, decision)
            else:
                self._check_nothing(wish, decision)
        assert sorted(decided) == sorted(wishes), "each request is decided exactly once"

    def _check_grant(self, wish: PendingRequest, grant: Grant) -> None:
        start, end = grant.term
        assert end - start == wish.term.length
        assert grant.source == wish.source if wish.op == "extend" else grant.source in self.allowed(wish)
        assert wish.term.start <= start <= wish.latest_start
        if wish.op == "new":
            assert start == self.fits(wish, range(wish.term.start, wish.latest_start + 1)), "the earliest start"
            self._check_choice(wish, grant)
        assert grant.units == min(wish.units, self.over(grant.source, start, end)), "as many as there are"
        assert wish.min_units <= grant.units <= wish.units
        self.take(grant.source, grant.units, grant.term)

    def _check_choice(self, wish: PendingRequest, grant: Grant) -> None:
        free = {source: self.over(source, *grant.term) for source in self.allowed(wish)}
        whole = [source for source, units in free.items() if units >= wish.units]
        roomiest = max(free, key=lambda source: free[source])
        if not whole or self.balance == "worst_fit":
            assert grant.source == roomiest
        elif self.balance == "load_balanced":
            share = {source: free[source] / self.books.units[source.removesuffix("/vm")] for source in whole}
            assert (share[grant.source], free[grant.source]) == max((share[each], free[each]) for each in whole)
        elif self.balance == "first_fit":
            assert grant.source == whole[0]
        elif self.balance == "random":
            assert grant.source in whole
        else:
            assert free[grant.source] == min(free[source] for source in whole)

    def _check_nothing(self, wish: PendingRequest, decision: Reject | Defer) -> None:
        assert decision.reason
        if wish.op == "extend":
            assert isinstance(decision, Reject)
            assert self.over(wish.source, *wish.term) < wish.min_units
            return
        assert self.fits(wish, range(wish.term.start, wish.latest_start + 1)) is None
        if isinstance(decision, Reject):
            later = range(wish.term.start, self.books.term.end)
            assert decision.earliest == (self.fits(wish, later) if wish.latest_start == wish.term.start else None)
            assert decision.earliest is None or "insufficient" in decision.reason

    def _check_modify(self, wish: PendingRequest, decision: Grant | Reject | Defer) -> None:
        """As the broker does it: what the lease holds from the start on is given up first, and what the modify leaves
        of that stays booked until the site has confirmed it.
        """
        source = wish.source
        before = list(self.free[source])
        held = self.books.tables[source.removesuffix("/vm")].get(f"{wish.lease}#1")
        assert held is not None
        for at in range(wish.term.start, held[1].end):
            self.free[source][at] += held[0]
        free = self.over(source, *wish.term)
        if isinstance(decision, Grant):
            assert (decision.source, decision.term) == (source, wish.term)
            assert decision.units == min(wish.units, free) >= wish.min_units
            self.take(source, decision.units, decision.term)
            end = min(decision.term.end, held[1].end)
            if decision.units < held[0]:
                self.take(source, held[0] - decision.units, Term(wish.term.start, end))
            if end < held[1].end:
                self.take(source, held[0], Term(end, held[1].end))
        else:
            assert isinstance(decision, Reject)
            assert free < wish.min_units
            self.free[source] = before

    def _starts(self, group: Sequence[PendingRequest]) -> range:
        return range(max(m.term.start for m in group), min(m.latest_start for m in group) + 1)

    def _check_group_grant(self, group: Sequence[PendingRequest], decision: GrantGroup) -> None:
        assert [grant.lease for grant in decision.grants] == [member.lease for member in group], "the group is whole"
        term = decision.grants[0].term
        assert all(grant.term == term for grant in decision.grants), "over one term"
        assert term.length == group[0].term.length
        assert term.start == next(start for start in self._starts(group) if self.group_fits(group, start))
        for member, grant in zip(group, decision.grants, strict=True):
            assert grant.units == member.units
            assert grant.source in self.allowed(member)
            self.take(grant.source, grant.units, term)

    def _check_no_group(self, group: Sequence[PendingRequest]) -> None:
        if len({member.term.length for member in group}) == 1:
            assert not any(self.group_fits(group, start) for start in self._starts(group))


def grants(decisions: Sequence[BrokerDecision]) -> Iterator[Grant]:
    """All grants, those of groups too."""
    for decision in decisions:
        if isinstance(decision, Grant):
            yield decision
        elif isinstance(decision, GrantGroup):
            yield from decision.grants


def decayed(usage: Usage, holder: str, type_: str, now: Instant, half_life: Duration) -> float:
    """Unit-milliseconds that a holder has had, looked at anew: those of the past decayed to ``now``, those to come in
    full.
    """
    window = Term(max(0, now - REMEMBERED * half_life), INSTANT_MAX)
    return sum(sum(_weighed(term, units, now, half_life)) for term, units in usage.held(holder, type_, window))
