"""The inbox: order within a lane, turns between lanes, room for those that have nothing in it."""

from __future__ import annotations

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from leasekit.core.protocol.messages import Ack
from leasekit.core.steps import Connected, Input, Received, Tick
from leasekit.runtime.queues import Inbox


def received(peer: str, count: int, first: int = 0) -> list[Input]:
    """Messages of one peer, numbered."""
    return [Received(peer, Ack("L", number)) for number in range(first, first + count)]


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 5)) | st.integers(1, 7), max_size=40),
)
def test_nothing_is_lost_and_lanes_keep_their_order(steps: list[tuple[str, int] | int]) -> None:
    """Whatever is put and taken, each peer's inputs come out once, in the order in which they were put."""
    inbox, put, taken = Inbox(1000), dict.fromkeys("abc", 0), []
    for step in steps:
        if isinstance(step, int):
            before, found = len(inbox), inbox.take(step)
            assert len(found) == min(before, step)
            taken += found
        else:
            inbox.put_now(*received(step[0], step[1], put[step[0]]))
            put[step[0]] += step[1]
    taken += inbox.take(1000)
    assert len(inbox) == 0
    for name, count in put.items():
        assert [one for one in taken if one.peer == name] == received(name, count)  # type: ignore[union-attr]


def test_a_busy_peer_waits_behind_itself() -> None:
    """Of a peer that has sent thousands and two that have sent a little, each gets its part of the next step."""
    inbox = Inbox(20_000)
    inbox.put_now(*received("busy", 5000))
    inbox.put_now(*received("a", 3))
    inbox.put_now(*received("b", 200))
    inbox.put_now(Tick(1))
    first = inbox.take(100)
    assert [first.count(one) for one in received("a", 3)] == [1, 1, 1]
    assert Tick(1) in first
    assert 24 <= sum(one in first for one in received("b", 200)) <= 60
    assert len(first) == 100
    assert len(inbox) == 5000 + 3 + 200 + 1 - 100


def test_a_lone_peer_has_all_of_it() -> None:
    """Who is alone gets the whole step."""
    inbox = Inbox(20_000)
    inbox.put_now(*received("a", 500))
    assert inbox.take(200) == received("a", 200)
    assert inbox.take(1000) == received("a", 300, 200)


def test_turns_go_round() -> None:
    """With room for one input in a step, no lane is taken from twice before the others had their turn."""
    inbox = Inbox(20_000)
    for name in "abc":
        inbox.put_now(*received(name, 3))
    order = [inbox.take(1)[0].peer for _ in range(9)]  # type: ignore[union-attr]
    assert all(sorted(order[at : at + 3]) == ["a", "b", "c"] for at in (0, 3, 6))


async def test_who_has_nothing_in_it_always_finds_room(autojump_clock: trio.testing.MockClock) -> None:
    """A peer that has filled the inbox waits; others, and the shell's own inputs, do not."""
    inbox = Inbox(10)
    await inbox.put(received("busy", 25))
    with pytest.raises(trio.TooSlowError), trio.fail_after(1):
        await inbox.put(received("busy", 1))
    with trio.fail_after(1):
        await inbox.put(received("other", 1))
        inbox.put_now(Connected("busy"))
    assert len(inbox) == 27


async def test_who_waits_gets_in_when_there_is_room(autojump_clock: trio.testing.MockClock) -> None:
    """A peer that waits for room is let in once enough of what it has sent was taken."""
    inbox, done = Inbox(10), trio.Event()
    await inbox.put(received("busy", 12))

    async def more() -> None:
        await inbox.put(received("busy", 1, 12))
        done.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(more)
        await trio.testing.wait_all_tasks_blocked()
        inbox.take(2)
        await trio.testing.wait_all_tasks_blocked()
        assert not done.is_set()
        inbox.take(1)
        await done.wait()
    assert inbox.take(100) == received("busy", 10, 3)
