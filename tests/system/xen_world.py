"""What tests of the xen driver with a real Xen share: settings, units, what is left of them, and how long it took."""

from __future__ import annotations

import time
from typing import Any

from system.real_xen import CONSOLES, FOLDER, RealXen

from leasekit.core.drivers import UnitContext
from leasekit.drivers.registry import make_driver
from leasekit.drivers.xen.driver import XenDriver


def left(xen: RealXen) -> list[str]:
    listed = xen.run(f"xl list | tail -n +3; ls -A {FOLDER}/units 2>/dev/null; ls {CONSOLES} | grep leasekit-; true")
    return listed.splitlines()


def settings(xen: RealXen, **changes: Any) -> dict[str, Any]:
    disk = xen.artifact("disk.raw", b"pristine".ljust(4 * 2**20, b"\0"))
    return {
        "hosts": {"one": xen.host()},
        "images": {
            "tiny": xen.image(),
            "copied": xen.image(seed="nocloud", disk=disk, disk_mb=8, ready="console"),
            "overlaid": xen.image(disk=disk, clone="overlay"),
            "moving": xen.image(type="pvh", disk=disk),
            "hang": xen.image("tiny.hang", ready="console"),
            "off": xen.image("tiny.off"),
        },
        "image": "tiny",
        "network": {"bridge": "br0", "subnets": [f"{xen.address.rpartition('.')[0]}.0/24"]},
        "size": {"memory_mb": 160},
        "choices": {"vcpus": [1, 2], "memory_mb": [128, 160], "cap": [0, 200], "shares": [0, 4096]},
        "start_timeout": "4m",
        **changes,
    }


def driver_of(xen: RealXen, **changes: Any) -> XenDriver:
    made = make_driver("xen", settings(xen, **changes), "xen")
    assert isinstance(made, XenDriver)
    return made


def unit(xen: RealXen, name: str = "u1", op: str = "setup", number: int = 1, **properties: str) -> UnitContext:
    given = {"slice.key": xen.public, **properties}
    return UnitContext(unit=name, type="vm", lease="lease-1", op=op, number=number, properties=given, log=print)


class Watch:
    """How long the parts of a test took, for the report at the end."""

    def __init__(self, xen: RealXen, stage: str) -> None:
        self.xen, self.stage = xen, stage

    def __enter__(self) -> None:
        self.began = time.monotonic()

    def __exit__(self, *_: object) -> None:
        self.xen.seconds[self.stage] = time.monotonic() - self.began
