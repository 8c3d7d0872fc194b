"""Where units are: at home, unless they were moved; and how one is removed wherever something of it may be.

A unit's home is the host on which the site has it; the first of the settings, where the site knows of no hosts. While a
machine is moved from there it still is the host that it leaves.

Before anything of a unit is brought to another host, a note at its home names that host; the note goes when the host
has been looked at and has nothing of it any more. So what a host that is in no note has, if it can be asked, is looked
at as well, but nobody waits for a host that is away and was never a unit's.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from itertools import permutations

import trio

from leasekit.core.drivers import UNIT_LEAVES, DriverError, SiteFaultError, UnitContext
from leasekit.core.settings import expect_one_of
from leasekit.drivers.libvirt.connection import HostAbsentError, HostLostError
from leasekit.drivers.libvirt.domains import DomainState
from leasekit.drivers.libvirt.place import NOTE, LibvirtPlace
from leasekit.drivers.libvirt.plan import host_of
from leasekit.drivers.libvirt.settings import LibvirtSettings


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
