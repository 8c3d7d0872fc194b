"""What a unit is to be, worked out before anything is touched, and the file from which `xl create` makes its domain.

The rules of plans are the libvirt driver's: names of hosts, addresses and files are never taken from properties.

Its syntax is that of tools/libs/util/libxlu_cfg_l.l in Xen: a string stands between quotes, and a backslash begins an
escape. What a guest may choose never gets here as text: names are checked for what they may be, sizes are numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from uuid import UUID

import attrs

from leasekit.core.drivers import DriverError, UnitContext
from leasekit.drivers.libvirt.plan import UnitPlan, plan_of
from leasekit.drivers.libvirt.settings import Choices, Size
from leasekit.drivers.names import check_printable
from leasekit.drivers.xen.settings import DomainType, XenSettings

_NAMESPACE: Final = UUID("3c9a2a52-0a5d-4a86-a1b1-5f0d3b7e6d44")


def make_plan(unit: UnitContext, settings: XenSettings) -> UnitPlan:
    """The plan for a unit. Raises ``DriverError``."""
    check_printable(unit.lease, unit.type)
    # In the range of Xen's own.
    return plan_of(unit, settings, lambda size: _most(size, settings.choices), namespace=_NAMESPACE, vendor="00:16:3e:")


def _most(size: Size, choices: Choices) -> Size:
    allowed = {key: getattr(choices, key) or (0, 0) for key in ("vcpus", "memory_mb")}
    return attrs.evolve(size, **{key: max(getattr(size, key), most) for key, (_, most) in allowed.items()})


@attrs.frozen(kw_only=True)
class Files:
    """Where a unit's files are in the control domain; empty: it has none of that kind."""

    disk: str = ""
    disk_format: str = "raw"
    seed: str = ""
    kernel: str = ""
    initrd: str = ""


def quoted(text: str) -> str:
    """``text`` as a string of `xl`'s. Raises ``DriverError`` for text with control characters, which none of them has
    a use for.
    """
    if not text.isprintable():
        raise DriverError(f"found {text[:80]!a}, expected one line of printable text", retry=False)
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def document(name: str, plan: UnitPlan, type_: DomainType, files: Files, bridge: str) -> str:
    """The configuration of the domain ``name``. Raises ``DriverError``."""
    numbers = {
        "vcpus": plan.size.vcpus,
        "maxvcpus": plan.most.vcpus,
        "memory": plan.size.memory_mb,
        "maxmem": plan.most.memory_mb,
        **_scheduling(plan),
    }
    texts = {"name": name, "uuid": plan.uuid, "type": type_, **_start(plan, type_, files)}
    # A guest that ends is gone, so that its end is seen; one that reboots itself goes on.
    texts |= {"on_poweroff": "destroy", "on_crash": "destroy", "on_reboot": "restart"}
    lists = {"disk": _disks(files), "vif": [f"mac={plan.mac},bridge={bridge}"] if bridge else []}
    lines = [f"{key} = {quoted(text)}" for key, text in texts.items() if text]
    lines += [f"{key} = {number}" for key, number in numbers.items()]
    lines += [f"{key} = [ {', '.join(map(quoted, several))} ]" for key, several in lists.items()]
    return "\n".join(lines) + "\n"


def _scheduling(plan: UnitPlan) -> Mapping[str, int]:
    found = {"cap": plan.size.cap, "cpu_weight": plan.size.shares}
    return {key: number for key, number in found.items() if number}


def _start(plan: UnitPlan, type_: DomainType, files: Files) -> Mapping[str, str]:
    if files.kernel:
        return {"kernel": files.kernel, "ramdisk": files.initrd, "cmdline": plan.image.command_line}
    return {"bootloader": "pygrub"} if type_ != "hvm" else {"serial": "pty"}


def _disks(files: Files) -> list[str]:
    # The rest of the text after `target=` is the path, whatever is in it.
    disks = [f"format={files.disk_format},vdev=xvda,access=rw,target={files.disk}"] if files.disk else []
    return disks + ([f"format=raw,vdev=xvdb,access=ro,target={files.seed}"] if files.seed else [])
