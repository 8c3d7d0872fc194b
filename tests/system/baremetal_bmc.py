"""Controllers for domains of libvirt: VirtualBMC speaks IPMI, sushy-tools Redfish. Each runs as it does elsewhere.

They live in a virtual environment of their own, for they bring along much that leasekit does not need.
"""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from system.packages import unavailable

TOOLS = ("virtualbmc>=3.1", "sushy-tools>=1.3", "setuptools<81")
PIP = ("install", "--quiet", "--disable-pip-version-check", "--no-compile")
INSTALL_WITHIN = 600
STARTED_WITHIN = 60.0
USER, PASSWORD = "leasekit", "se cret"
"""With a blank, which a shell would take apart."""


HASH = "import bcrypt, sys; print(bcrypt.hashpw(sys.argv[1].encode(), bcrypt.gensalt(4)).decode())"


def bmc_tools() -> Path:
    """The folder with the programs; they are installed first where they are not."""
    folder = Path(sys.prefix) / "bmc-tools"
    with folder.with_suffix(".lock").open("w") as lock:
        # Another worker may be at it.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "made").exists():
            _install(folder)
    return folder / "bin"


def _install(folder: Path) -> None:
    for command in (
        # Our own pip installs them, and Python compiles what of them is used: that takes half as long.
        [sys.executable, "-m", "venv", "--clear", "--without-pip", folder],
        [sys.executable, "-m", "pip", "--python", folder, *PIP, *TOOLS],
    ):
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_WITHIN, check=False)
        if done.returncode:
            unavailable(f"VirtualBMC and sushy-tools can't be installed: {done.stderr[-1000:]}")
    (folder / "made").touch()


def free_port(kind: socket.SocketKind = socket.SOCK_STREAM) -> int:
    """A port of this machine that nobody uses."""
    with socket.socket(socket.AF_INET, kind) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def password_file(folder: Path, password: str = PASSWORD, mode: int = 0o600) -> Path:
    """A file with a password."""
    path = folder / "bmc-password"
    path.touch(mode=0o600)
    path.write_text(f"{password}\n")
    path.chmod(mode)
    return path


@contextmanager
def running(command: list[str | Path], log: Path, environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """A process in a session of its own, with all that it starts, for as long as the block lasts."""
    with log.open("ab") as file:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True,
            env={**os.environ, **environment},
        )  # fmt: skip
    try:
        yield process
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


class VirtualBmc:
    """The daemon vbmcd, and controllers for domains at one libvirt host."""

    def __init__(self, folder: Path, uri: str) -> None:
        self._tools = bmc_tools()
        self._folder = folder / "vbmc"
        self._uri = uri
        self._log = self._folder / "log"
        self._folder.mkdir()
        (self._folder / "state").mkdir()
        self._configuration = self._folder / "virtualbmc.conf"
        self._configuration.write_text(
            f"[default]\nconfig_dir={self._folder}/state\npid_file={self._folder}/pid\nserver_port={free_port()}\n"
            "[log]\ndebug=false\n"
        )
        self._environment = {"VIRTUALBMC_CONFIG": str(self._configuration)}

    @contextmanager
    def serving(self) -> Iterator[None]:
        """The daemon, until the end of the block."""
        with running([self._tools / "vbmcd", "--foreground"], self._log, self._environment) as process:
            until = time.monotonic() + STARTED_WITHIN
            while self._vbmc("list").returncode:
                assert process.poll() is None and time.monotonic() < until, self._log.read_text()[-2000:]
                time.sleep(0.1)
            yield

    def add(self, domain: str) -> int:
        """A controller for a domain; its port."""
        port = free_port(socket.SOCK_DGRAM)
        words = [domain, "--port", str(port), "--address", "127.0.0.1", "--username", USER, "--password", PASSWORD]
        for command in (["add", *words, "--libvirt-uri", self._uri], ["start", domain]):
            done = self._vbmc(*command)
            assert done.returncode == 0, done.stderr
        return port

    def stop(self, domain: str) -> None:
        """The controller of a domain answers no more."""
        assert self._vbmc("stop", domain).returncode == 0

    def start(self, domain: str) -> None:
        """It answers again."""
        assert self._vbmc("start", domain).returncode == 0

    def _vbmc(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self._tools / "vbmc", *words],
            env={**os.environ, **self._environment}, capture_output=True, text=True, check=False,
        )  # fmt: skip


@contextmanager
def sushy(folder: Path, uri: str) -> Iterator[str]:
    """The address of a Redfish service for the domains at a libvirt host."""
    tools = bmc_tools()
    hashed = subprocess.run(
        [tools / "python", "-c", HASH, PASSWORD],
        capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip
    users = folder / "htpasswd"
    users.write_text(f"{USER}:{hashed}\n")
    port = free_port()
    configuration = folder / "sushy.conf"
    configuration.write_text(
        f"SUSHY_EMULATOR_LISTEN_IP = '127.0.0.1'\nSUSHY_EMULATOR_LISTEN_PORT = {port}\n"
        f"SUSHY_EMULATOR_LIBVIRT_URI = {uri!r}\nSUSHY_EMULATOR_AUTH_FILE = {str(users)!r}\n"
        f"SUSHY_EMULATOR_STATE_DIR = {str(folder)!r}\n"
    )
    log = folder / "sushy.log"
    with running([tools / "sushy-emulator", "--config", configuration], log, {}) as process:
        until = time.monotonic() + STARTED_WITHIN
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                assert process.poll() is None and time.monotonic() < until, log.read_text()[-2000:]
                time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
