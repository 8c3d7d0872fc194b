"""The claim tree: what a site authority has seen of the claims under its roots, and who gave away too much (SHARP).

Theory of operation
-------------------
A ticket shows its whole chain, so that the authority sees the claims of every broker above those who redeem. Each
claim is a node under its parent, and each parent keeps a calendar (:class:`Profile`) of what its children hold when.

**What counts.** A child counts over ``[start, until)``, where ``until`` is its term's end or the instant at which a
truncation or a receipt ended it early; touching terms do not collide. It counts with its *capacity* (units times
degree), since that is what its holder may hand on in turn. So oversubscription is what a parent's degree says and is
never multiplied: under a root of 10 units at degree 1.2, what leaves hold adds up to 12 at most, however deep.

**By class.** A claim counts its units by class (:mod:`leasekit.core.properties`), and so does all of this: each class
of a parent has calendars of its own, is exceeded by itself, and is proved to be.

**Two calendars.** One claim too many must neither be forgotten, or nobody could be held to account, nor stand in the
way of the honest ones that come after it. So a parent has two calendars:

- *seen*: every child that is known. Where it exceeds the parent's capacity, the parent's holder has signed more than
  it had: that is guilt, and :class:`Overdelegation` names the fewest claims that prove it.
- *given*: what is honoured. A claim that does not fit there is surplus: kept in the tree, not counted here. It is
  judged again each time that it is presented, so that it is honoured when others have ended meanwhile.

What *given* counts is the site's policy:

- :data:`BY_DELEGATION` ("refuse the surplus"): each link counts whole, in the order in which links became known. A
  claim below one that is surplus is surplus. Whoever came first has all that it holds, used or not.
- :data:`BY_USE` ("honour in order of arrival up to capacity"): claims count when they are redeemed, with their units,
  against everything above them. Guests of a guilty broker are served in order until what it held is used up.

A claim that its holder redeems itself takes its own units out of what it can give away. That is not provable by what
the holder signed, so it counts in *given* and not in *seen*: it can make surplus, not guilt.

**Cost.** A claim costs O(depth) look-ups and O(log n) in the calendar of its parent (BY_USE: of each ancestor). The
first surplus under a parent copies its calendar. The fewest claims are looked for when a parent is first found guilty,
and again only when the proof no longer holds and enough has happened to pay for it: O(1) sweeps of n children for
n / 16 changes. Claims are dropped when their term is over; an honest one takes about 0.7 kB (benchmarks/claims.py).
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final, final

import attrs
from sortedcontainers import SortedList

from leasekit.core.claims.claim import Claim, Ticket, decode_claim
from leasekit.core.errors import TicketError
from leasekit.core.profile import BEGIN, FOREVER, Profile
from leasekit.core.properties import Counts, count_of
from leasekit.core.reasons import Code
from leasekit.core.time import Instant

BY_DELEGATION: Final = "by_delegation"
BY_USE: Final = "by_use"
REFUSED_MAX: Final = 10_000
"""Claims kept that are not honoured: more are judged and reported, but not kept unless they prove something new."""
EARLY_MAX: Final = 10_000
"""Early ends remembered of claims that were not seen yet; the oldest is forgotten first."""
TIDY_MIN: Final = 64
SWEEP_SHARE: Final = 16
"""A new search for the fewest claims has to be paid for by changes to one child in so many."""


@attrs.frozen(slots=True)
class Overdelegation:
    """``guilty`` held ``parent`` and signed ``claims``, its children, which at ``instant`` add up to more of one class.

    ``claims`` are the fewest that do, over all instants: the largest first. ``units`` is what they add up to of that
    class (each with its capacity), ``capacity`` what the parent allowed.
    """

    guilty: bytes
    parent: Claim
    claims: tuple[Claim, ...]
    instant: Instant
    units: int
    capacity: int


@attrs.frozen(slots=True)
class Surplus:
    """A claim was not honoured because ``claim``, above it or itself, has only ``free`` units of a class left at
    ``instant``, of ``capacity``.
    """

    claim: Claim
    instant: Instant
    free: int
    capacity: int


@attrs.frozen(slots=True)
class Added:
    """What became of a ticket.

    ``surplus`` is None if it is honoured; ``found`` are new findings of guilt (whether or not this ticket is honoured);
    ``known`` says that its leaf was in the tree; ``until`` the instant up to which the whole chain stands, which is
    before the leaf's end where it or one above it was ended early; ``fresh`` the claims that were not known, parents
    first, for the authority's store.
    """

    surplus: Surplus | None
    found: tuple[Overdelegation, ...]
    known: bool
    until: Instant
    fresh: tuple[Claim, ...]


@attrs.frozen(slots=True)
class Standing:
    """How a claim in the tree stands: ``until`` when it counts, whether it is honoured, and used by its holder."""

    until: Instant
    honoured: bool
    used: bool


@final
class _Node:
    """A claim that was seen. Its bytes are those of the claim, so that an authority that keeps them shares them."""

    __slots__ = (
        "body", "books", "digest", "end", "honoured", "parent", "signature", "start", "units", "until", "used",
        "weights",
    )  # fmt: skip

    def __init__(self, claim: Claim, parent: _Node | None) -> None:
        self.digest, self.body, self.signature = claim.digest, claim.body, claim.signature
        self.parent = parent
        self.units, self.weights = claim.weights, claim.capacities
        self.start, self.end = claim.term
        self.until = self.end
        self.honoured = parent is None  # what the site itself gives away is its own affair
        self.used = False
        self.books: dict[bytes, _Book] = _NO_BOOKS

    @property
    def claim(self) -> Claim:
        return decode_claim(self.body, self.signature)


@final
class _Book:
    """The children of a claim that have units of one class, and its two calendars.

    ``given`` is None as long as it would equal ``seen``: BY_DELEGATION, every child honoured, and no own use.
    """

    __slots__ = (
        "capacity", "changes", "children", "credit", "given", "limit", "proof", "proved_at", "seen", "unit_class"
    )  # fmt: skip

    def __init__(self, class_: bytes, capacity: int, horizon: Instant) -> None:
        self.unit_class = class_
        self.capacity = capacity
        self.children: list[_Node] = []
        self.seen = Profile(0, horizon)
        self.given: Profile | None = None
        self.proof: tuple[_Node, ...] = ()
        self.proved_at: Instant = BEGIN
        self.credit = -1  # changes since the last sweep; negative: there was none yet
        self.changes, self.limit = 0, TIDY_MIN  # since the last tidying; when the next one is due

    def own_given(self) -> Profile:
        """``given``, made a calendar of its own."""
        if self.given is None:
            self.given = self.seen.copy()
        return self.given

    def changed(self, horizon: Instant) -> None:
        """Count a change, and drop what is over now and then: O(1) amortized, and memory for what is not, twice."""
        if self.credit >= 0:
            self.credit += 1
        self.changes += 1
        if self.changes < self.limit:
            return
        self.children = [node for node in self.children if node.end > horizon]
        self.seen.forget_before(horizon)
        size = len(self.seen)
        if self.given is not None:
            self.given.forget_before(horizon)
            size = max(size, len(self.given))
        self.changes, self.limit = 0, max(TIDY_MIN, len(self.children), size)

    def may_sweep(self) -> bool:
        """Whether enough has changed since the last sweep to pay for another one."""
        return self.credit < 0 or self.credit * SWEEP_SHARE >= len(self.children)

    def count(self, start: Instant, end: Instant, units: int, *, given: bool) -> None:
        """A child has so many units more over a term; ``given`` says whether it is honoured."""
        if start < end:
            self.seen.add(start, end, units)
            if given and self.given is not None:
                self.given.add(start, end, units)


_NO_BOOKS: Final[dict[bytes, _Book]] = {}
"""Those of a claim that has no children, which most are."""


class ClaimTree:
    """The claims seen under the roots of one site; ``judge`` is :data:`BY_DELEGATION` or :data:`BY_USE`.

    Tickets must have passed the site's :class:`TicketVerifier`: the tree checks no signatures. All its state is what it
    was told: an authority that stores ``Added.fresh`` and :meth:`standing` makes it anew with :meth:`restore`.
    """

    def __init__(
        self, judge: str = BY_DELEGATION, *, refused_max: int = REFUSED_MAX, early_max: int = EARLY_MAX
    ) -> None:
        if judge not in (BY_DELEGATION, BY_USE):
            raise ValueError(f"judge: found {judge!r}, allowed are {BY_DELEGATION!r} and {BY_USE!r}")
        self._by_use = judge == BY_USE
        self._refused_max, self._early_max = refused_max, early_max
        self._nodes: dict[bytes, _Node] = {}
        self._bodies: dict[bytes, _Node] = {}
        self._ends: list[tuple[Instant, bytes]] = []
        self._early: OrderedDict[tuple[bytes, bytes], Instant] = OrderedDict()
        self._horizon: Instant = BEGIN
        self._refused = 0

    def __len__(self) -> int:
        """The number of claims in the tree."""
        return len(self._nodes)

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._nodes

    # -- tickets that come ---------------------------------------------------------------------------------------------

    def add(self, ticket: Ticket) -> Added:
        """Take in a ticket that its holder redeems: whether it is honoured, and whose guilt it showed.

        A ticket that is honoured already changes nothing. One that was surplus is judged again.

        Raises ``TicketError``, and takes in nothing: ``resigned`` if one of its claims is known with another signature,
        which makes it the same claim and not a second one; ``wrong_parent`` or ``exceeds_term`` if it is no chain.
        """
        self._check(ticket.chain)
        path: list[_Node] = []
        fresh: list[_Node] = []
        found: list[Overdelegation] = []
        surplus: Surplus | None = None
        parent: _Node | None = None
        for claim in ticket.chain:
            node = self._nodes.get(claim.digest)
            if node is None:
                node = self._insert(claim, parent)
                fresh.append(node)
                found += self._detect(parent, node) if parent is not None else ()
            if parent is not None and not node.honoured and not self._by_use:
                surplus = surplus or self._short(parent, node)
                self._settle(node, surplus is None)
            path.append(node)
            parent = node
        leaf = path[-1]
        if surplus is None and not leaf.used:
            surplus = self._use_of(path)
        known = not fresh or fresh[-1] is not leaf
        until = min([node.until for node in path])
        before = len(path) - len(fresh)  # whoever is known, so is all above it
        kept = self._kept(fresh, surplus is not None and not found)
        return Added(surplus, tuple(found), known, until, ticket.chain[before : before + len(kept)])

    def withdraw(self, digest: bytes) -> None:
        """The site does not honour this ticket after all, for a reason of its own: nothing of it is in use."""
        node = self._nodes.get(digest)
        if node is not None and node.used:
            self._count_use(node, -1)

    def end_early(self, digest: bytes, at: Instant, by: bytes = b"") -> bool:
        """A truncation or receipt ended a claim at ``at``: it counts over ``[start, at)`` from now on.

        The earliest end wins, so that repeats change nothing. ``by`` is the key that signed it, which must be that of
        the claim's issuer or of the site; without it the caller has checked that. The end of a claim that was not
        seen yet is remembered (the last ``early_max`` of them) and obeyed when it comes. Returns whether it is known.
        """
        node = self._nodes.get(digest)
        if node is None:
            known = self._early.pop((digest, by), at)
            self._early[digest, by] = min(at, known)
            if len(self._early) > self._early_max:
                self._early.popitem(last=False)
            return False
        if by in (b"", node.claim.issuer, _site_of(node)):
            self._end(node, at)
        return True

    def reopen(self, digest: bytes, until: Instant, instead: bytes) -> None:
        """A modify was refused: what it was to replace counts to ``until`` again, as if it had never been ended early.

        The claim that came ``instead`` is forgotten: its issuer gave it for what the other one gives up, so that both
        together would look like guilt. It stays if it proves guilt by itself, or is used, or others are below it.
        """
        node, gone = self._nodes.get(digest), self._nodes.get(instead)
        if gone is not None and not gone.used and not gone.books and gone.parent is not None:
            proved = any(one is gone for book, _ in _books_above(gone) for one in book.proof)
            if not proved:
                self._remove(gone)
        if node is not None and node.until < min(until, node.end):
            self._go_on(node, min(until, node.end))

    def _remove(self, node: _Node) -> None:
        """Forget a claim that nobody uses, with none below it."""
        for book, weight in _books_above(node):
            book.count(node.start, node.until, -weight, given=self._counts(node))
            place = next((at for at in range(len(book.children) - 1, -1, -1) if book.children[at] is node), -1)
            if place >= 0:  # else it is over, and was tidied away
                del book.children[place]
        del self._nodes[node.digest], self._bodies[node.body]
        self._refused -= not node.honoured

    def _go_on(self, node: _Node, until: Instant) -> None:
        for book, weight in _books_above(node):
            book.count(node.until, until, weight, given=self._counts(node))
            book.changed(self._horizon)
        self._count_own(node, node.until, until, 1)
        node.until = until

    def _counts(self, node: _Node) -> bool:
        """BY_DELEGATION: whether a node counts in what its parent has given."""
        return node.honoured and not self._by_use

    def forget_before(self, now: Instant) -> None:
        """Drop the claims whose terms ended at or before ``now`` (less the skew for which a redeem may be late)."""
        self._horizon = max(self._horizon, now)
        while self._ends and self._ends[0][0] <= now:
            node = self._nodes.pop(heapq.heappop(self._ends)[1], None)
            if node is None:
                continue  # a modify brought it, and was refused
            del self._bodies[node.body]
            self._refused -= not node.honoured
            for book, _ in _books_above(node):
                book.changed(self._horizon)

    # -- what is known -------------------------------------------------------------------------------------------------

    def standing(self, digest: bytes) -> Standing | None:
        """How a claim stands; None if it is not in the tree."""
        node = self._nodes.get(digest)
        return None if node is None else Standing(node.until, node.honoured, node.used)

    def prove(self, digest: bytes) -> Overdelegation | None:
        """The fewest children of a claim that exceed it, by what is known now; None if none do. O(n log n)."""
        node = self._nodes.get(digest)
        if node is None:
            return None
        proofs = ((book, _smallest_set(book, self._horizon, FOREVER)) for book in node.books.values())
        found = [_finding(node, book, *smallest) for book, smallest in proofs if smallest is not None]
        return min(found, key=lambda one: len(one.claims), default=None)

    def restore(self, claim: Claim, standing: Standing) -> None:
        """Put back a claim as it stood, parents before children; judges nothing and finds no guilt.

        Raises ``TicketError`` (``wrong_parent``) if its parent is not in the tree.
        """
        if claim.digest in self._nodes:
            return
        parent = self._nodes.get(claim.parent)
        if claim.parent and parent is None:
            raise TicketError(Code.WRONG_PARENT, f"the parent of claim {claim.id[:16]} is not in the tree")
        node = self._insert(claim, parent, standing.until)
        self._settle(node, standing.honoured)
        if standing.used:
            self._count_use(node, 1)
        self._kept([node], False)

    # -- parts ---------------------------------------------------------------------------------------------------------

    def _check(self, chain: Sequence[Claim]) -> None:
        if chain[0].parent:
            raise TicketError(Code.WRONG_PARENT, "the first claim of the chain names a parent")
        for above, claim in pairwise(chain):
            if claim.parent != above.digest:
                raise TicketError(Code.WRONG_PARENT, "a claim does not name the claim above it as its parent")
            if not above.term.contains(claim.term):
                raise TicketError(Code.EXCEEDS_TERM, f"term {tuple(claim.term)} is outside {tuple(above.term)}")
        for claim in chain:
            if claim.digest not in self._nodes and claim.body in self._bodies:
                raise TicketError(Code.RESIGNED, f"claim {claim.id[:16]} is known here with another signature")

    def _insert(self, claim: Claim, parent: _Node | None, until: Instant = FOREVER) -> _Node:
        """A new node, seen and not judged yet."""
        node = _Node(claim, parent)
        self._nodes[node.digest] = self._bodies[node.body] = node
        self._refused += not node.honoured
        if self._early:
            for by in (b"", claim.issuer, _site_of(node)):
                until = min(until, self._early.get((node.digest, by), FOREVER))
        node.until = max(min(node.until, until), node.start)
        if parent is not None:
            for class_, weight in node.weights:
                book = parent.books.get(class_) or self._open(parent, class_)
                book.children.append(node)
                book.count(node.start, node.until, weight, given=False)
                book.changed(self._horizon)
        return node

    def _open(self, node: _Node, class_: bytes) -> _Book:
        book = _Book(class_, count_of(node.weights, class_), self._horizon)
        node.books = {**node.books, class_: book}
        if self._by_use or node.used:
            book.given = Profile(0, self._horizon)
            if node.used and node.start < node.until:
                book.given.add(node.start, node.until, count_of(node.units, class_))
        return book

    def _short(self, parent: _Node, node: _Node) -> Surplus | None:
        """BY_DELEGATION: what stands in the way of a child that is not honoured."""
        for book, weight in _books_above(node):
            if book.given is None:  # all that was seen is given, this child included
                short = self._shortage(parent, book, book.seen, node, 0, weight)
            else:
                short = self._shortage(parent, book, book.given, node, weight, 0)
            if short is not None:
                return short
        return None

    def _shortage(
        self, owner: _Node, book: _Book, table: Profile, node: _Node, more: int, counted: int
    ) -> Surplus | None:
        """Where ``owner`` has not ``more`` units left for ``node``, of which ``counted`` are in the table already.

        From the horizon on: what was before is over, and forgotten here and there.
        """
        at = table.first_at_least(max(node.start, self._horizon), book.capacity - more + 1)
        if at >= node.until:
            return None
        return Surplus(owner.claim, at, book.capacity - table.value(at) + counted, book.capacity)

    def _settle(self, node: _Node, honoured: bool) -> None:
        """Judge a node that is not honoured so far; BY_DELEGATION, what is honoured is given."""
        if honoured:
            self._honour(node)
        if self._by_use or node.start >= node.until:
            return
        for book, weight in _books_above(node):
            if honoured and book.given is not None:
                book.given.add(node.start, node.until, weight)
            elif not honoured and book.given is None:
                book.own_given().add(node.start, node.until, -weight)

    def _honour(self, node: _Node) -> None:
        self._refused -= not node.honoured
        node.honoured = True

    def _use_of(self, path: Sequence[_Node]) -> Surplus | None:
        """What stands in the way of using the last claim; it is used if nothing does."""
        leaf = path[-1]
        for node in self._payers(leaf):  # the nearest that is short is named
            for book, units in _books_of(node, leaf.units):
                table = book.given if book.given is not None else book.seen
                if surplus := self._shortage(node, book, table, leaf, units, 0):
                    return surplus
        self._count_use(leaf, 1)
        return None

    def _count_use(self, leaf: _Node, sign: int) -> None:
        leaf.used = sign > 0
        for node in self._payers(leaf):
            if leaf.used and self._by_use:
                self._honour(node)
            for book, units in _books_of(node, leaf.units):
                if leaf.start < leaf.until:
                    book.own_given().add(leaf.start, leaf.until, sign * units)
                    book.changed(self._horizon)

    def _count_own(self, leaf: _Node, start: Instant, end: Instant, sign: int) -> None:
        """A claim that is used counts for longer, or for less long."""
        for node in self._payers(leaf) if leaf.used else ():
            for book, units in _books_of(node, leaf.units):
                book.own_given().add(start, end, sign * units)

    def _payers(self, leaf: _Node) -> Iterator[_Node]:
        """The claims out of whose units the use of one is taken: its own; BY_USE, all above it too."""
        node: _Node | None = leaf
        while node is not None:
            yield node
            node = node.parent if self._by_use else None

    def _end(self, node: _Node, at: Instant) -> None:
        at = max(at, node.start)
        if at >= node.until:
            return
        for book, weight in _books_above(node):
            book.count(at, node.until, -weight, given=self._counts(node))
            if at <= book.proved_at and any(one is node for one in book.proof):
                book.proof = ()
            book.changed(self._horizon)
        self._count_own(node, at, node.until, -1)
        node.until = at

    def _detect(self, parent: _Node, node: _Node) -> Iterator[Overdelegation]:
        """The guilt that a new child of ``parent`` shows: none while a proof of it is at hand or can't be paid for."""
        for book, _ in _books_above(node):
            at = book.seen.first_at_least(max(node.start, self._horizon), book.capacity + 1)
            if at >= node.until or (book.proof and book.proved_at >= self._horizon) or not book.may_sweep():
                continue
            first = book.seen.first_at_least(self._horizon, book.capacity + 1)
            later = book.seen.first_at_least(node.until, book.capacity + 1)
            smallest = _smallest_set(book, first, node.until if later == FOREVER else FOREVER)
            assert smallest is not None, "the calendar says that they exceed"
            book.credit = 0
            book.proved_at, book.proof = smallest
            yield _finding(parent, book, *smallest)

    def _kept(self, fresh: list[_Node], spare: bool) -> list[_Node]:
        """Note when new nodes end; to ``spare`` memory, those that are not honoured are dropped if there are many."""
        while spare and fresh and not fresh[-1].honoured and self._refused > self._refused_max:
            node = fresh.pop()
            del self._nodes[node.digest], self._bodies[node.body]
            self._refused -= 1
            for book, weight in _books_above(node):
                book.count(node.start, node.until, -weight, given=False)
                if book.children and book.children[-1] is node:
                    book.children.pop()
        for node in fresh:
            heapq.heappush(self._ends, (node.end, node.digest))
        return fresh


def _site_of(node: _Node) -> bytes:
    while node.parent is not None:
        node = node.parent
    return node.claim.issuer


def _books_of(owner: _Node, of: Counts) -> list[tuple[_Book, int]]:
    """The books that a claim keeps of the classes of some units, and how many these are of each."""
    books = owner.books
    return [(books[class_], units) for class_, units in of if class_ in books]


def _books_above(node: _Node) -> list[tuple[_Book, int]]:
    """The books in which a claim counts, and with how many units."""
    return _books_of(node.parent, node.weights) if node.parent is not None else []


def _finding(parent: _Node, book: _Book, instant: Instant, proof: tuple[_Node, ...]) -> Overdelegation:
    claim = parent.claim
    units = sum(count_of(node.weights, book.unit_class) for node in proof)
    return Overdelegation(claim.holder, claim, tuple([node.claim for node in proof]), instant, units, book.capacity)


def _smallest_set(book: _Book, begin: Instant, end: Instant) -> tuple[Instant, tuple[_Node, ...]] | None:
    """The fewest children that exceed what is in a book at one instant of ``[begin, end)``, and the instant.

    A sweep over their starts (only there does a sum grow) that keeps the largest ones of those that hold then, at most
    as many as might still beat the best set: O(log n) for each start and end. Of equally small sets the earliest, in
    it the largest children, of equally large ones those that started first.
    """
    held = [node for node in book.children if node.start < node.until and node.start < end and node.until > begin]
    held.sort(key=lambda node: (node.start, node.digest))
    weights, capacity = [count_of(node.weights, book.unit_class) for node in held], book.capacity
    top: SortedList[tuple[int, int]] = SortedList()  # (-weight, index): the largest, together not above the capacity
    rest: SortedList[tuple[int, int]] = SortedList()
    ends: list[tuple[Instant, int]] = []
    room, total = len(held) + 1, 0
    best: tuple[Instant, tuple[_Node, ...]] | None = None
    for index, node in enumerate(held):
        now = max(node.start, begin)
        while ends and ends[0][0] <= now:
            gone = heapq.heappop(ends)[1]
            entry = (-weights[gone], gone)
            if entry not in top:
                rest.remove(entry)
                continue
            top.remove(entry)
            total += entry[0]
            if rest:
                moved = rest.pop(0)
                top.add(moved)
                total -= moved[0]
        heapq.heappush(ends, (node.until, index))
        top.add((-weights[index], index))
        total += weights[index]
        while len(top) > room or total > capacity:
            if len(top) <= room:
                while total + top[-1][0] > capacity:
                    total += top[-1][0]
                    rest.add(top.pop())
                best = now, tuple([held[i] for _, i in top])
                room = len(top) - 1
            total += top[-1][0]
            rest.add(top.pop())
    return best
