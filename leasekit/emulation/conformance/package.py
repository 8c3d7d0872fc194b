"""A package with a mapper that works, to begin with: what ``leasekit mapper new`` writes.

The mapper is the one of :mod:`.skeletons` for its role; all else is made from the files ``*.in`` beside that.
"""

from __future__ import annotations

import keyword
import re
import sys
from pathlib import Path
from string import Template
from typing import Final

from leasekit.core.errors import LeasekitError
from leasekit.emulation.conformance import skeletons
from leasekit.policies.registry import BUILT_IN, known_mappers

NAME: Final = re.compile(r"[a-z][a-z0-9]*(?:[-_][a-z0-9]+)*")
DEMAND: Final = 'mapper = { name = "static", demands = [{ type = "vm", units = 3, term = "1h" }] }\n'


def write_package(folder: Path, name: str, role: str) -> list[Path]:
    """The files of a new package ``folder/NAME``. Raises ``LeasekitError`` for a name that won't do, or where something
    of that name is there already.
    """
    if wrong := _wrong(name):
        raise LeasekitError(f"NAME: found {name!r}, {wrong}")
    target = folder / name
    if target.exists():
        raise LeasekitError(f"{target} is there already")
    module = name.replace("-", "_")
    kind = "".join(part.capitalize() for part in re.split(r"[-_]", name))
    mappers = {**dict.fromkeys(BUILT_IN, ""), "guest": DEMAND, role: f'mapper = {{ name = "{module}.py" }}\n'}
    project = name.replace("_", "-")
    words = {
        "name": name,
        "project": project,
        "role": f"an {role}" if role == "authority" else f"a {role}",
        "module": module,
        "kind": kind,
        **mappers,
    }
    sources = {f"test_{module}.py": f"test_{role}.py"}
    sources |= {file: file for file in ("pyproject.toml", "README.md", "deploy.toml")}
    # Where it goes, leasekit is a library like others: linters want it in one block with them.
    text = _read(f"{role}.py").replace("import attrs\n\nfrom leasekit", "import attrs\nfrom leasekit")
    texts = {f"{module}.py": text.replace("Skeleton", kind).replace("skeleton", module)}
    texts |= {file: Template(_read(f"{source}.in")).substitute(words) for file, source in sources.items()}
    target.mkdir(parents=True)
    for file, text in texts.items():
        (target / file).write_text(text, encoding="utf-8")
    return [target / file for file in texts]


def _wrong(name: str) -> str:
    """Why no package with a mapper can have this name; empty if one can."""
    if NAME.fullmatch(name) is None:
        without = ", without .py" if name.endswith(".py") else ""
        return f"expected small letters, digits, and - or _ between them; a letter comes first{without}"
    if keyword.iskeyword(name):
        return "which is a word of Python's own: choose another name"
    if name.replace("-", "_") in sys.stdlib_module_names | {"attrs", "leasekit"}:
        return "which is a module that would be hidden: choose another name"
    if any(name in known_mappers(role) for role in BUILT_IN):
        return "which is a mapper already: choose another name"
    return ""


def _read(file: str) -> str:
    return (Path(skeletons.__path__[0]) / file).read_text(encoding="utf-8")
