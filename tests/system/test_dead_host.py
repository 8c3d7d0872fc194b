"""A host dies with ten guests: real daemons, whose machines are real processes."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from runtime.runtime_processes import Daemons
from runtime.runtime_world import request
from system.system_waits import no_units_left, unit_processes, wait_until

DEPLOY = """
[deployment]
name = "dead"
create_keys = true

[actor.site]
role = "authority"
listen = ["unix:site.sock"]
settings = { retry_first = "100ms", retry_max = "1s" }
inventory = [{ type = "node", names = ["a", "b"], capacity = { cpu = 10, memory = "10GiB" } }]
delegation = [{ broker = "broker", type = "node" }]
[actor.site.driver.processes]
kind = "process"
directory = "units"
command = ["sleep", "3600"]
ready = "start"
identify = false
ports = [27800, 27899]

[actor.broker]
role = "broker"
listen = ["unix:broker.sock"]
settings = { retry_first = "100ms", retry_max = "1s" }

[actor.guest]
role = "guest"
settings = { retry_first = "100ms", retry_max = "1s" }
transport = { backoff_max = "1s" }
"""


def test_a_host_dies_with_ten_guests(tmp_path: Path) -> None:
    """Four are placed anew, six are told that they have fewer, and a guest on another host goes on; the site's daemon
    is killed when it has heard of it.
    """
    file, state = tmp_path / "dead.toml", tmp_path / "s"
    file.write_text(DEPLOY)
    with no_units_left(state), Daemons(file, state) as daemons:
        daemons.start_all()

        def leased(cpu: int) -> str:
            needs = {"needs.cpu": str(1000 * cpu), "needs.memory": "1024"}
            wish = request(1, properties=needs) | {"type": "node"}
            lease = str(daemons.command("guest", "lease.request", **wish)["id"])
            daemons.wait_for("guest", lease, state="active")
            return lease

        def machines(lease: str) -> list[dict[str, Any]]:
            return [unit for unit in daemons.query("site", "units") if unit["lease"] == lease and unit["host"]]

        leases, beside = [leased(1) for _ in range(10)], leased(6)
        (other,) = machines(beside)
        assert [unit["host"] for lease in leases for unit in machines(lease)] == ["a"] * 10 and other["host"] == "b"
        running = {pid: Path(f"/proc/{pid}/environ").read_bytes() for pid in unit_processes(state)}
        dead = [pid for pid, environment in running.items() if b"/units/a." in environment]
        assert (len(dead), len(running)) == (10, 11)
        for pid in dead:
            os.kill(pid, signal.SIGKILL)
        daemons.command("site", "unit.fail", unit="a", reason="fire")
        daemons.kill("site")
        daemons.start("site")

        def still_wrong() -> Any:
            told = [daemons.query("guest", "lease", lease=lease) for lease in leases]
            anew = sum(len(one["units"]) for one in told if one["state"] == "active")
            fewer = sum(one["reason"].startswith("1 of 1 units are missing: unit a.") for one in told)
            return (anew, fewer) != (4, 6) and [(one["state"], one["units"], one["reason"]) for one in told]

        wait_until("four anew, and six told", still_wrong)
        assert [unit["host"] for lease in leases for unit in machines(lease)] == ["b"] * 4
        assert [unit["unit"] for unit in machines(beside)] == [other["unit"]]
        assert len(unit_processes(state)) == 5 and len(set(unit_processes(state)) & set(running)) == 1
        for lease in (*leases, beside):
            daemons.command("guest", "lease.close", lease=lease)
        wait_until("no process", lambda: unit_processes(state))
