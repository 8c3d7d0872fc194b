"""Experiments: that they repeat, what they write, and what they say when they can't run."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasekit.cli import main
from leasekit.config.load import load
from leasekit.core.errors import LeasekitError
from leasekit.emulation.experiment import file_stems, run_file, run_one

DEPLOY = Path(__file__).resolve().parents[2] / "deploy" / "emulation"
MEASURED = "measured.json"
LEASE_ID = re.compile(rb"\b[0-9a-f]{16}-(\d+)\b")
"""A lease's name begins with some of its actor's key."""

Edit = Callable[[str], str]


def variant(folder: Path, name: str, edit: Edit = str, horizon: str = "8h") -> Path:
    """A deploy file of ``deploy/emulation`` with a shorter horizon, changed further by ``edit``."""
    text = (DEPLOY / name).read_text()
    shorter, count = re.subn(r'(?m)^horizon = "[^"]*"', f'horizon = "{horizon}"', text)
    assert count == 1
    file = folder / name
    file.write_text(edit(shorter))
    (folder / "injector.py").write_text((DEPLOY / "injector.py").read_text())
    return file


def without_pictures(text: str) -> str:
    """The file's text up to its first picture."""
    return text.partition("[[emulation.plot]]")[0]


def with_one_picture(text: str) -> str:
    """The file's text with one picture only."""
    return without_pictures(text) + '[[emulation.plot]]\nkind = "guests"\n'


def with_one_run(text: str) -> str:
    """The file's text without variants, and without pictures of them."""
    return text.partition("[[emulation.run]]")[0]


def contents(folder: Path) -> dict[str, bytes]:
    """All files by name but what a clock measured, which those of the folder of kept runs have as well."""
    files = (path for path in sorted(folder.iterdir()) if path.is_file())
    return {path.name: path.read_bytes() for path in files if path.name != MEASURED}


# -- the same again ------------------------------------------------------------------------------------------------


def emulate_in_process_of_its_own(file: Path, out: Path, hash_seed: str, *options: str) -> dict[str, Any]:
    """What a command line of its own, with its own order of sets, prints as JSON; nothing else may be on stdout."""
    command = [sys.executable, "-m", "leasekit.cli.main", "emulate", str(file), "--out", str(out), "--json", *options]
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert isinstance(summary, dict)
    return summary


def test_the_same_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    """Two processes that order their sets differently write the same summary, series, transition log and pictures;
    signatures change the names of leases in the log and the flag that says so, and nothing else; the JSON on stdout is
    the summary with what was measured.
    """
    file = variant(tmp_path, "month.toml", with_one_picture)
    emulate_in_process_of_its_own(file, tmp_path / "one", "1")
    printed = emulate_in_process_of_its_own(file, tmp_path / "two", "2")
    emulate_in_process_of_its_own(file, tmp_path / "signed", "3", "--signatures")
    one, two, signed = (contents(tmp_path / name) for name in ("one", "two", "signed"))

    assert one == two
    assert {"summary.json", "transitions.csv", "series.csv", "guests.png", "guests.svg"} <= one.keys()
    assert len(one["transitions.csv"].splitlines()) > 500

    assert {name for name in one if one[name] != signed[name]} == {"summary.json", "transitions.csv"}
    flag = (b'"signatures": false', b'"signatures": true')
    assert one["summary.json"].replace(*flag) == signed["summary.json"]
    logs = [LEASE_ID.sub(rb"KEY-\1", found["transitions.csv"]) for found in (one, signed)]
    assert logs[0] == logs[1]

    measured = {run["run"]: run.pop("measured") for run in printed["runs"]}
    assert printed == json.loads(two["summary.json"])
    assert measured == json.loads((tmp_path / "two" / MEASURED).read_text())


def test_another_seed_gives_another_run(tmp_path: Path) -> None:
    """The seed draws load and latencies: with another one the series and the log differ, and the summary says which
    it was.
    """
    file = variant(tmp_path, "month.toml", without_pictures)
    first = run_file(file, tmp_path / "one")
    other = run_file(file, tmp_path / "two", seed=2)
    assert (first["seed"], other["seed"]) == (1, 2)
    one, two = contents(tmp_path / "one"), contents(tmp_path / "two")
    assert all(one[name] != two[name] for name in ("series.csv", "transitions.csv", "summary.json"))


@pytest.mark.parametrize("latency", ["0s", "20ms", "1500ms"])
def test_skipped_ticks_change_nothing(tmp_path: Path, latency: str) -> None:
    """With every tick executed, and with idle ones skipped, a run has the same log, series and events."""
    found = {}
    for ticks in ("every", "due"):
        file = variant(tmp_path, "month.toml", horizon="3h")
        deployment = load(file).with_overrides({"emulation.ticks": ticks, "emulation.message_latency": latency})
        assert deployment.emulation is not None
        out = tmp_path / ticks
        out.mkdir()
        summary = dict(run_one(deployment, deployment.emulation.runs[0], out).summary)
        assert summary.pop("ticks_executed").startswith("every" if ticks == "every" else "only")
        del summary["measured"]
        found[ticks] = summary, contents(out)
    assert found["every"] == found["due"]


def test_progress_changes_nothing(tmp_path: Path) -> None:
    """A run that tells its progress is the same run; shares rise to 1."""
    file = variant(tmp_path, "scaling.toml", with_one_run, "2h1m")
    shares: list[float] = []
    run_file(file, tmp_path / "told", progress=lambda run, share: shares.append(share))
    run_file(file, tmp_path / "untold")
    assert contents(tmp_path / "told") == contents(tmp_path / "untold")
    assert shares == sorted(shares)
    assert shares[-1] == 1


# -- what is written -----------------------------------------------------------------------------------------------


@given(st.lists(st.text("aA_ ./-2é", max_size=4), unique=True))
def test_every_run_has_files_of_its_own(names: list[str]) -> None:
    """Names that are the same once they are file names get a number; none has a slash, and they differ also where
    case doesn't count.
    """
    stems = file_stems(names)
    assert len({stem.casefold() for stem in stems}) == len(names)
    assert not any(set(stem) & set("/ \\:*?") for stem in stems)


def test_runs_whose_names_look_alike_keep_their_results_apart(tmp_path: Path) -> None:
    """Two runs named ``a b`` and ``a_b`` each have a log and a series, told apart in the order of the file."""
    runs = "".join(
        f'[[emulation.run]]\nname = "{name}"\nset = {{ "actor.guest.mapper.leases" = {leases} }}\n'
        for name, leases in (("a b", 8), ("a_b", 24))
    )
    file = variant(tmp_path, "scaling.toml", lambda text: with_one_run(text) + runs, "1h1m")
    out = tmp_path / "out"
    summary = run_file(file, out)
    assert sorted(contents(out)) == [
        "a_b-2-series.csv", "a_b-2-transitions.csv", "a_b-series.csv", "a_b-transitions.csv", "runs.csv",
        "runs.parquet", "summary.json",
    ]  # fmt: skip
    for run, stem in zip(summary["runs"], ["a_b", "a_b-2"], strict=True):
        assert len((out / f"{stem}-transitions.csv").read_text().splitlines()) == run["transitions"] + 1


def test_edges_of_the_horizon(tmp_path: Path) -> None:
    """The horizon is half-open: the log ends before it, series have one row for each sample from the warm-up's end
    on, and a term that starts with the horizon's end is never begun.
    """
    file = variant(tmp_path, "scaling.toml", with_one_run, "2h1m")
    out = tmp_path / "out"
    (run,) = run_file(file, out)["runs"]
    end = run["horizon_ms"]
    assert (end, run["ticks"]) == (7_260_000, 7_260)
    with (out / "transitions.csv").open(newline="") as log:
        rows = list(csv.DictReader(log))
    assert rows[0]["at"] == "0"
    # The third term is redeemed 5 s before it starts; its units are not set up any more.
    assert max(int(row["at"]) for row in rows) == end - 5_000
    assert run["flips"] == sum(row["event"] == "unit setup" for row in rows) == 2 * 240
    with (out / "series.csv").open(newline="") as series:
        instants = [int(row["instant_ms"]) for row in csv.DictReader(series)]
    assert instants == list(range(0, end, 300_000))


def test_a_fraction_of_a_tick_at_the_end(tmp_path: Path) -> None:
    """A horizon that is no whole number of ticks runs to its very end, and counts the ticks that fit into it."""
    file = variant(
        tmp_path,
        "scaling.toml",
        lambda text: with_one_run(text).replace('tick = "1s"', 'tick = "7s"'),
        "2h1m",
    )
    (run,) = run_file(file)["runs"]
    assert run["ticks"] == 1037
    assert run["measured"]["alpha_ms"] > 0
    assert run["flips"] == 480


def test_minimum_term_and_flips(tmp_path: Path) -> None:
    """The minimum term is alpha times the ticks of a term, and flips a second are its N nodes by the minimum term."""
    file = variant(tmp_path, "scaling.toml", with_one_run, "10h1m")
    measured = run_file(file)["runs"][0]["measured"]
    assert measured["minimum_term_s"] == pytest.approx(measured["alpha_ms"] * 3600 / 1000, rel=1e-3)
    # Ten terms and the minute before the first: one in six hundred.
    assert measured["flips_per_s"] == pytest.approx(240 / measured["minimum_term_s"], rel=1 / 300)


def test_generated_load_in_place_of_traces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With ``synthetic`` no trace is read, wherever traces may be, and the summary says so."""
    monkeypatch.setenv("LEASEKIT_DATA", str(tmp_path))
    summary = run_file(variant(tmp_path, "compete.toml"), synthetic=True)
    assert summary["synthetic"] is True
    assert [run["guests"]["web"]["mean_demand"] > 0 for run in summary["runs"]] == [True, True]


# -- what can't run ------------------------------------------------------------------------------------------------


def told(capfd: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line of an error, of a command that fails and prints nothing else."""
    assert main.run(["emulate", *arguments]) == 1
    out, error = capfd.readouterr()
    assert out == ""
    lines = error.splitlines()
    assert len(lines) == 1, error
    return lines[0]


def test_missing_traces(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """One message names every missing trace, where each is published, where it was looked for, and the way out."""
    line = told(capfd, str(DEPLOY / "compete.toml"), "--data", str(tmp_path))
    assert line.count("worldcup98-5min.csv.gz") == line.count("LPC-EGEE-2004-1.2-cln-5min.csv.gz") == 1
    assert "https://ita.ee.lbl.gov/html/contrib/WorldCup.html" in line
    assert "the Parallel Workloads Archive" in line
    assert f"looked in {tmp_path}" in line
    assert "--synthetic" in line


def test_one_missing_trace(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Nothing is said of a trace that is there."""
    batch = tmp_path / "lpc-egee" / "LPC-EGEE-2004-1.2-cln-5min.csv.gz"
    batch.parent.mkdir()
    rows = "".join(f"{1111790100 + 300 * n},{n % 7}\n" for n in range(8641))
    batch.write_text("timestamp_s,running_procs\n" + rows)
    line = told(capfd, str(DEPLOY / "compete.toml"), "--data", str(tmp_path))
    assert "trace is missing: worldcup98/worldcup98-5min.csv.gz" in line
    assert "LPC-EGEE" not in line


@pytest.mark.parametrize("how", ["option", "environment"])
def test_data_that_is_no_folder(
    how: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A data folder that does not exist is named, with what should be there."""
    wrong = str(tmp_path / "nowhere")
    if how == "environment":
        monkeypatch.setenv("LEASEKIT_DATA", wrong)
    line = told(capfd, str(DEPLOY / "terms.toml"), *(["--data", wrong] if how == "option" else []))
    assert line == (
        f"leasekit: {'--data' if how == 'option' else 'LEASEKIT_DATA'}: found {wrong}, which is not a folder; "
        "allowed is the folder with the traces"
    )


def test_no_emulation_table(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A deploy file that doesn't say how long to run is told so by name."""
    file = tmp_path / "plain.toml"
    text = (DEPLOY / "month.toml").read_text().partition("[emulation]")[0]
    file.write_text(text.replace("signatures = false", ""))
    assert told(capfd, str(file)) == (
        f"leasekit: {file}: found no [emulation] table, expected one that says how long to run"
    )


@pytest.mark.parametrize("out", ["file", "file/below"])
def test_out_that_can_not_be_written(out: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A file in the place of the folder for results, or above it, is one line that names it, before anything runs."""
    (tmp_path / "file").write_text("mine")
    file = variant(tmp_path, "month.toml")
    line = told(capfd, str(file), "--out", str(tmp_path / out))
    assert str(tmp_path / out) in line
    assert "expected a folder to write results to" in line
    assert (tmp_path / "file").read_text() == "mine"


def test_a_file_of_results_that_can_not_be_written(tmp_path: Path) -> None:
    """A folder in the place of a file of results is named too."""
    file = variant(tmp_path, "month.toml", without_pictures, "1h")
    (tmp_path / "out" / "series.csv").mkdir(parents=True)
    with pytest.raises(LeasekitError, match=r"out/series\.csv: found 'Is a directory', expected a folder to write"):
        run_file(file, tmp_path / "out")
