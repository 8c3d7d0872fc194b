"""What drivers of machines keep in memory while they run, and can do without when they start anew: addresses, locks,
samples.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final
from weakref import WeakValueDictionary

import trio

from leasekit.core.drivers import DriverError
from leasekit.drivers.names import bare

UNITS_MAX: Final = 10_000
"""Of how many units the last measured CPU time is kept."""


class UnitLocks:
    """A lock for each unit that something is done to."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[str, trio.Lock] = WeakValueDictionary()

    def of(self, unit: str) -> trio.Lock:
        """The unit's lock, which is there for as long as somebody holds it or waits for it."""
        lock = self._locks.get(unit)
        if lock is None:
            lock = self._locks[unit] = trio.Lock()
        return lock


class AddressBook:
    """Which unit has which address: no two have one, which only names with like numbers could bring about."""

    def __init__(self) -> None:
        self._owners: dict[str, str] = {}

    def take(self, unit: str, addresses: Iterable[str]) -> None:
        """Gives a unit its addresses. Raises ``DriverError`` where another has one of them."""
        wanted = [bare(text) for text in addresses]
        for address in wanted:
            owner = self._owners.get(address, unit)
            if owner != unit:
                text = f"unit {unit}: {address} is the address of unit {owner} (network.addresses)"
                raise DriverError(text, retry=False)
        self._owners.update(dict.fromkeys(wanted, unit))

    def give_back(self, unit: str) -> None:
        """The unit's addresses are free."""
        for address in [address for address, owner in self._owners.items() if owner == unit]:
            del self._owners[address]


class CpuSamples:
    """The CPU time that each unit had used when it was last looked at."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[float, float]] = {}

    def percent(self, unit: str, used: float) -> float | None:
        """How much of one CPU was ``used`` (seconds in all) since the last call; none in the first one."""
        at, before = self._last.pop(unit, (0.0, None))
        while len(self._last) >= UNITS_MAX:
            self.forget(next(iter(self._last)))
        now = trio.current_time()
        self._last[unit] = (now, used)
        return None if before is None or used < before or now <= at else 100 * (used - before) / (now - at)

    def forget(self, unit: str) -> None:
        """The next call for the unit is a first one."""
        self._last.pop(unit, None)
