"""Checkers that keep their own books, from what crosses the wire and what drivers are told; they trust no actor.

Each raises :class:`Violated` at the step at which something is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from leasekit.core.claims.claim import Claim
from leasekit.core.claims.statements import decode_statement
from leasekit.core.claims.ticket import decode_ticket
from leasekit.core.leases import authority, broker, delegation, returns, service_manager
from leasekit.core.protocol.messages import LeaseUpdate, Message, Redeem, ReturnTicket, TicketUpdate
from leasekit.core.schema import Row
from leasekit.core.steps import Action, ActionDone
from leasekit.core.time import Instant, Term


class Violated(AssertionError):
    """An invariant does not hold."""


def must(fine: bool, text: str) -> None:
    """Raise ``Violated`` unless it is fine."""
    if not fine:
        raise Violated(text)


class Listening:
    """Hears everything, and minds nothing of it."""

    def committed(self, at: Instant, actor: str, rows: Sequence[Row]) -> None:
        """Transitions became durable."""

    def sent(self, at: Instant, sender: str, receiver: str, message: Message, fate: str) -> None:
        """A message left an actor."""

    def received(self, at: Instant, sender: str, receiver: str, message: Message) -> None:
        """A message reached an actor that was up."""

    def started(self, at: Instant, actor: str, action: Action) -> None:
        """A driver was told to do something."""

    def ended(self, at: Instant, actor: str, done: ActionDone) -> None:
        """An actor heard of the end of an action."""


@attrs.define
class _Unit:
    lease: str = ""
    op: str = ""
    number: int = 0
    broken: bool = False


class UnitChecker(Listening):
    """A unit is set up for one lease at a time, and torn down before the next; it is not used when that failed. What is
    done again after a crash has the number that it had, and what is new on a unit a higher one, used for nothing else.
    """

    def __init__(self, sites: Sequence[str], clock: Callable[[str], Instant]) -> None:
        self._sites = frozenset(sites)
        self._clock = clock
        self._units: dict[tuple[str, str], _Unit] = {}
        self._numbers: dict[tuple[str, int], tuple[str, str]] = {}
        self._redeemed: dict[str, dict[bytes, Claim]] = {}

    def sent(self, at: Instant, sender: str, receiver: str, message: Message, fate: str) -> None:
        """Remember what a lease may have at most."""
        if isinstance(message, Redeem) and message.ticket:
            leaf = decode_ticket(message.ticket).leaf
            self._redeemed.setdefault(message.lease, {})[leaf.digest] = leaf

    def started(self, at: Instant, actor: str, action: Action) -> None:
        """Check an action at a site against what was done to the unit before."""
        if actor not in self._sites:
            return
        unit = self._units.setdefault((actor, action.unit), _Unit())
        what = f"{actor}: {action.op} of {action.unit} for {action.lease}, action {action.number}"
        first = self._numbers.setdefault((actor, action.number), (action.unit, action.op))
        must(first == (action.unit, action.op), f"{what}: the number was that of a {first[1]} of {first[0]}")
        if action.number == unit.number:
            return
        must(action.number > unit.number, f"{what}: action {unit.number} was later")
        if action.op == "setup":
            must(not unit.lease, f"{what}: {unit.lease} still has it")
            must(not unit.broken, f"{what}: its teardown failed")
            unit.lease = action.lease
            self._check_honoured(actor, action.lease, what)
        else:
            must(unit.lease == action.lease, f"{what}: it is {unit.lease or 'nobody'}'s")
            must(action.op == "teardown" or unit.op != "teardown", f"{what}: it is being torn down")
        unit.op, unit.number = action.op, action.number

    def _check_honoured(self, site: str, lease: str, what: str) -> None:
        """A site never has more units up for a lease than the tickets that were redeemed for it by now give it."""
        up = sum(unit.lease == lease and unit.op != "teardown" for unit in self._units.values())
        now = self._clock(site)
        claims = [claim for claim in self._redeemed.get(lease, {}).values() if claim.term.start <= now]
        must(bool(claims), f"{what}: no ticket of the lease has begun at {now}")
        most = max(claim.units for claim in claims)
        must(up <= most, f"{what}: it has {up} units, its tickets give it {most}")

    def ended(self, at: Instant, actor: str, done: ActionDone) -> None:
        """A unit is free when its site has heard that its teardown is done."""
        unit = self._units.get((actor, done.unit))
        if unit is not None and done.number == unit.number and unit.op == "teardown":
            unit.lease, unit.broken = "", not done.ok

    def mended(self, site: str, unit: str) -> None:
        """The operator says that the unit can be used again."""
        self._units.setdefault((site, unit), _Unit()).broken = False


class ClaimChecker(Listening):
    """What a broker has given away of a delegation never exceeds it, at any instant. A claim ends early only by the
    broker's own truncation, or by the site's receipt from when the broker has it.
    """

    def __init__(self) -> None:
        self._children: dict[bytes, dict[bytes, tuple[Claim, Term]]] = {}
        self._parents: dict[bytes, Claim] = {}

    def sent(self, at: Instant, sender: str, receiver: str, message: Message, fate: str) -> None:
        """A new claim counts from when it is shown to anybody."""
        if not isinstance(message, TicketUpdate) or not message.ticket:
            return
        if message.truncation:
            cut = decode_statement(message.truncation)
            self._end(cut.subject, cut.at)
        chain = decode_ticket(message.ticket).chain
        parent, leaf = chain[-2], chain[-1]
        siblings = self._children.setdefault(parent.digest, {})
        if leaf.digest in siblings:
            return
        self._parents[parent.digest] = parent
        siblings[leaf.digest] = (leaf, leaf.term)
        self._check(parent, leaf)

    def received(self, at: Instant, sender: str, receiver: str, message: Message) -> None:
        """A receipt that has reached the broker."""
        if isinstance(message, ReturnTicket):
            receipt = decode_statement(message.receipt)
            self._end(receipt.subject, receipt.at)

    def _end(self, digest: bytes, at: Instant) -> None:
        for siblings in self._children.values():
            if digest in siblings:
                leaf, term = siblings[digest]
                siblings[digest] = (leaf, Term(term.start, max(term.start, min(term.end, at))))

    def _check(self, parent: Claim, leaf: Claim) -> None:
        held = list(self._children[parent.digest].values())
        must(parent.term.contains(leaf.term), f"claim {leaf.id[:8]} over {leaf.term} leaves its parent's {parent.term}")
        starts = {term.start for _, term in held if term.start < leaf.term.end} | {leaf.term.start}
        for instant in starts:
            if leaf.term.start <= instant:
                total = sum(claim.units for claim, term in held if term.start <= instant < term.end)
                must(
                    total <= parent.capacity,
                    f"claim {leaf.id[:8]}: at {instant} the children hold {total} of {parent.capacity} units",
                )


class MemoryChecker(Listening):
    """What an authority has called active is there after a crash, with its units, until it has said that it is over."""

    def __init__(self) -> None:
        self._active: dict[str, dict[str, frozenset[str]]] = {}

    def sent(self, at: Instant, sender: str, receiver: str, message: Message, fate: str) -> None:
        """Remember what was said last."""
        if isinstance(message, LeaseUpdate):
            said = self._active.setdefault(sender, {})
            if message.state == "active":
                said[message.lease] = frozenset(unit.unit for unit in message.units)
            elif message.state in ("closed", "failed"):
                said.pop(message.lease, None)

    def check(self, site: str, leases: Mapping[str, Any]) -> None:
        """``leases`` are a site's records after a restart."""
        for lease in self._active.get(site, {}):
            record = leases.get(lease)
            must(record is not None, f"{site} forgot lease {lease}, which it had called active")
            assert record is not None
            must(record.state == authority.ACTIVE or record.ended >= 0, f"{site}: {lease} is {record.state} again")


class StateChecker(Listening):
    """Every transition that is logged is one of the tables', and starts where the last one ended."""

    TABLES: Mapping[str, Sequence[Any]] = {
        "guest": (service_manager.TABLE, returns.TABLE),
        "broker": (broker.TABLE, delegation.TABLE),
        "authority": (authority.TABLE, delegation.TABLE),
    }
    NOTES = frozenset({"mapper", "joined", "blocked_redeem", "give_back", "request", "redeem", "taken", "delegate"})

    def __init__(self, role: Callable[[str], str]) -> None:
        self._role = role
        self._at: dict[tuple[str, str], str] = {}
        self.since: dict[tuple[str, str], Instant] = {}
        self.met: set[tuple[str, str, str]] = set()

    def committed(self, at: Instant, actor: str, rows: Sequence[Row]) -> None:
        """Check each line of the log."""
        role = self._role(actor)
        for _, subject, event, before, after, _ in rows:
            if event.startswith("unit "):
                self._unit(event.removeprefix("unit "), before, after)
                continue
            if "/" in after:
                last = self._at.get((actor, subject), before)
                begins = not before or (role == "guest" and before == "relinquishing/-")
                must(begins or last == before, f"{actor}: {subject} went on from {before}, it was {last}")
                self._at[actor, subject] = after
                self.since[actor, subject] = at
            if event in self.NOTES and "/" not in before:
                continue
            old, new = tuple(before.split("/")), tuple(after.split("/"))
            allowed = [table for table in self.TABLES[role] if table.get(old, {}).get(event) == new]
            must(bool(allowed), f"{actor}: {subject} {event}: {before} -> {after} is in no table")
            self.met.add((role, before, event))

    def _unit(self, event: str, before: str, after: str) -> None:
        found = authority.UNIT_TABLE.get((before, "-"), {}).get(event)
        must(found == (after, "-"), f"a unit's {event}: {before} -> {after} is not in its table")
        self.met.add(("unit", before, event))
