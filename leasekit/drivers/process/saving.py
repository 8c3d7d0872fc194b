"""What the process driver keeps of units that were saved: their directories, moved aside.

A directory moves in one step, so that it is in one place or the other whenever the daemon is killed. Its file
``saved.json`` says under which key it was saved, up to when a unit that goes on from it is ready: before that it is put
back, whatever ends the unit.
"""

from __future__ import annotations

import os
from pathlib import Path

import trio

from leasekit.core.drivers import DriverError
from leasekit.drivers.files import read_table, wipe, write_whole
from leasekit.drivers.names import check_unit_id, one_line
from leasekit.drivers.process.files import UnitFiles


class SavedUnits:
    """The directories that were put aside, in the folder ``root``."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def has(self, key: str) -> bool:
        """Whether anything is kept under a key."""
        return (self._root / key).is_dir()

    async def put(self, key: str, files: UnitFiles) -> str:
        """Put a unit's directory aside; none of its processes may be left. Returns why not, if it can't be."""

        def put() -> None:
            self._root.mkdir(mode=0o700, exist_ok=True)
            write_whole(files.saved, {"key": key})
            _move(files.root, self._root / key)

        try:
            await trio.to_thread.run_sync(put)
        except (OSError, DriverError) as error:
            files.saved.unlink(missing_ok=True)
            return one_line(str(error))
        return ""

    async def take(self, key: str, files: UnitFiles) -> str:
        """Make what is kept under a key the unit's directory, which must not be there. Returns why not, if nothing is
        kept. Raises ``DriverError``.
        """
        kept = UnitFiles(self._root / key)
        if not kept.saved.is_file():
            return "what was saved of it is gone"
        await self._moved(kept.root, files.root)
        for path in (files.pid, files.ready):
            path.unlink(missing_ok=True)
        return ""

    def took(self, files: UnitFiles) -> None:
        """The unit is ready: what it went on from is its own now."""
        files.saved.unlink(missing_ok=True)

    async def put_back(self, files: UnitFiles) -> None:
        """Put aside again what a unit was to go on from, if it is not ready yet. Raises ``DriverError``."""
        table = read_table(files.saved)
        if table is not None:
            await self._moved(files.root, self._root / check_unit_id(str(table.get("key", ""))))

    async def drop(self, key: str) -> None:
        """Throw away what is kept under a key. Raises ``DriverError``."""
        await trio.to_thread.run_sync(wipe, self._root / key)

    async def _moved(self, here: Path, there: Path) -> None:
        try:
            await trio.to_thread.run_sync(_move, here, there)
        except OSError as error:
            raise DriverError(f"can't move {here}: {error.strerror}") from error


def _move(here: Path, there: Path) -> None:
    here.rename(there)
    for folder in {here.parent, there.parent}:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
