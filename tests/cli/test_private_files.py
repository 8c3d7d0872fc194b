"""Against real daemons: what they write is for their owner alone, whatever the umask and the folder above allow."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cli_daemons import running, site_and_broker
from system.system_waits import no_units_left, wait_until

from leasekit.config.load import load
from leasekit.core.time import HOUR
from leasekit.runtime.client import ControlClient

pytestmark = pytest.mark.xdist_group("cli_daemons")

DEPLOY = site_and_broker("""
[[actor.site.inventory]]
type = "vm"
units = 1
driver = "processes"
[[actor.site.delegation]]
broker = "broker"
type = "vm"
[actor.site.driver.processes]
kind = "process"
directory = "site-units"
ports = [28100, 28199]
""")


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def open_to_others(folder: Path) -> list[str]:
    """What is in a folder that others may do anything with, but for peers' sockets and public keys."""
    found = []
    for path in sorted(folder.rglob("*")):
        mode = path.lstat().st_mode
        if (
            mode & 0o077
            and not stat.S_ISLNK(mode)
            and path.name not in ("site.sock", "broker.sock")
            and path.suffix != ".pub"
        ):
            found.append(f"{path.relative_to(folder)} {stat.S_IMODE(mode):04o}")
    return found


def lease(file: Path) -> None:
    """Have a unit set up, which makes its folder and logs."""
    with ControlClient(load(file).actors["guest"].control) as guest:
        now = guest.query("status")["now"]
        later = {"deferrable": "true", "latest_start": str(now + HOUR)}
        made = guest.command("lease.request", type="vm", units=1, term=[now, now + HOUR], properties=later)
        wait_until("active", lambda: "" if guest.query("lease", lease=made["id"])["state"] == "active" else "not yet")


def test_what_daemons_write_is_private(tmp_path: Path) -> None:
    """Databases and what SQLite keeps beside them, logs, units' folders and logs, sockets: of a daemon without a umask,
    in a folder that all may use. What is wider when it starts is narrowed, and said once.
    """
    file, state = tmp_path / "private.toml", tmp_path / "run"
    file.write_text(DEPLOY)
    state.mkdir()
    state.chmod(0o755)
    with umask(0), no_units_left(state):
        with running(file, command=True):
            lease(file)
            wide = [path for path in state.rglob("*.db*") if path.suffix != ".lock"]
            assert {path.name for path in wide} >= {f"site.db{suffix}" for suffix in ("", "-wal", "-shm")}
            assert list(state.glob("logs/units/site/*.log")) and list(state.glob("site-units/units/vm-0/*"))
            assert open_to_others(state) == []
        wide = [*state.glob("*.db"), *state.rglob("*.log"), state / "logs", *state.glob("site-units/units/*")]
        for path in wide:
            path.chmod(path.stat().st_mode | 0o055)
        with running(file, command=True):
            assert open_to_others(state) == []
        said = file.with_suffix(".log").read_text()
        databases = [path for path in wide if path.suffix == ".db"]
        assert all(said.count(f"others could use {path} (mode 0655)") == 1 for path in databases), said
        # One line for each actor's database, one for its logs, and one for the site's units.
        assert said.count("others could use") == 2 * len(databases) + 1
        with running(file, command=True):
            assert open_to_others(state) == []
        assert "others could" not in file.with_suffix(".log").read_text()
