"""TLS 1.3 between two actors who know each other's keys, and nobody else.

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

import os
import ssl
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, Final

import trio
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from leasekit.core.claims.signed import Signer

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
