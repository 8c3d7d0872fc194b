"""The timetable that every broker and authority decides with: how many units of a type are free when."""

from leasekit.core.timetable.capacity import Shortfall, Timetable

__all__ = ["Shortfall", "Timetable"]
