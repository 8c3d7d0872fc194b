"""What a site's settings say of its units: which there are, of which type, with which properties."""

from __future__ import annotations

from collections.abc import Sequence

from leasekit.actors.settings import UnitGroup
from leasekit.core.properties import EMPTY, Properties


class Inventory:
    """The units that the settings name, in groups. Raises ``ValueError`` for a name used twice."""

    def __init__(self, groups: Sequence[UnitGroup]) -> None:
        self.groups = groups
        self.types: dict[str, Properties] = {}
        """The resource properties of each type."""
        self._switched = frozenset(group.type for group in groups if group.power)
        self._of: dict[str, tuple[str, Properties]] = {}
        self._count: dict[str, int] = {}
        for group in groups:
            self.types[group.type] = group.properties
            all_ = {**group.properties, **group.own} if group.own else group.properties
            for name in group.names:
                self.check(name, self._of.get(name, (group.type,))[0], group.type)
                self._count[group.type] = self._count.get(group.type, 0) + (name not in self._of)
                self._of[name] = (group.type, all_)

    @staticmethod
    def check(name: str, known: str, type_: str) -> None:
        """Raises ``ValueError`` for a unit that is known as of another type."""
        if known != type_:
            raise ValueError(
                f"unit {name!r} is of type {known!r} and of type {type_!r}: unit names are unique at a site"
            )

    def __contains__(self, name: object) -> bool:
        return name in self._of

    def properties(self, type_: str) -> Properties:
        """The resource properties of a type."""
        return self.types.get(type_, EMPTY)

    def properties_of(self, unit: str, type_: str) -> Properties:
        """Those of its type, and a unit's own. One that is not named any more has those of its type."""
        found = self._of.get(unit)
        return self.properties(type_) if found is None else found[1]

    def total(self, type_: str) -> int:
        """How many units of the type there are, in service or not."""
        return self._count.get(type_, 0)

    def is_switched(self, type_: str) -> bool:
        """Whether a driver can switch units of the type on and off."""
        return type_ in self._switched
