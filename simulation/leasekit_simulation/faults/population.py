"""Who is in a simulated world: production actors with their machines, and those who listen to what they do."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any, Final

import attrs

from leasekit.actors.base import Actor
from leasekit.actors.broker.broker import Broker
from leasekit.actors.guest.service_manager import ServiceManager
from leasekit.actors.settings import (
    ActorSettings,
    AuthoritySettings,
    BrokerSettings,
    DelegationSpec,
    GuestSettings,
    Peer,
    UnitGroup,
)
from leasekit.actors.site.authority import Authority
from leasekit.core.claims.signed import ED25519, UNSIGNED, Keypair, Scheme, Signer, UnsignedIdentity
from leasekit.core.properties import Properties, digest_properties
from leasekit.core.protocol.messages import Message
from leasekit.core.steps import ActorLike, Ready
from leasekit.core.time import MINUTE, Duration, Instant
from leasekit.emulation.clocks import Clock, Clocked
from leasekit.emulation.failing import FailingWorld
from leasekit.emulation.world import Node, instant
from leasekit.policies.broker.fcfs import FcfsSettings
from leasekit_simulation.faults.checkers import Heard, Listening
from leasekit_simulation.faults.host_book import HOST
from leasekit_simulation.faults.mappers import Mood, make_mapper
from leasekit_simulation.faults.networks import link_properties, may_plan, planning
from leasekit_simulation.faults.scenario import HOSTILE, POWER_MAPPERS, ROGUE, Scenario, Share
from leasekit_simulation.faults.stores import FaultyStore, KilledSqlite, memory_store

HEARINGS: Final = ("committed", "stored", "started", "ended", "restarted")
SHARED_MEMORY: Final = Path("/dev/shm")

KEEP_SAVED: Final[Duration] = 5 * MINUTE
"""How long the units of suspended leases are kept: some are, and some are thrown away."""


def in_rack(rack: int, racks: int) -> dict[str, str]:
    """The attributes of a unit in a rack, where there are several."""
    return {"rack": f"r{rack}"} if racks > 1 else {}


@attrs.define(slots=True, eq=False)
class FaultyNode(Node):
    """An actor with its machine: its clock, its disk, and whether it is up."""

    clock: Clock = attrs.Factory(Clock)
    asleep_until: Instant = 0
    readies: int = 0
    rng: Random = attrs.Factory(Random)
    stuck: Ready | None = None
    stuck_since: Instant = 0
    stuck_wait: Duration = 0
    rereads: bool = False
    """Whether its file says something that it has not taken yet."""
    stopped: bool = False
    """Whether its operator has stopped it, who will start it again."""
    running: set[tuple[int, str]] = attrs.Factory(set)
    """The numbers and units of actions that an earlier actor on this store began, and that go on."""

    @property
    def disk(self) -> FaultyStore:
        """The actor's store."""
        assert isinstance(self.store, FaultyStore)
        return self.store


class Population(FailingWorld):
    """Actors of a scenario, and listeners."""

    def __init__(self, scenario: Scenario, *, faulty: bool = True) -> None:
        super().__init__(tick=scenario.tick)
        self.scenario = scenario
        self.faults_on = False
        self._faulty = faulty
        self.met: Counter[str] = Counter()
        self.injected: list[str] = []
        self.trace: Callable[[str], None] | None = None
        self._listeners: list[Listening] = []
        self._heard: tuple[dict[type[Any], list[Heard]], dict[type[Any], list[Heard]]] = ({}, {})
        self._mind: dict[str, list[Listening]] = {name: [] for name in HEARINGS}
        self.scheme: Scheme = ED25519 if scenario.signed else UNSIGNED
        self.names = (*scenario.actors, HOSTILE, ROGUE)
        self._identities: dict[str, Signer] = {name: self._make_identity(name) for name in self.names}
        self._first_keys = {name: signer.public for name, signer in self._identities.items()}
        self._formers: dict[str, list[tuple[Signer, Instant]]] = {}
        self._moods: dict[str, Mood] = {}
        self._folder: Path | None = None
        self.sizes: dict[tuple[str, str], int] = {}
        """How many units of a type a site's inventory names by now, where that is another number than at first."""
        self.shares: list[Share] = list(scenario.shares)
        """What is to be given by now, by what the actors' files say."""
        self.changed_units: set[str] = set()
        """The sites that an operator has told of units otherwise than their files."""
        self.closes_asked: Callable[[str], None] = lambda lease: None

    # -- who is there ------------------------------------------------------------------------------------------

    def _make_identity(self, name: str) -> Signer:
        """The key pair of a name: an actor's first key has its own, the next ones, and an impostor's, others."""
        pair = Keypair(sha256(f"leasekit simulation {self.scenario.seed} {name}".encode()).digest())
        if self.scenario.signed:
            return pair
        unsigned = UnsignedIdentity(name)
        if self.scenario.forgets:  # operators can say keys only that could sign
            unsigned.public = pair.public
        return unsigned

    def identity(self, name: str) -> Signer:
        """What an actor signs with."""
        return self._identities[name]

    def key_of(self, name: str) -> bytes | None:
        """The key that is pinned for a name."""
        found = self._identities.get(name)
        return None if found is None else found.public

    def key(self, name: str) -> bytes:
        """The public key of an actor of this world."""
        return self._identities[name].public

    def keys(self, name: str) -> tuple[bytes, ...]:
        """The public keys that an actor has had, the latest first."""
        return (self.key(name), *(signer.public for signer, _ in self.formers(name)[::-1]))

    def formers(self, name: str) -> list[tuple[Signer, Instant]]:
        """What an actor signed with before, the latest last, and until when that is honoured."""
        return self._formers.get(name, [])

    def next_identity(self, name: str) -> Signer:
        """The key pair that follows an actor's."""
        return self._make_identity(f"{name}, key {len(self.formers(name)) + 2}")

    def impostor(self, name: str) -> Signer:
        """A key pair of somebody who pretends to be an actor."""
        return self._make_identity(f"not {name}")

    def change_key(self, name: str, new: Signer, until: Instant) -> None:
        """An actor that is made from now on signs with another key; its old one is honoured until then."""
        self._formers.setdefault(name, []).append((self._identities[name], until))
        self._identities[name] = new

    def role(self, name: str) -> str:
        """``guest``, ``broker`` or ``authority``."""
        return "broker" if name == ROGUE else self.scenario.role(name)

    def peers(self, name: str) -> list[Peer]:
        """Who an actor knows by its file: everybody else, by their first keys; where brokers make guests and sites
        known to each other, not those.
        """
        return [
            Peer(
                name=other,
                key=self._first_keys[other],
                role=self.role(other),
                **may_plan(self.scenario, self.role(name), self.role(other)),
            )
            for other in self.names
            if other != name and not self._is_introduced(name, other)
        ]

    def _is_introduced(self, one: str, other: str) -> bool:
        """Whether the two know nothing of each other before a broker has made them known."""
        roles = {self.role(name) for name in (one, other) if name in self.scenario.actors}
        return self.scenario.timing.endorse and roles == {"guest", "authority"}

    def knows(self, name: str, peer: str) -> bool:
        """Whether an actor takes messages from ``peer``: its machine lets in nobody else."""
        return not (self.scenario.timing.endorse or self.scenario.forgets) or peer in self.actor(name).peers

    def _add(self, name: str) -> None:
        drawn = self.scenario.clocks.get(name)
        clock = Clock() if drawn is None else Clock(drawn.offset, drawn.drift)
        node = FaultyNode(len(self.nodes), self._make(name, clock), self._make_store(name), instant)
        node.clock = clock
        node.rng = Random(f"{self.scenario.seed} steps {name}")
        self.nodes[name] = node
        node.actor.restore(node.store.load())
        self._schedule_wake(node, self.now)

    def _make_store(self, name: str) -> FaultyStore:
        if self.scenario.stores.get(name, "memory") == "memory":
            return memory_store()
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(dir=SHARED_MEMORY if SHARED_MEMORY.is_dir() else None))
        return KilledSqlite(self._folder, name, self.mark)

    def _make(self, name: str, clock: Clock) -> ActorLike:
        """An actor without any state."""
        actor = self._make_actor(name)
        return actor if clock.is_right and not self._is_stepped(name) else Clocked(actor, clock)

    def _is_stepped(self, name: str) -> bool:
        return any(
            operation.do in ("step_within", "step_beyond", "sleep", "leap") for operation in self.scenario.operations
        )

    def _make_actor(self, name: str) -> Actor:
        actor = self._new_actor(name)
        actor.kernel.tidy_every = self.scenario.tidy_every
        if isinstance(actor, Broker):
            actor.cycles.look_at(self.scenario.looks, 4 * self.scenario.looks)
        for former, until in self.formers(name):
            actor.keyring.had_before(former, until)
        return actor

    def _new_actor(self, name: str) -> Actor:
        scenario, timing, me, peers = self.scenario, self.scenario.timing, self._identities[name], self.peers(name)
        mood = self._moods.get(name)
        if mood is None:
            mood = self._moods[name] = Mood(Random(f"{scenario.seed} mapper {name}"), self.mark)
            mood.calm = not self._faulty
        fcfs = FcfsSettings(gather=timing.gather)
        kind = scenario.mappers.get(name)
        default = {"guest": "manual", "broker": "fcfs", "authority": "first_fit"}[self.role(name)]
        mapper = make_mapper(kind or default, mood, fcfs, lambda lease: self.closes_asked(lease))
        if name in scenario.apart:
            mapper.inline = False
        common: dict[str, Any] = {"retention": timing.retention, "keep_closed": timing.keep_closed}
        if name in scenario.sites:
            return Authority(name, me, self.scheme, peers, mapper, self._site_settings(name, common))
        if name in scenario.brokers:
            delegations = tuple(_spec(share) for share in self.shares if share.issuer == name)
            broker = BrokerSettings(
                group_timeout=timing.group_timeout,
                defer_max=timing.defer_max,
                delegations=delegations,
                endorse=timing.endorse,
                redeem_within=scenario.redeem_within,
                **planning(scenario, name),
                **common,
            )
            fresh = Mood(Random(f"{scenario.seed} questions {name}"), self.mark)
            fresh.calm = mood.calm
            return Broker(
                name, me, self.scheme, peers, mapper, broker,
                lambda: make_mapper(kind or default, fresh, fcfs, self.closes_asked),
            )  # fmt: skip
        guest = GuestSettings(
            leave_time=timing.leave_time,
            close_timeout=timing.close_timeout,
            extend_lead=timing.extend_lead,
            redeem_lead=timing.redeem_lead,
            defer_max=timing.defer_max,
            **common,
        )
        return ServiceManager(name, me, self.scheme, peers, mapper, guest)

    def _site_settings(self, name: str, common: Mapping[str, Any]) -> AuthoritySettings:
        power = self.scenario.mappers.get(name) in POWER_MAPPERS
        inventory = tuple(
            UnitGroup(
                type=type_,
                names=tuple(f"{type_}-{n}" for n in range(rack, self.size(name, type_), racks)),
                power=power,
                properties=self.properties_of(type_),
                own=in_rack(rack, racks),
            )
            for type_ in self.scenario.sites[name]
            for racks in (self.racks(type_),)
            for rack in range(racks)
        )
        delegations = tuple(_spec(share, site="") for share in self.shares if share.site == name and not share.issuer)
        return AuthoritySettings(
            inventory=inventory, delegations=delegations, failures_max=self.scenario.timing.failures_max,
            surplus="honour" if name in self.scenario.honours else "refuse", refuse_guilty=name in self.scenario.bans,
            keep_saved=KEEP_SAVED, **common,
        )  # fmt: skip

    def size(self, site: str, type_: str) -> int:
        """How many units of a type a site's inventory names by now."""
        return self.sizes.get((site, type_), self.scenario.sites[site][type_])

    def racks(self, type_: str) -> int:
        """In how many racks a site has its units of a type: those of a network are all alike."""
        return 1 if type_ in self.scenario.links else self.scenario.racks

    def class_of(self, site: str, unit: str) -> bytes:
        """The class of a site's unit."""
        type_, _, number = unit.rpartition("-")
        racks = self.racks(type_)
        return digest_properties({**self.properties_of(type_), **in_rack(int(number) % racks, racks)})

    def properties_of(self, type_: str) -> Properties:
        """What all units of a type have."""
        hosts = HOST if self.scenario.hosts and type_ not in self.scenario.links else {}
        return {**link_properties(self.scenario, type_), **hosts}

    def attributes(self) -> dict[bytes, Properties]:
        """What the units of each class have."""
        types = {(type_, self.racks(type_)) for units in self.scenario.sites.values() for type_ in units}
        each = [
            {**self.properties_of(type_), **in_rack(rack, racks)}
            for type_, racks in sorted(types)
            for rack in range(racks)
        ]
        return {digest_properties(one): one for one in each}

    def node(self, name: str) -> FaultyNode:
        """An actor's node."""
        node = self.nodes[name]
        assert isinstance(node, FaultyNode)
        return node

    def actor(self, name: str) -> Any:
        """The actor itself, whatever wraps it."""
        made = self.nodes[name].actor
        return made.actor if isinstance(made, Clocked) else made

    def twin(self, name: str) -> Any:
        """What an actor would be after a restart: one made from what its store has now."""
        twin = self._make_actor(name)
        twin.restore(self.node(name).store.load())
        return twin

    def clock(self, name: str) -> Instant:
        """What an actor takes for now: its own clock, which never runs backwards."""
        node = self.node(name)
        seen: Instant = self.actor(name).now
        return max(seen, node.clock.local(self.now))

    @property
    def skew(self) -> Duration:
        """How far clocks may be off, by the actors' settings."""
        return ActorSettings().clock_skew

    def is_up(self, name: str) -> bool:
        """Whether an actor takes commands now."""
        return super().is_up(name) and self.node(name).stuck is None

    # -- who listens -------------------------------------------------------------------------------------------

    def attach(self, *listeners: Listening, first: bool = False) -> None:
        """Have listeners hear all that happens from now on; each is asked only for what it minds."""
        self._listeners = [*listeners, *self._listeners] if first else [*self._listeners, *listeners]
        self._heard = ({}, {})
        self._mind = {
            name: [one for one in self._listeners if getattr(type(one), name) is not getattr(Listening, name)]
            for name in HEARINGS
        }

    def _handlers(self, place: int, kind: type[Any]) -> list[Heard]:
        """Who minds a kind of message that is sent (0) or received (1)."""
        found = self._heard[place].get(kind)
        if found is None:
            tables = [(one.sends, one.receives)[place] for one in self._listeners]
            found = [heard for table in tables if (heard := table.get(kind)) is not None]
            self._heard[place][kind] = found
        return found

    def tell(self, sender: str, receiver: str, message: Message) -> None:
        """Tell listeners of a message that did not come from an actor of the world."""
        for heard in self._handlers(0, type(message)):
            heard(self.now, sender, receiver, message)

    # -- counting ----------------------------------------------------------------------------------------------

    def mark(self, name: str) -> None:
        """Something named was met."""
        self.met[name] += 1

    def inject(self, occasion: str, what: str) -> None:
        """A small fault happens; together the two are its key."""
        self.injected.append(f"{occasion} {what}")
        if self.trace is not None:
            self.trace(f"{occasion} {what}")


def _spec(share: Share, site: str | None = None) -> DelegationSpec:
    return DelegationSpec(
        broker=share.broker,
        type=share.type,
        units=share.units,
        degree=share.degree,
        length=share.length,
        renew=share.renew,
        renew_for=share.renew_for,
        site=share.site if site is None else site,
    )
