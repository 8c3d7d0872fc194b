"""What keeps an actor of a deploy file from running well on this host, looked at before it is started.

Nothing is left that was not there, but what starting a daemon would make anyway: folders are looked at, ports are bound
for a moment, and drivers say what they lack (:func:`leasekit.drivers.registry.examine`).
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

import attrs
import trio

from leasekit.config.deployment import ActorSpec, Deployment
from leasekit.config.tables import DriverSpec
from leasekit.core.drivers import Finding
from leasekit.core.settings import SettingsError
from leasekit.drivers.examining import free_port, room
from leasekit.drivers.registry import examine as examine_driver
from leasekit.runtime.client import ControlClient, ControlError
from leasekit.runtime.sockets import parse_endpoint

ROOM_MIN: Final = 256 * 2**20
"""Bytes that an actor's database and logs should have."""
EXAMINE_WITHIN: Final = 300
"""Seconds that a driver has to look around."""


@attrs.frozen
class Diagnosis:
    """One finding, and whose it is: an actor, or ``actor.driver``."""

    where: str
    finding: Finding


async def diagnose(deployment: Deployment, name: str) -> list[Diagnosis]:
    """All findings about one actor of a deployment, itself first, then its drivers."""
    spec = deployment.actors[name]
    running = await trio.to_thread.run_sync(_runs, spec.control)
    found = [Diagnosis(name, finding) for finding in _actor(deployment, spec, running)]
    for entry in spec.drivers.values():
        found += [Diagnosis(f"{name}.{entry.name}", finding) async for finding in _driver(deployment, entry)]
    return found


def _actor(deployment: Deployment, spec: ActorSpec, running: bool) -> Iterator[Finding]:
    if running:
        yield Finding("daemon", "ok", "runs, and answers")
    yield _folder(deployment.state)
    yield _key(spec.key, deployment.create_keys)
    if spec.store is not None and spec.store.exists():
        yield _store(spec.store)
    if not running:
        for address in spec.listen:
            endpoint = parse_endpoint(address)
            if not endpoint.path:
                yield free_port(f"port {endpoint.port}", endpoint.host, endpoint.port)


def _runs(control: Path) -> bool:
    try:
        with ControlClient(control):
            return True
    except ControlError:
        return False


def _folder(folder: Path) -> Finding:
    there = next(path for path in (folder, *folder.parents) if path.exists())
    return room("state folder", there, ROOM_MIN)


def _key(path: Path, may_be_made: bool) -> Finding:
    # What is wrong with a key that is there, the deploy file's own check has told.
    if path.exists():
        return Finding("key", "ok", f"{path}, for its owner only")
    if may_be_made:
        return Finding("key", "ok", f"{path} is made at the first start")
    return Finding("key", "missing", f"there is no {path}", f"leasekit keys new {path}")


def _store(path: Path) -> Finding:
    advice = "put a sound database there, or move it out of the way"
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as database:
            said = str(database.execute("PRAGMA quick_check(1)").fetchone()[0])
    except sqlite3.Error as error:
        return Finding("database", "missing", f"{path}: {error}", advice)
    if said != "ok":
        return Finding("database", "missing", f"{path}: {said}", advice)
    return Finding("database", "ok", f"{path} is sound")


async def _driver(deployment: Deployment, entry: DriverSpec) -> AsyncIterator[Finding]:
    with trio.move_on_after(EXAMINE_WITHIN) as scope:
        try:
            for finding in await examine_driver(entry.kind, entry.settings, entry.where, base=deployment.state):
                yield finding
        except SettingsError as error:
            for line in error.errors:
                yield Finding("settings", "missing", line, "correct the deploy file")
    if scope.cancelled_caught:
        yield Finding(
            "driver", "missing", f"has not looked around within {EXAMINE_WITHIN} s", "see the host's own logs"
        )
