"""The shell that the three actors have in common: it dispatches what comes in to the actor's parts, and hands out what
is to be done. :class:`Server` is that of broker and authority, which answer requests about leases.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final, Generic

from leasekit.actors.commanded import Commanded
from leasekit.actors.issued import Issued
from leasekit.actors.kernel import Dispatch, Kernel, takes
from leasekit.actors.peering import Calls, Keyring, Peering
from leasekit.actors.served import L, Notices, Reports, Served
from leasekit.actors.settings import ActorSettings, Peer
from leasekit.actors.turns import MapperTurns, Turning, is_inline
from leasekit.core.answers import ActorStatus, plain
from leasekit.core.claims.signed import Scheme, Signer
from leasekit.core.errors import RemoteError
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
from leasekit.core.time import Instant

_SUBJECTS: Final = ("lease", "delegation", "peer", "claim", "command", "query", "plan")
"""The fields that say what a message is about."""


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
            Tick: self._tick,
            Received: self._received,
            ActionDone: self._action_done,
            TurnDone: self._turn_done,
            Command: self.commanded.take,
            Connected: self._connected,
            Disconnected: self._disconnected,
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

    def _action_done(self, done: ActionDone) -> None:
        """An action has ended, of an actor that begins any."""

    # -- inputs ------------------------------------------------------------------------------------------------

    def _tick(self, tick: Tick) -> None:
        self.kernel.tick(tick.now)

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
            subject = next((getattr(message, field) for field in _SUBJECTS if hasattr(message, field)), "")
            number = getattr(message, "number", 0)
            self.kernel.send(peer, ErrorReply(subject, number, error.reason))

    def _connected(self, connected: Connected) -> None:
        for tell in self.dispatch.connected:
            tell(connected.peer)

    def _disconnected(self, disconnected: Disconnected) -> None:
        self.peering.disconnected(disconnected.peer)

    @takes(ErrorReply)
    def _on_error(self, peer: str, message: ErrorReply) -> None:
        """What a peer could not take stays due, backed off, until it is of no use, unless a part says otherwise."""
        any(refused(peer, message) for refused in self.dispatch.refused)

    def _turn_done(self, done: TurnDone) -> None:
        self.turning.done(done)

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
