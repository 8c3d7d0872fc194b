"""Parts of a site authority, each built alone: by what its constructor names, and no actor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from leasekit.actors.kernel import Kernel
from leasekit.actors.peering import Keyring
from leasekit.actors.served import Notices, Reports, Served
from leasekit.actors.settings import ActorSettings, AuthoritySettings, DelegationSpec, Peer, UnitGroup
from leasekit.actors.site.calendars import Calendars
from leasekit.actors.site.claims import (
    Accusations,
    ClaimReports,
    DelegationLimits,
    Incidents,
    SiteClaims,
    SiteDelegations,
)
from leasekit.actors.site.failures import Assignment, Replacements, SiteOutages, UnitEnds, UnitFailures
from leasekit.actors.site.inventory import Inventory, SiteSaved
from leasekit.actors.site.leases import (
    GROW,
    NEW,
    REPLACE,
    SHRINK,
    DemandQueue,
    LeaseEnds,
    LeaseTimes,
    LeaseUpdates,
    SiteLeases,
    UnitPlans,
    demand_of,
)
from leasekit.actors.site.redeems import (
    AcceptedTerms,
    ClaimAccounts,
    ClaimVoids,
    Closes,
    EarlyEnds,
    RedeemedTickets,
    Redemptions,
    Relinquishments,
    TicketAdmission,
    TicketChecks,
)
from leasekit.actors.site.unit_changes import Maintenance, UnitCommands
from leasekit.actors.site.units import Units
from leasekit.core.claims.claim import Ticket, delegate, delegate_root
from leasekit.core.claims.signed import ED25519, RELINQUISHMENT, TRUNCATION, Keypair, key_tag, state
from leasekit.core.commands import AddMaintenance, DisableUnit, EnableUnit, FailUnit, RemoveMaintenance
from leasekit.core.drivers import LEASE, SITE, Blame
from leasekit.core.errors import CommandError, LeasekitError, RemoteError, TicketError
from leasekit.core.leases import authority as au
from leasekit.core.leases import outage as out
from leasekit.core.leases.machine import NONE
from leasekit.core.leases.records import SiteLease, SiteUnit
from leasekit.core.mappers import Assign, Refuse
from leasekit.core.properties import EMPTY, digest_properties
from leasekit.core.protocol.messages import (
    ClaimReport,
    CloseLease,
    LeaseUpdate,
    Message,
    Redeem,
    Relinquish,
    Relinquished,
    Truncated,
    Withhold,
)
from leasekit.core.reasons import Code, said
from leasekit.core.steps import Action, ActionDone
from leasekit.core.time import HOUR, Term
from leasekit.policies.authority.first_fit import FirstFit

TERM = Term(HOUR, 2 * HOUR)
GROUP = UnitGroup(type="vm", names=("a", "b"), properties={"cores": "4"}, own={"rack": "1"})


def test_an_inventory_knows_each_unit_once() -> None:
    """Properties are those of the type, and of a unit's own; a name is of one type."""
    inventory = Inventory((GROUP,))
    assert inventory.total("vm") == 2 and "a" in inventory
    assert inventory.properties_of("a", "vm") == {"cores": "4", "rack": "1"}
    assert inventory.properties_of("gone", "vm") == inventory.properties("vm") == {"cores": "4"}
    with pytest.raises(LeasekitError, match="unit names are unique at a site"):
        Inventory((GROUP, UnitGroup(type="gpu", names=("a",))))


def units_of(kernel: Kernel, begun: list[tuple[str, str]]) -> tuple[Inventory, Units]:
    """The units of one group; ``begun`` gets what is done with them."""
    inventory = Inventory((GROUP,))

    def act(unit: SiteUnit, op: str, number: int) -> None:
        unit.action = number or kernel.next("action")
        begun.append((unit.id, op))

    return inventory, Units(kernel, inventory, 3, act)


def test_units_tell_what_becomes_of_them() -> None:
    """A unit that is given is set up, and counts as held by its lease; one that is out of service stays so once."""
    kernel = Kernel(ActorSettings())
    begun: list[tuple[str, str]] = []
    _, units = units_of(kernel, begun)
    moved: list[tuple[str, str]] = []
    units.moved.append((lambda unit, event, before, why, done: moved.append((before, event)), ()))
    units.give(units["a"], "lease", b"")
    assert (begun, moved, units.holding) == ([("a", "setup")], [(au.FREE, "setup")], {"lease": 1})
    assert units.retire("b", said("broken")).state == au.OUT
    with pytest.raises(CommandError, match="out of service already"):
        units.retire("b", said("again"))


def test_calendars_miss_units_over_a_window() -> None:
    """Over its time, and not before or after; removed, it takes nothing."""
    kernel = Kernel(ActorSettings())
    _, units = units_of(kernel, [])
    calendars = Calendars(kernel, units, lambda: None)
    window = calendars.announce(("a",), "", HOUR, 2 * HOUR, reason="works", close=False)
    with pytest.raises(CommandError, match=r"is out over .* already \(window-1\)"):
        calendars.announce((), "vm", HOUR, 3 * HOUR, reason="more", close=False)
    assert [calendars.of("vm").free_at(at) for at in (0, HOUR, 2 * HOUR)] == [2, 1, 2]
    calendars.end_window(window)
    assert calendars.of("vm").free_at(HOUR) == 2
    assert calendars.of("unknown").free_at(0) == 0


def lease(id_: str, wanted: int = 2) -> SiteLease:
    """A lease of a site that has no units yet."""
    return SiteLease(
        id_, "guest", "s", "vm", au.TICKETED, au.REDEEMING, b"", TERM, wanted, 1, {}, {}, classes=((b"", wanted),)
    )


def test_demands_are_shown_in_order() -> None:
    """Those that give up units first; what was shown and still waits comes after what was not."""
    leases = {id_: lease(id_) for id_ in ("one", "two", "three")}
    _, units = units_of(Kernel(ActorSettings()), [])
    queue = DemandQueue(leases, watches=False)
    queue.mark_dirty()
    assert not queue.is_news(), "nobody waits"
    for id_, op in (("one", NEW), ("two", GROW), ("three", SHRINK)):
        queue.put(leases[id_], op)
    assert [one.id for one, _ in queue.ordered()] == ["three", "two", "one"]
    queue.show([demand_of(leases["three"], SHRINK, units)], alone=True)
    assert queue.is_news() and queue.shown_units(leases["three"], 0) == 2
    queue.show([demand_of(leases["two"], GROW, units)], alone=False)
    assert queue.is_more_to_show()
    queue.begin_decisions()
    queue.end_decisions()
    assert not queue.stale and list(queue.ops) == ["one", "three", "two"]


ME, HUB, WEB = (Keypair(letter * 32) for letter in (b"m", b"h", b"w"))
ONE, TWO = (f"{key_tag(WEB.public)}-{number}" for number in (1, 2))


class Site:
    """The parts, wired as an authority wires them, at the start of the term."""

    def __init__(self, **more: Any) -> None:
        self.settings = settings = AuthoritySettings(inventory=(GROUP,), **more)
        self.kernel = kernel = Kernel(settings)
        kernel.tick(HOUR)
        peers = [Peer(name="hub", key=HUB.public, role="broker"), Peer(name="web", key=WEB.public, role="guest")]
        self.keyring = keyring = Keyring("site", ME, ED25519, peers, kernel)
        self.served: Served[SiteLease] = Served(kernel, keyring)
        inventory, known = Inventory(settings.inventory), self.served.leases
        saved = SiteSaved(kernel, keyring, known, inventory, settings)
        self.units = units = Units(kernel, inventory, settings.failures_max, saved.begin)
        self.demands = demands = DemandQueue(known, watches=False)
        self.calendars = calendars = Calendars(kernel, units, demands.mark_dirty)
        self.claims = claims = SiteClaims(kernel, keyring, known, settings)
        updates = LeaseUpdates(kernel, self.served, units, saved, claims.root_signer)
        self.delegations = SiteDelegations(kernel, keyring, units, claims, settings)
        notices, reports = Notices(kernel), Reports(kernel, "site")
        self.incidents = Incidents(kernel, keyring, reports, settings)
        told = ClaimReports(kernel, keyring, notices, reports)
        accusations = Accusations(kernel, keyring, claims, self.incidents, told)
        limits = DelegationLimits(kernel, keyring, self.delegations.issued, known, reports)
        accounts = ClaimAccounts(kernel, keyring, claims, limits, accusations)
        admission = TicketAdmission(kernel, claims, calendars, accounts, told)
        history = (claims.check_unused, self.incidents.check_issuers, limits.check_reclaimed)
        checks = TicketChecks(kernel, keyring, inventory, settings, history)
        plans = UnitPlans(kernel, units, known, calendars.is_out, FirstFit())
        self.leases = leases = SiteLeases(kernel, updates, plans, calendars, demands)
        self.ends = ends = LeaseEnds(kernel, leases, units, saved)
        LeaseTimes(kernel, self.served, demands, leases, ends)
        self.outages = SiteOutages("site", kernel, demands, units, updates)
        units.held_up.append(self.outages.waits)
        units.moved.append((self.outages.unit_moved, ()))
        leases.settled.append(self.outages.lease_settled)
        replacements = Replacements(kernel, leases, demands, updates, settings)
        self.failures = failures = UnitFailures(leases, units, calendars, self.outages, replacements)
        self.unit_ends = UnitEnds(kernel, leases, units, demands, failures)
        self.commands = UnitCommands(leases, units, calendars, demands, saved.context)
        self.decide = Assignment(kernel, leases, ends, demands, calendars).carriers
        self.maintenance = Maintenance(kernel, leases, calendars, self.delegations.issued, notices)
        terms = AcceptedTerms(kernel, leases, ends, claims, updates)
        tickets = RedeemedTickets(keyring, claims, checks, admission, terms)
        self.redemptions = Redemptions(self.served, leases, terms, tickets)
        self.closes = Closes(kernel, self.served, updates, ends, claims)
        voids = ClaimVoids(claims, leases, ends, accusations, updates.contract)
        self.relinquishments = Relinquishments(kernel, keyring, claims, voids)
        self.early_ends = EarlyEnds(kernel, keyring, claims, leases, ends)

    def redeem(self, id_: str, ticket: Ticket) -> SiteLease:
        """The guest redeems a ticket."""
        message = Redeem(id_, 1, "new", "s", ticket.encode(), GROUP.properties, {}, (), b"")
        self.redemptions._on_redeem("web", message)
        return self.served.leases[id_]

    def assign(self, lease: SiteLease, *units: str) -> None:
        """The mapper gives the lease these units."""
        self.decide[Assign](Assign(lease.id, units))

    def done(self, *, ok: bool = True, blame: Blame = "unit") -> list[Action]:
        """The actions of the Ready, which end."""
        actions = self.ready()[0]
        for action in actions:
            self.unit_ends.done(ActionDone(action.number, action.unit, ok, reason="" if ok else "why", blame=blame))
        return actions

    def ready(self) -> tuple[list[Action], list[Message]]:
        """The actions and messages of the Ready."""
        ready = self.kernel.take()
        return ([], []) if ready is None else (ready.actions, [message for _, message in ready.messages])

    def active(self, ticket: Ticket, *units: str) -> SiteLease:
        """A lease that has these units."""
        made = self.redeem(ONE, ticket)
        self.assign(made, *units)
        self.done()
        return made


def ticket(units: int = 2, serial: int = 2, *, constraints: Mapping[str, str] = EMPTY) -> Ticket:
    """From the hub, which has both units."""
    root = delegate_root(
        ME, holder=HUB.public, type="vm", units=2, term=Term(0, 9 * HOUR), serial=1,
        properties=digest_properties({**GROUP.properties, **GROUP.own}),
    )  # fmt: skip
    return delegate(root, HUB, holder=WEB.public, units=units, term=TERM, serial=serial, constraints=constraints)


def test_a_redeem_becomes_a_lease_that_its_mapper_gives_units() -> None:
    """It is active when all are up, closes when its term is over, and is closed when they are down; its ticket is
    redeemed once, and what the mapper names must be free.
    """
    site = Site()
    lease = site.redeem(ONE, ticket())
    assert site.demands.ops == {ONE: NEW} and site.calendars.of("vm").free_at(HOUR) == 0
    with pytest.raises(TicketError, match=f"redeemed for lease {ONE}"):
        site.redeem(TWO, ticket())
    with pytest.raises(CommandError, match="is not a free unit"):
        site.assign(lease, "a", "c")
    site.assign(lease, "a", "b")
    assert [action.op for action in site.done()] == ["setup", "setup"]
    assert (lease.state, lease.pending, lease.units) == (au.ACTIVE, NONE, ["a", "b"])
    assert [update.state for update in site.ready()[1] if isinstance(update, LeaseUpdate)] == ["active"]
    site.kernel.tick(TERM.end)
    assert lease.pending == au.CLOSING and lease.ended < 0
    assert [action.op for action in site.done()] == ["teardown", "teardown"]
    assert lease.state == au.CLOSED and lease.ended == TERM.end


def test_a_lease_that_gets_no_units_fails() -> None:
    """Its mapper refuses it; what nobody waits for can't be decided."""
    site = Site()
    lease = site.redeem(ONE, ticket())
    site.decide[Refuse](Refuse(ONE, "no"))
    assert lease.state == au.FAILED and site.calendars.of("vm").free_at(HOUR) == 2
    with pytest.raises(CommandError, match="waits for nothing"):
        site.assign(lease, "a")


def test_units_that_fail_are_replaced() -> None:
    """Another takes the place of one that could not be set up, or is down; not where the lease is to blame."""
    site = Site()
    lease = site.redeem(ONE, ticket(1))
    site.assign(lease, "a")
    site.done(ok=False)
    assert lease.units == [] and site.demands.ops == {ONE: REPLACE}
    site.assign(lease, "b")
    site.done()
    assert (lease.state, lease.units) == (au.ACTIVE, ["b"])
    with pytest.raises(CommandError, match="only one that is active"):
        site.failures._fail_unit(FailUnit(unit="a"))
    site.failures._fail_unit(FailUnit(unit="b"))
    assert (lease.pending, site.demands.ops) == (au.PRIMING, {ONE: REPLACE})
    other = Site()
    doomed = other.redeem(ONE, ticket(1))
    other.assign(doomed, "a")
    other.done(ok=False, blame=LEASE)
    assert doomed.state == au.FAILED and not other.demands.ops


def test_setups_stop_while_the_site_is_at_fault() -> None:
    """The lease keeps its unit, whose setup is tried again; with that the outage is over."""
    site = Site()
    lease = site.redeem(ONE, ticket(1))
    site.assign(lease, "a")
    site.done(ok=False, blame=SITE)
    site.done()  # its teardown
    (outage,) = site.outages.by_lease.values()
    assert (outage.state, list(outage.waiting), lease.units) == (out.STOPPED, ["a"], ["a"])
    site.kernel.take()
    site.kernel.tick(outage.again)
    assert [action.op for action in site.done()] == ["setup"]
    assert lease.state == au.ACTIVE and not site.outages.by_lease


def test_operators_take_units_out_of_service() -> None:
    """What is out is missing in the calendar, and is back when the operator says so."""
    site = Site()
    assert site.commands._disable_unit(DisableUnit(unit="a", reason="broken")).state == au.OUT
    assert site.calendars.of("vm").free_at(HOUR) == 1
    site.commands._enable_unit(EnableUnit(unit="a"))
    assert site.calendars.of("vm").free_at(HOUR) == 2
    with pytest.raises(CommandError, match="is in service"):
        site.commands._enable_unit(EnableUnit(unit="a"))


def test_maintenance_ends_leases_and_is_told_to_brokers() -> None:
    """A window that closes leases gives them notice; brokers hear how much of their share is missing."""
    site = Site(delegations=(DelegationSpec(broker="hub", type="vm", units=2),))
    site.delegations.begin()
    lease = site.active(ticket(), "a", "b")
    window = {"units": ["a"], "start": HOUR + 5, "end": 2 * HOUR, "close": True}
    made = site.maintenance._add(AddMaintenance(**window))
    assert lease.terminates_at == HOUR + 5
    (told,) = [message for message in site.ready()[1] if isinstance(message, Withhold)]
    assert (told.units, told.term) == (1, Term(HOUR + 5, 2 * HOUR))
    with pytest.raises(CommandError, match=r"already \(window"):
        site.maintenance._add(AddMaintenance(**window))
    site.maintenance._remove(RemoveMaintenance(window=made.window))
    assert not site.calendars.windows


def test_leases_are_suspended_only_where_units_can_be_saved() -> None:
    """Where they can't, the lease is ended in time, and nothing is said to be saved."""
    site = Site()
    lease = site.active(ticket(), "a", "b")
    site.ends.suspend(lease, TERM.end - 10, 5, "its broker", None)
    assert (lease.terminates_at, lease.saves) == (TERM.end - 10, False)
    assert lease.notice is not None and lease.notice.code == Code.ENDED_BY


def test_a_close_that_comes_first_stays() -> None:
    """The redeem that it overtook makes no lease; a close of a lease that runs tears its units down."""
    site = Site()
    site.closes._on_close("web", CloseLease(ONE, 2, b""))
    assert site.closes.strays == [ONE]
    with pytest.raises(RemoteError, match="is closed already"):
        site.redemptions._on_redeem("web", Redeem(ONE, 3, "new", "s", ticket().encode(), {}, {}, (), b""))
    other = Site()
    lease = other.active(ticket(), "a", "b")
    rest = state(WEB, RELINQUISHMENT, lease.claim, HOUR)
    other.closes._on_close("web", CloseLease(ONE, 2, rest.encode()))
    assert lease.pending == au.CLOSING and lease.receipt


def test_a_ticket_that_was_given_back_is_void() -> None:
    """Its guest gets a receipt, and can't redeem it any more; nor can it give back what is in use."""
    site, unused, used = Site(), ticket(1, 2), ticket(1, 3)

    def give_back(one: Ticket) -> Relinquished:
        note = state(WEB, RELINQUISHMENT, one.leaf.digest, HOUR)
        site.relinquishments._on_relinquish("web", Relinquish(ONE, 1, one.encode(), note.encode()))
        (answer,) = [message for message in site.ready()[1] if isinstance(message, Relinquished)]
        return answer

    assert give_back(unused).receipt
    with pytest.raises(TicketError, match="given back"):
        site.redeem(ONE, unused)
    site.active(used, "a")
    site.ready()
    refused = give_back(used)
    assert not refused.receipt and refused.reason is not None and refused.reason.code == Code.CLAIM_IN_USE


def test_issuers_end_claims_early_if_these_say_so() -> None:
    """A lease ends with its claim; one that does not say that it may be ended stays."""
    for more, ends in (({"preemptible": "true"}, True), ({}, False)):
        site = Site()
        lease = site.active(ticket(constraints=more), "a", "b")
        cut = Truncated(ONE, 5, b"", state(HUB, TRUNCATION, lease.claim, TERM.end - 10).encode())
        if ends:
            site.early_ends._on_truncated("hub", cut)
            assert lease.terminates_at == TERM.end - 10
        else:
            with pytest.raises(TicketError, match="does not say that its issuer may end it early"):
                site.early_ends._on_truncated("hub", cut)


def test_who_gives_away_too_much_is_named() -> None:
    """The ticket is refused, evidence is kept, and its issuer hears of it."""
    site = Site()
    site.redeem(ONE, ticket(2, 2))
    with pytest.raises(TicketError, match="is given already"):
        site.redeem(TWO, ticket(1, 3))
    (incident,) = site.incidents.evidence.values()
    assert incident.guilty == HUB.public.hex()
    assert [message.reason.code for message in site.ready()[1] if isinstance(message, ClaimReport)] == [
        Code.OVERDELEGATED
    ]
