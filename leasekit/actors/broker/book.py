"""The broker's book: what it holds (delegations, each with a timetable), what it has given from it, which requests wait
and form groups. It has more than 800 lines as which requests are looked at goes by what comes free, and by groups.

Delegations that go on from each other are a *renewal chain*, and have one timetable: mappers see one source whose term
ends with the last of them, and what is granted from it is cut where one ends and the next begins (:meth:`Book.cover`).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import Final, TypeAlias

import attrs

from leasekit.actors.kernel import keeps
from leasekit.actors.peering import Keyring
from leasekit.actors.settings import REQUEST
from leasekit.core.answers import SourceClass, SourceDetails, WithheldDetails
from leasekit.core.claims.claim import Ticket, sizes_of
from leasekit.core.divided import NO_CEILINGS, Ceiling, Ceilings, DividedTimetable
from leasekit.core.efficiency import efficiency
from leasekit.core.errors import CommandError, RemoteError
from leasekit.core.filters import FilterError, seen, takes
from leasekit.core.leases.records import BrokerLease, Delegation, Granted, Withheld
from leasekit.core.mappers import Source
from leasekit.core.properties import (
    CAPACITY,
    EMPTY,
    NO_HOSTS,
    WHOLE,
    Counts,
    HostClasses,
    Properties,
    Vector,
    attributes,
    count_of,
    counts,
    in_common,
    minus,
    weigh,
)
from leasekit.core.protocol.messages import NEW, LargestPiece
from leasekit.core.reasons import Code, counted
from leasekit.core.requests import Options, parse_options
from leasekit.core.time import DAY, SECOND, Instant, Term
from leasekit.core.timetable import ClassedTimetable, Shortfall

LOOKS_PER_SECOND: Final = 2_500
"""How many requests of one holder that were put off a mapper looks at in a second: a quarter of a processor's time."""

Together: TypeAlias = Callable[[str], Sequence[BrokerLease]]
"""All that are decided with one: none while others of its group are on their way."""


@keeps(volatile="_put_off _rests _rounds _bid _bids _shown _shown_at _freed _failed", derived="new")
@attrs.define(eq=False, slots=False)
class Looks:
    """Which of the requests that wait a mapper is to look at: those of which it has said nothing, and, once something
    may have come free, those that it has put off, each once more. Whatever else waits costs a turn nothing. Whoever
    has many waiting, or a large group, makes others wait for a small part of their time.

    With ``bid_of`` each holder's highest bids are looked at first, and the others in their turn.
    """

    bid_of: Callable[[BrokerLease], tuple[int, int, int]] | None = attrs.field(default=None, init=False)
    """The class of a request, whether it is firm, and its bid, where the mapper goes by that."""
    new: dict[str, BrokerLease] = attrs.field(factory=dict, init=False)
    """Those of which it has said nothing yet."""
    _put_off: dict[str, OrderedDict[str, tuple[BrokerLease, int]]] = attrs.field(factory=dict, init=False)
    """The others of each holder, those first that were looked at longest ago: how often something had come free then.
    """
    _rests: dict[str, Instant] = attrs.field(factory=dict, init=False)
    """Until when nothing more of a holder is looked at again."""
    _rounds: dict[str, int] = attrs.field(factory=dict, init=False)
    """How often something had come free when all of a holder was last put in order."""
    _bid: dict[str, int] = attrs.field(factory=dict, init=False)
    """The bids of those that were put off, if others are not to make room for them already."""
    _bids: dict[str, list[int]] = attrs.field(factory=dict, init=False)
    """The same by type, in order."""
    _shown: dict[str, BrokerLease] = attrs.field(factory=dict, init=False)
    """Those of the last turn."""
    _shown_at: int = attrs.field(default=0, init=False)
    _freed: int = attrs.field(default=0, init=False)
    """How often something may have come free."""
    _failed: bool = attrs.field(default=False, init=False)

    def add(self, lease: BrokerLease, *, again: bool) -> None:
        """One more waits; ``again``: it has waited before, and is looked at in its turn."""
        if again:
            self._put(lease, -1)
        else:
            self.new[lease.id] = lease

    def remove(self, lease: BrokerLease) -> None:
        """One waits no longer."""
        self.new.pop(lease.id, None)
        self._shown.pop(lease.id, None)
        row = self._put_off.get(lease.holder)
        if row is None or row.pop(lease.id, None) is None:
            return
        if not row:
            del self._put_off[lease.holder]
        bid = self._bid.pop(lease.id, None)
        if bid is not None:
            bids = self._bids[lease.type]
            del bids[bisect_left(bids, bid)]

    def _put(self, lease: BrokerLease, freed: int) -> None:
        self._put_off.setdefault(lease.holder, OrderedDict())[lease.id] = lease, freed
        if self.bid_of is None or lease.id in self._bid or lease.room.promise is not None:
            return
        _, firm, bid = self.bid_of(lease)
        if not firm:
            self._bid[lease.id] = bid
            insort(self._bids.setdefault(lease.type, []), bid)

    def highest_bids(self) -> dict[str, int]:
        """The highest bid of those that were put off, by type."""
        return {type_: bids[-1] for type_, bids in self._bids.items() if bids}

    def unheard(self) -> list[BrokerLease]:
        """Those of which the mapper has said nothing, where it is shown others by their places."""
        self.new = {lease.id: lease for lease in self.new.values() if lease.defer_reason is None}
        return list(self.new.values())

    def forget(self, holder: str) -> None:
        """Nothing of a holder waits any more."""
        self._rests.pop(holder, None)
        self._rounds.pop(holder, None)

    def look_again(self, lease: BrokerLease, at: Instant) -> None:
        """One that was shown is to be shown again, before the others of its holder; none of them before ``at``."""
        if self._shown.pop(lease.id, None) is not None:
            self._put(lease, -1)
            self._put_off[lease.holder].move_to_end(lease.id, last=False)
            self._rests[lease.holder] = at

    def note_freed(self) -> None:
        """Something may have come free."""
        self._freed += 1

    def retry(self) -> None:
        """The last turn failed: what it was about is for the next one, and nothing that was put off beside it."""
        self._failed = True
        self.new.update(self._shown)

    @property
    def due_at(self) -> Instant | None:
        """When any are to be looked at again."""
        if self._failed:
            return None
        return min((self._rests.get(one, 0) for one, row in self._put_off.items() if self._is_due(row)), default=None)

    def _is_due(self, row: Mapping[str, tuple[BrokerLease, int]]) -> bool:
        return _first(row)[1] < self._freed

    def next(self, now: Instant, most: int, together: Together) -> list[BrokerLease]:
        """Those of one turn, in order of arrival: what is new, and up to ``most`` that were put off, of each holder the
        same share.
        """
        self._settle()
        self._rests = {holder: until for holder, until in self._rests.items() if until > now}
        rows = {} if self._failed else {one: row for one, row in self._put_off.items() if one not in self._rests}
        due = [holder for holder, row in rows.items() if self._is_due(row)]
        shown: dict[str, BrokerLease] = {}
        for id_, lease in list(self.new.items()):
            if id_ in self.new:
                self._take(lease, together, shown)
        for holder in due:
            self._put_in_order(holder)
            before, enough = len(shown), len(shown) + max(1, most // len(due))
            while len(shown) < enough and (row := self._put_off.get(holder)) and self._is_due(row):
                self._take(_first(row)[0], together, shown)
            self._rests[holder] = now + (len(shown) - before) * SECOND // LOOKS_PER_SECOND + 1
        self._shown, self._shown_at, self._failed = shown, self._freed, False
        return sorted(shown.values(), key=lambda lease: lease.waits.arrived)

    def _put_in_order(self, holder: str) -> None:
        """Begin a round with the highest bids, once each was looked at since the last one began."""
        row = self._put_off.get(holder)
        if self.bid_of is not None and row and _first(row)[1] >= self._rounds.get(holder, -1):
            bid_of, self._rounds[holder] = self.bid_of, self._freed
            ordered = sorted(row.items(), key=lambda item: bid_of(item[1][0]), reverse=True)
            self._put_off[holder] = OrderedDict(ordered)

    def _take(self, lease: BrokerLease, together: Together, shown: dict[str, BrokerLease]) -> None:
        self.remove(lease)
        for one in together(lease.id):
            self.remove(one)
            shown[one.id] = one

    def _settle(self) -> None:
        """What the last turn has put off waits until something comes free."""
        for lease in self._shown.values():
            if lease.defer_reason is None:
                self.new.setdefault(lease.id, lease)
            elif lease.id not in self.new:
                self._put(lease, self._shown_at)
        self._shown = {}


def _first(row: Mapping[str, tuple[BrokerLease, int]]) -> tuple[BrokerLease, int]:
    return next(iter(row.values()))


@keeps(volatile="leases", derived="options _of _priorities")
@attrs.define(eq=False, slots=False)
class RequestQueue:
    """Leases whose request waits, in order of arrival; at most ``most`` at once."""

    _keyring: Keyring
    _most: int
    _priorities: Mapping[str, int] = attrs.field(factory=dict)
    """The classes of holders."""
    _of: dict[str, dict[str, BrokerLease]] = attrs.field(factory=dict, init=False)
    leases: dict[str, BrokerLease] = attrs.field(factory=dict, init=False)
    options: dict[str, Options] = attrs.field(factory=dict, init=False)
    """What each says of how it may be granted; questions have theirs here as well."""
    looks: Looks = attrs.field(factory=Looks, init=False)

    def __contains__(self, lease: str) -> bool:
        return lease in self.leases

    def __len__(self) -> int:
        return len(self.leases)

    def add(self, lease: BrokerLease, options: Options, *, again: bool = False) -> None:
        """The lease's request waits for the mapper; ``again``: it has waited before."""
        self.leases[lease.id], self.options[lease.id] = lease, options
        self.looks.add(lease, again=again)
        self._of.setdefault(lease.holder, {})[lease.id] = lease

    def remove(self, lease: BrokerLease) -> None:
        """Its request is settled."""
        if self.leases.pop(lease.id, None) is not None:
            self.looks.remove(lease)
            del self._of[lease.holder][lease.id]
            if not self._of[lease.holder]:
                del self._of[lease.holder]
                self.looks.forget(lease.holder)
        self.options.pop(lease.id, None)

    def bid_of(self, lease: BrokerLease) -> tuple[int, int, int]:
        """The class of a request, whether it is firm, and its bid: what is decided first where these count is more."""
        options = self.options[lease.id]
        firm = not options.preemptible or lease.asked.op != NEW
        return self.class_of(lease), firm, options.bid or 0

    def waiting_ids(self) -> Iterable[str]:
        """The leases whose requests wait."""
        return self.leases

    def first_of_each(self, most: int, together: Together) -> Iterable[BrokerLease]:
        """Those that wait, in order of arrival: all of which the mapper has said nothing, and about ``most`` of each
        holder, the first ones.
        """
        if all(len(row) <= most for row in self._of.values()):
            return self.leases.values()
        shown = {one.id: one for lease in self.looks.unheard() for one in together(lease.id)}
        for row in self._of.values():
            enough = len(shown) + most
            for lease in islice(row.values(), most):
                if len(shown) < enough and lease.id not in shown:
                    shown.update({one.id: one for one in together(lease.id)})
        return sorted(shown.values(), key=lambda lease: lease.waits.arrived)

    def waiting(self, lease: str) -> BrokerLease:
        """The lease of that id, whose request waits. Raises ``CommandError`` if none does."""
        waiting = self.leases.get(lease)
        if waiting is None:
            raise CommandError(f"no request of lease {lease!r} is waiting (any more)")
        return waiting

    def class_of(self, lease: BrokerLease) -> int:
        """The class of a lease, or of its request: its holder's, and its own priority, added up."""
        return self._priorities.get(lease.holder, 0) + self._priority(lease)

    def _priority(self, lease: BrokerLease) -> int:
        """The priority that a lease asked for last, as far as its holder may."""
        options, peer = self.options.get(lease.id), self._keyring.peers.get(lease.holder)
        if options is None:
            if "priority" not in lease.asked.properties:
                return 0
            options = parse_options(lease.asked.properties, lease.asked.term)
        return min(options.priority, peer.priority_max if peer is not None else 0)

    def check_room(self, peer: str) -> None:
        """Raises ``RemoteError`` if ``peer`` has to wait until it may ask for more.

        Half of the places are kept for all peers in equal shares, the others are for whoever comes first: so one that
        asks without end leaves each other its share.
        """
        name, most, mine = self._keyring.name, self._most, len(self._of.get(peer, ()))
        if len(self) >= most:
            raise RemoteError(Code.BUSY, f"{name} has {len(self)} requests waiting, its limit: try again later")
        limit = self._keyring.peers[peer].open_requests
        if mine >= limit:
            waiting = counted(limit, "request")
            raise RemoteError(Code.BUSY, f"{peer} has {waiting} waiting at {name}, its limit: try again later")
        if len(self) < most // 2:
            return
        askers = sum(REQUEST in known.may for known in self._keyring.peers.values())
        share = max(1, (most - most // 2) // max(1, askers))
        beyond = sum(len(row) - share for row in self._of.values() if len(row) > share)
        if mine >= share and beyond >= most // 2:
            raise RemoteError(
                Code.BUSY,
                f"{peer} has {mine} requests waiting at {name}, its share is {share} of {most}: try again later",
            )


class _Pieces:
    """What no host of a chain has more than left, as its site has said last; ``leaves`` is when something of a class is
    to leave its host of which that may not speak yet.
    """

    __slots__ = ("leaves", "number", "pieces")

    def __init__(
        self, number: int = -1, pieces: tuple[LargestPiece, ...] = (), leaves: dict[bytes, Instant] | None = None
    ) -> None:
        self.number, self.pieces, self.leaves = number, pieces, leaves or {}


class _Group:
    __slots__ = ("count", "members")

    def __init__(self) -> None:
        self.count = 0
        self.members: dict[str, None] = {}


@keeps(
    rows="_sources",
    volatile="_tables has_news _has_freed",
    derived="_attributes _hosts _chains _tickets _by_type _groups _group_of _pieces",
)
class Book:
    """Delegations by id and by type, their timetables, and request groups scoped to their holder."""

    def __init__(self) -> None:
        self._sources: dict[str, Delegation] = {}
        self._tables: dict[str, ClassedTimetable] = {}
        self._attributes: dict[bytes, Properties] = {}
        self._hosts: dict[str, HostClasses] = {}
        self._pieces: dict[str, _Pieces] = {}
        self._chains: dict[str, list[Delegation]] = {}
        self._tickets: dict[str, Ticket] = {}
        self._by_type: dict[str, list[Delegation]] = {}
        self._groups: dict[tuple[str, str], _Group] = {}
        self._group_of: dict[str, tuple[str, str]] = {}
        self.has_news = False
        """Whether something has changed since the mapper saw what there is, and who asks for it."""
        self._has_freed = False

    def __len__(self) -> int:
        return len(self._sources)

    def note_news(self) -> None:
        """Something has changed, and may have come free: the mapper is to see it."""
        self.has_news = self._has_freed = True

    def note_request(self) -> None:
        """There are requests that the mapper is to see, and nothing has come free for others."""
        self.has_news = True

    def note_seen(self) -> bool:
        """The mapper sees all there is. Whether something may have come free since it did so last."""
        freed, self.has_news, self._has_freed = self._has_freed, False, False
        return freed

    # -- delegations -------------------------------------------------------------------------------------------

    def add(self, source: Delegation, ticket: Ticket) -> None:
        """Take up a delegation."""
        chain = self._chains.setdefault(source.base, [])
        table = self._tables[chain[0].id] if chain else ClassedTimetable({})
        self._pieces.setdefault(source.base, _Pieces())
        chain.append(source)
        chain.sort(key=lambda s: s.term)
        self._sources[source.id], self._tables[source.id], self._tickets[source.id] = source, table, ticket
        self._attributes.update(attributes(source.properties, source.classes))
        self._count(source, 1)
        self._hosts[source.base] = self._hosts_in(source.base)
        table.sort(lambda one: self._rank(one, count_of(ticket.leaf.classes, one)))
        self._by_type.setdefault(source.type, []).append(source)
        self._by_type[source.type].sort(key=lambda s: s.id)

    def limit(self, base: str, number: int, pieces: tuple[LargestPiece, ...], now: Instant) -> bool:
        """No host of a chain has more left than its site says. False if that was overtaken by what it said later."""
        known = self._pieces[base]
        is_news = number > known.number
        if is_news:
            leaves = {class_: at for class_, at in known.leaves.items() if at > now}
            self._pieces[base] = _Pieces(number, pieces, leaves)
        return is_news

    def _leave(self, claim: Granted, at: Instant) -> None:
        """Something of a claim leaves its hosts at an instant, of which its site may not have said what it leaves."""
        known = self._pieces.get(self.base(claim.source))
        if known is not None and known.pieces:
            known.leaves.update({class_: min(at, known.leaves.get(class_, at)) for class_, _ in claim.classes})

    def _ceilings(self, base: str) -> Ceilings:
        found: dict[bytes, list[Ceiling]] = {}
        known = self._pieces[base]
        for one in known.pieces:
            if until := min(one.until, known.leaves.get(one.class_, one.until)):
                found.setdefault(one.class_, []).append(Ceiling(one.resource, one.most, until))
        return found

    def withhold(self, source: Delegation, window: Withheld, sign: int) -> None:
        """Leave units out of what can be granted over a maintenance window (``sign`` 1), or put them back (-1)."""
        start, end = max(window.term.start, source.term.start), min(window.term.end, source.grants_until)
        if start < end:
            leaf = self.ticket(source.id).leaf
            units = window.of(leaf)
            self.table(source.id).add_capacity(Term(start, end), weigh(units, sizes_of(leaf, units)), -sign)

    @contextmanager
    def changing(self, source: Delegation, now: Instant) -> Iterator[None]:
        """While ``source`` comes to be taken back or replaced: nothing more is granted that goes beyond that; what was
        granted stays booked.
        """
        self._count(source, -1)
        yield
        self._count(source, 1)
        if source.grants_until <= now:
            self.close(source.id)

    def _count(self, source: Delegation, sign: int) -> None:
        if source.grants_until > source.term.start:
            capacities = self._tickets[source.id].leaf.capacities
            self._tables[source.id].add_capacity(Term(source.term.start, source.grants_until), capacities, sign)
        for window in source.withheld:
            self.withhold(source, window, sign)

    def close(self, id_: str) -> None:
        """Grant nothing more from a delegation; what was granted from it stays booked."""
        source = self._sources[id_]
        if source in self._by_type[source.type]:
            self._by_type[source.type].remove(source)

    def remove(self, id_: str) -> None:
        """Let go of a delegation whose term is over."""
        self.close(id_)
        source = self._sources[id_]
        chain = self._chains[source.base]
        chain.remove(source)
        if not chain:
            del self._chains[source.base], self._hosts[source.base], self._pieces[source.base]
        table = self._tables[id_]
        del self._sources[id_], self._tables[id_], self._tickets[id_]
        if chain:
            self._hosts[source.base] = self._hosts_in(source.base)
        table.close({name for other in chain for name, _ in self._tickets[other.id].leaf.weights})
        known = {class_ for table in self._tables.values() for class_ in table.tables}
        # One of which nothing more is granted may be of classes that have nothing in its chain's timetable.
        known.update(class_ for ticket in self._tickets.values() for class_, _ in ticket.leaf.classes)
        self._attributes = {class_: one for class_, one in self._attributes.items() if class_ in known}

    def get(self, id_: str) -> Delegation | None:
        """The delegation, or None."""
        return self._sources.get(id_)

    def chain(self, base: str) -> Sequence[Delegation]:
        """The delegations that are held of a chain, in the order of their terms."""
        return self._chains.get(base, ())

    def base(self, id_: str) -> str:
        """The chain of a delegation: its own name if it is not held."""
        source = self._sources.get(id_)
        return source.base if source is not None else id_

    def site_of(self, id_: str) -> str:
        """The site of a delegation: empty if it is not held."""
        source = self._sources.get(id_)
        return source.site if source is not None else ""

    def cover(self, base: str, term: Term) -> list[tuple[Delegation, Term]]:
        """The delegations of a chain that can be granted from over ``term``, each with its part of it; none if there is
        a gap.
        """
        parts: list[tuple[Delegation, Term]] = []
        at = term.start
        for source in self._chains.get(base, ()):
            if source.term.start <= at < source.grants_until and at < term.end:
                parts.append((source, Term(at, min(source.grants_until, term.end))))
                at = parts[-1][1].end
        return parts if at >= term.end else []

    def taken_of(self, peer: str) -> list[Delegation]:
        """The delegations of one issuer that are held."""
        return [source for source in self._sources.values() if source.peer == peer]

    def table(self, id_: str) -> ClassedTimetable:
        """The timetable of a delegation. Raises ``KeyError``."""
        return self._tables[id_]

    def table_of(self, base: str) -> ClassedTimetable:
        """The timetable of a chain. Raises ``KeyError``."""
        return self._tables[self._chains[base][0].id]

    def asked(self, base: str, needs: Vector = WHOLE) -> ClassedTimetable:
        """The timetable of a chain, by class, as who has these needs sees it. Raises ``KeyError``, and ``CommandError``
        for needs of machines where units are not divided.
        """
        return self._seen(base, self.table_of(base), needs)

    def _seen(
        self, base: str, table: ClassedTimetable, needs: Vector, ceilings: Ceilings = NO_CEILINGS
    ) -> ClassedTimetable:
        hosts = self._hosts[base]
        if hosts:
            return DividedTimetable(table, hosts, needs, ceilings)
        if needs:
            raise CommandError(f"properties.needs.*: units of {self._chains[base][0].type!r} are not divided")
        return table

    def hosts(self, base: str) -> HostClasses:
        """What hosts of a chain have, by class: none, where units are not divided."""
        return self._hosts.get(base, NO_HOSTS)

    def goes_on_as(self, base: str, term: Term, held: Counts) -> Counts:
        """As which classes hosts, or machines on them, of certain classes go on over a term: those that are given no
        more, as their hosts have changed, count as of the class that differs least from theirs, beside what hosts have.
        """
        parts = self.cover(base, term) if self._hosts.get(base) else []
        given = dict.fromkeys(class_ for one, _ in parts[:1] for class_, _ in self._tickets[one.id].leaf.classes)
        if not given or all(class_ in given for class_, _ in held):
            return held

        def unlike(class_: bytes, other: bytes) -> tuple[int, int]:
            mine, its = self._attributes.get(class_, EMPTY), self._attributes[other]
            differ = {key for key, _ in mine.items() ^ its.items()}
            return len([key for key in differ if not key.startswith(CAPACITY)]), len(differ)

        found: Counter[bytes] = Counter()
        for class_, units in held:
            found[class_ if class_ in given else min(given, key=partial(unlike, class_))] += units
        return counts(found)

    def _rank(self, class_: bytes, units: int) -> tuple[float, int, bytes]:
        """Where a class stands among those of which units are given out that may be of any: what computes most with a
        watt goes first, then what there is most of.
        """
        return -efficiency(self._attributes.get(class_, EMPTY)), -units, class_

    def _hosts_in(self, base: str) -> HostClasses:
        """The host classes of a chain, in the order of their ranks."""
        counted: dict[bytes, int] = {}
        for source in self._chains.get(base, ()):
            for class_, units in self._tickets[source.id].leaf.classes:
                counted[class_] = max(units, counted.get(class_, 0))
        order = sorted(counted, key=lambda class_: self._rank(class_, counted[class_]))
        return HostClasses.of({class_: self._attributes[class_] for class_ in order if class_ in self._attributes})

    def table_or_none(self, id_: str) -> ClassedTimetable | None:
        """The timetable of a delegation, None if it is over."""
        return self._tables.get(id_)

    def ticket(self, id_: str) -> Ticket:
        """The ticket that a delegation consists of. Raises ``KeyError``."""
        return self._tickets[id_]

    def types(self) -> list[str]:
        """The types that can be asked for, sorted."""
        return sorted(type_ for type_, sources in self._by_type.items() if sources)

    def of_type(self, type_: str) -> Sequence[Delegation]:
        """Delegations of a type that can be granted from, in the order of their ids."""
        return self._by_type.get(type_, ())

    def chains(self, type_: str, site: str) -> list[Delegation]:
        """One delegation of each chain of a type at a site, by their names; empty: of any type, at any site."""
        types = [type_] if type_ else self.types()
        found = {one.base: one for each in types for one in self.of_type(each) if site in ("", one.site)}
        return [found[base] for base in sorted(found)]

    def turn_sources(self, *, snapshot: bool) -> Callable[[str], Sequence[Source]]:
        """Views of the delegations for one mapper turn; what the mapper books in them stays in them.

        With ``snapshot`` they hold still while the book goes on, as a mapper in another thread needs it.
        """
        if snapshot:
            made = {type_: self._views(type_, ClassedTimetable.copy) for type_ in self._by_type}
            return lambda type_: made.get(type_, [])
        views: dict[str, list[Source]] = {}

        def sources(type_: str) -> list[Source]:
            if type_ not in views:
                views[type_] = self._views(type_, ClassedTimetable.overlay)
            return views[type_]

        return sources

    def _views(self, type_: str, scratch: Callable[[ClassedTimetable], ClassedTimetable]) -> list[Source]:
        return [
            self._view(
                *run, self._seen(run[0].base, scratch(self._tables[run[0].id]), WHOLE, self._ceilings(run[0].base))
            )
            for run in self._runs(type_)
        ]

    def _view(self, first: Delegation, units: int, term: Term, free: ClassedTimetable) -> Source:
        if len(free.tables) == 1 and not self._hosts[first.base]:  # which is what most are, and costs nothing more
            ((class_, only),) = free.tables.items()
            classes = {class_: self._attributes[class_]}
            return Source(first.base, first.site, first.type, units, term, classes[class_], only, classes)
        classes = {class_: self._attributes[class_] for class_ in free.tables}
        return Source(
            first.base, first.site, first.type, units, term, in_common(list(classes.values()))[0], free, classes
        )

    def attributes_of(self, classes: Counts) -> tuple[Properties, tuple[Properties, ...]]:
        """What units of these classes all have, and what each class has beside that."""
        return in_common([self._attributes[class_] for class_, _ in classes])

    def accepted(
        self, base: str, text: str, needs: Vector = WHOLE, what_if: ClassedTimetable | None = None, *,
        placed: bool = False,
    ) -> ClassedTimetable:  # fmt: skip
        """The timetable of a chain, or ``what_if`` in its stead, of those classes that a filter takes; for who has its
        places (``placed``), whatever any host has left. Raises ``CommandError`` for what is none.
        """
        first = self._chains[base][0]
        ceilings = NO_CEILINGS if placed or what_if is not None else self._ceilings(base)
        table = self._seen(base, self.table_of(base) if what_if is None else what_if, needs, ceilings)
        if not text:
            return table
        try:
            return table.of(
                frozenset(
                    class_
                    for class_ in table.tables
                    if takes(text, seen(first.site, first.type, self._attributes[class_]))
                )
            )
        except FilterError as error:
            raise CommandError(f"properties.{error}") from error

    def _runs(self, type_: str) -> list[tuple[Delegation, int, Term]]:
        """Each chain of a type: its first delegation, the most units, the term. In a gap, as an issuer leaves that was
        away when it should have gone on, the chain's timetable has nothing.
        """
        runs: dict[str, tuple[Delegation, int, Term]] = {}
        sources = self._by_type.get(type_, ())
        for base, _, _, source in sorted([(one.base, one.term, at, one) for at, one in enumerate(sources)]):
            first, units, term = runs.get(base, (source, 0, source.term))
            runs[base] = (first, max(units, source.units), Term(term.start, source.grants_until))
        return list(runs.values())

    def describe(self, now: Instant) -> list[SourceDetails]:
        """Every delegation, for an operator."""
        rows = []
        for source in self._sources.values():
            table = self.asked(source.base)
            until = source.grants_until
            day = Term(now, min(now + DAY, until)) if now < until else source.term
            begun = source.term.start <= now < until
            withheld = [WithheldDetails.of(one) for one in source.withheld if one.units and one.term.end > now]
            rows.append(
                SourceDetails.of(
                    source, source=source.id, issuer=source.peer, chain=source.base,
                    reclaimed=source.taken_back.at, deadline=source.taken_back.deadline,
                    free_now=table.free_at(now) if begun else 0,
                    free_for_a_day=table.available(day) if begun else 0,
                    reservations=len(self._tables[source.id]),
                    classes=self._describe_classes(source, table, now if begun else None), withheld=withheld,
                )
            )  # fmt: skip
        return rows

    def _describe_classes(self, source: Delegation, table: ClassedTimetable, now: Instant | None) -> list[SourceClass]:
        """Where its units are of several classes: how many of each, how many are free, and what they have."""
        classes = self._tickets[source.id].leaf.classes
        return [
            SourceClass(
                class_.hex(), units, table.open(class_).free_at(now) if now is not None else 0, self._attributes[class_]
            )
            for class_, units in (classes if len(classes) > 1 else ())
        ]

    # -- reservations ------------------------------------------------------------------------------------------

    def end_early(self, claim: Granted, at: Instant) -> None:
        """Free the rest of a claim from ``at`` on."""
        table = self._tables.get(claim.source)
        if table is not None:
            table.end(claim.key, at)
            self._leave(claim, at)

    def reopen(self, claim: Granted, *, force: bool) -> bool:
        """Book a claim that was ended early up to its ``until`` again; False, with nothing changed, if it is over, or
        doesn't fit. ``force`` it if its time has been booked all along: there may be less than that by now.
        """
        table, term = self._tables.get(claim.source), Term(claim.term.start, claim.until)
        if table is None or term.end <= max(term.start, table.horizon):
            return False
        try:
            if claim.key in table:
                table.change(claim.key, term=term, force=force)
            else:
                table.reserve(claim.key, claim.weights, term, force=force)
        except Shortfall:
            return False
        return True

    def reserve_again(self, claim: Granted) -> None:
        """Book a claim that a restored record holds: it was granted, so it is booked even if a delegation shrank
        meanwhile.
        """
        table = self._tables.get(claim.source)
        if table is not None and claim.until > claim.term.start:
            table.reserve(claim.key, claim.weights, Term(claim.term.start, claim.until), force=True)

    def hold_rest(self, old: Granted, new: Granted) -> None:
        """Keep booked what ``new``, which replaces the rest of ``old``, leaves of it: until the site has confirmed that
        ``old`` ends early, it would count both that and who else got it.
        """
        table = self._tables.get(old.source)
        if table is not None:
            for key, units, term in rest_of(old, new):
                table.reserve(key, units, term, force=True)

    def promise(self, claim: Granted) -> None:
        """Book what a lease is to get from a chain when others have made room for it: until then more is booked than
        there is.
        """
        if self._chains.get(claim.source):
            self.table_of(claim.source).reserve(claim.key, claim.weights, claim.term, force=True)

    def take_back(self, claim: Granted) -> None:
        """What was promised is free, or granted."""
        if self._chains.get(claim.source) and claim.key in self.table_of(claim.source):
            self.table_of(claim.source).release(claim.key)

    def end_rest(self, old: Granted, at: Instant) -> None:
        """The site counts ``old`` to ``at`` and no longer."""
        table = self._tables.get(old.source)
        if table is not None:
            for key in rest_keys(old):
                table.end(key, at)
            self._leave(old, at)

    def free_rest(self, old: Granted) -> None:
        """The site has confirmed it, or what replaced ``old`` came back unused."""
        table = self._tables.get(old.source)
        if table is not None:
            for key in rest_keys(old):
                if key in table:
                    table.release(key)

    def forget_before(self, instant: Instant) -> None:
        """Drop what is past, so that the book doesn't grow for ever."""
        for table in self._tables.values():
            table.forget_before(instant)

    # -- groups ------------------------------------------------------------------------------------------------

    def join_group(self, holder: str, group: str, lease: str, count: int) -> None:
        """A request of a group has arrived; ``count`` is the leader's, 0 for the others."""
        key = (holder, group)
        entry = self._groups.get(key)
        if entry is None:
            entry = self._groups[key] = _Group()
        entry.members[lease] = None
        entry.count = max(entry.count, count)
        self._group_of[lease] = key

    def group_of(self, lease: str) -> list[str]:
        """All members of a lease's group that are here, in order of arrival."""
        key = self._group_of.get(lease)
        return list(self._groups[key].members) if key is not None else []

    def group_size(self, lease: str) -> tuple[int, int]:
        """How many members have arrived, and how many there are to be (0: the leader isn't here)."""
        key = self._group_of.get(lease)
        return (len(self._groups[key].members), self._groups[key].count) if key is not None else (0, 0)

    def complete_groups(self, leases: Iterable[str]) -> list[list[str]]:
        """The groups of some leases, of which every member has arrived."""
        groups = [self._groups[key] for key in dict.fromkeys(self._group_of[lease] for lease in leases)]
        return [list(group.members) for group in groups if group.count and len(group.members) == group.count]

    def leave_group(self, lease: str) -> None:
        """A member was granted; the last one takes the group with it."""
        key = self._group_of.pop(lease, None)
        if key is not None:
            group = self._groups[key]
            group.members.pop(lease, None)
            if not group.members:
                del self._groups[key]

    def dissolve_group(self, lease: str) -> list[str]:
        """The group is off: its members, which nothing holds together any more."""
        key = self._group_of.get(lease)
        if key is None:
            return []
        members = list(self._groups.pop(key).members)
        for member in members:
            self._group_of.pop(member, None)
        return members


def rest_keys(old: Granted) -> tuple[str, str]:
    """Under which what a claim that replaces another leaves of that is booked."""
    return f"{old.key}/units", f"{old.key}/time"


def rest_of(old: Granted, new: Granted) -> list[tuple[str, Counts, Term]]:
    """What ``new`` leaves of ``old``'s term from ``old.until`` on, as reservations: units that were given up of those
    that it had, and time that was.
    """
    start, end = old.until, old.term.end
    shared = min(end, max(start, new.term.end))
    units, time = rest_keys(old)
    pieces = []
    if start < shared and (left := minus(old.weights, new.weights)):
        pieces.append((units, left, Term(start, shared)))
    if shared < end:
        pieces.append((time, old.weights, Term(shared, end)))
    return pieces
