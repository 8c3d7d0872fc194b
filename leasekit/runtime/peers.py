"""What a transport knows of its peers, and the connection that one may have."""

from __future__ import annotations

import ssl
from collections import deque

import attrs
import trio

from leasekit.config.tables import TransportSettings
from leasekit.core.answers import LinkDetails
from leasekit.core.protocol.channel import Channel
from leasekit.core.protocol.messages import BATCH_MAX
from leasekit.core.time import Duration
from leasekit.runtime.limits import Allowance
from leasekit.runtime.sockets import Endpoint, Wire

ENVELOPE_FULL = 49_152
"""From so many bytes on, an envelope takes no further message: one that is lost or refused takes little with it."""


@attrs.frozen(slots=True)
class PeerAddress:
    """A peer: the ``name`` and ``key`` it must prove, and where to dial it (None: it dials)."""

    name: str
    key: bytes
    address: Endpoint | None = None


class RemotePeer:
    """One peer."""

    def __init__(self, given: PeerAddress, settings: TransportSettings) -> None:
        self.name, self.key, self.address = given.name, given.key, given.address
        self.link: PeerLink | None = None
        self.clock_ahead: Duration = 0
        self.gone = trio.Event()
        """Set while there is no connection."""
        self.gone.set()
        self.dialling = trio.CancelScope()
        self.is_dialled = False
        self.removed = False
        self.context: ssl.SSLContext | None = None
        self.problem = "" if self.address is None else "not dialled yet"
        self.sent = self.received = self.dropped = 0
        self.queue_max = settings.queue_max
        self.queue: deque[bytes] = deque()
        self.queued_bytes = 0
        self.full = False
        self._settings = settings
        self._allowance: Allowance | None = None

    @property
    def allowance(self) -> Allowance:
        """What it may send; made on first use, when there is a clock."""
        if self._allowance is None:
            self._allowance = Allowance(self._settings, trio.current_time())
        return self._allowance

    def put(self, encoded: bytes) -> bool:
        """Queue a message; False if there is no room."""
        if self.queue and self.queued_bytes + len(encoded) > self.queue_max:
            return False
        self.queue.append(encoded)
        self.queued_bytes += len(encoded)
        return True

    def take(self) -> list[bytes]:
        """The next messages for one envelope: at least one, and more while they are below :data:`ENVELOPE_FULL`."""
        taken: list[bytes] = []
        size = 3
        while self.queue and len(taken) < BATCH_MAX:
            size += len(self.queue[0])
            if taken and size > ENVELOPE_FULL:
                break
            taken.append(self.queue.popleft())
        self.queued_bytes -= sum(map(len, taken))
        self.full = self.full and bool(self.queue)
        return taken

    def drop_all(self) -> None:
        """Forget what is queued."""
        self.dropped += len(self.queue)
        self.queue.clear()
        self.queued_bytes = 0
        self.full = False

    def status(self) -> LinkDetails:
        """For people to see."""
        allowance = self._allowance
        return LinkDetails.of(
            self, peer=self.name, address=str(self.address or ""), connected=self.link is not None,
            encrypted=self.link is not None and self.link.wire.encrypted,
            held_ms=0 if allowance is None else int(allowance.held * 1000),
            flooding=allowance is not None and allowance.flooding,
        )  # fmt: skip


class PeerLink:
    """One connection whose other side has proven to be ``peer``."""

    def __init__(self, peer: RemotePeer, channel: Channel, wire: Wire, initiator: bool) -> None:
        self.peer, self.channel, self.wire, self.initiator = peer, channel, wire, initiator
        self.opened_at = trio.current_time()
        self.scope = trio.CancelScope()
        self.wake = trio.Event()
        self.cut = False
        """Whether the last send was cut off in the middle of a frame, so that nothing can follow it."""
        self.problem = ""

    def stop(self, code: str, text: str) -> None:
        """End the link, telling the peer why."""
        self.channel.close(code, text)
        self.fail(text)

    def fail(self, text: str) -> None:
        """End the link; the first reason counts."""
        self.problem = self.problem or text
        self.scope.cancel()
