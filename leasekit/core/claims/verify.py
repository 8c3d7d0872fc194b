"""What an actor checks before it believes a ticket.

Complete, root to leaf: every signature including the root's own, the issuer of each claim is the holder of its
parent, units and term inside the parent's, type and properties digest equal, root signed by the site expected,
not expired, presented by its holder. A prefix that passed is remembered by the digest of its last claim, which
covers everything above it through the parent digests; a new ticket of a known broker costs one signature check.
What the verifier does not know is history: whether a claim was returned or redeemed before, or gives away too much
together with others, is the authority's to say (:mod:`leasekit.core.claims.tree`).

Each failure has its own code:

======================  ==================================================================================
``too_deep``            more claims than the setting allows
``wrong_site``          the root is issued by another key than the site's
``not_holder``          presented by another key than the leaf's holder
``wrong_issuer``        the leaf is issued by another key than expected
``expired``             the leaf's term is over, by more than clocks may differ
``future``              the leaf's term starts too far ahead
``wrong_root``          the first claim names a parent: it is no root
``wrong_parent``        a claim does not name the one above it (by digest, so in all its words) as its parent
``broken_chain``        a claim's issuer is not the holder of its parent
``type_changed``        a claim is of another type than its parent
``properties_changed``  a claim names other resource properties than its parent
``exceeds_units``       a claim has more units than its parent can give away
``exceeds_degree``      its units fit, but not times its degree
``exceeds_term``        a claim's term is not within its parent's
``bad_signature``       a signature does not verify
======================  ==================================================================================

**Degrees.** A degree says what the holder's children may add up to. A child with a degree of its own may be
oversubscribed in turn, but only out of what its parent can give: it counts with units times degree against its parent,
here and in the claim tree. So who holds claims without oversubscription can't make any, except by giving fewer units
(8 units at 1.25 out of 10), and degrees along a chain do not multiply.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from itertools import pairwise

from leasekit.core.claims.claim import DEGREE_ONE, Claim
from leasekit.core.claims.keys import Scheme, fingerprint
from leasekit.core.claims.ticket import Ticket
from leasekit.core.errors import TicketError
from leasekit.core.reasons import Code, mark
from leasekit.core.time import Duration, Instant

DEPTH_DEFAULT = 8
CACHE_DEFAULT = 10_000


class TicketVerifier:
    """Checks tickets; remembers at most ``cache_size`` verified claims that were parents."""

    def __init__(self, scheme: Scheme, *, depth_max: int = DEPTH_DEFAULT, cache_size: int = CACHE_DEFAULT) -> None:
        self._scheme = scheme
        self._depth_max = depth_max
        self._cache_size = cache_size
        self._verified: OrderedDict[bytes, None] = OrderedDict()

    def check(
        self,
        ticket: Ticket,
        *,
        root: bytes | None,
        holder: bytes,
        now: Instant,
        skew: Duration,
        issuer: bytes | None = None,
        ahead: Duration | None = None,
    ) -> Claim:
        """The ticket's leaf, if all holds.

        ``root`` is the key that the chain must begin with (None: any site will do), ``holder`` the key of who
        presents it, ``issuer`` who must have signed the leaf (None: whoever the chain says), ``ahead`` how far in the
        future its term may start, in milliseconds (None: any time). Raises ``TicketError`` whose code names the first
        check that failed.
        """
        chain, leaf = ticket.chain, ticket.leaf
        if len(chain) > self._depth_max:
            raise TicketError(Code.TOO_DEEP, f"chain of {len(chain)} claims, at most {self._depth_max} are accepted")
        if root is not None and ticket.root.issuer != root:
            raise TicketError(
                Code.WRONG_SITE, f"root claim is issued by {fingerprint(ticket.root.issuer)}, not by this site"
            )
        if leaf.holder != holder:
            raise TicketError(
                Code.NOT_HOLDER, f"claim is held by {fingerprint(leaf.holder)}, presented by {fingerprint(holder)}"
            )
        if issuer is not None and leaf.issuer != issuer:
            raise TicketError(
                Code.WRONG_ISSUER, f"claim is issued by {fingerprint(leaf.issuer)}, not {fingerprint(issuer)}"
            )
        if leaf.term.end <= now - skew:
            raise TicketError(
                Code.EXPIRED, f"claim ended at {mark(leaf.term.end)}, it is {mark(now)} here", at=leaf.term.end, now=now
            )
        if ahead is not None and leaf.term.start > now + ahead:
            raise TicketError(
                Code.FUTURE, f"claim starts at {mark(leaf.term.start)}, more than {ahead} ms after {mark(now)}"
            )
        check_chain(chain)
        self._check_signatures(chain)
        return leaf

    def _check_signatures(self, chain: tuple[Claim, ...]) -> None:
        known = 0
        for index in range(len(chain) - 1, -1, -1):
            if chain[index].digest in self._verified:
                self._verified.move_to_end(chain[index].digest)
                known = index + 1
                break
        for claim in chain[known:]:
            if not self._scheme.verify(claim.issuer, claim.signature, claim.body):
                raise TicketError(
                    Code.BAD_SIGNATURE, f"signature of {fingerprint(claim.issuer)} on a claim does not verify"
                )
        for claim in chain[known:-1] or (chain if len(chain) == 1 else ()):
            self._remember(claim.digest)

    def _remember(self, digest: bytes) -> None:
        self._verified[digest] = None
        if len(self._verified) > self._cache_size:
            self._verified.popitem(last=False)


def check_chain(chain: Sequence[Claim]) -> None:
    """Whether claims hang together from a root down, whoever holds the last one; signatures are not looked at.

    Raises ``TicketError``: see the module for the codes, from ``wrong_root`` to ``exceeds_term``.
    """
    if chain[0].parent:
        raise TicketError(Code.WRONG_ROOT, "root claim names a parent")
    for parent, child in pairwise(chain):
        _check_link(parent, child)


def _check_link(parent: Claim, child: Claim) -> None:
    if child.parent != parent.digest:
        raise TicketError(Code.WRONG_PARENT, "a claim does not name the claim above it as its parent")
    if child.issuer != parent.holder:
        raise TicketError(Code.BROKEN_CHAIN, "a claim's issuer is not the holder of its parent")
    if child.type != parent.type:
        raise TicketError(Code.TYPE_CHANGED, f"type {child.type!r} was delegated from {parent.type!r}")
    if child.properties != parent.properties:
        raise TicketError(Code.PROPERTIES_CHANGED, "the digest of the resource properties differs from the parent's")
    allowed = parent.capacity
    if child.units > allowed:
        raise TicketError(Code.EXCEEDS_UNITS, f"{child.units} units were delegated from {parent.units}")
    if child.degree != DEGREE_ONE and child.capacity > allowed:
        raise TicketError(
            Code.EXCEEDS_DEGREE,
            f"{child.units} units at degree {child.degree / DEGREE_ONE:g} were delegated, {child.capacity} in all; the "
            f"parent can give away {allowed}",
        )
    if not parent.term.contains(child.term):
        raise TicketError(Code.EXCEEDS_TERM, f"term {tuple(child.term)} is outside the parent's {tuple(parent.term)}")
