"""Sweeps: in several processes, ended and gone on with, and what is averaged over seeds."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from polling import PATIENCE, poll

from leasekit.cli import main
from leasekit.core.errors import LeasekitError
from leasekit.emulation import experiment, plots
from leasekit.emulation.experiment import run_file
from leasekit.emulation.spread import spread, spread_over
from leasekit.emulation.tidy import interval

LAB = """
deployment.signatures = false
actor.broker.role = "broker"

[actor.lab]
role = "authority"
inventory = [{ type = "node", units = 4 }]
delegation = [{ broker = "broker", type = "node" }]

[actor.web]
role = "guest"
mapper = { name = "load_following", type = "node", term = "2h", signal = { synthetic = {}, peak = 6 } }

[emulation]
horizon = "2d"
run = [{ name = "nodes", each = { "actor.lab.inventory.0.units" = [2, 4, 6] } }]
plot = [{ kind = "purchase", x = "actor.lab.inventory.0.units" }]
"""
MORE = '{ kind = "site_usage", file = "more" }'


def lab(folder: Path, text: str = LAB) -> Path:
    """A file with this text."""
    file = folder / "lab.toml"
    file.write_text(text)
    return file


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the file comes to in one process."""
    folder = tmp_path_factory.mktemp("whole")
    run_file(lab(folder), folder / "out")
    return folder / "out"


def contents(folder: Path) -> dict[str, bytes]:
    """All that repeats."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file() and path.stem != "measured"}


@pytest.mark.soak  # a sweep that goes on where it was killed comes to the same, too
def test_several_processes_write_what_one_does(tmp_path: Path, whole: Path) -> None:
    """The same bytes: tables, series, a picture, in the order of the file."""
    run_file(lab(tmp_path), tmp_path / "two", jobs=2)
    assert contents(tmp_path / "two") == contents(whole)


def test_an_interrupt_as_the_table_is_written_leaves_it_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C may come while runs.csv is open: what is over is in it all the same."""
    write, out = experiment.write_table, tmp_path / "out"

    def interrupted(rows: Sequence[Mapping[str, Any]], to: Path) -> None:
        monkeypatch.setattr(experiment, "write_table", write)
        (to / "runs.csv").write_text("")
        raise KeyboardInterrupt

    monkeypatch.setattr(experiment, "write_table", interrupted)
    summary = run_file(lab(tmp_path), out)
    assert (summary["stopped_by"], summary["not_run"]) == ("interrupt", ["nodes 4", "nodes 6"])
    with (out / "runs.csv").open(newline="") as lines:
        assert [row["run"] for row in csv.DictReader(lines)] == ["nodes 2"]


async def test_a_sweep_goes_on_where_it_was_killed(tmp_path: Path, whole: Path) -> None:
    """Killed as soon as a run is over, all its processes end with it: what is over is not run again, and in the end all
    is as if nothing had happened. A run that was changed since is run again.
    """
    file, out = lab(tmp_path), tmp_path / "out"
    sweep = begin_sweep(file, out)
    first = out / "kept" / "nodes_2.json"
    await poll(lambda: first.exists() or sweep.poll() is not None)
    sweep.kill()
    sweep.communicate(timeout=PATIENCE)  # its processes have the same pipe: it ends with the last of them
    assert first.exists(), "it was over before anything was killed, or never began"
    kept, told = first.stat().st_mtime_ns, list[str]()
    run_file(file, out, resume=True, tell=told.append)
    assert first.stat().st_mtime_ns == kept and told[0].endswith("of 3 runs are done already") and told[0][0] != "0"
    assert contents(out) == contents(whole)
    lab(tmp_path, LAB.replace("peak = 6", "peak = 5"))
    run_file(file, out, resume=True, tell=told.append)
    assert "0 of 3 runs are done already" in told


async def test_an_interrupt_ends_all_processes(tmp_path: Path) -> None:
    """As a terminal's Ctrl-C, which reaches all of them: no traceback, what is done is written, and how to go on."""
    file, out = lab(tmp_path, LAB.replace("[2, 4, 6]", "[2, 3, 4, 5, 6, 7]")), tmp_path / "out"
    sweep = begin_sweep(file, out)
    await poll(lambda: (out / "kept" / "nodes_2.json").exists() or sweep.poll() is not None)
    os.killpg(sweep.pid, signal.SIGINT)
    _, said = sweep.communicate()
    assert sweep.returncode == 130, said
    assert b"Traceback" not in said and b"--resume" in said
    done = len(json.loads((out / "summary.json").read_text())["runs"])
    assert done < 6 and len(list(out.glob("*transitions.csv"))) == done


def begin_sweep(file: Path, out: Path) -> subprocess.Popen[bytes]:
    """A sweep in two processes of a group of their own."""
    arguments = [sys.executable, "-m", "leasekit.cli.main", "emulate", str(file), "--out", str(out), "--jobs", "2"]
    return subprocess.Popen(arguments, start_new_session=True, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)


def test_a_sweep_goes_on_with_more(tmp_path: Path, whole: Path) -> None:
    """With other values and pictures what is over is not run again: a run does not depend on them."""
    out, told = tmp_path / "out", list[str]()
    shutil.copytree(whole, out)
    file = lab(tmp_path, LAB.replace("[2, 4, 6]", "[2, 3, 6]").replace("plot = [", f"plot = [{MORE}, "))
    run_file(file, out, resume=True, tell=told.append)
    assert told[0] == "2 of 3 runs are done already" and list(out.glob("more*.svg"))
    runs = json.loads((out / "summary.json").read_text())["runs"]
    assert [run["run"] for run in runs] == ["nodes 2", "nodes 3", "nodes 6"]


def test_what_is_torn_is_run_again(tmp_path: Path, whole: Path) -> None:
    """A file that is not whole is none."""
    file, out = lab(tmp_path), tmp_path / "out"
    shutil.copytree(whole, out)
    torn = out / "kept" / "nodes_4.json"
    torn.write_text(torn.read_text()[:100])
    told: list[str] = []
    run_file(file, out, resume=True, tell=told.append)
    assert told[0] == "2 of 3 runs are done already" and "nodes 4" in told[1]


def test_resume_needs_results(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without ``--out`` there is nothing to go on with."""
    assert main.run(["emulate", str(lab(tmp_path)), "--resume"]) == 1
    assert "resume: found no folder of results" in capsys.readouterr().err


def test_an_error_in_another_process_is_told_in_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No traceback."""
    text = LAB.replace("synthetic = {}", 'file = "nowhere.csv"')
    assert main.run(["emulate", str(lab(tmp_path, text)), "--jobs", "2", "--data", str(tmp_path)]) == 1
    said = capsys.readouterr().err
    assert "nowhere" in said and "Traceback" not in said


def _end(number: int) -> int:
    if number == 1:
        os._exit(3)
    return number


def test_a_process_that_ends_by_itself_is_told() -> None:
    """As one that is out of memory does."""
    with pytest.raises(LeasekitError, match="a process ended by itself"):
        list(spread(_end, [0, 1, 2], jobs=2))


def test_what_is_done_early_waits_for_its_place() -> None:
    """Results in the order of the work: the first takes longest."""
    assert list(spread_over(_counted, [1_000_000, 1, 2, 3], jobs=2)) == [1_000_000, 1, 2, 3]


def _counted(number: int) -> int:
    return sum(1 for _ in range(number))


def test_a_cluster_comes_to_the_same(tmp_path: Path, whole: Path) -> None:
    """Runs on a Dask cluster of two worker processes."""
    from distributed import LocalCluster

    with LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, silence_logs=50
    ) as cluster:
        run_file(lab(tmp_path), tmp_path / "two", dask=cluster.scheduler_address)
    assert contents(tmp_path / "two") == contents(whole)


def test_a_cluster_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In words that name the option."""
    assert main.run(["emulate", str(lab(tmp_path)), "--dask", "nonsense://x"]) == 1
    assert "--dask: found 'nonsense://x', where no Dask scheduler answers" in capsys.readouterr().err


SEEDED = (
    LAB.replace('horizon = "2d"', 'horizon = "1d"\nseeds = 3')
    .replace("[2, 4, 6]", "[2, 6]")
    .replace("plot = [", 'plot = [{ kind = "runs", x = "lab.node.used", y = "web.unserved" }, ')
)


@pytest.fixture(scope="module")
def seeded(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    """What two sizes with three seeds come to: the summary, and its folder."""
    folder = tmp_path_factory.mktemp("seeded")
    return run_file(lab(folder, SEEDED), folder / "out"), folder / "out"


def test_each_run_has_each_seed(seeded: tuple[dict[str, Any], Path]) -> None:
    """Two sizes, three seeds: six runs, two means, each with the interval that its three values have."""
    summary, _ = seeded
    assert [run["run"] for run in summary["runs"]] == [f"nodes {n} seed {s}" for n in (2, 6) for s in (0, 1, 2)]
    assert [one["set"] for one in summary["means"]] == [{"actor.lab.inventory.0.units": n} for n in (2, 6)]
    (small, _) = summary["means"]
    values = [run["guests"]["web"]["unserved"] for run in summary["runs"][:3]]
    assert len(set(values)) == 3, "seeds draw other loads"
    expected = {key: value for key, value in interval(values).items() if key != "seeds"}
    assert small["seeds"] == 3 and small["figures"]["web.unserved"] == expected
    bought = summary["purchases"][0]["rows"]
    assert [row["units"] for row in bought] == [2, 6]
    assert bought[0]["unserved"] == pytest.approx(sum(values) / 3)


def test_one_table_has_all_runs(seeded: tuple[dict[str, Any], Path]) -> None:
    """A row for each run, as CSV and as Parquet, written after each run."""
    import polars

    summary, out = seeded
    with (out / "runs.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    frame = polars.read_parquet(out / "runs.parquet")
    assert frame.height == len(rows) == 6 and frame.columns == list(rows[0])
    for row, other, run in zip(rows, frame.iter_rows(named=True), summary["runs"], strict=True):
        assert float(row["web.unserved"]) == other["web.unserved"] == run["guests"]["web"]["unserved"]
        assert other["lab.node.used"] == run["sites"]["lab"]["used"]
        assert (other["emulation.seed"], other["series"]) == (run["seed"], "nodes")


def test_means_are_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By option as by the file; a half of the interval stands behind each mean."""
    file = lab(tmp_path, SEEDED.replace("seeds = 3\n", ""))
    assert main.run(["emulate", str(file), "--seeds", "2"]) == 0
    said = capsys.readouterr().out
    assert "mean, 95%" in said and " ± " in said and "units 6" in said


@pytest.mark.parametrize(("log", "units", "sites"), [("leases", False, True), ("guests", False, False)])
def test_the_log_is_thinned(tmp_path: Path, log: str, units: bool, sites: bool) -> None:
    """No units; leases of guests alone. What is said of the run is the same."""
    text = LAB.replace('horizon = "2d"', f'horizon = "1d"\nlog = "{log}"').replace("[2, 4, 6]", "[4]")
    thin = run_file(lab(tmp_path, text), tmp_path / "out")
    whole = run_file(lab(tmp_path, text.replace(f'log = "{log}"', "")), tmp_path / "whole")
    assert thin["runs"][0]["guests"] == whole["runs"][0]["guests"]
    lines = (tmp_path / "out" / "nodes_4-transitions.csv").read_text().splitlines()
    assert any(",lab," in line for line in lines) == sites and any(",unit " in line for line in lines) == units
    assert 1 < len(lines) < len((tmp_path / "whole" / "nodes_4-transitions.csv").read_text().splitlines())


def test_no_log(tmp_path: Path) -> None:
    """No file."""
    run_file(lab(tmp_path, LAB.replace('horizon = "2d"', 'horizon = "1d"\nlog = "none"')), tmp_path / "out")
    assert not list((tmp_path / "out").glob("*transitions*"))


def test_any_column_against_another(
    tmp_path: Path, seeded: tuple[dict[str, Any], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """A picture of two columns, with the interval over seeds; a column that is not there is named, with what is."""
    drawn = (seeded[1] / "runs.svg").read_text()
    assert "web.unserved" in drawn and "LineCollection" in drawn, "bars of errors"
    text = SEEDED.replace("web.uns", "web.unns").replace("seeds = 3\n", "")
    assert main.run(["emulate", str(lab(tmp_path, text)), "--out", str(tmp_path / "o")]) == 1
    assert "plot runs: y: found 'web.unnserved', expected one of" in capsys.readouterr().err
    assert (tmp_path / "o" / "summary.json").exists()


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("seeds = 0", "emulation.seeds: found 0"),
        ("seeds = [1, 1]", "emulation.seeds: found a list, but each seed may be there once"),
        ('seeds = 2\n[[emulation.run]]\nname = "a"\nset = { "emulation.seed" = 3 }', "set emulation.seed as well"),
        ('log = "units"', "emulation.log"),
        ('[[emulation.plot]]\nkind = "runs"\nx = "web.unserved"', "emulation.plot[0].y: found nothing"),
    ],
)
def test_what_is_wrong_is_said_before_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: str, words: str
) -> None:
    """One message that names the key."""
    text = LAB[: LAB.index("run = [")] + more
    assert main.run(["emulate", str(lab(tmp_path, text))]) == 1
    assert words in capsys.readouterr().err


def test_more_curves_than_can_be_told_apart_are_several_pictures(tmp_path: Path) -> None:
    """Nine curves: eight, and one."""
    curves = {f"curve {n}": [(0.0, float(n)), (1.0, float(n))] for n in range(9)}
    made = plots.against(tmp_path / "many", curves, "x", "y", title="many")
    assert [path.name for path in made] == ["many.png", "many.svg", "many-2.png", "many-2.svg"]
    first, second = made[1].read_text(), made[3].read_text()
    assert ("curve 7" in first, "curve 8" in first, "curve 8" in second) == (True, False, True)


@pytest.mark.parametrize(
    ("horizon", "shown"), [("5d", ["2027-03-02", "2027-03-06"]), ("26h", ["03-01 06:00", "03-02 00:00"])]
)
def test_a_start_that_is_a_date_has_dates_on_its_axis(tmp_path: Path, horizon: str, shown: list[str]) -> None:
    """The days of the calendar, or its whole hours, in UTC, instead of days since the start."""
    text = LAB[: LAB.index("run = [")].replace('"2d"', f'"{horizon}"\nstart = "2027-03-01T01:30Z"')
    run_file(lab(tmp_path, text + 'plot = [{ kind = "site_usage" }]'), tmp_path / "out")
    drawn = (tmp_path / "out" / "site_usage.svg").read_text()
    assert all(f">{one}<" in drawn for one in shown) and "days since" not in drawn
