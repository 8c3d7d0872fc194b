"""Sweeps: in several processes, ended and gone on with, and what is averaged over seeds."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from polling import poll

from leasekit.cli import main
from leasekit.core.errors import LeasekitError
from leasekit.emulation.experiment import run_file
from leasekit.emulation.spread import spread

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
plot = [{ kind = "site_usage" }, { kind = "purchase", x = "actor.lab.inventory.0.units" }, { kind = "demand_holdings" }]
"""


def lab(folder: Path, text: str = LAB) -> Path:
    """A file with this text."""
    file = folder / "lab.toml"
    file.write_text(text)
    return file


def contents(folder: Path) -> dict[str, bytes]:
    """All that repeats."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file() and path.stem != "measured"}


def test_several_processes_write_what_one_does(tmp_path: Path) -> None:
    """The same bytes: tables, series, pictures, in the order of the file."""
    file = lab(tmp_path)
    run_file(file, tmp_path / "one")
    run_file(file, tmp_path / "two", jobs=2)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


async def test_a_sweep_goes_on_where_it_was_killed(tmp_path: Path) -> None:
    """Killed with all its processes as soon as a run is over: what is over is not run again, and in the end all is as
    if nothing had happened. A run that was changed since is run again.
    """
    file, out = lab(tmp_path), tmp_path / "out"
    arguments = [sys.executable, "-m", "leasekit.cli.main", "emulate", str(file), "--out", str(out), "--jobs", "2"]
    sweep = subprocess.Popen(arguments, start_new_session=True, stderr=subprocess.PIPE)
    first = out / "kept" / "nodes_2.json"
    await poll(lambda: first.exists() or sweep.poll() is not None)
    os.killpg(sweep.pid, signal.SIGKILL)
    sweep.communicate()
    assert first.exists(), "it was over before anything was killed, or never began"
    kept, told = first.stat().st_mtime_ns, list[str]()
    run_file(file, out, resume=True, tell=told.append)
    assert first.stat().st_mtime_ns == kept and told[0].endswith("of 3 runs are done already") and told[0][0] != "0"
    run_file(file, tmp_path / "whole")
    assert contents(out) == contents(tmp_path / "whole")
    lab(tmp_path, LAB.replace("peak = 6", "peak = 5"))
    run_file(file, out, resume=True, tell=told.append)
    assert told[-1] == "0 of 3 runs are done already"


def test_what_is_torn_is_run_again(tmp_path: Path) -> None:
    """A file that is not whole is none."""
    file, out = lab(tmp_path), tmp_path / "out"
    run_file(file, out)
    torn = out / "kept" / "nodes_4.json"
    torn.write_text(torn.read_text()[:100])
    told: list[str] = []
    run_file(file, out, resume=True, tell=told.append)
    assert told == ["2 of 3 runs are done already"]


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


def test_a_cluster_comes_to_the_same(tmp_path: Path) -> None:
    """Runs on a Dask cluster of two worker processes."""
    from distributed import LocalCluster

    file = lab(tmp_path)
    run_file(file, tmp_path / "one")
    with LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, silence_logs=50
    ) as cluster:
        run_file(file, tmp_path / "two", dask=cluster.scheduler_address)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


def test_a_cluster_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In words that name the option."""
    assert main.run(["emulate", str(lab(tmp_path)), "--dask", "nonsense://x"]) == 1
    assert "--dask: found 'nonsense://x', where no Dask scheduler answers" in capsys.readouterr().err
