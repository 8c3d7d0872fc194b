"""What a gateway keeps of calendars that programs subscribe to: whose, of what, and the hash of the address."""

from __future__ import annotations

import attrs

from leasekit.core.leases.records import KeptRecord
from leasekit.core.time import Instant


@attrs.frozen(kw_only=True)
class FeedRecord(KeptRecord):
    """A feed as it is kept: leases of a project, of one ``type`` or all, those that ``caller`` has asked for (``mine``)
    or all.
    """

    id: str
    project: str
    caller: str
    digest: bytes
    created: Instant
    type: str = ""
    mine: bool = False

    table = "feeds"
