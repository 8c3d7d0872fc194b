"""The virtual-time shell: order, time, messages and actions, with actors that follow a script and with real ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pytest
from actor_bench import Bench, Mappers, Plan
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from leasekit.core.mappers import BrokerCycle, BrokerDecision
from leasekit.core.protocol.messages import ErrorReply, LeaseUpdate, Message, UnitState
from leasekit.core.reasons import Reason
from leasekit.core.schema import LOG, Change, Row, StoreError
from leasekit.core.steps import Action, ActionDone, Command, Input, Outgoing, Ready, Received, Reply, Tick, Turn
from leasekit.core.steps import TurnDone as Done
from leasekit.core.time import SECOND, Instant, Term
from leasekit.emulation.failing import FailingWorld
from leasekit.emulation.world import BATCH_MESSAGES, Outcome, World
from leasekit.policies.broker.fcfs import Fcfs
from leasekit.stores.memory import MemoryStore

TICK = 10

Log = list[tuple[Instant, str, Any]]
"""What actors saw: when, who, and the input, or the instant at which it wanted to be woken."""


class Scripted:
    """An actor that wants to be woken at certain instants and does what ``react`` says of each input or wake-up."""

    def __init__(
        self,
        name: str,
        log: Log,
        wakes: Iterable[Instant] = (),
        react: Callable[[Scripted, Any], None] = lambda me, seen: None,
    ) -> None:
        self.name = name
        self.now: Instant = -1
        self.ticks: list[Instant] = []
        self.wakes = sorted(wakes)
        self.turns: list[Turn] = []
        self.out = Ready()
        self._log = log
        self._react = react

    def step(self, input: Input) -> None:
        """Note the input; a tick only if a wake-up is due."""
        if not isinstance(input, Tick):
            self._see(input)
            return
        assert input.now >= self.now, "time runs forwards"
        self.now = input.now
        self.ticks.append(input.now)
        while self.wakes and self.wakes[0] <= self.now:
            self._see(self.wakes.pop(0))

    def _see(self, seen: Any) -> None:
        self._log.append((self.now, self.name, seen))
        self._react(self, seen)

    def send(self, to: str, *messages: Message) -> None:
        """With the next Ready."""
        self.out.messages += [Outgoing(to, message) for message in messages]

    def turn(self) -> Turn | None:
        """Those that it was given."""
        return self.turns.pop(0) if self.turns else None

    def ready(self) -> Ready | None:
        """What has come together."""
        out, self.out = self.out, Ready()
        return out if out.changes or out.messages or out.replies or out.actions else None

    def wake_at(self) -> Instant | None:
        """The next wake-up."""
        return self.wakes[0] if self.wakes else None

    def restore(self, tables: Mapping[str, Sequence[Row]]) -> None:
        """Nothing to restore."""

    def query(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """The question."""
        return name, dict(arguments)


def world(*actors: Scripted, **settings: Any) -> World:
    """A world of these actors, in this order, with a tick of 10 ms."""
    made = World(**{"tick": TICK, **settings})
    for actor in actors:
        made.add(actor, MemoryStore())
    return made


def note(text: str) -> ErrorReply:
    """A message."""
    return ErrorReply(text, 1, Reason("test", detail=""))


def seen_notes(log: Log) -> list[tuple[Instant, str, str]]:
    """When who received which message."""
    return [(at, who, seen.message.lease) for at, who, seen in log if isinstance(seen, Received)]


# -- order ---------------------------------------------------------------------------------------------------------


def test_order_is_instant_then_actor_then_sequence() -> None:
    """Wake-ups at one instant go by the order in which actors were added, whatever their names and who was asked
    first.
    """
    log: Log = []
    world(Scripted("z", log, [30, 10]), Scripted("a", log, [20, 10]), Scripted("m", log, [10, 20])).run_until(30)
    assert [(at, who) for at, who, _ in log] == [(10, "z"), (10, "a"), (10, "m"), (20, "a"), (20, "m"), (30, "z")]


def test_messages_of_one_instant_come_in_the_order_of_sending() -> None:
    """What an actor gets at one instant from several others is one batch, in the order in which it was sent."""
    log: Log = []

    def sends(me: Scripted, seen: Any) -> None:
        me.send("last", note(f"{me.name}1"), note(f"{me.name}2"))

    world(Scripted("b", log, [10], sends), Scripted("a", log, [10], sends), Scripted("last", log, [10])).run_until(10)
    assert seen_notes(log) == [(10, "last", "b1"), (10, "last", "b2"), (10, "last", "a1"), (10, "last", "a2")]
    assert next(seen for _, who, seen in log if who == "last") == 10, "its own timers come before its messages"


def test_a_message_to_an_earlier_actor_overtakes_a_later_actor() -> None:
    """Without a delay, an answer to an actor of a lower number is taken before the next actor's event of that
    instant.
    """
    log: Log = []
    first = Scripted("first", log)
    second = Scripted("second", log, [10], lambda me, seen: me.send("first", note("hello")))
    world(first, second, Scripted("third", log, [10])).run_until(10)
    assert [who for _, who, _ in log] == ["second", "first", "third"]


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 60)), max_size=12),
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 25)), min_size=1, max_size=4),
    st.integers(1, 60),
)
def test_every_tick_and_skipped_ticks_see_the_same(
    wakes: list[tuple[int, int]], replies: list[tuple[int, int]], stop: int
) -> None:
    """Actors that wake at any instants and message each other with any delays see the same either way, also if the
    run is done in two parts.
    """

    def run(every_tick: bool, parts: list[int]) -> tuple[Log, int]:
        log: Log = []

        def answer(me: Scripted, seen: Any) -> None:
            if len(log) < 40:
                to, _ = replies[len(log) % len(replies)]
                me.send(f"a{to}", note(str(len(log))))

        actors = [Scripted(f"a{index}", log, [at for who, at in wakes if who == index], answer) for index in range(3)]
        made = world(*actors, every_tick=every_tick, delay=lambda sender, receiver: replies[len(log) % len(replies)][1])
        for part in parts:
            made.run_until(part)
        return log, made.events

    expected = run(False, [200])
    assert run(True, [200]) == expected
    assert run(True, sorted([stop, 200])) == run(False, sorted([stop, 200])) == expected


def test_every_tick_is_executed_once_for_each_actor() -> None:
    """Each tick from the start to the end reaches each actor, once, also where runs are done in parts that end on
    one.
    """
    log: Log = []
    actors = [Scripted("a", log, [25]), Scripted("b", log)]
    made = world(*actors, every_tick=True, start=15)
    for until in (20, 40, 41, 60):
        made.run_until(until)
    assert made.ticks == 5
    for actor in actors:
        assert [at for at in actor.ticks if at % TICK == 0] == [20, 30, 40, 50, 60]
    assert log == [(30, "a", 25)]


def test_idle_ticks_are_skipped() -> None:
    """Without ``every_tick`` an actor is ticked when it is added and when it wants to be, and at no other time."""
    log: Log = []
    actor = Scripted("a", log, [50_000])
    made = world(actor)
    made.run_until(100_000)
    assert actor.ticks == [0, 50_000]
    assert (made.events, made.now) == (2, 100_000)


# -- time ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("wanted", "woken"), [(1, 10), (9, 10), (10, 10), (11, 20), (0, 0)])
@pytest.mark.parametrize("every_tick", [False, True])
def test_wake_ups_wait_for_the_next_tick(wanted: Instant, woken: Instant, every_tick: bool) -> None:
    """An actor is woken at the first tick that is not before the instant that it asked for."""
    log: Log = []
    world(Scripted("a", log, [wanted]), every_tick=every_tick).run_until(100)
    assert log == [(woken, "a", wanted)]


def test_a_message_in_between_takes_what_is_due() -> None:
    """A message that comes between two ticks brings the time with it: what is due by then need not wait longer."""
    log: Log = []
    sender = Scripted("s", log, [10], lambda me, seen: me.send("a", note("x")))
    world(sender, Scripted("a", log, [12]), delay=lambda one, other: 5).run_until(100)
    assert [at for at, who, _ in log if who == "a"] == [15, 15]


def test_run_until_includes_its_end() -> None:
    """What happens at the very instant is done, what happens one millisecond later is not."""
    log: Log = []
    made = world(Scripted("a", log, [20, 30]))
    made.run_until(20)
    assert log == [(20, "a", 20)]
    made.run_until(29)
    assert (len(log), made.now) == (1, 29)
    made.run_until(30)
    assert len(log) == 2


def test_an_epoch_of_its_own() -> None:
    """A world that starts at a late instant ticks its actors there first, and not at 0."""
    log: Log = []
    actor = Scripted("a", log, [5_000])
    world(actor, start=5_000).run_until(6_000)
    assert actor.ticks[0] == 5_000
    assert log == [(5_000, "a", 5_000)]


@pytest.mark.parametrize("tick", [0, -1])
def test_a_tick_takes_time(tick: int) -> None:
    """A period of no length is refused."""
    with pytest.raises(ValueError, match=f"tick: found {tick}, expected a period of at least 1 ms"):
        World(tick=tick)


@pytest.mark.parametrize("kind", [World, FailingWorld])
def test_timers_are_counted(kind: type[World]) -> None:
    """Each instant at which an actor wakes by itself counts once, at the start of the world too, in one that may fail
    as in one that can't; what it is sent counts as messages.
    """
    made = kind(tick=TICK)
    made.add(Scripted("a", [], [10, 20, 20, 40], lambda me, seen: me.send("b", note("n"))), MemoryStore())
    made.add(Scripted("b", [], [20]), MemoryStore())
    made.run_until(30)
    assert (made.timers, made.messages) == (2 + 2 + 1, 3)


# -- messages ------------------------------------------------------------------------------------------------------


def test_messages_are_copied() -> None:
    """Sender and receiver share nothing that can be changed: each receiver has its own copy of what was sent."""
    log: Log = []
    given_to_unit = {"host": "n1"}
    update = LeaseUpdate("l", 1, 1, "active", Term(0, 9), (UnitState("u", "up", given_to_unit, None),), None, b"", b"")

    def send(me: Scripted, seen: Any) -> None:
        me.send("one", update)
        me.send("other", update)

    made = world(
        Scripted("s", log, [10], send), Scripted("one", log), Scripted("other", log), delay=lambda one, other: 5
    )
    made.run_until(12)
    given_to_unit["host"] = "changed under way"
    made.run_until(20)
    one, other = (seen.message for _, _, seen in log if isinstance(seen, Received))
    assert one == other == replace(update, units=(UnitState("u", "up", {"host": "n1"}, None),))
    assert one is not other
    assert one.units[0].properties is not other.units[0].properties


def test_delays_are_by_sender_and_receiver() -> None:
    """Each pair has a delay of its own, and a batch that was sent later can come earlier."""
    log: Log = []
    delays = {("far", "a"): 25, ("near", "a"): 3}
    world(
        Scripted("far", log, [10], lambda me, seen: me.send("a", note("slow"))),
        Scripted("near", log, [20], lambda me, seen: me.send("a", note("quick"))),
        Scripted("a", log),
        delay=lambda sender, receiver: delays[sender, receiver],
    ).run_until(100)
    assert seen_notes(log) == [(23, "a", "quick"), (35, "a", "slow")]


def test_many_messages_go_in_batches_and_keep_their_order() -> None:
    """More messages than a batch holds come in the same order, and every one is counted."""
    log: Log = []
    count = 2 * BATCH_MESSAGES + 1
    made = world(
        Scripted("s", log, [10], lambda me, seen: me.send("a", *(note(str(n)) for n in range(count)))),
        Scripted("a", log),
    )
    made.run_until(10)
    assert [text for _, _, text in seen_notes(log)] == [str(n) for n in range(count)]
    assert made.messages == count


def test_a_message_to_nobody_is_lost() -> None:
    """What is sent to an actor that is not there is dropped, as by a daemon without a connection."""
    log: Log = []
    world(Scripted("s", log, [10], lambda me, seen: me.send("nobody", note("x")))).run_until(100)
    assert log == [(10, "s", 10)]


# -- changes, replies, actions -------------------------------------------------------------------------------------


def test_commit_comes_before_messages_and_actions() -> None:
    """A Ready's changes are stored and shown to the observer before its messages leave and its actions start; if they
    can't be stored nothing leaves.
    """
    order: list[str] = []
    log_row = Change(LOG, "", (10, "l", "e", "", "", ""))

    def act(me: Scripted, seen: Any) -> None:
        if isinstance(seen, int):  # a wake-up, not what comes back of it
            me.out.changes.append(log_row)
            me.out.messages.append(Outgoing("s", note("x")))
            me.out.actions.append(Action(1, "setup", "u", "t", "l", {}))

    def model(action: Action) -> Outcome:
        order.append("start")
        return Outcome(0, True, {}, "")

    def delay(sender: str, receiver: str) -> int:
        order.append("send")
        return 0

    made = World(tick=TICK, delay=delay, observe=lambda at, actor, rows: order.append(f"commit {at} {actor}"))
    store = MemoryStore()
    made.add(Scripted("s", [], [10, 30], act), store, model)
    made.run_until(10)
    assert order == ["commit 10 s", "send", "start"]
    assert [row[1:] for row in store.log()] == [log_row.row]
    store.close()
    with pytest.raises(StoreError):
        made.run_until(30)
    assert len(order) == 3


def test_actions_end_as_their_model_says() -> None:
    """Each action ends after its own latency with its own result; those that end together come in one batch, in
    order.
    """
    log: Log = []

    def start(me: Scripted, seen: Any) -> None:
        if seen == 10:
            me.out.actions += [Action(n, "setup", f"u{n}", "t", "l", {}) for n in range(1, 5)]

    def model(action: Action) -> Outcome:
        if action.number == 2:
            return Outcome(7, False, {}, "no such image")
        return Outcome(0 if action.number == 4 else 33, True, {"host": f"h{action.number}"}, "")

    made = World(tick=TICK)
    made.add(Scripted("a", log, [10], start), MemoryStore(), model)
    made.run_until(100)
    assert log[1:] == [
        (10, "a", ActionDone(4, "u4", True, {"host": "h4"}, "")),
        (17, "a", ActionDone(2, "u2", False, {}, "no such image")),
        (43, "a", ActionDone(1, "u1", True, {"host": "h1"}, "")),
        (43, "a", ActionDone(3, "u3", True, {"host": "h3"}, "")),
    ]
    assert made.actions == 4


def test_commands_are_answered_at_once() -> None:
    """A command is carried out now: its reply is returned, time does not pass, and what it causes follows."""
    log: Log = []

    def obey(me: Scripted, seen: Any) -> None:
        if isinstance(seen, Command):
            me.out.replies.append(Reply(seen.id, result={"did": seen.name, **seen.arguments}))
            me.wakes.append(40)
            me.send("b", note("told"))

    made = world(Scripted("a", log, (), obey), Scripted("b", log), delay=lambda one, other: 4)
    made.run_until(20)
    assert made.command("a", "lease.request", units=2).result == {"did": "lease.request", "units": 2}
    assert made.command("a", "lease.close", lease="x").result == {"did": "lease.close", "lease": "x"}
    assert (made.now, made.replies) == (20, {})
    made.run_until(50)
    assert [(at, who) for at, who, _ in log] == [(20, "a"), (20, "a"), (24, "b"), (24, "b"), (40, "a"), (40, "a")]
    assert made.query("a", "leases", all=True) == ("leases", {"all": True})
    with pytest.raises(KeyError):
        made.command("nobody", "x")


# -- turns ---------------------------------------------------------------------------------------------------------


def test_turns_run_in_line_after_the_inputs() -> None:
    """A turn that is due runs after the inputs of its instant, and what it decided is stepped before anything
    leaves.
    """
    log: Log = []
    decided = Done(1, ("yes",))
    made = world(
        Scripted("a", log, [10], lambda me, seen: me.turns.append(Turn(1, lambda: decided)) if seen == 10 else None)
    )
    made.run_until(10)
    assert log == [(10, "a", 10), (10, "a", decided)]


class Raising:
    """A broker's mapper that raises the first time."""

    inline = True

    def __init__(self) -> None:
        self.turns = 0

    def allocate(self, cycle: BrokerCycle) -> Iterable[BrokerDecision]:
        """Right from the second turn on."""
        self.turns += 1
        if self.turns == 1:
            raise RuntimeError("no idea")
        return Fcfs().allocate(cycle)


def test_a_turn_that_raises_costs_the_turn_only() -> None:
    """A mapper that raises is reported by its actor, which goes on: the request is granted in a later turn."""
    mapper = Raising()
    bench = Bench(Plan(), Mappers(broker=lambda: mapper)).start()
    now = bench.now
    reply = bench.command("guest", "lease.request", type="vm", units=2, term=[now + SECOND, now + 600 * SECOND])
    assert not reply.error
    bench.run_until(now + 120 * SECOND)
    assert mapper.turns > 1
    assert "RuntimeError: no idea" in str(bench.query("broker", "status")["mapper_errors"])
