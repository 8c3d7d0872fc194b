"""The driver itself: what the actions are made of. A guest is up when its console or its ssh server says so; early
signs that it will not be are known as such.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Final

import attrs
import trio

from leasekit.core.drivers import DriverError, Finding, OnlyUnits, ProbeResult, UnitContext
from leasekit.core.properties import Properties
from leasekit.core.settings import expect_one_of
from leasekit.core.time import SECOND, Duration, format_duration
from leasekit.drivers.examining import MEBI
from leasekit.drivers.libvirt.base import DomainDriver, operation
from leasekit.drivers.libvirt.plan import UnitPlan, keys_digest
from leasekit.drivers.libvirt.readiness import console_lines, first_ssh_missing
from leasekit.drivers.libvirt.seed import make_host_key
from leasekit.drivers.libvirt.settings import Size
from leasekit.drivers.names import check_unit_id
from leasekit.drivers.xen.document import make_plan
from leasekit.drivers.xen.examining import examine
from leasekit.drivers.xen.listing import DamagedRecordError, ListedDomain, ListedState, XenRecord, make_record
from leasekit.drivers.xen.place import XenPlace
from leasekit.drivers.xen.remote import XenHostLostError
from leasekit.drivers.xen.settings import XenSettings

PAUSE: Final = 0.3
"""Seconds between looks: `xl` has no events that come through ssh."""
LOOK: Final = 3.0
"""Seconds between looks at the domain, where the guest itself is looked at too."""
CONSOLE_MAX: Final = 128 * 1024
"""How much of a console's end is read, in bytes."""


@attrs.frozen(kw_only=True)
class XenWaiting:
    """One wait for one unit's guest."""

    place: XenPlace
    plan: UnitPlan
    record: XenRecord
    timeout: Duration
    log: Callable[[str], None]

    async def until_ready(self) -> None:
        """Returns when the guest is up. Raises ``DriverError`` if it ends before that, or takes too long."""
        if self.plan.image.ready == "running":
            await self._look()
            return
        check = {"console": self._on_console, "ssh": self._by_ssh}[self.plan.image.ready]
        missing, looked = "nothing was heard of it", trio.current_time()
        with trio.move_on_after(self.timeout / SECOND):
            while True:
                try:
                    missing = await check()
                    if not missing:
                        break
                    if trio.current_time() >= looked + LOOK:
                        looked = trio.current_time()
                        await self._look()
                except XenHostLostError as error:
                    # The guest goes on without its control domain's ssh server, which will be back or time runs out.
                    missing = str(error)
                await trio.sleep(PAUSE)
        said = await self._log_console()
        if missing:
            text = f"the guest was not up within {format_duration(self.timeout)}: {missing}"
            raise DriverError(text + said)

    async def _look(self) -> None:
        """Raises ``DriverError`` when the domain runs no more."""
        state = await self.place.find(self.plan.unit)
        if not state.running:
            said = await self._log_console()
            raise DriverError(f"the guest was not up when its domain was {state.why}{said}")

    async def _log_console(self) -> str:
        """The guest's last line, in words, if there is one; all go to the unit's log."""
        with trio.CancelScope(shield=True):
            try:
                lines = console_lines(await self.place.console(self.plan.unit, CONSOLE_MAX))
            except DriverError as error:
                self.log(f"its console can't be read: {error}")
                return ""
        for line in lines:
            self.log(f"console: {line}")
        return f"; the last line on its console: {lines[-1]}" if lines else ""

    # Each of these says what is missing yet, and nothing when the guest is up.

    async def _on_console(self) -> str:
        found = self.plan.image.marker.encode() in await self.place.console(self.plan.unit, CONSOLE_MAX)
        return "" if found else f"{self.plan.image.marker!r} is not on its console"

    async def _by_ssh(self) -> str:
        return await first_ssh_missing(self.record.addresses, self.record.host_key)


class XenDriver(DomainDriver[XenPlace]):
    """A :class:`~leasekit.core.drivers.Driver` of virtual machines of Xen's."""

    kind = "xen"
    Settings: ClassVar[type] = XenSettings

    def __init__(self, settings: XenSettings) -> None:
        self._settings = settings
        places = {name: XenPlace(name, host, settings) for name, host in settings.hosts.items()}
        super().__init__(places, settings.images)
        can = {"cap", "resize", "suspend", "image"}
        self.capabilities = frozenset(can | {"migrate"} if len(self._places) > 1 and settings.shared else can)

    @staticmethod
    async def examine(settings: XenSettings) -> list[Finding]:
        """What hosts have and lack of what units need."""
        return await examine(settings)

    @staticmethod
    def only_units(settings: XenSettings) -> OnlyUnits:
        """Those that have a home; no machines on hosts, which it would not place as their site says."""
        return OnlyUnits(
            lambda unit: any(host.takes(unit) for host in settings.hosts.values()),
            "hosts",
            "home (units of a host)",
            hosts=(),
        )

    # What the runtime calls

    async def setup(self, unit: UnitContext) -> Properties:
        """Clones the image, tells the guest who it is, starts the domain and waits until the guest is up.

        A domain of the same action is adopted, and waited for if it was not up yet; anything else that is there goes
        first. When it fails or is cancelled nothing is left, unless the host was lost.
        """
        plan = make_plan(unit, self._settings)
        home = self._home(unit.unit)
        async with self._locks.of(unit.unit):
            place, state = await self._what_is_left(home, unit)
            fresh = state is not None and state.nothing
            concerned = [home] if fresh else self._concerned(home, place, state)
            record = state.record if state is not None and state.alive else None
            try:
                if record is not None and (record.number, record.lease) == (unit.number, unit.lease):
                    self._addresses.take(plan.unit, plan.addresses)
                    if record.ready:
                        unit.log(f"runs already on host {place.name}")
                        return self._properties(place, record)
                    unit.log(f"is starting already on host {place.name}")
                else:
                    await self._remove(concerned, unit.unit)
                    place, concerned = home, [home]
                    self._addresses.take(plan.unit, plan.addresses)
                    record = await self._make(place, plan, unit)
                return await self._await_ready(place, plan, record, unit)
            except XenHostLostError:
                # Nothing can be taken back there now; the next try, or the teardown, finds what is left.
                raise
            except BaseException:
                await self._take_back(concerned, unit)
                raise

    async def teardown(self, unit: UnitContext) -> None:
        """Ends the domain, and removes it and its files, overwritten, whatever its record says; a unit that is not
        there is done.
        """
        name = check_unit_id(unit.unit)
        home = self._home(name)
        async with self._locks.of(name):
            place, state = await self._what_is_left(home, unit)
            await self._remove(self._concerned(home, place, state), name)

    async def modify(self, unit: UnitContext) -> Properties:
        """Brings vCPUs, memory, cap and weight of a running unit to what its properties say.

        Login keys stay as they were at setup: there is no agent in the guest to change them.
        """
        plan = make_plan(unit, self._settings)
        async with self._locks.of(unit.unit):
            place, row, record = await self._running(unit, "be modified")
            plan = self._as_made(plan, record)
            await place.resize(plan, row.vcpus)
            if record.keys != keys_digest(plan.keys):
                unit.log("the login keys stay as they are until setup")
            sizes = {key: str(value) for key, value in attrs.asdict(plan.size).items() if value}
            unit.log(f"has now {', '.join(f'{key} {value}' for key, value in sizes.items())}")
            return self._properties(place, record)

    async def probe(self, unit: UnitContext) -> ProbeResult:
        """The domain's state. ``cpu_seconds`` since it started, ``memory_bytes``, ``vcpus``, and ``cpu_percent`` of
        one CPU since the last probe, from the second one on (`xl` tells tenths of seconds).
        """
        name = check_unit_id(unit.unit)
        place, state = await self._where(self._home(name), name)
        if state.record is None:
            return ProbeResult(state="down", detail="not set up")
        row = state.row
        measured = {} if row is None else self._measured(name, row.cpu, row.memory_mb * MEBI, row.vcpus)
        return self._probed(place, state, measured, ready=state.record.ready)

    # Where units are

    def _home(self, unit: str) -> XenPlace:
        for place in self._places.values():
            if place.host.takes(unit):
                return place
        raise DriverError(f"unit {unit}: no host of this driver takes it (hosts.NAME.units)", retry=False)

    async def _where(self, home: XenPlace, unit: str) -> tuple[XenPlace, ListedState]:
        """The host that has a unit, and what there is of it: its home, unless it was moved; where no host has its
        domain, the one that had it last.
        """
        first, state = await self._first_word(home, unit)
        if state.record is None or state.row is not None:
            return first, state
        hosts = [self._places[name] for name in state.record.hosts if name in self._places]
        for place in hosts:
            if place is not first:
                found = await place.find(unit)
                if found.row is not None:
                    return place, found
        for name in state.record.hosts:
            if name not in self._places:
                text = f"unit {unit} was moved to host {name[:40]!a}, {expect_one_of(name[:40], self._places)}"
                raise DriverError(text, retry=False)
        return hosts[0], state

    async def _first_word(self, home: XenPlace, unit: str) -> tuple[XenPlace, ListedState]:
        """What is told of a unit at its home; where that is lost, by another host that sees the same files."""
        try:
            return home, await home.find(unit)
        except XenHostLostError:
            for place in self._places.values() if self._settings.shared else ():
                try:
                    if place is not home:
                        return place, await place.find(unit)
                except XenHostLostError:
                    continue
            raise

    def _concerned(self, home: XenPlace, place: XenPlace, state: ListedState | None) -> list[XenPlace]:
        """The hosts that may have something of a unit: those of its record; any, where there is no record to ask."""
        if not self._settings.shared:
            return [home]
        if state is None or state.record is None:
            return list(self._places.values())
        return [each for each in self._places.values() if each is place or each.name in state.record.hosts]

    async def _what_is_left(self, home: XenPlace, unit: UnitContext) -> tuple[XenPlace, ListedState | None]:
        """The same for a unit that may be removed: nothing is known of one whose record is damaged."""
        try:
            return await self._where(home, unit.unit)
        except DamagedRecordError as error:
            unit.log(str(error))
            return home, None

    async def _running(self, unit: UnitContext, what: str) -> tuple[XenPlace, ListedDomain, XenRecord]:
        place, state = await self._where(self._home(unit.unit), unit.unit)
        if state.record is None or state.row is None or not state.running:
            why = "is not set up" if state.record is None else f"is {state.why}"
            raise DriverError(f"unit {unit.unit} {why}, so it can't {what}", retry=False)
        return place, state.row, state.record

    def _as_made(self, plan: UnitPlan, record: XenRecord) -> UnitPlan:
        """The plan with the image that the unit was made from, whatever its lease says by now."""
        image = self._settings.images.get(record.image)
        return plan if image is None else attrs.evolve(plan, image_name=record.image, image=image)

    # Making and removing

    async def _make(self, place: XenPlace, plan: UnitPlan, unit: UnitContext) -> XenRecord:
        """The unit's folder first, then the domain, which is whole from the moment that it is known."""
        key = make_host_key() if plan.image.seed != "none" else None
        record = make_record(plan, place.name, key.public if key is not None else "")
        await place.make(plan, record, key)
        unit.log(f"starts as {place.name_of(plan.unit)} on host {place.name}, from image {plan.image_name}")
        await place.start(plan.unit)
        return record

    async def _await_ready(self, place: XenPlace, plan: UnitPlan, record: XenRecord, unit: UnitContext) -> Properties:
        timeout = self._settings.start_timeout
        await XenWaiting(place=place, plan=plan, record=record, timeout=timeout, log=unit.log).until_ready()
        record = attrs.evolve(record, ready=True)
        await place.write_record(record)
        return self._properties(place, record)

    async def _remove(self, concerned: Sequence[XenPlace], unit: str) -> None:
        # In the middle of a move it may be on either host; files that all see go when it is on none.
        for place in concerned:
            await place.stop(unit)
        for place in concerned:
            await place.remove(unit)
        self._addresses.give_back(unit)
        self._samples.forget(unit)

    async def _take_back(self, concerned: Sequence[XenPlace], unit: UnitContext) -> None:
        with trio.CancelScope(shield=True):
            try:
                await self._remove(concerned, unit.unit)
            except DriverError as error:
                # Why the setup ended is the reason to tell; what is left goes with the next try or the teardown.
                unit.log(f"something is left for now: {error}")

    # Operations

    @operation
    async def _suspend(self, unit: UnitContext, _: Mapping[str, Any]) -> Properties:
        place, state = await self._where(self._home(unit.unit), unit.unit)
        if state.record is not None and state.row is None and state.saved:
            return self._properties(place, state.record)
        place, _row, record = await self._running(unit, "be suspended")
        await place.save(unit.unit)
        return self._properties(place, record)

    @operation
    async def _resume(self, unit: UnitContext, _: Mapping[str, Any]) -> Properties:
        place, state = await self._where(self._home(unit.unit), unit.unit)
        if state.record is None or not state.alive:
            why = "is not set up" if state.record is None else f"is {state.why}"
            raise DriverError(f"unit {unit.unit} {why}, so it can't be resumed", retry=False)
        if not state.running:
            await place.restore(unit.unit)
            # What is saved of a domain is what it was made with: caps that were set while it ran are not in it.
            await place.set_cpu(unit.unit, make_plan(unit, self._settings).size)
        return self._properties(place, state.record)

    @operation
    async def _restart(self, unit: UnitContext, _: Mapping[str, Any]) -> Properties:
        place, state = await self._where(self._home(unit.unit), unit.unit)
        if state.record is None:
            raise DriverError(f"unit {unit.unit} is not set up, so it can't be restarted", retry=False)
        plan = self._as_made(make_plan(unit, self._settings), state.record)
        record = attrs.evolve(state.record, ready=False)
        await place.write_record(record)
        await place.stop(unit.unit)
        await place.forget(unit.unit)
        await place.write_config(plan)
        await place.start(unit.unit)
        return await self._await_ready(place, plan, record, unit)

    @operation
    async def _migrate(self, unit: UnitContext, arguments: Mapping[str, Any]) -> Properties:
        target = self._target(arguments)
        if not self._settings.shared:
            raise DriverError("units move only between hosts that see the same files (shared = true)", retry=False)
        source, _, record = await self._running(unit, "move")
        if source is not target:
            record = await _moved(source, target, record, make_plan(unit, self._settings).size)
            unit.log(f"moved from host {source.name} to {target.name}")
        return self._properties(target, record)

    @operation
    async def _console(self, unit: UnitContext, _: Mapping[str, Any]) -> Properties:
        place, state = await self._where(self._home(unit.unit), unit.unit)
        if state.record is None:
            raise DriverError(f"unit {unit.unit} is not set up, so it has no console", retry=False)
        lines = console_lines(await place.console(unit.unit, CONSOLE_MAX))
        return {"console": "\n".join(lines)[-8000:]}


async def _moved(source: XenPlace, target: XenPlace, record: XenRecord, size: Size) -> XenRecord:
    """Moves a unit's domain, which goes on running, and returns its record. The source's control domain has to be able
    to log in to the target's, by keys of its own. Raises ``DriverError``.

    Before anything moves, the record says which hosts may have something of the unit, so that a daemon that was killed
    in between finds it, and a teardown leaves nothing on either. A host that has handed a unit over, and keeps nothing
    of it, is asked no more: it may be away for maintenance, which is what units are moved for.
    """
    if not target.host.migration:
        raise DriverError(f"host {target.name} takes over no units (hosts.{target.name}.migration)", retry=False)
    unit = record.unit
    await source.write_record(attrs.evolve(record, hosts=(target.name, source.name)))
    try:
        await source.migrate(unit, target.name, target.host.migration)
    except XenHostLostError:
        # Which of the two has it is seen when they are back. The same where nobody waits any more: `xl` goes on.
        raise
    except DriverError:
        # Not if an earlier move, which nobody waited for, has brought it there.
        if (await source.find(unit)).running:
            await source.write_record(attrs.evolve(record, hosts=(source.name, target.name)))
        raise
    await target.set_cpu(unit, size)
    await source.forget_logs(unit)
    moved = attrs.evolve(record, hosts=(target.name,))
    await target.write_record(moved)
    return moved
