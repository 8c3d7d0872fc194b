"""``leasekit site``: a site's units, its leases, and what it has delegated."""

from __future__ import annotations

import click

from leasekit.cli.output import example, json_option, note, pairs, print_json, print_table
from leasekit.cli.places import Place, daemon_options
from leasekit.cli.times import to_second

SITE = "authority"


@click.group()
def site() -> None:
    """Look after a site's units."""


@site.command(epilog=example("leasekit site units --in free"))
@click.option("--type", "type_", default="", metavar="TYPE", help="Only units of this type.")
@click.option("--in", "unit_state", default="", metavar="STATE", help="Only units in this state, such as free.")
@daemon_options
@json_option
def units(place: Place, type_: str, unit_state: str, as_json: bool) -> None:
    """List the units of a site: whose they are, and what is being done to them."""
    with place.connect(SITE) as client:
        found = [
            unit
            for unit in client.query("units")
            if (not type_ or unit["type"] == type_) and (not unit_state or unit["state"] == unit_state)
        ]
    if as_json:
        print_json(found)
        return
    rows = [
        (
            u["unit"],
            u["type"],
            u["state"],
            u["lease"] or u["promised"],
            u["failures"] or "",
            u["reason"],
            pairs(u["properties"]),
        )
        for u in found
    ]
    print_table(
        ("unit", "type", "state", "lease", "failures", "reason", "properties"),
        rows,
        empty="no such units",
        right=("failures",),
    )


@site.command(epilog=example('leasekit site disable vm-3 --reason "its fan is noisy"'))
@click.argument("unit")
@click.option("--reason", default="", help="Why, for those who wonder.")
@daemon_options
@json_option
def disable(place: Place, unit: str, reason: str, as_json: bool) -> None:
    """Take a unit out of service. A lease that has it keeps it until it gives it up."""
    with place.connect(SITE) as client:
        changed = client.command("unit.disable", unit=unit, reason=reason)
    if as_json:
        print_json(changed)
    else:
        note(f"unit {unit} is {changed['state']}; it is given to nobody until it is enabled again")


@site.command(epilog=example("leasekit site enable vm-3"))
@click.argument("unit")
@daemon_options
@json_option
def enable(place: Place, unit: str, as_json: bool) -> None:
    """Bring a unit back into service."""
    with place.connect(SITE) as client:
        changed = client.command("unit.enable", unit=unit)
    if as_json:
        print_json(changed)
    else:
        note(f"unit {unit} is {changed['state']}")


@site.command(epilog=example("leasekit site delegations"))
@daemon_options
@json_option
def delegations(place: Place, as_json: bool) -> None:
    """List what the site has given to brokers."""
    with place.connect(SITE) as client:
        given = client.query("delegations")
    if as_json:
        print_json(given)
        return
    rows = [
        (d["delegation"], d["broker"], d["type"], d["units"], *map(to_second, d["term"]), d["state"], d["reason"])
        for d in given
    ]
    print_table(
        ("delegation", "broker", "type", "units", "from", "until", "state", "reason"),
        rows,
        empty="nothing is delegated",
        right=("units",),
    )
