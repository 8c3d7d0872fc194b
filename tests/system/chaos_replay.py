"""The fault simulator's checkers, fed with what real daemons did.

Messages, actions and the ends of actions come from the daemons' journals; transitions from their stores, in which every
one that the journal knows to be durable must be found. What was durable when a daemon was killed before anything
followed from it is in the store alone: it counts as committed, and as not sent.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from system.chaos_journal import Record, read
from system.chaos_tap import OUT, RESTORED, TAKEN, Out, Restored, Taken
from system.chaos_world import BROKERS, GUESTS, ROLES, SITES, UNITS, World

from leasekit.core.protocol.codec import UnknownKind, decode_message
from leasekit.core.protocol.messages import Message
from leasekit.core.schema import LOG_COLUMNS, Row
from leasekit.core.steps import ActionDone
from leasekit.core.time import SECOND, Instant
from leasekit_simulation.faults.all_checkers import AGAIN, Checkers
from leasekit_simulation.faults.checkers import must

Change = Callable[[Iterator[Record]], Iterator[Record]]
RETENTION = 20 * SECOND


class Replay:
    """What happened, record by record, before the eyes of the checkers. ``counts`` says how much of what there was.

    Where an actor's latest word on a lease was lost with the actor, and comes again, what was free when it was decided
    is no news any more. ``change`` makes another history of what happened, ``lose`` takes so many lines from the end of
    each store's log.
    """

    def __init__(self, world: World, change: Change = iter, lose: int = 0) -> None:
        self.clocks: dict[str, Instant] = dict.fromkeys(ROLES, 0)
        self._latest: Instant = 0
        self._late: set[tuple[str, str]] = set()
        self.checkers = Checkers(
            ROLES.__getitem__,
            self.clocks.__getitem__,
            lambda name: (world.key(name),),
            now=lambda: self._latest,
            comes_late=lambda sender, lease: AGAIN if (sender, lease) in self._late else "",
            sites={site: {"vm": UNITS} for site in SITES},
            guests=frozenset(GUESTS),
            fcfs=frozenset(BROKERS),
            first_fit=frozenset(SITES),
            retention=RETENTION,
        )
        self.counts: Counter[str] = Counter()
        self._folder = world.journals
        self._change = change
        self._rows = {name: rows_of(world.state / f"{name}.db") for name in ROLES}
        for rows in self._rows.values() if lose else ():
            del rows[-lose:]
        self._durable = dict.fromkeys(ROLES, 0)
        self._states: set[tuple[str, str, str]] = set()
        self._made: set[str] = set()
        self._hear: Mapping[str, Callable[[str, Any], None]] = {
            TAKEN: self._taken, OUT: self._out, RESTORED: self._restored, "told": self._told, "seen": self._seen,
            "may_close": lambda _, lease: self.checkers.guests.free_to_close.add(lease), "closed": self._nothing,
        }  # fmt: skip

    def run(self) -> None:
        """Hear of everything. Raises ``Violated``, or ``AssertionError`` where a store has lost what was durable."""
        for record in self._change(read(self._folder)):
            self._hear[record.what](record.who, record.contents)
        for name, rows in self._rows.items():
            done = self._durable[name]
            assert done == len(rows), f"{name} has {len(rows)} lines in its log, {done} were made durable"
        for guest in GUESTS:
            known = {row[1] for row in self._rows[guest]}
            lost = self.checkers.memory.missing(guest, known.__contains__)
            assert not lost, f"{guest} has acknowledged {lost}, and knows nothing of it"

    def _now(self, actor: str, now: Instant) -> Instant:
        self.clocks[actor] = max(now, self.clocks[actor])
        self._latest = max(self._latest, now)
        return self._latest

    def _taken(self, actor: str, taken: Taken) -> None:
        at = self._now(actor, taken.now)
        for entry in taken.inputs:
            for checker in self.checkers.all:
                if isinstance(entry, ActionDone):
                    checker.ended(at, actor, entry)
                else:
                    checker.received(at, entry[0], actor, decoded(entry[1]))
        self.counts["received"] += len(taken.inputs)

    def _out(self, actor: str, out: Out) -> None:
        at = self._now(actor, out.now)
        self._committed(at, actor, self._durable[actor] + out.rows)
        self.counts["messages"] += len(out.messages)
        self.counts["actions"] += len(out.actions)
        for receiver, encoded in out.messages:
            message = decoded(encoded)
            for checker in self.checkers.all:
                checker.sent(at, actor, receiver, message, "sent")
        for action in out.actions:
            for checker in self.checkers.all:
                checker.started(at, actor, action)

    def _committed(self, at: Instant, actor: str, upto: int) -> None:
        begin = self._durable[actor]
        rows = self._rows[actor][begin:upto]
        must(begin + len(rows) == upto, f"{actor} had {upto} lines in its log, now there are {begin + len(rows)}")
        self._durable[actor] = upto
        self.counts["transitions"] += len(rows)
        self._states.update((actor, row[1], row[4].partition("/")[0]) for row in rows)
        for checker in self.checkers.all if rows else ():
            checker.committed(at, actor, rows)

    def _restored(self, actor: str, restored: Restored) -> None:
        at = self._latest
        begin = self._durable[actor]
        must(restored.rows >= begin, f"{actor} came back with {restored.rows} lines in its log, it had {begin}")
        if restored.rows > begin:
            self.counts["killed between commit and send"] += 1
            self._late.update((actor, row[1]) for row in self._rows[actor][begin : restored.rows])
        self._committed(at, actor, restored.rows)
        if actor not in self._made:
            self._made.add(actor)
            return
        self.counts["restarts"] += 1
        leases = {id_: SimpleNamespace(**fields) for id_, fields in restored.leases.items()}
        inventory = [SimpleNamespace(type=type_, names=names) for type_, names in restored.units.items()]
        for checker in self.checkers.all:
            checker.restarted(at, actor, SimpleNamespace(leases=leases, settings=SimpleNamespace(inventory=inventory)))

    def _told(self, _: str, told: tuple[str, str]) -> None:
        self.checkers.memory.told(*told)
        self.checkers.guests.watched.add(told[1])

    def _seen(self, _: str, seen: tuple[str, str, str]) -> None:
        """What a guest shows is durable: its log must have said so before."""
        must(seen in self._states, f"{seen[0]} showed {seen[1]} as {seen[2]}, which its log did not have yet")

    def _nothing(self, _: str, __: Any) -> None:
        """The end looks at it."""


def decoded(data: bytes) -> Message:
    """A message of a journal."""
    message = decode_message(data)
    assert not isinstance(message, UnknownKind), "what encodes it knows it"
    return message


def rows_of(path: Path) -> list[Row]:
    """The transition log of a store, as checkers want it."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        return connection.execute(f"SELECT {', '.join(LOG_COLUMNS)} FROM log ORDER BY seq").fetchall()
