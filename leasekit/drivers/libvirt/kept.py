"""What is kept of units that were saved: copies of their disks, and what was in their memory.

All of it is in the pool of the host that had the unit, in volumes that are called by the key, with a domain of the same
name that is never started: its metadata say whose it was. That domain is made last and removed first, so what a daemon
that was killed left half done is never taken for whole. Nothing here is changed by a unit that goes on from it: its
disks are copies, which need no image below them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import attrs
import trio

from leasekit.core.drivers import DriverError
from leasekit.core.time import SECOND
from leasekit.drivers.libvirt.connection import HostAbsentError, HostLostError
from leasekit.drivers.libvirt.documents import kept_xml, resumed_xml
from leasekit.drivers.libvirt.domains import DomainState
from leasekit.drivers.libvirt.migration import stream_volume
from leasekit.drivers.libvirt.place import LibvirtPlace
from leasekit.drivers.libvirt.plan import UnitPlan
from leasekit.drivers.libvirt.record import LibvirtRecord
from leasekit.drivers.libvirt.settings import LibvirtSettings
from leasekit.drivers.names import one_line

DISK: Final = ".disk"
MEMORY: Final = ".memory"
STARTED_FROM: Final = (".seed", ".initrd")
"""What a guest whose memory goes on must find where it was when it started."""
SECRET: Final = (MEMORY, *STARTED_FROM)
"""What holds keys."""
TRIES: Final = 2
"""How often memory that can't be brought back is tried before a unit goes on from its disk alone."""


@attrs.frozen(kw_only=True)
class KeptUnit:
    """What is kept under a ``key``, and where."""

    key: str
    place: LibvirtPlace
    record: LibvirtRecord
    disk: bool
    memory: bool

    def has_memory_for(self, plan: UnitPlan) -> bool:
        """Whether a unit can go on with what is in memory: its name and addresses are part of that."""
        same = (plan.unit, plan.addresses) == (self.record.unit, self.record.addresses)
        return self.memory and same


class KeptUnits:
    """What is kept on all hosts of a driver."""

    def __init__(self, places: Mapping[str, LibvirtPlace], settings: LibvirtSettings) -> None:
        self._places = places
        self._settings = settings
        self._failures: dict[str, int] = {}

    # Saving

    async def put(self, key: str, place: LibvirtPlace, unit: str, log: Callable[[str], None]) -> str:
        """Keeps a unit, whose domain runs no more afterwards. Returns why not, if it can't be. Done twice, it goes on
        from where it was. Raises :class:`HostLostError`.
        """
        try:
            await place.domains.await_saved(place.name_of(unit), log)
            state, held = await place.find(unit), await place.domains.find(_name(place, key))
        except HostAbsentError as error:
            return str(error)
        record = state.record if state is not None else None
        if state is None or record is None or not record.ready:
            return "" if held is not None else "it was not up"
        if held is not None and held.record == record:
            return ""
        try:
            return await self._put(key, place, state, record, log)
        except HostLostError:
            raise
        except DriverError as error:
            await self._clear(place, key)
            return one_line(str(error))

    async def _put(
        self, key: str, place: LibvirtPlace, state: DomainState, record: LibvirtRecord, log: Callable[[str], None]
    ) -> str:
        name, volumes = _name(place, key), place.volumes
        await place.domains.remove(name)
        memory = await self._keep_memory(place, name, state, record, log)
        if not memory:
            await place.domains.shut_down(state.name, self._settings.grace / SECOND, log)
        found = False
        for suffix in (DISK, *STARTED_FROM) if memory else (DISK,):
            await volumes.remove(name + suffix, wipe=self._wipes(suffix))
            if await volumes.path(state.name + suffix) is not None:
                found = True
                await volumes.clone(state.name + suffix, name + suffix)
        if not memory and not found:
            await self._clear(place, key)
            return "it has no disk, and its memory could not be kept"
        await place.domains.define(kept_xml(name, record, await place.machine()))
        return ""

    async def _keep_memory(
        self, place: LibvirtPlace, name: str, state: DomainState, record: LibvirtRecord, log: Callable[[str], None]
    ) -> bool:
        """Writes the memory of a running unit to a volume, which ends it; whether it is kept."""
        domains, volumes = place.domains, place.volumes
        path = await volumes.path(name + MEMORY)
        if path is not None and not state.running and await domains.memory_record(path) == record:
            return True  # an earlier try has come so far
        await volumes.remove(name + MEMORY, wipe=True)
        if not self._settings.save_memory or not state.alive:
            return False
        try:
            if state.saved:
                await domains.start(state.name)
            await domains.save_to(state.name, await volumes.create(name + MEMORY, 0))
        except HostLostError:
            raise
        except DriverError as error:
            log(f"its memory can't be kept, only its disk: {error}")
            await volumes.remove(name + MEMORY, wipe=True)
            return False
        return True

    # Going on

    async def find(self, key: str, home: LibvirtPlace) -> KeptUnit | None:
        """What is kept under a key, on whichever host. Raises ``DriverError`` where a host that may have it can't be
        asked.
        """
        lost: DriverError | None = None
        for place in (home, *(place for place in self._places.values() if place is not home)):
            name = _name(place, key)
            try:
                state = await place.domains.find(name)
                if state is not None and state.record is not None:
                    disk, memory = [await place.volumes.path(name + suffix) is not None for suffix in (DISK, MEMORY)]
                    return KeptUnit(key=key, place=place, record=state.record, disk=disk, memory=memory)
            except HostAbsentError:
                continue
            except HostLostError as error:
                lost = error
        if lost is not None:
            raise lost
        return None

    async def give(self, kept: KeptUnit, place: LibvirtPlace, unit: str, suffix: str) -> str:
        """Gives a unit at ``place`` a copy of one of the volumes, and returns its path. Raises ``DriverError``."""
        here, there = _name(kept.place, kept.key) + suffix, place.name_of(unit) + suffix
        if kept.place is place:
            return await place.volumes.clone(here, there)
        await stream_volume(kept.place.volumes, here, place.volumes, there)
        return await place.volumes.path(there) or ""

    async def restore(self, kept: KeptUnit, place: LibvirtPlace, plan: UnitPlan, record: LibvirtRecord) -> None:
        """Starts the unit with what was in its memory, as ``record`` says. Raises ``DriverError``."""
        image = self._settings.images.get(record.image)
        if kept.place is not place and image is not None:
            for artifact in filter(None, (image.kernel, None if image.seed == "initramfs" else image.initrd)):
                await place.images.path(record.image, artifact)
        for suffix in (DISK, *STARTED_FROM):
            if await kept.place.volumes.path(_name(kept.place, kept.key) + suffix) is not None:
                await self.give(kept, place, plan.unit, suffix)
        machine = await place.machine()
        if machine.qemu:
            await place.make_console(plan.unit)
        path = await self._memory_at(kept, place)
        await place.domains.restore(path, lambda xml: resumed_xml(xml, record, plan, machine))

    async def _memory_at(self, kept: KeptUnit, place: LibvirtPlace) -> str:
        name = _name(place, kept.key) + MEMORY
        if kept.place is not place:
            await place.volumes.remove(name, wipe=True)
            await stream_volume(kept.place.volumes, _name(kept.place, kept.key) + MEMORY, place.volumes, name)
        path = await place.volumes.path(name)
        if path is None:
            raise DriverError(f"host {place.name}: volume {name} is gone", retry=False)
        return path

    def is_hopeless(self, key: str, error: DriverError) -> bool:
        """Whether memory that could not be brought back, by this error, is not worth another try."""
        failures = self._failures.get(key, 0) + 1
        if failures >= TRIES or not error.retry:
            self._failures.pop(key, None)
            return True
        self._failures[key] = failures
        return False

    # The end of it

    async def drop(self, key: str) -> None:
        """Throws away what is kept under a key, if anything is. Raises ``DriverError``."""
        self._failures.pop(key, None)
        for place in self._places.values():
            try:
                await self._clear(place, key)
            except HostAbsentError:
                continue  # and all that was on it

    async def _clear(self, place: LibvirtPlace, key: str) -> None:
        name = _name(place, key)
        with trio.CancelScope(shield=True):
            await place.domains.remove(name)
        for suffix in (DISK, *SECRET):
            await place.volumes.remove(name + suffix, wipe=self._wipes(suffix))

    def _wipes(self, suffix: str) -> bool:
        return self._settings.wipe or suffix in SECRET


def _name(place: LibvirtPlace, key: str) -> str:
    """No unit has a tilde in its name."""
    return place.name_of(f"~kept-{key}")
