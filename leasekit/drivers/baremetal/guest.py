"""Waiting for nodes: for what the imaging environment says, and for a guest's ssh server; or knowing early why not."""

from __future__ import annotations

import time
from typing import Final

import attrs
import trio

from leasekit.core.drivers import DriverError
from leasekit.core.time import SECOND, format_duration
from leasekit.drivers.baremetal.agent import MOVED
from leasekit.drivers.baremetal.plan import bare_addresses
from leasekit.drivers.baremetal.records import NodeRecord
from leasekit.drivers.baremetal.services import Services
from leasekit.drivers.baremetal.settings import BareMetalSettings
from leasekit.drivers.libvirt.readiness import ssh_missing
from leasekit.drivers.names import one_line
from leasekit.drivers.power.base import PowerControl

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
