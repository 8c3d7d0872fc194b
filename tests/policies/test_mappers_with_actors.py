"""The standard mappers, called by the real actors in virtual time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import attrs
import pytest

from leasekit.actors.broker.broker import Broker
from leasekit.actors.guest.service_manager import ServiceManager
from leasekit.actors.settings import AuthoritySettings, BrokerSettings, DelegationSpec, Peer, UnitGroup
from leasekit.actors.site.authority import Authority
from leasekit.core.claims.signed import UNSIGNED, UnsignedIdentity
from leasekit.core.mappers import GuestMapper
from leasekit.core.settings import structure
from leasekit.core.signals import Signal
from leasekit.core.time import HOUR, MINUTE, SECOND, Instant
from leasekit.emulation.world import World
from leasekit.policies.authority.first_fit import FirstFit
from leasekit.policies.guest.load_following import LoadFollowing, LoadFollowingSettings
from leasekit.policies.guest.manual import Manual
from leasekit.policies.guest.static import StaticDemand, StaticSettings
from leasekit.policies.registry import BUILT_IN, make_mapper
from leasekit.stores.memory import MemoryStore

SITES = ("east", "west")
DELAY = 20
READY = 1000


class Town(World):
    """Sites of ten units each, a broker over them, and guests with mappers of their own."""

    def __init__(
        self,
        guests: Mapping[str, GuestMapper],
        priorities: dict[str, int] | None = None,
        sites: tuple[str, ...] = SITES,
        policy: str = "fcfs",
        **policy_settings: Any,
    ) -> None:
        super().__init__(delay=lambda sender, receiver: 2 * DELAY if sender == "web" else DELAY)
        roles = {"broker": "broker", **dict.fromkeys(sites, "authority"), **dict.fromkeys(guests, "guest")}
        keys = {name: UnsignedIdentity(name) for name in roles}
        peers = [Peer(name=name, key=keys[name].public, role=role) for name, role in roles.items()]

        def others(name: str) -> list[Peer]:
            return [peer for peer in peers if peer.name != name]

        for site in sites:
            settings = AuthoritySettings(
                inventory=(UnitGroup(type="vm", names=tuple(f"{site}-{number}" for number in range(10))),),
                delegations=(DelegationSpec(broker="broker", type="vm", units=10),),
            )
            self.add(Authority(site, keys[site], UNSIGNED, others(site), FirstFit(), settings), MemoryStore())
        broker = BrokerSettings(priorities=priorities or {})
        arbiter = make_mapper(policy, "broker", policy_settings, "mapper", {})
        self.add(Broker("broker", keys["broker"], UNSIGNED, others("broker"), arbiter, broker), MemoryStore())
        self.run_until(READY)
        for name, mapper in guests.items():
            self.add(ServiceManager(name, keys[name], UNSIGNED, others(name), mapper), MemoryStore())

    def leases(self, guest: str = "guest", every: bool = False) -> list[dict[str, Any]]:
        """The guest's leases as it knows them."""
        found: list[dict[str, Any]] = self.query(guest, "leases", all=every)
        return found

    def held(self, guest: str = "guest") -> int:
        """Units of active leases."""
        return sum(lease["units"] for lease in self.leases(guest) if lease["state"].startswith("active"))

    def lease(self, **arguments: Any) -> str:
        """A lease that the operator of ``guest`` asks for; its id."""
        reply = self.command("guest", "lease.request", type="vm", **arguments)
        assert not reply.error, reply.error
        self.run_until(self.now + SECOND)
        return str(reply.result["id"])

    def complaints(self) -> list[str]:
        """What actors said of decisions that they couldn't carry out."""
        actors: Iterable[Any] = [node.actor for node in self.nodes.values()]
        return [text for actor in actors for text in actor.errors]


def static(*demands: dict[str, Any]) -> StaticDemand:
    return StaticDemand(structure(StaticSettings, {"demands": demands}, "mapper"))


def following(values: list[float], **settings: Any) -> LoadFollowing:
    load = Signal([(index * 5 * MINUTE, value) for index, value in enumerate(values)])
    defaults = {"type": "vm", "term": "1h", "smooth": False}
    return LoadFollowing(structure(LoadFollowingSettings, {**defaults, **settings}, "mapper"), signal=load)


def test_a_static_demand_is_held_for_a_day_without_a_complaint() -> None:
    """An extended lease stays one lease, one that is followed anew leaves no gap, and no decision is refused."""
    extended = {"type": "vm", "units": 4, "term": "1h", "name": "kept"}
    anew = {"type": "vm", "units": 3, "term": "30m", "name": "fresh", "renew": "anew"}
    town = Town({"guest": static(extended, anew)})
    town.run_until(READY + MINUTE)
    for _ in range(24 * 12):
        town.run_until(town.now + 5 * MINUTE)
        names = [lease["name"].partition(".")[0] for lease in town.leases() if lease["state"].startswith("active")]
        assert {"kept", "fresh"} <= set(names)
    assert len([lease for lease in town.leases(every=True) if lease["name"].startswith("kept")]) == 1
    assert town.complaints() == []


@pytest.mark.parametrize("renew", ["expire", "extend"])
def test_a_load_is_followed_over_two_sites(renew: str) -> None:
    """A constant load beyond one site is held in full, half a minute after each end of terms at the latest."""
    town = Town({"guest": following([17.0], renew=renew)})
    town.run_until(30 * SECOND)
    for _ in range(3 * 60):
        assert town.held() == 17
        town.run_until(town.now + MINUTE)
    assert {lease["site"] for lease in town.leases()} == set(SITES)
    assert town.complaints() == []


def test_extends_follow_the_load_both_ways() -> None:
    """With extends the holdings are those of the load once it has been steady for a term."""
    hours = [6.0] * 30 + [14.0] * 30 + [3.0] * 30
    town = Town({"guest": following(hours, renew="extend")})
    for index in (30, 60, 90):
        town.run_until(index * 5 * MINUTE - SECOND)
        assert town.held() == hours[index - 1]
    assert town.complaints() == []


@pytest.mark.parametrize(("gather", "batch", "web"), [(SECOND, 4, 6), (0, 10, 0)])
def test_priority_decides_between_requests_of_a_round(gather: int, batch: int, web: int) -> None:
    """Of two guests that ask at one instant, the higher class goes first if the broker gathers, else the nearer one."""
    guests = {"batch": following([10.0], term="30m"), "web": following([0.0] * 6 + [6.0], term="30m")}
    town = Town(guests, {"web": 5}, sites=("east",), gather=gather)
    town.run_until(20 * MINUTE)
    assert (town.held("batch"), town.held("web")) == (10, 0)
    town.run_until(40 * MINUTE)
    assert (town.held("batch"), town.held("web")) == (batch, web)


@pytest.mark.parametrize(("most", "first"), [(0, "batch"), (4, "batch"), (5, "web")])
def test_a_priority_counts_as_far_as_its_holder_may(most: int, first: str) -> None:
    """Batch asks first, for a class of 4; web for one of 9, of which counts what the broker lets it."""
    town = Town({"batch": Manual(), "web": Manual()}, sites=("east",), gather=SECOND)
    broker: Any = town.nodes["broker"].actor
    for guest, may, asked in (("batch", 5, 4), ("web", most, 9)):
        broker.keyring.peers[guest] = attrs.evolve(broker.keyring.peers[guest], priority_max=may)
        properties = {"priority": str(asked)}
        town.command(guest, "lease.request", type="vm", units=10, term=term(town.now, 1), properties=properties)
    town.run_until(town.now + 10 * SECOND)
    assert [guest for guest in ("batch", "web") if town.held(guest)] == [first]


def term(start: Instant, hours: float) -> list[int]:
    return [start, start + int(hours * HOUR)]


def test_a_modify_is_granted_from_what_the_lease_holds() -> None:
    """On a full site a lease can shrink, but grow only into what it gave up before."""
    town = Town({"guest": Manual()})
    first = town.lease(units=6, site="east", term=term(town.now, 4))
    town.lease(units=4, site="east", term=term(town.now, 4))
    units = {}
    for wanted in (7, 3, 5):
        town.command("guest", "lease.modify", lease=first, units=wanted)
        town.run_until(town.now + MINUTE)
        units[wanted] = next(lease["units"] for lease in town.leases() if lease["id"] == first)
    assert units == {7: 6, 3: 3, 5: 5}
    assert town.complaints() == []


def test_a_modify_that_does_not_fit_is_refused_at_once_and_in_words() -> None:
    """The refusal says what could be had; it doesn't wait for the request's time to run out."""
    town = Town({"guest": Manual()})
    first = town.lease(units=6, site="east", term=term(town.now, 1))
    town.lease(units=8, site="east", term=term(town.now + 2 * HOUR, 4))
    town.command("guest", "lease.modify", lease=first, end=town.now + 3 * HOUR)
    town.run_until(town.now + SECOND)
    (lease,) = [lease for lease in town.leases() if lease["id"] == first]
    assert (lease["state"], lease["pending"]) == ("active", "-")
    assert "2 to be had at east with the 6 that the lease holds there" in lease["reason"]


def test_a_group_over_both_sites_starts_together() -> None:
    """Requests of 8, 8 and 2 units are granted in one turn, once the last has arrived."""
    town = Town({"guest": Manual()})
    when = term(town.now + MINUTE, 1)
    for index, units in enumerate((8, 8, 2)):
        leader = {"lease_count": "3"} if index == 0 else {}
        town.lease(units=units, term=when, properties={"group_id": "g", **leader})
    states = {(lease["state"], lease["units"]) for lease in town.leases()}
    assert states == {("ticketed", 8), ("ticketed", 2)}
    town.run_until(town.now + 5 * MINUTE)
    assert town.held() == 18
    assert town.complaints() == []


@pytest.mark.parametrize("policy", sorted(BUILT_IN["broker"]))
def test_every_mapper_holds_a_demand_and_a_load(policy: str) -> None:
    """Under each of the broker's mappers a demand is held for hours, and every decision can be carried out."""
    kept = static({"type": "vm", "units": 4, "term": "1h", "name": "kept"})
    town = Town({"guest": kept, "load": following([5.0, 9.0], renew="extend")}, policy=policy)
    town.run_until(READY + MINUTE)
    for _ in range(24):
        town.run_until(town.now + 5 * MINUTE)
        assert town.held() == 4
    assert town.held("load") == 9
    assert town.complaints() == []


@pytest.mark.parametrize(
    ("policy", "settings", "overtakes"),
    [
        ("fcfs", {"backfill": False}, False),
        ("backfill", {}, True),
        ("backfill", {"mode": "conservative"}, True),
        ("priority", {"order": "smallest"}, True),
    ],
)
def test_what_waits_starts_when_it_can(policy: str, settings: dict[str, Any], overtakes: bool) -> None:
    """A large request waits for the end of a lease of an hour; a small one goes first unless order is strict."""
    town = Town({"guest": Manual()}, sites=("east",), policy=policy, **settings)
    town.lease(units=7, term=term(town.now, 1), name="first")
    wait = {"deferrable": "true", "latest_start": str(town.now + 6 * HOUR)}
    for name, units in (("big", 8), ("small", 2)):
        town.lease(units=units, term=term(town.now, 0.5), name=name, properties=wait)
    starts: dict[str, Instant] = {}
    while len(starts) < 2 and town.now < 5 * HOUR:
        town.run_until(town.now + MINUTE)
        for lease in town.leases(every=True):
            if lease["name"] in ("big", "small") and lease["state"].startswith("active"):
                starts.setdefault(lease["name"], town.now)
    assert starts["big"] >= HOUR
    assert (starts["small"] < HOUR) is overtakes
    assert town.complaints() == []


def test_a_lease_that_ends_early_lets_the_next_one_start() -> None:
    """What a guest gives back is of use to who waits, at once and not only at the end of its term."""
    town = Town({"guest": Manual()}, sites=("east",), policy="backfill")
    first = town.lease(units=10, term=term(town.now, 4), name="first")
    wait = {"deferrable": "true", "latest_start": str(town.now + 6 * HOUR)}
    second = town.lease(units=8, term=term(town.now, 1), properties=wait)
    town.run_until(town.now + MINUTE)
    town.command("guest", "lease.close", lease=first)
    town.run_until(town.now + MINUTE)
    (lease,) = [lease for lease in town.leases() if lease["id"] == second]
    assert lease["state"].startswith("active")
    assert town.complaints() == []


def test_a_quota_and_a_filter_are_told_to_the_guest() -> None:
    """The reason of a refusal reaches who asked, in words."""
    town = Town({"guest": Manual()}, policy="timetable", quotas=[{"units": 5}])
    town.lease(units=4, term=term(town.now, 1))
    town.lease(units=4, term=term(town.now, 1), name="much")
    town.lease(units=1, term=term(town.now, 1), name="picky", properties={"filter": "memory_mb >= 1"})
    said = {lease["name"]: lease["reason"] for lease in town.leases(every=True)}
    assert "guest's quota of 'vm' is 5 units at once" in said["much"]
    assert "unknown attribute 'memory_mb', known are: site, type" in said["picky"]
