"""Debian packages that system tests use: installed when they are missing, without starting any service.

Where they can't be (no root, no Debian), a test that needs them is skipped; on CI (``CI=true``) it fails.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import pytest

INSTALL_WITHIN = 900
POLICY = Path("/usr/sbin/policy-rc.d")

LIBVIRT = (
    "qemu-system-x86",
    "qemu-utils",
    "ipxe-qemu",
    "seabios",
    "libvirt-daemon-system",
    "libvirt-clients",
    "linux-image-cloud-amd64",
    "busybox-static",
    "dropbear-bin",
    "openssh-client",
    "qemu-guest-agent",
    "genisoimage",
    "iproute2",
)
"""What tests with virtual machines need."""

BMC = ("ipmitool", "libvirt-dev", "pkg-config", "gcc", "python3-venv")
"""What tests with controllers of machines need, beside :data:`LIBVIRT`."""

BAREMETAL = (
    "dnsmasq-base",
    "busybox-static",
    "dropbear-bin",
    "fdisk",
    "kmod",
    "iproute2",
    "genisoimage",
    "openssh-client",
)
"""What the bare-metal driver needs."""

BOOT_LOADER = ("syslinux", "syslinux-common", "mtools", "dosfstools")
"""What makes a disk that a machine starts from."""

NETWORK = ("iproute2",)
"""What tests with network namespaces and shaped traffic need."""


DIRECTORY = ("dnsmasq-base", "slapd")
"""What tests of names and of LDAP need."""

FAKETIME = ("faketime",)
"""What tests of a machine's clock that is set need."""

SSH = ("dropbear-bin", "openssh-client", "ansible-core")
"""What tests of a guest's scripts on units need."""


CHROMIUM = ("chromium-headless-shell", "fonts-dejavu", "gcc", "libc6-dev")
"""What tests of the web pages need, beside Playwright."""

OPENID = ("glewlwyd",)
"""What tests of OpenID Connect need."""

PROMETHEUS = ("prometheus",)
"""What tests of metrics need: promtool comes with it."""


def require(packages: Sequence[str]) -> None:
    """Have ``packages`` installed, or skip the test (fail it on CI)."""
    with _one_at_a_time():
        _install([name for name in packages if not _is_installed(name)])


def _install(missing: Sequence[str]) -> None:
    if not missing:
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        unavailable(f"needs the packages {' '.join(missing)}, and can't install them here")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    with _no_services():
        for command in (["update"], ["install", "-y", "--no-install-recommends", *missing]):
            done = subprocess.run(
                ["apt-get", "-q", *command],
                env=environment, capture_output=True, text=True, timeout=INSTALL_WITHIN, check=False,
            )  # fmt: skip
            if done.returncode:
                unavailable(f"apt-get {' '.join(command)} failed: {done.stdout[-500:]}{done.stderr[-1500:]}")


def require_root() -> None:
    """Skip the test where it can't make bridges, namespaces and control groups (fail it on CI)."""
    if os.geteuid() != 0:
        unavailable("needs the superuser's rights")


def unavailable(why: str) -> NoReturn:
    """The test can't be run here: that is a failure on CI."""
    if os.environ.get("CI", "").lower() == "true":
        pytest.fail(why)
    pytest.skip(why)


def _is_installed(package: str) -> bool:
    command = ["dpkg-query", "-W", "-f", "${db:Status-Status}", package]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout == "installed"
    except FileNotFoundError:
        return False


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Tests run in several processes, and apt-get in one."""
    with (Path(tempfile.gettempdir()) / "leasekit-packages.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def _no_services() -> Iterator[None]:
    """Packages ask the policy whether they may start what they bring; what was there stays there."""
    if POLICY.exists():
        yield
        return
    POLICY.write_text("#!/bin/sh\nexit 101\n")
    POLICY.chmod(0o755)
    try:
        yield
    finally:
        POLICY.unlink(missing_ok=True)
