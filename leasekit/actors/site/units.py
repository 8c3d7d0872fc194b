"""A site's units: which there are, who has each, what is being done to it, and which are free.

One unit has one action at a time, under a number that says which; the end of an older action changes nothing. So it is
with switching on and off as well. What a settled unit means for its lease is for who takes the ends of actions.

Guests send filters of units, so what these cost is spread and bounded. Units of equal properties are of one kind. A
filter is asked once for each kind (one that asks for units' names, once for each unit), and what it said is kept for as
long as a lease waits with it. Asking goes on in slices, whose cost is counted, so that an actor does other things, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from itertools import count
from typing import Final

import attrs
from sortedcontainers import SortedList

from leasekit.actors.kernel import Kernel, keeps
from leasekit.actors.site.inventory import HostNews, Inventory, Kinds
from leasekit.core.answers import UnitDetails
from leasekit.core.drivers import SITE, UNIT, Blame
from leasekit.core.efficiency import METERED
from leasekit.core.errors import ArgumentError, CommandError
from leasekit.core.filters import parse_filter
from leasekit.core.leases import authority as au
from leasekit.core.leases import power as pw
from leasekit.core.leases.machine import NONE
from leasekit.core.leases.records import SiteUnit
from leasekit.core.mappers import HostChanges, HostView, MachineChange, MachineView, UnitView
from leasekit.core.properties import CAPS, CPU, EMPTY, MIGRATES, Vector, amount
from leasekit.core.reasons import Code, Reason, clip, view, words
from leasekit.core.schema import Row
from leasekit.core.steps import ActionDone

FAILED: Final = "failed"
SWITCHES: Final = ("on", "off", "suspend")
"""What a mapper may decide of a unit's power."""

SMOOTHING: Final = 4
"""Which part of a new measurement an estimate follows."""

GONE: Final = Reason(Code.NOT_IN_INVENTORY)
"""Why a unit is out of service that the settings name no more. A lease that has it keeps it."""

Act = Callable[[SiteUnit, str, int], None]
"""Have ``op`` done to a unit under a number; 0 means a new number."""
Moved = Callable[[SiteUnit, str, str, Reason | None, ActionDone | None], None]
"""What is told of a unit: its event (empty: only its record changed), its state before, why, and which action ended."""


@keeps(rows="_units", volatile="_free _tearing holding", derived="_ending _machines news")
@attrs.define(eq=False, slots=False)
class Units:
    """All units of a site, by id and by type; free ones in the order in which they are best given out."""

    _kernel: Kernel
    inventory: Inventory
    _failures_max: int
    _act: Act
    moved: list[tuple[Moved, Container[str]]] = attrs.field(factory=list, init=False)
    """Who is told, in order, of what happens to a unit, but for which events."""
    held_up: list[Callable[[SiteUnit], bool]] = attrs.field(factory=list, init=False)
    """Who says, in order, that a unit is not to be set up yet."""
    kinds: Kinds = attrs.field(init=False)
    """Their kinds by what mappers see of them, and what filters say of those."""
    holding: Counter[str] = attrs.field(init=False)
    """How many units each lease has that are to be torn down before it is over."""
    _units: dict[str, SiteUnit] = attrs.field(init=False)
    _free: dict[str, SortedList] = attrs.field(init=False)
    _tearing: dict[str, dict[str, SiteUnit]] = attrs.field(init=False)
    _machines: dict[str, dict[str, SiteUnit]] = attrs.field(init=False)
    news: HostNews = attrs.field(init=False)
    """Which hosts have changed, and what is on them."""
    _ending: ActionDone | None = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self._kernel.register(SiteUnit)
        self._reset()
        self._declare()

    def _reset(self) -> None:
        self._units, self._free, self._tearing, self.holding, self.kinds = {}, {}, {}, Counter(), Kinds()
        self._machines, self.news = {}, HostNews()

    # -- inventory ---------------------------------------------------------------------------------------------

    def follow_inventory(self) -> list[SiteUnit]:
        """The inventory has changed: what is new is there, what is otherwise is of another class, what is named no more
        goes out of service. Returns those units of which it is news.
        """
        changed = self._declare()
        for unit in self:
            if unit.id in self.inventory and self.inventory.class_of(unit.id, unit.type) != unit.classes[0]:
                self._sort(unit)
                changed.append(unit)
        for unit in changed:
            self._kernel.touch(unit)
        return [*changed, *self.retire_gone()]

    def _declare(self) -> list[SiteUnit]:
        """Units that the site's settings name; returns those that were not known before."""
        new = []
        # Numbers that no unit has had: units stay known when they are gone.
        numbers = count(1 + max((unit.number for unit in self._units.values()), default=0))
        for group in self.inventory.groups:
            self._free.setdefault(group.type, SortedList())
            self._tearing.setdefault(group.type, {})
            for name in group.names:
                unit = self._units.get(name)
                if unit is None:
                    class_ = self.inventory.class_of(name, group.type)
                    unit = self._units[name] = SiteUnit(name, group.type, number=next(numbers), classes=(class_,))
                    self._put_free(unit)
                    self._sort(unit)
                    new.append(unit)
                self.inventory.check(name, unit.type, group.type)
        return new

    def restore(self, rows: Iterable[Row]) -> None:
        """Units as a store kept them, and those that the settings name since. What was under way goes on with
        :meth:`resume`.
        """
        self._reset()
        for row in rows:
            unit = SiteUnit.from_row(row)
            self._units[unit.id] = unit
            if unit.lease:
                self.holding[unit.lease] += 1
            if unit.host:
                self._put_on(unit, unit.host)
                continue
            self._free.setdefault(unit.type, SortedList())
            self._tearing.setdefault(unit.type, {})
            self._sort(unit)
            if unit.is_clean:
                self._put_free(unit)
            elif unit.is_torn_down and not unit.promised:
                self._tearing[unit.type][unit.id] = unit
        for unit in self._declare():
            self._kernel.touch(unit)

    def retire_gone(self) -> list[SiteUnit]:
        """Take units out of service that the settings name no more; one that they name again is back. Returns those of
        which it is news.
        """
        changed = []
        for unit in list(self):
            gone = unit.id not in self.inventory
            if gone != (unit.retire == GONE):
                changed.append(unit)
            if gone and (unit.is_out or unit.retire) and not unit.left:
                unit.retire = unit.reason = GONE  # whatever it was out of service for: no end of that brings it back
                self._fire_nothing(unit)
            elif gone and not unit.left:
                self.retire(unit.id, GONE)
            elif not gone and unit.retire == GONE:
                self.bring_back(unit.id)
        return changed

    def __contains__(self, name: object) -> bool:
        return name in self._units

    def __getitem__(self, name: str) -> SiteUnit:
        return self._units[name]

    def __iter__(self) -> Iterator[SiteUnit]:
        """The units of the inventory: machines are not among them."""
        return (unit for unit in self._units.values() if not unit.host)

    @property
    def machines(self) -> list[SiteUnit]:
        """All machines."""
        return [unit for unit in self._units.values() if unit.host]

    def machines_on(self, host: str) -> list[SiteUnit]:
        """The machines on a host, those that leave it among them."""
        return list(self._machines.get(host, {}).values())

    def machine_on(self, host: str, name: str) -> SiteUnit | None:
        """A machine, if it is on a host."""
        there = self._machines.get(host)
        return there.get(name) if there is not None else None

    def in_service(self, type_: str) -> Counter[bytes]:
        """How many units of the type aren't out of service, by class: one counts as each that it may be given as."""
        return Counter(
            class_
            for unit in self
            if unit.type == type_ and not unit.is_out and not unit.retire
            for class_ in unit.classes
        )

    def keep_classes(self, live: Container[bytes]) -> None:
        """Forget the classes that units were of, but for those that are ``live``."""
        for unit in self._units.values():
            if any(class_ not in live for class_ in unit.classes[1:]):
                unit.classes = (unit.classes[0], *(class_ for class_ in unit.classes[1:] if class_ in live))
                self.news.changed(unit)
                self._kernel.touch(unit)

    def power(self, unit: SiteUnit) -> str:
        """The unit's power. One that no driver switches (any more) is its operator's to switch on: it counts as on."""
        return unit.power if unit.type in self.inventory.switched else pw.ON

    # -- what mappers see --------------------------------------------------------------------------------------

    def view(self, name: str) -> UnitView:
        """One unit. Raises ``KeyError``."""
        return self._view(self._units[name])

    def _view(self, unit: SiteUnit) -> UnitView:
        state, there = unit.state, self._machines.get(unit.id)
        if there is not None and state == au.FREE:  # a host is as busy as what is on it
            state = au.TEARDOWN if all(one.is_torn_down for one in there.values()) else au.UP
        return UnitView(
            unit.id, unit.type, state, unit.lease or unit.promised, unit.failures,
            self.kinds.properties(unit.host or unit.id), self.power(unit),
            unit.classes if self.is_available(unit) else (unit.given_as,), unit.host,
        )  # fmt: skip

    def _sort(self, unit: SiteUnit) -> None:
        """Put a unit among those like it: its properties may be others now."""
        properties = self.inventory.properties_of(unit.id, unit.type)
        now = self.inventory.class_of(unit.id, unit.type)
        if unit.id in self.inventory and now != unit.classes[0]:
            unit.classes = tuple(dict.fromkeys((now, *unit.classes)))
        if unit.id not in self.inventory:
            properties = self.inventory.attributes_of(unit.classes[0], unit.type)
        self.news.changed(unit)
        self.kinds.put(unit.id, unit.type, {**properties, **unit.metered} if unit.metered else properties)

    def free(self, type_: str, filter: str = "", /) -> Iterator[UnitView]:
        """Units that can be given out, and that a filter accepts: clean ones first (fewest failures, then inventory
        order), then those in teardown, and those that must be switched on at the end. Raises ``FilterError``.
        """
        return self._offer(type_, self.kinds.accepts(type_, filter))

    def _offer(self, type_: str, accepts: Callable[[str], bool]) -> Iterator[UnitView]:
        dark = []
        for rank, _, _, name in self._free.get(type_, ()):
            if not accepts(name) or (self._machines and not self.is_available(self._units[name])):
                continue
            if rank:
                dark.append(name)
            else:
                yield self.view(name)
        for unit in list(self._tearing.get(type_, {}).values()):
            if not unit.retire and accepts(unit.id):
                yield self._view(unit)
        for name in dark:
            yield self.view(name)

    def all(self, type_: str, filter: str = "", /) -> list[UnitView]:
        """All units of a type that a filter accepts, in the order of the inventory. Raises ``FilterError``."""
        if not filter:
            return [self._view(unit) for unit in self if unit.type == type_]
        units = map(self._units.__getitem__, self.kinds.accepted(type_, filter))
        return [self._view(unit) for unit in sorted(units, key=lambda unit: unit.number)]

    def snapshot(self) -> UnitsSnapshot:
        """The same views, which hold still while the units go on."""
        free = {type_: list(self.free(type_)) for type_ in self.inventory.types}
        views = {name: self.view(name) for name in self._units}
        return UnitsSnapshot(free, views, {type_: host_views(self, type_) for type_ in self.inventory.types})

    def is_available(self, unit: SiteUnit) -> bool:
        """Whether the unit can be given out now: a host, if all that is on it goes."""
        if unit.promised or unit.host or not (unit.is_free or unit.is_torn_down):
            return False
        there = self._machines.get(unit.id)
        if there:
            return not unit.retire and all(one.is_torn_down for one in there.values())
        return unit.is_free or not unit.retire

    def count_as(self, unit: SiteUnit, class_: bytes) -> None:
        """A unit that a lease has counts as of another class from now on. A machine is of that class, whatever its host
        is; a host as a whole stands in for one.
        """
        unit.given_as = class_
        if unit.host:
            unit.classes = tuple(dict.fromkeys((*unit.classes, class_)))
        self.news.changed(unit)
        self._kernel.touch(unit)

    # -- what happens to units ---------------------------------------------------------------------------------

    def give(self, unit: SiteUnit, lease: str, class_: bytes) -> None:
        """Give an available unit to a lease, as one of a class: set it up now, or when its teardown has ended, or it is
        on.
        """
        unit.given_as = class_
        if unit.is_free:
            if not unit.host:
                self._take_free(unit)
            unit.promised = lease
            self.prepare(unit)
        else:
            unit.promised = lease
            self._tearing[unit.type].pop(unit.id, None)
            self._fire_nothing(unit)

    def prepare(self, unit: SiteUnit) -> None:
        """Set up a clean unit for the lease that it is promised to: now, or when it is on and waits no longer."""
        if any(waits(unit) for waits in self.held_up) or not self._has_room(unit):
            self._fire(unit, "down" if unit.is_torn_down else "", None)
        elif self.power(unit) == pw.ON:
            unit.lease, unit.promised = unit.promised, ""
            self._begin(unit, "setup")
        else:
            if unit.power not in (pw.ON, pw.STARTING, pw.RESUMING):
                self._switch(unit, "on", Reason(Code.FOR_LEASE, unit.promised))
            self._fire_nothing(unit)

    def take(self, unit: SiteUnit, lease: str) -> None:
        """Take a unit from a lease: it is torn down, if the lease ever had it."""
        if unit.promised == lease:
            unit.promised = ""
            if not unit.is_free:
                self._tearing[unit.type][unit.id] = unit
            elif unit.host:
                self._fire_nothing(unit)  # who waited for it hears of it while it is there
                self._remove(unit)
                return
            elif unit.retire:
                unit.reason = unit.retire
                self._fire(unit, "out", unit.retire)
            else:
                self._put_free(unit)
            self._fire_nothing(unit)
        elif unit.lease == lease and not unit.is_torn_down:
            self._tear_down(unit, "teardown", None)

    def change(self, unit: SiteUnit) -> bool:
        """Bring a unit to its lease's new properties: now if it is up, or else when it is. Returns whether it was up,
        and isn't for now.
        """
        if unit.is_up:
            self._begin(unit, "modify")
            return True
        if unit.is_settling and not unit.changed:
            unit.changed = True
            self._fire_nothing(unit)
        return False

    def _begin(self, unit: SiteUnit, op: str) -> None:
        """Set up or modify a unit, with the properties that its lease has now."""
        unit.changed = False
        self._fire(unit, op, None)
        self._act(unit, op, 0)

    def done(self, done: ActionDone) -> tuple[str, SiteUnit, str, str] | None:
        """An action has ended: ``up``, ``failed``, ``changed``, ``again`` (up, but a modify follows) or
        ``down``, with the unit, the lease concerned, and the host that the unit was about to leave; None for an old
        one.
        """
        unit = self._units.get(done.unit)
        if unit is None or unit.action != done.number or done.number == 0:
            return None
        if done.reason:
            done = done._replace(reason=clip(done.reason))
        unit.action, self._ending, left = 0, done, unit.leaves
        ended = self._switched(unit, done) if unit.power in pw.OPERATION else self._ended(unit, done)
        self._ending = None
        return ended and (*ended, left)

    def _ended(self, unit: SiteUnit, done: ActionDone) -> tuple[str, SiteUnit, str]:
        lease = unit.lease
        if unit.is_set_up:
            if done.ok:
                unit.given, unit.failures, unit.setup, unit.used = done.properties, 0, done.number, -1
                return self._is_up(unit, "up", None), unit, lease
            self._failed(unit, Reason(Code.SETUP_FAILED, detail=done.reason), done.blame)
            if done.blame == SITE:
                unit.promised = lease  # its lease waits with it
            self._tear_down(unit, "failed", unit.reason)
            return "failed", unit, lease
        if unit.is_modified:
            if done.ok and done.properties:
                unit.given = done.properties
            why = None if done.ok else Reason(Code.MODIFY_FAILED, detail=done.reason)
            self._moved(unit, done.ok)
            return self._is_up(unit, "changed", why), unit, lease
        return self._went_down(unit, done, lease)

    def lose(self, unit: SiteUnit, reason: Reason, blame: Blame = UNIT) -> None:
        """A unit that was up, or is being changed, is down: what is left of it goes, and it is free again."""
        self._failed(unit, reason, blame)
        self._tear_down(unit, "failed" if unit.is_up else "teardown", unit.reason)

    def _tear_down(self, unit: SiteUnit, event: str, why: Reason | None) -> None:
        self._fire(unit, event, why)
        if not unit.promised and not unit.host:
            self._tearing[unit.type][unit.id] = unit
        self._act(unit, "teardown", 0)

    def _is_up(self, unit: SiteUnit, what: str, reason: Reason | None) -> str:
        unit.reason = reason
        self._fire(unit, "up", reason)
        if not unit.changed:
            return what
        self._begin(unit, "modify")
        return "again"

    def _went_down(self, unit: SiteUnit, done: ActionDone, lease: str) -> tuple[str, SiteUnit, str]:
        self._tearing[unit.type].pop(unit.id, None)
        if done.ok:
            unit.given = EMPTY
        else:
            unit.left, unit.retire = lease, Reason(Code.TEARDOWN_FAILED, detail=done.reason)
            if unit.host:
                self._hold_back(self._units[unit.host], Reason(Code.TEARDOWN_FAILED, unit.id, detail=done.reason))
        unit.lease = ""
        if unit.host and not unit.left and not unit.promised:
            self._fire(unit, "down", None)
            self._remove(unit)
        elif unit.retire:
            unit.reason = unit.retire
            self._fire(unit, "out", unit.retire)
        elif unit.promised:
            self.prepare(unit)
        else:
            self._fire(unit, "down", None)
            unit.reason = None if unit.reason and unit.reason.code == Code.MOVED else unit.reason  # nothing ails it
            self._put_free(unit)
            if unit.id in self._machines:
                self._let_in(unit.id)
        self.holding[lease] -= 1
        if self.holding[lease] <= 0:
            del self.holding[lease]
        return "down", unit, lease

    # -- power ---------------------------------------------------------------------------------------------------

    def _switch(self, unit: SiteUnit, event: str, why: Reason | None) -> None:
        """Begin what ``event`` (``on``, ``off``, ``suspend``) says. Raises ``ProtocolError`` where the table has no
        such row.
        """
        self._move_power(unit, event, why)
        if unit.power in pw.OPERATION:
            self._act(unit, pw.OPERATION[unit.power], 0)

    def _power_done(self, unit: SiteUnit, done: ActionDone) -> str:
        """A driver has switched it, or failed to. Returns the power that it has now, or :data:`FAILED` if it was to be
        switched on and can't be used.
        """
        was = unit.power
        if done.ok:
            self._move_power(unit, "done", None)
            read = {name: value for name, value in done.properties.items() if name in METERED}
            unit.reason, unit.metered = None, {**unit.metered, **read}
            return unit.power
        unit.reason = Reason(Code.POWER_FAILED, what=pw.OPERATION[was], detail=done.reason)
        self._move_power(unit, "failed", unit.reason)
        if was == pw.RESUMING:  # what was in its memory is nobody's: it can as well be started afresh
            self._switch(unit, "on", unit.reason)
        return FAILED if was == pw.STARTING else unit.power

    def _move_power(self, unit: SiteUnit, event: str, why: Reason | None) -> None:
        before = unit.power
        unit.power = pw.MACHINE.next((before, NONE), event)[0]
        self._kernel.note(unit.id, f"power {event}", before, unit.power, Reason(Code.UNIT, unit.id).because(why))
        self._kernel.touch(unit)

    def switch(self, name: str, to: str, why: Reason | None) -> None:
        """Have a free unit switched, as a mapper decides. Raises ``CommandError``, with nothing changed, if that can't
        be done.
        """
        if name not in self._units:
            raise CommandError(f"there is no unit {name!r}")
        if to not in SWITCHES:
            raise ArgumentError(f"unit {name}: found {to!r}, it can be switched to one of: {', '.join(SWITCHES)}")
        unit = self._units[name]
        if unit.type not in self.inventory.switched:
            raise CommandError(f"unit {name}: no driver switches units of type {unit.type!r}")
        if not unit.is_free or unit.promised or self._machines.get(unit.id):
            holder = unit.lease or unit.promised
            raise CommandError(f"unit {name} is {unit.state}{f', for lease {holder}' if holder else ''}: it stays on")
        if not pw.MACHINE.allows((unit.power, NONE), to):
            raise CommandError(f"unit {name} is {unit.power}: it can't be switched {to}")
        self._take_free(unit)
        self._switch(unit, to, why)
        self._put_free(unit)

    def _switched(self, unit: SiteUnit, done: ActionDone) -> tuple[str, SiteUnit, str] | None:
        """A unit was switched, or wasn't: its lease gets it now if it is on, and another one if it can't be."""
        free = unit.is_clean
        if free:
            self._take_free(unit)
        power = self._power_done(unit, done)
        self._sort(unit)
        if power == FAILED and done.blame == SITE:
            if free:  # its mapper may switch it on again, when it is called the next time
                self._put_free(unit)
            self._fire_nothing(unit)
            return ("failed", unit, unit.promised) if unit.promised else None
        if power == FAILED:
            unit.retire = unit.reason
            if unit.is_free:
                self._fire(unit, "out", unit.retire)
            return "down", unit, ""
        if free:
            self._put_free(unit)
        elif unit.promised and power == pw.ON:
            self.prepare(unit)
        self._fire_nothing(unit)
        return None

    def _failed(self, unit: SiteUnit, reason: Reason, blame: Blame = UNIT) -> None:
        unit.reason = reason
        unit.failures += blame == UNIT
        if blame == UNIT and unit.failures >= self._failures_max:
            unit.retire = Reason(Code.FAILED_IN_A_ROW, units=unit.failures).because(reason)

    def _put_free(self, unit: SiteUnit) -> None:
        self._free[unit.type].add((pw.ORDER[self.power(unit)], unit.failures, unit.number, unit.id))

    def _take_free(self, unit: SiteUnit) -> None:
        self._free[unit.type].remove((pw.ORDER[self.power(unit)], unit.failures, unit.number, unit.id))

    def _fire(self, unit: SiteUnit, event: str, why: Reason | None) -> None:
        before = unit.state
        if event:
            unit.state = unit.machine.next((before, NONE), event)[0]
            if self._kernel.keeps_log:
                reason = Reason(Code.UNIT, unit.id) if why is None else Reason(Code.UNIT, unit.id).because(why)
                self._kernel.note(unit.lease or unit.id, f"unit {event}", before, unit.state, reason)
            if event == "setup" or (event == "teardown" and before == au.OUT):
                self.holding[unit.lease] += 1
        self.news.changed(unit)
        self._kernel.touch(unit)
        for tell, but in self.moved:
            if event not in but:
                tell(unit, event, before, why, self._ending)

    def _fire_nothing(self, unit: SiteUnit) -> None:
        """The unit's row changes, its state doesn't."""
        self._fire(unit, "", None)

    # -- machines ----------------------------------------------------------------------------------------------

    def add_machine(self, host: str, size: Vector, needs: Vector, cap: int = -1) -> SiteUnit:
        """A machine on a host, which nobody has yet: :meth:`give` it at once."""
        on = self._units[host]
        name = f"{host}.{self._kernel.next('serial')}"
        unit = SiteUnit(name, on.type, classes=on.classes, host=host, size=size, needs=needs, cap=cap)
        self._units[name] = unit
        self._put_on(unit, host)
        return unit

    def _put_on(self, unit: SiteUnit, host: str) -> None:
        self.news.changed(unit)
        for name in (host, unit.leaves) if unit.leaves else (host,):
            self._machines.setdefault(name, {})[unit.id] = unit

    def _take_off(self, unit: SiteUnit, host: str) -> None:
        self.news.at(host, unit.id)
        there = self._machines.get(host, {})
        there.pop(unit.id, None)
        if not there:
            self._machines.pop(host, None)
        self._let_in(host)

    def _remove(self, unit: SiteUnit) -> None:
        del self._units[unit.id]
        self._kernel.erase(unit)
        for host in filter(None, (unit.host, unit.leaves)):
            self._take_off(unit, host)

    def has_place(self, host: str, size: Vector, but: SiteUnit | None = None) -> bool:
        """Whether a host has as much left beside all that is on it now, in whatever state."""
        on = self._units[host]
        capacity = self.inventory.capacity(on.type, on.classes[0])
        there = [one for one in self._machines.get(host, {}).values() if not one.is_free and one is not but]
        if not on.is_free:
            return False
        return all(much + sum(amount(one.size, name) for one in there) <= amount(capacity, name) for name, much in size)

    def _has_room(self, unit: SiteUnit) -> bool:
        """Whether a unit can be set up beside what is on its host: what is being torn down there is waited for."""
        if unit.host:
            return self.has_place(unit.host, unit.size, unit)
        there = self._machines.get(unit.id)
        return not there or all(one.is_free for one in there.values())

    def _let_in(self, host: str) -> None:
        """Something has left a host: what waited for that is set up; a host that is empty may go out of service."""
        unit = self._units.get(host)
        if unit is None:
            return
        why = unit.retire
        is_clean = not any(one.left for one in self.machines_on(host))
        if why and why.code == Code.TEARDOWN_FAILED and why.who and is_clean and host in self.inventory:
            self.bring_back(host)
        for waiting in (unit, *self.machines_on(host)):
            if waiting.promised and waiting.is_free:
                self.prepare(waiting)
        if unit.retire and unit.is_clean and not self._machines.get(host):
            self._take_free(unit)
            unit.reason = unit.retire
            self._fire(unit, "out", unit.retire)

    def _hold_back(self, host: SiteUnit, why: Reason) -> None:
        """Nothing more comes to a host on which a machine could not be torn down, until that could be."""
        if not host.retire:
            host.retire = why
            self._fire_nothing(host)

    def move(self, unit: SiteUnit, host: str) -> None:
        """Have a machine that is up moved to another host: it takes its size on both until that has ended."""
        unit.leaves, unit.host = unit.host, host
        self._put_on(unit, host)
        self._begin(unit, "modify")

    def _moved(self, unit: SiteUnit, ok: bool) -> None:
        """A move has ended: where it failed the machine is where it was."""
        if unit.leaves:
            gone = unit.leaves if ok else unit.host
            unit.host, unit.leaves = (unit.host if ok else unit.leaves), ""
            self._take_off(unit, gone)

    def resume(self) -> None:
        """After a restart: have done again, under the same number, what was under way, in the order in which it was
        begun: a unit that failed is torn down before the one in its place is set up.
        """
        for unit in sorted(self._units.values(), key=lambda unit: unit.action):
            op = au.OPERATION.get(unit.state) or pw.OPERATION.get(unit.power)
            if unit.action and op:
                self._act(unit, op, unit.action)

    # -- the operator's ----------------------------------------------------------------------------------------

    def retire(self, name: str, reason: Reason) -> SiteUnit:
        """Take a unit out of service: at once if it is free, else when its lease has given it up. Raises
        ``CommandError``.
        """
        unit = self.find(name)
        if unit.is_out or unit.retire:
            raise CommandError(f"unit {name} is out of service already: {words(unit.reason or unit.retire)}")
        unit.retire = reason
        if unit.is_clean and not unit.host and not self._machines.get(name):
            self._take_free(unit)
            unit.reason = reason
            self._fire(unit, "out", reason)
        else:
            self._fire_nothing(unit)
        return unit

    def bring_back(self, name: str) -> SiteUnit:
        """Put a unit into service again, after its teardown where that failed before. Raises ``CommandError``."""
        unit = self.find(name)
        named = name in self.inventory
        if not named and not unit.left:
            raise CommandError(f"unit {name} is {words(GONE)}")
        if unit.is_out and unit.left:
            unit.failures, unit.lease, unit.left = 0, unit.left, ""
            self._tear_down(unit, "teardown", None)
        elif unit.is_out:
            unit.failures = 0
            self._fire(unit, "back", None)
            self._put_free(unit)
        elif not unit.retire:
            raise CommandError(f"unit {name} is in service: it is {unit.state}")
        unit.retire = unit.reason = None if named or unit.host else GONE
        for machine in self.machines_on(name):
            if machine.left:
                self._hold_back(unit, Reason(Code.TEARDOWN_FAILED, machine.id).because(machine.retire))
        self._fire_nothing(unit)
        return unit

    def find(self, name: str) -> SiteUnit:
        """The unit of that name. Raises ``CommandError``."""
        unit = self._units.get(name)
        if unit is None:
            raise CommandError(f"no unit {name!r} here; `leasekit site units` shows those there are", Code.NOT_FOUND)
        return unit

    def describe(self, unit: SiteUnit, why: Reason | None = None) -> UnitDetails:
        """A unit, for an operator; ``why`` it is as it is, if that is not the unit's own reason."""
        reason, state = view(why or unit.reason or unit.retire), shown_state(self, unit)
        return UnitDetails.of(unit, unit=unit.id, state=state, power=self.power(unit), properties=unit.given, **reason)


@attrs.frozen(slots=True)
class UnitsSnapshot:
    """What :meth:`Units.free` and :meth:`Units.view` said at one instant."""

    _free: Mapping[str, list[UnitView]]
    _views: Mapping[str, UnitView]
    _hosts: Mapping[str, list[HostView]]

    def hosts(self, type_: str) -> list[HostView]:
        """As :meth:`Units.hosts`."""
        return self._hosts.get(type_, [])

    def changes(self, type_: str, mark: int) -> HostChanges:
        """As :meth:`Units.changes`, since ever."""
        return HostChanges(0, tuple(self.hosts(type_)), (), anew=True)

    def free(self, type_: str, filter: str = "", /) -> Iterator[UnitView]:
        """As :meth:`Units.free`."""
        return _fitting(self._free.get(type_, ()), filter)

    def view(self, name: str) -> UnitView:
        """As :meth:`Units.view`."""
        return self._views[name]

    def all(self, type_: str, filter: str = "", /) -> list[UnitView]:
        """As :meth:`Units.all`."""
        return list(_fitting((view for view in self._views.values() if view.type == type_ and not view.host), filter))


_ABLE: Final = {
    (caps, migrates): frozenset(["cap"] * caps + ["migrate"] * migrates)
    for caps in (False, True)
    for migrates in (False, True)
}
"""What hosts are ``able`` to do to machines, by what their driver says."""


def host_views(units: Units, type_: str, among: Iterable[SiteUnit] | None = None) -> list[HostView]:
    """What a mapper sees of the hosts of a divided type that are in service, ``among`` all units or some."""
    classes = units.inventory.hosts(type_)
    there = units.inventory.properties(type_) if classes else {}
    able = _ABLE[there.get(CAPS) == "true", there.get(MIGRATES) == "true"]
    return [
        HostView(
            unit.id, type_, unit.classes, unit.state if not unit.promised else au.SETUP, one.capacity, one.core,
            one.least_yield, tuple(map(_machine_view, units.machines_on(unit.id))), able,
            units.kinds.properties(unit.id),
        )
        for unit in (() if not classes else units if among is None else among)
        if unit.type == type_ and not (unit.host or unit.is_out or unit.retire)
        if (one := classes.get(unit.classes[0])) is not None
    ]  # fmt: skip


def host_changes(units: Units, type_: str, mark: int) -> HostChanges:
    """What has become of the hosts of a divided type since the mark of an earlier answer; all of them for 0."""
    number = units.news.number
    news = units.news.since(mark) if 0 < mark <= number else None
    if news is None:
        return HostChanges(number, tuple(host_views(units, type_)), anew=True)
    hosts, machines = [], []
    for host, name in news:
        if host == name:
            hosts.append(host)
        elif host in units and units[host].type == type_:
            unit = units.machine_on(host, name)
            machines.append(MachineChange(host, name, _machine_view(unit) if unit is not None else None))
    if not hosts:
        return HostChanges(number, machines=tuple(machines))
    there = host_views(units, type_, [units[name] for name in hosts if name in units])
    shown = {host.id for host in there}
    gone = tuple([host for host in hosts if host not in shown])
    return HostChanges(number, tuple(there), gone, False, tuple([one for one in machines if one.host not in hosts]))


def measure(unit: SiteUnit, cpu: int) -> bool:
    """A machine was seen to use so much CPU, in millicores: the estimate follows by a :data:`SMOOTHING`-th. What it
    would use that uses nearly all that it may is not known: it counts as twice that. Returns whether the estimate
    is another twentieth of what the machine needs.
    """
    before, need = unit.used, max(1, amount(unit.needs, CPU))
    seen = min(need, 2 * cpu) if cpu * 10 >= unit.cap * 9 >= 0 else cpu
    unit.used = seen if before < 0 else before + (seen - before) // SMOOTHING
    return before < 0 or before * 20 // need != unit.used * 20 // need


def _machine_view(unit: SiteUnit) -> MachineView:
    return MachineView(
        unit.id, unit.lease or unit.promised, unit.state, unit.given_as, unit.size, unit.needs, unit.cap,
        unit.used, unit.given,
    )  # fmt: skip


def _fitting(views: Iterable[UnitView], text: str) -> Iterator[UnitView]:
    if not text:
        return iter(views)
    accepts = parse_filter(text)
    return (view for view in views if accepts(view.attributes))


def shown_state(units: Units, unit: SiteUnit) -> str:
    """The state of a unit; a host that is to go out of service counts as out when nothing on it is up any more."""
    is_over = unit.retire and unit.is_clean and all(one.is_torn_down for one in units.machines_on(unit.id))
    return au.OUT if is_over else unit.state


def summary(units: Units) -> Mapping[str, Mapping[str, int]]:
    """How many units of each type are in each state."""
    counts: dict[str, Counter[str]] = {}
    for unit in units:
        counts.setdefault(unit.type, Counter())[shown_state(units, unit)] += 1
    return counts
