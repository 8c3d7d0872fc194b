"""What fuzz targets and their mutator share: choices read from bytes, cheap signatures, and mutation of msgpack."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from random import Random
from typing import Any, TypeVar

import msgpack

T = TypeVar("T")

EDGES = (0, 1, 2, 127, 128, 255, 256, 1000, 2**16, 2**31 - 1, 2**31, 2**32, 2**53 - 1, 2**53, 2**63 - 1, 2**64 - 1, -1)
"""Integers at which something changes: encodings, limits, signs."""


class Draw:
    """Choices read from bytes, first to last; when they are used up all further ones are 0."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    @property
    def left(self) -> int:
        """How many bytes are not used yet."""
        return max(0, len(self._data) - self._at)

    def byte(self) -> int:
        """0 to 255."""
        self._at += 1
        return self._data[self._at - 1] if self._at <= len(self._data) else 0

    def below(self, limit: int) -> int:
        """0 up to and without ``limit``, which is 256 at most."""
        return self.byte() % limit

    def rarely(self) -> bool:
        """True once in 32 times, and never when the bytes are used up."""
        return self.byte() % 32 == 31

    def integer(self) -> int:
        """Any integer that msgpack has, mostly small ones and those at edges."""
        how = self.byte()
        if how < 160:
            return how
        if how < 224:
            return EDGES[how % len(EDGES)]
        return int.from_bytes(self.take(8), "big")

    def take(self, count: int) -> bytes:
        """So many bytes."""
        taken = self._data[self._at : self._at + count]
        self._at += count
        return taken.ljust(count, b"\0")

    def one_of(self, options: Sequence[T]) -> T:
        """One of at most 256."""
        return options[self.below(len(options))]

    def junk(self) -> Any:
        """Something that is in no field's limits, or in some other field's."""
        return self.one_of((
            None, True, -1, 2**64 - 1, 1.5, float("nan"), "", "text", b"", b"x" * 31, b"y" * 32, b"z" * 64, (),
            {}, ((),), msgpack.ExtType(5, b""), [["a", "b"]], {"a": "b"},
        ))  # fmt: skip


class Mac:
    """A scheme whose signatures cost next to nothing, and can be wrong: a hash over key and data."""

    name = "mac"

    def verify(self, key: bytes, signature: bytes, data: bytes) -> bool:
        """Whether ``signature`` is what :class:`MacSigner` makes."""
        return signature == _mac(key, data)


class MacSigner:
    """Signs in the scheme :class:`Mac`."""

    def __init__(self, number: int) -> None:
        self.public = bytes([number]) * 32

    def sign(self, data: bytes) -> bytes:
        """64 bytes."""
        return _mac(self.public, data)


def _mac(key: bytes, data: bytes) -> bytes:
    return sha256(key + data).digest() * 2


MAC = Mac()
SIGNERS = [MacSigner(number) for number in range(1, 9)]


# -- mutation of msgpack -----------------------------------------------------------------------------------------------


def mutate_msgpack(data: bytes, random: Random) -> bytes | None:
    """``data`` with something changed in what it encodes, msgpack inside of msgpack too; None if it is no msgpack."""
    try:
        value = msgpack.unpackb(data, use_list=True, strict_map_key=False, raw=False)
    except (ValueError, msgpack.UnpackException, TypeError):
        return None
    try:
        return bytes(msgpack.packb(_mutated(value, random, 0)))
    except (ValueError, TypeError, OverflowError, RecursionError):
        return None


def _mutated(value: Any, random: Random, depth: int) -> Any:
    if isinstance(value, list) and value and random.random() < (0.95 if depth < 3 else 0.6):
        index = random.randrange(len(value))
        what = random.random()
        if what < 0.8:
            return [*value[:index], _mutated(value[index], random, depth + 1), *value[index + 1 :]]
        if what < 0.87:
            return value[:index] + value[index + 1 :]
        if what < 0.95:
            return [*value[:index], random.choice(value), *value[index:]]
        random.shuffle(value)
        return value
    if isinstance(value, dict) and value and random.random() < 0.7:
        key = random.choice(list(value))
        return {**value, key: _mutated(value[key], random, depth + 1)}
    if isinstance(value, bytes) and len(value) > 2 and random.random() < 0.8:
        inner = mutate_msgpack(value, random)
        if inner is not None:
            return inner
    return _changed(value, random)


def _changed(value: Any, random: Random) -> Any:
    if isinstance(value, int) and random.random() < 0.8:
        return random.choice([value + 1, max(value - 1, 0), value * 2, value // 2, random.choice(EDGES)])
    if isinstance(value, bytes) and value and random.random() < 0.8:
        index = random.randrange(len(value))
        return value[:index] + bytes([random.randrange(256)]) + value[index + 1 :]
    if isinstance(value, str) and random.random() < 0.8:
        return random.choice([value + "x", value[:-1], value * 2, "", "é", "a" * 129])
    return Draw(random.randbytes(4)).junk()
