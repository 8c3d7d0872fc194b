"""Where what a giver's takers hold differs from what its settings say, and why: for its operator."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from leasekit.actors.settings import DelegationSpec
from leasekit.core.leases import delegation as deleg
from leasekit.core.leases.relations import Delegation, DelegationWish
from leasekit.core.reasons import Reason
from leasekit.core.time import Instant
from leasekit.core.words import view

OFFERED: Final = "offered"
"""Its taker has not answered yet."""
REFUSED: Final = "refused"
"""Its taker does not take it: ``reason``."""
RECLAIMED: Final = "reclaimed"
"""The operator took it back."""
WAITS: Final = "waits"
"""The units are somebody else's yet, or there are not so many, or the taker is no peer."""
WISHED: Final = "wished"
"""The operator wished for something else than the settings say."""
UNLISTED: Final = "unlisted"
"""The settings don't name it any more: it goes on to the end of its term."""
IN_USE: Final = "in_use"
"""More is in use than its taker has by now: ``until`` then."""


def differences(
    settled: Mapping[str, DelegationSpec],
    wanted: Mapping[str, DelegationSpec],
    wishes: Mapping[str, DelegationWish],
    records: Iterable[Delegation],
    now: Instant,
) -> list[dict[str, Any]]:
    """A row for each line of which something else is held than ``settled``. ``held`` are the units that the taker has
    now, ``wanted`` those that it is to have, ``file`` those of the settings (0: they don't name it).
    """
    lines: dict[str, list[Delegation]] = {line: [] for line in wanted}
    for record in sorted(records, key=lambda one: one.number):
        lines.setdefault(record.base, []).append(record)
    rows = []
    for line, stretches in lines.items():
        file, spec, wish = settled.get(line), wanted.get(line), wishes.get(line)
        held = [one for one in stretches if one.state == deleg.HELD and one.term.start <= now < one.term.end]
        units = max((one.units for one in held), default=0)
        code, reason, until = _why(file, spec, wish, stretches, units, now)
        if code:
            broker, type_ = (spec.broker, spec.type) if spec is not None else (stretches[0].peer, stretches[0].type)
            rows.append(
                {
                    "line": line, "broker": broker, "type": type_, "code": code, "held": units,
                    "wanted": spec.units if spec is not None else 0, "file": file.units if file is not None else 0,
                    "until": until, **view(reason),
                }
            )  # fmt: skip
    return rows


def _why(
    file: DelegationSpec | None,
    spec: DelegationSpec | None,
    wish: DelegationWish | None,
    stretches: list[Delegation],
    held: int,
    now: Instant,
) -> tuple[str, Reason | None, Instant]:
    """The code, the reason, and the instant until which it is so (-1: not known)."""
    last = stretches[-1] if stretches else None
    if last is not None and last.state == deleg.OFFERING:
        return OFFERED, None, last.term.end
    if last is not None and last.state == deleg.REFUSED:
        return REFUSED, last.reason, -1
    if spec is None:
        ends = [one.term.end for one in stretches if one.state == deleg.HELD]
        return (UNLISTED, None, max(ends)) if ends else ("", None, -1)
    if not held and last is not None and last.statement and wish is None:
        return RECLAIMED, last.reason, -1
    over = 0 <= spec.until <= now
    if held != spec.units and not over:
        return WAITS, None, -1
    beyond = max((one.beyond for one in stretches if one.state == deleg.HELD), default=-1)
    if beyond > now:
        return IN_USE, None, beyond
    if wish is not None and (file is None or (wish.units or file.units, wish.until) != (file.units, -1)):
        return WISHED, None, spec.until
    return "", None, -1
