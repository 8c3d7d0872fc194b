"""A Gymnasium environment in which an agent is the broker's mapper: it says which of the jobs that wait begins now.

The world is that of :class:`leasekit.World`: production actors in virtual time. An episode is one emulation of a
deployment whose guests ask for jobs, with the seed that :meth:`SchedulingEnv.reset` is given, so that it is the same
each time. Where several jobs could begin at an instant, the agent is asked once a tick, for one of them.

:func:`train` makes a baseline agent: jobs are scored by a weighted sum of what is seen of them, and the weights are
found by the cross-entropy method. :func:`held_out` sets agents beside mappers. ``pip install 'leasekit[learning]'``
brings what it needs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import log2
from typing import Any, ClassVar, Final, TypeAlias

import attrs
import gymnasium
import numpy as np
from numpy.typing import NDArray

from leasekit.core.errors import LeasekitError
from leasekit.core.fitting import allowed, fit, free_over, grant
from leasekit.core.mappers import BrokerCycle, BrokerDecision, Defer, PendingRequest, Reject, Source, Wake
from leasekit.core.reasons import Coded
from leasekit.core.settings import expect_one_of
from leasekit.core.time import HOUR, SECOND, Instant, Term
from leasekit.emulation.tidy import interval
from leasekit.library import Changes, Config, Result, Rows, SteppedWorld, deployment_of, emulate

Observation: TypeAlias = NDArray[np.float32]
Policy: TypeAlias = Callable[[Observation], int]
"""What an agent does: an observation to an action."""

FEATURES: Final = 4
"""What is seen of each job: whether it could begin now (1 or 0), how many hours it has waited, and the logarithms (to
base 2) of its estimate in minutes and of its units."""
_BOUND: Final = 10 * SECOND
_STOP: Final = 1e6

LABORATORY: Final[Mapping[str, Any]] = {
    "deployment": {"name": "laboratory", "signatures": False},
    "actor": {
        "site": {
            "role": "authority",
            "inventory": [{"type": "node", "units": 16}],
            "delegation": [{"broker": "broker", "type": "node"}],
        },
        "broker": {"role": "broker", "mapper": {"name": "fcfs"}},
        "users": {
            "role": "guest",
            "settings": {"defer_max": "30d", "retry_max": "1h"},
            "mapper": {
                "name": "replay",
                "type": "node",
                "patience": "30d",
                "jobs": {
                    "made": {
                        "every": {"kind": "exponential", "mean": "4m"},
                        "run": {"kind": "lognormal", "median": "8m", "sigma": 1.2},
                        "units": [1, 2, 4, 8],
                        "estimate": 1.5,
                    },
                    "horizon": "5h",
                },
            },
        },
    },
    "emulation": {"horizon": "20h", "seed": 1},
}
"""A deploy file to learn on: 16 nodes, and about 75 jobs in five hours, more than there is room for at once; the
rest of the time is for those that wait then."""


class AgentsChoice:
    """A broker's mapper that does as it is told from outside: it starts the request ``chosen``, and lets others wait.

    ``waiting`` are the requests that wait, in order of arrival, and ``able`` those of them that could begin now.
    ``is_asked``: some could, and nobody has said yet which.
    """

    inline: ClassVar[bool] = True

    def __init__(self) -> None:
        self.waiting: list[PendingRequest] = []
        self.able: set[str] = set()
        self.is_asked = False
        self.chosen = ""
        self._passes = False

    def tell(self, lease: str) -> None:
        """Start a request at the next turn; none (empty) until something has changed."""
        self.chosen, self._passes, self.is_asked = lease, not lease, False

    def allocate(self, cycle: BrokerCycle) -> list[BrokerDecision]:
        """Start what was chosen, and ask for more if more could begin. Extends and modifies are granted if they fit."""
        decisions: list[BrokerDecision] = []
        self.waiting, self.able = [], set()
        for request in sorted(cycle.requests, key=lambda one: one.lease != self.chosen):
            source = _room(cycle, request)
            if request.op != "new":
                decisions.append(fit(cycle, request))
            elif request.lease == self.chosen and source is not None:
                decisions.append(grant(source, request, request.units, _from_now(cycle, request)))
            elif request.latest_start < cycle.now:
                decisions.append(Reject(request.lease, Coded("it did not begin in time", "too_late")))
            else:
                self.waiting.append(request)
                self.able |= {request.lease} if source is not None else set()
                decisions.append(Defer(request.lease, Coded("it waits to be chosen", "waits")))
        self.waiting.sort(key=lambda one: (one.arrived, one.lease))
        for group in cycle.groups:
            decisions.append(Reject(group[0].lease, Coded("groups are not scheduled here", "group")))
        self.is_asked = bool(self.able) and not self._passes
        self.chosen, self._passes = "", False
        if self.is_asked:
            decisions.append(Wake(cycle.now + 1))
        return decisions


def _from_now(cycle: BrokerCycle, request: PendingRequest) -> Term:
    start = max(cycle.now, request.term.start)
    return Term(start, start + request.term.length)


def _room(cycle: BrokerCycle, request: PendingRequest) -> Source | None:
    """A delegation that has what a request asks for from now on."""
    term = _from_now(cycle, request)
    return next((one for one in allowed(cycle, request) if free_over(one, request, term) >= request.units), None)


class SchedulingEnv(gymnasium.Env[Observation, Any]):
    """Which job begins next.

    An action is the place in line of the job that begins (the first ``queue`` of those that wait are shown, in order of
    arrival), or ``queue``: none, until something has changed. A job that can't begin now is taken for none:
    :meth:`action_masks` says which can. An observation has :data:`FEATURES` for each, zeros where there is none.
    The reward of a step is what the time that it took adds to the bounded slowdowns of the jobs that wait, below zero.
    An episode ends with the emulation; its ``info`` then has ``slowdown``, the mean bounded slowdown of all jobs that
    began, and ``waiting``, how many did not.
    """

    metadata: dict[str, Any] = {"render_modes": []}

    def __init__(
        self, config: Config = LABORATORY, *, broker: str = "broker", queue: int = 12, changes: Changes | None = None
    ) -> None:
        """``broker`` is the actor whose mapper the agent takes the place of. Raises ``LeasekitError``."""
        if queue < 1:
            raise LeasekitError(f"queue: found {queue}, expected 1 or more")
        actors = deployment_of(config, changes, None).actors
        brokers = [name for name, actor in actors.items() if actor.role == "broker"]
        if broker not in brokers:
            raise LeasekitError(f"broker: found {broker!r}, {expect_one_of(broker, brokers)}")
        self._config, self._broker, self._queue = config, broker, queue
        self._changes = {**(changes or {}), f"actor.{broker}.mapper": {"name": f"{__name__}:{AgentsChoice.__name__}"}}
        self.action_space = gymnasium.spaces.Discrete(queue + 1)
        self.observation_space = gymnasium.spaces.Box(0, _STOP, (queue * FEATURES,), np.float32)
        self._world: SteppedWorld | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """The emulation anew, up to the first choice. Without a ``seed`` one is drawn, as Gymnasium has it."""
        super().reset(seed=seed)
        drawn = int(self.np_random.integers(2**31)) if seed is None else seed
        self._world = SteppedWorld(self._config, changes=self._changes, seed=drawn)
        mapper = self._world.mapper(self._broker)
        if not isinstance(mapper, AgentsChoice):
            raise LeasekitError(f"broker: the mapper of {self._broker} is no {AgentsChoice.__name__}")
        self._mapper = mapper
        self._go_on()
        return self._seen(), {}

    def step(self, action: int) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Do what was chosen, and go on to the next choice. Raises ``LeasekitError`` for what is no action."""
        world, mapper = self._running(), self._mapper
        if not 0 <= action <= self._queue:
            raise LeasekitError(f"action: found {action}, expected a place from 0 on, or {self._queue} for none")
        shown = mapper.waiting[: self._queue]
        lease = shown[action].lease if action < len(shown) else ""
        mapper.tell(lease if lease in mapper.able else "")
        reward = self._go_on()
        if world.now < world.end:
            return self._seen(), reward, False, False, {}
        slowdown = _mean_slowdown(world.result())
        return self._seen(), reward, True, False, {"slowdown": slowdown, "waiting": len(mapper.waiting)}

    def action_masks(self) -> NDArray[np.bool_]:
        """Which actions do anything: jobs that can begin now, and none of them."""
        mask = np.zeros(self._queue + 1, dtype=np.bool_)
        mask[-1] = True
        for place, request in enumerate(self._mapper.waiting[: self._queue]):
            mask[place] = request.lease in self._mapper.able
        return mask

    def _running(self) -> SteppedWorld:
        if self._world is None:
            raise LeasekitError("step: the environment was not reset")
        return self._world

    def _go_on(self) -> float:
        """Let time pass up to the next choice, or the end; returns what it cost."""
        world, mapper, cost = self._running(), self._mapper, 0.0
        while not mapper.is_asked and world.now < world.end:
            waiting, before = list(mapper.waiting), world.now
            at = world.next_at
            world.run_until(world.end if at is None else min(at, world.end))
            passed = world.now - before
            cost += sum(passed / max(one.term.length, _BOUND) for one in waiting)
        return -cost

    def _seen(self) -> Observation:
        now: Instant = self._running().now
        seen = np.zeros((self._queue, FEATURES), dtype=np.float32)
        for place, one in enumerate(self._mapper.waiting[: self._queue]):
            minutes = max(one.term.length, _BOUND) / (60 * SECOND)
            waited = max(0, now - one.arrived) / HOUR
            seen[place] = (one.lease in self._mapper.able, waited, log2(1 + minutes), log2(1 + one.units))
        return seen.reshape(-1)


# -- a baseline --------------------------------------------------------------------------------------------------------


@attrs.frozen
class LinearAgent:
    """Of the jobs that can begin, the one with the largest weighted sum of its wait, estimate and units."""

    weights: tuple[float, ...]

    def __call__(self, seen: Observation) -> int:
        """The action; none where no job can begin."""
        jobs = seen.reshape(-1, FEATURES)
        able = jobs[:, 0] > 0
        if not able.any():
            return len(jobs)
        return int(np.argmax(np.where(able, jobs[:, 1:] @ np.asarray(self.weights), -np.inf)))


def slowdown_of(env: SchedulingEnv, policy: Policy, seed: int) -> float:
    """The mean bounded slowdown of an episode. Raises ``LeasekitError`` if some job never began, or there are none."""
    seen, _ = env.reset(seed=seed)
    done, info = False, dict[str, Any]()
    while not done:
        seen, _, done, _, info = env.step(policy(seen))
    if info["waiting"]:
        raise LeasekitError(f"seed {seed}: {info['waiting']} jobs never began, expected an emulation that ends later")
    return _some(info["slowdown"], seed)


def train(
    env: SchedulingEnv, seeds: Sequence[int], *, generations: int = 4, population: int = 8, seed: int = 1
) -> LinearAgent:
    """The baseline agent, by the cross-entropy method: of each generation's weights the best quarter, by their mean
    bounded slowdown over the episodes of ``seeds``, says around which the next ones are drawn. The same ``seed`` gives
    the same agent. Raises ``LeasekitError`` for no seeds.
    """
    _check_some("seeds", seeds)
    draw = np.random.default_rng(seed)
    mean, spread = np.zeros(FEATURES - 1), np.ones(FEATURES - 1)
    for _ in range(generations):
        drawn = draw.normal(mean, spread, (population, FEATURES - 1))
        found = [float(np.mean([slowdown_of(env, LinearAgent(tuple(one)), each) for each in seeds])) for one in drawn]
        best = drawn[np.argsort(found)[: max(2, population // 4)]]
        mean, spread = best.mean(axis=0), best.std(axis=0) + 0.05
    return LinearAgent(tuple(float(weight) for weight in mean))


def held_out(
    agents: Mapping[str, Policy],
    mappers: Sequence[str],
    seeds: Sequence[int],
    *,
    config: Config = LABORATORY,
    broker: str = "broker",
) -> Rows:
    """Agents beside mappers of a deployment's ``broker``, on the same episodes: a row for each ``scheduler`` with the
    ``mean`` of its mean bounded slowdowns, and ``low`` and ``high`` (95%, Student's t); and the same of how much it is
    below that of the first mapper, episode by episode (``gain``, ``gain_low``, ``gain_high``). Raises ``LeasekitError``
    for no mapper and for no seeds.
    """
    _check_some("mappers", mappers)
    _check_some("seeds", seeds)
    env = SchedulingEnv(config, broker=broker)
    found = {name: [_slowdown_by(config, broker, name, seed) for seed in seeds] for name in mappers}
    found |= {name: [slowdown_of(env, policy, seed) for seed in seeds] for name, policy in agents.items()}
    base = found[mappers[0]]
    rows = []
    for name, values in found.items():
        gain = interval([than - value for than, value in zip(base, values, strict=True)])
        more = {"gain": gain["mean"], "gain_low": gain["low"], "gain_high": gain["high"]}
        rows.append({"scheduler": name, **interval(values), **more})
    return Rows(rows)


def _check_some(name: str, given: Sequence[object]) -> None:
    if not given:
        raise LeasekitError(f"{name}: found none, expected one at least")


def _slowdown_by(config: Config, broker: str, mapper: str, seed: int) -> float:
    done = emulate(config, changes={f"actor.{broker}.mapper": {"name": mapper}}, seed=seed)
    return _some(_mean_slowdown(done), seed)


def _mean_slowdown(done: Result) -> float | None:
    """Over the jobs of all guests that began; none where there are none."""
    rows = [row for row in done.guests if row["requests.leases"]]
    jobs = sum(row["requests.leases"] for row in rows)
    return sum(row["requests.mean_bounded_slowdown"] * row["requests.leases"] for row in rows) / jobs if jobs else None


def _some(slowdown: float | None, seed: int) -> float:
    if slowdown is None:
        raise LeasekitError(f"seed {seed}: no job began, expected guests that ask for jobs, as `replay` does")
    return slowdown
