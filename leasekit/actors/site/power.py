"""Switching free units off and on, as a site's mapper decides.

Each decision becomes an operation of the driver that the site has for the power of that type. A lease may be given a
unit that is not on: :mod:`.units` has it switched on first.
"""

from __future__ import annotations

from typing import Final

from leasekit.actors.site.units import Units
from leasekit.core.errors import CommandError
from leasekit.core.leases import authority as au
from leasekit.core.leases import power as pw
from leasekit.core.leases.machine import NONE
from leasekit.core.mappers import Power
from leasekit.core.reasons import of_mapper

EVENTS: Final = ("on", "off", "suspend")
"""What a mapper may decide."""


def switch(units: Units, decision: Power) -> None:
    """Do what a mapper decided. Raises ``CommandError``, with nothing changed, if that can't be done."""
    name, to = decision.unit, decision.to
    if name not in units:
        raise CommandError(f"there is no unit {name!r}")
    if to not in EVENTS:
        raise CommandError(f"unit {name}: found {to!r}, it can be switched to one of: {', '.join(EVENTS)}")
    unit = units[name]
    if not units.is_switched(unit):
        raise CommandError(f"unit {name}: no driver switches units of type {unit.type!r}")
    if unit.state != au.FREE or unit.promised:
        holder = unit.lease or unit.promised
        raise CommandError(f"unit {name} is {unit.state}{f', for lease {holder}' if holder else ''}: it stays on")
    if not pw.MACHINE.allows((unit.power, NONE), to):
        raise CommandError(f"unit {name} is {unit.power}: it can't be switched {to}")
    units.switch(unit, to, of_mapper(decision.reason) if decision.reason else None)
