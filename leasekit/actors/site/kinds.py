"""Which units filters accept. Guests send filters, so what they cost is spread and bounded.

Units of equal properties are of one kind. Kinds are kept as units come and change, a filter is asked once for each kind
(one that asks for units' names, once for each unit), and what it said is kept for as long as a lease waits with it.
Asking goes on in slices, so that an actor can do other things in between; what a slice costs is counted, not timed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import chain, count
from typing import Final

import attrs

from leasekit.core.filters import Filter, FilterError, parse_filter
from leasekit.core.properties import Properties

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
    accepted: set[UnitKind | str] = attrs.field(factory=set)
    seen: int = -1
    pending: Iterator[tuple[UnitKind | str, int]] = attrs.field(factory=lambda: iter(()))

    @property
    def names_units(self) -> bool:
        """Whether it is asked for each unit."""
        return "unit" in self.filter.names


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
                self._answers[type_, text] = _Answers(parse_filter(text))
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
