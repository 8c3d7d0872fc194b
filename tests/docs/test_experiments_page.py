"""docs/experiments.md: its commands can be typed as they stand, and come to its digits."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from pathlib import Path

import pytest

from leasekit.cli.daemon_experiment import SOCKETS
from leasekit.cli.emulate import all_, emulate
from leasekit.config.load import load
from leasekit.emulation.papers.catalogue import EXPERIMENTS, run_all
from leasekit.emulation.papers.claims import Means
from leasekit.emulation.papers.page import markdown

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


@pytest.mark.parametrize("name", [pytest.param("activation", marks=pytest.mark.soak), "preemption"])
def test_a_share_comes_to_the_digits_of_the_page(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page has what the command writes, to the last digit: two experiments that take seconds."""
    monkeypatch.chdir(ROOT)
    [found] = run_all([name], Means(), lambda text: None)
    assert markdown(found).strip() in PAGE


def test_every_experiment_is_on_the_page() -> None:
    """With each of its claims, and the criterion that it has in the package."""
    for one in (*EXPERIMENTS, SOCKETS):
        assert f"### {one.name}\n" in PAGE
        told = re.findall(
            r"^\| (.*?) \| (.*?) \| (.*?) \| (.*?) \|", PAGE.split(f"### {one.name}\n")[1].split("###")[0], re.M
        )
        known = {(claim.where, claim.figure, claim.theirs, claim.expected) for claim in one.claims}
        assert set(told[2:]) <= known and len(told) > 2, one.name


def test_the_page_counts_its_claims() -> None:
    """By verdict, over all tables."""
    counts = Counter(re.findall(r"\| (holds|open|differs|shown) \|$", PAGE, re.M))
    assert f"Of all claims {', '.join(f'{count} {verdict}' for verdict, count in sorted(counts.items()))}." in PAGE


def test_files_exist() -> None:
    """Each deploy file and each path of the project that the page names is there."""
    for name in re.findall(r"`([\w-]+\.toml)`", PAGE):
        assert (ROOT / "deploy" / "emulation" / name).is_file(), name
    for path in re.findall(r"`((?:leasekit|benchmarks|deploy)/[\w./-]*)", PAGE):
        assert (ROOT / path).exists(), path
