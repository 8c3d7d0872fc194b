"""Cases: drawn by a seed, kept in files, shrunk to what matters."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasekit.core.errors import LeasekitError
from leasekit.emulation.conformance.cases import FORMAT, Case, Recorded, draw, read_case, shrink, to_json
from leasekit.emulation.conformance.stage import play
from leasekit.policies.broker.fcfs import Fcfs

TYPES = ("vm", "host")


def _recorded(case: Case) -> Recorded:
    return Recorded(format=FORMAT, role="broker", target="fcfs", settings={}, check="c", fault="f", case=case)


@given(seed=st.integers(0, 1000), number=st.integers(0, 60))
def test_a_case_survives_its_file(tmp_path_factory: pytest.TempPathFactory, seed: int, number: int) -> None:
    """What is written and read again is the same case; and a seed always draws the same."""
    case = draw(seed, number, TYPES)
    assert draw(seed, number, TYPES) == case
    path = tmp_path_factory.getbasetemp() / "case.json"
    path.write_text(json.dumps(to_json(_recorded(case))))
    assert read_case(path) == _recorded(case)


def test_cases_cover_what_requests_can_be() -> None:
    """Among the cases of a seed is every kind of request and event, sites that fail, and worlds that are empty."""
    cases = [draw(1, number, TYPES) for number in range(100)]
    events = [event for case in cases for event in case.events]
    assert {event.do for event in events} == {"request", "extend", "modify", "close"}
    used = {key for event in events for key in event.properties}
    assert used == {
        "elastic", "min_units", "deferrable", "latest_start", "priority", "preemptible", "exclude_sites", "group_id",
        "lease_count",
    }  # fmt: skip
    assert {len(case.sites) for case in cases} == {0, 1, 2, 3}
    assert {bool(case.failing) for case in cases} == {True, False}
    assert any(not case.events for case in cases)


def test_most_of_what_is_drawn_happens() -> None:
    """Cases are no nonsense that guests refuse to ask for: a broker's mapper gets turns in nearly all of them."""
    played = [play(draw(1, number, TYPES), "broker", Fcfs, 5.0) for number in range(4, 24)]
    assert all(each.fault is None for each in played)
    assert sum(each.turns > 0 for each in played) >= 18
    assert sum(each.turns for each in played) > 100


def test_shrinking_leaves_what_matters() -> None:
    """A case that fails because two requests ask for three units or more is left with these two, made plain."""

    def fails(case: Case) -> bool:
        return sum(event.do == "request" and event.units >= 3 for event in case.events) >= 2

    number = next(number for number in range(4, 100) if fails(draw(1, number, TYPES)))
    smallest = shrink(draw(1, number, TYPES), fails)
    assert [event.do for event in smallest.events] == ["request", "request"]
    assert all(event.units in (3, 4, 5) and not event.properties for event in smallest.events)
    assert smallest.sites == {}
    assert smallest.failing == 0


def test_shrinking_ends() -> None:
    """No more cases are tried than allowed, and what comes back still fails."""
    tried = 0

    def fails(case: Case) -> bool:
        nonlocal tried
        tried += 1
        return len(case.events) > 3

    smallest = shrink(draw(1, 12, TYPES), fails, tries=10)
    assert tried <= 10
    assert len(smallest.events) > 3


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "not a case of mapper check"),
        ("[]", "found list, expected an object"),
        ('{"format": 2, "role": "broker", "target": "x", "check": "", "fault": "", "case": {}}', "format"),
        ('{"format": 1, "role": "broker", "target": "x", "check": "", "fault": "", "case": {"seed": "x"}}', "seed"),
        ('{"format": 1, "role": "broker", "target": "x", "check": "", "fault": ""}', "found neither of case and turn"),
        ('{"format": 1, "role": "broker", "target": "x", "check": "", "fault": "", "turn": {"size": -1}}', "size"),
    ],
)
def test_files_that_are_no_case(text: str, told: str, tmp_path: Path) -> None:
    """A file that is no case gets an error that names the file and what is wrong."""
    path = tmp_path / "case.json"
    path.write_text(text)
    with pytest.raises(LeasekitError, match=told) as error:
        read_case(path)
    assert str(path) in str(error.value)
