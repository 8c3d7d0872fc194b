"""What ``make size`` counts: code and nothing else, in the room where it stands, and classes with what they inherit."""

from __future__ import annotations

from pathlib import Path

import pytest
import size

from leasekit.core.errors import WireError
from leasekit.drivers.one_sided import GuestOnly

TEXT = '''
"""A docstring
of two lines."""

FIRST = """a text
of two lines"""
"""What an attribute is for."""


def nothing() -> None:
    """A docstring."""
    # a comment

    return None  # and another
'''


def test_lines_of_code_are_counted() -> None:
    """A text of two lines is code; docstrings, comments and blank lines are not."""
    assert size.size(TEXT).lines == 4
    assert size.size(TEXT).nodes == size.size(TEXT.replace('    """A docstring."""\n', "")).nodes


def test_every_module_has_a_room() -> None:
    """Also one of the longer of two beginnings."""
    rooms = {path.relative_to(size.ROOT).as_posix(): size.room(path) for path in size.modules()}
    assert rooms["leasekit/policies/broker/fcfs.py"] == (size.LEASING, "policies")
    assert rooms["leasekit/policies/broker/coallocation/milp.py"] == (size.BESIDE, "co-allocation")
    assert {room for _, room in rooms.values()} == {room for rooms in size.ROOMS.values() for room in rooms}


def test_a_class_counts_with_what_it_inherits() -> None:
    """Attributes that are declared or assigned, no constants, and methods: those of the classes above it, too."""
    assert size.measured(WireError) == ("leasekit.core.errors.WireError", 2, 1, 2)
    assert size.measured(GuestOnly) == ("leasekit.drivers.one_sided.GuestOnly", 0, 2, 5)


def test_names_that_are_used_twice_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever the classes stand, also inside others."""
    (tmp_path / "leasekit").mkdir()
    (tmp_path / "leasekit" / "one.py").write_text("class Run: ...\nclass Once: ...\n")
    (tmp_path / "leasekit" / "two.py").write_text("class Outer:\n    class Run: ...\n")
    monkeypatch.setattr(size, "ROOT", tmp_path)
    assert size.repeated_names() == {"Run": ["one.py", "two.py"]}
