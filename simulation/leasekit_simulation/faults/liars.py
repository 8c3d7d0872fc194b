"""Hostile brokers and sites that answer honest guests: production actors that know all that is to be known, and whose
words are changed on their way out, under signatures of their own.

A broker gives what it has twice, grants what nobody asked for, gives old tickets again, and ends what it has granted. A
site gives units that it has not, goes by other claims, speaks of leases that it does not have, and gives receipts for
what it keeps. Where topologies are planned, brokers quote, hold and plan what is not so. All flood others with updates,
say what makes no sense, or say nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any, Final, TypeAlias

import attrs
from msgspec.structs import replace

from leasekit.core.claims.claim import REPLACES, Claim, Ticket, decode_ticket, issue
from leasekit.core.claims.signed import CONTRACT, ENDORSEMENT, RECEIPT, TRUNCATION, state
from leasekit.core.errors import TicketError
from leasekit.core.properties import EMPTY
from leasekit.core.protocol.messages import (
    MODIFY,
    Accepted,
    ClaimReport,
    Introduce,
    LeaseUpdate,
    Message,
    Offer,
    PartsHeld,
    Planned,
    Quoted,
    Redeem,
    Relinquish,
    Relinquished,
    RequestTicket,
    TicketUpdate,
    Truncated,
    UnitState,
    Withhold,
)
from leasekit.core.reasons import Code, Reason, said
from leasekit.core.time import HOUR, INSTANT_MAX, MINUTE, Instant, Term
from leasekit_simulation.faults.checkers import Listening
from leasekit_simulation.faults.world import FaultyWorld

Told: TypeAlias = list[tuple[str, Message]]
"""Messages, each with its receiver."""
KEPT: Final = 12
RATES: Final = (0.05, 0.2, 0.2, 0.5)
"""How many of its messages a liar changes: one of these."""
FLOOD: Final = 30
"""How many updates come at once."""
LIES: Final[Mapping[type[Any], tuple[str, ...]]] = {
    TicketUpdate: ("recut", "recut", "oversold", "old", "old", "misplaced", "cut", "ended", "flood", "junk"),
    LeaseUpdate: ("units", "units", "contract", "ended", "turned", "flood", "stranger", "junk"),
    Relinquished: ("receipt",),
    Accepted: ("receipt", "accuses"),
    Offer: ("recut", "old"),
    Truncated: ("cut",),
    Withhold: ("withholds",),
    Quoted: ("quotes",),
    PartsHeld: ("held",),
    Planned: ("planned",),
    Introduce: ("introduces",),
}
"""What a liar may make of a message; any it may keep to itself, or say again what it has said before."""
ANY: Final = ("silent", "again")
STATES: Final = ("active", "refused", "undone", "terminating", "waiting", "told", "closed", "failed", "dissolved")
STATUSES: Final = ("granted", "refused", "closed", "terminating", "short", "spared", "lost")


@attrs.define
class Liar:
    """How often one of them lies, and what it knows: what it has said, was asked for, offered, and shown, by lease."""

    rate: float
    count: int = 0
    said: Told = attrs.Factory(list)
    requests: dict[tuple[str, int], RequestTicket] = attrs.Factory(dict)
    offers: list[Offer] = attrs.Factory(list)
    tickets: list[TicketUpdate | Offer] = attrs.Factory(list)
    shown: dict[str, Claim] = attrs.Factory(dict)


class Liars(Listening):
    """All of them, and what each makes of what it is about to say."""

    def __init__(self, world: FaultyWorld, others: Callable[[], Sequence[tuple[str, int]]]) -> None:
        """``others`` are leases that were overheard lately."""
        super().__init__()
        self._world, self._others = world, others
        seed = world.scenario.seed
        self._liars = {
            name: Liar(Random(f"leasekit liar {seed} {name}").choice(RATES)) for name in world.scenario.liars
        }
        self.sends = {
            RequestTicket: self._asked, Offer: self._offered, Relinquish: self._was_shown, Redeem: self._was_shown,
        }  # fmt: skip
        self._lies: dict[str, Callable[[str, str, Any, Random], Told]] = {
            "silent": lambda liar, receiver, message, rng: [], "again": self._again, "recut": self._recut,
            "oversold": self._oversold, "old": self._old, "misplaced": self._misplaced, "cut": self._cut,
            "ended": self._ended, "flood": self._flood, "junk": self._junk, "units": self._units,
            "contract": self._contract, "turned": self._turned, "stranger": self._stranger,
            "receipt": self._receipt, "accuses": self._accuses, "withholds": self._withholds,
            "quotes": self._quotes, "held": self._held, "planned": self._planned, "introduces": self._introduces,
        }  # fmt: skip
        if self._liars:
            world.twist = self.twist

    # -- what they know ----------------------------------------------------------------------------------------

    def _asked(self, at: Instant, sender: str, receiver: str, message: RequestTicket) -> None:
        if receiver in self._liars:
            self._liars[receiver].requests[message.lease, message.number] = message

    def _offered(self, at: Instant, sender: str, receiver: str, message: Offer) -> None:
        if receiver in self._liars and sender not in self._liars:
            liar = self._liars[receiver]
            liar.offers = [*liar.offers[-KEPT:], message]

    def _was_shown(self, at: Instant, sender: str, receiver: str, message: Relinquish | Redeem) -> None:
        if receiver in self._liars and sender in self._world.nodes and message.ticket:
            self._liars[receiver].shown[message.lease] = decode_ticket(message.ticket).leaf

    # -- what they say -----------------------------------------------------------------------------------------

    def twist(self, name: str, outgoing: Sequence[tuple[str, Message]]) -> Sequence[tuple[str, Message]]:
        """What is said in place of what an actor is about to say."""
        liar = self._liars.get(name)
        if liar is None:
            return outgoing
        told: Told = []
        for receiver, message in outgoing:
            if receiver not in self._world.nodes:
                told.append((receiver, message))
                continue
            made = self._make(name, liar, receiver, message)
            told += made
            liar.said = [*liar.said[-KEPT:], *made[:1]]
            if made and isinstance(one := made[0][1], TicketUpdate | Offer) and _is_ticket(one.ticket):
                liar.tickets = [*liar.tickets[-KEPT:], one]
        return told

    def _make(self, name: str, liar: Liar, receiver: str, message: Message) -> Told:
        liar.count += 1
        occasion = f"lie {name} {liar.count}"
        rng = Random(f"{self._world.scenario.seed} {occasion}")
        lies, chance = (*ANY, *LIES.get(type(message), ()) * 3), rng.random()
        what = self._world.what_happens(occasion, rng.choice(lies) if chance < liar.rate else "")
        if not what:
            return [(receiver, message)]
        self._world.mark(f"lie: {what}")
        return self._lies[what](name, receiver, message, rng)

    def _again(self, liar: str, receiver: str, message: Any, rng: Random) -> Told:
        """What it has said before, mostly to somebody else, beside what is to be said."""
        before = self._liars[liar].said
        return [(receiver, message), *([(receiver, rng.choice(before)[1])] if before else ())]

    # -- tickets -----------------------------------------------------------------------------------------------

    def _issue(self, liar: str, leaf: Claim, parent: bytes, rng: Random, **other: Any) -> Claim:
        fields: dict[str, Any] = {
            "holder": leaf.holder, "type": leaf.type, "units": leaf.classes, "term": leaf.term, "parent": parent,
            "degree": leaf.degree, "constraints": leaf.constraints, "sizes": leaf.sizes,
            "serial": rng.getrandbits(30), **other,
        }  # fmt: skip
        return issue(self._world.identity(liar), **fields)

    def _recut(self, liar: str, receiver: str, message: Any, rng: Random) -> Told:
        """A ticket that says something else than it should: more, longer, sooner, to somebody else, past its parent."""
        if not message.ticket:
            return [(receiver, message)]
        chain = decode_ticket(message.ticket).chain
        leaf = chain[-1]
        start, end = leaf.term
        changes: list[dict[str, Any]] = [
            {"units": tuple((class_, units + rng.choice((1, 3))) for class_, units in leaf.classes)},
            {"term": Term(start, min(INSTANT_MAX, end + rng.choice((1, MINUTE, HOUR))))},
            {"term": Term(max(0, start - rng.choice((1, MINUTE))), end)}, {"term": Term(start, (start + end + 1) // 2)},
            {"degree": 2 * leaf.degree}, {"holder": self._world.key(rng.choice(self._world.scenario.guests))},
            {"type": "gpu" if leaf.type == "vm" else "vm"}, {"constraints": EMPTY}, {},
        ]  # fmt: skip
        if len(chain) > 1:
            past, above = rng.choice((0, MINUTE)), chain[-2]
            changes.append({"term": Term(start, min(INSTANT_MAX, above.term.end + 1 + past))})
            changes.append({"units": tuple((class_, units + above.units) for class_, units in leaf.classes)})
        made = self._issue(liar, leaf, leaf.parent, rng, **rng.choice(changes))
        return [(receiver, replace(message, ticket=Ticket((*chain[:-1], made)).encode()))]

    def _oversold(self, liar: str, receiver: str, message: TicketUpdate, rng: Random) -> Told:
        """What was refused is granted all the same, of what others have by now."""
        known = self._liars[liar]
        asked = known.requests.get((message.lease, message.number))
        fits = [one for one in known.offers if asked is not None and decode_ticket(one.ticket).leaf.type == asked.type]
        if asked is None or not fits or message.status == "granted":
            return [(receiver, message)]
        offer = rng.choice(fits)
        above, truncation, constraints = decode_ticket(offer.ticket), b"", {}
        if asked.op == MODIFY:
            constraints = {REPLACES: asked.claim.hex()}
            truncation = self._truncation(liar, asked.claim, asked.term.start, asked.lease)
        made = self._issue(
            liar, above.leaf, above.leaf.digest, rng, holder=self._world.key(receiver), term=asked.term, degree=1000,
            units=((above.leaf.classes[0][0], asked.units),), constraints=constraints, sizes=above.leaf.sizes[:1],
        )  # fmt: skip
        site = self._site(above.root.issuer)
        granted = replace(
            message, status="granted", ticket=Ticket((*above.chain, made)).encode(), site=site, reason=None,
            properties=offer.properties, truncation=truncation, classes=offer.classes[:1],
        )  # fmt: skip
        return [(receiver, granted)]

    def _old(self, liar: str, receiver: str, message: Any, rng: Random) -> Told:
        """A ticket that was shown before, to this one or another."""
        old = [one for one in self._liars[liar].tickets if type(one) is type(message)]
        if not old:
            return [(receiver, message)]
        other = rng.choice(old)
        changes = {"ticket": other.ticket, "properties": other.properties, "site": other.site}
        if isinstance(message, TicketUpdate):
            changes |= {"status": "granted", "truncation": other.truncation if isinstance(other, TicketUpdate) else b""}
        return [(receiver, replace(message, **changes))]

    def _misplaced(self, liar: str, receiver: str, message: TicketUpdate, rng: Random) -> Told:
        """A ticket that is said to be of another site, or whose units are said to be others."""
        other: list[dict[str, Any]] = [
            {"site": rng.choice((*self._world.scenario.sites, "nowhere", ""))}, {"properties": {"colour": "blue"}},
            {"classes": ({"rack": "r0"}, {"rack": "r1"})}, {"endorsement": message.ticket},
            {"continuations": message.ticket},
        ]  # fmt: skip
        return [(receiver, replace(message, **rng.choice(other)))]

    def _site(self, key: bytes) -> str:
        return next(name for name in self._world.scenario.sites if key in self._world.keys(name))

    def _truncation(self, liar: str, claim: bytes, at: Instant, lease: str) -> bytes:
        return state(self._world.identity(liar), TRUNCATION, claim, max(0, min(at, INSTANT_MAX)), lease).encode()

    def _cut(self, liar: str, receiver: str, message: Any, rng: Random) -> Told:
        """What was granted ends at another time than it should: the guest, or its site, is told so, or both."""
        if not message.ticket:
            return [(receiver, message)]
        ticket = decode_ticket(message.ticket)
        at = rng.choice((0, self._world.now, ticket.leaf.term.start, ticket.leaf.term.end + HOUR))
        claim = rng.choice((ticket.leaf.digest, ticket.leaf.digest, ticket.leaf.parent or bytes(32)))
        cut = self._truncation(liar, claim, at, message.lease)
        site = self._site(ticket.root.issuer)
        if isinstance(message, Truncated):
            return [(receiver, replace(message, truncation=cut))]
        told: Told = [(receiver, message), (site, Truncated(message.lease, message.update, message.ticket, cut))]
        if rng.random() < 0.5:
            early = replace(message, update=message.update + 1, number=0, status="terminating", truncation=cut)
            told.append((receiver, replace(early, ticket=rng.choice((b"", message.ticket)))))
        return told

    # -- leases ------------------------------------------------------------------------------------------------

    def _ended(self, liar: str, receiver: str, message: Any, rng: Random) -> Told:
        """What goes on is said to be over, or about to be."""
        more = {"update": message.update + 1, "number": rng.choice((0, message.number)), "reason": said("so it is")}
        if isinstance(message, TicketUpdate):
            over: Message = replace(message, status=rng.choice(("closed", "refused", "terminating")), **more)
        else:
            at = rng.choice((0, self._world.now, self._world.now + HOUR))
            over = replace(
                message, state=rng.choice(("closed", "failed", "terminating")), term=Term(at, at + 1), units=(), **more
            )
        return [(receiver, message), (receiver, over)]

    def _turned(self, liar: str, receiver: str, message: LeaseUpdate, rng: Random) -> Told:
        """Yes for no."""
        other = rng.choice([one for one in STATES if one != message.state])
        return [(receiver, replace(message, state=other, reason=said("so it is")))]

    def _flood(self, liar: str, receiver: str, message: Any, rng: Random) -> Told:
        """Many updates, in order, of which each says something else."""
        told: Told = [(receiver, message)]
        for count in range(1, FLOOD):
            said_ = {"update": message.update + count, "number": rng.choice((0, 0, message.number))}
            if isinstance(message, TicketUpdate):
                told.append((receiver, replace(message, status=rng.choice(STATUSES), **said_)))
            else:
                told.append((receiver, replace(message, state=rng.choice(STATES), **said_)))
        return told

    def _junk(self, liar: str, receiver: str, message: Any, rng: Random) -> Told:
        """What is signed by nobody, and does not decode."""
        field = "ticket" if isinstance(message, TicketUpdate) else "contract"
        found = getattr(message, field)
        text = rng.choice((b"junk", b"", found[:-1], b"\x93" + found))
        number = rng.choice((message.number, message.number + 1, 2**40))
        return [(receiver, replace(message, number=number, **{field: text}))]

    def _units(self, liar: str, receiver: str, message: LeaseUpdate, rng: Random) -> Told:
        """More units than the ticket gives, fewer, the same twice, or none."""
        class_ = message.units[0].unit_class if message.units else b""
        more = tuple(UnitState(f"vm-{n}", "active", EMPTY, None, class_) for n in range(rng.choice((1, 9)), 12))
        units = rng.choice((message.units + more, message.units[1:], message.units * 2, more, ()))
        return [(receiver, replace(message, units=units))]

    def _contract(self, liar: str, receiver: str, message: LeaseUpdate, rng: Random) -> Told:
        """A lease by another claim, or over another term."""
        lease, signer = message.lease, self._world.identity(rng.choice((liar, liar, receiver)))
        others = [claim.digest for claim in self._liars[liar].shown.values()]
        contract = state(signer, CONTRACT, rng.choice((*others, bytes(32))), self._world.now, f"{lease} by another")
        term = Term(message.term.start, message.term.end + rng.choice((-1, 1, HOUR)))
        changed: tuple[dict[str, Any], ...] = ({"contract": contract.encode()}, {"term": term})
        return [(receiver, replace(message, **rng.choice(changed)) if term.start < term.end else message)]

    def _stranger(self, liar: str, receiver: str, message: LeaseUpdate, rng: Random) -> Told:
        """The same of a lease of somebody else, which is at another site."""
        others = self._others()
        if not others:
            return [(receiver, message)]
        lease, number = rng.choice(others)
        other = rng.choice(self._world.scenario.guests)
        return [(receiver, message), (other, replace(message, lease=lease, number=number))]

    # -- receipts ----------------------------------------------------------------------------------------------

    def _signed_receipt(self, liar: str, claim: bytes, lease: str, rng: Random) -> bytes:
        at = rng.choice((0, self._world.now, self._world.now, INSTANT_MAX))
        return state(self._world.identity(liar), RECEIPT, claim, at, lease).encode()

    def _receipt(self, liar: str, receiver: str, message: Relinquished | Accepted, rng: Random) -> Told:
        """A receipt for what it has not got back, or for something else; or none for what it has."""
        shown = self._liars[liar].shown
        claim = shown.get(message.lease) or (rng.choice(list(shown.values())) if shown else None)
        digest = claim.digest if claim is not None else bytes(32)
        data = rng.choice((b"", b"junk", self._signed_receipt(liar, digest, message.lease, rng)))
        if isinstance(message, Relinquished) and not data:
            return [(receiver, replace(message, receipt=b"", reason=Reason(Code.REDEEMED)))]
        return [(receiver, replace(message, receipt=data))]

    def _accuses(self, liar: str, receiver: str, message: Accepted, rng: Random) -> Told:
        """A site accuses a broker of what it has not done, and has taken what nobody gave it."""
        world = self._world
        claims = [claim.digest for claim in self._liars[liar].shown.values()] or [bytes(32)]
        told: Told = [(receiver, message)]
        for broker in world.scenario.brokers if liar in world.scenario.sites else ():
            claim, number = rng.choice(claims), rng.getrandbits(30)
            why = Reason(rng.choice((Code.OVERDELEGATED, Code.OVERSUBSCRIBED, Code.REPLACED)))
            receipt = rng.choice((b"", self._signed_receipt(liar, claim, message.lease, rng)))
            told.append((broker, ClaimReport(claim.hex(), number, why, receipt)))
        return told

    def _withholds(self, liar: str, receiver: str, message: Withhold, rng: Random) -> Told:
        """More, or less, than is out of service, or of another time."""
        units = rng.choice((0, 1, 1000))
        start = rng.choice((0, message.term.start, self._world.now))
        return [(receiver, replace(message, units=units, term=Term(start, start + HOUR), by_class=()))]

    # -- topologies and introductions --------------------------------------------------------------------------

    def _quotes(self, liar: str, receiver: str, message: Quoted, rng: Random) -> Told:
        """More free than there is, or less, elsewhere, at other times."""
        site, later = rng.choice(tuple(self._world.scenario.sites)), rng.choice((MINUTE, HOUR))
        offers = message.offers
        other = rng.choice(
            (
                (), offers * 2, tuple(replace(one, site=site) for one in offers),
                tuple(replace(one, steps=_changed(one.steps, 0, 5)) for one in offers),
                tuple(replace(one, steps=_changed(one.steps, later, 0)) for one in offers),
            )
        )  # fmt: skip
        return [(receiver, replace(message, offers=other))]

    def _held(self, liar: str, receiver: str, message: PartsHeld, rng: Random) -> Told:
        """Yes for no: nothing is held, or something that nobody will take."""
        return [(receiver, replace(message, reason=None if message.reason else said("so it is")))]

    def _planned(self, liar: str, receiver: str, message: Planned, rng: Random) -> Told:
        """Another plan than was made, or none, or one that is not held."""
        start, end = message.term
        parts, other = message.parts, rng.choice((*self._world.scenario.sites, "nowhere"))
        changes: list[dict[str, Any]] = [
            {"status": rng.choice(("held", "planned", "refused", "lost"))}, {"term": Term(start, end + MINUTE)},
            {"parts": parts[1:]}, {"parts": parts * 2}, {"plan": rng.choice(("", "another"))},
            {"parts": tuple(replace(part, units=part.units + 1) for part in parts)},
            {"parts": tuple(replace(part, site=other) for part in parts)},
            {"expires": rng.choice((0, INSTANT_MAX))}, {"earliest": rng.choice((0, INSTANT_MAX))},
        ]  # fmt: skip
        return [(receiver, replace(message, **rng.choice(changes)))]

    def _introduces(self, liar: str, receiver: str, message: Introduce, rng: Random) -> Told:
        """Somebody of another role, or whom it has not signed for; or until another time."""
        said_, world = "\n".join((rng.choice(("broker", "site", "nobody")), message.peer, "")), self._world
        made = state(world.identity(liar), ENDORSEMENT, world.key(message.peer), world.now, said_)
        changes: list[dict[str, Any]] = [
            {"endorsement": made.encode()}, {"endorsement": b"junk"}, {"until": rng.choice((0, INSTANT_MAX))},
        ]  # fmt: skip
        return [(receiver, replace(message, **rng.choice(changes)))]


def _changed(steps: Sequence[int], later: int, more: int) -> tuple[int, ...]:
    """Pairs of an instant and what is free from then on, one after the other."""
    return tuple(number + (more if place % 2 else later) for place, number in enumerate(steps))


def _is_ticket(data: bytes) -> bool:
    try:
        decode_ticket(data)
    except TicketError:
        return False
    return True
