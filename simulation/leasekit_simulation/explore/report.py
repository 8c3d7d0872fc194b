"""What came of an exploration, for people and for tests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import attrs

from leasekit_simulation.explore.flows import FLOWS, Flow
from leasekit_simulation.explore.legal import LEGAL
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
    flow: Flow | str, faults: int = 1, progress: Progress | None = None, *, audit: int = 0, together: bool = True
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
