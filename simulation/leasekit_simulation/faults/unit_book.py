"""The book of units: what drivers were told to do with each, and for whom."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs

from leasekit.core.claims.claim import Claim, decode_ticket
from leasekit.core.claims.statements import decode_statement
from leasekit.core.drivers import LEASE
from leasekit.core.errors import TicketError
from leasekit.core.leases.power import OPERATIONS
from leasekit.core.protocol.messages import EXTEND, MODIFY, UNDO, CloseLease, LeaseUpdate, Redeem, Relinquish
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

    def noticed(self, site: str, lease: str) -> None:
        """A site has told a guest that its lease ends early."""
        self._shrinks.add((site, lease))

    def announced(self, site: str, message: LeaseUpdate) -> None:
        """An update that is sent for the first time."""
        if message.state == "closed":
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
