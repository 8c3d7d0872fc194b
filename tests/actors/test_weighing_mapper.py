"""Machines by filters and weighers on real actors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from deployed_world import DeployedWorld
from test_yield_mapper import FARM, NEEDS

from leasekit.config.load import check
from leasekit.core.time import HOUR, MINUTE


def world_of(folder: Path, settings: str = "") -> DeployedWorld:
    """Three hosts of 4 cores and 8 GiB."""
    folder.mkdir(exist_ok=True)
    mapper = f'name = "filter_and_weigh", {settings}'.rstrip(", ")
    return DeployedWorld(FARM.replace('name = "yield", SETTINGS', mapper), folder)


def ask(world: DeployedWorld, units: int, **configuration: str) -> str:
    """A lease of machines of 2 cores, a minute later."""
    lease = world.request(
        "web", units, world.now, world.now + HOUR, type="node", properties=NEEDS, configuration=configuration
    )
    world.pass_time(MINUTE)
    return lease


def hosts(world: DeployedWorld, lease: str) -> list[str]:
    """The hosts of a lease's machines."""
    site = world.site()
    assert site.errors == []
    return sorted(unit.host for unit in site.units.machines if unit.lease == lease)


def test_spread_and_pack(tmp_path: Path) -> None:
    """A machine on each host, or all on as few as can be; also when the next lease comes."""
    spread = world_of(tmp_path / "spread")
    assert len(set(hosts(spread, ask(spread, 3)))) == 3
    assert len(set(hosts(spread, ask(spread, 3)))) == 3
    pack = world_of(tmp_path / "pack", 'weighers = [{ name = "pack" }]')
    assert len(set(hosts(pack, ask(pack, 2))) | set(hosts(pack, ask(pack, 1)))) == 1


def test_near_and_apart(tmp_path: Path) -> None:
    """A lease is on the host of another, or on none of its hosts, whatever weighs more."""
    world = world_of(tmp_path)
    first = ask(world, 1)
    assert hosts(world, ask(world, 1, near=first)) == hosts(world, first)
    assert not set(hosts(world, ask(world, 2, apart=first))) & set(hosts(world, first))


def test_hosts_that_have_different_resources(tmp_path: Path) -> None:
    """What needs a GPU is where one is, what needs none is placed as well."""
    text = FARM.replace('name = "yield", SETTINGS', 'name = "filter_and_weigh"')
    group = text[text.index("[[actor.site.inventory]]") : text.index("[[actor.site.delegation]]")]
    other = group.replace("units = 3", 'units = 1\nprefix = "gpu-"').replace("cpu = 4,", "cpu = 8, gpu = 1,")
    world = DeployedWorld(text.replace(group, other + group), tmp_path)
    plain = ask(world, 3)
    assert len(hosts(world, plain)) == 3
    needs = {**NEEDS, "needs.gpu": "1"}
    lease = world.request("web", 1, world.now, world.now + HOUR, type="node", properties=needs)
    world.pass_time(MINUTE)
    assert hosts(world, lease) == ["gpu-0"]


def test_filters_of_hosts(tmp_path: Path) -> None:
    """Hosts that the lease's filter takes are weighed. Where none is taken machines are where their places are, on one
    host. A chain without that filter weighs all.
    """
    world = world_of(tmp_path / "all")
    assert len(set(hosts(world, ask(world, 2, filter="capacity.cpu >= 4000")))) == 2
    assert len(set(hosts(world, ask(world, 2, filter="site == site")))) == 1, "a host does not say of which site it is"
    deaf = world_of(tmp_path / "none", 'filters = ["affinity"]')
    assert len(set(hosts(deaf, ask(deaf, 2, filter="site == site")))) == 2


def test_a_filter_that_is_none_is_told(tmp_path: Path) -> None:
    """The lease fails by one message; the site goes on."""
    world = world_of(tmp_path)
    wrong = ask(world, 1, filter="host ==")
    shown: Any = world.lease("web", wrong)
    assert shown["state"] == "failed" and "filter" in shown["reason"]
    assert hosts(world, ask(world, 1)) != []


def test_full_hosts_leave_the_planned_place(tmp_path: Path) -> None:
    """What the weighers find nothing for goes where its place is: no mapper overfills a host."""
    world = world_of(tmp_path)
    leases = [ask(world, 1) for _ in range(12)]
    placed = [host for lease in leases for host in hosts(world, lease)]
    assert placed and max(placed.count(host) for host in placed) <= 8


@pytest.mark.parametrize(
    ("settings", "key"),
    [('weighers = [{ name = "luck" }]', "name"), ('filters = ["luck"]', "filters"), ("weighers = 3", "weighers")],
)
def test_settings_that_are_none_are_named(tmp_path: Path, settings: str, key: str) -> None:
    """By key, what was found and what is allowed."""
    file = tmp_path / "site.toml"
    file.write_text(f'[actor.s]\nrole = "authority"\nmapper = {{ name = "filter_and_weigh", {settings} }}\n')
    wrong = check(file)[0]
    assert any(key in one.key and one.found for one in wrong), wrong
