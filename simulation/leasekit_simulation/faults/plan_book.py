"""The book of plans: which units a site plans for leases whose term is to come, and what these leases then get."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import attrs

from leasekit.actors.site.leases import AHEAD
from leasekit.core.leases import authority
from leasekit.core.leases.records import SiteLease, SiteUnit, Window
from leasekit.core.reasons import Code, read
from leasekit.core.schema import LOG, Change
from leasekit.core.time import Instant, Term
from leasekit_simulation.faults.checkers import Listening, must

FILTER: Final = "filter"
"""The word of a configuration by which a guest chooses units itself."""


@attrs.frozen
class Planned:
    """What is planned for a lease: the ``units`` that it is to get over ``term``, of ``classes``."""

    term: Term
    classes: Mapping[bytes, int]
    units: frozenset[str]


@attrs.frozen
class UnitRow:
    """How a unit stands by its row: whether anybody has it, and whether it is out of service but for a window."""

    type: str
    held: bool
    out: bool


class PlanChecker(Listening):
    """No unit is planned for two leases whose terms overlap, nor one that is out of service then, or of another class.
    What is planned changes by events only; a lease gets what was planned, where nothing fell out; nothing is planned
    for a lease that has begun, or is over, and a site shows what is planned.

    Plans are what the rows of leases say, as a site's store keeps them: of leases that wait for their term, and whose
    units are leased whole.
    """

    kind = "plans"

    def __init__(
        self, follow: frozenset[str], clock: Callable[[str], Instant], class_of: Callable[[str, str], bytes]
    ) -> None:
        """``follow`` are sites whose mapper does by the plan, and by nothing else."""
        super().__init__()
        self._follow, self._clock, self._class_of = follow, clock, class_of
        self._plans: dict[str, dict[str, Planned]] = {site: {} for site in follow}
        self._units: dict[str, dict[str, UnitRow]] = {site: {} for site in follow}
        self._windows: dict[str, dict[str, tuple[Collection[str], Term]]] = {site: {} for site in follow}
        self._kept: dict[str, dict[str, Window]] = {site: {} for site in follow}
        """The windows that each site's store has."""
        self._divided: set[tuple[str, str]] = set()
        """Leases of machines, whose hosts are planned otherwise."""
        self.met: Counter[str] = Counter()

    # -- what is said ------------------------------------------------------------------------------------------

    def windowed(self, site: str, window: Mapping[str, Any]) -> None:
        """A maintenance window was acknowledged: none of its units is planned for anybody then."""
        if site in self._windows:
            self._windows[site][window["window"]] = window["units"], Term(window["start"], window["end"])
            self._check(site, self._plans[site])

    def unwindowed(self, site: str, window: str) -> None:
        """A window is called off, if its site hears that."""
        self._windows.get(site, {}).pop(window, None)

    def check_shown(self, site: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """What a site shows of its leases between two events is what its store has."""
        for row in rows if site in self._plans else ():
            known = self._plans[site].get(row["id"])
            there = known.units if known is not None else frozenset()
            shown = () if (site, row["id"]) in self._divided else row["planned"]
            must(set(shown) == there, f"{site} shows {shown} for {row['id']}, planned is {sorted(there)}")

    # -- what is stored ----------------------------------------------------------------------------------------

    def stored(self, at: Instant, actor: str, changes: Sequence[Change]) -> None:
        """Check what a commit of a site changes."""
        if actor not in self._plans:
            return
        before = dict(self._units[actor])
        events: dict[str, list[str]] = {}
        for change in changes:
            if change.table == "units":
                self._unit(actor, change)
            elif change.table == Window.table and change.row is not None:  # one that goes counts to the end of this
                self._kept[actor][change.row[0]] = Window.from_row(change.row)
            elif change.table == LOG and change.row is not None and change.row[2] == "place":
                why = read(change.row[5])
                events.setdefault(change.row[1], []).append(why.detail if why is not None else "")
        gone = [change.key for change in changes if change.table == Window.table and change.row is None]
        changed = [change for change in changes if change.table == "leases"]
        for change in changed:
            self._lease(actor, change, events.get(change.key or (change.row or ("",))[0], []), before)
        for window in gone:
            self._kept[actor].pop(window, None)
        if changed or before != self._units[actor]:
            self._check(actor, self._plans[actor])

    def _unit(self, site: str, change: Change) -> None:
        if change.row is None:
            self._units[site].pop(change.key, None)
            return
        unit = SiteUnit.from_row(change.row)
        retired = unit.retire is not None and unit.retire.code != Code.MAINTENANCE
        free = not unit.promised and (unit.is_free or (unit.is_torn_down and unit.retire is None))
        self._units[site][unit.id] = UnitRow(unit.type, not free, retired)

    def _lease(self, site: str, change: Change, events: Sequence[str], before: Mapping[str, UnitRow]) -> None:
        plans = self._plans[site]
        row = change.row
        if row is None or not row[1] or (row[6] != authority.REDEEMING and row[0] not in plans):
            plans.pop(change.key or (row[0] if row is not None else ""), None)
            return
        lease = SiteLease.from_row(row)
        known = plans.pop(lease.id, None)
        if lease.sizes:
            self._divided.add((site, lease.id))
            return
        if not lease.awaits_mapper:
            if known is not None and lease.units:
                self._check_given(site, lease, known, before)
            return
        units = frozenset(lease.places)
        what = f"{site}: {lease.id}"
        must(len(units) == len(lease.places), f"{what}: a unit is planned twice, {lease.places}")
        # A unit of a new lease may be given to another in the same step: what is told of that ends with its plan.
        by_events = _after(known.units if known is not None else units, events)
        must(units == by_events, f"{what}: {sorted(units)} are planned, by what is told it is {sorted(by_events)}")
        plan = Planned(Term(lease.term.start, lease.ends_at), dict(lease.classes), units)
        plans[lease.id] = plan
        self._check_classes(site, lease, plan)
        if FILTER not in lease.properties and (known is None or any(event.startswith("none") for event in events)):
            self._check_all_planned(site, lease, plan, before)

    def _check_classes(self, site: str, lease: SiteLease, plan: Planned) -> None:
        """A plan has units of the type and the classes that the lease is to get, and no more of each."""
        counted = Counter(self._class_of(site, unit) for unit in plan.units)
        over = [class_ for class_, count in counted.items() if count > plan.classes.get(class_, 0)]
        must(not over, f"{site}: {lease.id}: {sorted(plan.units)} are planned, it is to get {plan.classes}")
        rows = self._units[site]
        others = [name for name in sorted(plan.units) if name in rows and rows[name].type != lease.type]
        must(not others, f"{site}: {lease.id}: {others} are planned, it is to get units of type {lease.type}")
        self.met["units planned"] += bool(plan.units)

    def _check_all_planned(self, site: str, lease: SiteLease, plan: Planned, before: Mapping[str, UnitRow]) -> None:
        """Who waits long enough has nothing less than the units that nobody has, or is to have."""
        if plan.term.start < self._clock(site) + AHEAD or self._clock(site) > lease.term.start:
            return
        for class_, count in plan.classes.items():
            there = sum(self._class_of(site, unit) == class_ for unit in plan.units)
            if there < count:
                free = [
                    name
                    for name, unit in self._units[site].items()
                    if unit == before.get(name) and not unit.held and not unit.out and unit.type == lease.type
                    and name not in plan.units and self._class_of(site, name) == class_
                    and not any(self._overlapping(site, name, plan.term, but=lease.id))
                    and not any(
                        name in one.units and Term(one.start, one.end).overlaps(plan.term)
                        for one in self._kept[site].values()
                    )
                ]  # fmt: skip
                must(not free, f"{site}: {there} of {count} units are planned for {lease.id}, and {free} are free")

    def _check_given(self, site: str, lease: SiteLease, plan: Planned, before: Mapping[str, UnitRow]) -> None:
        """A lease whose term has begun gets what was planned, but for what could not be had."""
        missing = plan.units.difference(lease.units)
        there = [name for name in sorted(missing) if name in before and not before[name].held and not before[name].out]
        others = [name for name in lease.units if name not in plan.units]
        must(
            not (there and others),
            f"{site}: {lease.id} gets {others}; {there} were planned for it, and could be had",
        )
        self.met["lease gets what was planned"] += not missing and bool(plan.units)

    # -- what holds between plans ------------------------------------------------------------------------------

    def _check(self, site: str, plans: Mapping[str, Planned]) -> None:
        for lease, plan in plans.items():
            for name in plan.units:
                unit = self._units[site].get(name)
                what = f"{site}: {name} is planned for {lease} over {tuple(plan.term)}"
                must(unit is None or not unit.out, f"{what}, and it is out of service")
                other = next(self._overlapping(site, name, plan.term, but=lease), "")
                must(not other, f"{what}, and for {other}, over {tuple(plans[other].term) if other else ''}")
                window = self._window(site, name, plan.term)
                must(not window, f"{what}, and out of service for window {window}")

    def _overlapping(self, site: str, unit: str, term: Term, but: str) -> Iterator[str]:
        """The other leases for which a unit is planned at some time of a term."""
        for lease, plan in self._plans[site].items():
            if lease != but and unit in plan.units and plan.term.overlaps(term):
                yield lease

    def _window(self, site: str, unit: str, term: Term) -> str:
        """A maintenance window that is not over, and has a unit at some time of a term."""
        now = self._clock(site)
        return next(
            (
                window for window, (units, over) in self._windows[site].items()
                if unit in units and over.overlaps(term) and over.end > now
            ),
            "",
        )  # fmt: skip


def _after(units: frozenset[str], events: Sequence[str]) -> frozenset[str]:
    """What is planned after events that say ``UNIT, not OTHER``, or ``none, not OTHER``."""
    for event in events:
        new, _, old = event.partition(", not ")
        units = units - {old} | ({new} if new != "none" else frozenset())
    return units
