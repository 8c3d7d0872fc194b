"""Jobs, as guests replay them: what each asks for, and what it really takes."""

from __future__ import annotations

from typing import NamedTuple

from leasekit.core.properties import EMPTY, Properties
from leasekit.core.time import Duration, Instant


class ReplayedJob(NamedTuple):
    """One piece of work: asked for at ``submit``, to begin at ``start`` (``latest`` at the latest; -1: as its guest
    says) on ``units`` for ``estimate``, of which it takes ``run``. Instants and durations in milliseconds.

    ``type`` and ``site`` are empty where the log says none; ``holder`` is whose it is, ``?`` where that is not known.
    """

    id: str
    holder: str
    submit: Instant
    start: Instant
    latest: Instant
    units: int
    estimate: Duration
    run: Duration
    type: str = ""
    site: str = ""
    priority: int = 0
    properties: Properties = EMPTY
