"""Mappers for simulations: the standard ones, and some that are slow, that change their minds, or that do wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Any, Final

from leasekit.core.mappers import (
    Assign,
    AuthorityCycle,
    BrokerCycle,
    CloseLeaseEarly,
    ExtendLease,
    Go,
    Grant,
    GrantGroup,
    GuestCycle,
    Hold,
    LeaseView,
    ModifyLease,
    RequestLease,
    Wake,
)
from leasekit.core.time import HOUR, MINUTE, SECOND, Duration, Term
from leasekit.policies.authority.first_fit import FirstFit
from leasekit.policies.broker.fcfs import Fcfs, FcfsSettings
from leasekit.policies.guest.manual import Manual

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


class Mischief(Fcfs):
    """Decides well, and adds decisions that must not be carried out; sometimes it raises."""

    def __init__(self, mood: Mood, settings: FcfsSettings) -> None:
        super().__init__(settings)
        self._mood = mood

    def allocate(self, cycle: BrokerCycle) -> list[Any]:
        """Good decisions among wrong ones."""
        mood, rng = self._mood, self._mood.rng
        if mood.has(0.1):
            mood.met("mapper raises")
            raise RuntimeError("a mapper's bad day")
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


class Slow(Fcfs):
    """Leaves each request waiting for some turns."""

    def __init__(self, mood: Mood, settings: FcfsSettings) -> None:
        super().__init__(settings)
        self._mood = mood

    def allocate(self, cycle: BrokerCycle) -> list[Any]:
        """Nothing more often than not; asks to be called again."""
        again = Wake(cycle.now + self._mood.rng.choice(AGAIN))
        if self._mood.has(0.6):
            self._mood.met("mapper is slow")
            return [again]
        return [*super().allocate(cycle), again]


class SlowSite(FirstFit):
    """The same for a site."""

    def __init__(self, mood: Mood) -> None:
        super().__init__()
        self._mood = mood

    def assign(self, cycle: AuthorityCycle) -> list[Any]:
        """Nothing more often than not; asks to be called again."""
        again = Wake(cycle.now + self._mood.rng.choice(AGAIN))
        if self._mood.has(0.6):
            self._mood.met("mapper is slow")
            return [again]
        return [*super().assign(cycle), again]


class WrongSite(FirstFit):
    """Gives units that others have, too many of them, or one of them twice, before it does right."""

    def __init__(self, mood: Mood) -> None:
        super().__init__()
        self._mood = mood

    def assign(self, cycle: AuthorityCycle) -> list[Any]:
        """Good decisions among wrong ones."""
        mood = self._mood
        if mood.has(0.05):
            mood.met("mapper raises")
            raise RuntimeError("a mapper's bad day")
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


class Hesitant(Manual):
    """Its upcall holds leases for a while, and sometimes raises."""

    def __init__(self, mood: Mood) -> None:
        super().__init__()
        self._mood = mood

    def unblock(self, lease: LeaseView, predecessor: LeaseView) -> Go | Hold:
        """Hold, or go on with what the predecessor has."""
        mood = self._mood
        if mood.has(0.05):
            mood.met("mapper raises")
            raise RuntimeError("a mapper's bad day")
        if mood.rng.random() < 0.5:
            start = max(lease.term.start, predecessor.term.start)
            return Hold(start + mood.rng.choice((1, 5000, MINUTE, 10 * HOUR)))
        return Go({"units": " ".join(unit.id for unit in predecessor.members())})


class Restless(Manual):
    """Asks for leases, renews, changes and closes them by itself while the faults are on."""

    def __init__(self, mood: Mood, asks: Callable[[str], None]) -> None:
        """``asks`` is told of each lease that the mapper wants closed."""
        super().__init__()
        self._mood = mood
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
        "first_fit": FirstFit,
        "slow_site": lambda: SlowSite(mood),
        "wrong_site": lambda: WrongSite(mood),
        "manual": Manual,
        "hesitant": lambda: Hesitant(mood),
        "restless": lambda: Restless(mood, asks),
    }
    return makers[kind]()
