"""``leasekit site host``: hosts with capacity that come, go and change while their site runs."""

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

HOSTS: Final = listing(
    "host", "type", "state", "capacity", ("machines", lambda row: len(row["machines"]) or ""), "taken",
    ("lease", lambda row: row["lease"]),
    ("attributes", lambda row: " ".join(f"{key}={value}" for key, value in row["attributes"].items())),
    ("differs", lambda row: row["differs"]), empty="there are none", right=("machines",),
)  # fmt: skip
CAPACITY: Final = "What it has, such as cpu=16,memory=64GiB."
LEAST_YIELD: Final = "Which share of the CPU that machines need they get at least."
SHARE: Final = Number(min=0, max=1, min_open=True)
ATTRIBUTE: Final = "What else filters may choose it by; may be repeated."


@click.group()
def host() -> None:
    """Add, change and remove hosts with capacity while the site runs."""


@command(host)
def add(
    place: DeployPlace,
    name: str = argument("HOST"),
    type_: str = option("Its type, which must have hosts.", required=True, metavar="TYPE"),
    capacity: str = option(CAPACITY, required=True, metavar="RESOURCE=AMOUNT,..."),
    least_yield: float | None = option(LEAST_YIELD, type=SHARE, metavar="SHARE"),
    attributes: tuple[tuple[str, str], ...] = option(ATTRIBUTE, "--attribute"),
) -> Shown:
    """Have a host in the inventory that the deploy file does not name. It stays, over restarts, until it is removed.

    A broker that the file gives all units of the type is given it at once; others by `site delegate`.

    Example:
      leasekit site host add node-9 --type node --capacity cpu=16,memory=64GiB --attribute rack=b
    """
    _check_driver(place, name, type_)
    asked = _said(capacity, least_yield, attributes) | {"attributes": dict(attributes)}
    made = place.command(SITE, "host.add", host=name, type=type_, **asked)
    return made, f"host {name} of type {type_} is {made['state']}: {made['capacity']}"


@command(host, name="set")
def change(
    place: DeployPlace,
    name: str = argument("HOST"),
    capacity: str = option(CAPACITY, metavar="RESOURCE=AMOUNT,..."),
    least_yield: float | None = option(LEAST_YIELD, type=SHARE, metavar="SHARE"),
    attributes: tuple[tuple[str, str], ...] = option(f"{ATTRIBUTE} It then has these alone.", "--attribute"),
) -> Shown:
    """Say that a host has more, or less, or other attributes. What is not said stays as it is.

    Less than its machines have, or are to have, is refused: move these first. `site host reset` takes it back.

    Example:
      leasekit site host set node-3 --capacity cpu=32,memory=128GiB
    """
    made = place.command(SITE, "host.set", host=name, **_said(capacity, least_yield, attributes))
    return made, f"host {name} is {made['state']}: {made['capacity']}"


@command(host)
def remove(
    place: DeployPlace,
    name: str = argument("HOST"),
    move: bool = option("Have its machines moved to other hosts, where there is room, or set up anew there."),
) -> Shown:
    """Have a host in the inventory no more: it is gone when the last machine has left it.

    Its leases are listed. What is planned on it is planned elsewhere; whose machine finds no room hears of it.

    Example:
      leasekit site host remove node-3 --move
    """
    with place.connect(SITE) as client:
        gone = client.command("host.remove", host=name)
        gone["moved"], gone["not_moved"] = _moved(client, [*gone["machines"]] or [name] * bool(gone["lease"]), move)
    return gone, _tell_gone(gone)


@command(host)
def reset(place: DeployPlace, name: str = argument("HOST")) -> Shown:
    """Have a host be as the deploy file says again; one that the file does not name is removed.

    Example:
      leasekit site host reset node-3
    """
    made = place.command(SITE, "host.reset", host=name)
    return made, f"host {name} is {'removed' if made['differs'] else 'as the file says'}, {made['state']}"


@command(host, name="list")
def list_hosts(place: DeployPlace) -> Shown:
    """List hosts with their capacity, what is on them, and how they differ from the deploy file.

    Example:
      leasekit site host list
    """
    return place.query(SITE, "hosts"), HOSTS


def _said(
    capacity: str, least_yield: float | None, attributes: tuple[tuple[str, str], ...]
) -> dict[str, dict[str, str] | int]:
    """What of a host is said, as the command has it."""
    found: dict[str, dict[str, str] | int] = {"attributes": dict(attributes)} if attributes else {}
    if capacity:
        pairs = [entry.partition("=") for entry in capacity.split(",")]
        found["capacity"] = {resource.strip(): much.strip() for resource, _, much in pairs}
    return found if least_yield is None else {**found, "least_yield": round(least_yield * THOUSAND)}


def _check_driver(place: DeployPlace, name: str, type_: str) -> None:
    """A driver that says which hosts it has must have this one. Raises ``LeasekitError``."""
    from leasekit.drivers.registry import only_units

    if place.control is not None:
        return
    spec = place.spec(SITE)
    driver = spec.drivers.get(spec.driver_of.get(type_, ""))
    if driver is None:
        return
    only = only_units(driver.kind, driver.settings, driver.where, base=place.deployment().state)
    if only is not None and not (only.takes(name) if only.hosts is None else name in only.hosts):
        raise LeasekitError(f"{driver.where}: there is no host {name!r}: name it there, and `leasekit reload` the site")


def _moved(client: ControlClient, units: list[str], move: bool) -> tuple[list[str], dict[str, str]]:
    moved, not_moved = list[str](), dict[str, str]()
    for unit in units if move else ():
        try:
            client.command("unit.move", unit=unit, reason="its host is removed")
            moved.append(unit)
        except LeasekitError as error:
            not_moved[unit] = str(error)
    return moved, not_moved


def _tell_gone(gone: Mapping[str, Any]) -> Callable[[Any], None]:
    def told(_: Any) -> None:
        left = len(gone["machines"]) - len(gone["moved"])
        note(f"host {gone['host']} is {gone['state']}" + (f"; {left} machines are on it until they end" * (left > 0)))
        for lease in gone["leases"]:
            note(f"lease {lease} has units, or places, on it")
        print_lines([*(f"unit {unit}: it goes to another host" for unit in gone["moved"]), *gone["not_moved"].values()])

    return told
