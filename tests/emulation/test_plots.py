"""Pictures: that they hold what they should, and the same bytes each time."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import matplotlib as mpl
import pytest

from leasekit.config.traces import BATCH, synthetic
from leasekit.core.time import DAY, HOUR, Term
from leasekit.emulation import plots
from leasekit.emulation.plots import Axis, Load

WINDOW = Term(0, 3 * DAY)
LEASE_TERM = Axis("lease term", durations=True)
WEB_DEMAND = synthetic(1, 3 * DAY, peak=60).rounded_up()
BATCH_DEMAND = synthetic(2, 3 * DAY, peak=40, settings=BATCH).rounded_up()
HELD = WEB_DEMAND.resampled(12 * HOUR, "peak")
SMOOTH = WEB_DEMAND.resampled(3 * HOUR)
LOADS = [
    Load(name=f"term {name}", demand=WEB_DEMAND, holdings=HELD, rmse=error)
    for name, error in (("12h", 3.0), ("1d", 9.5))
]
CURVES = {"a VM": [(HOUR, 0.9), (DAY, 0.99)], "a machine": [(HOUR, 0.5), (DAY, 0.95)]}

Drawing = Callable[[Path], tuple[Path, Path]]

DRAWINGS: dict[str, tuple[Drawing, list[str]]] = {
    "demand": (
        lambda stem: plots.demand_and_holdings(
            stem, Load(name="web", demand=WEB_DEMAND, holdings=HELD, smoothed=SMOOTH, rmse=4.25), WINDOW
        ),
        [
            "web: demand and holdings (RMSE 4.25)",
            "demand",
            "smoothed demand",
            "holdings",
            "nodes",
            "days since the start",
        ],
    ),
    "terms": (
        lambda stem: plots.terms_side_by_side(stem, LOADS, WINDOW, title="Lease terms"),
        ["Lease terms", "term 12h (RMSE 3.00)", "term 1d (RMSE 9.50)", "demand", "holdings", "nodes"],
    ),
    "guests": (
        lambda stem: plots.stacked_guests(
            stem,
            {"term 12h": {"web": HELD, "batch": BATCH_DEMAND}, "term 3d": {"batch": BATCH_DEMAND}},
            WINDOW,
            title="Competing guests",
            capacity=140,
            units="cores",
        ),
        ["Competing guests", "term 12h", "term 3d", "web", "batch", "capacity (140)", "cores"],
    ),
    "sites": (
        lambda stem: plots.site_usage(stem, {"duke": (HELD, 70), "unc": (BATCH_DEMAND, WEB_DEMAND)}, WINDOW),
        ["Site usage", "duke", "unc", "held", "capacity", "nodes"],
    ),
    "fidelity": (
        lambda stem: plots.fidelity_against(stem, CURVES, LEASE_TERM),
        ["fidelity", "a VM", "a machine", "lease term", "100%", "1h", "1d"],
    ),
    "alpha": (
        lambda stem: plots.alpha_curves(stem, {"l = 1": [(600, 0.02), (3600, 0.01)], "l = 24": [(600, 0.3)]}),
        [
            "Overhead per tick against lease term",
            "alpha (ms per tick)",
            "lease term (ticks)",
            "l = 1",
            "l = 24",
            "3,600",
        ],
    ),
    "rmse": (
        lambda stem: plots.rmse_against(
            stem, {"web": [(12 * HOUR, 12.57), (DAY, 22.17)], "batch": [(DAY, 5.0)]}, LEASE_TERM
        ),
        ["root mean square error (nodes)", "12h", "1d", "12.6", "22.2", "web", "batch"],
    ),
}


def texts(svg: Path) -> set[str]:
    """All the texts of an SVG picture."""
    root = ElementTree.parse(svg).getroot()
    return {"".join(element.itertext()).strip() for element in root.iter("{http://www.w3.org/2000/svg}text")}


@pytest.mark.parametrize("name", DRAWINGS)
def test_pictures_say_what_they_show(name: str, tmp_path: Path) -> None:
    """Titles, axis labels with units, legends and ticks are all in the picture; both files are whole."""
    draw, expected = DRAWINGS[name]
    png, svg = draw(tmp_path / "deeper" / f"{name}.x")
    assert (png.name, svg.name) == (f"{name}.x.png", f"{name}.x.svg")
    assert set(expected) <= texts(svg)
    head = png.read_bytes()[:24]
    assert head.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", head[16:24])
    assert width >= 1000
    assert height >= 500


@pytest.mark.parametrize("name", DRAWINGS)
def test_pictures_are_the_same_bytes_each_time(name: str, tmp_path: Path) -> None:
    """Drawn twice, also under another style of the user's, the bytes are equal, and the user's style is put back."""
    draw, _ = DRAWINGS[name]
    first = [path.read_bytes() for path in draw(tmp_path / "first")]
    with mpl.rc_context({"font.size": 20, "lines.linewidth": 9, "svg.hashsalt": "other"}):
        second = [path.read_bytes() for path in draw(tmp_path / "second")]
        assert mpl.rcParams["font.size"] == 20
    assert first == second


def test_another_load_is_another_picture(tmp_path: Path) -> None:
    """The bytes depend on the data: it is drawn, not only its labels."""
    one = Load(name="web", demand=WEB_DEMAND, holdings=HELD)
    two = Load(name="web", demand=WEB_DEMAND, holdings=SMOOTH)
    for first, second in zip(
        plots.demand_and_holdings(tmp_path / "one", one, WINDOW),
        plots.demand_and_holdings(tmp_path / "two", two, WINDOW),
        strict=True,
    ):
        assert first.read_bytes() != second.read_bytes()


def test_names_are_not_read_as_formulas(tmp_path: Path) -> None:
    """A guest's name with dollar signs and backslashes is shown as it is."""
    name = r"cost $\frac{1$ & <more>"
    _, svg = plots.demand_and_holdings(tmp_path / "odd", Load(name=name, demand=HELD, holdings=HELD), WINDOW)
    assert f"{name}: demand and holdings" in texts(svg)


def test_nothing_to_draw_is_an_error(tmp_path: Path) -> None:
    """Without anything to draw there is a clear error and no file."""
    drawings: list[Callable[[], object]] = [
        lambda: plots.terms_side_by_side(tmp_path / "x", [], WINDOW, title="t"),
        lambda: plots.stacked_guests(tmp_path / "x", {}, WINDOW, title="t"),
        lambda: plots.site_usage(tmp_path / "x", {}, WINDOW),
        lambda: plots.fidelity_against(tmp_path / "x", {}, LEASE_TERM),
        lambda: plots.alpha_curves(tmp_path / "x", {}),
        lambda: plots.rmse_against(tmp_path / "x", {}, LEASE_TERM),
    ]
    for draw in drawings:
        with pytest.raises(ValueError, match="nothing to draw: found no"):
            draw()
    assert list(tmp_path.iterdir()) == []


def test_pictures_leave_no_global_figures(tmp_path: Path) -> None:
    """Drawing registers nothing with pyplot, so a long experiment doesn't collect figures."""
    import matplotlib.pyplot as plt

    before = plt.get_fignums()
    plots.rmse_against(tmp_path / "x", {"web": [(DAY, 1.0)]}, LEASE_TERM)
    assert plt.get_fignums() == before
