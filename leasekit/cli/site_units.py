"""``leasekit site``: an operator's hand on units that are up, and on what is left of those that are not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import click

from leasekit.cli.output import (
    clean,
    example,
    json_option,
    listing,
    note,
    print_fields,
    print_json,
    print_table,
    report,
)
from leasekit.cli.places import DeployPlace, daemon_options
from leasekit.cli.times import PAIR, Count, now, show_when
from leasekit.core.errors import LeasekitError

SITE: Final = "authority"
PATIENCE: Final = 900.0
"""How long an operation on a unit may take, in seconds, before the command gives up waiting for it."""


def add_unit_commands(group: click.Group) -> None:
    """Add these commands to ``leasekit site``."""
    for command in (fail, probe, operate, console, caps, orphans, saved):
        group.add_command(command)


def ask_site(place: DeployPlace, command: str, **arguments: Any) -> Any:
    """One command to a site's daemon that may take long."""
    from leasekit.runtime.client import ControlClient

    with ControlClient(place.socket(SITE), timeout=PATIENCE) as client:
        return client.request("command", command, arguments)


@click.command(epilog=example('leasekit site fail vm-3 --reason "its power supply is dead"'))
@click.argument("unit")
@click.option("--reason", default="", help="Why, for its lease's holder.")
@daemon_options
@json_option
def fail(place: DeployPlace, unit: str, reason: str, as_json: bool) -> None:
    """Say that a unit which is up has failed: its lease gets another in its place, or goes on with fewer."""
    told = ask_site(place, "unit.fail", unit=unit, reason=reason)
    report(told, f"unit {unit} is {told['state']}: {told['reason']}", as_json=as_json)


@click.command(epilog=example("leasekit site probe vm-3"))
@click.argument("unit")
@daemon_options
@json_option
def probe(place: DeployPlace, unit: str, as_json: bool) -> None:
    """Have the driver look at a unit that is up, now."""
    found = ask_site(place, "unit.probe", unit=unit)
    if as_json:
        print_json(found)
        return
    measured = ((name, _number(value)) for name, value in found["measured"].items())
    print_fields([("state", found["state"]), ("detail", found["detail"]), *measured])


def _number(value: float) -> str:
    """A measured number: whole where it is, else to three places."""
    return f"{value:,.0f}" if value == int(value) else f"{value:,.3f}"


@click.command(epilog=example("leasekit site operate vm-3 restart", "leasekit site operate vm-3 migrate host=two"))
@click.argument("unit")
@click.argument("operation")
@click.argument("arguments", type=PAIR, nargs=-1, metavar="[KEY=VALUE]...")
@daemon_options
@json_option
def operate(place: DeployPlace, unit: str, operation: str, arguments: Sequence[tuple[str, str]], as_json: bool) -> None:
    """Have the driver do something with a unit that is up, such as restart it; each driver's page says what it can."""
    told = ask_site(place, "unit.operate", unit=unit, operation=operation, arguments=dict(arguments))
    report(told, lambda done: print_fields(done.items()), as_json=as_json)


@click.command(epilog=example("leasekit site console vm-3"))
@click.argument("unit")
@daemon_options
@json_option
def console(place: DeployPlace, unit: str, as_json: bool) -> None:
    """Print the last lines of a unit's console."""
    show_console(place, unit, as_json=as_json)


def show_console(place: DeployPlace, unit: str, *, as_json: bool) -> None:
    """Ask a site's daemon for a unit's console and print it, fit for a terminal."""
    told = ask_site(place, "unit.operate", unit=unit, operation="console", arguments={})
    lines = told.get("console", "").splitlines()
    if as_json:
        print_json(lines)
        return
    for line in lines:
        click.echo(clean(line))


@click.command(epilog=example("leasekit site caps vm-3 --seconds 5"))
@click.argument("unit")
@click.option("--seconds", type=Count(1, 60), default=2, show_default=True, help="How long each cap is measured.")
@daemon_options
@json_option
def caps(place: DeployPlace, unit: str, seconds: int, as_json: bool) -> None:
    """Measure how well CPU caps of 10 to 90 % hold on a unit that is up and busy.

    The unit's own cap holds again afterwards.
    """
    told = ask_site(place, "unit.operate", unit=unit, operation="caps", arguments={"seconds": str(seconds)})
    free = float(told.pop("none"))
    measured = {int(cap): float(used) for cap, used in told.items()}
    # What a guest does not get without a cap, for want of work or of a CPU, says nothing of the cap.
    errors = {cap: used - cap for cap, used in measured.items() if cap <= free} or {0: 0.0}
    mean, worst = sum(map(abs, errors.values())) / len(errors), max(errors.values(), key=abs)
    if as_json:
        print_json({"uncapped": free, "measured": measured, "mean_error": mean, "worst_error": worst})
        return
    note(f"without a cap the unit uses {free:.1f} % of one CPU")
    rows = [
        (f"{cap} %", f"{used:.1f} %", f"{errors[cap]:+.1f}" if cap in errors else "-") for cap, used in measured.items()
    ]
    print_table(("cap", "measured", "error"), rows, empty="", right=("cap", "measured", "error"))
    note(f"mean error {mean:.2f}, worst {worst:+.2f}, in percent of one CPU")


@click.command(epilog=example("leasekit site orphans", "leasekit site orphans --remove --unit vm-3"))
@click.option("--remove", is_flag=True, help="Remove them.")
@click.option("--unit", default="", metavar="UNIT", help="Only those of this unit.")
@daemon_options
@json_option
def orphans(place: DeployPlace, remove: bool, unit: str, as_json: bool) -> None:
    """List what is on the site's hosts of units that nobody has, such as guests of a site whose store was lost.

    What was found is printed in any case. The exit status is 1 if a driver could not tell, such as for a host that is
    down, or something could not be removed.
    """
    answer = ask_site(place, "orphans.remove" if remove else "orphans.list", unit=unit)
    found, troubles = answer["orphans"], answer["troubles"]
    if as_json:
        print_json(found)
    else:
        rows = [(one["host"], one["unit"], one["kind"], one["name"]) for one in found]
        nothing = "nothing was found" if troubles else "there is nothing of units that nobody has"
        print_table(("host", "unit", "what", "name"), rows, empty=nothing)
        if remove and found:
            note("removed")
    if troubles:
        raise LeasekitError("\n".join(map(_trouble, troubles)))


def _trouble(one: Mapping[str, str]) -> str:
    if one["unit"]:
        return f"what is left of unit {one['unit']} could not be removed by driver {one['driver']}: {one['reason']}"
    return f"driver {one['driver']} can't say what is left of old units: {one['reason']}"


@click.command(epilog=example("leasekit site saved", "leasekit site saved --json"))
@daemon_options
@json_option
def saved(place: DeployPlace, as_json: bool) -> None:
    """List what the site keeps of the units of suspended leases, until when, and for whom."""
    kept = place.query(SITE, "saved")
    instant = now()
    told = listing(
        "lease", "unit", "type", "holder", "state", ("kept until", lambda one: show_when(one["until"], instant)),
        empty="nothing is kept of any unit",
    )  # fmt: skip
    report(kept, told, as_json=as_json)
