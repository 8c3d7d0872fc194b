"""Hypothesis strategies for every message type, within the limits of the codec."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st

from leasekit.core.claims.claim import UNITS_MAX
from leasekit.core.properties import KEY_MAX
from leasekit.core.protocol import codec
from leasekit.core.protocol.messages import (
    Accepted,
    Ack,
    Administer,
    Administered,
    ClaimReport,
    CloseLease,
    ErrorReply,
    Introduce,
    LeaseUpdate,
    Message,
    Offer,
    OfferAnswer,
    Probe,
    ProbeAnswer,
    Reclaim,
    Redeem,
    Relinquish,
    Relinquished,
    RequestTicket,
    ReturnTicket,
    TicketUpdate,
    Truncated,
    UnitState,
    Withdraw,
    Withhold,
)
from leasekit.core.time import INSTANT_MAX, Term


def texts(low: int, high: int) -> st.SearchStrategy[str]:
    """Text that UTF-8 can hold (surrogates are not characters), of ``low`` to ``high`` characters; mostly short."""
    alphabet = st.characters(exclude_categories=["Cs"])
    return st.text(alphabet, min_size=low, max_size=12) | st.text("aé€🜁", min_size=high, max_size=high)


ids = texts(1, codec.ID_MAX)
names = texts(1, codec.NAME_MAX)
names_or_none = texts(0, codec.NAME_MAX)
reasons = texts(0, 200)
words = texts(1, codec.WORD_MAX)
numbers = st.integers(0, codec.NUMBER_MAX) | st.integers(0, 20)
units = st.integers(1, UNITS_MAX) | st.integers(1, 9)
instants = st.integers(0, INSTANT_MAX)
tickets = st.binary(max_size=60) | st.just(b"t" * codec.TICKET_MAX)
statements = st.binary(max_size=60)
digests = st.just(b"") | st.binary(min_size=32, max_size=32)
properties = st.dictionaries(texts(1, KEY_MAX), texts(0, 300), max_size=4)


@st.composite
def terms(draw: st.DrawFn) -> Term:
    """A term within range."""
    start, end = sorted(draw(st.lists(instants, min_size=2, max_size=2, unique=True)))
    return Term(start, end)


unit_states = st.builds(UnitState, names, words, properties, reasons)

BY_CLASS: Mapping[type[Any], st.SearchStrategy[Any]] = {
    RequestTicket: st.builds(
        RequestTicket, ids, numbers, words, names, names, units, terms(), names_or_none, properties, digests
    ),
    Withdraw: st.builds(Withdraw, ids, numbers, numbers),
    ReturnTicket: st.builds(ReturnTicket, ids, numbers, statements),
    TicketUpdate: st.builds(
        TicketUpdate, ids, numbers, numbers, words, tickets, names_or_none, properties, statements, reasons,
        st.integers(-1, INSTANT_MAX), statements,
    ),
    Redeem: st.builds(
        Redeem, ids, numbers, words, names, tickets, properties, properties,
        st.lists(names, max_size=4).map(tuple), statements,
    ),
    CloseLease: st.builds(CloseLease, ids, numbers, statements),
    Relinquish: st.builds(Relinquish, ids, numbers, tickets, statements),
    Relinquished: st.builds(Relinquished, ids, numbers, statements, reasons),
    LeaseUpdate: st.builds(
        LeaseUpdate, ids, numbers, numbers, words, terms(), st.lists(unit_states, max_size=3).map(tuple), reasons,
        statements, statements,
    ),
    Truncated: st.builds(Truncated, ids, numbers, tickets, statements),
    Accepted: st.builds(Accepted, ids, numbers),
    Ack: st.builds(Ack, ids, numbers),
    Offer: st.builds(Offer, ids, numbers, tickets, properties, names_or_none),
    OfferAnswer: st.builds(OfferAnswer, ids, numbers, reasons, instants),
    Reclaim: st.builds(Reclaim, ids, numbers, tickets, statements),
    Introduce: st.builds(Introduce, ids, numbers, statements),
    ClaimReport: st.builds(ClaimReport, ids, numbers, words, reasons),
    Administer: st.builds(Administer, words, numbers, reasons),
    Administered: st.builds(Administered, words, numbers, reasons, reasons),
    Withhold: st.builds(Withhold, ids, numbers, ids, st.integers(0, 9), terms(), reasons),
    Probe: st.builds(Probe, ids, numbers, names, units, terms(), names_or_none, properties),
    ProbeAnswer: st.builds(
        ProbeAnswer, ids, numbers, words, names_or_none, st.integers(0, 9), terms(), reasons,
        st.integers(-1, INSTANT_MAX),
    ),
    ErrorReply: st.builds(ErrorReply, texts(0, codec.ID_MAX), numbers, words, reasons),
}  # fmt: skip
"""A strategy for each class of message."""

messages: st.SearchStrategy[Message] = st.one_of(*BY_CLASS.values())
"""Any message."""

packable: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | texts(0, 20) | st.binary(max_size=20),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(texts(0, 5), inner, max_size=3),
    max_leaves=20,
)
"""Any value that msgpack can carry."""
