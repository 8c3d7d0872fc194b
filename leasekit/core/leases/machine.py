"""State tables, and the one way to move through them.

A table maps ``(state, pending)`` to the events allowed there and where each leads. A pair or an event that is not in it
*is* the protocol error, and the record stays as it was. Terminal states have explicit empty rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from leasekit.core.errors import ProtocolError

NONE = "-"
"""No pending operation."""

Joint: TypeAlias = tuple[str, str]
"""A state and what is pending in it."""

TransitionTable: TypeAlias = Mapping[Joint, Mapping[str, Joint]]


class Machine:
    """One role's table under a name."""

    __slots__ = ("name", "table")

    def __init__(self, name: str, table: TransitionTable) -> None:
        self.name = name
        self.table = table

    def next(self, joint: Joint, event: str) -> Joint:
        """Where ``event`` leads from ``joint``. Raises ``ProtocolError`` if the table has no such row."""
        try:
            return self.table[joint][event]
        except KeyError:
            raise ProtocolError(f"{self.name}: no {event!r} in {joint[0]}/{joint[1]}") from None

    def allows(self, joint: Joint, event: str) -> bool:
        """Whether the table has a row for it."""
        return event in self.table.get(joint, ())

    def terminal(self, joint: Joint) -> bool:
        """Whether nothing can happen any more."""
        return not self.table[joint]


class StateIn:
    """Whether a record is in one of these states: a property of its class."""

    __slots__ = ("states",)

    def __init__(self, *states: str) -> None:
        self.states = frozenset(states)

    def __get__(self, record: Any, owner: type) -> bool:
        found: bool = record.state in self.states
        return found


class PendingIn:
    """The same of what is pending."""

    __slots__ = ("pending",)

    def __init__(self, *pending: str) -> None:
        self.pending = frozenset(pending)

    def __get__(self, record: Any, owner: type) -> bool:
        found: bool = record.pending in self.pending
        return found


class JointIn:
    """The same of both together."""

    __slots__ = ("joints",)

    def __init__(self, *joints: Joint) -> None:
        self.joints = frozenset(joints)

    def __get__(self, record: Any, owner: type) -> bool:
        return (record.state, record.pending) in self.joints
