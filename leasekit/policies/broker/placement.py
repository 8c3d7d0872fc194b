"""Which delegation a request is filled from, and how the members of a group are spread over them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from leasekit.core.time import Term
from leasekit.policies.broker.rooms import Room

Balance = Literal["load_balanced", "first_fit", "best_fit"]

NODES_MAX = 2_000
"""How many placements are tried beyond one per member before a group counts as not fitting at some instant."""


def pick(rooms: Sequence[Room], term: Term, units: int, least: int, balance: Balance) -> Room | None:
    """The room to fill ``units`` from over ``term``; if none has them all, the roomiest that has ``least``; or None."""
    best, most = None, 0
    for room in rooms:
        free = room.free(term)
        if free > most:
            best, most = room, free
            if balance == "first_fit" and free >= units:
                return room
    if best is None or most < least:
        return None
    if balance == "best_fit" and most >= units:
        return min((room for room in rooms if room.free(term) >= units), key=lambda room: room.free(term))
    return best


class Member:
    """One member of a group: how many units, and the rooms that may give them."""

    __slots__ = ("rooms", "units")

    def __init__(self, units: int, rooms: Sequence[Room]) -> None:
        self.units = units
        self.rooms = rooms


def place(members: Sequence[Member], term: Term, balance: Balance) -> list[Room] | None:
    """A room for each member, so that all fit at once; None if none was found.

    Members with the least choice and the most units are placed first. What goes wrong is taken back and tried
    otherwise, up to a limit: fitting members into rooms is bin packing, so the search must end somewhere.
    """
    order = sorted(range(len(members)), key=lambda i: (len(members[i].rooms), -members[i].units))
    left = {room: room.free(term) for member in members for room in member.rooms}
    chosen: list[Room | None] = [None] * len(members)
    options: list[Iterator[Room]] = []
    tries = len(members) + NODES_MAX
    while len(options) <= len(order):
        depth = len(options)
        if depth == len(order):
            return [room for room in chosen if room is not None]
        options.append(_options(members[order[depth]], left, balance))
        while options:
            tries -= 1
            index = order[len(options) - 1]
            taken = chosen[index]
            if taken is not None:
                left[taken] += members[index].units
            room = chosen[index] = next(options[-1], None)
            if room is not None:
                left[room] -= members[index].units
                break
            options.pop()
        if not options or tries < 0:
            return None
    return None


def _options(member: Member, left: dict[Room, int], balance: Balance) -> Iterator[Room]:
    """The rooms that have enough left for a member, the preferred one first."""
    fitting = [room for room in member.rooms if left[room] >= member.units]
    if balance == "load_balanced":
        fitting.sort(key=lambda room: -left[room])
    elif balance == "best_fit":
        fitting.sort(key=lambda room: left[room])
    return iter(fitting)
