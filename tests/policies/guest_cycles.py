"""A guest's leases as a mapper sees them, with a provider that answers every wish at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from leasekit.core.mappers import ExtendLease, GuestCycle, GuestDecision, GuestMapper, LeaseView, RequestLease, Wake
from leasekit.core.time import Instant, Term


def view(id_: str = "l", units: int = 1, start: Instant = 0, end: Instant = 1000, **changes: Any) -> LeaseView:
    """An active lease of type ``vm`` in slice ``load``."""
    fields: dict[str, Any] = {
        "id": id_,
        "name": "",
        "slice": "load",
        "type": "vm",
        "site": "a",
        "state": "active",
        "pending": "-",
        "join": "joined",
        "requested": units,
        "units": units,
        "term": Term(start, end),
        "next_term": None,
        "next_units": 0,
        "closing": False,
        "reason": "",
        "properties": {},
        "members": tuple,
    }
    return LeaseView(**{**fields, **changes})


@attrs.define
class Provider:
    """Sites with so many units each; a wish is granted at the roomiest, with fewer units if need be, or refused."""

    sites: dict[str, int]
    leases: list[LeaseView] = attrs.Factory(list)
    wishes: list[tuple[Instant, GuestDecision]] = attrs.Factory(list)
    turns: list[Instant] = attrs.Factory(list)
    refuse: Callable[[Instant, GuestDecision], bool] = lambda now, wish: False
    wake: Instant | None = 0
    held: dict[Instant, int] = attrs.Factory(dict)
    _made: int = 0

    def run(self, mapper: GuestMapper, until: Instant) -> None:
        """Every turn that the mapper asks for, before ``until``."""
        while self.wake is not None and self.wake < until:
            self.turn(mapper, self.wake)

    def turn(self, mapper: GuestMapper, now: Instant) -> list[GuestDecision]:
        """One turn at an instant; leases that have ended are gone, renewals whose time has come are in force."""
        self.leases = [self._advanced(lease, now) for lease in self.leases]
        self.leases = [lease for lease in self.leases if lease.term.end > now]
        self.turns.append(now)
        self.wake = None
        decisions = list(mapper.plan(GuestCycle(now, list(self.leases))))
        for decision in decisions:
            if isinstance(decision, Wake):
                assert decision.at > now, "a wake lies ahead"
                self.wake = decision.at if self.wake is None else min(self.wake, decision.at)
            else:
                self.wishes.append((now, decision))
                if not self.refuse(now, decision):
                    self._answer(decision, now)
        self.held[now] = sum(lease.units for lease in self.leases)
        return decisions

    def lose(self, id_: str) -> None:
        """A lease is lost, as by its site."""
        self.leases = [lease for lease in self.leases if lease.id != id_]

    @staticmethod
    def _advanced(lease: LeaseView, now: Instant) -> LeaseView:
        if lease.next_term is None or lease.next_term.start > now:
            return lease
        term = Term(lease.term.start, lease.next_term.end)
        return lease._replace(
            term=term, units=lease.next_units, requested=lease.next_units, next_term=None, state="active"
        )

    def _answer(self, decision: GuestDecision, now: Instant) -> None:
        if isinstance(decision, RequestLease):
            self._request(decision)
        else:
            assert isinstance(decision, ExtendLease)
            self._extend(decision, now)

    def _request(self, wish: RequestLease) -> None:
        site = max(self.sites, key=self._free)
        elastic = wish.properties.get("elastic") == "true"
        units = min(wish.units, self._free(site)) if elastic else wish.units
        if not 0 < units <= self._free(site):
            return
        self._made += 1
        names = {lease.name for lease in self.leases if lease.slice == wish.slice}
        assert not wish.name or wish.name not in names, "a name is used once in a slice"
        self.leases.append(
            view(
                f"l{self._made}",
                units,
                *wish.term,
                requested=wish.units,
                site=site,
                slice=wish.slice,
                type=wish.type,
                name=wish.name,
            )
        )

    def _extend(self, wish: ExtendLease, now: Instant) -> None:
        index = next(i for i, lease in enumerate(self.leases) if lease.id == wish.lease)
        lease = self.leases[index]
        assert lease.pending == "-" and lease.next_term is None and now < lease.term.end < wish.end
        units = lease.units if wish.units is None else wish.units
        units = min(units, lease.units + self._free(lease.site))
        self.leases[index] = lease._replace(
            state="active_ticketed", next_term=Term(lease.term.end, wish.end), next_units=units
        )

    def _free(self, site: str) -> int:
        return self.sites[site] - sum(max(lease.units, lease.next_units) for lease in self.leases if lease.site == site)
