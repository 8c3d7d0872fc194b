"""Runs as rows: a table of all runs, of guests and of sites, and what is the mean of it over seeds."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from math import sqrt
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Final

from leasekit.core.errors import LeasekitError
from leasekit.core.settings import expect_one_of
from leasekit.emulation.outputs import write_rows

SEED: Final = "emulation.seed"
COUNTED: Final = ("seed", "events", "messages", "timers", "actions", "transitions", "flips")
T_95: Final = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
    2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
"""The 97.5% quantile of Student's t for 1 to 30 degrees of freedom; for more it is taken to be as for 30, which makes
intervals up to 4% too wide."""


def interval(values: Sequence[float]) -> dict[str, Any]:
    """How many ``seeds``, their ``mean``, and the 95% confidence interval of that, from ``low`` to ``high``."""
    mean, count = fmean(values), len(values)
    half = T_95[min(count - 1, len(T_95)) - 1] * stdev(values) / sqrt(count) if count > 1 else None
    low, high = (None, None) if half is None else (mean - half, mean + half)
    return {"seeds": count, "mean": mean, "low": low, "high": high}


def run_row(run: Mapping[str, Any]) -> dict[str, Any]:
    """What was counted of all of a run, and what a clock measured."""
    errors = sum(count for kinds in run["mapper_errors"].values() for count in kinds.values())
    row = {"run": run["run"], "series": run["series"], **run["set"], **{key: run[key] for key in COUNTED}}
    return {**row, "mapper_errors": errors, **{f"measured.{key}": value for key, value in run["measured"].items()}}


def guest_rows(summary: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """A row for each guest of each run."""
    for run in summary["runs"]:
        for name, guest in run["guests"].items():
            yield {"run": run["run"], **run["set"], "guest": name, **_flat(guest, without=("types",))}


def site_rows(summary: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """A row for each type of each site of each run."""
    for run in summary["runs"]:
        for name, site in run["sites"].items():
            power = {"energy": site["energy"]} if "energy" in site else {}
            for kind, found in site["types"].items():
                yield {"run": run["run"], **run["set"], "site": name, "type": kind, **_flat({**found, **power})}


def reported_rows(summary: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """A row for each number that a mapper reports in each run."""
    for run in summary["runs"]:
        for actor, numbers in run["reported"].items():
            for name, number in numbers.items():
                yield {"run": run["run"], **run["set"], "actor": actor, "number": name, **number}


def wide_row(run: Mapping[str, Any]) -> dict[str, Any]:
    """All figures of a run that repeat, by dotted names: ``web.unserved``, ``lab.node.used``."""
    row = {key: value for key, value in run_row(run).items() if not key.startswith("measured.")}
    for name, guest in run["guests"].items():
        row |= _flat(guest, f"{name}.", without=("types",))
    for name, numbers in run["reported"].items():
        row |= _flat(numbers, f"{name}.reported.")
    for name, site in run["sites"].items():
        row |= _flat(site.get("energy", {}), f"{name}.energy.")
        for kind, found in site["types"].items():
            row |= _flat(found, f"{name}.{kind}.")
    return row


def means(runs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Runs that differ in their seeds alone, as one: their ``series``, what else was ``set``, how many ``seeds``, and
    the mean of each figure with its 95% interval (:func:`interval`).
    """
    made = []
    for several in by_seeds(runs):
        rows = [wide_row(run) for run in several]
        figures = {}
        for key in rows[0]:
            values = [row.get(key) for row in rows]
            if key not in ("run", "series", "seed", *several[0]["set"]) and all(map(_is_number, values)):
                figures[key] = {what: one for what, one in interval(values).items() if what != "seeds"}  # type: ignore[arg-type]
        made.append({"series": several[0]["series"], "set": without_seed(several[0]), "seeds": len(several),
                     "figures": figures})  # fmt: skip
    return made


def by_seeds(runs: Sequence[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    """Runs that differ in their seeds alone, where there are several."""
    grouped: dict[str, list[Mapping[str, Any]]] = {}
    for run in runs:
        if SEED in run["set"]:
            grouped.setdefault(repr((run["series"], without_seed(run))), []).append(run)
    return [several for several in grouped.values() if len(several) > 1]


def without_seed(run: Mapping[str, Any]) -> dict[str, Any]:
    """What a run sets beside its seed."""
    return {key: value for key, value in run["set"].items() if key != SEED}


def write_table(runs: Sequence[Mapping[str, Any]], out: Path) -> None:
    """Write ``runs.csv``, a row for each run, and ``runs.parquet`` where polars or pyarrow is installed."""
    rows = [wide_row(run) for run in runs]
    columns = dict.fromkeys(key for row in rows for key in row)
    write_rows(out / "runs.csv", list(columns), ([row.get(key, "") for key in columns] for row in rows))
    table = {key: _of_one_type([row.get(key) for row in rows]) for key in columns}
    if (write := parquet_writer()) is not None:
        write(table, out / "runs.parquet")


@cache
def parquet_writer() -> Callable[[Mapping[str, Any], Path], object] | None:
    """What writes columns as Parquet: polars, or else pyarrow; None where neither is installed. Who runs anything asks
    for it before, as a module whose import was interrupted can't be imported again.
    """
    with suppress(ImportError):
        frames = importlib.import_module("polars")
        return lambda table, path: frames.DataFrame(table, strict=False).write_parquet(path)
    with suppress(ImportError):
        arrow, parquet = (importlib.import_module(name) for name in ("pyarrow", "pyarrow.parquet"))
        return lambda table, path: parquet.write_table(arrow.table(table), path)
    return None


def column(runs: Sequence[Mapping[str, Any]], name: str, where: str) -> list[float | None]:
    """A column of the table of runs. Raises ``LeasekitError``, which names ``where``, for one that is not there or has
    no numbers.
    """
    rows = [wide_row(run) for run in runs]
    columns = dict.fromkeys(key for row in rows for key, value in row.items() if _is_number(value))
    if name not in columns:
        raise LeasekitError(f"{where}: found {name!r}, {expect_one_of(name, columns)}")
    return [row.get(name) for row in rows]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _of_one_type(values: Iterable[Any]) -> list[Any]:
    found = list(values)
    numbers = all(value is None or _is_number(value) for value in found)
    return found if numbers else [None if value is None else str(value) for value in found]


def _flat(values: Mapping[str, Any], begin: str = "", without: Sequence[str] = ()) -> dict[str, Any]:
    """Tables within tables as columns with dotted names."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            found |= {} if key in without else _flat(value, f"{begin}{key}.")
        else:
            found[f"{begin}{key}"] = value
    return found
