"""The commands in the READMEs of deploy/ can be typed as they stand, in the folder that the README is in."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from leasekit.cli.main import cli
from leasekit.config.load import load

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
FOLDERS = sorted(path.parent.name for path in DEPLOY.glob("*/README.md"))
PROGRAM = re.compile(r"(^|/bin/)leasekit(?= [a-z])")
NEEDED = {"baremetal", "energy", "hypervisors", "libvirt", "systemd", "virtual-cluster", "xen"}
"""Where something has to be there besides leasekit: `leasekit site doctor` says what is missing."""


def _lines(folder: str) -> list[str]:
    """What the README's indented blocks have the reader type, whole where a line goes on in the next."""
    text = (DEPLOY / folder / "README.md").read_text(encoding="utf-8").replace("\\\n", " ")
    return [line.strip() for line in text.splitlines() if line.startswith("    ")]


def _commands(folder: str) -> Iterator[list[str]]:
    """The words of each command of leasekit's after the program's name."""
    for line in _lines(folder):
        for part in re.split(r" & ?", line):
            found = PROGRAM.search(part)
            if found is not None:
                yield shlex.split(part[found.end() :], comments=True)


def _parse(words: list[str]) -> click.Context:
    """As the command line would be understood; nothing is carried out. Raises ``click.UsageError``."""
    command: click.Command = cli
    context = cli.make_context("leasekit", list(words), resilient_parsing=True)
    while isinstance(command, click.Group):
        name, found, words = command.resolve_command(context, words)
        assert found is not None
        command = found
        if not isinstance(command, click.Group):
            return command.make_context(name, words, parent=context)
        context = click.Context(command, parent=context, info_name=name)
    raise AssertionError("a group has commands")


@pytest.mark.parametrize("folder", FOLDERS)
def test_commands_parse(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is a command that there is, with arguments and options that it takes, and files that are in the folder."""
    monkeypatch.chdir(DEPLOY / folder)
    for words in _commands(folder):
        # Keys are the reader's, or made on the way.
        given = [
            str(DEPLOY / folder / "README.md") if "id_ed25519" in word or word.endswith(".pub") else word
            for word in words
        ]
        try:
            _parse(given)
        except click.UsageError as error:
            pytest.fail(f"deploy/{folder}/README.md: leasekit {shlex.join(words)}: {error.format_message()}")
        for word in words:
            if word.endswith((".toml", ".json")) and not word.startswith("/etc/"):
                assert Path(word).is_file(), f"deploy/{folder}/README.md: {word}"


def test_all_have_commands() -> None:
    """What is looked for is found: a README whose blocks look otherwise would pass unread."""
    without = {folder for folder in FOLDERS if not list(_commands(folder))}
    assert without <= {"emulation"}
    assert {
        folder for folder in FOLDERS if any(words[:2] == ["site", "doctor"] for words in _commands(folder))
    } == NEEDED


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_reader_stays_in_the_folder(folder: str) -> None:
    """A later command would not find the deploy file otherwise."""
    assert [line for line in _lines(folder) if re.search(r"(^|[;&|] *)cd ", line)] == []


@pytest.mark.parametrize(
    ("folder", "actor", "driver"), [("hypervisors", "block", "hypervisors"), ("virtual-cluster", "guest", "cluster")]
)
def test_scripts_are_put_where_the_driver_looks(folder: str, actor: str, driver: str, tmp_path: Path) -> None:
    """The line that makes the state folder copies each script that the deploy file names."""
    place = shutil.copytree(DEPLOY / folder, tmp_path / folder)
    (line,) = [line for line in _lines(folder) if line.startswith("mkdir ")]
    subprocess.run(["sh", "-ec", line], cwd=place, check=True)
    (file,) = place.glob("*.toml")
    deployment = load(file)
    settings = deployment.actors[actor].drivers[driver].settings
    for op in ("join", "leave"):
        named = settings[op]
        script = deployment.state / (named if isinstance(named, str) else named[0])
        assert script.is_file()
        assert isinstance(named, str) or script.stat().st_mode & 0o100, "a command is run as it is"
