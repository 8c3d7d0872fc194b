"""To prove that the simulation finds bugs: bugs that are put in on purpose, each of which a few seeds must find."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from fault_world import Run

from leasekit.actors.base import Actor
from leasekit.actors.broker import Broker
from leasekit.actors.broker_book import Book
from leasekit.actors.site_leases import SiteLeases
from leasekit.actors.site_units import Units
from leasekit.core.leases.records import SiteUnit
from leasekit.core.schema import Change

SEEDS_MAX = 40


def nothing(*args: Any, **kwargs: Any) -> None:
    """What a forgotten step does."""


def book_at_once(self: Broker, lease: Any, grant: Any) -> None:
    """A broker that does not check its mapper, nor what is free."""
    self.book.table(grant.source).add_capacity(grant.term, grant.units)


def free_units_again(self: SiteLeases) -> list[SiteUnit]:
    """A site that writes all its units as free when it starts."""
    new: list[SiteUnit] = []
    for group in self.settings.inventory:
        for name in group.names:
            self._changes.append(Change("units", name, SiteUnit(name, group.type).row()))
        new += self.units.declare(group.type, group.names, group.properties)
    return new


def keep_units(self: Units, unit: SiteUnit, lease: str) -> bool:
    """A site that forgets to tear down."""
    return False


PLANTED: dict[str, tuple[type[Any], str, Callable[..., Any]]] = {
    "actions are not done again after a restart": (Units, "resume", nothing),
    "counters are not kept": (Actor, "_save_counters", nothing),
    "grants are not checked": (Broker, "_check_grant", book_at_once),
    "units are free after a restart": (SiteLeases, "_declare", free_units_again),
    "what was reserved is not restored": (Book, "reserve_again", nothing),
    "units are not torn down": (Units, "take", keep_units),
}


@pytest.mark.parametrize("bug", PLANTED)
def test_planted_bug_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the bug in, some seed fails."""
    where, name, instead = PLANTED[bug]
    monkeypatch.setattr(where, name, instead)
    for seed in range(SEEDS_MAX):
        try:
            Run(seed).go()
        except Exception:  # noqa: BLE001 - a bug may show as a broken invariant, or as any error at all
            return
    pytest.fail(f"{SEEDS_MAX} seeds did not find that {bug}")
