"""The checker of what is left: when all leases are over, no part of an actor keeps anything of them.

It walks through all parts of an actor and counts what is in their collections, so that a part that is new, or a
collection, is looked at without being named. What may grow all the same is named here, with the reason.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, Final

ACTORS: Final = "leasekit.actors."
"""Where parts are defined. What other packages define (mappers, timetables, claim trees) is not walked through."""

STAYS: Final[Mapping[str, str]] = {
    "guilty": "as evidence",
    "evidence": "settings bound it",
    "by_digest": "claims of delegations, which are not over",
    "unused": "a number for each issuer, which may be 0",
    "strays": "ids of closes of unknown leases, at most STRAYS_MAX",
    "shown": "what the mapper's last turn was about",
    "reports": "the latest, for the operator",
    "errors": "as reports",
    "timers": "of delegations, and timers that nobody waits for any more, which go with the next ones",
    "owed": "a hostile broker acknowledges nothing",
    "taken": "of delegations",
    "given": "of delegations",
    "wishes": "of delegations",
    "waiting_lines": "of delegations",
    "retried": "of delegations",
    "slices": "their guest's operator made them, and removes them",
    **dict.fromkeys(("sources", "tables", "lines", "tickets", "by_type"), "of delegations"),
    **dict.fromkeys(("peers", "by_key"), "peers that became known"),
    "tags": "as peers",
    "made_known": "as peers",
    "endorsed": "as peers",
    "endorsements": "as peers",
    "told": "which guests a site's endorsement was sent to: a pair of peers each",
    **dict.fromkeys(("profiles", "pages"), "what holders have had, for quotas"),
    "refused_offers": "at most REFUSED_MAX",
    "linked": "peers that are connected",
}
"""Attributes of parts, without underscores in front, that may have more in them than at first."""


def collections(actor: Any) -> Iterator[tuple[str, int]]:
    """Each collection of each part of ``actor``, as ``Class.attribute``, and how much is in it."""
    seen: set[int] = set()
    parts = [actor]
    while parts:
        part = parts.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        for name, value in _attributes(part):
            if isinstance(value, dict | list | tuple | set | frozenset | deque):
                yield f"{type(part).__name__}.{name}", _count(value)
            elif type(value).__module__.startswith(ACTORS):
                parts.append(value)


def _attributes(part: Any) -> Iterator[tuple[str, Any]]:
    slots = [name for kind in type(part).__mro__ for name in getattr(kind, "__slots__", ())]
    yield from ((name, getattr(part, name)) for name in slots if hasattr(part, name))
    yield from getattr(part, "__dict__", {}).items()


def _count(value: Any) -> int:
    """How much is in a collection; of one of collections, how much is in those."""
    held = value.values() if isinstance(value, dict) else value
    return sum(_count(one) if isinstance(one, dict | list | set | deque) else 1 for one in held)


def left_over(actor: Any, at_first: Mapping[str, int]) -> list[str]:
    """Which collections of an actor have more in them than ``at_first``, when it had no lease yet."""
    return [
        f"{where} has {count}, at first it had {at_first.get(where, 0)}"
        for where, count in collections(actor)
        if count > at_first.get(where, 0) and where.rpartition(".")[2].lstrip("_") not in STAYS
    ]
