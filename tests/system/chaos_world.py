"""Six daemons that lease to each other over TLS, each connection through a proxy; any may be killed at any time.

Two sites (one runs processes, one pretends), a broker that both delegate to, a second broker that gets a share of
it from the first, and two guests who may ask either.
"""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from runtime.runtime_processes import DaemonProcess
from system.chaos_journal import Journal
from system.chaos_proxy import HOST, Proxies
from system.chaos_tap import TappedProcess

from leasekit.config.keys import load_public, new_key
from leasekit.runtime.client import ControlClient

SITES: Final = ("north", "south")
BROKERS: Final = ("upper", "lower")
GUESTS: Final = ("ada", "bob")
ROLES: Final = {
    **dict.fromkeys(SITES, "authority"), **dict.fromkeys(BROKERS, "broker"), **dict.fromkeys(GUESTS, "guest"),
}  # fmt: skip
UNITS: Final = 12
"""How many units each site has; all of them go to the upper broker, and half of them on to the lower."""
BELOW: Final = 6

COMMON: Final = """
[deployment]
name = "chaos"
[actor.{name}]
role = "{role}"
listen = [{listen}]
[actor.{name}.settings]
retry_first = "200ms"
retry_max = "1s"
retention = "20s"
{settings}
[actor.{name}.transport]
heartbeat = "300ms"
silence = "2s"
handshake = "3s"
backoff_min = "20ms"
backoff_max = "300ms"
connections_per_minute = 100000
"""
INVENTORY: Final = """
[[actor.{name}.inventory]]
type = "vm"
units = {units}
prefix = "vm-"
driver = "made"
[[actor.{name}.delegation]]
broker = "upper"
type = "vm"
"""
PROCESSES: Final = """
[actor.north.driver.made]
kind = "process"
directory = "units"
command = ["sh", "-c", "trap '' HUP; exec sleep 1000000"]
ports = [{first}, {last}]
ready = "start"
identify = false
grace = "2s"
timeout = "20s"
"""
PRETENDED: Final = """
[actor.south.driver.made]
kind = "null"
latency = { setup = { kind = "normal", mean = "150ms", stddev = "100ms" }, teardown = "100ms", modify = "100ms" }
failure = { setup = 0.03, modify = 0.03 }
retries = 1
"""
GIVEN: Final = """
[[actor.upper.delegation]]
broker = "lower"
type = "vm"
units = {units}
site = "{site}"
"""
PEER: Final = """
[peer.{name}]
role = "{role}"
key = "keys/{name}.pub"
"""
SETTINGS: Final = {
    "authority": "failures_max = 1000000",
    "broker": 'group_timeout = "3s"\nrequest_timeout = "2s"',
    "guest": 'redeem_lead = "300ms"\nextend_lead = "1s"\nrequest_timeout = "10s"\nclose_timeout = "10m"',
}


def dials(name: str) -> list[str]:
    """Whom an actor dials: guests dial all others, brokers the sites, and the lower one the upper."""
    if ROLES[name] == "guest":
        return [*SITES, *BROKERS]
    if ROLES[name] == "broker":
        return [*SITES, *(["upper"] if name == "lower" else [])]
    return []


def free_ports(count: int, rng: random.Random) -> list[int]:
    """Ports that nobody listens on, below those that the system hands out: no outgoing connection gets one of them."""
    found: list[int] = []
    while len(found) < count:
        port = rng.randrange(11_000, 19_000)
        with socket.socket() as probe:
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
        if port not in found:
            found.append(port)
    return found


class World:
    """The deploy files, the proxies and the processes."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.state = folder / "s"
        self.journals = folder / "journals"
        self.journals.mkdir()
        self.state.mkdir(mode=0o700)
        self.proxies = Proxies(seed)
        self.running: dict[str, DaemonProcess] = {}
        self.files = {name: folder / f"{name}.toml" for name in ROLES}
        for name in ROLES:
            new_key(self.state / "keys" / f"{name}.key")
        rng = random.Random()
        listeners = [*SITES, *BROKERS]
        self._ports = dict(zip(listeners, free_ports(len(listeners), rng), strict=True))
        for name, file in self.files.items():
            file.write_text(self._text(name, rng))
        self.journal = Journal(self.journals, "load")

    def _text(self, name: str, rng: random.Random) -> str:
        role = ROLES[name]
        listen = f'"tcp://{HOST}:{self._ports[name]}"' if name in self._ports else ""
        text = COMMON.format(name=name, role=role, listen=listen, settings=SETTINGS[role])
        if role == "authority":
            text += INVENTORY.format(name=name, units=UNITS)
            first = rng.randrange(20_000, 27_000)
            text += PROCESSES.format(first=first, last=first + 499) if name == "north" else PRETENDED
        elif name == "upper":
            text += "".join(GIVEN.format(units=BELOW, site=site) for site in SITES)
        for other, other_role in ROLES.items():
            if other == name or (role == other_role and role != "broker"):
                continue
            text += PEER.format(name=other, role=other_role)
            if other in dials(name):
                text += f'address = "tcp://{HOST}:{self.proxies.link(f"{name}>{other}", self._ports[other])}"\n'
        return text

    def key(self, name: str) -> bytes:
        """An actor's public key."""
        return load_public(str(self.state / "keys" / f"{name}.pub"))

    @contextmanager
    def up(self) -> Iterator[None]:
        """Run the proxies and all daemons while the block runs; in the end none is left."""
        with self.proxies.running():
            try:
                for name in ROLES:
                    self.begin(name)
                for process in self.running.values():
                    process.wait_ready()
                yield
            finally:
                for process in self.running.values():
                    process.kill()
                self.journal.close()

    def begin(self, name: str) -> None:
        """Start a daemon, without waiting until it is ready."""
        self.running[name] = TappedProcess(self.files[name], self.state, name, self.journals)

    def kill(self, name: str) -> None:
        """SIGKILL; nothing else has ended it."""
        process = self.running.pop(name)
        ended = process.process.exitcode
        process.kill()
        assert ended is None, f"{name} ended by itself, with status {ended}: {process.said()[-3000:]}"

    def stop(self) -> None:
        """SIGTERM to all; each must end well."""
        for name, process in list(self.running.items()):
            assert process.end() == 0, f"{name}: {process.said()}"
            del self.running[name]

    def client(self, name: str, **options: Any) -> ControlClient:
        """A connection to an actor's control socket."""
        return ControlClient(self.state / f"{name}.control.sock", **options)

    def query(self, actor: str, query: str, /, **arguments: Any) -> Any:
        """One question to one actor."""
        with self.client(actor) as client:
            return client.query(query, **arguments)

    def command(self, actor: str, command: str, /, **arguments: Any) -> Any:
        """One command to one actor."""
        with self.client(actor) as client:
            return client.command(command, **arguments)

    def said(self, name: str) -> str:
        """All that a daemon wrote to its log and to standard error."""
        logs = sorted((self.state / "logs").glob(f"{name}.log*"))
        return "".join(path.read_text(errors="replace") for path in [*logs, self.state / f"{name}.stderr"])
