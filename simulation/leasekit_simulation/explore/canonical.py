"""When two joint states are the same.

Marked values of :mod:`leasekit_simulation.explore.pieces` are counted relative to each other:

- instants: how far off those to come are; those that are past are all the same;
- request numbers of a lease, update numbers of a server: their order, and whether one follows another directly;
- numbers of actions: their order;
- digests of claims: which are equal.

That states which count as the same do behave alike is checked while exploring (``audit`` of
:func:`leasekit_simulation.explore.search.explore`).
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import Any, Final

from leasekit.core.time import DAY, Duration
from leasekit_simulation.explore.joint import Joint
from leasekit_simulation.explore.pieces import ACTION, UPDATE, Mark

PAST: Final = -1
FAR: Final[Duration] = DAY
"""Instants beyond this are all the same: they are those of delegations."""


def canonical(joint: Joint) -> bytes:
    """A name that two joint states share if, and only if, they are the same."""
    pieces = [joint.actors[name].piece for name in ("guest", "broker", "site")]
    # The order of parcels on one way matters, not that between ways; strays and actions have no order.
    pieces += [parcel.piece for parcel in sorted(joint.flight, key=_way)]
    pieces += [stray.piece for stray in sorted(joint.strays, key=_plainly)]
    pieces += [running.piece for running in sorted(joint.running, key=_plainly)]
    held = [(unit, holder.lease, holder.op) for unit, holder in sorted(joint.holders.items()) if holder.lease]
    now, digests = joint.now, dict[bytes, int]()
    name = blake2b(repr((joint.issued, len(joint.flight), len(joint.strays), held)).encode(), digest_size=16)
    counted: list[Any] = []
    numbers: list[Mark] = []
    for piece in pieces:
        name.update(piece.plain)
        counted += [min(time - now, FAR) if time >= now else PAST for time in piece.times]
        counted += [digests.setdefault(digest, len(digests)) for digest in piece.digests]
        numbers += piece.numbers
    ranks = _ranks(numbers)
    counted += [ranks[number] for number in numbers]
    name.update(repr(counted).encode())
    return name.digest()


def _way(parcel: Any) -> tuple[str, str]:
    return (parcel.sender, parcel.receiver)


def _plainly(item: Any) -> bytes:
    plain: bytes = item.piece.plain
    return plain


def _ranks(numbers: Iterable[Mark]) -> dict[Mark, int]:
    """How numbers of one kind and scope follow each other: a step of more than two is one of two, and of an action's
    number, one of one.
    """
    scopes: dict[tuple[str, Any], set[int]] = {}
    for kind, scope, value in numbers:
        scopes.setdefault((kind, scope), set()).add(value)
    ranks: dict[Mark, int] = {}
    for (kind, scope), values in scopes.items():
        # A server that has forgotten a lease counts its updates from nothing again: how far from that it is matters.
        count, last = 0, 0 if kind == UPDATE else min(values)
        longest = 1 if kind == ACTION else 2
        for value in sorted(values):
            count, last = count + min(value - last, longest), value
            ranks[kind, scope, value] = count
    return ranks
