"""What goes into an actor and what comes out of it: the whole contract between an actor and its shell.

An actor is a plain object without I/O. Its shell

1. feeds inputs with ``actor.step(input)``, one or many; the clock is one of them;
2. runs mapper turns that are due: ``while turn := actor.turn(): actor.step(turn.run())`` (in line), or hands the
   turn to a thread and feeds what it returns later;
3. asks ``ready = actor.ready()`` and, if it is not None, does three things **in this order**: commits
   ``ready.changes`` in one transaction; then sends ``ready.messages`` and answers ``ready.replies``; then starts
   ``ready.actions``. Nothing leaves an actor before the state that caused it is durable. While a commit fails, no
   further input is stepped; the shell retries it, or stops the actor and says so.
4. asks ``actor.wake_at()`` and feeds a ``Tick`` no later than that instant (a tick with nothing due is cheap,
   and harmless).

After a crash the shell makes the actor anew with ``actor.restore(store.load())``; what is due falls out of the records.
Messages may be lost, repeated, delayed or reordered: the actors make up for it. Actions must be started exactly
as given; after a restart the actor hands out again those whose end it has not seen, under the same number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

import attrs

from leasekit.core.drivers import UNIT, Blame
from leasekit.core.properties import EMPTY, Properties
from leasekit.core.protocol.messages import Message
from leasekit.core.reasons import Reason
from leasekit.core.schema import Change, Row
from leasekit.core.time import Instant


class Tick(NamedTuple):
    """The clock has come to ``now``. An earlier ``now`` than one seen before is taken as that one."""

    now: Instant


class Received(NamedTuple):
    """``peer`` (a name that the shell has authenticated) sent ``message``."""

    peer: str
    message: Message


class Connected(NamedTuple):
    """A connection to ``peer`` came up: what is due to it need not wait for its backoff."""

    peer: str


class Disconnected(NamedTuple):
    """There is no connection to ``peer`` any more."""

    peer: str


class ActionDone(NamedTuple):
    """Action ``number`` on ``unit`` ended; ``properties`` are the unit's, ``reason`` says why it failed, and ``blame``
    whose fault that is.
    """

    number: int
    unit: str
    ok: bool
    properties: Properties = EMPTY
    reason: str = ""
    blame: Blame = UNIT


class Command(NamedTuple):
    """The local operator wants ``name`` done; the answer comes as a :class:`Reply` with the same ``id``.

    ``caller`` is who wants it, and ``way`` how that came here, where the shell knows it. What has a ``key`` that this
    caller gave before is a repeat: it is not done again.
    """

    id: int
    name: str
    arguments: Mapping[str, Any]
    caller: str = ""
    way: str = ""
    key: str = ""


class TurnDone(NamedTuple):
    """A mapper's turn ended: with its ``decisions``, or with ``error`` in words if it raised or took too long."""

    number: int
    decisions: Sequence[Any] = ()
    error: str = ""


Input: TypeAlias = Tick | Received | Connected | Disconnected | ActionDone | Command | TurnDone


class Outgoing(NamedTuple):
    """A message for ``peer``. If there is no connection the shell drops it: what is due is sent again."""

    peer: str
    message: Message


class Action(NamedTuple):
    """Something for a driver to do: ``op`` on ``unit`` (``setup``, ``teardown``, ``modify`` at a site; ``join``,
    ``leave`` at a guest).

    ``number`` grows with every new action of the actor; ``unit`` names it within the actor (a site's unit id; at a
    guest ``LEASE/UNIT``). ``type`` picks the driver. ``properties`` holds what the actor says: unit and resource
    properties and, under ``lease.*`` and ``slice.*``, where the unit belongs. ``configuration`` is what a guest has
    said to its site.
    """

    number: int
    op: str
    unit: str
    type: str
    lease: str
    properties: Properties
    configuration: Properties = EMPTY


class Reply(NamedTuple):
    """The answer to a :class:`Command`: ``result`` or, when refused, ``error`` in words, with its ``reason`` where it
    has a code.
    """

    id: int
    result: Any = None
    error: str = ""
    reason: Reason | None = None


class Turn(NamedTuple):
    """A mapper's turn that is due. ``run()`` calls the mapper on an immutable view and never raises.

    Where ``yields`` is set more turns are due at once: this one is run in line, and what else there is to step comes
    before the next, so that turns without end hold nothing up.
    """

    number: int
    run: Callable[[], TurnDone]
    yields: bool = False


class PeerChange(NamedTuple):
    """The actor knows ``peer`` differently from now on; None: not at all any more. Its key, name and ``address`` are
    the shell's business.
    """

    name: str
    peer: Acquaintance | None


class Acquaintance(Protocol):
    """What a shell must know of a peer to talk to it."""

    @property
    def key(self) -> bytes: ...

    @property
    def address(self) -> str: ...


@attrs.define(slots=True)
class Ready:
    """What an actor wants done, in the order in which it must be done."""

    changes: list[Change] = attrs.Factory(list)
    messages: list[Outgoing] = attrs.Factory(list)
    replies: list[Reply] = attrs.Factory(list)
    actions: list[Action] = attrs.Factory(list)
    peers: list[PeerChange] = attrs.Factory(list)


class ActorLike(Protocol):
    """What a shell knows of an actor."""

    @property
    def name(self) -> str: ...

    def step(self, input: Input) -> None: ...

    def turn(self) -> Turn | None: ...

    def ready(self) -> Ready | None: ...

    def wake_at(self) -> Instant | None: ...

    def restore(self, tables: Mapping[str, Sequence[Row]]) -> None: ...

    def recall(self, row: Row) -> dict[str, Any]: ...

    def query(self, name: str, arguments: Mapping[str, Any]) -> Any: ...
