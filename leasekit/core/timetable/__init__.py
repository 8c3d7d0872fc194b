"""The timetable that every broker and authority decides with: how many units of a type are free when."""

from leasekit.core.timetable.capacity import Shortfall, Timetable
from leasekit.core.timetable.classed import ClassedTimetable

__all__ = ["ClassedTimetable", "Shortfall", "Timetable"]
