"""docs/energy.md: its figures are those of runs, to the last digit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from datafiles import data_file

from leasekit.emulation.energy import experiment
from leasekit.emulation.experiment import run_file

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "energy.md").read_text()
LOGS = {"kth-sp2": "kth-sp2/KTH-SP2-1996-2.1-cln.swf.gz", "hpc2n": "extra-hpc2n/HPC2N-2002-2.2-cln.swf.gz"}

LAST = "reservations, last value"
ALL = tuple(one.name for one in experiment.STRATEGIES)


def tables() -> list[list[str]]:
    """The page's tables, each as its lines."""
    found: list[list[str]] = [[]]
    for line in PAGE.splitlines():
        if line.startswith("|"):
            found[-1].append(line)
        elif found[-1]:
            found.append([])
    return [table for table in found if table]


def share(part: float) -> str:
    """As the page has it; nothing at all is no share."""
    return f"{100 * part:.1f} %" if part else "0"


@pytest.mark.parametrize(
    ("log", "place", "chosen"),
    [
        pytest.param("kth-sp2", 1, ALL, marks=pytest.mark.soak),
        pytest.param("hpc2n", 2, ALL, marks=pytest.mark.soak),
    ],
)
def test_figures_of_job_logs(log: str, place: int, chosen: Sequence[str]) -> None:
    """Each strategy's row is what `leasekit experiment energy` finds; `make soak` has them all."""
    data = data_file(LOGS[log]).parents[1]
    setup = experiment.EnergySetup()
    workloads = experiment.read_workloads(log, setup, data)
    strategies = [one for one in experiment.STRATEGIES if one.name in chosen]
    found = [experiment.run_strategy(workloads, one, setup=setup).figures for one in strategies]
    rows = [
        f"| {one['strategy']} | {one['capacity']:,} | {one['idle_core_h']:,} | {share(one['off_share_of_idle'])} "
        f"| {one['delay_req']:,.0f} | {share(one['delayed_share'])} |"
        for one in found
    ]
    on_page = dict(zip(ALL, tables()[place][2:], strict=True))
    assert [on_page[name] for name in chosen] == rows
    (late,) = {one["known_ahead_and_delayed"] for one in found if one["strategy"] == LAST}
    assert f"{late:,} waited on {log}" in PAGE or f"{late:,} on {log}" in PAGE
    assert f"| {log}, {setup.days} days, {len(workloads.in_advance):,} jobs |" in tables()[place][0]


@pytest.mark.parametrize("place", [2, pytest.param(0, marks=pytest.mark.soak), pytest.param(1, marks=pytest.mark.soak)])
def test_figures_of_the_example(place: int) -> None:
    """Each way of switching in deploy/energy saves as much, and lets as many wait, as the page says."""

    def row(run: dict[str, Any]) -> str:
        found = run["sites"]["site"]["energy"]
        off, suspended = (found[which] / found["res_idle"] for which in ("e_savings", "suspended"))
        more = f", and {share(suspended)} suspended" if suspended else ""
        return f"| {run['run']} | {share(off)}{more} | {found['delay_req']:.2f} | {found['delayed']} |"

    on_page = tables()[0][2:]
    name = ("last value", "EWMA", "EWMA, suspend")[place]
    (run,) = run_file(ROOT / "deploy" / "energy" / "energy.toml", only=[name])["runs"]
    assert (len(on_page), on_page[place]) == (3, row(run))
    assert round(run["guests"]["lab"]["mean_demand"]) == 5, "needed in the mean"
