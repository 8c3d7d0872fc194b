"""``leasekit run``: a command that has a lease as long as it runs, and no longer."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from leasekit.actors.settings import GuestSettings
from leasekit.cli import launcher
from leasekit.cli.options import DAEMON, Count, argument, command, option
from leasekit.cli.output import note
from leasekit.cli.places import GUEST, DeployPlace
from leasekit.cli.watching import followed
from leasekit.config.instants import dated
from leasekit.core.errors import LeasekitError
from leasekit.core.reasons import counted
from leasekit.core.requests import WantedError, WantedLease
from leasekit.core.time import MINUTE, SECOND, Duration, format_duration

if TYPE_CHECKING:
    from leasekit.config.sockets import ControlAddress

KEEPALIVE: Final[Duration] = MINUTE
"""After so long without a word of this process the lease is closed, where a gateway runs beside its guest."""
WORDS: Final = 3
"""How often this process says that it is there within that time."""
FORWARDED: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
EXIT_SIGNAL: Final = 128


@command(None, context_settings={"ignore_unknown_options": True})
def run(
    place: DeployPlace = DAEMON,
    type_: str = argument("TYPE"),
    units: int = argument("UNITS", type=Count(min=1)),
    words: Sequence[str] = argument("-- COMMAND...", required=True, type=click.UNPROCESSED),
    span: Duration = option("How long the lease is, at most.", "--for", required=True),
    name: str = option("A name for the lease."),
    site: str = option("Only at this site."),
    filter_: str | None = option("Only units with such attributes: `rack == b`.", metavar="EXPRESSION"),
    keepalive: Duration | None = option(
        f"Close the lease when this process was silent for so long [{format_duration(KEEPALIVE)}]."
    ),
    timeout: Duration | None = option("How long an answer is waited for [1m]."),
) -> int:
    """Run a COMMAND with UNITS units of a TYPE, for as long as it runs.

    The command finds the lease's id in LEASEKIT_LEASE, the names of its units in LEASEKIT_UNITS, with commas between
    them, their hosts in LEASEKIT_HOSTS, and in LEASEKIT_UNITS_FILE a JSON file with all that is known of each. The
    lease ends when the command ends or is killed; and, where a gateway runs beside the guest, when its machine dies.
    When `leasekit run` itself is killed the command gets SIGTERM; what that has started is the command's to end.

    Exits as the command does: with 128 and the number of the signal that ended it, 127 if there is no such command, 126
    if it can't be run; with 1 if there is no lease.

    Example:
      leasekit run vm 4 --for 30m -- make test
      leasekit run board 1 --for 1h --filter 'soc == imx8' -- ./flash.sh image.bin
    """
    silence = KEEPALIVE if keepalive is None else keepalive
    wanted = WantedLease(
        type=type_, units=units, length=span, name=name, site=site, filter=filter_, keepalive=silence, timeout=timeout
    )
    try:
        arguments = wanted.arguments(None, GuestSettings().request_timeout)
    except WantedError as error:
        raise click.UsageError(f"--{error.field}: {dated(error.text)}") from None
    if shutil.which(words[0]) is None:  # nothing is leased for it
        is_there = os.sep in words[0] and Path(words[0]).exists()
        note(f"leasekit: {words[0]}: " + ("is no program that can be run" if is_there else "no such command"))
        return launcher.NOT_RUN if is_there else launcher.NOT_FOUND
    socket = place.socket(GUEST)
    with _signals(_end), followed(socket, wait=True) as (client, following):
        assert following is not None, "it was to wait"
        lease, has_run = client.request("command", "lease.request", arguments)["id"], False
        try:
            with _kept_alive(socket, lease, silence) as is_told:
                outcome = following.until_active(lease)
                if not outcome.ok:
                    raise LeasekitError(f"lease {lease}: {outcome.reason}")
                shown = client.query("lease", lease=lease)
                note(f"lease {lease}: {counted(len(shown['units']))} at {shown['site']}")
                status = _run(words, shown)
                has_run = not is_told.is_set()
                return status
        finally:
            if _was_over(socket, lease) and has_run:
                note(f"lease {lease} was over before its command ended")


def _was_over(socket: ControlAddress, lease: str) -> bool:
    """End the lease, if it is not over already, or about to be; where its guest is away that is said, and it ends by
    itself.
    """
    from leasekit.runtime.client import ControlClient, ControlError, RequestError

    try:
        with ControlClient(socket) as client:
            client.command("lease.close", lease=lease, reason="its command has ended")
    except RequestError:
        return True
    except ControlError as error:
        note(f"lease {lease} could not be closed: {error}")
    return False


def _run(words: Sequence[str], lease: Mapping[str, Any]) -> int:
    """Run the command; its exit status, as a shell has it."""
    units = [{"name": unit["unit"], "state": unit["state"], **unit["properties"]} for unit in lease["units"]]
    with tempfile.TemporaryDirectory(prefix="leasekit-run-") as folder:
        file = Path(folder) / "units.json"
        file.write_text(json.dumps(units, indent=2))
        environment = {
            **os.environ,
            "LEASEKIT_LEASE": lease["id"],
            "LEASEKIT_UNITS": ",".join(unit["name"] for unit in units),
            "LEASEKIT_HOSTS": ",".join(unit.get("host", "") for unit in units),
            "LEASEKIT_UNITS_FILE": str(file),
        }
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", launcher.__file__, str(os.getpid()), *words], env=environment
        )
        with _signals(lambda number, _: None if _is_typed(number) else process.send_signal(number)):
            status = process.wait()
    return EXIT_SIGNAL - status if status < 0 else status


def _is_typed(number: int) -> bool:
    """Whether Ctrl-C was typed at a terminal, which then tells the command as well."""
    try:
        with Path("/dev/tty").open("rb", buffering=0) as terminal:
            return number == signal.SIGINT and os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    except OSError:  # there is none
        return False


def _end(number: int, _: object) -> None:
    raise SystemExit(EXIT_SIGNAL + number)  # once the lease is closed


@contextmanager
def _signals(handle: Callable[[int, object], None]) -> Iterator[None]:
    """What becomes of signals that are to end this process, but for those that it was started to ignore."""
    heard = [number for number in FORWARDED if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, handle) for number in heard}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _kept_alive(socket: ControlAddress, lease: str, silence: Duration) -> Iterator[threading.Event]:
    """Say, over and over, that this process is there; what can't be said is said again, until that is refused: then
    the lease is over, and the event is set.
    """
    from leasekit.runtime.client import ControlClient, ControlError, RequestError

    ended, refused = threading.Event(), threading.Event()

    def say() -> None:
        while not ended.wait(silence / WORDS / SECOND):
            try:
                with suppress(ControlError), ControlClient(socket) as client:
                    client.command("lease.keepalive", lease=lease)
            except RequestError as error:
                note(f"{error}: its command goes on without it")
                refused.set()
                return

    thread = threading.Thread(target=say, daemon=True)
    thread.start()
    try:
        yield refused
    finally:
        ended.set()
        thread.join()
