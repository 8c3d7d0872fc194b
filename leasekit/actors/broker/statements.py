"""What a broker signs of what it cuts from delegations, and the receipts that sites give for that."""

from __future__ import annotations

from leasekit.actors.broker.book import Book
from leasekit.actors.kernel import Kernel
from leasekit.actors.keyring import Keyring
from leasekit.core.claims.keys import Signer
from leasekit.core.claims.statements import RECEIPT, TRUNCATION, Statement, check_statement, state
from leasekit.core.claims.ticket import READY_AT, REPLACES, SAVING, Ticket, delegate
from leasekit.core.errors import CommandError
from leasekit.core.leases.records import BrokerLease, Granted
from leasekit.core.leases.rows import pack_body
from leasekit.core.properties import Properties
from leasekit.core.protocol.messages import Truncated
from leasekit.core.schema import Change
from leasekit.core.time import Duration, Instant

RETURNED = "returned"
"""The state of a claim, in history, for which the site has given a receipt."""


def _constraints_of(claim: Granted) -> Properties:
    """What a claim says beside units and term: whether it can be ended early, by when its units are to be up, how long
    before its end they are saved, where the lease is suspended then, and which claim of its lease it replaces.
    """
    said = {"preemptible": "true"} if claim.preemptible else {}
    if claim.replaces:
        said[REPLACES] = claim.replaces
    if claim.saving:
        said[SAVING] = str(claim.saving)
    if claim.prepare:
        said[READY_AT] = str(claim.term.start + claim.prepare)
    return said


def keep_receipt(
    kernel: Kernel, keyring: Keyring, ticket: Ticket, claim: bytes, about: tuple[str | int, ...], data: bytes
) -> Statement:
    """Check the receipt in ``data`` for a ``claim`` that was cut in, or from, ``ticket``, and keep it as history: if
    anyone says that the units were given away twice, the receipt refutes it. ``about`` are the lease or delegation,
    issuer, holder, type, units and term. Raises ``TicketError``.
    """
    receipt = check_statement(keyring.scheme, data, RECEIPT, signer=ticket.root.issuer, subject=claim)
    if kernel.settings.keep_closed:
        id_, parent = claim.hex(), ticket.leaf.parent if ticket.leaf.digest == claim else ticket.leaf.digest
        kernel.changes.append(Change("claims", id_, (id_, 0, parent.hex(), *about, RETURNED, pack_body((data,)))))
    return receipt


class Statements:
    """What is signed of the delegations in ``book``, and of the claims that are cut from them."""

    def __init__(self, kernel: Kernel, keyring: Keyring, book: Book) -> None:
        self._kernel = kernel
        self._keyring = keyring
        self._book = book

    def cut(self, claim: Granted, holder: bytes) -> Ticket:
        """The ticket for ``claim``, whose digest is not known before, for the key ``holder``."""
        return delegate(
            self._book.ticket(claim.source), self._signer_from(claim.source), holder=holder, units=claim.units,
            term=claim.term, serial=claim.serial, constraints=_constraints_of(claim),
        )  # fmt: skip

    def cut_for(self, claim: Granted, holder: str) -> Ticket:
        """The ticket for ``claim`` for the peer ``holder``."""
        return self.cut(claim, self._keyring.key_of(holder))

    def early_end(self, lease: BrokerLease, claim: Granted, at: Instant) -> bytes:
        """That a claim of ``lease`` ends at ``at``."""
        return state(self._signer_from(claim.source), TRUNCATION, claim.digest, at, lease.id).encode()

    def truncated(self, lease: BrokerLease, claim: Granted, at: Instant, saving: Duration) -> tuple[str, Truncated]:
        """Which site a claim is of, and what that is told of its early end. Raises ``CommandError``."""
        source = self._book.get(claim.source)
        if not claim.preemptible:
            raise CommandError(f"lease {lease.id} is not preemptible")
        if source is None or source.site not in self._keyring.peers:
            raise CommandError(f"lease {lease.id}: its site can't be told")
        statement = self.early_end(lease, claim, max(at, claim.term.start))
        number = self._kernel.next("serial")
        return source.site, Truncated(lease.id, number, self._ticket_again(lease, claim), statement, saving)

    def _ticket_again(self, lease: BrokerLease, claim: Granted) -> bytes:
        """The ticket that was cut for ``claim``: the same bytes, since signatures are deterministic."""
        peer = self._keyring.peers.get(lease.holder)
        for holder in (peer.key, *(key for key, _ in peer.former)) if peer is not None else ():
            ticket = self.cut(claim, holder)
            if ticket.leaf.digest == claim.digest:
                return ticket.encode()
        raise CommandError(f"lease {lease.id}: its ticket can't be made again")

    def _signer_from(self, source: str) -> Signer:
        """Who cuts claims from a delegation, and speaks of them: the key that it was given to."""
        known = self._book.get(source)
        return self._keyring.signer if known is None else self._keyring.signer_of(self._book.ticket(source).leaf.holder)

    # -- receipts ----------------------------------------------------------------------------------------------

    def is_of_site(self, claim: Granted, peer: str) -> bool:
        """Whether ``peer`` is the site whose units are claimed."""
        if self._book.get(claim.source) is None:
            return False
        return self._book.ticket(claim.source).root.issuer in self._keyring.keys_of(peer)

    def check_receipt(self, lease: BrokerLease, claim: Granted, data: bytes) -> Statement:
        """The site's receipt for a claim of a lease, which is kept. Raises ``TicketError`` if it is none."""
        holder = self._keyring.peers.get(lease.holder)
        key = holder.key.hex() if holder is not None else ""
        issuer = self._signer_from(claim.source).public.hex()
        about = (lease.id, issuer, key, lease.type, claim.units, *claim.term)
        return keep_receipt(self._kernel, self._keyring, self._book.ticket(claim.source), claim.digest, about, data)
