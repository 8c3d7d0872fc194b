"""What command lines say of a request, whether it is made now, kept as a template, or waited for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, time, tzinfo
from typing import Any, Final, NamedTuple

import click
from click.core import ParameterSource

from leasekit.actors.settings import GuestSettings
from leasekit.cli.options import Count, Parsed, argument, gathered, option, zone_of
from leasekit.config.instants import WEEKDAYS, on_clock, parse_clock, zone_named
from leasekit.config.recurrence import Recurrence, weekdays
from leasekit.core.properties import Vector, read_amount, written
from leasekit.core.requests import NOTICE, ON_PREEMPT, SUSPEND, TERMINATE, WantedLease
from leasekit.core.time import SECOND, Duration, Instant, format_duration, parse_duration

ANSWER_WITHIN: Duration = GuestSettings().request_timeout
CONFIGURATION: Any = option("Configuration property, told to the site (repeat it).", "--config")
_ANY_SPAN: Final = Parsed("duration", parse_duration)


def _needs(text: str) -> Vector:
    """How much of each resource, as ``cpu=2,memory=4GiB``."""
    pairs = [entry.partition("=") for entry in text.split(",")]
    if not all(name.strip() and equal for name, equal, _ in pairs):
        raise ValueError(f"found {text!r}, expected RESOURCE=AMOUNT,..., such as cpu=2,memory=4GiB")
    try:
        found = {name.strip(): read_amount(name.strip(), much) for name, _, much in pairs}
    except ValueError as error:
        raise ValueError(f"{error} (as in cpu=2,memory=4GiB)") from None
    if len(found) < len(pairs):
        raise ValueError(f"found {text!r}, expected each resource once")
    return tuple(sorted(found.items()))


NEEDS: Any = option(
    "Machines on hosts, each with so much: `cpu=2,memory=4GiB` [whole hosts].", "--needs",
    type=Parsed("resource=amount,...", _needs),
)  # fmt: skip


def needs_as_written(needs: Vector) -> dict[str, str]:
    """How much of each resource, as the API has it."""
    return dict(pair.split("=") for pair in written(needs).split(",")) if needs else {}


def _wish(
    type_: str | None = argument("TYPE"),
    units: int | None = argument("UNITS", type=Count(min=1)),
    span: Duration | None = option("How long.", "--for"),
    slice_: str = option("The slice it belongs to [default].", metavar="NAME"),
    name: str = option("A name of its own in its slice."),
    site: str = option("Only at this site."),
    broker: str = option("The broker to ask, where there are several."),
    properties: Sequence[tuple[str, str]] = option("Request property, told to the broker (repeat it).", "--property"),
    configuration: Sequence[tuple[str, str]] = CONFIGURATION,
    filter_: str | None = option("Only units with such attributes: `rack == b`.", metavar="EXPRESSION"),
    needs: Vector | None = NEEDS,
    elastic: int | None = option("Fewer units will do, down to MIN.", type=Count(min=1), metavar="MIN"),
    preemptible: bool = option("Its broker may end it early, to make room for others."),
    notice: Duration | None = option(
        f"How long before that it hears of it, 0s allowed [{format_duration(NOTICE)}].", type=_ANY_SPAN
    ),
    min_run: Duration | None = option("How long it runs at least before that."),
    bid: int | None = option("What it pays at most for a unit and billing period.", type=Count(min=0), metavar="PRICE"),
    max_run: Duration | None = option("How long it runs at most, extensions included."),
    on_preempt: str | None = option(
        f"What becomes of it then [{TERMINATE}]; {SUSPEND} goes with `--property suspend=30s`, how long that takes.",
        type=click.Choice(ON_PREEMPT),
    ),
    timeout: Duration | None = option(f"How long an answer is of use [{format_duration(ANSWER_WITHIN)}]."),
) -> dict[str, Any]:
    """The fields of :class:`WantedLease` that are said."""
    said = {
        "type": type_ or "", "units": units or 0, "length": span, "slice": slice_, "name": name, "site": site,
        "broker": broker, "properties": dict(properties), "configuration": dict(configuration), "filter": filter_,
        "needs": needs or (), "elastic": elastic, "preemptible": preemptible, "notice": notice, "min_run": min_run,
        "bid": bid, "max_run": max_run, "on_preempt": on_preempt, "timeout": timeout,
    }  # fmt: skip
    return {field: value for field, value in said.items() if value != getattr(_NOTHING, field)}


_NOTHING: Final = WantedLease(type="", units=0)
WISH: Any = gathered(_wish)
"""What is asked for, at any time."""
_SPANS: Final = ("length", "notice", "min_run", "max_run", "timeout")


def as_body(wish: Mapping[str, Any]) -> dict[str, Any]:
    """A wish, as the API has it."""
    body = {**wish, **{name: format_duration(wish[name]) for name in _SPANS if name in wish}}
    return {**body, "needs": needs_as_written(wish.get("needs", ()))}


class Hours(NamedTuple):
    """The same hours of some days of the week, as far as they are said; ``each``: those that can be had."""

    days: frozenset[int] | None
    begin: time | None
    end: time | None
    each: bool

    def __bool__(self) -> bool:
        return self != Hours(None, None, None, False)

    def as_body(self, zone: tzinfo) -> dict[str, Any]:
        """The days of a template. Raises ``UsageError``."""
        if self.days is None or self.begin is None or self.end is None:
            raise click.UsageError("--every, --from and --to go together, and --each with them")
        every = ",".join(WEEKDAYS[day][:3] for day in sorted(self.days))
        clocks = {"begin": f"{self.begin:%H:%M}", "finish": f"{self.end:%H:%M}"}
        return {"every": every, **clocks, "zone": str(zone), "each": self.each}

    def until(self, last: Instant | None, days: Mapping[str, Any] | None) -> Recurrence | None:
        """The recurrence up to the day of ``last``; what is not said is as a template's ``days`` have it. None: nothing
        recurs. Raises ``UsageError``.
        """
        context = click.get_current_context()
        zone, found = zone_of(context), self
        if (kept := days) is not None:
            begin, end = self.begin or parse_clock(kept["begin"]), self.end or parse_clock(kept["finish"])
            found = Hours(self.days or weekdays(kept["every"]), begin, end, self.each or kept.get("each", False))
            if last is None:
                raise click.UsageError("--until: found none, the template recurs: say its last day")
            if context.get_parameter_source("zone") is not ParameterSource.COMMANDLINE:
                day = datetime.fromtimestamp(last // SECOND, zone).date()
                zone = zone_named(kept.get("zone", "UTC"))
                last = on_clock(datetime.combine(day, time(12), zone))
        if found.days is not None and found.begin is not None and found.end is not None and last is not None:
            if found.begin >= found.end:
                raise click.UsageError(f"--to: found {found.end:%H:%M}, which is not after --from, {found.begin:%H:%M}")
            return Recurrence(found.days, found.begin, found.end, last, found.each, zone)
        if found or last is not None:
            raise click.UsageError("--every, --from, --to and --until go together, and --each with them")
        return None


def _clock(text: str) -> time:
    """A time of day, by which what recurs begins or ends."""
    try:
        return parse_clock(text)
    except ValueError as error:
        raise ValueError(f"{error}; a single lease has --start and --for") from None


_DAYS: Final = Parsed("days", weekdays)
_CLOCK: Final = Parsed("time", _clock)
HOURS: Any = gathered(
    Hours,
    days=option("On each of these days: mon-fri; mon,thu; day.", "--every", type=_DAYS, metavar="DAYS"),
    begin=option("With --every: when it begins on each day.", "--from", type=_CLOCK, metavar="HH:MM"),
    end=option("With --every: when it ends on each day.", "--to", type=_CLOCK, metavar="HH:MM"),
    each=option("With --every: those that can be had, not all or none.", is_flag=True),
)
