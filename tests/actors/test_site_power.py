"""Power at a site: decisions become operations, leases wait for units that are off, and nothing of it is lost."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

import attrs
import pytest
from actor_bench import LATENCIES, Bench, Mappers, Plan

from leasekit.actors.settings import AuthoritySettings, GuestSettings
from leasekit.actors.site.authority import Authority
from leasekit.core.drivers import SITE
from leasekit.core.leases import power as pw
from leasekit.core.leases.records import SiteUnit
from leasekit.core.mappers import AuthorityCycle, Demand, Power, Wake
from leasekit.core.steps import Action, ActionDone
from leasekit.core.time import HOUR, MINUTE, SECOND, Instant, Term
from leasekit.emulation.world import Node
from leasekit.policies.authority.energy import EnergyManager, EnergySettings
from leasekit.policies.authority.first_fit import FirstFit
from leasekit_simulation.faults.checkers import Listening, StateChecker
from leasekit_simulation.faults.unit_book import PowerChecker, UnitChecker

ROLES = {"guest": "guest", "broker": "broker", "site": "authority"}
BOOT, RESUME = LATENCIES["power_on"], LATENCIES["resume"]


class Told(FirstFit):
    """First fit that switches what the test says, at the next full second."""

    watches: ClassVar[bool] = True
    say: ClassVar[list[Any]] = []
    seen: ClassVar[list[AuthorityCycle]] = []

    def assign(self, cycle: AuthorityCycle) -> list[Any]:
        """What is to be said comes first."""
        Told.seen.append(cycle)
        said, Told.say = Told.say, []
        return [*said, *super().assign(cycle), Wake(cycle.now + SECOND)]


class Actions(Listening):
    """What drivers were told at the site, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[tuple[str, str, int]] = []

    def started(self, at: Instant, actor: str, action: Action) -> None:
        """One more."""
        if actor == "site":
            self.told.append((action.op, action.unit, action.number))

    def ops(self, unit: str) -> list[str]:
        """What was done to a unit."""
        return [op for op, name, _ in self.told if name == unit]


class PowerBench(Bench):
    """A guest, a broker and a site of two units that can be switched, under all checkers of units.

    The site is crashed at the ``count``-th time that it comes by ``place``.
    """

    def __init__(self, mapper: Any = Told, *, place: str = "", count: int = 0, units: int = 2, **plan: Any) -> None:
        plan = {"sites": {"site": {"vm": units}}, "power": True, **plan}
        super().__init__(Plan(**plan), Mappers(site=mapper))
        self.drivers = Actions()
        self.passed = 0
        self._place, self._left = place, count
        checkers = [PowerChecker(("site",)), UnitChecker(("site",), lambda site: self.now)]
        self.listeners += [*checkers, StateChecker(ROLES.__getitem__), self.drivers]
        Told.say, Told.seen = [], []
        self.start()

    def _crashes(self, node: Node, when: str) -> bool:
        if node.actor.name != "site" or when != self._place:
            return False
        self.passed += 1
        if self.passed != self._left:
            return False
        self.crash("site")
        return True

    def tell(self, *decisions: Any) -> None:
        """Have the mapper decide something, within a second or two."""
        Told.say = list(decisions)
        self.run_until(self.now + 2 * SECOND)

    def unit(self, name: str) -> SiteUnit:
        """A unit's record."""
        found: SiteUnit = self.actor("site").units[name]
        return found

    def power(self) -> dict[str, str]:
        """The power of each unit, as an operator sees it."""
        return {unit["unit"]: unit["power"] for unit in self.query("site", "units")}

    def lease(self, units: int = 1, *, start: Instant = 0, length: int = HOUR) -> str:
        """Ask for a lease."""
        at = max(start, self.now + SECOND)
        made = self.command("guest", "lease.request", type="vm", units=units, term=[at, at + length])
        assert not made.error
        return str(made.result["id"])

    def errors(self) -> Iterable[str]:
        """What the site complains of its mapper."""
        found: Iterable[str] = self.query("site", "status")["mapper_errors"]
        return found

    def site_lease(self, id_: str) -> Any:
        """The site's record of a lease."""
        return self.actor("site").leases[id_]


def test_a_decision_becomes_an_operation() -> None:
    """The unit is off when the driver has said so, and not before; a restart finds it off."""
    bench = PowerBench()
    bench.tell(Power("vm-1", "off", "idle"))
    assert bench.power() == {"vm-0": "on", "vm-1": "stopping"}
    bench.run_until(bench.now + LATENCIES["power_off"])
    assert bench.power() == {"vm-0": "on", "vm-1": "off"}
    assert bench.drivers.ops("vm-1") == ["power_off"]
    bench.crash("site")
    bench.run_until(bench.now + MINUTE)
    assert bench.power() == {"vm-0": "on", "vm-1": "off"}
    assert bench.drivers.ops("vm-1") == ["power_off"]


def test_a_unit_that_is_on_is_given_before_one_that_is_off() -> None:
    """With no weigher at all: what is off is offered last."""
    bench = PowerBench()
    bench.tell(Power("vm-0", "off"))
    bench.run_until(bench.now + MINUTE)
    id_ = bench.lease()
    bench.run_until(bench.now + 10 * SECOND)
    assert bench.site_lease(id_).units == ["vm-1"]
    assert bench.power()["vm-0"] == "off"


def test_a_lease_waits_until_its_unit_is_on() -> None:
    """It is switched on first and set up then; the lease is active with both of its units."""
    bench = PowerBench()
    bench.tell(Power("vm-1", "off"))
    bench.run_until(bench.now + MINUTE)
    id_ = bench.lease(2)
    bench.run_until(bench.now + BOOT)
    assert bench.site_lease(id_).state == "ticketed"
    assert bench.drivers.ops("vm-1") == ["power_off", "power_on"]
    bench.run_until(bench.now + 10 * SECOND)
    assert bench.site_lease(id_).state == "active"
    assert bench.drivers.ops("vm-1") == ["power_off", "power_on", "setup"]
    assert bench.query("guest", "lease", lease=id_)["state"] == "active"


def test_suspended_units_are_resumed() -> None:
    """By an operation of its own, which takes less time."""
    bench = PowerBench(units=1)
    bench.tell(Power("vm-0", "suspend"))
    bench.run_until(bench.now + MINUTE)
    assert bench.power() == {"vm-0": "suspended"}
    id_ = bench.lease()
    bench.run_until(bench.now + RESUME + 10 * SECOND)
    assert bench.site_lease(id_).state == "active"
    assert bench.drivers.ops("vm-0") == ["suspend", "resume", "setup"]


def test_a_unit_that_does_not_resume_is_switched_on() -> None:
    """What was in its memory is nobody's."""
    bench = PowerBench(units=1)
    bench.failures["site", "resume", "vm-0"] = 1
    bench.tell(Power("vm-0", "suspend"))
    bench.run_until(bench.now + MINUTE)
    id_ = bench.lease()
    bench.run_until(bench.now + BOOT + MINUTE)
    assert bench.site_lease(id_).state == "active"
    assert bench.drivers.ops("vm-0") == ["suspend", "resume", "power_on", "setup"]


def test_going_off_is_countermanded_for_a_lease() -> None:
    """Under a new number: the end of the old operation changes nothing, late as it comes."""
    bench = PowerBench(units=1)
    bench.latencies["site", "power_off"] = BOOT + 20 * SECOND
    bench.tell(Power("vm-0", "off"))
    id_ = bench.lease()
    bench.run_until(bench.now + BOOT + 10 * SECOND)
    assert bench.drivers.ops("vm-0") == ["power_off", "power_on", "setup"]
    bench.run_until(bench.now + MINUTE)
    assert bench.power() == {"vm-0": "on"}
    assert bench.site_lease(id_).state == "active"


def test_a_unit_that_does_not_come_on_goes_out_of_service() -> None:
    """With its reason, and its lease gets another one."""
    bench = PowerBench(units=3)
    bench.failures["site", "power_on", "vm-1"] = 1
    for name in ("vm-1", "vm-2"):
        bench.tell(Power(name, "off"))
    bench.run_until(bench.now + MINUTE)
    id_ = bench.lease(2)
    bench.run_until(bench.now + 2 * BOOT + 20 * SECOND)
    assert sorted(bench.site_lease(id_).units) == ["vm-0", "vm-2"]
    assert bench.site_lease(id_).state == "active"
    broken = next(unit for unit in bench.query("site", "units") if unit["unit"] == "vm-1")
    assert (broken["state"], broken["power"]) == ("out", "unknown")
    assert broken["reason"] == "power_on failed: no such image"
    assert bench.actor("site").calendars.of("vm").capacity_at(bench.now) == 2


def held_up(power_on_fails: int = 0) -> tuple[PowerBench, str]:
    """A lease of two units that waits, by a fault of its site: with vm-0, and with vm-2, which is going off, in place
    of vm-1, which is broken.
    """
    bench = PowerBench(units=3, site=AuthoritySettings(failures_max=1))
    bench.latencies["site", "power_off"] = 5 * MINUTE
    bench.failures["site", "power_on", "vm-2"] = power_on_fails
    bench.failures |= {("site", "setup", "vm-0"): 2, ("site", "setup", "vm-1"): 1}
    bench.blames["vm-0"] = SITE
    bench.tell(Power("vm-2", "off"))
    id_ = bench.lease(2)
    bench.run_until(bench.now + 5 * SECOND)
    assert (bench.site_lease(id_).units, bench.power()["vm-2"]) == (["vm-0", "vm-2"], "stopping")
    assert [outage["lease"] for outage in bench.query("site", "status")["outages"]] == [id_]
    return bench, id_


def test_a_unit_that_is_going_off_is_tried_after_a_fault_of_the_site() -> None:
    """Its lease got it while nothing is set up for it: it comes on again, and its setup shows that it is mended."""
    bench, id_ = held_up()
    bench.run_until(bench.now + 15 * MINUTE)
    assert bench.drivers.ops("vm-2") == ["power_off", "power_on", "setup"]
    assert bench.site_lease(id_).state == "active"
    assert not bench.query("site", "status")["outages"]


def test_another_unit_is_tried_where_one_does_not_come_on() -> None:
    """That one goes out of service has told nothing of the site: its lease has the other, by which it is tried."""
    bench, id_ = held_up(power_on_fails=1)
    bench.run_until(bench.now + 15 * MINUTE)
    assert (bench.unit("vm-2").state, bench.site_lease(id_).units) == ("out", ["vm-0"])
    assert bench.site_lease(id_).state == "active"


def test_a_unit_that_does_not_come_on_by_the_sites_fault_stays_in_service() -> None:
    """No lease has it: its mapper may have it switched on again, and it is given to a lease all the same."""
    bench = PowerBench(units=1)
    bench.failures["site", "power_on", "vm-0"] = 1
    bench.blames["vm-0"] = SITE
    bench.tell(Power("vm-0", "off"))
    bench.run_until(bench.now + MINUTE)
    bench.tell(Power("vm-0", "on"))
    bench.run_until(bench.now + BOOT)
    assert (bench.unit("vm-0").state, bench.unit("vm-0").power) == ("free", "unknown")
    assert bench.drivers.ops("vm-0") == ["power_off", "power_on"], "not at once: it would fail again"
    id_ = bench.lease()
    bench.run_until(bench.now + BOOT + 10 * SECOND)
    assert bench.site_lease(id_).state == "active"


def test_a_unit_that_is_brought_back_is_switched_on_before_its_use() -> None:
    """Nobody knows whether it is on."""
    bench = PowerBench(units=1)
    bench.failures["site", "power_on", "vm-0"] = 1
    bench.tell(Power("vm-0", "off"))
    bench.run_until(bench.now + MINUTE)
    bench.tell(Power("vm-0", "on"))
    bench.run_until(bench.now + BOOT)
    assert bench.unit("vm-0").state == "out"
    assert not bench.command("site", "unit.enable", unit="vm-0").error
    id_ = bench.lease()
    bench.run_until(bench.now + BOOT + 10 * SECOND)
    assert bench.site_lease(id_).state == "active"
    assert bench.drivers.ops("vm-0") == ["power_off", "power_on", "power_on", "setup"]


def test_a_unit_that_does_not_go_off_is_unknown() -> None:
    """It stays in service, its reason is told, and it is switched on before anything is set up on it."""
    bench = PowerBench(units=1)
    bench.failures["site", "power_off", "vm-0"] = 1
    bench.tell(Power("vm-0", "off"))
    bench.run_until(bench.now + MINUTE)
    (told,) = bench.query("site", "units")
    assert (told["state"], told["power"], told["reason"]) == ("free", "unknown", "power_off failed: no such image")
    id_ = bench.lease()
    bench.run_until(bench.now + BOOT + 10 * SECOND)
    assert bench.site_lease(id_).state == "active"
    assert bench.unit("vm-0").reason is None


def test_a_lease_that_ends_while_it_waits_gives_its_unit_back() -> None:
    """The unit comes on all the same, and is nobody's; it was never set up."""
    bench = PowerBench(units=1)
    bench.tell(Power("vm-0", "off"))
    bench.run_until(bench.now + MINUTE)
    id_ = bench.lease(length=MINUTE)
    bench.run_until(bench.now + 2 * MINUTE)
    assert bench.site_lease(id_).state in ("closed", "failed", "ticketed")
    bench.run_until(bench.now + BOOT)
    assert bench.drivers.ops("vm-0") == ["power_off", "power_on"]
    unit = bench.unit("vm-0")
    assert (unit.state, unit.power, unit.lease, unit.promised) == ("free", "on", "", "")
    assert bench.site_lease(id_).ended >= 0


def test_a_unit_is_retired_while_it_comes_on() -> None:
    """One that a lease waits for serves it first; one that nobody waits for goes at once."""
    bench = PowerBench()
    for name in ("vm-0", "vm-1"):
        bench.tell(Power(name, "off"))
    bench.run_until(bench.now + MINUTE)
    id_ = bench.lease()
    bench.run_until(bench.now + 5 * SECOND)
    bench.tell(Power("vm-1", "on"))
    for name in ("vm-0", "vm-1"):
        assert not bench.command("site", "unit.disable", unit=name, reason="a fan").error
    assert [bench.unit(name).state for name in ("vm-0", "vm-1")] == ["free", "out"]
    bench.run_until(bench.now + BOOT + 10 * SECOND)
    assert bench.site_lease(id_).state == "active"
    assert bench.power() == {"vm-0": "on", "vm-1": "on"}
    bench.command("guest", "lease.close", lease=id_)
    bench.run_until(bench.now + MINUTE)
    assert [bench.unit(name).state for name in ("vm-0", "vm-1")] == ["out", "out"]


@pytest.mark.parametrize(
    ("decision", "words"),
    [
        (Power("vm-9", "off"), "there is no unit 'vm-9'"),
        (Power("vm-1", "sideways"), "found 'sideways', it can be switched to one of: on, off, suspend"),
        (Power("vm-0", "off"), "unit vm-0 is active, for lease"),
        (Power("vm-1", "on"), "unit vm-1 is on: it can't be switched on"),
        (Power("vm-1", 3), "to: found 3, expected text"),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_be_switched_is_told(decision: Power, words: str) -> None:
    """A decision that makes no sense is dropped, and told; nothing is done."""
    bench = PowerBench()
    bench.lease()
    bench.run_until(bench.now + 10 * SECOND)
    done = list(bench.drivers.told)
    bench.tell(decision)
    assert words in list(bench.errors())[-1]
    assert bench.drivers.told == done


def test_units_without_a_power_driver_stay_on() -> None:
    """A site whose file names no driver for their power doesn't switch them."""
    bench = PowerBench(power=False)
    bench.tell(Power("vm-0", "off"))
    assert "no driver switches units of type 'vm'" in list(bench.errors())[-1]
    assert bench.power() == {"vm-0": "on", "vm-1": "on"}


def test_a_mapper_that_watches_is_told_what_is_booked() -> None:
    """Tickets that were redeemed before their term, growing extends, and what leases have."""
    bench = PowerBench(guest=GuestSettings(redeem_lead=30 * MINUTE, extend_lead=20 * MINUTE), units=3)
    now_ = bench.lease(length=HOUR)
    later = bench.lease(2, start=20 * MINUTE, length=10 * MINUTE)
    bench.run_until(bench.now + MINUTE)
    booked = list(Told.seen[-1].booked("vm"))
    assert [(one.lease, one.op, one.units, one.held) for one in booked] == [
        (now_, "held", 0, ("vm-0",)),
        (later, "new", 2, ()),
    ]
    assert booked[1].term == Term(20 * MINUTE, 30 * MINUTE)
    end = booked[0].term.end
    assert not bench.command("guest", "lease.extend", lease=now_, end=end + HOUR, units=3).error
    bench.run_until(end - 10 * MINUTE)
    found: list[Demand] = list(Told.seen[-1].booked("vm"))
    assert [(one.lease, one.op, one.units, one.term.start) for one in found if one.op != "held"] == [
        (now_, "grow", 2, end)
    ]


# -- restarts --------------------------------------------------------------------------------------------------------


def live(bench: PowerBench) -> None:
    """Units go off, asleep and on again, with a lease that needs them; at the end all is as it was."""
    for decision in (Power("vm-0", "off"), Power("vm-1", "suspend")):
        bench.tell(decision)
    bench.run_until(bench.now + MINUTE)
    id_ = bench.lease(2, length=20 * MINUTE)
    bench.run_until(bench.now + 2 * BOOT + 2 * MINUTE)  # a boot may be done twice
    lease = bench.site_lease(id_)
    assert (lease.state, lease.pending, sorted(lease.units)) == ("active", "-", ["vm-0", "vm-1"])
    bench.run_until(lease.term.end + MINUTE)
    assert bench.query("guest", "lease", lease=id_)["state"] == "closed"
    assert {bench.unit(name).state for name in ("vm-0", "vm-1")} == {"free"}


def passes(place: str) -> int:
    """How often a site comes by a place in that life."""
    bench = PowerBench(place=place)
    live(bench)
    return bench.passed


@pytest.mark.long
@pytest.mark.parametrize("place", ["before commit", "before send", "before action"])
def test_a_crash_anywhere_loses_nothing(place: str) -> None:
    """Whichever commit the site is restarted at, leases get their units, and no operation is done under two numbers."""
    count = passes(place)
    assert count > 10
    for turn in range(1, count + 1):
        bench = PowerBench(place=place, count=turn)
        live(bench)
        by_number = {number: (op, unit) for op, unit, number in bench.drivers.told}
        assert set(bench.drivers.told) == {(op, unit, number) for number, (op, unit) in by_number.items()}
        for name in ("vm-0", "vm-1"):
            ops = [op for op, number in dict.fromkeys((op, n) for op, u, n in bench.drivers.told if u == name)]
            assert ops[-2:] == ["setup", "teardown"]
            assert ops.count("setup") == 1


def test_what_is_under_way_is_adopted() -> None:
    """After a restart the driver is told the same again, under the same number, and its end counts."""
    bench = PowerBench(units=1)
    bench.tell(Power("vm-0", "off"))
    bench.crash("site")
    bench.run_until(bench.now + MINUTE)
    assert bench.power() == {"vm-0": "off"}
    (first, again) = bench.drivers.told
    assert first == again


def test_a_row_keeps_whether_the_unit_is_on() -> None:
    """And what the driver that switches it said last."""
    again = SiteUnit.from_row(SiteUnit("vm-0", "vm", power=pw.SUSPENDED, metered={"watts": "3"}).row())
    assert (again.power, again.metered) == (pw.SUSPENDED, {"watts": "3"})


# -- the energy manager ----------------------------------------------------------------------------------------------


def manager() -> EnergyManager:
    return EnergyManager(EnergySettings(types=("vm",), boot=5 * MINUTE))


def test_the_energy_manager_switches_a_site() -> None:
    """Idle units go off; a reservation's are on by its time, so that it waits for its setup alone; others boot."""
    bench = PowerBench(manager, units=4, guest=GuestSettings(redeem_lead=30 * MINUTE))
    bench.run_until(10 * MINUTE)
    assert set(bench.power().values()) == {"off"}
    start = HOUR + 30 * SECOND
    reserved = bench.lease(2, start=start, length=HOUR)
    bench.run_until(start - 16 * MINUTE)
    assert set(bench.power().values()) == {"off"}
    bench.run_until(start)
    assert sorted(bench.power().values()) == ["off", "off", "on", "on"]
    bench.run_until(start + 3 * SECOND)
    assert bench.site_lease(reserved).state == "active"
    assert list(bench.errors()) == []
    sudden = bench.lease(1)
    bench.run_until(bench.now + BOOT - SECOND)
    assert bench.site_lease(sudden).state == "ticketed"
    bench.run_until(bench.now + 10 * SECOND)
    assert bench.site_lease(sudden).state == "active"
    bench.run_until(start + 3 * HOUR)
    assert set(bench.power().values()) == {"off"}
    assert list(bench.errors()) == []


def test_a_reservation_keeps_its_units_on_when_another_lease_shrinks_as_it_begins() -> None:
    """Leases that shrink have the mapper's turn to themselves; what waits for the next one is not forgotten in it."""
    bench = PowerBench(manager, units=6, guest=GuestSettings(redeem_lead=30 * MINUTE, extend_lead=30 * MINUTE))
    shrinking = bench.lease(2, start=10 * MINUTE, length=50 * MINUTE)
    reserved = bench.lease(3, start=HOUR, length=HOUR)
    bench.run_until(20 * MINUTE)
    assert not bench.command("guest", "lease.extend", lease=shrinking, end=2 * HOUR, units=1).error
    bench.run_until(HOUR - SECOND)
    on = {name for name, power in bench.power().items() if power == "on"}
    assert len(on) == 5
    told = len(bench.drivers.told)
    bench.run_until(HOUR + 3 * SECOND)
    assert bench.site_lease(reserved).state == "active"
    assert [op for op, _, _ in bench.drivers.told[told:] if op.startswith("power")] == []


# -- settings that change --------------------------------------------------------------------------------------------


def test_units_that_were_off_are_used_when_no_driver_switches_them_any_more() -> None:
    """They count as on, as they are their operator's to switch on, from the next start of the site on."""
    bench = PowerBench(units=2)
    bench.tell(Power("vm-0", "off"), Power("vm-1", "suspend"))
    bench.run_until(bench.now + MINUTE)
    site = bench.actor("site")
    group = attrs.evolve(site.settings.inventory[0], power=False)
    settings, rows = attrs.evolve(site.settings, inventory=(group,)), [unit.row() for unit in site.units]
    site = Authority("site", site.signer, site.scheme, site.peers.values(), FirstFit(), settings)
    site.restore({"units": rows})
    assert [site.units.describe(unit).power for unit in site.units] == ["on", "on"]
    assert [unit.power for unit in site.units.free("vm")] == ["on", "on"]
    site.units.give(site.units["vm-0"], "lease", b"")
    assert (site.units["vm-0"].state, site.units["vm-0"].lease) == ("setup", "lease")


def test_what_a_meter_read_stays_until_it_is_read_again() -> None:
    """And nothing else that a driver says of a unit that it switched takes the place of what the inventory says."""
    bench = PowerBench(units=1)
    unit = bench.unit("vm-0")
    units = bench.actor("site").units
    bench.tell(Power("vm-0", "off"))
    bench.run_until(bench.now + MINUTE)
    for event, said in (("on", {"watts": "300", "idle_watts": "90", "power": "on"}), ("off", {"power": "off"})):
        units.switch(unit.id, event, None)
        units.done(ActionDone(unit.action, unit.id, True, said))
        assert unit.metered == {"watts": "300", "idle_watts": "90"}
    assert "power" not in units.view("vm-0").properties
