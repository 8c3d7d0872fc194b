"""Where frames travel: addresses, the sockets that listen on them, and connections, with TLS over them or not.

:class:`Stalls` tells how long this process has not looked at its sockets: what came meanwhile is not late. A task that
is woken because bytes have come can't know when they came. The loop may have been busy with another task before it
looked at its sockets at all; the process may have been stopped while it waited for them. So the loop is watched: how
long it ran between two looks, and by how much a look outlasted the time that it was to wait. That no look may be so
long that it hides the second, the loop is woken now and again.

TLS 1.3 is between two actors who know each other's keys, and nobody else.

There is no certificate authority. Each process makes a TLS key of its own, which never leaves it, and a certificate
for that key which the actor's key signs. Whoever knows the actor's key (it is pinned in the deploy file) trusts what
that key has signed, and nothing else: for each pinned key a trust anchor is made on the spot, which holds that key
alone. So OpenSSL itself checks both sides' certificates before a byte of leasekit's own protocol is read: who dials
trusts the one key that is pinned for the peer it wants, who listens the keys of all its peers. Anchors are found by the
name of the key in the certificate, so that a connection costs the same however many there are. A peer more is an anchor
more in the context that listens; only for one that goes is another context made.

What that gives, and what does not depend on it:

- *Confidentiality* and forward secrecy come from TLS 1.3 with fresh (EC)DHE keys for each connection; older versions
  are not spoken, sessions are not resumed, and so nothing is ever sent early.
- *Authenticity* of both ends comes from the certificates, and once more, independently, from the channel's handshake
  (:mod:`leasekit.core.protocol.channel`): its proofs are signatures with the actors' own keys over, among others,
  :meth:`Tls.binding`, the hash of both certificates and of the client's TLS *Finished*. That message is a MAC of the
  whole TLS handshake under a key that only its two ends have (Python calls it ``tls-unique``). One in the middle who
  joins two TLS connections has two of them, so even a certificate that was believed wrongly, or a TLS key that was
  stolen, lets nobody in.
- Each batch is signed over the channel's session in any case: without TLS (Unix sockets, ``tls = false``) all can be
  read by whoever carries it, but still nothing can be changed, repeated, or said in another's name.

Certificates are valid for ever: whose key is no longer pinned is no longer believed.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import select
import socket
import ssl
import stat
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import lru_cache
from hashlib import sha256
from ipaddress import IPv6Address, ip_address, ip_network
from pathlib import Path
from typing import Any, Final

import attrs
import trio
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from leasekit.core.buckets import Bucket
from leasekit.core.claims.signed import Signer
from leasekit.core.errors import LeasekitError
from leasekit.core.time import SECOND, Duration
from leasekit.runtime.clock import since_boot
from leasekit.runtime.limits import Room, UnauthenticatedPeer

RECORD: Final = 0x16
"""The first byte of a TLS connection (a handshake record); no frame of leasekit's begins with it."""
ALERT_WITHIN: Final = 1.0
"""How long, in seconds, telling the other side of a failure may take."""

_EVER: Final = (datetime(2000, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC))
_ED25519: Final = bytes.fromhex("300506032b6570")  # the AlgorithmIdentifier of RFC 8410
_SEQUENCE, _BIT_STRING = 0x30, 0x03


class TlsError(Exception):
    """Why there is no TLS connection."""


class _Context(ssl.SSLContext):
    """Keeps the buffer of what goes out for the stream that is made next: :meth:`Tls.handshake` sends from it the alert
    that trio would forget.
    """

    outgoing: ssl.MemoryBIO

    def wrap_bio(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, *args: Any, **named: Any) -> ssl.SSLObject:
        self.outgoing = outgoing
        return super().wrap_bio(incoming, outgoing, *args, **named)


async def _nothing(*_: object) -> None:
    pass


class Tls:
    """What one actor needs for TLS: its certificate, and contexts for both directions."""

    def __init__(self, signer: Signer, name: str) -> None:
        self._key = Ed25519PrivateKey.generate()
        self._throwaway = Ed25519PrivateKey.generate()
        self._anchor_parts = self._split_anchor(signer.public)
        self.certificate = self._own_certificate(signer, name)
        """The actor's certificate, in DER."""

    def server(self, keys: Iterable[bytes]) -> ssl.SSLContext:
        """A context to listen with: whoever has one of ``keys`` may connect."""
        context = self._context(ssl.PROTOCOL_TLS_SERVER, keys)
        context.num_tickets = 0
        return context

    def trust(self, context: ssl.SSLContext, key: bytes) -> None:
        """Let the owner of one more key connect where ``context`` listens."""
        context.load_verify_locations(cadata=self._anchor(key))

    def client(self, key: bytes) -> ssl.SSLContext:
        """A context to dial with: only ``key``'s owner is connected to."""
        return self._context(ssl.PROTOCOL_TLS_CLIENT, [key])

    async def handshake(
        self, stream: trio.abc.Stream, context: ssl.SSLContext, *, dialled: bool
    ) -> trio.SSLStream[Any]:
        """TLS over ``stream``. Raises :class:`TlsError`; ``stream`` is then of no more use, but not closed."""
        secured = trio.SSLStream(stream, context, server_side=not dialled)
        assert isinstance(context, _Context), "contexts are made here"
        outgoing = context.outgoing
        try:
            await secured.do_handshake()
        except trio.BrokenResourceError as error:
            alert = outgoing.read()
            if alert:
                with trio.move_on_after(ALERT_WITHIN), suppress(trio.BrokenResourceError):
                    await stream.send_all(alert)
            raise TlsError(explain(error)) from None
        finally:
            # What begins the handshake is a method of the stream, which it keeps: a cycle, with all of its buffers. Of
            # a connection that lasts Python would look for that at a full collection only. No call needs it any more.
            with suppress(AttributeError):  # a trio without it
                secured._handshook._afn = _nothing
        return secured

    def binding(self, secured: trio.SSLStream[Any], *, dialled: bool) -> bytes:
        """What both ends, and only these two, see of their TLS connection: 32 bytes for the channel's handshake."""
        theirs = secured.getpeercert(binary_form=True)
        finished = secured.get_channel_binding("tls-unique")
        if not theirs or not finished:
            raise TlsError("the TLS connection has no certificate or no binding")
        certificates = (self.certificate, theirs) if dialled else (theirs, self.certificate)
        digest = sha256(b"leasekit tls binding 1\0")
        for part in (*certificates, finished):
            digest.update(sha256(part).digest())
        return digest.digest()

    def _context(self, protocol: int, keys: Iterable[bytes]) -> ssl.SSLContext:
        context = _Context(protocol)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False  # a key is pinned, whatever the host is called
        context.verify_mode = ssl.CERT_REQUIRED
        context.verify_flags = ssl.VERIFY_X509_PARTIAL_CHAIN
        anchors = b"".join(self._anchor(key) for key in keys)
        if anchors:
            context.load_verify_locations(cadata=anchors)
        self._load(context)
        return context

    def _anchor(self, key: bytes) -> bytes:
        """A certificate that makes ``key`` trusted. Who signed it does not matter: an anchor is believed as it is."""
        before, between, after = self._anchor_parts
        return before + key.hex().encode() + between + key + after

    def _split_anchor(self, key: bytes) -> tuple[bytes, bytes, bytes]:
        """What comes before, between and after the key's name and the key in an anchor: all are alike but for these."""
        unsigned = _unsigned(key.hex(), "pinned", Ed25519PublicKey.from_public_bytes(key), ca=True)
        made = unsigned.sign(self._throwaway, None).public_bytes(Encoding.DER)
        before, rest = made.split(key.hex().encode())
        between, after = rest.split(key)
        return before, between, after

    def _own_certificate(self, signer: Signer, name: str) -> bytes:
        """The certificate of this process's TLS key, signed by the actor. It is put together here since the library
        signs only with keys that it is given.
        """
        unsigned = _unsigned(name[:64], signer.public.hex(), self._key.public_key(), ca=False)
        body = unsigned.sign(self._throwaway, None).tbs_certificate_bytes
        return _der(_SEQUENCE, body + _ED25519 + _der(_BIT_STRING, b"\0" + signer.sign(body)))

    def _load(self, context: ssl.SSLContext) -> None:
        """Give OpenSSL certificate and key. It reads them from files only: from one in memory, that nobody can open."""
        secret = self._key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        with os.fdopen(os.memfd_create("leasekit-tls", os.MFD_CLOEXEC), "wb", buffering=0) as file:
            file.write(ssl.DER_cert_to_PEM_cert(self.certificate).encode() + secret)
            context.load_cert_chain(f"/proc/self/fd/{file.fileno()}")


def explain(error: BaseException) -> str:
    """What a failure of TLS means for the two deploy files."""
    cause = error.__cause__ or error
    reason = getattr(cause, "reason", None) or ""
    if isinstance(cause, ssl.SSLCertVerificationError):
        return "its TLS certificate was not made with a key that is pinned here: another key, or another machine?"
    if "UNKNOWN_CA" in reason or "CERTIFICATE_REQUIRED" in reason:
        return "it does not know the key of this actor's TLS certificate: the public key that it has pinned is another"
    if reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE", "INVALID_ALERT"):
        return "it does not speak TLS: tls must be the same on both sides"
    if (
        isinstance(cause, ssl.SSLEOFError | ssl.SSLZeroReturnError | ConnectionResetError | BrokenPipeError)
        or not reason
    ):
        return "it closed the connection during the TLS handshake: is tls the same on both sides?"
    return f"TLS failed: {reason.lower().replace('_', ' ')}"


def _unsigned(subject: str, issuer: str, key: Ed25519PublicKey, *, ca: bool) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(_name(subject))
        .issuer_name(_name(issuer))
        .public_key(key)
        .serial_number(1)
        .not_valid_before(_EVER[0])
        .not_valid_after(_EVER[1])
        .add_extension(x509.BasicConstraints(ca, None), critical=True)
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _der(tag: int, content: bytes) -> bytes:
    """One DER value."""
    size = len(content)
    if size < 0x80:
        return bytes((tag, size)) + content
    length = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes((tag, 0x80 | len(length))) + length + content


UNIX_PATH_MAX: Final = 107
"""The longest path of a Unix socket, in bytes (Linux)."""

_TCP = re.compile(r"tcp://(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]+)):(\d{1,5})(\?tls=false)?")


class TransportError(LeasekitError):
    """An address that can't be used; the text names it and says what to do."""


@attrs.frozen(slots=True)
class Endpoint:
    """An address: the ``path`` of a Unix socket, or ``host`` and ``port`` (0 when listening: any free one).

    ``tls`` says whether TLS is spoken on TCP; a Unix socket never has it.
    """

    path: str = ""
    host: str = ""
    port: int = 0
    tls: bool = True

    @property
    def encrypted(self) -> bool:
        """Whether what goes over it is encrypted."""
        return self.tls and not self.path

    def __str__(self) -> str:
        if self.path:
            return f"unix:{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"tcp://{host}:{self.port}{'' if self.tls else '?tls=false'}"


def parse_endpoint(text: str) -> Endpoint:
    """The endpoint that ``unix:PATH`` or ``tcp://HOST:PORT`` names; with ``?tls=false`` after it, TCP without TLS.

    Raises ``ValueError`` that says what was found and what is allowed.
    """
    allowed = "unix:PATH or tcp://HOST:PORT (an IPv6 host in brackets)"
    if text.startswith("unix:") and "\0" not in text:
        path = text.removeprefix("unix:")
        if 0 < len(os.fsencode(path)) <= UNIX_PATH_MAX:
            return Endpoint(path=path)
        raise ValueError(f"{text!r}: found a path of {len(os.fsencode(path))} bytes, allowed are 1 to {UNIX_PATH_MAX}")
    match = _TCP.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not an address, allowed is {allowed}")
    port = int(match[3])
    if port > 65_535:
        raise ValueError(f"{text!r}: found port {port}, allowed is 0 to 65535")
    return Endpoint(host=match[1] or match[2], port=port, tls=match[4] is None)


async def connect(address: Endpoint) -> trio.SocketStream:
    """A connection to ``address``. Raises ``OSError``."""
    if address.path:
        return await trio.open_unix_socket(address.path)
    try:
        return await trio.open_tcp_stream(address.host, address.port)
    except UnicodeError as error:  # a label of a name that is empty or too long
        raise OSError(f"no host can have the name {address.host!r}") from error


def readable(stream: trio.SocketStream) -> bool:
    """Whether something has arrived that was not read yet."""
    poll = select.poll()
    poll.register(stream.socket.fileno(), select.POLLIN)
    return bool(poll.poll(0))


def bound(listener: trio.SocketListener, tls: bool = True) -> Endpoint:
    """Where ``listener`` listens, with the port that it got."""
    name = listener.socket.getsockname()
    return Endpoint(path=name) if isinstance(name, str) else Endpoint(host=name[0], port=name[1], tls=tls)


AT_ONCE: Final = 64
"""How many connections are taken out of the system's queue in one go."""


class PacedListener(trio.abc.Listener[trio.SocketStream]):
    """Takes the connections that wait at ``listener`` out of the system's queue, in which all would wait behind each
    other for seconds, and lets them in as ``pace`` allows: each costs 1 of it. Up to ``limit`` wait here, where that
    costs next to nothing. Of the network from which the fewest come the oldest is next; if one too many comes, one of
    the network that has the most goes, of which ``refused`` hears.
    """

    def __init__(self, listener: trio.SocketListener, pace: Bucket, limit: int, refused: Callable[[str], None]) -> None:
        self._listener, self._pace, self._refused = listener, pace, refused
        self._door = socket.fromfd(listener.socket.fileno(), listener.socket.family, socket.SOCK_STREAM)
        self._door.setblocking(False)
        self._room = Room(limit)
        self._waiting: dict[UnauthenticatedPeer, socket.socket] = {}

    async def accept(self) -> trio.SocketStream:
        """The next connection. Raises as that of trio's listener does."""
        if not self._waiting:
            first = await self._listener.accept()
            self._admit(socket.socket(fileno=first.socket.detach()))
        await trio.lowlevel.checkpoint()  # who was let in before is served first: tasks of one turn begin in any order
        while pause := self._pace.wait(trio.current_time()):
            self._take()
            await trio.sleep(pause)
        self._take()
        self._pace.take(1, trio.current_time())
        next_ = self._room.next()
        self._room.take(next_)
        return trio.SocketStream(trio.socket.from_stdlib_socket(self._waiting.pop(next_)))

    def _take(self) -> None:
        with suppress(OSError):  # nobody waits any more; any other reason is met again
            for _ in range(AT_ONCE):
                self._admit(self._door.accept()[0])

    def _admit(self, taken: socket.socket) -> None:
        def drop() -> None:
            self._waiting.pop(peer).close()
            self._refused(peer.source)

        peer = UnauthenticatedPeer(source_of(taken), drop)
        self._waiting[peer] = taken
        self._room.put(peer)

    async def aclose(self) -> None:
        """Close it, and what waits here."""
        self._door.close()
        for taken in self._waiting.values():
            taken.close()
        await self._listener.aclose()


class Sockets:
    """The sockets that a transport listens on, with the files and locks that must go with them."""

    def __init__(self) -> None:
        self._files: list[tuple[Path, int]] = []
        self._listeners: list[trio.SocketListener] = []

    def __enter__(self) -> Sockets:
        return self

    def __exit__(self, *exc: object) -> None:
        for listener in self._listeners:
            listener.socket.close()
        for path, lock in self._files:
            path.unlink(missing_ok=True)
            os.close(lock)

    async def listen(self, endpoint: Endpoint, key: str) -> list[trio.SocketListener]:
        """Listeners on ``endpoint``. Raises ``TransportError`` that names it and the setting ``key``."""
        try:
            if endpoint.path:
                found = [self._listen_unix(Path(endpoint.path))]
            else:
                found = list(await trio.open_tcp_listeners(endpoint.port, host=endpoint.host))
        except socket.gaierror as error:
            raise TransportError(f"{key}: {endpoint}: no such host: {error.strerror}") from error
        except OSError as error:
            raise TransportError(f"{key}: can't listen on {endpoint}: {_advice(error)}") from error
        self._listeners += found
        return found

    def _listen_unix(self, path: Path) -> trio.SocketListener:
        lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _clear(path)
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                sock.bind(str(path))
                sock.listen(128)
                sock.setblocking(False)
            except OSError:
                sock.close()
                raise
        except OSError:
            os.close(lock)
            raise
        self._files.append((path, lock))
        return trio.SocketListener(trio.socket.from_stdlib_socket(sock))


def _clear(path: Path) -> None:
    """Remove the socket that a dead daemon left at ``path``. Raises ``OSError`` if it is alive, or no socket."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise OSError(errno.EEXIST, "there is a file of that name that is not a socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
        except FileNotFoundError:
            return
    raise BlockingIOError(errno.EADDRINUSE, "it is alive")


_ADVICE: Final[Mapping[int, str]] = {
    errno.EADDRINUSE: "it is in use by another daemon; stop that one, or choose another address",
    errno.EAGAIN: "it is in use by another daemon; stop that one, or choose another address",
    errno.EADDRNOTAVAIL: "this machine has no such address",
    errno.EACCES: "permission denied",
    errno.ENOENT: "its directory does not exist",
}


def _advice(error: OSError) -> str:
    return _ADVICE.get(error.errno or 0) or error.strerror or str(error)


_NANOSECONDS: Final = 10**9


def seconds_since_boot() -> float:
    """What :func:`~leasekit.runtime.clock.since_boot` gives, in seconds."""
    return since_boot() / _NANOSECONDS


class Stalls(trio.abc.Instrument):
    """Watches trio's loop from :meth:`run` on. ``clock`` gives seconds."""

    def __init__(self, clock: Callable[[], float] = seconds_since_boot) -> None:
        self.clock = clock
        self._asleep = self._awake = clock()
        self._stalled = self._stalled_before = 0.0

    def before_io_wait(self, timeout: float) -> None:
        """The loop looks at its sockets."""
        self._asleep = self.clock()
        self._stalled_before = self._stalled
        self._stalled = self._asleep - self._awake

    def after_io_wait(self, timeout: float) -> None:
        """It has looked, and goes on to run the tasks that this has woken."""
        self._awake = self.clock()
        self._stalled += max(0.0, self._awake - self._asleep - timeout)

    def lag(self) -> float:
        """For how many seconds what a task finds now may have been there unseen."""
        # A look during which the process was stopped ends empty, whatever has come: the next one finds it.
        return self._stalled_before + self._stalled + self.clock() - self._awake

    async def run(self, every: Duration) -> None:
        """Watch until cancelled; no look lasts longer than ``every`` milliseconds."""
        trio.lowlevel.add_instrument(self)
        try:
            while True:
                await trio.sleep(every / SECOND)
        finally:
            trio.lowlevel.remove_instrument(self)


@lru_cache(4096)
def network(address: str) -> str:
    """What one who has ``address`` is likely to have all of: its /24, or its /64 where it is of IPv6."""
    found = ip_address(address.partition("%")[0])
    if isinstance(found, IPv6Address):
        found = found.ipv4_mapped or found
    return str(ip_network((found, 24 if found.version == 4 else 64), strict=False))


def source_of(connection: socket.socket | trio.socket.SocketType) -> str:
    """The network at the other end (:func:`network`), or the empty text for this machine's own (a Unix socket)."""
    try:
        name = connection.getpeername()
    except OSError:
        return "gone"
    return network(str(name[0])) if isinstance(name, tuple) else ""


CLOSE_WITHIN: Final = 1.0
"""How long, in seconds, closing in good manners may take."""
LINGER_BYTES: Final = 65_536
"""How much is read of one who was refused already."""


class _Socket(trio.abc.Stream):
    """A socket that notes whether a reader had to wait: then all that had come before was read, and the rest came at
    :attr:`empty_at` or later. After :meth:`finish` it is broken for who sends: TLS then does without the goodbye that
    it would send at its close.
    """

    def __init__(self, stream: trio.SocketStream, stalls: Stalls) -> None:
        self.stream = stream
        self.waited = False
        self.empty_at = self._left_at = stalls.clock()
        self._stalls = stalls
        self._finished = False

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        if self._finished:
            raise trio.BrokenResourceError("all has been said on this connection")
        await self.stream.send_all(data)

    async def finish(self) -> None:
        """Say nothing more."""
        self._finished = True
        await self.stream.send_eof()

    async def wait_send_all_might_not_block(self) -> None:
        await self.stream.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        # Nobody may have looked into the socket for a while, and who sends may have had to wait for that.
        away = self._stalls.clock() - self._left_at
        waits = not readable(self.stream)
        data = await self.stream.receive_some(max_bytes)
        self._left_at = self._stalls.clock()
        if waits:
            self.waited = True
            self.empty_at = max(self.empty_at, self._left_at - self._stalls.lag() - away)
        return data

    async def aclose(self) -> None:
        await self.stream.aclose()


class Wire:
    """One connection, plain at first. All its methods raise ``trio.BrokenResourceError`` when it breaks."""

    def __init__(self, stream: trio.SocketStream, stalls: Stalls) -> None:
        self._socket = _Socket(stream, stalls)
        self._stalls = stalls
        self._stream: trio.abc.Stream = self._socket
        self.encrypted = False
        self.binding = b""
        """What ties the channel's handshake to this connection; empty without TLS."""

    @property
    def age(self) -> float:
        """For how many seconds at most what was read last may have been on this machine."""
        return self._stalls.clock() - self._socket.empty_at

    @property
    def source(self) -> str:
        """The network at the other end (:func:`source_of`)."""
        return source_of(self._socket.stream.socket)

    async def begins_with_tls(self) -> bool:
        """Whether the other side, which speaks first, begins with TLS. Nothing is taken from the stream."""
        try:
            first = await self._socket.stream.socket.recv(1, socket.MSG_PEEK)
        except OSError as error:
            raise trio.BrokenResourceError(f"socket connection broken: {error}") from error
        return bool(first) and first[0] == RECORD

    async def secure(self, tls: Tls, context: ssl.SSLContext, *, dialled: bool) -> None:
        """Go over to TLS. Raises ``TlsError``."""
        secured = await tls.handshake(self._socket, context, dialled=dialled)
        self.binding = tls.binding(secured, dialled=dialled)
        self._stream, self.encrypted = secured, True

    async def send(self, data: bytes) -> None:
        """Send all of ``data``."""
        await self._stream.send_all(data)

    async def receive(self, most: int) -> tuple[bytes | bytearray, bool]:
        """What has come, up to ``most`` bytes (nothing: the other side has closed), and whether that had to be waited
        for.
        """
        self._socket.waited = False
        data = await self._stream.receive_some(most)
        return data, self._socket.waited

    async def linger(self) -> None:
        """Say nothing more, and wait a little for the other side to close: what it has not read yet of the last words
        would be lost if the connection was closed while something of it lies here unread.
        """
        left = LINGER_BYTES
        with trio.move_on_after(CLOSE_WITHIN), suppress(trio.BrokenResourceError):
            await self._socket.finish()
            while left > 0 and (data := await self._socket.receive_some(left)):
                left -= len(data)

    async def close(self) -> None:
        """Close it, in good manners if that takes no time."""
        with trio.move_on_after(CLOSE_WITHIN, shield=True):
            await self._stream.aclose()
        await trio.aclose_forcefully(self._socket)


def broken(error: BaseException) -> str:
    """Why a wire broke, in words."""
    cause = error.__cause__ or error
    if isinstance(cause, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return "the other side closed the connection"
    return f"the connection broke: {cause}"
