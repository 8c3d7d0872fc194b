"""Claims and tickets: a ticket is a chain of claims, each signed once and carried as it was signed (SHARP; paper
section 2.2); and how a ticket is verified.

A claim's body is a msgpack array in its shortest encoding, so that one claim has one encoding: a body that does
not come out the same when it is encoded again is refused. Its digest (SHA-256 of body and signature) names it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from functools import lru_cache
from hashlib import sha256
from itertools import pairwise
from typing import Any, Final, NamedTuple

import attrs
import msgpack

from leasekit.core.claims.signed import DIGEST_BYTES, KEY_BYTES, SIGNATURE_BYTES, Scheme, Signer, fingerprint, pack
from leasekit.core.errors import TicketError
from leasekit.core.properties import (
    CLASSES_MAX,
    EMPTY,
    LARGEST,
    RESOURCES_MAX,
    Counts,
    Properties,
    Sizes,
    check_plain,
    check_properties,
    count_of,
    is_plain,
    is_within,
    total,
    weigh,
)
from leasekit.core.reasons import Code, mark
from leasekit.core.requests import NOTICE
from leasekit.core.time import INSTANT_MAX, Duration, Instant, Term, make_term

TAG: Final = "claim1"
BODY_MAX: Final = 8192
SHORT: Final = 1024
"""Up to how many bytes a claim's body is short: those of a few classes are."""
TYPE_MAX: Final = 128
UNITS_MAX: Final = 2**31 - 1
DEGREE_ONE: Final = 1000
"""Oversubscription degree in thousandths: 1000 means that children may add up to the parent and no more."""
DEGREE_MAX: Final = 100 * DEGREE_ONE


@attrs.frozen(slots=True, eq=False)
class Claim:
    """Issuer gives holder ``units`` of ``type`` over ``term``.

    ``classes`` says how many they are of each class (:mod:`leasekit.core.properties`), which add up to ``units``; where
    their type is divided (:mod:`leasekit.core.properties`), ``sizes`` says what one unit of each class takes;
    ``degree`` is what the issuer allows the holder's children to add up to, in thousandths of each class;
    ``parent`` the digest of the parent claim (empty at the root); ``serial`` the issuer's counter, which keeps equal
    claims apart; ``constraints`` what else binds the holder (``preemptible``, ``units``: named ones).
    """

    issuer: bytes
    holder: bytes
    type: str
    units: int
    classes: Counts
    sizes: Sizes
    term: Term
    serial: int
    degree: int
    parent: bytes
    constraints: Properties
    body: bytes = attrs.field(repr=False)
    signature: bytes = attrs.field(repr=False)
    digest: bytes
    weights: Counts
    """What its units take: of each class, or of each resource of a class where they have sizes."""

    @property
    def id(self) -> str:
        """The digest in hex: how logs and tables name the claim."""
        return self.digest.hex()

    @property
    def capacity(self) -> int:
        """The most units that children may hold at any instant, of all classes."""
        return sum(units * self.degree // DEGREE_ONE for _, units in self.classes)

    @property
    def capacities(self) -> Counts:
        """The most that children may hold of each of its weights at any instant: times the degree, rounded down."""
        if self.degree == DEGREE_ONE:
            return self.weights
        return tuple([(name, much * self.degree // DEGREE_ONE) for name, much in self.weights])


def issue(
    signer: Signer,
    *,
    holder: bytes,
    type: str,
    units: int | Counts,
    term: Term,
    serial: int,
    degree: int = DEGREE_ONE,
    properties: bytes = b"",
    parent: bytes = b"",
    constraints: Properties = EMPTY,
    sizes: Sizes = (),
) -> Claim:
    """A new claim, signed by ``signer``: for so many units of each class, or of the one with the digest ``properties``
    (empty: units without attributes). Raises ``TicketError`` if a field is outside its limits.
    """
    number, digests = (units, properties) if isinstance(units, int) else _in_body(units)
    fields = (
        TAG, signer.public, holder, type, number, term.start, term.end, serial, degree, digests, parent,
        tuple(sorted(constraints.items())), *((sizes,) if sizes else ()),
    )  # fmt: skip
    body = pack(fields)
    return _build(fields, body, signer.sign(body))


def _in_body(classes: Counts) -> tuple[int | tuple[int, ...], bytes | tuple[bytes, ...]]:
    """Numbers of units, and the digests of their classes, as a body has them: bare where there is one class."""
    if len(classes) == 1:
        return classes[0][1], classes[0][0]
    return tuple(units for _, units in classes), tuple(class_ for class_, _ in classes)


def decode_claim(body: bytes, signature: bytes) -> Claim:
    """The claim in ``body``. The signature is carried, not checked: that is the verifier's work.

    A pure function of bytes that recur in every ticket of a broker, so the last thousand results are kept; of long
    bodies fewer, so that nobody fills the memory with them.

    Raises ``TicketError`` (code ``malformed``) for anything but the one encoding of a claim within its limits.
    """
    return _decode_short(body, signature) if len(body) <= SHORT else _decode_long(body, signature)


def _decode(body: bytes, signature: bytes) -> Claim:
    if len(body) > BODY_MAX or len(signature) not in (0, SIGNATURE_BYTES):
        raise TicketError(Code.MALFORMED, f"claim of {len(body)} bytes with a signature of {len(signature)} bytes")
    try:
        fields = msgpack.unpackb(body, use_list=False, max_array_len=256, max_map_len=0, max_ext_len=0)
        canonical = pack(fields)
    except (ValueError, RecursionError, msgpack.exceptions.ExtraData) as error:
        raise TicketError(Code.MALFORMED, f"claim is not msgpack: {error}") from error
    if canonical != body:
        raise TicketError(Code.MALFORMED, "claim is not in its shortest encoding")
    return _build(fields, body, signature)


_decode_short = lru_cache(maxsize=1024)(_decode)  # as many hits as 4,096, in runs of 1,000 guests
_decode_long = lru_cache(maxsize=256)(_decode)


CHECKED: Final = (
    "issuer", "holder", "type", "classes", "units", "serial", "degree", "properties", "parent", "term",
)  # fmt: skip
"""The fields of a body, in the order in which they are checked: all at once, since claims are decoded all the time."""


def _build(fields: Any, body: bytes, signature: bytes) -> Claim:
    """The claim that has these fields."""
    if type(fields) is not tuple or len(fields) not in (12, 13) or fields[0] != TAG:
        raise TicketError(Code.MALFORMED, f"not a claim: expected an array of 12 or 13 fields that begins with {TAG!r}")
    _, issuer, holder, type_, units, start, end, serial, degree, properties, parent, constraints = fields[:12]
    several = type(units) is tuple
    fine = (
        type(issuer) is bytes and len(issuer) == KEY_BYTES,
        type(holder) is bytes and len(holder) == KEY_BYTES,
        type(type_) is str and 0 < len(type_) <= TYPE_MAX and is_plain(type_),
        not several or _is_several(units, properties),
        several or (type(units) is int and 0 < units <= UNITS_MAX),
        type(serial) is int and 0 <= serial < 2**63,
        type(degree) is int and DEGREE_ONE <= degree <= DEGREE_MAX,
        several or (type(properties) is bytes and len(properties) in (0, DIGEST_BYTES)),
        type(parent) is bytes and len(parent) in (0, DIGEST_BYTES),
        type(start) is int and type(end) is int,
    )
    if False in fine:
        found = issuer, holder, type_, (units, properties), units, serial, degree, properties, parent, (start, end)
        raise _outside(CHECKED[fine.index(False)], found[fine.index(False)])
    try:
        term = make_term(start, end)
    except ValueError as error:
        raise TicketError(Code.MALFORMED, f"claim: {error}") from None
    pairs = EMPTY if constraints == () else _constraints(constraints)
    digest = sha256(body + signature).digest()
    classes = tuple(zip(properties, units, strict=True)) if several else ((properties, units),)
    sizes = _sizes(fields[12], len(classes)) if len(fields) == 13 else ()
    return Claim(
        issuer, holder, type_, total(classes), classes, sizes, term, serial, degree, parent, pairs, body, signature,
        digest, weigh(classes, sizes),
    )  # fmt: skip


def _sizes(found: Any, classes: int) -> Sizes:
    """Vectors as a body has them: one for each class, resources in order, none of them twice, none of them 0."""
    fine = (
        type(found) is tuple
        and len(found) == classes
        and all(
            type(size) is tuple
            and 0 < len(size) <= RESOURCES_MAX
            and all(type(one) is tuple and len(one) == 2 for one in size)
            and all(type(name) is str and 0 < len(name) <= TYPE_MAX and is_plain(name) for name, _ in size)
            and all(before[0] < after[0] for before, after in pairwise(size))
            and all(type(much) is int and 0 < much <= LARGEST for _, much in size)
            for size in found
        )
    )
    if not fine:
        text = f"claim: the thirteenth field (sizes) is {found!r:.80}, allowed is what a unit of each class takes"
        raise TicketError(Code.MALFORMED, f"{text} (classes here: {classes}); it is left out where units have no sizes")
    return tuple(found)


def _is_several(units: tuple[Any, ...], digests: Any) -> bool:
    """Whether a body has as many numbers of units as classes: more than one, in order, none of them twice."""
    return (
        type(digests) is tuple
        and 1 < len(digests) <= CLASSES_MAX
        and len(units) == len(digests)
        and all(type(one) is bytes and len(one) in (0, DIGEST_BYTES) for one in digests)
        and all(before < after for before, after in pairwise(digests))
        and all(type(number) is int and number > 0 for number in units)
        and sum(units) <= UNITS_MAX
    )


def _constraints(found: Any) -> Properties:
    if type(found) is not tuple:
        raise _outside("constraints", found)
    try:
        pairs = check_properties(dict(found), "constraints")
        check_plain(pairs, "constraints")
    except (ValueError, TypeError) as error:
        raise TicketError(Code.MALFORMED, f"claim: {error}") from error
    if found != tuple(sorted(pairs.items())):
        raise _outside("constraints", found)
    return pairs


def _outside(field: str, found: object) -> TicketError:
    return TicketError(Code.MALFORMED, f"claim: {field} is {found!r:.80}, which is outside its limits")


DEPTH_MAX: Final = 32
"""More than any setting may allow: what a decoder accepts before it looks at settings."""

READY_AT, SAVING = "ready_at", "saving"
"""Constraints of a claim: by when its units are to be up, and how long before its end they are saved, both in ms."""
REDEEM_BY = "redeem_by"
"""A constraint of a claim: until when its site takes it, in ms. A claim that nobody redeemed by then gives nothing."""
NOTICE_OF, MIN_RUN_OF, CLASS_OF, SUSPEND_OF = "notice", "min_run", "class", "suspend"
"""Constraints of a claim: how long before its end a preemptible lease hears of it (30 s if it doesn't say), and how
long it runs at least; the class of the lease (0), by which it takes the place of others; and how long before its end
for others its units are saved. All times are in ms."""
REPLACES = "replaces"
"""A constraint of a claim: the digest, in hex, of the claim of the same lease that ends where it begins."""
UNUSED_UNTIL = "unused_until"
"""A constraint of a claim that replaces one which must not be redeemed any more: when the term of that ends, in ms."""
JOINED_MAX: Final = 8
"""The most tickets of one grant: a term that begins and ends within so many periods of a delegation."""


@attrs.frozen(slots=True, eq=False)
class Ticket:
    """``chain`` runs from the root claim to the holder's own (the leaf)."""

    chain: tuple[Claim, ...]

    @property
    def leaf(self) -> Claim:
        """The holder's own claim."""
        return self.chain[-1]

    @property
    def root(self) -> Claim:
        """The site's claim; its issuer is the site's key."""
        return self.chain[0]

    def encode(self) -> bytes:
        """The ticket as it travels and is stored: bodies as they were signed."""
        return pack([(claim.body, claim.signature) for claim in self.chain])


def saving_of(claim: Claim) -> Duration:
    """How long before the end of a claim its units are saved, because the lease is suspended then; 0: it isn't."""
    return _number(claim, SAVING, 0)


def begin_of(claim: Claim) -> Instant:
    """When the term begins that was asked for: a claim may begin earlier, for its units to be prepared."""
    return _number(claim, READY_AT, claim.term.start)


class EarlyTerms(NamedTuple):
    """What a claim says of its lease's end for others: its class, the notice that it has, how long it runs at least,
    and how long it takes to save its units, if it is to be suspended then (0: it isn't), in ms.
    """

    priority: int = 0
    notice: Duration = NOTICE
    min_run: Duration = 0
    suspend: Duration = 0

    def constraints(self) -> Properties:
        """What of that a claim must say."""
        pairs = zip((CLASS_OF, NOTICE_OF, MIN_RUN_OF, SUSPEND_OF), self, TOLD_NOTHING, strict=True)
        return {name: str(found) for name, found, otherwise in pairs if found != otherwise}


TOLD_NOTHING: Final = EarlyTerms()
"""What a claim says that has none of these constraints."""


def early_terms(constraints: Properties) -> EarlyTerms:
    """What a claim with these constraints says of its lease's early end."""
    sign = -1 if constraints.get(CLASS_OF, "").startswith("-") else 1
    class_ = sign * _whole(constraints.get(CLASS_OF, "").removeprefix("-"), 0)
    spans = (
        _whole(constraints.get(name, ""), other)
        for name, other in ((NOTICE_OF, NOTICE), (MIN_RUN_OF, 0), (SUSPEND_OF, 0))
    )
    return EarlyTerms(class_, *spans)


def redeem_by(claim: Claim) -> Instant:
    """Until when a claim can be redeemed."""
    return _number(claim, REDEEM_BY, claim.term.end)


def replaced_by(claim: Claim, others: Iterable[Claim]) -> bool:
    """Whether one of ``others`` says that it replaces ``claim``, and is the same holder's."""
    return any(other.constraints.get(REPLACES) == claim.id and other.holder == claim.holder for other in others)


def _number(claim: Claim, name: str, otherwise: int) -> int:
    return _whole(claim.constraints.get(name, ""), otherwise)


def _whole(text: str, otherwise: int) -> int:
    return min(int(text), INSTANT_MAX) if text.isdecimal() and text.isascii() and len(text) < 20 else otherwise


@lru_cache(maxsize=64)
def decode_ticket(data: bytes) -> Ticket:
    """The ticket in ``data``, at which an actor looks several times in a row; signatures are not checked. Raises
    ``TicketError`` (code ``malformed``).
    """
    try:
        links = msgpack.unpackb(
            data, use_list=False, max_array_len=DEPTH_MAX, max_bin_len=BODY_MAX, max_map_len=0, max_ext_len=0,
            max_str_len=0
        )  # fmt: skip
    except msgpack.exceptions.ExtraData as error:
        raise TicketError(Code.MALFORMED, "ticket is not msgpack: it goes on after its end") from error
    except (ValueError, RecursionError) as error:
        raise TicketError(Code.MALFORMED, f"ticket is not msgpack: {error}") from error
    if type(links) is not tuple or not links:
        raise _no_ticket()
    chain = []
    for link in links:
        if type(link) is not tuple or len(link) != 2 or type(link[0]) is not bytes or type(link[1]) is not bytes:
            raise _no_ticket()
        chain.append(decode_claim(link[0], link[1]))
    return Ticket(tuple(chain))


def join_tickets(tickets: Sequence[bytes]) -> bytes:
    """Encoded tickets that go on from each other, as they travel together; empty for none."""
    return pack(list(tickets)) if tickets else b""


def split_tickets(data: bytes) -> tuple[bytes, ...]:
    """The tickets in ``data``, still encoded, at most :data:`JOINED_MAX`. Raises ``TicketError`` (``malformed``)."""
    if not data:
        return ()
    try:
        found = msgpack.unpackb(
            data, use_list=False, max_array_len=JOINED_MAX, max_map_len=0, max_ext_len=0, max_str_len=0
        )
    except (ValueError, RecursionError, msgpack.exceptions.ExtraData) as error:
        raise TicketError(Code.MALFORMED, f"tickets are not msgpack: {error}") from error
    if type(found) is not tuple or not all(type(one) is bytes for one in found):
        raise TicketError(Code.MALFORMED, f"tickets: expected an array of at most {JOINED_MAX} tickets")
    return found


def _no_ticket() -> TicketError:
    return TicketError(Code.MALFORMED, "ticket: expected an array of pairs of claim body and signature")


def delegate(
    ticket: Ticket,
    signer: Signer,
    *,
    holder: bytes,
    units: int | Counts,
    term: Term,
    serial: int,
    degree: int = DEGREE_ONE,
    constraints: Properties = EMPTY,
    sizes: Sizes | None = None,
) -> Ticket:
    """A child of ``ticket``, signed by its holder: the same type, fewer units of its classes, a term inside. ``units``
    is a number where the ticket has one class. ``sizes`` says what one unit of each class takes (None: as much as one
    of the ticket's).

    The caller keeps the book of what else it has given from ``ticket``, in which a child counts with its capacity
    (units times ``degree``). Raises ``TicketError`` when the child could not be valid whatever the book says.
    """
    parent = ticket.leaf
    if signer.public != parent.holder:
        raise TicketError(Code.NOT_HOLDER, "only the holder of a claim can delegate it")
    if isinstance(units, int):
        ((only, _),) = parent.classes
        units = ((only, units),)
    sizes = sizes_of(parent, units) if sizes is None else sizes
    allowed, times = parent.capacities, max(degree, DEGREE_ONE)
    if not parent.term.contains(term) or any(
        much * times // DEGREE_ONE > count_of(allowed, name) for name, much in weigh(units, sizes)
    ):
        raise TicketError(
            Code.EXCEEDS_PARENT,
            f"{total(units)} units at degree {degree / DEGREE_ONE:g} over {term} do not fit in {parent.units} over "
            f"{parent.term}, of which {parent.capacity} can be given away",
        )
    child = issue(
        signer, holder=holder, type=parent.type, units=units, term=term, serial=serial, degree=degree,
        parent=parent.digest, constraints=constraints, sizes=sizes,
    )  # fmt: skip
    return Ticket((*ticket.chain, child))


def sizes_of(claim: Claim, units: Counts) -> Sizes:
    """What units of a claim's classes take, each as much as one of the claim's. Raises ``TicketError``."""
    own = dict(zip((class_ for class_, _ in claim.classes), claim.sizes, strict=True)) if claim.sizes else {}
    if own and any(class_ not in own for class_, _ in units):
        raise TicketError(Code.EXCEEDS_PARENT, "units of a class were to be given that the claim has none of")
    return tuple(own[class_] for class_, _ in units) if own else ()


def delegate_root(
    signer: Signer,
    *,
    holder: bytes,
    type: str,
    units: int | Counts,
    term: Term,
    serial: int,
    degree: int = DEGREE_ONE,
    properties: bytes = b"",
    sizes: Sizes = (),
) -> Ticket:
    """A new chain of depth 1: a site gives part of what it has to a broker (or straight to a guest)."""
    claim = issue(
        signer, holder=holder, type=type, units=units, term=term, serial=serial, degree=degree, properties=properties,
        sizes=sizes,
    )  # fmt: skip
    return Ticket((claim,))


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


def _check_sizes(parent: Claim, child: Claim) -> None:
    """One unit of a child is a part of one unit of its parent: it fits in no more than that."""
    if not child.sizes and not parent.sizes:
        return
    if bool(child.sizes) != bool(parent.sizes):
        raise TicketError(Code.PROPERTIES_CHANGED, "what one unit takes is said of the child or of the parent only")
    own = dict(zip((class_ for class_, _ in parent.classes), parent.sizes, strict=True))
    for (class_, _), size in zip(child.classes, child.sizes, strict=True):
        if class_ not in own or not is_within(size, own[class_]):
            raise TicketError(Code.EXCEEDS_UNITS, f"a unit that takes {size} was delegated from {own.get(class_)}")


def _check_link(parent: Claim, child: Claim) -> None:
    if child.parent != parent.digest:
        raise TicketError(Code.WRONG_PARENT, "a claim does not name the claim above it as its parent")
    if child.issuer != parent.holder:
        raise TicketError(Code.BROKEN_CHAIN, "a claim's issuer is not the holder of its parent")
    if child.type != parent.type:
        raise TicketError(Code.TYPE_CHANGED, f"type {child.type!r} was delegated from {parent.type!r}")
    _check_sizes(parent, child)
    allowed = parent.capacities
    for name, units in child.weights:
        most = count_of(allowed, name)
        if not most:
            raise TicketError(Code.PROPERTIES_CHANGED, "units of a class were delegated that the parent has none of")
        if units > most:
            raise TicketError(Code.EXCEEDS_UNITS, f"{units} units were delegated from {count_of(parent.weights, name)}")
        given = units * child.degree // DEGREE_ONE
        if given > most:
            raise TicketError(
                Code.EXCEEDS_DEGREE,
                f"{units} units at degree {child.degree / DEGREE_ONE:g} were delegated, {given} in all; the parent can "
                f"give away {most}",
            )
    if not parent.term.contains(child.term):
        raise TicketError(Code.EXCEEDS_TERM, f"term {tuple(child.term)} is outside the parent's {tuple(parent.term)}")
