"""Good inputs to begin with: every kind of message, a ticket, statements, evidence, a handshake."""

from __future__ import annotations

from typing import Any, get_args, get_type_hints

from fuzz_draw import MAC, SIGNERS, MacSigner

from leasekit.core.claims.claim import delegate, delegate_root
from leasekit.core.claims.evidence import encode_evidence, of_overdelegation, of_returned
from leasekit.core.claims.signed import CONTRACT, RECEIPT, RELINQUISHMENT, endorse, reclaim, state
from leasekit.core.claims.tree import ClaimTree
from leasekit.core.properties import Counts, Properties
from leasekit.core.protocol.channel import Channel
from leasekit.core.protocol.codec import encode_batch
from leasekit.core.protocol.messages import HeldClaim, LargestPiece, Message, PlanPart, QuotedOffer, UnitState
from leasekit.core.reasons import Code, Reason
from leasekit.core.time import Term

SITE, BROKER, GUEST = SIGNERS[0], SIGNERS[1], SIGNERS[-1]
TERM = Term(1000, 9000)
ROOT = delegate_root(SITE, holder=BROKER.public, type="vm", units=10, term=TERM, serial=1, degree=1200)
TICKET = delegate(ROOT, BROKER, holder=GUEST.public, units=7, term=TERM, serial=2, constraints={"preemptible": "true"})
REASON = Reason(Code.ENDED_BY, who="b", at=5, causes=(Reason(Code.UNITS_OUT, units=1, of=2),))
RETURN = state(GUEST, RELINQUISHMENT, TICKET.leaf.digest, 2000, "L-1")
CONTRACTED = state(SITE, CONTRACT, TICKET.leaf.digest, 5000, "L-1 7 1000 9000")


def seeds() -> dict[str, list[bytes]]:
    """By target."""
    every = [example(kind) for kind in get_args(Message)]
    said = [
        RETURN, CONTRACTED, state(SITE, RECEIPT, TICKET.leaf.digest, 2000), reclaim(SITE, ROOT.leaf.digest, 5, 9),
        endorse(BROKER, GUEST.public, 5, name="alice", role="guest", address="tcp://127.0.0.1:7000"),
    ]  # fmt: skip
    tree, found = ClaimTree(), []
    for serial in range(2):
        twice = delegate(ROOT, BROKER, holder=GUEST.public, units=7, term=TERM, serial=serial)
        found += tree.add(twice).found
    texts = [encode_evidence(of_overdelegation(one)) for one in found]
    texts.append(encode_evidence(of_returned(TICKET, RETURN, CONTRACTED)))
    return {
        "frames": handshake(),
        "batches": [encode_batch([message]) for message in every] + [encode_batch(every)],
        "tickets": [b"\0" + ROOT.encode(), b"\0" + TICKET.encode(), b"\x80\x03" + bytes(range(250))],
        "statements": [statement.encode() for statement in said],
        "evidence": [b"\0" + text.encode() for text in texts] + [b"\x80" + bytes([kind]) * 9 for kind in range(3)],
    }


def example(kind: Any) -> Any:
    """A message of that kind, with something in every field."""
    values: dict[Any, Any] = {
        bool: True, str: "a", int: 1, bytes: TICKET.encode(), Term: TERM, Properties: {"k": "v"},
        Reason: REASON, Reason | None: REASON,
        tuple[str, ...]: ("u",), tuple[int, ...]: (1,), tuple[Properties, ...]: ({"k": "v"}, {}),
        Counts: ((b"c" * 32, 1),), tuple[bytes, ...]: (b"c" * 32,),
        tuple[UnitState, ...]: (UnitState("u", "active", {"ip": "10.0.0.1"}, None, b"c"),),
    }  # fmt: skip
    for part in (PlanPart, QuotedOffer, HeldClaim, LargestPiece):
        values[tuple[part, ...]] = (part(**{key: values[hint] for key, hint in get_type_hints(part).items()}),)
    plain = {name: values[hint] for name, hint in get_type_hints(kind).items()}
    special = {"claim": TICKET.leaf.digest}
    small = dict.fromkeys(("receipt", "truncation", "relinquishment", "contract"), RETURN.encode())
    return kind(**{name: (special | small).get(name, value) for name, value in plain.items()})


def handshake() -> list[bytes]:
    """What each side of a connection hears, and frames for one that is open."""
    keys = {"site": SITE.public, "guest": GUEST.public}

    def side(name: str, signer: MacSigner, initiator: bool) -> Channel:
        return Channel(me=signer, name=name, scheme=MAC, nonce=signer.public, peers=keys.get, initiator=initiator)

    guest, site = side("guest", GUEST, True), side("site", SITE, False)
    hello = guest.bytes_to_send()
    site.receive_bytes(hello)
    answer = site.bytes_to_send()
    guest.receive_bytes(answer)
    proof = guest.bytes_to_send()
    site.receive_bytes(proof)
    guest.send_batch(b"\x90", 5)
    guest.ping(6)
    sent = guest.bytes_to_send()
    guest.close("done", "bye")
    bye = guest.bytes_to_send()
    return [b"\0" + hello, b"\0" + hello + proof + sent, b"\1" + answer, b"\2" + sent, b"\2" + bye, b"\3" + bytes(64)]
