"""The book of what leases keep: which units a site takes from a lease that goes on, and what that one asked for."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import attrs

from leasekit.core.claims.claim import Claim, decode_ticket
from leasekit.core.claims.statements import decode_statement
from leasekit.core.drivers import LEASE
from leasekit.core.errors import TicketError
from leasekit.core.leases import authority
from leasekit.core.protocol.messages import UNDO, Accepted, CloseLease, ErrorReply, LeaseUpdate, Redeem, Relinquish
from leasekit.core.schema import Row
from leasekit.core.steps import Action, ActionDone
from leasekit.core.time import Instant
from leasekit_simulation.faults.checkers import Listening, must
from leasekit_simulation.faults.scenario import HOSTILE

IN_USE: Final = (authority.SETUP, authority.UP, authority.CHANGE)


@attrs.define
class Change:
    """A claim that a lease was redeemed by, first as request ``number``; how many times its site heard that, but for
    those that it answered with an error; and whether it is known to go by it.
    """

    number: int
    claim: Claim
    heard: int = 0
    accepted: bool = False

    def place(self) -> tuple[Instant, int]:
        """To sort them by."""
        return self.claim.term.start, self.number


@attrs.define
class Kept:
    """A lease: what it was redeemed by, from that on by which it was last said to be active; how many units it has
    given up since then; whether it may end at any time; and whether it was ever said to be active.
    """

    changes: dict[bytes, Change] = attrs.Factory(dict)
    refused: set[bytes] = attrs.Factory(set)
    asked: dict[tuple[str, int], bytes] = attrs.Factory(dict)
    spent: int = 0
    ends: bool = False
    active: bool = False

    def in_order(self) -> list[Change]:
        """As they begin; a modify may come between an extend and its beginning."""
        return sorted(self.changes.values(), key=Change.place)

    def may_go(self, now: Instant) -> int:
        """How many units what was asked for takes from the lease, of what has begun."""
        units = [change.claim.units for change in self.in_order() if change.claim.term.start <= now]
        return sum(max(0, before - after) for before, after in pairwise(units))

    def is_over(self, now: Instant) -> bool:
        """Whether the lease may be over, as it was not extended, or was shortened."""
        changes = self.in_order()
        known = [change.claim.term.end for change in changes if change.accepted][-1:]
        return any(end <= now for end in known) or any(
            change.claim.term.end <= now for change in changes if not change.accepted
        )


class KeptChecker(Listening):
    """A lease that goes on keeps its units: a site takes as many as an extend or a modify gives up, when that begins,
    and no others; or all of them when the lease ends, or can't be set up by its own fault. Those that fail go, of
    course.
    """

    def __init__(self, sites: Sequence[str]) -> None:
        super().__init__()
        self.sends = {Accepted: self._accepted, ErrorReply: self._error}
        self.receives = {Redeem: self._redeem, CloseLease: self._close, Relinquish: self._relinquish}
        self._leases: dict[str, dict[str, Kept]] = {site: {} for site in sites}
        self._setups: dict[tuple[str, str, int], str] = {}

    def _redeem(self, at: Instant, sender: str, receiver: str, message: Redeem) -> None:
        if not message.ticket or receiver not in self._leases or sender == HOSTILE:
            return
        try:
            leaf = decode_ticket(message.ticket).leaf
        except TicketError:
            return
        kept = self._leases[receiver].setdefault(message.lease, Kept())
        if message.op == UNDO:
            if leaf.digest in kept.changes:
                kept.changes[leaf.digest].accepted = False
        elif leaf.digest not in kept.refused:
            kept.changes.setdefault(leaf.digest, Change(message.number, leaf)).heard += 1
        kept.asked[sender, message.number] = leaf.digest

    def _change(self, site: str, peer: str, lease: str, number: int) -> tuple[Kept, bytes] | None:
        kept = self._leases.get(site, {}).get(lease)
        digest = kept.asked.get((peer, number)) if kept is not None else None
        return None if kept is None or digest is None or digest not in kept.changes else (kept, digest)

    def _accepted(self, at: Instant, sender: str, receiver: str, message: Accepted) -> None:
        if found := self._change(sender, receiver, message.lease, message.number):
            found[0].changes[found[1]].accepted = True

    def _error(self, at: Instant, sender: str, receiver: str, message: ErrorReply) -> None:
        """Of two that came at once, the second may be accepted: what was in the way of the first may be gone."""
        if found := self._change(sender, receiver, message.lease, message.number):
            change = found[0].changes[found[1]]
            change.heard -= 1
            if not change.heard:
                del found[0].changes[found[1]]

    def _close(self, at: Instant, sender: str, receiver: str, message: CloseLease) -> None:
        kept = self._leases.get(receiver, {}).get(message.lease)
        if kept is not None and sender != HOSTILE:
            kept.ends = True

    def _relinquish(self, at: Instant, sender: str, receiver: str, message: Relinquish) -> None:
        """What has not begun may be withdrawn; with what is in use the lease may end."""
        kept = self._leases.get(receiver, {}).get(message.lease)
        change = kept.changes.get(decode_ticket(message.ticket).leaf.digest) if kept is not None else None
        if kept is not None and change is not None:
            before = [other for other in kept.in_order() if other.place() < change.place()]
            change.accepted = False
            kept.ends = kept.ends or not before or change.claim.term.start < before[-1].claim.term.end

    def announced(self, site: str, receiver: str, message: LeaseUpdate) -> None:
        """An update that is sent for the first time."""
        leases = self._leases.get(site, {})
        kept = leases.get(message.lease)
        if kept is None:
            return
        if message.state in ("closed", "failed"):
            del leases[message.lease]
        elif message.state in ("refused", "undone"):
            digest = kept.asked.get((receiver, message.number))
            if digest is not None:  # written down: repeats are not obeyed, nor what was undone before it came
                kept.changes.pop(digest, None)
                kept.refused.add(digest)
        elif message.state == "active":
            kept.active = True
            current = kept.changes.get(decode_statement(message.contract).subject)
            if current is not None and len(message.units) <= current.claim.units:
                current.accepted, kept.spent = True, 0
                kept.changes = {d: one for d, one in kept.changes.items() if one.place() >= current.place()}

    def started(self, at: Instant, actor: str, action: Action) -> None:
        """Remember for which lease a unit is set up."""
        if actor in self._leases and action.op == "setup":
            self._setups[actor, action.unit, action.number] = action.lease

    def ended(self, at: Instant, actor: str, done: ActionDone) -> None:
        """A lease that never was active fails by its own fault."""
        lease = self._setups.pop((actor, done.unit, done.number), "")
        kept = self._leases.get(actor, {}).get(lease)
        if kept is not None and done.blame == LEASE:
            kept.ends = kept.ends or not kept.active

    def restarted(self, at: Instant, actor: str, made: object) -> None:
        """What a site took back it may not have said."""
        for kept in self._leases.get(actor, {}).values():
            for change in kept.changes.values():
                change.accepted = False

    def committed(self, at: Instant, actor: str, rows: Sequence[Row]) -> None:
        """A site decides to take a unit from a lease."""
        for now, lease, event, before, _, why in rows if actor in self._leases else ():
            kept = self._leases[actor].get(lease)
            if kept is None:
                continue
            if event == "notice":
                kept.ends = True
            elif event == "unit teardown" and before in IN_USE and not kept.ends and not kept.is_over(now):
                kept.spent += 1
                most = kept.may_go(now)
                must(
                    kept.spent <= most,
                    f"{actor} takes {why} from {lease} at {now}, which goes on: it gives up {most} units, and this is "
                    f"number {kept.spent}",
                )
