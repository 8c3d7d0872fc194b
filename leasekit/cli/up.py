"""``leasekit up`` and ``leasekit down``: start and stop daemons."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from pathlib import Path

import click

from leasekit.cli.output import example, note
from leasekit.cli.places import DeployPlace, file_and_actors, file_options
from leasekit.core.errors import LeasekitError


@click.command(
    epilog=example(
        "leasekit up deploy/quickstart/all.toml",
        "leasekit up deploy/quickstart/all.toml site --state run/site",
    )
)
@file_and_actors
@click.option(
    "--data", type=click.Path(path_type=Path), metavar="DIR", help="Where the traces are that mappers follow."
)
@click.option("--synthetic", is_flag=True, help="Let mappers follow generated load instead of traces.")
@click.option("--accept-clock", is_flag=True, help="Believe this machine's clock, although it was set.")
@click.option("--ready-fd", type=int, metavar="N", help="Write the ready lines to this descriptor as well.")
def up(
    place: DeployPlace,
    actors: tuple[str, ...],
    data: Path | None,
    synthetic: bool,
    accept_clock: bool,
    ready_fd: int | None,
) -> int:
    """Run the daemons of a deploy file (or those ACTORs of it) in this process until they are stopped.

    Prints a line for each actor as soon as it listens, and stops in good order on Ctrl-C, SIGTERM or `leasekit down`.
    """
    from leasekit.runtime.daemon import run

    return run(
        place.deployment(), actors, ready_fd=ready_fd, data_dir=data, synthetic=synthetic, accept_clock=accept_clock
    )


@click.command(epilog=example("leasekit down --file deploy/quickstart/all.toml"))
@click.argument("actors", metavar="[ACTOR]...", nargs=-1)
@file_options
def down(place: DeployPlace, actors: tuple[str, ...]) -> None:
    """Stop the daemons of a deploy file, or those ACTORs of it. What runs is finished, or resumed at the next start.

    A process that runs several actors stops as a whole.
    """
    from leasekit.runtime.client import ControlClient, ControlError

    deployment = place.deployment()
    for name in actors:
        if name not in deployment.actors:
            raise LeasekitError(f"{deployment.file}: no actor {name!r}; it has {', '.join(deployment.actors)}")
    with ExitStack() as stack:
        running = {}
        for name in actors or deployment.actors:
            with suppress(ControlError):
                running[name] = stack.enter_context(ControlClient(deployment.actors[name].control))
        for name, client in running.items():
            with suppress(ControlError):  # the process that runs it may have been told so already
                client.stop()
            note(f"{name}: stopping")
    if not running:
        raise LeasekitError(f"{deployment.file}: none of its daemons is running")
