"""A slice's login keys, and how they roll over."""

from __future__ import annotations

from pathlib import Path

import pytest
from deployed_world import CHAIN, DeployedWorld, failed

from leasekit.core.properties import BYTES_MAX, VALUE_MAX
from leasekit.core.steps import Action
from leasekit.core.time import HOUR, MINUTE, SECOND

OLD, NEW = "ssh-ed25519 AAAA old", "ssh-ed25519 BBBB new"


@pytest.fixture
def world(tmp_path: Path) -> DeployedWorld:
    made = DeployedWorld(CHAIN, tmp_path)
    made.command("batch", "slice.create", name="lab", key=OLD)
    return made


def key_at_site(world: DeployedWorld, lease: str) -> str:
    return world.site().leases[lease].properties.get("slice.key", "")


def test_a_lease_has_the_key_of_its_slice(world: DeployedWorld) -> None:
    """Units are set up with the key that the slice has by then."""
    seen: list[Action] = []
    model = world.nodes["site"].model
    world.nodes["site"].model = lambda action: (seen.append(action), model(action))[1]
    lease = world.request("batch", 1, 10 * SECOND, HOUR, slice="lab")
    world.pass_time(MINUTE)
    assert key_at_site(world, lease) == OLD
    assert [action.configuration["slice.key"] for action in seen if action.op == "setup"] == [OLD]


def test_the_key_rolls_over(world: DeployedWorld) -> None:
    """A new key goes to units that are up, as a modify, and to leases that are still to come; each is told once."""
    active = world.request("batch", 1, 10 * SECOND, HOUR, slice="lab")
    later = world.request("batch", 1, 20 * MINUTE, HOUR, slice="lab")
    other = world.request("web", 1, 10 * SECOND, HOUR)
    world.pass_time(MINUTE)
    reply = world.command("batch", "slice.key", name="lab", key=NEW)
    assert reply.result == {"slice": "lab", "leases": [active, later]}
    world.pass_time(MINUTE)
    assert (key_at_site(world, active), key_at_site(world, other)) == (NEW, "")
    assert world.lease("batch", active)["configuration"]["slice.key"] == NEW
    number = world.guest("batch").leases[active].number
    world.restart("batch")
    world.run_until(21 * MINUTE)
    assert key_at_site(world, later) == NEW
    assert world.guest("batch").leases[active].number == number


def test_a_lease_that_is_busy_gets_the_key_afterwards(world: DeployedWorld) -> None:
    """While an extend is asked for the key waits, and a restart doesn't lose it; one that is granted is no reason."""
    lease = world.request("batch", 1, 10 * SECOND, 10 * MINUTE, slice="lab")
    world.pass_time(MINUTE)
    world.command("batch", "lease.extend", lease=lease, end=HOUR)
    world.command("batch", "slice.key", name="lab", key=NEW)
    assert key_at_site(world, lease) == OLD
    world.restart("batch")
    world.pass_time(MINUTE)
    assert world.lease("batch", lease)["state"] == "active_ticketed"
    assert key_at_site(world, lease) == NEW
    world.run_until(12 * MINUTE)
    assert world.lease("batch", lease)["state"] == "active"
    assert key_at_site(world, lease) == NEW


def test_keys_that_cannot_be(world: DeployedWorld) -> None:
    """A slice that isn't there, and text that is no key, are refused by name."""
    assert "no slice 'nothing'" in failed(world.command("batch", "slice.key", name="nothing", key=NEW))
    assert "OpenSSH" in failed(world.command("batch", "slice.key", name="lab", key="a\x00b"))
    assert "at most" in failed(world.command("batch", "slice.key", name="lab", key="x" * 5000))
    assert "OpenSSH" in failed(world.command("batch", "slice.create", name="other", key="\x1b[2J"))


def test_what_does_not_fit_into_one_list_is_not_sent(world: DeployedWorld) -> None:
    """A key for which a lease's configuration has no room is left out, and a modify refused: no site could read it."""
    full = {f"part-{number}": "x" * VALUE_MAX for number in range(3)} | {"rest": "y" * (VALUE_MAX - 40)}
    lease = world.request("batch", 1, 10 * SECOND, HOUR, slice="lab", configuration=full)
    world.pass_time(MINUTE)
    assert world.lease("batch", lease)["state"] == "active" and key_at_site(world, lease) == ""
    assert "does not get the key of slice lab" in " ".join(world.query("batch", "status")["mapper_errors"])
    refused = failed(world.command("batch", "lease.modify", lease=lease, configuration={"more": "z" * 100}))
    assert refused == f"configuration: found {BYTES_MAX + 86} bytes of keys and values, at most {BYTES_MAX} are allowed"
    assert not world.command("batch", "lease.modify", lease=lease, configuration={"rest": "y"}).error
    world.pass_time(MINUTE)
    assert world.site().leases[lease].properties == {**full, "rest": "y"}


def test_programs_keep_notes_with_a_slice(world: DeployedWorld) -> None:
    """They change one by one, are kept over a restart, and go with an empty text; no other slice has them."""
    world.command("batch", "slice.create", name="noted", notes={"door": "a", "colour": "red"})
    changed = world.command("batch", "slice.note", name="noted", notes={"door": "", "size": "3"})
    assert changed.result == {"slice": "noted", "notes": {"colour": "red", "size": "3"}}
    world.restart("batch")
    asked = world.nodes["batch"].actor.dispatch.ask
    (noted,) = asked("slices", {"slice": "noted"})
    assert noted["notes"] == {"colour": "red", "size": "3"}
    assert [one["notes"] for one in asked("slices", {}) if one["slice"] != "noted"] == [{}]
    assert asked("slices", {"slice": "absent"}) == []


def test_notes_have_limits(world: DeployedWorld) -> None:
    """As property lists have them; what is refused changes nothing."""
    assert "notes.long: found" in failed(world.command("batch", "slice.note", name="lab", notes={"long": "x" * 20_000}))
    assert "no slice 'absent'" in failed(world.command("batch", "slice.note", name="absent", notes={"a": "b"}))
