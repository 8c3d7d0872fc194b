"""Hosts and tasks of virtual clusters, as a mapper knows them, and what can be wrong with them.

CPU is fluid: a task that needs ``cpu`` runs with less, at a lower yield. All other resources are rigid: a vector in an
order of the caller's choosing, memory first, as that is what a migration moves. Numbers are in units of the caller's
choosing, the same for hosts and tasks: fractions of a host as in the paper, or millicores and MiB. Where they are whole
numbers, sums are exact.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from math import inf, isfinite
from typing import Final, Literal

import attrs

from leasekit.core.settings import expect_one_of

NO_LIMITS: Final[Mapping[str, int]] = {}
WEIGHT_MIN: Final = 0.01
WEIGHT_MAX: Final = 100.0

SecondPhase = Literal["average", "max_min", "none"]


@attrs.frozen(kw_only=True)
class YieldHost:
    """A host: ``cpu`` in all, ``core`` the most that one virtual CPU can get of it. ``domain`` is what fails as one (a
    rack); a host without one is a domain of its own.
    """

    id: str
    cpu: float
    rigid: tuple[float, ...]
    core: float = inf
    domain: str = ""


@attrs.frozen(kw_only=True)
class YieldTask:
    """A virtual machine: ``cpu`` is what it can use, spread evenly over ``cores`` virtual CPUs.

    ``host`` is where it runs now (None: a newcomer); ``hosts`` are those that will do (None: all). Tasks of one ``job``
    get the same yield, and are admitted together. Tasks of one group ``together`` share a host; of one group ``spread``
    at most one is in a domain, or as many as the problem says. ``floor`` is CPU that it gets in any case. A task of
    twice the ``weight`` (0.01 to 100) is to have twice the yield, up to 1. Of those that don't fit, a lower
    ``priority`` goes first.
    """

    id: str
    cpu: float
    rigid: tuple[float, ...]
    job: str = ""
    host: str | None = None
    cores: int = 1
    floor: float = 0
    weight: float = 1
    priority: int = 0
    hosts: frozenset[str] | None = None
    together: str = ""
    spread: str = ""


@attrs.frozen(kw_only=True)
class YieldProblem:
    """What is to be placed where. ``bound`` is the most memory that tasks which change their host may have in all
    (None: any; 0: nobody moves); ``spread`` says of groups how many of them may be in one domain (else 1).
    """

    hosts: tuple[YieldHost, ...]
    tasks: tuple[YieldTask, ...]
    bound: float | None = None
    spread: Mapping[str, int] = NO_LIMITS


@attrs.frozen(kw_only=True)
class Placement:
    """What became of a problem. ``mapping`` has the host of each task, by position (None: no place for it), ``cpu`` its
    share, ``moved`` the positions of tasks that change their host, ``dropped`` of those that were not admitted.

    ``level`` is the least yield by weight, on which the search went: with equal weights the least yield itself. It is
    the best that there is where ``status`` is ``optimal``, and never above ``bound``. ``infeasible``: it is proven that
    nothing fits; ``failed``: nothing was found.
    """

    status: Literal["optimal", "placed", "infeasible", "failed"]
    bound: float
    level: float = 0.0
    min_yield: float = 0.0
    average_yield: float = 0.0
    mapping: tuple[int | None, ...] = ()
    cpu: tuple[float, ...] = ()
    moved: tuple[int, ...] = ()
    dropped: tuple[int, ...] = ()


def faults(problem: YieldProblem) -> Iterator[str]:
    """What is wrong with a problem, a line for each fault: key, what was found, what is allowed."""
    if not problem.hosts:
        yield "hosts: found none, expected at least one"
    if problem.bound is not None and not problem.bound >= 0:
        yield f"bound: found {problem.bound:g}, expected 0 or more"
    for group, most in problem.spread.items():
        if most < 1:
            yield f"spread.{group}: found {most}, expected 1 or more"
    for key, entries in (("hosts", problem.hosts), ("tasks", problem.tasks)):
        for name, times in Counter(one.id for one in entries).items():
            if times > 1:
                yield f"{key}: found the id {name!r} {times} times, expected it once"
    found = False
    for index, host in enumerate(problem.hosts):
        for fault in _host_faults(f"hosts[{index}]", host, len(problem.hosts[0].rigid)):
            found = True
            yield fault
    known = {host.id: host for host in problem.hosts}
    weights: dict[str, float] = {}
    for index, task in enumerate(problem.tasks if known and not found else ()):
        yield from _task_faults(f"tasks[{index}]", task, known)
        if task.job and weights.setdefault(task.job, task.weight) != task.weight:
            yield f"tasks[{index}].weight: found {task.weight:g}, expected {weights[task.job]:g} as in all of its job"


def _number(where: str, value: float, *, above: bool = False) -> Iterator[str]:
    if not isfinite(value) or value < 0 or (above and value == 0):
        yield f"{where}: found {value:g}, expected a finite number {'above 0' if above else 'of 0 or more'}"


def _host_faults(where: str, host: YieldHost, width: int) -> Iterator[str]:
    yield from _number(f"{where}.cpu", host.cpu, above=True)
    if not host.core > 0:
        yield f"{where}.core: found {host.core:g}, expected a number above 0"
    if len(host.rigid) != width:
        yield f"{where}.rigid: found {len(host.rigid)} numbers, expected {width}, as hosts[0] has"
    for index, value in enumerate(host.rigid):
        yield from _number(f"{where}.rigid[{index}]", value)


def _task_faults(where: str, task: YieldTask, hosts: Mapping[str, YieldHost]) -> Iterator[str]:
    numbers = [("cpu", task.cpu), ("floor", task.floor), *((f"rigid[{r}]", x) for r, x in enumerate(task.rigid))]
    wrong = [fault for key, value in numbers for fault in _number(f"{where}.{key}", value)]
    if not WEIGHT_MIN <= task.weight <= WEIGHT_MAX:
        wrong.append(f"{where}.weight: found {task.weight:g}, expected {WEIGHT_MIN:g} to {WEIGHT_MAX:g}")
    if task.cores < 1:
        wrong.append(f"{where}.cores: found {task.cores}, expected 1 or more")
    if task.floor > max(task.cpu, 0):
        wrong.append(f"{where}.floor: found {task.floor:g}, expected at most the task's cpu, {task.cpu:g}")
    width = len(next(iter(hosts.values())).rigid)
    if len(task.rigid) != width:
        wrong.append(f"{where}.rigid: found {len(task.rigid)} numbers, expected {width}, as hosts have")
    named = [("host", task.host)] if task.host is not None else []
    for key, name in [*named, *(("hosts", name) for name in sorted(task.hosts or ()))]:
        if name not in hosts:
            wrong.append(f"{where}.{key}: found {name!r}, {expect_one_of(name, hosts)}")
    yield from wrong
    if not wrong:
        yield from _too_large(
            where, task, [host for host in hosts.values() if task.hosts is None or host.id in task.hosts]
        )


def _too_large(where: str, task: YieldTask, hosts: list[YieldHost]) -> Iterator[str]:
    """Of each resource by itself: what all hosts that will do have too little of."""
    if not hosts:
        yield f"{where}.hosts: found none, expected at least one host"
        return
    most = [max(host.cpu for host in hosts), *(max(sizes) for sizes in zip(*(h.rigid for h in hosts), strict=True))]
    for key, found, allowed in zip(
        ("cpu", *(f"rigid[{r}]" for r in range(len(task.rigid)))), (task.cpu, *task.rigid), most, strict=True
    ):
        if found > allowed:
            yield f"{where}.{key}: found {found:g}, expected at most {allowed:g}: no host has more"
