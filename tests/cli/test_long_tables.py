"""Tables that go to a file or a pipe."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from leasekit.cli import output

CELLS = st.one_of(
    st.none(), st.integers(), st.text(max_size=12), st.sampled_from(["größe", "漢字", "a\nb", "active", ""])
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(CELLS, CELLS, CELLS), min_size=1, max_size=8))
def test_a_table_is_the_same_whoever_prints_it(
    capsys: pytest.CaptureFixture[str], rows: list[tuple[object, object, object]]
) -> None:
    """Without a terminal it is printed line by line, as rich would do it."""
    printed = []
    for plain in (True, False):
        with pytest.MonkeyPatch.context() as patch:
            if not plain:
                patch.setattr(output, "_plain_table", lambda *_: None)
            capsys.readouterr()
            output.print_table(["name", ">units", "reason"], rows)
            printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1]


def test_what_is_too_long_for_a_line_is_folded(capsys: pytest.CaptureFixture[str]) -> None:
    """It takes several lines, none of which is longer than a table may be."""
    output.print_table(["name", "reason"], [("a", "word " * 100)])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 2
    assert max(map(len, lines)) <= output.WIDTH_UNKNOWN
