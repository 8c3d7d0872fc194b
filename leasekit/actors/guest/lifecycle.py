"""How a guest's lease goes on: it is redeemed, renewed and changed, waits for its predecessors, and ends: closed by its
guest, over with its term, or lost at its site. Then units leave first, the site is told, and what is left of the
lease's tickets goes back.

Units of leases join the guest's application and leave it again. Each unit has one action at a time, under a number; the
end of an older action changes nothing. A unit whose join fails stays in the lease, marked, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import attrs

from leasekit.actors.guest.leases import CLOSE, GuestOperations, Leases, Limits, joint, structure, with_more
from leasekit.actors.guest.returns import Returns
from leasekit.actors.kernel import Kernel, command
from leasekit.core.answers import GuestLeaseDetails
from leasekit.core.errors import CommandError
from leasekit.core.leases import membership as mb
from leasekit.core.leases import service_manager as sm
from leasekit.core.leases.machine import NONE
from leasekit.core.leases.records import NO_CHANGE, Asked, Given, GuestLease, GuestUnit, Held, HeldTickets
from leasekit.core.mappers import CloseLeaseEarly, Go, Hold
from leasekit.core.properties import Properties
from leasekit.core.protocol.messages import EXTEND, MODIFY, NEW, UNDO, LeaseUpdate, UnitState
from leasekit.core.reasons import Code, Reason, counted, mark, said, words
from leasekit.core.schema import Row
from leasekit.core.steps import Action, ActionDone
from leasekit.core.time import Instant


@attrs.define(eq=False, slots=False)
class Membership:
    """The units of a guest's ``leases``. If it is not one that ``drives``, they join and leave without an action."""

    _kernel: Kernel
    _leases: Mapping[str, GuestLease]
    _drives: bool = True
    all_joined: list[Callable[[GuestLease], None]] = attrs.field(factory=list, init=False)
    """Who is told, in order, of a lease of which all units have joined, or failed to."""
    all_left: list[Callable[[GuestLease], None]] = attrs.field(factory=list, init=False)
    """The same when all have left."""

    def __attrs_post_init__(self) -> None:
        self._kernel.register(GuestUnit)

    def restore(self, rows: Iterable[Row]) -> None:
        """Take up the units of leases that a store kept."""
        for unit in map(GuestUnit.from_row, rows):
            lease = self._leases.get(unit.lease)
            if lease is not None:
                lease.units[unit.name] = unit

    def resume(self, leases: Iterable[GuestLease]) -> None:
        """After a restart: have done again, under the same number, what was under way."""
        for lease in leases:
            for unit in lease.units.values():
                if unit.is_busy:
                    self._act(lease, unit, "join" if unit.is_joining else "leave", unit.action)

    def take(self, lease: GuestLease, units: Iterable[UnitState]) -> None:
        """Make the lease's units those that the site says it has: new ones wait to join, lost ones are gone. A lease
        that ends takes none any more: nobody holds what it is given then against its tickets, which go back.
        """
        given = {unit.unit: unit for unit in units if unit.state == "active"}
        for name in [name for name in lease.units if name not in given]:
            gone = lease.units.pop(name)
            lease.waits.busy -= gone.action != 0
            self._kernel.erase(gone)
        for name, state in given.items():
            unit = lease.units.get(name)
            if lease.is_closing and (unit is None or unit.has_left):
                continue
            if unit is None:
                unit = lease.units[name] = GuestUnit(
                    f"{lease.id}/{name}", lease.id, name, lease.type, unit_class=state.unit_class
                )
            elif unit.properties == state.properties and not unit.has_left:
                continue
            if unit.has_left:
                self._fire(unit, "given")
            unit.properties = state.properties
            self._kernel.touch(unit)
        self.check_left(lease)

    @staticmethod
    def move(lease: GuestLease, event: str) -> None:
        """Move a lease by an event of :data:`~leasekit.core.leases.membership.TABLE`. Raises ``ProtocolError``."""
        lease.join, _ = mb.MACHINE.next((lease.join, NONE), event)

    @staticmethod
    def _fire(unit: GuestUnit, event: str) -> None:
        unit.state, unit.pending = unit.machine.next((unit.state, unit.pending), event)

    def join(self, lease: GuestLease) -> None:
        """Join all units that wait; tells :attr:`all_joined` at once if none does."""
        self.move(lease, "join")
        for unit in lease.units.values():
            if unit.can("join"):
                self._begin(lease, unit, "join", "joined")
        self._check_joined(lease)

    def leave(self, lease: GuestLease, names: Iterable[str]) -> None:
        """Let the named units leave; those that never joined have left already."""
        for name in names:
            unit = lease.units.get(name)
            if unit is None or not unit.can("leave"):
                continue
            self._begin(lease, unit, "leave", "left")

    def leave_early(self, lease: GuestLease, names: Iterable[str]) -> None:
        """Let the named units leave a lease that goes on without them."""
        self.leave(lease, names)
        self._kernel.touch(lease)

    def _begin(self, lease: GuestLease, unit: GuestUnit, op: str, end: str) -> None:
        """Have a unit join or leave: ``end`` is the event of that."""
        self._fire(unit, op)
        if unit.is_busy and self._drives:
            self._act(lease, unit, op, self._kernel.next("action"))
            return
        if unit.is_busy:
            self._fire(unit, end)
        self._kernel.touch(unit)

    def _act(self, lease: GuestLease, unit: GuestUnit, op: str, number: int) -> None:
        lease.waits.busy += unit.action == 0 or number == unit.action
        unit.action = number
        self._kernel.touch(unit)
        self._kernel.actions.append(Action(number, op, unit.id, unit.type, lease.id, self._context(lease, unit)))

    def _context(self, lease: GuestLease, unit: GuestUnit) -> Properties:
        context = {
            **lease.tickets.resource,
            **lease.configuration,
            **unit.properties,
            "lease.id": lease.id,
            "lease.name": lease.name,
            "lease.site": lease.site,
            "lease.end": str(lease.end),
            "slice.name": lease.slice,
            "unit.name": unit.name,
        }
        predecessor = self._leases.get(lease.origin.after.join) if lease.origin.after.join else None
        if predecessor is not None:
            context["predecessor.units"] = " ".join(predecessor.units)
            hosts = [unit.properties["host"] for unit in predecessor.units.values() if "host" in unit.properties]
            if hosts:
                context["predecessor.hosts"] = " ".join(hosts)
        return context

    def done(self, done: ActionDone) -> None:
        """An action has ended: an older one than the unit's changes nothing."""
        lease_id, _, name = done.unit.partition("/")
        lease = self._leases.get(lease_id)
        unit = lease.units.get(name) if lease is not None else None
        if lease is None or unit is None or unit.action != done.number:
            return
        unit.action = 0
        lease.waits.busy -= 1
        if unit.is_joining:
            self._fire(unit, "joined" if done.ok else "failed")
            unit.reason = None if done.ok else Reason(Code.JOIN_FAILED, detail=done.reason)
            if done.ok and done.properties:
                unit.properties = {**unit.properties, **done.properties}
            self._kernel.touch(unit)
            self._check_joined(lease)
        elif unit.is_leaving:
            self._has_left(lease, unit, None if done.ok else Reason(Code.LEAVE_FAILED, detail=done.reason))

    def _has_left(self, lease: GuestLease, unit: GuestUnit, reason: Reason | None) -> None:
        """A leave has ended. A victim that its site has spared meanwhile, as others failed, joins anew."""
        spared = lease.join in (mb.JOINING, mb.JOINED) and unit.name not in lease.leaving
        self._fire(unit, "spared" if spared else "left")
        unit.reason = reason
        self._kernel.touch(unit)
        if spared:
            self.join(lease)
        self._check_joined(lease)
        self.check_left(lease)

    def _check_joined(self, lease: GuestLease) -> None:
        if lease.join == mb.JOINING and not lease.waits.busy:
            self.move(lease, "joined")
            failed = [unit for unit in lease.units.values() if unit.has_failed]
            if failed:
                missing = Reason(Code.UNITS_NOT_JOINED, units=len(failed), of=len(lease.units))
                lease.reason = missing.because(failed[0].reason)
            self._kernel.touch(lease)
            self._kernel.note(lease.id, "joined", lease.state, lease.state, lease.reason)
            for tell in self.all_joined:
                tell(lease)

    def check_left(self, lease: GuestLease) -> None:
        """Whether all have left a lease that is left."""
        if lease.join == mb.LEAVING and not lease.waits.busy:
            for tell in self.all_left:
                tell(lease)

    def clear(self, lease: GuestLease) -> None:
        """The lease has no units any more."""
        for unit in lease.units.values():
            self._kernel.erase(unit)
        lease.units = {}


@attrs.define(eq=False)
class Endings:
    """The ends of a guest's leases."""

    _kernel: Kernel
    _records: Leases
    _operations: GuestOperations
    _returns: Returns
    _membership: Membership
    ended: list[Callable[[GuestLease], None]] = attrs.field(factory=list, init=False)
    """Who is told, in order, of a lease that is over."""

    @command("lease.close")
    def _close(self, arguments: Mapping[str, Any]) -> GuestLeaseDetails:
        return self._records.describe(self.close_early(structure(CloseLeaseEarly, arguments)))

    def close_early(self, request: CloseLeaseEarly) -> GuestLease:
        """End a lease early. Closing one that is over, or closing already, is an error that says so."""
        lease = self._records.find(request.lease)
        if lease.is_over:
            raise CommandError(
                f"lease {lease.id} is {lease.state} already: {words(lease.reason) or 'no reason recorded'}"
            )
        if lease.ending.closing or lease.is_closing:
            raise CommandError(f"lease {lease.id} is being closed already")
        self.close(lease, said(request.reason) if request.reason else Reason(Code.CLOSED_BY_GUEST))
        return lease

    def close(self, lease: GuestLease, reason: Reason | None) -> None:
        """End the lease before its time."""
        if lease.ending.closing:
            return
        before = (lease.state, lease.pending)
        self._kernel.fire(lease, "close", reason)
        lease.ending, lease.reason = lease.ending._replace(closing=True, reason=reason), reason
        self._after_close(lease, before)

    def close_if_open(self, lease: GuestLease | None, reason: Reason | None) -> None:
        """As :meth:`close`, for one of several that end together, which may be over already."""
        if lease is not None and lease.can("close"):
            self.close(lease, reason)

    def expire(self, lease: GuestLease, reason: Reason | None) -> None:
        """The lease's time is up, or nobody answers for it any more."""
        before = (lease.state, lease.pending)
        self._kernel.fire(lease, "expire", reason)
        lease.reason = lease.reason if lease.ending.closing and lease.reason else reason
        self._after_close(lease, before)

    def _after_close(self, lease: GuestLease, before: tuple[str, str]) -> None:
        if lease.is_leaving:
            if lease.ask.number:
                self._operations.end_ask(lease)
            self._give_back_continuations(
                lease
            )  # a ticket that was redeemed already goes back when the site has closed it
            self._operations.end(lease)
            self._membership.move(lease, "leave")
            self._membership.leave(lease, list(lease.units))
            self._membership.check_left(lease)
        elif lease.awaits_last_word and before == (sm.NASCENT, sm.TICKETING):
            self._operations.withdraw(lease)
        elif lease.awaits_last_word:
            self._give_back_continuations(lease)
            self._operations.begin(lease, CLOSE)
        elif lease.is_over:
            if before == sm.REPLACED and lease.ask.number:
                self._operations.forsake(lease)
            self.end_unused(lease)

    def _give_back_continuations(self, lease: GuestLease) -> None:
        self._returns.give_back_all(lease, lease.continuations, lease.site)
        lease.tickets = lease.tickets._replace(continuations=())

    def leave_at_once(self, lease: GuestLease) -> None:
        """Units that have not left in time are not waited for."""
        for unit in lease.units.values():
            unit.action = 0
        lease.waits.busy = 0
        self.all_left(lease)

    def all_left(self, lease: GuestLease) -> None:
        """All units have left: the site is told."""
        if lease.is_leaving:
            self._kernel.fire(lease, "left")
            self._membership.move(lease, "over")
            self._operations.begin(lease, CLOSE)

    def over(self, lease: GuestLease, event: str, reason: Reason | None, receipt: bytes = b"") -> None:
        """The site has said its last word on the lease: ``event`` is ``closed`` or ``lost``."""
        lease.reason = reason
        self._kernel.fire(lease, event, reason)
        held = lease.approved
        # A site that ends a lease by itself gives no receipt: what is left of the claim is the broker's all the same.
        if held is not None and (receipt or held.term.end > self._kernel.now + self._kernel.settings.clock_skew):
            self._returns.give_back(lease, held, lease.site, receipt)
        self.end(lease)

    def end_unused(self, lease: GuestLease) -> None:
        """The lease is over, and its site does not have it: of one that was not redeemed, its claim may go on."""
        if lease.approved is not None:
            self._returns.give_back(lease, lease.approved, lease.site)
        self.end(lease)

    def end(self, lease: GuestLease) -> None:
        """The lease is over: nothing is owed for it any more, and those that waited for it are told."""
        lease.ended = self._kernel.now
        lease.ask, lease.operation = lease.ask._replace(number=0), lease.operation._replace(number=0)
        if lease.renewal is not None:
            self._returns.give_back(lease, lease.renewal, lease.site)
            lease.change = lease.change._replace(renewal=None)
        self._give_back_continuations(lease)
        self._membership.move(lease, "over")
        self._membership.clear(lease)
        self._records.open.pop(lease.id, None)
        self._kernel.owe_no_more(lease, lease.broker)
        self._kernel.owe_no_more(lease, lease.site)
        self._kernel.touch(lease)
        for tell in self.ended:
            tell(lease)


TAKEN_BACK = Reason(Code.EXTEND_TAKEN_BACK)


@attrs.define(eq=False)
class Redeems:
    """What a guest's leases redeem. ``advance`` does what a lease's state allows then."""

    _kernel: Kernel
    _records: Leases
    _operations: GuestOperations
    _returns: Returns
    _advance: Callable[[GuestLease], None]

    # -- going on ----------------------------------------------------------------------------------------------

    def begin(self, lease: GuestLease) -> None:
        """Redeem a lease's first ticket."""
        self._kernel.fire(lease, "redeem")
        self._operations.begin(lease, NEW)

    def in_hand(self, lease: GuestLease) -> bool:
        """An active lease goes on by the tickets in hand, if there are any; whether there are."""
        if not lease.can("in_hand") or not lease.continuations:
            return False
        self._kernel.fire(lease, "in_hand", _span(lease.continuations[:1]))
        return True

    def notice(self, lease: GuestLease) -> None:
        """An active lease that its site ends early is under notice."""
        if lease.ending.at >= 0 and lease.can("notice"):
            self._kernel.fire(lease, "notice", Reason(Code.ENDS_AT, at=lease.ending.at).because(lease.reason))

    def extend(self, lease: GuestLease, asked: Asked, victims: tuple[str, ...], deadline: Instant) -> None:
        """Ask the broker for what is to go on from a lease, and wait for the answer until ``deadline``."""
        lease.asked, lease.change = asked, lease.change._replace(victims=victims)
        self._operations.ask(lease, "extend", deadline)

    def go_on(self, lease: GuestLease) -> None:
        """Ask the site to go on by the first of the tickets in hand."""
        first, *rest = lease.continuations
        lease.change = lease.change._replace(renewal=first)
        lease.tickets = lease.tickets._replace(continuations=tuple(rest))
        self._kernel.fire(lease, "redeem")
        self._operations.begin(lease, EXTEND)

    def confirmed(self, lease: GuestLease, update: LeaseUpdate) -> None:
        """The site goes by what it was asked last."""
        late = Reason(Code.UNDO_LATE) if lease.operation.op == UNDO else None
        noticed = lease.reason if lease.ending.at >= 0 else None
        self._go_over(lease)
        self._operations.end(lease)
        lease.given, lease.reason = Given(update.term, update.contract), update.reason or late or noticed
        self._kernel.fire(lease, "lease", said(f"{counted(len(update.units))} to {mark(update.term.end)}"))

    @staticmethod
    def _go_over(lease: GuestLease) -> None:
        change = lease.change
        if change.renewal is not None:
            lease.tickets = lease.tickets._replace(approved=change.renewal)
        if change.configuration is not None:
            lease.configuration = change.configuration
        lease.change = NO_CHANGE._replace(victims=change.victims if lease.ask.number else ())

    def refused(self, lease: GuestLease, reason: Reason | None) -> None:
        """The site does not do what it was asked."""
        renewal = lease.renewal
        # What was granted to go on from the running term, which a modify has not moved, stands.
        stands = lease.operation.op == MODIFY and (renewal is None or lease.asked.term.end == lease.end)
        self._operations.end(lease)
        lease.change, lease.reason = NO_CHANGE, reason
        self._kernel.fire(lease, "lease_refused", reason)
        if renewal is not None:
            self._returns.give_back(lease, renewal, lease.site)
        if not stands:
            self._returns.give_back_all(lease, lease.continuations, lease.site)
            lease.tickets = lease.tickets._replace(continuations=())
        if lease.takes_extend_back:
            self._operations.withdraw(lease)  # what was to go on from it

    # -- changing ----------------------------------------------------------------------------------------------

    def modify(self, lease: GuestLease, asked: Asked, deadline: Instant) -> None:
        """Ask the broker for a ticket in the place of the one that a lease runs on."""
        lease.asked = asked
        self._operations.ask(lease, "modify", deadline)

    def replace(self, lease: GuestLease, asked: Asked, deadline: Instant) -> None:
        """Ask the broker for a ticket in the place of the one in hand, which is not redeemed yet."""
        lease.asked = asked
        self._operations.ask(lease, "replace", deadline)

    def replace_by(self, lease: GuestLease, tickets: HeldTickets) -> None:
        """That ticket is there: the one before goes back."""
        before, lease.tickets, lease.reason = lease.approved, tickets, None
        filter_ = lease.asked.properties.get("filter")
        if filter_ is not None and "filter" in lease.configuration:
            lease.configuration = {**lease.configuration, "filter": filter_}
        if before is not None:
            self._returns.give_back(lease, before, lease.site)

    def modify_by(self, lease: GuestLease, held: Held, truncation: bytes) -> None:
        """Redeem that ticket."""
        lease.change, lease.reason = lease.change._replace(renewal=held, truncation=truncation), None
        self._operations.begin(lease, MODIFY)

    def reconfigure(self, lease: GuestLease, why: Reason | None) -> None:
        """Have the site give a lease's units another configuration."""
        self._kernel.fire(lease, "modify", why)
        self._operations.begin(lease, MODIFY)

    @staticmethod
    def change(lease: GuestLease, configuration: Properties | None, victims: tuple[str, ...]) -> None:
        """What the modify of a lease that is to come says beside its ticket."""
        lease.change = lease.change._replace(configuration=configuration, victims=victims)

    def take_in_hand(self, lease: GuestLease) -> None:
        """The ticket that the site was asked to go on by, and has accepted, is in hand while a modify comes between."""
        if lease.goes_on and lease.renewal is not None:
            self._kernel.owe_no_more(lease, lease.site)
            promised = lease.renewal._replace(promised=True)
            lease.tickets = lease.tickets._replace(continuations=(promised, *lease.continuations))
            self._operations.end(lease)
            lease.change = lease.change._replace(renewal=None)

    def go_on_from_modify(self, lease: GuestLease) -> bool:
        """A lease must go on although nobody knows what came of a modify; whether it can."""
        if lease.operation.accepted:  # its site goes by it: what comes of it is told in time
            before = lease.approved.digest if lease.approved is not None else b""
            lease.tickets = lease.tickets._replace(before=before)
            self._go_over(lease)
        elif lease.is_promised:
            # The site may have taken the modify. Its ticket ends when the lease goes on.
            if lease.renewal is not None:
                lease.tickets = lease.tickets._replace(before=lease.renewal.digest)
            lease.change = NO_CHANGE
            lease.reason = Reason(Code.NO_MODIFY, lease.site)
            self._kernel.fire(lease, "lease_refused", lease.reason)
        else:
            return False
        self.go_on(lease)
        return True

    def roll_key(self, lease: GuestLease) -> None:
        """Have the site give the slice's key to units that have another one; it is asked once for each key."""
        record = self._records.slices.get(lease.slice)
        key = record.key if record is not None else ""
        if not key or lease.heard.key == key or lease.configuration.get(SLICE_KEY) == key:
            return
        try:
            configuration = with_more(lease.configuration, {SLICE_KEY: key})
        except CommandError as error:
            lease.heard = lease.heard._replace(key=key)
            self._kernel.complain(f"lease {lease.id} does not get the key of slice {lease.slice}: {error}")
            self._kernel.touch(lease)
            return
        if lease.has_ticket:
            lease.configuration = configuration
        elif lease.can("modify") and not lease.ending.closing and lease.end > self._kernel.now:
            lease.heard = lease.heard._replace(key=key)
            self.change(lease, configuration, ())
            self.reconfigure(lease, said("the slice's key"))
        self._kernel.touch(lease)

    # -- taking it back ----------------------------------------------------------------------------------------

    def undo_extend(self, lease: GuestLease) -> None:
        """Take the last extension of a lease back, which has not begun. Raises ``CommandError``."""
        events = sm.TABLE[lease.state, lease.pending]
        closing = lease.ending.closing
        if ("undo" not in events and "let_go" not in events) or closing:
            meanwhile = "undo its extension when that is settled" if lease.following and not closing else ""
            which = f"lease {lease.id} is {joint(lease)}"
            raise CommandError(f"{which}: {meanwhile or 'it has no extension that could be undone now'}")
        if lease.asks_extend:
            self._kernel.fire(lease, "undo", TAKEN_BACK)
            self._operations.withdraw(lease)
        elif lease.asks_further:
            self._kernel.fire(lease, "let_go", TAKEN_BACK)
            lease.change = lease.change._replace(victims=())
            self._operations.forsake(lease)
        else:
            self._take_back(lease, _last_extension(lease))

    def _take_back(self, lease: GuestLease, tickets: tuple[Held, ...]) -> None:
        why = _span(tickets)
        if tickets[0] is lease.renewal:
            self._kernel.fire(lease, "undo", why)
            self._operations.begin(lease, UNDO)
            return
        self._kernel.fire(lease, "undo" if lease.is_idle else "let_go", why)
        lease.tickets = lease.tickets._replace(continuations=lease.continuations[: -len(tickets)])
        self._returns.give_back_all(lease, tickets, lease.site)
        self._advance(lease)

    def undone(self, lease: GuestLease, reason: Reason | None) -> None:
        """The site does not go on by the extension: all of it goes back."""
        if not lease.can("undone"):
            return
        tickets = _last_extension(lease)
        self._operations.end(lease)
        lease.change, lease.reason = lease.change._replace(renewal=None, victims=()), reason
        lease.tickets = lease.tickets._replace(continuations=())
        self._kernel.fire(lease, "undone", _span(tickets))
        self._returns.give_back_all(lease, tickets, lease.site)


def _last_extension(lease: GuestLease) -> tuple[Held, ...]:
    """The tickets that the last extend of a lease brought. Raises ``CommandError`` if there is none, or if it has
    begun.
    """
    following = lease.following
    extends = following[-1].extends if following else 0
    if not extends:
        raise CommandError(f"lease {lease.id} has no extension that could be undone: it was granted as it is")
    if lease.approved is not None and lease.approved.extends == extends:
        raise CommandError(f"the last extension of lease {lease.id} has begun: it can't be undone")
    return tuple(one for one in following if one.extends == extends)


def _span(tickets: tuple[Held, ...]) -> Reason:
    first, last = tickets[0].term, tickets[-1].term
    return said(f"{counted(tickets[0].units)} from {mark(first.start)} to {mark(last.end)}")


SLICE_KEY: Final = "slice.key"
"""The configuration property that holds a slice's login keys."""
READY: Final = "ready"
WAIT: Final = "wait"
LOST: Final = "lost"


@attrs.define(eq=False)
class Predecessors:
    """Whether one of a guest's leases may go on. ``unblock`` is the mapper's upcall, given a lease and its
    predecessor.
    """

    _kernel: Kernel
    _records: Leases
    _endings: Endings
    _unblock: Callable[[GuestLease, GuestLease], Go | Hold]

    def may_join(self, lease: GuestLease) -> bool:
        """Whether units may join; the lease is blocked if they may not yet, and closed if they never will."""
        if not mb.MACHINE.allows((lease.join, NONE), "block_join"):
            return True
        answer = self._look_at(lease, lease.origin.after.join, lambda p: p.join == mb.JOINED)
        if answer == LOST:
            self._endings.close(lease, self._what_became_of(Code.JOIN_PREDECESSOR, lease.origin.after.join))
        elif answer == WAIT:
            Membership.move(lease, "block_join")
        return answer == READY

    def may_redeem(self, lease: GuestLease, *, due: bool) -> bool:
        """The same for its first ticket; the mapper is asked when that is ``due``."""
        answer = self._look_at(lease, lease.origin.after.redeem, lambda p: p.is_running, ask=due)
        if answer == LOST:
            self._endings.expire(lease, self._what_became_of(Code.REDEEM_PREDECESSOR, lease.origin.after.redeem))
            return False
        if answer == WAIT:
            if lease.join != mb.BLOCKED_REDEEM:
                Membership.move(lease, "block_redeem")
                self._kernel.note(lease.id, "blocked_redeem", "", "", said(f"waits for {lease.origin.after.redeem}"))
        else:
            Membership.move(lease, "unblock")
        self._kernel.touch(lease)
        return answer == READY

    def _look_at(self, lease: GuestLease, name: str, done: Callable[[GuestLease], bool], *, ask: bool = True) -> str:
        """:data:`READY`, :data:`WAIT` or :data:`LOST`; with ``ask``, the mapper's upcall comes before ``READY``."""
        if not name:
            return READY
        predecessor = self._records.by_id.get(name)
        if predecessor is None or predecessor.is_over:
            return READY if lease.origin.after.proceed else LOST
        if not done(predecessor) or self._kernel.now < lease.waits.hold_until:
            return WAIT
        if not ask:
            return READY
        answer = self._unblock(lease, predecessor)
        if isinstance(answer, Hold):
            lease.waits.hold_until = max(answer.until, self._kernel.now + 1)
            self._kernel.touch(lease)
            return WAIT
        if answer.configuration:
            self._configure(lease, answer.configuration)
        return READY

    def _configure(self, lease: GuestLease, more: Properties) -> None:
        """Add what the mapper says to what the lease's units are set up with."""
        try:
            configuration = with_more(lease.configuration, more)
            later = lease.change.configuration
            after = None if later is None else with_more(later, more)
        except CommandError as error:
            self._kernel.complain(f"lease {lease.id} does not get what its mapper says: {error}")
            return
        lease.configuration, lease.change = configuration, lease.change._replace(configuration=after)
        self._kernel.touch(lease)

    def _what_became_of(self, code: Code, name: str) -> Reason:
        other = self._records.by_id.get(name)
        return Reason(code, name, "over") if other is None else Reason(code, name, other.state).because(other.reason)


@attrs.define(eq=False)
class Transitions:
    """What follows for a guest's leases."""

    _limits: Limits
    _predecessors: Predecessors
    _redeems: Redeems
    _membership: Membership

    def advance(self, lease: GuestLease) -> None:
        """Do what the lease's state allows now: join, or redeem."""
        if lease.join == mb.BLOCKED_JOIN and not self._limits.is_held_by_mapper(lease):
            self.join(lease)
        if lease.can("in_hand"):
            self._redeems.roll_key(lease)
            if self._redeems.in_hand(lease):
                self.advance(lease)
            else:
                self._redeems.notice(lease)
        elif lease.has_ticket:
            self._redeem_first(lease)
        elif lease.phase == sm.IN_HAND:
            if self._limits.is_past(lease):
                self._redeems.go_on(lease)
            else:
                self._redeems.roll_key(lease)

    def _redeem_first(self, lease: GuestLease) -> None:
        if self._limits.waits_for_others(lease):
            return
        due = self._limits.may_redeem(lease)
        if self._predecessors.may_redeem(lease, due=due) and due:
            self._redeems.roll_key(lease)
            self._redeems.begin(lease)

    def join(self, lease: GuestLease) -> None:
        """Have the units of an active lease join that wait."""
        if not lease.is_running or lease.is_closing:
            return
        if self._predecessors.may_join(lease):
            self._membership.join(lease)
