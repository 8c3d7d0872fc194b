"""The book of units: what drivers were told to do with each and for whom, and with its power; whose fault it was that
it failed, and what its site made of that; and which units a site takes from a lease that goes on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Final

import attrs

from leasekit.core.claims.claim import Claim, decode_ticket
from leasekit.core.claims.signed import decode_statement
from leasekit.core.drivers import LEASE, SITE
from leasekit.core.errors import TicketError
from leasekit.core.leases import authority
from leasekit.core.leases.authority import UP
from leasekit.core.leases.outage import OVER, TRYING
from leasekit.core.leases.power import OPERATIONS, POWER_ON, RESUME
from leasekit.core.protocol.messages import (
    EXTEND,
    MODIFY,
    UNDO,
    Accepted,
    CloseLease,
    ErrorReply,
    LeaseUpdate,
    Redeem,
    Relinquish,
)
from leasekit.core.reasons import Code, Reason, read
from leasekit.core.schema import Row
from leasekit.core.steps import Action, ActionDone
from leasekit.core.time import Instant
from leasekit_simulation.faults.checkers import Listening, must, unit_of
from leasekit_simulation.faults.scenario import HOSTILE


@attrs.define
class UnitEntry:
    """What is known of one unit: whose it is, what was last done to it under which number, whether that is ``over``,
    whether it is up, and whose remains are ``left`` on it, for they could not be torn down.
    """

    lease: str = ""
    op: str = ""
    number: int = 0
    over: bool = False
    up: bool = False
    left: str = ""
    failed: bool = False


class UnitChecker(Listening):
    """A unit is set up for one lease at a time, and torn down before the next; it is not used when that failed. What is
    done again after a crash has the number that it had, and what is new on a unit a higher one, used for nothing else.
    No unit is set up beyond what a lease's tickets give it, nor torn down while they do unless somebody asked for that.
    A lease that a site calls active has the units that the site names, all of them up.
    """

    kind = "units"

    def __init__(self, sites: Sequence[str], clock: Callable[[str], Instant]) -> None:
        super().__init__()
        self.sends = {Redeem: self._redeem}
        self.receives = {CloseLease: self._may_shrink, Relinquish: self._may_shrink, Redeem: self._redeemed}
        self._sites = frozenset(sites)
        self._clock = clock
        self.units: dict[tuple[str, str], UnitEntry] = {}
        self._decided: dict[tuple[str, str], str] = {}
        """For which lease a unit is to be set up, from when that is written down until something is done to it."""
        self._numbers: dict[tuple[str, int], tuple[str, str]] = {}
        self._redeemed_claims: dict[str, dict[bytes, Claim]] = {}
        self._shrinks: set[tuple[str, str]] = set()
        self._set_up: set[str] = set()
        self._lost: set[tuple[str, str]] = set()
        self._victims: dict[tuple[str, int], tuple[str, ...]] = {}
        self._modified: dict[tuple[str, str], int] = {}

    # -- what leases may have ----------------------------------------------------------------------------------

    def _redeem(self, at: Instant, sender: str, receiver: str, message: Redeem) -> None:
        """Remember what a lease may have at most."""
        if message.ticket and message.op != UNDO:
            try:
                leaf = decode_ticket(message.ticket).leaf
            except TicketError:
                return
            self._redeemed_claims.setdefault(message.lease, {})[leaf.digest] = leaf

    def _redeemed(self, at: Instant, sender: str, receiver: str, message: Redeem) -> None:
        self._victims[message.lease, message.number] = message.victims
        if message.op == MODIFY and message.ticket:
            self._modified[receiver, message.lease] = message.number
        if message.op in (EXTEND, MODIFY) and sender != HOSTILE:
            self._shrinks.add((receiver, message.lease))

    def _may_shrink(self, at: Instant, sender: str, receiver: str, message: CloseLease | Relinquish) -> None:
        if sender != HOSTILE:
            self._shrinks.add((receiver, message.lease))

    def hostile(self, site: str, lease: str) -> None:
        """The hostile guest has a lease of its own, with which it may do anything."""
        self._shrinks.add((site, lease))

    # -- what drivers are told ---------------------------------------------------------------------------------

    def committed(self, at: Instant, actor: str, rows: Sequence[Row]) -> None:
        """A crash may come between what is decided and what is done: then a unit may be torn down that was never set
        up.
        """
        if actor in self._sites:
            for _, lease, event, _, _, why in rows:
                if event == "unit setup":
                    self._decided[actor, unit_of(why)] = lease

    def started(self, at: Instant, actor: str, action: Action) -> None:
        """Check an action at a site against what was done to the unit before."""
        if actor not in self._sites or action.op in OPERATIONS:
            return  # power has a book of its own
        unit = self.units.setdefault((actor, action.unit), UnitEntry())
        first = self._numbers.setdefault((actor, action.number), (action.unit, action.op))
        if first != (action.unit, action.op):
            must(False, f"{_what(actor, action)}: the number was that of a {first[1]} of {first[0]}")
        if action.number == unit.number:
            # Done again after a restart: nothing of its end has been kept.
            if action.op == "setup":
                unit.up = unit.failed = False
            unit.lease, unit.over = action.lease, False
            return
        decided = self._decided.pop((actor, action.unit), "")
        if action.number < unit.number:
            must(False, f"{_what(actor, action)}: action {unit.number} was later")
        if action.op == "setup":
            must(not unit.lease, f"{_what(actor, action)}: {unit.lease} still has it")
            must(not unit.left, f"{_what(actor, action)}: the teardown for {unit.left} failed")
            unit.lease = action.lease
            unit.failed = False
            self._set_up.add(action.lease)
            self._check_honoured(actor, action)
        else:
            owner = unit.lease or unit.left or decided
            must(owner == action.lease, f"{_what(actor, action)}: it is {owner or 'nobody'}'s")
            unit.lease = owner
            must(action.op == "teardown" or unit.op != "teardown", f"{_what(actor, action)}: it is being torn down")
            if action.op == "teardown" and not unit.failed and not unit.left:
                self._check_given_up(actor, action)
        unit.op, unit.number, unit.up = action.op, action.number, unit.up and action.op == "modify"
        unit.over = False

    def _check_honoured(self, site: str, action: Action) -> None:
        """A site never has more units up for a lease than the tickets that were redeemed for it by now give it."""
        lease, now = action.lease, self._clock(site)
        up = sum(unit.lease == lease and unit.op != "teardown" for unit in self.units.values())
        claims = [claim for claim in self._redeemed_claims.get(lease, {}).values() if claim.term.start <= now]
        must(bool(claims), f"{_what(site, action)}: no ticket of the lease has begun at {now}")
        most = max(claim.units for claim in claims)
        must(up <= most, f"{_what(site, action)}: it has {up} units, its tickets give it {most}")

    def _check_given_up(self, site: str, action: Action) -> None:
        """A unit that works is taken from its lease at the end of a ticket, or when its guest asked for something."""
        lease, now = action.lease, self._clock(site)
        ends = [claim.term.end for claim in self._redeemed_claims.get(lease, {}).values()]
        asked = (site, lease) in self._shrinks or (ends and now >= min(ends))
        must(bool(asked), f"{_what(site, action)}: nobody asked for that, at {now} its tickets go on to {ends}")

    def ended(self, at: Instant, actor: str, done: ActionDone) -> None:
        """A unit is free when its site has heard that its teardown is done."""
        unit = self.units.get((actor, done.unit))
        if unit is None or done.number != unit.number or unit.over:
            return  # a late word on an action that has ended counts no more
        unit.over = True
        if unit.op == "teardown":
            unit.lease, unit.left = "", "" if done.ok else unit.lease
        elif unit.op == "setup" and not unit.failed:
            unit.up, unit.failed = done.ok, not done.ok
            if done.blame == LEASE:  # what it asks for can't be had: it may give up the rest
                self._shrinks.add((actor, unit.lease))

    def broke(self, site: str, unit: str) -> None:
        """A unit that was up is down: its site may tear it down at any time."""
        entry = self.units.setdefault((site, unit), UnitEntry())
        entry.failed = True
        if entry.lease:
            self._lost.add((site, entry.lease))

    # -- what guests are told ----------------------------------------------------------------------------------

    def terminating(self, site: str, lease: str) -> None:
        """A site has told a guest that its lease ends early."""
        self._shrinks.add((site, lease))

    def announced(self, site: str, message: LeaseUpdate) -> None:
        """An update that is sent for the first time."""
        if message.state == "closed" and (message.reason is None or message.reason.code != Code.CLOSED_UNREDEEMED):
            left = [name for (at, name), unit in self.units.items() if at == site and unit.lease == message.lease]
            must(not left, f"{site} says that {message.lease} is closed: {left} are still held for it")
        if message.state == "active":
            named = self._victims.get((message.lease, message.number), ())
            spared = [given.unit for given in message.units if given.unit in named]
            must(
                not spared or self._is_spared(site, message),
                f"{site} says that {message.lease} has {spared}, which its guest had given up",
            )
            for given in message.units:
                unit = self.units.get((site, given.unit), UnitEntry())
                must(
                    unit.lease == message.lease and unit.up,
                    f"{site} says that {message.lease} has {given.unit}: last was its {unit.op or 'nothing'} "
                    f"for {unit.lease or 'nobody'}{'' if unit.up else ', it is not up'}",
                )

    def _is_spared(self, site: str, message: LeaseUpdate) -> bool:
        """Whether a lease has lost a unit, or given one up, so that it needs what its guest would have given up."""
        key = (site, message.lease)
        claim = self._redeemed_claims.get(message.lease, {}).get(decode_statement(message.contract).subject)
        fewer = key in self._lost or self._modified.get(key, message.number) < message.number
        return fewer and claim is not None and len(message.units) <= claim.units

    # -- at the end --------------------------------------------------------------------------------------------

    def overstayed(self, bound: Instant) -> list[str]:
        """Units that leases still hold ``bound`` ms after the end of their last ticket, by their site's clock."""
        found = []
        for (site, name), unit in self.units.items():
            if unit.lease and unit.op != "teardown":
                ends = [claim.term.end for claim in self._redeemed_claims.get(unit.lease, {}).values()]
                if max(ends, default=0) + bound < self._clock(site):
                    found.append(f"{site}: {name} of {unit.lease}, whose last ticket ended at {max(ends, default=0)}")
        return found

    def was_set_up(self, lease: str) -> bool:
        """Whether any unit was ever set up for the lease."""
        return lease in self._set_up


def _what(site: str, action: Action) -> str:
    return f"{site}: {action.op} of {action.unit} for {action.lease}, action {action.number}"


@attrs.define
class PowerEntry:
    """What is known of one unit: whether it is surely on, and what it was last told, under which number."""

    on: bool = True
    op: str = ""
    number: int = 0
    held: str = ""


class PowerChecker(Listening):
    """Nothing is set up on a unit before it is on; the power of a unit that a lease has is not touched, from the start
    of its setup to the end of its teardown. What is done again after a crash has the number that it had.
    """

    def __init__(self, sites: Sequence[str]) -> None:
        super().__init__()
        self._sites = frozenset(sites)
        self.units: dict[tuple[str, str], PowerEntry] = {}

    def started(self, at: Instant, actor: str, action: Action) -> None:
        """Check an action at a site against what is known of the unit's power."""
        if actor not in self._sites:
            return
        unit = self.units.setdefault((actor, action.unit), PowerEntry())
        what = f"{actor}: {action.op} of {action.unit}, action {action.number}"
        again = action.number == unit.number
        must(again or action.number > unit.number, f"{what}: action {unit.number} was later")
        must(not again or action.op == unit.op, f"{what}: that was the number of its {unit.op}")
        if action.op in OPERATIONS:
            must(not unit.held, f"{what}: {unit.held} has it")
            must(not action.lease, f"{what}: it names a lease, {action.lease}")
            unit.on = False
        elif action.op == "setup":
            must(unit.on, f"{what}, for {action.lease}: it is not on, as far as anybody knows")
            unit.held = action.lease
        unit.op, unit.number = action.op, action.number

    def ended(self, at: Instant, actor: str, done: ActionDone) -> None:
        """A unit is on when its site has heard that it was switched on, and free when its teardown is done."""
        unit = self.units.get((actor, done.unit))
        if unit is None or done.number != unit.number:
            return
        if unit.op in (POWER_ON, RESUME) and done.ok:
            unit.on = True
        elif unit.op == "teardown":
            unit.held = ""


def _in_a_row(reason: Reason | None) -> int | None:
    """How often in a row a unit failed, if it is out for that."""
    causes = reason.causes if reason is not None else ()
    return next((cause.units for cause in causes if cause.code == Code.FAILED_IN_A_ROW), None)


class BlameChecker(Listening):
    """A unit goes out of service for no more failures than were its own. After a fault of the site no unit is set up
    for the lease that has met it but one at a time, to try, until one has come up. Other leases hear nothing of it.
    """

    kind = "blame"

    def __init__(self, sites: Sequence[str]) -> None:
        super().__init__()
        self._sites = frozenset(sites)
        self._setups: dict[tuple[str, str], int] = {}
        self._own: set[tuple[str, str]] = set()
        self._failed: Counter[tuple[str, str]] = Counter()
        self._outages: dict[tuple[str, str], str] = {}
        self._tried: dict[tuple[str, str], str] = {}

    def started(self, at: Instant, actor: str, action: Action) -> None:
        """Remember which actions are setups."""
        if actor in self._sites and action.op == "setup":
            self._setups[actor, action.unit] = action.number

    def ended(self, at: Instant, actor: str, done: ActionDone) -> None:
        """Remember whose fault it is that a setup failed. It ends once: what a driver says after its timeout is not
        heard.
        """
        unit = actor, done.unit
        if self._setups.get(unit) == done.number:
            del self._setups[unit]
            self._own.discard(unit)
            if not done.ok and done.blame not in (LEASE, SITE):
                self._own.add(unit)

    def committed(self, at: Instant, actor: str, rows: Sequence[Row]) -> None:
        """Look at what a site has decided, in order. A failure counts when it is durable, as a success does: what was
        heard before a crash may be forgotten.
        """
        if actor not in self._sites:
            return
        for _, subject, event, before, after, why in rows:
            reason, unit = read(why), unit_of(why)
            if event == "unit up":
                self._failed[actor, unit] = 0
            elif event == "unit failed":
                self._failed[actor, unit] += before == UP or (actor, unit) in self._own
            elif event == "unit out" and (found := _in_a_row(reason)) is not None:
                own = self._failed[actor, unit]
                must(found <= own, f"{actor}: {why}; {own} of its failures were its own")
            elif event == "unit setup":
                self._check_setup(actor, subject, unit)
            elif event == "outage" or (actor, subject) in self._outages:
                self._outages[actor, subject] = after.partition("/")[0]
                self._tried[actor, subject] = unit if event == "try" else ""
                if self._outages[actor, subject] == OVER:
                    del self._outages[actor, subject]

    def _check_setup(self, site: str, lease: str, unit: str) -> None:
        for (where, outage), state in self._outages.items():
            if where == site and outage.endswith(f"/{lease}"):
                tried = state == TRYING and self._tried[site, outage] == unit
                must(tried, f"{site} sets {unit} up, which waits until the site is mended: {outage} is {state}")


IN_USE: Final = (authority.SETUP, authority.UP, authority.CHANGE)


@attrs.define
class Change:
    """A claim that a lease was redeemed by, first as request ``number``; how many times its site heard that, but for
    those that it answered with an error; and whether it is known to go by it.
    """

    number: int
    claim: Claim
    heard: int = 0
    accepted: bool = False

    def place(self) -> tuple[Instant, int]:
        """To sort them by."""
        return self.claim.term.start, self.number


@attrs.define
class Kept:
    """A lease: what it was redeemed by, from that on by which it was last said to be active; how many units it has
    given up since then; whether it may end at any time; and whether it was ever said to be active.
    """

    changes: dict[bytes, Change] = attrs.Factory(dict)
    refused: set[bytes] = attrs.Factory(set)
    asked: dict[tuple[str, int], bytes] = attrs.Factory(dict)
    spent: int = 0
    ends: bool = False
    active: bool = False

    def in_order(self) -> list[Change]:
        """As they begin; a modify may come between an extend and its beginning."""
        return sorted(self.changes.values(), key=Change.place)

    def may_go(self, now: Instant) -> int:
        """How many units what was asked for takes from the lease, of what has begun."""
        units = [change.claim.units for change in self.in_order() if change.claim.term.start <= now]
        return sum(max(0, before - after) for before, after in pairwise(units))

    def is_over(self, now: Instant) -> bool:
        """Whether the lease may be over, as it was not extended, or was shortened."""
        changes = self.in_order()
        known = [change.claim.term.end for change in changes if change.accepted][-1:]
        return any(end <= now for end in known) or any(
            change.claim.term.end <= now for change in changes if not change.accepted
        )


class KeptChecker(Listening):
    """A lease that goes on keeps its units: a site takes as many as an extend or a modify gives up, when that begins,
    and no others; or all of them when the lease ends, or can't be set up by its own fault. Those that fail go, of
    course.
    """

    kind = "units kept"

    def __init__(self, sites: Sequence[str]) -> None:
        super().__init__()
        self.sends = {Accepted: self._accepted, ErrorReply: self._error}
        self.receives = {Redeem: self._redeem, CloseLease: self._close, Relinquish: self._relinquish}
        self._leases: dict[str, dict[str, Kept]] = {site: {} for site in sites}
        self._setups: dict[tuple[str, str, int], str] = {}

    def _redeem(self, at: Instant, sender: str, receiver: str, message: Redeem) -> None:
        if not message.ticket or receiver not in self._leases or sender == HOSTILE:
            return
        try:
            leaf = decode_ticket(message.ticket).leaf
        except TicketError:
            return
        kept = self._leases[receiver].setdefault(message.lease, Kept())
        if message.op == UNDO:
            if leaf.digest in kept.changes:
                kept.changes[leaf.digest].accepted = False
        elif leaf.digest not in kept.refused:
            kept.changes.setdefault(leaf.digest, Change(message.number, leaf)).heard += 1
        kept.asked[sender, message.number] = leaf.digest

    def _change(self, site: str, peer: str, lease: str, number: int) -> tuple[Kept, bytes] | None:
        kept = self._leases.get(site, {}).get(lease)
        digest = kept.asked.get((peer, number)) if kept is not None else None
        return None if kept is None or digest is None or digest not in kept.changes else (kept, digest)

    def _accepted(self, at: Instant, sender: str, receiver: str, message: Accepted) -> None:
        if found := self._change(sender, receiver, message.lease, message.number):
            found[0].changes[found[1]].accepted = True

    def _error(self, at: Instant, sender: str, receiver: str, message: ErrorReply) -> None:
        """Of two that came at once, the second may be accepted: what was in the way of the first may be gone."""
        if found := self._change(sender, receiver, message.lease, message.number):
            change = found[0].changes[found[1]]
            change.heard -= 1
            if not change.heard:
                del found[0].changes[found[1]]

    def _close(self, at: Instant, sender: str, receiver: str, message: CloseLease) -> None:
        kept = self._leases.get(receiver, {}).get(message.lease)
        if kept is not None and sender != HOSTILE:
            kept.ends = True

    def _relinquish(self, at: Instant, sender: str, receiver: str, message: Relinquish) -> None:
        """What has not begun may be withdrawn; with what is in use the lease may end."""
        kept = self._leases.get(receiver, {}).get(message.lease)
        change = kept.changes.get(decode_ticket(message.ticket).leaf.digest) if kept is not None else None
        if kept is not None and change is not None:
            before = [other for other in kept.in_order() if other.place() < change.place()]
            change.accepted = False
            kept.ends = kept.ends or not before or change.claim.term.start < before[-1].claim.term.end

    def announced(self, site: str, receiver: str, message: LeaseUpdate) -> None:
        """An update that is sent for the first time."""
        leases = self._leases.get(site, {})
        kept = leases.get(message.lease)
        if kept is None:
            return
        if message.state in ("closed", "failed"):
            del leases[message.lease]
        elif message.state in ("refused", "undone"):
            digest = kept.asked.get((receiver, message.number))
            if digest is not None:  # written down: repeats are not obeyed, nor what was undone before it came
                kept.changes.pop(digest, None)
                kept.refused.add(digest)
        elif message.state == "active":
            kept.active = True
            current = kept.changes.get(decode_statement(message.contract).subject)
            if current is not None and len(message.units) <= current.claim.units:
                current.accepted, kept.spent = True, 0
                kept.changes = {d: one for d, one in kept.changes.items() if one.place() >= current.place()}

    def started(self, at: Instant, actor: str, action: Action) -> None:
        """Remember for which lease a unit is set up."""
        if actor in self._leases and action.op == "setup":
            self._setups[actor, action.unit, action.number] = action.lease

    def ended(self, at: Instant, actor: str, done: ActionDone) -> None:
        """A lease that never was active fails by its own fault."""
        lease = self._setups.pop((actor, done.unit, done.number), "")
        kept = self._leases.get(actor, {}).get(lease)
        if kept is not None and done.blame == LEASE:
            kept.ends = kept.ends or not kept.active

    def restarted(self, at: Instant, actor: str, made: object) -> None:
        """What a site took back it may not have said."""
        for kept in self._leases.get(actor, {}).values():
            for change in kept.changes.values():
                change.accepted = False

    def committed(self, at: Instant, actor: str, rows: Sequence[Row]) -> None:
        """A site decides to take a unit from a lease."""
        for now, lease, event, before, _, why in rows if actor in self._leases else ():
            kept = self._leases[actor].get(lease)
            if kept is None:
                continue
            if event == "notice":
                kept.ends = True
            elif event == "unit teardown" and before in IN_USE and not kept.ends and not kept.is_over(now):
                kept.spent += 1
                most = kept.may_go(now)
                must(
                    kept.spent <= most,
                    f"{actor} takes {why} from {lease} at {now}, which goes on: it gives up {most} units, and this is "
                    f"number {kept.spent}",
                )
