"""What a request can say, by its request properties (paper section 3.1; the names are a convention that core keeps);
and jobs that guests replay.

=================  =====================================================================================
property           meaning
=================  =====================================================================================
elastic            ``true``: fewer units are fine, down to ``min_units`` (1 if not given)
min_units          the fewest units of an elastic request
deferrable         ``true``: a later start is fine, up to ``latest_start``
latest_start       the latest start, in milliseconds of the guest's clock
request_timeout    how long an answer is of use, a duration such as ``30s``
group_id           the request group; scoped to its holder; all get one term, or each its own if none can be moved;
                   each that is elastic has as many units as it can over it, the first members first
lease_count        on the group's leader only: how many requests the group has, at most 1,000
priority           the request's own class, a whole number; higher goes first
preemptible        ``true``: the broker may end the lease early
notice             how long before its end a preemptible lease hears of it (``30s`` if not given, ``0s`` is allowed)
min_run            how long a preemptible lease runs at least before its broker ends it
bid                what a preemptible lease pays at most for each unit and billing period, a whole number of its
                   broker's own: where that has a market, the higher bid has the units
max_run            how long a preemptible lease runs at most, extensions included: its broker ends it then
on_preempt         what becomes of a preemptible lease that is ended for others: ``terminate`` (that is all, the
                   default), ``suspend`` (it is suspended, where its site can), ``requeue`` (its guest asks for all
                   of it anew, in its old place in line)
suspend            how long it takes to save the units of a preemptible lease, such as ``32s``: it may be suspended
hold               ``PLAN/PART``: a part of a planned topology, of what the broker holds for it
filter             which units will do, by their attributes and their site (:mod:`leasekit.core.filters`)
keep               of a lease that names its victims, and has units of several classes: which it goes on with, as
                   ``CLASS:UNITS``, the class in hex, separated by commas
keepalive          the lease is closed when its holder was not heard of for so long, through a gateway
series             the lease is one of several that recur: all of them have the same
exclude_sites      names of sites that won't do, separated by commas: at most 64
needs.RESOURCE     what each machine needs of a host (:mod:`leasekit.core.properties`); without, whole units are meant
=================  =====================================================================================

Anything else passes through untouched.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import attrs

from leasekit.core.errors import ArgumentError, CommandError
from leasekit.core.properties import (
    EMPTY,
    NEEDS,
    NO_UNITS,
    WHOLE,
    Counts,
    Properties,
    Vector,
    as_properties,
    counts,
    needs_of,
)
from leasekit.core.reasons import counted, mark
from leasekit.core.time import INSTANT_MAX, SECOND, Duration, Instant, Term, format_duration, parse_duration

TRUE, FALSE = "true", "false"
KEEP: Final = "keep"
OF_PREEMPTIBLE: Final = ("notice", "min_run", "max_run", "on_preempt", "bid", "suspend")
"""Properties that a preemptible lease alone can have."""
TERMINATE, SUSPEND, REQUEUE = "terminate", "suspend", "requeue"
ON_PREEMPT: Final = (TERMINATE, SUSPEND, REQUEUE)
"""What can become of a lease that is ended for others."""
NOTICE: Final[Duration] = 30 * SECOND
"""How long before its end a preemptible lease hears of it, if it doesn't say."""


class Options(NamedTuple):
    """The request properties of one request, read. ``latest_start`` and ``request_timeout`` are 0 where not given,
    ``suspend`` where the lease is not to be suspended; ``notice``, ``min_run``, ``max_run`` and ``bid`` are None there.
    """

    elastic: bool
    min_units: int
    deferrable: bool
    latest_start: Instant
    request_timeout: Duration
    group: str
    lease_count: int
    priority: int
    preemptible: bool
    exclude_sites: frozenset[str]
    suspend: Duration = 0
    filter: str = ""
    keep: Counts = NO_UNITS
    needs: Vector = WHOLE
    notice: Duration | None = None
    min_run: Duration | None = None
    max_run: Duration | None = None
    on_preempt: str = TERMINATE
    bid: int | None = None


_PLAIN = Options(False, 0, False, 0, 0, "", 0, 0, False, frozenset())


def parse_options(properties: Properties, term: Term) -> Options:
    """Read the request properties. Raises ``CommandError`` that names the property, what was found and what is
    allowed.
    """
    if not properties:
        return _PLAIN
    elastic, deferrable = _flag(properties, "elastic"), _flag(properties, "deferrable")
    group = properties.get("group_id", "")
    latest = _number(properties, "latest_start", 0)
    if "min_units" in properties and not elastic:
        raise CommandError("properties.min_units: goes with elastic = 'true'")
    if "latest_start" in properties and not (deferrable or group):
        raise CommandError("properties.latest_start: goes with deferrable = 'true'")
    if latest and latest < term.start:
        raise ArgumentError(f"properties.latest_start: found {latest}, which is before the start, {term.start}")
    if "lease_count" in properties and not group:
        raise CommandError("properties.lease_count: goes with group_id, on the group's leader")
    for name in OF_PREEMPTIBLE:
        if name in properties and properties.get("preemptible") != TRUE:
            raise CommandError(f"properties.{name}: goes with preemptible = 'true'")
    excluded = frozenset(name.strip() for name in properties.get("exclude_sites", "").split(",") if name.strip())
    return Options(
        elastic=elastic,
        min_units=_number(properties, "min_units", 1) if elastic else 0,
        deferrable=deferrable or bool(group),
        latest_start=latest,
        request_timeout=_duration(properties, "request_timeout"),
        group=group,
        lease_count=_number(properties, "lease_count", 1) if "lease_count" in properties else 0,
        priority=_number(properties, "priority", None) if "priority" in properties else 0,
        preemptible=_flag(properties, "preemptible"),
        exclude_sites=excluded,
        suspend=max(1, _duration(properties, "suspend")) if "suspend" in properties else 0,
        filter=properties.get("filter", ""),
        keep=_counts(properties.get(KEEP, "")),
        needs=_needs(properties),
        notice=_duration(properties, "notice") if "notice" in properties else None,
        min_run=_duration(properties, "min_run") if "min_run" in properties else None,
        max_run=_longest(properties),
        on_preempt=_on_preempt(properties),
        bid=_number(properties, "bid", 0) if "bid" in properties else None,
    )


class WantedError(ArgumentError):
    """A ``field`` of :class:`WantedLease` that can't be as it is, or not without another."""

    def __init__(self, field: str, text: str = "", *, goes_with: str = "") -> None:
        super().__init__(f"{field}: {text or f'goes with {goes_with}'}")
        self.field, self.text, self.goes_with = field, text, goes_with


@attrs.frozen(kw_only=True)
class WantedLease:
    """A lease as a person, or a program, wants it. Without ``start`` it begins as soon as it can while an answer is of
    use (``timeout``), so that a small delay doesn't refuse it; ``elastic`` is with how few units it would do.
    """

    type: str
    units: int
    length: Duration | None = None
    start: Instant | None = None
    end: Instant | None = None
    slice: str = ""
    name: str = ""
    site: str = ""
    broker: str = ""
    properties: Mapping[str, str] = attrs.Factory(dict)
    configuration: Mapping[str, str] = attrs.Factory(dict)
    filter: str | None = None
    needs: Vector = WHOLE
    elastic: int | None = None
    deferrable_until: Instant | None = None
    preemptible: bool = False
    notice: Duration | None = None
    min_run: Duration | None = None
    max_run: Duration | None = None
    on_preempt: str | None = None
    bid: int | None = None
    timeout: Duration | None = None
    after: str = ""
    join_after: str = ""
    proceed: bool = False
    group: str = ""
    group_size: int | None = None
    keepalive: Duration | None = None

    def request_properties(self) -> dict[str, str]:
        """The request properties, but for those of its start. Raises :class:`WantedError`."""
        requested = dict(self.properties)
        if self.filter is not None:
            requested["filter"] = self.filter
        requested |= as_properties(self.needs, NEEDS)
        spans = ("notice", "min_run", "max_run")
        said = {name: format_duration(span) for name in spans if (span := getattr(self, name)) is not None}
        said |= {name: str(value) for name in ("on_preempt", "bid") if (value := getattr(self, name)) is not None}
        for name in said if not self.preemptible else ():
            raise WantedError(name, goes_with="preemptible")
        requested |= {"preemptible": TRUE, **said} if self.preemptible else {}
        if self.elastic is not None:
            if self.elastic > self.units:
                found = f"found {self.elastic}, expected at most the {counted(self.units)} asked for"
                raise WantedError("elastic", found)
            requested |= {"elastic": TRUE, "min_units": str(self.elastic)}
        if self.group:
            requested["group_id"] = self.group
        if self.group_size is not None:
            if not self.group:
                raise WantedError("group_size", goes_with="group")
            requested["lease_count"] = str(self.group_size)
        if self.keepalive is not None:
            requested[KEEPALIVE] = format_duration(self.keepalive)
        if self.timeout is not None:
            requested["request_timeout"] = format_duration(self.timeout)
        return requested

    def arguments(self, now: Instant | None, answer_within: Duration) -> dict[str, Any]:
        """The arguments of the command ``lease.request`` at an instant: ``now`` at the guest, who waits for an answer
        for ``answer_within`` if nothing is said. With None the guest says itself when now is (:func:`with_term`), so
        that who asks twice says the same twice. Raises :class:`WantedError`.
        """
        requested, latest = self.request_properties(), self.deferrable_until
        begin = now if self.start is None else self.start
        if latest is not None and begin is not None and latest < begin:
            raise WantedError("deferrable_until", f"found {mark(latest)}, which is before the start, {mark(begin)}")
        if (self.length is None) == (self.end is None):
            raise WantedError("length", "either length or end is to be said")
        if latest is not None:
            requested |= {"deferrable": TRUE, "latest_start": str(latest)}
        arguments = {
            "type": self.type, "units": self.units, "slice": self.slice, "name": self.name,
            "broker": self.broker, "site": self.site, "properties": requested,
            "configuration": dict(self.configuration), "redeem_predecessor": self.after,
            "join_predecessor": self.join_after, "if_predecessor_fails": "proceed" if self.proceed else "fail",
        }  # fmt: skip
        if self.start is None:
            span = {"length": self.length} if self.end is None else {"end": self.end}
            soon = {**arguments, **span, "within": self.timeout or answer_within}
            return soon if now is None else with_term(soon, now)
        end = self.end if self.end is not None else self.start + (self.length or 0)
        if end <= self.start:
            raise WantedError("end", f"found {mark(end)}, which is not after the start, {mark(self.start)}")
        if self.start < 0:
            raise WantedError("start", f"found {mark(self.start)}, expected an instant after 1970")
        if end > INSTANT_MAX:
            raise WantedError("length" if self.end is None else "end", "found more than any term can last")
        return {**arguments, "term": [self.start, end]}


def with_term(arguments: Mapping[str, Any], now: Instant) -> dict[str, Any]:
    """The arguments of ``lease.request`` with a term. Those of one that begins as soon as it can have none: it begins
    ``now``, or up to ``within`` later if its properties don't say, and lasts for ``length``, or to ``end``. Raises
    :class:`WantedError`.
    """
    found = dict(arguments)
    if "term" in found:
        return found
    spans = {name: found.pop(name) for name in ("length", "end", "within") if name in found}
    for name, value in spans.items():
        if type(value) is not int or not 0 < value <= INSTANT_MAX - now:
            if name == "end" and type(value) is int:
                raise WantedError(name, f"found {mark(value)}, expected an instant after 1970 that a term may have")
            raise WantedError(name, f"found {value!r:.80}, expected milliseconds, 1 at least")
    if ("length" in spans) == ("end" in spans):
        raise WantedError("term", "found none, expected a term, or either length or end")
    end = spans["end"] if "end" in spans else now + spans["length"]
    if end <= now:
        raise WantedError("end", f"found {mark(end)}, which is not after the start, {mark(now)}")
    properties = found.get("properties") or {}
    if "within" in spans and isinstance(properties, Mapping):
        latest = properties.get("latest_start", str(now + spans["within"]))
        found["properties"] = {**properties, "deferrable": TRUE, "latest_start": latest}
    return {**found, "term": [now, end]}


KEEPALIVE: Final = "keepalive"
SERIES: Final = "series"


def keepalive_of(properties: Properties) -> Duration:
    """For how long the holder of a lease may be silent; 0: for ever. Raises ``CommandError``."""
    length = _duration(properties, KEEPALIVE)
    if KEEPALIVE in properties and length < SECOND:
        raise ArgumentError(f"properties.keepalive: found {properties[KEEPALIVE]!r:.80}, expected at least 1s")
    return length


def _flag(properties: Properties, name: str) -> bool:
    value = properties.get(name, FALSE)
    if value not in (TRUE, FALSE):
        raise ArgumentError(f"properties.{name}: found {value!r:.80}, allowed are 'true' and 'false'")
    return value == TRUE


def _needs(properties: Properties) -> Vector:
    try:
        return needs_of(properties)
    except ValueError as error:
        raise CommandError(str(error)) from error


def _duration(properties: Properties, name: str) -> Duration:
    try:
        return parse_duration(properties[name]) if name in properties else 0
    except (ValueError, OverflowError) as error:
        raise CommandError(f"properties.{name}: {error}") from error


def _longest(properties: Properties) -> Duration | None:
    if "max_run" not in properties:
        return None
    found, least = _duration(properties, "max_run"), max(1, _duration(properties, "min_run"))
    if found < least:
        raise ArgumentError(
            f"properties.max_run: found {properties['max_run']!r:.80}, expected more than 0 and min_run"
        )
    return found


def _on_preempt(properties: Properties) -> str:
    found = properties.get("on_preempt", TERMINATE)
    if found not in ON_PREEMPT:
        raise ArgumentError(f"properties.on_preempt: found {found!r:.80}, allowed are {', '.join(ON_PREEMPT)}")
    if found == SUSPEND and "suspend" not in properties:
        raise CommandError("properties.on_preempt: 'suspend' goes with the property suspend, how long that takes")
    return found


def _number(properties: Properties, name: str, least: int | None) -> int:
    value = properties.get(name, "" if least is None else str(least))
    try:
        number = int(value)
    except ValueError:
        raise ArgumentError(f"properties.{name}: found {value!r:.80}, expected a whole number") from None
    if abs(number) > INSTANT_MAX:
        raise ArgumentError(f"properties.{name}: found {value!r:.80}, at most {INSTANT_MAX} is allowed")
    if least is not None and number < least:
        raise ArgumentError(f"properties.{name}: found {number}, expected at least {least}")
    return number


def kept_words(kept: Counts) -> str:
    """How the property :data:`KEEP` says it."""
    return ",".join(f"{class_.hex()}:{units}" for class_, units in kept)


def _counts(text: str) -> Counts:
    try:
        pairs = [entry.partition(":") for entry in text.split(",") if entry]
        return counts((bytes.fromhex(class_), int(units)) for class_, _, units in pairs)
    except ValueError:
        raise ArgumentError(f"properties.{KEEP}: found {text!r:.80}, expected CLASS:UNITS, the class in hex") from None


class ReplayedJob(NamedTuple):
    """One piece of work: asked for at ``submit``, to begin at ``start`` (``latest`` at the latest; -1: as its guest
    says) on ``units`` for ``estimate``, of which it takes ``run``. Instants and durations in milliseconds.

    ``type`` and ``site`` are empty where the log says none; ``holder`` is whose it is, ``?`` where that is not known.
    """

    id: str
    holder: str
    submit: Instant
    start: Instant
    latest: Instant
    units: int
    estimate: Duration
    run: Duration
    type: str = ""
    site: str = ""
    priority: int = 0
    properties: Properties = EMPTY
