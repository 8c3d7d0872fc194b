"""Parts of a site authority, each built alone: by what its constructor names, and no actor."""

from __future__ import annotations

import pytest

from leasekit.actors.kernel import Kernel
from leasekit.actors.settings import ActorSettings, UnitGroup
from leasekit.actors.site.calendars import Calendars
from leasekit.actors.site.turns import GROW, NEW, SHRINK, DemandQueue, demand_of
from leasekit.actors.site.units import Inventory, Units
from leasekit.core.errors import CommandError
from leasekit.core.leases import authority as au
from leasekit.core.leases.records import SiteLease, SiteUnit
from leasekit.core.reasons import said
from leasekit.core.time import HOUR, Term

TERM = Term(HOUR, 2 * HOUR)
GROUP = UnitGroup(type="vm", names=("a", "b"), properties={"cores": "4"}, own={"rack": "1"})


def test_an_inventory_knows_each_unit_once() -> None:
    """Properties are those of the type, and of a unit's own; a name is of one type."""
    inventory = Inventory((GROUP,))
    assert inventory.total("vm") == 2 and "a" in inventory
    assert inventory.properties_of("a", "vm") == {"cores": "4", "rack": "1"}
    assert inventory.properties_of("gone", "vm") == inventory.properties("vm") == {"cores": "4"}
    with pytest.raises(ValueError, match="unit names are unique at a site"):
        Inventory((GROUP, UnitGroup(type="gpu", names=("a",))))


def units_of(kernel: Kernel, begun: list[tuple[str, str]]) -> tuple[Inventory, Units]:
    """The units of one group; ``begun`` gets what is done with them."""
    inventory = Inventory((GROUP,))

    def act(unit: SiteUnit, op: str, number: int) -> None:
        unit.action = number or kernel.next("action")
        begun.append((unit.id, op))

    return inventory, Units(kernel, inventory, 3, act, lambda unit: False)


def test_units_tell_what_becomes_of_them() -> None:
    """A unit that is given is set up, and counts as held by its lease; one that is out of service stays so once."""
    kernel = Kernel(ActorSettings())
    begun: list[tuple[str, str]] = []
    _, units = units_of(kernel, begun)
    moved: list[tuple[str, str]] = []
    units.moved.append(lambda unit, event, before, why, done: moved.append((before, event)))
    units.give(units["a"], "lease")
    assert (begun, moved, units.holding) == ([("a", "setup")], [(au.FREE, "setup")], {"lease": 1})
    assert units.retire("b", said("broken")).state == au.OUT
    with pytest.raises(CommandError, match="out of service already"):
        units.retire("b", said("again"))


def test_calendars_miss_units_over_a_window() -> None:
    """Over its time, and not before or after; removed, it takes nothing."""
    kernel = Kernel(ActorSettings())
    inventory, units = units_of(kernel, [])
    calendars = Calendars(kernel, inventory, units, DemandQueue({}, watches=False))
    window = calendars.announce(("a",), "", HOUR, 2 * HOUR, reason="works", close=False)
    with pytest.raises(CommandError, match="is in window-1 already"):
        calendars.announce((), "vm", HOUR, 3 * HOUR, reason="more", close=False)
    assert [calendars.of("vm").free_at(at) for at in (0, HOUR, 2 * HOUR)] == [2, 1, 2]
    calendars.end_window(window)
    assert calendars.of("vm").free_at(HOUR) == 2
    assert calendars.of("unknown").free_at(0) == 0


def lease(id_: str, wanted: int = 2) -> SiteLease:
    """A lease of a site that has no units yet."""
    return SiteLease(id_, "guest", "s", "vm", au.TICKETED, au.REDEEMING, b"", TERM, wanted, 1, {}, {})


def test_demands_are_shown_in_order() -> None:
    """Those that give up units first; what was shown and still waits comes after what was not."""
    leases = {id_: lease(id_) for id_ in ("one", "two", "three")}
    queue = DemandQueue(leases, watches=False)
    queue.look_again()
    assert not queue.is_news(), "nobody waits"
    for id_, op in (("one", NEW), ("two", GROW), ("three", SHRINK)):
        queue.put(leases[id_], op)
    assert [one.id for one, _ in queue.ordered()] == ["three", "two", "one"]
    queue.show([demand_of(leases["three"], SHRINK)], alone=True)
    assert queue.is_news() and queue.shown_units(leases["three"], 0) == 2
    queue.show([demand_of(leases["two"], GROW)], alone=False)
    assert queue.is_more_to_show()
    queue.begin_decisions()
    queue.end_decisions()
    assert not queue.stale and list(queue.ops) == ["one", "three", "two"]
