"""How often somebody may log in, or call."""

from __future__ import annotations

import ipaddress
import math
from collections import OrderedDict
from http import HTTPStatus
from typing import Final

import attrs

from leasekit.core.buckets import Bucket
from leasekit.core.time import SECOND, Instant
from leasekit.gateway.problems import ProblemError

KEPT_MAX: Final = 10_000
"""Of how many callers it is known how often they came; then those are forgotten who came longest ago."""
MINUTE_S: Final = 60.0


@attrs.define(eq=False)
class Rates:
    """``per_minute`` on average for each of those who come, and as many at once."""

    per_minute: int
    _buckets: OrderedDict[str, Bucket] = attrs.field(init=False, factory=OrderedDict)

    def take(self, who: str, now: Instant) -> None:
        """Once more. Raises :class:`ProblemError` (429, with ``Retry-After``) when that is too often."""
        seconds = now / SECOND
        bucket = self._buckets.get(who)
        if bucket is None:
            bucket = self._buckets[who] = Bucket(self.per_minute / MINUTE_S, self.per_minute - 1, seconds)
            if len(self._buckets) > KEPT_MAX:
                self._buckets.popitem(last=False)
        self._buckets.move_to_end(who)
        wait = bucket.wait(seconds)
        if wait > 0:
            raise ProblemError(
                HTTPStatus.TOO_MANY_REQUESTS, f"at most {self.per_minute} a minute are allowed", code="too_many",
                headers={"retry-after": str(math.ceil(wait))},
            )  # fmt: skip
        bucket.take(1, seconds)


def network(address: str) -> str:
    """Whom an address stands for: of IPv6 a /64, in which one machine may have any."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv6Address):
        found = found.ipv4_mapped or found
    return str(found) if found.version == 4 else str(ipaddress.ip_network((found, 64), strict=False))
