"""The claim tree against naive references: sums at every instant over all claims that are known."""

from __future__ import annotations

from random import Random

import pytest
from claim_chains import BROKER, SITE, child, root, serials
from hypothesis import given, settings
from hypothesis import strategies as st

from leasekit.core.claims.claim import Claim, Ticket, delegate_root
from leasekit.core.claims.signed import UnsignedIdentity
from leasekit.core.claims.tree import BY_DELEGATION, BY_USE, ClaimTree, Overdelegation
from leasekit.core.properties import Counts, count_of, counts
from leasekit.core.time import Term


class Naive:
    """Sums over all known claims at every instant; tries all sets of children for the fewest."""

    def __init__(self) -> None:
        self.claims: dict[bytes, Claim] = {}
        self.until: dict[bytes, int] = {}

    def add(self, ticket: Ticket) -> list[tuple[Claim, bytes]]:
        """Returns the parents of new claims that exceed now, over the new claim's term, and the classes."""
        exceeded = []
        for claim in ticket.chain:
            if claim.digest in self.claims:
                continue
            self.claims[claim.digest] = claim
            self.until.setdefault(claim.digest, claim.term.end)
            parent = self.claims.get(claim.parent)
            for class_, _ in claim.classes if parent is not None else ():
                over = self.exceeding(parent, class_)
                if any(claim.term.start <= t < self.until[claim.digest] for t in over):
                    exceeded.append((parent, class_))
        return exceeded

    def end(self, claim: Claim, at: int) -> None:
        """As a truncation."""
        known = self.until.get(claim.digest, claim.term.end)
        self.until[claim.digest] = min(known, max(at, claim.term.start))

    def children(self, parent: Claim, instant: int) -> list[Claim]:
        """Who holds at an instant."""
        return [
            claim for claim in self.claims.values()
            if claim.parent == parent.digest and claim.term.start <= instant < self.until[claim.digest]
        ]  # fmt: skip

    def exceeding(self, parent: Claim, class_: bytes) -> list[int]:
        """The instants of interest at which children exceed a class."""
        starts = {claim.term.start for claim in self.claims.values() if claim.parent == parent.digest}
        most = had(parent, class_)
        return sorted(t for t in starts if sum(had(c, class_) for c in self.children(parent, t)) > most)

    def fewest(self, parent: Claim) -> int:
        """The size of the smallest proof; 0 if there is none."""
        best = 0
        for class_, most in parent.capacities:
            for instant in self.exceeding(parent, class_):
                total = count = 0
                for units in sorted((had(c, class_) for c in self.children(parent, instant)), reverse=True):
                    if total <= most:
                        total, count = total + units, count + 1
                best = min(best or count, count)
        return best


def had(claim: Claim, class_: bytes) -> int:
    """How many units of a class a claim's children may have."""
    return count_of(claim.capacities, class_)


def check_finding(naive: Naive, finding: Overdelegation) -> None:
    """A finding proves what it says, with the fewest claims."""
    parent = finding.parent
    assert finding.guilty == parent.holder == naive.claims[parent.digest].holder
    assert len({claim.digest for claim in finding.claims}) == len(finding.claims) >= naive.fewest(parent)
    for claim in finding.claims:
        assert claim.parent == parent.digest and claim.issuer == parent.holder
        assert claim.term.start <= finding.instant < naive.until[claim.digest]
    sums = {class_: (sum(had(claim, class_) for claim in finding.claims), most) for class_, most in parent.capacities}
    assert finding.units > finding.capacity
    assert (finding.units, finding.capacity) in sums.values()


KEYS = [UnsignedIdentity(f"key {number}") for number in range(9)]


CLASSES = [b"", *(bytes([number]) * 32 for number in range(3))]


def several(random: Random, most: int) -> Counts:
    """Some units of some classes: of one, mostly."""
    classes = random.sample(CLASSES, random.choice([1, 1, 2, 4]))
    return counts((class_, random.randint(1, most)) for class_ in classes)


def part_of(random: Random, whole: Counts) -> Counts:
    """A part of what there is: of all classes or of some."""
    chosen = [pair for pair in whole if random.random() < 0.7] or [random.choice(whole)]
    most = 1 if random.random() < 0.2 else 4
    return counts((class_, random.randint(1, max(1, units // most))) for class_, units in chosen)


def grow(random: Random, chains: list[Ticket], wide: bool) -> Ticket:
    """A new ticket somewhere in the forest: the depth of its leaf is at most 8; any key signs as it should."""
    if not chains or random.random() < 0.1:
        term = Term(0, 40)
        return delegate_root(
            SITE, holder=random.choice(KEYS).public, type="vm", units=several(random, 30), term=term,
            serial=next(serials), degree=random.choice([1000, 1000, 1200, 2000]),
        )  # fmt: skip
    above = chains[0] if wide and random.random() < 0.8 else random.choice(chains)
    for _ in range(random.randint(1, 3)):
        if len(above.chain) == 8:
            break
        start = random.randrange(above.leaf.term.start, above.leaf.term.end)
        signer = next(key for key in KEYS if key.public == above.leaf.holder)
        holder, degree = random.choice(KEYS), random.choice([1000, 1000, 1500])
        units = part_of(random, above.leaf.capacities)
        above = child(above, signer, units, start, random.randint(start + 1, above.leaf.term.end), holder, degree)
    return above


@settings(deadline=None)
@given(seed=st.integers(0, 2**32), wide=st.booleans(), judge=st.sampled_from([BY_DELEGATION, BY_USE]))
def test_findings_against_the_reference(seed: int, wide: bool, judge: str) -> None:
    """Through additions, repeats and truncations, guilt is found exactly where sums per instant say so."""
    random, tree, naive = Random(seed), ClaimTree(judge), Naive()
    chains: list[Ticket] = []
    proofs: dict[bytes, list[Overdelegation]] = {}
    for _ in range(60):
        if chains and random.random() < 0.2:
            claim, at = random.choice(random.choice(chains).chain), random.randint(0, 40)
            assert tree.end_early(claim.digest, at)
            naive.end(claim, at)
            continue
        ticket = random.choice(chains) if chains and random.random() < 0.1 else grow(random, chains, wide)
        if random.random() < 0.05 and ticket.leaf.digest not in naive.claims:  # the news comes first
            tree.end_early(ticket.leaf.digest, 10, ticket.leaf.issuer)
            naive.end(ticket.leaf, 10)
        chains.append(ticket)
        exceeded = naive.add(ticket)
        found = tree.add(ticket).found
        for finding in found:
            assert finding.parent.digest in {parent.digest for parent, _ in exceeded}
            check_finding(naive, finding)
            proofs.setdefault(finding.parent.digest, []).append(finding)
        for parent, class_ in exceeded:  # each is known by now by a proof that stands
            assert any(
                sum(had(c, class_) for c in proof.claims if c.term.start <= proof.instant < naive.until[c.digest])
                > had(parent, class_)
                for proof in proofs[parent.digest]
            )
    for claim in list(naive.claims.values()):
        proof_now = tree.prove(claim.digest)
        assert (0 if proof_now is None else len(proof_now.claims)) == naive.fewest(claim)
        if proof_now is not None:
            check_finding(naive, proof_now)


@settings(deadline=None)
@given(seed=st.integers(0, 2**32), wide=st.booleans())
def test_honoured_by_delegation_against_the_reference(seed: int, wide: bool) -> None:
    """BY_DELEGATION what is honoured never exceeds a parent, and nothing is refused that would not."""
    random, tree = Random(seed), ClaimTree()
    chains: list[Ticket] = []
    honoured: dict[bytes, Claim] = {}
    until: dict[bytes, int] = {}
    own: set[bytes] = set()

    def held(parent: Claim, class_: bytes, instant: int) -> int:
        used = parent.digest in own and parent.term.start <= instant < until[parent.digest]
        return (count_of(parent.classes, class_) if used else 0) + sum(
            had(c, class_) for c in honoured.values()
            if c.parent == parent.digest and c.term.start <= instant < until[c.digest]
        )  # fmt: skip

    def is_room(parent: Claim, more: Counts, start: int, end: int) -> bool:
        return all(
            held(parent, class_, t) + units <= had(parent, class_) for class_, units in more for t in range(start, end)
        )

    for _ in range(50):
        if chains and random.random() < 0.2:
            claim, at = random.choice(random.choice(chains).chain), random.randint(0, 40)
            tree.end_early(claim.digest, at)
            until[claim.digest] = min(until.get(claim.digest, claim.term.end), max(at, claim.term.start))
            continue
        ticket = random.choice(chains) if chains and random.random() < 0.2 else grow(random, chains, wide)
        chains.append(ticket)
        fits = True
        for above, claim in zip((None, *ticket.chain), ticket.chain, strict=False):
            end = until.setdefault(claim.digest, claim.term.end)
            if claim.digest in honoured:
                continue
            if above is not None and fits:
                fits = is_room(above, claim.capacities, claim.term.start, end)
            if fits:
                honoured[claim.digest] = claim
        leaf = ticket.leaf
        if fits and leaf.digest not in own:
            fits = is_room(leaf, leaf.classes, leaf.term.start, until[leaf.digest])
            if fits:
                own.add(leaf.digest)
        assert (tree.add(ticket).surplus is None) == fits
        for claim in ticket.chain:
            standing = tree.standing(claim.digest)
            assert standing is not None
            assert standing.honoured == (claim.digest in honoured)
            assert (standing.until, standing.used) == (until[claim.digest], claim.digest in own)


@settings(deadline=None)
@given(seed=st.integers(0, 2**32), wide=st.booleans())
def test_honoured_by_use_against_the_reference(seed: int, wide: bool) -> None:
    """BY_USE what is in use below a claim never exceeds it, and nothing is refused that would not."""
    random, tree = Random(seed), ClaimTree(BY_USE)
    chains: list[Ticket] = []
    used: dict[bytes, Ticket] = {}
    until: dict[bytes, int] = {}

    def held(claim: Claim, class_: bytes, instant: int) -> int:
        return sum(
            count_of(t.leaf.classes, class_) for t in used.values()
            if claim.digest in {c.digest for c in t.chain} and t.leaf.term.start <= instant < until[t.leaf.digest]
        )  # fmt: skip

    for _ in range(50):
        if chains and random.random() < 0.3:
            ticket = random.choice(chains)
            leaf, at = ticket.leaf, random.randint(0, 40)
            if random.random() < 0.3:
                tree.withdraw(leaf.digest)
                used.pop(leaf.digest, None)
                continue
            tree.end_early(leaf.digest, at)
            until[leaf.digest] = min(until.get(leaf.digest, leaf.term.end), max(at, leaf.term.start))
            continue
        ticket = random.choice(chains) if chains and random.random() < 0.2 else grow(random, chains, wide)
        chains.append(ticket)
        leaf = ticket.leaf
        end = until.setdefault(leaf.digest, leaf.term.end)
        fits = leaf.digest in used or all(
            held(claim, class_, t) + units <= had(claim, class_)
            for claim in ticket.chain
            for class_, units in leaf.classes
            for t in range(leaf.term.start, end)
        )
        if fits:
            used[leaf.digest] = ticket
        assert (tree.add(ticket).surplus is None) == fits


@settings(deadline=None)
@given(seed=st.integers(0, 2**32), judge=st.sampled_from([BY_DELEGATION, BY_USE]))
def test_restored_trees_behave_alike(seed: int, judge: str) -> None:
    """A tree made anew from what was stored judges what comes next as the one that was lost would have."""
    random, tree = Random(seed), ClaimTree(judge)
    chains: list[Ticket] = []
    stored: dict[bytes, Claim] = {}
    for _ in range(30):
        if chains and random.random() < 0.2:
            tree.end_early(random.choice(random.choice(chains).chain).digest, random.randint(0, 40))
            continue
        chains.append(grow(random, chains, True))
        stored |= {claim.digest: claim for claim in tree.add(chains[-1]).fresh}
    again = ClaimTree(judge)
    for digest, claim in stored.items():
        standing = tree.standing(digest)
        assert standing is not None
        again.restore(claim, standing)
        again.restore(claim, standing)
    assert len(again) == len(tree)
    for claim in stored.values():
        assert again.standing(claim.digest) == tree.standing(claim.digest)
    for _ in range(20):
        ticket = grow(random, chains, True)
        chains.append(ticket)
        one, other = tree.add(ticket), again.add(ticket)
        assert (one.surplus is None, one.until, one.known) == (other.surplus is None, other.until, other.known)


@pytest.mark.long
@settings(deadline=None)
@given(seed=st.integers(0, 2**32), judge=st.sampled_from([BY_DELEGATION, BY_USE]))
def test_forgetting_changes_no_answer(seed: int, judge: str) -> None:
    """What comes is judged as if nothing had been forgotten, as long as it begins now or later."""
    random, tree, whole = Random(seed), ClaimTree(judge), ClaimTree(judge)
    parents = [root(random.randint(10, 15), term=Term(0, 2000)) for _ in range(3)]
    parents += [child(parents[0], BROKER, 5, 0, 2000, BROKER), child(parents[1], BROKER, 9, 100, 1500, BROKER)]
    tickets = [child(parent, BROKER, 1, 300, 301) for parent in parents]
    for ticket in tickets:
        assert (tree.add(ticket).surplus is None) == (whole.add(ticket).surplus is None)
    now = 0
    for _ in range(250):
        now += random.randint(0, 8)
        tree.forget_before(now)
        if tickets and random.random() < 0.2:
            digest, at = random.choice(tickets).leaf.digest, now + random.randint(0, 40)
            tree.end_early(digest, at)
            if digest in tree:
                whole.end_early(digest, at)
            continue
        above = random.choice([parent for parent in parents if parent.leaf.term.end > now + 60])
        start = max(now, above.leaf.term.start) + random.randint(0, 20)
        tickets.append(child(above, BROKER, random.randint(1, 4), start, start + random.randint(1, 30)))
        one, other = tree.add(tickets[-1]), whole.add(tickets[-1])
        assert (one.surplus is None, one.until) == (other.surplus is None, other.until)
        if one.surplus is not None and other.surplus is not None:
            assert (one.surplus.instant, one.surplus.free) == (other.surplus.instant, other.surplus.free)
    alive = {claim.digest for ticket in tickets for claim in ticket.chain if claim.term.end > now}
    assert set(tree._nodes) == {digest for digest in whole._nodes if digest in alive}
    for parent in parents:
        proof = tree.prove(parent.leaf.digest)
        assert proof is None or whole.prove(parent.leaf.digest) is not None


@settings(deadline=None)
@given(seed=st.integers(0, 2**32), judge=st.sampled_from([BY_DELEGATION, BY_USE]))
def test_a_refused_modify_changes_no_answer(seed: int, judge: str) -> None:
    """A tree that now and then heard of a modify, which was refused, honours what one does that never heard of any."""
    random, plain, tree = Random(seed), ClaimTree(judge), ClaimTree(judge)
    chains: list[Ticket] = []
    for _ in range(60):
        if chains and random.random() < 0.3:
            old = random.choice(chains)
            standing = tree.standing(old.leaf.digest)
            if len(old.chain) < 2 or standing is None or not standing.used or standing.until <= old.leaf.term.start:
                continue
            start = random.randrange(old.leaf.term.start, standing.until)
            above = Ticket(old.chain[:-1])
            signer = next(key for key in KEYS if key.public == above.leaf.holder)
            units, holder = random.randint(1, old.leaf.units), random.choice(KEYS)
            new = child(above, signer, units, start, random.randint(start + 1, above.leaf.term.end), holder)
            tree.end_early(old.leaf.digest, start)
            found = tree.add(new).found
            tree.withdraw(new.leaf.digest)
            tree.reopen(old.leaf.digest, standing.until, new.leaf.digest)
            if found:
                return  # it is kept: that changes the answers
            continue
        ticket = random.choice(chains) if chains and random.random() < 0.1 else grow(random, chains, False)
        chains.append(ticket)
        one, two = plain.add(ticket), tree.add(ticket)
        assert (one.surplus, one.known, one.until) == (two.surplus, two.known, two.until)
        assert len(plain) == len(tree)
