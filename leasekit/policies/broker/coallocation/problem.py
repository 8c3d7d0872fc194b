"""A whole problem file, decided: ``leasekit plan coallocate`` without the command line."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from typing import Any, Final, final

from leasekit.core.settings import SettingsError
from leasekit.core.time import Instant, Term
from leasekit.core.topology import exact
from leasekit.policies.broker.coallocation import reasons
from leasekit.policies.broker.coallocation.checker import Free, NamedPlan, faults
from leasekit.policies.broker.coallocation.frames import Books, FramePlanned, FramePlanner, FrameWindow, Policy, Refused
from leasekit.policies.broker.coallocation.instance import (
    INF,
    Availability,
    InstanceOutcome,
    InstanceShape,
    Network,
    denominator,
    scale_of,
)
from leasekit.policies.broker.coallocation.model import ModelFrames, Problem
from leasekit.policies.broker.coallocation.solve import SolveLimits

INSTANT_MAX: Final = 1 << 60
"""Times reach this far at most, in the unit that makes all of a file's times whole."""


class PlanError(AssertionError):
    """A solver's plan did not pass the independent check: a bug of ours, never granted."""


@final
class Decision:
    """One problem and its answer. ``remaining`` says how many seconds are left; without it, only nodes are limited."""

    def __init__(self, problem: Problem, *, remaining: Callable[[], float] | None = None) -> None:
        """Raises ``SettingsError`` where times need more precision than there is."""
        self._problem = problem
        options = problem.options
        scale = scale_of(
            problem.resources,
            [problem.request],
            bandwidths=[one.bw for one in problem.reserved if one.bw is not None],
            values=options.preference.values(),
        )
        self._network = Network(problem.resources, scale)
        self._shape = InstanceShape(self._network, problem.request, options)
        self._tick = _tick(problem)
        self._planner = FramePlanner(self._books())
        self._policy = Policy(
            fraction=exact(problem.fraction),
            load_balancing=options.load_balancing,
            values=self._network.preferred(options.preference) if options.preference else None,
            sort=problem.sort,
            solver=options.solver,
            limits=SolveLimits(remaining=remaining),
        )

    def answer(self) -> dict[str, Any]:
        """The answer in the format of plan files, but for ``solve_ms``.

        Raises :class:`PlanError` for a plan that fails the independent check, ``LeasekitError`` where HiGHS is wanted
        and missing.
        """
        frames = self._problem.frames
        return self._instant() if frames is None else self._window(frames)

    def _instant(self) -> dict[str, Any]:
        window = FrameWindow(est=0, lst=0, duration=1, count=1)
        planned = self._planner.plan(self._shape, window, self._policy)
        outcome = (planned.plans or planned.refused)[0].outcome
        if outcome is None:
            outcome = InstanceOutcome("bound", None, 0)
        answer: dict[str, Any] = {
            "status": outcome.status,
            "objective": None,
            "bound": None if outcome.bound >= INF else self._network.scale.money(outcome.bound),
            "sites": None,
            "paths": None,
            "reason": None,
        }
        if outcome.cost is not None:
            answer |= self._named(outcome, Term(0, 1))
            if outcome.status == "bound":
                answer["reason"] = "a limit was met before this was proven to be the best"
        else:
            answer["reason"] = self._explainer().why(planned.refused[0], Term(0, 1))
        return answer

    def _window(self, frames: ModelFrames) -> dict[str, Any]:
        window = self._window_of(frames)
        planned = self._planner.plan(self._shape, window, self._policy)
        plans = []
        for plan in planned.plans:
            named = self._named(plan.outcome, window.frame(plan.start))
            plans.append(
                {
                    "start": self._shown(plan.start),
                    "status": plan.outcome.status,
                    "bound": self._network.scale.money(plan.outcome.bound),
                    **named,
                }
            )
        explainer = self._explainer()
        refused = [
            {"start": self._shown(one.start), "reason": explainer.why(one, window.frame(one.start))}
            for one in planned.refused
        ]
        return {"plans": plans, "refused": refused, "alternative": self._alternative(planned, explainer, window)}

    def _alternative(
        self, planned: FramePlanned, explainer: reasons.Explainer, window: FrameWindow
    ) -> dict[str, Any] | None:
        """What would fit, where it was proven that nothing does."""
        if planned.plans or not all(_is_proven(one) for one in planned.refused):
            return None
        found = explainer.nearest(window)
        start = None if found.start is None else self._shown(found.start)
        words = reasons.words(found, self._write)
        return {"start": start, "cpus": found.cpus, "bw": found.bw, "words": words} if words else None

    # -- parts ------------------------------------------------------------------------------------------------------

    def _books(self) -> Books:
        books = Books.empty(self._network)
        for number, one in enumerate(self._problem.reserved):
            frame = Term(self._instant_of(one.from_), self._instant_of(one.to))
            if one.site is not None:
                table, units = books.cpus[self._network.index[one.site]], one.cpus or 0
            else:
                assert one.link is not None, "checked when it was read"
                ends = frozenset(self._network.index[name] for name in one.link)
                table = books.links[self._network.link_of[ends]]
                units = int(exact(one.bw or 0.0) * self._network.scale.bandwidth)
            if table is not None and units:
                table.reserve(number, units, frame, force=True)
        return books

    def _window_of(self, frames: ModelFrames) -> FrameWindow:
        return FrameWindow(
            est=self._instant_of(frames.est),
            lst=self._instant_of(frames.lst),
            duration=self._instant_of(frames.duration),
            count=frames.count,
            mode=frames.mode,
            unit=self._tick,
        )

    def _explainer(self) -> reasons.Explainer:
        problem = self._problem
        return reasons.Explainer(
            self._planner, problem.request, problem.options, self._shape, self._policy, self._write
        )

    def _instant_of(self, time: float) -> Instant:
        return int(exact(time) * self._tick)

    def _shown(self, at: Instant) -> int | float:
        time = Fraction(at, self._tick)
        return time.numerator if time.denominator == 1 else float(time)

    def _write(self, at: Instant) -> str:
        return str(self._shown(at))

    def _named(self, outcome: InstanceOutcome, frame: Term) -> dict[str, Any]:
        """An outcome in names, after the independent check."""
        problem = self._problem
        plan = named(self._network, self._shape, outcome, len(problem.request.links))
        free = self._planner.books.free(frame, self._policy)
        wrong = faults(plan, problem.resources, problem.request, problem.options, named_free(self._network, free))
        if wrong:
            raise PlanError(f"a plan failed its check: {'; '.join(wrong)}")
        answer: dict[str, Any] = {
            "objective": plan.objective,
            "sites": dict(plan.sites),
            "paths": [None if path is None else list(path) for path in plan.paths],
        }
        if any(link.backup for link in problem.request.links):
            answer["backups"] = [None if path is None else list(path) for path in plan.backups]
        return answer


def _is_proven(refused: Refused) -> bool:
    return refused.outcome is not None and refused.outcome.status == "infeasible"


def named(network: Network, shape: InstanceShape, outcome: InstanceOutcome, links: int) -> NamedPlan:
    """An outcome in names: sites by requested site, a path for each of the request's ``links``."""
    paths: list[Sequence[str] | None] = [None] * links
    backups: list[Sequence[str] | None] = [None] * links
    for number, (demand, path) in enumerate(zip(shape.demands, outcome.paths, strict=True)):
        is_backup = 0 <= demand.twin < number
        (backups if is_backup else paths)[demand.link] = [network.names[v] for v in path]
    sites = {spot.name: network.names[v] for spot, v in zip(shape.spots, outcome.sites, strict=True)}
    cost = None if outcome.cost is None else network.scale.money(outcome.cost)
    return NamedPlan(sites=sites, paths=paths, backups=backups, objective=cost)


def named_free(network: Network, free: Availability) -> Free:
    """What is free, in names and in the units of the resources."""
    unit = network.scale.value * network.scale.bandwidth
    return Free(
        cpus={network.names[v]: free.cpus[v] for v in network.sites},
        bw={
            frozenset((link.a, link.b)): Fraction(width, network.scale.bandwidth)
            for link, width in zip(network.links, free.bw, strict=True)
        },
        vc={network.names[v]: Fraction(free.vc[v], unit) for v in network.sites},
    )


def _times(problem: Problem) -> Iterable[float]:
    if problem.frames is not None:
        yield from (problem.frames.est, problem.frames.lst, problem.frames.duration)
    for one in problem.reserved:
        yield from (one.from_, one.to)


def _tick(problem: Problem) -> int:
    """What makes all times of a problem whole."""
    times = list(_times(problem))
    tick = denominator(times)
    if tick * max((abs(time) for time in times), default=0) * 2 > INSTANT_MAX:
        raise SettingsError([f"frames: found times that differ by as little as 1/{tick}, too fine for their size"])
    return tick
