"""Rules that a program can check: what linters say, and what a reader would have to look for in every file."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import flow
import pytest
import size

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("leasekit", "simulation", "tests", "benchmarks", "docs", "deploy")
LINES_MAX = 800
COMPARISONS_LEFT = 14
LARGE = {"SiteLease", "SiteUnit"}
"""Records that are to become several yet. There are to be no others."""
BIN = Path(sys.executable).parent
MACHINE_PATH = re.compile(r"(?<![\w.{}$~*-])/(?:home|root|work|Users|mnt|farm)/[A-Za-z0-9]")
REASON = re.compile(r"#[^\w\n]*\w+")


def _files(*suffixes: str) -> Iterator[Path]:
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            hidden = any(part.startswith(".") or part == "__pycache__" for part in path.relative_to(ROOT).parts)
            if path.is_file() and path.suffix in suffixes and not hidden:
                yield path


def _modules() -> list[Path]:
    return list(_files(".py"))


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _first_paragraph(text: str) -> str:
    docstring = ast.get_docstring(ast.parse(text)) or ""
    return docstring.split("\n\n")[0]


@pytest.mark.parametrize(
    "command",
    [
        ["ruff", "check", "."],
        ["ruff", "format", "--check", "."],
        pytest.param(["mypy", "--strict"], marks=pytest.mark.xdist_group("mypy")),
        ["lint-imports", "--no-cache", "--no-logo"],
    ],
    ids=["ruff", "format", "mypy", "imports"],
)
def test_tool_finds_nothing(command: Sequence[str]) -> None:
    """Linter, formatter, type checker and import contracts are content with the whole tree."""
    tool = BIN / command[0]
    done = subprocess.run([tool, *command[1:]], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"


def test_long_modules_give_a_reason() -> None:
    """A module over 800 lines says in its first paragraph why it is so long."""
    unexplained = []
    for path in _modules():
        text = path.read_text()
        if text.count("\n") > LINES_MAX and "lines" not in _first_paragraph(text):
            unexplained.append(f"{_name(path)}: {text.count(chr(10))} lines")
    assert not unexplained, "\n" + "\n".join(unexplained)


FILES_MAX = 40


def test_a_plain_request_passes_through_few_files() -> None:
    """From the command until the lease is active: who follows a request reads no file of what it has nothing to do with
    (``python tests/flow.py`` prints them).
    """
    files = list(flow.trace().entered)
    assert len(files) <= FILES_MAX, "\n" + "\n".join(files)


USES_MAX = 5


def test_parts_name_few_things_that_they_use() -> None:
    """A part's constructor names at most five parts, interfaces or settings."""
    found = []
    for path in sorted((ROOT / "leasekit" / "actors").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and (uses := _uses(node)) > USES_MAX:
                found.append(f"{_name(path)}, line {node.lineno}: {uses}")
    assert not found, "\n" + "\n".join(found)


def test_classes_of_actors_are_small() -> None:
    """No class there has many of ours above it, or is made of many attributes and methods."""
    assert not [one for one in size.classes() if one.above > 3 or one.attributes > 25 or one.methods > 60]
    records = [one for one in size.classes("core") if one.name.startswith("leasekit.core.leases.")]
    assert {one.name.rpartition(".")[2] for one in records if one.attributes > 25} == LARGE


def test_actors_ask_tables_for_states() -> None:
    """What a state means is said beside its table (``is_over``, ``can``), and asked there. Those that are left compare
    what a peer's message says, or are asked so often that the way over a property counts; there may only be fewer.
    """
    assert len(size.state_comparisons()) <= COMPARISONS_LEFT


def test_no_method_only_says_that_it_is_missing() -> None:
    """What a class needs of another it is given; no base class calls what only those below it can do."""
    found = [
        f"{_name(path)}, line {node.lineno}: {node.name}"
        for path in sorted((ROOT / "leasekit").rglob("*.py"))
        if "skeletons" not in path.parts and "NotImplementedError" in (text := path.read_text())
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and ast.unparse(node.body[-1]).startswith("raise NotImplementedError")
    ]
    assert not found, "\n" + "\n".join(found)


def _uses(node: ast.ClassDef) -> int:
    """What a part is made of: the arguments of its constructor, or its fields if attrs writes that. Shells are none."""
    if any(ast.unparse(base).partition("[")[0] in ("Actor", "Server") for base in node.bases) or node.name == "Actor":
        return 0
    made = next((one for one in node.body if isinstance(one, ast.FunctionDef) and one.name == "__init__"), None)
    if made is not None:
        return len(made.args.args) + len(made.args.kwonlyargs) - 1
    if not any(ast.unparse(one).startswith("attrs.define(eq=False") for one in node.decorator_list):
        return 0  # a record, not a part
    return sum(isinstance(one, ast.AnnAssign) and "init=False" not in ast.unparse(one) for one in node.body)


def test_no_class_name_occurs_twice() -> None:
    """A name means one class, wherever in the package it is read; skeletons are what ``leasekit mapper new`` copies."""
    found: dict[str, list[str]] = {}
    for path in sorted((ROOT / "leasekit").rglob("*.py")):
        if "skeletons" in path.parts:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(_name(path))
    assert {name: paths for name, paths in found.items() if len(paths) > 1} == {}


def test_no_module_of_tests_has_the_name_of_another() -> None:
    """Pytest imports them by their names alone, and would run one of the two."""
    names = Counter(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []


LIBRARIES_CALL = frozenset({
    "process_request", "handle_error", "do_GET", "do_HEAD", "do_POST", "log_message", "before_io_wait", "after_io_wait",
    "pytest_addoption", "pytest_configure",
})  # fmt: skip
"""What http.server, trio and pytest call by their names."""
PLAIN = ("property", "staticmethod", "classmethod", "cache", "cached_property", "contextmanager", "attrs.")
"""Decorators, or beginnings of them, that make nobody a user of what they stand at; others register it somewhere."""


def test_everything_has_a_user() -> None:
    """Each module, class, function and method of the package is named once more, by something that is no test."""
    words: Counter[str] = Counter()
    for path in [*_modules(), ROOT / "pyproject.toml", ROOT / "simulation" / "pyproject.toml"]:
        if not path.is_relative_to(ROOT / "tests"):
            words.update(re.findall(r"\w+", path.read_text()))
    unused = []
    for path in sorted((ROOT / "leasekit").rglob("*.py")):
        if "skeletons" in path.parts:
            continue
        if path.name != "__init__.py" and not words[path.stem]:
            unused.append(_name(path))
        for node in ast.walk(ast.parse(path.read_text())):
            named = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            if not named or words[node.name] > 1 or node.name in LIBRARIES_CALL or node.name.startswith("__"):
                continue
            if all(ast.unparse(one).startswith(PLAIN) for one in node.decorator_list):
                unused.append(f"{_name(path)}, line {node.lineno}: {node.name}")
    assert not unused, "\n" + "\n".join(unused)


def test_nobody_touches_what_is_anothers_own() -> None:
    """In actors no attribute of a part that begins with an underscore is used from outside."""
    found = []
    for path in sorted((ROOT / "leasekit" / "actors").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            is_private = isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.endswith("__")
            if is_private and isinstance(node.value, ast.Attribute):  # type: ignore[attr-defined]
                found.append(f"{_name(path)}, line {node.lineno}: {ast.unparse(node)}")  # type: ignore[attr-defined]
    allowed = [one for one in found if not one.endswith("._replace")]
    assert not allowed, "\n" + "\n".join(allowed)


def test_no_path_of_one_machine() -> None:
    """No file names a folder that exists on somebody's machine only."""
    found = []
    for path in [*_files(".py", ".md", ".toml", ".sh"), ROOT / "README.md", ROOT / "Makefile", ROOT / "pyproject.toml"]:
        if path == Path(__file__).resolve() or path.name == "tiny_guest.py":  # that one has paths inside a guest
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if MACHINE_PATH.search(line):
                found.append(f"{_name(path)}:{number}: {line.strip()[:100]}")
    assert not found, "\n" + "\n".join(found)


def test_no_test_sleeps() -> None:
    """Tests wait for events; only those with real processes may poll with a sleep."""
    found = [
        f"{_name(path)}:{number}"
        for path in _files(".py")
        if path.is_relative_to(ROOT / "tests") and not path.is_relative_to(ROOT / "tests/system")
        if "time.sleep" in path.read_text()
        for number, name in _calls(path)
        if name == "time.sleep"
    ]
    assert not found, "\n" + "\n".join(found)


def _calls(path: Path) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            yield node.lineno, ast.unparse(node.func)


def test_broad_except_gives_a_reason() -> None:
    """Whoever catches everything and keeps it says why, on the line itself or in a comment that begins the handler."""
    unexplained = []
    for path in _modules():
        text = path.read_text()
        if "Exception" not in text and "except:" not in text:
            continue
        lines = text.splitlines()
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, ast.ExceptHandler) or not _is_broad(node) or _raises_on(node):
                continue
            head = "\n".join(lines[node.lineno - 1 : node.body[0].lineno])
            if not REASON.search(head.replace("noqa: BLE001", "")):
                unexplained.append(f"{_name(path)}:{node.lineno}: {lines[node.lineno - 1].strip()}")
    assert not unexplained, "\n" + "\n".join(unexplained)


def _is_broad(handler: ast.ExceptHandler) -> bool:
    if handler.type is None:
        return True
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(ast.unparse(kind) in ("Exception", "BaseException") for kind in kinds)


def _raises_on(handler: ast.ExceptHandler) -> bool:
    last = handler.body[-1]
    return isinstance(last, ast.Raise) and last.exc is None


def test_every_test_says_what_must_hold() -> None:
    """Every test function has a docstring."""
    silent = []
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            named = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
            if named and not ast.get_docstring(node):
                silent.append(f"{_name(path)}:{node.lineno}: {node.name}")
    assert not silent, "\n" + "\n".join(silent)


def test_no_test_is_switched_off() -> None:
    """No test is marked to be skipped or to fail; a test that can't run here says so where it finds out."""
    marks = re.compile(r"mark\.(?:skip|xfail)\b")
    found = [
        f"{_name(path)}:{number}"
        for path in _files(".py")
        if path.is_relative_to(ROOT / "tests") and path != Path(__file__).resolve()
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if marks.search(line)
    ]
    assert not found, "\n" + "\n".join(found)
