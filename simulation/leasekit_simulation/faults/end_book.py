"""The book of ends: what a site has agreed to end before its time, and whether it did; and what a guest and a site
still do for a lease that is being closed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import attrs

from leasekit.core.claims.claim import decode_ticket, redeem_by
from leasekit.core.claims.signed import decode_statement, reclaim_deadline
from leasekit.core.errors import TicketError
from leasekit.core.leases import authority
from leasekit.core.protocol.messages import NEW, UNDO, Accepted, LeaseUpdate, Reclaim, Redeem, Relinquished, Truncated
from leasekit.core.schema import Row
from leasekit.core.time import INSTANT_MAX, Instant, Term
from leasekit_simulation.faults.checkers import Listening, must, unit_of
from leasekit_simulation.faults.scenario import HOSTILE
from leasekit_simulation.faults.unit_book import UnitChecker


@attrs.frozen
class Redeemed:
    """What a lease was redeemed by: the digests of its chain, from the root on, when the last of them runs, and until
    when it can be redeemed.
    """

    chain: tuple[bytes, ...]
    term: Term
    new: bool
    by: Instant


class EndChecker(Listening):
    """A site lets no lease run beyond an early end that it has agreed to: an accepted truncation of its claim or of one
    above it, a receipt for it, a delegation that the site took back itself, a notice, or a maintenance window that
    closes leases. Nor does a lease begin by a claim that was to be redeemed before.

    A site that is down, or whose disk is full, is late with everything: so what counts is the time in its own log. By
    the first line of a later time the unit is to be in teardown.
    """

    kind = "early ends"

    def __init__(self, units: UnitChecker, sites: Sequence[str], clock: Callable[[str], Instant]) -> None:
        super().__init__()
        self.sends = {
            Accepted: self._accepted, Reclaim: self._reclaim, Relinquished: self._receipt, LeaseUpdate: self._update,
        }  # fmt: skip
        self.receives = {Redeem: self._redeem, Truncated: self._truncated}
        self._units, self._clock = units, clock
        self._logged = dict.fromkeys(sites, 0)
        self._going: dict[str, set[str]] = {site: set() for site in sites}
        self._redeemed: dict[str, dict[str, dict[bytes, Redeemed]]] = {site: {} for site in sites}
        self._asked: dict[tuple[str, str, str, int], bytes] = {}
        self._ended: dict[str, dict[bytes, Instant]] = {site: {} for site in sites}
        self._off: dict[str, dict[str, Instant]] = {site: {} for site in sites}
        self._active: dict[tuple[str, str], Term] = {}

    # -- what was agreed ---------------------------------------------------------------------------------------

    def _redeem(self, at: Instant, sender: str, receiver: str, message: Redeem) -> None:
        if message.ticket and message.op != UNDO and receiver in self._redeemed:
            try:
                chain = decode_ticket(message.ticket).chain
            except TicketError:
                return
            digests = tuple(claim.digest for claim in chain)
            found = Redeemed(digests, chain[-1].term, message.op == NEW, redeem_by(chain[-1]))
            self._redeemed[receiver].setdefault(message.lease, {}).setdefault(digests[-1], found)

    def _truncated(self, at: Instant, sender: str, receiver: str, message: Truncated) -> None:
        if sender != HOSTILE:
            self._asked[receiver, sender, message.lease, message.number] = message.truncation

    def _accepted(self, at: Instant, sender: str, receiver: str, message: Accepted) -> None:
        data = self._asked.get((sender, receiver, message.lease, message.number))
        if data is not None and message.receipt:
            cut = decode_statement(data)
            self._end(sender, cut.subject, cut.at)

    def _receipt(self, at: Instant, sender: str, receiver: str, message: Relinquished) -> None:
        if message.receipt and sender in self._ended:
            receipt = decode_statement(message.receipt)
            self._end(sender, receipt.subject, receipt.at)

    def _reclaim(self, at: Instant, sender: str, receiver: str, message: Reclaim) -> None:
        """What has not begun by then is off; the rest runs out, or is over by the deadline."""
        if sender not in self._ended:
            return
        statement = decode_statement(message.statement)
        deadline = reclaim_deadline(statement)
        if deadline is not None:
            self._end(sender, statement.subject, deadline)
        for lease, claims in self._redeemed[sender].items():
            for one in claims.values():
                if one.new and one.chain[0] == statement.subject and one.term.start >= statement.at:
                    self._let_off(sender, lease, one.term.start)

    def _update(self, at: Instant, sender: str, receiver: str, message: LeaseUpdate) -> None:
        if sender not in self._off:
            return
        self._active.pop((sender, message.lease), None)
        if message.state == "terminating":
            self._let_off(sender, message.lease, message.term.end)
        elif message.state == "active":
            self._active[sender, message.lease] = message.term
        elif message.state in ("closed", "failed"):  # a lease of that name may be made anew
            self._off[sender].pop(message.lease, None)

    def windowed(self, site: str, window: Mapping[str, Any], ends: Instant) -> None:
        """A maintenance window was acknowledged: with ``close`` the leases end, at ``ends``, that have its units."""
        for name in window["units"] if window["close"] else ():
            lease = self._holder(site, name)
            term = self._active.get((site, lease))
            if term is not None and window["start"] < term.end and term.start < window["end"]:
                self._let_off(site, lease, max(ends, term.start))

    def _end(self, site: str, claim: bytes, at: Instant) -> None:
        """The claim, and what is below it, ends early: not before the site can have known that."""
        at = max(at, self._now(site))
        self._ended[site][claim] = min(at, self._ended[site].get(claim, at))

    def _let_off(self, site: str, lease: str, at: Instant) -> None:
        at = max(at, self._now(site))
        self._off[site][lease] = min(at, self._off[site].get(lease, at))

    def _now(self, site: str) -> Instant:
        return max(self._clock(site), self._logged[site])

    # -- whether it is done ------------------------------------------------------------------------------------

    def committed(self, at: Instant, actor: str, rows: Sequence[Row]) -> None:
        """A line in a site's log: what was to end before that has ended."""
        if actor not in self._logged:
            return
        going = self._going[actor]
        for since, subject, event, _, after, why in rows:
            if event.startswith("unit "):
                name = unit_of(why)
                going.add(name) if after == authority.TEARDOWN else going.discard(name)
            elif event == "redeem":
                claims = self._redeemed[actor].get(subject, {}).values()
                fine = any(one.new and since <= one.by for one in claims)
                must(fine, f"{actor}: {subject} begins at {since} by a claim that had lapsed")
            self._logged[actor] = max(self._logged[actor], since)
        if self._ended[actor] or self._off[actor]:
            found = self._overstayed(actor, self._logged[actor])
            must(not found, "; ".join(found))

    def overstayed(self) -> list[str]:
        """Units that are up for leases that are over, now that no fault makes their sites late."""
        return [text for site in self._logged for text in self._overstayed(site, self._clock(site))]

    def _overstayed(self, site: str, now: Instant) -> list[str]:
        found = []
        for (at, name), unit in self._units.units.items():
            lease = self._holder(site, name) if at == site and unit.lease else ""
            if lease and (end := self._over(site, lease, now)) >= 0:
                found.append(f"{site}: {name} is up for {lease} at {now}, which was to end early, at {end}")
        return found

    def _holder(self, site: str, name: str) -> str:
        """Whose the unit is, if it is not on its way down."""
        unit = self._units.units.get((site, name))
        return "" if unit is None or unit.op == "teardown" or name in self._going[site] else unit.lease

    def _over(self, site: str, lease: str, now: Instant) -> Instant:
        """When a lease had to end that may not run now because of an early end; -1 if it may."""
        off = self._off[site].get(lease, INSTANT_MAX)
        if off < now:
            return off
        cuts = [
            min(self._ended[site].get(digest, INSTANT_MAX) for digest in one.chain)
            for one in self._redeemed[site].get(lease, {}).values()
            if one.term.start <= now <= one.term.end
        ]
        return max(cuts) if cuts and max(cuts) < now else -1


ENDING: Final = ("/closing", "/close_wait", "closed/-", "failed/-")
"""How the states of a lease end that only gets rid of what it has."""


class CloseChecker(Listening):
    """A close is never held back, not by a set-up either. A guest that has agreed to close a lease goes on to nothing
    but its end. A site that ends a lease tears down in the same step all that was set up for it, ready or not, and
    sets nothing up for it any more.
    """

    kind = "closes"

    def __init__(self, sites: Sequence[str]) -> None:
        super().__init__()
        self._sites = frozenset(sites)
        self._agreed: set[tuple[str, str]] = set()
        self._ended: set[tuple[str, str]] = set()
        self._has: dict[tuple[str, str], dict[str, None]] = {}

    def closed(self, guest: str, lease: str) -> None:
        """A guest has answered that a lease is being closed."""
        self._agreed.add((guest, lease))

    def committed(self, at: Instant, actor: str, rows: Sequence[Row]) -> None:
        """Check what has become of leases that are being closed."""
        ends = []
        for _, subject, event, _, after, why in rows:
            lease = actor, subject
            if event.startswith("unit "):
                self._unit(lease, unit_of(why), after)
            elif actor not in self._sites:
                over = "/" not in after or after.endswith(ENDING)
                must(over or lease not in self._agreed, f"{actor}: {subject} is being closed, and becomes {after}")
            elif after.endswith(ENDING):
                ends.append(lease)
                self._ended.add(lease)
            elif event == "redeem":
                self._ended.discard(lease)  # it has forgotten the lease of that name
        for lease in ends:
            must(not self._has.get(lease), f"{actor} ends {lease[1]}, and keeps {sorted(self._has.get(lease, ()))}")

    def _unit(self, lease: tuple[str, str], name: str, after: str) -> None:
        if after == authority.SETUP:
            must(lease not in self._ended, f"{lease[0]}: {name} is set up for {lease[1]}, which is being closed")
            self._has.setdefault(lease, {})[name] = None
        elif after in (authority.TEARDOWN, authority.OUT):
            self._has.get(lease, {}).pop(name, None)
