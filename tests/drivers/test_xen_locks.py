"""The xen driver's locks in a played control domain: who waits for whom, and what comes too late to do anything."""

from __future__ import annotations

import fcntl
import os
import subprocess
from pathlib import Path

import pytest
import trio
from polling import poll
from xen_control import XenHarness

U1 = "contract-u1"


@pytest.fixture
def far(tmp_path: Path) -> XenHarness:
    return XenHarness(tmp_path)


def waiting(folder: Path) -> int:
    """How many wait for the lock of a folder."""
    inode = f":{folder.stat().st_ino} "
    return sum(" -> " in line and inode in line for line in Path("/proc/locks").read_text().splitlines())


async def test_units_do_not_wait_for_each_other(far, make_unit):
    """While one unit's memory is restored others are set up and torn down; its own end waits, and comes."""
    fifo = far.directory / "go"
    os.mkfifo(fifo)
    played = Path(far.xl).read_text().splitlines()[1]
    far.program("xl", f'#!/bin/sh\n[ "$1" = restore ] && {{ echo >{fifo}.came; read line <{fifo}; }}\n{played}\n')
    await far.driver.setup(make_unit("u1"))
    await far.driver.operate(make_unit("u1"), "suspend", {})
    other = far.reopen()
    # Open for both, so that opening waits for nobody.
    with fifo.open("r+b", buffering=0) as go:
        async with trio.open_nursery() as nursery:
            # All that a daemon has sent which is killed then.
            nursery.start_soon(far.driver._places["here"].restore, "u1")
            try:
                await poll(Path(f"{fifo}.came").exists)
                await other.setup(make_unit("u2"))
                await other.teardown(make_unit("u2", "teardown", 2))
                nursery.start_soon(other.teardown, make_unit("u1", "teardown", 2))
                await poll(lambda: waiting(far.folder / "units" / U1) == 1)
                assert (far.folder / "units" / U1 / "domain.cfg").exists()
            finally:
                go.write(b"\n")
    assert (far.folder / "units").exists()
    assert far.leftovers() == []
    assert await other.orphans(()) == []


@pytest.mark.parametrize("verb", ["create", "destroy"])
async def test_what_waits_too_long_is_too_late(far, make_unit, verb):
    """A start, or an end, that a killed daemon sent, and that waits until the unit was removed and made anew, neither
    starts nor ends what is there then.
    """
    await far.driver.setup(make_unit("u1"))
    await far.driver.operate(make_unit("u1"), "restart", {})
    lines = (far.directory / "ssh.log").read_text().splitlines()
    line = next(line for line in lines if f'"$3" {verb}' in line)
    unit = far.folder / "units" / U1
    lock = os.open(unit, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    with subprocess.Popen([far.ssh, line[line.index("sh -c") :]], stderr=subprocess.PIPE, text=True) as late:
        try:
            await poll(lambda: waiting(unit) == 1)
            unit.rename(far.directory / "gone")
            subprocess.run([far.xl, "destroy", U1], check=True, capture_output=True)
            await far.reopen().setup(make_unit("u1", number=2))
            before = far.calls()
        finally:
            os.close(lock)
        _, said = late.communicate()
    assert late.returncode == 1
    assert "was removed meanwhile" in said
    assert far.calls() == before
    assert U1 in far.domains()
