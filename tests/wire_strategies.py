"""Hypothesis strategies for every message type, within the limits of the codec."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st

from leasekit.core.claims.claim import UNITS_MAX
from leasekit.core.properties import KEY_MAX
from leasekit.core.protocol import messages as wire
from leasekit.core.protocol.messages import (
    Accepted,
    Ack,
    Administer,
    Administered,
    ClaimReport,
    CloseLease,
    DryRun,
    DryRunAnswer,
    ErrorReply,
    HeldClaim,
    Holdings,
    HoldParts,
    Introduce,
    Largest,
    LargestPiece,
    LeaseUpdate,
    LetGo,
    Message,
    Offer,
    OfferAnswer,
    PartsHeld,
    Plan,
    Planned,
    PlanPart,
    Quote,
    Quoted,
    QuotedOffer,
    Reclaim,
    Redeem,
    ReleaseParts,
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
from leasekit.core.reasons import Code, Reason
from leasekit.core.time import INSTANT_MAX, Term


def texts(low: int, high: int) -> st.SearchStrategy[str]:
    """Text that UTF-8 can hold (surrogates are not characters), of ``low`` to ``high`` characters; mostly short."""
    alphabet = st.characters(exclude_categories=["Cs"])
    return st.text(alphabet, min_size=low, max_size=12) | st.text("aé€🜁", min_size=high, max_size=high)


ids = texts(1, wire.ID_MAX)
names = texts(1, wire.NAME_MAX)
names_or_none = texts(0, wire.NAME_MAX)
texts_of_people = texts(0, 200)
words = texts(1, wire.WORD_MAX)
numbers = st.integers(0, wire.NUMBER_MAX) | st.integers(0, 20)
units = st.integers(1, UNITS_MAX) | st.integers(1, 9)
instants = st.integers(0, INSTANT_MAX)
counts = st.integers(-1, 2**40)
codes = st.sampled_from([str(code) for code in Code]) | texts(1, 64)
plain_reasons = st.builds(
    Reason, codes, texts(0, 40), texts(0, 40), counts, counts, counts, counts, counts, texts_of_people
)
causes = st.builds(lambda reason, behind: reason.because(*behind), plain_reasons, st.lists(plain_reasons, max_size=3))
reasons = st.none() | causes
tickets = st.binary(max_size=60) | st.just(b"t" * wire.TICKET_MAX)
statements = st.binary(max_size=60)
digests = st.just(b"") | st.binary(min_size=32, max_size=32)
properties = st.dictionaries(texts(1, KEY_MAX), texts(0, 300), max_size=4)


@st.composite
def terms(draw: st.DrawFn) -> Term:
    """A term within range."""
    start, end = sorted(draw(st.lists(instants, min_size=2, max_size=2, unique=True)))
    return Term(start, end)


unit_states = st.builds(UnitState, names, words, properties, reasons)

classes = st.lists(properties, max_size=3).map(tuple)
held_claims = st.lists(st.builds(HeldClaim, ids, st.binary(max_size=99), words, instants), max_size=3).map(tuple)
plan_parts = st.lists(st.builds(PlanPart, ids, ids, numbers, names, ids, names, names, units), max_size=3).map(tuple)

quoted_offers = st.builds(
    QuotedOffer, ids, names, names, st.integers(0, 9), terms(), properties,
    st.lists(st.tuples(instants, st.integers(0, 9)), max_size=4, unique_by=lambda step: step[0]).map(
        lambda steps: tuple(value for step in sorted(steps) for value in step)
    ),
)  # fmt: skip

BY_CLASS: Mapping[type[Any], st.SearchStrategy[Any]] = {
    RequestTicket: st.builds(
        RequestTicket, ids, numbers, words, names, names, units, terms(), names_or_none, properties, digests
    ),
    Withdraw: st.builds(Withdraw, ids, numbers, numbers),
    ReturnTicket: st.builds(ReturnTicket, ids, numbers, statements),
    TicketUpdate: st.builds(
        TicketUpdate, ids, numbers, numbers, words, tickets, names_or_none, properties, statements, reasons,
        st.integers(-1, INSTANT_MAX), statements, tickets, classes,
    ),
    Redeem: st.builds(
        Redeem, ids, numbers, words, names, tickets, properties, properties,
        st.lists(names, max_size=4).map(tuple), statements,
    ),
    CloseLease: st.builds(CloseLease, ids, numbers, statements, st.booleans()),
    Relinquish: st.builds(Relinquish, ids, numbers, tickets, statements),
    Relinquished: st.builds(Relinquished, ids, numbers, statements, reasons),
    LeaseUpdate: st.builds(
        LeaseUpdate, ids, numbers, numbers, words, terms(), st.lists(unit_states, max_size=3).map(tuple), reasons,
        statements, statements, st.integers(-1, 9),
    ),
    Truncated: st.builds(Truncated, ids, numbers, tickets, statements, instants),
    Accepted: st.builds(Accepted, ids, numbers),
    Ack: st.builds(Ack, ids, numbers, digests),
    Offer: st.builds(Offer, ids, numbers, tickets, properties, names_or_none, texts(0, wire.ID_MAX), classes),
    OfferAnswer: st.builds(OfferAnswer, ids, numbers, reasons, instants, held_claims, instants),
    LetGo: st.builds(LetGo, ids, numbers, st.binary(max_size=200), instants),
    Holdings: st.builds(Holdings, st.lists(digests, max_size=3).map(tuple)),
    Reclaim: st.builds(Reclaim, ids, numbers, tickets, statements),
    Introduce: st.builds(Introduce, ids, numbers, statements, instants),
    ClaimReport: st.builds(ClaimReport, ids, numbers, causes),
    Administer: st.builds(Administer, words, numbers, texts_of_people),
    Administered: st.builds(Administered, words, numbers, texts_of_people, texts_of_people),
    Withhold: st.builds(Withhold, ids, numbers, ids, st.integers(0, 9), terms(), texts_of_people),
    Largest: st.builds(
        Largest, ids, numbers,
        st.lists(st.builds(LargestPiece, digests, words, instants, instants), max_size=3).map(tuple),
    ),
    DryRun: st.builds(
        DryRun, ids, numbers, names, units, terms(), names_or_none, properties, words, texts(0, wire.ID_MAX)
    ),
    DryRunAnswer: st.builds(
        DryRunAnswer, ids, numbers, words, names_or_none, st.integers(0, 9), terms(), reasons,
        st.integers(-1, INSTANT_MAX), st.lists(st.tuples(digests, units), max_size=3).map(tuple),
    ),
    Plan: st.builds(Plan, ids, numbers, words, st.binary(max_size=60)),
    Planned: st.builds(
        Planned, ids, numbers, words, ids, terms(), plan_parts, words, words, st.integers(-1, INSTANT_MAX), reasons,
        st.integers(-1, INSTANT_MAX),
    ),
    Quote: st.builds(Quote, ids, numbers, terms(), st.lists(names, max_size=4).map(tuple)),
    Quoted: st.builds(Quoted, ids, numbers, st.lists(quoted_offers, max_size=3).map(tuple)),
    HoldParts: st.builds(HoldParts, ids, numbers, digests, terms(), plan_parts, instants),
    PartsHeld: st.builds(PartsHeld, ids, numbers, reasons),
    ReleaseParts: st.builds(ReleaseParts, ids, numbers),
    ErrorReply: st.builds(ErrorReply, texts(0, wire.ID_MAX), numbers, causes),
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
