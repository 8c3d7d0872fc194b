"""The shell that the three actors have in common: it dispatches what comes in to the actor's parts, and hands out what
is to be done. :class:`Server` is that of broker and authority, which answer requests about leases.

Here mappers are called: the one place where foreign code runs, and whatever it does becomes a :class:`TurnDone`. What
comes back is not trusted: :func:`check_decision` looks at each field before an actor looks at the decision.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from sys import float_info
from traceback import walk_tb
from types import FrameType
from typing import Any, ClassVar, Final, Generic, Protocol, get_type_hints

import attrs

from leasekit.actors.issued import Issued
from leasekit.actors.kernel import Dispatch, Kernel, earliest, keeps, takes
from leasekit.actors.peering import Calls, Commanded, Keyring, Peering
from leasekit.actors.served import L, Notices, Reports, Served
from leasekit.actors.settings import ActorSettings, Peer
from leasekit.core.answers import ActorStatus, plain
from leasekit.core.claims.signed import Scheme, Signer
from leasekit.core.errors import CommandError, LeasekitError, RemoteError
from leasekit.core.mappers import Demand, Grant, LeaseView, PendingRequest, PlannedPart, Preempt, ReportNumber, Wake
from leasekit.core.properties import Properties, check_plain, check_properties, is_text
from leasekit.core.protocol.messages import ErrorReply, Message
from leasekit.core.reasons import Code, with_article
from leasekit.core.schema import Row
from leasekit.core.steps import (
    ActionDone,
    Command,
    Connected,
    Disconnected,
    Input,
    Ready,
    Received,
    Tick,
    Turn,
    TurnDone,
)
from leasekit.core.time import INSTANT_MAX, Instant, Term, make_term
from leasekit.core.topology import TopologyRequest
from leasekit.core.tuples import new_tuple

FAILED: Final = "turn failed"
"""The mapper raised, took too long, or returned no decisions."""
MALFORMED: Final = "decision malformed"
"""What the mapper decided is no decision of its role's, or a field of it is not what its class says."""
NOT_CARRIED_OUT: Final = "decision not carried out"
"""It is a decision, but what it says can't be done."""

_LEASEKIT: Final = f"{Path(__file__).parents[1]}/"
_POLICIES: Final = f"{_LEASEKIT}policies/"


class MalformedError(CommandError):
    """What a mapper decided is no decision."""


def is_inline(mapper: object) -> bool:
    """Whether the mapper promises to be quick: it is then called on the actor's own step, on views of what is live.

    Others may run in a thread while the actor goes on, and get views that hold still.
    """
    return getattr(mapper, "inline", False) is True


def plans_apart(mapper: object) -> bool:
    """Whether the mapper promises that its ``plan`` shares nothing with what else it is asked: both may run at once."""
    return getattr(mapper, "plans_apart", False) is True


def run_turn(number: int, call: Callable[[], Any]) -> TurnDone:
    """Call a mapper. Never raises: a mapper's bug must not become the actor's."""
    try:
        found = call()
        if type(found) is not list and not isinstance(found, Iterable):
            return TurnDone(number, error=f"returned {found!r:.60}, expected its decisions, as a list or by yield")
        return new_tuple(TurnDone, (number, tuple(found), ""))
    except (Exception, SystemExit, GeneratorExit) as error:  # noqa: BLE001 - foreign code: what it raises is reported,
        # never obeyed. What else there is comes from who runs it, to break it off.
        return TurnDone(number, error=f"{type(error).__name__}: {error}{place(walk_tb(error.__traceback__))}")


def place(frames: Iterable[tuple[FrameType, int]]) -> str:
    """Where in its own file a mapper is, by the frames of its turn, the outermost first, each with its line; and which
    request, demand or lease it has in hand, if it has one: `` (mine.py, line 12, at lease-3)``. Empty without one.
    """
    own, line, lease = "", 0, ""
    for frame, number in frames:
        file = frame.f_code.co_filename
        own = own or (file if file.startswith(_POLICIES) or not file.startswith(_LEASEKIT) else "")
        if own and file == own:
            line, lease = number, _in_hand(frame) or lease
    return f" ({Path(own).name}, line {line}{f', at {lease}' if lease else ''})" if own else ""


def _in_hand(frame: FrameType) -> str:
    """The lease that a frame's local variables speak of, if it is one."""
    values = list(frame.f_locals.values())
    found = {value.lease for value in values if type(value) in (PendingRequest, Demand)}
    found |= {value.id for value in values if type(value) is LeaseView}
    return found.pop() if len(found) == 1 else ""


def later_than(now: Instant, at: Instant) -> Instant:
    """When a mapper that asks for ``at`` is called again: not at the same instant, or time would stand still."""
    return max(at, now + 1)


def check_decision(decision: Any, where: str = "") -> None:
    """Raise ``MalformedError`` that names the field unless each field of the named tuple holds what its class says."""
    checks = _known.get(type(decision)) or _checks(type(decision))
    for (field, check, default), value in zip(checks, decision, strict=True):
        if value is not default:
            check(where + field, value)


Check = Callable[[str, Any], None]


def _text(where: str, value: Any) -> None:
    if type(value) is str and value.isascii():
        return
    if not isinstance(value, str) or not is_text(value):
        raise MalformedError(f"{where}: found {value!r:.80}, expected text")


def _integer(where: str, value: Any) -> None:
    if type(value) is not int or not -INSTANT_MAX <= value <= INSTANT_MAX:
        raise MalformedError(f"{where}: found {value!r:.80}, expected a whole number")


def _number(where: str, value: Any) -> None:
    # What is no number at all is less than nothing, and more.
    if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) <= float_info.max:
        raise MalformedError(f"{where}: found {value!r:.80}, expected a finite number")


def _flag(where: str, value: Any) -> None:
    if type(value) is not bool:
        raise MalformedError(f"{where}: found {value!r:.80}, expected true or false")


def _term(where: str, value: Any) -> None:
    if type(value) is Term:
        start, end = value
        if type(start) is int and type(end) is int and 0 <= start < end <= INSTANT_MAX:
            return  # the usual case, without a call; what else there is goes on to be explained
    if not isinstance(value, Term) or any(type(at) is not int for at in value):
        raise MalformedError(f"{where}: found {value!r:.80}, expected [start, end) in milliseconds")
    try:
        make_term(*value)
    except ValueError as error:
        raise MalformedError(f"{where}: {error}") from error


def _properties(where: str, value: Any) -> None:
    try:
        check_plain(check_properties(value, where), where)
    except ValueError as error:
        raise MalformedError(str(error)) from error


def _names(where: str, value: Any) -> None:
    if not isinstance(value, tuple):
        raise MalformedError(f"{where}: found {value!r:.80}, expected a list of names")
    for name in value:
        _text(where, name)


def _several(kind: type[Any], words: str) -> Check:
    def checked(where: str, value: Any) -> None:
        if not isinstance(value, tuple) or any(type(one) is not kind for one in value):
            raise MalformedError(f"{where}: found {value!r:.80}, expected a tuple of {words}")
        for number, one in enumerate(value):
            check_decision(one, f"{where}[{number}].")

    return checked


def _topology(where: str, value: Any) -> None:
    if type(value) is not TopologyRequest:
        raise MalformedError(f"{where}: found {value!r:.80}, expected a TopologyRequest")


def _integers(where: str, value: Any) -> None:
    if type(value) is not tuple or any(type(one) is not int for one in value):
        raise MalformedError(f"{where}: found {value!r:.80}, expected a tuple of whole numbers")


def _or_none(check: Check) -> Check:
    def checked(where: str, value: Any) -> None:
        if value is not None:
            check(where, value)

    return checked


_BY_TYPE: Final[Mapping[Any, Check]] = {
    str: _text,
    str | None: _or_none(_text),
    int: _integer,
    int | None: _or_none(_integer),
    float: _number,
    bool: _flag,
    Term: _term,
    Properties: _properties,
    Properties | None: _or_none(_properties),
    tuple[str, ...]: _names,
    tuple[int, ...]: _integers,
    tuple[Grant, ...]: _several(Grant, "grants"),
    tuple[Preempt, ...]: _several(Preempt, "preemptions"),
    tuple[PlannedPart, ...]: _several(PlannedPart, "planned parts"),
    TopologyRequest: _topology,
}


_known: Final[dict[type[Any], tuple[tuple[str, Check, Any], ...]]] = {}
_NO_DEFAULT: Final = object()


def _checks(kind: type[Any]) -> tuple[tuple[str, Check, Any], ...]:
    """Each field's name, check and default: what a decision does not say is as its class has it."""
    defaults = kind._field_defaults
    checks = _known[kind] = tuple(
        (field, _BY_TYPE[hint], defaults.get(field, _NO_DEFAULT)) for field, hint in get_type_hints(kind).items()
    )
    return checks


class Turning(Protocol):
    """What an actor's shell asks for the turns of its mapper."""

    @property
    def mapper(self) -> object:
        """The mapper."""

    def at(self) -> Instant | None:
        """When a turn is due; None if none is, or one runs."""

    def turn(self) -> Turn | None:
        """The turn that is due, if one is."""

    def done(self, done: TurnDone) -> None:
        """A turn has ended."""


Carriers = Mapping[type, Callable[[Any], object]]
"""What carries out each decision that a mapper of a role may take, beside those of any role: it raises
``LeasekitError`` or ``ValueError``, with nothing changed, if that can't be done."""

REPORTED_MAX: Final = 64
"""How many numbers a mapper may report, by name."""
_REPORTED: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")


@keeps(volatile="wake _failed running reported")
@attrs.define(eq=False, slots=False)
class MapperTurns:
    """The turns of the mapper of an actor in ``role``: one runs at a time, and what it decides is carried out decision
    by decision.
    """

    _kernel: Kernel
    _role: str
    wake: Instant | None = None
    """When the mapper wants to be called next."""
    _carriers: Carriers = attrs.field(factory=dict, init=False)
    _waiting: Callable[[], Iterable[str]] = attrs.field(factory=lambda: tuple, init=False)
    _failed: int = attrs.field(default=0, init=False)
    running: int = attrs.field(default=0, init=False)
    """The number of the turn that runs now, or 0."""
    reported: dict[str, float] = attrs.field(factory=dict, init=False)
    """The numbers that the mapper has reported since the actor began, by name."""
    on_report: Callable[[str, float], None] | None = attrs.field(default=None, init=False)
    """Told the name and the value of each, at once: for who watches."""

    def declare(self, carriers: Carriers, waiting: Callable[[], Iterable[str]] = tuple) -> None:
        """Say once how decisions are carried out, and how the ids of those that wait for the mapper are found, for its
        errors.
        """
        self._carriers = {Wake: self._wake, ReportNumber: self._report, **carriers}
        self._waiting = waiting

    def begin(self, call: Callable[[], Any]) -> Turn:
        """A turn that runs ``call``."""
        turn = self.beside(call)
        self.running = turn.number
        return turn

    def beside(self, call: Callable[[], Any]) -> Turn:
        """A turn that runs ``call``, whatever else runs; its caller knows its number when it is over."""
        number = self._kernel.next("turn")
        return new_tuple(Turn, (number, partial(run_turn, number, call), False))

    def answer_wake(self) -> None:
        """The mapper is about to be called: what it has asked for is done."""
        self.wake = None

    def end(self) -> None:
        """The turn that ran is over, and what it decided is not for :meth:`done`."""
        self.running = 0

    def done(self, done: TurnDone) -> bool:
        """Carry out what the mapper decided, each decision by itself; whether anything failed. A mapper that raised, or
        whose decision can't be carried out, is called again later: what it wanted to do may still have to be done.
        """
        if done.number != self.running:
            return False
        self.running = 0
        failed = bool(done.error)
        if done.error:
            waiting = ", ".join(islice(self._waiting(), 5))
            self.wrong(FAILED, f"{self._role} mapper: {done.error}{f' (waiting: {waiting})' if waiting else ''}")
        for decision in done.decisions:
            try:
                self.carry_out(decision)
            except (LeasekitError, ValueError) as error:
                failed = True
                text = f"{self._role} mapper's {type(decision).__name__} is not carried out: {error}"
                self.wrong(MALFORMED if isinstance(error, MalformedError) else NOT_CARRIED_OUT, text)
        if failed:
            self.wake = earliest(self.wake, self._kernel.now + self._kernel.backoff(self._failed))
        self._failed = self._failed + 1 if failed else 0
        return failed

    def carry_out(self, decision: Any) -> None:
        """Carry out one decision. Raises ``LeasekitError`` or ``ValueError``, with nothing changed, if that can't be
        done.
        """
        carry_out = next(filter(None, map(self._carriers.get, type(decision).__mro__)), None)
        if carry_out is None:
            raise MalformedError(f"{decision!r:.80} is no decision of the {self._role} mapper")
        check_decision(decision)
        carry_out(decision)

    def _wake(self, decision: Wake) -> None:
        self.wake = earliest(self.wake, later_than(self._kernel.now, decision.at))

    def _report(self, decision: ReportNumber) -> None:
        name, value = decision
        if not _REPORTED.fullmatch(name):
            raise MalformedError(
                f"name: found {name!r:.80}, expected up to 64 letters, digits and _-., of which the first is a letter"
            )
        if name not in self.reported and len(self.reported) >= REPORTED_MAX:
            raise MalformedError(f"name: found {name!r}, one more than the {REPORTED_MAX} names that a mapper may have")
        self.reported[name] = value
        if self.on_report is not None:
            self.on_report(name, value)

    def wrong(self, kind: str, text: str) -> None:
        """Say what the mapper does wrong: ``kind`` is :data:`FAILED`, :data:`MALFORMED` or :data:`NOT_CARRIED_OUT`."""
        self._kernel.complain(text, "mapper", kind)


class Actor:
    """The common part of an actor; see :mod:`leasekit.core.steps` for the contract with its shell."""

    role: ClassVar[str]
    endorsable: ClassVar[str] = ""
    """The role of those whom a broker may make known here."""
    first_turn: ClassVar[Instant | None] = None
    """When its mapper is called without being asked for anything."""
    turning: Turning
    """The turns of its mapper."""

    def __init__(
        self, name: str, signer: Signer, scheme: Scheme, peers: Iterable[Peer], settings: ActorSettings
    ) -> None:
        self.kernel = Kernel(settings)
        self.keyring = Keyring(name, signer, scheme, peers, self.kernel)
        self.dispatch = Dispatch(self.role)
        self.turns = MapperTurns(self.kernel, self.role, self.first_turn)
        self.peering = Peering(self.kernel, self.keyring, self.role, self.endorsable, self._deals_with)
        calls = Calls(self.kernel, self.keyring, self.dispatch)
        self.commanded = Commanded(self.kernel, self.dispatch, calls)
        for part in (self.peering, calls, self):
            self.dispatch.add(part)
        self.dispatch.refused.append(calls.refused)
        self.dispatch.connected += [self.kernel.connected, self.peering.connected, calls.connected]
        self._inputs: dict[type, Callable[[Any], None]] = {
            Tick: self._first_tick,
            Received: self._received,
            ActionDone: self._action_done,
            TurnDone: lambda done: self.turning.done(done),
            Command: self.commanded.take,
            Connected: self._connected,
            Disconnected: lambda gone: self.peering.disconnected(gone.peer),
        }

    @property
    def name(self) -> str:
        """How it is called."""
        return self.keyring.name

    @property
    def inline(self) -> bool:
        """Whether its mapper is called on the actor's own step."""
        return is_inline(self.turning.mapper)

    @property
    def signer(self) -> Signer:
        """The key that this actor signs with."""
        return self.keyring.signer

    @property
    def scheme(self) -> Scheme:
        """How this actor's signatures are made."""
        return self.keyring.scheme

    @property
    def peers(self) -> Mapping[str, Peer]:
        """The peers that this actor knows, by name."""
        return self.keyring.peers

    @property
    def errors(self) -> Sequence[str]:
        """What the operator was told last that is wrong."""
        return self.kernel.errors

    @property
    def now(self) -> Instant:
        """The instant that it is for this actor."""
        return self.kernel.now

    # -- the contract with the shell ---------------------------------------------------------------------------

    def step(self, input: Input) -> None:
        """Take one input. Never raises for anything that a peer, an operator, a driver or a mapper can cause."""
        self._inputs[type(input)](input)

    def ready(self) -> Ready | None:
        """What is to be done since the last call, or None. The caller must do it before it steps on."""
        return self.kernel.take()

    def wake_at(self) -> Instant | None:
        """The next instant at which a tick would do anything, or None."""
        at = self.kernel.next_timer()
        turn_at = self.turning.at()
        if at is None or (turn_at is not None and turn_at < at):
            return turn_at
        return at

    def turn(self) -> Turn | None:
        """The mapper's turn, if one is due and none is running."""
        return self.turning.turn()

    def query(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """Read-only answers for the operator; plain data. Raises ``CommandError``."""
        return self.dispatch.ask(name, arguments)

    def restore(self, tables: Mapping[str, Sequence[Row]]) -> None:
        """Take up the state that a store kept; afterwards all that is due is due at once."""
        self.kernel.restore(tables.get("meta", ()))
        self.peering.restore(tables.get("peers", ()))
        self.commanded.restore(tables.get("answers", ()))
        self._restore(tables)

    def recall(self, row: Row) -> dict[str, Any]:
        """A lease that this actor has forgotten, from the row that a store keeps of it, as queries show leases."""
        shown: dict[str, Any] = plain(self.dispatch.recall(row))
        return shown

    # -- for the roles to fill in ------------------------------------------------------------------------------

    def _restore(self, tables: Mapping[str, Sequence[Row]]) -> None:
        """Take up the role's own."""

    def _begin(self) -> None:
        """It is known what time it is."""

    # -- inputs ------------------------------------------------------------------------------------------------

    def _first_tick(self, tick: Tick) -> None:
        self._inputs[Tick] = self._tick
        self._tick(tick)
        self._begin()

    def _tick(self, tick: Tick) -> None:
        self.kernel.tick(tick.now)

    def _action_done(self, done: ActionDone) -> None:
        for ended in self.dispatch.ended:
            if ended(done):
                return

    def _received(self, received: Received) -> None:
        peer, message = received
        handler = self.dispatch.messages.get(type(message))
        try:
            if handler is None:
                raise RemoteError(Code.UNEXPECTED, f"{with_article(self.role)} does not take {type(message).__name__}")
            need = self.dispatch.needs.get(type(message))
            if need is not None:
                self.keyring.check_may(peer, need)
            handler(peer, message)
        except RemoteError as error:
            self._refuse_message(peer, message, error)

    def _refuse_message(self, peer: str, message: Message, error: RemoteError) -> None:
        """Say so to the sender; nothing is written, so that a hostile peer can't fill the store."""
        if not isinstance(message, ErrorReply):
            self.kernel.send(peer, ErrorReply(message.subject, getattr(message, "number", 0), error.reason))

    def _connected(self, connected: Connected) -> None:
        for tell in self.dispatch.connected:
            tell(connected.peer)

    @takes(ErrorReply)
    def _on_error(self, peer: str, message: ErrorReply) -> None:
        """What a peer could not take stays due, backed off, until it is of no use, unless a part says otherwise."""
        any(refused(peer, message) for refused in self.dispatch.refused)

    def _deals_with(self, peer: str) -> bool:
        """Whether something goes on with a peer."""
        return False

    def _status(self, leases: Iterable[Any]) -> ActorStatus:
        """What every role says of itself: who it is, what time it has, and how many leases are in which state."""
        states: dict[str, int] = {}
        for lease in leases:
            states[lease.state] = states.get(lease.state, 0) + 1
        return ActorStatus(
            self.name, self.role, self.keyring.signer.public.hex(), self.kernel.now, states, list(self.errors[-5:]),
            self.peering.introductions(), dict(self.turns.reported),
        )  # fmt: skip


class Server(Actor, Generic[L]):
    """An actor that answers requests about leases, whose records are ``L``."""

    def __init__(
        self, name: str, signer: Signer, scheme: Scheme, peers: Iterable[Peer], settings: ActorSettings
    ) -> None:
        super().__init__(name, signer, scheme, peers, settings)
        self.served: Served[L] = Served(self.kernel, self.keyring)
        self.notices = Notices(self.kernel)
        self.reports = Reports(self.kernel, name)
        self.dispatch.add(self.served)
        self.dispatch.add(self.notices)
        self.dispatch.refused.append(self.notices.refused)
        self.peering.changed.append(self.served.retag)

    def _add_issued(self, issued: Issued) -> None:
        """Have the part that delegates take its messages, and hear of peers."""
        self.dispatch.add(issued)
        self.dispatch.refused.insert(0, issued.refused)
        self.peering.changed.append(issued.peer_changed)
        self.dispatch.connected.append(issued.connected)

    @property
    def leases(self) -> dict[str, L]:
        """The leases that it remembers, by id."""
        return self.served.leases

    def _restore(self, tables: Mapping[str, Sequence[Row]]) -> None:
        self.notices.restore(tables.get("notices", ()))
        self.reports.restore(tables.get("reports", ()))

    def ready(self) -> Ready | None:
        """As the base's; requests that this Ready does not settle are acknowledged with ``Accepted``."""
        self.served.before_ready()
        return super().ready()
