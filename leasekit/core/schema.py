"""The tables that every store keeps, and what a store is.

An actor's state is rows. Columns are for people; ``body`` holds the whole record in msgpack, and is
what an actor restores itself from. A row with ``live = 0`` belongs to the past: it stays for history, and is not
loaded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from leasekit.core.errors import LeasekitError
from leasekit.core.time import DAY, Duration, Instant, Term

Row: TypeAlias = tuple[Any, ...]
"""Values in the order of the table's columns: int, str, bytes or None."""


class Table(NamedTuple):
    """``columns`` maps names to ``int``, ``str`` or ``bytes``; the first column is the key."""

    columns: Mapping[str, type]
    archived: bool = False
    """Whether rows with ``live = 0`` are kept, and left out when the actor's state is loaded; ``live`` is indexed."""


TABLES: Final[Mapping[str, Table]] = {
    "meta": Table({"key": str, "value": int}),
    "slices": Table({"id": str, "name": str, "live": int, "body": bytes}, archived=True),
    "leases": Table(
        {
            "id": str, "live": int, "slice": str, "peer": str, "type": str, "state": str, "pending": str,
            "units": int, "term_start": int, "term_end": int, "reason": str, "updated": int, "body": bytes,
        },
        archived=True,
    ),
    "units": Table(
        {"id": str, "lease": str, "type": str, "state": str, "action": int, "reason": str, "body": bytes}
    ),
    "claims": Table(
        {
            "id": str, "live": int, "parent": str, "lease": str, "issuer": str, "holder": str, "type": str,
            "units": int, "term_start": int, "term_end": int, "state": str, "body": bytes,
        },
        archived=True,
    ),
    "delegations": Table(
        {
            "id": str, "peer": str, "type": str, "units": int, "term_start": int, "term_end": int, "state": str,
            "reason": str, "body": bytes,
        }
    ),
    "returns": Table({"id": str, "lease": str, "stage": str, "body": bytes}),
    "notices": Table({"id": str, "peer": str, "state": str, "until": int, "body": bytes}),
    "peers": Table({"id": str, "role": str, "key": str, "address": str, "origin": str, "body": bytes}),
    "maintenance": Table({"id": str, "start": int, "end": int, "reason": str, "body": bytes}),
    "unit_changes": Table({"id": str, "type": str, "gone": int, "body": bytes}),
    "host_kinds": Table({"id": str, "type": str, "body": bytes}),
    "saved": Table(
        {"id": str, "lease": str, "holder": str, "type": str, "state": str, "until": int, "body": bytes}
    ),
    "outages": Table({"id": str, "state": str, "since": int, "again": int, "reason": str, "body": bytes}),
    "plans": Table({"id": str, "peer": str, "state": str, "expires": int, "body": bytes}),
    "usage": Table({"id": str, "holder": str, "type": str, "until": int, "body": bytes}),
    "evidence": Table({"id": str, "at": int, "kind": str, "guilty": str, "words": str, "body": bytes}),
    "overrides": Table({"id": str, "peer": str, "type": str, "units": int, "until": int, "body": bytes}),
    "keepalives": Table({"id": str, "length": int}),
    "answers": Table({"id": str, "until": int, "asked": bytes, "body": bytes}),
    "tokens": Table(
        {"id": str, "name": str, "caller": str, "digest": bytes, "created": int, "body": bytes}
    ),
    "users": Table({"id": str, "created": int, "body": bytes}),
    "policies": Table({"id": str, "body": bytes}),
    "rules": Table({"id": str, "project": str, "caller": str, "body": bytes}),
    "deliveries": Table({"id": str, "rule": str, "state": str, "at": int, "body": bytes}),
    "feeds": Table({"id": str, "project": str, "digest": bytes, "body": bytes}),
    "positions": Table({"id": str, "seq": int}),
    "approvals": Table({"id": str, "project": str, "until": int, "body": bytes}),
    "waits": Table({"id": str, "project": str, "body": bytes}),
    "templates": Table({"id": str, "project": str, "body": bytes}),
    "announcements": Table({"id": str, "body": bytes}),
    "reports": Table({"id": str, "at": int, "peer": str, "code": str, "reason": str, "body": bytes}),
}  # fmt: skip
"""Every table but the log, by name."""

LOG_COLUMNS: Final[Mapping[str, type]] = {
    "at": int, "lease": str, "event": str, "from_state": str, "to_state": str, "why": str,
}  # fmt: skip
"""The transition log: append only, numbered by the store in a column ``seq`` that comes first."""
LOG: Final = "log"
COPIED: Final = "copied"
"""In ``meta`` of a store that is a copy, or takes the place of one that is lost: since when, milliseconds. What was
committed to the other one may be missing, so the actor gives none of the numbers that it may have given there."""


class Change(NamedTuple):
    """One row to write (``row`` holds all columns), or to delete (``row`` is None, ``key`` says which); log rows are
    appended, their key is empty.
    """

    table: str
    key: str
    row: Row | None


class LogRow(NamedTuple):
    """One line of the transition log."""

    seq: int
    at: int
    lease: str
    event: str
    from_state: str
    to_state: str
    why: str


class History(NamedTuple):
    """How much a store keeps of what is over: for ``kept`` ms, and ``most`` rows of one owner in each table."""

    kept: Duration = 365 * DAY
    most: int = 500_000


class StoreError(LeasekitError):
    """A store that can't be opened or written: its text names the file, what was found and what to do."""


class Store(Protocol):
    """Keeps one actor's rows. Not thread-safe; the shell calls it from one place."""

    def load(self) -> dict[str, list[Row]]:
        """All rows of every table but the log; archived tables without the rows whose ``live`` is 0. In key order."""
        ...

    def commit(self, changes: Sequence[Change]) -> None:
        """Apply all in one durable transaction, or none. Later changes to the same key win. Raises ``StoreError``."""
        ...

    def history(self, lease: str) -> list[LogRow]:
        """The transitions of one lease, in order."""
        ...

    def log(self, after: int = 0, limit: int | None = None, code: str = "", before: int = 0) -> list[LogRow]:
        """Transitions with ``seq > after``, in order; with ``before`` those that have less, newest first. With a
        ``code`` those whose reason has it.
        """
        ...

    def log_end(self) -> int:
        """The ``seq`` of the last transition; 0 if there is none."""
        ...

    def archived(self, table: str, limit: int | None = None) -> list[Row]:
        """Rows of an archived table whose ``live`` is 0, newest first."""
        ...

    def past(self, period: Term, after: tuple[Instant, str], limit: int, state: str = "") -> list[Row]:
        """Rows of leases that are over, and ended in ``period`` or later, but began before its end; in order of when
        they ended, and of their ids: those that come after ``after``, of a ``state`` if one is given.
        """
        ...

    def get(self, table: str, key: str) -> Row | None:
        """One row, live or not."""
        ...

    def close(self) -> None:
        """Release what the store holds; nothing may be called after."""
        ...
