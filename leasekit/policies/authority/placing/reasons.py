"""Why no placement of a problem was found: what is short in all, or a task that has no place, and what hosts lack."""

from __future__ import annotations

from collections.abc import Sequence

from leasekit.core.lacking import in_words, lacking
from leasekit.policies.authority.placing.instance import Rooms, YieldInstance, compiled
from leasekit.policies.authority.placing.model import YieldProblem


def why_none(problem: YieldProblem, resources: Sequence[str], algorithm: str) -> str:
    """Why an algorithm placed nothing, in words. ``resources`` are the names of the rigid ones.

    What is short in all is proof. A task without a place is the first that finds none where those with the largest
    share of a resource are put first, and what may not move stays: another order may end with another task.
    """
    instance = compiled(problem)
    for name, sizes, room in zip(resources, instance.rigid, instance.room, strict=False):
        if sum(sizes) > sum(room):
            return f"tasks need {sum(sizes):.8g} {name} in all, hosts have {sum(room):.8g}"
    running = sum(home.memory for homes in instance.homes for home in homes)
    stays = problem.bound is not None and problem.bound < running
    pinned = [homes[0].host if stays and homes else -1 for homes in instance.homes]
    beside = f"with at most {problem.bound:.8g} {resources[0]} moved, " if stays else ""
    rooms = Rooms(instance, pinned)
    for number, host in enumerate(problem.hosts):
        for name, room, left in zip(resources, instance.room, rooms.left, strict=False):
            if left[number] < 0:
                used = room[number] - left[number]
                return f"{beside}tasks that run on host {host.id} need {used:.8g} {name}, it has {room[number]:.8g}"
    return beside + (_without_place(instance, rooms, pinned, resources) or _other_order(algorithm))


def _other_order(algorithm: str) -> str:
    if algorithm == "exact":
        return "no placement was found within time_limit_s, and none was ruled out"
    return f"{algorithm} found no placement, though there is one for tasks put largest first: try exact"


def _without_place(
    instance: YieldInstance, rooms: Rooms, pinned: Sequence[int], resources: Sequence[str]
) -> str | None:
    """The first item, largest first, that no host has room for; None if all have places."""
    most = [max(room) or 1.0 for room in instance.room]

    def share(item: int) -> float:
        return max((sizes[item] / of for sizes, of in zip(instance.rigid, most, strict=True)), default=0.0)

    put = sum(host >= 0 for host in pinned)
    for item in sorted((item for item, host in enumerate(pinned) if host < 0), key=lambda item: -share(item)):
        host = next((host for host in range(len(instance.capacity)) if rooms.fits(item, host)), None)
        if host is None:
            needs = {name: sizes[item] for name, sizes in zip(resources, instance.rigid, strict=False)}
            free = list(zip(*rooms.left[: len(resources)], strict=True))
            others = f" beside the {put} that are placed before it" if put else ""
            short = in_words(lacking(needs, free)) or "no host that will do takes it"
            return f"{_named(instance, item)} has no place{others}: {short}"
        rooms.put(item, host)
        put += 1
    return None


def _named(instance: YieldInstance, item: int) -> str:
    tasks = instance.problem.tasks
    names = [str(t) if tasks[t].id.startswith("\0") else repr(tasks[t].id) for t in instance.tasks[item]]
    return f"task {', '.join(names)}"
