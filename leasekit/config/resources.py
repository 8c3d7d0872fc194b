"""What a deploy file says of resources: a site's units and delegations, and which driver serves which type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import attrs

from leasekit.actors.settings import DelegationSpec, UnitGroup
from leasekit.config import tables
from leasekit.config.context import Context
from leasekit.config.deployment import DriverSpec
from leasekit.config.errors import one_of
from leasekit.core.claims.claim import DEGREE_ONE
from leasekit.core.settings import structure
from leasekit.drivers.names import UNIT_ID
from leasekit.drivers.null import NullSettings
from leasekit.drivers.registry import check_settings

NULL: Final = "null"

_LIMITS: Final = tuple(field.name for field in attrs.fields(tables.DriverTable))


# -- a site's units and delegations ------------------------------------------------------------------------------


def resolve_site(
    context: Context, name: str, table: tables.AuthorityTable
) -> tuple[tuple[UnitGroup, ...], tuple[DelegationSpec, ...]]:
    """The inventory and the delegations of a site."""
    where = f"actor.{name}"
    groups: list[UnitGroup] = []
    owner: dict[str, str] = {}
    for index, entry in enumerate(table.inventory):
        key = f"{where}.inventory[{index}]"
        names = _unit_names(context, entry, key)
        twice = sorted({unit for unit in entry.names if entry.names.count(unit) > 1})
        if twice:
            context.faults.add(key, f"unit {twice[0]!r} twice", "names that are unique at the site")
        for unit in names:
            if unit in owner:
                context.faults.add(key, f"unit {unit!r}, which {owner[unit]} has", "names that are unique at the site")
                break  # the first one says it: the others are mostly the same mistake
        owner.update(dict.fromkeys(names, key))
        earlier = next((other for other in table.inventory[:index] if other.type == entry.type), None)
        if earlier is not None and (earlier.properties != entry.properties or earlier.driver != entry.driver):
            context.faults.add(
                f"{key}.type",
                f"{entry.type!r} with other properties or another driver than above",
                "units that differ to be of different types, or to differ in unit_properties",
            )
        both = sorted(entry.properties.keys() & entry.unit_properties.keys())
        if both:
            context.faults.add(f"{key}.unit_properties", f"{both[0]!r}, which properties has too", "it in one of them")
        own = dict(entry.unit_properties)
        groups.append(UnitGroup(type=entry.type, names=names, properties=dict(entry.properties), own=own))
    return tuple(groups), _delegations(context, where, table, groups)


def _unit_names(context: Context, entry: tables.InventoryTable, key: str) -> tuple[str, ...]:
    if (entry.units is None) == (not entry.names):
        found = "both" if entry.names else "neither"
        context.faults.add(key, f"{found} of units and names", "units = N (with a prefix), or names = [...]")
        return ()
    if entry.names and entry.prefix:
        context.faults.add(f"{key}.prefix", repr(entry.prefix), "no prefix where names says the whole names")
    prefix = entry.prefix or f"{entry.type}-"
    names = entry.names or tuple(f"{prefix}{index}" for index in range(entry.units or 0))
    for name in names if entry.names else names[-1:]:
        if UNIT_ID.fullmatch(name) is None:
            allowed = "1 to 63 letters, digits, dots, dashes and underscores, the first a letter or digit"
            context.faults.add(f"{key}.{'names' if entry.names else 'prefix'}", f"the unit name {name!r}", allowed)
            break
    return names


def _delegations(
    context: Context, where: str, table: tables.AuthorityTable, groups: list[UnitGroup]
) -> tuple[DelegationSpec, ...]:
    units = {group.type: sum(len(other.names) for other in groups if other.type == group.type) for group in groups}
    made: list[DelegationSpec] = []
    for index, entry in enumerate(table.delegation):
        key = f"{where}.delegation[{index}]"
        context.check_reference(f"{key}.broker", entry.broker, "broker")
        if entry.site:
            context.faults.add(f"{key}.site", repr(entry.site), "no site: a site gives its own units")
        if entry.type not in units:
            allowed = one_of(entry.type, units)
            context.faults.add(f"{key}.type", repr(entry.type), f"a type of the inventory, {allowed}")
        if any((other.broker, other.type) == (entry.broker, entry.type) for other in made):
            context.faults.add(
                key, f"{entry.type!r} for {entry.broker!r} again", "one delegation of a type to a broker"
            )
        made.append(
            DelegationSpec(
                broker=entry.broker,
                type=entry.type,
                units=units.get(entry.type, 0) if entry.units is None else entry.units,
                length=entry.length,
                degree=round(entry.degree * DEGREE_ONE),
            )
        )
    for type_, there in units.items():
        given = [spec for spec in made if spec.type == type_]
        most = there * max((spec.degree for spec in given), default=DEGREE_ONE) // DEGREE_ONE
        if sum(spec.units for spec in given) > most:
            context.faults.add(
                f"{where}.delegation",
                f"{sum(spec.units for spec in given)} units of {type_!r} in all",
                f"at most {most}: the inventory has {there} (a higher degree allows more)",
            )
    return tuple(made)


def resolve_given(context: Context, name: str, table: tables.BrokerTable) -> tuple[DelegationSpec, ...]:
    """What a broker gives to other brokers. Whether it ever has that much shows when its sites have delegated."""
    where = f"actor.{name}"
    made: list[DelegationSpec] = []
    for index, entry in enumerate(table.delegation):
        key = f"{where}.delegation[{index}]"
        context.check_reference(f"{key}.broker", entry.broker, "broker")
        if entry.broker == name:
            context.faults.add(f"{key}.broker", repr(name), "another broker than itself")
        if entry.site:
            context.check_reference(f"{key}.site", entry.site, "authority")
        if entry.units is None:
            context.faults.add(f"{key}.units", "nothing", "how many units it gives")
        if any((other.broker, other.type, other.site) == (entry.broker, entry.type, entry.site) for other in made):
            context.faults.add(key, f"{entry.type!r} for {entry.broker!r} again", "one delegation of a type and site")
        made.append(
            DelegationSpec(
                broker=entry.broker, type=entry.type, units=entry.units or 1, length=entry.length,
                degree=round(entry.degree * DEGREE_ONE), site=entry.site,
            )
        )  # fmt: skip
    return tuple(made)


# -- drivers -----------------------------------------------------------------------------------------------------


def resolve_drivers(
    context: Context, name: str, table: tables.ActorTable
) -> tuple[dict[str, DriverSpec], dict[str, str], str]:
    """The drivers by name, the driver's name by type, and that of the types which have none of their own (or empty)."""
    if not isinstance(table, tables.AuthorityTable | tables.GuestTable):
        return {}, {}, ""
    where = f"actor.{name}.driver"
    specs: dict[str, DriverSpec] = {}
    types: dict[str, tuple[str, ...]] = {}
    for driver, entry in table.driver.items():
        made = _driver(context, name, driver, entry, f"{where}.{driver}")
        if made is not None:
            specs[driver], types[driver] = made
    driver_of: dict[str, str] = {}
    for driver, served in types.items():
        for type_ in served:
            if type_ in driver_of:
                context.faults.add(f"{where}.{driver}.types", repr(type_), f"types that {driver_of[type_]} has not")
            driver_of[type_] = driver
    rest = [driver for driver, served in types.items() if not served]
    if isinstance(table, tables.AuthorityTable):
        driver_of = _of_inventory(context, name, table, driver_of, rest)
        other_types = ""
    else:
        _check_types(context, where, types)
        if len(rest) > 1:
            context.faults.add(f"{where}.{rest[1]}", "no types, as in " + rest[0], "types in all drivers but one")
        other_types = rest[0] if rest else NULL
    if NULL not in specs and NULL in (*driver_of.values(), other_types):
        specs[NULL] = _null(context, name)
    return specs, driver_of, other_types


def _of_inventory(
    context: Context, name: str, table: tables.AuthorityTable, driver_of: Mapping[str, str], rest: list[str]
) -> dict[str, str]:
    """A type's driver at a site: the one that its inventory names, else the one that names the type, else the only
    one.
    """
    made: dict[str, str] = {}
    for index, entry in enumerate(table.inventory):
        driver = entry.driver or driver_of.get(entry.type, "")
        if not driver:
            driver = rest[0] if len(rest) == 1 else NULL
            if len(rest) > 1:
                context.faults.add(f"actor.{name}.inventory[{index}].driver", "nothing", f"one of: {', '.join(rest)}")
        elif driver not in table.driver and driver != NULL:
            allowed = one_of(driver, {*table.driver, NULL})
            context.faults.add(
                f"actor.{name}.inventory[{index}].driver", f"{driver!r}, which is no driver here", allowed
            )
        made[entry.type] = driver
    return made


def _check_types(context: Context, where: str, types: Mapping[str, tuple[str, ...]]) -> None:
    """A guest's types must be there, as far as this file can know: sites in other files have what they have."""
    if any(peer.role != "guest" for peer in context.peers.values()):
        return
    known = {
        entry.type
        for actor in context.actors.values()
        if isinstance(actor, tables.AuthorityTable)
        for entry in actor.inventory
    }
    for driver, served in types.items():
        for type_ in served:
            if known and type_ not in known:
                allowed = one_of(type_, known)
                context.faults.add(f"{where}.{driver}.types", f"{type_!r}, which no site has", allowed)


def _driver(
    context: Context, actor: str, name: str, table: Mapping[str, Any], where: str
) -> tuple[DriverSpec, tuple[str, ...]] | None:
    faults, state = context.faults, context.state
    if not tables.NAME.fullmatch(name):
        faults.add(where, f"the name {name!r}", tables.NAME_ALLOWED)
    limits = {key: value for key, value in table.items() if key in _LIMITS}
    settings = {key: value for key, value in table.items() if key not in _LIMITS}
    head = faults.attempt(where, lambda: structure(tables.DriverTable, limits, where))
    if head is None:
        return None
    faults.attempt(where, lambda: check_settings(head.kind, settings, where, base=state))
    seed = context.seed_for(f"driver/{actor}/{name}")
    if head.kind == NULL:
        settings = {"seed": seed, **settings}
        if head.emulated is not None:
            faults.add(f"{where}.emulated", "a table", "nothing for a null driver, which is emulated as it is")
        emulated = faults.attempt(where, lambda: structure(NullSettings, settings, where))
    else:
        inside = f"{where}.emulated"
        emulated = faults.attempt(
            inside, lambda: structure(NullSettings, {"seed": seed, **(head.emulated or {})}, inside)
        )
    spec = DriverSpec(
        name=name,
        kind=head.kind,
        settings=settings,
        timeout=head.timeout,
        retries=head.retries,
        concurrency=head.concurrency,
        emulated=emulated or NullSettings(),
        where=where,
    )
    return spec, head.types


def _null(context: Context, actor: str) -> DriverSpec:
    """The driver of types for which the file names none: it takes no time."""
    defaults = tables.DriverTable(kind=NULL)
    seed = context.seed_for(f"driver/{actor}/{NULL}")
    return DriverSpec(
        name=NULL,
        kind=NULL,
        settings={"seed": seed},
        timeout=defaults.timeout,
        retries=defaults.retries,
        concurrency=defaults.concurrency,
        emulated=NullSettings(seed=seed),
        where=f"actor.{actor}.driver.{NULL}",
    )
