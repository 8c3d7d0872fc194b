"""Checkers keep their own books, from what crosses the wire, what is committed and what drivers are told; they trust
no actor.

Each raises :class:`Violated` at the step at which something is wrong. This module has what all of them share, the two
that look at states, and the one of mappers; the others are in :mod:`.unit_book`, :mod:`.end_book`, :mod:`.claim_book`,
:mod:`.message_book`, :mod:`.refusals` and :mod:`.reason_book`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Final

from leasekit.actors.base import FAILED, NOT_CARRIED_OUT
from leasekit.core.claims.claim import decode_ticket, split_tickets
from leasekit.core.leases import authority, broker, delegation, outage, plans, power, returns, saved, service_manager
from leasekit.core.leases.machine import TransitionTable
from leasekit.core.protocol.messages import LeaseUpdate, Message, ReturnTicket, TicketUpdate
from leasekit.core.reasons import Code, read, with_code
from leasekit.core.schema import Change, Row
from leasekit.core.steps import Action, ActionDone
from leasekit.core.time import MINUTE, Duration, Instant

SLACK: Final[Duration] = 11 * MINUTE
"""How far an actor's clock may be ahead at the most, and a little more."""


def is_command(why: str) -> bool:
    """Whether a line of the log says who gave a command."""
    return why.startswith(with_code(Code.COMMANDED))


class Violated(AssertionError):
    """An invariant does not hold."""


def unit_of(why: str) -> str:
    """The unit that a line of a site's log is about, by its reason."""
    reason = read(why)
    return reason.who if reason is not None and reason.code == Code.UNIT else ""


def must(fine: bool, text: str) -> None:
    """Raise ``Violated`` unless it is fine."""
    if not fine:
        raise Violated(text)


Heard = Callable[[Instant, str, str, Any], None]


class Listening:
    """Hears everything, and minds nothing of it.

    A subclass that minds some kinds of messages names its handlers in :attr:`sends` (a message left an actor) and
    :attr:`receives` (it reached one that was up): each is called with the instant, sender, receiver and message.
    """

    kind: ClassVar[str] = ""
    """What a failure is called that it finds."""

    def __init__(self) -> None:
        self.sends: dict[type[Any], Heard] = {}
        self.receives: dict[type[Any], Heard] = {}

    def committed(self, at: Instant, actor: str, rows: Sequence[Row]) -> None:
        """Transitions became durable."""

    def stored(self, at: Instant, actor: str, changes: Sequence[Change]) -> None:
        """All that an actor's transaction changes became durable."""

    def sent(self, at: Instant, sender: str, receiver: str, message: Message, fate: str) -> None:
        """A message left an actor."""
        if heard := self.sends.get(type(message)):
            heard(at, sender, receiver, message)

    def received(self, at: Instant, sender: str, receiver: str, message: Message) -> None:
        """A message reached an actor that was up."""
        if heard := self.receives.get(type(message)):
            heard(at, sender, receiver, message)

    def started(self, at: Instant, actor: str, action: Action) -> None:
        """A driver was told to do something."""

    def ended(self, at: Instant, actor: str, done: ActionDone) -> None:
        """An actor heard of the end of an action."""

    def restarted(self, at: Instant, actor: str, made: Any) -> None:
        """An actor was made anew from its store."""


class MemoryChecker(Listening):
    """What an authority has called active is there after a crash, with its units, until it has said that it is over.
    What a broker has granted is there, until it has said so or the claim is over. What was acknowledged to a guest's
    operator is there.
    """

    kind = "states and memory"

    def __init__(self) -> None:
        super().__init__()
        self.sends = {LeaseUpdate: self._lease_update, TicketUpdate: self._ticket_update}
        self._active: dict[str, dict[str, tuple[int, frozenset[str]]]] = {}
        self._heard: set[tuple[str, int, bytes]] = set()
        self.receives = {ReturnTicket: self._return}
        self._granted: dict[str, dict[str, tuple[int, Instant]]] = {}
        self._latest: dict[tuple[str, str], int] = {}
        self._told: dict[str, set[str]] = {}

    def _lease_update(self, at: Instant, sender: str, receiver: str, message: LeaseUpdate) -> None:
        said = self._active.setdefault(sender, {})
        if message.state == "active":
            known = (message.lease, message.update, message.contract)
            if known not in self._heard:  # a repeat may come after the word that it is over
                self._heard.add(known)
                said[message.lease] = message.update, frozenset(unit.unit for unit in message.units)
        elif message.state in ("closed", "failed"):
            said.pop(message.lease, None)

    def _ticket_update(self, at: Instant, sender: str, receiver: str, message: TicketUpdate) -> None:
        latest = self._latest.get((sender, message.lease), 0)
        self._latest[sender, message.lease] = max(latest, message.update)
        if message.status == "granted" and message.update > latest:
            continuations = split_tickets(message.continuations)
            ends = decode_ticket(continuations[-1] if continuations else message.ticket).leaf.term.end
            self._granted.setdefault(sender, {})[message.lease] = message.update, ends
        elif message.status == "terminating":  # it ends early, and the broker may forget it then
            self._granted.get(sender, {}).pop(message.lease, None)

    def _return(self, at: Instant, sender: str, receiver: str, message: ReturnTicket) -> None:
        """A broker may forget a lease that came back."""
        self._granted.get(receiver, {}).pop(message.lease, None)

    def told(self, guest: str, lease: str) -> None:
        """The operator of ``guest`` has been told that ``lease`` was requested."""
        self._told.setdefault(guest, set()).add(lease)

    def restarted(self, at: Instant, actor: str, made: Any) -> None:
        """Look at the records of an actor after a restart."""
        self.check(actor, made.leases)
        for lease, (update, ends) in self._granted.get(actor, {}).items():
            if ends > at + SLACK:
                record = made.leases.get(lease)
                must(record is not None, f"{actor} forgot lease {lease}, which it had granted up to {ends}")
                assert record is not None
                must(record.update >= update, f"{actor}: {lease} is at update {record.update}, it had sent {update}")

    def check(self, site: str, leases: Mapping[str, Any]) -> None:
        """``leases`` are a site's records after a restart."""
        for lease, (update, units) in self._active.get(site, {}).items():
            record = leases.get(lease)
            must(record is not None, f"{site} forgot lease {lease}, which it had called active")
            assert record is not None
            must(record.state == authority.ACTIVE or record.ended >= 0, f"{site}: {lease} is {record.state} again")
            must(record.update >= update, f"{site}: {lease} is at update {record.update}, it had sent {update}")
            settled = record.update == update and record.pending == "-"
            must(not settled or units == set(record.units), f"{site}: {lease} had units {sorted(units)}, not any more")

    def missing(self, guest: str, known: Callable[[str], bool]) -> list[str]:
        """Leases that were acknowledged to the guest's operator, and of which nothing is ``known``."""
        return [lease for lease in self._told.get(guest, ()) if not known(lease)]


class StateChecker(Listening):
    """Every transition that is logged is one of the tables', and starts where the last one ended. An actor's time never
    runs backwards, whatever its clock does.
    """

    kind = "states and memory"

    TABLES: Mapping[str, Sequence[Any]] = {
        "guest": (service_manager.TABLE, returns.TABLE, plans.TOPOLOGY_TABLE),
        "broker": (broker.TABLE, delegation.TABLE, plans.HOLD_TABLE),
        "authority": (authority.TABLE, delegation.TABLE, saved.TABLE, outage.TABLE),
    }
    NOTES = frozenset({
        "mapper", "joined", "blocked_redeem", "give_back", "request", "redeem", "taken", "delegate", "notice", "report",
        "complaint", "override", "endorsed", "administer", "maintenance", "plan", "hold", "save", "inventory", "place",
        "said", "migrate", "rest", "outage", "waiting", "told", "not_taken", "bid", "price",
        "holdings", "succeeded", "part",
    })  # fmt: skip

    def __init__(self, role: Callable[[str], str], *, rogue: bool = False) -> None:
        """``rogue``: whether there is a broker that gives away more than it has."""
        super().__init__()
        self._role, self._rogue = role, rogue
        self._at: dict[tuple[str, str], str] = {}
        self.since: dict[tuple[str, str], Instant] = {}
        self.met: set[tuple[str, str, str]] = set()
        self._allowed: dict[tuple[str, str, str, str], bool] = {}
        self._active_since: dict[str, Instant] = {}
        self._latest: dict[str, Instant] = {}
        self.lease_ms = 0

    def committed(self, at: Instant, actor: str, rows: Sequence[Row]) -> None:
        """Check each line of the log."""
        role = self._role(actor)
        for when, subject, event, before, after, why in rows:
            last_at = self._latest.get(actor, 0)
            must(when >= last_at, f"{actor}: {event} of {subject} is logged at {when}, after something at {last_at}")
            self._latest[actor] = when
            if is_command(why):
                continue  # who gave a command; what it did has its own lines
            if event == "overdelegation":
                must(self._rogue, f"{actor} blames somebody, and every broker is honest: {why}")
                continue
            if event.startswith("unit "):
                self._unit("unit", authority.UNIT_TABLE, event.removeprefix("unit "), before, after)
                continue
            if event.startswith("power "):
                self._unit("power", power.TABLE, event.removeprefix("power "), before, after)
                continue
            if event in ("delegate", "taken"):
                self._at.pop((actor, subject), None)  # a delegation may come again under its old name
            if "/" in after:
                last = self._at.get((actor, subject), before)
                begins = not before or (role == "guest" and before == "relinquishing/-")
                must(begins or last == before, f"{actor}: {subject} went on from {before}, it was {last}")
                self._at[actor, subject] = after
                self.since[actor, subject] = at
            if event in self.NOTES and "/" not in before:
                continue
            if not self._is_allowed(role, event, before, after):
                must(False, f"{actor}: {subject} {event}: {before} -> {after} is in no table")
            self.met.add((role, before, event))
            if role == "guest":
                self._measure(at, subject, before, after)

    def _measure(self, at: Instant, subject: str, before: str, after: str) -> None:
        """How long leases were active in all."""
        if before == "ticketed/redeeming" and after == "active/-":
            self._active_since[subject] = at
        elif after == "closed/-":
            self.lease_ms += at - self._active_since.pop(subject, at)

    def _is_allowed(self, role: str, event: str, before: str, after: str) -> bool:
        key = (role, event, before, after)
        known = self._allowed.get(key)
        if known is None:
            old, new = tuple(before.split("/")), tuple(after.split("/"))
            known = any(table.get(old, {}).get(event) == new for table in self.TABLES[role])
            self._allowed[key] = known
        return known

    def _unit(self, what: str, table: TransitionTable, event: str, before: str, after: str) -> None:
        found = table.get((before, "-"), {}).get(event)
        must(found == (after, "-"), f"a unit's {what} {event}: {before} -> {after} is not in its table")
        self.met.add((what, before, event))


BAD_DAY: Final = "a mapper's bad day"
"""What a mapper says that raises on purpose."""


class MapperChecker(Listening):
    """No mapper raises, and what it decides is carried out: but for those that do wrong on purpose."""

    kind = "mappers"

    def __init__(self, wilful: frozenset[str] = frozenset()) -> None:
        """``wilful`` are the actors whose mappers do."""
        super().__init__()
        self._wilful = wilful

    def committed(self, at: Instant, actor: str, rows: Sequence[Row]) -> None:
        """Check what actors say of their mappers."""
        for _, _, event, _, after, why in rows:
            if event == "mapper":
                must(BAD_DAY in why or after != FAILED, f"{actor}: {why}")
                must(actor in self._wilful or after != NOT_CARRIED_OUT, f"{actor}: {why}")
