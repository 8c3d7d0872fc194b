"""Coverage-guided fuzzing with atheris (``pip install -e '.[fuzz]'``).

    python tests/fuzz/run.py --target frames --runs 1000000 [--corpus DIR] [--seconds S]
    python tests/fuzz/run.py --target frames --merge DIR     keep in the corpus what of DIR reaches something new

Ends with 0 when nothing was found. A crash, a hang (over 100 ms of processor time for one input) or memory beyond four
times the longest frame ends it with the input in a file named in the output; put it into ``corpus/TARGET`` once the bug
is fixed. New inputs that reach something new go to --corpus (default: a folder of the run's own, so that the small
corpus in ``tests/fuzz/corpus`` stays as it is), from where --merge picks the fewest that matter.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

import atheris

HERE = Path(__file__).resolve().parent
HANG_S = 0.1
MEMORY_MAX = 4 * 4 * 2**20
MEASURE_EVERY = 499

with atheris.instrument_imports(include=["leasekit.core"]):
    import fuzz_targets as targets
from fuzz_draw import mutate_msgpack  # noqa: E402 - not instrumented
from fuzz_seeds import seeds  # noqa: E402 - after what is


def guarded(target: Callable[[bytes], None], count: list[int]) -> Callable[[bytes], None]:
    """``target`` with its time watched, and its memory now and then."""

    def test_one(data: bytes) -> None:
        count[0] += 1
        if count[0] % MEASURE_EVERY == 0:
            tracemalloc.start()
            target(data)
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            if peak > MEMORY_MAX:
                raise MemoryError(f"{peak} bytes for an input of {len(data)}")
            return
        began = time.process_time()
        target(data)
        took = time.process_time() - began
        if took > HANG_S and min(timed(target, data) for _ in range(3)) > HANG_S:  # no pause of the collector's
            raise TimeoutError(f"{took:.3f} s for an input of {len(data)} bytes")

    return test_one


def timed(target: Callable[[bytes], None], data: bytes) -> float:
    """Seconds of processor time."""
    began = time.process_time()
    target(data)
    return time.process_time() - began


def mutator(prefix: int) -> Callable[[bytes, int, int], bytes]:
    """Half of the mutations are of what msgpack says, behind ``prefix`` bytes that are not msgpack; half of bytes."""

    def mutate(data: bytes, max_size: int, seed: int) -> bytes:
        random = Random(seed)
        if random.random() < 0.5:
            changed = mutate_msgpack(data[prefix:], random)
            if changed is not None and len(changed) + prefix <= max_size:
                return data[:prefix] + changed
        return bytes(atheris.Mutate(data, max_size))

    return mutate


PREFIXES = {"batches": 0, "tickets": 1, "statements": 0}


def merge(target: str, folder: Path, kept: Path) -> None:
    """Keep of both folders the inputs, short ones first, that take a step from line to line that no other one did."""
    paths = [path for place in (kept, folder) for path in place.iterdir() if not path.name.startswith("found-")]
    inputs = sorted({path.read_bytes() for path in paths}, key=lambda data: (len(data), data))
    seen: set[tuple[str, int, int]] = set()
    chosen = []
    for data in inputs:
        steps = steps_of(targets.TARGETS[target], data)
        if not steps <= seen:
            seen |= steps
            chosen.append(data)
    for path in kept.iterdir():
        path.unlink()
    for data in chosen:
        (kept / sha256(data).hexdigest()[:16]).write_bytes(data)
    print(f"{target}: {len(chosen)} of {len(inputs)} inputs, {sum(map(len, chosen))} bytes, {len(seen)} steps")


def steps_of(target: Callable[[bytes], None], data: bytes) -> set[tuple[str, int, int]]:
    """The steps from line to line, within functions of the core, that an input leads to."""
    steps: set[tuple[str, int, int]] = set()

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        if "leasekit/core" not in frame.f_code.co_filename:
            return None
        last = [0]

        def step(frame: FrameType, event: str, argument: object) -> Any:
            if event in ("line", "return"):
                steps.add((frame.f_code.co_filename, last[0], frame.f_lineno))
                last[0] = frame.f_lineno
            return step

        return step

    sys.settrace(trace)
    try:
        target(data)
    finally:
        sys.settrace(None)
    return steps


def main() -> None:
    """Fuzz one target; the process ends with libFuzzer's exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", choices=sorted(targets.TARGETS), required=True)
    parser.add_argument("--runs", type=int, default=100_000, help="executions (default: %(default)s)")
    parser.add_argument("--seconds", type=int, default=0, help="stop after so many seconds (default: no limit)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--corpus", type=Path, help="where inputs that reach something new are kept")
    parser.add_argument("--merge", type=Path, help="don't fuzz: add what matters of this folder to the corpus")
    options = parser.parse_args()
    kept = HERE / "corpus" / options.target
    kept.mkdir(parents=True, exist_ok=True)
    if options.merge:
        merge(options.target, options.merge, kept)
        return
    command = [sys.argv[0], f"-max_len={targets.LENGTH_MAX}", "-rss_limit_mb=2048", "-timeout=20"]
    fresh = options.corpus or Path(tempfile.mkdtemp(prefix=f"fuzz-{options.target}-"))
    fresh.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate(seeds()[options.target]):
        (fresh / f"seed-{number}").write_bytes(data)
    command += [f"-runs={options.runs}", f"-seed={options.seed}", "-print_final_stats=1", str(fresh), str(kept)]
    command += [f"-artifact_prefix={fresh}/found-", f"-max_total_time={options.seconds}"]
    prefix = PREFIXES.get(options.target)
    extra = {} if prefix is None else {"custom_mutator": mutator(prefix)}
    atheris.Setup(command, guarded(targets.TARGETS[options.target], [0]), **extra)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
