"""What operators do to a world, and what goes wrong at a given time: the operations of a scenario, one method each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from random import Random
from typing import Any, Final, TypeAlias

from attrs import evolve

from leasekit.core.leases import service_manager as sm
from leasekit.core.leases.plans import ASKING
from leasekit.core.steps import Reply
from leasekit.core.time import HOUR, INSTANT_MAX, MINUTE, SECOND, Duration, Instant
from leasekit_simulation.faults.all_checkers import Checkers
from leasekit_simulation.faults.checkers import must
from leasekit_simulation.faults.early import EarlyChanges, draw_change
from leasekit_simulation.faults.host_book import CPU_NEEDS, MEMORY_NEEDS, WHOLE, HostSize, draw_needs, draw_wishes
from leasekit_simulation.faults.hostile import HostileGuest
from leasekit_simulation.faults.notice_book import draw_ends
from leasekit_simulation.faults.odd_words import costly_filter, odd_properties
from leasekit_simulation.faults.peers import PeerChanges
from leasekit_simulation.faults.population import in_rack
from leasekit_simulation.faults.scenario import ROGUE, Do, Operation
from leasekit_simulation.faults.topology_book import draw_topology
from leasekit_simulation.faults.world import FaultyWorld

Spans: TypeAlias = tuple[Duration, ...]

LENGTHS: Final[Spans] = (SECOND, MINUTE, MINUTE, 5 * MINUTE, 5 * MINUTE, 15 * MINUTE)
LONG: Final[Spans] = (HOUR, 3 * HOUR)
SLEEPS: Final[Spans] = (SECOND, 5 * SECOND, 5 * SECOND, 20 * SECOND, MINUTE, MINUTE, 30 * MINUTE)
GROWTH_MAX: Final = 6
"""How many units of a type a site may come to have beyond those that it had at first."""
ADDED: Final = 100
"""The numbers of units that an operator adds are larger."""
STARTS: Final[Spans] = (0, 0, 10 * SECOND, 100 * SECOND)
AHEAD: Final[Spans] = (100 * SECOND, 3 * MINUTE, 6 * MINUTE, 15 * MINUTE)


class Workload:
    """Carries out operations."""

    def __init__(self, world: FaultyWorld, hostile: HostileGuest, checkers: Checkers) -> None:
        self.world = world
        self.hostile = hostile
        self.checkers = checkers
        self.asked: list[tuple[str, str]] = []
        self.requests = 0
        self._names = 0
        self._waiting: dict[int, Callable[[Reply], None]] = {}
        world.on_reply = self._replied
        self.peers = PeerChanges(world)
        early = EarlyChanges(world, self._ask, self._command, self._cut, self._close_lease, self._evict_lease)
        self._operations: Mapping[Do, Callable[[Operation, Random], None]] = {
            "request": lambda d, r: self._request(d.who, r), "long": lambda d, r: self._request(d.who, r, LONG),
            "ahead": lambda d, r: self._request(d.who, r, starts=AHEAD),
            "extend": lambda d, r: self._extend(d.who, r), "modify": lambda d, r: self._modify(d.who, r),
            "close": lambda d, r: self._close(d.who, r), "hurry": self._hurry, "group": self._group,
            "slice": self._slice, "close_slice": self._close_slice, "chain": self._chain, "crash": self._crash,
            "cut_pair": self._cut_pair, "cut_side": self._cut_side, "slow": self._slow, "full": self._full,
            "step_within": self._step_within, "step_beyond": self._step_beyond, "sleep": self._sleep,
            "leap": self._leap, "operate": self._operate,
            "reclaim": self._reclaim, "delegate": self._delegate, "release": self._release, "resize": self._resize,
            "reload": self._reload, "grow": self._grow, "shrink": self._shrink, "share": self._share,
            "hand_over": self._hand_over, "odd": self._odd,
            "maintain": self._maintain, "drain": self._drain, "evict": self._evict, "move": self._move,
            "unit": self._unit, "crowd": self._crowd, "early": early.change_one,
            "rotate": lambda d, r: self.peers.rotate(self._actor(d, r), r),
            "forget": lambda d, r: self.peers.forget(self._actor(d, r), r),
            "dry_run": self._dry_run, "slice_key": self._slice_key, "extend_same": self._extend_same,
            "topology": self._topology, "garbage": self._garbage, "flip": self._flip, "replay": self._replay,
        }  # fmt: skip

    def carry_out(self, operation: Operation) -> None:
        """Do it, with details that its ``pick`` and the state of the world decide."""
        rng = Random(operation.pick)
        self.world.mark(f"operation: {operation.do}")
        if self.world.trace is not None:
            self.world.trace(f"operation {operation.do} {operation.who}".rstrip())
        if self.hostile.can(operation.do):
            self.hostile.act(operation.do, rng)
        else:
            self._operations[operation.do](operation, rng)

    # -- commands ----------------------------------------------------------------------------------------------

    def _command(self, actor: str, name: str, done: Callable[[Any], None] | None = None, /, **arguments: Any) -> Any:
        """The result, or None; ``done`` is called with it now, or later if the actor waits for its disk."""
        world = self.world
        if not world.is_up(actor):
            return None
        if name == "lease.request":
            self.requests += 1
        if name == "lease.modify":
            self.checkers.words.changes(arguments["lease"], arguments.get("configuration", {}))
        results: list[Any] = []

        def answered(reply: Reply) -> None:
            if reply.error:
                world.mark("command refused")
                return
            results.append(reply.result)
            if done is not None:
                done(reply.result)

        self._waiting[world.last_command + 1] = answered
        world.command(actor, name, **arguments)
        return results[0] if results else None

    def _replied(self, actor: str, reply: Reply) -> None:
        waiting = self._waiting.pop(reply.id, None)
        if waiting is not None:
            waiting(reply)

    def _ask(self, guest: str, /, **arguments: Any) -> str:
        """Request a lease; its id, or nothing."""

        def told(result: Any) -> None:
            self.asked.append((guest, result["id"]))
            self.checkers.told(guest, result["id"])
            self.checkers.words.told(
                result["id"], arguments.get("properties", {}), arguments.get("configuration", {})
            )  # fmt: skip
            self.checkers.follows(
                result["id"], redeem=arguments.get("redeem_predecessor", ""),
                join=arguments.get("join_predecessor", ""),
                proceeds=arguments.get("if_predecessor_fails") == "proceed",
            )  # fmt: skip
            # A lease that follows another, or that is one of a slice's, may have to close because of them; of one whose
            # request was never answered nobody knows whether it does.
            if "join_predecessor" in arguments or "redeem_predecessor" in arguments or "slice" in arguments:
                self.checkers.may_close(result["id"])

        made = self._command(guest, "lease.request", told, **arguments)
        return "" if made is None else str(made["id"])

    def _term(self, rng: Random, lengths: Spans = LENGTHS, starts: Spans = STARTS) -> list[Instant]:
        start = self.world.now + rng.choice(starts)
        return [start, start + rng.choice(lengths)]

    # -- what guests do ----------------------------------------------------------------------------------------

    def _request(self, guest: str, rng: Random, lengths: Spans = LENGTHS, starts: Spans = STARTS) -> None:
        scenario = self.world.scenario
        properties: dict[str, str] = {}
        if rng.random() < 0.3:
            properties["elastic"] = "true"
        if rng.random() < 0.35:
            properties["deferrable"] = "true"
        if rng.random() < 0.1:
            properties["request_timeout"] = "5s"
        if rng.random() < 0.2:
            properties["preemptible"] = "true"
            suspend, market = "4s" if scenario.suspends else "", "spot" in scenario.mappers.values()
            properties |= draw_ends(scenario.seed, len(self.asked), suspend, market=market)
        if rng.random() < 0.1:
            properties["exclude_sites"] = rng.choice(list(scenario.sites))
        more: dict[str, Any] = {}
        known = [lease for owner, lease in self.asked if owner == guest][-6:]
        if known and rng.random() < 0.2:
            more[rng.choice(("redeem_predecessor", "join_predecessor"))] = rng.choice(known)
            more["if_predecessor_fails"] = rng.choice(("fail", "proceed"))
        if rng.random() < 0.15:
            more["site"] = rng.choice(list(scenario.sites))
        if len(scenario.brokers) > 1:
            more["broker"] = rng.choice(list(scenario.brokers))
        type_ = "gpu" if rng.random() < 0.1 else "vm"
        if scenario.racks > 1:
            picky = Random(f"leasekit filter {scenario.seed} {len(self.asked)}")
            if picky.random() < 0.4:
                properties["filter"] = picky.choice(("rack == r0", "rack == r1", "rack != r1", "rack == r9"))
        configuration = {"deficit": "accept"} if rng.random() < 0.2 else {}
        if scenario.hosts and (needs := draw_needs(scenario.seed, len(self.asked))):
            properties |= needs
            configuration |= draw_wishes(scenario.seed, len(self.asked), known)
        self._ask(
            guest, type=type_, units=rng.randint(1, 4), term=self._term(rng, lengths, starts), properties=properties,
            configuration=configuration, **more,
        )  # fmt: skip

    def _crowd(self, operation: Operation, rng: Random) -> None:
        """A preemptible machine for each host of a site that has others make room; then one that is none, for which
        what they leave is enough, but in pieces.
        """
        world, scenario, guest = self.world, self.world.scenario, rng.choice(self.world.scenario.guests)
        sites = [
            name for name, units in scenario.sites.items() if scenario.mappers[name] == "victims" and "vm" in units
        ]
        if not sites:
            return
        site, now = rng.choice(sites), world.now
        machine = {"needs.cpu": str(CPU_NEEDS[0]), "needs.memory": str(MEMORY_NEEDS[-1]), "elastic": "true"}
        market = "spot" in scenario.mappers.values()
        ends = draw_ends(scenario.seed, len(self.asked), "4s" if scenario.suspends else "", market=market)
        for broker in scenario.brokers:
            self._ask(
                guest, type="vm", units=scenario.sites[site]["vm"], site=site, broker=broker,
                term=[now, now + LENGTHS[-1]], properties={**machine, **ends, "preemptible": "true"},
            )  # fmt: skip
        broker, end = rng.choice(list(scenario.brokers)), now + rng.choice((5 * MINUTE, HOUR))

        def come_late() -> None:
            self._ask(
                guest, type="vm", units=1, site=site, broker=broker, term=[now + MINUTE, end], properties=machine
            )  # fmt: skip

        world.call_at(now + MINUTE, guest, come_late)

    def _odd(self, operation: Operation, rng: Random) -> None:
        """A request, and a modify, with words that are hard to carry, and a filter that is dear."""
        world, guest = self.world, operation.who
        properties = odd_properties(rng)
        if rng.random() < 0.4:
            properties = {"filter": costly_filter(rng)}
        world.mark("odd words")
        lease = self._ask(
            guest, type="vm", units=rng.randint(1, 2), term=self._term(rng), properties=properties,
            configuration=odd_properties(rng), broker=rng.choice(list(world.scenario.brokers)),
        )  # fmt: skip
        change = partial(
            self._command, guest, "lease.modify", None, lease=lease, configuration=odd_properties(rng)
        )  # fmt: skip
        if lease:
            world.call_at(world.now + rng.choice((500, 10 * SECOND, MINUTE)), guest, change)

    def _lease(self, guest: str, rng: Random) -> Any:
        """One that can still be changed, mostly."""
        if not self.world.is_up(guest):
            return None
        leases = self.world.actor(guest).leases
        recent = list(leases.values())[-40:]
        active = [lease for lease in recent if lease.state in (sm.ACTIVE, sm.ACTIVE_TICKETED)]
        among = active if active and rng.random() < 0.85 else recent[-12:]
        return rng.choice(among) if among else None

    @staticmethod
    def _victims(lease: Any, units: int, rng: Random) -> list[str]:
        surplus = len(lease.units) - units
        if surplus <= 0 or rng.random() < 0.5:
            return []
        return rng.sample(sorted(lease.units), rng.randint(1, surplus))

    def _extend(self, guest: str, rng: Random) -> None:
        lease = self._lease(guest, rng)
        if lease is not None:
            units = rng.randint(1, 6)
            end = lease.last_end
            self._command(
                guest, "lease.extend", None, lease=lease.id, end=end + rng.choice((5000, MINUTE, 200_000)),
                units=units, victims=self._victims(lease, units, rng),
            )  # fmt: skip
            if rng.random() < 0.4:
                self._think_again(guest, lease.id, rng)
            elif rng.random() < 0.3:
                self._change_late(guest, lease, rng)

    def _think_again(self, guest: str, lease: str, rng: Random) -> None:
        """Take an extension back, while it is asked for, when it is granted, or when it is redeemed."""
        world = self.world
        at = world.now + rng.choice((0, 20, 500, 10 * SECOND, MINUTE))
        world.call_at(at, guest, lambda: self._command(guest, "lease.undo_extend", None, lease=lease))

    def _change_late(self, guest: str, lease: Any, rng: Random) -> None:
        """Modify a lease, or extend it further, when its site goes on by the extension already."""
        world = self.world
        end, more = lease.last_end, rng.choice((5000, MINUTE))
        command, change = rng.choice(
            (
                ("modify", {"units": rng.randint(1, 6), "configuration": {"size": str(rng.randint(1, 9))}}),
                ("modify", {"configuration": {"size": str(rng.randint(1, 9))}}),
                ("extend", {"end": end + 200_000 + more, "units": rng.randint(1, 6)}),
            )
        )
        at = max(world.now, lease.end - rng.choice((MINUTE, 50_000, 20_000, 6000)))
        world.call_at(at, guest, lambda: self._command(guest, f"lease.{command}", None, lease=lease.id, **change))

    def _modify(self, guest: str, rng: Random) -> None:
        lease = self._lease(guest, rng)
        if lease is None:
            return
        change: dict[str, Any] = {}
        if rng.random() < 0.6:
            change["units"] = rng.randint(1, 6)
            change["victims"] = self._victims(lease, change["units"], rng)
        if rng.random() < 0.4 and not lease.following:
            change["end"] = lease.end + rng.choice((-20_000, 50_000))
        if rng.random() < 0.4:
            change["configuration"] = {"size": str(rng.randint(1, 9))}
        if lease.has_ticket and not self.world.scenario.early:
            return  # worlds without are as they were before a lease could be changed that has not begun
        if lease.has_ticket:  # drawn by itself, so that all else of a seed is as it was without
            drawn = Random(f"leasekit ticketed {self.world.scenario.seed} {lease.number}")
            change |= draw_change(self.world, lease, drawn)
        self._command(guest, "lease.modify", None, lease=lease.id, **change)

    def _close(self, guest: str, rng: Random) -> None:
        lease = self._lease(guest, rng)
        if lease is not None:
            self._close_lease(guest, lease.id)

    def _close_lease(self, guest: str, lease: str) -> None:
        self.checkers.may_close(lease)
        self._command(guest, "lease.close", lambda result: self.checkers.closed(guest, lease), lease=lease)

    def _hurry(self, operation: Operation, rng: Random) -> None:
        """Change a lease, and close it while that is on its way."""
        guest, world = operation.who, self.world
        self._request(guest, rng)
        lease = self._lease(guest, rng)
        for change in (self._extend, self._modify):
            if rng.random() < 0.7:
                change(guest, rng)
        world.run_until(world.now + rng.choice((0, 1, 20, 200, 2000)))
        if lease is not None:
            self._close_lease(guest, lease.id)

    def _group(self, operation: Operation, rng: Random) -> None:
        """Requests that are granted together; now and then one of them is never sent."""
        members = rng.randint(2, 3)
        self._names += 1
        term = self._term(rng)
        broker = rng.choice(list(self.world.scenario.brokers))
        for number in range(members - (rng.random() < 0.2)):
            properties = {"group_id": f"group-{self._names}"}
            if number == 0:
                properties["lease_count"] = str(members)
            units = rng.randint(1, 2)
            # Drawn by itself, so that all else of a seed is as it was without.
            wide = Random(f"leasekit elastic group {self.world.scenario.seed} {len(self.asked)}")
            if wide.random() < 0.3:
                properties |= {"elastic": "true", "min_units": str(units)}
                units += wide.randint(1, 6)
            self._ask(operation.who, type="vm", units=units, term=term, properties=properties, broker=broker)

    def _slice(self, operation: Operation, rng: Random) -> None:
        """Leases that are redeemed together."""
        guest, members = operation.who, rng.randint(2, 3)
        self._names += 1
        name = f"slice-{self._names}"
        held = partial(self.checkers.holds, guest, name, members)
        if self._command(guest, "slice.create", lambda made: held(), name=name, hold=members) is None:
            return
        term = self._term(rng)
        for _ in range(members):
            self._ask(guest, slice=name, type="vm", units=rng.randint(1, 2), term=term)

    def _close_slice(self, operation: Operation, rng: Random) -> None:
        if not self.world.is_up(operation.who):
            return
        names = [name for name in self.world.actor(operation.who).records.slices if name.startswith("slice-")]
        if names:
            name = rng.choice(names)
            for lease in self.world.actor(operation.who).leases.values():
                if lease.slice == name:
                    self.checkers.may_close(lease.id)
            self._command(operation.who, "slice.close", None, name=name)

    def _slice_key(self, operation: Operation, rng: Random) -> None:
        """The users of a slice, or of leases without one, log in with another key."""
        if self.world.is_up(operation.who) and (names := list(self.world.actor(operation.who).records.slices)):
            self.world.mark("slice key")
            self._command(
                operation.who, "slice.key", None, name=rng.choice(names), key=f"ssh-ed25519 {rng.getrandbits(64)}"
            )

    def _extend_same(self, operation: Operation, rng: Random) -> None:
        """Extend a lease as it is: its operator says no number of units."""
        lease = self._lease(operation.who, rng)
        if lease is not None:
            end = lease.last_end
            units = (lease.following[-1] if lease.following else lease.approved or lease.asked).units
            made = self._command(operation.who, "lease.extend", None, lease=lease.id, end=end + MINUTE)
            if made is not None:
                self.world.mark("extended as it is")
                must(lease.asked.units == units, f"{lease.id} of {units} units is extended for {lease.asked.units}")

    def _chain(self, operation: Operation, rng: Random) -> None:
        """Leases that follow each other."""
        term, last = self._term(rng), ""
        for _ in range(rng.randint(2, 4)):
            more = {rng.choice(("redeem_predecessor", "join_predecessor")): last} if last else {}
            last = self._ask(operation.who, type="vm", units=1, term=term, **more) or last

    def _topology(self, operation: Operation, rng: Random) -> None:
        """Sites and links at once; now and then only asked about, or given up, some as soon as it is decided."""
        world, guest = self.world, operation.who
        name, arguments = draw_topology(world, guest, rng)
        made = self._command(guest, name, None, **arguments) if name else None
        if made is None or name != "topology.request" or rng.random() >= 0.2:
            return
        until = world.now + rng.choice((20, 500, 3 * SECOND))
        while world.now < until and world.is_up(guest):
            known = world.actor(guest).topologies.by_id.get(made["topology"])
            if known is None or known.state != ASKING:
                break
            world.run_until(world.now + rng.choice((1, 10, 100)))
        self._command(guest, "topology.close", None, topology=made["topology"])

    # -- what goes wrong ---------------------------------------------------------------------------------------

    def _actor(self, operation: Operation, rng: Random) -> str:
        return operation.who or rng.choice(self.world.scenario.actors)

    def _crash(self, operation: Operation, rng: Random) -> None:
        name = self._actor(operation, rng)
        if self.world.node(name).up_at <= self.world.now:
            self.world.mark("crash at rest")
            self.world.crash(name, self.world.now + rng.choice((0, 500, 30 * SECOND, 5 * MINUTE)))

    def _cut_pair(self, operation: Operation, rng: Random) -> None:
        one, other = rng.sample(self.world.scenario.actors, 2)
        both = rng.random() < 0.7
        self._cut(((one, other), (other, one))[: 1 + both], operation.span)

    def _cut_side(self, operation: Operation, rng: Random) -> None:
        actors = self.world.scenario.actors
        side = set(rng.sample(actors, rng.randint(1, max(1, len(actors) // 2))))
        self._cut(
            [(one, other) for one in actors for other in actors if (one in side) != (other in side)], operation.span
        )

    def _cut(self, pairs: Iterable[tuple[str, str]], span: Duration) -> None:
        """What the first of each pair sends the second is lost for a while."""
        self.world.cuts |= dict.fromkeys(pairs, self.world.now + span)
        for link in self.world.links:
            if self.world.is_cut(*link.names):
                link.fail()

    def _slow(self, operation: Operation, rng: Random) -> None:
        self.world.slow[self._actor(operation, rng)] = self.world.now + operation.span

    def _full(self, operation: Operation, rng: Random) -> None:
        name = self._actor(operation, rng)
        self.world.set_full(name, True)
        self.world.call_at(self.world.now + operation.span, name, lambda: self.world.set_full(name, False))

    def _step_within(self, operation: Operation, rng: Random) -> None:
        self.world.step_clock(self._actor(operation, rng), rng.randint(-900, 900), operation.span)

    def _step_beyond(self, operation: Operation, rng: Random) -> None:
        by = rng.choice((-10 * MINUTE, -MINUTE, -10 * SECOND, 10 * SECOND, MINUTE, 10 * MINUTE))
        name = self._actor(operation, rng)
        self.world.mark("clock beyond the skew")
        self._is_wrong(name, by)
        self.world.step_clock(name, by, operation.span)

    def _is_wrong(self, name: str, by: Duration) -> None:
        """An actor's clock is off by more than is allowed: its checkers allow for that."""
        self.checkers.stepped(name)
        if name in self.world.scenario.guests and by > 0:
            for lease in self.world.actor(name).leases:
                self.checkers.may_close(lease)

    def _leap(self, operation: Operation, rng: Random) -> None:
        """An actor's clock is set ahead, which is believed, and later back, which it follows slowly."""
        name, by = self._actor(operation, rng), rng.choice((900, 900, 10 * SECOND, MINUTE, 10 * MINUTE))
        self.world.mark("clock leaps ahead")
        if by > SECOND:
            self._is_wrong(name, by)
        self.world.leap_clock(name, by, operation.span)

    def _sleep(self, operation: Operation, rng: Random) -> None:
        """An actor's machine is suspended; one whose host suspends it does not know, until its clock is set right."""
        name, span = self._actor(operation, rng), rng.choice(SLEEPS)
        if self.world.is_up(name):
            late = rng.choice((-1, -1, 0, 500, 10 * SECOND))
            self.world.mark("machine sleeps" if late < 0 else "machine is suspended by its host")
            if late >= 0:
                self._is_wrong(name, -span)
            self.world.suspend(name, span, late)

    def _operate(self, operation: Operation, rng: Random) -> None:
        site = rng.choice(list(self.world.scenario.sites))
        if not self.world.is_up(site):
            return
        unit = rng.choice(self.world.query(site, "units"))
        name = unit["unit"]
        if unit["state"] == "out":
            self.checkers.mended(site, name)
            self._command(site, "unit.enable", None, unit=name)
        elif unit["state"] == "active" and rng.random() < 0.5:
            self.world.mark("unit found down")
            self.checkers.broke(site, name)
            self._command(site, "unit.fail", None, unit=name, reason="it does not answer")
        else:
            self.checkers.disabled(site, name)
            self._command(site, "unit.disable", None, unit=name)

    def _maintain(self, operation: Operation, rng: Random) -> None:
        """A maintenance window is announced for some units of a site, or for all of a type; or one is called off."""
        world = self.world
        site = rng.choice(list(world.scenario.sites))
        if not world.is_up(site):
            return
        windows = [row["window"] for row in world.query(site, "maintenance")]
        if windows and rng.random() < 0.3:
            world.mark("maintenance called off")
            window = rng.choice(windows)
            self.checkers.unwindowed(site, window)
            self._command(site, "maintenance.remove", None, window=window)
            return
        names = [row["unit"] for row in world.query(site, "units")]
        chosen: dict[str, Any] = {"units": rng.sample(names, rng.randint(1, len(names)))}
        if rng.random() < 0.3:
            type_ = rng.choice(list(world.scenario.sites[site]))
            chosen = {"type": type_, "units": [name for name in names if name.startswith(f"{type_}-")]}
        start = world.clock(site) + rng.choice((0, 30 * SECOND, 3 * MINUTE))
        end = start + rng.choice((10 * SECOND, MINUTE, 5 * MINUTE))
        for name in chosen["units"]:
            self.checkers.disabled(site, name)
        world.mark("maintenance announced")
        close = rng.random() < 0.5
        self._command(
            site, "maintenance.add", lambda made: self.checkers.windowed(site, {**made, "close": close}), start=start,
            end=end, close=close, **chosen,
        )  # fmt: skip

    def _drain(self, operation: Operation, rng: Random) -> None:
        """Units of a site go out of service as leases give them up, or one that is drained comes back."""
        world = self.world
        site = rng.choice(list(world.scenario.sites))
        if not world.is_up(site):
            return
        drained = [row for row in world.query(site, "maintenance") if row["end"] == INSTANT_MAX]
        if drained and rng.random() < 0.5:
            world.mark("unit undrained")
            name = rng.choice(rng.choice(drained)["units"])
            for row in drained:
                if name in row["units"]:
                    self.checkers.unwindowed(site, row["window"])
            self._command(site, "maintenance.remove", None, units=[name])
            return
        names = [row["unit"] for row in world.query(site, "units")]
        self._drain_units(site, rng.sample(names, rng.randint(1, max(1, len(names) // 2))), rng)

    def _drain_units(self, site: str, chosen: Sequence[str], rng: Random) -> None:
        world = self.world
        for name in chosen:
            self.checkers.disabled(site, name)
        world.mark("units drained")
        now, close = world.clock(site), rng.random() < 0.5
        ends = now + rng.choice((0, MINUTE))
        self._command(
            site, "maintenance.add",
            lambda made: self.checkers.windowed(site, {**made, "close": close}, max(made["start"], ends)), start=now,
            units=chosen, close=close, close_at=ends,
        )  # fmt: skip

    def _evict(self, operation: Operation, rng: Random) -> None:
        """The operator of a site, or of a broker, ends somebody's lease, now or soon."""
        world = self.world
        server = rng.choice([*world.scenario.sites, *world.scenario.brokers])
        if not world.is_up(server):
            return
        going = sorted(lease.id for lease in world.actor(server).leases.values() if lease.ended < 0)
        if going:
            self._evict_lease(server, rng.choice(going), rng.choice((0, MINUTE)))

    def _evict_lease(self, server: str, lease: str, within: Duration = 0) -> None:
        self.world.mark("lease evicted")
        self.checkers.evicted(lease)
        self._command(server, "lease.evict", None, lease=lease, at=self.world.clock(server) + within)

    def _move(self, operation: Operation, rng: Random) -> None:
        """A lease gets another unit in the place of one that it has."""
        world = self.world
        site = rng.choice(list(world.scenario.sites))
        units = world.query(site, "units") if world.is_up(site) else []
        active = [row["unit"] for row in units if row["state"] == "active"]
        if active:
            world.mark("unit moved")
            unit = rng.choice(active)
            self.checkers.broke(site, unit)
            self._command(site, "unit.move", None, unit=unit)

    def _unit(self, operation: Operation, rng: Random) -> None:
        """A unit of a site comes, goes, or is as the file says again; a host may be larger or smaller, too."""
        world = self.world
        site = rng.choice(list(world.scenario.sites))
        units = world.query(site, "inventory") if world.is_up(site) else []
        units = [row for row in units if row["type"] not in world.scenario.links]
        if not units:
            return
        row, size = rng.choice(units), {"cpu": str(rng.choice((2, 4, 8))), "memory": f"{rng.choice((4, 8, 16))}GiB"}
        name, type_ = row["unit"], row["type"]
        world.changed_units.add(site)
        if row["differs"] and rng.random() < 0.5:
            world.mark("unit as the file says again")
            self._command(site, "unit.reset", None, unit=name)
        elif (kind := rng.random()) < 0.3:
            world.mark("unit added")
            number, racks = len(units) + ADDED, 1 if world.scenario.hosts else world.racks(type_)
            self.checkers.hosts.sized(site, name := f"{type_}-{number}", WHOLE)
            self._command(site, "unit.add", None, unit=name, type=type_, attributes=in_rack(number % racks, racks))
        elif kind < 0.6 or not world.scenario.hosts:
            world.mark("unit removed")
            self.checkers.disabled(site, name)
            self._command(site, "unit.remove", None, unit=name)
        else:
            world.mark("host changed")
            self.checkers.hosts.sized(
                site, name, HostSize(int(size["cpu"]) * 1000, int(size["memory"].removesuffix("GiB")) * 1024)
            )
            self._command(site, "unit.set", None, unit=name, capacity=size)

    def undrain(self) -> None:
        """All units that are drained come back, and are as files say."""
        for site in self.world.scenario.sites:
            for row in self.world.query(site, "inventory") if self.world.is_up(site) else ():
                if row["differs"]:
                    self._command(site, "unit.reset", None, unit=row["unit"])
            for row in self.world.query(site, "maintenance") if self.world.is_up(site) else ():
                if row["end"] == INSTANT_MAX:
                    self.checkers.unwindowed(site, row["window"])
                    self._command(site, "maintenance.remove", None, window=row["window"])

    def _dry_run(self, operation: Operation, rng: Random) -> None:
        """A guest asks what a broker would answer."""
        properties = {"deferrable": "true"} if rng.random() < 0.3 else {}
        self._command(
            operation.who, "lease.dry_run", None, type=rng.choice(("vm", "vm", "gpu")), units=rng.randint(1, 9),
            term=self._term(rng), properties=properties, broker=rng.choice(list(self.world.scenario.brokers)),
        )  # fmt: skip

    def _reclaim(self, operation: Operation, rng: Random) -> None:
        """A site, or a broker, takes back what it has given to a broker."""
        world = self.world
        issuer = rng.choice([*world.scenario.sites, *dict.fromkeys(b for b in world.scenario.brokers.values() if b)])
        if not world.is_up(issuer):
            return
        given = [row for row in world.query(issuer, "delegations") if row["state"] in ("held", "offering")]
        if given:
            world.mark("delegation taken back")
            at = world.clock(issuer) + rng.choice((0, MINUTE))
            deadline = rng.choice((-1, at + 5 * MINUTE))
            name = rng.choice(given)["delegation"]
            self._command(issuer, "delegation.reclaim", None, delegation=name, at=at, deadline=deadline)

    def _delegate(self, operation: Operation, rng: Random) -> None:
        """A site, or a broker, gives a broker more than it has, or fewer, or again, or until another time."""
        shares = [share for share in self.world.shares if share.broker != ROGUE]
        if shares:
            share = rng.choice(shares)
            issuer = share.issuer or share.site
            units = rng.choice((0, 0, share.units, rng.randint(1, share.units + 1)))
            more = {"until": self.world.clock(issuer) + rng.choice((5, 20)) * MINUTE} if rng.random() < 0.2 else {}
            self.world.mark("delegation changed")
            site = share.site if share.issuer else ""
            self._command(
                issuer, "delegation.give", None, broker=share.broker, type=share.type, site=site, units=units, **more
            )  # fmt: skip

    def _release(self, operation: Operation, rng: Random) -> None:
        """A broker lets go of what it holds."""
        broker = rng.choice(list(self.world.scenario.brokers))
        held = self.world.query(broker, "sources") if self.world.is_up(broker) else []
        if held:
            self._command(broker, "source.release", None, source=rng.choice(held)["source"])

    def _resize(self, operation: Operation, rng: Random) -> None:
        """A site's inventory shrinks, or grows to what it was: it is restarted for that."""
        world = self.world
        site = rng.choice(list(world.scenario.sites))
        type_, most = rng.choice(list(world.scenario.sites[site].items()))
        if world.node(site).up_at <= world.now:
            self._name_units(site, type_, rng.randint(1, most))
            world.mark("inventory changed")
            world.crash(site, world.now)

    # -- what files say otherwise, and actors take without a restart -------------------------------------------

    def _name_units(self, site: str, type_: str, count: int) -> None:
        """A site's file names so many units of a type from now on."""
        before = self.world.size(site, type_)
        self.world.sizes[site, type_] = count
        for number in range(count, before):
            self.checkers.disabled(site, f"{type_}-{number}")

    def _reload(self, operation: Operation, rng: Random) -> None:
        """An actor reads a file that says the same as before."""
        self.world.reload_file(self._actor(operation, rng))

    def _site_and_type(self, rng: Random) -> tuple[str, str, int]:
        """One of those that there are, and how many units there are of it."""
        site = rng.choice(list(self.world.scenario.sites))
        type_ = rng.choice(list(self.world.scenario.sites[site]))
        return site, type_, self.world.size(site, type_)

    def _shares_of(self, site: str, type_: str) -> list[int]:
        """The places of what a site's file gives to brokers of a type."""
        return [
            place
            for place, share in enumerate(self.world.shares)
            if (share.site, share.type, share.issuer) == (site, type_, "") and share.broker != ROGUE
        ]

    def _grow(self, operation: Operation, rng: Random) -> None:
        """A site has more units than ever, and gives them to a broker."""
        world = self.world
        site, type_, count = self._site_and_type(rng)
        more = min(rng.randint(1, 3), world.scenario.sites[site][type_] + GROWTH_MAX - count)
        if more > 0:
            world.mark("inventory grows")
            self._name_units(site, type_, count + more)
            places = self._shares_of(site, type_)
            if places and rng.random() < 0.8:
                self._give(rng.choice(places), more)
            world.reload_file(site)

    def _give(self, place: int, more: int) -> None:
        """A file gives a broker so many units more, or fewer."""
        share = self.world.shares[place]
        self.world.shares[place] = evolve(share, units=max(1, share.units + more))

    def _shrink(self, operation: Operation, rng: Random) -> None:
        """Units are drained, brokers have fewer of them, and later the site's file names them no more."""
        world = self.world
        site, type_, count = self._site_and_type(rng)
        if count < 2 or not world.is_up(site):
            return
        world.mark("inventory shrinks")
        left = rng.randint(1, count - 1)
        there = {row["unit"] for row in world.query(site, "units")}  # it may not have heard yet of those that are new
        names = [name for number in range(left, count) if (name := f"{type_}-{number}") in there]
        if names:
            self._drain_units(site, names, rng)
        places = self._shares_of(site, type_)
        while (over := sum(world.shares[place].units for place in places) - left) > 0:
            largest = max(places, key=lambda place: world.shares[place].units)
            if world.shares[largest].units == 1:
                break
            self._give(largest, -min(over, world.shares[largest].units - 1))
        world.reload_file(site)
        world.call_at(world.now + rng.choice((0, MINUTE, 5 * MINUTE)), site, lambda: self._take_out(site, type_, left))

    def _take_out(self, site: str, type_: str, left: int) -> None:
        if self.world.size(site, type_) > left:
            self._name_units(site, type_, left)
            self.world.reload_file(site)

    def _share(self, operation: Operation, rng: Random) -> None:
        """An issuer's file gives a broker another number of units, and be it more than there are."""
        world = self.world
        places = [place for place, share in enumerate(world.shares) if share.broker != ROGUE]
        if places:
            place = rng.choice(places)
            share = world.shares[place]
            world.mark("file gives another number")
            self._give(place, rng.randint(1, share.units + 2) - share.units)
            world.reload_file(share.issuer or share.site)

    def _hand_over(self, operation: Operation, rng: Random) -> None:
        """A broker gives a delegation back, its issuer takes back what is left of it, and gives it anew."""
        world = self.world
        shares = [share for share in world.shares if share.broker != ROGUE]
        if not shares:
            return
        share = rng.choice(shares)
        issuer, site = share.issuer or share.site, share.site if share.issuer else ""
        line = f"{issuer}/{share.type}@{share.broker}" + (f"/{site}" if site else "")
        rows = world.query(share.broker, "sources") if world.is_up(share.broker) else []
        mine = [row["source"] for row in rows if row["source"].partition("#")[0] == line and row["state"] == "held"]
        if not mine:
            return
        world.mark("delegation handed over")
        first, second = rng.choice((0, 500, 10 * SECOND)), rng.choice((0, 500, MINUTE))
        self._command(share.broker, "source.release", None, source=rng.choice(mine))
        take_back = partial(self._command, issuer, "delegation.reclaim", None, delegation=line)
        give = partial(
            self._command, issuer, "delegation.give", None, broker=share.broker, type=share.type, site=site,
            units=rng.choice((0, share.units)),
        )  # fmt: skip
        world.call_at(world.now + first, issuer, take_back)
        world.call_at(world.now + first + second, issuer, give)

    # -- what somebody on the line does ------------------------------------------------------------------------

    def _garbage(self, operation: Operation, rng: Random) -> None:
        if self.world.links:
            link = rng.choice(self.world.links)
            self.world.mark("malice: garbage bytes")
            link.put(rng.choice(link.names), rng.randbytes(rng.randint(1, 400)))

    def _flip(self, operation: Operation, rng: Random) -> None:
        if self.world.links:
            self.world.mark("malice: changed bytes")
            rng.choice(self.world.links).flip = True

    def _replay(self, operation: Operation, rng: Random) -> None:
        kept = [link for link in self.world.links if link.kept]
        if kept:
            link = rng.choice(kept)
            _, sender, data = rng.choice(link.kept)
            self.world.mark("malice: replayed frame")
            link.put(sender, data)
