"""Which types a deploy file has saved: ``save`` at a driver becomes a resource property of the types that it serves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from leasekit.actors.settings import AuthoritySettings
from leasekit.config.errors import ConfigErrors
from leasekit.config.load import load
from leasekit.core.properties import SAVES

FILE = """
actor.broker.role = "broker"
[actor.site]
role = "authority"
inventory = [{{ type = "vm", units = 2{more} }}, {{ type = "gpu", units = 1 }}]
delegation = [{{ broker = "broker", type = "vm" }}]
{drivers}
"""
BOTH = """
driver.one = {{ kind = "null", types = ["vm"]{one} }}
driver.two = {{ kind = "{kind}", types = ["gpu"]{two} }}
"""


def saved(tmp_path: Path, drivers: str, more: str = "") -> dict[str, str]:
    """What the site says of each of its types."""
    file = tmp_path / "site.toml"
    file.write_text(FILE.format(drivers=drivers, more=more))
    settings: Any = load(file, tmp_path / "state").actors["site"].settings
    assert isinstance(settings, AuthoritySettings)
    return {group.type: group.properties.get(SAVES, "") for group in settings.inventory}


@pytest.mark.parametrize(
    ("drivers", "expected"),
    [
        ("", {"vm": "", "gpu": ""}),
        ('driver.one = { kind = "null", save = true }', {"vm": "true", "gpu": "true"}),
        (BOTH.format(one=", save = true", two="", kind="null"), {"vm": "true", "gpu": ""}),
        (BOTH.format(one="", two=", save = true", kind="null"), {"vm": "", "gpu": "true"}),
        (BOTH.format(one=", save = false", two="", kind="null"), {"vm": "", "gpu": ""}),
    ],
)
def test_types_of_a_driver_that_saves(tmp_path: Path, drivers: str, expected: dict[str, str]) -> None:
    """The types of a driver that is told to save say so, and no others."""
    assert saved(tmp_path, drivers) == expected


def test_a_driver_that_can_not_save(tmp_path: Path) -> None:
    """A driver that can't is an error that names the key."""
    with pytest.raises(ConfigErrors) as caught:
        saved(tmp_path, 'driver.one = { kind = "script", setup = ["true"], teardown = ["true"], save = true }')
    assert "actor.site.driver.one.save" in str(caught.value)
    assert "a script driver can't save units" in str(caught.value)


def test_the_property_is_the_drivers(tmp_path: Path) -> None:
    """Nobody says by hand what only the driver's key may say."""
    with pytest.raises(ConfigErrors) as caught:
        saved(tmp_path, "", ', properties = { "driver.save" = "true" }')
    assert "inventory[0].properties.driver.save" in str(caught.value)
