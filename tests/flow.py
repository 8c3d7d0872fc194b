"""Which files a plain request passes through: ``python tests/flow.py``.

A guest asks for one unit in a world of one site, one broker and one guest, in virtual time. From the command until
the lease is active every call into another file of leasekit is noted. The script prints the files in the order in which
they are first met, how often each is entered from another file, and the two sums.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import leasekit
from leasekit.core.time import HOUR, SECOND

T = TypeVar("T")
HOME = Path(leasekit.__file__).parent
WORLD = """
[emulation]
horizon = "1d"
[actor.site]
role = "authority"
[[actor.site.inventory]]
type = "vm"
units = 2
[[actor.site.delegation]]
broker = "broker"
type = "vm"
length = "1d"
[actor.broker]
role = "broker"
[actor.guest]
role = "guest"
settings.default_broker = "broker"
"""


class Flow:
    """Notes calls from one file of leasekit into another."""

    def __init__(self) -> None:
        self.entered: Counter[str] = Counter()
        self.moves = 0
        self._at = ""

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        """A call or a return, as :func:`sys.setprofile` tells it."""
        if event not in ("call", "return"):
            return
        back = frame if event == "call" else frame.f_back
        if back is None or not back.f_code.co_filename.startswith(str(HOME)):
            return
        name = str(Path(back.f_code.co_filename).relative_to(HOME))
        if name != self._at:
            self.moves += 1
            self._at = name
            if event == "call":
                self.entered[name] += 1

    def during(self, step: Callable[[], T]) -> T:
        """What a step returns, whose calls are noted."""
        sys.setprofile(self)
        try:
            return step()
        finally:
            sys.setprofile(None)


def trace() -> Flow:
    """What one request passes through until its lease is active."""
    from deployed_world import DeployedWorld

    flow = Flow()
    with tempfile.TemporaryDirectory() as folder:
        world = DeployedWorld(WORLD, Path(folder))
        lease = flow.during(lambda: world.request("guest", 1, 2 * SECOND, HOUR))
        while world.lease("guest", lease)["state"] != "active":  # to look is no part of it
            flow.during(lambda: world.pass_time(SECOND))
    return flow


def main() -> None:
    """Print it."""
    flow = trace()
    for name, times in flow.entered.items():
        print(f"{times:5}  {name}")
    print(f"{len(flow.entered)} files, {flow.moves} moves between files")


if __name__ == "__main__":
    main()
