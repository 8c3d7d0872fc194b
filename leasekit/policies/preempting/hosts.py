"""Hosts with what they can hold, and the leases on them; a request for a place.

What is needed and what there is are vectors of whole numbers (millicores, MiB, ...), all in one order of resources.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from operator import sub
from typing import NamedTuple, TypeAlias

import attrs

from leasekit.core.properties import EMPTY
from leasekit.core.time import Duration, Instant

Vector: TypeAlias = tuple[int, ...]


class HostedLease(NamedTuple):
    """A lease on a host.

    ``priority`` is its class: a request takes the place of leases of its own class or below. ``price`` is what a
    millisecond of it earns, in a unit of the site's own. It is protected for ``min_run`` after ``start``. What it has
    done by ``saved`` is not lost when it ends (0: nothing is saved).
    """

    id: str
    needs: Vector
    start: Instant
    preemptible: bool = False
    priority: int = 0
    price: int = 1
    min_run: Duration = 0
    saved: Instant = 0


@attrs.define(init=False)
class LoadedHost:
    """A host with its leases. It has two views: ``full`` is what is free beside all leases, ``normal`` what is free
    beside those that are not preemptible. Nothing of it changes.

    ``reserved_from`` is when its next reservation starts (None: there is none).
    """

    id: str
    capacity: Vector
    leases: tuple[HostedLease, ...]
    attributes: Mapping[str, str]
    reserved_from: Instant | None
    preemptible: list[HostedLease]
    """The preemptible leases, by id."""
    normal: Vector
    full: Vector

    def __init__(
        self,
        id: str,
        capacity: Vector,
        leases: tuple[HostedLease, ...] = (),
        attributes: Mapping[str, str] = EMPTY,
        reserved_from: Instant | None = None,
    ) -> None:
        self.id, self.capacity, self.leases = id, capacity, leases
        self.attributes, self.reserved_from = attributes, reserved_from
        self.preemptible = mine = []
        for lease in leases:
            if lease.preemptible:
                mine.append(lease)
            else:
                capacity = tuple(map(sub, capacity, lease.needs))
        self.normal = capacity
        for lease in mine:
            capacity = tuple(map(sub, capacity, lease.needs))
        self.full = capacity
        mine.sort()

    def exchanged(self, victims: Collection[HostedLease], lease: HostedLease) -> LoadedHost:
        """The host with ``lease`` in place of the victims."""
        stay = (one for one in self.leases if one not in victims)
        return LoadedHost(self.id, self.capacity, (*stay, lease), self.attributes, self.reserved_from)


class HostRequest(NamedTuple):
    """What asks for a place: one that is preemptible takes nobody else's.

    ``priority`` is its class (None: above all). ``filter`` is the text of a filter on a host's attributes; ``near`` and
    ``apart`` are ids of leases, of which one must be, or none may be, on the host.
    """

    needs: Vector
    preemptible: bool = False
    priority: int | None = None
    filter: str = ""
    near: frozenset[str] = frozenset()
    apart: frozenset[str] = frozenset()


def fits(needs: Vector, free: Vector) -> bool:
    """Whether there is enough of every resource; exactly enough is enough."""
    for need, there in zip(needs, free, strict=True):  # noqa: SIM110 - several times as fast as all() on short vectors
        if need > there:
            return False
    return True


def missing(needs: Vector, free: Vector) -> Vector:
    """What there is too little of, by resource; 0 where there is enough."""
    return tuple([need - there if need > there else 0 for need, there in zip(needs, free, strict=True)])


def may_leave(host: LoadedHost, request: HostRequest, now: Instant) -> tuple[list[HostedLease], Instant | None]:
    """The leases of a host that may be preempted for a request, by id, and when there will be more (None: never)."""
    able: list[HostedLease] = []
    more: Instant | None = None
    for lease in host.preemptible:
        if request.priority is None or lease.priority <= request.priority:
            protected = lease.start + lease.min_run
            if protected <= now:
                able.append(lease)
            elif more is None or protected < more:
                more = protected
    return able, more
