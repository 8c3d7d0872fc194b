"""Drivers by name: those of leasekit, and those that other packages offer under the entry point ``leasekit.drivers``.

What an entry point names is called with an instance of its attribute ``Settings``, an attrs class, and returns a
:class:`~leasekit.core.drivers.Driver`; it raises ``SettingsError`` for what only the world can tell to be wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Final, Protocol, cast

from leasekit.core.drivers import Driver
from leasekit.core.settings import SettingsError, expect_one_of, structure
from leasekit.drivers.null import NullDriver
from leasekit.drivers.process import ProcessDriver
from leasekit.drivers.script import ScriptDriver

GROUP: Final = "leasekit.drivers"


class DriverFactory(Protocol):
    """A driver's class, or what stands for it."""

    @property
    def Settings(self) -> type[Any]:
        """The attrs class of its settings."""
        ...

    def __call__(self, settings: Any) -> Driver: ...


class LazyDriver:
    """A driver whose modules are read when it is first asked for: daemons that don't need them start without."""

    def __init__(self, module: str, name: str) -> None:
        self._module = module
        self._name = name

    @property
    def Settings(self) -> type[Any]:
        """The attrs class of its settings."""
        return self._factory().Settings

    def __call__(self, settings: Any) -> Driver:
        return self._factory()(settings)

    def _factory(self) -> DriverFactory:
        return cast(DriverFactory, getattr(import_module(self._module), self._name))


BUILT_IN: Final[Mapping[str, DriverFactory]] = {
    "libvirt": LazyDriver("leasekit.drivers.libvirt.driver", "LibvirtDriver"),
    "null": NullDriver,
    "process": ProcessDriver,
    "script": ScriptDriver,
}
"""The drivers of leasekit by name; an entry point can't take these names."""


def driver_names() -> list[str]:
    """The names of all drivers that are there."""
    return sorted({*BUILT_IN, *(point.name for point in entry_points(group=GROUP))})


def driver_factory(kind: str, where: str) -> DriverFactory:
    """The driver named ``kind``.

    Raises ``SettingsError``, its line starting with ``where``: an unknown name, or an entry point that can't be loaded.
    """
    if kind in BUILT_IN:
        return BUILT_IN[kind]
    for point in entry_points(group=GROUP):
        if point.name == kind:
            return _loaded(point, where)
    raise SettingsError([f"{where}: found driver {kind!r}, {expect_one_of(kind, driver_names())}"])


def make_driver(kind: str, settings: Mapping[str, Any], where: str, *, base: Path | None = None) -> Driver:
    """The driver named ``kind``, with the settings from a table of a deploy file that errors call ``where``.

    Relative paths start at the folder ``base``. Raises ``SettingsError`` with all faults at once.
    """
    factory = driver_factory(kind, where)
    structured: Any = structure(factory.Settings, settings, where, base=base)
    try:
        return factory(structured)
    except SettingsError as error:
        raise error.within(where) from error


def check_settings(kind: str, settings: Mapping[str, Any], where: str, *, base: Path | None = None) -> None:
    """Checks settings without touching the world: what :func:`make_driver` finds before it makes the driver.

    Raises ``SettingsError`` with all faults at once.
    """
    structure(driver_factory(kind, where).Settings, settings, where, base=base)


def _loaded(point: EntryPoint, where: str) -> DriverFactory:
    try:
        found = point.load()
    except (ImportError, AttributeError) as error:
        text = f"{where}: driver {point.name!r} can't be loaded from {point.value}: {error}"
        raise SettingsError([text]) from error
    if not callable(found) or not isinstance(getattr(found, "Settings", None), type):
        text = f"{where}: driver {point.name!r}, {point.value}, is no class with an attrs class Settings"
        raise SettingsError([text])
    return cast(DriverFactory, found)
