"""Messages that a server owes a peer beside its answers: each is a record, due until the peer accepts it.

A truncation for a site, an introduction, a report on a claim: what they have in common is that nothing waits for
them, that they must arrive all the same, and that they may arrive twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from leasekit.actors.dispatch import takes
from leasekit.actors.kernel import Kernel
from leasekit.core.leases.relations import Notice
from leasekit.core.protocol.codec import encode_message
from leasekit.core.protocol.messages import Accepted, ErrorReply, Message
from leasekit.core.schema import Row
from leasekit.core.time import Instant
from leasekit.core.words import words


class Notices:
    """The notices that a server owes."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self.accepted: list[Callable[[Notice, bytes], None]] = []
        """Who is told, in order, that a peer has one, with the receipt that came for it: what waited for that can go
        on. If one of them raises ``LeasekitError`` the notice stays due."""
        self._notices: dict[str, Notice] = {}
        kernel.register(
            Notice,
            due_at=lambda notice: min(notice.send_at, notice.until),
            on_due=self._due,
            owes=lambda notice, peer: notice.id in self._notices and notice.peer == peer,
            send=self._send_now,
        )

    def __iter__(self) -> Iterator[Notice]:
        return iter(self._notices.values())

    def owe(self, id_: str, peer: str, subject: str, number: int, message: Message, until: Instant) -> None:
        """Owe ``message`` to ``peer``; a notice of the same ``id_`` that is still due is replaced."""
        old = self._notices.get(id_)
        if old is not None:
            self._end(old)
        notice = Notice(id_, peer, subject, number, until, encode_message(message))
        self._notices[id_] = notice
        self._send(notice)
        self._kernel.touch(notice)

    def _send(self, notice: Notice) -> None:
        self._kernel.send(notice.peer, notice.content())
        self._kernel.owe(notice, notice.peer)
        notice.send_at = self._kernel.now + self._kernel.backoff(notice.tries)
        notice.tries += 1

    @takes(Accepted)
    def _on_accepted(self, peer: str, message: Accepted) -> None:
        for notice in self._waiting_for(peer, message.lease, message.number):
            for tell in self.accepted:
                tell(notice, message.receipt)
            self._end(notice)

    def refused(self, peer: str, message: ErrorReply) -> bool:
        """A peer that can't take a notice has had it; one that can't take an update is sent it again."""
        for notice in self._waiting_for(peer, message.lease, message.number) if message.number else ():
            self._end(notice)
            self._kernel.complain(f"{peer} refused a notice about {message.lease}: {words(message.reason)}")
        return True

    def _waiting_for(self, peer: str, subject: str, number: int) -> list[Notice]:
        return [n for n in self._notices.values() if (n.peer, n.subject, n.number) == (peer, subject, number)]

    def _end(self, notice: Notice) -> None:
        del self._notices[notice.id]
        self._kernel.owe_no_more(notice, notice.peer)
        self._kernel.erase(notice)

    # -- time and state ----------------------------------------------------------------------------------------

    def _due(self, notice: Notice) -> None:
        if notice.until <= self._kernel.now:
            self._end(notice)
        elif notice.send_at <= self._kernel.now:
            self._send(notice)

    def _send_now(self, notice: Notice, peer: str) -> None:
        notice.tries = 0
        self._send(notice)

    def restore(self, rows: Iterable[Row]) -> None:
        """Take up what a store kept: it is sent at once."""
        for notice in map(Notice.from_row, rows):
            self._notices[notice.id] = notice
            self._kernel.owe(notice, notice.peer)
            self._kernel.schedule(notice, self._kernel.now)
