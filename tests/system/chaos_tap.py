"""A daemon as it is in production, but for a tap at each of the three places where its actor meets the world.

The tap writes to a journal what reached the actor (before its effects are durable), what left it (after that) and with
what it came back from its store. It changes nothing, and holds nothing up but for the time of a write to a file.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sqlite3
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final, NamedTuple

import attrs
from runtime.runtime_processes import DaemonProcess
from system.chaos_journal import Journal

from leasekit.config.identities import prepare
from leasekit.config.load import load
from leasekit.core.errors import LeasekitError
from leasekit.core.protocol.codec import encode_message
from leasekit.core.schema import LOG, Change, Row, Store
from leasekit.core.steps import Action, ActionDone, ActorLike, Input, Ready, Received, Tick
from leasekit.runtime.daemon import Job, make_job, run_jobs

TAKEN, OUT, RESTORED = "taken", "out", "restored"
CONTEXT = multiprocessing.get_context("forkserver")
"""The one that other tests start daemons from, too: it has imported everything."""


class Taken(NamedTuple):
    """What an actor took in at ``now``: encoded messages by sender, and ends of actions, in order."""

    now: int
    inputs: list[tuple[str, bytes] | ActionDone]


class Out(NamedTuple):
    """What left an actor at ``now``: ``rows`` lines of its log are durable, messages sent, actions started."""

    now: int
    rows: int
    messages: list[tuple[str, bytes]]
    actions: list[Action]


class Restored(NamedTuple):
    """An actor was made from its store, whose log had ``rows`` lines; ``leases`` has what checkers look at, ``units``
    the names of a site's units by type.
    """

    rows: int
    leases: dict[str, dict[str, Any]]
    units: dict[str, list[str]]


LEASE_FIELDS: Final = ("state", "pending", "update", "ended", "units")


class TappedActor:
    """An actor whose ``step``, ``ready`` and ``restore`` are written down."""

    def __init__(self, actor: ActorLike, tap: Tap) -> None:
        self._actor, self._tap = actor, tap
        self._inputs: list[tuple[str, bytes] | ActionDone] = []
        self._now = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._actor, name)

    def step(self, input: Input) -> None:
        """As the actor's."""
        if isinstance(input, Tick):
            self._now = max(self._now, input.now)
        elif isinstance(input, Received):
            self._inputs.append((input.peer, encode_message(input.message)))
        elif isinstance(input, ActionDone):
            self._inputs.append(input._replace(properties={}))
        self._actor.step(input)

    def ready(self) -> Ready | None:
        """As the actor's: what it took is written down now, what it wants done when its changes are durable."""
        ready = self._actor.ready()
        if ready is None:
            return None
        if self._inputs:
            self._tap.journal.write(TAKEN, Taken(self._now, self._inputs))
            self._inputs = []
        out = Out(
            self._now,
            sum(change.table == LOG for change in ready.changes),
            [(peer, encode_message(message)) for peer, message in ready.messages],
            [a._replace(properties={}, configuration=dict(a.configuration)) for a in ready.actions],
        )
        if ready.changes:
            self._tap.waits = out
        else:
            self._tap.journal.write(OUT, out)
        return ready

    def restore(self, tables: Mapping[str, Sequence[Row]]) -> None:
        """As the actor's."""
        self._actor.restore(tables)
        leases = self._actor.leases  # type: ignore[attr-defined]
        kept = {id_: {f: getattr(lease, f, None) for f in LEASE_FIELDS} for id_, lease in leases.items()}
        for fields in kept.values():
            fields["units"] = list(fields["units"] or ())
        units: dict[str, list[str]] = {}
        for group in getattr(self._actor.settings, "inventory", ()):  # type: ignore[attr-defined]
            units.setdefault(group.type, []).extend(group.names)
        self._tap.journal.write(RESTORED, Restored(self._tap.rows_at_start, kept, units))


class TappedStore:
    """A store that has it written down when what an actor wants done may be done."""

    def __init__(self, store: Store, tap: Tap) -> None:
        self._store, self._tap = store, tap

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def commit(self, changes: Sequence[Change]) -> None:
        """As the store's."""
        self._store.commit(changes)
        out, self._tap.waits = self._tap.waits, None
        if out is not None:
            self._tap.journal.write(OUT, out)


class Tap:
    """What the tapped parts of one daemon share."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.waits: Out | None = None
        self.rows_at_start = 0

    def applied(self, job: Job, store: Path) -> Job:
        """The job, tapped; ``store`` is its database."""

        def open_store() -> Store:
            opened = job.open_store()
            self.rows_at_start = rows_of_log(store)
            return TappedStore(opened, self)

        return attrs.evolve(job, make=lambda: TappedActor(job.make(), self), open_store=open_store)


def rows_of_log(path: Path) -> int:
    """How many lines the transition log in an SQLite store has."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        return int(connection.execute("SELECT coalesce(max(seq), 0) FROM log").fetchone()[0])


def main(file: Path, state: Path, name: str, journals: Path, ready: Connection, errors: Path) -> None:
    """What a child does: all that it says goes to ``errors``."""
    descriptor = os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    sys.stdout = os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", closefd=False)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        deployment = load(file, state)
        store = deployment.actors[name].store
        assert store is not None, "chaos is for SQLite"
        job = make_job(deployment, name, prepare(deployment, [name], None))
        status = run_jobs([Tap(Journal(journals, name)).applied(job, store)], ready_fd=ready.fileno())
    except LeasekitError as error:
        print(f"leasekit: {error}", file=sys.stderr)
        status = 1
    sys.stderr.flush()
    os._exit(status)


class TappedProcess(DaemonProcess):
    """One process that runs the actor ``name`` of a deploy file, with a tap."""

    def __init__(self, file: Path, state: Path, name: str, journals: Path) -> None:
        self.errors = state / f"{name}.stderr"
        self._count = 1
        self._ready, ready = CONTEXT.Pipe(duplex=False)
        arguments = (file, state, name, journals, ready, self.errors)
        self.process = CONTEXT.Process(target=main, args=arguments, daemon=True)
        self.process.start()
        ready.close()
