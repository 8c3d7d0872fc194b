"""One host as the driver sees it: its connection, domains, volumes and images, and what units have there; and on which
of the hosts units are.

That a host's KVM is there says little, so a tiny guest is started and waited for.

Where units are: at home, unless they were moved; and how one is removed wherever something of it may be.

A unit's home is the host on which the site has it; the first of the settings, where the site knows of no hosts. While a
machine is moved from there it still is the host that it leaves.

Before anything of a unit is brought to another host, a note at its home names that host; the note goes when the host
has been looked at and has nothing of it any more. So what a host that is in no note has, if it can be asked, is looked
at as well, but nobody waits for a host that is away and was never a unit's.
"""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from itertools import permutations
from typing import Any, Final, Self
from xml.etree import ElementTree

import attrs
import trio

from leasekit.core.drivers import UNIT_LEAVES, DriverError, SiteFaultError, UnitContext
from leasekit.core.settings import expect_one_of
from leasekit.core.time import SECOND, Duration
from leasekit.drivers.libvirt.connection import HostAbsentError, HostConnection, HostLostError
from leasekit.drivers.libvirt.documents import DomainMachine, probe_xml
from leasekit.drivers.libvirt.domains import Domains, DomainState
from leasekit.drivers.libvirt.images import ImageCache
from leasekit.drivers.libvirt.plan import host_of
from leasekit.drivers.libvirt.settings import LibvirtHost, LibvirtSettings
from leasekit.drivers.libvirt.volumes import Volumes

WORD: Final = b"leasekit: KVM runs"
PAUSE: Final = 0.05
"""Seconds between looks at the console."""

_CODE: Final = bytes.fromhex(
    "31c0 8ed8"  # xor ax,ax; mov ds,ax
    "be 207c"  # mov si,0x7c20: the text
    "ba f803"  # mov dx,0x3f8: the first serial line
    "fc"  # cld
    "ac 84c0 7403 ee ebf8"  # next: lodsb; test al,al; jz done; out dx,al; jmp next
    "f4 ebfd"  # done: hlt; jmp done
)


def boot_sector() -> bytes:
    """512 bytes that a PC starts from disk, which write :data:`WORD` to the first serial line, and halt."""
    return (_CODE.ljust(0x20, b"\x90") + WORD + b"\n\0").ljust(510, b"\0") + b"\x55\xaa"


def claims_kvm(capabilities: str, expand: Callable[[str], str]) -> bool:
    """Whether a host's capabilities speak of KVM, on a processor of the PC kind that can run guests.

    A host that is a guest itself may have the device of a KVM that is not backed by the processor (no vmx or svm): it
    runs a boot sector, and no system of today. ``expand`` makes of libvirt's description of a processor one that
    names each feature, those of its model too.
    """
    root = ElementTree.fromstring(capabilities)
    cpu = root.find("host/cpu")
    kvm = any(domain.get("type") == "kvm" for domain in root.iterfind("guest/arch/domain"))
    if not kvm or cpu is None or cpu.findtext("arch") != "x86_64":
        return False
    described = ElementTree.fromstring(expand(ElementTree.tostring(cpu, encoding="unicode")))
    return any(feature.get("name") in ("vmx", "svm") for feature in described.iterfind("feature"))


async def kvm_runs(host: HostConnection, domains: Domains, volumes: Volumes, prefix: str, deadline: Duration) -> bool:
    """Whether a guest of :func:`boot_sector` says its word within ``deadline`` ms. Raises ``DriverError``."""

    def claims(connection: Any) -> bool:
        flag = host.libvirt.VIR_CONNECT_BASELINE_CPU_EXPAND_FEATURES
        return claims_kvm(connection.getCapabilities(), lambda cpu: str(connection.baselineCPU([cpu], flag)))

    if not await host.call("can't ask what it is capable of", claims):
        return False
    # No unit has a tilde in its name.
    name = f"{prefix}~kvm"
    disk, console = f"{name}.disk", f"{name}.console"
    try:
        await _remove(domains, volumes, name)
        await volumes.write(disk, lambda: [boot_sector()])
        await volumes.create(console, 0)
        paths = await volumes.path(disk), await volumes.path(console)
        xml = probe_xml(name, paths[0] or "", paths[1] or "")
        try:
            await host.call("can't start a guest with KVM", lambda connection: connection.createXML(xml, 0))
        except HostLostError:
            raise
        except DriverError:
            return False
        return await _said(volumes, console, deadline)
    finally:
        with trio.CancelScope(shield=True):
            await _remove(domains, volumes, name)


async def _said(volumes: Volumes, console: str, deadline: Duration) -> bool:
    with trio.move_on_after(deadline / SECOND):
        while WORD not in await volumes.read(console):
            await trio.sleep(PAUSE)
        return True
    return False


async def _remove(domains: Domains, volumes: Volumes, name: str) -> None:
    await domains.remove(name)
    for suffix in (".disk", ".console"):
        await volumes.remove(name + suffix, wipe=False)


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


class Whereabouts:
    """The units of one driver, on all of its hosts."""

    def __init__(self, places: Mapping[str, LibvirtPlace], settings: LibvirtSettings) -> None:
        self._places = places
        self._settings = settings

    def home(self, unit: UnitContext) -> LibvirtPlace:
        """The host at which a unit is set up. Raises ``DriverError`` where there is none."""
        on = unit.properties.get(UNIT_LEAVES) or host_of(unit) or self._settings.home
        if not on:
            text = f"hosts: unit {unit.unit} is on no host of its site's, and none here has a uri"
            raise SiteFaultError(text, retry=False)
        return self.named(unit, on)

    def named(self, unit: UnitContext, host: str) -> LibvirtPlace:
        """The host of that name, on which the site has a unit. Raises ``SiteFaultError`` where there is none."""
        if host not in self._places:
            text = f"hosts: unit {unit.unit} is to be on {host[:40]!a}, {expect_one_of(host[:40], self._places)}"
            raise SiteFaultError(text, retry=False)
        return self._places[host]

    async def find(self, unit: UnitContext) -> LibvirtPlace:
        """The host that has a unit's domain; its home where none has. Raises :class:`HostLostError` while it may be at
        one that can't be asked.
        """
        home, name = self.home(unit), unit.unit
        found: list[tuple[LibvirtPlace, DomainState]] = []
        with suppress(HostAbsentError):
            state = await home.find(name)
            if state is not None:
                if state.settled:
                    return home
                found.append((home, state))
        noted, lost = await self._noted(home, name), None
        for place in noted:
            try:
                state = await place.find(name)
            except HostAbsentError:
                continue
            except HostLostError as error:
                lost = error
                continue
            if state is not None:
                if state.settled:
                    return place
                found.append((place, state))
        if lost is not None:
            raise lost
        if not found:
            return next(iter(await self._glance(self._others(home, *noted), lambda place: place.find(name))), home)
        return next((place for place, state in found if state.alive), found[0][0])

    async def remove(self, unit: UnitContext) -> None:
        """Removes a unit from all hosts that may have something of it. Raises :class:`HostLostError` while one of them
        can't be asked, unless it was given back with all that was on it.
        """
        home, name = self.home(unit), unit.unit
        noted = await self._noted(home, name)
        shared = self._settings.shared_pool
        seen = await self._glance(self._others(home, *noted), lambda place: place.has(name, volumes=not shared))
        places = (*noted, *seen, home)
        # What runs first, wherever it is: on a shared pool it uses the volumes that another host is told to remove.
        for place in places:
            with suppress(HostAbsentError):
                await place.domains.remove(place.name_of(name))
        for place in places:
            with suppress(HostAbsentError):
                await place.remove_volumes(name, wipe=self._settings.wipe)
        for place, other in permutations(places, 2):
            with suppress(HostAbsentError):
                await place.forget_move(name, other.name)

    async def clear(self, place: LibvirtPlace, unit: UnitContext) -> None:
        """Removes what a host that a unit was moved from, or did not come to, has of it; leaves it where it is."""
        if await place.find(unit.unit) is not None:
            return
        if not self._settings.shared_pool:
            await place.remove_volumes(unit.unit, wipe=self._settings.wipe)
        home = self.home(unit)
        if place is not home:
            await home.forget_move(unit.unit, place.name)

    async def arrived(self, unit: UnitContext, place: LibvirtPlace) -> None:
        """A unit is at the host where its site has it now: that is its home, and its old home keeps nothing of it."""
        home = self.home(unit)
        if home is not place:
            await self.clear(home, unit)
            await home.forget_move(unit.unit, place.name)

    async def each(self, look: Callable[[LibvirtPlace], Awaitable[object]], places: Iterable[LibvirtPlace]) -> None:
        """Looks at hosts at the same time, and for a short while, at those that were not silent a moment ago."""
        await self._glance(places, look)

    async def _noted(self, home: LibvirtPlace, unit: str) -> list[LibvirtPlace]:
        """The hosts, other than its home, that may have something of a unit: all, where what its home knew is gone."""
        try:
            names = await home.moves(unit)
        except HostAbsentError:
            return self._others(home)
        for name in names:
            if name not in self._places:
                expected = expect_one_of(name[:40], self._places)
                text = f"unit {unit} was moved to host {name[:40]!a}, {expected}; volume {home.name_of(unit)}{NOTE}"
                raise DriverError(f"{text}{name} on host {home.name} says so", retry=False)
        return [self._places[name] for name in names if name != home.name]

    def _others(self, *known: LibvirtPlace) -> list[LibvirtPlace]:
        return [place for place in self._places.values() if place not in known]

    async def _glance(
        self, places: Iterable[LibvirtPlace], look: Callable[[LibvirtPlace], Awaitable[object]]
    ) -> list[LibvirtPlace]:
        """Those of the hosts that answer soon, and where ``look`` finds something."""
        found: dict[str, LibvirtPlace] = {}

        async def glance(place: LibvirtPlace) -> None:
            if await place.glance(look):
                found[place.name] = place

        async with trio.open_nursery() as nursery:
            for place in places:
                nursery.start_soon(glance, place)
        return [found[name] for name in self._places if name in found]
