"""What a gateway keeps of calendars that programs subscribe to: whose, of what, and the hash of the address."""

from __future__ import annotations

from typing import Final

import attrs
import msgpack

from leasekit.core.schema import Row
from leasekit.core.time import Instant

FEEDS: Final = "feeds"


@attrs.frozen(kw_only=True)
class FeedRecord:
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

    def row(self) -> Row:
        """Its row."""
        body = msgpack.packb([self.caller, self.created, self.type, self.mine])
        return (self.id, self.project, self.digest, body)

    @classmethod
    def of_row(cls, row: Row) -> FeedRecord:
        """From its row."""
        id_, project, digest, body = row
        caller, created, type_, mine = msgpack.unpackb(body)
        return cls(id=id_, project=project, caller=caller, digest=digest, created=created, type=type_, mine=mine)
