"""What is counted of requests, and how it is told, without a daemon."""

from __future__ import annotations

import pytest

from leasekit.core.measures import Histogram
from leasekit.core.reasons import Code, Reason, to_text
from leasekit.core.schema import LogRow
from leasekit.runtime.metrics import ASKED_MAX, Outcomes


def row(at: int, lease: str, event: str, why: Reason | None = None) -> LogRow:
    """A line of a log."""
    return LogRow(0, at, lease, event, "", "", to_text(why))


def test_a_histogram_counts_up_to_each_bound() -> None:
    """A value that is a bound belongs to it; the last bucket has all."""
    found = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.5):
        found.note(value)
    assert found.cumulative() == [("1.0", 2), ("2.0", 3), ("+Inf", 4)]
    assert found.total == 5.5


def test_requests_are_counted_by_outcome_and_the_code_behind_it() -> None:
    """Those of which the beginning is not known are not: nobody knows how long they took."""
    found = Outcomes("broker")
    found.see(row(1_000, "a", "request", Reason(Code.ASKED, "guest", "vm")))
    found.see(row(3_500, "a", "grant", Reason(Code.GRANTED, "site", "vm")))
    found.see(row(3_600, "a", "extend", Reason(Code.ASKED, "guest", "vm")))
    found.see(row(3_700, "a", "refuse", Reason(Code.NOT_GRANTED).because(Reason(Code.UNITS_OUT))))
    found.see(row(4_000, "b", "refuse", Reason(Code.NOT_GRANTED)))
    found.see(row(4_000, "", "not_taken", Reason(Code.TURNED_AWAY, "guest", units=7).because(Reason(Code.TOO_LARGE))))
    assert found.counts == {("granted", ""): 1, ("refused", "units_out"): 1, ("not_taken", "too_large"): 7}
    assert found.decided.total == pytest.approx(2.6)


def test_peers_can_not_make_codes() -> None:
    """Codes that this version does not know are told alike, and so are those of mappers."""
    found = Outcomes("guest")
    for number, code in enumerate(("evil1", "evil2", "mapper:quota")):
        found.see(row(0, str(number), "ask"))
        found.see(row(0, str(number), "ticket_refused", Reason(Code.SAYS, "broker").because(Reason(code))))
    assert found.counts == {("refused", "other"): 2, ("refused", "mapper"): 1}


def test_requests_that_are_never_decided_take_no_memory_for_ever() -> None:
    """The oldest is forgotten."""
    found = Outcomes("authority")
    for number in range(ASKED_MAX + 1):
        found.see(row(0, str(number), "redeem"))
    found.see(row(1, "0", "assign"))
    found.see(row(1, "1", "assign"))
    assert found.counts == {("granted", ""): 1}
