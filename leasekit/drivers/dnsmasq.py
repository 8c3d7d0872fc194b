"""A dnsmasq as a process: what starts one, finds it again, and the user that it keeps."""

from __future__ import annotations

import grp
import os
import pwd
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from leasekit.core.drivers import DriverError, SiteFaultError
from leasekit.drivers.names import one_line
from leasekit.drivers.processes import ProcessState, process_state

START_TIMEOUT: Final = 30
"""Seconds."""


def start_dnsmasq(options: Sequence[str]) -> None:
    """Has a dnsmasq run in the background, and returns when it is ready. Raises ``DriverError`` with what it says."""
    try:
        # It goes to the background when it is ready, and only then does this return with 0.
        done = subprocess.run(
            ["dnsmasq", *options],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            timeout=START_TIMEOUT, start_new_session=True, check=False,
        )  # fmt: skip
    except FileNotFoundError as error:
        raise SiteFaultError("there is no dnsmasq here (install the package dnsmasq-base)", retry=False) from error
    except subprocess.TimeoutExpired as error:
        raise SiteFaultError(f"dnsmasq did not get ready within {START_TIMEOUT}s") from error
    if done.returncode:
        said = one_line(done.stderr.decode("utf-8", "replace"), 300)
        raise SiteFaultError(f"dnsmasq can't start: {said or f'exit status {done.returncode}'}")


def own_user() -> tuple[str, str]:
    """This process's user and group, which a dnsmasq keeps: the folders that it reads may be closed to others."""
    return pwd.getpwuid(os.geteuid()).pw_name, grp.getgrgid(os.getegid()).gr_name


def own_dnsmasq(pid_file: Path, option: str) -> ProcessState | None:
    """As :func:`dnsmasq_of`, if it was started with ``option``: else another has its number by now."""
    state = dnsmasq_of(pid_file)
    if state is None:
        return None
    try:
        command = Path(f"/proc/{state.pid}/cmdline").read_bytes()
    except OSError:
        return None
    return state if option.encode() in command.split(b"\0") else None


def dnsmasq_of(pid_file: Path) -> ProcessState | None:
    """The living process that a file of dnsmasq's names, if any. Raises ``DriverError`` where it can't be read."""
    try:
        text = pid_file.read_text("utf-8", "replace").strip()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DriverError(f"can't read {pid_file}: {error.strerror}") from error
    state = process_state(int(text)) if text.isascii() and text.isdecimal() and len(text) < 10 else None
    return state if state is not None and state.alive else None
