"""What drivers find on a host before they are used."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from hashlib import sha256
from pathlib import Path

import pytest
from driver_harnesses import LibvirtHarness

from leasekit.core.drivers import Finding
from leasekit.drivers import examining
from leasekit.drivers.registry import examine


def test_a_file_is_held_against_its_checksum(tmp_path: Path) -> None:
    """A file is ok with its own checksum only; a wrong one names both, a missing file its path."""
    file = tmp_path / "image"
    file.write_bytes(b"content")
    right = sha256(b"content").hexdigest()
    assert examining.checksummed("image", file, right).verdict == "ok"
    wrong = examining.checksummed("image", file, "0" * 64)
    assert wrong.verdict == "missing" and right in wrong.found and "0" * 64 in wrong.found
    gone = examining.checksummed("image", tmp_path / "other", right)
    assert gone == Finding(
        "image",
        "missing",
        f"can't read {tmp_path}/other: No such file or directory",
        "put the file there, or correct the path",
    )


@pytest.mark.parametrize("host", ["-", "no..host"])
def test_a_port_of_a_host_that_nobody_knows(host: str) -> None:
    """It is told like one that is taken."""
    found = examining.free_port("port", host, 7000)
    assert (found.verdict, found.advice) == ("missing", "name an address of this host")


def test_a_bridge_is_one_and_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that no interface has, an interface that is no bridge, and a bridge that is down are each told apart."""
    monkeypatch.setattr(examining, "INTERFACES", tmp_path)
    for name, flags in (("up0", "0x1003"), ("down0", "0x1002")):
        (tmp_path / name / "bridge").mkdir(parents=True)
        (tmp_path / name / "flags").write_text(flags + "\n", encoding="ascii")
    (tmp_path / "eth0").mkdir()
    (tmp_path / "eth0" / "flags").write_text("0x1003\n", encoding="ascii")
    assert examining.bridge("up0").verdict == "ok"
    assert examining.bridge("down0").advice == "ip link set down0 up"
    assert examining.bridge("eth0").found == "that interface is no bridge"
    assert examining.interface("eth0", "the boot network").verdict == "ok"
    assert examining.bridge("br9").advice.startswith("ip link add br9 type bridge")


def test_capabilities_that_are_missing_are_named() -> None:
    """A process with some of Linux's capabilities lacks the others; one that is root's lacks none of them."""
    child = (
        "from leasekit.drivers.baremetal.examining import _rights\n"
        "import os; os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "print(_rights())\n"
    )
    assert examining.missing_capabilities({0: "CAP_CHOWN", 63: "CAP_NONE"}) == ["CAP_NONE"]
    done = subprocess.run([sys.executable, "-c", child], capture_output=True, text=True, check=True)
    assert "dnsmasq of its own needs CAP_NET_BIND_SERVICE and CAP_NET_ADMIN for DHCP and TFTP" in done.stdout


def test_a_folder_that_another_process_is_to_read(tmp_path: Path) -> None:
    """A folder that its mode, or that of one above it, closes to the user of the process that reads it is missing."""
    if os.geteuid() != 0:
        pytest.skip("needs the superuser's rights, for a process of another user's")
    with tempfile.TemporaryDirectory() as above, subprocess.Popen(["sleep", "60"], user=65534, group=65534) as reader:
        folder = Path(above) / "names"
        folder.mkdir(mode=0o755)
        found = examining.shared_folder("names", folder, reader.pid)
        assert found.verdict == "missing" and found.found.endswith(f"reads {folder}, can't get into {above}")
        Path(above).chmod(0o711)
        assert examining.shared_folder("names", folder, reader.pid).verdict == "ok"
        folder.chmod(0o711)
        assert examining.shared_folder("names", folder, reader.pid).found.endswith(f"can't get into {folder}")
        os.chown(folder, 0, 65534)
        folder.chmod(0o750)
        assert examining.shared_folder("names", folder, reader.pid).verdict == "ok"
        assert examining.shared_folder("names", folder, os.getpid()).verdict == "ok"
        child = (
            f"from leasekit.drivers.examining import may_signal\nimport os; os.setuid(65534); "
            f"print(may_signal('dnsmasq', {os.getpid()}))"
        )
        done = subprocess.run([sys.executable, "-c", child], capture_output=True, text=True, check=True)
        assert "may not be sent SIGHUP" in done.stdout
        reader.kill()


def test_programs_and_room(tmp_path: Path) -> None:
    """A program that isn't there comes with its package; a file system that is nearly full is doubtful, not missing."""
    assert examining.program("sh", "dash", "/bin:/usr/bin").verdict == "ok"
    missing = examining.program("no-such-program", "nothing", "/bin")
    assert (missing.verdict, missing.advice) == ("missing", "apt-get install nothing")
    assert examining.room("state", tmp_path, 1).verdict == "ok"
    assert examining.room("state", tmp_path, 1 << 62).verdict == "doubtful"
    assert examining.room("state", tmp_path / "none", 1).verdict == "missing"


async def test_libvirt_tells_of_each_host_and_image(tmp_path: Path) -> None:
    """The libvirt driver looks at binding, images, hosts and pools; a host that can't be reached has its cure."""
    harness = LibvirtHarness(tmp_path)
    settings = harness.settings()
    settings["hosts"]["far"] = {"uri": f"test:///{tmp_path}/none.xml", "pool": "default"}
    found = {finding.what: finding for finding in await examine("libvirt", settings, "driver", base=tmp_path)}
    assert found["libvirt-python"].verdict == "ok"
    assert found["host here"].verdict == "ok"
    assert found["host here: pool default-pool"].verdict in ("ok", "doubtful")
    assert found["host here: network filter"].verdict == "doubtful"
    assert found["host far"].verdict == "missing" and "can't connect to test:///" in found["host far"].found
    assert found["host far"].advice.startswith("apt-get install libvirt-daemon-system")
