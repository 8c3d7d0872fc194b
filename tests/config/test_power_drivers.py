"""``powers`` of a driver: which units can be switched, by which driver, and what is wrong with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from leasekit.actors.settings import AuthoritySettings
from leasekit.config.build import build, make_drivers
from leasekit.config.errors import ConfigErrors
from leasekit.config.load import load
from leasekit.core.leases.power import power_driver

FILE = """
[actor.site]
role = "authority"
inventory = [{{ type = "node", units = 2 }}, {{ type = "vm", units = 1 }}]
[actor.site.driver.machines]
kind = "null"
[actor.site.driver.bmc]
kind = "null"
latency = {{ power_on = "3m" }}
{more}
[actor.broker]
role = "broker"
[actor.guest]
role = "guest"
{guest}
[emulation]
horizon = "1d"
"""


def write(folder: Path, more: str = "", guest: str = "") -> Path:
    path = folder / "power.toml"
    path.write_text(FILE.format(more=more, guest=guest))
    return path


def test_a_driver_switches_the_types_that_it_names(tmp_path: Path) -> None:
    """Their units can be switched, others can't; another driver sets them up."""
    deployment = load(write(tmp_path, 'powers = ["node"]'))
    settings = deployment.actors["site"].settings
    assert isinstance(settings, AuthoritySettings)
    assert {group.type: group.power for group in settings.inventory} == {"node": True, "vm": False}
    site = deployment.actors["site"]
    named = [site.driver_for(type_) for type_ in ("node", "vm", power_driver("node"), power_driver("vm"))]
    assert named == ["machines", "machines", "bmc", ""]
    assert set(make_drivers(deployment, "site")) == {"machines", "bmc"}
    built = build(deployment, "site", virtual=True)
    model = built.model(power_driver("node"))
    assert model is not None
    assert model.latency("power_on", "node-0", 1) == 180_000


@pytest.mark.parametrize(
    ("more", "guest", "words"),
    [
        ('powers = ["nods"]', "", "actor.site.driver.bmc.powers: found 'nods', which is no type of the inventory"),
        ('powers = "node"', "", "actor.site.driver.bmc.powers"),
        (
            'powers = ["node"]\n[actor.site.driver.two]\nkind = "null"\npowers = ["node"]', "",
            "actor.site.driver.two.powers: found 'node', expected types that bmc has not",
        ),
        ("types = []", '[actor.guest.driver.g]\nkind = "null"\npowers = ["vm"]', "they are for a site's units"),
    ],
)  # fmt: skip
def test_wrong_powers_are_told(tmp_path: Path, more: str, guest: str, words: str) -> None:
    """The line names the key, what was found and what is allowed."""
    with pytest.raises(ConfigErrors) as failed:
        load(write(tmp_path, more, guest))
    assert words in str(failed.value)
