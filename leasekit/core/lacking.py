"""What hosts have too little of, by resource: on how many of them, and what these have at most."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from leasekit.core.properties import written_amount
from leasekit.core.reasons import Code, Reason

LOOKED_MAX: Final = 1_000
"""How many hosts an actor looks at, at most, to say what they lack."""


class Lack(NamedTuple):
    """So much of a resource is ``needed``; so many ``hosts`` of those that were looked at (``of``) have less of it: at
    most ``most``.
    """

    resource: str
    needed: float
    most: float
    hosts: int
    of: int


def lacking(needs: Mapping[str, float], free: Sequence[Sequence[float]]) -> list[Lack]:
    """Each resource that some hosts have too little of. ``free`` has a row for each host, in the order of ``needs``."""
    found: list[Lack] = []
    for at, (name, need) in enumerate(needs.items()):
        short = [row[at] for row in free if row[at] < need]
        if short:
            found.append(Lack(name, need, max(short), len(short), len(free)))
    return found


def in_words(lacks: Iterable[Lack]) -> str:
    """What is lacking, in the units in which it was given."""
    words = Code.TOO_LITTLE.words or ""
    return "; ".join(
        f"{words.format(what=one.resource, units=one.hosts, of=one.of)}: "
        f"{_needed(f'{one.needed:.8g}', f'{one.most:.8g}')}"
        for one in lacks
    )


def reasons_of(lacks: Iterable[Lack]) -> list[Reason]:
    """What is lacking of millicores, MiB, and whole numbers, with its values: on how many hosts, and behind that how
    much is needed (``of``), and free there at most (``units``).
    """
    found = []
    for one in lacks:
        needed, most = int(one.needed), max(0, int(one.most))
        told = _needed(written_amount(one.resource, needed), written_amount(one.resource, most))
        behind = Reason(Code.NEEDED, units=most, of=needed, detail=told)
        found.append(Reason(Code.TOO_LITTLE, what=one.resource, units=one.hosts, of=one.of).because(behind))
    return found


def _needed(needed: str, most: str) -> str:
    return f"{needed} needed, at most {most} free"
