"""What the three actors share: the clock, timers, counters, what is dirty, what is owed to whom, and the Ready.

A role adds records, message handlers and commands. A record is any object with ``id``, ``timer`` and ``row()``; the
role says when it next concerns time (``_due_at``) and what happens then (``_on_due``). Timers live in one heap with
lazy deletion: a record that nothing concerns costs nothing.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, ClassVar, Final, Protocol, TypeVar

from leasekit.actors.settings import ActorSettings, Peer
from leasekit.actors.turns import (
    FAILED,
    MALFORMED,
    NOT_CARRIED_OUT,
    MalformedError,
    check_decision,
    later_than,
    run_turn,
)
from leasekit.core.claims.keys import Scheme, Signer, fingerprint, key_tag
from leasekit.core.claims.statements import decode_statement
from leasekit.core.claims.verify import TicketVerifier
from leasekit.core.errors import CommandError, LeasekitError, RemoteError
from leasekit.core.leases.machine import Machine
from leasekit.core.mappers import Wake
from leasekit.core.properties import is_text
from leasekit.core.protocol.codec import clip
from leasekit.core.protocol.messages import ErrorReply, Message
from leasekit.core.schema import LOG, Change, Row
from leasekit.core.steps import (
    Action,
    ActionDone,
    Command,
    Connected,
    Disconnected,
    Input,
    Outgoing,
    PeerChange,
    Ready,
    Received,
    Reply,
    Tick,
    Turn,
    TurnDone,
)
from leasekit.core.time import INSTANT_MAX, Duration, Instant
from leasekit.core.words import with_article

CLOCK: Final = "clock"
_SUBJECTS: Final = ("lease", "delegation", "peer", "claim", "command", "query", "plan")
"""The fields that say what a message is about."""
COUNTERS: Final = ("lease", "serial", "action", "turn", "slice")

T = TypeVar("T")

_new: Final = tuple.__new__
"""Makes a named tuple from a tuple without a call in Python: for changes, of which every step of a lease makes some."""


class Record(Protocol):
    """What the base knows of a record. ``timer`` is the instant it is scheduled for, ``table`` where its row goes."""

    id: str
    table: ClassVar[str]
    timer: Instant | None

    def row(self) -> Row: ...


class StateRecord(Record, Protocol):
    """A record that a state machine moves."""

    state: str
    pending: str
    reason: str


class Actor:
    """The common part of an actor; see :mod:`leasekit.core.steps` for the contract with its shell."""

    role: str = ""
    decisions: tuple[type, ...] = ()
    """What the role's mapper may decide, beside :class:`Wake`."""

    def __init__(
        self, name: str, signer: Signer, scheme: Scheme, peers: Iterable[Peer], settings: ActorSettings
    ) -> None:
        self.name = name
        self.signer = signer
        self.scheme = scheme
        self.peers: dict[str, Peer] = {peer.name: peer for peer in peers}
        self.tag = key_tag(signer.public)
        self._own: dict[bytes, tuple[Signer, Instant]] = {}
        self.now: Instant = 0
        self.verifier = TicketVerifier(scheme)
        self._base = settings
        self._counters: dict[str, int] = dict.fromkeys(COUNTERS, 0)
        self._timers: list[tuple[Instant, int, Record]] = []
        self._timer_seq = 0
        # By identity: a peer chooses the ids of leases, which must not meet those of units or delegations.
        self._dirty: dict[int, Record] = {}
        self._changes: list[Change] = []
        self._messages: list[Outgoing] = []
        self._replies: list[Reply] = []
        self._actions: list[Action] = []
        self._peer_changes: list[PeerChange] = []
        self._needs: dict[type, str] = {}
        self._owed: dict[str, dict[str, Record]] = {}
        self._counted = False
        self.inline = False
        self.errors: list[str] = []
        self._wake: Instant | None = None
        self._running = 0
        self._failed = 0
        self._handlers: dict[type, Callable[[str, Any], None]] = {}
        self._commands: dict[str, Callable[[Mapping[str, Any]], Any]] = {}
        self._queries: dict[str, Callable[[Mapping[str, Any]], Any]] = {}
        self._inputs: dict[type, Callable[[Any], None]] = {
            Tick: self._tick,
            Received: self._received,
            ActionDone: self._action_done,
            TurnDone: self._turn_done,
            Command: self._command,
            Connected: self._connected,
            Disconnected: self._disconnected,
        }

    # -- the contract with the shell ---------------------------------------------------------------------------

    def step(self, input: Input) -> None:
        """Take one input. Never raises for anything that a peer, an operator, a driver or a mapper can cause."""
        self._inputs[type(input)](input)

    def ready(self) -> Ready | None:
        """What is to be done since the last call, or None. The caller must do it before it steps on."""
        if self._dirty:
            self._settle()
        if not (self._changes or self._messages or self._replies or self._actions or self._peer_changes):
            return None
        if self._changes:
            self._save_counters()
        ready = Ready(self._changes, self._messages, self._replies, self._actions, self._peer_changes)
        self._changes, self._messages, self._replies, self._actions, self._peer_changes = [], [], [], [], []
        return ready

    def wake_at(self) -> Instant | None:
        """The next instant at which a tick would do anything, or None."""
        if self._dirty:
            self._settle()
        timers = self._timers
        while timers and timers[0][2].timer != timers[0][0]:
            heapq.heappop(timers)
        at = timers[0][0] if timers else None
        turn_at = self._turn_at()
        if at is None or (turn_at is not None and turn_at < at):
            return turn_at
        return at

    def turn(self) -> Turn | None:
        """The mapper's turn, if one is due and none is running."""
        raise NotImplementedError

    def query(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """Read-only answers for the operator; plain data. Raises ``CommandError``."""
        handler = self._queries.get(name)
        if handler is None:
            raise CommandError(
                f"{with_article(self.role)} has no query {name!r}; it has {', '.join(sorted(self._queries))}"
            )
        return handler(arguments)

    def restore(self, tables: Mapping[str, Sequence[Row]]) -> None:
        """Take up the state that a store kept; afterwards all that is due is due at once."""
        for key, value in tables.get("meta", ()):
            if key == CLOCK:
                self.now = max(self.now, value)
            elif key in self._counters:
                self._counters[key] = value
        self._restore(tables)

    # -- for the roles to fill in ------------------------------------------------------------------------------

    def _restore(self, tables: Mapping[str, Sequence[Row]]) -> None:
        raise NotImplementedError

    def _due_at(self, record: Any) -> Instant | None:
        raise NotImplementedError

    def _on_due(self, record: Any) -> None:
        raise NotImplementedError

    def _turn_at(self) -> Instant | None:
        raise NotImplementedError

    def _send_owed(self, record: Any, peer: str) -> None:
        """Send again what ``record`` still owes ``peer``."""
        raise NotImplementedError

    def _owes(self, record: Any, peer: str) -> bool:
        raise NotImplementedError

    def _action_done(self, done: ActionDone) -> None:
        raise NotImplementedError

    def _carry_out(self, decision: Any) -> None:
        """Do what the mapper decided, one of :attr:`decisions`. Raises ``LeasekitError`` or ``ValueError``, with
        nothing changed.
        """
        raise NotImplementedError

    def _waits_for_mapper(self) -> Iterable[str]:
        """The ids of those that wait for the mapper, for its errors."""
        raise NotImplementedError

    # -- inputs ------------------------------------------------------------------------------------------------

    def _tick(self, tick: Tick) -> None:
        if tick.now > self.now:
            self.now = tick.now
        if self._dirty:
            self._settle()
        timers, now = self._timers, self.now
        if not timers or timers[0][0] > now:
            return
        due = []
        while timers and timers[0][0] <= now:
            at, _, record = heapq.heappop(timers)
            if record.timer == at:
                due.append((at, record))
        for at, record in due:
            if record.timer == at:  # and not taken back by one that was due before it
                record.timer = None
                self._dirty[id(record)] = record  # before: a record that is dropped takes itself out again
                self._on_due(record)

    def _received(self, received: Received) -> None:
        peer, message = received
        handler = self._handlers.get(type(message))
        try:
            if handler is None:
                raise RemoteError("unexpected", f"{with_article(self.role)} does not take {type(message).__name__}")
            need = self._needs.get(type(message))
            if need is not None:
                self._check_permission(peer, need)
            handler(peer, message)
        except RemoteError as error:
            self._refuse_message(peer, message, error)

    def _check_permission(self, peer: str, need: str) -> None:
        known = self.peers.get(peer)
        if known is None or need not in known.may:
            raise RemoteError("forbidden", f"{peer} may not {need} at {self.name}")

    def _refuse_message(self, peer: str, message: Message, error: RemoteError) -> None:
        """Say so to the sender; nothing is written, so that a hostile peer can't fill the store."""
        if not isinstance(message, ErrorReply):
            subject = next((getattr(message, field) for field in _SUBJECTS if hasattr(message, field)), "")
            number = getattr(message, "number", 0)
            self._messages.append(Outgoing(peer, ErrorReply(subject, number, error.code, clip(error.text))))

    def _command(self, command: Command) -> None:
        handler = self._commands.get(command.name)
        try:
            if handler is None:
                raise CommandError(
                    f"{with_article(self.role)} has no command {command.name!r}; it has "
                    f"{', '.join(sorted(self._commands))}"
                )
            check_arguments(command.arguments)
            self._replies.append(Reply(command.id, handler(command.arguments)))
        except LeasekitError as error:
            self._replies.append(Reply(command.id, error=str(error)))

    def _connected(self, connected: Connected) -> None:
        """What is owed to the peer is sent at once instead of at the end of its backoff."""
        owed = self._owed.get(connected.peer)
        for record in list(owed.values()) if owed else ():
            if self._owes(record, connected.peer):
                self._send_owed(record, connected.peer)
                self._touch(record)
            elif owed is not None:
                owed.pop(record.id, None)

    def _disconnected(self, disconnected: Disconnected) -> None:
        """What is due is sent again all the same; most roles need not know."""

    # -- the mapper --------------------------------------------------------------------------------------------

    def _begin_turn(self, call: Callable[[], Any]) -> Turn:
        self._running = number = self._next("turn")
        return Turn(number, lambda: run_turn(number, call))

    def _turn_done(self, done: TurnDone) -> None:
        """Carry out what the mapper decided, each decision by itself. A mapper that raised, or whose decision can't
        be carried out, is called again later: what it wanted to do may still have to be done.
        """
        if done.number != self._running:
            return
        self._running = 0
        failed = bool(done.error)
        if done.error:
            waiting = ", ".join(islice(self._waits_for_mapper(), 5))
            self._mapper_is_wrong(
                FAILED, f"{self.role} mapper: {done.error}{f' (waiting: {waiting})' if waiting else ''}"
            )
        for decision in done.decisions:
            try:
                self._decide(decision)
            except (LeasekitError, ValueError) as error:
                failed = True
                text = f"{self.role} mapper's {type(decision).__name__} is not carried out: {error}"
                self._mapper_is_wrong(MALFORMED if isinstance(error, MalformedError) else NOT_CARRIED_OUT, text)
        if failed:
            self._wake = earliest(self._wake, self.now + self._backoff(self._failed))
        self._failed = self._failed + 1 if failed else 0

    def _decide(self, decision: Any) -> None:
        if not isinstance(decision, (Wake, *self.decisions)):
            raise MalformedError(f"{decision!r:.80} is no decision of the {self.role} mapper")
        check_decision(decision)
        if isinstance(decision, Wake):
            self._wake = earliest(self._wake, later_than(self.now, decision.at))
        else:
            self._carry_out(decision)

    def _mapper_is_wrong(self, kind: str, text: str) -> None:
        """Say what its mapper does wrong: ``kind`` is one of the three of :mod:`leasekit.actors.turns`."""
        self._complain(text, "mapper", kind)

    def _complain(self, text: str, event: str = "complaint", kind: str = "") -> None:
        self.errors = [*self.errors[-19:], text]
        self._note("", event, "", kind, text)

    def _status(self, leases: Iterable[Any]) -> dict[str, Any]:
        """What every role says of itself: who it is, what time it has, and how many leases are in which state."""
        states: dict[str, int] = {}
        for lease in leases:
            states[lease.state] = states.get(lease.state, 0) + 1
        return {
            "name": self.name,
            "role": self.role,
            "key": self.signer.public.hex(),
            "now": self.now,
            "leases": states,
            "mapper_errors": self.errors[-5:],
        }

    # -- helpers for the roles ---------------------------------------------------------------------------------

    def _touch(self, record: Record) -> None:
        self._dirty[id(record)] = record

    def _schedule(self, record: Record, at: Instant | None) -> None:
        if at is None:
            record.timer = None
        elif at != record.timer:
            record.timer = at
            self._timer_seq += 1
            heapq.heappush(self._timers, (at, self._timer_seq, record))

    def _settle(self) -> None:
        """Turn what was touched into rows and timers."""
        dirty, self._dirty = self._dirty, {}
        add, due_at, schedule = self._changes.append, self._due_at, self._schedule
        for record in dirty.values():
            at = due_at(record)
            if at != record.timer:
                schedule(record, at)
            row = record.row()
            add(_new(Change, (record.table, row[0], row)))
        if len(self._timers) > 64 and len(self._timers) > 4 * self._live_records():
            self._timers = [entry for entry in self._timers if entry[2].timer == entry[0]]
            heapq.heapify(self._timers)

    def _live_records(self) -> int:
        """Roughly how many records there are: bounds the timers that were superseded but not yet dropped."""
        raise NotImplementedError

    def _next(self, counter: str) -> int:
        self._counted = True
        self._counters[counter] += 1
        return self._counters[counter]

    def _save_counters(self) -> None:
        self._changes.append(Change("meta", CLOCK, (CLOCK, self.now)))
        if self._counted:
            self._counted = False
            self._changes.extend(Change("meta", key, (key, value)) for key, value in self._counters.items())

    def _fire(self, machine: Machine, record: Any, event: str, why: str = "") -> None:
        """Move ``record`` by ``event`` and write the log. Raises ``ProtocolError``, and changes nothing, if the table
        has no such row.
        """
        before = (record.state, record.pending)
        after = machine.next(before, event)
        record.state, record.pending = after
        row = (self.now, record.id, event, f"{before[0]}/{before[1]}", f"{after[0]}/{after[1]}", why)
        self._changes.append(_new(Change, (LOG, "", row)))
        self._dirty[id(record)] = record

    def _note(self, subject: str, event: str, before: str, after: str, why: str) -> None:
        self._changes.append(_new(Change, (LOG, "", (self.now, subject, event, before, after, why))))

    def _owe(self, record: Record, peer: str) -> None:
        owed = self._owed.get(peer)
        if owed is None:
            owed = self._owed[peer] = {}
        owed[record.id] = record

    def _forget_owed(self, record: Record, peer: str) -> None:
        owed = self._owed.get(peer)
        if owed is not None:
            owed.pop(record.id, None)

    def _backoff(self, tries: int) -> Duration:
        return min(self._base.retry_max, self._base.retry_first << min(tries, 20))

    def _peer_key(self, name: str) -> bytes:
        peer = self.peers.get(name)
        if peer is None:
            raise RemoteError("unknown_peer", f"{self.name} knows no peer named {name!r}")
        return peer.key

    def _keys_of(self, name: str) -> tuple[bytes, ...]:
        """The keys that a peer may speak for: its own, and those that it had before, as long as they are honoured."""
        peer = self.peers.get(name)
        if peer is None:
            raise RemoteError("unknown_peer", f"{self.name} knows no peer named {name!r}")
        return (peer.key, *(key for key, until in peer.former if until > self.now)) if peer.former else (peer.key,)

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

    def _own_among(self, key: bytes) -> bytes:
        """``key``, if it is one of this actor's that still count; else the one that it has now."""
        former = self._own.get(key)
        return key if former is not None and former[1] > self.now else self.signer.public

    def signer_of(self, key: bytes) -> Signer:
        """Who signs for ``key``: a chain goes on with the key that it names. If it is none of this actor's, the one
        that it has now, whom whoever compares the two refuses.
        """
        former = self._own.get(key)
        return former[0] if former is not None and former[1] > self.now else self.signer

    def _key_among(self, name: str, key: bytes) -> bytes:
        """``key``, if it is one of the peer's; else the one that it has now, for whoever compares the two."""
        keys = self._keys_of(name)
        return key if key in keys else keys[0]

    def _said_by(self, name: str, statement: bytes) -> bytes:
        """The key that ``name`` has signed a statement with, if it is one of its keys; else the one that it has now.
        Raises ``TicketError`` for what is no statement.
        """
        return self._key_among(name, decode_statement(statement).signer)


def check_arguments(arguments: Mapping[str, Any]) -> None:
    """What no command takes, since no row or message can hold it: text that is not Unicode. Raises ``CommandError``."""
    for field, value in arguments.items():
        if not all(is_text(text) for text in _texts(value)):
            raise CommandError(f"{field!r:.40}: found {value!r:.80}, which is not Unicode: half of a surrogate pair")


def _texts(value: Any) -> Iterable[str]:
    todo = [value]
    while todo:
        one = todo.pop()
        if isinstance(one, str):
            yield one
        elif isinstance(one, Mapping):
            todo += [*one.keys(), *one.values()]
        elif isinstance(one, (list, tuple)):
            todo += one


def instant_of(arguments: Mapping[str, Any], field: str) -> Instant | None:
    """An instant among a command's arguments; None if it isn't given. Raises ``CommandError``."""
    value = arguments.get(field)
    if value is None or (type(value) is int and 0 <= value <= INSTANT_MAX):
        return value
    raise CommandError(f"{field}: found {value!r:.80}, expected an instant: milliseconds from 0 to {INSTANT_MAX}")


def earliest(one: Instant | None, two: Instant | None, three: Instant | None = None) -> Instant | None:
    """The earliest of those that are set."""
    least = one
    if two is not None and (least is None or two < least):
        least = two
    if three is not None and (least is None or three < least):
        least = three
    return least
