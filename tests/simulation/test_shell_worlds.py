"""Worlds in the daemon's own shell: nothing is wrong in fresh ones, and bugs that are put into the shell are found."""

from __future__ import annotations

import os
from typing import Final

import pytest
from planted_bugs import Bug, planted

from leasekit.runtime.executor import Executor
from leasekit.runtime.shell import ActorShell
from leasekit_simulation.shells import run_shell_world

FIRST = int(os.environ.get("LEASEKIT_FIRST_SEED", "710000"))
WORLDS = int(os.environ.get("LEASEKIT_SHELL_WORLDS", "5"))
ENOUGH = 10
"""Worlds within which a planted bug shows."""

BUGS: Final = {
    "actions begin before the commit": Bug(
        ActorShell, "_carry_out", "if ready.changes:", "self.executor.start(ready.actions)\n    if ready.changes:"
    ),
    "the turn of an actor that is gone is taken": Bug(
        ActorShell, "_run_turn", "if generation == self._generation:", "if True:"
    ),
    "the turn of an actor is taken after a reload": Bug(ActorShell, "_make_anew", "self._generation += 1", "pass"),
    "an action that runs is begun again": Bug(
        Executor, "start", "action.number > (lane.follow or lane.action).number",
        "action.number >= (lane.follow or lane.action).number",
    ),
}  # fmt: skip


@pytest.mark.parametrize("seed", range(FIRST, FIRST + WORLDS))
def test_fresh_worlds(seed: int) -> None:
    """Whatever goes wrong around a shell, it keeps its order, and in the end no lease is left."""
    assert run_shell_world(seed) == []


@pytest.mark.parametrize("name", BUGS)
def test_planted_bug_is_found(name: str) -> None:
    """One of a few worlds finds each."""
    with planted(BUGS[name]):
        assert any(run_shell_world(seed) for seed in range(ENOUGH))
