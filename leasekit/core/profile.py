"""A whole number as a step function of time, with range addition and searches in O(log n).

Theory of operation
-------------------
The function is kept as its breakpoints: value ``vals[i]`` holds from ``keys[i]`` up to the next key, the first key
is :data:`BEGIN` and the last value holds for ever. Breakpoints live in the leaves of a B+ tree. An inner node knows
of each child

- ``adds``: what still has to be added to everything inside it. Adding to a long stretch of time touches the two
  ends of the stretch and the children between them, never the leaves inside (lazy propagation);
- ``mins`` and ``maxs``: the least and the largest value inside it, its own ``adds`` included. These answer
  ``min`` and let the searches skip whole subtrees.

So everything about a point or a range costs O(log n), with list operations that run in C at each node. A function
with few breakpoints is one leaf, that is two sorted lists, and costs a few microseconds.

Neighbouring equal values inside a leaf are merged at once, so that what was added and taken away again leaves no
trace. The first key of a leaf is never removed, so across two leaves an equal pair may remain until they merge;
:meth:`Profile.segments` hides it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import TypeAlias, final

from leasekit.core.time import Duration, Instant, Term

BEGIN: Instant = -(1 << 62)
"""Before every instant: the first key of each profile, and "nothing found" of a search backwards."""

FOREVER: Instant = 1 << 62
"""After every instant: the end of the last segment, and "nothing found" of a search forwards."""

LEAF_MAX = 64
"""Breakpoints in a leaf. Measured: 48 to 96 differ little."""

FAN_MAX = 24
"""Children of an inner node. Wider ones cost more where terms span many leaves, narrower ones add levels."""

Segment: TypeAlias = tuple[Instant, Instant, int]
"""Start, end (exclusive) and the value in between."""


@final
class _Leaf:
    __slots__ = ("keys", "vals")

    def __init__(self, keys: list[Instant], vals: list[int]) -> None:
        self.keys = keys
        self.vals = vals


@final
class _Inner:
    __slots__ = ("adds", "keys", "kids", "maxs", "mins")

    def __init__(
        self, keys: list[Instant], kids: list[_Node], adds: list[int], mins: list[int], maxs: list[int]
    ) -> None:
        self.keys = keys
        self.kids = kids
        self.adds = adds
        self.mins = mins
        self.maxs = maxs


_Node: TypeAlias = _Leaf | _Inner


class Profile:
    """A step function over all time, in a B+ tree. See the module for how."""

    __slots__ = ("_horizon", "_root")

    def __init__(self, value: int = 0, horizon: Instant = BEGIN) -> None:
        self._root: _Node = _Leaf([BEGIN], [value])
        self._horizon = horizon

    @property
    def horizon(self) -> Instant:
        """History before this instant is forgotten; time before it reads as it does there."""
        return self._horizon

    def add(self, lo: Instant, hi: Instant, delta: int) -> None:
        """Add ``delta`` over ``[lo, hi)``."""
        if lo <= self._horizon:
            # Forgotten time reads as the horizon does, so that no breakpoint comes back there.
            if hi <= self._horizon:
                return
            lo = BEGIN
        root = self._root
        if type(root) is _Leaf:
            _add_in_leaf(root, lo, hi, FOREVER, delta)
            if len(root.keys) > LEAF_MAX:
                self._root = _grown(root)
            return
        _add(root, lo, hi, FOREVER, delta)
        if len(root.keys) > FAN_MAX:
            self._root = _grown(root)
        elif len(root.keys) == 1:
            self._root = _only_child(root)

    def value(self, instant: Instant) -> int:
        """The value at an instant."""
        node, total = self._root, 0
        while type(node) is _Inner:
            i = bisect_right(node.keys, instant) - 1
            total += node.adds[i]
            node = node.kids[i]
        return total + node.vals[bisect_right(node.keys, instant) - 1]

    def min(self, lo: Instant, hi: Instant) -> int:
        """The least value over ``[lo, hi)``, which must not be empty."""
        root = self._root
        if type(root) is _Leaf:
            keys = root.keys
            return min(root.vals[bisect_right(keys, lo) - 1 : bisect_left(keys, hi)])
        return _min(root, lo, hi)

    def first_at_least(self, lo: Instant, level: int) -> Instant:
        """The first instant from ``lo`` on where the value is ``level`` or more; :data:`FOREVER` if there is none."""
        key = _first(self._root, lo, level, False)
        return key if key > lo else lo

    def first_below(self, lo: Instant, level: int) -> Instant:
        """The first instant from ``lo`` on where the value is less than ``level``; :data:`FOREVER` if there is none."""
        key = _first(self._root, lo, level, True)
        return key if key > lo else lo

    def last_below(self, lo: Instant, hi: Instant, level: int) -> Instant:
        """The end of the last segment that meets ``[lo, hi)`` with less than ``level``; ``lo`` if there is none.

        The end may lie beyond ``hi``; between it and ``hi`` every value is ``level`` or more.
        """
        end = _last_below(self._root, hi, level, FOREVER)
        return end if end > lo else lo

    def segments(self, lo: Instant, hi: Instant) -> Iterator[Segment]:
        """The maximal stretches of one value, in order, clipped to ``[lo, hi)``.

        Don't change the profile while the iterator is in use.
        """
        root = self._root
        if hi <= lo:
            return iter(())
        if type(root) is not _Leaf:
            return coalesced(_raw_segments(root, lo, hi))
        first, last = bisect_right(root.keys, lo) - 1, bisect_left(root.keys, hi)
        edges = [lo, *root.keys[first + 1 : last], hi]
        return zip(edges, edges[1:], root.vals[first:last], strict=False)

    @classmethod
    def of(cls, steps: Sequence[tuple[Instant, int]]) -> Profile:
        """What has each step's value from its instant on; the first step's is :data:`BEGIN`, and no two neighbours have
        one value. In O(n).
        """
        made, size = cls(), LEAF_MAX * 3 // 4
        keys, vals = [at for at, _ in steps], [value for _, value in steps]
        nodes: list[_Node] = [_Leaf(keys[i : i + size], vals[i : i + size]) for i in range(0, len(steps), size)]
        while len(nodes) > 1:
            nodes = [_over(nodes[i : i + FAN_MAX // 2]) for i in range(0, len(nodes), FAN_MAX // 2)]
        (made._root,) = nodes
        return made

    def copy(self) -> Profile:
        """An independent copy, in O(n)."""
        twin = Profile(0, self._horizon)
        twin._root = _copied(self._root)
        return twin

    def forget_before(self, instant: Instant) -> None:
        """Drop the breakpoints up to ``instant``; earlier time then reads as ``instant`` does."""
        if instant <= self._horizon:
            return
        self._horizon = instant
        _trim(self._root, instant)
        while type(self._root) is _Inner and len(self._root.keys) == 1:
            self._root = _only_child(self._root)

    def __len__(self) -> int:
        """The number of breakpoints stored."""
        return _count(self._root)


def coalesced(segments: Iterator[Segment]) -> Iterator[Segment]:
    """Touching segments of equal value made one."""
    start, end, value = BEGIN, BEGIN, 0
    for lo, hi, here in segments:
        if here == value and lo == end:
            end = hi
            continue
        if end > start:
            yield start, end, value
        start, end, value = lo, hi, here
    if end > start:
        yield start, end, value


class Layer:
    """A step function that is a base read through, plus its own changes; the base is never written.

    A search costs what it costs in the base, times the number of own segments that it passes. Most layers are looked
    at and thrown away unchanged: until the first change there is nothing but the base.
    """

    __slots__ = ("_base", "_own")

    def __init__(self, base: StepFunction, own: Profile | None = None) -> None:
        self._base = base
        self._own = own

    @property
    def horizon(self) -> Instant:
        """The base's horizon."""
        return self._base.horizon

    def add(self, lo: Instant, hi: Instant, delta: int) -> None:
        """Add ``delta`` over ``[lo, hi)``, here and not in the base."""
        if self._own is None:
            self._own = Profile(0, self._base.horizon)
        self._own.add(lo, hi, delta)

    def value(self, instant: Instant) -> int:
        """The value at an instant."""
        if self._own is None:
            return self._base.value(instant)
        return self._base.value(instant) + self._own.value(instant)

    def min(self, lo: Instant, hi: Instant) -> int:
        """The least value over ``[lo, hi)``, which must not be empty."""
        if self._own is None:
            return self._base.min(lo, hi)
        return min(self._base.min(a, b) + extra for a, b, extra in self._own.segments(lo, hi))

    def first_at_least(self, lo: Instant, level: int) -> Instant:
        """The first instant from ``lo`` on where the value is ``level`` or more; :data:`FOREVER` if there is none."""
        return self._first(self._base.first_at_least, lo, level)

    def first_below(self, lo: Instant, level: int) -> Instant:
        """The first instant from ``lo`` on where the value is less than ``level``; :data:`FOREVER` if there is none."""
        return self._first(self._base.first_below, lo, level)

    def _first(self, search: Callable[[Instant, int], Instant], lo: Instant, level: int) -> Instant:
        if self._own is None:
            return search(lo, level)
        for start, end, extra in self._own.segments(lo, FOREVER):
            found = search(start, level - extra)
            if found < end:
                return found
        return FOREVER

    def last_below(self, lo: Instant, hi: Instant, level: int) -> Instant:
        """The end of the last segment that meets ``[lo, hi)`` with less than ``level``; ``lo`` if there is none."""
        if self._own is None:
            return self._base.last_below(lo, hi, level)
        for start, end, extra in reversed(list(self._own.segments(lo, hi))):
            found = self._base.last_below(start, end, level - extra)
            if found > start:
                # A base segment may run on beyond `end`. Within [lo, hi) that is where later own segments, known
                # to be enough, begin; at `hi` the caller looks on from there.
                return min(found, end)
        return lo

    def segments(self, lo: Instant, hi: Instant) -> Iterator[Segment]:
        """The maximal stretches of one value, in order, clipped to ``[lo, hi)``."""
        own = self._own
        if own is None:
            return self._base.segments(lo, hi)
        return coalesced(
            (a, b, value + extra)
            for start, end, extra in own.segments(lo, hi)
            for a, b, value in self._base.segments(start, end)
        )

    def copy(self) -> Layer:
        """An independent layer over the same base."""
        return Layer(self._base, None if self._own is None else self._own.copy())

    def forget_before(self, instant: Instant) -> None:
        """Refused: history belongs to the base. Raises ``TypeError``."""
        raise TypeError("an overlay can't forget: call forget_before on the timetable that it was made from")


StepFunction: TypeAlias = Profile | Layer
"""A whole number as a function of time."""


# -- changing the tree --------------------------------------------------------------------------------------------


def _add_in_leaf(leaf: _Leaf, lo: Instant, hi: Instant, upper: Instant, delta: int) -> None:
    """Add over ``[lo, hi)`` as far as it lies in this leaf, which ends at ``upper``."""
    keys, vals = leaf.keys, leaf.vals
    i = bisect_left(keys, lo)
    if i and (i == len(keys) or keys[i] != lo):
        keys.insert(i, lo)
        vals.insert(i, vals[i - 1])
    if hi >= upper:
        j = len(keys)
    else:
        j = bisect_left(keys, hi, i)
        if j == len(keys) or keys[j] != hi:
            keys.insert(j, hi)
            vals.insert(j, vals[j - 1])
    if j == i + 1:
        vals[i] += delta
    else:
        vals[i:j] = [value + delta for value in vals[i:j]]
    if j < len(keys) and vals[j] == vals[j - 1]:
        del keys[j], vals[j]
    if i and vals[i] == vals[i - 1]:
        del keys[i], vals[i]


def _add(node: _Inner, lo: Instant, hi: Instant, upper: Instant, delta: int) -> None:
    """Add over ``[lo, hi)`` as far as it lies in this node, which ends at ``upper``."""
    keys = node.keys
    first = bisect_right(keys, lo) - 1
    if first < 0:
        first = 0
    last = bisect_left(keys, hi) - 1
    # Children from `full_from` up to `full_to` lie wholly inside; at each end one may lie partly inside.
    last_upper = keys[last + 1] if last + 1 < len(keys) else upper
    full_from = first if lo <= keys[first] else first + 1
    full_to = last + 1 if hi >= last_upper else last
    if full_from < full_to:
        adds, mins, maxs = node.adds, node.mins, node.maxs
        adds[full_from:full_to] = [value + delta for value in adds[full_from:full_to]]
        mins[full_from:full_to] = [value + delta for value in mins[full_from:full_to]]
        maxs[full_from:full_to] = [value + delta for value in maxs[full_from:full_to]]
    opens_first = full_from > first
    opens_last = full_to == last and full_from <= last
    if opens_first:
        _add_in_child(node, first, lo, hi, keys[first + 1] if first < len(keys) - 1 else upper, delta)
    if opens_last:
        _add_in_child(node, last, lo, hi, last_upper, delta)
    # Only when both ends are done may children split and join; from the right, so that `first` stays where it is.
    if opens_last:
        _rebalance(node, last)
    if opens_first:
        _rebalance(node, first)


def _add_in_child(node: _Inner, i: int, lo: Instant, hi: Instant, upper: Instant, delta: int) -> None:
    child = node.kids[i]
    if type(child) is _Leaf:
        _add_in_leaf(child, lo, hi, upper, delta)
        node.mins[i] = min(child.vals) + node.adds[i]
        node.maxs[i] = max(child.vals) + node.adds[i]
    else:
        _add(child, lo, hi, upper, delta)
        node.mins[i] = min(child.mins) + node.adds[i]
        node.maxs[i] = max(child.maxs) + node.adds[i]


def _rebalance(node: _Inner, i: int) -> None:
    child = node.kids[i]
    limit = LEAF_MAX if type(child) is _Leaf else FAN_MAX
    size = len(child.keys)
    if size > limit:
        _split_child(node, i)
    elif size < limit >> 2:
        _merge_child(node, i, limit)


def _split_child(node: _Inner, i: int) -> None:
    left = node.kids[i]
    right = _split(left)
    add = node.adds[i]
    node.mins[i], node.maxs[i] = _range(left, add)
    low, high = _range(right, add)
    node.keys.insert(i + 1, right.keys[0])
    node.kids.insert(i + 1, right)
    node.adds.insert(i + 1, add)
    node.mins.insert(i + 1, low)
    node.maxs.insert(i + 1, high)


def _merge_child(node: _Inner, i: int, limit: int) -> None:
    """Join a child that has become small with a neighbour, if both fit well below the limit in one node.

    A small child between two large neighbours stays: when one of them shrinks in turn, it will be joined.
    """
    for left in (i - 1, i):
        if left < 0 or left + 1 >= len(node.kids):
            continue
        if len(node.kids[left].keys) + len(node.kids[left + 1].keys) > limit * 3 // 4:
            continue
        _append(node.kids[left], node.kids[left + 1], node.adds[left + 1] - node.adds[left])
        del node.keys[left + 1], node.kids[left + 1], node.adds[left + 1]
        low, high = node.mins.pop(left + 1), node.maxs.pop(left + 1)
        node.mins[left] = min(node.mins[left], low)
        node.maxs[left] = max(node.maxs[left], high)
        return


def _append(left: _Node, right: _Node, shift: int) -> None:
    """Move all of ``right``, raised by ``shift``, to the end of ``left``."""
    if type(left) is _Leaf and type(right) is _Leaf:
        vals = [value + shift for value in right.vals]
        skip = 1 if vals[0] == left.vals[-1] else 0
        left.keys += right.keys[skip:]
        left.vals += vals[skip:]
        return
    assert type(left) is _Inner and type(right) is _Inner
    left.keys += right.keys
    left.kids += right.kids
    left.adds += [value + shift for value in right.adds]
    left.mins += [value + shift for value in right.mins]
    left.maxs += [value + shift for value in right.maxs]


def _split(node: _Node) -> _Node:
    """Cut off and return the right half of a node."""
    half = len(node.keys) // 2
    if type(node) is _Leaf:
        right: _Node = _Leaf(node.keys[half:], node.vals[half:])
        del node.keys[half:], node.vals[half:]
        return right
    right = _Inner(node.keys[half:], node.kids[half:], node.adds[half:], node.mins[half:], node.maxs[half:])
    del node.keys[half:], node.kids[half:], node.adds[half:], node.mins[half:], node.maxs[half:]
    return right


def _range(node: _Node, add: int) -> tuple[int, int]:
    if type(node) is _Leaf:
        return min(node.vals) + add, max(node.vals) + add
    return min(node.mins) + add, max(node.maxs) + add


def _grown(node: _Node) -> _Inner:
    """A new root over the two halves of one that has become too large."""
    right = _split(node)
    return _over([node, right])


def _over(kids: list[_Node]) -> _Inner:
    """A node over others, in order."""
    ranges = [_range(kid, 0) for kid in kids]
    lows, highs = [low for low, _ in ranges], [high for _, high in ranges]
    return _Inner([kid.keys[0] for kid in kids], kids, [0] * len(kids), lows, highs)


def _only_child(root: _Inner) -> _Node:
    """The child of a root that has only one, with what was pending added to it."""
    child, add = root.kids[0], root.adds[0]
    if type(child) is _Leaf:
        child.vals = [value + add for value in child.vals]
        return child
    child.adds = [value + add for value in child.adds]
    child.mins = [value + add for value in child.mins]
    child.maxs = [value + add for value in child.maxs]
    return child


def _trim(node: _Node, instant: Instant) -> None:
    """Drop what lies before ``instant``; the segment that holds it begins at :data:`BEGIN` from now on."""
    i = bisect_right(node.keys, instant) - 1
    if type(node) is _Leaf:
        del node.keys[:i], node.vals[:i]
    else:
        del node.keys[:i], node.kids[:i], node.adds[:i], node.mins[:i], node.maxs[:i]
        _trim(node.kids[0], instant)
        node.mins[0], node.maxs[0] = _range(node.kids[0], node.adds[0])
    node.keys[0] = BEGIN


def _copied(node: _Node) -> _Node:
    if type(node) is _Leaf:
        return _Leaf(node.keys.copy(), node.vals.copy())
    kids = [_copied(kid) for kid in node.kids]
    return _Inner(node.keys.copy(), kids, node.adds.copy(), node.mins.copy(), node.maxs.copy())


def _count(node: _Node) -> int:
    if type(node) is _Leaf:
        return len(node.keys)
    return sum(_count(kid) for kid in node.kids)


# -- searching it -------------------------------------------------------------------------------------------------


def _min(node: _Node, lo: Instant, hi: Instant) -> int:
    keys = node.keys
    first = bisect_right(keys, lo) - 1
    if first < 0:
        first = 0
    last = bisect_left(keys, hi) - 1
    if type(node) is _Leaf:
        return min(node.vals[first : last + 1])
    mins = node.mins
    if first == last:
        return node.adds[first] + _min(node.kids[first], lo, hi)
    # The ends are opened only if they might hold less than what lies between them.
    least = min(mins[first + 1 : last]) if last - first > 1 else FOREVER
    if mins[first] < least:
        least = min(least, node.adds[first] + _min(node.kids[first], lo, hi))
    if mins[last] < least:
        least = min(least, node.adds[last] + _min(node.kids[last], lo, hi))
    return least


def _first(node: _Node, lo: Instant, level: int, below: bool) -> Instant:
    """Where the first segment begins, of those that end after ``lo``, whose value is ``below`` the level, or is not."""
    keys = node.keys
    i = bisect_right(keys, lo) - 1
    if i < 0:
        i = 0
    if type(node) is _Leaf:
        vals = node.vals
        for k in range(i, len(vals)):
            if (vals[k] < level) is below:
                return keys[k]
        return FOREVER
    ends = node.mins if below else node.maxs
    for k in range(i, len(ends)):
        if (ends[k] < level) is below:
            found = _first(node.kids[k], lo, level - node.adds[k], below)
            if found != FOREVER:
                return found
    return FOREVER


def _last_below(node: _Node, hi: Instant, level: int, upper: Instant) -> Instant:
    keys = node.keys
    i = bisect_left(keys, hi) - 1
    if type(node) is _Leaf:
        vals = node.vals
        while i >= 0:
            if vals[i] < level:
                return keys[i + 1] if i + 1 < len(keys) else upper
            i -= 1
        return BEGIN
    mins = node.mins
    while i >= 0:
        if mins[i] < level:
            end = keys[i + 1] if i + 1 < len(keys) else upper
            found = _last_below(node.kids[i], hi, level - node.adds[i], end)
            if found != BEGIN:
                return found
        i -= 1
    return BEGIN


def _leaves(root: _Node, lo: Instant, hi: Instant) -> Iterator[tuple[_Leaf, int]]:
    """The leaves that meet ``[lo, hi)``, in order, each with what is to be added to its values."""
    stack: list[tuple[_Node, int]] = [(root, 0)]
    while stack:
        node, add = stack.pop()
        if type(node) is _Leaf:
            yield node, add
            continue
        first = max(bisect_right(node.keys, lo) - 1, 0)
        last = bisect_left(node.keys, hi) - 1
        stack.extend((node.kids[k], add + node.adds[k]) for k in range(last, first - 1, -1))


def _raw_segments(root: _Node, lo: Instant, hi: Instant) -> Iterator[Segment]:
    start, value = lo, 0
    for leaf, add in _leaves(root, lo, hi):
        keys = leaf.keys
        first = max(bisect_right(keys, lo) - 1, 0)
        last = bisect_left(keys, hi)
        # The previous leaf's last segment ends where this leaf begins.
        if keys[first] > start:
            yield start, keys[first], value
        bounds = [max(keys[first], lo), *keys[first + 1 : last]]
        here = leaf.vals[first:last]
        for (a, b), held in zip(pairwise(bounds), here, strict=False):
            yield a, b, held + add
        start, value = bounds[-1], here[-1] + add
    yield start, hi, value


def binned(
    steps: Iterable[tuple[Term, int, int]], window: Term, length: Duration
) -> Iterator[tuple[int, int, int, int]]:
    """For each stretch of ``length`` of a window, by the steps of it: its number, and the least that is there in it,
    the most that is reserved, the least that is free; those that are as the one before are left out.
    """
    at, now = 0, (FOREVER, -FOREVER, FOREVER)
    shown: tuple[int, int, int] | None = None
    for term, reserved, capacity in steps:
        figures = capacity, reserved, capacity - reserved
        first, last = (term.start - window.start) // length, (term.end - 1 - window.start) // length
        if first > at:
            if now != shown:
                yield at, *now
            at, shown, now = first, now, figures
        else:
            now = min(now[0], figures[0]), max(now[1], figures[1]), min(now[2], figures[2])
        if last > first:  # all that lies wholly within the step is alike, and its last one may not be over
            if now != shown:
                yield first, *now
            if last > first + 1 and now != figures:
                yield first + 1, *figures
                now = figures
            at, shown, now = last, now, figures
    if now != shown:
        yield at, *now


class Ledger:
    """Units that holders have over time, by holder and type."""

    def __init__(self) -> None:
        self._profiles: dict[tuple[str, str], Profile] = {}

    def add(self, holder: str, type_: str, units: int, term: Term) -> None:
        """Units were granted over a term; negative: they were given back."""
        profile = self._profiles.get((holder, type_))
        if profile is None:
            profile = self._profiles[holder, type_] = Profile()
        profile.add(term.start, term.end, units)

    def at(self, holder: str, type_: str, instant: Instant) -> int:
        """How many the holder holds at an instant."""
        profile = self._profiles.get((holder, type_))
        return 0 if profile is None else profile.value(instant)

    def all_at(self, instant: Instant) -> dict[tuple[str, str], int]:
        """How many each holder holds of each type at an instant."""
        return {key: profile.value(instant) for key, profile in self._profiles.items()}

    def held(self, holder: str, type_: str, window: Term) -> Iterable[tuple[Term, int]]:
        """The stretches of ``window`` in which the holder holds units of the type, in order, and how many."""
        profile = self._profiles.get((holder, type_))
        if profile is not None:
            for start, end, units in profile.segments(window.start, window.end):
                if units > 0:
                    yield Term(start, end), units

    def forget_before(self, instant: Instant) -> None:
        """Drop what is past."""
        for profile in self._profiles.values():
            profile.forget_before(instant)
