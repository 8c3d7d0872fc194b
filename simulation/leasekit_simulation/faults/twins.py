"""The checkers of what actors keep: a broker or an authority that is made anew from what another one has stored knows
and books what that one does; and when all leases are over, no part of an actor keeps anything of them.

The first look at the actors of a run between two events, when all that they know is durable: what was kept in memory
only, or is worked out anew in another way than it came about, shows here, whether or not it does harm later in the run.
The last counts what is in all collections of all parts of an actor, so that a part that is new, or a collection, is
looked at without being named. What may grow all the same is named here, with the reason.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, Final

import attrs

from leasekit.core.drivers import RESUME, SAVE
from leasekit.core.leases.plans import HOLDING
from leasekit.core.schema import Row
from leasekit.core.steps import Action, Tick
from leasekit.core.time import INSTANT_MAX, Instant, Term
from leasekit.core.timetable import Timetable
from leasekit_simulation.faults.checkers import Listening, must
from leasekit_simulation.parts import attributes, parts_of


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
    due = actor.wake_at()
    passing = due is not None and due <= actor.now  # what waits may end now, as it has at the twin
    must(its >= ours or passing, f"{name}: {ours} wait for its mapper, after a restart {its}")
    tables = dict(_tables(twin))
    for what, table in _tables(actor):
        must(what in tables, f"{name}: there is no timetable of {what} after a restart")
        _check_tables(f"{name}: {what}", table, tables[what], actor)


class RedoneChecker(Listening):
    """A driver that is told again to do something, as after a restart, is told the same."""

    kind = "restarts"

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
    if actor.role == "authority" and any(len(unit.classes) > 1 for unit in actor.units):
        return  # what hosts were counts until a restart finds that nobody claims it any more
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


STAYS: Final[Mapping[str, str]] = {
    "guilty": "as evidence",
    "booked": "claims that were replaced or ended, until the next tidying",
    "owners": "claims of leases, some of which are forgotten",
    "changes": "what an operator has said of units",
    "kinds": "of classes that hosts are of, or were",
    "evidence": "settings bound it",
    "by_digest": "claims of delegations, which are not over",
    "unused": "a number for each issuer, which may be 0",
    "machines": "those that could not be torn down, for the operator",
    "strays": "ids of closes of unknown leases, at most STRAYS_MAX",
    "shown": "what the mapper's last turn was about",
    "reports": "the latest, for the operator",
    "errors": "as reports",
    "timers": "of delegations, and timers that nobody waits for any more, which go with the next ones",
    "unacknowledged": "a hostile broker acknowledges nothing",
    "hosts": "of delegations",
    "taken": "of delegations",
    "given": "of delegations",
    "overrides": "of delegations",
    "waiting_chains": "of delegations",
    "retried": "of delegations",
    "slices": "their guest's operator made them, and removes them",
    **dict.fromkeys(("sources", "tables", "chains", "tickets", "by_type", "pieces"), "of delegations"),
    **dict.fromkeys(("peers", "by_key"), "peers that became known"),
    "tags": "as peers",
    "made_known": "as peers",
    "endorsed": "as peers",
    "endorsements": "as peers",
    "told": "which guests a site's endorsement was sent to: a pair of peers each",
    **dict.fromkeys(("Units._units", "HostNews", "Inventory", "Kinds"), "what an inventory has named at any time"),
    "Book._attributes": "of classes that delegations are of",
    **dict.fromkeys(("profiles", "pages"), "what holders have had, for quotas"),
    "refused_offers": "at most REFUSED_MAX",
    "Reports._heard": "peers that have reported anything",
    "linked": "peers that are connected",
    "Maintenance._out": "units that are out of service",
    "Places.counts": "how often a place was found, and how often not, since the start",
    "Places._loose": "what each host has left, until it changes",
    "Calendars._moved": "types of units",
    "Keyring._own": "the keys that an actor had, which its file names",
    "Market._prices": "of types that were delegated at any time",
}
"""Attributes of parts, without underscores in front, or of one class, that may have more in them than at first."""


def collections(actor: Any) -> Iterator[tuple[str, int]]:
    """Each collection of each part of ``actor``, as ``Class.attribute``, and how much is in it."""
    for part in parts_of(actor):
        for name, value in attributes(part):
            if isinstance(value, dict | list | tuple | set | frozenset | deque):
                yield f"{type(part).__name__}.{name}", _count(value)


def _count(value: Any) -> int:
    """How much is in a collection; of one of collections, how much is in those."""
    held = value.values() if isinstance(value, dict) else value
    return sum(_count(one) if isinstance(one, dict | list | set | deque) else 1 for one in held)


def left_over(actor: Any, at_first: Mapping[str, int]) -> list[str]:
    """Which collections of an actor have more in them than ``at_first``, when it had no lease yet."""
    return [
        f"{where} has {count}, at first it had {at_first.get(where, 0)}"
        for where, count in collections(actor)
        if count > at_first.get(where, 0)
        and not {where, where.partition(".")[0], where.rpartition(".")[2].lstrip("_")} & STAYS.keys()
    ]
