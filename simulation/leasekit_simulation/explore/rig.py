"""The production actors, as something that can be kept, and gone on from in several ways.

Actors are mutable and large, so a joint state keeps them *frozen*: all that an actor and its store hold, pickled,
without what its constructor made of its settings (handlers, mapper, keys). A :class:`Rig` has one live actor of each
role, into which it thaws a frozen one, has it take one input, and freezes it again. What came of it (:class:`Effect`)
is remembered: many joint states have the same actor in the same state before the same input.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Final

import attrs

from leasekit.actors.base import Actor
from leasekit.actors.broker.book import Book, RequestQueue
from leasekit.actors.broker.broker import Broker
from leasekit.actors.broker.claims import GrantedClaims
from leasekit.actors.broker.delegations import Subdelegation, TakenDelegations
from leasekit.actors.broker.grants import Answers, Cycles, Introductions
from leasekit.actors.broker.planner import Holds, Planner
from leasekit.actors.broker.requests import Admission, DryRuns
from leasekit.actors.guest.leases import Leases, Limits, Returns
from leasekit.actors.guest.lifecycle import Membership
from leasekit.actors.guest.service_manager import ServiceManager
from leasekit.actors.guest.topologies import LeasedTopologies
from leasekit.actors.issued import Issued
from leasekit.actors.kernel import Kernel
from leasekit.actors.peering import Calls, Keyring, Peering
from leasekit.actors.served import Notices, Reports, Served
from leasekit.actors.settings import (
    AuthoritySettings,
    BrokerSettings,
    DelegationSpec,
    GuestSettings,
    Peer,
    UnitGroup,
)
from leasekit.actors.site.authority import Authority
from leasekit.actors.site.calendars import Calendars
from leasekit.actors.site.claims import Incidents, SiteClaims, SiteDelegations
from leasekit.actors.site.failures import SiteOutages
from leasekit.actors.site.leases import DemandQueue
from leasekit.actors.site.redeems import Closes
from leasekit.actors.site.saved import SiteSaved
from leasekit.actors.site.units import Inventory, Units
from leasekit.actors.turns import MapperTurns
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

PARTS: Final[Mapping[str, type]] = {
    "kernel": Kernel, "keyring": Keyring, "turns": MapperTurns, "peering": Peering, "calls": Calls,
    "served": Served, "notices": Notices, "reports": Reports, "issued": Issued,
    "queue": RequestQueue, "book": Book, "admission": Admission, "dry_runs": DryRuns,
    "introductions": Introductions, "answers": Answers, "granted": GrantedClaims, "holds": Holds, "planner": Planner,
    "returns": Returns, "membership": Membership, "records": Leases, "limits": Limits,
    "topologies": LeasedTopologies,
    "subdelegation": Subdelegation, "cycles": Cycles, "sources": TakenDelegations,
    "inventory": Inventory, "units": Units, "calendars": Calendars, "saved": SiteSaved,
    "demands": DemandQueue, "outages": SiteOutages, "closes": Closes,
    "claims": SiteClaims, "incidents": Incidents, "delegations": SiteDelegations,
}  # fmt: skip
"""Parts of an actor, by the attributes in which it has them."""

WIRING: Final = frozenset(
    {
        "accepted", "_admission", "_book", "_carriers", "_deals_with", "_decider", "_deployed", "_describe_lease",
        "_dispatch", "_endorsable", "_endorse", "_fresh", "_holds", "_inputs",
        "_introductions", "_is_undecided", "_issuer", "_keep_closed", "_kernel", "_keyring", "_kinds", "_mark_dirty",
        "_most", "_name", "_notices", "_own", "_peering", "_plan", "_quotes", "_returning", "_role",
        "_served", "_settings", "_sites", "_waiting", "changed", "connected", "dispatch", "dropped",
        "inline", "name", "peers", "refused", "scheme", "settings", "signer", "tag", "taken", "turning",
        "verifier", *PARTS,
        # a guest's
        "_close_if_open", "_records", "_requests", "_transitions",
        "all_joined", "all_left", "committed",
        # a broker's
        "_cutter", "_dependents", "_statements", "_views", "freed",
        # a site's
        "_act", "_claims", "_ends", "_failures_max", "_inventory", "_receipts", "_signer_of",
        "_times", "_turns", "_unit_ends", "_updates",
        "_waits", "moved", "reclaimed", "watches",
    }
)  # fmt: skip
"""Attributes that the constructors of an actor and its parts fill in from settings alone, and that do not change."""


def _holders(actor: Actor) -> list[object]:
    """The actor, and its parts."""
    return [actor, *(getattr(actor, part) for part in PARTS if hasattr(actor, part))]


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


def _here(part: str) -> Actor:
    """What stands in a frozen actor for the actor itself, or a part; the thawer puts its own in its place."""
    raise LookupError("a frozen actor is thawed by a Rig")


def _stand_in(part: str) -> Callable[[object], tuple[Any, ...]]:
    return lambda _: (_here, (part,))


class _Freezer(pickle.Pickler):
    """Pickles what an actor and its parts hold; they themselves, where they are referred to, stay out."""

    dispatch_table = {
        **dict.fromkeys((ServiceManager, Broker, Authority), lambda actor: (_here, ("",))),
        **{kind: _stand_in(name) for name, kind in PARTS.items()},
    }


class _Thawer(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, actor: Actor) -> None:
        super().__init__(file)
        self._actor = actor

    def find_class(self, module: str, name: str) -> Any:
        return self._here if name == "_here" else super().find_class(module, name)

    def _here(self, part: str) -> Any:
        return getattr(self._actor, part) if part else self._actor


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
        self._live: dict[str, Any] = {}
        self._stores: dict[str, MemoryStore] = {}
        self._known: dict[bytes, Frozen] = {}
        self._effects: dict[tuple[Any, ...], Effect] = {}
        self._at: dict[str, str] = {}
        self._effect = _Growing()
        self.steps = 0

    def begin(self) -> dict[str, Frozen]:
        """The actors as they start for the first time."""
        for name in NAMES:
            self._live[name] = self._make(name)
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
        actor = self._live[name]
        state, self._stores[name] = _Thawer(io.BytesIO(frozen.data), actor).load()
        for holder, held in zip(_holders(actor), state, strict=True):
            holder.__dict__.update(held)
        self._at = {id_: f"{state[0]}/{state[1]}" for id_, state in frozen.leases.items()}
        return actor

    def _freeze(self, name: str) -> Frozen:
        actor, store, file = self._live[name], self._stores[name], io.BytesIO()
        wake = actor.wake_at()
        # As the actor does from time to time: timers that were taken back have no part in what happens next.
        actor.kernel.timers = sorted(entry for entry in actor.kernel.timers if entry[2].timer == entry[0])
        state = [
            {key: value for key, value in holder.__dict__.items() if key not in WIRING} for holder in _holders(actor)
        ]
        _Freezer(file, protocol=5).dump((state, store))
        data = file.getvalue()
        known = self._known.get(data)
        if known is None:
            check_stored(actor, store)
            piece, busy = read_actor(actor)
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
            actor = self._live[name] = self._make(name)
            actor.restore(self._stores[name].load())
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
        actor = self._live[name]
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
        if lease.state in (sm.ACTIVE, sm.ACTIVE_TICKETED) and not lease.closing
    }
