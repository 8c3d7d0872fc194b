"""What is fuzzed, as functions of bytes: each returns if all is as it must be, and raises if it found a bug.

They run under pytest (corpus and Hypothesis) and under atheris (``run.py``), which guides them by coverage. The first
byte of an input chooses between bytes as they are and something that is built from them (:class:`Draw`), where plain
bytes would get no further than the first check. Signatures are cheap ones here, so that what is behind them is reached.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import msgpack
from fuzz_draw import MAC, SIGNERS, Draw, MacSigner

from leasekit.core.claims.claim import DEPTH_DEFAULT, Claim, Ticket, TicketVerifier, decode_claim, decode_ticket, pack
from leasekit.core.claims.evidence import (
    KINDS,
    OVERDELEGATION,
    Evidence,
    decode_evidence,
    encode_evidence,
    verify_evidence,
)
from leasekit.core.claims.signed import (
    CONTRACT,
    ED25519,
    ENDORSEMENT,
    RECEIPT,
    RECLAIM,
    RELINQUISHMENT,
    TRUNCATION,
    Statement,
    check_statement,
    decode_statement,
    endorsed,
    reclaim_deadline,
)
from leasekit.core.claims.tree import ClaimTree
from leasekit.core.errors import TicketError, WireError
from leasekit.core.properties import count_of
from leasekit.core.protocol.channel import Channel, Closed, Established, Event, State
from leasekit.core.protocol.codec import UnknownKind, decode_batch, decode_message, encode_batch, encode_message

LENGTH_MAX = 16 * 1024
"""The longest input, in bytes."""

SITE, GUEST = SIGNERS[0], SIGNERS[-1]
USED = TicketVerifier(MAC, cache_size=50)
"""A verifier that has seen all that came before: what it remembers must never change an answer."""


# -- frames ------------------------------------------------------------------------------------------------------------


def frames(data: bytes) -> None:
    """Bytes on a connection that is new (either side), or open; how they are cut must make no difference."""
    how, data = data[:1], data[1:]
    mode = how[0] % 4 if how else 0
    whole, pieces = _channel(mode), _channel(mode)
    if mode == 3:
        data = _enveloped(data)
    events = whole.receive_bytes(data)
    cut: list[Event] = []
    step = 1 + len(data) // 7
    for start in range(0, len(data), step):
        cut += pieces.receive_bytes(data[start : start + step])
    assert list(map(_plain, events)) == list(map(_plain, cut)), "it matters how the stream is cut"
    assert whole.bytes_to_send() == pieces.bytes_to_send()
    for event in events[:-1]:
        assert not isinstance(event, Closed)
    if events and isinstance(events[-1], Closed):
        assert whole.state is State.CLOSED
        assert whole.receive_bytes(data) == []
    else:
        assert len(whole._in) <= 4 + len(data)


def _plain(event: Event) -> Any:
    return event.error.reason if isinstance(event, Closed) else event


def _channel(mode: int) -> Channel:
    """A listening side (0), a dialling one (1), or a listening one that is open (2, 3)."""
    keys = {"site": SITE.public, "guest": GUEST.public}

    def side(name: str, signer: MacSigner, initiator: bool) -> Channel:
        return Channel(
            me=signer, name=name, scheme=MAC, nonce=signer.public, peers=keys.get, initiator=initiator, frame_max=8192
        )

    if mode == 1:
        dialler = side("guest", GUEST, True)
        dialler.bytes_to_send()
        return dialler
    listener = side("site", SITE, False)
    if mode >= 2:
        dialler = side("guest", GUEST, True)
        assert listener.receive_bytes(dialler.bytes_to_send()) == []
        dialler.receive_bytes(listener.bytes_to_send())
        (event,) = listener.receive_bytes(dialler.bytes_to_send())
        assert isinstance(event, Established)
        listener.bytes_to_send()
    return listener


def _enveloped(data: bytes) -> bytes:
    """Frames with envelopes in them, rightly signed for the most part, and one thing wrong with some."""
    draw, out = Draw(data), b""
    session = _channel(2)
    number = 0
    while draw.left and number < 20:
        number += 1
        seq = number if not draw.rarely() else draw.integer()
        sent_at = draw.integer()
        payload = draw.take(draw.below(32)) if not draw.rarely() else draw.junk()
        signature: Any = b"s" * 64
        if all(type(one) is int and 0 <= one < 2**64 for one in (seq, sent_at)) and type(payload) is bytes:
            signature = GUEST.sign(session._signed(True, seq, sent_at, payload))
        fields: list[Any] = [3, seq, sent_at, signature if not draw.rarely() else draw.junk(), payload]
        if draw.rarely():
            fields[draw.below(5)] = draw.junk()
        body = msgpack.packb(fields)
        out += len(body).to_bytes(4, "big") + body
    return out


# -- batches -----------------------------------------------------------------------------------------------------------


def batches(data: bytes) -> None:
    """A batch, and a message alone, decodes to what encodes and decodes to itself, or is refused with a reason."""
    for message in _decoded(decode_batch, data) or ():
        if not isinstance(message, UnknownKind):
            again = decode_message(encode_message(message))
            assert again == message
            assert decode_batch(encode_batch([message])) == [message]
    alone = _decoded(decode_message, data)
    if alone is not None and not isinstance(alone, UnknownKind):
        assert decode_message(encode_message(alone)) == alone


def _decoded(decode: Callable[[bytes], Any], data: bytes) -> Any:
    try:
        return decode(data)
    except WireError as error:
        assert 0 < len(str(error)) < 4096
        return None


# -- tickets -----------------------------------------------------------------------------------------------------------


def tickets(data: bytes) -> None:
    """A ticket is refused with a reason, or is what its decoder and verifier say it is by an independent reading."""
    if data[:1] < b"\x80":
        try:
            ticket = decode_ticket(data[1:])
        except TicketError as error:
            assert error.code == "malformed" and len(str(error)) < 1000
            return
        draw = Draw(b"")
    else:
        draw = Draw(data[1:])
        built = drawn_ticket(draw)
        if built is None:
            return
        ticket = built
    again = decode_ticket(ticket.encode())
    assert [claim.digest for claim in again.chain] == [claim.digest for claim in ticket.chain]
    judge(ticket, draw)


def drawn_ticket(draw: Draw) -> Ticket | None:
    """A chain that is good for the most part, with something wrong here and there; None if it is no ticket."""
    chain: list[Claim] = []
    for number in range(1 + draw.below(10)):
        above = chain[-1] if chain else None
        claim = drawn_claim(draw, above, SIGNERS[number % 7], SIGNERS[(number + 1) % 7])
        if claim is None:
            return None
        chain.append(claim)
    if len(chain) > 1 and draw.rarely():
        chain.reverse()
    return Ticket(tuple(chain))


def drawn_claim(draw: Draw, above: Claim | None, signer: MacSigner, holder: MacSigner) -> Claim | None:
    """A claim of ``signer`` that would fit below ``above``, unless something is wrong with it."""
    units = max(1, (above.capacity if above else 100) - draw.below(4))
    start, end = above.term if above else (1000, 9000)
    degree = 1000 if draw.below(8) else 1000 + 10 * draw.below(100)
    fields: list[Any] = [
        "claim1", signer.public, holder.public, "vm", units, start + draw.below(3), end - draw.below(3), draw.below(9),
        degree, b"", above.digest if above else b"", [],
    ]  # fmt: skip
    several = above is not None and len(above.classes) > 1
    if draw.below(8) == 0 or (several and draw.below(8)):
        fields[4], fields[9] = [units // 2 + 1, 1 + draw.below(2)], [b"", b"c" * 32]
    if draw.rarely():
        fields[11] = [["a", "b"]]
    if draw.rarely():
        fields[draw.below(12)] = draw.junk()
    if draw.rarely():
        fields[4 + draw.below(5)] = draw.integer()
    if draw.rarely():
        fields[1 + draw.below(2)] = draw.one_of(SIGNERS).public
    try:
        body = pack(fields)
        signature = signer.sign(body) if not draw.rarely() else draw.one_of((b"", b"s" * 64, b"s" * 63))
        return decode_claim(body, signature)
    except TicketError as error:
        assert error.code == "malformed" and len(str(error)) < 1000
        return None


def judge(ticket: Ticket, draw: Draw) -> None:
    """The verifier's answer, on one that knows nothing and one that knows much, is what the rules say."""
    leaf, chain = ticket.leaf, ticket.chain
    holder = leaf.holder if not draw.rarely() else GUEST.public
    now = 2000 if not draw.rarely() else draw.integer()
    try:
        ED25519.verify(leaf.issuer, leaf.signature, leaf.body)
    except ValueError as error:
        raise AssertionError("a key that is none is a signature that does not verify") from error
    fine = (
        len(chain) <= DEPTH_DEFAULT
        and chain[0].issuer == SITE.public
        and chain[0].parent == b""
        and leaf.holder == holder
        and leaf.term.end > now - 100
        and all(MAC.verify(claim.issuer, claim.signature, claim.body) for claim in chain)
        and all(
            child.parent == parent.digest
            and child.issuer == parent.holder
            and child.type == parent.type
            and all(
                max(units, units * child.degree // 1000) <= count_of(parent.classes, name) * parent.degree // 1000
                for name, units in child.classes
            )
            and parent.term.start <= child.term.start < child.term.end <= parent.term.end
            for parent, child in pairwise(chain)
        )
    )
    codes = []
    for verifier in (TicketVerifier(MAC), USED, USED):
        try:
            verifier.check(ticket, root=SITE.public, holder=holder, now=now, skew=100)
            codes.append("")
        except TicketError as error:
            assert error.code and str(error)
            codes.append(error.code)
    assert len(set(codes)) == 1, codes
    assert (codes[0] == "") == fine, codes
    if fine:
        added = ClaimTree().add(ticket)
        assert added.surplus is None and added.found == () and added.until == leaf.term.end


# -- statements and evidence -------------------------------------------------------------------------------------------


def statements(data: bytes) -> None:
    """A statement is refused with a reason or encodes to what it was; so for what its text says."""
    try:
        found = decode_statement(data)
    except TicketError as error:
        assert error.code == "malformed" and len(str(error)) < 1000
        return
    again = decode_statement(found.encode())
    assert (again.digest, again.body) == (found.digest, found.body)
    for read in (reclaim_deadline, endorsed):
        try:
            read(found)
        except TicketError as error:
            assert error.code == "malformed"
    try:
        check_statement(MAC, data, found.kind, signer=found.signer, subject=found.subject)
    except TicketError as error:
        assert error.code == "bad_signature"


def evidence(data: bytes) -> None:
    """Evidence, as text or built, is refused with a reason, or proves what an independent count says it does."""
    if data[:1] < b"\x80":
        try:
            found = decode_evidence(data[1:])
        except TicketError as error:
            assert error.code in ("malformed", "unknown_kind") and len(str(error)) < 1000
            return
    else:
        draw = Draw(data[1:])
        built = drawn_evidence(draw)
        if built is None:
            return
        found = built
    again = decode_evidence(encode_evidence(found, "words"))
    assert (again.kind, again.instant) == (found.kind, found.instant)
    assert [claim.digest for claim in again.claims] == [claim.digest for claim in found.claims]
    assert [statement.digest for statement in again.statements] == [one.digest for one in found.statements]
    try:
        verdict = verify_evidence(MAC, found)
    except TicketError as error:
        assert error.code and str(error)
        proven = False
    else:
        proven = True
        assert verdict.words and verdict.refutable
    if found.kind == OVERDELEGATION:
        assert proven == proves(found)
        if proven:
            assert verdict.guilty == found.claims[0].holder


def proves(found: Evidence) -> bool:
    """Whether the claims prove over-delegation, by the letter."""
    if len(found.claims) < 2 or found.statements:
        return False
    parent, *children = found.claims
    held = [claim.term.start <= found.instant < claim.term.end for claim in found.claims]
    signed = [MAC.verify(claim.issuer, claim.signature, claim.body) for claim in found.claims]
    own = [
        (child.issuer, child.parent, child.type) == (parent.holder, parent.digest, parent.type) for child in children
    ]
    once = len({claim.body for claim in found.claims}) == len(found.claims)
    exceeds = any(
        sum(count_of(child.capacities, name) for child in children) > most for name, most in parent.capacities
    )
    return all(held + signed + own) and once and exceeds


def drawn_evidence(draw: Draw) -> Evidence | None:
    """Evidence that proves something for the most part; None if its parts are malformed."""
    kind = draw.one_of(KINDS)
    root = drawn_claim(draw, None, SITE, SIGNERS[1])
    if root is None:
        return None
    claims, statements_ = [root], []
    if kind == OVERDELEGATION:
        for _ in range(draw.below(5)):
            claims.append(drawn_claim(draw, root, SIGNERS[1], draw.one_of(SIGNERS)) or root)
        return Evidence(kind, 2000 if not draw.rarely() else draw.byte() * 40, tuple(claims))
    for number in range(draw.below(3)):
        claims.append(drawn_claim(draw, claims[-1], SIGNERS[number + 1], SIGNERS[number + 2]) or root)
    leaf = claims[-1]
    first = RELINQUISHMENT if kind == KINDS[1] else RECEIPT
    holder = next(one for one in SIGNERS if kind != KINDS[1] or one.public == leaf.holder or one is GUEST)
    for kind_, signer, at in ((first, holder, 2000 + draw.byte()), (CONTRACT, SITE, 4000 + draw.byte() * 10)):
        if draw.rarely():
            kind_ = draw.one_of((CONTRACT, TRUNCATION, RECLAIM, ENDORSEMENT))
        signer = draw.one_of(SIGNERS) if draw.rarely() else signer
        end = draw.one_of(("9000", "0", "x", "99999999999999999999", "²"))
        statement = _stated(signer, kind_, leaf.digest if not draw.rarely() else b"d" * 32, at, f"lease 4 0 {end}")
        statements_.append(statement)
    return Evidence(kind, statements_[1].at, tuple(claims), tuple(statements_))


def _stated(signer: MacSigner, kind: str, subject: bytes, at: int, detail: str) -> Statement:
    body = pack(("statement1", kind, signer.public, subject, at, detail))
    return decode_statement(pack((body, signer.sign(body))))


TARGETS: dict[str, Callable[[bytes], None]] = {
    "frames": frames,
    "batches": batches,
    "tickets": tickets,
    "statements": statements,
    "evidence": evidence,
}
