"""What became of the requests of an emulation's guests, from the rows that they commit.

A request is one for a lease, to extend it, or to change it. It was *refused* if the broker said so, or said nothing as
long as an answer was of use; it was *given up* by its guest before. A lease *waited* if its term began later than it
was asked for, by a tick or more: it had to be deferred. It *failed* if it came to nothing at its site.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from leasekit.core.leases import service_manager as sm
from leasekit.core.schema import Row
from leasekit.core.time import SECOND, Duration, Instant

_ASKED = ("ask", "extend", "modify")


@attrs.define
class Tally:
    """Requests counted; ``waits`` are those of the leases that waited, added up in milliseconds."""

    asked: int = 0
    refused: int = 0
    given_up: int = 0
    failed: int = 0
    waited: int = 0
    waits: Duration = 0

    def summary(self) -> dict[str, Any]:
        """The counts, and how long those that waited did, in the mean."""
        mean = self.waits / self.waited / SECOND if self.waited else 0.0
        return {**attrs.asdict(self, filter=lambda field, _: field.name != "waits"), "mean_wait_s": mean}


@attrs.define
class _Lease:
    guest: str
    type: str
    start: Instant
    site: str = ""
    granted: bool = False
    failed: bool = False


class RequestBook:
    """Requests by guest, and by site and type."""

    def __init__(self, offered: Mapping[str, Iterable[str]], tick: Duration) -> None:
        """``offered`` has the types of units of each site."""
        self._offered = {site: frozenset(types) for site, types in offered.items()}
        self._tick = tick
        self._leases: dict[tuple[str, str], _Lease] = {}
        self._early: dict[tuple[str, str], list[str]] = {}
        self.by_guest: dict[str, Tally] = {}
        self.by_site: dict[tuple[str, str], Tally] = {
            (site, type_): Tally() for site, types in self._offered.items() for type_ in types
        }

    def logged(self, guest: str, lease: str, event: str, before: str) -> None:
        """A transition of a guest's lease."""
        new = before == f"{sm.NASCENT}/{sm.TICKETING}"
        if event in _ASKED:
            self._count(guest, lease, "asked")
        elif (event == "ticket_refused" and not before.endswith(sm.CLOSE_WAIT)) or (event == "expire" and new):
            self._count(guest, lease, "refused")
        elif event == "close" and new:
            self._count(guest, lease, "given_up")

    def lease(self, guest: str, row: Row) -> None:
        """A row of a guest's lease."""
        id_, _, _, peer, kind, state, _, _, start, *_ = row
        key = guest, str(id_)
        known = self._leases.get(key)
        if known is None:
            known = self._leases[key] = _Lease(guest, str(kind), int(start))
        if peer in self._offered:
            known.site = str(peer)
        if state == sm.TICKETED and not known.granted:
            known.granted = True
            if start - known.start >= self._tick:
                for tally in (self._tally(guest), *self._sites(known)):
                    tally.waited += 1
                    tally.waits += start - known.start
        if state == sm.FAILED and known.granted and not known.failed:
            known.failed = True
            self._add(known, "failed")
        for what in self._early.pop(key, ()):
            self._add(known, what)

    def _count(self, guest: str, lease: str, what: str) -> None:
        known = self._leases.get((guest, lease))
        if known is None:  # its row comes with the same commit, behind the log
            self._early.setdefault((guest, lease), []).append(what)
        else:
            self._add(known, what)

    def _add(self, lease: _Lease, what: str) -> None:
        for tally in (self._tally(lease.guest), *self._sites(lease)):
            setattr(tally, what, getattr(tally, what) + 1)

    def _tally(self, guest: str) -> Tally:
        return self.by_guest.setdefault(guest, Tally())

    def _sites(self, lease: _Lease) -> list[Tally]:
        """The lease's site; as long as it has none, each that has units of the type: any could have served it."""
        if lease.site:
            return [self.by_site.setdefault((lease.site, lease.type), Tally())]
        return [tally for (_, kind), tally in self.by_site.items() if kind == lease.type]
