"""What holds for the honest where some brokers and sites are hostile: guests take and use only what they asked for, of
who may give it, and sites honour no more of a claim than it has.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence, Set
from itertools import pairwise
from typing import Any, Final

import attrs

from leasekit.core.claims.claim import Claim, begin_of, decode_ticket
from leasekit.core.claims.signed import Scheme, decode_statement
from leasekit.core.errors import TicketError
from leasekit.core.properties import count_of
from leasekit.core.protocol.messages import (
    NEW,
    UNDO,
    CloseLease,
    LeaseUpdate,
    Message,
    Offer,
    Redeem,
    Relinquish,
    RequestTicket,
    TicketUpdate,
)
from leasekit.core.schema import Change, Row
from leasekit.core.steps import Action, ActionDone
from leasekit.core.time import Instant
from leasekit_simulation.faults.checkers import Heard, Listening, must
from leasekit_simulation.faults.claim_book import fullest
from leasekit_simulation.faults.message_book import OVER

NOBODY: Final[Set[str]] = frozenset()


class Sieve(Listening):
    """A listener that hears nothing of what hostile actors say, hear or do, nor of the leases that are ``left_out``."""

    def __init__(
        self, listener: Listening, hostile: Container[str], left_out: Container[str] = NOBODY, *, given: bool = False
    ) -> None:
        """``given``: it hears what the others send them all the same."""
        super().__init__()
        self._listener, self._hostile, self._left_out = listener, hostile, left_out
        self.sends = {kind: self._sieved(heard, sent=given) for kind, heard in listener.sends.items()}
        self.receives = {kind: self._sieved(heard) for kind, heard in listener.receives.items()}

    def _sieved(self, heard: Heard, *, sent: bool = False) -> Heard:
        def hear(at: Instant, sender: str, receiver: str, message: Message) -> None:
            aside = sender in self._hostile or (receiver in self._hostile and not sent)
            if not aside and message.subject not in self._left_out:
                heard(at, sender, receiver, message)

        return hear

    def committed(self, at: Instant, actor: str, rows: Sequence[Row]) -> None:
        """Transitions of the others."""
        kept = [row for row in rows if row[1] not in self._left_out]
        if actor not in self._hostile and kept:
            self._listener.committed(at, actor, kept)

    def stored(self, at: Instant, actor: str, changes: Sequence[Change]) -> None:
        """What the others keep."""
        if actor not in self._hostile:
            self._listener.stored(at, actor, changes)

    def started(self, at: Instant, actor: str, action: Action) -> None:
        """What the others' drivers are told."""
        if actor not in self._hostile and action.lease not in self._left_out:
            self._listener.started(at, actor, action)

    def ended(self, at: Instant, actor: str, done: ActionDone) -> None:
        """What the others hear of that."""
        if actor not in self._hostile and done.unit.partition("/")[0] not in self._left_out:
            self._listener.ended(at, actor, done)

    def restarted(self, at: Instant, actor: str, made: Any) -> None:
        """Restarts of the others."""
        if actor not in self._hostile:
            self._listener.restarted(at, actor, made)


@attrs.define
class Honoured:
    """A claim that a site has made a lease of, which uses it until ``end``."""

    claim: Claim
    end: Instant


class TrustChecker(Listening):
    """A guest redeems a ticket only at the site that its chain begins with, if it holds it, of the broker that it had
    asked for as much; and uses no more units than that gives it. Of a claim, whoever has it, a site honours no more at
    any instant than it says.
    """

    kind = "trust"

    def __init__(
        self,
        hostile: frozenset[str],
        guests: Container[str],
        keys: Callable[[str], Sequence[bytes]],
        clock: Callable[[str], Instant],
        scheme: Scheme,
    ) -> None:
        super().__init__()
        self._hostile, self._guests, self._keys, self._clock, self._scheme = hostile, guests, keys, clock, scheme
        self.sends = {
            RequestTicket: self._request, TicketUpdate: self._given, Offer: self._given, Redeem: self._redeem,
            Relinquish: self._relinquish, LeaseUpdate: self._lease_update,
        }  # fmt: skip
        self.receives = {CloseLease: self._close}
        self.tainted: set[str] = set()
        """Leases and delegations that hostile actors have to do with."""
        self.terminating: Callable[[str, str], None] = lambda site, lease: None
        self._requests: dict[str, list[RequestTicket]] = {}
        self._broker: dict[str, str] = {}
        self._chains: dict[bytes, Sequence[Claim]] = {}
        self._units: dict[str, int] = {}
        self._honoured: dict[bytes, dict[tuple[str, bytes], Honoured]] = {}
        self._of_lease: dict[tuple[str, str], dict[bytes, Honoured]] = {}
        self._contracts: set[bytes] = set()

    # -- what guests take --------------------------------------------------------------------------------------

    def _request(self, at: Instant, sender: str, receiver: str, message: RequestTicket) -> None:
        if sender in self._guests:
            self._requests.setdefault(message.lease, []).append(message)
            self._broker[message.lease] = receiver
        if receiver in self._hostile and (sender in self._guests or message.lease not in self._broker):
            self.tainted.add(message.lease)

    def _given(self, at: Instant, sender: str, receiver: str, message: TicketUpdate | Offer) -> None:
        if sender not in self._hostile and message.ticket:
            self._taint(message.subject, decode_ticket(message.ticket).chain)

    def _taint(self, subject: str, chain: Sequence[Claim]) -> None:
        issuers = {claim.issuer for claim in chain}
        if any(key in issuers for name in self._hostile for key in self._keys(name)):
            self.tainted.add(subject)

    def _redeem(self, at: Instant, sender: str, receiver: str, message: Redeem) -> None:
        try:
            chain = decode_ticket(message.ticket).chain
        except TicketError:
            return  # a change of the configuration alone; or a hostile guest's
        self._chains[chain[-1].digest] = chain
        self._taint(message.lease, chain)
        if sender not in self._guests or message.op == UNDO:
            return
        leaf, what = chain[-1], f"{sender} redeems for {message.lease} claim {chain[-1].id[:8]}"
        for above, below in pairwise(chain):
            linked = (above.digest, above.holder) == (below.parent, below.issuer)
            must(linked and above.term.contains(below.term), f"{what}: {below.id[:8]} does not follow from its parent")
        signed = all(self._scheme.verify(one.issuer, one.signature, one.body) for one in chain)
        must(signed, f"{what}: somebody has not signed for it")
        must(chain[0].issuer in self._keys(receiver), f"{what} at {receiver}, which it is not of")
        must(leaf.holder in self._keys(sender), f"{what}, which is held by another")
        must(leaf.issuer in self._keys(self._broker[message.lease]), f"{what}, which is not of its broker")
        asked = self._requests[message.lease]
        must(any(_is_within(leaf, one) for one in asked), f"{what}, {leaf.units} {leaf.type} over {leaf.term}: {asked}")
        self._units[message.lease] = max(self._units.get(message.lease, 0), leaf.units)

    def _relinquish(self, at: Instant, sender: str, receiver: str, message: Relinquish) -> None:
        if sender in self._guests:
            root = decode_ticket(message.ticket).root
            must(root.issuer in self._keys(receiver), f"{sender} gives {receiver} back what is not of it")

    def check_units(self, guest: str, lease: Any) -> None:
        """``lease``, as it is at its guest, has no more units than its tickets give it."""
        most = self._units.get(lease.id, 0)
        must(len(lease.units) <= most, f"{guest}: {lease.id} has {sorted(lease.units)}, its tickets give it {most}")

    # -- what sites honour -------------------------------------------------------------------------------------

    def _lease_update(self, at: Instant, sender: str, receiver: str, message: LeaseUpdate) -> None:
        if sender in self._hostile:
            return
        if message.state == "terminating":
            self.terminating(sender, message.lease)
            self._cut(sender, message.lease, message.term.end)
        if message.state != "active" or message.contract in self._contracts:
            return
        self._contracts.add(message.contract)
        chain = self._chains.get(decode_statement(message.contract).subject)
        must(chain is not None, f"{sender} makes lease {message.lease} of a claim that nobody has redeemed")
        assert chain is not None
        leaf, mine = chain[-1], self._of_lease.setdefault((sender, message.lease), {})
        for other in mine.values():
            other.end = min(other.end, max(leaf.term.start, self._clock(sender)))
        honoured = mine[leaf.digest] = Honoured(leaf, min(leaf.term.end, message.term.end))
        for above in chain[:-1]:
            siblings = self._honoured.setdefault(above.digest, {})
            siblings[message.lease, leaf.digest] = honoured
            self._check_total(sender, above, leaf, list(siblings.values()))

    def _check_total(self, site: str, above: Claim, leaf: Claim, below: Sequence[Honoured]) -> None:
        start = max(leaf.term.start, self._clock(site))
        for class_, _ in leaf.weights if start < leaf.term.end else ():
            held = [(count_of(one.claim.weights, class_), one.claim.term.start, one.end) for one in below]
            at, most = fullest(held, leaf.term._replace(start=start))
            capacity = count_of(above.capacities, class_)
            must(most <= capacity, f"{site} honours {most} at {at}, of the {capacity} of claim {above.id[:8]}")

    def committed(self, at: Instant, actor: str, rows: Sequence[Row]) -> None:
        """A lease that is over at its site uses its claims no more."""
        for when, lease, _, _, after, _ in rows:
            if after in OVER:
                self._cut(actor, lease, when)

    def _close(self, at: Instant, sender: str, receiver: str, message: CloseLease) -> None:
        """What is left of a claim goes back with the close, while units are torn down."""
        if sender in self._guests and message.relinquishment:
            back = decode_statement(message.relinquishment).at
            self._cut(receiver, message.lease, max(back, self._clock(receiver)))

    def _cut(self, site: str, lease: str, at: Instant) -> None:
        for one in self._of_lease.get((site, lease), {}).values():
            one.end = min(one.end, at)


def _is_within(leaf: Claim, asked: RequestTicket) -> bool:
    """Whether a claim gives no more than was asked for. One that can be put off begins when it is of use."""
    begin, end = begin_of(leaf), leaf.term.end
    moves = asked.op == NEW and ("deferrable" in asked.properties or "group_id" in asked.properties)
    fits = end - begin <= asked.term.length if moves else end <= asked.term.end
    return leaf.type == asked.type and leaf.units <= asked.units and asked.term.start <= begin and fits
