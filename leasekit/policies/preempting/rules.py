"""What decides which host is best beside what its victims cost: filters and weighers, small plug-ins as those of
OpenStack's scheduler.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

import attrs

from leasekit.core.efficiency import efficiency
from leasekit.core.filters import parse_filter
from leasekit.core.fitting import normalised
from leasekit.core.time import INSTANT_MAX
from leasekit.policies.preempting.costs import Amount, PeriodCost, VictimCost
from leasekit.policies.preempting.hosts import HostRequest, LoadedHost
from leasekit.policies.preempting.victims import NODES_MAX


class WeigherError(ValueError):
    """A weigher went wrong: which, for which host, what it returned, and what it may."""


class HostFilter(Protocol):
    """A filter plug-in: whether a host will do for a request, whoever is on it."""

    def __call__(self, host: LoadedHost, request: HostRequest, /) -> bool: ...


class HostWeigher(Protocol):
    """A weigher plug-in: a host is the better the larger the number."""

    def __call__(self, host: LoadedHost, request: HostRequest, /) -> Amount: ...


def attributes(host: LoadedHost, request: HostRequest) -> bool:
    """The host's attributes satisfy the request's filter. Raises ``FilterError``."""
    return not request.filter or parse_filter(request.filter)(host.attributes)


def affinity(host: LoadedHost, request: HostRequest) -> bool:
    """One of the leases that the request wants to be near is on the host."""
    return not request.near or any(lease.id in request.near for lease in host.leases)


def anti_affinity(host: LoadedHost, request: HostRequest) -> bool:
    """None of the leases that the request wants to be apart from is on the host."""
    return not request.apart or all(lease.id not in request.apart for lease in host.leases)


def spread(host: LoadedHost, request: HostRequest) -> float:
    """The share that is free, on average over the resources."""
    shares = [free / there for free, there in zip(host.full, host.capacity, strict=True) if there]
    return sum(shares) / len(shares) if shares else 0.0


def pack(host: LoadedHost, request: HostRequest) -> float:
    """The share that is taken."""
    return -spread(host, request)


def free_time(host: LoadedHost, request: HostRequest) -> int:
    """When the host's next reservation starts: the later the better."""
    return INSTANT_MAX if host.reserved_from is None else host.reserved_from


def flops_per_watt(host: LoadedHost, request: HostRequest) -> float:
    """What the host computes with a watt, by its attributes ``gflops`` and ``watts``, or ``gflops_per_watt``."""
    return efficiency(host.attributes)


FILTERS: Final[Mapping[str, HostFilter]] = {
    "attributes": attributes,
    "affinity": affinity,
    "anti_affinity": anti_affinity,
}
WEIGHERS: Final[Mapping[str, HostWeigher]] = {
    "spread": spread,
    "pack": pack,
    "free_time": free_time,
    "flops_per_watt": flops_per_watt,
}


@attrs.frozen(kw_only=True)
class PlacingRules:
    """How a site places: what victims cost, which hosts will do, and which are better, by weighers with multipliers.

    ``nodes_max`` bounds the search for the victims on one host.
    """

    cost: VictimCost = attrs.field(factory=PeriodCost)
    filters: Sequence[HostFilter] = (attributes, affinity, anti_affinity)
    weighers: Sequence[tuple[HostWeigher, float]] = ()
    nodes_max: int = NODES_MAX
    _standard: bool = attrs.field(init=False)
    """Whether the filters are those here alone: they take each host, if a request doesn't say otherwise."""

    @_standard.default
    def _has_standard_filters(self) -> bool:
        return all(each in FILTERS.values() for each in self.filters)

    def passes(self, host: LoadedHost, request: HostRequest) -> bool:
        """Whether all filters take the host."""
        if self._standard and not (request.filter or request.near or request.apart):
            return True
        for each in self.filters:  # noqa: SIM110 - several times as fast as all()
            if not each(host, request):
                return False
        return True

    def weights(self, hosts: Sequence[LoadedHost], request: HostRequest) -> list[float]:
        """What hosts weigh: the sum of multipliers times weights, each from 0 for the least among these hosts to 1 for
        the largest. Raises :class:`WeigherError`.
        """
        sums = [0.0] * len(hosts)
        for weigher, multiplier in self.weighers:
            weights = normalised([_weighed(weigher, host, request) for host in hosts])
            sums = [one + multiplier * weight for one, weight in zip(sums, weights, strict=True)]
        return sums


def _weighed(weigher: Callable[[LoadedHost, HostRequest], Amount], host: LoadedHost, request: HostRequest) -> Amount:
    name = getattr(weigher, "__name__", type(weigher).__name__)
    try:
        found = weigher(host, request)
    except Exception as error:
        # Foreign code: whatever it raises is told by its name.
        raise WeigherError(f"weigher {name} of host {host.id}: {type(error).__name__}: {error}") from error
    if isinstance(found, int | float) and math.isfinite(found):
        return found
    raise WeigherError(f"weigher {name} of host {host.id}: found {found!r:.200}, expected a finite number")
