"""deploy/hypervisors with machines that are domains: a block of nodes is leased, set up as hypervisors, and offered as
virtual machines, which run on them under QEMU within QEMU.

That is slow: `make test-baremetal` runs it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from runtime.runtime_processes import Daemons
from runtime.runtime_world import request
from system.baremetal_world import BRIDGE, V4, Machines, open_machines
from system.hypervisor_image import POOL, make_hypervisor
from system.libvirt_site import stopwatch
from system.libvirt_world import World
from system.system_waits import wait_until
from system.tiny_guest import COMMAND_LINE

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "deploy/hypervisors"
MEMORY = 1024
NEEDS = ("--needs", "cpu=1,memory=160MiB")
NODE_WITHIN, GUEST_WITHIN, LEFT_WITHIN = 480.0, 900.0, 480.0
"""Seconds. A guest starts within a guest, without KVM in either."""


@pytest.fixture(scope="module")
def machines() -> Iterator[Machines]:
    with open_machines() as made:
        make_hypervisor(made.folder / "hypervisor")
        for name in ("node-1", "node-2"):
            made.add(name, memory=MEMORY)
        yield made


class Cloud:
    """The daemons of the example, with the machines and images of the tests."""

    def __init__(self, machines: Machines, folder: Path) -> None:
        self.world = World(machines.folder, machines.host, machines.guest, BRIDGE)
        self.file, self.state = folder / "hypervisors.toml", folder / "s"
        self.environment = {"LEASEKIT_FILE": str(self.file), "LEASEKIT_STATE": str(self.state)}
        document = tomllib.loads((EXAMPLE / "hypervisors.toml").read_text())
        self._adapt(document["actor"], machines)
        self.file.write_text("\n".join(_dumped(document, "")))
        shutil.copytree(EXAMPLE, self.state / "scripts")
        self.key = self.state / "hypervisors.key"
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.key], check=True)
        self.daemons = Daemons(self.file, self.state)

    def _adapt(self, actors: dict[str, Any], machines: Machines) -> None:
        artifact = machines.guest.artifact
        image = {
            "kind": "netboot", "kernel": artifact(machines.guest.kernel),
            "initrd": artifact(machines.folder / "hypervisor"), "command_line": COMMAND_LINE,
        }  # fmt: skip
        settings = machines.settings(images={"hypervisor": image}, image="hypervisor")
        settings["network"]["last"] = 99
        actors["metal"]["driver"]["nodes"] |= {**settings, "timeout": "15m"}
        block = actors["block"]["driver"]["hypervisors"]
        block["environment"] |= {**self.environment, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        cloud = actors["cloud"]["driver"]["machines"]
        # Its ssh server is too slow there for how soon a driver wants to hear of it.
        image = machines.guest.image(ready="console")
        cloud |= {"images": {"debian": image}, "start_timeout": "14m", "timeout": "20m"}
        for host in cloud["hosts"].values():
            host |= {"pool_path": POOL, "acceleration": "tcg"}
        network = cloud["network"]
        network |= {"subnets": [f"{V4}.0/24"], "gateways": []}

    def leasekit(self, *words: str, status: int = 0) -> str:
        """What a command prints."""
        done = subprocess.run(
            [sys.executable, "-m", "leasekit.cli.main", *words],
            env={**os.environ, **self.environment}, capture_output=True, text=True, timeout=LEFT_WITHIN, check=False,
        )  # fmt: skip
        assert done.returncode == status, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout

    def ask(self, actor: str, type_: str, key: Path, seconds: float, **properties: str) -> str:
        """Asks for a lease of one unit that begins now; its id."""
        configuration = {"slice.key": Path(f"{key}.pub").read_text()}
        wish = request(1, seconds, type=type_, configuration=configuration, properties=properties)
        return str(self.daemons.command(actor, "lease.request", **wish)["id"])

    def lease(self, actor: str, lease: str) -> dict[str, Any]:
        """A lease, as its guest sees it."""
        found: dict[str, Any] = self.daemons.query(actor, "lease", lease=lease)
        return found

    def joined(self, actor: str, lease: str, within: float) -> dict[str, str]:
        """The properties of the lease's unit, once it has joined."""

        def missing() -> Any:
            told = self.lease(actor, lease)
            assert told["state"] not in ("failed", "closed"), told
            assert "failed" not in [unit["state"] for unit in told["units"]], told
            return None if [unit["state"] for unit in told["units"]] == ["joined"] else told

        wait_until(f"{lease} of {actor}", missing, within)
        properties: dict[str, str] = self.lease(actor, lease)["units"][0]["properties"]
        return properties

    def log_in(self, guest: Mapping[str, str]) -> None:
        """Logs in to a virtual machine, which must be the one that it says."""

        def missing() -> str:
            try:
                return "" if self.world.ssh(guest, "hostname").strip() == guest["name"] else "another name"
            except (AssertionError, subprocess.TimeoutExpired) as error:
                return str(error)

        wait_until("a login", missing, LEFT_WITHIN)

    def hosts(self) -> list[tuple[str, bool]]:
        """The hosts of virtual machines, and whether each has a machine."""
        rows = json.loads(self.leasekit("site", "hypervisor", "list", "--actor", "cloud", "--json"))
        return [(row["host"], bool(row["machine"])) for row in rows]

    def units(self, actor: str) -> dict[str, str]:
        """The states of a site's units."""
        return {unit["unit"]: unit["state"] for unit in self.daemons.query(actor, "units")}


def _dumped(table: Mapping[str, Any], where: str) -> Iterator[str]:
    """The lines of a deploy file."""
    inner = {key: value for key, value in table.items() if isinstance(value, Mapping) or _is_array(value)}
    yield from (f"{json.dumps(key)} = {json.dumps(value)}" for key, value in table.items() if key not in inner)
    for key, value in inner.items():
        name = f"{where}.{json.dumps(key)}" if where else json.dumps(key)
        for each in value if _is_array(value) else [value]:
            yield f"[[{name}]]" if _is_array(value) else f"[{name}]"
            yield from _dumped(each, name)


def _is_array(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], Mapping)


def test_a_block_of_machines_becomes_virtual_machines(machines, tmp_path):
    """Brokers grant no virtual machine before there is a machine for it; a node that was leased is a hypervisor with
    the key that its site made; a guest logs in to a virtual machine on it; a site that was killed finds it again. When
    the block goes back the virtual machine's lease ends first, and the node is erased, with nothing left of either.
    """
    cloud = Cloud(machines, tmp_path)
    wish = ("lease", "request", "vm", "1", *NEEDS, "--start", "+1m", "--for", "5m", "--dry-run", "--actor", "guest")

    def granted() -> bool:
        command = [sys.executable, "-m", "leasekit.cli.main", *wish]
        return not subprocess.run(command, env={**os.environ, **cloud.environment}, capture_output=True).returncode

    with cloud.daemons as daemons:
        daemons.start_all()
        cloud.leasekit("site", "hypervisor", "sync", "--actor", "cloud")
        assert cloud.hosts() == [("first", False), ("second", False)]
        wait_until("the broker hears that there is none", granted)

        stages: dict[str, float] = {}
        with stopwatch(stages, "a node leased, imaged, joined as a host"):
            block = cloud.ask("block", "node", cloud.key, 3600)
            node = cloud.joined("block", block, NODE_WITHIN)
        assert cloud.hosts() == [("first", True), ("second", False)]
        states = cloud.units("cloud")
        assert states == {"first": "free", "second": "out"}

        with stopwatch(stages, "a virtual machine leased, up on it"):
            needs = {"needs.cpu": "1000", "needs.memory": "160"}
            lease = cloud.ask("guest", "vm", cloud.world.folder / "id", 1800, **needs)
            guest = cloud.joined("guest", lease, GUEST_WITHIN)
        cloud.log_in(guest)
        daemons.kill("cloud")
        daemons.start("cloud")
        told = json.loads(cloud.leasekit("site", "probe", guest["name"], "--actor", "cloud", "--json"))
        assert (told["state"], told["detail"]) == ("up", "running on host first")
        cloud.log_in(guest)

        with stopwatch(stages, "the block closed, the virtual machine's lease before it, the node erased"):
            with daemons.client("block") as client:
                client.command("lease.close", lease=block)
            wait_until("the end of both", lambda: _open(cloud, {"guest": lease, "block": block}), LEFT_WITHIN)
            wait_until("a clean node", lambda: set(cloud.units("metal").values()) - {"free"}, LEFT_WITHIN)
        print(*(f"{stage} {seconds:.1f} s" for stage, seconds in stages.items()), sep="; ")
        with daemons.client("cloud") as client:
            assert any("host first is not leased" in step["why"] for step in client.history(lease))
        assert cloud.hosts() == [("first", False), ("second", False)]
        assert set(cloud.units("cloud").values()) == {"out"}
    name = node["name"]
    assert set(machines.metal[name].disk.read_bytes()) == {0}
    assert not machines.is_on(name)
    assert list((cloud.state / "hypervisors.json.ssh").iterdir()) == []


def _open(cloud: Cloud, leases: Mapping[str, str]) -> list[str]:
    return [actor for actor, lease in leases.items() if cloud.lease(actor, lease)["state"] not in ("closed", "failed")]
