"""The service manager: a guest's actor. What it does in each state is told in
:mod:`leasekit.core.leases.service_manager`.

Here its parts are put together, and its mapper called.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from leasekit.actors.base import Actor
from leasekit.actors.guest.answers import (
    BrokerAnswers,
    BrokerUpdates,
    LeaseTimeouts,
    LeaseTimers,
    SiteAnswers,
    Sites,
    SiteUpdates,
    Tickets,
)
from leasekit.actors.guest.leases import GuestOperations, GuestTurns, Leases, Limits
from leasekit.actors.guest.lifecycle import Endings, Membership, Predecessors, Redeems, Transitions
from leasekit.actors.guest.requests import DryRunRequests, Keepalives, LeaseChanges, LeaseRequests, Slices
from leasekit.actors.guest.returns import Returns
from leasekit.actors.guest.topologies import LeasedTopologies, PlanTrials
from leasekit.actors.kernel import query
from leasekit.actors.settings import GuestSettings, Peer
from leasekit.core.answers import GuestStatus
from leasekit.core.claims.signed import Scheme, Signer
from leasekit.core.leases.records import GuestLease
from leasekit.core.mappers import (
    CloseLeaseEarly,
    ExtendLease,
    GuestMapper,
    ModifyLease,
    RequestLease,
    RequestTopology,
)
from leasekit.core.schema import Row


class ServiceManager(Actor):
    """A guest's actor."""

    role = "guest"
    endorsable = "authority"
    first_turn = 0
    turning: GuestTurns

    def __init__(
        self,
        name: str,
        signer: Signer,
        scheme: Scheme,
        peers: Iterable[Peer],
        mapper: GuestMapper,
        settings: GuestSettings | None = None,
    ) -> None:
        settings = settings or GuestSettings()
        super().__init__(name, signer, scheme, peers, settings)
        kernel, keyring = self.kernel, self.keyring
        self.settings = settings
        self.records = records = Leases(kernel, settings.keep_closed)
        self.leases = records.by_id
        self.dispatch.recall = lambda row: records.describe(GuestLease.from_row(row))
        sites = Sites(kernel, keyring, self.peering)
        self.returns = returns = Returns(kernel, keyring, self.leases, sites.name_of)
        tickets = Tickets(keyring, sites, returns)
        self.membership = membership = Membership(kernel, self.leases, settings.drives)
        self.dispatch.ended.append(membership.done)
        self.limits = limits = Limits(
            kernel, settings, records, lambda part: topologies.is_undecided(part), returns.is_giving_back
        )
        operations = GuestOperations(kernel, records, returns)
        returns.back.append(self._is_back)
        endings = Endings(kernel, records, operations, returns, membership)
        redeems = Redeems(kernel, records, operations, returns, self._advance)
        predecessors = Predecessors(kernel, records, endings, lambda *leases: self.turning.unblock(*leases))
        self._transitions = transitions = Transitions(limits, predecessors, redeems, membership)
        slices = Slices(kernel, records, endings, transitions)
        requests = LeaseRequests(kernel, keyring, settings, records, operations)
        changes = LeaseChanges(kernel, records, tickets, limits, redeems)
        self.topologies = topologies = LeasedTopologies(kernel, keyring, records, requests, endings)
        broker_answers = BrokerAnswers(kernel, returns, endings, redeems, transitions)
        broker = BrokerUpdates(kernel, records, tickets, operations, broker_answers)
        site_answers = SiteAnswers(kernel, redeems, endings, membership, transitions)
        site = SiteUpdates(kernel, records, tickets, site_answers, transitions.advance)
        timeouts = LeaseTimeouts(limits, endings, redeems, membership, broker)
        dry_runs = DryRunRequests(kernel, keyring, self.commanded.calls, requests, changes)
        trials = PlanTrials(kernel, keyring, self.commanded.calls, requests, topologies)
        self.keepalives = Keepalives(kernel, records, endings)
        requests.begun.append(self.keepalives.begun)
        self.turns.declare(
            {
                RequestLease: requests.request,
                RequestTopology: topologies.request,
                ExtendLease: changes.extend,
                ModifyLease: changes.modify,
                CloseLeaseEarly: endings.close_early,
            }
        )
        self.turning = GuestTurns(kernel, self.turns, records, topologies.views, mapper)

        for part in (records, returns, operations, endings, slices, requests, changes, topologies, broker, site):
            self.dispatch.add(part)
        self.dispatch.add(dry_runs)
        self.dispatch.add(trials)
        self.dispatch.add(self.keepalives)
        self.peering.changed.append(sites.changed)
        self.dispatch.connected.append(topologies.connected)
        self.dispatch.refused.insert(0, topologies.refused)
        self.dispatch.refused += [returns.refused, broker.refused, site.refused]
        membership.all_joined.append(slices.wake_dependents)
        membership.all_left.append(endings.all_left)
        broker_answers.ticketed += [slices.settle, records.settle_part]
        site_answers.confirmed.append(slices.wake_dependents)
        endings.ended += [slices.settle, records.settle_part, slices.wake_dependents, requests.ask_for_rest]
        topologies.committed.append(transitions.advance)
        slices.closing.append(topologies.slice_closing)
        timers = LeaseTimers(kernel, records, operations, timeouts, transitions)
        kernel.register(
            GuestLease, due_at=timers.due_at, on_due=timers.due, awaits=operations.awaits, send=operations.send_now
        )

    def _is_back(self, id_: str) -> None:
        lease = self.leases.get(id_)
        if lease is not None and lease.has_ticket:
            self._transitions.advance(lease)
            self.kernel.touch(lease)

    def _advance(self, lease: GuestLease) -> None:
        self._transitions.advance(lease)

    def _restore(self, tables: Mapping[str, Sequence[Row]]) -> None:
        self.records.restore(tables.get("slices", ()), tables.get("leases", ()))
        self.membership.restore(tables.get("units", ()))
        self.returns.restore(tables.get("returns", ()))
        self.membership.resume(self.records.open.values())
        self.topologies.restore(tables.get("plans", ()))
        self.keepalives.restore(tables.get("keepalives", ()))

    def _deals_with(self, peer: str) -> bool:
        return any(lease.site == peer and lease.ended < 0 for lease in self.leases.values()) or any(
            giving.site == peer for giving in self.returns
        )

    @query("status")
    def _query_status(self) -> GuestStatus:
        units = sum(len(lease.units) for lease in self.records.open.values())
        return GuestStatus.of(self._status(self.leases.values()), units=units, returns=len(self.returns))
