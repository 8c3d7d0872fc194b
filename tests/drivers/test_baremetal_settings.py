"""What a site says of its machines: checked before anything is touched."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from leasekit.cli import main
from leasekit.core.drivers import DriverError
from leasekit.core.settings import SettingsError, structure
from leasekit.core.time import HOUR, MINUTE
from leasekit.drivers.baremetal.plan import make_plan
from leasekit.drivers.baremetal.settings import BareMetalSettings
from leasekit.drivers.registry import action_timeout

EXAMPLE = Path(__file__).resolve().parents[2] / "deploy/baremetal/metal.toml"
POWER = {"kind": "script", "on": ["a"], "off": ["b"], "status": ["c"]}


def table(**changes: Any) -> dict[str, Any]:
    return {
        "directory": "metal",
        "nodes": {f"n{number}": {"mac": f"02:00:00:00:00:0{number}", "power": POWER} for number in (1, 2)},
        "network": {"interface": "br0", "address": "10.0.0.1", "subnets": ["10.0.0.0/24", "fd00::/64"]},
        "images": {"one": {"kind": "disk", "disk": {"file": "image", "sha256": "0" * 64}}},
        **changes,
    }  # fmt: skip


def test_the_example_has_no_fault(capfd):
    """The deploy file for bare metal passes `leasekit config check`."""
    assert main.run(["config", "check", str(EXAMPLE)]) == 0, capfd.readouterr().out


NODE = table()["nodes"]["n1"]
NETWORK = table()["network"]


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"nodes": {"../n": NODE}}, "nodes: found '../n', expected letters, digits"),
        ({"nodes": {"a": NODE, "b": {**NODE, "mac": "02:00:00:00:00:01"}}}, "b.mac: found .* that of node a"),
        ({"nodes": {"a": {**NODE, "mac": "02:00:00:00:00:01\ndhcp-script=x"}}}, "nodes.a.mac: found "),
        ({"nodes": {"a": {**NODE, "disk": "/dev/sda; reboot"}}}, "nodes.a.disk: found "),
        ({"nodes": {"a": {**NODE, "disk": "serial:a b"}}}, "nodes.a.disk: found "),
        ({"nodes": {"a": {**NODE, "keep_disks": ["/dev/sdb"]}}}, "keep_disks: found '/dev/sdb', expected serial"),
        ({"nodes": {"a": {**NODE, "addresses": ["10.0.1.5", "fd00::5"]}}}, "found 10.0.1.5, which is not in 10"),
        ({"nodes": {"a": {**NODE, "addresses": ["10.0.0.15", "fd00::5"]}}}, "found 10.0.0.15, one of those .* in turn"),
        ({"directory": "with blank"}, "directory: found .*, but expected a path without spaces"),
        ({"network": {**NETWORK, "interface": "br0\nx"}}, "network.interface: found "),
        ({"network": {**NETWORK, "address": "10.0.0.11"}}, "address: found 10.0.0.11, which is one of those for nodes"),
        ({"network": {**NETWORK, "subnets": ["fd00::/64"]}}, "subnets: expected one of IPv4"),
        ({"network": {**NETWORK, "first": 10, "last": 10}}, r"1 addresses \(first, last\) are too few for 2 nodes"),
        ({"network": {**NETWORK, "domain": "x\nserver=1.2.3.4"}}, "network.domain: found "),
        ({"network": {**NETWORK, "dnsmasq": {"kind": "owned", "lease_time": "1s"}}}, "dnsmasq.lease_time: found "),
        ({"images": {"one": {"kind": "disk", "disk": {"file": "x", "sha256": "abc"}}}}, "sha256: found 'abc'"),
        ({"images": {"one": {"kind": "tape"}}}, "images.one.kind: found 'tape', expected one of: disk, netboot"),
        ({"image": "two"}, "image: found 'two', expected one of: one"),
    ],
)  # fmt: skip
def test_faults_are_told_by_their_keys(changes, fault):
    """Each fault in the settings is told with its key, what was found and what is allowed."""
    with pytest.raises(SettingsError, match=fault):
        action_timeout("baremetal", table(**changes), None, "site.toml: metal")


def test_an_action_takes_longer_than_the_driver_waits():
    """A timeout that ends a setup before the driver itself knows what is wrong is refused; there is one for usual."""
    fault = r"^x\.timeout: found 20m, expected more than 20m: a setup waits for boot_timeout and start_timeout$"
    with pytest.raises(SettingsError, match=fault):
        action_timeout("baremetal", table(), 20 * MINUTE, "x")
    assert action_timeout("baremetal", table(), 21 * MINUTE, "x") == 21 * MINUTE
    assert action_timeout("baremetal", table(), None, "x") == 2 * HOUR
    assert action_timeout("baremetal", table(boot_timeout="3h"), None, "x") > 3 * HOUR
    assert action_timeout("null", {}, None, "x") == 10 * MINUTE


def test_a_timeout_in_a_deploy_file(tmp_path, capfd):
    """`leasekit config check` names the key; a file that says nothing has no fault."""
    said = EXAMPLE.read_text()
    file = tmp_path / "metal.toml"
    for line, status in (('timeout = "15m"', 1), ("", 0)):
        file.write_text(said.replace('timeout = "2h" ', f"{line} "))
        assert main.run(["config", "check", str(file)]) == status
    assert re.search(r"actor\.site\.driver\.metal\.timeout +15m +more than 20m: a setup waits", capfd.readouterr().out)


@pytest.mark.parametrize(
    ("unit", "properties", "reason"),
    [
        ("../../etc", {}, "unit id: found "),
        ("n3", {}, "unit n3: there is no such node, expected one of: n1, n2"),
        ("n1", {"image": "../one"}, "property image: found '../one', expected one of: one"),
        ("n1", {"image": "one\n$(reboot)"}, r"property image: found 'one\\n\$\(reboot\)'"),
        ("n1", {"slice.key": 'command="sh" ssh-ed25519 AAAA'}, "property slice.key: found "),
        ("n1", {"slice.key": "ssh-ed25519 AAAA\n'; reboot"}, "property slice.key: found "),
    ],
)
def test_what_guests_say_is_checked(make_unit, unit, properties, reason):
    """What a lease says that the site does not offer is refused, in one line, and for good."""
    settings = structure(BareMetalSettings, table(), "x")
    with pytest.raises(DriverError, match=reason) as caught:
        make_plan(make_unit(unit, properties=properties), settings)
    assert not caught.value.retry
    assert str(caught.value).isprintable()
