"""Who commanded what: each command that has a caller leaves a line in the log; one that has a key as well is carried
out once, however often it comes within a day.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Final

import attrs
import msgpack

from leasekit.actors.kernel import Dispatch, Kernel, keeps
from leasekit.actors.peering import PEER_COMMAND, Calls
from leasekit.core.commands import check_arguments
from leasekit.core.errors import CommandError, LeasekitError, RemoteError
from leasekit.core.reasons import Code, Reason
from leasekit.core.schema import Row
from leasekit.core.steps import Command, Reply
from leasekit.core.time import DAY, Duration, Instant

ANSWER_KEPT: Final[Duration] = DAY
"""How long a command's answer is kept for a repeat of it."""
ANSWERS_MAX: Final = 100_000
"""So many answers are kept; then the oldest goes."""
QUIET: Final = frozenset({"lease.keepalive", "gateway.present"})
"""Commands that come over and over, and change nothing that a history tells."""
_SUBJECTS: Final = ("lease", "unit", "slice", "topology", "window", "delegation", "peer", "source", "name")
"""The arguments that say what a command is about, where its answer has no id."""


@attrs.define(slots=True)
class CommandAnswer:
    """What was answered to a command: ``asked`` is the digest of the command, ``body`` its result in msgpack."""

    table: ClassVar[str] = "answers"
    id: str
    until: Instant
    asked: bytes
    body: bytes
    timer: Instant | None = None

    def row(self) -> Row:
        """Its row."""
        return (self.id, self.until, self.asked, self.body)


@keeps(rows="_answers")
class Commanded:
    """The commands of operators, and what was answered to those with keys."""

    def __init__(self, kernel: Kernel, dispatch: Dispatch, calls: Calls) -> None:
        self.calls = calls
        """Those that wait for a peer's answer."""
        self._kernel, self._dispatch = kernel, dispatch
        self._answers: dict[str, CommandAnswer] = {}
        kernel.register(CommandAnswer, due_at=lambda answer: answer.until, on_due=self._forget)

    def take(self, command: Command) -> None:
        """Carry a command out, or begin to."""
        deferred = self._dispatch.deferred.get(command.name)
        try:
            if deferred is not None:
                check_arguments(command.arguments)
                deferred(command)
                if command.name == PEER_COMMAND:  # the others only ask
                    self.note(command, str(command.arguments.get("peer", "")))
            else:
                carry_out = self._dispatch.prepare(command.name, command.arguments)
                self._kernel.reply(Reply(command.id, self.once(command, carry_out)))
        except (CommandError, RemoteError) as error:
            self._kernel.reply(Reply(command.id, error=str(error), reason=error.reason))
        except LeasekitError as error:
            self._kernel.reply(Reply(command.id, error=str(error)))

    def restore(self, rows: Iterable[Row]) -> None:
        """Take up what a store kept, oldest first."""
        for answer in sorted((CommandAnswer(*row) for row in rows), key=lambda answer: answer.until):
            self._answers[answer.id] = answer
            self._kernel.schedule(answer, answer.until)

    def once(self, command: Command, carry_out: Callable[[], Any]) -> Any:
        """The result of a command: carried out, or, of one with a key that was carried out before, what was answered
        then. Raises what carrying it out raises, and ``CommandError`` for a key that another command had.
        """
        if not command.key:
            result = carry_out()
        else:
            id_, asked = _digest(command.caller, command.key).hex(), _digest(command.name, command.arguments)
            known = self._answers.get(id_)
            if known is not None:
                if known.asked != asked:
                    raise CommandError(Reason(Code.KEY_USED, what=command.name))
                return msgpack.unpackb(known.body)
            result = carry_out()
            self._keep(CommandAnswer(id_, self._kernel.now + ANSWER_KEPT, asked, msgpack.packb(result)))
        self.note(command, _subject(command.arguments, result))
        return result

    def note(self, command: Command, subject: str) -> None:
        """Write down who commanded it, if that is known."""
        if command.caller and command.name not in QUIET:
            why = Reason(Code.COMMANDED, who=command.caller[:256], what=command.way[:256])
            self._kernel.note(subject, command.name, "", "", why)

    def _keep(self, answer: CommandAnswer) -> None:
        if len(self._answers) >= ANSWERS_MAX:
            self._forget(next(iter(self._answers.values())))
        self._answers[answer.id] = answer
        self._kernel.touch(answer)

    def _forget(self, answer: CommandAnswer) -> None:
        del self._answers[answer.id]
        self._kernel.erase(answer)


def _digest(*what: Any) -> bytes:
    return hashlib.sha256(msgpack.packb(what)).digest()


def _subject(arguments: Mapping[str, Any], result: Any) -> str:
    """What a command was about: what its answer calls it, else the first of its arguments that names something."""
    if isinstance(result, Mapping) and isinstance(result.get("id"), str):
        return str(result["id"])
    return next((str(arguments[name])[:256] for name in _SUBJECTS if arguments.get(name)), "")
