"""Runs every benchmark in this folder and prints one table; ends with 1 if a target is missed or a benchmark fails.

Each has a process of its own, one after the other, and a bound on its time.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from _report import Result, machine, print_table

HERE = Path(__file__).resolve().parent
LIMIT_S, LIMIT_QUICK_S = 900, 180


def benchmarks() -> list[Path]:
    """The benchmarks beside this file: not this one, and not what they share."""
    return [path for path in sorted(HERE.glob("*.py")) if path.name != Path(__file__).name and path.name[0] != "_"]


def run(benchmark: Path, quick: bool) -> tuple[list[Result], str]:
    """The figures of one benchmark, named after it, and in words what went wrong with it, if anything."""
    command = [sys.executable, str(benchmark), "--json", *(["--quick"] if quick else [])]
    limit = LIMIT_QUICK_S if quick else LIMIT_S
    # A session of its own, so that a benchmark that takes too long takes its daemons along.
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            output, errors = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return [], f"{benchmark.stem}: not done within {limit} s"
    if process.returncode not in (0, 1) or not output:
        return [], f"{benchmark.stem}: exit status {process.returncode}\n{errors}".rstrip()
    results: list[Result] = json.loads(output)["results"]
    for entry in results:
        entry["name"] = f"{benchmark.stem}.{entry['name']}"
    missed = ", ".join(entry["name"] for entry in results if not entry["ok"])
    return results, f"missed: {missed}" if missed else ""


def main() -> int:
    """Run all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes: a minute or two in all")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    figures: list[Result] = []
    wrong: list[str] = []
    for benchmark in benchmarks():
        print(f"running {benchmark.stem} ...", file=sys.stderr, flush=True)
        results, what = run(benchmark, options.quick)
        figures += results
        if what:
            wrong.append(what)
    where, mode = machine(), "quick" if options.quick else "full"
    if options.json:
        print(json.dumps({"benchmark": "all", "mode": mode, "results": figures, "machine": where}))
    else:
        print(f"all ({mode}) on {where['cpus']} CPUs, Python {where['python']}, {where['platform']}")
        print_table(figures)
    for text in wrong:
        print(text, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
