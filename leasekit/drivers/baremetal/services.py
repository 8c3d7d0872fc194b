"""What runs beside the driver's actions: the HTTP server and dnsmasq, and what nodes say through them.

The HTTP server on the boot network: tells each node what to start, gives it files, and hears how it gets on.

A node is known by its address, which only its card gets, and a job by its secret: nobody else gets at the keys of a
guest, or at a disk. It runs in threads of the standard library's server, for nodes read disks' worth of bytes.
"""

from __future__ import annotations

import errno
import http.server
import io
import ipaddress
import logging
import re
import shutil
import socket
import socketserver
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, TypeAlias

import attrs
import trio

from leasekit.core.drivers import DriverError, SiteFaultError
from leasekit.drivers.baremetal.dnsmasq import ExternalDnsmasq, NameServer, OwnedDnsmasq, boot_script
from leasekit.drivers.baremetal.environment import INITRD, KERNEL, make_environment
from leasekit.drivers.baremetal.plan import addresses_of
from leasekit.drivers.baremetal.records import SERVED, NodeRecord, Records
from leasekit.drivers.baremetal.settings import BareMetalSettings, DiskImage, NetbootImage, Owned
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


_SCRIPT: Final = re.compile(r"/mac-([0-9a-f]{2}(?:-[0-9a-f]{2}){5})\.ipxe")
_JOB: Final = re.compile(r"/job/([0-9a-f]{1,64})/(spec|image|seed|kernel|initrd)")
_IDENTITY: Final = re.compile(r"[A-Za-z0-9._:+,-]{1,400}")
JOBS: Final = frozenset({"imaging", "cleaning"})
"""States of nodes that run the imaging environment."""
ASKED: Final = "it asked what it is to start"
PORT_WITHIN: Final = 5.0
"""Seconds after which a port that another process has is given up."""
PORT_PAUSE: Final = 0.05
FROM_DISK: Final = b"#!ipxe\nexit\n"

logger = logging.getLogger(__name__)


@attrs.define
class Progress:
    """What was last heard of a node: ``words``, and when (seconds of the monotonic clock)."""

    words: str
    at: float


class Services:
    """All that a driver's nodes are served by. Paths are below the driver's ``directory``."""

    def __init__(self, settings: BareMetalSettings) -> None:
        root = settings.directory
        self._settings = settings
        self._environment = root / "environment"
        self._secrets = root / "secrets"
        self.records = Records(root / "nodes", self._changed)
        dnsmasq = settings.network.dnsmasq
        self.names: NameServer = (
            OwnedDnsmasq(dnsmasq, settings.network, root / "dnsmasq")
            if isinstance(dnsmasq, Owned)
            else ExternalDnsmasq(dnsmasq, settings.network)
        )
        self._macs = {node.mac.lower().replace(":", "-"): name for name, node in settings.nodes.items()}
        self._server: BootServer | None = None
        self._loaded = False
        self._starting = trio.Lock()
        self._trio: trio.lowlevel.TrioToken | None = None
        self._events: dict[str, trio.Event] = {}
        self._progress: dict[str, Progress] = {}

    async def load(self) -> None:
        """Has the records at hand. Raises ``DriverError``."""
        async with self._starting:
            self._trio = trio.lowlevel.current_trio_token()
            if not self._loaded:
                await trio.to_thread.run_sync(self.records.load, list(self._settings.nodes))
                self._loaded = True

    async def ensure(self) -> None:
        """Has everything run that nodes need to start. Raises ``DriverError``."""
        await self.load()
        async with self._starting:
            await trio.to_thread.run_sync(make_environment, self._settings.environment, self._environment)
            if self._server is None:
                self._server = await self._serve()
            await trio.to_thread.run_sync(self.names.ensure)

    async def _serve(self) -> BootServer:
        network = self._settings.network
        if not is_here(network.address):
            text = f"this machine has no address {network.address}, which nodes are to start from (network.address)"
            raise SiteFaultError(text)
        boot_network = ipaddress.IPv4Network(network.subnets[0])
        site = Site(network=boot_network, is_node=self._is_node, fetch=self.fetch, report=self.report)
        until = trio.current_time() + PORT_WITHIN
        while True:
            try:
                return BootServer(network.address, network.port, site)
            except OSError as error:
                # What a daemon that was killed had just started has its port for moments yet.
                if error.errno != errno.EADDRINUSE or trio.current_time() >= until:
                    text = f"nodes can't be served at {network.address} port {network.port}: {error.strerror}"
                    raise SiteFaultError(text) from error
            await trio.sleep(PORT_PAUSE)

    def close(self) -> None:
        """Ends what belongs to this process; dnsmasq goes on, and the next driver finds it. Blocks."""
        if self._server is not None:
            self._server.close()
            self._server = None
        self.names.close()

    # What nodes are up to

    def event(self, node: str) -> trio.Event:
        """Set when something is heard of the node, or its record changes, from now on."""
        return self._events.setdefault(node, trio.Event())

    def progress(self, node: str) -> Progress:
        """What was last heard of it."""
        return self._progress.setdefault(node, Progress("", time.monotonic()))

    def begin(self, node: str) -> None:
        """Forgets what was heard: the node starts anew."""
        self._progress[node] = Progress("", time.monotonic())

    def _hear(self, node: str, words: str) -> None:
        self._progress[node] = Progress(words, time.monotonic())
        self._changed(node)

    def _changed(self, node: str) -> None:
        if self._trio is not None:
            with suppress(trio.RunFinishedError):
                self._trio.run_sync_soon(self._wake, node)

    def _wake(self, node: str) -> None:
        event = self._events.pop(node, None)
        if event is not None:
            event.set()

    # Secrets of guests

    def write_seed(self, node: str, content: bytes) -> None:
        """Keeps what the node's guest is told, until it is there; blocks. Raises ``DriverError``."""
        path = self._seed(node)
        try:
            self._secrets.mkdir(mode=0o700, parents=True, exist_ok=True)
            beside = path.with_name(f".{path.name}.new")
            beside.touch(mode=0o600)
            beside.write_bytes(content)
            beside.replace(path)
        except OSError as error:
            raise SiteFaultError(f"can't write {path}: {error.strerror}") from error

    def remove_seed(self, node: str) -> None:
        """Forgets it. Raises ``DriverError``."""
        try:
            self._seed(node).unlink(missing_ok=True)
        except OSError as error:
            raise DriverError(f"can't remove {self._seed(node)}: {error.strerror}") from error

    def _seed(self, node: str) -> Path:
        return self._secrets / f"{node}.seed"

    # What nodes ask, in threads of the server

    def fetch(self, path: str, client: str) -> ServedFile:
        """The answer to a node's request, which asks again when what it is to get can't be read now."""
        try:
            return self._answer(path, client)
        except OSError as error:
            logger.error("%s can't be served to %s: %s", error.filename, client, error.strerror)
            return ServedFile(503)
        except DriverError as error:
            logger.error("%s", error)
            return ServedFile(503)

    def _answer(self, path: str, client: str) -> ServedFile:
        if path == "/boot.ipxe":
            return ServedFile(200, boot_script(self._settings.network.url).encode())
        if path in (f"/agent/{KERNEL}", f"/agent/{INITRD}"):
            sent = partial(self._loaded_by, client) if path.endswith(INITRD) else None
            return ServedFile(200, self._environment / path.removeprefix("/agent/"), sent)
        if (found := _SCRIPT.fullmatch(path)) is not None:
            name = self._macs.get(found[1])
            return ServedFile(404) if name is None else self._script(self.records.get(name), client)
        if (found := _JOB.fullmatch(path)) is not None:
            record = self.records.of_token(found[1])
            if record is None:
                return ServedFile(410)
            return self._part(record, found[2]) if self._is_from(record, client) else ServedFile(403)
        return ServedFile(404)

    def report(self, token: str, client: str, text: str) -> int:
        """A node tells of its job: ``busy`` and at what, ``disk`` and which that is, ``done``, or ``failed`` and why.

        What comes from an agent that was told what to do is believed, and nothing else.
        """
        record = self.records.of_token(token)
        if record is None:
            return 410
        if not self._is_from(record, client):
            return 403
        word, _, rest = text.partition(" ")
        if word not in ("busy", "disk", "done", "failed") or (word == "disk" and _IDENTITY.fullmatch(rest) is None):
            return 400
        if word == "done" and (missing := record.not_done()):
            logger.warning("node %s says that it is done, but %s: it is not believed", record.node, missing)
            return 403
        changes = _changes(word, rest, text)
        if attrs.evolve(record, **changes) == record:
            # Nothing to keep: what a node says now and then does not wait for other nodes' files.
            self._hear(record.node, rest or word)
            return 200
        try:
            kept = self.records.change(record.node, token, **changes)
        except DriverError as error:
            # The node says it again, until it can be kept.
            logger.error("%s", error)
            return 503
        if kept is None:
            return 410
        self._hear(record.node, rest or word)
        return 200

    def _loaded_by(self, client: str) -> None:
        """The imaging environment went to an address whole: if a node is there, its secret is told no more."""
        for record in self.records.all():
            if record.token and not record.loaded and record.state in JOBS and self._is_from(record, client):
                try:
                    self.records.change(record.node, record.token, loaded=True)
                except DriverError as error:
                    logger.error("%s", error)

    def _is_node(self, client: str) -> bool:
        return any(record.state in SERVED and self._is_from(record, client) for record in self.records.all())

    def _is_from(self, record: NodeRecord, client: str) -> bool:
        addresses = addresses_of(record, self._settings)
        return bool(addresses) and str(ipaddress.ip_interface(addresses[0]).ip) == client

    def _script(self, record: NodeRecord, client: str) -> ServedFile:
        """What a node is to start. Before its start is ordered it is told nothing, and asks again. Once it has the
        imaging environment it is told nothing either: who asks then is something else that started there.
        """
        if not self._is_from(record, client):
            return ServedFile(403)
        image = self._settings.images.get(record.image)
        if record.state in JOBS:
            if not record.ordered or record.loaded or record.heard or record.report:
                return ServedFile(404)
            self._asked(record.node)
            return ServedFile(200, self._agent_script(record))
        self._asked(record.node)
        if record.state in ("starting", "ready") and isinstance(image, NetbootImage):
            return ServedFile(200, self._guest_script(record, image)) if record.ordered else ServedFile(404)
        return ServedFile(200, FROM_DISK)

    def _asked(self, node: str) -> None:
        """That it asks is heard once: who asks again and again does not keep a job from ending."""
        if self.progress(node).words != ASKED:
            self._hear(node, ASKED)

    def _agent_script(self, record: NodeRecord) -> bytes:
        url, node = self._settings.network.url, self._settings.nodes[record.node]
        words = [self._settings.environment.command_line, f"leasekit.url={url}", f"leasekit.token={record.token}"]
        words += [f"leasekit.mac={node.mac.lower()}", f"leasekit.address={addresses_of(record, self._settings)[0]}"]
        lines = [
            "#!ipxe",
            # An environment that fails stands still: nothing else is to start in its place.
            f"kernel {url}/agent/{KERNEL} initrd={INITRD} panic=0 {' '.join(words)}",
            f"initrd --name {INITRD} {url}/agent/{INITRD}",
            "boot",
        ]
        return "".join(f"{line}\n" for line in lines).encode()

    def _guest_script(self, record: NodeRecord, image: NetbootImage) -> bytes:
        job = f"{self._settings.network.url}/job/{record.token}"
        seeded = image.seed != "none"
        names = f"initrd={INITRD} initrd=seed" if seeded else f"initrd={INITRD}"
        lines = ["#!ipxe", f"kernel {job}/kernel {names} {image.command_line}".rstrip()]
        lines.append(f"initrd --name {INITRD} {job}/initrd")
        lines += [f"initrd --name seed {job}/seed"] if seeded else []
        return "".join(f"{line}\n" for line in [*lines, "boot"]).encode()

    def _part(self, record: NodeRecord, part: str) -> ServedFile:
        image = self._settings.images.get(record.image)
        imaging = record.state == "imaging" and isinstance(image, DiskImage)
        if part == "spec" and record.state in JOBS and not record.heard:
            if self.records.change(record.node, record.token, told=True) is None:
                return ServedFile(410)
            return ServedFile(200, self._spec(record, image if imaging and isinstance(image, DiskImage) else None))
        if part == "image" and imaging and isinstance(image, DiskImage):
            return ServedFile(200, image.disk.file)
        if part == "seed" and image is not None and image.seed != "none" and record.state != "cleaning":
            return ServedFile(200, self._seed(record.node))
        if part in (KERNEL, INITRD) and isinstance(image, NetbootImage) and record.state in ("starting", "ready"):
            self._hear(record.node, f"it fetched its {part}")
            return ServedFile(200, (image.kernel if part == KERNEL else image.initrd).file)
        return ServedFile(404)

    def _spec(self, record: NodeRecord, image: DiskImage | None) -> bytes:
        told = {
            "erase": "yes" if record.erase else "no",
            "discard": "yes" if self._settings.discard else "no",
            "disk": record.disk,
            "keep": " ".join(self._settings.nodes[record.node].keep_disks),
            "identity": record.identity,
        }
        if image is not None:
            told |= {"image": str(image.disk.file.stat().st_size), "image_sha256": image.disk.sha256}
            if image.seed != "none":
                seed = self._seed(record.node).read_bytes()
                told |= {"seed": str(len(seed)), "seed_sha256": sha256(seed).hexdigest()}
        return "".join(f"{key} {value}\n" for key, value in told.items()).encode()


def _changes(word: str, rest: str, text: str) -> dict[str, Any]:
    """What a report changes of its node's record."""
    if word == "disk":
        return {"heard": True, "identity": rest}
    if word == "busy":
        return {"heard": True, "erasing": True} if rest.startswith("erasing ") else {"heard": True}
    return {"heard": True, "report": text}
