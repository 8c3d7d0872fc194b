"""In which order a placement is carried out: caps are lowered, then tasks migrate, then newcomers start, then caps are
raised. So no host's caps are more than its CPU before or after the migrations, and no memory is more at any time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import attrs

from leasekit.policies.authority.placing.instance import YieldInstance, compiled
from leasekit.policies.authority.placing.model import Placement, YieldProblem


class Migration(NamedTuple):
    """A task by position goes from one host to another, by position."""

    task: int
    source: int
    target: int


@attrs.frozen(kw_only=True)
class Changes:
    """What to do, in this order: caps by position of the task, migrations one after the other, newcomers with their
    caps, caps that grow. ``stuck`` are migrations that only make room for each other: of exact placements alone.
    """

    lowered: Mapping[int, float]
    migrations: tuple[Migration, ...]
    started: Mapping[int, float]
    raised: Mapping[int, float]
    stuck: tuple[Migration, ...]


def changes(problem: YieldProblem, placement: Placement, caps: Mapping[int, float]) -> Changes:
    """What leads to a placement from the ``caps`` that tasks have now (by position; a task without one has no cap)."""
    tasks = problem.tasks
    placed = {t: host for t, host in enumerate(placement.mapping) if host is not None}
    running = [t for t in placed if tasks[t].host is not None]
    done, stuck = in_order(compiled(problem), placed)
    new = placement.cpu
    return Changes(
        lowered={t: new[t] for t in running if new[t] < caps.get(t, tasks[t].cpu)},
        migrations=tuple(done),
        started={t: new[t] for t in placed if tasks[t].host is None},
        raised={t: new[t] for t in running if new[t] > caps.get(t, tasks[t].cpu)},
        stuck=tuple(stuck),
    )


def in_order(instance: YieldInstance, placed: Mapping[int, int]) -> tuple[list[Migration], list[Migration]]:
    """Migrations of tasks that run to where they are ``placed``, in an order in which each has room at its turn, and
    those that never have. What runs and is not placed has left.
    """
    tasks = instance.problem.tasks
    left = [list(row) for row in instance.room[: instance.resources]]
    stuck: list[Migration] = []
    for home in (home for homes in instance.homes for home in homes if home.task in placed):
        for row, size in zip(left, tasks[home.task].rigid, strict=True):
            row[home.host] -= size
        if placed[home.task] != home.host:
            stuck.append(Migration(home.task, home.host, placed[home.task]))
    done: list[Migration] = []
    while True:
        waiting, stuck = stuck, []
        for one in waiting:
            sizes = tasks[one.task].rigid
            if any(size > row[one.target] for row, size in zip(left, sizes, strict=True)):
                stuck.append(one)
                continue
            for row, size in zip(left, sizes, strict=True):
                row[one.target] -= size
                row[one.source] += size
            done.append(one)
        if len(stuck) in (0, len(waiting)):
            return done, stuck
