"""The HTTP server on the boot network: tells each node what to start, gives it files, and hears how it gets on.

A node is known by its address, which only its card gets, and a job by its secret: nobody else gets at the keys of a
guest, or at a disk. It runs in threads of the standard library's server, for nodes read disks' worth of bytes.
"""

from __future__ import annotations

import http.server
import io
import logging
import re
import shutil
import socket
import socketserver
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeAlias

import attrs

from leasekit.drivers.names import one_line

REPORT_MAX: Final = 1000
"""The longest report of a node, in bytes."""
READ_TIMEOUT: Final = 60
"""Seconds that a node may be silent in the middle of a request."""

logger = logging.getLogger(__name__)

Content: TypeAlias = bytes | Path


@attrs.frozen
class Answer:
    """An HTTP status, and what goes with it."""

    status: int
    content: Content = b""


class Site:
    """What the server asks; all in the threads of requests."""

    def __init__(self, fetch: Callable[[str, str], Answer], report: Callable[[str, str, str], int]) -> None:
        self.fetch = fetch
        """The answer to a path, for the client at an address."""
        self.report = report
        """The status for a report on a job: (token, client's address, text)."""


class _Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True
    request_queue_size = 128
    allow_reuse_address = True

    def __init__(self, address: tuple[str, int], site: Site) -> None:
        self.site = site
        super().__init__(address, _Handler)

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
    timeout = READ_TIMEOUT
    server: _Server

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
            self._answer(Answer(404 if found is None else 413), body=True)
            return
        text = one_line(self.rfile.read(int(length)).decode("utf-8", "replace"))
        self._answer(Answer(self.server.site.report(found[1], self.client_address[0], text)), body=True)

    def _answer(self, answer: Answer, *, body: bool) -> None:
        try:
            stream = answer.content.open("rb") if isinstance(answer.content, Path) else io.BytesIO(answer.content)
        except OSError as error:
            logger.error("%s can't be served: %s", answer.content, error.strerror)
            answer, stream = Answer(503), io.BytesIO()
        with stream:
            size = stream.seek(0, io.SEEK_END)
            stream.seek(0)
            self.send_response(answer.status)
            self.send_header("Content-Length", str(size))
            self.send_header("Content-Type", "application/octet-stream")
            self.end_headers()
            if body:
                shutil.copyfileobj(stream, self.wfile, 256 * 1024)

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
