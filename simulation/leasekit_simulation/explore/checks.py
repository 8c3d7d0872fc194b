"""What must hold in every joint state, whatever the actors think: the explorer's own book of units, the literal tables
for what is logged, and what is stored against what is in memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Self

import attrs

from leasekit.core.leases import authority, broker, delegation, returns, service_manager
from leasekit.core.leases.machine import NONE
from leasekit.core.schema import Row
from leasekit.core.steps import Action
from leasekit.stores.memory import MemoryStore

TABLES: Final[Mapping[str, Sequence[Any]]] = {
    "guest": (service_manager.TABLE, returns.TABLE),
    "broker": (broker.TABLE, delegation.TABLE),
    "site": (authority.TABLE, delegation.TABLE),
}
NOTES: Final = frozenset({
    "mapper", "complaint", "joined", "blocked_redeem", "give_back", "request", "redeem", "taken", "delegate", "notice",
    "report", "inventory", "not_taken",
})  # fmt: skip
"""Lines of the log that are no transitions; what is neither must never be written: the broker is honest."""
JOINED: Final = frozenset({"joining", "joined", "leaving"})


class Violated(Exception):
    """An invariant does not hold in a joint state."""


def must(fine: bool, text: str) -> None:
    """Raise ``Violated`` unless it is fine."""
    if not fine:
        raise Violated(text)


@attrs.frozen(slots=True)
class Holder:
    """Which lease a site's unit was last set up for, and what was last done to it."""

    lease: str = ""
    op: str = ""
    number: int = 0

    def start(self, action: Action) -> Self:
        """An action of the site's begins: what is new must suit what was done before, what is done again must be it."""
        what = f"{action.op} of {action.unit} for {action.lease}"
        if action.number == self.number:
            must(action.op == self.op, f"{what}: its number was that of a {self.op}")
            return self
        must(action.number > self.number, f"{what}: a later action, {self.op}, was begun before")
        if action.op == "setup":
            must(not self.lease, f"{what}: {self.lease} still has it")
        else:
            must(self.lease == action.lease, f"{what}: it is {self.lease or 'nobody'}'s")
            must(action.op == "teardown" or self.op != "teardown", f"{what}: it is being torn down")
        return attrs.evolve(self, lease=action.lease, op=action.op, number=action.number)

    def end(self, number: int) -> Self:
        """The site hears that an action has ended."""
        if self.op == "teardown" and self.number == number:
            return attrs.evolve(self, lease="")
        return self


def check_log(actor: str, rows: Sequence[Row], at: dict[str, str]) -> None:
    """Every transition that an actor writes down is one of its tables, and a lease's begins where the last one ended:
    ``at`` says where that was, and is kept up to date.
    """
    for _, subject, event, before, after, _ in rows:
        if event.startswith("unit "):
            found = authority.UNIT_TABLE.get((before, NONE), {}).get(event.removeprefix("unit "))
            must(found == (after, NONE), f"a unit's {event}: {before} -> {after} is not in its table")
            continue
        if event in NOTES and "/" not in before:
            if not before and "/" in after:
                at[subject] = after
            continue
        old, new = tuple(before.split("/")), tuple(after.split("/"))
        tables = [table for table in TABLES[actor] if table.get(old, {}).get(event) == new]
        must(bool(tables), f"{actor}: {event}: {before} -> {after} is in no table")
        if tables[0] is not returns.TABLE and subject in at:
            must(at[subject] == before, f"{actor}: {subject} went on from {before}, it was {at[subject]}")
            at[subject] = after


def check_stored(actor: Any, store: MemoryStore) -> None:
    """What an actor has in memory is what its store has, as far as people can read it."""
    for id_, lease in actor.leases.items():
        row = store.get("leases", id_)
        must(row is not None, f"{actor.name} has lease {id_} in memory alone")
        assert row is not None
        mine = lease.row()
        must(mine[5:7] == row[5:7] and mine[1:3] == row[1:3], f"{actor.name}: {id_} is {mine[5:7]}, stored {row[5:7]}")


def check_booked(actor: Any) -> None:
    """What a broker's leases hold is booked in its timetables, and what a site's do in its calendars."""
    if actor.name not in ("broker", "site"):
        return
    for lease in actor.leases.values():
        if lease.ended >= 0 or lease.pending == authority.CLOSING:
            continue
        if actor.name == "site":
            booked = actor.calendars.of(lease.type).get(lease.claim)
            fine = lease.term.end <= actor.now or (booked is not None and booked[0] == lease.wanted)
            must(fine, f"{lease.id} has {lease.wanted} units at the site until {lease.term.end}, booked is {booked}")
            continue
        for claim in lease.claims:
            booked = actor.book.table(claim.source).get(claim.key)
            fine = claim.until <= max(actor.now, claim.term.start) or (
                booked is not None and booked[0] == claim.units and booked[1].end == claim.until
            )
            must(fine, f"{lease.id} was granted {claim.units} units until {claim.until}, booked is {booked}")


def check_actor(actor: Any) -> dict[str, tuple[str, ...]]:
    """No unit is in two leases of a site; returns the units that are in use, with their leases: at a site as its
    records of units say, which must suit those of leases, at a guest those that are joined.
    """
    check_booked(actor)
    using: dict[str, tuple[str, ...]] = {}
    if actor.name == "guest":
        for lease in actor.leases.values():
            for name, unit in lease.units.items():
                if unit.state in JOINED:
                    using[name] = (*using.get(name, ()), lease.id)
    elif actor.name == "site":
        for lease in actor.leases.values():
            for name in lease.units:
                must(name not in using, f"unit {name} is in {lease.id} and in {using.get(name)}")
                using[name] = (lease.id,)
                unit = actor.units[name]
                must(lease.id in (unit.lease, unit.promised), f"{lease.id} has {name}, which is {unit.lease or 'free'}")
        using = {unit.id: (unit.lease,) for unit in actor.units if unit.lease}
    return using


def said_of_units(actor: Any) -> dict[str, int]:
    """The last update of each lease: at a site of those whose units have settled, at a guest that it has heard."""
    if actor.name == "guest":
        return {lease.id: lease.heard.site for lease in actor.leases.values()}
    if actor.name == "site":
        return {lease.id: lease.update for lease in actor.leases.values() if lease.pending != authority.PRIMING}
    return {}


def check_units(held: Mapping[str, tuple[str, ...]], holders: Mapping[str, Holder]) -> None:
    """What the site says of its units is what its drivers were told."""
    booked = {name: (holder.lease,) for name, holder in holders.items() if holder.lease}
    must(held == booked, f"the site says {dict(held)} of its units, drivers were told {booked}")


def check_joined(joined: Mapping[str, tuple[str, ...]], heard: Mapping[str, int], said: Mapping[str, int]) -> None:
    """A unit is joined in one lease of a guest, but for those of which it has not heard yet that they have lost it."""
    for name, leases in joined.items():
        if len(leases) > 1:
            known = [id_ for id_ in leases if heard[id_] == said.get(id_)]
            must(len(known) <= 1, f"unit {name} is joined in {' and '.join(known)}")
