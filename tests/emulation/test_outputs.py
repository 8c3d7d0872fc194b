"""Folders of results: made with those above them, and what is wrong with one is said in words."""

from __future__ import annotations

from pathlib import Path

import pytest

from leasekit.core.errors import LeasekitError
from leasekit.emulation.outputs import make_folder, writing


def test_a_folder_is_made_or_found(tmp_path: Path) -> None:
    """Those above it too; one that is there is taken as it is."""
    out = tmp_path / "a" / "b"
    make_folder(out)
    (out / "kept").touch()
    make_folder(out)
    assert (out / "kept").exists()


def test_what_is_in_its_place_is_named(tmp_path: Path) -> None:
    """A file there, or above it."""
    file = tmp_path / "README.md"
    file.touch()
    for out in (file, file / "below"):
        with pytest.raises(LeasekitError) as error:
            make_folder(out)
        assert str(error.value) == f"{out}: found a file, expected a folder to write results to"


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """The error's own words, where it is another one."""
    (tmp_path / "series.csv").mkdir()
    with pytest.raises(LeasekitError) as error, writing(tmp_path):
        (tmp_path / "series.csv").write_text("")
    assert str(error.value) == (
        f"{tmp_path / 'series.csv'}: found 'Is a directory', expected a folder to write results to"
    )
