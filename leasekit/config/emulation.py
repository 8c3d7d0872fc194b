"""What ``[emulation]`` says: how a deployment is run in virtual time, in which variants, and what is drawn of it."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any, Final, Literal, NamedTuple

import attrs

from leasekit.config.errors import Faults, one_of
from leasekit.config.failing import Failing, FailingCheck
from leasekit.config.instants import instant_setting
from leasekit.core.settings import DurationSetting, SettingsError, resolved
from leasekit.core.time import DAY, MINUTE, SECOND, Duration, Instant, format_duration, parse_duration

PlotKind = Literal[
    "demand_holdings", "guests", "site_usage", "reported", "rmse", "alpha", "fidelity", "purchase", "runs"
]
LogKind = Literal["all", "leases", "guests", "none"]
SEEDS_MAX: Final = 10_000
HORIZON_MAX: Final = 36_525 * DAY
"""A hundred years: the longest emulation."""


@attrs.frozen(kw_only=True)
class RunSpec:
    """``[[emulation.run]]``: the file with the keys of ``set`` replaced; with ``each``, once for each of its values.

    ``set`` and ``each`` map dotted keys to values and to lists of values; keys with spaces between them get the same.
    One variant that comes of it has ``changes``, by dotted keys. Runs of one ``series`` are one curve in pictures over
    runs.
    """

    name: str = ""
    series: str = ""
    set: Mapping[str, Any] = attrs.Factory(dict)
    each: Mapping[str, tuple[Any, ...]] = attrs.Factory(dict)
    changes: Mapping[str, Any] = resolved(attrs.Factory(dict))


@attrs.frozen(kw_only=True)
class PlotSpec:
    """``[[emulation.plot]]``: one picture.

    ``demand_holdings``: each of ``guests`` in every run, one panel each; ``guests``: their holdings stacked, a panel
    for each run; ``site_usage``: every site in every run; ``reported``: what mappers report in every run,
    all or those ``numbers``, each as ``ACTOR.NAME``; ``rmse``, ``alpha``, ``fidelity``: that result of each run
    against the value of the dotted key ``x``, a curve for each series; ``purchase``: what was unserved, waits and what
    lay idle against the units of the group ``x`` (``actor.SITE.inventory.N.units``), with the knee; ``runs``: the
    column ``y`` of the table of runs against its column ``x``. Of runs that differ in their seeds alone the mean is
    drawn, with its 95% interval. ``file`` is the picture's name without suffix.
    Only runs of ``series`` are drawn, all if it is empty.
    """

    kind: PlotKind
    title: str = ""
    x: str = ""
    y: str = ""
    x_label: str = ""
    x_unit: DurationSetting | None = attrs.field(
        default=None, validator=attrs.validators.optional(attrs.validators.ge(1))
    )
    guests: tuple[str, ...] = ()
    numbers: tuple[str, ...] = ()
    series: tuple[str, ...] = ()
    file: str = ""

    def wants(self, run: RunSpec) -> bool:
        """Whether ``run`` belongs into this picture."""
        return not self.series or run.series in self.series

    def x_of(self, document: Mapping[str, Any]) -> float:
        """Where the run with this document stands on the horizontal axis. Raises ``ValueError`` naming the key."""
        return x_value(document, self.x, self.x_unit)


def _check_seeds(_: object, __: object, seeds: int | tuple[int, ...]) -> None:
    if isinstance(seeds, int) and not 1 <= seeds <= SEEDS_MAX:
        raise ValueError(f"there may be 1 to {SEEDS_MAX} seeds")
    if not isinstance(seeds, int) and len(set(seeds)) < len(seeds):
        raise ValueError("each seed may be there once")


@attrs.frozen(kw_only=True)
class EmulationSpec(Failing):
    """``[emulation]``: how to run, and what goes wrong meanwhile. All durations in ms.

    The clock runs from ``start`` to ``start + horizon`` in steps of ``tick``; with ``ticks = "every"`` idle ticks are
    executed too. A mapper's turn that takes longer than ``turn_limit``, on the machine's clock, ends the run.
    Each run is done with each of the ``seeds``: those that are named, or so many from ``seed`` on. ``log`` says what
    goes to the transition log: all, ``leases`` without units, those of ``guests`` alone, or none.
    Results are taken from ``start + warmup`` on, curves sampled every ``sample``. ``runs`` are those that the tables
    ``run`` stand for, at least one.
    """

    horizon: DurationSetting = attrs.field(validator=[attrs.validators.ge(1), attrs.validators.le(HORIZON_MAX)])
    start: Instant = attrs.field(default=0, converter=instant_setting)
    seed: int = 0
    seeds: int | tuple[int, ...] = attrs.field(default=(), validator=_check_seeds)
    tick: DurationSetting = attrs.field(default=SECOND, validator=attrs.validators.ge(1))
    ticks: Literal["due", "every"] = "due"
    message_latency: DurationSetting = 0
    warmup: DurationSetting = 0
    sample: DurationSetting = attrs.field(default=5 * MINUTE, validator=attrs.validators.ge(1))
    units: str = ""
    turn_limit: DurationSetting = attrs.field(default=MINUTE, validator=attrs.validators.ge(SECOND))
    mapper_errors: Literal["fail", "allow"] = "fail"
    log: LogKind = "all"
    run: tuple[RunSpec, ...] = ()
    plots: tuple[PlotSpec, ...] = attrs.field(default=(), alias="plot")
    runs: tuple[RunSpec, ...] = resolved(())


def resolve_emulation(
    table: EmulationSpec, document: Mapping[str, Any], roles: Mapping[str, str], faults: Faults
) -> EmulationSpec:
    """The spec of ``[emulation]``, with the ``roles`` of actors by name; what is wrong goes to ``faults``."""
    guests = [name for name, role in roles.items() if role == "guest"]
    FailingCheck(roles, table.horizon, table.tick, faults).check(table)
    if table.warmup >= table.horizon:
        found, most = format_duration(table.warmup), format_duration(table.horizon)
        faults.add("emulation.warmup", found, f"less than the horizon, {most}")
    if table.horizon < table.tick:
        found, least = format_duration(table.horizon), format_duration(table.tick)
        faults.add("emulation.horizon", found, f"at least a tick, {least}")
    runs: list[RunSpec] = []
    for index, run in enumerate(table.run):
        runs += _expand(run, f"emulation.run[{index}]", faults)
    runs = _with_seeds(runs, table, faults)
    names = [run.name for run in runs]
    for name in sorted({name for name in names if names.count(name) > 1}):
        faults.add("emulation.run", f"two runs named {name!r}", "names that differ")
    return attrs.evolve(
        table,
        units=table.units or _units(document),
        runs=tuple(runs) or (RunSpec(),),
        plot=_plots(table, document, guests, runs, faults),
    )


def _units(document: Mapping[str, Any]) -> str:
    """What units are called in pictures, where the file does not say: by their type, if there is but one."""
    actors = document.get("actor", {})
    tables = [group for actor in actors.values() for group in actor.get("inventory", ())] if actors else []
    types = {group["type"] for group in tables if isinstance(group.get("type"), str)}
    return f"units of {types.pop()}" if len(types) == 1 else "units"


def _plots(
    table: EmulationSpec, document: Mapping[str, Any], guests: Sequence[str], runs: Sequence[RunSpec], faults: Faults
) -> tuple[PlotSpec, ...]:
    plots, files = [], set()
    varied = {key for run in runs for key in run.changes}
    for index, plot in enumerate(table.plots):
        where = f"emulation.plot[{index}]"
        over_runs = plot.kind in ("rmse", "alpha", "fidelity", "purchase", "runs")
        if (plot.kind == "runs") != bool(plot.y):
            found = repr(plot.y) if plot.y else "nothing"
            faults.add(f"{where}.y", found, "a column of the table of runs, for pictures of runs alone")
        if over_runs and not plot.x:
            faults.add(f"{where}.x", "nothing", f"the key that a picture of {plot.kind} is drawn against")
        if plot.x and plot.kind != "runs" and lookup(document, plot.x) is None and plot.x not in varied:
            faults.add(f"{where}.x", repr(plot.x), "a key of this file, or one that its runs set")
        if plot.kind == "purchase" and plot.x and group_of_units(plot.x) is None:
            faults.add(f"{where}.x", repr(plot.x), "the units of a site's group: actor.SITE.inventory.N.units")
        for name in plot.guests:
            if name not in guests:
                faults.add(f"{where}.guests", repr(name), f"guests of this file: {', '.join(guests) or '(none)'}")
        for name in plot.series:
            if all(name != run.series for run in runs):
                faults.add(f"{where}.series", repr(name), one_of(name, {run.series for run in runs}))
        file = plot.file or plot.kind
        if file in files or "/" in file or file.startswith("."):
            faults.add(f"{where}.file", repr(file), "a file name of its own, without a slash")
        files.add(file)
        plots.append(attrs.evolve(plot, guests=plot.guests or tuple(guests), file=file))
    return tuple(plots)


def _with_seeds(runs: list[RunSpec], table: EmulationSpec, faults: Faults) -> list[RunSpec]:
    """Each run with each seed."""
    seeds = range(table.seed, table.seed + table.seeds) if isinstance(table.seeds, int) else table.seeds
    if seeds and any("emulation.seed" in run.changes for run in runs):
        faults.add("emulation.seeds", "runs that set emulation.seed as well", "one of both")
    made = [
        attrs.evolve(run, name=f"{run.name} seed {seed}".strip(), changes={**run.changes, "emulation.seed": seed})
        for run in runs or [RunSpec()]
        for seed in seeds
    ]
    return made or runs


def _expand(run: RunSpec, where: str, faults: Faults) -> list[RunSpec]:
    """The runs that one table stands for: one for each combination of the values in ``each``."""
    changes = [(key, text) for text in run.set for key in text.split()]
    variations = [(key, text) for text in run.each for key in text.split()]
    keys = [key for key, _ in changes + variations]
    for text, several in run.each.items():
        if not several:
            faults.add(f'{where}.each."{text}"', "an empty list", "at least one value")
    for key in keys:
        if keys.count(key) > 1:
            faults.add(where, f"{key!r} twice", "each key once in set and each")
        if key.split(".")[0] not in ("actor", "deployment", "emulation") or key.startswith(
            ("emulation.run", "emulation.plot")
        ):
            faults.add(
                f"{where}.set", repr(key), "a key under actor, deployment or emulation (runs and plots excepted)"
            )
    runs = []
    for values in product(*run.each.values()):
        name = " ".join(part for part in (run.name, *map(str, values)) if part)
        if not name:
            faults.add(f"{where}.name", "nothing", "a name")
        varied = dict(zip(run.each, values, strict=True))
        made = {key: run.set[text] for key, text in changes} | {key: varied[text] for key, text in variations}
        runs.append(RunSpec(name=name, series=run.series or (run.name if run.each else ""), changes=made))
    return runs


def lookup(document: Mapping[str, Any], key: str) -> Any:
    """The value at a dotted key (list items by index), or None."""
    at: Any = document
    for part in key.split("."):
        if isinstance(at, Mapping):
            at = at.get(part)
        elif isinstance(at, list) and part.isdecimal() and int(part) < len(at):
            at = at[int(part)]
        else:
            return None
    return at


class UnitsKey(NamedTuple):
    """A dotted key that says how many units a group of a site has: the site, and the key of the group's type."""

    site: str
    type_key: str


def group_of_units(key: str) -> UnitsKey | None:
    """The group whose units a dotted key says, or None."""
    match key.split("."):
        case ["actor", site, "inventory", index, "units"]:
            return UnitsKey(site, f"actor.{site}.inventory.{index}.type")
        case _:
            return None


def key_in_words(document: Mapping[str, Any], key: str) -> str:
    """A dotted key as the label of an axis: how many units a site has, a guest's lease term, or else the key itself."""
    if (group := group_of_units(key)) is not None:
        return f"units of {lookup(document, group.type_key)} at {group.site}"
    match key.split("."):
        case ["actor", _, "mapper", "term"]:
            return "lease term"
        case _:
            return key


def x_value(document: Mapping[str, Any], key: str, unit: Duration | None = None) -> float:
    """The value at a key as a picture's axis has it: a number as it is, a duration in ms, or in units of ``unit`` ms.

    Raises ``ValueError``.
    """
    value = lookup(document, key)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, str):
        return parse_duration(value) / (unit or 1)
    raise ValueError(f"{key}: found {value!r}, expected a number or a duration")


def apply_changes(document: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of ``document`` with other values at dotted keys; tables that are not there are made.

    Raises ``SettingsError`` for keys that lead nowhere: an item that a list does not have, a value where a table
    would have to be.
    """
    changed: dict[str, Any] = copy.deepcopy(dict(document))
    errors = []
    for key, value in changes.items():
        *path, last = key.split(".")
        at: Any = changed
        for part in path:
            at = _step(at, part)
        if isinstance(at, dict) and last:
            at[last] = copy.deepcopy(value)
        elif isinstance(at, list) and last.isdecimal() and int(last) < len(at):
            at[int(last)] = copy.deepcopy(value)
        else:
            errors.append(
                f"{key}: found a key that leads nowhere, expected tables by name and list items by index from 0"
            )
    if errors:
        raise SettingsError(errors)
    return changed


def _step(at: Any, part: str) -> Any:
    if isinstance(at, dict) and part:
        return at.setdefault(part, {})
    if isinstance(at, list) and part.isdecimal() and int(part) < len(at):
        return at[int(part)]
    return None
