"""Which host takes a request, and who leaves it: in one pass over all hosts, and two other ways to compare that with.

Hosts are filtered as if preemptible leases weren't there (for a preemptible request: as they are), and ranked with all
leases that are there, the best first: without victims before any with, by the cost of the cheapest victims that make
room, by their number, by weighers, and by id. (The paper ranks by what all preemptible leases of a host cost together,
as printed; its own tables 3 and 4 need the cheapest victims.) Weights are normalised over the hosts that are as good as
each other up to there: only these are weighed against each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import NamedTuple

from leasekit.core.time import Instant
from leasekit.policies.preempting.costs import Amount
from leasekit.policies.preempting.hosts import HostedLease, HostRequest, LoadedHost, fits, may_leave, missing
from leasekit.policies.preempting.rules import PlacingRules
from leasekit.policies.preempting.victims import choose_victims


class HostOption(NamedTuple):
    """A host that a request can have, and who has to leave for that. Unless ``proven``, others may cost less: at least
    ``bound``.
    """

    host: LoadedHost
    victims: tuple[HostedLease, ...] = ()
    cost: Amount = 0
    proven: bool = True
    bound: Amount = 0

    @property
    def rank(self) -> tuple[bool, Amount, int]:
        """The better the less, but for weighers and ids."""
        return bool(self.victims), self.cost, len(self.victims)


def option(host: LoadedHost, request: HostRequest, rules: PlacingRules, now: Instant) -> HostOption | None:
    """What a request can have on a host, filters apart; None if that is nothing. Raises ``CostError``."""
    if fits(request.needs, host.full):
        return HostOption(host)
    if request.preemptible or not fits(request.needs, host.normal):
        return None
    leases, _ = may_leave(host, request, now)
    victims = choose_victims(leases, missing(request.needs, host.full), rules.cost, now, rules.nodes_max)
    return None if victims is None else HostOption(host, *victims)


def select(hosts: Iterable[LoadedHost], request: HostRequest, rules: PlacingRules, now: Instant) -> HostOption | None:
    """The best that a request can have; None if that is nothing. Raises ``CostError``, ``WeigherError`` and
    ``FilterError``.
    """
    options = (option(host, request, rules, now) for host in hosts if rules.passes(host, request))
    return next(iter(ranked([one for one in options if one is not None], request, rules)), None)


def ranked(options: Iterable[HostOption], request: HostRequest, rules: PlacingRules) -> list[HostOption]:
    """Options, the best first."""
    found: list[HostOption] = []
    for _, group in groupby(sorted(options, key=_rank), key=_rank):
        found += weighed(list(group), request, rules)
    return found


def weighed(options: Sequence[HostOption], request: HostRequest, rules: PlacingRules) -> list[HostOption]:
    """Options as good as each other by weighers, ids of hosts, and ids of victims."""
    weights = rules.weights([one.host for one in options], request) if len(options) > 1 else [0.0]
    pairs = sorted(zip(weights, options, strict=True), key=lambda pair: (-pair[0], pair[1].host.id, pair[1].victims))
    return [one for _, one in pairs]


def _rank(one: HostOption) -> tuple[bool, Amount, int]:
    return one.rank


# -- to compare with ---------------------------------------------------------------------------------------------------


def filter_and_weigh(hosts: Iterable[LoadedHost], request: HostRequest, rules: PlacingRules) -> HostOption | None:
    """The unmodified scheduler: hosts as they are, the heaviest first. Nobody leaves."""
    free = [HostOption(host) for host in hosts if fits(request.needs, host.full) and rules.passes(host, request)]
    return weighed(free, request, rules)[0] if free else None


def retry(hosts: Sequence[LoadedHost], request: HostRequest, rules: PlacingRules, now: Instant) -> HostOption | None:
    """The scheduler in two passes: the unmodified one, and for a request that isn't preemptible and found nothing,
    once more with victims.
    """
    return filter_and_weigh(hosts, request, rules) or select(hosts, request, rules, now)
