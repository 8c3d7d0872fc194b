"""leasekit as a library: what is public, what it does, and the notebook of docs/."""

from __future__ import annotations

import contextlib
import importlib.util
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import leasekit
from leasekit.library import interval

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
MONTH = ROOT / "deploy" / "emulation" / "month.toml"
QUICKSTART = ROOT / "deploy" / "quickstart" / "all.toml"


def _notebook() -> ModuleType:
    spec = importlib.util.spec_from_file_location("notebook", DOCS / "notebook.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_notebook_prints_what_it_says() -> None:
    """Each cell runs, and prints what stands below it: `python docs/notebook.py` would change nothing."""
    notebook = DOCS / "library.ipynb"
    with contextlib.chdir(DOCS):
        assert _notebook().played(notebook) == notebook.read_text()


def test_the_page_names_all_that_is_public() -> None:
    """What leasekit names can be had, and docs/library.md has it; nothing else is named there."""
    page = (DOCS / "library.md").read_text()
    (listed,) = re.findall(r"what `leasekit` itself has: (.*?)\. Mappers", page, re.DOTALL)
    assert set(re.findall(r"`(\w+)`", listed)) == set(leasekit.__all__) <= set(dir(leasekit))
    for name in leasekit.__all__:
        assert getattr(leasekit, name).__doc__
    with pytest.raises(AttributeError, match="no attribute 'emulat'"):
        leasekit.emulat  # type: ignore[attr-defined]  # noqa: B018
    for name in ("Result", "Rows", "Swept", "World"):
        for member in vars(getattr(leasekit, name)):
            assert member.startswith("_") or f"`{member}" in page, f"{name}.{member}"


def test_importing_leasekit_imports_nothing() -> None:
    """What only a library's user needs is imported when it is asked for."""
    code = "import sys, leasekit; print(*(name for name in sys.modules if name.startswith('leasekit')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["leasekit"]


# -- what it does ------------------------------------------------------------------------------------------------------


def _day() -> dict[str, Any]:
    document = tomllib.loads(MONTH.read_text())
    document["emulation"]["horizon"] = "1d"
    return document


def test_emulate_has_what_the_command_has() -> None:
    """Tables have the figures of the summary, as rows and as data frames of both libraries; series are sampled."""
    result = leasekit.emulate(_day(), changes={"emulation.run": [{"name": "a"}, {"name": "b"}]}, runs=["b"])
    (run,) = result.summary["runs"]
    assert result.guests.column("guest") == ["web", "batch"]
    assert result.guests.column("mean_leased") == [guest["mean_leased"] for guest in run["guests"].values()]
    assert result.sites.column("used") == [site["used"] for site in run["sites"].values()]
    assert result.runs.column("flips") == [run["flips"]]
    assert repr(result) == f"<Result of {result.summary['file']}, runs: 1>"
    assert result.guests.polars().rows(named=True) == list(result.guests)
    assert result.guests.pandas()["unserved"].tolist() == result.guests.column("unserved")
    assert type(result.guests.frame()).__module__.startswith("polars")
    series = result.series("b", "6h")
    assert series.column("instant_ms") == [hours * 3_600_000 for hours in (0, 6, 12, 18)]
    assert {"web.demand", "web.leased", "east.in_use"} <= set(series.columns)
    with pytest.raises(leasekit.LeasekitError, match=r"run: found 'a', expected one of: b"):
        result.series("a")
    with pytest.raises(leasekit.LeasekitError, match=r"column: found 'unservd'.*unserved"):
        result.guests.column("unservd")


def test_a_file_that_has_changed_is_read_again(tmp_path: Path) -> None:
    """Whoever changes a log between two runs of one process has what the log says then, and so of a trace."""
    log, trace = tmp_path / "jobs.csv", tmp_path / "load.csv"
    document = _day()
    document["actor"]["web"]["mapper"] = {"name": "replay", "type": "node", "jobs": {"file": log.name}}
    document["actor"]["batch"]["mapper"]["signal"] = {"file": trace.name}

    def found(jobs: int, load: int) -> tuple[Any, Any]:
        log.write_text("submit_s,run_s\n" + "0,600\n" * jobs)
        trace.write_text("".join(f"{at},{load}\n" for at in range(0, 86_400, 300)))
        guests = leasekit.emulate(document, data=tmp_path).guests
        return guests.column("requests.asked")[0], guests.column("mean_demand")[1]

    assert [found(1, 5), found(2, 5), found(2, 9)] == [(1, 5), (2, 5), (2, 9)]


def test_a_sweep_is_its_runs_one_by_one() -> None:
    """Each combination and seed is what an emulation with these changes gives, in one process and in two."""
    over = {"actor.east.inventory.0.units": [40, 70]}
    swept = leasekit.sweep(_day(), over, seeds=(1, 2))
    assert list(leasekit.sweep(_day(), over, seeds=(1, 2), jobs=2).guests) == list(swept.guests)
    assert swept.runs.column("seed") == [1, 2, 1, 2]
    alone = leasekit.emulate(_day(), changes={"actor.east.inventory.0.units": 70}, seed=2)
    last = [row for row in swept.guests if row["actor.east.inventory.0.units"] == 70 and row["seed"] == 2]
    assert [row["unserved"] for row in last] == alone.guests.column("unserved")
    web = [row["unserved"] for row in swept.guests if row["guest"] == "web"]
    means = swept.mean("unserved", guest="web")
    assert means.column("mean") == [(web[0] + web[1]) / 2, (web[2] + web[3]) / 2]
    assert means.column("seeds") == [2, 2]
    with pytest.raises(leasekit.LeasekitError, match=r"guest: found 'wbe', expected one of.*web"):
        swept.mean("unserved", guest="wbe")
    with pytest.raises(leasekit.LeasekitError, match=r"actor\.east\.inventory\.9"):
        leasekit.sweep(_day(), {"actor.east.inventory.9.units": [1]})
    with pytest.raises(
        leasekit.LeasekitError, match=r"over: actor\.east\.inventory\.0\.units: found 40, expected a list"
    ):
        leasekit.sweep(_day(), {"actor.east.inventory.0.units": 40})  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: leasekit.emulate(3), "config: found 3, expected a deploy file's path"),  # type: ignore[arg-type]
        (lambda: leasekit.World(["a"]), r"config: found \['a'\]"),  # type: ignore[arg-type]
        (lambda: leasekit.emulate(_day(), changes="a=1"), "changes: found 'a=1', expected a table"),  # type: ignore[arg-type]
        (lambda: leasekit.emulate(_day(), runs="a"), "runs: found 'a', expected a list of names"),
        (lambda: leasekit.emulate(_day(), runs=["a"]), r"run: found 'a', but the file names none"),
        (lambda: leasekit.emulate(_day(), out=3), "out: found 3, expected the path of a folder"),  # type: ignore[arg-type]
        (lambda: leasekit.sweep(_day(), 3), "over: found 3, expected a table of lists"),  # type: ignore[arg-type]
        (lambda: leasekit.sweep(_day(), {}, seeds="12"), "seeds: found '12', expected a list"),  # type: ignore[arg-type]
        (lambda: leasekit.sweep(_day(), {}, seeds=0), "seeds: found 0, expected one at least"),
        (lambda: leasekit.sweep(_day(), {}, jobs="2"), "jobs: found '2', expected a number"),  # type: ignore[arg-type]
        (lambda: leasekit.sweep(_day(), {}, jobs=0), "jobs: found 0, expected a whole number from 1 on"),
        (lambda: leasekit.sweep(_day(), {}, dask=3), "dask: found 3, expected the address"),  # type: ignore[arg-type]
        (lambda: leasekit.sweep(_day(), {"a.b": []}), r"over: a\.b: found \[\], expected one value at least"),
        (lambda: leasekit.sweep(_day(), {3: [1]}), "over: a key: found 3, expected text"),  # type: ignore[dict-item]
        (lambda: leasekit.emulate(_day(), changes={3: 1}), "changes: a key: found 3, expected text"),  # type: ignore[dict-item]
        (lambda: leasekit.World(_day()).run_for([1]), r"time: found \[1\], expected a duration"),  # type: ignore[arg-type]
        (lambda: leasekit.World(_day()).run_for("x"), "time: 'x' is not a duration"),
        (lambda: leasekit.World(_day()).run_for(-1), "time: found -1, expected 0 ms at least"),
        (lambda: leasekit.World(_day()).run_until("1h"), "at: found '1h', expected an instant"),  # type: ignore[arg-type]
        (lambda: leasekit.World(_day()).mapper([1]), r"actor: found \[1\], expected a name"),  # type: ignore[arg-type]
        (lambda: leasekit.World(_day()).result().series(every=0), "every: found 0, expected 1 ms at least"),
    ],
)
def test_arguments_that_are_none_are_named(call: Callable[[], object], message: str) -> None:
    """Before anything is run."""
    with pytest.raises(leasekit.LeasekitError, match=message):
        call()


def test_seeds_are_named_or_counted() -> None:
    """Each combination has all of them, whatever they are given as; a number counts from the deployment's own on."""
    over, short = {"actor.east.inventory.0.units": [40, 70]}, {"emulation.horizon": "1h", "emulation.seed": 5}
    for seeds in (2, (5, 6), iter((5, 6))):
        assert leasekit.sweep(_day(), over, seeds=seeds, changes=short).runs.column("seed") == [5, 6, 5, 6]


def test_the_interval_is_students() -> None:
    """By the example of a textbook: 1 to 5 have the mean 3 and the 95% interval 1.037 to 4.963."""
    found = interval([1.0, 2.0, 3.0, 4.0, 5.0])
    assert (found["seeds"], found["mean"]) == (5, 3.0)
    assert (round(found["low"], 3), round(found["high"], 3)) == (1.037, 4.963)
    assert interval([2.0]) == {"seeds": 1, "mean": 2.0, "low": None, "high": None}


def test_a_script_that_forgets_its_main_is_told(tmp_path: Path) -> None:
    """Processes that would start processes are no endless row of them: one error says what is missing."""
    script = tmp_path / "script.py"
    over = '{"actor.east.inventory.0.units": [40, 70]}'
    script.write_text(f"import leasekit\nleasekit.sweep({str(MONTH)!r}, {over}, jobs=2)\n")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 1
    assert "must do so below if __name__ == '__main__':" in done.stderr.splitlines()[-1]


def test_a_world_is_what_an_emulation_runs() -> None:
    """Stepped through to its horizon, a deployment comes to what its emulation does."""
    world = leasekit.World(_day())
    for _ in range(23):
        world.run_for("1h")
    world.run_until(24 * 3_600_000 - 1)
    whole = leasekit.emulate(_day())
    assert list(world.result().guests) == list(whole.guests)
    assert len(world.transitions) == whole.runs[0]["transitions"]


def test_a_world_is_commanded_and_asked() -> None:
    """Commands are carried out at their instant; what is wrong with one is told, and changes nothing."""
    world = leasekit.World(QUICKSTART, changes={"emulation": {"horizon": "1d"}})
    assert world.actors == {"site": "authority", "broker": "broker", "guest": "guest"}
    world.run_for("1s")
    lease = world.command("guest", "lease.request", type="vm", units=2, term=[1000, 3_601_000])
    assert world.now == 1000
    world.run_for("1m")
    assert [found["state"] for found in world.query("guest", "leases")] == ["active"]
    world.run_for("2h")
    assert world.query("guest", "leases") == []
    ours = [step for step in world.transitions if (step.actor, step.subject) == ("guest", lease["id"])]
    assert (ours[0].event, ours[-1].after.partition("/")[0]) == ("ask", "closed")
    with pytest.raises(leasekit.CommandError, match="no lease 'nosuch' here"):
        world.command("guest", "lease.close", lease="nosuch")
    with pytest.raises(leasekit.LeasekitError, match=r"actor: found 'gest'.*guest"):
        world.query("gest", "leases")
    with pytest.raises(leasekit.LeasekitError, match="which is past"):
        world.run_until(0)
    with pytest.raises(leasekit.LeasekitError, match=r"no \[emulation\] table"):
        leasekit.World(
            {key: value for key, value in tomllib.loads(QUICKSTART.read_text()).items() if key != "emulation"}
        )
