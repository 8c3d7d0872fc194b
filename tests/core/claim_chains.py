"""Chains of claims for tests of the claim tree, which looks at no signatures: right ones and wrong ones."""

from __future__ import annotations

import itertools

from leasekit.core.claims.claim import Ticket, delegate_root, issue
from leasekit.core.claims.signed import UnsignedIdentity
from leasekit.core.properties import Counts
from leasekit.core.time import Term

SITE, BROKER, LOWER, GUEST, OTHER = (UnsignedIdentity(name) for name in ("site", "broker", "lower", "guest", "other"))
TERM = Term(0, 1000)
serials = itertools.count()


def root(units: int | Counts = 10, degree: int = 1000, holder: UnsignedIdentity = BROKER, term: Term = TERM) -> Ticket:
    """What the site gives to a broker."""
    return delegate_root(
        SITE, holder=holder.public, type="vm", units=units, term=term, serial=next(serials), degree=degree
    )


def child(
    parent: Ticket,
    signer: UnsignedIdentity,
    units: int | Counts,
    start: int = 0,
    end: int = 1000,
    holder: UnsignedIdentity = GUEST,
    degree: int = 1000,
) -> Ticket:
    """A child that its signer may or may not have been entitled to give."""
    claim = issue(
        signer, holder=holder.public, type="vm", units=units, term=Term(start, end), serial=next(serials),
        degree=degree, parent=parent.leaf.digest,
    )  # fmt: skip
    return Ticket((*parent.chain, claim))
