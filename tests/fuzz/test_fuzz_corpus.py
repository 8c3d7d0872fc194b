"""A small sure share of fuzzing: good inputs, the corpus that atheris collected, and Hypothesis (see ``run.py``)."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from random import Random

import pytest
from fuzz_draw import mutate_msgpack
from fuzz_seeds import seeds
from fuzz_targets import LENGTH_MAX, TARGETS
from hypothesis import given
from hypothesis import strategies as st

from leasekit.core.protocol.channel import FRAME_MAX

CORPUS = Path(__file__).parent / "corpus"
SEEDS = seeds()
EVERY = pytest.mark.parametrize("target", sorted(TARGETS))


def corpus(target: str) -> list[bytes]:
    """What is kept of a target's fuzzing."""
    return [path.read_bytes() for path in sorted((CORPUS / target).iterdir())]


@EVERY
def test_good_inputs(target: str) -> None:
    """Every kind of message, ticket, statement and evidence that is good passes its target."""
    assert SEEDS[target]
    for data in SEEDS[target]:
        TARGETS[target](data)


@EVERY
def test_the_corpus(target: str) -> None:
    """What reached something new when it was fuzzed is handled, within four times the memory of the longest frame."""
    inputs = corpus(target)
    assert inputs
    assert sum(map(len, inputs)) <= 200_000, "the corpus is kept small: merge it"
    for data in inputs:
        TARGETS[target](data)
        tracemalloc.start()
        try:
            TARGETS[target](data)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak <= 4 * FRAME_MAX


@EVERY
@given(data=st.binary(max_size=300), tail=st.binary(max_size=300))
def test_any_bytes(target: str, data: bytes, tail: bytes) -> None:
    """Whatever the bytes, and whatever follows the beginning of a good input, the target holds."""
    TARGETS[target](data)
    for good in SEEDS[target][:3]:
        TARGETS[target](good[: len(tail)] + tail)


@EVERY
@given(number=st.integers(0, 2**32), rounds=st.integers(1, 6))
def test_changes_of_good_inputs(target: str, number: int, rounds: int) -> None:
    """Good inputs and those of the corpus, changed in what their msgpack says, are handled."""
    random = Random(number)
    data = random.choice(SEEDS[target] + corpus(target))
    for _ in range(rounds):
        prefix = 0 if target in ("batches", "statements") else 1
        data = data[:prefix] + (mutate_msgpack(data[prefix:], random) or bytes(reversed(data[prefix:])))
    TARGETS[target](data[:LENGTH_MAX])
