"""A site's units: which there are, who has each, what is being done to it, and which are free.

One unit has one action at a time, under a number that says which; the end of an older action changes nothing. So it is
with switching on and off as well. What a settled unit means for its lease is for who takes the ends of actions.

Guests send filters of units, so what these cost is spread and bounded. Units of equal properties are of one kind. A
filter is asked once for each kind (one that asks for units' names, once for each unit), and what it said is kept for as
long as a lease waits with it. Asking goes on in slices, whose cost is counted, so that an actor does other things, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from itertools import chain, count
from typing import Any, Final

import attrs
from sortedcontainers import SortedList

from leasekit.actors.kernel import Kernel, keeps, shown
from leasekit.actors.settings import UnitGroup
from leasekit.core.drivers import SITE, UNIT, Blame
from leasekit.core.errors import CommandError, LeasekitError
from leasekit.core.filters import Filter, FilterError, parse_filter
from leasekit.core.leases import authority as au
from leasekit.core.leases import power as pw
from leasekit.core.leases.machine import NONE
from leasekit.core.leases.records import SiteUnit
from leasekit.core.mappers import UnitView
from leasekit.core.properties import CLASSES_MAX, EMPTY, Properties, digest_properties
from leasekit.core.reasons import Code, Reason, clip, view, words
from leasekit.core.schema import Row
from leasekit.core.steps import ActionDone

SLICE: Final = 10_000
"""The comparisons of one slice: some milliseconds."""
READING: Final = 2
"""What reading a character of a filter costs, in comparisons."""
ASKING: Final = 16
"""What it costs to ask a filter anything, in comparisons."""
KEPT: Final = 64
"""Beyond so many filters those go that nobody waits with."""


@attrs.define(eq=False)
class UnitKind:
    """Units of one type that are alike."""

    type: str
    properties: Properties
    units: dict[str, None] = attrs.field(factory=dict)


@attrs.define(eq=False)
class _Answers:
    """What one filter has said of the units of a type: of the kinds, or units, that came up to ``seen``."""

    filter: Filter
    names_units: bool
    """Whether it is asked for each unit."""
    accepted: set[UnitKind | str] = attrs.field(factory=set)
    seen: int = -1
    pending: Iterator[tuple[UnitKind | str, int]] = attrs.field(factory=lambda: iter(()))


@keeps(derived="_of _known _came _number _answers asked slices largest")
class Kinds:
    """The kinds of a site's units, and what filters say of them."""

    def __init__(self) -> None:
        self._of: dict[str, UnitKind] = {}
        self._known: dict[tuple[str, frozenset[tuple[str, str]]], UnitKind] = {}
        # By type, in the order in which they came, with a number that grows: kinds, and units.
        self._came: dict[tuple[str, bool], dict[UnitKind | str, int]] = {}
        self._number = count()
        self._answers: dict[tuple[str, str], _Answers | FilterError] = {}
        self.asked = self.slices = self.largest = 0
        """How often a filter was asked, in how many slices, and the most that one of these has cost, in comparisons."""

    def put(self, unit: str, type_: str, properties: Properties) -> None:
        """A unit has these properties from now on."""
        label = (type_, frozenset(properties.items()))
        kind, old = self._known.get(label), self._of.get(unit)
        if kind is None:
            kind = self._known[label] = UnitKind(type_, properties)
            self._came.setdefault((type_, False), {})[kind] = next(self._number)
        if kind is old:
            return
        self._of[unit] = kind
        kind.units[unit] = None
        units = self._came.setdefault((type_, True), {})
        units.pop(unit, None)
        units[unit] = next(self._number)
        if old is not None:
            del old.units[unit]
            if not old.units:
                self._forget(old)

    def _forget(self, kind: UnitKind) -> None:
        del self._known[kind.type, frozenset(kind.properties.items())]
        del self._came[kind.type, False][kind]
        for answers in self._answers.values():
            if isinstance(answers, _Answers):
                answers.accepted.discard(kind)

    def properties(self, unit: str) -> Properties:
        """A unit's properties. Raises ``KeyError``."""
        return self._of[unit].properties

    def counts(self) -> dict[str, int]:
        """What filters have cost since the start, for an operator."""
        return {"asked": self.asked, "slices": self.slices, "largest_slice": self.largest}

    # -- asking ------------------------------------------------------------------------------------------------

    def ask(self, filters: Mapping[tuple[str, str], None]) -> bool:
        """Ask filters (each a type and a text) what they have not been asked yet, up to a slice. Returns whether all is
        asked.
        """
        if len(self._answers) > KEPT:
            self._answers = {key: found for key, found in self._answers.items() if key in filters}
        spent = 0
        for type_, text in filters:
            while spent < SLICE and (more := self._ask_once(type_, text)):
                spent += more
            if spent >= SLICE:
                break
        if spent:
            self.slices += 1
            self.largest = max(self.largest, spent)
        return spent < SLICE

    def accepts(self, type_: str, text: str) -> Callable[[str], bool]:
        """What says of a unit of the type whether a filter accepts it; none accepts all. Raises ``FilterError``."""
        if not text:
            return self._of.__contains__
        answers, of = self._asked(type_, text), self._of
        accepted = answers.accepted
        return accepted.__contains__ if answers.names_units else lambda unit: of[unit] in accepted

    def accepted(self, type_: str, text: str) -> Iterator[str]:
        """The units of the type that a filter accepts, in no order. Raises ``FilterError``."""
        found = self._asked(type_, text).accepted
        return chain.from_iterable(one.units if isinstance(one, UnitKind) else (one,) for one in found)

    def _asked(self, type_: str, text: str) -> _Answers:
        while self._ask_once(type_, text):
            pass
        answers = self._answers[type_, text]
        if isinstance(answers, FilterError):
            raise answers.with_traceback(None)
        return answers

    def _ask_once(self, type_: str, text: str) -> int:
        """Read a filter, or ask it once; what that cost, 0 where nothing is left to be asked."""
        answers = self._answers.get((type_, text))
        if answers is None:
            try:
                found = parse_filter(text)
                self._answers[type_, text] = _Answers(found, "unit" in found.names)
            except FilterError as error:
                self._answers[type_, text] = error
            return 1 + READING * len(text)
        if isinstance(answers, FilterError):
            return 0
        return self._ask_next(type_, answers)

    def _ask_next(self, type_: str, answers: _Answers) -> int:
        came = self._came.get((type_, answers.names_units), {})
        following = next(answers.pending, None)
        if following is None:
            if not came or next(reversed(came.values())) <= answers.seen:
                return 0
            answers.pending = iter([item for item in came.items() if item[1] > answers.seen])
            following = next(answers.pending)
        subject, answers.seen = following
        if came.get(subject) != answers.seen:
            return ASKING  # it went, or has become another, since the list was made
        if isinstance(subject, UnitKind):
            accepted = answers.filter({**subject.properties, "type": type_})
        else:
            accepted = answers.filter({**self.properties(subject), "unit": subject, "type": type_})
        (answers.accepted.add if accepted else answers.accepted.discard)(subject)
        self.asked += 1
        return ASKING + answers.filter.cost


@attrs.define(eq=False, slots=False)
class Inventory:
    """The units that the settings name, in groups. Raises ``LeasekitError`` for a name used twice."""

    groups: Sequence[UnitGroup]
    types: dict[str, Properties] = attrs.field(factory=dict, init=False)
    """The resource properties of each type."""
    _of: dict[str, tuple[str, Properties]] = attrs.field(factory=dict, init=False)
    _count: dict[str, Counter[bytes]] = attrs.field(factory=dict, init=False)
    attributes: dict[bytes, Properties] = attrs.field(factory=dict, init=False)
    """What the units of each class have."""
    _classes: dict[str, bytes] = attrs.field(factory=dict, init=False)
    switched: frozenset[str] = attrs.field(init=False)
    """The types of units that a driver can switch on and off."""

    def __attrs_post_init__(self) -> None:
        self.switched = frozenset(group.type for group in self.groups if group.power)
        for group in self.groups:
            self.types[group.type] = group.properties
            all_ = {**group.properties, **group.own} if group.own else group.properties
            for name in group.names:
                self.check(name, self._of.get(name, (group.type,))[0], group.type)
                self._of[name] = (group.type, all_)
        for type_, properties in self.types.items():
            self._count[type_] = self._sort(type_, properties)

    def _sort(self, type_: str, properties: Properties) -> Counter[bytes]:
        """Put the units of a type in classes. Where too many of them differ, all are of one, whatever else they have:
        claims can't tell them apart then.
        """
        each = {name: all_ for name, (of, all_) in self._of.items() if of == type_}
        found = {name: digest_properties(all_) for name, all_ in each.items()}
        if len(set(found.values())) > CLASSES_MAX:
            each, found = dict.fromkeys(each, properties), dict.fromkeys(found, digest_properties(properties))
        self._classes.update(found)
        self.attributes.update((class_, each[name]) for name, class_ in found.items())
        return Counter(found.values())

    @staticmethod
    def check(name: str, known: str, type_: str) -> None:
        """Raises ``LeasekitError`` for a unit that is known as of another type."""
        if known != type_:
            raise LeasekitError(
                f"unit {name!r} is of type {known!r} and of type {type_!r}: unit names are unique at a site"
            )

    def __contains__(self, name: object) -> bool:
        return name in self._of

    def properties(self, type_: str) -> Properties:
        """The resource properties of a type."""
        return self.types.get(type_, EMPTY)

    def properties_of(self, unit: str, type_: str) -> Properties:
        """Those of its type, and a unit's own. One that is not named any more has those of its type."""
        found = self._of.get(unit)
        return self.properties(type_) if found is None else found[1]

    def class_of(self, unit: str, type_: str) -> bytes:
        """The class of a unit."""
        return self._classes.get(unit) or digest_properties(self.properties(type_))

    def attributes_of(self, class_: bytes, type_: str) -> Properties:
        """What units of a class have; what all of their type have, if there is no such class any more."""
        return self.attributes.get(class_, self.properties(type_))

    def total(self, type_: str) -> int:
        """How many units of the type there are, in service or not."""
        return self.counts(type_).total()

    def counts(self, type_: str) -> Counter[bytes]:
        """How many units of each class of the type there are, in service or not, in the order of the inventory."""
        return self._count.get(type_, Counter())


FAILED: Final = "failed"
SWITCHES: Final = ("on", "off", "suspend")
"""What a mapper may decide of a unit's power."""

METERED: Final = frozenset({"gflops", "gflops_per_watt", "idle_watts", "watts"})
"""What a driver that switches a unit may say of it, beside the inventory."""


GONE: Final = Reason(Code.NOT_IN_INVENTORY)
"""Why a unit is out of service that the settings name no more. A lease that has it keeps it."""

Act = Callable[[SiteUnit, str, int], None]
"""Have ``op`` done to a unit under a number; 0 means a new number."""
Moved = Callable[[SiteUnit, str, str, Reason | None, ActionDone | None], None]
"""What is told of a unit: its event (empty: only its record changed), its state before, why, and which action ended."""


@keeps(rows="_units", volatile="_free _tearing holding", derived="_ending")
@attrs.define(eq=False, slots=False)
class Units:
    """All units of a site, by id and by type; free ones in the order in which they are best given out."""

    _kernel: Kernel
    inventory: Inventory
    _failures_max: int
    _act: Act
    _waits: Callable[[SiteUnit], bool]
    """Whether a unit is not to be set up yet."""
    moved: list[Moved] = attrs.field(factory=list, init=False)
    """Who is told, in order, of what happens to a unit."""
    kinds: Kinds = attrs.field(init=False)
    """Their kinds by what mappers see of them, and what filters say of those."""
    holding: Counter[str] = attrs.field(init=False)
    """How many units each lease has that are to be torn down before it is over."""
    _units: dict[str, SiteUnit] = attrs.field(init=False)
    _free: dict[str, SortedList] = attrs.field(init=False)
    _tearing: dict[str, dict[str, SiteUnit]] = attrs.field(init=False)
    _ending: ActionDone | None = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self._kernel.register(SiteUnit)
        self._reset()
        self._declare()

    def _reset(self) -> None:
        self._units, self._free, self._tearing, self.holding, self.kinds = {}, {}, {}, Counter(), Kinds()

    # -- inventory ---------------------------------------------------------------------------------------------

    def _declare(self) -> list[SiteUnit]:
        """Units that the site's settings name; returns those that were not known before."""
        new = []
        for group in self.inventory.groups:
            self._free.setdefault(group.type, SortedList())
            self._tearing.setdefault(group.type, {})
            for name in group.names:
                unit = self._units.get(name)
                if unit is None:
                    class_ = self.inventory.class_of(name, group.type)
                    unit = self._units[name] = SiteUnit(name, group.type, index=len(self._units), classes=(class_,))
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
            unit.index = len(self._units)
            self._units[unit.id] = unit
            self._free.setdefault(unit.type, SortedList())
            self._tearing.setdefault(unit.type, {})
            self._sort(unit)
            if unit.state == au.FREE and not unit.promised:
                self._put_free(unit)
            elif unit.state == au.TEARDOWN and not unit.promised:
                self._tearing[unit.type][unit.id] = unit
            if unit.lease:
                self.holding[unit.lease] += 1
        for unit in self._declare():
            self._kernel.touch(unit)

    def retire_gone(self) -> list[SiteUnit]:
        """Take units out of service that the settings name no more; one that they name again is back. Returns those of
        which it is news.
        """
        changed = []
        for unit in list(self._units.values()):
            gone = unit.id not in self.inventory
            if gone != (unit.retire == GONE):
                changed.append(unit)
            if gone and (unit.state == au.OUT or unit.retire) and not unit.left:
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
        return iter(self._units.values())

    def in_service(self, type_: str) -> Counter[bytes]:
        """How many units of the type aren't out of service, by class: one counts as each that it may be given as."""
        return Counter(
            class_
            for unit in self._units.values()
            if unit.type == type_ and unit.state != au.OUT and not unit.retire
            for class_ in unit.classes
        )

    def keep_classes(self, live: Container[bytes]) -> None:
        """Forget the classes that units were of, but for those that are ``live``."""
        for unit in self._units.values():
            if any(class_ not in live for class_ in unit.classes[1:]):
                unit.classes = (unit.classes[0], *(class_ for class_ in unit.classes[1:] if class_ in live))
                self._kernel.touch(unit)

    def power(self, unit: SiteUnit) -> str:
        """The unit's power. One that no driver switches (any more) is its operator's to switch on: it counts as on."""
        return unit.power if unit.type in self.inventory.switched else pw.ON

    # -- what mappers see --------------------------------------------------------------------------------------

    def view(self, name: str) -> UnitView:
        """One unit. Raises ``KeyError``."""
        return self._view(self._units[name])

    def _view(self, unit: SiteUnit) -> UnitView:
        return UnitView(
            unit.id, unit.type, unit.state, unit.lease or unit.promised, unit.failures, self.kinds.properties(unit.id),
            self.power(unit), unit.classes if self.is_available(unit) else (unit.given_as,),
        )  # fmt: skip

    def _sort(self, unit: SiteUnit) -> None:
        """Put a unit among those like it: its properties may be others now."""
        properties = self.inventory.properties_of(unit.id, unit.type)
        now = self.inventory.class_of(unit.id, unit.type)
        if unit.id in self.inventory and now != unit.classes[0]:
            unit.classes = tuple(dict.fromkeys((now, *unit.classes)))
        if unit.id not in self.inventory:
            properties = self.inventory.attributes_of(unit.classes[0], unit.type)
        self.kinds.put(unit.id, unit.type, {**properties, **unit.metered} if unit.metered else properties)

    def free(self, type_: str, filter: str = "", /) -> Iterator[UnitView]:
        """Units that can be given out, and that a filter accepts: clean ones first (fewest failures, then inventory
        order), then those in teardown, and those that must be switched on at the end. Raises ``FilterError``.
        """
        return self._offer(type_, self.kinds.accepts(type_, filter))

    def _offer(self, type_: str, accepts: Callable[[str], bool]) -> Iterator[UnitView]:
        dark = []
        for rank, _, _, name in self._free.get(type_, ()):
            if not accepts(name):
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
            return [self._view(unit) for unit in self._units.values() if unit.type == type_]
        units = map(self._units.__getitem__, self.kinds.accepted(type_, filter))
        return [self._view(unit) for unit in sorted(units, key=lambda unit: unit.index)]

    def snapshot(self) -> UnitsSnapshot:
        """The same views, which hold still while the units go on."""
        free = {type_: list(self.free(type_)) for type_ in self.inventory.types}
        views = {name: self.view(name) for name in self._units}
        return UnitsSnapshot(free, views)

    def is_available(self, unit: SiteUnit) -> bool:
        """Whether the unit can be given out now."""
        return not unit.promised and (unit.state == au.FREE or (unit.state == au.TEARDOWN and not unit.retire))

    # -- what happens to units ---------------------------------------------------------------------------------

    def give(self, unit: SiteUnit, lease: str, class_: bytes) -> None:
        """Give an available unit to a lease, as one of a class: set it up now, or when its teardown has ended, or it is
        on.
        """
        unit.given_as = class_
        if unit.state == au.FREE:
            self._take_free(unit)
            unit.promised = lease
            self.prepare(unit)
        else:
            unit.promised = lease
            self._tearing[unit.type].pop(unit.id, None)
            self._fire_nothing(unit)

    def prepare(self, unit: SiteUnit) -> None:
        """Set up a unit that is clean for the lease that it is promised to: now, when it is on, or when it needs to
        wait no longer.
        """
        if self._waits(unit):
            self._fire(unit, "down" if unit.state == au.TEARDOWN else "", None)
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
            if unit.state != au.FREE:
                self._tearing[unit.type][unit.id] = unit
            elif unit.retire:
                unit.reason = unit.retire
                self._fire(unit, "out", unit.retire)
            else:
                self._put_free(unit)
            self._fire_nothing(unit)
        elif unit.lease == lease and unit.state != au.TEARDOWN:
            self._tear_down(unit, "teardown", None)

    def change(self, unit: SiteUnit) -> bool:
        """Bring a unit to its lease's new properties: now if it is up, or else when it is. Returns whether it was up,
        and isn't for now.
        """
        if unit.state == au.UP:
            self._begin(unit, "modify")
            return True
        if unit.state in (au.SETUP, au.CHANGE) and not unit.changed:
            unit.changed = True
            self._fire_nothing(unit)
        return False

    def _begin(self, unit: SiteUnit, op: str) -> None:
        """Set up or modify a unit, with the properties that its lease has now."""
        unit.changed = False
        self._fire(unit, op, None)
        self._act(unit, op, 0)

    def done(self, done: ActionDone) -> tuple[str, SiteUnit, str] | None:
        """An action has ended: ``up``, ``failed``, ``changed``, ``again`` (up, but a modify follows) or
        ``down``, with the unit and the lease concerned; None for an old one.
        """
        unit = self._units.get(done.unit)
        if unit is None or unit.action != done.number or done.number == 0:
            return None
        if done.reason:
            done = done._replace(reason=clip(done.reason))
        unit.action, self._ending = 0, done
        ended = self._switched(unit, done) if unit.power in pw.OPERATION else self._ended(unit, done)
        self._ending = None
        return ended

    def _ended(self, unit: SiteUnit, done: ActionDone) -> tuple[str, SiteUnit, str]:
        lease = unit.lease
        if unit.state == au.SETUP:
            if done.ok:
                unit.given, unit.failures, unit.setup = done.properties, 0, done.number
                return self._is_up(unit, "up", None), unit, lease
            self._failed(unit, Reason(Code.SETUP_FAILED, detail=done.reason), done.blame)
            if done.blame == SITE:
                unit.promised = lease  # its lease waits with it
            self._tear_down(unit, "failed", unit.reason)
            return "failed", unit, lease
        if unit.state == au.CHANGE:
            if done.ok and done.properties:
                unit.given = done.properties
            why = None if done.ok else Reason(Code.MODIFY_FAILED, detail=done.reason)
            return self._is_up(unit, "changed", why), unit, lease
        return self._went_down(unit, done, lease)

    def lose(self, unit: SiteUnit, reason: Reason, blame: Blame = UNIT) -> None:
        """A unit that was up is down: what is left of it goes, and it is free again."""
        self._failed(unit, reason, blame)
        self._tear_down(unit, "failed", unit.reason)

    def _tear_down(self, unit: SiteUnit, event: str, why: Reason | None) -> None:
        self._fire(unit, event, why)
        if not unit.promised:
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
        unit.lease = ""
        if unit.retire:
            unit.reason = unit.retire
            self._fire(unit, "out", unit.retire)
        elif unit.promised:
            self.prepare(unit)
        else:
            self._fire(unit, "down", None)
            self._put_free(unit)
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
            raise CommandError(f"unit {name}: found {to!r}, it can be switched to one of: {', '.join(SWITCHES)}")
        unit = self._units[name]
        if unit.type not in self.inventory.switched:
            raise CommandError(f"unit {name}: no driver switches units of type {unit.type!r}")
        if unit.state != au.FREE or unit.promised:
            holder = unit.lease or unit.promised
            raise CommandError(f"unit {name} is {unit.state}{f', for lease {holder}' if holder else ''}: it stays on")
        if not pw.MACHINE.allows((unit.power, NONE), to):
            raise CommandError(f"unit {name} is {unit.power}: it can't be switched {to}")
        self._take_free(unit)
        self._switch(unit, to, why)
        self._put_free(unit)

    def _switched(self, unit: SiteUnit, done: ActionDone) -> tuple[str, SiteUnit, str] | None:
        """A unit was switched, or wasn't: its lease gets it now if it is on, and another one if it can't be."""
        free = unit.state == au.FREE and not unit.promised
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
            if unit.state == au.FREE:
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
        self._free[unit.type].add((pw.ORDER[self.power(unit)], unit.failures, unit.index, unit.id))

    def _take_free(self, unit: SiteUnit) -> None:
        self._free[unit.type].remove((pw.ORDER[self.power(unit)], unit.failures, unit.index, unit.id))

    def _fire(self, unit: SiteUnit, event: str, why: Reason | None) -> None:
        before = unit.state
        if event:
            unit.state = au.UNIT_MACHINE.next((before, NONE), event)[0]
            if self._kernel.keeps_log:
                reason = Reason(Code.UNIT, unit.id).because(why)
                self._kernel.note(unit.lease or unit.id, f"unit {event}", before, unit.state, reason)
            if event == "setup" or (event == "teardown" and before == au.OUT):
                self.holding[unit.lease] += 1
        self._kernel.touch(unit)
        for tell in self.moved:
            tell(unit, event, before, why, self._ending)

    def _fire_nothing(self, unit: SiteUnit) -> None:
        """The unit's row changes, its state doesn't."""
        self._fire(unit, "", None)

    def resume(self) -> None:
        """After a restart: have done again, under the same number, what was under way, in the order in which it was
        begun: a unit that failed is torn down before the one in its place is set up.
        """
        ops = {au.SETUP: "setup", au.CHANGE: "modify", au.TEARDOWN: "teardown"}
        for unit in sorted(self._units.values(), key=lambda unit: unit.action):
            if unit.action and unit.state in ops:
                self._act(unit, ops[unit.state], unit.action)
            elif unit.action and unit.power in pw.OPERATION:
                self._act(unit, pw.OPERATION[unit.power], unit.action)

    # -- the operator's ----------------------------------------------------------------------------------------

    def retire(self, name: str, reason: Reason) -> SiteUnit:
        """Take a unit out of service: at once if it is free, else when its lease has given it up. Raises
        ``CommandError``.
        """
        unit = self.find(name)
        if unit.state == au.OUT or unit.retire:
            raise CommandError(f"unit {name} is out of service already: {words(unit.reason or unit.retire)}")
        unit.retire = reason
        if unit.state == au.FREE and not unit.promised:
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
        if unit.state == au.OUT and unit.left:
            unit.failures, unit.lease, unit.left = 0, unit.left, ""
            self._tear_down(unit, "teardown", None)
        elif unit.state == au.OUT:
            unit.failures = 0
            self._fire(unit, "back", None)
            self._put_free(unit)
        elif not unit.retire:
            raise CommandError(f"unit {name} is in service: it is {unit.state}")
        unit.retire = unit.reason = None if named else GONE
        self._fire_nothing(unit)
        return unit

    def find(self, name: str) -> SiteUnit:
        """The unit of that name. Raises ``CommandError``."""
        unit = self._units.get(name)
        if unit is None:
            raise CommandError(f"no unit {name!r} here; `leasekit site units` shows those there are")
        return unit

    def describe(self) -> list[dict[str, Any]]:
        """Every unit as plain data for an operator."""
        fields = ("type", "state", "lease", "promised", "failures")
        return [
            {
                "unit": unit.id, **shown(unit, *fields), **view(unit.reason or unit.retire),
                "power": self.power(unit), "properties": dict(unit.given),
            }
            for unit in self._units.values()
        ]  # fmt: skip


@attrs.frozen(slots=True)
class UnitsSnapshot:
    """What :meth:`Units.free` and :meth:`Units.view` said at one instant."""

    _free: Mapping[str, list[UnitView]]
    _views: Mapping[str, UnitView]

    def free(self, type_: str, filter: str = "", /) -> Iterator[UnitView]:
        """As :meth:`Units.free`."""
        return _fitting(self._free.get(type_, ()), filter)

    def view(self, name: str) -> UnitView:
        """As :meth:`Units.view`."""
        return self._views[name]

    def all(self, type_: str, filter: str = "", /) -> list[UnitView]:
        """As :meth:`Units.all`."""
        return list(_fitting((view for view in self._views.values() if view.type == type_), filter))


def _fitting(views: Iterable[UnitView], text: str) -> Iterator[UnitView]:
    if not text:
        return iter(views)
    accepts = parse_filter(text)
    return (view for view in views if accepts(view.attributes))


def summary(units: Iterable[SiteUnit]) -> Mapping[str, Mapping[str, int]]:
    """How many units of each type are in each state."""
    counts: dict[str, Counter[str]] = {}
    for unit in units:
        counts.setdefault(unit.type, Counter())[unit.state] += 1
    return counts
