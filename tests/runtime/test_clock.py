"""The clock: what is a jump, what is followed, what an operator accepts, and what of it outlives the daemon."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import trio
from runtime_world import make_shell, running, until

from leasekit.config.instants import dated
from leasekit.core.answers import ClockDetails
from leasekit.core.errors import CommandError
from leasekit.core.reasons import mark, read, words
from leasekit.core.schema import Change
from leasekit.core.time import DAY, HOUR, MINUTE, SECOND, Duration, Instant, format_duration
from leasekit.runtime import clock as clocks
from leasekit.runtime.clock import ANCHOR_KEY, BOOT_KEY, LAST_KEY, RealClock
from leasekit.runtime.shell import ActorShell, ActorStoppedError
from leasekit.stores.memory import MemoryStore

START: Instant = 1_800_000_000_000
MILLISECOND = 1_000_000
SKEW = 2 * SECOND


class Machine:
    """A machine whose clock is set and whose time passes as the test says; all in milliseconds."""

    def __init__(self) -> None:
        self.boot, self.up, self.ahead = 1, 5_000, 0
        self.elapsed: Callable[[], Duration] = lambda: self.up

    @property
    def system(self) -> Instant:
        return START + self.elapsed() + self.ahead

    def clock(self, skew: Duration = SKEW) -> RealClock:
        """The clock of a daemon that starts now."""
        return RealClock(
            skew,
            system=lambda: self.system * MILLISECOND,
            elapsed=lambda: self.elapsed() * MILLISECOND,
            boot=self.boot,
        )

    def reboot(self) -> None:
        self.boot, self.ahead, self.up = self.boot + 1, self.ahead + self.up, 0


@pytest.fixture
def machine() -> Machine:
    return Machine()


def kept(clock: RealClock) -> dict[str, int]:
    """What a store holds after a commit now."""
    return {LAST_KEY: clock.now(), **clock.unkept()}


@pytest.mark.parametrize("step", [1, SKEW, -1, -SKEW])
def test_a_step_within_the_skew_is_followed(machine: Machine, step: Duration) -> None:
    """Ahead at once; back by half the pace, so that time never stands still, and soon agrees."""
    clock = machine.clock()
    before = clock.now()
    machine.ahead = step
    assert clock.now() == before + max(step, 0)
    seen = [clock.now()]
    for _ in range(2 * SKEW // 100):
        machine.up += 100
        seen.append(clock.now())
    assert all(later > earlier for earlier, later in pairwise(seen))
    assert clock.now() == machine.system
    assert clock.trouble() == ""


@pytest.mark.parametrize("step", [SKEW + 1, 2 * HOUR, 400 * DAY, -SKEW - 1, -2 * HOUR, -400 * DAY])
def test_a_jump_is_not_followed(machine: Machine, step: Duration, caplog: pytest.LogCaptureFixture) -> None:
    """Time goes on at the old pace however long it lasts, and is told once; set right again, all is as before."""
    clock = machine.clock()
    began = clock.now()
    machine.ahead = step
    for passed in range(0, 30 * DAY, 7 * HOUR):
        machine.up = 5_000 + passed
        assert clock.now() == began + passed
    assert clock.describe() == ClockDetails("held", clock.now(), step, began)
    assert len(caplog.records) == 1 and caplog.records[0].levelno == logging.ERROR
    machine.ahead = 0
    assert clock.now() == machine.system
    assert clock.describe().state == "agrees" and clock.trouble() == ""
    assert "right again" in caplog.records[-1].message


def test_words_of_a_jump(machine: Machine) -> None:
    """They say by how much, since when and what to do."""
    clock = machine.clock()
    machine.ahead = 2 * HOUR + 300
    told = dated(clock.trouble())
    assert "was set 2h ahead at 2027-01-15T08:00:05Z: time goes on at the old pace" in told
    assert "`leasekit clock accept`" in told
    machine.ahead = -2 * HOUR
    assert "set back by 2h" in clock.trouble()


def test_small_steps_do_not_hide_a_jump(machine: Machine) -> None:
    """A clock that is stepped by just less than the skew each second is not followed twice."""
    clock = machine.clock()
    before = clock.now()
    for _ in range(10):
        machine.up += SECOND
        machine.ahead += SKEW - 100
        clock.now()
    assert clock.now() == before + 10 * SECOND + SKEW - 100
    assert clock.describe().state == "held"


def test_from_one_end_of_the_skew_to_the_other_is_a_jump(machine: Machine) -> None:
    """Though each end is within the skew of where the clock was, the step between them is not."""
    clock = machine.clock()
    machine.ahead = 1_500
    assert clock.describe().state == "agrees"
    machine.ahead = -1_500
    assert clock.describe().state == "held"


def test_small_steps_of_months_are_no_jump(machine: Machine) -> None:
    """A poor clock that is put right by half a second each quarter of an hour is followed all the way."""
    clock = machine.clock()
    for _ in range(4 * 24 * 60):
        for _ in range(15):
            machine.up += MINUTE
            clock.now()
        machine.ahead += 500
        assert clock.describe().state == "agrees"
    assert clock.now() == machine.system


def test_a_sleep_of_the_machine_is_no_jump(machine: Machine) -> None:
    """What passes while it sleeps counts in both."""
    clock = machine.clock()
    machine.up += 8 * HOUR
    assert clock.now() == machine.system
    assert clock.trouble() == ""


@pytest.mark.parametrize("skew", [0, 1])
def test_no_skew_at_all(machine: Machine, skew: Duration) -> None:
    """Where no difference is allowed a tenth of a second still is: two clocks can't be read at once."""
    clock = machine.clock(skew)
    machine.ahead = 100
    assert clock.describe().state == "agrees"
    machine.ahead = 201
    assert clock.describe().state == "held"


def test_a_process_that_is_stopped_between_two_readings(machine: Machine) -> None:
    """Its own sleep is no step of the clock: it reads again."""
    clock = machine.clock()
    system = clock._system
    stops = iter([HOUR])

    def stopped() -> int:
        machine.up += next(stops, 0)
        return system()

    clock._system = stopped
    assert clock.now() == machine.system
    assert clock.trouble() == ""


def test_accepting_what_is_ahead(machine: Machine) -> None:
    """Time is the system's from then on; there is nothing to accept twice."""
    clock = machine.clock()
    machine.ahead = 2 * HOUR
    clock.now()
    assert clock.accept() == 2 * HOUR
    assert clock.now() == machine.system
    assert clock.trouble() == ""
    assert clock.accept() == 0


def test_what_is_behind_is_not_accepted(machine: Machine) -> None:
    """Time can't go back: the words say what helps, and the old pace holds."""
    clock = machine.clock()
    before = clock.now()
    machine.ahead = -2 * HOUR
    with pytest.raises(CommandError, match=r"stop the daemon, .* `leasekit up FILE --accept-clock`"):
        clock.accept()
    machine.up += MINUTE
    assert clock.now() == before + MINUTE and clock.describe().state == "held"


@pytest.mark.parametrize("step", [2 * HOUR, -2 * HOUR])
def test_a_restart_is_no_way_around(machine: Machine, step: Duration) -> None:
    """Whenever the clock has jumped, the pace before it holds; and what is right again is followed."""
    store = kept(machine.clock())
    machine.up += MINUTE
    machine.ahead = step
    clock = machine.clock()
    assert clock.resume(store) == 0
    assert clock.now() == store[LAST_KEY] + MINUTE
    assert clock.describe().state == "held" and clock.describe().ahead == step
    assert clock.unkept() == {}
    machine.ahead = 0
    assert clock.now() == machine.system and clock.trouble() == ""


def test_a_restart_after_it_was_accepted(machine: Machine) -> None:
    """Nobody needs to accept it twice."""
    clock = machine.clock()
    kept(clock)
    machine.ahead = 2 * HOUR
    clock.accept()
    store = kept(clock)
    assert store.keys() == {LAST_KEY, BOOT_KEY, ANCHOR_KEY}
    machine.up += MINUTE
    again = machine.clock()
    assert again.resume(store) == 0
    assert again.describe().state == "agrees"
    assert again.now() == machine.system
    assert again.unkept() == {}


def test_daemons_that_are_started_again_agree(machine: Machine) -> None:
    """One that has written a moment ago and one that has not for an hour have the same time in the middle of a jump."""
    busy, idle = machine.clock(), machine.clock()
    quiet = kept(idle)
    machine.up += HOUR
    stores = [quiet, {**quiet, LAST_KEY: busy.now()}]
    machine.ahead = -2 * HOUR
    clocks = [machine.clock(), machine.clock()]
    for clock, store in zip(clocks, stores, strict=True):
        clock.resume(store)
    assert clocks[0].now() == clocks[1].now() == busy.now()


def test_after_a_reboot_a_store_that_is_ahead_is_told(machine: Machine) -> None:
    """By how much; nothing is known of why, and time is not before the store's last instant."""
    store = kept(machine.clock())
    machine.reboot()
    machine.ahead -= HOUR
    clock = machine.clock()
    assert clock.resume(store) == HOUR
    machine.ahead += 2 * HOUR
    late = machine.clock()
    assert late.resume(store) == 0
    assert late.now() == machine.system
    assert late.unkept()[BOOT_KEY] == machine.boot


def test_steps_while_the_daemon_was_down(machine: Machine) -> None:
    """Small ones may add up over a month in which nobody looked, large ones may not over an hour."""
    store = kept(machine.clock())
    machine.ahead = 60 * SECOND
    machine.up += 30 * DAY
    clock = machine.clock()
    clock.resume(store)
    assert clock.now() == machine.system
    machine.up -= 30 * DAY - HOUR
    clock = machine.clock()
    clock.resume(store)
    assert clock.describe().state == "held"


def test_where_the_boot_is_not_known(machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without /proc nothing is kept, and the store's last instant is all there is."""
    machine.boot = 0
    clock = machine.clock()
    assert kept(clock).keys() == {LAST_KEY}
    monkeypatch.setattr(clocks, "Path", lambda path: tmp_path / "nothing")
    assert clocks.boot_number() == 0
    monkeypatch.undo()
    assert clocks.boot_number() == clocks.boot_number() > 0


def test_the_clock_of_this_machine() -> None:
    """Without anything injected it is the system's time of day."""
    before = time.time_ns() // MILLISECOND
    now = RealClock().now()
    assert before - 1 <= now <= time.time_ns() // MILLISECOND


# -- in a daemon's shell, in virtual time ----------------------------------------------------------------------------


@pytest.fixture
def virtual(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A machine whose time passes as trio's virtual clock does, which does not wait for threads: there are none."""

    async def in_line(function: Callable[..., Any], *arguments: Any) -> Any:
        await trio.lowlevel.checkpoint()
        return function(*arguments)

    monkeypatch.setattr(trio.to_thread, "run_sync", in_line)
    machine.elapsed = lambda: machine.up + round(trio.current_time() * SECOND)
    return machine


def shell_on(machine: Machine, folder: Path, store: MemoryStore, **changes: Any) -> ActorShell:
    return make_shell("guest", folder, store=store, clock=machine.clock(), settings={"tick": MINUTE}, **changes)


def store_written_at(instant: Instant) -> MemoryStore:
    store = MemoryStore()
    store.commit([Change("meta", LAST_KEY, (LAST_KEY, instant))])
    return store


def asked_for(machine: Machine, length: Duration = HOUR) -> dict[str, Any]:
    """A request that fails when nobody has answered it in ``length``."""
    start, most = machine.system - machine.ahead, {"deferrable": "true", "request_timeout": format_duration(length)}
    return {"type": "vm", "units": 1, "term": [start, start + length], "properties": most}


@pytest.mark.parametrize("step", [2 * HOUR, -2 * HOUR])
async def test_nothing_ends_by_a_jump(autojump_clock: Any, virtual: Machine, tmp_path: Path, step: Duration) -> None:
    """What is given up in an hour is so then, by the old pace, wherever the clock was set; requests are answered."""
    shell = shell_on(virtual, tmp_path, MemoryStore())
    async with running(shell):
        lease = (await shell.command("lease.request", asked_for(virtual)))["id"]
        virtual.ahead = step
        await trio.sleep(59 * 60)
        assert (await shell.query("lease", {"lease": lease}))["state"] == "nascent"
        told = (await shell.query("status", {}))["shell"]["clock"]
        assert told["state"] == "held" and told["ahead"] == step
        assert (await shell.command("lease.request", asked_for(virtual)))["id"]
        await until(shell, lambda: shell.actor.leases[lease].state == "failed", 120)


async def test_what_an_operator_accepts_ends_leases_and_is_history(
    autojump_clock: Any, virtual: Machine, tmp_path: Path
) -> None:
    """The reply follows the commit that has who accepted what; leases that are over by it end, once for all."""
    store = MemoryStore()
    shell = shell_on(virtual, tmp_path, store)
    async with running(shell):
        lease = (await shell.command("lease.request", asked_for(virtual)))["id"]
        virtual.ahead = 2 * HOUR
        told = await shell.command("clock.accept", {"by": "ann"})
        assert told["accepted"] and told["ahead"] == 2 * HOUR == told["now"] - told["before"]
        (row,) = [row for row in store.history("") if row.event == "clock_accepted"]
        assert words(read(row.why)) == "this machine's clock, which was 2h ahead, is accepted by ann"
        await until(shell, lambda: shell.actor.leases[lease].state == "failed")
        assert (await shell.command("clock.accept", {}))["accepted"] is False
        assert (await shell.query("status", {}))["shell"]["clock"]["state"] == "agrees"
    again = shell_on(virtual, tmp_path, store)
    async with running(again):
        assert (await again.query("status", {}))["shell"]["clock"]["state"] == "agrees"


async def test_a_daemon_that_has_nothing_to_write_keeps_its_clock(
    autojump_clock: Any, virtual: Machine, tmp_path: Path
) -> None:
    """After a reboot it is written at once by which clock the daemon goes: a crash in the middle of a jump finds it."""
    store = store_written_at(virtual.system)
    virtual.reboot()
    async with running(shell_on(virtual, tmp_path, store)):
        assert store.get("meta", BOOT_KEY) == (BOOT_KEY, virtual.boot)
    right, virtual.ahead = virtual.ahead, virtual.ahead + 2 * HOUR
    shell = shell_on(virtual, tmp_path, store)
    async with running(shell):
        told = (await shell.query("status", {}))["shell"]["clock"]
        assert told["state"] == "held" and told["now"] == virtual.system - virtual.ahead + right


@pytest.mark.parametrize("accept_clock", [False, True])
async def test_a_store_that_is_ahead_is_refused(
    autojump_clock: Any, virtual: Machine, tmp_path: Path, accept_clock: bool
) -> None:
    """With by how much, and what to do; there is no way around it but to wait."""
    future = virtual.system + SKEW + 1
    with pytest.raises(ActorStoppedError) as refused:
        await shell_on(virtual, tmp_path, store_written_at(future), accept_clock=accept_clock).run()
    assert refused.value.status == 1
    assert f"last written at {mark(future)}, which is 2s1ms ahead of this machine's clock" in str(refused.value)
    assert "start again when it shows that time" in str(refused.value)


async def test_a_clock_that_is_behind_is_accepted_at_a_start(
    autojump_clock: Any, virtual: Machine, tmp_path: Path
) -> None:
    """As soon as it is where the store is; until then the start is refused. It is in the history."""
    store = MemoryStore()
    async with running(shell := shell_on(virtual, tmp_path, store)):
        await shell.command("lease.request", asked_for(virtual))
        virtual.ahead = -2 * HOUR
        with pytest.raises(CommandError, match="set back by 2h"):
            await shell.command("clock.accept", {})
    with pytest.raises(ActorStoppedError, match="2h ahead of this machine's clock"):
        await shell_on(virtual, tmp_path, store, accept_clock=True).run()
    virtual.up += 2 * HOUR
    async with running(shell := shell_on(virtual, tmp_path, store, accept_clock=True)):
        assert shell.clock.describe().state == "agrees"
        assert shell.clock.now() == virtual.system
    (row,) = [row for row in store.history("") if row.event == "clock_accepted"]
    assert words(read(row.why)) == "this machine's clock, which was 2h behind, is accepted by up --accept-clock"
    async with running(shell := shell_on(virtual, tmp_path, store)):
        assert shell.clock.describe().state == "agrees"


@pytest.mark.parametrize("ahead", [1, SKEW])
async def test_a_store_that_is_ahead_by_less_is_waited_for(
    autojump_clock: Any, virtual: Machine, tmp_path: Path, ahead: Duration
) -> None:
    """The daemon starts at the store's last instant, by a clock that agrees."""
    future = virtual.system + ahead
    shell = shell_on(virtual, tmp_path, store_written_at(future))
    async with running(shell):
        assert virtual.system >= future
        assert (await shell.query("status", {}))["shell"]["clock"]["state"] == "agrees"
        assert shell.clock.now() == virtual.system
