"""Simulated worlds with links: topologies under faults, and a checker that finds what is broken on purpose."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from leasekit.actors.broker.planner import Holds, Planner
from leasekit.actors.guest.topologies import LeasedTopologies
from leasekit.actors.kernel import Kernel, takes
from leasekit.actors.settings import REQUEST
from leasekit.core.leases.plans import PlanHold
from leasekit.core.protocol.messages import Plan
from leasekit_simulation.faults.run import simulate
from leasekit_simulation.faults.scenario import Scenario, draw

ENOUGH = 45
"""Worlds in which a planted fault must show."""


def worlds(count: int, seed: int = 0) -> Iterator[Scenario]:
    """The first scenarios from ``seed`` on that have links."""
    while count:
        scenario = draw(seed)
        seed += 1
        if scenario.links:
            count -= 1
            yield scenario


@pytest.mark.parametrize(("count", "first"), [(1, 26), pytest.param(6, 0, marks=pytest.mark.soak)])
def test_topologies_are_met(count: int, first: int) -> None:
    """Plans are held, committed and given up, also over several brokers, and nothing is wrong; one world has it all."""
    met: set[str] = set()
    for scenario in worlds(count, first):
        result = simulate(scenario)
        assert result.failure is None, result.failure
        met |= set(result.met)
    assert met >= {
        "topology held", "topology refused", "topology redeemed", "guest: committing/- commit",
        "guest: committed/- over", "broker: promised/- use", "message Quote", "message Quoted",
    }  # fmt: skip


def _eager(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LeasedTopologies, "is_undecided", lambda self, lease: False)


def _forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Holds, "restore", lambda self, rows: None)


def _endless(monkeypatch: pytest.MonkeyPatch) -> None:
    register: Callable[..., None] = Kernel.register
    monkeypatch.setattr(
        Kernel, "register", lambda self, kind, **needs: register(self, kind, **({} if kind is PlanHold else needs))
    )


def _leaking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Holds, "_free_parts", lambda self, hold: None)


def _fickle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Repeats of a query are planned anew."""
    on_plan = Planner._on_plan

    @takes(Plan, REQUEST)
    def planned_anew(self: Planner, peer: str, message: Any) -> None:
        for hold in self._holds.held.values():
            if hold.query == message.query:
                hold.query = ""
        on_plan(self, peer, message)

    monkeypatch.setattr(Planner, "_on_plan", planned_anew)


@pytest.mark.parametrize(
    ("plant", "seed"),
    [
        (_eager, 19), (_endless, 0), (_fickle, 0),
        pytest.param(_forgetful, 8, marks=pytest.mark.soak), pytest.param(_leaking, 0, marks=pytest.mark.soak),
    ],
)  # fmt: skip
def test_what_is_broken_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guests that redeem too early, brokers that forget, keep or leak what they hold, or plan one query twice: in
    worlds from that ``seed`` on which found it when this was written.
    """
    plant(monkeypatch)
    failures = (simulate(scenario).failure for scenario in worlds(ENOUGH, seed))
    found = next((failure for failure in failures if failure is not None), None)
    assert found is not None
    assert "plan" in found.text or "topolog" in found.text, found.text
