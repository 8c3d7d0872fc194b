"""What a run of a deploy file has shown, and which pictures the file asks for, drawn from its runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import attrs

from leasekit.actors.settings import AuthoritySettings
from leasekit.config.deployment import Deployment
from leasekit.config.emulation import EmulationSpec, PlotSpec, RunSpec, key_in_words, lookup
from leasekit.core.errors import LeasekitError
from leasekit.core.settings import expect_one_of
from leasekit.core.signals import Signal
from leasekit.core.time import HOUR, SECOND, Term, format_duration
from leasekit.emulation import metrics, plots
from leasekit.emulation.metrics import Series
from leasekit.emulation.purchase import Purchase, Trial, points, purchases
from leasekit.emulation.recorder import total
from leasekit.emulation.tidy import column, without_seed


def emulation_of(deployment: Deployment) -> EmulationSpec:
    """The emulation of a deployment that has one, as that of a run has."""
    assert deployment.emulation is not None, "a run is of a deployment with an emulation"
    return deployment.emulation


def site_settings(deployment: Deployment, site: str) -> AuthoritySettings:
    """The settings of a site."""
    settings = deployment.actors[site].settings
    assert isinstance(settings, AuthoritySettings), "a site has an authority's settings"
    return settings


@attrs.frozen(kw_only=True)
class RunResult:
    """One run: its summary, and what pictures are drawn from, step functions over time; another process can be handed
    it. ``stem`` begins the names of its files.

    ``leased_by_type`` are units by guest and type, ``usable`` by guest; ``signals`` and ``wanted`` are the loads of
    those that follow any. ``in_use_by_type`` and ``out_by_type`` are by site and type, ``power`` by site.
    ``reported`` are numbers by the actor whose mapper reports them, and by name.
    """

    spec: RunSpec
    stem: str
    deployment: Deployment
    summary: Mapping[str, Any]
    window: Term
    leased_by_type: Mapping[str, Mapping[str, Series]]
    usable: Mapping[str, Series]
    in_use_by_type: Mapping[str, Mapping[str, Series]]
    out_by_type: Mapping[str, Mapping[str, Series]]
    power: Mapping[str, Mapping[str, Series]]
    reported: Mapping[str, Mapping[str, Series]]
    signals: Mapping[str, Signal]
    wanted: Mapping[str, Signal]

    @property
    def leased(self) -> dict[str, Series]:
        """Units by guest, of all types. Made anew."""
        return {name: total(types) for name, types in self.leased_by_type.items()}

    def in_use(self, site: str) -> dict[str, Series]:
        """Units in use of each of a site's types: of all that it has, and of what it has had."""
        inventory = site_settings(self.deployment, site).inventory
        return {group.type: Series() for group in inventory} | dict(self.in_use_by_type[site])

    def in_service(self, site: str, kind: str, bought: int) -> Series:
        """Of the units of a type that were bought, those that were not out of service."""
        made = Series()
        made.append(emulation_of(self.deployment).start, bought)
        for at, out in self.out_by_type[site].get(kind, ()):
            made.append(at, bought - out)
        return made


def draw(deployment: Deployment, results: Sequence[RunResult], out: Path) -> list[Path]:
    """Draw all pictures into ``out``; returns their files, PNG and SVG."""
    made: list[Path] = []
    emulation = emulation_of(deployment)
    for plot in emulation.plots:
        wanted = [result for result in results if plot.wants(result.spec)]
        if wanted:
            made += _DRAWN[plot.kind](plot, wanted, out, emulation.units)
    return made


def _loads(plot: PlotSpec, results: Sequence[RunResult], guest: str) -> list[plots.Load]:
    loads = []
    for result in results:
        signal = result.signals.get(guest)
        if signal is not None:
            wanted = result.wanted.get(guest)
            filtered = wanted is not None and metrics.rmse(signal, wanted, result.window) > 0
            loads.append(plots.Load(
                name=result.spec.name or guest, demand=signal, holdings=result.leased[guest],
                smoothed=wanted if filtered else None, rmse=result.summary["guests"][guest].get("rmse"),
            ))  # fmt: skip
    return loads


def _demand_holdings(plot: PlotSpec, results: Sequence[RunResult], out: Path, units: str) -> list[Path]:
    made: list[Path] = []
    for guest in plot.guests:
        loads = _loads(plot, results, guest)
        if not loads:
            continue
        stem = out / (plot.file if len(plot.guests) == 1 else f"{plot.file}-{guest}")
        title = plot.title or f"{guest}: demand and holdings"
        if len(loads) == 1:
            made += plots.demand_and_holdings(stem, loads[0], results[0].window, units=units)
        else:
            made += plots.terms_side_by_side(stem, loads, results[0].window, title=title, units=units)
    return made


def _guests(plot: PlotSpec, results: Sequence[RunResult], out: Path, units: str) -> list[Path]:
    panels = {
        result.spec.name or result.deployment.name: {guest: result.leased[guest] for guest in plot.guests}
        for result in results
    }
    total = sum(sum(found.values()) for found in _capacities(results[0]).values())
    title = plot.title or "Holdings of competing guests"
    return list(
        plots.stacked_guests(out / plot.file, panels, results[0].window, title=title, capacity=total, units=units)
    )


def _capacities(result: RunResult) -> dict[str, dict[str, int]]:
    """The units of each site, by type."""
    sites = result.summary["sites"].items()
    return {name: {kind: one["capacity"] for kind, one in site["types"].items()} for name, site in sites}


def _site_usage(plot: PlotSpec, results: Sequence[RunResult], out: Path, units: str) -> list[Path]:
    made: list[Path] = []
    for result in results:
        sites: dict[str, Any] = {}
        for name, capacities in _capacities(result).items():
            for kind, series in result.in_use(name).items():
                label = name if len(capacities) == 1 else f"{name}: {kind}"
                sites[label] = series, result.in_service(name, kind, capacities.get(kind, 0))
        stem = plot.file if len(results) == 1 else f"{plot.file}-{result.stem}"
        made += plots.site_usage(out / stem, sites, result.window, units=units)
    return made


def _reported(plot: PlotSpec, results: Sequence[RunResult], out: Path, units: str) -> list[Path]:
    made: list[Path] = []
    for result in results:
        numbers = {
            f"{actor}.{name}": one for actor, several in result.reported.items() for name, one in several.items()
        }
        for name in plot.numbers:
            if name not in numbers:
                raise LeasekitError(f"plot {plot.file}: numbers: found {name!r}, {expect_one_of(name, numbers)}")
        chosen = {name: numbers[name] for name in plot.numbers or numbers}
        stem = plot.file if len(results) == 1 else f"{plot.file}-{result.stem}"
        if chosen:
            made += plots.reported(out / stem, chosen, result.window, title=plot.title or "What mappers report")
    return made


def _curves(plot: PlotSpec, results: Sequence[RunResult], value: str) -> dict[str, list[tuple[float, float]]]:
    """Points of one result against the key ``plot.x``: a curve for each series, and for each guest where there are
    several.
    """
    curves: dict[str, list[tuple[float, float]]] = {}
    for result in results:
        x = plot.x_of(result.deployment.document)
        if value == "alpha_ms":
            curves.setdefault(result.spec.series or "alpha", []).append((x, result.summary["measured"][value]))
            continue
        for guest in plot.guests:
            y = result.summary["guests"][guest].get(value)
            if y is not None:
                parts = [result.spec.series, guest if len(plot.guests) > 1 or not result.spec.series else ""]
                curves.setdefault(" ".join(part for part in parts if part), []).append((x, y))
    return {name: sorted(points) for name, points in curves.items()}


def _axis(plot: PlotSpec, results: Sequence[RunResult]) -> plots.Axis:
    """What the key ``plot.x`` is, in words: as the file labels it, or by where it stands in the file."""
    document = results[0].deployment.document
    durations = plot.x_unit is None and isinstance(lookup(document, plot.x), str)
    unit = "" if plot.x_unit is None else f" ({format_duration(plot.x_unit)})"
    return plots.Axis(plot.x_label or f"{key_in_words(document, plot.x)}{unit}", durations)


def _rmse(plot: PlotSpec, results: Sequence[RunResult], out: Path, units: str) -> list[Path]:
    curves = _curves(plot, results, "rmse")
    return list(plots.rmse_against(out / plot.file, curves, _axis(plot, results), units=units))


def _alpha(plot: PlotSpec, results: Sequence[RunResult], out: Path, units: str) -> list[Path]:
    curves = _curves(plot, results, "alpha_ms")
    x = _axis(plot, results)
    label = f"{x.label} (ms)" if x.durations and not plot.x_label else x.label
    return list(plots.alpha_curves(out / plot.file, curves, x=label, title=plot.title or None))


def _fidelity(plot: PlotSpec, results: Sequence[RunResult], out: Path, units: str) -> list[Path]:
    return list(plots.fidelity_against(out / plot.file, _curves(plot, results, "fidelity"), _axis(plot, results)))


def bought(plot: PlotSpec, results: Sequence[RunResult]) -> list[Purchase]:
    """What a picture of purchases shows of those runs that belong into it."""
    wanted = (result for result in results if plot.wants(result.spec))
    return purchases(plot, [Trial(result.spec, result.deployment.document, result.summary) for result in wanted])


def _purchase(plot: PlotSpec, results: Sequence[RunResult], out: Path, units: str) -> list[Path]:
    several = bought(plot, results)

    def curves(**keys: str) -> dict[str, list[tuple[float, float]]]:
        return {
            " ".join(part for part in (one.series if len(several) > 1 else "", label) if part): points(one.runs, key)
            for one in several
            for label, key in keys.items()
        }

    hours = {
        name: [(x, seconds * SECOND / HOUR) for x, seconds in curve]
        for name, curve in curves(mean="mean_wait_s", p95="p95_wait_s").items()
    }
    waited = any(wait for curve in hours.values() for _, wait in curve)
    panels = [
        ("unserved", curves(unserved="unserved"), True),
        *([("wait (h)", hours, False)] if waited else []),
        ("of what was bought", curves(idle="idle"), True),
    ]
    knees = {one.series: one.knee for one in several if one.knee is not None}
    title, x = plot.title or f"How many {several[0].units_of} to buy", plot.x_label or several[0].units_of
    return list(plots.purchase(out / plot.file, panels, knees, title=title, x=x))


def _runs(plot: PlotSpec, results: Sequence[RunResult], out: Path, units: str) -> list[Path]:
    """One column of the table of runs against another, a curve for each series; of seeds the mean of both."""
    summaries = [result.summary for result in results]
    xs = column(summaries, plot.x, f"plot {plot.file}: x")
    ys = column(summaries, plot.y, f"plot {plot.file}: y")
    alike: dict[str, list[tuple[str, float, float]]] = {}
    for summary, x, y in zip(summaries, xs, ys, strict=True):
        if x is not None and y is not None:
            alike.setdefault(repr((summary["series"], without_seed(summary))), []).append((summary["series"], x, y))
    curves: dict[str, list[tuple[float, float]]] = {}
    for several in alike.values():
        at = fmean(x for _, x, _ in several)
        curves.setdefault(several[0][0] or plot.y, []).extend((at, y) for _, _, y in several)
    labels = plot.x_label or key_in_words(results[0].deployment.document, plot.x), plot.y
    return list(plots.against(out / plot.file, curves, *labels, title=plot.title or f"{plot.y} against {labels[0]}"))


_DRAWN = {
    "demand_holdings": _demand_holdings,
    "guests": _guests,
    "site_usage": _site_usage,
    "reported": _reported,
    "rmse": _rmse,
    "alpha": _alpha,
    "fidelity": _fidelity,
    "purchase": _purchase,
    "runs": _runs,
}
