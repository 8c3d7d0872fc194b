"""The second phase: what each task gets of its host's CPU once the mapping stands.

Everyone has the level first. What is left then goes to the smallest needs first (``average``: the mean yield per job is
the greatest), or is raised for all alike until a host is full, and for the others beyond that (``max_min``).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from math import inf

from leasekit.policies.authority.placing.instance import Mapped, YieldInstance, water_level
from leasekit.policies.authority.placing.model import SecondPhase
from leasekit.policies.solver import MilpRow, run


class _Job:
    """The yield of tasks that have one yield: ``low`` at the level, ``top`` as their virtual CPUs allow. ``needs`` are
    the CPU by host that a yield of 1 takes.
    """

    def __init__(self, instance: YieldInstance, tasks: Sequence[int], hosts: Sequence[int], level: float) -> None:
        all_ = instance.problem.tasks
        self.value = instance.value[tasks[0]]
        self.needs: defaultdict[int, float] = defaultdict(float)
        low, top = level * self.value, 1.0
        for t, host in zip(tasks, hosts, strict=True):
            task = all_[t]
            self.needs[host] += task.cpu
            if task.cpu:
                low = max(low, instance.floor[t] / task.cpu)
                top = min(top, instance.core[host] * task.cores / task.cpu)
        self.top = top
        self.now = self.low = min(low, top)


def shares(instance: YieldInstance, mapping: Mapped, phase: SecondPhase) -> tuple[list[float], list[float]]:
    """The CPU of each task, and the yield of each job; a task without one is a job of its own."""
    tasks = instance.problem.tasks
    host_of = {t: mapping[item] for item, block in enumerate(instance.tasks) for t in block}
    grouped: dict[tuple[str, int], list[int]] = {}
    for t, task in enumerate(tasks):
        grouped.setdefault((task.job, -1) if task.job else ("", t), []).append(t)
    level = instance.level(mapping)
    jobs = [_Job(instance, group, [host_of[t] for t in group], level) for group in grouped.values()]
    if phase == "average":
        _average(instance, jobs)
    elif phase == "max_min":
        _max_min(instance, jobs)
    cpu = [0.0] * len(tasks)
    for job, group in zip(jobs, grouped.values(), strict=True):
        for t in group:
            cpu[t] = job.now * tasks[t].cpu
    return cpu, [job.now for job in jobs]


def _left(instance: YieldInstance, jobs: Sequence[_Job]) -> list[float]:
    left = list(instance.capacity)
    for job in jobs:
        for host, need in job.needs.items():
            left[host] -= need * job.now
    return left


def _average(instance: YieldInstance, jobs: Sequence[_Job]) -> None:
    """The greatest mean yield. Of hosts that share no job it is known; else it takes a linear program."""
    shared = {host for job in jobs if len(job.needs) > 1 for host in job.needs}
    if shared:
        # What is on other hosts is reached over jobs of both: all of them are in the program, which is still small.
        columns = {number: (0.0, max(0.0, job.top - job.low)) for number, job in enumerate(jobs)}
        rows: defaultdict[int, dict[int, float]] = defaultdict(dict)
        for number, job in enumerate(jobs):
            for host, need in job.needs.items():
                rows[host][number] = need / instance.capacity[host]
        left = _left(instance, jobs)
        solved = run(
            [-1.0] * len(jobs),
            [MilpRow(-inf, max(0.0, left[host] / instance.capacity[host]), terms) for host, terms in rows.items()],
            columns=columns,
        )
        for job, more in zip(jobs, solved.values, strict=True):
            job.now = job.low + max(0.0, more)
        return
    left = _left(instance, jobs)
    for job in sorted(jobs, key=lambda job: sum(job.needs.values())):
        for host, need in job.needs.items():
            more = min(job.top - job.now, left[host] / need) if need else job.top - job.now
            if more > 0:
                job.now += more
                left[host] -= more * need


def _max_min(instance: YieldInstance, jobs: Sequence[_Job]) -> None:
    """Water-filling: all that can still get more are at one level by weight, host by host as these are full."""
    left = list(instance.capacity)
    by_host: defaultdict[int, list[_Job]] = defaultdict(list)
    for job in jobs:
        for host in job.needs:
            by_host[host].append(job)
    full = [(_common_level(here, host, left[host]), host) for host, here in by_host.items()]
    heapify(full)
    closed: set[int] = set()
    while full:
        level, host = heappop(full)
        here = [job for job in by_host[host] if id(job) not in closed]
        now = _common_level(here, host, max(left[host], 0.0))
        if now > level:  # jobs that are held back on other hosts leave it more
            heappush(full, (now, host))
            continue
        for job in here:
            job.now = min(job.top, max(job.low, job.value * level))
            closed.add(id(job))
            for other, need in job.needs.items():
                left[other] -= need * job.now


def _common_level(jobs: Sequence[_Job], host: int, capacity: float) -> float:
    needs = [job.needs[host] * job.value for job in jobs]
    floors = [job.needs[host] * job.low for job in jobs]
    return water_level(capacity, needs, floors, [job.top / job.value for job in jobs])
