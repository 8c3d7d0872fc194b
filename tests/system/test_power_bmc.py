"""Power control over real protocols: IPMI against VirtualBMC, Redfish against sushy-tools, both over real domains."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import attrs
import pytest
import trio
from system.baremetal_bmc import PASSWORD, USER, VirtualBmc, bmc_tools, free_port, password_file, running, sushy
from system.libvirt_host import POOL, LibvirtHost
from system.packages import BMC, LIBVIRT, require, require_root

from leasekit.core.drivers import DriverError
from leasekit.core.settings import structure
from leasekit.drivers.power.base import NoMeter, PowerControl
from leasekit.drivers.power.driver import SwitchedMachine
from leasekit.drivers.power.make import examine_controllers, make_power
from leasekit.drivers.power.settings import ControllerSettings

pytestmark = pytest.mark.xdist_group("baremetal")
"""One after the other with all that start domains: their control groups are the machine's."""

DOMAIN = """
<domain type='qemu'>
  <name>{name}</name>
  <memory unit='MiB'>16</memory>
  <os><type arch='x86_64'>hvm</type><boot dev='hd'/></os>
  <devices>
    <disk type='file' device='disk'><source file='{disk}'/><target dev='vda' bus='virtio'/></disk>
    <interface type='user'><mac address='{mac}'/><model type='virtio'/></interface>
  </devices>
</domain>
"""


@attrs.define
class Controllers:
    """Two domains: one with a BMC that speaks IPMI, and both known to a Redfish service."""

    folder: Path
    host: LibvirtHost
    bmc: VirtualBmc
    port: int
    redfish: str

    def settings(self, kind: str, **changes: Any) -> dict[str, Any]:
        """A controller as a deploy file has it."""
        plain = {
            "kind": kind, "user": USER, "password_file": str(self.folder / "bmc-password"), "order_timeout": "60s",
            "answer_timeout": "20s",
        }  # fmt: skip
        own = (
            {"host": "127.0.0.1", "port": self.port}
            if kind == "ipmi"
            else {"url": self.redfish, "system": f"/redfish/v1/Systems/{self.domain(kind).UUIDString()}"}
        )
        return {**plain, **own, **changes}

    def settings_of(self, kind: str, **changes: Any) -> ControllerSettings:
        return structure(SwitchedMachine, {"power": self.settings(kind, **changes)}, "m").power

    def power(self, kind: str, **changes: Any) -> PowerControl:
        return make_power(self.settings_of(kind, **changes))

    def domain(self, kind: str) -> Any:
        return self.host.connect().lookupByName({"ipmi": "metal", "redfish": "fish"}[kind])


@pytest.fixture(scope="module")
def controllers() -> Iterator[Controllers]:
    require_root()
    require((*LIBVIRT, *BMC))
    folder = Path(tempfile.mkdtemp(prefix="leasekit-power-"))
    folder.chmod(0o755)
    try:
        (folder / "cache").mkdir()
        with LibvirtHost(folder, "power", folder / "cache") as host:
            for number, name in enumerate(("metal", "fish")):
                (host.images / name).write_bytes(bytes(2**20))
                (host.images / name).chmod(0o666)
                xml = DOMAIN.format(name=name, disk=f"{POOL}/{name}", mac=f"52:54:00:00:00:0{number}")
                host.connect().defineXML(xml)
            password_file(folder)
            bmc = VirtualBmc(folder, host.uri)
            with bmc.serving(), sushy(folder, host.uri) as redfish:
                yield Controllers(folder, host, bmc, bmc.add("metal"), redfish)
    finally:
        shutil.rmtree(folder)


KINDS = pytest.mark.parametrize("kind", ["ipmi", "redfish"])


@KINDS
async def test_orders_reach_the_machine(controllers, kind):
    """On, off and cycle do to a real domain what they say, and the status is the domain's."""
    power = controllers.power(kind)
    assert await power.status() == "off"
    await power.on()
    first = controllers.domain(kind).ID()
    await power.on()
    assert controllers.domain(kind).ID() == first >= 0
    await power.cycle()
    assert controllers.domain(kind).ID() > first
    assert await power.status() == "on"
    await power.off()
    await power.off()
    assert not controllers.domain(kind).isActive()


@KINDS
async def test_the_next_start_is_from_what_was_said(controllers, kind):
    """A machine's next start is set to the network and to its disk, and read back."""
    power, domain = controllers.power(kind, **({"efi": True} if kind == "ipmi" else {})), controllers.domain(kind)
    # One writes the order of kinds, the other that of devices.
    paths = {"network": ("os/boot[@dev='network']", "devices/interface/boot[@order='1']")}
    paths["disk"] = ("os/boot[@dev='hd']", "devices/disk/boot[@order='1']")
    for device in ("network", "disk"):
        await power.boot_once(device)
        tree = ElementTree.fromstring(domain.XMLDesc(0))
        assert any(tree.find(path) is not None for path in paths[device])
        assert not any(tree.find(path) is not None for path in paths["disk" if device == "network" else "network"])
        assert await power.controller.boot_device() == device


@KINDS
async def test_a_soft_off_that_nobody_heeds(controllers, kind):
    """A machine without an operating system that listens stays on, and the error says so."""
    power = controllers.power(kind, soft_timeout="2s")
    await power.on()
    with pytest.raises(DriverError, match="the power was not off within 2s: it took the order, and is still on"):
        await power.soft_off()
    assert controllers.domain(kind).isActive()
    await power.off()


@KINDS
async def test_a_wrong_password_is_told_of_and_not_shown(controllers, kind, tmp_path):
    """A controller that refuses a password is told of, by name of the file where it says so; no reason has a password
    in it. VirtualBMC says nothing to who has a wrong one.
    """
    wrong = "wr0ng pass"
    power = controllers.power(kind, password_file=str(password_file(tmp_path, wrong)), order_timeout="2s")
    said = {"ipmi": "Unable to establish IPMI", "redfish": r"refused user 'leasekit' or the password in .*bmc-password"}
    with pytest.raises(DriverError, match=said[kind]) as caught:
        await power.on()
    assert caught.value.retry is (kind == "ipmi")
    assert wrong not in str(caught.value)
    assert PASSWORD not in str(caught.value)


async def test_controllers_that_do_not_answer(controllers):
    """A BMC that is away ends each order at its deadline, with the reason; and when it is back, orders are taken."""
    for kind, changes in (("ipmi", {"port": free_port()}), ("redfish", {"url": f"http://127.0.0.1:{free_port()}"})):
        power = controllers.power(kind, **changes, order_timeout="1s", answer_timeout="600ms")
        with pytest.raises(DriverError, match=r"the BMC at \S+1.*: the power was not on within 1s: ") as caught:
            await power.on()
        assert caught.value.retry
    controllers.bmc.stop("metal")
    try:
        with pytest.raises(DriverError, match="no answer within 600ms"):
            await controllers.power("ipmi", answer_timeout="600ms").status()
    finally:
        controllers.bmc.start("metal")
    assert await controllers.power("ipmi").status() == "off"


async def test_passwords_are_on_no_command_line(controllers):
    """While orders are under way, no process of this machine has the password among its arguments."""
    seen: set[bytes] = set()
    power = controllers.power("ipmi")

    async def look() -> None:
        while True:
            for path in Path("/proc").glob("[0-9]*/cmdline"):
                try:
                    seen.add(path.read_bytes())
                except OSError:
                    continue
            await trio.sleep(0.002)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(look)
        for _ in range(5):
            await power.status()
        nursery.cancel_scope.cancel()
    assert any(b"lanplus" in command for command in seen)
    assert not any(PASSWORD.encode() in command for command in seen if b"lanplus" in command)


async def test_a_service_with_several_machines(controllers):
    """Where a Redfish service has several machines, the settings must say which; what it does not take is refused."""
    with pytest.raises(DriverError, match="found 2 machines, the settings must say which"):
        await controllers.power("redfish", system="").status()
    with pytest.raises(DriverError, match="GET /redfish/v1/Systems/nobody was answered by HTTP status 404"):
        await controllers.power("redfish", system="/redfish/v1/Systems/nobody").on()


@KINDS
async def test_domains_have_no_meter(controllers, kind):
    """VirtualBMC does not know DCMI, and sushy-tools has all machines in one chassis: that is why, and what is said."""
    why = {"ipmi": r"DCMI request failed because: Invalid command \(c1\)", "redfish": "its chassis .* has 2 machines"}
    with pytest.raises(NoMeter, match=f"the BMC at .*: it has no meter: {why[kind]}"):
        await controllers.power(kind).watts()
    (found,) = await examine_controllers({"m": controllers.settings_of(kind)})
    assert found.verdict == "ok"
    assert "its controller answers: the power is off; the BMC at" in found.found
    assert "it has no meter" in found.found


async def test_a_meter_is_read_by_ipmitool(tmp_path):
    """What a BMC that knows DCMI measures comes through ipmitool's own output."""
    require(BMC)
    port = free_port(socket.SOCK_DGRAM)
    command = [bmc_tools() / "python", Path(__file__).with_name("metering_bmc.py"), str(port), USER, PASSWORD, "231"]
    settings = {
        "kind": "ipmi", "host": "127.0.0.1", "port": port, "user": USER, "password_file": str(password_file(tmp_path)),
        "order_timeout": "60s",
    }  # fmt: skip
    with running(command, tmp_path / "log", {}):
        power = make_power(structure(SwitchedMachine, {"power": settings}, "m").power)
        await power.on()  # nothing but a look, until it answers
        assert await power.watts() == 231


@pytest.mark.parametrize("mode", ["forgets", "refuses"])
async def test_boot_flags_are_kept_until_the_start(tmp_path, mode):
    """A BMC that clears them when no order comes within a minute is told not to; one that knows nothing of that is
    obeyed as it is. What it has cleared is not taken for set.
    """
    require(BMC)
    port = free_port(socket.SOCK_DGRAM)
    command = [bmc_tools() / "python", Path(__file__).with_name("forgetful_bmc.py"), str(port), USER, PASSWORD, mode]
    settings = {
        "kind": "ipmi", "host": "127.0.0.1", "port": port, "user": USER, "password_file": str(password_file(tmp_path)),
        "order_timeout": "60s", "efi": True,
    }  # fmt: skip
    with running(command, tmp_path / "log", {}):
        power = make_power(structure(SwitchedMachine, {"power": settings}, "m").power)
        for device in ("network", "disk"):
            await power.boot_once(device)
            assert await power.controller.boot_device() == device
        if mode == "forgets":
            clear = ["ipmitool", "-I", "lanplus", "-H", "127.0.0.1", "-p", str(port), "-U", USER, "-E"]
            environment = {**os.environ, "IPMI_PASSWORD": PASSWORD}
            subprocess.run([*clear, "raw", "0", "8", "3", "0"], env=environment, check=True, capture_output=True)
            assert await power.controller.boot_device() is None
