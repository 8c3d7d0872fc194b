"""``leasekit template``: requests that a gateway keeps under a name, for oneself or for all of a project."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from leasekit.cli.options import DAEMON, Shown, argument, command, option, zone_of
from leasekit.cli.output import listing, print_fields, printed
from leasekit.cli.places import DeployPlace
from leasekit.cli.wishes import HOURS, WISH, Hours, as_body

_PROJECT: Any = option("The project, where one has several.", metavar="PROJECT")
_NAME: Any = argument("TEMPLATE")


@click.group()
def template() -> None:
    """Keep requests under a name, for `leasekit lease request --template`.

    TEMPLATE is a template's id, or its name: one's own of that name comes before one that all of the project see.
    """


def found(place: DeployPlace, name: str, project: str) -> Mapping[str, Any]:
    """A template of a project, as the API has it. Raises ``LeasekitError``."""
    one: Mapping[str, Any] = place.api("GET", "/templates/{template}", None, template=name, project=project)
    return one


@command(template, name="list")
def list_templates(place: DeployPlace = DAEMON, project: str = _PROJECT) -> Shown:
    """List one's own templates, and those that all of the project see.

    Example:
      leasekit template list --url https://lab.example
    """
    request = [(name, lambda one, name=name: one["request"].get(name, 1)) for name in ("type", "units")]
    days = ("days", lambda one: (one["days"] or {}).get("every"))
    shown = listing("name", "id", "caller", "shared", *request, days, empty="no templates")
    return place.api("GET", "/templates", project=project)["items"], shown


@command(template)
def show(place: DeployPlace = DAEMON, name: str = _NAME, project: str = _PROJECT) -> Shown:
    """Show all of a template.

    Example:
      leasekit template show lab --url https://lab.example
    """

    def shown(one: Mapping[str, Any]) -> None:
        own = [item for item in one.items() if item[0] not in ("request", "days")]
        print_fields([*own, *one["request"].items(), *(one["days"] or {}).items()])

    return found(place, name, project), shown


@command(template, zoned=True)
def save(
    place: DeployPlace = DAEMON,
    template: str = argument("TEMPLATE"),
    wish: Mapping[str, Any] = WISH,
    hours: Hours = HOURS,
    shared: bool = option("All of the project see it."),
    project: str = _PROJECT,
) -> Shown:
    """Keep a request for UNITS units of a TYPE as TEMPLATE, in the place of one's own of that name.

    With --every it has the days and hours of a request that recurs, on the clocks of --zone, and no --for.

    Example:
      leasekit template save lab vm 4 --for 2h --filter 'rack == b' --shared --url https://lab.example
      leasekit template save course vm 8 --every mon-fri --from 9:00 --to 17:00 --zone Europe/Berlin
    """
    if "type" not in wish:
        raise click.UsageError("TYPE: found none, expected the type of units that is asked for")
    days = {"days": hours.as_body(zone_of(click.get_current_context()))} if hours else {}
    body = {"name": template, "request": as_body(wish), "shared": shared, **days}
    made = place.api("POST", "/templates", body, project=project)
    return made, printed(f"{made['id']}: {made['name']}")


@command(template)
def remove(place: DeployPlace = DAEMON, name: str = _NAME, project: str = _PROJECT) -> Shown:
    """Remove a template: one's own, or, as a manager, one that all of the project see.

    Example:
      leasekit template remove lab --url https://lab.example
    """
    made = place.api("POST", "/templates/{template}/remove", None, template=name, project=project)
    return made, printed(f"{made['name']}: removed")
