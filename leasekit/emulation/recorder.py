"""What is recorded of an emulation, from the rows that actors commit: it reads the records that a daemon stores.

For each guest three counts of units over time:

- ``leased``: what it held, as sites count it: from when a site begins to serve a term (its start, unless the ticket
  was redeemed later) to the term's end, or to where the lease was closed or cut short before. A guest that leaves just
  before the end, within its ``leave_time``, goes on holding until the end: leaving is a cost of leasing.
- ``promised``: the same, but from the start of the term even where the site began to serve it later.
- ``usable``: units that have joined and not begun to leave.

For each site: units in use (held from the start of setup to the end of teardown), units out of service, and what became
of their power. Units are counted by type, since those of different types may be different things: machines, or granules
of bandwidth.

For each guest what became of its topologies; what actors say of their mappers, and what these report. Who had what
when, for who opens the run's calendar (:mod:`.runs.book`). And the transition log, streamed to a file.

What became of the requests of guests is a :class:`~.request_book.RequestBook`'s to tell.
"""

from __future__ import annotations

import csv
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TextIO

import attrs

from leasekit.config.emulation import LogKind
from leasekit.core.leases import authority as au
from leasekit.core.leases.plans import CLOSED, COMMITTED, FAILED
from leasekit.core.leases.records import SiteUnit
from leasekit.core.reasons import Code, read, words
from leasekit.core.schema import LOG, LOG_COLUMNS, Change, Row
from leasekit.core.time import Duration, Instant, format_duration
from leasekit.emulation.energy.account import EnergyAccount
from leasekit.emulation.mapper_faults import MapperFaults
from leasekit.emulation.metrics import Series, summed
from leasekit.emulation.request_book import RequestBook
from leasekit.emulation.runs.book import CalendarBook

ROWS_RECORDED: Final[Mapping[str, tuple[frozenset[str], frozenset[str]]]] = {
    "authority": (frozenset({"units"}), frozenset({"leases"})),
    "broker": (frozenset(), frozenset()),
    "guest": (frozenset(), frozenset({"leases", "units", "plans"})),
}
"""The tables of actors in a role that are recorded: of which rows are read whole, and of which but the columns."""


class _Changes:
    """A count whose changes come in any order of time; 16 bytes each."""

    def __init__(self) -> None:
        self._instants, self._changes = array("q"), array("q")

    def add(self, at: Instant, change: int) -> None:
        """From ``at`` on there are ``change`` more."""
        self._instants.append(at)
        self._changes.append(change)

    def series(self) -> Series:
        """The count over time."""
        made = Series()
        for at, change in sorted(zip(self._instants, self._changes, strict=True)):
            made.add(at, change)
        return made


@attrs.define
class Topologies:
    """What became of the topologies that a guest asked for: all their parts were leased at once, or it was refused
    (by the broker, or as no plan came to be), or the guest gave it up before; the others still wait.
    """

    asked: int = 0
    granted: int = 0
    refused: int = 0
    given_up: int = 0

    @property
    def waiting(self) -> int:
        """Those of which nothing is known yet."""
        return self.asked - self.granted - self.refused - self.given_up


@attrs.define
class Outages:
    """A site's units of one type: how many failed, and were repaired; how many were ``maintained``, in a window of
    maintenance. ``out`` has those out of service over time; they are ``broken``, or ``in_window``.
    """

    failed: int = 0
    repaired: int = 0
    maintained: int = 0
    broken: Series = attrs.Factory(Series)
    in_window: Series = attrs.Factory(Series)

    @property
    def out(self) -> Series:
        """Those out of service over time. Made anew."""
        return summed((self.broken, self.in_window))


class _Served(NamedTuple):
    """What a site serves of one lease."""

    holder: str
    type: str
    units: int
    end: Instant


class Recorder:
    """Keeps series over time; :meth:`observe` is what a world calls for each commit."""

    def __init__(
        self,
        roles: Mapping[str, str],
        log: TextIO | None = None,
        *,
        leave: Mapping[str, Duration] | None = None,
        switched: Iterable[str] = (),
        requests: RequestBook | None = None,
        mappers: MapperFaults | None = None,
        start: Instant = 0,
        logs: LogKind = "all",
    ) -> None:
        """``roles`` maps actor names to roles; the transition log goes to ``log`` as CSV, if given, or what ``logs``
        says of it. ``leave`` has the
        ``leave_time`` of guests. ``switched`` are sites whose units can be switched on and off: ``energy`` has the
        account of each. ``requests`` and ``mappers`` are told what concerns them, which began at ``start``.
        """
        self._roles = dict(roles)
        self._leave = dict(leave or {})
        guests = [name for name, role in roles.items() if role == "guest"]
        self._leased: dict[str, dict[str, _Changes]] = {name: {} for name in guests}
        self._promised = {name: _Changes() for name in guests}
        self.usable: dict[str, Series] = {name: Series() for name in guests}
        self.in_use_by_type: dict[str, dict[str, Series]] = {n: {} for n, role in roles.items() if role == "authority"}
        """Units in use of each site, by type; of those that ever were."""
        self.outages: dict[str, dict[str, Outages]] = {n: {} for n, role in roles.items() if role == "authority"}
        """What failed at each site, by type; of those types of which anything did."""
        self.on_failure: Callable[[Instant, str, str], None] | None = None
        """Told the instant, the site and the unit that went out of service."""
        self._requests, self._mappers, self._start = requests, mappers, start
        self._out: dict[tuple[str, str], Series] = {}
        self.topologies: dict[str, Topologies] = {name: Topologies() for name in guests}
        self.reported: dict[str, dict[str, Series]] = {}
        """Numbers that the mappers of actors report, by actor and name."""
        self.calendar = CalendarBook()
        self.energy: dict[str, EnergyAccount] = {name: EnergyAccount() for name in switched}
        self.transitions = 0
        self.flips = 0
        """How often a unit began to be set up for a lease: for its first holder, for another one, or in the place of a
        unit that failed. Units that stay with an extended lease don't flip."""
        self._served: dict[tuple[str, str], _Served] = {}
        self._joined: set[tuple[str, str]] = set()
        self._held: dict[tuple[str, str], tuple[str, str, str]] = {}
        self._users: Counter[tuple[str, str]] = Counter()
        self._planned: dict[tuple[str, str], str] = {}
        self._logs = logs
        self._log = csv.writer(log, lineterminator="\n") if log is not None else None
        if self._log is not None:
            self._log.writerow(["at", "actor", *list(LOG_COLUMNS)[1:]])

    @property
    def leased_by_type(self) -> dict[str, dict[str, Series]]:
        """Units held by each guest, by type. Made anew from what was seen so far: ask once, when the run is over."""
        return {name: {kind: one.series() for kind, one in types.items()} for name, types in self._leased.items()}

    @property
    def promised(self) -> dict[str, Series]:
        """Units that each guest was to have by the terms of its leases. Made anew like :attr:`leased_by_type`."""
        return {name: changes.series() for name, changes in self._promised.items()}

    def report(self, now: Instant, actor: str, name: str, value: float) -> None:
        """The mapper of an actor reports a number."""
        self.reported.setdefault(actor, {}).setdefault(name, Series()).append(now, value)

    def observe(self, now: Instant, actor: str, changes: Sequence[Change]) -> None:
        """Take in one commit of one actor."""
        role = self._roles[actor]
        if actor in self.energy:
            self.energy[actor].observe(now, changes)
        lines: list[Sequence[object]] = []
        for table, key, row in changes:
            if table == LOG:
                assert row is not None, "log rows are only ever added"
                self.transitions += 1
                self.flips += row[2] == "unit setup"
                if role == "guest" and self._requests is not None:
                    self._requests.logged(now, actor, row)
                if row[2] == "mapper" and self._mappers is not None:
                    self._mappers.add(format_duration(now - self._start), actor, row[4], words(read(row[5])))
                if self._log is not None and (self._logs == "all" or self._is_logged(role, row)):
                    lines.append((row[0], actor, *row[1:]))
            elif table == "units":
                if role == "guest":
                    self._guest_unit(now, actor, key, "" if row is None else row[3])
                elif role == "authority":
                    self._site_unit(now, actor, key, row)
            elif table == "leases" and role == "authority":
                self._site_lease(now, actor, key, row)
            elif table == "leases" and role == "guest" and row is not None and self._requests is not None:
                self._requests.lease(actor, row)
            elif table == "plans" and role == "guest" and row is not None:
                self._topology(actor, key, row[2])
        if lines and self._log is not None:
            self._log.writerows(lines)

    def _is_logged(self, role: str, row: Row) -> bool:
        """Whether a line is in a log that has not all."""
        return not str(row[2]).startswith("unit ") and (self._logs == "leases" or role == "guest")

    def _guest_unit(self, now: Instant, guest: str, unit: str, state: str) -> None:
        if (state == "joined") != ((guest, unit) in self._joined):
            (self._joined.add if state == "joined" else self._joined.remove)((guest, unit))
            self.usable[guest].add(now, 1 if state == "joined" else -1)

    def _site_unit(self, now: Instant, site: str, unit: str, row: Row | None) -> None:
        before = self._held.get((site, unit))
        host = SiteUnit.from_row(row).host if row is not None and "." in unit else ""  # machines are named HOST.NUMBER
        busy = row is not None and row[3] not in (au.FREE, au.OUT)
        after = (row[2], host or unit, row[1]) if row is not None and busy else None
        if before != after:
            if after is None:
                del self._held[site, unit]
            else:
                self._held[site, unit] = after
                self._use(now, site, unit, after, 1)
            if before is not None:
                self._use(now, site, unit, before, -1)
            self.calendar.used(now, site, unit, after)
        if host:
            return
        if row is not None and not busy:
            self.calendar.unit(site, row[2], unit)
        if row is not None and (row[3] == au.OUT) != ((site, unit) in self._out):
            self._in_service(now, site, unit, row)

    def _in_service(self, now: Instant, site: str, unit: str, row: Row) -> None:
        """A unit is out of service, or in service again."""
        outages = self.outages[site].setdefault(row[2], Outages())
        if (site, unit) in self._out:
            series = self._out.pop((site, unit))
            outages.repaired += series is outages.broken
            series.add(now, -1)
            self.calendar.out(now, site, unit, None)
            return
        reason = read(row[5])
        in_window = reason is not None and reason.code in (Code.MAINTENANCE, Code.DRAINED)
        series = self._out[site, unit] = outages.in_window if in_window else outages.broken
        series.add(now, 1)
        self.calendar.out(now, site, unit, (row[2], in_window))
        outages.maintained += in_window
        outages.failed += not in_window
        if not in_window and self.on_failure is not None:
            self.on_failure(now, site, unit)

    def _use(self, now: Instant, site: str, unit: str, held: tuple[str, str, str], change: int) -> None:
        """One thing more, or less, is at a place, which is in use as long as anything is: a unit that is a place by
        itself has one at a time.
        """
        type_, place, _ = held
        if place != unit:
            before = self._users[site, place]
            self._users[site, place] += change
            if (before > 0) == (before + change > 0):
                return
        by_type = self.in_use_by_type[site]
        if type_ not in by_type:
            by_type[type_] = Series()
        by_type[type_].add(now, change)

    def _topology(self, guest: str, topology: str, state: str) -> None:
        before, counts = self._planned.get((guest, topology)), self.topologies[guest]
        self._planned[guest, topology] = state
        counts.asked += before is None
        if before != state and before not in (COMMITTED, FAILED, CLOSED):
            counts.granted += state == COMMITTED
            counts.refused += state == FAILED
            counts.given_up += state == CLOSED

    def _site_lease(self, now: Instant, site: str, lease: str, row: tuple[object, ...] | None) -> None:
        before = self._served.get((site, lease))
        if row is None:
            after = None
        else:
            _, live, _, holder, kind, state, pending, wanted, start, end, *_ = row
            serving = (state == au.ACTIVE or pending == au.PRIMING) and pending != au.CLOSING
            after = _Served(str(holder), str(kind), int(str(wanted)), int(str(end))) if live and serving else None
        if after is not None:
            self._served[site, lease] = after
            if before is None or before.units != after.units:
                self.calendar.leased(now, site, lease, after[:3])
            if after.holder in self._leased:
                change = after.units - (before.units if before is not None else 0)
                self._count(after, change, now, int(str(start)) if before is None else now)
        elif before is not None:
            del self._served[site, lease]
            left = now < before.end <= now + self._leave.get(before.holder, 0)
            at = before.end if left else now
            self.calendar.leased(at, site, lease, None)
            if before.holder in self._leased:
                self._count(before, -before.units, at, at)

    def _count(self, served: _Served, change: int, at: Instant, promised_at: Instant) -> None:
        if change:
            by_type = self._leased[served.holder]
            if served.type not in by_type:
                by_type[served.type] = _Changes()
            by_type[served.type].add(at, change)
            self._promised[served.holder].add(promised_at, change)


def total(types: Mapping[str, Series]) -> Series:
    """The count of all types."""
    if len(types) == 1:
        return next(iter(types.values()))
    return summed(types.values())
