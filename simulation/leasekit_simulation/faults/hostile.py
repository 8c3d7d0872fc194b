"""A hostile guest: every actor knows its key and takes its messages, and it obeys no rule.

It asks for tickets like any guest, then redeems them twice, elsewhere, after it gave them back, or changed; it redeems
those of others that it has overheard; and it speaks of leases that are not its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Final

import msgpack

from leasekit.core.claims.claim import Claim, decode_ticket, delegate, delegate_root, issue
from leasekit.core.claims.signed import RELINQUISHMENT, key_tag, state
from leasekit.core.properties import EMPTY, Properties
from leasekit.core.protocol.codec import UnknownKind, decode_batch, encode_batch
from leasekit.core.protocol.messages import (
    EXTEND,
    MODIFY,
    NEW,
    Accepted,
    Ack,
    CloseLease,
    ErrorReply,
    LeaseUpdate,
    Message,
    Offer,
    OfferAnswer,
    Redeem,
    Relinquish,
    Relinquished,
    RequestTicket,
    ReturnTicket,
    TicketUpdate,
    Withdraw,
    Withhold,
)
from leasekit.core.reasons import Code, Reason, said
from leasekit.core.steps import Received
from leasekit.core.time import MINUTE, Term
from leasekit_simulation.faults.checkers import Listening
from leasekit_simulation.faults.odd_words import costly_filter, odd_properties
from leasekit_simulation.faults.scenario import HOSTILE, ROGUE, Do
from leasekit_simulation.faults.world import FaultyWorld

KEPT: Final = 12


class Overheard(Listening):
    """The latest tickets, requests and leases that went over the wire."""

    def __init__(self) -> None:
        super().__init__()
        self.sends = {TicketUpdate: self._ticket, Redeem: self._request, RequestTicket: self._request}
        self.tickets: list[TicketUpdate] = []
        self.leases: list[tuple[str, int]] = []

    def _ticket(self, at: int, sender: str, receiver: str, message: TicketUpdate) -> None:
        if message.ticket and receiver != HOSTILE:
            self.tickets = [*self.tickets[-KEPT:], message]

    def _request(self, at: int, sender: str, receiver: str, message: Any) -> None:
        if sender != HOSTILE:
            self.leases = [*self.leases[-KEPT:], (message.lease, message.number)]


class HostileGuest:
    """What it does, one method for each kind of malice."""

    def __init__(
        self, world: FaultyWorld, owned: Callable[[str, str], None], signed: Callable[[Claim, Claim, str], None]
    ) -> None:
        """``owned`` is told of each site and lease for which it has redeemed a ticket, ``signed`` of each claim that
        the rogue broker makes, after the claim above it and with the lease that it is for.
        """
        self._signed = signed
        self._world = world
        self._owned = owned
        self.overheard = Overheard()
        self.tag = key_tag(world.key(HOSTILE))
        self._me = world.identity(HOSTILE)
        self._count = 0
        self._tickets: list[TicketUpdate] = []
        self._sources: dict[str, Offer] = {}
        world.on_hostile = self._hear
        self._operations: dict[Do, Callable[[Random], None]] = {
            "twice": self._twice, "elsewhere": self._elsewhere, "stolen": self._stolen, "altered": self._altered,
            "forged": self._forged, "self_made": self._self_made, "meddle": self._meddle, "returned": self._returned,
            "nonsense": self._nonsense, "overdelegate": self._overdelegate,
            "beyond": self._beyond, "wordy": self._wordy,
        }  # fmt: skip

    def can(self, do: Do) -> bool:
        """Whether this is one of its operations."""
        return do in self._operations

    def act(self, do: Do, rng: Random) -> None:
        """Do one of its operations, and ask for another ticket to do the next ones with."""
        self._operations[do](rng)
        self._ask(rng)

    # -- what it has -------------------------------------------------------------------------------------------

    def _hear(self, sender: str, receiver: str, message: Message) -> None:
        if isinstance(message, TicketUpdate) and message.ticket:
            self._tickets = [*self._tickets[-KEPT:], message]
        elif isinstance(message, Offer) and receiver == ROGUE:
            self._sources[sender] = message
            self._soon(sender, OfferAnswer(message.delegation, message.number, None))
        elif isinstance(message, Withhold) and receiver == ROGUE:
            self._soon(sender, Accepted(message.delegation, message.number))

    def _soon(self, site: str, answer: Message) -> None:
        self._world.call_at(self._world.now + 1, site, lambda: self._answer(site, answer))

    def _answer(self, site: str, answer: Message) -> None:
        if self._world.is_up(site):
            self._world.inbox(site, [Received(ROGUE, answer)])

    def _id(self) -> str:
        self._count += 1
        return f"{self.tag}-{self._count}"

    def _say(self, to: str, message: Message) -> None:
        """As if it had come over a connection of its own."""
        world = self._world
        if not world.is_up(to):
            return
        if isinstance(message, RequestTicket | Redeem):
            world.tell(HOSTILE, to, message)
        decoded = decode_batch(encode_batch([message]))
        world.feed(to, [Received(HOSTILE, item) for item in decoded if not isinstance(item, UnknownKind)])

    def _ask(self, rng: Random) -> None:
        world = self._world
        start = world.now + rng.choice((0, 30_000))
        term = Term(start, start + rng.choice((MINUTE, 5 * MINUTE)))
        broker = rng.choice(list(world.scenario.brokers))
        self._say(broker, RequestTicket(self._id(), 1, NEW, "default", "vm", 1, term, "", EMPTY, b""))

    def _own(self, rng: Random) -> TicketUpdate | None:
        """One of its tickets that may still be of use."""
        fit = [t for t in self._tickets if decode_ticket(t.ticket).leaf.term.end > self._world.now]
        return rng.choice(fit) if fit else None

    def _redeem(self, site: str, ticket: bytes, resource: Properties, lease: str = "", number: int = 1) -> None:
        lease = lease or self._id()
        self._owned(site, lease)
        self._say(site, Redeem(lease, number, NEW, "default", ticket, resource, EMPTY, (), b""))

    def _other_site(self, rng: Random, site: str) -> str:
        others = [name for name in self._world.scenario.sites if name != site]
        return rng.choice(others) if others else site

    # -- what it does ------------------------------------------------------------------------------------------

    def _twice(self, rng: Random) -> None:
        if own := self._own(rng):
            self._world.mark("malice: ticket redeemed twice")
            self._redeem(own.site, own.ticket, own.properties, own.lease)
            self._redeem(own.site, own.ticket, own.properties)

    def _elsewhere(self, rng: Random) -> None:
        if own := self._own(rng):
            self._world.mark("malice: ticket redeemed at another site")
            self._redeem(self._other_site(rng, own.site), own.ticket, own.properties)

    def _stolen(self, rng: Random) -> None:
        if self.overheard.tickets:
            self._world.mark("malice: ticket of another guest")
            stolen = rng.choice(self.overheard.tickets)
            self._redeem(stolen.site, stolen.ticket, stolen.properties)

    def _altered(self, rng: Random) -> None:
        """One byte's worth of more units, under the signature of the broker."""
        own = self._own(rng)
        if own is None:
            return
        self._world.mark("malice: altered claim")
        *head, (body, signature) = msgpack.unpackb(own.ticket, use_list=False)
        fields = list(msgpack.unpackb(body, use_list=False))
        change = rng.randrange(3)
        if change == 0:
            fields[4] += 1
        elif change == 1:
            fields[6] += MINUTE
        else:
            fields[2] = self._world.key(rng.choice(self._world.scenario.guests))
        self._redeem(own.site, msgpack.packb((*head, (msgpack.packb(fields), signature))), own.properties)

    def _forged(self, rng: Random) -> None:
        """A claim in the name of a broker, signed with its own key."""
        if own := self._own(rng) or (rng.choice(self.overheard.tickets) if self.overheard.tickets else None):
            self._world.mark("malice: forged signature")
            *head, leaf = decode_ticket(own.ticket).chain
            signer = _Pretender(leaf.issuer, self._me.sign)
            start = self._world.now
            forged = issue(
                signer, holder=self._me.public, type=leaf.type, units=((leaf.classes[0][0], 1),),
                term=Term(start, start + 5 * MINUTE), serial=rng.getrandbits(30), parent=leaf.parent,
            )  # fmt: skip
            chain = [(claim.body, claim.signature) for claim in (*head, forged)]
            self._redeem(own.site, msgpack.packb(chain), own.properties)

    def _self_made(self, rng: Random) -> None:
        self._world.mark("malice: claim of its own making")
        term = Term(self._world.now, self._world.now + 5 * MINUTE)
        made = delegate_root(
            self._me, holder=self._me.public, type="vm", units=1, term=term, serial=rng.getrandbits(30)
        )
        self._redeem(rng.choice(list(self._world.scenario.sites)), made.encode(), EMPTY)

    def _returned(self, rng: Random) -> None:
        if own := self._own(rng):
            self._world.mark("malice: ticket redeemed after it was given back")
            leaf = decode_ticket(own.ticket).leaf
            note = state(self._me, RELINQUISHMENT, leaf.digest, self._world.now, own.lease).encode()
            self._say(own.site, Relinquish(own.lease, 2, own.ticket, note))
            self._redeem(own.site, own.ticket, own.properties)

    def _overdelegate(self, rng: Random) -> None:
        """A broker signs more than it has, and its tickets are redeemed."""
        if not self._sources:
            return
        self._world.mark("malice: over-delegation")
        site = rng.choice(list(self._sources))
        offer = self._sources[site]
        above = decode_ticket(offer.ticket)
        start = self._world.now
        for _ in range(rng.randint(1, 3)):
            term = Term(start, start + rng.choice((MINUTE, 5 * MINUTE)))
            signer = self._world.identity(ROGUE)
            serial = rng.getrandbits(30)
            ticket = delegate(above, signer, holder=self._me.public, units=1, term=term, serial=serial)
            lease = self._id()
            self._signed(above.leaf, ticket.leaf, lease)
            self._redeem(site, ticket.encode(), offer.properties, lease)

    def _beyond(self, rng: Random) -> None:
        """A broker signs a claim that its own does not cover: more units than that has, or a longer term."""
        if not self._sources:
            return
        self._world.mark("malice: claim beyond its parent")
        site = rng.choice(list(self._sources))
        above = decode_ticket(self._sources[site].ticket).leaf
        units, end = rng.choice(((above.capacity + 1, self._world.now + MINUTE), (1, above.term.end + 1)))
        made = issue(
            self._world.identity(ROGUE), holder=self._me.public, type=above.type,
            units=((above.classes[0][0], units),), term=Term(self._world.now, end), serial=rng.getrandbits(30),
            parent=above.digest,
        )  # fmt: skip
        chain = [(claim.body, claim.signature) for claim in (*decode_ticket(self._sources[site].ticket).chain, made)]
        self._redeem(site, msgpack.packb(chain), self._sources[site].properties)

    def _meddle(self, rng: Random) -> None:
        """Speak of leases that are others'."""
        if not self.overheard.leases:
            return
        self._world.mark("malice: others' leases")
        lease, number = rng.choice(self.overheard.leases)
        number += rng.choice((0, 1, 1000))
        term = Term(self._world.now, self._world.now + MINUTE)
        to_site: Sequence[Message] = (
            CloseLease(lease, number, b""),
            Ack(lease, number),
            Redeem(lease, number, MODIFY, "default", b"", EMPTY, {"size": "9"}, (), b""),
            Redeem(lease, number, EXTEND, "default", b"junk", EMPTY, EMPTY, (), b""),
            OfferAnswer(f"{rng.choice(list(self._world.scenario.sites))}/vm@broker-0", 1, said("no")),
        )
        to_broker: Sequence[Message] = (
            Withdraw(lease, number, number - 1),
            Ack(lease, number),
            RequestTicket(lease, number, EXTEND, "default", "vm", 1, term, "", EMPTY, b""),
            ReturnTicket(lease, number, b"junk"),
        )
        to_guest: Sequence[Message] = (
            TicketUpdate(lease, 1, number, "granted", b"junk", "", EMPTY, b"", None, -1),
            LeaseUpdate(lease, 1, number, "closed", term, (), None, b"", b""),
            Accepted(lease, number),
            ErrorReply(lease, number, Reason(Code.UNKNOWN_LEASE, detail="no")),
            Relinquished(lease, number, b"", said("no")),
        )
        scenario = self._world.scenario
        self._say(rng.choice(list(scenario.sites)), rng.choice(to_site))
        self._say(rng.choice(list(scenario.brokers)), rng.choice(to_broker))
        self._say(rng.choice(scenario.guests), rng.choice(to_guest))

    def _wordy(self, rng: Random) -> None:
        """What is long, dear, or would be taken for something else, also with control characters."""
        self._world.mark("malice: odd words")
        now = self._world.now
        term, text = Term(now, now + MINUTE), {"title": "\x1b]0;root\x07", "null": "a\x00b"}
        for broker in self._world.scenario.brokers:
            for properties in (odd_properties(rng), {"filter": costly_filter(rng)}, text):
                self._say(broker, RequestTicket(self._id(), 1, NEW, "default", "vm", 1, term, "", properties, b""))
        if own := self._own(rng):
            for configuration in (text, odd_properties(rng)):
                lease = self._id()
                self._owned(own.site, lease)
                self._say(
                    own.site, Redeem(lease, 1, NEW, "\u202e", own.ticket, own.properties, configuration, (), b"")
                )  # fmt: skip

    def _nonsense(self, rng: Random) -> None:
        """What decodes and makes no sense."""
        self._world.mark("malice: nonsense")
        term = Term(0, 1)
        for name in self._world.scenario.actors:
            for message in (
                RequestTicket("nobody", 1, "steal", "s", "t", 1, term, "nowhere", {"elastic": "maybe"}, b""),
                RequestTicket(self._id(), 2**62, NEW, "s", "vm", 2**30, Term(0, 2**52), "", EMPTY, b""),
                Redeem(self._id(), 2**62, NEW, "s", bytes(64), EMPTY, EMPTY, ("vm-0",) * 9, b""),
                LeaseUpdate("?", 2**60, 2**60, "dissolved", term, (), None, b"", b""),
                Withdraw(self._id(), 1, 1),
            ):
                self._say(name, message)


class _Pretender:
    """Signs in another's name with its own key."""

    def __init__(self, public: bytes, sign: Callable[[bytes], bytes]) -> None:
        self.public = public
        self.sign = sign
