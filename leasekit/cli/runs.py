"""``leasekit runs``: the folder of an emulation, for a browser."""

from __future__ import annotations

from pathlib import Path

from leasekit.cli.options import Count, argument, command, option
from leasekit.cli.output import note


@command(None)
def runs(
    folder: Path = argument(),
    port: int = option("Where to listen, on this machine alone [any].", type=Count(0, 65_535), shown=0, metavar="N"),
) -> None:
    """Serve the FOLDER that `leasekit emulate --out` has written to a browser, until Ctrl-C: the runs side by side, and
    the calendar of each over virtual time.

    Who has the address that it prints sees the runs, and nobody else.

    Example:
      leasekit runs run/month
    """
    open_folder(folder, port)


def open_folder(folder: Path, port: int = 0) -> None:
    """Serve a folder until Ctrl-C."""
    from leasekit.emulation.runs.opened import RunsFolder
    from leasekit.gateway.pages.runs import serve_runs

    serve_runs(RunsFolder(folder), port, lambda address: note(f"{folder}: {address} until Ctrl-C"))
