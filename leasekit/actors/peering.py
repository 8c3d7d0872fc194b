"""Who an actor knows, by which keys, what each of them may do here, and commands that wait for a peer's answer.

Peers come from the deploy file, from the operator (``peer.add``), or by a broker's endorsement (paper section 2:
brokers endorse the keys of guests and sites to each other). Those that the deploy file doesn't name are kept in the
store; so is the removal of one that it names. A name stands for one key: nobody can make another key known under it.

A peer that may ``administer`` commands this actor as its own operator does, over their connection: the command is
sent once, and the operator who asked hears what became of it, or that no answer came. Nothing of it is stored.

Each command that has a caller leaves a line in the log; one that has a key as well is carried out once, however often
it comes within a day.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Final

import attrs
import msgpack

from leasekit.actors.kernel import Dispatch, Kernel, check_arguments, command, deferred, keeps, named, query, takes
from leasekit.actors.settings import ADMINISTER, ENDORSE, MAY, OPEN_REQUESTS_MAX, PERMISSIONS, Peer
from leasekit.core.answers import AddedPeer, ImportedPeers, IntroductionCounts, PeerDetails, RemovedPeer, SucceededPeer
from leasekit.core.claims.claim import Claim, Ticket, TicketVerifier
from leasekit.core.claims.signed import (
    ENDORSEMENT,
    KEY_BYTES,
    Scheme,
    Signer,
    can_verify,
    check_statement,
    check_succession,
    decode_statement,
    endorse,
    endorsed,
    fingerprint,
    key_tag,
)
from leasekit.core.commands import AddPeer, CommandPeer, ImportPeers, RemovePeer, SucceedPeer
from leasekit.core.errors import ArgumentError, CommandError, LeasekitError, RemoteError, TicketError
from leasekit.core.leases.records import PeerRecord
from leasekit.core.protocol.messages import (
    TEXT_MAX,
    WORD_MAX,
    Accepted,
    Administer,
    Administered,
    ErrorReply,
    Introduce,
    Message,
)
from leasekit.core.reasons import Code, Reason, clip, mark, said, with_article, words
from leasekit.core.schema import Change, Row
from leasekit.core.steps import Command, PeerChange, Reply
from leasekit.core.time import DAY, HOUR, INSTANT_MAX, SECOND, Duration, Instant


@keeps(derived="peers signer tag _own")
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


PEER_COMMAND: Final = "peer.command"
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


@keeps(volatile="_calls", derived="_last")
@attrs.define(eq=False, slots=False)
class Calls:
    """The pending calls of an actor, and what peers have it do."""

    _kernel: Kernel
    _keyring: Keyring
    _dispatch: Dispatch
    _calls: dict[str, PendingCall] = attrs.field(factory=dict, init=False)
    _last: int = attrs.field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        self._kernel.register_unkept(PendingCall, on_due=self._unheard)

    @deferred(PEER_COMMAND)
    def _administer(self, command: Command, asked: CommandPeer) -> None:
        peer, name = asked.peer, asked.command
        named("peer", peer, self._keyring.peers, "known are")
        try:
            arguments = json.dumps(asked.arguments)
        except (TypeError, ValueError, RecursionError) as error:
            raise CommandError(f"arguments: {error}") from error
        if len(arguments) > TEXT_MAX or not 0 < len(name) <= WORD_MAX:
            raise ArgumentError(f"command: found {name!r:.80} with {len(arguments)} characters of arguments")
        unheard = f"{peer} did not answer within {ADMINISTER_TIMEOUT // SECOND} s; it may have obeyed"
        number = self.begin(command, peer, name, ADMINISTER_TIMEOUT, unheard).number
        self._kernel.send(peer, Administer(name, number, arguments))

    @property
    def next_number(self) -> int:
        """That of the next call. After a restart no other has it, for which there may still come an answer, as long as
        there is less than a call in each millisecond: so nothing has to be written down of who only asks.
        """
        return max(self._last + 1, self._kernel.now)

    def begin(self, command: Command, peer: str, subject: str, timeout: Duration, unheard: str) -> PendingCall:
        """Have ``command`` wait for the peer's answer to a message, which must have the call's number."""
        number = self._last = self.next_number
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
        self.end(call, Reply(call.command, None, call.unheard, Reason(Code.SILENT, call.peer)))


def _object(text: str) -> dict[str, Any]:
    """The JSON object that a peer sent for arguments. Raises ``CommandError``."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CommandError(f"arguments: {error}") from error
    if not isinstance(found, dict):
        raise ArgumentError(f"arguments: found {text!r:.40}, expected a JSON object")
    return found


NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
NAME_ALLOWED: Final = "1 to 64 letters, digits, dots, dashes and underscores, the first a letter or digit"
ADDRESS_MAX: Final = 256
OPERATOR: Final = "operator"
"""Who made a peer known that came by command; else it is the broker's name, or empty for the deploy file."""
FORMER_MAX: Final = 8
"""How many earlier keys of one peer are remembered."""
USED_AGAIN: Final[Duration] = 1 * HOUR
"""How often it is written down, at most, that one whom a broker introduced was of use."""


@keeps(rows="_made_known", volatile="_endorsed _turned_away _linked")
class Peering:
    """The peers of an actor in ``role``.

    Brokers may make those of the role ``endorsable`` known here: guests and sites get to know each other (paper section
    2.1); others would get permissions that the broker itself may not have. ``deals_with`` says whether something goes
    on with a peer. Whenever a peer is known otherwise, ``changed`` are called with its name, in order.
    """

    def __init__(
        self, kernel: Kernel, keyring: Keyring, role: str, endorsable: str, deals_with: Callable[[str], bool]
    ) -> None:
        self._kernel = kernel
        self._keyring = keyring
        self._role = role
        self._endorsable = endorsable
        self._deals_with = deals_with
        self.changed: list[Callable[[str], None]] = []
        self._deployed = dict(keyring.peers)
        self._made_known: dict[str, PeerRecord] = {}
        self._endorsed: Counter[str] = Counter()
        self._turned_away: Counter[str] = Counter()
        self._linked: dict[str, None] = {}
        kernel.register(PeerRecord, due_at=self._unused_at, on_due=self._on_unused)

    # -- peers that come and go --------------------------------------------------------------------------------

    @command("peer.add")
    def _add_peer(self, asked: AddPeer) -> AddedPeer:
        peer = self._checked(asked)
        self._make_known(peer, removed=False)
        return AddedPeer(peer.name, peer.key.hex(), sorted(peer.may))

    @command("peer.import")
    def _import_peers(self, asked: ImportPeers) -> ImportedPeers:
        peers = [self._checked(one) for one in asked.peers]
        for things in ([peer.name for peer in peers], [fingerprint(peer.key) for peer in peers]):
            twice = sorted({one for one in things if things.count(one) > 1})
            if twice:
                raise ArgumentError(f"peers: found {twice[0]} twice, expected names and keys that differ")
        for peer in peers:
            self._make_known(peer, removed=False)
        return ImportedPeers([peer.name for peer in peers])

    def _checked(self, asked: AddPeer) -> Peer:
        """A peer that can be made known. Raises ``CommandError`` that names the field."""
        peer = _peer_from(asked)
        known = self._keyring.peers.get(peer.name)
        if known is not None and known.key != peer.key:
            raise CommandError(
                f"name: {peer.name!r} has key {fingerprint(known.key)} here: remove it first, or use another name"
            )
        self._check_new(peer.name, peer.key)
        return peer

    @command("peer.remove")
    def _remove_peer(self, asked: RemovePeer) -> RemovedPeer:
        name = asked.name
        known = named("name", name, self._keyring.peers, "known are")
        if name in self._deployed:
            self._make_known(known, removed=True)
        else:
            self._forget_peer(name)
        return RemovedPeer(name)

    def _forget_peer(self, name: str) -> None:
        """Know a peer no longer that the deploy file does not name."""
        record = self._made_known.pop(name)
        self._endorsed[record.origin] -= 1
        self._kernel.forget(record)
        self._kernel.changes.append(Change(record.table, name, None))
        del self._keyring.peers[name]
        self._peer_changed(name)

    @command("peer.succeed")
    def _succeed(self, asked: SucceedPeer) -> SucceededPeer:
        """A peer has another key: its succession, which both sign, says so, and how long the old one is honoured."""
        name, text = asked.name, asked.succession
        known = named("name", name, self._keyring.peers, "known are")
        try:
            found = check_succession(self._keyring.scheme, bytes.fromhex(text), name=name, old=known.key)
        except (TicketError, ValueError) as error:
            raise CommandError(f"succession of {name}: found {text!r:.40}: {error}") from error
        if found.at > self._kernel.now + self._kernel.settings.clock_skew:
            raise CommandError(
                f"succession of {name}: it begins at {mark(found.at)}, it is {mark(self._kernel.now)}: come back then"
            )
        self._check_new(name, found.new)
        former = ((found.old, found.until), *(one for one in known.former if one[1] > self._kernel.now))
        self._make_known(attrs.evolve(known, key=found.new, former=former[:FORMER_MAX]), removed=False)
        self._kernel.note(
            "", "succeeded", "", "", said(f"{name}: {fingerprint(found.old)} is followed by {fingerprint(found.new)}")
        )
        return SucceededPeer(name, found.new.hex(), found.until)

    def _check_new(self, name: str, key: bytes) -> None:
        """Raises ``CommandError`` if the name or key is this actor's own, or the key has another name here."""
        if name == self._keyring.name or key == self._keyring.signer.public:
            raise CommandError(f"{name!r} is this actor's own name or key")
        peers = self._keyring.peers.values()
        other = next((peer.name for peer in peers if peer.key == key and peer.name != name), None)
        if other is not None:
            raise CommandError(f"key: {fingerprint(key)} is known here as {other!r}")

    def _make_known(self, peer: Peer, *, removed: bool) -> None:
        record = PeerRecord(
            peer.name, peer.role, peer.key, peer.address, peer.origin, tuple(sorted(peer.may)), peer.open_requests,
            peer.priority_max, removed, peer.former, self._kernel.now,
        )  # fmt: skip
        self._keep(record)
        self._kernel.touch(record)
        self._apply(record)
        self._peer_changed(peer.name)

    def _keep(self, record: PeerRecord) -> None:
        before = self._made_known.get(record.id)
        if before is not None:
            self._endorsed[before.origin] -= 1
            self._kernel.forget(before)
        self._endorsed[record.origin] += 1
        self._made_known[record.id] = record

    def _apply(self, record: PeerRecord) -> None:
        if record.removed:
            self._keyring.peers.pop(record.id, None)
            return
        deployed = self._deployed.get(record.id)
        if not record.origin and deployed is not None:  # it has another key than the file says; all else is as there
            peer = attrs.evolve(deployed, key=record.key, former=record.former)
        else:
            peer = Peer(
                name=record.id, key=record.key, role=record.role, may=frozenset(record.may),
                open_requests=record.open_requests, priority_max=record.priority_max, address=record.address,
                origin=record.origin, former=record.former,
            )  # fmt: skip
        self._keyring.peers[record.id] = peer

    def _peer_changed(self, name: str) -> None:
        """Tell the shell, and whoever has something that depends on it."""
        self._kernel.peer_changes.append(PeerChange(name, self._keyring.peers.get(name)))
        for tell in self.changed:
            tell(name)

    def restore(self, rows: Iterable[Row]) -> None:
        """Take up the peers that a store kept."""
        for row in rows:
            record = PeerRecord.from_row(row)
            if self._is_overruled(record):
                self._kernel.changes.append(Change(record.table, record.id, None))
                continue
            self._keep(record)
            self._apply(record)
            self._peer_changed(record.id)
            self._kernel.schedule(record, self._kernel.due_at(record))

    def _is_overruled(self, record: PeerRecord) -> bool:
        """Whether the deploy file has come to name a peer, or a key, that a broker had made known otherwise; or names a
        peer of its own no more, or by a key that it never had here.
        """
        if record.origin == OPERATOR:
            return False
        if not record.origin:
            deployed, keys = self._deployed.get(record.id), (record.key, *(key for key, _ in record.former))
            return not record.removed and (deployed is None or deployed.key not in keys)
        return record.id in self._deployed or any(peer.key == record.key for peer in self._deployed.values())

    @query("peers")
    def _query_peers(self) -> list[PeerDetails]:
        return [
            PeerDetails.of(
                peer, peer=peer.name, key=peer.key.hex(), fingerprint=fingerprint(peer.key), may=sorted(peer.may),
                origin=peer.origin or "deploy file",
            )
            for peer in self._keyring.peers.values()
        ]  # fmt: skip

    # -- endorsements ------------------------------------------------------------------------------------------

    def endorsement(self, peer: Peer) -> bytes:
        """This actor's signed word that ``peer`` has that name, role, key and address."""
        role = "site" if peer.role == "authority" else peer.role
        signer, now = self._keyring.signer, self._kernel.now
        return endorse(signer, peer.key, now, name=peer.name, role=role, address=peer.address).encode()

    @takes(Introduce, ENDORSE)
    def _on_introduce(self, peer: str, message: Introduce) -> None:
        self.take_endorsement(peer, message.endorsement, message.until)
        self._kernel.send(peer, Accepted(message.peer, message.number))

    def take_endorsement(self, broker: str, data: bytes, until: Instant = 0) -> None:
        """Know whom ``broker`` endorses, for a lease that ends at ``until``. Raises ``RemoteError`` if that can't be
        believed, with nothing changed.
        """
        note = check_statement(self._keyring.scheme, data, ENDORSEMENT, signer=self._keyring.key_of(broker))
        _, name, role, address = endorsed(note)
        if not NAME.fullmatch(name) or len(address) > ADDRESS_MAX:
            raise RemoteError(
                Code.BAD_ENDORSEMENT, f"endorsement: found the name {name!r:.80}, expected {NAME_ALLOWED}"
            )
        role = "authority" if role == "site" else role
        if role != self._endorsable:
            raise RemoteError(
                Code.BAD_ENDORSEMENT,
                f"{broker} endorses the {role} {name}: {with_article(self._role)} takes no such word",
            )
        known = self._keyring.peers.get(name)
        if (known is not None and known.key == note.subject) or note.subject == self._keyring.signer.public:
            self._of_use(name, until)
            return
        record = self._made_known.get(name)
        if known is not None or (record is not None and record.removed):
            raise RemoteError(Code.NAME_TAKEN, f"{broker} endorses another key as {name!r} than the one known here")
        if self._endorsed[broker] >= self._kernel.settings.introductions_max:
            self._turned_away[broker] += 1
            known_from = f"{self._keyring.name} knows {self._endorsed[broker]} peers from {broker}"
            raise RemoteError(Code.BUSY, f"{known_from}, its limit (introductions_max)")
        try:
            self._check_new(name, note.subject)
        except CommandError as error:
            raise RemoteError(Code.NAME_TAKEN, f"{broker} endorses {name!r}: {error}") from error
        self._make_known(Peer(name=name, key=note.subject, role=role, address=address, origin=broker), removed=False)
        self._of_use(name, until)
        self._kernel.note(
            "", "endorsed", "", "", said(f"{broker} endorses {role} {name} with key {fingerprint(note.subject)}")
        )

    def _of_use(self, name: str, until: Instant = 0) -> None:
        """A peer is of use, now and up to ``until``: one that was introduced is kept for a while longer."""
        record, last = self._made_known.get(name), max(self._kernel.now, until)
        if record is not None and last >= record.used + USED_AGAIN:
            record.used = last
            self._kernel.touch(record)

    def _on_unused(self, record: PeerRecord) -> None:
        """One that a broker introduced goes, so that others have its place, unless there is something with it yet."""
        if record.id in self._linked or self._deals_with(record.id):
            record.used = self._kernel.now
            return
        self._kernel.note(
            "", "unused", "", "", said(f"{record.id}, introduced by {record.origin}, was not of use: it is forgotten")
        )
        self._forget_peer(record.id)

    def introductions(self) -> list[IntroductionCounts]:
        """How many peers each broker has made known, how many more it tried to since the start, and the limit."""
        brokers = sorted(broker for broker in {*self._endorsed, *self._turned_away} if broker not in ("", OPERATOR))
        most = self._kernel.settings.introductions_max
        found = [(broker, self._endorsed[broker], self._turned_away[broker]) for broker in brokers]
        return [
            IntroductionCounts(broker, known, refused, most) for broker, known, refused in found if known or refused
        ]

    def connected(self, peer: str) -> None:
        """A peer that is connected is of use."""
        self._linked[peer] = None
        self._of_use(peer)

    def disconnected(self, peer: str) -> None:
        """So was one whose connection ends."""
        self._linked.pop(peer, None)
        self._of_use(peer)

    def _unused_at(self, record: PeerRecord) -> Instant | None:
        introduced = record.origin not in ("", OPERATOR) and not record.removed
        return record.used + self._kernel.settings.introductions_kept if introduced else None


def _peer_from(asked: AddPeer) -> Peer:
    """The peer that an operator describes. Raises ``CommandError`` that names the field."""
    name, role, key = asked.name, asked.role, asked.key
    if not NAME.fullmatch(name):
        raise ArgumentError(f"name: found {name!r:.80}, expected {NAME_ALLOWED}")
    if role not in MAY:
        raise ArgumentError(f"role: found {role!r:.40}, allowed are {', '.join(MAY)}")
    try:
        raw = bytes.fromhex(key)
    except ValueError:
        raw = b""
    if len(raw) != KEY_BYTES:
        raise ArgumentError(f"key: found {key!r:.80}, expected {2 * KEY_BYTES} hex digits")
    allowed = MAY[role] if asked.may is None else frozenset(asked.may)
    if not allowed <= set(PERMISSIONS):
        raise ArgumentError(f"may: found {sorted(allowed - set(PERMISSIONS))}, allowed are {', '.join(PERMISSIONS)}")
    most = OPEN_REQUESTS_MAX if asked.open_requests is None else asked.open_requests
    if not 0 < most < 2**31:
        raise ArgumentError(f"open_requests: found {most!r:.40}, expected a number from 1 to {2**31 - 1}")
    if abs(asked.priority_max) > INSTANT_MAX:
        raise ArgumentError(f"priority_max: found {asked.priority_max}, expected a number of at most {INSTANT_MAX}")
    if not can_verify(raw):
        raise ArgumentError(f"key: found {key}, which is no key that can sign: its point is of small order, or none")
    address = asked.address
    if len(address) > ADDRESS_MAX:
        raise ArgumentError(f"address: found {len(address)} characters, at most {ADDRESS_MAX}")
    if not address.isprintable():
        raise ArgumentError(f"address: found {address!r}, expected printable characters")
    return Peer(
        name=name, key=raw, role=role, may=allowed, open_requests=most, priority_max=asked.priority_max,
        address=address, origin=OPERATOR,
    )  # fmt: skip


# -- commands of operators ---------------------------------------------------------------------------------------------


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
    called = (result.get(name) for name in ("id", "topology")) if isinstance(result, Mapping) else ()
    named = (arguments.get(name) for name in _SUBJECTS)
    return next((str(found)[:256] for found in (*called, *named) if found), "")
