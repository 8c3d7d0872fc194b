"""What can be known of a deployment before it is run: that something in it can come to nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from leasekit.actors.settings import AuthoritySettings
from leasekit.config.deployment import ActorSpec, Deployment
from leasekit.core.settings import SettingsError, expect_one_of
from leasekit.policies.registry import BUILT_IN


def senseless(deployment: Deployment) -> list[str]:
    """A line for each site that has no units of a type that it names, and for each type that one of leasekit's own
    mappers would ask for and that no site offers to a broker.
    """
    lines = []
    offered: set[str] = set()
    for site in deployment.of_role("authority"):
        settings = site.settings
        assert isinstance(settings, AuthoritySettings), "a site has an authority's settings"
        has = {group.type: 0 for group in settings.inventory}
        for group in settings.inventory:
            has[group.type] += len(group.names)
        lines += [f"actor.{site.name}.inventory: found 0 units of {t!r}, expected 1 or more" for t in has if not has[t]]
        offered |= {delegation.type for delegation in settings.delegations}
    for guest in deployment.of_role("guest"):
        if guest.mapper.target in BUILT_IN["guest"]:
            lines += [line for type_ in _asked_for(guest) if (line := _unoffered(guest, type_, offered))]
    return lines


def _unoffered(guest: ActorSpec, type_: str, offered: set[str]) -> str:
    if type_ in offered:
        return ""
    allowed = expect_one_of(type_, sorted(offered)) if offered else "expected one that a site has and delegates"
    return f"{guest.mapper.where}: found type {type_!r}, which no site offers to a broker, {allowed}"


def _asked_for(guest: ActorSpec) -> list[str]:
    return sorted(set(_types(guest.mapper.settings)))


def _types(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("type"), str):
            yield value["type"]
        for one in value.values():
            yield from _types(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _types(one)


def check_sense(deployment: Deployment) -> None:
    """Raise ``SettingsError`` for what makes no sense in any run of an emulation."""
    assert deployment.emulation is not None, "only an emulation has runs"
    found: dict[str, str] = {}
    for spec in deployment.emulation.runs:
        for line in senseless(deployment.with_run(spec)):
            found.setdefault(line, spec.name)
    if found:
        file = deployment.file
        raise SettingsError([f"{file}: {f'run {run!r}: ' if run else ''}{line}" for line, run in found.items()])
