"""Machines of metal, but for the metal: domains with a network card, a disk and a BMC, on a bridge of their own."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
from system.baremetal_bmc import USER, VirtualBmc, password_file, sushy
from system.baremetal_nodes import stop_dnsmasq
from system.libvirt_host import LibvirtHost, bridge
from system.libvirt_site import HEAD
from system.libvirt_world import as_toml
from system.networks import free_number
from system.packages import BAREMETAL, BMC, BOOT_LOADER, LIBVIRT, require, require_root
from system.tiny_guest import COMMAND_LINE, TinyGuest

from leasekit.core.drivers import UnitContext
from leasekit.drivers.baremetal.driver import BareMetalDriver
from leasekit.drivers.registry import make_driver

NET = free_number("lkb")
BRIDGE = f"lkb{NET}"
V4, V6 = f"10.214.{NET}", f"fd00:214:{NET:x}:"
DISK_MB = 48
PORT = 8069

DOMAIN = """
<domain type='qemu'>
  <name>{name}</name>
  <memory unit='MiB'>{memory}</memory>
  <vcpu>1</vcpu>
  <os><type arch='x86_64'>hvm</type><boot dev='network'/></os>
  <features><acpi/></features>
  <on_reboot>restart</on_reboot>
  <devices>
    <disk type='file' device='disk'>
      <driver name='qemu' type='raw' cache='unsafe'/>
      <source file='{disk}'/>
      <target dev='vda' bus='virtio'/>
    </disk>
    <interface type='bridge'>
      <mac address='{mac}'/>
      <source bridge='{bridge}'/>
      <model type='virtio'/>
    </interface>
    <serial type='file'><source path='{console}'/><target port='0'/></serial>
  </devices>
</domain>
"""


@attrs.define
class Metal:
    """One machine."""

    name: str
    mac: str
    disk: Path
    console: Path
    power: dict[str, Any]
    """Its controller, as a deploy file has it."""


@attrs.define
class Machines:
    """All machines, and what they may start."""

    folder: Path
    host: LibvirtHost
    bmc: VirtualBmc
    guest: TinyGuest
    image: Path
    secret: Path
    redfish: str
    """Where the controllers that speak it are."""
    metal: dict[str, Metal] = attrs.Factory(dict)
    lines: list[str] = attrs.Factory(list)

    def add(self, name: str, kind: str = "ipmi", memory: int = 384) -> Metal:
        """A machine that is off, with a disk that is full of somebody's data and so many MiB of memory; ``kind`` is
        what its controller speaks.
        """
        number = len(self.metal) + 1
        folder = self.host.root / "lib/images"
        disk, console = folder / f"{name}.raw", folder / f"{name}.console"
        disk.write_bytes(b"somebody's secret".ljust(4096, b"!") * (DISK_MB * 256))
        console.touch()
        for path in (disk, console):
            path.chmod(0o666)
        mac = f"52:54:00:{NET:02x}:00:{number:02x}"
        inside = Path("/var/lib/libvirt/images")
        xml = DOMAIN.format(
            name=name, mac=mac, bridge=BRIDGE, disk=inside / disk.name, console=inside / console.name, memory=memory
        )
        domain = self.host.connect().defineXML(xml)
        power = {"kind": kind, "user": USER, "password_file": str(self.secret), "order_timeout": "90s"}
        if kind == "ipmi":
            power |= {"host": "127.0.0.1", "port": self.bmc.add(name)}
        else:
            power |= {"url": self.redfish, "system": f"/redfish/v1/Systems/{domain.UUIDString()}"}
        made = self.metal[name] = Metal(name, mac, disk, console, power)
        return made

    def settings(self, **changes: Any) -> dict[str, Any]:
        """The bare-metal driver's, as a deploy file has them."""
        nodes = {
            metal.name: {
                "mac": metal.mac, "disk": "/dev/vda", "properties": {"rack": "7"}, "power": dict(metal.power),
            }
            for metal in self.metal.values()
        }  # fmt: skip
        artifact = self.guest.artifact
        return {
            "directory": str(self.folder / "driver"),
            "nodes": nodes,
            "network": {
                "interface": BRIDGE, "address": f"{V4}.1", "subnets": [f"{V4}.0/24", f"{V6}:/64"], "port": PORT,
                "domain": "metal.example", "nameservers": [],
            },
            "images": {
                "disk": {"kind": "disk", "disk": artifact(self.image)},
                "net": {
                    "kind": "netboot", "kernel": artifact(self.guest.kernel), "initrd": artifact(self.guest.initrd),
                    "command_line": COMMAND_LINE,
                },
            },
            "image": "disk",
            "boot_timeout": "4m",
            "silence": "90s",
            "start_timeout": "4m",
            **changes,
        }  # fmt: skip

    def driver(self, **changes: Any) -> BareMetalDriver:
        """The driver, as a daemon makes it."""
        made = make_driver("baremetal", self.settings(**changes), "baremetal")
        assert isinstance(made, BareMetalDriver)
        return made

    def unit(self, unit: str, op: str = "setup", number: int = 1, **properties: str) -> UnitContext:
        """An action on a machine."""
        given = {"slice.key": (self.folder / "id.pub").read_text(), **properties}
        return UnitContext(
            unit=unit, type="node", lease=f"lease-{number}", op=op, number=number, properties=given,
            log=self.lines.append,
        )  # fmt: skip

    def is_on(self, name: str) -> bool:
        """Whether a machine runs."""
        return bool(self.host.connect().lookupByName(name).isActive())

    def starts(self) -> int:
        """How often machines were started, as their hypervisor has it."""
        logs = [self.host.root / f"log/qemu/{name}.log" for name in self.metal]
        return sum(path.read_text().count(": starting up ") for path in logs if path.exists())


@contextmanager
def open_machines() -> Iterator[Machines]:
    """A hypervisor, a bridge, controllers and what machines may start, without a machine yet; skips the test where
    there can be none.
    """
    require_root()
    require((*LIBVIRT, *BMC, *BAREMETAL, *BOOT_LOADER))
    # QEMU runs as a user of its own, which has to get at files here; pytest's folders are closed to others.
    folder = Path(tempfile.mkdtemp(prefix="leasekit-metal-"))
    folder.chmod(0o755)
    try:
        (folder / "cache").mkdir()
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / "id"], check=True)
        host = LibvirtHost(folder, "metal", folder / "cache")
        with bridge(BRIDGE, f"{V4}.1/24", f"{V6}:1/64"), host:
            guest, bmc = TinyGuest(folder), VirtualBmc(folder, host.uri)
            image = make_disk_image(folder / "image.raw", guest)
            with bmc.serving(), sushy(folder, host.uri) as redfish:
                try:
                    yield Machines(folder, host, bmc, guest, image, password_file(folder), redfish)
                finally:
                    stop_dnsmasq(folder / "driver")
    finally:
        shutil.rmtree(folder)


RESOURCES = """
[[actor.site.inventory]]
type = "node"
names = ["node-1", "node-2"]
driver = "metal"
[[actor.site.delegation]]
broker = "broker"
type = "node"
"""


def deploy_file(machines: Machines, folder: Path) -> Path:
    """A deploy file of a site with machines of these two names, a broker and a guest."""
    file = folder / "metal.toml"
    settings = {"kind": "baremetal", **machines.settings(), "timeout": "15m"}
    file.write_text(f"{HEAD}\n{RESOURCES}\n{as_toml(settings, 'actor.site.driver.metal')}\n")
    return file


def make_disk_image(path: Path, guest: TinyGuest) -> Path:
    """A disk that a machine with a BIOS starts from: a partition with SYSLINUX and the tiny guest's two files."""
    partition, start = path.with_suffix(".fat"), 2048
    megabytes = (guest.kernel.stat().st_size + guest.initrd.stat().st_size) // 2**20 + 6
    with partition.open("wb") as file:
        file.truncate(megabytes * 2**20)
    _run("mkfs.fat", "-F", "16", "-h", str(start), partition)
    configuration = path.with_suffix(".cfg")
    configuration.write_text(f"DEFAULT tiny\nLABEL tiny\n  KERNEL kernel\n  INITRD initrd\n  APPEND {COMMAND_LINE}\n")
    for source, name in ((guest.kernel, "kernel"), (guest.initrd, "initrd"), (configuration, "syslinux.cfg")):
        _run("mcopy", "-i", partition, source, f"::{name}")
    _run("syslinux", "--install", partition)
    with path.open("wb") as file:
        file.truncate(start * 512 + partition.stat().st_size)
    table = f"label: dos\nstart={start}, size={megabytes * 2048}, type=6, bootable\n"
    subprocess.run(["sfdisk", "--quiet", path], input=table, text=True, check=True, capture_output=True)
    with path.open("r+b") as file:
        file.write(Path("/usr/lib/syslinux/mbr/mbr.bin").read_bytes())
        file.seek(start * 512)
        file.write(partition.read_bytes())
    return path


def _run(*command: str | Path) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}: {done.stderr}"
