"""How well CPU caps hold on a running guest, as the Shirako paper measured those of Xen."""

from __future__ import annotations

from typing import Final

import attrs
import trio

from leasekit.core.drivers import DriverError
from leasekit.drivers.libvirt.domains import Domains
from leasekit.drivers.libvirt.plan import chosen_number
from leasekit.drivers.libvirt.settings import Size

CAPS: Final = tuple(range(10, 100, 10))
"""Percent of one CPU."""
SETTLED: Final = 0.3
"""Seconds that a new cap has before its effect is measured."""
FREE_SPAN: Final = 1.0
"""Seconds over which it is measured what a guest gets without a cap."""
BUSY: Final = 10.0
"""What a guest must use without a cap, in percent of one CPU, to be measured."""
UNCAPPED: Final = "none"


async def measure_caps(domains: Domains, name: str, size: Size, seconds: str) -> dict[str, str]:
    """The percentage of one CPU that a busy guest gets under each of :data:`CAPS`, by cap, measured over so many
    ``seconds`` each; and without a cap the least that it got between these, for others want the CPU, too. The cap of
    ``size`` holds again afterwards. Raises ``DriverError`` for a guest that is not busy.
    """
    span = chosen_number("seconds", seconds, 1, 60)
    found = {}
    try:
        least = await _uncapped(domains, name, size)
        if least < BUSY:
            text = (
                f"the guest of domain {name} uses {least:.0f}% of a CPU without a cap: it must be busy to be measured"
            )
            raise DriverError(text, retry=False)
        for cap in CAPS:
            await domains.set_cpu(name, attrs.evolve(size, cap=cap))
            found[str(cap)] = f"{await _used(domains, name, span):.2f}"
            least = min(least, await _uncapped(domains, name, size))
        found = {UNCAPPED: f"{least:.2f}", **found}
    finally:
        with trio.CancelScope(shield=True):
            await domains.set_cpu(name, size)
    return found


async def _uncapped(domains: Domains, name: str, size: Size) -> float:
    await domains.set_cpu(name, attrs.evolve(size, cap=0))
    return await _used(domains, name, FREE_SPAN)


async def _used(domains: Domains, name: str, seconds: float) -> float:
    await trio.sleep(SETTLED)
    before, began = await _cpu(domains, name), trio.current_time()
    await trio.sleep(seconds)
    after, ended = await _cpu(domains, name), trio.current_time()
    return 100 * (after - before) / (ended - began)


async def _cpu(domains: Domains, name: str) -> float:
    state = await domains.find(name)
    if state is None or not state.running:
        raise DriverError(f"domain {name} runs no more")
    return state.cpu
