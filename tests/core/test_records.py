"""Records and their rows: what is written comes back."""

from __future__ import annotations

from typing import Any

import attrs
import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from wire_strategies import (
    BY_CLASS,
    causes,
    digests,
    instants,
    names,
    numbers,
    properties,
    reasons,
    statements,
    terms,
    texts,
    texts_of_people,
    units,
)

from leasekit.core.leases import records
from leasekit.core.leases.machine import NONE
from leasekit.core.leases.records import (
    AcceptedChange,
    After,
    Ask,
    Asked,
    BrokerLease,
    ChangeAsked,
    Delegation,
    DelegationOverride,
    EarlyEnd,
    Ending,
    EndTerms,
    Given,
    Granted,
    GuestLease,
    GuestUnit,
    Heard,
    Held,
    HeldTickets,
    HostKind,
    Incident,
    KeptRecord,
    MadeRoom,
    Notice,
    Operation,
    Origin,
    PeerRecord,
    Report,
    Resumed,
    Return,
    SiteClaim,
    SiteLease,
    SiteUnit,
    Slice,
    TakenBack,
    UnitChange,
    Update,
    WaitsForMapper,
    Window,
    Withheld,
    layout_of,
)
from leasekit.core.properties import LARGEST, counts
from leasekit.core.protocol.messages import LeaseUpdate, TicketUpdate
from leasekit.core.schema import TABLES, StoreError

TRANSIENT = {"timer", "send_at", "tries", "index"}
"""What need not survive a crash, in any record."""
DERIVED = {
    GuestLease: {"units", "waits"},  # rows of their own; what is sent again at once
    GuestUnit: {"pending"},
    BrokerLease: {"defer_reason"},  # the mapper says it again
    SiteLease: {"waiting"},  # counted from the units
    SiteUnit: {"pending"},  # a unit has none
    Delegation: {"pending"},
    Return: {"pending", "reason"},
}

maybe = st.booleans()
endings = st.integers(-1, 2**53 - 1)
held = st.builds(
    Held,
    st.binary(max_size=40),
    st.binary(min_size=32, max_size=32),
    units,
    terms(),
    numbers,
    st.lists(names).map(tuple),
    maybe,
)  # fmt: skip
asked = st.builds(Asked, st.sampled_from(("new", "extend", "modify")), units, terms(), names, properties)
withheld = st.builds(Withheld, names, units, terms(), texts_of_people, numbers, st.lists(units, max_size=3).map(tuple))
vectors = st.lists(st.tuples(names, st.integers(1, LARGEST)), max_size=2).map(tuple)
sizes = st.lists(vectors, max_size=2).map(tuple)
places = st.lists(names, max_size=2).map(tuple)
by_class = st.dictionaries(digests, units, max_size=3).map(counts)
granted = st.builds(
    Granted, st.binary(min_size=32, max_size=32), names, names, units, terms(), instants, maybe, numbers, maybe,
    numbers, numbers, classes=by_class, redeem_by=instants, sizes=sizes, needs=vectors, early=properties,
    unused_until=endings,
)  # fmt: skip
later = st.builds(
    AcceptedChange,
    st.sampled_from(("extend", "modify")),
    numbers,
    digests,
    units,
    terms(),
    st.lists(names).map(tuple),
    properties,
    by_class,
    sizes,
    places,
)


def updates(kind: type[Any]) -> st.SearchStrategy[list[Update]]:
    """Updates that are due, each under the number of its message."""
    return st.lists(BY_CLASS[kind].map(lambda message: Update(message.update, message)), max_size=3)


RECORDS: dict[type[Any], st.SearchStrategy[Any]] = {
    GuestUnit: st.builds(GuestUnit, names, names, names, names, names, st.just(NONE), numbers, properties, reasons),
    GuestLease: st.builds(
        GuestLease, names, names, names, names, names, asked, names, names, names, names, reasons, numbers,
        st.builds(Ask, numbers, instants, maybe), st.builds(Operation, names, numbers, properties, instants, maybe),
        st.builds(Heard, numbers, numbers, texts_of_people),
        st.builds(HeldTickets, st.none() | held, st.lists(held, max_size=2).map(tuple), properties, digests),
        st.builds(ChangeAsked, st.none() | held, statements, st.none() | properties, st.lists(names).map(tuple)),
        st.none() | st.builds(Given, terms(), statements), properties,
        st.builds(
            Origin, st.builds(After, names, names, maybe), st.none() | asked,
            st.none() | st.builds(Resumed, names, instants), numbers, digests,
        ),
        st.builds(Ending, maybe, reasons, endings, maybe), endings,
    ),
    Slice: st.builds(Slice, names, st.integers(0, 9), maybe, reasons, maybe, texts_of_people),
    Return: st.builds(Return, names, names, names, names, held, numbers, instants, names, receipt=statements),
    BrokerLease: st.builds(
        BrokerLease, names, names, names, names, names, names, asked, numbers,
        st.builds(WaitsForMapper, numbers, instants, instants), reasons, st.lists(granted, max_size=3).map(tuple),
        numbers, updates(TicketUpdate), names, endings, statements, endings,
        st.builds(EndTerms, endings, numbers, numbers, numbers, names, numbers, numbers),
        st.builds(EarlyEnd, endings, maybe, names),
        st.builds(MadeRoom, st.none() | granted, st.lists(names, max_size=2).map(tuple), endings),
    ),
    SiteUnit: st.builds(
        SiteUnit, names, names, names, st.just(NONE), names, names, numbers, properties, reasons, numbers, reasons,
        classes=st.lists(digests, max_size=2).map(tuple), given_as=digests, host=names, size=vectors, needs=vectors,
        cap=endings, leaves=names,
    ),
    SiteLease: st.builds(
        SiteLease, names, names, names, names, names, names, digests, terms(), units, numbers, properties, properties,
        reasons, st.lists(names, max_size=4), numbers, st.none() | later, numbers, updates(LeaseUpdate), statements,
        endings, digests, maybe, digests, endings, reasons, digests, maybe, numbers, after=st.none() | later,
        classes=by_class, sizes=sizes, needs=vectors, places=places,
    ),
    SiteClaim: st.builds(
        SiteClaim, names, names, names, names, names, names, units, terms(), names, instants, statements, statements,
        maybe,
    ),
    Delegation: st.builds(
        Delegation, names, names, names, units, terms(), statements, properties, numbers, texts(1, 20),
        st.binary(min_size=32, max_size=32), names, reasons, maybe, names,
        st.builds(TakenBack, endings, endings, statements), st.lists(withheld, max_size=3).map(tuple), endings,
        names, endings, endings,
    ),
    Notice: st.builds(Notice, names, names, names, numbers, instants, statements, names),
    PeerRecord: st.builds(
        PeerRecord, names, names, st.binary(min_size=32, max_size=32), names, names, st.lists(names).map(tuple), units,
        numbers, maybe, st.lists(st.tuples(digests, instants), max_size=2).map(tuple), instants,
    ),
    Window: st.builds(Window, names, instants, instants, st.lists(names).map(tuple), texts_of_people, maybe, maybe),
    HostKind: st.builds(HostKind, names, names, properties),
    UnitChange: st.builds(UnitChange, names, names, properties, maybe),
    DelegationOverride: st.builds(DelegationOverride, names, names, names, numbers, endings, names),
    Report: st.builds(Report, names, instants, names, names, causes),
    Incident: st.builds(Incident, names, instants, names, names, texts_of_people, statements, names),
}  # fmt: skip

any_record = st.one_of(*RECORDS.values())


def persistent(record: Any) -> dict[str, Any]:
    """The fields that must survive."""
    gone = TRANSIENT | DERIVED.get(type(record), set())
    return {field.name: getattr(record, field.name) for field in attrs.fields(type(record)) if field.name not in gone}


def body_of(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """The fields in a row's body."""
    fields: tuple[Any, ...] = msgpack.unpackb(row[-1], use_list=False, strict_map_key=False)
    return fields


def with_body(row: tuple[Any, ...], fields: tuple[Any, ...]) -> tuple[Any, ...]:
    """The row with other fields in its body."""
    return (*row[:-1], msgpack.packb(fields))


def test_every_record_is_tested() -> None:
    """Each class of record in the module has a strategy here."""
    made = {
        value
        for value in vars(records).values()
        if attrs.has(value) and issubclass(value, KeptRecord) and hasattr(value, "table")
    }
    assert made == set(RECORDS)


@given(record=any_record)
def test_round_trip(record: Any) -> None:
    """A record made from another one's row is equal to it in all that must survive, and has the same row."""
    row = record.row()
    again = type(record).from_row(row)
    assert persistent(again) == persistent(record)
    assert again.row() == row


@given(record=any_record)
def test_rows_fit_their_tables(record: Any) -> None:
    """A row has a value for each column of its table, of the column's type, and begins with the record's id."""
    row, columns = record.row(), TABLES[record.table].columns
    assert len(row) == len(columns)
    assert [type(value) for value in row] == list(columns.values())
    assert row[0] == record.id
    assert layout_of(type(record)).brief(record) == (*row[:-1], b"")


@given(record=any_record, data=st.data())
def test_a_row_has_what_is_written_and_nothing_else(record: Any, data: st.DataObject) -> None:
    """No default stands in for a field that is missing, and none that is too many is left out: a body of another shape
    is another version of the schema, which a migration brings up to date. Where none does the operator is told.
    """
    row = record.row()
    fields = body_of(row)
    lacking = fields[: -data.draw(st.integers(1, len(fields)))]
    for other in (lacking, (*fields, 0)):
        with pytest.raises(StoreError, match=r"is not as this leasekit writes it .Expected `array` of length"):
            type(record).from_row(with_body(row, other))
