"""What a broker holds for planned topologies, from the plan to the tickets.

A hold is booked like a lease, but for a minute or so, and durable before anybody hears of it. It ends in one of four
ways: all its parts are asked for by ordinary requests, with the property ``hold = PLAN/PART``, and are granted at once;
whoever asked for the plan releases it; another broker can't hold its share; or time is up. A request for a part of what
is gone is refused in words. So whoever crashes, nothing stays held beyond ``expires``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from leasekit.actors.broker.book import Book
from leasekit.actors.broker.quotes import check_may_plan
from leasekit.actors.dispatch import query, takes
from leasekit.actors.kernel import Kernel
from leasekit.actors.keyring import Keyring
from leasekit.actors.served import Served
from leasekit.actors.settings import REQUEST, BrokerSettings
from leasekit.core.claims.ticket import JOINED_MAX
from leasekit.core.errors import CommandError, RemoteError
from leasekit.core.leases import plans
from leasekit.core.leases.plans import HELD, HOLD, HOLDING, USED, PlanHold
from leasekit.core.leases.records import BrokerLease
from leasekit.core.protocol.messages import NEW, HoldParts, PartsHeld, PlanPart, ReleaseParts, RequestTicket
from leasekit.core.reasons import Code, Reason, mark, marked, said
from leasekit.core.schema import Change, Row
from leasekit.core.time import Instant, Term
from leasekit.core.timetable import Shortfall

EXPIRED: Final = "hold_expired"


def group_of(plan: str, broker: str) -> str:
    """The request group of a plan's parts at one broker."""
    return f"{plan}@{broker}"


def _key(plan: str, part: str) -> str:
    return f"hold {plan}/{part}"


class Holds:
    """The holds of a broker. ``settings`` say how many there may be, and for how long."""

    def __init__(
        self, kernel: Kernel, keyring: Keyring, served: Served[BrokerLease], book: Book, settings: BrokerSettings
    ) -> None:
        self._kernel = kernel
        self._keyring = keyring
        self._served = served
        self._book = book
        self._settings = settings
        self.held: dict[str, PlanHold] = {}
        self.dropped: list[Callable[[PlanHold, Reason], None]] = []
        """Who is told, in order, that what a hold held is free again, and why."""
        kernel.register(PlanHold, due_at=lambda hold: hold.expires, on_due=self._due)

    # -- holding -----------------------------------------------------------------------------------------------

    def may_hold(self, peer: str, holder: bytes = b"") -> Reason | None:
        """Why nothing more is held for a peer; None if it may be. Of what is held for another broker one ``holder``
        may have half, so that it does not stand in the way of those beside it.
        """
        theirs = [hold for hold in self.held.values() if hold.peer == peer and hold.state != USED]
        most = self._settings.holds_max
        if len(theirs) >= most:
            return Reason(Code.PLANS_MAX, self._keyring.name, peer, len(theirs))
        same = sum(hold.holder == holder for hold in theirs) if holder else 0
        if same >= max(1, most // 2):
            return Reason(Code.PLANS_OF_GUEST_MAX, self._keyring.name, peer, same)
        return None

    def expires(self) -> Instant:
        """Until when what is held from now on is held at most."""
        return self._kernel.now + self._settings.hold_for

    def hold(self, hold: PlanHold) -> None:
        """Book all parts of ``hold`` and keep it. Raises ``CommandError``, with nothing changed, if one doesn't fit."""
        booked: list[PlanPart] = []
        try:
            for part in hold.parts:
                self.check_part(part, hold.term)
                self._book.table_of(part.source).reserve(_key(hold.id, part.part), part.units, hold.term)
                booked.append(part)
        except (CommandError, Shortfall) as error:
            for part in booked:
                self._book.table_of(part.source).release(_key(hold.id, part.part))
            raise CommandError(f"{part.site}, {part.type}: {error}") from error
        self.held[hold.id] = hold
        self._kernel.note(
            hold.id,
            "hold",
            "",
            f"{hold.state}/{hold.pending}",
            said(f"{len(hold.parts)} parts for {hold.peer} until {mark(hold.expires)}"),
        )
        self._kernel.touch(hold)

    def check_part(self, part: PlanPart, term: Term) -> None:
        """Raises ``CommandError`` if a part can't be granted from its delegation, whatever is free."""
        line = self._book.line(part.source)
        if not line or (line[0].type, line[0].site) != (part.type, part.site):
            raise CommandError(f"no delegation {part.source!r} of it is held")
        parts = self._book.cover(part.source, term)
        if not parts:
            raise CommandError(f"the delegation {part.source} does not cover {marked(term)}")
        if len(parts) > JOINED_MAX + 1:
            raise CommandError(f"the term goes on over {len(parts)} delegations, too many for one grant")

    def _free_parts(self, hold: PlanHold) -> None:
        for part in hold.parts:
            if self._book.line(part.source):
                table = self._book.table_of(part.source)
                if _key(hold.id, part.part) in table:
                    table.release(_key(hold.id, part.part))

    def drop(self, hold: PlanHold, why: Reason) -> None:
        """Nothing is held under it any more."""
        held = hold.state != USED
        if held:
            self._kernel.fire(plans.HOLD_MACHINE, hold, "let_go", why)
        del self.held[hold.id]
        self._kernel.erase(hold)
        if not held:
            return
        self._free_parts(hold)
        for tell in self.dropped:
            tell(hold, why)

    # -- turning it into leases --------------------------------------------------------------------------------

    def for_request(self, peer: str, message: RequestTicket) -> PlanHold | None:
        """The hold that a request is made for, if it is for one. Raises ``RemoteError`` if that is gone, or another."""
        named = message.properties.get(HOLD, "")
        if not named or message.op != NEW:
            return None
        plan, _, name = named.rpartition("/")
        hold = self.held.get(plan)
        if hold is None or hold.state == HOLDING:
            raise RemoteError(
                EXPIRED, f"hold expired: {self._keyring.name} holds nothing (any more) under {plan!r:.100}"
            )
        if hold.holder not in self._keyring.keys_of(peer):
            raise RemoteError(Code.NOT_YOURS, f"what is held under {plan} is not held for {peer}")
        part = next((one for one in hold.parts if one.part == name), None)
        found = (message.type, message.units, message.site, message.term)
        if part is None or found != (part.type, part.units, part.site, hold.term):
            raise RemoteError(Code.WRONG_HOLD, f"{named!r:.100}: what is held is not what is asked for")
        if message.properties.get("group_id") != group_of(plan, self._keyring.name):
            raise RemoteError(Code.WRONG_HOLD, f"{HOLD} goes with group_id = {group_of(plan, self._keyring.name)!r}")
        if hold.state == USED:
            raise RemoteError(EXPIRED, f"hold expired: {named} was granted before")
        return hold

    def reserve(self, hold: PlanHold, part: PlanPart, key: str) -> None:
        """Book a part of ``hold`` under ``key`` instead, for a lease."""
        table = self._book.table_of(part.source)
        table.release(_key(hold.id, part.part))
        table.reserve(key, part.units, hold.term, force=True)  # what was just released

    def use(self, hold: PlanHold, holder: str) -> None:
        """All parts of ``hold`` are leases of ``holder`` now: nothing is held any more."""
        self._kernel.fire(plans.HOLD_MACHINE, hold, "use", said(holder))

    def check_free(self, parts: Sequence[PlanPart], term: Term) -> None:
        """Raises ``CommandError`` unless all parts could be held."""
        wanted: dict[str, int] = {}
        for part in parts:
            self.check_part(part, term)
            wanted[part.source] = wanted.get(part.source, 0) + part.units
        for source, units in wanted.items():
            free = self._book.table_of(source).available(term)
            if free < units:
                raise CommandError(f"{units} units of {source} are wanted, {free} are free")

    def why_not(self, hold: PlanHold, holder: str) -> Reason | None:
        """What has changed since it was held, so that it can't be granted."""
        for part in hold.parts:
            try:
                self.check_part(part, hold.term)
            except CommandError as error:
                return Reason(Code.NOT_GRANTABLE, part.site).because(error.reason)
            table = self._book.table_of(part.source)
            if _key(hold.id, part.part) not in table:
                return Reason(Code.OTHER_DELEGATION, part.site, part.source)
            if table.available(hold.term) < 0:  # what is held itself counts
                return Reason(Code.UNITS_OUT, part.site, part.type)
        return None if holder in self._keyring.peers else Reason(Code.NO_PEER, holder)

    # -- for other brokers -------------------------------------------------------------------------------------

    @takes(HoldParts, REQUEST)
    def _on_hold(self, peer: str, message: HoldParts) -> None:
        """Another broker has planned with what it was quoted."""
        check_may_plan(self._keyring, peer)
        reason = None
        known = self.held.get(message.plan)
        if known is None:
            reason = self._hold_for(peer, message)
        elif (known.peer, known.parts, known.term) != (peer, message.parts, message.term):
            reason = Reason(Code.HOLDS_OTHER, self._keyring.name, message.plan)
        self._kernel.send(peer, PartsHeld(message.plan, message.number, reason))

    def _hold_for(self, peer: str, message: HoldParts) -> Reason | None:
        self._served.check_id(message.plan, peer, "plan")
        expires = min(message.expires, self.expires())
        if (
            not message.parts
            or not message.holder
            or message.term.end <= self._kernel.now
            or expires <= self._kernel.now
        ):
            return Reason(Code.NOTHING_TO_HOLD)
        if len({part.part for part in message.parts}) < len(message.parts):
            return Reason(Code.PARTS_ALIKE)
        hold = PlanHold(message.plan, peer, "", message.holder, message.term, message.parts, expires)
        reason = self.may_hold(peer, message.holder)
        try:
            if not reason:
                self.hold(hold)
        except CommandError as error:
            return error.reason
        return reason

    @takes(ReleaseParts, REQUEST)
    def _on_release(self, peer: str, message: ReleaseParts) -> None:
        hold = self.held.get(message.plan)
        if hold is not None and hold.peer == peer and hold.state != USED:
            self.drop(hold, Reason(Code.RELEASED, peer))

    # -- time and state ----------------------------------------------------------------------------------------

    def restore(self, rows: Iterable[Row]) -> None:
        """Take up the holds that a store kept, when the book has its delegations again."""
        for row in rows:
            hold = PlanHold.from_row(row)
            if hold.state == HOLDING:
                # Whoever asked has had no answer, and asks again; other brokers' shares expire.
                self._kernel.changes.append(Change(hold.table, hold.id, None))
                continue
            self.held[hold.id] = hold
            if hold.state == HELD:
                for part in hold.parts:
                    if self._book.line(part.source):
                        table = self._book.table_of(part.source)
                        table.reserve(_key(hold.id, part.part), part.units, hold.term, force=True)
            self._kernel.schedule(hold, hold.expires)

    def _due(self, hold: PlanHold) -> None:
        self.drop(hold, Reason(Code.HELD_UNTIL, at=hold.expires))

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
            for hold in self.held.values()
        ]
