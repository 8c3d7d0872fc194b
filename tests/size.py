"""How large the house is: ``make size``, or ``python tests/size.py``.

By room: lines of code and nodes of their syntax trees, without docstrings, comments and blank lines. Of each class in
actors/: how many classes of ours it has above it, and its attributes and methods, with those that it inherits. And how
often actors compare states by themselves, and the class names that occur more than once in the package.
"""

from __future__ import annotations

import ast
import importlib
import io
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[1]
LEASING, BESIDE, OUTSIDE = "leasing system", "capabilities beside it", "not installed with it"
ROOMS: Final[Mapping[str, Mapping[str, tuple[str, ...]]]] = {
    LEASING: {
        "core": ("leasekit/core/", "leasekit/__init__.py"),
        "actors": ("leasekit/actors/",),
        "policies": ("leasekit/policies/",),
        "stores": ("leasekit/stores/",),
        "config": ("leasekit/config/",),
        "runtime": ("leasekit/runtime/",),
        "virtual-time shell": ("leasekit/emulation/",),
        "cli": ("leasekit/cli/",),
        "library": ("leasekit/library.py", "leasekit/learning.py"),
        "small drivers": ("leasekit/drivers/",),
    },
    BESIDE: {
        "co-allocation": (
            "leasekit/policies/broker/coallocat",
            "leasekit/policies/guest/coallocat",
            "leasekit/emulation/coallocation/",
        ),
        "placement": ("leasekit/policies/authority/placing/", "leasekit/emulation/placement"),
        "energy": ("leasekit/policies/authority/energy", "leasekit/emulation/energy/"),
        "preemption": (
            "leasekit/policies/preempting/",
            "leasekit/policies/authority/preemption.py",
            "leasekit/emulation/preemption.py",
        ),
        "machines": tuple(f"leasekit/drivers/{name}/" for name in ("baremetal", "directory", "libvirt", "link", "xen")),
        "mapper kit": ("leasekit/emulation/compare/", "leasekit/emulation/conformance/"),
        "gateway": (
            "leasekit/gateway/",
            "leasekit/client/",
            "leasekit/config/gateway.py",
            "leasekit/cli/gateway.py",
            "leasekit/cli/projects.py",
            "leasekit/testing.py",
        ),
        "watching": ("leasekit/core/measures.py", "leasekit/runtime/metrics.py"),
    },
    OUTSIDE: {
        "fault simulation": ("simulation/leasekit_simulation/",),
        "exploration": ("simulation/leasekit_simulation/explore/",),
        "demo": ("deploy/demo.py",),
    },
}
"""Rooms by what they belong to; a file is in the room that has the longest beginning of its path."""
NOT_CODE: Final = frozenset(
    {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
)


class Size(NamedTuple):
    """Lines of code, and nodes of their syntax trees."""

    lines: int
    nodes: int


class Measured(NamedTuple):
    """A class: how many of ours are above it, and what it has of its own or by them."""

    name: str
    above: int
    attributes: int
    methods: int


# -- rooms -------------------------------------------------------------------------------------------------------------


def size(text: str) -> Size:
    """The size of a module's text."""
    nodes = list(ast.walk(ast.parse(text)))
    docstrings = [node for node in nodes if _is_docstring(node)]
    told = {line for node in docstrings for line in range(node.lineno, (node.end_lineno or 0) + 1)}
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    code = {line for token in tokens if token.type not in NOT_CODE for line in range(token.start[0], token.end[0] + 1)}
    return Size(len(code - told), len(nodes) - 2 * len(docstrings))


def _is_docstring(node: ast.AST) -> bool:
    """Of a module, a class, a function or an attribute."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def modules() -> Iterator[Path]:
    """Every file that belongs to a room."""
    for place in ("leasekit", "simulation/leasekit_simulation"):
        yield from sorted((ROOT / place).rglob("*.py"))
    yield ROOT / "deploy" / "demo.py"


def room(path: Path) -> tuple[str, str]:
    """What a file belongs to, and its room."""
    name = path.relative_to(ROOT).as_posix()
    begins = {begin: (part, room) for part, rooms in ROOMS.items() for room, all_ in rooms.items() for begin in all_}
    return begins[max((begin for begin in begins if name.startswith(begin)), key=len)]


def sizes() -> dict[str, dict[str, Size]]:
    """The size of each room."""
    found = {part: dict.fromkeys(rooms, Size(0, 0)) for part, rooms in ROOMS.items()}
    for path in modules():
        part, name = room(path)
        found[part][name] = total((found[part][name], size(path.read_text(encoding="utf-8"))))
    return found


def total(several: Iterable[Size]) -> Size:
    """The sum of sizes."""
    return Size(*map(sum, zip(*several, strict=True)))


# -- classes -----------------------------------------------------------------------------------------------------------


def classes(package: str = "actors") -> list[Measured]:
    """Each class in a package of leasekit, those with most methods first."""
    found = []
    for path in sorted((ROOT / "leasekit" / package).rglob("*.py")):
        module = importlib.import_module(_module(path))
        found += [measured(getattr(module, name)) for name in _definitions(module.__name__)]
    return sorted(found, key=lambda one: (-one.methods, -one.attributes, one.name))


def measured(cls: type) -> Measured:
    """A class that is at the top of a module of leasekit, with all of ours that is above it."""
    attributes: set[str] = set()
    methods: set[str] = set()
    ours = [each for each in cls.__mro__ if each.__module__.startswith("leasekit.")]
    for each in ours:
        definition = _definitions(each.__module__)[each.__name__]
        methods |= {node.name for node in definition.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
        attributes |= set(_attributes(definition))
    return Measured(f"{cls.__module__}.{cls.__name__}", len(ours) - 1, len(attributes - methods), len(methods))


def _attributes(definition: ast.ClassDef) -> Iterator[str]:
    """What is declared in the class, or assigned to ``self``."""
    for node in definition.body:
        if isinstance(node, ast.AnnAssign) and "ClassVar" not in ast.unparse(node.annotation):
            yield ast.unparse(node.target)
    for inner in ast.walk(definition):
        stored = isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store)
        if stored and isinstance(inner.value, ast.Name) and inner.value.id == "self":
            yield inner.attr


@cache
def _definitions(module: str) -> dict[str, ast.ClassDef]:
    """The classes at the top of a module, as they are written."""
    text = Path(importlib.import_module(module).__file__ or "").read_text(encoding="utf-8")
    return {node.name: node for node in ast.parse(text).body if isinstance(node, ast.ClassDef)}


def _module(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def repeated_names() -> dict[str, list[str]]:
    """Class names that occur more than once in leasekit/, and where: those that occur most often first."""
    places: defaultdict[str, list[str]] = defaultdict(list)
    for path in sorted((ROOT / "leasekit").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(path.relative_to(ROOT / "leasekit").as_posix())
    often = Counter({name: len(found) for name, found in places.items() if len(found) > 1})
    return {name: places[name] for name, _ in often.most_common()}


STATES: Final = ("state", "pending")
"""The fields whose values have tables (core/leases)."""


def state_comparisons() -> list[str]:
    """Where actors compare the state of a record with a value, where they could ask the record: file and line."""
    found = []
    for path in sorted((ROOT / "leasekit" / "actors").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            compared: list[ast.expr] = [node.left, *node.comparators] if isinstance(node, ast.Compare) else []
            compared += [node.subject for _ in node.cases] if isinstance(node, ast.Match) else []
            for each in compared:
                if any(isinstance(part, ast.Attribute) and part.attr in STATES for part in ast.walk(each)):
                    found.append(f"{path.relative_to(ROOT).as_posix()}:{each.lineno}")
    return found


# -- printing ----------------------------------------------------------------------------------------------------------


def main() -> None:
    """Print all of it."""
    print(f"{'room':<26}{'lines':>8}{'nodes':>10}")
    found = sizes()
    for part, rooms in found.items():
        for name, one in rooms.items():
            print(f"  {name:<24}{one.lines:>8}{one.nodes:>10}")
        _print_total(part, rooms.values())
    inside = [one for part in (LEASING, BESIDE) for one in found[part].values()]
    _print_total("leasekit/", inside)
    _print_total("with what is beside it", [*inside, *found[OUTSIDE].values()])
    print(f"\n{'class in actors/':<56}{'above':>6}{'attributes':>11}{'methods':>8}")
    for each in classes():
        print(f"{each.name.removeprefix('leasekit.actors.'):<56}{each.above:>6}{each.attributes:>11}{each.methods:>8}")
    print(f"\ncomparisons of states in actors/: {len(state_comparisons())}")
    repeated = repeated_names()
    print(f"\nclass names that occur more than once in leasekit/: {len(repeated)}")
    for name, places in repeated.items():
        print(f"{name:<20} {len(places)}  {', '.join(places)}")


def _print_total(name: str, several: Iterable[Size]) -> None:
    lines, nodes = total(several)
    print(f"{name:<26}{lines:>8}{nodes:>10}")


if __name__ == "__main__":
    main()
