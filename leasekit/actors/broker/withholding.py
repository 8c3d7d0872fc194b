"""What a broker's delegations lack for a while, or are let go of: said by their givers, and by the operator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from leasekit.actors.broker.book import Book
from leasekit.actors.broker.dependents import SourceDependents
from leasekit.actors.dispatch import command, takes
from leasekit.actors.issued import Issued
from leasekit.actors.kernel import Kernel
from leasekit.actors.keyring import Keyring
from leasekit.actors.notices import Notices
from leasekit.actors.settings import DELEGATE
from leasekit.actors.shares import withheld_shares
from leasekit.core.errors import CommandError, RemoteError
from leasekit.core.leases import delegation as deleg
from leasekit.core.leases.relations import Delegation, Withheld
from leasekit.core.protocol.messages import Accepted, LetGo, Withhold
from leasekit.core.reasons import Code, Reason
from leasekit.core.time import Term

WINDOWS_MAX = 100
"""How many maintenance windows of one delegation are heeded at once."""


class Withholding:
    """The maintenance windows of what a broker has: nothing new is granted then, and its takers hear of them."""

    def __init__(self, kernel: Kernel, keyring: Keyring, book: Book, notices: Notices, issued: Issued) -> None:
        self._kernel = kernel
        self._keyring = keyring
        self._book = book
        self._notices = notices
        self._issued = issued

    @takes(Withhold, DELEGATE)
    def _on_withhold(self, peer: str, message: Withhold) -> None:
        """The giver's units are in maintenance then: nothing new is granted of them."""
        source = self._book.get(message.delegation)
        if source is None or source.peer != peer:
            raise RemoteError(
                Code.UNKNOWN_DELEGATION, f"{self._keyring.name} holds no delegation {message.delegation} of {peer}"
            )
        known = next((one for one in source.withheld if one.window == message.window), None)
        if known is None or message.number > known.number:  # else it is a repeat, or was overtaken
            self._withhold(source, known, message)
        self._kernel.send(peer, Accepted(message.delegation, message.number))

    def _withhold(self, source: Delegation, known: Withheld | None, message: Withhold) -> None:
        kept = [one for one in source.withheld if one is not known and one.term.end > self._kernel.now]
        heeded = sum(one.units > 0 for one in kept)
        if message.units and heeded >= WINDOWS_MAX:
            raise RemoteError(
                Code.BUSY, f"{self._keyring.name} heeds {heeded} maintenance windows of {source.id}, its limit"
            )
        if len(kept) - heeded >= WINDOWS_MAX:  # those that were taken back are remembered for the order of messages
            kept.remove(next(one for one in kept if not one.units))
        window = Withheld(message.window, message.units, message.term, message.reason, message.number)
        if known is not None:
            self._book.withhold(source, known, -1)
        takers = [d for d in self._issued if d.source == source.id and d.state in (deleg.OFFERING, deleg.HELD)]
        rest = Term(max(message.term.start, min(self._kernel.now, message.term.end - 1)), message.term.end)
        told = withheld_shares(message.units, rest, self._book.table(source.id).available, takers)
        self._book.withhold(source, window, 1)
        source.withheld = (*kept, window)
        for record in takers:
            if record.id in told and (told[record.id] or known is not None):
                number = self._kernel.next("serial")
                passed = replace(message, delegation=record.id, number=number, units=told[record.id])
                until = message.term.end
                self._notices.owe(f"{message.window}@{record.id}", record.peer, record.id, number, passed, until)
        self._book.note_news()
        self._kernel.touch(source)


class ReleasedSources:
    """The delegations that the operator lets go of."""

    def __init__(self, kernel: Kernel, book: Book, notices: Notices, dependents: SourceDependents) -> None:
        self._kernel = kernel
        self._book = book
        self._notices = notices
        self._dependents = dependents

    @command("source.release")
    def _release(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Let go of what is held, as if its giver had taken it back: for one that is gone."""
        name = str(arguments.get("source", ""))
        found = [one for one in (self._book.get(name), *self._book.line(name)) if one is not None]
        sources = [one for one in dict.fromkeys(found) if deleg.MACHINE.allows((one.state, one.pending), "let_go")]
        if not found:
            known = ", ".join(sorted(one["source"] for one in self._book.describe(self._kernel.now))) or "(none)"
            raise CommandError(f"source: found {name!r}, held are {known}")
        if not sources:
            raise CommandError(f"source {name} is {found[0].state}: there is nothing to let go of")
        for source in sources:
            self._dependents.let_go(source, self._kernel.now, -1, Reason(Code.OPERATOR_LETS_GO))
            number, until = self._kernel.next("serial"), self._dependents.busy_until(source)
            message = LetGo(source.id, number, source.ticket, until)
            self._notices.owe(f"let_go:{source.id}", source.peer, source.id, number, message, source.term.end)
        return {"sources": [one.id for one in sources]}
