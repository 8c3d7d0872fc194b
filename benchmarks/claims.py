"""What tickets cost: checking, splitting, keeping account of 100,000 claims, and their size.

    python benchmarks/claims.py [--json] [--quick]

Floors are bare Ed25519 verifications and signatures of the same bodies, by calls of the library that leasekit itself
signs with (libsodium; OpenSSL's verification is shown beside it), each measured right before what it is the floor of;
ratios are medians over these pairs, since a shared machine changes its speed all the time. *Cached* is a new ticket of
a broker that was seen before, *cold* one of which nothing is known to any cache. To verify is ``TicketVerifier.check``
of a ticket; ``decode_and_verify`` begins with the bytes in a message, as an authority does. Splitting is ``delegate``:
a child, encoded and signed.

The claim tree holds 100,000 claims (1,000 brokers with 100 claims each; and one broker with all of them), each of a
few units over up to a day in a month, in both policies. ``..._growth`` is what a claim costs with 100,000 of them over
what it costs with 1,000, divided by the same ratio of log n: 1 is growth as log n, caches of the machine included.
Detecting is measured where it happens: claims beyond what their parents had, each of which makes a new finding with its
proof (``detect``), or comes from a broker that was found out before (``refuse``). ``first_proof`` is the one search for
the fewest claims among all children of the wide broker. All in processor time, since other processes come between.
"""

from __future__ import annotations

import argparse
import gc
import math
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from random import Random
from statistics import median

from _report import Result, emit, result
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from nacl.bindings import crypto_sign, crypto_sign_open, crypto_sign_seed_keypair

from leasekit.core.claims.claim import (
    Ticket,
    TicketVerifier,
    _decode_short,
    decode_claim,
    decode_ticket,
    delegate,
    delegate_root,
)
from leasekit.core.claims.signed import ED25519, Keypair, UnsignedIdentity
from leasekit.core.claims.tree import BY_DELEGATION, BY_USE, ClaimTree
from leasekit.core.time import DAY, MINUTE, Term

SITE, BROKER, LOWER, GUEST = (Keypair(bytes([number]) * 32) for number in (1, 2, 3, 4))
MONTH = Term(1_700_000_000_000, 1_700_000_000_000 + 30 * DAY)
PROPERTIES = b"p" * 32
STRETCH = 20


def timed(call: Callable[[], object]) -> float:
    """Microseconds that a call takes."""
    began = time.perf_counter()
    call()
    return (time.perf_counter() - began) * 1e6


def chain(serial: int) -> Ticket:
    """A prefix of depth 2: a site's root, and a broker's share of it."""
    root = delegate_root(
        SITE, holder=BROKER.public, type="vm.small", units=1000, term=MONTH, serial=serial, properties=PROPERTIES
    )
    return delegate(root, BROKER, holder=LOWER.public, units=500, term=MONTH, serial=serial)


def leaf(prefix: Ticket, serial: int) -> Ticket:
    """A guest's ticket of depth 3."""
    return delegate(
        prefix, LOWER, holder=GUEST.public, units=4, term=Term(MONTH.start, MONTH.start + DAY), serial=serial
    )


def check(verifier: TicketVerifier, ticket: Ticket) -> None:
    """As an authority does when a ticket is redeemed."""
    verifier.check(ticket, root=SITE.public, holder=GUEST.public, now=MONTH.start, skew=2000)


def verify_figures(rounds: int) -> Iterator[Result]:
    """A ticket of depth 3, cached and cold, against a bare verification of the same leaf right before it."""
    prefix = chain(0)
    warm = TicketVerifier(ED25519)
    check(warm, leaf(prefix, 0))
    inputs = []
    for number in range(1, rounds + 1):
        known = [leaf(prefix, serial) for serial in (number, -number % 2**31)]
        strange = [leaf(chain(serial), serial) for serial in (number, -number % 2**31)]
        data_ = [ticket.encode() for pair in zip(known, strange, strict=True) for ticket in pair]
        inputs.append((known[0].leaf.signature + known[0].leaf.body, *data_))
    _decode_short.cache_clear()
    check(warm, leaf(prefix, 0))
    bare = Paired()
    figures = {
        name: Paired()
        for name in ("decode_and_verify_cached", "decode_and_verify_cold", "verify_cached", "verify_cold")
    }
    for signed, *data in inputs:
        tickets = [decode_ticket(data[2]), decode_ticket(data[3])]
        works = [lambda d=data[0]: check(warm, decode_ticket(d)), lambda d=data[1]: check(warm, decode_ticket(d))]
        works += [lambda t=ticket: check(warm, t) for ticket in tickets]
        for work, paired in zip(works, figures.values(), strict=True):
            floor = bare.add(timed(lambda s=signed: crypto_sign_open(s, LOWER.public)), 0)  # type: ignore[misc]
            paired.add(timed(work), floor)
    public = Ed25519PublicKey.from_public_bytes(LOWER.public)
    openssl = [timed(lambda s=signed: public.verify(s[:64], s[64:])) for signed, *_ in inputs]  # type: ignore[misc]
    yield result("verify_bare_us", bare.cost, "us", None)
    yield result("verify_bare_openssl_us", median(openssl), "us", None)
    for name, paired in figures.items():
        least, target = (1, 1.3) if "cached" in name else (3, 3.3 if name == "verify_cold" else None)
        yield result(f"{name}_depth3_us", paired.cost, "us", None, least * bare.cost)
        yield result(f"{name}_depth3_ratio", paired.ratio, "x", target, least)


def split_figures(rounds: int) -> Iterator[Result]:
    """A child, split off and signed, against a bare signature of its body right before it."""
    prefix = chain(0)
    _, secret = crypto_sign_seed_keypair(bytes([3]) * 32)
    body = leaf(prefix, 0).leaf.body
    bare, over = Paired(), []
    for number in range(2 * rounds):
        floor = bare.add(timed(lambda: crypto_sign(body, secret)), 0)
        over.append(timed(lambda n=number: leaf(prefix, n)) - 1.5 * floor)  # type: ignore[misc]
    yield result("sign_bare_us", bare.cost, "us", None)
    yield result("split_and_sign_over_1.5_bare_us", median(over), "us", 20)


class Paired:
    """Samples, each with what its floor took right before it: the machine is as fast for both, mostly."""

    def __init__(self) -> None:
        self.samples: list[float] = []
        self.ratios: list[float] = []

    def add(self, took: float, floor: float) -> float:
        """Keep a sample; returns it."""
        self.samples.append(took)
        if floor:
            self.ratios.append(took / floor)
        return took

    @property
    def cost(self) -> float:
        """The median."""
        return median(self.samples)

    @property
    def ratio(self) -> float:
        """The median of the samples' ratios to their floors."""
        return median(self.ratios)


def size_figure() -> Iterator[Result]:
    """Bytes of a ticket of depth 3 as it travels, with a resource type, a properties digest and a constraint."""
    plain = leaf(chain(1), 2**31)
    marked = delegate(
        Ticket(plain.chain[:2]), LOWER, holder=GUEST.public, units=4, term=plain.leaf.term, serial=2**31,
        constraints={"preemptible": "true"},
    )  # fmt: skip
    yield result("ticket_depth3_bytes", len(marked.encode()), "B", 900)


class Forest:
    """Tickets below brokers, without signatures: the tree looks at none. ``wide``: all below one broker."""

    def __init__(self, claims: int, wide: bool) -> None:
        self.random = Random(claims)
        self.site, self.brokers = UnsignedIdentity("site"), UnsignedIdentity("broker")
        self.count = 1 if wide else claims // 100
        each = claims // self.count
        root = delegate_root(self.site, holder=self.brokers.public, type="vm", units=10 * claims, term=MONTH, serial=0)
        # As many units as keep every broker just below what it may give away.
        units = 4 + each // 8
        self.parents = [
            delegate(root, self.brokers, holder=self.brokers.public, units=units, term=MONTH, serial=number)
            for number in range(self.count)
        ]
        self.serial = 0
        self.tickets = [self.ticket(number % self.count, self.random.choice((1, 1, 2, 4))) for number in range(claims)]

    def ticket(self, parent: int, units: int, term: Term | None = None) -> Ticket:
        """A guest's ticket as it comes out of a message, every claim decoded."""
        self.serial += 1
        length = min(MINUTE + int(self.random.expovariate(8 / DAY)), DAY)
        start = self.random.randrange(MONTH.start, MONTH.end - length)
        made = delegate(
            self.parents[parent], self.brokers, holder=b"g" * 32, units=units, term=term or Term(start, start + length),
            serial=self.serial,
        )  # fmt: skip
        return Ticket(tuple(decode_claim(claim.body, claim.signature) for claim in made.chain))


def add_costs(forests: Sequence[Forest], judge: str) -> tuple[list[float], list[ClaimTree]]:
    """Microseconds of a claim in each forest's tree when it is almost full, and the trees with all claims.

    The last fifth of the smallest forest, and as many of the others, in stretches that take turns: the median
    stretch of each, in processor time.
    """
    trees = [ClaimTree(judge) for _ in forests]
    count = min(len(forest.tickets) for forest in forests) // 5
    for forest, tree in zip(forests, trees, strict=True):
        for ticket in forest.tickets[:-count]:
            tree.add(ticket)
    costs: list[list[float]] = [[] for _ in forests]
    for first in range(count, 0, -STRETCH):
        for forest, tree, samples in zip(forests, trees, costs, strict=True):
            part = forest.tickets[len(forest.tickets) - first : len(forest.tickets) - first + STRETCH]
            began = time.process_time()
            for ticket in part:
                tree.add(ticket)
            samples.append((time.process_time() - began) / len(part) * 1e6)
    return [median(samples) for samples in costs], trees


def detect_cost(forest: Forest, tree: ClaimTree) -> list[float]:
    """Microseconds of each claim that is one too many, under brokers none of whom was found out before."""
    samples = []
    for parent in range(min(forest.count, 500)):
        units = forest.parents[parent].leaf.units
        start = forest.random.randrange(MONTH.start, MONTH.end - DAY)
        term = Term(start, start + DAY // 8)
        tree.add(forest.ticket(parent, 1, term))
        ticket = forest.ticket(parent, units, term)
        began = time.process_time()
        added = tree.add(ticket)
        samples.append((time.process_time() - began) * 1e6)
        if len(added.found) != 1 and tree.prove(forest.parents[parent].leaf.digest) is None:
            raise AssertionError("one claim too many was not found")
    return samples


def refused_cost(forest: Forest, tree: ClaimTree, rounds: int) -> float:
    """Median microseconds of claims beyond what a broker has, who was found out before."""
    samples = []
    units = forest.parents[0].leaf.units
    for _ in range(rounds):
        ticket = forest.ticket(0, units, MONTH)
        began = time.process_time()
        added = tree.add(ticket)
        samples.append((time.process_time() - began) * 1e6)
        if added.surplus is None:
            raise AssertionError("a claim too many was honoured")
    return median(samples)


def tree_figures(sizes: Sequence[int], rounds: int) -> Iterator[Result]:
    """A claim's cost at both sizes, honest and guilty, in both policies."""
    small, large = sizes
    for judge in (BY_DELEGATION, BY_USE):
        for wide in (False, True):
            name = f"{judge}{'_wide' if wide else ''}"
            forests = [Forest(size, wide) for size in sizes]
            gc.collect()
            gc.freeze()
            costs, trees = add_costs(forests, judge)
            detects = [detect_cost(forest, tree) for forest, tree in zip(forests, trees, strict=True)]
            for size, cost, samples, forest, tree in zip(sizes, costs, detects, forests, trees, strict=True):
                target = 200 if size == large else None
                yield result(f"{name}_add_us_{size}", cost, "us", target)
                if wide:
                    yield result(f"{name}_first_proof_ms_{size}", samples[0] / 1000, "ms", None)
                else:
                    yield result(f"{name}_detect_us_{size}", median(samples), "us", target)
                yield result(f"{name}_refuse_us_{size}", refused_cost(forest, tree, rounds), "us", target)
            grown = math.log(large) / math.log(small)
            judged = 1 if judge == BY_DELEGATION and not wide else None
            yield result(f"{name}_add_growth", costs[1] / costs[0] / grown, "x log n", judged)
            if not wide:
                growth = median(detects[1]) / median(detects[0]) / grown
                yield result(f"{name}_detect_growth", growth, "x log n", judged)
            gc.unfreeze()


def memory_figure(claims: int) -> Iterator[Result]:
    """Bytes that a claim adds to the tree, its signed bytes included, and its calendar entries."""
    tickets = [ticket.encode() for ticket in Forest(claims, False).tickets]
    gc.collect()
    tracemalloc.start()
    tree = ClaimTree()
    before = tracemalloc.get_traced_memory()[0]
    for data in tickets:
        tree.add(decode_ticket(data))
    _decode_short.cache_clear()
    gc.collect()
    used = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    # What signatures would take: these claims have none, real ones have 64 bytes and an object's head.
    yield result("tree_bytes_per_claim", used / len(tree) + 64, "B", None)


def main() -> int:
    """Measure all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--quick", action="store_true", help="smaller sizes")
    options = parser.parse_args()
    rounds = 300 if options.quick else 2000
    gc.set_threshold(50_000, 50, 100)  # as daemons do
    sizes = (1000, 20_000) if options.quick else (1000, 100_000)
    results = [*verify_figures(rounds), *split_figures(rounds), *size_figure()]
    results += [*tree_figures(sizes, 200), *memory_figure(sizes[1] // 5)]
    ok = emit("claims", "quick" if options.quick else "full", results, options.json)
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
