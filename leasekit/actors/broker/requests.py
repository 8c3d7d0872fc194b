"""How a broker takes requests: for new leases, for more time or other units, and their withdrawal."""

from __future__ import annotations

from leasekit.actors.broker.admission import Admission
from leasekit.actors.broker.answers import Answers
from leasekit.actors.broker.claims import place_of
from leasekit.actors.broker.grants import HeldParts
from leasekit.actors.dispatch import takes
from leasekit.actors.kernel import Kernel
from leasekit.actors.served import OLD, Served
from leasekit.actors.settings import REQUEST
from leasekit.core.errors import CommandError, RemoteError
from leasekit.core.leases import broker as br
from leasekit.core.leases.machine import NONE
from leasekit.core.leases.records import Asked, BrokerLease
from leasekit.core.properties import Properties
from leasekit.core.protocol.messages import EXTEND, MODIFY, NEW, RequestTicket, Withdraw
from leasekit.core.reasons import Code, Reason, mark, said
from leasekit.core.requests import Options, parse_options
from leasekit.core.time import Instant

_OPS = {NEW: br.TICKETING, EXTEND: br.EXTENDING_TICKET, MODIFY: br.MODIFYING}


class Requests:
    """The requests of guests."""

    def __init__(
        self,
        kernel: Kernel,
        served: Served[BrokerLease],
        admission: Admission,
        answers: Answers,
        held: HeldParts,
    ) -> None:
        self._kernel = kernel
        self._served = served
        self._admission = admission
        self._answers = answers
        self._held = held

    @takes(RequestTicket, REQUEST)
    def _on_request(self, peer: str, message: RequestTicket) -> None:
        lease = self._served.leases.get(message.lease)
        if not self._served.is_news(lease, peer, message.number):
            return
        if message.op not in _OPS:
            raise RemoteError(Code.BAD_OP, f"op: found {message.op!r}, allowed are {', '.join(_OPS)}")
        try:
            options = parse_options(message.properties, message.term)
        except CommandError as error:
            raise RemoteError(Code.BAD_PROPERTIES, str(error)) from error
        hold = self._held.holds.for_request(peer, message)
        self._admission.admit(peer, message, options)
        asked = Asked(message.op, message.units, message.term, message.site, message.properties)
        if message.op == NEW:
            if lease is not None:
                raise RemoteError(
                    Code.EXISTS, f"lease {lease.id} is {lease.state}: it can be extended, not asked for again"
                )
            lease = self._open(peer, message, asked, options)
        else:
            lease = self._reopen(lease, message, asked)
        self._admission.enqueue(lease, options)
        self._served.accept(lease, message.number)
        self._kernel.touch(lease)
        if hold is not None:
            self._held.use(hold, lease)

    def _open(self, peer: str, message: RequestTicket, asked: Asked, options: Options) -> BrokerLease:
        self._served.check_id(message.lease, peer)
        self._admission.check_size(message.type, message.units, options)
        lease = BrokerLease(
            message.lease, peer, message.slice, message.type, br.NASCENT, br.TICKETING, asked, message.number,
            message.number, self._place_in_line(peer, message.properties),
            self._admission.deadline(options, asked.term.end, whole=False), group=options.group,
            key=self._served.key_of(peer),
        )  # fmt: skip
        self._served.leases[lease.id] = lease
        self._kernel.note(
            lease.id, "request", "", f"{lease.state}/{lease.pending}", said(f"{peer}: {asked.units} {lease.type}")
        )
        self._admission.note(lease, options)
        if options.group:
            self._admission.join_group(lease, options)
        return lease

    def _reopen(self, lease: BrokerLease | None, message: RequestTicket, asked: Asked) -> BrokerLease:
        if lease is None or not lease.claims:
            raise RemoteError(Code.UNKNOWN_LEASE, f"{self._served.name} has granted no lease {message.lease}")
        claim = lease.claims[place_of(lease, message.op, message.term)]
        if lease.cut < 0 and message.claim != claim.digest:
            last = "last claim" if message.op == EXTEND else f"claim at {mark(message.term.start)}"
            raise RemoteError(Code.WRONG_CLAIM, f"lease {lease.id}'s {last} is another one than the request names")
        deadline = self._admission.goes_on_until(lease, message.op, message.term)
        if lease.request:  # or it would not ask for something else
            self._kernel.fire(br.MACHINE, lease, "withdraw", Reason(Code.WITHDRAWN))
            self._answers.settle(lease, "closed", Reason(Code.REQUEST_REPLACED))
        self._kernel.fire(br.MACHINE, lease, message.op)
        lease.asked, lease.number, lease.request, lease.arrived = (
            asked,
            message.number,
            message.number,
            self._kernel.now,
        )
        lease.deadline = deadline
        return lease

    @takes(Withdraw)
    def _on_withdraw(self, peer: str, message: Withdraw) -> None:
        lease = self._served.leases.get(message.lease)
        if lease is None:
            raise RemoteError(Code.UNKNOWN_LEASE, f"{self._served.name} knows no lease {message.lease}")
        fresh = self._served.freshness(lease, peer, message.number)
        if fresh == OLD:
            return
        overtaken, lease.number = message.request > lease.number, message.number
        self._kernel.touch(lease)
        if lease.request != message.request or lease.pending == NONE:
            if overtaken and lease.pending == NONE and lease.ended < 0:
                lease.request = message.request  # when it comes it is dropped
                self._answers.settle(lease, "closed", Reason(Code.WITHDRAWN))
            else:
                self._served.repeat(lease, message.number)
            return
        self._kernel.fire(br.MACHINE, lease, "withdraw", Reason(Code.WITHDRAWN))
        self._answers.settle(lease, "closed", Reason(Code.WITHDRAWN))
        self._answers.refuse_group(lease, Reason(Code.GROUP_WITHDRAWN))

    def _place_in_line(self, peer: str, properties: Properties) -> Instant:
        """Since when a new request waits: the rest of a suspended lease of the same holder has its place, once."""
        before = self._served.leases.get(properties.get("resumes", ""))
        if before is None or before.holder != peer or not before.suspended:
            return self._kernel.now
        before.suspended = False
        self._kernel.touch(before)
        return before.arrived
