"""Several mappers at once: in processes, and on a real Dask cluster with two workers."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from leasekit.core.errors import LeasekitError
from leasekit.emulation.compare.engines import run_dask, run_local, run_one
from leasekit.emulation.compare.measures import Measured
from leasekit.emulation.compare.pool import Pool
from leasekit.emulation.compare.targets import Target, read_target
from leasekit.emulation.compare.works import Work, WorkShape, generate

WORKS = generate(WorkShape(jobs=120, nodes=16, seed=2)).works
TESTS = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def misfits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other processes find the misfits."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")]))


def _targets(*texts: str) -> list[Target]:
    return [read_target(text) for text in texts]


def _same(found: Sequence[Measured | LeasekitError], targets: Sequence[Target], works: Sequence[Work]) -> None:
    """What came back is what the mappers come to here, in the order of the targets."""
    for result, target in zip(found, targets, strict=True):
        assert isinstance(result, Measured), result
        here = run_one(target, works, Pool(16))
        assert list(result.starts) == list(here.starts)
        assert {**result.summary, "measured": None} == {**here.summary, "measured": None}


def test_processes_come_to_the_same(capfd: pytest.CaptureFixture[str]) -> None:
    """Each run in a process of its own comes to what it comes to here; the end of each is reported."""
    targets = _targets("fcfs", "fcfs:backfill=false", "backfill")
    told: list[tuple[str, float]] = []
    found = run_local(targets, WORKS, Pool(16), jobs=2, report=lambda label, share: told.append((label, share)))
    _same(found, targets, WORKS)
    assert {label for label, share in told if share == 1.0} == {target.label for target in targets}
    assert capfd.readouterr() == ("", "")


def test_one_that_fails_takes_no_other_along() -> None:
    """Mappers that die or never end are told each; the others' runs are as ever, and so is that of one that overbooks,
    but for what its broker did not do.
    """
    names = ("Dies", "Hangs", "Overbooks")
    targets = _targets("fcfs", *(f"misfit_mappers:{name}" for name in names))
    lines: list[tuple[str, str]] = []
    found = run_local(
        targets, WORKS, Pool(16), jobs=2, patience=15.0, tell=lambda label, text: lines.append((label, text))
    )
    good, dead, endless, wrong = found
    assert isinstance(good, Measured)
    assert good.summary["mapper_errors"] == {}
    assert "ended by itself, with status 3" in str(dead)
    assert "took longer than 15 s" in str(endless)
    assert isinstance(wrong, Measured)
    assert wrong.summary["mapper_errors"].keys() == {"decision not carried out"}
    ((label, text),) = lines
    assert label == "misfit_mappers:Overbooks"
    assert "it would overbook" in text


@pytest.fixture
def scheduler() -> Iterator[str]:
    """The address of a Dask cluster of two worker processes."""
    from distributed import LocalCluster

    with LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, silence_logs=50
    ) as cluster:
        yield cluster.scheduler_address


@pytest.mark.soak
def test_a_dask_cluster_comes_to_the_same(scheduler: str) -> None:
    """A sweep over two workers comes to what it comes to here, and what one mapper does wrong is its own."""
    targets = _targets("fcfs", "fcfs:backfill=false", "backfill", "fcfs:balance=best_fit")
    ended: list[str] = []
    found = run_dask(targets, WORKS, Pool(16), scheduler=scheduler, report=lambda label, share: ended.append(label))
    _same(found, targets, WORKS)
    assert sorted(ended) == sorted(target.label for target in targets)
    good, bad = run_dask(_targets("fcfs", "misfit_mappers:Overbooks"), WORKS, Pool(16), scheduler=scheduler)
    assert isinstance(good, Measured)
    assert isinstance(bad, Measured)
    assert (good.summary["mapper_errors"], set(bad.summary["mapper_errors"])) == ({}, {"decision not carried out"})


def test_no_cluster_there() -> None:
    """An address where nobody answers is one clear error."""
    with pytest.raises(LeasekitError, match="--scheduler: found"):
        run_dask(_targets("fcfs"), WORKS, Pool(16), scheduler="tcp://127.0.0.1:9")
    with pytest.raises(LeasekitError, match="--scheduler: found"):
        run_dask(_targets("fcfs"), WORKS, Pool(16), scheduler="nonsense://")
