"""The errors of the core, split by whose fault they are.

A :class:`RemoteError` is a peer's fault: what it sent is malformed, unproven or out of turn; the record
concerned is untouched. A :class:`CommandError` is the local operator's or mapper's fault. Neither ever
stops an actor. Anything else that escapes the core is a bug of ours.
"""

from __future__ import annotations

from typing import Any

from leasekit.core.reasons import DETAIL_MAX, Code, Reason, clip, words


class LeasekitError(Exception):
    """The root of every error that leasekit raises on purpose; its text is fit for a user's eyes."""


class RemoteError(LeasekitError):
    """A peer sent something that can't be obeyed, for ``reason``: a code with values, or with words."""

    def __init__(self, code: str, text: str = "", because: Reason | None = None, **values: Any) -> None:
        self.reason = Reason(code, detail=clip(text, DETAIL_MAX), **values).because(because)
        super().__init__(words(self.reason))

    @property
    def code(self) -> str:
        """The reason's code."""
        return self.reason.code


class WireError(RemoteError):
    """Bytes that are not a message: too large, too deep, malformed, or a field outside its limits."""

    def __init__(self, text: str) -> None:
        super().__init__(Code.MALFORMED, text)


class TicketError(RemoteError):
    """A ticket, claim or statement that does not prove what it says; ``code`` names the check that failed."""


class ProtocolError(RemoteError):
    """A message that the lease's state table has no row for."""

    def __init__(self, text: str) -> None:
        super().__init__(Code.OUT_OF_TURN, text)


class CommandError(LeasekitError):
    """A command of the local operator, or a decision of a mapper, that can't be carried out, for ``reason``: words
    under a ``code``, or all of it.
    """

    def __init__(self, why: str | Reason, code: str = Code.SAID) -> None:
        self.reason = why if isinstance(why, Reason) else Reason(code, detail=clip(why, DETAIL_MAX))
        super().__init__(words(self.reason))


class ArgumentError(CommandError):
    """A command with an argument that can't be as it is: ``why`` names it, what was found and what is allowed."""

    def __init__(self, why: str) -> None:
        super().__init__(why, Code.BAD_ARGUMENT)
