"""What became of the requests of guests, from the rows and the log that guests commit.

A request is one for a lease, to extend it, or to change it. It was *granted at once*, or *later*: its lease's term
began later than it was asked for, by a tick or more, for it had to be deferred. It was *refused* if the broker said so,
or said nothing as long as an answer was of use; it was *given up* by its guest before; or it is *unanswered* in the
end. A lease *failed* if it was granted and came to nothing at its site; it was *cut* if its site or broker ended it
before its term's end, or has said that it will.

Waits are those of all leases that were granted, 0 for most: from the start that was asked for to the start that was
granted. A bounded slowdown is wait and term by term, where a term counts as ten seconds at least, as the field has it.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

import attrs

from leasekit.core.leases import service_manager as sm
from leasekit.core.reasons import Code, read
from leasekit.core.schema import Row
from leasekit.core.time import SECOND, Duration, Instant
from leasekit.emulation.metrics import BOUND

K = TypeVar("K")
_NEW: Final = f"{sm.NASCENT}/{sm.TICKETING}"
_ASKED: Final = frozenset({"ask", "extend", "modify", "replace"})
_ANSWERED: Final = (sm.EXTENDING_TICKET, sm.EXTENDING_FURTHER, sm.MODIFYING)
_LEAVING: Final = (sm.CLOSING, sm.CLOSE_WAIT)


@attrs.define
class Tally:
    """Requests counted; what they asked for and what of it came to nothing, of new leases, in unit-milliseconds."""

    asked: int = 0
    granted: int = 0
    granted_later: int = 0
    refused: int = 0
    given_up: int = 0
    failed: int = 0
    cut: int = 0
    wanted: int = 0
    missed: int = 0
    refusals: Counter[str] = attrs.Factory(Counter)
    """How many were refused, by code (:mod:`leasekit.core.reasons`)."""
    cuts: Counter[str] = attrs.Factory(Counter)
    """How many leases were cut, by code."""
    waits: array[int] = attrs.Factory(lambda: array("q"))
    """Of the leases that were granted, in milliseconds."""
    slowdown: float = 0.0
    """Their bounded slowdowns, added up."""

    def summary(self) -> dict[str, Any]:
        """The counts, and waits in seconds: None where nothing was granted, or asked for."""
        waits, leases = sorted(self.waits), len(self.waits)
        return {
            "asked": self.asked,
            "granted_at_once": self.granted - self.granted_later,
            "granted_later": self.granted_later,
            "refused": self.refused,
            "refusals": dict(sorted(self.refusals.items())),
            "given_up": self.given_up,
            "unanswered": self.asked - self.granted - self.refused - self.given_up,
            "failed": self.failed,
            "cut": self.cut,
            "cuts": dict(sorted((+self.cuts).items())),
            "unserved": self.missed / self.wanted if self.wanted else None,
            "leases": leases,
            "mean_wait_s": sum(waits) / leases / SECOND if leases else None,
            **{f"p{share}_wait_s": percentile(waits, share) for share in (50, 95, 99)},
            "mean_bounded_slowdown": self.slowdown / leases if leases else None,
        }


def percentile(waits: Sequence[Duration], share: int) -> float | None:
    """The least of some sorted waits, in seconds, that so many percent of them do not exceed; None of none."""
    return waits[math.ceil(len(waits) * share / 100) - 1] / SECOND if waits else None


@attrs.define
class _Lease:
    guest: str
    type: str
    area: int
    start: Instant
    end: Instant
    site: str = ""
    granted: bool = False
    failed: bool = False
    cut_by: str = ""


class RequestBook:
    """Requests by guest, by guest and type, and by site and type. As long as it is not known which site would have
    served a request, it counts at each that has units of its type.
    """

    def __init__(self, offered: Mapping[str, Iterable[str]], tick: Duration) -> None:
        """``offered`` has the types of units of each site."""
        self._offered = {site: frozenset(types) for site, types in offered.items()}
        self._tick = tick
        self._leases: dict[tuple[str, str], _Lease] = {}
        self._early: dict[tuple[str, str], list[tuple[str, str]]] = {}
        self.by_guest: dict[str, Tally] = {}
        self.by_type: dict[tuple[str, str], Tally] = {}
        """By guest and type."""
        self.by_site: dict[tuple[str, str], Tally] = {
            (site, type_): Tally() for site, types in self._offered.items() for type_ in types
        }

    def of_guest(self, guest: str) -> dict[str, Tally]:
        """A guest's requests, by type."""
        return {kind: tally for (name, kind), tally in self.by_type.items() if name == guest}

    def logged(self, now: Instant, guest: str, row: Row) -> None:
        """A transition of a guest's lease."""
        _, id_, event, before, _, why = row
        key, pending = (guest, id_), before.partition("/")[2]
        if event in _ASKED:
            self._count(key, "asked")
        elif event == "ticket":
            if before == _NEW or pending in _ANSWERED:
                self._count(key, "granted")
        elif (event == "ticket_refused" and pending != sm.CLOSE_WAIT) or (event == "expire" and before == _NEW):
            reason = read(why)
            self._count(key, "refused", Code.NO_TICKET if reason is None else reason.root.code)
        elif (event == "close" and before == _NEW) or (event == "undo" and pending in _ANSWERED):
            self._count(key, "given_up")
        elif event == "notice" or (event == "lost" and before.startswith(sm.ACTIVE) and pending not in _LEAVING):
            known = self._leases.get(key)
            if known is not None and (known.cut_by or now < known.end):
                reason = read(why)
                self._cut(known, "unknown" if reason is None else reason.code)

    def _cut(self, lease: _Lease, code: str) -> None:
        """A lease ends early, for what is said last: who tells that it will end may not tell why."""
        if not lease.cut_by:
            self._add(lease, "cut", code)
        else:
            for tally in self._tallies(lease):
                tally.cuts[lease.cut_by] -= 1
                tally.cuts[code] += 1
        lease.cut_by = code

    def lease(self, guest: str, row: Row) -> None:
        """A row of a guest's lease."""
        id_, _, _, peer, kind, state, _, units, start, end, *_ = row
        key = guest, str(id_)
        known = self._leases.get(key)
        if known is None:
            known = self._leases[key] = _Lease(guest, str(kind), int(units) * (end - start), int(start), int(end))
        early = self._early.pop(key, ())
        if peer in self._offered and known.site != peer:
            if not known.site:
                self._leave_others(known, str(peer))
            known.site = str(peer)
        for what, code in early:
            if what == "granted" and not known.granted:
                self._grant(known, int(start), int(end))
            else:
                self._add(known, what, code)
        known.end = int(end)
        if state == sm.FAILED and known.granted and not known.failed:
            known.failed = True
            self._add(known, "failed")

    def _leave_others(self, lease: _Lease, site: str) -> None:
        """The request was one of those that the other sites might have served."""
        for (other, kind), tally in self.by_site.items():
            if kind == lease.type and other != site:
                tally.asked -= 1
                tally.wanted -= lease.area

    def _grant(self, lease: _Lease, start: Instant, end: Instant) -> None:
        lease.granted = True
        wait, length = start - lease.start, max(end - start, BOUND)
        for tally in self._tallies(lease):
            tally.granted += 1
            tally.granted_later += wait >= self._tick
            tally.waits.append(wait)
            tally.slowdown += max(1.0, (wait + end - start) / length)

    def _count(self, key: tuple[str, str], what: str, code: str = "") -> None:
        """What concerns a new lease is counted with its row, which comes with the same commit, behind the log: it says
        at which site.
        """
        known = self._leases.get(key)
        if known is None or not known.granted:
            self._early.setdefault(key, []).append((what, code))
        else:
            self._add(known, what, code)

    def _add(self, lease: _Lease, what: str, code: str = "") -> None:
        for tally in self._tallies(lease):
            setattr(tally, what, getattr(tally, what) + 1)
            if code:
                (tally.cuts if what == "cut" else tally.refusals)[code] += 1
            if not lease.granted:
                tally.wanted += lease.area * (what == "asked")
                tally.missed += lease.area * (what in ("refused", "given_up"))

    def _tallies(self, lease: _Lease) -> list[Tally]:
        mine = _tally(self.by_guest, lease.guest)
        return [mine, _tally(self.by_type, (lease.guest, lease.type)), *self._sites(lease)]

    def _sites(self, lease: _Lease) -> list[Tally]:
        """The lease's site; as long as it has none, each that has units of the type: any could have served it."""
        if lease.site:
            return [_tally(self.by_site, (lease.site, lease.type))]
        return [tally for (_, kind), tally in self.by_site.items() if kind == lease.type]


def _tally(of: dict[K, Tally], key: K) -> Tally:
    """A key's tally: made only where there is none, for it has much in it."""
    found = of.get(key)
    if found is None:
        found = of[key] = Tally()
    return found
