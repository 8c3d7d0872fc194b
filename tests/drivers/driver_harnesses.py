"""The drivers under contract: each harness makes its driver, makes it again as a new daemon would, and breaks it."""

from __future__ import annotations

import importlib
import os
import sys
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import attrs
from link_lab import LinkLab
from metal_machines import MetalHarness
from power_machines import PowerHarness
from system.packages import unavailable
from xen_control import XenHarness

from leasekit.core.drivers import Driver, UnitContext
from leasekit.drivers.registry import make_driver


class Units:
    """Makes unit contexts, and keeps what was logged."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def __call__(self, unit: str, op: str = "setup", number: int = 1, **changes: Any) -> UnitContext:
        context = UnitContext(
            unit=unit, type="vm", lease="lease-1", op=op, number=number, properties={}, log=self.lines.append
        )
        return attrs.evolve(context, **changes)


def session_processes(marker: str) -> list[int]:
    """The processes, zombies left out, that have ``marker`` in their environment or command line."""
    found = []
    for path in Path("/proc").iterdir():
        if path.name.isdecimal() and int(path.name) != os.getpid():
            try:
                state = (path / "stat").read_text().rpartition(")")[2].split()[0]
                told = (path / "environ").read_bytes() + (path / "cmdline").read_bytes()
            except OSError:
                continue
            if state not in "ZX" and marker.encode() in told:
                found.append(int(path.name))
    return found


class DriverHarness(Protocol):
    """How the contract tests come by a driver, and see what is left of its units."""

    driver: Driver

    def reopen(self) -> Driver:
        """The driver as a restarted daemon has it."""
        ...

    def slow(self) -> Driver:
        """A driver on the same units whose setup takes much longer than a test."""
        ...

    def failing(self, words: str) -> Driver:
        """A driver on the same units whose setup fails, with ``words`` in the reason if the driver can."""
        ...

    def leftovers(self) -> list[str]:
        """The processes and files of all units that are there."""
        ...


class NullHarness:
    """Nothing is ever left of imagined units; a restarted daemon finds them as it remembers."""

    def __init__(self, directory: Path) -> None:
        self.driver = make_driver("null", {"latency": {"setup": 2, "teardown": 1}}, "null")

    def reopen(self) -> Driver:
        return self.driver

    def slow(self) -> Driver:
        return make_driver("null", {"latency": {"setup": "1h"}}, "null")

    def failing(self, words: str) -> Driver:
        return make_driver("null", {"failure": {"setup": 1}}, "null")

    def leftovers(self) -> list[str]:
        return []


# Tests that run side by side must not take each other's ports between the look and the use.
FIRST_PORT = 21_000 + 500 * int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))


class ProcessHarness:
    """Real processes, in a directory of the test's own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.driver = self.make()

    def make(self, **settings: Any) -> Driver:
        given = {"directory": str(self.directory), "grace": "2s", "ports": [FIRST_PORT, FIRST_PORT + 399], **settings}
        return make_driver("process", given, "process")

    def reopen(self) -> Driver:
        return self.make()

    def slow(self) -> Driver:
        return self.make(command=["sleep", "3600"])

    def failing(self, words: str) -> Driver:
        return self.make(command=["sh", "-c", f"echo '{words}'; exit 3"])

    def leftovers(self) -> list[str]:
        files = [str(path) for path in (self.directory / "units").rglob("*")]
        return files + [str(pid) for pid in session_processes(str(self.directory))]


SCRIPT = """\
    #!{python}
    # A unit is a directory with a process in it.
    import json, os, pathlib, select, shutil, signal, subprocess, sys

    given = json.load(sys.stdin)
    unit = pathlib.Path(os.environ["UNITS"]) / given["unit"]
    pid = unit / "pid"
    # Whatever a driver lets through, this test's script removes nothing but what it made.
    assert unit.resolve().is_relative_to(pathlib.Path(os.environ["UNITS"]).resolve()) and ".." not in unit.parts
    assert unit != pathlib.Path(os.environ["UNITS"])

    def alive():
        try:
            return pathlib.Path("/proc", pid.read_text(), "stat").read_text().rpartition(")")[2].split()[0] != "Z"
        except OSError:
            return False

    if given["op"] == "setup":
        if not alive():
            unit.mkdir(parents=True, exist_ok=True)
            process = subprocess.Popen(["sleep", "3600"], cwd=unit,
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            pid.write_text(str(process.pid))
        print("made", given["unit"], file=sys.stderr)
        print(json.dumps({{"name": given["unit"], "pid": pid.read_text()}}))
    elif given["op"] == "teardown":
        if alive():
            process = os.pidfd_open(int(pid.read_text()))
            signal.pidfd_send_signal(process, signal.SIGKILL)
            select.select([process], [], [])
        shutil.rmtree(unit, ignore_errors=True)
    elif given["op"] == "modify":
        print(json.dumps({{"name": given["unit"], **given["properties"]}}))
    elif given["op"] == "probe":
        print(json.dumps({{"state": "up" if alive() else "down", "load": "0.5"}}))
"""


class ScriptHarness:
    """One executable that does all that the contract asks for, with real processes and directories."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.units = directory / "units"
        self.units.mkdir(parents=True)
        self.write("unit.py", textwrap.dedent(SCRIPT).format(python=sys.executable))
        self.driver = self.make()

    def write(self, name: str, text: str) -> str:
        path = self.directory / name
        path.write_text(text)
        path.chmod(0o755)
        return str(path)

    def make(self, **settings: Any) -> Driver:
        command = ["./unit.py"]
        given: Mapping[str, Any] = {
            **dict.fromkeys(("setup", "teardown", "modify", "join", "leave", "probe"), command),
            "directory": str(self.directory),
            "environment": {"UNITS": str(self.units)},
            "grace": 300,
            **settings,
        }
        return make_driver("script", given, "script")

    def reopen(self) -> Driver:
        return self.make()

    def slow(self) -> Driver:
        # Neither the script nor what it starts heeds SIGTERM.
        self.write("slow.sh", "#!/bin/sh\ntrap '' TERM\nsleep 3600 &\nsleep 3600\n")
        return self.make(setup=["./slow.sh"])

    def failing(self, words: str) -> Driver:
        self.write("failing.sh", f"#!/bin/sh\nsleep 3600 &\necho '{words}' >&2\nexit 3\n")
        return self.make(setup=["./failing.sh"])

    def leftovers(self) -> list[str]:
        files = [str(path) for path in self.units.rglob("*")]
        return files + [str(pid) for pid in session_processes(str(self.units))]


class LibvirtHarness:
    """Domains of libvirt's own test driver: no guest runs, but all calls are those that real hypervisors get.

    Its connections in one process share what they hold, as long as one of them is open.
    """

    PREFIX = "contract-"

    def __init__(self, directory: Path) -> None:
        try:
            self.libvirt = importlib.import_module("libvirt")
        except ImportError:
            unavailable("needs libvirt-python, which builds with libvirt-dev, pkg-config and gcc")
        self.connection = self.libvirt.open("test:///default")
        self.pool = self.connection.storagePoolLookupByName("default-pool")
        if "base" not in [volume.name() for volume in self.pool.listAllVolumes()]:
            self.pool.createXML("<volume><name>base</name><capacity>1048576</capacity></volume>", 0)
        self.driver = self.make()

    def make(self, ready: str = "running", volume: str = "base", **settings: Any) -> Driver:
        return make_driver("libvirt", self.settings(ready, volume, **settings), "libvirt")

    def settings(self, ready: str = "running", volume: str = "base", **settings: Any) -> dict[str, Any]:
        """A driver's table in a deploy file."""
        return {
            "hosts": {"here": {"uri": "test:///default", "pool": "default-pool"}},
            "images": {"tiny": {"disk": {"volume": volume}, "format": "raw", "seed": "none", "ready": ready}},
            "network": {"network": "default", "subnets": ["192.0.2.0/24", "2001:db8::/64"]},
            "prefix": self.PREFIX,
            **settings,
        }

    def reopen(self) -> Driver:
        return self.make()

    def slow(self) -> Driver:
        # Nothing serves ssh at an address that is set aside for documentation.
        return self.make(ready="ssh", start_timeout="1h")

    def failing(self, words: str) -> Driver:
        return self.make(volume=words)

    def leftovers(self) -> list[str]:
        names = [domain.name() for domain in self.connection.listAllDomains(0)]
        names += [volume.name() for volume in self.pool.listAllVolumes()]
        return sorted(name for name in names if name.startswith(self.PREFIX) and not self._is_kept(name))

    def kept(self) -> list[str]:
        """What is kept of units that were saved."""
        names = [domain.name() for domain in self.connection.listAllDomains(0)]
        return sorted(filter(self._is_kept, names + [volume.name() for volume in self.pool.listAllVolumes()]))

    def close(self) -> None:
        """Removes all that tests have left."""
        for domain in self.connection.listAllDomains(0):
            if domain.name().startswith(self.PREFIX):
                if domain.isActive():
                    domain.destroy()
                domain.undefineFlags(self.libvirt.VIR_DOMAIN_UNDEFINE_MANAGED_SAVE)
        for volume in self.pool.listAllVolumes():
            if volume.name().startswith(self.PREFIX):
                volume.delete(0)

    def _is_kept(self, name: str) -> bool:
        return name.startswith(f"{self.PREFIX}~kept-")


class LinkHarness:
    """A pair of interfaces in two network namespaces, which the kernel shapes; what breaks is a ``tc`` in its way."""

    def __init__(self, directory: Path) -> None:
        self.lab = LinkLab()
        self.directory = directory
        self.records = directory / "units"
        self.records.mkdir(parents=True)
        self.driver = self.make()

    def make(self, **settings: Any) -> Driver:
        return make_driver("link", self.lab.settings(self.records, "vm", **settings), "link")

    def reopen(self) -> Driver:
        return self.make()

    def _tc(self, name: str, instead: str) -> Driver:
        # Looking is as ever: only what would change something is in the way.
        path = self.directory / name
        path.write_text(f'#!/bin/sh\ncase "$*" in *-batch*) {instead};; *) exec tc "$@";; esac\n')
        path.chmod(0o755)
        return self.make(tc=str(path))

    def slow(self) -> Driver:
        return self._tc("slow.sh", "exec sleep 3600")

    def failing(self, words: str) -> Driver:
        return self._tc("failing.sh", f"echo '{words}' >&2; exit 3")

    def leftovers(self) -> list[str]:
        processes = [str(pid) for pid in session_processes(str(self.directory))]
        return [str(path) for path in self.records.rglob("*")] + self.lab.leftovers() + processes

    def close(self) -> None:
        """Removes the namespaces."""
        self.lab.close()


HARNESSES: dict[str, Callable[[Path], DriverHarness]] = {
    "baremetal": MetalHarness,
    "libvirt": LibvirtHarness,
    "link": LinkHarness,
    "null": NullHarness,
    "power": PowerHarness,
    "process": ProcessHarness,
    "script": ScriptHarness,
    "xen": XenHarness,
}
"""Every driver that must keep the contract; a further one needs its line here and nothing else."""
