"""Ids that two keys share: what a server makes of them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from deployed_world import CHAIN, DeployedWorld
from msgspec.structs import replace

from leasekit.core.claims import signed
from leasekit.core.claims.signed import Keypair, key_tag
from leasekit.core.protocol.messages import Ack, CloseLease, ErrorReply, Redeem, RequestTicket
from leasekit.core.reasons import words
from leasekit.core.time import HOUR, MINUTE, SECOND, Term


@pytest.fixture
def short_tags(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Tags of two hex digits, which can be ground in no time."""
    monkeypatch.setattr(signed, "TAG_DIGITS", 2)
    key_tag.cache_clear()
    yield
    key_tag.cache_clear()


def twin_of(key: bytes) -> Keypair:
    """Another key with the tag of ``key``."""
    made = (Keypair(number.to_bytes(32, "big")) for number in count(1))
    return next(pair for pair in made if key_tag(pair.public) == key_tag(key))


def known_as(world: DeployedWorld, actor: str, name: str, key: bytes) -> None:
    """Have the operator of ``actor`` add a guest."""
    reply = world.command(actor, "peer.add", name=name, role="guest", key=key.hex())
    assert not reply.error


def last_error(world: DeployedWorld, sender: str) -> ErrorReply:
    """The last message that an actor refused."""
    found: Any = world.letters(ErrorReply, sender)[-1]
    return found


def test_tags_have_64_bits() -> None:
    """An id says enough of its owner's key that nobody finds another key which fits."""
    assert len(key_tag(b"k" * 32)) * 4 >= 64


@pytest.mark.usefixtures("short_tags")
def test_two_keys_of_one_tag(tmp_path: Path) -> None:
    """The tag is that of the peer known first: the other one takes none of its ids, is told why, and is in nobody's
    way.
    """
    world = DeployedWorld(CHAIN, tmp_path)
    web = world.guest("web")
    twin = twin_of(web.signer.public)
    for actor in ("lower", "site"):
        known_as(world, actor, "twin", twin.public)
    request = RequestTicket(f"{web.keyring.tag}-1", 1, "new", "s", "vm", 1, Term(10 * SECOND, HOUR), "", {}, b"")
    world.receive("lower", "twin", request)
    error = last_error(world, "lower")
    assert (
        error.reason.code == "bad_id"
        and "are those of web" in words(error.reason)
        and "keys rotate" in words(error.reason)
    )
    world.receive("site", "twin", CloseLease(f"{web.keyring.tag}-1", 1, b""))
    assert last_error(world, "site").reason.code == "bad_id"
    lease = world.request("web", 2, 10 * SECOND, HOUR)
    world.pass_time(MINUTE)
    assert lease == f"{web.keyring.tag}-1" and world.lease("web", lease)["state"] == "active"
    redeem: Any = world.letters(Redeem, "web")[-1]
    for message in (replace(redeem, number=9), CloseLease(lease, 9, b""), Ack(lease, 1)):
        world.receive("site", "twin", message)
    assert last_error(world, "site").reason.code == "not_yours"
    world.receive("lower", "twin", replace(request, number=7))
    assert last_error(world, "lower").reason.code == "not_yours"
    world.pass_time(MINUTE)
    assert world.lease("site", lease)["state"] == "active"
    for actor in ("lower", "site"):
        world.restart(actor)
    world.receive("lower", "twin", replace(request, lease=f"{web.keyring.tag}-2"))
    assert last_error(world, "lower").reason.code == "bad_id", "also after a restart"


@pytest.mark.parametrize("actor", ["lower", "site"])
def test_a_name_with_another_key(tmp_path: Path, actor: str) -> None:
    """Leases are bound to the key that asked for them: who gets the name of a peer that was removed, with another key,
    gets nothing of them, not even what is still owed to it.
    """
    world = DeployedWorld(CHAIN, tmp_path)
    lease = world.request("web", 2, 10 * SECOND, HOUR)
    world.pass_time(MINUTE)
    assert world.lease("web", lease)["state"] == "active"
    world.command(actor, "peer.remove", name="web")
    known_as(world, actor, "web", Keypair(b"other" + bytes(27)).public)
    node: Any = world.nodes[actor].actor
    for _ in range(2):
        before = len(world.letters(ErrorReply, actor))
        server = node.leases[lease]
        message: Any = CloseLease(lease, server.number + 1, b"")
        if actor == "lower":
            message = RequestTicket(
                lease, server.number + 1, "extend", "s", "vm", 2, Term(HOUR, 2 * HOUR), "", {}, server.claims[-1].digest
            )
        world.receive(actor, "web", message)
        (error,) = world.letters(ErrorReply, actor)[before:]
        assert error.reason.code == "not_yours" and "key was another" in words(error.reason)
        world.restart(actor)
        node = world.nodes[actor].actor
    sent = len(world.sent)
    world.pass_time(MINUTE)
    assert not [m for s, r, m in world.sent[sent:] if (s, r) == (actor, "web")]
