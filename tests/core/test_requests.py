"""Request properties: what they say, and what is wrong with them."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from wire_strategies import properties, terms

from leasekit.core.errors import CommandError
from leasekit.core.requests import Options, parse_options, with_term
from leasekit.core.time import INSTANT_MAX, SECOND, Term

TERM = Term(1000, 2000)
PLAIN = Options(False, 0, False, 0, 0, "", 0, 0, False, frozenset())


def test_nothing_said() -> None:
    """A request without properties: all of it, then, or nothing."""
    assert parse_options({}, TERM) == PLAIN
    assert parse_options({"colour": "red", "memory_mb": ">= 2048"}, TERM) == PLAIN


@pytest.mark.parametrize(
    ("given_", "changes"),
    [
        ({"elastic": "true"}, {"elastic": True, "min_units": 1}),
        ({"elastic": "true", "min_units": "3"}, {"elastic": True, "min_units": 3}),
        ({"elastic": "false", "deferrable": "false", "preemptible": "false"}, {}),
        ({"deferrable": "true"}, {"deferrable": True}),
        ({"deferrable": "true", "latest_start": "1000"}, {"deferrable": True, "latest_start": 1000}),
        ({"request_timeout": "30s"}, {"request_timeout": 30 * SECOND}),
        ({"group_id": "g"}, {"group": "g", "deferrable": True}),
        ({"group_id": "g", "lease_count": "3"}, {"group": "g", "deferrable": True, "lease_count": 3}),
        ({"group_id": "g", "latest_start": "5000"}, {"group": "g", "deferrable": True, "latest_start": 5000}),
        ({"priority": "-7"}, {"priority": -7}),
        ({"preemptible": "true"}, {"preemptible": True}),
        ({"exclude_sites": " east, west ,,"}, {"exclude_sites": frozenset({"east", "west"})}),
    ],
)
def test_what_can_be_said(given_: dict[str, str], changes: dict[str, Any]) -> None:
    """Each property is read, and changes nothing else."""
    assert parse_options(given_, TERM) == PLAIN._replace(**changes)


@pytest.mark.parametrize(
    ("given_", "text"),
    [
        ({"elastic": "yes"}, "properties.elastic: found 'yes', allowed are 'true' and 'false'"),
        ({"deferrable": ""}, "properties.deferrable: found '', allowed are 'true' and 'false'"),
        ({"preemptible": "TRUE"}, "properties.preemptible: found 'TRUE', allowed are 'true' and 'false'"),
        ({"min_units": "2"}, "properties.min_units: goes with elastic = 'true'"),
        ({"elastic": "true", "min_units": "0"}, "properties.min_units: found 0, expected at least 1"),
        ({"elastic": "true", "min_units": "two"}, "properties.min_units: found 'two', expected a whole number"),
        ({"latest_start": "5000"}, "properties.latest_start: goes with deferrable = 'true'"),
        (
            {"deferrable": "true", "latest_start": "999"},
            "properties.latest_start: found 999, which is before the start, 1000",
        ),
        ({"deferrable": "true", "latest_start": "-1"}, "properties.latest_start: found -1, expected at least 0"),
        ({"request_timeout": "soon"}, "properties.request_timeout: 'soon' is not a duration"),
        ({"lease_count": "2"}, "properties.lease_count: goes with group_id, on the group's leader"),
        ({"group_id": "g", "lease_count": "0"}, "properties.lease_count: found 0, expected at least 1"),
        (
            {"deferrable": "true", "latest_start": "9" * 30},
            f"properties.latest_start: found '{'9' * 30}', at most 9007199254740991 is allowed",
        ),
        ({"request_timeout": "9" * 400 + "s"}, "is longer than any term can be: at most 104249991d"),
        ({"priority": "high"}, "properties.priority: found 'high', expected a whole number"),
    ],
)
def test_what_is_wrong(given_: dict[str, str], text: str) -> None:
    """Each fault names the property, what was found and what is allowed."""
    with pytest.raises(CommandError) as caught:
        parse_options(given_, TERM)
    assert text in str(caught.value)


@given(pairs=properties, term=terms())
def test_unknown_properties_pass(pairs: dict[str, str], term: Term) -> None:
    """Properties with other names, whatever they hold, are none of the core's business."""
    named = {f"x-{key[:100]}": value for key, value in pairs.items()}
    assert parse_options(named, term) == PLAIN


@pytest.mark.parametrize("name", ["min_units", "lease_count", "priority", "latest_start"])
@pytest.mark.parametrize("value", ["9" * 5000, "0x10", "1e3", "٣", "", " "])
def test_odd_numbers(name: str, value: str) -> None:
    """A number that is too long for Python, or none, is refused like any other; digits of any script count."""
    pairs = {"elastic": "true", "min_units": value} if name == "min_units" else {"group_id": "g", name: value}
    if value == "٣" and name != "latest_start":
        parse_options(pairs, TERM)
        return
    with pytest.raises(CommandError, match=f"properties.{name}: found"):
        parse_options(pairs, TERM)


def test_a_request_without_a_term_begins_when_it_comes() -> None:
    """For a length, or to an end, and a little later if nothing else is said."""
    soon = with_term({"length": 500, "within": 60, "properties": {"bid": "3"}}, 1000)
    assert soon == {"term": [1000, 1500], "properties": {"bid": "3", "deferrable": "true", "latest_start": "1060"}}
    said = with_term({"end": 1500, "within": 60, "properties": {"deferrable": "true", "latest_start": "1400"}}, 1000)
    assert (said["term"], said["properties"]["latest_start"]) == ([1000, 1500], "1400")
    assert with_term({"term": [1, 2]}, 1000) == {"term": [1, 2]}


@pytest.mark.parametrize(
    ("given_", "told"),
    [
        ({}, "term: found none, expected a term, or either length or end"),
        ({"length": 5, "end": 2000}, "term: found none, expected a term, or either length or end"),
        ({"length": "1h"}, "length: found '1h', expected milliseconds"),
        ({"length": True}, "length: found True, expected milliseconds"),
        ({"length": 0}, "length: found 0, expected milliseconds"),
        ({"length": INSTANT_MAX}, f"length: found {INSTANT_MAX}, expected milliseconds"),
        ({"end": 1000}, "end: found"),
    ],
)
def test_what_is_wrong_with_a_request_without_a_term(given_: dict[str, Any], told: str) -> None:
    """One message, which names the field."""
    with pytest.raises(CommandError, match=f"^{re.escape(told)}"):
        with_term(given_, 1000)
