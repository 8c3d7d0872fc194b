"""One actor on the real clock: what it wants done is committed, then sent, then started, in this order.

The loop takes the inputs that are there (up to a limit, and for a few milliseconds), steps them, and carries out what
follows in one transaction: the busier the actor, the larger the batch. What each peer's inputs take is measured, and
decides whose turn is next. While a commit runs, in a thread, inputs gather in the
inbox; while it fails, none is stepped, and the commit is tried again until it works or the patience is over.

An error in the actor itself (a bug: no input may cause one) is treated like a crash: what was not committed is
thrown away and the actor is made anew from its store, which peers and drivers can't tell from a restart. If that
happens too often the actor is stopped. Other settings are taken in the same way (:meth:`ActorShell.reload`).
"""

from __future__ import annotations

import itertools
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import attrs
import trio

from leasekit.config.build import BoundDriver
from leasekit.config.tables import ShellSettings
from leasekit.core.accounts import INVENTORY, NOT_TAKEN, PRICE, STANDING, Accounts, Prices, offered
from leasekit.core.answers import AcceptedClock, ShellDetails, UsageDetails, plain
from leasekit.core.errors import CommandError, LeasekitError
from leasekit.core.measures import Histogram
from leasekit.core.protocol.messages import Message
from leasekit.core.reasons import Reason, mark, said
from leasekit.core.schema import LOG, TABLES, Change, LogRow, Row, Store, StoreError
from leasekit.core.steps import (
    ActionDone,
    ActorLike,
    Command,
    Connected,
    Disconnected,
    Input,
    Outgoing,
    PeerChange,
    Ready,
    Received,
    Reply,
    Tick,
    Turn,
    TurnDone,
)
from leasekit.core.time import INSTANT_MAX, SECOND, Duration, Instant, Term, format_duration
from leasekit.runtime.clock import HELD, LAST_KEY, RealClock
from leasekit.runtime.executor import Executor
from leasekit.runtime.logs import TransitionLog, UnitLogs
from leasekit.runtime.mapper_turns import TurnRunner
from leasekit.runtime.queues import ROUND, Feed, Inbox, Pace, payer

STARTING, RUNNING, STORE_TROUBLE, STOPPING, STOPPED, FAILED = (
    "starting", "running", "store trouble", "stopping", "stopped", "failed",
)  # fmt: skip
PART: Final = 200
"""Of how many leases accounts are read at once."""
_ENDED: Final = [*TABLES["leases"].columns].index("updated")
PAST_MAX: Final = 1_000
"""How many leases that the actor has forgotten are listed, and found by name."""
EXIT_STORE: Final = 4
"""Exit status: the store could not be written."""
EXIT_BUG: Final = 70
"""Exit status: a bug, of ours or of a plug-in (EX_SOFTWARE)."""
BUGS_MAX: Final = 5
"""How many bugs within :data:`BUGS_WITHIN` seconds stop the actor."""
BUGS_WITHIN: Final = 60.0
TURNS_MAX: Final = 100
"""How many inline turns are taken before what follows from them is carried out."""
EXIT_CLOCK: Final = 1
"""Exit status: the store is ahead of this machine's clock."""
ACCEPT: Final = "clock.accept"
"""The one command that is the shell's own: an operator has it believe the system's clock."""

logger = logging.getLogger(__name__)


class ActorStoppedError(LeasekitError):
    """The actor had to stop; ``status`` is the exit status that says so."""

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status = status


@attrs.define(eq=False)
class _Waiting:
    """Someone waits for the reply to a command."""

    answered: trio.Event = attrs.Factory(trio.Event)
    reply: Reply | None = None
    stepped: bool = False
    """The actor has taken the command: another one does not know of it."""


@attrs.define
class Counts:
    """What the shell has done since it started."""

    inputs: int = 0
    commits: int = 0
    changes: int = 0
    messages: int = 0
    actions_started: int = 0
    turns: int = 0
    bugs: int = 0


@attrs.define(eq=False)
class Times:
    """How long commits and turns of the mapper have taken since the start, in seconds."""

    commits: Histogram = attrs.field(init=False, factory=Histogram)
    turns: Histogram = attrs.field(init=False, factory=Histogram)


@attrs.define(eq=False, slots=False)
class ActorShell:
    """Runs the actor that ``make`` returns, on ``store``.

    ``driver_of`` gives the driver of a resource type. ``inline`` says that the mapper is quick enough to be called on
    the actor's own step, ``mapper`` what it is called when it fails. ``send`` takes messages for a peer, ``meet`` peers
    that came or went; they must not wait. The store is used by this shell alone, and not closed. ``accept_clock`` has
    the system's clock believed at the start, as after a reboot. ``stopwatch`` gives seconds of
    the processor: nobody pays for a process that was stopped.
    """

    _make: Callable[[], ActorLike]
    _store: Store
    _driver_of: Callable[[str], BoundDriver | None] = attrs.field(kw_only=True)
    unit_logs: UnitLogs = attrs.field(kw_only=True)
    clock: RealClock = attrs.field(factory=RealClock, kw_only=True)
    _inline: bool = attrs.field(default=False, kw_only=True)
    _mapper: str = attrs.field(default="", kw_only=True)
    settings: ShellSettings = attrs.field(factory=ShellSettings, kw_only=True)
    _transition_log: TransitionLog = attrs.field(factory=lambda: TransitionLog(logger), kw_only=True)
    _accept_clock: bool = attrs.field(default=False, kw_only=True)
    _stopwatch: Callable[[], float] = attrs.field(default=time.thread_time, kw_only=True)

    def __attrs_post_init__(self) -> None:
        self.actor = self._make()
        self._inbox = Inbox(self.settings.inbox_max, self.settings.inbox_bytes)
        self._pace = Pace(self.settings.batch_max)
        self.executor = Executor(self._driver_of, self.unit_logs, self._inbox.put_now)
        self.transitions: Feed[LogRow] = Feed()
        self.send: Callable[[str, Sequence[Message]], None] = lambda peer, messages: None
        self.meet: Callable[[Sequence[PeerChange]], None] = lambda changes: None
        self.state = STARTING
        self.problem = ""
        self.counts = Counts()
        self.times = Times()
        self._store_lock = trio.Lock()
        self._between = trio.Lock()
        """Held from the step of inputs until all that follows from them is under way."""
        self._linked: set[str] = set()
        self._turns = TurnRunner(self.settings.mapper_timeout, self.settings.runaways_max)
        self._waiting: dict[int, _Waiting] = {}
        self._ids = itertools.count(1)
        self._generation = 0
        self._bugs: deque[float] = deque(maxlen=BUGS_MAX)
        self._nursery: trio.Nursery | None = None
        self._settled = trio.Event()
        self._settled.set()
        self._stop_asked = trio.Event()
        self._drained = False
        self._due = self._in_vain = self._yielded = False
        self._own_changes: list[Change] = []
        self._own_replies: list[Reply] = []
        self._used: dict[str, float] = {}
        """How long the inputs of each peer have taken in this round."""

    # -- what comes in -----------------------------------------------------------------------------------------

    async def receive(self, peer: str, messages: Sequence[Message], size: int = 0) -> None:
        """Messages that ``peer`` sent, in ``size`` bytes; waits while the inbox is full."""
        await self._inbox.put([Received(peer, message) for message in messages], size)

    def charge(self, peer: str, seconds: float) -> None:
        """To check and decode what ``peer`` has sent took so long, whatever came of it."""
        self._inbox.charge(peer, seconds)

    def connected(self, peer: str) -> None:
        """A connection to ``peer`` came up."""
        self._linked.add(peer)
        self._inbox.put_now(Connected(peer))

    def disconnected(self, peer: str) -> None:
        """The connection to ``peer`` is gone."""
        self._linked.discard(peer)
        self._inbox.put_now(Disconnected(peer))

    async def command(
        self, name: str, arguments: Mapping[str, Any], *, caller: str = "", way: str = "", key: str = ""
    ) -> Any:
        """Have the actor do what the operator wants; returns when it is durable. ``caller``, ``way`` and ``key`` are
        :class:`~leasekit.core.steps.Command`'s. Raises ``CommandError``.
        """
        self._must_run()
        id_, waiting = next(self._ids), _Waiting()
        self._waiting[id_] = waiting
        try:
            await self._inbox.put([Command(id_, name, arguments, caller, way, key)])
            await waiting.answered.wait()
        finally:
            del self._waiting[id_]
        assert waiting.reply is not None, "who sets the event sets the reply first"
        if waiting.reply.error:
            raise CommandError(waiting.reply.reason or waiting.reply.error)
        return waiting.reply.result

    async def query(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """The actor's answer, from a state that is durable. ``status`` is answered in any state, and ``clock`` by the
        shell; ``units`` has for each what fails there and is tried again (``trouble``). Raises ``CommandError``.
        """
        if name == "clock":
            return plain(self.clock.describe())
        if name != "status":
            self._must_run(stopping=True)
        while not self._settled.is_set() and self.state != STORE_TROUBLE:
            await self._settled.wait()
        if name != "status":
            self._must_run(stopping=True)
            if name in ("leases", "lease"):
                return await self._recall(name, arguments)
            answer = self.actor.query(name, arguments)
            if name == "units":
                return [{**unit, "trouble": self.executor.trouble(unit["unit"])} for unit in answer]
            return answer
        return {**self.actor.query(name, arguments), "shell": plain(self.describe())}

    async def _recall(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """The leases that the actor knows, and of those that it has forgotten the newest :data:`PAST_MAX`, which the
        store keeps: all, or one by its id or name. Raises ``CommandError``.
        """
        if name == "leases":
            known = self.actor.query(name, arguments)
            if not arguments.get("all"):
                return known
            ids, slice_ = {one["id"] for one in known}, arguments.get("slice") or None
            past = [one for one in await self._past() if one["id"] not in ids and slice_ in (None, one["slice"])]
            return [*reversed(past), *known]
        try:
            return self.actor.query(name, arguments)
        except CommandError:
            wanted = arguments.get("lease")
            for one in await self._past():
                if wanted in (one["id"], one.get("name") or None, f"{one['slice']}/{one.get('name')}"):
                    return one
            raise

    async def _past(self) -> list[dict[str, Any]]:
        return [self.actor.recall(row) for row in await self.archived("leases", PAST_MAX)]

    async def past(
        self, period: Term, after: tuple[Instant, str], limit: int, state: str = ""
    ) -> list[tuple[Instant, dict[str, Any]]]:
        """Leases of a period that are over, and when each ended, as :meth:`~leasekit.core.schema.Store.past` orders
        them. Raises ``StoreError``.
        """
        rows = await self._read(lambda: self._store.past(period, after, limit, state))
        return [(row[_ENDED], self.actor.recall(row)) for row in rows]

    async def usage(self, period: Term, keys: Sequence[str]) -> UsageDetails:
        """Accounts over a period, added up by ``keys``. They are read a part at a time: all else goes on meanwhile.
        Raises ``StoreError``.
        """
        prices = Prices(await self.history(PRICE))
        accounts = Accounts(period, keys, self.actor.name, prices)
        known = [str(one["id"]) for one in self.actor.query("leases", {"all": True})]
        for part in (known[at : at + PART] for at in range(0, len(known), PART)):
            await self._count(accounts, part)
        seen, after = set(known), (-1, "")
        # Also those whose terms begin after the period: they may have been asked for, and refused, within it.
        ended = Term(period.start, INSTANT_MAX)
        while rows := await self._read(partial(self._store.past, ended, after, PART)):
            after = rows[-1][_ENDED], rows[-1][0]
            await self._count(accounts, [row[0] for row in rows if row[0] not in seen])
        accounts.count_refused(await self.history(NOT_TAKEN))
        notes, since = await self.history(INVENTORY), await self._log_since(period.end)
        return UsageDetails(accounts.shown(), offered(notes, period), since)

    async def _log_since(self, otherwise: Instant) -> Instant:
        """When the log begins; notes that stay however old they are don't count where what followed them has gone."""
        seq, begin = 0, otherwise
        while rows := await self.log(seq, PART):
            for row in rows:
                if seq == 0 or row.seq > seq + 1:
                    begin = row.at
                if row.event not in STANDING:
                    return begin
                seq = row.seq
        return begin

    async def _count(self, accounts: Accounts, leases: Sequence[str]) -> None:
        for rows in await self._read(lambda: [self._store.history(lease) for lease in leases]):
            accounts.count(rows)

    async def history(self, lease: str) -> list[LogRow]:
        """The transitions of one lease. Raises ``StoreError``."""
        return await self._read(lambda: self._store.history(lease))

    async def log(self, after: int, limit: int, code: str = "", before: int = 0) -> list[LogRow]:
        """Up to ``limit`` transitions, as :meth:`leasekit.core.schema.Store.log`. Raises ``StoreError``."""
        return await self._read(lambda: self._store.log(after, limit, code, before))

    async def log_end(self) -> int:
        """The ``seq`` of the last transition. Raises ``StoreError``."""
        (last,) = await self._read(lambda: [self._store.log_end()])
        return int(last)

    async def archived(self, table: str, limit: int) -> list[Row]:
        """Up to ``limit`` rows of the past, newest first. Raises ``StoreError``."""
        return await self._read(lambda: self._store.archived(table, limit))

    async def _read(self, read: Callable[[], list[Any]]) -> list[Any]:
        async with self._store_lock:
            return await trio.to_thread.run_sync(read)

    def describe(self) -> ShellDetails:
        """How the shell is."""
        return ShellDetails(
            self.state, self.problem, self.clock.describe(), len(self._inbox), self.executor.counts(),
            len(self._turns.runaways), self.unit_logs.dropped, **attrs.asdict(self.counts),
        )  # fmt: skip

    def _must_run(self, *, stopping: bool = False) -> None:
        if self.state != RUNNING and not (stopping and self.state == STOPPING):
            raise CommandError(f"{self.actor.name}: {self.state}{f': {self.problem}' if self.problem else ''}")

    # -- running -----------------------------------------------------------------------------------------------

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run until :meth:`stop` was asked for and all is in order, or until cancelled.

        Started when the actor has its state. Raises ``StoreError`` if that can't be read, ``ActorStoppedError``.
        """
        try:
            await self._begin()
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                await nursery.start(self.executor.run)
                self.state = RUNNING
                nursery.start_soon(self._stop_when_asked)
                task_status.started()
                await self._loop()
                nursery.cancel_scope.cancel()
            self._end(STOPPED, "")
        except (ActorStoppedError, StoreError) as error:
            self._end(FAILED, str(error))
            raise
        except BaseExceptionGroup as group:
            leaf = only_leaf(group)
            self._end(FAILED, f"{type(leaf).__name__}: {leaf}")
            raise leaf from None
        finally:
            if self.state not in (STOPPED, FAILED):
                self._end(STOPPED, "")

    def stop(self) -> None:
        """Take nothing more, let driver actions go on for the grace time, then end :meth:`run`."""
        self._stop_asked.set()

    async def _stop_when_asked(self) -> None:
        await self._stop_asked.wait()
        if self.state == RUNNING:
            self.state = STOPPING
        await self.executor.stop(self.settings.grace)
        self._drained = True
        self._inbox.wake()

    def _end(self, state: str, problem: str) -> None:
        self.state, self.problem = state, problem
        for id_ in list(self._waiting):
            self._answer(Reply(id_, error=f"the actor is {state}" + (f": {problem}" if problem else "")))

    async def _begin(self) -> None:
        """Take up the store's state at an instant that is not before it."""
        tables = await self._read_tables()
        kept: dict[str, int] = dict(tables.get("meta", ()))
        ahead = self.clock.resume(kept)
        if self._accept_clock and (step := self.clock.describe()).state == HELD:
            kept = {LAST_KEY: kept[LAST_KEY]}
            ahead = self.clock.resume(kept)
            self._note_accepted("up --accept-clock", kept[LAST_KEY], step.ahead)
        if ahead > self.clock.skew:
            at, span = kept[LAST_KEY], format_duration(ahead)
            raise ActorStoppedError(
                f"the store was last written at {mark(at)}, which is {span} ahead of this machine's clock. Set "
                f"the clock "
                "right; if it is right now, start again when it shows that time",
                EXIT_CLOCK,
            )
        while ahead > 0:
            logger.warning("waits %s until this machine's clock is where the store is", format_duration(ahead))
            await trio.sleep(ahead / SECOND)
            ahead = self.clock.resume(kept)
        self._restore(self.actor, tables)
        if LAST_KEY in kept and (changes := self._with_clock([])):
            # Where nothing was kept yet nothing can end by a clock that is set.
            await self._commit(changes)

    def _restore(self, actor: ActorLike, tables: Mapping[str, Sequence[Row]]) -> None:
        actor.restore(tables)
        self._inbox.wake()  # what was under way goes on at once, not only when the next input comes

    def _take_clock(self, command: Command) -> Reply:
        """Believe the system's clock, as an operator wants, and have that noted."""
        before = self.clock.now()
        try:
            step = self.clock.accept()
        except CommandError as error:
            return Reply(command.id, error=str(error))
        if step:
            self._note_accepted(str(command.arguments.get("by", ""))[:80] or "the operator", before, step)
        return Reply(command.id, plain(AcceptedClock(bool(step), step, before, self.clock.now())))

    def _note_accepted(self, by: str, at: Instant, step: Duration) -> None:
        how = f"{format_duration(abs(step))} {'ahead' if step > 0 else 'behind'}"
        why = said(f"this machine's clock, which was {how}, is accepted by {by}")
        self._own_changes.append(Change(LOG, "", (at, "", "clock_accepted", "", "", why.text())))

    def _with_clock(self, changes: Sequence[Change]) -> list[Change]:
        """``changes``, and before them what the shell itself has to write."""
        own, self._own_changes = self._own_changes, []
        kept = [Change("meta", key, (key, value)) for key, value in self.clock.unkept().items()]
        return [*own, *kept, *changes]

    async def _read_tables(self) -> dict[str, list[Row]]:
        async with self._store_lock:
            return await trio.to_thread.run_sync(self._store.load)

    async def _loop(self) -> None:
        while not (self._drained and not self._inbox):
            await self._inbox.wait(self._patience())
            async with self._between:
                await self._round()

    async def _round(self) -> None:
        inputs: list[Input] = []
        began = self._stopwatch()
        try:
            ready = self._step(inputs)
        except Exception as error:  # noqa: BLE001 - a bug in the actor, or in a mapper: see the module's text
            await self._recover(error, inputs)
            return
        took = self._stopwatch() - began
        self._in_vain = self._due and ready is None and not inputs and not self._yielded
        if ready is not None:
            took += await self._carry_out(ready)
        self._pace.note(len(inputs), took)

    def _patience(self) -> float:
        """How long to wait for inputs, in seconds."""
        if self._drained:
            return 0
        self._due = False
        wake_at = self.actor.wake_at()
        if wake_at is None or self._stop_asked.is_set():
            return math.inf
        wait = wake_at - self.clock.now()
        self._due = wait <= 0
        if self._due and not self._in_vain:
            return 0
        # A wait that is cut short by `tick` finds out that the system's clock was set; and an actor
        # that wants to be woken for nothing, again and again, does not spin.
        return (self.settings.tick if self._due else min(wait, self.settings.tick)) / SECOND

    def _step(self, inputs: list[Input]) -> Ready | None:
        """Step inputs, which are added to ``inputs``, and the turns that are due; what follows from them."""
        actor, used = self.actor, self._used
        used.clear()
        self._yielded = False
        actor.step(Tick(self.clock.now()))
        after = stepped = self._stopwatch()
        while len(inputs) < self._pace.size and after - stepped < ROUND and (one := self._inbox.take()) is not None:
            inputs.append(one)
            self._step_one(one)
            before, after = after, self._stopwatch()
            if (peer := payer(one)) is not None:
                used[peer] = used.get(peer, 0.0) + after - before
                self._inbox.charge(peer, after - before)
        self.counts.inputs += len(inputs)
        if not self._stop_asked.is_set():
            self._take_turns()
        ready = actor.ready()
        self._share(self._stopwatch() - stepped - sum(used.values()))
        if self._own_replies or self._own_changes or (ready is not None and ready.changes):
            ready = ready or Ready()
            ready.changes = self._with_clock(ready.changes)
            ready.replies, self._own_replies = [*ready.replies, *self._own_replies], []
        return ready

    def _share(self, seconds: float) -> None:
        """What followed from a round's inputs, such as the mapper's turn and the commit, has taken so long: that is
        paid for by those who have brought it about.
        """
        spent = sum(self._used.values())
        for peer, mine in self._used.items() if spent else ():
            self._inbox.charge(peer, seconds * mine / spent)

    def _step_one(self, one: Input) -> None:
        stopping = self._stop_asked.is_set()
        if isinstance(one, Command) and one.name == ACCEPT:
            self._own_replies.append(self._take_clock(one))
        elif not stopping or isinstance(one, ActionDone):
            if isinstance(one, Command) and one.id in self._waiting:
                self._waiting[one.id].stepped = True
            self.actor.step(one)
        elif isinstance(one, Command):
            self._answer(Reply(one.id, error=f"{self.actor.name} is stopping"))

    def _take_turns(self) -> None:
        assert self._nursery is not None, "the loop runs in it"
        for _ in range(TURNS_MAX):
            turn = self.actor.turn()
            if turn is None:
                return
            self.counts.turns += 1
            if turn.yields:
                self._yielded = True
                self._take_turn(turn)
                return
            if self._inline:
                self._take_turn(turn)
            else:
                self._nursery.start_soon(self._run_turn, turn, self._generation)

    def _take_turn(self, turn: Turn) -> None:
        began = time.perf_counter()
        done = turn.run()
        self.times.turns.note(time.perf_counter() - began)
        self.actor.step(self._named(done))

    async def _run_turn(self, turn: Turn, generation: int) -> None:
        began = time.perf_counter()
        done = self._named(await self._turns.run(turn))
        self.times.turns.note(time.perf_counter() - began)
        # Turns of an actor that was made anew since are nothing to the new one.
        if generation == self._generation:
            self._inbox.put_now(done)

    def _named(self, done: TurnDone) -> TurnDone:
        """With the mapper's name in what the actor will say of its failure."""
        return done._replace(error=f"{self._mapper}: {done.error}") if done.error and self._mapper else done

    # -- what goes out -----------------------------------------------------------------------------------------

    async def _carry_out(self, ready: Ready) -> float:
        """Returns how many seconds of the processor the commit has taken."""
        took = 0.0
        if ready.changes:
            self._settled = trio.Event()
            try:
                took = await self._commit(ready.changes)
            finally:
                self._settled.set()
            self._share(took)
            self._publish(ready.changes)
        if ready.peers:
            self.meet(ready.peers)
        self._send(ready.messages)
        for reply in ready.replies:
            self._answer(reply)
        if ready.actions:
            self.counts.actions_started += len(ready.actions)
            self.executor.start(ready.actions)
        return took

    async def _commit(self, changes: Sequence[Change]) -> float:
        """Make ``changes`` durable, however often it takes; returns how many seconds of the processor it has. Raises
        ``ActorStoppedError`` when the patience is over.
        """

        def commit() -> float:
            began = self._stopwatch()  # of the thread that this runs in
            self._store.commit(changes)
            return self._stopwatch() - began

        wait: Duration = self.settings.store_retry_first
        began = trio.current_time()
        while True:
            try:
                async with self._store_lock:
                    tried = time.perf_counter()
                    took = await trio.to_thread.run_sync(commit)
                self.times.commits.note(time.perf_counter() - tried)
                break
            except StoreError as error:
                self._in_trouble(str(error), trio.current_time() - began)
            with trio.move_on_after(wait / SECOND):
                if self._stop_asked.is_set():
                    await trio.sleep_forever()
                await self._stop_asked.wait()
            wait = min(2 * wait, self.settings.store_retry_longest)
        self.counts.commits += 1
        self.counts.changes += len(changes)
        if self.state == STORE_TROUBLE:
            self.state, self.problem = (STOPPING if self._stop_asked.is_set() else RUNNING), ""
            logger.warning("the store can be written again")
        return took

    def _in_trouble(self, reason: str, since: float) -> None:
        if self.state != STORE_TROUBLE:
            logger.error("nothing is done until the store can be written: %s", reason)
        self.state, self.problem = STORE_TROUBLE, reason
        self._settled.set()
        patience = self.settings.grace if self._stop_asked.is_set() else self.settings.store_retry_max
        if since * SECOND >= patience:
            text = f"the store could not be written for {format_duration(round(since * SECOND))}: {reason}"
            raise ActorStoppedError(text, EXIT_STORE)

    def _publish(self, changes: Sequence[Change]) -> None:
        rows = [change.row for change in changes if change.table == LOG and change.row is not None]
        self._transition_log.write(rows)
        if self.transitions:
            self.transitions.publish([LogRow(0, *row) for row in rows])

    def _send(self, messages: Sequence[Outgoing]) -> None:
        by_peer: dict[str, list[Message]] = {}
        for peer, message in messages:
            by_peer.setdefault(peer, []).append(message)
        for peer, batch in by_peer.items():
            began = self._stopwatch()
            self.send(peer, batch)
            self._inbox.charge(peer, self._stopwatch() - began)  # answers, refusals too, are paid for by who hears them
        self.counts.messages += len(messages)

    def _answer(self, reply: Reply) -> None:
        waiting = self._waiting.get(reply.id)
        if waiting is not None and waiting.reply is None:
            waiting.reply = reply
            waiting.answered.set()

    # -- the actor made anew -----------------------------------------------------------------------------------

    async def reload(
        self, make: Callable[[], ActorLike], driver_of: Callable[[str], BoundDriver | None], *, inline: bool,
        mapper: str, why: Reason,
    ) -> None:  # fmt: skip
        """Go on with the actor that ``make`` returns, on the same store, between two steps; peers and drivers can't
        tell it from a restart. The log says ``why``. Raises what making or restoring it raises, with nothing changed.
        """
        async with self._between:
            self._must_run()
            await self._make_anew(make, f"{self.actor.name} was reloaded before there was an answer: ask again")
            self._make, self._inline, self._mapper = make, inline, mapper
            self.executor.use(driver_of)
            self._own_changes.append(Change(LOG, "", (self.clock.now(), "", "reloaded", "", "", why.text())))

    async def _make_anew(self, make: Callable[[], ActorLike], why: str) -> None:
        """Take the actor that ``make`` returns in the place of the one that there is, as of the last commit; ``why`` is
        told to those whose commands only that one knew.
        """
        self._settled = trio.Event()
        try:
            actor = make()
            self._restore(actor, await self._read_tables())
        finally:
            self._settled.set()
        self.actor = actor
        self._generation += 1
        self._inbox.put_now(*map(Connected, sorted(self._linked)))
        for id_, waiting in self._waiting.items():
            if waiting.stepped:
                self._answer(Reply(id_, error=why))

    async def _recover(self, error: Exception, inputs: Sequence[Input]) -> None:
        """Go on from the last commit with a new actor. Raises ``ActorStoppedError`` if bugs come too often."""
        self.counts.bugs += 1
        kinds = ", ".join(sorted({_kind(one) for one in inputs})) or "Tick"
        logger.critical("bug: the actor goes on from its store (inputs: %s)", kinds, exc_info=error)
        now = trio.current_time()
        self._bugs.append(now)
        if len(self._bugs) == BUGS_MAX and now - self._bugs[0] < BUGS_WITHIN:
            text = f"{BUGS_MAX} internal errors within {BUGS_WITHIN:.0f} s; the last: {type(error).__name__}: {error}"
            raise ActorStoppedError(text, EXIT_BUG) from error
        await self._make_anew(self._make, f"internal error: {type(error).__name__}: {error}")


def _kind(one: Input) -> str:
    inner = one.message if isinstance(one, Received) else one
    return f"{type(inner).__name__} {inner.name}" if isinstance(inner, Command) else type(inner).__name__


def only_leaf(error: BaseException) -> BaseException:
    """The one exception that nurseries have wrapped; a group of several stays as it is."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
