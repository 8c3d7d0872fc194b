"""A problem file of virtual clusters, decided: ``leasekit plan place`` without the command line.

The paper's two resources, CPU and memory, in units of the writer's choosing: a host has 1 of each if nothing is said.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import attrs

from leasekit.core.settings import SettingsError, expect_one_of, structure
from leasekit.policies.authority.placing.model import Placement, SecondPhase, YieldHost, YieldProblem, YieldTask, faults
from leasekit.policies.authority.placing.programs import Remaining
from leasekit.policies.authority.placing.reasons import why_none
from leasekit.policies.authority.placing.solve import solve

AlgorithmName: TypeAlias = Literal[
    "exact", "lp", "rrnd", "rrnz", "gr", "sg", "gb", "sgb",
    "mcb1", "mcb2", "mcb3", "mcb4", "mcb5", "mcb6", "mcb7", "mcb8", "best",
]  # fmt: skip


@attrs.frozen(kw_only=True)
class PlaceHost:
    """A host."""

    id: str
    cpu: float = 1.0
    mem: float = 1.0


@attrs.frozen(kw_only=True)
class PlaceTask:
    """A task. ``host`` is where it runs now, by id or by position from 0; none: it is a newcomer."""

    cpu: float
    mem: float
    id: str | None = None
    job: str | None = None
    host: int | str | None = None


@attrs.frozen(kw_only=True)
class PlaceProblem:
    """A whole problem; ``hosts`` may be a number of hosts with 1 of each. ``migration_bound`` is the most memory that
    tasks which change their host have in all.
    """

    hosts: int | tuple[PlaceHost, ...]
    tasks: tuple[PlaceTask, ...]
    algorithm: AlgorithmName = "best"
    local_search: bool = False
    migration_bound: float | None = None
    second_phase: SecondPhase = "average"
    seed: int = 0
    time_limit_s: float = attrs.field(default=60.0, validator=attrs.validators.gt(0))


HOSTS_MAX = 100_000


class PlaceDecision:
    """A problem of what a JSON file holds, and its answer. Raises ``SettingsError``: each of its lines names a key,
    what was found and what is allowed.
    """

    def __init__(self, content: Mapping[str, Any]) -> None:
        self.file = structure(PlaceProblem, content, "")
        self.problem = _problem(self.file)
        found = [_in_file(fault) for fault in faults(self.problem)]
        if found:
            raise SettingsError(found)

    def answer(self, remaining: Remaining = None) -> dict[str, Any]:
        """As plain data; where nothing is placed, with the ``reason``. ``remaining``: how many seconds are left."""
        file = self.file
        found = solve(
            self.problem, file.algorithm, local_search=file.local_search, second_phase=file.second_phase,
            seed=file.seed, remaining=remaining,
        )  # fmt: skip
        is_placed = found.status in ("optimal", "placed")
        placed = is_placed and file.algorithm != "lp"
        why = {} if is_placed else {"reason": why_none(self.problem, ("mem",), file.algorithm)}
        return {
            "status": "ok" if is_placed else found.status,
            "min_yield": found.min_yield if is_placed else None,
            "average_yield": found.average_yield if placed else None,
            "bound": found.bound,
            "mapping": self._mapping(found) if placed else None,
            "cpu": list(found.cpu) if placed else None,
            "moved": [file.tasks[t].id or t for t in found.moved],
        } | why

    def _mapping(self, found: Placement) -> list[int | str | None]:
        """Hosts by position if the file says only how many there are, else by id."""
        if isinstance(self.file.hosts, int):
            return list(found.mapping)
        return [None if host is None else self.problem.hosts[host].id for host in found.mapping]


def _problem(file: PlaceProblem) -> YieldProblem:
    if isinstance(file.hosts, int):
        if not 1 <= file.hosts <= HOSTS_MAX:
            raise SettingsError([f"hosts: found {file.hosts}, expected 1 to {HOSTS_MAX}"])
        hosts = tuple(YieldHost(id=str(number), cpu=1.0, rigid=(1.0,)) for number in range(file.hosts))
    else:
        hosts = tuple(YieldHost(id=host.id, cpu=host.cpu, rigid=(host.mem,)) for host in file.hosts)
    tasks = tuple(
        YieldTask(
            id=f"\0{number}" if task.id is None else task.id,
            cpu=task.cpu,
            rigid=(task.mem,),
            job=task.job or "",
            host=_host(f"tasks[{number}].host", task.host, hosts),
        )
        for number, task in enumerate(file.tasks)
    )
    return YieldProblem(hosts=hosts, tasks=tasks, bound=file.migration_bound)


def _host(where: str, found: int | str | None, hosts: tuple[YieldHost, ...]) -> str | None:
    if isinstance(found, str) and found not in [host.id for host in hosts]:
        raise SettingsError([f"{where}: found {found!r}, {expect_one_of(found, [host.id for host in hosts])}"])
    if isinstance(found, int):
        if not 0 <= found < len(hosts):
            raise SettingsError([f"{where}: found {found}, expected the position of a host, 0 to {len(hosts) - 1}"])
        return hosts[found].id
    return found


def _in_file(fault: str) -> str:
    """A fault of the problem by the keys of the file."""
    return fault.replace(".rigid[0]:", ".mem:").replace("bound:", "migration_bound:", fault.startswith("bound:"))
