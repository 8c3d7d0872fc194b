"""``leasekit runs``: the folder of an emulation, for a browser."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from leasekit.cli.options import Count, argument, command, option
from leasekit.cli.output import note

if TYPE_CHECKING:
    from leasekit.emulation.runs.opened import RunsFolder


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


def open_runs(folder: Path) -> RunsFolder:
    """A folder that `leasekit emulate --out` has written. Raises ``LeasekitError`` where it is none."""
    from leasekit.emulation.runs.opened import RunsFolder

    return RunsFolder(folder)


def open_folder(folder: Path, port: int = 0) -> None:
    """Serve a folder until Ctrl-C."""
    from leasekit.gateway.pages.runs import serve_runs

    serve_runs(open_runs(folder), port, lambda address: note(f"{folder}: {address} until Ctrl-C"))
