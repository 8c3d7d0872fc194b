"""The book of claims: what brokers have given away, what sites have voided, and what they honour; and that what a claim
says beside its units and term is what was asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import attrs
import msgspec

from leasekit.core.claims.claim import (
    CLASS_OF,
    MIN_RUN_OF,
    NOTICE_OF,
    READY_AT,
    REDEEM_BY,
    REPLACES,
    SAVING,
    SUSPEND_OF,
    UNUSED_UNTIL,
    Claim,
    EarlyTerms,
    begin_of,
    decode_ticket,
    early_terms,
    redeem_by,
    sizes_of,
    split_tickets,
)
from leasekit.core.claims.signed import decode_statement
from leasekit.core.errors import CommandError, TicketError
from leasekit.core.properties import NEEDS, Counts, count_of, counts, weigh
from leasekit.core.protocol.messages import (
    EXTEND,
    MODIFY,
    NEW,
    REPLACE,
    Accepted,
    ClaimReport,
    LeaseUpdate,
    Offer,
    Relinquished,
    RequestTicket,
    ReturnTicket,
    TicketUpdate,
    Truncated,
    Withhold,
)
from leasekit.core.reasons import Code
from leasekit.core.requests import SUSPEND, Options, parse_options
from leasekit.core.schema import Row
from leasekit.core.time import INSTANT_MAX, Duration, Instant, Term
from leasekit_simulation.faults.checkers import Listening, must
from leasekit_simulation.faults.scenario import HOSTILE

OLD: Final = 64
"""From how many children on those that are long over are forgotten."""


@attrs.define
class Given:
    """A claim that a broker has given: ``until`` is when it ends as far as the broker may count on it, ``at_most`` when
    it ends at the latest (what a modify cut off comes back if the modify is undone).
    """

    claim: Claim
    lease: str
    until: Instant
    at_most: Instant
    cut: bytes = b""
    delegated: bool = False


class Source(NamedTuple):
    """A claim that a broker holds by delegation ``name``, and the key of the site that it comes from; ``number`` is
    that of its offer, since a delegation that is over may come again under its name.
    """

    claim: Claim
    site: bytes
    name: str
    number: int


class ClaimChecker(Listening):
    """What a broker has given away of a delegation never exceeds it, at any instant. A claim ends early only by the
    broker's own truncation, or by the site's receipt from when the broker has it. What is granted is what was asked
    for, and a group is granted whole.
    """

    kind = "claims"

    def __init__(self) -> None:
        super().__init__()
        self.sends = {
            TicketUpdate: self._ticket_update,
            Offer: self._offer,
            RequestTicket: self._request,
            Accepted: self._accepted,
            Truncated: self._truncated,
        }
        self.receives = {
            ReturnTicket: self._return,
            ClaimReport: self._report,
            Accepted: self._cut_accepted,
            Withhold: self._withhold,
        }
        self._asked_to_withhold: dict[tuple[str, str, int], Withhold] = {}
        self._withheld: dict[str, dict[str, tuple[int, Term, tuple[int, ...]]]] = {}
        self._last_withheld: dict[tuple[str, str, str], int] = {}
        self._offered: dict[str, int] = {}
        self.joined = 0
        """How many grants were tickets that go on from each other, over more than one delegation."""
        self.children: dict[bytes, dict[bytes, Given]] = {}
        self.chains: dict[tuple[str, str], list[bytes]] = {}
        """The claims of each renewal chain, by who holds it, in order."""
        self._chain_of: dict[bytes, tuple[str, str]] = {}
        self.sources: dict[bytes, Source] = {}
        self._cuts: dict[tuple[str, str, str, int], bytes] = {}
        self.issued: dict[bytes, Given] = {}
        self.requests: dict[tuple[str, int], RequestTicket] = {}
        self._coming_back: dict[tuple[str, str, int], bytes] = {}
        self._replaced: dict[tuple[str, str, int], bytes] = {}
        self._cut_at: dict[bytes, Instant] = {}
        self._noticed: dict[bytes, Instant] = {}
        self._groups: dict[tuple[str, str], dict[str, tuple[int, Term]]] = {}
        self._members: dict[tuple[str, str], int] = {}
        self._waiting: dict[tuple[str, str], dict[str, Instant]] = {}
        self._answered: dict[tuple[str, str], dict[str, Instant]] = {}
        self._refused: dict[tuple[str, str], Instant] = {}

    def _offer(self, at: Instant, sender: str, receiver: str, message: Offer) -> None:
        """What a broker gives to another counts against what it has, like a ticket."""
        chain = decode_ticket(message.ticket).chain
        leaf = chain[-1]
        if leaf.digest in self.sources:
            return
        self.sources[leaf.digest] = Source(leaf, chain[0].issuer, message.delegation, message.number)
        renewals = self._chain_of[leaf.digest] = (receiver, message.renewal_of or message.delegation)
        self.chains.setdefault(renewals, []).append(leaf.digest)
        self._offered[message.delegation] = message.number
        self._withheld.pop(message.delegation, None)  # that was of one that is over: of this nothing is withheld yet
        if len(chain) > 1:
            given = Given(leaf, message.delegation, leaf.term.end, leaf.term.end, delegated=True)
            self.issued[leaf.digest] = given
            self.children.setdefault(chain[-2].digest, {})[leaf.digest] = given
            self._check(chain[-2], leaf)

    def _truncated(self, at: Instant, sender: str, receiver: str, message: Truncated) -> None:
        self._cuts[receiver, sender, message.lease, message.number] = message.truncation
        cut = decode_statement(message.truncation)
        self._noticed[cut.subject] = cut.at

    def _cut_accepted(self, at: Instant, sender: str, receiver: str, message: Accepted) -> None:
        """The site goes by an early end that the issuer has told it, or by an earlier one, as its receipt says: now the
        issuer has the rest again.
        """
        data = self._cuts.get((sender, receiver, message.lease, message.number))
        if data is not None and message.receipt:
            self._end(decode_statement(data).subject, decode_statement(message.receipt).at)

    def _request(self, at: Instant, sender: str, receiver: str, message: RequestTicket) -> None:
        if sender == HOSTILE:  # it may speak of the leases of others, in their numbers
            self.requests.setdefault((message.lease, message.number), message)
        else:
            self.requests[message.lease, message.number] = message

    def _ticket_update(self, at: Instant, sender: str, receiver: str, message: TicketUpdate) -> None:
        """A new claim counts from when it is shown to anybody."""
        if not message.ticket:
            return
        chains = chains_of(message)
        first = chains[0][-1]
        if first.digest in self.issued:
            return
        replaced = b""
        if message.truncation:
            cut = decode_statement(message.truncation)
            replaced = cut.subject
            self._cut_at[cut.subject] = cut.at
            self._end(cut.subject, cut.at)
        elif UNUSED_UNTIL in first.constraints:
            replaced = bytes.fromhex(first.constraints[REPLACES])
            must(replaced in self.issued, f"{sender} replaces a claim of {message.lease} that was never shown")
            old = self.issued[replaced].claim
            self._cut_at[replaced] = old.term.start
            self._end(replaced, old.term.start)
        for chain in chains:
            self._give(chain[-2], chain[-1], message.lease, replaced if chain is chains[0] else b"")
        term = _joined([chain[-1] for chain in chains], message.lease)
        self.joined += len(chains) > 1
        request = self.requests.get((message.lease, message.number))
        must(request is not None, f"{sender} grants {message.lease} what nobody asked for, as {message.number}")
        assert request is not None
        noticed = self._noticed.get(request.claim, -1)
        if request.op == MODIFY and term.end == noticed < request.term.end:  # what is left ends as it was to end
            request = msgspec.structs.replace(request, term=request.term._replace(end=noticed))
        _check_asked(first, term, request, message, part=SAVING in chains[-1][-1].constraints)
        if request.op == NEW and "group_id" in request.properties:
            self._grouped(receiver, request, first.units, term)

    def _give(self, parent: Claim, leaf: Claim, lease: str, replaced: bytes) -> None:
        given = Given(leaf, lease, leaf.term.end, leaf.term.end, replaced)
        self.issued[leaf.digest] = given
        siblings = self.children.setdefault(parent.digest, {})
        siblings[leaf.digest] = given
        self._check(parent, leaf, replaced)
        if len(siblings) > OLD and len(siblings) % OLD == 0:
            self._forget(siblings, leaf)

    def _withhold(self, at: Instant, sender: str, receiver: str, message: Withhold) -> None:
        """A broker is asked to grant nothing of some units for a while: it does so from when it accepts that, and until
        it is asked for less.
        """
        if message.number < self._last_withheld.get((receiver, message.delegation, message.window), 0):
            return  # it was overtaken: the broker knows better
        windows = self._withheld.get(message.delegation, {})
        known = windows.get(message.window)
        if known is not None and message.units < known[0]:
            del windows[message.window]
        self._asked_to_withhold[receiver, message.delegation, message.number] = message

    def _withholds(self, broker: str, agreed: Withhold) -> None:
        """What a broker has agreed to; of what comes out of order the latest counts."""
        key = (broker, agreed.delegation, agreed.window)
        if agreed.number < max(self._last_withheld.get(key, 0), self._offered.get(agreed.delegation, 0)):
            return
        self._last_withheld[key] = agreed.number
        windows = self._withheld.setdefault(agreed.delegation, {})
        windows.pop(agreed.window, None)
        if agreed.units:
            windows[agreed.window] = (agreed.units, agreed.term, agreed.by_class)

    def check_withheld(self, message: TicketUpdate) -> None:
        """An update that is sent as soon as it was decided: a new claim takes nothing that its broker has agreed to
        withhold (which it may pass on to brokers below).
        """
        request = self.requests.get((message.lease, message.number))
        if message.ticket and request is not None and request.op != MODIFY:
            for chain in chains_of(message):
                self._check_withheld(chain[-2], chain[-1])

    def _check_withheld(self, parent: Claim, leaf: Claim) -> None:
        source = self.sources.get(parent.digest)
        if source is None:
            return
        held = self.children[parent.digest].values()
        if any(given.delegated for given in held):
            return
        for class_, capacity in parent.capacities:
            for units, (start, end), by_class in self._withheld.get(source.name, {}).values():
                withheld = count_of(withheld_of(parent, units, by_class), class_)
                if count_of(leaf.weights, class_) and start < leaf.term.end and leaf.term.start < end and withheld:
                    both = Term(max(start, leaf.term.start), min(end, leaf.term.end))
                    instant, total = fullest_of(held, class_, both)
                    must(
                        total + withheld <= capacity,
                        f"claim {leaf.id[:8]}: at {instant} the children hold {total} of {capacity} units, and "
                        f"{withheld} are withheld",
                    )

    def _grouped(self, holder: str, request: RequestTicket, units: int, term: Term) -> None:
        group = (holder, request.properties["group_id"])
        self._groups.setdefault(group, {})[request.lease] = (units, term)
        if "lease_count" in request.properties:
            self._members[group] = int(request.properties["lease_count"])

    def announced(self, at: Instant, receiver: str, message: TicketUpdate) -> None:
        """An answer that is sent for the first time."""
        request = self.requests.get((message.lease, message.number))
        if request is None or request.op != NEW or "group_id" not in request.properties:
            return
        group = (receiver, request.properties["group_id"])
        self._answered.setdefault(group, {}).setdefault(message.lease, at)
        if message.status == "refused":
            self._refused.setdefault(group, at)

    def torn_groups(self) -> list[str]:
        """Groups of which some members were granted and others were not, or not over one term; and members that were
        not let go when their group was refused.
        """
        found = []
        for group, at in self._refused.items():
            answered = self._answered[group]
            late = [lease for lease, since in self._waiting.get(group, {}).items()
                    if since < at and answered.get(lease, at + 1) > at]  # fmt: skip
            if late:
                found.append(f"{group[0]}'s {group[1]} was refused at {at}, and {late} waited on")
        for group, granted in self._groups.items():
            count = self._members.get(group, 0)
            if len(granted) != count or len({term for _, term in granted.values()}) != 1:
                found.append(f"{group[0]}'s {group[1]}: {len(granted)} of {count} were granted: {dict(granted)}")
        return found

    def _return(self, at: Instant, sender: str, receiver: str, message: ReturnTicket) -> None:
        """A receipt that has reached the broker."""
        try:
            receipt = decode_statement(message.receipt)
        except TicketError:
            return  # the broker's to refuse
        self._end(receipt.subject, receipt.at)
        self._coming_back[receiver, message.lease, message.number] = message.receipt

    def _accepted(self, at: Instant, sender: str, receiver: str, message: Accepted) -> None:
        """Now the broker can't forget any more that it has the units again, or that a request waits."""
        agreed = self._asked_to_withhold.pop((sender, message.lease, message.number), None)
        if agreed is not None:
            self._withholds(sender, agreed)
        request = self.requests.get((message.lease, message.number))
        if request is not None and request.op == NEW and "group_id" in request.properties:
            group = (receiver, request.properties["group_id"])
            self._waiting.setdefault(group, {}).setdefault(message.lease, at)
        replaced = self._replaced.pop((sender, message.lease, message.number), b"")
        old = self.issued.get(replaced)
        if old is not None:  # of several modifies the last one: those before it came back unused
            old.at_most = min(old.at_most, self._cut_at.get(replaced, old.until))
        data = self._coming_back.pop((sender, message.lease, message.number), b"")
        if data:
            receipt = decode_statement(data)
            given = self.issued.get(receipt.subject)
            if given is not None:
                given.at_most = min(given.at_most, max(given.claim.term.start, receipt.at))

    def _report(self, at: Instant, sender: str, receiver: str, message: ClaimReport) -> None:
        """The site goes by the claim that a modify was granted: the one before it can't come back."""
        if message.reason.code == Code.REPLACED:
            self._replaced[receiver, message.claim, message.number] = bytes.fromhex(message.claim)

    def unreturned(self, after: Instant) -> list[Given]:
        """Claims that go on beyond an instant, as far as their brokers may know."""
        left = [given for given in self.issued.values() if not given.delegated]
        return [given for given in left if given.until > max(after, given.claim.term.start)]

    def rogue(self, parent: Claim, leaf: Claim, lease: str) -> None:
        """A claim of the broker that obeys no rule: it is its own affair whether there is enough for it."""
        self.issued[leaf.digest] = Given(leaf, lease, leaf.term.end, leaf.term.end)

    def _end(self, digest: bytes, at: Instant) -> None:
        given = self.issued.get(digest)
        if given is not None:
            given.until = max(given.claim.term.start, min(given.until, at))

    def of_chain(self, digest: bytes) -> list[Given]:
        """What was given of a claim, and of the others of its chain: where one stands in the place of another, what was
        given of both counts.
        """
        chain = self.chains.get(self._chain_of.get(digest, ("", "")), [digest])
        return [given for one in chain for given in self.children.get(one, {}).values()]

    def _check(self, parent: Claim, leaf: Claim, replaced: bytes = b"") -> None:
        self._check_sum(parent, leaf, self.children[parent.digest].values())
        if not replaced:  # a modify that takes nothing more is granted even where more is in use than there is
            self._check_sum(parent, leaf, self.of_chain(parent.digest))

    @staticmethod
    def _check_sum(parent: Claim, leaf: Claim, held: Collection[Given]) -> None:
        must(parent.term.contains(leaf.term), f"claim {leaf.id[:8]} over {leaf.term} leaves its parent's {parent.term}")
        for class_, _ in leaf.weights:
            instant, total = fullest_of(held, class_, leaf.term)
            capacity = count_of(parent.capacities, class_)
            must(
                total <= capacity,
                f"claim {leaf.id[:8]}: at {instant} the children hold {total} of {capacity} units",
            )

    @staticmethod
    def _forget(siblings: dict[bytes, Given], leaf: Claim) -> None:
        """What was over an hour before a new claim begins can't meet any that comes."""
        for digest in [d for d, given in siblings.items() if given.at_most + 3_600_000 < leaf.term.start]:
            del siblings[digest]


def withheld_of(claim: Claim, units: int, by_class: Sequence[int]) -> Counts:
    """What a window takes of a claim, as it is counted."""
    taken = counts(zip((class_ for class_, _ in claim.classes), by_class or (units,), strict=False))
    return weigh(taken, sizes_of(claim, taken))


def fullest_of(held: Collection[Given], class_: bytes, term: Term) -> tuple[Instant, int]:
    """As :func:`fullest`, of the units of one class that children hold."""
    return fullest([(count_of(g.claim.weights, class_), g.claim.term.start, g.until) for g in held], term)


def fullest(held: Sequence[tuple[int, Instant, Instant]], term: Term) -> tuple[Instant, int]:
    """The first instant of the term at which most units are held, and how many."""
    inside = [entry for entry in held if entry[1] < term.end and term.start < entry[2]]
    best = (term.start, 0)
    for instant in sorted({max(start, term.start) for _, start, _ in inside}):
        total = sum(units for units, start, end in inside if start <= instant < end)
        if total > best[1]:
            best = (instant, total)
    return best


def chains_of(message: TicketUpdate) -> list[Sequence[Claim]]:
    """The chains of the tickets of an update that grants: the first, and those that go on from it."""
    return [decode_ticket(data).chain for data in (message.ticket, *split_tickets(message.continuations))]


def _joined(leaves: Sequence[Claim], lease: str) -> Term:
    """The term of claims that go on from each other, without the time to prepare."""
    for before, after in pairwise(leaves):
        same = (before.type, before.units, before.holder) == (after.type, after.units, after.holder)
        must(
            same and before.term.end == after.term.start,
            f"{lease}: a claim for {after.units} {after.type} over {tuple(after.term)} goes on from "
            f"{before.units} {before.type} over {tuple(before.term)}",
        )
    return Term(begin_of(leaves[0]), leaves[-1].term.end)


def _check_asked(leaf: Claim, term: Term, request: RequestTicket, message: TicketUpdate, *, part: bool) -> None:
    """``part``: the lease is suspended at the end of the term."""
    what = f"{message.lease}: granted {leaf.units} of {leaf.type!r} over {tuple(term)}"
    must(leaf.type == request.type, f"{what}, asked for was {request.type!r}")
    least = int(request.properties.get("min_units", "1")) if "elastic" in request.properties else request.units
    must(min(least, request.units) <= leaf.units <= request.units, f"{what}, asked for were {request.units}")
    moves = request.op == NEW and ("deferrable" in request.properties or "group_id" in request.properties)
    if moves:
        must(
            term.length == request.term.length or (part and term.length < request.term.length),
            f"{what}, asked for was {tuple(request.term)}, deferrable",
        )
    else:
        must(term.end == request.term.end, f"{what}, asked for was {tuple(request.term)}")
    must(request.term.start <= term.start, f"{what}, asked for was {tuple(request.term)}")
    if request.op == EXTEND:
        must(term.start == request.term.start, f"{what}: the lease ends at {request.term.start}")
    must(request.op != MODIFY or bool(message.truncation), f"{what}, and nothing ends what it replaces")
    if request.site:
        must(message.site == request.site, f"{what} at {message.site}, asked for was {request.site}")


class HonourChecker(Listening):
    """A site makes a lease only of a claim that a broker has given to the lease's holder out of the site's own
    delegation, only once, and never after it gave a receipt for it; and gives it no more than the claim says.
    """

    kind = "claims"

    def __init__(self, claims: ClaimChecker, keys: Callable[[str], Sequence[bytes]], rogue: bytes = b"") -> None:
        """``rogue`` is the key of a broker that gives away more than it has."""
        super().__init__()
        self._claims, self._keys, self._rogue = claims, keys, rogue
        self._honoured: dict[bytes, dict[bytes, Claim]] = {}
        self.sends = {LeaseUpdate: self._lease_update, Relinquished: self._relinquished}
        self._used: dict[bytes, str] = {}
        self._void: dict[bytes, Instant] = {}
        self.contracts: dict[bytes, str] = {}

    def _relinquished(self, at: Instant, sender: str, receiver: str, message: Relinquished) -> None:
        if message.receipt:
            receipt = decode_statement(message.receipt)
            self._void.setdefault(receipt.subject, receipt.at)

    def _lease_update(self, at: Instant, sender: str, receiver: str, message: LeaseUpdate) -> None:
        if message.receipt:
            receipt = decode_statement(message.receipt)
            self._void.setdefault(receipt.subject, receipt.at)
        if message.state != "active":
            return
        contract = decode_statement(message.contract)
        if contract.digest in self.contracts:
            return
        self.contracts[contract.digest] = message.lease
        what = f"{sender} makes lease {message.lease} of {receiver} of claim {contract.subject.hex()[:8]}"
        must(contract.signer in self._keys(sender), f"{what}, and another signs for it")
        given = self._claims.issued.get(contract.subject)
        must(given is not None, f"{what}, which no broker has given")
        assert given is not None
        must(given.claim.holder in self._keys(receiver), f"{what}, which is held by somebody else")
        source = self._claims.sources.get(given.claim.parent)
        must(source is not None and source.site in self._keys(sender), f"{what}, which is of another site")
        assert source is not None
        other = self._used.setdefault(contract.subject, message.lease)
        must(other == message.lease, f"{what}, which was redeemed for {other}")
        must(contract.subject not in self._void, f"{what}, for which it gave a receipt")
        must(
            len(message.units) <= given.claim.units,
            f"{what}, with {len(message.units)} units: the claim is for {given.claim.units}",
        )
        must(message.term.end <= given.claim.term.end, f"{what} up to {message.term.end}, not {given.claim.term.end}")
        if source.claim.holder == self._rogue:
            self._check_rogue(source.claim, given.claim, what)

    def _check_rogue(self, source: Claim, leaf: Claim, what: str) -> None:
        """Of what a rogue gives away no more is honoured than it has."""
        honoured = self._honoured.setdefault(source.digest, {})
        honoured[leaf.digest] = leaf
        for class_, _ in leaf.weights:
            each = [(count_of(one.weights, class_), one.term.start, one.term.end) for one in honoured.values()]
            instant, total = fullest(each, leaf.term)
            capacity = count_of(source.capacities, class_)
            must(total <= capacity, f"{what}: at {instant} that makes {total} of {capacity} units of a rogue")


PREEMPTIBLE: Final = "preemptible"
KNOWN: Final = frozenset((
    PREEMPTIBLE, CLASS_OF, MIN_RUN_OF, NOTICE_OF, READY_AT, REDEEM_BY, REPLACES, SAVING, SUSPEND_OF, UNUSED_UNTIL,
    f"{NEEDS}cpu", f"{NEEDS}memory",
))  # fmt: skip


class GrantChecker(Listening):
    """A claim may be ended early only if its guest agreed to that, and no other is; it is of the site that the broker
    names, which the guest did not exclude; and it begins no later than is of use.
    """

    kind = "grants"

    def __init__(
        self,
        claims: ClaimChecker,
        sites: Iterable[str],
        clock: Callable[[str], Instant],
        keys: Callable[[str], Sequence[bytes]],
        defer_max: Duration = INSTANT_MAX,
    ) -> None:
        """``claims`` hears everything before this one does; ``defer_max`` is how long brokers may put off what does not
        say how long.
        """
        super().__init__()
        self._claims, self._clock, self._defer_max = claims, clock, defer_max
        self._sites, self._keys = tuple(sites), keys
        self.sends = {TicketUpdate: self._ticket_update, Truncated: self._truncated}
        self.receives = {RequestTicket: self._request}
        self._seen: set[bytes] = set()
        self._arrived: dict[tuple[str, str, int], Instant] = {}
        self._latest: dict[str, Instant] = {}
        self.stepped: set[str] = set()
        """Whose clocks went wrong: until when something is of use they may see otherwise."""

    def committed(self, at: Instant, actor: str, rows: Sequence[Row]) -> None:
        """A broker's time never goes back, whatever its clock does."""
        self._latest[actor] = max(self._latest.get(actor, 0), rows[-1][0])

    def _now(self, broker: str) -> Instant:
        return max(self._clock(broker), self._latest.get(broker, 0))

    def _request(self, at: Instant, sender: str, receiver: str, message: RequestTicket) -> None:
        # The last time counts: a broker that lost a request in a crash, or has forgotten its lease, hears it anew.
        self._arrived[receiver, message.lease, message.number] = self._now(receiver)

    def _truncated(self, at: Instant, sender: str, receiver: str, message: Truncated) -> None:
        cut = decode_statement(message.truncation)
        given = self._claims.issued.get(cut.subject)
        if given is not None and not given.delegated and not _is_preemptible(given.claim):
            lapsed = cut.at == given.claim.term.start and redeem_by(given.claim) <= self._now(sender)
            must(lapsed, f"{sender} ends a claim of {message.lease} early, which is firm")

    def _ticket_update(self, at: Instant, sender: str, receiver: str, message: TicketUpdate) -> None:
        request = self._claims.requests.get((message.lease, message.number))
        if not message.ticket or message.ticket in self._seen or request is None:
            return
        self._seen.add(message.ticket)
        chains = chains_of(message)
        what = f"{sender} grants {message.lease} {chains[0][-1].units} {chains[0][-1].type}"
        try:
            options = parse_options(request.properties, request.term)
        except CommandError as error:
            must(False, f"{what}, and the request is wrong: {error}")
            raise
        cut = decode_statement(message.truncation).subject.hex() if message.truncation else None
        if request.op == REPLACE:
            cut = request.claim.hex()
            end = str(self._claims.issued[request.claim].claim.term.end)
            must(chains[0][-1].constraints.get(UNUSED_UNTIL) == end, f"{what}: what it replaces ends at {end}")
        replaced = [chain[-1].constraints.get(REPLACES) for chain in chains]
        must(replaced == [cut, *[None] * (len(chains) - 1)], f"{what}: it cuts off {cut}, and replaces {replaced}")
        for chain in chains:
            self._check_site(chain[0].issuer, options, message, what)
            self._check_said(chain[-1], options, request, what)
        if request.op == NEW and options.deferrable:
            start, latest = begin_of(chains[0][-1]), self._latest_start(sender, request, options)
            must(start <= latest, f"{what} from {start} on, which is of use up to {latest}")

    def _check_site(self, root: bytes, options: Options, message: TicketUpdate, what: str) -> None:
        site = next((name for name in self._sites if root in self._keys(name)), "")
        must(site == message.site, f"{what} at {message.site}, and the ticket is of {site or 'no site'}")
        must(site not in options.exclude_sites, f"{what} at {site}, which its guest has excluded")

    def _check_said(self, leaf: Claim, options: Options, request: RequestTicket, what: str) -> None:
        other = sorted(leaf.constraints.keys() - KNOWN)
        must(not other, f"{what}, and the claim says {other}, which nobody knows")
        before = self._claims.issued.get(request.claim) if request.op != NEW else None
        stays = before is not None and (request.op == MODIFY or PREEMPTIBLE not in request.properties)
        agreed = options.preemptible or (stays and before is not None and _is_preemptible(before.claim))
        found = _is_preemptible(leaf)
        must(
            found == agreed,
            f"{what}, {PREEMPTIBLE if found else 'firm'}: it was asked for {PREEMPTIBLE if agreed else 'firm'}",
        )
        early, needs = early_terms(leaf.constraints), any(name.startswith(NEEDS) for name in leaf.constraints)
        must(found or early == EarlyTerms(early.priority), f"{what}: it is firm, and has a notice")
        if found and needs and options.notice is not None:
            must(
                early.notice == options.notice,
                f"{what}: its notice is {early.notice} ms, asked for was {options.notice}",
            )
        if found and needs and options.on_preempt == SUSPEND:
            must(early.suspend == options.suspend, f"{what}: it is saved in {early.suspend} ms, not {options.suspend}")
        must(begin_of(leaf) <= redeem_by(leaf), f"{what}: it is to be redeemed before it begins")
        must(SAVING not in leaf.constraints or found, f"{what}: it is to be suspended, and can't be preempted")

    def _latest_start(self, broker: str, request: RequestTicket, options: Options) -> Instant:
        """The latest start that is of use. Without one in the request it is the end of its broker's patience."""
        if options.latest_start:
            return options.latest_start
        if broker in self.stepped:
            return INSTANT_MAX
        now = self._now(broker)
        begun = now if options.group else self._arrived.get((broker, request.lease, request.number), now)
        patience = min(self._defer_max, options.request_timeout or INSTANT_MAX)
        return max(request.term.start, now, begun + patience)


def _is_preemptible(claim: Claim) -> bool:
    return claim.constraints.get(PREEMPTIBLE) == "true"
