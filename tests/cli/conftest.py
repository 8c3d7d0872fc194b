"""Fixtures of tests of the command line against real daemons."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_daemons import Cli, running


@pytest.fixture(scope="module")
def file(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The module's ``DEPLOY``, whose daemons run, and stop without an error in the end; its ``FILES`` are beside it."""
    path: Path = tmp_path_factory.mktemp("d") / "leasekit.toml"
    path.write_text(request.module.DEPLOY)
    (path.parent / "run").mkdir(mode=0o700)
    for name, text in getattr(request.module, "FILES", {}).items():
        (path.parent / name).parent.mkdir(exist_ok=True)
        (path.parent / name).write_text(text)
    with running(path):
        yield path


@pytest.fixture
def cli(file: Path, capfd: pytest.CaptureFixture[str]) -> Cli:
    """The command line on these daemons."""
    return Cli(file, capfd)
