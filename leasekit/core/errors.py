"""The errors of the core, split by whose fault they are.

A :class:`RemoteError` is a peer's fault: what it sent is malformed, unproven or out of turn; the record
concerned is untouched. A :class:`CommandError` is the local operator's or mapper's fault. Neither ever
stops an actor. Anything else that escapes the core is a bug of ours.
"""

from __future__ import annotations


class LeasekitError(Exception):
    """The root of every error that leasekit raises on purpose; its text is fit for a user's eyes."""


class RemoteError(LeasekitError):
    """A peer sent something that can't be obeyed. ``code`` is stable and short, the text says the rest."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


class WireError(RemoteError):
    """Bytes that are not a message: too large, too deep, malformed, or a field outside its limits."""

    def __init__(self, text: str) -> None:
        super().__init__("malformed", text)


class TicketError(RemoteError):
    """A ticket, claim or statement that does not prove what it says; ``code`` names the check that failed."""


class ProtocolError(RemoteError):
    """A message that the lease's state table has no row for."""

    def __init__(self, text: str) -> None:
        super().__init__("out_of_turn", text)


class CommandError(LeasekitError):
    """A command of the local operator, or a decision of a mapper, that can't be carried out."""
