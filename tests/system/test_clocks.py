"""Real daemons whose clock is set: quickstart under libfaketime, which reads the time of day from a file.

``CLOCK_BOOTTIME`` and the monotonic clock stay as they are, as they do when a machine's clock is set.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from system.packages import FAKETIME, require, unavailable
from system.system_waits import wait_until
from system.test_daemons import Quickstart, quickstart

from leasekit.core.time import HOUR, MINUTE
from leasekit.runtime.client import ControlClient

ACTORS = ("site", "broker", "guest")
LONG = ["vm", "2", "--for", "1h", "--wait"]


class Machine(Quickstart):
    """The quickstart's daemons and its operator on a machine whose clock the test sets."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, {})
        self.file = folder / "clock"
        self.set()
        self.environment = {
            "LD_PRELOAD": str(library()),
            "FAKETIME_TIMESTAMP_FILE": str(self.file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "NO_FAKE_STAT": "1",
        }

    def set(self, hours: float = 0) -> None:
        """Set the clock so many hours ahead of what is right."""
        beside = self.file.with_suffix(".new")
        beside.write_text(f"{'+' if hours >= 0 else '-'}{abs(round(hours * 3600))}\n")
        beside.replace(self.file)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """A command of the operator's, whose terminal has the same clock."""
        command = [sys.executable, "-m", "leasekit.cli.main", *arguments]
        return subprocess.run(
            command, env=os.environ | self.environment, capture_output=True, text=True, timeout=60, check=False
        )

    def on(self, actor: str) -> tuple[str, ...]:
        return "--file", str(self.files / f"{actor}.toml"), "--state", str(self.state)

    def clocks(self) -> dict[str, dict[str, Any]]:
        """How each daemon finds the clock."""
        return {name: self.query(name, "status")["shell"]["clock"] for name in ACTORS}

    def states(self) -> set[str]:
        return {told["state"] for told in self.clocks().values()}

    def live(self, name: str) -> str:
        return str(self.lease(name)["state"])

    def kill_and_start(self) -> None:
        """All daemons at once, as a power failure would but for the reboot."""
        for name in ACTORS:
            assert self.up.pop(name).end(signal.SIGKILL) == -signal.SIGKILL
        self.start(*ACTORS)


def library() -> Path:
    found = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
    if not found:
        unavailable("the package faketime is installed, and has no libfaketimeMT.so.1")
    return found[0]


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    """Three daemons with two units leased for an hour."""
    require(FAKETIME)
    with quickstart(tmp_path, world=Machine(tmp_path)) as world:
        assert isinstance(world, Machine)
        leased = world.run("lease", "request", *LONG, "--name", "web", *world.on("guest"))
        assert leased.returncode == 0, leased.stderr
        yield world


@pytest.mark.parametrize("hours", [2, pytest.param(-2, marks=pytest.mark.soak)])
def test_a_clock_that_is_off_for_a_while(machine: Machine, hours: int) -> None:
    """Nothing ends by it, every command says so, leases can be had, a restart changes nothing."""
    machine.set(hours)
    for kill in (False, True):
        if kill:
            machine.kill_and_start()
        clocks = machine.clocks()
        assert {told["state"] for told in clocks.values()} == {"held"}
        assert all(abs(told["ahead"] - hours * HOUR) < MINUTE for told in clocks.values())
        machine.wait_joined("web", 2, state="active")
    told = machine.run("lease", "list", *machine.on("guest"))
    assert told.returncode == 0
    how = "set 2h ahead" if hours > 0 else "set back by 2h"
    assert f"leasekit: warning: guest: this machine's clock was {how}" in told.stderr
    status = machine.run("status", "--json", *machine.on("site"))
    assert json.loads(status.stdout)[0]["shell"]["clock"]["state"] == "held"
    assert f"site: this machine's clock was {how}" in status.stderr
    refused = machine.run("lease", "show", "nothing", *machine.on("guest"))
    assert refused.returncode == 1 and f"clock was {how}" in refused.stderr
    more = machine.run("lease", "request", *LONG, "--name", "more", *machine.on("guest"))
    assert more.returncode == 0, more.stderr
    machine.set()
    wait_until("agreement", lambda: machine.states() ^ {"agrees"})
    told = machine.run("lease", "list", *machine.on("guest"))
    assert "warning" not in told.stderr
    assert "right again" in (machine.state / "site.stderr").read_text()
    assert machine.live("web") == machine.live("more") == "active"
    closed = machine.run("lease", "close", "web", "--wait", *machine.on("guest"))
    assert closed.returncode == 0, closed.stderr


def test_a_clock_that_is_accepted(machine: Machine) -> None:
    """What is over by it ends, also after a kill in the middle; who accepted it is in each actor's history."""
    machine.set(2)
    wait_until("the alarm", lambda: machine.states() ^ {"held"})
    for number, name in enumerate(ACTORS):
        assert machine.live("web") == "active"
        accepted = machine.run("clock", "accept", name, *machine.on(name))
        assert accepted.returncode == 0, accepted.stderr
        assert re.search(r"time is \dh\S* later than before: 20\d\d-\d\d-\d\dT", accepted.stderr), accepted.stderr
        if not number:
            machine.kill_and_start()
            assert [told["state"] for told in machine.clocks().values()] == ["agrees", "held", "held"]
    wait_until("the end of the lease", lambda: machine.live("web") != "closed")
    assert machine.states() == {"agrees"}
    for name in ACTORS:
        with machine.client(name) as client:
            (row,) = [row for row in client.log(limit=10_000) if row["event"] == "clock_accepted"]
        assert " ahead, is accepted by " in row["why"]
    again = machine.run("clock", "accept", "site", *machine.on("site"))
    assert again.returncode == 0 and "nothing to accept" in again.stderr


@pytest.mark.soak
def test_a_store_that_is_ahead_of_the_clock(machine: Machine) -> None:
    """One that is behind is accepted by no daemon that runs, nor by one that starts before it is where the store is."""
    machine.set(-1)
    accepted = machine.run("clock", "accept", *machine.on("guest"))
    assert accepted.returncode == 1 and "stop the daemon" in accepted.stderr
    for name in ACTORS:
        machine.up.pop(name).end()
    refused = machine.run("up", str(machine.files / "guest.toml"), "--state", str(machine.state), "--accept-clock")
    assert refused.returncode == 1 and "Traceback" not in refused.stderr
    assert "ahead of this machine's clock. Set the clock right" in refused.stderr
    forget_the_boot(machine.state / "guest.db")
    refused = machine.run("up", str(machine.files / "guest.toml"), "--state", str(machine.state))
    assert refused.returncode == 1 and "ahead of this machine's clock. Set the clock right" in refused.stderr
    machine.set()
    machine.start(*ACTORS)
    assert machine.states() == {"agrees"}
    machine.wait_joined("web", 2, state="active")


@pytest.mark.soak
def test_a_peer_that_is_off_is_told(machine: Machine) -> None:
    """A site with another clock than its peers is not obeyed, and moves nobody's time; status says whose it is."""
    machine.up.pop("site").end()
    forget_the_boot(machine.state / "site.db")
    machine.set(2)
    machine.start("site")
    machine.set()
    before = machine.query("guest", "status")["now"]
    peers = {}

    def unknown() -> Any:
        peers.update({peer["peer"]: peer["clock_ahead"] for peer in machine.query("guest", "status")["peers"]})
        return None if peers["site"] else peers

    wait_until("the alarm", unknown)
    assert peers["broker"] == 0
    assert machine.query("guest", "status")["now"] - before < HOUR
    told = machine.run("status", *machine.on("guest"))
    assert "peer site: its clock is " in told.stderr
    assert machine.live("web") == "active"


@pytest.mark.soak
def test_a_site_that_is_stopped_for_a_while(machine: Machine) -> None:
    """What came while the process did not run is not late: no peer is said to have a wrong clock."""
    site = machine.up["site"].process
    site.send_signal(signal.SIGSTOP)
    # Longer than the skew that is allowed: heartbeats and this close wait for a process that does not run.
    with ControlClient(machine.state / "guest.control.sock") as guest:
        guest.command("lease.close", lease="web")
    time.sleep(6)
    site.send_signal(signal.SIGCONT)
    wait_until("the end of the lease", lambda: machine.live("web") != "closed")
    assert "the clock of" not in (machine.state / "site.stderr").read_text()


def forget_the_boot(store: Path) -> None:
    """What a reboot does to what the store knows of the clock."""
    import sqlite3

    with sqlite3.connect(store) as connection:
        connection.execute("UPDATE meta SET value = value + 1 WHERE key = 'clock_boot'")
    connection.close()
