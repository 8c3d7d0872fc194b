"""Topology files: what is read from them, and that each thing that is wrong is said once, by file and key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from leasekit.cli import main
from leasekit.cli.topology import SOON, TopologyFileError, read_topology_file
from leasekit.core.time import HOUR, MINUTE

ROOT = Path(__file__).resolve().parents[2]
NOW = 1_800_000_000_000

GOOD: dict[str, Any] = {
    "est": "+1h",
    "lst": "+5h",
    "duration": "30m",
    "sites": [{"id": "left", "type": "vm", "units": 2}, {"id": "right", "type": "vm", "units": 1, "pin": "south"}],
    "links": [{"from": "left", "to": "right", "bw": 2.5, "backup": True}],
}


def written(folder: Path, content: Any, name: str = "t.json") -> Path:
    file = folder / name
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    return file


def faults(folder: Path, content: Any, name: str = "t.json") -> list[str]:
    """What is wrong with a file, without its name; there must be something."""
    file = written(folder, content, name)
    with pytest.raises(TopologyFileError) as caught:
        read_topology_file(file, NOW)
    lines = str(caught.value).splitlines()
    assert all(line.startswith(f"{file}: ") for line in lines)
    return [line.removeprefix(f"{file}: ") for line in lines]


def test_a_file_in_json_and_in_toml(tmp_path: Path) -> None:
    """Both say the same; times may be relative, ISO 8601 or a TOML date."""
    found = read_topology_file(written(tmp_path, GOOD), NOW)
    assert (found.est, found.lst, found.duration) == (NOW + HOUR, NOW + 5 * HOUR, 30 * MINUTE)
    assert (found.sites[1].pin, found.links[0].bw, found.links[0].backup) == ("south", 2.5, True)
    text = """
        est = "+1h"
        lst = "+5h"
        duration = "30m"
        sites = [{ id = "left", type = "vm", units = 2 }, { id = "right", type = "vm", units = 1, pin = "south" }]
        links = [{ from = "left", to = "right", bw = 2.5, backup = true }]
    """
    assert read_topology_file(written(tmp_path, text, "t.toml"), NOW) == found
    dated = read_topology_file(written(tmp_path, text.replace('"+1h"', "2027-01-15T09:00:00Z"), "t.toml"), NOW)
    assert dated.est == NOW + HOUR


def test_a_start_alone_is_exact_and_none_is_soon(tmp_path: Path) -> None:
    """``start`` is the only start; without any, or with ``now``, it may begin as long as an answer is of use."""
    plain = {key: value for key, value in GOOD.items() if key not in ("est", "lst")}
    exact = read_topology_file(written(tmp_path, plain | {"start": "+2h"}), NOW)
    assert (exact.est, exact.lst) == (NOW + 2 * HOUR, NOW + 2 * HOUR)
    assert read_topology_file(written(tmp_path, plain | {"est": "+2h"}), NOW) == exact
    soon = read_topology_file(written(tmp_path, plain), NOW)
    assert (soon.est, soon.lst) == (NOW, NOW + SOON)
    assert read_topology_file(written(tmp_path, plain | {"start": "now"}), NOW) == soon


def test_the_example_of_the_deploy_folder(tmp_path: Path) -> None:
    """deploy/coallocation/topology.json is right as it stands."""
    found = read_topology_file(ROOT / "deploy" / "coallocation" / "topology.json", NOW)
    assert [site.id for site in found.sites] == ["left", "right"]


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"sites": 3}, "sites: found 3, expected a list of tables"),
    ({"speed": 1}, "speed: found an unknown key, expected one of: avoid, "),
    ({"sites": [{**GOOD["sites"][0], "cpu": 2}, GOOD["sites"][1]]}, "sites[0].cpu: found an unknown key"),
    ({"links": [{"from": "left", "to": "right", "bw": 0}]}, "links[0].bw: found 0, expected more than 0"),
    ({"links": [{"from": "left", "to": "right", "bw": -3}]}, "links[0].bw: found -3, expected more than 0"),
    ({"links": [{"from": "left", "to": "rihgt", "bw": 1}]}, "links[0].to: found 'rihgt', expected one of: left, right"),
    ({"links": [{"from": "left", "to": "left", "bw": 1}]}, "links[0].to: found 'left' again"),
    ({"links": []}, "links: found none that connect right with left, expected a connected request"),
    ({"lst": "+30m"}, "lst: found "),
    ({"lst": "later"}, "lst: found 'later', expected now, +2h, or ISO 8601"),
    ({"est": 7.5}, "est: found '7.5', expected now, +2h, or ISO 8601"),
    ({"start": "+1h"}, "est: found it beside start"),
    ({"duration": "0s"}, "duration: found 0, expected at least 1 ms"),
    ({"duration": "soon"}, "duration: found 'soon', expected a duration such as 90s"),
    ({"sites": []}, "sites: found 0, expected 1 to 16"),
    ({"sites": [GOOD["sites"][0], GOOD["sites"][0]]}, "sites, links: found the id 'left' 2 times"),
    (
        {
            "sites": [
                {**GOOD["sites"][0], "redeem_predecessor": "right"},
                {**GOOD["sites"][1], "join_predecessor": "left"},
            ]
        },
        "sites, links: found a cycle of predecessors: left after right after left",
    ),
    ({"sites": [{**GOOD["sites"][0], "filter": "cpus >"}, GOOD["sites"][1]]}, "sites[0].filter"),
    ({"sites": [{**GOOD["sites"][0], "units": 0}, GOOD["sites"][1]]}, "sites[0].units: found 0, expected 1 to"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "words"), WRONG, ids=lambda case: str(case)[:40])
def test_each_fault_is_one_clear_line(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    """Every thing that can be wrong is said with its key, what was found and what is allowed."""
    found = faults(tmp_path, GOOD | change)
    assert [line for line in found if line.startswith(words)], found
    assert all(line.isprintable() for line in found)


def test_all_faults_at_once(tmp_path: Path) -> None:
    """A file with a wrong time, a wrong bandwidth and two wrong sites has a line for each."""
    found = faults(
        tmp_path,
        GOOD
        | {
            "est": "some day",
            "sites": [{"id": "left", "type": "", "units": 0}, {"id": "right", "type": "vm", "units": 1}],
            "links": [{"from": "left", "to": "right", "bw": -1}],
        },
    )
    assert [line.partition(":")[0] for line in found] == ["est", "sites[0].type", "sites[0].units", "links[0].bw"]


@pytest.mark.parametrize(
    ("text", "name", "words"),
    [
        ("{", "t.json", "line 1, column 2: found no JSON"),
        ("[1]", "t.json", "found list, expected a table with sites and links"),
        ("a = ", "t.toml", "found no TOML: "),
        ("[" * 100_000, "t.json", "found lists in lists without end"),
    ],
)
def test_what_is_no_topology_file(tmp_path: Path, text: str, name: str, words: str) -> None:
    """Broken JSON and TOML and anything but a table are told where they are broken."""
    (found,) = faults(tmp_path, text, name)
    assert found.startswith(words)


def test_bytes_that_are_no_text_and_a_file_that_is_not_there(tmp_path: Path) -> None:
    """Neither ends in a traceback."""
    file = tmp_path / "t.toml"
    with pytest.raises(TopologyFileError, match="can't be read: No such file"):
        read_topology_file(file, NOW)
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(TopologyFileError, match="not UTF-8"):
        read_topology_file(file, NOW)


def test_options_that_don_t_go_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What the file says itself can't be said beside it, and without a file type, units and time are needed."""
    file = written(tmp_path, GOOD)
    for words, said in (
        (["vm", "4", "--for", "1h", "--topology", str(file)], "TYPE goes without --topology"),
        (["--for", "1h", "--topology", str(file)], "--for goes without --topology"),
        (["vm", "4", "--for", "1h", "--tries", "2"], "--tries goes with --topology"),
        ([], "Missing argument 'TYPE'"),
        (["vm"], "Missing argument 'UNITS'"),
        (["vm", "4"], "Missing option '--for'"),
    ):
        assert main.run(["lease", "request", *words, "--control", str(tmp_path / "none")]) == main.EXIT_USAGE
        assert said in capsys.readouterr().err


def test_faults_of_a_file_are_told_before_any_daemon_is_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each fault is a line on standard error, and the exit status is 1."""
    file = written(tmp_path, GOOD | {"sites": [], "links": [], "colour": "red"})
    found = main.run(["lease", "request", "--topology", str(file), "--control", str(tmp_path / "none")])
    assert found == main.EXIT_ERROR
    lines = capsys.readouterr().err.splitlines()
    assert lines
    assert all(line.startswith(f"leasekit: {file}: ") for line in lines)


def test_instants_in_faults_are_dates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What a file has wrong about times is said as dates, not as milliseconds."""
    wrong = {key: value for key, value in GOOD.items() if key not in ("start", "est", "lst")}
    file = written(tmp_path, wrong | {"est": "2027-03-01T12:00Z", "lst": "2027-03-01T11:00Z"})
    assert main.run(["lease", "request", "--topology", str(file), "--control", str(tmp_path / "none")])
    said = capsys.readouterr().err
    assert "2027-03-01" in said and "before est" in said and "17" not in said.replace(str(file), "")
