"""Mappers as they are typed: name, settings, files."""

from __future__ import annotations

from pathlib import Path

import pytest

from leasekit.core.errors import LeasekitError
from leasekit.core.settings import SettingsError
from leasekit.emulation.compare.targets import read_target


@pytest.mark.parametrize(
    ("text", "name", "settings"),
    [
        ("fcfs", "fcfs", {}),
        ("fcfs:balance=best_fit", "fcfs", {"balance": "best_fit"}),
        ('a.b:C:n=3,f=0.5,on=true,s="x",l=[1]', "a.b:C", {"n": 3, "f": 0.5, "on": True, "s": "x", "l": [1]}),
        ("dir/mine.py:Mine", "dir/mine.py:Mine", {}),
        ("dir/mine.py:Mine:gather=30s", "dir/mine.py:Mine", {"gather": "30s"}),
    ],
)
def test_settings_follow_a_colon(text: str, name: str, settings: dict[str, object]) -> None:
    """What has an equals sign after the last colon is settings, as TOML has them; a bare word is text."""
    target = read_target(text)
    assert (target.label, target.name, dict(target.settings)) == (text, name, settings)


def test_a_file_names_mapper_and_settings(tmp_path: Path) -> None:
    """A TOML file holds what a deploy file's mapper table would; a mapper's file is found beside it."""
    tuned = tmp_path / "tuned.toml"
    tuned.write_text('name = "mine.py:Mine"\ngather = "5s"\n')
    target = read_target(str(tuned))
    assert target.name == str(tmp_path / "mine.py:Mine")
    assert dict(target.settings) == {"gather": "5s"}
    more = tmp_path / "more.toml"
    more.write_text('balance = "first_fit"\n')
    assert dict(read_target("fcfs:gather=1s", more).settings) == {"gather": "1s", "balance": "first_fit"}


def test_it_is_made_with_its_settings() -> None:
    """The mapper has the settings that were typed, and each fault in them is told."""
    assert read_target("fcfs:balance=best_fit").make().settings.balance == "best_fit"
    with pytest.raises(SettingsError, match="balanse"):
        read_target("fcfs:balanse=best_fit").make()


@pytest.mark.parametrize(
    ("text", "told"), [("fcfs:a=1,b", "expected settings as key=value"), ("fcfs:=1", "expected settings as key=value")]
)
def test_settings_that_are_none(text: str, told: str) -> None:
    """Settings are pairs."""
    with pytest.raises(LeasekitError, match=told):
        read_target(text)


@pytest.mark.parametrize(("text", "told"), [("x = ", "not TOML"), ("gather = '1s'", "name: found None")])
def test_files_that_name_none(text: str, told: str, tmp_path: Path) -> None:
    """A file that is no TOML, or names no mapper, is told by its name."""
    file = tmp_path / "t.toml"
    file.write_text(text)
    with pytest.raises(LeasekitError, match=told) as error:
        read_target(str(file))
    assert str(file) in str(error.value)
