"""Whose fault it is that units can't be set up, and what a guest may say: what goes beyond the scripts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from actor_bench import Bench, Mappers, Plan

from leasekit.actors.settings import AuthoritySettings
from leasekit.core.drivers import LEASE, SITE, UNIT, Blame
from leasekit.core.errors import CommandError
from leasekit.core.leases import authority as au
from leasekit.core.protocol.messages import EXTEND, MODIFY, NEW, ErrorReply, LeaseUpdate, Message, Redeem
from leasekit.core.reasons import words
from leasekit.core.schema import Row
from leasekit.core.steps import Action, ActionDone
from leasekit.core.time import HOUR, SECOND, Instant


class Heard:
    """Remembers errors, refusals and actions."""

    def __init__(self, bench: Bench) -> None:
        self.errors: list[tuple[str, str]] = []
        self.refused: list[LeaseUpdate] = []
        self.actions: list[Action] = []
        bench.listeners.append(self)

    def sent(self, at: Instant, sender: str, receiver: str, message: Message, fate: str) -> None:
        if isinstance(message, ErrorReply):
            self.errors.append((message.reason.code, words(message.reason)))
        elif isinstance(message, LeaseUpdate) and message.state == "refused":
            self.refused.append(message)

    def started(self, at: Instant, actor: str, action: Action) -> None:
        if actor == "site":
            self.actions.append(action)

    def committed(self, at: Instant, actor: str, rows: Sequence[Row]) -> None: ...

    def received(self, at: Instant, sender: str, receiver: str, message: Message) -> None: ...

    def ended(self, at: Instant, actor: str, done: ActionDone) -> None: ...


def made(units: int = 6, **site: Any) -> Bench:
    return Bench(Plan(sites={"site": {"vm": units}}, site=AuthoritySettings(**site)), Mappers()).start()


def request(bench: Bench, units: int, **more: Any) -> str:
    wish = {"type": "vm", "units": units, "term": [bench.now + SECOND, HOUR], **more}
    reply = bench.command("guest", "lease.request", **wish)
    assert not reply.error, reply.error
    return str(reply.result["id"])


def fails(bench: Bench, blame: Blame, units: int = 6, times: int = 99) -> None:
    """From now on setups fail by somebody's fault."""
    bench.blames["site"] = blame
    bench.failures = {("site", "setup", f"vm-{number}"): times for number in range(units)}


def units_of(bench: Bench) -> list[tuple[str, int]]:
    return [(unit["state"], unit["failures"]) for unit in bench.query("site", "units")]


@pytest.mark.parametrize("blame", [LEASE, SITE])
def test_what_is_not_a_units_fault_is_not_held_against_it(blame: Blame) -> None:
    """However many leases fail by their own fault, or wait for the site: no unit has failed, and all are in service."""
    bench = made(failures_max=1)
    fails(bench, blame)
    for _ in range(4):
        request(bench, 1)
        bench.run_until(bench.now + 60 * SECOND)
    assert units_of(bench) == [(au.FREE, 0)] * 6


def test_one_lease_burns_through_so_many_units_at_most() -> None:
    """A driver that blames units, whatever it is asked for, spoils as many as one lease may have replaced, and one."""
    bench = made(units=20, failures_max=1)
    fails(bench, UNIT, 20)
    lease = request(bench, 1)
    bench.run_until(bench.now + 60 * SECOND)
    assert bench.query("guest", "lease", lease=lease)["state"] == "failed"
    assert units_of(bench).count((au.OUT, 1)) == 1 + 3


def test_teardowns_hear_nothing_of_what_a_guest_said() -> None:
    """What a guest said is apart from the site's words, in setups and modifies, and is in no teardown."""
    bench = made()
    heard = Heard(bench)
    said = {"lease.holder": "mallory", "image": "debian", "site.name": "elsewhere"}
    lease = request(bench, 1, configuration=said)
    bench.run_until(bench.now + 10 * SECOND)
    bench.command("guest", "lease.modify", lease=lease, configuration={"image": "other"})
    bench.run_until(bench.now + 10 * SECOND)
    bench.command("guest", "lease.close", lease=lease)
    bench.run_until(bench.now + 10 * SECOND)
    setup, modify, teardown = heard.actions
    assert (setup.op, setup.configuration) == ("setup", said)
    assert (modify.op, modify.configuration) == ("modify", {**said, "image": "other"})
    assert (teardown.op, teardown.configuration) == ("teardown", {})
    for action in heard.actions:
        assert (action.properties["lease.holder"], action.properties["site.name"]) == ("guest", "site")
        assert "image" not in action.properties


@pytest.mark.parametrize("op", [NEW, EXTEND, MODIFY])
@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"properties": {"image": "a\0b"}}, "bad_properties"),
        ({"properties": {"a\nb": "c"}}, "bad_properties"),
        ({"properties": {"a": "b\x1b[2J"}}, "bad_properties"),
        ({"resource": {"a": "\x85"}}, "bad_properties"),
        ({"slice": "a\tb"}, "bad_name"),
    ],
)
def test_control_characters_are_refused_at_redeem(op: str, changes: dict[str, Any], code: str) -> None:
    """Before anything is looked at, reserved or written; newlines and tabs in values are fine."""
    bench = made()
    heard = Heard(bench)
    lease = request(bench, 1, configuration={"slice.key": "one\n\ttwo"})
    bench.run_until(bench.now + 10 * SECOND)
    assert bench.query("site", "lease", lease=lease)["state"] == "active"
    id_ = lease if op != NEW else f"{lease.partition('-')[0]}-new"
    fields = {"slice": "default", "resource": {}, "properties": {}, **changes}
    bench.receive(
        "site", "guest", Redeem(id_, 99, op, fields["slice"], b"", fields["resource"], fields["properties"], (), b"")
    )
    bench.run_until(bench.now + SECOND)
    if op == NEW:
        assert [found for found, _ in heard.errors] == [code]
        with pytest.raises(CommandError):
            bench.query("site", "lease", lease=id_)
    else:
        (refused,) = heard.refused
        assert refused.number == 99 and "control character" in words(refused.reason)
        assert bench.query("site", "lease", lease=lease)["pending"] == "-"


def test_ids_have_no_control_characters() -> None:
    """The id of a lease is its guest's to choose, and comes to be in files and variables."""
    bench = made()
    heard = Heard(bench)
    tag = request(bench, 1).partition("-")[0]
    bench.receive("site", "guest", Redeem(f"{tag}-\0", 1, NEW, "default", b"", {}, {}, (), b""))
    assert heard.errors == [("bad_id", f"lease: found '{tag}-\\x00', ids have no control characters")]


def test_a_guest_is_told_early() -> None:
    """Its own actor refuses what its site would."""
    bench = made()
    wish = {"type": "vm", "units": 1, "term": [SECOND, HOUR], "configuration": {"image": "a\0b"}}
    error = bench.command("guest", "lease.request", **wish).error
    assert error == "configuration.image: found the control character '\\x00' at 1, allowed are newline and tab"
