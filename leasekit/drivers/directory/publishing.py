"""A driver around another, which tells the world of its units: their names to dnsmasq, and them to an LDAP directory.

A unit is told of when its setup has ended, and no more from when its teardown begins, which waits for nobody who is
told; both are safe to do twice.

What `leasekit site doctor` looks at for a driver's ``publish`` table: the dnsmasq and the directory that it names.

No dnsmasq is started. In the directory an entry is made and removed at once where units' entries would go.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, cast

import attrs
import trio

from leasekit.core.drivers import (
    Closable,
    Driver,
    DriverError,
    Finding,
    Orphan,
    OrphanFinder,
    ProbeResult,
    SiteFaultError,
    UnitContext,
    all_orphans,
)
from leasekit.core.properties import Properties
from leasekit.core.settings import SettingsError
from leasekit.drivers.directory.entry import make_entry
from leasekit.drivers.directory.ldap import LdapExport, LdapSettings
from leasekit.drivers.directory.names import DnsmasqSettings, HostNames
from leasekit.drivers.dnsmasq import dnsmasq_of
from leasekit.drivers.examining import free_port, may_signal, program, shared_folder, writable
from leasekit.drivers.files import SEARCH
from leasekit.drivers.names import check_unit_id, one_line


@attrs.frozen(kw_only=True)
class PublishSettings:
    """Who is told: ``dnsmasq``, ``ldap``, or both."""

    dnsmasq: DnsmasqSettings | None = None
    ldap: LdapSettings | None = None

    def __attrs_post_init__(self) -> None:
        if self.dnsmasq is None and self.ldap is None:
            raise ValueError("expected dnsmasq, ldap or both")


class PublishingDriver:
    """A :class:`~leasekit.core.drivers.Driver`. Raises ``SettingsError`` where a library is missing."""

    def __init__(self, inner: Driver, settings: PublishSettings) -> None:
        self.inner = inner
        self.capabilities = inner.capabilities
        self.operations = inner.operations
        self._names = HostNames(settings.dnsmasq) if settings.dnsmasq is not None else None
        self._ldap = LdapExport(settings.ldap) if settings.ldap is not None else None
        self._told: tuple[HostNames | LdapExport, ...] = tuple(filter(None, (self._names, self._ldap)))
        self._one = trio.CapacityLimiter(1)

    async def setup(self, unit: UnitContext) -> Properties:
        """As the driver's own, and then the unit is told of."""
        found = await self.inner.setup(unit)
        await self._publish(unit, found)
        return found

    async def teardown(self, unit: UnitContext) -> Properties | None:
        """As the driver's own, and the unit is told of no more meanwhile.

        Whoever can't be told does not keep the unit from its end: it is gone when the error is raised, and what is
        left to do when that is tried again is to tell.
        """
        name = check_unit_id(unit.unit)
        problems: list[Exception] = []
        failed: DriverError | None = None
        returned: Properties | None = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._withdraw, name, problems)
            try:
                returned = await self.inner.teardown(unit)
            except DriverError as error:
                failed = error
        if failed is not None:
            raise failed
        if problems:
            said = problems[0] if isinstance(problems[0], DriverError) else repr(problems[0])
            # Also for what is no use to try again at once: a password may be put right meanwhile.
            raise SiteFaultError(f"the unit has ended, and is still told of: {said}") from problems[0]
        return returned

    async def _withdraw(self, unit: str, problems: list[Exception]) -> None:
        for each in self._told:
            try:
                await self._in_turn(partial(each.withdraw, unit))
            except Exception as error:  # noqa: BLE001 - a library's own, too: none may cancel the teardown beside it
                problems.append(error)

    async def modify(self, unit: UnitContext) -> Properties:
        """As the driver's own, and then the unit is told of as it is now."""
        found = await self.inner.modify(unit)
        await self._publish(unit, found)
        return found

    async def join(self, unit: UnitContext) -> Properties:
        """As the driver's own."""
        return await self.inner.join(unit)

    async def leave(self, unit: UnitContext) -> None:
        """As the driver's own."""
        await self.inner.leave(unit)

    async def probe(self, unit: UnitContext) -> ProbeResult:
        """As the driver's own; a dnsmasq that died is started again."""
        if self._names is not None:
            await self._in_turn(self._names.ensure)
        return await self.inner.probe(unit)

    async def operate(self, unit: UnitContext, operation: str, arguments: Mapping[str, Any]) -> Properties:
        """As the driver's own."""
        return await self.inner.operate(unit, operation, arguments)

    def close(self) -> None:
        """As the driver's own."""
        if hasattr(self.inner, "close"):
            cast(Closable, self.inner).close()

    async def orphans(self, known: Collection[str]) -> list[Orphan]:
        """The driver's own, names that lead nowhere any more, and entries of units that are gone."""
        finder = cast(OrphanFinder, self.inner) if hasattr(self.inner, "orphans") else None

        async def look(units: Callable[[], set[str]], host: str, kind: str) -> list[Orphan]:
            found = await trio.to_thread.run_sync(units, limiter=self._one)
            return [Orphan(host, unit, kind, unit) for unit in sorted(found - set(known))]

        looks: list[Callable[[], Awaitable[Iterable[Orphan]]]] = []
        if finder is not None:
            looks.append(partial(finder.orphans, known))
        for each, host, kind in ((self._names, "dnsmasq", "name"), (self._ldap, "ldap", "entry")):
            if each is not None:
                looks.append(partial(look, each.units, host, kind))
        return await all_orphans(looks)

    async def _publish(self, unit: UnitContext, told: Properties) -> None:
        entry = make_entry(unit, told)
        if entry is None:
            unit.log("has no address: no name leads to it")
            return
        for each in self._told:
            await self._in_turn(partial(each.publish, entry))

    async def _in_turn(self, do: Callable[[], None]) -> None:
        """Slices and numbers are shared: one unit after the other."""
        await trio.to_thread.run_sync(do, limiter=self._one)


async def examine_publishing(settings: PublishSettings) -> list[Finding]:
    """How the directory and dnsmasq are that these settings name."""
    found: list[Finding] = []
    if settings.dnsmasq is not None:
        found += _dnsmasq(settings.dnsmasq)
    if settings.ldap is not None:
        found.append(await trio.to_thread.run_sync(_directory, settings.ldap))
    return found


def _dnsmasq(settings: DnsmasqSettings) -> Iterator[Finding]:
    if settings.pid_file is None:
        found = program("dnsmasq", "dnsmasq-base", SEARCH)
        yield found
        try:
            if found.verdict == "ok" and not HostNames(settings).runs():
                yield free_port("publish: port for names", settings.listen, settings.port, udp=True)
        except DriverError as error:
            yield Finding("publish: dnsmasq", "missing", str(error), "let the authority's user read it")
        yield writable("publish: names", settings.folder.absolute(), make=True)
        return
    what, advice = "publish: dnsmasq", "start that dnsmasq, and let the authority's user read its pid file"
    try:
        state = dnsmasq_of(settings.pid_file)
    except DriverError as error:
        yield Finding(what, "missing", str(error), advice)
        return
    if state is None:
        yield Finding(what, "missing", f"does not run, as {settings.pid_file} says", advice)
        return
    yield may_signal(what, state.pid)
    yield shared_folder("publish: names", settings.folder.absolute(), state.pid, make=True)


def _directory(settings: LdapSettings) -> Finding:
    what = "publish: directory"
    try:
        export = LdapExport(settings)
        export.check()
        units = export.units()
    except DriverError as error:
        advice = "start the server, make its base, let bind write there, or correct publish.ldap"
        return Finding(what, "missing", str(error), advice)
    except SettingsError as error:
        return Finding(what, "missing", "; ".join(error.errors), "see the key that it names")
    return Finding(what, "ok", f"{one_line(settings.url)} answers; it has {len(units)} units")
