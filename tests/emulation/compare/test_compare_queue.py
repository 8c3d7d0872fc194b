"""The view of what waits: a sequence like any other, whatever comes and goes."""

from __future__ import annotations

from broker_requests import waiting_request
from hypothesis import given
from hypothesis import strategies as st

from leasekit.core.mappers import PendingRequest
from leasekit.core.time import Term
from leasekit.emulation.compare.queue import Waiting

STEPS = st.lists(st.one_of(st.just("add"), st.integers(0, 30), st.tuples(st.just("later"), st.integers(1, 50))))


def _as_a_broker_shows(request: PendingRequest, now: int) -> PendingRequest:
    start, end = request.term
    return request if start >= now else request._replace(term=Term(now, now + end - start))


@given(STEPS)
def test_it_is_the_list_that_a_broker_would_make(steps: list[object]) -> None:
    """After any adding, removing and passing of time it holds what a list made anew would hold, whichever way it is
    read.
    """
    waiting, plain, now, number = Waiting(), dict[str, PendingRequest](), 0, 0
    for step in steps:
        if step == "add":
            request = waiting_request(str(number), start=now + number % 7, length=10 + number)
            waiting.add(number, request)
            plain[request.lease] = request
            number += 1
        elif isinstance(step, int):
            if plain:
                lease = list(plain)[step % len(plain)]
                del plain[lease]
                waiting.remove(lease)
        else:
            assert isinstance(step, tuple)
            now += step[1]
            waiting.at(now)
        expected = [_as_a_broker_shows(request, now) for request in plain.values()]
        assert waiting[: len(waiting) // 2] == expected[: len(expected) // 2]
        assert list(reversed(waiting)) == expected[::-1]
        assert list(waiting) == expected
        assert len(waiting) == len(expected)
        assert bool(waiting) == bool(expected)
        assert [waiting[place] for place in range(-len(expected), len(expected))] == expected * 2


def test_what_waits_is_found_by_its_lease() -> None:
    """The request as it is now; None for what does not wait."""
    waiting = Waiting()
    waiting.add(3, waiting_request("3", start=5, length=10))
    waiting.at(8)
    found = waiting.find("3")
    assert found is not None
    assert found.term == Term(8, 18)
    waiting.remove("3")
    assert waiting.find("3") is None
