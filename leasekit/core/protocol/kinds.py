"""The kinds of messages: their numbers on the wire, and what each of their fields may hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from leasekit.core.protocol.fields import (
    COUNT_OR_UNKNOWN,
    DIGEST,
    FLAG,
    HELD_CLAIMS,
    ID,
    ID_OR_NONE,
    INSTANT,
    INSTANT_OR_UNKNOWN,
    NAME,
    NAME_OR_NONE,
    NUMBER,
    OFFERS,
    PARTS,
    PROPERTIES,
    REQUEST,
    STATEMENT,
    TERM,
    TEXT,
    TICKET,
    TYPES,
    UNIT_STATES,
    UNITS,
    UNITS_OR_NONE,
    VICTIMS,
    WORD,
    WORD_OR_NONE,
    Rule,
    Shape,
)
from leasekit.core.protocol.messages import (
    Accepted,
    Ack,
    Administer,
    Administered,
    ClaimReport,
    CloseLease,
    ErrorReply,
    Held,
    Hold,
    Introduce,
    LeaseUpdate,
    LetGo,
    Offer,
    OfferAnswer,
    Plan,
    Planned,
    Probe,
    ProbeAnswer,
    Quote,
    Quoted,
    Reclaim,
    Redeem,
    Release,
    Relinquish,
    Relinquished,
    RequestTicket,
    ReturnTicket,
    TicketUpdate,
    Truncated,
    Withdraw,
    Withhold,
)

KINDS: Final[Mapping[int, tuple[type[Any], Mapping[str, Rule]]]] = {
    1: (RequestTicket, {
        "lease": ID, "number": NUMBER, "op": WORD, "slice": NAME, "type": NAME, "units": UNITS, "term": TERM,
        "site": NAME_OR_NONE, "properties": PROPERTIES, "claim": DIGEST,
    }),
    2: (Withdraw, {"lease": ID, "number": NUMBER, "request": NUMBER}),
    3: (ReturnTicket, {"lease": ID, "number": NUMBER, "receipt": STATEMENT}),
    4: (TicketUpdate, {
        "lease": ID, "update": NUMBER, "number": NUMBER, "status": WORD, "ticket": TICKET, "site": NAME_OR_NONE,
        "properties": PROPERTIES, "truncation": STATEMENT, "reason": TEXT, "earliest": INSTANT_OR_UNKNOWN,
        "endorsement": STATEMENT, "further": TICKET,
    }),
    5: (Redeem, {
        "lease": ID, "number": NUMBER, "op": WORD, "slice": NAME, "ticket": TICKET, "resource": PROPERTIES,
        "properties": PROPERTIES, "victims": VICTIMS, "truncation": STATEMENT,
    }),
    6: (CloseLease, {"lease": ID, "number": NUMBER, "relinquishment": STATEMENT, "save": FLAG}),
    7: (Relinquish, {"lease": ID, "number": NUMBER, "ticket": TICKET, "relinquishment": STATEMENT}),
    8: (Relinquished, {"lease": ID, "number": NUMBER, "receipt": STATEMENT, "reason": TEXT}),
    9: (LeaseUpdate, {
        "lease": ID, "update": NUMBER, "number": NUMBER, "state": WORD, "term": TERM, "units": UNIT_STATES,
        "reason": TEXT, "contract": STATEMENT, "receipt": STATEMENT, "saved": COUNT_OR_UNKNOWN,
    }),
    10: (Truncated, {
        "lease": ID, "number": NUMBER, "ticket": TICKET, "truncation": STATEMENT, "saving": INSTANT,
    }),
    11: (Accepted, {"lease": ID, "number": NUMBER, "receipt": STATEMENT}),
    12: (Ack, {"lease": ID, "update": NUMBER, "signed": DIGEST}),
    13: (Offer, {
        "delegation": ID, "number": NUMBER, "ticket": TICKET, "properties": PROPERTIES, "site": NAME_OR_NONE,
        "line": ID_OR_NONE,
    }),
    14: (OfferAnswer, {
        "delegation": ID, "number": NUMBER, "reason": TEXT, "until": INSTANT, "held": HELD_CLAIMS, "beyond": INSTANT,
    }),
    15: (ErrorReply, {"lease": ID_OR_NONE, "number": NUMBER, "code": WORD, "text": TEXT}),
    16: (Reclaim, {"delegation": ID, "number": NUMBER, "ticket": TICKET, "statement": STATEMENT}),
    17: (Introduce, {"peer": ID, "number": NUMBER, "endorsement": STATEMENT, "until": INSTANT}),
    18: (ClaimReport, {"claim": ID, "number": NUMBER, "code": WORD, "reason": TEXT, "receipt": STATEMENT}),
    19: (Administer, {"command": WORD, "number": NUMBER, "arguments": TEXT}),
    20: (Administered, {"command": WORD, "number": NUMBER, "result": TEXT, "error": TEXT}),
    21: (Withhold, {
        "delegation": ID, "number": NUMBER, "window": ID, "units": UNITS_OR_NONE, "term": TERM, "reason": TEXT,
    }),
    22: (Probe, {
        "lease": ID, "number": NUMBER, "type": NAME, "units": UNITS, "term": TERM, "site": NAME_OR_NONE,
        "properties": PROPERTIES, "op": WORD, "of": ID_OR_NONE,
    }),
    23: (ProbeAnswer, {
        "lease": ID, "number": NUMBER, "status": WORD, "site": NAME_OR_NONE, "units": UNITS_OR_NONE, "term": TERM,
        "reason": TEXT, "earliest": INSTANT_OR_UNKNOWN,
    }),
    24: (Plan, {"query": ID, "number": NUMBER, "op": WORD, "topology": REQUEST}),
    25: (Planned, {
        "query": ID, "number": NUMBER, "status": WORD, "plan": ID_OR_NONE, "term": TERM, "parts": PARTS,
        "objective": WORD_OR_NONE, "gap": WORD_OR_NONE, "expires": INSTANT_OR_UNKNOWN, "reason": TEXT,
        "earliest": INSTANT_OR_UNKNOWN,
    }),
    26: (Quote, {"query": ID, "number": NUMBER, "term": TERM, "types": TYPES}),
    27: (Quoted, {"query": ID, "number": NUMBER, "offers": OFFERS}),
    28: (Hold, {
        "plan": ID, "number": NUMBER, "holder": DIGEST, "term": TERM, "parts": PARTS, "expires": INSTANT,
    }),
    29: (Held, {"plan": ID, "number": NUMBER, "reason": TEXT}),
    30: (Release, {"plan": ID, "number": NUMBER}),
    31: (LetGo, {"delegation": ID, "number": NUMBER, "ticket": TICKET, "until": INSTANT}),
}  # fmt: skip
"""Every kind of message: its number, its class, and what each field may hold. Append only: no number is used twice."""
SHAPES: Final[Mapping[int, Shape]] = {kind: Shape(cls, fields, kind) for kind, (cls, fields) in KINDS.items()}
"""How messages of each kind are read."""
