"""What `leasekit site doctor` looks at for virtual machines: programs, images, and each host, its pool and network. A
guest that starts as a unit would, and never runs, shows what keeps units of a host from starting.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit
from uuid import uuid4

import trio

from leasekit.core.drivers import DriverError, Finding
from leasekit.core.settings import SettingsError
from leasekit.drivers.examining import MEBI, bridge, checksummed, iso_maker, program
from leasekit.drivers.files import SEARCH
from leasekit.drivers.libvirt.connection import HostAbsentError, PoolLostError, binding
from leasekit.drivers.libvirt.documents import Paths, domain_xml
from leasekit.drivers.libvirt.images import QCOW2_MAGIC, qcow2_size, read_artifact
from leasekit.drivers.libvirt.place import LibvirtPlace
from leasekit.drivers.libvirt.plan import UnitPlan
from leasekit.drivers.libvirt.record import make_record
from leasekit.drivers.libvirt.settings import Image, ImageArtifact, LibvirtSettings, Size

NAME: Final = "~trial"
"""No unit has a tilde in its name."""
MAC: Final = "52:54:00:fe:ed:01"
SIZE: Final = Size(memory_mb=16)


async def start_trial(place: LibvirtPlace, settings: LibvirtSettings) -> None:
    """Starts it with its processors halted, and removes it. Raises ``DriverError``."""
    name = place.name_of(NAME)
    image = Image(disk=ImageArtifact(volume=f"{name}.disk"), seed="none", ready="running")
    network = settings.network
    # Its filter is to have an address; what is never at work needs none of the site's.
    addresses = ("192.0.2.1/32",) if network is not None and network.subnets else ()
    plan = UnitPlan(
        unit=NAME, lease="", type="", number=0, image_name="", image=image, size=SIZE, most=SIZE, hostname="",
        addresses=addresses, keys=(), mac=MAC, uuid=str(uuid4()),
    )  # fmt: skip

    def start(connection: Any) -> None:
        libvirt = place.host.libvirt
        flags = libvirt.VIR_DOMAIN_START_PAUSED | libvirt.VIR_DOMAIN_START_AUTODESTROY
        connection.createXML(xml, flags).destroy()

    await _remove(place)
    try:
        disk = await place.volumes.create(f"{name}.disk", 0, format="qcow2")
        paths = Paths(disk=disk, console=await place.make_console(NAME))
        xml = domain_xml(name, plan, make_record(plan, ""), await place.machine(), paths, network)
        await place.host.call("can't start a guest", start)
    finally:
        with trio.CancelScope(shield=True):
            await _remove(place)


async def _remove(place: LibvirtPlace) -> None:
    await place.domains.remove(place.name_of(NAME))
    await place.remove_volumes(NAME, wipe=False)


ROOM_MIN: Final = 1024 * MEBI
"""With less free in a pool, in bytes, it is doubtful whether units fit."""
BINDING_ADVICE: Final = "apt-get install libvirt-dev pkg-config gcc python3-dev; pip install 'leasekit[libvirt]'"
DAEMON_ADVICE: Final = (
    "apt-get install libvirt-daemon-system qemu-system-x86, start libvirtd, and let the authority's user into the "
    "group libvirt; for a host over ssh, log in to it by hand once"
)
POOL_ADVICE: Final = (
    "set pool_path to have the pool made there, or define it with virsh pool-define-as; virsh pool-start"
)
LEASED_ADVICE: Final = "lease a machine for it, whose join runs: leasekit site hypervisor add"


async def examine(settings: LibvirtSettings) -> list[Finding]:
    """What there is of what units need. A guest that never runs is started on each host, and a tiny one where KVM is to
    be probed.
    """
    try:
        binding()
    except SettingsError as error:
        return [Finding("libvirt-python", "missing", str(error), BINDING_ADVICE)]
    findings = [Finding("libvirt-python", "ok", "can be loaded")]
    images = settings.images.values()
    if any(image.seed == "nocloud" for image in images):
        findings.append(iso_maker())
    if settings.leased is not None or any(image.ready == "ssh" for image in images):
        findings.append(program("ssh", "openssh-client", SEARCH))
    if settings.leased is not None:
        findings.append(_key(settings.leased.key))
    findings += [finding async for finding in _images(settings)]
    for name, host in settings.hosts.items():
        findings += [finding async for finding in _host(LibvirtPlace(name, host, settings), settings)]
    return findings


async def _host(place: LibvirtPlace, settings: LibvirtSettings) -> AsyncIterator[Finding]:
    what = f"host {place.name}"
    try:
        version = await place.host.call("can't ask for its version", lambda connection: connection.getLibVersion())
    except HostAbsentError as error:
        yield Finding(what, "doubtful", str(error), LEASED_ADVICE)
        return
    except PoolLostError as error:
        yield Finding(f"{what}: pool {place.host.host.pool}", "missing", str(error), POOL_ADVICE)
        return
    except DriverError as error:
        yield Finding(what, "missing", str(error), DAEMON_ADVICE)
        return
    major, minor = version // 1_000_000, version // 1000 % 1000
    uri = place.host.uri
    yield Finding(what, "ok", f"{uri}, libvirt {major}.{minor}")
    pool = await _pool(place)
    yield pool
    if pool.verdict != "missing":
        async for finding in _volumes(place, settings):
            yield finding
    acceleration = await _acceleration(place)
    yield acceleration
    if settings.network is not None:
        if settings.network.network:
            yield await _network(place, settings.network.network)
        elif urlsplit(uri).hostname is None:
            yield bridge(settings.network.bridge)
        else:
            name = settings.network.bridge
            text = "a bridge of another host can't be seen from here"
            yield Finding(f"bridge {name}", "doubtful", text, f"look at it there: ip link show {name}")
        yield await _filter(place, settings.network.filter)
    if "missing" not in (pool.verdict, acceleration.verdict) and (await place.machine()).qemu:
        yield await _trial(place, settings)


def _key(path: Path) -> Finding:
    what = "key of leased hosts"
    if not path.is_file():
        advice = f"ssh-keygen -t ed25519 -N '' -f {path}; its public half is the key of the slice that leases them"
        return Finding(what, "missing", f"there is no {path}", advice)
    if not os.access(path, os.R_OK):
        return Finding(what, "missing", f"can't read {path}", "let the authority's user read it: chown")
    if path.stat().st_mode & 0o077:
        return Finding(what, "missing", f"{path} can be read by others, so ssh does not use it", f"chmod 600 {path}")
    return Finding(what, "ok", str(path))


async def _pool(place: LibvirtPlace) -> Finding:
    what = f"host {place.name}: pool {place.host.host.pool}"
    try:
        folder = await place.volumes.folder()
        free = await place.volumes.free()
    except DriverError as error:
        return Finding(what, "missing", str(error), POOL_ADVICE)
    text = f"{folder}, {free // MEBI} MiB free"
    if free < ROOM_MIN:
        return Finding(what, "doubtful", text, "make room: disks of units grow there")
    return Finding(what, "ok", text)


async def _acceleration(place: LibvirtPlace) -> Finding:
    what = f"host {place.name}: acceleration"
    try:
        machine = await place.machine()
    except DriverError as error:
        return Finding(what, "missing", str(error), "look at the host's own log: journalctl -u libvirtd")
    if not machine.qemu:
        return Finding(what, "ok", "libvirt's test driver runs no guests")
    if machine.kind == "kvm":
        return Finding(what, "ok", "KVM runs guests here")
    if place.host.host.acceleration == "tcg":
        return Finding(what, "ok", "units are emulated, as is set")
    advice = "load kvm_intel or kvm_amd, and switch virtualization on in the firmware, if units are to be fast"
    return Finding(what, "doubtful", "KVM runs no guest here: units are emulated, ten times slower", advice)


async def _network(place: LibvirtPlace, name: str) -> Finding:
    what = f"host {place.name}: network {name}"

    def active(connection: Any) -> bool:
        return bool(connection.networkLookupByName(name).isActive())

    try:
        if await place.host.call(f"network {name}", active):
            return Finding(what, "ok", "the network is active")
    except DriverError as error:
        return Finding(what, "missing", str(error), "define it with virsh net-define, or name a bridge instead")
    return Finding(what, "missing", "the network is not active", f"virsh net-start {name}; virsh net-autostart {name}")


async def _filter(place: LibvirtPlace, name: str) -> Finding:
    what = f"host {place.name}: network filter {name}".rstrip()
    if not name:
        text = "none: a guest can take an address that is another one's"
        return Finding(what, "doubtful", text, 'name one that keeps it to its own: filter = "clean-traffic"')
    try:
        await place.host.call(f"network filter {name}", lambda connection: connection.nwfilterLookupByName(name))
    except DriverError as error:
        return Finding(what, "missing", str(error), "apt-get install libvirt-daemon-config-nwfilter")
    return Finding(what, "ok", "is defined")


async def _images(settings: LibvirtSettings) -> AsyncIterator[Finding]:
    for name, image, part, artifact in _artifacts(settings):
        if not artifact.volume:
            looked = await trio.to_thread.run_sync(_artifact, name, image, part, artifact, abandon_on_cancel=True)
            yield looked


def _artifacts(settings: LibvirtSettings) -> Iterator[tuple[str, Image, str, ImageArtifact]]:
    for name, image in settings.images.items():
        for part, artifact in (("disk", image.disk), ("kernel", image.kernel), ("initrd", image.initrd)):
            if artifact is not None:
                yield name, image, part, artifact


def to_be_brought(what: str, artifact: ImageArtifact) -> Finding:
    """Whether a file that is brought to hosts is what it is said to be, where it is here; blocks."""
    if artifact.file is None:
        return Finding(what, "ok", f"is fetched from {artifact.url} when it is first needed")
    return checksummed(what, artifact.file, artifact.sha256)


def _artifact(name: str, image: Image, part: str, artifact: ImageArtifact) -> Finding:
    """Whether a file or URL can be read, and is what it is said to be; blocks."""
    what = f"image {name}: {part}"
    found = to_be_brought(what, artifact)
    if found.verdict != "ok":
        return found
    try:
        with closing(read_artifact(name, artifact)) as pieces:
            head = next(pieces, b"")
    except DriverError as error:
        return Finding(what, "missing", str(error), "start its server, or correct the url")
    try:
        if part == "disk" and (image.format == "qcow2" or head.startswith(QCOW2_MAGIC)):
            qcow2_size(name, head)
            if image.format == "raw":
                return Finding(
                    what, "missing", "found a qcow2 file, expected a raw one", 'correct it: format = "qcow2"'
                )
    except DriverError as error:
        return Finding(what, "missing", str(error), "correct format, or convert the file: qemu-img convert -O qcow2")
    return found


async def _volumes(place: LibvirtPlace, settings: LibvirtSettings) -> AsyncIterator[Finding]:
    """Whether the host has the images that are to be there already, and room for those that are brought there."""
    wanted = 0
    for name, _, part, artifact in _artifacts(settings):
        what = f"host {place.name}: image {name}: {part}"
        try:
            if artifact.volume:
                await place.images.path(name, artifact)
                yield Finding(what, "ok", f"volume {artifact.volume} is in the pool")
            elif artifact.file is not None and not await place.images.has(artifact):
                wanted += artifact.file.stat().st_size
        except (DriverError, OSError) as error:
            yield Finding(what, "missing", str(error), "virsh vol-list says what is there: bring it, or correct volume")
    what = f"host {place.name}: room for images"
    try:
        free = await place.volumes.free()
    except DriverError as error:
        yield Finding(what, "missing", str(error), POOL_ADVICE)
        return
    if free < wanted:
        text = f"{free // MEBI} MiB free, and images of {wanted // MEBI} MiB are to come"
        yield Finding(what, "missing", text, "make room, or name another pool")


async def _trial(place: LibvirtPlace, settings: LibvirtSettings) -> Finding:
    """Whether QEMU starts a guest with all that a unit has: a disk and a console in the pool, and a card. Its
    processors stand still.
    """
    what = f"host {place.name}: a guest"
    try:
        await start_trial(place, settings)
    except DriverError as error:
        advice = "virtlogd must run (systemctl start virtlogd.socket), and QEMU's user get at the pool: journalctl -u "
        return Finding(what, "missing", str(error), f"{advice}libvirtd says more")
    return Finding(what, "ok", "starts, with disk, console and network card")
