"""The account of an emulated site's power."""

from __future__ import annotations

from pathlib import Path

import pytest

from leasekit.config.load import load
from leasekit.core.leases import authority as au
from leasekit.core.leases import power as pw
from leasekit.core.leases.records import SiteLease, SiteUnit
from leasekit.core.schema import Change
from leasekit.core.time import HOUR, MINUTE, SECOND, Term
from leasekit.emulation.energy.account import EnergyAccount
from leasekit.emulation.energy.metrics import Delayed
from leasekit.emulation.experiment import run_one

DEPLOY = Path(__file__).resolve().parents[2] / "deploy" / "energy" / "energy.toml"


def unit(name: str = "u", *, power: str = pw.ON, state: str = au.FREE, lease: str = "", promised: str = "") -> Change:
    row = SiteUnit(name, "node", state, lease=lease, promised=promised, power=power).row()
    return Change("units", name, row)


def lease(units: int, term: Term) -> Change:
    row = SiteLease("l", "guest", "", "node", au.TICKETED, au.PRIMING, b"", term, units, 1).row()
    return Change("leases", "l", row)


def test_units_are_off_until_they_begin_to_come_on() -> None:
    """On the way in either direction they count as on."""
    account = EnergyAccount()
    for at, power in ((1, pw.STOPPING), (3, pw.OFF), (8, pw.STARTING), (10, pw.ON), (12, pw.SUSPENDING),
                      (13, pw.SUSPENDED), (15, pw.STOPPING), (16, pw.OFF)):  # fmt: skip
        account.observe(at * SECOND, [unit(power=power)])
    found = account.summary(2, Term(0, 20 * SECOND))
    assert found == {
        "res_idle": 40, "e_savings": 9, "suspended": 2, "delay_req": 0, "delayed": 0, "switched": 4
    }  # fmt: skip


def test_a_lease_is_delayed_by_the_last_of_its_units() -> None:
    """From when it got them; one that was on already doesn't count, nor one that it lost again."""
    account = EnergyAccount()
    term = Term(0, 10 * MINUTE)
    account.observe(0, [unit(name, power=pw.OFF) for name in ("a", "b", "c")])
    account.observe(MINUTE, [unit(name, power=pw.STARTING, promised="l") for name in ("a", "b", "c")])
    account.observe(MINUTE, [unit("d", state=au.SETUP, lease="l"), lease(4, term)])
    account.observe(2 * MINUTE, [unit("a", state=au.SETUP, lease="l")])
    account.observe(3 * MINUTE, [unit("b", state=au.SETUP, lease="l"), lease(4, term)])
    account.observe(5 * MINUTE, [unit("c", state=au.OUT, power=pw.UNKNOWN)])
    assert account.delayed() == [Delayed(4, 2 * MINUTE, 10 * MINUTE)]
    found = account.summary(4, term)
    assert found is not None
    assert found["delay_req"] == pytest.approx(0.8)


def test_a_site_that_switches_nothing_has_no_account() -> None:
    """Its summary is as it was without."""
    account = EnergyAccount()
    account.observe(0, [unit(state=au.SETUP, lease="l")])
    assert account.summary(4, Term(0, HOUR)) is None


def test_the_deployment_of_the_example_saves_energy() -> None:
    """A day of it: off and suspended is less than idle, more than half of that, and few wait; with all on nothing is
    accounted.
    """
    deployment = load(DEPLOY).with_overrides({"emulation.horizon": "1d"})
    assert deployment.emulation is not None
    by_name = {run.name: run for run in deployment.emulation.runs}
    still = run_one(deployment, by_name["all on"], None)
    assert "energy" not in still.summary["sites"]["site"]
    for name in ("last value", "EWMA, suspend"):
        found = run_one(deployment, by_name[name], None).summary["sites"]["site"]["energy"]
        assert 0.5 * found["res_idle"] < found["e_savings"] + found["suspended"] < found["res_idle"]
        assert found["switched"] > 20
        assert 0 < found["delay_req"] < 2


def metered(name: str, power: str, **told: str) -> Change:
    return Change("units", name, SiteUnit(name, "node", power=power, metered=told).row())


def test_what_was_metered_before_a_unit_was_put_off_is_saved_while_it_is() -> None:
    """In watt-hours, of the units that have a meter; what units draw at work has nothing to do with it."""
    account = EnergyAccount()
    account.observe(0, [metered("a", pw.STOPPING), metered("b", pw.STOPPING), metered("c", pw.SUSPENDING)])
    account.observe(HOUR, [metered("a", pw.OFF, idle_watts="120", watts="400"), metered("b", pw.OFF, watts="300")])
    account.observe(2 * HOUR, [metered("c", pw.SUSPENDED, idle_watts="80")])
    account.observe(4 * HOUR, [metered("a", pw.STARTING, idle_watts="120", watts="400")])
    found = account.summary(3, Term(0, 5 * HOUR))
    assert found is not None
    assert (found["metered"], found["saved_wh"]) == (2, 3 * 120 + 3 * 80)


def test_a_meter_of_the_emulated_controllers_is_accounted() -> None:
    """What a null driver says its machines draw idle is saved as long as they are off or suspended."""
    changes = {"emulation.horizon": "1d", "actor.site.driver.bmc.metered": {"idle_watts": "150"}}
    deployment = load(DEPLOY).with_overrides(changes)
    assert deployment.emulation is not None
    (spec,) = [run for run in deployment.emulation.runs if run.name == "EWMA, suspend"]
    found = run_one(deployment, spec, None).summary["sites"]["site"]["energy"]
    assert 0 < found["metered"] <= 24
    dark_hours = (found["e_savings"] + found["suspended"]) * SECOND / HOUR
    assert found["saved_wh"] == pytest.approx(150 * dark_hours, abs=0.1)
