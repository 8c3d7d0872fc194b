"""Drivers by name: those of leasekit, and those that other packages offer under the entry point ``leasekit.drivers``.

What an entry point names is called with an instance of its attribute ``Settings``, an attrs class, and returns a
:class:`~leasekit.core.drivers.Driver`; it raises ``SettingsError`` for what only the world can tell to be wrong.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from leasekit.core.drivers import Driver, Finding, OnlyUnits, OrphanFinder, Timeouts
from leasekit.core.settings import SettingsError, expect_one_of, structure
from leasekit.core.time import MINUTE, Duration, format_duration
from leasekit.drivers.null import NullDriver

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from leasekit.drivers.directory.publishing import PublishSettings

PUBLISH: Final = "publish"
"""The table of a driver's settings that says what is told to whom."""
GROUP: Final = "leasekit.drivers"
TIMEOUT: Final = 10 * MINUTE
"""How long an action may take where neither the site nor the driver says anything."""


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

    @property
    def capabilities(self) -> frozenset[str]:
        """What every driver of the class can do."""
        return _capabilities(self._factory())

    async def examine(self, settings: Any) -> list[Finding]:
        """What the driver says of its host, if it says anything."""
        return await _examined(self._factory(), settings)

    def timeouts(self, settings: Any) -> Timeouts | None:
        """What the driver says of how long its actions take, if it says anything."""
        return _timeouts(self._factory(), settings)

    def only_units(self, settings: Any) -> OnlyUnits | None:
        """Which units alone the driver can serve, if it says that."""
        return _only_units(self._factory(), settings)

    def _factory(self) -> DriverFactory:
        return cast(DriverFactory, getattr(import_module(self._module), self._name))


BUILT_IN: Final[Mapping[str, DriverFactory]] = {
    "ansible": LazyDriver("leasekit.drivers.ssh", "AnsibleDriver"),
    "link": LazyDriver("leasekit.drivers.link.driver", "LinkDriver"),
    "baremetal": LazyDriver("leasekit.drivers.baremetal.driver", "BareMetalDriver"),
    "libvirt": LazyDriver("leasekit.drivers.libvirt.driver", "LibvirtDriver"),
    "null": NullDriver,
    "power": LazyDriver("leasekit.drivers.power.driver", "PowerDriver"),
    "process": LazyDriver("leasekit.drivers.process.driver", "ProcessDriver"),
    "script": LazyDriver("leasekit.drivers.script", "ScriptDriver"),
    "ssh": LazyDriver("leasekit.drivers.ssh", "SshDriver"),
    "xen": LazyDriver("leasekit.drivers.xen.driver", "XenDriver"),
}
"""The drivers of leasekit by name; an entry point can't take these names."""

if TYPE_CHECKING:
    # Lazy drivers are named by text, which no type checker follows: here it sees that each is what it stands for.
    from leasekit.drivers.baremetal.driver import BareMetalDriver
    from leasekit.drivers.directory.publishing import PublishingDriver
    from leasekit.drivers.libvirt.driver import LibvirtDriver
    from leasekit.drivers.link.driver import LinkDriver
    from leasekit.drivers.power.driver import PowerDriver
    from leasekit.drivers.process.driver import ProcessDriver
    from leasekit.drivers.script import ScriptDriver
    from leasekit.drivers.ssh import AnsibleDriver, SshDriver
    from leasekit.drivers.xen.driver import XenDriver

    _DRIVERS: tuple[DriverFactory, ...] = (
        AnsibleDriver, BareMetalDriver, LibvirtDriver, LinkDriver, PowerDriver, ProcessDriver, ScriptDriver, SshDriver,
        XenDriver,
    )  # fmt: skip
    _FINDERS: tuple[Callable[..., OrphanFinder], ...] = (
        BareMetalDriver, LibvirtDriver, ProcessDriver, PublishingDriver, XenDriver,
    )  # fmt: skip


def driver_names() -> list[str]:
    """The names of all drivers that are there."""
    return sorted({*BUILT_IN, *(point.name for point in _entry_points())})


def _entry_points() -> Iterable[EntryPoint]:
    from importlib.metadata import entry_points  # slow to import, and few daemons have drivers of other packages

    return entry_points(group=GROUP)


def driver_factory(kind: str, where: str) -> DriverFactory:
    """The driver named ``kind``.

    Raises ``SettingsError``, its line starting with ``where``: an unknown name, or an entry point that can't be loaded.
    """
    if kind in BUILT_IN:
        return BUILT_IN[kind]
    for point in _entry_points():
        if point.name == kind:
            return _loaded(point, where)
    raise SettingsError([f"{where}: found driver {kind!r}, {expect_one_of(kind, driver_names())}"])


def capabilities(kind: str, where: str) -> frozenset[str]:
    """What every driver named ``kind`` can do, whatever its settings. Raises ``SettingsError`` as
    :func:`driver_factory`.
    """
    return _capabilities(driver_factory(kind, where))


def _capabilities(factory: DriverFactory) -> frozenset[str]:
    found = getattr(factory, "capabilities", None)
    return found if isinstance(found, frozenset) else frozenset()


def make_driver(kind: str, settings: Mapping[str, Any], where: str, *, base: Path | None = None) -> Driver:
    """The driver named ``kind``, with the settings from a table of a deploy file that errors call ``where``.

    Relative paths start at the folder ``base``. A table ``publish`` in it is for what stands around the driver then:
    :class:`~leasekit.drivers.directory.publishing.PublishingDriver`. Raises ``SettingsError`` with all faults at once.
    """
    factory = driver_factory(kind, where)
    structured, publish = _structured(factory, settings, where, base)
    try:
        made = factory(structured)
        if publish is None:
            return made
        from leasekit.drivers.directory.publishing import PublishingDriver

        return PublishingDriver(made, publish)
    except SettingsError as error:
        raise error.within(where) from error


def _structured(
    factory: DriverFactory, settings: Mapping[str, Any], where: str, base: Path | None
) -> tuple[Any, PublishSettings | None]:
    """A driver's own settings, and those of what stands around it."""
    own = {key: value for key, value in settings.items() if key != PUBLISH}
    structured: Any = structure(factory.Settings, own, where, base=base)
    if PUBLISH not in settings:
        return structured, None
    from leasekit.drivers.directory.publishing import PublishSettings

    return structured, structure(PublishSettings, settings[PUBLISH], f"{where}.{PUBLISH}", base=base)


def action_timeout(
    kind: str, settings: Mapping[str, Any], given: Duration | None, where: str, *, base: Path | None = None
) -> Duration:
    """How long one action may take: what the site has ``given``, else what the driver takes for usual, which is what
    its factory's ``timeouts(settings)`` says, or :data:`TIMEOUT`.

    Checks the settings too, without touching the world: what :func:`make_driver` finds before it makes the driver.
    Raises ``SettingsError`` with all faults at once, also where the driver itself may wait for longer than that.
    """
    factory = driver_factory(kind, where)
    structured, _ = _structured(factory, settings, where, base)
    told = _timeouts(factory, structured)
    if told is None:
        return TIMEOUT if given is None else given
    if given is not None and given <= told.least:
        found, least = format_duration(given), format_duration(told.least)
        raise SettingsError([f"{where}.timeout: found {found}, expected more than {least}: {told.why}"])
    return told.usual if given is None else given


def only_units(kind: str, settings: Mapping[str, Any], where: str, *, base: Path | None = None) -> OnlyUnits | None:
    """Which units alone a driver with these settings can serve: what its factory's ``only_units(settings)`` says, where
    it has one; None: any. Raises ``SettingsError``.
    """
    factory = driver_factory(kind, where)
    structured, _ = _structured(factory, settings, where, base)
    return _only_units(factory, structured)


async def examine(kind: str, settings: Mapping[str, Any], where: str, *, base: Path | None = None) -> list[Finding]:
    """What a driver with these settings would find on this host: what its factory's ``examine(settings)`` says, where
    it has one, whether it can be made, and how what it publishes to is. Raises ``SettingsError`` for settings that are
    wrong anywhere.
    """
    factory = driver_factory(kind, where)
    structured, publish = _structured(factory, settings, where, base)
    found = await _examined(factory, structured)
    if not any(finding.verdict == "missing" for finding in found):
        found += _made(factory, structured)
    if publish is not None:
        from leasekit.drivers.directory.publishing import examine_publishing

        found += await examine_publishing(publish)
    return found or [Finding("settings", "ok", "nothing is missing")]


def _made(factory: DriverFactory, settings: Any) -> list[Finding]:
    try:
        factory(settings)
    except SettingsError as error:
        return [Finding("settings", "missing", line, "see the key that it names") for line in error.errors]
    return []


def _timeouts(factory: DriverFactory, settings: Any) -> Timeouts | None:
    told: Callable[[Any], Timeouts | None] | None = getattr(factory, "timeouts", None)
    return None if told is None else told(settings)


def _only_units(factory: DriverFactory, settings: Any) -> OnlyUnits | None:
    told: Callable[[Any], OnlyUnits | None] | None = getattr(factory, "only_units", None)
    return None if told is None else told(settings)


async def _examined(factory: DriverFactory, settings: Any) -> list[Finding]:
    examine_host: Callable[[Any], Awaitable[list[Finding]]] | None = getattr(factory, "examine", None)
    return [] if examine_host is None else await examine_host(settings)


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
