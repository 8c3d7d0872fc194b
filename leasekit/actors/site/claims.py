"""Which tickets a site honours, and who is to blame when it can't (SHARP; paper section 2.2).

A ticket that verifies is counted twice: in the claim tree, which says whether each issuer in its chain had what it
gave, and in the calendar of the type's units, which says whether they are there. One that the tree calls surplus
is refused with evidence of who signed too much; one that only the units are missing for is refused without blame:
*oversubscribed* if somebody in the chain was allowed to promise more than there is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from attrs import evolve

from leasekit.actors.dispatch import command, query
from leasekit.actors.settings import AuthoritySettings, Peer
from leasekit.actors.site.leases import SiteLeases
from leasekit.core.claims.claim import DEGREE_ONE, Claim, decode_claim
from leasekit.core.claims.evidence import (
    OVERDELEGATION,
    Evidence,
    decode_evidence,
    encode_evidence,
    in_words,
    of_overdelegation,
    overdelegated,
    span_in_words,
)
from leasekit.core.claims.keys import Scheme, Signer, fingerprint
from leasekit.core.claims.statements import RECEIPT, Statement, standing, state
from leasekit.core.claims.ticket import Ticket, decode_ticket
from leasekit.core.claims.tree import BY_DELEGATION, BY_USE, ClaimTree, Overdelegation, Standing, Surplus
from leasekit.core.claims.verify import TicketVerifier
from leasekit.core.errors import CommandError, LeasekitError, TicketError
from leasekit.core.leases import authority as au
from leasekit.core.leases import delegation as deleg
from leasekit.core.leases.records import SiteClaim, SiteLease
from leasekit.core.leases.relations import Incident
from leasekit.core.mappers import AuthorityMapper
from leasekit.core.properties import Properties, digest_properties
from leasekit.core.protocol.codec import clip
from leasekit.core.protocol.fields import LIST_MAX
from leasekit.core.protocol.messages import ClaimReport
from leasekit.core.schema import Row
from leasekit.core.time import Instant, Term
from leasekit.core.timetable import Shortfall
from leasekit.core.timetable.profile import FOREVER, Profile

REPLACED: Final = "replaced"
REDEEMED, VOID, SEEN, HEARD = "redeemed", "void", "seen", "heard"
"""What is known of a claim: ``heard`` is one of which only its early end was told, never shown by who holds it."""
UNUSED_MAX: Final = 20_000
"""How many claims of one issuer are remembered that no lease used: given back, or ended early."""
REPORTS_MAX: Final = 100
"""How many reports of trouble are owed to one broker at once; those that say what is free again are always sent."""
TIDY_EVERY: Final = 256
"""After how many claims the tree forgets those that are over."""


class SiteClaims(SiteLeases):
    """The claims' side of an authority."""

    def __init__(
        self,
        name: str,
        signer: Signer,
        scheme: Scheme,
        peers: Iterable[Peer],
        mapper: AuthorityMapper,
        settings: AuthoritySettings,
    ) -> None:
        super().__init__(name, signer, scheme, peers, mapper, settings)
        self.keyring.verifier = TicketVerifier(scheme, depth_max=settings.depth_max)
        self.claims: dict[bytes, SiteClaim] = {}
        self.kernel.register(SiteClaim, due_at=self._claim_due_at, on_due=self._claim_due)
        self.kernel.register(Incident)
        self._unused: Counter[str] = Counter()
        self.tree = ClaimTree(BY_USE if settings.surplus == "honour" else BY_DELEGATION)
        self.incidents: dict[str, Incident] = {}
        self._guilty: Counter[str] = Counter()
        self._counted_claims = 0

    # -- tickets that come -------------------------------------------------------------------------------------

    def check_ticket(self, peer: str, data: bytes, resource: Properties) -> tuple[Ticket, Claim]:
        """The ticket and its leaf, if ``peer`` may redeem it now. Raises ``TicketError`` with the first check that
        failed.
        """
        ticket = decode_ticket(data)
        holder = self.keyring.key_among(peer, ticket.leaf.holder)
        leaf = self.keyring.verify(ticket, root=self.keyring.own_among(ticket.root.issuer), holder=holder)
        if leaf.units > LIST_MAX:
            raise TicketError("too_large", f"{leaf.units} units don't fit in one lease: at most {LIST_MAX} do")
        if leaf.term.end <= self.kernel.now:
            raise TicketError("expired", f"claim ended at {leaf.term.end}, it is {self.kernel.now} at {self.name}")
        if leaf.properties != digest_properties(resource):
            raise TicketError("wrong_properties", "the resource properties are not those that the claims name")
        if leaf.type not in self.inventory.types:
            raise TicketError(
                "unknown_type", f"type: found {leaf.type!r}, {self.name} has {', '.join(self.inventory.types)}"
            )
        if leaf.term.start > self.kernel.now + self.settings.redeem_ahead_max:
            raise TicketError("future", f"the term starts at {leaf.term.start}, too far ahead of {self.kernel.now}")
        self._check_history(ticket, leaf)
        return ticket, leaf

    def _check_history(self, ticket: Ticket, leaf: Claim) -> None:
        known = self.claims.get(leaf.digest)
        if known is not None and known.state == VOID:
            raise TicketError("returned", f"the claim was given back as of {known.at}")
        if known is not None and known.state == REDEEMED:
            raise TicketError("redeemed", f"the claim was redeemed for lease {known.lease}")
        if self._guilty and self.settings.refuse_guilty:
            banned = next((claim.issuer for claim in ticket.chain if self._guilty[claim.issuer.hex()] > 0), None)
            if banned is not None:
                raise TicketError(
                    "guilty_issuer",
                    f"{self.keyring.called(banned)} has given away more than it had: {self.name} keeps evidence",
                )
        root = ticket.root.digest
        for record in self.issued:
            if record.digest == root and record.statement and 0 <= record.reclaimed <= leaf.term.start:
                at = in_words(record.reclaimed)
                raise TicketError("reclaimed", f"{self.name} took this delegation back as of {at}")

    def admit(self, ticket: Ticket, *, booked: bool = False) -> Instant:
        """Count the ticket's claims in the tree and its units in the calendar: both, or neither, with a reason; in the
        tree only if they are ``booked`` already.

        Returns when it ends, which is before its term does if a claim in the chain was ended early. Raises
        ``TicketError``.
        """
        leaf = ticket.leaf
        for claim in ticket.chain:
            known = self.claims.get(claim.digest)
            if known is not None and known.until >= 0 and claim.digest not in self.tree:
                self.tree.end_early(claim.digest, known.until)  # it remembers only so many
        added = self.tree.add(ticket)
        for found in added.found:
            self._blame(found, ticket.root.holder)
        until = min(added.until, self._deadline(ticket))
        if until <= max(self.kernel.now, leaf.term.start):
            self.tree.withdraw(leaf.digest)
            raise TicketError("returned", f"the claim, or one above it, was ended as of {until}")
        if added.surplus is not None:
            raise TicketError("overdelegated", self._nothing_left(added.surplus))
        table = self.calendars.of(leaf.type)
        try:
            if not booked:
                self._check_line(ticket)
            if booked:
                table.end(leaf.digest, until)
            else:
                table.reserve(leaf.digest, leaf.units, self._rest(leaf, until))
        except Shortfall as short:
            self.tree.withdraw(leaf.digest)
            raise self._no_room(ticket, short) from short
        for claim in ticket.chain[:-1]:  # not the fresh ones only: a ticket that was refused may have brought them
            known = self.claims.get(claim.digest)
            if known is None or known.state == HEARD:
                self.remember(claim, "", SEEN)
        self._counted_claims += 1
        if self._counted_claims % TIDY_EVERY == 0:
            self.tree.forget_before(self.kernel.now - self.kernel.settings.clock_skew)
        return until

    def _check_line(self, ticket: Ticket) -> None:
        """Of what was given in the place of something else its holder gives no more than the most that it ever had:
        the tree, which counts each by itself, does not see that. Raises ``TicketError``.
        """
        leaf, root = ticket.leaf, ticket.root.digest
        lines = {one.base for one in self.issued if one.digest == root}
        live = (one for one in self.issued if one.base in lines and one.state not in (deleg.REFUSED, deleg.ENDED))
        claims = {one.digest: one for one in live if one.term.overlaps(leaf.term)}
        if len(claims) < 2:
            return
        most = max(decode_ticket(one.ticket).leaf.capacity for one in claims.values())
        used = Profile(0, self.kernel.now)
        for lease in self.leases.values():
            if lease.ended < 0 and lease.pending != au.CLOSING and lease.origin in claims:
                for units, start, end in _held_by(lease):
                    if max(start, self.kernel.now) < end:
                        used.add(max(start, self.kernel.now), end, units)
        at = used.first_at_least(max(leaf.term.start, self.kernel.now), most - leaf.units + 1)
        if at < leaf.term.end:
            self.tree.withdraw(leaf.digest)
            giver = self.keyring.called(ticket.root.holder)
            words = f"{giver} gives more than the {most} units of {leaf.type!r} that it has"
            self.reports.keep("overdelegated", leaf.id, words)
            raise TicketError("overdelegated", f"{words}: {used.value(at)} are in use at {in_words(at)}")

    def _nothing_left(self, surplus: Surplus) -> str:
        claim = surplus.claim
        return (
            f"what {self.keyring.called(claim.holder)} may give from its claim {claim.id[:16]} is given already: "
            f"{max(surplus.free, 0)} of {claim.capacity} units are left at {in_words(surplus.instant)}"
        )

    def _deadline(self, ticket: Ticket) -> Instant:
        """When leases from a ticket's delegation are over at the latest, if it was taken back."""
        root = ticket.root
        given = [record.deadline for record in self.issued if record.digest == root.digest]
        return min((deadline for deadline in given if deadline >= 0), default=root.term.end)

    def _rest(self, leaf: Claim, until: Instant) -> Term:
        """A ticket that comes late takes nothing of what is past, where others may have had the units."""
        return Term(max(leaf.term.start, self.kernel.now), until)

    def _no_room(self, ticket: Ticket, short: Shortfall) -> TicketError:
        """Why the units aren't there: somebody was allowed to promise more than there is, or they are out of order."""
        leaf = ticket.leaf
        text = (
            f"{leaf.units} units of {leaf.type!r} were wanted, {max(short.free, 0)} are free at {self.name} "
            f"over {tuple(short.term)}"
        )
        if all(claim.degree == DEGREE_ONE for claim in ticket.chain):
            return TicketError("insufficient", text)
        holder, issuer = self.keyring.called(leaf.holder), self.keyring.called(leaf.issuer)
        words = (
            f"oversubscribed: {holder} was refused {leaf.units} units of {leaf.type!r} {span_in_words(leaf.term)}, "
            f"which {issuer} gave it; {max(short.free, 0)} are free"
        )
        self.reports.keep("oversubscribed", leaf.id, words)
        self._report(leaf.issuer, leaf, "oversubscribed", words)
        return TicketError("oversubscribed", f"oversubscribed, try later: {text}")

    def replace(self, lease: SiteLease, ticket: Ticket) -> Instant:
        """End the lease's claim where the ticket starts, and admit the ticket in its place; all or nothing.

        Returns when it ends, as :meth:`admit` does. Raises ``TicketError``.
        """
        leaf, table, old = ticket.leaf, self.calendars.of(lease.type), lease.claim
        standing = self.tree.standing(old)
        try:  # before the tree hears of it: units that are missing are nobody's guilt
            table.replace(old, leaf.digest, leaf.units, self._rest(leaf, leaf.term.end))
        except Shortfall as short:
            raise self._no_room(ticket, short) from short
        try:
            self.tree.end_early(old, leaf.term.start)
            until = self.admit(ticket, booked=True)
        except TicketError:
            table.release(leaf.digest)
            self.calendars.book_again(lease)
            if standing is not None:
                self.tree.reopen(old, standing.until, leaf.digest)
            raise
        if lease.noticed >= 0:
            table.end(leaf.digest, lease.noticed)
        self._refresh(old)
        if leaf.units < lease.wanted or leaf.term.end < lease.term.end:
            record = self.claims.get(old)
            if record is not None:
                claim = decode_claim(record.body, record.signature)
                receipt = self.receipt(old, self._dated(record, leaf.term.start), lease.id)
                self._report(claim.issuer, claim, REPLACED, f"ends at {leaf.term.start}", receipt)
        return until

    def remember(self, claim: Claim, lease: str, state_: str, at: Instant = 0) -> SiteClaim:
        """Write down what became of a claim."""
        record = SiteClaim(
            claim.digest.hex(), lease, claim.parent.hex(), claim.issuer.hex(), claim.holder.hex(), claim.type,
            claim.units, claim.term, state_, at, claim.body, claim.signature,
        )  # fmt: skip
        before = self.claims.get(claim.digest)
        if before is not None:
            record.vouched = before.vouched
        self._forget(before)
        self.claims[claim.digest] = record
        self._unused[record.issuer] += not lease
        self._refresh(claim.digest)
        return record

    def _forget(self, record: SiteClaim | None) -> None:
        if record is not None and not record.lease:
            self._unused[record.issuer] -= 1

    def remember_unused(self, claim: Claim, state_: str, at: Instant = 0) -> SiteClaim:
        """As :meth:`remember`, of a claim that no lease uses, which its issuer can make as many of as it likes. Raises
        ``TicketError``.
        """
        count = self._unused[claim.issuer.hex()]
        if count >= UNUSED_MAX and claim.digest not in self.claims:
            raise TicketError("busy", f"{self.name} remembers {count} unused claims of {fingerprint(claim.issuer)}")
        return self.remember(claim, "", state_, at)

    def disuse(self, claim: bytes) -> None:
        """The lease that a claim was redeemed for does not go on by it: nothing was used of it, as its receipt says."""
        known = self.claims[claim]
        self._unused[known.issuer] += bool(known.lease)
        known.lease = ""
        self.kernel.touch(known)

    def leases_of(self, claim: bytes) -> list[SiteLease]:
        """The leases that use a claim, or one below it, now or in a renewal."""
        known = self.claims.get(claim)
        if known is not None and known.lease:
            lease = self.leases.get(known.lease)
            return [lease] if lease is not None and lease.ended < 0 else []
        return [lease for lease in self.leases.values() if lease.ended < 0 and self.end_under(lease, claim, 0) >= 0]

    def end_under(self, lease: SiteLease, claim: bytes, at: Instant) -> Instant:
        """When a lease ends if ``claim`` ends at ``at``: later if only its renewal is below that; -1 if neither is."""
        if self._is_below(lease.claim, claim):
            goes_on = bool(lease.accepted) and not self._is_below(lease.accepted[-1].claim, claim)
            return -1 if goes_on and lease.term.end <= at else at
        below = (one for one in lease.accepted if self._is_below(one.claim, claim))
        return next((max(at, one.term.start) for one in below), -1)

    def _is_below(self, claim: bytes, above: bytes) -> bool:
        while claim and claim != above:
            known = self.claims.get(claim)
            claim = bytes.fromhex(known.parent) if known is not None else b""
        return bool(claim)

    def root_signer(self, claim: bytes) -> Signer:
        """Who speaks of a claim that was seen: the key that its chain begins with."""
        known = self.claims.get(claim)
        while known is not None and known.parent:
            known = self.claims.get(bytes.fromhex(known.parent))
        return self.keyring.signer if known is None else self.keyring.signer_of(bytes.fromhex(known.issuer))

    def end_claim(self, digest: bytes, at: Instant) -> Instant:
        """A statement that was checked ends a claim at ``at``, or when the site last gave its word that the claim
        stands, if that is later. Returns when: earlier if it was over by then.
        """
        record = self.claims.get(digest)
        at = self._dated(record, at)
        if record is not None and record.until >= 0:
            at = min(at, record.until)
        self.tree.end_early(digest, at)
        if record is not None and digest not in self.tree:  # the tree is told again after a restart
            record.until, record.used = at if record.until < 0 else min(at, record.until), False
        self._refresh(digest)
        return at

    @staticmethod
    def _dated(record: SiteClaim | None, at: Instant) -> Instant:
        return max(at, record.vouched + 1) if record is not None and record.vouched >= 0 else at

    def receipt(self, claim: bytes, at: Instant, lease: str) -> bytes:
        """The site's receipt for a claim that is void as of ``at``; ``lease`` is the one that used it, if any did."""
        return state(self.root_signer(claim), RECEIPT, claim, at, lease).encode()

    # -- the site's word ---------------------------------------------------------------------------------------

    def _vouch(self, claims: Sequence[Claim], instant: Instant) -> Statement:
        """The site's word that each of ``claims`` holds at ``instant``. The claims remember it: no receipt for one of
        them is dated earlier from now on. Raises ``CommandError`` if one does not hold, or was never seen.
        """
        for claim in claims:
            known, record = self.tree.standing(claim.digest), self.claims.get(claim.digest)
            if known is None:
                raise CommandError(f"{self.name} can't speak of claim {claim.id[:16]}: no ticket that came here has it")
            until = known.until if record is None or record.until < 0 else min(record.until, known.until)
            if until <= instant:
                raise CommandError(f"claim {claim.id[:16]} ended at {in_words(until)}: it does not stand")
        for claim in claims:
            record = self.claims.get(claim.digest) or self.remember_unused(claim, SEEN)
            record.vouched = self.kernel.now
            self._refresh(claim.digest)
        return standing(self.root_signer(claims[0].digest), [one.digest for one in claims], self.kernel.now, instant)

    @command("evidence.word")
    def _give_word(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The evidence in ``file``, with the site's word on its claims in it."""
        found = decode_evidence(str(arguments.get("file", "")))
        if found.kind != OVERDELEGATION or len(found.claims) < 2:
            raise CommandError(f"file: found evidence of {found.kind}, only {OVERDELEGATION} takes a site's word")
        words = str(arguments.get("words", ""))
        word = self._vouch(found.claims[1:], found.instant)
        return {"file": encode_evidence(evolve(found, statements=(word,)), words), "at": word.at}

    def _refresh(self, digest: bytes) -> None:
        record, standing = self.claims.get(digest), self.tree.standing(digest)
        if record is not None:
            if standing is not None:
                record.until, record.honoured, record.used = standing.until, standing.honoured, standing.used
            self.kernel.touch(record)

    # -- blame -------------------------------------------------------------------------------------------------

    def _blame(self, found: Overdelegation, root: bytes) -> None:
        """Keep evidence of one who gave away more than it had, and tell those who ought to know."""
        id_ = f"{fingerprint(found.guilty)}-{found.parent.id[:16]}"
        words = overdelegated(found.parent, found.units, len(found.claims), found.instant, self.keyring.called)
        try:
            word = self._vouch(found.claims, found.instant)
        except LeasekitError as error:
            word = None
            self.kernel.complain(f"evidence {id_} is kept without the site's word: {error}")
        self.keep_evidence(id_, found.guilty, of_overdelegation(found, word), words, root)
        for key in dict.fromkeys((found.guilty, found.parent.issuer)):  # a set has no order to rely on
            if not self.keyring.is_own(key):
                self._report(key, found.claims[0], "overdelegated", words)

    def keep_evidence(self, id_: str, guilty: bytes, evidence: Evidence, words: str, root: bytes = b"") -> None:
        """Keep evidence in the store, under ``id_``: the latest of each.

        ``root`` is whom the site gave what it is about. Keys are made up easily: where there is too much evidence, that
        below the ``root`` that has most gives way, so that nobody can hide what others do behind its own.
        """
        if id_ not in self.incidents and not self._make_room(root.hex()):
            self.kernel.complain(f"evidence against {fingerprint(guilty)} is not kept: there are {len(self.incidents)}")
            return
        body = encode_evidence(evidence, words).encode()
        incident = Incident(id_, self.kernel.now, evidence.kind, guilty.hex(), words, body, root.hex())
        if id_ not in self.incidents:
            self._guilty[incident.guilty] += 1  # guilty is who there is evidence against: no more than that is kept
        self.incidents[id_] = incident
        self.kernel.touch(incident)
        self.reports.keep(evidence.kind, id_, words, event=evidence.kind)

    def _make_room(self, root: str) -> bool:
        if len(self.incidents) < self.settings.evidence_max:
            return True
        ((most, count),) = Counter(one.root for one in self.incidents.values()).most_common(1)
        if count <= 1 + sum(one.root == root for one in self.incidents.values()):
            return False
        latest = [one for one in self.incidents.values() if one.root == most][-1]
        del self.incidents[latest.id]
        self._guilty -= Counter({latest.guilty: 1})
        self.kernel.erase(latest)
        return True

    def _report(self, key: bytes, claim: Claim, code: str, text: str, receipt: bytes = b"") -> None:
        """Tell the peer with ``key``, if it is one, what became of ``claim``."""
        brokers = (peer for peer in self.keyring.peers.values() if peer.role == "broker")
        peer = next((one.name for one in brokers if one.key == key or key in dict(one.former)), None)
        if peer is not None:
            if code != REPLACED and sum(n.peer == peer for n in self.notices) >= REPORTS_MAX:
                return
            number = self.kernel.next("serial")
            message = ClaimReport(claim.id, number, code, clip(text), receipt)
            self.notices.owe(f"report:{code}:{claim.id}@{peer}", peer, claim.id, number, message, claim.term.end)

    # -- time and state ----------------------------------------------------------------------------------------

    def _deals_with(self, peer: str) -> bool:
        return any(lease.holder == peer and (lease.ended < 0 or lease.unacked) for lease in self.leases.values())

    def _claim_due_at(self, record: SiteClaim) -> Instant | None:
        return record.term.end + self.kernel.settings.clock_skew if record.live else None

    def _claim_due(self, record: SiteClaim) -> None:
        record.live = False
        self._forget(self.claims.pop(bytes.fromhex(record.id), None))

    def _restore(self, tables: Mapping[str, Sequence[Row]]) -> None:
        super()._restore(tables)
        below: dict[str, list[SiteClaim]] = {}
        for row in tables.get("claims", ()):
            record = SiteClaim.from_row(row)
            self.claims[bytes.fromhex(record.id)] = record
            self._unused[record.issuer] += not record.lease
            self.kernel.schedule(record, record.term.end + self.kernel.settings.clock_skew)
            below.setdefault(record.parent, []).append(record)
        level = below.get("", [])
        while level:  # parents before children
            # What was only heard of may never be used, as that of a modify that fails: nor may what is below it.
            level = [record for record in level if record.state != HEARD]
            for record in level:
                until = record.until if record.until >= 0 else record.term.end
                claim = decode_claim(record.body, record.signature)
                self.tree.restore(claim, Standing(until, record.honoured, record.used))
            level = [child for record in level for child in below.get(record.id, ())]
        for digest, record in self.claims.items():
            if digest not in self.tree and record.until >= 0:
                self.tree.end_early(digest, record.until)
        for row in tables.get("evidence", ()):
            incident = Incident.from_row(row)
            self.incidents[incident.id] = incident
            self._guilty[incident.guilty] += 1

    # -- queries -----------------------------------------------------------------------------------------------

    @query("evidence")
    def _query_evidence(self, arguments: Mapping[str, Any]) -> list[dict[str, Any]]:
        wanted, names = str(arguments.get("id", "")), self.keyring.names()
        return [
            {
                "id": one.id,
                "at": one.at,
                "kind": one.kind,
                **_key("guilty", one.guilty, names),
                "words": one.words,
                **({"file": one.body.decode()} if wanted else {}),
            }
            for one in self.incidents.values()
            if wanted in ("", one.id)
        ]

    @query("claims")
    def _query_claims(self, arguments: Mapping[str, Any]) -> list[dict[str, Any]]:
        names = self.keyring.names()
        return [
            {
                "claim": record.id,
                "lease": record.lease,
                "parent": record.parent,
                **_key("issuer", record.issuer, names),
                **_key("holder", record.holder, names),
                "type": record.type,
                "units": record.units,
                "term": [record.term.start, record.until if record.until >= 0 else record.term.end],
                "state": record.state,
                "honoured": record.honoured,
            }
            for record in self.claims.values()
        ]


def _held_by(lease: SiteLease) -> list[tuple[int, Instant, Instant]]:
    """How many units a lease has when: units, from, until."""
    last = FOREVER if lease.noticed < 0 else lease.noticed
    starts = [one.term.start for one in lease.accepted]
    own = (lease.wanted, lease.term.start, min(lease.term.end, last, *starts))
    return [own, *((one.units, one.term.start, min(one.term.end, last)) for one in lease.accepted)]


def _key(field: str, key: str, names: Mapping[bytes, str]) -> dict[str, str]:
    """A key in hex as plain data: itself, its short form, and whose it is, where that is known."""
    data = bytes.fromhex(key)
    return {field: key, f"{field}_fingerprint": fingerprint(data), f"{field}_name": names.get(data, "")}
