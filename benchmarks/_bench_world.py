"""Three production actors in one process, for benchmarks: the virtual-time shell with no delays and null drivers."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from typing import Any

from leasekit.actors.broker.broker import Broker
from leasekit.actors.guest.service_manager import ServiceManager
from leasekit.actors.settings import AuthoritySettings, DelegationSpec, Peer, UnitGroup
from leasekit.actors.site.authority import Authority
from leasekit.core.claims.signed import ED25519, UNSIGNED, Keypair, Signer, UnsignedIdentity
from leasekit.core.schema import Store
from leasekit.core.steps import Command
from leasekit.core.time import DAY
from leasekit.emulation.world import World
from leasekit.policies.authority.first_fit import FirstFit
from leasekit.policies.broker.fcfs import Fcfs
from leasekit.policies.guest.manual import Manual
from leasekit.stores.memory import MemoryStore

GUEST, BROKER, SITE = "guest", "broker", "site"
ROLES = {GUEST: "guest", BROKER: "broker", SITE: "authority"}
START = 1000


def build(units: int, *, signed: bool, classes: int = 1) -> dict[str, Any]:
    """The three actors by name; the site has that many units of type ``vm``, all of them delegated, in so many classes:
    those of one have the attribute ``rack``, counted from 0, where there are several.
    """
    keys: dict[str, Signer] = {
        name: Keypair(bytes([index]) * 32) if signed else UnsignedIdentity(name)
        for index, name in enumerate(ROLES, start=1)
    }
    scheme = ED25519 if signed else UNSIGNED
    peers = {name: Peer(name=name, key=keys[name].public, role=role) for name, role in ROLES.items()}
    names = tuple(f"vm-{number}" for number in range(units))
    racks = [{"rack": str(rack)} for rack in range(classes)] if classes > 1 else [{}]
    groups = [UnitGroup(type="vm", names=names[rack::classes], own=own) for rack, own in enumerate(racks)]
    site = AuthoritySettings(
        inventory=tuple(groups),
        delegations=(DelegationSpec(broker=BROKER, type="vm", units=units),),
    )
    return {
        GUEST: ServiceManager(GUEST, keys[GUEST], scheme, [peers[BROKER], peers[SITE]], Manual()),
        BROKER: Broker(BROKER, keys[BROKER], scheme, [peers[GUEST], peers[SITE]], Fcfs()),
        SITE: Authority(SITE, keys[SITE], scheme, [peers[GUEST], peers[BROKER]], FirstFit(), site),
    }


def world(actors: Mapping[str, Any], store: Callable[[str], Store] = lambda name: MemoryStore()) -> World:
    """The actors in a world, with the site's delegation taken by the broker."""
    made = World()
    for name, actor in actors.items():
        made.add(actor, store(name))
    made.run_until(START)
    return made


def lease(made: World, count: int, in_flight: int, there: int = 0, racks: int = 0) -> None:
    """Request ``count`` one-unit leases on top of those that are ``there``, ``in_flight`` at a time, and see all
    active. With ``racks`` each asks for units of one of so many, in turn.
    """
    arguments = {"type": "vm", "units": 1, "term": [START, START + 30 * DAY]}
    asked = [{**arguments, "properties": {"filter": f"rack == {rack}"}} for rack in range(racks)] or [arguments]
    for first in range(there, there + count, in_flight):
        numbers = range(first + 1, min(first + in_flight, there + count) + 1)
        made.feed(GUEST, [Command(number, "lease.request", asked[number % len(asked)]) for number in numbers])
        made.run_until(made.now + 100)
        made.replies.clear()
    states = made.query(GUEST, "status")["leases"]
    if states != {"active": there + count}:
        raise RuntimeError(f"not every lease became active: {states}")


def tune_gc() -> None:
    """As emulations do: the actors' records are not garbage, so look for cycles among them rarely."""
    gc.set_threshold(50_000, 50, 100)
