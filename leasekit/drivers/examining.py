"""What drivers look at to say whether a host has what they need: programs, bridges, files, room."""

from __future__ import annotations

import errno
import os
import shutil
import socket
from collections.abc import Iterable, Mapping
from contextlib import closing
from hashlib import file_digest
from pathlib import Path
from typing import Final

from leasekit.core.drivers import Finding
from leasekit.drivers.files import find_executable
from leasekit.drivers.names import one_line

ISO_MAKERS: Final = ("genisoimage", "mkisofs", "xorrisofs")
"""Programs that make CD-ROM images and take the same arguments; the first that is there is used."""
_IDENTITY: Final = ("Uid", "Gid", "Groups")
INTERFACES: Final = Path("/sys/class/net")
MEBI: Final = 2**20


def program(name: str, package: str, search: str) -> Finding:
    """Whether a program can be run, and the package that has it."""
    try:
        path = find_executable(name, Path(), search)
    except ValueError as error:
        return Finding(f"program {name}", "missing", str(error), f"apt-get install {package}")
    return Finding(f"program {name}", "ok", str(path))


def iso_maker() -> Finding:
    """Whether seeds for cloud-init can be made here."""
    what, found = "program for CD-ROM images", next(filter(None, map(shutil.which, ISO_MAKERS)), None)
    if found is None:
        text = f'none of {", ".join(ISO_MAKERS)}, which images with seed = "nocloud" need'
        return Finding(what, "missing", text, "apt-get install genisoimage")
    return Finding(what, "ok", found)


def free_port(what: str, host: str, port: int, *, udp: bool = False, device: str = "") -> Finding:
    """Whether a port of this machine's is free: it is bound for a moment, with ``device`` on that interface alone."""
    kind = socket.SOCK_DGRAM if udp else socket.SOCK_STREAM
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=kind, flags=socket.AI_PASSIVE)[0]
        with closing(socket.socket(family, kind, protocol)) as probe:
            if device:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, device.encode())
            if not udp:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except (OSError, UnicodeError) as error:  # the latter for a name that none can have
        number, text = (error.errno, error.strerror) if isinstance(error, OSError) else (0, str(error))
        advice = {
            errno.EADDRINUSE: f"find who has it: ss -l{'u' if udp else 't'}np sport = :{port}",
            errno.EACCES: "ports below 1024 need CAP_NET_BIND_SERVICE",
            errno.EPERM: "run it as the user that the daemon will have, with the same rights",
        }.get(number or 0, "name an address of this host")
        return Finding(what, "missing", f"{host}: {text}", advice)
    return Finding(what, "ok", f"is free at {host}")


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


def writable(what: str, folder: Path, *, make: bool = False) -> Finding:
    """Whether this process can write to a folder; with ``make`` it may still have to be made."""
    there = folder
    while make and not there.exists() and there != there.parent:
        there = there.parent
    if not there.is_dir():
        return Finding(what, "missing", f"{there} is no folder", "make it, or correct the path")
    if not os.access(there, os.W_OK | os.X_OK):
        return Finding(what, "missing", f"{there} can't be written to", "let the authority's user write there")
    return Finding(what, "ok", f"{folder} can be written to" if there == folder else f"{folder} can be made")


def shared_folder(what: str, folder: Path, reader: int, *, make: bool = False) -> Finding:
    """Whether this process can write to a folder, and the user of the process with the number ``reader`` read there."""
    found = writable(what, folder, make=make)
    barred = closed_to(reader, folder) if found.verdict == "ok" else None
    if barred is None:
        return found
    text = f"the user of process {reader}, which reads {folder}, can't get into {barred}"
    return Finding(what, "missing", text, f"chmod a+x {barred} (a+rx the folder itself), or name a folder elsewhere")


def closed_to(process: int, folder: Path) -> Path | None:
    """The first folder on the way to ``folder``, itself too, that its mode closes to a process's user."""
    try:
        status = Path(f"/proc/{process}/status").read_text(encoding="utf-8")
    except OSError:
        return None  # it has just ended
    (_, user, *_), *several = (status.partition(f"\n{key}:")[2].partition("\n")[0].split() for key in _IDENTITY)
    groups = {int(group) for words in several for group in words}
    for each in (*reversed(folder.parents), folder):
        if user == "0" or not each.exists():
            break
        found, wanted = each.stat(), 0o5 if each == folder else 0o1
        shift = 6 if found.st_uid == int(user) else 3 if found.st_gid in groups else 0
        if found.st_mode >> shift & wanted != wanted:
            return each
    return None


def may_signal(what: str, process: int) -> Finding:
    """Whether this process may tell another, of that number, to read its files again."""
    try:
        os.kill(process, 0)
    except PermissionError:
        text = f"runs with the process id {process}, and may not be sent SIGHUP"
        return Finding(what, "missing", text, "run the authority as that process's user, as root, or with CAP_KILL")
    except ProcessLookupError:
        return Finding(what, "missing", f"process {process} has just ended", "start it again")
    return Finding(what, "ok", f"runs with the process id {process}")


def missing_capabilities(needed: Mapping[int, str]) -> list[str]:
    """Those of Linux's capabilities, named by number, that this process does not have (root has all, as a rule)."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    held = int(status.partition("CapEff:")[2].split()[0], 16)
    return [name for number, name in needed.items() if not held >> number & 1]


def any_missing(findings: Iterable[Finding]) -> bool:
    """Whether something is missing without which nothing works."""
    return any(finding.verdict == "missing" for finding in findings)
