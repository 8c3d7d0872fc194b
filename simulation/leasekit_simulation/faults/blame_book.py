"""The book of blame: whose fault it was that units failed, and what their site made of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from leasekit.core.drivers import LEASE, SITE
from leasekit.core.leases.authority import UP
from leasekit.core.leases.outage import OVER, TRYING
from leasekit.core.reasons import Code, Reason, read
from leasekit.core.schema import Row
from leasekit.core.steps import Action, ActionDone
from leasekit.core.time import Instant
from leasekit_simulation.faults.checkers import Listening, must, unit_of


def _in_a_row(reason: Reason | None) -> int | None:
    """How often in a row a unit failed, if it is out for that."""
    causes = reason.causes if reason is not None else ()
    return next((cause.units for cause in causes if cause.code == Code.FAILED_IN_A_ROW), None)


class BlameChecker(Listening):
    """A unit goes out of service for no more failures than were its own. After a fault of the site no unit is set up
    for the lease that has met it but one at a time, to try, until one has come up. Other leases hear nothing of it.
    """

    def __init__(self, sites: Sequence[str]) -> None:
        super().__init__()
        self._sites = frozenset(sites)
        self._setups: dict[tuple[str, str], int] = {}
        self._own: set[tuple[str, str]] = set()
        self._failed: Counter[tuple[str, str]] = Counter()
        self._outages: dict[tuple[str, str], str] = {}
        self._tried: dict[tuple[str, str], str] = {}

    def started(self, at: Instant, actor: str, action: Action) -> None:
        """Remember which actions are setups."""
        if actor in self._sites and action.op == "setup":
            self._setups[actor, action.unit] = action.number

    def ended(self, at: Instant, actor: str, done: ActionDone) -> None:
        """Remember whose fault it is that a setup failed. It ends once: what a driver says after its timeout is not
        heard.
        """
        unit = actor, done.unit
        if self._setups.get(unit) == done.number:
            del self._setups[unit]
            self._own.discard(unit)
            if not done.ok and done.blame not in (LEASE, SITE):
                self._own.add(unit)

    def committed(self, at: Instant, actor: str, rows: Sequence[Row]) -> None:
        """Look at what a site has decided, in order. A failure counts when it is durable, as a success does: what was
        heard before a crash may be forgotten.
        """
        if actor not in self._sites:
            return
        for _, subject, event, before, after, why in rows:
            reason, unit = read(why), unit_of(why)
            if event == "unit up":
                self._failed[actor, unit] = 0
            elif event == "unit failed":
                self._failed[actor, unit] += before == UP or (actor, unit) in self._own
            elif event == "unit out" and (found := _in_a_row(reason)) is not None:
                own = self._failed[actor, unit]
                must(found <= own, f"{actor}: {why}; {own} of its failures were its own")
            elif event == "unit setup":
                self._check_setup(actor, subject, unit)
            elif event == "outage" or (actor, subject) in self._outages:
                self._outages[actor, subject] = after.partition("/")[0]
                self._tried[actor, subject] = unit if event == "try" else ""
                if self._outages[actor, subject] == OVER:
                    del self._outages[actor, subject]

    def _check_setup(self, site: str, lease: str, unit: str) -> None:
        for (where, outage), state in self._outages.items():
            if where == site and outage.endswith(f"/{lease}"):
                tried = state == TRYING and self._tried[site, outage] == unit
                must(tried, f"{site} sets {unit} up, which waits until the site is mended: {outage} is {state}")
