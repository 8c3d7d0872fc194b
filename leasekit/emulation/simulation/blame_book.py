"""The book of blame: whose fault it was that units failed, and what their site made of it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from leasekit.core.drivers import LEASE, SITE
from leasekit.core.leases.outage import OVER, TRYING
from leasekit.core.schema import Row
from leasekit.core.steps import Action, ActionDone
from leasekit.core.time import Instant
from leasekit.emulation.simulation.checkers import Listening, must

IN_A_ROW: Final = re.compile(r"failed (\d+) times in a row")


class BlameChecker(Listening):
    """A unit goes out of service for no more failures than were its own. After a fault of the site no unit of the type
    is set up but one at a time, to try, until one has come up.
    """

    def __init__(self, sites: Sequence[str]) -> None:
        super().__init__()
        self._failed: dict[str, dict[str, int]] = {site: {} for site in sites}
        self._setups: dict[tuple[str, str], int] = {}
        self._outages: dict[tuple[str, str], str] = {}
        self._tried: dict[tuple[str, str], str] = {}

    def started(self, at: Instant, actor: str, action: Action) -> None:
        """Remember which actions are setups."""
        if actor in self._failed and action.op == "setup":
            self._setups[actor, action.unit] = action.number

    def ended(self, at: Instant, actor: str, done: ActionDone) -> None:
        """Count what is a unit's own fault, since it was last up. One that is counted twice harms nobody."""
        if self._setups.get((actor, done.unit)) == done.number:
            failed = self._failed[actor]
            own = not done.ok and done.blame not in (LEASE, SITE)
            failed[done.unit] = 0 if done.ok else failed.get(done.unit, 0) + own

    def broke(self, site: str, unit: str) -> None:
        """A unit that was up is down."""
        self._failed[site][unit] = self._failed[site].get(unit, 0) + 1

    def restarted(self, at: Instant, actor: str, made: Any) -> None:
        """What was heard before a crash may not have been kept: a success is heard again, and does not count yet."""
        for unit in list(self._failed.get(actor, ())):
            if made.units[unit].failures > self._failed[actor][unit]:
                self._failed[actor][unit] = made.units[unit].failures

    def committed(self, at: Instant, actor: str, rows: Sequence[Row]) -> None:
        """Look at what a site has decided, in order."""
        if actor not in self._failed:
            return
        for _, subject, event, _, after, why in rows:
            unit = why.partition(" ")[0]
            if event == "unit out" and (found := IN_A_ROW.search(why)):
                own = self._failed[actor].get(unit, 0)
                must(int(found[1]) <= own, f"{actor}: {why}; {own} of its failures were its own")
            elif event == "unit setup":
                self._check_setup(actor, unit)
            elif event == "outage" or (actor, subject) in self._outages:
                self._outages[actor, subject] = after.partition("/")[0]
                self._tried[actor, subject] = why if event == "try" else ""
                if self._outages[actor, subject] == OVER:
                    del self._outages[actor, subject]

    def _check_setup(self, site: str, unit: str) -> None:
        for (where, type_), state in self._outages.items():
            if where == site and unit.startswith(f"{type_}-"):
                tried = state == TRYING and self._tried[site, type_] == unit
                must(tried, f"{site} sets {unit} up, which waits until the site is mended: {type_} is {state}")
