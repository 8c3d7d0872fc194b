"""The book of what comes after what: leases that follow others, and slices whose leases are redeemed together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import attrs

from leasekit.core.protocol.messages import NEW, LeaseUpdate, Redeem, RequestTicket, TicketUpdate
from leasekit.core.schema import Row
from leasekit.core.steps import Action, ActionDone
from leasekit.core.time import Instant
from leasekit_simulation.faults.checkers import Listening, must
from leasekit_simulation.faults.message_book import OVER
from leasekit_simulation.faults.scenario import HOSTILE


class After(NamedTuple):
    """What a lease waits for: the lease after which it is redeemed, and that after which it joins, if any; whether it
    goes on if that is over.
    """

    redeem: str
    join: str
    proceeds: bool


@attrs.define
class Slice:
    """A slice that waits until so many of its leases have tickets."""

    hold: int
    members: set[str] = attrs.Factory(set)


class OrderChecker(Listening):
    """A lease that follows another is redeemed only after that one was said to be active, and joins only after it has
    joined; if that one is over, it goes on only if it was asked for like that. The leases of a slice that holds are
    redeemed only when there are tickets for all.
    """

    def __init__(self, guests: frozenset[str]) -> None:
        super().__init__()
        self.sends = {RequestTicket: self._request, Redeem: self._redeem}
        self.receives = {LeaseUpdate: self._lease_update, TicketUpdate: self._ticket_update}
        self._guests = guests
        self._after: dict[str, After] = {}
        self._slices: dict[tuple[str, str], Slice] = {}
        self._active: set[str] = set()
        self._tickets: set[str] = set()
        self._over: set[str] = set()
        self._joined: set[str] = set()
        self._joining: dict[str, dict[str, int]] = {}
        self._seen: dict[str, int] = {}
        self._has: dict[str, set[str]] = {}
        self._redeemed: set[str] = set()
        self._began: set[str] = set()

    # -- what was asked for ------------------------------------------------------------------------------------

    def follows(self, lease: str, *, redeem: str, join: str, proceeds: bool) -> None:
        """A request was acknowledged for a lease that follows others."""
        self._after[lease] = After(redeem, join, proceeds)

    def holds(self, guest: str, name: str, hold: int) -> None:
        """A slice was acknowledged that waits for so many."""
        self._slices[guest, name] = Slice(hold)

    def _request(self, at: Instant, sender: str, receiver: str, message: RequestTicket) -> None:
        held = self._slices.get((sender, message.slice))
        if held is not None:
            held.members.add(message.lease)

    # -- what has happened -------------------------------------------------------------------------------------

    def _lease_update(self, at: Instant, sender: str, receiver: str, message: LeaseUpdate) -> None:
        if sender == HOSTILE:
            return
        if message.state == "active":
            self._active.add(message.lease)
        if message.update != self._seen.get(message.lease, 0) + 1:
            return  # a guest takes updates in order: one that is early counts when it comes again
        self._seen[message.lease] = message.update
        if message.state == "active":
            has = self._has[message.lease] = {f"{message.lease}/{unit.unit}" for unit in message.units}
            joining = self._joining.get(message.lease, {})
            for name in joining.keys() - has:
                del joining[name]  # the lease has lost it

    def _ticket_update(self, at: Instant, sender: str, receiver: str, message: TicketUpdate) -> None:
        if sender != HOSTILE and message.ticket:
            self._tickets.add(message.lease)

    def committed(self, at: Instant, actor: str, rows: Sequence[Row]) -> None:
        """A guest says that a lease has joined, or is over."""
        if actor not in self._guests:
            return
        for _, lease, event, _, after, _ in rows:
            if event == "joined":
                self._joined.add(lease)
                left = sorted(self._joining.get(lease, ()))
                must(not left, f"{actor} says that {lease} has joined: {left} are still at it")
            elif after in OVER:
                self._over.add(lease)
            elif event == "redeem" and after == "ticketed/redeeming" and lease not in self._redeemed:
                follows = self._after.get(lease)
                gone = follows is not None and not follows.proceeds and follows.redeem in self._over
                must(not gone, f"{actor} redeems {lease}, though {follows and follows.redeem} is over")

    # -- what may happen now -----------------------------------------------------------------------------------

    def _redeem(self, at: Instant, sender: str, receiver: str, message: Redeem) -> None:
        if sender not in self._guests or message.op != NEW or message.lease in self._redeemed:
            return
        self._redeemed.add(message.lease)
        follows = self._after.get(message.lease)
        if follows is not None and follows.redeem:
            ready = follows.redeem in self._active or (follows.proceeds and follows.redeem in self._over)
            must(ready, f"{sender} redeems {message.lease} before {follows.redeem} is active, which it follows")
        held = self._slices.get((sender, message.slice))
        if held is not None:
            count = len(held.members & self._tickets)
            must(
                count >= held.hold,
                f"{sender} redeems {message.lease} of {message.slice}, which has {count} of {held.hold} tickets",
            )

    def started(self, at: Instant, actor: str, action: Action) -> None:
        """A guest's unit joins or leaves."""
        if actor not in self._guests:
            return
        joining = self._joining.setdefault(action.lease, {})
        if action.op != "join":
            joining.pop(action.unit, None)
            return
        if action.unit in self._has.get(action.lease, ()):  # else it was lost in the same step
            joining[action.unit] = action.number
        follows = self._after.get(action.lease)
        if follows is not None and follows.join and action.lease not in self._began:
            ready = follows.join in self._joined or (follows.proceeds and follows.join in self._over)
            must(ready, f"{actor} lets {action.lease} join before {follows.join} has, which it follows")
        self._began.add(action.lease)

    def ended(self, at: Instant, actor: str, done: ActionDone) -> None:
        """A join has ended, one way or the other."""
        if actor in self._guests:
            joining = self._joining.get(done.unit.partition("/")[0], {})
            if joining.get(done.unit) == done.number:
                del joining[done.unit]
