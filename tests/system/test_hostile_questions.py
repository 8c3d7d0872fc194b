"""The dearest questions that a guest may ask: topologies as large as there may be, asked of live daemons."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from cli_daemons import running
from system.system_waits import wait_until

from leasekit.core.time import HOUR
from leasekit.runtime.client import ControlClient

SITES, QUESTIONS, REQUESTS = 4, 6, 8
GROWTH_MAX = 128 * 2**20
"""By how much all these daemons together may have grown, in bytes."""
HEAD = """
[deployment]
name = "questions"
state = "s"
create_keys = true
"""
AUTHORITY = """
[actor.{name}]
role = "authority"
listen = ["unix:{name}.sock"]
driver.null.kind = "null"
"""
TYPE = """
[[actor.{name}.inventory]]
type = "{type}"
units = {units}
driver = "null"
properties = {{ {properties} }}
[[actor.{name}.delegation]]
broker = "broker"
type = "{type}"
"""
OTHERS = """
[actor.broker]
role = "broker"
listen = ["unix:broker.sock"]
mapper.name = "coallocation"
[actor.greedy]
role = "guest"
mapper.name = "manual"
[actor.honest]
role = "guest"
mapper.name = "manual"
"""


def network() -> str:
    """Sites of eight units, each linked to each of the others in both ways round."""
    text = HEAD + OTHERS
    for number in range(SITES):
        name = f"N{number}"
        text += AUTHORITY.format(name=name) + TYPE.format(name=name, type="vm", units=8, properties="")
    text += AUTHORITY.format(name="net")
    for a in range(SITES):
        for b in range(SITES):
            if a != b:
                ends = f'"link.a" = "N{a}", "link.b" = "N{b}"'
                text += TYPE.format(name="net", type=f"l{a}x{b}", units=10, properties=ends)
    return text


def largest(units: int, bandwidth: float, now: int) -> dict[str, Any]:
    """A topology of as many sites and links as there may be, over paths of any length, at any of a thousand starts."""
    pairs = [(number, (number + step) % 16) for step in (1, 5) for number in range(16)]
    return {
        "sites": [{"id": f"r{number}", "type": "vm", "units": units} for number in range(16)],
        "links": [
            {"id": f"k{a}-{b}", "from": f"r{a}", "to": f"r{b}", "bw": bandwidth, "backup": True} for a, b in pairs
        ],
        "duration": HOUR, "est": now + HOUR, "lst": now + 5 * HOUR,
        "options": {"pmax": 64, "distinct_sites": False, "sort": "value", "frames": {"count": 1000, "mode": "both"}},
    }  # fmt: skip


def resident(process: int) -> int:
    """The bytes that a process has in memory."""
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def untold(lease: dict[str, Any]) -> dict[str, Any] | None:
    """A lease without a ticket."""
    return None if lease["state"] == "ticketed" else lease


def test_live_topologies_of_any_shape_hold_up_nobody(tmp_path: Path) -> None:
    """While a guest's questions wait, another guest's requests are granted; each question is answered in the end."""
    file = tmp_path / "questions.toml"
    file.write_text(network())
    with running(file) as daemons:
        doors = [ControlClient(tmp_path / "s" / f"{name}.control.sock") for name in ("greedy", "honest", "broker")]
        with doors[0] as greedy, doors[1] as honest, doors[2] as broker:
            wait_until("all that is delegated", lambda: SITES * SITES - len(broker.query("sources")))
            before, now = resident(daemons.pid), time.time_ns() // 1_000_000
            asked = [
                greedy.command("topology.request", request=largest(1 + number % 3, 1 + number, now), broker="", tries=3)
                for number in range(QUESTIONS)
            ]

            def unanswered() -> list[str]:
                shown = [greedy.query("topology", topology=one["topology"]) for one in asked]
                return [one["topology"] for one in shown if one["state"] not in ("failed", "committed")]

            assert unanswered()
            for number in range(REQUESTS):
                term = [now + (24 + number) * HOUR, now + (25 + number) * HOUR]
                lease = honest.command("lease.request", type="vm", units=8, term=term)["id"]
                wait_until("a ticket", lambda lease=lease: untold(honest.query("lease", lease=lease)))
            wait_until("answers", unanswered)
            assert resident(daemons.pid) - before < GROWTH_MAX
            assert broker.query("status")["shell"]["bugs"] == 0
