"""``leasekit site``: a site's units, which come, go and change while it runs, its leases, and what it has delegated;
and whether a host has what the actors of a deploy file need.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs
import click

from leasekit.cli.hypervisors import hypervisor
from leasekit.cli.options import (
    FILE,
    FILE_AND_ACTORS,
    TERM,
    Count,
    Number,
    Shown,
    argument,
    at,
    command,
    now,
    option,
    show_when,
    to_second,
)
from leasekit.cli.output import classes_of, listing, note, print_fields, print_lines, print_table, properties_of
from leasekit.cli.peer import add_delegation_commands, add_eviction
from leasekit.cli.places import SITE, DeployPlace
from leasekit.cli.ticket import key_column
from leasekit.core.errors import LeasekitError
from leasekit.core.leases.authority import UNIT_TABLE
from leasekit.core.properties import CPU, THOUSAND, written_amount
from leasekit.core.time import INSTANT_MAX, Instant

if TYPE_CHECKING:
    from leasekit.config.deployment import Deployment
    from leasekit.runtime.client import ControlClient
    from leasekit.runtime.doctor import Diagnosis


INVENTORY: Final = listing(
    "unit", ">number", "type", "state", "capacity", (">machines", lambda row: len(row["machines"]) or ""), "taken",
    ("lease", lambda row: row["lease"]),
    ("attributes", lambda row: " ".join(f"{key}={value}" for key, value in row["attributes"].items())),
    ("differs", lambda row: row["differs"]), empty="there are none",
)  # fmt: skip
CAPACITY: Final = "What a host has, such as cpu=16,memory=64GiB."
LEAST_YIELD: Final = "Which share of the CPU that machines on it need they get at least."
SHARE: Final = Number(min=0, max=1, min_open=True)
ATTRIBUTE: Final = "What else filters may choose it by; may be repeated."


@click.group(name="unit")
def unit_group() -> None:
    """Add, change and remove units while the site runs."""


@command(unit_group)
def add(
    place: DeployPlace,
    name: str = argument("UNIT"),
    type_: str = option("Its type, one of the deploy file.", required=True, metavar="TYPE"),
    capacity: str = option(CAPACITY, metavar="RESOURCE=AMOUNT,..."),
    least_yield: float | None = option(LEAST_YIELD, type=SHARE, metavar="SHARE"),
    attributes: tuple[tuple[str, str], ...] = option(ATTRIBUTE, "--attribute"),
) -> Shown:
    """Have a unit in the inventory that the deploy file does not name. It stays, over restarts, until it is removed.

    A broker that the file gives all units of the type is given it at once; others by `site delegate`. A unit of a type
    of hosts needs a capacity. A driver that names its units must have it in its settings first.

    Example:
      leasekit site unit add vm-9 --type vm --attribute rack=b
      leasekit site unit add node-9 --type node --capacity cpu=16,memory=64GiB --attribute rack=b
    """
    asked = _said(capacity, least_yield, attributes) | {"attributes": dict(attributes)}
    made = place.command(SITE, "unit.add", unit=name, type=type_, **asked)
    return made, f"unit {name} of type {type_} is {made['state']}{_has(made)}"


@command(unit_group, name="set")
def change(
    place: DeployPlace,
    name: str = argument("UNIT"),
    capacity: str = option(CAPACITY, metavar="RESOURCE=AMOUNT,..."),
    least_yield: float | None = option(LEAST_YIELD, type=SHARE, metavar="SHARE"),
    attributes: tuple[tuple[str, str], ...] = option(f"{ATTRIBUTE} It then has these alone.", "--attribute"),
) -> Shown:
    """Say that a unit has other attributes; a host, that it has more, or less. What is not said stays as it is.

    Less than its machines have, or are to have, is refused: move these first. `site unit reset` takes it back.

    Example:
      leasekit site unit set vm-3 --attribute rack=b
      leasekit site unit set node-3 --capacity cpu=32,memory=128GiB
    """
    made = place.command(SITE, "unit.set", unit=name, **_said(capacity, least_yield, attributes))
    return made, f"unit {name} is {made['state']}{_has(made)}"


@command(unit_group)
def remove(
    place: DeployPlace,
    name: str = argument("UNIT"),
    move: bool = option("Give the leases that have it, or machines on it, others where there is room."),
) -> Shown:
    """Have a unit in the inventory no more: it is gone when its lease, or the last machine on it, has left it.

    Its leases are listed. What is planned on a host is planned elsewhere; whose machine finds no room hears of it.

    Example:
      leasekit site unit remove node-3 --move
    """
    with place.connect(SITE) as client:
        gone = client.command("unit.remove", unit=name)
        hit = [*gone["machines"]] or [name] * bool(gone["lease"])
        gone |= _moved(client, hit if move else (), "it is removed")
    return gone, _tell_gone(gone)


@command(unit_group)
def reset(place: DeployPlace, name: str = argument("UNIT")) -> Shown:
    """Have a unit be as the deploy file says again; one that the file does not name is removed.

    Example:
      leasekit site unit reset node-3
    """
    made = place.command(SITE, "unit.reset", unit=name)
    return made, f"unit {name} is {'removed' if made['differs'] else 'as the file says'}, {made['state']}"


@command(unit_group, name="list")
def inventory(place: DeployPlace, type_: str = option("Only units of this type.", metavar="TYPE")) -> Shown:
    """List the units of the inventory: what they have, what is on hosts, and how they differ from the deploy file.

    Example:
      leasekit site unit list --type node
    """
    return [row for row in place.query(SITE, "inventory") if type_ in ("", row["type"])], INVENTORY


def _has(row: Mapping[str, Any]) -> str:
    return f": {row['capacity']}" if row["capacity"] else ""


def _said(
    capacity: str, least_yield: float | None, attributes: tuple[tuple[str, str], ...]
) -> dict[str, dict[str, str] | int]:
    """What of a unit is said, as the command has it."""
    found: dict[str, dict[str, str] | int] = {"attributes": dict(attributes)} if attributes else {}
    if capacity:
        pairs = [entry.partition("=") for entry in capacity.split(",")]
        found["capacity"] = {resource.strip(): much.strip() for resource, _, much in pairs}
    return found if least_yield is None else {**found, "least_yield": round(least_yield * THOUSAND)}


def _moved(client: ControlClient, units: Iterable[str], reason: str) -> dict[str, Any]:
    """Give the leases of units others: of which that was done, and why not of the rest."""
    moved, not_moved = list[str](), dict[str, str]()
    for unit in units:
        try:
            client.command("unit.move", unit=unit, reason=reason)
            moved.append(unit)
        except LeasekitError as error:
            not_moved[unit] = str(error)
    return {"moved": moved, "not_moved": not_moved}


def _tell_gone(gone: Mapping[str, Any]) -> Callable[[Any], None]:
    def told(_: Any) -> None:
        left = len(gone["machines"]) - len(gone["moved"])
        note(f"unit {gone['unit']} is {gone['state']}" + (f"; {left} machines are on it until they end" * (left > 0)))
        for lease in gone["leases"]:
            note(f"lease {lease} has it, or is on it, now or later")
        moves = (f"unit {unit}: its lease gets another one, or it goes to another host" for unit in gone["moved"])
        print_lines([*moves, *gone["not_moved"].values()])

    return told


PATIENCE: Final = 900.0
"""How long an operation on a unit may take, in seconds, before the command gives up waiting for it."""


class _OfSite(click.Group):
    """Hosts are units: `site host add` is `site unit add`."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return super().get_command(ctx, "unit" if cmd_name == "host" else cmd_name)


@click.group(cls=_OfSite)
def site() -> None:
    """Look after a site's units."""


site.add_command(unit_group)
site.add_command(hypervisor)


def ask_site(place: DeployPlace, command: str, **arguments: Any) -> Any:
    """One command to a site's daemon that may take long."""
    from leasekit.runtime.client import ControlClient

    with ControlClient(place.socket(SITE), timeout=PATIENCE) as client:
        return client.request("command", command, arguments)


STATES = tuple(dict.fromkeys(state for state, _ in UNIT_TABLE))
"""The states that a unit can be in."""


def _cpu(unit: dict[str, Any]) -> str:
    """How much CPU a machine gets of what was asked for it, in cores, and how much it uses."""
    if not unit["asked"]:
        return ""
    gets, asked, uses = (written_amount(CPU, unit[key]) for key in ("cap", "asked", "used"))
    capped = f"{gets} of " if 0 <= unit["cap"] < unit["asked"] else ""
    return f"{capped}{asked}" + (f" (uses {uses})" if unit["used"] >= 0 else "")


UNITS: Final = listing(
    "unit", "type", "state", ("lease", lambda unit: unit["lease"] or unit["promised"]),
    ("host", lambda unit: " -> ".join(filter(None, (unit["leaves"], unit["host"])))), ("cpu", lambda unit: _cpu(unit)),
    (">failures", lambda unit: unit["failures"] or ""), ("reason", lambda unit: unit["trouble"] or unit["reason"]),
    ("properties", properties_of), empty="no such units",
)  # fmt: skip
EVIDENCE: Final = listing(
    "id", ("found", at("at")), "kind", ("guilty", key_column("guilty")), "words",
    empty="there is no evidence against anybody",
)  # fmt: skip
WINDOWS: Final = listing(
    "window", ("from", at("start")), ("until", lambda window: _until(window)),
    (">units", lambda window: len(window["units"])),
    (">leased", lambda window: sum(len(hit["units"]) for hit in window["leases"]) or ""),
    ("leases", lambda window: " ".join(hit["lease"] for hit in window["leases"])),
    ("begun", lambda window: "yes" if window["begun"] else ""), "reason",
    empty="no maintenance is announced, and nothing is drained",
)  # fmt: skip
HIT: Final = listing(
    "lease", "holder", ("units", lambda hit: " ".join(hit["units"])), ("ends", at("end")),
    empty="no lease in force is hit; brokers tell those who hold tickets for later",
)  # fmt: skip
CLAIMS: Final = listing(
    ("claim", lambda claim: claim["claim"][:16]), ("parent", lambda claim: claim["parent"][:16]),
    ("issuer", key_column("issuer")), ("holder", key_column("holder")), "type", ">units",
    ("classes", classes_of), *TERM, "state", "lease",
    empty="nothing was delegated yet",
)  # fmt: skip


@command(site)
def units(
    place: DeployPlace,
    type_: str = option("Only units of this type.", metavar="TYPE"),
    unit_state: str | None = option("Only units in this state, such as free.", "--in", type=STATES, metavar="STATE"),
) -> Shown:
    """List the units of a site: whose they are, and what is being done to them.

    Example:
      leasekit site units --in free
    """
    found = [
        unit
        for unit in place.query(SITE, "units")
        if (not type_ or unit["type"] == type_) and (not unit_state or unit["state"] == unit_state)
    ]
    return found, UNITS


@command(site)
def disable(place: DeployPlace, unit: str = argument(), reason: str = option("Why, for those who wonder.")) -> Shown:
    """Take a unit out of service. A lease that has it keeps it until it gives it up.

    Example:
      leasekit site disable vm-3 --reason "its fan is noisy"
    """
    changed = place.command(SITE, "unit.disable", unit=unit, reason=reason)
    words = f"unit {unit} is {changed['state']}; it is given to nobody until it is enabled again"
    return changed, words


@command(site)
def enable(place: DeployPlace, unit: str = argument()) -> Shown:
    """Bring a unit back into service. One whose teardown had failed is torn down first.

    Example:
      leasekit site enable vm-3
    """
    changed = place.command(SITE, "unit.enable", unit=unit)
    return changed, f"unit {unit} is {changed['state']}"


@command(site)
def evidence(
    place: DeployPlace,
    id_: str = argument("[ID]", default=""),
    out: Path | None = option("Write the evidence to this file.", type=FILE),
) -> Shown:
    """List who was found to give away more than it had, or export one piece of evidence.

    `leasekit evidence verify FILE` checks the file, anywhere.

    Example:
      leasekit site evidence 3f2a9c01-77aa0c1d2e3f4a5b --out evidence.json
    """
    found = place.query(SITE, "evidence", id=id_)
    if id_ and not found:
        raise LeasekitError(f"no evidence {id_!r} here; `leasekit site evidence` lists what there is")
    if out is not None:
        if not id_:
            raise LeasekitError("say which evidence: `leasekit site evidence` lists what there is")
        out.write_text(found[0]["file"], "utf-8")
        return found, f"evidence {id_} is in {out}"
    return found, (lambda _: click.echo(found[0]["file"], nl=False)) if id_ else EVIDENCE


@command(site)
def word(
    place: DeployPlace,
    source: Path = argument("FILE"),
    out: Path = option(
        "Write the evidence, with the site's word in it, to this file.",
        type=FILE,
        required=True,
    ),
) -> Shown:
    """Have the site say of evidence of over-delegation that its claims stand: no receipt was given for any of them.

    With that word `leasekit evidence verify` finds it proven. The site refuses where it has given a receipt, and for
    claims that it has not seen. From then on no receipt for them bears an earlier date.

    Example:
      leasekit site word broker.json --out proven.json
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


@command(maintenance, name="add")
def add_window(
    place: DeployPlace,
    start: Instant = option("When it begins.", "--from", required=True, metavar="TIME"),
    end: Instant = option("When the units are back.", "--until", required=True, metavar="TIME"),
    units_: tuple[str, ...] = option("A unit that it is about [all].", "--unit", metavar="UNIT"),
    type_: str = option("Only units of this type.", metavar="TYPE"),
    reason: str = option("Why, for guests and brokers."),
    close: bool = option("End the leases that have these units when it begins."),
) -> Shown:
    """Announce a maintenance window: brokers are asked to grant nothing of these units over it.

    Example:
      leasekit site maintenance add --from 2027-01-10T22:00Z --until +6h --unit vm-3 --close
    """
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


@command(site)
def drain(
    place: DeployPlace,
    units_: tuple[str, ...] = argument("[UNIT]..."),
    type_: str = option("Only units of this type.", metavar="TYPE"),
    reason: str = option("Why, for guests and brokers."),
    close_at: Instant | None = option("End the leases that have them by then.", "--close", metavar="TIME"),
    move: bool = option("Give the leases that have them other units, where there are any."),
) -> Shown:
    """Take units out of service (all, if none is named), each as soon as no lease has it, until `site undrain`.

    Brokers are asked to grant nothing of them; holders of leases that have them hear of it. `site maintenance list`
    says what is left.

    Example:
      leasekit site drain vm-3 vm-4 --reason "new disks"
      leasekit site drain --type vm --close +2d
      leasekit site drain vm-3 --move
    """
    arguments: dict[str, Any] = {"units": list(units_), "type": type_, "reason": reason or "drained"}
    if close_at is not None:
        arguments |= {"close": True, "close_at": close_at}
    with place.connect(SITE) as client:
        window = client.command("maintenance.add", **arguments)
        hit = [unit for lease in window["leases"] for unit in lease["units"]]
        window |= _moved(client, hit if move else (), arguments["reason"])
    moves = (f"unit {unit}: its lease gets another one" for unit in window["moved"])
    return window, _tell_window(f"{_are(window['units'])} drained", *moves, *window["not_moved"].values())


@command(site)
def undrain(place: DeployPlace, names: tuple[str, ...] = argument("UNIT|WINDOW...", required=True)) -> Shown:
    """Put units into service again that were drained, or are in a maintenance window.

    Example:
      leasekit site undrain vm-3
      leasekit site undrain window-12
    """
    with place.connect(SITE) as client:
        windows = {window["window"] for window in client.query("maintenance")}
        for name in [name for name in names if name in windows]:
            client.command("maintenance.remove", window=name)
        units = [name for name in names if name not in windows]
        if units:
            client.command("maintenance.remove", units=units)
    return {"undrained": list(names)}, f"{', '.join(names)}: in service again"


@command(site)
def move(
    place: DeployPlace,
    unit: str = argument(),
    host: str = option("The host that a machine is to be on [the one that has the least left]."),
    reason: str = option("Why, for its lease's holder."),
) -> Shown:
    """Give the lease of a unit that is up another one in its place; what is on the unit is lost.

    A machine goes to another host, as it runs where its driver can do that.

    Example:
      leasekit site move vm-3 --reason "it is slow"
      leasekit site move node-3.1207 --host node-4
    """
    moved = place.command(SITE, "unit.move", unit=unit, reason=reason, host=host)
    what = f"moves to {moved['host']}" if moved["host"] else "gets another one"
    return moved, f"unit {unit} is {moved['state']}; lease {moved['lease']} {what}"


@command(maintenance, name="remove")
def remove_window(place: DeployPlace, window: str = argument()) -> Shown:
    """Take a maintenance window back, or end it now.

    Example:
      leasekit site maintenance remove window-12
    """
    removed = place.command(SITE, "maintenance.remove", window=window)
    return removed, f"{window} is off"


@command(maintenance, name="list")
def list_windows(place: DeployPlace) -> Shown:
    """List the maintenance windows that are to come or going on.

    Example:
      leasekit site maintenance list
    """
    return place.query(SITE, "maintenance"), WINDOWS


@command(site)
def claims(place: DeployPlace) -> Shown:
    """List the claims that the site has seen: who gave what to whom, and which leases came of it.

    Example:
      leasekit site claims
    """
    return place.query(SITE, "claims"), CLAIMS


add_delegation_commands(site, SITE)
add_eviction(site, SITE, "End a lease of somebody's; its holder hears when and why.")


# -- units that are up, and what is left of those that are not -------------------------------------------------------


@command(site)
def fail(place: DeployPlace, unit: str = argument(), reason: str = option("Why, for its lease's holder.")) -> Shown:
    """Say that a unit which is up has failed: its lease gets another in its place, or goes on with fewer.

    It is given to nobody until `site enable`.

    Example:
      leasekit site fail vm-3 --reason "its power supply is dead"
    """
    told = ask_site(place, "unit.fail", unit=unit, reason=reason)
    return told, f"unit {unit} has failed: {told['reason']}; it is given to nobody until it is enabled"


@command(site)
def probe(place: DeployPlace, unit: str = argument()) -> Shown:
    """Have the driver look at a unit that is up, now.

    Example:
      leasekit site probe vm-3
    """
    found = ask_site(place, "unit.probe", unit=unit)
    measured = ((name, _number(value)) for name, value in found["measured"].items())
    fields = [("state", found["state"]), ("detail", found["detail"]), *measured]
    return found, lambda _: print_fields(fields)


def _number(value: float) -> str:
    """A measured number: whole where it is, else to three places."""
    return f"{value:,.0f}" if value == int(value) else f"{value:,.3f}"


@command(site)
def operate(
    place: DeployPlace,
    unit: str = argument(),
    operation: str = argument(),
    arguments: Sequence[tuple[str, str]] = argument("[KEY=VALUE]..."),
) -> Shown:
    """Have the driver do something with a unit that is up, such as restart it; each driver's page says what it can.

    Example:
      leasekit site operate vm-3 restart
      leasekit site operate vm-3 migrate host=two
    """
    told = ask_site(place, "unit.operate", unit=unit, operation=operation, arguments=dict(arguments))
    return told, lambda done: print_fields(done.items())


@command(site)
def console(place: DeployPlace, unit: str = argument()) -> Shown:
    """Print the last lines of a unit's console.

    Example:
      leasekit site console vm-3
    """
    return show_console(place, unit)


def show_console(place: DeployPlace, unit: str) -> Shown:
    """What a site's daemon knows of a unit's console, and how it is printed, fit for a terminal."""
    told = ask_site(place, "unit.operate", unit=unit, operation="console", arguments={})
    return told.get("console", "").splitlines(), print_lines


@command(site)
def caps(
    place: DeployPlace,
    unit: str = argument(),
    seconds: int = option("How long each cap is measured.", type=Count(1, 60), shown=2),
) -> Shown:
    """Measure how well CPU caps of 10 to 90 % hold on a unit that is up and busy.

    The unit's own cap holds again afterwards.

    Example:
      leasekit site caps vm-3 --seconds 5
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
        print_table((">cap", ">measured", ">error"), rows)
        note(f"mean error {mean:.2f}, worst {worst:+.2f}, in percent of one CPU")

    return {"uncapped": free, "measured": measured, "mean_error": mean, "worst_error": worst}, told


@command(site)
def orphans(
    place: DeployPlace,
    remove: bool = option("Remove them."),
    unit: str = option("Only those of this unit.", metavar="UNIT"),
) -> Shown:
    """List what is on the site's hosts of units that nobody has, such as guests of a site whose store was lost.

    What was found is printed in any case. The exit status is 1 if a driver could not tell, such as for a host that is
    down, or something could not be removed.

    Example:
      leasekit site orphans
      leasekit site orphans --remove --unit vm-3
    """
    answer = ask_site(place, "orphans.remove" if remove else "orphans.list", unit=unit)
    found, troubles = answer["orphans"], answer["troubles"]
    nothing = "nothing was found" if troubles else "there is nothing of units that nobody has"
    table = listing("host", "unit", ("what", "kind"), "name", empty=nothing)
    error = LeasekitError("\n".join(map(_trouble, troubles))) if troubles else None
    return found, (table, "removed") if remove and found else table, error


def _trouble(one: Mapping[str, str]) -> str:
    if one["unit"]:
        return f"what is left of unit {one['unit']} could not be removed by driver {one['driver']}: {one['reason']}"
    return f"driver {one['driver']} can't say what is left of old units: {one['reason']}"


@command(site)
def saved(place: DeployPlace) -> Shown:
    """List what the site keeps of the units of suspended leases, until when, and for whom.

    Example:
      leasekit site saved
      leasekit site saved --json
    """
    kept = place.query(SITE, "saved")
    instant = now()
    told = listing(
        "lease", "unit", "type", "holder", "state", ("kept until", lambda one: show_when(one["until"], instant)),
        empty="nothing is kept of any unit",
    )  # fmt: skip
    return kept, told


FINDINGS: Final = listing("at", "what", ("is", "verdict"), "found", ("what to do", "advice"))


@command(site)
def doctor(place: DeployPlace = FILE_AND_ACTORS) -> Shown:
    """Look whether this host has what a deploy file (or those ACTORs of it) needs, and say what to do about the rest.

    Looks at folders, keys, ports and databases, and lets each driver look at programs, hosts, networks and images. Run
    it as the user that the daemon will have. Exits with 1 if anything is missing.

    Example:
      leasekit site doctor deploy/libvirt/vms.toml
      leasekit site doctor site
    """
    import trio

    deployment = place.deployment_with_actors()
    found = trio.run(_all, deployment, place.actors or tuple(deployment.actors))
    missing = sum(one.finding.verdict == "missing" for one in found)
    doubtful = sum(one.finding.verdict == "doubtful" for one in found)
    note(f"{len(found)} looked at: {missing} missing, {doubtful} doubtful")
    return [{"at": one.where, **attrs.asdict(one.finding)} for one in found], FINDINGS, 1 if missing else 0


async def _all(deployment: Deployment, names: Sequence[str]) -> list[Diagnosis]:
    from leasekit.runtime.doctor import diagnose

    return [one for name in names for one in await diagnose(deployment, name)]
