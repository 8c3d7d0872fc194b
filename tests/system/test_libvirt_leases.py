"""Leases of real virtual machines through three real daemons: cycles, a site that is killed, and all that goes wrong.

``LEASEKIT_CYCLES`` says how many cycles there are (of two nodes, where more than two), ``LEASEKIT_VM_KILLS`` how many
kills, ``LEASEKIT_SEED`` at which moments.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from system.libvirt_site import Site, open_site
from system.libvirt_world import NET, V4, World, open_world
from system.system_waits import soon, wait_until

# A control group is called by libvirt's number and its unit: other groups of tests call their units by other names.
pytestmark = pytest.mark.xdist_group("libvirt_leases")

CYCLES = int(os.environ.get("LEASEKIT_CYCLES", "2"))
NODES = 2 if CYCLES > 2 else 1
KILLS = int(os.environ.get("LEASEKIT_VM_KILLS", "3"))
SEED = int(os.environ.get("LEASEKIT_SEED", "1"))
NOTHING_LEFT = {"orphans": [], "troubles": []}


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with open_world() as made:
        yield made


def cards() -> list[str]:
    """The network cards of guests that are on the test's bridge."""
    return sorted(path.name for path in Path(f"/sys/class/net/lk{NET}/brif").iterdir())


def check_nothing_left(site: Site, *types: str) -> None:
    """No domain, file, process, network card, record of a unit or open lease is left."""
    site.until_free()
    world = site.world
    for type_ in types:
        assert world.left(f"leasekit-{type_}") == []
    assert world.host.guests() == []
    wait_until("network cards", cards)
    assert site.daemons.command("site", "orphans.list") == NOTHING_LEFT
    assert [lease for lease in site.daemons.query("site", "leases") if lease["state"] not in ("closed", "failed")] == []
    assert {(unit["lease"], tuple(unit["properties"])) for unit in site.daemons.query("site", "units")} == {("", ())}


@pytest.mark.soak
def test_the_same_nodes_are_leased_again_and_again(world, tmp_path):
    """Lease, log in, close, over and over on the same nodes: each guest is a new one, with another host key, and
    nothing of the last is left.
    """
    keys: set[str] = set()
    names = [f"again-1{number}" for number in range(NODES)]
    with open_site(world, tmp_path, {"again-1": (NODES, world.settings())}) as site:
        for cycle in range(CYCLES):
            lease = site.ask("again-1", NODES)
            units = site.joined(lease, NODES)
            assert sorted(unit["unit"] for unit in units) == names
            for unit in units:
                assert (
                    world.ssh(unit["properties"], "test ! -e /tmp/used && touch /tmp/used; hostname").strip()
                    == unit["unit"]
                ), f"cycle {cycle}"
                keys.add(unit["properties"]["host_key"])
            site.close(lease)
            site.over(lease)
            check_nothing_left(site, "again-1")
    assert len(keys) == NODES * CYCLES


def test_a_site_that_is_killed(world, tmp_path):
    """A site that is killed while it sets units up, while they run, and while it tears them down goes on where it was:
    guests that ran go on, none is set up twice, all are torn down. More kills are of leases of their own.
    """
    rng = random.Random(SEED)
    moments = ["setup", "between", "teardown"]
    with open_site(world, tmp_path, {"kill-2": (2, world.settings())}) as site:
        for killed in (moments[:KILLS], *([rng.choice(moments)] for _ in range(len(moments), KILLS))):
            kills(site, killed, rng)
            check_nothing_left(site, "kill-2")


def kills(site: Site, moments: list[str], rng: random.Random) -> None:
    """Lease two units and close them again, and kill the site once at each of these moments."""
    world, names = site.world, ("kill-20", "kill-21")
    lease = site.ask("kill-2", 2)
    seen: dict[str, int | None] = {}
    if "setup" in moments:
        wanted = rng.choice(names)
        soon(lambda: world.pid(wanted) is not None)
        seen = {name: world.pid(name) for name in names}
        site.restart()
    units = site.joined(lease, 2)
    running = {name: world.pid(name) for name in names}
    for name, pid in seen.items():
        assert pid is None or running[name] == pid, f"{name} was set up twice"
    if "between" in moments:
        site.restart()
        assert site.joined(lease, 2) == units
    for unit in units:
        assert world.ssh(unit["properties"], "hostname").strip() == unit["unit"]
    assert {name: world.pid(name) for name in names} == running
    site.close(lease)
    if "teardown" in moments:
        wanted = rng.choice(names)
        soon(lambda: world.pid(wanted) is None)
        site.restart()
    site.over(lease)


def broken(world: World) -> dict[str, tuple[dict[str, Any], str]]:
    """Types of units with something wrong: settings of their driver, and the reason that is to be told."""
    kernel, large = world.guest.artifact(world.guest.kernel), world.folder / "large"
    large.write_bytes(os.urandom(41 * 2**20))
    small = {"one": world.host.settings(pool="small", pool_path="/var/lib/libvirt/small")}
    checksum = world.guest.image(kernel={**kernel, "sha256": "0" * 64})
    missing = world.guest.image(kernel={**kernel, "file": "/nowhere/kernel"})
    silent = world.guest.sector_image(marker="never")
    too_large = world.guest.image(kernel=world.guest.artifact(large), ready="running")
    told: dict[str, tuple[dict[str, Any], str]] = {
        "checksum-1": ({"images": {"tiny": checksum}}, "kernel has the SHA-256"),
        "missing-2": ({"images": {"tiny": missing}}, "can't read /nowhere/kernel: No such file or directory"),
        "full-3": ({"hosts": small, "images": {"large": too_large}, "image": "large"}, "No space left on device"),
        "hangs-5": ({"images": {"tiny": silent}, "start_timeout": "3s"}, "the guest was not up within 3s"),
    }
    limits = {"retries": 1, "concurrency": 2}
    return {
        type_: (world.settings(**changes, prefix=f"bad-{type_}") | limits, reason)
        for type_, (changes, reason) in told.items()
    }


def test_units_that_can_not_be_set_up(world, tmp_path):
    """What can't be set up by its site's fault waits with its lease until the site is mended, and counts against no
    unit. A unit that never comes up fails with the reason, after it was tried again, and so does its lease. Nothing is
    left of either, and other leases of the site are unharmed.
    """
    wrong = broken(world)
    drivers = {type_: (1, settings) for type_, (settings, _) in wrong.items()}
    with open_site(world, tmp_path, drivers | {"good-4": (1, world.settings())}) as site:
        good = site.ask("good-4", 1)
        bad = {type_: site.ask(type_, 1, deficit="accept") for type_ in wrong}

        def row(type_: str) -> dict[str, Any]:
            return next(row for row in site.daemons.query("site", "units") if row["unit"] == f"{type_}0")

        for type_, (_, reason) in wrong.items():
            if type_ == "hangs-5":
                told = site.over(bad[type_])
                assert (told["state"], row(type_)["failures"]) == ("failed", 1)
                assert reason in told["reason"] and "again in" in site.log(f"{type_}0")
            else:
                wait_until(f"the reason of {type_}", lambda t=type_, r=reason: (r not in row(t)["reason"]) and row(t))
                assert row(type_)["failures"] == 0 and site.lease(bad[type_])["state"] not in ("failed", "closed")
                site.close(bad[type_])
                assert site.over(bad[type_])["state"] == "closed"
        (unit,) = site.joined(good, 1)
        assert world.ssh(unit["properties"], "hostname").strip() == "good-40"
        assert [row(type_)["state"] for type_ in wrong] == ["free"] * len(wrong)
        site.close(good)
        site.over(good)
        assert world.left("bad-") == []
        check_nothing_left(site, "good-4")


def test_a_unit_that_fails_is_replaced_by_another(world, tmp_path):
    """A host that can't be reached is replaced by another one, as the lease does not accept fewer."""
    gone = world.host.settings() | {"uri": "qemu+unix:///system?socket=/nowhere/libvirt-sock"}
    hosts = {"pair-50": gone, "pair-51": world.host.settings()}
    settings = world.settings(hosts=hosts, image="sector") | {"retries": 0, "teardown_for": "0s"}
    with open_site(world, tmp_path, {"pair-5": (2, settings)}, capacity='{ cpu = 1, memory = "192MiB" }') as site:
        lease = site.ask("pair-5", 1)
        units = site.joined(lease, 1)
        assert [unit["unit"] for unit in units] == ["pair-51"]
        (row,) = [row for row in site.daemons.query("site", "units") if row["unit"] == "pair-50"]
        assert "can't connect to qemu+unix:///system?socket=/nowhere/libvirt-sock" in row["reason"]
        site.close(lease)
        site.over(lease)


def test_a_domain_that_is_killed_from_outside(world, tmp_path):
    """A guest that somebody kills is found down by a probe, with the reason, and replaced; the other goes on; and a
    libvirtd that is away makes no unit fail.
    """
    settings = world.settings(image="sector") | {"probe_every": "500ms"}
    with open_site(world, tmp_path, {"dies-6": (3, settings)}) as site:
        lease = site.ask("dies-6", 2)
        site.joined(lease, 2)
        other = world.pid("dies-61")
        world.host.connect().lookupByName("leasekit-dies-60").destroy()

        def replaced() -> Any:
            told = site.lease(lease)
            names = {unit["unit"]: unit["state"] for unit in told["units"]}
            return None if names == {"dies-61": "joined", "dies-62": "joined"} else told

        wait_until("another unit", replaced)
        whys = " ".join(row["why"] for row in _history(site, lease))
        assert "unit dies-60: found down: its domain is stopped: it was destroyed" in whys
        assert world.pid("dies-61") == other
        before = world.host.guests()
        world.host.kill()
        wait_until("a probe that fails", lambda: None if "can't be probed" in _said(site) else "not yet")
        world.host.start()
        probed = site.daemons.command("site", "unit.probe", unit="dies-61")
        assert (probed["state"], probed["detail"]) == ("up", "running on host one")
        assert world.host.guests() == before
        site.close(lease)
        site.over(lease)
        check_nothing_left(site, "dies-6")


def test_a_libvirtd_that_is_restarted_while_units_are_set_up(world, tmp_path):
    """Units whose hypervisor's daemon goes away in the middle of their setup are tried again, and come up."""
    with open_site(world, tmp_path, {"back-7": (2, world.settings(image="sector") | {"retries": 8})}) as site:
        lease = site.ask("back-7", 2)
        soon(lambda: any(world.pid(name) is not None for name in ("back-70", "back-71")))
        world.host.kill()
        world.host.start()
        site.joined(lease, 2)
        assert len(world.host.guests()) == 2
        site.close(lease)
        site.over(lease)
        check_nothing_left(site, "back-7")


@pytest.mark.soak
def test_what_is_left_of_units_nobody_has(world, tmp_path):
    """Guests that no lease has, such as those of a site whose store was lost, are told at its start, and removed when
    its operator says so; a leased one is not touched.
    """
    with open_site(world, tmp_path, {"lost-8": (1, world.settings(image="sector"))}) as site:
        site.joined(site.ask("lost-8", 1), 1)
        site.daemons.kill("site")
    other = tmp_path / "other"
    other.mkdir()
    with open_site(world, other, {"lost-8": (2, world.settings())}) as site:
        assert {one["unit"] for one in site.daemons.command("site", "orphans.list")["orphans"]} == {"lost-80"}
        assert site.daemons.query("site", "status")["orphans"] > 0
        wait_until("words of what is left", lambda: "of unit lost-80, which nobody has" not in _said(site))
        removed = site.daemons.command("site", "orphans.remove")["orphans"]
        assert {(one["kind"], one["name"]) for one in removed} >= {("domain", "leasekit-lost-80")}
        check_nothing_left(site, "lost-8")
        (unit,) = site.joined(site.ask("lost-8", 1), 1)
        assert site.daemons.command("site", "orphans.list") == NOTHING_LEFT
        assert site.daemons.command("site", "orphans.remove") == NOTHING_LEFT
        assert unit["properties"]["host"].startswith(V4)
        assert world.ssh(unit["properties"], "hostname").strip() == "lost-80"
        site.close(_only(site))
        site.until_free()


def _only(site: Site) -> str:
    (lease,) = site.daemons.query("guest", "leases")
    return str(lease["id"])


def _history(site: Site, lease: str) -> list[dict[str, Any]]:
    with site.daemons.client("site") as client:
        return client.history(lease)


def _said(site: Site) -> str:
    return site.daemons.running["site"].said()
