"""The page docs/mapper-api.md, from the code: what a mapper may rely on, name by name. ``generate.py`` writes it."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Final

from leasekit.core import fitting, mappers, requests, signals, time, timetable
from leasekit.core.leases import authority, service_manager

SECTION: Final = re.compile(r"^# -- (\w+) -+$", re.MULTILINE)
TITLES: Final = {"": "For any role", "broker": "Brokers", "authority": "Authorities", "guest": "Guests"}
HEAD: Final = """\
# What a mapper may rely on

Made by `make docs` from `leasekit/core/mappers.py`.
Version **{version}** (`leasekit.core.mappers.VERSION`).

A mapper relies on `leasekit.core.mappers`, and on what its fields are made of: `Instant`, `Duration` and `Term` of
`leasekit.core.time` (milliseconds; terms are half-open), `Properties` of `leasekit.core.properties` (text to text),
`Timetable` of `leasekit.core.timetable` (all [below](#what-fields-are-made-of)), `mark` and `marked` of
`leasekit.core.reasons` (how instants and terms are written in a reason, so that people see dates) and `Coded` (a reason
that has a code for programs), for its settings on `leasekit.core.settings`, and a broker's on the
[helpers](#helpers-of-brokers-mappers) of `leasekit.core.fitting`. Everything else is leasekit's own and may change at
any time.

The version grows when a mapper that kept to this page may have to be changed: a name or field goes, or means something
else. A field that is added has a default and comes last, a decision that is added is nobody's duty: neither changes the
version.
"""

PARTS: Final[Mapping[type, Sequence[str]]] = {
    time.Term: ("start", "end", "length", "contains", "overlaps"),
    timetable.Timetable: (
        "available", "earliest", "free_at", "capacity_at", "reserved_at", "reserve", "change", "release",
    ),
    signals.SignalSoFar: ("value", "mean", "peak", "sampled", "first", "end", "covers"),
    requests.ReplayedJob: requests.ReplayedJob._fields,
    signals.Signal: ("value", "mean", "peak", "sampled", "first", "end", "covers"),
}  # fmt: skip
"""What a mapper may call of what fields are made of."""
TAIL: Final = Path(__file__).parent / "mapper-api.in"
"""What is written by hand, and comes last."""


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
    return "\n".join([*parts, *_appendix()])


def _appendix() -> Iterator[str]:
    """What is beside the names of the module: helpers, what fields are made of, what a request says, states."""
    yield f"## Helpers of brokers' mappers\n\n{_words(inspect.getdoc(fitting) or '')}\n"
    yield from _functions(fitting)
    yield "## What fields are made of\n"
    for cls, names in PARTS.items():
        yield f"### `{cls.__name__}`\n\n{_words(inspect.getdoc(cls) or '')}\n"
        yield f"```python\n{chr(10).join(_signatures(cls, names))}\n```\n"
    table = re.sub(r":\w+:`~?([^`]+)`", r"\1", (inspect.getdoc(requests) or "").split("\n\n", 1)[1]).replace("``", "")
    yield f"## What a request can say\n\nIts `properties`:\n\n```text\n{table}\n```\n"
    guest, site = (", ".join(f"`{state}`" for state in _states(module)) for module in (service_manager, authority))
    yield f"## States\n\n`LeaseView.state`: {guest}.\n\n`UnitView.state`: {site}.\n"
    yield TAIL.read_text(encoding="utf-8")


def _functions(module: ModuleType) -> Iterator[str]:
    for node in ast.parse(inspect.getsource(module)).body:
        if isinstance(node, ast.FunctionDef):
            words, returns = _words(ast.get_docstring(node) or ""), ast.unparse(node.returns or ast.Constant(None))
            signature = f"def {node.name}({ast.unparse(node.args)}) -> {returns}"
            yield f"### `{node.name}`\n\n{words}\n\n```python\n{signature}\n```\n"


def _signatures(cls: type, names: Sequence[str]) -> Iterator[str]:
    for name in names:
        found = inspect.getattr_static(cls, name)
        words = " ".join((inspect.getdoc(found) or "").split("\n\n")[0].replace("``", "").split())
        called = f"({', '.join(_parameters(found))})" if inspect.isfunction(found) else ""
        yield f"{name}{called}" if words.startswith("Alias for field") else f"{name}{called}  # {words}"


def _parameters(function: FunctionType) -> Iterator[str]:
    for name, one in inspect.signature(function).parameters.items():
        if name != "self":
            yield str(one).replace("'", "")


def _states(module: ModuleType) -> list[str]:
    """The states of a guest's lease, or of a site's units, as their module has them."""
    if module is service_manager:
        own = service_manager
        return [own.NASCENT, own.TICKETED, own.ACTIVE, own.ACTIVE_TICKETED, own.CLOSED, own.FAILED]
    return [authority.FREE, authority.SETUP, authority.UP, authority.CHANGE, authority.TEARDOWN, authority.OUT]


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
