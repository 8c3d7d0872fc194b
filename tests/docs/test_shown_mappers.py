"""Every mapper in README, docs and deploy/ passes `leasekit mapper check`: what is shown is what people begin with."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import pytest

from leasekit.emulation.conformance.kit import Subject, check, role_of
from leasekit.emulation.conformance.loads import SIZES

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```python\n# (\w+\.py)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
MAPPER = re.compile(r"^class \w+:.*^    def (?:allocate|assign|plan)\(self, cycle", re.DOTALL | re.MULTILINE)
ELSEWHERE: Final = {"docs/tutorial.md"}
"""The tutorial's mapper fails at first, which the page says; `test_tutorial.py` has it."""
SETTINGS: Final[dict[str, dict[str, Any]]] = {
    "daytime.py": {"type": "vm"},
    "cluster.py": {"type": "vm", "workers": 2, "term": "1h"},
    "injector.py": {"type": "vm", "units": 2, "term": "1h"},
}
"""What those need that have settings without a default."""


def _shown() -> dict[str, str]:
    """The code of each mapper, by its file's name."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    texts = {page: page.read_text() for page in pages if str(page.relative_to(ROOT)) not in ELSEWHERE}
    found = {name: code for text in texts.values() for name, code in BLOCK.findall(text)}
    found |= {file.name: file.read_text() for file in (ROOT / "deploy").rglob("*.py")}
    return {name: code for name, code in sorted(found.items()) if MAPPER.search(code)}


SHOWN: Final = _shown()


def test_those_that_are_shown_are_found() -> None:
    """A page whose blocks begin in another way would be passed over."""
    expected = {
        "auction.py", "cluster.py", "daytime.py", "injector.py", "learning.py", "lottery.py", "polite.py",
    }  # fmt: skip
    assert expected <= set(SHOWN)


@pytest.mark.parametrize("name", SHOWN)
def test_a_mapper_that_is_shown_passes(name: str, tmp_path: Path) -> None:
    """It does what every mapper must, as it stands."""
    file = tmp_path / name
    file.write_text(SHOWN[name])
    role = role_of(str(file), None)
    checked = check(
        Subject(target=str(file), role=role, settings=SETTINGS.get(name, {}), cases=10, turn_max=300, sizes=SIZES[:1])
    )
    assert checked.faults == ()
    assert checked.turns > 0
