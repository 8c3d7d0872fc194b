"""Whether a host's KVM runs guests: that its device is there says little, so a tiny guest is started and waited for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final
from xml.etree import ElementTree

import trio

from leasekit.core.drivers import DriverError
from leasekit.core.time import SECOND, Duration
from leasekit.drivers.libvirt.connection import HostConnection, HostLostError
from leasekit.drivers.libvirt.documents import probe_xml
from leasekit.drivers.libvirt.domains import Domains
from leasekit.drivers.libvirt.volumes import Volumes

WORD: Final = b"leasekit: KVM runs"
PAUSE: Final = 0.05
"""Seconds between looks at the console."""

_CODE: Final = bytes.fromhex(
    "31c0 8ed8"  # xor ax,ax; mov ds,ax
    "be 207c"  # mov si,0x7c20: the text
    "ba f803"  # mov dx,0x3f8: the first serial line
    "fc"  # cld
    "ac 84c0 7403 ee ebf8"  # next: lodsb; test al,al; jz done; out dx,al; jmp next
    "f4 ebfd"  # done: hlt; jmp done
)


def boot_sector() -> bytes:
    """512 bytes that a PC starts from disk, which write :data:`WORD` to the first serial line, and halt."""
    return (_CODE.ljust(0x20, b"\x90") + WORD + b"\n\0").ljust(510, b"\0") + b"\x55\xaa"


def claims_kvm(capabilities: str, expand: Callable[[str], str]) -> bool:
    """Whether a host's capabilities speak of KVM, on a processor of the PC kind that can run guests.

    A host that is a guest itself may have the device of a KVM that is not backed by the processor (no vmx or svm): it
    runs a boot sector, and no system of today. ``expand`` makes of libvirt's description of a processor one that
    names each feature, those of its model too.
    """
    root = ElementTree.fromstring(capabilities)
    cpu = root.find("host/cpu")
    kvm = any(domain.get("type") == "kvm" for domain in root.iterfind("guest/arch/domain"))
    if not kvm or cpu is None or cpu.findtext("arch") != "x86_64":
        return False
    described = ElementTree.fromstring(expand(ElementTree.tostring(cpu, encoding="unicode")))
    return any(feature.get("name") in ("vmx", "svm") for feature in described.iterfind("feature"))


async def kvm_runs(host: HostConnection, domains: Domains, volumes: Volumes, prefix: str, deadline: Duration) -> bool:
    """Whether a guest of :func:`boot_sector` says its word within ``deadline`` ms. Raises ``DriverError``."""

    def claims(connection: Any) -> bool:
        flag = host.libvirt.VIR_CONNECT_BASELINE_CPU_EXPAND_FEATURES
        return claims_kvm(connection.getCapabilities(), lambda cpu: str(connection.baselineCPU([cpu], flag)))

    if not await host.call("can't ask what it is capable of", claims):
        return False
    # No unit has a tilde in its name.
    name = f"{prefix}~kvm"
    disk, console = f"{name}.disk", f"{name}.console"
    try:
        await _remove(domains, volumes, name)
        await volumes.write(disk, lambda: [boot_sector()])
        await volumes.create(console, 0)
        paths = await volumes.path(disk), await volumes.path(console)
        xml = probe_xml(name, paths[0] or "", paths[1] or "")
        try:
            await host.call("can't start a guest with KVM", lambda connection: connection.createXML(xml, 0))
        except HostLostError:
            raise
        except DriverError:
            return False
        return await _said(volumes, console, deadline)
    finally:
        with trio.CancelScope(shield=True):
            await _remove(domains, volumes, name)


async def _said(volumes: Volumes, console: str, deadline: Duration) -> bool:
    with trio.move_on_after(deadline / SECOND):
        while WORD not in await volumes.read(console):
            await trio.sleep(PAUSE)
        return True
    return False


async def _remove(domains: Domains, volumes: Volumes, name: str) -> None:
    await domains.remove(name)
    for suffix in (".disk", ".console"):
        await volumes.remove(name + suffix, wipe=False)
