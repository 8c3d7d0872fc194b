"""What a broker knows of the network: sites, exchange points and links, and what is free of them now; as text and JSON.

It is made of the delegations that the broker holds, as its planner sees it. The picture is in :mod:`.network_picture`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Any, NamedTuple

from leasekit.cli.output import note, print_table
from leasekit.core.topology import LinkEnds, read_link


class Hosting(NamedTuple):
    """Units of a type at a site."""

    site: str
    type: str
    units: int
    free: int


class NetworkWire(NamedTuple):
    """A link; bandwidths in Mbit/s. ``site`` is who leases it."""

    type: str
    site: str
    ends: LinkEnds
    units: int
    free: int

    @property
    def capacity(self) -> Fraction:
        """All of its bandwidth."""
        return self.ends.granule * self.units

    @property
    def available(self) -> Fraction:
        """What is free now."""
        return self.ends.granule * self.free


class NetworkTopology(NamedTuple):
    """Sites' units, the names of exchange points, links, and what is wrong with links that can't be read."""

    hostings: tuple[Hosting, ...]
    exchanges: tuple[str, ...]
    wires: tuple[NetworkWire, ...]
    faults: tuple[str, ...]

    @property
    def sites(self) -> list[str]:
        """Names of sites, in order."""
        return sorted({hosting.site for hosting in self.hostings})

    def data(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "sites": [
                {"site": site, "types": [_hosting(each) for each in self.hostings if each.site == site]}
                for site in self.sites
            ],
            "exchange_points": list(self.exchanges),
            "links": [_wire(wire) for wire in self.wires],
            "faults": list(self.faults),
        }


def _hosting(hosting: Hosting) -> dict[str, Any]:
    return {"type": hosting.type, "units": hosting.units, "free_now": hosting.free}


def _wire(wire: NetworkWire) -> dict[str, Any]:
    return {
        "link": wire.type,
        "site": wire.site,
        "a": wire.ends.a,
        "b": wire.ends.b,
        "capacity_mbps": float(wire.capacity),
        "free_now_mbps": float(wire.available),
        "granule_mbps": float(wire.ends.granule),
        "latency_ms": float(wire.ends.latency),
        "value": float(wire.ends.value),
    }


def topology_of(sources: Iterable[Mapping[str, Any]]) -> NetworkTopology:
    """The network of a broker's ``sources``; several delegations of one type and site count as one."""
    hostings: dict[tuple[str, str], Hosting] = {}
    wires: dict[tuple[str, str], NetworkWire] = {}
    faults = []
    for source in sources:
        key = (source["site"], source["type"])
        units, free = source["units"], source["free_now"]
        try:
            ends = read_link(source["properties"])
        except ValueError as error:
            faults.append(f"link {source['type']} of {source['site']}: {error}")
            continue
        if ends is None:
            before = hostings.get(key, Hosting(*key, 0, 0))
            hostings[key] = Hosting(*key, before.units + units, before.free + free)
        else:
            known = wires.get(key, NetworkWire(source["type"], source["site"], ends, 0, 0))
            wires[key] = known._replace(units=known.units + units, free=known.free + free)
    sites = {site for site, _ in hostings}
    ends_of = {end for wire in wires.values() for end in (wire.ends.a, wire.ends.b)}
    return NetworkTopology(
        tuple(hostings[key] for key in sorted(hostings)),
        tuple(sorted(ends_of - sites)),
        tuple(wires[key] for key in sorted(wires, key=lambda one: (one[1], one[0]))),
        tuple(faults),
    )


def print_topology(found: NetworkTopology) -> None:
    """For a person: three tables."""
    rows = [(each.site, each.type, each.units, each.free) for each in found.hostings]
    print_table(
        ("site", "type", "units", "free now"), rows, empty="no site has delegated units", right=("units", "free now")
    )
    if found.exchanges:
        print_table(("exchange point",), [(name,) for name in found.exchanges], empty="")
    links = [
        (
            wire.type,
            wire.ends.a,
            wire.ends.b,
            f"{float(wire.capacity):g}",
            f"{float(wire.available):g}",
            f"{float(wire.ends.latency):g}",
            f"{float(wire.ends.value):g}",
            wire.site,
        )
        for wire in found.wires
    ]
    columns = ("link", "a", "b", "Mbit/s", "free now", "latency ms", "value", "leased by")
    print_table(columns, links, empty="no network authority has delegated links", right=columns[3:7])
    for fault in found.faults:
        note(fault)
