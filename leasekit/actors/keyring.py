"""Whose the keys are: this actor's own, those that it had before, and those of the peers that it knows."""

from __future__ import annotations

from collections.abc import Iterable

from leasekit.actors.kernel import Kernel
from leasekit.actors.settings import Peer
from leasekit.core.claims.claim import Claim
from leasekit.core.claims.keys import Scheme, Signer, fingerprint, key_tag
from leasekit.core.claims.statements import decode_statement
from leasekit.core.claims.ticket import Ticket
from leasekit.core.claims.verify import TicketVerifier
from leasekit.core.errors import RemoteError
from leasekit.core.reasons import Code
from leasekit.core.time import Instant


class Keyring:
    """The actor's name and keys, its peers by name, and what verifies tickets."""

    def __init__(self, name: str, signer: Signer, scheme: Scheme, peers: Iterable[Peer], kernel: Kernel) -> None:
        self.name = name
        self.signer = signer
        self.scheme = scheme
        self.peers: dict[str, Peer] = {peer.name: peer for peer in peers}
        self.tag = key_tag(signer.public)
        self.verifier = TicketVerifier(scheme)
        self._own: dict[bytes, tuple[Signer, Instant]] = {}
        self._kernel = kernel

    # -- peers -------------------------------------------------------------------------------------------------

    def check_may(self, peer: str, need: str) -> None:
        """Raises ``RemoteError`` unless ``peer`` has the permission ``need`` here."""
        known = self.peers.get(peer)
        if known is None or need not in known.may:
            raise RemoteError(Code.FORBIDDEN, f"{peer} may not {need} at {self.name}")

    def known(self, name: str) -> Peer:
        """The peer of that name. Raises ``RemoteError``."""
        peer = self.peers.get(name)
        if peer is None:
            raise RemoteError(Code.UNKNOWN_PEER, f"{self.name} knows no peer named {name!r}")
        return peer

    def key_of(self, name: str) -> bytes:
        """The key that a peer has now. Raises ``RemoteError``."""
        return self.known(name).key

    def keys_of(self, name: str) -> tuple[bytes, ...]:
        """The keys that a peer may speak for: its own, and those that it had before, as long as they are honoured.
        Raises ``RemoteError``.
        """
        peer, now = self.known(name), self._kernel.now
        return (peer.key, *(key for key, until in peer.former if until > now)) if peer.former else (peer.key,)

    def key_among(self, name: str, key: bytes) -> bytes:
        """``key``, if it is one of the peer's; else the one that it has now, for whoever compares the two."""
        keys = self.keys_of(name)
        return key if key in keys else keys[0]

    def said_by(self, name: str, statement: bytes) -> bytes:
        """The key that ``name`` has signed a statement with, if it is one of its keys; else the one that it has now.
        Raises ``TicketError`` for what is no statement.
        """
        return self.key_among(name, decode_statement(statement).signer)

    def verify(
        self, ticket: Ticket, *, root: bytes | None = None, holder: bytes | None = None, issuer: bytes | None = None
    ) -> Claim:
        """The last claim of a ticket that is good now: held by ``holder`` (None: this actor), and where they are given
        from ``root`` on, and cut by ``issuer``. Raises ``TicketError``.
        """
        holder = self.own_among(ticket.leaf.holder) if holder is None else holder
        kernel = self._kernel
        return self.verifier.check(
            ticket, root=root, holder=holder, now=kernel.now, skew=kernel.settings.clock_skew, issuer=issuer
        )

    def name_of(self, key: bytes) -> str:
        """Who has ``key``, or had it before; empty if that is not known here."""
        return self.names().get(key, "")

    def names(self) -> dict[bytes, str]:
        """Whose the keys are that this actor knows, also those that they had before."""
        former = {key: peer.name for peer in self.peers.values() for key, _ in peer.former}
        current = {peer.key: peer.name for peer in self.peers.values()}
        return {**former, **current, **dict.fromkeys((*self._own, self.signer.public), self.name)}

    def called(self, key: bytes) -> str:
        """A key for people: its short form, and whose it is, where that is known."""
        name = self.name_of(key)
        return f"{name} ({fingerprint(key)})" if name else fingerprint(key)

    # -- keys that this actor had before -----------------------------------------------------------------------

    def had_before(self, signer: Signer, until: Instant) -> None:
        """This actor's key was that of ``signer``, which serves until then what it holds, and what it has given."""
        self._own[signer.public] = (signer, until)

    def is_own(self, key: bytes) -> bool:
        """Whether ``key`` is this actor's, or was."""
        return key == self.signer.public or key in self._own

    def own_among(self, key: bytes) -> bytes:
        """``key``, if it is one of this actor's that still count; else the one that it has now."""
        former = self._own.get(key)
        return key if former is not None and former[1] > self._kernel.now else self.signer.public

    def signer_of(self, key: bytes) -> Signer:
        """Who signs for ``key``: a chain goes on with the key that it names. If it is none of this actor's, the one
        that it has now, whom whoever compares the two refuses.
        """
        former = self._own.get(key)
        return former[0] if former is not None and former[1] > self._kernel.now else self.signer
