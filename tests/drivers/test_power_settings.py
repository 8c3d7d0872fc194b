"""How long the power driver needs, and which hosts a Redfish service may be at: told by the settings alone."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, ClassVar

import attrs
import httpx
import pytest
import trio
import trio.testing
from driver_harnesses import Units
from hypothesis import given
from hypothesis import strategies as st
from power_machines import PowerMachine

from leasekit.cli import main
from leasekit.core.drivers import DriverError
from leasekit.core.settings import SettingsError, structure
from leasekit.core.time import MINUTE, SECOND, parse_duration
from leasekit.drivers.power.driver import SwitchedMachine
from leasekit.drivers.power.make import make_power
from leasekit.drivers.power.redfish import SYSTEMS, RedfishController
from leasekit.drivers.power.settings import Redfish
from leasekit.drivers.registry import action_timeout, make_driver

SCRIPT = {"kind": "script", "on": ["a"], "off": ["b"], "status": ["c"]}
IPMI = {"kind": "ipmi", "host": "bmc", "user": "u", "password_file": "p"}
REDFISH = {"kind": "redfish", "url": "https://bmc", "user": "u", "password_file": "p"}


@pytest.fixture
def password(tmp_path: Path) -> Path:
    """A file with one, closed to others."""
    path = tmp_path / "password"
    path.touch(mode=0o600)
    path.write_text("secret\n")
    return path


# -- how long an action may take -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nodes", "least", "why"),
    [
        ([IPMI], "3m30s", "a suspend of n0 waits for soft_timeout, order_timeout and 3 times answer_timeout"),
        ([REDFISH], "4m10s", "a suspend of n0 waits for soft_timeout, order_timeout and 7 times answer_timeout"),
        ([SCRIPT], "4m40s", "a suspend of n0 waits for soft_timeout, order_timeout and 3 times answer_timeout"),
        ([IPMI, {**IPMI, "soft_timeout": "5m"}, REDFISH], "6m30s", "a suspend of n1 waits for "),
        ([{**IPMI, "order_timeout": "4m"}], "8m10s", "a cycle of n0 waits for order_timeout twice, and for answer_t"),
    ],
    ids=["ipmi", "redfish", "script", "slowest", "cycle"],
)
def test_an_action_takes_longer_than_the_driver_waits(nodes: list[Any], least: str, why: str) -> None:
    """A timeout that would end a suspend before the power is cut is refused; what is usual leaves time for all."""
    table = {"nodes": {f"n{number}": {"power": node} for number, node in enumerate(nodes)}}
    given = parse_duration(least)
    with pytest.raises(SettingsError, match=rf"^x\.timeout: found {least}, expected more than {least}: {why}"):
        action_timeout("power", table, given, "x")
    assert action_timeout("power", table, given + SECOND, "x") == given + SECOND
    assert action_timeout("power", table, None, "x") == max(10 * MINUTE, 2 * given)


class Slowest(RedfishController):
    """A machine that takes all the time that it has for each answer to anything but orders, has its meter where it is
    looked for last, and goes off at the last moment, long after its operating system was asked to.
    """

    asked: ClassVar[float]
    is_off: ClassVar[bool] = False

    async def _call(self, client: httpx.AsyncClient, method: str, path: str, *_: Any) -> dict[str, Any]:
        ordered = trio.current_time() - self.asked >= 60
        await trio.sleep(0.5 if ordered and not self.is_off else 10)
        type(self).is_off = trio.current_time() - self.asked > 237
        tables: dict[str, dict[str, Any]] = {
            SYSTEMS: {"Members": [{"@odata.id": "/s"}]},
            "/s": {
                "PowerState": "Off" if self.is_off else "On",
                "Links": {"Chassis": [{"@odata.id": "/c"}]},
                "Actions": {"#ComputerSystem.Reset": {"target": "/reset"}},
            },
            "/c": {"EnvironmentMetrics": {"@odata.id": "/e"}, "Power": {"@odata.id": "/p"}},
            "/p": {"PowerControl": [{"PowerConsumedWatts": 90}]},
        }
        return tables.get(path, {})


async def test_a_suspend_ends_within_what_is_told(
    password: Path, make_unit: Units, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    """The slowest machine that there may be is off just before the time is over that an action has at least."""
    monkeypatch.setattr("leasekit.drivers.power.redfish.RedfishController", Slowest)
    Slowest.asked = trio.current_time()
    table = {"nodes": {"m1": {"power": {**REDFISH, "password_file": str(password)}}}}
    found = await make_driver("power", table, "power").operate(make_unit("m1", "operate"), "suspend", {})
    assert found == {"power": "off", "idle_watts": "90"}
    least = parse_duration("4m10s") / SECOND
    assert least - 5 < trio.current_time() - Slowest.asked <= least


# -- what can't be the root of a Redfish service -------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "https://[::1", "https://:::", "https://::1", "https://a[b]", "https://[1.2.3.4]", "https://bmc..lab",
        "https://.", "https://.lab", f"https://{'a' * 64}", f"https://{'a' * 64}.lab", f"https://{'a.' * 128}",
        "https://10.0.0.300", "https://10.0.0", "https://4711", "https://bmc:", "https://bmc:0", "https://bmc:65536",
        "https://bmc:-5", "https://bmc:1:1", "https://", "ftp://bmc", "https://u@bmc", "https://bmc/a b",
    ],
)  # fmt: skip
def test_urls_that_are_refused(url: str) -> None:
    """What no request can be sent to is a fault of the settings, in one message."""
    with pytest.raises(SettingsError) as caught:
        structure(SwitchedMachine, {"power": {**REDFISH, "url": url}}, "m")
    [line] = caught.value.errors
    assert line.startswith(f"m.power.url: found '{url[:40]}")
    assert ", but expected http:// or https:// and a name (of labels with 1 to 63 letters, digits and dashes)" in line


@pytest.mark.parametrize(
    "url",
    [
        "http://bmc",
        "https://bmc7.lab.",
        "https://10.79.0.2:8443/redfish/v1/",
        "https://[fd00::2]:443",
        "https://7a.b-c",
    ],
)
def test_urls_that_are_taken(url: str) -> None:
    """Names and addresses, with a port, and with a path."""
    settings = structure(SwitchedMachine, {"power": {**REDFISH, "url": url}}, "m").power
    assert isinstance(settings, Redfish)
    assert settings.url == url


@given(st.text("a7.:-[]/", max_size=20))
def test_requests_can_be_sent_to_what_is_taken(rest: str) -> None:
    """Neither the client nor the resolver fails for the form of what the settings let pass."""
    try:
        structure(SwitchedMachine, {"power": {**REDFISH, "url": f"http://{rest}"}}, "m")
    except SettingsError:
        return
    assert httpx.URL(f"http://{rest}").host.encode("idna")


async def test_a_host_that_can_not_be_asked(password: Path) -> None:
    """What is found out by the first request is an error that names the BMC, and is not tried again."""
    table = {"user": "u", "password_file": password}
    with attrs.validators.disabled():
        refused = [Redfish(url=url, **table) for url in ("https://[::1", "https://:::", "https://bmc..lab")]
    for settings in (*refused, Redfish(url="https://xn--a", **table)):
        with pytest.raises(DriverError, match=rf"^the BMC at {re.escape(settings.url)}: .") as caught:
            await make_power(settings).status()
        assert not caught.value.retry


SITE = """
[actor.broker]
role = "broker"
[actor.site]
role = "authority"
inventory = [{{ type = "node", names = ["good", "bad"] }}]
[actor.site.driver.bmc]
kind = "power"
nodes.good.power = {good}
nodes.bad.power = {{ kind = "redfish", url = "{url}", user = "u", password_file = "{password}" }}
"""


def test_commands_tell_of_it(tmp_path: Path, password: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """`leasekit config check` by the form of a host, `leasekit site doctor` when it asks; the other node is asked."""
    machine = PowerMachine(tmp_path / "machine").settings(directory=str(tmp_path))
    good = "{ " + ", ".join(f"{key} = {json.dumps(value)}" for key, value in machine.items()) + " }"
    file = tmp_path / "site.toml"
    for url, words in (("https://bmc..lab", ["config", "check"]), ("https://xn--a", ["site", "doctor"])):
        file.write_text(SITE.format(good=good, url=url, password=password))
        assert main.run([*words, str(file), "--json"]) == 1
        found = json.loads(capfd.readouterr().out)
        if words[0] == "config":
            assert [fault["key"] for fault in found] == ["actor.site.driver.bmc.nodes.bad.power.url"]
            continue
        power = {row["what"]: row for row in found if row["at"] == "site.bmc"}
        assert power["node good: power"]["verdict"] == "ok"
        assert power["node bad: power"]["verdict"] == "missing"
        assert power["node bad: power"]["found"].startswith("the BMC at https://xn--a: ")
