"""The driver itself: what the actions are made of; and how well CPU caps hold on a running guest, as the Shirako paper
measured those of Xen.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, ClassVar, Final

import attrs
import trio

from leasekit.core.drivers import (
    NOT_RESUMED,
    NOT_SAVED,
    RESUME,
    SAVE,
    UNIT_LEAVES,
    DriverError,
    Finding,
    OnlyUnits,
    ProbeResult,
    UnitContext,
)
from leasekit.core.properties import EMPTY, Properties
from leasekit.core.time import SECOND
from leasekit.drivers.examining import MEBI
from leasekit.drivers.libvirt.base import DomainDriver, operation
from leasekit.drivers.libvirt.connection import HostAbsentError, HostLostError
from leasekit.drivers.libvirt.documents import Paths, domain_xml
from leasekit.drivers.libvirt.domains import Domains, DomainState
from leasekit.drivers.libvirt.examining import examine
from leasekit.drivers.libvirt.images import checked_with
from leasekit.drivers.libvirt.kept import DISK, KeptUnit, KeptUnits
from leasekit.drivers.libvirt.migration import check_same_pool, copy_volumes, migrate
from leasekit.drivers.libvirt.place import LibvirtPlace, Whereabouts
from leasekit.drivers.libvirt.plan import UnitPlan, chosen_number, host_of, keys_digest, make_plan
from leasekit.drivers.libvirt.readiness import Console, LibvirtWaiting
from leasekit.drivers.libvirt.record import RESUMED_DISK, RESUMED_MEMORY, LibvirtRecord, make_record
from leasekit.drivers.libvirt.seed import HostKey, initramfs_seed, make_host_key, make_iso, nocloud_files
from leasekit.drivers.libvirt.settings import LibvirtSettings, Size
from leasekit.drivers.names import check_unit_id

CAPS: Final = tuple(range(10, 100, 10))
"""Percent of one CPU."""
SETTLED: Final = 0.3
"""Seconds that a new cap has before its effect is measured."""
FREE_SPAN: Final = 1.0
"""Seconds over which it is measured what a guest gets without a cap."""
BUSY: Final = 10.0
"""What a guest must use without a cap, in percent of one CPU, to be measured."""
UNCAPPED: Final = "none"


async def measure_caps(domains: Domains, name: str, size: Size, seconds: str) -> dict[str, str]:
    """The percentage of one CPU that a busy guest gets under each of :data:`CAPS`, by cap, measured over so many
    ``seconds`` each; and without a cap the least that it got between these, for others want the CPU, too. The cap of
    ``size`` holds again afterwards. Raises ``DriverError`` for a guest that is not busy.
    """
    span = chosen_number("seconds", seconds, 1, 60)
    found = {}
    try:
        least = await _uncapped(domains, name, size)
        if least < BUSY:
            text = (
                f"the guest of domain {name} uses {least:.0f}% of a CPU without a cap: it must be busy to be measured"
            )
            raise DriverError(text, retry=False)
        for cap in CAPS:
            await domains.set_cpu(name, attrs.evolve(size, cap=cap))
            found[str(cap)] = f"{await _used(domains, name, span):.2f}"
            least = min(least, await _uncapped(domains, name, size))
        found = {UNCAPPED: f"{least:.2f}", **found}
    finally:
        with trio.CancelScope(shield=True):
            await domains.set_cpu(name, size)
    return found


async def _uncapped(domains: Domains, name: str, size: Size) -> float:
    await domains.set_cpu(name, attrs.evolve(size, cap=0))
    return await _used(domains, name, FREE_SPAN)


async def _used(domains: Domains, name: str, seconds: float) -> float:
    await trio.sleep(SETTLED)
    before, began = await _cpu(domains, name), trio.current_time()
    await trio.sleep(seconds)
    after, ended = await _cpu(domains, name), trio.current_time()
    return 100 * (after - before) / (ended - began)


async def _cpu(domains: Domains, name: str) -> float:
    state = await domains.find(name)
    if state is None or not state.running:
        raise DriverError(f"domain {name} runs no more")
    return state.cpu


class LibvirtDriver(DomainDriver[LibvirtPlace]):
    """A :class:`~leasekit.core.drivers.Driver` of virtual machines. Raises ``SettingsError`` without libvirt-python."""

    kind = "libvirt"
    Settings: ClassVar[type] = LibvirtSettings
    capabilities: frozenset[str] = frozenset({"cap", "resize", "migrate", "suspend", "image", "save"})
    """One that has but one host has nowhere to ``migrate`` to, and does not say it."""

    def __init__(self, settings: LibvirtSettings) -> None:
        self._settings = settings
        places = {name: LibvirtPlace(name, host, settings) for name, host in settings.hosts.items()}
        super().__init__(places, settings.images)
        if len(self._places) == 1:
            self.capabilities = self.capabilities - {"migrate"}
        self._whereabouts = Whereabouts(self._places, settings)
        self._kept = KeptUnits(self._places, settings)
        self._book = settings.network.address_book() if settings.network is not None else None
        self._booking = trio.Lock()
        self._unasked = dict(self._places)
        self._moves: dict[str, trio.CancelScope] = {}

    @staticmethod
    async def examine(settings: LibvirtSettings) -> list[Finding]:
        """What a host has and lacks of what units need."""
        return await examine(settings)

    @staticmethod
    def only_units(settings: LibvirtSettings) -> OnlyUnits:
        """Hosts that the settings know by the same name; other units only with a host that is there for good."""
        return OnlyUnits(lambda _: settings.home != "", "hosts", "host with a uri", hosts=settings.hosts)

    # What the runtime calls

    async def setup(self, unit: UnitContext) -> Properties:
        """Clones the image, tells the guest who it is, starts the domain and waits until the guest is up.

        A domain of the same action is adopted, and waited for if it was not up yet; anything else that is there goes
        first. When it fails or is cancelled nothing is left, unless the host was lost.

        With ``lease.resume`` it goes on from what was kept: with its memory, if it has the name and addresses that are
        part of that, or else from its disk. What was kept is thrown away when the guest is up, and not before.
        """
        plan = make_plan(unit, self._settings)
        key = unit.properties.get(RESUME, "")
        if key:
            check_unit_id(key)
        home = self._whereabouts.home(unit)
        async with self._locks.of(unit.unit):
            place = await self._whereabouts.find(unit)
            state = await place.find(unit.unit)
            record = state.record if state is not None and state.alive else None
            try:
                if record is not None and (record.number, record.lease) == (unit.number, unit.lease):
                    plan = await self._with_addresses(plan, unit)
                    unit.log(f"{'runs' if record.ready else 'is starting'} already on host {place.name}")
                else:
                    await self._remove(unit)
                    place = home
                    plan = await self._with_addresses(plan, unit)
                    record = await self._go_on(key, place, plan, unit) if key else await self._make(place, plan, unit)
                if not record.ready:
                    record = await self._await_ready(place, plan, record, unit)
            except HostLostError:
                # Nothing can be taken back there now; the next try, or the teardown, finds what is left.
                raise
            except BaseException:
                await self._take_back(unit)
                raise
            if key:
                # From now on it is the unit's own: should this fail, the next try adopts what runs.
                await self._kept.drop(key)
            found = self._properties(place, record)
            return {**found, NOT_RESUMED: record.lost} if record.lost else found

    async def teardown(self, unit: UnitContext) -> Properties | None:
        """Ends the domain, and removes it and its volumes; a unit that is not there, or whose host was given back with
        all that was on it, is done.

        With ``lease.save`` its disk is kept, and what is in its memory if the hypervisor can write that to a file.
        """
        name, key = check_unit_id(unit.unit), unit.properties.get(SAVE, "")
        if key:
            check_unit_id(key)
        if name in self._moves:
            self._moves[name].cancel()
        async with self._locks.of(name):
            place = await self._whereabouts.find(unit)
            lost = await self._kept.put(key, place, name, unit.log) if key else ""
            await self._remove(unit)
        if key:
            unit.log(f"is not saved: {lost}" if lost else f"is saved as {key}")
        return {NOT_SAVED: lost} if lost else None

    async def modify(self, unit: UnitContext) -> Properties:
        """Brings vCPUs, memory, cap, shares and login keys of a running unit to what its properties say.

        Login keys need an image with a guest agent; elsewhere they are as they were at setup, and the log says so.
        A machine that leaves its host is moved, with cap and shares; nothing that its guest can refuse is done then.
        """
        plan = make_plan(unit, self._settings)
        async with self._locks.of(unit.unit):
            if UNIT_LEAVES in unit.properties:
                return await self._leave_host(unit, plan)
            place, state, record = await self._running(unit, "be modified")
            record = await self._change(place, state.name, plan, record, unit)
            return self._properties(place, record)

    async def _change(
        self, place: LibvirtPlace, name: str, plan: UnitPlan, record: LibvirtRecord, unit: UnitContext
    ) -> LibvirtRecord:
        image = self._settings.images.get(record.image, plan.image)
        resized = await place.domains.resize(name, plan.size, plan.most.memory_mb, agent=image.agent)
        if resized.told:
            unit.log(resized.told)
        if record.keys != keys_digest(plan.keys):
            if image.agent:
                await place.domains.set_keys(name, image.user, plan.keys)
                record = attrs.evolve(record, keys=keys_digest(plan.keys))
                await place.domains.write_record(name, record)
                unit.log(f"has other login keys: {len(plan.keys)}")
            else:
                unit.log(f"image {record.image} has no guest agent: the login keys stay as they are until setup")
        sizes = {key: str(value) for key, value in attrs.asdict(plan.size).items() if value}
        if resized.short_of_mb:
            text = f"memory_mb: unit {unit.unit} has {resized.short_of_mb} until it is restarted, then"
            raise DriverError(f"{text} {plan.size.memory_mb}: here no guest grows while it runs", retry=False)
        unit.log(f"has now {', '.join(f'{key} {value}' for key, value in sizes.items())}")
        return record

    async def _leave_host(self, unit: UnitContext, plan: UnitPlan) -> Properties:
        target = self._whereabouts.named(unit, host_of(unit))
        place, state, _ = await self._running(unit, "move")
        await place.domains.set_cpu(state.name, plan.size)
        moved = await self._move(unit, target)
        with self._left_for_now(unit, self._whereabouts.home(unit)):
            await self._whereabouts.arrived(unit, target)
        return moved

    async def probe(self, unit: UnitContext) -> ProbeResult:
        """The domain's state. ``cpu_seconds`` since it started, ``memory_bytes``, ``vcpus``, and ``cpu_percent`` of
        one CPU since the last probe, from the second one on.
        """
        name = check_unit_id(unit.unit)
        try:
            place = await self._whereabouts.find(unit)
            state = await place.find(name)
        except HostAbsentError as error:
            return ProbeResult(state="down", detail=str(error))
        if state is None:
            return ProbeResult(state="down", detail="not set up")
        measured = self._measured(name, state.cpu, state.memory, state.vcpus)
        return self._probed(place, state, measured, ready=state.record is not None and state.record.ready)

    # Parts of these

    async def _with_addresses(self, plan: UnitPlan, unit: UnitContext) -> UnitPlan:
        """The plan with addresses of its slice's block, where slices have blocks. What it has then is nobody else's."""
        if self._book is not None:
            # Two holders may call their slices alike.
            owner = json.dumps([unit.properties.get("lease.holder", ""), unit.properties.get("slice.name", "")])
            async with self._booking:
                taken = await trio.to_thread.run_sync(self._book.take, owner, plan.unit)
            plan = attrs.evolve(plan, addresses=taken)
        elif plan.addresses:
            async with self._booking:
                await self._whereabouts.each(self._learn_addresses, list(self._unasked.values()))
        self._addresses.take(plan.unit, plan.addresses)
        return plan

    async def _learn_addresses(self, place: LibvirtPlace) -> None:
        """Which addresses the units have that were there before this driver was: names with like numbers are not told
        apart by their addresses. A host that can't be asked now is asked at the next setup.
        """
        for state in await place.domains.all():
            if state.record is not None and state.name == place.name_of(state.record.unit):
                # Where two have one already, the first is as good as the other.
                with suppress(DriverError):
                    self._addresses.take(state.record.unit, state.record.addresses)
        self._unasked.pop(place.name, None)

    async def _running(self, unit: UnitContext, what: str) -> tuple[LibvirtPlace, DomainState, LibvirtRecord]:
        place = await self._whereabouts.find(unit)
        state = await place.find(unit.unit)
        if state is None or state.record is None or not state.alive or state.saved:
            why = "is not set up" if state is None or state.record is None else f"is {state.why}"
            raise DriverError(f"unit {unit.unit} {why}, so it can't {what}", retry=False)
        return place, state, state.record

    # Making and removing

    async def _go_on(self, key: str, place: LibvirtPlace, plan: UnitPlan, unit: UnitContext) -> LibvirtRecord:
        """Starts the unit from what is kept under a key; from its image, and says why, where that can't be."""
        kept, why = await self._kept.find(key, place), "what was saved of it is gone"
        if kept is not None:
            image = self._settings.images.get(kept.record.image)
            if image is None:
                why = f"its image {kept.record.image} is not among the site's any more"
            elif kept.has_memory_for(plan) and await self._restored(kept, place, plan, unit):
                return self._resumed_record(kept, plan)
            elif kept.disk:
                plan = attrs.evolve(plan, image_name=kept.record.image, image=image)
                return await self._make(place, plan, unit, kept=kept)
            else:
                why = f"it has no disk, and its memory is that of unit {kept.record.unit} as it was there"
        unit.log(f"is set up anew: {why}")
        return await self._make(place, plan, unit, lost=why)

    async def _restored(self, kept: KeptUnit, place: LibvirtPlace, plan: UnitPlan, unit: UnitContext) -> bool:
        """Starts the unit with what was in its memory; whether that could be done."""
        try:
            await self._kept.restore(kept, place, plan, self._resumed_record(kept, plan))
        except HostLostError:
            raise
        except DriverError as error:
            if not self._kept.is_hopeless(kept.key, error):
                raise
            unit.log(f"its memory can't be brought back: {error}")
            await self._whereabouts.remove(unit)
            return False
        unit.log(f"goes on from the memory that was saved as {kept.key}, on host {place.name}")
        return True

    def _resumed_record(self, kept: KeptUnit, plan: UnitPlan) -> LibvirtRecord:
        """The record of a guest that takes no notice of being another lease's now."""
        now = make_record(plan, kept.record.host_key, resumed=RESUMED_MEMORY)
        return attrs.evolve(now, image=kept.record.image, keys=kept.record.keys, hostname=kept.record.hostname)

    async def _make(
        self, place: LibvirtPlace, plan: UnitPlan, unit: UnitContext, *, kept: KeptUnit | None = None, lost: str = ""
    ) -> LibvirtRecord:
        """Volumes first, then the domain, which is whole from the moment that it is known."""
        base = place.name_of(plan.unit)
        key = make_host_key() if plan.image.seed != "none" else None
        resumed = RESUMED_DISK if kept is not None else ""
        record = make_record(plan, key.public if key is not None else "", resumed=resumed, lost=lost)
        machine = await place.machine()
        paths = await self._make_volumes(place, plan, key, kept)
        if kept is not None:
            unit.log(f"goes on from the disk that was saved as {kept.key}")
        unit.log(f"starts as {base} on host {place.name} with {machine.kind}, from image {plan.image_name}")
        await place.domains.define(domain_xml(base, plan, record, machine, paths, self._settings.network))
        await place.domains.start(base)
        return record

    async def _make_volumes(
        self, place: LibvirtPlace, plan: UnitPlan, key: HostKey | None, kept: KeptUnit | None
    ) -> Paths:
        image, network, volumes, base = plan.image, self._settings.network, place.volumes, place.name_of(plan.unit)
        disk = seed = kernel = initrd = console = ""
        if kept is not None:
            disk = await self._kept.give(kept, place, plan.unit, DISK)
        elif image.disk is not None:
            below = await place.images.disk(plan.image_name, image.disk, image.format)
            size = max(below.size, image.disk_mb * MEBI)
            disk = await volumes.create(f"{base}.disk", size, format="qcow2", backing=(below.path, image.format))
        if image.kernel is not None:
            kernel = await place.images.path(plan.image_name, image.kernel)
        if image.initrd is not None and image.seed != "initramfs":
            initrd = await place.images.path(plan.image_name, image.initrd)
        elif image.initrd is not None and key is not None:
            artifact, more = image.initrd, initramfs_seed(plan, key, network)
            await volumes.write(f"{base}.initrd", lambda: checked_with(plan.image_name, artifact, more))
            initrd = await volumes.path(f"{base}.initrd") or ""
        if image.seed == "nocloud" and key is not None:
            content = await make_iso(nocloud_files(plan, key, network))
            await volumes.write(f"{base}.seed", lambda: [content])
            seed = await volumes.path(f"{base}.seed") or ""
        if (await place.machine()).qemu:
            console = await place.make_console(plan.unit)
        return Paths(disk=disk, seed=seed, kernel=kernel, initrd=initrd, console=console)

    async def _await_ready(
        self, place: LibvirtPlace, plan: UnitPlan, record: LibvirtRecord, unit: UnitContext
    ) -> LibvirtRecord:
        name, goes_on = place.name_of(plan.unit), record.resumed == RESUMED_MEMORY
        image = self._settings.images.get(record.image, plan.image)
        if goes_on and image.ready == "console":
            image = attrs.evolve(image, ready="running")  # it has said its marker long ago
        plan = attrs.evolve(plan, image=image)
        console = Console(place.volumes, f"{name}.console") if (await place.machine()).qemu else None
        await LibvirtWaiting(
            host=place.host,
            domains=place.domains,
            console=console,
            domain=name,
            plan=plan,
            record=record,
            timeout=self._settings.start_timeout,
            log=unit.log,
        ).until_ready()
        if goes_on:
            record = await self._settled(place, plan, record, unit)
        record = attrs.evolve(record, ready=True)
        await place.domains.write_record(name, record)
        return record

    async def _settled(
        self, place: LibvirtPlace, plan: UnitPlan, record: LibvirtRecord, unit: UnitContext
    ) -> LibvirtRecord:
        """Tells a guest that stood still what time it is, and gives it what its new lease says beyond cap and shares,
        which bind it already. What can't be done is not worth losing the guest.
        """
        name = place.name_of(plan.unit)
        try:
            record = await self._change(place, name, plan, record, unit)
            if plan.image.agent:
                await place.domains.set_clock(name)
        except HostLostError:
            raise
        except DriverError as error:
            unit.log(f"is in part as it was when it was saved: {error}")
        return record

    async def _remove(self, unit: UnitContext) -> None:
        await self._whereabouts.remove(unit)
        self._addresses.give_back(unit.unit)
        if self._book is not None:
            async with self._booking:
                await trio.to_thread.run_sync(self._book.give_back, unit.unit)
        self._samples.forget(unit.unit)

    async def _take_back(self, unit: UnitContext) -> None:
        with self._moment() as moment:
            try:
                await self._remove(unit)
            except DriverError as error:
                # Why the setup ended is the reason to tell; what is left goes with the next try or the teardown.
                unit.log(f"something is left for now: {error}")
        if moment.cancelled_caught:
            unit.log("something is left for now: it takes too long to remove")

    @staticmethod
    @contextmanager
    def _left_for_now(unit: UnitContext, place: LibvirtPlace) -> Iterator[None]:
        """For what a host has no use for any more: if it can't be removed, the unit's teardown does that."""
        try:
            yield
        except DriverError as error:
            unit.log(f"something is left on host {place.name} for now: {error}")

    def _moment(self) -> trio.CancelScope:
        """For what is to be done even if it was cancelled, but may not take for ever."""
        return trio.CancelScope(shield=True, deadline=trio.current_time() + self._settings.call_timeout / SECOND)

    # Operations

    @operation
    async def _suspend(self, unit: UnitContext, _: Mapping[str, Any]) -> Properties:
        place = await self._whereabouts.find(unit)
        state = await place.find(unit.unit)
        if state is not None and state.record is not None and state.saved:
            return self._properties(place, state.record)
        place, state, record = await self._running(unit, "be suspended")
        await place.domains.save(state.name)
        return self._properties(place, record)

    @operation
    async def _resume(self, unit: UnitContext, _: Mapping[str, Any]) -> Properties:
        place = await self._whereabouts.find(unit)
        state = await place.find(unit.unit)
        if state is None or state.record is None or not state.alive:
            why = "is not set up" if state is None else f"is {state.why}"
            raise DriverError(f"unit {unit.unit} {why}, so it can't be resumed", retry=False)
        await place.domains.start(state.name)
        return self._properties(place, state.record)

    @operation
    async def _restart(self, unit: UnitContext, _: Mapping[str, Any]) -> Properties:
        place = await self._whereabouts.find(unit)
        state = await place.find(unit.unit)
        if state is None or state.record is None:
            raise DriverError(f"unit {unit.unit} is not set up, so it can't be restarted", retry=False)
        record = attrs.evolve(state.record, ready=False, resumed="")
        await place.domains.write_record(state.name, record)
        await place.domains.stop(state.name)
        if state.saved:
            await place.domains.forget_saved(state.name)
        await place.domains.start(state.name)
        plan = make_plan(attrs.evolve(unit, properties={**unit.properties, "image": record.image}), self._settings)
        return self._properties(place, await self._await_ready(place, plan, record, unit))

    @operation
    async def _drop(self, unit: UnitContext, _: Mapping[str, Any]) -> Properties:
        await self._kept.drop(unit.unit)
        return EMPTY

    @operation
    async def _migrate(self, unit: UnitContext, arguments: Mapping[str, Any]) -> Properties:
        target = self._target(arguments)
        if host_of(unit):
            raise DriverError(f"unit {unit.unit}: its site's mapper says on which host it is", retry=False)
        return await self._move(unit, target)

    async def _move(self, unit: UnitContext, target: LibvirtPlace) -> Properties:
        """Moves a unit; a teardown ends that."""
        with trio.CancelScope() as scope:
            self._moves[unit.unit] = scope
            try:
                return await self._moved(unit, target)
            finally:
                del self._moves[unit.unit]
        raise DriverError(f"unit {unit.unit} is torn down, so it does not move", retry=False)

    async def _moved(self, unit: UnitContext, target: LibvirtPlace) -> Properties:
        source, state, record = await self._running(unit, "move")
        if source is target:
            return self._properties(source, record)
        await check_same_pool(source.volumes, target.volumes, target.domains, state.name)
        image, shared = self._settings.images.get(record.image), self._settings.shared_pool
        if image is None:
            text = f"unit {unit.unit}: its image {record.image} is not among the site's any more, so it can't move"
            raise DriverError(text, retry=False)
        home = self._whereabouts.home(unit)
        for place in (source, target):  # the source, too: it may have been found without a note
            if place is not home:
                await home.note_move(unit.unit, place.name)
        try:
            if not shared:
                await self._copy(source, target, state.name, record.image)
            await migrate(source.host, target.host, state.name, copy_disk=image.disk is not None and not shared)
        except HostLostError:
            # It may have been over by then: both hosts are asked. Which has it is seen when they are back, if they
            # don't answer.
            if await self._whereabouts.find(unit) is not target:
                raise
        except BaseException:
            with self._moment(), self._left_for_now(unit, target):
                await self._whereabouts.clear(target, unit)
            raise
        with self._left_for_now(unit, source):
            await self._whereabouts.clear(source, unit)
        unit.log(f"moved from host {source.name} to {target.name}")
        return self._properties(target, record)

    async def _copy(self, source: LibvirtPlace, target: LibvirtPlace, name: str, image_name: str) -> None:
        """Has all files at the target that the unit needs there, but for what its disk holds."""
        image = self._settings.images[image_name]
        for artifact in filter(None, (image.kernel, None if image.seed == "initramfs" else image.initrd)):
            await target.images.path(image_name, artifact)
        if image.disk is not None:
            below = None
            if await source.volumes.leans(f"{name}.disk"):
                below = (await target.images.disk(image_name, image.disk, image.format)).path, image.format
            size = await source.volumes.capacity(f"{name}.disk")
            await target.volumes.remove(f"{name}.disk", wipe=False)
            await target.volumes.create(f"{name}.disk", size, format="qcow2", backing=below)
        await copy_volumes(source.volumes, target.volumes, name)

    @operation
    async def _console(self, unit: UnitContext, _: Mapping[str, Any]) -> Properties:
        place = await self._whereabouts.find(unit)
        name = f"{place.name_of(unit.unit)}.console"
        if await place.volumes.path(name) is None:
            raise DriverError(f"unit {unit.unit} has no console that can be read", retry=False)
        console = Console(place.volumes, name)
        await console.more()
        return {"console": "\n".join(console.lines())[-8000:]}

    @operation
    async def _caps(self, unit: UnitContext, arguments: Mapping[str, Any]) -> Properties:
        place, state, _ = await self._running(unit, "be measured")
        size = make_plan(unit, self._settings).size
        return await measure_caps(place.domains, state.name, size, str(arguments.get("seconds", "2")))
