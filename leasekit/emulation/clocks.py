"""Actors on clocks of their own: off by some milliseconds, drifting, and stepped now and then."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from leasekit.core.schema import Row
from leasekit.core.steps import ActorLike, Input, Ready, Tick, Turn
from leasekit.core.time import Duration, Instant

MILLION = 1_000_000


class Clock:
    """What an actor's machine shows when the world's time is ``t``: never less than 0."""

    __slots__ = ("drift", "offset")

    def __init__(self, offset: Duration = 0, drift: int = 0) -> None:
        self.offset = offset
        self.drift = drift

    @property
    def is_right(self) -> bool:
        """Whether it shows the world's time."""
        return not self.offset and not self.drift

    def local(self, t: Instant) -> Instant:
        """What it shows at ``t``."""
        return max(0, t + self.offset + t * self.drift // MILLION)

    def turn(self, t: Instant, by: Duration, drift: int) -> None:
        """From ``t`` on it shows ``by`` more, and drifts by ``drift``."""
        self.offset += by + t * self.drift // MILLION - t * drift // MILLION
        self.drift = drift

    def world(self, local: Instant) -> Instant:
        """The first instant at which it shows ``local`` or more."""
        if local <= 0:
            return 0
        # It shows offset + floor(t * (MILLION + drift) / MILLION), so this is exact.
        return max(0, -((self.offset - local) * MILLION // (MILLION + self.drift)))


class Clocked:
    """An actor whose machine has a clock of its own; else as the actor itself."""

    __slots__ = ("actor", "clock", "name")

    def __init__(self, actor: ActorLike, clock: Clock) -> None:
        self.actor = actor
        self.clock = clock
        self.name = actor.name

    def step(self, input: Input) -> None:
        """As the actor's, by its own clock."""
        self.actor.step(Tick(self.clock.local(input.now)) if isinstance(input, Tick) else input)

    def turn(self) -> Turn | None:
        """As the actor's."""
        return self.actor.turn()

    def ready(self) -> Ready | None:
        """As the actor's."""
        return self.actor.ready()

    def wake_at(self) -> Instant | None:
        """As the actor's, by the world's clock."""
        at = self.actor.wake_at()
        return None if at is None else self.clock.world(at)

    def restore(self, tables: Mapping[str, Sequence[Row]]) -> None:
        """As the actor's."""
        self.actor.restore(tables)

    def recall(self, row: Row) -> dict[str, Any]:
        """As the actor's."""
        return self.actor.recall(row)

    def query(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """As the actor's."""
        return self.actor.query(name, arguments)
