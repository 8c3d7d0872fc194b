"""What a gateway keeps of projects: what their leases may be, what waits to be approved, and calendars of leases."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click

from leasekit.cli.options import DAEMON, FILE_OR_INPUT, Shown, argument, command, option
from leasekit.cli.output import STANDARD_INPUT, is_standard_input, listing, print_fields, print_lines, printed
from leasekit.cli.places import DeployPlace
from leasekit.cli.wishes import NEEDS, needs_as_written
from leasekit.config.instants import format_instant
from leasekit.core.errors import LeasekitError
from leasekit.core.properties import Vector
from leasekit.core.time import Duration, Instant, format_duration

_PROJECT: Final[Any] = option("The project, where one has several.", metavar="NAME")


@click.group()
def project() -> None:
    """List the projects of a deployment: each is a guest."""


@command(project, name="list")
def list_projects(place: DeployPlace = DAEMON) -> Shown:
    """List the projects that one may look into.

    Example:
      leasekit project list --url https://lab.example
    """
    return place.api("GET", "/projects")["items"], lambda names: print_lines(names or ["no projects"])


@click.group()
def policy() -> None:
    """Say what the leases of projects may be, and what is approved first."""


@command(policy, name="list")
def list_policies(place: DeployPlace = DAEMON) -> Shown:
    """List what is said of each project; what is not said is not limited.

    Example:
      leasekit policy list
    """
    return place.api("GET", "/policies")["items"], listing("project", ("policy", _in_words), empty="no projects")


def _in_words(one: Mapping[str, Any]) -> str:
    said = one["policy"].items()
    return " ".join(f"{key}={','.join(value) if isinstance(value, list) else value}" for key, value in said)


@command(policy, name="set")
def set_policy(
    place: DeployPlace = DAEMON,
    name: str = argument("PROJECT"),
    longest: Duration | None = option("The longest lease, with all its extensions."),
    ahead: Duration | None = option("How long before its start a lease is asked for at most."),
    lead: Duration | None = option("How long before its start a lease is asked for at least."),
    most_units: int | None = option("The most units of a lease.", type=click.IntRange(1)),
    once: bool = option("Leases may not recur."),
    approve_units: int | None = option("More units than these are approved first.", type=click.IntRange(1)),
    approve_length: Duration | None = option("What is longer is approved first."),
    approvers: Sequence[str] = option("Who approves beside managers (repeat it).", "--approver", metavar="NAME"),
    approve_within: Duration | None = option("Within which time it is approved [3d]."),
    ask: str = option("A service that is asked before a request is sent on.", metavar="URL"),
    asked_as: str = option("Its protocol.", type=("leasekit", "blazar"), shown="leasekit"),
    ask_within: Duration | None = option("Within which time it answers [5s]."),
    fails: str = option("What happens where it does not answer.", type=("closed", "open"), shown="closed"),
    hands: str = option("Who hands a lease to a colleague.", type=("holder", "manager", "nobody"), shown="holder"),
) -> Shown:
    """Say what the leases of PROJECT may be, in the place of all that was said before. Without options nothing is
    limited.

    Example:
      leasekit policy set guest --longest 2d --most-units 8 --approve-units 4 --approver ada
      leasekit policy set guest --ask https://lab.example/may --fails open
    """
    spans = {
        "longest": longest, "ahead": ahead, "lead": lead, "approve_length": approve_length,
        "approve_within": approve_within, "ask_within": ask_within,
    }  # fmt: skip
    said: dict[str, Any] = {"most_units": most_units, "approve_units": approve_units, "ask": ask}
    said |= {key: format_duration(span) for key, span in spans.items() if span is not None}
    said |= {"recurring": not once, "approvers": list(approvers), "asked_as": asked_as, "fails": fails, "hands": hands}
    made = place.api("PUT", "/policies/{project}", said, project=name)
    return made, printed(f"{name}: {_in_words(made)}")


@click.group()
def approval() -> None:
    """See and decide what is to be approved, and ask for it."""


_APPROVALS: Final = listing(
    "id", "project", "caller", "state", ("why", lambda one: one["asked"].get("why")), "until", "decided_by", "lease",
    empty="nothing waits to be approved",
)  # fmt: skip
_REASON: Final[Any] = option("Why.")
_STATES: Final = ("pending", "approving", "approved", "stopped", "refused", "withdrawn", "expired")


@command(approval, name="list")
def list_approvals(
    place: DeployPlace = DAEMON,
    project: str = _PROJECT,
    only: str | None = option("Those of one state.", type=_STATES),
) -> Shown:
    """List what waits to be approved, and what was decided.

    Example:
      leasekit approval list --only pending --url https://lab.example
    """
    return place.api("GET", "/approvals", project=project, state=only or "")["items"], _APPROVALS


@command(approval, name="show")
def show_approval(place: DeployPlace = DAEMON, id_: str = argument("ID")) -> Shown:
    """Show all of what is asked for, and what came of it.

    Example:
      leasekit approval show 3f2a9c1d0b7e4f65
    """
    return place.api("GET", "/approvals/{approval}", approval=id_), _fields


def _fields(found: Mapping[str, Any]) -> None:
    series = found["series"]
    shown = [(key, value) for key, value in found.items() if key not in ("asked", "series")]
    print_fields([*shown, *_flat(found["asked"])])
    if series is not None:
        _days(series["days"])
        print_lines(f"{why}: {', '.join(days)}" for why in ("skipped", "past") if (days := series[why]))


def _flat(found: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Names and values; what is in a map has its name before it."""
    for key, value in found.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{key}.")
        else:
            yield before + key, value


_days: Final = listing("start", "end", "name", "lease", "status", "site", "reason", empty="no days")


def ask_approval(place: DeployPlace, body: Mapping[str, Any], project: str = "") -> Shown:
    """Ask that what a ``body`` of `POST /approvals` says be approved."""
    made = place.api("POST", "/approvals", body, project=project)
    return made, printed(f"{made['id']}: {made['state']} until {made['until']}")


@command(approval)
def ask(
    place: DeployPlace = DAEMON, wish: Path = argument("WISH", type=FILE_OR_INPUT), project: str = _PROJECT
) -> Shown:
    """Ask that a request, a series of them, or a change, be approved. WISH is a JSON file (- is standard input) with
    what `POST /approvals` takes: "request", "series", or "lease" and "extend" or "modify", and "why". What is asked for
    with `lease request` is asked for with that and --ask-approval.

    Example:
      leasekit approval ask wish.json --url https://lab.example
    """
    source = STANDARD_INPUT if is_standard_input(wish) else str(wish)
    with click.open_file(str(wish), encoding="utf-8") as file:
        try:
            body = json.load(file)
        except ValueError as error:
            raise LeasekitError(f"{source}: expected JSON: {error}") from None
    return ask_approval(place, body, project)


def _decide(place: DeployPlace, id_: str, what: str, reason: str) -> Shown:
    made = place.api("POST", f"/approvals/{{approval}}/{what}", {"reason": reason}, approval=id_)
    line = f"{id_}: {made['state']} {made['lease']}".rstrip()
    days = made["series"]["days"] if made["series"] else []
    return made, (printed(line), lambda _: _days(days) if days else None)


@command(approval)
def approve(place: DeployPlace = DAEMON, id_: str = argument("ID"), reason: str = _REASON) -> Shown:
    """Have it done: the request is sent on, as its asker's.

    Example:
      leasekit approval approve 3f2a9c1d0b7e4f65 --reason "for the demo"
    """
    return _decide(place, id_, "approve", reason)


@command(approval)
def refuse(place: DeployPlace = DAEMON, id_: str = argument("ID"), reason: str = _REASON) -> Shown:
    """Refuse it.

    Example:
      leasekit approval refuse 3f2a9c1d0b7e4f65 --reason "too long"
    """
    return _decide(place, id_, "refuse", reason)


@command(approval)
def withdraw(place: DeployPlace = DAEMON, id_: str = argument("ID"), reason: str = _REASON) -> Shown:
    """Withdraw what one has asked for.

    Example:
      leasekit approval withdraw 3f2a9c1d0b7e4f65
    """
    return _decide(place, id_, "withdraw", reason)


@click.group()
def announcement() -> None:
    """Tell everybody who uses a deployment of outages."""


@command(announcement, name="list")
def list_announcements(place: DeployPlace = DAEMON) -> Shown:
    """List the outages that are announced and not over.

    Example:
      leasekit announcement list --url https://lab.example
    """
    found = place.api("GET", "/announcements")["items"]
    return found, listing("id", "start", "end", "text", "caller", empty="nothing is announced")


@command(announcement, name="add", zoned=True)
def add_announcement(
    place: DeployPlace = DAEMON,
    text: str = argument("TEXT"),
    start: Instant | None = option("When it begins [now]."),
    end: Instant = option("When it is over.", required=True),
) -> Shown:
    """Announce an outage: all pages show TEXT, calendars have it, and rules for what is announced tell of it.

    Example:
      leasekit announcement add "The lab has no power" --start 2027-03-01T08:00Z --end 2027-03-01T12:00Z
    """
    term = {"end": format_instant(end), **({} if start is None else {"start": format_instant(start)})}
    made = place.api("POST", "/announcements", {"text": text, **term})
    return made, printed(f"{made['id']}: from {made['start']} until {made['end']}")


@command(announcement, name="remove")
def remove_announcement(place: DeployPlace = DAEMON, id_: str = argument("ID")) -> Shown:
    """Have it be announced no more.

    Example:
      leasekit announcement remove 3f2a9c1d0b7e4f65
    """
    made = place.api("POST", "/announcements/{announcement}/remove", announcement=id_)
    return made, printed(f"{id_}: removed")


@click.group()
def feed() -> None:
    """Make and revoke calendars (iCalendar) of a project's leases."""


@command(feed, name="list")
def list_feeds(place: DeployPlace = DAEMON, project: str = _PROJECT) -> Shown:
    """List calendars, without their addresses.

    Example:
      leasekit feed list
    """
    found = place.api("GET", "/feeds", project=project)["items"]
    return found, listing("id", "project", "caller", "type", "mine", "created", empty="no calendars")


@command(feed, name="add")
def add_feed(
    place: DeployPlace = DAEMON,
    project: str = _PROJECT,
    type_: str = option("Of leases of one type.", "--type"),
    mine: bool = option("Of those alone that one has asked for oneself."),
) -> Shown:
    """Make a calendar. Its address is printed now, and never again: who knows it sees the leases.

    Example:
      leasekit feed add --mine --url https://lab.example
    """
    made = place.api("POST", "/feeds", {"type": type_, "mine": mine}, project=project)
    return made, printed(f"{place.gateway.rstrip('/')}{made['path']}")


@command(feed, name="revoke")
def revoke_feed(place: DeployPlace = DAEMON, id_: str = argument("ID")) -> Shown:
    """Have there be nothing at the address of a calendar any more.

    Example:
      leasekit feed revoke 3f2a9c1d0b7e4f65
    """
    return place.api("POST", "/feeds/{feed}/revoke", feed=id_), printed(f"{id_}: revoked")


@click.group()
def wait() -> None:
    """Wait until something fits that does not now. Nothing is held for who waits."""


@command(wait, name="list")
def list_waits(place: DeployPlace = DAEMON, project: str = _PROJECT) -> Shown:
    """List for what one waits, and the window that was found, if it is free.

    Example:
      leasekit wait list --url https://lab.example
    """
    columns = [(name, lambda one, name=name: str(one["asked"].get(name, 1))) for name in ("type", "units", "length")]
    slot = ("fits at", lambda one: f"{one['slot']['start']} {one['slot']['site']}" if one["slot"] else "")
    shown = listing("id", *columns, "caller", "state", slot, empty="nobody waits")
    return place.api("GET", "/waits", project=project)["items"], shown


@command(wait, name="add", zoned=True)
def add_wait(
    place: DeployPlace = DAEMON,
    type_: str = argument("TYPE"),
    units: int = argument("UNITS", type=click.IntRange(1)),
    span: Duration = option("How long.", "--for", required=True),
    start: Instant | None = option("When it begins at the earliest [now]."),
    end: Instant | None = option("When it ends at the latest [30 days later]."),
    filter_: str = option("Only units with such attributes: `rack == b`.", metavar="EXPRESSION"),
    needs: Vector | None = NEEDS,
    site: str = option("Only at this site."),
    project: str = _PROJECT,
) -> Shown:
    """Wait until UNITS units of a TYPE would be granted: the rules for what is free tell of it once.

    Example:
      leasekit wait add vm 4 --for 2h --end +2d --filter 'rack == b' --url https://lab.example
      leasekit wait add node 3 --for 2h --needs cpu=2,memory=4GiB
    """
    term = {name: format_instant(at) for name, at in {"start": start, "end": end}.items() if at is not None}
    body = {"type": type_, "units": units, "length": format_duration(span), "filter": filter_, "site": site, **term}
    body["needs"] = needs_as_written(needs or ())
    made = place.api("POST", "/waits", body, project=project)
    return made, printed(f"{made['id']}: {made['state']}")


@command(wait, name="remove")
def remove_wait(place: DeployPlace = DAEMON, id_: str = argument("ID")) -> Shown:
    """Wait for it no more.

    Example:
      leasekit wait remove 3f2a9c1d0b7e4f65
    """
    return place.api("POST", "/waits/{wait}/remove", wait=id_), printed(f"{id_}: removed")
