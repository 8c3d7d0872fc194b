"""``leasekit site host``: machines that are leased, and are hosts of a site's virtual machines while they are; and
``leasekit site doctor``: whether a host has what the actors of a deploy file need.

A driver's book says which machine is which host. Over all time in which a host has no machine its units are in a
maintenance window, so that brokers grant what there will be and no more; the windows follow the book.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import attrs
import click

from leasekit.cli.output import example, json_option, listing, note, print_json, print_table
from leasekit.cli.places import SITE, DeployPlace, Shown, asks, file_and_actors
from leasekit.cli.times import SPAN, WHEN, now, to_second
from leasekit.core.errors import LeasekitError
from leasekit.core.reasons import counted
from leasekit.core.time import INSTANT_MAX, MINUTE, SECOND, Duration, Instant, format_duration

if TYPE_CHECKING:
    from leasekit.config.deployment import Deployment
    from leasekit.drivers.libvirt.leased import HostBook
    from leasekit.drivers.libvirt.settings import LibvirtSettings
    from leasekit.runtime.client import ControlClient
    from leasekit.runtime.doctor import Diagnosis

COLUMNS = ("at", "what", "is", "found", "what to do")


@click.command(epilog=example("leasekit site doctor deploy/libvirt/vms.toml", "leasekit site doctor site"))
@file_and_actors
@json_option
def doctor(place: DeployPlace, actors: tuple[str, ...], as_json: bool) -> int:
    """Look whether this host has what a deploy file (or those ACTORs of it) needs, and say what to do about the rest.

    Looks at folders, keys, ports and databases, and lets each driver look at programs, hosts, networks and images. Run
    it as the user that the daemon will have. Exits with 1 if anything is missing.
    """
    import trio

    deployment = place.deployment_with(actors)
    found = trio.run(_all, deployment, actors or tuple(deployment.actors))
    if as_json:
        print_json([{"at": one.where, **attrs.asdict(one.finding)} for one in found])
    else:
        rows = [(d.where, d.finding.what, d.finding.verdict, d.finding.found, d.finding.advice) for d in found]
        print_table(COLUMNS, rows, empty="")
    missing = sum(one.finding.verdict == "missing" for one in found)
    doubtful = sum(one.finding.verdict == "doubtful" for one in found)
    note(f"{len(found)} looked at: {missing} missing, {doubtful} doubtful")
    return 1 if missing else 0


async def _all(deployment: Deployment, names: Sequence[str]) -> list[Diagnosis]:
    from leasekit.runtime.doctor import diagnose

    return [one for name in names for one in await diagnose(deployment, name)]


KIND: Final = "libvirt"
PATIENCE: Final = 10 * MINUTE
EVER: Final[Instant] = INSTANT_MAX

driver_option = click.option(
    "--driver", default="", metavar="NAME", help="Which driver's hosts, where several have some that are leased."
)


@attrs.frozen(kw_only=True)
class Hosts:
    """The hosts of one driver that are leased machines, and the units of which each is the home."""

    settings: LibvirtSettings
    types: frozenset[str]
    book: HostBook

    def units(self, client: ControlClient) -> dict[str, list[str]]:
        """The units of each host, as the site has them."""
        found: dict[str, list[str]] = {slot: [] for slot in self.settings.slots}
        for unit in client.query("units"):
            home = self.settings.home_of(unit["unit"]) if unit["type"] in self.types else ""
            if home in found:
                found[home].append(unit["unit"])
        return found


HOSTS: Final = listing(
    "host", "machine", "address", ("until", lambda row: to_second(row["until"]) if row["until"] else ""),
    ("units", lambda row: len(row["units"])), empty="there are none", right=("units",),
)  # fmt: skip


@click.group()
def host() -> None:
    """Say which leased machines are hosts of virtual machines."""


@asks(host, "leasekit site host add node-7 --address 10.78.0.12 --host-key 'ssh-ed25519 AAAA...'")
@click.argument("machine")
@click.option("--address", required=True, metavar="HOST", help="Where its ssh server is.")
@click.option("--port", default="22", show_default=True, help="And at which port.")
@click.option("--user", default="root", show_default=True, help="Who logs in.")
@click.option("--host-key", required=True, metavar="KEY", help="The host key that it must show.")
@click.option("--until", type=WHEN, default=0, metavar="TIME", help="When it goes back at the latest.")
@driver_option
def add(
    place: DeployPlace, machine: str, address: str, port: str, user: str, host_key: str, until: Instant, driver: str
) -> Shown:
    """Have a machine be a host: its units are in service until then. With a later --until it stays longer."""
    from leasekit.drivers.libvirt.leased import machine_of

    hosts = _hosts(place, driver)
    properties = {"host": address, "port": port, "user": user, "host_key": host_key}
    slot = hosts.book.add(machine_of(machine, properties, until))
    with place.connect(SITE) as client:
        _follow(hosts, client)
    words = f"{machine} is host {slot}" + (f" until {to_second(until)}" if until else "")
    return {"host": slot, "machine": machine}, words


@asks(host, "leasekit site host remove node-7")
@click.argument("machine")
@click.option(
    "--patience", type=SPAN, default=PATIENCE, metavar="DURATION",
    help=f"How long its units may take to end [{format_duration(PATIENCE)}].",
)  # fmt: skip
@driver_option
def remove(place: DeployPlace, machine: str, patience: Duration, driver: str) -> Shown:
    """Have a machine be a host no longer: leases with units on it end, and it is let go when the last unit is gone.

    Units that have not ended after a while end with the machine.
    """
    hosts = _hosts(place, driver)
    slot, left = next((s for s, one in hosts.book.all().items() if one.name == machine), ""), 0
    if slot:
        hosts.book.add(attrs.evolve(hosts.book.all()[slot], until=1))
        with place.connect(SITE) as client, place.connect(SITE) as watcher:
            events = watcher.watch("", patience=patience / SECOND)
            _follow(hosts, client)
            left = _wait(client, events, hosts.units(client)[slot], now() + patience)
        hosts.book.remove(machine)
    words = f"{machine} is no host" + (" any more" if slot else "")
    words += f"; {counted(left)} of it had not ended" if left else ""
    return {"host": slot, "machine": machine, "left": left}, words


@asks(host, "leasekit site host sync")
@driver_option
def sync(place: DeployPlace, driver: str) -> Shown:
    """Have units be in service while their host has a machine, and at no other time; after a first start, too."""
    hosts = _hosts(place, driver)
    with place.connect(SITE) as client:
        changed = _follow(hosts, client)
    words = f"{len(changed)} hosts changed: {', '.join(changed)}" if changed else "all is as it should be"
    return changed, words


@asks(host, "leasekit site host list", name="list")
@driver_option
def list_hosts(place: DeployPlace, driver: str) -> Shown:
    """List the hosts that are leased machines, and which machine each is."""
    hosts = _hosts(place, driver)
    machines = hosts.book.all()
    with place.connect(SITE) as client:
        units = hosts.units(client)
    rows = []
    for slot in hosts.settings.slots:
        row: dict[str, Any] = {"host": slot, "machine": "", "address": "", "until": 0, "units": units[slot]}
        if slot in machines:
            row |= {"machine": machines[slot].name, "address": machines[slot].login.host, "until": machines[slot].until}
        rows.append(row)
    return rows, HOSTS


def _hosts(place: DeployPlace, name: str) -> Hosts:
    """The driver that is meant: the one of that name, or the only one with such hosts. Raises ``LeasekitError``."""
    from leasekit.core.settings import structure
    from leasekit.drivers.directory.publishing import KEY as PUBLISH
    from leasekit.drivers.libvirt.leased import HostBook
    from leasekit.drivers.libvirt.settings import LibvirtSettings

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
    ((driver_name, settings),) = fitting.items()
    assert settings.leased is not None
    return Hosts(
        settings=settings,
        types=frozenset(type_ for type_, driver in spec.driver_of.items() if driver == driver_name),
        book=HostBook(settings.leased.book, settings.slots),
    )


def _follow(hosts: Hosts, client: ControlClient) -> list[str]:
    """Bring the windows to what the book says; returns the hosts whose window is another now."""
    changed = []
    with _alone(hosts.book):
        machines, units = hosts.book.all(), hosts.units(client)
        windows = client.query("maintenance")
        for slot in hosts.settings.slots:
            reason, at = f"host {slot} is not leased", now()
            machine = machines.get(slot)
            start = at if machine is None else max(machine.until, at) if machine.until else EVER
            own = [window for window in windows if window["reason"] == reason]
            if [_is(window, start, at, units[slot]) for window in own] == [True] * (start < EVER and bool(units[slot])):
                continue
            for window in own:
                client.command("maintenance.remove", window=window["window"])
            if start < EVER and units[slot]:
                wanted = {"start": start, "end": EVER, "units": units[slot], "reason": reason, "close": True}
                client.request("command", "maintenance.add", wanted)
            changed.append(slot)
    return changed


def _is(window: Mapping[str, Any], start: Instant, at: Instant, units: list[str]) -> bool:
    begins = window["start"] <= at if start <= at else window["start"] == start
    return begins and window["end"] == EVER and sorted(window["units"]) == sorted(units)


def _wait(client: ControlClient, events: Iterator[Any], units: list[str], until: Instant) -> int:
    """Wait until nobody has the units any more, or it is too late; returns how many somebody has."""
    from leasekit.runtime.client import ControlError

    while True:
        held = sum(bool(unit["lease"]) for unit in client.query("units") if unit["unit"] in units)
        if not held or now() >= until:
            return held
        try:
            next(events)
        except ControlError:
            if now() < until:
                raise  # the daemon has ended, and its machine must not go before it is back
            return held


@contextmanager
def _alone(book: HostBook) -> Iterator[None]:
    """One at a time: machines of a lease join side by side."""
    path = book.path.with_name(book.path.name + ".windows")
    try:
        lock = path.open("w")
    except OSError as error:
        raise LeasekitError(f"can't write {path}: {error.strerror}") from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
