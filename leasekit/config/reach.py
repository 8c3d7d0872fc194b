"""Who can dial whom: of two actors that must talk, one at least needs an address that the other knows."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import combinations

from leasekit.actors.settings import AuthoritySettings, BrokerSettings, GuestSettings
from leasekit.config.addresses import can_be_dialled
from leasekit.config.deployment import ActorSpec, Deployment
from leasekit.config.tables import PeerSpec


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
