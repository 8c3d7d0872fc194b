"""The book of notices: what preemptible leases say of their ends, and how brokers and guests keep to it. It knows what
leases say from their first requests, and when they begin from their tickets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Final, NamedTuple

from leasekit.core.claims.claim import begin_of, decode_ticket
from leasekit.core.protocol.messages import NEW, Ack, LeaseUpdate, RequestTicket, TicketUpdate
from leasekit.core.reasons import Code, Reason, read
from leasekit.core.schema import Row
from leasekit.core.time import SECOND, Duration, Instant, parse_duration
from leasekit_simulation.faults.checkers import Listening, must

NOTICES: Final[tuple[dict[str, str], ...]] = ({"notice": "0s"}, {"notice": "2s", "min_run": "10s"}, {})
"""What preemptible leases say of their ends."""


def draw_ends(seed: int, number: int, suspends: str, *, market: bool) -> dict[str, str]:
    """What the preemptible request of this ``number`` says of its end; ``suspends`` is how long saving it takes. In one
    world of three they may have a longest run, and say what becomes of them; where there is a ``market`` they bid.
    """
    said = dict(NOTICES[number % len(NOTICES)])
    if suspends:
        said["suspend"] = suspends
    rng = Random(f"leasekit ends {seed} {number}")
    if market:
        said["bid"] = rng.choice(("0", "1", "2", "3", "5", "8"))
    if Random(f"leasekit ends {seed}").random() > 0.35:
        return said
    if rng.random() < 0.4:
        said["max_run"] = rng.choice(("20s", "1m", "3m"))
    if rng.random() < 0.8:
        said["on_preempt"] = rng.choice(("requeue", "requeue", "suspend" if suspends else "requeue"))
    return said


class Promised(NamedTuple):
    """What the request of a preemptible lease says of its end."""

    notice: Duration
    min_run: Duration
    max_run: Duration
    suspends: bool
    requeues: str
    """Who asks for it anew."""


class NoticeChecker(Listening):
    """A broker ends a lease no earlier than after its notice and its least run, and no later than by its longest run. A
    guest asks for nothing to go on from a lease that ends early, once it has heard of that, and for all of one that is
    to be requeued.
    """

    kind = "notices"

    def __init__(self, clock: Callable[[str], Instant]) -> None:
        super().__init__()
        self._clock = clock
        self._said: dict[str, Promised] = {}
        self._asked: dict[str, tuple[str, bool]] = {}
        self._begins: dict[str, tuple[str, Instant]] = {}
        self._ends: dict[str, Instant] = {}
        self._latest: dict[str, int] = {}
        self._told: dict[tuple[str, str], int] = {}
        self._noticed: set[str] = set()
        self._closed: set[str] = set()
        self.sends = {
            RequestTicket: self._request,
            TicketUpdate: self._ticket,
            LeaseUpdate: self._update,
            Ack: self._ack,
        }

    def _request(self, at: Instant, sender: str, receiver: str, message: RequestTicket) -> None:
        said = message.properties
        self._asked.setdefault(message.lease, (message.type, said.get("preemptible") == "true"))
        if message.op != NEW or said.get("preemptible") != "true" or message.lease in self._said:
            return
        notice, least, most = (
            parse_duration(said.get(name, other))
            for name, other in (("notice", "30s"), ("min_run", "0s"), ("max_run", "0s"))
        )
        requeues = sender if said.get("on_preempt") == "requeue" else ""
        self._said[message.lease] = Promised(notice, least, most, "suspend" in said, requeues)

    def _ticket(self, at: Instant, sender: str, receiver: str, message: TicketUpdate) -> None:
        if message.lease not in self._said or message.update <= self._latest.get(message.lease, 0):
            return
        self._latest[message.lease] = message.update
        if message.status == "granted":
            leaf = decode_ticket(message.ticket).leaf
            self._begins.setdefault(message.lease, (sender, begin_of(leaf)))
            self._ends[message.lease] = leaf.term.end
        elif message.status == "terminating":
            self._ends.pop(message.lease, None)

    def _update(self, at: Instant, sender: str, receiver: str, message: LeaseUpdate) -> None:
        if message.state == "terminating":
            self._told[sender, message.lease] = message.update

    def _ack(self, at: Instant, sender: str, receiver: str, message: Ack) -> None:
        if self._told.get((receiver, message.lease)) == message.update:
            self._noticed.add(message.lease)

    def committed(self, at: Instant, actor: str, rows: Sequence[Row]) -> None:
        """An end that a broker has decided; what a guest does then."""
        asked = {subject for _, subject, event, *_ in rows if event in ("rest", "complaint")}
        for when, lease, event, before, after, why in rows:
            if event in ("preempt", "notice"):
                self._makes_room(actor, lease, read(why))
            if event == "preempt" and lease in self._begins:
                self._preempted(when, actor, lease, read(why))
            elif event == "close":
                self._closed.add(lease)
            elif event in ("return", "returned", "end"):
                self._ends.pop(lease, None)
            elif event == "extend" and before == "active/-" and after == "active/extending_ticket":
                must(lease not in self._noticed, f"{actor} extends {lease}, which ends early as it knows")
            elif after in ("closed/-", "failed/-") and lease in self._said and self._said[lease].requeues == actor:
                self._over(actor, lease, read(why), lease in asked or "" in asked)

    def _makes_room(self, actor: str, lease: str, why: Reason | None) -> None:
        """Whose request a lease makes room for is said, with the decision: one for the same type that was made, of a
        normal lease, or of a preemptible one that bids more.
        """
        for cause in () if why is None else (why, *why.causes):
            if cause.code in (Code.MAKES_ROOM, Code.OUTBID):
                what = f"{actor} has {lease} make room for {cause.who!r}"
                must(cause.who != lease and cause.who in self._asked, f"{what}, for which nobody has asked")
                (type_, preemptible), mine = self._asked[cause.who], self._asked[lease]
                must(mine == (type_, True), f"{what}: it is {mine}, that asks for {type_}")
                must(preemptible == (cause.code == Code.OUTBID), f"{what} by {cause.code}, preemptible: {preemptible}")

    def _preempted(self, now: Instant, broker: str, lease: str, why: Reason | None) -> None:
        said, (_, since) = self._said[lease], self._begins[lease]
        self._ends.pop(lease, None)
        if why is None or why.at <= since or any(cause.code == Code.EVICTED for cause in why.causes):
            return
        what = f"{broker} ends {lease} at {why.at}, which is there since {since}"
        must(why.at >= since + said.min_run, f"{what}: it runs for {said.min_run} ms at least")
        must(
            said.suspends or why.at >= now + said.notice, f"{what}: it hears of it {said.notice} ms before, it is {now}"
        )
        if any(cause.code == Code.MAX_RUN for cause in why.causes):
            must(why.at >= since + said.max_run > since, f"{what}: it may run for {said.max_run} ms")

    def _over(self, guest: str, lease: str, why: Reason | None, asked: bool) -> None:
        if why is None or why.code != Code.ENDED_BY or any(cause.code == Code.MAX_RUN for cause in why.causes):
            return
        must(asked or lease in self._closed, f"{guest} does not ask anew for {lease}, which its broker has ended")

    def overrun(self, within: Duration) -> list[str]:
        """Leases that brokers let run for longer than they may, though they could have said so long ago."""
        found = []
        for lease, end in self._ends.items():
            said, (broker, since) = self._said[lease], self._begins[lease]
            last = since + said.max_run + SECOND
            if said.max_run and end > last + said.notice and self._clock(broker) > last + within:
                found.append(f"{broker} does not end {lease}, which may run for {said.max_run} ms from {since} on")
        return found
