"""Which delegation a request is filled from, and how the members of a group are spread over them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import Final, Literal, NamedTuple

from leasekit.core.time import Term
from leasekit.policies.broker.capacity import Place

Balance = Literal["load_balanced", "first_fit", "best_fit", "worst_fit", "random"]

BALANCES: Final[tuple[str, ...]] = ("load_balanced", "first_fit", "best_fit", "worst_fit", "random")

NODES_MAX = 2_000
"""How many placements are tried beyond one per member before a group counts as not fitting at some instant."""


class Choice(NamedTuple):
    """How a site is chosen; ``seed`` is for ``random`` only."""

    balance: Balance = "load_balanced"
    seed: int = 0

    def drawn(self, place: Place, lease: str) -> bytes:
        """A number for a site and a lease: the same each time, whatever was drawn before."""
        return blake2b(f"{self.seed}/{lease}/{place.view.id}".encode(), digest_size=8).digest()


def pick(places: Sequence[Place], term: Term, units: int, least: int, choice: Choice, lease: str) -> Place | None:
    """Where to fill ``units`` from over ``term``; if none has them all, the roomiest that has ``least``; or None."""
    if len(places) == 1:
        return places[0] if places[0].free(term) >= least else None
    best, most = None, 0
    for place in places:
        free = place.free(term)
        if free > most:
            best, most = place, free
            if choice.balance == "first_fit" and free >= units:
                return place
    if best is None or most < least:
        return None
    if most < units or choice.balance in ("first_fit", "worst_fit"):
        return best
    able = [place for place in places if place.free(term) >= units]
    if choice.balance == "best_fit":
        return min(able, key=lambda place: place.free(term))
    if choice.balance == "random":
        return min(able, key=lambda place: choice.drawn(place, lease))
    return max(able, key=lambda place: (place.free(term) / place.units, place.free(term)))


class Member(NamedTuple):
    """One member of a group: its lease, how many units, and the places that may give them."""

    lease: str
    units: int
    places: Sequence[Place]


def classes_of(member: Member) -> int:
    """How many classes of units a member takes somewhere: who takes few of them goes first."""
    return max((place.view.classes for place in member.places), default=0)


def place(members: Sequence[Member], term: Term, choice: Choice) -> list[Place] | None:
    """A place for each member, so that all fit at once; None if none was found.

    Members that take the fewest classes of units, with the least choice and the most units are placed first. What
    goes wrong is taken back and tried otherwise, up to a limit: fitting members into views is bin packing, so the
    search must end somewhere. A view must be the same place to all members.
    """
    order = sorted(
        range(len(members)), key=lambda i: (classes_of(members[i]), len(members[i].places), -members[i].units)
    )
    left = {place: place.free(term) for member in members for place in member.places}
    near = {place: [other for other in left if other.view.overlaps(place.view)] for place in left}
    chosen: list[Place | None] = [None] * len(members)
    options: list[Iterator[Place]] = []
    tries = len(members) + NODES_MAX
    while len(options) <= len(order):
        depth = len(options)
        if depth == len(order):
            return [place for place in chosen if place is not None]
        options.append(_options(members[order[depth]], left, choice))
        while options:
            tries -= 1
            index = order[len(options) - 1]
            taken = chosen[index]
            for one in near[taken] if taken is not None else ():
                left[one] += members[index].units
            found = chosen[index] = next(options[-1], None)
            for one in near[found] if found is not None else ():
                left[one] -= members[index].units
            if found is not None:
                break
            options.pop()
        if not options or tries < 0:
            return None
    return None


def _options(member: Member, left: dict[Place, int], choice: Choice) -> Iterator[Place]:
    """The places that have enough left for a member, the preferred one first."""
    fitting = [place for place in member.places if left[place] >= member.units]
    if choice.balance == "load_balanced":
        fitting.sort(key=lambda place: (-left[place] / place.units, -left[place]))
    elif choice.balance == "worst_fit":
        fitting.sort(key=lambda place: -left[place])
    elif choice.balance == "best_fit":
        fitting.sort(key=lambda place: left[place])
    elif choice.balance == "random":
        fitting.sort(key=lambda place: choice.drawn(place, member.lease))
    return iter(fitting)
