"""Building an actor, its store and its drivers from a deployment: the one way in which both shells get them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import attrs

from leasekit.actors.broker.broker import Broker
from leasekit.actors.guest.service_manager import ServiceManager
from leasekit.actors.settings import AuthoritySettings, BrokerSettings, GuestSettings, Peer
from leasekit.actors.site.authority import Authority
from leasekit.config.deployment import ActorSpec, Deployment, DriverSpec, Permission
from leasekit.config.errors import ConfigErrors, Faults
from leasekit.config.identities import KeySource, emulation_keys
from leasekit.config.reach import dialled_at
from leasekit.config.traces import SignalSpec, data_dir, open_signal
from leasekit.core.claims.keys import Scheme, Signer
from leasekit.core.drivers import Driver
from leasekit.core.schema import Store
from leasekit.core.settings import SettingsError
from leasekit.core.signals import Signal
from leasekit.core.time import Duration, Instant
from leasekit.drivers.null import LatencyModel
from leasekit.drivers.registry import make_driver
from leasekit.policies.registry import mapper_maker
from leasekit.stores.memory import MemoryStore
from leasekit.stores.sqlite import SqliteStore


@attrs.frozen(kw_only=True)
class PeerLink:
    """Another actor as this one knows it. ``address`` is where to dial it; empty: it dials us."""

    name: str
    role: str
    key: bytes
    address: str


@attrs.frozen(kw_only=True, eq=False)
class BuiltActor:
    """An actor, new and without its state, and what its shell needs beside it.

    ``models`` say how long actions take in virtual time, by resource type; ``model(type)`` finds the one for any
    type.
    ``signal`` is the load that a guest's mapper follows, on the actor's clock.
    """

    spec: ActorSpec
    actor: ServiceManager | Broker | Authority
    signer: Signer
    scheme: Scheme
    peers: Sequence[PeerLink]
    models: Mapping[str, LatencyModel]
    other_model: LatencyModel | None
    signal: Signal | None

    def model(self, type_: str) -> LatencyModel | None:
        """The latency model that stands for the driver of a type; None if there is no driver for it."""
        return self.models.get(type_, self.other_model)


@attrs.frozen(kw_only=True, eq=False)
class BuiltDriver:
    """A driver and the limits under which its actions run: ``timeout`` (ms) of one try, ``retries``, for how long a
    teardown is tried (ms), and how many at once; and how often its units are probed (ms, 0: never).
    """

    name: str
    driver: Driver
    timeout: Duration
    retries: int
    teardown_for: Duration
    concurrency: int
    probe_every: Duration


@attrs.frozen(kw_only=True, eq=False)
class BuiltDrivers:
    """An actor's drivers: by name, by resource type, and the one for types that have none of their own."""

    by_name: Mapping[str, BuiltDriver]
    by_type: Mapping[str, BuiltDriver]
    other: BuiltDriver | None

    def of(self, type_: str) -> BuiltDriver | None:
        """The driver of a type; None if there is none for it."""
        return self.by_type.get(type_, self.other)


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
    signal = _signal(deployment, spec, data, synthetic, origin)
    signer = keys.signer(name)
    links = _links(deployment, name, keys)
    models = {driver: LatencyModel(entry.emulated) for driver, entry in spec.drivers.items()}
    actor = _actor(deployment, spec, signer, keys.scheme, links, signal, guard)
    for former in keys.former(name):
        actor.keyring.had_before(*former)
    return BuiltActor(
        spec=spec,
        actor=actor,
        signer=signer,
        scheme=keys.scheme,
        peers=links,
        models={type_: models[driver] for type_, driver in spec.driver_of.items()},
        other_model=models.get(spec.other_types),
        signal=signal,
    )


def open_store(spec: ActorSpec) -> Store:
    """The actor's store. Raises ``StoreError``."""
    if spec.store.path is None:
        return MemoryStore()
    return SqliteStore(spec.store.path)


def make_drivers(deployment: Deployment, name: str) -> BuiltDrivers:
    """The drivers of the actor ``name``, for real. Raises :class:`~.errors.ConfigErrors` for what the world says is
    wrong.
    """
    spec = deployment.actors[name]
    faults = Faults(str(deployment.file))
    made: dict[str, BuiltDriver] = {}
    for driver, entry in spec.drivers.items():
        built = _driver(entry, deployment, faults)
        if built is not None:
            made[driver] = built
    faults.finish()
    return BuiltDrivers(
        by_name=made,
        by_type={type_: made[driver] for type_, driver in spec.driver_of.items()},
        other=made.get(spec.other_types),
    )


def _driver(entry: DriverSpec, deployment: Deployment, faults: Faults) -> BuiltDriver | None:
    driver = faults.attempt(
        entry.where, lambda: make_driver(entry.kind, entry.settings, entry.where, base=deployment.state)
    )
    if driver is None:
        return None
    return BuiltDriver(
        name=entry.name,
        driver=driver,
        timeout=entry.timeout,
        retries=entry.retries,
        teardown_for=entry.teardown_for,
        concurrency=entry.concurrency,
        probe_every=entry.probe_every,
    )


def _links(deployment: Deployment, name: str, keys: KeySource) -> list[PeerLink]:
    """All others, in the order of the file. Guests have nothing to say to guests, nor sites to sites."""
    mine = deployment.actors[name].role
    links = []
    for other, spec in deployment.actors.items():
        if other != name and (spec.role != mine or mine == "broker"):
            links.append(PeerLink(name=other, role=spec.role, key=keys.public(other), address=dialled_at(spec)))
    for other, peer in deployment.peers.items():
        links.append(PeerLink(name=other, role=peer.role, key=keys.public(other), address=peer.address))
    return links


def _signal(
    deployment: Deployment, spec: ActorSpec, data: Path | None, synthetic: bool, origin: Instant
) -> Signal | None:
    use = spec.mapper.signal
    if use is None:
        return None
    from_file = use.spec.trace is not None and not synthetic
    signal = _read(use.spec, data_dir(data, config=deployment.file) if from_file else None, synthetic)
    at = origin if use.origin is None else use.origin
    return signal.shifted(at) if at else signal


@lru_cache(maxsize=8)
def _read(spec: SignalSpec, folder: Path | None, synthetic: bool) -> Signal:
    """A signal, kept: the runs of a sweep follow the same ones. Signals are never changed."""
    return open_signal(spec, folder, synthetic=synthetic)


def _peer(link: PeerLink, permission: Permission | None) -> Peer:
    peer = Peer(name=link.name, key=link.key, role=link.role, address=link.address)
    if permission is not None and permission.may is not None:
        peer = attrs.evolve(peer, may=permission.may)
    if permission is not None and permission.open_requests is not None:
        peer = attrs.evolve(peer, open_requests=permission.open_requests)
    return peer


def _actor(
    deployment: Deployment,
    spec: ActorSpec,
    signer: Signer,
    scheme: Scheme,
    links: Sequence[PeerLink],
    signal: Signal | None,
    guard: Callable[[Any], Any] | None,
) -> ServiceManager | Broker | Authority:
    peers = [_peer(link, spec.permissions.get(link.name)) for link in links]
    entry = spec.mapper
    extras = {} if signal is None else {"signal": signal}
    try:
        make = mapper_maker(entry.target, spec.role, entry.settings, entry.where, extras)
        maker = make if guard is None else lambda: guard(make())
        mapper = maker()
    except SettingsError as error:
        faults = Faults(str(deployment.file))
        faults.add_settings(entry.where, error)
        raise ConfigErrors(faults.errors) from None
    settings = spec.settings
    if isinstance(settings, AuthoritySettings):
        return Authority(spec.name, signer, scheme, peers, mapper, settings)
    if isinstance(settings, BrokerSettings):
        return Broker(spec.name, signer, scheme, peers, mapper, settings, fresh=maker)
    assert isinstance(settings, GuestSettings), "a role has settings of its own"
    return ServiceManager(spec.name, signer, scheme, peers, mapper, settings)
