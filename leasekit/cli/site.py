"""``leasekit site``: a site's units, its leases, and what it has delegated."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import click

from leasekit.cli.delegations import add_delegation_commands
from leasekit.cli.output import example, json_option, listing, note, print_json, properties_of, report
from leasekit.cli.places import DeployPlace, daemon_options
from leasekit.cli.site_doctor import doctor
from leasekit.cli.site_hosts import host
from leasekit.cli.site_units import add_unit_commands
from leasekit.cli.ticket import name_words
from leasekit.cli.times import TERM, WHEN, at, to_second
from leasekit.core.errors import LeasekitError
from leasekit.core.leases.authority import UNIT_TABLE
from leasekit.core.time import Instant

SITE = "authority"
STATES = tuple(dict.fromkeys(state for state, _ in UNIT_TABLE))
"""The states that a unit can be in."""


def _key(field: str) -> Callable[[Mapping[str, Any]], str]:
    return lambda row: name_words(row[f"{field}_name"], row[f"{field}_fingerprint"])


UNITS: Final = listing(
    "unit", "type", "state", ("lease", lambda unit: unit["lease"] or unit["promised"]),
    ("failures", lambda unit: unit["failures"] or ""), ("reason", lambda unit: unit["trouble"] or unit["reason"]),
    ("properties", properties_of), empty="no such units", right=("failures",),
)  # fmt: skip
EVIDENCE: Final = listing(
    "id", ("found", at("at")), "kind", ("guilty", _key("guilty")), "words",
    empty="there is no evidence against anybody",
)  # fmt: skip
WINDOWS: Final = listing(
    "window", ("from", at("start")), ("until", at("end")), ("units", lambda window: len(window["units"])),
    ("begun", lambda window: "yes" if window["begun"] else ""), "reason",
    empty="no maintenance is announced", right=("units",),
)  # fmt: skip
CLAIMS: Final = listing(
    ("claim", lambda claim: claim["claim"][:16]), ("parent", lambda claim: claim["parent"][:16]),
    ("issuer", _key("issuer")), ("holder", _key("holder")), "type", "units", *TERM, "state", "lease",
    empty="no ticket was redeemed yet", right=("units",),
)  # fmt: skip


@click.group()
def site() -> None:
    """Look after a site's units."""


@site.command(epilog=example("leasekit site units --in free"))
@click.option("--type", "type_", default="", metavar="TYPE", help="Only units of this type.")
@click.option(
    "--in", "unit_state", type=click.Choice(STATES), metavar="STATE", help="Only units in this state, such as free."
)
@daemon_options
@json_option
def units(place: DeployPlace, type_: str, unit_state: str | None, as_json: bool) -> None:
    """List the units of a site: whose they are, and what is being done to them."""
    found = [
        unit
        for unit in place.query(SITE, "units")
        if (not type_ or unit["type"] == type_) and (not unit_state or unit["state"] == unit_state)
    ]
    report(found, UNITS, as_json=as_json)


@site.command(epilog=example('leasekit site disable vm-3 --reason "its fan is noisy"'))
@click.argument("unit")
@click.option("--reason", default="", help="Why, for those who wonder.")
@daemon_options
@json_option
def disable(place: DeployPlace, unit: str, reason: str, as_json: bool) -> None:
    """Take a unit out of service. A lease that has it keeps it until it gives it up."""
    changed = place.command(SITE, "unit.disable", unit=unit, reason=reason)
    words = f"unit {unit} is {changed['state']}; it is given to nobody until it is enabled again"
    report(changed, words, as_json=as_json)


@site.command(epilog=example("leasekit site enable vm-3"))
@click.argument("unit")
@daemon_options
@json_option
def enable(place: DeployPlace, unit: str, as_json: bool) -> None:
    """Bring a unit back into service. One whose teardown had failed is torn down first."""
    changed = place.command(SITE, "unit.enable", unit=unit)
    report(changed, f"unit {unit} is {changed['state']}", as_json=as_json)


@site.command(epilog=example("leasekit site evidence 3f2a9c01-77aa0c1d2e3f4a5b --out evidence.json"))
@click.argument("id_", metavar="[ID]", default="")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="Write the evidence to this file.")
@daemon_options
@json_option
def evidence(place: DeployPlace, id_: str, out: Path | None, as_json: bool) -> None:
    """List who was found to give away more than it had, or export one piece of evidence.

    `leasekit evidence verify FILE` checks the file, anywhere.
    """
    found = place.query(SITE, "evidence", id=id_)
    if id_ and not found:
        raise LeasekitError(f"no evidence {id_!r} here; `leasekit site evidence` lists what there is")
    if out is not None:
        if not id_:
            raise LeasekitError("say which evidence: `leasekit site evidence` lists what there is")
        out.write_text(found[0]["file"], "utf-8")
        note(f"evidence {id_} is in {out}")
    elif as_json:
        print_json(found)
    elif id_:
        click.echo(found[0]["file"], nl=False)
    else:
        EVIDENCE(found)


@site.command(epilog=example("leasekit site word broker.json --out proven.json"))
@click.argument("source", metavar="FILE", type=click.Path(path_type=Path))
@click.option(
    "--out", type=click.Path(path_type=Path, dir_okay=False), required=True,
    help="Write the evidence, with the site's word in it, to this file.",
)  # fmt: skip
@daemon_options
@json_option
def word(place: DeployPlace, source: Path, out: Path, as_json: bool) -> None:
    """Have the site say of evidence of over-delegation that its claims stand: no receipt was given for any of them.

    With that word `leasekit evidence verify` finds it proven. The site refuses where it has given a receipt, and for
    claims that it has not seen. From then on no receipt for them bears an earlier date.
    """
    with place.connect(SITE) as client:
        try:
            said = client.command("evidence.word", file=source.read_text("utf-8"))
        except LeasekitError as error:
            raise LeasekitError(f"{source}: {error}") from error
    out.write_text(said["file"], "utf-8")
    words = f"the claims stand as of {to_second(said['at'])}: {out} has the site's word"
    report({"file": str(out), "at": said["at"]}, words, as_json=as_json)


@site.group()
def maintenance() -> None:
    """Announce when units are out of service."""


@maintenance.command(
    "add", epilog=example("leasekit site maintenance add --from 2027-01-10T22:00Z --until +6h --unit vm-3 --close")
)
@click.option("--from", "start", type=WHEN, required=True, metavar="TIME", help="When it begins.")
@click.option("--until", "end", type=WHEN, required=True, metavar="TIME", help="When the units are back.")
@click.option("--unit", "units_", multiple=True, metavar="UNIT", help="A unit that it is about [all].")
@click.option("--type", "type_", default="", metavar="TYPE", help="Only units of this type.")
@click.option("--reason", default="", help="Why, for guests and brokers.")
@click.option("--close", is_flag=True, help="End the leases that have these units when it begins.")
@daemon_options
@json_option
def add_window(
    place: DeployPlace,
    start: Instant,
    end: Instant,
    units_: tuple[str, ...],
    type_: str,
    reason: str,
    close: bool,
    as_json: bool,
) -> None:
    """Announce a maintenance window: brokers are asked to grant nothing of these units over it."""
    arguments = {"start": start, "end": end, "units": list(units_), "type": type_, "reason": reason, "close": close}
    window = place.command(SITE, "maintenance.add", **arguments)
    span = f"from {to_second(window['start'])} to {to_second(window['end'])}"
    what = "1 unit is" if len(window["units"]) == 1 else f"{len(window['units'])} units are"
    report(window, f"{window['window']}: {what} out of service {span}", as_json=as_json)


@maintenance.command("remove", epilog=example("leasekit site maintenance remove window-12"))
@click.argument("window")
@daemon_options
@json_option
def remove_window(place: DeployPlace, window: str, as_json: bool) -> None:
    """Take a maintenance window back, or end it now."""
    removed = place.command(SITE, "maintenance.remove", window=window)
    report(removed, f"{window} is off", as_json=as_json)


@maintenance.command("list", epilog=example("leasekit site maintenance list"))
@daemon_options
@json_option
def list_windows(place: DeployPlace, as_json: bool) -> None:
    """List the maintenance windows that are to come or going on."""
    windows = place.query(SITE, "maintenance")
    report(windows, WINDOWS, as_json=as_json)


@site.command(epilog=example("leasekit site claims"))
@daemon_options
@json_option
def claims(place: DeployPlace, as_json: bool) -> None:
    """List the claims that the site has seen: who gave what to whom, and which leases came of it."""
    seen = place.query(SITE, "claims")
    report(seen, CLAIMS, as_json=as_json)


add_delegation_commands(site, SITE)
add_unit_commands(site)
site.add_command(doctor)
site.add_command(host)
