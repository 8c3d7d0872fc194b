"""Reasons: codes with values for programs, and the words that people read."""

from __future__ import annotations

import re
import string

import pytest
from hypothesis import given
from wire_strategies import causes

from leasekit.config.instants import dated
from leasekit.core.claims.evidence import KINDS
from leasekit.core.reasons import (
    CAUSES_MAX,
    DEPTH_MAX,
    DETAIL_MAX,
    REASONS_MAX,
    TEXT_MAX,
    Code,
    Coded,
    Reason,
    all_of,
    mark,
    of_mapper,
    read,
    said,
    to_text,
    unmark,
    view,
    words,
)

VALUES = {"who", "what", "units", "of", "at", "until", "now", "detail", "fits"}


def test_words_name_codes_and_values_only() -> None:
    """No template speaks of a code or value that there is not; what evidence is called is a code as well."""
    assert set(KINDS) <= set(Code)
    for template in filter(None, (code.words for code in Code)):
        assert {name for _, name, _, _ in string.Formatter().parse(template) if name} <= VALUES


@pytest.mark.parametrize(
    ("reason", "text"),
    [
        (Reason(Code.CLOSED_BY_GUEST), "closed by its guest"),
        (Reason(Code.SETUP_FAILED, detail="no image"), "setup failed: no image"),
        (
            Reason(Code.UNITS_MISSING, units=1, of=3).because(
                Reason(Code.UNIT, "n1").because(Reason(Code.SETUP_FAILED, detail="no image"))
            ),
            "1 of 3 units are missing: unit n1: setup failed: no image",
        ),
        (Reason(Code.GROUP_INCOMPLETE, what="g", units=1), "only 1 of an unknown number of requests of group 'g'"),
        (of_mapper("all are taken"), "all are taken"),
        (of_mapper("all are taken", 7), "all are taken; it would fit at @{7}"),
        (of_mapper(Coded("all are taken", "full"), 7), "all are taken; it would fit at @{7}"),
        (of_mapper("it fits at @{7}", 7), "it fits at @{7}"),
        (all_of(said("one"), None, said("two"), all_of(said("three"), said("four"))), "one; two; three; four"),
        (Reason(Code.MALFORMED, detail="not msgpack"), "not msgpack"),
        (Reason(Code.BUSY), "busy"),
        (Reason("of_the_next_version", "site", at=3, detail="new"), "of_the_next_version (who site, at @{3}): new"),
        (None, ""),
    ],
)
def test_words(reason: Reason | None, text: str) -> None:
    """What is behind a reason follows it; codes that are not known are shown with their values."""
    assert words(reason).startswith(text)


@given(causes)
def test_a_reason_is_kept_as_text(reason: Reason) -> None:
    """In a column, as in the log; what a query answers has the same values beside the words."""
    assert read(to_text(reason)) == reason
    assert view(reason)["because"] == reason
    assert (to_text(None), read(""), view(None)) == ("", None, {"reason": "", "because": None})


def test_instants_in_words_are_shown_as_their_reader_has_them() -> None:
    """Those that are marked, and no other number."""
    text = f"from {mark(0)} to {mark(1_700_000_000_000)}: 1700000000000 is a number"
    assert unmark(text, str) == "from 0 to 1700000000000: 1700000000000 is a number"
    assert dated(text) == "from 1970-01-01T00:00:00Z to 2023-11-14T22:13:20Z: 1700000000000 is a number"


def test_reasons_stay_small() -> None:
    """However long the chain of what is behind, and whatever a driver or a person writes."""
    reason = said("x" * 2 * TEXT_MAX)
    assert len(reason.detail) == TEXT_MAX <= DETAIL_MAX
    for number in range(4 * DEPTH_MAX):
        reason = Reason(Code.LEASE_LOST, str(number)).because(*[reason] * 2 * CAUSES_MAX)
        assert reason.depth <= DEPTH_MAX and reason.size <= REASONS_MAX and len(reason.causes) <= CAUSES_MAX


def test_codes_are_words_of_their_own() -> None:
    """A code is its name in small letters."""
    assert all(code == code.name.lower() and re.fullmatch(r"[a-z_]+", code) for code in Code)
