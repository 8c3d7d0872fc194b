"""What a broker would answer: questions of guests that book nothing.

A question is decided by a mapper made for it alone, on a cycle that shows it behind everything that waits, with views
of its own. So it can't disturb what is really decided, and whatever the mapper remembers is thrown away with it. It
takes the mapper's turn, in line or in a thread under the shell's time limit, when no other turn is due. Nothing of it
is stored: after a restart it is forgotten, and who asked asks again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol

import attrs

from leasekit.actors.broker.admission import Admission
from leasekit.actors.dispatch import takes
from leasekit.actors.kernel import Kernel
from leasekit.actors.served import Served
from leasekit.actors.settings import REQUEST
from leasekit.actors.turns import FAILED, NOT_CARRIED_OUT, check_decision
from leasekit.core.errors import CommandError, RemoteError
from leasekit.core.leases import broker as br
from leasekit.core.leases.records import Asked, BrokerLease
from leasekit.core.leases.relations import Delegation
from leasekit.core.mappers import BrokerCycle, BrokerMapper, Defer, Grant, Reject, Wake
from leasekit.core.protocol.messages import EXTEND, MODIFY, NEW, Probe, ProbeAnswer
from leasekit.core.reasons import Code, Reason, of_mapper
from leasekit.core.requests import Options, parse_options
from leasekit.core.steps import TurnDone
from leasekit.core.time import Instant, Term

PROBES_MAX: Final = 64
"""How many questions may wait at once."""
PEER_PROBES_MAX: Final = 8
"""How many of them may be one peer's."""
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


class Decider(Protocol):
    """How a broker has its mapper decide, and what it makes of that."""

    def show(self, lease: BrokerLease) -> BrokerCycle:
        """What the mapper is shown: all requests that wait, and the one of ``lease`` behind them."""

    def try_grant(self, lease: BrokerLease, grant: Grant) -> Delegation:
        """The delegation that ``grant`` would be cut from. Raises ``CommandError`` if it can't be carried out."""


class DryRuns:
    """The questions that wait for a broker. ``fresh`` makes its mapper anew; None: it takes no questions."""

    def __init__(
        self,
        kernel: Kernel,
        served: Served[BrokerLease],
        admission: Admission,
        decider: Decider,
        fresh: Callable[[], BrokerMapper] | None,
    ) -> None:
        self._kernel = kernel
        self._served = served
        self._admission = admission
        self._decider = decider
        self._fresh = fresh
        self._questions: deque[_Question] = deque()
        self.in_turn: _Question | None = None
        """The question that a mapper decides now."""
        self._asked = 0

    # -- asking ------------------------------------------------------------------------------------------------

    @takes(Probe, REQUEST)
    def _on_probe(self, peer: str, message: Probe) -> None:
        if self._fresh is None:
            raise RemoteError(Code.UNAVAILABLE, f"{self._served.name} answers requests only")
        theirs = sum(question.peer == peer for question in self._questions)
        if len(self._questions) >= PROBES_MAX or theirs >= PEER_PROBES_MAX:
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
            self._answer(peer, message, REFUSED, error.reason)
            return
        self._admission.note(lease, options)
        self._questions.append(_Question(peer, message, lease, self._kernel.now))

    def _tried(self, peer: str, message: Probe, options: Options) -> BrokerLease:
        """The lease as it would be if the request were made. Raises ``RemoteError`` where it can't be."""
        asked = Asked(message.op, message.units, message.term, message.site, message.properties)
        self._asked += 1
        # No holder's id begins like this: they begin with a fingerprint.
        id_ = f"probe-{self._asked}"
        if message.op == NEW:
            self._admission.check_size(message.type, message.units, options)
            return BrokerLease(
                id_, peer, "", message.type, br.NASCENT, br.TICKETING, asked, 0, 0, self._kernel.now,
                self._admission.deadline(options, message.term.end, whole=False),
            )  # fmt: skip
        if message.op not in _PENDING:
            raise RemoteError(Code.BAD_OP, f"op: found {message.op!r}, allowed are {NEW}, {', '.join(_PENDING)}")
        lease = self._served.leases.get(message.of)
        if lease is None or not self._served.is_holders(lease, peer) or not lease.claims:
            raise RemoteError(Code.UNKNOWN_LEASE, f"{self._served.name} has granted {peer} no lease {message.of}")
        deadline = self._admission.goes_on_until(lease, message.op, message.term)
        return BrokerLease(
            id_, peer, lease.slice, lease.type, br.TICKETED, _PENDING[message.op], asked, 0, 0, self._kernel.now,
            deadline, claims=lease.claims,
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
            if question.lease.deadline <= at:  # it waited for the mapper, as a request may
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
            source = self._decider.try_grant(lease, decision)
            self._close(GRANTED, None, site=source.site, units=decision.units, term=decision.term)

    def _close(
        self,
        status: str,
        reason: Reason | None,
        *,
        site: str = "",
        units: int = 0,
        term: Term | None = None,
        earliest: Instant = -1,
    ) -> None:
        question = self.in_turn
        assert question is not None, "there is one to be answered"
        self.in_turn = None
        self._admission.forget(question.lease)
        self._answer(question.peer, question.message, status, reason, site, units, term, earliest)

    def _answer(
        self,
        peer: str,
        message: Probe,
        status: str,
        reason: Reason | None,
        site: str = "",
        units: int = 0,
        term: Term | None = None,
        earliest: Instant = -1,
    ) -> None:
        answer = ProbeAnswer(
            message.lease, message.number, status, site, units, term or message.term, reason,
            earliest,
        )  # fmt: skip
        self._kernel.send(peer, answer)
