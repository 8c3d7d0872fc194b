"""``leasekit site hypervisor``: machines that are leased, and are hosts of a site's virtual machines while they are.

A driver's book says which machine is which host. Over all time in which a host has no machine it is in a maintenance
window, so that brokers grant what there will be and no more; the windows follow the book.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import attrs
import click

from leasekit.cli.options import Shown, argument, command, now, option, to_second
from leasekit.cli.output import listing
from leasekit.cli.places import SITE, DeployPlace
from leasekit.core.errors import LeasekitError
from leasekit.core.reasons import counted
from leasekit.core.time import INSTANT_MAX, MINUTE, SECOND, Duration, Instant, format_duration

if TYPE_CHECKING:
    from leasekit.drivers.libvirt.leased import HostBook
    from leasekit.drivers.libvirt.settings import LibvirtSettings
    from leasekit.runtime.client import ControlClient

KIND: Final = "libvirt"
ENDS_WITHIN: Final = 10 * MINUTE
EVER: Final[Instant] = INSTANT_MAX

DRIVER: Any = option("Which driver's hosts, where several have some that are leased.", metavar="NAME")


@attrs.frozen(kw_only=True)
class Hosts:
    """The hosts of one driver that are leased machines."""

    slots: tuple[str, ...]
    book: HostBook

    def units(self, client: ControlClient) -> dict[str, list[str]]:
        """The hosts that the site has in its inventory, and the units that somebody has there: machines, or the host as
        a whole.
        """
        rows = client.query("units")
        found: dict[str, list[str]] = {row["unit"]: [] for row in rows if row["unit"] in self.slots}
        for row in rows:
            host = row["host"] or row["unit"]
            if host in found and row["lease"]:
                found[host].append(row["unit"])
        return found


HOSTS: Final = listing(
    "host", "machine", "address", ("until", lambda row: to_second(row["until"]) if row["until"] else ""),
    (">units", lambda row: len(row["units"])), empty="there are none",
)  # fmt: skip


@click.group()
def hypervisor() -> None:
    """Say which leased machines are hosts of virtual machines."""


@command(hypervisor)
def add(
    place: DeployPlace,
    machine: str = argument(),
    address: str = option("Where its ssh server is.", required=True, metavar="HOST"),
    port: str = option("And at which port.", shown="22"),
    user: str = option("Who logs in.", shown="root"),
    host_key: str = option("The host key that it must show.", required=True, metavar="KEY"),
    until: Instant = option("When it goes back at the latest.", default=0, metavar="TIME"),
    driver: str = DRIVER,
) -> Shown:
    """Have a machine be a host, which is in service until then. With a later --until it stays longer.

    Example:
      leasekit site hypervisor add node-7 --address 10.78.0.12 --host-key 'ssh-ed25519 AAAA...'
    """
    from leasekit.drivers.libvirt.leased import machine_of

    hosts = _hosts(place, driver)
    properties = {"host": address, "port": port, "user": user, "host_key": host_key}
    slot = hosts.book.add(machine_of(machine, properties, until))
    with place.connect(SITE) as client:
        _follow(hosts, client)
    words = f"{machine} is host {slot}" + (f" until {to_second(until)}" if until else "")
    return {"host": slot, "machine": machine}, words


@command(hypervisor)
def remove(
    place: DeployPlace,
    machine: str = argument(),
    patience: Duration = option(
        f"How long its units may take to end [{format_duration(ENDS_WITHIN)}].", default=ENDS_WITHIN, metavar="DURATION"
    ),
    driver: str = DRIVER,
) -> Shown:
    """Have a machine be a host no longer: leases with units on it end, and it is let go when the last unit is gone.

    Units that have not ended after a while end with the machine.

    Example:
      leasekit site hypervisor remove node-7
    """
    hosts = _hosts(place, driver)
    slot, left = next((s for s, one in hosts.book.all().items() if one.name == machine), ""), 0
    if slot:
        hosts.book.add(attrs.evolve(hosts.book.all()[slot], until=1))
        with place.connect(SITE) as client, place.connect(SITE) as watcher:
            events = watcher.watch("", patience=patience / SECOND)
            _follow(hosts, client)
            left = _wait(hosts, slot, client, events, now() + patience)
        hosts.book.remove(machine)
    words = f"{machine} is no host" + (" any more" if slot else "")
    words += f"; {counted(left)} of it had not ended" if left else ""
    return {"host": slot, "machine": machine, "left": left}, words


@command(hypervisor)
def sync(place: DeployPlace, driver: str = DRIVER) -> Shown:
    """Have hosts be in service while they have a machine, and at no other time; after a first start, too.

    Example:
      leasekit site hypervisor sync
    """
    hosts = _hosts(place, driver)
    with place.connect(SITE) as client:
        changed = _follow(hosts, client)
    words = f"{len(changed)} hosts changed: {', '.join(changed)}" if changed else "all is as it should be"
    return changed, words


@command(hypervisor, name="list")
def list_hosts(place: DeployPlace, driver: str = DRIVER) -> Shown:
    """List the hosts that are leased machines, and which machine each is.

    Example:
      leasekit site hypervisor list
    """
    hosts = _hosts(place, driver)
    machines = hosts.book.all()
    with place.connect(SITE) as client:
        units = hosts.units(client)
    rows = []
    for slot in hosts.slots:
        row: dict[str, Any] = {"host": slot, "machine": "", "address": "", "until": 0, "units": units.get(slot, [])}
        if slot in machines:
            row |= {"machine": machines[slot].name, "address": machines[slot].login.host, "until": machines[slot].until}
        rows.append(row)
    return rows, HOSTS


def _hosts(place: DeployPlace, name: str) -> Hosts:
    """The driver that is meant: the one of that name, or the only one with such hosts. Raises ``LeasekitError``."""
    from leasekit.core.settings import structure
    from leasekit.drivers.libvirt.leased import HostBook
    from leasekit.drivers.libvirt.settings import LibvirtSettings
    from leasekit.drivers.registry import PUBLISH

    spec, state = place.spec(SITE), place.deployment().state
    found: dict[str, LibvirtSettings] = {}
    for driver in spec.drivers.values():
        if driver.kind == KIND and name in ("", driver.name):
            table = {key: value for key, value in driver.settings.items() if key != PUBLISH}
            found[driver.name] = structure(LibvirtSettings, table, driver.where, base=state)
    fitting = {each: settings for each, settings in found.items() if settings.slots}
    if len(fitting) != 1:
        what = f" called {name!r}" if name else ""
        also = f": {', '.join(fitting)}; say which with --driver" if fitting else ""
        raise LeasekitError(
            f"{place.deploy_file()}: actor {spec.name} has {len(fitting) or 'no'} drivers{what} of kind {KIND} with "
            f"leased hosts{also}"
        )
    (settings,) = fitting.values()
    assert settings.leased is not None
    return Hosts(slots=settings.slots, book=HostBook(settings.leased.book, settings.slots))


def _follow(hosts: Hosts, client: ControlClient) -> list[str]:
    """Bring the windows to what the book says; returns the hosts whose window is another now."""
    from leasekit.drivers.files import alone

    changed, book = [], hosts.book.path
    with alone(book.with_name(f"{book.name}.windows")):  # machines of a lease join side by side
        machines, units = hosts.book.all(), hosts.units(client)
        windows = client.query("maintenance")
        for slot in filter(units.__contains__, hosts.slots):
            reason, at = f"host {slot} is not leased", now()
            machine = machines.get(slot)
            start = at if machine is None else max(machine.until, at) if machine.until else EVER
            own = [window for window in windows if window["reason"] == reason]
            if [_is(window, start, at) for window in own] == [True] * (start < EVER):
                continue
            for window in own:
                client.command("maintenance.remove", window=window["window"])
            if start < EVER:
                wanted = {"start": start, "end": EVER, "units": [slot], "reason": reason, "close": True}
                client.request("command", "maintenance.add", wanted)
            changed.append(slot)
    return changed


def _is(window: Mapping[str, Any], start: Instant, at: Instant) -> bool:
    begin: Instant = window["start"]
    end: Instant = window["end"]
    return (begin <= at if start <= at else begin == start) and end == EVER


def _wait(hosts: Hosts, slot: str, client: ControlClient, events: Iterator[Any], until: Instant) -> int:
    """Wait until nobody has units on a host any more, or it is too late; returns how many somebody has."""
    from leasekit.runtime.client import ControlError

    while True:
        held = len(hosts.units(client).get(slot, ()))
        if not held or now() >= until:
            return held
        try:
            next(events)
        except ControlError:
            if now() < until:
                raise  # the daemon has ended, and its machine must not go before it is back
            return held
