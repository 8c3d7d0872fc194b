"""``leasekit simulate``: seeds run again exactly, failures are told with the way to them, campaigns are summed up."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import EntryPoints
from pathlib import Path
from typing import Any

import pytest
from planted_bugs import BUGS, known, planted

from leasekit.cli.main import EXIT_ERROR, EXIT_USAGE, run
from leasekit_simulation.faults.run import simulate
from leasekit_simulation.faults.scenario import draw, read_scenario

NAME = "a unit that can't be torn down is used again"
BUG, SEED = BUGS[NAME], known()[NAME].seed
SOON = "units that the inventory names no more stay in service"
"""One that shows early in its run, of which a small scenario is made in a second."""


def test_a_seed_that_is_fine(capsys: pytest.CaptureFixture[str]) -> None:
    """One seed: its figures are those of the run, and the exit status is 0."""
    assert run(["simulate", "--seed", "20", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    expected = simulate(draw(20))
    assert (printed["seeds"], printed["steps"], printed["requests"]) == (1, expected.steps, expected.requests)
    assert printed["failures"] == []
    assert printed["met"] == dict(expected.met)


def simulate_in_process_of_its_own(hash_seed: str, seeds: str) -> dict[str, Any]:
    """What a command line of its own, with its own order of sets, prints as JSON, but what a clock measured."""
    command = [sys.executable, "-m", "leasekit.cli.main", "simulate", "--seeds", seeds, "--json"]
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return {name: value for name, value in json.loads(done.stdout).items() if "second" not in name}


@pytest.mark.parametrize("seeds", ["86000007..86000007", "20..20"])
def test_a_seed_is_the_same_in_any_process(seeds: str) -> None:
    """Two processes that order their sets differently take the same steps and meet the same. In the first seed an
    operator takes back what one of several sites and brokers has given.
    """
    assert simulate_in_process_of_its_own("3", seeds) == simulate_in_process_of_its_own("4", seeds)


def test_a_seed_that_fails(capsys: pytest.CaptureFixture[str]) -> None:
    """The seed, the step, what happened to the lease, and the command that runs it again; the exit status is 1."""
    with planted(BUG):
        assert run(["simulate", "--seed", str(SEED)]) == EXIT_ERROR
    said = capsys.readouterr().err
    assert f"seed {SEED}: " in said
    assert "step" in said
    assert "what became of lease" in said
    assert f"run it again: leasekit simulate --seed {SEED}" in said


def test_a_failure_is_shrunk_and_replayed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--shrink writes a scenario that fails as the seed did, and --scenario runs it."""
    path, seed = tmp_path / "small.json", known()[SOON].seed
    with planted(BUGS[SOON]):
        assert run(["simulate", "--seed", str(seed), "--shrink", "--write", str(path)]) == EXIT_ERROR
        said = capsys.readouterr().err
        assert f"run it again: leasekit simulate --scenario {path}" in said
        assert "operations are left" in said
        assert run(["simulate", "--scenario", str(path)]) == EXIT_ERROR
    assert len(read_scenario(path).operations) < len(draw(seed).operations)
    capsys.readouterr()
    assert run(["simulate", "--scenario", str(path)]) == 0


def test_some_seeds(capsys: pytest.CaptureFixture[str]) -> None:
    """A range of seeds, in two processes, as one JSON document."""
    assert run(["simulate", "--seeds", "10..11", "--jobs", "2", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["first"], printed["last"], printed["seeds"]) == (10, 11, 2)
    assert printed["steps_per_second"] > 0


def test_figures_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    """Without --json there is a short table."""
    assert run(["simulate", "--seeds", "10..10"]) == 0
    printed = capsys.readouterr().out
    for word in ("seeds", "requests", "steps", "lease-hours", "marks"):
        assert word in printed


def test_no_time_is_no_seed(capsys: pytest.CaptureFixture[str]) -> None:
    """Time that is up before the first seed lets none run."""
    assert run(["simulate", "--minutes", "0", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["seeds"] == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--seeds", "9..3"], "found '9..3', expected A..B"),
        (["--seeds", "x"], "found 'x', expected A..B"),
        (["--seed", "-1"], "-1"),
        (["--seed", "1", "--seeds", "1..2"], "exclude each other"),
        (["--seed", "1", "--minutes", "1"], "don't go with one seed"),
        (["--shrink"], "go with --seed"),
        (["plain"], "go with --explore"),
    ],
)
def test_wrong_usage(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A command line that makes no sense is told in one line."""
    assert run(["simulate", *arguments]) == EXIT_USAGE
    assert said in capsys.readouterr().err


def test_a_wrong_scenario_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A scenario file that can't be used, or is not there, is told in one line."""
    path = tmp_path / "wrong.toml"
    path.write_text("tick = 'soon'\n")
    assert run(["simulate", "--scenario", str(path)]) == EXIT_ERROR
    assert "tick: found 'soon'" in capsys.readouterr().err
    assert run(["simulate", "--scenario", str(tmp_path / "none.json")]) == EXIT_ERROR
    assert "none.json" in capsys.readouterr().err


def test_without_the_distribution(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Where the simulation is not installed its command says in one line what to install, and help leaves it out."""
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **chosen: EntryPoints())
    assert run(["simulate", "--seed", "7"]) == EXIT_ERROR
    said = capsys.readouterr().err.splitlines()
    assert said == [
        "leasekit: simulate is not installed: it comes with leasekit-simulation, the folder simulation/ of leasekit's "
        "sources"
    ]
    assert run(["--help"]) == 0
    assert "simulate" not in capsys.readouterr().out
