"""What a broker delegates to other brokers, of what was delegated to it.

What it gives is reserved in the timetable of the source that it was cut from, like a lease. One that is taken back
gives its units free when the site has accepted that the claim ends early: until then the site would count both.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from leasekit.actors.broker.book import Book
from leasekit.actors.broker.preemption import TRUNCATE
from leasekit.actors.broker.statements import keep_receipt
from leasekit.actors.issued import Issued
from leasekit.actors.kernel import Kernel
from leasekit.actors.keyring import Keyring
from leasekit.actors.notices import Notices
from leasekit.actors.settings import BrokerSettings, DelegationSpec
from leasekit.core.claims.claim import DEGREE_ONE, UNITS_MAX
from leasekit.core.claims.statements import TRUNCATION, state
from leasekit.core.claims.ticket import Ticket, decode_ticket, delegate
from leasekit.core.errors import CommandError
from leasekit.core.leases import delegation as deleg
from leasekit.core.leases.relations import Delegation, Notice
from leasekit.core.protocol.messages import Truncated, Withhold
from leasekit.core.schema import Row
from leasekit.core.time import Instant, Term


def _key(id_: str) -> str:
    """Under which a delegation that was given is reserved in the timetable of its source."""
    return f"given {id_}"


class Subdelegation:
    """What the settings say is given of what is in ``book``: the issuer of :attr:`issued`."""

    def __init__(
        self, kernel: Kernel, keyring: Keyring, book: Book, notices: Notices, settings: BrokerSettings
    ) -> None:
        self._kernel = kernel
        self._keyring = keyring
        self._book = book
        self._notices = notices
        self._settings = settings
        self.issued = Issued(kernel, keyring, self)
        self._begun = False

    def begin(self) -> None:
        """It is known what time it is: what the settings say is given, for the first time or again."""
        if not self._begun:
            self._begun = True
            self.issued.give(again=True)

    def delegation_specs(self) -> Sequence[DelegationSpec]:
        """What the settings say is to be given."""
        return self._settings.delegations

    def most_of(self, spec: DelegationSpec) -> int:
        """As many as are asked for."""
        return UNITS_MAX  # whether it ever has that much shows when its sites have delegated

    def check_wish(self, line: str, type_: str, units: int) -> None:
        """How many are given must be said."""
        if not units and line not in self.issued.specs:
            raise CommandError(f"units: found none, and the settings don't say how many {type_!r} are given: say it")

    def delegate(self, id_: str, spec: DelegationSpec, last: Delegation | None, *, instead: bool = False) -> bool:
        """See :class:`Issuer`."""
        for source in self._book.of_type(spec.type):
            if (spec.site and source.site != spec.site) or source.state != deleg.HELD:
                continue
            if (
                last is None
                and next(one for one in self._book.line(source.base) if one.state == deleg.HELD) is not source
            ):
                continue  # what comes later is for renewals
            if last is not None and self._book.base(last.source) != source.base:
                continue
            begin, wanted = self.issued.stretch(spec, last, instead=instead)
            start, end = max(begin, source.term.start) if last is None else begin, min(wanted, source.term.end)
            if not source.term.start <= start < end:
                continue
            term, promised = Term(start, end), spec.units * spec.degree // DEGREE_ONE
            same = (
                instead
                and last is not None
                and (end, promised) == (last.term.end, decode_ticket(last.ticket).leaf.capacity)
            )
            if same or self._free_but_for_windows(source, term) < promised:
                continue  # the site, and who gave this, count the old claim until nothing of it is in use
            whole = self._book.ticket(source.id)
            ticket = delegate(
                whole, self._keyring.signer_of(whole.leaf.holder), holder=self._keyring.key_of(spec.broker),
                units=spec.units, term=term, serial=self._kernel.next("serial"), degree=spec.degree,
            )  # fmt: skip
            table, key = self._book.table(source.id), _key(id_)
            if key in table:  # a line that begins anew, under the name of what is over
                table.release(key)
            # Over a maintenance window it may be more than there is: the taker hears of that when it has it.
            table.reserve(key, ticket.leaf.capacity, term, force=True)
            self.issued.offer(
                id_, spec.broker, ticket, source.properties, line=self.issued.line_name(spec), site=source.site,
                source=source.id,
            )  # fmt: skip
            return True
        return False

    def _free_but_for_windows(self, source: Delegation, term: Term) -> int:
        """What could be granted of a delegation over ``term`` if all of it were in service."""
        for window in source.withheld:
            self._book.withhold(source, window, -1)
        free = self._book.table(source.id).available(term)
        for window in source.withheld:
            self._book.withhold(source, window, 1)
        return free

    def offer_taken(self, record: Delegation) -> None:
        """It may have been cut out of what a maintenance window takes: the taker is to leave that alone."""
        source = self._book.get(record.source)
        for window in source.withheld if source is not None else ():
            begin, end = (
                max(window.term.start, record.term.start, self._kernel.now),
                min(window.term.end, record.term.end),
            )
            lacking = -self._book.table(record.source).available(Term(begin, end)) if begin < end else 0
            if lacking > 0 and window.units:
                number, units = self._kernel.next("serial"), min(lacking, record.units)
                message = Withhold(record.id, number, window.window, units, window.term, window.reason)
                self._notices.owe(
                    f"{window.window}@{record.id}", record.peer, record.id, number, message, window.term.end
                )

    def offer_refused(self, record: Delegation) -> None:
        """The taker has the claim all the same: its units are free when the site knows that it is not to be used."""
        self._end_claim(record, record.term.start)

    def taken_back(self, record: Delegation) -> None:
        """Its taker stops what depends on it."""

    def is_own_claim(self, peer: str, ticket: Ticket, offered: Delegation) -> bool:
        """What this broker forgot it can't tell from what others made up."""
        return False

    def check_given_in_all(self, type_: str) -> None:
        """Whether there is as much shows when its sites have delegated."""

    def let_go(self, record: Delegation, until: Instant) -> None:
        """What the taker granted before may go on until then."""
        self._end_claim(record, max(record.reclaimed, record.replaced, min(until, record.term.end)))

    def _end_claim(self, record: Delegation, at: Instant) -> None:
        if at >= record.term.end:
            return
        if record.site not in self._keyring.peers:
            self._kernel.complain(f"{record.id} stays reserved: its site {record.site!r} is no peer that could be told")
            return
        number = self._kernel.next("serial")
        signer = self._keyring.signer_of(decode_ticket(record.ticket).leaf.issuer)
        statement = state(signer, TRUNCATION, record.digest, at, record.id).encode()
        message = Truncated(record.id, number, record.ticket, statement)
        self._notices.owe(f"{TRUNCATE}{record.id}", record.site, record.id, number, message, record.term.end)

    def truncated(self, notice: Notice, receipt: bytes) -> None:
        """A site knows of the early end of a claim, and has given ``receipt``."""
        record, message = self.issued.given.get(notice.subject), notice.content()
        if isinstance(message, Truncated) and record is not None:
            ticket = decode_ticket(record.ticket)
            leaf = ticket.leaf
            about = (record.id, leaf.issuer.hex(), leaf.holder.hex(), leaf.type, leaf.units, *leaf.term)
            self._free(record, keep_receipt(self._kernel, self._keyring, ticket, leaf.digest, about, receipt).at)

    def _free(self, record: Delegation, at: Instant) -> None:
        record.freed = at
        self._kernel.touch(record)
        table = self._book.table_or_none(record.source)
        if table is not None:
            table.end(_key(record.id), at)
            self._book.note_news()
            self.issued.give_waiting()

    def restore(self, rows: Collection[Row], wishes: Collection[Row]) -> None:
        """Take up what a store kept, and reserve it in what was taken up of the book."""
        self.issued.restore(rows, wishes)
        for given in self.issued:
            table = self._book.table_or_none(given.source)
            if table is not None and given.state != deleg.ENDED:  # one that was refused until its site knows: freed
                table.reserve(_key(given.id), decode_ticket(given.ticket).leaf.capacity, given.term, force=True)
                if given.freed >= 0:
                    table.end(_key(given.id), given.freed)
