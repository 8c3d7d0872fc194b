"""What operators command actors, and ask them: a class for each that has arguments.

A handler names the class of its arguments, and gets an instance: what is unknown, missing, or of another type is
refused before. Leases are commanded by the decisions that mappers take (:mod:`.mappers`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeVar

import attrs

from leasekit.core.accounts import KEYS
from leasekit.core.errors import ArgumentError, CommandError
from leasekit.core.reasons import Code
from leasekit.core.settings import SettingsError, expecting, structure
from leasekit.core.time import INSTANT_MAX, Instant, Term

C = TypeVar("C")

LINE_MAX: Final = 2**63 - 1
"""No line of a log has a higher number."""
PAST_PAGE: Final = 500
"""How many leases that are over are told at once."""


def read_arguments(kind: type[C], arguments: Mapping[str, Any]) -> C:
    """An instance of a class below. Raises ``CommandError`` that names each argument that is wrong."""
    try:
        return structure(kind, {name: value for name, value in arguments.items() if value is not None}, "")
    except SettingsError as error:
        raise CommandError("; ".join(error.errors), Code.BAD_ARGUMENT) from None


_instant: Final = expecting(
    f"an instant: milliseconds from 0 to {INSTANT_MAX}", lambda value: value is None or 0 <= value <= INSTANT_MAX
)


@attrs.frozen(kw_only=True)
class NoArguments:
    """Of commands and queries that take none."""


@attrs.frozen(kw_only=True)
class AddPeer:
    """Make a peer known: its ``key`` in hex; ``may`` and ``open_requests`` as its role has them, if nothing is said."""

    name: str = ""
    role: str = ""
    key: str = ""
    may: tuple[str, ...] | None = None
    open_requests: int | None = None
    priority_max: int = 0
    address: str = ""


@attrs.frozen(kw_only=True)
class ImportPeers:
    """Make all of these peers known, or none."""

    peers: tuple[AddPeer, ...] = ()


@attrs.frozen(kw_only=True)
class RemovePeer:
    """Know a peer no more."""

    name: str = ""


@attrs.frozen(kw_only=True)
class SucceedPeer:
    """A peer has another key, as its ``succession``, in hex, says."""

    name: str = ""
    succession: str = ""


@attrs.frozen(kw_only=True)
class CommandPeer:
    """Have a peer carry out a command."""

    peer: str = ""
    command: str = ""
    arguments: Mapping[str, Any] = attrs.Factory(dict)


@attrs.frozen(kw_only=True)
class GiveDelegation:
    """Give a broker ``units`` of a type (0: as many as the settings say) ``until`` then."""

    broker: str = ""
    type: str = ""
    site: str = ""
    units: int = 0
    until: Instant | None = attrs.field(default=None, validator=_instant)


@attrs.frozen(kw_only=True)
class ReclaimDelegation:
    """Take a delegation back as of ``at``; what was granted of it may go on until ``deadline``."""

    delegation: str = ""
    at: Instant | None = attrs.field(default=None, validator=_instant)
    deadline: Instant | None = attrs.field(default=None, validator=_instant)


@attrs.frozen(kw_only=True)
class ReleaseSource:
    """Let go of what a broker holds of one that is gone."""

    source: str = ""


@attrs.frozen(kw_only=True)
class DisableUnit:
    """Take a unit out of service."""

    unit: str = ""
    reason: str = ""


@attrs.frozen(kw_only=True)
class EnableUnit:
    """Put a unit into service again."""

    unit: str = ""


@attrs.frozen(kw_only=True)
class FailUnit:
    """A unit is down. With ``lease`` and ``setup`` only if it is still that one's, from that setup."""

    unit: str = ""
    reason: str = ""
    lease: str | None = None
    setup: int | None = None


@attrs.frozen(kw_only=True)
class MeasureUnit:
    """A probe has seen a machine use so much ``cpu``, in millicores: if it is still that lease's, from that setup."""

    unit: str = ""
    lease: str = ""
    setup: int = 0
    cpu: int = 0


@attrs.frozen(kw_only=True)
class MoveUnit:
    """The lease of a unit that is up gets another one in its place; a machine goes to another host, which may be named,
    as it runs where a driver can do that.
    """

    unit: str = ""
    reason: str = ""
    host: str = ""


@attrs.frozen(kw_only=True)
class SetUnit:
    """A site has a unit of a type, or one that it has is otherwise: its ``attributes``, and where it is a host its
    ``capacity`` by resource, as people write it, and ``least_yield`` in thousandths. Of a unit that there is, what is
    None stays as it is.
    """

    unit: str = ""
    type: str = ""
    capacity: Mapping[str, str] | None = None
    least_yield: int | None = None
    attributes: Mapping[str, str] | None = None


@attrs.frozen(kw_only=True)
class RemoveUnit:
    """A site has a unit no more."""

    unit: str = ""


@attrs.frozen(kw_only=True)
class ResetUnit:
    """A unit is as the settings say again."""

    unit: str = ""


@attrs.frozen(kw_only=True)
class EvictLease:
    """End a lease of somebody's, ``at`` an instant that is not past (-1: now)."""

    lease: str = ""
    at: Instant = -1
    reason: str = ""


@attrs.frozen(kw_only=True)
class AddMaintenance:
    """Take units (all, of a ``type``, or named) out of service over a window; without an ``end`` they are drained,
    until the window is removed. ``close`` ends leases for it, ``close_at`` an instant (-1: when the window begins).
    """

    units: tuple[str, ...] = ()
    type: str = ""
    reason: str = ""
    start: Instant = 0
    end: Instant = INSTANT_MAX
    close: bool = False
    close_at: Instant = -1


@attrs.frozen(kw_only=True)
class RemoveMaintenance:
    """There is to be no such window; or, with ``units``, these are to be in none."""

    window: str = ""
    units: tuple[str, ...] = ()


@attrs.frozen(kw_only=True)
class GiveWord:
    """Put the site's word on the claims of the evidence in ``file``."""

    file: str = ""
    words: str = ""


@attrs.frozen(kw_only=True)
class UndoExtend:
    """Take back the last extension of a lease, which has not begun."""

    lease: str = ""


@attrs.frozen(kw_only=True)
class CreateSlice:
    """Make a slice, whose leases wait for ``hold`` of them to be ticketed; ``key`` are its login keys, ``notes`` what
    programs keep with it.
    """

    name: str = ""
    hold: int = attrs.field(default=0, validator=[attrs.validators.ge(0), attrs.validators.le(10_000)])
    key: str = ""
    notes: Mapping[str, str] = attrs.Factory(dict)


@attrs.frozen(kw_only=True)
class SetSliceKey:
    """The users of a slice log in with other keys."""

    name: str = ""
    key: str = ""


@attrs.frozen(kw_only=True)
class NoteSlice:
    """Programs keep other ``notes`` with a slice; one that is empty is there no more."""

    name: str = ""
    notes: Mapping[str, str] = attrs.Factory(dict)


@attrs.frozen(kw_only=True)
class CloseSlice:
    """Close all leases of a slice."""

    name: str = ""
    reason: str = ""


@attrs.frozen(kw_only=True)
class PlanTopology:
    """Say what would be planned for a topology: ``request`` has sites, links, duration, and start or est and lst."""

    request: Mapping[str, Any] = attrs.Factory(dict)
    broker: str = ""


@attrs.frozen(kw_only=True)
class LeaseTopology(PlanTopology):
    """Lease a topology; it is planned anew when a plan comes to nothing, ``tries`` times in all."""

    tries: int = 3


@attrs.frozen(kw_only=True)
class CloseTopology:
    """Close all leases of a topology, or give up its plan."""

    topology: str = ""
    reason: str = ""


@attrs.frozen(kw_only=True)
class ListLeases:
    """The leases of a slice, or of all; with ``all`` those that are over, too. At most ``limit`` of them (0: all), in
    the order of request, that come after the one with the id ``after``.
    """

    all: bool = False
    slice: str = ""
    after: str = ""
    limit: int = attrs.field(default=0, validator=attrs.validators.ge(0))


def by_number(identifier: str) -> tuple[int, str]:
    """Ids of leases end in a counter: order by it, so that the order of request survives a restart."""
    tail = identifier.rpartition("-")[2]
    return (int(tail) if tail.isdecimal() and len(tail) <= 18 else 0, identifier)


@attrs.frozen(kw_only=True)
class ListSlices:
    """The slice of this name, or all slices."""

    slice: str = ""


@attrs.frozen(kw_only=True)
class FindSlots:
    """The first ``limit`` windows between ``start`` and ``end`` in which so many units of a type are free for
    ``length`` ms; those that a ``filter`` takes, at a ``site``, as machines with ``needs`` (request properties). What
    stands in the way is told of leases of the ``holder``; ``explain``: where there is no window also why.
    """

    type: str
    units: int = attrs.field(validator=attrs.validators.ge(1))
    length: int = attrs.field(validator=attrs.validators.ge(1))
    start: Instant = attrs.field(default=0, validator=_instant)
    end: Instant = attrs.field(validator=_instant)
    filter: str = ""
    needs: Mapping[str, str] = attrs.Factory(dict)
    site: str = ""
    holder: str = ""
    limit: int = attrs.field(default=10, validator=[attrs.validators.ge(1), attrs.validators.le(100)])
    explain: bool = False


@attrs.frozen(kw_only=True)
class ShowCalendar:
    """What is booked between ``start`` and ``end``, at a ``site``, of a ``type`` (empty: all); figures for each stretch
    of ``step`` ms; ``entries``: leases as well. Who asks the same again says of which ``revision`` the answer was that
    they know.
    """

    start: Instant = attrs.field(default=0, validator=_instant)
    end: Instant = attrs.field(default=INSTANT_MAX, validator=_instant)
    step: int = attrs.field(default=INSTANT_MAX, validator=attrs.validators.ge(1))
    site: str = ""
    type: str = ""
    known: int = -1
    entries: bool = True

    @property
    def term(self) -> Term:
        """The time that is shown. Raises ``CommandError`` for none, and for more stretches than anybody looks at."""
        if not 0 < self.end - self.start <= self.step * STRETCHES_MAX:
            raise ArgumentError(f"end: expected an instant after the start, at most {STRETCHES_MAX} steps after it")
        return Term(self.start, self.end)


STRETCHES_MAX: Final = 10_000
"""How many stretches of time a calendar has figures for."""


@attrs.frozen(kw_only=True)
class KeepAlive:
    """The holder of a lease is there; it may be silent for ``length`` ms from now on (None: as long as was said)."""

    lease: str = ""
    length: int | None = attrs.field(default=None, validator=attrs.validators.optional(attrs.validators.ge(1_000)))


@attrs.frozen(kw_only=True)
class HandLease:
    """A lease is somebody else's from now on: that of ``to``, of the same guest."""

    lease: str = ""
    to: str = attrs.field(validator=[attrs.validators.min_len(1), attrs.validators.max_len(256)])
    reason: str = ""


@attrs.frozen(kw_only=True)
class SayPresent:
    """A gateway is there, and will say so again within ``length`` ms."""

    length: int = attrs.field(validator=[attrs.validators.ge(1), attrs.validators.le(600_000)])


@attrs.frozen(kw_only=True)
class ListGuestLeases(ListLeases):
    """A guest's: those of a ``type``, in a ``state``, at a ``site``."""

    type: str = ""
    state: str = ""
    site: str = ""


@attrs.frozen(kw_only=True)
class ShowLease:
    """One lease, by its id, or its name where it is a guest's."""

    lease: str = ""


@attrs.frozen(kw_only=True)
class ListTopologies:
    """Those that are going on; with ``all`` those that are over, too."""

    all: bool = False


@attrs.frozen(kw_only=True)
class ShowTopology:
    """One topology."""

    topology: str = ""


@attrs.frozen(kw_only=True)
class ListEvidence:
    """All evidence, or one with its file."""

    id: str = ""


# -- what the daemon answers, from its actor's store -------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class ReadArchive:
    """The newest rows of a table's past."""

    limit: int = attrs.field(default=1_000, validator=[attrs.validators.ge(0), attrs.validators.le(10_000)])


@attrs.frozen(kw_only=True)
class ReadLog(ReadArchive):
    """Lines of the log with a number above ``after``, in order; with ``before`` those below it, newest first."""

    after: int = attrs.field(default=0, validator=[attrs.validators.ge(0), attrs.validators.le(LINE_MAX)])
    before: int = attrs.field(default=0, validator=[attrs.validators.ge(0), attrs.validators.le(LINE_MAX)])


@attrs.frozen(kw_only=True)
class ReadUnitLog:
    """The last lines of a unit's log, and with ``follow`` those to come."""

    lines: int = attrs.field(default=200, validator=[attrs.validators.ge(0), attrs.validators.le(10_000)])
    follow: bool = False


def _after_since(period: Any, _: attrs.Attribute[Any], until: Instant) -> None:
    if until <= period.since:
        raise ValueError(f"expected an instant after since, {period.since}")


@attrs.frozen(kw_only=True)
class OverPeriod:
    """What went on at ``since`` or later, and before ``until``."""

    since: Instant = attrs.field(default=0, validator=_instant)
    until: Instant = attrs.field(default=INSTANT_MAX, validator=[_instant, _after_since])

    @property
    def period(self) -> Term:
        """The period."""
        return Term(self.since, self.until)


@attrs.frozen(kw_only=True)
class ReadPast(OverPeriod):
    """Leases of a period that are over, with a ``state`` if one is given: those that ended after the lease ``id``,
    which ended at ``ended``.
    """

    ended: Instant = attrs.field(default=0, validator=_instant)
    id: str = ""
    state: str = ""
    limit: int = attrs.field(default=PAST_PAGE, validator=[attrs.validators.ge(1), attrs.validators.le(PAST_PAGE)])


_some_keys: Final = expecting(f"some of {', '.join(KEYS)}", lambda by: set(by) <= set(KEYS) and len(set(by)) == len(by))


@attrs.frozen(kw_only=True)
class ReadUsage(OverPeriod):
    """The accounts of a period, added up by these keys."""

    by: tuple[str, ...] = attrs.field(default=KEYS, validator=_some_keys)
