"""What the guest wants, one flow for each exploration: the leases that it asks for, and changes to a running one."""

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

FURTHER: Final[Duration] = 40 * SECOND
"""How long a second extension is: soon enough over for what is known of it to be forgotten like all else."""

Arguments: TypeAlias = Mapping[str, Any]
Change: TypeAlias = tuple[str, Callable[[Instant], Arguments]]
"""A command's name, and its arguments, by the lease's end."""


@attrs.frozen(kw_only=True)
class Flow:
    """One exploration: a site with ``units`` units, a guest that asks for ``leases`` (arguments of ``lease.request``)
    and, once its first lease is active, may give each of the commands ``changes`` at any time, one after the other.
    With more than ``most`` faults it would take hours.
    """

    name: str
    what: str
    units: int = 1
    leases: tuple[Arguments, ...] = ({"units": 1},)
    changes: tuple[Change, ...] = ()
    most: int = 9


_ALL: Final = (
    Flow(name="plain", what="one lease of one unit"),
    Flow(
        name="extend",
        what="one lease, extended once with the same unit",
        changes=(("lease.extend", lambda end: {"end": end + LENGTH}),),
    ),
    Flow(
        name="grow",
        what="one lease, extended once from one unit to two",
        units=2,
        changes=(("lease.extend", lambda end: {"end": end + LENGTH, "units": 2}),),
    ),
    Flow(
        name="shrink",
        what="one lease, extended once from two units to one, with a named victim",
        units=2,
        leases=({"units": 2},),
        changes=(("lease.extend", lambda end: {"end": end + LENGTH, "units": 1, "victims": ["vm-0"]}),),
    ),
    Flow(
        name="modify",
        what="one lease, changed in mid-term from one unit to two by a replacement ticket",
        units=2,
        changes=(("lease.modify", lambda end: {"units": 2}),),
    ),
    Flow(
        name="configure",
        what="one lease, whose configuration changes in mid-term, at the site alone",
        changes=(("lease.modify", lambda end: {"configuration": {"size": "2"}}),),
    ),
    Flow(
        name="undo",
        most=1,
        what="one lease, extended once, and the extension is taken back",
        changes=(("lease.extend", lambda end: {"end": end + LENGTH}), ("lease.undo_extend", lambda end: {})),
    ),
    Flow(
        name="further",
        most=1,
        what="one lease, extended twice, and the second extension is taken back",
        changes=(
            ("lease.extend", lambda end: {"end": end + LENGTH}),
            ("lease.extend", lambda end: {"end": end + LENGTH + FURTHER}),
            ("lease.undo_extend", lambda end: {}),
        ),
    ),
    Flow(
        name="extend_and_modify",
        most=1,
        what="one lease, extended once, and changed from one unit to two before that or after it",
        units=2,
        changes=(("lease.extend", lambda end: {"end": end + LENGTH}), ("lease.modify", lambda end: {"units": 2})),
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
