"""A hypervisor of the test's own: libvirtd and virtlogd as Debian ships them, with all their folders in a private one,
and a bridge.

The daemons run in a mount namespace of their own, where /etc/libvirt, /var/lib/libvirt and so on are the test's. Their
settings are those of the packages. docs/libvirt.md lists what differs from a host, and why.
"""

from __future__ import annotations

import importlib
import os
import shutil
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Self

from leasekit.drivers.libvirt.connection import start_events

FOLDERS = {
    "run": "/run/libvirt",
    "lib": "/var/lib/libvirt",
    "etc": "/etc/libvirt",
    "log": "/var/log/libvirt",
    "cache": "/var/cache/libvirt",
}
STARTED_WITHIN = 120.0
POOL = "/var/lib/libvirt/images"
GROUPS = {
    Path("/sys/fs/cgroup/cpu/cpu.shares"): ("cpu.shares", 8 * 1024),
    Path("/sys/fs/cgroup/cgroup.controllers"): ("cpu.weight", 8 * 100),
}
"""What there is where control groups are of the first or the second version, and what weighs a group in each."""


def weigh_guests() -> None:
    """Lets guests have as much of a busy processor as eight other processes: libvirt has all of them in one control
    group, which gets no more than one process does unless told, and a guest would boot for minutes.
    """
    for there, (name, weight) in GROUPS.items():
        if there.exists():
            group = there.parent / "machine"
            group.mkdir(exist_ok=True)
            if (group / name).exists():
                (group / name).write_text(str(weight))


def another_host() -> dict[str, str]:
    """What a second libvirtd of one machine needs to be another host to the first: this machine has but one UUID."""
    return {"libvirtd.conf": f'host_uuid = "{uuid.uuid4()}"'}


class LibvirtHost:
    """One libvirtd. ``cache`` is shared by daemons of one test run: what QEMU can do takes seconds to find out.

    ``more`` are lines for the ends of files in /etc/libvirt.
    """

    def __init__(self, folder: Path, name: str, cache: Path, more: Mapping[str, str] = MappingProxyType({})) -> None:
        self.name = name
        self.root = folder / name
        self._cache = cache
        self._process: subprocess.Popen[bytes] | None = None
        self.uri = f"qemu+unix:///system?socket={self.root}/run/libvirt-sock"
        for each in (self.root, *(self.root / name for name in FOLDERS), self.root / "lib/images"):
            each.mkdir()
            each.chmod(0o755)
        shutil.copytree("/etc/libvirt", self.root / "etc", dirs_exist_ok=True)
        shutil.rmtree(self.root / "etc/qemu", ignore_errors=True)
        for file, lines in more.items():
            with (self.root / "etc" / file).open("a") as opened:
                opened.write(f"\n{lines}\n")

    @property
    def images(self) -> Path:
        """The pool's folder, as seen from outside."""
        return self.root / "lib/images"

    def settings(self, **changes: Any) -> dict[str, Any]:
        """This host as a deploy file has it."""
        return {"uri": self.uri, "pool": "units", "pool_path": POOL, "acceleration": "tcg", **changes}

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        try:
            if self._process is not None and self._process.poll() is None:
                for domain in self.connect().listAllDomains(0):
                    if domain.isActive():
                        domain.destroy()
        finally:
            self.kill()
            self._kill_guests()
            if self._virtlogd.exists():
                os.kill(int(self._virtlogd.read_text()), signal.SIGKILL)

    @property
    def _virtlogd(self) -> Path:
        return self.root / "run/virtlogd.pid"

    def start(self) -> None:
        """Start the daemon, and wait until it answers."""
        weigh_guests()
        mounts = "; ".join(
            f"mkdir -p {target}; mount --rbind {self._cache if name == 'cache' else self.root / name} {target}"
            for name, target in FOLDERS.items()
        )
        daemon = f"exec libvirtd -p {self.root}/run/libvirtd.pid"
        if not self._virtlogd.exists():
            daemon = f"virtlogd -d -p {self._virtlogd}; {daemon}"
        with (self.root / "libvirtd.log").open("ab") as log:
            self._process = subprocess.Popen(
                ["unshare", "-m", "-u", "sh", "-e", "-c", f"hostname {self.name}; {mounts}; {daemon}"],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        until = time.monotonic() + STARTED_WITHIN
        libvirt = importlib.import_module("libvirt")
        while True:
            try:
                self.connect().close()
                return
            except libvirt.libvirtError as error:
                said = (self.root / "libvirtd.log").read_text()[-2000:]
                assert self._process.poll() is None and time.monotonic() < until, f"{error}\n{said}"
                time.sleep(0.02)

    def kill(self) -> None:
        """SIGKILL to libvirtd; guests go on, and so does what writes their consoles."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    @contextmanager
    def by_ssh(self, port: int, folder: Path, key: Path) -> Iterator[str]:
        """A URI at which the host is reached by ssh, with the login key ``key``, as if it were far away."""
        assert self._process is not None
        home = folder / "home"
        home.mkdir()
        login = home / ".ssh"
        login.mkdir(mode=0o700)
        (login / "authorized_keys").write_text(key.with_suffix(".pub").read_text())
        home.chmod(0o700)
        host_key = folder / "dropbear"
        _run("dropbearkey", "-t", "ed25519", "-f", str(host_key))
        public = next(line for line in _run("dropbearkey", "-y", "-f", str(host_key)).splitlines() if "AAAA" in line)
        (folder / "known").write_text(f"[127.0.0.1]:{port} {public}\n")
        wrapper = folder / "ssh"
        wrapper.write_text(
            f'#!/bin/sh\nexec ssh -F /dev/null -o UserKnownHostsFile={folder}/known -o BatchMode=yes "$@"\n'
        )
        wrapper.chmod(0o755)
        # In the daemon's own namespace, where its socket is where ssh's other end looks for it.
        server = f"mount --bind {home} /root; exec dropbear -F -E -s -p 127.0.0.1:{port} -r {host_key}"
        command = ["nsenter", f"--mount=/proc/{self._process.pid}/ns/mnt", "unshare", "-m", "sh", "-e", "-c", server]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True)
        try:
            assert process.stderr is not None
            line = b""
            while b"Not backgrounding" not in line:
                line = process.stderr.readline()
                assert line, "dropbear ended before it listened"
            yield f"qemu+ssh://root@127.0.0.1:{port}/system?keyfile={key}&command={wrapper}&no_tty=1"
        finally:
            # Each connection has a process of its own, in a session of its own.
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            for pid in (process.pid, *map(int, children)):
                os.kill(pid, signal.SIGKILL)
            process.wait()
            if process.stderr is not None:
                process.stderr.close()

    def connect(self) -> Any:
        """A connection of the test's own."""
        libvirt = importlib.import_module("libvirt")
        start_events(libvirt)
        return libvirt.open(self.uri)

    def count_up(self) -> None:
        """Uses up the daemon's first numbers for domains: by those control groups are called, and two hosts of these
        tests have them on one machine. A start that fails for want of a disk takes a number as well, and no QEMU.
        """
        disk = "<disk type='file'><source file='/nowhere'/><target dev='vda'/></disk>"
        system = f"<os><type>hvm</type></os><devices>{disk}</devices>"
        xml = f"<domain type='qemu'><name>counter</name><memory>1024</memory>{system}</domain>"
        libvirt, connection = importlib.import_module("libvirt"), self.connect()
        for _ in range(20):
            try:
                connection.createXML(xml, 0)
            except libvirt.libvirtError as error:
                assert "/nowhere" in str(error), error
            else:
                raise AssertionError("a domain without its disk has started")

    def domains(self) -> list[str]:
        """The names of all domains."""
        return sorted(domain.name() for domain in self.connect().listAllDomains(0))

    def guests(self) -> list[int]:
        """The processes of guests that run."""
        found = []
        for path in (self.root / "run/qemu").glob("*.pid"):
            with suppress(OSError, ValueError):
                pid = int(path.read_text())
                if b"qemu-system" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    found.append(pid)
        return found

    def _kill_guests(self) -> None:
        for pid in self.guests():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@contextmanager
def bridge(name: str, *addresses: str) -> Iterator[str]:
    """A bridge with addresses for this machine, for as long as the block lasts.

    Its MAC is its own: without one it takes the lowest of its ports', and what talks to it across the joining of
    another port goes astray until ARP is asked again.
    """
    mac = ":".join(["02", *(f"{byte:02x}" for byte in sha256(name.encode()).digest()[:5])])
    _ip("link", "add", name, "address", mac, "type", "bridge")
    try:
        for address in addresses:
            _ip("addr", "add", address, "dev", name, *(["nodad"] if ":" in address else []))
        _ip("link", "set", name, "up")
        yield name
    finally:
        _ip("link", "del", name)


def _ip(*arguments: str) -> None:
    _run("ip", *arguments)


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
    return done.stdout
