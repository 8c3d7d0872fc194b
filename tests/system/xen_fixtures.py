"""Fixtures of the tests with a real Xen: one machine for all of them."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from system.real_xen import RealXen, real_xen
from system.xen_world import left


@pytest.fixture(scope="session")
def xen() -> Iterator[RealXen]:
    with real_xen() as made:
        yield made
        print("\n" + json.dumps({stage: round(seconds, 1) for stage, seconds in made.seconds.items()}))


@pytest.fixture(autouse=True)
def nothing_left(xen: RealXen) -> Iterator[None]:
    """Each test takes away what it made, and nothing is left of it."""
    yield
    assert left(xen) == []
