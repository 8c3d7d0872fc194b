"""deploy/coallocation as its README tells: real daemons, a topology leased, its bandwidth shaped and measured."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from link_lab import Flow, Transfer
from runtime.runtime_processes import Daemons
from system.packages import NETWORK, require, require_root
from system.system_waits import wait_until

from leasekit.config.keys import new_key
from leasekit.core.time import SECOND
from leasekit.core.topology import read_topology

DEPLOY = Path(__file__).parents[2] / "deploy" / "coallocation"
PLACES = ("north", "x1", "south")
COMPUTERS = ("north", "south", "broker", "guest")
ABOVE, BELOW = 1.05, 0.5
"""More than is leased is a fault; less may be a busy machine."""

_numbers = itertools.count()


class Site:
    """The namespaces of namespaces.sh, and the daemons of both deploy files, which share their state folder."""

    def __init__(self, folder: Path) -> None:
        self.prefix = f"co{os.getpid()}-{next(_numbers)}-"
        self.state = folder / "s"
        for name in ("coallocation.toml", "shaped.toml"):
            (folder / name).write_text((DEPLOY / name).read_text().replace("lab-", self.prefix))
        self.computers = Daemons(folder / "coallocation.toml", self.state)
        self.network = Daemons(folder / "shaped.toml", self.state)

    def script(self, word: str) -> None:
        subprocess.run([DEPLOY / "namespaces.sh", word, self.prefix], check=True)

    def ip(self, place: str, *words: str) -> str:
        command = ["ip", "-n", self.prefix + place, *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def start(self) -> None:
        self.computers.start(*COMPUTERS)
        self.network.start("network")
        wait_until("three links and two sites", lambda: 5 - len(self.computers.query("broker", "sources")))

    def leased(self, **request: Any) -> dict[str, Any]:
        """A topology, once all of its units have joined."""
        now = int(time.time() * SECOND)
        content = {"est": now, "lst": now + 60 * SECOND, "duration": 600 * SECOND, **request}
        wish = read_topology(content).to_dict()
        name = self.computers.command("guest", "topology.request", request=wish, broker="", tries=3)["topology"]

        def missing() -> Any:
            found = self.computers.query("guest", "topology", topology=name)
            assert found["state"] not in ("failed", "closed"), found
            joined = found["state"] == "committed" and all(self.joined(part["lease"]) for part in found["parts"])
            return None if joined else found

        wait_until("the topology", missing)
        found: dict[str, Any] = self.computers.query("guest", "topology", topology=name)
        return found

    def joined(self, lease: str) -> bool:
        return bool(self.computers.query("guest", "lease", lease=lease)["join"] == "joined")

    def unit(self, topology: dict[str, Any], type_: str) -> dict[str, str]:
        """What the guest knows of a unit of a link."""
        (lease,) = [part["lease"] for part in topology["parts"] if part["type"] == type_]
        found: dict[str, str] = self.computers.query("guest", "lease", lease=lease)["units"][0]["properties"]
        return found

    def transfer(self, source: str, target: str, seconds: float = 2) -> Transfer:
        """From the north to the south."""
        return Flow(f"{self.prefix}north", source, f"{self.prefix}south", target, seconds).finish()

    def close(self, topology: dict[str, Any]) -> None:
        self.computers.command("guest", "topology.close", topology=topology["topology"], reason="enough")
        wait_until("no lease", lambda: self.computers.query("guest", "leases"))

    def shaped(self) -> list[str]:
        """The queues and addresses that nobody but the driver makes."""
        left = []
        for place in PLACES:
            for link in json.loads(self.ip(place, "-j", "address")):
                left += [entry["local"] for entry in link["addr_info"] if entry["scope"] == "global"]
            command = ["tc", "-n", self.prefix + place, "qdisc"]
            shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            left += [line for line in shown.splitlines() if "1ea5:" in line]
        return left


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """Namespaces and daemons; all are gone afterwards."""
    require(NETWORK)
    require_root()
    made = Site(tmp_path)
    made.script("up")
    try:
        with made.computers, made.network:
            made.start()
            yield made
    finally:
        made.script("down")


def test_a_topology_with_real_bandwidth(site: Site) -> None:
    """Eight machines and 40 Mbit/s between two sites: the path leads through the exchange point, what passes is what
    was leased, before and after the network's daemon was killed; once it is closed nothing is left.
    """
    sites = [{"id": name, "type": "vm", "units": 4, "pin": name} for name in ("north", "south")]
    topology = site.leased(sites=sites, links=[{"from": "north", "to": "south", "bw": 40}])
    assert sorted((part["type"], part["units"]) for part in topology["parts"]) == [
        ("north-x1", 8),
        ("south-x1", 8),
        ("vm", 4),
        ("vm", 4),
    ]
    first, second = site.unit(topology, "north-x1"), site.unit(topology, "south-x1")
    site.ip("north", "route", "add", second["subnet"], "via", first["address.b"])
    site.ip("south", "route", "add", first["subnet"], "via", second["address.b"])
    rate = site.transfer(first["address.a"], second["address.a"]).mbps(0.5, 2)
    site.network.kill("network")
    site.network.start("network")
    again = site.transfer(first["address.a"], second["address.a"]).mbps(0.5, 2)
    print(f"leased 40 Mbit/s over two links, measured {rate:.1f}, and {again:.1f} after a restart")
    assert 40 * BELOW <= rate <= 40 * ABOVE
    assert 40 * BELOW <= again <= 40 * ABOVE
    site.close(topology)
    wait_until("nothing shaped", site.shaped)
    wait_until("no unit in use", lambda: [u for u in site.network.query("network", "units") if u["state"] != "free"])
    assert list((site.state / "links").iterdir()) == []
    free = [(each["units"], each["free_now"]) for each in site.computers.query("broker", "sources")]
    assert all(units == now for units, now in free)


def test_without_the_rights_to_shape(tmp_path: Path) -> None:
    """The network's daemon does not start where it could not shape: one line names the driver and says what to do."""
    require(NETWORK)
    require_root()
    state = tmp_path / "s"
    new_key(state / "keys" / "network.key")
    for name in ("broker", "guest"):
        new_key(state / "keys" / f"{name}.key")
    words = [sys.executable, "-m", "leasekit.cli.main", "up", str(DEPLOY / "shaped.toml"), "--state", str(state)]
    bounded = ["setpriv", "--bounding-set", "-net_admin,-sys_admin", *words]
    done = subprocess.run(bounded, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode != 0
    (line,) = [line for line in done.stderr.splitlines() if "CAP_NET_ADMIN" in line]
    assert "actor.network.driver.shaper" in line
    assert line.endswith(
        "lacks CAP_NET_ADMIN and CAP_SYS_ADMIN, which shaping needs: start the daemon as root, or with just that"
    )
    assert "Traceback" not in done.stderr


def test_two_topologies_do_not_disturb_each_other(site: Site) -> None:
    """Two guests' transfers at once over the same links, of 50 and 10 Mbit/s, each get their own."""
    found = []
    for bw in (50, 10):
        sites = [{"id": name, "type": "vm", "units": 2, "pin": name} for name in ("north", "south")]
        links = [{"from": "north", "to": "south", "bw": bw, "max_latency": 5}]
        found.append(site.leased(sites=sites, links=links))
    flows = []
    for number, topology in enumerate(found):
        first, second = site.unit(topology, "north-x1"), site.unit(topology, "south-x1")
        site.ip("north", "route", "add", second["subnet"], "via", first["address.b"], "src", first["address.a"])
        site.ip("south", "route", "add", first["subnet"], "via", second["address.b"])
        flows.append((first["address.a"], second["address.a"], number))
    running = [Flow(f"{site.prefix}north", source, f"{site.prefix}south", target, 2.5) for source, target, _ in flows]
    rates = [flow.finish().mbps(0.5, 2.5) for flow in running]
    print(f"leased 50 and 10 Mbit/s, measured {rates[0]:.1f} and {rates[1]:.1f}")
    for rate, bw in zip(rates, (50, 10), strict=True):
        assert bw * BELOW <= rate <= bw * ABOVE
    for topology in found:
        site.computers.command("guest", "topology.close", topology=topology["topology"], reason="enough")
    wait_until("nothing shaped", site.shaped)
