"""Requests for topologies: what they may say, how they travel, and whether a plan is what was asked for."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasekit.core.settings import SettingsError
from leasekit.core.topology import Leased, decode_topology, in_order, known_names, plan_faults, read_link, read_topology


def content(**more: Any) -> dict[str, Any]:
    """A request for two sites and a link, as a file has it."""
    sites = [{"id": "a", "type": "vm", "units": 2}, {"id": "b", "type": "vm", "units": 1}]
    return {"sites": sites, "links": [{"from": "a", "to": "b", "bw": 2.5}], "start": 10, "duration": "1h", **more}


def faults(**more: Any) -> str:
    """What is wrong with such a request."""
    with pytest.raises(SettingsError) as error:
        read_topology(content(**more))
    return str(error.value)


@given(
    st.integers(1, 5),
    st.sampled_from(["", "os == linux"]),
    st.floats(0.001, 1000),
    st.booleans(),
    st.integers(0, 10**9),
    st.integers(0, 10**9),
)
def test_requests_travel_unchanged(units: int, filter_: str, bw: float, backup: bool, est: int, window: int) -> None:
    """What is encoded is read back equal, equal requests are equal bytes, and plain data is read back equal."""
    sites = [{"id": f"s{n}", "type": "vm", "units": units, "filter": filter_} for n in range(units)]
    links = [{"from": "s0", "to": f"s{n}", "bw": bw, "backup": backup, "id": f"k{n}"} for n in range(1, units)]
    request = read_topology({"sites": sites, "links": links, "est": est, "lst": est + window, "duration": 1000})
    assert decode_topology(request.to_bytes()) == request
    assert read_topology(request.to_dict()) == request
    assert read_topology(request.to_dict()).to_bytes() == request.to_bytes()
    assert request.term(est).length == 1000


def test_all_faults_are_said_at_once() -> None:
    """Each fault has a line that begins with its key."""
    text = faults(
        sites=[
            {"id": "a", "type": "", "units": 0, "filter": "os ==", "pin": "X", "exclude": ["X"]},
            {"id": "a/b", "type": "vm", "units": 1, "redeem_predecessor": "z"},
        ],
        links=[{"from": "a", "to": "q", "bw": 0, "pmax": 0, "max_latency": -1}, {"from": "a", "to": "a", "bw": -1}],
        options={"pmax": -1, "frames": {"count": 0}},
        slice="x/y",
    )
    keys = {line.partition(":")[0] for line in text.splitlines()}
    assert keys >= {
        "sites[0].type", "sites[0].units", "sites[0].filter", "sites[0].pin", "sites[1].id", "links[0].to",
        "links[0].bw", "links[0].pmax", "links[0].max_latency", "links[1].to", "links[1].bw", "options.pmax",
        "options.frames.count", "slice", "sites[1].redeem_predecessor",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"foo": 1}, "foo: found an unknown key"),
        ({"est": 1}, "est: found it beside start"),
        ({"links": [{"from_": "a", "to": "b", "bw": 1}]}, "from_: found an unknown key"),
        ({"duration": 0}, "duration: found 0"),
        ({"sites": []}, "sites: found 0"),
        ({"links": []}, "expected a connected request"),
        ({"options": {"sort": "best"}}, "options.sort"),
        ({"options": {"frames": {"unit": 0}}}, "options.frames.unit: found 0"),
        ({"start": -1}, "est: found -1"),
        ({"avoid": ["X"] * 65}, "avoid: found 65 names, at most 64"),
        ({"sites": [{"id": "a", "type": "vm", "units": 1, "exclude": ["X"] * 65}]}, "sites[0].exclude: found 65"),
        ({"links": [{"id": f"k{n}", "from": "a", "to": "b", "bw": 1} for n in range(33)]}, "links: found 33"),
        ({"links": [7]}, "links[0]: found 7"),
    ],
)
def test_each_bad_input_has_its_message(more: dict[str, Any], words: str) -> None:
    """Unknown keys, missing links, wrong words: the key, what was found, what is allowed."""
    assert words in faults(**more)


def test_windows_and_cycles() -> None:
    """A window that ends before it begins, and predecessors that wait for each other, are named."""
    wrong = content()
    del wrong["start"]
    with pytest.raises(SettingsError, match="shorter than the duration"):
        read_topology({**wrong, "est": 5, "lst": 4})
    sites = [{"id": n, "type": "vm", "units": 1, "join_predecessor": b} for n, b in (("a", "b"), ("b", "a"))]
    assert "cycle of predecessors: " in faults(sites=sites)
    for data, words in ((b"{", "no JSON"), (b" " * 20_000, "bytes"), (b"[]", "expected a table")):
        with pytest.raises(SettingsError, match=words):
            decode_topology(data)


def test_members_come_after_their_predecessors() -> None:
    """Whoever waits for another comes later; the others keep their places."""
    request = content(links=[{"id": "k", "from": "a", "to": "b", "bw": 1, "redeem_predecessor": "b"}])
    request["sites"][0]["join_predecessor"] = "k"
    assert [member.id for member in in_order(read_topology(request))] == ["b", "k", "a"]


def test_links_describe_themselves() -> None:
    """Resource properties say where a link leads; bandwidth takes whole granules, counted exactly."""
    link = read_link({"link.a": "A", "link.b": "B", "link.granule_mbps": "0.1"})
    assert link is not None and link.units(0.3) == 3 and link.granule == Fraction(1, 10)
    assert read_link({"os": "linux"}) is None
    other = {"link.a": "A", "link.b": "B"}
    for wrong in ({"link.b": ""}, {"link.b": "A"}, {"link.value": "x"}, {"link.granule_mbps": "0"}):
        with pytest.raises(ValueError, match=r"link\."):
            read_link({**other, **wrong})
    offers = [("A", None), ("net", link), ("net", read_link({"link.a": "A", "link.b": "X"}))]
    assert known_names(offers) == (["A"], ["B", "X"])


LINK = {"link.a": "A", "link.b": "X", "link.latency_ms": "2"}
OTHER = {"link.a": "B", "link.b": "X", "link.latency_ms": "2"}
GOOD = [
    Leased("a", "a", 0, "A", "vm", 2, {}),
    Leased("b", "b", 0, "B", "vm", 1, {}),
    Leased("link0.0.0", "link0", 0, "net", "l1", 3, LINK),
    Leased("link0.0.1", "link0", 0, "net", "l2", 3, OTHER),
]


@pytest.mark.parametrize(
    ("place", "change", "words"),
    [
        (0, {"units": 1}, "a gets 1"),
        (0, {"member": "b"}, "a has 0 parts"),
        (0, {"site": "B"}, "at one site"),
        (1, {"member": "z"}, "not requested"),
        (1, {"part": "a"}, "one name"),
        (2, {"units": 2}, "less than 2.5"),
        (2, {"properties": OTHER}, "no link that goes on from A"),
        (3, {"properties": LINK}, "twice"),
        (3, {"path": 1}, "more paths"),
        (3, {"properties": {"link.a": "X", "link.b": "C"}}, "leads to C"),
    ],
)
def test_wrong_plans_are_found(place: int, change: dict[str, Any], words: str) -> None:
    """A plan that gives something else than what was asked for is told apart from one that is good."""
    request = read_topology(content())
    assert plan_faults(request, GOOD) == []
    wrong = [part._replace(**change) if number == place else part for number, part in enumerate(GOOD)]
    assert any(words in fault for fault in plan_faults(request, wrong)), plan_faults(request, wrong)


def test_where_a_site_may_be() -> None:
    """A requested site is at the one that it is pinned to, at none that is excluded, and where its filter holds."""
    for more in ({"pin": "B"}, {"exclude": ["A"]}, {"filter": "os == linux"}):
        sites = [{"id": "a", "type": "vm", "units": 2, **more}, {"id": "b", "type": "vm", "units": 1}]
        assert any("a must not be at A" in fault for fault in plan_faults(read_topology(content(sites=sites)), GOOD))


def test_nothing_leads_from_a_site_to_itself() -> None:
    """Where two requested sites may be at one, their link needs no path, and has none."""
    request = read_topology(content(options={"distinct_sites": False}))
    one = [GOOD[0], GOOD[1]._replace(site="A")]
    assert plan_faults(request, one) == []
    assert plan_faults(request, [*one, GOOD[2]]) == ["link0 has a path within A"]


def test_bounds_of_a_path() -> None:
    """Too many links, too much latency, and points to be avoided make a path wrong."""
    for more in ({"options": {"pmax": 1}}, {"avoid": ["X"]}):
        assert any("too long or avoided" in fault for fault in plan_faults(read_topology(content(**more)), GOOD))
    slow = content(links=[{"from": "a", "to": "b", "bw": 1, "max_latency": 3}])
    assert any("4 ms" in fault for fault in plan_faults(read_topology(slow), GOOD))
