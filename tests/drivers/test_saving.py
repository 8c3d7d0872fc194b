"""Drivers that can save a unit, and have another go on from it: the contract of the capability ``save``."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from driver_harnesses import HARNESSES, DriverHarness, ProcessHarness

from leasekit.core.drivers import DROP, NOT_RESUMED, NOT_SAVED, RESUME, SAVE, DriverError
from leasekit.drivers.members import ask, unit_address

SAVING = ("libvirt", "null", "process")
SAVED, RESUMED = {SAVE: "saved-1"}, {RESUME: "saved-1"}


@pytest.fixture(params=SAVING)
def saver(request: pytest.FixtureRequest, tmp_path: Path) -> DriverHarness:
    """The drivers that say that they can."""
    made = HARNESSES[request.param](tmp_path / "driver")
    assert "save" in made.driver.capabilities and DROP in made.driver.operations
    return made


async def test_saved_and_resumed_as_another_unit(saver, make_unit):
    """Teardown ends the unit and keeps it; another goes on from it, once: the next finds nothing and says so."""
    driver = saver.driver
    await driver.setup(make_unit("u1"))
    assert not await driver.teardown(make_unit("u1", "teardown", 2, properties=SAVED))
    assert (await driver.probe(make_unit("u1", "probe"))).state == "down"
    assert saver.leftovers() == []
    found = await driver.setup(make_unit("u2", number=3, properties=RESUMED))
    assert NOT_RESUMED not in found
    assert (await driver.probe(make_unit("u2", "probe"))).state == "up"
    late = await driver.setup(make_unit("u3", number=4, properties=RESUMED))
    assert late[NOT_RESUMED]
    assert (await driver.probe(make_unit("u3", "probe"))).state == "up"
    for unit in ("u2", "u3"):
        await driver.teardown(make_unit(unit, "teardown", 5))
    assert saver.leftovers() == []


async def test_each_action_twice(saver, make_unit):
    """Saving and resuming again under the same number, as after a restart, change nothing."""
    driver = saver.driver
    await driver.setup(make_unit("u1"))
    for _ in range(2):
        assert not await driver.teardown(make_unit("u1", "teardown", 2, properties=SAVED))
    for _ in range(2):
        assert NOT_RESUMED not in await driver.setup(make_unit("u1", number=3, properties=RESUMED))
    await driver.teardown(make_unit("u1", "teardown", 4))
    assert saver.leftovers() == []


async def test_what_is_dropped_is_gone(saver, make_unit):
    """What is thrown away can't be resumed; throwing away what is gone, or never was, is done."""
    driver = saver.driver
    await driver.setup(make_unit("u1"))
    await driver.teardown(make_unit("u1", "teardown", 2, properties=SAVED))
    for key in ("saved-1", "saved-1", "saved-2"):
        await driver.operate(make_unit(key, DROP, 3), DROP, {})
    assert (await driver.setup(make_unit("u1", number=4, properties=RESUMED)))[NOT_RESUMED]
    await driver.teardown(make_unit("u1", "teardown", 5))


async def test_a_setup_that_fails_leaves_what_was_saved(saver, make_unit):
    """What a failed setup was to go on from is there for the next."""
    driver = saver.driver
    await driver.setup(make_unit("u1"))
    await driver.teardown(make_unit("u1", "teardown", 2, properties=SAVED))
    if isinstance(saver, ProcessHarness):
        with pytest.raises(DriverError):
            await saver.failing("no").setup(make_unit("u2", number=3, properties=RESUMED))
        assert saver.leftovers() == []
        driver = saver.reopen()
    assert NOT_RESUMED not in await driver.setup(make_unit("u3", number=4, properties=RESUMED))
    await driver.teardown(make_unit("u3", "teardown", 5))


async def test_a_process_finds_its_files(process_harness, make_unit):
    """What a program wrote is there when it starts again, as another unit and for a restarted daemon."""
    first = await process_harness.driver.setup(make_unit("u1"))
    work = process_harness.directory / "units" / "u1" / "work"
    (work / "checkpoint").write_text("step 7")
    await process_harness.driver.teardown(make_unit("u1", "teardown", 2, properties=SAVED))
    driver = process_harness.reopen()
    found = await driver.setup(make_unit("u2", number=3, properties=RESUMED))
    assert (process_harness.directory / "units" / "u2" / "work" / "checkpoint").read_text() == "step 7"
    assert (await ask(unit_address(found), "identity", 5000))["unit"] == "u2"
    assert found["name"] == "u2" and first["name"] == "u1"
    await driver.teardown(make_unit("u2", "teardown", 4))
    assert process_harness.leftovers() == []
    assert list((process_harness.directory / "saved").iterdir()) == []


async def test_a_setup_that_is_cancelled_puts_it_back(process_harness, make_unit):
    """Wherever a setup is cancelled, and a teardown follows, what it was to go on from is put back whole."""
    driver = process_harness.driver
    await driver.setup(make_unit("u1"))
    (process_harness.directory / "units" / "u1" / "work" / "checkpoint").write_text("step 7")
    await driver.teardown(make_unit("u1", "teardown", 2, properties=SAVED))
    for step in range(10):
        unit, done = f"u{step}", False
        with trio.move_on_after(step * 0.01):
            await driver.setup(make_unit(unit, number=3 + step, properties=RESUMED))
            done = True
        if done:
            await driver.teardown(make_unit(unit, "teardown", 50, properties=SAVED))
        else:
            await driver.teardown(make_unit(unit, "teardown", 50))
        assert process_harness.leftovers() == []
        kept = process_harness.directory / "saved" / "saved-1" / "work" / "checkpoint"
        assert kept.read_text() == "step 7"


async def test_a_daemon_killed_in_between(process_harness, make_unit):
    """A directory that was moved when the daemon died belongs to what was saved until the unit is ready."""
    driver = process_harness.driver
    await driver.setup(make_unit("u1"))
    await driver.teardown(make_unit("u1", "teardown", 2, properties=SAVED))
    units, kept = process_harness.directory / "units", process_harness.directory / "saved" / "saved-1"
    kept.rename(units / "u2")
    await process_harness.reopen().teardown(make_unit("u2", "teardown", 4))
    assert kept.is_dir() and process_harness.leftovers() == []
    kept.rename(units / "u2")
    found = await process_harness.reopen().setup(make_unit("u2", number=5, properties=RESUMED))
    assert NOT_RESUMED not in found
    await driver.teardown(make_unit("u2", "teardown", 6))
    assert not kept.exists() and process_harness.leftovers() == []


async def test_what_can_not_be_saved_is_torn_down(process_harness, make_unit):
    """A unit that can't be put aside is gone all the same, and so is one that was not there; both say why."""
    driver = process_harness.driver
    assert (await driver.teardown(make_unit("u1", "teardown", 1, properties=SAVED)))[NOT_SAVED] == "it was not running"
    await driver.setup(make_unit("u1", number=2))
    (process_harness.directory / "saved").write_text("in the way")
    lost = await driver.teardown(make_unit("u1", "teardown", 3, properties=SAVED))
    assert "File exists" in lost[NOT_SAVED]
    assert process_harness.leftovers() == []


@pytest.mark.parametrize("key", ["..", "../up", "a/b", "", "a b"])
async def test_hostile_keys(process_harness, make_unit, key, tmp_path):
    """A key that is no plain name is refused, whoever made it up."""
    await process_harness.driver.setup(make_unit("u1"))
    refused = [("setup", {RESUME: key}), ("teardown", {SAVE: key})] if key else []
    for op, properties in refused:
        with pytest.raises(DriverError) as caught:
            await getattr(process_harness.driver, op)(make_unit("u2", op, 2, properties=properties))
        assert not caught.value.retry
    with pytest.raises(DriverError):
        await process_harness.driver.operate(make_unit(key, DROP), DROP, {})
    await process_harness.driver.teardown(make_unit("u1", "teardown", 3))
    assert process_harness.leftovers() == []
