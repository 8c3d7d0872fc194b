"""The parts that an actor is made of, found by walking through what it is wired with."""

from __future__ import annotations

from collections.abc import Iterator
from types import FunctionType, MethodType
from typing import Any, Final

from leasekit.actors.kernel import kept_by

PARTS: Final = "leasekit.actors."
"""Where parts are defined. What other packages define (mappers, timetables, claim trees) is not walked through."""
SETTINGS: Final = "leasekit.actors.settings"


def parts_of(actor: Any) -> list[Any]:
    """The actor and its parts, also those that only a callable leads to; always in the same order."""
    found: list[Any] = []
    seen: set[int] = set()
    waiting = [actor]
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, MethodType):
            waiting.append(value.__self__)
        elif isinstance(value, FunctionType):
            waiting += [cell.cell_contents for cell in value.__closure__ or ()]
        elif isinstance(value, dict):
            waiting += value.values()
        elif isinstance(value, (list, tuple)):
            waiting += value
        elif type(value).__module__.startswith(PARTS) and type(value).__module__ != SETTINGS:
            found.append(value)
            waiting += [held for _, held in wiring(value)]
    return found


def attributes(part: Any) -> Iterator[tuple[str, Any]]:
    """The attributes of a part and their values."""
    slots = [name for kind in type(part).__mro__ for name in getattr(kind, "__slots__", ())]
    yield from ((name, getattr(part, name)) for name in slots if name != "__weakref__" and hasattr(part, name))
    yield from getattr(part, "__dict__", {}).items()


def wiring(part: Any) -> list[tuple[str, Any]]:
    """What a part has beside what it declares to keep: what it uses, what it was told, whom it tells."""
    kept = {name for names in kept_by(part) for name in names}
    return [(name, value) for name, value in attributes(part) if name not in kept]
