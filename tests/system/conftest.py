"""One browser for all tests of pages that a worker has one after the other: to start it takes as long as a test."""

from __future__ import annotations

import pytest
from web_world import end_chromium


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> None:
    """The browser ends before a test of other things: playwright has a loop of asyncio, which these would find."""
    group = nextitem and nextitem.get_closest_marker("xdist_group")
    of_pages = isinstance(nextitem, pytest.Function) and "chromium" in nextitem.fixturenames
    if not (of_pages or (group and group.args[0] == "web")):
        end_chromium()
