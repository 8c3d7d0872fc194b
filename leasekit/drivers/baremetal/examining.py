"""What `leasekit site doctor` looks at for bare metal: programs, rights, the boot network, images and controllers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from http.client import HTTPException
from pathlib import Path
from typing import Final
from urllib.request import urlopen

import trio

from leasekit.core.drivers import DriverError, Finding
from leasekit.drivers.baremetal.dnsmasq import FIRMWARE, OwnedDnsmasq, boot_script
from leasekit.drivers.baremetal.environment import find_kernel, lacks
from leasekit.drivers.baremetal.services import is_here
from leasekit.drivers.baremetal.settings import (
    BareMetalSettings,
    BootArtifact,
    BootNetwork,
    DiskImage,
    Environment,
    External,
    NetbootImage,
    Owned,
)  # fmt: skip
from leasekit.drivers.dnsmasq import dnsmasq_of
from leasekit.drivers.examining import (
    checksummed,
    free_port,
    interface,
    iso_maker,
    may_signal,
    missing_capabilities,
    program,
    shared_folder,
    writable,
)  # fmt: skip
from leasekit.drivers.names import one_line
from leasekit.drivers.power.make import examine_controllers

SEARCH: Final = "/usr/sbin:/usr/bin:/sbin:/bin"
PROGRAMS: Final = {"busybox": "busybox-static", "sfdisk": "fdisk", "modprobe": "kmod"}
"""What the imaging environment is made of, and the packages that have it."""
DHCP_PORT: Final = 67
SERVED_WITHIN: Final = 5
"""Seconds for the answer of a daemon that has the port."""
RIGHTS: Final = {10: "CAP_NET_BIND_SERVICE", 12: "CAP_NET_ADMIN"}
"""What dnsmasq may not do without (``man 7 capabilities``)."""


async def examine(settings: BareMetalSettings) -> list[Finding]:
    """What there is of what nodes need; nothing is started or switched."""
    found = [program(name, package, SEARCH) for name, package in PROGRAMS.items()]
    if any(isinstance(image, DiskImage) and image.seed == "nocloud" for image in settings.images.values()):
        found.append(iso_maker())
    found += [_kernel(settings.environment), writable("directory", settings.directory, make=True)]
    found += [interface(settings.network.interface, "the boot network"), _address(settings.network)]
    found.append(await trio.to_thread.run_sync(_served, settings.network))
    dnsmasq = settings.network.dnsmasq
    if isinstance(dnsmasq, Owned):
        found += [program("dnsmasq", "dnsmasq-base", SEARCH), _rights(), *_firmware(dnsmasq)]
        found.append(_dhcp(OwnedDnsmasq(dnsmasq, settings.network, settings.directory / "dnsmasq"), settings.network))
    else:
        found += _external(dnsmasq)
    for what, artifact in _artifacts(settings):
        found.append(await trio.to_thread.run_sync(checksummed, what, artifact.file, artifact.sha256))
    return found + await examine_controllers({name: node.power for name, node in settings.nodes.items()})


def _kernel(environment: Environment) -> Finding:
    what = "kernel of the imaging environment"
    if environment.kernel is not None and not environment.kernel.is_file():
        return Finding(what, "missing", f"there is no {environment.kernel}", "correct environment.kernel")
    try:
        kernel = find_kernel(environment)
        missing = lacks(kernel, environment.loaded)
    except DriverError as error:
        advice = "apt-get install linux-image-amd64, which has most modules, or name one: environment.kernel"
        return Finding(what, "missing", str(error), advice)
    if missing is None:
        text = f"{kernel} has no modules here: what nodes need must be built in"
        return Finding(what, "doubtful", text, "look whether it has the drivers of the nodes' cards and disks")
    if missing:
        text = f"{kernel} lacks {', '.join(missing)}"
        advice = "say which modules the nodes' cards and disks need (environment.modules), or apt-get install "
        return Finding(what, "doubtful", text, f"{advice}linux-image-amd64, which has all of these")
    return Finding(what, "ok", f"{kernel} has {', '.join(environment.modules) or 'all usual network cards and disks'}")


def _rights() -> Finding:
    missing = missing_capabilities(RIGHTS)
    if not missing:
        return Finding("rights", "ok", "dnsmasq may answer DHCP")
    text = f"dnsmasq of its own needs {' and '.join(missing)} for DHCP and TFTP"
    return Finding("rights", "missing", text, "run the authority as root, or with these, inherited and ambient")


def _address(network: BootNetwork) -> Finding:
    what = f"address {network.address} of the boot network"
    if is_here(network.address):
        return Finding(what, "ok", "this machine has it")
    prefix = network.networks()[0].prefixlen
    advice = f"ip addr add {network.address}/{prefix} dev {network.interface}, or correct network.address"
    return Finding(what, "missing", "this machine does not have it", advice)


def _dhcp(dnsmasq: OwnedDnsmasq, network: BootNetwork) -> Finding:
    what = f"DHCP on {network.interface}"
    try:
        if dnsmasq.runs():
            return Finding(what, "ok", "the driver's dnsmasq runs")
    except DriverError as error:
        return Finding(what, "missing", str(error), "let the authority's user read it")
    return free_port(what, "0.0.0.0", DHCP_PORT, udp=True, device=network.interface)


def _served(network: BootNetwork) -> Finding:
    """Whether nodes can be served at the driver's port, or are already; blocks."""
    found = free_port("port for nodes", network.address, network.port)
    if found.verdict == "ok":
        return found
    try:
        with urlopen(f"{network.url}/boot.ipxe", timeout=SERVED_WITHIN) as answer:
            if answer.read() == boot_script(network.url).encode():
                return Finding(found.what, "ok", f"the authority's daemon serves nodes at {network.address}")
    except (OSError, HTTPException):
        return found
    return found


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


def _external(dnsmasq: External) -> Iterator[Finding]:
    advice = "start that dnsmasq, and let the authority's user read its pid file"
    state = None
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
            yield may_signal("dnsmasq", state.pid)
    reader = os.getpid() if state is None else state.pid
    yield shared_folder("dnsmasq's hosts", dnsmasq.hosts, reader)
    if dnsmasq.names is not None:
        yield shared_folder("dnsmasq's names", dnsmasq.names, reader)
    if dnsmasq.leases is not None and not os.access(dnsmasq.leases, os.R_OK):
        yield Finding("dnsmasq's leases", "missing", f"can't read {dnsmasq.leases}", "correct network.dnsmasq.leases")


def _artifacts(settings: BareMetalSettings) -> Iterator[tuple[str, BootArtifact]]:
    for name, image in settings.images.items():
        match image:
            case DiskImage():
                yield f"image {name}: disk", image.disk
            case NetbootImage():
                yield f"image {name}: kernel", image.kernel
                yield f"image {name}: initrd", image.initrd
