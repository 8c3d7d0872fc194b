"""JSON read strictly: what is wrong with a text is said in words, and nothing of it is taken in silence."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasekit.core.json_text import JsonError, read_json

NUMBERS = st.integers(-(2**60), 2**60) | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)  # fmt: skip


@given(VALUES)
def test_what_is_json_is_read_as_it_is(value: object) -> None:
    """A value that was written as JSON comes back, from text and from bytes."""
    text = json.dumps(value)
    assert read_json(text) == value
    assert read_json(text.encode()) == value


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"a": {"b": 1, "c": 2, "b": 3}}', "an object has the same key twice: 'b'"),
        ('{"a": NaN}', "NaN is no number"),
        ("[-Infinity]", "-Infinity is no number"),
        ('{"a": 1,\n}', r"line 1, column 8: found no JSON (',\n}')"),
        ("[1,]", "line 1, column 3: found no JSON (',]')"),
        ('{"a":\n oops}', "line 2, column 2: found no JSON ('oops}')"),
        ('{"a": 1', "line 1, column 8: found no JSON (the text ends)"),
        (b"\xff\xfe\xfd", "found bytes that are not UTF-8"),
        ("[" * 100_000, "found lists in lists without end"),
        ("9" * 5000, "found a number with thousands of digits"),
    ],
)
def test_what_is_wrong_is_said(text: str | bytes, words: str) -> None:
    """Each fault has its own words; a place or a key is named where there is one."""
    with pytest.raises(JsonError) as error:
        read_json(text)
    assert words in str(error.value)


def test_many_keys_take_no_time_of_their_own() -> None:
    """A repeat behind very many keys is found, in one pass."""
    keys = ", ".join(f'"{number}": 0' for number in range(50_000))
    with pytest.raises(JsonError, match="twice: '49999'"):
        read_json(f'{{{keys}, "49999": 1}}')
