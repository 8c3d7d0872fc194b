"""A guest's mapper in a file of its own: the request injector of Shirako's section 5.3.

In every term it asks for the same number of units, split evenly over some leases, and never extends one: at the end of
each term the site must take all units from the old leases and give them to the new ones ("flip" them).
A deploy file names it ``injector.py:Injector``, from its own folder; what it may rely on is ``leasekit.core.mappers``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

import attrs

from leasekit.core.mappers import GuestCycle, GuestDecision, RequestLease, Wake
from leasekit.core.settings import DurationSetting
from leasekit.core.time import MINUTE, Term


@attrs.frozen(kw_only=True)
class InjectorSettings:
    """What ``[actor.NAME.mapper]`` may hold beside the mapper's name."""

    type: str
    units: int = attrs.field(validator=attrs.validators.ge(1))
    """How many units of the type all leases of a term have together."""
    term: DurationSetting = attrs.field(validator=attrs.validators.ge(1))
    leases: int = attrs.field(default=1, validator=attrs.validators.ge(1))
    """Over how many leases the units are split: it must divide them."""
    lead: DurationSetting = attrs.field(default=1 * MINUTE, validator=attrs.validators.ge(1))
    """How long before a term starts its leases are asked for; the first term starts so long after 0."""

    def __attrs_post_init__(self) -> None:
        if self.units % self.leases:
            raise ValueError(f"found {self.units} units over {self.leases} leases, expected leases of equal size")
        if self.lead > self.term:
            raise ValueError("found a lead that is longer than the term, expected one that is not")


class Injector:
    """Asks for the leases of term k, [lead + k * term, lead + (k + 1) * term), at k * term."""

    Settings: ClassVar[type] = InjectorSettings
    inline = True

    def __init__(self, settings: InjectorSettings) -> None:
        self._settings = settings
        self._asked = -1

    def plan(self, cycle: GuestCycle) -> Iterable[GuestDecision]:
        """The requests of the term that is next, once, and when to call again."""
        settings = self._settings
        index = cycle.now // settings.term
        start = settings.lead + index * settings.term
        if index > self._asked and start >= cycle.now:
            self._asked = index
            request = RequestLease(settings.type, settings.units // settings.leases, Term(start, start + settings.term))
            yield from [request] * settings.leases
        yield Wake((index + 1) * settings.term)
