"""Debian packages that system tests use: installed when they are missing, without starting any service.

Where they can't be (no root, no Debian), a test that needs them is skipped; on CI (``CI=true``) it fails.
"""

from __future__ import annotations

import os
import shutil
import subprocess
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


def require(packages: Sequence[str]) -> None:
    """Have ``packages`` installed, or skip the test (fail it on CI)."""
    missing = [name for name in packages if not _is_installed(name)]
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
