"""Who has what when, which types there are, and what units cost.

Every project sees how much of what is booked when, and on which units. Whose lease that is, what it is called and how
it is doing sees only who may look into its project.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Final

import attrs
import msgspec
from msgspec import Meta, Struct

from leasekit.client.shapes import (
    At,
    CalendarBar,
    CalendarRow,
    CalendarView,
    ShownUnit,
    TypeClass,
    UnitPrice,
    UnitPrices,
    UnitType,
    UnitTypes,
)
from leasekit.config.instants import CALENDAR_END, dated
from leasekit.core.accounts import PRICE, prices_of
from leasekit.core.time import DAY, HOUR, MINUTE, SECOND, Duration, Instant, Term, format_duration
from leasekit.gateway.actors import LOOK, ActorConnection
from leasekit.gateway.callers import VIEWER, Caller
from leasekit.gateway.door import BROKER, GUEST, SITE, forbidden
from leasekit.gateway.instants import instant, moment, span
from leasekit.gateway.routing import Call, route, unprocessable

SHOWN: Final[Duration] = 7 * DAY
"""How much a calendar shows, unless it is said."""
BARS_MAX: Final = 10_000
STEPS: Final[Sequence[Duration]] = (
    SECOND, 5 * SECOND, 15 * SECOND, MINUTE, 5 * MINUTE, 15 * MINUTE, 30 * MINUTE, HOUR, 2 * HOUR, 3 * HOUR, 6 * HOUR,
    12 * HOUR, DAY,
)  # fmt: skip
"""How long a stretch may be; else it is so many days."""
FINER: Final = 8
"""Bars are as exact as an eighth of a stretch: nobody sees more, and it is what takes the room on the wire."""


class CalendarOf(Struct, forbid_unknown_fields=True, kw_only=True):
    """What is shown: from ``since`` (now) to ``until`` (a week later), in as many as ``bins`` stretches; of a ``site``,
    a ``type``, a ``class``, a ``unit``; bars of one ``project`` alone, and at most ``limit`` of them. Who does not
    answer ``within`` so long (10s at most) is ``away``.
    """

    since: At | None = None
    until: At | None = None
    bins: Annotated[int, Meta(ge=1, le=1_000)] = 360
    site: str = ""
    type: str = ""
    class_: str = msgspec.field(name="class", default="")
    unit: str = ""
    project: str = ""
    limit: Annotated[int, Meta(ge=0, le=BARS_MAX)] = BARS_MAX
    within: str | None = None


@route("GET", "/calendar")
async def show_calendar(call: Call, params: CalendarOf) -> CalendarView:
    """Show who has what when: what is there, booked, held, in maintenance and free, by site, type, class and unit. Of
    projects that are not one's own it is not told whose leases these are.
    """
    check_may_look(call)
    if params.project:
        call.door.project(call.caller, params.project, VIEWER)
    term, step = _zoom(call, params)
    parts = await _gathered(call, term, step, params)
    wanted = msgspec.structs.astuple(msgspec.structs.replace(params, since=None, until=None, within=None))
    key = (term, wanted, call.caller.sees_all, frozenset(call.caller.projects))
    known = call.door.calendars.get(key)
    if known is not None and known[0] == parts:  # which are the same objects then, and quick to compare
        return known[1]
    view = _view(call.caller, params, term, step, parts)
    call.door.calendars.keep(key, (parts, view))
    return view


def _view(caller: Caller, params: CalendarOf, term: Term, step: Duration, parts: CalendarParts) -> CalendarView:
    """These parts as the caller may see them."""
    board = CalendarBoard(caller, params, term)
    board.add_rows(parts)
    for site, window in parts.windows:
        board.add_window(site, window)
    for hold in parts.holds:
        board.add_hold(hold)
    board.add_leases(parts)
    bars, more = board.chosen(max(1, step // FINER))
    return CalendarView(
        start=moment(term.start), end=moment(term.end), step=format_duration(step), rows=board.rows, bars=bars,
        more=more, away=sorted(parts.away),
    )  # fmt: skip


def check_period(since: Instant, until: Instant) -> None:
    """Raises :class:`ProblemError` for a period that no actor knows of, or that has no length."""
    if since < 0:
        raise unprocessable("since: expected an instant that is not before 1970")
    if until <= since:
        raise unprocessable("until: expected an instant after since")


def patience_of(within: str | None) -> float:
    """How long what an actor knows is waited for, in seconds, where somebody asks for it ``within`` a length of time.
    Raises ``CommandError``.
    """
    given = span(within, "within")
    return LOOK if given is None else min(LOOK, given / SECOND)


def check_may_look(call: Call) -> None:
    """Raises :class:`ProblemError` for who has no project to look into, and no office."""
    if not call.caller.sees_all and not call.door.projects(call.caller):
        raise forbidden(f"{call.caller.name} has no project here")


def _zoom(call: Call, params: CalendarOf) -> tuple[Term, Duration]:
    """The term and its stretches, which begin at whole multiples of their length. Raises :class:`ProblemError`."""
    since = call.door.clock() if params.since is None else instant(params.since) or 0
    until = since + SHOWN if params.until is None else instant(params.until) or 0
    check_period(since, until)
    least = -(-(until - since) // params.bins)
    step = next((one for one in STEPS if one >= least), -(-least // DAY) * DAY)
    start, end = since // step * step, -(-until // step) * step
    return Term(start, min(end, CALENDAR_END)), step


@attrs.define
class CalendarParts:
    """What the actors know: of brokers and sites the ``calendar`` of each, of guests those that one may look into;
    maintenance windows, each with its site, and what brokers hold for topologies; who is ``away``.
    """

    of: dict[str, dict[str, Any]] = attrs.field(factory=dict)
    roles: dict[str, str] = attrs.field(factory=dict)
    windows: list[tuple[str, dict[str, Any]]] = attrs.field(factory=list)
    holds: list[dict[str, Any]] = attrs.field(factory=list)
    away: list[str] = attrs.field(factory=list)

    def by_role(self, role: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """What actors of a role know."""
        return ((name, one) for name, one in self.of.items() if self.roles[name] == role)


async def _gathered(call: Call, term: Term, step: Duration, params: CalendarOf) -> CalendarParts:
    """Ask all at once: one that is away holds up nobody."""
    parts, patience = CalendarParts(), patience_of(params.within)
    asked = {"start": term.start, "end": term.end, "step": step, "site": params.site, "type": params.type}

    async def ask(actor: ActorConnection) -> dict[str, Any]:
        with actor.within(patience):
            found = await actor.calendar(**asked)
            if actor.role == SITE:
                parts.windows += [(actor.name, one) for one in await actor.query("maintenance")]
            elif actor.role == BROKER:
                parts.holds += await actor.query("holds")
        return found

    visible = call.door.projects(call.caller)
    actors = [one for one in call.door.actors.values() if one.role != GUEST or one.name in visible]
    parts.of, away = await call.door.each(actors, ask, needs_one=False)
    parts.roles, parts.away = {one.name: one.role for one in actors}, list(away)
    return parts


RowKey = tuple[str, str, str]
"""Site, type and class."""


@attrs.define(eq=False)
class CalendarBoard:
    """The rows and bars of a calendar as a caller may see them."""

    _caller: Caller
    _params: CalendarOf
    _term: Term
    rows: list[CalendarRow] = attrs.field(init=False, factory=list)
    _bars: list[tuple[Instant, Instant, dict[str, Any]]] = attrs.field(init=False, factory=list)
    _numbers: dict[RowKey, int] = attrs.field(init=False, factory=dict)
    _units: dict[tuple[str, str], tuple[int, int]] = attrs.field(init=False, factory=dict)
    """Of each unit of a site: in which row it is, and where there."""

    # -- rows ------------------------------------------------------------------------------------------------------

    def add_rows(self, parts: CalendarParts) -> None:
        """All classes that brokers have, or sites."""
        figures: dict[RowKey, list[list[list[int]]]] = {}
        properties: dict[RowKey, dict[str, str]] = {}
        for _, of_broker in parts.by_role(BROKER):
            for one in of_broker["classes"]:
                key = (one["site"], one["type"], one["class"])
                figures.setdefault(key, []).append(one["steps"])
                properties[key] = one["properties"]
        units: dict[RowKey, list[dict[str, Any]]] = {}
        for site, of_site in parts.by_role(SITE):
            for one in of_site["units"]:
                units.setdefault((site, one["type"], one["class"]), []).append(one)
        for key in sorted({*figures, *units}):
            if self._is_wanted(key, units.get(key, ())):
                self._add_row(key, properties.get(key, {}), added_up(figures.get(key, [])), units.get(key, ()))

    def _is_wanted(self, key: RowKey, units: Sequence[Mapping[str, Any]]) -> bool:
        params = self._params
        site, type_, class_ = key
        return (
            params.site in ("", site)
            and params.type in ("", type_)
            and class_.startswith(params.class_)
            and (not params.unit or any(one["unit"] == params.unit for one in units))
        )

    def _add_row(
        self, key: RowKey, properties: dict[str, str], steps: list[list[int]], units: Sequence[Mapping[str, Any]]
    ) -> None:
        number = self._numbers[key] = len(self.rows)
        for place, one in enumerate(units):
            self._units[key[0], one["unit"]] = (number, place)
        shown = [
            ShownUnit(
                name=one["unit"], state=one["state"], reason=dated(one["reason"]) if self._caller.sees_all else ""
            )
            for one in units
        ]
        at, there, booked, free = (list(column) for column in zip(*steps, strict=True)) if steps else ([], [], [], [])
        self.rows.append(
            CalendarRow(
                site=key[0], type=key[1], class_=key[2], properties=properties, units=shown, at=at, there=there,
                booked=booked, free=free,
            )
        )  # fmt: skip

    # -- bars ------------------------------------------------------------------------------------------------------

    def add_window(self, site: str, window: Mapping[str, Any]) -> None:
        """Units that are out of service for maintenance."""
        for row, on in self._places(site, window["units"]).items():
            self._add(window, row, len(on), on=on, kind="maintenance", reason=dated(window["reason"]))

    def add_hold(self, hold: Mapping[str, Any]) -> None:
        """What a broker holds for a topology that is being planned: of which class is not settled."""
        term = {"start": hold["term"][0], "end": hold["term"][1]}
        for part in hold["parts"]:
            self._add(term, -1, part["units"], kind="hold", site=part["site"], type=part["type"])

    def add_leases(self, parts: CalendarParts) -> None:
        """Leases as their brokers booked them, on the units that their sites gave them, under the names that their
        guests have for them; those of which a broker knows nothing, as their site or guest says.
        """
        named = {one["lease"]: (guest, one) for guest, known in parts.by_role(GUEST) for one in known["entries"]}
        places = {
            one["lease"]: self._places(site, one["on"])
            for site, known in parts.by_role(SITE)
            for one in known["entries"]
        }
        seen: set[str] = set()
        for role in (BROKER, SITE, GUEST):
            entries = [(name, one) for name, known in parts.by_role(role) for one in known["entries"]]
            for name, one in entries:
                if one["lease"] not in seen:
                    told = self._told(one, one["holder"] or name, named.get(one["lease"]))
                    self._add_lease(one, told, places.get(one["lease"], {}))
            seen.update(one["lease"] for _, one in entries)

    def _told(
        self, entry: Mapping[str, Any], project: str, named: tuple[str, Mapping[str, Any]] | None
    ) -> dict[str, str]:
        """What is said of a lease to who may look into its project; nothing to others."""
        if not self._caller.may(project, VIEWER):
            return {}
        of = named[1] if named is not None and named[0] == project else entry
        return {"lease": entry["lease"], "project": project, "name": of["name"], "state": of["state"]}

    def _add_lease(self, entry: Mapping[str, Any], told: dict[str, str], on: Mapping[int, list[int]]) -> None:
        for one in entry["classes"]:
            row = self._numbers.get((entry["site"], entry["type"], one["class"]))
            if row is not None:
                self._add(entry, row, one["units"], on=on.get(row, []), **told)
        if not entry["classes"] and told:  # what waits to be granted is of no class, and concerns nobody else
            self._add(entry, -1, entry["units"], type=entry["type"], site=entry["site"], **told)

    def _places(self, site: str, names: Iterable[str]) -> dict[int, list[int]]:
        """Where units are, by row."""
        found: dict[int, list[int]] = {}
        for name in names:
            if (site, name) in self._units:
                row, place = self._units[site, name]
                found.setdefault(row, []).append(place)
        return found

    def _add(self, term: Mapping[str, Any], row: int, units: int, **others: Any) -> None:
        start, end, on = term["start"], term["end"], others.get("on", ())
        if self._params.project not in ("", others.get("project", "")) or not Term(start, end).overlaps(self._term):
            return
        if row < 0 and (self._params.class_ or self._params.unit):
            return
        if self._params.unit and on and (row, self._unit_place(row)) not in [(row, place) for place in on]:
            return
        self._bars.append((start, end, {"row": row, "units": units, "kind": "lease", **others}))

    def _unit_place(self, row: int) -> int:
        """Where the unit that is asked for is in a row."""
        return self._units.get((self.rows[row].site, self._params.unit), (row, -1))[1]

    def chosen(self, exact: Duration) -> tuple[list[CalendarBar], int]:
        """As many as are asked for, in order of their starts, and how many are left out: one's own come first, then the
        longest. Their instants are whole multiples of ``exact``.
        """
        most, bars = self._params.limit, self._bars
        if len(bars) > most:
            bars = sorted(bars, key=lambda one: ("lease" not in one[2], one[0] - one[1]))[:most]
        found = [
            CalendarBar(
                start=moment(start // exact * exact), end=moment(max(end, start + exact) // exact * exact), **others
            )
            for start, end, others in sorted(bars, key=lambda one: one[:2])
        ]
        return found, len(self._bars) - len(found)


def added_up(several: Sequence[list[list[int]]]) -> list[list[int]]:
    """The figures of several brokers, or chains, for the same units: number of a stretch, there, booked, free."""
    if len(several) < 2:
        return several[0] if several else []
    at = {number for steps in several for number, *_ in steps}
    known, places, found = [[0, 0, 0] for _ in several], [0] * len(several), []
    for number in sorted(at):
        for which, steps in enumerate(several):
            while places[which] < len(steps) and steps[places[which]][0] <= number:
                known[which] = steps[places[which]][1:]
                places[which] += 1
        found.append([number, *map(sum, zip(*known, strict=True))])
    return found


# -- types and prices --------------------------------------------------------------------------------------------------


@route("GET", "/types")
async def list_types(call: Call) -> UnitTypes:
    """List the types that the deployment's brokers have, by site and class: what units have, and how many are free."""
    check_may_look(call)
    now = call.door.clock()
    asked = {"start": now, "end": now + SECOND, "step": SECOND, "entries": False}
    found: dict[str, dict[RowKey, TypeClass]] = {}
    told, away = await call.door.each(call.door.of_role(BROKER), lambda broker: broker.query("calendar", **asked))
    for answer in told.values():
        for one in answer["classes"]:
            key = (one["site"], one["type"], one["class"])
            _, there, _, free = one["steps"][0]
            shown = found.setdefault(one["type"], {}).setdefault(
                key, TypeClass(site=key[0], class_=key[2], properties=one["properties"], there=0, free=0)
            )
            shown.there, shown.free = shown.there + there, shown.free + max(0, free)
    items = [UnitType(type=type_, classes=[of[key] for key in sorted(of)]) for type_, of in sorted(found.items())]
    return UnitTypes(items=items, away=list(away))


class PricesOf(Struct, forbid_unknown_fields=True, kw_only=True):
    """Over which period (a day up to now, if it is not said), of which type, and broker."""

    since: At | None = None
    until: At | None = None
    type: str = ""
    broker: str = ""


@route("GET", "/prices")
async def list_prices(call: Call, params: PricesOf) -> UnitPrices:
    """List what a unit of each type has cost in a billing period, and from when on: where a broker has a market."""
    check_may_look(call)
    until = call.door.clock() if params.until is None else instant(params.until) or 0
    since = until - DAY if params.since is None else instant(params.since) or 0
    check_period(since, until)
    brokers = [call.door.actor(params.broker, BROKER)] if params.broker else call.door.of_role(BROKER)
    items = []
    found, away = await call.door.each(brokers, lambda broker: broker.request("history", PRICE, {}))
    for name, history in found.items():
        for one in prices_of(history, Term(since, until)):
            if params.type in ("", one["type"]):
                period = format_duration(one["period_ms"])
                told = {"type": one["type"], "at": moment(one["at"]), "price": one["price"], "period": period}
                items.append(UnitPrice(broker=name, **told))
    return UnitPrices(items=items, away=list(away))
