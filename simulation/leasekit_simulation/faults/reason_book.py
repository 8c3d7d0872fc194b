"""The book of reasons: a site refuses what a guest redeems only for a reason that holds; those that are about a want of
units are looked at in :mod:`.refusals`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from leasekit.core.claims.claim import Claim, decode_ticket
from leasekit.core.claims.signed import decode_statement
from leasekit.core.errors import TicketError
from leasekit.core.protocol.messages import (
    UNDO,
    Accepted,
    CloseLease,
    ErrorReply,
    LeaseUpdate,
    Reclaim,
    Redeem,
    Relinquish,
    Truncated,
)
from leasekit.core.reasons import Code, words
from leasekit.core.schema import Row
from leasekit.core.time import SECOND, Duration, Instant
from leasekit_simulation.faults.checkers import Listening, must
from leasekit_simulation.faults.claim_book import ClaimChecker
from leasekit_simulation.faults.message_book import OVER

STEPS: Final[Duration] = 3 * SECOND
"""By how much a clock that is right may have been ahead of what it shows now."""
NEVER: Final = frozenset({
    "malformed", "bad_signature", "wrong_site", "not_holder", "wrong_issuer", "wrong_root", "wrong_parent", "too_deep",
    "broken_chain", "type_changed", "properties_changed", "exceeds_units", "exceeds_degree", "exceeds_term", "bad_op",
    "wrong_properties", "unknown_type", "too_large", "future",
})  # fmt: skip
"""What nobody can say of a ticket that a broker has given."""


class Shown(NamedTuple):
    """What came with a redeem: the chain of its ticket, and what it ends."""

    chain: Sequence[Claim]
    truncation: bytes

    @property
    def leaf(self) -> Claim:
        """The claim that is redeemed."""
        return self.chain[-1]


class ReasonChecker(Listening):
    """A site that refuses a ticket says why, and that is so: as expired by its clock, as given back only if somebody
    gave it back, as redeemed if it was, as out of term, out of turn or terminating if its lease is; and it knows the
    leases that it has called active.
    """

    kind = "refusals"

    def __init__(
        self,
        claims: ClaimChecker,
        sites: Sequence[str],
        guests: frozenset[str],
        clock: Callable[[str], Instant],
        *,
        rogue: bool,
    ) -> None:
        """``rogue``: whether there is a broker that gives away more than it has."""
        super().__init__()
        self._claims, self._guests, self._clock, self._rogue = claims, guests, clock, rogue
        self.sends = {ErrorReply: self._error, Reclaim: self._reclaim, Accepted: self._accepted}
        self.receives = {
            Redeem: self._redeem, Relinquish: self._relinquish, CloseLease: self._close, Truncated: self._truncated,
        }  # fmt: skip
        self._logged = dict.fromkeys(sites, 0)
        self._shown: dict[tuple[str, str, str, int], Shown] = {}
        self._times: dict[tuple[str, bytes], int] = {}
        self._said: dict[str, set[bytes]] = {site: set() for site in sites}
        self._terminating: set[tuple[str, str]] = set()
        self._active: dict[tuple[str, str], Instant] = {}
        self._taken: set[tuple[str, bytes]] = set()
        self._since: dict[tuple[str, str], set[bytes]] = {}
        self.stepped: set[str] = set()
        """Whose clocks went wrong: what is over they may see otherwise."""

    # -- what may be a reason ----------------------------------------------------------------------------------

    def _redeem(self, at: Instant, sender: str, receiver: str, message: Redeem) -> None:
        if receiver not in self._said or not message.ticket:
            return
        try:
            shown = Shown(decode_ticket(message.ticket).chain, message.truncation)
        except TicketError:
            return
        self._shown[receiver, sender, message.lease, message.number] = shown
        digest = shown.leaf.digest
        self._times[receiver, digest] = self._times.get((receiver, digest), 0) + 1
        self._since.setdefault((receiver, message.lease), set()).add(digest)
        if message.op == UNDO:
            self._taken.discard((receiver, digest))
        self._ends(receiver, message.truncation)

    def _accepted(self, at: Instant, sender: str, receiver: str, message: Accepted) -> None:
        shown = self._shown.get((sender, receiver, message.lease, message.number))
        if shown is not None:
            self._taken.add((sender, shown.leaf.digest))

    def _relinquish(self, at: Instant, sender: str, receiver: str, message: Relinquish) -> None:
        self._ends(receiver, message.relinquishment)

    def _close(self, at: Instant, sender: str, receiver: str, message: CloseLease) -> None:
        self._active.pop((receiver, message.lease), None)
        self._ends(receiver, message.relinquishment)

    def _truncated(self, at: Instant, sender: str, receiver: str, message: Truncated) -> None:
        self._ends(receiver, message.truncation)

    def _reclaim(self, at: Instant, sender: str, receiver: str, message: Reclaim) -> None:
        self._ends(sender, message.statement)

    def _ends(self, site: str, data: bytes) -> None:
        if site in self._said and data:
            try:
                subject = decode_statement(data).subject
                self._said[site].add(subject)
                self._taken.discard((site, subject))
            except TicketError:
                return  # the site's to refuse

    def committed(self, at: Instant, actor: str, rows: Sequence[Row]) -> None:
        """What a site has written down: it ends a lease early, or a lease is over."""
        if actor not in self._logged:
            return
        for since, lease, event, _, after, _ in rows:
            self._logged[actor] = max(self._logged[actor], since)
            if event == "notice":
                self._terminating.add((actor, lease))
            if after in OVER:
                self._active.pop((actor, lease), None)

    # -- refusals ----------------------------------------------------------------------------------------------

    def _error(self, at: Instant, sender: str, receiver: str, message: ErrorReply) -> None:
        shown = self._shown.get((sender, receiver, message.lease, message.number))
        if shown is None or receiver not in self._guests:
            return
        what = f"{sender} refuses a ticket of {receiver} for {message.lease} ({words(message.reason)})"
        if message.reason.code == "expired":
            self._check_expired(sender, shown, what)
        elif message.reason.code == "returned":
            known = any(claim.digest in self._said[sender] for claim in shown.chain)
            must(known, f"{what}: nobody gave it back or ended it early")
        elif message.reason.code == "reclaimed":
            must(shown.chain[0].digest in self._said[sender], f"{what}: it did not take that delegation back")
        elif message.reason.code == "redeemed":
            must(self._times[sender, shown.leaf.digest] > 1, f"{what}: it comes for the first time")
        elif message.reason.code == "unknown_lease":
            must((sender, message.lease) not in self._active, f"{what}: it had called the lease active")
        elif message.reason.code in ("overdelegated", "guilty_issuer"):
            must(self._rogue, f"{what}: every broker is honest")
        elif message.reason.code in NEVER:
            must(shown.leaf.digest not in self._claims.issued, f"{what}: a broker has given it")

    def announced(self, site: str, receiver: str, message: LeaseUpdate) -> None:
        """An update that is sent for the first time."""
        if message.state == "active":
            claim = decode_statement(message.contract).subject
            self._active[site, message.lease] = message.term.end
            self._since[site, message.lease] = {claim}
        shown = self._shown.get((site, receiver, message.lease, message.number))
        if message.state != "refused" or shown is None or receiver not in self._guests:
            return
        what = f"{site} refuses to go on with {message.lease} of {receiver} ({words(message.reason)})"
        code = message.reason.code if message.reason is not None else ""
        if code == Code.EXPIRED:
            self._check_expired(site, shown, what)
        elif code == Code.TERMINATING:
            must((site, message.lease) in self._terminating, f"{what}: nothing ends it early")
        elif code == Code.WRONG_TERM:
            self._check_term(site, message.lease, shown, what)
        elif code == Code.WAITING:
            must((site, shown.leaf.digest) not in self._taken, f"{what}: it has accepted that")

    def _check_expired(self, site: str, shown: Shown, what: str) -> None:
        now = max(self._clock(site), self._logged[site])
        must(site in self.stepped or shown.leaf.term.end <= now + STEPS, f"{what}: there it is {now}")

    def _check_term(self, site: str, lease: str, shown: Shown, what: str) -> None:
        """It can be told only if nothing else was asked for since the lease was said to be active."""
        end = self._active.get((site, lease), -1)
        others = self._since.get((site, lease), set()) - {shown.leaf.digest}
        if end < 0 or len(others) != 1 or (site, lease) in self._terminating:
            return
        start = shown.leaf.term.start
        fits = start < end and decode_statement(shown.truncation).at == start if shown.truncation else start == end
        must(not fits, f"{what}: it was said to end at {end}")
