"""Mappers for simulations: the standard ones, and some that are slow, that change their minds, or that do wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from random import Random
from typing import Any, ClassVar, Final

import attrs

from leasekit.core.mappers import (
    Assign,
    AuthorityCycle,
    BrokerCycle,
    CloseLeaseEarly,
    Defer,
    ExtendLease,
    Go,
    Grant,
    GrantedLease,
    GrantGroup,
    GuestCycle,
    Hold,
    LeaseView,
    ModifyLease,
    Power,
    Preempt,
    Reject,
    RequestLease,
    Wake,
)
from leasekit.core.time import HOUR, MINUTE, SECOND, Duration, Instant, Term
from leasekit.policies.authority.energy import EnergyManager, EnergySettings
from leasekit.policies.authority.first_fit import FirstFit
from leasekit.policies.authority.preemption import HostPreemptionMapper, HostPreemptionSettings
from leasekit.policies.authority.yields import YieldMapper, YieldSettings
from leasekit.policies.broker.coallocate import Coallocation, CoallocationSettings
from leasekit.policies.broker.fair_share import FairShare, FairShareSettings
from leasekit.policies.broker.fcfs import Fcfs, FcfsSettings
from leasekit.policies.broker.quotas import QuotaSettings
from leasekit.policies.broker.spot import SpotMapper, SpotSettings
from leasekit.policies.broker.waiting import Backfill, BackfillSettings, Priority, PrioritySettings
from leasekit.policies.guest.manual import Manual
from leasekit_simulation.faults.checkers import BAD_DAY

WILFUL: Final = frozenset({"mischief", "preempting", "restless", "switching", "wrong_site"})
"""Kinds of mappers whose decisions can't all be carried out."""
AGAIN: Final[tuple[Duration, ...]] = (100, 3000, 20_000)


class Mood:
    """What a mapper's whims are drawn from; ``met`` counts them, and nothing is wrong any more once ``calm`` is set."""

    def __init__(self, rng: Random, met: Callable[[str], None]) -> None:
        self.rng = rng
        self.met = met
        self.calm = False

    def has(self, chance: float) -> bool:
        """Whether a whim of this chance comes over it now."""
        return not self.calm and self.rng.random() < chance


class Moody:
    """The half of a mapper that has a mood; the other half is made with what else is given."""

    def __init__(self, mood: Mood, *settings: Any) -> None:
        super().__init__(*settings)
        self._mood = mood

    def _raises(self, chance: float) -> None:
        """Raise, as a mapper with a bug does."""
        if self._mood.has(chance):
            self._mood.met("mapper raises")
            raise RuntimeError(BAD_DAY)

    def _slowly(self, now: Instant, decide: Callable[[], Iterable[Any]]) -> list[Any]:
        """Nothing more often than not; asks to be called again."""
        again = Wake(now + self._mood.rng.choice(AGAIN))
        if self._mood.has(0.6):
            self._mood.met("mapper is slow")
            return [again]
        return [*decide(), again]


class Mischief(Moody, Fcfs):
    """Decides well, and adds decisions that must not be carried out; sometimes it raises."""

    def allocate(self, cycle: BrokerCycle) -> list[Any]:
        """Good decisions among wrong ones."""
        mood, rng = self._mood, self._mood.rng
        self._raises(0.1)
        decisions: list[Any] = []
        for decision in super().allocate(cycle):
            if isinstance(decision, Grant) and mood.has(0.5):
                mood.met("mapper grants too much")
                late = Term(decision.term.start + 1, decision.term.end + 1)
                wrong = [
                    decision._replace(units=decision.units + rng.randint(1, 50)),
                    decision._replace(source="nowhere"),
                    decision._replace(term=Term(decision.term.start, decision.term.end + HOUR)),
                    decision._replace(lease="nobody-1", term=late),
                    decision._replace(units=0),
                    None,
                ]
                decisions.append(rng.choice(wrong))
            elif isinstance(decision, GrantGroup) and mood.has(0.5):
                mood.met("mapper grants too much")
                decisions.append(_too_early(decision, cycle))
            decisions.append(decision)
            if mood.has(0.2):
                decisions.append(decision)
        return decisions


def _too_early(decision: GrantGroup, cycle: BrokerCycle) -> GrantGroup:
    """The same grants from the first instant that was asked for, whether or not there is room then."""
    leases = {grant.lease for grant in decision.grants}
    group = next(group for group in cycle.groups if group[0].lease in leases)
    start = max(request.term.start for request in group)
    moved = tuple(grant._replace(term=Term(start, start + grant.term.length)) for grant in decision.grants)
    return decision._replace(grants=moved)


class Slow(Moody, Fcfs):
    """Leaves each request waiting for some turns."""

    def allocate(self, cycle: BrokerCycle) -> list[Any]:
        """Nothing more often than not; asks to be called again."""
        return self._slowly(cycle.now, lambda: super(Slow, self).allocate(cycle))


class Preempting(Moody, Fcfs):
    """Ends leases before their time: mostly those that may be ended."""

    def allocate(self, cycle: BrokerCycle) -> list[Any]:
        """What its base decides, and now and then the end of a lease of a type that is asked for."""
        mood, rng = self._mood, self._mood.rng
        decisions: list[Any] = super().allocate(cycle)
        if not mood.has(0.3):
            return decisions
        types = dict.fromkeys(request.type for request in cycle.requests)
        granted = [lease for type_ in types for lease in cycle.granted(type_)]
        among = [lease for lease in granted if lease.preemptible] or granted
        if among:
            mood.met("mapper preempts")
            lease = rng.choice(among)
            at = cycle.now + rng.choice((0, 5 * SECOND, 5 * SECOND, MINUTE))
            suspend = "suspend" in lease.properties and at > cycle.now
            if suspend:
                mood.met("mapper suspends")
            elif at > cycle.now:  # at once is refused to most
                at = max(at, lease.ends_from)
            one = Preempt(lease.lease, at, "others need its units more", suspend)
            decisions = self._in_place_of(cycle, lease, one, decisions)
        return decisions

    def _in_place_of(self, cycle: BrokerCycle, lease: GrantedLease, one: Preempt, decisions: list[Any]) -> list[Any]:
        """The end of a lease makes room for the first request that would have to wait, or be refused, and fits in."""
        left = {each.lease: each for each in decisions if isinstance(each, Defer | Reject)}
        for request in cycle.requests:
            start = max(request.term.start, one.at)
            above = not request.preemptible and lease.priority <= request.priority
            if request.lease in left and request.op == "new" and start <= request.latest_start and above:
                self._mood.met("mapper has others make room")
                term = Term(start, start + request.term.length)
                grant = Grant(request.lease, lease.source, request.min_units, term, victims=(one,))
                return [grant if each is left[request.lease] else each for each in decisions]
        return [*decisions, one]


class SlowSite(Moody, FirstFit):
    """The same for a site."""

    def assign(self, cycle: AuthorityCycle) -> list[Any]:
        """Nothing more often than not; asks to be called again."""
        return self._slowly(cycle.now, lambda: super(SlowSite, self).assign(cycle))


HASTY: Final = EnergySettings(
    types=("vm", "gpu"), check=10 * SECOND, idle_checks=2, decide=20 * SECOND, horizon=40 * SECOND, boot=20 * SECOND,
    suspend_below=3 * MINUTE, forecast="ewma",
)  # fmt: skip
"""An energy manager whose minutes are seconds."""
CALM: Final = attrs.evolve(HASTY, check=10 * MINUTE, decide=10 * MINUTE)


def calm(mapper: object) -> None:
    """Have an energy manager look seldom from now on: for hours nothing happens that it has not seen."""
    if isinstance(mapper, EnergyManager):
        mapper.settings = CALM


QUOTAS: Final = (QuotaSettings(units=6, unit_hours=3.0), QuotaSettings(type="gpu", longest=5 * MINUTE, ahead=MINUTE))


class Switching(Moody, FirstFit):
    """Switches units on and off at will, also those that it must not."""

    watches: ClassVar[bool] = True

    def assign(self, cycle: AuthorityCycle) -> list[Any]:
        """Good decisions, with some of power before or after them."""
        mood, rng = self._mood, self._mood.rng
        decisions: list[Any] = super().assign(cycle)
        if mood.calm:
            return decisions
        units = [unit for type_ in ("vm", "gpu") for unit in cycle.units(type_)]
        chosen = rng.sample(units, min(len(units), rng.randint(0, 3)))
        switched = [
            Power(unit.id, rng.choice(("off", "off", "on", "suspend", "sideways")), "a whim") for unit in chosen
        ]
        if switched:
            mood.met("mapper switches units")
        wake = Wake(cycle.now + rng.choice((SECOND, 10 * SECOND, MINUTE)))
        return [*switched, *decisions, wake] if rng.random() < 0.5 else [*decisions, *switched, wake]


class WrongSite(Moody, FirstFit):
    """Gives units that others have, too many of them, or one of them twice, before it does right."""

    def assign(self, cycle: AuthorityCycle) -> list[Any]:
        """Good decisions among wrong ones."""
        mood = self._mood
        self._raises(0.05)
        decisions: list[Any] = []
        for decision in super().assign(cycle):
            if isinstance(decision, Assign) and mood.has(0.4):
                mood.met("mapper grants too much")
                names = [f"{cycle.unit(name).type}-{n}" for name in decision.units[:1] for n in range(9)]
                wrong = [
                    decision._replace(units=decision.units * 2),
                    decision._replace(units=(*decision.units, *names[:3])),
                    decision._replace(units=tuple(mood.rng.sample(names, len(decision.units)))),
                    decision._replace(lease="nobody-1"),
                ]
                decisions.append(mood.rng.choice(wrong))
            decisions.append(decision)
        return decisions


class Hesitant(Moody, Manual):
    """Its upcall holds leases for a while, and sometimes raises."""

    def unblock(self, lease: LeaseView, predecessor: LeaseView) -> Go | Hold:
        """Hold, or go on with what the predecessor has."""
        mood = self._mood
        self._raises(0.05)
        if mood.rng.random() < 0.5:
            start = max(lease.term.start, predecessor.term.start)
            return Hold(start + mood.rng.choice((1, 5000, MINUTE, 10 * HOUR)))
        return Go({"units": " ".join(unit.id for unit in predecessor.members())})


class Restless(Moody, Manual):
    """Asks for leases, renews, changes and closes them by itself while the faults are on."""

    def __init__(self, mood: Mood, asks: Callable[[str], None]) -> None:
        """``asks`` is told of each lease that the mapper wants closed."""
        super().__init__(mood)
        self._asks = asks

    def plan(self, cycle: GuestCycle) -> tuple[Any, ...]:
        """Something or other, every few seconds."""
        mood, rng = self._mood, self._mood.rng
        if mood.calm:
            return ()
        wake = Wake(cycle.now + rng.choice((3 * SECOND, 20 * SECOND, MINUTE)))
        start = cycle.now + rng.choice((0, 10 * SECOND))
        term = Term(start, start + rng.choice((30 * SECOND, 3 * MINUTE)))
        if rng.random() < 0.5 or not cycle.leases:
            return (RequestLease("vm", rng.randint(1, 3), term), wake)
        lease = rng.choice(cycle.leases)
        choice = rng.randrange(4)
        if choice == 0:
            self._asks(lease.id)
            return (CloseLeaseEarly(lease.id), wake)
        if choice == 1:
            return (ModifyLease(lease.id, configuration={"size": str(rng.randint(1, 9))}), wake)
        return (ExtendLease(lease.id, lease.term.end + rng.choice((20 * SECOND, 2 * MINUTE))), wake)


def make_mapper(kind: str, mood: Mood, fcfs: FcfsSettings, asks: Callable[[str], None]) -> Any:
    """A new mapper of a kind that a scenario names."""
    makers: Mapping[str, Callable[[], Any]] = {
        "fcfs": lambda: Fcfs(fcfs),
        "mischief": lambda: Mischief(mood, fcfs),
        "slow": lambda: Slow(mood, fcfs),
        "preempting": lambda: Preempting(mood, fcfs),
        "coallocation": lambda: Coallocation(CoallocationSettings(gather=fcfs.gather)),
        "backfill": lambda: Backfill(BackfillSettings(gather=fcfs.gather)),
        "conservative": lambda: Backfill(BackfillSettings(gather=fcfs.gather, mode="conservative")),
        "suspending": lambda: Backfill(BackfillSettings(suspension="all", least_run=30 * SECOND)),
        "spot": lambda: SpotMapper(SpotSettings(gather=fcfs.gather, reserve=2, period=MINUTE)),
        "priority": lambda: Priority(PrioritySettings(gather=fcfs.gather, order="shortest")),
        "fair_share": lambda: FairShare(FairShareSettings(gather=fcfs.gather)),
        "quotas": lambda: Fcfs(FcfsSettings(gather=fcfs.gather, quotas=QUOTAS)),
        "first_fit": FirstFit,
        "yield": lambda: YieldMapper(YieldSettings(makes_room=True, budget=2, period=MINUTE)),
        "victims": lambda: HostPreemptionMapper(HostPreemptionSettings(budget=2, period=MINUTE)),
        "slow_site": lambda: SlowSite(mood),
        "wrong_site": lambda: WrongSite(mood),
        "energy": lambda: EnergyManager(HASTY),
        "switching": lambda: Switching(mood),
        "manual": Manual,
        "hesitant": lambda: Hesitant(mood),
        "restless": lambda: Restless(mood, asks),
    }
    return makers[kind]()
