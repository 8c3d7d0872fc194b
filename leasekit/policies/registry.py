"""Mappers by name: those that come with leasekit, those that other packages bring, and classes in modules and files.

A mapper class follows one convention, whoever wrote it: it has the method of its role, an attrs class ``Settings`` as
an attribute if it has settings (its constructor then takes an instance of it), and ``needs_signal = True`` if it
follows a load signal, or ``needs_jobs = True`` if it replays jobs (its constructor then takes ``signal=``, or
``jobs=``, as well). Of a signal it sees what was, up to each turn, or all if it says ``needs_future = True``.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

import attrs

from leasekit.core.settings import SettingsError, expect_one_of, structure
from leasekit.core.signals import SignalSoFar

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP: Final = "leasekit.mappers"
"""The entry point group in which a package names its mappers."""

METHODS: Final[Mapping[str, str]] = {"broker": "allocate", "authority": "assign", "guest": "plan"}
"""What a mapper of each role must have."""

BUILT_IN: Final[Mapping[str, Mapping[str, str]]] = {
    "broker": {
        "backfill": "leasekit.policies.broker.waiting:Backfill",
        "best_fit": "leasekit.policies.broker.fcfs:BestFit",
        "coallocation": "leasekit.policies.broker.coallocate:Coallocation",
        "fair_share": "leasekit.policies.broker.fair_share:FairShare",
        "fcfs": "leasekit.policies.broker.fcfs:Fcfs",
        "first_fit": "leasekit.policies.broker.fcfs:FirstFitBroker",
        "load_balanced": "leasekit.policies.broker.fcfs:LoadBalanced",
        "preemption": "leasekit.policies.broker.preemption:PreemptionMapper",
        "priority": "leasekit.policies.broker.waiting:Priority",
        "random": "leasekit.policies.broker.fcfs:Random",
        "spot": "leasekit.policies.broker.spot:SpotMapper",
        "timetable": "leasekit.policies.broker.fcfs:TimetableMapper",
        "worst_fit": "leasekit.policies.broker.fcfs:WorstFit",
    },
    "authority": {
        "energy": "leasekit.policies.authority.energy:EnergyManager",
        "filter_and_weigh": "leasekit.policies.authority.weighing:WeighingMapper",
        "first_fit": "leasekit.policies.authority.first_fit:FirstFit",
        "preemption": "leasekit.policies.authority.preemption:HostPreemptionMapper",
        "retry": "leasekit.policies.authority.preemption:RetryMapper",
        "yield": "leasekit.policies.authority.yields:YieldMapper",
    },
    "guest": {
        "coallocating": "leasekit.policies.guest.coallocating:Coallocating",
        "load_following": "leasekit.policies.guest.load_following:LoadFollowing",
        "manual": "leasekit.policies.guest.manual:Manual",
        "replay": "leasekit.policies.guest.replaying:Replay",
        "static": "leasekit.policies.guest.static:StaticDemand",
        "users": "leasekit.policies.guest.replaying:ThinkingUsers",
    },
}
"""The mappers that come with leasekit, by role and name."""

PART_METHODS: Final[Mapping[str, str]] = {"forecast": "forecast"}
"""Parts of mappers that are plug-ins themselves, by what they are, and what each must have."""

PARTS: Final[Mapping[str, Mapping[str, str]]] = {
    "forecast": {
        "ewma": "leasekit.policies.authority.energy_plan:Ewma",
        "last": "leasekit.policies.authority.energy_plan:LastValue",
    },
}
"""The parts that come with leasekit."""

_METHODS: Final = {**METHODS, **PART_METHODS}
_BUILT_IN: Final = {**BUILT_IN, **PARTS}

NO_MAPPER: Final = "it is no mapper of role"
_FORMS: Final = "or module:Class, or path/to/file.py:Class"


def known_mappers(role: str) -> list[str]:
    """The names that a mapper of this role can have: the built-in ones, and all that packages bring, sorted.

    A package's entry point doesn't say its role; that is found out when it is loaded.
    """
    return sorted({*_BUILT_IN[role], *(point.name for point in _entry_points())})


def _entry_points() -> Iterable[EntryPoint]:
    from importlib.metadata import entry_points  # slow to import, and few daemons have mappers of other packages

    return entry_points(group=GROUP)


def make_mapper(target: str, role: str, settings: Mapping[str, Any], where: str, extras: Mapping[str, Any]) -> Any:
    """The mapper that ``target`` names, for an actor of ``role``, with its settings: see :func:`mapper_maker`."""
    return mapper_maker(target, role, settings, where, extras)()


def make_part(kind: str, target: str, settings: Mapping[str, Any], where: str) -> Any:
    """A part of a mapper that is a plug-in itself (:data:`PARTS`), found as mappers are: by a name,
    ``module:Class`` or ``path/to/file.py:Class``. Raises ``SettingsError``.
    """
    return mapper_maker(target, kind, settings, where, {})()


def mapper_maker(
    target: str, role: str, settings: Mapping[str, Any], where: str, extras: Mapping[str, Any]
) -> Callable[[], Any]:
    """What makes the mapper that ``target`` names, for an actor of ``role``, with its settings; a new one each time.

    ``target`` is a name (see :func:`known_mappers`), ``module:Class`` or ``path/to/file.py:Class``. ``extras`` are what
    the shell has for it: ``signal`` where the deploy file names one. ``where`` is what errors call the table. Raises
    ``SettingsError``, one line for each fault.
    """
    kind = find_mapper(target, role, where)
    arguments, errors = _extras(kind, target, where, extras)
    made: tuple[Any, ...] = ()
    try:
        made = _settings(kind, target, settings, where)
    except SettingsError as error:
        errors = [*error.errors, *errors]
    if errors:
        raise SettingsError(errors)
    return lambda: _guarded(lambda: kind(*made, **arguments), f"{where}: mapper {target!r} can't be made")


def find_mapper(target: str, role: str, where: str) -> type[Any]:
    """The class that ``target`` names, checked to be a mapper of ``role``. Raises ``SettingsError``."""
    found = _load(target, role, f"{where}.name")
    method = _METHODS[role]
    if not isinstance(found, type) or not callable(getattr(found, method, None)):
        raise SettingsError([f"{where}.name: found {target!r}, which has no method {method}(): {NO_MAPPER} {role}"])
    return found


def is_own(mapper: Any) -> bool:
    """Whether the mapper comes with leasekit, and the ``parts`` that are plugged into it do as well."""
    return _comes_along(mapper) and all(map(_comes_along, getattr(mapper, "parts", ())))


def switched_types(mapper: Any, where: str) -> list[str]:
    """The types whose power a mapper says that it decides of (``switches``). Raises ``SettingsError``."""
    found = _guarded(lambda: getattr(mapper, "switches", ()), f"{where}: what the mapper switches can't be told")
    # Whoever wrote the mapper may mean something else by that name.
    named = found if isinstance(found, list | tuple | set | frozenset) else ()
    return sorted({type_ for type_ in named if isinstance(type_, str)})


def _comes_along(thing: Any) -> bool:
    return type(thing).__module__.partition(".")[0] == __name__.partition(".")[0]


def _settings(kind: type[Any], target: str, settings: Mapping[str, Any], where: str) -> tuple[Any, ...]:
    """The arguments that the settings make: one, or none for a class that has no settings."""
    cls = getattr(kind, "Settings", None)
    if cls is None:
        unknown = [f"{where}.{key}: found an unknown key, mapper {target!r} has no settings" for key in settings]
        if unknown:
            raise SettingsError(unknown)
        return ()
    if not isinstance(cls, type) or not attrs.has(cls):
        raise SettingsError([f"{where}.name: {target!r}: its Settings is {cls!r}, expected an attrs class"])
    return (structure(cls, settings, where),)


def _extras(kind: type[Any], target: str, where: str, extras: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The keyword arguments of the constructor, and what is wrong with them."""
    wrong = []
    for name, called, does in (("signal", "a load signal", "follows"), ("jobs", "jobs", "replays")):
        needs = bool(getattr(kind, f"needs_{name}", False))
        if needs and name not in extras:
            one = "one" if name == "signal" else "some"
            wrong.append(f"{where}.{name}: found nothing, expected {called}: mapper {target!r} {does} {one}")
        if not needs and name in extras:
            wrong.append(f"{where}.{name}: found {called}, mapper {target!r} {does} none")
    given = dict(extras)
    if isinstance(load := given.get("signal"), SignalSoFar) and sees_ahead(kind):
        given["signal"] = load.whole()
    return ({} if wrong else given), wrong


def sees_ahead(mapper: object) -> bool:
    """Whether a mapper, or its class, says that it is to see what is to come of the load that it follows."""
    return bool(getattr(mapper, "needs_future", False))


def _load(target: str, role: str, where: str) -> Any:
    place, colon, name = target.rpartition(":")
    if not colon:
        return _load_named(target, role, where)
    failed = f"{where}: mapper {target!r} can't be imported"
    if place.endswith(".py"):
        module = _load_file(Path(place), f"{where}: found {target!r}", failed)
    else:
        module = _load_module(place, failed)
    found = module
    for part in name.split("."):
        if not hasattr(found, part):
            able = [key for key, value in vars(module).items() if _is_mapper(value, role)]
            words = (
                expect_one_of(name, able) if able else f"expected a class in it that has the method {_METHODS[role]}()"
            )
            raise SettingsError([f"{where}: found {name!r} ({place} has no such class), {words}"])
        found = getattr(found, part)
    return found


def _load_module(name: str, failed: str) -> ModuleType:
    try:
        found: ModuleType = _guarded(lambda: importlib.import_module(name), failed)
    except SettingsError as error:
        missing = error.__cause__
        if not isinstance(missing, ModuleNotFoundError) or name.partition(".")[0] != missing.name:
            raise
        hint = "a file is named path/to/file.py:Class"
        if any(name in mappers for mappers in _BUILT_IN.values()):
            hint = f"{name!r} is a mapper itself; settings behind a colon are written KEY=VALUE"
        raise SettingsError([f"{failed}: there is no module {missing.name!r}; {hint}"]) from missing
    return found


def _load_named(target: str, role: str, where: str) -> Any:
    built_in = _BUILT_IN[role].get(target)
    if built_in is not None:
        return _load(built_in, role, where)
    if target.endswith(".py"):
        return _only_one(target, role, where)
    points = [point for point in _entry_points() if point.name == target]
    if not points:
        raise SettingsError([f"{where}: found {target!r}, {expect_one_of(target, known_mappers(role))}, {_FORMS}"])
    if len({point.value for point in points}) > 1:
        bring = ", ".join(f"{_package(point)} ({point.value})" for point in points)
        raise SettingsError([f"{where}: found {target!r}, which several packages bring: {bring}; write module:Class"])
    return _guarded(points[0].load, f"{where}: mapper {target!r} of {_package(points[0])} can't be imported")


def _only_one(target: str, role: str, where: str) -> Any:
    """The mapper of a file that has one of this role: a class of its own, whose name begins with no underscore."""
    module = _load_file(Path(target), f"{where}: found {target!r}", f"{where}: mapper {target!r} can't be imported")
    able = [
        value
        for key, value in vars(module).items()
        if _is_mapper(value, role) and value.__module__ == module.__name__ and not key.startswith("_")
    ]
    if len(able) == 1:
        return able[0]
    if not able:
        lacks = f"{where}: found {target!r}, which has no class with {_METHODS[role]}()"
        raise SettingsError([f"{lacks}: {NO_MAPPER} {role}"])
    named = " or ".join(f"{target}:{one.__name__}" for one in able)
    raise SettingsError([f"{where}: found {target!r}, which has several mappers of role {role}, expected {named}"])


def _package(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else "an unknown package"


def _is_mapper(value: Any, role: str) -> bool:
    return isinstance(value, type) and callable(getattr(value, _METHODS[role], None))


def _load_file(path: Path, found: str, failed: str) -> ModuleType:
    """A file as a module of its own, read afresh each time, so that a change is seen."""
    if not path.is_file():
        raise SettingsError(
            [f"{found} (there is no file {path}), expected a file that is there: path/to/file.py:Class"]
        )
    # attrs looks a class's module up by name to read its annotations: it must be registered.
    name = f"leasekit_mapper_{path.stem}_{sha256(str(path.resolve()).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None, "a path that ends in .py has a loader"
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    loader = spec.loader
    try:
        _guarded(lambda: loader.exec_module(module), failed)
    except SettingsError:
        del sys.modules[name]
        raise
    return module


def _guarded(call: Callable[[], Any], failed: str) -> Any:
    """What foreign code makes; whatever it raises becomes one line that says where."""
    try:
        return call()
    except SettingsError as error:
        raise SettingsError([f"{failed}: {line}" for line in error.errors]) from error
    except (Exception, SystemExit) as error:
        # Foreign code: whatever it raises is the user's to see.
        raise SettingsError([f"{failed}: {_told(error)}"]) from error


def _told(error: BaseException) -> str:
    text = " ".join(f"{type(error).__name__}: {error}".split())
    frame = traceback.extract_tb(error.__traceback__)[-1]
    here = frame.filename == __file__ or frame.filename.startswith("<frozen")
    return text if here else f"{text} ({Path(frame.filename).name}, line {frame.lineno})"
