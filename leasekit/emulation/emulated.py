"""A deployment in virtual time: its actors as a daemon would build them, in a world, with what is recorded of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TextIO

from leasekit.actors.settings import AuthoritySettings, GuestSettings
from leasekit.config.build import BuiltActor, build
from leasekit.config.deployment import Deployment
from leasekit.config.sense import capacities
from leasekit.config.traces import TraceMissing, data_dir, missing_traces
from leasekit.core.leases.power import OPERATIONS, power_driver
from leasekit.core.schema import Change
from leasekit.core.steps import Action
from leasekit.core.time import Instant, format_duration
from leasekit.emulation.mapper_faults import MapperFaults, Tell
from leasekit.emulation.pictures import emulation_of
from leasekit.emulation.recorder import Recorder
from leasekit.emulation.request_book import RequestBook
from leasekit.emulation.world import Outcome, World
from leasekit.stores.memory import MemoryStore


class Emulated:
    """All actors of a deployment at the start of its emulation. Time passes as its ``world`` is told."""

    def __init__(
        self,
        deployment: Deployment,
        *,
        run: str = "",
        log: TextIO | None = None,
        data: Path | None = None,
        synthetic: bool = False,
        tell: Tell | None = None,
        observe: Callable[[Instant, str, Sequence[Change]], None] | None = None,
    ) -> None:
        """``run`` names it in what ``tell`` hears of mappers. The transition log goes to ``log`` as CSV. ``observe``
        hears of all commits, as the recorder does. Raises ``LeasekitError`` for traces that are missing.
        """
        emulation = emulation_of(deployment)
        self.deployment = deployment
        self.actors = _build_all(deployment, data, synthetic)
        self._run = f"run {run!r}: " if run else ""
        self._mappers = {name: actor.mapper.target for name, actor in deployment.actors.items()}
        self.faults = MapperFaults(self._mappers, None if tell is None else lambda text: tell(f"{self._run}{text}"))
        self.requests = RequestBook(
            {site.name: capacities(deployment, site.name) for site in deployment.of_role("authority")}, emulation.tick
        )
        self.recorder = _recorder(deployment, log, self.requests, self.faults)
        self._observers = [self.recorder.observe, *([] if observe is None else [observe])]
        self.world = World(
            tick=emulation.tick,
            delay=lambda sender, receiver: emulation.message_latency,
            every_tick=emulation.ticks == "every",
            observe=self.recorder.observe if observe is None else self._observe,
            start=emulation.start,
        )
        for built in self.actors.values():
            self.world.add(built.actor, MemoryStore(keep_log=False), action_model(built))
        if (repair := emulation.repair) is not None:  # as an operator would, after so long
            self.recorder.on_failure = lambda at, site, unit: self.world.command_at(
                at + repair, site, "unit.enable", unit=unit
            )

    def who(self) -> str:
        """Whose turn it is, in words."""
        passed = format_duration(self.world.now - emulation_of(self.deployment).start)
        return f"{self._run}{self.world.acting}, mapper {self._mappers[self.world.acting]}, after {passed}:"

    def _observe(self, now: Instant, actor: str, changes: Sequence[Change]) -> None:
        for observer in self._observers:
            observer(now, actor, changes)


def _recorder(deployment: Deployment, log: TextIO | None, requests: RequestBook, faults: MapperFaults) -> Recorder:
    actors = deployment.actors
    return Recorder(
        {name: actor.role for name, actor in actors.items()},
        log,
        requests=requests,
        mappers=faults,
        start=emulation_of(deployment).start,
        leave={
            name: actor.settings.leave_time
            for name, actor in actors.items()
            if isinstance(actor.settings, GuestSettings)
        },
        switched=[
            name
            for name, actor in actors.items()
            if isinstance(actor.settings, AuthoritySettings) and any(group.power for group in actor.settings.inventory)
        ],
    )


def _build_all(deployment: Deployment, data: Path | None, synthetic: bool) -> dict[str, BuiltActor]:
    """All actors. Traces that are missing are told in one error."""
    actors: dict[str, BuiltActor] = {}
    missing: dict[str, None] = {}
    for name in deployment.actors:
        try:
            actors[name] = build(deployment, name, data=data, synthetic=synthetic, virtual=True)
        except TraceMissing as error:
            missing.update(dict.fromkeys(error.traces))
    if missing:
        raise missing_traces(list(missing), data_dir(data, config=deployment.file))
    return actors


def action_model(built: BuiltActor) -> Callable[[Action], Outcome]:
    """The latency models that take the place of an actor's drivers, by resource type."""

    def model(action: Action) -> Outcome:
        of_type = built.model(power_driver(action.type) if action.op in OPERATIONS else action.type)
        if of_type is None:
            return Outcome(0, True, {}, "")
        outcome = of_type.outcome(action.op, action.unit, action.number)
        latency = of_type.latency(action.op, action.unit, action.number)
        return Outcome(latency, outcome.ok, dict(outcome.properties), outcome.reason)

    return model
