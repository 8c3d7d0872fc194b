"""The requests of a broker that wait for its mapper, and how many each peer may have."""

from __future__ import annotations

from collections.abc import Iterable

from leasekit.actors.keyring import Keyring
from leasekit.actors.settings import REQUEST
from leasekit.core.errors import CommandError, RemoteError
from leasekit.core.leases.records import BrokerLease
from leasekit.core.reasons import Code
from leasekit.core.requests import Options
from leasekit.core.words import counted


class RequestQueue:
    """Leases whose request waits, in order of arrival; at most ``most`` at once."""

    def __init__(self, keyring: Keyring, most: int) -> None:
        self._keyring = keyring
        self._most = most
        self._of: dict[str, int] = {}
        self.leases: dict[str, BrokerLease] = {}
        self.options: dict[str, Options] = {}
        """What each says of how it may be granted; questions have theirs here as well."""

    def __contains__(self, lease: str) -> bool:
        return lease in self.leases

    def __len__(self) -> int:
        return len(self.leases)

    def add(self, lease: BrokerLease, options: Options) -> None:
        """The lease's request waits for the mapper."""
        self.leases[lease.id], self.options[lease.id] = lease, options
        self._of[lease.holder] = self._of.get(lease.holder, 0) + 1

    def remove(self, lease: BrokerLease) -> None:
        """Its request is settled."""
        if self.leases.pop(lease.id, None) is not None:
            self._of[lease.holder] -= 1
            if not self._of[lease.holder]:
                del self._of[lease.holder]
        self.options.pop(lease.id, None)

    def waiting_ids(self) -> Iterable[str]:
        """The leases whose requests wait."""
        return self.leases

    def waiting(self, lease: str) -> BrokerLease:
        """The lease of that id, whose request waits. Raises ``CommandError`` if none does."""
        waiting = self.leases.get(lease)
        if waiting is None:
            raise CommandError(f"no request of lease {lease!r} is waiting (any more)")
        return waiting

    def check_room(self, peer: str) -> None:
        """Raises ``RemoteError`` if ``peer`` has to wait until it may ask for more.

        Half of the places are kept for all peers in equal shares, the others are for whoever comes first: so one that
        asks without end leaves each other its share.
        """
        name, most, mine = self._keyring.name, self._most, self._of.get(peer, 0)
        if len(self) >= most:
            raise RemoteError(Code.BUSY, f"{name} has {len(self)} requests waiting, its limit: try again later")
        limit = self._keyring.peers[peer].open_requests
        if mine >= limit:
            waiting = counted(limit, "request")
            raise RemoteError(Code.BUSY, f"{peer} has {waiting} waiting at {name}, its limit: try again later")
        if len(self) < most // 2:
            return
        askers = sum(REQUEST in known.may for known in self._keyring.peers.values())
        share = max(1, (most - most // 2) // max(1, askers))
        beyond = sum(count - share for count in self._of.values() if count > share)
        if mine >= share and beyond >= most // 2:
            raise RemoteError(
                Code.BUSY,
                f"{peer} has {mine} requests waiting at {name}, its share is {share} of {most}: try again later",
            )
