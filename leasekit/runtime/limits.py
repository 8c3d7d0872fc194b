"""How much of this actor others may take: rates of each peer, and connections of those who have not said who they are.

Nothing here waits or reads a clock: instants are seconds of the caller's, durations in settings milliseconds.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from leasekit.config.tables import TransportSettings
from leasekit.core.buckets import Bucket
from leasekit.core.time import SECOND

MINUTE_S: Final = 60.0
WORK_SHARE: Final = 0.25
"""The share of a processor that is spent at most on checking signatures of one peer and decoding what it says."""
WORK_BURST: Final = 0.1
"""How many seconds of it at once."""


class Allowance:
    """What one peer may send, over all of its connections: coming back does not make a peer new."""

    def __init__(self, settings: TransportSettings, now: float) -> None:
        per_minute = settings.connections_per_minute
        self._messages = Bucket(settings.messages_per_second, settings.messages_burst, now)
        self._bytes = Bucket(settings.bytes_per_second, settings.bytes_burst, now)
        self._work = Bucket(WORK_SHARE, WORK_BURST, now)
        self._connections = Bucket(per_minute / MINUTE_S, per_minute - 1, now)
        self._flood_after = settings.flood_after / SECOND
        self._held_since: float | None = None
        self.flooding = False
        """Whether it has been held back for so long that it was reported."""
        self.held = 0.0
        """For how long it has been held back in all, in seconds."""

    def connect(self, now: float) -> bool:
        """Whether it may connect now."""
        if self._connections.wait(now):
            return False
        self._connections.take(1, now)
        return True

    def read(self, size: int, now: float) -> None:
        """It has sent ``size`` bytes."""
        self._bytes.take(size, now)

    def count(self, messages: int, now: float) -> None:
        """It has sent an envelope with so many messages; an empty one costs as much as one message."""
        self._messages.take(max(1, messages), now)

    def work(self, seconds: float, now: float) -> None:
        """What it has sent took so long to be checked and decoded."""
        self._work.take(seconds, now)

    def pause(self, now: float) -> float:
        """For how many seconds it is not to be read."""
        return max(self._messages.wait(now), self._bytes.wait(now), self._work.wait(now))

    def hold(self, now: float, seconds: float) -> bool:
        """It is held back for ``seconds`` from ``now`` on; whether that is to be reported: once for each flood."""
        if self._held_since is None:
            self._held_since = now
        self.held += seconds
        if self.flooding or now + seconds - self._held_since < self._flood_after:
            return False
        self.flooding = True
        return True

    def rest(self) -> bool:
        """It had nothing more to say for now; whether a flood that was reported is over with that."""
        over, self.flooding, self._held_since = self.flooding, False, None
        return over


SILENT, SPEAKS, GREETED, CERTIFIED = range(4)
"""How far a peer is: it has said nothing; it has said what a peer might say; it was answered, which costs this side
most of a handshake; its certificate is a peer's."""


class UnauthenticatedPeer:
    """A connection that has not proven whose it is. ``source`` is the network that it comes from."""

    __slots__ = ("drop", "level", "source")

    def __init__(self, source: str, drop: Callable[[], None]) -> None:
        self.source, self.drop = source, drop
        self.level = SILENT


class Room:
    """Unauthenticated peers of two levels, of which there are at most ``limit``. If one more comes another one goes: of
    the network that has the most of them; there one that has got less far before one that has got further; among these
    the oldest.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._by_source: dict[
            str, tuple[OrderedDict[UnauthenticatedPeer, None], OrderedDict[UnauthenticatedPeer, None]]
        ] = {}
        self.count = 0

    def put(self, peer: UnauthenticatedPeer) -> None:
        """Take one in; who must go for it is dropped."""
        levels = self._by_source.setdefault(peer.source, (OrderedDict(), OrderedDict()))
        levels[peer.level % 2][peer] = None
        self.count += 1
        if self.count > self._limit:
            levels = max(self._by_source.values(), key=lambda found: sum(map(len, found)))
            victim = next(one for level in levels for one in level if one is not peer)
            self.take(victim)
            victim.drop()

    def next(self) -> UnauthenticatedPeer:
        """The oldest of the network that has the fewest here."""
        levels = min(self._by_source.values(), key=lambda found: sum(map(len, found)))
        return next(one for level in levels for one in level)

    def take(self, peer: UnauthenticatedPeer) -> bool:
        """Have it go; whether it was here."""
        levels = self._by_source.get(peer.source)
        if levels is None or peer not in levels[peer.level % 2]:
            return False
        del levels[peer.level % 2][peer]
        self.count -= 1
        if not any(levels):
            del self._by_source[peer.source]
        return True


class UnauthenticatedPeers:
    """All such connections, of which there are at most ``limit``: half of the places are for those who were answered.

    So a flood of connections, silent or not, takes its places from itself, and a peer that is of another network, or
    further than the flood can get without a peer's key, is safe from it. Who was answered makes room for others who
    were, not for any who come: there is time for it to go on, however many come.
    """

    def __init__(self, limit: int) -> None:
        self._rooms = Room(limit - limit // 2), Room(limit // 2)

    def __len__(self) -> int:
        return sum(room.count for room in self._rooms)

    def admit(self, peer: UnauthenticatedPeer) -> None:
        """Take one in; who must go for it is dropped."""
        self._room(peer).put(peer)

    def advance(self, peer: UnauthenticatedPeer, level: int) -> None:
        """It has got as far as ``level``."""
        if level > peer.level and self.leave(peer):
            peer.level = level
            self._room(peer).put(peer)

    def leave(self, peer: UnauthenticatedPeer) -> bool:
        """It is gone, or unauthenticated no more; whether it was one."""
        return self._room(peer).take(peer)

    def _room(self, peer: UnauthenticatedPeer) -> Room:
        return self._rooms[peer.level // 2]
