"""Guests that a broker makes known at sites, and sites to guests, so that nobody has to tell them of each other."""

from __future__ import annotations

from leasekit.actors.kernel import Kernel
from leasekit.actors.keyring import Keyring
from leasekit.actors.notices import Notices
from leasekit.actors.peering import Peering
from leasekit.core.leases.relations import Delegation
from leasekit.core.protocol.messages import Introduce
from leasekit.core.time import DAY, Instant


class Introductions:
    """What a broker has said of whom to whom. It says nothing unless it is to ``endorse``."""

    def __init__(self, kernel: Kernel, keyring: Keyring, peering: Peering, notices: Notices, endorse: bool) -> None:
        self._kernel = kernel
        self._keyring = keyring
        self._peering = peering
        self._notices = notices
        self._endorse = endorse
        self._told: dict[tuple[str, str], tuple[Instant, Instant]] = {}
        self._endorsements: dict[str, bytes] = {}

    def introduce(self, guest: str, source: Delegation, until: Instant) -> bytes:
        """If the settings say so, make a guest, whose lease ends at ``until``, known at the site of ``source``. Returns
        the site's endorsement for the guest.
        """
        site = source.site
        holder, place = self._keyring.peers.get(guest), self._keyring.peers.get(site)
        if not self._endorse or holder is None or place is None:
            return b""
        at, told = self._told.get((guest, site), (-DAY, 0))
        if at + DAY <= self._kernel.now or told + DAY < until:  # or the site may forget, before the lease begins
            self._told[guest, site] = self._kernel.now, max(told, until)
            number = self._kernel.next("serial")
            message = Introduce(guest, number, self._peering.endorsement(holder), until)
            # Due for longer than the lease is: the guest's next one may not be introduced anew.
            self._notices.owe(f"introduce:{guest}@{site}", site, guest, number, message, max(until, source.term.end))
        if site not in self._endorsements:
            self._endorsements[site] = self._peering.endorsement(place)
        return self._endorsements[site]

    def unsay(self, name: str) -> None:
        """What was said of a peer may not hold any more: it is said anew."""
        self._told = {pair: told for pair, told in self._told.items() if name not in pair}
        self._endorsements.pop(name, None)
