"""``leasekit site``: a site's units, its leases, and what it has delegated."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click

from leasekit.cli.output import (
    classes_of,
    example,
    json_option,
    listing,
    note,
    print_fields,
    print_json,
    print_lines,
    print_table,
    properties_of,
)
from leasekit.cli.peer import add_delegation_commands, add_eviction
from leasekit.cli.places import SITE, DeployPlace, Shown, asks, daemon_options
from leasekit.cli.site_hosts import doctor, host
from leasekit.cli.ticket import key_column
from leasekit.cli.times import PAIR, TERM, WHEN, Count, at, now, show_when, to_second
from leasekit.core.errors import LeasekitError
from leasekit.core.leases.authority import UNIT_TABLE
from leasekit.core.time import INSTANT_MAX, Instant

PATIENCE: Final = 900.0
"""How long an operation on a unit may take, in seconds, before the command gives up waiting for it."""


@click.group()
def site() -> None:
    """Look after a site's units."""


def ask_site(place: DeployPlace, command: str, **arguments: Any) -> Any:
    """One command to a site's daemon that may take long."""
    from leasekit.runtime.client import ControlClient

    with ControlClient(place.socket(SITE), timeout=PATIENCE) as client:
        return client.request("command", command, arguments)


STATES = tuple(dict.fromkeys(state for state, _ in UNIT_TABLE))
"""The states that a unit can be in."""


UNITS: Final = listing(
    "unit", "type", "state", ("lease", lambda unit: unit["lease"] or unit["promised"]),
    ("failures", lambda unit: unit["failures"] or ""), ("reason", lambda unit: unit["trouble"] or unit["reason"]),
    ("properties", properties_of), empty="no such units", right=("failures",),
)  # fmt: skip
EVIDENCE: Final = listing(
    "id", ("found", at("at")), "kind", ("guilty", key_column("guilty")), "words",
    empty="there is no evidence against anybody",
)  # fmt: skip
WINDOWS: Final = listing(
    "window", ("from", at("start")), ("until", lambda window: _until(window)),
    ("units", lambda window: len(window["units"])),
    ("leased", lambda window: sum(len(hit["units"]) for hit in window["leases"]) or ""),
    ("leases", lambda window: " ".join(hit["lease"] for hit in window["leases"])),
    ("begun", lambda window: "yes" if window["begun"] else ""), "reason",
    empty="no maintenance is announced, and nothing is drained", right=("units", "leased"),
)  # fmt: skip
HIT: Final = listing(
    "lease", "holder", ("units", lambda hit: " ".join(hit["units"])), ("ends", at("end")), empty="no lease is hit",
)  # fmt: skip
CLAIMS: Final = listing(
    ("claim", lambda claim: claim["claim"][:16]), ("parent", lambda claim: claim["parent"][:16]),
    ("issuer", key_column("issuer")), ("holder", key_column("holder")), "type", "units",
    ("classes", classes_of), *TERM, "state", "lease",
    empty="no ticket was redeemed yet", right=("units",),
)  # fmt: skip


@asks(site, "leasekit site units --in free")
@click.option("--type", "type_", default="", metavar="TYPE", help="Only units of this type.")
@click.option(
    "--in", "unit_state", type=click.Choice(STATES), metavar="STATE", help="Only units in this state, such as free."
)
def units(place: DeployPlace, type_: str, unit_state: str | None) -> Shown:
    """List the units of a site: whose they are, and what is being done to them."""
    found = [
        unit
        for unit in place.query(SITE, "units")
        if (not type_ or unit["type"] == type_) and (not unit_state or unit["state"] == unit_state)
    ]
    return found, UNITS


@asks(site, 'leasekit site disable vm-3 --reason "its fan is noisy"')
@click.argument("unit")
@click.option("--reason", default="", help="Why, for those who wonder.")
def disable(place: DeployPlace, unit: str, reason: str) -> Shown:
    """Take a unit out of service. A lease that has it keeps it until it gives it up."""
    changed = place.command(SITE, "unit.disable", unit=unit, reason=reason)
    words = f"unit {unit} is {changed['state']}; it is given to nobody until it is enabled again"
    return changed, words


@asks(site, "leasekit site enable vm-3")
@click.argument("unit")
def enable(place: DeployPlace, unit: str) -> Shown:
    """Bring a unit back into service. One whose teardown had failed is torn down first."""
    changed = place.command(SITE, "unit.enable", unit=unit)
    return changed, f"unit {unit} is {changed['state']}"


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


@asks(site, "leasekit site word broker.json --out proven.json")
@click.argument("source", metavar="FILE", type=click.Path(path_type=Path))
@click.option(
    "--out", type=click.Path(path_type=Path, dir_okay=False), required=True,
    help="Write the evidence, with the site's word in it, to this file.",
)  # fmt: skip
def word(place: DeployPlace, source: Path, out: Path) -> Shown:
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
    return {"file": str(out), "at": said["at"]}, words


@site.group()
def maintenance() -> None:
    """Announce when units are out of service."""


@asks(maintenance, "leasekit site maintenance add --from 2027-01-10T22:00Z --until +6h --unit vm-3 --close", name="add")
@click.option("--from", "start", type=WHEN, required=True, metavar="TIME", help="When it begins.")
@click.option("--until", "end", type=WHEN, required=True, metavar="TIME", help="When the units are back.")
@click.option("--unit", "units_", multiple=True, metavar="UNIT", help="A unit that it is about [all].")
@click.option("--type", "type_", default="", metavar="TYPE", help="Only units of this type.")
@click.option("--reason", default="", help="Why, for guests and brokers.")
@click.option("--close", is_flag=True, help="End the leases that have these units when it begins.")
def add_window(
    place: DeployPlace, start: Instant, end: Instant, units_: tuple[str, ...], type_: str, reason: str, close: bool
) -> Shown:
    """Announce a maintenance window: brokers are asked to grant nothing of these units over it."""
    arguments = {"start": start, "end": end, "units": list(units_), "type": type_, "reason": reason, "close": close}
    window = place.command(SITE, "maintenance.add", **arguments)
    span = f"from {to_second(window['start'])} to {to_second(window['end'])}"
    return window, _tell_window(f"{_are(window['units'])} out of service {span}")


def _are(units: Sequence[str]) -> str:
    return "1 unit is" if len(units) == 1 else f"{len(units)} units are"


def _until(window: Mapping[str, Any]) -> str:
    return "-" if window["end"] == INSTANT_MAX else to_second(window["end"])


def _tell_window(what: str, *more: str) -> Callable[[Mapping[str, Any]], None]:
    """Say ``what`` becomes of a window's units, whose leases have them, and what ``more`` there is to say."""

    def told(window: Mapping[str, Any]) -> None:
        note(f"{window['window']}: {what}")
        HIT(window["leases"])
        print_lines(more)

    return told


@asks(
    site, 'leasekit site drain vm-3 vm-4 --reason "new disks"', "leasekit site drain --type vm --close +2d",
    "leasekit site drain vm-3 --move",
)  # fmt: skip
@click.argument("units_", metavar="[UNIT]...", nargs=-1)
@click.option("--type", "type_", default="", metavar="TYPE", help="Only units of this type.")
@click.option("--reason", default="", help="Why, for guests and brokers.")
@click.option("--close", "close_at", type=WHEN, metavar="TIME", help="End the leases that have them by then.")
@click.option("--move", is_flag=True, help="Give the leases that have them other units, where there are any.")
def drain(
    place: DeployPlace, units_: tuple[str, ...], type_: str, reason: str, close_at: Instant | None, move: bool
) -> Shown:
    """Take units out of service (all, if none is named), each as soon as no lease has it, until `site undrain`.

    Brokers are asked to grant nothing of them; holders of leases that have them hear of it. `site maintenance list`
    says what is left.
    """
    arguments: dict[str, Any] = {"units": list(units_), "type": type_, "reason": reason or "drained"}
    if close_at is not None:
        arguments |= {"close": True, "close_at": close_at}
    with place.connect(SITE) as client:
        window = client.command("maintenance.add", **arguments)
        hit = [unit for lease in window["leases"] for unit in lease["units"]] if move else []
        window["moved"], window["not_moved"] = [], {}
        for unit in hit:
            try:
                client.command("unit.move", unit=unit, reason=arguments["reason"])
                window["moved"].append(unit)
            except LeasekitError as error:
                window["not_moved"][unit] = str(error)
    return window, _tell_window(f"{_are(window['units'])} drained", *_moves(window))


def _moves(window: Mapping[str, Any]) -> Iterator[str]:
    for unit in window["moved"]:
        yield f"unit {unit}: its lease gets another one"
    yield from window["not_moved"].values()


@asks(site, "leasekit site undrain vm-3", "leasekit site undrain window-12")
@click.argument("names", metavar="UNIT|WINDOW...", nargs=-1, required=True)
def undrain(place: DeployPlace, names: tuple[str, ...]) -> Shown:
    """Put units into service again that were drained, or are in a maintenance window."""
    with place.connect(SITE) as client:
        windows = {window["window"] for window in client.query("maintenance")}
        for name in [name for name in names if name in windows]:
            client.command("maintenance.remove", window=name)
        units = [name for name in names if name not in windows]
        if units:
            client.command("maintenance.remove", units=units)
    return {"undrained": list(names)}, f"{', '.join(names)}: in service again"


@asks(site, 'leasekit site move vm-3 --reason "it is slow"')
@click.argument("unit")
@click.option("--reason", default="", help="Why, for its lease's holder.")
def move(place: DeployPlace, unit: str, reason: str) -> Shown:
    """Give the lease of a unit that is up another one in its place; what is on the unit is lost."""
    moved = place.command(SITE, "unit.move", unit=unit, reason=reason)
    return moved, f"unit {unit} is {moved['state']}; lease {moved['lease']} gets another one"


@asks(maintenance, "leasekit site maintenance remove window-12", name="remove")
@click.argument("window")
def remove_window(place: DeployPlace, window: str) -> Shown:
    """Take a maintenance window back, or end it now."""
    removed = place.command(SITE, "maintenance.remove", window=window)
    return removed, f"{window} is off"


@asks(maintenance, "leasekit site maintenance list", name="list")
def list_windows(place: DeployPlace) -> Shown:
    """List the maintenance windows that are to come or going on."""
    return place.query(SITE, "maintenance"), WINDOWS


@asks(site, "leasekit site claims")
def claims(place: DeployPlace) -> Shown:
    """List the claims that the site has seen: who gave what to whom, and which leases came of it."""
    return place.query(SITE, "claims"), CLAIMS


add_delegation_commands(site, SITE)
add_eviction(site, SITE, "End a lease of somebody's; its holder hears when and why.")


# -- units that are up, and what is left of those that are not -------------------------------------------------------


@asks(site, 'leasekit site fail vm-3 --reason "its power supply is dead"')
@click.argument("unit")
@click.option("--reason", default="", help="Why, for its lease's holder.")
def fail(place: DeployPlace, unit: str, reason: str) -> Shown:
    """Say that a unit which is up has failed: its lease gets another in its place, or goes on with fewer.

    It is given to nobody until `site enable`.
    """
    told = ask_site(place, "unit.fail", unit=unit, reason=reason)
    return told, f"unit {unit} is {told['state']}: {told['reason']}"


@asks(site, "leasekit site probe vm-3")
@click.argument("unit")
def probe(place: DeployPlace, unit: str) -> Shown:
    """Have the driver look at a unit that is up, now."""
    found = ask_site(place, "unit.probe", unit=unit)
    measured = ((name, _number(value)) for name, value in found["measured"].items())
    fields = [("state", found["state"]), ("detail", found["detail"]), *measured]
    return found, lambda _: print_fields(fields)


def _number(value: float) -> str:
    """A measured number: whole where it is, else to three places."""
    return f"{value:,.0f}" if value == int(value) else f"{value:,.3f}"


@asks(site, "leasekit site operate vm-3 restart", "leasekit site operate vm-3 migrate host=two")
@click.argument("unit")
@click.argument("operation")
@click.argument("arguments", type=PAIR, nargs=-1, metavar="[KEY=VALUE]...")
def operate(place: DeployPlace, unit: str, operation: str, arguments: Sequence[tuple[str, str]]) -> Shown:
    """Have the driver do something with a unit that is up, such as restart it; each driver's page says what it can."""
    told = ask_site(place, "unit.operate", unit=unit, operation=operation, arguments=dict(arguments))
    return told, lambda done: print_fields(done.items())


@asks(site, "leasekit site console vm-3")
@click.argument("unit")
def console(place: DeployPlace, unit: str) -> Shown:
    """Print the last lines of a unit's console."""
    return show_console(place, unit)


def show_console(place: DeployPlace, unit: str) -> Shown:
    """What a site's daemon knows of a unit's console, and how it is printed, fit for a terminal."""
    told = ask_site(place, "unit.operate", unit=unit, operation="console", arguments={})
    return told.get("console", "").splitlines(), print_lines


@asks(site, "leasekit site caps vm-3 --seconds 5")
@click.argument("unit")
@click.option("--seconds", type=Count(1, 60), default=2, show_default=True, help="How long each cap is measured.")
def caps(place: DeployPlace, unit: str, seconds: int) -> Shown:
    """Measure how well CPU caps of 10 to 90 % hold on a unit that is up and busy.

    The unit's own cap holds again afterwards.
    """
    answer = ask_site(place, "unit.operate", unit=unit, operation="caps", arguments={"seconds": str(seconds)})
    free = float(answer.pop("none"))
    measured = {int(cap): float(used) for cap, used in answer.items()}
    # What a guest does not get without a cap, for want of work or of a CPU, says nothing of the cap.
    errors = {cap: used - cap for cap, used in measured.items() if cap <= free} or {0: 0.0}
    mean, worst = sum(map(abs, errors.values())) / len(errors), max(errors.values(), key=abs)

    def told(_: object) -> None:
        note(f"without a cap the unit uses {free:.1f} % of one CPU")
        rows = [
            (f"{c} %", f"{used:.1f} %", f"{errors[c]:+.1f}" if c in errors else "-") for c, used in measured.items()
        ]
        print_table(("cap", "measured", "error"), rows, empty="", right=("cap", "measured", "error"))
        note(f"mean error {mean:.2f}, worst {worst:+.2f}, in percent of one CPU")

    return {"uncapped": free, "measured": measured, "mean_error": mean, "worst_error": worst}, told


@site.command(epilog=example("leasekit site orphans", "leasekit site orphans --remove --unit vm-3"))
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


@asks(site, "leasekit site saved", "leasekit site saved --json")
def saved(place: DeployPlace) -> Shown:
    """List what the site keeps of the units of suspended leases, until when, and for whom."""
    kept = place.query(SITE, "saved")
    instant = now()
    told = listing(
        "lease", "unit", "type", "holder", "state", ("kept until", lambda one: show_when(one["until"], instant)),
        empty="nothing is kept of any unit",
    )  # fmt: skip
    return kept, told


site.add_command(doctor)
site.add_command(host)
