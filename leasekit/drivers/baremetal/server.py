"""The HTTP server on the boot network: tells each node what to start, gives it files, and hears how it gets on.

A node is known by its address, which only its card gets, and a job by its secret: nobody else gets at the keys of a
guest, or at a disk. It runs in threads of the standard library's server, for nodes read disks' worth of bytes.
"""

from __future__ import annotations

import http.server
import io
import ipaddress
import logging
import re
import shutil
import socket
import socketserver
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeAlias

import attrs

from leasekit.drivers.names import one_line

REPORT_MAX: Final = 1000
"""The longest report of a node, in bytes."""
HEAD_TIMEOUT: Final = 5
"""Seconds that a client may be silent before it has said what it wants."""
READ_TIMEOUT: Final = 60
"""Seconds that a node may take nothing of what it asked for."""
EACH_MAX: Final = 8
"""The most connections of one address: a node at work has two."""
UNKNOWN_MAX: Final = 32
"""The most connections of all addresses together that are no node's at present."""

logger = logging.getLogger(__name__)

Content: TypeAlias = bytes | Path


@attrs.frozen
class ServedFile:
    """An HTTP status, and what goes with it; ``sent`` is called when the client has taken all of it."""

    status: int
    content: Content = b""
    sent: Callable[[], None] | None = None


@attrs.frozen(kw_only=True)
class Site:
    """What the server asks: ``fetch`` and ``report`` in the threads of requests, ``is_node`` in the server's own."""

    network: ipaddress.IPv4Network
    """Who is not in it gets no connection."""
    is_node: Callable[[str], bool]
    """Whether a node has that address now."""
    fetch: Callable[[str, str], ServedFile]
    """The answer to a path, for the client at an address."""
    report: Callable[[str, str, str], int]
    """The status for a report on a job: (token, client's address, text)."""


class Gate:
    """Who may have how many connections: guests are on the same network, and none is to keep other nodes out."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._lock = threading.Lock()
        self._nodes: Counter[str] = Counter()
        self._unknown: Counter[str] = Counter()

    def enter(self, address: str) -> Counter[str] | None:
        """Where the connection is counted, which :meth:`leave` is told; nothing where it is one too many."""
        if ipaddress.IPv4Address(address) not in self._site.network:
            return None
        known = self._site.is_node(address)
        with self._lock:
            if self._nodes[address] + self._unknown[address] >= EACH_MAX:
                return None
            if not known and self._unknown.total() >= UNKNOWN_MAX:
                return None
            counted = self._nodes if known else self._unknown
            counted[address] += 1
            return counted

    def leave(self, address: str, counted: Counter[str]) -> None:
        """A connection has ended."""
        with self._lock:
            counted[address] -= 1
            if not counted[address]:
                del counted[address]


class _Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True
    request_queue_size = 128
    allow_reuse_address = True

    def __init__(self, address: tuple[str, int], site: Site) -> None:
        self.site = site
        self._gate = Gate(site)
        super().__init__(address, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """As in the base class, in a thread, for those who are let in."""
        counted = self._gate.enter(client_address[0])
        if counted is None:
            logger.debug("a connection of %s is refused", client_address[0])
            self.shutdown_request(request)
            return
        thread = threading.Thread(target=self._serve, args=(request, client_address, counted), daemon=True)
        try:
            thread.start()
        except RuntimeError:
            # There can be no more threads: the base class closes the connection.
            self._gate.leave(client_address[0], counted)
            raise

    def _serve(self, request: Any, client_address: Any, counted: Counter[str]) -> None:
        try:
            self.process_request_thread(request, client_address)
        finally:
            self._gate.leave(client_address[0], counted)

    def server_bind(self) -> None:
        """As in the base class, but for the look-up of this machine's name, which may take long."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def handle_error(self, request: object, client_address: object) -> None:
        """Nodes break off when they like."""
        logger.debug("request of %s broke off", client_address, exc_info=True)


_REPORT: Final = re.compile(r"/job/([0-9a-f]{1,64})/report")


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "leasekit"
    timeout = HEAD_TIMEOUT
    server: _Server

    def handle_one_request(self) -> None:
        """As in the base class, for a client that has to say soon what it wants."""
        self.connection.settimeout(HEAD_TIMEOUT)
        super().handle_one_request()

    def do_GET(self) -> None:
        """A file or a script."""
        self._answer(self.server.site.fetch(self.path, self.client_address[0]), body=True)

    def do_HEAD(self) -> None:
        """The same without its content."""
        self._answer(self.server.site.fetch(self.path, self.client_address[0]), body=False)

    def do_POST(self) -> None:
        """A report."""
        found = _REPORT.fullmatch(self.path)
        length = self.headers.get("Content-Length", "")
        if found is None or not length.isdecimal() or len(length) > 6 or int(length) > REPORT_MAX:
            self.close_connection = True
            self._answer(ServedFile(404 if found is None else 413), body=True)
            return
        text = one_line(self.rfile.read(int(length)).decode("utf-8", "replace"))
        self._answer(ServedFile(self.server.site.report(found[1], self.client_address[0], text)), body=True)

    def _answer(self, answer: ServedFile, *, body: bool) -> None:
        try:
            stream = answer.content.open("rb") if isinstance(answer.content, Path) else io.BytesIO(answer.content)
        except OSError as error:
            logger.error("%s can't be served: %s", answer.content, error.strerror)
            answer, stream = ServedFile(503), io.BytesIO()
        self.connection.settimeout(READ_TIMEOUT)
        with stream:
            size = stream.seek(0, io.SEEK_END)
            stream.seek(0)
            self.send_response(answer.status)
            self.send_header("Content-Length", str(size))
            self.send_header("Content-Type", "application/octet-stream")
            self.end_headers()
            if body:
                shutil.copyfileobj(stream, self.wfile, 256 * 1024)
        if body and answer.sent is not None:
            answer.sent()

    def log_message(self, format: str, *arguments: object) -> None:
        """Paths hold secrets: only what was asked for is told, by the site."""


class BootServer:
    """The server while it runs. Raises ``OSError`` when it can't have its address."""

    def __init__(self, address: str, port: int, site: Site) -> None:
        self._server = _Server((address, port), site)
        self._thread = threading.Thread(target=self._server.serve_forever, name="leasekit-boot", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends it; requests under way may go on to their end."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def is_here(address: str) -> bool:
    """Whether this machine has that IPv4 address."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True
