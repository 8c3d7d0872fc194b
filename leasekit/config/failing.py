"""What goes wrong on purpose in an emulation, or is done on a calendar: the tables of ``[emulation]`` that say so."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any, Final

import attrs

from leasekit.config.errors import Faults, one_of
from leasekit.core.draws import Distribution, Fixed, LatencyTable
from leasekit.core.settings import DurationSetting
from leasekit.core.time import Duration, format_duration

ANYBODY: Final = "*"
"""All actors, where a table of the network names one."""


@attrs.frozen(kw_only=True)
class Recurring:
    """When something begins, and how long it ``lasts``: at instants, counted from the emulation's start, or again and
    again, ``every`` being how long it does not happen, from its end (or the emulation's start) to its next begin.
    """

    at: tuple[DurationSetting, ...] = ()
    every: Distribution | None = None
    lasts: Distribution


@attrs.frozen(kw_only=True)
class FailureTable:
    """``[[emulation.failure]]``: units of a ``site`` and a ``type`` (empty: of all) fail, each by itself. ``every`` is
    how long one is in service until it fails, ``repair`` how long it is out of service then (None: as
    ``emulation.repair`` says).
    """

    site: str = ""
    type: str = ""
    every: Distribution
    repair: Distribution | None = None


@attrs.frozen(kw_only=True)
class OutageTable(Recurring):
    """``[[emulation.outage]]``: an actor's daemon is down. It loses what it was sent and its running actions, and goes
    on with what its store holds.
    """

    actor: str


@attrs.frozen(kw_only=True)
class PartitionTable(Recurring):
    """``[[emulation.partition]]``: actors on different ``sides`` don't hear each other; those on none hear all."""

    sides: tuple[tuple[str, ...], ...]


@attrs.frozen(kw_only=True)
class NetworkTable:
    """``[[emulation.network]]``: ``delay`` (None: ``emulation.message_latency``) and ``loss``, a share, of batches of
    messages ``between`` two actors, either way; ``*`` is any actor. Of several tables for a pair the last one counts.
    Nothing overtakes what was sent before it.
    """

    between: tuple[str, ...] = (ANYBODY, ANYBODY)
    delay: Distribution | None = None
    loss: float = attrs.field(default=0.0, validator=[attrs.validators.ge(0), attrs.validators.le(1)])

    def is_for(self, one: str, other: str) -> bool:
        """Whether it is about these two."""
        return any(
            all(name in (ANYBODY, actor) for name, actor in zip(self.between, pair, strict=True))
            for pair in ((one, other), (other, one))
        )


@attrs.frozen(kw_only=True)
class MaintenanceTable(Recurring):
    """``[[emulation.maintenance]]``: a site's ``units`` (empty: all of the ``type``, or all) are out of service over a
    window that is announced ``notice`` before it begins. With ``close`` leases end for it, else they keep their units.
    """

    site: str
    type: str = ""
    units: tuple[str, ...] = ()
    notice: DurationSetting = 0
    close: bool = False


@attrs.frozen(kw_only=True)
class ClockTable:
    """``[[emulation.clock]]``: an actor's clock is ``ahead`` of the others, or ``behind``, by so much."""

    actor: str
    ahead: DurationSetting = 0
    behind: DurationSetting = 0


@attrs.frozen(kw_only=True)
class Failing:
    """The tables of what goes wrong; ``repair`` is how long a unit is out of service that failed (None: for ever)."""

    repair: Distribution | None = None
    failures: tuple[FailureTable, ...] = attrs.field(default=(), alias="failure")
    outages: tuple[OutageTable, ...] = attrs.field(default=(), alias="outage")
    partitions: tuple[PartitionTable, ...] = attrs.field(default=(), alias="partition")
    networks: tuple[NetworkTable, ...] = attrs.field(default=(), alias="network")
    maintenances: tuple[MaintenanceTable, ...] = attrs.field(default=(), alias="maintenance")
    clocks: tuple[ClockTable, ...] = attrs.field(default=(), alias="clock")

    @property
    def is_lossless(self) -> bool:
        """Whether no message is lost on its way, and no actor loses its memory."""
        return not (self.outages or self.partitions or self.clocks or any(one.loss for one in self.networks))

    @property
    def is_still(self) -> bool:
        """Whether nothing goes wrong but what drivers do, for good."""
        return self.is_lossless and not (self.repair or self.failures or self.networks or self.maintenances)


class FailingCheck:
    """The check of these tables against the rest of the file."""

    def __init__(self, roles: Mapping[str, str], horizon: Duration, tick: Duration, faults: Faults) -> None:
        self._roles, self._horizon, self._tick, self._faults = roles, horizon, tick, faults

    def check(self, table: Failing) -> None:
        """What is wrong goes to the faults."""
        if table.repair is not None:
            self._takes_time("emulation.repair", table.repair)
        for where, one in _numbered("failure", table.failures):
            if one.site:
                self._is_site(f"{where}.site", one.site)
            self._takes_time(f"{where}.every", one.every)
            if one.repair is not None:
                self._takes_time(f"{where}.repair", one.repair)
        for where, outage in _numbered("outage", table.outages):
            self._is_actor(f"{where}.actor", outage.actor)
            self._recurs(where, outage)
        for where, partition in _numbered("partition", table.partitions):
            self._sides(f"{where}.sides", partition.sides)
            self._recurs(where, partition)
        for where, network in _numbered("network", table.networks):
            if len(network.between) != 2:
                self._faults.add(f"{where}.between", f"{len(network.between)} names", "two actors, or * for any")
            for name in network.between:
                self._is_actor(f"{where}.between", name, ANYBODY)
        for where, window in _numbered("maintenance", table.maintenances):
            self._is_site(f"{where}.site", window.site)
            self._recurs(where, window)
        self._clocks(table.clocks)

    def _clocks(self, clocks: tuple[ClockTable, ...]) -> None:
        named = [clock.actor for clock in clocks]
        for where, clock in _numbered("clock", clocks):
            self._is_actor(f"{where}.actor", clock.actor)
            if named.count(clock.actor) > 1:
                self._faults.add(f"{where}.actor", f"{clock.actor!r} twice", "a clock of each actor once")
            if bool(clock.ahead) == bool(clock.behind):
                found = "both ahead and behind" if clock.ahead else "neither ahead nor behind"
                self._faults.add(where, found, "one of ahead and behind")

    def _recurs(self, where: str, when: Recurring) -> None:
        if bool(when.at) == (when.every is not None):
            self._faults.add(where, "both at and every" if when.at else "neither at nor every", "one of at and every")
        for at in when.at:
            if at >= self._horizon:
                most = format_duration(self._horizon)
                self._faults.add(f"{where}.at", format_duration(at), f"less than the horizon, {most}")
        if any(later <= earlier for earlier, later in pairwise(when.at)):
            self._faults.add(f"{where}.at", "instants that don't grow", "each later than the one before")
        if when.every is not None:
            self._takes_time(f"{where}.every", when.every)
        self._takes_time(f"{where}.lasts", when.lasts)

    def _takes_time(self, where: str, span: Distribution) -> None:
        """Where it always takes less than a tick, time would hardly go on."""
        match span:
            case Fixed():
                most = span.latency
            case LatencyTable():
                most = max(span.latencies)
            case _:
                most = self._tick
        if most < self._tick:
            self._faults.add(where, format_duration(most), f"at least a tick, {format_duration(self._tick)}")

    def _sides(self, where: str, sides: tuple[tuple[str, ...], ...]) -> None:
        if len(sides) < 2 or not all(sides):
            self._faults.add(where, f"{len(sides)} sides", "two or more, each with an actor or more")
        names = [name for side in sides for name in side]
        for name in names:
            self._is_actor(where, name)
            if names.count(name) > 1:
                self._faults.add(where, f"{name!r} twice", "each actor on one side")

    def _is_site(self, where: str, name: str) -> None:
        sites = [one for one, role in self._roles.items() if role == "authority"]
        if name not in sites:
            self._faults.add(where, repr(name), one_of(name, sites))

    def _is_actor(self, where: str, name: str, *more: str) -> None:
        if name not in (*self._roles, *more):
            self._faults.add(where, repr(name), one_of(name, (*self._roles, *more)))


def _numbered(key: str, tables: tuple[Any, ...]) -> Iterator[tuple[str, Any]]:
    for index, table in enumerate(tables):
        yield f"emulation.{key}[{index}]", table
