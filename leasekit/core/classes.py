"""Classes of units: the units of one type that have equal attributes, as far as anybody can tell before they are used.

A class is named by the digest of its attributes (:func:`~leasekit.core.properties.digest_properties`): a site can
change what its units are without changing what a claim of before says. How many units of which classes something has
is :data:`Counts`. What is counted by class holds by class: a total within its limits can overbook one class.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeAlias

from leasekit.core.errors import TicketError
from leasekit.core.properties import Properties, digest_properties
from leasekit.core.reasons import Code

Counts: TypeAlias = tuple[tuple[bytes, int], ...]
"""How many units of each class, in the order of the classes; none of them 0."""
CLASSES_MAX: Final = 64
"""The most classes that one claim counts."""
NO_UNITS: Final[Counts] = ()


def counts(of: Mapping[bytes, int] | Iterable[tuple[bytes, int]]) -> Counts:
    """Numbers by class in order, without those of which there are none."""
    pairs = of.items() if isinstance(of, Mapping) else of
    return tuple(sorted((class_, units) for class_, units in pairs if units))


def total(of: Counts) -> int:
    """How many units there are of all classes."""
    return of[0][1] if len(of) == 1 else sum(units for _, units in of)


def count_of(of: Counts, class_: bytes) -> int:
    """How many units there are of one class."""
    for known, units in of:
        if known == class_:
            return units
    return 0


def minus(more: Counts, less: Counts) -> Counts:
    """What ``more`` has beyond ``less``, class by class."""
    if more == less:
        return NO_UNITS
    return counts((class_, max(0, units - count_of(less, class_))) for class_, units in more)


def first_of(of: Counts, units: int) -> Counts:
    """So many of these units: those of the first classes go in whole."""
    found = []
    for class_, number in of:
        taken = min(number, units)
        found.append((class_, taken))
        units -= taken
    return counts(found)


def chosen(units: int, free: Mapping[bytes, int], first: Counts = NO_UNITS) -> Counts:
    """So many units of what is ``free``: as many as can be of ``first``, then of the classes in their order. None if
    there are not so many.
    """
    found: dict[bytes, int] = {}
    for class_, most in (*first, *free.items()):
        taken = max(0, min(units, most, free.get(class_, 0) - found.get(class_, 0)))
        found[class_] = found.get(class_, 0) + taken
        units -= taken
    return NO_UNITS if units else counts(found)


def times(of: Counts, factor: int) -> Counts:
    """So many times as many units of each class; -1 takes them back."""
    return tuple([(class_, factor * units) for class_, units in of])


def fits(less: Counts, more: Counts) -> bool:
    """Whether ``more`` has at least as many units of each class as ``less``."""
    return all(units <= count_of(more, class_) for class_, units in less)


def attributes(shared: Properties, each: Sequence[Properties]) -> dict[bytes, Properties]:
    """What the units of each class have: what is ``shared`` by all classes, and what ``each`` has beside that. Without
    the latter there is one class.
    """
    whole = [{**shared, **own} for own in each] if each else [shared]
    return {digest_properties(one): one for one in whole}


def in_common(classes: Sequence[Properties]) -> tuple[Properties, tuple[Properties, ...]]:
    """What all classes have, and what each has beside that: how :func:`attributes` takes them."""
    if len(classes) == 1:
        return classes[0], ()
    shared = dict(set.intersection(*(set(one.items()) for one in classes))) if classes else {}
    return shared, tuple({key: text for key, text in one.items() if key not in shared} for one in classes)


def check_named(counted: Counts, shared: Properties, each: Sequence[Properties]) -> None:
    """Raises ``TicketError`` unless these are the attributes of the classes that a claim counts."""
    if {class_ for class_, _ in counted} != attributes(shared, each).keys():
        raise TicketError(Code.WRONG_PROPERTIES, "the resource properties are not those that the claim names")
