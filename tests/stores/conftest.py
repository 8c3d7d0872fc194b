"""The stores under contract: each harness opens its store, and opens it again as a new process would."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import pytest

from leasekit.core.schema import Store
from leasekit.stores.memory import MemoryStore
from leasekit.stores.sqlite import SqliteStore


class StoreHarness(Protocol):
    """How the contract tests come by a store, and by what is left of it after its actor ended."""

    store: Store

    def reopen(self) -> Store:
        """The store as an actor finds it after a restart."""
        ...

    def close(self) -> None: ...


class MemoryHarness:
    """A memory store outlives its actor as the same instance."""

    def __init__(self, directory: Path) -> None:
        self.store: Store = MemoryStore()

    def reopen(self) -> Store:
        return self.store

    def close(self) -> None:
        self.store.close()


class SqliteHarness:
    """A SQLite store is closed, and opened from its file."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "state.db"
        self.store: Store = SqliteStore(self._path)

    def reopen(self) -> Store:
        self.store.close()
        self.store = SqliteStore(self._path)
        return self.store

    def close(self) -> None:
        self.store.close()


HARNESSES: dict[str, Callable[[Path], StoreHarness]] = {"memory": MemoryHarness, "sqlite": SqliteHarness}
"""Every store that must keep the contract; a further one needs its line here and nothing else."""


@pytest.fixture(params=sorted(HARNESSES))
def harness(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StoreHarness]:
    made = HARNESSES[request.param](tmp_path)
    yield made
    made.close()


@pytest.fixture(params=sorted(HARNESSES))
def make_harness(request: pytest.FixtureRequest) -> Callable[[Path], StoreHarness]:
    return HARNESSES[request.param]
