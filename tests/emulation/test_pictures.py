"""Which pictures an experiment's file asks for, drawn from real runs."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from leasekit.config.load import load
from leasekit.emulation.experiment import run_file, run_one

TWO_GUESTS = """
[deployment]
name = "small"
signatures = false

[actor.site]
role = "authority"
[[actor.site.inventory]]
type = "node"
units = 12
[[actor.site.delegation]]
broker = "broker"
type = "node"

[actor.broker]
role = "broker"

[actor.web]
role = "guest"
[actor.web.mapper]
name = "load_following"
type = "node"
term = "15m"
smooth = true
signal = { synthetic = { bursts_per_day = 2 }, peak = 8 }

[actor.batch]
role = "guest"
[actor.batch.mapper]
name = "load_following"
type = "node"
term = "30m"
smooth = false
signal = { synthetic = { noise = 0.3 }, peak = 8 }

[emulation]
horizon = "3h"
units = "cores"
"""
RUNS = """
[[emulation.run]]
name = "short"
series = "one"
set = { "actor.web.mapper.term" = "10m" }
[[emulation.run]]
name = "a/long one"
series = "one"
set = { "actor.web.mapper.term" = "1h" }
[[emulation.run]]
name = "other"
series = "two"
set = { "actor.web.mapper.term" = "20m" }
"""


def drawn(folder: Path, text: str) -> list[str]:
    """The names of the pictures of a deploy file with this text, which must be in its folder and in its summary."""
    file = folder / "small.toml"
    file.write_text(text)
    names = run_file(file, folder)["pictures"]
    assert isinstance(names, list)
    assert sorted(names) == sorted(path.name for path in folder.iterdir() if path.suffix in (".png", ".svg"))
    assert all((folder / name).stat().st_size > 1000 for name in names)
    return names


def words(picture: Path) -> set[str]:
    """All texts in an SVG picture."""
    found = ElementTree.parse(picture).iter("{http://www.w3.org/2000/svg}text")
    return {"".join(text.itertext()).strip() for text in found}


def plot(kind: str, more: str = "") -> str:
    """A picture in a deploy file."""
    return f'[[emulation.plot]]\nkind = "{kind}"\n{more}\n'


def both(*stems: str) -> list[str]:
    """PNG and SVG of each."""
    return [f"{stem}.{suffix}" for stem in stems for suffix in ("png", "svg")]


def test_one_run(tmp_path: Path) -> None:
    """Of a single run each guest has a picture of its own, a filtered demand is shown beside the demand, and sites and
    guests have one each.
    """
    text = TWO_GUESTS + plot("demand_holdings") + plot("guests", 'title = "Both"') + plot("site_usage")
    assert drawn(tmp_path, text) == both("demand_holdings-web", "demand_holdings-batch", "guests", "site_usage")
    assert {"demand", "smoothed demand", "holdings", "cores"} <= words(tmp_path / "demand_holdings-web.svg")
    assert "smoothed demand" not in words(tmp_path / "demand_holdings-batch.svg")
    assert {"Both", "web", "batch", "capacity (12)"} <= words(tmp_path / "guests.svg")


def test_several_runs(tmp_path: Path) -> None:
    """Of several runs demand and holdings are side by side, and site usage has a file for each run, under its name as a
    file name.
    """
    text = TWO_GUESTS + RUNS + plot("demand_holdings", 'guests = ["web"]\nfile = "web"') + plot("site_usage")
    expected = both("web", "site_usage-short", "site_usage-a_long_one", "site_usage-other")
    assert drawn(tmp_path, text) == expected
    assert any("a/long one" in text for text in words(tmp_path / "web.svg"))


@pytest.mark.parametrize(("kind", "label"), [("rmse", "cores"), ("fidelity", "fidelity"), ("alpha", "alpha")])
def test_curves_over_runs(tmp_path: Path, kind: str, label: str) -> None:
    """A result against the term has a curve for each series, and only of the series asked for."""
    key = 'x = "actor.web.mapper.term"\nguests = ["web"]\n'
    text = TWO_GUESTS + RUNS + plot(kind, key) + plot(kind, key + 'series = ["one"]\nfile = "only"')
    assert drawn(tmp_path, text) == both(kind, "only")
    assert {"one", "two"} <= words(tmp_path / f"{kind}.svg")
    assert "two" not in words(tmp_path / "only.svg")
    assert any(label in word for word in words(tmp_path / f"{kind}.svg"))


@pytest.mark.parametrize(
    "kind", ["rmse", *(pytest.param(kind, marks=pytest.mark.soak) for kind in ("fidelity", "alpha"))]
)
def test_an_axis_says_what_the_file_says(tmp_path: Path, kind: str) -> None:
    """Over the units of a site it has their numbers, with no word of a term or of milliseconds; over terms, durations;
    over any other key, the key, or the label that the file gives.
    """
    runs = '[[emulation.run]]\neach = { "KEY" = [6, 12] }\n'.replace("KEY", key := "actor.site.inventory.0.units")
    other = f'x = "{key}"\nx_label = "machines"\nfile = "labelled"'
    drawn(tmp_path, TWO_GUESTS.replace('units = "cores"\n', "") + runs + plot(kind, f'x = "{key}"') + plot(kind, other))
    found = words(tmp_path / f"{kind}.svg")
    assert {"units of node at site", "6", "12"} <= found
    assert not any("term" in word.split() or re.fullmatch(r"\d+m?s", word) for word in found if kind != "fidelity")
    assert "machines" in words(tmp_path / "labelled.svg")
    if kind == "rmse":
        assert "root mean square error (units of node)" in found
    noise = "actor.batch.mapper.signal.synthetic.noise"
    folder = tmp_path / "noise"
    folder.mkdir()
    runs = f'[[emulation.run]]\neach = {{ "{noise}" = [0.1, 0.5] }}\n'
    drawn(folder, TWO_GUESTS + runs + plot(kind, f'x = "{noise}"'))
    assert noise in words(folder / f"{kind}.svg")


def test_lease_terms_are_durations(tmp_path: Path) -> None:
    """An axis of terms is called so, and has durations."""
    drawn(tmp_path, TWO_GUESTS + RUNS + plot("rmse", 'x = "actor.web.mapper.term"'))
    assert {"lease term", "10m", "20m", "1h"} <= words(tmp_path / "rmse.svg")


def test_capacity_is_without_units_that_are_out_of_service(tmp_path: Path) -> None:
    """What a picture of a site calls its capacity changes as units fail and are repaired."""
    site = '[actor.site.settings]\nfailures_max = 1\n[actor.site.driver.m]\nkind = "null"\nfailure = { setup = 0.5 }\n'
    text = TWO_GUESTS.replace("[actor.broker]", site + "[actor.broker]") + 'repair = "30m"\n'
    (tmp_path / "small.toml").write_text(text)
    deployment = load(tmp_path / "small.toml")
    assert deployment.emulation is not None
    result = run_one(deployment, deployment.emulation.runs[0], None)
    capacity = result.in_service("site", "node", 12)
    found = result.summary["sites"]["site"]
    assert found["failed"] > found["repaired"] > 0
    assert 1 - capacity.integral(result.window) / (12 * result.window.length) == pytest.approx(found["out_of_service"])
    assert 0 < found["out_of_service"] < 1


def test_nothing_to_draw(tmp_path: Path) -> None:
    """Demand and holdings of a guest without load are left out; so is all where the file asks for nothing."""
    idle = TWO_GUESTS.replace("[emulation]", '[actor.idle]\nrole = "guest"\n\n[emulation]')
    assert drawn(tmp_path, idle + plot("demand_holdings", 'guests = ["idle"]')) == []
    assert drawn(tmp_path, TWO_GUESTS) == []
