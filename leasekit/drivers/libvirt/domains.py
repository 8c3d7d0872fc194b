"""Domains of one host: what they are, and what is done to them. Everything here is safe to do twice."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

import attrs
import trio

from leasekit.core.drivers import DriverError
from leasekit.drivers.libvirt.connection import HostConnection, HostLostError
from leasekit.drivers.libvirt.documents import CAP_PERIOD, cap_quota
from leasekit.drivers.libvirt.record import KEY, URN, LibvirtRecord, find_record, read_record
from leasekit.drivers.libvirt.settings import Size

AGENT_TIMEOUT: Final = 5
"""Seconds within which a guest agent has to answer."""
LOOK: Final = 1
"""Seconds between looks at a domain whose events should tell."""
GROUPS_V1_SHARES: Final = 1024
GROUPS_V2_SHARES: Final = 100


@attrs.frozen(kw_only=True)
class DomainState:
    """A domain as it is. ``cpu`` is in seconds since it started, ``memory`` in bytes; ``why`` says more in words.

    ``saved`` is a domain whose memory is on disk, to go on where it was; ``stuck`` one that runs no more for want of
    something on its host, such as room on the disk. One that is ``moving`` stands still, here or there, until a
    migration is over: where it will be is not known yet.
    """

    name: str
    record: LibvirtRecord | None
    running: bool
    saved: bool
    stuck: bool
    moving: bool
    why: str
    cpu: float
    memory: int
    vcpus: int

    @property
    def alive(self) -> bool:
        """Whether it runs, or would go on if it were resumed."""
        return (self.running and not self.stuck) or self.saved

    @property
    def settled(self) -> bool:
        """Whether it is here, and nowhere else."""
        return self.alive and not self.moving


@attrs.frozen(kw_only=True)
class Resized:
    """What came of a change of size: what is to be ``told`` of it, and the memory that the domain has until its next
    start where it was to have more, in MiB (0: it has what it was to have).
    """

    told: str
    short_of_mb: int


class Domains:
    """The domains of one host."""

    def __init__(self, host: HostConnection) -> None:
        self._host = host
        self._libvirt = host.libvirt

    async def find(self, name: str) -> DomainState | None:
        """The domain of that name, or none. Raises ``DriverError``."""

        def find(connection: Any) -> DomainState | None:
            domain = self._lookup(connection, name)
            return None if domain is None else self._state(domain)

        return await self._host.look(f"can't look for domain {name}", find)

    async def all(self) -> list[DomainState]:
        """All domains that carry a unit's record. Raises ``DriverError``."""

        def listed(connection: Any) -> list[DomainState]:
            states = []
            for domain in connection.listAllDomains(0):
                try:
                    state = self._state(domain)
                except self._libvirt.libvirtError as error:
                    if error.get_error_code() != self._libvirt.VIR_ERR_NO_DOMAIN:
                        raise
                    continue  # it went while the others were looked at
                if state.record is not None:
                    states.append(state)
            return states

        return await self._host.look("can't list domains", listed)

    async def define(self, xml: str) -> None:
        """Makes a domain known, without starting it. Raises ``DriverError``."""
        await self._host.call("can't define a domain", lambda connection: connection.defineXML(xml))

    async def start(self, name: str) -> None:
        """Starts a domain, or has it go on from where it was saved. Raises ``DriverError``."""

        def start(connection: Any) -> None:
            domain = connection.lookupByName(name)
            if not domain.isActive():
                domain.create()

        await self._host.work(f"can't start domain {name}", start)

    async def stop(self, name: str) -> None:
        """Ends a domain at once, as if its power were cut. Raises ``DriverError``."""

        def stop(connection: Any) -> None:
            domain = self._lookup(connection, name)
            if domain is not None:
                self._destroy(domain)

        await self._host.call(f"can't stop domain {name}", stop)

    async def remove(self, name: str) -> None:
        """Ends a domain and removes it with what was saved of it, if it is there. Raises ``DriverError``."""

        def remove(connection: Any) -> None:
            libvirt = self._libvirt
            domain = self._lookup(connection, name)
            if domain is None:
                return
            self._destroy(domain)
            flags = libvirt.VIR_DOMAIN_UNDEFINE_MANAGED_SAVE
            if connection.getType() == "QEMU":
                flags |= libvirt.VIR_DOMAIN_UNDEFINE_NVRAM | libvirt.VIR_DOMAIN_UNDEFINE_SNAPSHOTS_METADATA
                flags |= libvirt.VIR_DOMAIN_UNDEFINE_CHECKPOINTS_METADATA
            try:
                domain.undefineFlags(flags)
            except libvirt.libvirtError as error:
                if error.get_error_code() != libvirt.VIR_ERR_NO_DOMAIN:
                    raise

        await self._host.call(f"can't remove domain {name}", remove)

    async def save(self, name: str) -> None:
        """Puts a domain's memory on disk and ends it; if that is cancelled it goes on. Raises ``DriverError``."""

        def save(connection: Any) -> None:
            domain = connection.lookupByName(name)
            if domain.isActive():
                domain.managedSave(0)

        await self._host.work(f"can't save domain {name}", save, abort=self.job_ender(name))

    async def save_to(self, name: str, path: str) -> None:
        """Writes a domain's memory to a file of its host, and ends it; if that is cancelled it goes on. Raises
        ``DriverError``.
        """

        def save(connection: Any) -> None:
            connection.lookupByName(name).saveFlags(path, None, self._libvirt.VIR_DOMAIN_SAVE_RUNNING)

        await self._host.work(f"can't save the memory of domain {name}", save, abort=self.job_ender(name))

    def job_ender(self, name: str) -> Callable[[Any], None]:
        """What ends the job of a domain, if it has one: its migration, or its memory's way to a file; blocks."""

        def end(connection: Any) -> None:
            # It may not have begun, or be over: whether it ended is seen by who waits for it.
            with suppress(self._libvirt.libvirtError):
                connection.lookupByName(name).abortJob()

        return end

    async def await_saved(self, name: str, log: Callable[[str], None]) -> None:
        """Waits until a domain's memory is written, where an earlier try has begun that. Raises ``DriverError``."""

        def is_busy(connection: Any) -> bool:
            domain = self._lookup(connection, name)
            try:
                return domain is not None and bool(domain.isActive()) and domain.jobInfo()[0] not in idle
            except self._libvirt.libvirtError as error:
                if error.get_error_code() not in ended:
                    raise
                return False

        libvirt, told = self._libvirt, False
        # A hypervisor without such jobs writes memory at once.
        ended = (libvirt.VIR_ERR_OPERATION_INVALID, libvirt.VIR_ERR_NO_DOMAIN, libvirt.VIR_ERR_NO_SUPPORT)
        idle = (libvirt.VIR_DOMAIN_JOB_NONE, libvirt.VIR_DOMAIN_JOB_COMPLETED)
        with self._host.watch(name) as changes:
            while await self._host.look(f"can't look at the job of domain {name}", is_busy):
                if not told:
                    log("its memory is being written already: that is waited for")
                    told = True
                with trio.move_on_after(LOOK):
                    await changes.receive()

    async def memory_record(self, path: str) -> LibvirtRecord | None:
        """Whose memory is in a file of the host, or none where it is not whole. Raises ``DriverError``."""

        def look(connection: Any) -> LibvirtRecord | None:
            try:
                return find_record(connection.saveImageGetXMLDesc(path, 0))
            except self._libvirt.libvirtError:
                # What was cut short has no error of its own in libvirt.
                if connection.isAlive() != 1:
                    raise
                return None

        return await self._host.look(f"can't look at {path}", look)

    async def restore(self, path: str, change: Callable[[str], str]) -> None:
        """Has a domain go on from its memory in a file of the host, described as ``change`` makes of what is written
        there. The file stays. Raises ``DriverError``.
        """

        def restore(connection: Any) -> None:
            libvirt = self._libvirt
            xml = change(connection.saveImageGetXMLDesc(path, libvirt.VIR_DOMAIN_SAVE_IMAGE_XML_SECURE))
            connection.defineXML(xml)
            connection.restoreFlags(path, xml, libvirt.VIR_DOMAIN_SAVE_RUNNING)

        await self._host.work(f"can't bring back memory from {path}", restore)

    async def shut_down(self, name: str, within: float, log: Callable[[str], None]) -> None:
        """Asks the guest to shut down, and ends its domain if it has not in so many seconds. Raises ``DriverError``."""

        def ask(connection: Any) -> None:
            domain = connection.lookupByName(name)
            if domain.isActive():
                domain.shutdown()

        with self._host.watch(name) as changes, trio.move_on_after(within):
            try:
                await self._host.call(f"can't shut down domain {name}", ask)
                while (state := await self.find(name)) is not None and state.running:
                    with trio.move_on_after(LOOK):
                        await changes.receive()
                return
            except HostLostError:
                raise
            except DriverError as error:
                log(str(error))
        log("its guest does not shut down, so its power is cut")
        await self.stop(name)

    async def set_clock(self, name: str) -> None:
        """Has the guest's agent set its clock to what it is here. Raises ``DriverError``."""

        def set_clock(connection: Any) -> None:
            domain = connection.lookupByName(name)
            domain.agentSetResponseTimeout(AGENT_TIMEOUT)
            now = time.time_ns()
            domain.setTime({"seconds": now // 10**9, "nseconds": now % 10**9})

        await self._host.call(f"can't set the clock of domain {name}", set_clock)

    async def forget_saved(self, name: str) -> None:
        """Throws away what was saved of a domain: its next start is a fresh one. Raises ``DriverError``."""

        def forget(connection: Any) -> None:
            domain = connection.lookupByName(name)
            if domain.hasManagedSaveImage(0):
                domain.managedSaveRemove(0)

        await self._host.call(f"can't forget what was saved of domain {name}", forget)

    async def write_record(self, name: str, record: LibvirtRecord) -> None:
        """Writes whose a domain is. Raises ``DriverError``."""

        def write(connection: Any) -> None:
            libvirt = self._libvirt
            domain = connection.lookupByName(name)
            flags = libvirt.VIR_DOMAIN_AFFECT_CONFIG
            if domain.isActive():
                flags |= libvirt.VIR_DOMAIN_AFFECT_LIVE
            domain.setMetadata(libvirt.VIR_DOMAIN_METADATA_ELEMENT, record.bare_text(), KEY, URN, flags)

        await self._host.call(f"can't write metadata of domain {name}", write)

    async def resize(self, name: str, size: Size, most_mb: int, *, agent: bool) -> Resized:
        """Gives a running domain its vCPUs, memory, cap and shares, for now and for later starts; from the next one on
        its memory can grow to ``most_mb``.

        A vCPU that a guest has is not torn from it, which can end QEMU: the guest's ``agent`` switches it off, or else
        the next start leaves it out. Raises ``DriverError``.
        """

        def resize(connection: Any) -> Resized:
            libvirt = self._libvirt
            domain = connection.lookupByName(name)
            live, later = libvirt.VIR_DOMAIN_AFFECT_LIVE, libvirt.VIR_DOMAIN_AFFECT_CONFIG
            self._set_cpu(domain, size)  # first, for in this a guest has no say
            there = domain.vcpusFlags(live)
            told = ""
            if there < size.vcpus:
                domain.setVcpusFlags(size.vcpus, live)
            elif agent:
                domain.agentSetResponseTimeout(AGENT_TIMEOUT)
                domain.setVcpusFlags(size.vcpus, libvirt.VIR_DOMAIN_VCPU_GUEST)
            elif there > size.vcpus:
                told = f"keeps {there} vCPUs until it is restarted, for it has no agent to switch them off"
            domain.setVcpusFlags(size.vcpus, later)
            has = domain.maxMemory() // 1024
            domain.setMemoryFlags(min(size.memory_mb, has) * 1024, live)
            domain.setMemoryFlags(most_mb * 1024, later | libvirt.VIR_DOMAIN_MEM_MAXIMUM)
            domain.setMemoryFlags(size.memory_mb * 1024, later)
            return Resized(told=told, short_of_mb=has if has < size.memory_mb else 0)

        return await self._host.call(f"can't resize domain {name}", resize)

    async def set_cpu(self, name: str, size: Size) -> None:
        """Sets cap and shares of a running domain. Raises ``DriverError``."""
        await self._host.call(
            f"can't set the CPU share of domain {name}",
            lambda connection: self._set_cpu(connection.lookupByName(name), size),
        )

    async def set_keys(self, name: str, user: str, keys: tuple[str, ...]) -> None:
        """Has the guest's agent replace the login keys of ``user``. Raises ``DriverError``."""

        def set_keys(connection: Any) -> None:
            domain = connection.lookupByName(name)
            domain.agentSetResponseTimeout(AGENT_TIMEOUT)
            domain.authorizedSSHKeysSet(user, list(keys), 0)

        await self._host.call(f"can't set login keys in domain {name}", set_keys)

    async def agent_answers(self, name: str) -> bool:
        """Whether the guest's agent is there and answers. Raises ``DriverError`` where that can't be found out."""

        def answers(connection: Any) -> bool:
            libvirt = self._libvirt
            domain = connection.lookupByName(name)
            try:
                domain.agentSetResponseTimeout(AGENT_TIMEOUT)
                domain.getTime()
            except libvirt.libvirtError as error:
                absent = (
                    libvirt.VIR_ERR_AGENT_UNRESPONSIVE,
                    libvirt.VIR_ERR_AGENT_UNSYNCED,
                    libvirt.VIR_ERR_OPERATION_INVALID,
                )
                if error.get_error_code() not in absent:
                    raise
                return False
            return True

        return await self._host.call(f"can't ask the agent in domain {name}", answers)

    # In threads

    def _lookup(self, connection: Any, name: str) -> Any:
        try:
            return connection.lookupByName(name)
        except self._libvirt.libvirtError as error:
            if error.get_error_code() == self._libvirt.VIR_ERR_NO_DOMAIN:
                return None
            raise

    def _destroy(self, domain: Any) -> None:
        libvirt = self._libvirt
        try:
            if domain.isActive():
                domain.destroy()
        except libvirt.libvirtError as error:
            # It ended by itself, just before.
            if error.get_error_code() not in (libvirt.VIR_ERR_OPERATION_INVALID, libvirt.VIR_ERR_NO_DOMAIN):
                raise

    def _state(self, domain: Any) -> DomainState:
        libvirt = self._libvirt
        state, _, memory, vcpus, cpu = domain.info()
        reason = domain.state()[1]
        running = bool(domain.isActive())
        saved = not running and bool(domain.hasManagedSaveImage(0))
        stuck = state == libvirt.VIR_DOMAIN_CRASHED
        stuck |= state == libvirt.VIR_DOMAIN_PAUSED and reason == libvirt.VIR_DOMAIN_PAUSED_IOERROR
        return DomainState(
            name=domain.name(),
            record=self._record(domain),
            running=running,
            saved=saved,
            stuck=stuck,
            moving=state == libvirt.VIR_DOMAIN_PAUSED and reason == libvirt.VIR_DOMAIN_PAUSED_MIGRATION,
            why=self._words(state, reason, saved),
            cpu=cpu / 1e9 if running else 0.0,
            memory=memory * 1024 if running else 0,
            vcpus=vcpus,
        )

    def _record(self, domain: Any) -> LibvirtRecord | None:
        libvirt = self._libvirt
        try:
            return read_record(domain.metadata(libvirt.VIR_DOMAIN_METADATA_ELEMENT, URN, 0))
        except libvirt.libvirtError as error:
            if error.get_error_code() == libvirt.VIR_ERR_NO_DOMAIN_METADATA:
                return None
            raise

    def _words(self, state: int, reason: int, saved: bool) -> str:
        libvirt = self._libvirt
        if saved:
            return "suspended, its memory is on disk"
        if state == libvirt.VIR_DOMAIN_SHUTOFF:
            reasons = {
                libvirt.VIR_DOMAIN_SHUTOFF_SHUTDOWN: "its guest shut it down",
                libvirt.VIR_DOMAIN_SHUTOFF_DESTROYED: "it was destroyed",
                libvirt.VIR_DOMAIN_SHUTOFF_CRASHED: "it crashed",
                libvirt.VIR_DOMAIN_SHUTOFF_FAILED: "it could not start",
                libvirt.VIR_DOMAIN_SHUTOFF_SAVED: "its memory was written to a file",
            }
            return f"stopped: {reasons.get(reason, 'nobody knows why')}"
        if state == libvirt.VIR_DOMAIN_PAUSED and reason == libvirt.VIR_DOMAIN_PAUSED_IOERROR:
            return "halted by an error of its disk, most often for want of room in the host's pool"
        names = {
            libvirt.VIR_DOMAIN_PAUSED: "paused",
            libvirt.VIR_DOMAIN_CRASHED: "crashed",
            libvirt.VIR_DOMAIN_SHUTDOWN: "shutting down",
            libvirt.VIR_DOMAIN_PMSUSPENDED: "asleep",
        }
        return names.get(state, "running")

    def _set_cpu(self, domain: Any, size: Size) -> None:
        libvirt = self._libvirt
        known = domain.schedulerParameters()
        wanted: dict[str, int] = {}
        if "global_quota" in known:
            wanted |= {"global_period": CAP_PERIOD, "global_quota": cap_quota(size.cap)}
        elif size.cap:
            raise DriverError("the hypervisor, or the rights that it has on its host, allow no CPU caps", retry=False)
        if "cpu_shares" in known:
            wanted["cpu_shares"] = size.shares or default_shares(known)
        for flag in (libvirt.VIR_DOMAIN_AFFECT_LIVE, libvirt.VIR_DOMAIN_AFFECT_CONFIG) if wanted else ():
            domain.setSchedulerParametersFlags(wanted, flag)


def default_shares(known: Mapping[str, int]) -> int:
    """The weight of a domain that was given none, by the scheduler parameters of any domain of its host.

    Linux counts weights from 1 to 10,000 in control groups of version 2, and up to 262,144 in those of version 1. What
    tells them apart is how libvirt writes that the emulator has no cap, which this driver never gives it.
    """
    return GROUPS_V1_SHARES if known.get("emulator_quota", -1) < 0 else GROUPS_V2_SHARES
