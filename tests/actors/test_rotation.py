"""Actors that change their key: what the old key holds goes on, until its last term ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from deployed_world import CHAIN, DeployedWorld

from leasekit.actors.base import Actor
from leasekit.core.claims.claim import decode_ticket
from leasekit.core.claims.signed import Keypair, key_tag, succeed
from leasekit.core.time import DAY, HOUR, MINUTE, SECOND

RENEWED = CHAIN.replace('length = "1d"', 'length = "2h"\nrenew = "30m"').replace(
    'length = "12h"', 'length = "90m"\nrenew = "20m"\nrenew_for = "1h"'
)
KNOWN = {
    "site": ("upper", "lower", "web", "batch"), "upper": ("site", "lower", "batch", "web"),
    "lower": ("upper", "site", "web"), "web": ("lower", "site"),
}  # fmt: skip
"""Who is told when an actor changes its key."""


class Rotating:
    """Gives actors their new keys when they are built anew."""

    def __init__(self) -> None:
        self.keys: dict[str, tuple[Keypair, Any, int]] = {}

    def __call__(self, name: str, actor: Actor) -> Actor:
        if name in self.keys:
            new, old, until = self.keys[name]
            actor.keyring.signer, actor.keyring.tag = new, key_tag(new.public)
            actor.keyring.had_before(old, until)
        return actor

    def rotate(self, world: DeployedWorld, name: str, until: int = 7 * DAY) -> Keypair:
        """``name`` stops, all who know it obey its succession, and it comes back with its new key."""
        old: Any = world.nodes[name].actor.signer  # type: ignore[attr-defined]
        new = Keypair(f"new key of {name}".encode().ljust(32)[:32])
        text = succeed(old, new, name, 0, until).encode().hex()
        for other in KNOWN[name]:
            reply = world.command(other, "peer.succeed", name=name, succession=text)
            assert not reply.error, reply.error
        self.keys[name] = (new, old, until)
        world.restart(name)
        world.pass_time(SECOND)
        return new


@pytest.fixture
def rotating() -> Rotating:
    return Rotating()


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("name", ["site", "upper", "lower", "web"])
def test_leases_under_the_old_key_go_on(tmp_path: Path, rotating: Rotating, name: str, restarted: bool) -> None:
    """Whoever in the chain changes its key: a lease is extended, modified and closed, its units go back with receipts
    that are believed, a new one is granted, and nobody is blamed.
    """
    world = DeployedWorld(CHAIN, tmp_path, make=rotating)
    lease = world.request("web", 2, 10 * SECOND, 10 * MINUTE)
    ahead = world.request("web", 1, HOUR, 2 * HOUR)
    world.pass_time(MINUTE)
    rotating.rotate(world, name)
    for other in ("site", "upper", "lower", "web") if restarted else ():
        world.restart(other)
    world.pass_time(MINUTE)
    assert not world.command("web", "lease.extend", lease=lease, end=20 * MINUTE).error
    world.run_until(11 * MINUTE)
    assert (world.lease("web", lease)["state"], world.lease("web", lease)["end"]) == ("active", 20 * MINUTE)
    assert not world.command("web", "lease.modify", lease=lease, units=1, end=19 * MINUTE).error
    world.pass_time(MINUTE)
    assert len(world.lease("site", lease)["units"]) == 1, world.lease("web", lease)["reason"]
    new = world.request("web", 2, world.now + 10 * SECOND, HOUR)
    world.pass_time(MINUTE)
    assert world.lease("web", new)["state"] == "active", world.lease("web", new)["reason"]
    for one in (lease, new, ahead):
        world.command("web", "lease.close", lease=one)
    world.pass_time(2 * MINUTE)
    assert world.query("web", "returns") == []
    table = world.broker("lower").book.table("upper/vm@lower")
    assert [table.free_at(at) for at in (world.now, 90 * MINUTE)] == [4, 4]
    assert world.query("site", "evidence") == []


@pytest.mark.parametrize("name", ["site", "upper", "lower"])
def test_stretches_to_come_are_the_new_keys(tmp_path: Path, rotating: Rotating, name: str) -> None:
    """What is renewed after the change names the new key; a lease is extended out of the old key's time into it; and
    the old key may come to its end then.
    """
    world = DeployedWorld(RENEWED, tmp_path, make=rotating)
    world.run_until(30 * MINUTE)
    old = world.nodes[name].actor.signer.public  # type: ignore[attr-defined]
    new = rotating.rotate(world, name, until=3 * HOUR)
    world.run_until(100 * MINUTE)
    lease = world.request("batch", 2, world.now + 10 * SECOND, 110 * MINUTE)
    below = world.request("web", 2, world.now + 10 * SECOND, 110 * MINUTE)
    world.run_until(105 * MINUTE)
    for guest, one in (("batch", lease), ("web", below)):
        assert not world.command(guest, "lease.extend", lease=one, end=119 * MINUTE).error
    world.run_until(115 * MINUTE)
    for guest, one in (("batch", lease), ("web", below)):
        assert not world.command(guest, "lease.extend", lease=one, end=150 * MINUTE).error
    world.run_until(149 * MINUTE)
    keys: set[bytes] = set()
    for guest, one in (("batch", lease), ("web", below)):
        assert world.lease(guest, one)["state"] == "active", (guest, world.lease(guest, one)["reason"])
        assert len(world.lease("site", one)["units"]) == 2
        held = world.guest(guest).leases[one].approved
        assert held is not None
        keys.update(claim.issuer for claim in decode_ticket(held.ticket).chain)
    assert new.public in keys and old not in keys
    world.run_until(5 * HOUR)
    last = world.request("web", 3, world.now + 10 * SECOND, world.now + 10 * MINUTE)
    world.pass_time(MINUTE)
    assert world.lease("web", last)["state"] == "active", world.lease("web", last)["reason"]
    assert world.query("site", "evidence") == []


def test_an_old_key_comes_to_an_end(tmp_path: Path, rotating: Rotating) -> None:
    """What the old key of a broker has cut after the time for which it is honoured counts for nothing."""
    world = DeployedWorld(CHAIN, tmp_path, make=rotating)
    world.pass_time(MINUTE)
    rotating.rotate(world, "lower", until=10 * MINUTE)
    lease = world.request("web", 1, world.now + 10 * SECOND, HOUR)
    world.pass_time(MINUTE)
    assert world.lease("web", lease)["state"] == "active"
    world.run_until(11 * MINUTE)
    late = world.request("web", 1, world.now + 10 * SECOND, HOUR)
    world.pass_time(2 * MINUTE)
    assert world.lease("web", late)["state"] == "failed"


@pytest.mark.parametrize("name", ["site", "upper"])
def test_a_delegation_of_the_old_key_is_taken_back(tmp_path: Path, rotating: Rotating, name: str) -> None:
    """The issuer with its new key takes back what the old one gave: holder and site believe it."""
    world = DeployedWorld(CHAIN, tmp_path, make=rotating)
    world.pass_time(MINUTE)
    rotating.rotate(world, name)
    (row,) = world.query(name, "delegations")
    assert row["state"] == "held"
    assert not world.command(name, "delegation.reclaim", delegation=row["delegation"]).error
    world.pass_time(MINUTE)
    assert world.query(name, "delegations")[0]["state"] == "reclaimed"
    if name == "upper":
        assert sum(one["free_now"] for one in world.query("upper", "sources")) == 6


def test_nothing_is_given_again_while_a_store_is_taken_up(tmp_path: Path, rotating: Rotating) -> None:
    """A site that knows several peers by other keys than its file says has the same delegations after each restart."""
    world = DeployedWorld(CHAIN, tmp_path, make=rotating)
    for name in ("lower", "upper"):
        rotating.rotate(world, name)
    given = world.query("site", "delegations")
    log = len([row for row in world.nodes["site"].store.log() if row.event == "delegate"])
    for _ in range(2):
        world.restart("site")
        world.pass_time(SECOND)
        assert world.query("site", "delegations") == given
    assert len([row for row in world.nodes["site"].store.log() if row.event == "delegate"]) == log
