"""What actors say of their mappers in an emulation: told at once, counted, and told once however often it happens."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

Tell = Callable[[str], None]
"""Told a line for the person who watches."""

_VARIES: Final = re.compile(r"(?<!line )\b[0-9a-f-]*\d[0-9a-f-]*\b|\(waiting: .*\)")
"""What differs between two of the same: names of leases, instants, counts; a line number does not."""


class MapperFaults:
    """Of all actors of one run; ``mappers`` has the name of each one's mapper."""

    def __init__(self, mappers: Mapping[str, str], tell: Tell | None = None) -> None:
        self._mappers = mappers
        self._tell = tell
        self._told: set[tuple[str, str]] = set()
        self._counts: dict[str, Counter[str]] = {}

    def add(self, since_start: str, actor: str, kind: str, text: str) -> None:
        """``actor`` says so, at so long after the start: ``kind`` is one of :mod:`leasekit.actors.turns`."""
        self._counts.setdefault(actor, Counter())[kind] += 1
        alike = actor, _VARIES.sub("", text)
        if self._tell is not None and alike not in self._told:
            self._told.add(alike)
            self._tell(f"{actor}, mapper {self._mappers.get(actor, '?')}, after {since_start}: {text}")

    def summary(self) -> dict[str, dict[str, int]]:
        """How often each kind happened, by actor; empty where all is well."""
        return {actor: dict(sorted(kinds.items())) for actor, kinds in self._counts.items()}
