"""Messages to bytes and back.

A message travels as a msgpack array ``[kind, *fields]``, a batch as an array of messages. Kinds are numbers of the
table :data:`KINDS`, which only ever grows. Fields that a newer peer adds at the end are ignored; fields that an
older one leaves out get their defaults; a kind that this version does not know becomes an :class:`UnknownKind`, so
that the other messages of the batch go on.

What comes in is a stranger's. Decoding has two readers that accept the same bytes and give the same messages:

- the *direct* one, for batches up to ``DIRECT_MAX`` bytes, unpacks all in one call under limits that bound the memory
  it can take, then checks every field. It is fast and explains nothing.
- the *careful* one reads value by value as the table says, so that nothing is allocated that the table does not ask
  for. It takes batches that are large, and those that the direct one refused, and names message, field, what was
  found and what is allowed.

Neither raises anything but :class:`~leasekit.core.errors.WireError`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from io import BytesIO
from typing import Any, Final, NamedTuple, TypeAlias

import msgpack

from leasekit.core.claims.claim import DIGEST_BYTES, UNITS_MAX
from leasekit.core.claims.statements import STATEMENT_MAX
from leasekit.core.errors import WireError
from leasekit.core.properties import KEY_MAX, PROPERTIES_MAX, VALUE_MAX
from leasekit.core.protocol.messages import (
    Accepted,
    Ack,
    Administer,
    Administered,
    ClaimReport,
    CloseLease,
    ErrorReply,
    Introduce,
    LeaseUpdate,
    Message,
    Offer,
    OfferAnswer,
    Probe,
    ProbeAnswer,
    Reclaim,
    Redeem,
    Relinquish,
    Relinquished,
    RequestTicket,
    ReturnTicket,
    TicketUpdate,
    Truncated,
    UnitState,
    Withdraw,
    Withhold,
)
from leasekit.core.time import INSTANT_MAX, Term, make_term

ID_MAX: Final = 80
"""The longest id of a lease or delegation, in characters."""
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
FIELDS_MAX: Final = 64
"""The most fields in one message, those of newer versions included."""
BATCH_MAX: Final = 1024
"""The most messages in one batch."""
DEPTH_MAX: Final = 8
"""The deepest nesting in fields that are ignored, counted from the batch; the others have their own shape."""
DIRECT_MAX: Final = 49_152
"""The longest batch that the direct reader takes, in bytes; also the most that a batch may hold in ignored fields."""
_WIDTH_MAX: Final = BATCH_MAX
# msgpack reserves an array's slots on sight of its header and nests up to 1024 deep, so the direct reader's
# reservations are bounded by 1024 x 1024 slots of 8 bytes = 8 MiB, twice a frame.


class UnknownKind(NamedTuple):
    """A message of a kind that this version does not know; ``lease`` and ``number`` are empty and 0 if it had none."""

    kind: int
    lease: str
    number: int

    def answer(self) -> ErrorReply:
        """What its sender is to be told."""
        known = f"this peer knows kinds 1 to {max(KINDS)}"
        return ErrorReply(self.lease, self.number, "unknown_kind", f"message kind {self.kind} is not known: {known}")


class _Fault(ValueError):
    """A value outside its limits: what was found and what is allowed. Becomes a WireError that says where."""


Check: TypeAlias = Callable[[Any], Any]
"""Returns the value as the message holds it, or raises ``_Fault``."""


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


def _expected(value: object, allowed: str) -> _Fault:
    return _Fault(f"found {show(value)}, allowed is {allowed}")


def _text(low: int, high: int) -> Rule:
    def check(value: Any) -> str:
        if type(value) is str and low <= len(value) <= high:
            return value
        raise _expected(value, f"text of {low} to {high} characters")

    return Rule(check)


def _blob(high: int) -> Rule:
    def check(value: Any) -> bytes:
        if type(value) is bytes and len(value) <= high:
            return value
        raise _expected(value, f"at most {high} bytes")

    return Rule(check)


def _integer(low: int, high: int) -> Rule:
    def check(value: Any) -> int:
        # type, not isinstance: True is an int to Python, and must not be one here.
        if type(value) is int and low <= value <= high:
            return value
        raise _expected(value, f"an integer from {low} to {high}")

    return Rule(check)


def _digest(value: Any) -> bytes:
    if type(value) is bytes and len(value) in (0, DIGEST_BYTES):
        return value
    raise _expected(value, f"0 or {DIGEST_BYTES} bytes")


def _term(value: Any) -> Term:
    if type(value) is tuple and len(value) == 2 and type(value[0]) is int and type(value[1]) is int:
        try:
            return make_term(*value)
        except ValueError as error:
            raise _Fault(str(error)) from error
    raise _expected(value, "a term: an array of two integers, start and end in milliseconds")


def _properties(value: Any) -> dict[str, str]:
    if type(value) is not dict or len(value) > PROPERTIES_MAX:
        raise _expected(value, f"a map of at most {PROPERTIES_MAX} string pairs")
    for key, text in value.items():
        if type(key) is not str or not 0 < len(key) <= KEY_MAX:
            raise _Fault(f"found key {show(key)}, allowed is text of 1 to {KEY_MAX} characters")
        if type(text) is not str or len(text) > VALUE_MAX:
            raise _Fault(f"found {show(text)} under {show(key)}, allowed is text of at most {VALUE_MAX} characters")
    return value


def _many(item: Check) -> Rule:
    def check(value: Any) -> tuple[Any, ...]:
        if type(value) is not tuple or len(value) > LIST_MAX:
            raise _expected(value, f"an array of at most {LIST_MAX}")
        return tuple([item(one) for one in value])

    return Rule(check, item)


class _Shape:
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
        """The named tuple from its fields in order. ``_Fault`` does not say where: :meth:`locate` does."""
        values = [check(value) for check, value in zip(self.checks, fields)]  # noqa: B905 (fields may be more, or fewer)
        if len(values) != self.full:
            values = self.complete(values)
        else:
            for extra in fields:
                _inspect(extra)
        return tuple.__new__(self.cls, values)

    def complete(self, values: list[Any]) -> list[Any]:
        """``values`` with the defaults of those that an older peer left out."""
        if len(values) < self.least:
            raise _Fault(f"found {len(values)} fields, the next one, {self.names[len(values)]!r}, is missing")
        return values + [self.defaults[name] for name in self.names[len(values) :]]

    def part(self, value: Any) -> Any:
        """The named tuple from an array inside a message; its ``_Fault`` names the field."""
        if type(value) is not tuple or len(value) > FIELDS_MAX:
            raise _expected(value, f"an array of {self.least} to {FIELDS_MAX} fields")
        try:
            return self.build(iter(value))
        except _Fault:
            for name, check, field in zip(self.names, self.checks, value):  # noqa: B905 (as in build)
                try:
                    check(field)
                except _Fault as fault:
                    raise _Fault(f"{name}: {fault}") from None
            raise


ID: Final = _text(1, ID_MAX)
ID_OR_NONE: Final = _text(0, ID_MAX)
NAME: Final = _text(1, NAME_MAX)
NAME_OR_NONE: Final = _text(0, NAME_MAX)
WORD: Final = _text(1, WORD_MAX)
TEXT: Final = _text(0, TEXT_MAX)
TICKET: Final = _blob(TICKET_MAX)
STATEMENT: Final = _blob(STATEMENT_MAX)
DIGEST: Final = Rule(_digest)
NUMBER: Final = _integer(0, NUMBER_MAX)
UNITS: Final = _integer(1, UNITS_MAX)
UNITS_OR_NONE: Final = _integer(0, UNITS_MAX)
INSTANT: Final = _integer(0, INSTANT_MAX)
INSTANT_OR_UNKNOWN: Final = _integer(-1, INSTANT_MAX)
TERM: Final = Rule(_term)
PROPERTIES: Final = Rule(_properties)
VICTIMS: Final = _many(NAME.check)
_UNIT: Final = _Shape(UnitState, {"unit": NAME, "state": WORD, "properties": PROPERTIES, "reason": TEXT})


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
            except _Fault:
                pass  # the table's way names the field
            else:
                made = tuple.__new__(UnitState, value)
                return made
    made = _UNIT.part(value)
    return made


UNIT_STATES: Final = _many(_unit)

KINDS: Final[Mapping[int, tuple[type[Any], Mapping[str, Rule]]]] = {
    1: (RequestTicket, {
        "lease": ID, "number": NUMBER, "op": WORD, "slice": NAME, "type": NAME, "units": UNITS, "term": TERM,
        "site": NAME_OR_NONE, "properties": PROPERTIES, "claim": DIGEST,
    }),
    2: (Withdraw, {"lease": ID, "number": NUMBER, "request": NUMBER}),
    3: (ReturnTicket, {"lease": ID, "number": NUMBER, "receipt": STATEMENT}),
    4: (TicketUpdate, {
        "lease": ID, "update": NUMBER, "number": NUMBER, "status": WORD, "ticket": TICKET, "site": NAME_OR_NONE,
        "properties": PROPERTIES, "truncation": STATEMENT, "reason": TEXT, "earliest": INSTANT_OR_UNKNOWN,
        "endorsement": STATEMENT,
    }),
    5: (Redeem, {
        "lease": ID, "number": NUMBER, "op": WORD, "slice": NAME, "ticket": TICKET, "resource": PROPERTIES,
        "properties": PROPERTIES, "victims": VICTIMS, "truncation": STATEMENT,
    }),
    6: (CloseLease, {"lease": ID, "number": NUMBER, "relinquishment": STATEMENT}),
    7: (Relinquish, {"lease": ID, "number": NUMBER, "ticket": TICKET, "relinquishment": STATEMENT}),
    8: (Relinquished, {"lease": ID, "number": NUMBER, "receipt": STATEMENT, "reason": TEXT}),
    9: (LeaseUpdate, {
        "lease": ID, "update": NUMBER, "number": NUMBER, "state": WORD, "term": TERM, "units": UNIT_STATES,
        "reason": TEXT, "contract": STATEMENT, "receipt": STATEMENT,
    }),
    10: (Truncated, {"lease": ID, "number": NUMBER, "ticket": TICKET, "truncation": STATEMENT}),
    11: (Accepted, {"lease": ID, "number": NUMBER}),
    12: (Ack, {"lease": ID, "update": NUMBER}),
    13: (Offer, {
        "delegation": ID, "number": NUMBER, "ticket": TICKET, "properties": PROPERTIES, "site": NAME_OR_NONE,
    }),
    14: (OfferAnswer, {"delegation": ID, "number": NUMBER, "reason": TEXT, "until": INSTANT}),
    15: (ErrorReply, {"lease": ID_OR_NONE, "number": NUMBER, "code": WORD, "text": TEXT}),
    16: (Reclaim, {"delegation": ID, "number": NUMBER, "ticket": TICKET, "statement": STATEMENT}),
    17: (Introduce, {"peer": ID, "number": NUMBER, "endorsement": STATEMENT}),
    18: (ClaimReport, {"claim": ID, "number": NUMBER, "code": WORD, "reason": TEXT}),
    19: (Administer, {"command": WORD, "number": NUMBER, "arguments": TEXT}),
    20: (Administered, {"command": WORD, "number": NUMBER, "result": TEXT, "error": TEXT}),
    21: (Withhold, {
        "delegation": ID, "number": NUMBER, "window": ID, "units": UNITS_OR_NONE, "term": TERM, "reason": TEXT,
    }),
    22: (Probe, {
        "lease": ID, "number": NUMBER, "type": NAME, "units": UNITS, "term": TERM, "site": NAME_OR_NONE,
        "properties": PROPERTIES,
    }),
    23: (ProbeAnswer, {
        "lease": ID, "number": NUMBER, "status": WORD, "site": NAME_OR_NONE, "units": UNITS_OR_NONE, "term": TERM,
        "reason": TEXT, "earliest": INSTANT_OR_UNKNOWN,
    }),
}  # fmt: skip
"""Every kind of message: its number, its class, and what each field may hold. Append only: no number is used twice."""

_SHAPES: Final[Mapping[int, _Shape]] = {kind: _Shape(cls, fields, kind) for kind, (cls, fields) in KINDS.items()}
_HEADS: Final[Mapping[type[Any], tuple[int]]] = {cls: (kind,) for kind, (cls, _) in KINDS.items()}


# Encoding. Named tuples pack as arrays, so fields are not copied; limits are the sender's business (:func:`clip`).


def _as_map(value: object) -> dict[Any, Any]:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, int):
        raise OverflowError(f"found {value}, integers have at most 64 bits")
    raise TypeError(f"found {type(value).__name__}, messages hold text, bytes, integers, tuples and mappings")


_pack: Final[Callable[[Any], bytes]] = msgpack.Packer(default=_as_map).pack


def encode_message(message: Message) -> bytes:
    """The bytes of one message.

    Raises ``TypeError`` for what is no message, ``UnicodeEncodeError`` for text that is not Unicode (:func:`clip`
    mends it), ``OverflowError`` for an integer beyond 64 bits.
    """
    try:
        head = _HEADS[type(message)]
    except KeyError:
        raise TypeError(f"{type(message).__name__} is not a message: it has no kind in the codec's table") from None
    return _pack(head + message)


def join_batch(encoded: Sequence[bytes]) -> bytes:
    """The batch that holds messages already encoded. Raises ``ValueError`` for more than ``BATCH_MAX`` messages."""
    count = len(encoded)
    if count > BATCH_MAX:
        raise ValueError(f"found {count} messages, a batch holds at most {BATCH_MAX}")
    head = bytes((0x90 | count,)) if count < 16 else b"\xdc" + count.to_bytes(2, "big")
    return head + b"".join(encoded)


def encode_batch(messages: Sequence[Message]) -> bytes:
    """The bytes of a batch. Raises as :func:`encode_message` and :func:`join_batch` do."""
    return join_batch([encode_message(message) for message in messages])


def clip(text: str, limit: int = TEXT_MAX) -> str:
    """``text`` as a reason can carry it: at most ``limit`` characters, all of them Unicode."""
    if len(text) > limit:
        text = text[: limit - 3] + "..."
    return text.encode("utf-8", "replace").decode("utf-8")


# Decoding.


def _distinct(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise _Fault("found a map that has the same key twice")
    return found


def _no_extension(code: int, data: bytes) -> Any:
    raise _Fault(f"found a msgpack extension of type {code}, none is allowed")


_LIMITS: Final[Mapping[str, Any]] = {
    "use_list": False,
    "object_pairs_hook": _distinct,
    "ext_hook": _no_extension,
    "max_array_len": _WIDTH_MAX,
    "max_map_len": PROPERTIES_MAX,
    "max_bin_len": TICKET_MAX,
    "max_str_len": 4 * VALUE_MAX,
    "max_ext_len": 0,
}
_unpack: Final[Callable[[bytes], Any]] = partial(msgpack.unpackb, **_LIMITS)

_PIECE: Final = 65_536
_TRUNCATED = "ends in the middle of a value"
_UNPACK_ERRORS: Final = (ValueError, msgpack.exceptions.UnpackException)


def decode_batch(data: bytes) -> list[Message | UnknownKind]:
    """The messages in ``data``, in order.

    Raises ``WireError`` if any of them is malformed: a batch is obeyed whole or not at all.
    """
    if len(data) <= DIRECT_MAX:
        try:
            batch = _unpack(data)
            if type(batch) is tuple:
                return [_direct(fields) for fields in batch]
        except _UNPACK_ERRORS:
            pass  # the careful reader says what and where
    return _Careful(data).batch()


def decode_message(data: bytes) -> Message | UnknownKind:
    """The one message in ``data``. Raises ``WireError``."""
    if len(data) <= DIRECT_MAX:
        try:
            message: Message | UnknownKind = _direct(_unpack(data))
            return message
        except _UNPACK_ERRORS:
            pass  # as above
    return _Careful(data).single()


def _direct(fields: Any) -> Any:
    if type(fields) is not tuple or not 0 < len(fields) <= FIELDS_MAX or type(fields[0]) is not int:
        raise _Fault("not a message")
    shape = _SHAPES.get(fields[0])
    if shape is None:
        return _unknown(fields[0], fields[1:])
    rest = iter(fields)
    next(rest)
    return shape.build(rest)


def _unknown(kind: int, fields: Sequence[Any]) -> UnknownKind:
    for field in fields:
        _inspect(field)
    lease = fields[0] if fields and type(fields[0]) is str and len(fields[0]) <= ID_MAX else ""
    numbered = len(fields) > 1 and type(fields[1]) is int and 0 <= fields[1] <= NUMBER_MAX
    return UnknownKind(kind, lease, fields[1] if numbered else 0)


def _inspect(value: Any, depth: int = 2) -> None:
    """Refuse, in a field that is ignored, what no version may send. ``depth`` counts the arrays around it."""
    if type(value) is tuple or type(value) is dict:
        if depth == DEPTH_MAX:
            raise _Fault(f"found arrays and maps nested deeper than {DEPTH_MAX}")
        inner: Iterable[Any] = value.values() if type(value) is dict else value
        for one in inner:
            _inspect(one, depth + 1)
    elif value != value:
        raise _Fault("found NaN, which is no value")


class _Careful:
    """Reads one batch value by value, and says where it is when something is wrong."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._left = VALUES_MAX
        self._ignorable = DIRECT_MAX
        self._where = "batch"
        limits = {**_LIMITS, "object_pairs_hook": self._pairs}
        # Read a piece at a time: fed whole, the data would be held twice.
        self._unpacker = msgpack.Unpacker(BytesIO(data), read_size=_PIECE, max_buffer_size=len(data) + _PIECE, **limits)

    def batch(self) -> list[Message | UnknownKind]:
        """All messages of a batch."""
        found: list[Message | UnknownKind] = self._whole(self._batch)
        return found

    def single(self) -> Message | UnknownKind:
        """The one message that is all of the data."""
        self._where = "message"
        found: Message | UnknownKind = self._whole(self._message)
        return found

    def _whole(self, read: Callable[[], Any]) -> Any:
        try:
            found = read()
            rest = len(self._data) - self._unpacker.tell()
            if rest:
                self._where = "batch" if read == self._batch else "message"
                raise _Fault(f"{rest} bytes follow its end")
        except msgpack.OutOfData:
            raise WireError(f"{self._where}: {_TRUNCATED}") from None
        except msgpack.exceptions.StackError:
            raise WireError(f"{self._where}: arrays and maps are nested deeper than {DEPTH_MAX}") from None
        except msgpack.exceptions.FormatError:
            raise WireError(f"{self._where}: found the byte c1, which is not msgpack") from None
        except UnicodeDecodeError as error:
            raise WireError(
                f"{self._where}: found text that is not UTF-8: {error.reason} at byte {error.start}"
            ) from None
        except ValueError as error:
            raise WireError(f"{self._where}: {error}") from None
        return found

    def _batch(self) -> list[Message | UnknownKind]:
        count = self._header(BATCH_MAX, "messages")
        found = []
        for index in range(count):
            self._where = f"message {index + 1} of {count}"
            found.append(self._message())
        return found

    def _message(self) -> Message | UnknownKind:
        where = self._where
        count = self._header(FIELDS_MAX, "fields")
        if count == 0:
            raise _Fault("found an empty array, allowed is an array that begins with the message's kind")
        kind = self._unpacker.unpack()
        if type(kind) is not int:
            raise _expected(kind, "an integer, the message's kind")
        shape = _SHAPES.get(kind)
        self._where = f"{where}, {shape.cls.__name__ if shape else f'kind {kind}'}"
        if shape is None:
            return _unknown(kind, [self._ignored() for _ in range(count - 1)])
        message: Message = tuple.__new__(shape.cls, self._fields(shape, count - 1))
        return message

    def _fields(self, shape: _Shape, count: int) -> list[Any]:
        where, values = self._where, []
        for name, rule in zip(shape.names[:count], shape.rules, strict=False):
            self._where = f"{where}: {name}"
            values.append(self._list(rule.item) if rule.item else rule.check(self._unpacker.unpack()))
        self._where = where
        for _ in range(count - shape.full):
            _inspect(self._ignored())
        return shape.complete(values)

    def _list(self, item: Check) -> tuple[Any, ...]:
        where = self._where
        count = self._header(LIST_MAX, "items")
        self._spend(ITEM_VALUES * count)
        values = []
        for index in range(count):
            self._where = f"{where}[{index}]"
            values.append(item(self._unpacker.unpack()))
        return tuple(values)

    def _ignored(self) -> Any:
        start = self._unpacker.tell()
        self._unpacker.skip()
        end = self._unpacker.tell()
        self._ignorable -= end - start
        if self._ignorable < 0:
            raise _Fault(f"found more than {DIRECT_MAX} bytes of fields that are not known in one batch")
        return _unpack(self._data[start:end])

    def _header(self, limit: int, of: str) -> int:
        try:
            count: int = self._unpacker.read_array_header()
        except ValueError:
            raise _Fault("found something else than an array") from None
        if count > limit:
            raise _Fault(f"found an array of {count} {of}, allowed are at most {limit}")
        return count

    def _pairs(self, pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
        self._spend(len(pairs))
        return _distinct(pairs)

    def _spend(self, values: int) -> None:
        self._left -= values
        if self._left < 0:
            raise _Fault(
                f"found more than {VALUES_MAX} values in one batch: a property is one, a unit or victim {ITEM_VALUES}"
            )
