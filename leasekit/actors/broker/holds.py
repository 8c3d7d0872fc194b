"""What a broker holds for planned topologies, from the plan to the tickets.

A hold is booked like a lease, but for a minute or so, and durable before anybody hears of it. It ends in one of four
ways: all its parts are asked for by ordinary requests, with the property ``hold = PLAN/PART``, and are granted at once;
whoever asked for the plan releases it; another broker can't hold its share; or time is up. A request for a part of what
is gone is refused in words. So whoever crashes, nothing stays held beyond ``expires``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from leasekit.actors.broker.probes import BrokerProbes
from leasekit.actors.dispatch import query, takes
from leasekit.actors.settings import REQUEST, BrokerSettings, Peer
from leasekit.core.claims.keys import Scheme, Signer
from leasekit.core.claims.ticket import JOINED_MAX
from leasekit.core.errors import CommandError, RemoteError
from leasekit.core.leases import plans
from leasekit.core.leases.plans import HELD, HOLD, HOLDING, USED, PlanHold
from leasekit.core.leases.records import BrokerLease
from leasekit.core.mappers import BrokerMapper, Grant
from leasekit.core.protocol.codec import clip
from leasekit.core.protocol.messages import NEW, Held, Hold, PlanPart, Release, RequestTicket
from leasekit.core.schema import Change, Row
from leasekit.core.time import Term
from leasekit.core.timetable import Shortfall

EXPIRED: Final = "hold_expired"


def group_of(plan: str, broker: str) -> str:
    """The request group of a plan's parts at one broker."""
    return f"{plan}@{broker}"


def _key(plan: str, part: str) -> str:
    return f"hold {plan}/{part}"


class BrokerHolds(BrokerProbes):
    """The holds of a broker."""

    def __init__(
        self,
        name: str,
        signer: Signer,
        scheme: Scheme,
        peers: Iterable[Peer],
        settings: BrokerSettings,
        fresh: Callable[[], BrokerMapper] | None,
    ) -> None:
        super().__init__(name, signer, scheme, peers, settings, fresh)
        self.holds: dict[str, PlanHold] = {}
        self.kernel.register(PlanHold, due_at=lambda hold: hold.expires, on_due=self._hold_due)

    # -- for the layer above -----------------------------------------------------------------------------------

    def _cut(self, lease: BrokerLease, grant: Grant, key: str) -> None:
        raise NotImplementedError

    def _let_go_of(self, hold: PlanHold, why: str) -> None:
        """What a hold held is free again: tell the other brokers, or try another plan."""
        raise NotImplementedError

    # -- holding -----------------------------------------------------------------------------------------------

    def _may_hold(self, peer: str, holder: bytes = b"") -> str:
        """Why nothing more is held for a peer; empty if it may be. Of what is held for another broker one ``holder``
        may have half, so that it does not stand in the way of those beside it.
        """
        theirs = [hold for hold in self.holds.values() if hold.peer == peer and hold.state != USED]
        most = self.settings.holds_max
        if len(theirs) >= most:
            return f"{self.name} holds {len(theirs)} plans for {peer}, its limit"
        same = sum(hold.holder == holder for hold in theirs) if holder else 0
        if same >= max(1, most // 2):
            return f"{self.name} holds {same} plans of {peer} for the same guest, its limit"
        return ""

    def _hold(self, hold: PlanHold) -> None:
        """Book all parts of ``hold`` and keep it. Raises ``CommandError``, with nothing changed, if one doesn't fit."""
        booked: list[PlanPart] = []
        try:
            for part in hold.parts:
                self._check_part(part, hold.term)
                self.book.table_of(part.source).reserve(_key(hold.id, part.part), part.units, hold.term)
                booked.append(part)
        except (CommandError, Shortfall) as error:
            for part in booked:
                self.book.table_of(part.source).release(_key(hold.id, part.part))
            raise CommandError(f"{part.site}, {part.type}: {error}") from error
        self.holds[hold.id] = hold
        self.kernel.note(
            hold.id,
            "hold",
            "",
            f"{hold.state}/{hold.pending}",
            f"{len(hold.parts)} parts for {hold.peer} until {hold.expires}",
        )
        self.kernel.touch(hold)

    def _check_part(self, part: PlanPart, term: Term) -> None:
        """Raises ``CommandError`` if a part can't be granted from its delegation, whatever is free."""
        line = self.book.line(part.source)
        if not line or (line[0].type, line[0].site) != (part.type, part.site):
            raise CommandError(f"no delegation {part.source!r} of it is held")
        parts = self.book.cover(part.source, term)
        if not parts:
            raise CommandError(f"the delegation {part.source} does not cover {tuple(term)}")
        if len(parts) > JOINED_MAX + 1:
            raise CommandError(f"the term goes on over {len(parts)} delegations, too many for one grant")

    def _free_parts(self, hold: PlanHold) -> None:
        for part in hold.parts:
            if self.book.line(part.source):
                table = self.book.table_of(part.source)
                if _key(hold.id, part.part) in table:
                    table.release(_key(hold.id, part.part))
        self.queue.has_news = True

    def _drop_hold(self, hold: PlanHold, why: str) -> None:
        """Nothing is held under it any more; requests that were made for its parts are refused."""
        held = hold.state != USED
        if held:
            self.kernel.fire(plans.HOLD_MACHINE, hold, "let_go", why)
        del self.holds[hold.id]
        self.kernel.erase(hold)
        if not held:
            return
        self._free_parts(hold)
        for lease in self._members(hold):
            if lease.id in self.queue:
                self.refuse_waiting(lease, f"hold expired: {why}")
        self._let_go_of(hold, why)

    # -- turning it into leases --------------------------------------------------------------------------------

    def _hold_of(self, peer: str, message: RequestTicket) -> PlanHold | None:
        """The hold that a request is made for, if it is for one. Raises ``RemoteError`` if that is gone, or another."""
        named = message.properties.get(HOLD, "")
        if not named or message.op != NEW:
            return None
        plan, _, name = named.rpartition("/")
        hold = self.holds.get(plan)
        if hold is None or hold.state == HOLDING:
            raise RemoteError(EXPIRED, f"hold expired: {self.name} holds nothing (any more) under {plan!r:.100}")
        if hold.holder not in self.keyring.keys_of(peer):
            raise RemoteError("not_yours", f"what is held under {plan} is not held for {peer}")
        part = next((one for one in hold.parts if one.part == name), None)
        found = (message.type, message.units, message.site, message.term)
        if part is None or found != (part.type, part.units, part.site, hold.term):
            raise RemoteError("wrong_hold", f"{named!r:.100}: what is held is not what is asked for")
        if message.properties.get("group_id") != group_of(plan, self.name):
            raise RemoteError("wrong_hold", f"{HOLD} goes with group_id = {group_of(plan, self.name)!r}")
        if hold.state == USED:
            raise RemoteError(EXPIRED, f"hold expired: {named} was granted before")
        return hold

    def _members(self, hold: PlanHold) -> list[BrokerLease]:
        """The leases that wait for parts of a hold."""
        mine = f"{hold.id}/"
        return [lease for lease in self.queue.leases.values() if lease.asked.properties.get(HOLD, "").startswith(mine)]

    def _commit(self, hold: PlanHold, lease: BrokerLease) -> None:
        """``lease`` asks for a part of a hold: if it is the last one, all are granted, and nothing is held any more."""
        members = {
            self.leases[id_].asked.properties.get(HOLD, "").rpartition("/")[2]: self.leases[id_]
            for id_ in self.book.group_of(lease.id)
        }
        if set(members) != {part.part for part in hold.parts}:
            return
        wrong = self._why_not(hold, lease)
        if wrong:
            self._drop_hold(hold, wrong)
            return
        for part in hold.parts:
            table, member = self.book.table_of(part.source), members[part.part]
            key = f"{member.id}#{self.kernel.next('serial')}"
            table.release(_key(hold.id, part.part))
            table.reserve(key, part.units, hold.term, force=True)  # what was just released
            self._cut(member, Grant(member.id, part.source, part.units, hold.term), key)
        self.kernel.fire(plans.HOLD_MACHINE, hold, "use", lease.holder)

    def _why_not(self, hold: PlanHold, lease: BrokerLease) -> str:
        """What has changed since it was held, so that it can't be granted."""
        for part in hold.parts:
            try:
                self._check_part(part, hold.term)
            except CommandError as error:
                return f"{part.site}: {error}"
            table = self.book.table_of(part.source)
            if _key(hold.id, part.part) not in table:
                return f"{part.site}: {part.source} is another delegation by now"
            if table.available(hold.term) < 0:  # what is held itself counts
                return f"{part.site}: units of {part.type} were taken out of service meanwhile"
        return "" if lease.holder in self.keyring.peers else f"{lease.holder} is no peer any more"

    # -- for other brokers -------------------------------------------------------------------------------------

    def _must_plan(self, peer: str) -> None:
        """Raises ``RemoteError`` unless a peer is a broker: what is held is granted without asking the mapper, so a
        guest must not say itself what that is.
        """
        if self.keyring.peers[peer].role != "broker":
            raise RemoteError("forbidden", f"{peer} is no broker: {self.name} neither quotes nor holds for it")

    @takes(Hold, REQUEST)
    def _on_hold(self, peer: str, message: Hold) -> None:
        """Another broker has planned with what it was quoted."""
        self._must_plan(peer)
        reason = ""
        known = self.holds.get(message.plan)
        if known is None:
            reason = self._hold_for(peer, message)
        elif (known.peer, known.parts, known.term) != (peer, message.parts, message.term):
            reason = f"{self.name} holds something else under {message.plan}"
        self.kernel.send(peer, Held(message.plan, message.number, clip(reason, 1000)))

    def _hold_for(self, peer: str, message: Hold) -> str:
        self.served.check_id(message.plan, peer, "plan")
        expires = min(message.expires, self.kernel.now + self.settings.hold_for)
        if not message.parts or not message.holder or message.term.end <= self.kernel.now or expires <= self.kernel.now:
            return "there is nothing to hold, or its time is over"
        if len({part.part for part in message.parts}) < len(message.parts):
            return "two parts have one name"
        hold = PlanHold(message.plan, peer, "", message.holder, message.term, message.parts, expires)
        reason = self._may_hold(peer, message.holder)
        try:
            if not reason:
                self._hold(hold)
        except CommandError as error:
            return str(error)
        return reason

    @takes(Release, REQUEST)
    def _on_release(self, peer: str, message: Release) -> None:
        hold = self.holds.get(message.plan)
        if hold is not None and hold.peer == peer and hold.state != USED:
            self._drop_hold(hold, f"{peer} released it")

    # -- time and state ----------------------------------------------------------------------------------------

    def _restore(self, tables: Mapping[str, Sequence[Row]]) -> None:
        super()._restore(tables)
        for row in tables.get("plans", ()):
            hold = PlanHold.from_row(row)
            if hold.state == HOLDING:
                # Whoever asked has had no answer, and asks again; other brokers' shares expire.
                self.kernel.changes.append(Change(hold.table, hold.id, None))
                continue
            self.holds[hold.id] = hold
            if hold.state == HELD:
                for part in hold.parts:
                    if self.book.line(part.source):
                        table = self.book.table_of(part.source)
                        table.reserve(_key(hold.id, part.part), part.units, hold.term, force=True)
            self.kernel.schedule(hold, hold.expires)

    def _hold_due(self, hold: PlanHold) -> None:
        self._drop_hold(hold, f"it was held until {hold.expires}")

    @query("holds")
    def _query_holds(self, arguments: Mapping[str, Any]) -> list[dict[str, Any]]:
        return [
            {
                "plan": hold.id,
                "peer": hold.peer,
                "state": hold.state,
                "term": list(hold.term),
                "expires": hold.expires,
                "parts": [
                    {"part": p.part, "source": p.source, "site": p.site, "type": p.type, "units": p.units}
                    for p in hold.parts
                ],
            }
            for hold in self.holds.values()
        ]
