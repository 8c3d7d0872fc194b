"""The guest's mapper that asks for topologies, by a list and by streams."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from leasekit.core.mappers import GuestCycle, RequestTopology, Wake
from leasekit.core.settings import SettingsError
from leasekit.core.time import HOUR, MINUTE
from leasekit.policies.guest.coallocating import Coallocating
from leasekit.policies.registry import make_mapper

REQUEST: dict[str, Any] = {"sites": [{"id": "r0", "type": "vm", "units": 1}], "duration": "10m"}


def mapper(**settings: Any) -> Coallocating:
    """The mapper as a deploy file makes it."""
    made = make_mapper("coallocating", "guest", settings, "mapper", {})
    assert isinstance(made, Coallocating)
    return made


def asked(made: Coallocating, until: int) -> list[tuple[int, RequestTopology]]:
    """All that it asks for, with the instants."""
    found, at = [], 0
    while True:
        decisions = made.plan(GuestCycle(at, ()))
        found += [(at, one) for one in decisions if isinstance(one, RequestTopology)]
        following = [one.at for one in decisions if isinstance(one, Wake)]
        if not following or following[0] > until:
            return found
        at = following[0]


def test_a_list_is_asked_for_in_order_of_time() -> None:
    """Each is asked for at its instant, whatever the order of the list, with the settings' broker and tries."""
    later, sooner = {**REQUEST, "start": 3 * HOUR}, {**REQUEST, "start": 2 * HOUR}
    made = mapper(requests=[{"at": "2m", "request": later}, {"at": "1m", "request": sooner}], broker="b", tries=5)
    found = asked(made, HOUR)
    assert [(at, one.request.est, one.broker, one.tries) for at, one in found] == [
        (MINUTE, 2 * HOUR, "b", 5), (2 * MINUTE, 3 * HOUR, "b", 5)
    ]  # fmt: skip


def test_streams_are_poisson_and_repeat() -> None:
    """About as many come as the rate says, each with its window after it; the same seed gives the same ones."""
    stream = {"request": REQUEST, "every": "1m", "until": "20h", "lead": "5m", "window": "1h"}
    found = asked(mapper(streams=[{**stream, "seed": 1}]), 30 * HOUR)
    assert 1080 < len(found) < 1320
    assert all(one.request.est == at + 5 * MINUTE and one.request.lst == at + 65 * MINUTE for at, one in found)
    gaps = [late - soon for (soon, _), (late, _) in pairwise(found)]
    short = sum(gap < MINUTE for gap in gaps) / len(gaps)
    assert 0.58 < short < 0.68  # 1 - 1/e
    assert found == asked(mapper(streams=[{**stream, "seed": 1}]), 30 * HOUR)
    assert found != asked(mapper(streams=[{**stream, "seed": 2}]), 30 * HOUR)


def test_what_is_long_due_is_skipped() -> None:
    """A guest that starts late does not ask for what was due long ago."""
    made = mapper(requests=[{"at": "1m", "request": {**REQUEST, "start": 2 * HOUR}}])
    assert made.plan(GuestCycle(HOUR, ())) == []


def test_bad_requests_are_named() -> None:
    """What is wrong with a request is said by its place among the settings."""
    with pytest.raises(SettingsError, match=r"requests\[0\].request.sites: found 0"):
        mapper(requests=[{"at": 0, "request": {"sites": [], "start": 1, "duration": 1}}])
    with pytest.raises(SettingsError, match=r"streams\[0\].request"):
        mapper(streams=[{"every": "1m", "request": {"sites": 3, "duration": 1}}])
