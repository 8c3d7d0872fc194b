"""Who an actor knows, what they may do, how they become known, and commands for other actors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import pytest
from deployed_world import CHAIN, DeployedWorld, failed

from leasekit.actors.base import Actor
from leasekit.actors.settings import Peer
from leasekit.config.build import build
from leasekit.config.identities import emulation_keys
from leasekit.core.claims.signed import Keypair, endorse, key_tag, succeed
from leasekit.core.protocol.messages import (
    Accepted,
    Administer,
    Administered,
    ErrorReply,
    Introduce,
    Offer,
    Redeem,
    RequestTicket,
    Truncated,
)
from leasekit.core.steps import Command, Connected, Disconnected, Received
from leasekit.core.time import DAY, HOUR, MINUTE, SECOND, Term

KEY = Keypair(bytes(range(32))).public.hex()


@pytest.fixture
def world(tmp_path: Path) -> DeployedWorld:
    return DeployedWorld(CHAIN, tmp_path)


def names(world: DeployedWorld, actor: str) -> set[str]:
    return {row["peer"] for row in world.query(actor, "peers")}


def forbidden(world: DeployedWorld, actor: str, peer: str, message: Any) -> bool:
    """Whether the actor refuses the message for want of permission."""
    before = len(world.letters(ErrorReply, actor, peer))
    world.receive(actor, peer, message)
    world.pass_time(SECOND)
    errors = world.letters(ErrorReply, actor, peer)[before:]
    return [error.reason.code for error in errors] == ["forbidden"]


def test_what_a_role_may_do(world: DeployedWorld) -> None:
    """A guest delegates nothing, a broker asks for nothing, and nobody commands another unless it is allowed."""
    term = Term(HOUR, 2 * HOUR)
    assert forbidden(world, "upper", "batch", Offer("d", 1, b"", {}))
    assert forbidden(world, "upper", "lower", RequestTicket("x-1", 1, "new", "s", "vm", 1, term, "", {}, b""))
    assert forbidden(world, "site", "upper", Redeem("x-1", 1, "new", "s", b"", {}, {}, (), b""))
    assert forbidden(world, "site", "web", Truncated("x-1", 1, b"", b""))
    assert forbidden(world, "site", "web", Introduce("other", 1, b""))
    assert forbidden(world, "site", "upper", Administer("unit.disable", 1, "{}"))


def test_a_permission_taken_away(tmp_path: Path) -> None:
    """A guest that may not request here is told so; one that may, but only a little, is told when it is too much."""
    changes = {"actor.lower.permissions": {"web": {"may": []}, "batch": {"open_requests": 1}}}
    text = CHAIN.replace('settings.default_broker = "upper"', 'settings.default_broker = "lower"')
    world = DeployedWorld(text, tmp_path, changes=changes)
    lease = world.request("web", 1, 10 * SECOND, HOUR)
    world.pass_time(MINUTE)
    assert world.lease("web", lease)["state"] == "failed"
    assert "may not request" in world.lease("web", lease)["reason"]
    busy = [world.request("batch", 4, 3 * MINUTE, HOUR, properties={"deferrable": "true"}) for _ in range(3)]
    world.pass_time(SECOND)
    states = [world.lease("batch", one)["state"] for one in busy]
    assert states.count("failed") == 2, "one is granted or waits, and the others came while it was open"
    assert "its limit" in world.lease("batch", busy[2])["reason"]


def test_peers_are_added_listed_and_removed(world: DeployedWorld) -> None:
    """A peer that the operator adds is there after a restart; one that is removed is not, named in the file or not."""
    reply = world.command("site", "peer.add", name="new", role="guest", key=KEY, address="tcp://h:1", may=["redeem"])
    assert reply.result == {"peer": "new", "key": KEY, "may": ["redeem"]}
    world.command("site", "peer.remove", name="batch")
    for _ in range(2):
        row = next(row for row in world.query("site", "peers") if row["peer"] == "new")
        assert (row["role"], row["key"], row["may"], row["address"]) == ("guest", KEY, ["redeem"], "tcp://h:1")
        assert row["origin"] == "operator"
        assert "batch" not in names(world, "site") and "web" in names(world, "site")
        world.restart("site")
    world.command("site", "peer.remove", name="new")
    world.restart("site")
    assert "new" not in names(world, "site")
    key = world.guest("batch").signer.public.hex()
    assert not world.command("site", "peer.add", name="batch", role="guest", key=key).error
    world.restart("site")
    assert "batch" in names(world, "site")


def test_the_shell_hears_of_peers(world: DeployedWorld) -> None:
    """Each change is in the Ready of its step, and all that were made known are in the first one after a restart."""
    site = world.site()
    site.step(Command(1, "peer.add", {"name": "new", "role": "guest", "key": KEY, "address": "tcp://h:1"}))
    ready = site.ready()
    assert ready is not None
    (change,) = ready.peers
    assert change.name == "new" and change.peer is not None and change.peer.address == "tcp://h:1"
    world.nodes["site"].store.commit(ready.changes)
    world.restart("site")
    site = world.site()
    site.step(Command(2, "peer.remove", {"name": "new"}))
    ready = site.ready()
    assert ready is not None and [(change.name, change.peer) for change in ready.peers] == [("new", None)]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"name": "a b"}, "name: found 'a b'"),
        ({"role": "king"}, "role: found 'king'"),
        ({"key": "12"}, "key: found '12', expected 64 hex digits"),
        ({"key": "zz" * 32}, "key: found"),
        ({"key": "00" * 32}, "no key that can sign"),
        ({"key": "01" + "00" * 31}, "no key that can sign"),
        ({"key": "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05"}, "no key that can sign"),
        ({"may": ["fly"]}, "may: found ['fly']"),
        ({"open_requests": -1}, "open_requests: found -1"),
        ({"address": "x" * 1000}, "address: found 1000 characters"),
        ({"name": "site"}, "own name"),
        ({"name": "web"}, "'web' has key"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_peers_that_cannot_be(world: DeployedWorld, arguments: dict[str, Any], words: str) -> None:
    """What is wrong with a peer is named, with what was found; nothing is added."""
    before = names(world, "site")
    given = {"name": "new", "role": "guest", "key": KEY, **arguments}
    assert words in failed(world.command("site", "peer.add", **given))
    assert names(world, "site") == before
    assert "known are" in failed(world.command("site", "peer.remove", name="nobody"))


def test_one_key_has_one_name(world: DeployedWorld) -> None:
    """A key that is known under one name can't get another."""
    key = world.guest("web").signer.public.hex()
    assert "'web'" in failed(world.command("site", "peer.add", name="twin", role="guest", key=key))


STRANGERS = CHAIN.replace(
    '[actor.upper]\nrole = "broker"\n', '[actor.upper]\nrole = "broker"\nsettings.endorse = true\n'
)


def strangers(name: str, actor: Actor) -> Actor:
    """The site and the guest of the upper broker don't know each other."""
    for other in {"site": ["batch"], "batch": ["site"]}.get(name, []):
        actor.keyring.peers.pop(other, None)
        actor.peering._deployed.pop(other, None)  # type: ignore[attr-defined]
    if name == "batch":
        actor.peering._peer_changed("site")  # type: ignore[attr-defined]
    return actor


def test_a_broker_makes_guest_and_site_known_to_each_other(tmp_path: Path) -> None:
    """With endorsements a guest leases from a site that it did not know, nor the site the guest; both remember it."""
    world = DeployedWorld(STRANGERS, tmp_path, make=strangers)
    assert "batch" not in names(world, "site") and "site" not in names(world, "batch")
    lease = world.request("batch", 1, 10 * SECOND, HOUR)
    world.pass_time(MINUTE)
    assert world.lease("batch", lease)["state"] == "active", world.lease("batch", lease)["reason"]
    assert {row["origin"] for row in world.query("site", "peers") if row["peer"] == "batch"} == {"upper"}
    for name in ("site", "batch", "upper"):
        world.restart(name)
    world.command("batch", "lease.close", lease=lease)
    world.pass_time(MINUTE)
    assert world.lease("batch", lease)["state"] == "closed"
    assert world.query("batch", "returns") == []


def test_without_endorsement_a_strange_site_is_refused(tmp_path: Path) -> None:
    """A ticket of a site that a guest doesn't know, and that nobody endorses, is not believed."""
    world = DeployedWorld(CHAIN, tmp_path, make=strangers)
    lease = world.request("batch", 1, 10 * SECOND, HOUR)
    world.pass_time(MINUTE)
    assert world.lease("batch", lease)["state"] == "failed"
    assert "no site known here" in world.lease("batch", lease)["reason"]


def test_introductions_are_repeated_until_accepted(tmp_path: Path) -> None:
    """An introduction that is lost is sent again, also by a broker that was restarted."""
    world = DeployedWorld(STRANGERS, tmp_path, make=strangers)
    world.lost.add(("upper", "site", "Introduce"))
    world.request("batch", 1, 10 * MINUTE, HOUR)
    world.pass_time(MINUTE)
    assert "batch" not in names(world, "site")
    world.restart("upper")
    world.lost.clear()
    world.pass_time(2 * MINUTE)
    assert "batch" in names(world, "site")
    assert world.letters(Accepted, "site", "upper")
    sent = len(world.letters(Introduce))
    world.pass_time(HOUR)
    assert len(world.letters(Introduce)) == sent


def test_endorsements_that_are_not_believed(world: DeployedWorld) -> None:
    """A broker can't give a known name another key, nor a known key another name, nor endorse in another's name."""
    upper, other = world.broker("upper"), Keypair(b"o" * 32)
    said = {
        "name_taken": endorse(upper.signer, other.public, 1, name="web", role="guest"),
        "wrong_signer": endorse(world.broker("lower").signer, other.public, 1, name="new", role="guest"),
    }
    before = names(world, "site")
    for code, statement in said.items():
        world.receive("site", "upper", Introduce("new", 1, statement.encode()))
        world.pass_time(SECOND)
        assert world.letters(ErrorReply, "site", "upper")[-1].reason.code == code
    twin = endorse(upper.signer, world.guest("web").signer.public, 1, name="twin", role="guest")
    world.receive("site", "upper", Introduce("twin", 1, twin.encode()))
    world.pass_time(SECOND)
    assert world.letters(ErrorReply, "site", "upper")[-1].reason.code == "name_taken"
    assert names(world, "site") == before
    world.command("site", "peer.remove", name="web")
    back = endorse(upper.signer, world.guest("web").signer.public, 1, name="web", role="guest")
    world.receive("site", "upper", Introduce("web", 1, back.encode()))
    assert "web" not in names(world, "site"), "whom the operator removed, no broker brings back"


def administered(tmp_path: Path) -> DeployedWorld:
    changes = {"actor.site.permissions": {"upper": {"may": ["delegate", "administer"]}}}
    return DeployedWorld(CHAIN, tmp_path, changes=changes)


def test_commands_for_another_actor(tmp_path: Path) -> None:
    """A peer that may administer commands the actor as its operator does, and hears what became of it."""
    world = administered(tmp_path)
    number = 77
    arguments = {"peer": "site", "command": "unit.disable", "arguments": {"unit": "vm-0", "reason": "broken"}}
    world.feed("upper", [Command(number, "peer.command", arguments)])
    assert number not in world.replies
    world.pass_time(SECOND)
    assert world.replies[number].result["state"] == "out"
    assert {unit["unit"]: unit["state"] for unit in world.query("site", "units")}["vm-0"] == "out"
    wrong = {**arguments, "arguments": {"unit": "nothing"}}
    world.feed("upper", [Command(78, "peer.command", wrong)])
    world.pass_time(SECOND)
    assert world.replies[78].error.startswith("site: ") and "nothing" in world.replies[78].error


def test_commands_that_are_not_answered(tmp_path: Path) -> None:
    """The operator is told when a peer refuses, does not answer in time, or is not known."""
    world = administered(tmp_path)
    world.feed("lower", [Command(1, "peer.command", {"peer": "site", "command": "unit.disable"})])
    world.pass_time(SECOND)
    assert "may not administer" in world.replies[1].error
    world.lost.add(("site", "upper", "Administered"))
    world.feed("upper", [Command(2, "peer.command", {"peer": "site", "command": "unit.disable", "arguments": {}})])
    world.pass_time(29 * SECOND)
    assert 2 not in world.replies
    world.pass_time(3 * SECOND)
    assert "did not answer" in world.replies[2].error
    world.feed("upper", [Command(3, "peer.command", {"peer": "nobody", "command": "x"})])
    assert "known are" in world.replies[3].error
    world.receive("upper", "site", Administered("unit.disable", 1, "{}", ""))


def test_a_peer_by_itself(world: DeployedWorld) -> None:
    """What a peer may do follows from its role unless it is said."""
    assert Peer(name="x", key=b"k" * 32, role="guest").may == {"request", "redeem"}
    assert Peer(name="x", key=b"k" * 32, role="guest", may=frozenset({"request"})).may == {"request"}
    site = world.site()
    site.step(Received("stranger", Truncated("x-1", 1, b"", b"")))
    ready = site.ready()
    assert ready is not None and isinstance(ready.messages[0].message, ErrorReply)


def test_a_guest_changes_its_key(tmp_path: Path) -> None:
    """Whoever obeys the succession takes the guest by its new key, and its old tickets as long as was said."""
    new = Keypair(b"n" * 32)
    made: dict[str, Any] = {}

    def make(name: str, actor: Actor) -> Actor:
        if name == "web" and made:
            actor.keyring.signer, actor.keyring.tag = new, key_tag(new.public)
        return actor

    world = DeployedWorld(CHAIN, tmp_path, make=make)
    leases = [world.request("web", 1, start, HOUR) for start in (10 * SECOND, 10 * MINUTE)]
    world.pass_time(MINUTE)
    old = world.guest("web").signer
    assert isinstance(old, Keypair)
    text = succeed(old, new, "web", 0, HOUR).encode().hex()
    for actor in ("site", "lower"):
        assert world.command(actor, "peer.succeed", name="web", succession=text).result["key"] == new.public.hex()
        world.restart(actor)
    made["new"] = True
    world.restart("web")
    world.command("web", "lease.close", lease=leases[0])
    leases.append(world.request("web", 2, world.now + 10 * SECOND, HOUR))
    world.run_until(11 * MINUTE)
    assert [world.lease("web", lease)["state"] for lease in leases[1:]] == ["active", "active"]
    assert world.query("web", "returns") == []
    assert world.broker("lower").book.table("upper/vm@lower").free_at(world.now) == 1
    for wrong, words in (
        (succeed(new, Keypair(b"x" * 32), "web", 2 * HOUR, 3 * HOUR), "come back then"),
        (succeed(old, Keypair(b"x" * 32), "web", 0, HOUR), "not of"),
        (succeed(new, Keypair(b"x" * 32), "batch", 0, HOUR), "not of 'web'"),
    ):
        given = wrong.encode().hex()
        assert words in failed(world.command("site", "peer.succeed", name="web", succession=given))
    assert "non-hexadecimal" in failed(world.command("site", "peer.succeed", name="web", succession="zz"))


INTRODUCED = {"known": 1, "refused": 0, "most": 100}


def introduced(world: DeployedWorld) -> list[dict[str, Any]]:
    return list(world.query("site", "status")["introductions"])


def test_an_introduction_that_is_not_used_expires(tmp_path: Path) -> None:
    """A month after it was made, also over restarts; then its place is another's, and it can be made again."""
    world = DeployedWorld(CHAIN, tmp_path)
    note = endorse(world.broker("upper").signer, Keypair(b"n" * 32).public, 1, name="new", role="guest").encode()
    world.receive("site", "upper", Introduce("new", 1, note))
    world.pass_time(20 * DAY)
    world.restart("site")
    assert introduced(world) == [{"broker": "upper", **INTRODUCED}]
    world.pass_time(11 * DAY)
    assert "new" not in names(world, "site") and introduced(world) == []
    world.restart("site")
    assert "new" not in names(world, "site")
    world.receive("site", "upper", Introduce("new", 2, note))
    assert "new" in names(world, "site")


def test_who_is_introduced_again_or_connected_stays(tmp_path: Path) -> None:
    """What counts is when it was last of use; while it is connected, it is."""
    world = DeployedWorld(CHAIN, tmp_path)
    keys = {name: Keypair(name.encode() * 8) for name in ("once", "more", "here")}
    notes = {
        name: Introduce(name, 1, endorse(world.broker("upper").signer, key.public, 1, name=name, role="guest").encode())
        for name, key in keys.items()
    }
    for note in notes.values():
        world.receive("site", "upper", note)
    world.pass_time(20 * DAY)
    world.receive("site", "upper", notes["more"])
    world.feed("site", [Connected("here")])
    world.pass_time(20 * DAY)
    assert set(notes) & names(world, "site") == {"more", "here"}
    world.pass_time(40 * DAY)
    assert set(notes) & names(world, "site") == {"here"}
    world.feed("site", [Disconnected("here")])
    world.pass_time(31 * DAY)
    assert set(notes) & names(world, "site") == set()


def test_who_has_a_lease_stays(tmp_path: Path) -> None:
    """Guest and site that a broker made known to each other know each other for as long as the lease lasts, and are
    introduced anew for the next lease.
    """
    world = DeployedWorld(STRANGERS.replace('length = "1d"', 'length = "200d"'), tmp_path, make=strangers)
    lease = world.request("batch", 1, 10 * SECOND, 50 * DAY)
    world.pass_time(45 * DAY)
    assert world.lease("batch", lease)["state"] == "active"
    assert "batch" in names(world, "site") and "site" in names(world, "batch")
    world.pass_time(70 * DAY)
    assert "batch" not in names(world, "site") and "site" not in names(world, "batch")
    again = world.request("batch", 1, world.now + 10 * SECOND, world.now + HOUR)
    world.pass_time(MINUTE)
    assert world.lease("batch", again)["state"] == "active", world.lease("batch", again)["reason"]


def test_who_is_introduced_for_a_later_lease_stays(tmp_path: Path) -> None:
    """A guest that reserves months ahead, and never connects before, is still known when it redeems; also one that has
    had another lease on the same day.
    """
    world = DeployedWorld(STRANGERS.replace('length = "1d"', 'length = "200d"'), tmp_path, make=strangers)
    world.request("batch", 1, 10 * SECOND, HOUR)
    lease = world.request("batch", 1, 100 * DAY, 101 * DAY)
    world.pass_time(MINUTE)
    world.restart("site")
    world.feed("site", [Disconnected("batch")])
    world.run_until(100 * DAY + MINUTE)
    assert world.lease("batch", lease)["state"] == "active", world.lease("batch", lease)["reason"]
    world.run_until(132 * DAY)
    assert "batch" not in names(world, "site")


def test_one_who_is_added_by_hand_does_not_expire(tmp_path: Path) -> None:
    """Whoever introduced it before, also at the same moment."""
    world = DeployedWorld(CHAIN, tmp_path)
    key = Keypair(b"n" * 32).public
    note = endorse(world.broker("upper").signer, key, 1, name="new", role="guest").encode()
    world.receive("site", "upper", Introduce("new", 1, note))
    world.pass_time(2 * HOUR)
    world.site().step(Connected("new"))
    world.command("site", "peer.add", name="new", role="guest", key=key.hex())
    world.feed("site", [Disconnected("new")])
    world.pass_time(70 * DAY)
    assert "new" in names(world, "site") and introduced(world) == []


def test_what_the_file_says_of_a_peer_holds_beside_its_new_key(world: DeployedWorld) -> None:
    """A peer that has another key than the file names may do what the file says, also when it says otherwise; a file
    with a key that the peer never had here is believed.
    """
    old, new, other = world.guest("web").signer, Keypair(b"n" * 32), Keypair(b"o" * 32)
    assert isinstance(old, Keypair)
    text = succeed(old, new, "web", 0, HOUR).encode().hex()
    assert not world.command("site", "peer.succeed", name="web", succession=text).error
    keys = emulation_keys(world.deployment)
    said = {"actor.site.permissions": {"web": {"may": ["redeem"], "open_requests": 7, "priority_max": 3}}}
    for named, known in ((old, new), (new, new), (other, other)):
        public = {**{name: keys.public(name) for name in world.deployment.actors}, "web": named.public}
        file = attrs.evolve(keys, public=public.__getitem__, former={})
        world.reload(build(world.deployment.with_overrides(said), "site", keys=file, virtual=True).actor)
        row = next(row for row in world.query("site", "peers") if row["peer"] == "web")
        assert row["key"] == known.public.hex()
        assert (row["may"], row["open_requests"], row["priority_max"]) == (["redeem"], 7, 3)


def test_a_peer_that_the_file_names_no_more(tmp_path: Path) -> None:
    """It is known no more, also if its key was changed here."""
    text = f'{CHAIN}[actor.third]\nrole = "guest"\n'
    world = DeployedWorld(text, tmp_path)
    old = world.guest("third").signer
    assert isinstance(old, Keypair)
    succession = succeed(old, Keypair(b"n" * 32), "third", 0, HOUR).encode().hex()
    assert not world.command("site", "peer.succeed", name="third", succession=succession).error
    (tmp_path / "less").mkdir()
    less = DeployedWorld(CHAIN, tmp_path / "less")
    world.reload(build(less.deployment, "site", virtual=True).actor)
    assert "third" not in names(world, "site")


def test_peers_are_imported_all_or_none(world: DeployedWorld) -> None:
    """One that can't be keeps all others out; they are there after a restart like those that are added one by one."""
    keys = [Keypair(letter * 32).public.hex() for letter in (b"1", b"2")]
    good = [{"name": f"p{number}", "role": "guest", "key": key} for number, key in enumerate(keys)]
    for wrong, words in (
        ({"name": "p2", "role": "king", "key": KEY}, "role: found 'king'"),
        ({"name": "p0", "role": "guest", "key": KEY}, "peers: found p0 twice"),
        ({"name": "p2", "role": "guest", "key": keys[0]}, "twice, expected names and keys that differ"),
        ({"name": "web", "role": "guest", "key": KEY}, "'web' has key"),
        ({"name": "p2", "role": "guest", "key": KEY, "mya": []}, "peers[2].mya: found an unknown key"),
    ):
        assert words in failed(world.command("site", "peer.import", peers=[*good, wrong]))
        assert not names(world, "site") & {"p0", "p1", "p2"}
    assert world.command("site", "peer.import", peers=good).result == {"peers": ["p0", "p1"]}
    world.restart("site")
    assert names(world, "site") > {"p0", "p1"}
