"""Evidence: signed claims and statements that prove somebody's fault to anyone, offline (SHARP; paper section 2.2).

Three kinds, each with what it takes to prove it and no more:

- *overdelegation*: a parent claim and children of it, signed by its holder, that exceed it at one instant, and the
  site's *standing*: its word that none of the children had been ended by then. The chain above the parent is not
  needed: who signed the children named the parent by its digest, which covers every word of it, and so took it for
  what it says. Nobody can be framed by a parent made up afterwards.
- *returned*: a ticket that was redeemed after its holder had given it back: the chain from the site's root (it says
  which site may speak of the ticket), the holder's relinquishment, and the site's contract, which is later. When the
  ticket was redeemed is the site's word.
- *contradiction*: a site that gave a receipt for a claim (void as of an instant) and later signed a contract that
  honours it past that instant: the chain, the receipt and the contract.

Signed claims alone don't prove over-delegation. An issuer may give the same units anew when the site has given a
receipt for the old claim, or when the new claim says that it replaces the old one of the same holder. So without the
site's word the evidence is *open*, and a receipt settles it. With that word it is proven, whatever the accused signs
later; if a receipt turns up that the word denies, then it is the site that is guilty. A truncation is signed by the
accused alone and has no date of its own: it counts by the site's receipt for it, and by nothing else.

One file format, JSON: who, what and when in words for a reader, and the signed bytes in base64. The words are not
trusted: all that :func:`verify_evidence` says it works out from what is signed. A claim counts with its capacity, as in
:mod:`leasekit.core.claims.tree`, and once, however often it is listed or signed.

What was kept back can refute evidence: a receipt by which one of the claims ended, or an earlier contract. Each verdict
says so, and the accused can bring such statements (``against``).
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import attrs

from leasekit.core.claims.claim import DEPTH_MAX, Claim, Ticket, check_chain, decode_claim, replaced_by
from leasekit.core.claims.signed import (
    CONTRACT,
    RECEIPT,
    RELINQUISHMENT,
    STANDING,
    Scheme,
    Statement,
    all_of,
    decode_statement,
    fingerprint,
    stands_at,
)
from leasekit.core.claims.tree import Overdelegation
from leasekit.core.errors import TicketError
from leasekit.core.json_text import JsonError, read_json
from leasekit.core.properties import count_of
from leasekit.core.reasons import Code
from leasekit.core.time import DAY, HOUR, INSTANT_MAX, MINUTE, SECOND, Duration, Instant, Term

OVERDELEGATION: Final = "overdelegation"
RETURNED: Final = "returned"
CONTRADICTION: Final = "contradiction"
KINDS: Final = (OVERDELEGATION, RETURNED, CONTRADICTION)
FORMAT: Final = 1
EVIDENCE_MAX: Final = 64 * 1024 * 1024
CLAIMS_MAX: Final = 50_000
STATEMENTS_MAX: Final = 16
SKEW_DEFAULT: Final[Duration] = 2 * SECOND

Names: TypeAlias = Mapping[bytes, str]
"""The names of keys, as far as the reader knows any."""


@attrs.frozen(slots=True)
class Evidence:
    """``claims``: the parent and then its children, or a chain from its root; ``instant``: when it happened."""

    kind: str
    instant: Instant
    claims: tuple[Claim, ...]
    statements: tuple[Statement, ...] = ()


@attrs.frozen(slots=True)
class Verdict:
    """The evidence says that ``guilty`` did what ``words`` say, unless there is what ``refutable`` names. It is proven
    if nothing is ``missing``, which names what would prove it.
    """

    guilty: bytes
    words: str
    refutable: str
    missing: str = ""


def of_overdelegation(found: Overdelegation, word: Statement | None = None) -> Evidence:
    """The evidence of what a claim tree found, with the site's ``word`` that the claims stand."""
    statements = () if word is None else (word,)
    return Evidence(OVERDELEGATION, found.instant, (found.parent, *found.claims), statements)


def of_returned(ticket: Ticket, relinquishment: Statement, contract: Statement) -> Evidence:
    """The evidence that a ticket's holder gave it back and redeemed it all the same."""
    return Evidence(RETURNED, contract.at, ticket.chain, (relinquishment, contract))


# -- verifying ---------------------------------------------------------------------------------------------------------


def verify_evidence(
    scheme: Scheme,
    evidence: Evidence,
    *,
    against: Iterable[Statement] = (),
    site: bytes | None = None,
    skew: Duration = SKEW_DEFAULT,
    names: Names | None = None,
) -> Verdict:
    """What the evidence proves.

    ``against`` is what the accused brings; ``site`` the key of the site concerned, whose word and receipts count
    (otherwise only those of a root's issuer do); ``skew`` how far clocks may differ, in milliseconds; ``names`` names
    keys in the verdict.

    Raises ``TicketError`` if it proves nothing. The code is ``unknown_kind``, ``malformed`` (not the claims and
    statements that this kind needs), ``bad_signature``, ``duplicate`` (a claim listed twice, or signed twice),
    ``not_child`` (a claim does not name the parent), ``wrong_issuer`` (a child is not signed by the parent's holder),
    ``type_changed``, ``wrong_instant`` (a claim does not hold then), ``not_exceeding``, ``refuted``; of a chain the
    codes of :class:`TicketVerifier`; of statements ``wrong_kind``, ``wrong_signer``, ``wrong_subject``,
    ``wrong_contract``, ``nothing_returned`` and ``not_after``.
    """
    judge = _JUDGES.get(evidence.kind)
    if judge is None:
        raise TicketError(Code.UNKNOWN_KIND, f"kind: found {evidence.kind!r:.40}, known are {', '.join(KINDS)}")
    statements = list(against)
    for statement in statements:
        if not _signed(scheme, statement):
            raise TicketError(
                Code.BAD_SIGNATURE, f"a {statement.kind} brought against the evidence is not signed rightly"
            )
    return judge(_Case(scheme, evidence, statements, site, skew, names or {}))


@attrs.frozen(slots=True)
class _Case:
    scheme: Scheme
    evidence: Evidence
    against: Sequence[Statement]
    site: bytes | None
    skew: Duration
    names: Names

    def name(self, key: bytes) -> str:
        """A key as the reader knows it."""
        known = self.names.get(key)
        return f"{known} ({fingerprint(key)})" if known else fingerprint(key)


def _overdelegation(case: _Case) -> Verdict:
    evidence = case.evidence
    if len(evidence.claims) < 2 or len(evidence.statements) > 1:
        raise TicketError(
            Code.MALFORMED, f"{OVERDELEGATION}: expected a parent, one or more children and at most one statement"
        )
    parent, children, instant = evidence.claims[0], evidence.claims[1:], evidence.instant
    _distinct(evidence.claims)
    _signature(case.scheme, parent)
    _holds(parent, parent.term, instant)
    for child in children:
        if child.parent != parent.digest:
            raise TicketError(
                Code.NOT_CHILD, f"claim {child.id[:16]} does not name claim {parent.id[:16]} as its parent"
            )
        if child.issuer != parent.holder:
            raise TicketError(Code.WRONG_ISSUER, f"claim {child.id[:16]} is not issued by the holder of the parent")
        if child.type != parent.type:
            raise TicketError(Code.TYPE_CHANGED, f"claim {child.id[:16]} is of {child.type!r}, not {parent.type!r}")
        _holds(child, child.term, instant)
        _signature(case.scheme, child)
    counted = [child for child in children if not replaced_by(child, children)]
    sums = [(sum(count_of(child.capacities, one) for child in counted), most) for one, most in parent.capacities]
    units, capacity = max(sums, key=lambda found: found[0] - found[1])
    if units <= capacity:
        raise TicketError(
            Code.NOT_EXCEEDING, f"the claims add up to {units} units, {capacity} could be given away: that is fine"
        )
    words = overdelegated(parent, units, capacity, len(counted), instant, case.name)
    return _weighed(case, parent, children, words)


def overdelegated(
    parent: Claim, units: int, capacity: int, claims: int, instant: Instant, name: Callable[[bytes], str]
) -> str:
    """In words: who held ``parent`` has given away ``units`` of it at ``instant``, of ``capacity`` that it could, in so
    many ``claims``. Where it has several classes of units, these are those of one.
    """
    of = "them" if len(parent.classes) == 1 else "one class of them"
    return (
        f"{name(parent.holder)} held {parent.units} units of {parent.type!r} from {name(parent.issuer)} "
        f"{span_in_words(parent.term)}, could give away {capacity} of {of}, and gave away {units} at "
        f"{in_words(instant)}, in {claims} claims that it signed"
    )


def _weighed(case: _Case, parent: Claim, children: Sequence[Claim], words: str) -> Verdict:
    """What the site's word, and the receipts that the accused brings, make of an over-delegation in ``words``."""
    instant = case.evidence.instant
    site = parent.issuer if case.site is None and not parent.parent else case.site
    word = _word(case, site, children)
    ended = f"by which one of these claims ended at or before {in_words(instant)}"
    receipt = _receipt(case, site, children)
    if receipt is not None and word is None:
        at = f"claim {receipt.subject.hex()[:16]} ended at {in_words(receipt.at)}"
        raise TicketError(Code.REFUTED, f"{at} by a receipt of {case.name(receipt.signer)}")
    if receipt is not None and word is not None and receipt.at <= word.at:
        lied = (
            f"{case.name(word.signer)} said at {in_words(word.at)} that it had given no receipt {ended}, and had given "
            f"one for claim {receipt.subject.hex()[:16]} as of {in_words(receipt.at)}"
        )
        return Verdict(word.signer, lied, "nothing: both are signed by the same clock")
    if word is not None and site is not None:
        return Verdict(
            parent.holder, words, f"nothing but a lie of the site: a receipt of {in_words(word.at)} or before {ended}"
        )
    missing = f"the word of the site that it has given no receipt {ended} (`leasekit site word`)"
    if word is not None:
        missing = f"whether {case.name(word.signer)}, whose word it has, is the site: say its key (`--site`)"
    return Verdict(parent.holder, words, f"a receipt of the site {ended}", missing)


def _word(case: _Case, site: bytes | None, children: Sequence[Claim]) -> Statement | None:
    """The standing that comes with the evidence, checked. Raises ``TicketError``."""
    for word in case.evidence.statements:
        if word.kind != STANDING:
            raise TicketError(Code.WRONG_KIND, f"expected a {STANDING}, found a {word.kind}")
        if site is not None and word.signer != site:
            found, wanted = case.name(word.signer), case.name(site)
            raise TicketError(Code.WRONG_SIGNER, f"the {STANDING} is signed by {found}, not by {wanted}")
        if word.subject != all_of(child.digest for child in children):
            raise TicketError(Code.WRONG_SUBJECT, f"the {STANDING} is about other claims")
        if stands_at(word) != case.evidence.instant:
            raise TicketError(
                Code.WRONG_INSTANT, f"the {STANDING} is about another instant, {in_words(stands_at(word))}"
            )
        if not _signed(case.scheme, word):
            raise TicketError(Code.BAD_SIGNATURE, f"the signature of the {STANDING} does not verify")
        return word
    return None


def _receipt(case: _Case, site: bytes | None, children: Sequence[Claim]) -> Statement | None:
    """The earliest receipt of the site that the accused brings, by which one of ``children`` did not hold any more."""
    known = {child.digest for child in children}
    ended = [
        one
        for one in case.against
        if one.kind == RECEIPT and one.signer == site and one.subject in known and one.at <= case.evidence.instant
    ]
    return min(ended, key=lambda one: one.at, default=None)


def _returned(case: _Case) -> Verdict:
    leaf, site, note, contract = _chain_and_two(case, RELINQUISHMENT)
    _statement(case.scheme, note, leaf.holder, leaf)
    _statement(case.scheme, contract, site, leaf)
    if note.at >= leaf.term.end:
        raise TicketError(Code.NOTHING_RETURNED, "the claim was over when it was given back")
    if contract.at <= note.at + case.skew:
        raise TicketError(
            Code.NOT_AFTER,
            f"the contract of {in_words(contract.at)} is not later than the return at {in_words(note.at)} by more than "
            f"clocks may differ ({case.skew} ms)",
        )
    _past(contract, note.at)
    for other in case.against:
        same = other.kind == CONTRACT and other.subject == leaf.digest and other.signer == site
        if same and other.at <= note.at + case.skew:
            raise TicketError(
                Code.REFUTED, f"the ticket was redeemed by {in_words(other.at)}, before it was given back: a contract"
            )
    words = (
        f"{case.name(leaf.holder)} gave back {leaf.units} units of {leaf.type!r} as of {in_words(note.at)}, and by the "
        f"word of {case.name(site)} redeemed them at {in_words(contract.at)}"
    )
    refutable = f"a contract of {case.name(site)} on the same claim from before {in_words(note.at)}"
    return Verdict(leaf.holder, words, refutable)


def _contradiction(case: _Case) -> Verdict:
    leaf, site, receipt, contract = _chain_and_two(case, RECEIPT)
    _statement(case.scheme, receipt, site, leaf)
    _statement(case.scheme, contract, site, leaf)
    if contract.at <= receipt.at:
        raise TicketError(
            Code.NOT_AFTER,
            f"the contract of {in_words(contract.at)} is not later than {in_words(receipt.at)}, when the claim ended",
        )
    _past(contract, receipt.at)
    words = (
        f"{case.name(site)} confirmed that claim {leaf.id[:16]} is void as of {in_words(receipt.at)}, and honoured it "
        f"by a contract of {in_words(contract.at)}"
    )
    return Verdict(site, words, "nothing: both are signed by the same clock")


def _chain_and_two(case: _Case, kind: str) -> tuple[Claim, bytes, Statement, Statement]:
    """The leaf of a chain that holds, its site, and the two statements: one of ``kind`` and a contract."""
    evidence = case.evidence
    if not 1 <= len(evidence.claims) <= DEPTH_MAX or len(evidence.statements) != 2:
        raise TicketError(Code.MALFORMED, f"{evidence.kind}: expected a chain of claims and two statements")
    first, contract = evidence.statements
    for statement, wanted in ((first, kind), (contract, CONTRACT)):
        if statement.kind != wanted:
            raise TicketError(Code.WRONG_KIND, f"expected a {wanted}, found a {statement.kind}")
    check_chain(evidence.claims)
    for claim in evidence.claims:
        _signature(case.scheme, claim)
    if evidence.instant != contract.at:
        raise TicketError(
            Code.WRONG_INSTANT,
            f"the contract is of {in_words(contract.at)}, the evidence says {in_words(evidence.instant)}",
        )
    root, leaf = evidence.claims[0], evidence.claims[-1]
    if case.site is not None and root.issuer != case.site:
        raise TicketError(
            Code.WRONG_SITE, f"root claim is issued by {case.name(root.issuer)}, not {case.name(case.site)}"
        )
    return leaf, root.issuer, first, contract


def _distinct(claims: Sequence[Claim]) -> None:
    if len({claim.body for claim in claims}) != len(claims):
        raise TicketError(Code.DUPLICATE, "a claim is listed twice: it counts once, whatever signatures it has")


def _holds(claim: Claim, term: Term, instant: Instant) -> None:
    if not term.start <= instant < term.end:
        raise TicketError(
            Code.WRONG_INSTANT, f"claim {claim.id[:16]} does not hold at {in_words(instant)}, but {span_in_words(term)}"
        )


def _signature(scheme: Scheme, claim: Claim) -> None:
    if not scheme.verify(claim.issuer, claim.signature, claim.body):
        raise TicketError(Code.BAD_SIGNATURE, f"claim {claim.id[:16]} is not signed by its issuer")


def _signed(scheme: Scheme, statement: Statement) -> bool:
    return scheme.verify(statement.signer, statement.signature, statement.body)


def _statement(scheme: Scheme, statement: Statement, signer: bytes, leaf: Claim) -> None:
    if statement.signer != signer:
        found, wanted = fingerprint(statement.signer), fingerprint(signer)
        raise TicketError(Code.WRONG_SIGNER, f"the {statement.kind} is signed by {found}, not by {wanted}")
    if statement.subject != leaf.digest:
        raise TicketError(Code.WRONG_SUBJECT, f"the {statement.kind} is about another claim than {leaf.id[:16]}")
    if not _signed(scheme, statement):
        raise TicketError(Code.BAD_SIGNATURE, f"the signature of the {statement.kind} does not verify")


def _past(contract: Statement, instant: Instant) -> None:
    """A contract's text is ``LEASE UNITS START END``; it must promise something after an instant."""
    _, _, end = contract.detail.rpartition(" ")
    if not (end.isascii() and end.isdecimal() and len(end) <= len(str(INSTANT_MAX))):
        raise TicketError(Code.WRONG_CONTRACT, f"the contract does not say until when: {contract.detail!r:.80}")
    if int(end) <= instant:
        raise TicketError(Code.NOT_AFTER, f"the contract promises nothing after {in_words(instant)}")


_JUDGES: Final[Mapping[str, Callable[[_Case], Verdict]]] = {
    OVERDELEGATION: _overdelegation,
    RETURNED: _returned,
    CONTRADICTION: _contradiction,
}


# -- the file ----------------------------------------------------------------------------------------------------------


def encode_evidence(evidence: Evidence, words: str = "") -> str:
    """The evidence as JSON text; ``words`` is what a reader sees first, usually those of its verdict."""
    roles = ("parent", "child") if evidence.kind == OVERDELEGATION else ("root", "link")
    document = {
        "leasekit_evidence": FORMAT,
        "kind": evidence.kind,
        "words": words,
        "when": in_words(evidence.instant),
        "instant": evidence.instant,
        "claims": [_claim_plain(claim, roles[index > 0]) for index, claim in enumerate(evidence.claims)],
        "statements": [_statement_plain(statement) for statement in evidence.statements],
    }
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _claim_plain(claim: Claim, role: str) -> dict[str, Any]:
    return {
        "role": role,
        "claim": claim.id,
        "issuer": claim.issuer.hex(),
        "holder": claim.holder.hex(),
        "type": claim.type,
        "units": claim.units,
        "degree": claim.degree / 1000,
        "from": in_words(claim.term.start),
        "until": in_words(claim.term.end),
        "body": base64.b64encode(claim.body).decode(),
        "signature": base64.b64encode(claim.signature).decode(),
    }


def _statement_plain(statement: Statement) -> dict[str, Any]:
    return {
        "kind": statement.kind,
        "signer": statement.signer.hex(),
        "subject": statement.subject.hex(),
        "at": in_words(statement.at),
        "detail": statement.detail,
        "signed": base64.b64encode(statement.encode()).decode(),
    }


def decode_evidence(text: str | bytes) -> Evidence:
    """The evidence in a file, nothing of it checked but its form.

    Raises ``TicketError`` (code ``malformed``, or ``unknown_kind``) that names what was found and what is expected.
    Of each claim and statement only the signed bytes are read; what is not known is ignored.
    """
    if len(text) > EVIDENCE_MAX:
        raise TicketError(Code.MALFORMED, f"evidence of {len(text)} bytes, at most {EVIDENCE_MAX} are accepted")
    try:
        document = read_json(text)
    except JsonError as error:
        raise TicketError(Code.MALFORMED, f"evidence is not JSON: {error}"[:300]) from error
    if not isinstance(document, dict) or type(document.get("leasekit_evidence")) is not int:
        raise TicketError(Code.MALFORMED, "not evidence: expected an object with the key 'leasekit_evidence'")
    if document["leasekit_evidence"] != FORMAT:
        raise TicketError(
            Code.MALFORMED, f"leasekit_evidence: found {document['leasekit_evidence']}, expected {FORMAT}"
        )
    kind, instant = document.get("kind"), document.get("instant")
    if kind not in KINDS:
        raise TicketError(Code.UNKNOWN_KIND, f"kind: found {kind!r:.40}, known are {', '.join(KINDS)}")
    if type(instant) is not int or not 0 <= instant <= INSTANT_MAX:
        raise TicketError(Code.MALFORMED, f"instant: found {instant!r:.40}, expected milliseconds")
    claims = [
        decode_claim(_bytes(entry, "body", where), _bytes(entry, "signature", where))
        for where, entry in _entries(document, "claims", CLAIMS_MAX)
    ]
    statements = [
        decode_statement(_bytes(entry, "signed", where))
        for where, entry in _entries(document, "statements", STATEMENTS_MAX)
    ]
    return Evidence(kind, instant, tuple(claims), tuple(statements))


def _entries(document: Mapping[str, Any], key: str, most: int) -> list[tuple[str, Mapping[str, Any]]]:
    entries = document.get(key)
    if not isinstance(entries, list) or len(entries) > most:
        found = f"{len(entries)} of them" if isinstance(entries, list) else type(entries).__name__
        raise TicketError(Code.MALFORMED, f"{key}: found {found}, expected a list of at most {most}")
    for index, entry in enumerate(entries):
        if not isinstance(entry, dict):
            raise TicketError(Code.MALFORMED, f"{key}[{index}]: found {type(entry).__name__}, expected an object")
    return [(f"{key}[{index}]", entry) for index, entry in enumerate(entries)]


def _bytes(entry: Mapping[str, Any], key: str, where: str) -> bytes:
    text = entry.get(key)
    try:
        if isinstance(text, str):
            return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        pass  # said below, together with what is no text at all
    raise TicketError(Code.MALFORMED, f"{where}.{key}: found {text!r:.40}, expected base64")


def span_in_words(term: Term) -> str:
    """A term for people: its first and last instant as :func:`in_words` says them."""
    return f"from {in_words(term.start)} to {in_words(term.end)}"


def in_words(instant: Instant) -> str:
    """An instant as a UTC date and time, to the millisecond, and as its number where no calendar goes that far.

    The core reads no clock and knows no zones: this is the Gregorian calendar, worked out.
    """
    days, rest = divmod(instant, DAY)
    # Days since 1 March of year 0, so that leap days end the year: eras of 400 years have 146,097 days.
    era, day = divmod(days + 719_468, 146_097)
    year = (day - day // 1460 + day // 36_524 - day // 146_096) // 365
    day -= 365 * year + year // 4 - year // 100
    month = (5 * day + 2) // 153
    day -= (153 * month + 2) // 5
    year += 400 * era + (month >= 10)
    if not 0 <= year <= 9999:
        return f"{instant} ms"
    month = month + 3 if month < 10 else month - 9
    hour, minute, second = rest // HOUR, rest % HOUR // MINUTE, rest % MINUTE // SECOND
    return f"{year:04}-{month:02}-{day + 1:02} {hour:02}:{minute:02}:{second:02}.{rest % SECOND:03}Z"
