"""``leasekit site doctor``: whether a host has what the actors of a deploy file need."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import attrs
import click

from leasekit.cli.output import example, json_option, note, print_json, print_table
from leasekit.cli.places import DeployPlace, file_and_actors
from leasekit.core.errors import LeasekitError

if TYPE_CHECKING:
    from leasekit.config.deployment import Deployment
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

    deployment = place.deployment()
    for name in actors:
        if name not in deployment.actors:
            raise LeasekitError(
                f"{deployment.file}: found no actor {name!r}, expected one of: {', '.join(deployment.actors)}"
            )
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
