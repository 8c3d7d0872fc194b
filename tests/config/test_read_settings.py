"""No setting is accepted and then ignored: of each setting of a deploy file, mypy knows code that reads it."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, get_args

import attrs
import pytest
import reading
from mypy import api

from leasekit.actors.settings import AuthoritySettings, BrokerSettings, DelegationSpec, GuestSettings, UnitGroup
from leasekit.config import tables
from leasekit.config.deployment import ActorSpec
from leasekit.config.emulation import EmulationSpec, PlotSpec, RunSpec
from leasekit.config.tables import ShellSettings, TransportSettings
from leasekit.config.traces import SignalSpec
from leasekit.core.settings import setting_fields
from leasekit.drivers.registry import driver_factory, driver_names
from leasekit.policies.registry import BUILT_IN

CHECKS: Final = frozenset({"leasekit.config.load", "leasekit.config.resources", "leasekit.config.emulation"})
"""Who reads settings to check them, or to make other things of them: no use of what goes on to the actors."""
MADE_INTO_OTHERS: Final = frozenset(
    {
        tables.DeploymentTable, *tables.ACTORS.values(), tables.KeyTable, tables.ListenTable, tables.InventoryTable,
        tables.DelegationTable, RunSpec,
    }
)  # fmt: skip
"""What those modules make into other things, whose attributes are looked at in their place."""
USED_AT_ONCE: Final = {
    (tables.DriverSpec, "types"), (tables.DriverSpec, "powers"), (tables.DriverSpec, "save"), (tables.PeerSpec, "tls"),
    (EmulationSpec, "run"), (EmulationSpec, "seeds"), (PlotSpec, "series"),
    *((tables.ActorTable, name) for name in ("key", "listen", "control", "store", "settings", "mapper")),
}  # fmt: skip
"""Single settings of which the same is true."""
READ_BY_NAME: Final = {
    "ScriptSettings": {"setup", "teardown", "modify", "join", "leave", "probe"},
    "Script": {"off", "soft_off"},
}
"""What ``getattr`` reads, by the name of the action that is carried out."""
OF_OTHERS: Final = (
    "anyio", "click", "cryptography", "gymnasium", "h11", "highspy", "httpx", "hypercorn", "hypothesis", "jinja2",
    "joserfc", "ldap3", "matplotlib", "nacl", "numpy", "outcome", "polars", "pytest", "rich", "starlette", "trio",
)  # fmt: skip
"""Packages that mypy need not read: no setting is one of their objects, and they take a third of its time."""


def _mappers() -> Iterator[type[Any]]:
    for targets in BUILT_IN.values():
        for target in targets.values():
            module, _, name = target.partition(":")
            mapper = getattr(importlib.import_module(module), name)
            if hasattr(mapper, "Settings"):
                yield mapper.Settings


def _classes() -> set[type[Any]]:
    """All classes of settings, with those that stand in them."""
    waiting: list[Any] = [
        tables.DeploymentTable, *tables.ACTORS.values(), tables.DriverSpec, tables.PeerSpec, SignalSpec, ActorSpec,
        EmulationSpec, ShellSettings, TransportSettings, GuestSettings, BrokerSettings, AuthoritySettings,
        DelegationSpec, UnitGroup, *_mappers(), *(driver_factory(name, name).Settings for name in driver_names()),
    ]  # fmt: skip
    found: set[type[Any]] = set()
    while waiting:
        kind = waiting.pop()
        if isinstance(kind, type) and attrs.has(kind):
            if kind not in found:
                found.add(kind)
                waiting += [field.type for field in setting_fields(kind)]
        else:
            waiting += get_args(kind)
    return found


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """The modules in which each attribute of the package is read."""
    config = tmp_path_factory.mktemp("mypy") / "mypy.ini"
    plugin = Path(reading.__file__)
    lines = ["[mypy]", f"plugins = {plugin}", "ignore_missing_imports = true"]
    lines += [f"[mypy-{package}.*]\nfollow_imports = skip" for package in OF_OTHERS]
    config.write_text("\n".join(lines), encoding="utf-8")
    reading.READ.clear()
    said, wrong, _ = api.run([f"--config-file={config}", "--cache-dir=/dev/null", "-p", "leasekit"])
    assert reading.READ, said + wrong
    return reading.READ


@pytest.mark.long
def test_every_setting_is_read(read: dict[str, set[str]]) -> None:
    """What a file may say is used by code that acts on it, beside what checks it."""
    ignored = []
    for cls in _classes():
        for field in attrs.fields(cls):
            if not field.init or field.name in READ_BY_NAME.get(cls.__name__, ()):
                continue
            names = [f"{base.__module__}.{base.__qualname__}.{field.name}" for base in cls.__mro__]
            readers = set().union(*(read.get(name, ()) for name in names))
            passed_on = cls in MADE_INTO_OTHERS or (cls, field.name) in USED_AT_ONCE
            if not (readers if passed_on else readers - CHECKS):
                ignored.append(f"{cls.__module__}.{cls.__name__}.{field.name}")
    assert not ignored, sorted(ignored)


def test_the_exceptions_are_settings() -> None:
    """Each name that is excepted is still one of a setting."""
    there = {cls.__name__: {field.name for field in attrs.fields(cls)} for cls in _classes()}
    assert [(name, fields - there[name]) for name, fields in READ_BY_NAME.items() if fields - there[name]] == []
    assert [(cls, name) for cls, name in USED_AT_ONCE if name not in there[cls.__name__]] == []
