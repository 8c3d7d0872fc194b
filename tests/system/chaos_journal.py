"""What the processes of a chaos run write down, each in a file of its own, and all of it in the order of time.

A record is (monotonic nanoseconds, what, contents). It is written at once and in one piece, so what a process that is
killed had written is there; a torn last record is left out. All processes of a machine share the monotonic clock: what
one did because of another is written later than the cause.
"""

from __future__ import annotations

import heapq
import os
import pickle
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

LENGTH: Final = struct.Struct(">I")
SUFFIX: Final = ".journal"


class Record(NamedTuple):
    """``who`` wrote down ``what`` at ``at`` (monotonic nanoseconds)."""

    at: int
    who: str
    what: str
    contents: Any


class Journal:
    """A file of ``folder`` to which ``who`` writes; threads may share it."""

    def __init__(self, folder: Path, who: str) -> None:
        name = f"{who}~{time.monotonic_ns()}-{os.getpid()}{SUFFIX}"
        self._descriptor = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC)
        self._lock = threading.Lock()

    def write(self, what: str, contents: Any) -> None:
        """Write one record down."""
        with self._lock:
            body = pickle.dumps((time.monotonic_ns(), what, contents), pickle.HIGHEST_PROTOCOL)
            data = memoryview(LENGTH.pack(len(body)) + body)
            while data:
                data = data[os.write(self._descriptor, data) :]

    def close(self) -> None:
        """Nothing more is written."""
        os.close(self._descriptor)


def read(folder: Path) -> Iterator[Record]:
    """All records of a folder's journals, in the order of time."""
    return heapq.merge(*(_records(path) for path in sorted(folder.glob(f"*{SUFFIX}"))), key=lambda record: record.at)


def _records(path: Path) -> Iterator[Record]:
    who = path.name.partition("~")[0]
    data = path.read_bytes()
    at = 0
    while at + LENGTH.size <= len(data):
        (length,) = LENGTH.unpack_from(data, at)
        body = data[at + LENGTH.size : at + LENGTH.size + length]
        if len(body) < length:
            return
        instant, what, contents = pickle.loads(body)
        yield Record(instant, who, what, contents)
        at += LENGTH.size + length
