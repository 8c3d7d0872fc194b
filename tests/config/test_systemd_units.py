"""The unit files of deploy/systemd start daemons by commands that there are."""

from __future__ import annotations

import shlex
from configparser import ConfigParser
from pathlib import Path

import pytest

from leasekit.cli import main

FOLDER = Path(__file__).parents[2] / "deploy" / "systemd"
QUICKSTART = FOLDER.parent / "quickstart" / "all.toml"


def unit(name: str) -> ConfigParser:
    """A unit file; systemd's keys tell upper case from lower."""
    parser = ConfigParser(interpolation=None, strict=True)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string((FOLDER / name).read_text(encoding="utf-8"))
    return parser


def words(line: str, state: Path) -> list[str]:
    """A command of a unit file after the program, for the actor ``site`` of the quickstart."""
    program, *rest = shlex.split(line.replace("%i", "site"))
    assert Path(program).name == "leasekit"
    places = {"/etc/leasekit/leasekit.toml": str(QUICKSTART), "/var/lib/leasekit": str(state)}
    return [places.get(word, word) for word in rest]


def test_what_is_done_before_the_start_can_be_done(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The check before the start is a command of leasekit's, and finds nothing wrong with the quickstart."""
    assert main.run(words(unit("leasekit@.service")["Service"]["ExecStartPre"], tmp_path)) == 0
    assert "nothing wrong" in capfd.readouterr().err


def test_the_start_takes_one_actor_of_the_file(tmp_path: Path) -> None:
    """The start's command line is one that `leasekit up` takes: the file, the instance's actor and the state folder."""
    command, *arguments = words(unit("leasekit@.service")["Service"]["ExecStart"], tmp_path)
    context = main.cli.commands[command].make_context("up", arguments)
    assert context.params["file"] == QUICKSTART
    assert context.params["actors"] == ("site",)
    assert context.params["state"] == tmp_path


def test_units_of_the_process_driver_outlive_a_restart() -> None:
    """systemd ends the daemon's process only: units are in its cgroup, and must not be ended with it."""
    service = unit("leasekit@.service")["Service"]
    assert (service["KillMode"], service["KillSignal"]) == ("process", "SIGTERM")
    assert unit("privileged.conf")["Service"]["User"] == "root"


def test_readme_names_all_files() -> None:
    """The README installs each file that is there, and the folder has nothing else."""
    readme = (FOLDER / "README.md").read_text(encoding="utf-8")
    names = {path.name for path in FOLDER.iterdir()} - {"README.md"}
    assert names == {"leasekit@.service", "privileged.conf"}
    assert all(name in readme for name in names)
