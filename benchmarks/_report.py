"""What every benchmark prints: one JSON object with ``--json``, a small table for a person without it."""

from __future__ import annotations

import json
import os
import platform
import sys
from typing import TypedDict


class Result(TypedDict):
    """One figure. ``floor`` is what a bare loop of the same work reaches in the same run, None where there is none."""

    name: str
    value: float
    unit: str
    floor: float | None
    target: float | None
    ok: bool


class Machine(TypedDict):
    """Where it was measured: ``cpus`` are those that this process may use."""

    cpus: int
    python: str
    platform: str


def result(
    name: str,
    value: float,
    unit: str,
    target: float | None,
    floor: float | None = None,
    higher_is_better: bool = False,
) -> Result:
    """A figure and whether it reaches its target; without a target it is ``ok`` (it is shown, not judged).

    Figures are rounded to four significant digits, after they are judged.
    """
    ok = target is None or (value >= target if higher_is_better else value <= target)
    return Result(name=name, value=_rounded(value), unit=unit, floor=_rounded_or_none(floor), target=target, ok=ok)


def machine() -> Machine:
    """The machine, as far as it explains the figures."""
    return Machine(
        cpus=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        python=platform.python_version(),
        platform=platform.platform(),
    )


def emit(benchmark: str, mode: str, results: list[Result], as_json: bool) -> bool:
    """Print the results, and on standard error which targets are missed; returns whether none is, for the exit code."""
    where = machine()
    if as_json:
        print(json.dumps({"benchmark": benchmark, "mode": mode, "results": results, "machine": where}))
    else:
        print(f"{benchmark} ({mode}) on {where['cpus']} CPUs, Python {where['python']}, {where['platform']}")
        print_table(results)
    sys.stdout.flush()
    for entry in results:
        if not entry["ok"]:
            found, target = _shown(entry["value"]), _shown(entry["target"])
            print(f"{benchmark}: {entry['name']} is {found} {entry['unit']}, target {target}", file=sys.stderr)
    return all(entry["ok"] for entry in results)


def print_table(results: list[Result]) -> None:
    """A line for each figure."""
    rows = [("", "value", "unit", "target", "floor", "")]
    for entry in results:
        judged = "" if entry["target"] is None else ("ok" if entry["ok"] else "MISSED")
        figures = (_shown(entry["value"]), entry["unit"], _shown(entry["target"]), _shown(entry["floor"]))
        rows.append((entry["name"], *figures, judged))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        cells = [
            cell.ljust(width) if i in (0, 2) else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        print("  ".join(cells).rstrip())


def _shown(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value == int(value) or abs(value) >= 1000 else f"{value:.4g}"


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


def _rounded_or_none(value: float | None) -> float | None:
    return None if value is None else _rounded(value)
