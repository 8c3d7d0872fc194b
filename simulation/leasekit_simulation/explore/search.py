"""Breadth first through all joint states: first those without a fault, then those with one, and so on.

A joint state that was reached with fewer faults is not gone through again: a fault counts for as long as the joint
state is one that would not be there without it. So what is explored is every path on which at no time more than
``faults`` faults are outstanding, however many there are in all.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Iterator
from itertools import chain, islice
from typing import Final

import attrs

from leasekit.core.time import Duration, Instant
from leasekit_simulation.explore.canonical import canonical
from leasekit_simulation.explore.checks import Violated
from leasekit_simulation.explore.flows import Flow
from leasekit_simulation.explore.joint import Joint
from leasekit_simulation.explore.legal import LASTING
from leasekit_simulation.explore.moves import Move, Mover
from leasekit_simulation.explore.rig import NAMES, RETRY

Level = tuple[str, str, str]
"""A lease's state at guest, broker and site."""
Progress = Callable[[int, int, int], None]
"""Told how many joint states were found, how many of them wait to be gone through, and with how many faults."""

SETTLES: Final[Duration] = 3 * RETRY
"""How long, without any fault, a lease may be in a state that is not to last."""
FORGETS: Final[Duration] = 20 * RETRY
"""How long, without any fault, something may be known of a lease that is over: not as long as if nobody acknowledged
its last word.
"""
STUCK_SHOWN: Final = 20
EVERY: Final = 256
"""How many joint states are gone through between two words on progress."""


@attrs.frozen(slots=True)
class Failure:
    """What is wrong, the joint state's number, and the shortest way there."""

    what: str
    path: tuple[str, ...]


@attrs.define(slots=True, eq=False)
class Graph:
    """All that was found. Joint states are numbered in the order in which they were found.

    ``levels`` has, for each state of a lease, the joint state with fewest faults in which it was found; ``steps`` what
    leads from one to another; ``met`` how often each kind of move was made.
    """

    parent: list[int] = attrs.Factory(list)
    move: list[str] = attrs.Factory(list)
    choice: list[int] = attrs.Factory(list)
    faults: list[int] = attrs.Factory(list)
    fair: list[int] = attrs.Factory(list)
    wait: list[Duration] = attrs.Factory(list)
    stands: list[tuple[Level, ...]] = attrs.Factory(list)
    seen: dict[bytes, int] = attrs.Factory(dict)
    levels: dict[Level, int] = attrs.Factory(dict)
    steps: dict[tuple[Level, Level], dict[str, None]] = attrs.Factory(dict)
    moves: int = 0
    met: Counter[str] = attrs.Factory(Counter)
    failures: list[Failure] = attrs.Factory(list)
    known: dict[Level, Level] = attrs.Factory(dict)
    audited: int = 0

    def path(self, number: int) -> tuple[str, ...]:
        """How a joint state was reached, from the first one on."""
        moves: list[str] = []
        while number > 0:
            moves.append(self.move[number])
            number = self.parent[number]
        return tuple(reversed(moves))

    def better(self, number: int, parent: int, move: str, choice: int, faults: int) -> None:
        """A way to a known joint state that has fewer faults than the one known."""
        self.parent[number], self.move[number], self.choice[number] = parent, move, choice
        self.faults[number] = faults

    def add(self, key: bytes, parent: int, move: str, choice: int, faults: int) -> int:
        """A new joint state, to which ``move``, the parent's ``choice``, leads; returns its number."""
        number = self.seen[key] = len(self.parent)
        self.parent.append(parent)
        self.move.append(move)
        self.choice.append(choice)
        self.faults.append(faults)
        self.fair.append(-1)
        self.wait.append(0)
        self.stands.append(())
        return number


class Search:
    """One exploration of one flow."""

    def __init__(self, flow: Flow, faults: int, progress: Progress | None, audit: int, together: bool) -> None:
        self._mover = Mover(flow, together=together)
        self._most = faults
        self._progress = progress
        self._audit = audit
        self.graph = Graph()
        self._layer: deque[tuple[int, Joint]] = deque()
        self._later: deque[tuple[int, Joint]] = deque()
        self._twins = 0

    def run(self) -> Graph:
        """Go through everything."""
        graph = self.graph
        first = self._mover.begin()
        graph.add(canonical(first), -1, "", 0, 0)
        self._note_levels(None, first, 0, "")
        self._layer.append((0, first))
        for faults in range(self._most + 1):
            while self._layer:
                number, joint = self._layer.popleft()
                if graph.faults[number] == faults:  # else it was reached with fewer meanwhile, and gone through then
                    self._expand(number, joint, faults)
                if self._progress is not None and number % EVERY == 0:
                    self._progress(len(graph.parent), len(self._layer) + len(self._later), faults)
            self._layer, self._later = self._later, deque()
        if self._check_ends():
            for lease in range(len(self._mover.flow.leases)):
                self._check_settled(lease)
        return graph

    def _expand(self, number: int, joint: Joint, faults: int) -> None:
        mover, graph = self._mover, self.graph
        fair = mover.fair(joint)
        if fair is None:
            graph.fair[number] = number
            self._check_over(number, joint)
        choices = mover.moves(joint) if faults == self._most else chain(mover.moves(joint), mover.faults(joint))
        for choice, move in enumerate(choices):
            to, now = self._go(number, joint, move, choice, faults + move.fault)
            if to >= 0 and move == fair:
                graph.fair[number], graph.wait[number] = to, now - joint.now

    def _go(self, number: int, joint: Joint, move: Move, choice: int, faults: int) -> tuple[int, Instant]:
        """Do one move; returns the number of the joint state it leads to (-1 for none), and what time it is there."""
        graph = self.graph
        try:
            after = self._mover.apply(joint, move)
        except Exception as error:  # noqa: BLE001 - whatever an actor raises is what the explorer looks for
            text = str(error) if isinstance(error, Violated) else f"{type(error).__name__}: {error}"
            graph.failures.append(Failure(text, (*graph.path(number), str(move))))
            return -1, joint.now
        if after is None:
            return -1, joint.now
        graph.moves += 1
        key = canonical(after)
        to = graph.seen.get(key)
        if to is None:
            to = graph.add(key, number, str(move), choice, faults)
            (self._later if move.fault else self._layer).append((to, after))
        elif faults < graph.faults[to]:
            graph.better(to, number, str(move), choice, faults)
            self._layer.append((to, after))
        elif self._audit and graph.faults[to] <= self._most:
            self._compare(to, after)
        graph.met[move.way if move.way and move.fault else move.what] += 1
        self._note_levels(joint, after, to, move.cause)
        return to, after.now

    def _note_levels(self, before: Joint | None, after: Joint, number: int, cause: str) -> None:
        graph = self.graph
        then = before.levels() if before is not None else {}
        levels = after.levels()
        if not graph.stands[number]:
            graph.stands[number] = tuple(graph.known.setdefault(level, level) for level in levels.values())
        for lease, level in levels.items():
            known = graph.levels.get(level)
            if known is None or graph.faults[number] < graph.faults[known]:
                graph.levels[level] = number
            if lease in then and then[lease] != level:
                graph.steps.setdefault((then[lease], level), {})[cause] = None

    # -- ends --------------------------------------------------------------------------------------------------

    def _check_over(self, number: int, joint: Joint) -> None:
        """Where nothing happens any more, everything is over: leases, units, time that was booked, returns."""
        wrong = [f"{name} still keeps something" for name in NAMES if joint.actors[name].busy]
        wrong += [
            f"lease {id_} is {', '.join(state)} for ever"
            for id_, state in joint.actors["guest"].leases.items()
            if state[0] not in ("closed", "failed")
        ]
        wrong += [f"unit {unit} is {holder.lease}'s for ever" for unit, holder in joint.holders.items() if holder.lease]
        if wrong:
            self.graph.failures.append(Failure(f"at the end: {'; '.join(wrong)}", self.graph.path(number)))

    def _check_ends(self) -> bool:
        """Whether from every joint state what happens next, when nothing is wrong any more, leads to an end."""
        graph = self.graph
        ends = [number == fair for number, fair in enumerate(graph.fair)]
        backwards: dict[int, list[int]] = {}
        for number, fair in enumerate(graph.fair):
            backwards.setdefault(fair, []).append(number)
        waiting = [number for number, end in enumerate(ends) if end]
        while waiting:
            for number in backwards.get(waiting.pop(), ()):
                if not ends[number]:
                    ends[number] = True
                    waiting.append(number)
        stuck = [number for number, end in enumerate(ends) if not end]
        for number in stuck[:STUCK_SHOWN]:
            if graph.fair[number] >= 0 or not graph.failures:
                graph.failures.append(Failure("it goes on for ever", graph.path(number)))
        return not stuck

    def _check_settled(self, lease: int) -> None:
        """If nothing is wrong any more, no lease stays for long in a state that only something late explains."""
        graph = self.graph
        stays: dict[int, Duration] = {number: 0 for number, fair in enumerate(graph.fair) if fair in (number, -1)}
        worst: dict[Level, int] = {}
        for number in range(len(graph.fair)):
            way: list[int] = []
            while number not in stays:
                way.append(number)
                number = graph.fair[number]
            for one in reversed(way):
                level, then = graph.stands[one][lease], graph.fair[one]
                same = graph.stands[then][lease] == level
                stays[one] = graph.wait[one] + (stays.get(then, 0) if same else 0)
                if stays[one] > _longest(level):
                    worst[level] = min(worst.get(level, one), one)
        for level, number in worst.items():
            text = f"it stays {' | '.join(level)} for {stays[number]} ms, though nothing is wrong any more"
            graph.failures.append(Failure(text, graph.path(number)))

    # -- auditing the canonical form ---------------------------------------------------------------------------

    def _compare(self, number: int, twin: Joint) -> None:
        """Every so often: does a joint state that counts as known lead to what the known one leads to?"""
        self._twins += 1
        if self._twins % self._audit:
            return
        graph = self.graph
        known = self._again(number)
        graph.audited += 1
        mine, theirs = (sorted(self._next(joint)) for joint in (twin, known))
        if mine != theirs:
            move = min(set(mine) ^ set(theirs))[0]
            text = f"two joint states count as one, but {move!r} leads from them to different ones"
            graph.failures.append(Failure(text, graph.path(number)))

    def _next(self, joint: Joint) -> Iterator[tuple[str, bytes]]:
        for move in self._mover.moves(joint):
            after = self._mover.apply(joint, move)
            if after is not None:
                yield str(move), canonical(after)

    def _again(self, number: int) -> Joint:
        """A joint state that was found before, by going its way again."""
        choices: list[int] = []
        while number > 0:
            choices.append(self.graph.choice[number])
            number = self.graph.parent[number]
        joint = self._mover.begin()
        for choice in reversed(choices):
            moves = chain(self._mover.moves(joint), self._mover.faults(joint))
            after = self._mover.apply(joint, next(islice(moves, choice, None)))
            assert after is not None, "it was there before"
            joint = after
        return joint


def _longest(level: Level) -> float:
    """For how long a lease may be in a state that nothing but time explains, in ms."""
    if level not in LASTING:
        return SETTLES
    return FORGETS if level[0] in ("closed", "failed") else math.inf


def search(
    flow: Flow, faults: int, progress: Progress | None = None, *, audit: int = 0, together: bool = True
) -> Graph:
    """Explore ``flow`` with at most ``faults`` faults outstanding.

    With ``audit`` every so manieth joint state that counts as known is compared with the one that it counts as: both
    must lead to the same joint states.
    """
    return Search(flow, faults, progress, audit, together).run()
