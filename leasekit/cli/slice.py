"""``leasekit slice``: groups of leases that belong together."""

from __future__ import annotations

from contextlib import ExitStack, closing
from typing import Final, TextIO

import click

from leasekit.cli.output import example, json_option, listing, report
from leasekit.cli.places import DeployPlace, daemon_options
from leasekit.cli.times import Count
from leasekit.cli.watching import Following
from leasekit.core.errors import LeasekitError

GUEST = "guest"


SLICES: Final = listing(
    "slice", "open", "leases", "units", ("holds for", lambda found: found["hold"] if not found["released"] else ""),
    "refused", empty="no slices", right=("open", "leases", "units", "holds for"),
)  # fmt: skip


@click.group(name="slice")
def slice_() -> None:
    """Group leases into slices."""


@slice_.command(epilog=example("leasekit slice create web --hold 3"))
@click.argument("name")
@click.option(
    "--hold",
    type=Count(min=0),
    default=0,
    metavar="N",
    help="Redeem nothing before N leases of the slice have their tickets; if one is refused, close them all.",
)
@daemon_options
@json_option
def create(place: DeployPlace, name: str, hold: int, as_json: bool) -> None:
    """Make a slice. One that is only named by a lease request is made by itself, and holds nothing back."""
    made = place.command(GUEST, "slice.create", name=name, hold=hold)
    report(made, f"slice {name} is made" + (f"; it waits for {hold} tickets" if hold else ""), as_json=as_json)


@slice_.command(epilog=example("leasekit slice key web id_ed25519.pub"))
@click.argument("name")
@click.argument("keys", metavar="FILE", type=click.File("r"))
@daemon_options
@json_option
def key(place: DeployPlace, name: str, keys: TextIO, as_json: bool) -> None:
    """Have a slice's users log in with other keys: FILE holds OpenSSH public keys, a line each (`-`: stdin).

    Units that are up are told at once; leases that are still to come get the keys when they are set up.
    """
    text = _checked(keys)
    changed = place.command(GUEST, "slice.key", name=name, key=text)
    report(changed, f"slice {name} has another key; {len(changed['leases'])} open leases get it", as_json=as_json)


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


@slice_.command("list", epilog=example("leasekit slice list"))
@daemon_options
@json_option
def list_(place: DeployPlace, as_json: bool) -> None:
    """List slices and how much is in them."""
    slices = place.query(GUEST, "slices")
    report(slices, SLICES, as_json=as_json)


@slice_.command(epilog=example("leasekit slice close web --wait"))
@click.argument("name")
@click.option("--reason", default="", help="Why, for the leases' history.")
@click.option("--wait", is_flag=True, help="Follow the leases until all are closed.")
@daemon_options
@json_option
def close(place: DeployPlace, name: str, reason: str, wait: bool, as_json: bool) -> None:
    """Close every open lease of a slice."""
    from leasekit.runtime.client import ControlClient

    socket = place.socket(GUEST)
    with ExitStack() as stack:
        following = stack.enter_context(closing(Following(socket))) if wait else None
        client = stack.enter_context(ControlClient(socket))
        closed = client.request("command", "slice.close", {"name": name, "reason": reason})
        if following is not None:
            following.until_all_closed(closed["closed"])
    words = f"slice {name}: {len(closed['closed'])} leases are {'closed' if wait else 'being closed'}"
    report(closed, words, as_json=as_json)
