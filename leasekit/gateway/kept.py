"""What a gateway keeps: things of one kind by their ids, each a row of a table of its store."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import msgspec

from leasekit.core.schema import TABLES, Change, Row
from leasekit.gateway.callers import MANAGER, VIEWER, Caller
from leasekit.gateway.problems import not_found

T = TypeVar("T")


class Kept(dict[str, T]):
    """Things by id, oldest first. Each change is returned, to be committed before it is told. A ``kind`` that has no
    rows, and no table, of its own is kept as JSON, beside the columns of a ``table``.
    """

    def __init__(self, kind: type[T], table: str = "") -> None:
        super().__init__()
        self._table: str = table or getattr(kind, "table", "")
        self._kind = kind

    def restore(self, tables: Mapping[str, Iterable[Row]]) -> None:
        """Take up what the store has kept, and nothing else."""
        self.clear()
        kind: Any = self._kind
        read = getattr(kind, "from_row", lambda row: msgspec.json.decode(row[-1], type=kind))
        found = [(row[0], read(row)) for row in tables.get(self._table, ())]
        self.update(sorted(found, key=lambda one: getattr(one[1], "created", 0)))

    def put(self, one: Any) -> Change:
        """One more, or another one in its place."""
        *columns, _ = TABLES[self._table].columns
        own = hasattr(one, "row")
        row = one.row() if own else (*(getattr(one, name) for name in columns), msgspec.json.encode(one))
        self[row[0]] = one
        return Change(self._table, row[0], row)

    def drop(self, *ids: str) -> list[Change]:
        """Have these be there no more."""
        for id_ in ids:
            self.pop(id_, None)
        return [Change(self._table, id_, None) for id_ in ids]

    def of(self, project: str) -> list[T]:
        """Those of a project."""
        return [one for one in self.values() if getattr(one, "project", None) == project]

    def seen(self, caller: Caller, project: str) -> list[T]:
        """Those of a project that are a caller's; a manager sees everybody's."""
        return [one for one in self.of(project) if is_theirs(caller, one)]

    def sees(self, caller: Caller, id_: str) -> bool:
        """Whether there is one of that id, in a project into which a caller may look, that is theirs."""
        found: Any = self.get(id_)
        return found is not None and caller.may(found.project, VIEWER) and is_theirs(caller, found)

    def theirs(self, caller: Caller, id_: str, noun: str) -> T:
        """The one that a caller sees. Raises :class:`ProblemError`."""
        if not self.sees(caller, id_):
            raise not_found(noun, id_)
        return self[id_]


def is_theirs(caller: Caller, one: Any) -> bool:
    """Whether a thing of a project is the caller's own, or the caller is a manager of the project."""
    return bool(one.caller == caller.name or caller.may(one.project, MANAGER))
