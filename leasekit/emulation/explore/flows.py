"""What the guest wants, one flow for each exploration: the leases that it asks for, and one change to a running one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

import attrs

from leasekit.core.time import SECOND, Duration, Instant

LEAD: Final[Duration] = 39 * SECOND
"""How long after it is asked for a lease's term starts."""
LENGTH: Final[Duration] = 73 * SECOND
APART: Final[Duration] = 3 * SECOND
"""How much earlier the term of a second lease starts and ends than that of the first, so that it waits for it."""

Wish: TypeAlias = Mapping[str, Any]


@attrs.frozen(kw_only=True)
class Flow:
    """One exploration: a site with ``units`` units, a guest that asks for ``leases`` (arguments of ``lease.request``)
    and, once its first lease is active, may at any time give the command ``change`` (a name and its arguments, by the
    lease's end).
    """

    name: str
    what: str
    units: int = 1
    leases: tuple[Wish, ...] = ({"units": 1},)
    change: tuple[str, Callable[[Instant], Wish]] | None = None


_ALL: Final = (
    Flow(name="plain", what="one lease of one unit"),
    Flow(
        name="extend",
        what="one lease, extended once with the same unit",
        change=("lease.extend", lambda end: {"end": end + LENGTH}),
    ),
    Flow(
        name="grow",
        what="one lease, extended once from one unit to two",
        units=2,
        change=("lease.extend", lambda end: {"end": end + LENGTH, "units": 2}),
    ),
    Flow(
        name="shrink",
        what="one lease, extended once from two units to one, with a named victim",
        units=2,
        leases=({"units": 2},),
        change=("lease.extend", lambda end: {"end": end + LENGTH, "units": 1, "victims": ["vm-0"]}),
    ),
    Flow(
        name="modify",
        what="one lease, changed in mid-term from one unit to two by a replacement ticket",
        units=2,
        change=("lease.modify", lambda end: {"units": 2}),
    ),
    Flow(
        name="configure",
        what="one lease, whose configuration changes in mid-term, at the site alone",
        change=("lease.modify", lambda end: {"configuration": {"size": "2"}}),
    ),
    Flow(
        name="redeem_predecessor",
        what="two leases, the second redeemed once the first is active",
        units=2,
        leases=({"units": 1, "name": "first"}, {"units": 1, "redeem_predecessor": "first"}),
    ),
    Flow(
        name="join_predecessor",
        what="two leases, the second joined once the first has joined",
        units=2,
        leases=({"units": 1, "name": "first"}, {"units": 1, "join_predecessor": "first"}),
    ),
)
FLOWS: Final[Mapping[str, Flow]] = {flow.name: flow for flow in _ALL}
"""Every flow by name."""
