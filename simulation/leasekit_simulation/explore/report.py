"""What came of an exploration, for people and for tests; and the page docs/states.md: all legal joint states of a
lease, what leads from one to another, and how they were found.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeAlias

import attrs

from leasekit.core.leases import authority, broker, service_manager
from leasekit_simulation.explore.flows import FLOWS, Flow
from leasekit_simulation.explore.legal import GROUPS, LEGAL
from leasekit_simulation.explore.moves import FAULTS
from leasekit_simulation.explore.search import Failure, Level, Progress, search

SHOWN: Final = 5
"""How many failures are told in full."""


@attrs.frozen(slots=True)
class Found:
    """A lease's state that was reached, with how many faults at least, and the shortest way there."""

    faults: int
    path: tuple[str, ...]


@attrs.frozen(slots=True)
class Report:
    """One exploration of a flow with at most ``faults`` faults outstanding.

    ``joint_states`` says how many joint states were found that need so many faults; ``moves`` how often each kind of
    move was made; ``levels`` are the states of a lease at guest, broker and site; ``steps`` what leads from one to
    another. ``failures`` are invariants that do not hold, ``audited`` how many joint states were compared with the one
    that they count as.
    """

    flow: str
    faults: int
    joint_states: tuple[int, ...]
    moves: Mapping[str, int]
    levels: Mapping[Level, Found]
    steps: Mapping[tuple[Level, Level], tuple[str, ...]]
    failures: tuple[Failure, ...]
    audited: int

    @property
    def unlisted(self) -> dict[Level, Found]:
        """States of a lease that were reached and are not declared legal."""
        return {level: found for level, found in self.levels.items() if level not in LEGAL}

    @property
    def fine(self) -> bool:
        """Whether nothing is wrong."""
        return not self.failures and not self.unlisted

    def text(self) -> str:
        """What there is to say, in a few lines; more where something is wrong."""
        by_faults = ", ".join(f"{count} with {faults}" for faults, count in enumerate(self.joint_states) if faults)
        lines = [
            f"{self.flow}: {FLOWS[self.flow].what}" if self.flow in FLOWS else self.flow,
            f"  {sum(self.joint_states)} joint states ({self.joint_states[0]} without a fault"
            + (f", {by_faults}" if by_faults else "")
            + f"), {sum(self.moves.values())} moves",
            f"  {len(self.levels)} states of a lease at guest, broker and site, {len(self.steps)} transitions",
        ]
        if self.audited:
            lines.append(f"  {self.audited} joint states compared with those they count as")
        for level, found in list(self.unlisted.items())[:SHOWN]:
            lines += _told(f"not declared legal: {' | '.join(level)}", found.path)
        for failure in self.failures[:SHOWN]:
            lines += _told(failure.what, failure.path)
        more = len(self.unlisted) + len(self.failures)
        lines.append(f"  {more} wrong" if more else "  nothing wrong")
        return "\n".join(lines)


def _told(what: str, path: Sequence[str]) -> list[str]:
    return [f"  WRONG: {what}", *(f"    {place}. {step}" for place, step in enumerate(path, start=1))]


def explore(
    flow: Flow | str, faults: int = 1, progress: Progress | None = None, *, audit: int = 1000, together: bool = True
) -> Report:
    """Explore a flow (one of :data:`~.flows.FLOWS` by name) with at most ``faults`` faults outstanding.

    ``progress`` is told now and then how many joint states were found, how many of them wait, and with how many faults.
    ``audit``: every so manieth joint state that counts as known is compared with the one that it counts as (0: none).
    ``together``: messages of one step to one peer travel as one, as in a frame. Raises ``KeyError`` for no such flow.
    """
    chosen = FLOWS[flow] if isinstance(flow, str) else flow
    graph = search(chosen, faults, progress, audit=audit, together=together)
    counts = tuple(graph.faults.count(number) for number in range(faults + 1))
    levels = {level: Found(graph.faults[number], graph.path(number)) for level, number in sorted(graph.levels.items())}
    steps = {step: tuple(causes) for step, causes in sorted(graph.steps.items())}
    moves = dict(sorted(graph.met.items()))
    return Report(chosen.name, faults, counts, moves, levels, steps, tuple(graph.failures), graph.audited)


def never_reached(reports: Iterable[Report]) -> list[Level]:
    """States that are declared legal and that no exploration has reached."""
    reached = {level for report in reports for level in report.levels}
    return [level for level in LEGAL if level not in reached]


Away: TypeAlias = dict[Level, dict[Level, dict[str, None]]]

CAUSES: Final = 3
"""How many causes of one transition are named."""
JOINS: Final = frozenset({"joining", "joined", "leaving", "blocked_join", "blocked_redeem"})
HEAD: Final = """\
# Joint states of a lease

Written by `python -m leasekit_simulation.explore --faults 2 --write docs/states.md`; the reasons are declared in
`simulation/leasekit_simulation/explore/legal.py`.

A lease is a state at its guest, one at the broker and one at the site. Which of their combinations there can be is
found by exploration: the three production actors with their stores, mappers (FCFS, first fit, a guest that is told
what to do) and wire encoding go through every order of events, breadth first.

- {guests} states at the guest (its join states not counted), {brokers} at the broker and {sites} at the site, or none
  there yet, make {could} combinations. {reached} are reached, {plain} if join states are not told apart, by {steps}
  transitions; {calm} of them without any fault.
- The paper (section 3.1) says of Shirako: about 360 combinations, of which about 30 are legal and reachable. There are
  more here because a lease can be modified in mid-term, has more to it at its guest, and is followed through faults;
  without faults there are about as many.
- {legal} are declared legal. Reached, but not declared: {unlisted}. Declared, but never reached: {never}.
"""
COUNTS: Final = """
## Explorations

A joint state is all that can influence what happens next: the records of all three actors, what is in flight, what
drivers are doing, how far off each timer is. Joint states are counted by how many faults have to be outstanding for
them; a dash says that a flow was gone through with fewer. A fault is outstanding as long as the joint state is one that
is not reached with fewer: a repeated message that was ignored is over, a lease that was closed early is not. At no time
more than {most} are outstanding; any number may come one after another.
"""
CHECKED: Final = """
That all of them can be gone through in minutes, {joint} joint states by {moves} moves, is because of four things. Two
joint states that can only lead to the same count as one: instants by how far off they are, request numbers, update
numbers and numbers of actions by their order, claims by which are equal; texts, counters and what a record does not use
in its state not at all. What travels between different actors, and what different drivers do, has no order until it
arrives. Time passes only when nothing is on its way, but for an outage or a slow driver, which are faults. And a joint
state that is reached with fewer faults is gone through once, with the fewest. {audited} times two joint states that
count as one were compared by all that they lead to: it was the same. What an actor makes of one input is worked out
once, and actors are kept frozen, so that joint states share them.

In each joint state: every transition that an actor wrote down is one of its table, what it has in memory is what it has
stored, and no unit is in two leases, by its site's records and by a book of what drivers were told. From each joint
state, if nothing goes wrong any more, the lease comes to its end, nothing is left in flight, every unit is free or out
of service, and all time that was booked is back.
"""
STATES: Final = """
## States

*faults*: how many have to be outstanding at least. *to*: the states that are next, by number.
"""


def page(reports: Sequence[Report]) -> str:
    """docs/states.md, as a whole."""
    return "\n".join([*_head(reports), *_counts(reports), *_faults(), *_states(reports), *_missing(reports)]) + "\n"


def _head(reports: Sequence[Report]) -> list[str]:
    reached = {level for report in reports for level in report.levels}
    tables = (service_manager.TABLE, broker.TABLE, authority.TABLE)
    guests, brokers, sites = (len(table) for table in tables)
    return HEAD.format(
        guests=guests,
        brokers=brokers,
        sites=sites,
        could=guests * (brokers + 1) * (sites + 1),
        reached=len(reached),
        plain=len({(_without_join(guest), *rest) for guest, *rest in reached}),
        steps=len({step for report in reports for step in report.steps}),
        calm=len({level for report in reports for level, found in report.levels.items() if not found.faults}),
        legal=len(LEGAL),
        unlisted=len(reached - LEGAL.keys()),
        never=len(never_reached(reports)),
    ).splitlines()


def _without_join(guest: str) -> str:
    state, _, join = guest.rpartition(", ")
    return state if join in JOINS else guest


def _counts(reports: Sequence[Report]) -> list[str]:
    most = max((report.faults for report in reports), default=0)
    heads = [f"with {number}" if number else "no fault" for number in range(most + 1)]
    rows = []
    for report in reports:
        counts = [str(count) for count in report.joint_states] + ["-"] * (most + 1 - len(report.joint_states))
        cells = [report.flow, FLOWS[report.flow].what, *counts, str(sum(report.moves.values()))]
        rows.append(_row([*cells, str(len(report.levels)), str(len(report.steps))]))
    return [
        *COUNTS.format(most=most).splitlines(),
        "",
        _row(["flow", "what", *heads, "moves", "states of a lease", "transitions"]),
        _row(["---"] * (len(heads) + 5)),
        *rows,
        *CHECKED.format(
            joint=sum(sum(report.joint_states) for report in reports),
            moves=sum(sum(report.moves.values()) for report in reports),
            audited=sum(report.audited for report in reports),
        ).splitlines(),
        "",
    ]


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _faults() -> list[str]:
    return ["Faults, at any moment:", "", *(f"- *{name}*: {what}." for name, what in FAULTS.items()), ""]


def _states(reports: Sequence[Report]) -> list[str]:
    """Every declared state, and what leads away from it."""
    number = {level: place for place, level in enumerate(LEGAL, start=1)}
    away: Away = {}
    fewest: dict[Level, int] = {}
    for report in reports:
        for level, found in report.levels.items():
            fewest[level] = min(fewest.get(level, found.faults), found.faults)
        for (before, after), causes in report.steps.items():
            away.setdefault(before, {}).setdefault(after, {}).update(dict.fromkeys(causes))
    lines = [*STATES.strip().splitlines(), ""]
    for group, guests in GROUPS.items():
        lines += [f"### {group}", "", _row(["no.", "guest", "broker", "site", "faults", "why", "to"])]
        lines.append(_row(["---:", "---", "---", "---", "---:", "---", "---"]))
        for guest, entries in guests.items():
            for broker_, site, why in entries:
                level = (guest, broker_, site)
                to = sorted(number.get(after, 0) for after in away.get(level, ()))
                faults = str(fewest[level]) if level in fewest else "never"
                numbers = " ".join(str(place or "?") for place in to)
                lines.append(_row([str(number[level]), guest, broker_, site, faults, why, numbers]))
        lines.append("")
    return [*lines, *_transitions(away, number)]


def _transitions(away: Away, number: Mapping[Level, int]) -> list[str]:
    lines = ["## What leads from one to another", ""]
    for level, place in number.items():
        for after, causes in sorted(away.get(level, {}).items(), key=lambda item: number.get(item[0], 0)):
            usual = [cause for cause in causes if "crash" not in cause] or list(causes)
            more = f" ({len(causes) - CAUSES} more)" if len(causes) > CAUSES else ""
            lines.append(f"- {place} to {number.get(after, '?')}: {'; '.join(usual[:CAUSES])}{more}")
    return [*lines, ""]


def _missing(reports: Sequence[Report]) -> list[str]:
    unlisted = {level: found for report in reports for level, found in report.unlisted.items()}
    lines = []
    if unlisted:
        lines += ["## Reached, but not declared legal", ""]
        lines += [f"- {' | '.join(level)}: {'; '.join(found.path)}" for level, found in unlisted.items()]
        lines.append("")
    failures = [(report.flow, failure) for report in reports for failure in report.failures]
    if failures:
        lines += ["## Wrong", ""]
        lines += [f"- {flow}: {failure.what}: {'; '.join(failure.path)}" for flow, failure in failures]
    return lines
