"""``leasekit lease``: list leases, show them, follow them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from leasekit.cli.lease_views import list_leases, show_history, show_lease, transition_line
from leasekit.cli.output import clean, example, json_option, print_json, print_json_line, report
from leasekit.cli.places import DeployPlace, daemon_options
from leasekit.cli.times import Count
from leasekit.core.errors import LeasekitError

if TYPE_CHECKING:
    from leasekit.runtime.client import ControlClient

GUEST = "guest"


@click.command("list", epilog=example("leasekit lease list --slice web", "leasekit lease list --actor site --json"))
@click.option("--slice", "slice_", default="", metavar="NAME", help="Only leases of this slice.")
@click.option(
    "--all", "every", is_flag=True, help="Leases that are over as well, as long as the daemon remembers them."
)
@daemon_options
@json_option
def list_(place: DeployPlace, slice_: str, every: bool, as_json: bool) -> None:
    """List leases. A guest's by default; with --actor those that a broker or site knows."""
    with place.connect(GUEST, or_only=True) as client:
        leases = with_topologies(client, client.query("leases", all=every, slice=slice_), every=every)
    leases = [found for found in leases if not slice_ or found["slice"] == slice_]
    report(leases, list_leases, as_json=as_json)


@click.command(epilog=example("leasekit lease show web"))
@click.argument("name", metavar="LEASE")
@daemon_options
@json_option
def show(place: DeployPlace, name: str, as_json: bool) -> None:
    """Show a lease: its state and why, what was asked and granted, its units."""
    with place.connect(GUEST, or_only=True) as client:
        found = client.query("lease", lease=name)
    report(found, show_lease, as_json=as_json)


@click.command(epilog=example("leasekit lease history web"))
@click.argument("name", metavar="LEASE")
@daemon_options
@json_option
def history(place: DeployPlace, name: str, as_json: bool) -> None:
    """List the transitions of a lease: when, from what, to what, why.

    A lease that was over long ago is found by its id.
    """
    with place.connect(GUEST, or_only=True) as client:
        rows = client.history(_id(client, name))
    if as_json:
        print_json(rows)
    elif not rows:
        raise LeasekitError(f"no lease {name!r} was ever here; `leasekit lease list --all` shows those there are")
    else:
        show_history(rows)


def _id(client: Any, name: str) -> str:
    """The id of a lease that may be over for so long that only its history is left."""
    from leasekit.runtime.client import RequestError

    with suppress(RequestError):
        return str(client.query("lease", lease=name)["id"])
    return name


def _open(client: Any, name: str) -> str:
    """The id of a lease of which there is something to come. Raises ``LeasekitError``."""
    found = client.query("lease", lease=name)
    if found["state"] in ("closed", "failed"):
        raise LeasekitError(f"lease {found['id']} is {found['state']}: `leasekit lease history` tells how it went")
    return str(found["id"])


@click.command(epilog=example("leasekit lease watch web", "leasekit lease watch --actor site --json"))
@click.argument("name", metavar="[LEASE]", default="")
@daemon_options
@click.option("--json", "as_json", is_flag=True, help="Print a JSON document on each line.")
def watch(place: DeployPlace, name: str, as_json: bool) -> None:
    """Print transitions as they happen, of one lease or of all, until Ctrl-C."""
    with place.connect(GUEST, or_only=True) as client:
        for event in client.watch(_open(client, name) if name else ""):
            if as_json:
                print_json_line(event)
            else:
                click.echo(clean(transition_line(event)))


@click.command(epilog=example("leasekit lease logs web", "leasekit lease logs web vm-0 --follow"))
@click.argument("name", metavar="LEASE")
@click.argument("unit", default="")
@click.option(
    "--lines",
    type=Count(min=0, max=10_000),
    default=50,
    show_default=True,
    help="How many lines of each unit.",
)
@click.option("--follow", is_flag=True, help="Print further lines of the one UNIT as they come, until Ctrl-C.")
@daemon_options
@json_option
def logs(place: DeployPlace, name: str, unit: str, lines: int, follow: bool, as_json: bool) -> None:
    """Print what drivers said of a lease's units: the guest's, and the site's where its daemon is in the same file."""
    if follow and (not unit or as_json):
        raise click.UsageError("--follow goes with a UNIT, and without --json")
    socket = place.socket(GUEST, or_only=True)
    from leasekit.runtime.client import ControlClient

    with ControlClient(socket) as client:
        found = client.query("lease", lease=name)
    units = [u["unit"] if isinstance(u, dict) else u for u in found["units"]]
    if unit and unit not in units:
        raise LeasekitError(f"lease {found['id']} has no unit {unit!r}; it has {', '.join(units) or 'none'}")
    sources = {"guest": socket, **_site_socket(place, found)}
    if follow:
        _follow(sources.get("site", socket), unit, lines)
        return
    found_lines = {
        which: {each: _log_lines(path, each, lines) for each in ([unit] if unit else units)}
        for which, path in sources.items()
    }
    if as_json:
        print_json(found_lines)
        return
    for which, logs_of in found_lines.items():
        for each, text in logs_of.items():
            for line in text:
                click.echo(clean(f"{which} {each}: {line}"))


def _site_socket(place: DeployPlace, found: Mapping[str, Any]) -> dict[str, Path]:
    """The control socket of the lease's site, if the deploy file has its daemon and that runs here."""
    if place.control is not None or not found.get("site"):
        return {}
    spec = place.deployment().actors.get(found["site"])
    return {"site": spec.control} if spec is not None and spec.control.exists() else {}


def _log_lines(path: Path, unit: str, lines: int) -> list[str]:
    from leasekit.runtime.client import ControlClient

    with ControlClient(path) as client:
        return list(client.unit_log(unit, lines))


def _follow(path: Path, unit: str, lines: int) -> None:
    from leasekit.runtime.client import ControlClient

    with ControlClient(path) as client:
        for line in client.unit_log(unit, lines, follow=True):
            click.echo(clean(line))


def with_topologies(
    client: ControlClient, leases: Sequence[Mapping[str, Any]], *, every: bool
) -> list[Mapping[str, Any]]:
    """The leases, with the topology that each belongs to as its ``group``, where the actor is a guest that has any."""
    if not leases or "holder" in leases[0]:
        return list(leases)
    names = [each["topology"] for each in client.query("topologies", all=every)]
    groups: dict[str, str] = {}
    for found in client.batch(("query", "topology", {"topology": name}) for name in names):
        # One that has been forgotten since is an error in its place.
        if isinstance(found, Mapping):
            groups |= {part["lease"]: found["topology"] for part in found["parts"]}
    return [{**lease, "group": groups[lease["id"]]} if lease["id"] in groups else lease for lease in leases]
