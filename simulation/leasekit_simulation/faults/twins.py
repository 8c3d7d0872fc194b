"""The checkers of restarts: a broker or an authority that is made anew from what another one has stored knows and books
what that one does.

It looks at the actors of a run between two events, when all that they know is durable: what was kept in memory only, or
is worked out anew in another way than it came about, shows here, whether or not it does harm later in the run.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs

from leasekit.core.drivers import RESUME, SAVE
from leasekit.core.leases.plans import HOLDING
from leasekit.core.schema import Row
from leasekit.core.steps import Action, Tick
from leasekit.core.time import INSTANT_MAX, Instant, Term
from leasekit.core.timetable import Timetable
from leasekit_simulation.faults.checkers import Listening, must


def check_twin(name: str, actor: Any, twin: Any) -> None:
    """Raises ``Violated`` where ``twin``, restored from the store of ``actor``, differs from it."""
    known_again = _promised(twin)
    for kind, ours in _promised(actor).items():
        its = known_again[kind]
        for id_, record in {**ours, **its}.items():
            known = id_ in ours and (id_ in its or _is_passing(record))
            must(known, f"{name}: {kind} {id_} is {'not ' * (id_ not in its)}there after a restart")
            same = id_ not in its or _row(ours[id_]) == _row(its[id_])
            must(same, f"{name}: {kind} {id_} is {ours[id_]}, after a restart {its.get(id_)}")
    twin.step(Tick(actor.now))
    ours, its = (one.query("status", {})["waiting"] for one in (actor, twin))
    must(its >= ours, f"{name}: {ours} wait for its mapper, after a restart {its}")
    tables = dict(_tables(twin))
    for what, table in _tables(actor):
        must(what in tables, f"{name}: there is no timetable of {what} after a restart")
        _check_tables(f"{name}: {what}", table, tables[what], actor)


class RedoneChecker(Listening):
    """A driver that is told again to do something, as after a restart, is told the same."""

    def __init__(self) -> None:
        super().__init__()
        self._told: dict[tuple[str, str], Action] = {}

    def started(self, at: Instant, actor: str, action: Action) -> None:
        """Compare an action with the last one of its unit, if that had the same number."""
        last = self._told.get((actor, action.unit))
        self._told[actor, action.unit] = action
        if last is None or last.number != action.number:
            return
        for key in (SAVE, RESUME):
            was, now = last.properties.get(key), action.properties.get(key)
            must(was == now, f"{actor}: {action.op} of {action.unit} had {key} = {was}, when it is done again {now}")


def _promised(actor: Any) -> dict[str, dict[str, Any]]:
    """What a broker or an authority has promised, by kind."""
    holds = {"holds": actor.holds.held} if actor.role == "broker" else {}
    return {"leases": actor.leases, "given": actor.issued.given, **holds}


def _is_passing(record: Any) -> bool:
    """Whether a restart may forget it: it is over, or nobody has had an answer yet."""
    return getattr(record, "ended", -1) >= 0 or record.state == HOLDING


def _row(record: Any) -> Row:
    """All that is durable of it but what was acknowledged: that is not written for its own sake, but told again."""
    quiet = attrs.evolve(record, unacked=[]) if hasattr(record, "unacked") else record
    row: Row = quiet.row()
    return row


def _tables(actor: Any) -> Iterator[tuple[str, Timetable]]:
    if actor.role == "broker":
        for type_ in actor.book.types():
            for source in actor.book.of_type(type_):
                yield source.id, actor.book.table(source.id)
    else:
        for type_ in {group.type: None for group in actor.settings.inventory}:
            yield type_, actor.calendars.of(type_)


def _check_tables(what: str, ours: Timetable, its: Timetable, actor: Any) -> None:
    start = max(actor.now, ours.horizon, its.horizon)
    held, kept = _held(ours, start), _held(its, start)
    passing = {f"hold {id_}" for id_, hold in _promised(actor).get("holds", {}).items() if hold.state == HOLDING}
    for key in {**held, **kept}:
        if key.rpartition("/")[0] in passing:
            return
        told = f"{what} has {held.get(key)} reserved for {key}, after a restart {kept.get(key)}"
        must(held.get(key) == kept.get(key), told)
    rest = Term(start, INSTANT_MAX)
    free, its_free = list(ours.steps(rest)), list(its.steps(rest))
    must(free == its_free, f"{what} has {free} free, after a restart {its_free}")


def _held(table: Timetable, start: Instant) -> dict[str, tuple[int, Instant, Instant]]:
    found: dict[str, tuple[int, Instant, Instant]] = {}
    for key in table:
        held = table.get(key)
        if held is not None and held[1].end > start:
            name = key.hex() if isinstance(key, bytes) else str(key)
            found[name] = (held[0], max(held[1].start, start), held[1].end)
    return found
