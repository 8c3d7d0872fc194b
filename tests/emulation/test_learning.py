"""Agents that schedule: the environment keeps Gymnasium's rules, repeats for a seed, and a baseline learns in it."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import leasekit
from leasekit.core.errors import LeasekitError
from leasekit.learning import FEATURES, LABORATORY, LinearAgent, SchedulingEnv, held_out, slowdown_of, train

SHORTEST_FIRST = LinearAgent((0.0, -1.0, 0.0))
FIRST_COME = LinearAgent((1.0, 0.0, 0.0))


def test_it_keeps_the_rules_of_gymnasium() -> None:
    """Spaces, seeds, and what reset and step return."""
    check_env(SchedulingEnv(), skip_render_check=True)


def test_an_episode_repeats_for_a_seed() -> None:
    """Observations and rewards, step by step; another seed has other jobs."""

    def played(seed: int) -> list[tuple[bytes, float]]:
        env = SchedulingEnv()
        seen, _ = env.reset(seed=seed)
        steps, done = [(seen.tobytes(), 0.0)], False
        while not done:
            seen, reward, done, _, _ = env.step(SHORTEST_FIRST(seen))
            steps.append((seen.tobytes(), reward))
        return steps

    assert played(3) == played(3) != played(4)


def test_rewards_add_up_to_slowdowns() -> None:
    """What an episode costs is the time that its jobs waited, each by its length: their slowdowns, less one each."""
    env = SchedulingEnv(changes={"emulation.horizon": "20h"})
    seen, _ = env.reset(seed=5)
    cost, done, info = 0.0, False, dict[str, Any]()
    while not done:
        seen, reward, done, _, info = env.step(FIRST_COME(seen))
        cost -= reward
    jobs = leasekit.emulate(LABORATORY, seed=5).guests[0]["requests.asked"]
    assert info["waiting"] == 0
    assert cost / jobs == pytest.approx(info["slowdown"] - 1, rel=0.02)


def test_what_can_begin_is_told_by_the_mask() -> None:
    """The first feature of a job says the same; an action that can't be done leaves all as it is until a change."""
    env = SchedulingEnv()
    seen, _ = env.reset(seed=1)
    assert list(env.action_masks()[:-1]) == list(seen.reshape(-1, FEATURES)[:, 0] > 0)
    assert env.action_masks()[-1]
    before = int(np.count_nonzero(seen.reshape(-1, FEATURES)[:, 3]))
    seen, reward, done, _, _ = env.step(env.action_space.n - 1)
    assert not done
    assert reward < 0
    assert np.count_nonzero(seen.reshape(-1, FEATURES)[:, 3]) == before + 1, "nobody began, and another job came"


@pytest.mark.soak
def test_a_trained_agent_beats_fcfs_on_seeds_that_it_has_not_seen() -> None:
    """With 95% confidence, in the difference of each episode."""
    agent = train(SchedulingEnv(), [1, 2], generations=2, population=6)
    rows = {row["scheduler"]: row for row in held_out({"agent": agent}, ["fcfs", "backfill"], range(2001, 2013))}
    assert rows["agent"]["gain_low"] > 0
    assert rows["fcfs"]["gain"] == 0
    assert rows["backfill"]["mean"] < rows["fcfs"]["mean"]


def test_a_seed_trains_the_same_agent() -> None:
    """Whatever was trained before, in the same environment or another."""
    env = SchedulingEnv()
    first = train(env, [1], generations=1, population=2)
    assert first == train(env, [1], generations=1, population=2)
    assert first != train(SchedulingEnv(), [1], generations=1, population=2, seed=2)


def test_jobs_that_never_began_are_told() -> None:
    """An emulation that ends too early has no mean that can be compared."""
    env = SchedulingEnv(changes={"emulation.horizon": "2h", "actor.site.inventory.0.units": 8})
    with pytest.raises(LeasekitError, match=r"seed 1: \d+ jobs never began"):
        slowdown_of(env, FIRST_COME, 1)
    document = copy.deepcopy(dict(LABORATORY))
    with pytest.raises(LeasekitError, match="the environment was not reset"):
        SchedulingEnv(document).step(0)


def _of_two() -> dict[str, Any]:
    """The laboratory with its jobs between two guests."""
    config = copy.deepcopy(dict(LABORATORY))
    config["actor"]["users"]["mapper"]["jobs"]["made"]["every"]["mean"] = "8m"
    config["actor"]["others"] = copy.deepcopy(config["actor"]["users"])
    config["actor"]["head"] = config["actor"].pop("broker")
    config["actor"]["site"]["delegation"][0]["broker"] = "head"
    return config


def test_jobs_of_several_guests_count_alike() -> None:
    """The slowdown is the mean over all jobs, whoever asks for them, of an agent's episode as of a mapper's."""
    config = _of_two()
    (row,) = held_out({}, ["fcfs"], [1], config=config, broker="head")
    guests = list(leasekit.emulate(config, seed=1).guests)
    slowdowns = [guest["requests.mean_bounded_slowdown"] for guest in guests]
    jobs = [guest["requests.leases"] for guest in guests]
    assert row["mean"] == pytest.approx(np.average(slowdowns, weights=jobs)) and len(set(slowdowns)) == 2
    assert slowdown_of(SchedulingEnv(config, broker="head"), FIRST_COME, 1) > 1


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"broker": "hed"}, r"broker: found 'hed', expected one of: head"),
        ({"broker": "users"}, r"broker: found 'users', expected one of: head"),
        ({"broker": "head", "queue": 0}, r"queue: found 0, expected 1 or more"),
    ],
)
def test_what_makes_no_environment_is_told(given: dict[str, Any], told: str) -> None:
    """Before anything is run."""
    with pytest.raises(LeasekitError, match=told):
        SchedulingEnv(_of_two(), **given)


def test_what_is_no_action_is_told() -> None:
    """It is not taken for none, or for the last in line."""
    env = SchedulingEnv(queue=3)
    env.reset(seed=1)
    for action in (-1, 4):
        with pytest.raises(LeasekitError, match=rf"action: found {action}, expected a place from 0 on, or 3 for none"):
            env.step(action)


def test_nothing_is_compared_with_nothing() -> None:
    """An agent needs episodes, and mappers to be held against."""
    with pytest.raises(LeasekitError, match="seeds: found none"):
        train(SchedulingEnv(), [])
    with pytest.raises(LeasekitError, match="seeds: found none"):
        held_out({}, ["fcfs"], [])
    with pytest.raises(LeasekitError, match="mappers: found none"):
        held_out({}, [], [1])


def test_guests_without_jobs_are_told() -> None:
    """An episode in which nobody asks for anything has no slowdown."""
    env = SchedulingEnv(changes={"actor.users.mapper": {"name": "manual"}})
    with pytest.raises(LeasekitError, match="no job began"):
        slowdown_of(env, FIRST_COME, 1)
