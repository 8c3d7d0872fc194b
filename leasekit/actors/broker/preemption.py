"""How a broker ends a lease early, or suspends it, for the sake of others."""

from __future__ import annotations

from leasekit.actors.broker.answers import Answers
from leasekit.actors.broker.claims import GrantedClaims
from leasekit.actors.broker.statements import Statements
from leasekit.actors.kernel import Kernel
from leasekit.actors.notices import Notices
from leasekit.core.errors import CommandError
from leasekit.core.leases import broker as br
from leasekit.core.reasons import Code, Reason, mark
from leasekit.core.time import Instant

TRUNCATE = "truncate:"


class Preemption:
    """The leases that are ended early."""

    def __init__(
        self, kernel: Kernel, granted: GrantedClaims, statements: Statements, notices: Notices, answers: Answers
    ) -> None:
        self._kernel = kernel
        self._granted = granted
        self._statements = statements
        self._notices = notices
        self._answers = answers

    def preempt(self, lease_id: str, at: Instant, reason: Reason, *, suspend: bool = False) -> None:
        """End a preemptible lease at ``at``: the site is told until it accepts, and the guest hears of it now. With
        ``suspend`` its site saves it by then.

        Raises ``CommandError``.
        """
        lease = self._granted.leases.get(lease_id)
        if lease is None or lease.state != br.TICKETED or not lease.claims:
            raise CommandError(f"lease {lease_id!r} holds nothing that could be taken from it")
        last = lease.claims[-1].until
        if not self._kernel.now <= at < last or lease.cut >= 0:
            raise CommandError(f"lease {lease_id} ends at {mark(last)}: at is {mark(at)}, or it was preempted before")
        # A renewal in hand is a claim of its own: all that go on after ``at`` are ended, or none. So is what a modify
        # cut off, which the site may still go by.
        saving = self._granted.check_saved_by(lease, at) if suspend else 0
        going_on = [claim for claim in lease.claims if claim.booked_until > at]
        notices = [(claim, *self._statements.truncated(lease, claim, at, saving)) for claim in going_on]
        if lease.request:
            self._answers.reject(lease, Reason(Code.PREEMPTED_BY).because(reason))
        lease.cut, lease.suspended = at, suspend
        self._kernel.fire(br.MACHINE, lease, "preempt", Reason(Code.ENDS_AT, at=at).because(reason))
        for claim, site, message in notices:
            id_ = f"{TRUNCATE}{lease.id}#{claim.key}"
            self._notices.owe(id_, site, lease.id, message.number, message, claim.term.end)
        self._granted.notice(lease, lease.claims[-1], at, reason)
