"""A deployment in virtual time: its actors as a daemon would build them, in a world, with what is recorded of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TextIO

from leasekit.actors.settings import AuthoritySettings, GuestSettings
from leasekit.config.build import BuiltActor, build
from leasekit.config.deployment import Deployment
from leasekit.config.sense import capacities
from leasekit.config.traces import TraceMissing, data_dir, missing_traces
from leasekit.core.drivers import UNIT
from leasekit.core.leases.power import OPERATIONS, power_driver
from leasekit.core.schema import Change, Store
from leasekit.core.steps import Action, ActorLike
from leasekit.core.time import Instant, format_duration
from leasekit.core.tuples import new_tuple
from leasekit.emulation.clocks import Clocked
from leasekit.emulation.failing import FailingWorld
from leasekit.emulation.mapper_faults import MapperFaults, Tell
from leasekit.emulation.mishaps import Mishaps
from leasekit.emulation.pictures import emulation_of
from leasekit.emulation.recorder import ROWS_RECORDED, Recorder
from leasekit.emulation.request_book import RequestBook
from leasekit.emulation.world import AT_ONCE, Outcome, World
from leasekit.stores.memory import Forgetful, MemoryStore


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
        self.actors = build_all(deployment, data, synthetic)
        self._run = f"run {run!r}: " if run else ""
        self._mappers = {name: actor.mapper.target for name, actor in deployment.actors.items()}
        self.faults = MapperFaults(self._mappers, None if tell is None else lambda text: tell(f"{self._run}{text}"))
        self.requests = RequestBook(
            {site.name: capacities(deployment, site.name) for site in deployment.of_role("authority")}, emulation.tick
        )
        self.recorder = _recorder(deployment, log, self.requests, self.faults)
        self._observers = [self.recorder.observe, *([] if observe is None else [observe])]
        self._data, self._synthetic = data, synthetic
        self.mishaps: Mishaps | None = None
        """What goes wrong, where the file says that anything does."""
        self.world = self._make_world(self.recorder.observe if observe is None else self._observe)
        for built in self.actors.values():
            built.actor.kernel.resends = not emulation.is_lossless  # nothing need be said again where nothing is lost
            store = _lightened(built, observe is None) if self.mishaps is None else MemoryStore(keep_log=False)
            self.world.add(self._on_its_clock(built), store, action_model(built))
        if self.mishaps is not None:
            self.mishaps.begin()

    def _make_world(self, observe: Callable[[Instant, str, Sequence[Change]], None]) -> World:
        emulation = emulation_of(self.deployment)
        settings: dict[str, Any] = {
            "tick": emulation.tick,
            "delay": lambda sender, receiver: emulation.message_latency,
            "every_tick": emulation.ticks == "every",
            "observe": observe,
            "start": emulation.start,
        }
        if emulation.is_still:
            return World(**settings, copies=self.deployment.signatures or settings["every_tick"])
        world = FailingWorld(**settings)
        self.mishaps = Mishaps(self.deployment, world, self.recorder, self._remake)
        if not emulation.is_lossless or emulation.networks:
            world.carrier = self.mishaps.carry
        return world

    def _remake(self, name: str) -> ActorLike:
        """An actor without its state, as its daemon starts with."""
        made = self.actors[name] = build(
            self.deployment, name, data=self._data, synthetic=self._synthetic, virtual=True
        )
        return self._on_its_clock(made)

    def _on_its_clock(self, built: BuiltActor) -> ActorLike:
        name = built.spec.name
        built.actor.turns.on_report = lambda what, value: self.recorder.report(self.world.now, name, what, value)
        clock = self.mishaps.clocks.get(built.spec.name) if self.mishaps is not None else None
        return built.actor if clock is None else Clocked(built.actor, clock)

    def who(self) -> str:
        """Whose turn it is, in words."""
        passed = format_duration(self.world.now - emulation_of(self.deployment).start)
        return f"{self._run}{self.world.acting}, mapper {self._mappers[self.world.acting]}, after {passed}:"

    def _observe(self, now: Instant, actor: str, changes: Sequence[Change]) -> None:
        for observer in self._observers:
            observer(now, actor, changes)


def _lightened(built: BuiltActor, only_recorded: bool) -> Store:
    """Where no actor is made anew, no row is read: its store keeps nothing. What a broker's rows would say nobody
    observes: none are made. If they are ``only_recorded``, others have what the recorder reads.
    """
    kernel, role = built.actor.kernel, built.spec.role
    kernel.keeps_counters, kernel.keeps_records = False, role != "broker"
    if only_recorded:
        kernel.show_rows(*ROWS_RECORDED[role])
    return Forgetful()


def _recorder(deployment: Deployment, log: TextIO | None, requests: RequestBook, faults: MapperFaults) -> Recorder:
    actors = deployment.actors
    return Recorder(
        {name: actor.role for name, actor in actors.items()},
        log,
        requests=requests,
        mappers=faults,
        start=emulation_of(deployment).start,
        logs=emulation_of(deployment).log,
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


def build_all(deployment: Deployment, data: Path | None, synthetic: bool) -> dict[str, BuiltActor]:
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

    model_of = cache(built.model)

    def model(action: Action) -> Outcome:
        number, op, unit, type_, *_ = action
        of_type = model_of(power_driver(type_) if op in OPERATIONS else type_)
        if of_type is None:
            return AT_ONCE
        return new_tuple(Outcome, (of_type.latency(op, unit, number), *of_type.outcome(op, unit, number), UNIT))

    return model
