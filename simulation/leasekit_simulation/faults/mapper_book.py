"""The checker of mappers: what an actor says of its own mapper."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from leasekit.actors.turns import FAILED, NOT_CARRIED_OUT
from leasekit.core.schema import Row
from leasekit.core.time import Instant
from leasekit_simulation.faults.checkers import Listening, must

BAD_DAY: Final = "a mapper's bad day"
"""What a mapper says that raises on purpose."""


class MapperChecker(Listening):
    """No mapper raises, and what it decides is carried out: but for those that do wrong on purpose."""

    def __init__(self, wilful: frozenset[str] = frozenset()) -> None:
        """``wilful`` are the actors whose mappers do."""
        super().__init__()
        self._wilful = wilful

    def committed(self, at: Instant, actor: str, rows: Sequence[Row]) -> None:
        """Check what actors say of their mappers."""
        for _, _, event, _, after, why in rows:
            if event == "mapper":
                must(BAD_DAY in why or after != FAILED, f"{actor}: {why}")
                must(actor in self._wilful or after != NOT_CARRIED_OUT, f"{actor}: {why}")
