"""``leasekit mapper list | compare | check | workload`` as they are typed."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path
from typing import Any

import pytest

from leasekit.cli import main

TESTS = Path(__file__).resolve().parents[1]
ENERGY = TESTS.parent / "deploy" / "energy" / "energy.toml"
MONTH = TESTS.parent / "deploy" / "emulation" / "month.toml"


@pytest.fixture(autouse=True)
def misfits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The misfits are found, here and in other processes."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.syspath_prepend(TESTS)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A small job log."""
    path = tmp_path / "jobs.swf"
    assert main.run(["mapper", "workload", str(path), "--jobs", "80", "--nodes", "16", "--seed", "4"]) == 0
    return path


def _json(capsys: pytest.CaptureFixture[str], *words: str, status: int = 0) -> Any:
    capsys.readouterr()
    assert main.run([*words, "--json"]) == status
    return json.loads(capsys.readouterr().out)


def test_list_has_what_comes_with_leasekit(capsys: pytest.CaptureFixture[str]) -> None:
    """Every built-in mapper is there with its role; --role leaves the others out."""
    found = {(entry["name"], entry["role"]) for entry in _json(capsys, "mapper", "list")}
    assert {("fcfs", "broker"), ("first_fit", "authority"), ("manual", "guest")} <= found
    assert {entry["role"] for entry in _json(capsys, "mapper", "list", "--role", "guest")} == {"guest"}


def test_compare_writes_tables_and_pictures(tmp_path: Path, log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same log through two mappers: JSON, a table, a row for each job, and three pictures as PNG and SVG."""
    out = tmp_path / "out"
    words = ("mapper", "compare", "fcfs", "backfill", "--swf", str(log), "--nodes", "16", "--out", str(out))
    document = _json(capsys, *words)
    assert [run["mapper"] for run in document["runs"]] == ["fcfs", "backfill"]
    assert document["failed"] == {}
    names = {path.name for path in out.iterdir()}
    pictures = {f"{name}.{kind}" for name in ("measures", "waits", "usage") for kind in ("png", "svg")}
    assert names == pictures | {"summary.json", "summary.csv", "requests.csv"}
    rows = list(csv.DictReader((out / "requests.csv").open()))
    assert len(rows) == 80
    assert all(float(row["start_s fcfs"]) >= float(row["submit_s"]) for row in rows)
    summaries = list(csv.DictReader((out / "summary.csv").open()))
    assert [float(row["mean_wait_s"]) for row in summaries] == [run["mean_wait_s"] for run in document["runs"]]


def test_pictures_are_the_same_each_time(tmp_path: Path, log: Path) -> None:
    """Two comparisons of the same log draw the same pictures, byte for byte."""
    words = ("mapper", "compare", "fcfs", "--swf", str(log), "--nodes", "16", "--out")
    for name in ("one", "two"):
        assert main.run([*words, str(tmp_path / name)]) == 0
    for picture in (tmp_path / "one").glob("*.svg"):
        assert picture.read_bytes() == (tmp_path / "two" / picture.name).read_bytes()


def test_compare_takes_a_workload_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A workload of reservations is counted by kind."""
    file = tmp_path / "w.csv"
    rows = ["0,100,200,100,4,ar", "0,0,,60,2,im", "1,1,,60,4,im", "2,2,,30,2,be"]
    file.write_text("submit_s,earliest_start_s,deadline_s,duration_s,nodes,kind\n" + "\n".join(rows) + "\n")
    (run,) = _json(capsys, "mapper", "compare", "fcfs", "--workload", str(file), "--nodes", "4")["runs"]
    assert run["kinds"] == {
        "ar": {"accepted": 1, "refused": 0},
        "be": {"accepted": 1, "refused": 0},
        "im": {"accepted": 1, "refused": 1},
    }


def test_compare_remarks_what_was_booked_ahead(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A mapper that books ahead of work that ends early is remarked, with those that don't; a line is not."""
    words = ["mapper", "compare", "fcfs", "fcfs:backfill=false", "--swf", str(log), "--nodes", "16"]
    assert main.run(words) == 0
    remarks = [line for line in capsys.readouterr().err.splitlines() if "booked ahead" in line]
    assert len(remarks) == 1 and remarks[0].startswith("fcfs: ") and "fcfs:backfill=false" in remarks[0]


def test_compare_with_suspension(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Work that is suspended is remarked; how long that takes is --memory over --rate, and nothing else is taken."""
    file = tmp_path / "workload.csv"
    rows = ("0,0,,600,4,be", "60,300,400,100,4,ar")
    file.write_text("submit_s,earliest_start_s,deadline_s,duration_s,nodes,kind\n" + "\n".join(rows) + "\n")
    words = ("mapper", "compare", "backfill:suspension=all", "--workload", str(file), "--nodes", "4")
    spans = {}
    for memory in ("1024", "2048"):
        (run,) = _json(capsys, *words, "--memory", memory)["runs"]
        assert (run["accepted"], run["measured"]["suspensions"]) == (1.0, 1)
        spans[memory] = run["makespan_s"]
    assert spans == {"1024": 700 + 2 * 32, "2048": 700 + 2 * 64}
    assert main.run([*words, "--out", str(tmp_path / "out")]) == 0
    assert "work was suspended 1 times" in capsys.readouterr().err
    for option in ("--memory", "--rate"):
        assert main.run([*words, option, "0"]) == 2
        assert f"Invalid value for '{option}'" in capsys.readouterr().err


def test_compare_tells_who_went_wrong(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What a mapper that overbooks decides is not carried out: that is told once and counted; the exit status is 1."""
    words = ["mapper", "compare", "fcfs", "misfit_mappers:Overbooks", "--swf", str(log), "--nodes", "16"]
    assert main.run(words) == 1
    shown = capsys.readouterr()
    assert "fcfs" in shown.out
    assert shown.err.count("it would overbook") == 1
    assert "the mapper misfit_mappers:Overbooks went wrong: decision not carried out: " in shown.err
    assert "the mapper fcfs" not in shown.err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["fcfs", "--nodes", "4"], "either --workload or --swf"),
        (["fcfs", "--swf", "x.swf"], "--swf and --workload need --nodes N"),
        (["fcfs", "--nodes", "4", "--swf", "x.swf", "--actor", "site"], "go together"),
        (["fcfs", "--in", "x.toml"], "go together"),
        (["fcfs", "--nodes", "4", "--swf", "x.swf", "--run", "a"], "--run goes with them"),
        (["fcfs", "--in", str(MONTH), "--actor", "nobody"], "--actor: found 'nobody'"),
        (["fcfs", "--in", str(MONTH), "--actor", "broker", "--run", "a"], "run: found 'a', but the file names none"),
        (["fcfs", "--nodes", "4", "--swf", "x.swf", "--engine", "dask"], "go together"),
        (["fcfs", "fcfs", "--nodes", "4", "--swf", "x.swf"], "given twice"),
        (["nosuch", "--nodes", "4", "--swf", "x.swf"], "found 'nosuch'"),
        (["manual", "--nodes", "4", "--swf", "x.swf"], "found 'manual'"),
        (["fcfs:balance=odd", "--nodes", "4", "--swf", "x.swf"], "balance"),
        (["fcfs", "--nodes", "0", "--swf", "x.swf"], "--nodes"),
        (
            ["fcfs", "--nodes", "4", "--jobs", "x.swf"],
            "found x.swf, expected a whole number from 1 on; a file is given "
            "by --workload FILE or --swf FILE or --in FILE",
        ),
        (["fcfs", "--nodes", "4", "--rate", "./x"], "found ./x, expected a number above 0; a file is given by --work"),
        (["fcfs", "x.swf.gz", "--nodes", "4"], "found the file 'x.swf.gz'; a job log is given by --swf"),
        (["fcfs", "--workload", "x.swf", "--nodes", "4"], "found the job log 'x.swf', which is given by --swf"),
        (["fcfs", "--nodes", "4", "--seed", "one"], "found one, expected a whole number (see"),
        (["fcfs", "--nodes", "4", "--swf", "nowhere.swf"], "nowhere.swf"),
        (["fcfs", "--nodes", "4", "--workload", "nowhere.csv"], "nowhere.csv"),
    ],
)
def test_compare_says_what_is_wrong(words: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What makes no sense is told before anything is run, in lines of leasekit's own."""
    assert main.run(["mapper", "compare", *words]) in (1, 2)
    shown = capsys.readouterr().err
    assert told in shown
    assert all(line.startswith("leasekit: ") for line in shown.splitlines())


@pytest.mark.parametrize(
    ("actor", "targets", "figures"),
    [
        (
            "web",
            ('load_following:type="node",term="2h"', 'load_following:type="node",term="1d"'),
            "unserved",
        ),
        ("east", ("first_fit", "filter_and_weigh"), "used"),
        ("broker", ("fcfs", "priority"), "refused"),
    ],
)
def test_mappers_of_any_role_meet_in_a_deploy_file(
    actor: str, targets: tuple[str, ...], figures: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each takes the place of the actor's own mapper; the figures are those that the role is judged by, and the same
    as an emulation of that file has. One that does not fit ends nothing for the others.
    """
    file = tmp_path / "day.toml"
    file.write_text(MONTH.read_text().replace('horizon = "30d"', 'horizon = "1d"'))
    out = tmp_path / "out"
    words = ("mapper", "compare", *targets, "nosuch", "--in", str(file), "--actor", actor, "--out", str(out))
    found = _json(capsys, *words, status=1)
    assert [run["mapper"] for run in found["runs"]] == list(targets)
    assert list(found["failed"]) == ["nosuch"] and "found 'nosuch'" in found["failed"]["nosuch"]
    assert figures in found["runs"][0]["figures"]
    rows = list(csv.DictReader((out / "summary.csv").open()))
    assert [row["mapper"] for row in rows] == list(targets)
    assert [float(row["asked"]) for row in rows] == [run["figures"]["asked"] for run in found["runs"]]
    if actor == "east":
        (run,) = _json(capsys, "emulate", str(file))["runs"]
        assert run["sites"] == found["runs"][0]["sites"]


def test_mappers_meet_in_a_variant_of_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the load that it sets: the file's own guest asks for nothing."""
    file = tmp_path / "energy.toml"
    file.write_text(ENERGY.read_text().replace('horizon = "14d"', 'horizon = "6h"'))
    words = ("mapper", "compare", "first_fit", "--in", str(file), "--actor", "site")
    asked = [_json(capsys, *words, *run)["runs"][0]["figures"]["asked"] for run in ((), ("--run", "EWMA"))]
    assert asked[0] == 0 < asked[1]


def test_a_mapper_that_does_not_fit_ends_nothing_for_the_others(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What can't be made is told before the runs, and the exit status is 1; the others have their figures."""
    words = ("mapper", "compare", "fcfs:balance=odd", "fcfs", "--swf", str(log), "--nodes", "16")
    found = _json(capsys, *words, status=1)
    assert [run["mapper"] for run in found["runs"]] == ["fcfs"]
    assert "balance" in found["failed"]["fcfs:balance=odd"]


def test_check_passes_what_is_right(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No fault, exit status 0, no file, and what a turn costs at three sizes."""
    found = _json(capsys, "mapper", "check", "fcfs", "--cases", "6", "--out", str(tmp_path / "cases"))
    assert (found["role"], found["cases"], found["faults"], found["files"]) == ("broker", 6, {}, [])
    assert [cost["size"] for cost in found["costs"]] == [10, 1_000, 10_000]
    assert not (tmp_path / "cases").exists()


def test_check_writes_what_fails_and_plays_it_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The failing case goes to a file, and --replay shows the turn in which it fails."""
    words = ("mapper", "check", "misfit_mappers:Overbooks", "--cases", "8", "--out", str(tmp_path))
    found = _json(capsys, *words, status=1)
    assert list(found["faults"]) == ["never overbooks"]
    (file,) = found["files"]
    again = _json(capsys, "mapper", "check", "misfit_mappers:Overbooks", "--replay", file, status=1)
    assert again["faults"][0][0] == "never overbooks"
    _, shown, decided = again["turns"][-1]
    assert shown[0].startswith("new ")
    assert "free throughout its term" in shown[1]
    assert "Grant" in decided[0]
    assert main.run(["mapper", "check", "misfit_mappers:Overbooks", "--replay", file]) == 1
    told = capsys.readouterr()
    heading, *lines = told.out.splitlines()
    assert heading.split() == ["at", "ms", "shown", "decided"]
    assert all(text in told.out for _, *both in again["turns"] for texts in both for text in texts)
    assert len(lines) == sum(max(len(shown), len(decided or [""])) for _, shown, decided in again["turns"])
    assert told.err.startswith("never overbooks: ")
    assert main.run(["mapper", "check", "fcfs", "--replay", file]) == 0
    assert "nothing wrong with this case" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("target", "role"),
    [
        pytest.param('static:demands=[{type="vm",units=2,term="1h"}]', "guest", marks=pytest.mark.soak),
        ('energy:types=["vm", "host"]', "authority"),
    ],
)
def test_check_takes_mappers_of_each_role(target: str, role: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Guests' and sites' mappers are checked as brokers' are; settings may hold tables and commas."""
    found = _json(capsys, "mapper", "check", target, "--cases", "6")
    assert (found["role"], found["faults"]) == (role, {})


def test_check_of_a_file_with_one_mapper(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file is enough where it has one mapper; where it has several, or none, that is told."""
    one, two, none = (tmp_path / f"{name}.py" for name in ("one", "two", "none"))
    one.write_text("from leasekit.policies.broker.fcfs import Fcfs\n\n\nclass Mine(Fcfs):\n    pass\n")
    two.write_text(one.read_text() + "\n\nclass Other(Fcfs):\n    pass\n")
    none.write_text("import sys\n")
    assert _json(capsys, "mapper", "check", str(one), "--cases", "3")["role"] == "broker"
    assert main.run(["mapper", "check", str(two)]) == 1
    assert f"expected {two}:Mine or {two}:Other" in capsys.readouterr().err
    assert main.run(["mapper", "check", str(none)]) == 1
    assert "has the method of no role" in capsys.readouterr().err


def test_check_takes_settings_from_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Settings that a mapper needs come from a TOML file; without them one line says what is missing."""
    settings = tmp_path / "settings.toml"
    settings.write_text('demands = [{ type = "vm", units = 2, term = "1h" }]\n')
    words = ("mapper", "check", "static", "--cases", "3")
    found = _json(capsys, *words, "--settings", str(settings))
    assert found["faults"] == {}
    assert main.run([*words]) == 1
    assert "leasekit: mapper.demands: " in capsys.readouterr().err


def test_check_says_what_is_wrong_with_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A replay of what is no case is told with its name."""
    (tmp_path / "x.json").write_text("{}")
    assert main.run(["mapper", "check", "fcfs", "--replay", str(tmp_path / "x.json")]) == 1
    assert "x.json" in capsys.readouterr().err
