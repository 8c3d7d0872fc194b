"""What a broker knows of the network, from its sources: as data, as text, as a picture."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasekit.cli.broker import print_topology, topology_of
from leasekit.cli.pictures import bend, curves, draw_topology, layout
from leasekit.core.errors import LeasekitError


def source(site: str, type_: str, units: int, free: int, **link: str) -> dict[str, Any]:
    properties = {f"link.{key}": text for key, text in link.items()}
    return {"site": site, "type": type_, "units": units, "free_now": free, "properties": properties}


SOURCES = [
    source("south", "vm", 8, 3),
    source("north", "vm", 10, 10),
    source("north", "vm", 6, 1),
    source("north", "gpu", 2, 0),
    source("net", "n-x", 40, 30, a="north", b="X1", granule_mbps="2.5", latency_ms="2"),
    source("net", "n-x", 10, 10, a="north", b="X1", granule_mbps="2.5", latency_ms="2"),
    source("net", "s-x", 4, 0, a="south", b="X1", value="3"),
]


def test_sources_become_a_network() -> None:
    """Sites are where units are, exchange points where only links lead; delegations of one kind add up."""
    found = topology_of(SOURCES)
    assert found["sites"] == [
        {
            "site": "north",
            "types": [{"type": "gpu", "units": 2, "free_now": 0}, {"type": "vm", "units": 16, "free_now": 11}],
        },
        {"site": "south", "types": [{"type": "vm", "units": 8, "free_now": 3}]},
    ]
    assert found["exchange_points"] == ["X1"]
    first, second = found["links"]
    assert first == {
        "link": "n-x", "site": "net", "a": "north", "b": "X1", "capacity_mbps": 125.0, "free_now_mbps": 100.0,
        "granule_mbps": 2.5, "latency_ms": 2.0, "value": 1.0,
    }  # fmt: skip
    assert (second["free_now_mbps"], second["capacity_mbps"], second["value"]) == (0.0, 4.0, 3.0)


def test_a_link_that_can_t_be_read_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """Its properties are named, and the rest of the network is shown."""
    found = topology_of([*SOURCES, source("net", "odd", 1, 1, a="north", b="X1", granule_mbps="lots")])
    assert len(found["links"]) == 2
    print_topology(found)
    out, err = capsys.readouterr()
    assert "link odd of net: link.granule_mbps: found 'lots'" in err
    assert "n-x" in out
    assert "125" in out


def test_no_network_at_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A broker that holds nothing says so, and its picture is an empty one."""
    found = topology_of([])
    print_topology(found)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == ["no site has delegated units", "no network authority has delegated links"]
    draw_topology(found, tmp_path / "none.svg")
    assert (tmp_path / "none.svg").stat().st_size > 100


def test_the_picture_says_everything(tmp_path: Path) -> None:
    """Both kinds are written, the same bytes each time, with every name in them; a bad folder is told."""
    found = topology_of(SOURCES)
    draw_topology(found, tmp_path / "net.png")
    assert (tmp_path / "net.png").read_bytes()[:4] == b"\x89PNG"
    draw_topology(found, tmp_path / "net.svg")
    before = (tmp_path / "net.svg").read_bytes()
    for name in ("north", "south", "X1", "n-x", "100 of 125 Mbit/s", "11 of 16 vm"):
        assert name in before.decode()
    draw_topology(found, tmp_path / "net.svg")
    assert (tmp_path / "net.svg").read_bytes() == before
    with pytest.raises(LeasekitError, match="can't write"):
        draw_topology(found, tmp_path / "nowhere" / "net.svg")


PAIRS = st.lists(st.tuples(st.integers(0, 9), st.integers(10, 13)), max_size=20)


@given(pairs=PAIRS, between=st.lists(st.tuples(st.integers(10, 13), st.integers(10, 13)), max_size=6))
def test_places_are_apart_and_the_same_each_time(pairs: list[tuple[int, int]], between: list[tuple[int, int]]) -> None:
    """Sites stand on a circle, no two of them in one spot; exchange points stay within; nothing is drawn at random."""
    sites = [source(f"s{number}", "vm", 1, 1) for number in range(10)]
    links = [source("net", f"l{a}-{b}", 1, 1, a=_name(a), b=_name(b)) for a, b in {*pairs, *between} if a != b]
    found = topology_of([*sites, *links])
    places = layout(found)
    names = [one["site"] for one in found["sites"]]
    assert layout(found) == places
    assert {round(math.hypot(*places[site]), 6) for site in names} == {1.0}
    assert len({(round(x, 3), round(y, 3)) for site, (x, y) in places.items() if site in names}) == 10
    assert all(math.hypot(*places[name]) < 1.5 for name in found["exchange_points"])


def _name(number: int) -> str:
    return f"s{number}" if number < 10 else f"X{number}"


def test_a_line_goes_round_what_it_does_not_join() -> None:
    """Two sites that are joined by a link and by an exchange point between them: the link passes beside the point."""
    ends = [("north", "X1"), ("south", "X1"), ("north", "south")]
    links = [source("net", f"l{number}", 1, 1, a=a, b=b) for number, (a, b) in enumerate(ends)]
    found = topology_of([source("north", "vm", 1, 1), source("south", "vm", 1, 1), *links])
    places = layout(found)
    *straight, direct = (bend(link, places) for link in found["links"])
    assert min(math.dist(point, places["X1"]) for point in direct) > 0.2
    assert (direct[0], direct[-1]) == (places["north"], places["south"])
    for line in straight:
        assert math.dist(line[0], line[-1]) == pytest.approx(sum(map(math.dist, line, line[1:])))


def test_links_between_the_same_ends_are_drawn_apart() -> None:
    """However they name their ends, no two of them have their middle in one spot."""
    ends = [("north", "south"), ("south", "north"), ("north", "south")]
    links = [source("net", f"l{number}", 1, 1, a=a, b=b) for number, (a, b) in enumerate(ends)]
    found = topology_of([source("north", "vm", 1, 1), source("south", "vm", 1, 1), *links])
    middles = [line[len(line) // 2] for _, line in curves(found, layout(found))]
    assert min(math.dist(a, b) for number, a in enumerate(middles) for b in middles[:number]) > 0.2
