"""Unit logs: names that can't escape, rotation, followers, and a disk that is full."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasekit.runtime.unit_logs import UnitLogs, file_stem, stamp


def make(folder: Path, **limits: int) -> UnitLogs:
    return UnitLogs(folder / "units", lambda: 1_795_235_812_571, **limits)


def write(logs: UnitLogs, unit: str, *lines: str) -> None:
    log = logs.open(unit, "lease op: ")
    for line in lines:
        log.write(line)
    log.close()


def test_a_line_says_when_and_what_for(tmp_path: Path) -> None:
    """Each line begins with the time and the action; lines of one text get one each."""
    logs = make(tmp_path)
    write(logs, "vm-0", "one\ntwo")
    assert logs.path("vm-0").read_text() == (
        "2026-11-21T04:36:52.571Z lease op: one\n2026-11-21T04:36:52.571Z lease op: two\n"
    )
    assert stamp(0) == "1970-01-01T00:00:00.000Z"


def test_control_characters_are_shown_not_sent(tmp_path: Path) -> None:
    """What a driver's program prints can't move the terminal's cursor of who reads the log."""
    logs = make(tmp_path)
    write(logs, "vm-0", "a\x1b[2J\r\u2028\udc80b\tc")
    assert logs.tail("vm-0", 9)[0].endswith("lease op: a\\x1b[2J\\r\\u2028\\udc80b\tc")


@pytest.mark.parametrize(
    "unit", ["../../etc/passwd", "a/../b", ".hidden", "x\0y", "", "é" * 300, "a b;c", "..", "\udc80"]
)
def test_no_name_leads_elsewhere(tmp_path: Path, unit: str) -> None:
    """Whatever a unit is called, its log is a plain file in the folder."""
    logs = make(tmp_path)
    write(logs, unit, "hello")
    (file,) = (tmp_path / "units").iterdir()
    assert file.is_file()
    assert logs.path(unit) == file
    assert logs.dropped == 0
    assert sorted(tmp_path.iterdir()) == [tmp_path / "units"]


@given(st.text(max_size=150), st.text(max_size=150))
def test_different_units_have_different_files(one: str, other: str) -> None:
    """File names are one to one, short and without separators."""
    assert (file_stem(one) == file_stem(other)) == (one == other)
    assert "/" not in file_stem(one)
    assert 0 < len(file_stem(one)) <= 120


def test_a_guests_unit_has_one_log_over_all_leases(tmp_path: Path) -> None:
    """`LEASE/UNIT` of several leases goes to the unit's file, so that files don't grow in number with leases."""
    logs = make(tmp_path)
    write(logs, "lease-1/vm-0", "one")
    write(logs, "lease-2/vm-0", "two")
    assert [path.name for path in (tmp_path / "units").iterdir()] == ["vm-0.log"]
    assert len(logs.tail("vm-0", 10)) == 2


def test_a_large_log_is_rotated_once(tmp_path: Path) -> None:
    """A log never takes more than about twice its limit, and the tail reads over the seam."""
    logs = make(tmp_path, size_max=1_000)
    log = logs.open("vm-0", "")
    for number in range(200):
        log.write(f"line {number}")
    log.close()
    sizes = {path.name: path.stat().st_size for path in (tmp_path / "units").iterdir()}
    assert set(sizes) == {"vm-0.log", "vm-0.log.1"}
    assert max(sizes.values()) < 1_100
    tail = [line.split("line ")[1] for line in logs.tail("vm-0", 30)]
    assert tail == [str(number) for number in range(170, 200)]


def test_the_oldest_logs_go(tmp_path: Path) -> None:
    """There are never more files than the limit, and what was written last is kept."""
    logs = make(tmp_path, files_max=20)
    for number in range(100):
        write(logs, f"vm-{number:03}", "x")
    names = {path.name for path in (tmp_path / "units").iterdir()}
    assert len(names) <= 20
    assert "vm-099.log" in names


def test_followers_get_what_comes(tmp_path: Path) -> None:
    """A follower hears every line of its unit from then on, and nothing after it has left."""
    logs = make(tmp_path)
    heard: list[str] = []
    write(logs, "vm-0", "before")
    leave = logs.follow("vm-0", heard.append)
    write(logs, "vm-0", "one\ntwo")
    write(logs, "vm-1", "other")
    leave()
    write(logs, "vm-0", "after")
    assert [line.rpartition(" ")[2] for line in heard] == ["one", "two"]


def test_a_log_that_cannot_be_written_fails_nothing(tmp_path: Path) -> None:
    """Where the folder can't be made the lines are dropped, counted and explained; followers still hear them."""
    (tmp_path / "units").write_text("a file is in the way")
    logs = make(tmp_path)
    heard: list[str] = []
    logs.follow("vm-0", heard.append)
    write(logs, "vm-0", "hello")
    assert logs.dropped == 1
    assert "exists" in logs.last_error
    assert len(heard) == 1


def test_a_link_in_the_way_is_not_followed(tmp_path: Path) -> None:
    """A symbolic link in place of a log is not written through."""
    logs = make(tmp_path)
    write(logs, "vm-1", "makes the folder")
    logs.path("vm-0").symlink_to(tmp_path / "elsewhere")
    write(logs, "vm-0", "hello")
    assert not (tmp_path / "elsewhere").exists()
    assert logs.dropped == 1
