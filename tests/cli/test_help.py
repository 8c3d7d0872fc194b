"""What ``--help`` says of every command."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from leasekit.cli.main import cli

PRINT_NO_DATA = {
    ("up",),
    ("down",),
    ("run",),
    ("completion",),
    ("runs",),
    ("mapper", "new"),
    ("mapper", "workload"),
    ("lease", "ssh"),
}


def _commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from _commands(command, (*path, name))
        else:
            yield (*path, name), command


COMMANDS = dict(_commands(cli))


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_help_has_an_example_that_parses(path: tuple[str, ...]) -> None:
    """Every command's help ends with examples, and each of them is a command line that the command takes."""
    result = CliRunner().invoke(cli, [*path, "--help"])
    assert result.exit_code == 0
    _, _, text = result.output.partition("Example:\n")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    assert lines
    for line in lines:
        words = [word.strip('"') for word in line.partition(" > ")[0].split()]
        assert words[: len(path) + 1] == ["leasekit", *path], line
        options = {option for param in COMMANDS[path].params for option in param.opts + param.secondary_opts}
        assert {word for word in words if re.match("--?[a-z]", word)} <= options, line


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_options_are_said_once_and_explained(path: tuple[str, ...]) -> None:
    """No option is declared twice, and every option has a help text."""
    options = [param for param in COMMANDS[path].params if isinstance(param, click.Option)]
    names = Counter(name for option in options for name in option.opts)
    assert [name for name, count in names.items() if count > 1] == []
    assert [option.name for option in options if not option.help] == []


@pytest.mark.parametrize("path", [path for path in COMMANDS if path[:2] not in PRINT_NO_DATA], ids=" ".join)
def test_data_comes_as_json(path: tuple[str, ...]) -> None:
    """Every command that prints data takes --json."""
    assert any("--json" in param.opts for param in COMMANDS[path].params)


def test_no_command_without_a_word() -> None:
    """Every group and command says in its first line what it is for."""
    silent = [" ".join(path) for path, command in COMMANDS.items() if not (command.help or "").strip()]
    assert silent == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script(shell: str) -> None:
    """The completion script of each shell names leasekit's own completion variable."""
    result = CliRunner().invoke(cli, ["completion", shell])
    assert result.exit_code == 0
    assert "_LEASEKIT_COMPLETE" in result.stdout


def test_completion_knows_the_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the script asks for is answered with the commands that fit."""
    monkeypatch.setenv("COMP_WORDS", "leasekit lease ex")
    monkeypatch.setenv("COMP_CWORD", "2")
    result = CliRunner().invoke(cli, [], prog_name="leasekit", env={"_LEASEKIT_COMPLETE": "bash_complete"})
    assert result.stdout.split() == ["plain,extend"]
