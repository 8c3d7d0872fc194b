"""What a field of a message may hold: the limits, and the checks that keep them.

What comes in is a stranger's: every check says what was found and what is allowed, and never shows a value whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

from leasekit.core.claims.claim import DIGEST_BYTES, UNITS_MAX
from leasekit.core.claims.statements import STATEMENT_MAX
from leasekit.core.properties import KEY_MAX, PROPERTIES_MAX, VALUE_MAX
from leasekit.core.protocol.messages import HeldClaim, PlanPart, QuotedOffer, UnitState
from leasekit.core.time import INSTANT_MAX, Term, make_term
from leasekit.core.topology import REQUEST_BYTES_MAX

ID_MAX: Final = 80
"""The longest id of a lease or delegation, in characters."""
HELD_MAX: Final = 8
"""How many claims an answer to an offer shows."""
NAME_MAX: Final = 128
"""The longest name of a peer, slice, site, type or unit, in characters."""
WORD_MAX: Final = 64
"""The longest op, status, state or code, in characters."""
TEXT_MAX: Final = 2048
"""The longest reason or error text, in characters."""
TICKET_MAX: Final = 16_384
"""The longest ticket, in bytes."""
NUMBER_MAX: Final = 2**63 - 1
"""The largest request or update number."""
VALUES_MAX: Final = 60_000
"""The most values in one batch, which bounds the time and memory of decoding it: a pair of properties is one value, an
item of a list (a unit, a victim) as many as it costs in time."""
ITEM_VALUES: Final = 5
LIST_MAX: Final = VALUES_MAX // ITEM_VALUES
"""The most units, or victims, in one message."""
PARTS_MAX: Final = 500
"""The most parts of one plan."""
OFFERS_MAX: Final = 1000
"""The most delegations in one quote."""
STEPS_MAX: Final = 200
"""The most steps of one of them."""
FIELDS_MAX: Final = 64
"""The most fields in one message, those of newer versions included."""
BATCH_MAX: Final = 1024
"""The most messages in one batch."""
DEPTH_MAX: Final = 8
"""The deepest nesting in fields that are ignored, counted from the batch; the others have their own shape."""
DIRECT_MAX: Final = 49_152
"""The longest batch that the direct reader takes, in bytes; also the most that a batch may hold in ignored fields."""
WIDTH_MAX: Final = BATCH_MAX
# msgpack reserves an array's slots on sight of its header and nests up to 1024 deep, so the direct reader's
# reservations are bounded by 1024 x 1024 slots of 8 bytes = 8 MiB, twice a frame.


class Fault(ValueError):
    """A value outside its limits: what was found and what is allowed. Becomes a ``WireError`` that says where."""


Check: TypeAlias = Callable[[Any], Any]
"""Returns the value as the message holds it, or raises ``Fault``."""


class Rule(NamedTuple):
    """What a field may hold. Lists (``item`` is set) are read item by item by the careful reader."""

    check: Check
    item: Check | None = None


def show(value: object) -> str:
    """``value`` in a few words. Never its whole repr: it may be huge, or nested deeper than repr can follow."""
    if isinstance(value, (tuple, list)):
        return f"an array of {len(value)}"
    if isinstance(value, dict):
        return f"a map of {len(value)}"
    if isinstance(value, bytes):
        return f"{len(value)} bytes"
    if isinstance(value, str):
        return f"{value!r}" if len(value) <= 40 else f"{value[:40]!r}... ({len(value)} characters)"
    return f"{value!r:.40} ({type(value).__name__})"


def expected(value: object, allowed: str) -> Fault:
    return Fault(f"found {show(value)}, allowed is {allowed}")


def _text(low: int, high: int) -> Rule:
    def check(value: Any) -> str:
        if type(value) is str and low <= len(value) <= high:
            return value
        raise expected(value, f"text of {low} to {high} characters")

    return Rule(check)


def _blob(high: int) -> Rule:
    def check(value: Any) -> bytes:
        if type(value) is bytes and len(value) <= high:
            return value
        raise expected(value, f"at most {high} bytes")

    return Rule(check)


def _integer(low: int, high: int) -> Rule:
    def check(value: Any) -> int:
        # type, not isinstance: True is an int to Python, and must not be one here.
        if type(value) is int and low <= value <= high:
            return value
        raise expected(value, f"an integer from {low} to {high}")

    return Rule(check)


def _flag(value: Any) -> bool:
    if type(value) is bool:
        return value
    raise expected(value, "true or false")


def _digest(value: Any) -> bytes:
    if type(value) is bytes and len(value) in (0, DIGEST_BYTES):
        return value
    raise expected(value, f"0 or {DIGEST_BYTES} bytes")


def _term(value: Any) -> Term:
    if type(value) is tuple and len(value) == 2 and type(value[0]) is int and type(value[1]) is int:
        try:
            return make_term(*value)
        except ValueError as error:
            raise Fault(str(error)) from error
    raise expected(value, "a term: an array of two integers, start and end in milliseconds")


def _properties(value: Any) -> dict[str, str]:
    if type(value) is not dict or len(value) > PROPERTIES_MAX:
        raise expected(value, f"a map of at most {PROPERTIES_MAX} string pairs")
    for key, text in value.items():
        if type(key) is not str or not 0 < len(key) <= KEY_MAX:
            raise Fault(f"found key {show(key)}, allowed is text of 1 to {KEY_MAX} characters")
        if type(text) is not str or len(text) > VALUE_MAX:
            raise Fault(f"found {show(text)} under {show(key)}, allowed is text of at most {VALUE_MAX} characters")
    return value


def _steps(value: Any) -> tuple[int, ...]:
    if type(value) is not tuple or len(value) % 2 or len(value) > 2 * STEPS_MAX:
        raise expected(value, f"an array of at most {STEPS_MAX} pairs of instant and units")
    last = -1
    for at, free in zip(value[::2], value[1::2], strict=True):
        if INSTANT.check(at) <= last:
            raise Fault(f"found {at} after {last}, instants must grow")
        UNITS_OR_NONE.check(free)
        last = at
    return value


def _many(item: Check, most: int = LIST_MAX) -> Rule:
    def check(value: Any) -> tuple[Any, ...]:
        if type(value) is not tuple or len(value) > most:
            raise expected(value, f"an array of at most {most}")
        return tuple([item(one) for one in value])

    return Rule(check, item)


def inspect(value: Any, depth: int = 2) -> None:
    """Refuse, in a field that is ignored, what no version may send. ``depth`` counts the arrays around it."""
    if type(value) is tuple or type(value) is dict:
        if depth == DEPTH_MAX:
            raise Fault(f"found arrays and maps nested deeper than {DEPTH_MAX}")
        inner: Iterable[Any] = value.values() if type(value) is dict else value
        for one in inner:
            inspect(one, depth + 1)
    elif value != value:
        raise Fault("found NaN, which is no value")


class Shape:
    """How the fields of one named tuple are read: ``kind`` is its number, 0 for a part of a message."""

    __slots__ = ("checks", "cls", "defaults", "full", "kind", "least", "names", "rules")

    def __init__(self, cls: type[Any], fields: Mapping[str, Rule], kind: int = 0) -> None:
        if tuple(fields) != cls._fields:
            raise TypeError(
                f"the codec's table for {cls.__name__} has fields {tuple(fields)}, its class has {cls._fields}"
            )
        self.cls = cls
        self.kind = kind
        self.names = tuple(fields)
        self.rules = tuple(fields.values())
        self.checks: tuple[Check, ...] = tuple(rule.check for rule in self.rules)
        self.defaults = cls._field_defaults
        self.full = len(fields)
        self.least = self.full - len(self.defaults)

    def build(self, fields: Iterator[Any]) -> Any:
        """The named tuple from its fields in order. ``Fault`` does not say where: :meth:`locate` does."""
        values = [check(value) for check, value in zip(self.checks, fields)]  # noqa: B905 (fields may be more, or fewer)
        if len(values) != self.full:
            values = self.complete(values)
        else:
            for extra in fields:
                inspect(extra)
        return tuple.__new__(self.cls, values)

    def complete(self, values: list[Any]) -> list[Any]:
        """``values`` with the defaults of those that an older peer left out."""
        if len(values) < self.least:
            raise Fault(f"found {len(values)} fields, the next one, {self.names[len(values)]!r}, is missing")
        return values + [self.defaults[name] for name in self.names[len(values) :]]

    def part(self, value: Any) -> Any:
        """The named tuple from an array inside a message; its ``Fault`` names the field."""
        if type(value) is not tuple or len(value) > FIELDS_MAX:
            raise expected(value, f"an array of {self.least} to {FIELDS_MAX} fields")
        try:
            return self.build(iter(value))
        except Fault:
            for name, check, field in zip(self.names, self.checks, value):  # noqa: B905 (as in build)
                try:
                    check(field)
                except Fault as fault:
                    raise Fault(f"{name}: {fault}") from None
            raise


ID: Final = _text(1, ID_MAX)
ID_OR_NONE: Final = _text(0, ID_MAX)
NAME: Final = _text(1, NAME_MAX)
NAME_OR_NONE: Final = _text(0, NAME_MAX)
WORD: Final = _text(1, WORD_MAX)
WORD_OR_NONE: Final = _text(0, WORD_MAX)
TEXT: Final = _text(0, TEXT_MAX)
TICKET: Final = _blob(TICKET_MAX)
STATEMENT: Final = _blob(STATEMENT_MAX)
DIGEST: Final = Rule(_digest)
NUMBER: Final = _integer(0, NUMBER_MAX)
UNITS: Final = _integer(1, UNITS_MAX)
UNITS_OR_NONE: Final = _integer(0, UNITS_MAX)
INSTANT: Final = _integer(0, INSTANT_MAX)
INSTANT_OR_UNKNOWN: Final = _integer(-1, INSTANT_MAX)
COUNT_OR_UNKNOWN: Final = _integer(-1, UNITS_MAX)
FLAG: Final = Rule(_flag)
TERM: Final = Rule(_term)
PROPERTIES: Final = Rule(_properties)
VICTIMS: Final = _many(NAME.check)
TYPES: Final = _many(NAME.check)
REQUEST: Final = _blob(REQUEST_BYTES_MAX)
_UNIT: Final = Shape(UnitState, {"unit": NAME, "state": WORD, "properties": PROPERTIES, "reason": TEXT})


def _unit(value: Any) -> UnitState:
    # A large update is mostly units: the usual one takes one expression, whatever else there is goes by the table.
    made: UnitState
    if type(value) is tuple and len(value) == 4:
        unit, state, properties, reason = value
        if (
            type(unit) is str
            and type(state) is str
            and type(reason) is str
            and 0 < len(unit) <= NAME_MAX
            and 0 < len(state) <= WORD_MAX
            and len(reason) <= TEXT_MAX
        ):
            try:
                _properties(properties)
            except Fault:
                pass  # the table's way names the field
            else:
                made = tuple.__new__(UnitState, value)
                return made
    made = _UNIT.part(value)
    return made


UNIT_STATES: Final = _many(_unit)
_PART: Final = Shape(PlanPart, {
    "part": ID, "member": ID, "path": NUMBER, "broker": NAME, "source": ID_OR_NONE, "site": NAME, "type": NAME,
    "units": UNITS,
})  # fmt: skip
PARTS: Final = _many(_PART.part, PARTS_MAX)
_OFFER: Final = Shape(QuotedOffer, {
    "source": ID, "site": NAME, "type": NAME, "units": UNITS_OR_NONE, "term": TERM, "properties": PROPERTIES,
    "steps": Rule(_steps),
})  # fmt: skip
OFFERS: Final = _many(_OFFER.part, OFFERS_MAX)
_HELD: Final = Shape(HeldClaim, {"delegation": ID, "ticket": TICKET, "state": WORD, "at": INSTANT_OR_UNKNOWN})
HELD_CLAIMS: Final = _many(_HELD.part, HELD_MAX)
