"""The unit files of deploy/systemd start daemons by commands that there are."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from configparser import ConfigParser
from pathlib import Path

import click
import pytest

from leasekit.cli import main
from leasekit.drivers.baremetal.examining import RIGHTS
from leasekit.drivers.script import INHERITED

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
    found = main.cli.get_command(click.Context(main.cli), command)
    assert found is not None, command
    context = found.make_context(command, arguments)
    assert context.params["words"] == (str(QUICKSTART), "site")
    assert context.params["state"] == tmp_path


def test_a_reload_is_of_that_actor(tmp_path: Path) -> None:
    """A reload asks the instance's daemon alone; systemd hears by the exit status whether it has taken anything."""
    command, *arguments = words(unit("leasekit@.service")["Service"]["ExecReload"], tmp_path)
    found = main.cli.get_command(click.Context(main.cli), command)
    assert found is not None, command
    context = found.make_context(command, arguments)
    assert context.params["words"] == ("site",)
    assert (context.params["file"], context.params["state"]) == (QUICKSTART, tmp_path)


def test_the_backup_copies_all_stores(tmp_path: Path) -> None:
    """The timer's service takes the file's actors, the state folder of the daemons, and their user."""
    service, daemons = unit("leasekit-backup.service")["Service"], unit("leasekit@.service")["Service"]
    command, *arguments = words(service["ExecStart"], tmp_path)
    found = main.cli.get_command(click.Context(main.cli), command)
    assert found is not None, command
    context = found.make_context(command, arguments)
    assert context.params["words"] == (str(QUICKSTART),)
    assert (context.params["state"], str(context.params["folder"])) == (tmp_path, service["ReadWritePaths"])
    assert service["User"] == daemons["User"]


def test_units_of_the_process_driver_outlive_a_restart() -> None:
    """systemd ends the daemon's process only: units are in its cgroup, and must not be ended with it."""
    service = unit("leasekit@.service")["Service"]
    assert (service["KillMode"], service["KillSignal"]) == ("process", "SIGTERM")


def test_all_instances_are_of_one_user() -> None:
    """They share a state folder, which systemd gives to the user of whichever starts: a drop-in that changes the user
    would take it from the others. What a driver needs besides it gets as capabilities, which outlive NoNewPrivileges.
    """
    service, more = unit("leasekit@.service")["Service"], unit("privileged.conf")["Service"]
    assert (service["User"], service["StateDirectory"]) == ("leasekit", "leasekit")
    assert set(more) == {"AmbientCapabilities"}
    assert set(RIGHTS.values()) <= set(more["AmbientCapabilities"].split())
    assert "CapabilityBoundingSet" not in service


def test_scripts_find_leasekit() -> None:
    """Scripts of drivers, such as deploy/hypervisors/join.sh, run the `leasekit` that the daemon is of."""
    service = unit("leasekit@.service")["Service"]
    name, _, path = service["Environment"].partition("=")
    assert name == "PATH"
    assert path.split(":")[0] == str(Path(service["ExecStart"].split()[0]).parent)
    assert {"/usr/sbin", "/usr/bin"} <= set(path.split(":"))
    assert "PATH" in INHERITED


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze (package systemd)")
def test_systemd_takes_them(tmp_path: Path) -> None:
    """No key or value is unknown to systemd, in the unit file with the drop-in."""
    text = (FOLDER / "leasekit@.service").read_text(encoding="utf-8")
    (tmp_path / "leasekit@.service").write_text(text.replace("/usr/local/lib/leasekit/bin/leasekit", "/bin/true"))
    for name in ("leasekit-backup.service", "leasekit-backup.timer"):
        text = (FOLDER / name).read_text(encoding="utf-8")
        (tmp_path / name).write_text(text.replace("/usr/local/lib/leasekit/bin/leasekit", "/bin/true"))
    (tmp_path / "leasekit@site.service.d").mkdir()
    shutil.copy(FOLDER / "privileged.conf", tmp_path / "leasekit@site.service.d")
    environment = {**os.environ, "SYSTEMD_UNIT_PATH": f"{tmp_path}:"}
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(tmp_path / "leasekit@site.service"),
         str(tmp_path / "leasekit-backup.timer"), str(tmp_path / "leasekit-backup.service")],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    said = [line for line in done.stderr.splitlines() if "leasekit" in line or "privileged" in line]
    assert (done.returncode, said) == (0, [])


def test_readme_names_all_files() -> None:
    """The README installs each file that is there, and the folder has nothing else."""
    readme = (FOLDER / "README.md").read_text(encoding="utf-8")
    names = {path.name for path in FOLDER.iterdir()} - {"README.md"}
    assert names == {"leasekit@.service", "privileged.conf", "leasekit-backup.service", "leasekit-backup.timer"}
    assert all(name in readme for name in names)
