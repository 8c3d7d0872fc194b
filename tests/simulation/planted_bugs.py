"""Bugs to plant: each changes a line or a few of one function of the core or the actors.

A bug is the text of a function with something in it replaced. If the text is not there (any more), planting fails: a
bug that plants nothing would never be found.

``python tests/simulation/planted_bugs.py`` looks for each with the simulation, and writes which seed finds it to
planted_bugs.json and the table in docs/simulation.md. With words only those bugs are looked for that have them in their
names.
"""

from __future__ import annotations
import __future__

import inspect
import json
import os
import re
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Final, NamedTuple

from leasekit.actors.broker.book import Book, RequestQueue
from leasekit.actors.broker.claims import GrantedClaims, Lapses, LongestRuns, ReturnedTickets
from leasekit.actors.broker.delegations import TakenDelegations, Withholding
from leasekit.actors.broker.grants import Answers, Grants, LeaseViews, TicketCutter
from leasekit.actors.broker.preemption import Preemption
from leasekit.actors.broker.requests import DryRuns
from leasekit.actors.guest.answers import BrokerAnswers, BrokerUpdates, SiteUpdates, Tickets
from leasekit.actors.guest.leases import GuestOperations, Leases
from leasekit.actors.guest.lifecycle import Endings, Membership, Predecessors, Redeems, Transitions
from leasekit.actors.guest.requests import LeaseChanges, LeaseRequests, Slices
from leasekit.actors.guest.returns import Returns
from leasekit.actors.guest.topologies import LeasedTopologies
from leasekit.actors.issued import Issued
from leasekit.actors.kernel import Kernel
from leasekit.actors.peering import Keyring, Peering
from leasekit.actors.served import Served
from leasekit.actors.site.calendars import Calendars
from leasekit.actors.site.claims import Incidents, SiteClaims, SiteDelegations
from leasekit.actors.site.failures import Assignment, SiteOutages
from leasekit.actors.site.inventory import SiteSaved
from leasekit.actors.site.leases import SiteLeases, UnitPlans
from leasekit.actors.site.redeems import (
    AcceptedTerms,
    ClaimAccounts,
    EarlyEnds,
    RedeemedTickets,
    Redemptions,
    TicketChecks,
)
from leasekit.actors.site.unit_changes import Maintenance, UnitChanges
from leasekit.actors.site.units import Units
from leasekit.core.claims.claim import TicketVerifier
from leasekit.core.claims.signed import Ed25519
from leasekit.core.steps import ActionDone
from leasekit.core.time import Term
from leasekit.policies.authority.first_fit import FirstFitTurn
from leasekit.policies.broker.capacity import GoingOn
from leasekit_simulation.faults.run import simulate
from leasekit_simulation.faults.scenario import draw

SEEDS_MAX: Final = 500
PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "simulation.md"
FOUND: Final = Path(__file__).with_suffix(".json")
BEGIN, END = "<!-- planted bugs -->", "<!-- end of planted bugs -->"
NOTHING: Final = "pass"


class Bug(NamedTuple):
    """In ``function`` of ``owner``, ``old`` becomes ``new``; ``also`` is what would stop the bug if it were left."""

    owner: type[Any]
    function: str
    old: str
    new: str
    also: Bug | None = None


class Found(NamedTuple):
    """The first seed from 0 on that finds a bug, by which checker, and what that says."""

    seed: int
    checker: str
    text: str


BUGS: Final[dict[str, Bug]] = {
    # -- hostile brokers and sites
    "a guest takes a ticket beyond its request": Bug(
        Tickets, "check", "_check_asked(asked, leaf, last, site)", NOTHING
    ),
    "a guest joins units that its ticket does not give": Bug(
        Tickets, "check_contract", "if given > most:", "if False:"
    ),
    "what is said of a lease that is over is why it ended": Bug(
        SiteUpdates, "_take", "elif lease.ended >= 0:", "elif False:"
    ),
    "nobody looks whether a claim is within its parent": Bug(TicketVerifier, "check", "check_chain(chain)", NOTHING),
    "a site blames who gave a claim for what its holder gave twice": Bug(
        Incidents, "keep", "body = encode", "guilty = evidence.claims[0].issuer; body = encode"
    ),
    # -- units that change
    "what an operator has said of a unit is not kept": Bug(
        UnitChanges, "_say", "self._kernel.touch(change)", NOTHING
    ),
    "a unit that the inventory names anew is in service though a window has it": Bug(
        Calendars, "keep_out", "if window.begun:", "if False:"
    ),
    "a calendar does not count what a host has by now": Bug(
        UnitChanges, "_follow", "self._calendars.count(change.type)", NOTHING
    ),
    # -- delegations that change
    "of units that are gone those of another class are offered": Bug(
        SiteDelegations, "is_outdated", "in leaf.classes)", "in leaf.classes if leaf.sizes)",
    ),
    "a broker grants of a claim beside the one in its place": Bug(
        TakenDelegations, "_take", "other.replaced = source.term.start", NOTHING
    ),
    "a broker forgets in a restart what was replaced": Bug(
        TakenDelegations, "restore", "not source.is_over", "source.is_held or source.is_reclaimed"
    ),
    "a delegation does not grow with what its issuer's file says": Bug(
        Issued, "_is_other", "(record.units, degree) != (spec.units, spec.degree)", "degree != spec.degree"
    ),
    "what was taken back is not given anew": Bug(Issued, "_is_missing", "chain in self.overrides or ", ""),
    "a delegation that its holder gives back is not given anew": Bug(
        Issued, "_on_let_go", "self._renew(record)", NOTHING
    ),
    "units that the inventory names no more stay in service": Bug(
        Units, "retire_gone", "gone = unit.id not in self.inventory", "gone = False"
    ),
    "units that the inventory names anew stay out of service": Bug(
        Units, "retire_gone", "elif not gone and unit.retire == GONE:", "elif False:"
    ),
    "the end of what was told of a window is not passed on to brokers below": Bug(
        Withholding, "_withhold", "if one.source in sources", "if one.source in sources and message.units"
    ),
    "what was cut from a delegation before it was replaced is not in a window": Bug(
        Withholding, "_withhold", "sources = {one.id for one in chain}", "sources = {source.id}"
    ),
    "an offer that comes late is taken for a new one": Bug(
        TakenDelegations, "_check_chain", "other.number > source.number", "False"
    ),
    # -- words
    "a guest cuts long words of a request": Bug(
        GuestOperations, "_send_ask", "asked.properties, claim,",
        "{key: value[:1000] for key, value in asked.properties.items()}, claim,",
    ),
    "a driver is told words without the blanks around them": Bug(
        SiteSaved, "begin", "else lease.properties",
        "else {key: value.strip() for key, value in lease.properties.items()}",
    ),
    "a modify drops what it does not change": Bug(
        LeaseChanges, "modify", "with_more(lease.configuration, request.configuration)", "dict(request.configuration)"
    ),
    # -- guards and answers
    "a broker does not check what its mapper grants": Bug(
        Grants, "grant", "self._checks.check(lease, self._queue.options[lease.id], grant)", NOTHING
    ),
    "an old update of a broker is taken for news": Bug(
        BrokerUpdates, "_on_update", "if message.update <= lease.heard.broker:", "if False:"
    ),
    "an old update of a site is taken for news": Bug(
        SiteUpdates, "_on_update", "if message.update > lease.heard.site:", "if True:"
    ),
    "a site's updates are taken out of order": Bug(
        SiteUpdates, "_on_update", "comes_early(message.update, lease.heard.site)", "False"
    ),
    "a repeated request is done again": Bug(
        Served, "freshness", "if number > lease.number:", "if number >= lease.number:"
    ),
    "an older request is obeyed": Bug(Served, "freshness", "else OLD", "else FRESH"),
    "a refused extend closes the lease": Bug(
        BrokerAnswers, "refused", "self._transitions.advance(lease)",
        "self._endings.close(lease, reason) if lease.state == sm.ACTIVE else self._transitions.advance(lease)",
    ),
    "a close is held back while the site sets up": Bug(
        Endings, "close", "before = (lease.state, lease.pending)",
        "lease.ending = lease.ending._replace(reason=reason); before = (lease.state, lease.pending)\n"
        "    if lease.pending == sm.REDEEMING:\n"
        "        lease.ending = lease.ending._replace(closing=True)\n        return",
        also=Bug(
            Transitions, "advance", 'if lease.can("in_hand"):',
            "if lease.ending.closing and (lease.state, lease.pending) == (sm.ACTIVE, NONE):\n"
            "        lease.ending = lease.ending._replace(closing=False)\n"
            "        self._predecessors._endings.close(lease, lease.ending.reason)\n"
            "    elif lease.can('in_hand'):",
        ),
    ),
    "a closing lease gets units in place of those that failed": Bug(
        SiteLeases, "end", "self._demands.remove(lease)", NOTHING
    ),
    "units that are ready stay when their lease closes in its setup": Bug(
        SiteLeases, "end", "for name in list(lease.units):",
        "for name in [n for n in lease.units if not lease.is_ticketed or not self._units[n].is_up]:",
    ),
    "units are not told to leave before the lease closes": Bug(
        Endings, "_after_close", "self._membership.leave(lease, list(lease.units))", NOTHING
    ),
    "a request's number is used twice": Bug(GuestOperations, "begin", "lease.number += 1", "lease.number += 0"),
    "an update has the number of the one before it": Bug(
        Served, "publish", "lease.unacked.append(Update(lease.update, message))",
        "lease.unacked.append(Update(lease.update, message)); lease.update -= lease.update == 3",
    ),
    # -- whose fault it is
    "what is the lease's fault, or the site's, is held against the unit": Bug(
        Units, "_ended", "detail=done.reason), done.blame)", "detail=done.reason))"
    ),
    "units are set up while the site is at fault": Bug(SiteOutages, "waits", "return True", "return False"),
    "nobody looks whether the site is mended": Bug(
        SiteOutages, "_due_at", "return outage.again if", "return None if"
    ),
    # -- order of things
    "messages are sent before the commit": Bug(
        Kernel, "take", "ready = Ready(self.changes,",
        'late, self._late = getattr(self, "_late", []), self.changes; ready = Ready(late,',
    ),
    "drivers are started before the commit": Bug(
        Kernel, "take", "ready = Ready(self.changes,",
        'late, self._late = getattr(self, "_late", []), self.changes if self.actions else []; '
        "ready = Ready(late if self.actions else [*late, *self.changes],",
    ),
    # -- what a restart forgets
    "counters are not kept": Bug(Kernel, "_save_counters", "if self._counted:", "if False:"),
    "a broker's book is not restored": Bug(Book, "reserve_again", "if table is not None", "if False"),
    "a broker's timers are lost at a restart": Bug(
        GrantedClaims, "restore",
        "self._kernel.schedule(lease, self._kernel.now if lease.unacked else self._kernel.due_at(lease))", NOTHING,
    ),
    "actions are not done again after a restart": Bug(Units, "resume", "if unit.action", "if False"),
    "units are counted as ready after a restart": Bug(
        SiteLeases, "resume", "sum(_is_unsettled(lease, self._units[name]) for name in lease.units)", "0"
    ),
    "units that were on their way to be saved are not after a restart": Bug(
        SiteSaved, "restore", "if kept.is_busy:", "if kept.is_claimed:"
    ),
    "one unit too many is waited for after a restart": Bug(
        SiteLeases, "resume", "sum(_is_unsettled(lease, self._units[name]) for name in lease.units)",
        "sum(_is_unsettled(lease, self._units[name]) for name in lease.units) + 1",
    ),
    "joins are not done again after a restart": Bug(Membership, "resume", "if unit.is_busy:", "if False:"),
    "a site's reservations are not restored": Bug(
        Calendars, "restore", "if lease.is_torn_down or not lease.type:", "if True:"
    ),
    "what a modify replaced is booked again after a restart": Bug(
        ReturnedTickets, "_take_back", "if receipt.detail:  # it was used", "if False:  # it was used"
    ),
    # -- time
    "an actor's time runs back with its clock": Bug(Kernel, "tick", "if now > self.now:", "if True:"),
    "what was due while a machine slept is forgotten": Bug(
        Kernel, "tick", "due.append((at, record))", "due.append((at, record)) if at > now - 700_000 else None"
    ),
    # -- units
    "a unit is free before its teardown has ended": Bug(
        Units, "take", 'self._tear_down(unit, "teardown", None)',
        'self._tear_down(unit, "teardown", None); self.done(ActionDone(unit.action, unit.id, True))',
    ),
    "a lease is closed before its units are down": Bug(
        SiteLeases, "check_down", "and not self._units.holding.get(lease.id)", ""
    ),
    "a unit that can't be torn down is used again": Bug(
        Units, "_went_down", "unit.left, unit.retire = lease, Reason(Code.TEARDOWN_FAILED, detail=done.reason)", NOTHING
    ),
    "the late end of an older action counts": Bug(
        Units, "done", "unit.action != done.number or done.number == 0", "not unit.action"
    ),
    "the end of a teardown is lost": Bug(
        Units, "done", "if unit is None or", "if unit is None or (unit.is_torn_down and not done.number % 5) or"
    ),
    "an action number is used twice": Bug(
        SiteSaved, "begin", "unit.action = number or self._kernel.next(\"action\")",
        "unit.action = number or self._kernel.next(\"action\") // 2 + 1",
    ),
    "units that a guest gives up by name are not those that go": Bug(
        SiteLeases, "apply_next", "for name in later.victims:", "for name in ():"
    ),
    "a unit is set up before the term starts": Bug(
        AcceptedTerms, "begin", "if lease.term.start <= self._kernel.now and",
        "if lease.term.start <= self._kernel.now + self._kernel.settings.clock_skew and",
    ),
    "an extend changes the units": Bug(
        SiteLeases, "apply_next", "for name in later.victims:",
        "for name in list(lease.units) if later.op == EXTEND else later.victims:\n"
        "        if later.op == EXTEND:\n            self.take(lease, name)\n            continue",
    ),
    "a lease gives up one unit too many": Bug(
        SiteLeases, "apply_next", "self._demand(lease)",
        "if len(lease.units) > lease.wanted:\n"
        "        self.take(lease, lease.units[0])\n"
        "        lease.wanted -= 1\n    self._demand(lease)",
    ),
    "an extend begins at once": Bug(
        AcceptedTerms, "accept", "if leaf.term.start <= self._kernel.now:", "if True:"
    ),
    # -- plans of units
    "a unit is planned for two leases at once": Bug(
        UnitPlans, "_meets_another", "one is not lease and term.overlaps(Term(one.term.start, one.ends_at))", "False"
    ),
    "a unit that is out of service is planned": Bug(
        UnitPlans, "_is_there", "if is_out or self._is_out(unit, term):", "if self._is_out(unit, term):"
    ),
    "a unit is planned over its maintenance window": Bug(
        UnitPlans, "_is_there", "if is_out or self._is_out(unit, term):", "if is_out:"
    ),
    "units of another type are planned": Bug(UnitPlans, "_order", "unit.type == type_ and ", ""),
    "a plan changes and nobody is told": Bug(
        UnitPlans, "_replace",
        """self._kernel.note(lease.id, "place", "", "", said(f"{others[0] if others else 'none'}, not {name}"))""",
        NOTHING,
    ),
    "a plan that changes is not kept": Bug(UnitPlans, "_replace", "self._kernel.touch(lease)", NOTHING),
    "a plan is forgotten in a restart": Bug(UnitPlans, "restore", "self._note(lease, name)", NOTHING),
    "a lease gets others than those that were planned": Bug(
        FirstFitTurn, "_others", "[unit for unit in demand.places if unit not in self._gone]", "[]"
    ),
    "a plan outlives its lease": Bug(
        UnitPlans, "settled", "if lease.awaits_mapper:", "if lease.awaits_mapper or lease.ended >= 0:",
        also=Bug(
            UnitPlans, "_planned",
            "self._on[name])\n    return [lease for lease in there if lease.awaits_mapper and name in lease.places]",
            "self._on[name] if id_ in self._leases)\n    return [lease for lease in there if name in lease.places]",
        ),
    ),
    # -- keys
    "a peer's old key counts no more once it has another": Bug(
        Peering, "_succeed", "former=former[:FORMER_MAX]", "former=()"
    ),
    "an actor that has another key knows nothing of what its old one holds": Bug(
        Keyring, "own_among", "former is not None and former[1] > self._kernel.now", "False"
    ),
    "a key that was followed by another may name a successor again": Bug(
        Peering, "_succeed", "old=known.key", "old=known.former[0][0] if known.former else known.key"
    ),
    # -- claims
    "signatures are not checked": Bug(Ed25519, "verify", "if len(signature)", "return True\n    if len(signature)"),
    "a claim that was given back is honoured": Bug(
        SiteClaims, "check_unused", "if known is not None and known.is_void:", "if False:",
        Bug(ClaimAccounts, "count", "if until <= max(self._kernel.now, leaf.term.start):", "if False:"),
    ),
    "a claim is redeemed twice": Bug(
        SiteClaims, "check_unused", "if known is not None and known.is_redeemed:", "if False:"
    ),
    "a guest forgets to give a ticket back": Bug(
        Returns, "give_back", "if held.term.end <= self._kernel.now", "if True"
    ),
    "a return on its way is lost at a restart": Bug(
        Returns, "_send", "self._kernel.send_owed(giving, peer, message)",
        "self._kernel.send_owed(giving, peer, message); self._kernel.dirty.pop(id(giving), None)",
    ),
    "a return is counted twice": Bug(
        GrantedClaims, "_ended_at", "self._book.end_early(claim, at)\n        ended =",
        "self._book.end_early(claim, at)\n"
        "        self._book.table(claim.source).add_capacity(Term(at, claim.until), claim.units)\n"
        "        ended =",
    ),
    "a broker forgets what came back": Bug(
        GrantedClaims, "_ended_at", "self._book.end_early(claim, at)\n        ended =", "ended ="
    ),
    "a modify does not end the claim that it replaces": Bug(
        TicketCutter, "_reserve", "table.replace(concerned(lease).key, key, ", "table.reserve(key, "
    ),
    "a site keeps what a modify replaced": Bug(
        Calendars, "replace", ".replace(lease.claim, leaf.digest, ", ".reserve(leaf.digest, "
    ),
    "a site keeps the time of a lease that was closed early": Bug(
        SiteLeases, "end", "self._calendars.end(lease, self._kernel.now)", NOTHING
    ),
    "a group is granted before all are there": Bug(
        Book, "complete_groups", "len(group.members) == group.count", "len(group.members) + 1 >= group.count"
    ),
    "what was put off is looked at after it was settled": Bug(
        RequestQueue, "remove", "self.looks.remove(lease)", NOTHING
    ),
    "a member of a refused group stays": Bug(Answers, "refuse_group", "if other is not None and", "if False and"),
    "half a group stays reserved when the rest does not fit": Bug(
        Grants, "grant", "self._book.table_of(grant.source).release(key)", NOTHING
    ),
    "a mapper does not count what a modify takes in addition": Bug(
        GoingOn, "take", "(own, minus(taken, self._kept))", "(own, ())"
    ),
    # -- reasons
    "good tickets are refused as expired": Bug(
        TicketChecks, "check", "if leaf.term.end <= now:",
        "if leaf.term.end <= now or leaf.serial % 4 == 0:",
    ),
    "good tickets are refused as given back": Bug(
        SiteClaims, "check_unused", "if known is not None and known.is_void:",
        "if ticket.leaf.serial % 4 == 0:\n"
        '        raise TicketError(Code.RETURNED, "the claim was given back")\n'
        "    if known is not None and known.is_void:",
    ),
    "an extend is refused for a notice that there was not": Bug(
        RedeemedTickets, "extend",
        "if lease.terminates_at >= 0:", "if lease.terminates_at >= 0 or leaf.serial % 3 == 0:",
    ),
    "an extend is refused as out of term": Bug(
        RedeemedTickets, "extend", "leaf.term.start != lease.term.end", "leaf.term.start != lease.term.end + 1"
    ),
    # -- leases that follow others, and wait for others
    "a slice is redeemed before all have tickets": Bug(Slices, "settle", ">= record.hold", ">= 1"),
    "a lease does not wait for its predecessor": Bug(
        Predecessors, "_look_at", "not done(predecessor) or self._kernel.now", "self._kernel.now"
    ),
    "a lease goes on although its predecessor failed": Bug(
        Predecessors, "_look_at", "if lease.origin.after.proceed else", "if True else"
    ),
    "a lease joins before its predecessor has": Bug(
        Predecessors, "may_join", "lambda p: p.join == mb.JOINED", "lambda p: True"
    ),
    # -- what a claim says
    "firm leases are granted as preemptible": Bug(
        LeaseViews, "request", "options.preemptible or _stays_preemptible(lease)", "True"
    ),
    "sites that a guest has excluded are granted": Bug(
        LeaseViews, "request", "exclude_sites=options.exclude_sites", "exclude_sites=frozenset()"
    ),
    "a grant names another site than its ticket": Bug(
        Answers,
        "settle",
        "site, (properties, classes) = source.site,",
        'site, (properties, classes) = source.site.replace("0", "1"),',
    ),
    "a deferred start is later than is of use": Bug(
        LeaseViews, "request", "(max(lease.waits.deadline, start) if options.deferrable else start)",
        "(start + 10 * lease.asked.term.length if options.deferrable else start)",
    ),
    # -- what goes on from a term
    "a broker forgets an extension when it modifies the term before": Bug(
        GrantedClaims, "add", "*made, *after", "*made"
    ),
    "an extension that is undone does not go back": Bug(
        Redeems, "_take_back", "self._returns.give_back_all(lease, tickets, lease.site)", NOTHING
    ),
    "a modify drops the extension that its site has accepted": Bug(
        SiteLeases, "apply_next", "lease.next, lease.after = lease.after, None", "lease.next = lease.after = None"
    ),
    "a site refuses an extension that it is asked for anew": Bug(
        Redemptions, "_continue", "message.op == EXTEND and self._terms.is_taken(lease, message)", "False"
    ),
    "a guest asks for the extension after the next from the wrong end": Bug(
        GuestOperations, "_send_ask",
        "held = lease.following[-1]", "held = (lease.continuations or (lease.approved,))[-1]",
    ),
    # -- preemption, maintenance, questions, peers
    "a site says that its victims make room for themselves": Bug(
        Assignment, "_place", "Reason(Code.MAKES_ROOM, who=lease.id", "Reason(Code.MAKES_ROOM, who=victim"
    ),
    "preempted units are granted before their site has agreed": Bug(
        Preemption, "end", 'self._kernel.fire(lease, "preempt"',
        "for one in lease.claims:\n        self._granted._book.end_early(one, max(at, one.term.start))\n"
        '    self._kernel.fire(lease, "preempt"',
    ),
    "a broker ends a lease before its notice is over": Bug(
        Preemption, "victim", "else ends_from(lease, self._kernel.now)", "else lease.terms.since",
        also=Bug(LeaseViews, "granted", "ends_from(lease, self._kernel.now, ", "(lambda *_, **__: lease.terms.since)("),
    ),
    "a lease runs on after its longest run": Bug(
        LongestRuns, "due_at", "if end < last.until else None", "if False else None"
    ),
    "a lease that ends early is extended": Bug(Redeems, "notice", "lease.ending.at >= 0", "False"),
    "a lease that is to be requeued is forgotten": Bug(
        LeaseRequests, "ask_for_rest", "not _requeues(lease, asked)", "True"
    ),
    "units of a maintenance window stay in the calendar": Bug(
        Calendars, "_dip", "if more and start < window.end:", "if False:"
    ),
    "units do not come back after maintenance": Bug(
        Calendars, "end_window", "self.units.bring_back(unit.id)", NOTHING
    ),
    "a lease runs on in a window that closes it": Bug(Maintenance, "_add", "if window.close:", "if False:"),
    "a lease runs on after its broker has ended it early": Bug(
        EarlyEnds, "_on_truncated", "elif at >= 0:", "elif False:"
    ),
    "a site takes a ticket that was to be redeemed before": Bug(
        TicketChecks, "check", "if redeem_by(leaf) < now:", "if False:"
    ),
    "a site gives back what was redeemed": Bug(
        EarlyEnds, "_on_truncated", "if lapsed and known is not None and known.is_redeemed:", "if False:"
    ),
    "a broker grants anew what nobody redeemed, as it thinks": Bug(
        Lapses, "due", 'self._notices.owe(f"lapse:{lease.id}#{claim.key}", site, message, claim.term.end)',
        "self._granted.end(lease, claim, claim.term.start)",
    ),
    "brokers do not hear of units that go out of service": Bug(
        Maintenance, "unit_moved", "self._tell_of_out([unit])", "_ = [unit]",
    ),
    "a broker grants what it has agreed to withhold": Bug(
        Book, "withhold", "if start < end:", "if start < end and sign < 0:"
    ),
    "a question is taken for a request": Bug(
        DryRuns, "ask", "self._admission.note(lease, options)",
        "self._admission.note(lease, options)\n    self._served.leases[lease.id] = lease",
    ),
    "a modify's claim does not say what it replaces": Bug(
        TicketCutter, "_cut_claims", "number == 0 else", "number < 0 else"
    ),
    "nobody gets known by an endorsement": Bug(
        Peering, "take_endorsement", "known = self._keyring.peers.get(name)",
        "return\n    known = self._keyring.peers.get(name)",
    ),
    "a site forgets in a restart that a lease lacks units": Bug(
        SiteLeases, "resume", "lease.is_priming and len(lease.units) != lease.wanted", "False"
    ),
    "an extend takes the units of a modify that was refused": Bug(
        LeaseChanges, "extension",
        "request.units, request.victims", "request.units or lease.asked.units, request.victims",
    ),
    "a plan that is not wanted is not released": Bug(
        LeasedTopologies, "_release", "if plan else ()", "if False else ()"
    ),
    # -- what is left when all is over
    "a broker forgets what is still to come when it tidies": Bug(
        GrantedClaims, "over", "self._book.forget_before(self._past())",
        "self._book.forget_before(self._kernel.now + 60_000)",
    ),
    "a site forgets what is still to come when it tidies": Bug(
        Calendars, "count_ended", "table.forget_before(self._kernel.now)",
        "table.forget_before(self._kernel.now + 60_000)",
    ),
    "a site forgets claims that are not over": Bug(
        SiteClaims, "tidy", "self._kernel.now - self._kernel.settings.clock_skew", "self._kernel.now + 3_600_000"
    ),
    "a group stays when its last member has left": Bug(Book, "leave_group", "if not group.members:", "if False:"),
    "a group that is off stays with its members": Bug(
        Book, "dissolve_group", "self._group_of.pop(member, None)", NOTHING
    ),
    "a guest never forgets what followed a lease": Bug(
        Leases, "drop", "for predecessor in _predecessors(lease):", "for predecessor in ():"
    ),
    "a receipt is sent once only": Bug(
        Returns, "_send", "self._kernel.send_owed(giving, peer, message)",
        "self._kernel.send_owed(giving, peer, message); "
        "giving.send_at = giving.held.term.end if giving.receipt else giving.send_at",
    ),
}  # fmt: skip


def changed(bug: Bug) -> Callable[..., Any]:
    """The function with the bug in it. Raises ``AssertionError`` if its text does not have what is to be replaced."""
    original = getattr(bug.owner, bug.function)
    source = textwrap.dedent(inspect.getsource(original))
    assert bug.old in source, f"{bug.owner.__name__}.{bug.function} has no {bug.old!r} (any more)"
    source = source.replace(bug.old, bug.new, 1)
    # Inside a function of its own, so that super() finds the class.
    wrapped = "def _outer(__class__):\n" + textwrap.indent(source, "    ") + f"    return {bug.function}\n"
    module = sys.modules[original.__module__]
    names = {**vars(module), "ActionDone": ActionDone, "Term": Term}
    code = compile(wrapped, f"<{bug.function} with a bug>", "exec", __future__.annotations.compiler_flag)
    exec(code, names)
    made: Callable[..., Any] = names["_outer"](bug.owner)
    return made


@contextmanager
def planted(bug: Bug) -> Iterator[None]:
    """The bug is in while this lasts."""
    function = changed(bug)
    original = vars(bug.owner)[bug.function]
    setattr(bug.owner, bug.function, function)
    try:
        with planted(bug.also) if bug.also is not None else nullcontext():
            yield
    finally:
        setattr(bug.owner, bug.function, original)


def known() -> dict[str, Found]:
    """What was found when the table was last written."""
    return {name: Found(**found) for name, found in json.loads(FOUND.read_text(encoding="utf-8")).items()}


def hunt(name: str) -> Found | None:
    """The first of the seeds that fails with the bug in, and does not without it."""
    bug = BUGS[name]
    for seed in range(SEEDS_MAX):
        with planted(bug):
            failure = simulate(draw(seed)).failure
        if failure is not None and simulate(draw(seed)).failure is None:
            return Found(seed, failure.kind, re.sub(r"\s+", " ", failure.text)[:110])
    return None


def table(found: Mapping[str, Found]) -> str:
    """The table of the documentation."""
    lines = ["| bug | found by | seeds needed |", "| --- | --- | --- |"]
    lines += [f"| {name} | {found[name].checker} | {found[name].seed + 1} |" for name in BUGS if name in found]
    return "\n".join(lines)


def write(found: Mapping[str, Found]) -> None:
    """Write the seeds, and the table between its marks on the page."""
    kept = {name: found[name]._asdict() for name in BUGS if name in found}
    FOUND.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    page = PAGE.read_text(encoding="utf-8")
    head, _, rest = page.partition(BEGIN)
    _, _, tail = rest.partition(END)
    PAGE.write_text(f"{head}{BEGIN}\n\n{table(found)}\n\n{END}{tail}", encoding="utf-8")


def main() -> int:
    """Hunt for all, or for those whose names have the words given."""
    words = sys.argv[1:]
    names = [name for name in BUGS if all(word in name for word in words)]
    found = known() if FOUND.exists() else {}
    missed = []
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        hunts = {pool.submit(hunt, name): name for name in names}
        for done in as_completed(hunts):
            name, result = hunts[done], done.result()
            if result is None:
                missed.append(name)
                found.pop(name, None)
                print(f"NOT FOUND in {SEEDS_MAX} seeds: {name}", flush=True)
            else:
                found[name] = result
                print(f"{result.seed:>4} {result.checker:<18} {name}: {result.text}", flush=True)
    write(found)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
