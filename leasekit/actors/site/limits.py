"""What a site's delegations allow of what is redeemed under them, beyond what each claim says by itself."""

from __future__ import annotations

from leasekit.actors.issued import Issued
from leasekit.actors.kernel import Kernel
from leasekit.actors.keyring import Keyring
from leasekit.actors.reports import Reports
from leasekit.actors.site.waiting import DemandQueue
from leasekit.core.claims.evidence import (
    in_words,
)
from leasekit.core.claims.ticket import Ticket, decode_ticket
from leasekit.core.errors import TicketError
from leasekit.core.leases import authority as au
from leasekit.core.leases import delegation as deleg
from leasekit.core.leases.records import SiteLease
from leasekit.core.reasons import Code, Reason
from leasekit.core.time import Instant
from leasekit.core.timetable.profile import FOREVER, Profile


class DelegationLimits:
    """Limits by what was taken back, and by what stands for something else."""

    def __init__(
        self, kernel: Kernel, keyring: Keyring, issued: Issued, demands: DemandQueue, reports: Reports
    ) -> None:
        self._kernel = kernel
        self._keyring = keyring
        self._issued = issued
        self._demands = demands
        self._reports = reports

    def check_reclaimed(self, ticket: Ticket) -> None:
        """Raises ``TicketError`` if its delegation was taken back as of its start."""
        root = ticket.root.digest
        for record in self._issued:
            if record.digest == root and record.statement and 0 <= record.reclaimed <= ticket.leaf.term.start:
                at = in_words(record.reclaimed)
                raise TicketError(Code.RECLAIMED, f"{self._keyring.name} took this delegation back as of {at}")

    def check_line(self, ticket: Ticket) -> None:
        """Of what was given in the place of something else its holder gives no more than the most that it ever had:
        the tree, which counts each by itself, does not see that. Raises ``TicketError``.
        """
        leaf, root = ticket.leaf, ticket.root.digest
        lines = {one.base for one in self._issued if one.digest == root}
        live = (one for one in self._issued if one.base in lines and one.state not in (deleg.REFUSED, deleg.ENDED))
        claims = {one.digest: one for one in live if one.term.overlaps(leaf.term)}
        if len(claims) < 2:
            return
        most = max(decode_ticket(one.ticket).leaf.capacity for one in claims.values())
        used = Profile(0, self._kernel.now)
        for lease in self._demands.leases.values():
            if lease.ended < 0 and lease.pending != au.CLOSING and lease.origin in claims:
                for units, start, end in _held_by(lease):
                    if max(start, self._kernel.now) < end:
                        used.add(max(start, self._kernel.now), end, units)
        at = used.first_at_least(max(leaf.term.start, self._kernel.now), most - leaf.units + 1)
        if at < leaf.term.end:
            giver = self._keyring.called(ticket.root.holder)
            text = f"{giver} gives more than the {most} units of {leaf.type!r} that it has"
            self._reports.keep(leaf.id, Reason(Code.OVERDELEGATED, detail=text))
            raise TicketError(Code.OVERDELEGATED, f"{text}: {used.value(at)} are in use at {in_words(at)}")

    def deadline(self, ticket: Ticket) -> Instant:
        """When leases from a ticket's delegation are over at the latest, if it was taken back."""
        root = ticket.root
        given = [record.deadline for record in self._issued if record.digest == root.digest]
        return min((deadline for deadline in given if deadline >= 0), default=root.term.end)


def _held_by(lease: SiteLease) -> list[tuple[int, Instant, Instant]]:
    """How many units a lease has when: units, from, until."""
    last = FOREVER if lease.noticed < 0 else lease.noticed
    starts = [one.term.start for one in lease.accepted]
    own = (lease.wanted, lease.term.start, min(lease.term.end, last, *starts))
    return [own, *((one.units, one.term.start, min(one.term.end, last)) for one in lease.accepted)]
