"""How a broker takes requests: for new leases, for more time or other units, and their withdrawal; and questions what
it would answer. What can never be granted is refused at once; the rest waits for the mapper.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Any, Final, Protocol

import attrs
from msgspec.structs import replace

from leasekit.actors.base import FAILED, NOT_CARRIED_OUT, check_decision
from leasekit.actors.broker.book import Book, RequestQueue
from leasekit.actors.broker.claims import place_of
from leasekit.actors.broker.grants import Answers, HeldParts
from leasekit.actors.kernel import Kernel, keeps, takes
from leasekit.actors.served import OLD, Served
from leasekit.actors.settings import REQUEST, BrokerSettings, PreemptibleLimits
from leasekit.core.accounts import BID, NOT_TAKEN
from leasekit.core.errors import CommandError, RemoteError
from leasekit.core.leases import broker as br
from leasekit.core.leases.plans import HOLD
from leasekit.core.leases.records import Asked, BrokerLease, Delegation, Granted, WaitsForMapper
from leasekit.core.mappers import BrokerCycle, BrokerMapper, Defer, Grant, Reject, Wake
from leasekit.core.properties import CLASSES_MAX, CORE, Counts, Properties, Vector, written
from leasekit.core.protocol.messages import EXTEND, MODIFY, NEW, REPLACE, DryRun, DryRunAnswer, RequestTicket, Withdraw
from leasekit.core.reasons import Code, Reason, mark, of_mapper
from leasekit.core.requests import REQUEUE, Options, parse_options
from leasekit.core.steps import TurnDone
from leasekit.core.time import INSTANT_MAX, MINUTE, Duration, Instant, Term, format_duration

HOSTS_MAX: Final = 3
"""Of how many sizes of hosts a refusal tells."""


@attrs.define(eq=False, slots=False)
class Admission:
    """Whether a request, or a question, is taken. ``settings`` say how long it may wait."""

    _kernel: Kernel
    _served: Served[BrokerLease]
    _queue: RequestQueue
    _book: Book
    _settings: BrokerSettings

    def note(self, lease: BrokerLease, options: Options) -> None:
        """``lease`` is that of a question: how it may be granted is known as long as the question waits."""
        self._queue.options[lease.id] = options

    def enqueue(self, lease: BrokerLease, options: Options, *, again: bool = False) -> None:
        """The request of ``lease`` waits for the mapper; ``again``: it did before this actor was made."""
        self._queue.add(lease, options, again=again)
        self._book.note_request()

    def join_group(self, lease: BrokerLease, options: Options) -> None:
        """``lease`` is asked for with others: once all are there, all wait as long as each says."""
        self._book.join_group(lease.holder, options.group, lease.id, options.lease_count)
        have, count = self._book.group_size(lease.id)
        if have == count:
            for id_ in self._book.group_of(lease.id):
                member = self._served.leases[id_]
                deadline = self.deadline(self._queue.options[id_], member.asked.term.end, whole=True)
                member.waits = member.waits._replace(deadline=deadline)
                self._kernel.touch(member)

    def restore(self) -> None:
        """The requests of leases that were taken up wait again."""
        waiting = (lease for lease in self._served.leases.values() if lease.waits.number)
        for lease in sorted(waiting, key=lambda one: (one.waits.arrived, one.id)):
            options = parse_options(lease.asked.properties, lease.asked.term)
            self.enqueue(lease, options, again=True)
            if lease.group and lease.asked.op == NEW:
                self._book.join_group(lease.holder, lease.group, lease.id, options.lease_count)

    def forget(self, lease: BrokerLease) -> None:
        """The question of ``lease`` is answered."""
        self._queue.options.pop(lease.id, None)

    def admit(self, peer: str, message: RequestTicket | DryRun, options: Options) -> None:
        """Refuse what can never be granted, by the answer that fits: type, site, size and time are different."""
        self._queue.check_room(peer)
        _check_lists(options)
        if message.term.end <= self._kernel.now:
            raise RemoteError(
                Code.PAST,
                f"term ends at {mark(message.term.end)}, it is {mark(self._kernel.now)} at {self._served.name}",
            )
        _check_stay(options, self._settings.preemptible, self._served.name)
        sources = self._book.of_type(message.type)
        if not sources and not self._book.types() and options.deferrable:
            return  # just started: the sites' offers are on their way, and this request can wait for them
        if not sources:
            known = ", ".join(self._book.types()) or "(none yet)"
            raise RemoteError(Code.UNKNOWN_TYPE, f"type: found {message.type!r}, {self._served.name} has {known}")
        if message.site:
            sources = [source for source in sources if source.site == message.site]
            if not sources:
                known = ", ".join(sorted({source.site for source in self._book.of_type(message.type)}))
                raise RemoteError(
                    Code.UNKNOWN_SITE, f"site: {message.site!r} offers no {message.type!r} here; {known} do"
                )

    def check_size(self, type_: str, units: int, options: Options) -> None:
        """Raises ``RemoteError`` for more units than any site has, unless fewer will do."""
        each = (self._most_of(source, options.needs) for source in self._book.of_type(type_))
        most = max(each, default=units)
        if units > most and not options.elastic:
            size = f" that need {written(options.needs)} each" if options.needs else ""
            text = f"units: found {units}{size}, no site here has more than {most} of {type_!r}"
            raise RemoteError(
                Code.TOO_LARGE, text if most or not options.needs else self._too_small(type_, options.needs)
            )

    def _too_small(self, type_: str, needs: Vector) -> str:
        """That no host has what a machine needs, and what hosts have."""
        hosts = (one for source in self._book.of_type(type_) for one in self._book.hosts(source.base).values())
        have = dict.fromkeys(written((*one.capacity, *([(CORE, one.core)] if one.core else []))) for one in hosts)
        return (
            f"needs: found {written(needs)}, no host of {type_!r} has as much: {' or '.join(islice(have, HOSTS_MAX))}"
        )

    def _most_of(self, source: Delegation, needs: Vector) -> int:
        """How many units with these needs a delegation has at most."""
        hosts = self._book.hosts(source.base)
        return hosts.most(self._book.ticket(source.id).leaf.classes, needs) if hosts and needs else source.units

    def deadline(self, options: Options, end: Instant, *, whole: bool) -> Instant:
        """Until when a request for a term that ends at ``end`` waits.

        A group that is not ``whole`` waits for its members first, and not for long.
        """
        settings, last = self._settings, options.latest_start
        if options.group and not whole:
            last = min(last or INSTANT_MAX, self._kernel.now + settings.group_timeout)
        elif not last:
            last = (
                self._kernel.now + settings.defer_max
                if options.deferrable
                else min(end, self._kernel.now + settings.request_timeout)
            )
        return min(last, self._kernel.now + options.request_timeout) if options.request_timeout else last

    def goes_on_until(self, lease: BrokerLease, op: str, term: Term, *, vacates: bool = False) -> Instant:
        """Until when an extend or modify of a lease waits; ``vacates``: it gives back units that are under notice.
        Raises ``RemoteError`` where it can't be asked for.
        """
        last, claim = lease.claims[-1], lease.claims[place_of(lease, op, term)]
        if lease.is_noticed and not vacates:
            raise RemoteError(Code.PREEMPTED, f"lease {lease.id} was preempted, it ends at {lease.ending.at}")
        if last.saving:
            raise RemoteError(Code.SUSPENDED, f"lease {lease.id} is suspended by {last.until}: extend what resumes it")
        if last.until <= self._kernel.now:
            raise RemoteError(Code.PAST, f"lease {lease.id} ended at {last.until}")
        if op == EXTEND and term.start != last.until:
            raise RemoteError(
                Code.WRONG_TERM, f"an extend starts where the lease ends: at {mark(last.until)}, not {mark(term.start)}"
            )
        if op == EXTEND:
            return last.until
        if op == REPLACE:
            self._check_unused(lease)
            return min(last.term.start, term.end, self._kernel.now + self._settings.request_timeout)
        if not claim.term.start <= term.start < claim.until:
            raise RemoteError(Code.WRONG_TERM, f"a modify starts within the term, before {claim.until}")
        if claim is not last and term.end != claim.until:
            raise RemoteError(
                Code.WRONG_TERM,
                f"the lease goes on from {mark(claim.until)}: a modify ends there, not {mark(term.end)}",
            )
        return min(claim.until, term.end, self._kernel.now + self._settings.request_timeout)

    def _check_unused(self, lease: BrokerLease) -> None:
        """Raises ``RemoteError`` for a lease that may have begun, or goes on over several claims."""
        *before, last = lease.claims
        if last.term.start <= self._kernel.now:
            raise RemoteError(Code.WRONG_TERM, f"the term of lease {lease.id} began at {mark(last.term.start)}")
        if any(one.until > self._kernel.now and not one.held for one in before):
            raise RemoteError(Code.WRONG_TERM, f"lease {lease.id} goes on over several claims")


_OPS = (NEW, EXTEND, MODIFY, REPLACE)


EXCLUDED_MAX: Final = 64
"""How many sites one request can exclude."""
GROUP_MAX: Final = 1_000
"""How many requests a group can have: they are all decided, and answered, at once."""
REFUSALS_EVERY: Final[Duration] = MINUTE
"""How often requests of one kind that are not taken are noted."""


def _check_stay(options: Options, limits: PreemptibleLimits, broker: str) -> None:
    """Raises ``RemoteError`` for what would be preemptible in name only: others could not count on its place."""
    spans = (("notice", options.notice), ("suspend", options.suspend), ("min_run", options.min_run))
    for name, span in spans:
        most = limits.min_run_max if name == "min_run" else limits.notice_max
        if span is not None and span > most:
            found = f"found {format_duration(span)}, {broker} allows at most {format_duration(most)}"
            raise RemoteError(Code.STAYS_TOO_LONG, f"properties.{name}: {found}")


def _check_lists(options: Options) -> None:
    """Raises ``RemoteError`` for lists in properties that take much more room once they are read than as text, and are
    compared with those of all other requests; and for groups of too many.
    """
    if options.lease_count > GROUP_MAX:
        found = f"found {options.lease_count} requests, at most {GROUP_MAX} can be of one group"
        raise RemoteError(Code.BAD_PROPERTIES, f"properties.lease_count: {found}")
    if len(options.exclude_sites) > EXCLUDED_MAX:
        found = f"found {len(options.exclude_sites)} sites, at most {EXCLUDED_MAX} can be excluded"
        raise RemoteError(Code.BAD_PROPERTIES, f"properties.exclude_sites: {found}")
    if len(options.keep) > CLASSES_MAX:
        found = f"found {len(options.keep)} classes, a claim has at most {CLASSES_MAX}"
        raise RemoteError(Code.BAD_PROPERTIES, f"properties.keep: {found}")


@attrs.define(eq=False)
class RefusedKind:
    """Requests of one holder and type that were not taken for one cause: ``more`` came since that was last noted."""

    id: str
    why: Reason
    more: int = 1
    timer: Instant | None = None


@keeps(derived="_kinds")
@attrs.define(eq=False, slots=False)
class Refusals:
    """Requests that are not taken, and leave no record: how many is noted in the log, of each kind no more often than
    once in a while, so that a flood of them does not fill it.
    """

    _kernel: Kernel
    _book: Book
    _kinds: dict[str, RefusedKind] = attrs.field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        self._kernel.register_unkept(RefusedKind, on_due=self._due)

    def count(self, peer: str, message: RequestTicket, reason: Reason) -> None:
        """One more."""
        type_ = message.type if self._book.of_type(message.type) else ""
        key = f"{peer}/{type_}/{reason.code}"
        kind = self._kinds.get(key)
        if kind is None:
            why = Reason(Code.TURNED_AWAY, peer, type_).because(Reason(reason.code))
            kind = self._kinds[key] = RefusedKind(key, why)
            self._note(kind)
        else:
            kind.more += 1

    def _note(self, kind: RefusedKind) -> None:
        self._kernel.note(NOT_TAKEN, NOT_TAKEN, "", "", replace(kind.why, units=kind.more))
        kind.more = 0
        self._kernel.schedule(kind, self._kernel.now + REFUSALS_EVERY)

    def _due(self, kind: RefusedKind) -> None:
        if kind.more:
            self._note(kind)
        else:
            del self._kinds[kind.id]


@attrs.define(eq=False)
class Requests:
    """The requests of guests."""

    _kernel: Kernel
    _served: Served[BrokerLease]
    _admission: Admission
    _answers: Answers
    _held: HeldParts

    @takes(RequestTicket, REQUEST)
    def _on_request(self, peer: str, message: RequestTicket) -> None:
        lease = self._served.leases.get(message.lease)
        if not self._served.is_news(lease, peer, message):
            return
        if message.op not in _OPS:
            raise RemoteError(Code.BAD_OP, f"op: found {message.op!r}, allowed are {', '.join(_OPS)}")
        try:
            options = parse_options(message.properties, message.term)
        except CommandError as error:
            raise RemoteError(Code.BAD_PROPERTIES, str(error)) from error
        hold = self._held.holds.for_request(peer, message) if HOLD in message.properties else None
        self._admission.admit(peer, message, options)
        asked = Asked(message.op, message.units, message.term, message.site, message.properties)
        if message.op == NEW:
            if lease is not None:
                raise RemoteError(
                    Code.EXISTS, f"lease {lease.id} is {lease.state}: it can be extended, not asked for again"
                )
            lease = self._open(peer, message, asked, options)
        else:
            lease = self._reopen(lease, message, asked)
        self._admission.enqueue(lease, options)
        self._served.accept(lease, message)
        self._kernel.touch(lease)
        if hold is not None:
            self._held.use(hold, lease)

    def _open(self, peer: str, message: RequestTicket, asked: Asked, options: Options) -> BrokerLease:
        self._served.check_id(message.lease, peer)
        self._admission.check_size(message.type, message.units, options)
        lease = BrokerLease(
            message.lease, peer, message.slice, message.type, br.NASCENT, br.TICKETING, asked, message.number,
            WaitsForMapper(
                message.number, self._place_in_line(peer, message.properties),
                self._admission.deadline(options, asked.term.end, whole=False),
            ),
            group=options.group, key=self._served.key_of(peer),
        )  # fmt: skip
        self._served.leases[lease.id] = lease
        self._kernel.note(lease.id, "request", "", f"{lease.state}/{lease.pending}", _asked(lease, asked))
        if options.bid is not None:
            self._kernel.note(lease.id, BID, "", "", Reason(Code.BID, units=options.bid))
        self._admission.note(lease, options)
        if options.group:
            self._admission.join_group(lease, options)
        return lease

    def _reopen(self, lease: BrokerLease | None, message: RequestTicket, asked: Asked) -> BrokerLease:
        if lease is None or not lease.claims:
            raise RemoteError(Code.UNKNOWN_LEASE, f"{self._served.name} has granted no lease {message.lease}")
        claim = lease.claims[place_of(lease, message.op, message.term)]
        vacates = _vacates(lease, claim, asked)
        if vacates:  # what is left ends as it was to end
            asked = asked._replace(term=Term(asked.term.start, min(asked.term.end, lease.ending.at)))
        if (vacates or not lease.is_noticed) and message.claim != claim.digest:
            last = "last claim" if message.op == EXTEND else f"claim at {mark(message.term.start)}"
            raise RemoteError(Code.WRONG_CLAIM, f"lease {lease.id}'s {last} is another one than the request names")
        deadline = self._admission.goes_on_until(lease, message.op, asked.term, vacates=vacates)
        if lease.waits.number:  # or it would not ask for something else
            self._kernel.fire(lease, "withdraw", Reason(Code.WITHDRAWN))
            self._answers.settle(lease, "closed", Reason(Code.REQUEST_REPLACED))
        self._kernel.fire(lease, message.op, _asked(lease, asked))
        lease.asked, lease.number = asked, message.number
        lease.waits = WaitsForMapper(message.number, self._kernel.now, deadline)
        return lease

    @takes(Withdraw)
    def _on_withdraw(self, peer: str, message: Withdraw) -> None:
        lease = self._served.leases.get(message.lease)
        if lease is None:
            raise RemoteError(Code.UNKNOWN_LEASE, f"{self._served.name} knows no lease {message.lease}")
        fresh = self._served.freshness(lease, peer, message.number)
        if fresh == OLD:
            return
        overtaken, lease.number = message.request > lease.number, message.number
        self._kernel.touch(lease)
        if lease.waits.number != message.request or not lease.waits.number:
            if overtaken and not lease.waits.number and lease.ended < 0:
                lease.waits = lease.waits._replace(number=message.request)  # when it comes it is dropped
                self._answers.settle(lease, "closed", Reason(Code.WITHDRAWN))
            else:
                self._served.repeat(lease, message.number)
            return
        self._kernel.fire(lease, "withdraw", Reason(Code.WITHDRAWN))
        self._answers.settle(lease, "closed", Reason(Code.WITHDRAWN))
        self._answers.refuse_group(lease, Reason(Code.GROUP_WITHDRAWN))

    def _place_in_line(self, peer: str, properties: Properties) -> Instant:
        """Since when a new request waits: the rest of a suspended lease of the same holder has its place, once."""
        before = self._served.leases.get(properties.get("resumes", ""))
        if before is None or before.holder != peer or not before.ending.suspended:
            return self._kernel.now
        before.ending = before.ending._replace(suspended=False)
        self._kernel.touch(before)
        return before.waits.arrived


def _vacates(lease: BrokerLease, claim: Granted, asked: Asked) -> bool:
    """Whether a request about a ``claim`` gives back units of a lease that is under notice, and is not to be saved
    whole.
    """
    saved = lease.ending.suspended and lease.terms.on_preempt != REQUEUE
    gives = asked.op == MODIFY and asked.units < claim.units and asked.term.start < lease.ending.at
    return lease.is_noticed and gives and not saved


def _asked(lease: BrokerLease, asked: Asked) -> Reason:
    """What is asked for a lease, as it is written down."""
    start, end = asked.term
    return Reason(Code.ASKED, lease.holder, lease.type, units=asked.units, at=start, until=end)


DRY_RUNS_MAX: Final = 64
"""How many questions may wait at once."""
PEER_DRY_RUNS_MAX: Final = 8
"""How many of them may be one peer's."""
_PENDING: Final = {EXTEND: br.EXTENDING_TICKET, MODIFY: br.MODIFYING, REPLACE: br.MODIFYING}
GRANTED, WAITS, REFUSED = "granted", "waits", "refused"


@attrs.define(slots=True, eq=False)
class _Question:
    """One of them: whose it is, how it was asked, the lease that it would make, who hears the answer, and the instant
    that its mapper is shown.
    """

    peer: str
    message: DryRun
    lease: BrokerLease
    then: Callable[[DryRunAnswer], None]
    at: Instant
    again: bool = False


class Decider(Protocol):
    """How a broker has its mapper decide, and what it makes of that."""

    def show(self, lease: BrokerLease) -> BrokerCycle:
        """What the mapper is shown: all requests that wait, and the one of ``lease`` behind them."""

    def try_grant(self, lease: BrokerLease, grant: Grant) -> tuple[Delegation, Counts]:
        """The delegation that ``grant`` would be cut from, and its units by class. Raises ``CommandError`` if it can't
        be carried out.
        """


@keeps(volatile="_questions in_turn", derived="_asked")
@attrs.define(eq=False, slots=False)
class DryRuns:
    """The questions that wait for a broker. ``fresh`` makes its mapper anew; None: it takes no questions."""

    _kernel: Kernel
    _served: Served[BrokerLease]
    _admission: Admission
    _decider: Decider
    _fresh: Callable[[], BrokerMapper] | None
    _questions: deque[_Question] = attrs.field(factory=deque, init=False)
    in_turn: _Question | None = attrs.field(default=None, init=False)
    """The question that a mapper decides now."""
    _asked: int = attrs.field(default=0, init=False)

    # -- asking ------------------------------------------------------------------------------------------------

    @takes(DryRun, REQUEST)
    def _on_dry_run(self, peer: str, message: DryRun) -> None:
        self.ask(peer, message, partial(self._kernel.send, peer))

    def ask(self, peer: str, message: DryRun, then: Callable[[DryRunAnswer], None]) -> None:
        """Have ``then`` hear, at once or after its mapper's turn, what a request of a peer's would be answered. Raises
        ``RemoteError`` for what is no request, and where too many questions wait.
        """
        if self._fresh is None:
            raise RemoteError(Code.UNAVAILABLE, f"{self._served.name} answers requests only")
        theirs = sum(question.peer == peer for question in self._questions)
        if len(self._questions) >= DRY_RUNS_MAX or theirs >= PEER_DRY_RUNS_MAX:
            raise RemoteError(
                Code.BUSY, f"{self._served.name} has {len(self._questions)} questions waiting: try again later"
            )
        try:
            options = parse_options(message.properties, message.term)
        except CommandError as error:
            raise RemoteError(Code.BAD_PROPERTIES, str(error)) from error
        if options.group:
            raise RemoteError(Code.BAD_PROPERTIES, "group_id: a group is answered whole, one request can't be tried")
        try:
            self._admission.admit(peer, message, options)
            lease = self._tried(peer, message, options)
        except RemoteError as error:
            then(_answer(message, REFUSED, error.reason))
            return
        self._admission.note(lease, options)
        self._questions.append(_Question(peer, message, lease, then, self._kernel.now))

    def _tried(self, peer: str, message: DryRun, options: Options) -> BrokerLease:
        """The lease as it would be if the request were made. Raises ``RemoteError`` where it can't be."""
        asked = Asked(message.op, message.units, message.term, message.site, message.properties)
        self._asked += 1
        # No holder's id begins like this: they begin with a fingerprint.
        id_ = f"dry-run-{self._asked}"
        if message.op == NEW:
            self._admission.check_size(message.type, message.units, options)
            return BrokerLease(
                id_, peer, "", message.type, br.NASCENT, br.TICKETING, asked, 0,
                WaitsForMapper(0, self._kernel.now, self._admission.deadline(options, message.term.end, whole=False)),
            )  # fmt: skip
        if message.op not in _PENDING:
            raise RemoteError(Code.BAD_OP, f"op: found {message.op!r}, allowed are {NEW}, {', '.join(_PENDING)}")
        lease = self._served.leases.get(message.of)
        if lease is None or not self._served.is_holders(lease, peer) or not lease.claims:
            raise RemoteError(Code.UNKNOWN_LEASE, f"{self._served.name} has granted {peer} no lease {message.of}")
        deadline = self._admission.goes_on_until(lease, message.op, message.term)
        return BrokerLease(
            id_, peer, lease.slice, lease.type, br.TICKETED, _PENDING[message.op], asked, 0,
            WaitsForMapper(0, self._kernel.now, deadline), claims=lease.claims,
        )  # fmt: skip

    # -- its mapper's turn -------------------------------------------------------------------------------------

    def is_due(self) -> bool:
        """Whether a question waits for a mapper."""
        return bool(self._questions)

    def next_call(self) -> Callable[[], Any] | None:
        """What has a mapper decide the next question."""
        while self._questions:
            self.in_turn = question = self._questions.popleft()
            at = max(self._kernel.now, question.at)
            if question.lease.waits.deadline <= at:  # it waited for the mapper, as a request may
                self._close(REFUSED, Reason(Code.NOT_GRANTED))
                continue
            cycle = self._decider.show(question.lease)
            if not question.lease.defer_reason:
                return self._call(cycle._replace(now=at))
            self._close(WAITS, question.lease.defer_reason)
        return None

    def _call(self, cycle: BrokerCycle) -> Callable[[], Any]:
        fresh = self._fresh
        assert fresh is not None, "no question is taken without"
        return lambda: fresh().allocate(cycle)

    def turn_done(self, done: TurnDone) -> None:
        """Answer with what was decided on the question."""
        question = self.in_turn
        assert question is not None, "its turn has ended"
        if done.error:
            self._complain(FAILED, done.error)
            self._close(REFUSED, Reason(Code.MAPPER_FAILED))
            return
        try:
            wake = self._judge(question.lease, done)
        except CommandError as error:
            self._complain(NOT_CARRIED_OUT, str(error))
            self._close(REFUSED, Reason(Code.MAPPER_WRONG).because(error.reason))
            return
        if self.in_turn is None:
            return
        if wake is not None and not question.again:
            # It decides in rounds: the next one tells.
            question.at, question.again = wake, True
            self._questions.appendleft(question)
            self.in_turn = None
        else:
            self._close(WAITS, Reason(Code.MAPPER_SILENT))

    def _complain(self, kind: str, why: str) -> None:
        self._kernel.complain(f"broker mapper, asked what it would do: {why}", "mapper", kind)

    def _judge(self, lease: BrokerLease, done: TurnDone) -> Instant | None:
        """Answer with what was decided on the question; else the instant at which the mapper wants to be called."""
        wake: Instant | None = None
        for decision in done.decisions:
            if isinstance(decision, Wake):
                check_decision(decision)
                wake = decision.at if wake is None else min(wake, decision.at)
            elif isinstance(decision, (Grant, Reject, Defer)) and decision.lease == lease.id:
                check_decision(decision)
                self._close_by(lease, decision)
                return None
        return wake

    def _close_by(self, lease: BrokerLease, decision: Grant | Reject | Defer) -> None:
        if isinstance(decision, Defer):
            self._close(WAITS, of_mapper(decision.reason))
        elif isinstance(decision, Reject):
            fits = -1 if decision.earliest is None else max(decision.earliest, -1)
            self._close(REFUSED, of_mapper(decision.reason, fits), earliest=fits)
        else:
            source, units = self._decider.try_grant(lease, decision)
            self._close(GRANTED, None, site=source.site, units=decision.units, term=decision.term, classes=units)

    def _close(self, status: str, reason: Reason | None, **more: Any) -> None:
        question = self.in_turn
        assert question is not None, "there is one to be answered"
        self.in_turn = None
        self._admission.forget(question.lease)
        question.then(replace(_answer(question.message, status, reason), **more))


def _answer(message: DryRun, status: str, reason: Reason | None) -> DryRunAnswer:
    """An answer that names nothing that is granted."""
    return DryRunAnswer(message.lease, message.number, status, "", 0, message.term, reason, -1)
