"""What is recorded of the rows that actors commit."""

from __future__ import annotations

import io
from typing import Any

import pytest

from leasekit.core.leases import authority as au
from leasekit.core.leases.machine import NONE
from leasekit.core.leases.plans import ASKING, CLOSED, COMMITTED, COMMITTING, FAILED, PlanHold, Topology
from leasekit.core.leases.records import GuestUnit, SiteLease, SiteUnit
from leasekit.core.schema import LOG, Change
from leasekit.core.time import Instant, Term
from leasekit.emulation.metrics import Series
from leasekit.emulation.recorder import Recorder, Topologies, total

ROLES = {"g": "guest", "h": "guest", "b": "broker", "s": "authority"}
LEAVE = 10


def recorder() -> Recorder:
    """One whose guest ``g`` leaves 10 ms before its terms end."""
    return Recorder(ROLES, leave={"g": LEAVE})


def lease(record: Recorder, now: Instant, state: str, pending: str, units: int = 3, **changes: Any) -> None:
    """The site ``s`` commits a lease of ``g`` over [100, 200)."""
    fields = {"holder": "g", "term": Term(100, 200), "ended": -1, "id": "l", **changes}
    made = SiteLease(slice="", type="t", state=state, pending=pending, claim=b"", wanted=units, number=1, **fields)
    record.observe(now, "s", [Change("leases", made.id, made.row())])


def leased(record: Recorder) -> dict[str, Series]:
    """The units that each guest held, of all types."""
    return {name: total(types) for name, types in record.leased_by_type.items()}


def pairs(series: Series) -> list[tuple[Instant, float]]:
    """All changes."""
    return list(series)


def test_leased_is_from_the_start_of_service_to_the_end() -> None:
    """Units count from priming on, not while the redeem waits; teardown no longer counts; what was wanted counts even
    if fewer units are up.
    """
    record = recorder()
    lease(record, 90, au.TICKETED, au.REDEEMING)
    lease(record, 100, au.TICKETED, au.PRIMING)
    lease(record, 130, au.ACTIVE, NONE)
    lease(record, 200, au.ACTIVE, au.CLOSING)
    lease(record, 220, au.CLOSED, NONE, ended=220)
    assert pairs(leased(record)["g"]) == [(100, 3), (200, 0)]
    assert pairs(record.promised["g"]) == [(100, 3), (200, 0)]
    assert pairs(leased(record)["h"]) == []


def test_a_late_start_is_held_late_but_promised_from_the_start() -> None:
    """A ticket redeemed after its term began: holdings begin when the site serves it, the promise at the start."""
    record = recorder()
    lease(record, 140, au.TICKETED, au.PRIMING)
    lease(record, 200, au.ACTIVE, au.CLOSING)
    assert pairs(leased(record)["g"]) == [(140, 3), (200, 0)]
    assert pairs(record.promised["g"]) == [(100, 3), (200, 0)]


@pytest.mark.parametrize(
    ("holder", "closed", "counted"),
    [("g", 190, 200), ("g", 199, 200), ("g", 200, 200), ("g", 189, 189), ("g", 150, 150), ("h", 199, 199)],
)
def test_leaving_is_part_of_the_lease(holder: str, closed: Instant, counted: Instant) -> None:
    """A guest that closes within its leave time holds on until the end of the term; one that closes earlier gives its
    units back then.
    """
    record = recorder()
    lease(record, 100, au.TICKETED, au.PRIMING, holder=holder)
    lease(record, closed, au.ACTIVE, au.CLOSING, holder=holder)
    assert pairs(leased(record)[holder]) == pairs(record.promised[holder]) == [(100, 3), (counted, 0)]


def test_back_to_back_leases_leave_no_gap() -> None:
    """A lease that was left early and the next one, from the end of the first, are the same number of units."""
    record = recorder()
    lease(record, 100, au.TICKETED, au.PRIMING)
    lease(record, 195, au.ACTIVE, au.CLOSING)
    lease(record, 200, au.TICKETED, au.PRIMING, id="m", term=Term(200, 300))
    lease(record, 300, au.ACTIVE, au.CLOSING, id="m", term=Term(200, 300))
    assert pairs(leased(record)["g"]) == [(100, 3), (300, 0)]


def test_growth_and_shrinkage_count_when_they_are_applied() -> None:
    """An accepted extend changes nothing until it is applied at the old end; then its units and its end count."""
    record = recorder()
    lease(record, 100, au.ACTIVE, NONE)
    lease(record, 150, au.ACTIVE, au.EXTENDING)
    lease(record, 200, au.ACTIVE, au.PRIMING, 5, term=Term(100, 300))
    lease(record, 250, au.ACTIVE, au.MODIFYING, 5, term=Term(100, 300))
    lease(record, 260, au.ACTIVE, NONE, 2, term=Term(100, 300))
    lease(record, 295, au.ACTIVE, au.CLOSING, 2, term=Term(100, 300))
    expected = [(100, 3), (200, 5), (260, 2), (300, 0)]
    assert pairs(leased(record)["g"]) == pairs(record.promised["g"]) == expected


def test_a_lease_that_failed_is_no_longer_held() -> None:
    """Units count while they are set up, and no longer when none came up; a deleted row ends its count too."""
    record = recorder()
    lease(record, 100, au.TICKETED, au.PRIMING)
    lease(record, 120, au.FAILED, NONE, ended=120)
    lease(record, 130, au.ACTIVE, NONE, id="m")
    record.observe(140, "s", [Change("leases", "m", None)])
    assert pairs(leased(record)["g"]) == [(100, 3), (120, 0), (130, 3), (140, 0)]


def test_leases_of_others_are_nobodys() -> None:
    """A lease whose holder is not a guest of this world is counted for none."""
    record = recorder()
    lease(record, 100, au.ACTIVE, NONE, holder="stranger")
    lease(record, 150, au.ACTIVE, au.CLOSING, holder="stranger")
    assert all(not pairs(series) for series in leased(record).values())


def test_usable_is_joined() -> None:
    """A unit can be used from joined to leaving, and a row that says the same again changes nothing."""
    record = recorder()
    states = [(100, "waiting"), (110, "joining"), (120, "joined"), (130, "joined"), (190, "leaving"), (195, "left")]
    for now, state in states:
        unit = GuestUnit("l/u", "l", "u", "t", state)
        record.observe(now, "g", [Change("units", unit.id, unit.row())])
    assert pairs(record.usable["g"]) == [(120, 1), (190, 0)]


def test_in_use_is_from_setup_to_the_end_of_teardown() -> None:
    """A unit is in use from its setup to the end of its teardown; free and out of service it is not."""
    record = recorder()
    for now, state in [(1, au.FREE), (5, au.SETUP), (9, au.UP), (20, au.CHANGE), (30, au.TEARDOWN), (40, au.OUT)]:
        unit = SiteUnit("u", "t", state=state)
        record.observe(now, "s", [Change("units", unit.id, unit.row())])
    assert pairs(record.in_use_by_type["s"]["t"]) == [(5, 1), (40, 0)]


def test_machines_use_their_host_once() -> None:
    """A host is in use as long as any machine is on it; one that moves is at its new host, and none is an outage."""
    record = recorder()
    for now, name, host, state in [
        (5, "a.1", "a", au.SETUP), (6, "a.2", "a", au.SETUP), (9, "a.1", "a", au.UP), (9, "a.2", "a", au.UP),
        (20, "a.1", "b", au.CHANGE), (30, "a.2", "a", au.OUT), (35, "a.1", "b", au.UP),
    ]:  # fmt: skip
        unit = SiteUnit(name, "t", state=state, host=host)
        record.observe(now, "s", [Change("units", unit.id, unit.row())])
    record.observe(40, "s", [Change("units", "a.1", None)])
    assert pairs(record.in_use_by_type["s"]["t"]) == [(5, 1), (20, 2), (30, 1), (40, 0)]
    assert record.outages["s"] == {}


def test_types_are_counted_apart() -> None:
    """Units in use and units leased are counted by their type; a site's unit that is gone is no longer in use."""
    record = recorder()
    for now, name, kind in ((1, "u", "vm"), (2, "v", "link"), (3, "w", "vm")):
        unit = SiteUnit(name, kind, state=au.SETUP)
        record.observe(now, "s", [Change("units", unit.id, unit.row())])
    record.observe(9, "s", [Change("units", "u", None), Change("units", "x", None)])
    assert {kind: pairs(one) for kind, one in record.in_use_by_type["s"].items()} == {
        "vm": [(1, 1), (3, 2), (9, 1)],
        "link": [(2, 1)],
    }
    for name, kind, units in (("l", "vm", 4), ("m", "link", 12)):
        made = SiteLease(name, "g", "", kind, au.ACTIVE, NONE, b"", Term(100, 200), units, 1)
        record.observe(100, "s", [Change("leases", name, made.row())])
    assert {kind: pairs(one) for kind, one in record.leased_by_type["g"].items()} == {
        "vm": [(100, 4)],
        "link": [(100, 12)],
    }
    assert pairs(leased(record)["g"]) == [(100, 16)]
    assert (record.leased_by_type["h"], pairs(leased(record)["h"])) == ({}, [])


def test_topologies_are_counted_once_each() -> None:
    """By the first state that settles them, whatever becomes of their leases; those of brokers' plans are none."""
    record = recorder()
    courses = {
        "granted": (ASKING, COMMITTING, COMMITTED, CLOSED),
        "granted after a second plan": (ASKING, COMMITTING, ASKING, COMMITTING, COMMITTED, COMMITTED),
        "refused": (ASKING, ASKING, FAILED),
        "came to nothing": (ASKING, COMMITTING, FAILED),
        "given up": (ASKING, CLOSED),
        "waiting": (ASKING,),
    }
    for name, states in courses.items():
        for now, state in enumerate(states):
            made = Topology(name, "b", b"", 1, state=state)
            record.observe(now, "g", [Change("plans", name, made.row())])
        record.observe(9, "g", [Change("plans", name, None)])
    held = PlanHold("p", "g", "q", b"", Term(0, 1), (), 5)
    record.observe(9, "b", [Change("plans", "p", held.row())])
    assert record.topologies["g"] == Topologies(asked=6, granted=2, refused=2, given_up=1)
    assert record.topologies["g"].waiting == 1
    assert record.topologies["h"] == Topologies()


def test_rows_of_brokers_and_of_guests_leases_are_not_counted() -> None:
    """Only sites say what is leased, and brokers have no units."""
    record = recorder()
    made = SiteLease("l", "g", "", "t", au.ACTIVE, NONE, b"", Term(0, 9), 3, 1)
    for actor in ("b", "g"):
        record.observe(5, actor, [Change("leases", "l", made.row())])
    assert pairs(leased(record)["g"]) == []


def test_log_is_written_as_it_comes() -> None:
    """Each transition is a line with its actor, and units that begin setup are flips; commas and breaks are quoted."""
    log = io.StringIO()
    record = Recorder(ROLES, log)
    record.observe(7, "s", [Change(LOG, "", (7, "l", "unit setup", "free", "setup", "u1"))])
    record.observe(8, "g", [Change(LOG, "", (8, "l", "ask", "a/-", "b/c", 'no, "never"\n'))])
    assert log.getvalue() == (
        "at,actor,lease,event,from_state,to_state,why\n7,s,l,unit setup,free,setup,u1\n"
        '8,g,l,ask,a/-,b/c,"no, ""never""\n"\n'
    )
    assert (record.transitions, record.flips) == (2, 1)
