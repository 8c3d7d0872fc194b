"""Messages to bytes and back.

A message travels as a msgpack array ``[kind, *fields]``, a batch as an array of messages. Fields that a newer peer adds
at the end are ignored; fields that an older one leaves out get their defaults; a kind that this version does not know
becomes an :class:`UnknownKind`, so that the other messages of the batch go on.

What comes in is not trusted. A batch is decoded in one call, which checks each field against its type. Where that
fails, the messages are decoded one by one: to find kinds that are not known, or to name message, field, what was found
and what is allowed. What a batch takes in memory is bounded by a multiple of its length (tests/core/test_codec.py
measures the worst that is known).

Decoding raises nothing but :class:`~leasekit.core.errors.WireError`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final, NamedTuple, get_args, get_origin, get_type_hints

import msgspec
from msgspec import DecodeError, MsgspecError, Raw, ValidationError

from leasekit.core.errors import WireError
from leasekit.core.protocol.messages import BATCH_MAX, ID_MAX, NUMBER_MAX, Check, ErrorReply, Message, WireStruct
from leasekit.core.reasons import Code, Reason

KINDS: Final[Mapping[int, type[WireStruct]]] = {cls.__struct_config__.tag: cls for cls in get_args(Message)}
"""Every kind of message: its number, and its class."""
SHOWN_MAX: Final = 49_152
"""The longest message, in bytes, of which an error shows what was found: it is decoded once more for that."""


class UnknownKind(NamedTuple):
    """A message of a kind that this version does not know; ``lease`` and ``number`` are empty and 0 if it had none."""

    kind: int
    lease: str
    number: int

    def answer(self) -> ErrorReply:
        """What its sender is to be told."""
        text = f"message kind {self.kind} is not known: this peer knows kinds 1 to {max(KINDS)}"
        return ErrorReply(self.lease, self.number, Reason(Code.UNKNOWN_KIND, detail=text))


# Encoding. Limits are the sender's business (:func:`~leasekit.core.reasons.clip`).


def _plain(value: object) -> dict[Any, Any]:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"found {type(value).__name__}, messages hold text, bytes, integers, tuples and mappings")


_encode: Final = msgspec.msgpack.Encoder(enc_hook=_plain).encode
_CLASSES: Final = frozenset(KINDS.values())


def encode_message(message: Message) -> bytes:
    """The bytes of one message.

    Raises ``TypeError`` for what is no message, ``UnicodeEncodeError`` for text that is not Unicode (:func:`clip`
    mends it), ``OverflowError`` for an integer beyond 64 bits.
    """
    if type(message) not in _CLASSES:
        raise TypeError(f"{type(message).__name__} is not a message: it has no kind")
    return _encode(message)


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


# Decoding.


class _Head(WireStruct, frozen=True):
    """How a message of an unknown kind begins."""

    kind: int
    lease: Raw = Raw()
    number: Raw = Raw()


_message: Final[msgspec.msgpack.Decoder[Message]] = msgspec.msgpack.Decoder(Message)
_batch: Final[msgspec.msgpack.Decoder[list[Message | UnknownKind]]] = msgspec.msgpack.Decoder(list[Message])
_split: Final = msgspec.msgpack.Decoder(list[Raw])
_head: Final = msgspec.msgpack.Decoder(_Head)


def decode_batch(data: bytes) -> list[Message | UnknownKind]:
    """The messages in ``data``, in order.

    Raises ``WireError`` if any of them is malformed: a batch is obeyed whole or not at all.
    """
    _check_count(data)
    try:
        found = _batch.decode(data)
        _check_quickly(found)
    except (MsgspecError, RecursionError, ValueError):
        return _one_by_one(data)
    return found


def decode_message(data: bytes) -> Message | UnknownKind:
    """The one message in ``data``. Raises ``WireError``."""
    return _read(data, "message")


def _check_count(data: bytes) -> None:
    """Before anything is allocated for them: how many messages a batch says that it has."""
    head = data[0] if data else 0
    if 0x90 <= head <= 0x9F:
        return
    size = {0xDC: 2, 0xDD: 4}.get(head)
    if size is None:
        raise WireError("batch: found something else than an array" if data else "batch: it is empty")
    count = int.from_bytes(data[1 : 1 + size], "big")
    if count > BATCH_MAX:
        raise WireError(f"batch: found an array of {count} messages, allowed are at most {BATCH_MAX}")


def _one_by_one(data: bytes) -> list[Message | UnknownKind]:
    try:
        parts = _split.decode(data)
    except (MsgspecError, RecursionError) as error:
        raise WireError(f"batch: {error}") from None
    return [_read(part, f"message {index} of {len(parts)}") for index, part in enumerate(parts, 1)]


def _read(data: bytes | Raw, where: str) -> Message | UnknownKind:
    cls = None
    try:
        head = _head.decode(data)
        cls = KINDS.get(head.kind)
        if cls is None:
            return _unknown(head)
        where = f"{where}, {cls.__name__}"
        message = _message.decode(data)
        _check(message)
    except ValidationError as error:
        raise WireError(f"{where}: {_explain(error, data, cls)}") from None
    except (DecodeError, RecursionError) as error:
        raise WireError(f"{where}: {error}") from None
    except UnicodeDecodeError:
        raise WireError(f"{where}: {_not_unicode(data, cls)}found text that is not UTF-8") from None
    except ValueError as error:
        raise WireError(f"{where}: {error}") from None
    return message


def _unknown(head: _Head) -> UnknownKind:
    lease, number = _small(head.lease), _small(head.number)
    if type(lease) is not str or len(lease) > ID_MAX:
        lease = ""
    return UnknownKind(head.kind, lease, number if type(number) is int and 0 <= number <= NUMBER_MAX else 0)


def _small(value: Raw) -> Any:
    """What may be a lease or a number; None if it is too large for either, or no value."""
    if not 0 < memoryview(value).nbytes <= 4 * ID_MAX + 5:
        return None
    try:
        return msgspec.msgpack.decode(value)
    except (MsgspecError, RecursionError, ValueError):
        return None


# What the types of fields can't say.


def _item(hint: Any) -> type[WireStruct] | None:
    """The class of the items of a field that is a list of parts, by the field's type."""
    items = get_args(hint)[:1] if get_origin(hint) is tuple else ()
    return items[0] if items and isinstance(items[0], type) and issubclass(items[0], WireStruct) else None


def _checks(cls: type[WireStruct]) -> tuple[tuple[str, Callable[[Any], object]], ...]:
    found: list[tuple[str, Callable[[Any], object]]] = []
    plain = get_type_hints(cls)
    for name, hint in get_type_hints(cls, include_extras=True).items():
        found += [(name, check.refuses) for check in getattr(hint, "__metadata__", ()) if isinstance(check, Check)]
        item = _item(plain[name])
        if item is not None and _checks(item):
            found.append((name, _check_each))
    return tuple(found)


def _check_each(parts: Sequence[WireStruct]) -> None:
    for part in parts:
        _check(part)


def _check(message: WireStruct) -> None:
    """Raises ``ValueError`` that names the field."""
    for name, refuses in CHECKS.get(type(message), ()):
        try:
            refuses(getattr(message, name))
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None


CHECKS: Final = {cls: checks for cls in (*KINDS.values(), *WireStruct.__subclasses__()) if (checks := _checks(cls))}


def _check_quickly(parts: Iterable[Any]) -> None:
    """The same without names, for parts that are fine, as most are: nothing is wrong with what is empty or None."""
    for part in parts:
        for value_of, refuses in _QUICK.get(type(part), ()):
            if value := value_of(part):
                refuses(value)


_QUICK: Final = {
    cls: tuple((attrgetter(name), _check_quickly if refuses is _check_each else refuses) for name, refuses in checks)
    for cls, checks in CHECKS.items()
}


# Errors in words.

_PATH: Final = re.compile(r" - at (?:`key` in )?`\$(.*)`$")
_STEP: Final = re.compile(r"\[(\d+)\]|\.(\w+)")

_WORDS: Final = (("`str`", "text"), ("`int`", "an integer"), ("`array`", "an array"), ("`object`", "a map"), ("`", ""))


def _explain(error: ValidationError, data: bytes | Raw, cls: type[WireStruct] | None) -> str:
    """Which field, what was found and what is allowed."""
    allowed = str(error).partition(" - at ")[0].removeprefix("Expected ").split(", got ")[0]
    for theirs, ours in _WORDS:
        allowed = allowed.replace(theirs, ours)
    path = _PATH.search(str(error))
    steps = [int(index) if index else key for index, key in _STEP.findall(path[1])] if path else []
    found = _value(data, steps)
    where, part = _place(cls, steps)
    if part is not None and isinstance(found, list):
        has = len(found) - (not steps)
        return f"{where}found {has} fields, the next one, {part.__struct_fields__[has]!r}, is missing"
    return f"{where}found {show(found)}, allowed is {allowed}"


def _not_unicode(data: bytes | Raw, cls: type[WireStruct] | None) -> str:
    """The words for the field that holds text that is not Unicode."""
    for step, field in enumerate(_split.decode(data)):
        try:
            msgspec.msgpack.decode(field)
        except UnicodeDecodeError:
            return _place(cls, [step])[0]
    return ""


def _place(cls: type[WireStruct] | None, steps: Sequence[Any]) -> tuple[str, type[WireStruct] | None]:
    """The words for a path into a message, and the message or part to which it leads, if it leads to one."""
    if cls is None or not steps or not steps[0]:
        return ("kind: " if steps else ""), cls
    name = cls.__struct_fields__[steps[0] - 1]
    item = _item(get_type_hints(cls)[name]) if len(steps) > 1 else None
    if item is not None and len(steps) > 2:
        return f"{name}[{steps[1]}]: {item.__struct_fields__[steps[2]]}{_path(steps[3:])}: ", None
    return f"{name}{_path(steps[1:])}: ", item


def _path(steps: Sequence[Any]) -> str:
    return "".join(f".{step}" if isinstance(step, str) else f"[{step}]" for step in steps)


_UNSHOWN: Final = "something else"


def _value(data: bytes | Raw, steps: Sequence[Any]) -> Any:
    """What is found at a path, for :func:`show`."""
    if memoryview(data).nbytes > SHOWN_MAX:
        return _UNSHOWN
    try:
        value = msgspec.msgpack.decode(data)
    except (MsgspecError, RecursionError, UnicodeDecodeError):
        return _UNSHOWN
    for step in steps:
        value = value[step]
    return value


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
