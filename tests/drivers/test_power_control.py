"""Power control by a site's commands: orders are made sure of, and what does not come to pass has a reason."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest
from power_machines import PowerMachine

from leasekit.core.drivers import DriverError
from leasekit.core.settings import SettingsError, structure
from leasekit.drivers.power.base import PowerControl
from leasekit.drivers.power.driver import SwitchedMachine
from leasekit.drivers.power.make import make_power
from leasekit.drivers.power.settings import read_secret
from leasekit.drivers.registry import make_driver


@pytest.fixture
def machine(tmp_path: Path) -> PowerMachine:
    return PowerMachine(tmp_path / "machine")


def power(machine: PowerMachine, **changes: object) -> PowerControl:
    return make_power(structure(SwitchedMachine, {"power": machine.settings(**changes)}, "m").power)


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


class Slow(BaseHTTPRequestHandler):
    """A Redfish machine that takes a few looks to go off, and forgets orders to switch on which come before that."""

    states: ClassVar[list[str]]
    orders: ClassVar[list[str]]

    def do_GET(self) -> None:
        content = json.dumps({"PowerState": self.states[0], "Actions": {"#ComputerSystem.Reset": {"target": "/reset"}}})
        if len(self.states) > 1:
            del self.states[0]
        self.answer(content.encode())

    def do_POST(self) -> None:
        order = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["ResetType"]
        self.orders.append(order)
        if self.states == ["Off"] and order == "On":
            self.states[:] = ["PoweringOn", "PoweringOn", "On"]
        if order == "ForceOff":
            self.states[:] = ["PoweringOff", "Off"]
        self.answer(b"")

    def answer(self, content: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def redfish(folder: Path, states: list[str], **changes: object) -> Iterator[tuple[PowerControl, list[str]]]:
    """A machine whose power reads so, one look after the other, and what it is ordered."""
    handler = type("Handler", (Slow,), {"states": states, "orders": []})
    (folder / "password").touch(mode=0o600)
    (folder / "password").write_text("secret\n")
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        table = {
            "kind": "redfish", "url": f"http://127.0.0.1:{server.server_address[1]}", "system": "/system", "user": "u",
            "password_file": str(folder / "password"), **changes,
        }  # fmt: skip
        try:
            yield make_power(structure(SwitchedMachine, {"power": table}, "m").power), handler.orders
        finally:
            server.shutdown()
            thread.join()


async def test_a_machine_that_is_going_off_is_switched_on_when_it_is(tmp_path):
    """It does not count as on, and no order is wasted on it; nor does one that is going on count as off."""
    with redfish(tmp_path, ["PoweringOff", "PoweringOff", "PoweringOff", "Off"]) as (power, orders):
        assert await power.status() == "on"
        await power.on()
        assert await power.status() == "on"
        assert orders == ["On"]
    with redfish(tmp_path, ["PoweringOn", "PoweringOn", "On"]) as (power, orders):
        assert await power.status() == "off"
        await power.off()
        assert orders == ["ForceOff"]
        assert await power.status() == "off"


async def test_a_machine_that_never_gets_off_has_a_reason(tmp_path):
    """Switching on waits for it no longer than an order may take; cutting its power waits for nothing."""
    with redfish(tmp_path, ["PoweringOff"], order_timeout="3s") as (power, orders):
        with pytest.raises(DriverError, match="the power was not on within 3s: it is still going off"):
            await power.on()
        assert orders == []
    with redfish(tmp_path, ["PoweringOff"]) as (power, orders):
        await power.off()
        assert orders == ["ForceOff"]


@pytest.mark.parametrize("content", [b"{", b"\xff", b"[" * 100_000, b"7", b""])
async def test_an_answer_that_is_no_table(tmp_path, monkeypatch, content):
    """Whatever it is, it said nothing of the power."""
    monkeypatch.setattr(Slow, "do_GET", lambda slow: slow.answer(content))
    with (
        redfish(tmp_path, ["On"]) as (power, _),
        pytest.raises(DriverError, match="asked for the power it said 'None'"),
    ):
        await power.status()


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
