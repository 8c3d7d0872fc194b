"""docs/mapper-api.md documents what a mapper may rely on, name by name, with its version."""

from __future__ import annotations

import re
from pathlib import Path

from leasekit.core import mappers

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "mapper-api.md").read_text()


def test_every_public_name_has_a_heading_and_words() -> None:
    """Each class of the module has a section that says what it is, and names each of its fields and methods."""
    sections = dict(re.findall(r"^### `(\w+)`\n(.*?)(?=^##|\Z)", PAGE, re.DOTALL | re.MULTILINE))
    own = {
        name: value
        for name, value in vars(mappers).items()
        if isinstance(value, type) and value.__module__ == mappers.__name__ and not name.startswith("_")
    }
    assert len(own) > 20
    assert set(own) - set(sections) == set()
    for name, value in own.items():
        assert len(sections[name].partition("```")[0].split()) > 3, f"{name} is not explained"
        members = [*getattr(value, "_fields", ()), *(key for key in vars(value) if key in dir(mappers.BrokerMapper))]
        for member in members:
            assert member.startswith("_") or re.search(rf"\b{member}\b", sections[name]), f"{name}.{member}"


def test_the_version_is_told() -> None:
    """The page names the version that the module has."""
    assert f"Version **{mappers.VERSION}**" in PAGE


def test_every_flag_is_told() -> None:
    """What actors, the registry and shells ask of a mapper by name is in the table of flags, and nothing else is."""
    asked = re.compile(r"""(?:getattr|_flag)\((?:self\._?)?(?:mapper|kind), "(\w+)\"""")
    files = [path for room in ("actors", "policies", "config") for path in (ROOT / "leasekit" / room).rglob("*.py")]
    flags = {name for path in files for name in asked.findall(path.read_text())}
    table = PAGE.partition("## Flags of mappers")[2].partition("\n## ")[0]
    named = set(re.findall(r"^\| `(\w+)", table, re.MULTILINE)) | {"usage_kept"}
    assert flags > {"inline", "wants_usage", "switches", "watches"}
    assert flags - named == set()
    # Asked for in other ways: by the kind of load, or as a method.
    assert named - flags == {"needs_signal", "needs_jobs", "unblock"}
