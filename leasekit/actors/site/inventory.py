"""What a site's settings say of its units: which there are, of which classes, what hosts have; and which of them the
filters of guests accept, asked once for units that are alike; which hosts have changed; what drivers are told to do
with units, and what is kept of those of suspended leases (:mod:`leasekit.core.leases.saved`).

A broker says that a lease is suspended when it ends it early, or beforehand by its claim. The last of the lease's time
is for saving. What can't be saved is torn down as ever, and the lease says so; what is saved is kept for a while, and
survives a restart. A lease whose configuration says ``resume`` and names the suspended one has its units set up from
what is kept of that one's, each from one; where nothing is kept any more a unit is set up anew, and says so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, count
from typing import Final

import attrs

from leasekit.actors.kernel import Kernel, keeps, query
from leasekit.actors.peering import Keyring
from leasekit.actors.settings import AuthoritySettings, UnitGroup
from leasekit.core.answers import SavedUnitDetails
from leasekit.core.drivers import DROP, NOT_RESUMED, NOT_SAVED, RESUME, SAVE, UNIT, UNIT_CAP, UNIT_HOST, UNIT_LEAVES
from leasekit.core.errors import LeasekitError
from leasekit.core.filters import Filter, FilterError, parse_filter
from leasekit.core.leases import authority as au
from leasekit.core.leases.records import SiteLease, SiteUnit, UnitChange
from leasekit.core.leases.saved import RESUMES, SavedUnit, saved_key
from leasekit.core.properties import (
    CLASSES_MAX,
    EMPTY,
    NEEDS,
    NO_HOSTS,
    HostClasses,
    Properties,
    Vector,
    as_properties,
    digest_properties,
    weigh,
)
from leasekit.core.reasons import Code, Reason, all_of, said
from leasekit.core.schema import Row
from leasekit.core.steps import Action, ActionDone
from leasekit.core.time import HOUR, Duration

SLICE: Final = 10_000
"""The comparisons of one slice: some milliseconds."""
READING: Final = 2
"""What reading a character of a filter costs, in comparisons."""
ASKING: Final = 16
"""What it costs to ask a filter anything, in comparisons."""
KEPT: Final = 64
"""Beyond so many filters those go that nobody waits with."""
NEWS_MAX: Final = 20_000
"""How many changes of hosts and machines are known at most."""


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


class HostNews:
    """The last changes of hosts, and of machines on them, by number."""

    def __init__(self) -> None:
        self.number = 0
        """That of the last change."""
        self._changes: list[tuple[str, str]] = []

    def changed(self, unit: SiteUnit) -> None:
        """A host, or a machine on it, is otherwise than mappers have seen."""
        self.at(unit.host or unit.id, unit.id)
        if unit.leaves:
            self.at(unit.leaves, unit.id)

    def at(self, host: str, name: str) -> None:
        """On a host, or with it if it is of that ``name``, something is otherwise."""
        self.number += 1
        self._changes.append((host, name))
        if len(self._changes) > NEWS_MAX:
            del self._changes[: NEWS_MAX // 2]

    def since(self, mark: int) -> dict[tuple[str, str], None] | None:
        """What has changed since a number was the last one: hosts, each with the machine on it, or with itself. None
        where that is not known any more.
        """
        known, count = self._changes, self.number - mark
        return dict.fromkeys(known[len(known) - count :]) if count <= len(known) else None


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
    """The units that the settings name, in groups, but for those that an operator has said otherwise. Raises
    ``LeasekitError`` for a name used twice.
    """

    settled: Sequence[UnitGroup]
    """What the settings say."""
    groups: Sequence[UnitGroup] = attrs.field(init=False)
    types: dict[str, Properties] = attrs.field(factory=dict, init=False)
    """The resource properties of each type."""
    _of: dict[str, tuple[str, Properties]] = attrs.field(factory=dict, init=False)
    _count: dict[str, Counter[bytes]] = attrs.field(factory=dict, init=False)
    attributes: dict[bytes, Properties] = attrs.field(factory=dict, init=False)
    """What the units of each class have, or had."""
    _classes: dict[str, bytes] = attrs.field(factory=dict, init=False)
    _hosts: dict[str, HostClasses] = attrs.field(factory=dict, init=False)
    _known: dict[str, HostClasses] = attrs.field(factory=dict, init=False)
    switched: frozenset[str] = attrs.field(init=False)
    """The types of units that a driver can switch on and off."""

    def __attrs_post_init__(self) -> None:
        self.switched = frozenset(group.type for group in self.settled if group.power)
        self.types.update((group.type, group.properties) for group in self.settled)
        self.change(())

    def change(self, changes: Iterable[UnitChange]) -> None:
        """What an operator has said of units: the inventory is as the settings say, but for these. Those of a type that
        is not there wait for it.
        """
        said = {one.id: one for one in changes if one.type in self.types}
        named = (attrs.evolve(one, names=tuple(n for n in one.names if n not in said)) for one in self.settled)
        others = [
            UnitGroup(type=one.type, names=(name,), properties=self.types[one.type], own=one.own)
            for name, one in said.items()
            if not one.gone
        ]
        self.groups = (*(named if said else self.settled), *others)
        self._of.clear()
        for group in self.groups:
            all_ = {**group.properties, **group.own} if group.own else group.properties
            for name in group.names:
                self.check(name, self._of.get(name, (group.type,))[0], group.type)
                self._of[name] = (group.type, all_)
        for type_, properties in self.types.items():
            self._count[type_] = self._sort(type_, properties)
            self.remember(type_, {class_: self.attributes[class_] for class_ in self._hosts[type_]})

    def remember(self, type_: str, attributes: Mapping[bytes, Properties]) -> None:
        """Claims may count hosts of a type as of classes with these attributes."""
        self.attributes = {**attributes, **self.attributes}
        self._known[type_] = HostClasses({**HostClasses.of(attributes), **self.known_hosts(type_)})

    def forget(self, type_: str, class_: bytes) -> None:
        """Nothing counts as of a class any more."""
        self._known[type_] = HostClasses((name, one) for name, one in self.known_hosts(type_).items() if name != class_)

    def known_hosts(self, type_: str) -> HostClasses:
        """As :meth:`hosts`, and what hosts had before that claims may still count."""
        return self._known.get(type_, NO_HOSTS)

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
        self._hosts[type_] = HostClasses.of({class_: self.attributes[class_] for class_ in found.values()})
        return Counter(found.values())

    def variety(self, type_: str) -> int:
        """In how many ways units of a type differ."""
        each = (all_.items() for of, all_ in self._of.values() if of == type_)
        return len(set(map(frozenset, each)))

    def hosts(self, type_: str) -> HostClasses:
        """What hosts of a type have, by class: none, where units are not divided."""
        return self._hosts.get(type_, NO_HOSTS)

    def capacity(self, type_: str, class_: bytes) -> Vector:
        """What a host of a class has, or had; nothing, where that is not known any more."""
        one = self.known_hosts(type_).get(class_)
        return one.capacity if one is not None else ()

    def weigh(self, type_: str, units: Counter[bytes]) -> Counter[bytes]:
        """What so many units of each class have, as it is booked."""
        hosts = self.known_hosts(type_)
        if not hosts:
            return units
        there = tuple((class_, number) for class_, number in units.items() if class_ in hosts)
        found: Counter[bytes] = Counter()
        for class_, number in there:
            for name, much in weigh(((class_, 1),), (hosts[class_].capacity,)):
                found[name] += number * much
        return found

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


# -- what drivers are told to do, and what is saved --------------------------------------------------------------------


TRIES_MAX: Final = 2
"""How many setups may fail that went on from the same saved unit."""
DROP_AGAIN: Final[Duration] = HOUR
"""When it is tried again to throw away what could not be."""


@keeps(rows="units", derived="_busy")
@attrs.define(eq=False, slots=False)
class SiteSaved:
    """What drivers are told to do with a site's units, and what the site has saved of them."""

    _kernel: Kernel
    _keyring: Keyring
    _leases: Mapping[str, SiteLease]
    _inventory: Inventory
    _settings: AuthoritySettings
    units: dict[str, SavedUnit] = attrs.field(factory=dict, init=False)
    """What is kept, by key."""
    _busy: dict[str, SavedUnit] = attrs.field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        self._kernel.register(SavedUnit, due_at=lambda kept: kept.until if kept.is_saved else None, on_due=self._due)

    # -- suspending --------------------------------------------------------------------------------------------

    def count(self, lease: SiteLease) -> int:
        """How many units of a lease are saved, if it is suspended; else -1."""
        if not lease.saves:
            return -1
        return sum(kept.lease == lease.id and kept.is_saved for kept in self.units.values())

    def save(self, lease: SiteLease, unit: SiteUnit) -> None:
        """A lease that is suspended is about to give up a unit: what is up is saved as it is torn down."""
        if unit.lease != lease.id or not unit.is_in_use:
            return
        claimed = self._busy.get(unit.id)
        if claimed is not None:
            claimed.lease = lease.id  # it isn't up yet: what it was to go on from is kept for the next
            self._kernel.touch(claimed)
        elif unit.is_set_up:
            self._say(lease, unit, Reason(Code.NOT_UP))
        elif sum(kept.holder == lease.holder for kept in self.units.values()) >= self._settings.saved_max:
            self._say(lease, unit, Reason(Code.SAVED_MAX, of=self._settings.saved_max))
        else:
            key = saved_key(lease.id, unit.id)
            until = self._kernel.now + self._settings.keep_saved
            kept = SavedUnit(key, lease.id, unit.id, lease.holder, lease.type, until, holder_key=lease.key)
            self.units[key] = self._busy[unit.id] = kept
            self._kernel.note(lease.id, "save", "", "", said(f"{unit.id} as {key}"))
            self._kernel.touch(kept)

    def _say(self, lease: SiteLease, unit: SiteUnit, why: Reason) -> None:
        lease.notice = all_of(lease.notice, Reason(Code.NOT_SAVED, unit.id).because(why))
        if lease.is_torn_down:
            lease.reason = lease.notice
        self._kernel.touch(lease)

    # -- what drivers are told ---------------------------------------------------------------------------------

    def begin(self, unit: SiteUnit, op: str, number: int) -> None:
        """Have ``op`` done to a unit, under a number of its own; or again, under the number that it has."""
        lease = self._leases.get(unit.lease)
        if op == "setup" and not number and lease is not None and lease.properties.get(RESUMES):
            self._claim(lease, unit)
        unit.action = number or self._kernel.next("action")
        # What a guest has said keeps nothing from being torn down: no driver hears of it then.
        configuration = EMPTY if lease is None or op == "teardown" else lease.properties
        self._kernel.actions.append(
            Action(unit.action, op, unit.id, unit.type, unit.lease, self.context(unit, lease), configuration)
        )
        self._kernel.touch(unit)

    def context(self, unit: SiteUnit, lease: SiteLease | None) -> Properties:
        """What the site says of a unit: nothing of it is a guest's, which has a place of its own. With the key under
        which a unit is saved, or from which it goes on: that is the site's to give, and no guest names one.
        """
        properties = self._inventory.properties_of(unit.host or unit.id, unit.type)
        context = {**properties, **unit.given}
        context.pop(SAVE, None)
        context.pop(RESUME, None)
        context["unit.name"], context["site.name"] = unit.id, self._keyring.name
        if unit.host:
            context |= {UNIT_HOST: unit.host, **as_properties(unit.needs, NEEDS)}
            if unit.cap >= 0:
                context[UNIT_CAP] = str(unit.cap)
            if unit.leaves:
                context[UNIT_LEAVES] = unit.leaves
        if lease is not None:
            context["lease.id"] = lease.id
            context["lease.holder"] = lease.holder
            context["lease.end"] = str(lease.term.end)
            context["slice.name"] = lease.slice
        kept = self._busy.get(unit.id)
        if kept is not None and kept.is_being_saved and unit.is_torn_down:
            context[SAVE] = kept.id
        elif kept is not None and kept.is_claimed and unit.is_set_up:
            context[RESUME] = kept.id
        return context

    def _claim(self, lease: SiteLease, unit: SiteUnit) -> None:
        """The unit goes on from its own state, if that is there, or from another's of the suspended lease."""
        wanted = (lease.properties[RESUMES], lease.holder, lease.type)
        keys = (b"", *self._keyring.keys_of(lease.holder))  # one that has only the name of a former peer is another
        able = [
            one
            for one in self.units.values()
            if one.is_saved and (one.lease, one.holder, one.type) == wanted and one.holder_key in keys
        ]
        chosen = min(able, key=lambda one: (one.unit != unit.id, one.unit), default=None)
        if chosen is not None:
            chosen.by = unit.id
            self._busy[unit.id] = chosen
            self._kernel.fire(chosen, "claim", said(f"{unit.id} of {lease.id}"))

    # -- what becomes of it ------------------------------------------------------------------------------------

    def done(self, done: ActionDone) -> bool:
        """An action has ended: whether it threw away what was kept."""
        kept = self.units.get(done.unit)
        if kept is None or kept.action != done.number:
            return False
        self._dropped(kept, done)
        return True

    def unit_moved(self, unit: SiteUnit, event: str, before: str, why: Reason | None, done: ActionDone | None) -> None:
        """Something happens to a unit: what it was to be saved as, or to go on from, goes on with it."""
        if event and before == au.SETUP:
            self._after_setup(unit, event, done)
        elif event and before == au.TEARDOWN and unit.id in self._busy:
            self._after_teardown(unit, self._busy.pop(unit.id), done)

    def _after_setup(self, unit: SiteUnit, event: str, done: ActionDone | None) -> None:
        kept, lease = self._busy.get(unit.id), self._leases.get(unit.lease)
        if event == "up":
            text = unit.given.get(NOT_RESUMED, "")
            if text:
                unit.given = {name: value for name, value in unit.given.items() if name != NOT_RESUMED}
            why = said(text) if text else None
            if kept is not None:
                del self._busy[unit.id]
                self._end(kept, "used", why)
            elif lease is not None and lease.properties.get(RESUMES):
                why = Reason(Code.NOTHING_SAVED, lease.properties[RESUMES])
            unit.reason = why and Reason(Code.SET_UP_ANEW).because(why)
        elif event == "failed" and kept is not None:
            del self._busy[unit.id]
            kept.tries += done is None or done.blame == UNIT
            if kept.tries >= TRIES_MAX:
                self._drop(kept, "spoilt")
            else:
                self._kernel.fire(kept, "release", unit.reason)

    def _after_teardown(self, unit: SiteUnit, kept: SavedUnit, done: ActionDone | None) -> None:
        if kept.is_claimed:
            self._kernel.fire(kept, "release", Reason(Code.SETUP_STOPPED))
            return
        assert done is not None, "a teardown ends by an action's end"
        text = done.properties.get(NOT_SAVED, "") if done.ok else done.reason
        if done.ok and not text:
            self._kernel.fire(kept, "saved")
            return
        why = said(text) if done.ok else Reason(Code.TEARDOWN_FAILED, detail=text)
        lease = self._leases.get(kept.lease)
        if lease is not None:
            self._say(lease, unit, why)
        self._end(kept, "failed", why)

    def _end(self, kept: SavedUnit, event: str, why: Reason | None) -> None:
        """Nothing is left of it."""
        self._kernel.fire(kept, event, why)
        del self.units[kept.id]
        self._kernel.erase(kept)

    # -- throwing away -----------------------------------------------------------------------------------------

    def _drop(self, kept: SavedUnit, event: str) -> None:
        self._kernel.fire(kept, event)
        kept.action = self._kernel.next("action")
        self._send_drop(kept)

    def _send_drop(self, kept: SavedUnit) -> None:
        context = {**self._inventory.properties(kept.type), "unit.name": kept.unit, "site.name": self._keyring.name}
        self._kernel.actions.append(Action(kept.action, DROP, kept.id, kept.type, "", context))

    def _dropped(self, kept: SavedUnit, done: ActionDone) -> None:
        if done.ok:
            self._end(kept, "dropped", None)
            return
        self._kernel.complain(f"what is kept of unit {kept.unit} of {kept.lease} can't be thrown away: {done.reason}")
        kept.action, kept.until, kept.tries = 0, self._kernel.now + DROP_AGAIN, TRIES_MAX
        kept.lease = ""  # nobody goes on from what may be half gone
        self._kernel.fire(kept, "failed", said(done.reason))

    # -- time and state ----------------------------------------------------------------------------------------

    def _due(self, kept: SavedUnit) -> None:
        if kept.is_saved:
            self._drop(kept, "expire")

    def restore(self, rows: Iterable[Row]) -> None:
        """Take up what a store kept, before units: it says what is done again with them."""
        self.units, self._busy = {}, {}
        for kept in map(SavedUnit.from_row, rows):
            self.units[kept.id] = kept
            self._kernel.schedule(kept, self._kernel.due_at(kept))
            if kept.is_busy:
                self._busy[kept.by or kept.unit] = kept
            if kept.is_dropped:
                self._send_drop(kept)

    @query("saved")
    def _query_saved(self) -> list[SavedUnitDetails]:
        return [SavedUnitDetails.of(one, key=one.id) for one in self.units.values()]
