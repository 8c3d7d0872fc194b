"""Blazar's API of ``deploy/blazar``, at a port of its own, and OpenStack's clients as a user has them."""

from __future__ import annotations

import atexit
import json
import socket
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from subprocess import PIPE
from tempfile import TemporaryDirectory
from typing import Any

import attrs
import httpx

DEPLOY = Path(__file__).resolve().parents[2] / "deploy" / "blazar"


def free_port() -> int:
    """A port of this machine that nobody has."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def deployed(folder: Path, port: int, **changes: str) -> Path:
    """The deploy file, with another port and ``changes`` (what stands there, and what is to)."""
    text = (DEPLOY / "blazar.toml").read_text().replace("127.0.0.1:8780", f"127.0.0.1:{port}")
    for before, after in changes.items():
        assert before in text
        text = text.replace(before, after)
    file = folder / "blazar.toml"
    file.write_text(text)
    return file


def at(minutes: float) -> str:
    """So many minutes from now, as Blazar is given dates; whole minutes from the next one on."""
    return (datetime.now(UTC) + timedelta(minutes=minutes + 1)).strftime("%Y-%m-%d %H:%M")


def whole(least: int = 1, most: int | None = None, **more: Any) -> dict[str, Any]:
    """A reservation of whole hosts."""
    return {
        "resource_type": "physical:host", "min": least, "max": least if most is None else most,
        "hypervisor_properties": "", "resource_properties": "", **more,
    }  # fmt: skip


CLIENTS = """
import json, os, sys
import blazarclient.shell, openstackclient.shell
for line in sys.stdin:
    program, words, out, err = json.loads(line)
    child = os.fork()
    if not child:
        for number, path in ((1, out), (2, err)):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        status = 1
        try:
            status = sys.modules[f"{program}client.shell"].main(words)
        except SystemExit as end:
            status = end.code
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status or 0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class OpenStackClients:
    """Each command is a process of its own, forked from one that has imported the clients: that takes a second."""

    def __init__(self) -> None:
        self._folder = TemporaryDirectory()
        self._server = subprocess.Popen([sys.executable, "-c", CLIENTS], stdin=PIPE, stdout=PIPE, text=True)
        atexit.register(self.end)

    def run(self, program: str, words: Sequence[str]) -> tuple[int, str, str]:
        """The exit status of a command, and what it says on standard output and error."""
        assert self._server.stdin is not None and self._server.stdout is not None
        said = [Path(self._folder.name) / name for name in ("out", "err")]
        self._server.stdin.write(json.dumps([program, list(words), *map(str, said)]) + "\n")
        self._server.stdin.flush()
        return int(self._server.stdout.readline()), said[0].read_text(), said[1].read_text()

    def end(self) -> None:
        """The process ends when nobody can ask it any more."""
        self._server.communicate()
        self._folder.cleanup()


_clients = cache(OpenStackClients)


@attrs.frozen
class BlazarUnderTest:
    """Blazar's API that runs at a port."""

    port: int

    @property
    def url(self) -> str:
        """Where a client is told to look."""
        return f"http://127.0.0.1:{self.port}/blazar/v1"

    def client(self, **more: Any) -> httpx.Client:
        """A client of the API itself."""
        # There is no TLS, and to read the certificates of authorities takes a hundred times as long as all the rest.
        return httpx.Client(**{"base_url": self.url, "timeout": 30, "verify": False, **more})

    def lease(self, client: httpx.Client, *reservations: dict[str, Any], **more: Any) -> httpx.Response:
        """A lease that is asked for: from now on, for an hour, if nothing is said."""
        wish = {"name": "test", "start_date": "now", "end_date": at(60), "events": [], "before_end_date": None}
        return client.post("/leases", json={**wish, "reservations": [*reservations], **more})

    def blazar(self, *words: str, token: str = "", status: int = 0) -> str:
        """What python-blazarclient prints."""
        return self._run("blazar", words, token, status)

    def openstack(self, *words: str, token: str = "") -> Any:
        """What python-openstackclient answers, with the same client as its plugin."""
        printed = self._run("openstack", (*words, "-f", "json"), token, 0)
        return json.loads(printed[min(at for mark in "[{" if (at := printed.find(mark)) >= 0) :])

    def _run(self, program: str, words: tuple[str, ...], token: str, status: int) -> str:
        auth = ["--os-auth-type", "admin_token", "--os-token", token] if token else ["--os-auth-type", "none"]
        ended, out, err = _clients().run(program, [*auth, "--os-endpoint", self.url, *words])
        assert ended == status, out + err
        return out if status == 0 else err
