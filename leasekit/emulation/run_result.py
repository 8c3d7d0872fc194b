"""What a run of a deploy file in virtual time has shown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from leasekit.config.build import BuiltActor
from leasekit.config.deployment import Deployment
from leasekit.config.emulation import RunSpec
from leasekit.core.signals import Signal
from leasekit.core.time import Term
from leasekit.emulation.metrics import Series
from leasekit.emulation.recorder import Recorder


@attrs.frozen(kw_only=True)
class RunResult:
    """One run: its summary, and the series that pictures are drawn from: ``leased`` units by guest, those that its
    mapper ``wanted`` where it follows a load. ``stem`` begins the names of its files.
    """

    spec: RunSpec
    stem: str
    deployment: Deployment
    summary: Mapping[str, Any]
    recorder: Recorder
    leased: Mapping[str, Series]
    wanted: Mapping[str, Signal]
    window: Term
    actors: Mapping[str, BuiltActor]
