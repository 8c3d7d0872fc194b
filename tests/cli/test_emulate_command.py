"""What ``leasekit emulate`` says of a run that has several variants."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from leasekit.cli.emulate import SITES, WAITS
from leasekit.cli.main import run

DEPLOY = """
[deployment]
name = "ticks"
[actor.site]
role = "authority"
inventory = [{ type = "vm", units = 4 }]
delegation = [{ broker = "broker", type = "vm" }]
[actor.broker]
role = "broker"
mapper = { name = "fcfs" }
[actor.web]
role = "guest"
mapper = { name = "static", demands = [{ type = "vm", units = 2, term = "1h" }] }
[emulation]
horizon = "2h"
tick = "1m"
"""
RUNS = """
[[emulation.run]]
name = "a"
set = { "emulation.ticks" = "every" }
[[emulation.run]]
name = "b"
[[emulation.run]]
name = "c"
"""


@pytest.mark.parametrize(
    ("runs", "said"),
    [
        ("", "ticks executed: only those with something due\n"),
        (RUNS, "ticks executed: every in 1 run, only those with something due in 2 runs\n"),
    ],
)
def test_executed_ticks_are_those_of_all_runs(
    tmp_path: Path, runs: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where runs differ in which ticks were executed, each kind is told with how many runs."""
    file = tmp_path / "ticks.toml"
    file.write_text(DEPLOY + runs, encoding="utf-8")
    assert run(["emulate", str(file)]) == 0
    captured = capsys.readouterr()
    assert captured.err.endswith(said)
    assert "topologies" not in captured.out, "nobody asked for any"
    assert re.search(r"web +2 ", captured.out), "of one type all units are added"


def test_what_is_small_is_not_shown_as_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """Neither a hundredth of an hour, nor of a percent, nor a wait of milliseconds."""
    SITES([{"bought_unit_h": 0.05, "used": 0.0004, "idle": 0.9996, "out_of_service": 0.0}])
    assert re.search(r" 0\.05 +0\.04% +100% +0%", capsys.readouterr().out)
    WAITS([{"mean_wait_s": 0.02, "p50_wait_s": 0, "p95_wait_s": 90, "p99_wait_s": 45000}])
    assert re.search(r" 0\.02s +0s +1\.5m +12\.5h", capsys.readouterr().out)
