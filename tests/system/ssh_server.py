"""An ssh server on this machine that stands for a unit: dropbear, with a home folder of the test's own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs


@attrs.frozen
class SshServer:
    """Where it is, the unit properties that lead there, the private key that it lets in, and its home folder."""

    port: int
    properties: dict[str, str]
    key: Path
    home: Path


@contextmanager
def ssh_server(folder: Path) -> Iterator[SshServer]:
    """A server for as long as the block lasts. The superuser's home is the test's in its mount namespace alone."""
    home = folder / "home"
    (home / ".ssh").mkdir(parents=True)
    home.chmod(0o700)
    key, host_key = folder / "id", folder / "dropbear"
    _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key))
    (home / ".ssh/authorized_keys").write_text(key.with_suffix(".pub").read_text())
    _run("dropbearkey", "-t", "ed25519", "-f", str(host_key))
    public = next(line for line in _run("dropbearkey", "-y", "-f", str(host_key)).splitlines() if "AAAA" in line)
    port = _free_port()
    server = f"mount --bind {home} /root; exec dropbear -F -E -s -p 127.0.0.1:{port} -r {host_key}"
    process = subprocess.Popen(
        ["unshare", "-m", "sh", "-e", "-c", server],
        stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    try:
        assert process.stderr is not None
        line = b""
        while b"Not backgrounding" not in line:
            line = process.stderr.readline()
            assert line, "dropbear ended before it listened"
        yield SshServer(port, {"host": "127.0.0.1", "port": str(port), "host_key": public}, key, home)
    finally:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        for pid in (process.pid, *map(int, children)):
            os.kill(pid, signal.SIGKILL)
        process.wait()
        if process.stderr is not None:
            process.stderr.close()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
    return done.stdout
