"""Building an actor, its store and its drivers from a deployment: the one way in which both shells get them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs

from leasekit.actors.settings import AuthoritySettings, BrokerSettings, GuestSettings, Peer
from leasekit.config.deployment import ActorSpec, Deployment, dialled_at
from leasekit.config.errors import ConfigErrors, Faults
from leasekit.config.identities import KeySource, emulation_keys
from leasekit.config.jobs import JobsSpec, open_jobs, shifted
from leasekit.config.tables import DriverSpec, PeerSpec, Permission
from leasekit.config.traces import SignalSpec, data_dir, open_signal
from leasekit.core.claims.signed import Scheme, Signer
from leasekit.core.drivers import Driver
from leasekit.core.requests import ReplayedJob
from leasekit.core.schema import History, Store
from leasekit.core.settings import SettingsError
from leasekit.core.signals import Signal, SignalSoFar
from leasekit.core.time import Instant
from leasekit.drivers.null import LatencyModel
from leasekit.drivers.registry import make_driver
from leasekit.policies.registry import mapper_maker
from leasekit.stores.memory import MemoryStore
from leasekit.stores.sqlite import SqliteStore

if TYPE_CHECKING:
    from leasekit.actors.broker.broker import Broker
    from leasekit.actors.guest.service_manager import ServiceManager
    from leasekit.actors.site.authority import Authority


@attrs.frozen(kw_only=True, eq=False)
class BuiltActor:
    """An actor, new and without its state, and what its shell needs beside it.

    ``models`` say how long actions take in virtual time, by driver; ``model(type)`` finds the one for a type.
    ``signal`` is the load that a guest's mapper follows, ``jobs`` are those that it replays, on the actor's clock.
    """

    spec: ActorSpec
    actor: ServiceManager | Broker | Authority
    signer: Signer
    scheme: Scheme
    peers: Sequence[Peer]
    models: Mapping[str, LatencyModel]
    signal: Signal | None
    jobs: Sequence[ReplayedJob] | None

    def model(self, type_: str) -> LatencyModel | None:
        """The latency model that stands for the driver of a type; None if there is no driver for it."""
        return self.models.get(self.spec.driver_for(type_))


@attrs.frozen(eq=False)
class BoundDriver:
    """A driver, and what its deploy file says of it: the limits under which its actions run."""

    driver: Driver
    spec: DriverSpec


def build(
    deployment: Deployment,
    name: str,
    *,
    keys: KeySource | None = None,
    data: Path | None = None,
    synthetic: bool = False,
    virtual: bool = False,
    origin: Instant | None = None,
    guard: Callable[[Any], Any] | None = None,
) -> BuiltActor:
    """The actor ``name`` of the deployment, for a daemon with the ``keys`` that :func:`~.identities.prepare` read.

    With ``virtual`` it is for an emulation: keys are then those of :func:`~.identities.emulation_keys`. Traces are
    looked for where :func:`~.traces.data_dir` says, ``data`` first, or replaced by generated load with ``synthetic``;
    their 0 lies at ``origin`` on the actor's clock (default: the emulation's start; 0 for a daemon), unless the file
    says where. ``guard`` is put around every mapper that the actor is given. Nothing else is opened or made.

    Raises ``KeyError`` for a name that is not in the file, :class:`~.errors.ConfigErrors`, and
    :class:`~.traces.TraceError` for traces that are missing or malformed.
    """
    spec = deployment.actors[name]
    if keys is None:
        if not virtual:
            raise ValueError("a daemon's actor needs keys")
        keys = emulation_keys(deployment)
    if origin is None:
        origin = deployment.emulation.start if virtual and deployment.emulation is not None else 0
    found = partial(_load, deployment=deployment, data=data, synthetic=synthetic, origin=origin)
    signal: Signal | None = found(spec.mapper.signal, open_signal, Signal.shifted)
    jobs: Sequence[ReplayedJob] | None = found(spec.mapper.jobs, open_jobs, shifted)
    signer = keys.signer(name)
    peers = _peers(deployment, spec, keys)
    so_far = None if signal is None else SignalSoFar(signal)
    extras = {key: load for key, load in (("signal", so_far), ("jobs", jobs)) if load is not None}
    actor = _actor(deployment, spec, signer, keys.scheme, peers, extras, guard)
    if so_far is not None:
        so_far.now = lambda: actor.now
    for former in keys.former(name):
        actor.keyring.had_before(*former)
    return BuiltActor(
        spec=spec,
        actor=actor,
        signer=signer,
        scheme=keys.scheme,
        peers=peers,
        models={driver: LatencyModel(entry.emulated) for driver, entry in spec.drivers.items()},
        signal=signal,
        jobs=jobs,
    )


def open_store(spec: ActorSpec) -> Store:
    """The actor's store. Raises ``StoreError``."""
    if spec.store is None:
        return MemoryStore()
    history = History(spec.settings.history_kept, spec.settings.history_max)
    return SqliteStore(spec.store, history=history)


def make_drivers(
    deployment: Deployment, name: str, running: Mapping[str, BoundDriver] | None = None
) -> dict[str, BoundDriver]:
    """The drivers of the actor ``name`` by their names, for real: those that are ``running`` with the same settings,
    else new ones. Raises :class:`~.errors.ConfigErrors` for what the world says is wrong.
    """
    faults = Faults(str(deployment.file))
    made: dict[str, BoundDriver] = {}
    for spec in deployment.actors[name].drivers.values():
        known = running.get(spec.name) if running else None
        if known is not None and (known.spec.kind, known.spec.settings) == (spec.kind, spec.settings):
            made[spec.name] = known if known.spec == spec else BoundDriver(known.driver, spec)
            continue
        driver = faults.attempt(spec.where, make_driver, spec.kind, spec.settings, spec.where, base=deployment.state)
        if driver is not None:
            made[spec.name] = BoundDriver(driver, spec)
    faults.finish()
    return made


def _peers(deployment: Deployment, spec: ActorSpec, keys: KeySource) -> list[Peer]:
    """All others, in the order of the file. Guests have nothing to say to guests, nor sites to sites."""
    others: list[ActorSpec | PeerSpec] = [*deployment.actors.values(), *deployment.peers.values()]
    made = []
    for other in others:
        inside = isinstance(other, ActorSpec)
        if other.name == spec.name or (inside and other.role == spec.role != "broker"):
            continue
        address = dialled_at(other) if isinstance(other, ActorSpec) else other.address
        peer = Peer(name=other.name, key=keys.public(other.name), role=other.role, address=address)
        said = spec.table.permissions.get(other.name, Permission())
        may = peer.may if said.may is None else said.may
        most = peer.open_requests if said.open_requests is None else said.open_requests
        made.append(attrs.evolve(peer, may=may, open_requests=most, priority_max=said.priority_max))
    return made


def _load(
    wanted: SignalSpec | JobsSpec | None,
    read: Callable[..., Any],
    shift: Callable[[Any, Instant], Any],
    *,
    deployment: Deployment,
    data: Path | None,
    synthetic: bool,
    origin: Instant,
) -> Any:
    """The load that is ``wanted`` of an actor, on its clock."""
    if wanted is None:
        return None
    found = _read(read, wanted, *_found(wanted.file, deployment, data, synthetic), synthetic)
    at = origin if wanted.origin is None else wanted.origin
    return shift(found, at) if at else found


Written: TypeAlias = tuple[int, int] | None


def _found(file: str, deployment: Deployment, data: Path | None, synthetic: bool) -> tuple[Path | None, Written]:
    """The folder in which a file is looked for, and what tells the file from what it was before: its size, and when it
    was written.
    """
    if not file or synthetic:
        return None, None
    folder = data_dir(data, config=deployment.file)
    try:
        there = (Path(file) if folder is None else folder / file).stat()
    except OSError:
        return folder, None
    return folder, (there.st_size, there.st_mtime_ns)


@lru_cache(maxsize=16)
def _read(read: Callable[..., Any], spec: Any, folder: Path | None, written: Written, synthetic: bool) -> Any:
    """A load, kept as long as its file is what it was: runs of a sweep follow the same one, which nobody changes."""
    return read(spec, folder, synthetic=synthetic)


def _actor(
    deployment: Deployment,
    spec: ActorSpec,
    signer: Signer,
    scheme: Scheme,
    peers: Sequence[Peer],
    extras: Mapping[str, Any],
    guard: Callable[[Any], Any] | None,
) -> ServiceManager | Broker | Authority:
    entry = spec.mapper
    try:
        make = mapper_maker(entry.target, spec.role, entry.settings, entry.where, extras)
        maker = make if guard is None else lambda: guard(make())
        mapper = maker()
    except SettingsError as error:
        faults = Faults(str(deployment.file))
        faults.add_settings(entry.where, error)
        raise ConfigErrors(faults.errors) from None
    settings = spec.settings
    # A daemon has one role as a rule, and imports the actor of that role alone.
    if isinstance(settings, AuthoritySettings):
        from leasekit.actors.site.authority import Authority

        return Authority(spec.name, signer, scheme, peers, mapper, settings)
    if isinstance(settings, BrokerSettings):
        from leasekit.actors.broker.broker import Broker

        return Broker(spec.name, signer, scheme, peers, mapper, settings, fresh=maker)
    assert isinstance(settings, GuestSettings), "a role has settings of its own"
    from leasekit.actors.guest.service_manager import ServiceManager

    return ServiceManager(spec.name, signer, scheme, peers, mapper, settings)
