"""Why a request can't be planned, in words: what was short, where and when; and what would fit, when.

The words for one start are found by giving the request more than there is, step by step: first only its CPUs count,
then links of any bandwidth, then links with nothing reserved, and last as few links as possible that are short.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, final

import attrs

from leasekit.core.profile import FOREVER
from leasekit.core.time import Instant, Term
from leasekit.core.timetable import Timetable
from leasekit.policies.broker.coallocation.frames import FramePlanned, FramePlanner, FrameWindow, Policy, Refused
from leasekit.policies.broker.coallocation.instance import Availability, InstanceOutcome, InstanceShape
from leasekit.policies.broker.coallocation.model import CoRequest, ModelOptions, SiteRequest
from leasekit.policies.broker.coallocation.routing import Oracle
from leasekit.policies.broker.coallocation.search import Search

SHOWN_MAX = 3
"""The most sites or links that a reason lists."""

NODES_MAX = 2_000
"""Nodes for each of the searches that find the words."""

LATER_MAX = 200
"""Starts after the window that are looked at for one that would fit."""

Show = Callable[[Instant], str]


class Alternative(NamedTuple):
    """What would fit: the first ``start`` found after the window; within it, the most ``cpus`` at each site, or the
    most ``bw`` on each link (in the request's unit). None where that is unknown or wouldn't help.
    """

    start: Instant | None
    cpus: int | None
    bw: float | None


class Vocabulary(NamedTuple):
    """How the requester speaks: what sites have, what bandwidth is counted in, and what each requested site needs, by
    its id (None: its attributes, as they are).
    """

    units: str = "CPUs"
    bandwidth: str = "of bandwidth"
    needs: Mapping[str, str] | None = None

    def need(self, site: SiteRequest) -> str:
        """What a requested site needs beside units; empty if it will do with any."""
        return ", ".join(site.need) if self.needs is None else self.needs.get(site.id, "")


OFFLINE: Final = Vocabulary()
"""The words of a problem file."""


@final
class Explainer:
    """Finds the words for one request. ``show`` writes an instant, as the requester would."""

    def __init__(
        self,
        planner: FramePlanner,
        request: CoRequest,
        options: ModelOptions,
        shape: InstanceShape,
        policy: Policy,
        show: Show = str,
        speech: Vocabulary = OFFLINE,
    ) -> None:
        self._planner = planner
        self._network = planner.network
        self._books = planner.books
        self._request = request
        self._options = options
        self._shape = shape
        self._policy = policy
        self._show = show
        self._speech = speech

    def why(self, refused: Refused, frame: Term) -> str:
        """Why there is no plan for a start."""
        if refused.outcome is None:
            return "not looked at: a limit of the search was met before"
        if refused.outcome.status == "bound":
            return "no plan was found before a limit of the search was met; there may be one"
        free = self._books.free(frame, self._policy)
        return self._short_of_cpus(free, frame) or self._short_of_links(free, frame)

    # -- CPUs -------------------------------------------------------------------------------------------------------

    def _short_of_cpus(self, free: Availability, frame: Term) -> str:
        fitting, units = [], self._speech.units
        for site, spot in zip(self._request.sites, self._shape.spots, strict=True):
            if not spot.candidates:
                return self._no_candidate(site)
            here = [v for v in spot.candidates if free.cpus[v] >= spot.cpus]
            if not here:
                most = max(spot.candidates, key=lambda v: free.cpus[v])
                if site.pin is not None:
                    when = self._stretch(self._books.cpus[most], frame, spot.cpus)
                    return f"{site.pin} has {free.cpus[most]} {units} free{when}, {spot.cpus} wanted for {site.id}"
                need = self._speech.need(site)
                with_what = f"{need} and {spot.cpus}" if need else f"{spot.cpus}"
                return (
                    f"no site with {with_what} {units} free for {site.id} over {self._span(frame)} "
                    f"(most: {free.cpus[most]} at {self._network.names[most]})"
                )
            fitting.append(here)
        if self._shape.distinct:
            return self._too_few(fitting)
        if self._found(free, bare=True) is None:
            return f"the requested sites don't fit on the free {units} together"
        return ""

    def _no_candidate(self, site: SiteRequest) -> str:
        need = self._speech.need(site)
        if site.pin is not None:
            lacking = set(site.need) - set(self._network.vertices[self._network.index[site.pin]].labels)
            named = ", ".join(sorted(lacking)) if self._speech.needs is None else need
            return f"{site.id} is pinned to {site.pin}, but {f'it lacks {named}' if lacking else 'it is excluded'}"
        if any({*site.need} <= {*vertex.labels} for vertex in self._network.vertices) and site.need:
            return (
                f"every site with {need} is excluded for {site.id}" if need else f"every site is excluded for {site.id}"
            )
        return f"no site has {need}, wanted for {site.id}" if need else f"every site is excluded for {site.id}"

    def _too_few(self, fitting: Sequence[Sequence[int]]) -> str:
        """If the sites differ, each group of spots needs as many sites (Hall): the group that has too few."""
        host: dict[int, int] = {}

        def seat(j: int, tried: set[int]) -> bool:
            for v in fitting[j]:
                if v not in tried:
                    tried.add(v)
                    if v not in host or seat(host[v], tried):
                        host[v] = j
                        return True
            return False

        for j in range(len(fitting)):
            tried: set[int] = set()
            if not seat(j, tried):
                group = sorted({j, *(host[v] for v in tried)})
                wanted = ", ".join(self._request.sites[k].id for k in group)
                least = min(self._shape.spots[k].cpus for k in group)
                have = f"{len(tried)} {'site has' if len(tried) == 1 else 'sites have'}"
                where = self._names(sorted(tried))
                return f"{len(group)} sites wanted ({wanted}), only {have} {least} {self._speech.units} free: {where}"
        return ""

    # -- links ------------------------------------------------------------------------------------------------------

    def _short_of_links(self, free: Availability, frame: Term) -> str:
        wide = free._replace(bw=tuple(self._shape.total_bw for _ in free.bw))
        if self._found(wide) is None:
            return self._no_paths(wide)
        whole = free._replace(bw=tuple(self._network.bw))
        if self._found(whole) is None:
            return "the links are too narrow for all requested links at once, even with nothing reserved"
        # Fewest short links: one that is short costs 1, any other nothing, and so do CPUs.
        least = min(demand.bw for demand in self._shape.demands)
        priced = self._network.revalued([1 if width < least else 0 for width in free.bw])
        oracle = Oracle(priced)
        flat = whole._replace(vc=tuple(0 for _ in free.vc))
        outcome = Search(priced, self._shape, flat, oracle, nodes=NODES_MAX).run()
        loads: dict[int, int] = {}
        for path, demand in zip(outcome.paths, self._shape.demands, strict=False):
            for pair in itertools.pairwise(path):
                e = self._network.link_of[frozenset(pair)]
                loads[e] = loads.get(e, 0) + demand.bw
        short = [e for e, load in sorted(loads.items()) if load > free.bw[e]]
        if not short:
            return "the free bandwidth does not carry all requested links at once"
        shown = "; ".join(self._link(e, loads[e], free, frame) for e in short[:SHOWN_MAX])
        return shown + (f" and {len(short) - SHOWN_MAX} more" if len(short) > SHOWN_MAX else "")

    def _link(self, e: int, wanted: int, free: Availability, frame: Term) -> str:
        name, when = self._network.links[e].name, self._stretch(self._books.links[e], frame, wanted)
        if free.bw[e] == 0:
            return f"link {name} full{when}"
        return f"link {name} has {self._width(free.bw[e])} free{when}, {self._width(wanted)} wanted"

    def _no_paths(self, wide: Availability) -> str:
        """No bandwidth would help: what else stands in the way."""
        limits = sorted({demand.hops for demand in self._shape.demands if demand.hops})
        loosened = {
            "": {},
            f"no path of at most {limits[-1] if limits else 0} links": {"hops": 0},
            "no path within the latency bound": {"latency": -1},
            "no second path that shares no link with the first": {"twin": -1},
        }
        for words, change in loosened.items():
            if words and self._found(wide, change=change) is not None:
                return f"{words} for every requested link, between sites with enough {self._speech.units} free"
        return f"no paths connect sites with enough {self._speech.units} free"

    # -- parts ------------------------------------------------------------------------------------------------------

    def _found(
        self, free: Availability, *, bare: bool = False, change: dict[str, int] | None = None
    ) -> InstanceOutcome | None:
        """A plan under other circumstances, or None."""
        shape = self._shape
        if bare or change:
            shape = shape.with_demands([] if bare else [demand._replace(**(change or {})) for demand in shape.demands])
        outcome = Search(self._network, shape, free, self._planner.oracle, nodes=NODES_MAX).run()
        return None if outcome.status == "infeasible" else outcome

    def _stretch(self, table: Timetable | None, frame: Term, wanted: int) -> str:
        """The first stretch of a frame in which less is free than wanted."""
        begin: Instant | None = None
        end = frame.start
        share = self._policy.fraction
        for term, reserved, capacity in table.steps(frame) if table is not None else ():
            if (capacity - reserved) * share < wanted:
                begin = term.start if begin is None else begin
                end = term.end
            elif begin is not None:
                break
        return "" if begin is None else f" {self._show(begin)}-{self._show(end)}"

    def _span(self, frame: Term) -> str:
        return f"{self._show(frame.start)}-{self._show(frame.end)}"

    def _width(self, bw: int) -> str:
        return f"{bw / self._network.scale.bandwidth:g}"

    def _names(self, vertices: Sequence[int]) -> str:
        names = [self._network.names[v] for v in vertices]
        return ", ".join(names[:SHOWN_MAX]) + (f" and {len(names) - SHOWN_MAX} more" if len(names) > SHOWN_MAX else "")

    # -- what would fit ---------------------------------------------------------------------------------------------

    def nearest(self, window: FrameWindow) -> Alternative:
        """The nearest that would fit, for a request that has no plan in its window."""
        return Alternative(self._later(window), self._most_cpus(window), self._most_bw(window))

    def _later(self, window: FrameWindow) -> Instant | None:
        changes = self._books.breakpoints(window.lst, FOREVER - 1, LATER_MAX)
        if not changes:
            return None
        later = attrs.evolve(window, est=window.lst, lst=changes[-1], mode="breakpoints", most=None)
        plans = self._plan(self._shape, later).plans
        return plans[0].start if plans else None

    def _plan(self, shape: InstanceShape, window: FrameWindow) -> FramePlanned:
        limits = self._policy.limits._replace(nodes=NODES_MAX)
        policy = attrs.evolve(self._policy, sort="start", best_only=True, solver="search", limits=limits)
        return self._planner.plan(shape, window, policy)

    def _fits(self, sites: Sequence[int], links: Sequence[float], window: FrameWindow) -> bool:
        request = attrs.evolve(
            self._request,
            sites=tuple(attrs.evolve(s, cpus=c) for s, c in zip(self._request.sites, sites, strict=True)),
            links=tuple(attrs.evolve(k, bw=b) for k, b in zip(self._request.links, links, strict=True)),
        )
        return bool(self._plan(InstanceShape(self._network, request, self._options), window).plans)

    def _most_cpus(self, window: FrameWindow) -> int | None:
        """The most CPUs at each site that fit; None if not even one would."""
        wanted = [site.cpus for site in self._request.sites]
        links = [link.bw for link in self._request.links]
        return _largest(max(wanted) - 1, lambda cap: self._fits([min(c, cap) for c in wanted], links, window))

    def _most_bw(self, window: FrameWindow) -> float | None:
        """The most bandwidth on each link that fits, in whole units where the request has whole ones."""
        cpus = [site.cpus for site in self._request.sites]
        wanted = [link.bw for link in self._request.links]
        scale = self._network.scale.bandwidth
        step = 1 / scale if any(bw != int(bw) for bw in wanted) else 1.0
        most = round(max(wanted, default=0.0) / step) - 1
        found = _largest(most, lambda cap: self._fits(cpus, [min(bw, cap * step) for bw in wanted], window))
        return None if found is None else found * step


def _largest(most: int, fits: Callable[[int], bool]) -> int | None:
    """The largest number from 1 to ``most`` that fits, where smaller ones always do; None if none does."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low or None


def words(alternative: Alternative, show: Show = str, speech: Vocabulary = OFFLINE) -> str:
    """An alternative as a sentence; empty if there is none."""
    parts = []
    if alternative.start is not None:
        parts.append(f"it would fit from {show(alternative.start)} on")
    if alternative.cpus is not None:
        parts.append(f"within the window at most {alternative.cpus} {speech.units} at each site would fit")
    if alternative.bw is not None:
        parts.append(f"within the window at most {alternative.bw:g} {speech.bandwidth} on each link would fit")
    return "; ".join(parts)
