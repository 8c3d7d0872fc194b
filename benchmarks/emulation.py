"""What emulations cost: a month of ``terms.toml``, a tick of ``scaling.toml``, a week and a year of many guests.

Modes: ``terms`` (lease terms of 12 hours, the dearest of the file, over its month; signatures off, as the file has it,
and on to compare), ``scaling`` (240 nodes, one lease of all of them for every 3,600 ticks, each tick executed: mean and
standard deviation over ten runs, as in Shirako's section 5.3), ``crowd`` and ``year``. Each run has a process of its
own, so that ``rss_mb`` is its own. ``wall_s`` counts from the file to the summary, with the trace read; ``alpha_ms`` is
a tick's share of the run alone. Where the trace is missing, generated load takes its place, and the names end in
``_synthetic``.

``crowd`` has 100 guests, each after a load of its own, on 1,000 nodes of four sites, and on 10,000: they look every
five minutes, and lease for an hour. Of the week that they are asked about, a share is run (``days``). An event is a
message, a timer (an actor that wakes by itself, for however much is due), or the end of an action. ``floor_per_s`` is
what the same machine does at the same time of the least that an event is: taken from a queue of as many, with a message
encoded and decoded.

``year`` has 1,000 guests, which look every hour and lease for a day, on 5,000 nodes: seven days are run with their
transition log of leases alone (``log = "leases"``), and time and log are multiplied up to a year, so ``year_min`` and
``year_log_gb`` are extrapolated. ``--days 365`` runs all of it, in half an hour or more: with a made-up load, as the
trace is shorter.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, TypedDict

from _report import Result, emit, result

EXPERIMENTS = Path(__file__).resolve().parent.parent / "deploy" / "emulation"
TRACE_DAYS = 30
"""What the trace has after the last of the instants at which guests begin in it."""
MODES = ("terms", "scaling", "crowd", "year")
EVENTS_OF_FLOOR = 200_000


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


class Crowd(TypedDict):
    """What a share of a crowd's time came to."""

    cpu_s: float
    events: int
    log_bytes: int
    rss_mb: float


def crowd_of(nodes: int, guests: int, days: float, interval: str, term: str, log: str) -> dict[str, Any]:
    """The deploy file of guests that follow loads of their own, which together want most of the nodes at their peak."""
    sites = {
        f"site{number}": {
            "role": "authority",
            "inventory": [{"type": "node", "units": nodes // 4, "prefix": f"s{number}-"}],
            "delegation": [{"broker": "broker", "type": "node"}],
        }
        for number in range(4)
    }
    follow = {"name": "load_following", "type": "node", "interval": interval, "term": term}
    signal = {"file": "worldcup98/worldcup98-5min.csv.gz", "column": "requests", "horizon": f"{days * 24}h"}
    return {
        "deployment": {"name": "crowd", "signatures": False},
        "actor": {
            **sites,
            "broker": {"role": "broker", "mapper": {"name": "fcfs", "balance": "load_balanced"}},
            **{
                f"guest{number}": {
                    "role": "guest",
                    "mapper": {
                        **follow,
                        "signal": {
                            **signal,
                            "start": f"1998-06-{1 + number % 20:02}T{number % 24:02}:00Z",
                            "peak": nodes / guests,
                        },
                    },
                }
                for number in range(guests)
            },
        },
        "emulation": {"horizon": f"{days * 24}h", "seed": 1, "log": log},
    }


def crowd_child(nodes: int, guests: int, days: float, interval: str, term: str, log: str) -> Crowd:
    """Carry a crowd's share out, in this process."""
    import resource
    from tempfile import TemporaryDirectory

    import leasekit
    from leasekit.config.traces import TraceMissing

    document = crowd_of(nodes, guests, days, interval, term, log)
    with TemporaryDirectory() as out:
        try:
            done = leasekit.emulate(document, out=out, synthetic=days > TRACE_DAYS)
        except TraceMissing:
            done = leasekit.emulate(document, out=out, synthetic=True)
        log_bytes = (Path(out) / "transitions.csv").stat().st_size
    (run,) = done.summary["runs"]
    rss_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return Crowd(
        cpu_s=run["measured"]["cpu_s"],
        events=run["messages"] + run["timers"] + run["actions"],
        log_bytes=log_bytes,
        rss_mb=rss_mb,
    )


def crowd_run(nodes: int, guests: int, days: float, interval: str, term: str, log: str) -> Crowd:
    """A crowd's share, in a process of its own."""
    given = [str(nodes), str(guests), str(days), interval, term, log]
    done = subprocess.run([sys.executable, __file__, "--crowd", *given], check=True, stdout=subprocess.PIPE, text=True)
    measured: Crowd = json.loads(done.stdout)
    return measured


def floor_per_s() -> float:
    """Events a second of a queue that does nothing but hold them and copy a message for each."""
    import heapq
    import time

    from leasekit.core.protocol.codec import decode_batch, encode_batch
    from leasekit.core.protocol.messages import ErrorReply
    from leasekit.core.reasons import said

    queue: list[tuple[int, int, list[Any]]] = []
    message = ErrorReply("lease", 1, said("no"))
    begin = time.process_time()
    for number in range(EVENTS_OF_FLOOR):
        heapq.heappush(queue, (number * 7919 % 100_003, number, decode_batch(encode_batch([message]))))
    while queue:
        heapq.heappop(queue)
    return EVENTS_OF_FLOOR / (time.process_time() - begin)


def crowds(days: float) -> list[Result]:
    """100 guests on 1,000 nodes, and on 10,000."""
    found: list[Result] = []
    for nodes, wanted in ((1000, 40_000), (10_000, 30_000)):
        done, floor = crowd_run(nodes, 100, days, "5m", "1h", "all"), floor_per_s()
        rate = done["events"] / done["cpu_s"]
        found.append(result(f"events_per_s_{nodes}", rate, "1/s", wanted, floor, higher_is_better=True))
        found.append(result(f"rss_mb_{nodes}", done["rss_mb"], "MB", None))
    return found


def year(days: float) -> list[Result]:
    """1,000 guests over some days, multiplied up."""
    done = crowd_run(5000, 1000, days, "1h", "1d", "leases")
    times = 365 / days
    return [
        result("year_min", done["cpu_s"] * times / 60, "min", 75.0),
        result("year_log_gb", done["log_bytes"] * times / 1e9, "GB", 1.0),
        result("rss_mb_year", done["rss_mb"], "MB", None),
    ]


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
    """A tick where most have nothing to do. The best of the rounds is judged; their mean and deviation, as the paper
    has them, and what skipping idle ticks costs, are shown.
    """
    found: list[Result] = []
    for name, of, most in (("", "every tick", 0.02), ("_idle_skipped", "idle ticks skipped", None)):
        alphas = [run("scaling.toml", f"{of}, N = 240")["alpha_ms"] for _ in range(rounds)]
        found += [
            result(f"alpha_ms{name}", min(alphas), "ms", most),
            result(f"alpha_ms{name}_mean", fmean(alphas), "ms", None),
            result(f"alpha_ms{name}_deviation", stdev(alphas) if rounds > 1 else 0.0, "ms", None),
        ]
    return found


def main() -> int:
    """Run one mode, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", choices=[*MODES, "all"], default="all")
    parser.add_argument("--quick", action="store_true", help="one round of each, short shares")
    parser.add_argument("--days", type=float, default=7, help="with --mode year: how many of them are run")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--child", nargs=2, metavar=("FILE", "RUN"), help=argparse.SUPPRESS)
    parser.add_argument("--crowd", nargs=6, help=argparse.SUPPRESS)
    parser.add_argument("--signatures", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        file, name = options.child
        print(json.dumps(child(file, name, options.signatures)))
        return 0
    if options.crowd:
        nodes, guests, days, *times = options.crowd
        print(json.dumps(crowd_child(int(nodes), int(guests), float(days), *times)))
        return 0
    results = terms() if options.mode in ("terms", "all") else []
    if options.mode in ("scaling", "all"):
        results += scaling(1 if options.quick else 10)
    if options.mode in ("crowd", "all"):
        results += crowds(0.25 if options.quick else 7)
    if options.mode in ("year", "all"):
        results += year(1 if options.quick else options.days)
    return 0 if emit("emulation", options.mode, results, options.json) else 1


if __name__ == "__main__":
    sys.exit(main())
