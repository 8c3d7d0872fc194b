"""How things are said in messages."""

from __future__ import annotations

import pytest

from leasekit.core.reasons import counted


@pytest.mark.parametrize(("count", "said"), [(0, "0 hosts"), (1, "1 host"), (2, "2 hosts")])
def test_one_is_singular(count: int, said: str) -> None:
    """One thing is one, none and several are many; units are what is counted most."""
    assert counted(count, "host") == said
    assert counted(count) == said.replace("host", "unit")
