"""Experiments of papers: how claims are judged and shown, and that one without data stops no other."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest
from datafiles import data_file

from leasekit.cli import emulate
from leasekit.cli.daemon_experiment import SOCKETS
from leasekit.cli.main import run
from leasekit.core.errors import LeasekitError
from leasekit.core.time import HOUR, Term
from leasekit.emulation.metrics import Series
from leasekit.emulation.papers import mixes, page
from leasekit.emulation.papers.catalogue import EXPERIMENTS, run_all
from leasekit.emulation.papers.claims import Means, PaperClaim, judge

ROOT = Path(__file__).resolve().parents[2]
DEPLOYS = ROOT / "deploy" / "emulation"


@pytest.mark.parametrize(
    ("low", "high", "values", "expected", "verdict"),
    [
        (None, None, [3.0], "", "shown"),
        (1, None, [1.0], "above 1", "differs"),
        (1, None, [1.1], "above 1", "holds"),
        (None, 1, [0.90, 0.89], "below 1", "holds"),
        (1, None, [0.9, 1.0, 0.95], "above 1", "open"),
        (1, None, [1.0, 1.1, 1.05], "above 1", "open"),
        (1, None, [1.10, 1.11, 1.12], "above 1", "holds"),
        (1, None, [0.90, 0.91, 0.92], "above 1", "differs"),
        (0.5, 0.6, [0.5], "0.5 to 0.6", "holds"),
        (0.5, 0.6, [0.61, 0.62, 0.63], "0.5 to 0.6", "open"),
        (0.5, 0.6, [0.71, 0.72, 0.73], "0.5 to 0.6", "differs"),
        (55, 55, [55.0], "55", "holds"),
        (55, 55, [54.0], "55", "differs"),
    ],
)
def test_a_claim_is_judged_by_its_criterion(
    low: float | None, high: float | None, values: list[float], expected: str, verdict: str
) -> None:
    """Bands hold their ends, directions don't; where the interval of the mean lies across a criterion it is open."""
    found = judge(PaperClaim("table 1", "cost", "", low, high), values)
    assert (found["expected"], found["verdict"], found["seeds"]) == (expected, verdict, len(values))


def test_the_command_knows_all_experiments() -> None:
    """Each has a command; the names that stand in the command line's module are those of the catalogue. Figures of one
    experiment have different names, and one of a paper has a criterion or says that it has none.
    """
    experiments = (*EXPERIMENTS, SOCKETS)
    names = [one.name for one in experiments]
    own = {"coallocation", "energy", "yield", "preemption"}
    assert sorted(names) == sorted({*emulate.PAPERS, *own}) and {*names, "all"} == set(emulate.experiment.commands)
    for one in experiments:
        assert [figure for figure, count in Counter(c.figure for c in one.claims).items() if count > 1] == []
        assert any(claim.expected for claim in one.claims) == bool(one.paper), one.name


def test_one_without_data_stops_no_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What was found is written, what could not be run is told, and the exit status says so."""
    names = ["--only", "terms", "--only", "preemption", "--deploys", str(DEPLOYS)]
    assert run(["experiment", "all", "--data", str(tmp_path), "--out", str(tmp_path / "o"), "--json", *names]) == 1
    captured = capsys.readouterr()
    terms, preemption = json.loads(captured.out)
    assert "worldcup98" in terms["error"] and "terms: not run" in captured.err
    assert {claim["verdict"] for claim in preemption["claims"]} == {"holds"}
    assert json.loads((tmp_path / "o" / "results.json").read_text())["experiments"] == [terms, preemption]
    assert "Not run" in (tmp_path / "o" / "index.html").read_text()
    assert run(["experiment", "terms", "--data", str(tmp_path), "--deploys", str(DEPLOYS)]) == 1
    captured = capsys.readouterr()
    assert (captured.out, captured.err.count("nothing was run")) == ("", 1)


def test_a_wrong_name_and_a_missing_folder_are_told(tmp_path: Path) -> None:
    """One line says what there is."""
    with pytest.raises(LeasekitError, match=r"experiment: found 'fidelty', expected.*fidelity"):
        run_all(["fidelty"], Means(), lambda text: None)
    [found] = run_all(["fidelity"], Means(deploys=tmp_path), lambda text: None)
    assert "--deploys" in found["error"]


def test_the_page_stands_alone(tmp_path: Path) -> None:
    """Nothing is loaded from elsewhere, nothing runs; text is escaped; small pictures are part of it, large not."""
    folder = tmp_path / "one"
    folder.mkdir()
    (folder / "small.svg").write_text("<svg/>")
    (folder / "large.svg").write_text("x" * (page.PICTURE_MAX + 1))
    claim = judge(PaperClaim("table 1", "a < b", "<b>1</b>", 1, None, "because & so"), [0.5])
    result = {
        "name": "one", "paper": "P", "what": "W.", "share": "all", "quick": False, "claims": [claim], "stand_ins": [],
        "left_out": {"table 2": "no"}, "pictures": ["small.svg", "large.svg"],
    }  # fmt: skip
    text = page.html([result], tmp_path)
    assert "<script" not in text and "http" not in text and "prefers-color-scheme: dark" in text
    assert "a &lt; b" in text and "&lt;b&gt;1&lt;/b&gt;" in text and "because &amp; so" in text
    assert re.findall(r'src="([^"]{,30})', text) == ["data:image/svg+xml;base64,PHN2", "one/large.svg"]
    assert "| table 1 | a < b | <b>1</b> | above 1 | 0.5 | differs |" in page.markdown(result)


def test_prices_are_one_in_the_mean_and_weigh_each_hour() -> None:
    """A core that is on for a day costs 24, one that is on in one hour costs that hour's price."""
    for prices in mixes.PRICES.values():
        day = Series()
        day.append(0, 1.0)
        assert len(prices) == 24 and mixes.cost(day, Term(0, 24 * HOUR), prices) == pytest.approx(24)
        short = Series()
        short.append(17 * HOUR + HOUR // 2, 2.0)
        short.append(18 * HOUR, 0.0)
        assert mixes.cost(short, Term(0, 24 * HOUR), prices) == pytest.approx(prices[17])


def test_a_priced_forecast_has_a_margin_in_cheap_hours_only() -> None:
    """In dear hours the demand itself, in the others more than that after it has varied."""
    forecast = mixes.PricedForecast(mixes.PricedForecastSettings(prices=mixes.PRICES["tariff"]))
    for minute in range(0, 180, 5):
        night = forecast.forecast(minute * HOUR // 60, 10 if minute % 2 else 4)
    assert night > 4
    assert forecast.forecast(17 * HOUR, 4) == 4


def test_another_seed_is_another_order() -> None:
    """The same requests' widths and durations; a window moves with its request."""
    works = mixes._from_file(Means(data=data_file(mixes.FILES[0]).parents[1]), mixes.FILES[0])
    again = mixes._drawn_anew(works, 2)
    assert mixes._drawn_anew(works, 1) == works != again == mixes._drawn_anew(works, 2)
    assert [work.submit for work in again] == [work.submit for work in works]
    kept = [[(w.id, w.units, w.run, w.start - w.submit, w.kind) for w in sorted(many)] for many in (works, again)]
    assert kept[0] == kept[1]
