"""How fast the timetable is, and how that grows with what it stores.

    python benchmarks/timetable.py [--json] [--quick]

Capacity: 1,000 units over a month at load 0.9. Terms
are drawn exponentially, units from 1 to 16, starts uniformly; what doesn't fit where it was drawn takes the earliest
fit after that. Point work is measured on the full timetable: reserve one that fits, release it again. Earliest fit:
the same kind of requests with random starts, and large ones (up to 15 % of the units, up to a day) from the beginning
of the month, where a naive search stops at every obstacle. ``--quick`` leaves out the growth curve's largest sizes.
"""

from __future__ import annotations

import argparse
import gc
import math
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from random import Random
from typing import Any, NamedTuple

from _report import Result, emit, result

from leasekit.core.time import DAY, MINUTE, Term
from leasekit.core.timetable import Timetable

MONTH = 30 * DAY
UNITS = 1000
LOAD = 0.9
SIZES = (1, 1, 2, 2, 4, 4, 8, 16)
STORED = 100_000


class Shape(NamedTuple):
    """How much is stored, on how many units, over how long."""

    stored: int
    capacity: int = UNITS
    span: int = MONTH


def draw(random: Random, shape: Shape) -> tuple[int, int]:
    """Units and duration of a request such that as many as are stored fill the span to the load."""
    mean_term = LOAD * shape.capacity * shape.span / shape.stored / (sum(SIZES) / len(SIZES))
    return random.choice(SIZES), min(max(MINUTE, int(random.expovariate(1 / mean_term))), shape.span // 3)


def loaded(shape: Shape, random: Random) -> Timetable:
    """A timetable of that shape, filled to the load."""
    timetable, key = Timetable(shape.capacity), 0
    while key < shape.stored:
        units, duration = draw(random, shape)
        last = shape.span - duration
        start = random.randrange(last)
        fit = timetable.earliest(units, duration, start, last)
        if fit is None:
            fit = timetable.earliest(units, duration, 0, start)
        if fit is not None:
            timetable.reserve(key, units, Term(fit, fit + duration))
            key += 1
    return timetable


def timed(call: Callable[..., object], *arguments: Any) -> float:
    """Microseconds that a call takes."""
    began = time.perf_counter()
    call(*arguments)
    return (time.perf_counter() - began) * 1e6


def at(samples: list[float], share: float) -> float:
    """The value below which that share of the samples lies."""
    return sorted(samples)[min(int(len(samples) * share), len(samples) - 1)]


def point_work(timetable: Timetable, shape: Shape, random: Random, rounds: int) -> tuple[float, float]:
    """Mean microseconds to reserve, where it fits, and to release: the best of five rounds' means.

    What interrupts a process on a shared machine takes milliseconds, and would be most of a mean.
    """
    means = []
    for _ in range(5):
        reserves: list[float] = []
        releases: list[float] = []
        while len(reserves) < rounds:
            units, duration = draw(random, shape)
            start = random.randrange(shape.span - duration)
            term = Term(start, start + duration)
            if timetable.available(term) >= units:
                reserves.append(timed(timetable.reserve, "probe", units, term))
                releases.append(timed(timetable.release, "probe"))
        means.append((sum(reserves) / rounds, sum(releases) / rounds))
    return min(means, key=sum)


def earliest_work(timetable: Timetable, random: Random, rounds: int, large: bool) -> list[float]:
    """Microseconds of each search for an earliest fit within the month."""
    samples = []
    for _ in range(rounds):
        if large:
            units, duration, begin = random.randint(1, UNITS * 15 // 100), random.randint(MINUTE, DAY), 0
        else:
            units, duration = draw(random, Shape(STORED))
            begin = random.randrange(MONTH - duration)
        samples.append(timed(timetable.earliest, units, duration, begin, MONTH - duration))
    return samples


def capacity_figures(rounds: int) -> Iterator[Result]:
    """Point work, earliest fit and memory with 100,000 reservations stored."""
    random = Random(1)
    gc.collect()
    timetable = loaded(Shape(STORED), random)
    reserve, release = point_work(timetable, Shape(STORED), random, rounds)
    yield result("reserve_us_100000", reserve, "us", 50)
    yield result("release_us_100000", release, "us", 50)
    for name, large in (("earliest", False), ("earliest_large", True)):
        samples = earliest_work(timetable, random, rounds, large)
        yield result(f"{name}_median_us", at(samples, 0.5), "us", 200)
        yield result(f"{name}_p99_us", at(samples, 0.99), "us", 2000)
    yield result("load", timetable.utilisation(Term(0, MONTH)), "", None)
    overlay = timetable.overlay()
    for number in range(10):
        overlay.reserve(("plan", number), 1, Term(number * DAY, number * DAY + MINUTE), force=True)
    samples = earliest_work(overlay, random, rounds, False)
    yield result("overlay_earliest_median_us", at(samples, 0.5), "us", None)


def small_figures() -> Iterator[Result]:
    """What a timetable with a handful of reservations costs: an emulation has many of those."""
    timetable, term, rounds = Timetable(10), Term(5, 15), 20_000
    for number in range(5):
        timetable.reserve(number, 1, Term(number * 4, number * 4 + 9))

    def pairs() -> None:
        for _ in range(rounds):
            timetable.reserve("probe", 2, term)
            timetable.release("probe")

    yield result("small_reserve_release_us", timed(pairs) / rounds, "us", None)


def memory_figure() -> Iterator[Result]:
    """Bytes that a stored reservation adds, its key, its term and the table's share included."""
    random = Random(2)
    wanted = []
    for key, (units, term) in _contents(loaded(Shape(STORED), random)):
        wanted.append((key, units, term.start, term.end))
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    timetable = Timetable(UNITS)
    for key, units, start, end in wanted:
        # Fresh numbers and names, as they would arrive from outside.
        timetable.reserve(f"lease-{key}", units, Term(start + 0, end + 0), force=True)
    gc.collect()
    used = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    yield result("bytes_per_reservation", used / len(timetable), "B", 600)


def _contents(timetable: Timetable) -> Iterator[tuple[object, tuple[int, Term]]]:
    for key in timetable:
        held = timetable.get(key)
        assert held is not None
        yield key, held


def growth_figures(sizes: list[int], rounds: int) -> Iterator[Result]:
    """Reserve and release, together, from 100 to 1,000,000 stored, in two ways of growing.

    ``longer``: the same 1,000 units booked ever further ahead. ``denser``: one month, with units in proportion to
    what is stored, so that each term spans ever more of the other reservations' starts and ends.
    ``growth_..._per_doubling_us`` is what the pair costs more each time that the number stored doubles.
    """
    for name in ("longer", "denser"):
        pairs = []
        for stored in sizes:
            share, random = stored / STORED, Random(stored)
            longer = Shape(stored, UNITS, round(MONTH * share))
            shape = longer if name == "longer" else Shape(stored, max(round(UNITS * share), 20))
            reserve, release = point_work(loaded(shape, random), shape, random, rounds)
            pairs.append(reserve + release)
            yield result(f"{name}_reserve_release_us_{stored}", reserve + release, "us", None)
        doublings = math.log2(sizes[-1] / sizes[0])
        yield result(f"growth_{name}_per_doubling_us", (pairs[-1] - pairs[0]) / doublings, "us", None)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--quick", action="store_true", help="leave out the largest sizes of the growth curve")
    arguments = parser.parse_args()
    rounds = 2000
    sizes = [100, 1000, 10_000, 100_000] + ([] if arguments.quick else [1_000_000])
    results = [*small_figures(), *capacity_figures(rounds), *memory_figure()]
    results += growth_figures(sizes, rounds)
    ok = emit("timetable", "quick" if arguments.quick else "full", results, arguments.json)
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
