"""deploy/systemd on a machine whose first process is systemd: what its README types does what it says.

The machine is a container with the files of this one. What it writes is in memory, and is gone with it.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from system.packages import require, require_root, unavailable
from system.system_waits import wait_until
from system.test_operations import DEPLOYMENT

PROJECT = Path(__file__).parents[2]
BLOCKS = re.findall(r"(?:^    .*\n)+", (PROJECT / "deploy" / "systemd" / "README.md").read_text(), re.MULTILINE)
INSTALL = "/usr/local/lib/leasekit"
SYSTEMD = ("python3", "systemd", "systemd-container", "dbus", "adduser", "util-linux")
BOOTED_WITHIN = 120
ALL = "leasekit@site leasekit@broker leasekit@guest"
RUNNING = ["active"] * 3

# All mounts are of a namespace that ends with the container.
BEGIN = """
set -e
mount -t tmpfs tmpfs {folder}
mkdir {folder}/upper {folder}/work {folder}/root /run/systemd/nspawn -p
mount -t tmpfs tmpfs /run/systemd/nspawn
mount -t overlay overlay -o lowerdir=/,upperdir={folder}/upper,workdir={folder}/work {folder}/root
rm -rf {folder}/root/etc/systemd/system/*.wants {folder}/root/etc/rc?.d
echo {id} > {folder}/root/etc/machine-id
exec systemd-nspawn -q -D {folder}/root -b --register=no --keep-unit --console=pipe --notify-ready=yes \\
    --bind-ro={packages}:/opt/packages --bind-ro={project}:/opt/project
"""
# As pip would leave it, had it copied the packages of this environment: daemons may not see its folder, as their units
# hide the homes and /tmp.
PIP = f"""
/usr/bin/python3 -m venv --without-pip {INSTALL}
printf '/opt/packages\\n/opt/project\\n' > $(echo {INSTALL}/lib/python3*/site-packages)/all.pth
printf '#!{INSTALL}/bin/python3\\nfrom leasekit.cli.main import main\\nmain()\\n' > {INSTALL}/bin/leasekit
chmod 755 {INSTALL}/bin/leasekit
"""


class Machine:
    """The container, by the first of its processes."""

    def __init__(self, pid: str) -> None:
        self._enter = ["nsenter", "-t", pid, "-m", "-u", "-i", "-p", "-C", "sh", "-c"]

    def types(self, line: str, status: int = 0) -> str:
        """What root's line prints, on both streams; it must end with ``status``."""
        done = subprocess.run([*self._enter, f"cd\n{line}"], capture_output=True, text=True, timeout=300, check=False)
        said = done.stdout + done.stderr
        if done.returncode != status:
            journal = [*self._enter, "journalctl -o cat -n 30 --no-pager"]
            log = subprocess.run(journal, capture_output=True, text=True, timeout=60, check=False).stdout
            pytest.fail(f"{line}: exit status {done.returncode}: {said}\n{log}")
        return said

    def leasekit(self, line: str) -> str:
        """What the command prints for the daemons' user."""
        where = "LEASEKIT_FILE=/etc/leasekit/leasekit.toml LEASEKIT_STATE=/var/lib/leasekit"
        return self.types(f"runuser -u leasekit -- env {where} {INSTALL}/bin/leasekit {line}")

    def units(self) -> str:
        """The processes of the leased units."""
        return self.types("pgrep -u leasekit sleep || true")


@contextmanager
def machine(folder: Path) -> Iterator[Machine]:
    """A machine that has booted."""
    require_root()
    require(SYSTEMD)
    version = sysconfig.get_python_version()
    if not Path(f"/usr/bin/python{version}").exists():
        unavailable(f"needs Debian's Python to be {version}, as this environment's is")
    text = BEGIN.format(folder=folder, id="5" * 32, packages=sysconfig.get_path("purelib"), project=PROJECT)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told, (folder.parent / "boot.log").open("wb") as log:
        told.bind(str(folder.parent / "notify"))
        told.settimeout(BOOTED_WITHIN)
        process = subprocess.Popen(
            ["unshare", "-m", "sh", "-c", text],
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "NOTIFY_SOCKET": told.getsockname()},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
        pid = ""
        try:
            said = ""
            while "READY=1" not in said.splitlines():
                assert process.poll() is None, Path(log.name).read_text()
                said += told.recv(4096).decode() + "\n"
            (pid,) = re.findall(r"^X_NSPAWN_LEADER_PID=(\d+)$", said, re.MULTILINE)
            yield Machine(pid)
        finally:
            os.kill(int(pid or process.pid), signal.SIGKILL)
            process.wait()


def lines(block: int) -> list[str]:
    return [line.strip() for line in BLOCKS[block].splitlines()]


@pytest.mark.long
def test_daemons_under_systemd(tmp_path: Path) -> None:
    """They start as installed, are started again after SIGKILL, reload all or nothing, and their stores are copied; the
    units of leases live on.
    """
    folder = tmp_path / "machine"
    folder.mkdir()
    with machine(folder) as there:
        there.types("cp -r /opt/project/deploy/systemd/. .")
        there.types(f"cat > leasekit.toml <<'END'\n{DEPLOYMENT}\nEND")
        for line in lines(0):
            there.types(PIP if "pip install" in line else line)
        there.types("systemctl enable --now leasekit@guest")
        there.leasekit("status --wait")
        there.leasekit("lease request vm 2 --for 1h --name web --wait")
        units = there.units()
        assert len(units.split()) == 2

        there.types("systemctl restart leasekit@site")
        there.types(f"systemctl kill -s KILL --kill-whom=main {ALL}")
        wait_until(
            "all are started again", lambda: there.types(f"systemctl is-active {ALL} || true").split() != RUNNING
        )
        there.leasekit("status --wait")
        assert "active" in there.leasekit("lease show web")
        assert there.units() == units

        there.types("sed -i 's/units = 8/units = 9/' /etc/leasekit/leasekit.toml && systemctl reload leasekit@site")
        assert "vm: 2 active, 7 free" in there.leasekit("status")
        there.types("sed -i 's/units = 9/units = -9/' /etc/leasekit/leasekit.toml")
        there.types("systemctl reload leasekit@site", status=1)
        assert "inventory[0].units: found -9" in there.types("journalctl -u leasekit@site -o cat")
        assert there.types("systemctl is-active leasekit@site") == "active\n"
        there.types("sed -i 's/units = -9/units = 9/' /etc/leasekit/leasekit.toml")

        for line in next(lines(number) for number in range(len(BLOCKS)) if "leasekit-backup" in BLOCKS[number]):
            there.types(line)
        there.types("systemctl start leasekit-backup")
        assert there.types("stat -c '%a %U' /var/backups/leasekit/*.db").splitlines() == ["600 leasekit"] * 3
        assert "leasekit-backup.timer" in there.types("systemctl list-timers --no-pager")

        there.leasekit("lease close web --wait")
        there.types(f"systemctl stop {ALL}")
        assert there.types("pgrep -u leasekit . || true") == ""
        assert "leasekit" not in there.types("systemctl --failed --no-pager")
