"""Who had what when in a run, kept while it runs, and written for who opens it: what a month's log says in a few
megabytes that are read at once.

The file has two msgpack objects: a head, which says of which run it is, and the tables. Instants are milliseconds of
the run's clock; the numbers of a table are little-endian columns, of 4 bytes, or 8 for instants and values.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgpack

from leasekit.core.signals import SignalSteps
from leasekit.core.time import Instant, Term
from leasekit.emulation.outputs import write_whole_file

VERSION: Final = 1
SUFFIX: Final = ".calendar"
LEASED, USED, OUT = "leased", "used", "out"
"""The tables: units that leases held; units in use by leases, from the beginning of their setup to the end of their
teardown; units out of service."""


class _Spells:
    """What lasted from an instant to another: of which class, ``of`` what (a lease, or why), and how many or which."""

    def __init__(self) -> None:
        self.classes, self.of, self.which = array("i"), array("i"), array("i")
        self.starts, self.ends = array("q"), array("q")

    def add(self, class_: int, of: int, which: int, start: Instant, end: Instant) -> None:
        """One that is over."""
        self.classes.append(class_)
        self.of.append(of)
        self.which.append(which)
        self.starts.append(start)
        self.ends.append(end)

    def _columns(self) -> tuple[array[int], ...]:
        return self.classes, self.of, self.which, self.starts, self.ends

    def plain(self) -> list[bytes]:
        """Its columns."""
        return [_bytes(column) for column in self._columns()]


class CalendarBook:
    """What is told of units and leases of sites, in order of time."""

    def __init__(self) -> None:
        self._classes: dict[tuple[str, str], dict[str, int]] = {}
        self._numbers: dict[tuple[str, str], int] = {}
        self._leases: dict[str, int] = {}
        self._holders: list[str] = []
        self._spells = {name: _Spells() for name in (LEASED, USED, OUT)}
        self._open: dict[tuple[str, str, str], tuple[int, int, int, Instant]] = {}

    def unit(self, site: str, type_: str, unit: str) -> tuple[int, int]:
        """The numbers of a unit's class, and of the unit there."""
        units = self._classes.setdefault((site, type_), {})
        return self._class(site, type_), units.setdefault(unit, len(units))

    def leased(self, at: Instant, site: str, lease: str, now: tuple[str, str, int] | None) -> None:
        """From now on a lease has so many units: ``now`` are its holder, its type and the units."""
        self._end(LEASED, site, lease, at)
        if now is not None:
            holder, type_, units = now
            number = self._lease(lease)
            self._holders[number] = holder
            self._open[LEASED, site, lease] = (self._class(site, type_), number, units, at)

    def used(self, at: Instant, site: str, unit: str, now: tuple[str, str, str] | None) -> None:
        """From now on a unit, or a machine, is in use: ``now`` are type, the unit or host that it takes, and lease."""
        self._end(USED, site, unit, at)
        if now is not None:
            class_, number = self.unit(site, *now[:2])
            self._open[USED, site, unit] = (class_, self._lease(now[2]), number, at)

    def out(self, at: Instant, site: str, unit: str, now: tuple[str, bool] | None) -> None:
        """From now on a unit is out of service: ``now`` are its type, and whether that was planned."""
        self._end(OUT, site, unit, at)
        if now is not None:
            class_, number = self.unit(site, now[0], unit)
            self._open[OUT, site, unit] = (class_, int(now[1]), number, at)

    def _class(self, site: str, type_: str) -> int:
        return self._numbers.setdefault((site, type_), len(self._numbers))

    def _lease(self, lease: str) -> int:
        number = self._leases.setdefault(lease, len(self._leases))
        if number == len(self._holders):
            self._holders.append("")
        return number

    def _end(self, table: str, site: str, key: str, at: Instant) -> None:
        begun = self._open.pop((table, site, key), None)
        if begun is not None and begun[3] < at:
            self._spells[table].add(*begun, at)

    def write(self, file: Path, run: str, stem: str, term: Term, series: Mapping[str, SignalSteps]) -> None:
        """Write what was up to the end of the ``term``, with ``series`` of the run by their names."""
        for table, site, key in [*self._open]:
            self._end(table, site, key, term.end)
        head = {"version": VERSION, "run": run, "stem": stem, "start": term.start, "end": term.end}
        body: dict[str, Any] = {
            "classes": [[*key, [*self._classes.get(key, ())]] for key in self._numbers],
            "leases": [*self._leases],
            "holders": self._holders,
            "tables": {name: spells.plain() for name, spells in self._spells.items()},
            "series": {name: _columns_of(steps) for name, steps in series.items()},
        }
        file.parent.mkdir(exist_ok=True)
        write_whole_file(file, msgpack.packb(head) + msgpack.packb(body))


def _columns_of(steps: SignalSteps) -> list[bytes]:
    """When it changes, and to what: a load that is sampled every five minutes stays the same for hours."""
    instants, values = array("q"), array("d")
    for at, value in steps:
        if not values or values[-1] != value:
            instants.append(at)
            values.append(value)
    return [_bytes(instants), _bytes(values)]


def _bytes(column: array[Any]) -> bytes:
    if sys.byteorder == "big":
        column = column[:]
        column.byteswap()
    return column.tobytes()
