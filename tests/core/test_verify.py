"""What is checked before a ticket is believed, and what the checks cost."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasekit.core.claims.claim import (
    DEPTH_DEFAULT,
    Claim,
    Ticket,
    TicketVerifier,
    decode_claim,
    decode_ticket,
    delegate,
    delegate_root,
    issue,
)
from leasekit.core.claims.signed import ED25519, Ed25519, Keypair
from leasekit.core.errors import TicketError
from leasekit.core.time import Term

SITE, BROKER, GUEST, OTHER = (Keypair(bytes([n]) * 32) for n in (1, 2, 3, 4))
TERM = Term(1000, 9000)
PROPERTIES = b"p" * 32


class Counting(Ed25519):
    """Counts the signatures that it checks."""

    def __init__(self) -> None:
        self.count = 0

    def verify(self, key: bytes, signature: bytes, data: bytes) -> bool:
        """As Ed25519."""
        self.count += 1
        return super().verify(key, signature, data)


def root(**changes: Any) -> Ticket:
    """What the site gave to the broker."""
    fields: dict[str, Any] = {
        "holder": BROKER.public, "type": "vm", "units": 5, "term": TERM, "serial": 1, "properties": PROPERTIES,
    }  # fmt: skip
    return delegate_root(SITE, **{**fields, **changes})


def ticket(parent: Ticket | None = None, serial: int = 2, **changes: Any) -> Ticket:
    """What the broker gave to the guest."""
    fields: dict[str, Any] = {"holder": GUEST.public, "units": 2, "term": Term(2000, 3000), "serial": serial}
    return delegate(parent or root(), BROKER, **{**fields, **changes})


def with_leaf(signer: Keypair = BROKER, parent: Ticket | None = None, **changes: Any) -> Ticket:
    """A ticket whose leaf is signed by anybody and says anything."""
    above = parent or root()
    fields: dict[str, Any] = {
        "holder": GUEST.public, "type": "vm", "units": 2, "term": Term(2000, 3000), "serial": 2,
        "properties": PROPERTIES, "parent": above.leaf.digest,
    }  # fmt: skip
    return Ticket((*above.chain, issue(signer, **{**fields, **changes})))


def check(verifier: TicketVerifier, presented: Ticket, **changes: Any) -> Claim:
    """Present a ticket to the site."""
    given_: dict[str, Any] = {"root": SITE.public, "holder": GUEST.public, "now": 1500, "skew": 100}
    return verifier.check(presented, **{**given_, **changes})


def refusal(presented: Ticket, **changes: Any) -> str:
    """The code of the check that fails, on a verifier that has seen nothing, and on one that has seen the like."""
    fresh, used = TicketVerifier(ED25519), TicketVerifier(ED25519)
    check(used, ticket())
    codes = []
    for verifier in (fresh, used, used):
        with pytest.raises(TicketError) as caught:
            check(verifier, presented, **changes)
        codes.append(caught.value.code)
    assert len(set(codes)) == 1
    return codes[0]


def test_a_good_ticket() -> None:
    """A ticket that holds is believed, and its leaf is what counts."""
    assert check(TicketVerifier(ED25519), ticket()).units == 2
    assert check(TicketVerifier(ED25519), ticket(), root=None, issuer=BROKER.public).holder == GUEST.public
    assert check(TicketVerifier(ED25519), root(), holder=BROKER.public).units == 5


def test_each_alteration_is_refused() -> None:
    """Whatever of a ticket is not as it must be, the check that names it fails."""
    assert refusal(with_leaf(units=6)) == "exceeds_units"
    assert refusal(with_leaf(term=Term(999, 2000))) == "exceeds_term"
    assert refusal(with_leaf(term=Term(1000, 9001))) == "exceeds_term"
    assert refusal(with_leaf(type="gpu")) == "type_changed"
    assert refusal(with_leaf(properties=b"q" * 32)) == "properties_changed"
    assert refusal(with_leaf(properties=b"")) == "properties_changed"
    assert refusal(with_leaf(OTHER)) == "broken_chain"
    assert refusal(with_leaf(parent=root(), serial=9, holder=OTHER.public)) == "not_holder"
    assert refusal(ticket(), holder=OTHER.public) == "not_holder"
    assert refusal(ticket(), root=OTHER.public) == "wrong_site"
    assert refusal(ticket(), issuer=OTHER.public) == "wrong_issuer"
    assert refusal(ticket(), now=3100) == "expired"
    assert refusal(ticket(), now=1500, ahead=499) == "future"
    assert refusal(Ticket(ticket().chain[1:]), root=None) == "wrong_root"


def test_skew_of_the_clock() -> None:
    """A claim is expired when it has been over for as long as clocks may differ."""
    verifier = TicketVerifier(ED25519)
    assert check(verifier, ticket(), now=3099).units == 2
    with pytest.raises(TicketError, match=r"claim ended at @\{3000\}, it is @\{3100\} here"):
        check(verifier, ticket(), now=3100)


def test_parents() -> None:
    """A claim must name the one above it: it can't be moved under another parent, or name none."""
    bigger = root(units=50, serial=3)
    moved = Ticket((*bigger.chain, ticket().leaf))
    assert refusal(moved) == "wrong_parent"
    orphan = issue(
        BROKER, holder=GUEST.public, type="vm", units=2, term=TERM, serial=2, properties=PROPERTIES
    )  # fmt: skip
    assert refusal(Ticket((*root().chain, orphan))) == "wrong_parent"


def test_another_sites_ticket() -> None:
    """A ticket of another site is not honoured here, however good it is there."""
    theirs = delegate_root(OTHER, holder=BROKER.public, type="vm", units=5, term=TERM, serial=1)
    assert refusal(delegate(theirs, BROKER, holder=GUEST.public, units=1, term=TERM, serial=1)) == "wrong_site"


@pytest.mark.parametrize("place", [0, 1])
def test_forged_signatures(place: int) -> None:
    """A signature that is missing, altered or another's is found at every depth."""
    chain = list(ticket().chain)
    good = chain[place]
    for signature in (b"", bytes(64), bytes([good.signature[0] ^ 1]) + good.signature[1:], OTHER.sign(good.body)):
        chain[place] = decode_claim(good.body, signature)
        if place == 0:  # the child names the forged parent, so that only the signature is wrong
            chain[1] = with_leaf(parent=Ticket((chain[0],))).leaf
        assert refusal(Ticket(tuple(chain))) == "bad_signature"


@given(place=st.integers(0, 1), data=st.data())
def test_any_flipped_bit(place: int, data: st.DataObject) -> None:
    """A ticket with one bit of any body or signature flipped is refused, by whatever check comes first."""
    chain = list(ticket().chain)
    whole = bytearray(chain[place].body + chain[place].signature)
    bit = data.draw(st.integers(0, len(whole) * 8 - 1))
    whole[bit // 8] ^= 1 << bit % 8
    cut = len(chain[place].body)
    verifier = TicketVerifier(ED25519)
    check(verifier, ticket())
    with pytest.raises(TicketError):
        chain[place] = decode_claim(bytes(whole[:cut]), bytes(whole[cut:]))
        check(verifier, Ticket(tuple(chain)))


def deep(depth: int) -> Ticket:
    """A chain of that many claims, the last one the guest's."""
    chain = root(holder=BROKER.public)
    for number in range(depth - 2):
        chain = delegate(chain, BROKER, holder=BROKER.public, units=5, term=TERM, serial=10 + number)
    return ticket(chain, term=TERM)


def test_depth() -> None:
    """Chains are believed up to the depth of the setting."""
    assert check(TicketVerifier(ED25519), deep(DEPTH_DEFAULT)).units == 2
    assert refusal(deep(DEPTH_DEFAULT + 1)) == "too_deep"
    with pytest.raises(TicketError, match="chain of 3 claims, at most 2 are accepted"):
        check(TicketVerifier(ED25519, depth_max=2), deep(3))


def test_children_of_an_oversubscribed_claim() -> None:
    """A child may have as much as the parent's degree gives, which is more than its units."""
    parent = root(degree=2000)
    assert check(TicketVerifier(ED25519), ticket(parent, units=10)).units == 10
    assert refusal(with_leaf(parent=parent, units=11)) == "exceeds_units"


# -- what it costs -----------------------------------------------------------------------------------------------------


def test_a_new_ticket_costs_one_signature() -> None:
    """The first ticket of a broker costs all signatures of its chain, every other one its own only."""
    scheme = Counting()
    verifier, parent = TicketVerifier(scheme), root()
    counts = []
    for serial in range(4):
        check(verifier, ticket(parent, serial))
        counts.append(scheme.count)
    assert counts == [2, 3, 4, 5]
    check(verifier, decode_ticket(ticket(parent, 0).encode()))
    assert scheme.count == 6  # leaves are not remembered: each is presented once


def test_deep_prefixes_are_remembered() -> None:
    """Of a chain, everything down to the deepest claim that was a parent before is free."""
    scheme = Counting()
    verifier, chain = TicketVerifier(scheme), deep(5)
    check(verifier, chain)
    assert scheme.count == 5
    sibling = ticket(Ticket(chain.chain[:-1]), 77)
    check(verifier, sibling)
    assert scheme.count == 6
    check(verifier, ticket(Ticket(chain.chain[:2]), 78, term=TERM))
    assert scheme.count == 7


def test_failed_checks_are_not_remembered() -> None:
    """A prefix with a forged signature does not become good by being presented again, and spoils no good one."""
    scheme = Counting()
    verifier = TicketVerifier(scheme)
    forged = decode_claim(root().leaf.body, b"\x00" * 64)
    bad = with_leaf(parent=Ticket((forged,)))
    for _ in range(2):
        with pytest.raises(TicketError, match="does not verify"):
            check(verifier, bad)
    assert check(verifier, ticket()).units == 2


def test_the_cache_is_bounded() -> None:
    """However many brokers there are, only so many prefixes are remembered: those used last."""
    scheme = Counting()
    verifier = TicketVerifier(scheme, cache_size=3)
    parents = [root(serial=serial) for serial in range(10)]
    for parent in parents:
        check(verifier, ticket(parent))
    assert len(verifier._verified) == 3
    scheme.count = 0
    check(verifier, ticket(parents[9], 50))
    check(verifier, ticket(parents[7], 50))
    assert scheme.count == 2
    check(verifier, ticket(parents[0], 50))
    assert scheme.count == 4
    check(verifier, ticket(parents[8], 50))  # was the least recently used when another one came
    assert scheme.count == 6


# -- attacks -----------------------------------------------------------------------------------------------------------


def resigned(claim: Claim, signer: Keypair, **changes: Any) -> Claim:
    """A claim with some of its words changed, signed by whoever dares."""
    names = ("holder", "type", "term", "serial", "degree", "parent", "constraints")
    return issue(signer, **{**{name: getattr(claim, name) for name in names}, "units": claim.classes, **changes})


ALTERED: list[tuple[int, dict[str, Any], str]] = [
    (0, {"units": ((PROPERTIES, 50),)}, "bad_signature"),
    (0, {"term": Term(0, 99_000)}, "bad_signature"),
    (0, {"type": "gpu"}, "bad_signature"),
    (0, {"units": ((b"q" * 32, 10),)}, "bad_signature"),
    (0, {"degree": 2000}, "bad_signature"),
    (0, {"serial": 77}, "bad_signature"),
    (0, {"constraints": {"a": "b"}}, "bad_signature"),
    (0, {"holder": OTHER.public}, "broken_chain"),
    (0, {"parent": b"p" * 32}, "wrong_root"),
    (1, {"units": ((PROPERTIES, 50),)}, "exceeds_units"),
    (1, {"degree": 2000}, "exceeds_degree"),
    (1, {"term": Term(0, 99_000)}, "exceeds_term"),
    (1, {"holder": OTHER.public}, "broken_chain"),
    (1, {"parent": b"p" * 32}, "wrong_parent"),
    (1, {"constraints": {"a": "b"}}, "bad_signature"),
    (2, {"units": ((PROPERTIES, 3),)}, "bad_signature"),
    (2, {"units": ((PROPERTIES, 50),)}, "exceeds_units"),
    (2, {"term": Term(2000, 4000)}, "bad_signature"),
    (2, {"term": Term(0, 99_000)}, "exceeds_term"),
    (2, {"type": "gpu"}, "type_changed"),
    (2, {"units": ((b"q" * 32, 1),)}, "properties_changed"),
    (2, {"holder": OTHER.public}, "bad_signature"),
    (2, {"parent": b"p" * 32}, "wrong_parent"),
    (2, {"degree": 2000}, "bad_signature"),
    (2, {"constraints": {"preemptible": "true"}}, "bad_signature"),
]


@pytest.mark.parametrize(("place", "change", "code"), ALTERED, ids=lambda value: str(value).split(":")[0][-12:])
def test_altered_words(place: int, change: dict[str, Any], code: str) -> None:
    """Every word of every claim is covered, though all who hold claims below the altered one sign what suits it.

    The altered claim has the signature that it had, or one by somebody else's key.
    """
    chain = deep(3).chain
    issuers = (SITE, BROKER, BROKER)
    body = resigned(chain[place], issuers[place], **change).body
    assert body != chain[place].body
    for signature in (chain[place].signature, OTHER.sign(body)):
        altered = [*chain]
        altered[place] = decode_claim(body, signature)
        for below in range(place + 1, 3):
            above = altered[below - 1]
            altered[below] = resigned(
                chain[below], issuers[below], parent=above.digest, type=above.type,
                units=((above.classes[0][0], chain[below].units),),
            )  # fmt: skip
        assert refusal(Ticket(tuple(altered)), holder=altered[-1].holder) == code


def test_a_root_of_another_key() -> None:
    """A chain below a root that somebody else signed, in the site's name or its own, is refused."""
    forged = decode_claim(root().leaf.body, OTHER.sign(root().leaf.body))
    assert refusal(with_leaf(parent=Ticket((forged,)))) == "bad_signature"
    theirs = resigned(root().leaf, OTHER)
    assert refusal(with_leaf(parent=Ticket((theirs,)))) == "wrong_site"
    assert refusal(Ticket((theirs, ticket().leaf))) == "wrong_site"


def test_a_claim_moved_to_another_chain() -> None:
    """A claim can't be hung under another parent of the same broker, even one that says the same."""
    twin = root(serial=99)
    assert twin.leaf.units == root().leaf.units
    assert refusal(Ticket((twin.leaf, ticket().leaf))) == "wrong_parent"


def test_chains_that_skip_repeat_or_turn() -> None:
    """Claims left out, doubled or in another order are no chain."""
    chain = deep(4).chain
    for order in ((0, 2, 3), (0, 1, 3), (0, 1, 1, 2, 3), (1, 0, 2, 3), (0, 0, 1, 2, 3), (0, 2, 1, 3)):
        code = refusal(Ticket(tuple(chain[index] for index in order)), root=None)
        assert code in ("wrong_parent", "wrong_root", "exceeds_units", "broken_chain")


def test_what_is_remembered_is_not_poisoned() -> None:
    """A prefix is remembered by a digest that covers words and signatures: nothing else passes for it."""
    scheme = Counting()
    verifier, good = TicketVerifier(scheme), deep(3)
    check(verifier, good)
    prefix = good.chain[1]
    # The same words with another signature are another claim, and so is a signature taken for words.
    unsigned = decode_claim(prefix.body, b"")
    moved = with_leaf(parent=Ticket((good.chain[0], unsigned)))
    with pytest.raises(TicketError) as caught:
        check(verifier, moved)
    assert caught.value.code == "bad_signature"
    with pytest.raises(TicketError, match="claim is not msgpack"):
        decode_claim(prefix.body + prefix.signature, b"")
    # A leaf that failed is not remembered as a parent, nor is what hangs below it.
    forged = decode_claim(good.leaf.body, OTHER.sign(good.leaf.body))
    below = issue(
        GUEST, holder=GUEST.public, type="vm", units=1, term=TERM, serial=1, properties=PROPERTIES, parent=forged.digest
    )
    for _ in range(2):
        with pytest.raises(TicketError) as caught:
            check(verifier, Ticket((*good.chain[:2], forged, below)))
        assert caught.value.code == "bad_signature"


def test_a_remembered_prefix_is_still_read() -> None:
    """What hangs below a remembered prefix must fit it: only signatures are spared, no other check."""
    verifier, parent = TicketVerifier(ED25519), root()
    check(verifier, ticket(parent))
    for change, code in (({"units": 6}, "exceeds_units"), ({"type": "gpu"}, "type_changed")):
        with pytest.raises(TicketError) as caught:
            check(verifier, with_leaf(parent=parent, **change))
        assert caught.value.code == code


def test_degrees_do_not_multiply() -> None:
    """A child may be oversubscribed only out of what its parent can give away, whatever the parent's degree."""
    assert refusal(with_leaf(units=5, degree=1200)) == "exceeds_degree"
    assert check(TicketVerifier(ED25519), with_leaf(units=4, degree=1250)).capacity == 5
    parent = root(degree=1200)
    assert check(TicketVerifier(ED25519), with_leaf(parent=parent, units=5, degree=1200)).capacity == 6
    assert refusal(with_leaf(parent=parent, units=6, degree=1200)) == "exceeds_degree"
    assert refusal(with_leaf(parent=parent, units=7, degree=1200)) == "exceeds_units"
    for units, degree in ((5, 1200), (6, 1000)):
        assert delegate(
            parent, BROKER, holder=GUEST.public, units=units, term=TERM, serial=3, degree=degree
        ).leaf.capacity == 6  # fmt: skip
    with pytest.raises(TicketError, match=r"6 units at degree 1\.2 over .* do not fit in 5"):
        delegate(parent, BROKER, holder=GUEST.public, units=6, term=TERM, serial=3, degree=1200)


def test_terms_ahead() -> None:
    """With a bound on how far ahead a term may start, a ticket at the bound is believed and one beyond it is not."""
    verifier = TicketVerifier(ED25519)
    assert check(verifier, ticket(), now=1500, ahead=500).units == 2
    with pytest.raises(TicketError, match=r"claim starts at @\{2000\}, more than 499 ms after @\{1500\}"):
        check(verifier, ticket(), now=1500, ahead=499)


def test_empty_and_negative_claims_are_not_even_claims() -> None:
    """Units and terms of nothing or less are refused before there is a ticket to verify."""
    for change in ({"units": 0}, {"units": -1}, {"term": Term(5, 5)}, {"term": Term(6, 5)}, {"term": Term(-5, 5)}):
        with pytest.raises(TicketError) as caught:
            with_leaf(**change)
        assert caught.value.code == "malformed"
