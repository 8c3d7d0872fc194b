"""A problem file, decided: the answer's format, the words of refusals, and what would fit."""

from __future__ import annotations

import copy
from itertools import pairwise
from typing import Any

import pytest

from leasekit.core.settings import SettingsError
from leasekit.policies.broker.coallocation.model import read_problem
from leasekit.policies.broker.coallocation.problem import Decision

LINE: dict[str, Any] = {
    "resources": {
        "vertices": [
            {"id": "N0", "kind": "site", "cpus": 8, "attrs": ["linux"]},
            {"id": "N1", "kind": "site", "cpus": 4},
            {"id": "N2", "kind": "site", "cpus": 4},
            {"id": "X1", "kind": "exchange"},
        ],
        "links": [
            {"a": "N0", "b": "X1", "bw": 1, "vb": 3},
            {"a": "N1", "b": "X1", "bw": 1, "vb": 3},
            {"a": "N2", "b": "X1", "bw": 1, "vb": 4},
        ],
    },
    "request": {
        "sites": [{"id": "r0", "cpus": 8}, {"id": "r1", "cpus": 2}],
        "links": [{"from": "r1", "to": "r0", "bw": 1}, {"from": "r0", "to": "r1", "bw": 0}],
    },
}
FRAMES: dict[str, Any] = {"est": 0, "lst": 40, "duration": 10, "count": 3}


def answer(changes: dict[str, Any] | None = None, **parts: Any) -> dict[str, Any]:
    """The answer to the problem above with parts replaced, and keys of its request."""
    content = copy.deepcopy(LINE) | parts
    content["request"] |= changes or {}
    return Decision(read_problem(content)).answer()


def reason(changes: dict[str, Any] | None = None, **parts: Any) -> str:
    """The reason of a refusal."""
    found = answer(changes, **parts)
    assert found["status"] == "infeasible" and found["sites"] is None and found["objective"] is None
    return str(found["reason"])


def sites(*wanted: dict[str, Any]) -> dict[str, Any]:
    """A request of these sites, in a line."""
    ids = [one["id"] for one in wanted]
    return {
        "sites": list(wanted),
        "links": [{"from": a, "to": b, "bw": 1} for a, b in pairwise(ids)],
    }


@pytest.mark.parametrize("solver", ["auto", "search", "highs"])
def test_one_instant_has_the_answer_of_the_format(solver: str) -> None:
    """Status, objective and bound, a site for each requested one, a path for each requested link, in order."""
    assert answer(options={"solver": solver}) == {
        "status": "optimal",
        "objective": 16,
        "bound": 16,
        "sites": {"r0": "N0", "r1": "N1"},
        "paths": [["N1", "X1", "N0"], None],
        "reason": None,
    }


def test_numbers_are_what_was_written() -> None:
    """Three tenths carry a tenth and two tenths; an objective that isn't whole is a fraction."""
    resources = copy.deepcopy(LINE["resources"])
    for link in resources["links"]:
        link.update(bw=0.3, vb=0.7)
    links = [{"from": "r0", "to": "r1", "bw": bw} for bw in (0.1, 0.2)]
    found = answer({"links": links}, resources=resources)
    assert found["status"] == "optimal" and found["objective"] == pytest.approx(10 + 2 * 0.7 * 0.3, abs=1e-12)


def test_backups_are_given_where_they_were_asked_for() -> None:
    """A requested link with a backup has two paths that share no link, and pays for both."""
    resources = copy.deepcopy(LINE["resources"])
    resources["links"].append({"a": "N0", "b": "N1", "bw": 1, "vb": 9})
    found = answer({"links": [{"from": "r0", "to": "r1", "bw": 1, "backup": True}]}, resources=resources)
    assert {tuple(found["paths"][0]), tuple(found["backups"][0])} == {("N0", "N1"), ("N0", "X1", "N1")}
    assert found["objective"] == 10 + 9 + 6
    one_way = reason({"links": [{"from": "r0", "to": "r1", "bw": 1, "backup": True}]})
    assert one_way.startswith("no second path that shares no link with the first")


def test_no_site_with_enough_cpus_is_said_with_the_most_there_is() -> None:
    """The number wanted, for whom, and the roomiest site."""
    said = reason(sites({"id": "r0", "cpus": 9}))
    assert said == "no site with 9 CPUs free for r0 over 0-1 (most: 8 at N0)"
    said = reason(sites({"id": "r0", "cpus": 9, "need": ["linux"]}))
    assert said.startswith("no site with linux and 9 CPUs free for r0")


def test_what_no_load_would_change_is_said() -> None:
    """Attributes that no site has, pins that can't be, sites that are all excluded."""
    assert reason(sites({"id": "r0", "cpus": 1, "need": ["mpi"]})) == "no site has mpi, wanted for r0"
    assert reason(sites({"id": "r0", "cpus": 1, "need": ["linux"], "pin": "N1"})) == (
        "r0 is pinned to N1, but it lacks linux"
    )
    assert reason(sites({"id": "r0", "cpus": 1, "exclude": ["N0", "N1", "N2"]})) == "every site is excluded for r0"
    assert reason(sites({"id": "r0", "cpus": 5, "pin": "N1"})) == "N1 has 4 CPUs free 0-1, 5 wanted for r0"


def test_too_few_sites_for_those_that_need_them_is_said() -> None:
    """Two that need the one large site are named, with the sites that there are."""
    said = reason(sites({"id": "r0", "cpus": 8}, {"id": "r1", "cpus": 1}, {"id": "r2", "cpus": 5}))
    assert said == "2 sites wanted (r0, r2), only 1 site has 5 CPUs free: N0"


def test_sites_that_may_be_shared_still_have_only_their_cpus() -> None:
    """Without distinct sites the CPUs together are what is short."""
    changes = sites({"id": "r0", "cpus": 8}, {"id": "r1", "cpus": 4}, {"id": "r2", "cpus": 3}, {"id": "r3", "cpus": 2})
    said = reason(changes, options={"distinct_sites": False})
    assert said == "the requested sites don't fit on the free CPUs together"


def test_limits_on_paths_are_said() -> None:
    """Too few links allowed, too little latency, links too narrow even when free."""
    assert reason(options={"pmax": 1}).startswith("no path of at most 1 links for every requested link")
    resources = copy.deepcopy(LINE["resources"])
    for link in resources["links"]:
        link["latency"] = 5
    late = {"links": [{"from": "r0", "to": "r1", "bw": 1, "max_latency": 9}]}
    assert reason(late, resources=resources).startswith("no path within the latency bound for every")
    wide = {"links": [{"from": "r0", "to": "r1", "bw": 2}]}
    assert reason(wide) == "the links are too narrow for all requested links at once, even with nothing reserved"
    assert reason({"avoid": ["X1"]}).startswith("no paths connect sites with enough CPUs free")


def test_a_window_gives_plans_in_order_and_reasons_for_other_starts() -> None:
    """Each start has a plan or a reason; a link that is full is named with when it is."""
    found = answer(
        frames=FRAMES,
        reserved=[
            {"link": ["X1", "N0"], "from": 5, "to": 15, "bw": 1},
            {"site": "N1", "from": 35, "to": 50, "cpus": 3},
        ],
    )
    assert [(plan["start"], plan["objective"], plan["sites"]["r1"]) for plan in found["plans"]] == [
        (20, 16, "N1"),
        (40, 17, "N2"),
    ]
    assert found["refused"] == [{"start": 0, "reason": "link N0-X1 full 5-10"}]
    assert found["alternative"] is None
    cheapest = answer(frames={**FRAMES, "est": 20}, reserved=[], sort="value")
    assert [plan["start"] for plan in cheapest["plans"]] == [20, 30, 40]


def test_a_pinned_site_that_is_taken_says_when() -> None:
    """How many are free, over which part of the frame, how many were wanted."""
    changes = {"sites": [{"id": "r0", "cpus": 8, "pin": "N0"}, {"id": "r1", "cpus": 1}]}
    found = answer(changes, frames={**FRAMES, "lst": 0}, reserved=[{"site": "N0", "from": 2.5, "to": 7, "cpus": 6}])
    assert found["refused"] == [{"start": 0, "reason": "N0 has 2 CPUs free 2.5-7, 8 wanted for r0"}]


def test_what_would_fit_is_said_when_nothing_does() -> None:
    """The first start after the window, and the most CPUs at each site within it."""
    found = answer(frames=FRAMES, reserved=[{"site": "N0", "from": 0, "to": 77.5, "cpus": 3}])
    assert found["plans"] == []
    assert found["alternative"] == {
        "start": 77.5,
        "cpus": 5,
        "bw": None,
        "words": "it would fit from 77.5 on; within the window at most 5 CPUs at each site would fit",
    }


def test_less_bandwidth_is_offered_where_that_would_fit() -> None:
    """With wide requests on narrow links the bandwidth that fits is found."""
    resources = copy.deepcopy(LINE["resources"])
    for link in resources["links"]:
        link["bw"] = 10
    wide = {"links": [{"from": "r0", "to": "r1", "bw": 8}]}
    reserved = [{"link": ["N0", "X1"], "from": 0, "to": 100, "bw": 5}]
    found = answer(wide, resources=resources, frames=FRAMES, reserved=reserved)
    assert found["refused"][0]["reason"] == "link N0-X1 has 5 free 0-10, 8 wanted"
    assert found["alternative"]["bw"] == 5 and found["alternative"]["start"] == 100
    assert "at most 5 of bandwidth on each link" in found["alternative"]["words"]


def test_what_can_never_fit_has_no_alternative() -> None:
    """No later start and no smaller request is made up."""
    changes = sites({"id": "r0", "cpus": 1, "need": ["mpi"]})
    assert answer(changes, frames=FRAMES, reserved=[])["alternative"] is None


def test_a_fraction_is_all_that_is_seen() -> None:
    """With half disclosed the large site has 4 CPUs for this user."""
    found = answer(frames=FRAMES, fraction=0.5)
    assert found["plans"] == []
    assert found["refused"][0]["reason"] == "no site with 8 CPUs free for r0 over 0-10 (most: 4 at N0)"


def test_administrators_options_change_the_choice() -> None:
    """A loaded site is dear under load balancing; a preferred one is cheap."""
    reserved = [{"site": "N1", "from": 0, "to": 100, "cpus": 1}]
    balanced = answer(frames={**FRAMES, "lst": 0}, reserved=reserved, options={"load_balancing": True})
    assert balanced["plans"][0]["sites"] == {"r0": "N0", "r1": "N2"}
    preferred = answer(options={"preference": {"N2": 0, "*": 1}})
    assert preferred["sites"] == {"r0": "N0", "r1": "N2"} and preferred["objective"] == 8 + 7


def test_time_that_is_up_is_not_called_infeasible() -> None:
    """With no time left nothing is claimed, and each start says that it was not looked at."""
    content = copy.deepcopy(LINE) | {"frames": FRAMES}
    found = Decision(read_problem(content), remaining=lambda: 0.0).answer()
    assert found["plans"] == [] and found["alternative"] is None
    assert {one["reason"] for one in found["refused"]} == {"not looked at: a limit of the search was met before"}
    del content["frames"]
    found = Decision(read_problem(content), remaining=lambda: 0.0).answer()
    assert found["status"] == "bound" and found["objective"] is None and found["bound"] == 0


def test_times_finer_than_can_be_counted_are_refused() -> None:
    """Huge times with tiny fractions are an error, not a wrong answer."""
    content = copy.deepcopy(LINE) | {"frames": {**FRAMES, "lst": 1e12, "est": 1e-11}}
    with pytest.raises(SettingsError, match="too fine for their size"):
        Decision(read_problem(content))


def test_the_same_problem_has_the_same_answer() -> None:
    """Without a clock an answer repeats."""
    assert answer(frames=FRAMES) == answer(frames=FRAMES)
