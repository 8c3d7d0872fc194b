"""A test suite has a lease of a real QEMU machine by the plugin of pytest; its console is in the report."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_daemons import running
from system.libvirt_site import deployment
from system.libvirt_world import World, open_world

from leasekit.drivers.libvirt.place import WORD

SUITE = """
import pytest

@pytest.mark.lease("console-1", units=1, configuration={{"slice.key": {key!r}}}, timeout="2m")
def test_fails(lease):
    assert lease.members[0].state == "broken"
"""


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    """Where machines can be made."""
    with open_world() as made:
        yield made


def test_a_serial_console_is_in_the_report(world: World, tmp_path: Path) -> None:
    """What the machine has said there, of a test that failed."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{probe.getsockname()[1]}"
    gateway = f'[actor.web]\nrole = "gateway"\nlisten = ["{url}"]\nwithout_login = true\n'
    file, suite = tmp_path / "vms.toml", tmp_path / "test_machine.py"
    file.write_text(deployment({"console-1": (1, world.settings(image="sector"))}, gateway))
    suite.write_text(SUITE.format(key=world.public))
    with running(file, {**os.environ, "LEASEKIT_STATE": str(tmp_path / "s")}, tmp_path / "s"):
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", suite.name],
            cwd=tmp_path, env={**os.environ, "LEASEKIT_URL": url}, capture_output=True, text=True, check=False,
        )  # fmt: skip
    assert "1 failed" in done.stdout, done.stdout + done.stderr
    head, _, console = done.stdout.partition("console of console-10")
    assert "assert 'joined' == 'broken'" in head
    assert WORD.decode() in console, done.stdout
