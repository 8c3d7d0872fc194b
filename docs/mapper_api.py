"""The page docs/mapper-api.md, from the code: what a mapper may rely on, name by name. ``generate.py`` writes it."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from typing import Final

from leasekit.core import mappers

SECTION: Final = re.compile(r"^# -- (\w+) -+$", re.MULTILINE)
TITLES: Final = {"": "For any role", "broker": "Brokers", "authority": "Authorities", "guest": "Guests"}
HEAD: Final = """\
# What a mapper may rely on

Made by `make docs` from `leasekit/core/mappers.py`.
Version **{version}** (`leasekit.core.mappers.VERSION`).

A mapper relies on `leasekit.core.mappers`, and on what its fields are made of: `Instant`, `Duration` and `Term` of
`leasekit.core.time` (milliseconds; terms are half-open), `Properties` of `leasekit.core.properties` (text to text),
`Timetable` of `leasekit.core.timetable`, `mark` and `marked` of `leasekit.core.reasons` (how instants and terms are
written in a reason, so that people see dates) and `Coded` (a reason that has a code for programs), and for its settings
`leasekit.core.settings`. Everything else is leasekit's own and may change at any time.

The version grows when a mapper that kept to this page may have to be changed: a name or field goes, or means something
else. A field that is added has a default and comes last, a decision that is added is nobody's duty: neither changes the
version.
"""


def page() -> str:
    """The whole page."""
    source = inspect.getsource(mappers)
    starts = [(0, "")] + [(found.start(), found[1]) for found in SECTION.finditer(source)]
    lines = {source.count("\n", 0, start) + 1: name for start, name in starts}
    parts = [HEAD.format(version=mappers.VERSION)]
    current = None
    for node in ast.parse(source).body:
        text = _described(node, source)
        if text is None:
            continue
        section = lines[max(line for line in lines if line <= node.lineno)]
        if section != current:
            parts.append(f"## {TITLES.get(section, section.capitalize())}\n")
            current = section
        parts.append(text)
    return "\n".join(parts)


def _described(node: ast.stmt, source: str) -> str | None:
    """A class or an alias; None for what is neither, or not public."""
    if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
        fields = "\n".join(_members(node, source))
        return f"### `{node.name}`\n\n{_words(ast.get_docstring(node) or '')}\n\n```python\n{fields}\n```\n"
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
        return f"### `{node.target.id}`\n\n```python\n{node.target.id} = {ast.unparse(node.value)}\n```\n"
    return None


def _members(node: ast.ClassDef, source: str) -> Iterator[str]:
    for member in node.body:
        if isinstance(member, ast.AnnAssign):
            yield ast.get_source_segment(source, member) or ""
        elif isinstance(member, ast.FunctionDef):
            returns = ast.unparse(member.returns or ast.Constant(None))
            yield f"def {member.name}({ast.unparse(member.args)}) -> {returns}"


def _words(docstring: str) -> str:
    """Markdown from the markup of a docstring."""
    text = re.sub(r":\w+:`~?([^`]+)`", r"`\1`", docstring).replace("``", "`")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))
