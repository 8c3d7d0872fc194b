"""Leases at a site, from the start of their term to the end of their units' teardown.

What is due at one instant is done in order: leases that end give up their units, then shrinking extends, growing
extends, replacements for units that failed, and new leases get theirs, in one mapper turn.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from leasekit.actors.dispatch import query
from leasekit.actors.kernel import earliest
from leasekit.actors.server import Server
from leasekit.actors.settings import AuthoritySettings, Peer
from leasekit.actors.site.accusations import Accusations, ClaimReports
from leasekit.actors.site.admission import ClaimAccounts, TicketAdmission
from leasekit.actors.site.calendars import Calendars
from leasekit.actors.site.checks import ClaimHistory, TicketChecks
from leasekit.actors.site.claims import SiteClaims
from leasekit.actors.site.delegations import SiteDelegations
from leasekit.actors.site.incidents import Incidents
from leasekit.actors.site.inventory import Inventory
from leasekit.actors.site.limits import DelegationLimits
from leasekit.actors.site.operations import Operations
from leasekit.actors.site.power import switch
from leasekit.actors.site.saved import SiteSaved
from leasekit.actors.site.turns import SiteTurns
from leasekit.actors.site.units import Units, summary
from leasekit.actors.site.updates import LeaseUpdates
from leasekit.actors.site.waiting import GROW, NEW, REPLACE, SHRINK, DemandQueue
from leasekit.actors.turns import is_inline
from leasekit.core.claims.keys import Scheme, Signer
from leasekit.core.drivers import Blame, saves
from leasekit.core.errors import CommandError
from leasekit.core.leases import authority as au
from leasekit.core.leases.machine import NONE
from leasekit.core.leases.records import SiteLease, SiteUnit
from leasekit.core.leases.saved import SavedUnit
from leasekit.core.mappers import (
    Assign,
    AuthorityDecision,
    AuthorityMapper,
    Power,
    Refuse,
    Release,
    Wake,
)
from leasekit.core.protocol.messages import EXTEND
from leasekit.core.reasons import Code, Reason, of_mapper, said
from leasekit.core.schema import Row
from leasekit.core.steps import ActionDone, Tick, Turn, TurnDone
from leasekit.core.time import Duration, Instant, Term
from leasekit.core.words import counted, view


class SiteLeases(Server[SiteLease]):
    """The units' side of an authority."""

    role = "authority"
    endorsable = "guest"
    decisions = (Assign, Release, Refuse, Power)

    def __init__(
        self,
        name: str,
        signer: Signer,
        scheme: Scheme,
        peers: Iterable[Peer],
        mapper: AuthorityMapper,
        settings: AuthoritySettings,
    ) -> None:
        super().__init__(name, signer, scheme, peers, settings)
        self.settings = settings
        self.inventory = Inventory(settings.inventory)
        self.saved = SiteSaved(self.kernel, self.keyring, self.leases, self.inventory, settings)
        self.operations = Operations(self.kernel, name, self.leases, self.inventory, self.saved)
        self.units = Units(
            self.kernel, self.inventory, settings.failures_max, self.operations.begin, lambda unit: self._waits(unit)
        )
        self.calendars = Calendars(self.kernel, self.inventory, self.units)
        self.demands = DemandQueue(self.leases, watches=getattr(mapper, "watches", False) is True)
        self.inline = is_inline(mapper)
        self.site_turns = SiteTurns(self.kernel, self.turns, mapper, self.demands, self.units)
        self.claims = SiteClaims(self.kernel, self.keyring, self.leases, settings)
        self.updates = LeaseUpdates(self.kernel, self.served, self.units, self.saved, self.claims.root_signer)
        self.delegations = SiteDelegations(self.kernel, self.keyring, self.inventory, self.claims, settings)
        self.issued = self.delegations.issued
        self._add_issued(self.issued)
        self.incidents = Incidents(self.kernel, self.keyring, self.reports, settings)
        told = ClaimReports(self.kernel, self.keyring, self.notices, self.reports)
        self.accusations = Accusations(self.kernel, self.keyring, self.claims, self.incidents, told)
        limits = DelegationLimits(self.kernel, self.keyring, self.issued, self.leases, self.reports)
        accounts = ClaimAccounts(self.kernel, self.keyring, self.claims, limits, self.accusations)
        self.admission = TicketAdmission(self.kernel, self.claims, self.calendars, accounts, told)
        history = ClaimHistory(self.claims, self.incidents, limits)
        self.checks = TicketChecks(self.kernel, self.keyring, self.inventory, settings, history)
        self._begun = False
        for part in (self.saved, self.claims, self.incidents):
            self.dispatch.add(part)
        self.kernel.register(
            SiteLease,
            due_at=self.lease_due_at,
            on_due=self.lease_due,
            owes=self.served.owes,
            send=self.served.send_now,
        )

    # -- a lease's life ----------------------------------------------------------------------------------------

    def start_lease(self, lease: SiteLease) -> None:
        """Its term has started: it needs units."""
        self.demands.put(lease, NEW)

    def apply_next(self, lease: SiteLease) -> None:
        """Go on with what was accepted for now: an extend at the old end, or a modify. Units that are being set up go
        on with that: what others were promised from now on does not wait for them.
        """
        later = lease.next
        assert later is not None, "only called with something accepted"
        modified = later.claim == lease.claim
        lease.next, lease.after = lease.after, None
        if lease.next is not None:  # it begins with the configuration of that time
            lease.next = lease.next._replace(properties=later.properties)
        lease.replaced = 0 if later.op == EXTEND else lease.replaced
        if not modified:
            self.calendars.end(lease, later.term.start)
        lease.claim, lease.wanted, lease.settles = later.claim, later.units, later.number
        lease.term = Term(lease.term.start, later.term.end)
        changed = later.properties != lease.properties
        lease.properties = later.properties
        self.kernel.fire(au.MACHINE, lease, "apply", said(later.op))
        if changed and later.op != EXTEND:
            lease.waiting += sum(
                self.units.change(self.units[name]) for name in lease.units if name not in later.victims
            )
        for name in later.victims:
            if name in lease.units and len(lease.units) > lease.wanted:
                self._take(lease, self.units[name])
        self._demand(lease)

    def _demand(self, lease: SiteLease) -> None:
        """What the lease lacks, or has too many of, is for the mapper; if it is even, it is ready when all have
        settled.
        """
        self.demands.remove(lease)
        more = lease.wanted - len(lease.units)
        if more:
            self.demands.put(lease, GROW if more > 0 else SHRINK)
        else:
            self._check_primed(lease)

    def withdraw_next(self, lease: SiteLease, why: Reason | None) -> None:
        """The extend that was accepted comes to nothing before it began."""
        later = lease.extension
        if later is None:
            return
        lease.next, lease.after = (None if lease.next is later else lease.next), None
        self.calendars.release(lease, later.claim)
        if lease.pending == au.EXTENDING:
            self.kernel.fire(au.MACHINE, lease, "withdraw", why)
        self.kernel.touch(lease)

    def close_lease(self, lease: SiteLease, event: str, reason: Reason | None) -> None:
        """End the lease now: every unit goes; what is up of one that is suspended is saved. ``event`` is ``close`` or
        ``end``.
        """
        if lease.saves:
            plain = reason == lease.notice
            for name in lease.units:
                self.saved.save(lease, self.units[name])
            reason = lease.notice if plain else reason
        self.kernel.fire(au.MACHINE, lease, event, reason)
        lease.reason = reason
        self.demands.remove(lease)
        self.calendars.end(lease, self.kernel.now)
        for later in lease.accepted:
            self.calendars.release(lease, later.claim)
        lease.next = lease.after = None
        for name in list(lease.units):
            self._take(lease, self.units[name])
        self._check_down(lease)

    def notice_lease(self, lease: SiteLease, at: Instant, why: Reason | None) -> None:
        """End the lease at ``at``, before its term does, or that of a renewal, and tell its guest now."""
        later = lease.extension
        if lease.ended >= 0 or lease.pending == au.CLOSING or at >= lease.goes_to or 0 <= lease.noticed <= at:
            return
        if later is not None and at <= later.term.start:
            self.withdraw_next(lease, why)
            lease.notice = why
            self.updates.publish(lease, "refused", later.number, why)
            if at >= lease.term.end:
                return
        lease.noticed, lease.notice = at, why
        self.calendars.end(lease, at)
        for one in lease.accepted:
            self.calendars.of(lease.type).end(one.claim, at)
        self.kernel.note(lease.id, "notice", "", "", Reason(Code.ENDS_AT, at=at).because(why))
        if lease.pending == au.REDEEMING and lease.id not in self.demands.ops and lease.term.start >= at:
            self.kernel.fire(au.MACHINE, lease, "refuse", why)
            lease.reason = why
            self._finish(lease, "failed")
        else:
            self.updates.publish(lease, "noticed", 0, why)

    def suspend_lease(self, lease: SiteLease, at: Instant, saving: Duration, by: str) -> None:
        """Have the lease end so early that its units are saved by ``at``, in ``saving`` ms; tell its guest now."""
        if not saves(self.inventory.properties(lease.type)):
            self.notice_lease(lease, at, Reason(Code.ENDED_BY, by))
            return
        if lease.ended >= 0 or lease.pending == au.CLOSING:
            return  # its guest has closed it, and may have said that nothing is to be kept
        before, begin = lease.saves, max(at - saving, self.kernel.now)
        lease.saves = True
        self.notice_lease(lease, begin, Reason(Code.SUSPENDED_BY, by))
        lease.saves = before if lease.noticed != begin else lease.ended < 0
        self.kernel.touch(lease)

    def _take(self, lease: SiteLease, unit: SiteUnit) -> None:
        lease.units.remove(unit.id)
        lease.waiting -= self._unsettled(lease, unit)
        self.units.take(unit, lease.id)
        self.kernel.touch(lease)

    def _check_primed(self, lease: SiteLease) -> None:
        if lease.pending != au.PRIMING or lease.waiting or lease.id in self.demands.ops:
            return
        if not lease.units and lease.state == au.TICKETED:
            lease.reason = lease.reason or Reason(Code.NO_UNIT)
            self.kernel.fire(au.MACHINE, lease, "fail", lease.reason)
            self.calendars.end(lease, self.kernel.now)
            self._finish(lease, "failed")
            return
        lease.reason = self._short(lease)
        self.kernel.fire(au.MACHINE, lease, "primed", lease.reason)
        self.updates.publish(lease, "active", lease.settles)
        if lease.next is not None:
            self.kernel.fire(au.MACHINE, lease, lease.next.op, Reason(Code.ACCEPTED_MEANWHILE))
            if lease.next.term.start <= self.kernel.now:
                self.apply_next(lease)

    @staticmethod
    def _short(lease: SiteLease) -> Reason | None:
        short = lease.wanted - len(lease.units)
        return Reason(Code.UNITS_MISSING, units=short, of=lease.wanted).because(lease.reason) if short else None

    def _check_down(self, lease: SiteLease) -> None:
        """A lease that closes is closed when the last unit that it held has been torn down."""
        if lease.pending == NONE:
            if lease.ended < 0 and lease.state == au.CLOSED:
                self._finish(lease, "closed")
            return
        if lease.pending == au.CLOSING and not self.units.holding.get(lease.id):
            self.kernel.fire(au.MACHINE, lease, "down")
            self._finish(lease, "closed")

    def _finish(self, lease: SiteLease, word: str) -> None:
        lease.ended = self.kernel.now
        self.demands.remove(lease)
        self.updates.publish(lease, word, max(lease.settles, lease.number))
        self.calendars.count_ended()

    # -- units -------------------------------------------------------------------------------------------------

    def _action_done(self, done: ActionDone) -> None:
        if self.saved.done(done):
            return
        ended = self.units.done(done)
        if ended is None:
            return
        what, unit, lease_id = ended
        self.kernel.touch(unit)
        lease = self.leases.get(lease_id)
        if what == "down":
            self._unit_down(unit, lease)
        elif lease is None:
            return
        elif what == "failed":
            self._unit_failed(lease, unit, done.blame)
        elif what != "again":
            lease.waiting -= 1
            self._check_primed(lease)

    def _unit_down(self, unit: SiteUnit, lease: SiteLease | None) -> None:
        if unit.state == au.OUT:
            self.calendars.count(unit.type)
            if unit.promised:
                promised, unit.promised = self.leases.get(unit.promised), ""
                if promised is not None and unit.id in promised.units:
                    self._replace(promised, unit)
        elif unit.state == au.FREE and self.demands.ops:
            self.demands.look_again()
        if lease is not None:
            self._check_down(lease)

    def _unit_failed(self, lease: SiteLease, unit: SiteUnit, blame: Blame) -> None:
        """A unit could not be set up for its lease: see the layer above."""
        raise NotImplementedError

    def _replace(self, lease: SiteLease, unit: SiteUnit) -> None:
        """A unit that the lease was to get can't be had: see the layer above."""
        raise NotImplementedError

    def _waits(self, unit: SiteUnit) -> bool:
        """Whether a unit is not to be set up yet: see the layer above."""
        raise NotImplementedError

    def _tick(self, tick: Tick) -> None:
        super()._tick(tick)
        if not self._begun:
            self._begun = True
            self.demands.look_again()
            self.delegations.begin()

    def _turn_at(self) -> Instant | None:
        return self.site_turns.at()

    def turn(self) -> Turn | None:
        """As the base's."""
        return self.site_turns.turn()

    def _waits_for_mapper(self) -> Iterable[str]:
        return self.demands.ops

    # -- what the mapper decides -------------------------------------------------------------------------------

    def _turn_done(self, done: TurnDone) -> None:
        """As the layer below. What has changed while the mapper was at it, it is shown in a turn that is due."""
        self.demands.begin_decisions()
        super()._turn_done(done)
        self.demands.end_decisions()

    def _carry_out(self, decision: AuthorityDecision) -> None:
        assert not isinstance(decision, Wake), "whoever runs turns takes those"
        if isinstance(decision, Power):
            switch(self.units, decision)
            return
        lease = self.leases.get(decision.lease)
        op = self.demands.ops.get(decision.lease)
        if lease is None or op is None:
            raise CommandError(f"lease {decision.lease!r} waits for nothing (any more)")
        if isinstance(decision, Refuse):
            self._refuse(lease, op, of_mapper(decision.reason))
        elif isinstance(decision, Assign):
            self._assign(lease, op, decision.units)
        else:
            self._release(lease, op, decision.units)

    def _assign(self, lease: SiteLease, op: str, names: tuple[str, ...]) -> None:
        if op == SHRINK:
            raise CommandError(f"lease {lease.id} shrinks: it is to give up units, not to get any")
        if not names or len(set(names)) != len(names) or len(names) > lease.wanted - len(lease.units):
            raise CommandError(
                f"lease {lease.id} needs {lease.wanted - len(lease.units)} units, each once; got {names!r:.120}"
            )
        for name in names:
            is_of_type = name in self.units and self.units[name].type == lease.type
            if not is_of_type or not self.units.is_available(self.units[name]):
                raise CommandError(f"unit {name!r} is not a free unit of type {lease.type!r}")
        self.demands.remove(lease)
        missing = lease.wanted - len(lease.units)
        if missing > self.demands.shown_units(lease, missing):  # more have failed than the mapper knew of
            self.demands.put(lease, REPLACE if op == NEW else op)
        elif len(names) < missing:
            lease.reason = lease.reason or Reason(Code.FEWER_FREE, units=len(names))
        if op == NEW:
            self.kernel.fire(au.MACHINE, lease, "assign", said(counted(len(names))))
        for name in names:
            lease.units.append(name)
            lease.waiting += 1
            self.units.give(self.units[name], lease.id)
        self.kernel.touch(lease)

    def _release(self, lease: SiteLease, op: str, names: tuple[str, ...]) -> None:
        if op != SHRINK or len(set(names)) != len(names) or len(names) != len(lease.units) - lease.wanted:
            raise CommandError(
                f"lease {lease.id} is to give up {len(lease.units) - lease.wanted} units; got {names!r:.120}"
            )
        for name in names:
            if name not in lease.units:
                raise CommandError(f"unit {name!r} is not one of lease {lease.id}")
        self.demands.remove(lease)
        for name in names:
            self._take(lease, self.units[name])
        self._check_primed(lease)

    def _refuse(self, lease: SiteLease, op: str, reason: Reason) -> None:
        if op == SHRINK:
            raise CommandError(f"lease {lease.id} must give up units: that can't be refused")
        if self.demands.stale:
            return  # by what there is now it may be another matter
        self.demands.remove(lease)
        lease.reason = lease.reason or reason
        if op == NEW:
            self.kernel.fire(au.MACHINE, lease, "refuse", reason)
            self.calendars.end(lease, self.kernel.now)
            self._finish(lease, "failed")
        else:
            self.kernel.touch(lease)
            self._check_primed(lease)

    def _deals_with(self, peer: str) -> bool:
        return any(lease.holder == peer and (lease.ended < 0 or lease.unacked) for lease in self.leases.values())

    # -- time --------------------------------------------------------------------------------------------------

    def lease_due_at(self, lease: SiteLease) -> Instant | None:
        """When time next concerns the lease."""
        sending = lease.send_at if lease.unacked else None
        if lease.ended >= 0:
            return earliest(sending, self.served.drop_at(lease))
        if lease.pending == au.CLOSING:
            return sending
        starts = lease.term.start if lease.pending == au.REDEEMING and lease.id not in self.demands.ops else None
        later = lease.next
        ends = lease.term.end if later is None else later.term.start
        return earliest(sending, starts, earliest(ends, lease.noticed if lease.noticed >= 0 else None))

    def lease_due(self, lease: SiteLease) -> None:
        """Do what is due: end, go on, start, send again, or forget."""
        now = self.kernel.now
        if lease.ended >= 0:
            if self.served.drop_at(lease) <= now:
                self.served.drop(lease)
                return
        elif lease.pending == au.CLOSING:
            pass
        elif 0 <= lease.noticed <= now:
            self.close_lease(lease, "end", lease.notice)
        elif lease.next is not None and lease.next.term.start <= now:
            self.apply_next(lease)
        elif lease.term.end <= now and lease.next is None:
            self.close_lease(lease, "end", Reason(Code.TERM_OVER))
        elif lease.pending == au.REDEEMING and lease.term.start <= now and lease.id not in self.demands.ops:
            self.start_lease(lease)
        if lease.unacked and lease.send_at <= now:
            self.served.send(lease)

    def _is_settled(self, lease: Any, number: int) -> bool:
        return bool(lease.unacked) and any(update.message.number >= number for update in lease.unacked)

    def _restore(self, tables: Mapping[str, Sequence[Row]]) -> None:
        super()._restore(tables)
        self.claims.restore(tables.get("claims", ()))
        self.incidents.restore(tables.get("evidence", ()))

    def restore_leases(self, tables: Mapping[str, Sequence[Row]]) -> None:
        """Leases and units as a store kept them; what was under way goes on under the same action numbers."""
        self.saved.restore(tables.get(SavedUnit.table, ()))
        self.units.restore(tables.get("units", ()))
        self.calendars.reset()
        self.units.retire_gone()
        for row in tables.get("leases", ()):
            lease = SiteLease.from_row(row)
            self.leases[lease.id] = lease
            if lease.ended < 0:
                self.calendars.restore(lease)
                lease.waiting = sum(self._unsettled(lease, self.units[name]) for name in lease.units)
                if lease.pending == au.PRIMING and len(lease.units) != lease.wanted:
                    self._demand(lease)
            if lease.unacked:
                self.kernel.owe(lease, lease.holder)
            self.kernel.schedule(lease, self.kernel.now if lease.unacked else self.lease_due_at(lease))
        self.units.resume()

    @staticmethod
    def _unsettled(lease: SiteLease, unit: SiteUnit) -> bool:
        return unit.promised == lease.id or unit.state in (au.SETUP, au.CHANGE)

    # -- queries -----------------------------------------------------------------------------------------------

    def _describe(self, lease: SiteLease) -> dict[str, Any]:
        return {
            "id": lease.id,
            "holder": lease.holder,
            "slice": lease.slice,
            "type": lease.type,
            "state": lease.state,
            "pending": lease.pending,
            "wanted": lease.wanted,
            "units": list(lease.units),
            "term": list(lease.term),
            "end": min([lease.goes_to, *(at for at in (lease.noticed, lease.ended) if at >= 0)]),
            "next": None
            if lease.next is None
            else {"op": lease.next.op, "units": lease.next.units, "term": list(lease.next.term)},
            **view(lease.reason),
        }

    @query("units")
    def _query_units(self, arguments: Mapping[str, Any]) -> list[dict[str, Any]]:
        return self.units.describe()

    @query("status")
    def _query_status(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        units = {type_: dict(counts) for type_, counts in summary(self.units).items()}
        status = self._status(self.leases.values())
        return {
            **status,
            "units": units,
            "waiting": len(self.demands),
            "filters": self.units.kinds.counts(),
            "reports": self.reports.latest(),
        }
