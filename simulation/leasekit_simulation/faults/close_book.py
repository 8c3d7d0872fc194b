"""The book of closes: what a guest and a site still do for a lease that is being closed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from leasekit.core.leases import authority
from leasekit.core.schema import Row
from leasekit.core.time import Instant
from leasekit_simulation.faults.checkers import Listening, must, unit_of

ENDING: Final = ("/closing", "/close_wait", "closed/-", "failed/-")
"""How the states of a lease end that only gets rid of what it has."""


class CloseChecker(Listening):
    """A close is never held back, not by a set-up either. A guest that has agreed to close a lease goes on to nothing
    but its end. A site that ends a lease tears down in the same step all that was set up for it, ready or not, and
    sets nothing up for it any more.
    """

    def __init__(self, sites: Sequence[str]) -> None:
        super().__init__()
        self._sites = frozenset(sites)
        self._agreed: set[tuple[str, str]] = set()
        self._ended: set[tuple[str, str]] = set()
        self._has: dict[tuple[str, str], dict[str, None]] = {}

    def closed(self, guest: str, lease: str) -> None:
        """A guest has answered that a lease is being closed."""
        self._agreed.add((guest, lease))

    def committed(self, at: Instant, actor: str, rows: Sequence[Row]) -> None:
        """Check what has become of leases that are being closed."""
        ends = []
        for _, subject, event, _, after, why in rows:
            lease = actor, subject
            if event.startswith("unit "):
                self._unit(lease, unit_of(why), after)
            elif actor not in self._sites:
                over = "/" not in after or after.endswith(ENDING)
                must(over or lease not in self._agreed, f"{actor}: {subject} is being closed, and becomes {after}")
            elif after.endswith(ENDING):
                ends.append(lease)
                self._ended.add(lease)
            elif event == "redeem":
                self._ended.discard(lease)  # it has forgotten the lease of that name
        for lease in ends:
            must(not self._has.get(lease), f"{actor} ends {lease[1]}, and keeps {sorted(self._has.get(lease, ()))}")

    def _unit(self, lease: tuple[str, str], name: str, after: str) -> None:
        if after == authority.SETUP:
            must(lease not in self._ended, f"{lease[0]}: {name} is set up for {lease[1]}, which is being closed")
            self._has.setdefault(lease, {})[name] = None
        elif after in (authority.TEARDOWN, authority.OUT):
            self._has.get(lease, {}).pop(name, None)
