"""``leasekit lease ssh`` and ``console``: a holder's way into a unit."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from leasekit.cli.output import example, json_option
from leasekit.cli.places import DeployPlace, daemon_options
from leasekit.cli.site_units import show_console
from leasekit.core.errors import LeasekitError

GUEST = "guest"


def find_unit(client: Any, name: str) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """The lease and the unit that ``name`` means: ``UNIT``, ``LEASE/UNIT``, or a lease that has just one. Raises
    ``LeasekitError`` with those that there are.
    """
    leases = [client.query("lease", lease=lease["id"]) for lease in client.query("leases", all=False, slice="")]
    units = [(lease, unit) for lease in leases for unit in lease["units"]]

    def names(lease: Mapping[str, Any], unit: Mapping[str, Any]) -> set[str]:
        alone = {lease["name"], lease["id"]} if len(lease["units"]) == 1 else set()
        return {unit["unit"], f"{lease['name']}/{unit['unit']}", f"{lease['id']}/{unit['unit']}", *alone}

    found = [(lease, unit) for lease, unit in units if name in names(lease, unit)]
    if len(found) == 1:
        return found[0]
    listed = ", ".join(f"{lease['name'] or lease['id']}/{unit['unit']}" for lease, unit in (found or units)[:20])
    if found:
        raise LeasekitError(f"{name!r} may be any of: {listed}")
    raise LeasekitError(f"no unit {name!r} is leased; there are: {listed or 'none'}")


@click.command(
    context_settings={"ignore_unknown_options": True},
    epilog=example("leasekit lease ssh vm-0", "leasekit lease ssh web/vm-0 -i ~/.ssh/web uptime"),
)
@click.argument("unit")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--identity", "-i", type=click.Path(path_type=Path, exists=True, dir_okay=False), metavar="FILE",
    help="Log in with this private key, and no other [those of ssh and its agent].",
)  # fmt: skip
@click.option("--user", "-l", default="", help="Log in as this user [as the unit's properties say].")
@daemon_options
def ssh(place: DeployPlace, unit: str, command: Sequence[str], identity: Path | None, user: str) -> int:
    """Log in to a unit, or run COMMAND there (after -- if it has options).

    The unit's ssh server must have the host key that its site told. UNIT is a unit's name, LEASE/UNIT, or a lease
    that has just one unit.
    """
    from leasekit.drivers.ssh_login import login_of

    program = shutil.which("ssh")
    if program is None:
        raise LeasekitError("there is no program ssh here (install openssh-client)")
    with place.connect(GUEST) as client:
        _, found = find_unit(client, unit)
    login = login_of(found["properties"], user, strict=False)
    if not login.host_key:
        raise LeasekitError(f"unit {found['unit']} has no property host_key: its site has told of no ssh server there")
    with tempfile.TemporaryDirectory(prefix="leasekit-ssh-") as folder:
        known = Path(folder) / "known_hosts"
        known.write_text(login.known_hosts(), "utf-8")
        words = [program, *login.options(known, identity), "--", login.host, *command]
        done = subprocess.run(words, check=False, env={**os.environ}, stdin=sys.stdin if sys.stdin else None)
    return done.returncode


@click.command(epilog=example("leasekit lease console vm-0"))
@click.argument("unit")
@daemon_options
@json_option
def console(place: DeployPlace, unit: str, as_json: bool) -> None:
    """Print the last lines of a unit's console.

    A console is its site's: the site's daemon must be one of the deploy file's, and run as the same user. Elsewhere ask
    the site's operator, who has `leasekit site console`.
    """
    with place.connect(GUEST) as client:
        lease, found = find_unit(client, unit)
    actors = place.deployment().actors
    if lease["site"] not in actors:
        raise LeasekitError(
            f"unit {found['unit']} is at {lease['site']}, which is not in {place.deploy_file()}: ask its operator"
        )
    site = place._replace(actor=lease["site"])
    show_console(site, found["unit"], as_json=as_json)
