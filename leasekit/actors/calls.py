"""Commands that wait for a peer's answer: those that are for another actor, and questions that a peer is asked.

A peer that may ``administer`` commands this actor as its own operator does, over their connection: the command is
sent once, and the operator who asked hears what became of it, or that no answer came. Nothing of it is stored.
"""

from __future__ import annotations

import json
from typing import Any, Final

import attrs

from leasekit.actors.dispatch import Dispatch, check_arguments, deferred, takes
from leasekit.actors.kernel import Kernel
from leasekit.actors.keyring import Keyring
from leasekit.actors.settings import ADMINISTER
from leasekit.core.errors import CommandError, LeasekitError
from leasekit.core.protocol.fields import TEXT_MAX, WORD_MAX
from leasekit.core.protocol.messages import Administer, Administered, ErrorReply, Message
from leasekit.core.reasons import clip, said
from leasekit.core.schema import Change
from leasekit.core.steps import Command, Reply
from leasekit.core.time import SECOND, Duration, Instant
from leasekit.core.words import words

ADMINISTER_TIMEOUT: Final[Duration] = 30 * SECOND
"""How long the answer to a command for another actor is waited for."""


@attrs.define(slots=True, eq=False)
class PendingCall:
    """What a peer was sent for an operator's ``command``, which waits for the answer ``until`` then. ``subject`` is
    what the message is about, ``unheard`` what is said if no answer comes, ``repeat`` what is sent again when a
    connection comes up (None: it would do it twice).
    """

    id: str
    number: int
    peer: str
    command: int
    until: Instant
    subject: str
    unheard: str
    repeat: Message | None = None
    timer: Instant | None = None


class Calls:
    """The pending calls of an actor, and what peers have it do."""

    def __init__(self, kernel: Kernel, keyring: Keyring, dispatch: Dispatch) -> None:
        self._kernel = kernel
        self._keyring = keyring
        self._dispatch = dispatch
        self._calls: dict[str, PendingCall] = {}
        kernel.register_unkept(PendingCall, on_due=self._unheard)

    @deferred("peer.command")
    def _administer(self, command: Command) -> None:
        peer, name = str(command.arguments.get("peer", "")), str(command.arguments.get("command", ""))
        check_arguments(command.arguments)
        if peer not in self._keyring.peers:
            raise CommandError(f"peer: found {peer!r}, known are {', '.join(sorted(self._keyring.peers)) or '(none)'}")
        try:
            arguments = json.dumps(command.arguments.get("arguments", {}))
        except (TypeError, ValueError, RecursionError) as error:
            raise CommandError(f"arguments: {error}") from error
        if len(arguments) > TEXT_MAX or not 0 < len(name) <= WORD_MAX:
            raise CommandError(f"command: found {name!r:.80} with {len(arguments)} characters of arguments")
        unheard = f"{peer} did not answer within {ADMINISTER_TIMEOUT // SECOND} s; it may have obeyed"
        number = self.begin(command, peer, name, ADMINISTER_TIMEOUT, unheard).number
        self._kernel.send(peer, Administer(name, number, arguments))

    def begin(self, command: Command, peer: str, subject: str, timeout: Duration, unheard: str) -> PendingCall:
        """Have ``command`` wait for the peer's answer to a message, which must have the call's number."""
        number = self._kernel.next("serial")
        # Written down: after a restart no other may have this number, for which there may still come an answer.
        self._kernel.changes.append(Change("meta", "serial", ("serial", number)))
        call = PendingCall(f"call:{number}", number, peer, command.id, self._kernel.now + timeout, subject, unheard)
        self._calls[call.id] = call
        self._kernel.schedule(call, call.until)
        return call

    def connected(self, peer: str) -> None:
        """What may be sent again is, as it may have been lost with the last connection."""
        for call in self._calls.values():
            if call.peer == peer and call.repeat is not None:
                self._kernel.send(peer, call.repeat)

    def answered(self, peer: str, subject: str, number: int) -> PendingCall | None:
        """The call that a message from ``peer`` answers, if it does."""
        call = self._calls.get(f"call:{number}")
        return call if call is not None and (call.peer, call.subject) == (peer, subject) else None

    @takes(Administer, ADMINISTER)
    def _on_administer(self, peer: str, message: Administer) -> None:
        result, error = "", ""
        try:
            carry_out = self._dispatch.prepare(message.command, _object(message.arguments))
            self._kernel.note("", "administer", "", "", said(f"{peer}: {message.command} {message.arguments}"))
            result = json.dumps(carry_out())
        except LeasekitError as wrong:
            error = str(wrong)
        if len(result) > TEXT_MAX:
            result = json.dumps({"done": True, "note": "the answer is too long to send"})
        self._kernel.send(peer, Administered(message.command, message.number, result, clip(error)))

    @takes(Administered)
    def _on_administered(self, peer: str, message: Administered) -> None:
        call = self.answered(peer, message.command, message.number)
        if call is None:
            return
        try:
            result = json.loads(message.result) if message.result else None
        except (ValueError, RecursionError):
            result = message.result
        self.end(call, Reply(call.command, result, f"{peer}: {message.error}" if message.error else ""))

    def refused(self, peer: str, message: ErrorReply) -> bool:
        """Whether an error answers a command that ``peer`` was sent."""
        call = self.answered(peer, message.lease, message.number)
        if call is None:
            return False
        self.end(call, Reply(call.command, error=f"{peer}: {words(message.reason)}"))
        return True

    def end(self, call: PendingCall, reply: Reply) -> None:
        """The call is over, and its command answered."""
        del self._calls[call.id]
        self._kernel.forget(call)
        self._kernel.reply(reply)

    def _unheard(self, call: PendingCall) -> None:
        self.end(call, Reply(call.command, error=call.unheard))


def _object(text: str) -> dict[str, Any]:
    """The JSON object that a peer sent for arguments. Raises ``CommandError``."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CommandError(f"arguments: {error}") from error
    if not isinstance(found, dict):
        raise CommandError(f"arguments: found {text!r:.40}, expected a JSON object")
    return found
