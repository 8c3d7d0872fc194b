"""The executor: time limits, retries, bounds, one action at a time per unit, and drivers that misbehave."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import trio
from limited_drivers import limited
from polling import PATIENCE, poll

from leasekit.core.drivers import LEASE, SITE, UNIT, DriverError, SiteFaultError, UnitContext
from leasekit.core.steps import Action, ActionDone
from leasekit.core.time import HOUR
from leasekit.drivers.null import NullDriver, NullSettings
from leasekit.runtime.executor import Executor
from leasekit.runtime.logs import UnitLogs


class Doing(NullDriver):
    """A driver whose every action is done by a function."""

    def __init__(self, do: Callable[[UnitContext], Awaitable[Any]]) -> None:
        super().__init__(NullSettings())
        self.setup = self.teardown = self.modify = self.join = self.leave = do  # type: ignore[assignment, method-assign]


class Bench:
    """An executor with one driver, and the ends of its actions in order."""

    def __init__(
        self,
        folder: Path,
        do: Callable[[UnitContext], Awaitable[Any]],
        waits: tuple[int, int] = (10, 20),
        **limits: Any,
    ) -> None:
        self.logs = UnitLogs(folder / "units", lambda: 0)
        self.ends: list[ActionDone] = []
        self._changed = trio.Event()
        bound = limited(Doing(do), **{"retries": 0, **limits})
        self.executor = Executor(
            lambda type_: bound if type_ == "vm" else None,
            self.logs,
            self._done,
            retry_first=waits[0],
            retry_longest=waits[1],
        )

    def _done(self, done: ActionDone) -> None:
        self.ends.append(done)
        self._changed.set()
        self._changed = trio.Event()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Executor]:
        async with trio.open_nursery() as nursery:
            await nursery.start(self.executor.run)
            yield self.executor
            nursery.cancel_scope.cancel()

    async def end(self, count: int = 1) -> ActionDone:
        """The last end, once there are ``count``."""
        with trio.fail_after(PATIENCE):
            while len(self.ends) < count:
                await self._changed.wait()
        return self.ends[-1]

    def log(self, unit: str = "vm-0") -> str:
        return "\n".join(self.logs.tail(unit, 1000))


def action(number: int, op: str = "setup", unit: str = "vm-0", type_: str = "vm") -> Action:
    return Action(number, op, unit, type_, "lease-1", {"memory_mb": "512"})


async def test_success_gives_the_units_properties(tmp_path: Path) -> None:
    """What a driver returns are the unit's properties; it is told all that the action says."""
    contexts: list[UnitContext] = []

    async def do(unit: UnitContext) -> Any:
        contexts.append(unit)
        unit.log("half way")
        return {"host": "h"}

    bench = Bench(tmp_path, do)
    async with bench.running() as executor:
        executor.start([action(7)])
        assert await bench.end() == ActionDone(7, "vm-0", True, {"host": "h"})
    (told,) = contexts
    assert (told.unit, told.type, told.lease, told.op, told.number) == ("vm-0", "vm", "lease-1", "setup", 7)
    assert told.properties == {"memory_mb": "512"}
    assert "lease-1 setup #7: half way" in bench.log()
    assert "lease-1 setup #7: done in" in bench.log()


async def raise_(error: BaseException) -> None:
    raise error


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (DriverError("no such image", retry=False), "no such image"),
        (ValueError("oops"), "the driver failed in setup: ValueError: oops"),
        (ExceptionGroup("", [DriverError("one", retry=False), DriverError("two")]), "one; two"),
        (ExceptionGroup("", [KeyError("k")]), "the driver failed in setup: KeyError: 'k'"),
        (SystemExit(2), "the driver failed in setup: SystemExit: 2"),
        (DriverError("two\nlines\x1b[2J and more", retry=False), "two lines\\x1b[2J and more"),
    ],
)
async def test_whatever_is_raised_is_the_units_reason(tmp_path: Path, error: BaseException, reason: str) -> None:
    """Planned errors, bugs and groups of them fail the unit in one line; the executor goes on."""
    calls: list[int] = []

    async def do(unit: UnitContext) -> Any:
        calls.append(unit.number)
        if unit.number == 1:
            await raise_(error)

    bench = Bench(tmp_path, do, retries=3)
    async with bench.running() as executor:
        executor.start([action(1)])
        done = await bench.end()
        assert (done.ok, done.reason) == (False, reason)
        executor.start([action(2)])
        assert (await bench.end(2)).ok
    assert calls == [1, 2], "what can't get better is not tried again"


async def test_a_bugs_traceback_is_in_the_units_log(tmp_path: Path) -> None:
    """The operator finds where a driver failed in the unit's own log."""

    async def do(unit: UnitContext) -> Any:
        return unit.properties["missing"]

    bench = Bench(tmp_path, do)
    async with bench.running() as executor:
        executor.start([action(1)])
        await bench.end()
    assert "Traceback" in bench.log()
    assert 'unit.properties["missing"]' in bench.log()


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        ("text", "the driver's result of setup: found str"),
        ({"a": 1}, "the driver's result of setup.a: found 1"),
        ({1: "a"}, "the driver's result of setup: key 1"),
        ({str(n): "" for n in range(300)}, "found 300 pairs"),
    ],
)
async def test_garbage_is_no_unit_property(tmp_path: Path, result: Any, reason: str) -> None:
    """What is not a short list of string pairs fails the unit, with what was found."""

    async def do(unit: UnitContext) -> Any:
        return result

    bench = Bench(tmp_path, do)
    async with bench.running() as executor:
        executor.start([action(1)])
        done = await bench.end()
    assert not done.ok
    assert reason in done.reason


async def test_a_type_without_a_driver(tmp_path: Path) -> None:
    """An action on a type that no driver is set for fails and names the type."""

    async def do(unit: UnitContext) -> Any:
        raise AssertionError("not called")

    bench = Bench(tmp_path, do)
    async with bench.running() as executor:
        executor.start([action(1, type_="gpu")])
        assert (await bench.end()).reason == "no driver is set for type 'gpu'"


async def test_a_teardown_without_a_driver_waits_for_one(tmp_path: Path) -> None:
    """What runs at the unit would go on otherwise. Why it waits is told; a daemon that stops does not wait for it."""
    torn_down: list[str] = []

    async def do(unit: UnitContext) -> Any:
        torn_down.append(unit.unit)
        return {}

    bench = Bench(tmp_path, do)
    async with bench.running() as executor:
        bound = executor.driver_of("vm")
        for number, unit in enumerate(("gpu-0", "gpu-1"), 1):
            executor.start([action(number, "teardown", unit, "gpu")])
            await poll(partial(executor.trouble, unit))
            assert executor.trouble(unit) == "teardown fails: no driver is set for type 'gpu'"
            if unit == "gpu-0":
                executor.use(lambda type_: bound)
                assert (await bench.end()).ok and torn_down == ["gpu-0"]
                executor.use(lambda type_: None)
        with trio.fail_after(PATIENCE):
            await executor.stop(HOUR)
    assert torn_down == ["gpu-0"]


async def test_a_hanging_action_is_cut_off(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """Each try may take the timeout, and no longer; then it is tried again, and at last given up."""
    tries: list[float] = []

    async def do(unit: UnitContext) -> Any:
        tries.append(trio.current_time())
        await trio.sleep_forever()

    bench = Bench(tmp_path, do, timeout=2_000, retries=2)
    began = trio.current_time()
    async with bench.running() as executor:
        executor.start([action(1)])
        await bench.end()
    assert [round(at - began, 2) for at in tries] == [0, 2.01, 4.03]
    assert bench.ends[0].reason == "setup took longer than 2s"


async def test_what_may_get_better_is_tried_again(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """A retryable failure is tried again after a wait that doubles up to its limit, as often as is set."""
    tries: list[float] = []

    async def do(unit: UnitContext) -> Any:
        tries.append(trio.current_time())
        if len(tries) < 4:
            raise DriverError("busy")
        return {"host": "h"}

    bench = Bench(tmp_path, do, retries=3)
    async with bench.running() as executor:
        executor.start([action(1)])
        await trio.sleep(1)
    assert bench.ends == [ActionDone(1, "vm-0", True, {"host": "h"})]
    assert [round(later - earlier, 3) for earlier, later in pairwise(tries)] == [0.01, 0.02, 0.02]
    assert "busy; again in 10ms (3 tries left)" in bench.log()


async def test_a_teardown_is_not_given_up_with_its_retries(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A host that is down for half an hour as a lease ends: its unit is torn down when it is up again, and until then
    the reason is told; a setup there has failed long since.
    """
    up_at = trio.current_time() + 1800

    tries: list[float] = []

    async def do(unit: UnitContext) -> Any:
        if unit.op == "teardown":
            tries.append(trio.current_time())
        if trio.current_time() < up_at:
            raise DriverError("can't connect")

    bench = Bench(tmp_path, do, (1_000, 60_000), retries=2, teardown_for=3_600_000)
    async with bench.running() as executor:
        executor.start([action(1, "setup", "vm-1"), action(2, "teardown", "vm-0")])
        await trio.sleep(1700)
        assert [(end.unit, end.ok) for end in bench.ends] == [("vm-1", False)]
        assert (executor.trouble("vm-0"), executor.trouble("vm-1")) == ("teardown fails: can't connect", "")
        assert executor.counts() == {"running": 0, "waiting": 1}, "between tries others may have its turn"
        await trio.sleep(200)
        assert bench.ends[1:] == [ActionDone(2, "vm-0", True, {})]
        assert executor.trouble("vm-0") == ""
    waits = [round(later - earlier) for earlier, later in pairwise(tries)]
    assert waits[:8] == [1, 2, 4, 8, 16, 32, 60, 60]
    assert set(waits[8:]) == {60}
    assert "can't connect; again in 1m (for 57m57s more)" in bench.log()
    told = [record.message for record in caplog.records if "tried again" in record.message]
    assert told == ["teardown of vm-0 fails, and is tried again (for 59m57s more): can't connect"], "once"


async def test_a_teardown_is_given_up_in_the_end(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """After the time that is set, or at once when it can't get better; and as often as any action where no time is."""
    tries: dict[str, int] = {}

    async def do(unit: UnitContext) -> Any:
        tries[unit.unit] = tries.get(unit.unit, 0) + 1
        raise DriverError("can't connect", retry=unit.unit != "broken")

    bench = Bench(tmp_path, do, (1_000, 10_000), retries=1, teardown_for=60_000)
    async with bench.running() as executor:
        executor.start([action(1, "teardown"), action(2, "teardown", "broken")])
        await trio.sleep(59)
        assert [(end.unit, end.ok, end.reason) for end in bench.ends] == [("broken", False, "can't connect")]
        await trio.sleep(11)
    assert [(end.unit, end.ok, end.reason) for end in bench.ends[1:]] == [("vm-0", False, "can't connect")]
    assert tries["broken"] == 1
    plain = Bench(tmp_path, do, retries=1, teardown_for=0)
    async with plain.running() as executor:
        executor.start([action(3, "teardown", "other")])
        await trio.sleep(1)
    assert (tries["other"], plain.ends[0].reason) == (2, "can't connect")


async def test_a_teardown_that_is_tried_again_keeps_nobody_waiting(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """Between its tries other actions of the driver have their turn, a newer one replaces it at once, and so does a
    stop of the daemon end it, without a word to the actor: it is due at the next start.
    """

    async def do(unit: UnitContext) -> Any:
        if unit.unit == "down":
            raise DriverError("can't connect")

    bench = Bench(tmp_path, do, (1_000, 60_000), concurrency=1)
    async with bench.running() as executor:
        executor.start([action(1, "teardown", "down"), action(2, "setup", "other")])
        await trio.sleep(1)
        assert [end.unit for end in bench.ends] == ["other"]
        executor.start([action(3, "setup", "down")])
        await trio.sleep(1)
        assert [(end.number, end.ok) for end in bench.ends[1:]] == [(3, False)]
        executor.start([action(4, "teardown", "down")])
        await trio.sleep(100)
        before = trio.current_time()
        await executor.stop(10_000)
        assert trio.current_time() - before < 0.1
    assert len(bench.ends) == 2
    assert "teardown #4: cancelled" in bench.log("down")


async def test_no_more_at_once_than_is_set(tmp_path: Path) -> None:
    """The bound on concurrency holds over all units of a driver, and all get their turn."""
    now, most = 0, 0

    async def do(unit: UnitContext) -> Any:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await trio.testing.wait_all_tasks_blocked()
        now -= 1

    bench = Bench(tmp_path, do, concurrency=3)
    async with bench.running() as executor:
        executor.start([action(number, unit=f"vm-{number}") for number in range(1, 11)])
        assert executor.counts() == {"running": 0, "waiting": 10}
        await bench.end(10)
    assert most == 3


async def test_a_newer_action_replaces_an_older_one(tmp_path: Path) -> None:
    """A teardown cancels the setup under way, and begins when that has ended, not before; only the newer is told of."""
    notes: list[str] = []
    begun = trio.Event()

    async def do(unit: UnitContext) -> Any:
        notes.append(f"{unit.op} begins")
        begun.set()
        try:
            if unit.op == "setup":
                await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.testing.wait_all_tasks_blocked()
            notes.append(f"{unit.op} ends")

    bench = Bench(tmp_path, do)
    async with bench.running() as executor:
        executor.start([action(1, "setup")])
        await begun.wait()
        executor.start([action(2, "teardown")])
        assert (await bench.end()).number == 2
    assert notes == ["setup begins", "setup ends", "teardown begins", "teardown ends"]
    assert [end.number for end in bench.ends] == [2]
    assert "setup #1: cancelled: teardown comes after it" in bench.log()


async def test_only_the_newest_of_those_that_wait_is_done(tmp_path: Path) -> None:
    """Of several actions that come while one ends, the last one counts; repeats and older ones change nothing."""
    done: list[int] = []
    begun = trio.Event()

    async def do(unit: UnitContext) -> Any:
        done.append(unit.number)
        if unit.number == 5:
            begun.set()
            await trio.sleep_forever()

    bench = Bench(tmp_path, do)
    async with bench.running() as executor:
        executor.start([action(5)])
        await begun.wait()
        executor.start([action(5), action(4), action(6, "teardown"), action(7), action(6, "teardown")])
        assert (await bench.end()).number == 7
        await trio.testing.wait_all_tasks_blocked()
    assert done == [5, 7]
    assert [end.number for end in bench.ends] == [7]


async def test_an_end_may_bring_the_next_action(tmp_path: Path) -> None:
    """What the actor asks for on hearing of an end is done, although the lane has just been left."""
    bench: Bench

    async def do(unit: UnitContext) -> Any:
        return {"n": str(unit.number)}

    bench = Bench(tmp_path, do)
    inner = bench.executor._done

    def chain(done: ActionDone) -> None:
        inner(done)
        if done.number < 5:
            bench.executor.start([action(done.number + 1)])

    bench.executor._done = chain
    async with bench.running() as executor:
        executor.start([action(1)])
        await bench.end(5)
    assert [end.properties["n"] for end in bench.ends] == ["1", "2", "3", "4", "5"]


async def test_stop_waits_then_cancels(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    """At a stop what finishes within the grace time is told of, the rest is cancelled, and what waits not begun."""
    begun: list[str] = []

    async def do(unit: UnitContext) -> Any:
        begun.append(unit.unit)
        await trio.sleep(3 if unit.unit == "vm-1" else 30)

    bench = Bench(tmp_path, do, concurrency=2)
    async with bench.running() as executor:
        executor.start([action(number, unit=f"vm-{number}") for number in (1, 2)])
        await trio.sleep(1)
        executor.start([action(3, unit="vm-3")])
        assert executor.counts() == {"running": 2, "waiting": 1}
        before = trio.current_time()
        await executor.stop(10_000)
        assert trio.current_time() - before == pytest.approx(10, abs=0.01)
        executor.start([action(9, unit="vm-9")])
        await trio.sleep(1)
    assert sorted(begun) == ["vm-1", "vm-2"]
    assert [end.unit for end in bench.ends] == ["vm-1"]


@pytest.mark.parametrize(
    ("error", "blame"),
    [
        (DriverError("no such image", blame=LEASE), LEASE),
        (SiteFaultError("the directory is down", retry=False), SITE),
        (DriverError("it broke", retry=False), UNIT),
        (ValueError("oops"), UNIT),
        (ExceptionGroup("", [DriverError("one", blame=LEASE), DriverError("two", blame=LEASE)]), LEASE),
        (ExceptionGroup("", [DriverError("one", blame=LEASE), DriverError("two", retry=False)]), UNIT),
        (ExceptionGroup("", [DriverError("one", blame=LEASE), SiteFaultError("two")]), SITE),
        (ExceptionGroup("", [SiteFaultError("one"), ValueError("oops")]), UNIT),
    ],
)
async def test_whose_fault_it_is_goes_with_the_reason(tmp_path: Path, error: Exception, blame: str) -> None:
    """What a driver says; a bug is the unit's, and of several at once what the site lacks comes first."""

    async def do(unit: UnitContext) -> Any:
        await raise_(error)

    bench = Bench(tmp_path, do)
    async with bench.running() as executor:
        executor.start([action(1)])
        assert (await bench.end()).blame == blame


async def test_no_driver_is_the_sites_fault(tmp_path: Path) -> None:
    """A type without a driver keeps no unit out of service."""

    async def do(unit: UnitContext) -> Any: ...

    bench = Bench(tmp_path, do)
    async with bench.running() as executor:
        executor.start([action(1, type_="gpu")])
        assert (await bench.end()).blame == SITE


async def test_a_teardown_waits_for_its_site_as_long_as_it_takes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A teardown that fails by the site's fault is never given up, also where the driver would not try it again, and is
    told of once.
    """
    calls: list[int] = []

    async def do(unit: UnitContext) -> Any:
        calls.append(unit.number)
        if len(calls) < 8:
            raise SiteFaultError("the directory is down", retry=False)

    bench = Bench(tmp_path, do, waits=(1, 1), teardown_for=0)
    async with bench.running() as executor:
        executor.start([action(1, "teardown")])
        assert (await bench.end()).ok
    assert calls == [1] * 8
    assert caplog.text.count("is tried again (until the site is mended): the directory is down") == 1


async def test_the_sites_fault_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Eight setups that fail by the site's fault are one warning, one says that it is mended; a lease's are none."""
    error: Exception | None = SiteFaultError("the directory is down")

    async def do(unit: UnitContext) -> Any:
        if error is not None:
            raise error

    bench = Bench(tmp_path, do)
    async with bench.running() as executor:
        executor.start([action(number, unit=f"vm-{number}") for number in range(1, 9)])
        await bench.end(8)
        error = None
        executor.start([action(9)])
        await bench.end(9)
        error = DriverError("no such image", blame=LEASE)
        executor.start([action(10)])
        await bench.end(10)
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert ["until that is mended" in text for text in warnings] == [True, False]
    assert warnings[1] == "units of type vm can be set up again"
