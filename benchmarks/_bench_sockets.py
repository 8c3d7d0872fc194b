"""Three daemons on loopback (TCP, signed, SQLite with full sync), and a client that keeps leases in flight."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from leasekit.cli.daemon_experiment import free_ports, started_daemon
from leasekit.core.time import DAY
from leasekit.runtime.client import ControlClient

ACTORS = ("site", "broker", "guest")
DEPLOY = """
[deployment]
name = "lifecycle"
state = "state"
create_keys = true

[actor.site]
role = "authority"
listen = ["tcp://127.0.0.1:{site}"]
log_level = "warning"
[[actor.site.inventory]]
type = "vm"
units = {units}
prefix = "vm-"
driver = "null"
[[actor.site.delegation]]
broker = "broker"
type = "vm"
units = {units}
[actor.site.driver.null]
kind = "null"
concurrency = 1000

[actor.broker]
role = "broker"
listen = ["tcp://127.0.0.1:{broker}"]
log_level = "warning"

[actor.guest]
role = "guest"
listen = ["tcp://127.0.0.1:{guest}"]
log_level = "warning"
[actor.guest.mapper]
name = "manual"
[actor.guest.driver.null]
kind = "null"
types = ["vm"]
concurrency = 1000
"""


def sockets(count: int, in_flight: int) -> float:
    """Leases a second from request to active, ``in_flight`` of them on their way at once."""
    with daemons(count) as file:
        return drive(control(file, "guest"), count, in_flight)


@contextmanager
def daemons(units: int, others: str = "", also: Sequence[str] = ()) -> Iterator[Path]:
    """The deploy file of daemons that run, where the guest can ask the broker for ``units`` units. It has ``others``,
    too, of whom those ``also`` named run, in one more process.
    """
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        file = Path(scratch) / "lifecycle.toml"
        ports = dict(zip(ACTORS, free_ports(len(ACTORS)), strict=True))
        file.write_text(DEPLOY.format(units=units, **ports) + others, encoding="utf-8")
        for name in ACTORS:
            stack.enter_context(started_daemon(file, name))
        if also:
            stack.enter_context(started_daemon(file, *also))
        _wait("the broker to hold the site's delegation", control(file, "broker"), lambda c: bool(c.query("sources")))
        _wait("the guest to be connected to its peers", control(file, "guest"), _connected)
        yield file


def control(file: Path, name: str) -> Path:
    """The control socket of one of them."""
    return file.parent / "state" / f"{name}.control.sock"


def drive(socket: Path, count: int, in_flight: int) -> float:
    """Ask for leases of one unit until ``count`` are active; returns how many a second were."""
    with ControlClient(socket) as commands, ControlClient(socket, timeout=120) as watching:
        return _drive(commands, watching.watch(), count, in_flight)


def _drive(commands: ControlClient, events: Iterator[Mapping[str, Any]], count: int, in_flight: int) -> float:
    sent = active = 0
    some = max(1, in_flight // 4)
    begin = time.perf_counter()
    start = int(time.time() * 1000)
    arguments = {"type": "vm", "units": 1, "term": [start, start + 30 * DAY], "properties": {"deferrable": "true"}}
    while active < count:
        while sent < count and sent - active <= in_flight - some:
            for result in commands.batch([("command", "lease.request", arguments)] * min(some, count - sent)):
                if isinstance(result, Exception):
                    raise result
                sent += 1
        for event in events:
            if "missed" in event:
                raise RuntimeError(f"{event['missed']} events were missed")
            if event["to_state"] == "active/-" and event["event"] == "lease":
                active += 1
                if active == count or (sent < count and sent - active <= in_flight - some):
                    break
            elif event["to_state"].startswith(("failed", "closed")):
                raise RuntimeError(f"lease {event['lease']}: {event['why']}")
    return count / (time.perf_counter() - begin)


def _connected(client: ControlClient) -> bool:
    return all(peer["connected"] for peer in client.query("status")["peers"] if peer["peer"] in ACTORS)


def _wait(what: str, socket: Path, reached: Callable[[ControlClient], bool]) -> None:
    """Ask a daemon now and then: what is waited for are other daemons' doings, of which it sends no word."""
    with ControlClient(socket) as client:
        deadline = time.monotonic() + 30
        while not reached(client):
            if time.monotonic() > deadline:
                raise RuntimeError(f"waited 30 s for {what}")
            time.sleep(0.05)
