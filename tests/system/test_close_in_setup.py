"""Leases that are closed while their site sets them up, by real daemons whose setup never ends by itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from runtime.runtime_processes import Daemons
from runtime.runtime_world import request
from system.system_waits import SETTLED_WITHIN, wait_until

from leasekit.drivers.processes import process_state

DEPLOY = """
[deployment]
name = "close"
create_keys = true

[actor.site]
role = "authority"
listen = ["unix:site.sock"]
settings = { retry_first = "100ms", retry_max = "1s" }
inventory = [{ type = "vm", units = 3 }]
delegation = [{ broker = "broker", type = "vm" }]
[actor.site.driver.scripts]
kind = "script"
directory = "PLACE"
environment = { FOLDER = "PLACE" }
setup = ["./setup.sh"]
teardown = ["./teardown.sh"]
grace = "5s"

[actor.broker]
role = "broker"
listen = ["unix:broker.sock"]
settings = { retry_first = "100ms", retry_max = "1s" }

[actor.guest]
role = "guest"
settings = { retry_first = "100ms", retry_max = "1s" }
transport = { backoff_max = "1s" }
"""

# vm-0 is ready at once; any other waits for a word that nobody says. A process of its own stands for what it writes.
SETUP = """#!/bin/sh
mkdir "$FOLDER/$LEASEKIT_UNIT" 2>/dev/null
echo "setup $LEASEKIT_UNIT $$" >>"$FOLDER/journal"
[ "$LEASEKIT_UNIT" = vm-0 ] || read word <"$FOLDER/word"
"""
TEARDOWN = """#!/bin/sh
echo "teardown $LEASEKIT_UNIT $$" >>"$FOLDER/journal"
rmdir "$FOLDER/$LEASEKIT_UNIT"
"""


class Scripts:
    """The folder of a site's scripts, and what they have written down."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        for name, text in (("setup.sh", SETUP), ("teardown.sh", TEARDOWN)):
            (folder / name).write_text(text)
            (folder / name).chmod(0o755)
        os.mkfifo(folder / "word")

    def runs(self, what: str) -> dict[int, str]:
        """The unit of each process that ran a script, by its id."""
        path = self.folder / "journal"
        lines = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
        return {int(pid): unit for op, unit, pid in lines if op == what}

    def alive(self) -> list[int]:
        """The processes of setups that go on."""
        return [pid for pid in self.runs("setup") if (state := process_state(pid)) is not None and state.alive]


@contextmanager
def in_setup(folder: Path) -> Iterator[tuple[Daemons, Scripts, str]]:
    """Three daemons, and a lease of two units of which one is up and the other is being set up."""
    scripts = Scripts(folder / "scripts")
    file = folder / "close.toml"
    file.write_text(DEPLOY.replace("PLACE", str(scripts.folder)))
    try:
        with Daemons(file, folder / "s") as daemons:
            daemons.start_all()
            lease = daemons.command("guest", "lease.request", **request(name="web"))["id"]
            wait_until("setups", lambda: {"vm-0", "vm-1"} - set(scripts.runs("setup").values()))
            wait_until("vm-0", lambda: daemons.query("site", "units")[0]["state"] != "active")
            yield daemons, scripts, lease
    finally:
        for pid in scripts.alive():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def check_nothing_is_left(daemons: Daemons, scripts: Scripts, lease: str) -> None:
    """No setup goes on, all was torn down, nothing was replaced; units are free, and the broker has their time."""
    wait_until("units", lambda: [unit for unit in daemons.query("site", "units") if unit["state"] != "free"])
    wait_until("returns", lambda: daemons.query("guest", "returns"))
    wait_until("broker", lambda: [one for one in daemons.query("broker", "sources") if one["free_now"] != 3])
    assert daemons.query("guest", "lease", lease=lease)["state"] == "closed"
    assert scripts.alive() == []
    assert set(scripts.runs("setup").values()) == set(scripts.runs("teardown").values()) == {"vm-0", "vm-1"}
    assert not list(scripts.folder.glob("vm-*"))


def leasekit(daemons: Daemons, *words: str) -> str:
    """What the command says; it must succeed, and soon."""
    line = [
        sys.executable,
        "-m",
        "leasekit.cli.main",
        *words,
        "--file",
        str(daemons.file),
        "--state",
        str(daemons.state),
    ]
    return subprocess.run(line, check=True, capture_output=True, text=True, timeout=SETTLED_WITHIN).stdout


def test_a_close_ends_the_setup(tmp_path: Path) -> None:
    """``lease close --wait`` returns when all is torn down, long before the setup would ever have ended."""
    with in_setup(tmp_path) as (daemons, scripts, lease):
        leasekit(daemons, "lease", "close", "web", "--wait")
        check_nothing_is_left(daemons, scripts, lease)
        assert "closed by its guest" in leasekit(daemons, "lease", "show", "web")


def test_a_close_outlasts_the_death_of_guest_and_site(tmp_path: Path) -> None:
    """The site is killed in the middle of a setup, the guest when it has agreed to the close, and both once more in the
    middle of what comes of it. What a killed site had begun goes on for nobody.
    """
    with in_setup(tmp_path) as (daemons, scripts, lease):
        daemons.kill("site")
        daemons.command("guest", "lease.close", lease=lease)
        shown: dict[str, Any] = daemons.query("guest", "lease", lease=lease)
        assert (shown["state"], shown["pending"], shown["closing"]) == ("ticketed", "close_wait", True)
        daemons.kill("guest")
        daemons.start("site")
        daemons.kill("site")
        daemons.start("guest")
        daemons.kill("guest")
        daemons.start("site", "guest")
        check_nothing_is_left(daemons, scripts, lease)
