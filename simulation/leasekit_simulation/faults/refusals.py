"""Refusals that should not have been: units that a broker or a site has lost sight of show only when somebody asks.

What is taken is counted as much as it may be by the book, and what there is as little: so whatever fits all the same
can't be refused for want of units.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import attrs

from leasekit.core.claims.claim import Claim, decode_ticket
from leasekit.core.claims.signed import decode_statement
from leasekit.core.errors import TicketError
from leasekit.core.filters import FilterError, seen, takes
from leasekit.core.properties import Counts, Properties, count_of, counts, first_of, fits, total
from leasekit.core.protocol.messages import (
    EXTEND,
    MODIFY,
    NEW,
    REPLACE,
    Accepted,
    CloseLease,
    ErrorReply,
    LeaseUpdate,
    LetGo,
    OfferAnswer,
    Reclaim,
    Redeem,
    Relinquish,
    RequestTicket,
    TicketUpdate,
    Withhold,
)
from leasekit.core.reasons import Code, Reason, is_mappers, words
from leasekit.core.schema import Row
from leasekit.core.steps import ActionDone
from leasekit.core.time import Instant, Term
from leasekit_simulation.faults.checkers import Listening, must, unit_of
from leasekit_simulation.faults.claim_book import ClaimChecker, Source, fullest
from leasekit_simulation.faults.unit_book import UnitChecker

NONE_FREE: Final = "in service and free"
"""What the mapper that gives what is free has in its words when there is nothing."""


def _code(message: TicketUpdate | LeaseUpdate) -> str:
    return message.reason.code if message.reason is not None else ""


def _is_none_free(reason: Reason | None) -> bool:
    return reason is not None and is_mappers(reason) and NONE_FREE in reason.detail


class BrokerRefusals(Listening):
    """A broker whose mapper grants whatever fits does not refuse what fits."""

    kind = "refusals"

    def __init__(
        self,
        claims: ClaimChecker,
        plain: frozenset[str],
        sites: Iterable[str],
        clock: Callable[[str], Instant],
        keys: Callable[[str], Sequence[bytes]],
        attributes: Mapping[bytes, Properties],
    ) -> None:
        """``plain`` names the brokers that decide each request at once, by what is free; ``attributes`` are those of
        each class of units.
        """
        super().__init__()
        self._attributes = attributes
        self._claims, self._plain, self._clock, self._keys = claims, plain, clock, keys
        self.sends = {OfferAnswer: self._offer_answer, LetGo: self._let_go}
        self.receives = {Reclaim: self._reclaim, Withhold: self._withhold}
        self._withheld: dict[tuple[str, str], set[tuple[int, Term, tuple[int, ...]]]] = {}
        self._taken: set[tuple[str, int]] = set()
        self.gone: set[str] = set()
        self._sites = tuple(sites)

    def _offer_answer(self, at: Instant, sender: str, receiver: str, message: OfferAnswer) -> None:
        if not message.reason:
            self._taken.add((message.delegation, message.number))

    def _let_go(self, at: Instant, sender: str, receiver: str, message: LetGo) -> None:
        self.gone.add(message.delegation)

    def _reclaim(self, at: Instant, sender: str, receiver: str, message: Reclaim) -> None:
        self.gone.add(message.delegation)

    def _withhold(self, at: Instant, sender: str, receiver: str, message: Withhold) -> None:
        """What a broker was ever asked not to grant counts as taken: it may hear late that it can."""
        self._withheld.setdefault((receiver, message.delegation), set()).add(
            (message.units, message.term, message.by_class)
        )

    def announced(self, sender: str, message: TicketUpdate) -> None:
        """An update that is sent for the first time."""
        if message.status != "refused" or sender not in self._plain or _code(message) == Code.NOT_GRANTED:
            return
        request = self._claims.requests.get((message.lease, message.number))
        if request is None or request.op in (MODIFY, REPLACE) or "group_id" in request.properties:
            return
        if "deferrable" in request.properties or "latest_start" in request.properties:
            return
        now = self._clock(sender)
        start = request.term.start if request.op == EXTEND else max(request.term.start, now)
        if start >= request.term.end or (request.op == EXTEND and start < now):
            return
        room = self._room(sender, request, Term(start, request.term.end))
        must(
            not room,
            f"{sender} refuses {message.lease} {request.units} {request.type} ({words(message.reason)}): {room}",
        )

    def _is_replaced(self, digest: bytes, root: Claim) -> bool:
        """Whether another claim was offered in the place of this one: its holder may go by either."""
        chain = next(chain for chain in self._claims.chains.values() if digest in chain)
        others = [self._claims.sources[one].claim for one in chain[chain.index(digest) + 1 :]]
        return any(other.term.overlaps(root.term) for other in others)

    def _room(self, broker: str, request: RequestTicket, term: Term) -> str:
        least = int(request.properties.get("min_units", "1")) if "elastic" in request.properties else request.units
        before = self._claims.issued.get(request.claim) if request.op == EXTEND else None
        excluded = {name.strip() for name in request.properties.get("exclude_sites", "").split(",")}
        for digest, source in self._claims.sources.items():
            root = source.claim
            site = next((name for name in self._sites if source.site in self._keys(name)), "")
            if (source.name, source.number) not in self._taken or source.name in self.gone:
                continue
            if self._is_replaced(digest, root):
                continue
            if root.holder not in self._keys(broker) or root.type != request.type or not root.term.contains(term):
                continue
            if site in excluded or (request.op == NEW and request.site not in ("", site)):
                continue
            if request.op == EXTEND and (before is None or before.claim.parent != digest):
                continue
            if root.sizes:
                continue  # what is free of hosts may be in pieces
            if min(least, request.units) > root.units:
                continue  # mappers give no lease more than there is, whatever may be oversold
            free = self._free(broker, digest, source, term)
            wanted, text = min(least, request.units), request.properties.get("filter", "")
            if request.op == EXTEND and before is not None:  # it goes on with the units that it has
                kept = first_of(before.claim.classes, wanted)
                room = wanted if fits(kept, free) else 0
                room = min(room, sum(units for _, units in free)) if total(kept) < wanted else room
            else:
                room = sum(units for class_, units in free if not text or self._takes(site, class_, text))
            if room >= wanted:
                return f"at least {room} of {root.capacity} units of {site} are free over {tuple(term)}"
        return ""

    def _free(self, broker: str, digest: bytes, source: Source, term: Term) -> Counts:
        """How many units of each class are free for sure."""
        found = []
        for number, (class_, capacity) in enumerate(source.claim.capacities):
            given = self._claims.of_chain(digest)
            held = [(count_of(g.claim.classes, class_), g.claim.term.start, g.at_most) for g in given]
            for units, when, by_class in self._withheld.get((broker, source.name), ()):
                held.append((by_class[number] if by_class else units, *when))
            found.append((class_, max(0, capacity - fullest(held, term)[1])))
        return counts(found)

    def _takes(self, site: str, class_: bytes, text: str) -> bool:
        known = self._attributes.get(class_)
        try:
            return known is not None and takes(text, seen(site, "", known))
        except FilterError:
            return False


@attrs.define
class _Redeemed:
    claim: Claim
    lease: str
    number: int


class _Live(NamedTuple):
    """An active lease: the units that it was said to have, of which its claim covers ``units``."""

    type: str
    names: tuple[str, ...]
    units: int
    term: Term


class SiteRefusals(Listening):
    """A site does not refuse a ticket for want of units that it has, nor fail a lease while units are free; and it
    takes no ticket for which it has none.
    """

    kind = "refusals"

    def __init__(
        self,
        units: UnitChecker,
        inventory: Mapping[str, Mapping[str, int]],
        first_fit: frozenset[str],
        clock: Callable[[str], Instant],
        class_of: Callable[[str, str], bytes],
    ) -> None:
        """``inventory`` says how many units of each type each site has at first; ``first_fit`` which sites give what is
        free; ``class_of`` a site's unit is its class.
        """
        super().__init__()
        self._class_of = class_of
        self.sends = {ErrorReply: self._error, Accepted: self._accepted}
        self.receives = {Redeem: self._redeem, CloseLease: self._close, Relinquish: self._relinquish}
        self._live: dict[str, dict[str, _Live]] = {site: {} for site in inventory}
        self._taken: set[bytes] = set()
        self._inventory = {site: dict(types) for site, types in inventory.items()}
        self._units, self._first_fit, self._clock = units, first_fit, clock
        self._redeemed: dict[str, dict[bytes, _Redeemed]] = {site: {} for site in inventory}
        self._last: dict[tuple[str, str, int], Claim] = {}
        self._given: dict[tuple[str, str], Instant] = {}
        self._ends: dict[tuple[str, str], Instant] = {}
        self._out: dict[str, set[str]] = {site: set() for site in inventory}
        self._lent: Counter[str] = Counter()
        self._windows: dict[str, dict[str, tuple[set[str], Term]]] = {site: {} for site in inventory}
        self._stepped: set[str] = set()

    def restarted(self, at: Instant, actor: str, made: Any) -> None:
        """A site may have more units from now on than it ever had."""
        there = self._inventory.get(actor, {})
        for type_ in there:
            named = sum(len(group.names) for group in made.settings.inventory if group.type == type_)
            there[type_] = max(there[type_], named)

    def disabled(self, site: str, unit: str) -> None:
        """The operator has taken a unit out of service; it counts as out of it for good."""
        self._out[site].add(unit)

    def windowed(self, site: str, window: Mapping[str, Any]) -> None:
        """A maintenance window was acknowledged: its units are taken for its time."""
        if site not in self._stepped:
            self._windows[site][window["window"]] = set(window["units"]), Term(window["start"], window["end"])

    def unwindowed(self, site: str, window: str) -> None:
        """A window may be over: its units are not counted on to be taken."""
        self._windows[site].pop(window, None)

    def stepped(self, actor: str) -> None:
        """What is over by the clock of a site may begin again: its windows are not counted on any more."""
        self._stepped.add(actor)
        if actor in self._windows:
            self._windows[actor].clear()

    def mended(self, site: str, unit: str) -> None:
        """A unit was put into service again, and be it in a window."""
        for units, _ in self._windows[site].values():
            units.discard(unit)

    def committed(self, at: Instant, actor: str, rows: Sequence[Row]) -> None:
        """A unit that is given away in the same step is not free, though its driver is told last."""
        if actor in self._inventory:
            for _, _, event, _, _, why in rows:
                if event == "unit setup":
                    self._given[actor, unit_of(why)] = at
                self._lent[actor] += event in ("unit failed", "replace", "power failed")

    def ended(self, at: Instant, actor: str, done: ActionDone) -> None:
        """A unit that ever failed may be out of service: it is not counted on."""
        if not done.ok and actor in self._out:
            self._out[actor].add(done.unit)

    def _redeem(self, at: Instant, sender: str, receiver: str, message: Redeem) -> None:
        if message.op == MODIFY and receiver in self._live:
            self._live[receiver].pop(message.lease, None)  # it may have fewer units from now on
        if message.ticket and receiver in self._redeemed:
            try:
                leaf = decode_ticket(message.ticket).leaf
            except TicketError:
                return
            self._last[receiver, message.lease, message.number] = leaf
            self._redeemed[receiver].setdefault(leaf.digest, _Redeemed(leaf, message.lease, message.number))

    def _error(self, at: Instant, sender: str, receiver: str, message: ErrorReply) -> None:
        leaf = self._last.get((sender, message.lease, message.number))
        if leaf is None or message.reason.code != Code.INSUFFICIENT:
            return
        self._drop(sender, message.lease, message.number)
        self._check_short(sender, leaf, message.lease, words(message.reason))

    def unsure(self, site: str, lease: str) -> None:
        """Something was said of a lease that may be over by now."""
        self._live.get(site, {}).pop(lease, None)

    def announced(self, at: Instant, sender: str, message: LeaseUpdate) -> None:
        """An update that is sent for the first time."""
        if sender not in self._redeemed:
            return
        answered = self._last.get((sender, message.lease, message.number))
        if answered is not None:
            self._taken.add(answered.digest)
        if message.state == "active":
            claim = decode_statement(message.contract).subject
            self._settle(sender, message.lease, claim)
            if claim in self._redeemed[sender]:
                known = self._redeemed[sender][claim].claim
                names = tuple(unit.unit for unit in message.units)
                term = Term(known.term.start, min(known.term.end, message.term.end))
                self._live[sender][message.lease] = _Live(known.type, names, known.units, term)
        elif message.state == "refused":
            leaf = self._last.get((sender, message.lease, message.number))
            self._drop(sender, message.lease, message.number)
            if leaf is not None and _code(message) in (Code.INSUFFICIENT, Code.OVERSUBSCRIBED):
                self._check_short(sender, leaf, message.lease, words(message.reason))
        elif message.state in (
            "terminating",
            "waiting",
            "told",
        ):  # it goes on, to the notice's end; which units it has may change
            self._live[sender].pop(message.lease, None)
            if message.state == "terminating":
                self._ends[sender, message.lease] = message.term.end
        elif message.state != "undone":  # the lease goes on as it was
            self._live[sender].pop(message.lease, None)
            if message.state == "failed":
                self._check_failed(at, sender, message)
            book = self._redeemed[sender]
            for digest in [d for d, entry in book.items() if entry.lease == message.lease]:
                del book[digest]

    def _relinquish(self, at: Instant, sender: str, receiver: str, message: Relinquish) -> None:
        """What was given back takes nothing, even if a repeat of its redeem is answered from the record."""
        self._close(at, sender, receiver, message)
        for (site, lease, _), leaf in self._last.items():
            if (site, lease) == (receiver, message.lease):
                self._taken.add(leaf.digest)

    def _close(self, at: Instant, sender: str, receiver: str, message: CloseLease | Relinquish) -> None:
        if receiver in self._live:
            self._live[receiver].pop(message.lease, None)

    def _accepted(self, at: Instant, sender: str, receiver: str, message: Accepted) -> None:
        """What is sure to be in use beside a ticket that was taken: the units that active leases have (with a deficit
        that their guests accept, fewer than their claims say), as long as they go on (to a notice's end, if it came);
        and those of maintenance windows. A modify needs nothing as long as its lease has as many units.
        """
        leaf = self._last.get((sender, message.lease, message.number))
        if leaf is None or leaf.digest in self._taken:
            return
        self._taken.add(leaf.digest)
        if leaf.sizes:
            return  # how many machines hosts take depends on these
        start, end = leaf.term
        has = [
            entry.claim.term.end
            for entry in self._redeemed[sender].values()
            if entry.lease == message.lease
            and entry.claim.units >= leaf.units
            and entry.claim.digest != leaf.digest
            and entry.claim.term.start <= start
        ]
        needs = Term(max((start, *has)), min(end, self._ends.get((sender, message.lease), end)))
        if needs.start >= needs.end:
            return
        instant, most = fullest(self._sure(sender, leaf.type, message.lease), needs)
        count = self._inventory[sender].get(leaf.type, 0)
        must(
            instant < max(at, self._clock(sender)) or most + leaf.units <= count,
            f"{sender} takes a ticket for {leaf.units} {leaf.type} for {message.lease}: {most} of {count} are in use",
        )

    def _sure(self, site: str, type_: str, but: str) -> list[tuple[int, Instant, Instant]]:
        """Units of a type that are taken for sure, each once at any instant, and not by the lease ``but``."""
        windows = [
            (name, term)
            for units, term in self._windows[site].values()
            for name in units
            if name.startswith(f"{type_}-")
        ]
        planned = {name for name, _ in windows}
        taken: dict[str, list[Term]] = {}
        for name, term in windows:
            taken.setdefault(name, []).append(term)
        for lease, live in self._live[site].items():
            if lease == but or live.type != type_:
                continue
            # It may have to give some of them up: which, is not known, so as few as can be beside those of windows.
            for name in sorted(live.names, key=lambda name: name not in planned)[: live.units]:
                taken.setdefault(name, []).append(live.term)
        return [(1, term.start, term.end) for terms in taken.values() for term in _united(terms)]

    def _drop(self, site: str, lease: str, number: int) -> None:
        book = self._redeemed[site]
        for digest in [d for d, e in book.items() if e.lease == lease and e.number == number]:
            del book[digest]

    def _settle(self, site: str, lease: str, claim: bytes) -> None:
        """The lease is active by this claim: what it had before is over."""
        book = self._redeemed[site]
        current = book.get(claim)
        if current is not None:
            for digest in [d for d, e in book.items() if e.lease == lease and e.number < current.number]:
                if book[digest].claim.term.start <= current.claim.term.start:  # else it is yet to begin
                    del book[digest]

    def _check_short(self, site: str, leaf: Claim, lease: str, why: str) -> None:
        if leaf.sizes:
            return  # what is free of hosts may be in pieces
        there = Counter(self._class_of(site, name) for name in self._names(site, leaf.type))
        alike = len({self._class_of(site, f"{leaf.type}-{n}") for n in range(self._inventory[site][leaf.type])}) == 1
        shown = []
        for class_, units in leaf.classes:
            held = [
                (count_of(entry.claim.classes, class_), entry.claim.term.start, entry.claim.term.end)
                for entry in self._redeemed[site].values()
                if entry.claim.type == leaf.type and entry.lease != lease
            ]
            # A unit that was lost may have another in its place, of this class.
            lent = 0 if alike else self._lent[site]
            _, most = fullest(held, leaf.term)
            shown.append(f"at most {most + lent} of at least {there[class_]} are taken")
            if most + lent + units > there[class_]:
                return
        must(
            False,
            f"{site} refuses {lease} {leaf.units} {leaf.type} over {tuple(leaf.term)} ({why}): {', '.join(shown)}",
        )

    def _names(self, site: str, type_: str) -> list[str]:
        """The units that are not out of service."""
        names = [f"{type_}-{n}" for n in range(self._inventory[site].get(type_, 0))]
        return [name for name in names if name not in self._out[site]]

    def _check_failed(self, at: Instant, site: str, message: LeaseUpdate) -> None:
        if site not in self._first_fit or self._units.was_set_up(message.lease) or not _is_none_free(message.reason):
            return
        leaf = next((e.claim for e in self._redeemed[site].values() if e.lease == message.lease), None)
        if leaf is None or leaf.sizes:
            return
        classes = dict(leaf.classes)
        names = [name for name in self._names(site, leaf.type) if self._class_of(site, name) in classes]
        free = [name for name in names if self._is_free(at, site, name)]
        must(not free, f"{site} fails {message.lease} ({words(message.reason)}): units {free} are free")

    def _is_free(self, at: Instant, site: str, name: str) -> bool:
        if self._given.get((site, name), -1) == at:
            return False
        unit = self._units.units.get((site, name))
        return unit is None or (not unit.lease and not unit.left)


def _united(terms: Sequence[Term]) -> list[Term]:
    """The terms of which each instant of these is in one."""
    united: list[Term] = []
    for term in sorted(terms):
        if united and term.start <= united[-1].end:
            united[-1] = Term(united[-1].start, max(united[-1].end, term.end))
        else:
            united.append(term)
    return united
