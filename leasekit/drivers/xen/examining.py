"""What `leasekit site doctor` looks at for guests of Xen: ssh, `xl`, the scheduler, memory, room, consoles, images."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from typing import Final

import trio

from leasekit.core.drivers import DriverError, Finding
from leasekit.drivers.examining import any_missing, iso_maker, program
from leasekit.drivers.libvirt.examining import to_be_brought
from leasekit.drivers.names import one_line
from leasekit.drivers.xen import scripts
from leasekit.drivers.xen.listing import read_facts
from leasekit.drivers.xen.place import SCHEDULERS, XenPlace
from leasekit.drivers.xen.settings import XenSettings

ROOM_MIN: Final = 1024
"""With less free in a host's folder, in MiB, it is doubtful whether units fit."""
PACKAGES: Final = {
    "flock": "util-linux",
    "sha256sum": "coreutils",
    "shred": "coreutils",
    "truncate": "coreutils",
    "qemu-img": "qemu-utils",
    "pygrub": "xen-utils-4.17",
}
"""The Debian packages of what the control domain has to have."""
LOGIN_ADVICE: Final = "log in by hand with the same key: ssh -i IDENTITY USER@ADDRESS xl info; compare host_key, too"


async def examine(settings: XenSettings) -> list[Finding]:
    """What there is of what units need, here and in each control domain."""
    findings = [program(settings.ssh, "openssh-client", os.environ.get("PATH", os.defpath))]
    if any_missing(findings):
        return findings
    if any(image.seed == "nocloud" for image in settings.images.values()):
        findings.append(iso_maker())
    for name, image in settings.images.items():
        for part, artifact in image.artifacts().items():
            findings.append(await trio.to_thread.run_sync(to_be_brought, f"image {name}: {part}", artifact))
    for name, host in settings.hosts.items():
        findings += [finding async for finding in _host(XenPlace(name, host, settings), settings)]
    return findings


async def _host(place: XenPlace, settings: XenSettings) -> AsyncIterator[Finding]:
    what, host = f"host {place.name}", place.host
    if not os.access(host.identity, os.R_OK):
        path = one_line(str(host.identity))
        advice = f"ssh-keygen -t ed25519 -f {path}, and its .pub into ~{host.user}/.ssh/authorized_keys there"
        yield Finding(what, "missing", f"can't read the private key {path}", advice)
        return
    bridge = settings.network.bridge if settings.network is not None else "-"
    try:
        said = await place.control.call("can't look at it", scripts.LOOK, host.xl, host.folder, bridge)
    except DriverError as error:
        yield Finding(what, "missing", str(error), LOGIN_ADVICE)
        return
    told, room, programs, bridged, consoled = (*said.split(f"\n{scripts.MARK}\n"), "", "", "", "", "")[:5]
    facts = read_facts(told)
    if "xen_version" not in facts:
        text = f"{host.user}@{host.address} can be reached, but {host.xl} info says nothing of Xen there"
        advice = "boot Xen and its control domain (apt-get install xen-system-amd64), and log in as root"
        yield Finding(what, "missing", text, advice)
        return
    yield Finding(what, "ok", f"{host.user}@{host.address}, Xen {facts['xen_version']}")
    yield _scheduler(what, facts, settings)
    yield _memory(what, facts, settings)
    yield _room(what, room, host.folder)
    for finding in _programs(what, programs.split(), settings):
        yield finding
    if settings.network is not None:
        yield _bridge(what, bridge, bool(bridged.strip()))
    if settings.shared:
        for finding in _page_logs(what, facts, settings):
            yield finding
        for name, other in settings.hosts.items():
            if name != place.name and other.migration:
                yield await _handing_over(place, name, other.migration)
    if any(image.ready == "console" for image in settings.images.values()):
        yield _consoles(what, consoled, host.console)


def _scheduler(what: str, facts: dict[str, str], settings: XenSettings) -> Finding:
    found = facts.get("xen_scheduler", "unknown")
    if found in SCHEDULERS:
        return Finding(f"{what}: scheduler", "ok", f"{found}, which knows caps and weights")
    wanted = settings.size.cap or settings.size.shares or settings.choices.cap or settings.choices.shares
    advice = "add sched=credit2 to the hypervisor's command line (GRUB_CMDLINE_XEN) and boot it again"
    return Finding(f"{what}: scheduler", "missing" if wanted else "doubtful", f"{found} has no caps", advice)


def _memory(what: str, facts: dict[str, str], settings: XenSettings) -> Finding:
    free = int(facts.get("free_memory", "0"))
    text = f"{free} MiB are free of {facts.get('total_memory', '?')}"
    if free < settings.size.memory_mb:
        advice = "bound the control domain's memory on the hypervisor's command line: dom0_mem=1G,max:1G"
        return Finding(f"{what}: memory", "doubtful", f"{text}: too few for one unit", advice)
    return Finding(f"{what}: memory", "ok", text)


def _room(what: str, line: str, folder: str) -> Finding:
    words = line.split()
    if len(words) < 4 or not words[3].isdecimal():
        return Finding(f"{what}: folder", "doubtful", f"{folder} is not there yet", "it is made with the first unit")
    free = int(words[3]) // 1024
    text = f"{free} MiB free in {folder}"
    if free < ROOM_MIN:
        return Finding(f"{what}: folder", "doubtful", text, f"make room: {ROOM_MIN} MiB are wanted")
    return Finding(f"{what}: folder", "ok", text)


def _programs(what: str, missing: list[str], settings: XenSettings) -> Iterator[Finding]:
    needed = {"flock", "sha256sum", "shred", "truncate"}
    for image in settings.images.values():
        if image.disk is not None and (image.format == "qcow2" or image.clone == "overlay"):
            needed.add("qemu-img")
        if image.kernel is None and image.type != "hvm":
            needed.add("pygrub")
    for name in sorted(needed & set(missing)):
        yield Finding(f"{what}: program {name}", "missing", "it is not there", f"apt-get install {PACKAGES[name]}")


def _bridge(what: str, name: str, there: bool) -> Finding:
    if there:
        return Finding(f"{what}: bridge {name}", "ok", "the bridge is there")
    advice = f"in the control domain: ip link add {name} type bridge && ip link set {name} up"
    return Finding(f"{what}: bridge {name}", "missing", "there is no such bridge in the control domain", advice)


def _page_logs(what: str, facts: dict[str, str], settings: XenSettings) -> Iterator[Finding]:
    """Whether guests of the site's types can move while they run (XEN_SYSCTL_PHYSCAP_hap and _shadow, Xen 4.13)."""
    there = set(facts.get("virt_caps", "").split())
    for type_ in sorted({image.type for image in settings.images.values()}):
        which = f"{what}: moving {type_} guests"
        if there & ({"shadow"} if type_ == "pv" else {"hap", "shadow"}):
            yield Finding(which, "ok", "Xen can log the pages that they write to")
        else:
            text = "Xen can't log the pages that they write to, so they can't move while they run"
            advice = 'give images type = "pvh"' if "hap" in there else "it takes nested page tables, or shadow paging"
            yield Finding(which, "doubtful", text, advice)


async def _handing_over(place: XenPlace, name: str, login: str) -> Finding:
    what = f"host {place.name}: handing over to host {name}"
    try:
        await place.control.call("can't log in to it", scripts.LOOK_OVER, login)
    except DriverError as error:
        advice = f"in the control domain of {place.name}: ssh {login} xl info, which must ask nothing"
        return Finding(what, "missing", str(error), advice)
    return Finding(what, "ok", f"its control domain can log in to {login}")


def _consoles(what: str, command: str, folder: str) -> Finding:
    if "--log=guest" in command or "--log=all" in command:
        return Finding(f"{what}: consoles", "ok", f"xenconsoled logs guests, which is looked for in {folder}")
    advice = 'set XENCONSOLED_ARGS="--log=guest" in /etc/default/xen and start xenconsoled again'
    return Finding(f"{what}: consoles", "missing", "xenconsoled does not log what guests write", advice)
