"""The world of a scenario: the virtual-time shell with a network that loses, repeats, delays and reorders, drivers that
fail or hang, disks that fill up, clocks that differ, and actors that crash between any two steps.

Everything that crosses the wire, is committed, or reaches a driver is told to the checkers, and counted by name.
"""

from __future__ import annotations

import heapq
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Final

from leasekit.core.drivers import LEASE, SITE, UNIT, Blame
from leasekit.core.schema import LOG, StoreError
from leasekit.core.steps import Action, ActionDone, Command, Connected, Input, Ready, Received, Reply, TurnDone
from leasekit.core.time import MINUTE, SECOND, Duration, Instant
from leasekit.emulation.clocks import MILLION
from leasekit.emulation.world import INPUTS, Node
from leasekit_simulation.faults.links import make_links
from leasekit_simulation.faults.network import BYTES, Network
from leasekit_simulation.faults.population import FaultyNode
from leasekit_simulation.faults.scenario import Scenario

NEVER: Final[Instant] = 2**60
HALF_PACE: Final = MILLION // 2
"""By how many millionths less a clock goes at half its pace."""
ON_THE_WAY: Final[Duration] = 100
"""How long a message may be under way between clocks that are as far apart as is allowed."""
BACK: Final[tuple[Duration, ...]] = (0, 0, 500, 30 * SECOND, 5 * MINUTE)
THINKS: Final[tuple[Duration, ...]] = (0, 0, 10, 500, 3 * SECOND)
PLACES: Final = ("before commit", "before send", "before action")
EVENTS_AT_ONCE: Final = 20_000
STEPS_MAX: Final = 100_000


class LivelockError(AssertionError):
    """The world goes round in circles: too many steps, or too many at one instant."""


class FaultyWorld(Network):
    """Actors of a scenario, in a world that is at fault."""

    def __init__(self, scenario: Scenario, *, faulty: bool = True) -> None:
        super().__init__(scenario, faulty=faulty)
        self.steps = 0
        self.kinds: Counter[type[Any]] = Counter()
        self.on_reply: Callable[[str, Reply], None] = lambda actor, reply: None
        self.delayed = ""
        self.again: set[tuple[str, str]] = set()
        self._stepped: dict[str, Duration] = {}
        self._instant: Instant = -1
        self._at_once = 0

    def start(self) -> None:
        """Put every actor into the world, let the sites delegate, then let the faults begin."""
        for name in self.scenario.actors:
            self._add(name)
        if self.scenario.channels:
            self._links = make_links(self, self.scenario.actors)
            for link in self._links.values():
                link.dial()
        self.run_until(SECOND)
        self.faults_on = self._faulty

    def close(self) -> None:
        """Let go of files."""
        for node in self.nodes.values():
            node.store.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    # -- running -----------------------------------------------------------------------------------------------

    def _feed(self, node: FaultyNode, kind: int, payload: Any, at: Instant) -> bool:
        """Take one event in; whether the actor has something to do because of it."""
        if kind == BYTES:
            _, link, life, data = payload
            link.take(life, node.name, data, self.clock(node.name), self.skew)
            return bool(node.inbox)
        return super()._feed(node, kind, payload, at)

    def _step(self, node: FaultyNode, at: Instant, due: bool) -> None:
        """Let an actor act that has something to do, if it is up and does not wait for its disk."""
        self._watch(at)
        if due and node.stuck is None and node.up_at <= at:
            self.steps += 1
            super()._step(node, at, due)

    def _watch(self, at: Instant) -> None:
        """Notice when time stands still, or the end never comes."""
        if at != self._instant:
            self._instant, self._at_once = at, 0
        self._at_once += 1
        if self._at_once > EVENTS_AT_ONCE:
            raise LivelockError(f"{self._at_once} events at {at}, and time does not go on")
        if self.steps > STEPS_MAX:
            raise LivelockError(f"{self.steps} steps up to {at}, and no end")

    def _handle(self, node: Node) -> None:
        """As the world's, with listeners, and places where an actor may crash."""
        assert isinstance(node, FaultyNode)
        actor = node.actor
        if node.inbox:
            inbox, node.inbox = node.inbox, []
            self.steps += len(inbox)
            for item in inbox:
                if type(item) is Received:
                    if not self.knows(node.name, item.peer):
                        self.mark("not heard: not known yet")
                        continue
                    kind = type(item.message)
                    self.kinds[kind] += 1
                    for heard in self._handlers(1, kind):
                        heard(self.now, item.peer, node.name, item.message)
                elif type(item) is ActionDone:
                    for listener in self._mind["ended"]:
                        listener.ended(self.now, node.name, item)
                actor.step(item)
        while (turn := actor.turn()) is not None:
            self.steps += 1
            done, span = turn.run(), self._thinks(node.name, turn.number)
            if span:
                self._push(self.now + span, node.index, INPUTS, (node, [done]))
            else:
                actor.step(done)
        ready = actor.ready()
        if ready is not None and not self._carry_out(node, ready):
            return
        self._wake(node)

    def _thinks(self, name: str, turn: int) -> Duration:
        """How long a mapper takes for its turn: no time, unless it runs apart from its actor."""
        if name not in self.scenario.apart or not self.faults_on:
            return 0
        span = Random(f"{self.scenario.seed}/{name}/turn {turn}").choice(THINKS)
        if span:
            self.mark("mapper takes its time")
        return span

    def _carry_out(self, node: FaultyNode, ready: Ready) -> bool:
        """Commit, send, start; False if the actor did not live to see the end of it, or waits for its disk."""
        place = self._crash_place(node)
        if place == PLACES[0]:
            self._crash_at(node, place, ready)
            return False
        if ready.changes and not self._commit(node, ready):
            return False
        if place == PLACES[1]:
            self.again.update((node.name, getattr(message, "lease", "")) for _, message in ready.messages)
            self._crash_at(node, place)
            return False
        name = node.name
        for reply in ready.replies:
            self.replies[reply.id] = reply
            self.on_reply(name, reply)
        if ready.messages:
            self._send(name, ready.messages)
        if place == PLACES[2]:
            self._crash_at(node, place)
            return False
        if ready.actions:
            self._start(node, ready.actions)
        return True

    # -- disks -------------------------------------------------------------------------------------------------

    def _commit(self, node: FaultyNode, ready: Ready) -> bool:
        """Whether the changes are durable; else the actor stands still, and the commit is tried again."""
        try:
            node.store.commit(ready.changes)
        except StoreError:
            self.mark("store: commit refused")
            node.stuck = ready
            if not node.stuck_wait:
                node.stuck_since = self.now
            node.stuck_wait = min(2 * node.stuck_wait or 100, 10 * SECOND)
            if self.now - node.stuck_since >= self.scenario.timing.store_patience:
                self.mark("store: actor stopped")
                self.crash(node.name, NEVER)
            else:
                self.call_at(self.now + node.stuck_wait, node.name, lambda: self._retry(node, ready))
            return False
        node.stuck, node.stuck_wait = None, 0
        rows = [row for table, _, row in ready.changes if table == LOG and row is not None]
        for listener in self._mind["committed"] if rows else ():
            listener.committed(self.now, node.name, rows)
        for listener in self._mind["stored"]:
            listener.stored(self.now, node.name, ready.changes)
        return True

    def _retry(self, node: FaultyNode, ready: Ready) -> None:
        if node.stuck is not ready:
            return  # it has crashed since
        self.delayed = node.name
        done = self._carry_out(node, ready)
        self.delayed = ""
        if done:
            self.mark("store: went on when there was room")
            node.scheduled = None
            self._schedule_wake(node, self.now)

    def set_full(self, name: str, full: bool) -> None:
        """Whether an actor's disk is full; one that was stopped for it is started again when it is not any more."""
        node = self.node(name)
        node.disk.set_full(full)
        if not full and node.up_at == NEVER and not node.stopped:
            self._come_back(node, self.now)

    # -- crashes -----------------------------------------------------------------------------------------------

    def _crash_place(self, node: FaultyNode) -> str:
        """Where in this Ready the actor crashes, if it does."""
        if not self.faults_on:
            return ""
        node.readies += 1
        rate = self.scenario.rates.crash
        if self._explicit is not None:
            return self._explicit.get(f"crash {node.name} {node.readies}", "")
        if not rate:
            return ""
        share = node.rng.random() / rate
        return PLACES[int(share * 3)] if share < 1 else ""

    def _crash_at(self, node: FaultyNode, place: str, ready: Ready | None = None) -> None:
        self.mark(f"crash {place}")
        occasion = f"crash {node.name} {node.readies}"
        self.inject(occasion, place)
        rng = Random(f"{self.scenario.seed} {occasion}")
        torn = ready.changes if ready is not None and rng.random() < 0.5 else ()
        self.crash(node.name, self.now + rng.choice(BACK), torn, rng.random())

    def crash(self, name: str, back: Instant, torn: Sequence[Any] = (), share: float = 0.0) -> None:
        """Lose an actor's memory, what it was sent but has not taken, and its running actions; it is up again at
        ``back``, and what arrives until then is lost.
        """
        self.mark("restart at once" if back <= self.now else "restart later")
        node = self.node(name)
        node.disk.crash(torn, share)
        node.stuck, node.stuck_wait, node.running = None, 0, set()
        self.take_down(name, back)
        for names, link in self._links.items():
            if name in names:
                link.fail()
        if back < NEVER:
            self._come_back(node, back)

    def stop(self, name: str) -> None:
        """An operator stops an actor."""
        self.crash(name, NEVER)
        self.node(name).stopped = True

    def start_again(self, name: str) -> None:
        """An operator starts an actor that was stopped."""
        self.node(name).stopped = False
        self._come_back(self.node(name), self.now)

    def _make_anew(self, node: FaultyNode, at: Instant) -> None:
        """An actor goes on ``at`` then with what its store has, and by what its file says by now."""
        node.rereads = False
        self.take_up(node, self._make(node.name, node.clock), at)
        for listener in self._mind["restarted"]:
            listener.restarted(self.now, node.name, self.actor(node.name))

    def _come_back(self, node: FaultyNode, at: Instant) -> None:
        name = node.name
        node.up_at = at
        self._make_anew(node, at)
        if not self._links and Random(f"{self.scenario.seed} back {name} {self.now}").random() < 0.5:
            for peer in self.scenario.actors:
                if peer != name and self.is_up(peer):
                    self._push(at, node.index, INPUTS, (node, [Connected(peer)]))
                    self._push(at, self.nodes[peer].index, INPUTS, (self.nodes[peer], [Connected(name)]))

    def reload_file(self, name: str) -> None:
        """Have an actor take what its file says by now, as soon as it is up and its commit is done; its drivers go on,
        and what is on its way to it comes. What its mapper thinks about is not decided any more.
        """
        node = self.node(name)
        if node.up_at < NEVER and not self.is_up(name):
            self.mark("reload waits")
            node.rereads = True
            self.call_at(max(node.up_at, self.now + SECOND), name, lambda: self.reload_file(name))
        elif node.up_at < NEVER:
            self.mark("reload")
            mine = [event for event in self._queue if event[1] == node.index and event[3] == INPUTS]
            firsts = [event[4][1][0] for event in mine]
            node.running = {(one.number, one.unit) for one in firsts if isinstance(one, ActionDone)}
            stale = {event[2] for event, first in zip(mine, firsts, strict=True) if isinstance(first, TurnDone)}
            self._queue[:] = [event for event in self._queue if event[2] not in stale]
            heapq.heapify(self._queue)
            node.inbox = [one for one in node.inbox if not isinstance(one, TurnDone)]
            self._make_anew(node, self.now)
            node.inbox += [Connected(other) for other in self.nodes if other != name and self.is_up(other)]

    # -- drivers -----------------------------------------------------------------------------------------------

    def _start(self, node: Node, actions: Sequence[Action]) -> None:
        name = node.actor.name
        self.actions += len(actions)
        assert isinstance(node, FaultyNode)
        for action in actions:
            if (action.number, action.unit) in node.running:
                continue  # its driver is at it since before the reload
            for listener in self._mind["started"]:
                listener.started(self.now, name, action)
            self._run_driver(node, name, action)

    def _run_driver(self, node: Node, name: str, action: Action) -> None:
        # Drawn from the action, not from the run: done again after a crash it ends as it would have.
        rng = Random(f"{self.scenario.seed}/{name}/{action.number}/{action.op}/{action.unit}")
        latency, chance, late = rng.choice((0, 10, 2000, 20_000)), rng.random(), rng.random()
        done = ActionDone(action.number, action.unit, True, {"at": action.unit}, "")
        what = self._driver_fault(name, action, chance) if self.faults_on else ""
        if latency >= 20_000:
            self.mark("driver: slow")
        if what == "fails":
            done = done._replace(ok=False, properties={}, reason="it broke", blame=self._blame(name, action, rng))
        elif what == "hangs":
            # The executor gives up on it; some come to their end all the same, when nobody waits any more.
            latency = self.scenario.timing.driver_timeout
            if late < 0.5:
                self.mark("driver: completes after its timeout")
                self._push(self.now + latency + int(late * MINUTE), node.index, INPUTS, (node, [done]))
            else:
                self.mark("driver: never returns")
            done = done._replace(ok=False, properties={}, reason="timed out")
        self._push(self.now + latency, node.index, INPUTS, (node, [done]))

    def _blame(self, name: str, action: Action, rng: Random) -> Blame:
        """Whose fault it is that an action fails: mostly the unit's, and always that of a bad one."""
        blames: tuple[Blame, ...] = (UNIT, UNIT, UNIT, LEASE, SITE)
        if action.op != "setup" or f"{name}/{action.unit}" in self.scenario.bad_units:
            return UNIT
        found = rng.choice(blames)
        self.mark(f"driver: setup fails by the {found}'s fault")
        return found

    def _driver_fault(self, name: str, action: Action, chance: float) -> str:
        occasion = f"driver {name} {action.number}"
        rates = self.scenario.rates
        fail = rates.fail * (0.2 if action.op == "teardown" else 1)
        if action.op == "setup" and f"{name}/{action.unit}" in self.scenario.bad_units:
            self.mark("driver: fails for good")
            return "fails"
        if self._explicit is not None:
            what = self._explicit.get(occasion, "")
        else:
            what = "fails" if chance < fail else "hangs" if chance < fail + rates.hang else ""
        if what:
            self.mark(f"driver: {action.op} {what}")
            self.inject(occasion, what)
        return what

    # -- clocks ------------------------------------------------------------------------------------------------

    def step_clock(self, name: str, by: Duration, span: Duration) -> None:
        """An actor's clock jumps, and back after ``span``; not again until then."""
        if name not in self._stepped:
            self._stepped[name] = by
            self._turn_clock(name, by)
            self.call_at(self.now + span, name, lambda: self._turn_clock(name, -self._stepped.pop(name, 0)))

    def leap_clock(self, name: str, by: Duration, span: Duration) -> None:
        """An actor's clock leaps ahead, and goes at half its pace after ``span`` until it is right again, as a daemon's
        does whose machine was set back; not again until then.
        """
        if name not in self._stepped:
            self._stepped[name] = 0
            drift = self.node(name).clock.drift
            self._turn_clock(name, by)
            self.call_at(self.now + span, name, lambda: self._slow_down(name, by, drift))

    def _slow_down(self, name: str, by: Duration, drift: int) -> None:
        if name in self._stepped:
            self.mark("clock at half its pace")
            self._turn_clock(name, 0, drift - HALF_PACE)
            self.call_at(self.now + 2 * by, name, lambda: self._go_on(name, drift))

    def _go_on(self, name: str, drift: int) -> None:
        if self._stepped.pop(name, None) is not None:
            self._turn_clock(name, 0, drift)

    def suspend(self, name: str, span: Duration, late: Duration) -> None:
        """An actor's machine stands still, and so do its drivers; what reaches it meanwhile waits. Its clock stands
        still as well, and is set right ``late`` after that (-1: it counts how long the machine slept).
        """
        node, wake = self.node(name), self.now + span
        node.up_at = node.asleep_until = wake
        self._queue[:] = [self._postponed(event, node.index, span, wake) for event in self._queue]
        heapq.heapify(self._queue)
        for names, link in self._links.items():
            if name in names:
                link.fail()
        if late >= 0:
            self.step_clock(name, -span, span + late)
        node.scheduled = None
        self._schedule_wake(node, wake)

    @staticmethod
    def _postponed(event: tuple[Any, ...], index: int, span: Duration, wake: Instant) -> tuple[Any, ...]:
        at, owner, number, kind, payload = event
        if owner != index or kind != INPUTS:
            return event
        stood_still = isinstance(payload[1][0], ActionDone | TurnDone)
        return (at + span if stood_still else max(at, wake), owner, number, kind, payload)

    def _turn_clock(self, name: str, by: Duration, drift: int | None = None) -> None:
        node = self.node(name)
        node.clock.turn(self.now, by, node.clock.drift if drift is None else drift)
        node.scheduled = None
        self._schedule_wake(node, max(self.now, node.up_at))

    # -- healing -----------------------------------------------------------------------------------------------

    def heal(self) -> None:
        """No more faults: all that was broken works again, within seconds; what is under way arrives."""
        self.faults_on = False
        self.cuts.clear()
        self.slow.clear()
        for name in list(self._stepped):
            self._turn_clock(name, -self._stepped.pop(name))
        for mood in self._moods.values():
            mood.calm = True
        for name in self.nodes:
            node = self.node(name)
            node.clock.turn(self.now, 0, 0)
            most = self.skew // 2 - ON_THE_WAY  # two that are off in different directions still hear each other
            self._turn_clock(name, max(-most, min(most, node.clock.offset)) - node.clock.offset)
            self.set_full(name, False)
        soon = self.now + 3 * SECOND
        self._queue[:] = [
            (min(at, soon) if kind == BYTES or _is_message(kind, payload) else at, index, seq, kind, payload)
            for at, index, seq, kind, payload in self._queue
        ]
        heapq.heapify(self._queue)
        for link in self._links.values():
            link.hurry(soon)
        self.run_until(max(self.now, *(self.node(name).up_at for name in self.nodes if not self.node(name).stopped)))
        for names in [(one, other) for one in self.nodes for other in self.nodes if one < other]:
            if self.role(names[0]) != self.role(names[1]) and not self._links:
                self.connect(*names)

    # -- the operator's hand -----------------------------------------------------------------------------------

    def command(self, actor: str, name: str, /, **arguments: Any) -> Reply:
        """Have an actor that is up carry out a command now. Without a reply (it crashed, or waits for its disk) the
        answer is an error that says so; a reply may still come later, to :attr:`on_reply`.
        """
        self._command += 1
        number = self._command
        self.feed(actor, [Command(number, name, arguments)])
        return self.replies.pop(number, Reply(number, error="no answer"))

    def inbox(self, actor: str, inputs: Sequence[Input]) -> None:
        """Put inputs into an actor's inbox, which it takes at once when it is its turn."""
        self.node(actor).inbox.extend(inputs)

    def feed(self, actor: str, inputs: Any) -> None:
        """As the world's."""
        self.steps += 1
        super().feed(actor, inputs)

    @property
    def last_command(self) -> int:
        """The number of the latest command."""
        return self._command


def _is_message(kind: int, payload: Any) -> bool:
    return kind == INPUTS and isinstance(payload[1][0], Received)
