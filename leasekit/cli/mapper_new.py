"""What ``leasekit mapper new`` writes: an installable package with a mapper, its settings, its test and its entry
point.
"""

from __future__ import annotations

import keyword
import re
import sys
from pathlib import Path
from typing import Final

from leasekit.core.errors import LeasekitError
from leasekit.policies.registry import known_mappers

NAME: Final = re.compile(r"[a-z][a-z0-9]*(?:[-_][a-z0-9]+)*")
BEGIN_WITH: Final = {"broker": "fcfs", "authority": "first_fit", "guest": "manual"}

PROJECT: Final = """\
[build-system]
requires = ["setuptools>=61"]
build-backend = "setuptools.build_meta"

[project]
name = "{package}"
version = "0.1.0"
description = "A mapper for leasekit: {name}, a {role}'s"
requires-python = ">=3.11"
dependencies = ["attrs", "leasekit"]

[project.optional-dependencies]
test = ["pytest"]

[project.entry-points."leasekit.mappers"]
{name} = "{module}:{kind}"

[tool.setuptools]
py-modules = ["{module}"]
"""

README: Final = """\
# {name}

A mapper for leasekit, for a {role}. What it may rely on is `leasekit.core.mappers`.

```console
$ pip install -e .
$ leasekit mapper check {name}
$ leasekit emulate deploy.toml
$ pytest
```

`deploy.toml` names it; its settings stand beside its name. Without an installation, `{module}.py:{kind}` names it too.
"""

DEPLOY: Final = """\
# A deployment that runs the mapper: in virtual time with `leasekit emulate`, as daemons with `leasekit up`. The package
# must be installed; without that, `name = "{module}.py:{kind}"` names the class in the file.

[deployment]
create_keys = true  # those that are missing when a daemon starts; an emulation needs none

[actor.broker]
role = "broker"
listen = ["unix:broker.sock"]  # where daemons dial it; an emulation has no use for it
{broker}
[actor.site]
role = "authority"
listen = ["unix:site.sock"]
inventory = [{{ type = "vm", units = 8 }}]
delegation = [{{ broker = "broker", type = "vm" }}]
{authority}
[actor.guest]
role = "guest"
{guest}
[emulation]
horizon = "1d"
"""

DEMAND: Final = 'mapper = { name = "static", demands = [{ type = "vm", units = 3, term = "1h" }] }\n'

TEST: Final = '''\
"""The mapper keeps the rules that every mapper must keep, and does what it is for."""

from __future__ import annotations

{imports}from leasekit.emulation.conformance.kit import Subject, check

from {module} import {kind}, {kind}Settings


def test_passes_the_conformance_kit() -> None:
    """It never overbooks, decides what it can, repeats itself, and survives empty and full worlds."""
    checked = check(Subject(target="{module}:{kind}", role="{role}", cases=25))
    assert not checked.faults, checked.faults

{own}'''

OWN: Final = {
    "broker": (
        """\
from leasekit.core.mappers import BrokerCycle, PendingRequest, Reject
from leasekit.core.time import HOUR, Term
""",
        '''
def test_terms_are_bounded() -> None:
    """A term longer than the setting allows is refused, and the reason says what is allowed."""
    request = PendingRequest(
        lease="l-1", holder="guest", op="new", type="vm", units=1, min_units=1, term=Term(0, 3 * HOUR), latest_start=0,
        deadline=HOUR, arrived=0, site="", exclude_sites=frozenset(), source="", held=0, group="", priority=0,
        preemptible=False, properties={},
    )
    mapper = KIND(KINDSettings(longest=2 * HOUR))
    (decision,) = mapper.allocate(BrokerCycle(0, [request], (), lambda type_: ()))
    assert isinstance(decision, Reject)
    assert "2h" in decision.reason
''',
    ),
    "authority": (
        """\
from leasekit.core.mappers import Assign, AuthorityCycle, Demand, UnitView
from leasekit.core.time import HOUR, Term
""",
        '''
def test_units_that_failed_go_last() -> None:
    """A lease gets the units that have failed least."""
    units = [UnitView(f"vm-{n}", "vm", "free", "", failures, {}) for n, failures in enumerate((2, 0, 1))]
    demand = Demand("l-1", "guest", "new", "vm", 2, (), (), Term(0, HOUR), {})
    mapper = KIND(KINDSettings())
    (decision,) = mapper.assign(AuthorityCycle(0, [demand], lambda type_: iter(units), lambda name: units[0]))
    assert decision == Assign("l-1", ("vm-1", "vm-2"))
''',
    ),
    "guest": (
        """\
from leasekit.core.mappers import GuestCycle, RequestLease
""",
        '''
def test_asks_at_first() -> None:
    """Without a lease it asks for one, with the units that its settings say."""
    mapper = KIND(KINDSettings(units=3))
    first, *_ = mapper.plan(GuestCycle(0, []))
    assert isinstance(first, RequestLease)
    assert first.units == 3
''',
    ),
}


def write_package(folder: Path, name: str, role: str) -> list[Path]:
    """The files of a new package ``folder/NAME``. Raises ``LeasekitError`` for a name that won't do, or where something
    of that name is there already.
    """
    if NAME.fullmatch(name) is None:
        raise LeasekitError(
            f"NAME: found {name!r}, expected small letters, digits, and - or _ between them; a letter comes first"
        )
    if keyword.iskeyword(name):
        raise LeasekitError(f"NAME: found {name!r}, which is a word of Python's own: choose another name")
    if name.replace("-", "_") in sys.stdlib_module_names | {"attrs", "leasekit"}:
        raise LeasekitError(f"NAME: found {name!r}, which is a module that would be hidden: choose another name")
    taken = [known for role_ in BEGIN_WITH for known in known_mappers(role_) if known == name]
    if taken:
        raise LeasekitError(f"NAME: found {name!r}, which is a mapper already: choose another name")
    target = folder / name
    if target.exists():
        raise LeasekitError(f"{target} is there already")
    module = name.replace("-", "_")
    kind = "".join(part.capitalize() for part in re.split(r"[-_]", name))
    words = {
        "name": name,
        "role": role,
        "module": module,
        "kind": kind,
        "package": f"leasekit-{name.replace('_', '-')}",
    }
    texts = {
        f"{module}.py": skeleton(role).replace("Skeleton", kind).replace("skeleton", module),
        f"test_{module}.py": _test(words),
        "pyproject.toml": PROJECT.format(**words),
        "README.md": README.format(**words),
        "deploy.toml": _deploy(words),
    }
    target.mkdir(parents=True)
    for file, text in texts.items():
        (target / file).write_text(text, encoding="utf-8")
    return [target / file for file in texts]


def skeleton(role: str) -> str:
    """The source of the mapper that a role begins with."""
    from leasekit.emulation.conformance import skeletons

    text = (Path(skeletons.__path__[0]) / f"{role}.py").read_text(encoding="utf-8")
    # Where it goes, leasekit is a library like others: linters want it in one block with them.
    return text.replace("import attrs\n\nfrom leasekit", "import attrs\nfrom leasekit")


def _deploy(words: dict[str, str]) -> str:
    lines = dict.fromkeys(BEGIN_WITH, "")
    lines["guest"] = DEMAND
    lines[words["role"]] = f'mapper = {{ name = "{words["name"]}" }}\n'
    return DEPLOY.format(**words, **lines)


def _test(words: dict[str, str]) -> str:
    imports, own = OWN[words["role"]]
    return TEST.format(**words, imports=imports, own=own.replace("KIND", words["kind"]))
