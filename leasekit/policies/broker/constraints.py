"""What the request properties say that only a broker's mapper looks at: a filter over units, and preparation.

===========  ====================================================================================================
property     meaning
===========  ====================================================================================================
filter       which units will do: an expression over their attributes (:mod:`leasekit.core.filters`), and over ``site``
             and ``type``
prepare      how long a unit takes to be made ready for the lease, such as ``10m``; it is reserved before the term
image        what is brought to the unit in that time. A site whose resource property ``images`` (names, separated
             by commas) has it needs no preparation
suspend      how long it takes to suspend the lease, such as ``32s``: a preemptible lease that says so can be suspended
resumes      the suspended lease that this one goes on from: it has its place in line
needs.*      what each machine needs of a host (:mod:`leasekit.core.properties`)
===========  ====================================================================================================
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple

from leasekit.core.filters import LENGTH_MAX, FilterError, parse_filter
from leasekit.core.mappers import Source
from leasekit.core.properties import WHOLE, Properties, Vector, needs_of
from leasekit.core.time import Duration, parse_duration

IMAGES: Final = "images"
"""The resource property that names what is on every unit of a site already."""


class Constraints(NamedTuple):
    """The request properties, read. ``fault`` says what is wrong with them, and is empty where nothing is."""

    filter: str = ""
    image: str = ""
    prepare: Duration = 0
    fault: str = ""
    needs: Vector = WHOLE
    site_filters: tuple[str, ...] = ()
    """What the broker's own filters ask of each unit of a site."""

    def ahead(self, source: Source) -> Duration:
        """How long before its start a lease must have its units from this source, so that they are ready."""
        if not self.prepare:
            return 0
        if self.image and self.image in [name.strip() for name in source.properties.get(IMAGES, "").split(",")]:
            return 0
        return self.prepare


PLAIN: Final = Constraints()


def read_constraints(properties: Properties) -> Constraints:
    """The constraints among request properties; never raises."""
    if not properties:
        return PLAIN
    text, image, prepare = properties.get("filter", ""), properties.get("image", ""), properties.get("prepare", "")
    try:
        needs = needs_of(properties)
    except ValueError as error:
        return Constraints(fault=str(error))
    if not (text or image or prepare or needs):
        return PLAIN
    try:
        if len(text) > LENGTH_MAX:
            parse_filter(text)  # which refuses it: such a text is not worth keeping
        return Constraints(text, image, parse_duration(prepare) if prepare else 0, needs=needs)
    except FilterError as error:
        return Constraints(fault=f"properties.{error}")
    except (ValueError, OverflowError) as error:
        return Constraints(fault=f"properties.prepare: {error}")


@lru_cache(maxsize=256)
def _time(text: str) -> Duration | None:
    try:
        return max(1, parse_duration(text))
    except (ValueError, OverflowError):
        return None


def suspend_time(properties: Properties) -> Duration | None:
    """How long it takes to suspend a lease with these request properties; None if that can't be done."""
    text = properties.get("suspend", "")
    return _time(text) if text else None
