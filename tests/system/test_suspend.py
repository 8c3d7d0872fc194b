"""A lease of real processes is suspended for a reservation and goes on behind it: real daemons, real directories."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from runtime.runtime_processes import Daemons
from system.system_waits import no_units_left, unit_processes, wait_until

from leasekit.cli import main
from leasekit.core.time import HOUR, SECOND

pytestmark = pytest.mark.xdist_group("suspend")

DEPLOY = """
[deployment]
name = "suspend"
create_keys = true

[actor.site]
role = "authority"
listen = ["unix:site.sock"]
settings = { retry_first = "100ms", retry_max = "1s" }
inventory = [{ type = "vm", units = 2 }]
delegation = [{ broker = "broker", type = "vm" }]
[actor.site.driver.processes]
kind = "process"
directory = "units"
save = true
command = ["sh", "-c", "echo run >> runs; exec sleep 3600"]
ready = "start"
identify = false
ports = [27000, 27099]
grace = "1s"

[actor.broker]
role = "broker"
listen = ["unix:broker.sock"]
settings = { retry_first = "100ms", retry_max = "1s" }
mapper = { name = "backfill", suspension = "all", least_run = "1s" }

[actor.batch]
role = "guest"
settings = { retry_first = "100ms", retry_max = "1s", redeem_lead = "1s" }
transport = { backoff_max = "1s" }

[actor.web]
role = "guest"
settings = { retry_first = "100ms", retry_max = "1s" }
transport = { backoff_max = "1s" }
"""


def runs(state: Path) -> list[int]:
    """How often each program has begun, by the file that it writes into its directory."""
    return sorted(len(path.read_text().split()) for path in (state / "units" / "units").glob("*/work/runs"))


def test_processes_go_on_in_their_directories(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Each program begins again in the directory that it had; the site's daemon is killed while it keeps them."""
    file, state = tmp_path / "suspend.toml", tmp_path / "s"
    file.write_text(DEPLOY)
    with no_units_left(state), Daemons(file, state) as daemons:
        daemons.start_all()
        properties = {"preemptible": "true", "deferrable": "true", "suspend": "2s"}
        now = int(time.time() * SECOND)
        wish = {"type": "vm", "units": 2, "term": [now, now + HOUR], "name": "work", "properties": properties}
        first = daemons.command("batch", "lease.request", **wish)["id"]
        daemons.wait_for("batch", first, state="active")
        start = int(time.time() * SECOND) + 6 * SECOND
        reserved = {"type": "vm", "units": 2, "term": [start, start + 6 * SECOND]}
        reservation = daemons.command("web", "lease.request", **reserved)["id"]
        wait_until("saved", lambda: daemons.query("batch", "lease", lease=first)["state"] != "closed")
        saved = daemons.query("site", "saved")
        assert [(one["lease"], one["state"]) for one in saved] == [(first, "saved")] * 2
        assert main.run(["site", "saved", "--file", str(file), "--state", str(state)]) == 0
        rows = [row.split() for row in capfd.readouterr().out.splitlines()]
        assert [(row[0], row[3:5]) for row in rows[1:]] == [(first, ["batch", "saved"])] * 2
        daemons.wait_for("web", reservation, state="active")
        daemons.kill("site")
        daemons.start("site")
        rest = daemons.query("batch", "lease", lease="work")
        assert rest["resumes"]["lease"] == first
        found = daemons.wait_for("batch", rest["id"], state="active")
        assert found["reason"] == ""
        assert runs(state) == [2, 2], "each began a second time, where it had begun the first"
        assert daemons.query("site", "saved") == []
        daemons.command("batch", "lease.close", lease=rest["id"])
        wait_until("everything is gone", lambda: unit_processes(state) + list((state / "units").glob("saved/*")))
