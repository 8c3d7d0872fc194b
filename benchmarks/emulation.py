"""What emulations cost: a month of ``terms.toml``, and a tick of ``scaling.toml``.

Modes: ``terms`` (lease terms of 12 hours, the dearest of the file, over its month; signatures off, as the file has it,
and on to compare) and ``scaling`` (240 nodes, one lease of all of them for every 3,600 ticks, each tick executed). Each
run has a process of its own, so that ``rss_mb`` is its own. ``wall_s`` counts from the file to the summary, with the
trace read; ``alpha_ms`` is a tick's share of the run alone, as in Shirako's section 5.3. Where the trace is missing,
generated load takes its place, and the names end in ``_synthetic``.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import TypedDict

from _report import Result, emit, result

EXPERIMENTS = Path(__file__).resolve().parent.parent / "deploy" / "emulation"
MODES = ("terms", "scaling")


class Measured(TypedDict):
    """What one run in a process of its own came to; ``load`` is empty, or ``_synthetic``."""

    load: str
    wall_s: float
    alpha_ms: float
    rss_mb: float


def run(file: str, name: str, *, signatures: bool = False) -> Measured:
    """One run of an experiment, measured in a process of its own."""
    command = [sys.executable, __file__, "--child", file, name, *(["--signatures"] if signatures else [])]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    measured: Measured = json.loads(done.stdout)
    return measured


def child(file: str, name: str, signatures: bool) -> Measured:
    """Carry one run out, in this process."""
    import resource
    import time

    from leasekit.config.load import load
    from leasekit.config.traces import TraceMissing
    from leasekit.emulation.experiment import run_one

    begin = time.perf_counter()
    deployment = load(EXPERIMENTS / file).with_overrides({"deployment.signatures": signatures})
    assert deployment.emulation is not None, "an experiment has an [emulation] table"
    spec = next(spec for spec in deployment.emulation.runs if spec.name == name)
    suffix = ""
    try:
        done = run_one(deployment, spec, None)
    except TraceMissing:
        suffix, begin = "_synthetic", time.perf_counter()
        done = run_one(deployment, spec, None, synthetic=True)
    wall_s = time.perf_counter() - begin
    rss_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return Measured(load=suffix, wall_s=wall_s, alpha_ms=done.summary["measured"]["alpha_ms"], rss_mb=rss_mb)


def terms() -> list[Result]:
    """One term, one month."""
    plain, signed = run("terms.toml", "12h"), run("terms.toml", "12h", signatures=True)
    load = plain["load"]
    return [
        result(f"wall_s{load}", plain["wall_s"], "s", 10.0),
        result(f"rss_mb{load}", plain["rss_mb"], "MB", 300.0),
        result(f"wall_s_signed{load}", signed["wall_s"], "s", None),
        result(f"rss_mb_signed{load}", signed["rss_mb"], "MB", None),
    ]


def scaling(rounds: int) -> list[Result]:
    """A tick where most have nothing to do: the best of some rounds. Skipping idle ticks is shown, not judged."""
    every = min(run("scaling.toml", "every tick, N = 240")["alpha_ms"] for _ in range(rounds))
    due = min(run("scaling.toml", "idle ticks skipped, N = 240")["alpha_ms"] for _ in range(rounds))
    return [result("alpha_ms", every, "ms", 0.02), result("alpha_ms_idle_skipped", due, "ms", None)]


def main() -> int:
    """Run one mode, or both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", choices=[*MODES, "all"], default="all")
    parser.add_argument("--quick", action="store_true", help="one round of each")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--child", nargs=2, metavar=("FILE", "RUN"), help=argparse.SUPPRESS)
    parser.add_argument("--signatures", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        file, name = options.child
        print(json.dumps(child(file, name, options.signatures)))
        return 0
    results = terms() if options.mode in ("terms", "all") else []
    if options.mode in ("scaling", "all"):
        results += scaling(1 if options.quick else 3)
    return 0 if emit("emulation", options.mode, results, options.json) else 1


if __name__ == "__main__":
    sys.exit(main())
