"""What a site tells its brokers of the hosts of a divided type: how much any one of them has left.

A broker counts what a class has in all, of which a part may be in pieces on several hosts. So it hears, soon after that
has changed, of what no host has left, and until when; and grants nobody more. That is a bound, not a promise: of two
resources the most may be left on two hosts, and what others are given meanwhile is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Final

import attrs

from leasekit.actors.issued import Issued
from leasekit.actors.kernel import Kernel, keeps
from leasekit.actors.site.calendars import Calendars
from leasekit.core.claims.claim import decode_ticket
from leasekit.core.protocol.messages import Largest, LargestPiece
from leasekit.core.time import INSTANT_MAX, SECOND, Duration, Instant

EVERY: Final[Duration] = SECOND
"""How long what has changed is gathered, so that many changes are told at once."""


@attrs.define(eq=False)
class _Look:
    """When the hosts are looked at next."""

    id: str = "largest"
    timer: Instant | None = None


@keeps(derived="_look _told")
@attrs.define(eq=False, slots=False)
class Pieces:
    """Tells brokers what is left in one piece, where that is another than they were told."""

    _kernel: Kernel
    _calendars: Calendars
    _issued: Issued
    _loose: Callable[[], Container[bytes]]
    """The claims of leases that the mapper has make room for others: what they have counts as left."""
    _look: _Look = attrs.field(factory=_Look, init=False)
    _told: dict[str, tuple[LargestPiece, ...]] = attrs.field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        self._kernel.register_unkept(_Look, on_due=self._due)
        self._calendars.places.changed.append(self._changed)
        self._issued.taken.append(lambda record: self._changed())

    def connected(self, peer: str) -> None:
        """What a peer was told before it went away, it may have forgotten."""
        for record in self._issued.given.values():
            if record.peer == peer and self._told.pop(record.id, None) is not None:
                self._changed()

    def _changed(self) -> None:
        inventory = self._calendars.units.inventory
        if not any(map(inventory.hosts, inventory.types)):
            return
        soon = self._kernel.now + EVERY
        if self._look.timer is None or self._look.timer > soon:
            self._kernel.schedule(self._look, soon)

    def _due(self, look: _Look) -> None:
        now, inventory = self._kernel.now, self._calendars.units.inventory
        types = [type_ for type_ in inventory.types if inventory.hosts(type_)]
        loose = self._loose() if types else ()
        found = {type_: self._calendars.places.pieces(type_, loose) for type_ in types}
        given = {one.id: one for one in self._issued.given.values() if one.type in found and one.can_grant(now)}
        self._told = {id_: told for id_, told in self._told.items() if id_ in given}
        for record in given.values():
            classes = {class_ for class_, _ in decode_ticket(record.ticket).leaf.classes}
            mine = tuple(one for one in found[record.type] if one.class_ in classes)
            if mine != self._told.get(record.id):
                self._told[record.id] = mine
                self._kernel.send(record.peer, Largest(record.id, self._kernel.next("serial"), mine))
        until = min((one.until for pieces in found.values() for one in pieces), default=INSTANT_MAX)
        self._kernel.schedule(look, until if now < until < INSTANT_MAX else None)
