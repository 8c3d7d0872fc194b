"""Property lists: what passes between plug-ins through the core, which does not look inside.

Four kinds, told apart by where they travel (paper section 3.1): *request* properties go from guest to
broker, *resource* properties from site to broker to guest, *configuration* properties from guest to site,
and *unit* properties come back from the site with each unit. All are flat lists of string pairs.

Units of one type that have equal attributes, as far as anybody can tell before they are used, are of one *class*. It is
named by the digest of its attributes (:func:`digest_properties`): a site can change what its units are without changing
what a claim of before says. How many units of which classes something has is :data:`Counts`. What is counted by class
holds by class: a total within its limits can overbook one class.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Final, TypeAlias

import msgpack
from attrs import Attribute

from leasekit.core.errors import TicketError
from leasekit.core.reasons import Code

Properties: TypeAlias = Mapping[str, str]
"""Read-only string pairs."""

EMPTY: Final[Properties] = {}

PROPERTIES_MAX = 256
"""The most pairs in one list."""
KEY_MAX = 128
"""The longest key, in characters."""
VALUE_MAX = 16_384
"""The longest value, in characters (a public key or a short script fits; an image does not)."""
BYTES_MAX = 65_536
"""The most bytes of one list, keys and values in UTF-8: an actor keeps them, in memory and in its store."""


def check_properties(value: object, where: str) -> dict[str, str]:
    """``value`` as a property list of its own.

    Raises ``ValueError`` that names ``where``, the key, what was found and what is allowed.
    """
    if not isinstance(value, Mapping):
        raise ValueError(f"{where}: found {type(value).__name__}, expected a table of string pairs")
    if len(value) > PROPERTIES_MAX:
        raise ValueError(f"{where}: found {len(value)} pairs, at most {PROPERTIES_MAX} are allowed")
    for key, text in value.items():
        if not isinstance(key, str) or not 0 < len(key) <= KEY_MAX:
            raise ValueError(f"{where}: key {key!r} must be text of 1 to {KEY_MAX} characters")
        if not isinstance(text, str):
            raise ValueError(f"{where}.{key}: found {text!r} ({type(text).__name__}), property values are strings")
        if len(text) > VALUE_MAX:
            raise ValueError(f"{where}.{key}: found {len(text)} characters, at most {VALUE_MAX} are allowed")
        if not (is_text(key) and is_text(text)):
            raise ValueError(
                f"{where}: found {key!r:.40} = {text!r:.40}, which is not Unicode: half of a surrogate pair"
            )
    check_bytes(value, f"{where}: ")
    return dict(value)


def check_bytes(pairs: Properties, where: str = "") -> None:
    """Raises ``ValueError`` for a property list that takes more than :data:`BYTES_MAX`, with what was found."""
    characters = sum(map(len, pairs)) + sum(map(len, pairs.values()))
    if 4 * characters <= BYTES_MAX:  # which almost all have, whatever they are
        return
    found = sum(len(text.encode()) for pair in pairs.items() for text in pair)
    if found > BYTES_MAX:
        raise ValueError(f"{where}found {found} bytes of keys and values, at most {BYTES_MAX} are allowed")


def valid_properties(_: object, field: Attribute[Properties], value: Properties) -> None:
    """The validator of a setting that is a property list."""
    check_properties(value, field.name)


_CONTROLS: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_CONTROLS_IN_TEXT: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def is_plain(name: str) -> bool:
    """Whether a name has no control characters: it may come to be in a log, a file or an environment."""
    return name.isprintable() or _CONTROLS.search(name) is None


def check_plain(properties: Properties, where: str) -> None:
    """Refuse control characters in what a guest says, but for newlines and tabs in values.

    Raises ``ValueError`` that names ``where``, the key and what was found.
    """
    for key, text in properties.items():
        if not is_plain(key):
            raise ValueError(f"{where}: key {key!r:.80} has a control character, which no key may have")
        found = None if text.isprintable() else _CONTROLS_IN_TEXT.search(text)
        if found is not None:
            raise ValueError(
                f"{where}.{key}: found the control character {found[0]!r} at {found.start()}, allowed are newline and "
                "tab"
            )


def is_text(value: str) -> bool:
    """Whether UTF-8 can hold it: Python's strings may hold halves of surrogate pairs, messages and rows may not."""
    if value.isascii():
        return True
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def digest_properties(properties: Properties) -> bytes:
    """SHA-256 over the sorted pairs: what a claim carries in place of its site-defined properties; empty for none."""
    if not properties:
        return b""
    packed: bytes = msgpack.packb(sorted(properties.items()))
    return sha256(packed).digest()


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
    """So many units of what is ``free``: as many as can be of ``first``, then more of its classes, then of the others
    in their order. None if there are not so many.
    """
    found: dict[bytes, int] = {}
    for class_, most in (*first, *((class_, units) for class_, _ in first), *free.items()):
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


SAVES: Final = "driver.save"
"""The resource property by which a site says (``true``) that units of a type are saved when a lease is suspended."""
CAPS: Final = "driver.cap"
"""The one by which it says that machines on hosts of a type can be given less CPU, or more, while they are up."""
MIGRATES: Final = "driver.migrate"
"""The one by which it says that they can be moved to another host."""


def saves(resource: Properties) -> bool:
    """Whether the resource properties of a type say that its units are saved when a lease is suspended."""
    return resource.get(SAVES) == "true"
