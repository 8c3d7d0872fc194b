"""Leads a job log's requests through a site that switches its cores: the production actors in the lean set-up
(:mod:`..lean`), months of a log in minutes.

The site's mapper is the energy manager, the broker's is ``fcfs``, and one guest asks for all requests: for those in
advance when they were submitted, for the others when they start. Who asks less ahead than the manager looks may have to
wait for cores to come on: such a request is for as much longer, and its lease is closed when its work is done.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Final

import attrs

from leasekit.actors.settings import AuthoritySettings, GuestSettings, UnitGroup
from leasekit.core.leases import power as pw
from leasekit.core.mappers import CloseLeaseEarly
from leasekit.core.requests import TRUE
from leasekit.core.schema import LOG, Change
from leasekit.core.steps import Action
from leasekit.core.time import MINUTE, SECOND, Duration, Instant
from leasekit.emulation.energy.account import EnergyAccount
from leasekit.emulation.energy.metrics import Delayed
from leasekit.emulation.energy.requests import EnergyRequest
from leasekit.emulation.lean import OVER, SITE, WHOLE_RUN, lean_world
from leasekit.emulation.metrics import Series
from leasekit.emulation.world import Outcome, few_collections
from leasekit.policies.authority.energy import EnergyManager, EnergySettings
from leasekit.policies.broker.fcfs import Fcfs

CORE: Final = "core"
USERS: Final = "users"


@attrs.frozen(kw_only=True)
class Latencies:
    """How long a core needs to come on, in ms. Going off takes no time: it is off from the decision on."""

    boot: Duration = 3 * MINUTE
    resume: Duration = 15 * SECOND


@attrs.frozen(kw_only=True)
class Course:
    """What became of a site: cores in use (with those that requests wait for), off and suspended over time, the
    requests that had to wait for cores to come on (``late`` of them known as far ahead as the manager looks), how
    many got no cores, and how often a core was switched.
    """

    used: Series
    off: Series = attrs.Factory(Series)
    suspended: Series = attrs.Factory(Series)
    delayed: Sequence[Delayed] = ()
    late: int = 0
    refused: int = 0
    switched: int = 0


def drive(requests: Sequence[EnergyRequest], capacity: int, settings: EnergySettings, latencies: Latencies) -> Course:
    """Run requests on a site of so many cores. The site knows of each from its submission."""
    return _EnergyRun(requests, capacity, settings, latencies).run()


class _EnergyRun:
    """The requests on their way through the actors."""

    def __init__(
        self, requests: Sequence[EnergyRequest], capacity: int, settings: EnergySettings, latencies: Latencies
    ) -> None:
        self._requests = sorted(requests, key=lambda request: request.submit)
        self._lookahead = settings.lookahead
        self._boot = latencies.boot
        self._takes: Mapping[str, Duration] = {pw.POWER_ON: latencies.boot, pw.RESUME: latencies.resume}
        self._account = EnergyAccount()
        self._asked: dict[str, EnergyRequest] = {}
        self._open: set[str] = set()
        self._begun: set[str] = set()
        self._refused = 0
        names = tuple(f"c{number}" for number in range(capacity))
        site = AuthoritySettings(inventory=(UnitGroup(type=CORE, names=names, power=True),))
        self._world = lean_world(
            [USERS], Fcfs(), {SITE: (EnergyManager(settings), site)}, model=self._model, observe=self._observe,
            start=self._requests[0].submit, asking=GuestSettings(redeem_lead=WHOLE_RUN), site_records=True,
        )  # fmt: skip

    def run(self) -> Course:
        """From the first submission to the last end."""
        world = self._world
        with few_collections():
            for submit, together in groupby(self._requests, key=lambda request: request.submit):
                world.run_until(submit)
                for request in together:
                    self._ask(request)
            world.run_until(world.now)
            while self._open and (at := world.next_at) is not None:
                world.run_until(at)
        waits = [(self._asked[lease], boot) for lease, boot in self._account.waits().items()]
        return Course(
            used=self._account.used, off=self._account.off, suspended=self._account.suspended,
            delayed=[Delayed(request.cores, boot, request.duration) for request, boot in waits],
            late=sum(self._is_known(request) for request, _ in waits), refused=self._refused,
            switched=self._account.switched,
        )  # fmt: skip

    def _is_known(self, request: EnergyRequest) -> bool:
        """Whether the manager sees that the request begins in time for its cores to be on."""
        return request.start - request.submit >= self._lookahead

    def _ask(self, request: EnergyRequest) -> None:
        more = 0 if self._is_known(request) else self._boot
        properties = {"deferrable": TRUE, "latest_start": str(request.start + WHOLE_RUN)}
        reply = self._world.command(
            USERS, "lease.request", type=CORE, units=request.cores, properties=properties,
            term=[request.start, request.start + request.duration + more],
        )  # fmt: skip
        lease = str(reply.result["id"])
        self._asked[lease] = request
        self._open.add(lease)

    def _model(self, action: Action) -> Outcome:
        return Outcome(self._takes.get(action.op, 0), True, {}, "")

    def _observe(self, now: Instant, actor: str, changes: Sequence[Change]) -> None:
        if actor == SITE:
            self._account.observe(now, changes)
        elif actor == USERS:
            for change in changes:
                if change.table == LOG and change.row is not None:
                    _, lease, event, _, after, _ = change.row
                    if event == "lease":
                        self._begun.add(lease)
                        self._world.decide_at(now + self._asked[lease].duration, USERS, CloseLeaseEarly(lease))
                    elif after in OVER:
                        self._open.discard(lease)
                        self._refused += lease not in self._begun
