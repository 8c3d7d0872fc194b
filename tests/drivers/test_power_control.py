"""Power control by a site's commands: orders are made sure of, and what does not come to pass has a reason."""

from __future__ import annotations

from pathlib import Path

import pytest
from power_machines import PowerMachine

from leasekit.core.drivers import DriverError
from leasekit.core.settings import SettingsError, structure
from leasekit.drivers.power.base import Power
from leasekit.drivers.power.driver import Machine
from leasekit.drivers.power.make import make_power
from leasekit.drivers.power.settings import read_secret
from leasekit.drivers.registry import make_driver


@pytest.fixture
def machine(tmp_path: Path) -> PowerMachine:
    return PowerMachine(tmp_path / "machine")


def power(machine: PowerMachine, **changes: object) -> Power:
    return make_power(structure(Machine, {"power": machine.settings(**changes)}, "m").power)


async def test_orders_have_their_effect(machine):
    """On, off, cycle and soft off are done when the machine reads so, and are not ordered where it did before."""
    switch = power(machine)
    assert await switch.status() == "off"
    await switch.on()
    await switch.on()
    assert await switch.status() == "on"
    await switch.cycle()
    await switch.soft_off()
    await switch.off()
    await switch.boot_once("network")
    assert machine.orders() == ["on", "off", "on", "soft_off", "boot network"]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"on": ["true"]}, "the power was not on within 400ms: it took the order, and is still off"),
        ({"on": ["sh", "-c", "echo no current >&2; exit 75"]}, "the power was not on within 400ms: .*no current"),
        ({"status": ["sleep", "100"], "answer_timeout": 100}, "the power was not on within 400ms: .*longer than 100ms"),
        ({"status": ["echo", "perhaps"]}, "found 'perhaps', expected on or off"),
        ({"on": ["./no-such-program"]}, "on: found './no-such-program', there is no file"),
    ],
    ids=["no-effect", "fails", "hangs", "nonsense", "missing"],
)
async def test_what_does_not_come_to_pass_has_a_reason(machine, changes, reason):
    """A controller that says yes and does nothing, fails, hangs or talks nonsense is told of, within its time."""
    with pytest.raises(DriverError, match=reason):
        await power(machine, **{"order_timeout": 400, **changes}).on()


async def test_a_stubborn_operating_system_stays_on(machine):
    """A machine that does not switch itself off is left on by a soft off, and an energy manager's suspend cuts it."""
    (machine.folder / "stubborn").touch()
    with pytest.raises(DriverError, match="the power was not off within 300ms"):
        switch = power(machine, soft_timeout=300)
        await switch.on()
        await switch.soft_off()
    assert await switch.status() == "on"


async def test_what_an_energy_manager_does(machine, make_unit):
    """The power driver's operations switch a machine and return how it reads; unknown machines are named."""
    driver = make_driver("power", {"nodes": {"m1": {"power": machine.settings(soft_timeout=300)}}}, "power")
    (machine.folder / "stubborn").touch()
    unit = make_unit("m1", "operate")
    assert await driver.operate(unit, "status", {}) == {"power": "off"}
    assert await driver.operate(unit, "power_on", {}) == {"power": "on"}
    assert (await driver.probe(unit)).measured == {"on": 1.0}
    assert await driver.operate(unit, "suspend", {}) == {"power": "off"}
    assert await driver.operate(unit, "resume", {}) == {"power": "on"}
    assert await driver.operate(unit, "cycle", {}) == {"power": "on"}
    # Machines that are free stay on, unless the site says otherwise.
    await driver.teardown(make_unit("m1", "teardown"))
    assert machine.is_on()
    assert await driver.operate(unit, "power_off", {}) == {"power": "off"}
    with pytest.raises(DriverError, match=r"unit 'm2\\n': expected one of: m1"):
        await driver.setup(make_unit("m2\n"))


@pytest.mark.parametrize(
    ("content", "mode", "reason"),
    [
        (b"secret\n", 0o640, "found mode 0640, others must not read it"),
        (b"secret\nmore\n", 0o600, "expected one line of printable text"),
        (b"", 0o600, "expected one line of printable text"),
        (b"\xff\n", 0o600, "expected one line of printable text"),
        (b"x" * 5000, 0o600, "expected one line of printable text"),
    ],
)
def test_password_files_that_are_refused(tmp_path, content, mode, reason):
    """A password that others can read, or that is none, is refused by the name of its file, and not shown."""
    path = tmp_path / "password"
    path.write_bytes(content)
    path.chmod(mode)
    with pytest.raises(DriverError, match=reason) as caught:
        read_secret(path)
    assert "secret" not in str(caught.value)
    assert str(path) in str(caught.value)
    assert not caught.value.retry


def test_a_password_file_that_is_missing_or_right(tmp_path):
    """A missing file is named; the line of one that is closed to others is the password, blanks and all."""
    with pytest.raises(DriverError, match="no-file: can't be read: No such file or directory"):
        read_secret(tmp_path / "no-file")
    path = tmp_path / "password"
    path.touch(mode=0o600)
    path.write_text("se cret 'x'\n")
    assert read_secret(path) == "se cret 'x'"


def test_settings_that_are_refused():
    """What is wrong with a controller's settings is said at once, each key by its name."""
    table = {
        "nodes": {
            "a": {"power": {"kind": "ipmi", "host": "-oProxy", "user": "", "password_file": "p", "port": 0}},
            "b": {"power": {"kind": "redfish", "url": "ftp://x", "user": "u", "password_file": "p"}},
            "c": {"power": {"kind": "ipmo"}},
            "d": {"power": {"kind": "script", "on": [], "off": ["x"], "status": ["x"]}},
        }
    }
    with pytest.raises(SettingsError) as caught:
        make_driver("power", table, "x")
    found = [error.split(":")[0] for error in caught.value.errors]
    assert found == [
        "x.nodes.a.power.host", "x.nodes.a.power.port", "x.nodes.a.power.user", "x.nodes.b.power.url",
        "x.nodes.c.power.kind", "x.nodes.d.power.on",
    ]  # fmt: skip


def test_certificates_that_are_not_there(tmp_path):
    """A file of certificates that can't be used is named with its machine."""
    controller = {"kind": "redfish", "url": "https://bmc", "user": "u", "password_file": "p", "ca_file": "no-such.pem"}
    with pytest.raises(SettingsError, match=r"x\.nodes\.a\.power\.ca_file: found .*no-such\.pem, which can't be used"):
        make_driver("power", {"nodes": {"a": {"power": controller}}}, "x", base=tmp_path)
