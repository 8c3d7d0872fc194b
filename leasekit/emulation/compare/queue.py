"""The requests that wait, as a mapper sees them: a sequence that is never copied.

A broker's cycle shows all requests in order of arrival, each with a term that begins now at the earliest. With
thousands waiting, making that list anew for each turn would cost more than deciding. Here it is a view that stays from
turn to turn: its length is known, an element is brought up to date when it is looked at, and a request that was decided
leaves in about a microsecond. So a mapper pays for what it looks at: the head, the last few that came, or all.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import overload

from leasekit.core.mappers import PendingRequest
from leasekit.core.time import Instant, Term

_TERM = PendingRequest._fields.index("term")


class Waiting(Sequence[PendingRequest]):
    """Requests in order of arrival, numbered in that order by who puts them in. A turn must not go on while it is
    changed.
    """

    __slots__ = ("_items", "_now", "_numbers", "_of")

    def __init__(self) -> None:
        self._items: list[PendingRequest] = []
        self._numbers: list[int] = []
        self._of: dict[str, int] = {}
        self._now: Instant = 0

    # -- as a mapper sees it -----------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._items)

    def __bool__(self) -> bool:
        return bool(self._items)

    @overload
    def __getitem__(self, index: int) -> PendingRequest: ...
    @overload
    def __getitem__(self, index: slice) -> list[PendingRequest]: ...
    def __getitem__(self, index: int | slice) -> PendingRequest | list[PendingRequest]:
        if isinstance(index, slice):
            return [self._fresh(place) for place in range(*index.indices(len(self._items)))]
        return self._fresh(index)

    def __iter__(self) -> Iterator[PendingRequest]:
        now = self._now
        for place, request in enumerate(self._items):
            yield request if request.term.start >= now else self._fresh(place)

    def __reversed__(self) -> Iterator[PendingRequest]:
        for place in range(len(self._items) - 1, -1, -1):
            yield self._fresh(place)

    def _fresh(self, place: int) -> PendingRequest:
        request = self._items[place]
        start, end = request.term
        now = self._now
        if start >= now:
            return request
        term = Term(now, now + end - start)
        request = self._items[place] = PendingRequest._make((*request[:_TERM], term, *request[_TERM + 1 :]))
        return request

    # -- as its owner does -------------------------------------------------------------------------------------

    def at(self, now: Instant) -> None:
        """Time has passed."""
        self._now = now

    def add(self, number: int, request: PendingRequest) -> None:
        """A request has arrived; ``number`` is larger than that of any before."""
        self._of[request.lease] = number
        self._numbers.append(number)
        self._items.append(request)

    def find(self, lease: str) -> PendingRequest | None:
        """The request of a lease that waits; None if there is none."""
        number = self._of.get(lease)
        return None if number is None else self._fresh(bisect_left(self._numbers, number))

    def remove(self, lease: str) -> None:
        """A request was answered. Raises ``KeyError``."""
        place = bisect_left(self._numbers, self._of.pop(lease))
        del self._numbers[place], self._items[place]
