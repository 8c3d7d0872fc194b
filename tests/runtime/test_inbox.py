"""The inbox: order within a lane, turns between lanes by what they cost, room for those that have nothing in it."""

from __future__ import annotations

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from leasekit.core.protocol.messages import Ack
from leasekit.core.steps import Command, Connected, Disconnected, Input, Received, Tick, TurnDone
from leasekit.runtime.queues import FEWEST, OWN, ROUND, Inbox, Pace, payer

PLENTY = 2**30


def received(peer: str, count: int, first: int = 0) -> list[Input]:
    """Messages of one peer, numbered."""
    return [Received(peer, Ack("L", number)) for number in range(first, first + count)]


def taken(inbox: Inbox, most: int, **costs: float) -> list[Input]:
    """Up to so many inputs, in their turns; those of a peer take so many seconds each."""
    found: list[Input] = []
    while len(found) < most and (one := inbox.take()) is not None:
        found.append(one)
        if (peer := payer(one)) is not None:
            inbox.charge(peer, costs.get(peer, 0.0))
    return found


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 5)) | st.integers(1, 7), max_size=40),
    st.dictionaries(st.sampled_from("abc"), st.floats(0, 10)),
)
def test_nothing_is_lost_and_lanes_keep_their_order(
    steps: list[tuple[str, int] | int], costs: dict[str, float]
) -> None:
    """Whatever is put and taken, each peer's inputs come out once, in the order in which they were put."""
    inbox, put, out = Inbox(1000, PLENTY), dict.fromkeys("abc", 0), []
    for step in steps:
        if isinstance(step, int):
            before, found = len(inbox), taken(inbox, step, **costs)
            assert len(found) == min(before, step)
            out += found
        else:
            inbox.put_now(*received(step[0], step[1], put[step[0]]))
            put[step[0]] += step[1]
    out += taken(inbox, 1000)
    assert len(inbox) == 0
    for name, count in put.items():
        assert [one for one in out if one.peer == name] == received(name, count)  # type: ignore[union-attr]


@given(st.dictionaries(st.sampled_from("abcd"), st.floats(0.001, 1), min_size=2))
def test_peers_are_served_by_what_they_cost(costs: dict[str, float]) -> None:
    """While all of them have something to say none gets more of the actor's time than another and one message each."""
    inbox, used = Inbox(PLENTY, PLENTY), dict.fromkeys(costs, 0.0)
    for name in costs:
        inbox.put_now(*received(name, 300))
    for _ in range(200):
        (one,) = taken(inbox, 1, **costs)
        used[one.peer] += costs[one.peer]  # type: ignore[union-attr]
        assert max(used.values()) - min(used.values()) <= 2 * max(costs.values())


def test_a_busy_peer_waits_behind_itself() -> None:
    """Where thousands of dear messages wait, who comes anew is next, and so is its second message."""
    inbox = Inbox(20_000, PLENTY)
    inbox.put_now(*received("busy", 5000))
    taken(inbox, 100, busy=0.1)
    inbox.put_now(*received("a", 3), Tick(1))
    assert taken(inbox, 5, busy=0.1, a=0.001)[-4:].count(Received("busy", Ack("L", 100))) == 1
    assert taken(inbox, 1, busy=0.1) == received("busy", 1, 101)


def test_nobody_saves_up_turns() -> None:
    """Who has said nothing while another used much gets every second turn from then on, not all of them."""
    inbox = Inbox(20_000, PLENTY)
    inbox.put_now(*received("busy", 200))
    taken(inbox, 100, busy=1.0)
    inbox.put_now(*received("late", 50))
    found = taken(inbox, 40, busy=1.0, late=1.0)
    assert 19 <= sum(one.peer == "late" for one in found) <= 21  # type: ignore[union-attr]


def test_what_was_in_vain_counts() -> None:
    """A peer that has been charged for what never came to be a message has its turn later."""
    inbox = Inbox(20_000, PLENTY)
    inbox.charge("forger", 1.0)
    inbox.put_now(*received("forger", 2))
    inbox.put_now(*received("a", 5))
    assert [one.peer for one in taken(inbox, 7, a=0.1)] == [*"aaaaa", "forger", "forger"]  # type: ignore[union-attr]


def test_the_shells_own_inputs_cost_nobody_anything() -> None:
    """Ends of what was set going are nobody's turn; commands are the operator's."""
    assert [payer(one) for one in (TurnDone(1), Command(1, "x", {}), *received("a", 1))] == [None, OWN, "a"]


def test_a_peer_that_comes_and_goes_waits_behind_itself() -> None:
    """Connecting is the peer's own doing: it takes its turns, in order with what it says, and pays for them."""
    inbox = Inbox(20_000, PLENTY)
    coming: list[Input] = [Connected("a"), *received("a", 1), Disconnected("a")] * 3
    inbox.put_now(*coming)
    inbox.put_now(*received("b", 5))
    found = taken(inbox, 14, a=1.0)
    assert [one for one in found if one.peer == "a"] == coming  # type: ignore[union-attr]
    assert [one.peer for one in found][:6].count("b") == 5  # type: ignore[union-attr]


def test_a_lone_peer_has_all_of_it() -> None:
    """Who is alone gets every turn."""
    inbox = Inbox(20_000, PLENTY)
    inbox.put_now(*received("a", 500))
    assert taken(inbox, 200, a=1.0) == received("a", 200)
    assert taken(inbox, 1000) == received("a", 300, 200)


def test_turns_go_round() -> None:
    """Where no cost is measured no lane is taken from twice before the others had their turn."""
    inbox = Inbox(20_000, PLENTY)
    for name in "abc":
        inbox.put_now(*received(name, 3))
    order = [one.peer for one in taken(inbox, 9)]  # type: ignore[union-attr]
    assert all(sorted(order[at : at + 3]) == ["a", "b", "c"] for at in (0, 3, 6))


def test_a_round_is_as_long_as_it_may_be() -> None:
    """Rounds grow while they are short, shrink when one was long, and have some inputs in any case."""
    pace = Pace(2000)
    for _ in range(100):
        pace.note(pace.size, pace.size * ROUND / 200)
    assert 100 <= pace.size <= 301
    for _ in range(20):
        pace.note(pace.size, 1.0)
    assert pace.size == FEWEST
    pace.note(1, 0.001)
    assert pace.size == FEWEST
    assert Pace(3).size == 3


async def test_bytes_take_room_as_well(autojump_clock: trio.testing.MockClock) -> None:
    """A few messages that are very long fill the inbox like many short ones, until they are taken."""
    inbox = Inbox(1000, 100)
    await inbox.put(received("busy", 2), 120)
    with pytest.raises(trio.TooSlowError), trio.fail_after(1):
        await inbox.put(received("busy", 1), 1)
    with trio.fail_after(1):
        await inbox.put(received("other", 1), 500)
    assert len(taken(inbox, 3)) == 3
    with trio.fail_after(1):
        await inbox.put(received("busy", 1), 1)


async def test_who_has_nothing_in_it_always_finds_room(autojump_clock: trio.testing.MockClock) -> None:
    """A peer that has filled the inbox waits; others, and the shell's own inputs, do not."""
    inbox = Inbox(10, PLENTY)
    await inbox.put(received("busy", 25))
    with pytest.raises(trio.TooSlowError), trio.fail_after(1):
        await inbox.put(received("busy", 1))
    with trio.fail_after(1):
        await inbox.put(received("other", 1))
        inbox.put_now(Connected("busy"))
    assert len(inbox) == 27


async def test_who_waits_gets_in_when_there_is_room(autojump_clock: trio.testing.MockClock) -> None:
    """A peer that waits for room is let in once enough of what it has sent was taken."""
    inbox, done = Inbox(10, PLENTY), trio.Event()
    await inbox.put(received("busy", 12))

    async def more() -> None:
        await inbox.put(received("busy", 1, 12))
        done.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(more)
        await trio.testing.wait_all_tasks_blocked()
        taken(inbox, 2)
        await trio.testing.wait_all_tasks_blocked()
        assert not done.is_set()
        taken(inbox, 1)
        await done.wait()
    assert taken(inbox, 100) == received("busy", 10, 3)
