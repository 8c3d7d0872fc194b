"""Filters over properties: how they are read in both forms, what they accept, and where a fault is."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasekit.core.filters import DEPTH_MAX, LENGTH_MAX, FilterError, parse_filter

HOST = {"memory_mb": "10240", "cores": "10", "os": "debian", "gpu": "true", "virtual": "no", "rack": "A-7", "base": "9"}


@pytest.mark.parametrize(
    "text",
    [
        "memory_mb >= 9216",
        "cores >= 9",
        "cores == 10.0",
        "cores = 1e1",
        "cores > $base",
        "cores in 8..12",
        "cores in 10..",
        "cores in ..10",
        "cores in 8..$cores",
        "cores not in 11..20",
        "os in {debian, ubuntu}",
        '["=", "$gpu", true]',
        "os in [debian] and rack in (A-7, A-8)",
        "os not in {centos}",
        'os == "debian"',
        "rack == 'A-7'",
        "os < ubuntu",
        "gpu",
        "not virtual",
        "not (gpu and virtual)",
        "virtual or gpu and cores > 1",
        "not os == centos and not missing == 1",
        '[">=", "$memory_mb", 9216]',
        '["and", [">=", "$cores", "9"], ["not", ["in", "$os", "centos", "ubuntu"]]]',
        '["or", ["=", "$os", "centos"], ["<", 9, "$cores"]]',
        '["in", "$os", ["debian", "ubuntu"]]',
        '["=", "$cores", 10, "10.0"]',
    ],
)
def test_accepted(text: str) -> None:
    """What the host has; numbers are compared as numbers, also where they are written differently."""
    assert parse_filter(text)(HOST)
    assert parse_filter(text).misses(HOST) == ""


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("cores >= 11", "cores is 10, wanted >= 11"),
        ("cores in 1..9", "cores is 10, wanted in 1..9"),
        ("os in {centos, ubuntu}", "os is debian, wanted in {centos, ubuntu}"),
        ("os >= 5", "os is debian, wanted >= 5"),
        ("missing != 1", "it has no missing"),
        ("missing in 1..2", "it has no missing"),
        ("missing", "it has no missing"),
        ("virtual", "virtual is no, wanted set"),
        ("not gpu", "gpu is true, wanted not set"),
        ("gpu and cores > 10 and os == x", "cores is 10, wanted > 10"),
        ("cores > 10 or os == x", "cores is 10, wanted > 10 and os is debian, wanted == x"),
        ("not (cores == 10 or os == x)", "cores is 10, wanted not == 10"),
        ("not not virtual", "virtual is no, wanted set"),
        ('["=", "$cores", 10, 11]', "cores is 10, wanted == 10, 11"),
        ("cores == $missing", "cores is 10, wanted == $missing"),
    ],
)
def test_not_accepted_and_why(text: str, why: str) -> None:
    """What the host lacks is said in words."""
    assert not parse_filter(text)(HOST)
    assert parse_filter(text).misses(HOST) == why


@pytest.mark.parametrize(
    ("text", "character", "words"),
    [
        ("", 1, "found the end, expected an attribute, not, or '('"),
        ("memory >= )", 11, "found ')', expected a number, text, or $attribute"),
        ("a ==", 5, "found the end, expected a number"),
        ("a == 1 b", 8, "found 'b', expected and, or, or the end"),
        ("(a == 1", 8, "found the end, expected ')', and, or"),
        ("a in 1", 7, "found the end, expected '..'"),
        ("a in ..", 8, "found the end, expected a bound of the range"),
        ("a in {1 2}", 9, "found '2', expected ',' or '}'"),
        ("a in >", 6, "found '>', expected a set such as {a, b} or a range such as 8..32"),
        ("a not 5", 7, "found '5', expected in"),
        ("a & b", 3, "unexpected '&'"),
        ('a == "x', 6, "a quote that is never closed"),
        (r'a == "\q"', 7, "in quoted text, invalid \\escape"),
        ("5 > 3", 1, "found '5', expected an attribute, not, or '('"),
        ('["xor", 1]', 2, "found operator 'xor', allowed are and, or, not, in"),
        ('[">=", "$ram"]', 2, "'>=' has 1 operands, expected 2 or more"),
        ('["not", ["=", "$a", 1], ["=", "$a", 1]]', 7, "'not' has 2 operands, expected one list"),
        ('["and"]', 7, "'and' has 0 operands, expected one list or more"),
        ('["and", 5]', 9, "found '5', expected a list"),
        ('["=", "$a", {}]', 13, "found '{', expected a number or text in quotes"),
        ('["=", "$a", 1', 14, "found the end, expected ',' or ']'"),
    ],
)
def test_a_fault_points_at_its_character(text: str, character: int, words: str) -> None:
    """The message says where, what was found there and what is allowed."""
    with pytest.raises(FilterError) as error:
        parse_filter(text)
    assert str(error.value).startswith(f"filter: character {character}: {words}")
    assert error.value.position == character - 1


def test_an_unknown_attribute_is_an_error_with_those_that_are_known() -> None:
    """It names the nearest, and where it stands; attributes of both sides and of both forms are checked."""
    with pytest.raises(FilterError) as error:
        parse_filter("os and (ram >= 5)").check(["ram_mb", "os"])
    assert str(error.value) == (
        "filter: character 9: unknown attribute 'ram', known are: os, ram_mb (did you mean ram_mb?), "
        "in 'os and (ram >= 5)'"
    )


def test_check_accepts_what_is_known() -> None:
    """Every attribute that is asked for is in the list of names."""
    found = parse_filter('["and", [">", "$a", "$b"], ["in", "$c", 1]]')
    assert found.names == ["a", "b", "c"]
    found.check("abcd")
    with pytest.raises(FilterError, match=r"^filter: character 35: unknown attribute 'c', known are: a, b, in "):
        found.check("ab")
    with pytest.raises(FilterError, match=r"^filter: character 1: unknown attribute 'x', and nothing here has"):
        parse_filter("x").check(())


def test_limits_hold() -> None:
    """Guests send filters: what is too long or nested too deeply is refused, and doesn't recurse."""
    with pytest.raises(FilterError, match=f"at most {LENGTH_MAX} are allowed"):
        parse_filter("a" * (LENGTH_MAX + 1))
    for deep in ("(" * 500, "not " * 500 + "a", '["not", ' * 150):
        with pytest.raises(FilterError, match=f"nested deeper than {DEPTH_MAX}"):
            parse_filter(deep)
    assert parse_filter("(" * (DEPTH_MAX - 1) + "gpu" + ")" * (DEPTH_MAX - 1))(HOST)
    assert not parse_filter(f"cores == {'9' * 200}")(HOST)


NUMBERS = st.one_of(st.integers(-(10**6), 10**6), st.floats(-1e6, 1e6).map(lambda number: round(number, 3)))


@given(NUMBERS, NUMBERS, st.sampled_from(["<", "<=", ">", ">=", "==", "!="]))
def test_both_forms_compare_as_numbers_do(left: Any, right: Any, op: str) -> None:
    """As text and as a list, for whole numbers and fractions, what Python says."""
    expected = {
        "<": left < right, "<=": left <= right, ">": left > right, ">=": left >= right, "==": left == right,
        "!=": left != right,
    }[op]  # fmt: skip
    attributes = {"n": str(left)}
    assert parse_filter(f"n {op} {right}")(attributes) is expected
    assert parse_filter(json.dumps([op, "$n", right]))(attributes) is expected


@given(st.text(alphabet="ab$ ()[]{}\"'.,<>=!0123and or not in\\", max_size=60))
def test_whatever_is_sent_is_read_or_refused(text: str) -> None:
    """No input does anything but make a filter, which decides, or an error with a place in the text."""
    try:
        found = parse_filter(text)
    except FilterError as error:
        assert 0 <= error.position <= len(text)
    else:
        assert found({"a": "1", "b": "x"}) is (found.misses({"a": "1", "b": "x"}) == "")
