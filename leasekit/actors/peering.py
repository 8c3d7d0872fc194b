"""Who an actor knows, and what each of them may do here.

Peers come from the deploy file, from the operator (``peer.add``), or by a broker's endorsement (paper section 2:
brokers endorse the keys of guests and sites to each other). Those that the deploy file doesn't name are kept in the
store; so is the removal of one that it names. A name stands for one key: nobody can make another key known under it.

A peer that may ``administer`` commands this actor as its own operator does, over their connection: the command is
sent once, and the operator who asked hears what became of it, or that no answer came.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final

import attrs

from leasekit.actors.base import Actor
from leasekit.actors.dispatch import check_arguments, command, deferred, query, takes
from leasekit.actors.settings import ADMINISTER, ENDORSE, MAY, OPEN_REQUESTS_MAX, PERMISSIONS, Peer
from leasekit.core.claims.keys import KEY_BYTES, fingerprint
from leasekit.core.claims.statements import ENDORSEMENT, check_statement, endorse, endorsed
from leasekit.core.claims.succession import check_succession
from leasekit.core.errors import CommandError, LeasekitError, RemoteError, TicketError
from leasekit.core.leases.relations import PeerRecord
from leasekit.core.protocol.codec import TEXT_MAX, WORD_MAX, clip
from leasekit.core.protocol.messages import Accepted, Administer, Administered, ErrorReply, Introduce, Message
from leasekit.core.schema import Change, Row
from leasekit.core.steps import Command, Connected, Disconnected, PeerChange, Reply
from leasekit.core.time import HOUR, SECOND, Duration, Instant
from leasekit.core.words import with_article

NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
NAME_ALLOWED: Final = "1 to 64 letters, digits, dots, dashes and underscores, the first a letter or digit"
ADDRESS_MAX: Final = 256
OPERATOR: Final = "operator"
"""Who made a peer known that came by command; else it is the broker's name, or empty for the deploy file."""
FORMER_MAX: Final = 8
"""How many earlier keys of one peer are remembered."""
USED_AGAIN: Final[Duration] = 1 * HOUR
"""How often it is written down, at most, that one whom a broker introduced was of use."""
ADMINISTER_TIMEOUT: Final[Duration] = 30 * SECOND
"""How long the answer to a command for another actor is waited for."""


@attrs.define(slots=True, eq=False)
class _Errand:
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
    table: ClassVar[str] = ""

    def row(self) -> Row:
        raise NotImplementedError("an errand is not kept: it is over when its actor is")


class Peering(Actor):
    """An actor and its peers."""

    endorsable: str = ""
    """The role of those whom a broker may make known here. Guests and sites get to know each other (paper section 2.1);
    others would get permissions that the broker itself may not have."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._deployed = dict(self.keyring.peers)
        self._made_known: dict[str, PeerRecord] = {}
        self._endorsed: Counter[str] = Counter()
        self._turned_away: Counter[str] = Counter()
        self._linked: set[str] = set()
        self._errands: dict[str, _Errand] = {}
        self.kernel.register(PeerRecord, due_at=self._unused_at, on_due=self._on_unused)
        self.kernel.register(_Errand, on_due=self._unheard)

    # -- peers that come and go --------------------------------------------------------------------------------

    @command("peer.add")
    def _add_peer(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        peer = _peer_from(arguments)
        known = self.keyring.peers.get(peer.name)
        if known is not None and known.key != peer.key:
            raise CommandError(
                f"name: {peer.name!r} has key {fingerprint(known.key)} here: remove it first, or use another name"
            )
        self._check_new(peer.name, peer.key)
        self._make_known(peer, removed=False)
        return {"peer": peer.name, "key": peer.key.hex(), "may": sorted(peer.may)}

    @command("peer.remove")
    def _remove_peer(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        name = str(arguments.get("name", ""))
        known = self.keyring.peers.get(name)
        if known is None:
            raise CommandError(f"name: found {name!r}, known are {', '.join(sorted(self.keyring.peers)) or '(none)'}")
        if name in self._deployed:
            self._make_known(known, removed=True)
        else:
            self._forget_peer(name)
        return {"peer": name}

    def _forget_peer(self, name: str) -> None:
        """Know a peer no longer that the deploy file does not name."""
        record = self._made_known.pop(name)
        self._endorsed[record.origin] -= 1
        self.kernel.forget(record)
        self.kernel.changes.append(Change(record.table, name, None))
        del self.keyring.peers[name]
        self._peer_changed(name)

    @command("peer.succeed")
    def _succeed(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """A peer has another key: its succession, which both sign, says so, and how long the old one is honoured."""
        name, text = str(arguments.get("name", "")), str(arguments.get("succession", ""))
        known = self.keyring.peers.get(name)
        if known is None:
            raise CommandError(f"name: found {name!r}, known are {', '.join(sorted(self.keyring.peers)) or '(none)'}")
        try:
            found = check_succession(self.keyring.scheme, bytes.fromhex(text), name=name, old=known.key)
        except (TicketError, ValueError) as error:
            raise CommandError(f"succession of {name}: {error}") from error
        if found.at > self.kernel.now + self.kernel.settings.clock_skew:
            raise CommandError(
                f"succession of {name}: it begins at {found.at}, it is {self.kernel.now}: come back then"
            )
        self._check_new(name, found.new)
        former = ((found.old, found.until), *(one for one in known.former if one[1] > self.kernel.now))
        self._make_known(attrs.evolve(known, key=found.new, former=former[:FORMER_MAX]), removed=False)
        self.kernel.note(
            "", "succeeded", "", "", f"{name}: {fingerprint(found.old)} is followed by {fingerprint(found.new)}"
        )
        return {"peer": name, "key": found.new.hex(), "former_until": found.until}

    def _check_new(self, name: str, key: bytes) -> None:
        """Raises ``CommandError`` if the name or key is this actor's own, or the key has another name here."""
        if name == self.name or key == self.keyring.signer.public:
            raise CommandError(f"{name!r} is this actor's own name or key")
        other = next((peer.name for peer in self.keyring.peers.values() if peer.key == key and peer.name != name), None)
        if other is not None:
            raise CommandError(f"key: {fingerprint(key)} is known here as {other!r}")

    def _make_known(self, peer: Peer, *, removed: bool) -> None:
        record = PeerRecord(
            peer.name, peer.role, peer.key, peer.address, peer.origin, tuple(sorted(peer.may)), peer.open_requests,
            removed, peer.former, self.kernel.now,
        )  # fmt: skip
        self._keep(record)
        self.kernel.touch(record)
        self._apply(record)
        self._peer_changed(peer.name)

    def _keep(self, record: PeerRecord) -> None:
        before = self._made_known.get(record.id)
        if before is not None:
            self._endorsed[before.origin] -= 1
            self.kernel.forget(before)
        self._endorsed[record.origin] += 1
        self._made_known[record.id] = record

    def _apply(self, record: PeerRecord) -> None:
        if record.removed:
            self.keyring.peers.pop(record.id, None)
            return
        self.keyring.peers[record.id] = Peer(
            name=record.id, key=record.key, role=record.role, may=frozenset(record.may),
            open_requests=record.open_requests, address=record.address, origin=record.origin, former=record.former,
        )  # fmt: skip

    def _peer_changed(self, name: str) -> None:
        """Tell the shell; the roles look whether it changes anything for them."""
        self.kernel.peer_changes.append(PeerChange(name, self.keyring.peers.get(name)))

    def _restore(self, tables: Mapping[str, Sequence[Row]]) -> None:
        for row in tables.get("peers", ()):
            record = PeerRecord.from_row(row)
            if self._is_overruled(record):
                self.kernel.changes.append(Change(record.table, record.id, None))
                continue
            record.used = record.used or self.kernel.now  # one of a store that did not say it yet
            self._keep(record)
            self._apply(record)
            self._peer_changed(record.id)
            self.kernel.schedule(record, self.kernel.due_at(record))

    def _is_overruled(self, record: PeerRecord) -> bool:
        """Whether the deploy file has come to name a peer, or a key, that a broker had made known otherwise."""
        if record.origin in ("", OPERATOR):
            return False
        return record.id in self._deployed or any(peer.key == record.key for peer in self._deployed.values())

    @query("peers")
    def _query_peers(self, arguments: Mapping[str, Any]) -> list[dict[str, Any]]:
        return [
            {
                "peer": peer.name,
                "role": peer.role,
                "key": peer.key.hex(),
                "fingerprint": fingerprint(peer.key),
                "may": sorted(peer.may),
                "open_requests": peer.open_requests,
                "address": peer.address,
                "origin": peer.origin or "deploy file",
            }
            for peer in self.keyring.peers.values()
        ]

    # -- endorsements ------------------------------------------------------------------------------------------

    def endorsement(self, peer: Peer) -> bytes:
        """This actor's signed word that ``peer`` has that name, role, key and address."""
        role = "site" if peer.role == "authority" else peer.role
        note = endorse(self.keyring.signer, peer.key, self.kernel.now, name=peer.name, role=role, address=peer.address)
        return note.encode()

    @takes(Introduce, ENDORSE)
    def _on_introduce(self, peer: str, message: Introduce) -> None:
        self.take_endorsement(peer, message.endorsement, message.until)
        self.kernel.send(peer, Accepted(message.peer, message.number))

    def take_endorsement(self, broker: str, data: bytes, until: Instant = 0) -> None:
        """Know whom ``broker`` endorses, for a lease that ends at ``until``. Raises ``RemoteError`` if that can't be
        believed, with nothing changed.
        """
        note = check_statement(self.keyring.scheme, data, ENDORSEMENT, signer=self.keyring.key_of(broker))
        _, name, role, address = endorsed(note)
        if not NAME.fullmatch(name) or len(address) > ADDRESS_MAX:
            raise RemoteError("bad_endorsement", f"endorsement: found the name {name!r:.80}, expected {NAME_ALLOWED}")
        role = "authority" if role == "site" else role
        if role != self.endorsable:
            raise RemoteError(
                "bad_endorsement", f"{broker} endorses the {role} {name}: {with_article(self.role)} takes no such word"
            )
        known = self.keyring.peers.get(name)
        if (known is not None and known.key == note.subject) or note.subject == self.keyring.signer.public:
            self._of_use(name, until)
            return
        record = self._made_known.get(name)
        if known is not None or (record is not None and record.removed):
            raise RemoteError("name_taken", f"{broker} endorses another key as {name!r} than the one known here")
        if self._endorsed[broker] >= self.kernel.settings.introductions_max:
            self._turned_away[broker] += 1
            raise RemoteError(
                "busy", f"{self.name} knows {self._endorsed[broker]} peers from {broker}, its limit (introductions_max)"
            )
        try:
            self._check_new(name, note.subject)
        except CommandError as error:
            raise RemoteError("name_taken", f"{broker} endorses {name!r}: {error}") from error
        self._make_known(Peer(name=name, key=note.subject, role=role, address=address, origin=broker), removed=False)
        self._of_use(name, until)
        self.kernel.note(
            "", "endorsed", "", "", f"{broker} endorses {role} {name} with key {fingerprint(note.subject)}"
        )

    def _of_use(self, name: str, until: Instant = 0) -> None:
        """A peer is of use, now and up to ``until``: one that was introduced is kept for a while longer."""
        record, last = self._made_known.get(name), max(self.kernel.now, until)
        if record is not None and last >= record.used + USED_AGAIN:
            record.used = last
            self.kernel.touch(record)

    def _deals_with(self, peer: str) -> bool:
        """Whether something goes on with a peer: for the roles to say."""
        return False

    def _on_unused(self, record: PeerRecord) -> None:
        """One that a broker introduced goes, so that others have its place, unless there is something with it yet."""
        if record.id in self._linked or self._deals_with(record.id):
            record.used = self.kernel.now
            return
        self.kernel.note(
            "", "unused", "", "", f"{record.id}, introduced by {record.origin}, was not of use: it is forgotten"
        )
        self._forget_peer(record.id)

    def introductions(self) -> list[dict[str, Any]]:
        """How many peers each broker has made known, how many more it tried to since the start, and the limit."""
        brokers = sorted(broker for broker in {*self._endorsed, *self._turned_away} if broker not in ("", OPERATOR))
        most = self.kernel.settings.introductions_max
        found = [(broker, self._endorsed[broker], self._turned_away[broker]) for broker in brokers]
        return [
            {"broker": broker, "known": known, "refused": refused, "most": most}
            for broker, known, refused in found
            if known or refused
        ]

    def _status(self, leases: Iterable[Any]) -> dict[str, Any]:
        return {**super()._status(leases), "introductions": self.introductions()}

    # -- commanding another actor ------------------------------------------------------------------------------

    @deferred("peer.command")
    def _send_errand(self, command: Command) -> None:
        peer, name = str(command.arguments.get("peer", "")), str(command.arguments.get("command", ""))
        check_arguments(command.arguments)
        if peer not in self.keyring.peers:
            raise CommandError(f"peer: found {peer!r}, known are {', '.join(sorted(self.keyring.peers)) or '(none)'}")
        try:
            arguments = json.dumps(command.arguments.get("arguments", {}))
        except (TypeError, ValueError, RecursionError) as error:
            raise CommandError(f"arguments: {error}") from error
        if len(arguments) > TEXT_MAX or not 0 < len(name) <= WORD_MAX:
            raise CommandError(f"command: found {name!r:.80} with {len(arguments)} characters of arguments")
        unheard = f"{peer} did not answer within {ADMINISTER_TIMEOUT // SECOND} s; it may have obeyed"
        number = self._begin_errand(command, peer, name, ADMINISTER_TIMEOUT, unheard).number
        self.kernel.send(peer, Administer(name, number, arguments))

    def _begin_errand(self, command: Command, peer: str, subject: str, timeout: Duration, unheard: str) -> _Errand:
        """Have ``command`` wait for the peer's answer to a message, which must have the errand's number."""
        number = self.kernel.next("serial")
        # Written down: after a restart no other may have this number, for which there may still come an answer.
        self.kernel.changes.append(Change("meta", "serial", ("serial", number)))
        errand = _Errand(f"errand:{number}", number, peer, command.id, self.kernel.now + timeout, subject, unheard)
        self._errands[errand.id] = errand
        self.kernel.schedule(errand, errand.until)
        return errand

    def _connected(self, connected: Connected) -> None:
        """As the base's; what may be asked again is, as it may have been lost with the last connection."""
        super()._connected(connected)
        self._linked.add(connected.peer)
        self._of_use(connected.peer)
        for errand in self._errands.values():
            if errand.peer == connected.peer and errand.repeat is not None:
                self.kernel.send(errand.peer, errand.repeat)

    def _disconnected(self, disconnected: Disconnected) -> None:
        super()._disconnected(disconnected)
        self._linked.discard(disconnected.peer)
        self._of_use(disconnected.peer)

    def _errand_of(self, peer: str, subject: str, number: int) -> _Errand | None:
        """The errand that a message from ``peer`` answers, if it does."""
        errand = self._errands.get(f"errand:{number}")
        return errand if errand is not None and (errand.peer, errand.subject) == (peer, subject) else None

    @takes(Administer, ADMINISTER)
    def _on_administer(self, peer: str, message: Administer) -> None:
        result, error = "", ""
        try:
            carry_out = self.dispatch.prepare(message.command, _object(message.arguments))
            self.kernel.note("", "administer", "", "", f"{peer}: {message.command} {message.arguments}")
            result = json.dumps(carry_out())
        except LeasekitError as wrong:
            error = str(wrong)
        if len(result) > TEXT_MAX:
            result = json.dumps({"done": True, "note": "the answer is too long to send"})
        self.kernel.send(peer, Administered(message.command, message.number, result, clip(error)))

    @takes(Administered)
    def _on_administered(self, peer: str, message: Administered) -> None:
        errand = self._errand_of(peer, message.command, message.number)
        if errand is None:
            return
        try:
            result = json.loads(message.result) if message.result else None
        except (ValueError, RecursionError):
            result = message.result
        self._end_errand(errand, Reply(errand.command, result, f"{peer}: {message.error}" if message.error else ""))

    def _refused_errand(self, peer: str, message: ErrorReply) -> bool:
        """Whether an error answers a command that ``peer`` was sent."""
        errand = self._errand_of(peer, message.lease, message.number)
        if errand is None:
            return False
        self._end_errand(errand, Reply(errand.command, error=f"{peer}: {message.text}"))
        return True

    def _end_errand(self, errand: _Errand, reply: Reply) -> None:
        del self._errands[errand.id]
        self.kernel.forget(errand)
        self.kernel.reply(reply)

    def _unused_at(self, record: PeerRecord) -> Instant | None:
        introduced = record.origin not in ("", OPERATOR) and not record.removed
        return record.used + self.kernel.settings.introductions_kept if introduced else None

    def _unheard(self, errand: _Errand) -> None:
        self._end_errand(errand, Reply(errand.command, error=errand.unheard))


def _object(text: str) -> dict[str, Any]:
    """The JSON object that a peer sent for arguments. Raises ``CommandError``."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CommandError(f"arguments: {error}") from error
    if not isinstance(found, dict):
        raise CommandError(f"arguments: found {text!r:.40}, expected a JSON object")
    return found


def _peer_from(arguments: Mapping[str, Any]) -> Peer:
    """The peer that an operator describes. Raises ``CommandError`` that names the field."""
    name, role, key = (str(arguments.get(field, "")) for field in ("name", "role", "key"))
    if not NAME.fullmatch(name):
        raise CommandError(f"name: found {name!r:.80}, expected {NAME_ALLOWED}")
    if role not in MAY:
        raise CommandError(f"role: found {role!r:.40}, allowed are {', '.join(MAY)}")
    try:
        raw = bytes.fromhex(key)
    except ValueError:
        raw = b""
    if len(raw) != KEY_BYTES:
        raise CommandError(f"key: found {key!r:.80}, expected {2 * KEY_BYTES} hex digits")
    may = arguments.get("may")
    if may is not None and not isinstance(may, (list, tuple)):
        raise CommandError(f"may: found {may!r:.80}, expected a list of {', '.join(PERMISSIONS)}")
    allowed = MAY[role] if may is None else frozenset(map(str, may))
    if not allowed <= set(PERMISSIONS):
        raise CommandError(f"may: found {sorted(allowed - set(PERMISSIONS))}, allowed are {', '.join(PERMISSIONS)}")
    most = OPEN_REQUESTS_MAX if arguments.get("open_requests") is None else arguments["open_requests"]
    if type(most) is not int or not 0 < most < 2**31:
        raise CommandError(f"open_requests: found {most!r:.40}, expected a number from 1 to {2**31 - 1}")
    address = str(arguments.get("address") or "")
    if len(address) > ADDRESS_MAX:
        raise CommandError(f"address: found {len(address)} characters, at most {ADDRESS_MAX}")
    if not address.isprintable():
        raise CommandError(f"address: found {address!r}, expected printable characters")
    return Peer(name=name, key=raw, role=role, may=allowed, open_requests=most, address=address, origin=OPERATOR)
