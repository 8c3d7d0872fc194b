"""What drivers and mappers say of a site's units is held against its inventory: who can't be served or switched."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
from deploy_texts import write

from leasekit.cli import main
from leasekit.config.errors import ConfigErrors
from leasekit.config.load import load
from leasekit.core.drivers import OnlyUnits
from leasekit.drivers import registry
from leasekit.drivers.null import NullDriver

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
SITE = """
[actor.broker]
role = "broker"
[actor.site]
role = "authority"
inventory = [{{ type = "node", units = {nodes}{more} }}, {{ type = "gpu", names = ["gpu-a", "gpu-b"] }}]
{mapper}
[actor.site.driver.bmc]
{driver}
[actor.site.driver.machines]
kind = "null"
"""
POWER = 'kind = "{kind}"\n{named}\nnodes = {{ {nodes} }}'
MACHINE = '{ power = { kind = "script", on = ["a"], off = ["b"], status = ["c"] } }'
ALL = ("node-0", "node-1", "gpu-a", "gpu-b")
EXPECTED = "expected one for each unit that the driver sets up or switches"


def told(path: Path) -> list[str]:
    """The faults of a file, without its name."""
    try:
        load(path)
    except ConfigErrors as error:
        return [str(one).removeprefix(f"{path}: ") for one in error.errors]
    return []


def site(
    folder: Path, *, named: str = 'powers = ["node"]', known: Collection[str] = ALL, kind: str = "power", **more: Any
) -> list[str]:
    """What is wrong with a site whose power driver knows these units."""
    driver = POWER.format(kind=kind, named=named, nodes=", ".join(f"{name} = {MACHINE}" for name in known))
    return told(write(folder, SITE.format(driver=driver, **{"nodes": 2, "more": "", "mapper": "", **more})))


# -- drivers -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("named", "more"),
    [('powers = ["node"]', ""), ('types = ["node"]', ""), ('powers = ["gpu"]', ', driver = "bmc"')],
    ids=["switches", "serves", "named"],
)
def test_a_unit_that_a_driver_does_not_know(tmp_path: Path, named: str, more: str) -> None:
    """Whether it is to switch it, serves its type, or is named by the inventory. Machines that are no units may be."""
    assert site(tmp_path, named=named, more=more, known=(*ALL, "spare")) == []
    found = f"actor.site.driver.bmc.nodes: found no node for 'node-1' of type 'node', {EXPECTED}"
    assert site(tmp_path, named=named, more=more, known=("node-0", "gpu-a", "gpu-b")) == [found]


def test_every_type_of_a_driver_is_looked_at(tmp_path: Path) -> None:
    """One fault for each, with the first few of its units; also where it serves the one and switches the other."""
    assert site(tmp_path, named='powers = ["node", "gpu"]') == []
    for named in ('powers = ["node", "gpu"]', 'types = ["gpu"]\npowers = ["node"]'):
        assert site(tmp_path, named=named, known=("gpu-a", "node-2"), nodes=7) == [
            "actor.site.driver.bmc.nodes: "
            f"found no node for 'node-0', 'node-1', 'node-3' and 3 more of type 'node', {EXPECTED}",
            f"actor.site.driver.bmc.nodes: found no node for 'gpu-b' of type 'gpu', {EXPECTED}",
        ]


def test_faults_of_the_settings_are_told_once(tmp_path: Path) -> None:
    """What is wrong with a driver is not told again by who asks it for its units."""
    [line] = site(tmp_path, known=('"../node"',))
    assert "nodes: found '../node', expected letters" in line
    [line] = site(tmp_path, kind="pwoer")
    assert "found driver 'pwoer'" in line


@pytest.mark.parametrize(
    ("file", "old", "new", "fault"),
    [
        (
            "baremetal/metal.toml", '"node-1", "node-2"]', '"node-1", "node-2", "node-3"]',
            "actor.site.driver.metal.nodes: found no node for 'node-3' of type 'node'",
        ),
        (
            "libvirt/vms.toml", 'hosts.here]\nuri = "qemu:///system"',
            'leased]\nbook = "book.json"\nkey = "key"\n\n[actor.site.driver.machines.hosts.here]',
            "actor.site.driver.machines.hosts: found no host with a uri for 'vm-0', 'vm-1', 'vm-2' and 5 more of type "
            "'vm'",
        ),
        (
            "xen/vms.toml", 'address = "10.77.0.2"', 'units = ["vm-[0-5]"]\naddress = "10.77.0.2"',
            "actor.site.driver.machines.hosts: found no home (units of a host) for 'vm-6', 'vm-7' of type 'vm'",
        ),
    ],
    ids=["baremetal", "libvirt", "xen"],
)  # fmt: skip
def test_other_drivers_with_units_of_their_own(tmp_path: Path, file: str, old: str, new: str, fault: str) -> None:
    """Machines of bare metal, and virtual ones that have no home at any host."""
    text = (DEPLOY / file).read_text(encoding="utf-8")
    assert text.count(old) == 1
    assert told(write(tmp_path, text)) == []
    assert told(write(tmp_path, text.replace(old, new))) == [f"{fault}, {EXPECTED}"]


def test_hosts_of_machines_are_hosts_of_their_driver(tmp_path: Path) -> None:
    """By the same names. They can be capped and moved."""
    text = (DEPLOY / "libvirt/vms.toml").read_text(encoding="utf-8")
    units = 'units = 8\nprefix = "vm-"'
    hosts = 'names = ["here", "there"]\ncapacity = { cpu = 8, memory = "16GiB" }'
    assert text.count(units) == 1
    path = write(tmp_path, text.replace(units, hosts))
    fault = "actor.site.driver.machines.hosts: found no host for 'there' of type 'vm'"
    assert told(path) == [f"{fault}, {EXPECTED}"]
    deployment = load(write(tmp_path, path.read_text().replace(', "there"]', "]")))
    [group] = deployment.actors["site"].settings.inventory
    assert {key for key in group.properties if key.startswith("driver.")} == {"driver.cap", "driver.migrate"}


def test_drivers_of_packages_say_so_or_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that has no such method, or knows of no bounds, serves any unit."""
    text = SITE.format(driver='kind = "cloud"\ntypes = ["node"]', nodes=2, more="", mapper="")

    class Silent:
        Settings = NullDriver.Settings

    class Unbound(Silent):
        @staticmethod
        def only_units(settings: object) -> None:
            return None

    class Bound(Silent):
        @staticmethod
        def only_units(settings: object) -> OnlyUnits:
            return OnlyUnits(lambda unit: unit == "node-0", "seed", "place")

    for factory, faults in (
        (Silent, []),
        (Unbound, []),
        (Bound, [f"found no place for 'node-1' of type 'node', {EXPECTED}"]),
    ):
        monkeypatch.setattr(registry, "BUILT_IN", {**registry.BUILT_IN, "cloud": factory})
        assert told(write(tmp_path, text)) == [f"actor.site.driver.bmc.seed: {fault}" for fault in faults]


def test_commands_tell_of_it(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """`leasekit config check` finds it, and `leasekit site doctor` before it looks at the host."""
    site(tmp_path, known=("node-0",))
    for words in (["config", "check"], ["site", "doctor"]):
        assert main.run([*words, str(tmp_path / "deploy.toml")]) == 1
        out, err = capfd.readouterr()
        assert "no node for 'node-1' of type 'node'" in " ".join((out + err).split())


# -- mappers -------------------------------------------------------------------------------------------------------

ENERGY = 'mapper = {{ name = "energy", types = [{}] }}'
OWN = """
class Own:
    switches = {switches}

    def assign(self, cycle):
        return ()


class Broken(Own):
    @property
    def switches(self):
        raise KeyError("power")
"""


def test_types_that_the_energy_manager_switches(tmp_path: Path) -> None:
    """Each must be there, and be switched by a driver: nothing would come of the others, or complaints for ever."""
    assert site(tmp_path, mapper=ENERGY.format('"node"')) == []
    assert site(tmp_path, mapper=ENERGY.format('"node", "gpu", "nod"')) == [
        "actor.site.mapper.types: found 'gpu', whose power no driver switches, expected types that a driver has in its "
        "powers (node)",
        "actor.site.mapper.types: found 'nod', which is no type of the inventory, expected one of: gpu, node "
        "(did you mean node?)",
    ]
    [line] = site(tmp_path, mapper=ENERGY.format('"node"'), named='types = ["gpu"]')
    assert line.endswith("expected types that a driver has in its powers (none has any)")


def test_a_driver_that_can_not_be_read_is_told_alone(tmp_path: Path) -> None:
    """That it would switch the type is seen all the same."""
    [line] = site(tmp_path, named='powers = ["node"]\nretries = -1', mapper=ENERGY.format('"node"'))
    assert line.startswith("actor.site.driver.bmc.retries: ")


@pytest.mark.parametrize(
    ("switches", "faults"),
    [
        ("'node'", 0), ("['node']", 0), ("{'node', 'gpu'}", 1), ("('nodes', 'gpu')", 2), ("7", 0), ("[7, None]", 0),
    ],
)  # fmt: skip
def test_mappers_of_others(tmp_path: Path, switches: str, faults: int) -> None:
    """They may say what they switch; whatever else they mean by the name is left alone."""
    (tmp_path / "own.py").write_text(OWN.format(switches=switches))
    lines = site(tmp_path, mapper='mapper = { name = "own.py:Own" }')
    assert len(lines) == faults
    assert all(line.startswith("actor.site.mapper: found '") for line in lines)


def test_a_mapper_that_fails_to_say_it(tmp_path: Path) -> None:
    """What it raises is a fault of the file like any other."""
    (tmp_path / "own.py").write_text(OWN.format(switches="()"))
    [line] = site(tmp_path, mapper='mapper = { name = "own.py:Broken" }')
    assert "what the mapper switches can't be told: KeyError: 'power' (own.py, line " in line


def test_xen_has_no_machines_on_hosts(tmp_path: Path) -> None:
    """Its units have fixed homes: hosts of a site are refused, rather than misplaced."""
    text = (DEPLOY / "xen/vms.toml").read_text(encoding="utf-8")
    entry = 'type = "vm"\nunits = 8\n'
    assert text.count(entry) == 1
    found = told(write(tmp_path, text.replace(entry, f"{entry}capacity = {{ cpu = 8 }}\n")))
    assert len(found) == 1 and "found no host for" in found[0]
