"""Drivers by name: built in, offered by other packages, unknown, or broken."""

from __future__ import annotations

import sys
from typing import get_type_hints

import pytest

from leasekit.core.drivers import Orphan
from leasekit.core.settings import SettingsError
from leasekit.drivers.null import NullDriver
from leasekit.drivers.process.driver import ProcessDriver
from leasekit.drivers.registry import BUILT_IN, LazyDriver, action_timeout, driver_names, make_driver
from leasekit.drivers.script import ScriptDriver

PLUGIN = """
import attrs
from leasekit.core.settings import SettingsError

@attrs.frozen(kw_only=True)
class Settings:
    image: str

class Driver:
    Settings = Settings
    def __init__(self, settings):
        if settings.image == "missing":
            raise SettingsError(["image: there is no image missing"])
        self.image = settings.image

class NoSettings:
    pass
"""


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    """An installed package that offers drivers, one of them well made."""
    (tmp_path / "site_plugin.py").write_text(PLUGIN)
    info = tmp_path / "site_plugin-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: site-plugin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[leasekit.drivers]\n"
        "cloud = site_plugin:Driver\n"
        "null = site_plugin:Driver\n"
        "bare = site_plugin:NoSettings\n"
        "lost = site_plugin:Nothing\n"
        "gone = no_such_module:Driver\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("site_plugin", None)


def errors(kind: str, settings: dict[str, object]) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        make_driver(kind, settings, "site.toml: types.vm.driver")
    return caught.value.errors


def test_built_in_drivers(tmp_path):
    """null, process and script are there by name; relative paths start at the base folder."""
    assert isinstance(make_driver("null", {"latency": {"setup": "1s"}}, "x"), NullDriver)
    assert isinstance(make_driver("process", {"directory": "units-here"}, "x", base=tmp_path), ProcessDriver)
    assert (tmp_path / "units-here/units").is_dir()
    (tmp_path / "setup.sh").write_text("#!/bin/sh\n")
    (tmp_path / "setup.sh").chmod(0o755)
    assert isinstance(make_driver("script", {"setup": ["./setup.sh"]}, "x", base=tmp_path), ScriptDriver)


@pytest.mark.parametrize("kind", BUILT_IN)
def test_what_finds_orphans_says_what_they_are(kind):
    """A driver that finds what is left of units tells of it as daemons and people read it."""
    factory = BUILT_IN[kind]
    made = factory._factory() if isinstance(factory, LazyDriver) else factory
    finder = getattr(made, "orphans", None)
    assert finder is None or get_type_hints(finder)["return"] == list[Orphan]


def test_an_unknown_driver_is_named_with_those_there():
    """An unknown name is answered by the names that are there, and the nearest."""
    [error] = errors("scrpit", {})
    assert error.startswith("site.toml: types.vm.driver: found driver 'scrpit', expected one of: ")
    listed = error.partition("one of: ")[2].partition(" (")[0].split(", ")
    assert {"libvirt", "link", "null", "process", "script"} <= set(listed)
    assert "did you mean script?" in error


def test_all_faults_come_at_once_under_their_name():
    """Every fault of the settings is one line that starts with the table's name."""
    found = errors("process", {"directory": 5, "port": 1, "ports": [1], "limits": {"cpu": "x", "ram": 1}})
    assert [line.removeprefix("site.toml: types.vm.driver.").split(":")[0] for line in found] == [
        "port",
        "directory",
        "ports",
        "limits.ram",
        "limits.cpu",
    ]


def test_settings_can_be_checked_without_making_anything(tmp_path):
    """action_timeout() finds the same faults and leaves the world as it is."""
    action_timeout("process", {"directory": str(tmp_path / "units-here")}, None, "x")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(SettingsError, match=r"x\.directory: found nothing, expected a path"):
        action_timeout("process", {}, None, "x")


def test_drivers_of_other_packages(plugin):
    """A driver that a package offers is found by its entry point, and structured and checked like the others."""
    assert {"cloud", "null", "process", "script"} <= set(driver_names())
    assert make_driver("cloud", {"image": "debian"}, "x").image == "debian"
    assert errors("cloud", {}) == ["site.toml: types.vm.driver.image: found nothing, expected text in quotes"]
    assert errors("cloud", {"image": "missing"}) == ["site.toml: types.vm.driver.image: there is no image missing"]


def test_a_package_can_not_replace_a_built_in_driver(plugin):
    """The names of the built-in drivers can't be taken."""
    assert isinstance(make_driver("null", {}, "x"), NullDriver)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("bare", "site_plugin:NoSettings, is no class with an attrs class Settings"),
        ("lost", "can't be loaded from site_plugin:Nothing: "),
        ("gone", "can't be loaded from no_such_module:Driver: No module named 'no_such_module'"),
    ],
)
def test_broken_packages_are_reported(plugin, kind, words):
    """An entry point that leads nowhere, or to no driver, is named with the reason."""
    [error] = errors(kind, {})
    assert words in error
