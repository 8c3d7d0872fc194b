"""What drivers look at to say whether a host has what they need: programs, bridges, files, room."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from hashlib import file_digest
from pathlib import Path
from typing import Final

from leasekit.core.drivers import Finding
from leasekit.drivers.files import find_executable
from leasekit.drivers.names import one_line

INTERFACES: Final = Path("/sys/class/net")
MEBI: Final = 2**20


def program(name: str, package: str, search: str) -> Finding:
    """Whether a program can be run, and the package that has it."""
    try:
        path = find_executable(name, Path(), search)
    except ValueError as error:
        return Finding(f"program {name}", "missing", str(error), f"apt-get install {package}")
    return Finding(f"program {name}", "ok", str(path))


def bridge(name: str) -> Finding:
    """Whether this host has a bridge of that name, and whether it is up."""
    found = interface(name, "units", make=f"ip link add {name} type bridge && ip link set {name} up")
    if found.verdict == "ok" and not (INTERFACES / name / "bridge").is_dir():
        advice = "name a bridge, or make one of another name"
        return Finding(found.what, "missing", "that interface is no bridge", advice)
    return found


def interface(name: str, use: str, *, make: str = "name one that is there: ip link") -> Finding:
    """Whether this host has a network interface of that name for that use, and whether it is up."""
    what, folder = f"interface {name} for {use}", INTERFACES / name
    try:
        flags = int((folder / "flags").read_text(encoding="ascii"), 16)
    except FileNotFoundError:
        return Finding(what, "missing", "there is no such interface", make)
    if not flags & 1:
        return Finding(what, "missing", "it is down", f"ip link set {name} up")
    return Finding(what, "ok", "it is up")


def checksummed(what: str, file: Path, expected: str) -> Finding:
    """Whether a file can be read and is the one that is meant: its SHA-256 is looked at. Blocks for large files."""
    try:
        with file.open("rb") as opened:
            found = file_digest(opened, "sha256").hexdigest()
            size = opened.tell()
    except OSError as error:
        advice = "put the file there, or correct the path"
        return Finding(what, "missing", f"can't read {one_line(str(file))}: {error.strerror}", advice)
    if found != expected:
        text = f"{one_line(str(file))} has the SHA-256 {found}, expected {expected}"
        return Finding(what, "missing", text, "fetch it again, or correct sha256 if the file was changed on purpose")
    return Finding(what, "ok", f"{one_line(str(file))}, {size // MEBI} MiB, as its checksum says")


def room(what: str, folder: Path, least: int) -> Finding:
    """Whether a folder's file system has ``least`` bytes free."""
    try:
        found = os.statvfs(folder)
    except OSError as error:
        return Finding(what, "missing", f"{folder}: {error.strerror}", "make the folder")
    free = found.f_bavail * found.f_frsize
    text = f"{free // MEBI} MiB free in {folder}"
    if free < least:
        return Finding(what, "doubtful", text, f"make room: {least // MEBI} MiB are wanted")
    return Finding(what, "ok", text)


def missing_capabilities(needed: Mapping[int, str]) -> list[str]:
    """Those of Linux's capabilities, named by number, that this process does not have (root has all, as a rule)."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    held = int(status.partition("CapEff:")[2].split()[0], 16)
    return [name for number, name in needed.items() if not held >> number & 1]


def any_missing(findings: Iterable[Finding]) -> bool:
    """Whether something is missing without which nothing works."""
    return any(finding.verdict == "missing" for finding in findings)
