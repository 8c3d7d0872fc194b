"""What a deploy file says that is well-formed, and yet can't be meant: names that lead nowhere, types that nobody has
or gives to a broker, scripts that are not there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

import attrs

from leasekit.actors.settings import AuthoritySettings
from leasekit.config.deployment import ActorSpec, Deployment
from leasekit.config.errors import ConfigError, Faults, one_of
from leasekit.config.tables import PeerSpec
from leasekit.drivers.registry import make_driver
from leasekit.policies.registry import BUILT_IN

LOOKING: Final = frozenset({"script", "ssh", "ansible"})
"""Drivers that look for files and programs when they are made, and do nothing else."""
ANY: Final = "*"
"""All holders, or types, where a mapper's settings name one."""


def senseless(deployment: Deployment) -> list[ConfigError]:
    """Types of which a site has no units, and those that no site here offers to a broker although one of leasekit's own
    guests would ask for them, in any run of an emulation.
    """
    if deployment.emulation is None:
        return _senseless(deployment)
    found: dict[ConfigError, str] = {}
    for run in deployment.emulation.runs:
        for error in _senseless(deployment.with_run(run)):
            found.setdefault(error, run.name)
    return [attrs.evolve(one, key=f"run {run!r}: {one.key}" if run else one.key) for one, run in found.items()]


def _senseless(deployment: Deployment) -> list[ConfigError]:
    faults = Faults(str(deployment.file))
    offered: set[str] = set()
    for site, settings in _sites(deployment):
        has = capacities(deployment, site.name)
        for type_ in has:
            if not has[type_]:
                faults.add(f"actor.{site.name}.inventory", f"0 units of {type_!r}", "1 or more")
        offered |= {delegation.type for delegation in settings.delegations}
    _check_failing(deployment, faults)
    for guest in deployment.of_role("guest"):
        if guest.mapper.target in BUILT_IN["guest"] and not _may_know_more(deployment):
            for type_ in sorted({name for _, name in _named(guest.mapper.settings, "type")} - offered):
                allowed = one_of(type_, sorted(offered)) if offered else "one that a site has and delegates"
                faults.add(guest.mapper.where, f"type {type_!r}, which no site offers to a broker", allowed)
    return faults.errors


def _check_failing(deployment: Deployment, faults: Faults) -> None:
    """Types and units of the emulation's failures and maintenance that no site has."""
    if deployment.emulation is None:
        return
    has = {site.name: capacities(deployment, site.name) for site, _ in _sites(deployment)}
    tables: list[tuple[str, str, str]] = [
        *((f"failure[{n}]", one.site, one.type) for n, one in enumerate(deployment.emulation.failures)),
        *((f"maintenance[{n}]", one.site, one.type) for n, one in enumerate(deployment.emulation.maintenances)),
    ]
    for where, site, type_ in tables:
        types = {kind for name, kinds in has.items() if site in ("", name) for kind in kinds}
        if type_ and type_ not in types:
            faults.add(f"emulation.{where}.type", repr(type_), one_of(type_, types))
    names = {site.name: {name for group in settings.inventory for name in group.names}
             for site, settings in _sites(deployment)}  # fmt: skip
    for index, window in enumerate(deployment.emulation.maintenances):
        for unit in window.units:
            if unit not in names[window.site]:
                allowed = f"units of {window.site}, such as {min(names[window.site], default='(none)')}"
                faults.add(f"emulation.maintenance[{index}].units", repr(unit), allowed)


def odd(deployment: Deployment) -> list[ConfigError]:
    """Units that no broker gets; priorities where none count; holders and types that one of leasekit's own mappers of
    brokers names, and that the file does not; scripts that are not on this machine. All of it may be right: operators
    delegate and make peers known, too, and an actor may be another machine's.
    """
    faults = Faults(str(deployment.file))
    types: set[str] = set()
    for site, settings in _sites(deployment):
        has = set(capacities(deployment, site.name))
        types |= has
        for type_ in sorted(has - {delegation.type for delegation in settings.delegations}):
            faults.add(f"actor.{site.name}.delegation", f"nothing for type {type_!r}", "a broker that gets of it")
    everybody: list[ActorSpec | PeerSpec] = [*deployment.actors.values(), *deployment.peers.values()]
    for broker in deployment.of_role("broker"):
        holders = [one.name for one in everybody if one.role != "authority" and one.name != broker.name]
        _check_names(broker, holders, () if _may_know_more(deployment) else types, faults)
    for actor in deployment.actors.values():
        for peer, permission in actor.table.permissions.items():
            if permission.priority_max and actor.role != "broker":
                where = f"actor.{actor.name}.permissions.{peer}.priority_max"
                faults.add(where, str(permission.priority_max), "it at a broker: nobody else is asked for priorities")
        for spec in actor.drivers.values():
            if spec.kind in LOOKING:
                faults.attempt(spec.where, make_driver, spec.kind, spec.settings, spec.where, base=deployment.state)
    return faults.errors


def _check_names(broker: ActorSpec, holders: Collection[str], types: Collection[str], faults: Faults) -> None:
    mapper = broker.mapper
    if mapper.target not in BUILT_IN["broker"]:
        return
    weights = mapper.settings.get("weights", {})
    named = [*_named(mapper.settings, "holder"), *((f".weights.{name}", name) for name in weights)]
    for key, name in named:
        if name not in (ANY, *holders):
            faults.add(f"{mapper.where}{key}", f"{name!r}, whom this file does not name", one_of(name, holders))
    for key, name in _named(mapper.settings, "type"):
        if types and name not in (ANY, *types):
            faults.add(f"{mapper.where}{key}", f"type {name!r}, which no site has", one_of(name, types))


def _named(value: Any, wanted: str, key: str = "") -> Iterator[tuple[str, str]]:
    """What tables in a mapper's settings name by the key ``wanted``, with where that stands."""
    if isinstance(value, Mapping):
        for name, one in value.items():
            if name == wanted and isinstance(one, str):
                yield f"{key}.{name}", one
            yield from _named(one, wanted, f"{key}.{name}")
    elif isinstance(value, list | tuple):
        for index, one in enumerate(value):
            yield from _named(one, wanted, f"{key}[{index}]")


def _sites(deployment: Deployment) -> Iterator[tuple[ActorSpec, AuthoritySettings]]:
    for site in deployment.of_role("authority"):
        assert isinstance(site.settings, AuthoritySettings), "a site has an authority's settings"
        yield site, site.settings


def capacities(deployment: Deployment, site: str) -> dict[str, int]:
    """How many units of each type a site has."""
    settings, found = deployment.actors[site].settings, dict[str, int]()
    assert isinstance(settings, AuthoritySettings), "a site has an authority's settings"
    for group in settings.inventory:
        found[group.type] = found.get(group.type, 0) + len(group.names)
    return found


def _may_know_more(deployment: Deployment) -> bool:
    """Whether sites, or brokers with other sites, are in other files."""
    return any(peer.role != "guest" for peer in deployment.peers.values())
