"""Messages that a server owes a peer beside its answers: each is a record, due until the peer accepts it.

A truncation for a site, an introduction, a report on a claim: what they have in common is that nothing waits for
them, that they must arrive all the same, and that they may arrive twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar

from leasekit.actors.dispatch import takes
from leasekit.actors.served import ServedLease, Server
from leasekit.core.leases.relations import Notice
from leasekit.core.protocol.codec import encode_message
from leasekit.core.protocol.messages import Accepted, ErrorReply, Message
from leasekit.core.schema import Row
from leasekit.core.time import Instant

L = TypeVar("L", bound=ServedLease)


class Notices(Server[L], Generic[L]):
    """A server that owes notices."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.notices: dict[str, Notice] = {}
        self.refused.append(self._notice_refused)
        self.kernel.register(
            Notice,
            due_at=lambda notice: min(notice.send_at, notice.until),
            on_due=self._notice_due,
            owes=lambda notice, peer: notice.id in self.notices and notice.peer == peer,
            send=self._send_notice_now,
        )

    def notify(self, id_: str, peer: str, subject: str, number: int, message: Message, until: Instant) -> None:
        """Owe ``message`` to ``peer``; a notice of the same ``id_`` that is still due is replaced."""
        old = self.notices.get(id_)
        if old is not None:
            self._end_notice(old)
        notice = Notice(id_, peer, subject, number, until, encode_message(message))
        self.notices[id_] = notice
        self._send_notice(notice)
        self.kernel.touch(notice)

    def _send_notice(self, notice: Notice) -> None:
        self.kernel.send(notice.peer, notice.content())
        self.kernel.owe(notice, notice.peer)
        notice.send_at = self.kernel.now + self.kernel.backoff(notice.tries)
        notice.tries += 1

    @takes(Accepted)
    def _on_accepted(self, peer: str, message: Accepted) -> None:
        for notice in self._waiting_for(peer, message.lease, message.number):
            self._accepted_notice(notice, message.receipt)
            self._end_notice(notice)

    def _accepted_notice(self, notice: Notice, receipt: bytes) -> None:
        """The peer has heard of it: what waited for that can go on. Raises ``LeasekitError`` if ``receipt`` is not what
        it takes: then the notice stays due.
        """

    def _notice_refused(self, peer: str, message: ErrorReply) -> bool:
        """A peer that can't take a notice has had it; one that can't take an update is sent it again."""
        for notice in self._waiting_for(peer, message.lease, message.number) if message.number else ():
            self._end_notice(notice)
            self.kernel.complain(f"{peer} refused a notice about {message.lease}: {message.text}")
        return True

    def _waiting_for(self, peer: str, subject: str, number: int) -> list[Notice]:
        return [n for n in self.notices.values() if (n.peer, n.subject, n.number) == (peer, subject, number)]

    def _end_notice(self, notice: Notice) -> None:
        del self.notices[notice.id]
        self.kernel.owe_no_more(notice, notice.peer)
        self.kernel.erase(notice)

    # -- time and state ----------------------------------------------------------------------------------------

    def _notice_due(self, notice: Notice) -> None:
        if notice.until <= self.kernel.now:
            self._end_notice(notice)
        elif notice.send_at <= self.kernel.now:
            self._send_notice(notice)

    def _send_notice_now(self, notice: Notice, peer: str) -> None:
        notice.tries = 0
        self._send_notice(notice)

    def _restore(self, tables: Mapping[str, Sequence[Row]]) -> None:
        super()._restore(tables)
        for row in tables.get("notices", ()):
            notice = Notice.from_row(row)
            self.notices[notice.id] = notice
            self.kernel.owe(notice, notice.peer)
            self.kernel.schedule(notice, self.kernel.now)
