"""What `leasekit site doctor` looks at for bare metal: programs, rights, the boot network, images and controllers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import trio

from leasekit.core.drivers import DriverError, Finding
from leasekit.drivers.baremetal.environment import newest_kernel
from leasekit.drivers.baremetal.settings import Artifact, BareMetalSettings, DiskImage, NetbootImage, Owned
from leasekit.drivers.examining import checksummed, interface, program
from leasekit.drivers.power.examining import examine_controllers

SEARCH: Final = "/usr/sbin:/usr/bin:/sbin:/bin"
PROGRAMS: Final = {"busybox": "busybox-static", "sfdisk": "fdisk"}
"""What the imaging environment is made of, and the packages that have it."""


async def examine(settings: BareMetalSettings) -> list[Finding]:
    """What there is of what nodes need; nothing is started or switched."""
    found = [program(name, package, SEARCH) for name, package in PROGRAMS.items()]
    found += [_kernel(settings), interface(settings.network.interface, "the boot network")]
    if isinstance(settings.network.dnsmasq, Owned):
        found += [program("dnsmasq", "dnsmasq-base", SEARCH), _rights()]
    else:
        found.append(_external(settings.network.dnsmasq.pid_file))
    for what, artifact in _artifacts(settings):
        found.append(await trio.to_thread.run_sync(checksummed, what, artifact.file, artifact.sha256))
    return found + await examine_controllers({name: node.power for name, node in settings.nodes.items()})


def _kernel(settings: BareMetalSettings) -> Finding:
    what, kernel = "kernel of the imaging environment", settings.environment.kernel
    try:
        found = kernel or newest_kernel()
    except DriverError as error:
        return Finding(
            what, "missing", str(error), "apt-get install linux-image-amd64, or name one: environment.kernel"
        )
    if not found.is_file():
        return Finding(what, "missing", f"there is no {found}", "correct environment.kernel")
    return Finding(what, "ok", str(found))


def _rights() -> Finding:
    if os.geteuid() == 0:
        return Finding("rights", "ok", "dnsmasq may answer DHCP: this is root")
    return Finding("rights", "missing", "dnsmasq of its own needs root for DHCP and TFTP", "run the authority as root")


def _external(pid_file: Path) -> Finding:
    try:
        pid = int(pid_file.read_text(encoding="ascii"))
        os.kill(pid, 0)
    except (OSError, ValueError) as error:
        advice = "start that dnsmasq, and let the authority's user read its pid file"
        return Finding("dnsmasq", "missing", f"{pid_file}: {error}", advice)
    return Finding("dnsmasq", "ok", f"runs with the process id {pid}")


def _artifacts(settings: BareMetalSettings) -> Iterator[tuple[str, Artifact]]:
    for name, image in settings.images.items():
        match image:
            case DiskImage():
                yield f"image {name}: disk", image.disk
            case NetbootImage():
                yield f"image {name}: kernel", image.kernel
                yield f"image {name}: initrd", image.initrd
