"""The contract of :class:`leasekit.core.drivers.Driver`, over every driver of ``driver_harnesses``."""

from __future__ import annotations

import itertools

import pytest
import trio
from cancelling import CancelledAt, Place
from polling import PATIENCE

from leasekit.core.drivers import LEASE, DriverError


async def test_setup_makes_a_unit_and_teardown_leaves_nothing(harness, make_unit):
    """A unit that was set up is up and has string properties; after teardown it is not up and nothing is left of it."""
    driver = harness.driver
    properties = await driver.setup(make_unit("u1"))
    assert properties
    assert all(isinstance(text, str) for pair in properties.items() for text in pair)
    assert (await driver.probe(make_unit("u1", "probe"))).state == "up"
    await driver.teardown(make_unit("u1", "teardown", 2))
    assert (await driver.probe(make_unit("u1", "probe"))).state == "down"
    assert harness.leftovers() == []


async def test_setup_is_idempotent(harness, make_unit):
    """Setup with the same number again, by a restarted daemon too, changes nothing and returns the same properties."""
    first = await harness.driver.setup(make_unit("u1"))
    before = harness.leftovers()
    assert await harness.driver.setup(make_unit("u1")) == first
    assert await harness.reopen().setup(make_unit("u1")) == first
    assert sorted(harness.leftovers()) == sorted(before)
    await harness.reopen().teardown(make_unit("u1", "teardown", 2))
    assert harness.leftovers() == []


async def test_teardown_is_idempotent(harness, make_unit):
    """Teardown of what is gone, or was never there, succeeds."""
    await harness.driver.teardown(make_unit("never", "teardown"))
    await harness.driver.setup(make_unit("u1"))
    for _ in range(2):
        await harness.driver.teardown(make_unit("u1", "teardown", 2))
    await harness.reopen().teardown(make_unit("u1", "teardown", 2))
    assert harness.leftovers() == []


async def test_a_unit_can_be_set_up_again(harness, make_unit):
    """After teardown the same unit is set up for another lease."""
    for number in (1, 3, 5):
        await harness.driver.setup(make_unit("u1", number=number, lease=f"lease-{number}"))
        assert (await harness.driver.probe(make_unit("u1", "probe"))).state == "up"
        await harness.driver.teardown(make_unit("u1", "teardown", number + 1))
    assert harness.leftovers() == []


async def test_a_cancelled_setup_leaves_nothing(harness, make_unit):
    """Setup that is cancelled in the middle ends soon, with no process and no file left, and can be done again."""
    slow = harness.slow()
    with trio.fail_after(PATIENCE), trio.move_on_after(0.3) as scope:
        await slow.setup(make_unit("u1"))
    assert scope.cancelled_caught
    assert harness.leftovers() == []
    assert (await slow.probe(make_unit("u1", "probe"))).state != "up"
    await harness.driver.setup(make_unit("u1"))
    await harness.driver.teardown(make_unit("u1", "teardown", 2))
    assert harness.leftovers() == []


@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.soak)])
async def test_setup_cancelled_at_each_step_leaves_nothing(harness, make_unit, every):
    """At whichever line of a driver a setup waits when it is cancelled (`make test` has every fourth one), a teardown
    after it, which has a newer number, leaves nothing; and the unit is set up for its next lease.
    """
    to_try: list[Place] = [()]
    lines: set[str] = set()
    places = itertools.count()
    for number in itertools.count(1, 2):
        lease, setup = f"lease-{number}", CancelledAt(to_try.pop())
        await setup.run(harness.driver.setup(make_unit("u1", number=number, lease=lease)))
        await harness.driver.teardown(make_unit("u1", "teardown", number + 1, lease=lease))
        assert harness.leftovers() == [], setup.place
        for place in setup.seen:
            if not lines.issuperset(place):
                lines.update(place)
                if next(places) % every == 0:
                    to_try.append(place)
        if not to_try:
            break
    assert lines


@pytest.mark.parametrize("units", [3, pytest.param(20, marks=pytest.mark.soak)])
async def test_many_units_at_once(harness, make_unit, units):
    """Units are set up and torn down at the same time, each with a name of its own."""
    found = {}

    async def one(unit: str) -> None:
        found[unit] = await harness.driver.setup(make_unit(unit))
        await harness.driver.setup(make_unit(unit))
        await harness.driver.teardown(make_unit(unit, "teardown", 2))

    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            for number in range(units):
                nursery.start_soon(one, f"unit-{number}")
    assert len(found) == units
    assert len({tuple(sorted(properties.items())) for properties in found.values()}) == units
    assert harness.leftovers() == []


async def test_a_failed_setup_says_why_and_leaves_nothing(harness, make_unit):
    """What fails raises DriverError with a reason of one line, and leaves nothing."""
    with pytest.raises(DriverError) as caught:
        await harness.failing("the disk is on fire").setup(make_unit("u1"))
    reason = str(caught.value)
    assert "disk is on fire" in reason or "setup of u1 failed" in reason
    assert reason.isprintable()
    assert harness.leftovers() == []


async def test_probe_of_an_unknown_unit(harness, make_unit):
    """A unit that was never there is not up."""
    assert (await harness.driver.probe(make_unit("never", "probe"))).state in ("down", "unknown")


async def test_modify_returns_properties(harness, make_unit):
    """A unit that is up takes other properties, and is up after it."""
    first = await harness.driver.setup(make_unit("u1"))
    changed = await harness.driver.modify(make_unit("u1", "modify", 2, properties={"cap": "50"}))
    assert all(isinstance(text, str) for pair in changed.items() for text in pair)
    assert set(first) - set(changed) <= {"pid"}
    assert (await harness.driver.probe(make_unit("u1", "probe"))).state == "up"
    await harness.driver.teardown(make_unit("u1", "teardown", 3))
    assert harness.leftovers() == []


async def test_an_unknown_operation_is_refused(harness, make_unit):
    """An operation that the driver does not have is refused by name, and not worth a retry."""
    await harness.driver.setup(make_unit("u1"))
    with pytest.raises(DriverError, match="'levitate'") as caught:
        await harness.driver.operate(make_unit("u1", "operate"), "levitate", {})
    assert not caught.value.retry
    await harness.driver.teardown(make_unit("u1", "teardown", 2))


HOSTILE = ["", ".", "..", "../up", "a/b", "/nowhere", "-rf", "$(id)", "`id`", 'q"q', "q'q", "a b", "a\nb", "a\0b", "é"]
HOSTILE += ["x" * 64, "a/../b", "a//b", "a;b", "u*"]


@pytest.mark.parametrize("unit", HOSTILE)
async def test_hostile_unit_ids_touch_nothing_outside(harness, make_unit, unit, tmp_path):
    """A unit id with separators, quotes, controls or substitutions is refused, or taken as the name it is."""
    outside = {path for path in tmp_path.rglob("*") if "units" not in path.parts}
    try:
        await harness.driver.setup(make_unit(unit))
    except DriverError as error:
        assert not error.retry
        assert str(error).isprintable()
    else:
        await harness.driver.teardown(make_unit(unit, "teardown", 2))
    assert {path for path in tmp_path.rglob("*") if "units" not in path.parts} == outside


SAID = {
    "image": "a\0b", "slice.key": "\x1b[2J", "vcpus": "\0", "memory_mb": "-1", "link.granule_mbps": "\ud800",
    "\0": "\0", "lease_holder": "mallory", "lease.save": "../..", "lease.resume": "a/b", "name": "\n", "host": "\r",
}  # fmt: skip
ALONE = ("slice.key", "\0", "lease.resume")
"""What `make test` has a guest say alone, too, beside all at once; `make soak` has each."""


@pytest.mark.parametrize(
    "key", [None, *(pytest.param(key, marks=() if key in ALONE else pytest.mark.soak) for key in SAID)]
)
async def test_whatever_a_guest_says_is_its_leases_fault_and_hinders_no_teardown(harness, make_unit, key):
    """A setup refuses what a guest said, by its lease's fault, or takes it for nothing; its unit goes all the same."""
    said = SAID if key is None else {key: SAID[key]}
    try:
        await harness.driver.setup(make_unit("u1", configuration=said))
    except DriverError as error:
        assert (error.blame, error.retry) == (LEASE, False)
    await harness.driver.teardown(make_unit("u1", "teardown", 2, configuration=said))
    assert harness.leftovers() == []
