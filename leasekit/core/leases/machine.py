"""State tables, and the one way to move through them.

A table maps ``(state, pending)`` to the events allowed there and where each leads. A pair or an event that is not in it
*is* the protocol error, and the record stays as it was. Terminal states have explicit empty rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

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


class _Flag(property):
    """A property that is true or false: the interpreter's own, for its speed. Each step of a lease asks several."""

    if TYPE_CHECKING:

        def __get__(self, record: Any, owner: type | None = None) -> bool: ...  # type: ignore[override] # of no class


class StateIn(_Flag):
    """Whether a record is in one of these states: a property of its class."""

    def __init__(self, *states: str) -> None:
        self.states = among = frozenset(states)
        super().__init__(lambda record: record.state in among)


class PendingIn(_Flag):
    """The same of what is pending."""

    def __init__(self, *pending: str) -> None:
        self.pending = among = frozenset(pending)
        super().__init__(lambda record: record.pending in among)


class JointIn:
    """The same of both together."""

    __slots__ = ("joints",)

    def __init__(self, *joints: Joint) -> None:
        self.joints = frozenset(joints)

    def __get__(self, record: Any, owner: type) -> bool:
        return (record.state, record.pending) in self.joints
