"""Nodes without a machine: a network namespace that does what firmware does, with the driver's own imaging program.

A node that is switched on asks for an address by DHCP, gets its boot script by TFTP and HTTP, and does what that says:
it unpacks the imaging environment and runs its agent on a file, or serves ssh as the guest that it was told to be.
Its folder has in ``block`` what a kernel would tell of its disks.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import attrs
from system.libvirt_host import bridge
from system.networks import free_number
from system.system_waits import wait_until

from leasekit.core.drivers import UnitContext
from leasekit.drivers.baremetal.driver import BareMetalDriver
from leasekit.drivers.registry import make_driver

NET = free_number("lkn")
PREFIX = f"lkn{NET}"
V4, V6 = f"10.215.{NET}", f"fd00:215:{NET:x}:"
DISK = 4 * 2**20
KILLED_WITHIN = 60.0

WIRE = """\
#!/bin/sh
# Puts a node's card on the boot network: its namespace, and a pair of interfaces. It may be killed at any moment.
set -e
[ ! -e {folder}/wired ] || exit 0
! [ -e /run/netns/{namespace} ] || ip netns del {namespace}
ip link del {far} 2>/dev/null || true
ip netns add {namespace}
ip link add {far} type veth peer name eth0 address {mac} netns {namespace}
ip link set {far} master {interface} up
ip -n {namespace} link set lo up
ip -n {namespace} link set eth0 up
touch {folder}/wired
"""

CONTROL = """\
#!/bin/sh
# node STATE-FOLDER NAMESPACE on|off|status|boot [DEVICE]
folder=$1 ns=$2
running() { [ ! -e "/run/netns/$ns" ] || ip netns pids "$ns"; }
case "$3" in
    on)
        [ -z "$(running)" ] && [ ! -e "$folder/stuck" ] || exit 0
        "$folder/wire" || exit 1
        ip -n "$ns" addr flush dev eth0
        echo start >>"$folder/starts"
        setsid ip netns exec "$ns" env -i PATH="$folder/bin" TMPDIR="$folder" "$folder/bin/sh" "$folder/firmware" \\
            "$folder" "$ns" </dev/null >>"$folder/console" 2>&1 &
        ;;
    off) for pid in $(running); do kill -KILL "$pid" 2>/dev/null; done; true ;;
    status) if [ -n "$(running)" ]; then echo on; else echo off; fi ;;
    boot) echo "$4" >"$folder/device" ;;
esac
"""

FIRMWARE = """\
#!/bin/busybox sh
# What a machine does when it is switched on.
folder=$1
cd "$folder"
rm -f lease boot.ipxe script
if [ "$(cat device)" = network ]; then
    udhcpc -i eth0 -n -q -f -t 300 -T 1 -s "$folder/leased" || exit 1
    . ./lease
    tftp -g -r "$boot_file" -l boot.ipxe "$server" || exit 1
    url=$(sed -n 's/^chain .* \\(http:.*\\)\\/mac-.*/\\1/p' boot.ipxe)
    mac=$(cat /sys/class/net/eth0/address | tr : -)
    until wget -q -O script "$url/mac-$mac.ipxe"; do sleep 0.2; done
    [ "$(head -n 1 script)" = "#!ipxe" ] || exit 1
    cat script
else
    echo exit >script
    . ./address
    ip addr add "$address" dev eth0
fi
case "$(cat script)" in
    *leasekit.token=*)
        token=$(sed -n 's/.*leasekit.token=\\([0-9a-f]*\\).*/\\1/p' script)
        rm -rf environment
        mkdir environment
        wget -q -O environment/initrd "$url/agent/initrd"
        (cd environment && cpio -i agent <initrd 2>/dev/null)
        [ -e hangs ] && exec sleep 1000000
        setsid sh environment/agent "$url" "$token" "$folder/block" "$folder"
        ;;
    *kernel*)
        wget -q -O seed "$(sed -n 's/^initrd --name seed //p' script)"
        rm -rf leasekit
        cpio -i <seed 2>/dev/null
        wget -q -O kernel "$(sed -n 's/^kernel \\([^ ]*\\) .*/\\1/p' script)"
        key="$folder/leasekit/ssh_host_ed25519_key"
        [ -e deaf ] && exec sleep 1000000
        rm -f key
        /usr/bin/dropbearconvert openssh dropbear "$key" key 2>/dev/null || exit 1
        exec /usr/sbin/dropbear -F -E -s -p 22 -r key
        ;;
    *)
        [ "$(dd if=disk bs=8 count=1 2>/dev/null)" = bootable ] || exec sleep 1000000
        /usr/bin/dropbearkey -t ed25519 -f key >/dev/null 2>&1
        exec /usr/sbin/dropbear -F -E -s -p 22 -r key
        ;;
esac
"""

LEASED = """\
#!/bin/sh
[ "$1" = bound ] || exit 0
ip addr add "$ip/$mask" dev eth0
echo "address=$ip/$mask" >{folder}/address
printf 'server=%s boot_file=%s\\n' "$siaddr" "$boot_file" >{folder}/lease
"""


@attrs.define
class Node:
    """One node. ``folder`` has its disk, its console, and a line in ``starts`` for each time that it came on."""

    name: str
    namespace: str
    mac: str
    folder: Path

    @property
    def disk(self) -> Path:
        return self.folder / "disk"

    def add_disk(self, name: str, content: bytes, serial: str = "") -> Path:
        """One more disk, which says that it has that serial number; its file."""
        told, file = self.folder / "block" / name, self.folder / name
        told.mkdir(parents=True)
        (told / "size").write_text(f"{len(content) // 512}\n")
        (told / "serial").write_text(f"{serial}\n")
        file.write_bytes(content)
        return file

    def remove_disk(self, name: str) -> None:
        """Takes a disk out."""
        shutil.rmtree(self.folder / "block" / name)
        (self.folder / name).unlink()

    def starts(self) -> int:
        """How often it was switched on."""
        path = self.folder / "starts"
        return len(path.read_text().splitlines()) if path.exists() else 0

    def pids(self) -> list[int]:
        """The processes that it runs as."""
        if not Path(f"/run/netns/{self.namespace}").exists():
            return []
        return [int(pid) for pid in _ip("netns", "pids", self.namespace).split()]

    def is_on(self) -> bool:
        """Whether it runs."""
        return bool(self.pids())


@attrs.define
class Nodes:
    """Nodes on a bridge of their own, and the driver for them."""

    folder: Path
    interface: str
    nodes: dict[str, Node] = attrs.Factory(dict)
    lines: list[str] = attrs.Factory(list)

    def add(self, name: str, size: int = DISK) -> Node:
        """A node that is off, with somebody's data on its disk. It is wired when it is first switched on."""
        number = len(self.nodes) + 1
        namespace = f"{PREFIX}-{number}"
        made = Node(name, namespace, f"02:15:{NET:02x}:00:00:{number:02x}", self.folder / "nodes" / name)
        self.nodes[name] = made
        made.folder.mkdir(parents=True)
        made.add_disk("disk", b"somebody's".ljust(16, b"!") * (size // 16), f"{name}_1")
        (made.folder / "bin").symlink_to(self._programs())
        wire = WIRE.format(
            folder=made.folder, namespace=namespace, far=f"{PREFIX}v{number}", mac=made.mac, interface=self.interface
        )
        for script, text in (
            ("control", CONTROL), ("firmware", FIRMWARE), ("leased", LEASED.format(folder=made.folder)), ("wire", wire),
        ):  # fmt: skip
            (made.folder / script).write_text(text)
            (made.folder / script).chmod(0o755)
        (made.folder / "device").write_text("network\n")
        return made

    def _programs(self) -> Path:
        """A folder with what nodes run, which they share."""
        folder = self.folder / "bin"
        if not folder.exists():
            folder.mkdir()
            subprocess.run(["busybox", "--install", "-s", folder], check=True)
            (folder / "sfdisk").symlink_to(shutil.which("sfdisk") or "sfdisk")
        return folder

    def remove_all(self) -> None:
        """Switches all nodes off, and takes them away."""
        for node in self.nodes.values():
            for pid in node.pids():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if Path(f"/run/netns/{node.namespace}").exists():
                _ip("netns", "del", node.namespace)

    def settings(self, **changes: Any) -> dict[str, Any]:
        """The driver's, as a deploy file has them."""
        return {
            "directory": str(self.folder / "driver"),
            "nodes": {name: self.node_settings(node) for name, node in self.nodes.items()},
            "network": {
                "interface": self.interface, "address": f"{V4}.1", "subnets": [f"{V4}.0/24", f"{V6}:/64"],
                "domain": "metal.example", "nameservers": [],
            },
            "images": {
                "disk": {"kind": "disk", "disk": self.artifact("image", b"bootable" * 2**17), "seed": "none"},
                "net": {
                    "kind": "netboot", "kernel": self.artifact("kernel", b"kernel"),
                    "initrd": self.artifact("initrd", b"initrd"),
                },
            },
            "image": "disk",
            "boot_timeout": "5m",
            "silence": "2m",
            "start_timeout": "5m",
            **changes,
        }  # fmt: skip

    def node_settings(self, node: Node, **changes: Any) -> dict[str, Any]:
        """One node's."""
        command = [str(node.folder / "control"), str(node.folder), node.namespace]
        orders = {order: [*command, order] for order in ("on", "off", "status", "boot")}
        power = {"kind": "script", **orders, "order_timeout": "1m"}
        return {"mac": node.mac, "disk": str(node.disk), "power": power, **changes}

    def artifact(self, name: str, content: bytes) -> dict[str, str]:
        """A file with that content, as a deploy file names it."""
        path = self.folder / name
        if not path.exists() or path.read_bytes() != content:
            path.write_bytes(content)
        return {"file": str(path), "sha256": sha256(content).hexdigest()}

    def driver(self, settings: Mapping[str, Any] | None = None, **changes: Any) -> BareMetalDriver:
        """The driver, as a daemon makes it."""
        made = make_driver("baremetal", settings or self.settings(**changes), "baremetal")
        assert isinstance(made, BareMetalDriver)
        return made

    @contextmanager
    def driving(self, settings: Mapping[str, Any] | None = None, **changes: Any) -> Iterator[BareMetalDriver]:
        """A daemon's life with the driver."""
        driver = self.driver(settings, **changes)
        try:
            yield driver
        finally:
            driver.close()

    def unit(self, unit: str, op: str = "setup", number: int = 1, **properties: str) -> UnitContext:
        """An action on a node."""
        return UnitContext(
            unit=unit, type="node", lease=f"lease-{number}", op=op, number=number, properties=properties,
            log=self.lines.append,
        )  # fmt: skip

    def entries(self) -> list[str]:
        """What DHCP, names and secrets there are for nodes."""
        folders = ("dnsmasq/hosts.d", "dnsmasq/names.d", "secrets")
        return sorted(path.name for folder in folders for path in (self.folder / "driver" / folder).glob("*"))


CHILD = """
import json, sys, trio
from leasekit.core.drivers import UnitContext
from leasekit.drivers.registry import make_driver
given = json.load(sys.stdin)
unit = UnitContext(log=lambda line: print(line, flush=True), **given["unit"])
driver = make_driver("baremetal", given["settings"], "baremetal")
trio.run(getattr(driver, given["unit"]["op"]), unit)
"""


def killed_when(nodes: Nodes, unit: UnitContext, check: Callable[[], bool]) -> bool:
    """A daemon begins an action, and is killed as soon as ``check()`` is true; whether it came to that."""
    process = subprocess.Popen([sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None and process.stdout is not None
    given = {**attrs.asdict(unit), "properties": dict(unit.properties)}
    del given["log"]
    process.stdin.write(json.dumps({"settings": nodes.settings(), "unit": given}))
    process.stdin.close()
    until = time.monotonic() + KILLED_WITHIN
    while not check() and process.poll() is None:
        assert time.monotonic() < until, "it did not come to that"
    process.send_signal(signal.SIGKILL)
    process.stdout.close()
    killed = process.wait() == -signal.SIGKILL
    wait_until("the end of orders that outlive it", lambda: _orders(nodes))
    return killed


def _orders(nodes: Nodes) -> list[str]:
    """The commands of power control that run now."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(FileNotFoundError, ProcessLookupError):
            found.append(path.read_bytes().decode(errors="replace").split("\0"))
    controls = {str(node.folder / "control") for node in nodes.nodes.values()}
    return [" ".join(words) for words in found if controls & {*words}]


def state(nodes: Nodes, name: str) -> dict[str, Any]:
    """What the driver remembers of a node."""
    path = nodes.folder / "driver/nodes" / f"{name}.json"
    try:
        found: dict[str, Any] = json.loads(path.read_text())
        return found
    except FileNotFoundError:
        return {}


def console(nodes: Nodes, name: str) -> str:
    """What a node said."""
    path = nodes.nodes[name].folder / "console"
    return path.read_text() if path.exists() else ""


@contextmanager
def nodes_in(folder: Path, *names: str) -> Iterator[Nodes]:
    """Nodes with those names, until the end of the block."""
    with bridge(PREFIX, f"{V4}.1/24", f"{V6}:1/64") as interface:
        made = Nodes(folder, interface)
        try:
            for name in names:
                made.add(name)
            yield made
        finally:
            made.remove_all()
            stop_dnsmasq(folder / "driver")


def stop_dnsmasq(directory: Path) -> None:
    """Ends the dnsmasq that a driver left running."""
    pid_file = directory / "dnsmasq/pid"
    if pid_file.exists():
        subprocess.run(["kill", "-KILL", pid_file.read_text().strip()], check=False, capture_output=True)


def _ip(*words: str) -> str:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"ip {' '.join(words)}: {done.stderr}"
    return done.stdout
