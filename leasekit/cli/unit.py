"""``leasekit site unit``: units that come, go and change while their site runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import click

from leasekit.cli.options import Shown, argument, command, option
from leasekit.cli.output import listing, note, print_lines
from leasekit.cli.places import SITE, DeployPlace
from leasekit.cli.times import Number
from leasekit.core.errors import LeasekitError
from leasekit.core.vectors import THOUSAND

if TYPE_CHECKING:
    from leasekit.runtime.client import ControlClient

INVENTORY: Final = listing(
    "unit", "number", "type", "state", "capacity", ("machines", lambda row: len(row["machines"]) or ""), "taken",
    ("lease", lambda row: row["lease"]),
    ("attributes", lambda row: " ".join(f"{key}={value}" for key, value in row["attributes"].items())),
    ("differs", lambda row: row["differs"]), empty="there are none", right=("number", "machines"),
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
        gone["moved"], gone["not_moved"] = _moved(client, [*gone["machines"]] or [name] * bool(gone["lease"]), move)
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


def _moved(client: ControlClient, units: list[str], move: bool) -> tuple[list[str], dict[str, str]]:
    moved, not_moved = list[str](), dict[str, str]()
    for unit in units if move else ():
        try:
            client.command("unit.move", unit=unit, reason="it is removed")
            moved.append(unit)
        except LeasekitError as error:
            not_moved[unit] = str(error)
    return moved, not_moved


def _tell_gone(gone: Mapping[str, Any]) -> Callable[[Any], None]:
    def told(_: Any) -> None:
        left = len(gone["machines"]) - len(gone["moved"])
        note(f"unit {gone['unit']} is {gone['state']}" + (f"; {left} machines are on it until they end" * (left > 0)))
        for lease in gone["leases"]:
            note(f"lease {lease} has it, or is on it, now or later")
        print_lines(
            [
                *(f"unit {unit}: its lease gets another one, or it goes to another host" for unit in gone["moved"]),
                *gone["not_moved"].values(),
            ]
        )

    return told
