"""The types of the installed package as others see them. mypy goes on with what it found in tests/test_tidy.py, which
comes before.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
USER = """
from collections.abc import Iterable

import leasekit
from leasekit.client import Client
from leasekit.core.fitting import fit, fit_group
from leasekit.core.mappers import BrokerCycle, BrokerDecision
from leasekit.learning import SchedulingEnv, held_out, train


class Mine:
    inline = True

    def allocate(self, cycle: BrokerCycle) -> Iterable[BrokerDecision]:
        for request in cycle.requests:
            reveal_type(request.term.start)
            yield fit(cycle, request)
        for group in cycle.groups:
            yield fit_group(cycle, group)


reveal_type(leasekit.emulate("x.toml"))
reveal_type(leasekit.sweep("x.toml", {}).mean("rmse"))
reveal_type(leasekit.World("x.toml").transitions[0].at)
reveal_type(train(SchedulingEnv(), [1]))
reveal_type(held_out({}, [], []))
reveal_type(Client("http://lab").request("vm", 2, hours=1))
leasekit.emulate(3)
"""
REVEALED = ["int", "Result", "Rows", "int", "LinearAgent", "Rows", "Lease"]


@pytest.mark.parametrize(
    ("checker", "revealed", "wrong"),
    [
        pytest.param(
            ("mypy", "--strict", "--cache-dir", str(ROOT / ".mypy_cache")),
            r'Revealed type is "(?:[\w.]+\.)?(\w+)"',
            r'user.py:28: error: Argument 1 to "emulate"',
            marks=pytest.mark.xdist_group("mypy"),
        ),
        (
            ("pyright", "--pythonpath", sys.executable),
            r'Type of ".*" is "(\w+)"',
            r'user.py:28:18 - error: Argument of type "Literal\[3\]"',
        ),
    ],
    ids=["mypy", "pyright"],
)
def test_types_are_seen_from_anywhere(checker: tuple[str, ...], revealed: str, wrong: str, tmp_path: Path) -> None:
    """A type checker that runs in another folder, as strictly as it can, knows what the installed package has for who
    uses it as a library, writes mappers or trains agents, and finds nothing wrong but what is.
    """
    (tmp_path / "user.py").write_text(USER)
    (tmp_path / "pyrightconfig.json").write_text('{"typeCheckingMode": "strict"}')
    program, *options = checker
    command = [Path(sys.executable).parent / program, *options, "user.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert re.findall(revealed, done.stdout) == REVEALED, done.stdout + done.stderr
    assert re.search(wrong, done.stdout), done.stdout
    assert len(re.findall(r"error:", done.stdout)) == 1, done.stdout
