"""The turns of a guest's mapper, and what it is asked in between."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from leasekit.actors.guest.leases import Leases
from leasekit.actors.guest.topologies import LeasedTopologies
from leasekit.actors.kernel import Kernel
from leasekit.actors.turns import FAILED, MapperTurns, check_decision, is_inline, run_turn
from leasekit.core.errors import CommandError
from leasekit.core.leases.records import GuestLease
from leasekit.core.mappers import Go, GuestCycle, GuestMapper, Hold
from leasekit.core.steps import Turn, TurnDone
from leasekit.core.time import Instant


@attrs.define(eq=False)
class GuestTurns:
    """The mapper is called when it wants to be."""

    _kernel: Kernel
    _turns: MapperTurns
    _records: Leases
    _topologies: LeasedTopologies
    mapper: GuestMapper

    def at(self) -> Instant | None:
        """See :class:`Turning`."""
        return None if self._turns.running else self._turns.wake

    def turn(self) -> Turn | None:
        """See :class:`Turning`."""
        at = self.at()
        if at is None or at > self._kernel.now:
            return None
        self._turns.answer_wake()
        snapshot = not is_inline(self.mapper)
        views = [self._records.view(lease, snapshot=snapshot) for lease in self._records.open.values()]
        cycle = GuestCycle(self._kernel.now, views, list(self._topologies.views()))
        return self._turns.begin(lambda: self.mapper.plan(cycle))

    def done(self, done: TurnDone) -> None:
        """See :class:`Turning`."""
        self._turns.done(done)


@attrs.define(eq=False)
class Unblocking:
    """What the mapper says before a blocked lease goes on."""

    _kernel: Kernel
    _turns: MapperTurns
    _records: Leases
    _mapper: GuestMapper

    def unblock(self, lease: GuestLease, predecessor: GuestLease) -> Go | Hold:
        """Ask the mapper; one that fails holds the lease for a minute, and says so."""
        unblock: Callable[..., Go | Hold] | None = getattr(self._mapper, "unblock", None)
        if unblock is None:
            return Go()
        done = run_turn(0, lambda: [unblock(self._records.view(lease), self._records.view(predecessor))])
        error = done.error
        if not error:
            try:
                return _answer(done.decisions[0])
            except CommandError as wrong:
                error = str(wrong)
        self._turns.wrong(FAILED, f"guest mapper's unblock for {lease.id}: {error}")
        return Hold(self._kernel.now + self._kernel.settings.retry_max)


def _answer(decision: Any) -> Go | Hold:
    if not isinstance(decision, Go | Hold):
        raise CommandError("it returned neither Go nor Hold")
    check_decision(decision)
    return decision
