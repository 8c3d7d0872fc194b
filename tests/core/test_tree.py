"""The claim tree: who gave away too much, exactly; and what is honoured of it."""

from __future__ import annotations

import pytest
from claim_chains import BROKER, GUEST, LOWER, OTHER, SITE, child, root

from leasekit.core.claims.claim import Ticket, decode_claim
from leasekit.core.claims.evidence import of_overdelegation, verify_evidence
from leasekit.core.claims.signed import UNSIGNED, UnsignedIdentity
from leasekit.core.claims.tree import BY_DELEGATION, BY_USE, Added, ClaimTree, Overdelegation
from leasekit.core.errors import TicketError
from leasekit.core.time import Term


def only(added: Added) -> Overdelegation:
    """The one finding of a ticket."""
    (finding,) = added.found
    return finding


# -- what counts -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("judge", [BY_DELEGATION, BY_USE])
def test_within_the_parent(judge: str) -> None:
    """Children may hold at the same time as long as they add up to the parent; touching terms do not collide."""
    tree, above = ClaimTree(judge), root(10)
    for units, start, end in ((6, 0, 500), (4, 0, 1000), (6, 500, 1000)):
        added = tree.add(child(above, BROKER, units, start, end))
        assert (added.surplus, added.found, added.known, added.until) == (None, (), False, end)
    assert len(tree) == 4


@pytest.mark.parametrize("judge", [BY_DELEGATION, BY_USE])
def test_one_instant_too_many(judge: str) -> None:
    """One millisecond in which children exceed the parent is guilt of who signed them, with the smallest proof."""
    tree, above = ClaimTree(judge), root(10)
    first, second = child(above, BROKER, 6, 0, 501), child(above, BROKER, 5, 500, 1000)
    small = child(above, BROKER, 1, 0, 100)
    for fine in (small, first):
        assert tree.add(fine).surplus is None
    added = tree.add(second)
    finding = only(added)
    assert (finding.guilty, finding.parent.digest) == (BROKER.public, above.leaf.digest)
    assert [claim.digest for claim in finding.claims] == [first.leaf.digest, second.leaf.digest]
    assert (finding.instant, finding.units, finding.capacity) == (500, 11, 10)
    assert added.surplus is not None
    assert (added.surplus.claim.digest, added.surplus.instant, added.surplus.free) == (above.leaf.digest, 500, 4)


def test_degrees() -> None:
    """Children up to the parent's degree are no guilt; what a child may oversubscribe costs its parent as much."""
    tree, above = ClaimTree(), root(10, degree=1200)
    assert tree.add(child(above, BROKER, 12)).surplus is None
    assert only(tree.add(child(above, BROKER, 1))).capacity == 12
    tree, above = ClaimTree(), root(10)
    middle = child(above, BROKER, 8, degree=1250, holder=LOWER)
    assert tree.add(child(middle, LOWER, 10)).found == ()  # 8 units at 1.25 are all 10 of the broker's
    finding = only(tree.add(child(above, BROKER, 1)))
    assert (finding.units, len(finding.claims)) == (11, 2)


def test_however_deep() -> None:
    """Over-delegation is found at any depth, and at several at once."""
    keys = [UnsignedIdentity(f"broker {number}") for number in range(8)]
    for guilty in range(7):
        tree, chain = ClaimTree(), root(10, holder=keys[0])
        chains = [chain]
        for number in range(6):
            chain = child(chain, keys[number], 10, holder=keys[number + 1])
            chains.append(chain)
        assert tree.add(child(chain, keys[6], 10)).found == ()
        again = child(chains[guilty], keys[guilty], 1, holder=keys[guilty + 1])
        for number in range(guilty + 1, 7):
            again = child(again, keys[number], 2 * again.leaf.units, holder=keys[number + 1])
        found = tree.add(again).found
        assert [finding.guilty for finding in found] == [key.public for key in keys[guilty:7]]
        assert len(found[0].claims) == 2


def test_repeats_change_nothing() -> None:
    """The same ticket again is known, honoured still, and counts once."""
    tree, above = ClaimTree(), root(10)
    ticket = child(above, BROKER, 6)
    assert not tree.add(ticket).known
    for _ in range(3):
        added = tree.add(ticket)
        assert (added.known, added.surplus, added.found, added.fresh) == (True, None, (), ())
    assert tree.add(child(above, BROKER, 4)).surplus is None


def test_a_second_signature_makes_no_second_claim() -> None:
    """A claim with another signature on the same words is the one that is known: refused, and nobody's guilt."""
    tree, above = ClaimTree(), root(10)
    ticket = child(above, BROKER, 6)
    tree.add(ticket)
    twin = Ticket((above.leaf, decode_claim(ticket.leaf.body, b"s" * 64)))
    with pytest.raises(TicketError) as caught:
        tree.add(twin)
    assert caught.value.code == "resigned"
    assert len(tree) == 2


def test_what_is_no_chain() -> None:
    """Claims that do not hang together are taken in not even in part."""
    tree, above, other = ClaimTree(), root(10), root(10)
    leaf = child(above, BROKER, 6).leaf
    early = child(above, BROKER, 1, 0, 1001).leaf
    for chain, code in (
        ((other.leaf, leaf), "wrong_parent"), ((leaf,), "wrong_parent"), ((above.leaf, early), "exceeds_term")
    ):  # fmt: skip
        with pytest.raises(TicketError) as caught:
            tree.add(Ticket(chain))
        assert caught.value.code == code
    assert len(tree) == 0


# -- surplus -----------------------------------------------------------------------------------------------------------


def test_refused_claims_stand_in_nobodys_way() -> None:
    """A surplus claim is seen, and so proves guilt, but leaves its units to those who come after it."""
    tree, above = ClaimTree(), root(10)
    assert tree.add(child(above, BROKER, 6)).surplus is None
    refused = child(above, BROKER, 6)
    assert tree.add(refused).surplus is not None
    assert tree.add(child(above, BROKER, 4)).surplus is None
    assert tree.add(refused).known
    finding = tree.prove(above.leaf.digest)
    assert finding is not None and finding.units == 12
    assert tree.standing(refused.leaf.digest) is not None
    assert not tree.standing(refused.leaf.digest).honoured  # type: ignore[union-attr]


def test_surplus_is_judged_again() -> None:
    """What was surplus is honoured when it is presented again after others ended."""
    tree, above = ClaimTree(), root(10)
    first, second = child(above, BROKER, 6), child(above, BROKER, 6, 500, 1000)
    tree.add(first)
    assert tree.add(second).surplus is not None
    assert tree.end_early(first.leaf.digest, 500)
    again = tree.add(second)
    assert (again.surplus, again.known, again.found) == (None, True, ())
    assert tree.add(child(above, BROKER, 5, 500, 1000)).surplus is not None


def test_below_a_surplus_claim() -> None:
    """BY_DELEGATION who came first has it; BY_USE guests are served in order until what the guilty held is used up."""
    for judge, served in ((BY_DELEGATION, [True, False, True, False]), (BY_USE, [True, True, False, False])):
        tree, above = ClaimTree(judge), root(10)
        left, right = (child(above, BROKER, 10, holder=LOWER) for _ in range(2))
        tickets = [child(left, LOWER, 5), child(right, LOWER, 5), child(left, LOWER, 5), child(right, LOWER, 1)]
        added = [tree.add(ticket) for ticket in tickets]
        assert [one.surplus is None for one in added] == served
        assert [len(one.found) for one in added] == [0, 1, 0, 0]
        assert added[1].found[0].guilty == BROKER.public


def test_own_use_is_taken_from_what_can_be_given() -> None:
    """Who redeems its own claim and gives it away as well is not honoured twice, in either order; it is no guilt."""
    for judge in (BY_DELEGATION, BY_USE):
        above = root(10)
        mine = child(above, BROKER, 10, holder=LOWER)
        theirs = child(mine, LOWER, 4)
        for first, second in ((mine, theirs), (theirs, mine)):
            tree = ClaimTree(judge)
            assert tree.add(first).surplus is None
            late = tree.add(second)
            assert late.surplus is not None and late.found == ()
            assert late.surplus.claim.digest == mine.leaf.digest


def test_withdrawn_use() -> None:
    """What the site did not honour for a reason of its own is not in use, and can be honoured later."""
    above = root(10)
    mine = child(above, BROKER, 10, holder=LOWER)
    theirs = child(mine, LOWER, 4)
    for judge in (BY_DELEGATION, BY_USE):
        tree = ClaimTree(judge)
        tree.add(mine)
        tree.withdraw(mine.leaf.digest)
        assert tree.add(theirs).surplus is None
        assert tree.add(mine).surplus is not None
        tree.withdraw(theirs.leaf.digest)
        tree.withdraw(theirs.leaf.digest)
        assert (tree.add(mine).surplus is None) == (judge == BY_USE)


# -- claims that end early ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("judge", [BY_DELEGATION, BY_USE])
def test_a_refused_modify(judge: str) -> None:
    """What a modify was to replace counts to its end again when that is refused, and what came for it not at all."""
    tree, above = ClaimTree(judge), root(10)
    old, new = child(above, BROKER, 6, 0, 900), child(above, BROKER, 8, 400, 1000)
    assert tree.add(old).surplus is None
    for _ in range(2):
        tree.end_early(old.leaf.digest, 400)
        assert tree.add(new).surplus is None
        tree.withdraw(new.leaf.digest)
        tree.reopen(old.leaf.digest, 900, new.leaf.digest)
        assert len(tree) == 2 and new.leaf.digest not in tree
        standing = tree.standing(old.leaf.digest)
        assert standing is not None and (standing.until, standing.used) == (900, True)
    assert tree.add(child(above, BROKER, 4, 300, 900)).surplus is None
    added = tree.add(child(above, BROKER, 1, 500, 600))
    assert added.surplus is not None and added.surplus.free == 0
    assert only(added).units == 11
    tree.forget_before(1000)
    assert len(tree) == 0


def test_a_refused_modify_that_proves_guilt() -> None:
    """A claim that came for another one, and is one too many all the same, stays as the proof that it is."""
    tree, above = ClaimTree(), root(10)
    old, other = child(above, BROKER, 6, 0, 900), child(above, BROKER, 4, 0, 900)
    new = child(above, BROKER, 7, 400, 900)
    for fine in (old, other):
        assert tree.add(fine).surplus is None
    tree.end_early(old.leaf.digest, 400)
    finding = only(tree.add(new))
    tree.withdraw(new.leaf.digest)
    tree.reopen(old.leaf.digest, 900, new.leaf.digest)
    assert new.leaf.digest in tree
    assert new.leaf.digest in {claim.digest for claim in finding.claims}


def test_ended_claims_count_no_longer() -> None:
    """A truncation frees what follows it, once; the earliest one wins, and a void claim counts for nothing."""
    tree, above = ClaimTree(), root(10)
    cut = child(above, BROKER, 10)
    tree.add(cut)
    for at in (600, 600, 800):
        tree.end_early(cut.leaf.digest, at)
    assert tree.add(cut).until == 600
    assert tree.add(child(above, BROKER, 10, 600, 1000)).surplus is None
    assert tree.add(child(above, BROKER, 1, 599, 600)).surplus is not None
    tree.end_early(cut.leaf.digest, -5)
    assert tree.add(cut).until == 0
    assert tree.prove(above.leaf.digest) is None


def test_the_news_came_first() -> None:
    """The end of a claim that was not seen yet is obeyed when it comes, if its issuer or the site said so."""
    tree, above = ClaimTree(), root(10)
    cut = child(above, BROKER, 10)
    for by in (OTHER.public, GUEST.public):
        assert not tree.end_early(cut.leaf.digest, 100, by)
    for by, at in ((BROKER.public, 700), (SITE.public, 600), (SITE.public, 650)):
        assert not tree.end_early(cut.leaf.digest, at, by)
    assert tree.add(cut).until == 600
    assert tree.end_early(cut.leaf.digest, 100, OTHER.public)
    assert tree.add(cut).until == 600
    assert tree.end_early(cut.leaf.digest, 500, BROKER.public)
    assert tree.add(cut).until == 500


def test_remembered_ends_are_bounded() -> None:
    """Only so many ends of unknown claims are remembered: the latest."""
    tree, above = ClaimTree(early_max=3), root(10)
    tickets = [child(above, BROKER, 1) for _ in range(5)]
    for ticket in tickets:
        tree.end_early(ticket.leaf.digest, 300)
    assert [tree.add(ticket).until for ticket in tickets] == [1000, 1000, 300, 300, 300]


def test_everything_below_an_ended_claim_ends() -> None:
    """A chain stands only as long as all of its claims do."""
    tree, above = ClaimTree(), root(10)
    middle = child(above, BROKER, 5, holder=LOWER)
    leaf = child(middle, LOWER, 5)
    tree.add(leaf)
    tree.end_early(middle.leaf.digest, 400)
    assert tree.add(leaf).until == 400


def test_guilt_is_told_once() -> None:
    """As long as a proof stands no other is made; when it falls, what goes on is told again."""
    tree, above = ClaimTree(), root(10)
    tickets = [child(above, BROKER, 6) for _ in range(4)]
    assert [len(tree.add(ticket).found) for ticket in tickets] == [0, 1, 0, 0]
    tree.end_early(tickets[0].leaf.digest, 0)
    finding = only(tree.add(child(above, BROKER, 1)))
    assert len(finding.claims) == 2
    assert {claim.digest for claim in finding.claims} < {ticket.leaf.digest for ticket in tickets[1:]}


def test_asking_for_a_proof_changes_nothing() -> None:
    """Whether or not somebody asked before, the next claim too many is told, in a tree of any width."""
    tree, above = ClaimTree(), root(200)
    for _ in range(200):
        tree.add(child(above, BROKER, 1))
        assert tree.prove(above.leaf.digest) is None
    assert len(only(tree.add(child(above, BROKER, 100))).claims) == 102
    proof = tree.prove(above.leaf.digest)
    assert proof is not None and len(proof.claims) == 102


# -- bounds ------------------------------------------------------------------------------------------------------------


def test_what_is_over_is_forgotten() -> None:
    """Claims are dropped when their terms are over, with their calendars: memory is for what goes on."""
    for judge in (BY_DELEGATION, BY_USE):
        tree, above = ClaimTree(judge), root(10, term=Term(0, 10**9))
        for number in range(2000):
            now = 100 * number
            assert tree.add(child(above, BROKER, 10, now, now + 100)).surplus is None
            tree.forget_before(now)
            assert len(tree) <= 4
        (book,) = tree._nodes[above.leaf.digest].books.values()
        assert len(book.children) <= 130 and len(book.seen) <= 130 and len(tree._ends) <= 4


def test_an_ended_claim_is_remembered_for_its_term() -> None:
    """A claim that was ended early does not come back whole when its ticket comes again."""
    tree, above = ClaimTree(), root(10)
    cut = child(above, BROKER, 10)
    tree.add(cut)
    tree.end_early(cut.leaf.digest, 10)
    tree.forget_before(900)
    assert tree.add(cut).until == 10
    tree.forget_before(1000)
    assert len(tree) == 0


def test_refused_claims_are_bounded() -> None:
    """A broker that signs without end fills no memory: what proves nothing new is judged and not kept."""
    for judge in (BY_DELEGATION, BY_USE):
        tree, above = ClaimTree(judge, refused_max=5), root(10)
        tree.add(child(above, BROKER, 10))
        surplus = [tree.add(child(above, BROKER, 1)) for _ in range(50)]
        assert all(added.surplus is not None for added in surplus)
        assert len(tree) == 7
        assert [len(added.fresh) for added in surplus] == [1] * 5 + [0] * 45
        other = root(10, holder=OTHER)
        fine = tree.add(child(other, OTHER, 10))
        assert fine.surplus is None and len(fine.fresh) == 2
        assert only(tree.add(child(other, OTHER, 1))).guilty == OTHER.public


def test_policies_by_name() -> None:
    """A policy that is not known is refused by name."""
    with pytest.raises(ValueError, match="judge: found 'first'"):
        ClaimTree("first")


def test_restoring_needs_the_parent() -> None:
    """A claim whose parent is missing is not put back."""
    tree, above = ClaimTree(), root(10)
    ticket = child(above, BROKER, 5)
    tree.add(ticket)
    standing = tree.standing(ticket.leaf.digest)
    assert standing is not None
    with pytest.raises(TicketError) as caught:
        ClaimTree().restore(ticket.leaf, standing)
    assert caught.value.code == "wrong_parent"
    assert ClaimTree().standing(ticket.leaf.digest) is None


def test_one_class_is_exceeded_though_the_total_is_not() -> None:
    """Sums hold by class: guilt in one, and its surplus, while there are units of another."""
    one, other = b"1" * 32, b"2" * 32
    above, tree = root(((one, 3), (other, 5))), ClaimTree()
    assert tree.add(child(above, BROKER, ((one, 2),))).surplus is None
    assert tree.add(child(above, BROKER, ((other, 2),))).surplus is None
    added = tree.add(child(above, BROKER, ((one, 2), (other, 1))))
    (finding,) = added.found
    assert (finding.units, finding.capacity, len(finding.claims)) == (4, 3, 2)
    assert added.surplus is not None
    assert (added.surplus.free, added.surplus.capacity) == (1, 3)
    assert tree.add(child(above, BROKER, ((other, 3),))).surplus is None
    verdict = verify_evidence(UNSIGNED, of_overdelegation(finding, None))
    assert "could give away 3 of one class of them, and gave away 4" in verdict.words
