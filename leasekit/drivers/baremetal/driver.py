"""The driver itself: a node goes through erasing, imaging and starting for its lease, and is erased after it. Images
are read through before they are first used, and again when they have changed. Nodes are waited for by what the imaging
environment and a guest's ssh server say.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from hashlib import file_digest
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, Final

import attrs
import trio

from leasekit.core.drivers import (
    DriverError,
    Finding,
    OnlyUnits,
    Orphan,
    ProbeResult,
    SiteFaultError,
    Timeouts,
    UnitContext,
)
from leasekit.core.properties import Properties
from leasekit.core.settings import SettingsError
from leasekit.core.time import HOUR, SECOND, format_duration
from leasekit.drivers.baremetal.agent import MOVED
from leasekit.drivers.baremetal.examining import examine
from leasekit.drivers.baremetal.plan import NodePlan, bare_addresses, make_plan, make_seed, node_of
from leasekit.drivers.baremetal.records import SERVED, NodeRecord, new_token
from leasekit.drivers.baremetal.services import Services
from leasekit.drivers.baremetal.settings import BareMetalSettings, BootArtifact, DiskImage
from leasekit.drivers.libvirt.plan import host_name, keys_digest
from leasekit.drivers.libvirt.readiness import ssh_missing
from leasekit.drivers.libvirt.seed import make_host_key
from leasekit.drivers.names import one_line, unknown_operation
from leasekit.drivers.one_sided import SiteOnly
from leasekit.drivers.power.base import BootDevice, PowerControl
from leasekit.drivers.power.make import make_power

PAUSE: Final = 0.2
"""Seconds between two attempts at a guest's ssh server."""
LOOK: Final = 5.0
"""Seconds between looks at a node's power while it is waited for."""
FOR_GOOD: Final = (
    "disk full", "there is no disk", "no partition can be added", "several disks are", "another disk is there",
    "the disk ", MOVED,
)  # fmt: skip
"""How reports begin of what another try does not help."""


@attrs.frozen(kw_only=True)
class BootWaiting:
    """Waits for one node."""

    services: Services
    settings: BareMetalSettings
    power: PowerControl
    node: str

    async def for_report(self, token: str) -> NodeRecord:
        """The record when the job is done. Raises ``DriverError`` when it failed, or when nothing more is heard."""
        while True:
            event = self.services.event(self.node)
            record = self.services.records.get(self.node)
            if record.token != token:
                raise DriverError(f"node {self.node}: its job was taken back")
            if record.report == "done":
                return record
            if record.report:
                why = one_line(record.report.removeprefix("failed "), 300)
                raise DriverError(f"node {self.node}: {why}", retry=not why.startswith(FOR_GOOD))
            limit = self.settings.silence if record.heard else self.settings.boot_timeout
            left = self.services.progress(self.node).at + limit / SECOND - time.monotonic()
            if left <= 0:
                raise self._not_heard(record)
            with trio.move_on_after(left):
                await event.wait()

    def _not_heard(self, record: NodeRecord) -> DriverError:
        words = self.services.progress(self.node).words
        if record.heard:
            after = f" after {words!r}" if words else ""
            text = f"it said nothing for {format_duration(self.settings.silence)}{after}"
        elif words:
            text = (
                f"its imaging environment did not come up within {format_duration(self.settings.boot_timeout)}: {words}"
            )
        else:
            text = f"nothing was heard of it within {format_duration(self.settings.boot_timeout)} of power on: "
            text += self.asked()
        return DriverError(f"node {self.node}: {text}")

    def asked(self) -> str:
        """What DHCP knows of the node, in words."""
        seen = self.services.names.seen(self.settings.nodes[self.node].mac)
        if not seen:
            return "it asked for no address, or nobody answers DHCP on its network"
        return f"the last of its DHCP was {seen}"

    async def for_guest(self, record: NodeRecord) -> None:
        """Returns when the guest's ssh server answers, and has its key. Raises ``DriverError``."""
        address = bare_addresses(record, self.settings)[0]
        missing = f"no answer from {address}"
        looked = trio.current_time()
        with trio.move_on_after(self.settings.start_timeout / SECOND):
            while True:
                # When time runs out in the middle of an attempt, what the one before it found is told.
                missing = await ssh_missing(address, record.host_key)
                if not missing:
                    return
                if trio.current_time() >= looked + LOOK:
                    looked = trio.current_time()
                    await self._look()
                await trio.sleep(PAUSE)
        words = self.services.progress(self.node).words
        after = f" (the last that it did here: {words})" if words else ""
        limit_text = format_duration(self.settings.start_timeout)
        raise DriverError(f"node {self.node}: its guest was not up within {limit_text}: {missing}{after}")

    async def _look(self) -> None:
        """Raises ``DriverError`` when the node is off; a controller that does not answer is another's affair."""
        try:
            state = await self.power.status()
        except DriverError as error:
            if not error.retry:
                raise
            return
        if state == "off":
            raise DriverError(f"node {self.node}: its power went off before its guest was up")


class CheckedFiles:
    """Files that are what the site means by them."""

    def __init__(self) -> None:
        self._right: dict[Path, tuple[object, ...]] = {}
        self._reading = trio.Lock()

    async def check(self, image: str, artifact: BootArtifact) -> int:
        """The size of the file in bytes. Raises ``DriverError``, not worth a retry, if it is missing or another."""
        # One at a time: ten nodes that start at once read an image once.
        async with self._reading:
            return await trio.to_thread.run_sync(self._check, image, artifact, abandon_on_cancel=True)

    def _check(self, image: str, artifact: BootArtifact) -> int:
        name = one_line(str(artifact.file))
        try:
            with artifact.file.open("rb") as file:
                mark = _mark(file, artifact.sha256)
                if self._right.get(artifact.file) != mark:
                    found = file_digest(file, "sha256").hexdigest()
                    if found != artifact.sha256:
                        text = f"image {image}: {name} has the SHA-256 {found}, expected {artifact.sha256}"
                        raise SiteFaultError(text, retry=False)
                    self._right[artifact.file] = mark
                return os.fstat(file.fileno()).st_size
        except OSError as error:
            raise SiteFaultError(f"image {image}: can't read {name}: {error.strerror}", retry=False) from error


def _mark(file: BinaryIO, sha256: str) -> tuple[object, ...]:
    """What changes when the file is written to or replaced."""
    status = os.fstat(file.fileno())
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, sha256)


SSH_PORT = "22"
TIMEOUT = 2 * HOUR
"""How long an action may take where the site says nothing."""

logger = logging.getLogger(__name__)


class BareMetalDriver(SiteOnly):
    """A :class:`~leasekit.core.drivers.Driver` of physical machines. Raises ``SettingsError``."""

    kind = "baremetal"
    Settings: ClassVar[type] = BareMetalSettings
    capabilities: frozenset[str] = frozenset({"image", "power"})
    operations: frozenset[str] = frozenset({"power_on", "power_off", "soft_off", "restart", "status"})

    def __init__(self, settings: BareMetalSettings) -> None:
        self._settings = settings
        self._powers: dict[str, PowerControl] = {}
        for name, node in settings.nodes.items():
            try:
                self._powers[name] = make_power(node.power)
            except SettingsError as error:
                raise error.within(f"nodes.{name}.power") from error
        self._services = Services(settings)
        self._files = CheckedFiles()
        self._locks = {name: trio.Lock() for name in settings.nodes}

    @staticmethod
    async def examine(settings: BareMetalSettings) -> list[Finding]:
        """What this host has and lacks of what nodes need."""
        return await examine(settings)

    @staticmethod
    def timeouts(settings: BareMetalSettings) -> Timeouts:
        """Erasing a large disk takes hours, and a node that is silent is to be told of before time is up."""
        least = settings.boot_timeout + settings.start_timeout
        return Timeouts(max(TIMEOUT, 2 * least), least, "a setup waits for boot_timeout and start_timeout")

    @staticmethod
    def only_units(settings: BareMetalSettings) -> OnlyUnits:
        """The nodes."""
        return OnlyUnits(settings.nodes.__contains__, "nodes", "node")

    # What the runtime calls

    async def setup(self, unit: UnitContext) -> Properties:
        """Erases the node's disk if it is not known to be, writes and verifies the image, and starts the guest.

        A setup of the same action goes on where the last one was left; a node is imaged once for each action. When it
        fails or is cancelled the node is switched off, and is erased before it is used again.
        """
        plan = make_plan(unit, self._settings)
        async with self._exclusively(unit.unit):
            await self._services.ensure()
            record = self._services.records.get(plan.name)
            adopted = record.is_of(unit) and record.state in ("imaging", "starting", "ready")
            if not adopted:
                # Before anything is touched: a node that can't get its image stays as it is.
                for artifact in plan.artifacts:
                    await self._files.check(plan.image_name, artifact)
            try:
                if adopted:
                    unit.log(f"goes on where it was: {record.state}")
                else:
                    record = await self._begin(plan, record, unit)
                return await self._bring_up(plan, record, unit)
            except BaseException:
                with trio.CancelScope(shield=True):
                    await self._give_up(plan.name, unit)
                raise

    async def teardown(self, unit: UnitContext) -> None:
        """Erases the node's disk, reads it back, and switches it off. Raises ``DriverError``: then it is not clean, and
        is not to be given to anybody.
        """
        if unit.unit not in self._settings.nodes:
            await trio.lowlevel.checkpoint()
            return
        async with self._exclusively(unit.unit):
            await self._services.load()
            record = self._services.records.get(unit.unit)
            if record.state in ("unknown", "clean"):
                # Nothing of anybody's is on it, or whatever there is goes before its first lease.
                await self._withdraw(unit.unit)
                return
            await self._services.ensure()
            try:
                await self._clean(record, unit)
            except DriverError:
                with trio.CancelScope(shield=True):
                    await self._give_up(unit.unit, unit)
                raise

    async def modify(self, unit: UnitContext) -> Properties:
        """Changes nothing: what a guest was told when it was imaged stays until its node is imaged again."""
        plan = make_plan(unit, self._settings)
        async with self._exclusively(unit.unit):
            await self._services.load()
            record = self._services.records.get(unit.unit)
            if record.state != "ready":
                raise DriverError(f"node {unit.unit} is {record.state}, so it can't be modified", retry=False)
            if record.keys != keys_digest(plan.keys) or record.image != plan.image_name:
                unit.log("login keys and image stay as they are until the node is set up again")
            return self._properties(record)

    async def probe(self, unit: UnitContext) -> ProbeResult:
        """Up when the guest was seen up and the power is on. ``on`` (1 or 0) is measured."""
        if unit.unit not in self._settings.nodes:
            await trio.lowlevel.checkpoint()
            return ProbeResult(state="down", detail="there is no such node")
        await self._services.load()
        record = self._services.records.get(unit.unit)
        if record.state in SERVED:
            # A daemon that was just started has nodes to serve, which may start at any time.
            await self._services.ensure()
        if record.state != "ready":
            return ProbeResult(state="down", detail=f"the node is {record.state}")
        state = await self._powers[unit.unit].status()
        up = state == "on"
        return ProbeResult(state="up" if up else "down", detail=f"its power is {state}", measured={"on": float(up)})

    async def operate(self, unit: UnitContext, operation: str, arguments: Mapping[str, Any]) -> Properties:
        """``power_on``, ``power_off``, ``soft_off``, ``restart`` (off and on) and ``status``; returns ``power``."""
        if operation == "console":
            # People ask for it by a command of its own, whatever the driver.
            text = "a physical machine has no console here: its BMC has one, for the site's operator (serial over LAN)"
            raise DriverError(f"unit {unit.unit}: {text}", retry=False)
        if operation not in self.operations:
            raise unknown_operation("baremetal", operation, self.operations)
        node_of(unit.unit, self._settings)
        power = self._powers[unit.unit]
        async with self._exclusively(unit.unit):
            actions = {"power_on": power.on, "power_off": power.off, "soft_off": power.soft_off, "restart": power.cycle}
            if operation in actions:
                await actions[operation]()
            return {"power": await power.status()}

    # What else a site may ask

    async def orphans(self, known: Collection[str]) -> list[Orphan]:
        """Disks that somebody's data may be on, of nodes that are not ``known``: :meth:`teardown` erases them.

        A daemon asks for them when it starts: from then on nodes that are on are served again.
        """
        await self._services.load()
        records = sorted(self._services.records.all(), key=lambda record: record.node)
        if any(record.state in SERVED for record in records):
            try:
                await self._services.ensure()
            except DriverError as error:
                # What there is can be told all the same; setups, teardowns and probes try it again.
                logger.error("nodes that are on can't be served: %s", error)
        return [
            Orphan(self._powers[record.node].controller.name, record.node, "disk", self._disk_of(record))
            for record in records
            if record.state not in ("unknown", "clean") and record.node not in known
        ]

    def _disk_of(self, record: NodeRecord) -> str:
        return record.disk or self._settings.nodes[record.node].disk

    def close(self) -> None:
        """Ends what this process runs for nodes; dnsmasq goes on."""
        self._services.close()

    # Steps of a setup

    async def _begin(self, plan: NodePlan, before: NodeRecord, unit: UnitContext) -> NodeRecord:
        """Writes down what is to happen to the node; from here on it is not clean."""
        # A disk that was erased says which it was; another that has taken its place since was not.
        erase = before.state != "clean" or before.disk != plan.node.disk or not before.identity
        imaging = erase or isinstance(plan.image, DiskImage)
        key = make_host_key() if plan.image.seed != "none" else None
        record = NodeRecord(
            node=plan.name,
            state="imaging" if imaging else "starting",
            lease=unit.lease,
            number=unit.number,
            image=plan.image_name,
            hostname=plan.hostname,
            host_key=key.public if key is not None else "",
            keys=keys_digest(plan.keys),
            offset=await self._take_offset(plan.name),
            token=new_token(),
            erase=erase,
            disk=plan.node.disk,
            identity="" if erase else before.identity,
        )
        if key is not None:
            seed = await make_seed(plan, record, key, self._settings)
            await trio.to_thread.run_sync(self._services.write_seed, plan.name, seed)
        unit.log(f"is to have image {plan.image_name}{', after it is erased' if erase else ''}")
        return await self._keep(record)

    async def _bring_up(self, plan: NodePlan, record: NodeRecord, unit: UnitContext) -> Properties:
        await self._publish(record)
        disk = isinstance(plan.image, DiskImage)
        if record.state == "imaging":
            await self._order(record, "network", unit)
            record = await self._waiting(plan.name).for_report(record.token)
            unit.log("is imaged and verified" if disk else "is erased and verified")
            record = await self._keep(record.with_job("" if disk else new_token(), state="starting"))
        if disk:
            self._services.remove_seed(plan.name)
        if record.state == "starting":
            await self._order(record, "disk" if disk else "network", unit)
            record = self._services.records.get(plan.name)
            await self._waiting(plan.name).for_guest(record)
            record = await self._keep(attrs.evolve(self._services.records.get(plan.name), state="ready"))
            unit.log(f"is up at {bare_addresses(record, self._settings)[0]}")
        return self._properties(record)

    async def _order(self, record: NodeRecord, device: BootDevice, unit: UnitContext) -> None:
        """Starts the node from ``device``, once for each token: what was ordered is only made sure of."""
        power = self._powers[record.node]
        self._services.begin(record.node)
        if not record.ordered:
            await power.off()
            await power.boot_once(device)
            unit.log(f"starts from {device}")
            await self._keep(attrs.evolve(record, ordered=True))
        elif not record.heard:
            # Controllers forget within a minute what the next start is to be from, unless it came to that.
            await power.boot_once(device)
        if not record.heard:
            await power.on()

    async def _clean(self, record: NodeRecord, unit: UnitContext) -> None:
        name = unit.unit
        if not (record.is_of(unit) and record.state == "cleaning"):
            record = record.with_job(
                new_token(), state="cleaning", lease=unit.lease, number=unit.number, erase=True,
                disk=self._settings.nodes[name].disk, offset=record.offset or await self._take_offset(name),
            )  # fmt: skip
            record = await self._keep(record)
        self._services.remove_seed(name)
        await self._publish(record)
        await self._order(record, "network", unit)
        record = await self._waiting(name).for_report(record.token)
        unit.log(f"is erased and verified: {record.identity}")
        await self._powers[name].off()
        await self._keep(record.at_rest("clean"))
        await self._withdraw(name)

    async def _give_up(self, name: str, unit: UnitContext) -> None:
        """Takes back what the node was to do: its job is no more, it is off, and it is to be erased."""
        record = self._services.records.get(name)
        if record.state in ("unknown", "clean"):
            await self._keep(record.at_rest(record.state))
            await self._withdraw(name)
            return
        # That a disk is not where it was has been told now: the next time whichever is there is erased.
        identity = "" if record.report.startswith(f"failed {MOVED}") else record.identity
        await self._keep(record.with_job("", state="dirty", identity=identity, host_key=""))
        try:
            await self._withdraw(name)
            await self._powers[name].off()
        except DriverError as error:
            unit.log(f"is not known to be off: {error}")

    # Small things

    async def _take_offset(self, name: str) -> int:
        """The number of a node's addresses for its next lease; 0 where it has its own. Raises ``DriverError``."""
        network = self._settings.network
        if self._settings.nodes[name].addresses:
            return 0
        return await trio.to_thread.run_sync(self._services.records.take_offset, name, network.first, network.last)

    async def _keep(self, record: NodeRecord) -> NodeRecord:
        await trio.to_thread.run_sync(self._services.records.put, record)
        return record

    async def _publish(self, record: NodeRecord) -> None:
        mac = self._settings.nodes[record.node].mac
        name = record.hostname or host_name(record.node, self._settings.network.domain)
        addresses = bare_addresses(record, self._settings)
        await trio.to_thread.run_sync(self._services.names.publish, record.node, mac, name, addresses)

    async def _withdraw(self, name: str) -> None:
        self._services.remove_seed(name)
        mac = self._settings.nodes[name].mac
        await trio.to_thread.run_sync(self._services.names.withdraw, name, mac)

    def _waiting(self, name: str) -> BootWaiting:
        return BootWaiting(services=self._services, settings=self._settings, power=self._powers[name], node=name)

    def _properties(self, record: NodeRecord) -> Properties:
        addresses = bare_addresses(record, self._settings)
        found = {
            **self._settings.nodes[record.node].properties,
            "name": record.node,
            "hostname": record.hostname,
            "image": record.image,
            "host": addresses[0],
            "port": SSH_PORT,
            "addresses": " ".join(addresses),
        }
        image = self._settings.images.get(record.image)
        if record.host_key:
            found["host_key"] = record.host_key
            found |= {"user": image.user} if image is not None else {}
        return found

    @asynccontextmanager
    async def _exclusively(self, name: str) -> AsyncIterator[None]:
        """One action on a node at a time."""
        async with self._locks[name]:
            yield
