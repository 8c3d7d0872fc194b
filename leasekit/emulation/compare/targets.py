"""Which mapper, with which settings, from what is typed.

``backfill``, ``my.module:Mapper`` and ``mine.py:Mapper`` name a mapper as a deploy file does, ``mine.py`` the only one
of a file; settings follow after a colon, as ``backfill:mode=easy,balance=first_fit``. A file ``tuned.toml`` holds what
would stand in a deploy file's mapper table: ``name`` and settings.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import attrs

from leasekit.core.errors import LeasekitError
from leasekit.policies.registry import make_mapper


@attrs.frozen(kw_only=True)
class Target:
    """A mapper to be made: ``label`` is what was typed, ``name`` what a deploy file calls it, with its settings."""

    label: str
    name: str
    settings: Mapping[str, Any]

    def make(self, role: str = "broker", where: str = "") -> Any:
        """A new mapper. Raises ``SettingsError``; errors call the settings ``where``."""
        return make_mapper(self.name, role, self.settings, where or self.label, {})


def read_target(text: str, settings: Path | None = None) -> Target:
    """What was typed, as a target; ``settings`` names a TOML file with further settings.

    Raises ``LeasekitError`` that says what was found and what is allowed.
    """
    if text.endswith(".toml"):
        table = _read(Path(text))
        name = table.pop("name", None)
        if not isinstance(name, str):
            raise LeasekitError(f"{text}: name: found {name!r}, expected a mapper's name or path/to/file.py:Class")
        if name.endswith(".py") or ".py:" in name:
            name = str(Path(text).parent / name)
    else:
        name, table = _split(text)
    if settings is not None:
        table = {**table, **_read(settings)}
    return Target(label=text, name=name, settings=table)


def _split(text: str) -> tuple[str, dict[str, Any]]:
    name, colon, given = text.rpartition(":")
    if not colon or "=" not in given:
        return text, {}
    with suppress(tomllib.TOMLDecodeError):
        inline: dict[str, Any] = tomllib.loads(f"settings = {{ {given} }}")["settings"]
        return name, inline
    table: dict[str, Any] = {}
    for pair in given.split(","):
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise LeasekitError(f"{text}: found {pair!r}, expected settings as key=value, separated by commas")
        table[key.strip()] = _value(value.strip())
    return name, table


def _value(text: str) -> Any:
    """As TOML has it; a bare word is text."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _read(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise LeasekitError(f"{path}: not TOML: {error}") from error
