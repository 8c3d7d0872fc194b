"""Evidence: each kind proves what it says, everything else has its own reason, and words are not believed."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasekit.core.claims.claim import Claim, Ticket, decode_claim, delegate, delegate_root, issue
from leasekit.core.claims.evidence import (
    CONTRADICTION,
    OVERDELEGATION,
    RETURNED,
    Evidence,
    Verdict,
    decode_evidence,
    encode_evidence,
    in_words,
    of_overdelegation,
    of_returned,
    verify_evidence,
)
from leasekit.core.claims.signed import (
    CONTRACT,
    ED25519,
    RECEIPT,
    RELINQUISHMENT,
    STANDING,
    TRUNCATION,
    UNSIGNED,
    Keypair,
    Statement,
    UnsignedIdentity,
    all_of,
    fingerprint,
    standing,
    state,
)
from leasekit.core.claims.tree import ClaimTree
from leasekit.core.errors import TicketError
from leasekit.core.time import INSTANT_MAX, Term

SITE, BROKER, LOWER, GUEST, OTHER = (Keypair(bytes([n]) * 32) for n in (1, 2, 3, 4, 5))
TERM = Term(1_000_000, 9_000_000)
ROOT = delegate_root(SITE, holder=BROKER.public, type="vm", units=10, term=TERM, serial=1)


def child(serial: int, units: int = 6, term: Term = TERM, signer: Keypair = BROKER, **changes: Any) -> Claim:
    """What the broker gave away."""
    fields: dict[str, Any] = {"holder": GUEST.public, "type": "vm", "parent": ROOT.leaf.digest}
    return issue(signer, units=units, term=term, serial=serial, **{**fields, **changes})


def too_much(*children: Claim, instant: int = 1_000_000, parent: Claim = ROOT.leaf) -> Evidence:
    """Evidence of over-delegation, or what claims to be."""
    return Evidence(OVERDELEGATION, instant, (parent, *children))


def refusal(evidence: Evidence, **options: Any) -> str:
    """The code by which evidence proves nothing: before it is written to a file, and after."""
    codes = []
    for one in (evidence, decode_evidence(encode_evidence(evidence))):
        with pytest.raises(TicketError) as caught:
            verify_evidence(ED25519, one, **options)
        codes.append(caught.value.code)
    assert codes[0] == codes[1]
    return codes[0]


def verdict(evidence: Evidence, **options: Any) -> Verdict:
    """What evidence proves: before it is written to a file, and after."""
    first = verify_evidence(ED25519, evidence, **options)
    assert verify_evidence(ED25519, decode_evidence(encode_evidence(evidence, first.words)), **options) == first
    return first


def signed_twice(claim: Claim) -> Claim:
    """The same claim with another signature. (Ed25519 by this library makes one only, others may make many.)"""
    return decode_claim(claim.body, bytes(64))


# -- over-delegation ---------------------------------------------------------------------------------------------------


def test_what_a_tree_found_proves_it_to_anyone() -> None:
    """From the second ticket to a file to a verdict by somebody who knows nothing else."""
    tree = ClaimTree()
    tickets = [
        delegate(ROOT, BROKER, holder=GUEST.public, units=units, term=TERM, serial=units) for units in (1, 6, 7, 8)
    ]
    found = [finding for ticket in tickets for finding in tree.add(ticket).found]
    word = standing(SITE, [claim.digest for claim in found[0].claims], 2_000_000, found[0].instant)
    proven = verdict(of_overdelegation(found[0], word))
    assert (proven.guilty, proven.missing) == (BROKER.public, "")
    assert "could give away 10 of them, and gave away 13 at 1970-01-01 00:16:40.000Z, in 2 claims" in proven.words
    assert "a lie of the site: a receipt of 1970-01-01 00:33:20.000Z or before" in proven.refutable
    assert "leasekit site word" in verdict(of_overdelegation(found[0])).missing


def test_names_in_verdicts() -> None:
    """Keys that the reader knows are named."""
    words = verdict(too_much(child(1), child(2)), names={BROKER.public: "agent"}).words
    assert words.startswith(f"agent ({fingerprint(BROKER.public)}) held 10 units of 'vm' from ")


def test_claims_below_others_need_no_chain() -> None:
    """Guilt in the middle of a chain is proven by the parent and its children alone."""
    middle = delegate(ROOT, BROKER, holder=LOWER.public, units=4, term=TERM, serial=1).leaf
    parts = [child(n, 3, signer=LOWER, parent=middle.digest) for n in (1, 2)]
    assert verdict(too_much(*parts, parent=middle)).guilty == LOWER.public


def test_each_fault_has_its_reason() -> None:
    """Whatever is wrong with evidence of over-delegation is named."""
    good = child(1)
    assert refusal(too_much()) == "malformed"
    assert refusal(attrs.evolve(too_much(good, child(2)), statements=(CONTRACTED,))) == "wrong_kind"
    assert refusal(attrs.evolve(too_much(good, child(2)), statements=(CONTRACTED, CONTRACTED))) == "malformed"
    assert refusal(too_much(good)) == "not_exceeding"
    assert refusal(too_much(good, child(2, 4))) == "not_exceeding"
    assert refusal(too_much(good, good)) == "duplicate"
    assert refusal(too_much(good, signed_twice(good))) == "duplicate"
    assert refusal(too_much(good, signed_twice(child(2)))) == "bad_signature"
    assert refusal(too_much(good, child(2, signer=OTHER))) == "wrong_issuer"
    assert refusal(too_much(good, child(2, parent=b"p" * 32))) == "not_child"
    assert refusal(too_much(good, child(2, parent=b""))) == "not_child"
    assert refusal(too_much(good, child(2, type="gpu"))) == "type_changed"
    assert refusal(too_much(good, child(2, term=Term(1_000_001, 9_000_000)))) == "wrong_instant"
    assert refusal(too_much(good, child(2, term=Term(500_000, 1_000_000)))) == "wrong_instant"
    assert refusal(too_much(good, child(2), instant=9_000_000)) == "wrong_instant"
    long = Term(1_000_000, 9_000_001)
    assert refusal(too_much(child(1, term=long), child(2, term=long), instant=9_000_000)) == "wrong_instant"
    forged = signed_twice(ROOT.leaf)
    parts = [child(n, parent=forged.digest) for n in (1, 2)]
    assert refusal(too_much(*parts, parent=forged)) == "bad_signature"
    with pytest.raises(TicketError, match="kind: found 'gossip', known are overdelegation"):
        verify_evidence(ED25519, Evidence("gossip", 0, (ROOT.leaf,)))


def test_degrees_are_taken_into_account() -> None:
    """What the parent's degree allows is fine; children count with what they may hand on."""
    parent = delegate_root(
        SITE, holder=BROKER.public, type="vm", units=10, term=TERM, serial=2, degree=1200
    ).leaf  # fmt: skip
    parts = [child(n, parent=parent.digest) for n in (1, 2)]
    assert refusal(too_much(*parts, parent=parent)) == "not_exceeding"
    assert verdict(too_much(*parts, child(3, 1, parent=parent.digest), parent=parent)).guilty == BROKER.public
    wide = child(4, 6, parent=parent.digest, degree=1200)
    assert verdict(too_much(wide, parts[0], parent=parent)).words.count("gave away 13") == 1


def test_without_the_sites_word_it_is_open() -> None:
    """A receipt of the right key, for one of the claims, in time, refutes it; the accused's own truncation does not."""
    evidence = too_much(child(1), child(2), instant=5_000_000)
    subject = evidence.claims[1].digest

    def against(signer: Keypair, kind: str, at: int, about: bytes = subject, **options: Any) -> Any:
        return {"against": [state(signer, kind, about, at)], **options}

    assert refusal(evidence, **against(SITE, RECEIPT, 5_000_000)) == "refuted"
    assert refusal(evidence, **against(OTHER, RECEIPT, 5_000_000, site=OTHER.public)) == "refuted"
    for signer, kind, at, about in (
        (SITE, RECEIPT, 5_000_001, subject), (BROKER, TRUNCATION, 4_000_000, subject),
        (GUEST, RELINQUISHMENT, 4_000_000, subject), (OTHER, RECEIPT, 4_000_000, subject),
        (SITE, RECEIPT, 4_000_000, b"o" * 32), (SITE, RECEIPT, 4_000_000, ROOT.leaf.digest),
    ):  # fmt: skip
        found = verdict(evidence, **against(signer, kind, at, about))
        assert found.guilty == BROKER.public and "word of the site" in found.missing
    forged = attrs.evolve(state(SITE, RECEIPT, subject, 0), signature=bytes(64))
    assert refusal(evidence, against=[forged]) == "bad_signature"


WORD_AT = 3_000_000


def vouched(evidence: Evidence, signer: Keypair = SITE, instant: int = -1, **changes: Any) -> Evidence:
    """With the word of a site that the claims stand."""
    claims = changes.get("claims", [claim.digest for claim in evidence.claims[1:]])
    at = evidence.instant if instant < 0 else instant
    return attrs.evolve(evidence, statements=(standing(signer, claims, WORD_AT, at),))


def test_with_the_sites_word_it_is_proven() -> None:
    """Nothing that anybody signs later changes that; a receipt that the word denies shows who has lied."""
    evidence = vouched(too_much(child(1), child(2), instant=5_000_000))
    subject = evidence.claims[1].digest
    for statement in (
        state(BROKER, TRUNCATION, subject, 1_000_000), state(SITE, RECEIPT, subject, WORD_AT + 1),
        state(OTHER, RECEIPT, subject, 1_000_000),
    ):  # fmt: skip
        found = verdict(evidence, against=[statement])
        assert (found.guilty, found.missing) == (BROKER.public, "")
    for at in (1_000_000, WORD_AT):
        lied = verdict(evidence, against=[state(SITE, RECEIPT, subject, at)])
        assert (lied.guilty, lied.missing) == (SITE.public, "")
        assert "said at 1970-01-01 00:50:00.000Z that it had given no receipt" in lied.words
    past = vouched(too_much(child(1), child(2), instant=2_000_000))
    after = state(SITE, RECEIPT, subject, 2_500_000)
    assert verdict(past, against=[after]).guilty == BROKER.public, "the claim ended after the instant"


def test_words_that_are_none() -> None:
    """A word counts if it is the site's, of these claims, of that instant, and rightly signed."""
    evidence = too_much(child(1), child(2), instant=5_000_000)
    first = evidence.claims[1].digest
    assert refusal(vouched(evidence, OTHER)) == "wrong_signer"
    assert refusal(vouched(evidence), site=OTHER.public) == "wrong_signer"
    assert refusal(vouched(evidence, claims=[first])) == "wrong_subject"
    assert refusal(vouched(evidence, claims=[first, first])) == "wrong_subject"
    assert refusal(vouched(evidence, instant=5_000_001)) == "wrong_instant"
    forged = attrs.evolve(vouched(evidence).statements[0], signature=bytes(64))
    assert refusal(attrs.evolve(evidence, statements=(forged,))) == "bad_signature"
    odd = state(SITE, STANDING, all_of(claim.digest for claim in evidence.claims[1:]), WORD_AT, "soon")
    assert refusal(attrs.evolve(evidence, statements=(odd,))) == "malformed"


def test_below_the_root_the_reader_says_which_site_it_is() -> None:
    """The evidence has no chain there: a word leaves it open until it is known whose word that is."""
    middle = delegate(ROOT, BROKER, holder=LOWER.public, units=4, term=TERM, serial=1).leaf
    parts = [child(n, 3, signer=LOWER, parent=middle.digest) for n in (1, 2)]
    evidence = vouched(too_much(*parts, parent=middle))
    assert "say its key" in verdict(evidence).missing
    assert verdict(evidence, site=SITE.public).missing == ""


def test_a_claim_that_replaces_another_counts_in_its_place() -> None:
    """A modify leaves two claims of one holder that overlap: the new one says so, and is no second gift."""
    old = child(1)
    new = child(2, 8, term=Term(2_000_000, 9_000_000), constraints={"replaces": old.id})
    assert refusal(too_much(old, new, instant=5_000_000)) == "not_exceeding"
    assert verdict(too_much(old, new, child(3, 3), instant=5_000_000)).words.count("gave away 11") == 1
    others = child(2, 8, term=Term(2_000_000, 9_000_000), constraints={"replaces": old.id}, holder=OTHER.public)
    assert verdict(too_much(old, others, instant=5_000_000)).guilty == BROKER.public, "it is another holder's"


def test_a_deeper_parents_receipts_are_its_sites() -> None:
    """Below the root the evidence does not say which site it is: a receipt counts if the reader says so."""
    middle = delegate(ROOT, BROKER, holder=LOWER.public, units=4, term=TERM, serial=1).leaf
    evidence = too_much(*(child(n, 3, signer=LOWER, parent=middle.digest) for n in (1, 2)), parent=middle)
    receipt = state(SITE, RECEIPT, evidence.claims[1].digest, 0)
    assert verdict(evidence, against=[receipt]).guilty == LOWER.public
    assert refusal(evidence, against=[receipt], site=SITE.public) == "refuted"


def test_unsigned_worlds() -> None:
    """Evidence of a world without signatures proves nothing in one that has them."""
    site, broker = UnsignedIdentity("site"), UnsignedIdentity("broker")
    parent = delegate_root(site, holder=broker.public, type="vm", units=1, term=TERM, serial=1)
    parts = [
        issue(broker, holder=b"g" * 32, type="vm", units=1, term=TERM, serial=n, parent=parent.leaf.digest)
        for n in (1, 2)
    ]
    evidence = too_much(*parts, parent=parent.leaf)
    assert verify_evidence(UNSIGNED, evidence).guilty == broker.public
    assert refusal(evidence) == "bad_signature"


# -- given back and redeemed -------------------------------------------------------------------------------------------

TICKET = delegate(ROOT, BROKER, holder=GUEST.public, units=4, term=TERM, serial=9)
NOTE = state(GUEST, RELINQUISHMENT, TICKET.leaf.digest, 2_000_000, "L-1")
CONTRACTED = state(SITE, CONTRACT, TICKET.leaf.digest, 3_000_000, "L-1 4 1000000 9000000")


def returned(note: Statement = NOTE, contract: Statement = CONTRACTED, ticket: Ticket = TICKET) -> Evidence:
    """Evidence that a returned ticket was redeemed, or what claims to be."""
    return of_returned(ticket, note, contract)


def test_a_returned_ticket_that_was_redeemed() -> None:
    """The holder's own word and the site's prove it, and say what would refute it."""
    proven = verdict(returned())
    assert proven.guilty == GUEST.public
    assert "gave back 4 units of 'vm' as of 1970-01-01 00:33:20.000Z" in proven.words
    assert f"by the word of {fingerprint(SITE.public)}" in proven.words
    assert "a contract of" in proven.refutable


def test_each_fault_of_it_has_its_reason() -> None:
    """Whatever is wrong with it is named."""
    digest, detail = TICKET.leaf.digest, CONTRACTED.detail
    assert refusal(returned(contract=NOTE)) == "wrong_kind"
    assert refusal(returned(note=CONTRACTED)) == "wrong_kind"
    assert refusal(returned(state(OTHER, RELINQUISHMENT, digest, 2_000_000))) == "wrong_signer"
    assert refusal(returned(contract=state(OTHER, CONTRACT, digest, 3_000_000, detail))) == "wrong_signer"
    assert refusal(returned(state(GUEST, RELINQUISHMENT, b"o" * 32, 2_000_000))) == "wrong_subject"
    assert refusal(returned(contract=state(SITE, CONTRACT, b"o" * 32, 3_000_000, detail))) == "wrong_subject"
    assert refusal(returned(attrs.evolve(NOTE, signature=bytes(64)))) == "bad_signature"
    assert refusal(returned(contract=attrs.evolve(CONTRACTED, signature=bytes(64)))) == "bad_signature"
    assert refusal(returned(state(GUEST, RELINQUISHMENT, digest, 9_000_000))) == "nothing_returned"
    assert refusal(returned(state(GUEST, RELINQUISHMENT, digest, 2_999_000))) == "not_after"
    assert refusal(returned(), skew=1_000_000) == "not_after"
    assert refusal(returned(contract=state(SITE, CONTRACT, digest, 3_000_000, "L-1 4 0 2000000"))) == "not_after"
    for text in ("", "L-1", "L-1 4 0 ²", "L-1 4 0 99999999999999999999999"):
        assert refusal(returned(contract=state(SITE, CONTRACT, digest, 3_000_000, text))) == "wrong_contract"
    assert refusal(attrs.evolve(returned(), statements=(NOTE,))) == "malformed"
    assert refusal(attrs.evolve(returned(), claims=())) == "malformed"
    assert refusal(attrs.evolve(returned(), instant=5)) == "wrong_instant"
    assert refusal(returned(), site=OTHER.public) == "wrong_site"


def test_the_chain_to_the_root_must_hold() -> None:
    """The site is the one whose root it is: a chain that does not lead there proves nothing."""
    assert refusal(returned(ticket=Ticket(TICKET.chain[1:]))) == "wrong_root"
    other = delegate_root(OTHER, holder=BROKER.public, type="vm", units=10, term=TERM, serial=1)
    assert refusal(returned(ticket=Ticket((other.leaf, TICKET.leaf)))) == "wrong_parent"
    forged = signed_twice(ROOT.leaf)
    leaf = child(1, parent=forged.digest)
    note = state(GUEST, RELINQUISHMENT, leaf.digest, 2_000_000)
    contract = state(SITE, CONTRACT, leaf.digest, 3_000_000, CONTRACTED.detail)
    assert refusal(returned(note, contract, Ticket((forged, leaf)))) == "bad_signature"


def test_it_was_redeemed_before() -> None:
    """Who has an earlier contract of the same site on the claim redeemed it before giving it back."""
    digest = TICKET.leaf.digest
    earlier = state(SITE, CONTRACT, digest, 1_500_000, CONTRACTED.detail)
    assert refusal(returned(), against=[earlier]) == "refuted"
    for other in (
        state(OTHER, CONTRACT, digest, 1_500_000), state(SITE, CONTRACT, b"o" * 32, 1_500_000),
        state(SITE, RECEIPT, digest, 1_500_000), state(SITE, CONTRACT, digest, 2_500_000),
    ):  # fmt: skip
        assert verdict(returned(), against=[other]).guilty == GUEST.public


# -- a site against itself ---------------------------------------------------------------------------------------------


def contradiction(ticket: Ticket, receipt: Statement, contract: Statement) -> Evidence:
    return Evidence(CONTRADICTION, contract.at, ticket.chain, (receipt, contract))


def test_a_site_that_contradicts_itself() -> None:
    """A receipt and a later contract on the same claim are the site's fault."""
    receipt = state(SITE, RECEIPT, TICKET.leaf.digest, 2_000_000, "L-1")
    evidence = contradiction(TICKET, receipt, CONTRACTED)
    proven = verdict(evidence)
    assert proven.guilty == SITE.public
    assert "is void as of 1970-01-01 00:33:20.000Z, and honoured it" in proven.words
    late = state(SITE, RECEIPT, TICKET.leaf.digest, 3_000_000, "L-1")
    assert refusal(contradiction(TICKET, late, CONTRACTED)) == "not_after"
    assert refusal(contradiction(TICKET, NOTE, CONTRACTED)) == "wrong_kind"
    by_guest = state(GUEST, RECEIPT, TICKET.leaf.digest, 2_000_000)
    assert refusal(contradiction(TICKET, by_guest, CONTRACTED)) == "wrong_signer"
    closing = state(SITE, CONTRACT, TICKET.leaf.digest, 3_000_000, "L-1 4 1000000 2000000")
    assert refusal(contradiction(TICKET, receipt, closing)) == "not_after"


# -- the file ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("evidence", [too_much(child(1), child(2)), returned()], ids=["too much", "returned"])
def test_round_trip(evidence: Evidence) -> None:
    """A file says what the evidence did, and is readable: who, what and when in words."""
    text = encode_evidence(evidence, "somebody did it")
    again = decode_evidence(text)
    assert (again.kind, again.instant) == (evidence.kind, evidence.instant)
    assert [claim.digest for claim in again.claims] == [claim.digest for claim in evidence.claims]
    assert [one.digest for one in again.statements] == [one.digest for one in evidence.statements]
    plain = json.loads(text)
    assert plain["words"] == "somebody did it" and plain["when"] == in_words(evidence.instant)
    assert plain["claims"][0]["holder"] == BROKER.public.hex() and plain["claims"][0]["units"] == 10
    assert decode_evidence(text.encode()).instant == evidence.instant


def test_words_are_not_believed() -> None:
    """Whatever the readable part says, only what is signed counts."""
    document = json.loads(encode_evidence(too_much(child(1), child(2))))
    document["words"] = "the guest did it"
    document["when"] = "never"
    for entry in document["claims"]:
        entry |= {"units": 1, "issuer": OTHER.public.hex(), "holder": OTHER.public.hex(), "role": "child", "x": [1]}
    assert verify_evidence(ED25519, decode_evidence(json.dumps(document))).guilty == BROKER.public


def changed(**changes: Any) -> str:
    """The text of evidence with something changed."""
    document = json.loads(encode_evidence(too_much(child(1), child(2)))) | changes
    return json.dumps({key: value for key, value in document.items() if value != "gone"})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "not JSON"), ("[1, 2]", "not evidence"), ("{}", "not evidence"), ("[" * 100_000, "not JSON"),
        ('{"a": 1, "a": 2}', "same key twice"), ('{"instant": NaN}', "NaN is no number"), ("9" * 5000, "not JSON"),
        (b"\xff\xfe\xfd", "not JSON"),
        (changed(leasekit_evidence=2), "leasekit_evidence: found 2, expected 1"),
        (changed(leasekit_evidence=True), "not evidence"),
        (changed(instant=-1), "instant: found -1"), (changed(instant=INSTANT_MAX + 1), "instant: found"),
        (changed(instant=1.5), "instant: found 1.5"), (changed(instant="gone"), "instant: found None"),
        (changed(claims="gone"), "claims: found NoneType"), (changed(claims={}), "claims: found dict"),
        (changed(claims=[1]), r"claims\[0\]: found int"), (changed(claims=[{}]), r"claims\[0\].body: found None"),
        (changed(claims=[{}] * 50_001), "claims: found 50001 of them"),
        (changed(claims=[{"body": "a!", "signature": ""}]), r"claims\[0\].body: found 'a!', expected base64"),
        (changed(claims=[{"body": "é", "signature": ""}]), "expected base64"),
        (changed(claims=[{"body": base64.b64encode(b"x").decode(), "signature": ""}]), "not a claim"),
        (changed(statements=[{"signed": ""}]), "statement is not msgpack"),
        (changed(statements=[{"signed": 5}]), r"statements\[0\].signed: found 5"),
        (changed(statements=None), "statements: found NoneType"),
    ],
)  # fmt: skip
def test_what_is_no_evidence(text: Any, says: str) -> None:
    """Anything else is malformed, and the message names what was found."""
    with pytest.raises(TicketError, match=says) as caught:
        decode_evidence(text)
    assert caught.value.code == "malformed"


def test_size_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file beyond the limit is refused before it is parsed."""
    text = changed()
    monkeypatch.setattr("leasekit.core.claims.evidence.EVIDENCE_MAX", len(text) - 1)
    with pytest.raises(TicketError, match=f"evidence of {len(text)} bytes, at most {len(text) - 1} are accepted"):
        decode_evidence(text)


@pytest.mark.parametrize("kind", ["gossip", None, 5, ["overdelegation"]])
def test_unknown_kinds(kind: Any) -> None:
    """A kind of a later version is named as such."""
    with pytest.raises(TicketError, match="known are overdelegation, returned, contradiction") as caught:
        decode_evidence(changed(kind=kind))
    assert caught.value.code == "unknown_kind"


@given(text=st.text(max_size=100) | st.binary(max_size=100))
def test_random_text_is_no_evidence(text: str | bytes) -> None:
    """Nothing but ``TicketError`` is raised."""
    with pytest.raises(TicketError):
        decode_evidence(text)


@given(instant=st.integers(0, 253_402_300_799_999))
def test_instants_in_words(instant: int) -> None:
    """Dates are those of the calendar, to the millisecond."""
    moment = datetime.fromtimestamp(instant // 1000, UTC)
    assert in_words(instant) == f"{moment:%Y-%m-%d %H:%M:%S}.{instant % 1000:03}Z".rjust(24, "0")


def test_instants_beyond_the_calendar() -> None:
    """Where dates end, the number is shown."""
    assert in_words(253_402_300_799_999).startswith("9999-12-31 23:59:59")
    assert in_words(253_402_300_800_000) == "253402300800000 ms"
    assert in_words(INSTANT_MAX) == f"{INSTANT_MAX} ms"


def test_kinds_have_judges() -> None:
    """Every kind that a file may have is judged."""
    for kind in (OVERDELEGATION, RETURNED, CONTRADICTION):
        with pytest.raises(TicketError) as caught:
            verify_evidence(ED25519, Evidence(kind, 0, ()))
        assert caught.value.code == "malformed"
