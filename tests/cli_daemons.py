"""Real daemons of a deploy file for tests of the command line: started by it, and stopped in good order."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from runtime.runtime_processes import UpProcess

from leasekit.cli import main
from leasekit.config.load import load
from leasekit.runtime.client import ControlClient


def site_and_broker(inventory: str, *guests: str) -> str:
    """A deploy file: a site that has ``inventory``, a broker, and ``guests`` (one, if none is named)."""
    return f"""
[deployment]
name = "test"
state = "run"
create_keys = true

[actor.broker]
role = "broker"
listen = ["unix:broker.sock"]

[actor.site]
role = "authority"
listen = ["unix:site.sock"]
{inventory}
""" + "".join(f'[actor.{guest}]\nrole = "guest"\n' for guest in guests or ("guest",))


class Cli:
    """Runs commands in this process against the daemons of one deploy file."""

    def __init__(self, file: Path, capfd: pytest.CaptureFixture[str]) -> None:
        self.file, self._capfd = file, capfd

    def __call__(self, line: str, status: int = 0) -> tuple[str, str]:
        """Standard output and error of a command line that must end with ``status``."""
        return self.run(*line.split(), status=status)

    def run(self, *words: str, status: int = 0) -> tuple[str, str]:
        """The same of a command in ``words``."""
        self._capfd.readouterr()
        found = main.run([*words, "--file", str(self.file)])
        out, err = self._capfd.readouterr()
        assert found == status, err
        assert "Traceback" not in err
        return out, err

    def json(self, line: str, status: int = 0) -> Any:
        """The JSON document that it prints."""
        return json.loads(self(f"{line} --json", status)[0])


@contextmanager
def running(
    file: Path,
    env: Mapping[str, str] | None = None,
    state: Path | None = None,
    only: Sequence[str] = (),
    command: bool = False,
) -> Iterator[UpProcess | subprocess.Popen[bytes]]:
    """The process that runs all actors of ``file``, once they are ready and brokers have what sites delegate; or
    ``only`` some, once they are ready. It is forked, or a ``command``, which has all that this process has.

    It must end without an error, on SIGTERM if nothing has ended it before.
    """
    names = list(only or load(file, state).daemons)
    log = file.with_suffix(".log") if state is None else state.with_suffix(".log")
    reader, writer = os.pipe()
    words = [str(file), *only, "--ready-fd"]
    with log.open("wb") as output:
        daemons: UpProcess | subprocess.Popen[bytes]
        if command:
            line = [sys.executable, "-m", "leasekit.cli.main", "up", *words, str(writer)]
            daemons = subprocess.Popen(line, env=env, pass_fds=[writer], stdout=output, stderr=output)
        else:
            daemons = UpProcess(words, writer, log, env)
    os.close(writer)
    try:
        with os.fdopen(reader) as ready:
            assert [entry.split()[1] for entry in ready.readlines()] == names, log.read_text()
        for actor in () if only else load(file, state).of_role("authority"):
            until_delegated(actor.control)
        yield daemons
    finally:
        if daemons.poll() is None:
            daemons.send_signal(signal.SIGTERM)
        status = daemons.wait(timeout=30)
    assert status == 0, log.read_text()
    assert "Traceback" not in log.read_text()


def until_delegated(control: Path) -> None:
    """Wait until brokers have all that the site at a control socket delegates."""
    with ControlClient(control) as watcher, ControlClient(control) as client:
        events = watcher.watch("")
        while any(delegation["state"] == "offering" for delegation in client.query("delegations")):
            next(events)
