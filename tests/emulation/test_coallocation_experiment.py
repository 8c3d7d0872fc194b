"""The simulation of the co-allocation paper: what repeats, what is written, and what must come out."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import attrs
import pytest
from datafiles import data_file

from leasekit.core.errors import LeasekitError
from leasekit.core.time import DAY
from leasekit.emulation.coallocation import actors
from leasekit.emulation.coallocation.against_paper import figures_of
from leasekit.emulation.coallocation.experiment import (
    FILE,
    INTERVALS,
    SCENARIOS,
    CoallocationSetup,
    CoallocationTally,
    draw_requests,
    measured,
    read_testbed,
    summarize,
    write,
)
from leasekit.emulation.coallocation.experiment import Testbed as Paper

SMALL = CoallocationSetup(load=0.1)
TINY = CoallocationSetup(load=0.05)
LEAST = CoallocationSetup(load=0.01)


def run_once(testbed: Paper, scenario: str, seed: int, setup: CoallocationSetup) -> CoallocationTally:
    """One run."""
    return actors.run_once(testbed, scenario, seed, setup)


@pytest.fixture(scope="module")
def tallies(testbed: Paper) -> list[CoallocationTally]:
    """Small runs of one scenario with three seeds."""
    return [run_once(testbed, "normal", seed, SMALL) for seed in (1, 2, 3)]


@pytest.fixture(scope="module")
def testbed() -> Paper:
    """The published testbed."""
    return read_testbed(data_file(FILE).parent.parent)


def test_the_testbed_is_the_papers(testbed: Paper) -> None:
    """Ten sites of 232 CPUs and two exchange points; 424 requests are a full load."""
    sites = [vertex for vertex in testbed.resources.vertices if vertex.kind == "site"]
    assert (len(sites), sum(site.cpus or 0 for site in sites), len(testbed.resources.vertices)) == (10, 232, 12)
    assert [kind.sites for kind in testbed.types] == [2, 3, 3, 4]
    assert testbed.requests == 424 and testbed.cpus == (1, 2, 4, 8)


def test_requests_repeat_for_a_seed_and_lie_in_their_days(testbed: Paper) -> None:
    """They arrive on the first day, in order, and are for the second, window and all."""
    arrivals = draw_requests(testbed, 3)
    assert arrivals == draw_requests(testbed, 3) != draw_requests(testbed, 4)
    assert arrivals == sorted(arrivals)
    for one in arrivals:
        assert 0 <= one.at < DAY <= one.earliest and one.latest + one.duration <= 2 * DAY
        assert one.latest - one.earliest == 2 * one.duration
    assert 340 < len(arrivals) < 510
    assert 0.4 < sum(one.user == "A" for one in arrivals) / len(arrivals) < 0.6


def test_a_run_repeats_and_counts_every_request(testbed: Paper) -> None:
    """All but planning times is the same again; nothing is granted that wasn't asked for."""
    one, two = (run_once(testbed, "load_balancing", 1, TINY) for _ in range(2))
    assert one[:5] == two[:5]
    asked, granted = ([count for counts in each.values() for count in counts] for each in (one.asked, one.granted))
    assert sum(asked) == len(draw_requests(testbed, 1, TINY.load))
    assert all(less <= more for less, more in zip(granted, asked, strict=True))
    assert sum(map(len, one.planning_ms)) == sum(asked)


def test_runs_on_several_processes_are_the_same(testbed: Paper) -> None:
    """Spreading runs changes nothing but how long it takes, and progress is told for each."""
    told: list[float] = []
    spread, _ = actors.run_all(
        testbed, SCENARIOS[:2], (1, 2), LEAST, jobs=2, progress=lambda _, share: told.append(share)
    )
    alone, _ = actors.run_all(testbed, SCENARIOS[:2], (1, 2), LEAST)
    assert [tally[:5] for tally in spread] == [tally[:5] for tally in alone]
    assert told == [0.25, 0.5, 0.75, 1.0]


@pytest.mark.soak
def test_a_full_day_comes_out_as_the_paper_says(testbed: Paper) -> None:
    """All succeed while load is low, far fewer at the end; half of what is free is worse than all of it."""
    tallies, _ = actors.run_all(testbed, ("normal", "service_levels", "preference_size"), (1,), CoallocationSetup())
    summary = summarize(testbed, tallies, CoallocationSetup())
    success = summary["scenarios"]["normal"]["success"]["both"]
    assert min(success[:3]) == 1.0 and 0.25 < success[-1] < 0.65
    levels = summary["scenarios"]["service_levels"]["success"]
    assert sum(levels["A"][5:]) > sum(levels["B"][5:]) + 0.5
    used = summary["scenarios"]["preference_size"]["utilisation"]
    assert used["N2"][3] > used["N1"][3] + 0.2 and used["N0"][3] == 0.0


def test_only_the_papers_settings_are_held_against_the_paper(testbed: Paper, tallies: list[CoallocationTally]) -> None:
    """With others nothing is compared, and the summary says which are others; the solver is none of the paper's."""
    summary = summarize(testbed, tallies[:1], attrs.evolve(SMALL, frames=4))
    assert summary["claims"] == []
    assert summary["not_the_papers"] == ["frames 4 (not 10)", "load 0.1 (not 1.0)"]
    assert summarize(testbed, tallies[:1], CoallocationSetup(solver="search"))["claims"]


def test_a_scenario_without_its_comparison_is_left_out(testbed: Paper, tallies: list[CoallocationTally]) -> None:
    """Only what was run is compared, and a figure outside its range is said to differ, with its interval over seeds."""
    rows = {row["figure"]: row for row in summarize(testbed, tallies, CoallocationSetup())["claims"]}
    assert not any("balancing" in figure for figure in rows)
    row = rows["success at 80 %"]
    assert (row["verdict"], row["seeds"], row["expected"]) == ("differs", 3, "0.61 to 0.68"), "a tenth of the load"
    alone = [_ratio_of(tally, 7) for tally in tallies]
    assert row["found"] == pytest.approx(sum(alone) / 3, abs=1e-4)
    assert row["low"] <= row["found"] <= row["high"]
    assert figures_of([]) == {}


def _ratio_of(tally: CoallocationTally, interval: int) -> float:
    asked, granted = (sum(counts[user][interval] for user in "AB") for counts in (tally.asked, tally.granted))
    return granted / asked


def test_what_is_written_can_be_read_again(testbed: Paper, tmp_path: Path) -> None:
    """JSON, CSV with a row for each figure, and pictures; what repeats is the same file, byte for byte."""
    contents = []
    for name in ("a", "b"):
        tallies = [run_once(testbed, scenario, 1, LEAST) for scenario in ("normal", "service_levels")]
        summary = summarize(testbed, tallies, LEAST)
        pictures = write(tmp_path / name, summary, measured(tallies), tallies)
        assert sorted(path.name for path in pictures) == sorted(
            f"{stem}.{suffix}" for stem in ("success", "utilisation", "planning") for suffix in ("png", "svg")
        )
        assert all(path.stat().st_size > 1000 for path in pictures)
        names = ("summary.json", "success.csv", "utilisation.csv", "success.svg", "utilisation.svg")
        contents.append([(tmp_path / name / file).read_bytes() for file in names])
    assert contents[0] == contents[1]
    with (tmp_path / "a" / "success.csv").open(newline="") as rows:
        assert len(list(csv.DictReader(rows))) == 2 * INTERVALS * 2
    times = json.loads((tmp_path / "a" / "measured.json").read_text())
    assert times["normal"]["max_ms"] >= times["normal"]["mean_ms"] > 0


def test_a_missing_or_broken_testbed_is_an_error_in_words(tmp_path: Path) -> None:
    """The file that was looked for is named, and what is wrong with it."""
    with pytest.raises(LeasekitError, match=r"coallocation/testbed\.json"):
        read_testbed(tmp_path)
    file = tmp_path / FILE
    file.parent.mkdir()
    for content, words in (("{", "can't be read as a testbed"), ("{}", "is not a testbed of the co-allocation paper")):
        file.write_text(content)
        with pytest.raises(LeasekitError, match=words):
            read_testbed(tmp_path)
    file.write_text(
        json.dumps({"vertices": [{"id": "A", "kind": "pear"}], "links": [], "workload": {}, "scenarios": {}})
    )
    with pytest.raises(LeasekitError, match=r"vertices\[0\]\.kind: found 'pear'"):
        read_testbed(tmp_path)


def test_a_folder_that_cannot_be_written_is_said(testbed: Paper, tmp_path: Path) -> None:
    """A file in place of the folder is an error that names it."""
    (tmp_path / "file").write_text("")
    tallies = [run_once(testbed, "normal", 1, CoallocationSetup(load=0.01))]
    with pytest.raises(LeasekitError, match="found a file, expected a folder to write results to"):
        write(tmp_path / "file", summarize(testbed, tallies, SMALL), measured(tallies), tallies)


def test_what_was_finished_is_not_run_again(testbed: Paper, tmp_path: Path) -> None:
    """Runs are kept as they end: all of a run is found again but of another setup, or of a file that broke off."""
    first, _ = actors.run_all(testbed, ["normal", "preference_size"], [2, 1], TINY, out=tmp_path)
    assert [(one.scenario, one.seed) for one in first] == [
        ("normal", 1), ("normal", 2), ("preference_size", 1), ("preference_size", 2)
    ]  # fmt: skip
    again, leases = actors.run_all(testbed, ["normal", "preference_size"], [2, 1], TINY, out=tmp_path)
    assert again == first and leases["normal"]["messages"] > 0  # planning times by a clock as well
    assert summarize(testbed, again, TINY) == summarize(testbed, first, TINY)
    kept = tmp_path / "runs" / "normal-1.json"
    kept.write_bytes(kept.read_bytes()[:-40])
    (mended,), _ = actors.run_all(testbed, ["normal"], [1], TINY, out=tmp_path)
    assert mended[:5] == first[0][:5] and mended.planning_ms != first[0].planning_ms
    (other,), _ = actors.run_all(testbed, ["normal"], [1], attrs.evolve(TINY, frames=2), out=tmp_path)
    assert other.planning_ms != mended.planning_ms


def test_an_end_before_its_time_has_the_seeds_that_were_done(testbed: Paper) -> None:
    """Of each scenario alike; where there is none, it is the end."""

    def ended(after: float) -> list[CoallocationTally]:
        def progress(_: str, share: float) -> None:
            if share >= after:
                raise KeyboardInterrupt

        return actors.run_all(testbed, ["normal", "preference_size"], [1, 2], TINY, progress=progress)[0]

    assert [(one.scenario, one.seed) for one in ended(0.75)] == [("normal", 1), ("preference_size", 1)]
    with pytest.raises(KeyboardInterrupt):
        ended(0.25)
