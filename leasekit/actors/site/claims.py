"""Claims: what a site delegates to brokers, of the units that its settings name; the claims that it has seen, what
became of each, and what may still be given of it; and who is to blame when a ticket can't be honoured (SHARP; paper
section 2.2).

A ticket that the claim tree calls surplus is refused with evidence of who signed too much; one that only the units are
missing for is refused without blame: *oversubscribed* if somebody in the chain was allowed to promise more than there
is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Final

import attrs
from attrs import evolve
from msgspec import UNSET

from leasekit.actors.issued import Issued, Issuer
from leasekit.actors.kernel import Kernel, command, keeps, query
from leasekit.actors.peering import Keyring
from leasekit.actors.served import Notices, Reports
from leasekit.actors.settings import AuthoritySettings, DelegationSpec
from leasekit.actors.site.calendars import FragmentedError
from leasekit.actors.site.units import Units
from leasekit.core.accounts import INVENTORY
from leasekit.core.answers import ClaimDetails, EvidenceDetails, VouchedEvidence, describe_counts
from leasekit.core.claims.claim import (
    DEGREE_ONE,
    REPLACES,
    UNUSED_UNTIL,
    Claim,
    Ticket,
    TicketVerifier,
    decode_claim,
    decode_ticket,
    delegate_root,
    early_terms,
)
from leasekit.core.claims.evidence import (
    OVERDELEGATION,
    Evidence,
    decode_evidence,
    encode_evidence,
    in_words,
    of_overdelegation,
    of_returned,
    overdelegated,
    span_in_words,
)
from leasekit.core.claims.signed import (
    RECEIPT,
    RELINQUISHMENT,
    Signer,
    Statement,
    check_statement,
    fingerprint,
    standing,
    state,
)
from leasekit.core.claims.tree import BY_DELEGATION, BY_USE, ClaimTree, Overdelegation, Standing
from leasekit.core.commands import GiveWord, ListEvidence
from leasekit.core.errors import ArgumentError, CommandError, LeasekitError, TicketError
from leasekit.core.lacking import reasons_of
from leasekit.core.leases import authority as au
from leasekit.core.leases.records import Delegation, Incident, SiteClaim, SiteLease
from leasekit.core.profile import FOREVER, Profile
from leasekit.core.properties import NO_UNITS, Counts, Sizes, chosen, count_of, in_common
from leasekit.core.protocol.messages import ClaimReport, CloseLease
from leasekit.core.reasons import Code, Reason, all_of, mark, marked
from leasekit.core.schema import Row
from leasekit.core.time import Instant, Term
from leasekit.core.timetable import Shortfall

"""What is known of a claim: ``heard`` is one of which only its early end was told, never shown by who holds it."""
UNUSED_MAX: Final = 20_000
"""How many claims of one issuer are remembered that no lease used: given back, or ended early."""


@attrs.frozen
class LooseClaims:
    """The claims of preemptible leases that are not over: of all of them, or of those of a type up to a class. Each is
    looked up when it is asked for.
    """

    claims: Mapping[bytes, SiteClaim]
    leases: Mapping[str, SiteLease]
    type: str = ""
    class_: int = -1

    def __contains__(self, claim: object) -> bool:
        known = self.claims.get(claim) if isinstance(claim, bytes) else None
        lease = self.leases.get(known.lease) if known is not None else None
        if lease is None or lease.ended >= 0 or not lease.preemptible or claim not in lease.claims:
            return False
        return not self.type or (lease.type == self.type and lease.early.priority <= self.class_)


@keeps(rows="by_digest", volatile="tree _unused", derived="_counted")
@attrs.define(eq=False, slots=False)
class SiteClaims:
    """Records of claims, and the claim tree, which says whether each issuer in a chain had what it gave."""

    _kernel: Kernel
    _keyring: Keyring
    _leases: Mapping[str, SiteLease]
    _settings: AuthoritySettings
    by_digest: dict[bytes, SiteClaim] = attrs.field(factory=dict, init=False)
    """Claims by digest."""
    tree: ClaimTree = attrs.field(init=False)
    _unused: Counter[str] = attrs.field(factory=Counter, init=False)
    _counted: int = attrs.field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        self._keyring.verifier = TicketVerifier(self._keyring.scheme, depth_max=self._settings.depth_max)
        self.tree = ClaimTree(BY_USE if self._settings.surplus == "honour" else BY_DELEGATION)
        self._kernel.register(SiteClaim, due_at=self._due_at, on_due=self._due)

    def get(self, digest: bytes) -> SiteClaim | None:
        """What is known of a claim."""
        return self.by_digest.get(digest)

    def check_unused(self, ticket: Ticket) -> None:
        """Raises ``TicketError`` if the ticket was given back, or redeemed."""
        known = self.get(ticket.leaf.digest)
        if known is not None and known.is_void:
            raise TicketError(Code.RETURNED, f"the claim was given back as of {mark(known.at)}")
        if known is not None and known.is_redeemed:
            raise TicketError(Code.REDEEMED, f"the claim was redeemed for lease {known.lease}")

    def check_replaced(self, ticket: Ticket) -> None:
        """Raises ``TicketError`` if the ticket stands in the place of one that its holder may still use."""
        said = ticket.leaf.constraints
        if UNUSED_UNTIL not in said:
            return
        old = said.get(REPLACES, "")
        try:
            known, until = self.get(bytes.fromhex(old)), int(said[UNUSED_UNTIL])
        except ValueError as error:
            raise TicketError(Code.REPLACES, f"claim {ticket.leaf.id[:16]} does not say what it replaces") from error
        is_back = known is not None and known.is_void and known.holder == ticket.leaf.holder.hex()
        if not is_back and until + self._kernel.settings.clock_skew > self._kernel.now:
            raise TicketError(Code.REPLACES, f"claim {old[:16]}, which it replaces, was not given back")

    def tidy(self) -> None:
        """Another claim was counted: from time to time the tree forgets those that are over."""
        self._counted += 1
        if self._counted % self._kernel.tidy_every == 0:
            self.tree.forget_before(self._kernel.now - self._kernel.settings.clock_skew)

    def remember(self, claim: Claim, lease: str, state_: str, at: Instant = 0) -> SiteClaim:
        """Write down what became of a claim."""
        record = SiteClaim(
            claim.digest.hex(), lease, claim.parent.hex(), claim.issuer.hex(), claim.holder.hex(), claim.type,
            claim.units, claim.term, state_, at, claim.body, claim.signature,
        )  # fmt: skip
        before = self.by_digest.get(claim.digest)
        if before is not None:
            record.vouched = before.vouched
        self._forget(before)
        self.by_digest[claim.digest] = record
        self._unused[record.issuer] += not lease
        self.refresh(claim.digest)
        return record

    def _forget(self, record: SiteClaim | None) -> None:
        if record is not None and not record.lease:
            self._unused[record.issuer] -= 1

    def remember_unused(self, claim: Claim, state_: str, at: Instant = 0) -> SiteClaim:
        """As :meth:`remember`, of a claim that no lease uses, which its issuer can make as many of as it likes. Raises
        ``TicketError``.
        """
        count = self._unused[claim.issuer.hex()]
        if count >= UNUSED_MAX and claim.digest not in self.by_digest:
            raise TicketError(
                Code.BUSY, f"{self._keyring.name} remembers {count} unused claims of {fingerprint(claim.issuer)}"
            )
        return self.remember(claim, "", state_, at)

    def disuse(self, claim: bytes) -> None:
        """The lease that a claim was redeemed for does not go on by it: nothing was used of it, as its receipt says."""
        known = self.by_digest[claim]
        self._unused[known.issuer] += bool(known.lease)
        known.lease = ""
        self._kernel.touch(known)

    def going_on(self) -> list[SiteLease]:
        """The leases that are not over."""
        return [lease for lease in self._leases.values() if lease.ended < 0]

    def loose(self) -> LooseClaims:
        """The claims of leases that may be ended early for others."""
        return LooseClaims(self.by_digest, self._leases)

    def below(self, leaf: Claim) -> Container[bytes]:
        """The claims of leases that make room for one with this claim: preemptible ones of its own class or lower. For
        one that is preemptible nobody does.
        """
        if leaf.constraints.get("preemptible") == "true":
            return frozenset[bytes]()
        return LooseClaims(self.by_digest, self._leases, leaf.type, early_terms(leaf.constraints).priority)

    def leases_of(self, claim: bytes) -> list[SiteLease]:
        """The leases that use a claim, or one below it, now or in a renewal."""
        known = self.by_digest.get(claim)
        if known is not None and known.lease:
            lease = self._leases.get(known.lease)
            return [lease] if lease is not None and lease.ended < 0 else []
        return [lease for lease in self._leases.values() if lease.ended < 0 and self.end_under(lease, claim, 0) >= 0]

    def end_under(self, lease: SiteLease, claim: bytes, at: Instant) -> Instant:
        """When a lease ends if ``claim`` ends at ``at``: later if only its renewal is below that; -1 if neither is."""
        if self._is_below(lease.claim, claim):
            goes_on = bool(lease.accepted) and not self._is_below(lease.accepted[-1].claim, claim)
            return -1 if goes_on and lease.term.end <= at else at
        below = (one for one in lease.accepted if self._is_below(one.claim, claim))
        return next((max(at, one.term.start) for one in below), -1)

    def _is_below(self, claim: bytes, above: bytes) -> bool:
        while claim and claim != above:
            known = self.by_digest.get(claim)
            claim = bytes.fromhex(known.parent) if known is not None else b""
        return bool(claim)

    def root_signer(self, claim: bytes) -> Signer:
        """Who speaks of a claim that was seen: the key that its chain begins with."""
        known = self.by_digest.get(claim)
        while known is not None and known.parent:
            known = self.by_digest.get(bytes.fromhex(known.parent))
        return self._keyring.signer if known is None else self._keyring.signer_of(bytes.fromhex(known.issuer))

    def end_claim(self, digest: bytes, at: Instant) -> Instant:
        """A statement that was checked ends a claim at ``at``, or when the site last gave its word that the claim
        stands, if that is later. Returns when: earlier if it was over by then.
        """
        record = self.by_digest.get(digest)
        at = self.dated(record, at)
        if record is not None and record.until >= 0:
            at = min(at, record.until)
        self.tree.end_early(digest, at)
        if record is not None and digest not in self.tree:  # the tree is told again after a restart
            record.until, record.used = at, False
        self.refresh(digest)
        return at

    def end_from_now(self, digest: bytes, at: Instant) -> Instant:
        """As :meth:`end_claim`; nothing that is past is given back."""
        return self.end_claim(digest, max(self._kernel.now, at))

    @staticmethod
    def dated(record: SiteClaim | None, at: Instant) -> Instant:
        """When a claim ends that is to end at ``at``: not before the site last gave its word that it stands."""
        return max(at, record.vouched + 1) if record is not None and record.vouched >= 0 else at

    def receipt(self, claim: bytes, at: Instant, lease: str) -> bytes:
        """The site's receipt for a claim that is void as of ``at``; ``lease`` is the one that used it, if any did."""
        return state(self.root_signer(claim), RECEIPT, claim, at, lease).encode()

    def given_back(self, peer: str, message: CloseLease, lease: SiteLease | None) -> bytes:
        """The receipt for what is left of the lease's claim, if its guest gives that back; none for an older one, which
        is used up. Without the lease, which was over for so long, only its claim is remembered.
        """
        data = message.relinquishment
        if not data:
            return b""
        note = check_statement(self._keyring.scheme, data, RELINQUISHMENT, signer=self._keyring.said_by(peer, data))
        known = self.get(note.subject)
        if note.subject != lease.claim if lease is not None else known is None or known.lease != message.lease:
            return b""
        return self.receipt(note.subject, self.end_from_now(note.subject, note.at), message.lease)

    # -- the site's word ---------------------------------------------------------------------------------------

    def vouch(self, claims: Sequence[Claim], instant: Instant) -> Statement:
        """The site's word that each of ``claims`` holds at ``instant``. The claims remember it: no receipt for one of
        them is dated earlier from now on. Raises ``CommandError`` if one does not hold, or was never seen.
        """
        for claim in claims:
            known, record = self.tree.standing(claim.digest), self.by_digest.get(claim.digest)
            if known is None:
                raise CommandError(
                    f"{self._keyring.name} can't speak of claim {claim.id[:16]}: no ticket that came here has it"
                )
            until = known.until if record is None or record.until < 0 else min(record.until, known.until)
            if until <= instant:
                raise CommandError(f"claim {claim.id[:16]} ended at {in_words(until)}: it does not stand")
        for claim in claims:
            record = self.by_digest.get(claim.digest) or self.remember_unused(claim, au.SEEN)
            record.vouched = self._kernel.now
            self.refresh(claim.digest)
        return standing(self.root_signer(claims[0].digest), [one.digest for one in claims], self._kernel.now, instant)

    @command("evidence.word")
    def _give_word(self, asked: GiveWord) -> VouchedEvidence:
        """The evidence in ``file``, with the site's word on its claims in it."""
        found = decode_evidence(asked.file)
        if found.kind != OVERDELEGATION or len(found.claims) < 2:
            raise ArgumentError(f"file: found evidence of {found.kind}, only {OVERDELEGATION} takes a site's word")
        word = self.vouch(found.claims[1:], found.instant)
        return VouchedEvidence(encode_evidence(evolve(found, statements=(word,)), asked.words), word.at)

    def refresh(self, digest: bytes) -> None:
        """What the tree says of a claim is written down."""
        record, standing = self.by_digest.get(digest), self.tree.standing(digest)
        if record is not None:
            if standing is not None:
                record.until, record.honoured, record.used = standing.until, standing.honoured, standing.used
            self._kernel.touch(record)

    # -- time and state ----------------------------------------------------------------------------------------

    def _due_at(self, record: SiteClaim) -> Instant | None:
        return record.term.end + self._kernel.settings.clock_skew if record.live else None

    def _due(self, record: SiteClaim) -> None:
        record.live = False
        self._forget(self.by_digest.pop(bytes.fromhex(record.id), None))

    def restore(self, rows: Iterable[Row]) -> None:
        """Take up what a store kept."""
        below: dict[str, list[SiteClaim]] = {}
        for row in rows:
            record = SiteClaim.from_row(row)
            self.by_digest[bytes.fromhex(record.id)] = record
            self._unused[record.issuer] += not record.lease
            self._kernel.schedule(record, record.term.end + self._kernel.settings.clock_skew)
            below.setdefault(record.parent, []).append(record)
        level = below.get("", [])
        while level:  # parents before children
            # What was only heard of may never be used, as that of a modify that fails: nor may what is below it.
            level = [record for record in level if not record.is_only_heard_of]
            for record in level:
                until = record.until if record.until >= 0 else record.term.end
                claim = decode_claim(record.body, record.signature)
                self.tree.restore(claim, Standing(until, record.honoured, record.used))
            level = [child for record in level for child in below.get(record.id, ())]
        for digest, record in self.by_digest.items():
            if digest not in self.tree and record.until >= 0:
                self.tree.end_early(digest, record.until)


def describe_key(field: str, key: str, names: Mapping[bytes, str]) -> dict[str, str]:
    """What is shown of a key in hex: itself, its short form, and whose it is, where that is known."""
    data = bytes.fromhex(key)
    return {field: key, f"{field}_fingerprint": fingerprint(data), f"{field}_name": names.get(data, "")}


def _until(term: Term, end: Instant) -> Term:
    """A term that ends early, where it does (-1: it does not)."""
    return Term(term.start, end) if end >= 0 else term


def _details(claim: Claim, names: Mapping[bytes, str], **known: object) -> ClaimDetails:
    return ClaimDetails.of(
        claim, claim=claim.id, parent=claim.parent.hex(), classes=describe_counts(claim.classes),
        **describe_key("issuer", claim.issuer.hex(), names), **describe_key("holder", claim.holder.hex(), names),
        **known,
    )  # fmt: skip


@keeps(rows="evidence", derived="_guilty")
@attrs.define(eq=False, slots=False)
class Incidents:
    """The evidence that a site keeps."""

    _kernel: Kernel
    _keyring: Keyring
    _reports: Reports
    _settings: AuthoritySettings
    evidence: dict[str, Incident] = attrs.field(factory=dict, init=False)
    _guilty: Counter[str] = attrs.field(factory=Counter, init=False)

    def __attrs_post_init__(self) -> None:
        self._kernel.register(Incident)

    def check_issuers(self, ticket: Ticket) -> None:
        """Where the settings say so, raises ``TicketError`` if there is evidence against an issuer in the chain."""
        if self._guilty and self._settings.refuse_guilty:
            banned = next((claim.issuer for claim in ticket.chain if self._guilty[claim.issuer.hex()] > 0), None)
            if banned is not None:
                who = self._keyring.called(banned)
                raise TicketError(
                    Code.GUILTY_ISSUER, f"{who} has given away more than it had: {self._keyring.name} keeps evidence"
                )

    def keep(self, id_: str, guilty: bytes, evidence: Evidence, words: str, root: bytes = b"") -> None:
        """Keep evidence in the store, under ``id_``: the latest of each.

        ``root`` is whom the site gave what it is about. Keys are made up easily: where there is too much evidence, that
        below the ``root`` that has most gives way, so that nobody can hide what others do behind its own.
        """
        if id_ not in self.evidence and not self._make_room(root.hex()):
            self._kernel.complain(f"evidence against {fingerprint(guilty)} is not kept: there are {len(self.evidence)}")
            return
        body = encode_evidence(evidence, words).encode()
        incident = Incident(id_, self._kernel.now, evidence.kind, guilty.hex(), words, body, root.hex())
        if id_ not in self.evidence:
            self._guilty[incident.guilty] += 1  # guilty is who there is evidence against: no more than that is kept
        self.evidence[id_] = incident
        self._kernel.touch(incident)
        self._reports.keep(id_, Reason(evidence.kind, detail=words), event=evidence.kind)

    def _make_room(self, root: str) -> bool:
        if len(self.evidence) < self._settings.evidence_max:
            return True
        ((most, count),) = Counter(one.root for one in self.evidence.values()).most_common(1)
        if count <= 1 + sum(one.root == root for one in self.evidence.values()):
            return False
        latest = [one for one in self.evidence.values() if one.root == most][-1]
        del self.evidence[latest.id]
        self._guilty -= Counter({latest.guilty: 1})
        self._kernel.erase(latest)
        return True

    def restore(self, rows: Iterable[Row]) -> None:
        """Take up what a store kept."""
        for incident in map(Incident.from_row, rows):
            self.evidence[incident.id] = incident
            self._guilty[incident.guilty] += 1

    @query("evidence")
    def _query_evidence(self, asked: ListEvidence) -> list[EvidenceDetails]:
        wanted, names = asked.id, self._keyring.names()
        return [
            EvidenceDetails.of(
                one, **describe_key("guilty", one.guilty, names), file=one.body.decode() if wanted else UNSET
            )
            for one in self.evidence.values()
            if wanted in ("", one.id)
        ]


REPLACED: Final = "replaced"
REPORTS_MAX: Final = 100
"""How many reports one broker may leave unacknowledged; those that say what is free again are always sent."""


@attrs.define(eq=False)
class ClaimReports:
    """What brokers are told of claims that they issued or hold, and the operator of trouble that is nobody's guilt."""

    _kernel: Kernel
    _keyring: Keyring
    _notices: Notices
    _reports: Reports

    def tell(self, key: bytes, claim: Claim, reason: Reason, receipt: bytes = b"") -> None:
        """Tell the peer with ``key``, if it is one, what became of ``claim``."""
        brokers = (peer for peer in self._keyring.peers.values() if peer.role == "broker")
        peer = next((one.name for one in brokers if key in one.keys), None)
        if peer is not None:
            if reason.code != Code.REPLACED and sum(n.peer == peer for n in self._notices) >= REPORTS_MAX:
                return
            message = ClaimReport(claim.id, self._kernel.next("serial"), reason, receipt)
            self._notices.owe(f"report:{reason.code}:{claim.id}@{peer}", peer, message, claim.term.end)

    def no_room(self, ticket: Ticket, short: Shortfall) -> TicketError:
        """Why the units aren't there: somebody was allowed to promise more than there is, or they are out of order."""
        leaf = ticket.leaf
        if isinstance(short, FragmentedError):
            return TicketError(
                Code.FRAGMENTED,
                f"{leaf.units} units of {leaf.type!r} were wanted, {short.free} of them have a place on a host of "
                f"{self._keyring.name} over {marked(short.term)}: what is free beside them is in pieces",
                all_of(*reasons_of(short.lacks)), units=short.free, of=leaf.units,
            )  # fmt: skip
        text = (
            f"{leaf.units} units of {leaf.type!r} were wanted, {max(short.free, 0)} are free at {self._keyring.name} "
            f"over {marked(short.term)}"
        )
        if all(claim.degree == DEGREE_ONE for claim in ticket.chain):
            return TicketError(Code.INSUFFICIENT, text)
        holder, issuer = self._keyring.called(leaf.holder), self._keyring.called(leaf.issuer)
        told = (
            f"oversubscribed: {holder} was refused {leaf.units} units of {leaf.type!r} {span_in_words(leaf.term)}, "
            f"which {issuer} gave it; {max(short.free, 0)} are free"
        )
        why = Reason(Code.OVERSUBSCRIBED, detail=told)
        self._reports.keep(leaf.id, why)
        self.tell(leaf.issuer, leaf, why)
        return TicketError(Code.OVERSUBSCRIBED, f"oversubscribed, try later: {text}")


@attrs.define(eq=False)
class Accusations:
    """What a site says of those who gave away, or redeemed, what they did not have."""

    _kernel: Kernel
    _keyring: Keyring
    _claims: SiteClaims
    _incidents: Incidents
    _told: ClaimReports

    def overdelegated(self, found: Overdelegation, root: bytes) -> None:
        """Keep evidence of one who gave away more than it had, and tell those who ought to know."""
        id_ = f"{fingerprint(found.guilty)}-{found.parent.id[:16]}"
        words = overdelegated(
            found.parent, found.units, found.capacity, len(found.claims), found.instant, self._keyring.called
        )
        try:
            word = self._claims.vouch(found.claims, found.instant)
        except LeasekitError as error:
            word = None
            self._kernel.complain(f"evidence {id_} is kept without the site's word: {error}")
        self._incidents.keep(id_, found.guilty, of_overdelegation(found, word), words, root)
        for key in dict.fromkeys((found.guilty, found.parent.issuer)):  # a set has no order to rely on
            if not self._keyring.is_own(key):
                self._told.tell(key, found.claims[0], Reason(Code.OVERDELEGATED, detail=words))

    def returned(self, ticket: Ticket, known: SiteClaim, note: Statement, contract: Statement) -> None:
        """A claim that its holder had given back by ``note`` was redeemed: its lease has a ``contract``. Only who
        redeemed it afterwards is guilty: a lease that stood before is simply being closed.
        """
        if contract.at <= note.at + self._kernel.settings.clock_skew:
            return
        leaf = ticket.leaf
        given_back = f"gave back {leaf.units} units of {leaf.type!r} as of {in_words(note.at)}"
        words = f"{self._keyring.called(leaf.holder)} {given_back}, and redeemed them at {in_words(contract.at)}"
        evidence = of_returned(ticket, note, contract)
        self._incidents.keep(f"returned-{known.id[:16]}", leaf.holder, evidence, words, ticket.root.holder)


@attrs.define(eq=False, slots=False)
class SiteDelegations(Issuer):
    """A site's side of :class:`Issued`."""

    _kernel: Kernel
    _keyring: Keyring
    _units: Units
    _claims: SiteClaims
    _settings: AuthoritySettings
    issued: Issued = attrs.field(init=False)
    reclaimed: list[Callable[[Delegation], None]] = attrs.field(factory=list, init=False)
    """Who is told, in order, of a delegation that is taken back."""

    def __attrs_post_init__(self) -> None:
        self.issued = Issued(self._kernel, self._keyring, self)

    def begin(self) -> None:
        """It is known what time it is: what the settings say is given, for the first time or again."""
        self.note_totals()
        self._forget_classes()
        self.issued.give(again=True)
        for record in list(self.issued.given.values()):
            if record.is_current and record.type not in self._units.inventory.types:
                self.issued.take_back(
                    record, self._kernel.now, -1, Reason(Code.TYPE_GONE, self._keyring.name, record.type)
                )

    def note_totals(self) -> None:
        """How many units of each type there are is written down, for who accounts for them."""
        for type_ in self._units.inventory.types:
            there = self._units.inventory.total(type_)
            self._kernel.note(INVENTORY, INVENTORY, "", "", Reason(Code.INVENTORY, what=type_, units=there))

    def _forget_classes(self) -> None:
        """Units are not counted any more as of what they were, unless there are claims that do."""
        there = [one for one in self.issued.given.values() if one.is_used or one.freed > self._kernel.now]
        live = {class_ for one in there for class_, _ in decode_ticket(one.ticket).leaf.classes}
        live.update(class_ for lease in self._claims.going_on() for class_, _ in lease.classes)
        self._units.keep_classes(live)

    @query("claims")
    def _query_claims(self) -> list[ClaimDetails]:
        """What was given is there before a ticket below it is redeemed, which is when other claims are first seen."""
        names, seen = self._keyring.names(), self._claims.by_digest
        given = [(decode_ticket(one.ticket).leaf, one) for one in self.issued.given.values() if not one.is_over]
        return [
            _details(claim, names, term=_until(claim.term, one.taken_back.at), lease="", state="given", honoured=True)
            for claim, one in given if claim.digest not in seen
        ] + [
            _details(decode_claim(record.body, record.signature), names, term=_until(record.term, record.until),
                     lease=record.lease, state=record.state, honoured=record.honoured)
            for record in seen.values()
        ]  # fmt: skip

    def delegation_specs(self) -> Sequence[DelegationSpec]:
        """What the settings say is to be given."""
        total = self._units.inventory.total
        return [attrs.evolve(spec, units=spec.units or total(spec.type)) for spec in self._settings.delegations]

    def is_outdated(self, record: Delegation) -> bool:
        """It counts more units of a class than there are. Hosts are what they are by now; other units stay what they
        were when it was given.
        """
        leaf, inventory = decode_ticket(record.ticket).leaf, self._units.inventory
        there = inventory.counts(record.type)
        if not leaf.sizes:
            named = [unit for unit in self._units if unit.type == record.type and unit.id in inventory]
            there = Counter(class_ for unit in named for class_ in unit.classes)
        return any(units * DEGREE_ONE > there[class_] * leaf.degree for class_, units in leaf.classes)

    def is_of_before(self, record: Delegation) -> bool:
        """No unit of a class has its attributes any more."""
        leaf, there = decode_ticket(record.ticket).leaf, self._units.inventory.counts(record.type)
        return not leaf.sizes and any(class_ not in there for class_, _ in leaf.classes)

    def most_of(self, spec: DelegationSpec) -> int:
        """How many units there are to give."""
        return self._units.inventory.total(spec.type) * spec.degree // DEGREE_ONE

    def check_override(self, chain: str, type_: str, units: int) -> None:
        """It must be of a type that there is."""
        if type_ not in self._units.inventory.types:
            raise ArgumentError(
                f"type: found {type_!r}, {self._keyring.name} has {', '.join(self._units.inventory.types)}"
            )

    def check_given_in_all(self, type_: str) -> None:
        """No more than there is."""
        specs = [spec for spec in self.issued.wanted_specs(whole=True).values() if spec.type == type_]
        most, wanted = max(self.most_of(spec) for spec in specs), sum(spec.units for spec in specs)
        if wanted > most:
            shares = ", ".join(f"{spec.units} for {spec.broker}" for spec in specs)
            raise CommandError(
                f"units: {wanted} of {type_!r} in all ({shares}), {self._keyring.name} has {most} to give"
            )

    def _room(self, spec: DelegationSpec, chain: str, term: Term) -> dict[bytes, int]:
        """How many units of each class nobody else has been given over ``term``, or goes on to use of what was taken
        from it. What was given of a class that there is not any more is missing where its units are now.
        """
        there = self._units.inventory.counts(spec.type)
        chains = self.issued.counted(spec.type, term)
        # Its own gives way to what is given now, but for classes that are gone, where places on hosts don't count.
        own = chains.pop(chain, Counter())
        gone = {} if self._units.inventory.hosts(spec.type) else {c: n for c, n in own.items() if c not in there}
        all_given = sum(chains.values(), Counter(gone))
        room = {class_: units * spec.degree // DEGREE_ONE - all_given[class_] for class_, units in there.items()}
        for unit in self._units:
            past = next((class_ for class_ in unit.classes[1:] if all_given[class_] > there[class_]), None)
            if past is not None and unit.type == spec.type:
                all_given[past] -= 1
                room[unit.classes[0]] = room.get(unit.classes[0], 0) - 1
        return room

    def delegate(self, id_: str, spec: DelegationSpec, last: Delegation | None, *, instead: bool = False) -> bool:
        """See :class:`Issuer`."""
        start, end = self.issued.period(spec, last, instead=instead)
        if instead and last is not None:
            start = last.term.start  # nothing that was asked for before it was taken falls between two claims
        before = decode_ticket(last.ticket).leaf.classes if last is not None else NO_UNITS
        shrinks = instead and last is not None and spec.units <= last.units and not self.is_outdated(last)
        room = dict(before) if shrinks else self._room(spec, self.issued.chain_name(spec), Term(start, end))
        units = chosen(spec.units, room, before)
        if not units:
            return False  # until others have given back what they go on to use
        ticket = delegate_root(
            self._keyring.signer,
            holder=self._keyring.key_of(spec.broker),
            type=spec.type,
            units=units,
            term=Term(start, end),
            serial=self._kernel.next("serial"),
            degree=spec.degree,
            sizes=self._sizes(spec.type, units, last),
        )
        attributes = (self._units.inventory.attributes_of(class_, spec.type) for class_, _ in units)
        self.issued.offer(id_, spec.broker, ticket, *in_common(list(attributes)), chain=self.issued.chain_name(spec))
        return True

    def _sizes(self, type_: str, units: Counts, last: Delegation | None) -> Sizes:
        """What one unit of each class has: of hosts that there are, or of which more was given before."""
        hosts = self._units.inventory.hosts(type_)
        before = decode_ticket(last.ticket).leaf if last is not None else None
        known = dict(zip((class_ for class_, _ in before.classes), before.sizes, strict=False)) if before else {}
        found = {**known, **{class_: one.capacity for class_, one in hosts.items()}}
        return tuple(found[class_] for class_, _ in units) if found else ()

    def let_go(self, record: Delegation, until: Instant) -> None:
        """What the holder granted before may go on until then."""
        record.freed = max(self._kernel.now, until)

    def is_own_claim(self, peer: str, ticket: Ticket, offered: Delegation) -> bool:
        """The site's own signature is on it, and it is a claim that the site does not know as void."""
        leaf = ticket.leaf
        known = self._claims.get(leaf.digest)
        if len(ticket.chain) > 1 or leaf.type != offered.type or leaf.term.end <= self._kernel.now:
            return False
        holder = self._keyring.key_among(peer, leaf.holder)
        self._keyring.verify(ticket, root=self._keyring.own_among(leaf.issuer), holder=holder)
        self._kernel.counters["serial"] = max(self._kernel.counters["serial"], leaf.serial)
        return known is None or not known.is_void

    def offer_refused(self, record: Delegation) -> None:
        """The claim is void, as it may be given anew: who uses it all the same is refused."""
        leaf = decode_ticket(record.ticket).leaf
        if leaf.digest not in self._claims.by_digest:
            self._claims.remember_unused(leaf, au.VOID, leaf.term.start)
            self._claims.end_claim(leaf.digest, leaf.term.start)
        record.freed = self._kernel.now

    def taken_back(self, record: Delegation) -> None:
        """See :attr:`reclaimed`."""
        for tell in self.reclaimed:
            tell(record)


@attrs.define(eq=False)
class DelegationLimits:
    """Limits by what was taken back, and by what stands for something else."""

    _kernel: Kernel
    _keyring: Keyring
    _issued: Issued
    _leases: Mapping[str, SiteLease]
    _reports: Reports

    def check_reclaimed(self, ticket: Ticket) -> None:
        """Raises ``TicketError`` if its delegation was taken back as of its start."""
        root = ticket.root.digest
        for record in self._issued.given.values():
            at, _, statement = record.taken_back
            if record.digest == root and statement and 0 <= at <= ticket.leaf.term.start:
                raise TicketError(
                    Code.RECLAIMED, f"{self._keyring.name} took this delegation back as of {in_words(at)}"
                )

    def check_chain(self, ticket: Ticket) -> None:
        """Of what was given in the place of something else its holder gives no more than the most that it ever had:
        the tree, which counts each by itself, does not see that. Raises ``TicketError``.
        """
        leaf, root = ticket.leaf, ticket.root.digest
        chains = {one.base for one in self._issued.given.values() if one.digest == root}
        live = (one for one in self._issued.given.values() if one.base in chains and not one.is_over)
        claims = {one.digest: one for one in live if one.term.overlaps(leaf.term)}
        if len(claims) < 2:
            return
        given = [decode_ticket(one.ticket).leaf.capacities for one in claims.values()]
        there = [lease for lease in self._leases.values() if not lease.is_ending]
        held = [each for lease in there if lease.origin in claims for each in _held_by(lease)]
        for class_, units in leaf.weights:
            most, used = max(count_of(each, class_) for each in given), Profile(0, self._kernel.now)
            for classes, start, end in held:
                if max(start, self._kernel.now) < end:
                    used.add(max(start, self._kernel.now), end, count_of(classes, class_))
            at = used.first_at_least(max(leaf.term.start, self._kernel.now), most - units + 1)
            if at < leaf.term.end:
                issuer = self._keyring.called(ticket.root.holder)
                text = f"{issuer} gives more than the {most} units of {leaf.type!r} that it has"
                self._reports.keep(leaf.id, Reason(Code.OVERDELEGATED, detail=text))
                raise TicketError(Code.OVERDELEGATED, f"{text}: {used.value(at)} are in use at {in_words(at)}")

    def deadline(self, ticket: Ticket) -> Instant:
        """When leases from a ticket's delegation are over at the latest, if it was taken back."""
        root = ticket.root
        given = [record.taken_back.deadline for record in self._issued.given.values() if record.digest == root.digest]
        return min((deadline for deadline in given if deadline >= 0), default=root.term.end)


def _held_by(lease: SiteLease) -> list[tuple[Counts, Instant, Instant]]:
    """How many units a lease has when: of each class, from, until."""
    last = FOREVER if lease.terminates_at < 0 else lease.terminates_at
    starts = [one.term.start for one in lease.accepted]
    own = (lease.weights, lease.term.start, min(lease.term.end, last, *starts))
    later = ((one.weights, one.term.start, min(one.term.end, last)) for one in lease.accepted)
    return [own, *later]
