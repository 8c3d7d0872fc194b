"""What a deploy file says, checked and resolved: plain values that both shells build actors from; who can dial whom."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import attrs

from leasekit.actors.settings import ActorSettings, AuthoritySettings, BrokerSettings, GuestSettings
from leasekit.config.emulation import EmulationSpec, RunSpec
from leasekit.config.gateway import GatewaySpec
from leasekit.config.jobs import JobsSpec
from leasekit.config.sockets import can_be_dialled
from leasekit.config.tables import ActorTable, DriverSpec, PeerSpec, Role
from leasekit.config.traces import SignalSpec


@attrs.frozen(kw_only=True)
class MapperSpec:
    """``target`` is a built-in name, an entry point, ``module:Class`` or ``/path/to/file.py:Class``; ``where`` is for
    errors.
    """

    target: str
    settings: Mapping[str, Any]
    where: str
    signal: SignalSpec | None = None
    jobs: JobsSpec | None = None


@attrs.frozen(kw_only=True)
class ActorSpec:
    """One actor. Paths are absolute; ``listen`` holds addresses (``unix:/PATH``, ``tcp://HOST:PORT``, with
    ``?tls=false`` where TLS is not spoken), the first for peers of this file. ``store`` is its SQLite file (None: its
    rows are in memory). ``passphrase_file`` is where the passphrase of its key is, if the file says, ``after`` where
    the keys are that it had before, the latest first.

    ``driver_of`` says which of ``drivers`` serves a resource type; ``other_types`` names the one for types not in it
    (a guest's only: it does not know all types beforehand), or is empty.
    """

    name: str
    role: Role
    key: Path
    listen: tuple[str, ...]
    control: Path
    store: Path | None
    table: ActorTable
    """The rest of what its table in the file says."""
    settings: ActorSettings
    mapper: MapperSpec
    drivers: Mapping[str, DriverSpec]
    driver_of: Mapping[str, str]
    other_types: str
    passphrase_file: Path | None = None
    after: tuple[Path, ...] = ()

    def driver_for(self, type_: str) -> str:
        """The driver that serves a resource type; empty if there is none."""
        return self.driver_of.get(type_, self.other_types)


@attrs.frozen(kw_only=True)
class Deployment:
    """One deploy file. ``document`` is the file as it was read, which :meth:`with_overrides` starts from."""

    file: Path
    name: str
    state: Path
    create_keys: bool
    signatures: bool
    actors: Mapping[str, ActorSpec]
    peers: Mapping[str, PeerSpec]
    gateways: Mapping[str, GatewaySpec]
    emulation: EmulationSpec | None
    document: Mapping[str, Any] = attrs.field(repr=False)
    remake: Callable[[Mapping[str, Any]], Deployment] = attrs.field(repr=False, eq=False)

    def with_overrides(self, changes: Mapping[str, Any]) -> Deployment:
        """The same file with other values at dotted keys (``actor.web.mapper.term``; lists by index:
        ``actor.site.inventory.0.units``).

        Raises :class:`~.errors.ConfigErrors`.
        """
        return self.remake(changes) if changes else self

    def with_run(self, run: RunSpec) -> Deployment:
        """The deployment of one run of its emulation."""
        return self.with_overrides(run.changes)

    @property
    def daemons(self) -> Mapping[str, ActorSpec | GatewaySpec]:
        """All that run as daemons: actors, and then gateways, which have their control sockets as well."""
        return {**self.actors, **self.gateways}

    def of_role(self, role: Role) -> Sequence[ActorSpec]:
        """The file's actors of a role, in its order."""
        return [actor for actor in self.actors.values() if actor.role == role]


def dialled_at(spec: ActorSpec) -> str:
    """The address at which an actor of a file is dialled by the others of that file; empty if they can't."""
    first = spec.listen[0] if spec.listen else ""
    return first if can_be_dialled(first) else ""


def out_of_reach(deployment: Deployment, names: Collection[str] = ()) -> list[str]:
    """Pairs of actors that must talk and can't, as none of the two can be dialled: a line for each, which names the
    keys. With ``names``, only pairs with one of these actors. An emulation needs no addresses.
    """
    return [
        _words(one, other)
        for one, other in _pairs(deployment)
        if not dialled_at(one)
        and not (dialled_at(other) if isinstance(other, ActorSpec) else other.address)
        and (not names or one.name in names or other.name in names)
    ]


def for_daemons(deployment: Deployment) -> bool:
    """Whether anything in a file says that it is for daemons, and not for emulations alone."""
    listens = any(spec.listen for spec in deployment.actors.values())
    return deployment.emulation is None or deployment.create_keys or bool(deployment.peers) or listens


def _words(one: ActorSpec, other: ActorSpec | PeerSpec) -> str:
    actor, kind, key = (
        f"actor.{one.name}",
        *(("actor", "listen") if isinstance(other, ActorSpec) else ("peer", "address")),
    )
    return (
        f"{actor}, {kind}.{other.name}: they must talk, and neither knows where to dial the other: "
        f"expected {actor}.listen or {kind}.{other.name}.{key}, with an address that can be dialled"
    )


def _pairs(deployment: Deployment) -> Iterator[tuple[ActorSpec, ActorSpec | PeerSpec]]:
    actors = list(deployment.actors.values())
    everybody: list[ActorSpec | PeerSpec] = [*actors, *deployment.peers.values()]
    first = next((one.name for one in everybody if one.role == "broker"), "")
    for one, other in combinations(actors, 2):
        if _talks(one, other, first) or _talks(other, one, first):
            yield one, other
    for one in actors:
        for peer in deployment.peers.values():
            # Who is named in another's file is there to be talked with; what it delegates isn't known here.
            if one.role != peer.role or _talks(one, peer, first):
                yield one, peer


def _talks(one: ActorSpec, other: ActorSpec | PeerSpec, first_broker: str) -> bool:
    """Whether ``one`` has something to ask ``other`` for, or to give it."""
    settings = one.settings
    if isinstance(settings, GuestSettings):
        return other.role == "authority" or other.name == (settings.default_broker or first_broker)
    given = settings.delegations if isinstance(settings, AuthoritySettings | BrokerSettings) else ()
    planners = settings.planners if isinstance(settings, BrokerSettings) else ()
    return other.name in {*(one.broker for one in given), *planners}
