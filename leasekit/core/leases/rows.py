"""How a record becomes a row of its table, and a record again: by its class alone.

A column holds the record's attribute of the same name, or the one that the class names in ``columns``. All other fields
that are kept are in the row's ``body``, a msgpack array in the order of the class. Columns that are no fields are for
people only. Which fields are kept, and of which types, is the schema: a change needs a migration
(:mod:`leasekit.stores.migrations`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, ClassVar, Final, Self, get_type_hints

import attrs
import msgspec

from leasekit.core.reasons import Reason, read, to_text
from leasekit.core.schema import TABLES, Row

pack_body: Final = msgspec.msgpack.Encoder().encode
unpack_body: Final = msgspec.msgpack.Decoder(tuple[Any, ...]).decode
"""The fields of a body of no record: arrays in them are lists."""


def volatile(default: Any = None, *, factory: Callable[[], Any] | None = None) -> Any:
    """A field that need not survive a crash: after a restart all that is due is due at once."""
    kept = {"volatile": True}
    return attrs.field(default=default if factory is None else attrs.Factory(factory), metadata=kept)


class KeptRecord:
    """A record that a store keeps, an attrs class."""

    __slots__ = ()
    table: ClassVar[str]
    columns: ClassVar[Mapping[str, str]] = {}
    """The attributes (or paths of attributes) of columns that have another name."""

    def row(self) -> Row:
        """Its row."""
        return _layout(type(self)).row(self)

    @classmethod
    def from_row(cls, row: Row) -> Self:
        """The record that was kept as a row."""
        made: Self = _layout(cls).record(row)
        return made


def _same(value: Any) -> Any:
    return value


_COLUMNS: Final[Mapping[Any, tuple[Callable[[Any], Any], Callable[[Any], Any]]]] = {
    bool: (int, bool),
    Reason: (to_text, read),
    Reason | None: (to_text, read),
}
"""What a column holds of a field of such a type, and what the field is made of."""


class Layout:
    """How records of one class become rows."""

    def __init__(self, cls: type[Any]) -> None:
        columns = [*TABLES[cls.table].columns][:-1]
        paths = [cls.columns.get(column, column) for column in columns]
        hints = get_type_hints(cls)
        kept = [field.name for field in attrs.fields(cls) if not field.metadata.get("volatile")]
        self._cls = cls
        self._columns: Callable[[Any], tuple[Any, ...]] = attrgetter(*paths)
        kinds = [bool if column == "live" else hints.get(path) for column, path in zip(columns, paths, strict=True)]
        self._converted = [(at, _COLUMNS[kind][0]) for at, kind in enumerate(kinds) if kind in _COLUMNS]
        self._read = [
            (path, at, _COLUMNS[kinds[at]][1] if kinds[at] in _COLUMNS else _same)
            for at, path in enumerate(paths)
            if path in kept
        ]
        self._names = [name for name in kept if name not in paths]
        values = [attrgetter(name) for name in self._names]
        self._body: Callable[[Any], tuple[Any, ...]] = (
            attrgetter(*self._names) if len(values) > 1 else lambda record: tuple(value(record) for value in values)
        )
        types = tuple(hints[name] for name in self._names)
        self._unpack: Callable[[bytes], tuple[Any, ...]] = msgspec.msgpack.Decoder(
            tuple.__class_getitem__(types)
        ).decode

    def row(self, record: Any) -> Row:
        """The row of a record."""
        body = pack_body(self._body(record))
        if not self._converted:
            return (*self._columns(record), body)
        row = [*self._columns(record), body]
        for at, to_column in self._converted:
            row[at] = to_column(row[at])
        return tuple(row)

    def record(self, row: Row) -> Any:
        """The record of a row."""
        fields = dict(zip(self._names, self._unpack(row[-1]), strict=True))
        for name, at, from_column in self._read:
            fields[name] = from_column(row[at])
        return self._cls(**fields)


_LAYOUTS: Final[dict[type[Any], Layout]] = {}


def _layout(cls: type[Any]) -> Layout:
    layout = _LAYOUTS.get(cls)
    if layout is None:
        layout = _LAYOUTS[cls] = Layout(cls)
    return layout
