"""In which table of a deploy file a key belongs that stands in another one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, Final, TypeAlias, get_args, get_origin

import attrs

from leasekit.actors.settings import ActorSettings
from leasekit.config import tables
from leasekit.config.emulation import EmulationSpec
from leasekit.config.errors import ConfigError
from leasekit.config.gateway import GATEWAY, GatewayTable
from leasekit.core.settings import SettingsError, setting_fields
from leasekit.drivers.registry import driver_factory
from leasekit.policies.registry import find_mapper

_UNKNOWN: Final = "an unknown key"
_AROUND: Final = "a key of a table around this one"
_SLIP: Final = " (did you mean "

_Tables: TypeAlias = Iterator[tuple[str, set[str]]]
"""Tables as a file heads them, each with the keys that it may have."""


def say_where(error: ConfigError, document: Mapping[str, Any]) -> ConfigError:
    """The same fault. Of an unknown key that other tables of ``document`` have, it names these, and no key that only
    looks like it.
    """
    if not error.found.startswith(_UNKNOWN) and not error.found.endswith(_AROUND):
        return error
    where, _, key = error.key.rpartition(".")
    actors = _as_table(document.get("actor"))
    name = max((name for name in actors if f"{where}.".startswith(f"actor.{name}.")), key=len, default="")
    groups = (_of_actor(name, actors.get(name)), _of_all(), _of_roles(), _beside_actors(document))
    homes = next(filter(None, ([head for head, keys in group if key in keys] for group in groups)), None)
    if homes is None:
        return error
    rest = error.found.removeprefix(_UNKNOWN) if error.found.startswith(_UNKNOWN) else ""
    found = f"a key of {' or '.join(dict.fromkeys(homes))}{rest}"
    return attrs.evolve(error, found=found, allowed=error.allowed.partition(_SLIP)[0])


def _of_actor(name: str, table: Any) -> _Tables:
    where, entry = f"actor.{name}", _as_table(table)
    role = str(entry.get("role"))
    if role == GATEWAY:
        yield from _tables(where, GatewayTable)
    elif role in tables.ACTORS:
        yield from _of_role(where, role)
        with suppress(SettingsError):
            target = _as_table(entry.get("mapper")).get("name")
            mapper = find_mapper(target if isinstance(target, str) else tables.MAPPERS[role], role, where)
            yield from _tables(f"{where}.mapper", getattr(mapper, "Settings", None))
        for driver, limits in _as_table(entry.get("driver")).items():
            with suppress(SettingsError):
                factory = driver_factory(str(_as_table(limits).get("kind")), where)
                yield from _tables(f"{where}.driver.{driver}", factory.Settings)


def _as_table(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _of_role(where: str, role: str) -> _Tables:
    yield from _tables(where, tables.ACTORS[role])
    yield from _tables(f"{where}.settings", tables.SETTINGS[role])
    if "driver" in {field.name for field in setting_fields(tables.ACTORS[role])}:
        yield from _tables(f"{where}.driver.DRIVER", tables.DriverSpec)


def _beside_actors(document: Mapping[str, Any]) -> _Tables:
    yield from _tables("deployment", tables.DeploymentTable)
    yield from _tables("peer.NAME", tables.PeerSpec)
    if "emulation" in document:
        yield from _tables("emulation", EmulationSpec)


def _of_all() -> _Tables:
    all_three = "[{}] of guests, brokers and authorities"
    yield from _tables("actor.NAME", tables.ActorTable, all_three)
    yield from _tables("actor.NAME.settings", ActorSettings, all_three)


def _of_roles() -> _Tables:
    for role in tables.ACTORS:
        for head, keys in _of_role("actor.NAME", role):
            yield f"{head} of role {role}", keys
    for head, keys in _tables("actor.NAME", GatewayTable):
        yield f"{head} of role {GATEWAY}", keys


def _tables(where: str, type_: Any, head: str = "[{}]") -> _Tables:
    """The table ``where``, and those in it, as the attrs classes say that stand in its type."""
    if isinstance(type_, type) and attrs.has(type_):
        fields = {field.alias or field.name: field.type for field in setting_fields(type_)}
        yield head.format(where), set(fields)
        for name, inner in fields.items():
            yield from _tables(f"{where}.{name}", inner)
        return
    origin, arguments = get_origin(type_), get_args(type_)
    if origin is Mapping:
        where, arguments = f"{where}.NAME", arguments[1:]
    for inner in arguments:
        yield from _tables(where, inner, "[[{}]]" if origin is tuple else head)
