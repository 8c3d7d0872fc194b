"""The turns of a broker's mapper, and what it decides in these."""

from __future__ import annotations

from typing import Any

import attrs

from leasekit.actors.broker.answers import Answers
from leasekit.actors.broker.cycle import Cycles
from leasekit.actors.broker.dry_runs import DryRuns
from leasekit.actors.broker.grants import Grants
from leasekit.actors.broker.planner import Planner
from leasekit.actors.broker.preemption import Preemption
from leasekit.actors.broker.queue import RequestQueue
from leasekit.actors.turns import Carriers, MapperTurns, is_inline
from leasekit.core.mappers import BrokerMapper, Defer, Grant, GrantGroup, Preempt, Reject
from leasekit.core.reasons import of_mapper
from leasekit.core.steps import Turn, TurnDone
from leasekit.core.time import Instant


@attrs.define(eq=False)
class BrokerDecisions:
    """How each decision is carried out."""

    _queue: RequestQueue
    _grants: Grants
    _answers: Answers
    _preemption: Preemption

    @property
    def carriers(self) -> Carriers:
        """For :meth:`MapperTurns.declare`."""
        return {
            Grant: lambda one: self._grants.grant((one,)),
            GrantGroup: lambda one: self._grants.grant(one.grants),
            Reject: self._reject,
            Defer: self._defer,
            Preempt: self._preempt,
        }

    def _reject(self, one: Reject) -> None:
        fits = one.earliest if one.earliest is None or one.earliest >= 0 else None
        self._answers.reject(self._queue.waiting(one.lease), of_mapper(one.reason, fits), fits)

    def _defer(self, one: Defer) -> None:
        self._queue.waiting(one.lease).defer_reason = of_mapper(one.reason) if one.reason else None

    def _preempt(self, one: Preempt) -> None:
        self._preemption.preempt(one.lease, one.at, of_mapper(one.reason), suspend=one.suspend)


@attrs.define(eq=False)
class BrokerTurns:
    """When the mapper is called: for requests that wait, and for questions what it would answer."""

    _turns: MapperTurns
    _cycles: Cycles
    _dry_runs: DryRuns
    _planner: Planner
    mapper: BrokerMapper

    def at(self) -> Instant | None:
        """See :class:`Turning`."""
        if self._turns.running:
            return None
        return self._cycles.due_at(self._turns.wake, asked=self._dry_runs.is_due() or self._planner.is_due())

    def turn(self) -> Turn | None:
        """The mapper's turn, if requests wait and something has changed since it saw them; else a question's."""
        if self._turns.running:
            return None
        if self._cycles.is_due(self._turns.wake):
            self._turns.answer_wake()
            cycle = self._cycles.show_news()
            if cycle.requests or cycle.groups:
                return self._turns.begin(lambda: self.mapper.allocate(cycle))
        call: Any = self._dry_runs.next_call() or self._planner.next_call(snapshot=not is_inline(self.mapper))
        return None if call is None else self._turns.begin(call)

    def done(self, done: TurnDone) -> None:
        """See :class:`Turning`."""
        if done.number == self._turns.running and self._dry_runs.in_turn is not None:
            self._turns.end()
            self._dry_runs.turn_done(done)
        elif done.number == self._turns.running and self._planner.in_turn is not None:
            self._turns.end()
            self._planner.turn_done(done)
        else:
            self._turns.done(done)
