"""One host as the driver sees it: its connection, domains, volumes and images, and what units have there."""

from __future__ import annotations

from typing import Final

import attrs
import trio

from leasekit.drivers.libvirt.connection import HostConnection
from leasekit.drivers.libvirt.documents import Machine
from leasekit.drivers.libvirt.domains import Domains, DomainState
from leasekit.drivers.libvirt.images import ImageCache
from leasekit.drivers.libvirt.kvm import kvm_runs
from leasekit.drivers.libvirt.settings import Host, LibvirtSettings
from leasekit.drivers.libvirt.volumes import Volumes

SUFFIXES: Final = (".disk", ".seed", ".initrd", ".console")
"""What follows a unit's name in the names of its volumes."""
MOVED: Final = ".moved"
"""And in that of the volume at its home that says which host it was moved to."""
NOTE_MAX: Final = 1024


class Place:
    """One host."""

    def __init__(self, name: str, host: Host, settings: LibvirtSettings) -> None:
        self.name = name
        self.host = HostConnection(name, host, settings.threads, settings.keepalive, settings.leased)
        self.domains = Domains(self.host)
        self.volumes = Volumes(self.host)
        self.images = ImageCache(name, self.volumes, settings.prefix)
        self._settings = settings
        self._probing = trio.Lock()
        self._given: bool | None = {"kvm": True, "tcg": False}.get(host.acceleration)
        self._probed: tuple[str, bool] | None = None

    def name_of(self, unit: str) -> str:
        """What a unit's domain is called, and what its volumes' names begin with."""
        return f"{self._settings.prefix}{unit}"

    async def find(self, unit: str) -> DomainState | None:
        """The domain of a unit, or none. Raises ``DriverError``."""
        return await self.domains.find(self.name_of(unit))

    async def machine(self) -> Machine:
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

    async def moved_to(self, unit: str) -> list[str]:
        """On which hosts a unit that is at home here may be, other than here. Raises ``DriverError``."""
        name = self.name_of(unit) + MOVED
        if await self.volumes.path(name) is None:
            return []
        return (await self.volumes.read(name, 0, NOTE_MAX)).decode("utf-8", "replace").split()

    async def note_move(self, unit: str, hosts: list[str]) -> None:
        """Writes down on which hosts a unit is to be looked for. Raises ``DriverError``."""
        name = self.name_of(unit) + MOVED
        content = " ".join(host for host in hosts if host != self.name).encode()
        await self.volumes.remove(name, wipe=False)
        if content:
            await self.volumes.write(name, lambda: [content], len(content))

    async def belongings(self) -> list[tuple[str, str, str]]:
        """What there is of units here: (unit, ``domain`` or ``volume``, its name). Raises ``DriverError``."""
        prefix = self._settings.prefix
        found = [
            (state.record.unit, "domain", state.name)
            for state in await self.domains.all()
            if state.record is not None and state.name == self.name_of(state.record.unit)
        ]
        for name in sorted(await self.volumes.names()):
            for suffix in (*SUFFIXES, MOVED):
                unit = name.removeprefix(prefix).removesuffix(suffix)
                if name == f"{prefix}{unit}{suffix}" and not unit.startswith("~"):
                    found.append((unit, "volume", name))
        return found
