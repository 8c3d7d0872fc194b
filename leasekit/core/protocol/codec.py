"""Messages to bytes and back.

A message travels as a msgpack array ``[kind, *fields]``, a batch as an array of messages. Kinds are numbers of the
table in :mod:`.kinds`, which only ever grows. Fields that a newer peer adds at the end are ignored; fields that an
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

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from io import BytesIO
from sys import getsizeof
from typing import Any, Final, NamedTuple

import msgpack

from leasekit.core.errors import WireError
from leasekit.core.properties import PROPERTIES_MAX, VALUE_MAX
from leasekit.core.protocol.fields import (
    BATCH_MAX,
    DEPTH_MAX,
    DIRECT_MAX,
    FIELDS_MAX,
    ID_MAX,
    ITEM_VALUES,
    LIST_MAX,
    NAME_MAX,
    NUMBER_MAX,
    TEXT_MAX,
    TICKET_MAX,
    VALUES_MAX,
    WIDTH_MAX,
    WORD_MAX,
    Check,
    Fault,
    Shape,
    expected,
    inspect,
    show,
)
from leasekit.core.protocol.kinds import KINDS, SHAPES
from leasekit.core.protocol.messages import ErrorReply, Message

__all__ = [
    "BATCH_MAX", "DIRECT_MAX", "FIELDS_MAX", "ID_MAX", "KINDS", "LIST_MAX", "NAME_MAX", "NUMBER_MAX", "TEXT_MAX",
    "TICKET_MAX", "VALUES_MAX", "WORD_MAX", "UnknownKind", "clip", "decode_batch", "decode_message", "encode_batch",
    "encode_message", "join_batch", "show",
]  # fmt: skip


class UnknownKind(NamedTuple):
    """A message of a kind that this version does not know; ``lease`` and ``number`` are empty and 0 if it had none."""

    kind: int
    lease: str
    number: int

    def answer(self) -> ErrorReply:
        """What its sender is to be told."""
        known = f"this peer knows kinds 1 to {max(KINDS)}"
        return ErrorReply(self.lease, self.number, "unknown_kind", f"message kind {self.kind} is not known: {known}")


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
        raise Fault("found a map that has the same key twice")
    return found


def _no_extension(code: int, data: bytes) -> Any:
    raise Fault(f"found a msgpack extension of type {code}, none is allowed")


_LIMITS: Final[Mapping[str, Any]] = {
    "use_list": False,
    "object_pairs_hook": _distinct,
    "ext_hook": _no_extension,
    "max_array_len": WIDTH_MAX,
    "max_map_len": PROPERTIES_MAX,
    "max_bin_len": TICKET_MAX,
    "max_str_len": 4 * VALUE_MAX,
    "max_ext_len": 0,
}
_unpack: Final[Callable[[bytes], Any]] = partial(msgpack.unpackb, **_LIMITS)

_ASTRAL: Final = re.compile(rb"[\xf0-\xf4]")
"""A byte that text beyond the basic plane has; others may have it as well."""
WIDE_MAX: Final = 4 * 2**20
"""How much more memory the text of one batch may take than a byte for each character: Python gives all characters of a
text the width of its widest."""
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
        raise Fault("not a message")
    shape = SHAPES.get(fields[0])
    if shape is None:
        return _unknown(fields[0], fields[1:])
    rest = iter(fields)
    next(rest)
    return shape.build(rest)


def _unknown(kind: int, fields: Sequence[Any]) -> UnknownKind:
    for field in fields:
        inspect(field)
    lease = fields[0] if fields and type(fields[0]) is str and len(fields[0]) <= ID_MAX else ""
    numbered = len(fields) > 1 and type(fields[1]) is int and 0 <= fields[1] <= NUMBER_MAX
    return UnknownKind(kind, lease, fields[1] if numbered else 0)


class _Careful:
    """Reads one batch value by value, and says where it is when something is wrong."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._left = VALUES_MAX
        self._wide = WIDE_MAX
        self._astral: bool | None = None
        self._pairs_to_weigh = False
        self._ignorable = DIRECT_MAX
        self._where = "batch"
        self._limits = {**_LIMITS, "object_pairs_hook": self._pairs}
        # Read a piece at a time: fed whole, the data would be held twice.
        room = len(data) + _PIECE
        self._unpacker = msgpack.Unpacker(BytesIO(data), read_size=_PIECE, max_buffer_size=room, **self._limits)

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
                raise Fault(f"{rest} bytes follow its end")
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
            raise Fault("found an empty array, allowed is an array that begins with the message's kind")
        kind = self._unpacker.unpack()
        if type(kind) is not int:
            raise expected(kind, "an integer, the message's kind")
        shape = SHAPES.get(kind)
        self._where = f"{where}, {shape.cls.__name__ if shape else f'kind {kind}'}"
        if shape is None:
            return _unknown(kind, [self._ignored() for _ in range(count - 1)])
        message: Message = tuple.__new__(shape.cls, self._fields(shape, count - 1))
        return message

    def _fields(self, shape: Shape, count: int) -> list[Any]:
        where, values = self._where, []
        for name, rule in zip(shape.names[:count], shape.rules, strict=False):
            self._where = f"{where}: {name}"
            values.append(self._list(rule.item) if rule.item else rule.check(self._value()))
        self._where = where
        for _ in range(count - shape.full):
            inspect(self._ignored())
        return shape.complete(values)

    def _list(self, item: Check) -> tuple[Any, ...]:
        where = self._where
        count = self._header(LIST_MAX, "items")
        self._spend(ITEM_VALUES * count)
        values = []
        for index in range(count):
            self._where = f"{where}[{index}]"
            values.append(item(self._value()))
        return tuple(values)

    def _value(self) -> Any:
        if self._astral is None:
            self._astral = bool(_ASTRAL.search(self._data))
        if not self._astral:
            return self._unpacker.unpack()  # at most two bytes for each character, which have two in UTF-8
        start = self._unpacker.tell()
        self._unpacker.skip()
        view = memoryview(self._data)[start : self._unpacker.tell()]
        large = len(view) > _PIECE
        if large:
            self._weigh_ahead(view)
        self._pairs_to_weigh = not large
        value = msgpack.unpackb(view, **self._limits)
        if not large:
            self._weigh(value)
        return value

    def _weigh_ahead(self, view: memoryview) -> None:
        """As :meth:`_weigh`, text by text: a map is there whole before anybody can look at it."""
        room = len(view) + _PIECE
        walker = msgpack.Unpacker(BytesIO(view), raw=True, read_size=_PIECE, max_buffer_size=room, **_LIMITS)
        left = 1
        while left:
            head, left = view[walker.tell()], left - 1
            if 0x80 <= head <= 0x8F or head in (0xDE, 0xDF):
                left += 2 * walker.read_map_header()
            elif 0x90 <= head <= 0x9F or head in (0xDC, 0xDD):
                left += walker.read_array_header()
            else:
                value = walker.unpack()
                if 0xA0 <= head <= 0xBF or head in (0xD9, 0xDA, 0xDB):
                    self._weigh(value.decode())

    def _weigh(self, value: Any) -> None:
        """Count what text takes in memory beyond a byte for each character: one character may widen all the others."""
        if type(value) is str:
            if not value.isascii():
                self._wide -= getsizeof(value) - len(value)
                if self._wide < 0:
                    raise Fault(f"found text that takes more than {WIDE_MAX} bytes beyond one for each character")
        elif type(value) is tuple:
            for one in value:
                self._weigh(one)

    def _ignored(self) -> Any:
        start = self._unpacker.tell()
        self._unpacker.skip()
        end = self._unpacker.tell()
        self._ignorable -= end - start
        if self._ignorable < 0:
            raise Fault(f"found more than {DIRECT_MAX} bytes of fields that are not known in one batch")
        return _unpack(self._data[start:end])

    def _header(self, limit: int, of: str) -> int:
        try:
            count: int = self._unpacker.read_array_header()
        except ValueError:
            raise Fault("found something else than an array") from None
        if count > limit:
            raise Fault(f"found an array of {count} {of}, allowed are at most {limit}")
        return count

    def _pairs(self, pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
        self._spend(len(pairs))
        for pair in pairs if self._pairs_to_weigh else ():
            self._weigh(pair)
        return _distinct(pairs)

    def _spend(self, values: int) -> None:
        self._left -= values
        if self._left < 0:
            raise Fault(
                f"found more than {VALUES_MAX} values in one batch: a property is one, a unit or victim {ITEM_VALUES}"
            )
