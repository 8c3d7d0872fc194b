"""Switching units on and off: what happens to one unit (:mod:`leasekit.core.leases.power`).

A unit that is being switched has that as its action, as it would have a setup: one at a time, under a number. So what
comes late of an older one changes nothing, and what is under way is done again after a restart.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from leasekit.core.leases import power as pw
from leasekit.core.leases.machine import NONE
from leasekit.core.leases.records import SiteUnit
from leasekit.core.reasons import Code, Reason
from leasekit.core.steps import ActionDone

Note = Callable[[SiteUnit, str, str, str, Reason | None], None]
"""Write down that a unit's power went by an event from one state to another, and why."""

FAILED: Final = "failed"

METERED: Final = frozenset({"gflops", "gflops_per_watt", "idle_watts", "watts"})
"""What a driver that switches a unit may say of it, beside the inventory."""


class UnitPower:
    """Moves the power of units; whose they are is for the layer above."""

    def __init__(self, note: Note, act: Callable[[SiteUnit, str, int], None]) -> None:
        self._note = note
        self._act = act

    @staticmethod
    def is_moving(unit: SiteUnit) -> bool:
        """Whether a driver is switching it."""
        return unit.power in pw.OPERATION

    def switch(self, unit: SiteUnit, event: str, why: Reason | None) -> None:
        """Begin what ``event`` (``on``, ``off``, ``suspend``) says. Raises ``ProtocolError`` where the table has no
        such row.
        """
        self._fire(unit, event, why)
        if unit.power in pw.OPERATION:
            self._act(unit, pw.OPERATION[unit.power], 0)

    def wake(self, unit: SiteUnit, why: Reason) -> None:
        """See to it that the unit comes on."""
        if unit.power not in (pw.ON, pw.STARTING, pw.RESUMING):
            self.switch(unit, "on", why)

    def done(self, unit: SiteUnit, done: ActionDone) -> str:
        """A driver has switched it, or failed to. Returns the power that it has now, or :data:`FAILED` if it was to be
        switched on and can't be used.
        """
        was = unit.power
        if done.ok:
            self._fire(unit, "done", None)
            read = {name: value for name, value in done.properties.items() if name in METERED}
            unit.reason, unit.metered = None, {**unit.metered, **read}
            return unit.power
        unit.reason = Reason(Code.POWER_FAILED, what=pw.OPERATION[was], detail=done.reason)
        self._fire(unit, "failed", unit.reason)
        if was == pw.RESUMING:  # what was in its memory is nobody's: it can as well be started afresh
            self.switch(unit, "on", unit.reason)
        return FAILED if was == pw.STARTING else unit.power

    def resume(self, unit: SiteUnit) -> None:
        """After a restart: have done again, under the same number, what was under way."""
        if unit.action and unit.power in pw.OPERATION:
            self._act(unit, pw.OPERATION[unit.power], unit.action)

    def _fire(self, unit: SiteUnit, event: str, why: Reason | None) -> None:
        before = unit.power
        unit.power = pw.MACHINE.next((before, NONE), event)[0]
        self._note(unit, event, before, unit.power, why)
