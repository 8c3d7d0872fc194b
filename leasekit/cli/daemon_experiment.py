"""Shirako's section 5.3 with daemons: where the paper's actors spoke SOAP over a network and wrote to LDAP, ours speak
over TCP on the loopback, sign, and commit to SQLite.

All nodes of a site are leased, given back, and leased anew, as fast as the daemons can. A lease is closed before its
end, so a flip holds the return of a ticket, too, which the paper's does not: its terms run out.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, Final

from leasekit.core.errors import LeasekitError
from leasekit.core.time import HOUR
from leasekit.emulation.papers.claims import Means, PaperClaim, PaperExperiment, PaperFigures
from leasekit.emulation.papers.shirako import MACHINE, PAPER
from leasekit.runtime.client import ControlClient

LEASEKIT: Final = (sys.executable, "-m", "leasekit.cli.main")
NODES: Final = 240
PATIENCE: Final = 300.0
"""Seconds after which a daemon that says nothing has failed."""
ACTORS: Final = ("site", "broker", "guest")
DEPLOY: Final = """
[deployment]
name = "flips"
state = "state"
create_keys = true
[actor.site]
role = "authority"
listen = ["tcp://127.0.0.1:{site}"]
log_level = "error"
[[actor.site.inventory]]
type = "node"
units = {nodes}
driver = "machines"
[[actor.site.delegation]]
broker = "broker"
type = "node"
[actor.site.driver.machines]
kind = "null"
concurrency = 1000
[actor.broker]
role = "broker"
listen = ["tcp://127.0.0.1:{broker}"]
log_level = "error"
[actor.guest]
role = "guest"
listen = ["tcp://127.0.0.1:{guest}"]
log_level = "error"
[actor.guest.mapper]
name = "manual"
[actor.guest.driver.application]
kind = "null"
types = ["node"]
concurrency = 1000
"""


@contextmanager
def _daemons(nodes: int) -> Iterator[Path]:
    """Three daemons that run; the guest's control socket."""
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        file = Path(scratch) / "flips.toml"
        ports = dict(zip(ACTORS, free_ports(len(ACTORS)), strict=True))
        file.write_text(DEPLOY.format(nodes=nodes, **ports), encoding="utf-8")
        for name in ACTORS:
            stack.enter_context(started_daemon(file, name))
        yield file.parent / "state" / "guest.control.sock"


def free_ports(count: int) -> list[int]:
    """Ports of the loopback that nobody listens on."""
    with ExitStack() as held:
        servers = [held.enter_context(closing(socket.create_server(("127.0.0.1", 0)))) for _ in range(count)]
        return [server.getsockname()[1] for server in servers]


def started_daemon(file: Path, *names: str) -> ExitStack:
    """A daemon of these actors that has said that it is ready; it ends with the stack."""
    stack = ExitStack()
    reading, writing = os.pipe()
    up = (*LEASEKIT, "up", str(file), *names, "--ready-fd", str(writing))
    daemon = subprocess.Popen(up, pass_fds=[writing], stdout=subprocess.DEVNULL)
    stack.callback(daemon.wait, PATIENCE)
    stack.callback(daemon.send_signal, signal.SIGTERM)
    os.close(writing)
    with os.fdopen(reading, "rb") as ready:
        if not ready.readline():
            raise LeasekitError(f"{', '.join(names)}: the daemon ended, expected one that says that it is ready")
    return stack


class _Flips:
    """Leases of all nodes, asked for and closed in turn."""

    def __init__(self, commands: ControlClient, events: Iterator[Mapping[str, Any]], leases: int) -> None:
        self._commands, self._events, self._leases = commands, events, leases
        self._active: set[str] = set()

    def lease(self) -> None:
        """Ask for all nodes, and wait until all leases are active."""
        start = time.time_ns() // 1_000_000
        properties = {"deferrable": "true", "latest_start": str(start + HOUR)}
        more = {"units": NODES // self._leases, "term": [start, start + 24 * HOUR], "properties": properties}
        for answer in self._commands.batch([("command", "lease.request", {"type": "node", **more})] * self._leases):
            if isinstance(answer, Exception):
                raise answer
        while len(self._active) < self._leases:
            event = next(self._events)
            state = str(event.get("to_state", ""))
            if "missed" in event or state.startswith("failed"):
                raise LeasekitError(f"leases of daemons: found {event}, expected leases that become active")
            if state == "active/-" and event["event"] == "lease":
                self._active.add(event["lease"])

    def close(self) -> None:
        """Close all of them; it is not waited until they are over."""
        for lease in self._active:
            self._commands.command("lease.close", lease=lease)
        self._active.clear()


def flips_per_s(leases: int, terms: int) -> float:
    """How many nodes a second the daemons take from leases and give to others. Raises ``LeasekitError``."""
    with (
        _daemons(NODES) as control,
        ControlClient(control, timeout=PATIENCE) as commands,
        ControlClient(control, timeout=PATIENCE) as watching,
    ):
        flips = _Flips(commands, watching.watch(patience=PATIENCE), leases)
        flips.lease()
        begin = time.perf_counter()
        for _ in range(terms):
            flips.close()
            flips.lease()
        return NODES * terms / (time.perf_counter() - begin)


def _sockets(means: Means) -> PaperFigures:
    repetitions, terms = (3, 2) if means.quick else (10, 5)
    figures: dict[str, list[float]] = {}
    for leases in (1, 24):
        found = [flips_per_s(leases, terms) for _ in range(repetitions)]
        figures[f"flips/s by daemons, N = 240, l = {leases}"] = found
        figures[f"minimum term by daemons, N = 240, l = {leases}, s"] = [NODES / one for one in found]
    return PaperFigures(figures)


SOCKETS: Final = PaperExperiment(
    name="sockets", paper=PAPER, what="What leasing costs at saturation where the actors are daemons.",
    full="10 repetitions of 5 flips of all nodes", quick="3 repetitions of 2 flips of all nodes", run=_sockets,
    claims=(
        PaperClaim("table 5", "flips/s by daemons, N = 240, l = 1", "1.9", low=1.9, why=MACHINE),
        PaperClaim("table 5", "minimum term by daemons, N = 240, l = 1, s", "122", high=122, why=MACHINE),
        PaperClaim("table 5", "flips/s by daemons, N = 240, l = 24"),
        PaperClaim("table 5", "minimum term by daemons, N = 240, l = 24, s"),
    ),
    stand_ins=(
        "messages over TCP on the loopback, signed, for SOAP between two machines; SQLite that is synced for LDAP",
        "leases are closed, with the return of their tickets, where the paper's run out",
    ),
)  # fmt: skip
