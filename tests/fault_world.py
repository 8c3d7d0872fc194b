"""A world in which everything goes wrong that may: drawn from one seed, on production actors, stores and wire.

A run has two phases. In the first there are faults, and checkers look at every step; in the second there are none, and
everything must come to its end within a bound. Both are drawn from the seed alone: the same seed, the same run.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from actor_bench import Bench, Mappers, Plan
from fault_checkers import ClaimChecker, Listening, MemoryChecker, StateChecker, UnitChecker, must

from leasekit.actors.settings import BrokerSettings, GuestSettings
from leasekit.core.leases import service_manager as sm
from leasekit.core.mappers import AuthorityCycle, BrokerCycle, Go, Grant, Hold, LeaseView, Wake
from leasekit.core.protocol.codec import encode_batch
from leasekit.core.protocol.messages import Message
from leasekit.core.schema import LogRow
from leasekit.core.steps import Action, Connected
from leasekit.core.time import HOUR, MINUTE, SECOND, Duration, Instant, Term
from leasekit.emulation.world import INPUTS, Node, Outcome
from leasekit.policies.authority.first_fit import FirstFit
from leasekit.policies.broker.fcfs import Fcfs
from leasekit.policies.guest.manual import Manual

COMMANDS = 40
"""How many things an operator does in one run."""
SETTLED_WITHIN: Duration = 5 * MINUTE
"""How long after the last fault a lease may still be on its way to somewhere."""


class Mischief(Fcfs):
    """Decides well, and adds decisions that must not be carried out."""

    def __init__(self, world: FaultyWorld) -> None:
        super().__init__()
        self._world = world
        self._rng = world.rng

    def allocate(self, cycle: BrokerCycle) -> list[Any]:
        """Good decisions among wrong ones; sometimes none at all."""
        if not self._world.faults_on:
            return super().allocate(cycle)
        if self._rng.random() < 0.1:
            raise RuntimeError("a mapper's bad day")
        decisions: list[Any] = []
        for decision in super().allocate(cycle):
            if isinstance(decision, Grant) and self._rng.random() < 0.5:
                late = Term(decision.term.start + 1, decision.term.end + 1)
                wrong = [
                    decision._replace(units=decision.units + self._rng.randint(1, 50)),
                    decision._replace(source="nowhere"),
                    decision._replace(term=Term(decision.term.start, decision.term.end + HOUR)),
                    decision._replace(lease="nobody-1", term=late),
                ]
                decisions.append(self._rng.choice(wrong))
            decisions.append(decision)
            if self._rng.random() < 0.2:
                decisions.append(decision)
        return decisions


class Slow(Fcfs):
    """Leaves each request waiting for some turns."""

    def __init__(self, world: FaultyWorld) -> None:
        super().__init__()
        self._world = world
        self._rng = world.rng

    def allocate(self, cycle: BrokerCycle) -> list[Any]:
        """Nothing more often than not; asks to be called again."""
        again = Wake(cycle.now + self._rng.choice((100, 3000, 20_000)))
        waits = self._world.faults_on and self._rng.random() < 0.6
        return [again] if waits else [*super().allocate(cycle), again]


class SlowSite(FirstFit):
    """The same for a site."""

    def __init__(self, world: FaultyWorld) -> None:
        super().__init__()
        self._world = world
        self._rng = world.rng

    def assign(self, cycle: AuthorityCycle) -> list[Any]:
        """Nothing more often than not; asks to be called again."""
        again = Wake(cycle.now + self._rng.choice((100, 3000, 20_000)))
        waits = self._world.faults_on and self._rng.random() < 0.6
        return [again] if waits else [*super().assign(cycle), again]


class Hesitant(Manual):
    """Its upcall holds leases for a while."""

    def __init__(self, world: FaultyWorld) -> None:
        super().__init__()
        self._world = world
        self._rng = world.rng

    def unblock(self, lease: LeaseView, predecessor: LeaseView) -> Go | Hold:
        """Hold, or go on with what the predecessor has."""
        if self._rng.random() < 0.5:
            return Hold(max(lease.term.start, predecessor.term.start) + self._rng.choice((1, 5000, 60_000, 10 * HOUR)))
        return Go({"units": " ".join(unit.id for unit in predecessor.members())})


class FaultyWorld(Bench):
    """A bench whose network loses, repeats, delays and reorders, whose drivers fail, and whose actors crash."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = rng = Random(seed)
        self.faults_on = False
        self.met: Counter[str] = Counter()
        sites = {f"site-{n}": {"vm": rng.randint(2, 8)} for n in range(rng.choice((1, 1, 2)))}
        guests = tuple(f"guest-{n}" for n in range(rng.choice((1, 1, 2, 3))))
        clocks = {}
        if rng.random() < 0.5:
            clocks = {name: rng.randint(-2000, 2000) for name in (*sites, *guests, "broker")}
        plan = Plan(
            guests=guests,
            sites=sites,
            clocks=clocks,
            guest=GuestSettings(
                leave_time=rng.choice((0, 0, 5 * SECOND)),
                retention=rng.choice((10 * MINUTE, MINUTE)),
                defer_max=HOUR,
                close_timeout=rng.choice((HOUR, MINUTE)),
                extend_lead=rng.choice((MINUTE, MINUTE, 10 * MINUTE)),
            ),
            broker=BrokerSettings(
                group_timeout=30 * SECOND, retention=rng.choice((10 * MINUTE, MINUTE)), defer_max=HOUR
            ),
            signed=rng.random() < 0.05,
        )
        brokers: tuple[Callable[[], Fcfs], ...] = (Fcfs, Fcfs, lambda: Mischief(self), lambda: Slow(self))
        mappers = Mappers(
            guest=(lambda: Hesitant(self)) if rng.random() < 0.4 else Manual,
            broker=rng.choice(brokers),
            site=(lambda: SlowSite(self)) if rng.random() < 0.25 else FirstFit,
        )
        super().__init__(plan, mappers, tick=rng.choice((1, 100, 1000)))
        self.loss = rng.choice((0.0, 0.05, 0.2))
        self.repeat = rng.choice((0.0, 0.1, 0.3))
        self.crashes = rng.choice((0.0, 0.002, 0.01))
        self.fail = rng.choice((0.0, 0.05, 0.2))
        self.hung: list[tuple[str, Action]] = []
        self.down: dict[str, Instant] = {}
        self.units = UnitChecker(tuple(sites), lambda site: self.now + clocks.get(site, 0))
        self.memory = MemoryChecker()
        self.states = StateChecker(lambda name: self._roles[name])
        self.checkers: list[Listening] = [self.units, ClaimChecker(), self.memory, self.states]
        self.listeners.extend(self.checkers)
        self.start()
        self.faults_on = True

    # -- the network -------------------------------------------------------------------------------------------

    def _send(self, sender: str, outgoing: Any) -> None:
        batches: dict[str, list[Message]] = {}
        for receiver, message in outgoing:
            batches.setdefault(receiver, []).append(message)
            for listener in self.listeners:
                listener.sent(self.now, sender, receiver, message, "")
        for receiver, messages in batches.items():
            self._cast(sender, receiver, encode_batch(messages))

    def _cast(self, sender: str, receiver: str, data: bytes) -> None:
        rng = self.rng
        if not self.faults_on:
            self._deliver(sender, receiver, data, self.now + 10)
            return
        if frozenset((sender, receiver)) in self.cut or rng.random() < self.loss:
            self.met["lost"] += 1
            return
        copies = 2 if rng.random() < self.repeat else 1
        self.met["repeated"] += copies - 1
        for _ in range(copies):
            delay = rng.choice((1, 5, 50, 500, 3000)) if rng.random() < 0.9 else rng.choice((20_000, 90_000, 900_000))
            self.met["very late"] += delay > 3000
            self._deliver(sender, receiver, data, self.now + delay)

    def _deliver(self, sender: str, receiver: str, data: bytes, at: Instant) -> None:
        if self.down.get(receiver, 0) > at:
            return
        super()._deliver(sender, receiver, data, at)

    # -- actors ------------------------------------------------------------------------------------------------

    def _crashes(self, node: Node, when: str) -> bool:
        """Here and there."""
        if not self.faults_on or self.rng.random() >= self.crashes:
            return False
        self.met[f"crash {when}"] += 1
        self.crash(node.actor.name)
        return True

    def crash(self, name: str) -> None:
        """As the bench's; the actor comes back at once or later, and what arrives until then is lost."""
        back = self.now + self.rng.choice((0, 0, 500, 30_000, 5 * MINUTE))
        node = self.nodes[name]
        if back > self.now:
            self.down[name] = back
            self._queue[:] = [event for event in self._queue if event[1] != node.index or event[0] >= back]
            heapq.heapify(self._queue)
        super().crash(name)
        node.scheduled = None
        self._schedule_wake(node, back)
        if name in self.plan.sites:
            self.memory.check(name, self.actor(name).leases)
        if self.rng.random() < 0.5:
            for peer in self.peers(name):
                if self.is_up(peer.name):
                    self.connect_later(name, peer.name, back)

    def connect_later(self, one: str, other: str, at: Instant) -> None:
        """Both sides hear, at ``at``, that a connection came up."""
        for name, peer in ((one, other), (other, one)):
            node = self.nodes[name]
            self._push(at, node.index, INPUTS, (node, [Connected(peer)]))

    def is_up(self, name: str) -> bool:
        """Whether an actor takes commands now."""
        return self.down.get(name, 0) <= self.now

    # -- drivers -----------------------------------------------------------------------------------------------

    def _model(self, name: str) -> Callable[[Action], Outcome]:
        def outcome(action: Action) -> Outcome:
            # Drawn from the action, not from the run: done again after a crash it ends as it would have.
            rng = Random(f"{self.seed}/{name}/{action.number}/{action.op}/{action.unit}")
            fails = self.faults_on and rng.random() < self.fail * (0.2 if action.op == "teardown" else 1)
            self.met[f"{action.op} fails"] += fails
            latency = rng.choice((0, 10, 2000, 20_000))
            return Outcome(latency, not fails, {"at": action.unit}, "it broke" if fails else "")

        return outcome

    # -- looking -----------------------------------------------------------------------------------------------

    def history(self, lease: str) -> Sequence[str]:
        """Everything that any actor noted about a lease, in order of time."""
        rows: list[tuple[Instant, str, LogRow]] = []
        for name, node in self.nodes.items():
            rows += [(row.at, name, row) for row in node.store.history(lease)]
        rows.sort(key=lambda row: (row[0], row[2].seq))
        return [f"{at} {name} {row.event} {row.from_state} -> {row.to_state} {row.why}" for at, name, row in rows]


class Run:
    """One run of one seed: :meth:`go` raises where an invariant does not hold."""

    def __init__(self, seed: int) -> None:
        self.world = FaultyWorld(seed)
        self.rng = self.world.rng
        self.asked: list[tuple[str, str]] = []
        self.slices = 0

    def go(self) -> None:
        """Faults, then none."""
        for _ in range(COMMANDS):
            self._pass_time()
            self._do_something()
        self._pass_time()
        self._heal()
        self._check_settled()
        self._check_over()
        self._check_usable()

    # -- faults ------------------------------------------------------------------------------------------------

    def _pass_time(self) -> None:
        world = self.world
        world.run_until(world.now + self.rng.choice((10, 500, 5000, 30_000, 60_000)))

    def _do_something(self) -> None:
        deeds: list[tuple[int, Callable[[], None]]] = [
            (8, self._request), (3, self._extend), (3, self._modify), (2, self._close), (1, self._group),
            (1, self._slice), (1, self._crash), (1, self._cut), (1, self._operate), (2, self._hurry),
        ]  # fmt: skip
        (deed,) = self.rng.choices([deed for _, deed in deeds], [weight for weight, _ in deeds])
        deed()

    def _guest(self) -> str:
        return self.rng.choice(self.world.plan.guests)

    def _command(self, guest: str, name: str, /, **arguments: Any) -> Any:
        if not self.world.is_up(guest):
            return None
        reply = self.world.command(guest, name, **arguments)
        if reply.error:
            self.world.met["refused command"] += 1
            return None
        if name == "lease.request":
            self.asked.append((guest, reply.result["id"]))
        return reply.result

    def _term(self) -> list[Instant]:
        start = self.world.now + self.rng.choice((0, 0, 10_000, 100_000))
        return [start, start + self.rng.choice((1000, 60_000, 300_000, 900_000))]

    def _request(self) -> None:
        rng, guest = self.rng, self._guest()
        properties: dict[str, str] = {}
        if rng.random() < 0.3:
            properties["elastic"] = "true"
        if rng.random() < 0.4:
            properties["deferrable"] = "true"
        if rng.random() < 0.1:
            properties["request_timeout"] = "5s"
        known = [lease for owner, lease in self.asked if owner == guest][-6:]
        more: dict[str, Any] = {}
        if known and rng.random() < 0.25:
            more[rng.choice(("redeem_predecessor", "join_predecessor"))] = rng.choice(known)
            more["if_predecessor_fails"] = rng.choice(("fail", "proceed"))
        configuration = {"deficit": "accept"} if rng.random() < 0.2 else {}
        self._command(
            guest, "lease.request", type="vm", units=rng.randint(1, 5), term=self._term(), properties=properties,
            configuration=configuration, **more,
        )  # fmt: skip

    def _lease(self) -> tuple[str, Any] | None:
        """One that can still be changed, mostly."""
        records = [(guest, self.world.actor(guest).leases.get(lease)) for guest, lease in self.asked]
        there = [(guest, record) for guest, record in records if record is not None]
        active = [found for found in there if found[1].state in (sm.ACTIVE, sm.ACTIVE_TICKETED)]
        among = active if active and self.rng.random() < 0.8 else there[-12:]
        return self.rng.choice(among) if among else None

    def _victims(self, lease: Any, units: int) -> list[str]:
        surplus = len(lease.units) - units
        if surplus <= 0 or self.rng.random() < 0.5:
            return []
        return self.rng.sample(sorted(lease.units), self.rng.randint(1, surplus))

    def _extend(self) -> None:
        if found := self._lease():
            guest, lease = found
            units = self.rng.randint(1, 6)
            self._command(
                guest, "lease.extend", lease=lease.id, end=lease.end + self.rng.choice((5000, 60_000, 200_000)),
                units=units, victims=self._victims(lease, units),
            )  # fmt: skip

    def _modify(self) -> None:
        if found := self._lease():
            guest, lease = found
            change: dict[str, Any] = {}
            if self.rng.random() < 0.6:
                change["units"] = self.rng.randint(1, 6)
                change["victims"] = self._victims(lease, change["units"])
            if self.rng.random() < 0.4:
                change["end"] = lease.end + self.rng.choice((-20_000, 50_000))
            if self.rng.random() < 0.4:
                change["configuration"] = {"size": str(self.rng.randint(1, 9))}
            self._command(guest, "lease.modify", lease=lease.id, **change)

    def _close(self) -> None:
        if found := self._lease():
            guest, lease = found
            self._command(guest, "lease.close", lease=lease.id)

    def _hurry(self) -> None:
        """Change a lease, and close it while that is on its way."""
        self._request()
        found = self._lease()
        for deed in (self._extend, self._modify):
            if self.rng.random() < 0.7:
                deed()
        self.world.run_until(self.world.now + self.rng.choice((0, 1, 20, 200, 2000, 30_000)))
        if found:
            self._command(found[0], "lease.close", lease=found[1].id)

    def _group(self) -> None:
        guest, members = self._guest(), self.rng.randint(2, 3)
        self.slices += 1
        term = self._term()
        for number in range(members - (self.rng.random() < 0.2)):
            properties = {"group_id": f"group-{self.slices}"}
            if number == 0:
                properties["lease_count"] = str(members)
            self._command(
                guest, "lease.request", type="vm", units=self.rng.randint(1, 2), term=term, properties=properties
            )

    def _slice(self) -> None:
        guest, members = self._guest(), self.rng.randint(2, 3)
        self.slices += 1
        name = f"slice-{self.slices}"
        if self._command(guest, "slice.create", name=name, hold=members) is None:
            return
        term = self._term()
        for _ in range(members):
            self._command(guest, "lease.request", slice=name, type="vm", units=self.rng.randint(1, 2), term=term)

    def _crash(self) -> None:
        name = self.rng.choice(list(self.world.nodes))
        if self.world.is_up(name):
            self.world.met["crash"] += 1
            self.world.crash(name)

    def _cut(self) -> None:
        if self.world.cut:
            self.world.cut = set()
        else:
            self.world.cut = {frozenset(self.rng.sample(list(self.world.nodes), 2))}
            self.world.met["cut"] += 1

    def _operate(self) -> None:
        site = self.rng.choice(list(self.world.plan.sites))
        if not self.world.is_up(site):
            return
        unit = self.rng.choice(self.world.query(site, "units"))
        if unit["state"] == "out":
            self.world.units.mended(site, unit["unit"])
        self.world.command(site, "unit.enable" if unit["state"] == "out" else "unit.disable", unit=unit["unit"])

    # -- no faults ---------------------------------------------------------------------------------------------

    def _heal(self) -> None:
        world = self.world
        world.faults_on = False
        world.cut = set()
        world.run_until(max([world.now, *world.down.values()]))
        for name in world.nodes:
            for peer in world.peers(name):
                if name < peer.name:
                    world.connect(name, peer.name)

    def _check_settled(self) -> None:
        """Soon after the last fault nothing is on its way any more that does not wait for its time."""
        world = self.world
        world.run_until(world.now + SETTLED_WITHIN + 900_000)
        for guest in world.plan.guests:
            for lease in world.actor(guest).leases.values():
                begun = world.states.since.get((guest, lease.id), world.now)
                if lease.pending == sm.REDEEMING:
                    begun = max(begun, lease.approved.term.start)
                passing = (sm.REDEEMING, sm.EXTENDING_TICKET, sm.MODIFYING, sm.CLOSING, sm.CLOSE_WAIT)
                slow = lease.pending in passing and begun + SETTLED_WITHIN < world.now
                must(not slow, f"{guest}: {lease.id} is still {lease.state}/{lease.pending}, since {begun}")

    def _check_over(self) -> None:
        """When every term is over, every lease is, every unit is free or out of service, and all the time is back."""
        world = self.world
        world.run_until(world.now + 24 * HOUR)
        for guest, lease in self.asked:
            row = world.nodes[guest].store.get("leases", lease)
            must(row is not None, f"{guest} forgot lease {lease}, which it had acknowledged")
            assert row is not None
            must(row[1] == 0 and row[5] in (sm.CLOSED, sm.FAILED), f"{guest}: {lease} is {row[5]}/{row[6]} for ever")
            must(row[10] != "", f"{guest}: {lease} is {row[5]} and does not say why")
        for name in world.nodes:
            actor = world.actor(name)
            must(not actor.leases, f"{name} still has {list(actor.leases)}")
            must(not actor._timers or name == "broker" or actor.wake_at() is None or actor.wake_at() > world.now, name)
        for guest in world.plan.guests:
            must(not world.actor(guest).returns, f"{guest} still has claims to give back")
        for source in world.query("broker", "sources"):
            must(source["free_now"] == source["units"], f"{source['source']}: {source['free_now']} are free")
        for site in world.plan.sites:
            actor = world.actor(site)
            busy = [unit["unit"] for unit in world.query(site, "units") if unit["state"] not in ("free", "out")]
            must(not busy, f"{site}: units {busy} are busy for nobody")
            must(not actor._holding, f"{site} counts units as held: {actor._holding}")
            table = actor.calendar("vm")
            must(table.reserved_at(actor.now) == 0, f"{site}'s calendar holds {table.reserved_at(actor.now)}")
            free = sum(unit["state"] == "free" for unit in world.query(site, "units"))
            must(table.capacity_at(actor.now) == free, f"{site}: {free} units, {table.capacity_at(actor.now)} counted")

    def _check_usable(self) -> None:
        """Whoever asks for all units of a site that are in service gets them."""
        world, guest = self.world, self.world.plan.guests[0]
        for site in world.plan.sites:
            free = sum(unit["state"] == "free" for unit in world.query(site, "units"))
            if not free:
                continue
            term = [world.now + 10_000, world.now + HOUR]
            made = world.command(guest, "lease.request", type="vm", units=free, term=term, site=site)
            world.run_until(world.now + 3 * MINUTE)
            lease = world.query(guest, "lease", lease=made.result["id"])
            must(lease["state"] == sm.ACTIVE and len(lease["units"]) == free, f"{site}: {free} units are free: {lease}")
