"""What a site tells guests of their leases."""

from __future__ import annotations

from collections.abc import Callable

from leasekit.actors.kernel import Kernel
from leasekit.actors.served import Served
from leasekit.actors.site.saved import SiteSaved
from leasekit.actors.site.units import Units
from leasekit.core.claims.keys import Signer
from leasekit.core.claims.statements import CONTRACT, Statement, state
from leasekit.core.leases import authority as au
from leasekit.core.leases.records import SiteLease
from leasekit.core.leases.saved import RESUMES
from leasekit.core.protocol.messages import LeaseUpdate, UnitState
from leasekit.core.reasons import Code, Reason, all_of
from leasekit.core.time import Instant, Term


class LeaseUpdates:
    """A site's word on its leases. ``signer_of`` is who speaks of a claim."""

    def __init__(
        self,
        kernel: Kernel,
        served: Served[SiteLease],
        units: Units,
        saved: SiteSaved,
        signer_of: Callable[[bytes], Signer],
    ) -> None:
        self._kernel = kernel
        self._served = served
        self._units = units
        self._saved = saved
        self._signer_of = signer_of

    def publish(self, lease: SiteLease, word: str, number: int, reason: Reason | None = None) -> None:
        """Tell the guest how the lease stands; ``reason`` is the record's if none is given. A lease that goes on from
        another says which of its units do not.
        """
        units: tuple[UnitState, ...] = ()
        contract = b""
        if word in ("active", "waiting"):
            held = [self._units[name] for name in lease.units]
            up = [unit for unit in held if unit.state in (au.UP, au.CHANGE)]
            units = tuple(UnitState(unit.id, "active", unit.given, unit.reason) for unit in up)
            if word == "active" and lease.properties.get(RESUMES):
                anew = (Reason(Code.UNIT, unit.id).because(unit.reason) for unit in held if unit.reason)
                reason = all_of(reason or lease.reason, *anew)
        if word == "active":
            contract = self.contract(lease).encode()
        self._served.publish(
            lease,
            LeaseUpdate(
                lease.id, lease.update + 1, number, word, _promised(lease, word), units, reason or lease.reason,
                contract, lease.receipt, self._saved.count(lease),
            ),
        )  # fmt: skip

    def contract(self, lease: SiteLease, at: Instant | None = None) -> Statement:
        """The site's signed word, as of ``at`` (None: now), that the lease holds its units, and until when."""
        detail = f"{lease.id} {len(lease.units)} {lease.term.start} {lease.term.end}"
        return state(
            self._signer_of(lease.claim), CONTRACT, lease.claim, self._kernel.now if at is None else at, detail
        )


def _promised(lease: SiteLease, word: str) -> Term:
    """The term as its guest can count on it; a notice tells of what was accepted for later as well."""
    if lease.noticed < 0:
        return lease.term
    last = lease.goes_to if word == "noticed" else lease.term.end
    return Term(lease.term.start, max(min(lease.noticed, last), lease.term.start + 1))
