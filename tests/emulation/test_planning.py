"""What an emulation says of what was bought, and what it refuses to run."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any

import pytest

from leasekit.cli import main
from leasekit.core.leases.records import Asked, GuestLease
from leasekit.core.time import HOUR, Term
from leasekit.emulation.experiment import run_file
from leasekit.emulation.purchase import knee
from leasekit.emulation.request_book import RequestBook

LAB = """
[deployment]
name = "lab"
signatures = false

[actor.broker]
role = "broker"

[actor.lab]
role = "authority"
inventory = [{ type = "node", units = 4 }]
delegation = [{ broker = "broker", type = "node" }]

[actor.web]
role = "guest"
mapper = { name = "static", demands = [{ type = "node", units = 3, term = "12h", renew = false }] }

[actor.late]
role = "guest"
[actor.late.mapper]
name = "static"
demands = [{ type = "node", units = 2, term = "6h", renew = false, properties = PROPERTIES }]

[emulation]
horizon = "24h"
"""
DEFERRABLE = '{ deferrable = "true" }'


def emulated(folder: Path, text: str) -> dict[str, Any]:
    """The only run of a file with this text."""
    file = folder / "lab.toml"
    file.write_text(text)
    (found,) = run_file(file, folder / "out")["runs"]
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize(
    ("properties", "refused", "waited"), [("{}", 77, 0), (DEFERRABLE, 0, 1)], ids=["refused", "waits"]
)
def test_what_was_bought_is_used_or_idle(tmp_path: Path, properties: str, refused: int, waited: int) -> None:
    """Four nodes for a day are 96 unit-hours. Three are leased for half of it, two for six hours then: who wants those
    two is refused as often as it asks, or waits for twelve hours where it may.
    """
    found = emulated(tmp_path, LAB.replace("PROPERTIES", properties))
    lab = found["sites"]["lab"]
    assert lab["bought_unit_h"] == 96
    assert lab["used"] == pytest.approx((3 * 12 + 2 * 6) / 96, abs=1e-3)
    assert lab["used"] + lab["idle"] == pytest.approx(1)
    assert lab["requests"]["asked"] == 2 + refused
    assert (lab["requests"]["refused"], lab["requests"]["granted_later"]) == (refused, waited)
    assert lab["requests"]["refusals"] == ({"mapper:insufficient": refused} if refused else {})
    assert lab["requests"]["granted_at_once"] == 2 - waited and lab["requests"]["unanswered"] == 0
    late = found["guests"]["late"]["requests"]
    assert (late["asked"], late["refused"], late["granted_later"]) == (1 + refused, refused, waited)
    wait = waited * 12 * HOUR / 1000
    assert late["mean_wait_s"] == late["p50_wait_s"] == late["p99_wait_s"] == pytest.approx(wait, rel=0.01)
    assert late["mean_bounded_slowdown"] == pytest.approx(3 if waited else 1, rel=0.01), "12 and 6 hours by 6"
    assert lab["requests"]["p50_wait_s"] == 0 and lab["requests"]["p95_wait_s"] == late["mean_wait_s"]
    web = found["guests"]["web"]["types"]["node"]
    assert web["requests"] == found["guests"]["web"]["requests"]
    assert web["requests"]["refused"] == web["requests"]["granted_later"] == 0
    assert web["leased_unit_h"] == pytest.approx(36, rel=0.01)


def test_who_is_refused_by_its_broker_itself_is_told_why(tmp_path: Path) -> None:
    """A request that no site could fill is refused before any mapper sees it: the code is what the broker says."""
    found = emulated(tmp_path, LAB.replace("PROPERTIES", DEFERRABLE).replace("units = 2", "units = 20"))
    asked = found["guests"]["late"]["requests"]
    assert asked["refused"] > 0 and asked["refusals"] == {"too_large": asked["refused"]}


FAILING = LAB.replace("PROPERTIES", "{}").replace(
    'delegation = [{ broker = "broker", type = "node" }]',
    """delegation = [{ broker = "broker", type = "node" }]
settings = { failures_max = 1 }
driver.machines = { kind = "null", failure = { setup = 1.0 } }""",
)


@pytest.mark.parametrize(("repair", "repaired"), [("", False), ('repair = "4h"', True)])
def test_units_that_fail_are_counted_and_repaired(tmp_path: Path, repair: str, repaired: bool) -> None:
    """Every setup fails: the four units are out of service, for good or for four hours each time. What is out of
    service is not idle. A unit that was repaired is leased, and fails, again; the last ones are not repaired in time.
    Brokers grant nothing of what is out of service.
    """
    text = FAILING.replace('horizon = "24h"', f'horizon = "24h"\n{repair}\n[[emulation.plot]]\nkind = "site_usage"')
    run = emulated(tmp_path, text)
    found = run["sites"]["lab"]
    assert (found["failed"], found["repaired"]) == ((24, 20) if repaired else (4, 0))
    requests = run["guests"]["web"]["requests"]
    assert requests["failed"] > 1 if repaired else requests["failed"] == 1
    assert found["used"] + found["idle"] + found["out_of_service"] == pytest.approx(1)
    with (tmp_path / "out" / "series.csv").open(newline="") as file:
        out = [(int(row["instant_ms"]), float(row["lab.out_of_service"])) for row in csv.DictReader(file)]
    assert max(units for _, units in out) == 4


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (("units = 4 }", "units = 0 }"), "actor.lab.inventory: found 0 units of 'node', expected 1 or more"),
        (
            ('[{ type = "node", units = 3', '[{ type = "gpu", units = 3'),
            "actor.web.mapper: found type 'gpu', which no site offers to a broker, expected one of: node",
        ),
        (('horizon = "24h"', 'horizon = "99999999d"'), "emulation.horizon: found "),
    ],
    ids=["no units", "type nobody offers", "horizon"],
)
def test_what_can_come_to_nothing_is_told_before_the_run(
    tmp_path: Path, edit: tuple[str, str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line says so, status 1, and nothing is written; also where only one run of several has it."""
    file = tmp_path / "lab.toml"
    text = LAB.replace("PROPERTIES", "{}")
    assert edit[0] in text
    file.write_text(text.replace(*edit))
    assert main.run(["emulate", str(file), "--out", str(tmp_path / "out")]) == 1
    told = capsys.readouterr().err
    assert said in told and len(told.splitlines()) == 1, told


@pytest.mark.parametrize(
    ("peak", "said"),
    [
        (4, ""),
        (
            7,
            "crowd: its load has a peak of 7 of 'node', where the largest site has 4: it needs leases of several",
        ),
        (9, "crowd: its load has a peak of 9 of 'node', where all sites together have 8: the peak can't be served"),
    ],
)
def test_a_peak_of_a_load_above_what_sites_have_is_told_before_the_run(
    tmp_path: Path, peak: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two sites of four nodes, and a guest that follows a load of its own."""
    crowd = f"""[actor.second]
role = "authority"
inventory = [{{ type = "node", units = 4, prefix = "s-" }}]
delegation = [{{ broker = "broker", type = "node" }}]

[actor.crowd]
role = "guest"
mapper = {{ name = "load_following", type = "node", term = "1h", signal = {{ synthetic = {{}}, peak = {peak} }} }}
"""
    file = tmp_path / "lab.toml"
    file.write_text(LAB.replace("PROPERTIES", "{}").replace("[actor.late]", f"{crowd}[actor.late]", 1))
    assert main.run(["emulate", str(file)]) == 0
    told = [line for line in capsys.readouterr().err.splitlines() if "its load has a peak" in line]
    assert bool(told) == bool(said) and all(said in line for line in told)


@pytest.mark.parametrize(("every", "told"), [("3h", ""), ("30m", "jobs are 188 unit-hours of 'node', of which")])
def test_more_work_than_sites_can_do_is_told_before_the_run(
    tmp_path: Path, every: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Jobs of two hours on two nodes come to 28 or 188 unit-hours in a day, of the 96 that four nodes have."""
    jobs = f"""{{ made = {{ every = "{every}", run = "2h", units = [2] }} }}"""
    text = LAB.replace("PROPERTIES", "{}").replace(
        "[actor.late]", f"""[actor.jobs]
role = "guest"
mapper = {{ name = "replay", type = "node", jobs = {jobs} }}

[actor.late]""", 1,
    )  # fmt: skip
    file = tmp_path / "lab.toml"
    file.write_text(text)
    assert main.run(["emulate", str(file)]) == 0
    said = [line for line in capsys.readouterr().err.splitlines() if "unit-hours" in line]
    assert bool(said) == bool(told) and all(told in line and "together have 96 in the time" in line for line in said)


def test_requests_that_no_site_can_grant_are_told_before_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those of a list, and of jobs, that which is for a small site as well; one that takes fewer can be granted."""
    file = tmp_path / "lab.toml"
    (tmp_path / "jobs.csv").write_text("submit_s,run_s,units,site\n0,60,4,\n60,60,9,\n90,60,2,annex\n")
    jobs = """[actor.batch]
role = "guest"
mapper = { name = "replay", type = "node", jobs = { file = "jobs.csv" } }
[actor.people]
role = "guest"
mapper = { name = "users", type = "node", units = [1, 5] }
"""
    annex = """[actor.annex]
role = "authority"
inventory = [{ type = "node", units = 1 }]
delegation = [{ broker = "broker", type = "node" }]
"""
    text = LAB.replace("PROPERTIES", '{ elastic = "true" }').replace("units = 2, term", "units = 20, term")
    text = text.replace("[actor.web]", f"{annex}[actor.web]")
    file.write_text(text.replace("units = 3, term", "units = 6, term").replace("[actor.late]", f"{jobs}[actor.late]"))
    assert main.run(["emulate", str(file), "--data", str(tmp_path)]) == 0
    told = capsys.readouterr().err
    more = "requests ask for more units than any site has that they may be at, the widest for"
    assert f"web: 1 of 1 {more} 6 of 'node', where the largest site has 4: they can't be granted" in told
    assert f"people: 1 of 2 {more.replace('requests', 'widths')} 5 of 'node'" in told
    assert f"batch: 2 of 3 {more} 9 of 'node'" in told and "late:" not in told
    (tmp_path / "annex.csv").write_text("submit_s,run_s,units,site\n0,60,4,lab\n90,60,2,annex\n")
    file.write_text(file.read_text().replace("jobs.csv", "annex.csv"))
    assert main.run(["emulate", str(file), "--data", str(tmp_path)]) == 0
    assert f"batch: 1 of 2 {more} 2 of 'node', where site 'annex' has 1: they" in capsys.readouterr().err


def test_of_several_runs_the_one_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Before the first is run."""
    file = tmp_path / "lab.toml"
    runs = '[[emulation.run]]\nname = "nodes"\neach = { "actor.lab.inventory.0.units" = [4, 0] }\n'
    file.write_text(LAB.replace("PROPERTIES", "{}") + runs)
    assert main.run(["emulate", str(file)]) == 1
    out, told = capsys.readouterr()
    assert out == "" and "run 'nodes 0': actor.lab.inventory: found 0 units" in told


def test_the_table_says_what_became_of_what_was_bought(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A line for the site, beside those of its guests."""
    file = tmp_path / "lab.toml"
    file.write_text(LAB.replace("PROPERTIES", DEFERRABLE))
    assert main.run(["emulate", str(file)]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"lab +lab +node +4 +96 +50% +50% +0% +3\.0 +0 +0\n", shown)
    assert re.search(r"lab +lab +node +2 +1 +1 +0 +0 +0 +0 +0\n", shown), "asked, at once, later, and nothing else"
    assert re.search(r"lab +late +node +12h +12h +12h +12h +3\n", shown), "waits"


PURCHASE = """
[[emulation.run]]
name = "nodes"
each = { "actor.lab.inventory.0.units" = [3, 4, 5, 6, 9] }
[[emulation.plot]]
kind = "purchase"
x = "actor.lab.inventory.0.units"
"""


def test_a_purchase_has_its_knee_where_more_units_stop_to_pay(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Who wants two nodes beside three waits for twelve hours with three or four of them, and not at all with five:
    the knee is there, in the table, the summary and the picture.
    """
    file = tmp_path / "lab.toml"
    file.write_text(LAB.replace("PROPERTIES", DEFERRABLE) + PURCHASE)
    assert main.run(["emulate", str(file), "--out", str(tmp_path / "out")]) == 0
    out, told = capsys.readouterr()
    assert re.search(r"nodes 5 +5 .* knee\n", out) and out.count("knee") == 1
    assert "knee: beyond 5 units of node at lab, more of them lower the mean wait by little\n" in told
    (found,) = json.loads((tmp_path / "out" / "summary.json").read_text())["purchases"]
    assert (found["knee"], found["by"]) == (5, "mean_wait_s")
    assert [row["mean_wait_s"] for row in found["rows"]] == pytest.approx([21600, 21600, 0, 0, 0], rel=0.01)
    assert "knee: 5" in (tmp_path / "out" / "purchase.svg").read_text()


@pytest.mark.parametrize(
    ("curve", "found"),
    [
        ([(1, 10), (2, 2), (3, 1), (10, 0)], 2),
        ([(0, 4), (1, 3), (2, 2), (4, 0)], None),
        ([(0, 0), (1, 5), (2, 6)], None),
        ([(0, 5), (1, 5), (2, 5)], None),
        ([(0, 5), (9, 1)], None),
    ],
    ids=["bends", "straight", "rises", "flat", "two points"],
)
def test_a_knee_is_furthest_below_the_chord(curve: list[tuple[float, float]], found: float | None) -> None:
    """And there is none where a curve does not bend, or fall, or is too short to say."""
    assert knee(curve) == found


def test_a_lease_that_its_site_ends_early_is_cut() -> None:
    """A notice counts, and what follows from it does not count again. A change before it begins is a request, too."""
    book = RequestBook({"lab": ["node"]}, 1)
    asked = GuestLease("l", "", "", "node", "broker", Asked("ask", 3, Term(0, 100), "", {}))
    book.logged(0, "web", (0, "l", "ask", "nascent/-", "nascent/ticketing", ""))
    book.lease("web", asked.row())
    book.logged(1, "web", (1, "l", "ticket", "nascent/ticketing", "ticketed/-", ""))
    book.lease("web", asked.row())
    book.logged(2, "web", (2, "l", "replace", "ticketed/-", "ticketed/modifying", ""))
    book.logged(3, "web", (3, "l", "ticket", "ticketed/modifying", "ticketed/-", ""))
    found = book.by_guest["web"].summary()
    assert (found["asked"], found["granted_at_once"], found["leases"], found["unanswered"]) == (2, 2, 1, 0)
    book.logged(50, "web", (50, "l", "notice", "active/-", "active/noticed", ""))
    book.logged(60, "web", (60, "l", "lost", "active/noticed", "closed/-", ""))
    assert book.by_guest["web"].cut == 1, "once, however often it is told"
    book.logged(100, "web", (100, "l", "lost", "active/-", "closed/-", ""))
    assert book.by_guest["web"].cut == 1
