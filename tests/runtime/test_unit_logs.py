"""Unit logs: names that can't escape, rotation, followers, and a disk that is full."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasekit.runtime.logs import FILES, UnitLogs, stamp, unit_of, unit_word


def make(folder: Path, **limits: int) -> UnitLogs:
    return UnitLogs(folder / "units", lambda: 1_795_235_812_571, **limits)


def write(logs: UnitLogs, unit: str, *lines: str) -> None:
    log = logs.open(unit, "lease op: ")
    for line in lines:
        log(line)


def test_a_line_says_when_and_what_for(tmp_path: Path) -> None:
    """Each line begins with the time and the action; lines of one text get one each. In the file they have the unit."""
    logs = make(tmp_path)
    write(logs, "vm-0", "one\ntwo")
    assert logs.tail("vm-0", 9) == [
        "2026-11-21T04:36:52.571Z lease op: one",
        "2026-11-21T04:36:52.571Z lease op: two",
    ]
    assert logs.path("vm-0").read_text() == (
        "2026-11-21T04:36:52.571Z vm-0 lease op: one\n2026-11-21T04:36:52.571Z vm-0 lease op: two\n"
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
def test_different_units_have_different_words(one: str, other: str) -> None:
    """What stands for a unit in a line is one to one, without spaces, and ASCII."""
    assert (unit_word(one) == unit_word(other)) == (one == other)
    assert unit_word(one).isascii()
    assert unit_word(one).split() == [unit_word(one)]


UNITS = st.sampled_from(["vm-0", "vm-1", "vm-10", "v m", "x y/vm-0", "", " vm-0 ", "é", "\n"])
TEXTS = st.sampled_from(["plain", "", " vm-1 ", "T vm-10 x", "a\nvm-0 b\n\nc", "2026-11-21T04:36:52.571Z vm-1 forged"])


@given(said=st.lists(st.tuples(UNITS, TEXTS), max_size=30), count=st.integers(0, 40))
def test_units_that_share_a_file_keep_apart(
    tmp_path_factory: pytest.TempPathFactory, said: list[tuple[str, str]], count: int
) -> None:
    """A unit's tail is the last of its own lines, whatever the others are called and whatever is said of them."""
    logs = make(tmp_path_factory.mktemp("logs"))
    expected: dict[str, list[str]] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("leasekit.runtime.logs.FILES", 1)
        for unit, text in said:
            write(logs, unit, text)
            lines = expected.setdefault(unit_of(unit), [])
            lines += [f"2026-11-21T04:36:52.571Z lease op: {line}" for line in text.split("\n")]
        for unit, lines in expected.items():
            assert logs.tail(unit, count) == (lines[-count:] if count else [])


def test_a_guests_unit_has_one_log_over_all_leases(tmp_path: Path) -> None:
    """`LEASE/UNIT` of several leases goes to the unit's log."""
    logs = make(tmp_path)
    write(logs, "lease-1/vm-0", "one")
    write(logs, "lease-2/vm-0", "two")
    assert len(logs.tail("vm-0", 10)) == 2


def test_a_large_log_is_rotated_once(tmp_path: Path) -> None:
    """A log never takes more than about twice its limit, and the tail reads over the seam."""
    logs = make(tmp_path, size_max=1_000)
    write(logs, "vm-0", *(f"line {number}" for number in range(200)))
    sizes = {path.suffix: path.stat().st_size for path in (tmp_path / "units").iterdir()}
    assert set(sizes) <= {".log", ".1"}
    assert max(sizes.values()) < 1_100
    tail = [line.split("line ")[1] for line in logs.tail("vm-0", 15)]
    assert tail == [str(number) for number in range(185, 200)]


def test_logs_that_are_open_together_outlive_a_rotation(tmp_path: Path) -> None:
    """Actions that go on while another fills the file write to the new one: no line of theirs gets lost."""
    logs = make(tmp_path, size_max=500)
    one, other = logs.open("vm-0", ""), logs.open("vm-0", "")
    for number in range(12):
        (one if number % 2 else other)(f"{number}")
    assert [line.split()[-1] for line in logs.tail("vm-0", 4)] == ["8", "9", "10", "11"]


def test_many_units_make_few_files(tmp_path: Path) -> None:
    """However many units there are, the number of files is bounded, and each unit's lines are found."""
    logs = make(tmp_path)
    for number in range(500):
        write(logs, f"vm-{number}", f"of {number}")
    assert len(list((tmp_path / "units").iterdir())) <= FILES
    assert all(logs.tail(f"vm-{number}", 9)[0].endswith(f"of {number}") for number in range(500))


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
    assert "Not a directory" in logs.last_error
    assert len(heard) == 1


def test_a_link_in_the_way_is_not_followed(tmp_path: Path) -> None:
    """A symbolic link in place of a log is not written through."""
    logs = make(tmp_path)
    write(logs, "vm-1", "makes the folder")
    logs.path("vm-0").symlink_to(tmp_path / "elsewhere")
    write(logs, "vm-0", "hello")
    assert not (tmp_path / "elsewhere").exists()
    assert logs.dropped == 1
