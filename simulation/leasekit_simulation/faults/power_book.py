"""The book of power: what drivers were told to do with the power of each unit, and what is known of it since."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from leasekit.core.leases.power import OPERATIONS, POWER_ON, RESUME
from leasekit.core.steps import Action, ActionDone
from leasekit.core.time import Instant
from leasekit_simulation.faults.checkers import Listening, must


@attrs.define
class PowerEntry:
    """What is known of one unit: whether it is surely on, and what it was last told, under which number."""

    on: bool = True
    op: str = ""
    number: int = 0
    held: str = ""


class PowerChecker(Listening):
    """Nothing is set up on a unit before it is on; the power of a unit that a lease has is not touched, from the start
    of its setup to the end of its teardown. What is done again after a crash has the number that it had.
    """

    def __init__(self, sites: Sequence[str]) -> None:
        super().__init__()
        self._sites = frozenset(sites)
        self.units: dict[tuple[str, str], PowerEntry] = {}

    def started(self, at: Instant, actor: str, action: Action) -> None:
        """Check an action at a site against what is known of the unit's power."""
        if actor not in self._sites:
            return
        unit = self.units.setdefault((actor, action.unit), PowerEntry())
        what = f"{actor}: {action.op} of {action.unit}, action {action.number}"
        again = action.number == unit.number
        must(again or action.number > unit.number, f"{what}: action {unit.number} was later")
        must(not again or action.op == unit.op, f"{what}: that was the number of its {unit.op}")
        if action.op in OPERATIONS:
            must(not unit.held, f"{what}: {unit.held} has it")
            must(not action.lease, f"{what}: it names a lease, {action.lease}")
            unit.on = False
        elif action.op == "setup":
            must(unit.on, f"{what}, for {action.lease}: it is not on, as far as anybody knows")
            unit.held = action.lease
        unit.op, unit.number = action.op, action.number

    def ended(self, at: Instant, actor: str, done: ActionDone) -> None:
        """A unit is on when its site has heard that it was switched on, and free when its teardown is done."""
        unit = self.units.get((actor, done.unit))
        if unit is None or done.number != unit.number:
            return
        if unit.op in (POWER_ON, RESUME) and done.ok:
            unit.on = True
        elif unit.op == "teardown":
            unit.held = ""
