"""What a site delegates to brokers, of the units that its settings name; and what that allows of what is redeemed under
it, beyond what each claim says by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import attrs

from leasekit.actors.issued import Issued
from leasekit.actors.kernel import Kernel
from leasekit.actors.peering import Keyring
from leasekit.actors.served import Reports
from leasekit.actors.settings import AuthoritySettings, DelegationSpec
from leasekit.actors.site.claims import VOID, SiteClaims
from leasekit.actors.site.units import Inventory
from leasekit.core.claims.claim import DEGREE_ONE, Ticket, decode_ticket, delegate_root
from leasekit.core.claims.evidence import in_words
from leasekit.core.errors import CommandError, TicketError
from leasekit.core.leases import authority as au
from leasekit.core.leases import delegation as deleg
from leasekit.core.leases.records import SiteLease
from leasekit.core.leases.relations import Delegation
from leasekit.core.properties import digest_properties
from leasekit.core.reasons import Code, Reason
from leasekit.core.time import Instant, Term
from leasekit.core.timetable.profile import FOREVER, Profile


@attrs.define(eq=False, slots=False)
class SiteDelegations:
    """A site's side of :class:`Issued`: see :class:`leasekit.actors.issued.Issuer`."""

    _kernel: Kernel
    _keyring: Keyring
    _inventory: Inventory
    _claims: SiteClaims
    _settings: AuthoritySettings
    issued: Issued = attrs.field(init=False)
    reclaimed: list[Callable[[Delegation], None]] = attrs.field(factory=list, init=False)
    """Who is told, in order, of a delegation that is taken back."""
    _begun: bool = attrs.field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        self.issued = Issued(self._kernel, self._keyring, self)

    def begin(self) -> bool:
        """It is known what time it is: what the settings say is given, for the first time or again. Returns whether
        that was not known before.
        """
        if self._begun:
            return False
        self._begun = True
        self.issued.give(again=True)
        for record in list(self.issued):
            if record.state in (deleg.HELD, deleg.OFFERING) and record.type not in self._inventory.types:
                self.issued.take_back(
                    record, self._kernel.now, -1, Reason(Code.TYPE_GONE, self._keyring.name, record.type)
                )
        return True

    def delegation_specs(self) -> Sequence[DelegationSpec]:
        """What the settings say is to be given."""
        return self._settings.delegations

    def most_of(self, spec: DelegationSpec) -> int:
        """How many units there are to give."""
        return self._inventory.total(spec.type) * spec.degree // DEGREE_ONE

    def check_wish(self, line: str, type_: str, units: int) -> None:
        """It must be of a type that there is."""
        if type_ not in self._inventory.types:
            raise CommandError(f"type: found {type_!r}, {self._keyring.name} has {', '.join(self._inventory.types)}")

    def check_given_in_all(self, type_: str) -> None:
        """No more than there is."""
        specs = [spec for spec in self.issued.wanted_specs(whole=True).values() if spec.type == type_]
        most, wanted = max(self.most_of(spec) for spec in specs), sum(spec.units for spec in specs)
        if wanted > most:
            shares = ", ".join(f"{spec.units} for {spec.broker}" for spec in specs)
            raise CommandError(
                f"units: {wanted} of {type_!r} in all ({shares}), {self._keyring.name} has {most} to give"
            )

    def _room(self, spec: DelegationSpec, line: str, term: Term) -> int:
        """How many units nobody else has been given over ``term``, or goes on to use of what was taken from it."""
        others: dict[str, int] = {}
        enough = {one.base for one in self.issued if one.state == deleg.HELD and one.beyond <= self._kernel.now}
        for one in self.issued:
            goes_on = one.freed > self._kernel.now and one.base not in enough
            used = one.state in (deleg.OFFERING, deleg.HELD, deleg.RECLAIMING) or goes_on
            if one.type == spec.type and one.base != line and used and one.term.overlaps(term):
                others[one.base] = max(others.get(one.base, 0), one.units)
        return self.most_of(spec) - sum(others.values())

    def delegate(self, id_: str, spec: DelegationSpec, last: Delegation | None, *, instead: bool = False) -> bool:
        """See :class:`Issuer`."""
        properties = self._inventory.properties(spec.type)
        start, end = self.issued.stretch(spec, last, instead=instead)
        if instead and last is not None:
            start = last.term.start  # nothing that was asked for before it was taken falls between two claims
        shrinks = instead and last is not None and spec.units <= last.units
        if not shrinks and self._room(spec, self.issued.line_name(spec), Term(start, end)) < spec.units:
            return False  # until others have given back what they go on to use
        ticket = delegate_root(
            self._keyring.signer,
            holder=self._keyring.key_of(spec.broker),
            type=spec.type,
            units=spec.units,
            term=Term(start, end),
            serial=self._kernel.next("serial"),
            degree=spec.degree,
            properties=digest_properties(properties),
        )
        self.issued.offer(id_, spec.broker, ticket, properties, line=self.issued.line_name(spec))
        return True

    def let_go(self, record: Delegation, until: Instant) -> None:
        """What the taker granted before may go on until then."""
        record.freed = max(self._kernel.now, until)

    def offer_taken(self, record: Delegation) -> None:
        """See :attr:`Issued.taken`."""

    def is_own_claim(self, peer: str, ticket: Ticket, offered: Delegation) -> bool:
        """The site's own signature is on it, and it is a claim that the site does not know as void."""
        leaf = ticket.leaf
        known = self._claims.get(leaf.digest)
        if len(ticket.chain) > 1 or leaf.type != offered.type or leaf.term.end <= self._kernel.now:
            return False
        holder = self._keyring.key_among(peer, leaf.holder)
        self._keyring.verify(ticket, root=self._keyring.own_among(leaf.issuer), holder=holder)
        self._kernel.counters["serial"] = max(self._kernel.counters["serial"], leaf.serial)
        return known is None or known.state != VOID

    def offer_refused(self, record: Delegation) -> None:
        """The claim is void, as it may be given anew: who uses it all the same is refused."""
        leaf = decode_ticket(record.ticket).leaf
        if leaf.digest not in self._claims.by_digest:
            self._claims.remember_unused(leaf, VOID, leaf.term.start)
            self._claims.end_claim(leaf.digest, leaf.term.start)
        record.freed = self._kernel.now

    def taken_back(self, record: Delegation) -> None:
        """See :attr:`reclaimed`."""
        for tell in self.reclaimed:
            tell(record)


@attrs.define(eq=False)
class DelegationLimits:
    """Limits by what was taken back, and by what stands for something else."""

    _kernel: Kernel
    _keyring: Keyring
    _issued: Issued
    _leases: Mapping[str, SiteLease]
    _reports: Reports

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
        for lease in self._leases.values():
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
