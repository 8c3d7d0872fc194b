"""What a guest asks for, by its operator's commands and its mapper's decisions, which take the same way: new leases,
extends, modifies, what a broker would answer, what holds for a slice, and the rest of what was suspended.

A lease may ask that its holder be heard of: one that falls silent for too long is closed, so that nobody's dead job
keeps units. Holders speak through a gateway. Silence counts only while a gateway says that it is there: after an outage
of the gateway, or of this actor, it counts anew, so that no outage of theirs ends a job that lives.

A request is checked before anything happens; one that can't be carried out changes nothing and says why.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Final

import attrs

from leasekit.actors.guest.answers import Tickets
from leasekit.actors.guest.leases import (
    NAME_MAX,
    GuestOperations,
    Leases,
    Limits,
    check_name,
    check_units,
    joint,
    structure,
    with_more,
)
from leasekit.actors.guest.lifecycle import Endings, Redeems, Transitions
from leasekit.actors.kernel import Kernel, command, deferred, keeps, takes
from leasekit.actors.peering import Calls, Keyring
from leasekit.actors.settings import GuestSettings
from leasekit.core.answers import (
    ClosedSlice,
    CreatedSlice,
    DryRunDetails,
    GuestLeaseDetails,
    HandedLease,
    KeptAlive,
    NotedSlice,
    Present,
    SliceKeySet,
    describe_counts,
    plain,
)
from leasekit.core.claims.claim import begin_of, decode_ticket, saving_of
from leasekit.core.commands import (
    CloseSlice,
    CreateSlice,
    HandLease,
    KeepAlive,
    NoteSlice,
    SayPresent,
    SetSliceKey,
    UndoExtend,
)
from leasekit.core.errors import ArgumentError, CommandError
from leasekit.core.filters import FilterError, parse_filter
from leasekit.core.leases import membership as mb
from leasekit.core.leases.plans import HOLD
from leasekit.core.leases.records import After, Asked, GuestLease, Origin, Resumed, Slice
from leasekit.core.leases.saved import RESUMES
from leasekit.core.mappers import ExtendLease, ModifyLease, RequestLease
from leasekit.core.properties import EMPTY, Properties, check_properties, counts, first_of, minus
from leasekit.core.protocol.messages import EXTEND, MODIFY, NEW, REPLACE, DryRun, DryRunAnswer
from leasekit.core.reasons import Code, Reason, mark, said, view, words
from leasekit.core.requests import KEEP, REQUEUE, TRUE, Options, keepalive_of, kept_words, parse_options, with_term
from leasekit.core.schema import Row
from leasekit.core.steps import Command, Reply
from leasekit.core.time import INSTANT_MAX, SECOND, Duration, Instant, Term, format_duration

FILTER: Final = "filter"
APART_LEAST: Final[Duration] = SECOND
"""A gateway that is silent for no longer than that is there."""


class LeaseRequests:
    """A guest's requests for leases."""

    def __init__(
        self, kernel: Kernel, keyring: Keyring, settings: GuestSettings, records: Leases, operations: GuestOperations
    ) -> None:
        self._kernel = kernel
        self._keyring = keyring
        self._settings = settings
        self._records = records
        self._operations = operations
        self.begun: list[Callable[[GuestLease], None]] = []
        """Who hears of each lease that is asked for."""
        self.timeout = settings.request_timeout
        """How long an answer to a request that can't be deferred is waited for."""

    @command("lease.request")
    def _request(self, arguments: Mapping[str, Any]) -> GuestLeaseDetails:
        timed = with_term(arguments, self._kernel.now)
        return self._records.describe(self.request(structure(RequestLease, timed, term=True)))

    def request(self, request: RequestLease) -> GuestLease:
        """Ask for a new lease. Raises ``CommandError`` that names the field."""
        self.check(request)
        options = parse_options(request.properties, request.term)
        _check_filter(options.filter)
        keepalive_of(request.properties)
        slice_ = request.slice or "default"
        if request.name and (slice_, request.name) in self._records.named:
            other = self._records.by_id[self._records.named[slice_, request.name]]
            if not other.is_over:
                raise CommandError(
                    f"name: slice {slice_!r} has a lease {request.name!r} already ({other.id}, {other.state})"
                )
        return self.begin(request, self._wait_until(options, request.term))

    def begin(self, request: RequestLease, deadline: Instant) -> GuestLease:
        """Ask for a lease that was checked, and wait for the answer until ``deadline``."""
        slice_ = request.slice or "default"
        broker = self.broker(request.broker)
        after = After(
            self._known_lease("redeem_predecessor", request.redeem_predecessor, slice_),
            self._known_lease("join_predecessor", request.join_predecessor, slice_),
            request.if_predecessor_fails == "proceed",
        )
        if slice_ not in self._records.slices:
            self._records.slices[slice_] = Slice(slice_)
            self._kernel.touch(self._records.slices[slice_])
        lease = GuestLease(
            id=f"{self._keyring.tag}-{self._kernel.next('lease')}",
            name=request.name,
            slice=slice_,
            type=request.type,
            broker=broker,
            asked=Asked(NEW, request.units, request.term, request.site, _with_filter(request)),
            configuration=dict(request.configuration),
            origin=Origin(after),
        )
        if "suspend" in request.properties or request.properties.get("on_preempt") == REQUEUE:
            lease.origin = Origin(after, lease.asked)
        self._records.adopt(lease)
        self._operations.ask(lease, "ask", deadline)
        for tell in self.begun:
            tell(lease)
        return lease

    def free_name(self, slice_: str, name: str) -> str:
        """This name, or one like it that no open lease of the slice has."""
        taken, number, named = name, 1, self._records.named
        while (slice_, taken) in named and named[slice_, taken] in self._records.open:
            number += 1
            taken = f"{name}-{number}"
        return taken

    def ask_for_rest(self, lease: GuestLease) -> None:
        """Ask for what is left of a lease that was suspended, or for all of one that was ended for others and is to be
        requeued, if its guest still wants it.
        """
        held, asked, now = lease.approved, lease.origin.asked, self._kernel.now
        if held is None or asked is None or lease.ending.reason or lease.ending.closing or HOLD in asked.properties:
            return
        if not lease.ending.suspends and not _requeues(lease, asked):
            return
        begin = begin_of(decode_ticket(held.ticket).leaf)
        stopped = max(begin, min(now, lease.ending.at if lease.ending.at >= 0 else now))
        done = stopped - begin if lease.ending.suspends else 0
        left = _whole_end(lease, begin + asked.term.length) - begin - done
        if left <= 0:
            return
        try:
            request = RequestLease(
                lease.type, held.units, Term(now, now + left), lease.slice, lease.name, lease.broker,
                lease.site if lease.ending.suspends else asked.site, self._rest_properties(lease, asked, done),
                with_more(lease.configuration, {RESUMES: lease.id} if lease.ending.suspends else {}),
            )  # fmt: skip
            rest = self.request(request)
        except CommandError as error:
            self._kernel.complain(f"what is left of lease {lease.id} can't be asked for: {error}")
            return
        if lease.ending.suspends:
            rest.origin = rest.origin._replace(resumes=Resumed(lease.id, stopped))
        self._kernel.note(lease.id, "rest", "", "", said(f"{rest.id} asks for the {left} ms that are left"))
        self._kernel.touch(rest)

    def _rest_properties(self, before: GuestLease, asked: Asked, done: Duration) -> Properties:
        """The window of one that was suspended, if it had one, moves on by the time that it has run: it is to be done
        when it was to be done. One that is requeued waits for as long as its broker lets it.
        """
        kept = {name: value for name, value in asked.properties.items() if name not in ONCE}
        latest = parse_options(asked.properties, asked.term).latest_start
        if latest and before.ending.suspends:
            kept["latest_start"] = str(max(self._kernel.now, latest + done))
        if "suspend" in kept and before.ending.suspends:
            kept["prepare"] = kept["suspend"]
        return {**kept, "deferrable": TRUE, "resumes": before.id}

    def _wait_until(self, options: Options, term: Term) -> Instant:
        """When the broker's answer comes too late: a little after the broker itself gives up, so that its reason is
        heard.
        """
        now, settings = self._kernel.now, self._settings
        if options.deferrable:
            last = options.latest_start or now + settings.defer_max
        else:
            last = min(now + settings.request_timeout, term.end)
        if options.request_timeout:
            last = min(last, now + options.request_timeout)
        return max(last, now) + settings.clock_skew + 2 * settings.retry_first

    def check(self, request: RequestLease) -> None:
        """Raises ``CommandError`` for what :func:`check_decision`, which every request has passed, does not know."""
        check_name("slice", request.slice)
        check_name("name", request.name)
        if not request.type or len(request.type) > NAME_MAX:
            raise ArgumentError(f"type: found {request.type!r}, expected the name of a resource type")
        check_units(request.units)
        if request.term.end <= self._kernel.now:
            raise ArgumentError(
                f"term: it ends at {mark(request.term.end)}, which is past: it is {mark(self._kernel.now)} here"
            )
        if request.if_predecessor_fails not in ("fail", "proceed"):
            raise ArgumentError(
                f"if_predecessor_fails: found {request.if_predecessor_fails!r}, allowed are 'fail' and 'proceed'"
            )
        if request.site and getattr(self._keyring.peers.get(request.site), "role", "") != "authority":
            known = sorted(peer.name for peer in self._keyring.peers.values() if peer.role == "authority")
            raise ArgumentError(f"site: found {request.site!r}, known sites are {', '.join(known) or '(none)'}")

    def broker(self, name: str) -> str:
        """The broker of this name, or the one to ask if it is empty. Raises ``CommandError``."""
        known = [peer.name for peer in self._keyring.peers.values() if peer.role == "broker"]
        name = name or self._settings.default_broker or (known[0] if known else "")
        if name not in known:
            raise ArgumentError(f"broker: found {name!r}, known brokers are {', '.join(sorted(known)) or '(none)'}")
        return name

    def _known_lease(self, field: str, name: str, slice_: str) -> str:
        """The id of a predecessor. It must be there already, so that there can't be a cycle (paper section 3.5)."""
        if not name:
            return ""
        known = self._records.named.get((slice_, name), name)
        if known not in self._records.by_id:
            raise ArgumentError(f"{field}: found {name!r}, expected a lease that was requested before this one")
        return known


@attrs.define(eq=False)
class LeaseChanges:
    """What becomes of leases that a guest has."""

    _kernel: Kernel
    _records: Leases
    _tickets: Tickets
    _limits: Limits
    _redeems: Redeems

    @command("lease.extend")
    def _extend(self, arguments: Mapping[str, Any]) -> GuestLeaseDetails:
        return self._records.describe(self.extend(structure(ExtendLease, self.with_end(arguments))))

    @command("lease.modify")
    def _modify(self, arguments: Mapping[str, Any]) -> GuestLeaseDetails:
        return self._records.describe(self.modify(structure(ModifyLease, arguments)))

    @command("lease.undo_extend")
    def _undo(self, asked: UndoExtend) -> GuestLeaseDetails:
        lease = self._records.find(asked.lease)
        self._redeems.undo_extend(lease)
        return self._records.describe(lease)

    def with_end(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """The arguments of ``lease.extend`` with an ``end``: where they say a ``length``, so much later than the end of
        the lease, or of what is to follow. Raises ``CommandError``.
        """
        length = arguments.get("length")
        if length is None or arguments.get("end") is not None:
            return arguments
        if type(length) is not int or not 0 < length <= INSTANT_MAX:
            raise ArgumentError(f"length: found {length!r:.80}, expected milliseconds, 1 at least")
        lease = self._records.find(str(arguments.get("lease", "")))
        rest = {name: value for name, value in arguments.items() if name != "length"}
        return {**rest, "end": lease.last_end + length}

    def extend(self, request: ExtendLease) -> GuestLease:
        """Renew a lease, growing or shrinking it. Raises ``CommandError``."""
        lease, asked, give_up = self.extension(request)
        self._redeems.extend(lease, asked, request.victims, give_up)
        return lease

    def extension(self, request: ExtendLease) -> tuple[GuestLease, Asked, Instant]:
        """The lease, what its broker is asked, and when the answer comes too late. Raises ``CommandError``."""
        lease = self._records.find(request.lease)
        self._must_allow(lease, "extend")
        units = _new_units(lease, request.units, request.victims, further=True)
        end = lease.last_end
        if request.end <= end:
            raise ArgumentError(f"end: found {mark(request.end)}, it must be later than the lease's end, {mark(end)}")
        give_up = self._limits.leaves_before(end)
        if give_up <= self._kernel.now:
            raise CommandError(f"lease {lease.id} ends at {mark(end)}: too late to extend it")
        self._tickets.check_returned(lease)
        properties = {**request.properties, **_kept(lease, units, request.victims)}
        return lease, Asked(EXTEND, units, Term(end, request.end), lease.site, properties), give_up

    def modify(self, request: ModifyLease) -> GuestLease:
        """Change a lease in mid-term: by a replacement ticket if units or end change, at the site alone otherwise. What
        was granted to go on from its term stands. One that was not redeemed gets another ticket, over any term. Raises
        ``CommandError``.
        """
        lease, asked = self.modification(request)
        configuration = None if request.configuration is None else with_more(lease.configuration, request.configuration)
        if lease.has_ticket:
            lease.configuration = lease.configuration if configuration is None else configuration
            self._kernel.touch(lease)
            if asked is not None:
                self._redeems.replace(lease, asked, self._limits.redeem_at(lease))
            return lease
        self._redeems.take_in_hand(lease)
        self._redeems.change(lease, configuration, request.victims)
        if asked is None:
            self._redeems.reconfigure(lease, said("configuration"))
        else:
            limits = self._limits
            self._redeems.modify(
                lease, asked, limits.redeem_by(lease) if lease.continuations else limits.leaves_before(lease.end)
            )
        return lease

    def modification(self, request: ModifyLease) -> tuple[GuestLease, Asked | None]:
        """The lease, and what its broker is asked, if anything. Raises ``CommandError``."""
        lease = self._records.find(request.lease)
        if lease.has_ticket:
            return lease, self._replacement(lease, request)
        self._must_allow(lease, "modify")
        self._must_have_time(lease)
        for name in ("start", "filter"):
            if getattr(request, name) is not None:
                raise CommandError(f"{name}: lease {lease.id} is {joint(lease)}, it changes before a lease begins only")
        held, now = lease.approved, self._kernel.now
        assert held is not None, "an active lease has a ticket"
        units = _new_units(lease, request.units, request.victims)
        end = request.end if request.end is not None else lease.end
        if end <= now:
            raise ArgumentError(f"end: found {mark(end)}, it is {mark(now)} here: close the lease instead")
        start = max(now, held.term.start)
        if end <= start:
            raise ArgumentError(
                f"end: found {mark(end)}, it must be later than the start of the lease's term, {mark(start)}"
            )
        if end != lease.end and lease.following:
            raise CommandError(
                f"end: lease {lease.id} goes on from {mark(lease.end)} to {mark(lease.following[-1].term.end)}, "
                f"so its end can't be modified; "
                f"`leasekit lease extend {lease.name or lease.id} --undo` takes an extension back first",
                Code.GOES_ON,
            )
        if end != lease.end:
            self._tickets.check_returned(lease)
        if request.configuration is None and units == held.units and end == lease.end:
            raise CommandError("nothing to modify: give configuration, units or end")
        if units == held.units and end == lease.end:
            return lease, None
        return lease, Asked(MODIFY, units, Term(start, end), lease.site, _kept(lease, units, request.victims))

    def _replacement(self, lease: GuestLease, request: ModifyLease) -> Asked | None:
        """What a broker is asked for a lease that was not redeemed yet, if anything. Raises ``CommandError``."""
        held, now, before = lease.approved, self._kernel.now, lease.asked.properties
        assert held is not None, "it has a ticket"
        begin = begin_of(decode_ticket(held.ticket).leaf)
        if request.victims:
            raise CommandError(f"victims: lease {lease.id} has no units yet")
        units = held.units if request.units is None else request.units
        check_units(units)
        _check_filter(request.filter or "")
        start = begin if request.start is None else request.start
        end = request.end if request.end is not None else held.term.end + start - begin
        text = before.get(FILTER, "") if request.filter is None else request.filter
        if (units, start, end, text) == (held.units, begin, held.term.end, before.get(FILTER, "")):
            if request.configuration is None:
                raise CommandError("nothing to modify: give configuration, units, start, end or filter")
            return None
        if lease.continuations:
            raise CommandError(f"lease {lease.id} goes on over several tickets: it can be modified when it has begun")
        if not now < start < end:
            raise ArgumentError(f"term: found {mark(start)} to {mark(end)}, it must begin later than {mark(now)}")
        if self._limits.redeem_at(lease) <= now:
            raise CommandError(f"lease {lease.id} is about to begin, at {mark(begin)}: modify it when it has")
        properties = {name: value for name, value in before.items() if name not in (*AT_FIRST, FILTER)}
        return Asked(REPLACE, units, Term(start, end), lease.site, {**properties, **({FILTER: text} if text else {})})

    @staticmethod
    def _must_allow(lease: GuestLease, event: str) -> None:
        if lease.can(event) and not lease.ending.closing:
            return
        if lease.is_noticed:
            why = words(lease.reason) or "no reason given"
            raise CommandError(f"lease {lease.id} ends early, at {mark(lease.ending.at)}: {why}")
        raise CommandError(f"lease {lease.id} is {joint(lease)}: only an active lease with nothing pending can {event}")

    def _must_have_time(self, lease: GuestLease) -> None:
        """A modify may come between a lease and its extension only if it can be settled before."""
        if not lease.goes_on:
            return
        which = f"lease {lease.id} is about to go on by its extension, at {mark(lease.end)}"
        if not lease.is_promised:
            raise CommandError(f"{which}, which site {lease.site} has yet to confirm: modify it when that has come")
        settings = self._kernel.settings
        least = settings.clock_skew + settings.retry_first
        if self._limits.redeem_by(lease) - self._kernel.now < least:
            raise CommandError(
                f"{which}: too late to modify it before, which may take {least / SECOND:g} s; modify it from then on"
            )


def _new_units(lease: GuestLease, units: int | None, victims: tuple[str, ...], *, further: bool = False) -> int:
    """How many units are wanted; ``continuations``: from the end of the tickets in hand on. Raises ``CommandError``."""
    assert lease.approved is not None, "an active lease has a ticket"
    later = lease.following[-1] if further and lease.following else None
    held = (later or lease.approved).units
    have = len(lease.units) if later is None else later.units
    if units is None:
        units = held - len(victims) if victims else held
    check_units(units)
    unknown = [name for name in victims if name not in lease.units]
    if unknown:
        raise CommandError(f"victims: {unknown[0]!r} is no unit of lease {lease.id}; it has {', '.join(lease.units)}")
    if len(set(victims)) != len(victims) or len(victims) > max(0, have - units):
        raise CommandError(
            f"victims: {len(victims)} units are named, going from {have} to {units} units gives up "
            f"{max(0, have - units)}, each named once"
        )
    return units


def _kept(lease: GuestLease, units: int, victims: tuple[str, ...]) -> dict[str, str]:
    """What a request says of the classes of the units that are left when ``victims`` are given up."""
    last = lease.following[-1] if lease.following else lease.approved
    assert last is not None, "an active lease has a ticket"
    has = decode_ticket(last.ticket).leaf.classes
    if not victims or len(has) < 2:
        return {}
    gone = counts(Counter(lease.units[name].unit_class for name in victims))
    return {KEEP: kept_words(first_of(minus(has, gone), units))}


DRY_RUN_TIMEOUT: Final[Duration] = 20 * SECOND
"""How long a broker's answer is waited for where it is only asked what it would say."""


@attrs.define(eq=False)
class DryRunRequests:
    """Dry runs of requests: a command's reply is what the broker said."""

    _kernel: Kernel
    _keyring: Keyring
    _calls: Calls
    _requests: LeaseRequests
    _changes: LeaseChanges

    @deferred("lease.dry_run")
    def _dry_run(self, command: Command) -> None:
        request = structure(RequestLease, with_term(command.arguments, self._kernel.now), term=True)
        self._requests.check(request)
        broker = self._requests.broker(request.broker)
        if parse_options(request.properties, request.term).group:
            raise CommandError("properties.group_id: a group is answered whole, one request of it can't be tried")
        self._send(
            command, broker, request.type, Asked(NEW, request.units, request.term, request.site, _with_filter(request))
        )

    @deferred("lease.dry_run_extend")
    def _dry_run_extend(self, command: Command) -> None:
        lease, asked, _ = self._changes.extension(structure(ExtendLease, self._changes.with_end(command.arguments)))
        self._send(command, lease.broker, lease.type, asked, lease.id)

    @deferred("lease.dry_run_modify")
    def _dry_run_modify(self, command: Command) -> None:
        """Of units or end: a configuration is the site's to decide."""
        lease, asked = self._changes.modification(structure(ModifyLease, command.arguments))
        if asked is None:
            raise CommandError("units and end stay as they are: the broker has nothing to decide")
        self._send(command, lease.broker, lease.type, asked, lease.id)

    def _send(self, command: Command, broker: str, type_: str, asked: Asked, of: str = "") -> None:
        subject = f"{self._keyring.tag}-dry-run"
        unheard = f"{broker} did not answer within {DRY_RUN_TIMEOUT // SECOND} s; nothing was asked for"
        call = self._calls.begin(command, broker, subject, DRY_RUN_TIMEOUT, unheard)
        dry_run = call.repeat = DryRun(
            subject, call.number, type_, asked.units, asked.term, asked.site, dict(asked.properties), asked.op, of
        )
        self._kernel.send(broker, dry_run)

    @takes(DryRunAnswer)
    def _answered(self, peer: str, message: DryRunAnswer) -> None:
        call = self._calls.answered(peer, message.lease, message.number)
        if call is not None:
            earliest = message.earliest if message.earliest >= 0 else None
            classes = describe_counts(message.classes)
            answer = DryRunDetails.of(message, broker=peer, classes=classes, **view(message.reason), earliest=earliest)
            self._calls.end(call, Reply(call.command, plain(answer)))


KEY_MAX: Final = 4096


@attrs.define(eq=False)
class Slices:
    """The slices of a guest, and what its leases wait for of each other."""

    _kernel: Kernel
    _records: Leases
    _endings: Endings
    _transitions: Transitions
    closing: list[Callable[[str, Reason], None]] = attrs.field(factory=list, init=False)
    """Who is told, in order, of a slice that is to be closed, and why."""

    def settle(self, lease: GuestLease) -> None:
        """A lease has its ticket, or is over: a slice that holds its redeems goes on when every ticket is there, and
        closes when one was refused.
        """
        record = self._records.slices.get(lease.slice)
        if record is None or record.released or not record.hold:
            return
        members = self._records.of_slice(record.id)
        lost = next((other for other in members if other.is_over), None)
        if lost is not None:
            record.refused = Reason(Code.LEASE_LOST, lost.id, lost.state).because(lost.reason)
            record.released = True
            self._kernel.touch(record)
            for other in members:
                self._endings.close_if_open(other, Reason(Code.SLICE_HOLDS_FOR_ALL).because(record.refused))
        elif sum(other.approved is not None for other in members) >= record.hold:
            record.released = True
            self._kernel.touch(record)
            for other in members:
                if other is not lease:
                    self._transitions.advance(other)

    def wake_dependents(self, lease: GuestLease) -> None:
        """A lease has come so far that those may go on which waited for it."""
        for dependent in self._records.dependents(lease):
            if dependent.join == mb.BLOCKED_JOIN:
                self._transitions.join(dependent)
                self._kernel.touch(dependent)
            elif dependent.has_ticket:
                self._transitions.advance(dependent)

    @command("slice.create")
    def _create(self, asked: CreateSlice) -> CreatedSlice:
        name, hold = asked.name, asked.hold
        check_name("name", name)
        if not name or name in self._records.slices:
            raise CommandError(f"name: found {name!r}, expected a name that no slice has yet")
        key = _key_text(asked.key)
        record = Slice(name, hold, hold == 0, key=key, notes=_noted(EMPTY, asked.notes))
        self._records.slices[name] = record
        self._kernel.touch(record)
        return CreatedSlice(name, hold)

    @command("slice.key")
    def _set_key(self, asked: SetSliceKey) -> SliceKeySet:
        """The slice's users log in with another key: units that are there are told, those to come get it."""
        name, key = asked.name, _key_text(asked.key)
        record = self._find(name)
        record.key = key
        self._kernel.touch(record)
        leases = [lease for lease in self._records.open.values() if lease.slice == name]
        for lease in leases:
            self._transitions.advance(lease)
        return SliceKeySet(name, [lease.id for lease in leases])

    @command("slice.note")
    def _note(self, asked: NoteSlice) -> NotedSlice:
        record = self._find(asked.name)
        record.notes = _noted(record.notes, asked.notes)
        self._kernel.touch(record)
        return NotedSlice(record.id, dict(record.notes))

    def _find(self, name: str) -> Slice:
        record = self._records.slices.get(name)
        if record is None:
            known = ", ".join(self._records.slices) or "(none)"
            raise CommandError(f"name: no slice {name!r} here; there are {known}")
        return record

    @command("slice.close")
    def _close(self, asked: CloseSlice) -> ClosedSlice:
        name = asked.name
        reason = said(asked.reason) if asked.reason else Reason(Code.SLICE_CLOSED)
        for tell in self.closing:
            tell(name, reason)
        self._find(name)
        closed = []
        for lease in list(self._records.open.values()):
            if lease.slice == name and lease.ending.suspends and lease.is_leaving:
                lease.ending = lease.ending._replace(closing=True)  # its rest is not asked for
                self._kernel.touch(lease)
            elif lease.slice == name and not lease.ending.closing and not lease.is_closing:
                self._endings.close(lease, reason)
                closed.append(lease.id)
        return ClosedSlice(name, closed)


def _noted(before: Properties, changes: Mapping[str, str]) -> Properties:
    found = {name: text for name, text in {**before, **changes}.items() if text}
    try:
        return check_properties(found, "notes")
    except ValueError as error:
        raise CommandError(str(error), Code.BAD_ARGUMENT) from None


def _key_text(text: str) -> str:
    key = text.strip()
    if len(key) > KEY_MAX or any(not line.isprintable() for line in key.splitlines()):
        raise ArgumentError(f"key: expected OpenSSH public keys, a line each, at most {KEY_MAX} characters in all")
    return key


def _requeues(lease: GuestLease, asked: Asked) -> bool:
    """Whether a lease that is over was ended by its broker or its site, for others, and is to be asked for anew."""
    why = lease.reason
    if asked.properties.get("on_preempt") != REQUEUE or why is None:
        return False
    if why.code not in (Code.ENDED_BY, Code.MAKES_ROOM):
        return False
    return all(cause.code != Code.MAX_RUN for cause in why.causes)


AT_FIRST: Final = (
    "elastic", "min_units", "deferrable", "latest_start", "request_timeout", "group_id", "lease_count", "resumes", HOLD,
)  # fmt: skip
"""Request properties that say how a lease was to be granted at first: what it has by now is not asked for so."""
ONCE: Final = (*AT_FIRST, "image", "prepare", "exclude_sites")
"""Request properties that say how the suspended lease was to begin: its rest begins otherwise."""


def _whole_end(lease: GuestLease, asked: Instant) -> Instant:
    """When the lease was to end, had it not been suspended: at ``asked``, if it was granted a part of what it asked."""
    tickets = [one for one in (lease.approved, lease.renewal, *lease.continuations) if one is not None]
    if any(saving_of(decode_ticket(one.ticket).leaf) for one in tickets):
        return asked
    end = max(one.term.end for one in tickets)
    # One that was granted under notice, when it gave units back, ends with that.
    return asked if end <= lease.ending.at else end


def _check_filter(text: str) -> None:
    """Raises :class:`ArgumentError` that points at the character: its broker would say the same, later."""
    try:
        if text:
            parse_filter(text)
    except FilterError as error:
        raise ArgumentError(str(error)) from None


def _with_filter(request: RequestLease) -> dict[str, str]:
    """The request properties, with the configuration's filter where they have none: what the site is to choose by must
    be reserved. One that names units can't be: brokers know classes of units.
    """
    text = request.configuration.get(FILTER, "")
    try:
        copied = bool(text) and FILTER not in request.properties and "unit" not in parse_filter(text).names
    except FilterError:
        copied = False  # its site says what is wrong with it
    return {**request.properties, FILTER: text} if copied else dict(request.properties)


# -- leases whose holder must be heard of ------------------------------------------------------------------------------


@attrs.define(slots=True, eq=False)
class Keepalive:
    """A lease whose holder may be silent for ``length``, and was ``heard`` of last; that is not kept."""

    table: ClassVar[str] = "keepalives"
    id: str
    length: Duration
    heard: Instant = 0
    timer: Instant | None = None

    def row(self) -> Row:
        """Its row."""
        return (self.id, self.length)


@keeps(rows="_kept", volatile="_present_at _present_for")
class Keepalives:
    """Which leases must be heard of, and whether a gateway is there that would say so: one that has said nothing for
    half as long as a holder may be silent may have been away, and so may this actor. Then its silence counts anew.
    """

    def __init__(self, kernel: Kernel, records: Leases, endings: Endings) -> None:
        self._kernel, self._records, self._endings = kernel, records, endings
        self._kept: dict[str, Keepalive] = {}
        self._present_at: Instant = -1
        self._present_for: Duration = 0
        kernel.register(Keepalive, due_at=self._due_at, on_due=self._silent)

    def restore(self, rows: Iterable[Row]) -> None:
        """Take up what a store kept: silence counts from when a gateway is there."""
        for id_, length in rows:
            self._kept[id_] = Keepalive(id_, length)

    def begun(self, lease: GuestLease) -> None:
        """A lease was asked for, which may say that it must be heard of."""
        length = keepalive_of(lease.asked.properties)
        if length:
            self._keep(lease, length)

    @command("lease.keepalive")
    def _hear(self, asked: KeepAlive) -> KeptAlive:
        lease = self._open(asked.lease)
        record = self._kept.get(lease.id)
        if asked.length is None and record is None:
            raise CommandError(f"lease {lease.id} need not be heard of: say for how long it may be silent (length)")
        if record is None or (asked.length or record.length) != record.length:
            record = self._keep(lease, asked.length or 0)
        record.heard = self._kernel.now
        self._kernel.schedule(record, self._due_at(record))
        return KeptAlive(lease.id, record.length, record.heard + record.length)

    @command("lease.hand")
    def _hand(self, asked: HandLease) -> HandedLease:
        """Only its history says whose a lease is; the new holder may be silent for as long as the old one might."""
        lease = self._open(asked.lease)
        record = self._kept.get(lease.id)
        why = Reason(Code.HANDED, who=asked.to)
        self._kernel.note(lease.id, "handed", "", "", why.because(said(asked.reason)) if asked.reason else why)
        if record is not None:
            record.heard = self._kernel.now
            self._kernel.schedule(record, self._due_at(record))
        return HandedLease(lease.id, asked.to)

    def _open(self, name: str) -> GuestLease:
        lease = self._records.find(name)
        if lease.is_over:
            raise CommandError(f"lease {lease.id} is {lease.state} already")
        return lease

    @command("gateway.present")
    def _here(self, asked: SayPresent) -> Present:
        now = self._kernel.now
        missed = [record for record in self._kept.values() if not self._counts(record)]
        self._present_at, self._present_for = now, asked.length
        for record in missed:
            record.heard = now
            self._kernel.schedule(record, self._due_at(record))
        return Present(now + asked.length, min(map(self._apart, self._kept.values()), default=asked.length))

    def _keep(self, lease: GuestLease, length: Duration) -> Keepalive:
        record = self._kept[lease.id] = Keepalive(lease.id, length, self._kernel.now)
        self._kernel.touch(record)
        return record

    def _due_at(self, record: Keepalive) -> Instant | None:
        return record.heard + record.length if self._counts(record) else None

    def _counts(self, record: Keepalive) -> bool:
        """Whether a gateway has been there so lately that it would have said that the holder is."""
        return self._present_at >= 0 and self._kernel.now - self._present_at <= self._apart(record)

    def _apart(self, record: Keepalive) -> Duration:
        return min(self._present_for, max(APART_LEAST, record.length // 2))

    def _silent(self, record: Keepalive) -> None:
        lease = self._records.by_id.get(record.id)
        if lease is not None and not lease.is_over and not lease.is_closing:
            if not self._counts(record):
                self._kernel.forget(record)  # nobody would have said so: it counts anew when a gateway is there
                return
            reason = Reason(Code.NOT_HEARD, who=lease.id, detail=format_duration(record.length))
            self._endings.close_if_open(lease, reason)
        del self._kept[record.id]
        self._kernel.erase(record)
