"""Extends and modifies of a guest's leases, by its operator's commands and its mapper's decisions.

A change is checked before anything happens; one that can't be carried out changes nothing and says why.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from leasekit.actors.dispatch import command
from leasekit.actors.guest.decisions import check_units, joint, structure
from leasekit.actors.guest.leases import Leases
from leasekit.actors.guest.limits import Limits
from leasekit.actors.guest.redeems import Redeems
from leasekit.actors.guest.tickets import Tickets
from leasekit.actors.kernel import Kernel
from leasekit.core.errors import CommandError
from leasekit.core.leases import service_manager as sm
from leasekit.core.leases.records import Asked, GuestLease
from leasekit.core.mappers import ExtendLease, ModifyLease
from leasekit.core.protocol.messages import EXTEND, MODIFY
from leasekit.core.reasons import mark, said
from leasekit.core.time import SECOND, Instant, Term


class LeaseChanges:
    """What becomes of leases that a guest has."""

    def __init__(self, kernel: Kernel, records: Leases, tickets: Tickets, limits: Limits, redeems: Redeems) -> None:
        self._kernel = kernel
        self._records = records
        self._tickets = tickets
        self._limits = limits
        self._redeems = redeems

    @command("lease.extend")
    def _extend(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        return self._records.describe(self.extend(structure(ExtendLease, arguments)))

    @command("lease.modify")
    def _modify(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        return self._records.describe(self.modify(structure(ModifyLease, arguments)))

    @command("lease.undo_extend")
    def _undo(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        lease = self._records.find(str(arguments.get("lease", "")))
        self._redeems.undo_extend(lease)
        return self._records.describe(lease)

    def extend(self, wish: ExtendLease) -> GuestLease:
        """Renew a lease, growing or shrinking it. Raises ``CommandError``."""
        lease, asked, give_up = self.extension(wish)
        self._redeems.extend(lease, asked, wish.victims, give_up)
        return lease

    def extension(self, wish: ExtendLease) -> tuple[GuestLease, Asked, Instant]:
        """The lease, what its broker is asked, and when the answer comes too late. Raises ``CommandError``."""
        lease = self._records.find(wish.lease)
        self._must_allow(lease, "extend")
        units = _new_units(lease, wish.units, wish.victims, further=True)
        end = lease.following[-1].term.end if lease.following else lease.end
        if wish.end <= end:
            raise CommandError(f"end: found {mark(wish.end)}, it must be later than the lease's end, {mark(end)}")
        give_up = self._limits.leaves_before(end)
        if give_up <= self._kernel.now:
            raise CommandError(f"lease {lease.id} ends at {mark(end)}: too late to extend it")
        self._tickets.check_returned(lease)
        return lease, Asked(EXTEND, units, Term(end, wish.end), lease.site, dict(wish.properties)), give_up

    def modify(self, wish: ModifyLease) -> GuestLease:
        """Change a lease in mid-term: by a replacement ticket if units or end change, at the site alone otherwise. What
        was granted to go on from its term stands. Raises ``CommandError``.
        """
        lease, asked = self.modification(wish)
        self._redeems.take_in_hand(lease)
        self._redeems.change(
            lease, None if wish.configuration is None else {**lease.configuration, **wish.configuration}, wish.victims
        )
        if asked is None:
            self._redeems.reconfigure(lease, said("configuration"))
        else:
            limits = self._limits
            self._redeems.modify(
                lease, asked, limits.redeem_by(lease) if lease.further else limits.leaves_before(lease.end)
            )
        return lease

    def modification(self, wish: ModifyLease) -> tuple[GuestLease, Asked | None]:
        """The lease, and what its broker is asked, if anything. Raises ``CommandError``."""
        lease = self._records.find(wish.lease)
        self._must_allow(lease, "modify")
        self._must_have_time(lease)
        held, now = lease.approved, self._kernel.now
        assert held is not None, "an active lease has a ticket"
        units = _new_units(lease, wish.units, wish.victims)
        end = wish.end if wish.end is not None else lease.end
        if end <= now:
            raise CommandError(f"end: found {mark(end)}, it is {mark(now)} here: close the lease instead")
        start = max(now, held.term.start)
        if end <= start:
            raise CommandError(
                f"end: found {mark(end)}, it must be later than the start of the lease's term, {mark(start)}"
            )
        if end != lease.end and lease.following:
            raise CommandError(
                f"end: lease {lease.id} goes on from {mark(lease.end)} to {mark(lease.following[-1].term.end)}, "
                f"so its end can't "
                f"be modified; `leasekit lease extend {lease.name or lease.id} --undo` takes an extension back first"
            )
        if end != lease.end:
            self._tickets.check_returned(lease)
        if wish.configuration is None and units == held.units and end == lease.end:
            raise CommandError("nothing to modify: give configuration, units or end")
        if units == held.units and end == lease.end:
            return lease, None
        return lease, Asked(MODIFY, units, Term(start, end), lease.site, {})

    @staticmethod
    def _must_allow(lease: GuestLease, event: str) -> None:
        if sm.MACHINE.allows((lease.state, lease.pending), event) and not lease.closing:
            return
        raise CommandError(f"lease {lease.id} is {joint(lease)}: only an active lease with nothing pending can {event}")

    def _must_have_time(self, lease: GuestLease) -> None:
        """A modify may come between a lease and its extension only if it can be settled before."""
        if lease.pending != sm.EXTENDING_LEASE:
            return
        which = f"lease {lease.id} is about to go on by its extension, at {mark(lease.end)}"
        if not lease.is_promised:
            raise CommandError(f"{which}, which site {lease.site} has yet to confirm: modify it when that has come")
        settings = self._kernel.settings
        least = settings.clock_skew + settings.retry_first
        if self._limits.redeem_by(lease) - self._kernel.now < least:
            raise CommandError(
                f"{which}: too late to modify it before, which may take {least / SECOND:g} s; modify it from then on"
            )


def _new_units(lease: GuestLease, units: int | None, victims: tuple[str, ...], *, further: bool = False) -> int:
    """How many units are wanted; ``further``: from the end of the tickets in hand on. Raises ``CommandError``."""
    assert lease.approved is not None, "an active lease has a ticket"
    later = lease.following[-1] if further and lease.following else None
    held = (later or lease.approved).units
    have = len(lease.units) if later is None else later.units
    if units is None:
        units = held - len(victims) if victims else held
    check_units(units)
    unknown = [name for name in victims if name not in lease.units]
    if unknown:
        raise CommandError(f"victims: {unknown[0]!r} is no unit of lease {lease.id}; it has {', '.join(lease.units)}")
    if len(set(victims)) != len(victims) or len(victims) > max(0, have - units):
        raise CommandError(
            f"victims: {len(victims)} units are named, going from {have} to {units} units gives up "
            f"{max(0, have - units)}, each named once"
        )
    return units
