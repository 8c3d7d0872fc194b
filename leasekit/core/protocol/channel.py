"""One connection between two actors, without I/O: bytes in, events out; batches in, bytes out.

Bytes are cut into frames: a length of four bytes, big-endian, and a msgpack array of that length which begins with its
tag. A connection goes through these states; a frame with another tag than the one that is due ends it.

===============  ==========================================  =============================================
state            frame that is due                           what follows
===============  ==========================================  =============================================
``HELLO_DUE``    ``[0, magic, versions, name, key, nonce]``  own HELLO (if not sent yet) and PROOF are sent
``PROOF_DUE``    ``[1, signature]``                          :class:`Established`
``OPEN``         ``[3, seq, sent_at, signature, payload]``   :class:`ReceivedBatch`, or :class:`Heartbeat` if empty
``CLOSED``       none                                        what comes is ignored
===============  ==========================================  =============================================

In every state ``[2, code, text]`` tells why the other side hangs up. The side that dials sends its HELLO first; the
side that listens says nothing to an unauthenticated peer but such a refusal.

Why it holds:

- The *transcript* is the hash of both HELLOs as sent, of the version that follows from them, and of the ``binding``
  of the transport below. Each side signs it together with its direction, so a changed name, key, nonce or list of
  versions (a downgrade), or a proof sent back to its maker, does not verify.
- A key is believed only if it is the one that is pinned for the name.
- Each envelope's signature covers the session (from the transcript), the direction, the sequence number, the sender's
  time and the payload as sent. Both nonces are fresh, so what was recorded on another connection fails; the number
  grows by exactly one, so what is repeated, left out or out of order on this one does too.
- No frame is longer than ``HANDSHAKE_FRAME_MAX`` until the other side has proven its key; lengths are checked when
  their four bytes are in, and no more is kept than came. While an envelope of n bytes is checked, at most 3n are held.
- An integer of an envelope may be written in any width: what is signed is its value, so that is all that counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum, auto
from hashlib import sha256
from struct import Struct
from typing import Any, Final, TypeAlias

import attrs
import msgpack

from leasekit.core.claims.signed import KEY_BYTES, Scheme, Signer, fingerprint
from leasekit.core.errors import RemoteError
from leasekit.core.protocol.codec import show
from leasekit.core.protocol.messages import NAME_MAX, TEXT_MAX, WORD_MAX
from leasekit.core.reasons import Code, clip
from leasekit.core.time import INSTANT_MAX, Instant

MAGIC: Final = "leasekit"
VERSIONS: Final = (1,)
"""The versions of the protocol that this code speaks."""
VERSIONS_MAX: Final = 16
"""The most versions in a HELLO."""
NONCE_BYTES: Final = 32
FRAME_MAX: Final = 4 * 2**20
"""The longest frame on an open connection, in bytes."""
HANDSHAKE_FRAME_MAX: Final = 4096
"""The longest frame before that."""
ENVELOPE_OVERHEAD: Final = 128
"""The most that an envelope adds to its payload, in bytes."""

_HELLO, _PROOF, _GOODBYE, _ENVELOPE = 0, 1, 2, 3
_TRANSCRIPT_TAG: Final = b"leasekit transcript 1\0"
_PROOF_TAG: Final = b"leasekit proof 1\0"
_SESSION_TAG: Final = b"leasekit session 1\0"
_ENVELOPE_TAG: Final = b"leasekit envelope 1\0"
_LENGTH: Final = Struct(">I")
_STAMP: Final = Struct(">QQ")
_SEQ_MAX: Final = 2**63 - 1


class ChannelError(RemoteError):
    """Why a connection ended.

    ``code`` is one of ``malformed``, ``too_large``, ``not_leasekit``, ``tls`` (it speaks TLS, this side does not),
    ``version``, ``self``, ``wrong_peer``, ``unknown_peer``, ``wrong_key``, ``bad_proof``, ``out_of_turn``,
    ``sequence``, ``bad_signature``, ``refused`` (the other side hung up).
    """


@attrs.frozen(slots=True)
class Established:
    """The other side has proven to be ``peer``; ``version`` is spoken from here on."""

    peer: str
    key: bytes
    version: int


@attrs.frozen(slots=True)
class ReceivedBatch:
    """``payload`` is a batch of messages in the codec's encoding, sent at ``sent_at`` by the peer's clock."""

    sent_at: Instant
    payload: bytes = attrs.field(repr=False)


@attrs.frozen(slots=True)
class Heartbeat:
    """The peer is there, and its clock shows ``sent_at``."""

    sent_at: Instant


@attrs.frozen(slots=True)
class Closed:
    """The connection is over. Send what :meth:`Channel.bytes_to_send` still has, then close it."""

    error: ChannelError


Event: TypeAlias = Established | ReceivedBatch | Heartbeat | Closed


class State(Enum):
    """How far a connection is."""

    HELLO_DUE = auto()
    PROOF_DUE = auto()
    OPEN = auto()
    CLOSED = auto()


_TLS_RECORD: Final = b"\x16\x03"
"""How TLS begins; as a length it would be far beyond any handshake's."""
_DUE: Final = {State.HELLO_DUE: _HELLO, State.PROOF_DUE: _PROOF, State.OPEN: _ENVELOPE}


class Channel:
    """One side of one connection.

    ``me`` signs and ``name`` says as whom; ``nonce`` must never have been used before. ``peers`` gives the key that is
    pinned for a name, or None. ``expect`` is the peer that was dialled (None: any that ``peers`` knows). ``binding``
    ties the handshake to what carries it (the certificates of a TLS connection); both sides must see the same.

    Raises ``ValueError`` for arguments that can't be used.
    """

    def __init__(
        self,
        *,
        me: Signer,
        name: str,
        scheme: Scheme,
        nonce: bytes,
        peers: Callable[[str], bytes | None],
        initiator: bool,
        expect: str | None = None,
        versions: Sequence[int] = VERSIONS,
        frame_max: int = FRAME_MAX,
        binding: bytes = b"",
    ) -> None:
        if len(nonce) != NONCE_BYTES:
            raise ValueError(f"a nonce has {NONCE_BYTES} bytes, found {len(nonce)}")
        if not 0 < len(name) <= NAME_MAX:
            raise ValueError(f"an actor's name has 1 to {NAME_MAX} characters, found {len(name)}")
        self._me, self._name, self._scheme = me, name, scheme
        self._peers, self._expect, self._initiator = peers, expect, initiator
        self._versions = tuple(versions)
        self._frame_max = max(frame_max, HANDSHAKE_FRAME_MAX)
        self._binding = binding
        self.state = State.HELLO_DUE
        self.peer = ""
        self.version = 0
        self._key = b""
        self._in = bytearray()
        self._out: list[bytes] = []
        self._transcript = self._session = b""
        self._sent = self._received = 0
        self._hello: bytes = msgpack.packb((_HELLO, MAGIC, self._versions, name, me.public, nonce))
        if initiator:
            self._send_frame(self._hello)

    @property
    def peer_key(self) -> bytes:
        """The key that the other side has claimed, and proven once the channel is open."""
        return self._key

    @property
    def payload_max(self) -> int:
        """The longest payload that one envelope can carry, in bytes."""
        return self._frame_max - ENVELOPE_OVERHEAD

    @property
    def missing(self) -> int:
        """How many bytes of the frame that has begun to come in are still to come (0: its length is not known)."""
        if len(self._in) < _LENGTH.size:
            return 0
        return max(0, _LENGTH.size + int(_LENGTH.unpack_from(self._in)[0]) - len(self._in))

    def bytes_to_send(self) -> bytes:
        """What must go out now, once: the next call returns what came up since."""
        data = b"".join(self._out)
        self._out.clear()
        return data

    def send_batch(self, payload: bytes, sent_at: Instant) -> None:
        """Queue one envelope with ``payload`` as it is.

        Raises ``ValueError`` if it is too long, or the channel is not open.
        """
        if self.state is not State.OPEN:
            raise ValueError(f"can't send on a channel that is {self.state.name}: it must be OPEN")
        if len(payload) > self.payload_max:
            raise ValueError(f"found a payload of {len(payload)} bytes, at most {self.payload_max} fit in a frame")
        self._sent += 1
        signature = self._me.sign(self._signed(self._initiator, self._sent, sent_at, payload))
        self._send_frame(msgpack.packb((_ENVELOPE, self._sent, sent_at, signature, payload)))

    def ping(self, sent_at: Instant) -> None:
        """Queue a heartbeat: an envelope without messages. Raises as :meth:`send_batch` does."""
        self.send_batch(b"", sent_at)

    def close(self, code: str, text: str) -> None:
        """Queue the reason why this side hangs up; nothing can be sent or received after it."""
        if self.state is not State.CLOSED:
            self._send_frame(msgpack.packb((_GOODBYE, clip(code, WORD_MAX), clip(text))))
            self._shut()

    def receive_bytes(self, data: bytes | bytearray | memoryview) -> list[Event]:
        """What ``data`` brings about; how the stream is cut into pieces makes no difference.

        Nothing is raised whatever ``data`` is: a fault of the other side is the last event, :class:`Closed`.
        """
        events: list[Event] = []
        if self.state is State.CLOSED:
            return events
        self._in += data
        try:
            while end := self._next_frame():
                if event := self._receive_frame(end):
                    events.append(event)
        except ChannelError as error:
            self._shut()
            events.append(Closed(error))
        return events

    def _shut(self) -> None:
        self.state = State.CLOSED
        self._in = bytearray()  # a new one: the old one may be looked at

    def _refuse(self, error: ChannelError, told: ChannelError | None = None) -> ChannelError:
        """``error``, of which the other side is told (as ``told``, where it must not know all)."""
        self.close((told or error).code, str(told or error))
        return error

    def _send_frame(self, body: bytes) -> None:
        self._out.append(_LENGTH.pack(len(body)))
        self._out.append(body)

    def _next_frame(self) -> int:
        """Where the first frame ends that is here, or 0 if it is not all here."""
        buffer = self._in
        if len(buffer) < _LENGTH.size:
            return 0
        (length,) = _LENGTH.unpack_from(buffer)
        if self.state is State.OPEN:
            if length > self._frame_max:
                text = f"found a frame of {length} bytes, allowed are at most {self._frame_max}"
                raise self._refuse(ChannelError(Code.TOO_LARGE, text))
        elif length > HANDSHAKE_FRAME_MAX:
            if buffer.startswith(_TLS_RECORD) and self.state is State.HELLO_DUE:
                text = "the other side speaks TLS, this address does not: tls must be the same on both sides"
                raise self._refuse(ChannelError(Code.TLS, text))
            text = f"found a frame of {length} bytes, in a handshake allowed are at most {HANDSHAKE_FRAME_MAX}"
            raise ChannelError(Code.TOO_LARGE, f"{text}; does the other side speak leasekit?")
        end = _LENGTH.size + int(length)
        return end if len(buffer) >= end else 0

    def _receive_frame(self, end: int) -> Event | None:
        """Take the frame that ends at ``end``. A large one is never held twice in its raw form."""
        buffer = self._in
        with memoryview(buffer) as view, view[_LENGTH.size : end] as frame:
            fields = self._unpack(frame)
            hello = bytes(frame) if self.state is State.HELLO_DUE else b""
        del buffer[:end]
        if fields[0] == _GOODBYE:
            raise self._goodbye(fields)
        if fields[0] != _DUE[self.state]:
            text = f"found a frame with tag {fields[0]!r:.20}, due is {_DUE[self.state]} in state {self.state.name}"
            raise self._fault(ChannelError(Code.OUT_OF_TURN, text))
        if self.state is State.OPEN:
            return self._receive_envelope(fields)
        if self.state is State.PROOF_DUE:
            return self._receive_proof(fields)
        self._receive_hello(hello, fields)
        return None

    def _fault(self, error: ChannelError) -> ChannelError:
        """``error``, of which the other side is told only if it has proven who it is."""
        return self._refuse(error) if self.state is State.OPEN else error

    def _unpack(self, frame: memoryview) -> tuple[Any, ...]:
        try:
            fields = msgpack.unpackb(
                frame, use_list=False, max_array_len=VERSIONS_MAX, max_map_len=0, max_ext_len=0, max_bin_len=len(frame)
            )
        except (ValueError, msgpack.UnpackException) as error:
            raise self._fault(
                ChannelError(Code.MALFORMED, f"found a frame that is not msgpack: {error or 'malformed'}")
            ) from None
        if type(fields) is not tuple or not fields or type(fields[0]) is not int:
            raise self._fault(
                ChannelError(Code.MALFORMED, "found a frame that is not an array that begins with its tag")
            )
        return fields

    def _goodbye(self, fields: tuple[Any, ...]) -> ChannelError:
        code, text = (*fields[1:3], "", "")[:2]
        if type(code) is not str or len(code) > WORD_MAX or type(text) is not str or len(text) > TEXT_MAX:
            return ChannelError(Code.MALFORMED, "found a goodbye that is not a code and a text")
        # What an unauthenticated peer says is shown as a literal: it must not be able to move a terminal's cursor.
        return ChannelError(Code.REFUSED, f"the other side hung up: {code!r}: {text!r}")

    def _receive_hello(self, frame: bytes, fields: tuple[Any, ...]) -> None:
        if len(fields) < 2 or fields[1] != MAGIC:
            raise ChannelError(
                Code.NOT_LEASEKIT, f"found no {MAGIC!r} at the start of the connection: another protocol?"
            )
        if len(fields) < 6:
            raise ChannelError(Code.MALFORMED, f"found a HELLO of {len(fields)} fields, allowed are 6 or more")
        _, _, versions, name, key, nonce = fields[:6]
        _expect(type(versions) is tuple and all(type(one) is int for one in versions), "versions", "integers")
        _expect(type(name) is str and 0 < len(name) <= NAME_MAX, "name", f"text of 1 to {NAME_MAX} characters")
        _expect(type(key) is bytes and len(key) == KEY_BYTES, "key", f"{KEY_BYTES} bytes")
        _expect(type(nonce) is bytes and len(nonce) == NONCE_BYTES, "nonce", f"{NONCE_BYTES} bytes")
        self._check_peer(name, key)
        common = set(versions) & set(self._versions)
        if not common:
            text = f"{name!r} speaks versions {list(versions)!r:.200}, {self._name!r} speaks {list(self._versions)}"
            raise self._refuse(ChannelError(Code.VERSION, f"{text}: none in common"))
        self.peer, self._key, self.version = name, key, max(common)
        if not self._initiator:
            self._send_frame(self._hello)
        first, second = (self._hello, frame) if self._initiator else (frame, self._hello)
        self._transcript = transcript(first, second, self.version, self._binding)
        self._session = sha256(_SESSION_TAG + self._transcript).digest()
        self._send_frame(msgpack.packb((_PROOF, self._me.sign(_proof(self._initiator, self._transcript)))))
        self.state = State.PROOF_DUE

    def _check_peer(self, name: str, key: bytes) -> None:
        if key == self._me.public or name == self._name:
            text = f"found its own name or key at the other end ({name!r}): is {self._name!r} connected to itself?"
            raise ChannelError(Code.SELF, text)
        if self._expect is not None and name != self._expect:
            raise ChannelError(Code.WRONG_PEER, f"dialled {self._expect!r}, found {name!r} at its address")
        pinned = self._peers(name)
        told = ChannelError(Code.UNKNOWN_PEER, f"{name!r} with key {fingerprint(key)} is not known to {self._name!r}")
        if pinned is None:
            raise self._refuse(told)
        if pinned != key:
            text = f"{name!r} has key {fingerprint(key)}, the one pinned for it is {fingerprint(pinned)}"
            raise self._refuse(ChannelError(Code.WRONG_KEY, text), told)

    def _receive_proof(self, fields: tuple[Any, ...]) -> Established:
        signature = fields[1] if len(fields) > 1 else None
        proof = _proof(not self._initiator, self._transcript)
        if type(signature) is not bytes or not self._scheme.verify(self._key, signature, proof):
            text = f"{self.peer!r} did not prove its key: its signature over the handshake does not verify"
            raise ChannelError(Code.BAD_PROOF, text)
        self.state = State.OPEN
        return Established(self.peer, self._key, self.version)

    def _receive_envelope(self, fields: tuple[Any, ...]) -> ReceivedBatch | Heartbeat:
        if len(fields) < 5:
            text = f"found an envelope of {len(fields)} fields, allowed are 5 or more"
            raise self._refuse(ChannelError(Code.MALFORMED, text))
        _, seq, sent_at, signature, payload = fields[:5]
        fine = type(seq) is int and type(signature) is bytes and type(payload) is bytes
        if not fine or type(sent_at) is not int or not 0 <= sent_at <= INSTANT_MAX:
            text = f"seq is {show(seq)}, sent_at {show(sent_at)}, signature {show(signature)}, payload {show(payload)}"
            raise self._refuse(ChannelError(Code.MALFORMED, f"found an envelope outside its limits: {text}"))
        if seq != self._received + 1 or seq > _SEQ_MAX:
            text = f"found envelope {seq}, due is {self._received + 1}: repeated, lost or out of order"
            raise self._refuse(ChannelError(Code.SEQUENCE, text))
        if not self._scheme.verify(self._key, signature, self._signed(not self._initiator, seq, sent_at, payload)):
            raise self._refuse(ChannelError(Code.BAD_SIGNATURE, f"the signature of envelope {seq} does not verify"))
        self._received = seq
        return ReceivedBatch(sent_at, payload) if payload else Heartbeat(sent_at)

    def _signed(self, from_initiator: bool, seq: int, sent_at: Instant, payload: bytes) -> bytes:
        direction = b"I" if from_initiator else b"R"
        return b"".join((_ENVELOPE_TAG, self._session, direction, _STAMP.pack(seq, sent_at), payload))


def transcript(first: bytes, second: bytes, version: int, binding: bytes = b"") -> bytes:
    """The hash of a handshake: the HELLO of the side that dialled, then the other's, both as sent."""
    parts = (first, second, version.to_bytes(8, "big"), binding)
    return sha256(_TRANSCRIPT_TAG + b"".join(_LENGTH.pack(len(part)) + part for part in parts)).digest()


def _proof(from_initiator: bool, digest: bytes) -> bytes:
    return _PROOF_TAG + (b"I" if from_initiator else b"R") + digest


def _expect(fine: bool, field: str, allowed: str) -> None:
    if not fine:
        raise ChannelError(Code.MALFORMED, f"found a HELLO whose {field} is outside its limits, allowed is {allowed}")
