"""Real daemon processes for tests: forked from a server that has imported everything, so that a start costs little.

A process started this way is as good as one from the command line for what is tested with it: signals, locks, sockets,
files and SIGKILL.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import select
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from leasekit.cli import main as cli
from leasekit.config.load import load
from leasekit.core.errors import LeasekitError
from leasekit.core.protocol.channel import VERSIONS, Channel
from leasekit.runtime.client import ControlClient
from leasekit.runtime.daemon import run

READY_WITHIN = 30.0
ENDED_WITHIN = 30.0

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(
    ["leasekit.cli.daemons", "leasekit.config.load", "leasekit.gateway.serve", "leasekit.runtime.daemon"]
)


def main(
    file: Path, state: Path, names: Sequence[str], ready: Connection, errors: Path, versions: Sequence[int] = VERSIONS
) -> None:
    """What a child does: all that it says goes to ``errors``. It is code that speaks ``versions`` of the protocol."""
    Channel.__init__.__kwdefaults__["versions"] = versions
    _say_to(errors)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        status = run(load(file, state), names, ready_fd=ready.fileno())
    except LeasekitError as error:
        print(f"leasekit: {error}", file=sys.stderr)
        status = 1
    sys.stderr.flush()
    # Not by way of the interpreter's end: what a daemon leaves to it would be lost in a crash as well.
    os._exit(status)


def _say_to(file: Path) -> None:
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    sys.stdout = os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", closefd=False)


def _up(words: Sequence[str], ready: Connection, log: Path, environment: Mapping[str, str]) -> None:
    """What a process of ``leasekit up`` does."""
    os.environ.clear()
    os.environ.update(environment)
    _say_to(log)
    faulthandler.enable()
    sys.argv = ["leasekit", "up", *words, str(ready.fileno())]
    try:
        cli.main()
    except SystemExit as end:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(end.code if isinstance(end.code, int) else 1)


class UpProcess:
    """``leasekit up`` with these words and the descriptor ``ready``, forked as well, with an environment like this
    process's, if not ``environment``; what it says goes to ``log``.
    """

    def __init__(
        self, words: Sequence[str], ready: int, log: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self._log = log
        passed = Connection(os.dup(ready), readable=False)
        self._process: ForkServerProcess = _context.Process(
            target=_up, args=(words, passed, log, dict(environment or os.environ)), daemon=True
        )
        self._process.start()
        passed.close()

    @property
    def pid(self) -> int:
        """Its number."""
        assert self._process.pid is not None
        return self._process.pid

    def poll(self) -> int | None:
        """Its exit status, if it has ended."""
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        """As to any process."""
        os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL, if it has not ended, and wait until it is gone."""
        self._process.kill()
        self._process.join()

    def wait(self, timeout: float = ENDED_WITHIN) -> int:
        """Its exit status, once it has ended."""
        self._process.join(timeout)
        assert self._process.exitcode is not None, f"it did not end: {self._log.read_text()}"
        return self._process.exitcode


class DaemonProcess:
    """One process that runs some actors of a deploy file."""

    def __init__(self, file: Path, state: Path, *names: str, versions: Sequence[int] = VERSIONS) -> None:
        self.errors = state / f"{'-'.join(names) or 'all'}.stderr"
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._count = len(names) or len(load(file, state).actors)
        self._ready, ready = _context.Pipe(duplex=False)
        self.process: ForkServerProcess = _context.Process(
            target=main, args=(file, state, names, ready, self.errors, versions), daemon=True
        )
        self.process.start()
        ready.close()

    def wait_ready(self) -> None:
        """Until every actor listens. Raises ``AssertionError`` with what the process said if it does not get there."""
        data = b""
        until = time.monotonic() + READY_WITHIN
        while data.count(b"\n") < self._count:
            left = until - time.monotonic()
            readable, _, _ = select.select([self._ready, self.process.sentinel], [], [], max(left, 0))
            if self._ready in readable:
                piece = os.read(self._ready.fileno(), 65536)
                if piece:
                    data += piece
                    continue
            raise AssertionError(f"the daemon did not get ready: {self.said()}")

    def said(self) -> str:
        """What it wrote to standard output and error."""
        return self.errors.read_text() if self.errors.exists() else ""

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self.process.kill()
        self.process.join()

    def end(self) -> int:
        """SIGTERM; its exit status."""
        self.process.terminate()
        return self.wait()

    def wait(self) -> int:
        """Its exit status, once it has ended."""
        self.process.join(ENDED_WITHIN)
        assert self.process.exitcode is not None, f"the daemon did not end: {self.said()}"
        return self.process.exitcode


class Daemons:
    """The actors of a deploy file, a process for each. All are ended at the end of a ``with`` block."""

    def __init__(self, file: Path, state: Path) -> None:
        self.file, self.state = file, state
        self.deployment = load(file, state)
        self.running: dict[str, DaemonProcess] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        for name in list(self.running):
            if kind is None:
                self.stop(name)
            else:
                self.kill(name)

    def start(self, *names: str, versions: Sequence[int] = VERSIONS) -> None:
        """Start actors (default: all) and wait until they listen."""
        wanted = names or tuple(self.deployment.actors)
        for name in wanted:
            self.running[name] = DaemonProcess(self.file, self.state, name, versions=versions)
        for name in wanted:
            self.running[name].wait_ready()

    def start_all(self) -> None:
        """Start all actors, and wait until every delegation of a site has been taken by its broker."""
        self.start()
        for site in self.deployment.of_role("authority"):
            with self.client(site.name) as watcher, self.client(site.name) as client:
                events = watcher.watch(patience=READY_WITHIN)
                while {row["state"] for row in client.query("delegations")} != {"held"}:
                    next(events)

    def kill(self, name: str) -> None:
        """SIGKILL."""
        self.running.pop(name).kill()

    def stop(self, name: str) -> None:
        """SIGTERM; it must end well."""
        process = self.running.pop(name)
        assert process.end() == 0, process.said()

    def client(self, name: str, **options: Any) -> ControlClient:
        """A connection to an actor's control socket."""
        return ControlClient(self.deployment.actors[name].control, **options)

    def query(self, actor: str, query: str, /, **arguments: Any) -> Any:
        """One question to one actor."""
        with self.client(actor) as client:
            return client.query(query, **arguments)

    def command(self, actor: str, command: str, /, **arguments: Any) -> Any:
        """One command to one actor."""
        with self.client(actor) as client:
            return client.command(command, **arguments)

    def wait_for(self, actor: str, lease: str, **wanted: Any) -> dict[str, Any]:
        """The lease, once its fields are as ``wanted``; looks again at each of its transitions."""
        until = time.monotonic() + READY_WITHIN
        with self.client(actor) as watcher, self.client(actor) as client:
            events = watcher.watch(lease, patience=READY_WITHIN)
            while True:
                found: dict[str, Any] = client.query("lease", lease=lease)
                if all(found[key] == value for key, value in wanted.items()):
                    return found
                over = found["state"] in ("closed", "failed")
                assert not over and time.monotonic() < until, f"{found} is not {wanted}"
                next(events)
