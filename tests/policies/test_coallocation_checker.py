"""The independent checker accepts good plans and names what is wrong with bad ones."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from leasekit.policies.broker.coallocation.checker import Free, NamedPlan, faults
from leasekit.policies.broker.coallocation.model import (
    CoRequest,
    LinkRequest,
    ModelLink,
    ModelOptions,
    Resources,
    SiteRequest,
    Vertex,
)

RESOURCES = Resources(
    vertices=(
        Vertex(id="A", kind="site", cpus=4, attrs=("linux",)),
        Vertex(id="B", kind="site", cpus=4, transit=False),
        Vertex(id="C", kind="site", cpus=4),
        Vertex(id="X", kind="exchange"),
    ),
    links=(
        ModelLink(a="A", b="X", bw=0.3, vb=3, latency=2),
        ModelLink(a="B", b="X", bw=0.3, vb=3, latency=2),
        ModelLink(a="A", b="B", bw=0.3, vb=5, latency=1),
        ModelLink(a="B", b="C", bw=0.3, vb=1, latency=1),
    ),
)
REQUEST = CoRequest(
    sites=(SiteRequest(id="r0", cpus=2, need=("linux",)), SiteRequest(id="r1", cpus=2, pin="B", exclude=("C",))),
    links=(
        LinkRequest(from_="r0", to="r1", bw=0.1, max_latency=4, backup=True),
        LinkRequest(from_="r1", to="r0", bw=0.2, pmax=1),
        LinkRequest(from_="r1", to="r0", bw=0),
    ),
    avoid=("C",),
)
FREE = Free(
    cpus={"A": 4, "B": 4, "C": 4},
    bw={frozenset((link.a, link.b)): link.bw for link in RESOURCES.links},
    vc={"A": 1, "B": 1, "C": 1},
)
OPTIONS = ModelOptions()
GOOD = NamedPlan(
    sites={"r0": "A", "r1": "B"},
    paths=[["A", "B"], ["B", "A"], None],
    backups=[["A", "X", "B"], None, None],
    objective=6.1,
)


def said(plan: NamedPlan = GOOD, options: ModelOptions = OPTIONS, free: Free = FREE) -> str:
    """What the checker says, in one line."""
    return "; ".join(faults(plan, RESOURCES, REQUEST, options, free))


def test_a_good_plan_passes() -> None:
    """A tenth and two tenths fit on three tenths, as written."""
    assert said() == ""


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"sites": {"r0": "A"}}, "it places r0, requested were r0, r1"),
        ({"sites": {"r0": "A", "r1": "X"}}, "r1 is on X, which is no site"),
        ({"sites": {"r0": "C", "r1": "B"}}, "r0 needs linux, which C lacks; r0 must not be on C"),
        ({"sites": {"r0": "A", "r1": "A"}}, "r1 is pinned to B, not A; two requested sites are on one site"),
        ({"paths": [["A", "B"], ["B", "A"]]}, "it has 2 paths for 3 requested links"),
        ({"paths": [None, ["B", "A"], None]}, "the path of link 0 is missing"),
        ({"paths": [["A", "B"], ["A", "B"], None]}, "the path of link 1 leads from A to B, not from B to A"),
        ({"paths": [["A", "B"], ["B", "X", "A"], None]}, "the path of link 1 has 2 links, at most 1 are allowed"),
        ({"paths": [["A", "B"], ["B", "A"], ["B", "A"]]}, "link 2 asks for no bandwidth and has a path"),
        ({"backups": [None, None, None]}, "the backup of link 0 is missing"),
        ({"backups": [["A", "B"], None, None]}, "path and backup of link 0 share a link"),
        ({"backups": [["A", "X", "B"], ["B", "A"], None]}, "link 1 has a backup that nobody asked for"),
        ({"objective": 6.2}, "its value is 6.1, not 6.2"),
    ],
)
def test_what_is_wrong_is_named(change: dict[str, Any], words: str) -> None:
    """Each fault of a plan is a sentence."""
    assert words in said(attrs.evolve(GOOD, **change))


def test_a_path_must_exist_be_simple_and_keep_out_of_what_is_barred() -> None:
    """Missing links, vertices passed twice, sites without transit, vertices to avoid and late paths are found."""

    def path(*names: str) -> str:
        return said(attrs.evolve(GOOD, paths=[list(names), ["B", "A"], None]), ModelOptions(pmax=None))

    assert "takes a link that does not exist: A-C" in path("A", "C", "B")
    assert "passes a vertex twice" in path("A", "X", "A", "B")
    assert "passes through B, which allows no transit" in path("A", "B", "X", "B")
    assert "touches C, which is to be avoided" in path("A", "B", "C", "B")
    late = attrs.evolve(REQUEST, links=(attrs.evolve(REQUEST.links[0], max_latency=3), *REQUEST.links[1:]))
    found = faults(GOOD, RESOURCES, late, ModelOptions(), FREE)
    assert found == ["the backup of link 0 takes 4, at most 3 is allowed"]


def test_what_is_not_free_is_found() -> None:
    """CPUs and bandwidth are counted over all that uses them, on both directions of a link."""
    assert "A has 1 CPUs free, 2 are used" in said(free=attrs.evolve(FREE, cpus={"A": 1, "B": 4}))
    narrow = {**FREE.bw, frozenset("AB"): 0.29}
    assert "link A-B has 0.29 free, 0.3 is used" in said(free=attrs.evolve(FREE, bw=narrow))


def test_two_sites_on_one_need_their_cpus_together() -> None:
    """Without distinct sites the CPUs of both count."""
    request = CoRequest(sites=(SiteRequest(id="r0", cpus=3), SiteRequest(id="r1", cpus=3)))
    plan = NamedPlan(sites={"r0": "A", "r1": "A"}, paths=[])
    found = faults(plan, RESOURCES, request, ModelOptions(distinct_sites=False), FREE)
    assert found == ["A has 4 CPUs free, 6 are used"]
