"""Documentation that is made from the code is current, and what is written by hand leaves out no key and no link."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import attrs
import pytest

from leasekit.config import emulation, tables
from leasekit.config.traces import SignalSpec, SyntheticSettings
from leasekit.core.settings import setting_fields
from leasekit.drivers.null import NullSettings
from leasekit.drivers.process.driver import ProcessLimits, ProcessSettings
from leasekit.drivers.script import ScriptSettings
from leasekit.policies.registry import BUILT_IN

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
TABLES = [
    value
    for value in (*vars(tables).values(), *vars(emulation).values(), SignalSpec, SyntheticSettings)
    if isinstance(value, type) and attrs.has(value)
]
LINK = re.compile(r"\]\(([^)#\s]+)?(?:#([^)\s]+))?\)")


def _words(name: str) -> set[str]:
    """Everything that a page of docs/ has in code type, split at dots, and the keys in its examples."""
    text = (ROOT / "docs" / name).read_text()
    return set(re.findall(r"[a-z_0-9]+", " ".join(re.findall(r"`([^`]+)`", text)) + " " + text))


def test_generated_parts_are_current() -> None:
    """`make docs` would change nothing."""
    done = subprocess.run(
        [sys.executable, ROOT / "docs" / "generate.py", "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.__name__)
def test_every_key_of_a_deploy_file_is_told(table: type) -> None:
    """Every key that a table of a deploy file takes is in docs/config.md or docs/drivers.md."""
    known = _words("config.md") | _words("drivers.md")
    assert {field.alias for field in setting_fields(table)} - known == set()


@pytest.mark.parametrize(
    "settings", [NullSettings, ProcessSettings, ProcessLimits, ScriptSettings], ids=lambda s: s.__name__
)
def test_every_setting_of_a_driver_is_told(settings: type) -> None:
    """Every setting of a built-in driver is in docs/drivers.md."""
    assert {field.name for field in attrs.fields(settings)} - _words("drivers.md") == set()


@pytest.mark.parametrize("role", BUILT_IN)
def test_every_mapper_is_told(role: str) -> None:
    """Every built-in mapper has a section of its own in docs/mappers.md."""
    headings = re.findall(r"^## (\w+), ", (ROOT / "docs" / "mappers.md").read_text(), re.MULTILINE)
    assert set(BUILT_IN[role]) - set(headings) == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    """Every link to a file of the project leads to one, and to a heading that is there."""
    dead = []
    for target, anchor in LINK.findall(page.read_text()):
        if "://" in target:
            continue
        path = page.parent / target if target else page
        headings = (
            re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE) if path.suffix == ".md" and path.is_file() else []
        )
        anchors = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
        if not path.exists() or (anchor and anchor not in anchors):
            dead.append(f"{target}#{anchor}")
    assert dead == []
