"""``leasekit history`` and ``leasekit emulate --against``: histories of daemons as files, and beside an emulation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click

from leasekit.cli.options import Shown, at, command, option
from leasekit.cli.output import listing, note
from leasekit.cli.places import DeployPlace
from leasekit.config.instants import dated
from leasekit.core.errors import LeasekitError
from leasekit.core.reasons import mark
from leasekit.core.time import Duration, format_duration

DIFFERENCES: Final = listing(
    ("from", at("at")), "lease", ("differs in", "what"), ("daemons", lambda one: dated(one["daemons"])),
    ("emulated", lambda one: dated(one["emulated"])),
    empty="no differences",
)  # fmt: skip


@click.group()
def history() -> None:
    """Take the histories of daemons out of their stores."""


@command(history)
def export(
    place: DeployPlace,
    out: Path = option("Where transitions.csv and leases.csv go.", required=True, metavar="DIR"),
) -> Shown:
    """Write what actors have logged, and what guests have of their leases, to CSV files.

    They are read from the stores of all actors of the deploy file, or of --actor, whether daemons run or not:
    transitions.csv has the columns of the file that `leasekit emulate --out` writes. Instants are Unix milliseconds.
    `leasekit emulate FILE --against DIR` sets them beside an emulation.

    Example:
      leasekit history export --out history
    """
    from leasekit.emulation.histories import export

    actors = place.deployment().actors
    if place.actor and place.actor not in actors:
        raise LeasekitError(f"{place.deploy_file()}: no actor {place.actor!r}; it has {', '.join(actors)}")
    made = export([actors[place.actor]] if place.actor else list(actors.values()), out)
    return made, f"written to {out}: {made['transitions']} transitions, {made['leases']} leases of guests"


def compared(file: Path, stores: Sequence[Path], within: Duration | None, data: Path | None, synthetic: bool) -> Shown:
    """How histories of daemons differ from an emulation of their file; the first difference is an error."""
    from leasekit.emulation.histories import WITHIN, compare_with_daemons

    found = compare_with_daemons(
        file, stores, within=WITHIN if within is None else within, data=data, synthetic=synthetic, tell=note
    )
    told = (
        f"{found['same']} of {found['leases']} leases are the same; {found['transitions']} transitions were compared, "
        f"{found['left_out']} of the last {format_duration(found['within_ms'])} were not"
    )
    if found["only_transitions"]:
        told += f"; the emulation has not come as far with {', '.join(found['only_transitions'])}: no more was compared"
    if not found["differences"]:
        return found, told
    first = found["differences"][0]
    wrong = LeasekitError(
        f"the first difference is at {mark(first['at'])}: {first['lease']}: {first['what']} is "
        f"{first['daemons']} of the daemons, {first['emulated']} as emulated"
    )
    return found, (told, lambda found: DIFFERENCES(found["differences"])), wrong
