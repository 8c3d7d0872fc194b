"""The service manager: a guest's actor. What it does in each state is told in
:mod:`leasekit.core.leases.service_manager`.

Here its parts are put together, and its mapper called.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs

from leasekit.actors.base import FAILED, Actor, MapperTurns, check_decision, is_inline, run_turn
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
from leasekit.actors.guest.leases import GuestOperations, Leases, Limits
from leasekit.actors.guest.lifecycle import Endings, Membership, Predecessors, Redeems, Transitions
from leasekit.actors.guest.requests import DryRunRequests, Keepalives, LeaseChanges, LeaseRequests, Slices
from leasekit.actors.guest.returns import Returns
from leasekit.actors.guest.topologies import LeasedTopologies, PlanTrials
from leasekit.actors.kernel import Kernel, query
from leasekit.actors.settings import GuestSettings, Peer
from leasekit.core.answers import GuestStatus
from leasekit.core.claims.signed import Scheme, Signer
from leasekit.core.errors import CommandError
from leasekit.core.leases.records import GuestLease
from leasekit.core.mappers import (
    CloseLeaseEarly,
    ExtendLease,
    Go,
    GuestCycle,
    GuestMapper,
    Hold,
    ModifyLease,
    RequestLease,
    RequestTopology,
    Unblocks,
)
from leasekit.core.schema import Row
from leasekit.core.steps import ActionDone, Turn, TurnDone
from leasekit.core.time import Instant


@attrs.define(eq=False)
class GuestTurns:
    """The mapper is called when it wants to be, and before a blocked lease goes on."""

    _kernel: Kernel
    _turns: MapperTurns
    _records: Leases
    _topologies: LeasedTopologies
    mapper: GuestMapper

    def at(self) -> Instant | None:
        """See :class:`Turning`."""
        return None if self._turns.running else self._turns.wake

    def turn(self) -> Turn | None:
        """See :class:`Turning`."""
        at = self.at()
        if at is None or at > self._kernel.now:
            return None
        self._turns.answer_wake()
        snapshot = not is_inline(self.mapper)
        views = [self._records.view(lease, snapshot=snapshot) for lease in self._records.open.values()]
        cycle = GuestCycle(self._kernel.now, views, list(self._topologies.views()))
        return self._turns.begin(lambda: self.mapper.plan(cycle))

    def done(self, done: TurnDone) -> None:
        """See :class:`Turning`."""
        self._turns.done(done)

    def unblock(self, lease: GuestLease, predecessor: GuestLease) -> Go | Hold:
        """Ask the mapper; one that fails holds the lease for a minute, and says so."""
        mapper: object = self.mapper
        if not isinstance(mapper, Unblocks):
            return Go()
        done = run_turn(0, lambda: [mapper.unblock(self._records.view(lease), self._records.view(predecessor))])
        error = done.error
        if not error:
            try:
                return _answer(done.decisions[0])
            except CommandError as wrong:
                error = str(wrong)
        self._turns.wrong(FAILED, f"guest mapper's unblock for {lease.id}: {error}")
        return Hold(self._kernel.now + self._kernel.settings.retry_max)


def _answer(decision: Any) -> Go | Hold:
    if not isinstance(decision, Go | Hold):
        raise CommandError("it returned neither Go nor Hold")
    check_decision(decision)
    return decision


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
        self.limits = limits = Limits(kernel, settings, records.slices, self._is_undecided)
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
        self.turning = GuestTurns(kernel, self.turns, records, topologies, mapper)

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
        broker_answers.ticketed += [slices.settle, topologies.settle]
        site_answers.confirmed.append(slices.wake_dependents)
        endings.ended += [slices.settle, topologies.settle, slices.wake_dependents, requests.ask_for_rest]
        topologies.committed.append(transitions.advance)
        slices.closing.append(topologies.slice_closing)
        timers = LeaseTimers(kernel, records, operations, timeouts, transitions)
        kernel.register(
            GuestLease, due_at=timers.due_at, on_due=timers.due, awaits=operations.awaits, send=operations.send_now
        )

    def _is_undecided(self, lease: GuestLease) -> bool:
        return self.topologies.is_undecided(lease) or self.returns.is_giving_back(lease)

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

    def _action_done(self, done: ActionDone) -> None:
        self.membership.done(done)

    @query("status")
    def _query_status(self) -> GuestStatus:
        units = sum(len(lease.units) for lease in self.records.open.values())
        return GuestStatus.of(self._status(self.leases.values()), units=units, returns=len(self.returns))
