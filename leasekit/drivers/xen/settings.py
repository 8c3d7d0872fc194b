"""What a site says of its Xen hosts, images, network and sizes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final, Literal, TypeAlias

import attrs

from leasekit.core.settings import DurationSetting, expecting, resolved
from leasekit.core.time import MINUTE, SECOND
from leasekit.drivers.libvirt.settings import Image, ImageArtifact, MachineSettings
from leasekit.drivers.names import USER

DomainType: TypeAlias = Literal["pv", "pvh", "hvm"]

_ADDRESS: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.:-]{0,251}[A-Za-z0-9])?")
_HOST_KEY: Final = r"(ssh-ed25519|ssh-rsa|ecdsa-sha2-nistp(256|384|521)) [A-Za-z0-9+/]{40,2000}={0,2}( .*)?"
_LOGIN: Final = re.compile(rf"({USER.pattern}@)?{_ADDRESS.pattern}")
_POSITIVE: Final = attrs.validators.ge(1)


def _absolute(_: object, __: attrs.Attribute[str], value: str) -> None:
    parts = value.split("/")
    if not value.startswith("/") or ".." in parts or len(parts) < 3 or not value.isprintable() or "," in value:
        raise ValueError("expected an absolute path of at least two parts, without `..`, commas and control characters")


_program: Final = expecting(
    "a program: a name, or a path", lambda value: value and value.isprintable() and not value.startswith("-")
)


@attrs.frozen(kw_only=True)
class XenHost:
    """One Xen host: where its control domain's ssh server is, and the units whose home it is (names, or patterns).

    ``identity`` is the private key that logs in as ``user``, ``host_key`` the server's public key (type and key, as in
    its ``ssh_host_ed25519_key.pub``). ``folder`` is kept in the control domain, ``xl`` is the program there, and
    ``console`` is where xenconsoled logs (``--log=guest``). ``migration`` is what other hosts' control domains reach
    this one by when they hand over a unit: ``[USER@]HOST``.
    """

    address: str = attrs.field(validator=attrs.validators.matches_re(_ADDRESS))
    identity: Path
    host_key: str = attrs.field(validator=attrs.validators.matches_re(_HOST_KEY))
    port: int = attrs.field(default=22, validator=[_POSITIVE, attrs.validators.le(65535)])
    user: str = attrs.field(default="root", validator=attrs.validators.matches_re(USER))
    units: tuple[str, ...] = ("*",)
    folder: str = attrs.field(default="/var/lib/leasekit/xen", validator=_absolute)
    console: str = attrs.field(default="/var/log/xen/console", validator=_absolute)
    xl: str = attrs.field(default="xl", validator=_program)
    migration: str = ""

    def __attrs_post_init__(self) -> None:
        if self.migration and _LOGIN.fullmatch(self.migration) is None:
            raise ValueError(f"migration: found {self.migration[:60]!r}, expected USER@HOST or HOST")

    def takes(self, unit: str) -> bool:
        """Whether the unit is at home here."""
        return any(fnmatchcase(unit, pattern) for pattern in self.units)


@attrs.frozen(kw_only=True)
class XenImage(Image):
    """What a guest boots: a root ``disk``, or a ``kernel`` with or without disk; without a kernel a guest of ``type``
    ``pv`` or ``pvh`` is started by pygrub.

    ``clone`` says how a unit gets its disk: a raw ``copy``, which the kernel serves, or a qcow2 ``overlay``, made at
    once, which needs Xen's QEMU in the control domain. The other keys are those of the libvirt driver's images.
    """

    type: DomainType = "pv"
    format: Literal["qcow2", "raw"] = "raw"
    clone: Literal["copy", "overlay"] = "copy"
    ready: Literal["console", "ssh", "running"] = "ssh"
    agent: bool = resolved(False)

    def __attrs_post_init__(self) -> None:
        for name, artifact in self.artifacts().items():
            if artifact.volume:
                raise ValueError(f"{name}: found volume {artifact.volume[:60]!r}, expected a file or a url")
        super().__attrs_post_init__()

    def artifacts(self) -> dict[str, ImageArtifact]:
        """The files of which the image is made, by their keys."""
        found = {"disk": self.disk, "kernel": self.kernel, "initrd": self.initrd}
        return {name: artifact for name, artifact in found.items() if artifact is not None}


@attrs.frozen(kw_only=True)
class XenSettings(MachineSettings):
    """The settings of machines on Xen.

    With ``shared`` all hosts see the same files in their folders, as migration needs it. ``ssh`` is the program that
    reaches control domains; ``sessions`` bounds the commands under way at one host, ``reply_timeout`` how long a short
    one may take, ``copy_timeout`` one that moves a disk or a memory.
    """

    hosts: Mapping[str, XenHost] = attrs.field(validator=attrs.validators.min_len(1))
    images: Mapping[str, XenImage] = attrs.field(validator=attrs.validators.min_len(1))
    shared: bool = False
    ssh: str = attrs.field(default="ssh", validator=_program)
    sessions: int = attrs.field(default=8, validator=_POSITIVE)
    connect_timeout: DurationSetting = 15 * SECOND
    reply_timeout: DurationSetting = 2 * MINUTE
    copy_timeout: DurationSetting = 30 * MINUTE
    start_timeout: DurationSetting = 2 * MINUTE

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        if not self.prefix.isascii():
            raise ValueError(f"prefix: found {self.prefix!r}, expected letters, digits, dots, dashes and underscores")
        if self.network is not None and (self.network.network or self.network.filter):
            raise ValueError("network: expected a bridge, and no network or filter, which are libvirt's")
        if self.network is not None and self.network.block:
            raise ValueError(
                "network: found block and book, expected none: addresses are by number (first) or by table (addresses)"
            )
