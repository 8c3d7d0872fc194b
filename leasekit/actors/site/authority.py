"""The site authority: holds the units, honours tickets (:mod:`leasekit.core.leases.authority`).

Here its parts are put together; each has a module of its own, but for what is shown of who has which units when.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import attrs

from leasekit.actors.base import Server
from leasekit.actors.issued import Issued
from leasekit.actors.kernel import Kernel, query
from leasekit.actors.settings import AuthoritySettings, Peer
from leasekit.actors.site.calendars import Calendars
from leasekit.actors.site.claims import (
    Accusations,
    ClaimReports,
    DelegationLimits,
    Incidents,
    SiteClaims,
    SiteDelegations,
)
from leasekit.actors.site.failures import (
    Assignment,
    Replacements,
    SiteOutages,
    SiteTurns,
    UnitEnds,
    UnitFailures,
    UnitMoves,
)
from leasekit.actors.site.inventory import Inventory, SiteSaved
from leasekit.actors.site.leases import (
    NO_CONCERN,
    DemandQueue,
    LeaseEnds,
    LeaseTimes,
    LeaseUpdates,
    SiteLeases,
    UnitPlans,
)
from leasekit.actors.site.pieces import Pieces
from leasekit.actors.site.redeems import (
    AcceptedTerms,
    ClaimAccounts,
    ClaimVoids,
    Closes,
    EarlyEnds,
    RedeemedTickets,
    Redemptions,
    Relinquishments,
    TicketAdmission,
    TicketChecks,
)
from leasekit.actors.site.unit_changes import IN_SERVICE, Maintenance, UnitChanges, UnitCommands
from leasekit.actors.site.units import Units, summary
from leasekit.core.answers import RequestDetails, SiteLeaseDetails, SiteStatus, describe_counts
from leasekit.core.calendars import ActorCalendar, CalendarEntry, CalendarUnit
from leasekit.core.claims.signed import Scheme, Signer
from leasekit.core.commands import ListLeases, ShowCalendar, ShowLease
from leasekit.core.leases.outage import Outage
from leasekit.core.leases.records import HostKind, SiteLease, UnitChange
from leasekit.core.leases.saved import SavedUnit
from leasekit.core.mappers import AuthorityMapper
from leasekit.core.properties import written
from leasekit.core.reasons import view, words
from leasekit.core.schema import Row
from leasekit.core.time import Term


@attrs.define(eq=False)
class SiteCalendar:
    """Shows the leases at a site, and its units. ``name`` is the site's."""

    name: str
    _kernel: Kernel
    _leases: SiteLeases
    _units: Units

    @query("calendar")
    def show(self, asked: ShowCalendar) -> ActorCalendar:
        """Leases that have a part of the time, each with its units, and all units."""
        window, revision = asked.term, self._kernel.revision
        if asked.known == revision or asked.site not in ("", self.name):
            return ActorCalendar(revision)
        entries = [
            self._entry(lease)
            for lease in (self._leases.by_id.values() if asked.entries else ())
            if lease.type and asked.type in ("", lease.type) and Term(lease.term.start, lease.ends_at).overlaps(window)
        ]
        units = [
            CalendarUnit(unit.id, unit.type, unit.classes[0].hex(), unit.state, words(unit.reason or unit.retire))
            for unit in self._units
            if unit.classes and asked.type in ("", unit.type)
        ]
        return ActorCalendar(revision, entries, units=units)

    def _entry(self, lease: SiteLease) -> CalendarEntry:
        return CalendarEntry(
            lease.id, lease.holder, self.name, lease.type, lease.state, lease.wanted, lease.term.start, lease.ends_at,
            classes=describe_counts(lease.classes), on=list(lease.places or lease.units),
        )  # fmt: skip


class Authority(Server[SiteLease]):
    """A site's actor."""

    role = "authority"
    endorsable = "guest"

    def __init__(
        self,
        name: str,
        signer: Signer,
        scheme: Scheme,
        peers: Iterable[Peer],
        mapper: AuthorityMapper,
        settings: AuthoritySettings | None = None,
    ) -> None:
        self.settings = settings = settings or AuthoritySettings()
        super().__init__(name, signer, scheme, peers, settings)
        self.dispatch.recall = lambda row: _describe(SiteLease.from_row(row))
        kernel, keyring, served = self.kernel, self.keyring, self.served
        inventory = Inventory(settings.inventory)
        self.saved = saved = SiteSaved(kernel, keyring, self.leases, inventory, settings)
        self.units = units = Units(kernel, inventory, settings.failures_max, saved.begin)
        self.demands = demands = DemandQueue(self.leases, watches=_flag(mapper, "watches"))
        self.calendars = calendars = Calendars(kernel, units, demands.mark_dirty, _flag(mapper, "makes_room"))

        # What is known of claims, and who is to blame.
        self.claims = claims = SiteClaims(kernel, keyring, self.leases, settings)
        updates = LeaseUpdates(kernel, served, units, saved, claims.root_signer)
        self.delegations = SiteDelegations(kernel, keyring, units, claims, settings)
        issued = self.issued
        self._add_issued(issued)
        self.incidents = Incidents(kernel, keyring, self.reports, settings)
        told = ClaimReports(kernel, keyring, self.notices, self.reports)
        accusations = Accusations(kernel, keyring, claims, self.incidents, told)
        limits = DelegationLimits(kernel, keyring, issued, self.leases, self.reports)
        accounts = ClaimAccounts(kernel, keyring, claims, limits, accusations)
        admission = TicketAdmission(kernel, claims, calendars, accounts, told)
        history = (claims.check_unused, claims.check_replaced, self.incidents.check_issuers, limits.check_reclaimed)
        checks = TicketChecks(kernel, keyring, inventory, settings, history)

        # Leases, and their units.
        plans = UnitPlans(kernel, units, self.leases, calendars.is_out, mapper)
        leases = SiteLeases(kernel, updates, plans, calendars, demands)
        ends = LeaseEnds(kernel, leases, units, saved)
        self._times = LeaseTimes(kernel, served, demands, leases, ends)
        self.outages = outages = SiteOutages(name, kernel, demands, units, updates)
        units.held_up.append(outages.waits)
        replacements = Replacements(kernel, leases, demands, updates, settings)
        failures = UnitFailures(leases, units, calendars, outages, replacements)
        self.dispatch.ended += [saved.done, UnitEnds(kernel, leases, units, demands, failures).done]
        assignment = Assignment(kernel, leases, ends, demands, calendars)
        self.turns.declare(assignment.carriers, demands.waiting)
        self.turning = SiteTurns(kernel, self.turns, mapper, demands, calendars)

        # What guests and brokers send.
        terms = AcceptedTerms(kernel, leases, ends, claims, updates)
        tickets = RedeemedTickets(keyring, claims, checks, admission, terms)
        self.closes = Closes(kernel, served, updates, ends, claims)
        early_ends = EarlyEnds(kernel, keyring, claims, leases, ends)
        voids = ClaimVoids(claims, leases, ends, accusations, updates.contract)
        self.maintenance = maintenance = Maintenance(kernel, leases, calendars, issued, self.notices)
        self.unit_changes = unit_changes = UnitChanges(kernel, leases, calendars, self.delegations, settings.serves)
        unit_changes.told += [self.calendars.keep_out, maintenance.tell_of_gone, plans.inventory_changed]
        for part in (
            saved, claims, self.delegations, self.incidents, outages, failures, calendars, self.closes, early_ends,
            UnitMoves(leases, units, calendars, replacements, assignment),
            UnitCommands(leases, units, calendars, demands, saved.context),
            maintenance, unit_changes, SiteCalendar(name, kernel, leases, units),
            Redemptions(served, leases, terms, tickets),
            Relinquishments(kernel, keyring, claims, voids),
        ):  # fmt: skip
            self.dispatch.add(part)
        units.moved += [(each.unit_moved, ()) for each in (outages, saved, calendars)]
        units.moved += [(plans.unit_moved, NO_CONCERN), (maintenance.unit_moved, IN_SERVICE)]
        leases.settled += (outages.lease_settled, plans.settled)
        issued.taken.append(maintenance.offer_taken)
        loose = claims.loose if _flag(mapper, "makes_room") else frozenset[bytes]
        self.dispatch.connected.append(Pieces(kernel, calendars, issued, loose).connected)
        self.delegations.reclaimed.append(early_ends.taken_back)

    @property
    def issued(self) -> Issued:
        """What it has delegated."""
        return self.delegations.issued

    def _begin(self) -> None:
        self.delegations.begin()
        self.unit_changes.begin()
        self.demands.mark_dirty()

    def _deals_with(self, peer: str) -> bool:
        return any(lease.holder == peer and (lease.ended < 0 or lease.unacked) for lease in self.leases.values())

    def _restore(self, tables: Mapping[str, Sequence[Row]]) -> None:
        super()._restore(tables)
        self.claims.restore(tables.get("claims", ()))
        self.incidents.restore(tables.get("evidence", ()))
        self.issued.restore(tables.get("delegations", ()), tables.get("overrides", ()))
        self.outages.load(tables.get(Outage.table, ()))
        self.saved.restore(tables.get(SavedUnit.table, ()))
        self.unit_changes.restore(tables.get(UnitChange.table, ()), tables.get(HostKind.table, ()))
        self.units.restore(tables.get("units", ()))
        self.maintenance.restore()
        self.calendars.reset()
        changed = self.units.retire_gone()
        self._times.restore(tables.get("leases", ()))
        self.units.resume()
        self.outages.link()
        self.closes.restore()
        self.calendars.restore_windows(tables.get("maintenance", ()))
        for tell in self.unit_changes.told:
            tell(changed)

    @query("leases")
    def _query_leases(self, asked: ListLeases) -> list[SiteLeaseDetails]:
        return [_describe(lease) for lease in self.served.listed(asked)]

    @query("lease")
    def _query_lease(self, asked: ShowLease) -> SiteLeaseDetails:
        return _describe(self.served.find(asked))

    def _largest(self) -> dict[str, str]:
        inventory = self.units.inventory
        types = [type_ for type_ in inventory.types if inventory.known_hosts(type_)]
        return {type_: written(self.calendars.places.largest(type_)) for type_ in types}

    @query("status")
    def _query_status(self) -> SiteStatus:
        return SiteStatus.of(
            self._status(self.leases.values()), units=summary(self.units), waiting=len(self.demands),
            places=dict(self.calendars.places.counts), largest=self._largest(),
            filters=self.units.kinds.counts(), reports=self.reports.latest(), outages=self.outages.describe(),
            delegations=self.issued.differences(),
        )  # fmt: skip


def _flag(mapper: AuthorityMapper, name: str) -> bool:
    """Whether a mapper says of itself that it does something."""
    return getattr(mapper, name, False) is True


def _describe(lease: SiteLease) -> SiteLeaseDetails:
    following = lease.next and RequestDetails.of(lease.next)
    planned = lease.places if lease.awaits_mapper else ()
    return SiteLeaseDetails.of(lease, end=lease.ends_at, next=following, planned=list(planned), **view(lease.told))
