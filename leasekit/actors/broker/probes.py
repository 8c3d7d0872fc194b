"""What a broker would answer: questions of guests that book nothing.

A question is decided by a mapper made for it alone, on a cycle that shows it behind everything that waits, with views
of its own. So it can't disturb what is really decided, and whatever the mapper remembers is thrown away with it. It
takes the mapper's turn, in line or in a thread under the shell's time limit, when no other turn is due. Nothing of it
is stored: after a restart it is forgotten, and who asked asks again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

import attrs

from leasekit.actors.broker.claims import BrokerClaims, concerned
from leasekit.actors.dispatch import takes
from leasekit.actors.settings import REQUEST, BrokerSettings, Peer
from leasekit.actors.turns import FAILED, NOT_CARRIED_OUT, check_decision
from leasekit.core.claims.keys import Scheme, Signer
from leasekit.core.errors import CommandError, RemoteError
from leasekit.core.leases import broker as br
from leasekit.core.leases.records import Asked, BrokerLease
from leasekit.core.mappers import BrokerCycle, BrokerMapper, Defer, Grant, Reject, Wake
from leasekit.core.protocol.codec import clip
from leasekit.core.protocol.messages import EXTEND, MODIFY, NEW, Probe, ProbeAnswer
from leasekit.core.requests import Options, parse_options
from leasekit.core.steps import Turn, TurnDone
from leasekit.core.time import Instant, Term

PROBES_MAX: Final = 64
"""How many questions may wait at once."""
PEER_PROBES_MAX: Final = 8
"""How many of them may be one peer's."""
REASON_MAX: Final = 1000
_PENDING: Final = {EXTEND: br.EXTENDING_TICKET, MODIFY: br.MODIFYING}
GRANTED, WAITS, REFUSED = "granted", "waits", "refused"


@attrs.define(slots=True, eq=False)
class _Question:
    """One of them: who asked, how, the lease that it would make, and the instant that its mapper is shown."""

    peer: str
    message: Probe
    lease: BrokerLease
    at: Instant
    again: bool = False


class BrokerProbes(BrokerClaims):
    """The questions that wait for a broker."""

    def __init__(
        self,
        name: str,
        signer: Signer,
        scheme: Scheme,
        peers: Iterable[Peer],
        settings: BrokerSettings,
        fresh: Callable[[], BrokerMapper] | None,
    ) -> None:
        super().__init__(name, signer, scheme, peers, settings)
        self._fresh = fresh
        self._questions: deque[_Question] = deque()
        self._question: _Question | None = None
        self._questions_asked = 0

    # -- for the layer above -----------------------------------------------------------------------------------

    def _admit(self, peer: str, message: Probe, options: Options) -> None:
        raise NotImplementedError

    def _check_size(self, type_: str, units: int, options: Options) -> None:
        raise NotImplementedError

    def _deadline(self, options: Options, end: Instant, *, whole: bool) -> Instant:
        raise NotImplementedError

    def _goes_on_until(self, lease: BrokerLease, op: str, term: Term) -> Instant:
        raise NotImplementedError

    def _cycle(self, more: Iterable[BrokerLease] = ()) -> BrokerCycle:
        raise NotImplementedError

    def _check_grant(self, lease: BrokerLease, grant: Grant) -> None:
        raise NotImplementedError

    # -- asking ------------------------------------------------------------------------------------------------

    @takes(Probe, REQUEST)
    def _on_probe(self, peer: str, message: Probe) -> None:
        if self._fresh is None:
            raise RemoteError("unavailable", f"{self.name} answers requests only")
        theirs = sum(question.peer == peer for question in self._questions)
        if len(self._questions) >= PROBES_MAX or theirs >= PEER_PROBES_MAX:
            raise RemoteError("busy", f"{self.name} has {len(self._questions)} questions waiting: try again later")
        try:
            options = parse_options(message.properties, message.term)
        except CommandError as error:
            raise RemoteError("bad_properties", str(error)) from error
        if options.group:
            raise RemoteError("bad_properties", "group_id: a group is answered whole, one request can't be tried")
        try:
            self._admit(peer, message, options)
            lease = self._tried(peer, message, options)
        except RemoteError as error:
            self._answer(peer, message, REFUSED, error.text)
            return
        self.queue.options[lease.id] = options
        self._questions.append(_Question(peer, message, lease, self.kernel.now))

    def _tried(self, peer: str, message: Probe, options: Options) -> BrokerLease:
        """The lease as it would be if the request were made. Raises ``RemoteError`` where it can't be."""
        asked = Asked(message.op, message.units, message.term, message.site, message.properties)
        self._questions_asked += 1
        # No holder's id begins like this: they begin with a fingerprint.
        id_ = f"probe-{self._questions_asked}"
        if message.op == NEW:
            self._check_size(message.type, message.units, options)
            return BrokerLease(
                id_, peer, "", message.type, br.NASCENT, br.TICKETING, asked, 0, 0, self.kernel.now,
                self._deadline(options, message.term.end, whole=False),
            )  # fmt: skip
        if message.op not in _PENDING:
            raise RemoteError("bad_op", f"op: found {message.op!r}, allowed are {NEW}, {', '.join(_PENDING)}")
        lease = self.leases.get(message.of)
        if lease is None or not self.served.is_holders(lease, peer) or not lease.claims:
            raise RemoteError("unknown_lease", f"{self.name} has granted {peer} no lease {message.of}")
        deadline = self._goes_on_until(lease, message.op, message.term)
        return BrokerLease(
            id_, peer, lease.slice, lease.type, br.TICKETED, _PENDING[message.op], asked, 0, 0, self.kernel.now,
            deadline, claims=lease.claims,
        )  # fmt: skip

    # -- its mapper's turn -------------------------------------------------------------------------------------

    def _question_turn(self) -> Turn | None:
        """The turn that decides the next question."""
        while self._questions and not self.turns.running:
            self._question = question = self._questions.popleft()
            if question.lease.deadline <= max(
                self.kernel.now, question.at
            ):  # it waited for the mapper, as a request may
                self._close_question(REFUSED, "not granted in time")
                continue
            cycle = self._cycle((question.lease,))
            if not question.lease.defer_reason:
                return self._begin_question(cycle._replace(now=max(self.kernel.now, question.at)))
            self._close_question(WAITS, question.lease.defer_reason)
        return None

    def _begin_question(self, cycle: BrokerCycle) -> Turn:
        fresh = self._fresh
        assert fresh is not None, "no question is taken without"
        return self.turns.begin(lambda: fresh().allocate(cycle))

    def _question_done(self, done: TurnDone) -> None:
        question = self._question
        assert question is not None, "its turn has ended"
        self.turns.end()
        if done.error:
            self.turns.wrong(FAILED, f"broker mapper, asked what it would do: {done.error}")
            self._close_question(REFUSED, "the broker's mapper has failed on it")
            return
        try:
            wake = self._judge(question.lease, done)
        except CommandError as error:
            self.turns.wrong(NOT_CARRIED_OUT, f"broker mapper, asked what it would do: {error}")
            self._close_question(REFUSED, f"the broker's mapper decided what can't be carried out: {error}")
            return
        if self._question is None:
            return
        if wake is not None and not question.again:
            # It decides in rounds: the next one tells.
            question.at, question.again = wake, True
            self._questions.appendleft(question)
            self._question = None
        else:
            self._close_question(WAITS, "the broker's mapper doesn't decide it now")

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
            self._close_question(WAITS, decision.reason)
        elif isinstance(decision, Reject):
            fits = decision.earliest if decision.earliest is not None else -1
            self._close_question(REFUSED, decision.reason, earliest=max(fits, -1))
        else:
            self._check_grant(lease, decision)
            table = self.book.table_of(decision.source)
            if lease.asked.op == MODIFY:  # it gives up the rest of what it holds
                table = table.overlay()
                table.end(concerned(lease).key, decision.booked.start)
            free = table.available(decision.booked)
            if free < decision.units:
                raise CommandError(f"it would overbook: {free} units are free over {tuple(decision.booked)}")
            source = self.book.cover(decision.source, decision.booked)[0][0]
            self._close_question(GRANTED, "", site=source.site, units=decision.units, term=decision.term)

    def _close_question(
        self,
        status: str,
        reason: str,
        *,
        site: str = "",
        units: int = 0,
        term: Term | None = None,
        earliest: Instant = -1,
    ) -> None:
        question = self._question
        assert question is not None, "there is one to be answered"
        self._question = None
        self.queue.options.pop(question.lease.id, None)
        self._answer(question.peer, question.message, status, reason, site, units, term, earliest)

    def _answer(
        self,
        peer: str,
        message: Probe,
        status: str,
        reason: str,
        site: str = "",
        units: int = 0,
        term: Term | None = None,
        earliest: Instant = -1,
    ) -> None:
        answer = ProbeAnswer(
            message.lease, message.number, status, site, units, term or message.term, clip(reason, REASON_MAX),
            earliest,
        )  # fmt: skip
        self.kernel.send(peer, answer)
