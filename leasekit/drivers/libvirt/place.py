"""One host as the driver sees it: its connection, domains, volumes and images, and what units have there."""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable
from typing import Final, Self

import attrs
import trio

from leasekit.core.drivers import DriverError
from leasekit.core.time import SECOND
from leasekit.drivers.libvirt.connection import HostAbsentError, HostConnection
from leasekit.drivers.libvirt.documents import DomainMachine
from leasekit.drivers.libvirt.domains import Domains, DomainState
from leasekit.drivers.libvirt.images import ImageCache
from leasekit.drivers.libvirt.kvm import kvm_runs
from leasekit.drivers.libvirt.settings import LibvirtHost, LibvirtSettings
from leasekit.drivers.libvirt.volumes import Volumes

CONSOLE: Final = ".console"
SUFFIXES: Final = (".disk", ".seed", ".initrd", CONSOLE)
"""What follows a unit's name in the names of its volumes."""
_ROLLED: Final = re.compile(r"(\.console)\.[0-9]+$")
"""And in those where libvirt's virtlogd puts what a console held before, each time that it has grown large."""
SECRET: Final = (".seed", ".initrd")
"""Volumes of units that hold keys."""
NOTE: Final = "~moved-"
"""And in that of a volume at its home, before the name of another host: something of it may be there."""
QUIET: Final = 60.0
"""Seconds for which a host that was silent is not asked again for what most likely it does not have."""


class LibvirtPlace:
    """One host."""

    def __init__(self, name: str, host: LibvirtHost, settings: LibvirtSettings) -> None:
        self.name = name
        self.host = HostConnection(
            name, host, settings.threads, settings.keepalive, settings.leased, settings.call_timeout
        )
        self.domains = Domains(self.host)
        self.volumes = Volumes(self.host)
        self.images = ImageCache(name, self.volumes, settings.prefix)
        self._settings = settings
        self._probing = trio.Lock()
        self._given: bool | None = {"kvm": True, "tcg": False}.get(host.acceleration)
        self._probed: tuple[str, bool] | None = None
        self._quiet_until = 0.0

    def name_of(self, unit: str) -> str:
        """What a unit's domain is called, and what its volumes' names begin with."""
        return f"{self._settings.prefix}{unit}"

    async def find(self, unit: str) -> DomainState | None:
        """The domain of a unit, or none. Raises ``DriverError``."""
        return await self.domains.find(self.name_of(unit))

    async def machine(self) -> DomainMachine:
        """What kind of domain a unit is to be here. Raises ``DriverError``."""
        found = await self.host.machine()
        if not found.qemu:
            return found
        kvm = self._given if self._given is not None else await self._probe()
        return attrs.evolve(found, kind="kvm") if kvm else found

    async def _probe(self) -> bool:
        async with self._probing:
            uri = self.host.uri  # another machine is another host
            if self._probed is None or self._probed[0] != uri:
                settings = self._settings
                runs = await kvm_runs(self.host, self.domains, self.volumes, settings.prefix, settings.probe_timeout)
                self._probed = uri, runs
            return self._probed[1]

    async def has(self, unit: str, *, volumes: bool) -> bool:
        """Whether there is a domain of a unit, or one of its ``volumes``, notes among them. Raises ``DriverError``."""
        if await self.find(unit) is not None:
            return True
        name = self.name_of(unit)
        own = {name + suffix for suffix in SUFFIXES}
        return volumes and any(each in own or each.startswith(name + NOTE) for each in await self.volumes.names())

    async def glance(self, look: Callable[[Self], Awaitable[object]]) -> bool:
        """Whether ``look`` finds something here. A host that does not answer soon, or was silent a moment ago, or has
        not got what it is asked for, has nothing.
        """
        if time.monotonic() < self._quiet_until:
            return False
        with trio.move_on_after(self._settings.keepalive / SECOND):
            try:
                return bool(await look(self))
            except HostAbsentError:
                return False
            except DriverError:
                pass
        self._quiet_until = time.monotonic() + QUIET
        return False

    async def make_console(self, unit: str) -> str:
        """Makes the volume for what a unit's guest writes to its console, and returns its path. Raises
        ``DriverError``.
        """
        return await self.volumes.create(self.name_of(unit) + CONSOLE, 0)

    async def remove_volumes(self, unit: str, *, wipe: bool) -> None:
        """Removes the volumes of a unit whose domain has ended; what holds keys is always wiped. Raises
        ``DriverError``.
        """
        for suffix in SUFFIXES:
            remove = self.volumes.remove_console if suffix == CONSOLE else self.volumes.remove
            await remove(self.name_of(unit) + suffix, wipe=wipe or suffix in SECRET)

    async def moves(self, unit: str) -> list[str]:
        """Which hosts may have something of a unit whose home is here, as is noted. Raises ``DriverError``."""
        begin = self.name_of(unit) + NOTE
        return sorted(name.removeprefix(begin) for name in await self.volumes.names() if name.startswith(begin))

    async def note_move(self, unit: str, host: str) -> None:
        """Notes that a host may have something of a unit from now on. Raises ``DriverError``."""
        name = f"{self.name_of(unit)}{NOTE}{host}"
        if await self.volumes.path(name) is None:
            await self.volumes.create(name, 0)

    async def forget_move(self, unit: str, host: str) -> None:
        """Removes that note: the host has nothing of the unit. Raises ``DriverError``."""
        await self.volumes.remove(f"{self.name_of(unit)}{NOTE}{host}", wipe=False)

    async def belongings(self) -> list[tuple[str, str, str]]:
        """What there is of units here: (unit, ``domain`` or ``volume``, its name). A host that was given back has
        nothing. Raises ``DriverError``.
        """
        try:
            domains, volumes = await self.domains.all(), await self.volumes.names()
        except HostAbsentError:
            return []
        prefix = self._settings.prefix
        found = [
            (state.record.unit, "domain", state.name)
            for state in domains
            if state.record is not None and state.name == self.name_of(state.record.unit)
        ]
        for name in sorted(volumes):
            if not name.startswith(prefix):
                continue
            unit, tilde, _ = name.removeprefix(prefix).partition(NOTE)
            if not tilde:
                unit = _ROLLED.sub(r"\1", unit)
                suffix = next((suffix for suffix in SUFFIXES if unit.endswith(suffix)), "")
                unit = unit.removesuffix(suffix) if suffix else ""
            if unit and not unit.startswith("~"):
                found.append((unit, "volume", name))
        return found
