"""The process in which a mapper is checked: takes one job on standard input, says what it finds line by line.

Each line on standard output is a JSON object: ``{"case": N}`` before a case is played, so that who listens knows what
it was if nothing more is heard, ``{"turn": ...}`` before a single turn, ``{"beat": true}`` while a long one goes on;
``{"fault": ...}`` with a shrunk case or turn; at last ``{"done": ...}``. What the mapper prints goes to standard error.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, TextIO

import attrs

from leasekit.config.jobs import JobsSpec, MadeJobs, open_jobs
from leasekit.config.traces import synthetic
from leasekit.core.errors import LeasekitError
from leasekit.core.mappers import GuestCycle, GuestDecision
from leasekit.core.signals import SignalSoFar
from leasekit.core.time import DAY, Instant
from leasekit.emulation.conformance.cases import Case, MadeTurn, draw, played_from_json, played_to_json, shrink
from leasekit.emulation.conformance.loads import SIZES, cost, cycle_of, play_turn
from leasekit.emulation.conformance.stage import play
from leasekit.emulation.conformance.watched import TIME, Fault, FaultFound, TurnRecord, shown
from leasekit.policies.registry import find_mapper, make_mapper

BUG: Final = 70
"""Exit status for what is not the mapper's fault."""
MEMORY_MAX: Final = 4 << 30
"""Address space in bytes: a mapper that hoards gets a ``MemoryError``, not the machine."""
TURN_MAX: Final = 30.0
"""Seconds that a shell gives a turn if nothing else is set (``shell.mapper_timeout``)."""
SHOWN_MAX: Final = 100
"""How many lines are shown of what a single turn was shown, and of what it decided."""
SHRINK_SLOW: Final = 12
"""How many cases are tried to shrink one whose turn takes too long: each costs the limit."""


@attrs.frozen(kw_only=True)
class Subject:
    """What is checked, and how. ``limit`` is how many seconds a turn of a small case may take; at ``sizes`` requests a
    turn's cost is measured.
    """

    target: str
    role: str
    settings: Mapping[str, Any] = attrs.Factory(dict)
    types: Sequence[str] = ("vm", "host")
    seed: int = 1
    cases: int = 100
    limit: float = 5.0
    turn_max: float = TURN_MAX
    sizes: Sequence[int] = SIZES

    def limit_of(self, turn: MadeTurn) -> float:
        """How many seconds a single turn may take."""
        return self.turn_max if turn.is_large else self.limit


@attrs.frozen(kw_only=True)
class ChildJob:
    """What a child is to do with its subject: ``replay`` one case or turn, or draw all of them; with ``digests_only``
    only to see what is decided, faults and costs are then somebody else's.
    """

    subject: Subject
    digests_only: bool = False
    replay: Case | MadeTurn | None = None


def maker(subject: Subject) -> Callable[[], Any]:
    """What makes the mapper anew for each case. One that follows a load, or replays jobs, gets generated ones.

    Raises ``SettingsError``.
    """
    kind, extras = find_mapper(subject.target, subject.role, "mapper"), dict[str, Any]()
    if getattr(kind, "needs_jobs", False):
        extras["jobs"] = open_jobs(JobsSpec(made=MadeJobs(), horizon=2 * DAY, seed=subject.seed), None)

    def made(**more: Any) -> Any:
        return make_mapper(subject.target, subject.role, subject.settings, "mapper", {**extras, **more})

    if not getattr(kind, "needs_signal", False):
        return made
    load = synthetic(subject.seed, 2 * DAY, peak=20.0)
    return lambda: _Following(SignalSoFar(load), made)


class _Following:
    """A mapper that follows a load, of which it sees as much as has been at each turn."""

    def __init__(self, load: SignalSoFar, make: Callable[..., Any]) -> None:
        self._mapper = make(signal=load)
        self._now: Instant = 0
        load.now = lambda: self._now

    def __getattr__(self, name: str) -> Any:
        return getattr(self._mapper, name)

    def plan(self, cycle: GuestCycle) -> Iterable[GuestDecision]:
        """As the mapper does."""
        self._now = cycle.now
        decided: Iterable[GuestDecision] = self._mapper.plan(cycle)
        return decided


class MapperChild:
    """Does a job, and says on ``out`` what it finds. The mapper of the job may end the process."""

    def __init__(self, job: ChildJob, out: TextIO) -> None:
        self._job, self._subject = job, job.subject
        self._out = out
        self._make = maker(job.subject)
        self._turns = 0

    def run(self) -> None:
        """Play what the job says. Raises ``LeasekitError`` if the mapper can't be made."""
        job, subject = self._job, self._subject
        if job.replay is not None:
            self._replay(job.replay)
            return
        digests: list[str] = []
        for number in range(subject.cases):
            case = draw(subject.seed, number, subject.types)
            self._say(case=number)
            played = play(case, subject.role, self._make, subject.limit, beat=self._beat)
            self._turns += played.turns
            digests.append("" if played.fault is not None else played.digest)
            if played.fault is not None:
                if not job.digests_only:
                    self._tell(case, played.fault)
                break
        is_right = len(digests) == subject.cases and all(digests)
        found = self._by_hand() if is_right and not job.digests_only else []
        self._say(done={"digests": digests, "turns": self._turns, "costs": found})

    def _by_hand(self) -> list[dict[str, Any]]:
        """Turns of cycles that are made by hand: empty ones, and large ones."""
        subject, found = self._subject, list[dict[str, Any]]()
        empty = MadeTurn(size=0, types=subject.types)
        large = (attrs.evolve(empty, size=size) for size in subject.sizes)
        for turn in (empty, attrs.evolve(empty, size=3, there=False), *large):
            try:
                if turn.is_large:
                    self._say(**played_to_json(turn))
                    found.append(attrs.asdict(cost(subject.role, self._make, turn, subject.turn_max)))
                else:
                    self._turn(turn)
            except FaultFound as fault:
                self._tell_turn(turn, fault.fault)
                return []
        return found

    def _turn(self, turn: MadeTurn) -> TurnRecord:
        """Play a single turn. Raises :class:`FaultFound`."""
        subject = self._subject
        self._say(**played_to_json(turn))
        cycle = cycle_of(subject.role, turn)
        _, decided = play_turn(subject.role, self._make(), turn, cycle, subject.limit_of(turn))
        return TurnRecord(cycle.now, _first(shown(cycle_of(subject.role, turn))), _first(tuple(map(repr, decided))))

    def _tell_turn(self, turn: MadeTurn, fault: Fault) -> None:
        """The fault, with half as much in the turn as long as the same goes wrong."""
        while turn.is_large and turn.size > 1:
            half = attrs.evolve(turn, size=turn.size // 2)
            try:
                self._turn(half)
                break
            except FaultFound as found:
                if found.fault.check != fault.check:
                    break
                turn, fault = half, found.fault
        self._say(fault={**fault._asdict(), **played_to_json(turn)})

    def _replay(self, case: Case | MadeTurn) -> None:
        subject, fault = self._subject, None
        if isinstance(case, Case):
            self._say(case="replay")
            played = play(case, subject.role, self._make, subject.limit, journal=True, beat=self._beat)
            fault, records, digest, turns = played.fault, played.journal[:200], played.digest, played.turns
        else:
            try:
                records = [self._turn(case)]
            except FaultFound as found:
                cycle, fault = cycle_of(subject.role, case), found.fault
                records = [TurnRecord(cycle.now, _first(shown(cycle)), ())]
            digest, turns = repr(records), 1
        if fault is not None:
            self._say(fault={**fault._asdict(), **played_to_json(case)})
        self._say(done={"digests": [digest], "turns": turns, "costs": [], "journal": records})

    def _tell(self, case: Case, fault: Fault) -> None:
        """The fault with the smallest case that can be found for the same check."""
        subject, last = self._subject, fault
        tries = SHRINK_SLOW if fault.check == TIME else 400
        until = time.monotonic() + 60

        def fails(candidate: Case) -> bool:
            nonlocal last
            if time.monotonic() > until:
                return False
            self._say(case="shrinking")
            found = play(candidate, subject.role, self._make, subject.limit, beat=self._beat).fault
            same = found is not None and found.check == fault.check
            if same and found is not None:
                last = found
            return same

        smallest = shrink(case, fails, tries)
        self._say(fault={**last._asdict(), **played_to_json(smallest)})

    def _beat(self) -> None:
        self._say(beat=True)

    def _say(self, **words: Any) -> None:
        self._out.write(json.dumps(words) + "\n")
        self._out.flush()


def _first(lines: Sequence[str]) -> tuple[str, ...]:
    """As many lines of a large turn as a person reads."""
    more = len(lines) - SHOWN_MAX
    return (*lines[:SHOWN_MAX], f"and {more:,} more lines") if more > 0 else tuple(lines)


def main() -> int:
    """Do the job on standard input."""
    data = json.loads(sys.stdin.read())
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_MAX, resource.getrlimit(resource.RLIMIT_AS)[1]))
    replay = None if data["replay"] is None else played_from_json(data["replay"])
    job = ChildJob(subject=Subject(**data["subject"]), digests_only=data["digests_only"], replay=replay)
    try:
        MapperChild(job, out).run()
    except LeasekitError as error:
        print(json.dumps({"error": str(error)}), file=out, flush=True)
    except Exception:  # noqa: BLE001 - what a mapper does is caught where it is called: this is a bug of the kit
        traceback.print_exc()
        return BUG
    return 0


if __name__ == "__main__":
    sys.exit(main())
