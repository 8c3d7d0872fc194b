"""A guest that leases topologies: those of a list, and streams of like ones that come at random, by a seed.

Each is asked for when its time has come; what became of it is not looked at. A stream is a Poisson process: gaps
between requests are drawn from hashes of the seed, so the same settings ask for the same things at the same instants. A
guest that is started late, or again, skips what was due more than a minute ago.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from heapq import merge
from typing import Any, ClassVar, Final

import attrs

from leasekit.core.mappers import GuestCycle, GuestDecision, RequestTopology, Wake
from leasekit.core.settings import DurationSetting, SettingsError
from leasekit.core.time import INSTANT_MAX, MINUTE, Duration, Instant
from leasekit.core.topology import TopologyRequest, read_topology

LATE_MAX: Final[Duration] = MINUTE
"""How late a request is still made."""
STREAM_MAX: Final = 1_000_000
"""The most requests of one stream."""


@attrs.frozen(kw_only=True)
class AskedTopology:
    """A topology that is asked for ``at`` an instant of the guest's clock, as :mod:`leasekit.core.topology` has it."""

    at: DurationSetting
    request: Mapping[str, Any]


@attrs.frozen(kw_only=True)
class TopologyStream:
    """Topologies that are asked for ``every`` so often on average, until ``until``: each to start from ``lead`` after
    it is asked for, up to ``window`` later. ``request`` says the rest.
    """

    request: Mapping[str, Any]
    every: DurationSetting = attrs.field(validator=attrs.validators.ge(1))
    until: DurationSetting = INSTANT_MAX
    lead: DurationSetting = 0
    window: DurationSetting = 0
    seed: int = 0


@attrs.frozen(kw_only=True)
class CoallocatingSettings:
    """Settings of :class:`Coallocating`."""

    requests: tuple[AskedTopology, ...] = ()
    """Topologies, each with the instant at which it is asked for."""
    streams: tuple[TopologyStream, ...] = ()
    """Streams of them."""
    broker: str = ""
    """The broker that plans (empty: the guest's default one)."""
    tries: int = attrs.field(default=3, validator=[attrs.validators.ge(1), attrs.validators.le(100)])
    """How many plans are tried for each."""


class Coallocating:
    """Asks for topologies when their time has come."""

    Settings: ClassVar[type[CoallocatingSettings]] = CoallocatingSettings
    inline: ClassVar[bool] = True

    def __init__(self, settings: CoallocatingSettings | None = None) -> None:
        """Raises ``SettingsError`` for a request that can't be read."""
        self.settings = settings = settings or CoallocatingSettings()
        listed = [
            (one.at, _read(one.request, f"requests[{number}].request")) for number, one in enumerate(settings.requests)
        ]
        streams = [_drawn(stream, f"streams[{number}].request") for number, stream in enumerate(settings.streams)]
        self._coming = merge(sorted(listed, key=_at), *streams, key=_at)
        self._next = next(self._coming, None)

    def plan(self, cycle: GuestCycle) -> list[GuestDecision]:
        """What is due now, and when the next is."""
        decisions: list[GuestDecision] = []
        while self._next is not None and self._next[0] <= cycle.now:
            at, request = self._next
            if at > cycle.now - LATE_MAX:
                decisions.append(RequestTopology(request, self.settings.broker, self.settings.tries))
            self._next = next(self._coming, None)
        if self._next is not None:
            decisions.append(Wake(self._next[0]))
        return decisions


def _at(asked: tuple[Instant, TopologyRequest]) -> Instant:
    return asked[0]


def _read(content: Mapping[str, Any], where: str) -> TopologyRequest:
    try:
        return read_topology(content)
    except SettingsError as error:
        raise error.within(where) from None


def _drawn(stream: TopologyStream, where: str) -> Iterator[tuple[Instant, TopologyRequest]]:
    """The requests of a stream. The first is made at once, so that what is wrong with it is said."""
    sample = _read({**stream.request, "est": 0, "lst": stream.window}, where)
    return _stream(stream, sample)


def _stream(stream: TopologyStream, sample: TopologyRequest) -> Iterator[tuple[Instant, TopologyRequest]]:
    at = 0.0
    for number in range(STREAM_MAX):
        digest = blake2b(f"{stream.seed}/{number}".encode(), digest_size=8).digest()
        share = int.from_bytes(digest) / 2**64
        at -= math.log(1 - share) * stream.every
        if at >= stream.until:
            return
        est = round(at) + stream.lead
        yield round(at), attrs.evolve(sample, est=est, lst=est + stream.window)
