"""What can happen next in a joint state, with and without faults."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any, Final, NamedTuple

import attrs

from leasekit.core.leases import service_manager as sm
from leasekit.core.steps import ActionDone, Command, Connected, Input, Received
from leasekit_simulation.explore.checks import Violated, must
from leasekit_simulation.explore.flows import APART, LEAD, LENGTH, Flow
from leasekit_simulation.explore.joint import Joint, Running, without
from leasekit_simulation.explore.pieces import read_action
from leasekit_simulation.explore.rig import BEGIN, BROKER, GUEST, NAMES, REFUSE, SITE, TYPE, WAIT, Parcel, Rig

DELIVER, LATE, END, TIME, CHANGE = "deliver", "deliver late", "end", "time", "change"
LOSE, REPEAT, HOLD_UP, SLOW, FAIL, CRASH, CLOSE, DISABLE, BREAK, OUTAGE, RECONNECT = (
    "lose", "repeat", "hold up", "slow", "fail", "crash", "close", "disable", "break", "outage", "reconnect",
)  # fmt: skip
FAULTS: Final = {
    LOSE: "what is in flight is lost",
    REPEAT: "what is in flight arrives twice, the second time at any time later",
    HOLD_UP: "what is in flight is overtaken by all that comes after it (reordered), and arrives at any time later",
    RECONNECT: "a connection breaks with all that is in flight, and comes up again: both sides hear of it",
    CRASH: "an actor crashes and restarts: at rest, before it commits a step, after that and before it sends, or after "
    "that and before it starts its drivers",
    CLOSE: "the guest's operator closes the lease",
    REFUSE: "the mapper of the broker or of the site refuses",
    WAIT: "the mapper of the broker or of the site decides nothing in its turn, and wants another one later",
    DISABLE: "the site's operator takes a unit out of service, so that the site has too few",
    BREAK: "a unit that is up fails, as a probe finds, or the operator",
    FAIL: "a driver fails to set up, tear down or change a unit, or to let it join or leave",
    SLOW: "a driver is slow: time passes while it is busy",
    OUTAGE: "nothing arrives and no driver ends until something expires: until the next timer that changes anything "
    "but what is sent again",
}
_CRASHES: Final = {"commit": "commits that", "send": "sends", "act": "starts its drivers"}
TICKS_MAX: Final = 500
"""How many timers may run out before one changes anything."""


class Move(NamedTuple):
    """One thing that can happen: ``what``, to which parcel, action, lease or actor (``on``), and in which ``way``."""

    what: str
    on: Any = None
    way: str = ""
    fault: bool = False

    def __str__(self) -> str:
        way = f" (it crashes before it {_CRASHES[self.way]})" if self.way in _CRASHES else f" ({self.way})"
        on = "" if self.on is None else f" {' and '.join(self.on) if isinstance(self.on, tuple) else self.on}"
        return f"{self.what}{on}{way if self.way else ''}"

    @property
    def cause(self) -> str:
        """What happened, whatever the lease and unit: ``Redeem arrives at site``, ``setup ends``, ``time``."""
        crash = ", but it crashes" if self.way in _CRASHES else ""
        told = {REFUSE: ", and it refuses", WAIT: ", and its mapper waits"}.get(self.way, "")
        if isinstance(self.on, Parcel):
            kinds = " and ".join(type(message).__name__ for message in self.on.messages)
            return f"{kinds} arrives at {self.on.receiver}{crash}{told}"
        if isinstance(self.on, Running):
            return f"{self.on.action.op} {'ends' if self.what == END else 'fails'}{crash}{told}"
        named = {
            TIME: "time passes",
            CHANGE: "the guest changes it",
            CLOSE: "the operator closes it",
            OUTAGE: "an outage",
        }
        if self.what == CRASH:
            return f"{self.on} crashes"
        return f"{named.get(self.what, self.what)}{crash}{told}"


class Mover:
    """Makes joint states from joint states."""

    def __init__(self, flow: Flow, *, together: bool = True) -> None:
        self.flow = flow
        self.rig = Rig(flow.units, together=together)

    def begin(self) -> Joint:
        """The joint state in which the guest has just asked for its leases: the site's units are the broker's."""
        joint = Joint(BEGIN, self.rig.begin())
        for name in NAMES:
            joint = self._must_feed(joint, name, "tick", ())
        while joint.flight:
            after = self._deliver(joint, joint.flight[0])
            assert after is not None
            joint = after
        for place, request in enumerate(self.flow.leases):
            start = joint.now + LEAD - place * APART
            term = [start, start + LENGTH]
            after = self._command(joint, GUEST, "lease.request", {"type": TYPE, "term": term, **request})
            must(after is not None, f"the guest can't ask for {request}")
            assert after is not None
            joint = after
        return joint

    # -- what can happen ---------------------------------------------------------------------------------------

    def fair(self, joint: Joint) -> Move | None:
        """What happens next if nothing is wrong any more: all that is under way arrives, then time passes. None at the
        end.
        """
        if joint.flight:
            return Move(DELIVER, joint.flight[0])
        if joint.strays:
            return Move(LATE, joint.strays[0])
        if joint.running:
            return Move(END, joint.running[0])
        return Move(TIME) if joint.time_passes else None

    def moves(self, joint: Joint) -> Iterator[Move]:
        """Everything that can happen without a fault."""
        heads = joint.heads()
        for parcel in heads:
            yield Move(DELIVER, parcel)
        for stray in joint.strays:
            yield Move(LATE, stray)
        for running in joint.running:
            yield Move(END, running)
        if joint.idle and joint.time_passes:
            yield Move(TIME)
        first = next(iter(joint.actors[GUEST].leases))
        if joint.issued < len(self.flow.changes) and first in joint.actors[GUEST].ends:
            yield Move(CHANGE, first)

    def faults(self, joint: Joint) -> Iterator[Move]:
        """Every fault that can happen."""
        heads = joint.heads()
        for parcel in heads:
            for what in (LOSE, REPEAT, HOLD_UP):
                yield Move(what, parcel, fault=True)
        for parcel in heads:
            yield from self._input_faults(DELIVER, parcel, parcel.receiver)
        for stray in joint.strays:
            yield from self._input_faults(LATE, stray, stray.receiver)
        for running in joint.running:
            yield Move(FAIL, running, fault=True)
            if not running.slow:
                yield Move(SLOW, running, fault=True)
            yield from self._input_faults(END, running, running.actor)
        if joint.idle and joint.time_passes:
            for name in NAMES:
                if joint.actors[name].wake == joint.wake:
                    yield Move(TIME, name, "send", fault=True)
                    yield Move(TIME, name, "act", fault=True)
                    if name != GUEST:
                        yield Move(TIME, name, REFUSE, fault=True)
                        yield Move(TIME, name, WAIT, fault=True)
        for name in NAMES:
            yield Move(CRASH, name, fault=True)
        for pair in combinations(NAMES, 2):
            yield Move(RECONNECT, pair, fault=True)
        for lease, state in joint.actors[GUEST].leases.items():
            if state[0] not in (sm.CLOSED, sm.FAILED):
                yield Move(CLOSE, lease, fault=True)
        yield Move(DISABLE, f"{TYPE}-0", fault=True)
        for number in range(self.flow.units):
            yield Move(BREAK, f"{TYPE}-{number}", fault=True)
        if not joint.idle and joint.time_passes:
            yield Move(OUTAGE, fault=True)

    @staticmethod
    def _input_faults(what: str, on: Any, actor: str) -> Iterator[Move]:
        for way in _CRASHES:
            yield Move(what, on, way, fault=True)
        if actor in (BROKER, SITE):
            yield Move(what, on, REFUSE, fault=True)
            yield Move(what, on, WAIT, fault=True)

    # -- doing it ----------------------------------------------------------------------------------------------

    def apply(self, joint: Joint, move: Move) -> Joint | None:
        """``joint`` after ``move``; None if it comes to nothing there. Raises ``Violated``."""
        match move.what:
            case "deliver":
                return self._deliver(joint, move.on, move.way)
            case "deliver late":
                return self._receive(attrs.evolve(joint, strays=without(joint.strays, move.on)), move.on, move.way)
            case "end" | "fail":
                return self._end(joint, move.on, move.what == END, move.way)
            case "time":
                return self._pass_time(joint, move)
            case "lose":
                return attrs.evolve(joint, flight=without(joint.flight, move.on))
            case "hold up":
                return attrs.evolve(joint, flight=without(joint.flight, move.on), strays=(*joint.strays, move.on))
            case "repeat":
                return attrs.evolve(joint, strays=(*joint.strays, move.on))
            case "slow":
                slow: Running = move.on
                slowed = attrs.evolve(slow, slow=True, piece=read_action(slow.actor, slow.action, True))
                return attrs.evolve(joint, running=(*without(joint.running, slow), slowed))
            case "crash":
                return self._feed(joint, move.on, "crash", (), "now")
            case "outage":
                return self._outage(joint)
            case "reconnect":
                return self._reconnect(joint, move.on)
        return self._operate(joint, move)

    def _feed(self, joint: Joint, name: str, what: Hashable, inputs: Sequence[Input], way: str = "") -> Joint | None:
        """``joint`` after one actor's step; None if its mapper was told something and was not asked, or if it would
        start nothing before which it could crash.
        """
        told, crash = (way, "") if way in (REFUSE, WAIT) else ("", way)
        if crash == "act" and not self.rig.feed(name, joint.actors[name], joint.now, what, inputs).actions:
            return None
        effect = self.rig.feed(name, joint.actors[name], joint.now, what, inputs, crash=crash, told=told)
        return joint.after(name, effect) if effect.obeyed and not effect.error else None

    def _must_feed(self, joint: Joint, name: str, what: Hashable, inputs: Sequence[Input]) -> Joint:
        after = self._feed(joint, name, what, inputs)
        assert after is not None, "there was no mapper to be told anything, and no command to be refused"
        return after

    def _reconnect(self, joint: Joint, pair: tuple[str, str]) -> Joint:
        kept = tuple(parcel for parcel in joint.flight if {parcel.sender, parcel.receiver} != set(pair))
        joint = attrs.evolve(joint, flight=kept)
        for name, peer in (pair, pair[::-1]):
            joint = self._must_feed(joint, name, (peer, "connected"), [Connected(peer)])
        return joint

    def _deliver(self, joint: Joint, parcel: Parcel, way: str = "") -> Joint | None:
        return self._receive(attrs.evolve(joint, flight=without(joint.flight, parcel)), parcel, way)

    def _receive(self, joint: Joint, parcel: Parcel, way: str) -> Joint | None:
        inputs = [Received(parcel.sender, message) for message in parcel.messages]
        return self._feed(joint, parcel.receiver, (parcel.sender, parcel.data), inputs, way)

    def _command(self, joint: Joint, name: str, command: str, arguments: Mapping[str, Any]) -> Joint | None:
        return self._feed(joint, name, repr((command, arguments)), [Command(1, command, arguments)])

    def _operate(self, joint: Joint, move: Move) -> Joint | None:
        if move.what == CLOSE:
            return self._command(joint, GUEST, "lease.close", {"lease": move.on})
        if move.what == DISABLE:
            return self._command(joint, SITE, "unit.disable", {"unit": move.on})
        if move.what == BREAK:
            return self._command(joint, SITE, "unit.fail", {"unit": move.on})
        assert move.what == CHANGE, move
        command, arguments = self.flow.changes[joint.issued]
        end = joint.actors[GUEST].ends[move.on]
        after = self._command(joint, GUEST, command, {"lease": move.on, **arguments(end)})
        return None if after is None else attrs.evolve(after, issued=joint.issued + 1)

    def _end(self, joint: Joint, running: Running, ok: bool, way: str) -> Joint | None:
        action, name = running.action, running.actor
        properties = {"host": f"{action.unit}.example"} if ok and action.op == "setup" else {}
        done = ActionDone(action.number, action.unit, ok, properties, "" if ok else "it broke")
        holders = joint.holders
        if name == SITE and way != "commit":
            holders = {**holders, action.unit: holders[action.unit].end(action.number)}
        rest = attrs.evolve(joint, running=without(joint.running, running), holders=holders)
        return self._feed(rest, name, (action.number, action.unit, ok), [done], way)

    def _pass_time(self, joint: Joint, move: Move) -> Joint | None:
        wake = joint.wake
        assert wake is not None, "time passes only to a timer"
        due = [name for name in NAMES if joint.actors[name].wake == wake]
        after: Joint | None = attrs.evolve(joint, now=wake)
        for name in due:
            if after is not None:
                after = self._feed(after, name, "tick", (), move.way if name == move.on else "")
        return after

    def _outage(self, joint: Joint) -> Joint | None:
        """Time passes from timer to timer, and nothing gets through, until one of them changes anything that counts."""
        before = _standing(joint)
        for _ in range(TICKS_MAX):
            after = self._pass_time(joint, Move(TIME)) if joint.time_passes else None
            if after is None:
                return None
            if _standing(after) != before:
                return after
            joint = attrs.evolve(after, flight=joint.flight)
        raise Violated(f"{TICKS_MAX} timers ran out, and nothing has changed")


def _standing(joint: Joint) -> Any:
    """How everything stands, but for what is sent again: to tell a deadline from a repeat."""
    leases = [frozen.leases for frozen in joint.actors.values()]
    return leases, len(joint.running), [frozen.busy for frozen in joint.actors.values()]
