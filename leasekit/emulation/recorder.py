"""What is recorded of an emulation, from the rows that actors commit: it reads the records that a daemon stores.

For each guest three counts of units over time:

- ``leased``: what it held, as sites count it: from when a site begins to serve a term (its start, unless the ticket
  was redeemed later) to the term's end, or to where the lease was closed or cut short before. A guest that leaves just
  before the end, within its ``leave_time``, goes on holding until the end: leaving is a cost of leasing.
- ``promised``: the same, but from the start of the term even where the site began to serve it later.
- ``usable``: units that have joined and not begun to leave.

For each site: units in use (held from the start of setup to the end of teardown), and what became of their power. And
the transition log, streamed to a file.
"""

from __future__ import annotations

import csv
from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TextIO

from leasekit.core.leases import authority as au
from leasekit.core.schema import LOG, LOG_COLUMNS, Change
from leasekit.core.time import Duration, Instant
from leasekit.emulation.energy.account import EnergyAccount
from leasekit.emulation.metrics import Series


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


class _Served(NamedTuple):
    """What a site serves of one lease."""

    holder: str
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
    ) -> None:
        """``roles`` maps actor names to roles; the transition log goes to ``log`` as CSV, if given. ``leave`` has the
        ``leave_time`` of guests. ``switched`` are sites whose units can be switched on and off: ``energy`` has the
        account of each.
        """
        self._roles = dict(roles)
        self._leave = dict(leave or {})
        guests = [name for name, role in roles.items() if role == "guest"]
        self._leased = {name: _Changes() for name in guests}
        self._promised = {name: _Changes() for name in guests}
        self.usable: dict[str, Series] = {name: Series() for name in guests}
        self.in_use: dict[str, Series] = {n: Series() for n, role in roles.items() if role == "authority"}
        self.energy: dict[str, EnergyAccount] = {name: EnergyAccount() for name in switched}
        self.transitions = 0
        self.flips = 0
        """How often a unit began to be set up for a lease: for its first holder, for another one, or in the place of a
        unit that failed. Units that stay with an extended lease don't flip."""
        self._served: dict[tuple[str, str], _Served] = {}
        self._joined: set[tuple[str, str]] = set()
        self._held: set[tuple[str, str]] = set()
        self._log = csv.writer(log, lineterminator="\n") if log is not None else None
        if self._log is not None:
            self._log.writerow(["at", "actor", *list(LOG_COLUMNS)[1:]])

    @property
    def leased(self) -> dict[str, Series]:
        """Units held by each guest. Made anew from what has been seen so far: ask once, when the run is over."""
        return {name: changes.series() for name, changes in self._leased.items()}

    @property
    def promised(self) -> dict[str, Series]:
        """Units that each guest was to have by the terms of its leases. Made anew like :attr:`leased`."""
        return {name: changes.series() for name, changes in self._promised.items()}

    def observe(self, now: Instant, actor: str, changes: Sequence[Change]) -> None:
        """Take in one commit of one actor."""
        role = self._roles[actor]
        if actor in self.energy:
            self.energy[actor].observe(now, changes)
        for table, key, row in changes:
            if table == LOG:
                assert row is not None, "log rows are only ever added"
                self.transitions += 1
                self.flips += row[2] == "unit setup"
                if self._log is not None:
                    self._log.writerow([row[0], actor, *row[1:]])
            elif table == "units":
                state = "" if row is None else row[3]
                if role == "guest":
                    self._guest_unit(now, actor, key, state)
                elif role == "authority":
                    self._site_unit(now, actor, key, state)
            elif table == "leases" and role == "authority":
                self._site_lease(now, actor, key, row)

    def _guest_unit(self, now: Instant, guest: str, unit: str, state: str) -> None:
        self._member(self._joined, self.usable[guest], now, (guest, unit), state == "joined")

    def _site_unit(self, now: Instant, site: str, unit: str, state: str) -> None:
        held = state not in ("", au.FREE, au.OUT)
        self._member(self._held, self.in_use[site], now, (site, unit), held)

    @staticmethod
    def _member(
        members: set[tuple[str, str]], series: Series, now: Instant, item: tuple[str, str], belongs: bool
    ) -> None:
        if belongs and item not in members:
            members.add(item)
            series.add(now, 1)
        elif not belongs and item in members:
            members.remove(item)
            series.add(now, -1)

    def _site_lease(self, now: Instant, site: str, lease: str, row: tuple[object, ...] | None) -> None:
        before = self._served.get((site, lease))
        if row is None:
            after = None
        else:
            _, live, _, holder, _, state, pending, wanted, start, end, *_ = row
            serving = (state == au.ACTIVE or pending == au.PRIMING) and pending != au.CLOSING
            after = _Served(str(holder), int(str(wanted)), int(str(end))) if live and serving else None
        if after is not None:
            self._served[site, lease] = after
            if after.holder in self._leased:
                change = after.units - (before.units if before is not None else 0)
                self._count(after.holder, change, now, int(str(start)) if before is None else now)
        elif before is not None:
            del self._served[site, lease]
            if before.holder in self._leased:
                left = now < before.end <= now + self._leave.get(before.holder, 0)
                at = before.end if left else now
                self._count(before.holder, -before.units, at, at)

    def _count(self, guest: str, change: int, at: Instant, promised_at: Instant) -> None:
        if change:
            self._leased[guest].add(at, change)
            self._promised[guest].add(promised_at, change)
