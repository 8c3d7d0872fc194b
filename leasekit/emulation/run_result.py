"""What a run of a deploy file in virtual time has shown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from leasekit.actors.settings import AuthoritySettings
from leasekit.config.build import BuiltActor
from leasekit.config.deployment import Deployment
from leasekit.config.emulation import RunSpec
from leasekit.core.signals import Signal
from leasekit.core.time import Term
from leasekit.emulation.metrics import Series
from leasekit.emulation.recorder import Recorder


@attrs.frozen(kw_only=True)
class RunResult:
    """One run: its summary, and the series that pictures are drawn from: ``leased`` units by guest, and by
    guest and type; those that its mapper ``wanted`` where it follows a load. ``stem`` begins the names of its files.
    """

    spec: RunSpec
    stem: str
    deployment: Deployment
    summary: Mapping[str, Any]
    recorder: Recorder
    leased: Mapping[str, Series]
    leased_by_type: Mapping[str, Mapping[str, Series]]
    wanted: Mapping[str, Signal]
    window: Term
    actors: Mapping[str, BuiltActor]

    def in_use(self, site: str) -> dict[str, Series]:
        """Units in use of each of a site's types: of all that it has, and of what it has had."""
        settings = self.deployment.actors[site].settings
        assert isinstance(settings, AuthoritySettings), "a site has an authority's settings"
        used = self.recorder.in_use_by_type[site]
        return {group.type: Series() for group in settings.inventory} | used

    def in_service(self, site: str, kind: str, bought: int) -> Series:
        """Of the units of a type that were bought, those that were not out of service."""
        emulation, made = self.deployment.emulation, Series()
        assert emulation is not None, "a run is of a deployment with an emulation"
        made.append(emulation.start, bought)
        outage = self.recorder.outages[site].get(kind)
        for at, out in outage.out if outage is not None else ():
            made.append(at, bought - out)
        return made
