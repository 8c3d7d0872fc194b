"""``leasekit lease request --every``: leases at the same hours of many days, by one command with one answer."""

from __future__ import annotations

import functools
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime, time, tzinfo
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import click

from leasekit.cli.output import listing, note, report
from leasekit.cli.places import GUEST, DeployPlace
from leasekit.cli.times import TERM, WHEN, on_clock, parse_clock, weekday, zone_of
from leasekit.cli.watching import GRANTED, followed
from leasekit.config.instants import CALENDAR_END
from leasekit.core.errors import LeasekitError
from leasekit.core.reasons import Code
from leasekit.core.time import DAY, MINUTE, SECOND, Duration, Instant

if TYPE_CHECKING:
    from leasekit.runtime.client import ControlClient

SERIES_MAX: Final = 400
"""How many leases one command asks for at most: those of a year's days, and some."""
REFUSED: Final = "refused"
POSSIBLE: Final = "possible"
"""What a day is that could be had if all others could."""

T = TypeVar("T")


class _Days(click.ParamType[frozenset[int]]):
    name = "days"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> frozenset[int]:
        days: set[int] = set()
        try:
            for part in str(value).split(","):
                first, dash, last = part.strip().partition("-")
                begin = 0 if first == "day" else weekday(first)
                count = 6 if first == "day" else (weekday(last) - begin) % 7 if dash else 0
                days |= {(begin + ahead) % 7 for ahead in range(count + 1)}
        except ValueError:
            self.fail(f"found {value!s:.40}, expected days such as mon-fri, mon,wed, or day for each", param, ctx)
        return frozenset(days)


class _Clock(click.ParamType[time]):
    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> time:
        try:
            return parse_clock(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Recurrence(NamedTuple):
    """On which days of the week, between which hours of a ``zone``, and up to which instant's day. ``each``: those that
    can be had, and not all or none.
    """

    days: frozenset[int]
    begin: time
    end: time
    last: Instant
    each: bool
    zone: tzinfo

    @property
    def length(self) -> Duration:
        """How long it is on the clock."""
        return ((self.end.hour - self.begin.hour) * 60 + self.end.minute - self.begin.minute) * MINUTE

    def terms(self, start: Instant) -> Iterator[tuple[date, tuple[Instant, Instant]]]:
        """The days, and their terms, that begin at ``start`` or later. A term has no length where the clock skips its
        hours.
        """
        # A day short of what a calendar has: its last instant lies beyond in some zones.
        first, last = (
            datetime.fromtimestamp(min(at, CALENDAR_END - DAY) // SECOND, self.zone).date() for at in (start, self.last)
        )
        if last < first:
            raise click.UsageError(f"--until: found {last}, which is before the first day, {first}")
        for day in map(date.fromordinal, range(first.toordinal(), last.toordinal() + 1)):
            begin, end = (on_clock(datetime.combine(day, at, self.zone)) for at in (self.begin, self.end))
            if day.weekday() in self.days and begin >= start:
                yield day, (begin, max(begin, end))


def series_options(function: Callable[..., T]) -> Callable[..., T]:
    """Adds ``--every`` and what goes with it; the command gets a ``series``, or None."""

    @click.option("--every", "days", type=_Days(), metavar="DAYS", help="On each of these days: mon-fri; mon,thu; day.")
    @click.option("--from", "begin", type=_Clock(), metavar="HH:MM", help="With --every: when it begins on each day.")
    @click.option("--to", "end", type=_Clock(), metavar="HH:MM", help="With --every: when it ends on each day.")
    @click.option("--until", "last", type=WHEN, metavar="DATE", help="With --every: the last day.")
    @click.option("--each", is_flag=True, help="With --every: those that can be had, not all or none.")
    @click.pass_context
    @functools.wraps(function)
    def command(
        context: click.Context,
        /,
        *arguments: Any,
        days: frozenset[int] | None,
        begin: time | None,
        end: time | None,
        last: Instant | None,
        each: bool,
        **others: Any,
    ) -> T:
        series = None
        if days is not None and begin is not None and end is not None and last is not None:
            if begin >= end:
                raise click.UsageError(f"--to: found {end:%H:%M}, which is not after --from, {begin:%H:%M}")
            series = Recurrence(days, begin, end, last, each, zone_of(context))
        elif each or any(one is not None for one in (days, begin, end, last)):
            raise click.UsageError("--every, --from, --to and --until go together, and --each with them")
        return function(*arguments, series=series, **others)

    return command


_show = listing(*TERM, "name", "id", "status", "site", "reason", empty="no days")


def request_series(
    place: DeployPlace,
    series: Recurrence,
    asked: Mapping[str, Any],
    *,
    start: Instant | None,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Ask for a lease on each day from ``start`` on (None: from now on), and say what becomes of each. ``asked`` has
    the arguments of each request but its term. Raises ``LeasekitError`` if not all can be had.
    """
    now = int(place.query(GUEST, "clock")["now"])
    days, skipped = _days(series, max(now, start or 0), asked)
    group = "" if series.each or len(days) == 1 else f"every-{secrets.token_hex(8)}"
    if dry_run:
        with place.connect(GUEST) as client:
            rows = [_tried(client, day) for day in days]
    else:
        rows = _asked(place, days, group)
    refused = [row for row in rows if row["status"] == REFUSED]
    report({"group": group, "days": rows, "skipped": skipped}, lambda found: _show(found["days"]), as_json=as_json)
    if skipped:
        note(f"left out, as the clocks of {series.zone} skip these hours: {', '.join(skipped)}")
    if refused:
        kept = "" if series.each or dry_run or not group else "; none was kept"
        raise LeasekitError(f"{len(refused)} of {len(rows)} days can't be had{kept}")
    return 0


def _days(series: Recurrence, start: Instant, asked: Mapping[str, Any]) -> tuple[list[dict[str, Any]], list[str]]:
    """The arguments of all requests, and the days that have no such hours. Raises ``UsageError``."""
    days: list[dict[str, Any]] = []
    skipped: list[str] = []
    for day, term in series.terms(start):
        if term[0] == term[1]:
            skipped.append(str(day))
            continue
        if len(days) == SERIES_MAX:
            raise click.UsageError(f"--until: expected at most {SERIES_MAX} leases, by {day} there are more")
        name = f"{asked['name']}.{day}" if asked["name"] else ""
        days.append({**asked, "name": name, "term": list(term)})
    if not days:
        raise click.UsageError("--every: no such day is left to come up to --until")
    return days, skipped


def _row(day: Mapping[str, Any], status: str, reason: str, *, lease: str = "", site: str = "") -> dict[str, Any]:
    return {"name": day["name"], "id": lease, "term": day["term"], "status": status, "site": site, "reason": reason}


def _asked(place: DeployPlace, days: Sequence[Mapping[str, Any]], group: str) -> list[dict[str, Any]]:
    """Ask for all days, and wait for the answers. Raises ``LeasekitError`` where nothing could be asked for."""
    with followed(place.socket(GUEST), wait=True) as (client, following):
        assert following is not None, "it was to wait"
        answers = list(client.batch(("command", "lease.request", _of_group(day, group, days)) for day in days))
        leases = {answer["id"] for answer in answers if isinstance(answer, Mapping)}
        error = next((answer for answer in answers if isinstance(answer, LeasekitError)), None)
        if error is not None and (group or not leases):
            for _ in client.batch(("command", "lease.close", {"lease": lease}) for lease in leases):
                pass  # what can't be closed is over
            following.until_all_closed(leases)
            raise error
        outcomes = following.until_granted(leases)
        found = {lease: client.query("lease", lease=lease) for lease in leases}
        rows = []
        for day, answer in zip(days, answers, strict=True):
            if isinstance(answer, LeasekitError):
                rows.append(_row(day, REFUSED, str(answer)))
                continue
            outcome, lease = outcomes[answer["id"]], found[answer["id"]]
            status = GRANTED if outcome.ok else REFUSED
            rows.append(_row(day, status, outcome.reason, lease=lease["id"], site=lease["site"] if outcome.ok else ""))
        if group and rows[0]["status"] == REFUSED:
            codes = {lease: (now["because"] or {}).get("code") for lease, now in found.items()}
            rows = list(_told_apart(client, days, rows, codes))
        return rows


def _of_group(day: Mapping[str, Any], group: str, days: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The arguments of a day's request, which begins when it says or not at all; the first one leads the group."""
    if not group:
        return dict(day)
    own = {"group_id": group, "latest_start": str(day["term"][0])}
    if day is days[0]:
        own["lease_count"] = str(len(days))
    return {**day, "properties": {**day["properties"], **own}}


def _told_apart(
    client: ControlClient, days: Sequence[Mapping[str, Any]], rows: Iterable[dict[str, Any]], codes: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    """The days of a group that was refused. Which of them could be had by themselves the broker is asked, as long as it
    answers.
    """
    asks = any(code != Code.GROUP_REFUSED for code in codes.values())
    for day, row in zip(days, rows, strict=True):
        if not asks or codes[row["id"]] != Code.GROUP_REFUSED:
            yield row
            continue
        try:
            tried = _tried(client, day)
        except LeasekitError:
            asks = False
            yield row
            continue
        yield tried


def _tried(client: ControlClient, day: Mapping[str, Any]) -> dict[str, Any]:
    """What the broker would answer for one day. Raises ``LeasekitError``."""
    answer = client.request("command", "lease.dry_run", day)
    status = POSSIBLE if answer["status"] == GRANTED else answer["status"]
    return _row(day, status, answer["reason"], site=answer["site"])
