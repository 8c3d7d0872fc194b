"""Leads one workload through one broker's mapper: the production actors in the lean set-up (:mod:`..lean`).

There is one site of so many units, all delegated to one broker, whose mapper is the one that is looked at. Each
holder is a guest: it asks for its work when that is submitted, by a deferrable request with the work's latest start,
and closes the lease when the work is done. So a mapper is called when a broker calls it, and sees what a broker shows.

Best effort is preemptible, and can be suspended (Haizea has it): its rest is asked for by its guest. Work whose lease
is ended before it is done, and not suspended, is lost, and counts as refused.

What a mapper does wrong is counted, and told as an emulation does (:mod:`..mapper_faults`); the broker goes on.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, Final, cast

import attrs

from leasekit.actors.base import is_inline
from leasekit.actors.guest.service_manager import ServiceManager
from leasekit.actors.settings import AuthoritySettings, UnitGroup
from leasekit.core.drivers import RESUME, SAVE
from leasekit.core.errors import LeasekitError
from leasekit.core.mappers import BrokerCycle, BrokerDecision, BrokerMapper, CloseLeaseEarly, Grant, RequestLease
from leasekit.core.properties import SAVES
from leasekit.core.reasons import read, words
from leasekit.core.requests import TRUE
from leasekit.core.schema import LOG, Change
from leasekit.core.steps import Action
from leasekit.core.time import DAY, Duration, Instant, Term, format_duration
from leasekit.emulation.compare.pool import Saving
from leasekit.emulation.compare.works import BEST_EFFORT, Work
from leasekit.emulation.lean import BROKER, OVER, SITE, lean_world
from leasekit.emulation.mapper_faults import MapperFaults, Tell
from leasekit.emulation.world import AT_ONCE, few_collections
from leasekit.emulation.world import Outcome as Ended
from leasekit.policies.authority.first_fit import FirstFit

NODE: Final = "node"
REFUSED: Final = -1
TELL_EVERY_S: Final = 0.2
PATIENCE: Final[Duration] = 400 * DAY
"""How long the last requests wait where nothing begins and nothing ends any more. A mapper that looks at usage sees as
much of it."""
WRONG_MAX: Final = 1000
"""How often the mapper may go wrong meanwhile."""

Share = Callable[[float], None]
"""Told the share of the workload that has been submitted, from 0 to 1."""


@attrs.frozen(kw_only=True)
class DriveOutcome:
    """What became of each piece of work, in the order of the workload: ``starts`` in ms (:data:`REFUSED`: never).

    ``reasons`` of those refused, by position. ``turns`` is how often the mapper was called, ``deepest`` how many waited
    at most, ``seconds`` the real time of it all, ``cpu_seconds`` the processor's, whatever else the machine does;
    ``mapper_cpu_seconds`` of these went to the mapper's turns. ``booked_ahead`` is how many starts were granted for
    later, ``suspended`` when those ran, by position, that were suspended on the way, ``suspensions`` how often that
    was. ``mapper_errors`` is how often the mapper went wrong, by kind (:mod:`leasekit.actors.base`).
    """

    starts: array[int]
    reasons: dict[int, str]
    turns: int
    decisions: int
    deepest: int
    seconds: float
    cpu_seconds: float
    mapper_cpu_seconds: float = 0.0
    booked_ahead: int = 0
    suspensions: int = 0
    suspended: Mapping[int, Sequence[Term]] = attrs.Factory(dict)
    mapper_errors: Mapping[str, int] = attrs.Factory(dict)


def drive(
    works: Sequence[Work],
    units: int,
    mapper: BrokerMapper,
    progress: Share | None = None,
    saving: Saving | None = None,
    tell: Tell | None = None,
) -> DriveOutcome:
    """Run a workload, sorted by submission, on ``units``. ``tell`` hears at once what the mapper does wrong."""
    if units < 1:
        raise LeasekitError(f"nodes: found {units}, expected at least 1")
    return _DriveRun(works, units, mapper, saving or Saving(), progress, tell).run()


class _Counted:
    """The mapper as the broker has it, and how often it was called for how much."""

    def __init__(self, mapper: BrokerMapper) -> None:
        self._mapper = mapper
        self.inline = is_inline(mapper)
        self.turns = self.decisions = self.deepest = self.ahead = 0
        self.cpu_seconds = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._mapper, name)

    def allocate(self, cycle: BrokerCycle) -> Iterable[BrokerDecision]:
        """As the mapper does."""
        begin = time.process_time()
        self.turns += 1
        self.deepest = max(self.deepest, len(cycle.requests))
        decisions = tuple(self._mapper.allocate(cycle))
        self.decisions += len(decisions)
        self.ahead += sum(isinstance(one, Grant) and one.booked.start > cycle.now for one in decisions)
        self.cpu_seconds += time.process_time() - begin
        return decisions


@attrs.define
class _DrivenLease:
    """A lease of some work, for ``length`` ms, with ``done`` of the work behind it."""

    work: int
    length: Duration
    done: Duration = 0
    begun: Instant = REFUSED
    granted: bool = False


class _DriveRun:
    """The workload on its way through the actors."""

    def __init__(
        self,
        works: Sequence[Work],
        units: int,
        mapper: BrokerMapper,
        saving: Saving,
        progress: Share | None,
        tell: Tell | None,
    ) -> None:
        self._works = works
        self._saving, self._suspend = saving, format_duration(saving.time)
        self._progress = progress
        self._told = time.perf_counter()
        self._mapper = _Counted(mapper)
        self._faults = MapperFaults({BROKER: type(mapper).__name__}, tell)
        self._starts = array("q", [REFUSED]) * len(works)
        self._reasons: dict[int, str] = {}
        self._stretches: dict[int, list[Term]] = {}
        self._suspensions = self._asked = self._wrong = 0
        self._leases: dict[str, _DrivenLease] = {}
        self._last = self._start = works[0].submit if works else 0
        names = tuple(f"n{number}" for number in range(units))
        site = AuthoritySettings(inventory=(UnitGroup(type=NODE, names=names, properties={SAVES: "true"}),))
        self._world = lean_world(
            dict.fromkeys(work.holder for work in works), self._mapper, {SITE: (FirstFit(), site)},
            model=self._model, observe=self._observe, start=self._start, only_guests=True,
        )  # fmt: skip

    def _model(self, action: Action) -> Ended:
        moved = SAVE in action.properties or RESUME in action.properties
        return AT_ONCE._replace(latency=self._saving.time) if moved else AT_ONCE

    def run(self) -> DriveOutcome:
        """From the first submission to the last end."""
        begin, begin_cpu = time.perf_counter(), time.process_time()
        world = self._world
        with few_collections():
            for submit, together in groupby(self._works, key=lambda work: work.submit):
                for work in together:
                    self._ask(work)
                world.run_until(submit)
            while (at := world.next_at) is not None and self._goes_on(at):
                world.run_until(at)
        self._give_up()
        if self._progress is not None:
            self._progress(1.0)
        mapper = self._mapper
        return DriveOutcome(
            starts=self._starts, reasons=self._reasons, turns=mapper.turns, decisions=mapper.decisions,
            deepest=mapper.deepest, seconds=time.perf_counter() - begin, cpu_seconds=time.process_time() - begin_cpu,
            mapper_cpu_seconds=mapper.cpu_seconds,
            booked_ahead=mapper.ahead, suspensions=self._suspensions, suspended=self._stretches,
            mapper_errors=self._faults.summary().get(BROKER, {}),
        )  # fmt: skip

    def _ask(self, work: Work) -> None:
        number, self._asked = self._asked, self._asked + 1
        properties = {"deferrable": TRUE, "latest_start": str(work.latest)}
        if work.kind == BEST_EFFORT:
            properties |= {"preemptible": TRUE, "suspend": self._suspend, "notice": "0s"}
        term = Term(work.start, work.start + work.estimate)
        request = RequestLease(NODE, work.units, term, name=str(number), properties=properties)
        self._world.decide_at(work.submit, work.holder, request)

    def _goes_on(self, at: Instant) -> bool:
        """Whether what happens at an instant after the last submission concerns any work."""
        leases = self._leases
        hopeful = at <= self._last + PATIENCE and self._wrong < WRONG_MAX
        return bool(leases) and (hopeful or any(lease.granted for lease in leases.values()))

    # -- what happens ------------------------------------------------------------------------------------------

    def _observe(self, now: Instant, actor: str, changes: Sequence[Change]) -> None:
        over: list[tuple[str, str]] = []
        for change in changes:
            if change.table != LOG or change.row is None:
                continue
            _, lease, event, _, after, why = change.row
            if event == "mapper":
                self._wrong += 1
                self._faults.add(format_duration(now - self._start), actor, after, words(read(why)))
            elif actor in (BROKER, SITE):
                continue
            elif event == "ask":
                self._begin_to_wait(actor, lease)
            elif event == "ticket":
                self._leases[lease].granted = True
            elif event == "lease":
                self._begin(now, actor, lease)
            elif after in OVER:
                over.append((lease, words(read(why))))
        for lease, why in over:
            if lease in self._leases:
                self._end(now, self._leases.pop(lease), why)
        if over:
            self._tell()

    def _begin_to_wait(self, holder: str, lease: str) -> None:
        """A guest has asked for a lease: for work that was submitted, or for the rest of what was suspended."""
        record = cast(ServiceManager, self._world.nodes[holder].actor).leases[lease]
        made = self._leases[lease] = _DrivenLease(int(record.name), record.asked.term.length)
        if record.origin.resumes is not None:
            before, stopped = self._leases.pop(record.origin.resumes.lease), record.origin.resumes.at
            made.done = before.done + stopped - before.begun
            self._stretches.setdefault(made.work, []).append(Term(before.begun, stopped))
            self._suspensions += 1

    def _begin(self, now: Instant, holder: str, id_: str) -> None:
        lease = self._leases[id_]
        lease.begun = now
        if self._starts[lease.work] == REFUSED:
            self._starts[lease.work] = now
        left = self._works[lease.work].run - lease.done
        self._last, self._wrong = max(self._last, now + left), 0
        if left < lease.length:
            self._world.decide_at(now + left, holder, CloseLeaseEarly(id_))

    def _end(self, now: Instant, lease: _DrivenLease, why: str) -> None:
        """A lease is over for good: with its work done, or lost."""
        work, left = lease.work, self._works[lease.work].run - lease.done
        if lease.begun == REFUSED or now < lease.begun + left:
            self._refuse(work, why)
        elif work in self._stretches:
            self._stretches[work].append(Term(lease.begun, lease.begun + left))

    def _refuse(self, work: int, why: str) -> None:
        suspended = self._stretches.pop(work, None)
        self._starts[work] = REFUSED
        self._reasons[work] = f"suspended, and not resumed: {why}" if suspended else why

    def _give_up(self) -> None:
        """Requests that still wait when nothing more will happen are refused."""
        for id_, lease in self._leases.items():
            view = self._world.query(BROKER, "lease", lease=id_)
            self._refuse(lease.work, view["reason"] or "never decided")

    def _tell(self) -> None:
        if self._progress is not None and time.perf_counter() - self._told > TELL_EVERY_S:
            self._told = time.perf_counter()
            self._progress(self._asked / len(self._works))
