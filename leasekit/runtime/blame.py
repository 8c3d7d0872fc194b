"""What went wrong in a driver, in one line: drivers are plug-ins, and may raise anything."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from leasekit.core.drivers import DriverError

REASON_MAX: Final = 1000


def is_planned(error: BaseException) -> bool:
    """Whether the driver said so itself: all else is a bug of its own."""
    return all(isinstance(leaf, DriverError) for leaf in _leaves(error))


def explain(error: BaseException, op: str) -> DriverError:
    """What a driver raised in ``op`` as a ``DriverError``: its own, several at once, or any other exception."""
    leaves = list(_leaves(error))
    if is_planned(error):
        retry = all(isinstance(leaf, DriverError) and leaf.retry for leaf in leaves)
        return DriverError(_short("; ".join(str(leaf) for leaf in leaves)), retry=retry)
    words = "; ".join(f"{type(leaf).__name__}: {leaf}" for leaf in leaves)
    return DriverError(_short(f"the driver failed in {op}: {words}"), retry=False)


def _leaves(error: BaseException) -> Iterable[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error


def _short(text: str) -> str:
    line = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in " ".join(text.split()))
    return line if len(line) <= REASON_MAX else f"{line[:REASON_MAX]}..."
