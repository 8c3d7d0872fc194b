"""The requests of one type that wait for their turn, kept from turn to turn so that thousands may wait.

A line knows its order, and sorts those of one shape and number of units into buckets. Which requests could start now
is a question to a bucket, not to each request: how long so many units can be had decides it for all of them, and a
bucket knows the shortest that it holds. So a turn costs a step for each bucket and each request that it starts, however
many wait.

Requests are in lanes; the order is that of the lanes' ranks, which may change with each grant, and within a lane that
of the requests' keys, which don't change. Most mappers have one lane; a fair share has one for each holder.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, TypeAlias

from leasekit.core.mappers import PendingRequest
from leasekit.core.time import Duration, Instant
from leasekit.policies.broker.capacity import ShapeKey

Key: TypeAlias = tuple[Any, ...]
"""Sorts requests within a lane; unique."""

Lane: TypeAlias = tuple[Any, ...]
"""The name of a lane."""


class LineEntry:
    """One request that waits."""

    __slots__ = ("bucket", "key", "latest", "length", "request")

    def __init__(self, request: PendingRequest, key: Key, bucket: LineBucket) -> None:
        self.request = request
        self.key = key
        self.bucket = bucket
        self.length = request.term.length
        self.latest = request.latest_start


class _Sorted:
    """Entries by key. New ones mostly come last."""

    __slots__ = ("entries", "keys")

    def __init__(self) -> None:
        self.keys: list[Key] = []
        self.entries: list[LineEntry] = []

    def add(self, entry: LineEntry) -> None:
        """Put in its place."""
        if not self.keys or self.keys[-1] < entry.key:
            self.keys.append(entry.key)
            self.entries.append(entry)
            return
        at = bisect_left(self.keys, entry.key)
        self.keys.insert(at, entry.key)
        self.entries.insert(at, entry)

    def remove(self, entry: LineEntry) -> None:
        """Take out."""
        at = bisect_left(self.keys, entry.key)
        del self.keys[at], self.entries[at]


class LineBucket(_Sorted):
    """Entries of one lane, shape and number of units."""

    __slots__ = ("_shortest", "lane", "shape", "units")

    def __init__(self, lane: Lane, shape: ShapeKey, units: int) -> None:
        super().__init__()
        self.lane = lane
        self.shape = shape
        self.units = units
        self._shortest: Duration | None = None

    @property
    def shortest(self) -> Duration:
        """The least length among the entries, of which there are some."""
        if self._shortest is None:
            self._shortest = min(entry.length for entry in self.entries)
        return self._shortest

    def add(self, entry: LineEntry) -> None:
        """Put in its place."""
        super().add(entry)
        if len(self.entries) == 1 or (self._shortest is not None and entry.length < self._shortest):
            self._shortest = entry.length

    def remove(self, entry: LineEntry) -> None:
        """Take out."""
        super().remove(entry)
        if entry.length == self._shortest:
            self._shortest = None

    def first_within(self, length: Duration, start: Instant, without: Collection[LineEntry]) -> LineEntry | None:
        """The first entry that is no longer than ``length`` and may still start at ``start``."""
        for entry in self.entries:
            if entry.length <= length and entry.latest >= start and entry not in without:
                return entry
        return None


class Line:
    """All requests of one type that wait."""

    def __init__(self) -> None:
        self._lanes: dict[Lane, _Sorted] = {}
        self._buckets: dict[tuple[Lane, ShapeKey, int], LineBucket] = {}
        self._count = 0
        self.longest: Duration = 0
        """No request is longer, the time to prepare it counted."""

    def __len__(self) -> int:
        return self._count

    @property
    def buckets(self) -> Collection[LineBucket]:
        """All buckets, none of them empty."""
        return self._buckets.values()

    def add(self, request: PendingRequest, lane: Lane, key: Key, shape: ShapeKey, prepare: Duration) -> LineEntry:
        """A request joins the line."""
        name = (lane, shape, request.min_units)
        bucket = self._buckets.get(name)
        if bucket is None:
            bucket = self._buckets[name] = LineBucket(*name)
        entry = LineEntry(request, key, bucket)
        bucket.add(entry)
        entries = self._lanes.get(lane)
        if entries is None:
            entries = self._lanes[lane] = _Sorted()
        entries.add(entry)
        self._count += 1
        self.longest = max(self.longest, entry.length + prepare)
        return entry

    def remove(self, entry: LineEntry) -> None:
        """A request leaves the line."""
        bucket = entry.bucket
        bucket.remove(entry)
        if not bucket.entries:
            del self._buckets[bucket.lane, bucket.shape, bucket.units]
        entries = self._lanes[bucket.lane]
        entries.remove(entry)
        if not entries.entries:
            del self._lanes[bucket.lane]
        self._count -= 1
        if not self._count:
            self.longest = 0

    def first(self, rank: Callable[[Lane], Key]) -> LineEntry | None:
        """Who is first in the line."""
        if not self._count:
            return None
        return self._lanes[min(self._lanes, key=rank)].entries[0]

    def in_order(self, rank: Callable[[Lane], Key]) -> Iterator[LineEntry]:
        """All in order, as it is when this is called."""
        lanes: Sequence[Lane] = list(self._lanes) if len(self._lanes) < 2 else sorted(self._lanes, key=rank)
        for lane in lanes:
            yield from list(self._lanes[lane].entries)
