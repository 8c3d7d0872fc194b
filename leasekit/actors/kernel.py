"""What all parts of an actor share: its clock, what is to be done next, timers, what peers have not acknowledged, and
who takes what.

A part keeps records. A record is any object with ``id``, ``table``, ``timer`` and ``row()``; what its kind needs (when
time next concerns it, what happens then, what a peer has not acknowledged of it) is registered once, by its class. All
timers live in one heap with lazy deletion, so a record that nothing concerns costs nothing. The kernel must not know
what a record means.

A part marks its methods with :func:`takes`, :func:`command`, :func:`deferred` and :func:`query`; the actor's
:class:`Dispatch` finds them when the part is added.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from functools import cache
from typing import Any, ClassVar, Final, NamedTuple, Protocol, TypeVar, get_type_hints

import attrs

from leasekit.actors.settings import ActorSettings
from leasekit.core.answers import Answer, plain
from leasekit.core.commands import NoArguments, read_arguments
from leasekit.core.errors import ArgumentError, CommandError
from leasekit.core.leases.records import KeptRecord, SentRecord, layout_of
from leasekit.core.properties import is_text
from leasekit.core.protocol.messages import ErrorReply, Message
from leasekit.core.reasons import Code, Reason, mark, said, with_article, words
from leasekit.core.schema import COPIED, LOG, Change, Row
from leasekit.core.steps import Action, ActionDone, Command, Outgoing, PeerChange, Ready, Reply
from leasekit.core.time import INSTANT_MAX, Duration, Instant
from leasekit.core.tuples import new_tuple

CLOCK: Final = "clock"
COUNTERS: Final = ("lease", "serial", "action", "turn", "slice")
ACCEPTED_DOUBLINGS: Final = 6
"""How often the wait doubles before what a peer has accepted is sent again: from ``retry_max`` to 64 times that."""
RESENT_AT_ONCE: Final = 16
"""How many records a peer that has connected is sent again before it acknowledges any."""
_SUPERSEDED_MIN: Final = 64
"""So many timers that nobody waits for any more are kept before any is thrown away."""


class Timed(Protocol):
    """What the kernel knows of what waits. ``timer`` is the instant it is scheduled for."""

    id: str
    timer: Instant | None


class Record(Timed, Protocol):
    """What the kernel knows of a record. ``table`` is where its row goes."""

    table: ClassVar[str]

    def row(self) -> Row: ...


class Owed(Record, Protocol):
    """A record that is sent until it is acknowledged."""

    send_at: Instant
    tries: int


R = TypeVar("R", bound=Record)
T = TypeVar("T", bound=Timed)


def _nothing(record: Any) -> None: ...


def _awaits_nothing(record: Any, peer: str) -> bool:
    return False


def _sends_nothing(record: Any, peer: str) -> None: ...


@attrs.frozen(slots=True)
class RecordKind:
    """What a kind of record needs: ``due_at`` is when time next concerns one, ``on_due`` what happens then; ``awaits``
    whether a peer has not acknowledged something of one, ``send`` how the peer gets that again. ``row`` makes its row,
    if any is made.
    """

    due_at: Callable[[Any], Instant | None] | None = None
    on_due: Callable[[Any], None] = _nothing
    awaits: Callable[[Any, str], bool] = _awaits_nothing
    send: Callable[[Any, str], None] = _sends_nothing
    row: Callable[[Any], Row] | None = None
    is_kept: bool = True


class KeptAttributes(NamedTuple):
    """What a part keeps, by the names of its attributes.

    ``rows`` are its records, by id, and what else the store has of it. ``volatile`` is what no row has, though what
    happens next depends on it. ``derived`` is worked out from these, is for people, or is empty between two inputs.
    All other attributes stay as the constructor and ``restore`` make them.
    """

    rows: tuple[str, ...] = ()
    volatile: tuple[str, ...] = ()
    derived: tuple[str, ...] = ()


_KEPT: Final[dict[type, KeptAttributes]] = {}
C = TypeVar("C", bound=type)


def keeps(*, rows: str = "", volatile: str = "", derived: str = "") -> Callable[[C], C]:
    """Declare what a part keeps, see :class:`KeptAttributes`; names are separated by blanks."""

    def declare(part: C) -> C:
        _KEPT[part] = KeptAttributes(tuple(rows.split()), tuple(volatile.split()), tuple(derived.split()))
        return part

    return declare


def kept_by(part: object) -> KeptAttributes:
    """What a part has declared."""
    return _KEPT.get(type(part), KeptAttributes())


@keeps(
    rows="now counters copied",
    volatile="timers unacknowledged _resent",
    derived="dirty changes messages replies actions peer_changes errors _counted _timer_seq _superseded _revision",
)
class Kernel:
    """The clock, the Ready that is being made, the timers and the counters of one actor."""

    keeps_records: bool = True
    """Whether records become rows. An experiment that makes no actor anew, and reads no row, saves making them."""
    keeps_counters: bool = True
    """Whether the clock and the counters become rows as well, which only an actor that is made anew reads."""
    keeps_log: bool = True
    """Whether the transition log is written, beyond complaints. An experiment saves what nobody observes."""

    resends: bool = True
    """Whether what is not acknowledged is sent again. An experiment in which no message is lost saves the timers."""

    tidy_every: int = 256
    """After so many ends of leases, or claims, a part that has calendars or a tree of them forgets what is past."""

    def __init__(self, settings: ActorSettings) -> None:
        self.settings = settings
        self.now: Instant = 0
        self.counters: dict[str, int] = dict.fromkeys(COUNTERS, 0)
        self.copied: Instant = 0
        """Where the store that was taken up is a copy, or takes the place of one that is lost: since when."""
        self.timers: list[tuple[Instant, int, Any]] = []
        # By identity: a peer chooses the ids of leases, which must not meet those of units or delegations.
        self.dirty: dict[int, Record] = {}
        self.changes: list[Change] = []
        self.messages: list[Outgoing] = []
        self.replies: list[Reply] = []
        self.actions: list[Action] = []
        self.peer_changes: list[PeerChange] = []
        self.errors: list[str] = []
        """What the operator was told last that is wrong."""
        self.unacknowledged: dict[str, dict[str, Record]] = {}
        self._resent: dict[str, Iterator[str]] = {}
        """The ids of what a peer that has connected is still to be sent again, each when it acknowledges another."""
        self._kinds: dict[type, RecordKind] = {}
        self._counted = False
        self._timer_seq = self._superseded = self._revision = 0

    # -- kinds of records --------------------------------------------------------------------------------------

    def register(
        self,
        record: type[R],
        *,
        due_at: Callable[[R], Instant | None] | None = None,
        on_due: Callable[[R], None] = _nothing,
        awaits: Callable[[R, str], bool] = _awaits_nothing,
        send: Callable[[R, str], None] = _sends_nothing,
    ) -> None:
        """Say once what all records of a class need; see :class:`RecordKind`."""
        row: Callable[[Any], Row] = layout_of(record).row if issubclass(record, KeptRecord) else record.row
        self._kinds[record] = RecordKind(due_at, on_due, awaits, send, row)

    def show_rows(self, whole: Container[str], brief: Container[str]) -> None:
        """No actor is made anew from its rows: of these tables rows are made, whole or without their bodies, for who
        observes them, and of no other.
        """
        for cls, kind in self._kinds.items():
            table = getattr(cls, "table", "")
            if table in brief:
                self._kinds[cls] = attrs.evolve(kind, row=layout_of(cls).brief)
            elif table not in whole:
                self._kinds[cls] = attrs.evolve(kind, row=None)

    def register_unkept(self, kind: type[T], *, on_due: Callable[[T], None]) -> None:
        """The same for what waits and is not kept: it is over when its actor is. Time concerns it when it was
        :meth:`schedule`d.
        """
        self._kinds[kind] = RecordKind(on_due=on_due, is_kept=False)

    def due_at(self, record: Record) -> Instant | None:
        """When time next concerns a record."""
        due_at = self._kinds[type(record)].due_at
        return None if due_at is None else due_at(record)

    def awaits(self, record: Record, peer: str) -> bool:
        """Whether ``peer`` has not acknowledged something of a record."""
        return self._kinds[type(record)].awaits(record, peer)

    # -- records -----------------------------------------------------------------------------------------------

    def touch(self, record: Record) -> None:
        """A record has changed: its row is written, and its timer set, with the next Ready."""
        self.dirty[id(record)] = record

    def schedule(self, record: Timed, at: Instant | None) -> None:
        """Have time concern a record ``at`` then (None: not at all), and at no other instant."""
        if at == record.timer:
            return
        self._superseded += record.timer is not None
        record.timer = at
        if at is not None:
            self._timer_seq += 1
            heapq.heappush(self.timers, (at, self._timer_seq, record))

    def forget(self, record: Timed) -> None:
        """A record is no more: it has no row to be written, and no timer."""
        self.dirty.pop(id(record), None)
        if record.timer is not None:
            self.schedule(record, None)

    def erase(self, record: Record, *, keep: bool = False) -> None:
        """A record is no more, and its row goes from the store; ``keep``: it stays there as it is now, as history."""
        self.forget(record)
        self._revise()
        if self.keeps_records:
            self.changes.append(new_tuple(Change, (record.table, record.id, record.row() if keep else None)))

    def fire(self, record: Any, event: str, why: Reason | None = None) -> None:
        """Move ``record`` by ``event`` and write the log. Raises ``ProtocolError``, and changes nothing, if the table
        has no such row.
        """
        before = (record.state, record.pending)
        after = record.machine.next(before, event)
        record.state, record.pending = after
        self.dirty[id(record)] = record
        if self.keeps_log:
            text = "" if why is None else why.text()
            row = (self.now, record.id, event, f"{before[0]}/{before[1]}", f"{after[0]}/{after[1]}", text)
            self.changes.append(new_tuple(Change, (LOG, "", row)))

    def note(self, subject: str, event: str, before: str, after: str, why: Reason | None) -> None:
        """Write a line of the transition log."""
        if self.keeps_log:
            self._log(subject, event, before, after, why)

    def _log(self, subject: str, event: str, before: str, after: str, why: Reason | None) -> None:
        text = "" if why is None else why.text()
        self.changes.append(new_tuple(Change, (LOG, "", (self.now, subject, event, before, after, text))))

    def complain(self, text: str, event: str = "complaint", kind: str = "", *, because: Reason | None = None) -> None:
        """Tell the operator what is wrong."""
        what = said(text).because(because)
        self.errors = [*self.errors[-19:], words(what)]
        self._log("", event, "", kind, what)

    def next(self, counter: str) -> int:
        """The next number of a counter, one of :data:`COUNTERS`."""
        self._counted = True
        self.counters[counter] += 1
        return self.counters[counter]

    # -- messages ----------------------------------------------------------------------------------------------

    def send(self, peer: str, message: Message) -> None:
        """Have ``message`` sent to ``peer``, once, with the next Ready."""
        self.messages.append(new_tuple(Outgoing, (peer, message)))

    def reply(self, reply: Reply) -> None:
        """Answer an operator's command, with the next Ready."""
        self.replies.append(reply)

    def owe(self, record: Record, peer: str) -> None:
        """``peer`` has not acknowledged something of ``record``: it is sent again as soon as the peer connects."""
        waiting = self.unacknowledged.get(peer)
        if waiting is None:
            waiting = self.unacknowledged[peer] = {}
        waiting[record.id] = record

    def send_owed(self, record: Owed, peer: str, message: Message) -> None:
        """Send ``peer`` what ``record`` has for it: again, after ever longer waits, until it is acknowledged."""
        self.send(peer, message)
        self.owe(record, peer)
        record.send_at = self.again_at(record.tries)
        record.tries += 1

    def owe_no_more(self, record: Record, peer: str) -> None:
        """``peer`` has acknowledged all of ``record``."""
        waiting = self.unacknowledged.get(peer)
        if waiting is not None and waiting.pop(record.id, None) is not None:
            self.resend_next(peer)

    def connected(self, peer: str) -> None:
        """What ``peer`` has not acknowledged is sent at once instead of at the end of its backoff: a few records, and
        another one for each that it acknowledges or accepts. So one that comes and goes, and answers nothing, costs
        little.
        """
        self._resent[peer] = iter(list(self.unacknowledged.get(peer, ())))
        self._resend(peer, RESENT_AT_ONCE)

    def resend_next(self, peer: str) -> None:
        """``peer`` has taken one of what it was sent again since it connected: another one follows."""
        if peer in self._resent:
            self._resend(peer, 1)

    def _resend(self, peer: str, most: int) -> None:
        waiting, sent = self.unacknowledged.get(peer, {}), 0
        for id_ in self._resent[peer]:
            record = waiting.get(id_)
            if record is None:
                continue
            kind = self._kinds[type(record)]
            if not kind.awaits(record, peer):
                del waiting[id_]
                continue
            if isinstance(record, SentRecord):
                record.tries = 0
            kind.send(record, peer)
            self.touch(record)
            sent += 1
            if sent == most:
                return
        self._resent.pop(peer, None)

    def again_at(self, tries: int, *, accepted: bool = False) -> Instant:
        """When that is sent again which was sent ``tries`` times before, or since its peer has ``accepted`` it; that
        has time, as the peer repeats its answer until it is acknowledged, unless it has lost its state.
        """
        if not self.resends:
            return INSTANT_MAX
        wait = self.settings.retry_max << min(tries, ACCEPTED_DOUBLINGS) if accepted else self.backoff(tries)
        return self.now + wait

    def backoff(self, tries: int) -> Duration:
        """How long an answer is waited for that did not come ``tries`` times, milliseconds."""
        return min(self.settings.retry_max, self.settings.retry_first << min(tries, 20))

    # -- time, and the Ready -----------------------------------------------------------------------------------

    def tick(self, now: Instant) -> None:
        """Go on to ``now``, and do what is due by then."""
        if now > self.now:
            self.now = now
        if self.dirty:
            self._settle()
        timers, now = self.timers, self.now
        if not timers or timers[0][0] > now:
            return
        due = []
        while timers and timers[0][0] <= now:
            at, _, record = heapq.heappop(timers)
            if record.timer == at:
                due.append((at, record))
            else:
                self._superseded -= 1
        for at, record in due:
            if record.timer == at:  # and not taken back by one that was due before it
                kind, record.timer = self._kinds[type(record)], None
                if kind.is_kept:
                    self.dirty[id(record)] = record  # before: a record that is dropped takes itself out again
                kind.on_due(record)

    def next_timer(self) -> Instant | None:
        """When time next concerns any record."""
        if self.dirty:
            self._settle()
        timers = self.timers
        while timers and timers[0][2].timer != timers[0][0]:
            heapq.heappop(timers)
            self._superseded -= 1
        return timers[0][0] if timers else None

    def take(self) -> Ready | None:
        """What is to be done since the last call, or None."""
        if self.dirty:
            self._settle()
        if not (self.changes or self.messages or self.replies or self.actions or self.peer_changes):
            return None
        if self.changes and self.keeps_counters:
            self._save_counters()
        ready = Ready(self.changes, self.messages, self.replies, self.actions, self.peer_changes)
        self.changes, self.messages, self.replies, self.actions, self.peer_changes = [], [], [], [], []
        return ready

    def restore(self, rows: Iterable[Row]) -> None:
        """Take up the clock and the counters that a store kept.

        Of numbers that were given after a copy was made nothing is known, but that they were less than one for each
        millisecond since 1970: no number is given twice.
        """
        for key, value in rows:
            if key == CLOCK:
                self.now = max(self.now, value)
            elif key == COPIED:
                self.copied = value
            elif key in self.counters:
                self.counters[key] = value
        self._revision = self.now
        if self.copied:
            self.counters = {key: max(value, self.copied) for key, value in self.counters.items()}
            self._counted = True
            self.changes.append(Change("meta", COPIED, None))
            self.note("", "copied", "", "", said(f"the store is a copy, or is new, since {mark(self.copied)}"))

    def _settle(self) -> None:
        """Turn what was touched into rows and timers."""
        dirty, self.dirty = self.dirty, {}
        self._revise()
        add, kinds, schedule, keeps = self.changes.append, self._kinds, self.schedule, self.keeps_records
        for record in dirty.values():
            kind = kinds[type(record)]
            due_at, make_row = kind.due_at, kind.row
            at = due_at(record) if due_at is not None else None
            if at != record.timer:
                schedule(record, at)
            if keeps and make_row is not None:
                row = make_row(record)
                add(new_tuple(Change, (record.table, row[0], row)))
        if self._superseded > _SUPERSEDED_MIN and 4 * self._superseded > 3 * len(self.timers):
            self.timers = [entry for entry in self.timers if entry[2].timer == entry[0]]
            heapq.heapify(self.timers)
            self._superseded = 0

    @property
    def revision(self) -> int:
        """A number that grows with each change of records: as long as it stays, so does what follows from them. An
        instant, as long as there is less than a change in each millisecond, so that it goes on growing after a restart.
        """
        if self.dirty:
            self._settle()
        return self._revision

    def _revise(self) -> None:
        self._revision = max(self._revision + 1, self.now)

    def _save_counters(self) -> None:
        self.changes.append(Change("meta", CLOCK, (CLOCK, self.now)))
        if self._counted:
            self._counted = False
            self.changes.extend(Change("meta", key, (key, value)) for key, value in self.counters.items())


def earliest(one: Instant | None, two: Instant | None, three: Instant | None = None) -> Instant | None:
    """The earliest of those that are set."""
    least = one
    if two is not None and (least is None or two < least):
        least = two
    if three is not None and (least is None or three < least):
        least = three
    return least


Handler = Callable[[str, Any], None]
"""Takes a message: from which peer, and the message."""
Answering = Callable[[Mapping[str, Any]], Any]
"""Carries out a command, or answers a query: its arguments to its result."""

F = TypeVar("F", bound=Callable[..., Any])
_MARK: Final = "_leasekit_takes"


def takes(message: type, need: str = "") -> Callable[[F], F]:
    """The method takes messages of a class, from peers that have the permission ``need`` (empty: from every peer)."""
    return _marked("messages", message, need)


def command(name: str) -> Callable[[F], F]:
    """The method carries out the operator's command ``name``."""
    return _marked("commands", name)


def deferred(name: str) -> Callable[[F], F]:
    """The method begins to carry out the operator's command ``name``, which is answered when a peer has answered."""
    return _marked("deferred", name)


def query(name: str) -> Callable[[F], F]:
    """The method answers the query ``name``."""
    return _marked("queries", name)


def _marked(table: str, key: object, need: str = "") -> Callable[[F], F]:
    def mark(method: F) -> F:
        setattr(method, _MARK, (table, key, need))
        return method

    return mark


V = TypeVar("V")


def named(field: str, name: str, known: Mapping[str, V], are: str = "there are") -> V:
    """What an operator names. Raises ``CommandError`` that says which there are."""
    found = known.get(name)
    if found is None:
        has = ", ".join(sorted(known)) or "(none)"
        raise CommandError(f"{field}: found {name!r:.80}, {are} {has:.400}", Code.NOT_FOUND)
    return found


def check_arguments(arguments: Mapping[str, Any]) -> None:
    """What no command takes, since no row or message can hold it: text that is not Unicode. Raises ``CommandError``."""
    for field, value in arguments.items():
        if not all(is_text(text) for text in _texts(value)):
            raise ArgumentError(f"{field!r:.40}: found {value!r:.80}, which is not Unicode: half of a surrogate pair")


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


@attrs.define(eq=False)
class Dispatch:
    """Who takes what, of an actor in ``role``."""

    _role: str
    messages: dict[type, Handler] = attrs.field(factory=dict, init=False)
    needs: dict[type, str] = attrs.field(factory=dict, init=False)
    commands: dict[str, Answering] = attrs.field(factory=dict, init=False)
    deferred: dict[str, Callable[[Command], None]] = attrs.field(factory=dict, init=False)
    queries: dict[str, Answering] = attrs.field(factory=dict, init=False)
    answers: dict[str, Any] = attrs.field(factory=dict, init=False)
    """The type of what each query answers, and each command that is carried out at once."""
    recall: Callable[[Row], Answer] = attrs.field(init=False)
    """How a lease is shown of which there is only its row."""
    connected: list[Callable[[str], None]] = attrs.field(factory=list, init=False)
    """What happens, in order, when a connection to a peer comes up."""
    refused: list[Callable[[str, ErrorReply], bool]] = attrs.field(factory=list, init=False)
    """Who is told of an error that a peer sends, in order, until it was meant for one of them."""
    ended: list[Callable[[ActionDone], object]] = attrs.field(factory=list, init=False)
    """Who is told of an action that has ended, in order, until one says that it was its own."""

    def add(self, part: object) -> None:
        """Have a part's methods take what they are marked with."""
        kind: Any = type(part)
        for name, method in _takers(kind):
            table, key, need = getattr(method, _MARK)
            bound = getattr(part, name)
            getattr(self, table)[key] = bound if table == "messages" else _reading(bound, method)
            if table in ("commands", "queries"):
                self.answers[key] = _answer_of(method)
            if need:
                self.needs[key] = need

    def prepare(self, name: str, arguments: Mapping[str, Any]) -> Callable[[], Any]:
        """What carries out a command. Raises ``CommandError`` if there is none, or for arguments that none takes."""
        answer = self._named("command", self.commands, name)
        check_arguments(arguments)
        return lambda: plain(answer(arguments))

    def ask(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """The answer to a query, as plain data. Raises ``CommandError``."""
        answer = self._named("query", self.queries, name)
        check_arguments(arguments)
        return plain(answer(arguments))

    def _named(self, what: str, table: Mapping[str, Answering], name: str) -> Answering:
        found = table.get(name)
        if found is None:
            has = ", ".join(sorted(table))
            raise CommandError(f"{with_article(self._role)} has no {what} {name!r}; it has {has}")
        return found


@cache
def _takers(part: type) -> tuple[tuple[str, Callable[..., Any]], ...]:
    """The methods of a class of parts that are marked with what they take, by name, those of its bases first."""
    owners = reversed(part.__mro__)
    return tuple((name, each) for owner in owners for name, each in vars(owner).items() if hasattr(each, _MARK))


def _reading(handler: Callable[..., Any], method: Callable[..., Any]) -> Callable[[Any], Any]:
    """What takes a command's or query's arguments, or a :class:`Command`, as they came: the handler gets an instance of
    the class that it names, or nothing if it takes none.
    """
    kind, is_deferred = _arguments_of(method)
    if is_deferred:
        return handler if kind is None else lambda command: handler(command, read_arguments(kind, command.arguments))
    if kind is NoArguments:
        return lambda arguments: (read_arguments(NoArguments, arguments), handler())[1]
    return handler if kind is None else lambda arguments: handler(read_arguments(kind, arguments))


@cache
def _arguments_of(method: Callable[..., Any]) -> tuple[type | None, bool]:
    """The class of a handler's arguments (None: it reads these itself), and whether it takes the command as well."""
    kinds = [kind for name, kind in get_type_hints(method).items() if name != "return"]
    is_deferred = Command in kinds
    kind = next((one for one in kinds if one is not Command and attrs.has(one)), None)
    return NoArguments if not kinds else kind, is_deferred


@cache
def _answer_of(method: Callable[..., Any]) -> Any:
    return get_type_hints(method)["return"]
