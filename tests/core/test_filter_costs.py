"""What filters cost: bounded by the filter, and by how many different attributes there are."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import pytest

from leasekit.core import filters
from leasekit.core.filters import LENGTH_MAX, WORDS_MAX, FilterError, parse_filter


@pytest.fixture
def numbers(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The texts that were looked at as numbers."""
    looked: list[str] = []
    is_number = filters._number

    def look(text: str) -> Any:
        looked.append(text)
        return is_number(text)

    monkeypatch.setattr(filters, "_number", look)
    return looked


def test_literals_are_read_once(numbers: list[str]) -> None:
    """When the filter is; of attributes, those that are asked for, once for each time the filter is asked."""
    found = parse_filter("n in {7001, 7002, 7003} or n > 7004 or n in 7005..7006 or m < $n")
    assert sorted(numbers) == ["7001", "7002", "7003", "7004", "7005", "7006"]
    numbers.clear()
    assert not found({"n": "1", "m": "2", "other": "3"})
    assert found({"n": "7002"})
    assert numbers == ["1", "2", "7002"]


def test_a_filter_is_read_once_and_so_is_what_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who sends the same text again costs nothing, also where it is wrong."""
    for text in ("read_once > 1", "read_once >"):
        for _ in range(2):
            try:
                parse_filter(text)
            except FilterError as error:
                assert error.text == text and error.__cause__ is None
            monkeypatch.setattr("leasekit.core.filters.Parser", None)  # it is not asked again
        monkeypatch.undo()


@pytest.mark.parametrize(
    "part", ["a < 1 or ", "a or ", "not a or ", "a in 1..2 or ", "a == $b or ", "(a > 1) or ", "((((a)))) or "]
)
def test_words_are_limited(part: str) -> None:
    """However they are written; the error points at the first that is too many. What may be costs little to ask."""
    text = part * (LENGTH_MAX // len(part) - 1) + "a"
    with pytest.raises(FilterError, match=rf"found more than {WORDS_MAX} words and signs") as caught:
        parse_filter(text)
    each = len(filters._tokens(part)) - 1
    assert text[: caught.value.position].startswith(part * (WORDS_MAX // each))
    assert parse_filter(part * ((WORDS_MAX - 1) // each) + "a").cost <= WORDS_MAX


def test_operands_are_words() -> None:
    """In a list, and in a set: with attributes in it each is a comparison, literals are one in all."""
    operands = ",".join(["1"] * (WORDS_MAX // 2))
    for text in (f'["<","$a",{operands}]', f'["=","$a",{operands}]', f"a in {{{'$b,' * (WORDS_MAX // 2)}$b}}"):
        with pytest.raises(FilterError, match="words"):
            parse_filter(text)
    many = parse_filter(f"a in {{{','.join(map(str, range(250)))}}}")
    assert many.cost == 2 and many({"a": "249.0"}) and not many({"a": "250"})
    assert parse_filter(f'["!=","$a",{",".join(["1"] * 250)}]')({"a": "2"})
    assert parse_filter(f"a in {{{'$b,' * 249}$b}}").cost == 252


def test_long_values_are_not_read() -> None:
    """A flag and a number are short: what is longer is not looked at."""

    class Long(str):
        def lower(self) -> str:
            raise AssertionError("not for a flag")

    assert parse_filter("long_flag")({"long_flag": Long("x" * 16_000)})
    assert not parse_filter("long_flag < 1")({"long_flag": "1" * 16_000})


def test_what_filters_say_is_kept_without_their_texts() -> None:
    """Guests send long ones, each different, without end: what a broker keeps of each is short, and so many are."""
    one = filters.seen("east", "vm", {})
    for number in range(100):
        text = f'site == "{number}{chr(0x1F600) * 4_000}"'
        assert not filters.takes(text, one)
        assert filters.ask(text, frozenset({one})) == ("", frozenset())
    kept = list(filters._answers)[-200:]
    assert len(set(kept)) == 200 and all(len(digest) == 32 for digest, _ in kept)


def test_answers_of_filters_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that were of no use for longest go first."""
    monkeypatch.setattr(filters, "_answers", OrderedDict())
    monkeypatch.setattr(filters, "ANSWERS_MAX", 2)
    one, read = filters.seen("east", "vm", {}), []
    parse = filters.parse_filter
    monkeypatch.setattr(filters, "parse_filter", lambda text: read.append(text) or parse(text))
    for text in ("site", "type", "site", "site == east", "site", "type"):
        assert filters.takes(text, one)
    assert read == ["site", "type", "site == east", "type"]


def test_why_not_asks_each_part_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However deep it lies."""
    asked: list[str] = []
    test = filters.Compare.test

    def count(self: filters.Compare) -> filters.Test:
        asked.append(self.op)
        return test(self)

    found = parse_filter("(" * 30 + "deep < 1 or deep > 9" + " and deep >= 0)" * 30)
    monkeypatch.setattr(filters.Compare, "test", count)
    assert found.misses({"deep": "5"}).startswith("deep is 5, wanted < 1 and deep is 5, wanted > 9")
    assert len(asked) <= 32
