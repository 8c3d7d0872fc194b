"""Cases: small worlds and what happens in them, as plain data that is drawn by a seed, written to files, and shrunk.

A case names its sites with their units, and events in order: requests of every kind, extends, modifies and closes by
two guests. An event that makes no sense any more (its lease was never granted, say) is passed over when it is played,
so that any part of a case is a case.

Beside them there are single turns whose cycle is made by hand, of any size (:class:`MadeTurn`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, Final

import attrs

from leasekit.core.errors import LeasekitError
from leasekit.core.settings import SettingsError, structure
from leasekit.core.time import HOUR, MINUTE, SECOND, Duration, Instant

FORMAT: Final = 1
SITES: Final = ("a", "b", "c")
GUESTS: Final = ("g0", "g1")
SPAN: Final = 4 * HOUR
"""Events of a case happen within this time."""
TRIES_MAX: Final = 400


@attrs.frozen(kw_only=True)
class Event:
    """What a guest does ``at`` an instant: ``request``, ``extend``, ``modify`` or ``close`` the lease ``name``."""

    at: Instant
    do: str = attrs.field(validator=attrs.validators.in_(("request", "extend", "modify", "close")))
    guest: str = attrs.field(validator=attrs.validators.in_(GUESTS))
    name: str
    type: str = ""
    units: int = 1
    start: Instant = 0
    length: Duration = 0
    site: str = ""
    properties: Mapping[str, str] = attrs.Factory(dict)


@attrs.frozen(kw_only=True)
class Case:
    """A world, and what happens in it. Every ``failing``-th setup of a unit fails (0: none)."""

    seed: int
    sites: Mapping[str, Mapping[str, int]]
    events: tuple[Event, ...]
    failing: int = attrs.field(default=0, validator=attrs.validators.ge(0))

    @property
    def size(self) -> int:
        """How much there is to look at."""
        return len(self.events) + sum(len(types) for types in self.sites.values())


@attrs.frozen(kw_only=True)
class MadeTurn:
    """One turn whose cycle is made by hand: so many requests, demands or leases (``size``) of these types; ``there``:
    with something to give.
    """

    size: int = attrs.field(validator=attrs.validators.ge(0))
    types: Sequence[str] = attrs.field(validator=attrs.validators.min_len(1))
    there: bool = True

    @property
    def is_large(self) -> bool:
        """Whether it is about what many cost."""
        return self.there and self.size > 0

    def __str__(self) -> str:
        if not self.size:
            return "nothing there at all"
        return f"{self.size:,} at once" if self.there else "nothing to give"


# -- drawing -----------------------------------------------------------------------------------------------------------


def draw(seed: int, number: int, types: Sequence[str]) -> Case:
    """Case ``number`` of a seed. The first ones are those that are easily forgotten: nothing there, nothing to do, one
    request in an idle world, a world that is full; the others are drawn, from nearly idle to overloaded.
    """
    special = _SPECIAL[number] if number < len(_SPECIAL) else None
    random = Random(f"{seed}/{number}")
    return special(number, types) if special is not None else _drawn(random, number, types)


def _nothing_there(seed: int, types: Sequence[str]) -> Case:
    return Case(seed=seed, sites={}, events=(_plain(0, "r1", types[0], 1),))


def _nothing_to_do(seed: int, types: Sequence[str]) -> Case:
    return Case(seed=seed, sites={"a": dict.fromkeys(types, 2)}, events=())


def _one_request(seed: int, types: Sequence[str]) -> Case:
    return Case(seed=seed, sites={"a": dict.fromkeys(types, 2)}, events=(_plain(0, "r1", types[0], 1),))


def _full(seed: int, types: Sequence[str]) -> Case:
    """One lease has it all for two hours; others want some now, later, and as soon as possible."""
    all_of_it = _plain(0, "all", types[0], 4)
    later = {"deferrable": "true"}
    requests = (
        _plain(MINUTE, "now", types[0], 1),
        _plain(MINUTE, "touching", types[0], 4, start=2 * HOUR),
        attrs.evolve(_plain(2 * MINUTE, "soon", types[0], 2), properties=later),
        attrs.evolve(_plain(3 * MINUTE, "some", types[0], 4), properties={"elastic": "true", "min_units": "1"}),
    )
    return Case(seed=seed, sites={"a": dict.fromkeys(types, 4)}, events=(all_of_it, *requests))


def _plain(at: Instant, name: str, type_: str, units: int, start: Instant | None = None) -> Event:
    begin = at if start is None else start
    return Event(at=at, do="request", guest="g1", name=name, type=type_, units=units, start=begin, length=2 * HOUR)


_SPECIAL: Final[Sequence[Callable[[int, Sequence[str]], Case]]] = (_nothing_to_do, _nothing_there, _one_request, _full)


def _drawn(random: Random, number: int, types: Sequence[str]) -> Case:
    used = random.sample(types, random.randint(1, len(types)))
    sites = {
        site: {type_: random.choice((1, 2, 3, 4, 8, 20)) for type_ in used} for site in SITES[: random.randint(1, 3)]
    }
    largest = max(units for site in sites.values() for units in site.values())
    events: list[Event] = []
    for index in range(random.choice((2, 4, 8, 16, 30))):
        at = random.randrange(SPAN // SECOND) * SECOND if random.random() < 0.7 else 0
        if random.random() < 0.12:
            events += _group(random, at, index, used, largest, tuple(sites))
        else:
            events.append(_request(random, at, f"r{index}", used, largest, tuple(sites)))
    events += list(_afterwards(random, events))
    events.sort(key=lambda event: event.at)
    return Case(seed=number, sites=sites, events=tuple(events), failing=random.choice((0, 0, 3, 7)))


def _request(random: Random, at: Instant, name: str, types: Sequence[str], largest: int, sites: Sequence[str]) -> Event:
    units = random.randint(1, largest + (random.random() < 0.1))
    start = at if random.random() < 0.6 else at + random.randrange(7200) * SECOND
    properties: dict[str, str] = {}
    if random.random() < 0.3:
        properties.update(elastic="true", min_units=str(random.randint(1, units)))
    if random.random() < 0.4:
        properties["deferrable"] = "true"
        if random.random() < 0.6:
            properties["latest_start"] = str(start + random.randrange(3 * 3600) * SECOND)
    if random.random() < 0.2:
        properties["priority"] = str(random.randint(-2, 2))
    if random.random() < 0.1:
        properties["preemptible"] = "true"
    site = random.choice(sites) if random.random() < 0.15 else ""
    if not site and random.random() < 0.1:
        properties["exclude_sites"] = random.choice(sites)
    return Event(
        at=at, do="request", guest=random.choice(GUESTS), name=name, type=random.choice(types), units=units,
        start=start, length=random.choice((600, 1800, 3600, 3601, 7200, 14400)) * SECOND, site=site,
        properties=properties,
    )  # fmt: skip


def _group(
    random: Random, at: Instant, index: int, types: Sequence[str], largest: int, sites: Sequence[str]
) -> Iterator[Event]:
    """Requests that are granted together; now and then one never comes."""
    first = _request(random, at, f"g{index}.0", types, largest, sites)
    count = random.randint(2, 4)
    for member in range(count if random.random() < 0.9 else count - 1):
        event = _request(random, at, f"g{index}.{member}", types, max(1, largest // 2), sites)
        properties = {"group_id": f"group{index}"}
        if member == 0:
            properties["lease_count"] = str(count)
        if "elastic" in event.properties:
            properties |= {name: event.properties[name] for name in ("elastic", "min_units")}
        yield attrs.evolve(
            event, guest=first.guest, start=first.start, length=first.length, properties=properties,
            at=at + member * SECOND,
        )  # fmt: skip


def _afterwards(random: Random, requests: Sequence[Event]) -> Iterator[Event]:
    """Extends, modifies and closes of what may have been granted."""
    for request in requests:
        if random.random() < 0.4:
            at = request.start + random.randrange(max(1, request.length // SECOND)) * SECOND
            do = random.choice(("extend", "extend", "modify", "close"))
            units = max(1, request.units + random.choice((-2, -1, 0, 0, 1, 3)))
            length = random.choice((600, 3600, 7200)) * SECOND
            yield Event(at=at, do=do, guest=request.guest, name=request.name, units=units, length=length)


# -- shrinking ---------------------------------------------------------------------------------------------------------


def shrink(case: Case, fails: Callable[[Case], bool], tries: int = TRIES_MAX) -> Case:
    """A smaller case that still fails: events are left out by halves, quarters and so on, then sites, then what is left
    is made plainer. At most ``tries`` cases are tried.
    """
    left = tries

    def still(candidate: Case) -> bool:
        nonlocal left
        left -= 1
        return left >= 0 and fails(candidate)

    before: Case | None = None
    while before != case and left > 0:
        before = case
        case = _without_events(case, still)
        for simpler in _plainer(case):
            if left > 0 and still(simpler):
                case = simpler
                break
    return case


def _without_events(case: Case, still: Callable[[Case], bool]) -> Case:
    size = len(case.events)
    while size >= 1:
        first = 0
        while first < len(case.events):
            candidate = attrs.evolve(case, events=case.events[:first] + case.events[first + size :])
            if still(candidate):
                case = candidate
            else:
                first += size
        size //= 2
    return case


def _plainer(case: Case) -> Iterator[Case]:
    """One step plainer, each."""
    for site in case.sites:
        yield attrs.evolve(case, sites={name: units for name, units in case.sites.items() if name != site})
    if case.failing:
        yield attrs.evolve(case, failing=0)
    for place, event in enumerate(case.events):
        for simpler in _plainer_event(event):
            yield attrs.evolve(case, events=(*case.events[:place], simpler, *case.events[place + 1 :]))
    for site, types in case.sites.items():
        for type_, units in types.items():
            if units > 1:
                smaller = {**case.sites, site: {**types, type_: units // 2}}
                yield attrs.evolve(case, sites=smaller)


def _plainer_event(event: Event) -> Iterator[Event]:
    for key in event.properties:
        rest = {name: value for name, value in event.properties.items() if name != key}
        if key == "elastic":
            rest.pop("min_units", None)
        if key == "deferrable":
            rest.pop("latest_start", None)
        yield attrs.evolve(event, properties=rest)
    if event.site:
        yield attrs.evolve(event, site="")
    if event.units > 1:
        yield attrs.evolve(event, units=event.units // 2)
    if event.at and event.do == "request":
        yield attrs.evolve(event, at=0, start=max(0, event.start - event.at))
    if event.start > event.at:
        yield attrs.evolve(event, start=event.at)


# -- files -------------------------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class Recorded:
    """A case, or a single turn, as a file has it: with the mapper it was played with, and what was wrong."""

    format: int = attrs.field(validator=attrs.validators.in_((FORMAT,)))
    role: str
    target: str
    settings: Mapping[str, Any]
    check: str
    fault: str
    case: Case | None = None
    turn: MadeTurn | None = None

    @property
    def played(self) -> Case | MadeTurn:
        """What is played again."""
        played = self.turn if self.case is None else self.case
        assert played is not None, "whoever reads or writes a file sees to it"
        return played


def to_json(recorded: Recorded) -> dict[str, Any]:
    """As plain data, without what is as by default."""
    return {
        "format": recorded.format,
        "role": recorded.role,
        "target": recorded.target,
        "settings": dict(recorded.settings),
        "check": recorded.check,
        "fault": recorded.fault,
        **played_to_json(recorded.played),
    }


def played_to_json(played: Case | MadeTurn) -> dict[str, Any]:
    """What is played, under its kind (``case`` or ``turn``), as plain data."""
    return {"case": _case_to_json(played)} if isinstance(played, Case) else {"turn": attrs.asdict(played)}


def played_from_json(data: Mapping[str, Any]) -> Case | MadeTurn:
    """What :func:`played_to_json` made. Raises ``SettingsError``."""
    if "turn" in data:
        return structure(MadeTurn, data["turn"], "turn")
    return structure(Case, data["case"], "case")


def _case_to_json(case: Case) -> dict[str, Any]:
    events = [{k: v for k, v in attrs.asdict(event).items() if v not in ("", {})} for event in case.events]
    sites = {site: dict(types) for site, types in case.sites.items()}
    return {"seed": case.seed, "sites": sites, "failing": case.failing, "events": events}


def read_case(path: Path) -> Recorded:
    """A case from a file. Raises ``LeasekitError`` that names the file and the key."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise LeasekitError(f"{path}: not a case of mapper check: {error}") from error
    if not isinstance(data, dict):
        raise LeasekitError(f"{path}: not a case of mapper check: found {type(data).__name__}, expected an object")
    settings = data.pop("settings", {})
    if ("case" in data) == ("turn" in data):
        found = "both" if "case" in data else "neither"
        raise LeasekitError(f"{path}: found {found} of case and turn, expected one of them")
    try:
        recorded = structure(Recorded, {**data, "settings": {}}, str(path))
    except SettingsError as error:
        raise LeasekitError(str(error)) from error
    return attrs.evolve(recorded, settings=settings)
