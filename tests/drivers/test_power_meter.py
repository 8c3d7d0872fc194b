"""What machines draw: read by each kind of controller, told by the power driver, and why where there is no meter."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from power_machines import PowerMachine

from leasekit.core.drivers import DriverError
from leasekit.core.settings import structure
from leasekit.drivers.power.base import NoMeter, PowerControl
from leasekit.drivers.power.driver import SwitchedMachine
from leasekit.drivers.power.make import make_power
from leasekit.drivers.registry import make_driver


@pytest.fixture
def machine(tmp_path: Path) -> PowerMachine:
    return PowerMachine(tmp_path / "machine")


def meter(machine: PowerMachine, watts: float | str) -> None:
    """From now on it reads so."""
    (machine.folder / "watts").write_text(f"{watts}\n")


def with_meter(machine: PowerMachine) -> dict[str, Any]:
    return machine.settings(meter=["cat", str(machine.folder / "watts")])


def make(power: Mapping[str, Any]) -> PowerControl:
    return make_power(structure(SwitchedMachine, {"power": power}, "m").power)


# -- the driver ----------------------------------------------------------------------------------------------------


async def test_a_probe_says_what_a_machine_draws(machine, make_unit):
    """In words and as a figure; one without a meter is up all the same, and why it is not known is said."""
    nodes = {"a": {"power": with_meter(machine)}, "b": {"power": machine.settings()}}
    driver = make_driver("power", {"nodes": nodes}, "power")
    meter(machine, 231.5)
    assert (await driver.probe(make_unit("a", "probe"))).measured == {"on": 0.0}
    await driver.setup(make_unit("a"))
    found = await driver.probe(make_unit("a", "probe"))
    assert (found.detail, found.measured) == ("its power is on, 231.5 W", {"on": 1.0, "watts": 231.5})
    found = await driver.probe(make_unit("b", "probe"))
    assert (found.state, found.measured) == ("up", {"on": 1.0})
    assert "it has no meter: there is no command meter in the settings" in found.detail
    meter(machine, "nothing")
    found = await driver.probe(make_unit("a", "probe"))
    assert found.state == "up"
    assert "found 'nothing', expected watts, more than 0" in found.detail


async def test_operations_return_what_was_read(machine, make_unit):
    """The last reading before a machine was put off is what it draws idle, the most of all probes what it draws at
    work; a machine that is off already is not read.
    """
    driver = make_driver("power", {"nodes": {"a": {"power": with_meter(machine)}}}, "power")
    unit = make_unit("a", "operate")
    assert await driver.operate(unit, "power_on", {}) == {"power": "on"}
    for watts in (300, 420, 350):
        meter(machine, watts)
        await driver.probe(make_unit("a", "probe"))
    meter(machine, 110)
    assert await driver.operate(unit, "watts", {}) == {"power": "on", "watts": "110"}
    known = {"idle_watts": "110", "watts": "420"}
    assert await driver.operate(unit, "power_off", {}) == {"power": "off", **known}
    meter(machine, 5)
    assert await driver.operate(unit, "suspend", {}) == {"power": "off", **known}
    assert await driver.operate(unit, "power_on", {}) == {"power": "on", **known}


async def test_a_meter_that_fails_leaves_no_machine_on(machine, make_unit):
    """It is put off, and what it draws is not said; asked for that alone, the driver says why."""
    driver = make_driver("power", {"nodes": {"a": {"power": with_meter(machine)}}}, "power")
    unit = make_unit("a", "operate")
    await driver.operate(unit, "power_on", {})
    assert await driver.operate(unit, "power_off", {}) == {"power": "off"}
    with pytest.raises(DriverError, match="No such file"):
        await driver.operate(unit, "watts", {})


@pytest.mark.parametrize("said", ["0", "0.0", "-3", "1e9", "nan", "12 W", ""])
async def test_a_command_that_prints_no_watts(machine, said):
    """It is refused with what it said."""
    meter(machine, said)
    with pytest.raises(DriverError, match="expected watts, more than 0"):
        await make(with_meter(machine)).watts()


# -- IPMI ----------------------------------------------------------------------------------------------------------

# What ipmitool 1.8.18 and 1.8.19 print: the later one has no line's end after the time.
OLD = """
    Instantaneous power reading:                   197 Watts
    Minimum during sampling period:                175 Watts
    Maximum during sampling period:                242 Watts
    Average power reading over sample period:      190 Watts
    IPMI timestamp:                           Sun Mar  6 15:13:42 2022
    Sampling period:                          00123893 Seconds.
    Power reading state is:                   activated

"""
NEW = OLD.replace("Sun Mar  6 15:13:42 2022\n", "03/06/22 15:13:42 UTC").replace(" activated", " deactivated")
NONE = "\n    DCMI request failed because: "


@pytest.fixture
def ipmi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Has the program ipmitool print, and end with, what is given; whose power that is."""
    password = tmp_path / "password"
    password.touch(mode=0o600)
    password.write_text("secret\n")
    program = tmp_path / "bin" / "ipmitool"
    program.parent.mkdir()
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")

    def said(out: str, error: str = "", status: int = 0) -> PowerControl:
        (tmp_path / "out").write_text(out)
        (tmp_path / "error").write_text(error)
        program.write_text(f"#!/bin/sh\ncat {tmp_path}/out\ncat {tmp_path}/error >&2\nexit {status}\n")
        program.chmod(0o755)
        return make({"kind": "ipmi", "host": "bmc7", "user": "u", "password_file": str(password)})

    yield said


@pytest.mark.parametrize("text", [OLD, NEW], ids=["1.8.18", "1.8.19"])
async def test_ipmi_reads_what_dcmi_says(ipmi, text):
    """The reading of now, whatever else is said with it."""
    assert await ipmi(text).watts() == 197


@pytest.mark.parametrize(
    ("out", "error", "status", "why"),
    [
        ("\n", NONE + "Invalid command (c1)\n", 1, r"Invalid command \(c1\)"),
        ("\n", NONE + "Invalid data field in request (cc)\n", 1, r"\(cc\)"),
        ("\n", NONE + "Insufficient privilege level (d4)\n", 1, r"\(d4\)"),
        ("", "    A valid DCMI command was not returned! (80)\n", 1, "valid DCMI command was not returned"),
        (OLD.replace("197", "  0"), "", 0, "DCMI reads 0 watts"),
    ],
)
async def test_ipmi_without_a_meter(ipmi, out, error, status, why):
    """Answers that stay the same mean that there is no meter, in the words of the answer."""
    with pytest.raises(NoMeter, match=f"the BMC at bmc7 port 623: it has no meter: .*{why}"):
        await ipmi(out, error, status).watts()


async def test_ipmi_that_fails_for_now(ipmi):
    """A BMC that is busy may have a meter: the error is another, and worth another try; so is nonsense."""
    for out, error, status in (("\n", NONE + "Node busy (c0)\n", 1), ("Watts?\n", "", 0)):
        with pytest.raises(DriverError) as caught:
            await ipmi(out, error, status).watts()
        assert not isinstance(caught.value, NoMeter)
        assert caught.value.retry


# -- Redfish -------------------------------------------------------------------------------------------------------

SYSTEM, CHASSIS = "/redfish/v1/Systems/437XR1138R2", "/redfish/v1/Chassis/1U"


def tree(**chassis: Any) -> dict[str, Any]:
    """The resources of DMTF's mock-up of a rack-mounted server (public-rackmount1) that have to do with its power."""
    return {
        SYSTEM: {"PowerState": "On", "Links": {"Chassis": [{"@odata.id": CHASSIS}]}},
        CHASSIS: {
            "EnvironmentMetrics": {"@odata.id": f"{CHASSIS}/EnvironmentMetrics"},
            "Power": {"@odata.id": f"{CHASSIS}/Power"},
            "Links": {"ComputerSystems": [{"@odata.id": SYSTEM}]},
            **chassis,
        },
        f"{CHASSIS}/EnvironmentMetrics": {
            "@odata.type": "#EnvironmentMetrics.v1_3_0.EnvironmentMetrics",
            "TemperatureCelsius": {"Reading": 39, "DataSourceUri": f"{CHASSIS}/Sensors/CPU1Temp"},
            "PowerWatts": {"Reading": 374, "DataSourceUri": f"{CHASSIS}/Sensors/TotalPower"},
        },
        f"{CHASSIS}/Power": {
            "@odata.type": "#Power.v1_7_1.Power",
            "PowerControl": [
                {
                    "Name": "System Input PowerControl", "PowerConsumedWatts": 344, "PowerCapacityWatts": 800,
                    "PowerMetrics": {"MinConsumedWatts": 271, "MaxConsumedWatts": 489, "AverageConsumedWatts": 319},
                },
                {"Name": "CPU", "PhysicalContext": "CPU", "PowerConsumedWatts": 120},
            ],
        },
    }  # fmt: skip


@contextmanager
def serving(resources: Mapping[str, Any]) -> Iterator[str]:
    """A service that answers with these."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = resources.get(self.path)
            content = json.dumps({} if found is None else found).encode()
            self.send_response(404 if found is None else 200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


async def watts(resources: Mapping[str, Any], tmp_path: Path) -> float:
    password = tmp_path / "password"
    password.touch(mode=0o600)
    password.write_text("secret\n")
    with serving(resources) as url:
        settings = {"kind": "redfish", "url": url, "system": SYSTEM, "user": "u", "password_file": str(password)}
        return await make(settings).watts()


async def test_redfish_reads_environment_metrics(tmp_path):
    """What the chassis of the machine draws."""
    assert await watts(tree(), tmp_path) == 374


async def test_redfish_reads_power_where_there_is_nothing_newer(tmp_path):
    """Older services have it there: the first of the controls is the whole machine."""
    assert await watts(tree(EnvironmentMetrics=None), tmp_path) == 344
    unread = tree()
    unread[f"{CHASSIS}/EnvironmentMetrics"]["PowerWatts"]["Reading"] = None
    assert await watts(unread, tmp_path) == 344


SHARED = {"ComputerSystems": [{"@odata.id": SYSTEM}, {"@odata.id": "/redfish/v1/Systems/2"}]}


@pytest.mark.parametrize(
    ("chassis", "why"),
    [
        ({"EnvironmentMetrics": None, "Power": None}, f"its chassis {CHASSIS} measures no power"),
        ({"EnvironmentMetrics": {"@odata.id": SYSTEM}, "Power": {"@odata.id": CHASSIS}}, "measures no power"),
        ({"Links": SHARED}, f"its chassis {CHASSIS} has 2 machines"),
    ],
    ids=["none", "nonsense", "shared"],
)
async def test_redfish_without_a_meter(tmp_path, chassis, why):
    """A chassis that measures nothing, or several machines together, is no meter of the machine."""
    with pytest.raises(NoMeter, match=f"it has no meter: .*{why}"):
        await watts(tree(**chassis), tmp_path)


async def test_redfish_without_a_chassis(tmp_path):
    """Nor is none; a chassis that the machine names, and that is not there, is an error."""
    bare = tree()
    bare[SYSTEM] = {"PowerState": "On"}
    with pytest.raises(NoMeter, match="the machine has no chassis"):
        await watts(bare, tmp_path)
    del (gone := tree())[CHASSIS]
    with pytest.raises(DriverError, match=f"GET {CHASSIS} was answered by HTTP status 404"):
        await watts(gone, tmp_path)
