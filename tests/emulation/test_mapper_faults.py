"""Mappers that go wrong in an emulation: told at once, counted, and never waited for."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from leasekit.cli.main import run
from leasekit.emulation.experiment import run_file

DEPLOY = """
[deployment]
name = "broken"
signatures = false
[actor.site]
role = "authority"
inventory = [{ type = "vm", units = 4 }]
delegation = [{ broker = "broker", type = "vm" }]
[actor.broker]
role = "broker"
mapper = { name = "MAPPER" }
[actor.web]
role = "guest"
mapper = { name = "static", demands = [{ type = "vm", units = 2, term = "1h" }] }
[emulation]
horizon = "2h"
turn_limit = "1s"
"""
RUNS = """
[[emulation.run]]
name = "fine one"
set = { "actor.broker.mapper.name" = "fcfs" }
[[emulation.run]]
name = "broken"
[[emulation.run]]
name = "last"
set = { "actor.broker.mapper.name" = "fcfs" }
"""
MAPPERS = '''
"""Mappers of a broker, each wrong in its own way."""
import os, signal
from leasekit.core.mappers import Grant


class Raises:
    inline = True

    def allocate(self, cycle):
        for request in cycle.requests:
            yield from self.look_up(request)

    def look_up(self, request):
        raise KeyError(request.type)  # here


class Nothing:
    def allocate(self, cycle):
        return None


class Garbage:
    def allocate(self, cycle):
        return [12, *(Grant(r.lease, cycle.sources(r.type)[0].id, "two", r.term) for r in cycle.requests)]


class TooMany:
    def allocate(self, cycle):
        return [Grant(r.lease, cycle.sources(r.type)[0].id, 9, r.term) for r in cycle.requests]


class Spins:
    def allocate(self, cycle):
        for request in cycle.requests:
            while True: pass  # spins


class Swallows:
    def allocate(self, cycle):
        while True:
            try:
                pid = os.getpid()  # the loop's jump back is looked up at the instruction before the loop: also inside
                while True: os.getpid()
            except BaseException:
                pass


class Interrupts:
    """Does what Ctrl-C does, in the middle of a run."""

    def allocate(self, cycle):
        os.kill(os.getpid(), signal.SIGINT)
        return []
'''
LINE, SPIN = (1 + MAPPERS[: MAPPERS.index(mark)].count("\n") for mark in ("# here", "# spins"))


def deploy(folder: Path, mapper: str, more: str = "") -> Path:
    """A deploy file whose broker has this mapper of :data:`MAPPERS`."""
    (folder / "bad.py").write_text(MAPPERS)
    file = folder / "broken.toml"
    file.write_text(DEPLOY.replace("MAPPER", f"bad.py:{mapper}") + more)
    return file


@pytest.mark.parametrize(
    ("mapper", "said", "kind"),
    [
        ("Raises", f"broker mapper: KeyError: 'vm' (bad.py, line {LINE}, at ", "turn failed"),
        ("Nothing", "broker mapper: returned None, expected its decisions, as a list or by yield", "turn failed"),
        ("Garbage", "12 is no decision of the broker mapper", "decision malformed"),
        ("TooMany", "broker mapper's Grant is not carried out: ", "decision not carried out"),
    ],
)
def test_what_a_mapper_does_wrong_is_told_and_counted(
    tmp_path: Path, mapper: str, said: str, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each error is told once, with the actor, the mapper, its line and the request; all are counted; the status is
    1, unless the command line or the file says otherwise.
    """
    file = deploy(tmp_path, mapper)
    assert run(["emulate", str(file)]) == 1
    told = capsys.readouterr().err
    lines = [line for line in told.splitlines() if said in line]
    assert len(lines) == 1, told
    assert lines[0].startswith(f"broker, mapper {tmp_path / 'bad.py'}:{mapper}, after ")
    assert ": broker mapper" in lines[0], "in words, not as a code with its values"
    (errors,) = [one["mapper_errors"]["broker"] for one in run_file(file)["runs"]]
    assert errors[kind] > 1
    assert f"the mapper of broker went wrong: {', '.join(f'{k}: {n}' for k, n in errors.items())}" in told
    assert run(["emulate", str(file), "--allow-mapper-errors"]) == 0
    file.write_text(file.read_text().replace("[emulation]", '[emulation]\nmapper_errors = "allow"'))
    assert run(["emulate", str(file)]) == 0


def test_a_mapper_that_does_nothing_wrong_is_not_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The status is 0, and nothing is said of mappers."""
    file = deploy(tmp_path, "Raises", RUNS)
    assert run(["emulate", str(file), "--run", "last"]) == 0
    assert "mapper" not in capsys.readouterr().err
    assert run_file(file, only=["last"])["runs"][0]["mapper_errors"] == {}


def emulate(file: Path, out: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, which must not hang."""
    command = [sys.executable, "-m", "leasekit.cli.main", "emulate", str(file), "--out", str(out), *options]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


@pytest.mark.parametrize(
    ("mapper", "where", "more"),
    [
        ("Spins", f"(bad.py, line {SPIN}, at ", ""),
        ("Swallows", "(bad.py, line ", ", and could not be interrupted"),
    ],
)
def test_a_turn_without_end_ends_the_run(tmp_path: Path, mapper: str, where: str, more: str) -> None:
    """The mapper and its line are named, also of one that swallows whatever is raised into it; the run before it is
    kept, that of the mapper leaves no half of a file.
    """
    file, out = deploy(tmp_path, mapper, RUNS), tmp_path / "out"
    done = emulate(file, out)
    assert done.returncode == 1, done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith(
        f"leasekit: run 'broken': broker, mapper {tmp_path / 'bad.py'}:{mapper}, after 0s: did not end"
    )
    assert where in last
    assert f"a turn over the limit ends the run{more}" in last
    summary = json.loads((out / "summary.json").read_text())
    assert [one["run"] for one in summary["runs"]] == ["fine one"]
    assert (out / "fine_one-series.csv").is_file()
    assert (out / "broken-transitions.csv").exists() == bool(more)


def test_ctrl_c_keeps_the_runs_that_are_done(tmp_path: Path) -> None:
    """A SIGINT in the second of three runs: the table, the summary and the pictures of the first are there, and the
    command that does the others is told.
    """
    picture = '[[emulation.plot]]\nkind = "site_usage"\n'
    file, out = deploy(tmp_path, "Interrupts", RUNS + picture), tmp_path / "out"
    done = emulate(file, out, "--seed", "3", "--allow-mapper-errors")
    assert done.returncode == 130, done.stderr
    assert "fine one" in done.stdout
    assert "stopped: 1 of 3 runs are done" in done.stderr
    assert f"leasekit emulate {file} --seed 3 --allow-mapper-errors --out {out} --resume" in done.stderr
    summary = json.loads((out / "summary.json").read_text())
    assert summary["stopped_by"] == "interrupt"
    assert summary["not_run"] == ["broken", "last"]
    assert [one["run"] for one in summary["runs"]] == ["fine one"]
    assert summary["pictures"] == ["site_usage.png", "site_usage.svg"]
    assert not (out / "broken-transitions.csv").exists()


def test_an_unknown_run_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With those that there are."""
    assert run(["emulate", str(deploy(tmp_path, "Raises", RUNS)), "--run", "lost"]) == 1
    assert "run: found 'lost', expected one of: broken, fine one, last" in capsys.readouterr().err
