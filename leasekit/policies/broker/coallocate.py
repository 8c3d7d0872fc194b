"""The mapper that plans topologies: sites, the links between them and a start, all at once (issue: co-allocation).

Ordinary requests are decided as ``fcfs`` does. A request for a topology is planned by
:mod:`leasekit.policies.broker.coallocation`: candidate starts, what is free over each, one optimum per start, and plans
in the order that the user wants. Every plan passes the independent check before the broker hears of it. Effort is
bounded by nodes of the searches, never by a clock: the same request on the same book has the same plans.

The administrator's options are A (``load_balancing``), B (``preference``) and C (``classes``); ``fraction`` is what is
shown to everybody.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import ClassVar, Final

import attrs

from leasekit.core.mappers import NoPlan, PlanCycle, TopologyPlan
from leasekit.core.reasons import Coded, mark
from leasekit.core.topology import exact
from leasekit.policies.broker.capacity import passes
from leasekit.policies.broker.coallocation import reasons
from leasekit.policies.broker.coallocation.checker import faults
from leasekit.policies.broker.coallocation.frames import FramePlan, FramePlanned, FramePlanner, FrameWindow, Policy
from leasekit.policies.broker.coallocation.instance import InstanceShape, Network
from leasekit.policies.broker.coallocation.model import CoRequest, ModelOptions, Solver
from leasekit.policies.broker.coallocation.offers import Offers
from leasekit.policies.broker.coallocation.problem import PlanError, named, named_free
from leasekit.policies.broker.coallocation.search import NODES_MAX
from leasekit.policies.broker.coallocation.solve import Budget, SolveLimits
from leasekit.policies.broker.fcfs import Fcfs, FcfsSettings

VALUE_MAX: Final = 1e9
STARTS_MAX: Final = 2000
"""How many of the instants at which anything changes are looked at for one request, the first ones."""


def _shares(_: object, field: attrs.Attribute[Mapping[str, float]], found: Mapping[str, float]) -> None:
    for name, share in found.items():
        if not 0 <= share <= 1:
            raise ValueError(f"the share of {name!r} is {share:g}, expected 0 to 1")


def _values(_: object, field: attrs.Attribute[Mapping[str, float]], found: Mapping[str, float]) -> None:
    for pattern, value in found.items():
        if not 0 <= value <= VALUE_MAX:
            raise ValueError(f"the value of {pattern!r} is {value:g}, expected 0 to {VALUE_MAX:g}")


@attrs.frozen(kw_only=True)
class CoallocationSettings(FcfsSettings):
    """Settings of :class:`Coallocation`, on top of those of ``fcfs``."""

    load_balancing: bool = False
    """Option A: the value of a unit is 1 + floor(99 x reserved / capacity) over the frame, so that idle sites fill
    first."""
    preference: Mapping[str, float] = attrs.field(factory=dict, validator=_values)
    """Option B: values of a unit by patterns of site names (``{"N*" = 1, "S*" = 10}``); the first that fits counts."""
    classes: Mapping[str, float] = attrs.field(factory=dict, validator=_shares)
    """Option C: the share of what is free that is shown to a guest, by its name; 1 to those not named."""
    fraction: float = attrs.field(default=1.0, validator=[attrs.validators.ge(0), attrs.validators.le(1)])
    """The share of what is free that is shown to everybody, rounded down to whole units."""
    solver: Solver = "auto"
    """``search``, ``highs``, or the one with the other behind it."""
    nodes: int = attrs.field(default=NODES_MAX, validator=attrs.validators.ge(1))
    """The most nodes of the search for each start."""
    milp_nodes: int = attrs.field(default=200, validator=attrs.validators.ge(1))
    """The most nodes of HiGHS for each start."""
    effort: int = attrs.field(default=4_000, validator=attrs.validators.ge(1))
    """The most nodes of all searches for one request, with starts, bounds and runs of HiGHS counted by their size.
    While a request is planned the mapper plans no other one: this is how long one guest can make others wait who ask
    for topologies. Ordinary requests are decided meanwhile.
    """
    plans: int = attrs.field(default=8, validator=[attrs.validators.ge(1), attrs.validators.le(100)])
    """How many plans are handed over, of which the broker holds the first that it can."""


class Coallocation(Fcfs):
    """``fcfs`` that plans topologies as well."""

    Settings: ClassVar[type[CoallocationSettings]] = CoallocationSettings
    inline: ClassVar[bool] = False
    plans_apart: ClassVar[bool] = True

    def __init__(self, settings: CoallocationSettings | None = None) -> None:
        self.wanted = settings or CoallocationSettings()
        super().__init__(self.wanted)

    def plan(self, cycle: PlanCycle) -> Sequence[TopologyPlan | NoPlan]:
        """Plans for one request, the preferred one first; or why there is none."""
        choice, request = self._choice, cycle.request
        sources = [
            source
            for source in cycle.sources
            if all(passes(source, one) for one in choice.filters_for(cycle.holder, source.type))
        ]
        offers = Offers(request, sources)
        unknown = offers.unknown()
        if unknown:
            return [NoPlan(Coded("; ".join(unknown), "not_there"))]
        if request.lst < cycle.now:
            words = f"its latest start, {mark(request.lst)}, is past: it is {mark(cycle.now)}"
            return [NoPlan(Coded(words, "past"))]
        return _Coallocating(self.wanted, cycle, offers).answer()


class _Coallocating:
    """One request being planned."""

    def __init__(self, settings: CoallocationSettings, cycle: PlanCycle, offers: Offers) -> None:
        self._settings = settings
        self._offers = offers
        request = cycle.request
        self._request: CoRequest = offers.wanted()
        self._options: ModelOptions = offers.options()
        self._resources = offers.resources
        preference = settings.preference
        if offers.inner:
            preference = {f"{pattern}/*": value for pattern, value in preference.items()}
        scale = offers.scale(self._request, preference.values())
        self._network = Network(self._resources, scale)
        self._shape = InstanceShape(self._network, self._request, self._options)
        est = max(request.est, cycle.now)
        frames = request.options.frames
        self._window = FrameWindow(
            est=est, lst=request.lst, duration=request.duration, count=frames.count, mode=frames.mode,
            unit=frames.unit, most=STARTS_MAX,
        )  # fmt: skip
        self._planner = FramePlanner(offers.books(self._network, est))
        share = exact(settings.fraction) * exact(settings.classes.get(cycle.holder, 1.0))
        self._policy = Policy(
            fraction=share,
            load_balancing=settings.load_balancing,
            values=self._network.preferred(preference) if preference else None,
            sort=request.options.sort,
            solver=settings.solver,
            limits=SolveLimits(settings.nodes, settings.milp_nodes, budget=Budget(settings.effort)),
        )

    def answer(self) -> list[TopologyPlan | NoPlan]:
        """The plans, or why there is none."""
        planned = self._planner.plan(self._shape, self._window, self._policy)
        made: list[TopologyPlan | NoPlan] = []
        dropped = ""
        for plan in planned.plans:
            found = self._checked(plan)
            if isinstance(found, str):
                dropped = dropped or found
                continue
            made.append(found)
            if len(made) == self._settings.plans:
                break
        return made or [self._refusal(planned, dropped)]

    def _checked(self, plan: FramePlan) -> TopologyPlan | str:
        """A plan as it is to be leased, after the independent check; else why it can't be.

        Raises :class:`PlanError` if it fails the check.
        """
        frame = self._window.frame(plan.start)
        outcome = plan.outcome
        by_name = named(self._network, self._shape, outcome, len(self._request.links))
        free = named_free(self._network, self._planner.books.free(frame, self._policy))
        wrong = faults(by_name, self._resources, self._request, self._options, free)
        if wrong:
            raise PlanError(f"a plan failed its check: {'; '.join(wrong)}")
        parts = self._offers.parts(by_name, frame)
        if isinstance(parts, str):
            return parts
        assert outcome.cost is not None, "a plan has a cost"
        gap = max(0, outcome.cost - outcome.bound) if outcome.status == "bound" else 0
        return TopologyPlan(plan.start, tuple(parts), self._money(outcome.cost), self._money(gap))

    def _money(self, cost: int) -> str:
        scale = self._network.scale
        found = Fraction(cost, scale.bandwidth * scale.value)
        return str(found.numerator) if found.denominator == 1 else f"{float(found):.12g}"

    def _refusal(self, planned: FramePlanned, dropped: str) -> NoPlan:
        if not planned.refused:
            return NoPlan(Coded(dropped, "effort"))
        speech = reasons.Vocabulary(
            "units", "Mbit/s", {wanted.id: wanted.filter for wanted in self._offers.request.sites}
        )
        explainer = reasons.Explainer(
            self._planner, self._request, self._options, self._shape, self._policy, show=mark, speech=speech
        )
        first = planned.refused[0]
        words = [explainer.why(first, self._window.frame(first.start)), *self._offers.faults]
        proven = all(one.outcome is not None and one.outcome.status == "infeasible" for one in planned.refused)
        late = sum(one.outcome is None for one in planned.refused)
        if late:
            words.append(f"{late} later starts were not looked at: the effort for one request was spent")
        if planned.looked_at >= STARTS_MAX:
            words.append(f"of the starts only the first {STARTS_MAX} at which anything changes were looked at")
        if dropped or not proven or planned.looked_at >= STARTS_MAX:
            return NoPlan(Coded("; ".join([*words, *([dropped] if dropped else [])]), "effort"))
        found = explainer.nearest(self._window)
        if self._policy.limits.met:
            return NoPlan(Coded("; ".join(words), "effort"))
        would = reasons.words(found, mark, speech)
        return NoPlan(Coded("; ".join([*words, *([would] if would else [])]), "insufficient"), found.start)
