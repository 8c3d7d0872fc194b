"""docs/experiments.md: its commands can be typed as they stand, and name experiments that there are."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from leasekit.cli.emulate import all_, emulate
from leasekit.config.load import load

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "experiments.md").read_text()


def test_commands_parse() -> None:
    """The first command runs all; every other is `leasekit emulate` with options that it has, on a deploy file that has
    no fault and says how long to run; each experiment has one.
    """
    lines = [line.removeprefix("$ ") for line in PAGE.splitlines() if line.startswith("$ ")]
    files = set()
    program, group, *arguments = shlex.split(lines[0])
    assert (program, group, arguments.pop(0)) == ("leasekit", "experiment", "all")
    all_.make_context("all", arguments).close()
    for line in lines[1:]:
        program, command, *arguments = shlex.split(line)
        assert (program, command) == ("leasekit", "emulate")
        with emulate.make_context(command, arguments) as context:
            file = ROOT / context.params["file"]
        assert load(file).emulation is not None
        files.add(file.name)
    assert files == {"fidelity.toml", "terms.toml", "compete.toml", "scaling.toml"}


def test_files_exist() -> None:
    """Each deploy file and each path of the project that the page names is there."""
    for name in re.findall(r"`([\w-]+\.toml)`", PAGE):
        assert (ROOT / "deploy" / "emulation" / name).is_file(), name
    for path in re.findall(r"`((?:leasekit|benchmarks|deploy)/[\w./-]*)", PAGE):
        assert (ROOT / path).exists(), path
