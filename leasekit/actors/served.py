"""What broker and authority share as servers: numbered requests in, numbered updates out.

A request with the number last seen is a repeat and is answered from the record; a lower one is dropped; a higher one is
new. An update is due, in order, until the client acknowledges it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final, Generic, Protocol, TypeVar

from leasekit.actors.dispatch import query, takes
from leasekit.actors.kernel import Kernel
from leasekit.actors.keyring import Keyring
from leasekit.core.claims.keys import key_tag
from leasekit.core.errors import CommandError, RemoteError
from leasekit.core.leases.records import Update
from leasekit.core.properties import is_plain
from leasekit.core.protocol.messages import Accepted, Ack, LeaseUpdate, Message, TicketUpdate, acknowledge
from leasekit.core.reasons import Code
from leasekit.core.schema import Change
from leasekit.core.time import Instant

FRESH, REPEAT, OLD = "fresh", "repeat", "old"
UNACKED_MAX: Final = 64
"""How many updates a lease may owe its client before new requests about it are refused."""


class ServedLease(Protocol):
    """What a server's lease record must have."""

    id: str
    table: ClassVar[str]
    type: str
    holder: str
    key: bytes
    number: int
    update: int
    unacked: list[Update]
    ended: Instant
    timer: Instant | None
    send_at: Instant
    tries: int

    def row(self) -> tuple[Any, ...]: ...

    def has_answered(self, number: int) -> bool:
        """Whether an update that answers a request is out."""


L = TypeVar("L", bound=ServedLease)


class Served(Generic[L]):
    """The leases of a server, whose records are ``L``: who holds each, which requests were answered, and which updates
    are due. ``describe`` is what an operator is shown of one.
    """

    def __init__(self, kernel: Kernel, keyring: Keyring, describe: Callable[[L], dict[str, Any]]) -> None:
        self._kernel = kernel
        self._keyring = keyring
        self._describe_lease = describe
        self.name = keyring.name
        """Who serves them."""
        self.leases: dict[str, L] = {}
        self._tags: dict[str, str] = {}
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

    def is_news(self, lease: L | None, peer: str, number: int) -> bool:
        """Whether a request is to be looked at: an old one is not, and a repeat is answered from the record. Raises
        ``RemoteError`` if the lease is another holder's, or its holder takes no answers.
        """
        fresh = self.freshness(lease, peer, number)
        if fresh == REPEAT:
            assert lease is not None, "a repeat has a record"
            self.repeat(lease, number)
        elif fresh == FRESH:
            self._check_heard(lease)
        return fresh == FRESH

    def _check_heard(self, lease: ServedLease | None) -> None:
        """Who takes no answers gets no more of them: they are kept until then. Raises ``RemoteError``."""
        if lease is not None and len(lease.unacked) >= UNACKED_MAX:
            raise RemoteError(
                Code.BUSY, f"lease {lease.id} has {len(lease.unacked)} updates that wait to be acknowledged"
            )

    def is_holders(self, lease: ServedLease, peer: str) -> bool:
        """Whether a lease is that of ``peer``: of its name, and the key that first asked for it, or its successor."""
        known = self._keyring.peers.get(peer)
        if lease.holder != peer or known is None:
            return False
        return lease.key in (b"", known.key) or any(key == lease.key for key, _ in known.former)

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
            for key in (known.key, *(key for key, _ in known.former)):
                self._tags.setdefault(key_tag(key), name)

    def repeat(self, lease: ServedLease, number: int) -> None:
        """Answer a repeat from the record: what is settled again, or that it is being worked on."""
        if lease.unacked:
            self.send(lease)
        else:
            self._kernel.send(lease.holder, Accepted(lease.id, number))

    def accept(self, lease: ServedLease, number: int) -> None:
        """Request ``number`` is taken: that is acknowledged, unless the next Ready settles it."""
        self._to_accept[lease.id] = (lease, number)

    def publish(self, lease: ServedLease, message: TicketUpdate | LeaseUpdate) -> None:
        """Remember an update, which has the next number, and send it."""
        lease.update += 1
        assert message.update == lease.update, "updates are numbered without gaps"
        lease.unacked.append(Update(lease.update, message))
        self._tell(lease, message)
        lease.tries = 0
        lease.send_at = self._kernel.now + self._kernel.backoff(0)
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
        lease.send_at = self._kernel.now + self._kernel.backoff(lease.tries)
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
        lease.unacked = []
        self._kernel.forget(lease)
        self._kernel.owe_no_more(lease, lease.holder)
        was = bool(lease.type)  # else only closes were heard of it, which anybody can make up
        self._kernel.changes.append(
            Change(lease.table, lease.id, lease.row() if was and self._kernel.settings.keep_closed else None)
        )

    def owes(self, lease: ServedLease, peer: str) -> bool:
        """Whether ``peer`` has updates of a lease to acknowledge."""
        return bool(lease.unacked) and lease.holder == peer

    def send_now(self, lease: ServedLease, peer: str) -> None:
        """Send them to a peer that has just connected."""
        lease.tries = 0
        self.send(lease)

    @query("leases")
    def _query_leases(self, arguments: Mapping[str, Any]) -> list[dict[str, Any]]:
        every = arguments.get("all", False)
        return [self._describe_lease(lease) for lease in self.leases.values() if every or lease.ended < 0]

    @query("lease")
    def _query_lease(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        lease = self.leases.get(str(arguments.get("lease", "")))
        if lease is None:
            raise CommandError(f"no lease {arguments.get('lease')!r} here")
        return self._describe_lease(lease)
