"""Moving a running unit from host to host: its files first, then its memory while it runs.

Before anything moves, a note at the unit's home says where to, so that a daemon which was killed in between finds it
(:mod:`leasekit.drivers.libvirt.place`). Both hosts have the pool at the same path.
"""

from __future__ import annotations

from typing import Any, Final
from xml.etree import ElementTree

from leasekit.core.drivers import DriverError
from leasekit.drivers.libvirt.connection import HostConnection
from leasekit.drivers.libvirt.domains import Domains
from leasekit.drivers.libvirt.volumes import Volumes

COPIED: Final = (".seed", ".initrd", ".console")
"""The volumes of a unit that are copied whole; the disk is copied by the hypervisor, while the guest writes to it."""
COPY_PIECE: Final = 16 * 1024 * 1024


async def copy_volumes(source: Volumes, target: Volumes, base: str) -> None:
    """Makes the small volumes of a unit at the target. Raises ``DriverError``."""
    for suffix in COPIED:
        name = base + suffix
        if await source.path(name) is not None:
            content = await source.read(name)
            pieces = [content[at : at + COPY_PIECE] for at in range(0, len(content), COPY_PIECE)]
            await target.remove(name, wipe=False)
            await target.write(name, lambda pieces=pieces: pieces)  # type: ignore[misc]


async def stream_volume(source: Volumes, name: str, target: Volumes, new: str) -> None:
    """Copies a volume to another host, a piece at a time, by way of this machine. Raises ``DriverError``."""
    connections: list[Any] = []
    await source.host.look("can't be reached", connections.append)
    await target.write(new, lambda: source.pieces(connections[0], name))


async def migrate(source: HostConnection, target: HostConnection, name: str, *, copy_disk: bool) -> None:
    """Moves the domain ``name``, which goes on running; it stays if that is cancelled. A guest that writes to its
    memory faster than that can be sent is slowed down. One without acceleration stands still: QEMU 7.2 loses what its
    emulation writes while memory is sent, and the guest's kernel panics where it arrives. Raises ``DriverError``.
    """
    # Its library's flags need a connection to either host, in one thread; the target's is made first.
    connections: list[Any] = []
    await target.look("can't be reached", connections.append)
    libvirt = source.libvirt

    def move(connection: Any) -> None:
        domain = connection.lookupByName(name)
        flags = (
            libvirt.VIR_MIGRATE_PERSIST_DEST
            | libvirt.VIR_MIGRATE_UNDEFINE_SOURCE
            | libvirt.VIR_MIGRATE_ABORT_ON_ERROR
            | libvirt.VIR_MIGRATE_AUTO_CONVERGE
        )
        if ElementTree.fromstring(domain.XMLDesc()).get("type") != "qemu":
            flags |= libvirt.VIR_MIGRATE_LIVE
        if copy_disk:
            flags |= libvirt.VIR_MIGRATE_NON_SHARED_INC
        # Kernel, seed and console are the same files at the same place there; only a disk is checked for.
        flags |= libvirt.VIR_MIGRATE_UNSAFE
        parameters = {}
        if target.host.migration:
            parameters[libvirt.VIR_MIGRATE_PARAM_URI] = target.host.migration
        domain.migrate3(connections[0], parameters, flags)

    await source.work(f"can't move domain {name} to host {target.name}", move, abort=Domains(source).job_ender(name))


async def check_same_pool(source: Volumes, target: Volumes, domains: Domains, name: str) -> None:
    """Raises ``DriverError`` where a unit's files would have other paths at the target, or its name is taken there: for
    a moment, where it is what an earlier try has begun.
    """
    state = await domains.find(name)
    if state is not None:
        raise DriverError(f"host {target.host_name} has a domain {name} already", retry=state.moving)
    here, there = await source.folder(), await target.folder()
    if here != there:
        text = f"host {source.host_name} has its pool at {here}, host {target.host_name} at {there}"
        raise DriverError(f"{text}: units move only between hosts that have it at one path", retry=False)
