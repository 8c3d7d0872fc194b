"""What all parts of a deploy file's resolution share, and what it says of units: inventories, delegations, drivers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import attrs

from leasekit.actors.settings import DelegationSpec, UnitGroup
from leasekit.config import tables
from leasekit.config.emulation import EmulationSpec
from leasekit.config.errors import Faults, one_of
from leasekit.config.tables import DriverSpec
from leasekit.core.claims.claim import DEGREE_ONE
from leasekit.core.drivers import UNIT_ID, UNIT_ID_ALLOWED, OnlyUnits
from leasekit.core.leases.power import power_driver
from leasekit.core.properties import CAPACITY, CAPS, MIGRATES, SAVES, THOUSAND, host_attributes
from leasekit.core.settings import setting_fields
from leasekit.core.time import format_duration
from leasekit.drivers.null import NullSettings
from leasekit.drivers.registry import TIMEOUT, action_timeout, capabilities, driver_names, only_units


@attrs.define(slots=True, eq=False)
class Context:
    """One file. ``actors`` and ``peers`` hold the tables that could be read, ``unreadable`` the names of the others."""

    file: Path
    state: Path
    faults: Faults
    actors: Mapping[str, tables.ActorTable] = attrs.Factory(dict)
    peers: Mapping[str, tables.PeerSpec] = attrs.Factory(dict)
    unreadable: AbstractSet[str] = frozenset()
    emulation: EmulationSpec | None = None

    def names_of(self, role: str) -> list[str]:
        """The actors and peers of a role."""
        actors = [name for name, table in self.actors.items() if table.role == role]
        return actors + [name for name, table in self.peers.items() if table.role == role]

    def check_reference(self, where: str, name: str, role: str) -> None:
        """Note a fault if ``name`` is no actor or peer of ``role``."""
        known = self.names_of(role)
        if name not in known and name not in self.unreadable:
            self.faults.add(where, f"{name!r}, which is no {role} here", one_of(name, known))

    def seed_for(self, thing: str) -> int:
        """The seed of one thing that draws: another for each name, so that two of a kind do not behave the same."""
        seed = 0 if self.emulation is None else self.emulation.seed
        return int.from_bytes(sha256(f"{seed}/{thing}".encode()).digest()[:4], "big")


NULL: Final = "null"
NAMED_MAX: Final = 3
"""How many of several units a fault names."""

_LIMITS: Final = {field.name for field in setting_fields(DriverSpec)}


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
        if SAVES in entry.properties:
            context.faults.add(f"{key}.properties.{SAVES}", "a property", "save = true at the driver, which sets it")
        if earlier is not None and bool(earlier.capacity) != bool(entry.capacity):
            allowed = "capacity for all units of a type, or for none"
            context.faults.add(f"{key}.capacity", "units with and without it", allowed)
        if entry.capacity and entry.type in _powered(table):
            context.faults.add(f"{key}.capacity", "hosts that a driver switches", "no powers for hosts: they stay on")
        has = host_attributes(entry.capacity, round(entry.least_yield * THOUSAND)) if entry.capacity else {}
        own, power = {**entry.unit_properties, **has}, entry.type in _powered(table)
        properties = {**entry.properties, **_abilities(table, entry)}
        groups.append(UnitGroup(type=entry.type, names=names, properties=properties, own=own, power=power))
    units = {group.type: sum(len(other.names) for other in groups if other.type == group.type) for group in groups}
    return tuple(groups), resolve_given(context, name, table.delegation, units)


def _powered(table: tables.AuthorityTable) -> set[str]:
    """The types whose power a driver switches, as far as the tables can be read: what is wrong is told elsewhere."""
    named = [entry.get("powers", ()) for entry in table.driver.values()]
    return {type_ for powers in named if isinstance(powers, list | tuple) for type_ in powers if isinstance(type_, str)}


def _abilities(table: tables.AuthorityTable, entry: tables.InventoryTable) -> dict[str, str]:
    """What the driver of a type is told to do, or can do, as resource properties: to save units; of hosts, to cap and
    to migrate machines.
    """
    driver = _driver_of(table, entry)
    found = {SAVES: "true"} if driver.get("save") is True else {}
    kind = driver.get("kind", NULL)
    if entry.capacity and kind in driver_names():
        able = capabilities(kind, "")
        found |= {key: "true" for name, key in (("cap", CAPS), ("migrate", MIGRATES)) if name in able}
    return found


def _driver_of(table: tables.AuthorityTable, entry: tables.InventoryTable) -> Mapping[str, Any]:
    """The driver of a type, as far as the tables can be read."""
    named = entry.driver or next((name for name, one in table.driver.items() if entry.type in _named(one, "types")), "")
    rest = [name for name, one in table.driver.items() if not _named(one, "types") and not _named(one, "powers")]
    driver = named or (rest[0] if len(rest) == 1 else "")
    return table.driver.get(driver, {})


def _named(driver: Mapping[str, Any], key: str) -> list[Any]:
    found = driver.get(key, ())
    return list(found) if isinstance(found, list | tuple) else []


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
            where = f"{key}.{'names' if entry.names else 'prefix'}"
            context.faults.add(where, f"the unit name {name!r}", UNIT_ID_ALLOWED)
            break
    return names


def resolve_given(
    context: Context, name: str, entries: Sequence[tables.DelegationTable], units: Mapping[str, int] | None = None
) -> tuple[DelegationSpec, ...]:
    """What a site gives to brokers of the ``units`` that it has of each type; or, without ``units``, a broker to other
    brokers: whether it ever has that much shows when its sites have delegated.
    """
    faults, made = context.faults, list[DelegationSpec]()
    for index, entry in enumerate(entries):
        key = f"actor.{name}.delegation[{index}]"
        context.check_reference(f"{key}.broker", entry.broker, "broker")
        if units is not None:
            if entry.site:
                faults.add(f"{key}.site", repr(entry.site), "no site: a site gives its own units")
            if entry.type not in units:
                faults.add(f"{key}.type", repr(entry.type), f"a type of the inventory, {one_of(entry.type, units)}")
        else:
            if entry.broker == name:
                faults.add(f"{key}.broker", repr(name), "another broker than itself")
            if entry.site:
                context.check_reference(f"{key}.site", entry.site, "authority")
            if entry.units is None:
                faults.add(f"{key}.units", "nothing", "how many units it gives")
        if any((other.broker, other.type, other.site) == (entry.broker, entry.type, entry.site) for other in made):
            faults.add(key, f"{entry.type!r} for {entry.broker!r} again", "one delegation of a type and site")
        renew, period = entry.renew or 0, entry.renew_for or 0
        if period and not renew:
            faults.add(f"{key}.renew_for", format_duration(period), "renew beside it: how long before the end")
        if renew >= min(entry.length, period or entry.length):
            allowed = "less than length, and than renew_for: it is before the end of each"
            faults.add(f"{key}.renew", format_duration(renew), allowed)
        made.append(
            DelegationSpec(
                broker=entry.broker, type=entry.type, units=entry.units or 0, site=entry.site,
                length=entry.length, degree=round(entry.degree * DEGREE_ONE), renew=renew, renew_for=period,
            )
        )  # fmt: skip
    for type_, there in (units or {}).items():
        given = [spec for spec in made if spec.type == type_]
        most = there * max((spec.degree for spec in given), default=DEGREE_ONE) // DEGREE_ONE
        in_all = sum(spec.units or there for spec in given)
        if in_all > most:
            found = f"{in_all} units of {type_!r} in all"
            allowed = f"at most {most}: the inventory has {there} (a higher degree allows more)"
            faults.add(f"actor.{name}.delegation", found, allowed)
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
    for driver, entry in table.driver.items():
        made = _driver(context, name, driver, entry, f"{where}.{driver}")
        if made is not None:
            specs[driver] = made
    driver_of: dict[str, str] = {}
    for driver, spec in specs.items():
        for type_ in spec.types:
            if type_ in driver_of:
                context.faults.add(f"{where}.{driver}.types", repr(type_), f"types that {driver_of[type_]} has not")
            driver_of[type_] = driver
    rest = [driver for driver, spec in specs.items() if not spec.types and not spec.powers]
    switches = _switches(context, where, table, specs)
    if isinstance(table, tables.AuthorityTable):
        driver_of = _of_inventory(context, name, table, driver_of, rest)
        other_types = ""
    else:
        _check_types(context, where, specs)
        if len(rest) > 1:
            context.faults.add(f"{where}.{rest[1]}", "no types, as in " + rest[0], "types in all drivers but one")
        other_types = rest[0] if rest else NULL
    if NULL not in specs and NULL in (*driver_of.values(), other_types):
        specs[NULL] = _null(context, name)
    return specs, {**driver_of, **switches}, other_types


def _switches(
    context: Context, where: str, table: tables.ActorTable, specs: Mapping[str, DriverSpec]
) -> dict[str, str]:
    """Which driver switches the units of a type, under the name of :func:`~leasekit.core.leases.power.power_driver`."""
    there = [entry.type for entry in table.inventory] if isinstance(table, tables.AuthorityTable) else []
    made: dict[str, str] = {}
    for driver, spec in specs.items():
        for type_ in spec.powers:
            key = f"{where}.{driver}.powers"
            if type_ not in there:
                allowed = one_of(type_, there) if there else "no powers: they are for a site's units"
                context.faults.add(key, f"{type_!r}, which is no type of the inventory", allowed)
            other = made.setdefault(power_driver(type_), driver)
            if other != driver:
                context.faults.add(key, repr(type_), f"types that {other} has not")
    return made


def _of_inventory(
    context: Context, name: str, table: tables.AuthorityTable, driver_of: Mapping[str, str], rest: list[str]
) -> dict[str, str]:
    """A type's driver at a site: the one that its inventory names, else the one that names the type, else the only
    one.
    """
    made: dict[str, str] = {}
    there = [entry.type for entry in table.inventory]
    for type_, driver in driver_of.items():
        if type_ not in there:
            found = f"{type_!r}, which is no type of the inventory"
            context.faults.add(f"actor.{name}.driver.{driver}.types", found, one_of(type_, there))
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


def _check_types(context: Context, where: str, specs: Mapping[str, DriverSpec]) -> None:
    """A guest's types must be there, as far as this file can know: sites in other files have what they have."""
    if any(peer.role != "guest" for peer in context.peers.values()):
        return
    known = {
        entry.type
        for actor in context.actors.values()
        if isinstance(actor, tables.AuthorityTable)
        for entry in actor.inventory
    }
    for driver, spec in specs.items():
        for type_ in spec.types:
            if known and type_ not in known:
                allowed = one_of(type_, known)
                context.faults.add(f"{where}.{driver}.types", f"{type_!r}, which no site has", allowed)


def _driver(context: Context, actor: str, name: str, table: Mapping[str, Any], where: str) -> DriverSpec | None:
    faults = context.faults
    if not tables.NAME.fullmatch(name):
        faults.add(where, f"the name {name!r}", tables.NAME_ALLOWED)
    limits = {key: value for key, value in table.items() if key in _LIMITS}
    settings = {key: value for key, value in table.items() if key not in _LIMITS}
    seed, is_null = {"seed": context.seed_for(f"driver/{actor}/{name}")}, table.get("kind") == NULL
    if is_null:
        if "emulated" in limits:
            faults.add(f"{where}.emulated", "a table", "nothing for a null driver, which is emulated as it is")
        settings = {**seed, **settings}
        limits["emulated"] = faults.structured(NullSettings, settings, where) or NullSettings()
    else:
        emulated = limits.get("emulated", {})
        limits["emulated"] = {**seed, **emulated} if isinstance(emulated, Mapping) else emulated
    spec = faults.structured(DriverSpec, limits, where)
    if spec is None:
        return None
    given = spec.timeout if "timeout" in table else None
    timeout = faults.attempt(where, action_timeout, spec.kind, settings, given, where, base=context.state)
    if spec.save and spec.kind in driver_names() and "save" not in capabilities(spec.kind, where):
        faults.add(f"{where}.save", "true", f"false: a {spec.kind} driver can't save units")
    return attrs.evolve(spec, name=name, settings=settings, where=where, timeout=timeout or TIMEOUT)


def _null(context: Context, actor: str) -> DriverSpec:
    """The driver of types for which the file names none: it takes no time."""
    spec = _driver(context, actor, NULL, {"kind": NULL}, f"actor.{actor}.driver.{NULL}")
    assert spec is not None, "nothing in it can be wrong"
    return spec


# -- what drivers and mappers must know of the inventory -----------------------------------------------------------


def check_units(
    context: Context, inventory: Iterable[UnitGroup], drivers: Mapping[str, DriverSpec], driver_of: Mapping[str, str]
) -> dict[str, tuple[OnlyUnits, ...]]:
    """A driver whose settings say which units it can serve must know all those that it sets up or switches. Returns
    what drivers say, by type.
    """
    units: dict[str, list[str]] = {}
    divided = set[str]()
    found: dict[str, tuple[OnlyUnits, ...]] = {}
    for group in inventory:
        units.setdefault(group.type, []).extend(group.names)
        if any(key.startswith(CAPACITY) for key in group.own):
            divided.add(group.type)
    for name, spec in drivers.items():
        concerned = {
            type_: names
            for type_, names in units.items()
            if name in (driver_of.get(type_), driver_of.get(power_driver(type_)))
        }
        if not concerned:
            continue
        only = context.faults.attempt(spec.where, only_units, spec.kind, spec.settings, spec.where, base=context.state)
        if only is not None:
            found |= {type_: (*found.get(type_, ()), only) for type_ in concerned}
            _check_known(context, spec, only, concerned, divided)
    return found


def _check_known(
    context: Context, spec: DriverSpec, only: OnlyUnits, units: Mapping[str, Sequence[str]], divided: AbstractSet[str]
) -> None:
    for type_, names in units.items():
        missing = {name: what for name in names if (what := only.lacks(name, divided=type_ in divided))}
        if missing:
            more = f" and {len(missing) - NAMED_MAX} more" if len(missing) > NAMED_MAX else ""
            named = ", ".join(map(repr, list(missing)[:NAMED_MAX]))
            context.faults.add(
                f"{spec.where}.{only.key}",
                f"no {next(iter(missing.values()))} for {named}{more} of type {type_!r}",
                "one for each unit that the driver sets up or switches",
            )


def check_switched(context: Context, name: str, table: tables.AuthorityTable, switched: Iterable[str]) -> None:
    """The types whose power a site's mapper decides of must be there, and each must have a driver that switches it."""
    there, powered = [entry.type for entry in table.inventory], _powered(table)
    for type_ in switched:
        key = _key_with(table.mapper, f"actor.{name}.mapper", type_)
        if type_ not in there:
            context.faults.add(key, f"{type_!r}, which is no type of the inventory", one_of(type_, there))
        elif type_ not in powered:
            allowed = f"types that a driver has in its powers ({', '.join(sorted(powered)) or 'none has any'})"
            context.faults.add(key, f"{type_!r}, whose power no driver switches", allowed)


def _key_with(settings: Mapping[str, Any], where: str, value: str) -> str:
    """The key whose list has the value, as far as that can be told: what is found may be said by the mapper itself."""
    keys = [key for key, found in settings.items() if isinstance(found, list) and value in found]
    return f"{where}.{keys[0]}" if keys else where
