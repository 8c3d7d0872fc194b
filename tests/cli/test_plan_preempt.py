"""``leasekit plan preempt`` and ``leasekit experiment preemption``: formats, exit statuses, the paper's tables."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from leasekit.cli.main import run
from leasekit.emulation.preemption import TABLES, problem_of


def asked(
    content: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str
) -> tuple[int, str, str]:
    """Exit status and what is printed for a problem on standard input."""
    monkeypatch.setattr("sys.stdin", io.StringIO(content if isinstance(content, str) else json.dumps(content)))
    status = run(["plan", "preempt", "-", *arguments])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def lease(name: str, cpu: float = 1, **others: Any) -> dict[str, Any]:
    """A preemptible lease that has run for ten minutes."""
    return {"id": name, "resources": {"cpu": cpu}, "runtime_s": 600, "preemptible": True} | others


def problem(*leases: dict[str, Any], cpu: float = 1, **others: Any) -> dict[str, Any]:
    """A host of one CPU with leases, and a request for a CPU."""
    hosts = [{"id": "a", "capacity": {"cpu": cpu}, "leases": list(leases)}]
    return {"request": {"resources": {"cpu": 1}}, "hosts": hosts} | others


def test_the_papers_tables_are_found_exactly(capsys: pytest.CaptureFixture[str]) -> None:
    """Victims, cost and runners-up of all four."""
    assert run(["experiment", "preemption", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(one["victims"], one["cost"]) for one in found] == [
        ("BP1", 11),
        ("CP1", 1),
        ("AP2 AP3 AP4", 55),
        ("BP3", 20),
    ]
    assert all(one["same"] for one in found)
    assert found[2]["others"] == {"CP1": 57, "AP1": 58, "BP1": 58, "CP2 CP3": 112}
    assert run(["experiment", "preemption"]) == 0
    assert capsys.readouterr().out.count("ok") == 4


def test_json_is_one_object_in_the_format(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Decided is exit status 0, with exactly the keys of the format; costs are seconds."""
    status, out, _ = asked(problem_of(TABLES[3]), monkeypatch, capsys, "--json")
    answer = json.loads(out)
    assert status == 0 and answer.pop("solve_ms") >= 0
    assert answer["runners_up"][0] == {"host": "host-D", "victims": ["DP3"], "cost": 1440}
    assert answer | {"runners_up": []} == {
        "status": "placed",
        "placements": [{"host": "host-B", "victims": ["BP3"], "cost": 1200}],
        "proven": True,
        "runners_up": [],
        "reason": None,
    }
    status, out, _ = asked(problem_of(TABLES[3]), monkeypatch, capsys)
    assert status == 0 and "host-B" in out and "DP2, DP4" in out


@pytest.mark.parametrize(
    ("content", "cost"),
    [
        (problem(lease("p")), 600),
        (problem(lease("p", price=0.5), cost="price"), 300),
        (problem(lease("p", saved_s=450.5), cost="lost_work"), 149.5),
        (problem(lease("p"), cost="count"), 1),
        (problem(lease("p", priority=2), cost="priority"), 1_000_000),
        (problem(lease("p"), period_s=180), 60),
    ],
)
def test_costs_are_told_in_their_own_units(
    content: Any, cost: float, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Seconds, seconds times price, victims."""
    _, out, _ = asked(content, monkeypatch, capsys, "--json")
    assert json.loads(out)["placements"] == [{"host": "a", "victims": ["p"], "cost": cost}]


def test_tenths_add_up(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """0.1 and 0.7 of a CPU are 0.8 of it, as they are written."""
    content = problem(lease("p", 0.7), cpu=0.8)
    content["request"]["resources"]["cpu"] = 0.8
    _, out, _ = asked(content, monkeypatch, capsys, "--json")
    assert json.loads(out)["placements"][0]["victims"] == ["p"]


def test_a_batch_is_placed_whole_or_not(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Two have two victims; the third has no place, so none has."""
    request = {"resources": {"cpu": 1}, "count": 2}
    _, out, _ = asked(problem(lease("p"), lease("q"), cpu=2, request=request), monkeypatch, capsys, "--json")
    assert [one["victims"] for one in json.loads(out)["placements"]] == [["p"], ["q"]]
    request["count"] = 3
    status, out, _ = asked(problem(lease("p"), lease("q"), cpu=2, request=request), monkeypatch, capsys, "--json")
    answer = json.loads(out)
    assert status == 0 and answer["status"] == "refused" and answer["placements"] == []
    assert answer["reason"] == "only 2 of 3 can be placed"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (
            problem(lease("p"), request={"resources": {"cpu": 2}}),
            "no host is large enough for 2 cpu: too little cpu on 1 of 1 hosts: 2 needed, at most 1 free",
        ),
        (
            problem(lease("p", min_run_s=601)),
            "no host has room, not even in place of the leases that it may preempt: "
            "too little cpu on 1 of 1 hosts: 1 needed, at most 0 free",
        ),
        (
            problem(lease("p", preemptible=False)),
            "no host has room beside the leases that are not preemptible: "
            "too little cpu on 1 of 1 hosts: 1 needed, at most 0 free",
        ),
        (
            problem(lease("p"), request={"resources": {"cpu": 1}, "preemptible": True}),
            "no host has room, and a preemptible request takes nobody's place: "
            "too little cpu on 1 of 1 hosts: 1 needed, at most 0 free",
        ),
        (problem() | {"hosts": []}, "there are no hosts"),
    ],
)
def test_a_refusal_says_why(
    content: Any, reason: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is decided: exit status 0."""
    status, out, _ = asked(content, monkeypatch, capsys, "--json")
    answer = json.loads(out)
    assert status == 0 and answer["status"] == "refused" and answer["reason"] == reason


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[]", "found list, expected a JSON object"),
        ('{"request": NaN}', "NaN is no number, expected a JSON object"),
        ({"hosts": []}, "request: found nothing, expected a table"),
        (problem(lease("p", -1)), "hosts[0].leases[0].resources: found a table, but cpu is -1.0, expected 0 to 1e+12"),
        (problem(lease("p"), lease("p"), cpu=2), "hosts.leases: found the id 'p' 2 times, expected it once"),
        (
            problem(lease("p", 2)),
            "hosts[0].leases: found leases with 2 cpu in all, expected at most the capacity of host a (1)",
        ),
        (
            problem(request={"resources": {"gpu": 1}}),
            "request.resources.gpu: found a resource that no host has, expected one of: cpu",
        ),
        (problem(request={"resources": {}}), "request.resources: found an empty table, expected at least one resource"),
        (problem(request={"resources": {"cpu": 1}, "count": 0}), "request.count: found 0, expected >= 1"),
        (problem(period_s=0), "period_s: found 0, expected at least 0.001"),
        (problem(lease("p", saved_s=601)), "hosts[0].leases[0].saved_s: found 601, expected at most runtime_s (600)"),
        (problem(lease("p", bid=1)), "hosts[0].leases[0].bid: found an unknown key, expected one of: id, min_run_s,"),
    ],
)
def test_a_wrong_file_is_one_message(
    content: Any, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It names the key; exit status 2."""
    status, out, err = asked(content, monkeypatch, capsys, "--json")
    assert status == 2 and out == ""
    assert err.startswith(f"leasekit: standard input: {message}") and err.count("\n") == 1


def test_the_schema_has_the_keys(capsys: pytest.CaptureFixture[str]) -> None:
    """Unknown ones are errors."""
    assert run(["plan", "preempt", "--schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert set(schema["properties"]) == {"request", "hosts", "cost", "period_s"}
    assert schema["additionalProperties"] is False and schema["required"] == ["request", "hosts"]


def test_the_pages_problem_is_decided_as_it_says(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """docs/preemption.md: victims, and what others would cost."""
    page = (Path(__file__).resolve().parents[2] / "docs" / "preemption.md").read_text(encoding="utf-8")
    _, out, _ = asked(page.partition("```json\n")[2].partition("```")[0], monkeypatch, capsys, "--json")
    answer = json.loads(out)
    assert answer["placements"] == [{"host": "h1", "victims": ["b1", "b2"], "cost": 700}]
    assert answer["runners_up"] == [{"host": "h2", "victims": ["b3"], "cost": 2100}]
