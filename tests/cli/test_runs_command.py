"""`leasekit runs` and `leasekit emulate --open`: an address that is served until Ctrl-C, or what is wrong."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import httpx
import pytest
from run_folders import LAB, run_folder, serving

from leasekit.cli.main import run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two runs have written."""
    return run_folder(tmp_path_factory.mktemp("lab"))


def test_a_folder_is_served_until_it_is_interrupted(folder: Path) -> None:
    """At a port that is free, at an address that is another each time, and nowhere else."""
    with serving("runs", str(folder)) as (address, _), serving("runs", str(folder)) as (other, _):
        assert [one["run"] for one in httpx.get(f"{address}api/runs").json()["runs"]] == ["nodes 2", "nodes 4"]
        assert httpx.get(re.sub(r"/[\w-]{32}/", "/", address)).status_code == 404
        assert address[-33:] != other[-33:]


def test_an_emulation_is_opened_when_it_is_done(tmp_path: Path) -> None:
    """After what it always says."""
    file, out = tmp_path / "lab.toml", tmp_path / "out"
    file.write_text(LAB.format(type="node", name="nodes"))
    with serving("emulate", str(file), "--out", str(out), "--open") as (address, before):
        assert [one["calendar"] for one in httpx.get(f"{address}api/runs").json()["runs"]] == [True, True]
        assert any(str(out) in line for line in before)


def test_a_port_that_is_taken_is_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In one line."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert run(["runs", str(folder), "--port", str(port)]) == 1
    assert capsys.readouterr().err == f"leasekit: 127.0.0.1:{port}: can't listen there: Address already in use\n"


def test_what_is_no_folder_of_runs_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also where there is nothing."""
    for place in (tmp_path, tmp_path / "none"):
        assert run(["runs", str(place)]) == 1
        assert capsys.readouterr().err.startswith(
            f"leasekit: {place}: found no summary.json of runs, expected a folder"
        )


@pytest.mark.parametrize("words", [("--open",), ("--open", "--out", "out", "--json")], ids=" ".join)
def test_only_what_is_written_can_be_opened(folder: Path, words: tuple[str, ...]) -> None:
    """And not by a program that reads JSON."""
    assert run(["emulate", str(folder.parent / "lab.toml"), *words]) == 2
