"""Which hosts may have room, without a look at each: hosts of which as much is free are kept together, in the order in
which they are best filled up.

What is kept of a host is what is free of it now, and the least that is free at any time from now on. Both are looked up
anew when its calendar has changed, when it is in another class or goes out of service, and when what is booked of it
begins or ends.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from heapq import merge
from typing import Final, NamedTuple, TypeAlias

import attrs
from sortedcontainers import SortedList

from leasekit.actors.kernel import Kernel, keeps
from leasekit.actors.site.inventory import HostNews
from leasekit.actors.site.units import Units
from leasekit.core.leases.records import SiteUnit
from leasekit.core.properties import Vector, amount
from leasekit.core.time import INSTANT_MAX, Instant, Term
from leasekit.core.timetable import Ends, Timetable

STALE_MAX: Final = 1_000
"""How many instants may be kept at which nothing is due any more, beside as many as there are hosts."""

Ranked: TypeAlias = tuple[float, int, str]
"""The least share of a host that is free from now on, added up over its resources; its number, and its name."""


class Alike(NamedTuple):
    """What hosts have in common that are kept together: ``left`` is what is free of each now."""

    type: str
    classes: tuple[bytes, ...]
    serves: bool
    left: Vector


class _Seen(NamedTuple):
    """A host as it was when it was looked at last; it is as it was until ``until``."""

    alike: Alike
    rank: Ranked
    until: Instant


@keeps(derived="changed _seen _alike _ends _news _mark")
@attrs.define(eq=False, slots=False)
class Vacancies:
    """The hosts of divided types by what is free of them; ``_tables`` are their calendars, by resource, of those that
    have any.
    """

    _kernel: Kernel
    _units: Units
    _tables: Mapping[str, Mapping[str, Timetable]]
    changed: set[str] = attrs.field(factory=set, init=False)
    """Hosts whose calendars have changed."""
    _seen: dict[str, _Seen] = attrs.field(factory=dict, init=False)
    _alike: dict[Alike, SortedList] = attrs.field(factory=dict, init=False)
    _ends: Ends = attrs.field(factory=lambda: Ends(()), init=False)
    _news: HostNews | None = attrs.field(default=None, init=False)
    _mark: int = attrs.field(default=0, init=False)

    def follow(self) -> Collection[str]:
        """Look anew at the hosts that are not as they were. Returns those."""
        now, units = self._kernel.now, self._units
        if self._news is not units.news:  # other units: after a start
            self._seen, self._alike, self._ends, self._news, self._mark = {}, {}, Ends(()), units.news, 0
        news = units.news.since(self._mark)
        self.changed.update([host for host, _ in news] if news is not None else [unit.id for unit in units])
        self._mark = units.news.number
        self.changed.update(map(str, self._ends.pop_until(now, self._until)))
        names, self.changed = self.changed, set()
        for name in names:
            if name in units and not units[name].host:
                self._look_anew(units[name], now)
        if len(self._ends) > 2 * len(self._seen) + STALE_MAX:
            self._ends = Ends((one.until, name) for name, one in self._seen.items() if one.until < INSTANT_MAX)
        return names

    def _until(self, host: object) -> Instant | None:
        seen = self._seen.get(str(host))
        return seen.until if seen is not None else None

    def _look_anew(self, host: SiteUnit, now: Instant) -> None:
        has = self._units.inventory.capacity(host.type, host.classes[0])
        if not has:
            return
        before = self._seen.get(host.id)
        tables, share, until = self._tables.get(host.id, {}), 0.0, INSTANT_MAX
        for table in tables.values():
            share += table.available(Term(now, INSTANT_MAX)) / max(1, table.capacity_at(now))
            until = min(until, next(table.steps(Term(now, INSTANT_MAX)))[0].end)
        left = tuple((name, table.free_at(now)) for name, table in tables.items()) or has
        alike = Alike(host.type, host.classes, not (host.retire or host.is_out), left)
        seen = _Seen(alike, (share if tables else float(len(has)), host.number, host.id), until)
        if before is None or before[:2] != seen[:2]:
            self._forget(before)
            self._alike.setdefault(alike, SortedList()).add(seen.rank)
        if until < INSTANT_MAX and (before is None or before.until != until):
            self._ends.push(until, host.id)
        self._seen[host.id] = seen

    def _forget(self, seen: _Seen | None) -> None:
        if seen is not None:
            there = self._alike[seen.alike]
            there.remove(seen.rank)
            if not there:
                del self._alike[seen.alike]

    # -- asking ------------------------------------------------------------------------------------------------

    def left(self, type_: str) -> Iterator[Alike]:
        """What is free now of hosts of a type."""
        return (alike for alike in self._alike if alike.type == type_)

    def hosts(self, alike: Alike) -> Iterator[str]:
        """The hosts of which that is free."""
        return (name for _, _, name in self._alike[alike])

    def same_until(self, host: str) -> Instant:
        """Until when as much is free of a host as now."""
        return self._seen[host].until

    def candidates(self, type_: str, class_: bytes, size: Vector, term: Term) -> Iterator[Ranked]:
        """All hosts of a class that may have room for a unit throughout a term, those first that may have the least
        left: over a term that has not begun none has less.
        """
        found: list[Iterator[Ranked]] = []
        for alike, hosts in self._alike.items():
            if alike.type != type_ or class_ not in alike.classes:
                continue
            if all(amount(alike.left, name) >= much for name, much in size):
                found.append(iter(hosts))
            elif term.start > self._kernel.now:
                found.append(one for one in hosts if self._seen[one[2]].until <= term.start)
        return merge(*found)
