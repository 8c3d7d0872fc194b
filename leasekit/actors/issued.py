"""Delegations as their issuer keeps them: a site's to brokers, a broker's to other brokers.

What the settings name is cut and offered as soon as it can be, sent until the holder answers, and may be taken back by
the operator. The roles say where the units come from, and what taking back does to what was granted of them.

The settings may say something else after a restart, and the operator may override for something else (a
:class:`DelegationOverride`, which stands until it is taken back): what is held is then replaced by another
claim over the same time.

One that is renewed or replaced becomes a renewal chain: each period is offered, taken, and ended by itself, and
named after the first (``NAME``, ``NAME#2``, ...). An offer that was refused, or that the holder could not even answer,
is not sent again before something has changed: this actor was restarted, or its peer was.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Final, Protocol

import attrs

from leasekit.actors.kernel import Kernel, command, earliest, keeps, named, query, takes
from leasekit.actors.peering import Keyring
from leasekit.actors.settings import DelegationSpec
from leasekit.core.answers import (
    DelegationDetails,
    DelegationDifference,
    GivenChain,
    ReclaimedDelegation,
    describe_counts,
)
from leasekit.core.claims.claim import UNITS_MAX, Ticket, decode_ticket
from leasekit.core.claims.signed import reclaim
from leasekit.core.commands import GiveDelegation, ReclaimDelegation
from leasekit.core.errors import ArgumentError, CommandError
from leasekit.core.leases import delegation as deleg
from leasekit.core.leases.records import Delegation, DelegationOverride, TakenBack
from leasekit.core.properties import Properties
from leasekit.core.protocol.messages import (
    ID_MAX,
    Accepted,
    ErrorReply,
    HeldClaim,
    Holdings,
    LetGo,
    Offer,
    OfferAnswer,
    Reclaim,
)
from leasekit.core.reasons import Code, Reason, mark, said, view
from leasekit.core.schema import Change, Row
from leasekit.core.time import Instant, Term

OFFERED: Final = "offered"
"""Its holder has not answered yet."""
REFUSED: Final = "refused"
"""Its holder does not take it: ``reason``."""
RECLAIMED: Final = "reclaimed"
"""The operator took it back."""
WAITS: Final = "waits"
"""The units are somebody else's yet, or there are not so many, or the holder is no peer."""
OVERRIDDEN: Final = "overridden"
"""The operator has overridden the settings."""
UNLISTED: Final = "unlisted"
"""The settings don't name it any more: it goes on to the end of its term."""
NOT_KNOWN: Final = "not_known"
"""Its holder does not know of it: it goes on from a copy of its store, or without."""
OLD_ATTRIBUTES: Final = "old_attributes"
"""Units had other attributes when they were given; their holder hears of those that they have with what it is given
next."""
IN_USE: Final = "in_use"
"""More is in use than its holder has by now: ``until`` then."""


def differences(
    settled: Mapping[str, DelegationSpec],
    wanted: Mapping[str, DelegationSpec],
    overrides: Mapping[str, DelegationOverride],
    records: Iterable[Delegation],
    now: Instant,
    is_of_before: Callable[[Delegation], bool],
) -> list[DelegationDifference]:
    """One for each chain of which something else is held than ``settled``, or units as they were before."""
    chains: dict[str, list[Delegation]] = {chain: [] for chain in wanted}
    for record in sorted(records, key=lambda one: one.number):
        chains.setdefault(record.base, []).append(record)
    rows = []
    for chain, periods in chains.items():
        file, spec, override = settled.get(chain), wanted.get(chain), overrides.get(chain)
        held = [one for one in periods if one.is_held and one.term.start <= now < one.term.end]
        units = max((one.units for one in held), default=0)
        code, reason, until = _why(file, spec, override, periods, units, now)
        old = next((one for one in held if code in (WAITS, "") and is_of_before(one)), None)
        if old is not None:
            code, until = OLD_ATTRIBUTES, old.term.end
        if code:
            broker, type_ = (spec.broker, spec.type) if spec is not None else (periods[0].peer, periods[0].type)
            rows.append(
                DelegationDifference(
                    chain, broker, type_, code, units, spec.units if spec is not None else 0,
                    file.units if file is not None else 0, until, **view(reason),
                )
            )  # fmt: skip
    return rows


def _why(
    file: DelegationSpec | None,
    spec: DelegationSpec | None,
    override: DelegationOverride | None,
    periods: list[Delegation],
    held: int,
    now: Instant,
) -> tuple[str, Reason | None, Instant]:
    """The code, the reason, and the instant until which it is so (-1: not known)."""
    last = periods[-1] if periods else None
    if last is not None and last.is_offered:
        return OFFERED, None, last.term.end
    if last is not None and last.is_refused:
        return REFUSED, last.reason, -1
    if spec is None:
        ends = [one.term.end for one in periods if one.is_held]
        return (UNLISTED, None, max(ends)) if ends else ("", None, -1)
    lost = next((one.reason for one in periods if one.is_held and one.reason is not None), None)
    if lost is not None:
        return NOT_KNOWN, lost, -1
    if not held and last is not None and last.taken_back.statement and override is None:
        return RECLAIMED, last.reason, -1
    over = 0 <= spec.until <= now
    if held != spec.units and not over:
        return WAITS, None, -1
    beyond = max((one.beyond for one in periods if one.is_held), default=-1)
    if beyond > now:
        return IN_USE, None, beyond
    if override is not None and (file is None or (override.units or file.units, override.until) != (file.units, -1)):
        return OVERRIDDEN, None, spec.until
    return "", None, -1


RETRIES_MAX: Final = 10
"""How often an offer that was refused is made again when its holder connects: each claim that nobody takes is one that
a site must remember."""


def _order(record: Delegation) -> tuple[Instant, int]:
    return record.term.end, record.number


def _is_current(record: Delegation, chain: str) -> bool:
    return record.base == chain and record.is_current


def _can_go_back(record: Delegation) -> bool:
    return record.can("reclaim")


def replaced_by(fresh: Delegation, others: Iterable[Delegation]) -> list[Delegation]:
    """Those of the chain of ``fresh``, taken by the same side, in whose place it stands over its term."""
    return [
        one
        for one in others
        if one.base == fresh.base and one.given == fresh.given and one is not fresh
        and one.can("replace")
        and fresh.term.start < one.grants_until and one.term.start < fresh.term.end
    ]  # fmt: skip


def taken_back(issuer: str, holder: str) -> Reason:
    """Why what comes of a delegation ends early."""
    return Reason(Code.TAKES_BACK, issuer, holder)


class Issuer(Protocol):
    """Where the units come from that are delegated, and what becomes of what was granted of them: a role says it."""

    def delegation_specs(self) -> Sequence[DelegationSpec]:
        """What the settings say is to be given."""

    def most_of(self, spec: DelegationSpec) -> int:
        """How many units there are to give at all of what ``spec`` is about."""

    def is_outdated(self, record: Delegation) -> bool:
        """Whether what was given is not there as it was, so that other units are to stand in its place."""
        return False

    def is_of_before(self, record: Delegation) -> bool:
        """Whether units had other attributes when they were given, which they are kept with."""
        return False

    def delegate(self, id_: str, spec: DelegationSpec, last: Delegation | None, *, instead: bool = False) -> bool:
        """Cut the claim that ``spec`` asks for, and :meth:`Issued.offer` it as ``id_``. It goes on from ``last``, or
        takes its place (``instead``), or begins now. False if that can't be done yet.
        """

    def check_override(self, chain: str, type_: str, units: int) -> None:
        """Raises ``CommandError`` for what can't be given of a type."""

    def check_given_in_all(self, type_: str) -> None:
        """Raises ``CommandError`` if more of a type is to be given in all than there is."""
        return

    def is_own_claim(self, peer: str, ticket: Ticket, offered: Delegation) -> bool:
        """Whether ``ticket``, which its holder shows, is of the chain of ``offered``, and this issuer forgot it."""
        return False

    def offer_refused(self, record: Delegation) -> None:
        """The holder does not take ``record``: nobody is to use it, and its units may be given to others."""

    def taken_back(self, record: Delegation) -> None:
        """The operator has taken ``record`` back: stop what depends on it."""
        return

    def let_go(self, record: Delegation, until: Instant) -> None:
        """The holder has heard of it; what it granted before ends at ``until``."""


@keeps(rows="given overrides", volatile="_retried _waiting_chains", derived="specs")
@attrs.define(eq=False, slots=False)
class Issued:
    """The delegations that an actor gives, by name, and what its operator overrides to be given."""

    _kernel: Kernel
    _keyring: Keyring
    _issuer: Issuer
    given: dict[str, Delegation] = attrs.field(factory=dict, init=False)
    specs: dict[str, DelegationSpec] = attrs.field(factory=dict, init=False)
    """What is to be given, by chain."""
    taken: list[Callable[[Delegation], None]] = attrs.field(factory=list, init=False)
    """Who is told, in order, of a delegation that its holder has from now on, or has nothing else of its chain any
    more, or has in a store of before: what the holder had better know is to be said."""
    overrides: dict[str, DelegationOverride] = attrs.field(factory=dict, init=False)
    _retried: dict[str, int] = attrs.field(factory=dict, init=False)
    _waiting_chains: dict[str, None] = attrs.field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        self._kernel.register(Delegation, due_at=self.due_at, on_due=self.due, awaits=self.awaits, send=self.send_now)
        self._kernel.register(DelegationOverride)

    def heeding(self) -> list[Delegation]:
        """Those whose holders are to hear of maintenance windows: what may be granted of, and of a chain without any
        such the last that was replaced, as what was delegated of it goes on.
        """
        now, given = self._kernel.now, self.given.values()
        granting = [one for one in given if one.can_grant(now)]
        chains = {one.base for one in granting}
        over = [one for one in given if one.is_replaced and one.term.end > now and one.base not in chains]
        return [*granting, *{one.base: one for one in sorted(over, key=_order)}.values()]

    # -- giving ------------------------------------------------------------------------------------------------

    def give(self, chains: Collection[str] | None = None, *, again: bool = False) -> None:
        """Offer what is to be given and is not held yet, or not as it is to be, and go on with what is to be renewed by
        now; ``again``: what was refused as well. Only of some ``chains``, if they are named.
        """
        self.specs = self.wanted_specs()
        for chain, spec in self.specs.items():
            if chains is not None and chain not in chains:
                continue
            self._waiting_chains.pop(chain, None)
            while spec.broker in self._keyring.peers and self._go_on(chain, spec, again):
                pass
            for record in self.given.values():
                if record.base == chain:
                    self._kernel.schedule(record, self._kernel.due_at(record))  # the settings say when it is renewed

    def wanted_specs(self, *, whole: bool = False) -> dict[str, DelegationSpec]:
        """What is to be given by chain: what the settings say, as far as the operator has not overridden it; no more
        than there is, or ``whole``.
        """
        specs = {self.chain_name(spec): spec for spec in self._issuer.delegation_specs()}
        for chain, override in self.overrides.items():
            spec = specs.get(chain) or DelegationSpec(
                broker=override.peer, type=override.type, units=0, site=override.site
            )
            if override.until >= 0:
                spec = attrs.evolve(spec, until=override.until, renew=0)
            specs[chain] = attrs.evolve(
                spec, units=override.units or spec.units or self._issuer.most_of(spec), anew=override.anew
            )
        if whole:
            return specs
        return {
            chain: attrs.evolve(spec, units=min(spec.units, self._issuer.most_of(spec)))
            for chain, spec in specs.items()
        }

    def _go_on(self, chain: str, spec: DelegationSpec, again: bool) -> bool:
        """Offer the next period of a chain. False if there is nothing to be offered now."""
        periods = [record for record in self.given.values() if record.base == chain]
        live = sorted((one for one in periods if one.is_current and one.term.end > self._kernel.now), key=_order)
        end = live[-1].term.end if live else self._kernel.now
        refused = any(one.is_refused and one.term.end > end - bool(live) for one in periods)
        if (refused and not again) or any(one.is_unanswered for one in periods):
            return False
        name = self._next_name(chain, periods)
        if not live:
            return self._is_missing(chain, spec, periods) and self._made(chain, self._issuer.delegate(name, spec, None))
        if 0 <= spec.until <= self._kernel.now:  # its holder was away, and holds more than it was to have by now
            self.take_back(live[0], self._kernel.now, -1, Reason(Code.PLANNED_END, at=spec.until))
            return False
        for one in live:
            other = self._is_other(one, spec, one is live[-1]) or (spec.units and self._issuer.is_outdated(one))
            if other and self._made(chain, self._issuer.delegate(name, spec, one, instead=True)):
                if spec.anew and one is live[-1]:
                    self.overrides[chain].anew = False
                    self._kernel.touch(self.overrides[chain])
                return True
        due = bool(spec.renew) and end - spec.renew <= self._kernel.now
        return due and self._made(chain, self._issuer.delegate(name, spec, live[-1]))

    def _made(self, chain: str, made: bool) -> bool:
        if not made:
            self._waiting_chains[chain] = None
        return made

    def give_waiting(self) -> None:
        """Units have come free: try again what could not be given yet."""
        if self._waiting_chains:
            self.give(list(self._waiting_chains))

    def _is_missing(self, chain: str, spec: DelegationSpec, periods: Sequence[Delegation]) -> bool:
        """Nothing of a chain is held: whether it is to be. What the operator took back is not, unless it was asked for
        since; what its holder has let go of is.
        """
        if not spec.units or 0 <= spec.until <= self._kernel.now:
            return False
        last = max(periods, key=_order, default=None)
        return last is None or chain in self.overrides or not last.taken_back.statement

    @staticmethod
    def _is_other(record: Delegation, spec: DelegationSpec, is_last: bool) -> bool:
        """Whether what is held is not what is to be."""
        degree = decode_ticket(record.ticket).leaf.degree
        ends = spec.anew or (spec.until >= 0 and record.term.end != max(spec.until, record.term.start + 1))
        return bool(spec.units) and ((record.units, degree) != (spec.units, spec.degree) or (is_last and ends))

    def period(self, spec: DelegationSpec, last: Delegation | None, *, instead: bool) -> tuple[Instant, Instant]:
        """Over what time the next period of a chain goes: after ``last``, or in its place from now on."""
        if last is None:
            return self._kernel.now, spec.until if spec.until >= 0 else self._kernel.now + spec.length
        if not instead:
            return last.term.end, last.term.end + spec.period
        is_last = all(one.term.end <= last.term.end for one in self.given.values() if _is_current(one, last.base))
        end = spec.until if spec.until >= 0 else self._kernel.now + spec.length if spec.anew else last.term.end
        return max(self._kernel.now, last.term.start), end if is_last else last.term.end

    def chain_name(self, spec: DelegationSpec) -> str:
        """The name of the chain that ``spec`` asks for."""
        chain = f"{self._keyring.name}/{spec.type}@{spec.broker}" + (f"/{spec.site}" if spec.site else "")
        if len(chain) > ID_MAX:  # no message could say it
            chain = f"{self._keyring.name}/{sha256(chain.encode()).hexdigest()[:12]}"
        return chain

    def _next_name(self, chain: str, periods: Sequence[Delegation]) -> str:
        """The first period has the chain's name, also if it begins anew when all is over; the others are numbered."""
        if all(one.id == chain and one.has_ended for one in periods):
            return chain
        number = max(1 if one.id == chain else int(one.id.rpartition("#")[2]) for one in periods) + 1
        name = f"{chain}#{number}"
        return (
            name if len(name) <= ID_MAX else f"{self._keyring.name}/{sha256(chain.encode()).hexdigest()[:12]}#{number}"
        )

    def _renew(self, record: Delegation) -> None:
        """Go on with the chain of ``record``."""
        if record.base in self.specs:
            self.give([record.base])

    def offer(
        self,
        id_: str,
        peer: str,
        ticket: Ticket,
        properties: Properties,
        classes: tuple[Properties, ...],
        *,
        chain: str,
        site: str = "",
        source: str = "",
    ) -> None:
        """Offer ``ticket`` to ``peer`` as ``id_``: of units with these ``properties``, and what each class of them has
        beside that.
        """
        leaf = ticket.leaf
        record = Delegation(
            id_, peer, leaf.type, leaf.units, leaf.term, ticket.encode(), properties, self._kernel.next("serial"),
            site or self._keyring.name, leaf.digest, given=True, source=source,
            renewal_of="" if id_ == chain else chain, classes=classes,
        )  # fmt: skip
        self._forget_periods(record)
        self.given[id_] = record
        self._kernel.note(
            id_, "delegate", "", deleg.OFFERING, said(f"{leaf.units} {leaf.type} to {peer} until {mark(leaf.term.end)}")
        )
        self._kernel.touch(record)
        self._send_given(record)

    def _forget_periods(self, fresh: Delegation) -> None:
        """Those before a new one that are over, so that they don't add up; what was taken back stays to be seen."""
        for record in [one for one in self.given.values() if one.base == fresh.base]:
            free = record.has_ended or (record.is_refused and record.freed >= 0)
            if free and record.taken_back.at < 0:
                del self.given[record.id]
                self._kernel.forget(record)
                if record.id != fresh.id:
                    self._kernel.changes.append(Change(record.table, record.id, None))

    def _send_given(self, record: Delegation) -> None:
        if record.is_offered:
            site = "" if record.site == self._keyring.name else record.site
            message: Offer | Reclaim = Offer(
                record.id, record.number, record.ticket, record.properties, site, record.renewal_of, record.classes
            )
        else:
            message = Reclaim(record.id, record.number, record.ticket, record.taken_back.statement)
        self._kernel.send_owed(record, record.peer, message)

    @takes(OfferAnswer)
    def _on_offer_answer(self, peer: str, message: OfferAnswer) -> None:
        record = self.given.get(message.delegation)
        if record is None or record.peer != peer or record.number != message.number:
            return
        was = record.state
        if was == deleg.OFFERING and message.reason and self._recall(record, message.held):
            self._renew(record)
        elif was == deleg.OFFERING and message.reason:
            self._not_taken(record, message.reason)
        elif was == deleg.OFFERING:
            self._kernel.fire(record, "taken")
            self._stand_in(record, message.until, message.beyond)
            self._renew(record)
        elif was == deleg.RECLAIMING:
            self._kernel.fire(record, "let_go")
            deadline = record.taken_back.deadline
            self._issuer.let_go(record, message.until if deadline < 0 else min(message.until, deadline))
            self._renew(record)
        self._kernel.owe_no_more(record, peer)
        if was in deleg.UNANSWERED and record.can_grant(self._kernel.now):  # a reclaim: its offer had no answer, maybe
            self._tell_holder(record)

    def _tell_holder(self, record: Delegation) -> None:
        chain = [one for one in self.given.values() if one.base == record.base and one.withheld]
        told = {window.window: window for one in sorted(chain, key=_order) for window in one.withheld}
        for one in chain:
            one.withheld = ()
        # All is said again, and also what is no more: the holder may have heard of it by another of the chain.
        record.withheld = tuple(window._replace(units=-1) for window in told.values())
        for one in (*chain, record) if chain else ():
            self._kernel.touch(one)
        for tell in self.taken:
            tell(record)

    def _stand_in(self, fresh: Delegation, until: Instant, beyond: Instant) -> None:
        """``fresh`` was taken: it stands in the place of what was held over its term, of which what was granted goes on
        ``until`` then. Until ``beyond`` more of the chain is in use than it has.
        """
        fresh.beyond = beyond
        for record in replaced_by(fresh, self.given.values()):
            record.replaced = fresh.term.start
            self._kernel.fire(record, "replace", Reason(Code.IN_ITS_PLACE, fresh.id, units=fresh.units))
            if record.is_replaced:
                self._issuer.let_go(record, until)

    def _recall(self, offered: Delegation, held: Sequence[HeldClaim]) -> bool:
        """Take up again what the holder holds of the chain that ``offered`` was to begin. False if that is nothing."""
        if any(one.base == offered.base and one is not offered and not one.is_over for one in self.given.values()):
            return False
        found = []
        for one in held:
            ticket = decode_ticket(one.ticket)
            if one.delegation.partition("#")[0] == offered.base and self._issuer.is_own_claim(
                offered.peer, ticket, offered
            ):
                found.append((one, ticket))
        if found:
            offered.reason = Reason(Code.FORGOTTEN)
            self._kernel.fire(offered, "refused", offered.reason)
            self._issuer.offer_refused(offered)
        for one, ticket in found:
            self._take_up(offered, one, ticket)
        return bool(found)

    def _take_up(self, offered: Delegation, held: HeldClaim, ticket: Ticket) -> None:
        leaf, id_ = ticket.leaf, held.delegation
        old = self.given.get(id_)
        if old is not None:  # the same name: its row is written over
            self._kernel.forget(old)
        record = self.given[id_] = Delegation(
            id_, offered.peer, leaf.type, leaf.units, leaf.term, held.ticket, offered.properties,
            self._kernel.next("serial"), offered.site, leaf.digest, given=True,
            renewal_of="" if id_ == offered.base else offered.base, classes=offered.classes,
        )  # fmt: skip
        self._kernel.note(
            id_, "delegate", "", deleg.OFFERING, said(f"{leaf.units} {leaf.type}: {offered.peer} holds it")
        )
        self._kernel.fire(record, "taken")
        if held.state == deleg.REPLACED:
            record.replaced = record.freed = max(held.at, leaf.term.start)
            self._kernel.fire(record, "replace", Reason(Code.HOLDER_SAYS, offered.peer))
        elif held.state == deleg.RECLAIMED:
            record.taken_back = TakenBack(max(held.at, leaf.term.start))
            self._kernel.fire(record, "let_go", Reason(Code.LET_GO, offered.peer))
        self._kernel.touch(record)

    @takes(Holdings)
    def _on_holdings(self, peer: str, message: Holdings) -> None:
        """A holder's store is not the one that it had: what the holder does not know of is said to the operator."""
        known = set(message.claims)
        for record in self.given.values():
            lost = None if record.digest in known else Reason(Code.NOT_KNOWN, peer)
            if record.peer == peer and record.is_held and record.reason != lost:
                record.reason = lost
                self._kernel.note(record.id, "holdings", "", "", lost)
                self._kernel.touch(record)
        for record in self.heeding():
            if record.peer == peer and record.withheld:  # its store may be of before it heard of some
                self._tell_holder(record)

    @takes(LetGo)
    def _on_let_go(self, peer: str, message: LetGo) -> None:
        """Its holder's operator let go of it: it is offered anew, since the holder is there again. Or what was taken
        back is over earlier than its holder said, as its own holders have let go by now.
        """
        record = self.given.get(message.delegation)
        digest = decode_ticket(message.ticket).leaf.digest
        if record is not None and record.peer == peer and record.digest == digest and not record.is_over:
            if record.is_offered:  # its answer was lost
                self._kernel.fire(record, "taken")
            if record.is_unanswered:
                pass  # the answer to the reclaim says until when
            elif record.can("let_go"):
                if record.taken_back.at < 0:
                    record.taken_back, record.reason = TakenBack(self._kernel.now), Reason(Code.LET_GO, peer)
                self._kernel.fire(record, "let_go", Reason(Code.LET_GO, peer))
                self._issuer.let_go(record, message.until)
                self._kernel.owe_no_more(record, peer)
                self._renew(record)
            elif record.freed < 0 or message.until < record.freed:
                self._issuer.let_go(record, message.until)
                self._kernel.touch(record)
        self._kernel.send(peer, Accepted(message.delegation, message.number))

    def _not_taken(self, record: Delegation, reason: Reason) -> None:
        record.reason = reason
        self._kernel.fire(record, "refused", reason)
        again = "it is offered again when something has changed"
        self._kernel.complain(f"{record.peer} refuses {record.id}; {again}", because=reason)
        self._issuer.offer_refused(record)

    def refused(self, peer: str, message: ErrorReply) -> bool:
        """A holder that can't take an offer has refused it; one that can't hear of a reclaim has heard of it: what it
        gave before runs out, or ends by the deadline.
        """
        record = self.given.get(message.lease)
        if record is None or (record.peer, record.number) != (peer, message.number) or not message.number:
            return False
        if record.is_offered:
            self._not_taken(record, message.reason)
            self._kernel.owe_no_more(record, peer)
        elif record.is_unanswered:
            self._kernel.fire(record, "let_go", Reason(Code.NOT_HEARD_OF, peer).because(message.reason))
            deadline = record.taken_back.deadline
            self._issuer.let_go(record, record.term.end if deadline < 0 else deadline)
            self._renew(record)
            self._kernel.owe_no_more(record, peer)
        return True

    def peer_changed(self, name: str) -> None:
        """What a peer refused it may take now that it is known otherwise."""
        theirs = [chain for chain, spec in self.specs.items() if spec.broker == name]
        for chain in theirs:
            self._retried.pop(chain, None)
        if theirs and name in self._keyring.peers:  # while a store is taken up nothing is to be given yet
            self.give(theirs, again=True)

    def connected(self, peer: str) -> None:
        """A peer that was away may have been set right meanwhile."""
        for chain, spec in list(self.specs.items()):
            refused = any(one.base == chain and one.is_refused for one in self.given.values())
            if spec.broker == peer and refused and self._retried.get(chain, 0) < RETRIES_MAX:
                self._retried[chain] = self._retried.get(chain, 0) + 1
                self.give([chain], again=True)

    # -- the operator's ----------------------------------------------------------------------------------------

    @command("delegation.give")
    def _override(self, asked: GiveDelegation) -> GivenChain:
        """Give a chain again, or more of it, or less, or until another instant; as the settings say, where nothing is
        said of it. Kept, until it is overridden again, or taken back.
        """
        broker, type_, site, units, until = asked.broker, asked.type, asked.site, asked.units, asked.until
        if not 0 <= units <= UNITS_MAX:
            raise ArgumentError(f"units: found {units!r:.40}, expected a number from 1 to {UNITS_MAX}")
        if until is not None and until <= self._kernel.now:
            raise ArgumentError(
                f"until: found {mark(until)}, it is {mark(self._kernel.now)} already: `reclaim` takes a delegation back"
            )
        peer = self._keyring.peers.get(broker)
        if peer is None or peer.role != "broker":
            known = (
                ", ".join(sorted(one.name for one in self._keyring.peers.values() if one.role == "broker")) or "(none)"
            )
            raise ArgumentError(f"broker: found {broker!r}, the brokers that {self._keyring.name} knows are {known}")
        chain = self.chain_name(DelegationSpec(broker=broker, type=type_, units=units, site=site))
        self._check_until(chain, until)
        self._issuer.check_override(chain, type_, units)
        before = self.overrides.get(chain)
        anew = until is None and before is not None and (before.anew or before.until >= 0)
        self.overrides[chain] = DelegationOverride(
            chain, broker, type_, units, -1 if until is None else until, site, anew
        )
        try:
            self._issuer.check_given_in_all(type_)
        except CommandError:
            del self.overrides[chain]
            if before is not None:
                self.overrides[chain] = before
            raise
        self._kernel.touch(self.overrides[chain])
        self._kernel.note(
            chain,
            "override",
            "",
            "",
            said(f"{units or 'all'} {type_} for {broker}{f' until {mark(until)}' if until else ''}"),
        )
        self.give([chain], again=True)
        return GivenChain(chain, next((one for one in self.differences() if one.chain == chain), None))

    def differences(self) -> list[DelegationDifference]:
        """Where what holders hold differs from the settings."""
        settled = {self.chain_name(spec): spec for spec in self._issuer.delegation_specs()}
        return differences(
            settled, self.wanted_specs(whole=True), self.overrides, self.given.values(), self._kernel.now,
            self._issuer.is_of_before,
        )  # fmt: skip

    def _check_until(self, chain: str, until: Instant | None) -> None:
        """Raises ``CommandError`` for what could never be given."""
        held = [one for one in self.given.values() if one.base == chain and one.is_current]
        last = max(held, key=_order, default=None)
        if last is not None and until is not None and until <= last.term.start:
            raise ArgumentError(
                f"until: found {mark(until)}, {last.id} begins at {mark(last.term.start)}: reclaim it first"
            )

    def give_again(self, record: Delegation) -> None:
        """It is taken back, but not as the operator wants it: as soon as it can be given again, it is."""
        if record.base in self.specs and record.base not in self.overrides:
            override = self.overrides[record.base] = DelegationOverride(
                record.base, record.peer, record.type, 0, -1, self.specs[record.base].site
            )
            self._kernel.touch(override)

    def _forget_override(self, chain: str) -> None:
        override = self.overrides.pop(chain, None)
        if override is not None:
            self._kernel.erase(override)
        self.specs = self.wanted_specs()

    @command("delegation.reclaim")
    def _reclaim(self, asked: ReclaimDelegation) -> ReclaimedDelegation:
        name = asked.delegation
        live = sorted((one for one in self.given.values() if one.base == name and _can_go_back(one)), key=_order)
        record = self.given.get(name)
        if live and (record is None or not _can_go_back(record)):  # the name of a chain stands for what is left of it
            record = live[0]
        record = record or named("delegation", name, self.given, "given are")
        at, deadline = max(asked.at or 0, self._kernel.now), asked.deadline
        if not _can_go_back(record):
            raise CommandError(f"delegation {record.id} is {record.state}: it can't be taken back")
        if deadline is not None and deadline < at:
            raise ArgumentError(
                f"deadline: found {mark(deadline)}, it can't be before {mark(at)}, when nothing new may begin"
            )
        self._forget_override(record.base)
        self.take_back(record, at, -1 if deadline is None else deadline, Reason(Code.OPERATOR_TAKES_BACK))
        return ReclaimedDelegation(record.id, at, record.taken_back.deadline, record.state)

    def take_back(self, record: Delegation, at: Instant, deadline: Instant, why: Reason) -> None:
        """Nothing new goes on under ``record`` from ``at`` on; leases that exist are over by ``deadline`` (-1: they
        run out).
        """
        signer = self._keyring.signer_of(decode_ticket(record.ticket).leaf.issuer)
        statement = reclaim(signer, record.digest, at, deadline if deadline >= 0 else None).encode()
        record.taken_back, record.reason = TakenBack(at, deadline, statement), why
        record.number, record.tries = self._kernel.next("serial"), 0
        self._kernel.fire(record, "reclaim", why)
        self._send_given(record)
        self._issuer.taken_back(record)
        for later in list(self.given.values()):  # what goes on from it as well, or stands for it, or it for that
            goes_on = later.base == record.base and later.term.end > record.term.start
            if goes_on and _can_go_back(later):
                self.take_back(later, at, deadline, why)

    # -- time and state ----------------------------------------------------------------------------------------

    def due_at(self, record: Delegation) -> Instant | None:
        """When time next concerns one that is given."""
        if record.is_over:
            return None
        end, now = record.term.end, self._kernel.now
        if record.is_replaced:
            return earliest(end, record.freed if record.freed >= 0 else None)
        if record.is_reclaimed:
            return earliest(end, record.freed if record.freed > now else None)
        sending = record.send_at if record.is_unanswered else None
        spec = self.specs.get(record.base) if record.is_held else None
        begin = end - spec.renew if spec is not None and spec.renew else 0
        if record.beyond > now:
            begin = min(begin, record.beyond) if begin > now else record.beyond
        return earliest(sending, end, begin if begin > now else None)

    def due(self, record: Delegation) -> None:
        """Time concerns one that is given: it is over, or sent again, or renewed."""
        if not self.ended(record):
            if record.is_unanswered:
                self._send_given(record)
            else:
                self.give()

    def ended(self, record: Delegation) -> bool:
        """End a delegation, given or taken, whose time is over: whether it is."""
        over = record.term.end <= self._kernel.now
        if not over and not (record.is_replaced and 0 <= record.freed <= self._kernel.now):
            return False
        self._kernel.fire(record, "end", Reason(Code.TERM_OVER) if over else None)
        self.give()
        for one in self.heeding() if record.given else ():
            if one.is_replaced and one.base == record.base:
                self._tell_holder(one)
        return True

    def awaits(self, record: Delegation, peer: str) -> bool:
        """Whether ``peer`` has an offer, or a reclaim, to answer."""
        return record.is_unanswered and record.peer == peer

    def send_now(self, record: Delegation, peer: str) -> None:
        """Send that to a peer that has just connected."""
        self._send_given(record)

    def restore(self, rows: Iterable[Row], overrides: Iterable[Row]) -> None:
        """Take up what a store kept."""
        self.overrides = {row[0]: DelegationOverride.from_row(row) for row in overrides}
        for record in map(Delegation.from_row, rows):
            if record.given:
                self.given[record.id] = record
                waiting = record.is_unanswered
                if waiting:
                    self._kernel.owe(record, record.peer)
                self._kernel.schedule(record, self._kernel.now if waiting else self._kernel.due_at(record))

    def counted(self, type_: str, term: Term) -> dict[str, Counter[bytes]]:
        """How many units of each class were given over ``term``, by chain, and are counted as given: also what goes on
        to be used of what was taken back, or replaced by less. Of what stands for each other the most counts.
        """
        found: dict[str, Counter[bytes]] = {}
        enough = {one.base for one in self.given.values() if one.is_held and one.beyond <= self._kernel.now}
        for one in self.given.values():
            goes_on = one.freed > self._kernel.now and one.base not in enough
            used = one.is_used or goes_on
            if one.type == type_ and used and one.term.overlaps(term):
                given = Counter(dict(decode_ticket(one.ticket).leaf.classes))
                found[one.base] = found.get(one.base, Counter()) | given
        return found

    @query("delegations")
    def _query_delegations(self) -> list[DelegationDetails]:
        return [
            DelegationDetails.of(
                one, delegation=one.id, broker=one.peer, chain=one.base,
                reclaimed=one.taken_back.at, deadline=one.taken_back.deadline,
                classes=describe_counts(decode_ticket(one.ticket).leaf.classes), **view(one.reason),
            )
            for one in self.given.values()
        ]  # fmt: skip
