"""Property lists: string pairs within limits, and the digest that claims carry of them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wire_strategies import properties

from leasekit.core.errors import WireError
from leasekit.core.properties import (
    BYTES_MAX,
    KEY_MAX,
    PROPERTIES_MAX,
    VALUE_MAX,
    check_plain,
    check_properties,
    digest_properties,
    is_plain,
    is_text,
)
from leasekit.core.protocol.codec import decode_batch, encode_batch
from leasekit.core.protocol.messages import RequestTicket
from leasekit.core.time import Term


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ([("a", "b")], "where: found list, expected a table of string pairs"),
        (None, "where: found NoneType, expected a table of string pairs"),
        ({str(n): "" for n in range(PROPERTIES_MAX + 1)}, f"where: found {PROPERTIES_MAX + 1} pairs, at most 256"),
        ({"": "x"}, f"where: key '' must be text of 1 to {KEY_MAX} characters"),
        ({"k" * (KEY_MAX + 1): "x"}, "must be text of 1 to 128 characters"),
        ({5: "x"}, "where: key 5 must be text"),
        ({"a": 5}, r"where.a: found 5 \(int\), property values are strings"),
        ({"a": True}, r"where.a: found True \(bool\), property values are strings"),
        ({"a": None}, r"where.a: found None \(NoneType\), property values are strings"),
        ({"a": "x" * (VALUE_MAX + 1)}, f"where.a: found {VALUE_MAX + 1} characters, at most {VALUE_MAX} are allowed"),
        ({"a": "\ud800"}, "where: found 'a' = .* which is not Unicode"),
        ({"\udc00": "a"}, "which is not Unicode"),
    ],
)
def test_what_is_no_property_list(value: Any, text: str) -> None:
    """Each fault is named with its place, what was found and what is allowed."""
    with pytest.raises(ValueError, match=text):
        check_properties(value, "where")


def test_limits_themselves_are_allowed() -> None:
    """A list that is just within every limit passes."""
    full = {f"{n:0{KEY_MAX}}": "é" * 3 for n in range(PROPERTIES_MAX)}
    assert check_properties(full, "where") == full
    assert check_properties({"a": "x" * VALUE_MAX}, "where")


def test_a_list_has_so_many_bytes() -> None:
    """However they are spread over keys and values, and however many characters they are."""
    part, rest = BYTES_MAX // 4, BYTES_MAX % 4
    full = {str(n): "x" * (part - 1) for n in range(4)} | ({"r": "x" * (rest - 1)} if rest else {})
    assert check_properties(full, "where") == full
    for wrong in (full | {"a": ""}, {str(n): "é" * (part - 1) for n in range(4)}):
        with pytest.raises(ValueError, match=f"where: found .* bytes of keys and values, at most {BYTES_MAX} are"):
            check_properties(wrong, "where")
        request = RequestTicket("l-1", 1, "new", "s", "vm", 1, Term(0, 1), "", wrong, b"")
        with pytest.raises(WireError, match=r"properties: found \d+ bytes of keys and values"):
            decode_batch(encode_batch([request]))


@given(value=properties)
def test_a_list_of_ones_own(value: dict[str, str]) -> None:
    """What is checked is copied: changing the original changes nothing."""
    checked = check_properties(value, "where")
    assert checked == value and checked is not value


@given(one=properties, other=properties)
def test_digest(one: dict[str, str], other: dict[str, str]) -> None:
    """The digest depends on the pairs and not on their order; none has the empty one; it tells lists apart."""
    backwards = dict(reversed(one.items()))
    assert digest_properties(one) == digest_properties(backwards)
    assert (digest_properties(one) == digest_properties(other)) == (one == other)
    assert len(digest_properties(one)) == (32 if one else 0)


def test_digest_keeps_pairs_apart() -> None:
    """Characters that move from a key to its value, or from one pair to the next, change the digest."""
    lists = [{"ab": "c"}, {"a": "bc"}, {"a": "b", "c": ""}, {"a": "", "b": "c"}, {"a": "b"}]
    assert len({digest_properties(pairs) for pairs in lists}) == len(lists)


@given(text=st.text())
def test_text(text: str) -> None:
    """Text is what UTF-8 can hold."""
    surrogates = any("\ud800" <= char <= "\udfff" for char in text)
    assert is_text(text) == (not surrogates)
    assert not is_text(text + "\ud800")


@pytest.mark.parametrize("code", [*range(32), *range(0x7F, 0xA0)])
def test_control_characters(code: int) -> None:
    """No name or key has one, and no value but newlines and tabs; all else passes, printable or not."""
    text = f"a{chr(code)}b"
    assert not is_plain(text)
    with pytest.raises(ValueError, match=r"where: key .* has a control character"):
        check_plain({text: ""}, "where")
    if text in ("a\nb", "a\tb"):
        check_plain({"key": text}, "where")
    else:
        with pytest.raises(ValueError, match=r"where.key: found the control character .* at 1, allowed are newline"):
            check_plain({"key": text}, "where")


def test_what_is_no_control_character() -> None:
    """Text of any script passes, and what only looks odd."""
    for text in ("", "vm", "é𝄞", "\u202e", "\xa0", "a b"):
        assert is_plain(text)
        check_plain({f"k{text}": text}, "where")
