"""A joint state: the three actors, what is in flight between them, what their drivers are doing, and the clock."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from leasekit.core.steps import Action
from leasekit.core.time import DAY, Duration, Instant
from leasekit_simulation.explore.checks import Holder, check_joined, check_units, must
from leasekit_simulation.explore.pieces import Piece, read_action
from leasekit_simulation.explore.rig import BROKER, GUEST, NAMES, SITE, Effect, Frozen, Parcel

HORIZON: Duration = DAY
"""No lease of an exploration has a timer beyond this; the delegation to the broker has."""


@attrs.frozen(slots=True, eq=False)
class Running:
    """An action that a driver is busy with; a ``slow`` one does not hold up time."""

    actor: str
    action: Action
    slow: bool
    piece: Piece

    def __str__(self) -> str:
        return f"{self.action.op} of {self.action.unit}"


@attrs.frozen(slots=True, eq=False)
class Joint:
    """One joint state.

    ``flight`` holds what arrives in order between each two actors, ``strays`` what was repeated or held up and arrives
    at any time; ``holders`` is the explorer's own book of which lease each unit was set up for; ``issued`` counts the
    flow's commands that were given.
    """

    now: Instant
    actors: Mapping[str, Frozen]
    flight: tuple[Parcel, ...] = ()
    strays: tuple[Parcel, ...] = ()
    running: tuple[Running, ...] = ()
    holders: Mapping[str, Holder] = attrs.Factory(dict)
    issued: int = 0

    def heads(self) -> list[Parcel]:
        """The parcel that arrives next on each way."""
        first: dict[tuple[str, str], Parcel] = {}
        for parcel in self.flight:
            first.setdefault((parcel.sender, parcel.receiver), parcel)
        return list(first.values())

    @property
    def idle(self) -> bool:
        """Whether nothing holds up time."""
        return not self.flight and all(running.slow for running in self.running)

    @property
    def wake(self) -> Instant | None:
        """When the next timer of any actor runs out."""
        wakes = [frozen.wake for frozen in self.actors.values() if frozen.wake is not None]
        return min(wakes) if wakes else None

    @property
    def time_passes(self) -> bool:
        """Whether any timer is left but those of delegations."""
        wake = self.wake
        return wake is not None and wake < self.now + HORIZON

    def levels(self) -> dict[str, tuple[str, str, str]]:
        """Each lease's state at guest, broker and site, as ``state, pending, join``; ``-`` where it is not known."""
        guest, broker, site = (self.actors[name].leases for name in NAMES)
        return {id_: (show(guest[id_]), show(broker.get(id_)), show(site.get(id_))) for id_ in guest}

    def after(self, name: str, effect: Effect) -> Joint:
        """This joint state, but for what an actor's step changed. Raises ``Violated``."""
        running = [r for r in self.running if r.actor != name] if effect.restarted else list(self.running)
        holders = self.holders
        for action in effect.actions:
            if name == SITE:
                holders = {**holders, action.unit: holders.get(action.unit, Holder()).start(action)}
            again = any(r.actor == name and r.action.number == action.number for r in running)
            must(not again, f"{name} starts action {action.number} twice")
            running.append(Running(name, action, False, read_action(name, action, False)))
        actors = {**self.actors, name: effect.actor}
        check_units(actors[SITE].units, holders)
        check_joined(actors[GUEST].units, actors[GUEST].said, actors[SITE].said)
        flight = (*self.flight, *effect.parcels)
        return Joint(self.now, actors, flight, self.strays, tuple(running), holders, self.issued)


def show(state: tuple[str, ...] | None) -> str:
    """A state as people read it: ``active, extending_ticket, joined``."""
    return "-" if state is None else ", ".join([state[0], *(part for part in state[1:] if part != "-")])


def without(items: tuple[Any, ...], gone: object) -> tuple[Any, ...]:
    """``items`` but for the first that is the very object ``gone``."""
    for place, item in enumerate(items):
        if item is gone:
            return (*items[:place], *items[place + 1 :])
    return items


__all__ = ["BROKER", "GUEST", "NAMES", "SITE", "Joint", "Running", "show", "without"]
