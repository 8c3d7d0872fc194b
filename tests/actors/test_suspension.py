"""Leases that are suspended by a broker, saved by their site, and resumed by their guest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from deployed_world import DeployedWorld

from leasekit.core.drivers import DROP, NOT_RESUMED, NOT_SAVED, RESUME, SAVE
from leasekit.core.leases.saved import saved_key
from leasekit.core.mappers import Preempt
from leasekit.core.protocol.messages import RequestTicket, Truncated
from leasekit.core.steps import Action, TurnDone
from leasekit.core.time import DAY, HOUR, MINUTE, SECOND
from leasekit.emulation.world import Outcome

TEXT = """
[emulation]
horizon = "20d"
[actor.site]
role = "authority"
inventory = [{ type = "vm", units = 4 }]
delegation = [{ broker = "broker", type = "vm" }]
driver.imagined = { kind = "null", save = true }
[actor.broker]
role = "broker"
mapper = { name = "backfill", suspension = "all", least_run = "1m" }
[actor.batch]
role = "guest"
[actor.web]
role = "guest"
"""
SAVING = {"preemptible": "true", "deferrable": "true", "suspend": "10s"}
START, END = 10 * MINUTE, 20 * MINUTE
"""The reservation that others are suspended for."""


class SavingWorld(DeployedWorld):
    """Remembers what drivers are told; ``fates`` says how some actions end."""

    def __init__(self, text: str, folder: Path, **more: Any) -> None:
        self.told: list[Action] = []
        self.fates: list[Callable[[Action], Outcome | None]] = []
        super().__init__(text, folder, **more)

    def _start(self, node: Any, actions: Sequence[Action]) -> None:
        self.told += actions
        node.model = self._model
        super()._start(node, actions)

    def _model(self, action: Action) -> Outcome:
        found = [fate(action) for fate in self.fates]
        return next((outcome for outcome in found if outcome is not None), Outcome(SECOND, True, {}, ""))

    def done_for(self, op: str, lease: str) -> list[Action]:
        """What the site's drivers were told to do for a lease."""
        return [action for action in self.told if (action.op, action.lease) == (op, lease) and "/" not in action.unit]

    def named(self, guest: str, name: str) -> dict[str, Any]:
        """The lease that a guest calls so, now."""
        return self.lease(guest, name)

    def kept(self) -> list[tuple[str, str]]:
        """The leases and states of what the site has saved."""
        return [(one["lease"], one["state"]) for one in self.query("site", "saved")]


@pytest.fixture
def world(tmp_path: Path) -> SavingWorld:
    return SavingWorld(TEXT, tmp_path)


def work(world: SavingWorld, units: int = 2, **more: Any) -> str:
    """Preemptible work of an hour."""
    properties = {**SAVING, **more.pop("properties", {})}
    lease = world.request("batch", units, 2 * SECOND, HOUR, name="work", properties=properties, **more)
    world.pass_time(MINUTE)
    assert world.lease("batch", lease)["state"] == "active"
    return lease


def reserve(world: SavingWorld, units: int = 4) -> str:
    """The reservation that needs the units."""
    lease = world.request("web", units, START, END)
    world.pass_time(5 * SECOND)
    return lease


def test_a_lease_is_suspended_and_resumed(world: SavingWorld) -> None:
    """Its units are saved before the reservation begins, and each is set up from one of them behind it, for the rest
    of the time and under the same name.
    """
    first = work(world)
    reservation = reserve(world)
    assert world.lease("batch", first)["suspends"]
    world.run_until(START + 5 * SECOND)
    assert world.lease("batch", first)["state"] == "closed"
    assert world.lease("web", reservation)["state"] == "active"
    keys = {saved_key(first, unit) for unit in ("vm-0", "vm-1")}
    assert {action.properties[SAVE] for action in world.done_for("teardown", first)} == keys
    assert world.kept() == [(first, "saved")] * 2
    rest = world.named("batch", "work")
    assert rest["resumes"] == {"lease": first, "suspended": START - 10 * SECOND}
    assert rest["state"] == "nascent" and rest["id"] != first
    world.run_until(END + 30 * SECOND)
    rest = world.named("batch", "work")
    assert rest["state"] == "active" and rest["reason"] == ""
    assert {action.properties[RESUME] for action in world.done_for("setup", rest["id"])} == keys
    assert all(SAVE not in action.properties for action in world.told if action.op == "setup")
    assert world.kept() == []
    begin, end = rest["approved"]["term"]
    assert end - begin == 10 * SECOND + HOUR - (START - 10 * SECOND), "what was left, and the time to come back"
    world.run_until(end + MINUTE)
    assert world.lease("batch", rest["id"])["state"] == "closed"
    assert world.query("site", "evidence") == []


def test_a_part_runs_in_front_of_a_reservation(world: SavingWorld) -> None:
    """Work that can't be done before a reservation starts in front of it: its claim says that it is suspended."""
    reservation = reserve(world)
    first = work(world)
    begin, end = world.lease("batch", first)["approved"]["term"]
    assert end == START
    assert "its broker suspends it" in _failed(world, "lease.extend", lease=first, end=2 * HOUR)
    world.run_until(START + 5 * SECOND)
    assert world.kept() == [(first, "saved")] * 2
    assert world.lease("web", reservation)["state"] == "active"
    world.run_until(END + 30 * SECOND)
    rest = world.named("batch", "work")
    assert rest["state"] == "active" and rest["resumes"]["lease"] == first
    left = HOUR - 2 * SECOND - (START - 10 * SECOND - begin)
    assert rest["approved"]["term"][1] - rest["approved"]["term"][0] == left + 10 * SECOND


@pytest.mark.parametrize("at", [START - 10 * SECOND + 500, START + MINUTE, END + 200])
def test_everybody_restarts(world: SavingWorld, at: int) -> None:
    """Whenever they do, while units are being saved, while they are kept, or set up again, nothing is lost."""
    first = work(world)
    reserve(world)
    world.run_until(at)
    for name in ("site", "broker", "batch"):
        world.restart(name)
    world.run_until(END + MINUTE)
    rest = world.named("batch", "work")
    assert rest["state"] == "active" and rest["resumes"]["lease"] == first
    keys = [action.properties.get(RESUME) for action in world.done_for("setup", rest["id"])]
    assert set(keys) == {saved_key(first, "vm-0"), saved_key(first, "vm-1")}
    assert world.kept() == []


def test_only_its_holder_resumes_it(world: SavingWorld) -> None:
    """Another guest that names a lease, or a key, gets units that are set up anew, and hears so."""
    first = work(world)
    reserve(world)
    world.run_until(START + MINUTE)
    thief = {"resume": first, RESUME: saved_key(first, "vm-0"), SAVE: "saved-0"}
    stolen = world.request("web", 4, END, HOUR, configuration=thief)
    world.run_until(END + MINUTE)
    assert world.lease("web", stolen)["state"] == "active"
    actions = world.done_for("setup", stolen)
    assert actions and not any(RESUME in action.properties or SAVE in action.properties for action in actions)
    assert world.lease("web", stolen)["reason"].count("set up anew") == 4
    assert world.kept() == [(first, "saved")] * 2


def test_who_has_but_its_name_does_not(world: SavingWorld) -> None:
    """Another guest under the name of a former one, with a key of its own, does not get what that one left."""
    first = work(world, 1)
    reserve(world)
    world.run_until(START + MINUTE)
    (kept,) = world.site().saved.units.values()
    kept.holder_key = b"x" * 32
    world.run_until(END + MINUTE)
    rest = world.named("batch", "work")
    assert rest["resumes"]["lease"] == first and "set up anew" in rest["reason"]
    assert world.kept() == [(first, "saved")]


def test_it_is_kept_for_a_while(world: SavingWorld) -> None:
    """What nobody resumes is thrown away after that; a lease that comes too late has its units set up anew."""
    first = work(world)
    reserve(world)
    world.run_until(START + MINUTE)
    rest = world.named("batch", "work")["id"]
    world.command("batch", "lease.close", lease=rest)
    world.run_until(START + 7 * DAY + MINUTE)
    dropped = [action.unit for action in world.told if action.op == DROP]
    assert sorted(dropped) == sorted(saved_key(first, unit) for unit in ("vm-0", "vm-1"))
    assert world.kept() == []
    late = world.request("batch", 1, world.now, world.now + HOUR, configuration={"resume": first})
    world.pass_time(MINUTE)
    assert "set up anew: nothing of" in world.lease("batch", late)["reason"]


def test_throwing_away_is_tried_again(world: SavingWorld) -> None:
    """What could not be thrown away stays on the books, is nobody's, and goes later; also over a restart."""
    first = work(world)
    reserve(world)
    world.run_until(START + MINUTE)
    world.command("batch", "lease.close", lease=world.named("batch", "work")["id"])
    world.fates.append(lambda action: Outcome(SECOND, False, {}, "no") if action.op == DROP else None)
    world.run_until(START + 7 * DAY + MINUTE)
    assert world.kept() == [("", "saved")] * 2 and first
    world.fates.clear()
    world.restart("site")
    world.pass_time(2 * HOUR)
    assert world.kept() == []


def test_a_restart_while_it_is_thrown_away(world: SavingWorld) -> None:
    """The site has it thrown away again: nobody would ask for that any more."""
    work(world, 1)
    reserve(world)
    world.run_until(START + MINUTE)
    world.command("batch", "lease.close", lease=world.named("batch", "work")["id"])
    world.fates.append(lambda action: Outcome(DAY, True, {}, "") if action.op == DROP else None)
    world.run_until(START + 7 * DAY)
    assert [action.op for action in world.told].count(DROP) == 1 and len(world.kept()) == 1
    world.fates.clear()
    world.restart("site")
    world.pass_time(2 * MINUTE)
    assert world.kept() == []


def test_its_guest_closes_it(world: SavingWorld) -> None:
    """A lease that its guest closes before it is suspended is over: nothing is saved, and nobody asks for the rest."""
    first = work(world)
    reserve(world)
    world.command("batch", "lease.close", lease=first)
    world.run_until(END + MINUTE)
    assert world.kept() == []
    assert {message.lease for message in world.letters(RequestTicket, "batch")} == {first}


def test_it_is_closed_before_its_site_hears_again_that_it_is_suspended(world: SavingWorld) -> None:
    """What its guest closes stays closed for good, though its broker's word on it comes once more."""
    first = work(world)
    reserve(world)
    (told,) = world.letters(Truncated, "broker")
    world.fates.append(lambda action: Outcome(MINUTE, True, {}, "") if action.op == "teardown" else None)
    world.command("batch", "lease.close", lease=first)
    world.pass_time(5 * SECOND)
    assert world.lease("site", first)["pending"] == "closing"
    world.receive("site", "broker", told)
    assert world.site().leases[first].saves is False
    world.run_until(START)
    assert world.lease("site", first)["state"] == "closed" and world.kept() == []
    assert world.lease("batch", first)["reason"] == "closed by its guest"


def test_its_slice_is_closed_meanwhile(world: SavingWorld) -> None:
    """Nor is the rest asked for of a lease whose slice is closed while it is being suspended."""
    first = work(world)
    reserve(world)
    world.run_until(START - 10 * SECOND + 500)
    assert world.lease("batch", first)["pending"] == "closing"
    world.command("batch", "slice.close", name="default")
    world.run_until(END + MINUTE)
    assert {message.lease for message in world.letters(RequestTicket, "batch")} == {first}


def test_room_on_its_way_is_counted(world: SavingWorld) -> None:
    """While the site has not heard of a suspension nobody else is suspended for the same reservation."""
    first = work(world, 2)
    second = world.request("batch", 2, world.now, world.now + HOUR, properties=SAVING)
    world.pass_time(MINUTE)
    world.lost.add(("broker", "site", "Truncated"))
    reservation = world.request("web", 2, START, END)
    world.pass_time(2 * SECOND)
    hurt = {message.lease for message in world.letters(Truncated)}
    assert hurt == {second}, "the one that has run for the shortest time"
    other = world.request("web", 1, world.now, world.now + MINUTE)  # the mapper looks again
    world.pass_time(2 * SECOND)
    assert {message.lease for message in world.letters(Truncated)} == {second}
    assert world.broker("broker").errors == []
    world.lost.clear()
    world.pass_time(5 * SECOND)
    assert world.lease("web", reservation)["state"] == "ticketed"
    assert world.lease("batch", first)["suspends"] is False
    assert world.lease("web", other)["state"] in ("nascent", "failed")


def test_its_place_in_line(world: SavingWorld) -> None:
    """The rest waits since its lease was first asked for, once: nobody gets further by saying that it resumes it."""
    first = work(world)
    asked = world.broker("broker").leases[first].waits.arrived
    reserve(world)
    world.run_until(START + MINUTE)
    rest = world.named("batch", "work")["id"]
    assert world.broker("broker").leases[rest].waits.arrived == asked
    again = world.request("batch", 1, END, HOUR, properties={**SAVING, "resumes": first})
    stolen = world.request("web", 1, END, HOUR, properties={**SAVING, "resumes": first})
    world.pass_time(SECOND)
    assert min(world.broker("broker").leases[lease].waits.arrived for lease in (again, stolen)) > asked


def test_what_can_not_be_saved(world: SavingWorld) -> None:
    """A unit that its driver can't save is torn down as ever, and the lease says so; its successor is set up anew."""

    def fate(action: Action) -> Outcome | None:
        lost = action.op == "teardown" and action.unit == "vm-0" and SAVE in action.properties
        return Outcome(SECOND, True, {NOT_SAVED: "the disk is full"}, "") if lost else None

    world.fates.append(fate)
    first = work(world)
    reserve(world)
    world.run_until(START + MINUTE)
    assert "vm-0 was not saved: the disk is full" in world.lease("batch", first)["reason"]
    assert world.kept() == [(first, "saved")]
    world.run_until(END + MINUTE)
    rest = world.named("batch", "work")
    assert rest["state"] == "active"
    assert rest["reason"].count("set up anew") == 1


def test_what_is_gone_from_the_driver(world: SavingWorld) -> None:
    """A driver that finds nothing any more sets the unit up anew, and the unit says so."""
    work(world, 1)
    reserve(world)
    world.fates.append(
        lambda action: Outcome(SECOND, True, {NOT_RESUMED: "it is gone"}, "") if RESUME in action.properties else None
    )
    world.run_until(END + MINUTE)
    rest = world.named("batch", "work")
    (unit,) = rest["units"]
    assert rest["reason"] == f"unit {unit['unit']}: set up anew: it is gone"
    assert NOT_RESUMED not in unit["properties"]
    assert world.kept() == []


def test_setups_that_fail(world: SavingWorld) -> None:
    """What is saved is given to another unit when a setup fails; after the second it is thrown away, and the next is
    set up anew.
    """
    first = work(world, 1)
    reserve(world)
    world.fates.append(
        lambda action: Outcome(SECOND, False, {}, "it won't start") if RESUME in action.properties else None
    )
    world.run_until(END + MINUTE)
    rest = world.named("batch", "work")
    assert rest["state"] == "active"
    keys = [action.properties.get(RESUME) for action in world.done_for("setup", rest["id"])]
    assert keys == [saved_key(first, "vm-0")] * 2 + [None]
    assert [action.unit for action in world.told if action.op == DROP] == [saved_key(first, "vm-0")]
    assert world.kept() == []


def test_suspended_again_before_it_is_up(world: SavingWorld) -> None:
    """A lease that is suspended while it is being set up from what was saved keeps that for the next."""
    first = work(world, 1)
    reserve(world)
    slow = END + 30 * SECOND
    world.fates.append(
        lambda action: Outcome(HOUR, True, {}, "") if RESUME in action.properties and world.now < slow else None
    )
    world.run_until(END + MINUTE)
    second = world.named("batch", "work")["id"]
    assert second != first
    _decide(world, Preempt(second, world.now + 30 * SECOND, "go", suspend=True))
    world.pass_time(3 * MINUTE)
    third = world.named("batch", "work")
    assert third["id"] not in (first, second) and third["state"] == "active"
    assert [action.properties.get(RESUME) for action in world.done_for("setup", third["id"])] == [
        saved_key(first, "vm-0")
    ]


def test_only_so_many_are_kept(tmp_path: Path) -> None:
    """Beyond a holder's share units are torn down as ever, and their lease says so."""
    world = SavingWorld(TEXT, tmp_path, changes={"actor.site.settings.saved_max": 1})
    first = work(world)
    reserve(world)
    world.run_until(START + MINUTE)
    assert world.kept() == [(first, "saved")]
    assert "1 of its holder's are kept already" in world.lease("batch", first)["reason"]


def test_a_site_that_saves_nothing(tmp_path: Path) -> None:
    """Its leases are not suspended: a mapper that says so is told why, and a reservation is refused."""
    world = SavingWorld(TEXT.replace(", save = true", ""), tmp_path)
    first = work(world)
    reservation = reserve(world)
    assert world.lease("web", reservation)["state"] == "failed"
    _decide(world, Preempt(first, START, "go", suspend=True))
    assert "its site saves no 'vm'" in world.broker("broker").errors[-1]
    assert world.letters(Truncated) == []


def test_what_can_not_be_suspended(world: SavingWorld) -> None:
    """A lease that doesn't say how long it takes, or has no time for it, is left alone, and the mapper told why."""
    lease = world.request("batch", 1, 2 * SECOND, HOUR, properties={"preemptible": "true"})
    saved = work(world, 1)
    for id_, at, words in (
        (lease, START, "doesn't say how long"),
        (saved, world.now + SECOND, "can't be suspended by"),
    ):
        _decide(world, Preempt(id_, at, "go", suspend=True))
        assert words in world.broker("broker").errors[-1]
    assert "goes with preemptible" in _failed(
        world, "lease.request", type="vm", units=1, term=[world.now, HOUR], properties={"suspend": "10s"}
    )
    assert "properties.suspend" in _failed(
        world, "lease.request", type="vm", units=1, term=[world.now, HOUR], properties={**SAVING, "suspend": "soon"}
    )


def test_the_rest_asks_as_the_lease_did(world: SavingWorld) -> None:
    """Its window moves on by the time that it ran; what said how the lease was to begin is left out."""
    latest = 30 * MINUTE
    more = {"latest_start": str(latest), "image": "debian", "prepare": "1m", "filter": "type == vm", "elastic": "true"}
    first = world.request("batch", 2, 2 * SECOND, HOUR, name="work", properties={**SAVING, **more})
    world.pass_time(2 * MINUTE)
    reserve(world)
    world.run_until(START + MINUTE)
    asked = world.letters(RequestTicket, "batch")[-1]
    assert asked.site == "site" and asked.units == 2
    begin = world.lease("batch", first)["approved"]["term"][0] + MINUTE
    assert asked.properties == {
        **SAVING, "prepare": "10s", "resumes": first, "filter": "type == vm",
        "latest_start": str(latest + START - 10 * SECOND - begin),
    }  # fmt: skip


def _decide(world: SavingWorld, decision: Any) -> None:
    broker = world.broker("broker")
    broker.turns.running = broker.kernel.next("turn")
    broker.step(TurnDone(broker.turns.running, [decision]))
    world.feed("broker", [])


def _failed(world: SavingWorld, command: str, **arguments: Any) -> str:
    reply = world.command("batch", command, **arguments)
    if reply.error:
        return reply.error
    world.pass_time(SECOND)
    lease = reply.result.get("lease", reply.result.get("id"))
    reason: str = world.lease("batch", lease)["reason"]
    return reason


def test_units_make_room_in_their_own_size(tmp_path: Path) -> None:
    """A whole host that is suspended makes room for several machines."""
    text = TEXT.replace("units = 4 }", 'units = 1, capacity = { cpu = 4, memory = "8GiB" } }')
    world = SavingWorld(text, tmp_path)
    first = work(world, 1)
    machines = {"needs.cpu": "2000", "needs.memory": "1024"}
    reservation = world.request("web", 2, START, END, properties=machines)
    world.run_until(START + 30 * SECOND)
    assert world.lease("batch", first)["state"] == "closed" and world.kept() == [(first, "saved")]
    assert world.lease("web", reservation)["state"] == "active"
