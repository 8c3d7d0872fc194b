"""What a unit of the process driver runs where its site says nothing else: a small server that knows who it is.

``python -m leasekit.drivers.process.unit`` serves a line protocol on ``LEASEKIT_HOST``:``LEASEKIT_PORT``; each line
is answered by one line of JSON:

    identity        {"unit": ..., "lease": ..., "type": ..., "pid": ...}
    config          {"number": ..., "properties": {...}}: as of the last time that the configuration was read
    config NUMBER   the same, once a configuration with that number or a later one was read
    anything else   {"error": ...}

SIGHUP makes it read ``LEASEKIT_CONFIG`` again; SIGTERM ends it. When it serves it writes the file
``LEASEKIT_READY_FILE`` and the line ``ready`` to the descriptor ``LEASEKIT_READY_FD``.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
from pathlib import Path
from typing import Any

LINE_MAX = 1024
"""The longest line that is read, in bytes."""
CONNECTIONS_MAX = 32
"""How many connections are served at once; others wait."""
IDLE_MAX = 60.0
"""After how many seconds of silence a connection is closed."""


class Unit:
    """The configuration, and who waits for it to change."""

    def __init__(self, config: Path) -> None:
        self._path = config
        self._changed = threading.Condition()
        self._content: dict[str, Any] = {}
        self.read()

    def read(self) -> None:
        """Reads the configuration; one that can't be read leaves the old one in place."""
        try:
            content = json.loads(self._path.read_bytes())
        except (OSError, ValueError) as error:
            print(f"{self._path}: {error}", flush=True)
            return
        with self._changed:
            self._content = content
            self._changed.notify_all()
        print(f"configuration {content['number']} read", flush=True)

    def answer(self, line: str) -> dict[str, Any]:
        """What a line is answered by."""
        match line.split():
            case ["identity"]:
                known = ("unit", "lease", "type")
                return {**{name: self._content.get(name) for name in known}, "pid": os.getpid()}
            case ["config"]:
                return self._configuration(0)
            case ["config", number] if number.isdecimal():
                return self._configuration(int(number))
        return {"error": f"found {line[:80]!r}, expected identity, config or config NUMBER"}

    def _configuration(self, number: int) -> dict[str, Any]:
        with self._changed:
            self._changed.wait_for(lambda: self._content["number"] >= number, timeout=IDLE_MAX)
            return {name: self._content[name] for name in ("number", "properties")}


def serve(unit: Unit, connection: socket.socket, places: threading.Semaphore) -> None:
    """Answers the lines of one connection until it ends."""
    with places, connection, connection.makefile("rwb") as stream:
        connection.settimeout(IDLE_MAX)
        try:
            while line := stream.readline(LINE_MAX):
                answer = unit.answer(line.decode("utf-8", "replace"))
                stream.write(json.dumps(answer).encode() + b"\n")
                stream.flush()
        except OSError:
            return  # The other side went away, or fell silent.


def accept(unit: Unit, listener: socket.socket) -> None:
    """Serves connections, each in a thread."""
    places = threading.Semaphore(CONNECTIONS_MAX)
    while True:
        with places:  # No further connection is taken while all places are in use.
            connection, _ = listener.accept()
        threading.Thread(target=serve, args=(unit, connection, places), daemon=True).start()


def announce() -> None:
    """Says that the unit serves; whoever waited for it may be gone."""
    Path(os.environ["LEASEKIT_READY_FILE"]).write_text(f"{os.getpid()}\n")
    descriptor = os.environ.get("LEASEKIT_READY_FD")
    if descriptor is not None:
        try:
            os.write(int(descriptor), b"ready\n")
        except BrokenPipeError:
            print("nobody waits for this unit any more", flush=True)
        os.close(int(descriptor))


def main() -> None:
    """Serves until SIGTERM."""
    handled = {signal.SIGHUP, signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, handled)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    threading.stack_size(256 * 1024)
    unit = Unit(Path(os.environ["LEASEKIT_CONFIG"]))
    address = (os.environ["LEASEKIT_HOST"], int(os.environ["LEASEKIT_PORT"]))
    try:
        listener = socket.create_server(address, backlog=64)
    except OSError as error:
        sys.exit(f"can't serve on {address[0]}:{address[1]}: {error.strerror}")
    threading.Thread(target=accept, args=(unit, listener), daemon=True).start()
    announce()
    print(f"serving on {address[0]}:{address[1]}", flush=True)
    while signal.sigwait(handled) == signal.SIGHUP:
        unit.read()


if __name__ == "__main__":
    main()
