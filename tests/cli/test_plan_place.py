"""``leasekit plan place``: formats, exit statuses, and one message for a bad file."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any, get_args

import pytest

from leasekit.cli.main import run
from leasekit.policies.authority.placing.file import AlgorithmName
from leasekit.policies.authority.placing.solve import ALGORITHMS

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> Any:
    """Exit status and what is printed for a problem on standard input."""

    def asked(content: Any, *arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.stdin", io.StringIO(content if isinstance(content, str) else json.dumps(content)))
        status = run(["plan", "place", "-", *arguments])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return asked


def task(cpu: float = 0.5, mem: float = 0.4, **others: Any) -> dict[str, Any]:
    """A task."""
    return {"cpu": cpu, "mem": mem} | others


def problem(*tasks: dict[str, Any], hosts: Any = 2, **others: Any) -> dict[str, Any]:
    """A problem file."""
    return {"hosts": hosts, "tasks": list(tasks)} | others


FOUR = problem(task(0.9), task(0.6), task(0.5), task(0.4))


@pytest.mark.parametrize("name", [name for name in ALGORITHMS if name not in ("lp", "rrnd")])
def test_json_is_one_object_in_the_format(name: str, ask: Any) -> None:
    """Decided is exit status 0, with exactly the keys of the format."""
    status, out, _ = ask(FOUR | {"algorithm": name, "local_search": True}, "--json")
    answer = json.loads(out)
    assert status == 0 and answer.pop("solve_ms") >= 0
    mapping, cpu = answer.pop("mapping"), answer.pop("cpu")
    assert sorted(mapping) == [0, 0, 1, 1] and mapping[0] == mapping[3]
    loads = [sum(share for share, host in zip(cpu, mapping, strict=True) if host == one) for one in (0, 1)]
    assert loads == pytest.approx([1.0, 1.0])
    assert answer.pop("average_yield") >= answer.pop("min_yield") == pytest.approx(1 / 1.3)
    assert answer == {"status": "ok", "bound": pytest.approx(2 / 2.4), "moved": []} or name == "exact"


def test_exact_proves_its_bound_and_lp_is_a_bound_alone(ask: Any) -> None:
    """Where nothing is mapped the rest is null."""
    exact = json.loads(ask(FOUR | {"algorithm": "exact"}, "--json")[1])
    assert exact["bound"] == pytest.approx(exact["min_yield"]) == pytest.approx(1 / 1.3)
    relaxed = json.loads(ask(FOUR | {"algorithm": "lp"}, "--json")[1])
    assert relaxed.pop("solve_ms") >= 0
    assert relaxed == {
        "status": "ok", "min_yield": pytest.approx(2 / 2.4), "average_yield": None, "bound": pytest.approx(2 / 2.4),
        "mapping": None, "cpu": None, "moved": [],
    }  # fmt: skip


def test_hosts_have_ids_and_tasks_run(ask: Any) -> None:
    """By id or by position; whoever moves is named, by id if it has one; units are the writer's."""
    hosts = [{"id": "a", "cpu": 4000, "mem": 8192}, {"id": "b", "cpu": 2000, "mem": 4096}]
    tasks = [
        task(2000, 4096, host="b", id="web"),
        task(2000, 4096, host=1),
        task(2000, 4096, host=None),
    ]
    content = problem(*tasks, hosts=hosts, algorithm="exact", migration_bound=4096)
    tasks[1]["mem"] = tasks[0]["mem"] = 2048
    answer = json.loads(ask(content, "--json")[1])
    assert answer["min_yield"] == 1.0 and answer["mapping"].count("a") == 2 and answer["mapping"][2] == "a"
    assert answer["moved"] in (["web"], [1])
    still = json.loads(ask(content | {"migration_bound": 0}, "--json")[1])
    assert still["moved"] == [] and still["min_yield"] == 0.5 and still["mapping"] == ["b", "b", "a"]


def test_jobs_share_a_yield(ask: Any) -> None:
    """The average is per job, and tasks of a job have equal shares."""
    answer = json.loads(ask(problem(task(0.8, job="J"), task(0.8, job="J"), task(0.4), task(0.9)), "--json")[1])
    assert answer["cpu"][0] == pytest.approx(answer["cpu"][1])
    yields = [answer["cpu"][0] / 0.8, answer["cpu"][2] / 0.4, answer["cpu"][3] / 0.9]
    assert answer["average_yield"] == pytest.approx(sum(yields) / 3)


def test_what_does_not_fit_is_infeasible_or_failed(ask: Any) -> None:
    """Exit status 0: it is decided. Only exact and lp can say that nothing fits."""
    crowd = problem(task(0.1, 0.6), task(0.1, 0.6), task(0.1, 0.6))
    for name, status in (("exact", "infeasible"), ("mcb8", "failed"), ("lp", "ok"), ("best", "failed")):
        code, out, _ = ask(crowd | {"algorithm": name}, "--json")
        answer = json.loads(out)
        assert (code, answer["status"]) == (0, status)
        assert answer["mapping"] is None
    assert json.loads(ask(problem(task(0.1, 0.9), hosts=1, algorithm="lp") | {"tasks": [task(0, 1)] * 2}, "--json")[1])[
        "status"
    ] == "infeasible"  # fmt: skip


TWO = [{"id": "a", "cpu": 8000, "mem": 8192}, {"id": "b", "cpu": 8000, "mem": 8192}]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (problem(task(0.1, 0.9), task(0.1, 0.9), task(0.1, 0.9)), "tasks need 2.7 mem in all, hosts have 2"),
        (
            problem(task(100, 4096, id="small"), task(100, 6144, id="db"), task(100, 6144), hosts=TWO),
            "task 'small' has no place beside the 2 that are placed before it: "
            "too little mem on 2 of 2 hosts: 4096 needed, at most 2048 free",
        ),
        (
            problem(
                task(100, 4096, host="a"), task(100, 4096, host="b"), task(100, 8192), hosts=TWO, migration_bound=0
            ),
            "with at most 0 mem moved, task 2 has no place beside the 2 that are placed before it: "
            "too little mem on 2 of 2 hosts: 8192 needed, at most 4096 free",
        ),
        (
            problem(task(100, 6144, host="a"), task(100, 4096, host="a"), hosts=TWO, migration_bound=2048),
            "with at most 2048 mem moved, tasks that run on host a need 10240 mem, it has 8192",
        ),
    ],
)
@pytest.mark.parametrize("name", ["best", "gr", "exact"])
def test_what_is_not_placed_says_why(content: Any, reason: str, name: str, ask: Any) -> None:
    """What is short, for which task, on how many hosts; an answer that places has no reason."""
    assert json.loads(ask(content | {"algorithm": name}, "--json")[1])["reason"] == reason
    assert reason in " ".join(ask(content | {"algorithm": name})[1].split())


def test_where_another_order_leads_to_places_that_is_the_reason(ask: Any) -> None:
    """In the order of the file there is no room for the last; largest first there is."""
    content = problem(task(0.1, 0.5), task(0.1, 0.5), task(0.1, 1.0), algorithm="gr")
    answer = json.loads(ask(content, "--json")[1])
    assert answer["reason"] == "gr found no placement, though there is one for tasks put largest first: try exact"
    assert json.loads(ask(content | {"algorithm": "exact"}, "--json")[1])["status"] == "ok"


def test_a_person_sees_hosts_and_shares(ask: Any) -> None:
    """Without --json the same is printed as a table, from a file as well; tasks by their ids, or numbers."""
    status, out, _ = ask(problem(task(1.0, host=0) | {"id": "web"}, task(1.0, host=0), hosts=2))
    assert status == 0 and "min yield" in out and "1.0000" in out and "moved" in out
    assert [line.split()[0] for line in out.splitlines() if "1.0000" in line] == ["web", "1"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[]", "found list, expected a JSON object"),
        ('{"hosts": 1, "tasks": [{"cpu": NaN, "mem": 1}]}', "NaN is no number, expected a JSON object"),
        ({"hosts": 1}, "tasks: found nothing, expected a list of tables"),
        (problem(hosts=0), "hosts: found 0, expected 1 to 100000"),
        (problem(hosts=[]), "hosts: found none, expected at least one"),
        (problem(hosts=[{"id": "a", "gpu": 1}]), "hosts[0].gpu: found an unknown key, expected one of: cpu, id, mem"),
        (problem(hosts=[{"id": "a"}, {"id": "a"}]), "hosts: found the id 'a' 2 times, expected it once"),
        (problem(hosts=[{"id": "a", "mem": -1}]), "hosts[0].mem: found -1, expected a finite number of 0 or more"),
        (problem(task(id="t"), task(id="t")), "tasks: found the id 't' 2 times, expected it once"),
        (problem(task(-1)), "tasks[0].cpu: found -1, expected a finite number of 0 or more"),
        (problem(task(mem=1.5)), "tasks[0].mem: found 1.5, expected at most 1: no host has more"),
        (problem(task(1.5)), "tasks[0].cpu: found 1.5, expected at most 1: no host has more"),
        (problem(task(host=2)), "tasks[0].host: found 2, expected the position of a host, 0 to 1"),
        (problem(task(host="x")), "tasks[0].host: found 'x', expected one of: 0, 1"),
        (problem(task(cores=2)), "tasks[0].cores: found an unknown key, expected one of: cpu, host, id, job, mem"),
        (problem(migration_bound=-0.1), "migration_bound: found -0.1, expected 0 or more"),
        (problem(time_limit_s=0), "time_limit_s: found 0, expected > 0"),
        (problem(algorithm="mcb9"), "algorithm: found 'mcb9', expected one of: 'exact', 'lp', 'rrnd'"),
        (problem(second_phase="all"), "second_phase: found 'all', expected one of: 'average', 'max_min', 'none'"),
    ],
)
def test_a_wrong_file_is_one_message(content: Any, message: str, ask: Any) -> None:
    """It names the key; exit status 2."""
    status, out, err = ask(content, "--json")
    assert status == 2 and out == ""
    assert err.startswith(f"leasekit: standard input: {message}") and err.count("\n") == 1 and ";" not in err


def test_the_schema_has_the_keys_and_all_algorithms(capsys: Capture) -> None:
    """Unknown ones are errors; the names of algorithms are those that there are."""
    assert run(["plan", "place", "--schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert schema["required"] == ["hosts", "tasks"] and schema["additionalProperties"] is False
    assert schema["properties"]["algorithm"]["enum"] == list(ALGORITHMS) == list(get_args(AlgorithmName))


def test_the_file_may_be_a_file(tmp_path: Path, capsys: Capture) -> None:
    """By its name, which a message begins with."""
    file = tmp_path / "p.json"
    file.write_text(json.dumps(problem(task())), encoding="utf-8")
    assert run(["plan", "place", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["cpu"] == [0.5]
    file.write_text("{", encoding="utf-8")
    assert run(["plan", "place", str(file)]) == 2
    assert capsys.readouterr().err.startswith(f"leasekit: {file}: line 1")


def test_the_pages_problem_is_decided_as_it_says(ask: Any) -> None:
    """docs/placement.md: who moves with the bound, and the yield without."""
    page = (Path(__file__).resolve().parents[2] / "docs" / "placement.md").read_text(encoding="utf-8")
    content = json.loads(page.partition("```json\n")[2].partition("```")[0])
    answer = json.loads(ask(content, "--json")[1])
    assert (answer["min_yield"], answer["moved"], answer["mapping"]) == (1.0, ["web"], ["h1", "h2", "h1"])
    still = json.loads(ask(content | {"migration_bound": 0}, "--json")[1])
    assert (still["min_yield"], still["moved"]) == (0.5, [])
    assert all(f"`{name}`" in page for name in ALGORITHMS if not name.startswith("mcb"))
