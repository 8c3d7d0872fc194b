"""What `leasekit site doctor` looks at for virtual machines: the binding, each host, its pool, network and images."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import trio

from leasekit.core.drivers import DriverError, Finding
from leasekit.core.settings import SettingsError
from leasekit.drivers.examining import bridge, checksummed, program
from leasekit.drivers.libvirt.connection import HostAbsentError, binding
from leasekit.drivers.libvirt.place import Place
from leasekit.drivers.libvirt.settings import Artifact, LibvirtSettings

MEBI: Final = 2**20
SEARCH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
ROOM_MIN: Final = 1024 * MEBI
"""With less free in a pool, in bytes, it is doubtful whether units fit."""
BINDING_ADVICE: Final = "apt-get install libvirt-dev pkg-config gcc python3-dev; pip install 'leasekit[libvirt]'"
DAEMON_ADVICE: Final = (
    "apt-get install libvirt-daemon-system qemu-system-x86, start libvirtd, and let the authority's user into the "
    "group libvirt; for a host over ssh, log in to it by hand once"
)

LEASED_ADVICE: Final = "lease a machine for it, whose join runs: leasekit site host add"


async def examine(settings: LibvirtSettings) -> list[Finding]:
    """What there is of what units need. A tiny guest is started on each host whose KVM is to be probed."""
    try:
        binding()
    except SettingsError as error:
        return [Finding("libvirt-python", "missing", str(error), BINDING_ADVICE)]
    findings = [Finding("libvirt-python", "ok", "can be loaded")]
    if settings.leased is not None:
        findings += [program("ssh", "openssh-client", SEARCH), _key(settings.leased.key)]
    findings += [finding async for finding in _images(settings)]
    for name, host in settings.hosts.items():
        findings += [finding async for finding in _host(Place(name, host, settings), settings)]
    return findings


async def _host(place: Place, settings: LibvirtSettings) -> AsyncIterator[Finding]:
    what = f"host {place.name}"
    try:
        version = await place.host.call("can't ask for its version", lambda connection: connection.getLibVersion())
    except HostAbsentError as error:
        yield Finding(what, "doubtful", str(error), LEASED_ADVICE)
        return
    except DriverError as error:
        yield Finding(what, "missing", str(error), DAEMON_ADVICE)
        return
    major, minor = version // 1_000_000, version // 1000 % 1000
    uri = place.host.uri
    yield Finding(what, "ok", f"{uri}, libvirt {major}.{minor}")
    yield await _pool(place)
    yield await _acceleration(place)
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


def _key(path: Path) -> Finding:
    what = "key of leased hosts"
    if not path.is_file():
        advice = f"ssh-keygen -t ed25519 -N '' -f {path}; its public half is the key of the slice that leases them"
        return Finding(what, "missing", f"there is no {path}", advice)
    if path.stat().st_mode & 0o077:
        return Finding(what, "missing", f"{path} can be read by others, so ssh does not use it", f"chmod 600 {path}")
    return Finding(what, "ok", str(path))


async def _pool(place: Place) -> Finding:
    what = f"host {place.name}: pool {place.host.host.pool}"
    try:
        folder = await place.volumes.folder()
        free = await place.volumes.free()
    except DriverError as error:
        advice = "set pool_path to have the pool made there, or define it with virsh pool-define-as"
        return Finding(what, "missing", str(error), advice)
    text = f"{folder}, {free // MEBI} MiB free"
    if free < ROOM_MIN:
        return Finding(what, "doubtful", text, "make room: disks of units grow there")
    return Finding(what, "ok", text)


async def _acceleration(place: Place) -> Finding:
    what = f"host {place.name}: acceleration"
    try:
        machine = await place.machine()
    except DriverError as error:
        return Finding(what, "missing", str(error), "look at the host's own log: journalctl -u libvirtd")
    if not machine.qemu:
        return Finding(what, "ok", f"{machine.kind} is a hypervisor of its own")
    if machine.kind == "kvm":
        return Finding(what, "ok", "KVM runs guests here")
    advice = "load kvm_intel or kvm_amd, and switch virtualization on in the firmware, if units are to be fast"
    return Finding(what, "doubtful", "KVM runs no guest here: units are emulated, ten times slower", advice)


async def _network(place: Place, name: str) -> Finding:
    what = f"host {place.name}: network {name}"

    def active(connection: Any) -> bool:
        return bool(connection.networkLookupByName(name).isActive())

    try:
        if await place.host.call(f"network {name}", active):
            return Finding(what, "ok", "the network is active")
    except DriverError as error:
        return Finding(what, "missing", str(error), "define it with virsh net-define, or name a bridge instead")
    return Finding(what, "missing", "the network is not active", f"virsh net-start {name}; virsh net-autostart {name}")


async def _filter(place: Place, name: str) -> Finding:
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
    for name, image in settings.images.items():
        for part, artifact in (("disk", image.disk), ("kernel", image.kernel), ("initrd", image.initrd)):
            if artifact is not None and not artifact.volume:
                yield await _artifact(f"image {name}: {part}", artifact)


async def _artifact(what: str, artifact: Artifact) -> Finding:
    if artifact.file is None:
        return Finding(what, "ok", f"is fetched from {artifact.url} when it is first needed")
    file: Path = artifact.file
    return await trio.to_thread.run_sync(lambda: checksummed(what, file, artifact.sha256), abandon_on_cancel=True)
