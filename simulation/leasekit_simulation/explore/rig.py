"""The production actors, as something that can be kept, and gone on from in several ways.

Actors are mutable and large, so a joint state keeps them *frozen*: what their parts declare to keep, and their store,
pickled, without what constructors made of settings (handlers, mapper, keys). A :class:`Rig` has one live actor of each
role, into which it thaws a frozen one, has it take one input, and freezes it again. What came of it (:class:`Effect`)
is remembered: many joint states have the same actor in the same state before the same input.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Final

import attrs

from leasekit.actors.base import Actor
from leasekit.actors.broker.broker import Broker
from leasekit.actors.guest.service_manager import ServiceManager
from leasekit.actors.kernel import kept_by
from leasekit.actors.peering import Keyring
from leasekit.actors.settings import AuthoritySettings, BrokerSettings, DelegationSpec, GuestSettings, Peer, UnitGroup
from leasekit.actors.site.authority import Authority
from leasekit.core.claims.signed import UNSIGNED, UnsignedIdentity
from leasekit.core.leases import service_manager as sm
from leasekit.core.mappers import AuthorityCycle, AuthorityDecision, BrokerCycle, BrokerDecision, Refuse, Reject, Wake
from leasekit.core.protocol.codec import UnknownKind, decode_batch, encode_batch
from leasekit.core.protocol.messages import Message
from leasekit.core.schema import LOG
from leasekit.core.steps import Action, Input, Ready, Tick
from leasekit.core.time import SECOND, Duration, Instant
from leasekit.policies.authority.first_fit import FirstFit
from leasekit.policies.broker.fcfs import Fcfs
from leasekit.policies.guest.manual import Manual
from leasekit.stores.memory import MemoryStore
from leasekit_simulation.explore.checks import Violated, check_actor, check_log, check_stored, must, said_of_units
from leasekit_simulation.explore.pieces import Piece, by_lease, read_actor, read_parcel
from leasekit_simulation.parts import parts_of, wiring

GUEST: Final = "guest"
BROKER: Final = "broker"
SITE: Final = "site"
NAMES: Final = (GUEST, BROKER, SITE)
ROLES: Final = {GUEST: "guest", BROKER: "broker", SITE: "authority"}
TYPE: Final = "vm"
REFUSE, WAIT = "refuse", "wait"
"""What a mapper can be told to do in its next turn."""

# All times are short, so that little happens by waiting; and no two of them are a whole number of retries apart, so
# that timers of different kinds don't run out together but where they do by design.
RETRY: Final[Duration] = 10 * SECOND
"""The wait between two sendings of what is unanswered: always the same, so that how often it was sent is no state."""
BEGIN: Final[Instant] = 1_000_000
COMMON: Final[dict[str, Any]] = {
    "retry_first": RETRY, "retry_max": RETRY, "retention": 38 * SECOND, "clock_skew": 2 * SECOND,
}  # fmt: skip
GUEST_SETTINGS: Final = GuestSettings(
    redeem_lead=15 * SECOND, extend_lead=34 * SECOND, leave_time=17 * SECOND, request_timeout=SECOND,
    close_timeout=26 * SECOND, **COMMON,
)  # fmt: skip
BROKER_SETTINGS: Final = BrokerSettings(request_timeout=16 * SECOND, **COMMON)
TICKS_MAX: Final = 20
"""How often an actor may want to be ticked at one instant."""


class ObedientBroker(Fcfs):
    """First come, first served, but for turns in which it is told something else."""

    told = ""

    def allocate(self, cycle: BrokerCycle) -> list[BrokerDecision]:
        """As its base does, or what it was told to: to refuse everything, or to decide later."""
        told, self.told = self.told, ""
        if not told:
            return super().allocate(cycle)
        if told == WAIT:
            return [Wake(cycle.now + RETRY)]
        return [Reject(request.lease, "refused to see what happens") for request in cycle.requests]


class ObedientSite(FirstFit):
    """First fit, but for turns in which it is told something else."""

    told = ""

    def assign(self, cycle: AuthorityCycle) -> list[AuthorityDecision]:
        """As its base does, or what it was told to: to refuse everything that can be refused, or to decide later."""
        if not self.told or (self.told == REFUSE and all(demand.units < 0 for demand in cycle.demands)):
            return super().assign(cycle)
        told, self.told = self.told, ""
        if told == WAIT:
            return [Wake(cycle.now + RETRY)]
        refused = [Refuse(demand.lease, "refused to see what happens") for demand in cycle.demands if demand.units > 0]
        others = cycle._replace(demands=[demand for demand in cycle.demands if demand.units < 0])
        return [*super().assign(others), *refused]


class ObedientGuest(Manual):
    """A guest's operator decides; there is nothing that its mapper could be told."""

    told = ""


@attrs.frozen(slots=True, eq=False)
class Frozen:
    """An actor and its store between two steps.

    ``wake`` is when it wants to be ticked; ``piece`` is what :mod:`.canonical` makes of it; ``leases`` maps each lease
    that it ever knew to its state, pending operation and (at a guest) join state; ``busy`` says whether it keeps
    anything of a lease in memory: a record, a unit that is not free, time that is booked, a return. ``units`` maps
    units to the leases that have them: at a site as its unit records say, at a guest those that are joined; ``said`` is
    the last that the site said of each lease, or that the guest heard.
    """

    data: bytes
    wake: Instant | None
    piece: Piece
    leases: Mapping[str, tuple[str, ...]]
    busy: bool
    units: Mapping[str, tuple[str, ...]]
    said: Mapping[str, int]
    ends: Mapping[str, Instant]
    """When each lease of a guest that may be changed ends."""


@attrs.frozen(slots=True, eq=False)
class Parcel:
    """Messages that travel together: all that one step of ``sender`` had for ``receiver``."""

    sender: str
    receiver: str
    messages: tuple[Message, ...]
    data: bytes
    piece: Piece

    def __str__(self) -> str:
        kinds = "+".join(type(message).__name__ for message in by_lease(self.messages))
        return f"{kinds} from {self.sender} to {self.receiver}"


@attrs.frozen(slots=True, eq=False)
class Effect:
    """What came of one input: the actor as it is then, what it sent, the actions that it started in their order.

    ``restarted`` says that it crashed on the way: actions that it had started before are gone.
    """

    actor: Frozen
    parcels: tuple[Parcel, ...]
    actions: tuple[Action, ...]
    restarted: bool
    error: str
    """Why an operator's command was refused."""
    obeyed: bool
    """Whether the mapper did what it was told to, if it was told anything."""


def _here(part: int) -> object:
    """What stands in a frozen actor for one of its parts; the thawer puts its own in its place."""
    raise LookupError("a frozen actor is thawed by a Rig")


class _Thawer(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, parts: Sequence[object]) -> None:
        super().__init__(file)
        self._part = parts.__getitem__

    def find_class(self, module: str, name: str) -> Any:
        return self._part if name == "_here" else super().find_class(module, name)


class _Live:
    """A live actor, and what changes in it: what its parts declare to keep. All else must stay as it is."""

    def __init__(self, actor: Any) -> None:
        self.actor = actor
        self.parts = parts_of(actor)
        changing = [part for part in self.parts if not isinstance(part, Keyring)]  # no peers come or go here
        self._kept = [(part, name) for part in changing for names in kept_by(part) for name in names]
        shared = {id(getattr(part, name)) for part, name in self._kept}
        self._fixed = [
            (part, *held, _size(held[1])) for part in self.parts for held in wiring(part) if id(held[1]) not in shared
        ]
        self._named = [(part, frozenset(vars(part))) for part in self.parts if hasattr(part, "__dict__")]
        places = {id(part): place for place, part in enumerate(self.parts)}
        self._dispatch = dict.fromkeys(map(type, self.parts), lambda part: (_here, (places[id(part)],)))

    def freeze(self, store: MemoryStore) -> bytes:
        """All that is kept, and the store, pickled; parts, where they are referred to, stay out."""
        for part, names in self._named:
            more = vars(part).keys() - names
            must(not more, f"{type(part).__name__}.{', '.join(more)} is new, and is not declared")
        for part, name, value, size in self._fixed:
            now = getattr(part, name)
            must(now is value and _size(now) == size, f"{type(part).__name__}.{name} changes, and is not declared")
        file = io.BytesIO()
        freezer = pickle.Pickler(file, protocol=5)
        freezer.dispatch_table = self._dispatch
        freezer.dump(([getattr(part, name) for part, name in self._kept], store))
        return file.getvalue()

    def thaw(self, data: bytes) -> MemoryStore:
        """Have all that is kept be what it was, in place, for who refers to it; returns the store."""
        values, store = _Thawer(io.BytesIO(data), self.parts).load()
        for (part, name), value in zip(self._kept, values, strict=True):
            held = getattr(part, name)
            if isinstance(held, (dict, set)) and type(held) is type(value):
                held.clear()
                held.update(value)
            elif isinstance(held, list) and type(held) is type(value):
                held[:] = value
            else:
                setattr(part, name, value)
        kept: MemoryStore = store
        return kept


def _size(value: object) -> int:
    return len(value) if isinstance(value, (dict, list, set)) else 0


class Rig:
    """The live actors."""

    def __init__(self, units: int, *, together: bool = True) -> None:
        """A world whose site has ``units`` units, all of them delegated. With ``together`` what one step has for one
        peer travels as one parcel, as it does in a frame, else each message by itself.
        """
        self._units = units
        self._together = together
        self._mappers: dict[str, Any] = {GUEST: ObedientGuest(), BROKER: ObedientBroker(), SITE: ObedientSite()}
        self._ids = {name: UnsignedIdentity(name) for name in NAMES}
        self._live: dict[str, _Live] = {}
        self._stores: dict[str, MemoryStore] = {}
        self._known: dict[bytes, Frozen] = {}
        self._effects: dict[tuple[Any, ...], Effect] = {}
        self._at: dict[str, str] = {}
        self._effect = _Growing()
        self.steps = 0

    def begin(self) -> dict[str, Frozen]:
        """The actors as they start for the first time."""
        for name in NAMES:
            self._live[name] = _Live(self._make(name))
            self._stores[name] = MemoryStore(keep_log=False)
        return {name: self._freeze(name) for name in NAMES}

    def _make(self, name: str) -> Actor:
        peers = [Peer(name=other, key=self._ids[other].public, role=ROLES[other]) for other in NAMES if other != name]
        me, mapper = self._ids[name], self._mappers[name]
        if name == GUEST:
            return ServiceManager(name, me, UNSIGNED, peers, mapper, GUEST_SETTINGS)
        if name == BROKER:
            return Broker(name, me, UNSIGNED, peers, mapper, BROKER_SETTINGS)
        settings = AuthoritySettings(
            inventory=(UnitGroup(type=TYPE, names=tuple(f"{TYPE}-{n}" for n in range(self._units))),),
            delegations=(DelegationSpec(broker=BROKER, type=TYPE, units=self._units),),
            **COMMON,
        )
        return Authority(name, me, UNSIGNED, peers, mapper, settings)

    def _thaw(self, name: str, frozen: Frozen) -> Any:
        live = self._live[name]
        self._stores[name] = live.thaw(frozen.data)
        self._at = {id_: f"{state[0]}/{state[1]}" for id_, state in frozen.leases.items()}
        return live.actor

    def _freeze(self, name: str) -> Frozen:
        live, store = self._live[name], self._stores[name]
        actor = live.actor
        wake = actor.wake_at()
        # As the actor does from time to time: timers that were taken back have no part in what happens next.
        actor.kernel.timers[:] = sorted(entry for entry in actor.kernel.timers if entry[2].timer == entry[0])
        data = live.freeze(store)
        known = self._known.get(data)
        if known is None:
            check_stored(actor, store)
            piece, busy = read_actor(actor, live.parts)
            known = self._known[data] = Frozen(
                data, wake, piece, _leases(actor, store), busy, check_actor(actor), said_of_units(actor), _ends(actor)
            )
        return known

    # -- steps -------------------------------------------------------------------------------------------------

    def feed(
        self, name: str, frozen: Frozen, now: Instant, what: Hashable, inputs: Sequence[Input], *, crash: str = "",
        told: str = "",
    ) -> Effect:  # fmt: skip
        """What comes of actor ``name`` taking ``inputs`` at ``now``; ``what`` tells them from all others.

        With ``crash`` (``now``, or just before it would ``commit``, ``send`` or ``act``) the actor crashes, and is up
        again. ``told`` is what its mapper is told to do in its next turn. Raises ``Violated`` where an invariant does
        not hold.
        """
        key = (name, id(frozen), now, what, crash, told)
        effect = self._effects.get(key)
        if effect is None:
            self.steps += 1
            effect = self._effects[key] = self._feed(name, frozen, now, inputs, crash, told)
        return effect

    def _feed(self, name: str, frozen: Frozen, now: Instant, inputs: Sequence[Input], crash: str, told: str) -> Effect:
        actor, mapper = self._thaw(name, frozen), self._mappers[name]
        mapper.told = told
        self._effect = growing = _Growing()
        if crash != "now":
            ready = self._step(actor, now, inputs)
            if crash != "commit":
                self._do(name, ready, crash)
        if crash:
            actor = self._make(name)
            actor.restore(self._stores[name].load())
            self._live[name] = _Live(actor)
            self._do(name, self._step(actor, now, ()))
        self._tick(name, now)
        obeyed = not mapper.told
        mapper.told = ""
        return Effect(
            self._freeze(name), tuple(growing.parcels), tuple(growing.actions), bool(crash), growing.error, obeyed
        )

    @staticmethod
    def _step(actor: Any, now: Instant, inputs: Sequence[Input]) -> Ready:
        actor.step(Tick(now))
        for item in inputs:
            actor.step(item)
        while (turn := actor.turn()) is not None:
            actor.step(turn.run())
        return actor.ready() or Ready()

    def _tick(self, name: str, now: Instant) -> None:
        """What is due at once is done at once."""
        actor = self._live[name].actor
        for _ in range(TICKS_MAX):
            wake = actor.wake_at()
            if wake is None or wake > now:
                return
            self._do(name, self._step(actor, now, ()))
        raise Violated(f"{name} wants to be ticked again and again at {now}")

    def _do(self, name: str, ready: Ready, crash: str = "") -> None:
        growing = self._effect
        if ready.changes:
            check_log(name, [change.row for change in ready.changes if change.table == LOG and change.row], self._at)
            self._stores[name].commit(ready.changes)
        for reply in ready.replies:
            growing.error = reply.error
        if crash == "send":
            return
        sent: dict[str, list[Message]] = {}
        for peer, message in ready.messages:
            if self._together:
                sent.setdefault(peer, []).append(message)
            else:
                growing.parcels.append(_parcel(name, peer, [message]))
        growing.parcels += [_parcel(name, peer, messages) for peer, messages in sent.items()]
        if crash != "act":
            growing.actions += ready.actions


@attrs.define(slots=True)
class _Growing:
    """An effect in the making."""

    parcels: list[Parcel] = attrs.Factory(list)
    actions: list[Action] = attrs.Factory(list)
    error: str = ""


def _parcel(sender: str, receiver: str, messages: list[Message]) -> Parcel:
    data = encode_batch(messages)
    copies = decode_batch(data)
    must(not any(isinstance(copy, UnknownKind) for copy in copies), f"{sender} sends what nobody can read")
    known = tuple(copy for copy in copies if not isinstance(copy, UnknownKind))
    return Parcel(sender, receiver, known, data, read_parcel(sender, receiver, known))


def _leases(actor: Any, store: MemoryStore) -> dict[str, tuple[str, ...]]:
    """Every lease's state, in memory or in the past."""
    found: dict[str, tuple[str, ...]] = {row[0]: (row[5], row[6]) for row in store.archived("leases")}
    for id_, lease in actor.leases.items():
        join = getattr(lease, "join", None)
        found[id_] = (lease.state, lease.pending) if join is None else (lease.state, lease.pending, join)
    return dict(sorted(found.items()))


def _ends(actor: Any) -> dict[str, Instant]:
    if actor.name != GUEST:
        return {}
    return {
        lease.id: lease.end
        for lease in actor.records.open.values()
        if lease.state in (sm.ACTIVE, sm.ACTIVE_TICKETED) and not lease.ending.closing
    }
