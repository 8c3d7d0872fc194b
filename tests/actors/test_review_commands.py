"""Commands with anything in them, from an operator or from a peer that may administer: refused in words, or obeyed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from deployed_world import CHAIN, DeployedWorld, failed
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from leasekit.actors.settings import ADMINISTER, DELEGATE, ENDORSE, REQUEST
from leasekit.core.claims.signed import Keypair
from leasekit.core.protocol.messages import Administer, Administered
from leasekit.core.steps import Command
from leasekit.core.time import HOUR, INSTANT_MAX, MINUTE, SECOND

DELEGATION = "site/vm@upper"
HALF = "\ud800"
KEY = Keypair(b"n" * 32).public.hex()
"""Half of a surrogate pair: JSON can say it, no message or row can."""


@pytest.fixture
def world(tmp_path: Path) -> DeployedWorld:
    changes = {"actor.site.permissions": {"upper": {"may": [DELEGATE, ENDORSE, ADMINISTER]}}}
    return DeployedWorld(CHAIN, tmp_path, changes=changes)


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("delegation.reclaim", {"delegation": DELEGATION, "at": "soon"}, "at: found 'soon'"),
        ("delegation.reclaim", {"delegation": DELEGATION, "at": [1]}, "at: found a list"),
        ("delegation.reclaim", {"delegation": DELEGATION, "at": 1e400}, "at: found inf"),
        ("delegation.reclaim", {"delegation": DELEGATION, "at": "9" * 5000}, "at: found"),
        ("delegation.reclaim", {"delegation": DELEGATION, "at": INSTANT_MAX + 1}, "at: found"),
        ("delegation.reclaim", {"delegation": DELEGATION, "deadline": {}}, "deadline: found"),
        ("delegation.reclaim", {"delegation": DELEGATION, "deadline": 2**70}, "deadline: found"),
        ("peer.add", {"name": "new", "role": "guest", "key": KEY, "may": 5}, "may: found 5"),
        ("peer.add", {"name": "new", "role": "guest", "key": KEY, "may": "request"}, "may: found 'request'"),
        ("peer.add", {"name": "new", "role": "guest", "key": KEY, "address": "a\nb"}, "address: found"),
        ("peer.add", {"name": "new", "role": "guest", "key": KEY, "address": HALF}, "address"),
        ("peer.add", {"name": "new", "role": "guest", "key": KEY, "open_requests": 2**80}, "open_requests"),
        ("peer.remove", {"name": ["web"]}, "name: found"),
        ("peer.succeed", {"name": "web", "succession": HALF}, "succession"),
        ("maintenance.add", {"start": MINUTE, "end": HOUR, "units": 5}, "units: found 5"),
        ("maintenance.add", {"start": MINUTE, "end": HOUR, "units": {"vm-0": 1}}, "units: found"),
        ("maintenance.add", {"start": MINUTE, "end": 2**70}, "window: found"),
        ("maintenance.add", {"start": MINUTE, "end": INSTANT_MAX + 1}, "window: found"),
        ("maintenance.add", {"start": MINUTE, "end": HOUR, "reason": HALF}, "reason"),
        ("unit.disable", {"unit": "vm-0", "reason": HALF}, "reason"),
    ],
    ids=lambda value: str(value)[:60].encode("ascii", "replace").decode(),
)
def test_arguments_that_cannot_be(world: DeployedWorld, name: str, arguments: dict[str, Any], words: str) -> None:
    """Each is refused by its name with what was found, nothing is changed, and the actor goes on."""
    before = (world.query("site", "delegations"), world.query("site", "peers"), world.query("site", "units"))
    assert words in failed(world.command("site", name, **arguments))
    world.pass_time(MINUTE)
    after = (world.query("site", "delegations"), world.query("site", "peers"), world.query("site", "units"))
    assert after == before
    lease = world.request("batch", 1, world.now + 10 * SECOND, 2 * HOUR)
    world.pass_time(MINUTE)
    assert world.lease("batch", lease)["state"] == "active"


def test_a_deadline_of_zero_is_not_none(world: DeployedWorld) -> None:
    """A deadline that is past is refused, the first instant of all included."""
    assert "deadline" in failed(world.command("site", "delegation.reclaim", delegation=DELEGATION, deadline=0))


@pytest.mark.parametrize(
    "text", ["[" * 2000, '{"a":' * 400, "9" * 2000, "NaN", "null", "[]", '"x"', "", '{"unit": "\\ud800"}']
)
def test_arguments_from_a_peer(world: DeployedWorld, text: str) -> None:
    """Whatever text a peer sends for arguments, it is told what is wrong with them."""
    world.receive("site", "upper", Administer("unit.disable", 1, text))
    world.pass_time(SECOND)
    answer = world.letters(Administered, "site", "upper")[-1]
    assert answer.error and not answer.result


@pytest.mark.parametrize("text", ["[" * 2000, '{"a":' * 400, "9" * 2000, "NaN", "what?", ""])
def test_results_from_a_peer(world: DeployedWorld, text: str) -> None:
    """Whatever text a peer sends for a result, the operator who waits gets it, and the actor goes on."""
    world.feed("upper", [Command(5, "peer.command", {"peer": "site", "command": "unit.disable", "arguments": {}})])
    number = world.letters(Administer, "upper", "site")[-1].number
    world.receive("upper", "site", Administered("unit.disable", number, text, ""))
    assert 5 in world.replies


def test_commands_for_a_peer_that_cannot_be_sent(world: DeployedWorld) -> None:
    """Names and arguments that no message can hold are refused."""
    for arguments in ({"command": HALF}, {"command": "x", "arguments": {1, 2}}, {"command": "x", "arguments": HALF}):
        world.feed("upper", [Command(6, "peer.command", {"peer": "site", **arguments})])
        assert world.replies[6].error
        del world.replies[6]


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.integers(-2, 10) | st.floats() | st.text(max_size=8)
    | st.sampled_from(
        ("site/vm@upper", "upper/vm@lower", "vm", "vm-0", "web", "batch", "site", "guest", "12" * 32, HALF, "x" * 300)
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=4,
)  # fmt: skip
FIELDS = (
    "name", "role", "key", "may", "open_requests", "address", "succession", "delegation", "at", "deadline", "unit",
    "units", "type", "reason", "start", "end", "close", "window", "peer", "command", "arguments", "hold", "lease",
    "term", "victims", "configuration", "properties", "site", "broker", "slice",
)  # fmt: skip


@pytest.mark.long
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
@given(
    actor=st.sampled_from(("site", "upper", "batch")),
    script=st.lists(st.tuples(st.integers(0, 50), st.dictionaries(st.sampled_from(FIELDS), values)), max_size=8),
)
def test_any_command(
    tmp_path_factory: pytest.TempPathFactory, actor: str, script: list[tuple[int, dict[str, Any]]]
) -> None:
    """Any command of any role with any arguments is answered, or waits for a peer; a restart finds what it left."""
    world = DeployedWorld(CHAIN, tmp_path_factory.mktemp("any"))
    node = world.nodes[actor].actor
    names = sorted([*node.dispatch.commands, *node.dispatch.deferred])  # type: ignore[attr-defined]
    world.request("batch", 1, 2 * SECOND, HOUR)
    world.pass_time(20 * SECOND)
    for index, arguments in script:
        name = names[index % len(names)]
        reply = world.command(actor, name, **arguments)
        assert reply.error or reply.result is not None
        json.dumps(reply.result)
        world.pass_time(SECOND)
    world.restart(actor)
    world.pass_time(5 * MINUTE)
    assert world.query(actor, "status")["name"] == actor


def test_an_address_that_cannot_be_endorsed_stops_no_grant(tmp_path: Path) -> None:
    """What an operator may give a peer for an address, its broker can endorse: a grant is not lost for it."""
    text = CHAIN.replace(
        '[actor.upper]\nrole = "broker"\n', '[actor.upper]\nrole = "broker"\nsettings.endorse = true\n'
    )
    world = DeployedWorld(text, tmp_path)
    key = world.guest("batch").signer.public.hex()
    reply = world.command("upper", "peer.add", name="batch", role="guest", key=key, address="a\tb", may=[REQUEST])
    lease = world.request("batch", 1, 10 * SECOND, HOUR)
    world.pass_time(MINUTE)
    assert reply.error
    assert world.lease("batch", lease)["state"] == "active"
