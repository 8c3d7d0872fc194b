"""Messages that a server owes a peer beside its answers: each is a record, due until the peer accepts it.

A truncation for a site, an introduction, a report on a claim: what they have in common is that nothing waits for
them, that they must arrive all the same, and that they may arrive twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar

from leasekit.actors.served import ServedLease, Server
from leasekit.core.leases.relations import Notice
from leasekit.core.protocol.codec import encode_message
from leasekit.core.protocol.messages import Accepted, ErrorReply, Message
from leasekit.core.schema import Change, Row
from leasekit.core.steps import Outgoing
from leasekit.core.time import Instant

L = TypeVar("L", bound=ServedLease)


class Notices(Server[L], Generic[L]):
    """A server that owes notices."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.notices: dict[str, Notice] = {}
        self._handlers[Accepted] = self._on_accepted

    def notify(self, id_: str, peer: str, subject: str, number: int, message: Message, until: Instant) -> None:
        """Owe ``message`` to ``peer``; a notice of the same ``id_`` that is still due is replaced."""
        old = self.notices.get(id_)
        if old is not None:
            self._end_notice(old)
        notice = Notice(id_, peer, subject, number, until, encode_message(message))
        self.notices[id_] = notice
        self._send_notice(notice)
        self._touch(notice)

    def _send_notice(self, notice: Notice) -> None:
        self._messages.append(Outgoing(notice.peer, notice.content()))
        self._owe(notice, notice.peer)
        notice.send_at = self.now + self._backoff(notice.tries)
        notice.tries += 1

    def _on_accepted(self, peer: str, message: Accepted) -> None:
        for notice in self._waiting_for(peer, message.lease, message.number):
            self._accepted_notice(notice, message.receipt)
            self._end_notice(notice)

    def _accepted_notice(self, notice: Notice, receipt: bytes) -> None:
        """The peer has heard of it: what waited for that can go on. Raises ``LeasekitError`` if ``receipt`` is not what
        it takes: then the notice stays due.
        """

    def _on_error(self, peer: str, message: ErrorReply) -> None:
        """A peer that can't take a notice has had it; one that can't take an update is sent it again."""
        if self._refused_errand(peer, message):
            return
        for notice in self._waiting_for(peer, message.lease, message.number) if message.number else ():
            self._end_notice(notice)
            self._complain(f"{peer} refused a notice about {message.lease}: {message.text}")

    def _waiting_for(self, peer: str, subject: str, number: int) -> list[Notice]:
        return [n for n in self.notices.values() if (n.peer, n.subject, n.number) == (peer, subject, number)]

    def _end_notice(self, notice: Notice) -> None:
        del self.notices[notice.id]
        self._forget_owed(notice, notice.peer)
        self._dirty.pop(id(notice), None)
        notice.timer = None
        self._changes.append(Change(notice.table, notice.id, None))

    # -- time and state ----------------------------------------------------------------------------------------

    def _due_at(self, record: Any) -> Instant | None:
        return min(record.send_at, record.until) if isinstance(record, Notice) else super()._due_at(record)

    def _on_due(self, record: Any) -> None:
        if not isinstance(record, Notice):
            super()._on_due(record)
        elif record.until <= self.now:
            self._end_notice(record)
        elif record.send_at <= self.now:
            self._send_notice(record)

    def _owes(self, record: Any, peer: str) -> bool:
        if isinstance(record, Notice):
            return record.id in self.notices and record.peer == peer
        return super()._owes(record, peer)

    def _send_owed(self, record: Any, peer: str) -> None:
        if isinstance(record, Notice):
            record.tries = 0
            self._send_notice(record)
        else:
            super()._send_owed(record, peer)

    def _restore(self, tables: Mapping[str, Sequence[Row]]) -> None:
        super()._restore(tables)
        for row in tables.get("notices", ()):
            notice = Notice.from_row(row)
            self.notices[notice.id] = notice
            self._owe(notice, notice.peer)
            self._schedule(notice, self.now)
