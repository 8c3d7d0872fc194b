"""Leases of sites and of the bandwidth between them, all or nothing: asked for by a file, followed, shown, closed."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from leasekit.cli.output import (
    clean,
    console,
    example,
    json_option,
    listing,
    print_fields,
    print_json,
    print_table,
    report,
)
from leasekit.cli.places import DeployPlace, daemon_options
from leasekit.cli.times import now, term_columns, to_second
from leasekit.cli.topology_file import read_topology_file
from leasekit.core.errors import LeasekitError
from leasekit.core.leases import service_manager as sm
from leasekit.core.leases.machine import NONE

if TYPE_CHECKING:
    from leasekit.runtime.client import ControlClient

GUEST: Final = "guest"
PLANNED: Final = "planned"
COMMITTED: Final = "committed"
OVER: Final = ("failed", "closed")
"""Milliseconds between the years 2001 and 2033."""
PAUSE_FIRST, PAUSE_MOST = 0.05, 0.5
"""Seconds between looks at a topology that is on its way."""


def request_topology(
    place: DeployPlace, file: Path, *, broker: str, tries: int, dry_run: bool, wait: bool, as_json: bool
) -> int:
    """Ask for what a topology file says, or only for a plan of it; follow it until it is committed, or with ``wait``
    until its leases are in force; show it. Returns the exit status. Raises ``LeasekitError``.
    """
    request = read_topology_file(file, now()).to_dict()
    with place.connect(GUEST) as client:
        if dry_run:
            return _show_dry_run(client.command("topology.plan", request=request, broker=broker), as_json)
        name = client.command("topology.request", request=request, broker=broker, tries=tries)["topology"]
        found = _follow(client, name, wait=wait)
    report(found, show_topology, as_json=as_json)
    if found["state"] in OVER:
        raise LeasekitError(f"topology {name} was not leased: {found['reason'] or 'no reason was given'}")
    failed = [part for part in found["parts"] if part["state"] == sm.FAILED]
    if failed:
        raise LeasekitError(f"topology {name}: lease {failed[0]['lease']} of {failed[0]['part']} has failed")
    return 0


def _show_dry_run(plan: Mapping[str, Any], as_json: bool) -> int:
    if as_json:
        print_json(plan)
    elif plan["status"] == PLANNED:
        print_fields(_plan_fields(plan))
        _print_parts(plan["parts"])
    if plan["status"] != PLANNED:
        raise LeasekitError(f"{plan['broker']} would refuse it: {plan['reason'] or 'no reason was given'}")
    return 0


def _follow(client: ControlClient, name: str, *, wait: bool) -> Mapping[str, Any]:
    """Look until the topology is settled, each time a little later; what is seen first is told."""
    pause, told = PAUSE_FIRST, ""
    while True:
        found: Mapping[str, Any] = client.query("topology", topology=name)
        words = _progress(found)
        if words != told:
            console(stderr=True).print(clean(words), style="dim")
            told, pause = words, PAUSE_FIRST
        if found["state"] in OVER or (found["state"] == COMMITTED and not (wait and _is_under_way(found["parts"]))):
            return found
        time.sleep(pause)
        pause = min(2 * pause, PAUSE_MOST)


def _progress(found: Mapping[str, Any]) -> str:
    state = found["state"]
    parts = found["parts"]
    done = sum(1 for part in parts if part["state"] == sm.ACTIVE)
    if state == COMMITTED and parts:
        return f"{found['topology']}: committed, {done} of {len(parts)} leases active"
    why = f": {found['reason']}" if found["reason"] else ""
    return f"{found['topology']}: {state}{why}"


def _is_under_way(parts: Sequence[Mapping[str, Any]]) -> bool:
    states = [part["state"] for part in parts]
    if sm.FAILED in states:
        return False
    return any(part["state"] != sm.ACTIVE or part["pending"] not in (None, "", NONE) for part in parts)


# -- for a person ----------------------------------------------------------------------------------------------------


def show_topology(found: Mapping[str, Any]) -> None:
    """One topology: how it is, its plan, its leases."""
    head = [(key, found[key]) for key in ("topology", "slice", "state")]
    print_fields([*head, ("reason", found["reason"]), *_plan_fields(found)])
    if found["parts"]:
        _print_parts(found["parts"])


def _plan_fields(found: Mapping[str, Any]) -> list[tuple[str, Any]]:
    term = found.get("term")
    expires = found.get("expires")
    gap = str(found.get("gap") or "0")
    return [
        ("broker", found["broker"]),
        ("plan", found["plan"]),
        ("term", f"{to_second(term[0])} .. {to_second(term[1])}" if term else ""),
        ("value", found.get("objective")),
        ("gap", "" if gap in ("0", "0.0") else f"{gap} above the best that can be"),
        ("held until", to_second(expires) if expires is not None and found.get("state") != COMMITTED else ""),
    ]


def _print_parts(parts: Sequence[Mapping[str, Any]]) -> None:
    leased = any("lease" in part for part in parts)
    rows = [
        (
            part["member"],
            _route(part, parts),
            part["site"],
            part["type"],
            part["units"],
            part["broker"],
            *((part.get("lease", ""), _state(part)) if leased else ()),
        )
        for part in parts
    ]
    columns = ("member", "path", "site", "type", "units", "broker", *(("lease", "state") if leased else ()))
    print_table(columns, rows, empty="no parts", right=("units",))


def _route(part: Mapping[str, Any], parts: Sequence[Mapping[str, Any]]) -> str:
    """Which hop of which path a link is: ``1/2``, ``backup 1/3``; nothing for a site."""
    if part["path"] is None or part["part"] == part["member"]:
        return ""
    path = [each for each in parts if (each["member"], each["path"]) == (part["member"], part["path"])]
    place = f"{path.index(part) + 1}/{len(path)}"
    return f"backup {place}" if part["path"] else place


def _state(part: Mapping[str, Any]) -> str:
    pending = part.get("pending")
    return part.get("state", "") if pending in (None, "", NONE) else f"{part['state']} ({pending})"


# -- commands --------------------------------------------------------------------------------------------------------

TOPOLOGIES: Final = listing(
    "topology", "slice", "broker", "state",
    *term_columns(lambda found: found.get("term")),
    ("reason", lambda found: found["reason"]), empty="no topologies",
)  # fmt: skip


@click.command(epilog=example("leasekit lease topologies", "leasekit lease topologies --all --json"))
@click.option("--all", "every", is_flag=True, help="Those that are over as well.")
@daemon_options
@json_option
def topologies(place: DeployPlace, every: bool, as_json: bool) -> None:
    """List the topologies that were asked for with `leasekit lease request --topology`."""
    found = place.query(GUEST, "topologies", all=every)
    report(found, TOPOLOGIES, as_json=as_json)


@click.command(epilog=example("leasekit lease topology guest-t1"))
@click.argument("name", metavar="TOPOLOGY")
@daemon_options
@json_option
def topology(place: DeployPlace, name: str, as_json: bool) -> None:
    """Show a topology: its plan, and its leases."""
    found = place.query(GUEST, "topology", topology=name)
    report(found, show_topology, as_json=as_json)


@click.command("close-topology", epilog=example("leasekit lease close-topology guest-t1 --wait"))
@click.argument("name", metavar="TOPOLOGY")
@click.option("--reason", default="", help="Why, for the history of its leases.")
@click.option("--wait", is_flag=True, help="Until all of its leases are closed.")
@daemon_options
@json_option
def close_topology(place: DeployPlace, name: str, reason: str, wait: bool, as_json: bool) -> None:
    """End all leases of a topology early, or give it up while it is planned."""
    from leasekit.cli.watching import Following

    socket = place.socket(GUEST)
    following = Following(socket) if wait else None
    try:
        with place.connect(GUEST) as client:
            leases = [part["lease"] for part in client.query("topology", topology=name)["parts"]]
            client.command("topology.close", topology=name, reason=reason)
            if following is not None:
                open_ = {each["id"] for each in client.query("leases", all=False, slice="")}
                following.until_all_closed(each for each in leases if each in open_)
            found = client.query("topology", topology=name)
    finally:
        if following is not None:
            following.close()
    report(found, f"{name}: {found['state']}", as_json=as_json)
