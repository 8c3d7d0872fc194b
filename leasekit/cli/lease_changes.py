"""``leasekit lease``: ask for leases, one or at the same hours of many days; change them, end them."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from click.core import ParameterSource

from leasekit.cli.lease_looks import show_lease
from leasekit.cli.options import FILE_OR_INPUT, TERM, Count, Shown, argument, command, now, option, to_second
from leasekit.cli.output import listing, note, print_lines, printed
from leasekit.cli.places import GUEST, DeployPlace
from leasekit.cli.projects import ask_approval
from leasekit.cli.templates import found as template_of
from leasekit.cli.topology import request_topology
from leasekit.cli.watching import ACTIVE, GRANTED, Following, WatchOutcome, followed
from leasekit.cli.wishes import ANSWER_WITHIN, CONFIGURATION, HOURS, WISH, Hours, as_body
from leasekit.config.instants import dated, shown
from leasekit.config.recurrence import Recurrence, RecurrenceError, of_group
from leasekit.core.errors import LeasekitError
from leasekit.core.reasons import Code, counted
from leasekit.core.requests import WantedError, WantedLease
from leasekit.core.time import Duration, Instant, format_duration

if TYPE_CHECKING:
    from leasekit.runtime.client import ControlClient

REFUSED: Final = "refused"
POSSIBLE: Final = "possible"
"""What a day is that could be had by itself."""
QUOTA: Final = "mapper:quota"
BY_ITSELF: Final = "each day that is possible is so by itself: all together may come to more than a quota allows"
TO_BE_APPROVED: Final = "to be approved first: "


_show = listing(*TERM, "name", "id", "status", "site", "reason", empty="no days")


def request_series(
    place: DeployPlace,
    series: Recurrence,
    asked: Mapping[str, Any],
    *,
    start: Instant | None,
    dry_run: bool,
) -> Shown:
    """Ask for a lease on each day from ``start`` on (None: from now on), and say what becomes of each. ``asked`` has
    the arguments of each request but its term.
    """
    id_ = f"every-{secrets.token_hex(8)}"
    try:
        days, skipped = series.requests(id_, max(_now(place), start or 0), asked)
    except RecurrenceError as error:
        raise click.UsageError(f"--{error}") from None
    group = "" if series.each or len(days) == 1 else id_
    approval = ""
    if dry_run:
        with place.connect(GUEST) as client:
            tried = [client.request("command", "lease.dry_run", day) for day in days]
        rows = [_tried(*each) for each in zip(days, tried, strict=True)]
        approval = "; ".join(dict.fromkeys(one["approval"] for one in tried if "approval" in one))
        if sum(row["status"] == POSSIBLE for row in rows) > 1:
            note(BY_ITSELF)
    else:
        rows = _asked(place, days, group)
    refused = [row for row in rows if row["status"] == REFUSED]
    if skipped:
        note(f"left out, as the clocks of {series.zone} skip these hours: {', '.join(skipped)}")
    if approval:
        note(TO_BE_APPROVED + approval)
    kept = "" if series.each or dry_run or not group else "; none was kept"
    failed = LeasekitError(f"{len(refused)} of {len(rows)} days can't be had{kept}") if refused else None
    told = {"group": group, "days": rows, "skipped": skipped, **({"approval": approval} if approval else {})}
    return told, lambda found: _show(found["days"]), failed


def _row(day: Mapping[str, Any], status: str, reason: str, *, lease: str = "", site: str = "") -> dict[str, Any]:
    return {"name": day["name"], "id": lease, "term": day["term"], "status": status, "site": site, "reason": reason}


def _asked(place: DeployPlace, days: Sequence[Mapping[str, Any]], group: str) -> list[dict[str, Any]]:
    """Ask for all days, and wait for the answers. Raises ``LeasekitError`` where nothing could be asked for."""
    with followed(place.socket(GUEST), wait=True) as (client, following):
        assert following is not None, "it was to wait"
        answers = list(client.batch(("command", "lease.request", of_group(day, group, days)) for day in days))
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
            if QUOTA in codes.values():
                note(BY_ITSELF)
        return rows


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
            tried = _tried(day, client.request("command", "lease.dry_run", day))
        except LeasekitError:
            asks = False
            yield row
            continue
        yield tried


def _tried(day: Mapping[str, Any], answer: Mapping[str, Any]) -> dict[str, Any]:
    """What the broker would answer for one day."""
    status = POSSIBLE if answer["status"] == GRANTED else answer["status"]
    return _row(day, status, answer["reason"], site=answer["site"])


TRIES = 3
"""How many plans of a topology are tried, unless --tries says."""
WAIT: Any = option("Follow it until it is in force; exit with 1 if it fails.")
WAIT_FOR: Any = option("Follow it until it is granted, or active (as --wait).", type=(GRANTED, ACTIVE))
DRY_RUN: Any = option("Only ask what the broker would answer; exit with 1 if it would refuse.")
UNITS: Any = option("That many units [as now].", type=Count(min=1), metavar="N")
VICTIMS: Any = option("Give up this unit (repeat it), when it shrinks.", "--victim", metavar="UNIT")


@command(None, zoned=True)
def request(
    place: DeployPlace,
    wish: Mapping[str, Any] = WISH,
    start: Instant | None = option("When it begins [as soon as possible]."),
    deferrable_until: Instant | None = option("A later start will do, up to then."),
    after: str = option("Redeem it only when that lease is active.", metavar="LEASE"),
    join_after: str = option("Join its units only when that lease's have joined.", metavar="LEASE"),
    proceed: bool = option("Go on if a lease it waits for fails, instead of failing too."),
    group: str = option("All requests of this group are granted together, or none is.", metavar="ID"),
    group_size: int | None = option("On one request of the group: how many it has.", type=Count(min=1), metavar="N"),
    dry_run: bool = DRY_RUN,
    template: str = option("What is not said is as this template has it (`leasekit template`).", metavar="TEMPLATE"),
    topology: Path | None = option(
        "Sites and the links between them, all or nothing, as a TOML or JSON FILE says (in place of TYPE and UNITS).",
        type=FILE_OR_INPUT,
        metavar="FILE",
    ),
    tries: int | None = option("With --topology: how many plans to try [3].", type=Count(min=1)),
    hours: Hours = HOURS,
    last: Instant | None = option("With --every: the last day.", "--until", metavar="DATE"),
    why: str = option("Where the project's policy wants it approved: ask for that, and say why.", "--ask-approval"),
    wait: bool = WAIT,
    wait_for: str | None = WAIT_FOR,
) -> Shown:
    """Ask for UNITS units of a TYPE, or for a --topology.

    Without --start the lease begins as soon as it can while an answer is of use (--timeout), so that a small delay
    doesn't refuse it. With --start it begins then, or by --deferrable-until.

    With --every a lease is asked for on each day that it names, from --from to --to, up to and with the day of --until:
    all of them, or none; with --each those that can be had. The answer says which can't, and why. What is named NAME
    are leases NAME.DATE.

    With --template what is said here takes the place of what the template says; of one that recurs --until is said.

    Example:
      leasekit lease request vm 4 --for 1h --name web --wait
      leasekit lease request vm 8 --for 12h --start 2027-03-01T08:00Z --elastic 4
      leasekit lease request vm 8 --for 12h --start +1d --dry-run
      leasekit lease request vm 3 --for 2h --filter 'rack == b and memory_gb >= 64'
      leasekit lease request node 3 --for 2h --needs cpu=2,memory=4GiB
      leasekit lease request vm 20 --for 1d --preemptible --notice 2m
      leasekit lease request vm 2 --for 8h --start 'monday 9:00' --zone Europe/Berlin --wait-for granted
      leasekit lease request vm 4 --every mon-fri --from 9:00 --to 17:00 --until 2027-06-30 --name lab
      leasekit lease request --template lab --start 'monday 9:00' --zone Europe/Berlin
      leasekit lease request vm 40 --for 1d --ask-approval "a demo" --url https://lab.example
      leasekit lease request --topology topology.toml --dry-run
    """
    if topology is not None:
        _only(_WITH_TOPOLOGY, "--topology: the file says all of the request")
        broker = wish.get("broker", "")
        return request_topology(place, topology, broker=broker, tries=tries or TRIES, dry_run=dry_run, wait=wait)
    fields, days = (wish, None) if not template else _of_template(place, template, wish)
    series = hours.until(last, days)
    if series is not None:
        _only(_WITH_SERIES, "--every")
        fields = {**fields, "length": series.length}
    for name, param in (("type", "type_"), ("units", "units"), ("length", "span")):
        if name not in fields:
            raise _missing(param)
    if tries is not None:
        raise click.UsageError("--tries goes with --topology")
    own: dict[str, Any] = {
        "start": start, "deferrable_until": deferrable_until, "after": after, "join_after": join_after,
        "proceed": proceed, "group": group, "group_size": group_size,
    }  # fmt: skip
    said = {**fields, **{name: value for name, value in own.items() if value not in (None, "", False)}}
    wanted = WantedLease(**said)
    if why:
        if dry_run or wait or wait_for:
            raise click.UsageError("--ask-approval goes without --dry-run and --wait")
        return _ask_approval(place, said, series, why)
    try:
        requested = wanted.request_properties()
        if series is not None:
            asked = {
                "type": wanted.type, "units": wanted.units, "slice": wanted.slice, "name": wanted.name,
                "broker": wanted.broker, "site": wanted.site, "configuration": wanted.configuration,
                "properties": {"request_timeout": format_duration(ANSWER_WITHIN), **requested},
            }  # fmt: skip
            return request_series(place, series, asked, start=start, dry_run=dry_run)
        wanted.arguments(now(), ANSWER_WITHIN)  # what is wrong with it is said without a daemon
        arguments = wanted.arguments(_now(place) if start is None else start, ANSWER_WITHIN)
    except WantedError as error:
        option_ = f"--{error.field.replace('_', '-')}"
        text = f" goes with --{error.goes_with}" if error.goes_with else f": {dated(error.text)}"
        raise click.UsageError(option_ + text) from None
    latest = arguments["properties"].get("latest_start")
    if dry_run:
        if wait or wait_for or group:
            raise click.UsageError("--dry-run goes without --wait and --group")
        answer = place.command(GUEST, "lease.dry_run", **arguments)
        return _answer(answer, latest=None if latest is None else int(latest))
    return _change(place, "lease.request", arguments, wait=wait_for or wait)


def _ask_approval(place: DeployPlace, said: Mapping[str, Any], series: Recurrence | None, why: str) -> Shown:
    """Ask that a request, or one for each day of a ``series``, be approved."""
    times = {name: shown(said[name]) for name in ("start", "deferrable_until") if name in said}
    body: dict[str, Any] = {"request": {**as_body(said), **times}}
    if series is not None:
        del body["request"]["length"]
        days = Hours(series.days, series.begin, series.end, series.each).as_body(series.zone)
        body = {"series": {**body, **days, "until": str(series.last_day)}}
    return ask_approval(place, {**body, "why": why})


def _of_template(
    place: DeployPlace, name: str, wish: Mapping[str, Any]
) -> tuple[Mapping[str, Any], Mapping[str, Any] | None]:
    """What is wished for, and, where that is not said, what a template has; and the days of a template that recurs.
    Raises ``LeasekitError``.
    """
    import attrs
    import msgspec

    from leasekit.client.shapes import LeaseRequest
    from leasekit.gateway.leases import wanted_lease

    if place.control is not None:
        raise click.UsageError("--template goes without --control: templates are a gateway's (--url, or --file)")
    kept = template_of(place._replace(actor=""), name, place.actor)
    wanted = wanted_lease(msgspec.convert(kept["request"], LeaseRequest))
    fields = attrs.asdict(wanted, recurse=False, filter=lambda _, value: value is not None)
    return {**fields, **wish}, kept["days"]


def _now(place: DeployPlace) -> Instant:
    """What time it is at the daemon, which need not be that of this machine's clock."""
    return int(place.query(GUEST, "clock")["now"])


def _missing(name: str) -> click.MissingParameter:
    """What click itself says of a parameter that must be there."""
    context = click.get_current_context()
    param = next(param for param in context.command.params if param.name == name)
    return click.MissingParameter(ctx=context, param=param)


_ALWAYS: Final = {"as_json", "file", "state", "actor", "control", "url"}
"""What says which daemon is asked, and how its answer is shown."""
_WITH_TOPOLOGY: Final = {"topology", "tries", "broker", "dry_run", "wait"}
_WITH_SERIES: Final = {
    "type_", "units", "start", "slice_", "name", "site", "broker", "properties", "configuration", "filter_", "elastic",
    "needs", "preemptible", "notice", "min_run", "max_run", "on_preempt", "bid", "timeout", "dry_run", "days", "begin",
    "end", "last", "each", "zone", "template", "why",
}  # fmt: skip
_WITH_UNDO: Final = {"name", "undo", "wait"}


def _only(allowed: Collection[str], why: str) -> None:
    """Refuses what an option goes without. Raises ``UsageError``."""
    context = click.get_current_context()
    for param in context.command.params:
        name = param.name or ""
        if name not in (*allowed, *_ALWAYS) and context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            found = param.opts[0] if isinstance(param, click.Option) else param.human_readable_name
            raise click.UsageError(f"{found} goes without {why}")


def _try(
    place: DeployPlace,
    command: str,
    arguments: Callable[[Callable[[], Mapping[str, Any]]], Mapping[str, Any]],
    *,
    name: str,
    wait: bool,
) -> Shown:
    """Ask what the broker would answer to a change of a lease; nothing changes. Returns the exit status."""
    if wait:
        raise click.UsageError("--dry-run goes without --wait")
    with place.connect(GUEST) as client:
        answer = client.request("command", command, arguments(lambda: _query(client, name)))
    return _answer(answer)


def _answer(answer: Mapping[str, Any], *, latest: Instant | None = None) -> Shown:
    """What the broker would answer to a request whose latest start is ``latest``."""
    broker, reason = answer["broker"], answer["reason"]
    if answer["status"] == "granted":
        start, end = map(to_second, answer["term"])
        words = f"{broker} would grant {counted(answer['units'])} at {answer['site']} over {start} .. {end}"
    elif answer["status"] == "waits":
        until = "" if latest is None else f" until {to_second(latest)}, and refuse it if it can't start by then"
        words = dated(f"{broker} would let it wait{until}: {reason or 'it gave no reason'}")
    else:
        return answer, (), LeasekitError(f"{broker} would refuse it: {reason}")
    lines = [words, *([TO_BE_APPROVED + answer["approval"]] if "approval" in answer else [])]
    return answer, lambda _: print_lines(lines)


@command(None, zoned=True)
def extend(
    place: DeployPlace,
    name: str = argument("LEASE"),
    span: Duration | None = option("How much longer than its end, or that of its last extension.", "--for"),
    until: Instant | None = option("The new end."),
    undo: bool = option("Take back its last extension, which has not begun."),
    units: int | None = UNITS,
    victims: Sequence[str] = VICTIMS,
    properties: Sequence[tuple[str, str]] = option("Request property, told to the broker (repeat it).", "--property"),
    dry_run: bool = DRY_RUN,
    wait: bool = WAIT,
    wait_for: str | None = WAIT_FOR,
) -> Shown:
    """Renew a lease beyond its end, with as many units as now, or more, or fewer.

    The new number of units holds from the old end on, and --wait waits until then. It may be extended further before
    that, and be modified, up to the old end: what was granted to go on from its term stands, in number and time. Each
    --undo takes the last extension back, until it begins: its units and its time go back to the broker.

    Example:
      leasekit lease extend web --for 2h --units 6
      leasekit lease extend web --for 2h --dry-run
      leasekit lease extend web --until 2027-03-01T20:00Z --units 3 --victim vm-0 --victim vm-4
      leasekit lease extend web --undo
    """
    if undo:
        _only(_WITH_UNDO, "--undo: it takes the whole of the last extension back")
        return _change(place, "lease.undo_extend", {"lease": name}, name=name, wait=wait)
    if (span is None) == (until is None):
        raise click.UsageError("give either --for or --until, or --undo")

    def arguments(query: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
        end = until if until is not None else query()["last_end"] + (span or 0)
        return {
            "lease": name,
            "end": end,
            "units": units,
            "victims": list(victims),
            "properties": dict(properties),
        }

    waits = wait_for or wait
    if dry_run:
        return _try(place, "lease.dry_run_extend", arguments, name=name, wait=bool(waits))
    return _change(place, "lease.extend", arguments, name=name, wait=waits)


@command(None, zoned=True)
def modify(
    place: DeployPlace,
    name: str = argument("LEASE"),
    units: int | None = UNITS,
    until: Instant | None = option("The new end [as now]."),
    start: Instant | None = option(
        "The new start, of a lease that has not begun; without --until its end moves as well."
    ),
    filter_: str | None = option("The new filter, of a lease that has not begun.", "--filter", metavar="EXPRESSION"),
    configuration: Sequence[tuple[str, str]] = CONFIGURATION,
    victims: Sequence[str] = VICTIMS,
    dry_run: bool = DRY_RUN,
    wait: bool = WAIT,
    wait_for: str | None = WAIT_FOR,
) -> Shown:
    """Change a lease: its units, its end, its configuration; before it begins its start and its filter as well.

    A lease that has not begun gets another ticket. Until that is granted it keeps the one that it has, also if the
    change is refused. --wait waits until it has begun.

    A lease that was extended is changed in its running term: the extension stands as it was granted, so that the end
    can't be changed, and begins with the configuration that the lease has by then. In the last seconds before it begins
    a change is refused.

    Example:
      leasekit lease modify web --units 3 --wait
      leasekit lease modify web --config cap=50
      leasekit lease modify web --start +2h --filter "rack == b" --wait-for granted
      leasekit lease modify web --units 9 --dry-run
    """
    arguments = {
        "lease": name,
        "units": units,
        "end": until,
        "start": start,
        "filter": filter_,
        "configuration": dict(configuration) if configuration else None,
        "victims": list(victims),
    }
    waits = wait_for or wait
    if dry_run:
        return _try(place, "lease.dry_run_modify", lambda _: arguments, name=name, wait=bool(waits))
    return _change(place, "lease.modify", arguments, name=name, wait=waits)


@command(None)
def close(
    place: DeployPlace,
    name: str = argument("LEASE"),
    reason: str = option("Why, for the lease's history."),
    wait: bool = option("Follow it until it is closed, and its units are torn down."),
) -> Shown:
    """End a lease early; what is left of its time goes back to the broker.

    Example:
      leasekit lease close web --wait
    """
    return _change(place, "lease.close", {"lease": name, "reason": reason}, name=name, wait=wait)


def _change(
    place: DeployPlace,
    command: str,
    arguments: Mapping[str, Any] | Callable[[Callable[[], Mapping[str, Any]]], Mapping[str, Any]],
    *,
    name: str = "",
    wait: bool | str,
) -> Shown:
    """Send a command that changes a lease, follow it if that is wanted, and show the lease as it is then.

    ``arguments`` may be a function, which is given how to look at the lease first.
    """
    outcome: WatchOutcome | None = None
    with followed(place.socket(GUEST), bool(wait)) as (client, following):
        if callable(arguments):
            arguments = arguments(lambda: _query(client, name))
        changed = client.request("command", command, arguments)
        if following is not None:
            outcome = _follow_change(following, command, arguments, changed["id"], wait)
            changed = client.query("lease", lease=changed["id"])
    if outcome is None or outcome.ok:
        return changed, show_lease
    return changed, show_lease, LeasekitError(f"lease {changed['id']}: {outcome.reason}")


def _follow_change(
    following: Following, command: str, arguments: Mapping[str, Any], lease: str, wait: bool | str
) -> WatchOutcome:
    if command == "lease.close":
        return following.until_closed(lease)
    if command == "lease.undo_extend":
        return following.until_undone(lease)
    end = arguments["end"] if command == "lease.extend" else 0
    return following.until_granted([lease], end)[lease] if wait == GRANTED else following.until_active(lease, end)


def _query(client: Any, name: str) -> Mapping[str, Any]:
    answer: Mapping[str, Any] = client.query("lease", lease=name)
    return answer


@command(None)
def hand(
    place: DeployPlace,
    name: str = argument("LEASE"),
    to: str = argument("TO"),
    project: str = option("The project, where one has several.", metavar="NAME"),
    reason: str = option("Why."),
) -> Shown:
    """Have a LEASE be a colleague's, TO, who is a user of the project. Its gateway is asked.

    Example:
      leasekit lease hand web bob --reason "my holidays" --url https://lab.example
    """
    body = {"to": to, "reason": reason}
    made = place.api("POST", "/leases/{lease}/hand", body, lease=name, project=project)
    return made, printed(f"{made['id']}: {to}'s")
