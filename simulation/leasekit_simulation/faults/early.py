"""Leases that are changed before they begin."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random
from typing import Any

import attrs

from leasekit.core.time import MINUTE, SECOND, Duration
from leasekit_simulation.faults.scenario import Operation
from leasekit_simulation.faults.world import FaultyWorld


def draw_change(world: FaultyWorld, lease: Any, rng: Random) -> dict[str, Any]:
    """What else a lease may get that has not begun: another start, another filter."""
    world.mark("ticketed lease modified")
    found: dict[str, Any] = {"victims": ()}
    if rng.random() < 0.6:
        found["start"] = lease.runs.start + rng.choice((-30_000, -5_000, 5_000, 40_000, 200_000))
    if rng.random() < 0.3 and world.scenario.racks > 1:
        found["filter"] = rng.choice(("rack == r0", "rack == r1", "rack != r1", ""))
    return found


@attrs.frozen
class EarlyChanges:
    """Leases that are asked for to be changed before they begin. Meanwhile their guest is cut off from their broker, or
    they are ended by either.
    """

    _world: FaultyWorld
    _ask: Callable[..., str]
    _command: Callable[..., Any]
    _cut: Callable[[Iterable[tuple[str, str]], Duration], None]
    _close: Callable[[str, str], None]
    _evict: Callable[[str, str], None]

    def change_one(self, operation: Operation, rng: Random) -> None:
        """Ask for a lease that begins in some minutes, and change it a few seconds later."""
        world, guest = self._world, rng.choice(self._world.scenario.guests)
        start, broker = world.now + rng.choice((1, 3)) * MINUTE, rng.choice(list(world.scenario.brokers))
        term, units = [start, start + 5 * MINUTE], rng.randint(1, 3)
        early: dict[str, str] = rng.choice(({}, {"preemptible": "true"}))
        name = self._ask(guest, type="vm", units=units, term=term, broker=broker, properties=early)

        def change() -> None:
            lease = world.actor(guest).leases.get(name) if world.is_up(guest) else None
            if lease is None or not lease.has_ticket:
                return
            if rng.random() < 0.4:
                self._cut(((guest, broker), (broker, guest))[: rng.choice((1, 2))], rng.choice((1, 20)) * MINUTE)
            self._command(guest, "lease.modify", None, lease=name, units=4 - units, **draw_change(world, lease, rng))
            end, who = rng.choice(((self._close, guest), (self._evict, broker)))
            if rng.random() < 0.6:
                world.call_at(world.now + rng.choice((0, 0, 20, 2 * SECOND)), who, lambda: end(who, name))

        if name:
            world.call_at(world.now + rng.choice((5, 20)) * SECOND, guest, change)
