"""Property lists, what passes between plug-ins through the core, which does not look inside; and capacity vectors: what
a host has of each resource, what one machine on it takes, and how both are counted.

Four kinds, told apart by where they travel (paper section 3.1): *request* properties go from guest to
broker, *resource* properties from site to broker to guest, *configuration* properties from guest to site,
and *unit* properties come back from the site with each unit. All are flat lists of string pairs.

Units of one type that have equal attributes, as far as anybody can tell before they are used, are of one *class*. It is
named by the digest of its attributes (:func:`digest_properties`): a site can change what its units are without changing
what a claim of before says. How many units of which classes something has is :data:`Counts`. What is counted by class
holds by class: a total within its limits can overbook one class.

A *host* is a unit whose attributes say what it has (``capacity.cpu`` in millicores, ``capacity.memory`` in MiB, any
other resource by its name). Its type is *divided*: a lease has whole hosts of it, or *machines*, each of which needs a
part of one host (``needs.cpu``, ``needs.memory``, ...). ``capacity.core`` and ``needs.core`` are what one core gives,
and what each virtual core needs: they are compared, not added up.

CPU is *fluid*: a host may have less of it than its machines need in all. It counts with what is guaranteed: the need
times the least yield of the host's class (``least_yield``, in thousandths, 1000 if there is none), rounded up. All
other resources are *rigid* and count whole.

What is counted of a divided type is counted by class and resource: :func:`weigh` makes of so many units of each class,
and of what one of them takes, the amounts that timetables, calendars and the claim tree add up.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from hashlib import sha256
from typing import Final, NamedTuple, TypeAlias

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
    pairs = of.items() if isinstance(of, dict | Mapping) else of  # most are: only others are asked at length
    return tuple(sorted([(class_, units) for class_, units in pairs if units]))


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


Vector: TypeAlias = tuple[tuple[str, int], ...]
"""So much of each resource, in the order of their names; none of them 0."""
Sizes: TypeAlias = tuple[Vector, ...]
"""What one unit takes, for each class that is counted, in their order. Empty: units of a type that is not divided."""
CAPACITY: Final = "capacity."
NEEDS: Final = "needs."
LEAST_YIELD: Final = "least_yield"
CPU: Final = "cpu"
CORE: Final = "core"
MEMORY: Final = "memory"
WHOLE: Final[Vector] = ()
"""The needs of who wants a whole host."""
THOUSAND: Final = 1000
AMOUNT_MAX: Final = 2**53 - 1
LARGEST: Final = 2**22 - 1
"""The most that one unit takes of a resource: so many of as many units as a claim counts stay below the former."""
RESOURCES_MAX: Final = 8
"""The most resources of a vector."""


def vector(properties: Properties, prefix: str, where: str = "properties") -> Vector:
    """The vector that these properties say under a prefix. Raises ``ValueError`` that names the key, what was found and
    what is allowed.
    """
    found = []
    for key, text in properties.items():
        if not key.startswith(prefix):
            continue
        if not (text.isascii() and text.isdecimal() and len(text) < 10 and int(text) <= LARGEST):
            raise ValueError(f"{where}.{key}: found {text!r:.80}, expected a whole number from 0 to {LARGEST}")
        if int(text):
            found.append((key[len(prefix) :], int(text)))
    if len(found) > RESOURCES_MAX:
        raise ValueError(f"{where}.{prefix}*: found {len(found)} resources, at most {RESOURCES_MAX} are allowed")
    return tuple(sorted(found))


_SIZES: Final = {"": 1, "m": 1, "mib": 1, "g": 1024, "gib": 1024, "t": 1024**2, "tib": 1024**2}


def read_amount(resource: str, value: object) -> int:
    """How much of a resource a person means: of CPU (and of one core) in cores, down to thousandths; of memory in MiB,
    or with MiB, GiB or TiB behind it; of another as a whole number. Raises ``ValueError`` that says what is allowed.
    """
    text = str(value).strip().lower()
    number = text.rstrip("abcdefghijklmnopqrstuvwxyz")
    factor = _SIZES.get(text[len(number) :]) if resource == MEMORY else 1 if number == text else None
    factor = THOUSAND if factor and resource in (CPU, CORE) else factor
    try:
        found = float(number) * (factor or 0)
    except ValueError:
        found = -1.0
    if not factor or not 0 < found <= LARGEST or found != int(found):
        allowed = {CPU: "cores, such as 0.5", CORE: "cores, such as 1"}.get(resource, "a whole number above 0")
        allowed = "MiB, or GiB or TiB behind it, such as 4GiB" if resource == MEMORY else allowed
        if factor and found > LARGEST:
            most = LARGEST / THOUSAND if resource in (CPU, CORE) else LARGEST
            allowed = f"at most {most}{' MiB' if resource == MEMORY else ''}"
        raise ValueError(f"{resource}: found {value!r:.40}, expected {allowed}")
    return int(found)


def host_attributes(capacity: Mapping[str, object], least_yield: int = THOUSAND) -> Properties:
    """The attributes of hosts with so much of each resource, as people write it, and a least yield in thousandths.
    Raises ``ValueError`` that says what was found and what is allowed.
    """
    for name in capacity:
        if not re.fullmatch("[a-z][a-z0-9_]{0,31}", name):
            raise ValueError(f"found the resource {name!r:.40}, names have small letters, digits and _")
    has = tuple(sorted((name, read_amount(name, much)) for name, much in capacity.items()))
    if not capacity.keys() - {CORE}:
        found = "core only" if capacity else "nothing"
        raise ValueError(f"found {found}, expected what the host has in all: cpu, memory, ...")
    if len(has) > RESOURCES_MAX:
        raise ValueError(f"found {len(has)} resources, at most {RESOURCES_MAX} are allowed")
    return {**as_properties(has, CAPACITY), **({LEAST_YIELD: str(least_yield)} if least_yield < THOUSAND else {})}


def written(of: Vector) -> str:
    """A vector as people write it: ``cpu=2,memory=4GiB``."""
    return ",".join(f"{name}={written_amount(name, much)}" for name, much in of)


def written_amount(resource: str, much: int) -> str:
    """So much of a resource as people write it: CPU in virtual CPUs, memory in MiB or GiB."""
    if resource in (CPU, CORE):
        return f"{much / THOUSAND:g}"
    if resource == MEMORY:
        return f"{much // 1024}GiB" if much % 1024 == 0 else f"{much}MiB"
    return str(much)


def amount(of: Vector, resource: str) -> int:
    """How much of a resource a vector has."""
    return next((much for name, much in of if name == resource), 0)


def added(several: Iterable[Vector]) -> Vector:
    """What vectors add up to."""
    found: Counter[str] = Counter()
    for each in several:
        found.update(dict(each))
    return tuple(sorted(found.items()))


def is_within(less: Vector, more: Vector) -> bool:
    """Whether ``more`` has at least as much of each resource as ``less``."""
    return all(much <= amount(more, name) for name, much in less)


def most_of(one: Vector, other: Vector) -> Vector:
    """The least that has as much of each resource as either."""
    return tuple(sorted((name, max(amount(one, name), much)) for name, much in {**dict(one), **dict(other)}.items()))


def ratio(mine: Vector, theirs: Vector) -> int:
    """How many units of one size are missing at most where one of another size is taken, rounded up."""
    return max((-(-much // amount(mine, name)) for name, much in theirs if amount(mine, name)), default=0)


class HostClass(NamedTuple):
    """Hosts with equal attributes: what each has (``capacity``), what one core of it gives (0: nobody says), and the
    least yield of CPU, in thousandths.
    """

    capacity: Vector
    core: int
    least_yield: int

    def size(self, needs: Vector) -> Vector | None:
        """What one machine with these needs takes of a host, or a whole host (:data:`WHOLE`); None if a host has not
        as much.
        """
        if not needs:
            return self.capacity
        counted = tuple(one for one in needs if one[0] != CORE)
        if not counted or not is_within(counted, self.capacity):
            return None
        if self.core and max(amount(needs, CORE), 0) > self.core:
            return None
        return tuple((name, self.guaranteed(much) if name == CPU else much) for name, much in counted)

    def holds(self, needs: Vector) -> int:
        """How many machines with these needs fit in one host that has nothing else; 1 whole host."""
        size = self.size(needs)
        return min(amount(self.capacity, name) // much for name, much in size) if size else 0

    def guaranteed(self, cpu: int) -> int:
        """What is guaranteed of a need of CPU."""
        return -(-cpu * self.least_yield // THOUSAND)


@lru_cache(maxsize=256)  # a peer may offer units with many attributes
def _host_class(attributes: frozenset[tuple[str, str]]) -> HostClass | None:
    properties = dict(attributes)
    capacity = vector(properties, CAPACITY)
    if not capacity:
        return None
    least = int(properties.get(LEAST_YIELD, THOUSAND))
    return HostClass(tuple(one for one in capacity if one[0] != CORE), amount(capacity, CORE), least)


def host_class(attributes: Properties) -> HostClass | None:
    """What hosts with these attributes have; None for units that are no hosts. Raises ``ValueError``."""
    if not any(key.startswith(CAPACITY) for key in attributes):
        return None
    return _host_class(frozenset(attributes.items()))


class HostClasses(dict[bytes, HostClass]):
    """The classes of a divided type, by name."""

    @classmethod
    def of(cls, attributes: Mapping[bytes, Properties]) -> HostClasses:
        """Those of the classes that are hosts."""
        return cls((name, one) for name, has in attributes.items() if (one := host_class(has)) is not None)

    def most(self, counted: Counts, needs: Vector) -> int:
        """How many units with these needs so many hosts of each class hold, each by itself."""
        return sum(units * self[class_].holds(needs) for class_, units in counted if class_ in self)

    def portion(self, counted: Counts, needs: Vector) -> Portion:
        """So many units of each class, with these needs. Raises ``ValueError`` if a class has no room for one."""
        return Portion(counted, self.sizes(counted, needs), needs) if self else Portion(counted)

    def sizes(self, counted: Counts, needs: Vector) -> Sizes:
        """What one unit of each counted class takes. Raises ``ValueError`` if a class has no room for one."""
        found = tuple(self[class_].size(needs) for class_, _ in counted if class_ in self)
        if None in found or len(found) not in (0, len(counted)):
            raise ValueError("a host has less than one machine needs")
        return tuple(one for one in found if one is not None)


class Portion(NamedTuple):
    """So many units of each class: what each takes where they are divided, and what was asked for one."""

    classes: Counts
    sizes: Sizes = ()
    needs: Vector = WHOLE

    @property
    def weights(self) -> Counts:
        """What they take, as it is booked."""
        return weigh(self.classes, self.sizes)


NO_HOSTS: Final = HostClasses()
"""Those of a type that is not divided."""


def pool(class_: bytes, resource: str) -> bytes:
    """Under which name a resource of a class is counted."""
    return _pool(class_, resource)


@lru_cache(maxsize=4096)
def _pool(class_: bytes, resource: str) -> bytes:
    return sha256(class_ + resource.encode()).digest()


def weigh(counted: Counts, sizes: Sizes) -> Counts:
    """The amounts that so many units take: of each resource of their classes. Units that are not divided are counted
    as they are.
    """
    if not sizes:
        return counted
    return counts(
        (pool(class_, name), units * much)
        for (class_, units), size in zip(counted, sizes, strict=True)
        for name, much in size
    )


def needs_of(properties: Properties) -> Vector:
    """What each machine of a request needs; :data:`WHOLE` if it says nothing. Raises ``ValueError``."""
    return vector(properties, NEEDS)


def as_properties(of: Vector, prefix: str) -> Properties:
    """A vector as properties say it."""
    return {f"{prefix}{name}": str(much) for name, much in of} if of else EMPTY
