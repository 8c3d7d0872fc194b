"""Leases that are changed between their grant and their start: what the broker counts, and what the site takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from actors.test_hosts import MAPPERS, SMALL, ask, check_room, hosts, world_of
from deployed_world import DeployedWorld

from leasekit.core.claims.claim import decode_ticket
from leasekit.core.claims.signed import RELINQUISHMENT, state
from leasekit.core.leases import service_manager as sm
from leasekit.core.protocol.messages import NEW, ErrorReply, Redeem, Relinquish, TicketUpdate
from leasekit.core.steps import Command
from leasekit.core.time import HOUR, MINUTE, SECOND


def change(world: DeployedWorld, lease: str, guest: str = "web", **arguments: Any) -> dict[str, Any]:
    """What became of a modify, a second later."""
    reply = world.command(guest, "lease.modify", lease=lease, **arguments)
    assert not reply.error, reply.error
    world.pass_time(SECOND)
    return world.lease(guest, lease)


def free(world: DeployedWorld, units: int, start: int, end: int) -> bool:
    """Whether as many whole hosts could be had."""
    lease = world.request("batch", units, start, end, type="node")
    world.pass_time(SECOND)
    found = world.lease("batch", lease)["state"] != sm.FAILED
    if found:
        assert not world.command("batch", "lease.close", lease=lease).error
    world.pass_time(SECOND)
    return found


@pytest.mark.parametrize("mapper", MAPPERS)
def test_what_it_has_counts_as_free_for_it(tmp_path: Path, mapper: str) -> None:
    """All hosts are moved by half their term, and back, and fewer of them; what is left is others' when the site has
    the old ticket back.
    """
    world = world_of(tmp_path, mapper)
    now = world.now
    lease = ask(world, 3, now + HOUR, now + 3 * HOUR)["id"]
    assert not free(world, 1, now + HOUR, now + 2 * HOUR)
    moved = change(world, lease, start=now + 2 * HOUR)
    assert (moved["state"], moved["pending"]) == (sm.TICKETED, "-")
    assert moved["approved"]["term"] == [now + 2 * HOUR, now + 4 * HOUR]
    assert free(world, 3, now + HOUR, now + 2 * HOUR) and not free(world, 1, now + 3 * HOUR, now + 4 * HOUR)
    world.restart("broker")
    world.restart("web")
    assert not free(world, 1, now + 3 * HOUR, now + 4 * HOUR)
    shorter = change(world, lease, units=2, end=now + 3 * HOUR, start=now + HOUR)
    assert shorter["approved"]["units"] == 2 and free(world, 1, now + HOUR, now + 3 * HOUR)
    assert free(world, 3, now + 3 * HOUR, now + 4 * HOUR)
    refused = change(world, lease, units=9)
    assert refused["state"] == sm.TICKETED and refused["approved"] == shorter["approved"] and refused["reason"]
    world.run_until(now + HOUR + MINUTE)
    assert world.lease("web", lease)["state"] == sm.ACTIVE and hosts(world, lease).total() == 2
    error = world.command("web", "lease.modify", lease=lease, start=now + 2 * HOUR).error
    assert error == f"start: lease {lease} is active, it changes before a lease begins only"
    check_room(world)


def test_another_filter(tmp_path: Path) -> None:
    """It has units of other classes then; a filter that takes none is refused."""
    world = world_of(tmp_path)
    now = world.now
    lease = ask(world, 2, now + HOUR, now + 2 * HOUR, properties=SMALL, configuration={"size": "1"})["id"]
    refused = change(world, lease, filter="rack == x")
    assert refused["state"] == sm.TICKETED and refused["reason"]
    changed = change(world, lease, filter="rack == c", configuration={"size": "2"})
    assert changed["configuration"] == {"size": "2"} and not changed["reason"]
    world.run_until(now + HOUR + MINUTE)
    assert hosts(world, lease) == {"c": 2}
    check_room(world)


def test_what_can_not_be_changed(tmp_path: Path) -> None:
    """One clear message, and the ticket stays."""
    world = world_of(tmp_path)
    now = world.now
    lease = ask(world, 1, now + HOUR, now + 2 * HOUR)["id"]
    for arguments, words in (
        ({}, "nothing to modify"),
        ({"victims": ["a"]}, "victims: lease"),
        ({"start": now - HOUR}, "it must begin later than"),
        ({"end": now + HOUR // 2}, "term: found"),
        ({"units": 0}, "units"),
    ):  # fmt: skip
        assert words in world.command("web", "lease.modify", lease=lease, **arguments).error
    tried = [
        Command(900 + number, "lease.dry_run_modify", {"lease": lease, **arguments})
        for number, arguments in enumerate(({"units": 9}, {"start": now + 2 * HOUR, "units": 3}))
    ]
    world.feed("web", tried)
    world.pass_time(SECOND)
    assert [world.replies.pop(one.id).result["status"] for one in tried] == ["refused", "granted"]
    assert world.lease("web", lease)["approved"]["term"] == [now + HOUR, now + 2 * HOUR]


def test_a_site_takes_no_ticket_before_it_has_the_one_in_whose_place_that_is(tmp_path: Path) -> None:
    """A guest that keeps both has one of them: the new one is refused until the old one is back, and then that is."""
    world = world_of(tmp_path)
    now = world.now
    lease = ask(world, 2, now + HOUR, now + 2 * HOUR)["id"]
    (old,) = [one.ticket for one in world.letters(TicketUpdate, "broker", "web") if one.ticket]
    site = world.site()
    known = dict(site.claims.by_digest)
    change(world, lease, start=now + 90 * MINUTE)
    new = world.letters(TicketUpdate, "broker", "web")[-1]
    site.claims.by_digest.clear()  # as if the old ticket were on its way still
    site.claims.by_digest.update(known)

    def redeem(ticket: bytes, number: int) -> str:
        before = len(world.letters(ErrorReply, "site", "web"))
        world.receive("site", "web", Redeem(lease, number, NEW, "default", ticket, dict(new.properties), {}, (), b""))
        world.pass_time(SECOND)
        return "".join(one.reason.code for one in world.letters(ErrorReply, "site", "web")[before:])

    assert redeem(new.ticket, 40) == "replaces"
    signer = world.guest("web").keyring.signer
    leaf = decode_ticket(old).leaf
    note = state(signer, RELINQUISHMENT, leaf.digest, leaf.term.start, lease).encode()
    world.receive("site", "web", Relinquish(lease, 41, old, note))
    world.pass_time(SECOND)
    assert redeem(old, 42) == "returned"
    assert redeem(new.ticket, 43) == "" and lease in site.leases
