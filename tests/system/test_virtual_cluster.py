"""deploy/virtual-cluster with real machines: a coordinator and workers leased together, a job, and workers that come
and go while it runs.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from math import isqrt
from pathlib import Path

import pytest
from runtime.runtime_processes import Daemons
from runtime.runtime_world import request
from system.libvirt_site import Site
from system.libvirt_world import World, as_toml, open_world

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "deploy/virtual-cluster"
TASKS = 60
"""How many thousands of numbers there are to look at: more than are done before most are held back."""
REST = 6
"""How many of those are given back in the end."""

# A control group is called by libvirt's number and its unit: other groups of tests call their units by other names.
pytestmark = pytest.mark.xdist_group("libvirt_saving")


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with open_world() as made:
        yield made


@pytest.fixture
def site(world: World, tmp_path: Path) -> Iterator[Site]:
    """The daemons of the example, with the hypervisor and the small guests of the tests."""
    head, found, _ = (EXAMPLE / "cluster.toml").read_text().partition("[actor.site.driver.machines]")
    assert found
    file, state = tmp_path / "cluster.toml", tmp_path / "s"
    file.write_text(f"{head}{as_toml({'kind': 'libvirt', **world.settings()}, 'actor.site.driver.machines')}\n")
    shutil.copytree(EXAMPLE, state / "scripts")
    shutil.copy(world.folder / "id", state / "id_ed25519")
    with Daemons(file, state) as daemons:
        daemons.start_all()
        yield Site(world, daemons)


def leasekit(site: Site, *words: str) -> str:
    """What a command prints."""
    environment = {**os.environ, "LEASEKIT_FILE": str(site.daemons.file), "LEASEKIT_STATE": str(site.daemons.state)}
    done = subprocess.run(
        [sys.executable, "-m", "leasekit.cli.main", *words],
        env=environment, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
    return done.stdout


def ask(site: Site, name: str, units: int, **more: object) -> str:
    """Ask for one of the two leases of the group."""
    configuration = {"slice.key": site.world.public, "cluster.size": "2", "cluster.tasks": str(TASKS)}
    wish = request(units, name=name, configuration=configuration, **more)
    if name != "more":
        wish["properties"] = {"group_id": "job", **({"lease_count": "2"} if name == "coordinator" else {})}
    return str(site.daemons.command("guest", "lease.request", **wish)["id"])


def on_coordinator(site: Site, command: str) -> str:
    """What a command says there, by `leasekit lease ssh`."""
    return leasekit(site, "lease", "ssh", "coordinator", "-i", str(site.world.folder / "id"), "--", command)


def job(site: Site) -> dict[str, int]:
    """How far the job is."""
    said = on_coordinator(site, "busybox wget -qO- http://127.0.0.1:8080/cgi-bin/job")
    return {word: int(number) for word, number in (line.split() for line in said.splitlines())}


def until_done(site: Site, tasks: int) -> None:
    """Wait on the coordinator, where that costs no more logins, until so many tasks are done."""
    on_coordinator(site, f"cd /tmp/cluster/done; until [ $(ls | wc -l) -ge {tasks} ]; do sleep 0.5; done")


def primes(start: int) -> int:
    """How many there are among the thousand numbers from ``start`` on."""
    return sum(n > 1 and all(n % d for d in range(2, isqrt(n) + 1)) for n in range(start, start + 1000))


def test_a_cluster_works_while_it_grows_and_shrinks(world, site):
    """The workers join after their coordinator; the job is launched when all have come; a third and a fourth join it
    and one leaves it while it runs, and what they find is right. Most tasks are held back while machines boot, which
    would wait for the work, and it would be done without them.
    """
    coordinator = ask(site, "coordinator", 1)
    workers = ask(site, "workers", 2, join_predecessor="coordinator")
    assert site.joined(coordinator, 1)[0]["properties"]["url"].endswith(":8080/cgi-bin/job")
    on_coordinator(
        site,
        "cd /tmp/cluster; until ls done/* >/dev/null 2>&1; do sleep 0.1; done; mkdir later; mv todo/* later || true",
    )
    site.joined(workers, 2)
    site.daemons.command("guest", "lease.modify", lease=workers, units=3)
    more = ask(site, "more", 1, join_predecessor="coordinator")
    site.joined(more, 1)
    site.joined(workers, 3)
    before = job(site)
    assert before["workers"] == 4
    left = on_coordinator(site, f"cd /tmp/cluster/later; mv $(ls | head -n {REST}) ../todo; ls | wc -l")
    until_done(site, before["done"] + 1)
    site.close(more)
    site.over(more)
    done = TASKS - int(left)
    until_done(site, done)
    found = dict(line.split(":") for line in on_coordinator(site, "cd /tmp/cluster/done; grep . *").splitlines())
    assert {task: int(count) for task, count in found.items()} == {task: primes(int(task)) for task in found}
    assert job(site) == {"workers": 3, "waiting": 0, "done": len(found), "primes": sum(map(int, found.values()))}
    console = leasekit(site, "lease", "console", "coordinator")
    assert "tiny guest is up" in console
    told = subprocess.run(
        [sys.executable, "-m", "leasekit.cli.main", "lease", "ssh", "vm-99", "-f", str(site.daemons.file)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (told.returncode, told.stdout) == (1, "")
    for lease in (workers, coordinator):
        site.close(lease)
        site.over(lease)
    site.until_free()
    assert world.left("leasekit-vm-") == []
