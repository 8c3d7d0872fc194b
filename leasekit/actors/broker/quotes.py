"""What brokers show each other of what is free, so that one of them can plan over what others hold."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from leasekit.actors.broker.book import Book
from leasekit.actors.dispatch import takes
from leasekit.actors.kernel import Kernel
from leasekit.actors.keyring import Keyring
from leasekit.actors.settings import REQUEST, BrokerSettings
from leasekit.core.errors import CommandError, RemoteError
from leasekit.core.mappers import Source
from leasekit.core.properties import Properties
from leasekit.core.protocol.fields import OFFERS_MAX, STEPS_MAX
from leasekit.core.protocol.messages import Quote, Quoted, QuotedOffer
from leasekit.core.reasons import Code
from leasekit.core.time import Instant, Term
from leasekit.core.timetable import Timetable

REMOTE: Final = "!"
"""Between a broker's name and its delegation's, in the ids of sources that mappers see."""


def check_may_plan(keyring: Keyring, peer: str) -> None:
    """Raises ``RemoteError`` unless a peer is a broker: what is held is granted without asking the mapper, so a guest
    must not say itself what that is.
    """
    if keyring.peers[peer].role != "broker":
        raise RemoteError(Code.FORBIDDEN, f"{peer} is no broker: {keyring.name} neither quotes nor holds for it")


class Quotes:
    """What is shown to planners of a broker's delegations, and asked of other brokers."""

    def __init__(self, kernel: Kernel, keyring: Keyring, book: Book, settings: BrokerSettings) -> None:
        self._kernel = kernel
        self._keyring = keyring
        self._book = book
        self._settings = settings

    def ask(self, query: str, number: int, term: Term, types: tuple[str, ...], *, but: str) -> set[str]:
        """Ask the other brokers that the settings name, but for ``but``, what they have. Returns who was asked."""
        asked = {name for name in self._settings.planners if name in self._keyring.peers and name != but}
        for name in self._settings.planners:
            if name in asked:
                self._kernel.send(name, Quote(query, number, term, types))
        return asked

    def answer_by(self) -> Instant:
        """Until when an answer of other brokers is waited for that are asked now."""
        return self._kernel.now + self._settings.quote_timeout

    @takes(Quote, REQUEST)
    def _on_quote(self, peer: str, message: Quote) -> None:
        check_may_plan(self._keyring, peer)
        offers: list[QuotedOffer] = []
        for source in self.offered(message.types, snapshot=False):
            start, end = max(source.term.start, message.term.start), min(source.term.end, message.term.end)
            if start < end and len(offers) < OFFERS_MAX:
                offers.append(self._quoted(source, Term(start, end)))
        self._kernel.send(peer, Quoted(message.query, message.number, tuple(offers)))

    def _quoted(self, source: Source, term: Term) -> QuotedOffer:
        """What is shown of a source: the disclosed share of what is free; a step shows the least of what it spans."""
        share = self._settings.disclose
        steps: list[tuple[Instant, int]] = []
        for piece, reserved, capacity in source.free.steps(term):
            free = max(0, capacity - reserved) * share // 1000
            if not steps or steps[-1][1] != free:
                steps.append((piece.start, free))
        every = -(-len(steps) // STEPS_MAX)
        shown = [
            value
            for first in range(0, len(steps), every)
            for value in (steps[first][0], min(free for _, free in steps[first : first + every]))
        ]
        units = source.units * share // 1000
        return QuotedOffer(source.id, source.site, source.type, units, term, source.properties, tuple(shown))

    def offered(self, types: Iterable[str], *, snapshot: bool) -> list[Source]:
        """What can be granted of these types, and all links."""
        links = {
            type_ for type_ in self._book.types() for one in self._book.of_type(type_) if "link.a" in one.properties
        }
        view = self._book.turn_sources(snapshot=snapshot)
        return [source for type_ in sorted({*types, *links}) for source in view(type_)]

    def where(self, source: str, quoted: Mapping[str, QuotedOffer]) -> tuple[tuple[str, str, str, str], Properties]:
        """The broker, delegation, site and type of a source that a mapper names, and its properties. Raises
        ``CommandError`` if it is neither held here nor among ``quoted``.
        """
        offer = quoted.get(source)
        if offer is not None:
            return (source.partition(REMOTE)[0], offer.source, offer.site, offer.type), offer.properties
        line = self._book.line(source)
        if not line:
            raise CommandError(f"source {source!r} is not known")
        return (self._keyring.name, source, line[0].site, line[0].type), line[0].properties


def source_of(id_: str, offer: QuotedOffer) -> Source:
    """What another broker quotes, as mappers see it."""
    free = Timetable(0)
    ends = [*offer.steps[2::2], offer.term.end]
    for at, units, end in zip(offer.steps[::2], offer.steps[1::2], ends, strict=True):
        if units and at < end:
            free.add_capacity(Term(at, end), units)
    return Source(id_, offer.site, offer.type, offer.units, offer.term, offer.properties, free)
