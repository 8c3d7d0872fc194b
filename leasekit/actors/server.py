"""What broker and authority share as actors: leases that they serve, notices that they owe, reports that they keep."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from leasekit.actors.base import Actor
from leasekit.actors.issued import Issued
from leasekit.actors.notices import Notices
from leasekit.actors.reports import Reports
from leasekit.actors.served import Served, ServedLease
from leasekit.actors.settings import ActorSettings, Peer
from leasekit.core.claims.keys import Scheme, Signer
from leasekit.core.schema import Row
from leasekit.core.steps import Ready

L = TypeVar("L", bound=ServedLease)


class Server(Actor, Generic[L]):
    """An actor that answers requests about leases, whose records are ``L``; ``describe`` is what an operator is shown
    of one.
    """

    def __init__(
        self,
        name: str,
        signer: Signer,
        scheme: Scheme,
        peers: Iterable[Peer],
        settings: ActorSettings,
        describe: Callable[[L], dict[str, Any]],
    ) -> None:
        super().__init__(name, signer, scheme, peers, settings)
        self.served: Served[L] = Served(self.kernel, self.keyring, describe)
        self.notices = Notices(self.kernel)
        self.reports = Reports(self.kernel, name)
        self.dispatch.add(self.served)
        self.dispatch.add(self.notices)
        self.dispatch.refused.append(self.notices.refused)
        self.peering.changed.append(self.served.retag)

    def _add_issued(self, issued: Issued) -> None:
        """Have the part that delegates take its messages, and hear of peers."""
        self.dispatch.add(issued)
        self.dispatch.refused.insert(0, issued.refused)
        self.peering.changed.append(issued.peer_changed)
        self.dispatch.connected.append(issued.connected)

    @property
    def leases(self) -> dict[str, L]:
        """The leases that it remembers, by id."""
        return self.served.leases

    def _restore(self, tables: Mapping[str, Sequence[Row]]) -> None:
        self.notices.restore(tables.get("notices", ()))
        self.reports.restore(tables.get("reports", ()))

    def ready(self) -> Ready | None:
        """As the base's; requests that this Ready does not settle are acknowledged with ``Accepted``."""
        self.served.before_ready()
        return super().ready()
