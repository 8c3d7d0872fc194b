"""What the bare-metal driver remembers: whole, in the hands of several threads, and refused when it is damaged."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest

from leasekit.core.drivers import DriverError
from leasekit.drivers.baremetal.records import NodeRecord, Records, new_token


def records(folder: Path, *nodes: str) -> tuple[Records, list[str]]:
    changed: list[str] = []
    made = Records(folder / "nodes", changed.append)
    made.load(list(nodes))
    return made, changed


def test_records_outlive_their_daemon(tmp_path):
    """What was put is there for the next daemon; nodes that nothing is known of are unknown; nobody else may read."""
    first, changed = records(tmp_path, "a", "b")
    assert first.get("b") == NodeRecord(node="b")
    record = NodeRecord(node="a", state="imaging", lease="l", number=3, token=new_token(), erase=False, offset=12)
    first.put(record)
    assert changed == ["a"]
    second, _ = records(tmp_path, "a", "b")
    assert second.get("a") == record
    assert (tmp_path / "nodes").stat().st_mode & 0o777 == 0o700


def test_a_job_that_was_taken_back_changes_nothing(tmp_path):
    """A report counts for the job with its secret alone, and an empty secret is no job's."""
    made, changed = records(tmp_path, "a")
    old, new = new_token(), new_token()
    made.put(NodeRecord(node="a", state="imaging", token=new))
    assert made.of_token(old) is None
    assert made.change("a", old, report="done") is None
    assert made.get("a").report == ""
    kept = made.change("a", new, report="done")
    assert kept is not None and kept == made.get("a") and kept.report == "done"
    assert changed == ["a", "a"]
    made.put(attrs.evolve(kept, token=""))
    assert made.of_token("") is None


def test_addresses_go_round(tmp_path):
    """Addresses are given in turn, by the next daemon too, none to two nodes, and again only after all others."""
    made, _ = records(tmp_path, "a", "b", "c")
    assert [made.take_offset(node, 10, 12) for node in ("a", "b")] == [10, 11]
    made.put(NodeRecord(node="a", state="clean"))
    again, _ = records(tmp_path, "a", "b", "c")
    assert again.take_offset("a", 10, 12) == 12
    assert again.take_offset("c", 10, 12) == 10
    made, _ = records(tmp_path, "a", "b", "c", "d")
    with pytest.raises(DriverError, match="node d: all 3 addresses of the boot network are taken"):
        made.take_offset("d", 10, 12)


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[]",
        '{"node": "b"}',
        '{"node": "a", "state": "perhaps"}',
        '{"node": "a", "erase": 0}',
        '{"x": 1, "node": "a"}',
    ],
)
def test_damaged_records_are_refused(tmp_path, content):
    """A file that no driver wrote is named, with what to do: the node is not taken for clean."""
    (tmp_path / "nodes").mkdir()
    (tmp_path / "nodes/a.json").write_text(content)
    with pytest.raises(DriverError, match=r"a\.json: found ") as caught:
        records(tmp_path, "a")
    assert not caught.value.retry
