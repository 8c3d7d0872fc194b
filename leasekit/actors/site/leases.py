"""Leases at a site, from the start of their term to the end of their units' teardown; what their mapper decides for
them, and what their guests are told.

What is due at one instant is done in order: leases that end give up their units, then shrinking extends, growing
extends, replacements for units that failed, and new leases get theirs, in one mapper turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import attrs

from leasekit.actors.kernel import Kernel, earliest
from leasekit.actors.served import Served
from leasekit.actors.site.calendars import Calendars
from leasekit.actors.site.saved import SiteSaved
from leasekit.actors.site.turns import GROW, NEW, REPLACE, SHRINK, DemandQueue
from leasekit.actors.site.units import Inventory, Units
from leasekit.core.claims.keys import Signer
from leasekit.core.claims.statements import CONTRACT, Statement, state
from leasekit.core.drivers import saves
from leasekit.core.errors import CommandError
from leasekit.core.leases import authority as au
from leasekit.core.leases.machine import NONE
from leasekit.core.leases.records import SiteLease, SiteUnit
from leasekit.core.leases.saved import RESUMES
from leasekit.core.mappers import Assign, Power, Refuse, Release
from leasekit.core.protocol.messages import EXTEND, LeaseUpdate, UnitState
from leasekit.core.reasons import Code, Reason, all_of, counted, of_mapper, said
from leasekit.core.schema import Row
from leasekit.core.time import Duration, Instant, Term


@attrs.define(eq=False)
class LeaseUpdates:
    """A site's word on its leases. ``signer_of`` is who speaks of a claim."""

    _kernel: Kernel
    _served: Served[SiteLease]
    _units: Units
    _saved: SiteSaved
    _signer_of: Callable[[bytes], Signer]

    def publish(self, lease: SiteLease, word: str, number: int, reason: Reason | None = None) -> None:
        """Tell the guest how the lease stands; ``reason`` is the record's if none is given. A lease that goes on from
        another says which of its units do not.
        """
        units: tuple[UnitState, ...] = ()
        contract = b""
        if word in ("active", "waiting"):
            held = [self._units[name] for name in lease.units]
            up = [unit for unit in held if unit.state in (au.UP, au.CHANGE)]
            units = tuple(UnitState(unit.id, "active", unit.given, unit.reason) for unit in up)
            if word == "active" and lease.properties.get(RESUMES):
                anew = (Reason(Code.UNIT, unit.id).because(unit.reason) for unit in held if unit.reason)
                reason = all_of(reason or lease.reason, *anew)
        if word == "active":
            contract = self.contract(lease).encode()
        self._served.publish(
            lease,
            LeaseUpdate(
                lease.id, lease.update + 1, number, word, _promised(lease, word), units, reason or lease.reason,
                contract, lease.receipt, self._saved.count(lease),
            ),
        )  # fmt: skip

    def contract(self, lease: SiteLease, at: Instant | None = None) -> Statement:
        """The site's signed word, as of ``at`` (None: now), that the lease holds its units, and until when."""
        detail = f"{lease.id} {len(lease.units)} {lease.term.start} {lease.term.end}"
        return state(
            self._signer_of(lease.claim), CONTRACT, lease.claim, self._kernel.now if at is None else at, detail
        )


def _promised(lease: SiteLease, word: str) -> Term:
    """The term as its guest can count on it; a notice tells of what was accepted for later as well."""
    if lease.noticed < 0:
        return lease.term
    last = lease.goes_to if word == "noticed" else lease.term.end
    return Term(lease.term.start, max(min(lease.noticed, last), lease.term.start + 1))


@attrs.define(eq=False)
class SiteLeases:
    """What becomes of the leases of a site, and of their units with them."""

    _kernel: Kernel
    _updates: LeaseUpdates
    _units: Units
    _calendars: Calendars
    _demands: DemandQueue
    settled: list[Callable[[SiteLease], None]] = attrs.field(factory=list, init=False)
    """Who is told, in order, of a lease that is ready, or over, or that it was looked at whether it is ready."""

    @property
    def by_id(self) -> Mapping[str, SiteLease]:
        """All leases that the site remembers."""
        return self._demands.leases

    def start(self, lease: SiteLease) -> None:
        """Its term has started: it needs units."""
        self._demands.put(lease, NEW)

    def touch(self, lease: SiteLease) -> None:
        """A request has changed the lease: its mapper may want to know."""
        self._kernel.touch(lease)
        self._demands.look_again()

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
            self._calendars.end(lease, later.term.start)
        lease.claim, lease.wanted, lease.settles = later.claim, later.units, later.number
        lease.term = Term(lease.term.start, later.term.end)
        changed = later.properties != lease.properties
        lease.properties = later.properties
        self._kernel.fire(au.MACHINE, lease, "apply", said(later.op))
        if changed and later.op != EXTEND:
            lease.waiting += sum(
                self._units.change(self._units[name]) for name in lease.units if name not in later.victims
            )
        for name in later.victims:
            if name in lease.units and len(lease.units) > lease.wanted:
                self.take(lease, name)
        self._demand(lease)

    def _demand(self, lease: SiteLease) -> None:
        """What the lease lacks, or has too many of, is for the mapper; if it is even, it is ready when all have
        settled.
        """
        self._demands.remove(lease)
        more = lease.wanted - len(lease.units)
        if more:
            self._demands.put(lease, GROW if more > 0 else SHRINK)
        else:
            self.check_primed(lease)

    def withdraw_next(self, lease: SiteLease, why: Reason | None) -> None:
        """The extend that was accepted comes to nothing before it began."""
        later = lease.extension
        if later is None:
            return
        lease.next, lease.after = (None if lease.next is later else lease.next), None
        self._calendars.release(lease, later.claim)
        if lease.pending == au.EXTENDING:
            self._kernel.fire(au.MACHINE, lease, "withdraw", why)
        self._kernel.touch(lease)

    def end(self, lease: SiteLease, event: str, reason: Reason | None) -> None:
        """End the lease now: every unit goes. ``event`` is ``close`` or ``end``."""
        self._kernel.fire(au.MACHINE, lease, event, reason)
        lease.reason = reason
        self._demands.remove(lease)
        self._calendars.end(lease, self._kernel.now)
        for later in lease.accepted:
            self._calendars.release(lease, later.claim)
        lease.next = lease.after = None
        for name in list(lease.units):
            self.take(lease, name)
        self.check_down(lease)

    def notice(self, lease: SiteLease, at: Instant, why: Reason | None) -> None:
        """End the lease at ``at``, before its term does, or that of a renewal, and tell its guest now."""
        later = lease.extension
        if lease.ended >= 0 or lease.pending == au.CLOSING or at >= lease.goes_to or 0 <= lease.noticed <= at:
            return
        if later is not None and at <= later.term.start:
            self.withdraw_next(lease, why)
            lease.notice = why
            self._updates.publish(lease, "refused", later.number, why)
            if at >= lease.term.end:
                return
        lease.noticed, lease.notice = at, why
        self._calendars.end(lease, at)
        for one in lease.accepted:
            self._calendars.of(lease.type).end(one.claim, at)
        self._kernel.note(lease.id, "notice", "", "", Reason(Code.ENDS_AT, at=at).because(why))
        if lease.pending == au.REDEEMING and lease.id not in self._demands.ops and lease.term.start >= at:
            self._kernel.fire(au.MACHINE, lease, "refuse", why)
            lease.reason = why
            self._finish(lease, "failed")
        else:
            self._updates.publish(lease, "noticed", 0, why)

    def take(self, lease: SiteLease, name: str) -> None:
        """Take a unit from the lease."""
        unit = self._units[name]
        lease.units.remove(name)
        lease.waiting -= _is_unsettled(lease, unit)
        self._units.take(unit, lease.id)
        self._kernel.touch(lease)

    def check_primed(self, lease: SiteLease) -> None:
        """A lease whose units are all there, or will not come, is active, or has failed."""
        self._check_primed(lease)
        self._tell_settled(lease)

    def _check_primed(self, lease: SiteLease) -> None:
        if lease.pending != au.PRIMING or lease.waiting or lease.id in self._demands.ops:
            return
        if not lease.units and lease.state == au.TICKETED:
            lease.reason = lease.reason or Reason(Code.NO_UNIT)
            self.fail(lease, "fail", lease.reason)
            return
        lease.reason = self._short(lease)
        self._kernel.fire(au.MACHINE, lease, "primed", lease.reason)
        self._updates.publish(lease, "active", lease.settles)
        if lease.next is not None:
            self._kernel.fire(au.MACHINE, lease, lease.next.op, Reason(Code.ACCEPTED_MEANWHILE))
            if lease.next.term.start <= self._kernel.now:
                self.apply_next(lease)

    def fail(self, lease: SiteLease, event: str, why: Reason | None) -> None:
        """A lease that was never active gets no units."""
        self._kernel.fire(au.MACHINE, lease, event, why)
        self._calendars.end(lease, self._kernel.now)
        self._finish(lease, "failed")

    @staticmethod
    def _short(lease: SiteLease) -> Reason | None:
        short = lease.wanted - len(lease.units)
        return Reason(Code.UNITS_MISSING, units=short, of=lease.wanted).because(lease.reason) if short else None

    def check_down(self, lease: SiteLease) -> None:
        """A lease that closes is closed when the last unit that it held has been torn down."""
        if lease.pending == NONE:
            if lease.ended < 0 and lease.state == au.CLOSED:
                self._finish(lease, "closed")
            return
        if lease.pending == au.CLOSING and not self._units.holding.get(lease.id):
            self._kernel.fire(au.MACHINE, lease, "down")
            self._finish(lease, "closed")

    def _finish(self, lease: SiteLease, word: str) -> None:
        lease.ended = self._kernel.now
        self._demands.remove(lease)
        self._updates.publish(lease, word, max(lease.settles, lease.number))
        self._calendars.count_ended()
        self._tell_settled(lease)

    def _tell_settled(self, lease: SiteLease) -> None:
        for tell in self.settled:
            tell(lease)

    def resume(self, lease: SiteLease) -> None:
        """Take up a lease that is not over, as a store kept it."""
        self._calendars.restore(lease)
        lease.waiting = sum(_is_unsettled(lease, self._units[name]) for name in lease.units)
        if lease.pending == au.PRIMING and len(lease.units) != lease.wanted:
            self._demand(lease)


def _is_unsettled(lease: SiteLease, unit: SiteUnit) -> bool:
    return unit.promised == lease.id or unit.state in (au.SETUP, au.CHANGE)


@attrs.define(eq=False)
class LeaseEnds:
    """Leases that end with their units saved, if these can be."""

    _kernel: Kernel
    _leases: SiteLeases
    _units: Units
    _inventory: Inventory
    _saved: SiteSaved

    def close(self, lease: SiteLease, event: str, reason: Reason | None) -> None:
        """End the lease now, as :meth:`SiteLeases.end`; what is up of one that is suspended is saved."""
        if lease.saves:
            plain = reason == lease.notice
            for name in lease.units:
                self._saved.save(lease, self._units[name])
            reason = lease.notice if plain else reason
        self._leases.end(lease, event, reason)

    def suspend(self, lease: SiteLease, at: Instant, saving: Duration, by: str) -> None:
        """Have the lease end so early that its units are saved by ``at``, in ``saving`` ms; tell its guest now."""
        if not saves(self._inventory.properties(lease.type)):
            self._leases.notice(lease, at, Reason(Code.ENDED_BY, by))
            return
        if lease.ended >= 0 or lease.pending == au.CLOSING:
            return  # its guest has closed it, and may have said that nothing is to be kept
        before, begin = lease.saves, max(at - saving, self._kernel.now)
        lease.saves = True
        self._leases.notice(lease, begin, Reason(Code.SUSPENDED_BY, by))
        lease.saves = before if lease.noticed != begin else lease.ended < 0
        self._kernel.touch(lease)


@attrs.define(eq=False)
class LeaseTimes:
    """When time concerns a lease, and what is done then."""

    _kernel: Kernel
    _served: Served[SiteLease]
    _demands: DemandQueue
    _leases: SiteLeases
    _ends: LeaseEnds

    def __attrs_post_init__(self) -> None:
        self._kernel.register(
            SiteLease, due_at=self._due_at, on_due=self._due, owes=self._served.owes, send=self._served.send_now
        )

    def _due_at(self, lease: SiteLease) -> Instant | None:
        """When time next concerns the lease."""
        sending = lease.send_at if lease.unacked else None
        if lease.ended >= 0:
            return earliest(sending, self._served.drop_at(lease))
        if lease.pending == au.CLOSING:
            return sending
        starts = lease.term.start if lease.pending == au.REDEEMING and lease.id not in self._demands.ops else None
        later = lease.next
        ends = lease.term.end if later is None else later.term.start
        return earliest(sending, starts, earliest(ends, lease.noticed if lease.noticed >= 0 else None))

    def _due(self, lease: SiteLease) -> None:
        """Do what is due: end, go on, start, send again, or forget."""
        now = self._kernel.now
        if lease.ended >= 0:
            if self._served.drop_at(lease) <= now:
                self._served.drop(lease)
                return
        elif lease.pending == au.CLOSING:
            pass
        elif 0 <= lease.noticed <= now:
            self._ends.close(lease, "end", lease.notice)
        elif lease.next is not None and lease.next.term.start <= now:
            self._leases.apply_next(lease)
        elif lease.term.end <= now and lease.next is None:
            self._ends.close(lease, "end", Reason(Code.TERM_OVER))
        elif lease.pending == au.REDEEMING and lease.term.start <= now and lease.id not in self._demands.ops:
            self._leases.start(lease)
        if lease.unacked and lease.send_at <= now:
            self._served.send(lease)

    def restore(self, rows: Iterable[Row]) -> None:
        """Leases as a store kept them, after their units; what was under way goes on under the same action numbers."""
        for row in rows:
            lease = SiteLease.from_row(row)
            self._served.leases[lease.id] = lease
            if lease.ended < 0:
                self._leases.resume(lease)
            if lease.unacked:
                self._kernel.owe(lease, lease.holder)
            self._kernel.schedule(lease, self._kernel.now if lease.unacked else self._due_at(lease))


@attrs.define(eq=False)
class Assignment:
    """What the mapper decides for leases that wait."""

    _kernel: Kernel
    _leases: SiteLeases
    _units: Units
    _demands: DemandQueue

    @property
    def carriers(self) -> dict[type, Callable[[Any], None]]:
        """How each decision is carried out."""
        return {
            Assign: lambda one: self._assign(*self._waiting(one.lease), one.units),
            Release: lambda one: self._release(*self._waiting(one.lease), one.units),
            Refuse: lambda one: self._refuse(*self._waiting(one.lease), of_mapper(one.reason)),
            Power: lambda one: self._units.switch(one.unit, one.to, of_mapper(one.reason) if one.reason else None),
        }

    def _waiting(self, id_: str) -> tuple[SiteLease, str]:
        lease, op = self._leases.by_id.get(id_), self._demands.ops.get(id_)
        if lease is None or op is None:
            raise CommandError(f"lease {id_!r} waits for nothing (any more)")
        return lease, op

    def _assign(self, lease: SiteLease, op: str, names: Sequence[str]) -> None:
        if op == SHRINK:
            raise CommandError(f"lease {lease.id} shrinks: it is to give up units, not to get any")
        if not names or len(set(names)) != len(names) or len(names) > lease.wanted - len(lease.units):
            raise CommandError(
                f"lease {lease.id} needs {lease.wanted - len(lease.units)} units, each once; got {names!r:.120}"
            )
        for name in names:
            is_of_type = name in self._units and self._units[name].type == lease.type
            if not is_of_type or not self._units.is_available(self._units[name]):
                raise CommandError(f"unit {name!r} is not a free unit of type {lease.type!r}")
        self._demands.remove(lease)
        missing = lease.wanted - len(lease.units)
        if missing > self._demands.shown_units(lease, missing):  # more have failed than the mapper knew of
            self._demands.put(lease, REPLACE if op == NEW else op)
        elif len(names) < missing:
            lease.reason = lease.reason or Reason(Code.FEWER_FREE, units=len(names))
        if op == NEW:
            self._kernel.fire(au.MACHINE, lease, "assign", said(counted(len(names))))
        for name in names:
            lease.units.append(name)
            lease.waiting += 1
            self._units.give(self._units[name], lease.id)
        self._kernel.touch(lease)

    def _release(self, lease: SiteLease, op: str, names: tuple[str, ...]) -> None:
        if op != SHRINK or len(set(names)) != len(names) or len(names) != len(lease.units) - lease.wanted:
            raise CommandError(
                f"lease {lease.id} is to give up {len(lease.units) - lease.wanted} units; got {names!r:.120}"
            )
        for name in names:
            if name not in lease.units:
                raise CommandError(f"unit {name!r} is not one of lease {lease.id}")
        self._demands.remove(lease)
        for name in names:
            self._leases.take(lease, name)
        self._leases.check_primed(lease)

    def _refuse(self, lease: SiteLease, op: str, reason: Reason) -> None:
        if op == SHRINK:
            raise CommandError(f"lease {lease.id} must give up units: that can't be refused")
        if self._demands.stale:
            return  # by what there is now it may be another matter
        self._demands.remove(lease)
        lease.reason = lease.reason or reason
        if op == NEW:
            self._leases.fail(lease, "refuse", reason)
        else:
            self._kernel.touch(lease)
            self._leases.check_primed(lease)
