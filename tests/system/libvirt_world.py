"""What tests of the libvirt driver with real guests share: settings, units, and how to log in to a guest."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
from system.libvirt_host import LibvirtHost, bridge
from system.networks import free_number
from system.packages import LIBVIRT, require, require_root
from system.tiny_guest import TinyGuest

from leasekit.core.drivers import UnitContext
from leasekit.core.properties import Properties
from leasekit.drivers.libvirt.driver import LibvirtDriver
from leasekit.drivers.registry import make_driver

# One network for each process that runs tests, so that two runs on one machine don't meet.
NET = free_number("lk")
V4, V6 = f"10.213.{NET}", f"fd00:213:{NET:x}:"


@attrs.define
class World:
    """Everything that the tests share: the host, what guests boot, a login key, and what drivers said."""

    folder: Path
    host: LibvirtHost
    guest: TinyGuest
    bridge: str
    other: LibvirtHost | None = None
    lines: list[str] = attrs.Factory(list)

    @property
    def public(self) -> str:
        return (self.folder / "id.pub").read_text()

    def settings(self, **changes: Any) -> dict[str, Any]:
        plain = self.guest.image(agent=True)
        images = {
            "tiny": plain,
            "disk": self.guest.image(
                seed="nocloud", disk=self.guest.artifact(self.guest.qcow2), disk_mb=48, ready="console"
            ),
            "off": self.guest.image("tiny.off", ready="console"),
            "bare": self.guest.image(ready="running"),
            "sector": self.guest.sector_image(),
        }
        return {
            "hosts": {"one": self.host.settings()},
            "images": images,
            "image": "tiny",
            "network": {"bridge": self.bridge, "subnets": [f"{V4}.0/24", f"{V6}:/64"]},
            "size": {"memory_mb": 192},
            "choices": {"vcpus": [1, 2], "memory_mb": [96, 192], "cap": [0, 200], "shares": [0, 4096]},
            "start_timeout": "90s",
            **changes,
        }

    def driver(self, **changes: Any) -> LibvirtDriver:
        made = make_driver("libvirt", self.settings(**changes), "libvirt")
        assert isinstance(made, LibvirtDriver)
        return made

    def unit(self, unit: str, op: str = "setup", number: int = 1, **properties: str) -> UnitContext:
        given = {"slice.key": self.public, **properties}
        return UnitContext(
            unit=unit, type="vm", lease="lease-1", op=op, number=number, properties=given, log=self.lines.append
        )

    def ssh(self, properties: Properties, command: str, key: str = "id") -> str:
        """What a command in a guest says, logged in with the host key that the unit's properties tell."""
        known = self.folder / "known_hosts"
        known.write_text(f"unit {properties['host_key']}\n")
        options = ["StrictHostKeyChecking=yes", f"UserKnownHostsFile={known}", "HostKeyAlias=unit", "BatchMode=yes"]
        options += ["IdentitiesOnly=yes", "IdentityAgent=none", "ConnectTimeout=20"]
        words = [word for option in options for word in ("-o", option)]
        done = subprocess.run(
            ["ssh", "-F", "/dev/null", "-i", self.folder / key, *words, f"root@{properties['host']}", command],
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}: {done.returncode} {done.stdout} {done.stderr}{self.consoles()}"
        return done.stdout

    def consoles(self) -> str:
        """What every guest has written to its console, for who reads why a test failed."""
        found = sorted(self.folder.rglob("*.console"))
        return "".join(f"\n--- {path}\n{path.read_text(errors='replace')}" for path in found)

    def pid(self, unit: str, prefix: str = "leasekit-") -> int | None:
        """The process that a unit runs as, while it does."""
        path = self.host.root / f"run/qemu/{prefix}{unit}.pid"
        try:
            pid = int(path.read_text())
            return pid if Path(f"/proc/{pid}").exists() else None
        except (OSError, ValueError):
            return None

    def left(self, prefix: str) -> list[str]:
        """Domains and files of units whose names begin with ``prefix``."""
        files = [path.name for path in self.host.images.iterdir()]
        found = [name for name in self.host.domains() + files if name.startswith(prefix)]
        return sorted(name for name in found if not name.endswith((".image", ".whole")))


SMALL = "40m"
"""The size of the file system at ``lib/small`` of the host's folders."""


@contextmanager
def open_world() -> Iterator[World]:
    """A hypervisor, a bridge and what guests boot; skips the test where there can be none."""
    require_root()
    require(LIBVIRT)
    # QEMU runs as a user of its own, which has to get at files here; pytest's folders are closed to others.
    folder = Path(tempfile.mkdtemp(prefix="leasekit-vms-"))
    folder.chmod(0o755)
    try:
        (folder / "cache").mkdir()
        for name in ("id", "id2"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
        host = LibvirtHost(folder, "one", folder / "cache")
        small = host.root / "lib/small"
        small.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SMALL},mode=0755", "tmpfs", small], check=True)
        try:
            with bridge(f"lk{NET}", f"{V4}.1/24", f"{V6}:1/64") as name, host:
                yield World(folder, host, TinyGuest(folder), name)
        finally:
            subprocess.run(["umount", "-l", small], check=True)
    finally:
        shutil.rmtree(folder)


CHILD = """
import json, sys, trio
from leasekit.core.drivers import UnitContext
from leasekit.drivers.registry import make_driver
given = json.load(sys.stdin)
unit = UnitContext(log=lambda line: print(line, flush=True), **given["unit"])
driver = make_driver("libvirt", given["settings"], "libvirt")
trio.run(getattr(driver, given["unit"]["op"]), unit, *given["more"])
print("done", flush=True)
"""


def start_child(world: World, unit: UnitContext, *more: Any, **changes: Any) -> subprocess.Popen[str]:
    """A process that does one action, as a daemon would; ``changes`` are to the world's settings."""
    process = subprocess.Popen([sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    given = {**attrs.asdict(unit), "properties": dict(unit.properties)}
    del given["log"]
    process.stdin.write(json.dumps({"settings": world.settings(**changes), "unit": given, "more": more}))
    process.stdin.close()
    return process


def kill(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


def as_toml(table: Mapping[str, Any], where: str) -> str:
    """A table of a deploy file, with the tables in it."""
    lines, inner = [f"[{where}]"], []
    for key, value in table.items():
        if isinstance(value, Mapping):
            inner.append(as_toml(value, f"{where}.{json.dumps(key)}"))
        else:
            lines.append(f"{json.dumps(key)} = {json.dumps(value)}")
    return "\n".join([*lines, *inner])
