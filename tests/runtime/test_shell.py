"""The shell: the order of commit, send, reply and start; turns; a store that fails; bugs; a graceful stop."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import trio
from polling import PATIENCE, poll
from runtime_world import GrantAll, delegated, make_actor, make_shell, request, running, until

from leasekit.actors.base import Actor
from leasekit.core.accounts import INVENTORY
from leasekit.core.answers import ShellDetails
from leasekit.core.drivers import DriverError, UnitContext
from leasekit.core.errors import CommandError
from leasekit.core.mappers import BrokerCycle, Grant, Reject, Wake
from leasekit.core.properties import EMPTY, Properties
from leasekit.core.protocol.messages import Accepted, Ack, Message, RequestTicket
from leasekit.core.reasons import Code, Reason
from leasekit.core.schema import LOG, Change, StoreError
from leasekit.core.steps import Input, Outgoing, Ready, Received, Reply, Tick, Turn, TurnDone
from leasekit.core.time import DAY, HOUR, Instant, Term
from leasekit.drivers.null import NullDriver, NullSettings
from leasekit.runtime.clock import RealClock
from leasekit.runtime.queues import FEWEST
from leasekit.runtime.shell import EXIT_BUG, EXIT_STORE, FAILED, RUNNING, STOPPED, STORE_TROUBLE, ActorShell
from leasekit.runtime.shell import ActorStoppedError as Stopped
from leasekit.stores.memory import MemoryStore
from leasekit.stores.sqlite import SqliteStore

LEASE_LOG = ("log", "", (1, "l", "e", "a", "b", ""))


class Scripted:
    """An actor that does with each input what a function says, and remembers what it was given."""

    name = "scripted"

    def __init__(self, react: Any = lambda actor, one: None, wake: Any = lambda actor: None) -> None:
        self.react, self.wake = react, wake
        self.seen: list[Input] = []
        self.out: Ready | None = None
        self.turns: list[Turn] = []
        self.restored = 0

    def step(self, input: Input) -> None:
        self.seen.append(input)
        self.react(self, input)

    def turn(self) -> Turn | None:
        return self.turns.pop() if self.turns else None

    def ready(self) -> Ready | None:
        out, self.out = self.out, None
        return out

    def wake_at(self) -> Instant | None:
        at: Instant | None = self.wake(self)
        return at

    def restore(self, tables: Mapping[str, Any]) -> None:
        self.restored += 1

    def query(self, name: str, arguments: Mapping[str, Any]) -> Any:
        return {"name": name}

    def given(self, kind: type) -> list[Any]:
        return [one for one in self.seen if isinstance(one, kind)]


class SpyStore(MemoryStore):
    """A store that can be made to fail, and notes what happens when."""

    def __init__(self, notes: list[str]) -> None:
        super().__init__()
        self.notes = notes
        self.broken = ""

    def commit(self, changes: Sequence[Change]) -> None:
        if self.broken:
            self.notes.append("refused")
            raise StoreError(self.broken)
        super().commit(changes)
        self.notes.append("committed")


def answering(actor: Scripted, one: Input) -> None:
    """A reaction to commands: something to commit, to send, to answer and to start."""
    if hasattr(one, "arguments"):
        message = Ack("l", 1)
        actor.out = Ready([Change(*LEASE_LOG)], [Outgoing("peer", message)], [Reply(one.id, "done")], [])


def scripted(folder: Path, actor: Scripted, **changes: Any) -> ActorShell:
    """A shell around one scripted actor that survives being made anew."""
    return make_shell("guest", folder, make=lambda: actor, **changes)


async def test_commits_before_it_sends_and_answers(tmp_path: Path) -> None:
    """What follows from an input is durable before a message leaves and before the operator hears of it."""
    notes: list[str] = []
    shell = scripted(tmp_path, Scripted(answering), store=SpyStore(notes))
    async with running(shell):
        shell.send = lambda peer, messages: notes.append(f"sent {len(messages)} to {peer}")
        notes.append(await shell.command("x", {}))
    assert notes == ["committed", "sent 1 to peer", "done"]


async def test_a_batch_is_one_commit(tmp_path: Path) -> None:
    """Inputs that wait together are stepped together, at most `batch_max` of them, in order, after one tick."""
    notes: list[str] = []

    def react(actor: Scripted, one: Input) -> None:
        if hasattr(one, "message"):
            actor.out = Ready([Change(*LEASE_LOG)])

    actor = Scripted(react)
    shell = scripted(tmp_path, actor, store=SpyStore(notes), settings={"batch_max": 3})
    messages = [Ack("l", number) for number in range(1, 6)]
    async with running(shell):
        await shell.receive("peer", messages)
        await poll(lambda: len(notes) >= 2)
    assert notes == ["committed", "committed"]
    received = [one.message for one in actor.seen if hasattr(one, "message")]
    assert received == messages
    kinds = "".join("T" if isinstance(one, Tick) else "m" for one in actor.seen)
    assert "mmmTmm" in kinds


async def test_a_dear_peer_does_not_hold_up_others(tmp_path: Path) -> None:
    """While one peer's messages take long, each is a round of its own, and another's come between them."""
    now = [0.0]

    def react(actor: Scripted, one: Input) -> None:
        if isinstance(one, Received):
            now[0] += 0.5 if one.peer == "dear" else 0.001
            if one.peer == "dear" and one.message == Ack("l", 3):
                shell._inbox.put_now(*(Received("honest", Ack("l", number)) for number in range(5)))

    actor = Scripted(react)
    shell = scripted(tmp_path, actor, stopwatch=lambda: now[0])
    async with running(shell):
        await shell.receive("dear", [Ack("l", number) for number in range(100)], 1000)
        await poll(lambda: len([one for one in actor.seen if isinstance(one, Received)]) == 105)
    peers = [one.peer if isinstance(one, Received) else "" for one in actor.seen]
    assert [one for one in peers if one][4:10].count("honest") == 5
    assert "dear dear" not in " ".join(one or "tick" for one in peers)


async def test_answers_are_paid_for(tmp_path: Path) -> None:
    """Who has much said to it, as what it sends is refused, waits behind others, though its messages cost nothing."""
    now = [0.0]

    def react(actor: Scripted, one: Input) -> None:
        if isinstance(one, Received) and one.peer == "loud":
            actor.out = Ready(messages=[Outgoing("loud", Accepted("l", 1))])
        if one == Received("loud", Ack("l", 9)):
            shell._inbox.put_now(*(Received("honest", Ack("l", number)) for number in range(5)))

    def send(peer: str, messages: Sequence[Message]) -> None:
        now[0] += 0.5

    actor = Scripted(react)
    shell = scripted(tmp_path, actor, stopwatch=lambda: now[0], settings={"batch_max": 1})
    async with running(shell):
        shell.send = send
        await shell.receive("loud", [Ack("l", number) for number in range(100)], 1000)
        await poll(lambda: len([one for one in actor.seen if isinstance(one, Received)]) == 105)
    peers = [one.peer for one in actor.seen if isinstance(one, Received)]
    assert peers[10:15] == ["honest"] * 5


async def test_commits_are_paid_for(tmp_path: Path) -> None:
    """By those whose messages have brought them about; and a round with a long commit has few of them."""
    now = [0.0]

    class Slow(MemoryStore):
        def commit(self, changes: Sequence[Change]) -> None:
            now[0] += 0.01 * len(changes)
            super().commit(changes)

    def react(actor: Scripted, one: Input) -> None:
        if isinstance(one, Received):
            now[0] += 0.0001
        if isinstance(one, Received) and one.peer == "loud":
            actor.out = actor.out or Ready([])
            actor.out.changes += [Change(*LEASE_LOG)]
        if one == Received("loud", Ack("l", 50)):
            shell._inbox.put_now(*(Received("honest", Ack("l", number)) for number in range(50)))

    actor = Scripted(react)
    shell = scripted(tmp_path, actor, stopwatch=lambda: now[0], store=Slow())
    async with running(shell):
        await shell.receive("loud", [Ack("l", number) for number in range(100)], 1000)
        await poll(lambda: len([one for one in actor.seen if isinstance(one, Received)]) == 150)
    peers = [one.peer for one in actor.seen if isinstance(one, Received)]
    since = peers.index("honest")
    assert peers[since : since + 60].count("loud") <= 2 * FEWEST
    rounds = "".join(
        "T" if isinstance(one, Tick) else one.peer[0]
        for one in actor.seen
        if hasattr(one, "peer") or isinstance(one, Tick)
    )
    assert max(map(len, rounds.partition("h")[0].split("T"))) <= FEWEST


async def test_nobody_pays_for_a_process_that_was_stopped(tmp_path: Path) -> None:
    """What a message costs is time of the processor. By the wall's clock an honest peer would pay for each stop of the
    daemon amid its messages, and have its next turn after all that another sends meanwhile.
    """

    def work(seconds: float) -> None:
        until = time.thread_time() + seconds
        while time.thread_time() < until:
            pass

    def react(actor: Scripted, one: Input) -> None:
        if one == Received("honest", Ack("l", 1)):
            other = threading.Thread(target=work, args=(0.2,))  # time goes on, the processor is another's
            other.start()
            other.join()
            shell._inbox.put_now(*(Received("busy", Ack("l", number)) for number in range(100)))
            shell._inbox.put_now(Received("honest", Ack("l", 2)))
        elif isinstance(one, Received) and one.peer == "busy":
            work(0.001)

    actor = Scripted(react)
    shell = scripted(tmp_path, actor)
    async with running(shell):
        await shell.receive("honest", [Ack("l", 1)])
        await poll(lambda: len([one for one in actor.seen if isinstance(one, Received)]) == 102)
    peers = [one.peer for one in actor.seen if isinstance(one, Received)]
    assert peers.index("honest", 1) < 50


async def test_readers_wait_while_the_inbox_is_full(tmp_path: Path) -> None:
    """While a commit hangs no more than the inbox's limit is taken from peers; afterwards all arrive."""
    hold, entered = trio.Event(), trio.Event()
    token = trio.lowlevel.current_trio_token()

    class Slow(MemoryStore):
        def commit(self, changes: Sequence[Change]) -> None:
            trio.from_thread.run_sync(entered.set, trio_token=token)
            trio.from_thread.run(hold.wait, trio_token=token)

    actor = Scripted(answering)
    shell = scripted(tmp_path, actor, store=Slow(), settings={"inbox_max": 2})
    done = []

    async def reader() -> None:
        for number in range(1, 6):
            await shell.receive("peer", [Ack("l", number)])
            done.append(number)

    async with running(shell), trio.open_nursery() as nursery:
        nursery.start_soon(shell.command, "x", {})
        await entered.wait()
        nursery.start_soon(reader)
        await trio.testing.wait_all_tasks_blocked()
        assert done == [1, 2]
        assert (await shell_status_is(shell)).inbox == 2
        hold.set()
        await poll(lambda: len([one for one in actor.seen if hasattr(one, "message")]) >= 5)
    assert done == [1, 2, 3, 4, 5]


async def shell_status_is(shell: ActorShell) -> ShellDetails:
    """What the shell says of itself, without asking the actor."""
    await trio.lowlevel.checkpoint()
    return shell.describe()


@pytest.fixture
def mocked(autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch) -> RealClock:
    """A shell's clock on trio's mock clock; what a shell does in threads it does in line, since threads take no time
    of that clock.
    """

    async def run_sync(call: Callable[..., Any], *arguments: Any) -> Any:
        return call(*arguments)

    def nanoseconds() -> int:
        return int((1_700_000_000 + autojump_clock.current_time()) * 1_000_000_000)

    monkeypatch.setattr(trio.to_thread, "run_sync", run_sync)
    return RealClock(system=nanoseconds, elapsed=nanoseconds, boot=1)


async def test_ticks_at_the_deadline_and_not_before(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, mocked: RealClock
) -> None:
    """A timer is ticked once its instant has come, within milliseconds, and nothing is ticked in between."""
    due: list[Instant] = [mocked.now() + 150]

    def react(actor: Scripted, one: Input) -> None:
        if isinstance(one, Tick) and due and one.now >= due[0]:
            due.clear()
            rung.append(one.now)

    rung: list[Instant] = []
    at = due[0]
    actor = Scripted(react, lambda actor: due[0] if due else None)
    async with running(scripted(tmp_path, actor, clock=mocked)):
        await trio.sleep(0.2)
        assert at <= rung[0] <= at + 2
        ticks = len(actor.given(Tick))
        await trio.sleep(60)
        assert len(actor.given(Tick)) == ticks, "an actor with nothing due is left alone"
    assert ticks <= 4


async def test_an_actor_that_is_always_due_does_not_spin(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, mocked: RealClock
) -> None:
    """One that wants to be woken for nothing again and again gets a tick per tick period, not a processor."""
    actor = Scripted(wake=lambda actor: 1)
    async with running(scripted(tmp_path, actor, clock=mocked, settings={"tick": 50})):
        await trio.sleep(3)
    assert 58 <= len(actor.given(Tick)) <= 64


async def test_turns_that_yield_let_others_in_and_are_not_waited_for(tmp_path: Path) -> None:
    """Between two of them the loop takes what has come, though nothing follows from them; the next one is not put off
    until something comes, or a tick period is over.
    """
    taken = trio.Event()

    def react(actor: Scripted, one: Input) -> None:
        answering(actor, one)
        if isinstance(one, TurnDone) and not actor.turns:
            taken.set()

    actor = Scripted(react, lambda actor: 1 if actor.turns else None)
    actor.turns = [Turn(-1, lambda: TurnDone(-1), yields=True) for _ in range(250)]
    shell = scripted(tmp_path, actor, settings={"tick": 3_600_000})
    async with running(shell):
        await shell.command("x", {})
        assert actor.turns
        with trio.fail_after(PATIENCE):
            await taken.wait()
    assert len(actor.given(TurnDone)) == shell.counts.turns == 250


# -- commands and queries ------------------------------------------------------------------------------------------


async def test_a_refused_command_says_why(tmp_path: Path) -> None:
    """What an actor refuses comes back as its own words."""
    shell = make_shell("guest", tmp_path)
    async with running(shell):
        with pytest.raises(CommandError, match="units: found 0"):
            await shell.command("lease.request", request(units=0))
        with pytest.raises(CommandError, match=r"no command 'lease\.reqest'"):
            await shell.command("lease.reqest", {})


async def test_a_query_sees_only_what_is_durable(tmp_path: Path) -> None:
    """While a commit is under way a query waits, so that it can't tell of what a crash would undo."""
    hold, entered = trio.Event(), trio.Event()
    token = trio.lowlevel.current_trio_token()
    order: list[str] = []

    class Slow(MemoryStore):
        def commit(self, changes: Sequence[Change]) -> None:
            trio.from_thread.run_sync(entered.set, trio_token=token)
            trio.from_thread.run(hold.wait, trio_token=token)
            super().commit(changes)
            order.append("committed")

    async def ask() -> None:
        await shell.query("leases", {})
        order.append("answered")

    shell = scripted(tmp_path, Scripted(answering), store=Slow())
    async with running(shell), trio.open_nursery() as nursery:
        nursery.start_soon(shell.command, "x", {})
        await entered.wait()
        nursery.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
        assert order == []
        hold.set()
    assert order == ["committed", "answered"]


# -- three actors --------------------------------------------------------------------------------------------------


async def test_a_lease_from_request_to_close(tmp_path: Path) -> None:
    """Three actors in three shells lease, join and close, on SQLite."""
    shells = [
        make_shell(name, tmp_path, store=SqliteStore(tmp_path / f"{name}.db")) for name in ("guest", "broker", "site")
    ]
    guest, _, site = shells
    async with running(*shells):
        await delegated(site)
        lease = (await guest.command("lease.request", request(3)))["id"]
        await until(guest, lambda: guest.actor.leases[lease].join == "joined")
        assert len((await guest.query("lease", {"lease": lease}))["units"]) == 3
        await guest.command("lease.close", {"lease": lease})
        await until(guest, lambda: guest.actor.leases[lease].state == "closed")
        events = [row.event for row in await guest.history(lease)]
    assert events[:2] == ["ask", "ticket"]
    assert [event for event in events if event in ("joined", "left", "closed")] == ["joined", "left", "closed"]


async def test_a_restart_goes_on_where_the_store_left_off(tmp_path: Path) -> None:
    """A guest whose process ended after the request is durable gets its lease when it is started again."""
    store = SqliteStore(tmp_path / "guest.db")
    first = make_shell("guest", tmp_path, store=store)
    async with running(first):
        lease = (await first.command("lease.request", request(1, properties={"deferrable": "true"})))["id"]
    again = make_shell("guest", tmp_path, store=store)
    broker, site = make_shell("broker", tmp_path), make_shell("site", tmp_path)
    async with running(broker, site):
        await delegated(site)
    async with running(
        again,
        broker_again := make_shell("broker", tmp_path, store=broker._store),
        make_shell("site", tmp_path, store=site._store),
    ):
        assert broker_again.state == RUNNING
        await until(again, lambda: again.actor.leases[lease].join == "joined")


# -- mapper turns --------------------------------------------------------------------------------------------------


class Thinking(GrantAll):
    """A broker's mapper that is not quick: it does something first, in its thread."""

    inline = False

    def __init__(self, first: Any) -> None:
        self.first = first
        self.calls = 0

    def allocate(self, cycle: BrokerCycle) -> Iterable[Grant | Wake]:
        self.calls += 1
        self.first(self.calls)
        return list(super().allocate(cycle))


async def test_leases_that_are_over_are_found_after_a_restart(tmp_path: Path) -> None:
    """Each daemon lists what its actor has forgotten, and finds it by id and name; of others it knows nothing."""
    stores = {name: MemoryStore() for name in ("guest", "broker", "site")}
    shells = {name: make_shell(name, tmp_path, store=store) for name, store in stores.items()}
    guest, site = shells["guest"], shells["site"]
    async with running(*shells.values()):
        await delegated(site)
        id_ = (await guest.command("lease.request", request(1, name="web", slice="lab")))["id"]
        await until(guest, lambda: guest.actor.leases[id_].join == "joined")
        await guest.command("lease.close", {"lease": "web"})
        await until(guest, lambda: guest.actor.leases[id_].state == "closed" and not len(guest.actor.returns))
        told = await guest.query("lease", {"lease": "web"})
    again = {name: make_shell(name, tmp_path, store=store) for name, store in stores.items()}
    async with running(*again.values()):
        guest = again["guest"]
        assert id_ not in guest.actor.leases
        for lease in (id_, "web", "lab/web"):
            found = await guest.query("lease", {"lease": lease})
            assert {**found, "units": told["units"]} == told
        for shell in again.values():
            assert [one["id"] for one in await shell.query("leases", {"all": True})] == [id_]
            assert await shell.query("leases", {}) == []
        assert await guest.query("leases", {"all": True, "slice": "other"}) == []
        with pytest.raises(CommandError, match="no lease"):
            await guest.query("lease", {"lease": "mail"})


async def test_a_slow_mapper_does_not_stop_the_actor(tmp_path: Path) -> None:
    """While a mapper thinks in its thread the actor answers; then what it decided is done."""
    import threading

    think = threading.Event()
    mapper = Thinking(lambda call: think.wait(10))
    shells = [
        make_shell("guest", tmp_path),
        make_shell("broker", tmp_path, mapper=mapper),
        make_shell("site", tmp_path),
    ]
    guest, broker, site = shells
    async with running(*shells):
        await delegated(site)
        lease = (await guest.command("lease.request", request(1, properties={"deferrable": "true"})))["id"]
        await until(broker, lambda: lease in broker.actor.leases)
        await poll(lambda: mapper.calls)
        assert (await broker.query("status", {}))["waiting"] == 1
        think.set()
        await until(guest, lambda: guest.actor.leases[lease].join == "joined")


async def test_a_mapper_that_never_ends_loses_its_turn(tmp_path: Path) -> None:
    """A loop without end is broken out of after the time limit, told to the operator, and the next turn works."""

    def first(call: int) -> None:
        while call == 1:
            pass

    mapper = Thinking(first)
    shells = [
        make_shell("guest", tmp_path),
        make_shell("broker", tmp_path, mapper=mapper, settings={"mapper_timeout": 100}),
        make_shell("site", tmp_path),
    ]
    guest, broker, site = shells
    async with running(*shells):
        await delegated(site)
        await guest.command("lease.request", request(1, properties={"deferrable": "true"}))
        await until(broker, lambda: bool(broker.actor.errors))
        assert "took longer than 100ms" in (await broker.query("status", {}))["mapper_errors"][0]
        second = (await guest.command("lease.request", request(1, properties={"deferrable": "true"})))["id"]
        await until(guest, lambda: guest.actor.leases[second].join == "joined")
        await poll(lambda: not broker.describe().runaway_turns)


async def test_a_mapper_that_calls_exit_loses_its_turn(tmp_path: Path) -> None:
    """Even what is no ``Exception`` ends the turn with words, and nothing else."""

    def first(call: int) -> None:
        raise SystemExit(3)

    shells = [
        make_shell("guest", tmp_path),
        make_shell("broker", tmp_path, mapper=Thinking(first)),
        make_shell("site", tmp_path),
    ]
    guest, broker, site = shells
    async with running(*shells):
        await delegated(site)
        await guest.command("lease.request", request(1, properties={"deferrable": "true"}))
        await until(broker, lambda: bool(broker.actor.errors))
        assert "SystemExit: 3" in broker.actor.errors[0]
        assert broker.state == RUNNING


# -- a store that fails --------------------------------------------------------------------------------------------


async def test_a_full_store_stops_everything_until_it_is_freed(tmp_path: Path) -> None:
    """While commits fail no input is stepped, nothing is sent, `status` says why; then everything goes on."""
    notes: list[str] = []
    store = SpyStore(notes)
    actor = Scripted(answering)
    shell = scripted(tmp_path, actor, store=store, settings={"store_retry_first": 10})
    results: list[str] = []

    async def command() -> None:
        results.append(await shell.command("x", {}))

    async with running(shell), trio.open_nursery() as nursery:
        shell.send = lambda peer, messages: notes.append("sent")
        store.broken = "site.db: can't write the store: database or disk is full"
        nursery.start_soon(command)
        await poll(lambda: notes.count("refused") >= 3)
        status = await shell.query("status", {})
        assert status["shell"]["state"] == STORE_TROUBLE
        assert "disk is full" in status["shell"]["problem"]
        with pytest.raises(CommandError, match="disk is full"):
            await shell.command("y", {})
        with pytest.raises(CommandError, match="disk is full"):
            await shell.query("leases", {})
        await shell.receive("peer", [Ack("l", 1)])
        stepped = len(actor.seen)
        await trio.sleep(0.05)
        assert len(actor.seen) == stepped, "nothing is stepped while a commit fails"
        assert "sent" not in notes
        store.broken = ""
    assert results == ["done"]
    assert "sent" in notes
    assert shell.state == STOPPED


async def test_a_sqlite_file_without_room_recovers(tmp_path: Path) -> None:
    """With the real store: at its page limit the guest says so; with room again, what was asked for is done."""
    store = SqliteStore(tmp_path / "guest.db")
    connection = store._connection()
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    shell = make_shell("guest", tmp_path, store=store, settings={"store_retry_first": 10})
    wish = request(1, properties={"deferrable": "true", "note": "x" * 16_000})
    answers: list[Any] = []

    async def ask() -> None:
        answers.append(await shell.command("lease.request", wish))

    async with running(shell), trio.open_nursery() as nursery:
        connection.execute(f"PRAGMA max_page_count = {pages}")
        for _ in range(40):
            nursery.start_soon(ask)
        await poll(lambda: shell.state == STORE_TROUBLE)
        assert answers == []
        assert "full" in (await shell.query("status", {}))["shell"]["problem"]
        connection.execute("PRAGMA max_page_count = 1000000")
    assert len(answers) == 40
    assert len(store.load()["leases"]) == 40


async def test_a_store_that_stays_full_stops_the_actor(tmp_path: Path) -> None:
    """After the patience is over the actor stops with a state, an exit status, and an answer for who waits."""
    store = SpyStore([])
    settings = {"store_retry_first": 10, "store_retry_max": 100}
    shell = scripted(tmp_path, Scripted(answering), store=store, settings=settings)
    errors: list[str] = []

    async def command() -> None:
        with pytest.raises(CommandError) as caught:
            await shell.command("x", {})
        errors.append(str(caught.value))

    store.broken = "the disk is gone"
    with trio.fail_after(PATIENCE):
        with pytest.RaisesGroup(Stopped) as stopped:
            async with running(shell), trio.open_nursery() as nursery:
                nursery.start_soon(command)
                await trio.sleep_forever()
    assert stopped.value.exceptions[0].status == EXIT_STORE
    assert shell.state == FAILED
    assert "the disk is gone" in errors[0]


# -- bugs ----------------------------------------------------------------------------------------------------------


async def test_a_bug_costs_only_what_was_not_committed(tmp_path: Path) -> None:
    """An actor that raises is made anew from its store; who gave the command is told; the next one works."""
    made: list[Actor] = []

    def make() -> Actor:
        actor = make_actor("guest")
        if not made:
            actor.dispatch.commands["slice.create"] = lambda arguments: 1 // 0
        made.append(actor)
        return actor

    shell = make_shell("guest", tmp_path, make=make)
    async with running(shell):
        lease = (await shell.command("lease.request", request(1, properties={"deferrable": "true"})))["id"]
        with pytest.raises(CommandError, match="internal error: ZeroDivisionError"):
            await shell.command("slice.create", {"name": "s"})
        assert (await shell.query("lease", {"lease": lease}))["pending"] == "ticketing"
        assert (await shell.command("slice.create", {"name": "s"}))["slice"] == "s"
        assert shell.describe().bugs == 1
    assert len(made) == 2


async def test_bugs_without_end_stop_the_actor(tmp_path: Path) -> None:
    """An actor that fails again and again is stopped, and says so by its exit status."""

    def react(actor: Scripted, one: Input) -> None:
        raise RuntimeError("broken")

    with trio.fail_after(PATIENCE), pytest.RaisesGroup(Stopped) as stopped:
        async with running(scripted(tmp_path, Scripted(react, lambda actor: 1))):
            await trio.sleep_forever()
    assert stopped.value.exceptions[0].status == EXIT_BUG
    assert "RuntimeError: broken" in str(stopped.value.exceptions[0])


async def test_a_hostile_message_does_not_stop_the_actor(tmp_path: Path) -> None:
    """A request that makes no sense is answered with an error, and the actor goes on."""
    sent: list[Message] = []
    broker = make_shell("broker", tmp_path)
    async with running(broker):
        broker.send = lambda peer, messages: sent.extend(messages)
        await broker.receive("guest", [RequestTicket("l", 1, "steal", "", "vm", 1, Term(1, 2), "", EMPTY, b"")])
        await poll(lambda: sent)
        assert (await broker.query("status", {}))["shell"]["bugs"] == 0
    assert "op: found 'steal'" in sent[0].reason.detail


# -- stopping ------------------------------------------------------------------------------------------------------


class Gate(NullDriver):
    """A driver whose actions wait for a gate; it notes what it does."""

    def __init__(self) -> None:
        super().__init__(NullSettings())
        self.gate, self.begun = trio.Event(), trio.Event()
        self.notes: list[str] = []

    async def setup(self, unit: UnitContext) -> Properties:
        self.notes.append(f"setup #{unit.number}")
        self.begun.set()
        await self.gate.wait()
        if self.notes[-1] == "fail":
            raise DriverError("no", retry=False)
        self.notes.append("up")
        return {"host": unit.unit}


async def lease_on_gate(
    folder: Path, site_store: MemoryStore, driver: Gate, grace: int
) -> tuple[list[ActorShell], Any]:
    """Shells whose site sets units up behind a gate."""
    shells = [
        make_shell("guest", folder),
        make_shell("broker", folder),
        make_shell("site", folder, store=site_store, driver=driver, settings={"grace": grace}),
    ]
    return shells, shells[2]


async def test_a_stop_lets_what_runs_finish(tmp_path: Path) -> None:
    """An action that ends within the grace time is part of the record when the actor has stopped."""
    driver, store = Gate(), MemoryStore()
    shells, site = await lease_on_gate(tmp_path, store, driver, 10_000)
    async with running(*shells):
        await delegated(site)
        await shells[0].command("lease.request", request(1))
        with trio.fail_after(PATIENCE):
            await driver.begun.wait()
        site.stop()
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(CommandError, match="stopping"):
            await site.command("unit.disable", {"unit": "vm-5"})
        driver.gate.set()
    assert driver.notes == ["setup #1", "up"]
    assert [row[3] for row in store.load()["units"] if row[1]] == ["active"]


async def test_what_a_stop_cancels_is_done_again(tmp_path: Path) -> None:
    """An action that outlasts the grace time is cancelled, and begun again under its number at the next start."""
    driver, store = Gate(), MemoryStore()
    shells, site = await lease_on_gate(tmp_path, store, driver, 20)
    async with running(*shells):
        await delegated(site)
        await shells[0].command("lease.request", request(1))
        with trio.fail_after(PATIENCE):
            await driver.begun.wait()
    assert driver.notes == ["setup #1"]
    driver.gate.set()
    async with running(again := make_shell("site", tmp_path, store=store, driver=driver)):
        await until(again, lambda: any(unit.state == "active" for unit in again.actor.units))
    assert driver.notes == ["setup #1", "setup #1", "up"]


class Refuses:
    """A broker's mapper that grants nothing."""

    inline = True

    def allocate(self, cycle: BrokerCycle) -> Iterable[Reject]:
        return [Reject(request.lease, "nothing today") for request in cycle.requests]


async def test_usage_counts_what_was_refused_of_later_terms(tmp_path: Path) -> None:
    """Also when the broker has forgotten the lease, whose term begins after the period that is asked for."""
    store = MemoryStore()
    guest, site = make_shell("guest", tmp_path), make_shell("site", tmp_path)
    async with running(guest, make_shell("broker", tmp_path, store=store, mapper=Refuses()), site):
        await delegated(site)
        wish = request()
        wish["term"] = [at + HOUR for at in wish["term"]]
        lease = (await guest.command("lease.request", wish))["id"]
        await until(guest, lambda: guest.actor.leases[lease].state == "failed")
    again = make_shell("broker", tmp_path, store=store, make=lambda: make_actor("broker", retention=1))
    async with running(again):
        await poll(lambda: lease not in again.actor.leases)
        now = int(time.time() * 1000)
        (account,) = (await again.usage(Term(now - HOUR, now + 1), ["holder"])).accounts
    assert (account.holder, account.requests, sum(account.refused.values())) == ("guest", 1, 1)


async def test_accounts_say_since_when_the_log_has_everything(tmp_path: Path) -> None:
    """From its first line on; notes that were kept while all around them went don't count."""
    store, path = SqliteStore(tmp_path / "site.db"), tmp_path / "site.db"
    first = int(time.time() * 1000) - DAY
    why = Reason(Code.INVENTORY, what="vm", units=4).text()
    store.commit([Change(LOG, "", (first, INVENTORY, INVENTORY, "", "", why)), Change(LOG, "", (first + 1, *"abcde"))])
    shell = make_shell("site", tmp_path, store=store)
    async with running(shell):
        assert (await shell.usage(Term(0, first + DAY), ["type"])).since == first
        with sqlite3.connect(path) as file:
            file.execute("DELETE FROM log WHERE seq = 2")
            file.execute("UPDATE log SET seq = seq + 900 WHERE seq > 2")
            file.execute("INSERT INTO log VALUES (800, ?, 'unit', 'unit down', '', '', '')", (first + HOUR,))
        assert (await shell.usage(Term(0, first + DAY), ["type"])).since == first + HOUR
