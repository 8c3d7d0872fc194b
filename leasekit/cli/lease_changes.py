"""``leasekit lease``: ask for leases, change them, end them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click
from click.core import ParameterSource

from leasekit.actors.settings import GuestSettings
from leasekit.cli.lease_looks import last_end, show_lease
from leasekit.cli.output import clean, example, json_option, print_json, report
from leasekit.cli.places import GUEST, DeployPlace, daemon_options
from leasekit.cli.recurring import Recurrence, request_series, series_options
from leasekit.cli.times import PAIR, SPAN, WHEN, Count, now, to_second, zone_option
from leasekit.cli.topology import request_topology
from leasekit.cli.watching import ACTIVE, GRANTED, Following, WatchOutcome, followed
from leasekit.config.instants import dated, shown
from leasekit.core.errors import LeasekitError
from leasekit.core.reasons import counted
from leasekit.core.time import Duration, Instant, format_duration

TRIES = 3
"""How many plans of a topology are tried, unless --tries says."""
ANSWER_WITHIN: Duration = GuestSettings().request_timeout

wait_option = click.option("--wait", is_flag=True, help="Follow it until it is in force; exit with 1 if it fails.")
wait_for_option = click.option(
    "--wait-for", type=click.Choice([GRANTED, ACTIVE]), help="Follow it until it is granted, or active (as --wait)."
)
dry_run_option = click.option(
    "--dry-run", is_flag=True, help="Only ask what the broker would answer; exit with 1 if it would refuse."
)
units_option = click.option("--units", type=Count(min=1), metavar="N", help="That many units [as now].")
victims_option = click.option(
    "--victim", "victims", multiple=True, metavar="UNIT", help="Give up this unit (repeat it), when it shrinks."
)
configuration_option = click.option(
    "--config", "configuration", type=PAIR, multiple=True, help="Configuration property, told to the site (repeat it)."
)


@click.command(
    epilog=example(
        "leasekit lease request vm 4 --for 1h --name web --wait",
        "leasekit lease request vm 8 --for 12h --start 2027-03-01T08:00Z --elastic 4",
        "leasekit lease request vm 8 --for 12h --start +1d --dry-run",
        "leasekit lease request vm 3 --for 2h --filter 'rack == b and memory_gb >= 64'",
        "leasekit lease request vm 2 --for 8h --start 'monday 9:00' --zone Europe/Berlin --wait-for granted",
        "leasekit lease request vm 4 --every mon-fri --from 9:00 --to 17:00 --until 2027-06-30 --name lab",
        "leasekit lease request --topology topology.toml --dry-run",
    )
)
@click.argument("type_", metavar="TYPE", required=False)
@click.argument("units", metavar="UNITS", type=Count(min=1), required=False)
@click.option("--for", "span", type=SPAN, help="How long.")
@click.option("--start", type=WHEN, help="When it begins [as soon as possible].")
@click.option("--slice", "slice_", default="", metavar="NAME", help="The slice it belongs to [default].")
@click.option("--name", default="", help="A name of its own in its slice.")
@click.option("--site", default="", help="Only at this site.")
@click.option("--broker", default="", help="The broker to ask, where there are several.")
@click.option(
    "--property", "properties", type=PAIR, multiple=True, help="Request property, told to the broker (repeat it)."
)
@configuration_option
@click.option("--filter", "filter_", metavar="EXPRESSION", help="Only units with such attributes: `rack == b`.")
@click.option("--elastic", type=Count(min=1), metavar="MIN", help="Fewer units will do, down to MIN.")
@click.option("--deferrable-until", type=WHEN, help="A later start will do, up to then.")
@click.option("--timeout", type=SPAN, help=f"How long an answer is of use [{format_duration(ANSWER_WITHIN)}].")
@click.option("--after", default="", metavar="LEASE", help="Redeem it only when that lease is active.")
@click.option("--join-after", default="", metavar="LEASE", help="Join its units only when that lease's have joined.")
@click.option("--proceed", is_flag=True, help="Go on if a lease it waits for fails, instead of failing too.")
@click.option("--group", default="", metavar="ID", help="All requests of this group are granted together, or none is.")
@click.option("--group-size", type=Count(min=1), metavar="N", help="On one request of the group: how many it has.")
@dry_run_option
@click.option(
    "--topology",
    type=click.Path(path_type=Path, allow_dash=True),
    metavar="FILE",
    help="Sites and the links between them, all or nothing, as a TOML or JSON FILE says (in place of TYPE and UNITS).",
)
@click.option("--tries", type=Count(min=1), help="With --topology: how many plans to try [3].")
@series_options
@zone_option
@wait_option
@wait_for_option
@daemon_options
@json_option
@click.pass_context
def request(
    context: click.Context,
    /,
    place: DeployPlace,
    type_: str | None,
    units: int | None,
    span: Duration | None,
    start: Instant | None,
    slice_: str,
    name: str,
    site: str,
    broker: str,
    properties: Sequence[tuple[str, str]],
    configuration: Sequence[tuple[str, str]],
    filter_: str | None,
    elastic: int | None,
    deferrable_until: Instant | None,
    timeout: Duration | None,
    after: str,
    join_after: str,
    proceed: bool,
    group: str,
    group_size: int | None,
    dry_run: bool,
    topology: Path | None,
    tries: int | None,
    series: Recurrence | None,
    wait: bool,
    wait_for: str | None,
    as_json: bool,
) -> int:
    """Ask for UNITS units of a TYPE, or for a --topology.

    Without --start the lease begins as soon as it can while an answer is of use (--timeout), so that a small delay
    doesn't refuse it. With --start it begins then, or by --deferrable-until.

    With --every a lease is asked for on each day that it names, from --from to --to, up to and with the day of --until:
    all of them, or none; with --each those that can be had. The answer says which can't, and why. What is named NAME
    are leases NAME.DATE.
    """
    if topology is not None:
        _only(context, _WITH_TOPOLOGY, "--topology: the file says all of the request")
        return request_topology(
            place, topology, broker=broker, tries=tries or TRIES, dry_run=dry_run, wait=wait, as_json=as_json
        )
    if series is not None:
        _only(context, _WITH_SERIES, "--every")
        span = series.length
    if type_ is None or units is None or span is None:
        missing = {"type_": type_, "units": units, "span": span}
        raise _missing(context, next(name for name, given in missing.items() if given is None))
    if tries is not None:
        raise click.UsageError("--tries goes with --topology")
    requested = dict(properties)
    if filter_ is not None:
        requested["filter"] = filter_
    if elastic is not None:
        if elastic > units:
            raise click.UsageError(f"--elastic: found {elastic}, expected at most the {counted(units)} asked for")
        requested |= {"elastic": "true", "min_units": str(elastic)}
    if group:
        requested["group_id"] = group
    if group_size is not None:
        if not group:
            raise click.UsageError("--group-size goes with --group")
        requested["lease_count"] = str(group_size)
    if timeout is not None:
        requested["request_timeout"] = f"{timeout}ms"
    if series is not None:
        asked = {
            "type": type_, "units": units, "slice": slice_, "name": name, "broker": broker, "site": site,
            "properties": {"request_timeout": f"{ANSWER_WITHIN}ms", **requested}, "configuration": dict(configuration),
        }  # fmt: skip
        return request_series(place, series, asked, start=start, dry_run=dry_run, as_json=as_json)
    latest, least = deferrable_until, now() if start is None else start
    if latest is not None and latest < least:
        raise click.UsageError(f"--deferrable-until: found {shown(latest)}, which is before the start, {shown(least)}")
    begin = _now(place) if start is None else start
    if start is None and latest is None:
        latest = begin + (timeout or ANSWER_WITHIN)
    if latest is not None:
        requested |= {"deferrable": "true", "latest_start": str(latest)}
    arguments = {
        "type": type_,
        "units": units,
        "term": [begin, begin + span],
        "slice": slice_,
        "name": name,
        "broker": broker,
        "site": site,
        "properties": requested,
        "configuration": dict(configuration),
        "redeem_predecessor": after,
        "join_predecessor": join_after,
        "if_predecessor_fails": "proceed" if proceed else "fail",
    }
    if dry_run:
        if wait or wait_for or group:
            raise click.UsageError("--dry-run goes without --wait and --group")
        answer = place.command(GUEST, "lease.dry_run", **arguments)
        return _answer(answer, as_json=as_json, latest=latest)
    return _change(place, "lease.request", arguments, wait=wait_for or wait, as_json=as_json)


def _now(place: DeployPlace) -> Instant:
    """What time it is at the daemon, which need not be that of this machine's clock."""
    return int(place.query(GUEST, "clock")["now"])


def _missing(context: click.Context, name: str) -> click.MissingParameter:
    """What click itself says of a parameter that must be there."""
    param = next(param for param in context.command.params if param.name == name)
    return click.MissingParameter(ctx=context, param=param)


_WITH_TOPOLOGY: Final = {
    "topology", "tries", "broker", "dry_run", "wait", "as_json", "file", "state", "actor", "control"
}  # fmt: skip


_WITH_SERIES: Final = {
    "type_", "units", "start", "slice_", "name", "site", "broker", "properties", "configuration", "elastic", "timeout",
    "dry_run", "days", "begin", "end", "last", "each", "zone", "as_json", "file", "state", "actor", "control",
}  # fmt: skip


_WITH_UNDO: Final = {"name", "undo", "wait", "as_json", "file", "state", "actor", "control"}


def _only(context: click.Context, allowed: Collection[str], why: str) -> None:
    """Refuses what an option goes without. Raises ``UsageError``."""
    for param in context.command.params:
        name = param.name or ""
        if name not in allowed and context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            found = param.opts[0] if isinstance(param, click.Option) else param.human_readable_name
            raise click.UsageError(f"{found} goes without {why}")


def _try(
    place: DeployPlace,
    command: str,
    arguments: Callable[[Callable[[], Mapping[str, Any]]], Mapping[str, Any]],
    *,
    name: str,
    wait: bool,
    as_json: bool,
) -> int:
    """Ask what the broker would answer to a change of a lease; nothing changes. Returns the exit status."""
    if wait:
        raise click.UsageError("--dry-run goes without --wait")
    with place.connect(GUEST) as client:
        answer = client.request("command", command, arguments(lambda: _query(client, name)))
    return _answer(answer, as_json=as_json)


def _answer(answer: Mapping[str, Any], *, as_json: bool, latest: Instant | None = None) -> int:
    """Show what the broker would answer to a request whose latest start is ``latest``. Returns the exit status."""
    if as_json:
        print_json(answer)
    elif answer["status"] == "granted":
        start, end = map(to_second, answer["term"])
        click.echo(
            clean(
                f"{answer['broker']} would grant {counted(answer['units'])} at {answer['site']} over {start} .. {end}"
            )
        )
    elif answer["status"] == "waits":
        until = "" if latest is None else f" until {to_second(latest)}, and refuse it if it can't start by then"
        reason = answer["reason"] or "it gave no reason"
        click.echo(dated(clean(f"{answer['broker']} would let it wait{until}: {reason}")))
    if answer["status"] == "refused":
        raise LeasekitError(f"{answer['broker']} would refuse it: {answer['reason']}")
    return 0


@click.command(
    epilog=example(
        "leasekit lease extend web --for 2h --units 6",
        "leasekit lease extend web --for 2h --dry-run",
        "leasekit lease extend web --until 2027-03-01T20:00Z --units 3 --victim vm-0 --victim vm-4",
        "leasekit lease extend web --undo",
    )
)
@click.argument("name", metavar="LEASE")
@click.option("--for", "span", type=SPAN, help="How much longer than its end, or that of its last extension.")
@click.option("--until", type=WHEN, help="The new end.")
@click.option("--undo", is_flag=True, help="Take back its last extension, which has not begun.")
@units_option
@victims_option
@click.option(
    "--property", "properties", type=PAIR, multiple=True, help="Request property, told to the broker (repeat it)."
)
@dry_run_option
@zone_option
@wait_option
@wait_for_option
@daemon_options
@json_option
@click.pass_context
def extend(
    context: click.Context,
    /,
    place: DeployPlace,
    name: str,
    span: Duration | None,
    until: Instant | None,
    undo: bool,
    units: int | None,
    victims: Sequence[str],
    properties: Sequence[tuple[str, str]],
    dry_run: bool,
    wait: bool,
    wait_for: str | None,
    as_json: bool,
) -> int:
    """Renew a lease beyond its end, with as many units as now, or more, or fewer.

    The new number of units holds from the old end on, and --wait waits until then. It may be extended further before
    that, and be modified, up to the old end: what was granted to go on from its term stands, in number and time. Each
    --undo takes the last extension back, until it begins: its units and its time go back to the broker.
    """
    if undo:
        _only(context, _WITH_UNDO, "--undo: it takes the whole of the last extension back")
        return _change(place, "lease.undo_extend", {"lease": name}, name=name, wait=wait, as_json=as_json)
    if (span is None) == (until is None):
        raise click.UsageError("give either --for or --until, or --undo")

    def arguments(query: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
        end = until if until is not None else last_end(query()) + (span or 0)
        return {
            "lease": name,
            "end": end,
            "units": units,
            "victims": list(victims),
            "properties": dict(properties),
        }

    waits = wait_for or wait
    if dry_run:
        return _try(place, "lease.dry_run_extend", arguments, name=name, wait=bool(waits), as_json=as_json)
    return _change(place, "lease.extend", arguments, name=name, wait=waits, as_json=as_json)


@click.command(
    epilog=example(
        "leasekit lease modify web --units 3 --wait",
        "leasekit lease modify web --config cap=50",
        "leasekit lease modify web --units 9 --dry-run",
    )
)
@click.argument("name", metavar="LEASE")
@units_option
@click.option("--until", type=WHEN, help="The new end [as now].")
@zone_option
@configuration_option
@victims_option
@dry_run_option
@wait_option
@daemon_options
@json_option
def modify(
    place: DeployPlace,
    name: str,
    units: int | None,
    until: Instant | None,
    configuration: Sequence[tuple[str, str]],
    victims: Sequence[str],
    dry_run: bool,
    wait: bool,
    as_json: bool,
) -> int:
    """Change a lease in mid-term: its units, its end, its configuration.

    A lease that was extended is changed in its running term: the extension stands as it was granted, so that the end
    can't be changed, and begins with the configuration that the lease has by then. In the last seconds before it begins
    a change is refused.
    """
    arguments = {
        "lease": name,
        "units": units,
        "end": until,
        "configuration": dict(configuration) if configuration else None,
        "victims": list(victims),
    }
    if dry_run:
        return _try(place, "lease.dry_run_modify", lambda _: arguments, name=name, wait=wait, as_json=as_json)
    return _change(place, "lease.modify", arguments, name=name, wait=wait, as_json=as_json)


@click.command(epilog=example("leasekit lease close web --wait"))
@click.argument("name", metavar="LEASE")
@click.option("--reason", default="", help="Why, for the lease's history.")
@click.option("--wait", is_flag=True, help="Follow it until it is closed, and its units are torn down.")
@daemon_options
@json_option
def close(place: DeployPlace, name: str, reason: str, wait: bool, as_json: bool) -> int:
    """End a lease early; what is left of its time goes back to the broker."""
    return _change(place, "lease.close", {"lease": name, "reason": reason}, name=name, wait=wait, as_json=as_json)


def _change(
    place: DeployPlace,
    command: str,
    arguments: Mapping[str, Any] | Callable[[Callable[[], Mapping[str, Any]]], Mapping[str, Any]],
    *,
    name: str = "",
    wait: bool | str,
    as_json: bool,
) -> int:
    """Send a command that changes a lease, follow it if that is wanted, and show the lease as it is then.

    ``arguments`` may be a function, which is given how to look at the lease first. Returns the exit status.
    """
    outcome: WatchOutcome | None = None
    with followed(place.socket(GUEST), bool(wait)) as (client, following):
        if callable(arguments):
            arguments = arguments(lambda: _query(client, name))
        changed = client.request("command", command, arguments)
        if following is not None:
            outcome = _follow_change(following, command, arguments, changed["id"], wait)
            changed = client.query("lease", lease=changed["id"])
    report(changed, show_lease, as_json=as_json)
    if outcome is not None and not outcome.ok:
        raise LeasekitError(f"lease {changed['id']}: {outcome.reason}")
    return 0


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
