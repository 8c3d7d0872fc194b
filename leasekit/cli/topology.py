"""``leasekit slice``, and topologies: leases that belong together.

A topology is sites and the bandwidth between them, all or nothing: asked for by a file, followed, shown, closed. The
keys of its file are those of :mod:`leasekit.core.topology`; instants may be written as everywhere on the command line.
"""

from __future__ import annotations

import sys
import time
import tomllib
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO

import click

from leasekit.actors.settings import GuestSettings
from leasekit.cli.options import Count, Shown, argument, command, now, option, parse_when, term_columns, to_second
from leasekit.cli.output import clean, console, listing, print_fields
from leasekit.cli.places import GUEST, DeployPlace
from leasekit.cli.watching import followed
from leasekit.config.instants import parse_instant
from leasekit.core.errors import LeasekitError
from leasekit.core.json_text import JsonError, read_json
from leasekit.core.leases import service_manager as sm
from leasekit.core.leases.machine import NONE
from leasekit.core.settings import SettingsError
from leasekit.core.time import INSTANT_MAX, Duration, Instant
from leasekit.core.topology import TopologyRequest, read_topology

if TYPE_CHECKING:
    from leasekit.runtime.client import ControlClient

SOON: Final[Duration] = GuestSettings().request_timeout
"""How late a request may begin that names no start, or ``now``: as late as an answer is of use."""
FILE_MAX: Final = 1024 * 1024
"""The longest file that is read, in bytes."""

INSTANTS: Final = ("start", "est", "lst")


class TopologyFileError(LeasekitError):
    """What is wrong with a topology file, a line for each fault that names file and key."""

    def __init__(self, file: str, faults: list[str]) -> None:
        super().__init__("\n".join(f"{file}: {fault}" for fault in faults))


def read_topology_file(file: Path, now: Instant) -> TopologyRequest:
    """The request in a file (``-``: standard input, as JSON or TOML). Raises :class:`TopologyFileError`."""
    name = "standard input" if str(file) == "-" else str(file)
    content = _content(file, name)
    faults: list[str] = []
    found = dict(content)
    for key in INSTANTS:
        if key in found and not (key == "start" and found[key] == "now"):
            found[key] = _instant(found[key], key, now, faults)
    if found.get("start", "now") == "now" and not found.keys() & {"est", "lst"}:
        found.pop("start", None)
        found |= {"est": now, "lst": now + SOON}
    if "est" in found and "lst" not in found:
        found["lst"] = found["est"]
    # What was found wrong here is made right below, so that the rest is checked all the same.
    bad = {fault.partition(":")[0] for fault in faults}
    found |= {key: now for key in bad if key in INSTANTS}
    try:
        request = read_topology(found)
    except SettingsError as error:
        faults += [line for line in error.errors if line.partition(":")[0] not in bad]
    if faults:
        raise TopologyFileError(name, faults)
    return request


def _content(file: Path, name: str) -> Mapping[str, Any]:
    try:
        data = sys.stdin.buffer.read(FILE_MAX + 1) if str(file) == "-" else file.read_bytes()
    except OSError as error:
        raise TopologyFileError(name, [f"can't be read: {error.strerror}"]) from None
    if len(data) > FILE_MAX:
        raise TopologyFileError(name, [f"found {len(data)} bytes, at most {FILE_MAX} are allowed"])
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise TopologyFileError(name, ["found bytes that are not UTF-8, expected TOML or JSON"]) from None
    is_json = file.suffix == ".json" or (file.suffix != ".toml" and text.lstrip().startswith("{"))
    try:
        content = read_json(text) if is_json else tomllib.loads(text)
    except JsonError as error:
        raise TopologyFileError(name, [str(error)]) from None
    except tomllib.TOMLDecodeError as error:
        raise TopologyFileError(name, [f"found no TOML: {error}"]) from None
    except RecursionError:
        raise TopologyFileError(name, ["found tables in tables without end"]) from None
    if not isinstance(content, dict):
        raise TopologyFileError(name, [f"found {type(content).__name__}, expected a table with sites and links"])
    return content


def _instant(value: Any, key: str, now: Instant, faults: list[str]) -> Instant:
    """An instant of a file in milliseconds; a fault is noted where it is none."""
    try:
        if isinstance(value, str):
            return parse_when(value, now)
        if isinstance(value, datetime) or type(value) is int:
            instant = parse_instant(value)
            if 0 <= instant <= INSTANT_MAX:
                return instant
    except ValueError:
        pass
    faults.append(f"{key}: found {str(value)[:60]!r}, expected now, +2h, or ISO 8601 such as 2027-03-01T12:00Z")
    return now


_TEXT: Final = click.File("r")
SLICES: Final = listing(
    "slice", ">open", ">leases", ">units", (">holds for", lambda found: found["hold"] if not found["released"] else ""),
    "refused", empty="no slices",
)  # fmt: skip


@click.group(name="slice")
def slice_() -> None:
    """Group leases into slices."""


@command(slice_)
def create(
    place: DeployPlace,
    name: str = argument(),
    hold: int = option(
        "Redeem nothing before N leases of the slice have their tickets; if one is refused, close them all.",
        type=Count(min=0),
        default=0,
        metavar="N",
    ),
) -> Shown:
    """Make a slice. One that is only named by a lease request is made by itself, and holds nothing back.

    Example:
      leasekit slice create web --hold 3
    """
    made = place.command(GUEST, "slice.create", name=name, hold=hold)
    return made, f"slice {name} is made" + (f"; it waits for {hold} tickets" if hold else "")


@command(slice_)
def key(place: DeployPlace, name: str = argument(), keys: TextIO = argument("FILE", type=_TEXT)) -> Shown:
    """Have a slice's users log in with other keys: FILE holds OpenSSH public keys, a line each (`-`: stdin).

    Units that are up are told at once; leases that are still to come get the keys when they are set up.

    Example:
      leasekit slice key web id_ed25519.pub
    """
    text = _checked(keys)
    changed = place.command(GUEST, "slice.key", name=name, key=text)
    return changed, f"slice {name} has another key; {len(changed['leases'])} open leases get it"


def _checked(file: TextIO) -> str:
    """The text of a file of public keys: what is none would be sent to every site, a private key too."""
    from leasekit.drivers.libvirt.plan import login_keys

    try:
        text = file.read()
        found = login_keys(text)
    except (LeasekitError, UnicodeDecodeError) as error:
        raise LeasekitError(f"{file.name}: {error}") from error
    if not found:
        raise LeasekitError(f"{file.name}: found no key, expected a public key of OpenSSH in each line")
    return text


@command(slice_, name="list")
def list_(place: DeployPlace) -> Shown:
    """List slices and how much is in them.

    Example:
      leasekit slice list
    """
    return place.query(GUEST, "slices"), SLICES


@command(slice_)
def close(
    place: DeployPlace,
    name: str = argument(),
    reason: str = option("Why, for the leases' history."),
    wait: bool = option("Follow the leases until all are closed."),
) -> Shown:
    """Close every open lease of a slice.

    Example:
      leasekit slice close web --wait
    """
    with followed(place.socket(GUEST), wait) as (client, following):
        closed = client.request("command", "slice.close", {"name": name, "reason": reason})
        if following is not None:
            following.until_all_closed(closed["closed"])
    words = f"slice {name}: {len(closed['closed'])} leases are {'closed' if wait else 'being closed'}"
    return closed, words


PLANNED: Final = "planned"
COMMITTED: Final = "committed"
OVER: Final = ("failed", "closed")
PAUSE_FIRST, PAUSE_MOST = 0.05, 0.5
"""Seconds between looks at a topology that is on its way."""


def request_topology(place: DeployPlace, file: Path, *, broker: str, tries: int, dry_run: bool, wait: bool) -> Shown:
    """Ask for what a topology file says, or only for a plan of it; follow it until it is committed, or with ``wait``
    until its leases are in force; show it.
    """
    request = read_topology_file(file, now()).to_dict()
    with place.connect(GUEST) as client:
        if dry_run:
            return _planned(client.command("topology.plan", request=request, broker=broker))
        name = client.command("topology.request", request=request, broker=broker, tries=tries)["topology"]
        found = _follow(client, name, wait=wait)
    failed = [part for part in found["parts"] if part["state"] == sm.FAILED]
    why = f": lease {failed[0]['lease']} of {failed[0]['part']} has failed" if failed else ""
    if found["state"] in OVER:
        why = f" was not leased: {found['reason'] or 'no reason was given'}"
    return found, show_topology, LeasekitError(f"topology {name}{why}") if why else None


def _planned(plan: Mapping[str, Any]) -> Shown:
    if plan["status"] == PLANNED:
        return plan, (lambda plan: print_fields(_plan_fields(plan)), lambda plan: _print_parts(plan["parts"]))
    reason = plan["reason"] or "no reason was given"
    return plan, (), LeasekitError(f"{plan['broker']} would refuse it: {reason}")


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
    return any(part["state"] != sm.ACTIVE or part["pending"] not in (None, "", NONE, sm.NOTICED) for part in parts)


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
    lease = ("lease", ("state", _state)) if leased else ()
    listing(
        "member", ("path", lambda part: _route(part, parts)), "site", "type", ">units", "broker", *lease,
        empty="no parts",
    )(parts)  # fmt: skip


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
    "reason", empty="no topologies",
)  # fmt: skip


@command(None)
def topologies(place: DeployPlace, every: bool = option("Those that are over as well.", "--all")) -> Shown:
    """List the topologies that were asked for with `leasekit lease request --topology`.

    Example:
      leasekit lease topologies
      leasekit lease topologies --all --json
    """
    found = place.query(GUEST, "topologies", all=every)
    return found, TOPOLOGIES


@command(None)
def topology(place: DeployPlace, name: str = argument("TOPOLOGY")) -> Shown:
    """Show a topology: its plan, and its leases.

    Example:
      leasekit lease topology guest-t1
    """
    found = place.query(GUEST, "topology", topology=name)
    return found, show_topology


@command(None, name="close-topology")
def close_topology(
    place: DeployPlace,
    name: str = argument("TOPOLOGY"),
    reason: str = option("Why, for the history of its leases."),
    wait: bool = option("Until all of its leases are closed."),
) -> Shown:
    """End all leases of a topology early, or give it up while it is planned.

    Example:
      leasekit lease close-topology guest-t1 --wait
    """
    with followed(place.socket(GUEST), wait) as (client, following):
        leases = [part["lease"] for part in client.query("topology", topology=name)["parts"]]
        client.command("topology.close", topology=name, reason=reason)
        if following is not None:
            open_ = {each["id"] for each in client.query("leases", all=False, slice="")}
            following.until_all_closed(each for each in leases if each in open_)
        found = client.query("topology", topology=name)
    return found, f"{name}: {found['state']}"
