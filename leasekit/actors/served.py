"""What broker and authority share as servers: numbered requests in, numbered updates out, notices that are sent to
peers, and reports of trouble.

A request with the number last seen is a repeat and is answered from the record; a lower one is dropped; a higher one is
new. An update is due, in order, until the client acknowledges it; a notice until its peer accepts it, or it is of no
use any more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from hashlib import sha256
from heapq import nsmallest
from typing import Final, Generic, TypeAlias, TypeVar

import attrs

from leasekit.actors.kernel import Kernel, keeps, takes
from leasekit.actors.peering import Keyring
from leasekit.core.answers import ReportDetails
from leasekit.core.claims.signed import key_tag
from leasekit.core.commands import ListLeases, ShowLease, by_number
from leasekit.core.errors import CommandError, RemoteError
from leasekit.core.leases.records import BrokerLease, Delegation, Notice, Report, SiteLease, Update, Withheld
from leasekit.core.properties import Properties, is_plain
from leasekit.core.protocol.codec import encode_message
from leasekit.core.protocol.messages import (
    LIFE,
    OUT,
    UNKNOWN,
    Accepted,
    Ack,
    ClaimReport,
    CloseLease,
    ErrorReply,
    Introduce,
    LeaseUpdate,
    LetGo,
    Message,
    Redeem,
    RequestTicket,
    TicketUpdate,
    Truncated,
    Withhold,
)
from leasekit.core.reasons import Code, Reason, words
from leasekit.core.schema import Row
from leasekit.core.time import INSTANT_MAX, MINUTE, SECOND, Instant, Term

Request: TypeAlias = RequestTicket | Redeem | CloseLease
"""What is asked about a lease, and kept."""

FRESH, REPEAT, OLD = "fresh", "repeat", "old"
RECORD_BYTES: Final = 4096
"""What a lease takes in memory besides what its holder has said of it (``benchmarks/memory.py``: 4,456 with that)."""
PAIR_BYTES: Final = 128
"""What a pair of properties takes in memory besides its characters: two objects, and a place in a dict."""
WIDE: Final = 4
"""How many bytes each character of a text takes in memory where one of them is not ASCII, at most."""
UNACKED_MAX: Final = 64
"""How many updates a lease may owe its client before new requests about it are refused."""


def comes_early(update: int, seen: int) -> bool:
    """Whether others that are due come before an update, where ``seen`` was the last."""
    return update > seen + 1 and seen != UNKNOWN and update % LIFE != 1


def acknowledge(update: TicketUpdate | LeaseUpdate) -> Ack:
    """The acknowledgement of an update."""
    signed = update.ticket if isinstance(update, TicketUpdate) else update.contract
    return Ack(update.lease, update.update, sha256(signed).digest())


def properties_overhead(properties: Properties) -> int:
    """How many bytes a property list takes in memory beyond its length on the wire."""
    wide = sum(len(text) for pair in properties.items() for text in pair if not text.isascii())
    return PAIR_BYTES * len(properties) + (WIDE - 1) * wide


ServedLease: TypeAlias = BrokerLease | SiteLease
"""A server's record of a lease."""
L = TypeVar("L", BrokerLease, SiteLease)


@keeps(rows="leases", volatile="_to_accept", derived="_tags _sizes _kept")
class Served(Generic[L]):
    """The leases of a server, whose records are ``L``: who holds each, which requests were answered, and which updates
    are due.
    """

    def __init__(self, kernel: Kernel, keyring: Keyring) -> None:
        self._kernel = kernel
        self._keyring = keyring
        self.name = keyring.name
        """Who serves them."""
        self.leases: dict[str, L] = {}
        self._tags: dict[str, str] = {}
        self._sizes: dict[str, int] = {}
        self._kept: Counter[str] = Counter()
        self._to_accept: dict[str, tuple[ServedLease, int]] = {}
        for known in keyring.peers:
            self._know_tags(known)

    def before_ready(self) -> None:
        """Requests that the Ready which is being made does not settle are acknowledged with ``Accepted``."""
        if self._to_accept:
            accept, self._to_accept = self._to_accept, {}
            for lease, number in accept.values():
                if not lease.has_answered(number):
                    self._kernel.send(lease.holder, Accepted(lease.id, number))

    def freshness(self, lease: ServedLease | None, peer: str, number: int) -> str:
        """Whether a request is new, a repeat or old. Raises ``RemoteError`` if the lease is another holder's."""
        if number <= 0:
            raise RemoteError(Code.BAD_NUMBER, f"request number is {number}, it must be positive")
        if lease is None:
            return FRESH
        self.check_holder(lease, peer)
        if number > lease.number:
            return FRESH
        return REPEAT if number == lease.number else OLD

    def is_news(self, lease: L | None, peer: str, message: Request) -> bool:
        """Whether a request is to be looked at: an old one is not, and a repeat is answered from the record. Raises
        ``RemoteError`` if the lease is another holder's, its holder takes no answers, or too much is kept of it.
        """
        fresh = self.freshness(lease, peer, message.number)
        if fresh == REPEAT:
            assert lease is not None, "a repeat has a record"
            self.repeat(lease, message.number)
        elif fresh == FRESH:
            self._check_heard(lease)
            self._check_kept(peer, message)
        return fresh == FRESH

    def _check_heard(self, lease: ServedLease | None) -> None:
        """Who takes no answers gets no more of them: they are kept until then. Raises ``RemoteError``."""
        if lease is not None and len(lease.unacked) >= UNACKED_MAX:
            raise RemoteError(
                Code.BUSY, f"lease {lease.id} has {len(lease.unacked)} updates that wait to be acknowledged"
            )

    def _check_kept(self, peer: str, message: Request) -> None:
        """Raises ``RemoteError`` where what is kept of a peer would take more than its budget."""
        most = self._kernel.settings.kept_bytes
        found = self._kept[peer] + self._growth(message)
        if found > most:
            raise RemoteError(
                Code.BUSY,
                f"{self.name} would keep {found} bytes of what {peer} says, its limit is {most}: try again later",
            )

    def _growth(self, message: Request) -> int:
        if self._kernel.settings.kept_bytes == INSTANT_MAX:  # nobody has a budget
            return 0
        if isinstance(message, RequestTicket):
            extra = properties_overhead(message.properties)
        elif isinstance(message, Redeem):
            extra = properties_overhead(message.resource) + properties_overhead(message.properties)
        else:
            extra = 0
        found = RECORD_BYTES + len(encode_message(message)) + extra
        return max(0, found - self._sizes.get(message.lease, 0))

    def _count(self, lease: ServedLease, size: int) -> None:
        """So many more bytes are kept of a lease."""
        self._sizes[lease.id] = self._sizes.get(lease.id, 0) + size
        self._kept[lease.holder] += size

    def restore(self, lease: L, row: Row) -> None:
        """Take up a lease that a store kept as a row."""
        if copied := self._kernel.copied:
            lease.update = max(lease.update, copied // SECOND * LIFE)
            self._kernel.touch(lease)
        self.leases[lease.id] = lease
        kept = (lease.asked.properties,) if isinstance(lease, BrokerLease) else (lease.resource, lease.properties)
        self._count(lease, RECORD_BYTES + len(row[-1]) + sum(map(properties_overhead, kept)))

    def is_holders(self, lease: ServedLease, peer: str) -> bool:
        """Whether a lease is that of ``peer``: of its name, and the key that first asked for it, or its successor."""
        known = self._keyring.peers.get(peer)
        if lease.holder != peer or known is None:
            return False
        return lease.key in (b"", known.key) or lease.key in known.keys

    def key_of(self, peer: str) -> bytes:
        """The key of a peer, which it holds leases by."""
        return self._keyring.key_of(peer)

    def check_holder(self, lease: ServedLease, peer: str) -> None:
        """Raises ``RemoteError`` unless a lease is that of ``peer``."""
        if not self.is_holders(lease, peer):
            other = lease.holder == peer
            raise RemoteError(
                Code.NOT_YOURS,
                f"lease {lease.id} is not held by {peer}{', whose key was another then' if other else ''}",
            )

    def check_id(self, id_: str, peer: str, what: str = "lease") -> None:
        """Ids are derived from their holder's key: nobody can take one before its holder does. Where two keys are given
        the same ids, they are those of the peer that was known first. Raises ``RemoteError``.
        """
        if not is_plain(id_):
            raise RemoteError(Code.BAD_ID, f"{what}: found {id_!r}, ids have no control characters")
        tags = [key_tag(key) for key in self._keyring.keys_of(peer)]
        tag = next((tag for tag in tags if id_.startswith(f"{tag}-")), None)
        if tag is None:
            raise RemoteError(Code.BAD_ID, f"{what}: found {id_!r}, ids of {peer}'s {what}s begin with {tags[0]}-")
        owner = self._tags.get(tag, peer)
        if owner != peer:
            theirs = f"{what}: ids that begin with {tag}- are those of {owner} at {self._keyring.name}"
            raise RemoteError(
                Code.BAD_ID, f"{theirs}; {peer} has another key that gives the same ones: make a new one with "
                "`leasekit keys rotate`"
            )  # fmt: skip

    def retag(self, name: str) -> None:
        """A peer is known otherwise: other ids are those of its keys."""
        self._tags = {tag: owner for tag, owner in self._tags.items() if owner != name}
        self._know_tags(name)

    def _know_tags(self, name: str) -> None:
        known = self._keyring.peers.get(name)
        if known is not None:
            for key in known.keys:
                self._tags.setdefault(key_tag(key), name)

    def repeat(self, lease: ServedLease, number: int) -> None:
        """Answer a repeat from the record: what is settled again, or that it is being worked on."""
        if lease.unacked:
            self.send(lease)
        else:
            self._kernel.send(lease.holder, Accepted(lease.id, number))

    def accept(self, lease: ServedLease, message: Request) -> None:
        """A request is taken: that is acknowledged, unless the next Ready settles it."""
        self._to_accept[lease.id] = (lease, message.number)
        self._count(lease, self._growth(message))

    def publish(self, lease: ServedLease, message: TicketUpdate | LeaseUpdate) -> None:
        """Remember an update, which has the next number, and send it."""
        lease.update += 1
        assert message.update == lease.update, "updates are numbered without gaps"
        lease.unacked.append(Update(lease.update, message))
        self._tell(lease, message)
        lease.tries = 0
        lease.send_at = self._kernel.again_at(0)
        self._kernel.owe(lease, lease.holder)
        self._kernel.touch(lease)

    def _tell(self, lease: ServedLease, message: Message) -> None:
        """To its holder: not to who has that name, but another key, by now."""
        if self.is_holders(lease, lease.holder):
            self._kernel.send(lease.holder, message)

    def send(self, lease: ServedLease) -> None:
        """Send what its holder has not acknowledged, again."""
        for update in lease.unacked:
            self._tell(lease, update.message)
        lease.tries += 1
        lease.send_at = self._kernel.again_at(lease.tries)
        self._kernel.touch(lease)

    @takes(Ack)
    def _on_ack(self, peer: str, message: Ack) -> None:
        lease = self.leases.get(message.lease)
        if lease is None:
            return
        meant = next((update.message for update in lease.unacked if update.number == message.update), None)
        if meant is None or message.signed != acknowledge(meant).signed:
            return  # it is of a lease that was forgotten, and has been made anew since
        if not self.is_holders(lease, peer):
            return
        # Only of this one: who has forgotten the lease, or has it as over, acknowledges whatever comes, in any order.
        lease.unacked = [update for update in lease.unacked if update.number != message.update]
        if not lease.unacked:
            self._kernel.owe_no_more(lease, peer)
        self._kernel.touch(lease)

    def drop_at(self, lease: ServedLease) -> Instant:
        """When a lease that is over may be forgotten: after the retention, later if its last word was not heard."""
        return lease.ended + self._kernel.settings.retention * (10 if lease.unacked else 1)

    def drop(self, lease: L) -> None:
        """Forget a lease that is over; its row stays as history, or goes if none is wanted."""
        del self.leases[lease.id]
        self._kept[lease.holder] -= self._sizes.pop(lease.id, 0)
        if not self._kept[lease.holder]:
            del self._kept[lease.holder]
        lease.unacked = []
        self._kernel.owe_no_more(lease, lease.holder)
        was = bool(lease.type)  # else only closes were heard of it, which anybody can make up
        self._kernel.erase(lease, keep=was and self._kernel.settings.keep_closed)

    def awaits(self, lease: ServedLease, peer: str) -> bool:
        """Whether ``peer`` has updates of a lease to acknowledge."""
        return bool(lease.unacked) and lease.holder == peer

    def send_now(self, lease: ServedLease, peer: str) -> None:
        """Send them to a peer that has just connected."""
        self.send(lease)

    def listed(self, asked: ListLeases) -> list[L]:
        """The leases that an operator asks for."""
        found = (lease for lease in self.leases.values() if asked.all or lease.ended < 0)
        if not asked.limit and not asked.after:
            return list(found)
        after = by_number(asked.after)
        later = (lease for lease in found if not asked.after or by_number(lease.id) > after)
        return nsmallest(asked.limit or len(self.leases), later, key=lambda lease: by_number(lease.id))

    def find(self, asked: ShowLease) -> L:
        """The one that an operator asks for. Raises ``CommandError``."""
        lease = self.leases.get(asked.lease)
        if lease is None:
            raise CommandError(f"no lease {asked.lease!r} here", Code.NOT_FOUND)
        return lease


NoticeMessage: TypeAlias = ClaimReport | Introduce | LetGo | Truncated | Withhold


@keeps(rows="_notices")
@attrs.define(eq=False, slots=False)
class Notices:
    """The notices that a server sends until they are acknowledged."""

    _kernel: Kernel
    accepted: list[Callable[[Notice, bytes], None]] = attrs.field(factory=list, init=False)
    """Who is told, in order, that a peer has one, with the receipt that came for it: what waited for that can go
    on. If one of them raises ``LeasekitError`` the notice stays due."""
    _notices: dict[str, Notice] = attrs.field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        self._kernel.register(
            Notice,
            due_at=lambda notice: min(notice.send_at, notice.until),
            on_due=self._due,
            awaits=lambda notice, peer: notice.id in self._notices and notice.peer == peer,
            send=lambda notice, peer: self._send(notice),
        )

    def __iter__(self) -> Iterator[Notice]:
        return iter(self._notices.values())

    def owe(self, id_: str, peer: str, message: NoticeMessage, until: Instant) -> None:
        """Owe ``message`` to ``peer``; a notice of the same ``id_`` that is still due is replaced."""
        old = self._notices.get(id_)
        if old is not None:
            self._end(old)
        notice = Notice(id_, peer, message.subject, message.number, until, encode_message(message))
        self._notices[id_] = notice
        self._send(notice)
        self._kernel.touch(notice)

    def withhold(self, record: Delegation, window: Withheld) -> None:
        """The holder of ``record``, which was given, hears of a maintenance window, if that is news."""
        known = next((one for one in record.withheld if one.window == window.window), None)
        if known is None and not window.units:
            return
        if known is not None:
            # What is out of service is so from now on, whenever that is said.
            term = Term(known.term.start, window.term.end) if window.window == OUT else window.term
            if window._replace(term=term, number=known.number) == known:
                return
        window = window._replace(number=self._kernel.next("serial"))
        kept = [one for one in record.withheld if one is not known and one.term.end > self._kernel.now]
        record.withheld = (*kept, *([window] if window.units else ()))
        self._kernel.touch(record)
        name, units, term, reason, number, each = window
        message = Withhold(record.id, number, name, units, term, reason, each)
        # A window that is open has no end of its own.
        self.owe(f"{name}@{record.id}", record.peer, message, min(term.end, record.term.end))

    def _send(self, notice: Notice) -> None:
        self._kernel.send_owed(notice, notice.peer, notice.content())

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

    def restore(self, rows: Iterable[Row]) -> None:
        """Take up what a store kept: it is sent at once."""
        for notice in map(Notice.from_row, rows):
            self._notices[notice.id] = notice
            self._kernel.owe(notice, notice.peer)
            self._kernel.schedule(notice, self._kernel.now)


REPORTS_KEPT: Final = 20
REPORTS_SHOWN: Final = 5
"""How many of them an actor tells with its status."""
REPORT: Final = "report"
REPORTS_A_MINUTE: Final = 30
"""How many of them one peer makes at most, that others' stay, and the log and the store do not fill."""


@keeps(rows="_reports", volatile="_heard")
@attrs.define(eq=False, slots=False)
class Reports:
    """The reports that the actor called ``name`` keeps."""

    _kernel: Kernel
    _name: str
    _reports: dict[str, Report] = attrs.field(factory=dict, init=False)
    _heard: dict[str, tuple[Instant, int]] = attrs.field(factory=dict, init=False)
    """Since when so many reports of a peer have come."""

    def __attrs_post_init__(self) -> None:
        self._kernel.register(Report)

    def keep(self, subject: str, reason: Reason, peer: str = "", *, event: str = REPORT) -> None:
        """Keep what was found about ``subject``, a claim or evidence, here or by ``peer``; what says the same as before
        changes nothing. ``event`` is what the log calls it.
        """
        id_ = f"{reason.code}:{subject}@{peer}"
        known = self._reports.pop(id_, None)
        if known is not None and known.reason == reason:
            self._reports[id_] = known
            return
        if peer and self._is_too_many(peer):
            return
        while len(self._reports) >= REPORTS_KEPT:
            of = Counter(one.peer for one in self._reports.values())
            self._forget(next(one for one in self._reports.values() if of[one.peer] == max(of.values())))
        report = self._reports[id_] = Report(id_, self._kernel.now, peer, subject, reason)
        self._kernel.touch(report)
        self._kernel.note("", event, "", "", Reason(Code.REPORTED, peer).because(reason) if peer else reason)

    def _is_too_many(self, peer: str) -> bool:
        """Whether a peer's report is one too many in a minute. How many there were is said when the next one comes."""
        began, count = self._heard.get(peer, (-MINUTE, 0))
        if self._kernel.now - began < MINUTE:
            self._heard[peer] = began, count + 1
            return count >= REPORTS_A_MINUTE
        if count > REPORTS_A_MINUTE:
            self._kernel.complain(f"{peer} made {count - REPORTS_A_MINUTE} more reports in a minute than are kept")
        self._heard[peer] = self._kernel.now, 1
        return False

    def _forget(self, report: Report) -> None:
        del self._reports[report.id]
        self._kernel.erase(report)

    def latest(self) -> list[ReportDetails]:
        """The latest, the last one at the end."""
        return [
            ReportDetails(one.subject, one.at, one.peer or self._name, one.reason.code, words(one.reason))
            for one in [*self._reports.values()][-REPORTS_SHOWN:]
        ]

    def restore(self, rows: Iterable[Row]) -> None:
        """Take up what a store kept."""
        found = map(Report.from_row, rows)
        self._reports = {one.id: one for one in sorted(found, key=lambda one: (one.at, one.id))}
