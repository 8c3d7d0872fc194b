"""What went wrong in a driver, in one line: drivers are plug-ins, and may raise anything."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from leasekit.core.drivers import LEASE, SITE, UNIT, Blame, DriverError

REASON_MAX: Final = 1000


def is_planned(error: BaseException) -> bool:
    """Whether the driver said so itself: all else is a bug of its own."""
    return all(isinstance(leaf, DriverError) for leaf in _leaves(error))


def explain(error: BaseException, op: str) -> DriverError:
    """What a driver raised in ``op`` as a ``DriverError``: its own, several at once, or any other exception."""
    leaves = list(_leaves(error))
    planned = [leaf for leaf in leaves if isinstance(leaf, DriverError)]
    if len(planned) == len(leaves):
        retry = all(leaf.retry for leaf in planned)
        return DriverError(_short("; ".join(map(str, leaves))), retry=retry, blame=_blame(planned))
    words = "; ".join(f"{type(leaf).__name__}: {leaf}" for leaf in leaves)
    return DriverError(_short(f"the driver failed in {op}: {words}"), retry=False)


def _blame(errors: Iterable[DriverError]) -> Blame:
    """Of several at once: what the site lacks comes first, and a lease is at fault only where nothing else is."""
    found = {error.blame for error in errors}
    return SITE if SITE in found else LEASE if found == {LEASE} else UNIT


def _leaves(error: BaseException) -> Iterable[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error


def _short(text: str) -> str:
    line = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in " ".join(text.split()))
    return line if len(line) <= REASON_MAX else f"{line[:REASON_MAX]}..."
