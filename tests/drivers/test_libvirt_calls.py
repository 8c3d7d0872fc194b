"""Calls of libvirt that hang, and calls that nobody waits for any more."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import trio

from leasekit.core.drivers import DriverError
from leasekit.core.time import HOUR, SECOND
from leasekit.drivers.libvirt.calls import GivenUpError, LibvirtCalls, StoppedError, check_stopped
from leasekit.drivers.libvirt.connection import HostConnection, HostLostError
from leasekit.drivers.libvirt.settings import LibvirtHost


class Hanging:
    """Calls that begin, and go on until they are let go."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.go_on = threading.Event()
        self.done = 0

    def __call__(self) -> str:
        self.begun.release()
        self.go_on.wait()
        self.done += 1
        return "done"

    async def until_begun(self) -> None:
        await trio.to_thread.run_sync(self.begun.acquire)


@pytest.fixture
def hanging() -> Iterator[Hanging]:
    made = Hanging()
    yield made
    made.go_on.set()


async def test_a_call_that_hangs_is_given_up_and_keeps_its_turn(hanging):
    """Who waits for a call that hangs is told; so is who waits for a turn behind it, and there is no second thread."""
    calls = LibvirtCalls(1, 20)
    for ask in (calls.look, calls.act, calls.act):
        with pytest.raises(GivenUpError):
            await ask(hanging)
    await hanging.until_begun()
    assert not hanging.begun.acquire(blocking=False)
    hanging.go_on.set()
    while not hanging.done:
        await trio.sleep(0)
    assert await calls.act(lambda: "next") == "next"


async def test_who_cancels_waits_for_what_changes_something(hanging):
    """A cancelled call that changes something has ended, one way or the other, when the wait ends; a look has not."""
    calls = LibvirtCalls(2, HOUR)
    done = []
    async with trio.open_nursery() as nursery:

        async def act() -> None:
            try:
                await calls.act(hanging)
            finally:
                done.append(hanging.done)

        nursery.start_soon(act)
        await hanging.until_begun()
        nursery.cancel_scope.cancel()
        with trio.CancelScope(shield=True):
            with trio.move_on_after(0) as looked:
                await calls.look(hanging)
            assert (looked.cancelled_caught, done) == (True, [])
            hanging.go_on.set()
    assert done[0] >= 1


async def test_long_work_is_told_to_end(hanging):
    """Work that is cancelled is aborted until it ends, in another thread though all are busy; who cancelled sees no
    more than that.
    """
    calls, aborts = LibvirtCalls(1, HOUR), []

    def abort() -> None:
        aborts.append(hanging.done)
        hanging.go_on.set()

    def broken() -> None:
        hanging()
        raise OSError("aborted")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(calls.work, broken, abort)
        await hanging.until_begun()
        nursery.cancel_scope.cancel()
    assert (aborts, hanging.done) == ([0], 1)
    with pytest.raises(OSError, match="aborted"):
        await calls.work(broken)


async def test_long_work_that_looks_up_ends_early(hanging):
    """Work in pieces ends at the next one, and before the wait for it does."""
    calls, seen = LibvirtCalls(1, HOUR), []

    def work() -> None:
        hanging.begun.release()
        try:
            while True:
                check_stopped()
        except StoppedError:
            seen.append("stopped")
            raise

    async with trio.open_nursery() as nursery:
        nursery.start_soon(calls.work, work)
        await hanging.until_begun()
        nursery.cancel_scope.cancel()
    assert seen == ["stopped"]
    check_stopped()


async def test_long_work_that_does_not_end_is_given_up(hanging):
    """Work that goes on though it was cancelled is given up, and who waits learns that it may yet be done."""
    calls, caught = LibvirtCalls(1, 20), []
    async with trio.open_nursery() as nursery:

        async def work() -> None:
            try:
                await calls.work(hanging, lambda: None)
            except GivenUpError as error:
                caught.append(error)

        nursery.start_soon(work)
        await hanging.until_begun()
        nursery.cancel_scope.cancel()
    assert len(caught) == 1 and not hanging.done


async def test_a_host_whose_calls_hang_is_lost(hanging):
    """A call that hangs on a host that answers is a host lost, which may have done it; the error says what it was."""
    pytest.importorskip("libvirt")
    host = HostConnection(
        "here", LibvirtHost(uri="test:///default", pool="default-pool"), 2, 15 * SECOND, patience=SECOND
    )
    assert await host.look("can't ask", lambda connection: connection.getType()) == "TEST"
    with pytest.raises(
        HostLostError, match=r"host here: can't stop x: found no answer within 1s \(call_timeout\)"
    ) as caught:
        await host.call("can't stop x", lambda _: hanging())
    assert caught.value.retry and isinstance(caught.value, DriverError)
