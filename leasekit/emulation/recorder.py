"""What is recorded of an emulation, from the rows that actors commit: it reads the records that a daemon stores.

For each guest: units leased to it (as sites count them, from the start of a term to its end), and units usable
(joined). For each site: units in use (held from setup to the end of teardown). And the transition log, streamed to
a file.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from typing import TextIO

from leasekit.core.leases import authority as au
from leasekit.core.leases.machine import NONE
from leasekit.core.schema import LOG, LOG_COLUMNS, Change
from leasekit.core.time import Instant
from leasekit.emulation.metrics import Series


class Recorder:
    """Keeps series over time; :meth:`observe` is what a world calls for each commit."""

    def __init__(self, roles: Mapping[str, str], log: TextIO | None = None) -> None:
        """``roles`` maps actor names to roles; the transition log goes to ``log`` as CSV, if given."""
        self._roles = dict(roles)
        self.leased: dict[str, Series] = {n: Series() for n, role in roles.items() if role == "guest"}
        self.usable: dict[str, Series] = {name: Series() for name in self.leased}
        self.in_use: dict[str, Series] = {n: Series() for n, role in roles.items() if role == "authority"}
        self.transitions = 0
        self.flips = 0
        self._counted: dict[tuple[str, str], tuple[str, int]] = {}
        self._joined: set[tuple[str, str]] = set()
        self._held: set[tuple[str, str]] = set()
        self._log = csv.writer(log, lineterminator="\n") if log is not None else None
        if self._log is not None:
            self._log.writerow(["at", "actor", *list(LOG_COLUMNS)[1:]])

    def observe(self, now: Instant, actor: str, changes: Sequence[Change]) -> None:
        """Take in one commit of one actor."""
        role = self._roles[actor]
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
        """Units count as leased from when the site starts to serve the term until it ends it."""
        holder, units = self._counted.pop((site, lease), ("", 0))
        count = 0
        if row is not None:
            _, live, _, holder_, _, state, pending, wanted, *_ = row
            in_term = live and (state == au.ACTIVE or pending == au.PRIMING) and pending != au.CLOSING
            if (
                in_term
                and state not in (au.CLOSED, au.FAILED)
                and pending in (NONE, au.PRIMING, au.EXTENDING, au.MODIFYING)
            ):
                holder, count = str(holder_), int(str(wanted))
                self._counted[site, lease] = (holder, count)
        if count != units and holder in self.leased:
            self.leased[holder].add(now, count - units)
