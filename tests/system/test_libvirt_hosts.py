"""Machines of real guests on hosts: a site's mapper says where they are, what CPU they get, and when they move."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from runtime.runtime_processes import Daemons
from runtime.runtime_world import request
from system.libvirt_host import LibvirtHost, another_host
from system.libvirt_site import HEAD, JOINED_WITHIN, Site
from system.libvirt_world import World, as_toml, open_world
from system.system_waits import wait_until

# A control group is called by libvirt's number and its unit: other groups of tests call their units by other names.
pytestmark = pytest.mark.xdist_group("libvirt")

HOSTS = """
[actor.site.mapper]
name = "yield"
[[actor.site.inventory]]
type = "node"
names = ["one", "two"]
capacity = { cpu = 2, memory = "512MiB" }
least_yield = 0.5
[[actor.site.delegation]]
broker = "broker"
type = "node"
"""
NEEDS = {"needs.cpu": "2000", "needs.memory": "192"}


@pytest.fixture(scope="module")
def hosts() -> Iterator[tuple[World, dict[str, LibvirtHost]]]:
    with open_world() as world, LibvirtHost(world.folder, "two", world.folder / "cache", another_host()) as two:
        two.count_up()
        yield world, {"one": world.host, "two": two}


def deployment(world: World, hosts: dict[str, LibvirtHost], folder: Path) -> str:
    plain = world.settings(hosts={name: host.settings(migration="tcp://127.0.0.1") for name, host in hosts.items()})
    network = {**plain["network"], "block": 8, "book": str(folder / "addresses.json")}
    return "\n".join([HEAD, HOSTS, as_toml({"kind": "libvirt", **plain, "network": network}, "actor.site.driver.vms")])


def test_machines_are_placed_capped_and_moved(hosts, tmp_path):
    """Two machines share a host, each with half of its CPU, while the other is leased whole; when that is free, one
    moves there as it runs, and both get all that they need. In the end nothing is left.
    """
    world, there = hosts
    file = tmp_path / "vms.toml"
    file.write_text(deployment(world, there, tmp_path))

    def caps() -> dict[str, dict[str, int]]:
        """What libvirt says of the machines of each host: how many microseconds in 100 ms each gets at most."""
        found: dict[str, dict[str, int]] = {}
        for name, host in there.items():
            for domain in host.domains():
                if "." in domain:
                    quota = host.connect().lookupByName(domain).schedulerParameters()["global_quota"]
                    found.setdefault(name, {})[domain.removeprefix("leasekit-")] = quota
        return found

    with Daemons(file, tmp_path / "s") as daemons:
        daemons.start_all()
        site = Site(world, daemons)

        def ask(units: int, image: str, **properties: str) -> str:
            configuration = {"slice.key": world.public, "image": image}
            wish: dict[str, Any] = request(units, properties=properties, configuration=configuration)
            return str(daemons.command("guest", "lease.request", **wish | {"type": "node"})["id"])

        whole = ask(1, "sector")
        (alone,) = site.joined(whole, 1)
        lease = ask(2, "tiny", **NEEDS)
        shared = ({*there} - {alone["unit"]}).pop()
        units = site.joined(lease, 2)
        names = {unit["unit"] for unit in units}
        assert {unit["properties"]["unit.host"] for unit in units} == {shared}
        assert caps() == {shared: dict.fromkeys(names, 100_000)}
        site.close(whole)

        def machines() -> list[dict[str, Any]]:
            return [unit for unit in daemons.query("site", "units") if unit["unit"] in names]

        def still_together() -> Any:
            told = machines()
            settled = {unit["host"] for unit in told} == {*there} and {unit["state"] for unit in told} == {"active"}
            return None if settled else (told, [*map(site.log, names)])

        def still_less_cpu() -> Any:
            found = {host: list(quotas.values()) for host, quotas in caps().items()}
            return None if found == {"one": [200_000], "two": [200_000]} else found

        wait_until("a move", still_together, JOINED_WITHIN)
        wait_until("all of the CPU", still_less_cpu)
        placed = {unit["unit"]: unit["host"] for unit in machines()}
        for unit in site.lease(lease)["units"]:
            assert unit["unit"] in caps()[placed[unit["unit"]]]
            assert world.ssh(unit["properties"], "cat /proc/cpuinfo").count("processor\t") == 2
        site.close(lease)
        site.over(lease)
        site.until_free()
        assert daemons.command("site", "orphans.list") == {"orphans": [], "troubles": []}
    for host in there.values():
        left = [*host.domains(), *(path.name for path in host.images.iterdir())]
        assert [name for name in left if "one" in name or "two" in name] == []
