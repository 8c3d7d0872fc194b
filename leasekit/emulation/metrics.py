"""What an experiment is judged by: error, fidelity, usage and flips, over step functions of time.

All of it is pure, and takes any :class:`~leasekit.core.signals.SignalSteps`: a load signal or a recorded
:class:`Series`. Windows are half-open terms in milliseconds; units are whatever the series count (nodes, say).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from leasekit.core.signals import SignalSteps, check_window
from leasekit.core.time import SECOND, Duration, Instant, Term
from leasekit.emulation.outputs import write_rows

BOUND: Final[Duration] = 10 * SECOND
"""Runs shorter than this count as this long in a bounded slowdown, as the field does."""


class Series(SignalSteps):
    """What was recorded of one quantity: an append-only step function, 16 bytes per change."""

    __slots__ = ("_latest",)

    def __init__(self) -> None:
        super().__init__()
        self._latest: Instant | None = None

    def append(self, at: Instant, value: float) -> None:
        """Records that the quantity is ``value`` from ``at`` on.

        A second value at the same instant replaces the first, and a value that changes nothing is not stored.
        Raises ``ValueError`` when ``at`` is earlier than an instant given before, or the value is not finite.
        """
        if not math.isfinite(value):
            raise ValueError(f"value {value} at {at} must be a finite number")
        if self._latest is not None and at < self._latest:
            raise ValueError(f"instant {at} must not be earlier than the one before it, {self._latest}")
        self._latest = at
        instants, values = self._instants, self._values
        if instants and instants[-1] == at:
            instants.pop()
            values.pop()
        if not values or values[-1] != value:
            instants.append(at)
            values.append(value)

    def add(self, at: Instant, change: float) -> float:
        """Records that the quantity changes by ``change`` at ``at``; returns what it is then."""
        value = (self._values[-1] if self._values else 0.0) + change
        self.append(at, value)
        return value


def write_csv(path: Path, columns: Mapping[str, SignalSteps], window: Term, interval: Duration) -> None:
    """Writes step functions side by side, sampled at the window's start and every interval.

    The same input gives the same bytes on every machine: whole numbers are written without a point, others with the
    fewest digits that read back to the same value.
    """
    instants = range(window.start, window.end, interval)
    samples = [column.sampled(window.start, window.end, interval) for column in columns.values()]
    rows = ([at, *(number_text(value) for _, value in row)] for at, *row in zip(instants, *samples, strict=True))
    write_rows(path, ["instant_ms", *columns], rows)


def number_text(value: float) -> str:
    """A number as CSV cells show it: ``12``, not ``12.0``."""
    return str(int(value)) if value == int(value) else repr(float(value))


def rmse(demand: SignalSteps, holdings: SignalSteps, window: Term) -> float:
    """Root mean square error between demand and holdings, in units, weighted by time (Shirako, section 5.2; 0 is a
    perfect match). Raises ``ValueError`` on an empty window.
    """
    check_window(window)
    squares = ((wanted - held) ** 2 * (end - start) for start, end, wanted, held in _pieces(demand, holdings, window))
    return math.sqrt(math.fsum(squares) / window.length)


def unserved(demand: SignalSteps, holdings: SignalSteps, window: Term) -> float:
    """The share of demand (unit-milliseconds) that holdings did not serve: 0 to 1; 0 where nothing was wanted."""
    check_window(window)
    wanted_total = demand.integral(window)
    short = math.fsum(
        max(0.0, wanted - held) * (end - start) for start, end, wanted, held in _pieces(demand, holdings, window)
    )
    return short / wanted_total if wanted_total > 0 else 0.0


def idle(demand: SignalSteps, holdings: SignalSteps, window: Term) -> float:
    """The share of what was held (unit-milliseconds) beyond demand: 0 to 1; 0 where nothing was held."""
    return unserved(holdings, demand, window)


def fidelity(usable: SignalSteps, leased: SignalSteps, window: Term, *, believed: bool = False) -> float | None:
    """The share of the leased unit-milliseconds in which the guest could use its units (Shirako, figure 5).

    ``leased`` counts units from their term's start to its end, ``usable`` from joined to the start of their
    leaving. None where nothing was leased. ``believed``: a guest may take units for its own that its site has lost, for
    it hears of it late; they are not usable. Else raises ``ValueError`` when more was usable than leased.
    """
    check_window(window)
    leased_total, usable_total = leased.integral(window), usable.integral(window)
    if believed:
        pieces = _pieces(usable, leased, window)
        usable_total = math.fsum(min(used, held) * (end - start) for start, end, used, held in pieces)
    if leased_total <= 0:
        return None
    if usable_total > leased_total * (1 + 1e-9):
        raise ValueError(f"usable unit-ms {usable_total} exceed leased unit-ms {leased_total}: the series don't match")
    return min(1.0, usable_total / leased_total)


def usage(held: SignalSteps, capacity: SignalSteps | float, window: Term) -> float | None:
    """The share of a site's capacity (unit-milliseconds) that was held; None where it had none."""
    check_window(window)
    available = capacity.integral(window) if isinstance(capacity, SignalSteps) else capacity * window.length
    return held.integral(window) / available if available > 0 else None


def summed(parts: Iterable[SignalSteps]) -> Series:
    """The sum of step functions, as a series of its own."""
    changes: list[tuple[Instant, float]] = []
    for part in parts:
        before = 0.0
        for at, value in part:
            changes.append((at, value - before))
            before = value
    total = Series()
    changes.sort(key=lambda change: change[0])
    for at, change in changes:
        total.add(at, change)
    return total


def _pieces(one: SignalSteps, other: SignalSteps, window: Term) -> Iterable[tuple[Instant, Instant, float, float]]:
    """The pieces of the window over which both functions are constant: (start, end, one's value, other's)."""
    right = other.steps(window)
    right_end, right_value = window.start, 0.0
    for start, end, value in one.steps(window):
        at = start
        while at < end:
            if at >= right_end:
                _, right_end, right_value = next(right)
            until = min(end, right_end)
            yield at, until, value, right_value
            at = until
