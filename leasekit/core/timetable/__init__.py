"""The timetable that every broker and authority decides with: how many units are free when, and which.

:class:`Timetable` counts units of a type; :class:`UnitTimetable` knows which named units are held.
"""

from leasekit.core.timetable.capacity import Shortfall, Timetable
from leasekit.core.timetable.units import UnitConflict, UnitTimetable

__all__ = ["Shortfall", "Timetable", "UnitConflict", "UnitTimetable"]
