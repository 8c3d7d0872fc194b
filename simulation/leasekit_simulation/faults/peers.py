"""Peers that change: actors that get other keys, as operators give them, and peers that are forgotten for a while."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, Final

from leasekit.core.claims.signed import succeed
from leasekit.core.time import DAY, MINUTE, SECOND, Duration, Instant
from leasekit_simulation.faults.checkers import must
from leasekit_simulation.faults.world import FaultyWorld

AGAIN: Final[Duration] = SECOND
"""How often an operator tries again what an actor that is down, or whose disk is full, did not do."""
AWAY: Final[tuple[Duration, ...]] = (SECOND, 10 * SECOND, MINUTE, 5 * MINUTE)
HONOURED: Final[Duration] = 10_000 * DAY
"""Longer than any claim runs: what the old key holds goes on to its end."""
DONE_WITHIN: Final[Duration] = 2 * MINUTE


class PeerChanges:
    """What operators do to the keys of actors, and to what actors know of each other.

    A key is changed as docs/security.md says: its actor is stopped, every peer is told of the succession, which both
    keys sign, and then the actor starts with the new key. One actor at a time has another key.
    """

    def __init__(self, world: FaultyWorld) -> None:
        self._world = world
        self._pending: dict[str, Callable[[], bool]] = {}
        """What is still to be done, by what it is about: each is called until it says that it is done."""
        self._begins: Instant = 0
        """When the latest new key holds, by its actor's clock, which may have been wrong: peers wait for that."""
        self._new: dict[str, bytes] = {}
        self.forgotten: set[tuple[str, str]] = set()
        """Who has forgotten whom at any time."""

    def rotate(self, name: str, rng: Random) -> None:
        """Give an actor another key, if it is up, and no other is getting one."""
        world = self._world
        if not world.is_up(name) or any(world.node(other).stopped for other in world.nodes):
            return
        world.mark("key changed")
        old, new, start = world.identity(name), world.next_identity(name), world.clock(name)
        text = succeed(old, new, name, start, start + HONOURED).encode().hex()
        peers = [other for other in world.nodes if other != name and name in world.actor(other).peers]
        world.stop(name)
        self._new[name], self._begins = new.public, max(self._begins, start)
        left = dict.fromkeys(peers)

        def tell() -> bool:
            for peer in [peer for peer in left if world.is_up(peer)]:
                if not self._knows_by(peer, name, new.public):
                    world.command(peer, "peer.succeed", name=name, succession=text)
                if world.is_up(peer) and self._knows_by(peer, name, new.public):
                    del left[peer]
            if not left:
                world.change_key(name, new, start + HONOURED)
                world.start_again(name)
            return not left

        self._begin(f"key of {name}", rng.choice((0, SECOND)), tell)

    def forget(self, name: str, rng: Random) -> None:
        """Have an actor forget a peer, and know it again later: it hears nothing of it until then."""
        world = self._world
        deals = [peer for peer in world.scenario.actors if world.role(peer) != world.role(name)]
        peers = [peer for peer in deals if peer in world.actor(name).peers] if world.is_up(name) else []
        brokers = [peer for peer in peers if world.role(peer) == "broker"]
        if world.role(name) == "guest" and len(brokers) == 1:  # it would ask the rogue, which answers nothing
            peers.remove(brokers[0])
        if not peers:
            return
        peer = rng.choice(peers)
        known = world.actor(name).peers[peer]
        if world.command(name, "peer.remove", name=peer).error:
            return
        world.mark("peer forgotten")
        self.forgotten.add((name, peer))
        said: dict[str, Any] = {"role": known.role, "key": known.key.hex(), "may": sorted(known.may)}

        def know_again() -> bool:
            if world.is_up(name) and peer not in world.actor(name).peers:
                world.command(name, "peer.add", name=peer, **said)
            there = world.is_up(name) and peer in world.actor(name).peers
            if there and world.is_up(peer):
                world.connect(name, peer)
            return there

        self._begin(f"{peer} at {name}", rng.choice(AWAY), know_again)

    def _knows_by(self, name: str, peer: str, key: bytes) -> bool:
        known = self._world.actor(name).peers.get(peer)
        return known is not None and known.key == key

    def _begin(self, what: str, wait: Duration, step: Callable[[], bool]) -> None:
        self._pending[what] = step
        self._later(what, wait)

    def _later(self, what: str, wait: Duration) -> None:
        world = self._world
        world.call_at(world.now + wait, next(iter(world.nodes)), lambda: self._go_on(what))

    def _go_on(self, what: str) -> None:
        step = self._pending.get(what)
        if step is not None and step():
            self._pending.pop(what, None)
        elif step is not None:
            self._later(what, AGAIN)

    def finish(self) -> None:
        """Where there are no faults any more, all that is pending is done."""
        world = self._world
        until = max(world.now, self._begins) + DONE_WITHIN
        for what in list(self._pending):
            self._go_on(what)
        while self._pending and world.now < until:
            world.run_until(world.now + AGAIN)
        must(not self._pending, f"not done within {DONE_WITHIN} ms: {', '.join(self._pending)}")

    def check(self) -> None:
        """Peers know an actor by its latest key, and believe no other successor of the one that it had before."""
        world = self._world
        for name, key in self._new.items():
            for other in world.nodes:
                known = world.actor(other).peers.get(name) if other != name else None
                must(known is None or known.key == key, f"{other} knows {name} by another key than its latest")
                if known is not None:
                    self._check_refused(name, other)

    def _check_refused(self, name: str, other: str) -> None:
        world = self._world
        former, at = world.formers(name)[-1][0], world.clock(other)
        stolen = succeed(former, world.impostor(name), name, at, at + HONOURED)
        reply = world.command(other, "peer.succeed", name=name, succession=stolen.encode().hex())
        must(bool(reply.error), f"{other} takes {name}'s old key's word for another successor")
