"""Leases whose holders must be heard of, and gateways that are away meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest
from deployed_world import CHAIN, DeployedWorld

from leasekit.core.requests import KEEPALIVE
from leasekit.core.time import HOUR, MINUTE, SECOND, Duration

SAID: Duration = 15 * SECOND
"""For how long a gateway says that it is there."""


class Holding(DeployedWorld):
    """A guest has an active lease whose holder may be silent for four seconds, or another time."""

    def __init__(self, folder: Path, silence: str = "4s") -> None:
        super().__init__(CHAIN, folder)
        self.id = self.request("batch", 1, 10 * SECOND, HOUR, properties={KEEPALIVE: silence})
        self.pass_time(MINUTE)

    def present(self, seconds: int, heard: bool = False) -> None:
        """A gateway is there for so long, which says so as often as it is to; the holder is ``heard``, or silent."""
        until = self.now + seconds * SECOND
        while self.now < until:
            said = self.command("batch", "gateway.present", length=SAID).result
            if heard:
                self.command("batch", "lease.keepalive", lease=self.id)
            self.pass_time(said["apart"] // 3)

    @property
    def state(self) -> str:
        """The lease's."""
        return str(self.lease("batch", self.id)["state"])


@pytest.mark.parametrize(("silence", "away"), [("4s", 3), ("4s", 8), ("4s", 14), ("4s", 600), ("20s", 11), ("1m", 40)])
def test_no_outage_of_a_gateway_ends_a_lease(tmp_path: Path, silence: str, away: int) -> None:
    """However short it is against what a gateway says of itself: the holder is heard again once one is there."""
    lease = Holding(tmp_path, silence)
    lease.present(60, heard=True)
    lease.pass_time(away * SECOND)
    lease.present(3)
    assert lease.state == "active"
    lease.present(60, heard=True)
    assert lease.state == "active"


def test_a_silent_holder_ends_a_lease(tmp_path: Path) -> None:
    """As soon as it was silent for so long while a gateway was there."""
    lease = Holding(tmp_path)
    lease.present(10, heard=True)
    lease.present(3)
    assert lease.state == "active"
    lease.present(4)
    assert lease.state in ("active", "closed")
    assert lease.lease("batch", lease.id)["because"]["code"] == "not_heard"
