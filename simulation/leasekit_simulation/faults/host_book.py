"""The book of hosts: what drivers were told of machines, added up by host. It knows needs and hosts from the actions
alone, and the sizes of hosts from the scenario's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Final, NamedTuple

from leasekit.core.properties import Properties
from leasekit.core.steps import Action, ActionDone
from leasekit.core.time import Instant
from leasekit_simulation.faults.checkers import Listening, must

HOST: Final[Mapping[str, str]] = {
    "capacity.cpu": "4000", "capacity.memory": "8192", "least_yield": "500", "driver.cap": "true",
    "driver.migrate": "true",
}  # fmt: skip
"""What each unit has in worlds of hosts."""
CPU_NEEDS, MEMORY_NEEDS = (400, 1000, 3000, 9000), (512, 2048, 5000)
"""What machines need: some that no host has."""


def draw_needs(seed: int, number: int) -> dict[str, str]:
    """What each machine of the request of this ``number`` needs; nothing, where it is for whole hosts."""
    rng = Random(f"leasekit needs {seed} {number}")
    if rng.random() >= 0.6:
        return {}
    return {"needs.cpu": str(rng.choice(CPU_NEEDS)), "needs.memory": str(rng.choice(MEMORY_NEEDS))}


def draw_wishes(seed: int, number: int, leases: Sequence[str]) -> dict[str, str]:
    """What the configuration of the request of this ``number`` says of where its machines go, and what CPU they get, to
    mappers that place them. ``leases`` are others, which they may be to be near, or apart from.
    """
    rng = Random(f"leasekit wishes {seed} {number}")
    wishes = {"weight": rng.choice(("0.5", "2", "1e308", "heavy")), "spread": "a", "affinity": "a", "parallel": "true"}
    wishes |= {name: rng.choice(leases) for name in ("near", "apart") if leases}
    return {name: value for name, value in wishes.items() if rng.random() < 0.15}


class HostSize(NamedTuple):
    """So much of a host: millicores and MiB."""

    cpu: int
    memory: int


WHOLE: Final = HostSize(4000, 8192)


class HostChecker(Listening):
    """A host has no more on it at any time than it has, by what is guaranteed; one that is leased whole has nothing
    else. A machine that moves takes its part on both hosts until that has ended. No cap is below what is guaranteed.
    """

    kind = "hosts"

    def __init__(self) -> None:
        super().__init__()
        self._on: dict[tuple[str, str], dict[str, HostSize]] = {}
        self._last: dict[tuple[str, str], Action] = {}
        self._most: dict[tuple[str, str], HostSize] = {}

    def sized(self, site: str, host: str, size: HostSize) -> None:
        """A host was said to have so much. Nobody knows whether that was heard: the most that it was ever to have
        counts.
        """
        self._most[site, host] = HostSize(*map(max, self._most.get((site, host), WHOLE), size))

    def started(self, at: Instant, actor: str, action: Action) -> None:
        """What is set up, or moved, takes its part from now on."""
        if action.op not in ("setup", "modify", "teardown") or "capacity.cpu" not in action.properties:
            return
        unit, said = (actor, action.unit), action.properties
        self._last[unit] = action
        if action.op == "teardown":
            return
        host = said.get("unit.host", action.unit)
        has = self._most.get((actor, host), WHOLE)
        size = _size(said)
        cap = int(said.get("unit.cap", size.cpu))
        must(cap >= size.cpu, f"{actor}: {action.unit} is capped at {cap} of {size.cpu} millicores")
        there = self._on.setdefault((actor, host), {})
        there[action.unit] = size
        cpu, memory = (sum(each) for each in zip(*there.values(), strict=True))
        must(
            cpu <= has.cpu and memory <= has.memory,
            f"{actor}: {host} has {cpu} millicores and {memory} MiB on it by {', '.join(sorted(there))}",
        )

    def ended(self, at: Instant, actor: str, done: ActionDone) -> None:
        """What is torn down, or has moved, is there no more."""
        action = self._last.get((actor, done.unit))
        if action is None or action.number != done.number:
            return
        left = action.properties.get("unit.leaves", "")
        if action.op == "teardown" and done.ok:
            for there in [there for (site, _), there in self._on.items() if site == actor]:
                there.pop(done.unit, None)
        elif action.op == "modify" and left:
            gone = left if done.ok else action.properties["unit.host"]
            self._on[actor, gone].pop(done.unit, None)


def _size(said: Properties) -> HostSize:
    if "unit.host" not in said:
        return HostSize(int(said["capacity.cpu"]), int(said["capacity.memory"]))
    return HostSize(-(-int(said.get("needs.cpu", "0")) // 2), int(said.get("needs.memory", "0")))
