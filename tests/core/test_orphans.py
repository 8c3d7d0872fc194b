"""What several hosts have that no lease knows: one that is away keeps none of the others from being looked at."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio

from leasekit.core.drivers import DriverError, Orphan, PartlyToldError, all_orphans


def look(*names: str, problem: str = "") -> Callable[[], Awaitable[list[Orphan]]]:
    """A host that has these; with a problem it can't tell, or, where it has any, not all."""

    async def found() -> list[Orphan]:
        orphans = [Orphan("host", "vm", "domain", name) for name in names]
        if problem and orphans:
            raise PartlyToldError([problem], orphans)
        if problem:
            raise DriverError(problem)
        return orphans

    return found


def test_all_hosts_are_looked_at() -> None:
    """What they have is told together; with what could not be told, if there is anything."""
    assert [one.name for one in trio.run(all_orphans, [look("a"), look("b", "c")])] == ["a", "b", "c"]
    with pytest.raises(PartlyToldError, match="far is down; near is full") as untold:
        trio.run(all_orphans, [look(problem="far is down"), look("a", problem="near is full"), look("b")])
    assert [one.name for one in untold.value.found] == ["a", "b"]
