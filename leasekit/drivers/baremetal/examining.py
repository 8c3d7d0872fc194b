"""What `leasekit site doctor` looks at for bare metal: programs, rights, the boot network, images and controllers."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import trio

from leasekit.core.drivers import DriverError, Finding
from leasekit.drivers.baremetal.dnsmasq import FIRMWARE
from leasekit.drivers.baremetal.environment import newest_kernel
from leasekit.drivers.baremetal.server import is_here
from leasekit.drivers.baremetal.settings import (
    Artifact,
    BareMetalSettings,
    BootNetwork,
    DiskImage,
    External,
    NetbootImage,
    Owned,
)  # fmt: skip
from leasekit.drivers.dnsmasq import dnsmasq_of
from leasekit.drivers.examining import checksummed, interface, missing_capabilities, program
from leasekit.drivers.libvirt.seed import ISO_MAKERS
from leasekit.drivers.names import one_line
from leasekit.drivers.power.examining import examine_controllers

SEARCH: Final = "/usr/sbin:/usr/bin:/sbin:/bin"
PROGRAMS: Final = {"busybox": "busybox-static", "sfdisk": "fdisk"}
"""What the imaging environment is made of, and the packages that have it."""
RIGHTS: Final = {10: "CAP_NET_BIND_SERVICE", 12: "CAP_NET_ADMIN"}
"""What dnsmasq may not do without (``man 7 capabilities``)."""


async def examine(settings: BareMetalSettings) -> list[Finding]:
    """What there is of what nodes need; nothing is started or switched."""
    found = [program(name, package, SEARCH) for name, package in PROGRAMS.items()]
    if any(isinstance(image, DiskImage) and image.seed == "nocloud" for image in settings.images.values()):
        found.append(_iso_maker())
    found += [_kernel(settings), _writable("directory", settings.directory, make=True)]
    found += [interface(settings.network.interface, "the boot network"), _address(settings.network)]
    dnsmasq = settings.network.dnsmasq
    if isinstance(dnsmasq, Owned):
        found += [program("dnsmasq", "dnsmasq-base", SEARCH), _rights(), *_firmware(dnsmasq)]
    else:
        found += _external(dnsmasq)
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
    missing = missing_capabilities(RIGHTS)
    if not missing:
        return Finding("rights", "ok", "dnsmasq may answer DHCP")
    text = f"dnsmasq of its own needs {' and '.join(missing)} for DHCP and TFTP"
    return Finding("rights", "missing", text, "run the authority as root, or with these, inherited and ambient")


def _iso_maker() -> Finding:
    what = "program for CD-ROM images"
    found = next(filter(None, (shutil.which(name) for name in ISO_MAKERS)), None)
    if found is None:
        text = f'none of {", ".join(ISO_MAKERS)}, which images with seed = "nocloud" need'
        return Finding(what, "missing", text, "apt-get install genisoimage")
    return Finding(what, "ok", found)


def _address(network: BootNetwork) -> Finding:
    what = f"address {network.address} of the boot network"
    if is_here(network.address):
        return Finding(what, "ok", "this machine has it")
    prefix = network.networks()[0].prefixlen
    advice = f"ip addr add {network.address}/{prefix} dev {network.interface}, or correct network.address"
    return Finding(what, "missing", "this machine does not have it", advice)


def _firmware(dnsmasq: Owned) -> Iterator[Finding]:
    """The programs that cards without iPXE get first."""
    if dnsmasq.firmware is None:
        return
    for name in sorted(set(FIRMWARE.values())):
        path = dnsmasq.firmware / name
        if os.access(path, os.R_OK):
            yield Finding(f"firmware {name}", "ok", str(path))
        else:
            advice = "apt-get install ipxe, or correct network.dnsmasq.firmware"
            yield Finding(f"firmware {name}", "missing", f"can't read {path}", advice)


def _writable(what: str, folder: Path, *, make: bool = False) -> Finding:
    """Whether this process can write to a folder; with ``make`` it may still have to be made."""
    there = folder
    while make and not there.exists() and there != there.parent:
        there = there.parent
    if not there.is_dir():
        return Finding(what, "missing", f"{there} is no folder", "make it, or correct the path")
    if not os.access(there, os.W_OK | os.X_OK):
        return Finding(what, "missing", f"{there} can't be written to", "let the authority's user write there")
    return Finding(what, "ok", f"{folder} can be written to" if there == folder else f"{folder} can be made")


def _external(dnsmasq: External) -> Iterator[Finding]:
    advice = "start that dnsmasq, and let the authority's user read its pid file"
    try:
        state = dnsmasq_of(dnsmasq.pid_file)
        name = "" if state is None else Path(f"/proc/{state.pid}/comm").read_text("utf-8").strip()
    except (DriverError, OSError) as error:
        yield Finding("dnsmasq", "missing", str(error), advice)
    else:
        if state is None:
            yield Finding("dnsmasq", "missing", f"it does not run, as {dnsmasq.pid_file} says", advice)
        elif name != "dnsmasq":
            text = f"{dnsmasq.pid_file} names the process {state.pid}, which is {one_line(name, 40)!r}"
            yield Finding("dnsmasq", "missing", text, advice)
        else:
            yield Finding("dnsmasq", "ok", f"runs with the process id {state.pid}")
    yield _writable("dnsmasq's hosts", dnsmasq.hosts)
    if dnsmasq.names is not None:
        yield _writable("dnsmasq's names", dnsmasq.names)
    if dnsmasq.leases is not None and not os.access(dnsmasq.leases, os.R_OK):
        yield Finding("dnsmasq's leases", "missing", f"can't read {dnsmasq.leases}", "correct network.dnsmasq.leases")


def _artifacts(settings: BareMetalSettings) -> Iterator[tuple[str, Artifact]]:
    for name, image in settings.images.items():
        match image:
            case DiskImage():
                yield f"image {name}: disk", image.disk
            case NetbootImage():
                yield f"image {name}: kernel", image.kernel
                yield f"image {name}: initrd", image.initrd
