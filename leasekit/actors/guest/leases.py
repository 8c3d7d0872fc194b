"""A guest's leases and slices: which there are, how operators and mappers name and see them, until when what is asked
for them is of use, and what is asked of brokers and sites; when their mapper is called.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, Final, TypeVar

import attrs

from leasekit.actors.base import FAILED, MapperTurns, check_decision, is_inline, run_turn
from leasekit.actors.guest.returns import Returns
from leasekit.actors.kernel import Kernel, earliest, keeps, query, takes
from leasekit.actors.settings import GuestSettings
from leasekit.core.answers import (
    ContinuationDetails,
    GrantDetails,
    GuestLeaseDetails,
    GuestLeaseSummary,
    GuestRequestDetails,
    GuestUnitDetails,
    ResumedDetails,
    SliceDetails,
    TicketDetails,
)
from leasekit.core.calendars import ActorCalendar, CalendarEntry
from leasekit.core.commands import ListGuestLeases, ListSlices, ShowCalendar, ShowLease, by_number
from leasekit.core.errors import ArgumentError, CommandError
from leasekit.core.leases import membership as mb
from leasekit.core.leases import service_manager as sm
from leasekit.core.leases.machine import NONE
from leasekit.core.leases.plans import Topology
from leasekit.core.leases.records import NO_OPERATION, Ask, GuestLease, Held, Operation, Slice
from leasekit.core.mappers import Go, GuestCycle, GuestMapper, GuestUnitView, Hold, LeaseView, TopologyView, Unblocks
from leasekit.core.properties import Properties, check_properties
from leasekit.core.protocol.messages import (
    EXTEND,
    NEW,
    UNKNOWN,
    Accepted,
    CloseLease,
    Message,
    Redeem,
    RequestTicket,
    Withdraw,
)
from leasekit.core.reasons import Code, view, words
from leasekit.core.schema import Row
from leasekit.core.steps import Turn, TurnDone
from leasekit.core.time import SECOND, Instant, Term

NAME_MAX = 128
T = TypeVar("T")


def structure(kind: Callable[..., T], arguments: Mapping[str, Any], *, term: bool = False) -> T:
    """The decision that a command's arguments say. Raises ``CommandError``."""
    values = dict(arguments)
    if term and isinstance(values.get("term"), (list, tuple)) and len(values["term"]) == 2:
        values["term"] = Term(*values["term"])
    if "victims" in values and (values["victims"] is None or isinstance(values["victims"], list)):
        values["victims"] = tuple(values["victims"] or ())
    try:
        decision = kind(**values)
    except TypeError as error:
        raise CommandError(re.sub(r"\w+\.__new__\(\)", "arguments", str(error))) from error
    check_decision(decision)
    return decision


def check_name(field: str, value: Any) -> None:
    """Raises ``CommandError`` unless a slice or lease can have this name."""
    if not isinstance(value, str) or len(value) > NAME_MAX or "/" in value or not value.isprintable():
        raise ArgumentError(
            f"{field}: found {value!r:.80}, expected up to {NAME_MAX} printable characters without a slash"
        )


def check_units(units: Any) -> None:
    """Raises ``CommandError`` unless so many units can be asked for."""
    if type(units) is not int or not 0 < units < 2**31:
        raise ArgumentError(f"units: found {units!r}, expected a whole number of at least 1")


def with_more(configuration: Properties, more: Properties) -> dict[str, str]:
    """A lease's configuration with ``more``. Raises ``CommandError`` for more than a message can say."""
    try:
        return check_properties({**configuration, **more}, "configuration")
    except ValueError as error:
        raise CommandError(str(error)) from error


def joint(lease: GuestLease) -> str:
    """Its state, and what is pending in it, for an operator."""
    return lease.state if lease.is_idle else f"{lease.state}, {lease.pending}"


@keeps(rows="by_id slices", derived="open named part_of _successors _views")
@attrs.define(eq=False, slots=False)
class Leases:
    """Leases by id, and slices by name. With ``keep_closed`` the row of a lease that is forgotten stays as history."""

    _kernel: Kernel
    _keep_closed: bool
    by_id: dict[str, GuestLease] = attrs.field(factory=dict, init=False)
    open: dict[str, GuestLease] = attrs.field(factory=dict, init=False)
    """Leases that are neither closed nor failed, in order of request."""
    slices: dict[str, Slice] = attrs.field(factory=dict, init=False)
    named: dict[tuple[str, str], str] = attrs.field(factory=dict, init=False)
    """The id of the last lease of a name, by slice and name."""
    part_of: dict[str, Topology] = attrs.field(factory=dict, init=False)
    """The topology of each lease that is a part of one."""
    part_settled: list[Callable[[GuestLease], None]] = attrs.field(factory=list, init=False)
    """Who is told, in order, of a part that has its ticket, or is over."""
    _successors: dict[str, dict[str, GuestLease]] = attrs.field(factory=dict, init=False)
    _views: dict[str, tuple[tuple[Any, ...], LeaseView]] = attrs.field(factory=dict, init=False)
    """What mappers were shown of leases, behind what that was made of."""

    def __attrs_post_init__(self) -> None:
        self._kernel.register(Slice)

    def restore(self, slices: Iterable[Row], leases: Iterable[Row]) -> None:
        """Take up what a store kept: all that is due is due at once."""
        for record in map(Slice.from_row, slices):
            self.slices[record.id] = record
        for row in sorted(leases, key=lambda row: by_number(row[0])):
            lease = GuestLease.from_row(row)
            if copied := self._kernel.copied:
                # What was asked, and heard, after the copy was made is not known.
                lease.number = max(lease.number, copied // SECOND)
                lease.heard = lease.heard._replace(broker=UNKNOWN, site=UNKNOWN)
                self._kernel.touch(lease)
            self.adopt(lease)
            self._kernel.schedule(lease, self._kernel.now)

    def settle_part(self, lease: GuestLease) -> None:
        """A lease has its ticket, or is over: its topology hears of it, if it is a part of one."""
        for tell in self.part_settled if lease.id in self.part_of else ():
            tell(lease)

    def adopt(self, lease: GuestLease) -> None:
        """A new lease, or one that was kept."""
        self.by_id[lease.id] = lease
        if lease.name:
            self.named[lease.slice, lease.name] = lease.id
        for predecessor in _predecessors(lease):
            self._successors.setdefault(predecessor, {})[lease.id] = lease
        if lease.is_open:
            self.open[lease.id] = lease

    def drop(self, lease: GuestLease) -> None:
        """Forget a lease that has been over for long enough; its row stays as history, or goes if none is wanted."""
        del self.by_id[lease.id]
        self._views.pop(lease.id, None)
        for predecessor in _predecessors(lease):
            others = self._successors[predecessor]
            del others[lease.id]
            if not others:
                del self._successors[predecessor]
        if self.named.get((lease.slice, lease.name)) == lease.id:
            del self.named[lease.slice, lease.name]
        for peer in (lease.broker, lease.site):
            self._kernel.owe_no_more(lease, peer)
        self._kernel.erase(lease, keep=self._keep_closed)
        for unit in lease.units.values():
            self._kernel.erase(unit)

    def dependents(self, lease: GuestLease) -> list[GuestLease]:
        """The leases that have ``lease`` as a predecessor."""
        return list(self._successors.get(lease.id, {}).values())

    def of_slice(self, name: str) -> list[GuestLease]:
        """The leases of a slice, those that are over included."""
        return [lease for lease in self.by_id.values() if lease.slice == name]

    def find(self, name: str) -> GuestLease:
        """The lease with this id, or this ``SLICE/NAME``, or this name where only one slice has it.

        A bare name means an open lease before one that is over. Raises ``CommandError``.
        """
        lease = self.by_id.get(name)
        if lease is not None:
            return lease
        if "/" in name:
            slice_, _, short = name.partition("/")
            found = self.named.get((slice_, short))
            matches = [found] if found else []
        else:
            named = [id_ for (_, short), id_ in self.named.items() if short == name]
            matches = [id_ for id_ in named if id_ in self.open] or named
        if len(matches) == 1:
            return self.by_id[matches[0]]
        if matches:
            raise CommandError(f"lease name {name!r} is used in {len(matches)} slices: write SLICE/{name}, or the id")
        raise CommandError(f"no lease {name!r} here; `leasekit lease list` shows those there are", Code.NOT_FOUND)

    # -- views -------------------------------------------------------------------------------------------------

    def view(self, lease: GuestLease, *, snapshot: bool = False) -> LeaseView:
        """The lease as mappers see it, made anew only where it has changed; with ``snapshot`` its members are looked up
        now, else when asked for.
        """
        of = (
            lease.state, lease.pending, lease.join, lease.site, lease.reason, lease.asked, lease.tickets, lease.given,
            lease.change, lease.operation, lease.ending,
        )  # fmt: skip
        made = self._views.get(lease.id)
        if made is None or made[0] != of:
            made = self._views[lease.id] = (of, self._view(lease))
        shown = made[1]
        if not snapshot:
            return shown
        fixed = shown.members()
        return shown._replace(members=lambda: fixed)

    def _view(self, lease: GuestLease) -> LeaseView:
        held = lease.approved
        following = lease.following
        return LeaseView(
            id=lease.id,
            name=lease.name,
            slice=lease.slice,
            type=lease.type,
            site=lease.site,
            state=lease.state,
            pending=lease.pending,
            join=lease.join,
            requested=lease.asked.units,
            units=held.units if held is not None else 0,
            term=lease.granted or (held.term if held is not None else lease.asked.term),
            next_term=Term(following[0].term.start, following[-1].term.end) if following else None,
            next_units=following[0].units if following else 0,
            closing=lease.ending.closing,
            reason=words(lease.reason),
            properties=lease.asked.properties,
            members=partial(_members, lease),
        )

    def describe(self, lease: GuestLease) -> GuestLeaseDetails:
        """The lease, for an operator."""
        held, resumes = lease.approved, lease.origin.resumes
        following = [ContinuationDetails(one.units, one.term, _may_undo(lease, one)) for one in lease.following]
        return GuestLeaseDetails.of(
            lease,
            **view(lease.reason),
            requested=GuestRequestDetails.of(lease.asked),
            approved=held and TicketDetails(held.units, held.term, held.digest.hex()),
            renewal=following[0] if following else None,
            continuations=following[1:],
            granted=lease.granted and GrantDetails(lease.granted, len(lease.units)),
            start=lease.runs.start,
            end=_end(lease),
            last_end=_last_end(lease),
            closing=lease.ending.closing,
            suspends=lease.ending.suspends,
            resource=lease.tickets.resource,
            units=[GuestUnitDetails.of(unit, unit=unit.name, **view(unit.reason)) for unit in lease.units.values()],
            redeem_predecessor=lease.origin.after.redeem,
            join_predecessor=lease.origin.after.join,
            resumes=resumes and ResumedDetails(resumes.lease, resumes.at),
        )

    @query("leases")
    def _query_leases(self, asked: ListGuestLeases) -> list[GuestLeaseSummary]:
        among = self.by_id if asked.all else self.open
        wanted = [(name, value) for name in ("slice", "type", "state", "site") if (value := getattr(asked, name))]
        after = by_number(asked.after)
        found = (
            _summary(lease)
            for lease in among.values()
            if all(getattr(lease, name) == value for name, value in wanted)
            and (not asked.after or by_number(lease.id) > after)
        )
        return list(islice(found, asked.limit or None))

    @query("calendar")
    def _query_calendar(self, asked: ShowCalendar) -> ActorCalendar:
        window, revision = asked.term, self._kernel.revision
        if asked.known == revision:
            return ActorCalendar(revision)
        return ActorCalendar(
            revision,
            [
                CalendarEntry(
                    lease.id, "", lease.site, lease.type, lease.state,
                    len(lease.units) or lease.latest.units, lease.runs.start, _end(lease), lease.name,
                )
                for lease in (self.by_id.values() if asked.entries else ())
                if lease.runs.start < window.end and _end(lease) > window.start
                and asked.type in ("", lease.type) and asked.site in ("", lease.site)
            ],
        )  # fmt: skip

    @query("lease")
    def _query_lease(self, asked: ShowLease) -> GuestLeaseDetails:
        return self.describe(self.find(asked.lease))

    @query("slices")
    def _query_slices(self, asked: ListSlices) -> list[SliceDetails]:
        among = self.slices.values() if not asked.slice else filter(None, [self.slices.get(asked.slice)])
        of = defaultdict[str, list[GuestLease]](list)
        for lease in self.of_slice(asked.slice) if asked.slice else self.by_id.values():
            of[lease.slice].append(lease)
        rows = []
        for record in among:
            members = of[record.id]
            going = [lease for lease in members if lease.is_open]
            units = sum(len(lease.units) for lease in going)
            refused = words(record.refused) or None
            rows.append(
                SliceDetails.of(
                    record, slice=record.id, refused=refused, leases=len(members), open=len(going), units=units
                )
            )
        return rows


def _members(lease: GuestLease) -> Sequence[GuestUnitView]:
    return [GuestUnitView(one.name, one.state, one.properties, words(one.reason)) for one in lease.units.values()]


def _may_undo(lease: GuestLease, held: Held) -> bool:
    """Whether a ticket goes back when the last extension of its lease is undone."""
    running = lease.approved.extends if lease.approved is not None else 0
    return lease.following[-1].extends == held.extends not in (0, running)


def _end(lease: GuestLease) -> Instant:
    """When it ends, or did."""
    end = lease.end if lease.ending.at < 0 else min(lease.end, lease.ending.at)
    return end if lease.ended < 0 else min(end, lease.ended)


def _last_end(lease: GuestLease) -> Instant:
    """When it ends after all that it was extended by, or did."""
    return lease.last_end if lease.following and max(lease.ended, lease.ending.at) < 0 else _end(lease)


def _summary(lease: GuestLease) -> GuestLeaseSummary:
    units, ends = len(lease.units) or lease.latest.units, {"end": _end(lease), "last_end": _last_end(lease)}
    return GuestLeaseSummary.of(lease, units=units, start=lease.runs.start, **ends, **view(lease.reason))


def _predecessors(lease: GuestLease) -> set[str]:
    return {lease.origin.after.redeem, lease.origin.after.join} - {""}


@attrs.define(eq=False, slots=False)
class Limits:
    """The instants of a guest's leases. ``is_undecided`` tells parts of topologies, and ``is_giving_back`` leases, that
    must not be redeemed yet.
    """

    _kernel: Kernel
    _settings: GuestSettings
    _records: Leases
    _is_undecided: Callable[[GuestLease], bool]
    _is_giving_back: Callable[[GuestLease], bool]

    def of(self, lease: GuestLease) -> Instant | None:
        """When the lease's state itself makes something happen, if no message does."""
        if lease.state == sm.ACTIVE and lease.pending == NONE:  # by far the most common
            return self._leaves_at(lease, lease.end)
        match lease.phase:
            case sm.FIRST_TICKET | sm.FIRST_CHANGE:
                return lease.ask.deadline
            case sm.LAST_WORD:
                return self._last_end(lease) + self._settings.close_timeout
            case sm.FIRST_LEASE:
                return lease.end + self._settings.clock_skew
            case sm.FIRST_REDEEM:
                goes_on = max(self.redeem_at(lease), lease.waits.hold_until)
                return lease.end if self._is_held(lease) else min(goes_on, lease.end)
            case sm.GOES_ON:
                assert lease.renewal is not None
                goes_on = lease.is_promised and not self.leaving_victims(lease)
                return self._leaves_at(lease, lease.renewal.term.end if goes_on else lease.end)
            case sm.TAKES_BACK:
                assert lease.renewal is not None
                # A site that only accepts it goes on by the extension already, and says so when its units are up.
                return self._leaves_at(lease, lease.renewal.term.end if lease.operation.accepted else lease.end)
            case sm.CHANGES_IN_HAND if lease.operation.number:
                leaves = self._leaves_at(lease, lease.end)
                changed = max(self.redeem_by(lease), self._changed_by(lease))
                return min(changed, leaves) if lease.operation.accepted else leaves
            case _ if lease.has_next_ticket and lease.ending.at >= 0 and not lease.is_promised:
                return 0  # its site will refuse the renewal: the sooner, the sooner its units can leave
            case sm.IN_HAND if lease.is_promised:
                return 0  # a modify that came between is settled
            case _ if lease.has_next_ticket:
                return self.redeem_by(lease)
            case sm.CHANGES if lease.operation.accepted and lease.renewal is not None:
                return self._leaves_at(lease, lease.renewal.term.end)
            case sm.LEAVES:
                # The site goes on to the end of an extend that it has accepted, heard of or not.
                return self._last_end(lease) if lease.operation.accepted else lease.end
            case sm.RUNS | sm.CHANGES:
                return self._leaves_at(lease, lease.end)
        return None

    def redeem_by(self, lease: GuestLease) -> Instant:
        """When a lease with tickets in hand must ask its site to go on, milliseconds: at its end, if that was asked
        before, and accepted.
        """
        if lease.is_promised:
            return self._leaves_at(lease, lease.end)
        return lease.end - max(self._settings.extend_lead, self._settings.leave_time)

    def leaves_before(self, end: Instant) -> Instant:
        """When units must begin to leave, for a lease that ends at ``end``, milliseconds."""
        return end - self._settings.leave_time

    def _changed_by(self, lease: GuestLease) -> Instant:
        """From when on a modify that the site has accepted is in force there, whose clock may be behind."""
        start = lease.renewal.term.start if lease.renewal is not None else lease.operation.since
        return start + self._settings.clock_skew

    def _leaves_at(self, lease: GuestLease, end: Instant) -> Instant:
        """When units are to leave a lease that ends at ``end``, if its site does not end it before."""
        return (end if lease.ending.at < 0 else min(end, lease.ending.at)) - self._settings.leave_time

    @staticmethod
    def _last_end(lease: GuestLease) -> Instant:
        """When the lease ends at the latest, whatever the site has done with the renewal."""
        return lease.renewal.term.end if lease.renewal is not None else lease.end

    def is_past(self, lease: GuestLease) -> bool:
        """Whether its time has come."""
        limit = self.of(lease)
        return limit is not None and limit <= self._kernel.now

    def is_over(self, lease: GuestLease) -> bool:
        """Whether its term has ended."""
        return lease.end <= self._kernel.now

    def may_redeem(self, lease: GuestLease) -> bool:
        """Whether the time has come to redeem its first ticket."""
        return self.redeem_at(lease) <= self._kernel.now

    def redeem_at(self, lease: GuestLease) -> Instant:
        """When its first ticket is to be redeemed, milliseconds."""
        assert lease.approved is not None
        return lease.approved.term.start - self._settings.redeem_lead

    def waits_for_others(self, lease: GuestLease) -> bool:
        """Whether it must not be redeemed before the others of its slice or topology have their tickets."""
        record, is_part = self._records.slices.get(lease.slice), lease.id in self._records.part_of
        if (record is not None and not record.released) or (is_part and self._is_undecided(lease)):
            return True
        return self._is_giving_back(lease)

    def is_held_by_mapper(self, lease: GuestLease) -> bool:
        """Whether the mapper wants it to wait longer than for its predecessor."""
        return lease.waits.hold_until > self._kernel.now

    def _is_held(self, lease: GuestLease) -> bool:
        blocked = lease.join == mb.BLOCKED_REDEEM and not self.is_held_by_mapper(lease)
        return blocked or self.waits_for_others(lease)

    def leaving_victims(self, lease: GuestLease) -> list[str]:
        """Those that are to leave before an extend, and have not been told: no more than there are units too many. Its
        site spares the others, if the lease has lost units since they were named.
        """
        wanted = lease.renewal.units if lease.renewal is not None else 0
        going = [name for name in lease.leaving if name in lease.units][: max(0, len(lease.units) - wanted)]
        return [name for name in going if not lease.units[name].is_going]


CLOSE: Final = "close"
"""The operation that is no redeem."""


@attrs.define(eq=False)
class GuestOperations:
    """The requests and operations of a guest's leases. ``returns`` words what a close gives up."""

    _kernel: Kernel
    _records: Leases
    _returns: Returns

    # -- at the broker -----------------------------------------------------------------------------------------

    def ask(self, lease: GuestLease, event: str, deadline: Instant) -> None:
        """Have the broker asked for ``lease.asked``; ``event`` is ``ask``, ``extend`` or ``modify``."""
        self._kernel.fire(lease, event)
        lease.number += 1
        lease.ask, lease.waits.ask_tries = Ask(lease.number, deadline), 0
        self._send_ask(lease)

    def withdraw(self, lease: GuestLease) -> None:
        """Take back what the broker was asked: it is told until it says what became of the request."""
        lease.number += 1
        lease.waits.ask_tries = 0
        self._send_ask(lease)

    def forsake(self, lease: GuestLease) -> None:
        """The broker is told once that its answer is not wanted: if a ticket comes all the same, it goes back."""
        lease.number += 1
        self._kernel.send(lease.broker, Withdraw(lease.id, lease.number, lease.ask.number))
        self.end_ask(lease)
        self._kernel.touch(lease)

    def end_ask(self, lease: GuestLease) -> None:
        """The broker's answer is there, or not waited for any more."""
        lease.ask = lease.ask._replace(number=0)
        self._kernel.owe_no_more(lease, lease.broker)

    def _send_ask(self, lease: GuestLease) -> None:
        asked = lease.asked
        message: Message
        accepted = lease.ask.accepted
        if lease.takes_extend_back or lease.is_withdrawn:
            accepted = False  # the request was, taking it back was not
            message = Withdraw(lease.id, lease.number, lease.ask.number)
        else:
            held = lease.following[-1] if asked.op == EXTEND and lease.following else lease.approved
            claim = held.digest if asked.op != NEW and held is not None else b""
            message = RequestTicket(
                lease.id, lease.ask.number, asked.op, lease.slice, lease.type, asked.units, asked.term, asked.site,
                asked.properties, claim,
            )  # fmt: skip
        self._kernel.send(lease.broker, message)
        waits = lease.waits
        waits.ask_at = self._kernel.again_at(waits.ask_tries, accepted=accepted)
        waits.ask_tries += 1
        self._kernel.owe(lease, lease.broker)
        self._kernel.touch(lease)

    # -- at the site -------------------------------------------------------------------------------------------

    def begin(self, lease: GuestLease, op: str) -> None:
        """Have the site do ``op``: a redeem's kind, or :data:`CLOSE`."""
        lease.number += 1
        next_ = lease.change.configuration
        configuration = lease.configuration if next_ is None else next_
        lease.operation = Operation(op, lease.number, configuration, self._kernel.now)
        lease.waits.op_tries = 0
        self._send_op(lease)

    @staticmethod
    def end(lease: GuestLease) -> None:
        """The site's answer is there, or not waited for any more."""
        lease.operation = NO_OPERATION._replace(accepted=lease.operation.accepted)

    def _send_op(self, lease: GuestLease) -> None:
        self._kernel.send(lease.site, self._op_message(lease))
        waits = lease.waits
        waits.op_at = self._kernel.again_at(waits.op_tries, accepted=lease.operation.accepted)
        waits.op_tries += 1
        self._kernel.owe(lease, lease.site)
        self._kernel.touch(lease)

    def _op_message(self, lease: GuestLease) -> Message:
        op, number, configuration = lease.operation[:3]
        if op == CLOSE:
            save = lease.ending.suspends and not lease.ending.reason
            return CloseLease(lease.id, number, self._returns.relinquish_rest(lease), save)
        held = lease.approved if op == NEW else lease.renewal
        return Redeem(
            lease.id, number, op, lease.slice, held.ticket if held is not None else b"", lease.tickets.resource,
            configuration, lease.leaving, lease.change.truncation,
        )  # fmt: skip

    # -- until they are answered -------------------------------------------------------------------------------

    @takes(Accepted)
    def _on_accepted(self, peer: str, message: Accepted) -> None:
        """A server has a request, and will answer it in time."""
        if self._returns.accepted(peer, message):
            return
        self._kernel.resend_next(peer)
        lease, later = self._records.by_id.get(message.lease), self._kernel.again_at(0, accepted=True)
        if lease is None:
            return
        if message.number == lease.ask.number and peer == lease.broker and not lease.ask.accepted:
            # Nothing to write down: after a restart the request is sent again, and accepted again.
            lease.ask, lease.waits.ask_at, lease.waits.ask_tries = lease.ask._replace(accepted=True), later, 1
            self._kernel.schedule(lease, self._kernel.due_at(lease))
        elif message.number == lease.operation.number and peer == lease.site and not lease.operation.accepted:
            lease.operation, lease.waits.op_at = lease.operation._replace(accepted=True), later
            lease.waits.op_tries = 1
            if lease.operation.op == NEW:
                self._kernel.schedule(lease, self._kernel.due_at(lease))  # as above
            else:
                self._kernel.touch(lease)

    @staticmethod
    def due_at(lease: GuestLease) -> Instant | None:
        """When something of the lease is to be sent again."""
        waits = lease.waits
        return earliest(waits.ask_at if lease.ask.number else None, waits.op_at if lease.operation.number else None)

    def due(self, lease: GuestLease) -> None:
        """Send again what is due."""
        if lease.ask.number and lease.waits.ask_at <= self._kernel.now < lease.ask.deadline:
            self._send_ask(lease)
        if lease.operation.number and lease.waits.op_at <= self._kernel.now:
            self._send_op(lease)

    @staticmethod
    def awaits(lease: GuestLease, peer: str) -> bool:
        """Whether something that was sent to ``peer`` is not answered."""
        return bool((lease.ask.number and lease.broker == peer) or (lease.operation.number and lease.site == peer))

    def send_now(self, lease: GuestLease, peer: str) -> None:
        """A connection to ``peer`` has come up: what is not answered is sent again at once."""
        if lease.ask.number and lease.broker == peer:
            lease.waits.ask_tries = 0
            self._send_ask(lease)
        if lease.operation.number and lease.site == peer:
            lease.waits.op_tries = 0
            self._send_op(lease)


@attrs.define(eq=False)
class GuestTurns:
    """The mapper is called when it wants to be, and before a blocked lease goes on."""

    _kernel: Kernel
    _turns: MapperTurns
    _records: Leases
    _topologies: Callable[[], Iterable[TopologyView]]
    mapper: GuestMapper

    def at(self) -> Instant | None:
        """See :class:`Turning`."""
        return None if self._turns.running else self._turns.wake

    def turn(self) -> Turn | None:
        """See :class:`Turning`."""
        wake = self._turns.wake
        if wake is None or wake > self._kernel.now or self._turns.running:
            return None
        self._turns.answer_wake()
        snapshot = not is_inline(self.mapper)
        views = [self._records.view(lease, snapshot=snapshot) for lease in self._records.open.values()]
        cycle = GuestCycle(self._kernel.now, views, list(self._topologies()))
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
