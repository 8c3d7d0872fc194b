"""How commands print: tables and fields for people (coloured on a terminal), one JSON document for programs; and the
files that they read or write.

Names, reasons and logs come from other parties: what a terminal would take for a command is shown as an escape.
"""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import click

from leasekit.config.instants import dated, shown
from leasekit.core.errors import LeasekitError

if TYPE_CHECKING:  # rich is a quarter of the start of a command, and many print no table
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

WIDTH_UNKNOWN: Final = 240
"""The width of tables that don't go to a terminal: nothing is cut there."""

GAP: Final = "  "
"""What stands between columns."""

STYLES: Final[Mapping[str, str]] = {
    "active": "green",
    "joined": "green",
    "held": "green",
    "up": "green",
    "ok": "green",
    "active_ticketed": "green",
    "failed": "red",
    "refused": "red",
    "down": "red",
    "missing": "red",
    "doubtful": "yellow",
    "out": "red",
    "BAD": "bold red",
    "closed": "dim",
    "ended": "dim",
}
"""Colours of the words that say how something is."""

PROSE: Final = frozenset({"detail", "reason", "problem", "refused", "why", "words"})
"""Columns and fields in which actors speak: instants in them are shown as dates."""


def console(*, stderr: bool = False) -> Console:
    """A console for what is printed now; made anew, since tests and shells replace the streams."""
    from rich.console import Console

    made = Console(stderr=stderr, highlight=False, emoji=False, markup=False)
    if not made.is_terminal:
        made.width = WIDTH_UNKNOWN
    return made


def clean(value: Any) -> str:
    """A value as text that is safe on a terminal."""
    text = "" if value is None else str(value)
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def styled(value: Any, name: str = "") -> Text:
    """A value as a table's cell, coloured if it is a state; ``name`` is its column's or field's."""
    from rich.text import Text

    text = _text(value, name)
    return Text(text, style=STYLES.get(text, ""))


def _text(value: Any, name: str) -> str:
    return dated(clean(value)) if name in PROSE else clean(value)


def print_json(value: Any) -> None:
    """One JSON document; bytes become hex."""
    click.echo(dated(json.dumps(value, indent=2, default=_plain)))


def print_json_line(value: Any) -> None:
    """One JSON document on a line of its own, of a stream of them."""
    click.echo(dated(json.dumps(value, default=_plain)))


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    raise TypeError(f"{type(value).__name__} has no JSON")


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, empty: str = "", title: str = "") -> None:
    """A table; a column of numbers has ``>`` before its name, ``empty`` is said where there are no rows."""
    lines = list(rows)
    if not lines:
        note(empty)
        return
    names = [column.removeprefix(">") for column in columns]
    right = [column != name for column, name in zip(columns, names, strict=True)]
    plain = None if title or console().is_terminal else _plain_table(names, right, lines)
    if plain is not None:
        click.echo(plain)
        return
    from rich.table import Table
    from rich.text import Text

    table = Table(
        box=None, pad_edge=False, header_style="bold", title=Text(title) if title else None, title_justify="left"
    )
    for name, to_the_right in zip(names, right, strict=True):
        table.add_column(name, justify="right" if to_the_right else "left", overflow="fold")
    for line in lines:
        table.add_row(*map(styled, line, names))
    _print(table)


def _plain_table(names: Sequence[str], right: Sequence[bool], rows: Iterable[Sequence[Any]]) -> str | None:
    """The table as rich prints it where it is no terminal, in a hundredth of its time: a site may have very many units.
    None where something is too long for a line.
    """
    from rich.cells import cell_len

    lines = [list(names), *([_text(value, name) for value, name in zip(row, names, strict=True)] for row in rows)]
    widths = [max(map(cell_len, column)) for column in zip(*lines, strict=True)]
    if sum(widths) + len(GAP) * (len(widths) - 1) > WIDTH_UNKNOWN:
        return None
    return "\n".join(
        GAP.join(
            f"{' ' * (width - cell_len(cell))}{cell}" if to_the_right else f"{cell}{' ' * (width - cell_len(cell))}"
            for cell, width, to_the_right in zip(line, widths, right, strict=True)
        ).rstrip()
        for line in lines
    )  # fmt: skip


Told: TypeAlias = str | Callable[[Any], object] | tuple[str | Callable[[Any], object], ...]
"""What a person is told: a note, what a function prints of a value, or several of these."""


def report(value: Any, told: Told, *, as_json: bool) -> None:
    """What a command has found or done: a JSON document, or what a person is told of it."""
    if as_json:
        print_json(value)
        return
    for one in told if isinstance(told, tuple) else (told,):
        if isinstance(one, str):
            note(one)
        else:
            one(value)


def listing(
    *columns: str | tuple[str, str | Callable[[Any], Any]], empty: str = ""
) -> Callable[[Iterable[Mapping[str, Any]]], None]:
    """Prints things as a table. A column is a key that things have, or a name with such a key, or with what makes the
    cell of a thing; names and ``empty`` are as in :func:`print_table`.
    """
    named = [(column, column.removeprefix(">")) if isinstance(column, str) else column for column in columns]

    def show(things: Iterable[Mapping[str, Any]]) -> None:
        rows = [[thing.get(cell) if isinstance(cell, str) else cell(thing) for _, cell in named] for thing in things]
        print_table([name for name, _ in named], rows, empty=empty)

    return show


def print_fields(fields: Iterable[tuple[str, Any]]) -> None:
    """Names and values, one a line; those without a value are left out."""
    from rich.table import Table

    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in fields:
        if value not in (None, "", (), [], {}):
            table.add_row(name, styled(value, name))
    _print(table)


def _print(table: Table) -> None:
    """A table, without the blanks that pad its lines where no terminal shows them."""
    where = console()
    if where.is_terminal:
        where.print(table)
        return
    with where.capture() as printed:
        where.print(table)
    click.echo("\n".join(line.rstrip() for line in printed.get().splitlines()))


def print_lines(lines: Iterable[str]) -> None:
    """Lines that others wrote, as they are safe on a terminal."""
    for line in lines:
        click.echo(clean(line))


def printed(line: str) -> Callable[[Any], object]:
    """What a person is told is this line, on standard output."""
    return lambda _: print_lines([line])


def note(text: str) -> None:
    """Something for the person at the terminal, not for a program that reads the output."""
    click.echo(dated(clean(text)), err=True)


def properties_of(thing: Mapping[str, Any]) -> str:
    """The properties of a thing in one line."""
    return pairs(thing["properties"])


def classes_of(thing: Mapping[str, Any]) -> str:
    """How many units of each class a claim counts, in one line; those without attributes have no class to name."""
    return " ".join(f"{one['class'][:8]}:{one['units']}" for one in thing["classes"] if one["class"])


def pairs(properties: Mapping[str, Any]) -> str:
    """Properties in one line; the instant among them as a date."""
    return " ".join(
        f"{key}={shown(int(value)) if key == 'latest_start' and str(value).isdecimal() else value}"
        for key, value in properties.items()
    )


EXIT_PROBLEM: Final = 2
STANDARD_INPUT: Final = "standard input"


def is_standard_input(file: Path | str) -> bool:
    """Whether standard input is meant."""
    return str(file) == "-"


class WrongInputError(LeasekitError):
    """What is wrong with a problem file, in one line; ends the process with its ``status``."""

    status = EXIT_PROBLEM


def check_out_file(out: Path, source: Path) -> None:
    """See before the work that ``out`` can be written, and that it is not ``source``, which would be lost.

    What is there is left as it is. Raises ``click.UsageError`` for the source, ``LeasekitError`` for what can't be
    written.
    """
    if not out.exists():
        found = "" if out.parent.is_dir() else f"no folder {out.parent}"
    elif _is_read(out, source):
        raise click.UsageError(f"--out: found {out}, the file that is read, expected another one")
    else:
        found = "a folder" if out.is_dir() else "" if os.access(out, os.W_OK) else "no permission to write to it"
    if found:
        raise LeasekitError(f"--out: {out}: found {found}, expected a file that can be written")


def _is_read(out: Path, source: Path) -> bool:
    """Whether the two are one file, whatever they are called."""
    try:
        read = os.fstat(sys.stdin.fileno()) if is_standard_input(source) else source.stat()
    except (OSError, ValueError):  # no such file, or nothing that has a number
        return False
    return stat.S_ISREG(read.st_mode) and os.path.samestat(read, out.stat())
