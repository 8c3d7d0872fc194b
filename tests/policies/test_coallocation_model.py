"""What is wrong with a co-allocation problem is said by key."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from leasekit.core.settings import SettingsError
from leasekit.policies.broker.coallocation.model import read_problem

GOOD: dict[str, Any] = {
    "resources": {
        "vertices": [
            {"id": "N0", "kind": "site", "cpus": 8, "attrs": ["linux"]},
            {"id": "N1", "kind": "site", "cpus": 8},
            {"id": "X1", "kind": "exchange"},
        ],
        "links": [{"a": "N0", "b": "X1", "bw": 10, "vb": 3}, {"a": "N1", "b": "X1", "bw": 10}],
    },
    "request": {
        "sites": [{"id": "r0", "cpus": 4}, {"id": "r1", "cpus": 4, "need": ["linux"], "pin": None}],
        "links": [{"from": "r0", "to": "r1", "bw": 1}],
    },
    "options": {"pmax": None, "distinct_sites": True, "solver": "auto", "time_limit_s": 10},
    "frames": {"est": 0, "lst": 100, "duration": 50, "count": 10, "mode": "both"},
    "reserved": [{"site": "N0", "from": 0, "to": 10, "cpus": 1}, {"link": ["X1", "N0"], "from": 0, "to": 10, "bw": 1}],
}

Change = Callable[[dict[str, Any]], Any]


def said(change: Change) -> list[str]:
    """What is said of the good problem after a change."""
    content = copy.deepcopy(GOOD)
    change(content)
    with pytest.raises(SettingsError) as error:
        read_problem(content)
    return error.value.errors


def test_a_good_problem_is_read() -> None:
    """Every key of the format is accepted, and defaults fill the rest."""
    problem = read_problem(GOOD)
    assert problem.request.links[0].from_ == "r0"
    assert problem.resources.vertices[0].labels == ("linux",)
    assert problem.sort == "start" and problem.fraction == 1.0


@pytest.mark.parametrize(
    ("change", "start"),
    [
        (lambda p: p["resources"]["links"][1].update(b="X9"), "resources.links[1].b: found 'X9', expected one of:"),
        (lambda p: p["resources"]["links"][1].update(b="N1"), "resources.links[1].b: found 'N1' again"),
        (
            lambda p: p["resources"]["links"].append({"a": "X1", "b": "N0", "bw": 1}),
            "resources.links[2]: found a second",
        ),
        (lambda p: p["resources"]["links"][0].update(bw=-1), "resources.links[0].bw: found -1, expected >= 0"),
        (lambda p: p["resources"]["links"][0].update(bw=1e-30), "resources.links[0].bw: found 1e-30, expected 0, or"),
        (lambda p: p["resources"]["links"][0].pop("bw"), "resources.links[0].bw: found nothing, expected a number"),
        (lambda p: p["resources"]["vertices"][0].pop("cpus"), "resources.vertices[0].cpus: found nothing"),
        (lambda p: p["resources"]["vertices"][2].update(cpus=4), "resources.vertices[2].cpus: found 4, expected 0"),
        (
            lambda p: p["resources"]["vertices"].append({"id": "N0", "kind": "site", "cpus": 1}),
            "resources.vertices: found the id 'N0' 2 times",
        ),
        (lambda p: p["resources"]["vertices"][0].update(kind="node"), "resources.vertices[0].kind: found 'node'"),
        (lambda p: p["request"]["sites"][0].update(id=""), "request.sites[0].id: found '', expected a name"),
        (lambda p: p["resources"].update(sites=[]), "resources.sites: found an unknown key"),
        (lambda p: p["request"]["sites"][1].update(pin="N9"), "request.sites[1].pin: found 'N9', expected one of: N0"),
        (lambda p: p["request"]["sites"][1].update(pin="X1"), "request.sites[1].pin: found 'X1' (an exchange point)"),
        (lambda p: p["request"]["sites"][0].update(exclude=["N7"]), "request.sites[0].exclude: found 'N7'"),
        (lambda p: p["request"]["sites"][0].update(cpus=2.5), "request.sites[0].cpus: found 2.5, expected a whole"),
        (lambda p: p["request"].update(sites=[]), "request.sites: found an empty list, expected"),
        (lambda p: p["request"]["links"][0].update(to="r9"), "request.links[0].to: found 'r9', expected one of: r0"),
        (lambda p: p["request"]["links"][0].update(to="r0"), "request.links[0].to: found 'r0' again"),
        (lambda p: p["request"]["links"][0].update(bw=-1), "request.links[0].bw: found -1, expected >= 0"),
        (lambda p: p["request"]["links"][0].pop("from"), "request.links[0].from: found nothing, expected text"),
        (lambda p: p["request"]["links"][0].update(from_="r0"), "request.links[0].from_ : found an unknown key"),
        (lambda p: p["request"].update(links=[]), "request.links: found no links that connect r1 with r0"),
        (lambda p: p["request"].update(avoid=["Y"]), "request.avoid: found 'Y', expected one of: N0, N1, X1"),
        (
            lambda p: (
                p["request"]["sites"].append({"id": "r2", "cpus": 1})
                or p["request"]["links"].append({"from": "r2", "to": "r0", "bw": 1})
            ),
            "request.sites: found 3 requested sites, expected at most 2",
        ),
        (lambda p: p["options"].update(solver="glpk"), "options.solver: found 'glpk', expected one of: 'auto'"),
        (lambda p: p["options"].update(time_limit_s=0), "options.time_limit_s: found 0, expected > 0"),
        (lambda p: p["options"].update(pmax=0), "options.pmax: found 0, expected >= 1"),
        (lambda p: p["options"].update(preference={"N*": -1}), "options.preference.N*: found -1, expected 0 to"),
        (lambda p: p["frames"].update(lst=-1), "frames.lst: found -1, before frames.est (0): the window would be"),
        (lambda p: p["frames"].update(duration=0), "frames.duration: found 0, expected > 0"),
        (lambda p: p["frames"].update(mode="all"), "frames.mode: found 'all', expected one of: 'equidistant'"),
        (lambda p: p["reserved"][0].update(to=0), "reserved[0].to: found 0, expected more than from (0)"),
        (lambda p: p["reserved"][0].update(site="X1"), "reserved[0].site: found 'X1', expected one of: N0, N1"),
        (lambda p: p["reserved"][0].pop("site"), "reserved[0]: found neither of site and link"),
        (lambda p: p["reserved"][1].update(link=["N0", "N1"]), "reserved[1].link: found 'N0-N1', expected one of:"),
        (lambda p: p["reserved"][1].update(cpus=1), "reserved[1].cpus: found a number, but a reservation of a link"),
        (lambda p: p["reserved"][1].pop("bw"), "reserved[1].bw: found nothing, expected a number"),
        (lambda p: p.pop("frames"), "reserved: found it without frames"),
        (lambda p: p.update(fraction=1.5), "fraction: found 1.5, expected <= 1"),
        (lambda p: p.update(extra=1), "extra: found an unknown key, expected one of: fraction, frames"),
        (lambda p: p.pop("request"), "request: found nothing, expected a table"),
    ],
)
def test_what_is_wrong_is_said_by_key(change: Change, start: str) -> None:
    """One message that names the key, what was found and what is allowed."""
    errors = said(change)
    assert len(errors) == 1 and errors[0].startswith(start), errors


def test_a_link_without_bandwidth_connects_a_request() -> None:
    """Bandwidth 0 says that sites belong together, and that no path is wanted."""
    content = copy.deepcopy(GOOD)
    content["request"]["links"][0]["bw"] = 0
    assert read_problem(content).request.links[0].bw == 0


def test_more_requested_sites_than_exist_may_share_them() -> None:
    """Without distinct sites their number is no error."""
    content = copy.deepcopy(GOOD)
    content["options"]["distinct_sites"] = False
    content["request"]["sites"].append({"id": "r2", "cpus": 1})
    content["request"]["links"].append({"from": "r2", "to": "r0", "bw": 1})
    assert len(read_problem(content).request.sites) == 3
