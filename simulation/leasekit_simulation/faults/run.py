"""One run of a scenario: faults while checkers look on, then none, and everything must come to its end.

result = simulate(draw(7))
if result.failure is not None:
    print(explain(draw(7), result.failure))
"""

from __future__ import annotations

import re
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Sequence, Set
from pathlib import Path
from typing import Any, Final

import attrs
from msgspec.structs import asdict

from leasekit.core.claims.claim import DEGREE_ONE, Claim, decode_ticket
from leasekit.core.claims.evidence import Verdict, decode_evidence, verify_evidence
from leasekit.core.errors import TicketError
from leasekit.core.leases import membership
from leasekit.core.leases import service_manager as sm
from leasekit.core.protocol.messages import OUT
from leasekit.core.reasons import Code, read, words
from leasekit.core.schema import Row
from leasekit.core.steps import Action, ActionDone
from leasekit.core.time import HOUR, MINUTE, SECOND, Duration, Instant
from leasekit_simulation.faults.all_checkers import AGAIN, WAITED, Checkers
from leasekit_simulation.faults.checkers import Listening, Violated, must
from leasekit_simulation.faults.hostile import HostileGuest
from leasekit_simulation.faults.liar_book import Sieve, TrustChecker
from leasekit_simulation.faults.liars import Liars
from leasekit_simulation.faults.mappers import WILFUL, calm
from leasekit_simulation.faults.scenario import HOSTILE, ROGUE, Scenario, Share
from leasekit_simulation.faults.topology_book import TopologyChecker
from leasekit_simulation.faults.twins import RedoneChecker, check_twin, collections, left_over
from leasekit_simulation.faults.workload import Workload
from leasekit_simulation.faults.world import FaultyWorld, LivelockError

SETTLED_WITHIN: Final[Duration] = 5 * MINUTE
"""How long after the last fault a lease may still be on its way to somewhere."""
OPERATIONS_A_TWIN: Final = 12
"""After so many operations it is looked at what actors would know after a restart."""
PASSING: Final = (sm.REDEEMING, sm.EXTENDING_TICKET, sm.EXTENDING_FURTHER, sm.MODIFYING, sm.CLOSING, sm.CLOSE_WAIT)
LEASE: Final = re.compile(r"\b[0-9a-f]{16}-\d+\b")


@attrs.frozen(kw_only=True)
class Failure:
    """What went wrong: ``kind`` is the checker's name, ``liveness``, ``livelock`` or ``error`` (an actor raised)."""

    seed: int
    kind: str
    text: str
    at: Instant
    step: int
    phase: str
    lease: str = ""
    where: str = ""


@attrs.define(kw_only=True)
class Result:
    """What one run came to; ``met`` counts what was met by name, ``injected`` are the keys of the small faults."""

    seed: int
    failure: Failure | None = None
    steps: int = 0
    events: int = 0
    requests: int = 0
    lease_ms: int = 0
    virtual_ms: int = 0
    met: Counter[str] = attrs.Factory(Counter)
    injected: Sequence[str] = ()


class Run:
    """One run; :meth:`go` raises where an invariant does not hold."""

    def __init__(self, scenario: Scenario, *, checked: bool = True, faulty: bool = True) -> None:
        """Without ``checked`` nobody looks on, without ``faulty`` nothing goes wrong: for measuring what these cost."""
        self.world = world = FaultyWorld(scenario, faulty=faulty)
        self.scenario = scenario
        self.phase = "start"
        self._checked, self._faulty = checked, faulty
        self.hostile = HostileGuest(world, self._hostile_lease, self._rogue_claim)
        self.checkers = _checkers(world, self.hostile.tag)
        self.topologies = TopologyChecker(world)
        self.work = Workload(world, self.hostile, self.checkers)
        world.closes_asked = self.checkers.may_close
        self.liars = frozenset(scenario.liars)
        self.trust = TrustChecker(self.liars, scenario.guests, world.keys, world.clock, world.scheme)
        overheard = self.hostile.overheard
        if self.liars:
            world.attach(Liars(world, lambda: overheard.leases), Sieve(overheard, self.liars))
            world.attach(*(self._sieved() if checked else ()))
        elif checked:
            world.attach(*self.checkers.all, RedoneChecker(), self.topologies, overheard)
        world.start()
        self._at_first = {name: dict(collections(world.actor(name))) for name in world.nodes}

    def _sieved(self) -> list[Listening]:
        """Where there are hostile brokers and sites: what holds for the honest, and for leases of theirs alone. The
        books of units count what they have to do with as well; which refusals are right nobody can say.
        """
        checkers, trust = self.checkers, self.trust
        trust.terminating = checkers.units.terminating
        everything = (checkers.states, checkers.memory, checkers.units, checkers.power, checkers.blames, checkers.hosts)
        given = (checkers.claims, checkers.grants, checkers.brokers)
        alone = [one for one in checkers.all if one not in (*everything, checkers.orders, checkers.sites)]
        return [
            trust,
            checkers.orders,
            *(Sieve(one, self.liars) for one in (*everything, RedoneChecker())),
            *(Sieve(one, self.liars, trust.tainted, given=one in given) for one in alone),
        ]

    def _hostile_lease(self, site: str, lease: str) -> None:
        self.checkers.units.hostile(site, lease)

    def _rogue_claim(self, above: Claim, leaf: Claim, lease: str) -> None:
        self.checkers.claims.rogue(above, leaf, lease)

    def go(self) -> None:
        """Faults, then none."""
        world = self.world
        self.phase = "safety"
        calm = {
            "request", "long", "ahead", "extend", "modify", "close", "hurry", "group", "slice", "close_slice", "chain",
            "topology",
        }  # fmt: skip
        for number, operation in enumerate(self.scenario.operations):
            if operation.at > world.now:
                world.run_until(operation.at)
            if self._faulty or operation.do in calm:
                self.work.carry_out(operation)
            if self._checked and number % OPERATIONS_A_TWIN == 0:
                self._check_twins()
        world.run_until(world.now + MINUTE)
        self.phase = "liveness"
        world.heal()
        self.work.peers.finish()
        self.work.undrain()
        if self._checked:
            self._check_settled()
            self._check_over()
            self.work.peers.check()
            self._check_usable()

    def _check_twins(self) -> None:
        """Brokers and authorities would be the same after a restart."""
        world = self.world
        for guest in self.scenario.guests if self.liars else ():
            for lease in world.actor(guest).leases.values():
                self.trust.check_units(guest, lease)
        for name in (*self.scenario.brokers, *self.scenario.sites):
            if world.is_up(name) and not world.node(name).rereads and name not in self.liars:
                check_twin(name, world.actor(name), world.twin(name))
                if world.role(name) == "authority":
                    self.checkers.plans.check_shown(name, world.query(name, "leases"))

    # -- no faults ---------------------------------------------------------------------------------------------

    def _check_settled(self) -> None:
        """Soon after the last fault nothing is on its way any more that does not wait for its time."""
        world = self.world
        ahead = max(world.clock(name) - world.node(name).clock.local(world.now) for name in world.nodes)
        world.run_until(world.now + ahead + SETTLED_WITHIN)
        for guest in self.scenario.guests:
            for lease in world.actor(guest).leases.values():
                if lease.id not in self.trust.tainted:
                    self._check_lease(guest, lease)
        overstayed = self.checkers.units.overstayed(MINUTE)
        overstayed += self.checkers.ends.overstayed() + self.checkers.notices.overrun(SETTLED_WITHIN)
        must(not overstayed, "; ".join(overstayed))
        live = {
            lease.id
            for guest in self.scenario.guests
            for lease in world.actor(guest).leases.values()
            if lease.ended < 0
        }
        for (site, name), unit in self.checkers.units.units.items():
            orphan = unit.lease and unit.op != "teardown" and unit.lease not in live
            hostile = unit.lease.startswith(self.hostile.tag)
            must(hostile or not orphan, f"{site}: {name} is held by {unit.lease}, which its guest has no more")

        self._check_returned()
        self._check_booked()
        self._check_twins()
        self.topologies.check_settled()

    def _check_returned(self) -> None:
        """What is left of a ticket goes back to its broker when its lease is over."""
        world = self.world
        for given in self.checkers.claims.unreturned(world.now + SETTLED_WITHIN):
            guest = next((name for name in self.scenario.guests if given.claim.holder in world.keys(name)), "")
            source = self.checkers.claims.sources.get(given.claim.parent)
            if not guest or source is None or source.name in self.checkers.brokers.gone:
                continue
            site = next((name for name in self.scenario.sites if source.site in world.keys(name)), "")
            if (guest, site) in self.work.peers.forgotten:
                continue  # what comes while its site is unknown can't be given back: it is used by nobody
            lease = world.actor(guest).leases.get(given.lease)
            since = self.checkers.states.since
            on_its_way = any(
                since.get((guest, giving.id), since.get((guest, giving.lease), 0)) + SETTLED_WITHIN > world.now
                for giving in world.actor(guest).returns
                if giving.held.digest == given.claim.digest
            )
            kept = lease is not None and lease.ended < 0
            must(
                kept or on_its_way,
                f"{guest}: {given.lease} is over, its claim {given.claim.id[:8]} goes on to {given.until}",
            )

    def _check_booked(self) -> None:
        """No broker counts a claim for longer than it may still be used, by all that the broker was told of it."""
        issued = self.checkers.claims.issued
        for broker in self._honest(self.scenario.brokers):
            for lease in self.world.actor(broker).leases.values():
                for claim in lease.claims:
                    last = issued[claim.digest].at_most if claim.digest in issued else claim.term.end
                    what = f"{broker}: claim {claim.digest.hex()[:8]} of {lease.id}"
                    must(
                        claim.until <= max(last, claim.term.start, self.world.clock(broker)),
                        f"{what} is booked to {claim.until}, it may be used to {last}",
                    )

    def _check_lease(self, guest: str, lease: Any) -> None:
        world = self.world
        begun = self.checkers.states.since.get((guest, lease.id), world.now)
        starts = lease.approved.term.start if lease.approved is not None else 0
        if lease.pending == sm.REDEEMING:
            begun = max(begun, starts)
        slow = lease.pending in PASSING and begun + SETTLED_WITHIN < world.now
        must(not slow, f"{guest}: {lease.id} is still {lease.state}/{lease.pending}, since {begun}")
        if self.checkers.closes.get(lease.id) == guest and starts + SETTLED_WITHIN < world.now:
            over = lease.state in (sm.CLOSED, sm.FAILED)
            must(over, f"{guest}: {lease.id} was to be closed, it is {lease.state}/{lease.pending}")
        if (lease.state, lease.pending) == (sm.ACTIVE, "-") and lease.end > world.now + MINUTE:
            units = self.checkers.units.units
            has = {name for (site, name), unit in units.items() if site == lease.site and unit.lease == lease.id
                   and unit.op != "teardown"}  # fmt: skip
            must(has == set(lease.units), f"{guest}: {lease.id} has {sorted(lease.units)}, its site gave {sorted(has)}")
            joins = max(begun, self.checkers.guests.joins.get(lease.id, 0))  # it may have waited for another
            slow = lease.join == membership.JOINING and joins + SETTLED_WITHIN < world.now
            must(not slow, f"{guest}: {lease.id} is still joining")

    def _check_over(self) -> None:
        """When every term is over, every lease is, every unit is free or out of service, and all the time is back."""
        world = self.world
        world.run_until(world.now + HOUR)
        for site in self.scenario.sites:
            calm(world.actor(site).turning.mapper)
        world.run_until(world.now + 23 * HOUR)
        torn = self.checkers.claims.torn_groups()
        must(not torn or bool(self.liars), "; ".join(torn))
        if self.scenario.timing.keep_closed:
            for guest, lease in self.work.asked:
                self._check_told(guest, lease)
        for name in self._honest(world.nodes):
            actor = world.actor(name)
            must(not actor.leases, f"{name} still has {list(actor.leases)}")
            due = actor.wake_at()
            must(due is None or due > actor.now, f"{name} has had something to do since {due}, it is {actor.now} there")
            left = left_over(actor, self._at_first[name])
            must(not left, f"{name}, all of whose leases are over: {'; '.join(left)}")
        for guest in self.scenario.guests:
            must(not world.actor(guest).returns, f"{guest} still has claims to give back")
        for issuer in dict.fromkeys(share.issuer or share.site for share in world.shares):
            self._check_given(issuer)
        for broker in self._honest(self.scenario.brokers):
            self._check_broker(broker)
        for site in self._honest(self.scenario.sites):
            self._check_site(site)
            self._check_evidence(site)

    def _honest(self, names: Iterable[str]) -> list[str]:
        return [name for name in names if name not in self.liars]

    def _deals_with_liars(self, share: Share) -> bool:
        """Whether what is delegated, or what that was cut from, is of somebody hostile, or goes to one."""
        above = [one for one in self.world.shares if (one.broker, one.site) == (share.issuer, share.site)]
        own = bool(self.liars & {share.site, share.broker, share.issuer})
        return own or any(self._deals_with_liars(one) for one in above)

    def _check_evidence(self, site: str) -> None:
        """What a site keeps as evidence proves to anyone what it says, against somebody who is guilty."""
        world = self.world
        for row in world.query(site, "evidence"):
            (kept,) = world.query(site, "evidence", id=row["id"])
            verdict = self._verdict(site, row["id"], kept["file"])
            must(verdict.guilty.hex() == row["guilty"], f"{site}: evidence {row['id']} is against somebody else")
            hostile = {key for name in (ROGUE, HOSTILE, *self.liars) for key in world.keys(name)}
            must(verdict.guilty in hostile, f"{site} blames the honest: {row['words']}")
            world.mark("evidence verified")

    def _verdict(self, site: str, id_: str, file: bytes) -> Verdict:
        """What evidence proves: of a tree that begins with one of the site's keys."""
        wrong: TicketError | None = None
        for key in self.world.keys(site):
            try:
                return verify_evidence(self.world.scheme, decode_evidence(file), site=key)
            except TicketError as error:
                wrong = wrong or error
        raise Violated(f"{site}: evidence {id_} proves nothing: {wrong}") from wrong

    def _check_broker(self, broker: str) -> None:
        """All that a broker has not given to brokers below it is free again."""
        for source in self.world.query(broker, "sources"):
            if source["state"] != "held" or source["site"] in self.world.changed_units:
                continue
            share = next((s for s in self.world.shares if _is_source(s, source, broker)), None)
            if share is not None and self._deals_with_liars(share):
                continue
            below = self.world.query(broker, "delegations")
            given = [row for row in below if row["site"] == source["site"] and row["type"] == source["type"]]
            if share is None or any(row["state"] not in ("held", "ended", "refused") for row in given):
                continue
            now = self.world.clock(broker)  # its own "now" is of when it last had something to do
            if not source["term"][0] <= now < source["term"][1]:
                continue  # it is renewed, and this is not its period
            kept = sum(
                row["units"] for row in given if row["state"] == "held" and row["term"][0] <= now < row["term"][1]
            )
            book = self.world.actor(broker).book
            capacity, tables = book.ticket(source["source"]).leaf.capacity, book.asked(source["chain"]).tables.values()
            free = sum(table.free_at(now) for table in tables)  # one class may have less than was given of it
            out = sum(one.units for one in book.get(source["source"]).withheld if one.window == OUT)
            must(free == capacity - kept - out, f"{broker}: {free} of {capacity} of {source['source']} are free")

    def _check_given(self, issuer: str) -> None:
        """Brokers have of an issuer what its file says, or its operator wished for since, where it has as much to give.
        What a broker gives it can change only where it has as much beside that.
        """
        world = self.world
        if issuer in world.changed_units:
            return
        overrides = world.actor(issuer).issued.overrides
        over = {row["chain"] for row in world.query(issuer, "delegations") if row["reclaimed"] >= 0} - overrides.keys()
        shares = [one for one in world.shares if issuer == (one.issuer or one.site)]
        if any(self._deals_with_liars(one) for one in shares):
            return
        passing = any(one.length < 100 * HOUR or one.degree != DEGREE_ONE for one in shares)
        if passing or any(override.until >= 0 for override in overrides.values()):
            return
        for type_, site in dict.fromkeys((one.type, one.site) for one in shares):
            lines = {_line(one): one for one in shares if (one.type, one.site) == (type_, site)}
            wanted = {line: (line in overrides and overrides[line].units) or one.units for line, one in lines.items()}
            has = {line: self._held(one.broker, site, type_, issuer) for line, one in lines.items()}
            there = world.size(site, type_) if issuer == site else self._held(issuer, site, type_, "")
            room = there if issuer == site else there - sum(has.values())
            for line, units in wanted.items() if sum(wanted.values()) <= there else ():
                fine = has[line] == units or line in over or lines[line].broker == ROGUE or units > room
                must(fine, f"{issuer}: {has[line]} of {line} are held, {units} are to be, of {there}")

    def _held(self, broker: str, site: str, type_: str, issuer: str) -> int:
        """How many units of a site a broker has now, of one issuer or of all (''). What is replaced does not count."""
        if broker == ROGUE:
            return 0
        now = self.world.clock(broker)
        return sum(
            row["units"]
            for row in self.world.query(broker, "sources")
            if (row["site"], row["type"], row["state"]) == (site, type_, "held")
            and row["source"].startswith(f"{issuer}/" if issuer else "")
            and row["term"][0] <= now < row["term"][1]
        )

    def _check_told(self, guest: str, lease: str) -> None:
        row = self.world.nodes[guest].store.get("leases", lease)
        must(row is not None, f"{guest} forgot lease {lease}, which it had acknowledged")
        assert row is not None
        must(row[1] == 0 and row[5] in (sm.CLOSED, sm.FAILED), f"{guest}: {lease} is {row[5]}/{row[6]} for ever")
        must(row[10] != "", f"{guest}: {lease} is {row[5]} and does not say why")

    def _check_site(self, site: str) -> None:
        actor = self.world.actor(site)
        rows = self.world.query(site, "units")
        named = {f"{type_}-{n}" for type_ in self.scenario.sites[site] for n in range(self.world.size(site, type_))}
        named |= {row["unit"] for row in self.world.query(site, "inventory") if row["differs"] not in ("", "removed")}
        for unit in rows:
            must(unit["state"] in ("free", "out"), f"{site}: {unit['unit']} is {unit['state']} for nobody")
            why = unit["reason"]
            must(unit["state"] == "free" or why != "", f"{site}: {unit['unit']} is out and does not say why")
            window = (unit["because"] or {}).get("code") == Code.MAINTENANCE
            must(not window, f"{site}: {unit['unit']} is out for a window that is over: {why}")
            gone = (unit["because"] or {}).get("code") == Code.NOT_IN_INVENTORY
            again = gone and unit["unit"] in named
            must(not again, f"{site}: {unit['unit']} is out, and is in the inventory: {why}")
        held_back = {one.host for one in actor.units.machines if one.left}
        wrong = [row["unit"] for row in rows if row["state"] == "free" and row["unit"] not in named | held_back]
        must(not wrong, f"{site}: {wrong} are free, and in no inventory")
        missing = named - {row["unit"] for row in rows}
        must(not missing, f"{site}: {sorted(missing)} are in its inventory, and it does not know them")
        stay = [one.id for one in actor.units.machines if not one.left]
        must(not stay, f"{site} has machines that nobody has: {stay}")
        must(not actor.units.holding, f"{site} counts units as held: {actor.units.holding}")
        if site not in self.world.changed_units:
            self._check_offered(site, named)
        for type_ in self.scenario.sites[site]:
            table = actor.calendars.of(type_)
            must(table.reserved_at(actor.now) == 0, f"{site}'s calendar holds {table.reserved_at(actor.now)}")
            free_units = [
                unit["unit"]
                for unit in rows
                if unit["type"] == type_ and unit["state"] == "free" and unit["unit"] not in held_back
            ]
            classes = Counter(self.world.class_of(site, unit) for unit in free_units)
            if site in self.world.changed_units:  # what they were counts as long as claims may count it
                classes = Counter(class_ for unit in free_units for class_ in actor.units[unit].classes)
            free = actor.units.inventory.weigh(type_, classes).total()
            there = table.capacity_at(actor.now)
            must(there == free, f"{site}: {free} units of {type_} are free, its calendar counts {there}")
            if site not in self.world.changed_units:
                self._check_withheld(site, type_)

    def _check_withheld(self, site: str, type_: str) -> None:
        """Brokers grant nothing of what is out of service at their site, and that it can't spare; all else they may."""
        shares = [one for one in self.world.shares if (one.site, one.type, one.issuer) == (site, type_, "")]
        if any(one.broker in (ROGUE, *self.liars) or one.degree != DEGREE_ONE for one in shares):
            return
        elsewhere = (Code.MAINTENANCE, Code.DRAINED, Code.NOT_IN_INVENTORY)
        known = self.world.actor(site).units
        units = [one for one in known if one.type == type_ and one.id in known.inventory]
        out = sum(one.retire is not None and one.retire.code not in elsewhere for one in units)
        held = [
            source
            for broker in {one.broker for one in shares}
            for source in self.world.actor(broker).book.of_type(type_)
            if source.peer == site and source.term.start <= self.world.clock(broker) < source.grants_until
        ]
        given = sum(decode_ticket(source.ticket).leaf.capacity for source in held)
        told = sum(one.units for source in held for one in source.withheld if one.window == OUT)
        lacks = out - max(0, self.world.size(site, type_) - given)
        must(lacks <= told <= out, f"{site}: {out} of {type_} are out, {lacks} of them given; brokers heard of {told}")

    def _check_offered(self, site: str, named: Set[str]) -> None:
        """What brokers hold counts no more units of a class than the site's file names, where it gives no more than it
        names.
        """
        there = Counter(self.world.class_of(site, unit).hex() for unit in named)
        shares = [share for share in self.world.shares if share.site == site and not share.issuer]
        if sum(share.units for share in shares) > len(named) or any(share.degree != DEGREE_ONE for share in shares):
            return
        for row in self.world.query(site, "delegations"):
            for one in row["classes"] if row["state"] == "held" else ():
                most = there[one["class"]]
                must(one["units"] <= most, f"{site}: {row['delegation']} counts {one}, there are {most}")

    def _check_usable(self) -> None:
        """Whoever asks for all units of a site that a broker has gets them."""
        world, guest = self.world, self.scenario.guests[0]
        for share in self.world.shares:
            of_type = [one for one in world.shares if (one.site, one.type, one.issuer) == (share.site, share.type, "")]
            whole = of_type == [share] and share.units == world.size(share.site, share.type) and share.degree == 1000
            held = {row["state"] for row in world.query(share.site, "delegations")} == {"held"}
            alone = all(other.issuer != share.broker for other in self.world.shares)
            rows = world.query(share.site, "units")
            free = sum(unit["state"] == "free" for unit in rows if unit["type"] == share.type)
            # Brokers don't know of which class a unit is that failed.
            whole = whole and (free == share.units or world.racks(share.type) == 1)
            alone = alone and not world.actor(share.site).issued.overrides
            # A host on which something could not be torn down counts as free, and takes nothing.
            whole = whole and not any(one.left for one in world.actor(share.site).units.machines)
            known = share.site in world.actor(guest).peers  # else a broker makes it known with the first ticket
            limited = self.scenario.mappers.get(share.broker) == "quotas"
            limited = limited or self._deals_with_liars(share)
            if not (whole and held and alone and free and known) or limited or share.length < 100 * HOUR:
                continue
            term = [world.clock(guest) + 10 * SECOND, world.clock(guest) + HOUR]
            made = world.command(
                guest, "lease.request", type=share.type, units=free, term=term, site=share.site, broker=share.broker
            )
            must(not made.error, f"{guest} can't ask for {free} units of {share.site}: {made.error}")
            world.run_until(world.now + 3 * MINUTE)
            lease = world.query(guest, "lease", lease=made.result["id"])
            fine = lease["state"] == sm.ACTIVE and len(lease["units"]) == free
            must(fine, f"{share.site}: {free} units are free: {lease['id']} is {lease['state']}: {lease['reason']}")

    def result(self) -> Result:
        """The figures of the run so far."""
        world = self.world
        met = Counter(world.met)
        for kind, count in world.kinds.items():
            met[f"message {kind.__name__}"] += count
        met["delegation renewed"] = sum("#" in source.name for source in self.checkers.claims.sources.values())
        met.update(self.checkers.plans.met)
        met["tickets that go on from each other"] = self.checkers.claims.joined
        for role, before, event in self.checkers.states.met:
            met[transition(role, before, event)] += 1
        return Result(
            seed=self.scenario.seed, steps=world.steps, events=world.events, requests=self.work.requests,
            lease_ms=self.checkers.states.lease_ms, virtual_ms=world.now, met=met, injected=tuple(world.injected),
        )  # fmt: skip


def transition(role: str, before: str, event: str) -> str:
    """The mark of a row of a table."""
    return f"{role}: {before} {event}"


def _line(share: Share) -> str:
    """How an issuer calls what it gives."""
    return f"{share.issuer or share.site}/{share.type}@{share.broker}" + (f"/{share.site}" if share.issuer else "")


def _is_source(share: Any, source: Any, broker: str) -> bool:
    return bool(share.broker == broker and share.site == source["site"] and share.type == source["type"])


def simulate(scenario: Scenario) -> Result:
    """Run a scenario; what goes wrong becomes the result's failure."""
    return _simulate(scenario, None)


def _simulate(scenario: Scenario, watch: Callable[[Run], None] | None) -> Result:
    run: Run | None = None
    failure: Failure | None = None
    try:
        run = Run(scenario)
        if watch is not None:
            watch(run)
        run.go()
    except Exception as error:  # noqa: BLE001 - whatever an actor raises is what is looked for
        failure = _failure(scenario, run, error)
    if run is None:
        return Result(seed=scenario.seed, failure=failure)
    result = run.result()
    result.failure = failure
    run.world.close()
    return result


def _checkers(world: FaultyWorld, hostile_tag: str) -> Checkers:
    """The checkers of a world, by who is there and which mappers they have."""
    scenario, mappers = world.scenario, world.scenario.mappers
    # What a mapper that runs apart decides may be right no more when its actor hears of it: then it says so.
    # So it is of one whose holder, or site, was forgotten meanwhile.
    apart = frozenset(scenario.actors if scenario.forgets else scenario.apart)
    plain = [n for n in scenario.brokers if n not in apart and mappers.get(n, "fcfs") in ("fcfs", "mischief")]
    first_fit = [n for n in scenario.sites if n not in apart and mappers.get(n, "first_fit") == "first_fit"]
    planning = [n for n in scenario.sites if mappers.get(n, "first_fit") in ("first_fit", "slow_site")]
    return Checkers(
        world.role,
        world.clock,
        world.keys,
        now=lambda: world.now,
        comes_late=lambda sender, lease: (
            WAITED if world.delayed == sender or scenario.forgets else AGAIN if (sender, lease) in world.again else ""
        ),
        sites=scenario.sites,
        guests=frozenset(scenario.guests),
        fcfs=frozenset(plain if not scenario.timing.gather and not scenario.links else ()),
        first_fit=frozenset(first_fit),
        retention=scenario.timing.retention,
        leave_time=scenario.timing.leave_time,
        defer_max=scenario.timing.defer_max,
        rogue=world.key(ROGUE),
        is_rogue=scenario.rogue,
        has_liars=bool(scenario.liars),
        hostile_tag=hostile_tag,
        class_of=world.class_of,
        attributes=world.attributes(),
        planning=frozenset(planning),
        wilful=apart.union(name for name, kind in mappers.items() if kind in WILFUL),
    )


def _failure(scenario: Scenario, run: Run | None, error: Exception) -> Failure:
    frames = traceback.extract_tb(error.__traceback__)
    kind = "error"
    if isinstance(error, LivelockError):
        kind = "livelock"
    elif isinstance(error, Violated):
        kind = _found_by(error)
    text = str(error) if isinstance(error, Violated | LivelockError) else f"{type(error).__name__}: {error}"
    named = LEASE.search(text)
    last = frames[-1] if frames else None
    return Failure(
        seed=scenario.seed, kind=kind, text=text, at=run.world.now if run else 0, step=run.world.steps if run else 0,
        phase=run.phase if run else "start", lease=named[0] if named else "",
        where="" if last is None or kind != "error" else f"{last.filename.rpartition('/')[2]}:{last.lineno}",
    )  # fmt: skip


_BY_FILE: Final = {"stores": "disk", "twins": "restarts"}
"""What a failure is called that no checker's method finds."""


def _found_by(error: Violated) -> str:
    """What the failure is called: by the innermost checker that was asked."""
    for frame, _ in reversed(list(traceback.walk_tb(error.__traceback__))):
        asked = frame.f_locals.get("self")
        kind = asked.kind if isinstance(asked, Listening) else ""
        if found := kind or _BY_FILE.get(Path(frame.f_code.co_filename).stem):
            return found
    return "liveness"


# -- telling what happened ---------------------------------------------------------------------------------------------


class Trace(Listening):
    """One line for each event that concerns one lease (or, without one, for each fault)."""

    def __init__(self, world: FaultyWorld, lease: str) -> None:
        super().__init__()
        self._world, self._lease = world, lease
        self.lines: list[str] = []
        world.trace = self._fault

    def hear_all(self) -> None:
        """Hear every message that is sent or received from now on."""
        everything = _Every(self._sent)
        self.sends = everything
        self.receives = _Every(self._received)

    def _line(self, text: str) -> None:
        self.lines.append(f"{self._world.now:>9} {text}")

    def _fault(self, key: str) -> None:
        # What becomes of frames shows in what is sent and never got; other leases' commands don't matter.
        if not self._lease or not key.startswith(("net ", "operation ")):
            self._line(f"  fault   {key}")

    def committed(self, at: Instant, actor: str, rows: Sequence[Row]) -> None:
        """Transitions of the lease."""
        for _, subject, event, before, after, why in rows:
            if subject == self._lease:
                self._line(f"{actor:<9} {event}: {before or '-'} -> {after or '-'} {words(read(why))}".rstrip())

    def _sent(self, at: Instant, sender: str, receiver: str, message: Any) -> None:
        if getattr(message, "lease", "") == self._lease:
            self._line(f"{sender:<9} sends {receiver} {_brief(message)}")

    def _received(self, at: Instant, sender: str, receiver: str, message: Any) -> None:
        if getattr(message, "lease", "") == self._lease:
            self._line(f"{receiver:<9} gets from {sender} {_brief(message)}")

    def started(self, at: Instant, actor: str, action: Action) -> None:
        """Actions for the lease."""
        if action.lease == self._lease:
            self._line(f"{actor:<9} starts {action.op} of {action.unit}, action {action.number}")

    def ended(self, at: Instant, actor: str, done: ActionDone) -> None:
        """Ends of actions at units of guests' leases; a site's units are not told apart by lease."""
        if done.unit.startswith(f"{self._lease}/"):
            self._line(f"{actor:<9} hears that {done.unit} {'is done' if done.ok else done.reason}")

    def restarted(self, at: Instant, actor: str, made: Any) -> None:
        """Restarts of anybody."""
        self._line(f"{actor:<9} is made anew from its store")


class _Every(dict[type[Any], Any]):
    """The same handler for every kind of message."""

    def __init__(self, handler: Any) -> None:
        super().__init__()
        self._handler = handler

    def get(self, key: Any, default: Any = None) -> Any:
        return self._handler


def _brief(message: Any) -> str:
    fields = []
    for name, value in asdict(message).items():
        if name == "lease" or value in (b"", "", (), {}, -1):
            continue
        shown = (
            f"<{len(value)} bytes>"
            if isinstance(value, bytes)
            else str(value)
            if name != "units" or isinstance(value, int)
            else " ".join(unit.unit for unit in value)
        )
        fields.append(f"{name}={shown}")
    return f"{type(message).__name__}({', '.join(fields)})"


def explain(scenario: Scenario, failure: Failure, replay: str) -> str:
    """The failure in words: what, when, a line for each event of the lease concerned, and how to run it again.

    The run is repeated for it, with somebody who writes it down.
    """
    traces: list[Trace] = []

    def watch(run: Run) -> None:
        trace = Trace(run.world, failure.lease)
        trace.hear_all()
        run.world.attach(trace, first=True)
        traces.append(trace)

    again = _simulate(scenario, watch).failure
    lines = traces[0].lines if traces else []
    head = [
        f"seed {failure.seed}: {failure.kind} ({failure.phase} phase, step {failure.step}, at {failure.at} ms)",
        f"  {failure.text}",
    ]
    if failure.where:
        head.append(f"  raised in {failure.where}")
    if failure.lease:
        head.append(f"what became of lease {failure.lease}:")
    if again is None or again.text != failure.text:
        head.append(f"  (run again it was: {again.text if again else 'no failure'})")
    return "\n".join([*head, *lines[-400:], f"run it again: {replay}"])
