"""The step functions under the timetable: each search against a plain list, in a tree and through a layer."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest

from leasekit.core import profile
from leasekit.core.profile import BEGIN, FOREVER, Layer, Profile, StepFunction
from leasekit.core.time import Term
from leasekit.core.timetable import Timetable

LINE = 400


def build(seed: int, layered: bool) -> tuple[StepFunction, list[int]]:
    """A function made of random additions, half of them in a layer if there is one, and the same as a list."""
    random = Random(seed)
    made: StepFunction = Profile(3)
    plain = [3] * LINE
    for number in range(120):
        if layered and number == 60:
            made = Layer(made)
        lo = random.randrange(LINE - 1)
        hi = random.randint(lo + 1, min(LINE, lo + random.choice((2, 30, LINE))))
        delta = random.randint(-4, 4)
        made.add(lo, hi, delta)
        plain[lo:hi] = [value + delta for value in plain[lo:hi]]
    return made, plain


@pytest.mark.parametrize("layered", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_every_search(monkeypatch: pytest.MonkeyPatch, seed: int, layered: bool) -> None:
    """Values, minima, searches in both directions and segments are those of a list, copies included."""
    monkeypatch.setattr(profile, "LEAF_MAX", 8)
    monkeypatch.setattr(profile, "FAN_MAX", 8)
    original, plain = build(seed, layered)
    made = original.copy()
    original.add(0, LINE, 1000)
    random = Random(seed)
    assert [made.value(at) for at in range(LINE)] == plain
    for _ in range(150):
        lo = random.randrange(LINE - 1)
        hi = random.randint(lo + 1, LINE)
        level = random.randint(min(plain) - 1, max(plain) + 1)
        assert made.min(lo, hi) == min(plain[lo:hi])
        check_last_below(made, plain, lo, hi, level)
        after = [*plain, 3]
        first_below = next((at for at in range(lo, LINE + 1) if after[at] < level), FOREVER)
        assert made.first_below(lo, level) == first_below
        first_at_least = next((at for at in range(lo, LINE + 1) if after[at] >= level), FOREVER)
        assert made.first_at_least(lo, level) == first_at_least
        segments = list(made.segments(lo, hi))
        assert [value for a, b, value in segments for _ in range(a, b)] == plain[lo:hi]
        assert all(one[2] != two[2] for one, two in pairwise(segments))


def check_last_below(made: StepFunction, plain: list[int], lo: int, hi: int, level: int) -> None:
    short = [at for at in range(lo, hi) if plain[at] < level]
    end = made.last_below(lo, hi, level)
    if not short:
        assert end == lo
    elif short[-1] < hi - 1:
        assert end == short[-1] + 1
    else:
        # The last segment runs up to or beyond the end of what was asked for.
        assert end >= hi and all(value < level for value in [*plain[hi - 1 : end]])


@pytest.mark.parametrize("seed", range(6))
def test_a_tree_that_grows_and_shrinks(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Adding and taking away again, over long and short periods, keeps the least and largest values right."""
    monkeypatch.setattr(profile, "LEAF_MAX", 8)
    monkeypatch.setattr(profile, "FAN_MAX", 8)
    random, made, plain = Random(seed), Profile(), [0] * LINE
    added: list[tuple[int, int, int]] = []
    for number in range(1500):
        # Up to 200 at a time, then down to a few, again and again: the root gains levels and loses them.
        if added and (number // 250) % 2:
            lo, hi, delta = added.pop(random.randrange(len(added)))
            delta = -delta
        else:
            lo = random.randrange(LINE - 1)
            hi = random.randint(lo + 1, min(LINE, lo + random.choice((2, 30, LINE))))
            delta = random.randint(-4, 4)
            added.append((lo, hi, delta))
        made.add(lo, hi, delta)
        plain[lo:hi] = [value + delta for value in plain[lo:hi]]
        assert made.min(0, LINE) == min(plain)
        top = max(plain)
        assert made.first_at_least(0, top) == plain.index(top)
        assert made.first_at_least(0, max(top, 0) + 1) == FOREVER


def test_begin_and_forever() -> None:
    """A constant holds from before every instant until after every one."""
    made = Profile(5)
    assert made.value(BEGIN) == made.value(FOREVER - 1) == 5
    assert list(made.segments(-7, 7)) == [(-7, 7, 5)] and list(made.segments(7, 7)) == []
    assert made.first_at_least(-7, 5) == -7 and made.first_below(-7, 5) == FOREVER
    assert made.last_below(0, 9, 6) == FOREVER and made.last_below(0, 9, 5) == 0


@pytest.mark.parametrize("seed", range(6))
def test_a_layer_without_changes(seed: int) -> None:
    """A layer that nothing was added to answers as its base does, at any later state of that; the first change is its
    own, and its copy's only where it was made before the copy.
    """
    base, plain = build(seed, False)
    layer = Layer(base)
    bare = layer.copy()
    base.add(20, 60, 7)
    plain[20:60] = [value + 7 for value in plain[20:60]]
    random = Random(seed)
    for _ in range(60):
        lo = random.randrange(LINE - 1)
        hi, level = random.randint(lo + 1, LINE), random.randint(min(plain) - 1, max(plain) + 1)
        for made in (layer, bare):
            assert (made.min(lo, hi), made.value(lo)) == (min(plain[lo:hi]), plain[lo])
            check_last_below(made, plain, lo, hi, level)
            assert made.first_below(lo, level) == base.first_below(lo, level)
            assert made.first_at_least(lo, level) == base.first_at_least(lo, level)
            assert list(made.segments(lo, hi)) == list(base.segments(lo, hi))
    layer.add(0, LINE, -5)
    assert [layer.value(at) for at in range(LINE)] == [value - 5 for value in plain]
    assert [bare.value(at) for at in range(LINE)] == [base.value(at) for at in range(LINE)] == plain
    assert layer.copy().value(7) == plain[7] - 5


@pytest.mark.parametrize("seed", range(6))
def test_what_is_made_at_once_is_what_is_made_piece_by_piece(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """A timetable made of pieces, some of which touch, has the figures of one that reserves them, also afterwards."""
    monkeypatch.setattr(profile, "LEAF_MAX", 8)
    monkeypatch.setattr(profile, "FAN_MAX", 8)
    random, pieces, at = Random(seed), list[tuple[int, Term]](), 0
    while at < LINE:
        begin = at + random.choice((0, 0, 3))
        at = begin + random.randint(1, 5)
        pieces.append((random.randint(1, 4), Term(begin, at)))
    plain = Timetable(7)
    for number, (units, term) in enumerate(pieces):
        plain.reserve(number, units, term)
    made = Timetable.holding(7, pieces)
    for changed in (False, True):
        whole = Term(-5, 2 * LINE)
        assert list(made.steps(whole)) == list(plain.steps(whole)) and list(made) == list(plain)
        assert list(made.frees(whole)) == [(*term, capacity - held) for term, held, capacity in plain.steps(whole)]
        for _ in range(60):
            start = random.randrange(LINE)
            term = Term(start, start + random.choice((1, 40, LINE)))
            assert made.available(term) == plain.available(term)
        for table in () if changed else (made, plain):
            table.release(len(pieces) // 2)
            table.reserve("more", 3, Term(LINE + 9, LINE + 11))
            table.change(0, units=1, term=Term(0, LINE), force=True)
