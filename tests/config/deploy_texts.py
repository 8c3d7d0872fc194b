"""Deploy files for tests: a small deployment that is right, to be made wrong in one place or another."""

from __future__ import annotations

from pathlib import Path

from leasekit.config.errors import ConfigErrors
from leasekit.config.load import load

SMALL_FILE = Path(__file__).parent / "small.toml"
SMALL = SMALL_FILE.read_text(encoding="utf-8")


def write(folder: Path, text: str = SMALL, name: str = "deploy.toml") -> Path:
    """A deploy file with this text."""
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def changed(*replacements: tuple[str, str], text: str = SMALL) -> str:
    """The small deployment with some of its text replaced; what is to be replaced must be there, once."""
    for old, new in replacements:
        assert text.count(old) == 1, f"{old!r} is there {text.count(old)} times"
        text = text.replace(old, new)
    return text


def faults(path: Path) -> dict[str, str]:
    """What is wrong with a file: found and allowed by key. A key with two faults fails the test."""
    try:
        load(path)
    except ConfigErrors as error:
        found: dict[str, str] = {}
        for fault in error.errors:
            assert fault.file == str(path)
            assert fault.key not in found, f"{fault.key} twice: {found.get(fault.key)}; {fault}"
            found[fault.key] = f"found {fault.found}, expected {fault.allowed}"
        return found
    return {}
