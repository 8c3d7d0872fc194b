"""A world made from a deploy file's text: for tests of several brokers, for which the bench has no place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from leasekit.actors.base import Actor
from leasekit.actors.broker.broker import Broker
from leasekit.actors.guest.service_manager import ServiceManager
from leasekit.actors.site.authority import Authority
from leasekit.config.build import build
from leasekit.config.load import load
from leasekit.core.protocol.codec import UnknownKind, decode_batch, encode_batch
from leasekit.core.protocol.messages import Message
from leasekit.core.steps import Action, Connected, Received, Reply
from leasekit.core.time import SECOND, Instant
from leasekit.emulation.world import Outcome, World
from leasekit.stores.memory import MemoryStore

CHAIN = """
[emulation]
horizon = "1d"
[actor.site]
role = "authority"
[[actor.site.inventory]]
type = "vm"
units = 6
[[actor.site.delegation]]
broker = "upper"
type = "vm"
length = "1d"
[actor.upper]
role = "broker"
[[actor.upper.delegation]]
broker = "lower"
type = "vm"
units = 4
length = "12h"
[actor.lower]
role = "broker"
[actor.web]
role = "guest"
settings.default_broker = "lower"
[actor.batch]
role = "guest"
settings.default_broker = "upper"
"""
"""A site of six units, which gives all to ``upper``, which gives four to ``lower``; a guest at each broker."""


class DeployedWorld(World):
    """The actors of a deploy file, with the messages that were sent in :attr:`sent`; any actor can be replaced."""

    def __init__(
        self,
        text: str,
        folder: Path,
        *,
        changes: dict[str, Any] | None = None,
        make: Callable[[str, Actor], Actor] | None = None,
    ) -> None:
        super().__init__(delay=lambda sender, receiver: 10)
        file = folder / "world.toml"
        file.write_text(text)
        self.deployment = load(file, folder / "state", changes)
        self._make = make or (lambda name, actor: actor)
        self.sent: list[tuple[str, str, Message]] = []
        self.lost: set[tuple[str, str, str]] = set()
        self.failing = ""
        """The operation in which drivers fail."""
        for name in self.deployment.actors:
            self.add(self._built(name), MemoryStore(), self._outcome)
        self.run_until(SECOND)

    def _outcome(self, action: Action) -> Outcome:
        ok = action.op != self.failing
        return Outcome(SECOND, ok, {}, "" if ok else "it broke")

    def _built(self, name: str) -> Actor:
        return self._make(name, build(self.deployment, name, virtual=True).actor)

    def _send(self, sender: str, outgoing: Any) -> None:
        for receiver, message in outgoing:
            self.sent.append((sender, receiver, message))
            if (sender, receiver, type(message).__name__) not in self.lost:
                self._carry(sender, receiver, encode_batch([message]))

    def restart(self, name: str) -> None:
        """A crash and a start from the store; all peers connect anew."""
        node = self.nodes[name]
        node.actor = self._built(name)
        node.actor.restore(node.store.load())
        node.inbox.clear()
        self._schedule_wake(node, self.now)
        for other in self.nodes:
            if other != name:
                self.feed(name, [Connected(other)])
                self.feed(other, [Connected(name)])

    def receive(self, receiver: str, sender: str, *messages: Message) -> None:
        """Have an actor receive what a peer might have sent."""
        decoded = decode_batch(encode_batch(messages))
        self.feed(receiver, [Received(sender, item) for item in decoded if not isinstance(item, UnknownKind)])

    def pass_time(self, length: int) -> None:
        """Let ``length`` milliseconds pass."""
        self.run_until(self.now + length)

    def request(self, guest: str, units: int, start: Instant, end: Instant, type: str = "vm", **more: Any) -> str:
        """Have a guest ask for a lease of that many units; returns its id."""
        reply = self.command(guest, "lease.request", type=type, units=units, term=[start, end], **more)
        assert not reply.error, reply.error
        return str(reply.result["lease"] if "lease" in reply.result else reply.result["id"])

    def lease(self, actor: str, lease: str) -> dict[str, Any]:
        """How an actor has a lease."""
        found: dict[str, Any] = self.query(actor, "lease", lease=lease)
        return found

    def site(self, name: str = "site") -> Authority:
        """The authority of a site."""
        actor = self.nodes[name].actor
        assert isinstance(actor, Authority)
        return actor

    def broker(self, name: str) -> Broker:
        """A broker."""
        actor = self.nodes[name].actor
        assert isinstance(actor, Broker)
        return actor

    def guest(self, name: str) -> ServiceManager:
        """A guest's service manager."""
        actor = self.nodes[name].actor
        assert isinstance(actor, ServiceManager)
        return actor

    def letters(self, kind: type[Any], sender: str = "", receiver: str = "") -> Sequence[Any]:
        """What was sent of a kind so far."""
        return [m for s, r, m in self.sent if isinstance(m, kind) and sender in ("", s) and receiver in ("", r)]


def failed(reply: Reply) -> str:
    """The error of a command that must have one."""
    assert reply.error, f"it was carried out: {reply.result}"
    return reply.error
