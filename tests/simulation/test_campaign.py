"""Fresh seeds: whatever goes wrong, no invariant is broken, everything comes to its end, and everything was met.

``LEASEKIT_SEEDS=5000 LEASEKIT_FIRST_SEED=200`` runs others than those that every test run does.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest

from leasekit_simulation.faults import marks
from leasekit_simulation.faults.campaign import Summary, campaign, run_seed
from leasekit_simulation.faults.run import Failure, Result, explain
from leasekit_simulation.faults.scenario import draw

FIRST = int(os.environ.get("LEASEKIT_FIRST_SEED", "710000"))
SEEDS = int(os.environ.get("LEASEKIT_SEEDS", "8"))
SHARES = 4
"""So many tests they are spread over."""


@pytest.mark.parametrize("share", range(SHARES))
def test_fresh_seeds(share: int) -> None:
    """No seed fails, 80 requests are made in each on average, and where there are enough of them no fault, message or
    transition is missing.
    """
    seeds = SEEDS // SHARES
    summary = campaign(FIRST + share * seeds, FIRST + (share + 1) * seeds - 1, failures_max=3)
    told = [explain(draw(one.seed), one, f"leasekit simulate --seed {one.seed}") for one in summary.failures]
    assert not summary.failures, "\n\n".join(told)
    assert summary.seeds == seeds
    assert summary.never_met == []
    assert marks.unexpected(summary.met) == []
    assert summary.requests / seeds >= 80


def test_processes_give_the_same() -> None:
    """What a campaign comes to does not depend on how many processes it runs in."""
    alone, together = campaign(38, 39), campaign(38, 39, jobs=2)
    assert (alone.seeds, alone.steps, alone.requests, alone.met) == (
        together.seeds, together.steps, together.requests, together.met
    )  # fmt: skip


def test_time_ends_a_campaign() -> None:
    """Without a last seed, a campaign whose time is up at once runs nothing."""
    assert campaign(0, None, minutes=0).seeds == 0


def test_campaign_stops_at_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    """After as many failures as are asked for, no more seeds are run."""
    failure = Failure(seed=0, kind="units", text="broken", at=1, step=2, phase="safety")
    monkeypatch.setattr(
        "leasekit_simulation.faults.campaign.simulate", lambda scenario: Result(seed=scenario.seed, failure=failure)
    )
    summary = campaign(0, 99, failures_max=2)
    assert (summary.seeds, len(summary.failures), summary.fine) == (2, 2, False)


def test_seeds_leave_faults_behind() -> None:
    """A campaign's results don't carry the faults of each run, which are many."""
    assert run_seed(7).injected == ()


def test_a_mark_that_was_never_met_fails_a_campaign() -> None:
    """From 300 seeds on all but rare marks must have been met, from 5,000 on all that can be."""
    everything = Counter({name: 1 for name in marks.declared() if name not in {*marks.UNREACHABLE, *marks.MAYBE}})
    few = everything - Counter(dict.fromkeys(marks.RARE, 1))
    assert Summary(seeds=marks.ENOUGH, met=everything).fine
    assert Summary(seeds=marks.ENOUGH, met=few).fine
    assert set(Summary(seeds=marks.ENOUGH_FOR_RARE, met=few).never_met) == marks.RARE
    missing = everything - Counter({"network: lose": 1})
    assert Summary(seeds=marks.ENOUGH, met=missing).never_met == ["network: lose"]
    assert Summary(seeds=marks.ENOUGH - 1, met=missing).fine
    impossible = next(iter(marks.UNREACHABLE))
    assert not Summary(seeds=1, met=Counter({impossible: 1})).fine


def test_marks_are_those_of_the_tables() -> None:
    """What is excused, or rare, is declared."""
    declared = set(marks.declared())
    assert set(marks.UNREACHABLE) <= declared
    assert declared >= marks.RARE | marks.MAYBE
    assert not (set(marks.UNREACHABLE) & marks.RARE or set(marks.UNREACHABLE) & marks.MAYBE or marks.RARE & marks.MAYBE)
