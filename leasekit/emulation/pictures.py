"""Which pictures an experiment's file asks for, drawn from its runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from leasekit.config.deployment import Deployment
from leasekit.config.emulation import PlotSpec, key_in_words, lookup
from leasekit.core.time import format_duration
from leasekit.emulation import metrics, plots
from leasekit.emulation.run_result import RunResult


def draw(deployment: Deployment, results: Sequence[RunResult], out: Path) -> list[Path]:
    """Draw all pictures into ``out``; returns their files, PNG and SVG."""
    assert deployment.emulation is not None, "pictures are of an emulation"
    made: list[Path] = []
    for plot in deployment.emulation.plots:
        wanted = [result for result in results if plot.wants(result.spec)]
        if wanted:
            made += _DRAWN[plot.kind](plot, wanted, out, deployment.emulation.units)
    return made


def _loads(plot: PlotSpec, results: Sequence[RunResult], guest: str) -> list[plots.Load]:
    loads = []
    for result in results:
        signal = result.actors[guest].signal
        if signal is not None:
            name = result.spec.name or guest
            error = result.summary["guests"][guest].get("rmse")
            wanted = result.wanted.get(guest)
            filtered = wanted is not None and metrics.rmse(signal, wanted, result.window) > 0
            load = plots.Load(
                name=name,
                demand=signal,
                holdings=result.leased[guest],
                smoothed=wanted if filtered else None,
                rmse=error,
            )
            loads.append(load)
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


_DRAWN = {
    "demand_holdings": _demand_holdings,
    "guests": _guests,
    "site_usage": _site_usage,
    "rmse": _rmse,
    "alpha": _alpha,
    "fidelity": _fidelity,
}
