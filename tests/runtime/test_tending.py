"""Looking after a site's units: probes, what is left of old ones, and an operator's actions on one that is up."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import attrs
import pytest
import trio
from limited_drivers import limited
from polling import PATIENCE
from runtime.runtime_world import delegated, make_shell, request, running, until

from leasekit.core.answers import OrphanReport, OrphanTrouble, ProbedUnit
from leasekit.core.drivers import DriverError, Orphan, PartlyToldError, ProbeResult, UnitContext
from leasekit.core.errors import CommandError
from leasekit.drivers.null import NullDriver, NullSettings
from leasekit.runtime.shell import ActorShell
from leasekit.runtime.tending import Tending


class Frail(NullDriver):
    """A driver whose units go down, and leave things behind, as the test says."""

    operations = frozenset({"restart"})

    def __init__(self) -> None:
        super().__init__(NullSettings())
        self.down: set[str] = set()
        self.once: set[str] = set()
        self.broken = False
        self.says: Any = None
        self.probed: list[str] = []
        self.left: set[str] = set()
        self.torn: list[str] = []
        self._changed = trio.Event()

    async def until_probed(self, count: int) -> None:
        """Wait until there were so many probes in all."""
        with trio.fail_after(PATIENCE):
            while len(self.probed) < count:
                await self._changed.wait()

    async def probe(self, unit: UnitContext) -> ProbeResult:
        """Down where the test says so: for good, or the first time only."""
        await trio.lowlevel.checkpoint()
        self.probed.append(unit.unit)
        self._changed.set()
        self._changed = trio.Event()
        if self.broken:
            raise ZeroDivisionError("a plug-in's own mistake")
        if self.says is not None:
            return self.says
        if unit.unit in self.down or unit.unit in self.once:
            self.once.discard(unit.unit)
            return ProbeResult(state="down", detail="it was unplugged")
        return ProbeResult(state="up", measured={"load": 0.5})

    async def teardown(self, unit: UnitContext) -> None:
        """Removes what is left."""
        await trio.lowlevel.checkpoint()
        self.torn.append(unit.unit)
        self.left.discard(unit.unit)
        self.down.discard(unit.unit)

    async def orphans(self, known: Collection[str]) -> list[Orphan]:
        """What is left."""
        await trio.lowlevel.checkpoint()
        return [Orphan("here", unit, "folder", f"/units/{unit}") for unit in sorted(self.left) if unit not in known]

    async def operate(self, unit: UnitContext, operation: str, arguments: Mapping[str, Any]) -> dict[str, str]:
        """Says what it was asked for."""
        await trio.lowlevel.checkpoint()
        if operation == "stumble":
            raise ZeroDivisionError("one too few")
        if operation not in self.operations:
            raise DriverError(f"found {operation!r}", retry=False)
        return {"did": f"{operation} {unit.unit} {unit.lease} {dict(arguments)}"}


@attrs.define
class Place:
    """A site whose two units are leased, with its guest."""

    driver: Frail
    site: ActorShell
    guest: ActorShell
    tending: Tending
    lease: str

    def held(self) -> list[str]:
        """The names of the units that the guest has."""
        return [unit["unit"] for unit in self.guest.actor.query("lease", {"lease": self.lease})["units"]]


@asynccontextmanager
async def leased(folder: Path, every: int = 20, **more: Any) -> AsyncIterator[Place]:
    """Two units of four, leased."""
    driver = Frail()
    bound = limited(driver, retries=0, probe_every=every)
    site, broker, guest = (
        make_shell(name, folder / name, driver_of=lambda type_: bound) for name in ("site", "broker", "guest")
    )
    async with running(site, broker, guest):
        await delegated(site)
        lease = (await guest.command("lease.request", request(2, **more)))["id"]
        await until(guest, lambda: guest.actor.query("lease", {"lease": lease})["join"] == "joined")
        tending = Tending(site, [bound], again_after=0.01)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(tending.run)
            yield Place(driver, site, guest, tending, lease)
            nursery.cancel_scope.cancel()


async def test_a_unit_that_goes_down_is_replaced(tmp_path):
    """A unit that is down twice in a row is torn down, another takes its place, and the guest hears of both."""
    async with leased(tmp_path) as place:
        assert place.held() == ["vm-0", "vm-1"]
        place.driver.down.add("vm-0")
        await until(place.guest, lambda: place.held() == ["vm-1", "vm-2"])
        assert place.driver.torn == ["vm-0"]
        told = place.site.actor.query("lease", {"lease": place.lease})
        assert (told["state"], told["units"]) == ("active", ["vm-1", "vm-2"])
        assert any("found down: it was unplugged" in row.why for row in await place.site.history(place.lease))


async def test_a_lease_that_accepts_fewer_gets_no_other(tmp_path):
    """Where a lease accepts a deficit, a unit that goes down is taken from it and nothing more; the reason says why."""
    async with leased(tmp_path, configuration={"deficit": "accept"}) as place:
        place.driver.down.add("vm-1")
        await until(place.guest, lambda: place.held() == ["vm-0"])
        told = place.guest.actor.query("lease", {"lease": place.lease})
        assert told["reason"] == "1 of 2 units are missing: unit vm-1: found down: it was unplugged"


async def test_one_bad_answer_is_not_enough(tmp_path):
    """A unit that is down once and up again stays; and a driver that fails in its probe harms nobody."""
    async with leased(tmp_path) as place:
        place.driver.once.add("vm-0")
        await place.driver.until_probed(len(place.driver.probed) + 9)
        place.driver.broken = True
        await place.driver.until_probed(len(place.driver.probed) + 6)
        assert place.held() == ["vm-0", "vm-1"]
        with pytest.raises(CommandError, match="the driver failed in probe: ZeroDivisionError"):
            await place.tending.requests["unit.probe"]({"unit": "vm-0"})
        place.driver.broken, place.driver.says = False, "up"
        await place.driver.until_probed(len(place.driver.probed) + 6)
        assert place.held() == ["vm-0", "vm-1"]
        with pytest.raises(CommandError, match="probe returned 'up', expected ProbeResult"):
            await place.tending.requests["unit.probe"]({"unit": "vm-0"})


async def test_what_a_machine_uses_is_told(tmp_path):
    """The actor hears of each machine what its driver's probe says; a machine that has changed hands is none."""
    told: list[tuple[str, Mapping[str, Any]]] = []

    class Hears:
        async def command(self, name: str, arguments: Mapping[str, Any]) -> None:
            told.append((name, arguments))
            raise CommandError("it was set up anew")

    tending = Tending(cast(ActorShell, Hears()), [])
    unit = {"unit": "a.1", "lease": "l", "setup": 7, "properties": {"unit.host": "a"}}
    await tending._tell_use(unit, ProbeResult(state="up", measured={"cpu": 312.4}))
    await tending._tell_use({**unit, "properties": {}}, ProbeResult(state="up", measured={"cpu": 1}))
    await tending._tell_use(unit, ProbeResult(state="up", measured={"vcpus": 1}))
    assert told == [("unit.measured", {"unit": "a.1", "lease": "l", "setup": 7, "cpu": 312})]


async def test_what_a_probe_found_too_late_changes_nothing(tmp_path):
    """What was found of a unit that has another lease by now, or was set up anew, is not held against it."""
    async with leased(tmp_path, every=0) as place:
        (seen,) = [unit for unit in place.site.actor.query("watched", {}) if unit["unit"] == "vm-0"]
        for changed in ({"lease": "another"}, {"setup": seen["setup"] + 1}):
            late = {key: seen[key] for key in ("unit", "lease", "setup")} | changed
            with pytest.raises(CommandError, match="vm-0 has another lease by now, or was set up anew"):
                await place.site.command("unit.fail", late)
        with pytest.raises(CommandError, match="unit vm-3 is free"):
            await place.site.command("unit.fail", {"unit": "vm-3"})
        with pytest.raises(CommandError, match="no unit 'vm-99' here"):
            await place.site.command("unit.fail", {"unit": "vm-99"})
        assert place.held() == ["vm-0", "vm-1"]


async def test_what_is_left_of_old_units(tmp_path):
    """Things of units that nobody has are told and, when that is wanted, removed; those of leased units stay."""
    async with leased(tmp_path, every=0) as place:
        place.driver.left |= {"vm-0", "vm-3", "old-9"}
        listed = await place.tending.requests["orphans.list"]({})
        assert [one.unit for one in listed.orphans] == ["old-9", "vm-3"]
        assert place.tending.describe() == listed
        (only,) = (await place.tending.requests["orphans.list"]({"unit": "old-9"})).orphans
        assert await place.tending.requests["orphans.remove"]({"unit": "old-9"}) == OrphanReport([only], [])
        assert place.driver.left == {"vm-0", "vm-3"}
        await place.tending.requests["orphans.remove"]({})
        assert place.driver.left == {"vm-0"}
        assert place.driver.torn == ["old-9", "vm-3"]
        states = {unit["unit"]: unit["state"] for unit in place.site.actor.query("units", {})}
        assert (states["vm-0"], states["vm-3"]) == ("active", "free")
        assert place.tending.describe() == OrphanReport([], [])


class Broken(Frail):
    """A driver that does not say what is left, in a way of its own."""

    def __init__(self, say: Any) -> None:
        super().__init__()
        self.say = say

    async def orphans(self, known: Collection[str]) -> list[Orphan]:
        """Raises, or returns what is no list of orphans."""
        await trio.lowlevel.checkpoint()
        if isinstance(self.say, BaseException):
            raise self.say
        return self.say


class HalfBlind(Frail):
    """A driver that can ask one of its hosts only."""

    async def orphans(self, known: Collection[str]) -> list[Orphan]:
        """Finds what the driver finds, but for one host."""
        raise PartlyToldError(["host far: is down"], await super().orphans(known))


class Hanging(Frail):
    """A driver that waits for a host which never answers."""

    async def orphans(self, known: Collection[str]) -> list[Orphan]:
        """Does not end."""
        await trio.sleep_forever()
        return []


UNTOLD = (
    (DriverError("can't connect to qemu:///system"), "can't connect to qemu:///system"),
    (ExceptionGroup("", [DriverError("one is down"), DriverError("two, too")]), "one is down; two, too"),
    (KeyError("hosts"), "the driver failed in orphans: KeyError: 'hosts'"),
    (["vm-3"], "orphans returned 'vm-3' among others, expected Orphan, all in text"),
    ([Orphan("here", 3, "folder", "f")], "among others, expected Orphan, all in text"),
    (None, "orphans returned None, expected a list of Orphan"),
)
"""What a driver raises or returns, and what its operator is told."""


async def test_what_one_host_cannot_tell_of_keeps_no_other_from_it(tmp_path):
    """A driver that can't ask one of its hosts is named with that one, and what its others have is told and removed."""
    driver = HalfBlind()
    driver.left.add("old-9")
    bound = limited(driver, name="vms")
    site = make_shell("site", tmp_path / "site", driver_of=lambda type_: bound)
    async with running(site):
        tending = Tending(site, [bound])
        listed = await tending.requests["orphans.list"]({})
        await tending.requests["orphans.remove"]({})
    assert [one.unit for one in listed.orphans] == ["old-9"]
    assert listed.troubles == [OrphanTrouble("vms", "", "host far: is down")]
    assert driver.torn == ["old-9"]


async def test_a_driver_that_cannot_say_what_is_left_harms_nobody(tmp_path, caplog):
    """Whatever a driver raises or returns when it is asked what is left, the site goes on: the driver is named with
    the reason, and what others find is told and can be removed.
    """
    drivers = [Broken(say) for say, _ in UNTOLD]
    sound = Frail()
    sound.left.add("old-9")
    slow = limited(Hanging(), name="slow", timeout=50)
    bound = [limited(driver, name=f"d{number}") for number, driver in enumerate(drivers)]
    site = make_shell("site", tmp_path / "site", driver_of=lambda type_: bound[0])
    async with running(site):
        tending = Tending(site, [*bound, slow, limited(sound, name="sound")])
        with trio.fail_after(PATIENCE):
            await tending.tend()
        listed = await tending.requests["orphans.list"]({})
        removed = await tending.requests["orphans.remove"]({})
    assert "folder /units/old-9 on here is of unit old-9" in caplog.text
    assert [one.unit for one in listed.orphans] == [one.unit for one in removed.orphans] == ["old-9"]
    assert sound.torn == ["old-9"]
    assert tending.describe() == OrphanReport([], removed.troubles)
    told = {one.driver: one.reason for one in listed.troubles}
    assert told.pop("slow") == "it took longer than 50ms"
    for number, (_, reason) in enumerate(UNTOLD):
        assert reason in told[f"d{number}"]
        assert f"driver d{number} can't say what is left of old units: " in caplog.text
    assert len(told) == len(UNTOLD)


async def test_what_cannot_be_removed_keeps_nothing_else(tmp_path):
    """A driver whose teardown fails is named with the unit and the reason; what is left of other units is removed."""

    class Stuck(Frail):
        async def teardown(self, unit: UnitContext) -> None:
            if unit.unit == "old-1":
                raise ZeroDivisionError("a plug-in's own mistake")
            await super().teardown(unit)

    driver = Stuck()
    driver.left |= {"old-1", "old-2"}
    bound = limited(driver, name="stuck")
    site = make_shell("site", tmp_path / "site", driver_of=lambda type_: bound)
    async with running(site):
        tending = Tending(site, [bound])
        removed = await tending.requests["orphans.remove"]({})
    assert [one.unit for one in removed.orphans] == ["old-2"]
    reason = "the driver failed in teardown: ZeroDivisionError: a plug-in's own mistake"
    assert removed.troubles == [OrphanTrouble("stuck", "old-1", reason)]
    assert driver.left == {"old-1"}


async def test_a_broker_has_no_units(tmp_path, caplog):
    """Where there is no driver there is nothing to look after, and nothing to say."""
    broker = make_shell("broker", tmp_path)
    async with running(broker):
        tending = Tending(broker, ())
        await tending.tend()
        assert tending.describe() is None
    assert [r.message for r in caplog.records if r.name == "leasekit.runtime.tending"] == []


async def test_an_operators_actions(tmp_path):
    """An operator has a driver do something with a unit that is up, or look at it; all else is refused in words."""
    async with leased(tmp_path, every=0) as place:
        do = place.tending.requests["unit.operate"]
        told = await do({"unit": "vm-1", "operation": "restart", "arguments": {"hard": "yes"}})
        assert told == {"did": f"restart vm-1 {place.lease} {{'hard': 'yes'}}"}
        looked = await place.tending.requests["unit.probe"]({"unit": "vm-1"})
        assert looked == ProbedUnit("up", "", {"load": 0.5})
        for wrong, reason in (
            ({"unit": "vm-1", "operation": "explode"}, "found 'explode'"),
            ({"unit": "vm-1", "operation": "stumble"}, "the driver failed in stumble: ZeroDivisionError: one too few"),
            ({"unit": "vm-1", "operation": "restart", "arguments": [1]}, "arguments: found"),
            ({"unit": "vm-3", "operation": "restart"}, "no unit 'vm-3' is up here"),
        ):
            with pytest.raises(CommandError, match=reason):
                await do(wrong)
