"""The XML that libvirt is given: built as trees, so that no text can become markup."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

import attrs

from leasekit.drivers.libvirt.plan import UnitPlan
from leasekit.drivers.libvirt.record import KEY, URN, LibvirtRecord
from leasekit.drivers.libvirt.settings import NetworkSettings
from leasekit.drivers.names import bare

CAP_PERIOD: Final = 100_000
"""Microseconds over which a cap holds."""
ROOT_MODE: Final = "0600"

ElementTree.register_namespace(KEY, URN)


@attrs.frozen(kw_only=True)
class Paths:
    """Where a unit's files are on its host; empty where it has none of a kind."""

    disk: str = ""
    seed: str = ""
    kernel: str = ""
    initrd: str = ""
    console: str = ""


@attrs.frozen
class DomainMachine:
    """What a host offers: libvirt's name for its kind of domain, ``qemu``, ``kvm`` or ``test``."""

    kind: str

    @property
    def qemu(self) -> bool:
        """Whether QEMU is behind it: there is none behind libvirt's own test driver."""
        return self.kind != "test"


def _text(element: Element) -> str:
    return ElementTree.tostring(element, encoding="unicode")


def _child(parent: Element, tag: str, text: object = None, attributes: Mapping[str, object] | None = None) -> Element:
    made = SubElement(parent, tag, {name: str(value) for name, value in (attributes or {}).items()})
    if text is not None:
        made.text = str(text)
    return made


def domain_xml(
    name: str,
    plan: UnitPlan,
    record: LibvirtRecord,
    machine: DomainMachine,
    paths: Paths,
    network: NetworkSettings | None,
) -> str:
    """The domain of a unit, called ``name``."""
    root = Element("domain", {"type": machine.kind})
    _child(root, "name", name)
    _child(root, "uuid", plan.uuid)
    _child(root, "metadata").append(record.element())
    _child(root, "memory", plan.most.memory_mb, {"unit": "MiB"})
    _child(root, "currentMemory", plan.size.memory_mb, {"unit": "MiB"})
    _child(root, "vcpu", plan.most.vcpus, {"placement": "static", "current": plan.size.vcpus})
    _tune(root, plan, machine)
    _boot(root, plan, paths)
    features = _child(root, "features")
    for feature in ("acpi", "apic", "pae"):
        _child(features, feature)
    if machine.kind == "kvm":
        _child(root, "cpu", None, {"mode": "host-model"})
    _child(root, "clock", None, {"offset": "utc"})
    for event, action in (("poweroff", "destroy"), ("reboot", "restart"), ("crash", "destroy")):
        _child(root, f"on_{event}", action)
    _devices(_child(root, "devices"), plan, machine, paths, network)
    return _text(root)


def _tune(root: Element, plan: UnitPlan, machine: DomainMachine) -> None:
    if machine.qemu and (plan.size.cap or plan.size.shares):
        tune = _child(root, "cputune")
        if plan.size.shares:
            _child(tune, "shares", plan.size.shares)
        if plan.size.cap:
            _child(tune, "global_period", CAP_PERIOD)
            _child(tune, "global_quota", cap_quota(plan.size.cap))


def cap_quota(cap: int) -> int:
    """The microseconds of CPU time for each :data:`CAP_PERIOD`; -1 for no cap. QEMU takes no fewer than 1000."""
    return max(1000, cap * CAP_PERIOD // 100) if cap else -1


def _boot(root: Element, plan: UnitPlan, paths: Paths) -> None:
    os = _child(root, "os")
    _child(os, "type", "hvm")
    if paths.kernel:
        _child(os, "kernel", paths.kernel)
        if paths.initrd:
            _child(os, "initrd", paths.initrd)
        _child(os, "cmdline", plan.image.command_line)
    else:
        _child(os, "boot", None, {"dev": "hd"})


def _devices(
    devices: Element, plan: UnitPlan, machine: DomainMachine, paths: Paths, network: NetworkSettings | None
) -> None:
    if paths.disk:
        disk = _child(devices, "disk", None, {"type": "file", "device": "disk"})
        _child(disk, "driver", None, {"name": "qemu", "type": "qcow2"})
        _child(disk, "source", None, {"file": paths.disk})
        _child(disk, "target", None, {"dev": "vda", "bus": "virtio"})
    if paths.seed:
        # Not as a CD-ROM drive: a guest that can reach its root disk can reach this as well, whatever else it lacks.
        seed = _child(devices, "disk", None, {"type": "file", "device": "disk"})
        _child(seed, "driver", None, {"name": "qemu", "type": "raw"})
        _child(seed, "source", None, {"file": paths.seed})
        _child(seed, "target", None, {"dev": "vdb", "bus": "virtio"})
        _child(seed, "readonly")
    if network is not None:
        _interface(devices, plan, network)
    if machine.qemu:
        _qemu_devices(devices, plan, paths)


def _qemu_devices(devices: Element, plan: UnitPlan, paths: Paths) -> None:
    if paths.console:
        serial = _child(devices, "serial", None, {"type": "file"})
        _child(serial, "source", None, {"path": paths.console})
        _child(serial, "target", None, {"port": 0})
    if plan.image.agent:
        channel = _child(devices, "channel", None, {"type": "unix"})
        _child(channel, "target", None, {"type": "virtio", "name": "org.qemu.guest_agent.0"})
    _child(devices, "memballoon", None, {"model": "virtio"})
    # A guest that has just been made has no randomness of its own, and needs some for its first connections.
    rng = _child(devices, "rng", None, {"model": "virtio"})
    _child(rng, "backend", "/dev/urandom", {"model": "random"})


def _interface(devices: Element, plan: UnitPlan, network: NetworkSettings) -> None:
    kind, name = ("bridge", network.bridge) if network.bridge else ("network", network.network)
    interface = _child(devices, "interface", None, {"type": kind})
    _child(interface, "mac", None, {"address": plan.mac})
    _child(interface, "source", None, {kind: name})
    _child(interface, "model", None, {"type": "virtio"})
    if network.filter:
        reference = _child(interface, "filterref", None, {"filter": network.filter})
        for address in plan.addresses:
            version = "IPV6" if ":" in address else "IP"
            _child(reference, "parameter", None, {"name": version, "value": bare(address)})


def kept_xml(name: str, record: LibvirtRecord, machine: DomainMachine) -> str:
    """A domain that is never started, and only carries the record of a unit that is kept."""
    root = Element("domain", {"type": machine.kind})
    _child(root, "name", name)
    _child(root, "title", f"kept of unit {record.unit}, to go on from")
    _child(root, "metadata").append(record.element())
    _child(root, "memory", 1, {"unit": "MiB"})
    _child(_child(root, "os"), "type", "hvm")
    return _text(root)


def resumed_xml(xml: str, record: LibvirtRecord, plan: UnitPlan, machine: DomainMachine) -> str:
    """What libvirt wrote of a domain beside its memory, with another record, cap and shares."""
    root = ElementTree.fromstring(xml)
    for tag in ("metadata", "cputune"):
        for element in root.findall(tag):
            root.remove(element)
    _child(root, "metadata").append(record.element())
    _tune(root, plan, machine)
    return _text(root)


def volume_xml(name: str, size: int, *, format: str = "raw", backing: tuple[str, str] | None = None) -> str:
    """A volume of ``size`` bytes that takes no room yet; ``backing`` is the path and format of what it is laid over."""
    root = Element("volume", {"type": "file"})
    _child(root, "name", name)
    _child(root, "capacity", size, {"unit": "bytes"})
    _child(root, "allocation", 0, {"unit": "bytes"})
    target = _child(root, "target")
    _child(target, "format", None, {"type": format})
    _child(_child(target, "permissions"), "mode", ROOT_MODE)
    if backing is not None:
        below = _child(root, "backingStore")
        _child(below, "path", backing[0])
        _child(below, "format", None, {"type": backing[1]})
    return _text(root)


def pool_xml(name: str, path: str) -> str:
    """A pool of files in a folder. The folder lets QEMU's user pass, and nobody look."""
    root = Element("pool", {"type": "dir"})
    _child(root, "name", name)
    target = _child(root, "target")
    _child(target, "path", path)
    _child(_child(target, "permissions"), "mode", "0711")
    return _text(root)


def probe_xml(name: str, disk: str, console: str) -> str:
    """A domain with KVM that has a disk to boot from and a serial line, and nothing else."""
    root = Element("domain", {"type": "kvm"})
    _child(root, "name", name)
    _child(root, "memory", 16, {"unit": "MiB"})
    _child(root, "vcpu", 1)
    os = _child(root, "os")
    _child(os, "type", "hvm")
    _child(os, "boot", None, {"dev": "hd"})
    _child(root, "cpu", None, {"mode": "host-model"})
    for event in ("poweroff", "reboot", "crash"):
        _child(root, f"on_{event}", "destroy")
    devices = _child(root, "devices")
    for tag, path in (("disk", disk), ("serial", console)):
        device = _child(devices, tag, None, {"type": "file"})
        if tag == "disk":
            _child(device, "driver", None, {"name": "qemu", "type": "raw"})
            _child(device, "source", None, {"file": path})
            _child(device, "target", None, {"dev": "hda", "bus": "ide"})
        else:
            _child(device, "source", None, {"path": path})
    return _text(root)
