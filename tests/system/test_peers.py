"""Real daemons over TLS whose actors become known to each other while they run."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import trio
from system.system_waits import wait_until
from system.test_daemons import Up

from leasekit.config.keys import load_key, load_public, new_key
from leasekit.core.claims.signed import ED25519, Keypair, endorse
from leasekit.core.protocol.messages import Accepted, ErrorReply, Introduce, Message
from leasekit.runtime.client import ControlClient
from leasekit.runtime.clock import RealClock
from leasekit.runtime.peers import PeerAddress
from leasekit.runtime.sockets import parse_endpoint
from leasekit.runtime.transport import Transport

SITE = """
[deployment]
name = "lab"
[actor.site]
role = "authority"
listen = ["tcp://127.0.0.1:{site}"]
[[actor.site.inventory]]
type = "vm"
units = 2
[[actor.site.delegation]]
broker = "broker"
type = "vm"
[peer.broker]
role = "broker"
key = "keys/broker.pub"
"""
BROKER = """
[deployment]
name = "lab"
[actor.broker]
role = "broker"
listen = ["tcp://127.0.0.1:{broker}"]
settings.endorse = true
[peer.site]
role = "authority"
key = "keys/site.pub"
address = "tcp://127.0.0.1:{site}"
[peer.guest]
role = "guest"
key = "keys/guest.pub"
"""
GUEST = """
[deployment]
name = "lab"
[actor.guest]
role = "guest"
settings.redeem_lead = "1s"
[peer.broker]
role = "broker"
key = "keys/broker.pub"
address = "tcp://127.0.0.1:{broker}"
"""


def until(condition: Callable[[], bool]) -> None:
    """Wait until it holds."""
    wait_until("it holds", lambda: "" if condition() else "not yet")


def free_port() -> int:
    """A port that nobody listens on just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Lab:
    """A site and a guest that don't know each other, and the broker that knows both."""

    def __init__(self, folder: Path) -> None:
        self.state = folder / "s"
        self.state.mkdir(mode=0o700)
        for name in ("site", "broker", "guest"):
            new_key(self.state / "keys" / f"{name}.key")
        ports = {"site": free_port(), "broker": free_port()}
        self.files = {}
        for name, text in {"site": SITE, "broker": BROKER, "guest": GUEST}.items():
            self.files[name] = folder / f"{name}.toml"
            self.files[name].write_text(text.format(**ports))
        self.up = {name: Up(self.files[name], self.state) for name in ("site", "broker", "guest")}

    def query(self, actor: str, name: str, **arguments: Any) -> Any:
        with ControlClient(self.state / f"{actor}.control.sock") as client:
            return client.query(name, **arguments)

    def command(self, actor: str, name: str, /, **arguments: Any) -> Any:
        with ControlClient(self.state / f"{actor}.control.sock") as client:
            return client.request("command", name, arguments)

    def cli(self, actor: str, *words: str) -> str:
        line = [sys.executable, "-m", "leasekit.cli.main", *words, "--file", str(self.files[actor])]
        done = subprocess.run([*line, "--state", str(self.state)], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    def lease(self) -> str:
        """Have the guest lease a unit for ten minutes; its id once it is active."""
        now = self.query("guest", "status")["now"]
        term = [now, now + 600_000]
        made = self.command("guest", "lease.request", type="vm", units=1, term=term, properties={"deferrable": "true"})
        lease = str(made["lease"] if "lease" in made else made["id"])
        until(lambda: self.query("guest", "lease", lease=lease)["state"] in ("active", "failed"))
        return lease

    def restart(self, name: str) -> None:
        """Kill a daemon, and start it again."""
        self.up[name].end(signal.SIGKILL)
        self.up[name] = Up(self.files[name], self.state)


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with ExitStack() as stack:
        made = Lab(tmp_path)
        for name in made.up:
            stack.callback(lambda name=name: made.up[name].end())
        yield made


def test_strangers_meet(lab: Lab) -> None:
    """By the broker's endorsement the guest leases from a site that it had never heard of; nobody is forgotten."""
    until(lambda: any(source["state"] == "held" for source in lab.query("broker", "sources")))
    lease = lab.lease()
    assert lab.query("guest", "lease", lease=lease)["state"] == "active"
    known = {peer["peer"]: peer["origin"] for peer in lab.query("site", "peers")}
    assert known["guest"] == "broker"
    assert "endorsed" not in lab.cli("site", "peer", "list", "--json") and "guest" in lab.cli("site", "peer", "list")
    for name in ("site", "guest"):
        lab.restart(name)
    lab.command("guest", "lease.close", lease=lease)
    until(lambda: lab.query("guest", "lease", lease=lease)["state"] == "closed")


def test_a_peer_is_removed_and_added_by_hand(lab: Lab) -> None:
    """A guest that the operator of the broker removes gets nothing there, until it is added again."""
    until(lambda: any(source["state"] == "held" for source in lab.query("broker", "sources")))
    assert "not known any more" in lab.cli("broker", "peer", "remove", "guest")
    until(lambda: not _connected(lab, "guest", "broker"))
    key = load_public(str(lab.state / "keys" / "guest.pub")).hex()
    lab.restart("broker")
    assert all(peer["peer"] != "guest" for peer in lab.query("broker", "peers"))
    assert "may redeem, request" in lab.cli("broker", "peer", "add", "guest", "--role", "guest", "--key", key)
    until(lambda: _connected(lab, "guest", "broker"))
    assert lab.query("guest", "lease", lease=lab.lease())["state"] == "active"


def test_what_a_site_shows(lab: Lab) -> None:
    """Claims, delegations and evidence are listed, and a delegation is taken back, from the command line."""
    until(lambda: any(source["state"] == "held" for source in lab.query("broker", "sources")))
    lab.lease()
    assert "redeemed" in lab.cli("site", "site", "claims")
    assert "no evidence" in lab.cli("site", "site", "evidence")
    assert "begun by then end by" in lab.cli("site", "site", "reclaim", "site/vm@broker", "--deadline", "+1h")
    until(lambda: lab.query("site", "delegations")[0]["state"] == "reclaimed")
    assert "reclaimed" in lab.cli("site", "site", "delegations")
    assert "window-" in lab.cli("site", "site", "maintenance", "add", "--from", "+1h", "--until", "+2h")
    assert "maintenance" in lab.cli("site", "site", "maintenance", "list")


def _connected(lab: Lab, actor: str, peer: str) -> bool:
    with ControlClient(lab.state / f"{actor}.control.sock") as client:
        described = client.query("status")
    peers = {one["peer"]: one for one in described.get("peers", [])}
    return bool(peers.get(peer, {}).get("connected"))


UNDIALLED = {0: "tcp://127.0.0.1:0", 1: "tcp://no..host:7000"}
"""Addresses at which no machine can ever be, of some of those who are introduced by the usurper."""


class Usurper:
    """One who has the broker's key, and says what it likes to the site."""

    def __init__(self, lab: Lab) -> None:
        self._signer = load_key(lab.state / "keys" / "broker.key")
        site = load_public(str(lab.state / "keys" / "site.pub"))
        where = next(word for word in lab.up["site"].ready.split() if word.startswith("listen="))
        self._site = PeerAddress("site", site, parse_endpoint(where.removeprefix("listen=")))
        self.answers: list[Message] = []

    def introduce(self, count: int) -> None:
        """Introduce so many guests that don't exist; returns when all are answered."""
        trio.run(self._introduce, count)

    async def _introduce(self, count: int) -> None:
        async with trio.open_nursery() as nursery:
            nursery.cancel_scope.deadline = trio.current_time() + 30
            connected = trio.Event()
            transport = Transport(
                "broker", self._signer, ED25519, [self._site], [], clock=RealClock().now, on_receive=self._hear,
                on_connected=lambda peer: connected.set(),
            )  # fmt: skip
            nursery.start_soon(transport.run)
            await connected.wait()
            for number in range(count):
                key = Keypair(number.to_bytes(32, "big")).public
                place = UNDIALLED.get(number, "")
                note = endorse(self._signer, key, RealClock().now(), name=f"no-{number}", role="guest", address=place)
                transport.send("site", [Introduce(f"no-{number}", number + 1, note.encode())])
            while len([one for one in self.answers if isinstance(one, Accepted | ErrorReply)]) < count:
                await trio.sleep(0.01)
            nursery.cancel_scope.cancel()

    async def _hear(self, peer: str, messages: list[Message], size: int) -> None:
        self.answers += messages


def test_a_broker_that_introduces_everybody(lab: Lab) -> None:
    """So many as its site's operator allows, who hears of it; honest peers are served before and after a restart."""
    until(lambda: any(source["state"] == "held" for source in lab.query("broker", "sources")))
    lease = lab.lease()
    lab.up["broker"].end()
    usurper = Usurper(lab)
    usurper.introduce(300)
    refused = [one for one in usurper.answers if isinstance(one, ErrorReply)]
    assert len(refused) == 300 - 99 and "its limit (introductions_max)" in refused[0].reason.detail
    assert "201 more were refused (introductions_max)" in lab.cli("site", "status")
    for _ in range(2):
        told = lab.query("site", "status")["introductions"]
        assert [(one["broker"], one["known"]) for one in told] == [("broker", 100)]
        until(lambda: _connected(lab, "site", "guest"))
        lab.restart("site")
    lab.up["broker"] = Up(lab.files["broker"], lab.state)
    lab.command("guest", "lease.close", lease=lease)
    until(lambda: lab.query("guest", "lease", lease=lease)["state"] == "closed")
    assert lab.query("guest", "lease", lease=lab.lease())["state"] == "active"
