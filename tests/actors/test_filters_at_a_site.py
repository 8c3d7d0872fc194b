"""Filters at a site: asked once for units that are alike, in slices between which the site does other things."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from leasekit.actors.peering import Peer
from leasekit.actors.settings import AuthoritySettings, DelegationSpec, UnitGroup
from leasekit.actors.site.authority import Authority
from leasekit.actors.site.failures import FILTERS_MAX
from leasekit.actors.site.inventory import ASKING, KEPT, SLICE, Kinds
from leasekit.core.claims.claim import decode_ticket, delegate
from leasekit.core.claims.signed import UNSIGNED, UnsignedIdentity, key_tag
from leasekit.core.filters import WORDS_MAX, parse_filter
from leasekit.core.mappers import AuthorityCycle, AuthorityDecision
from leasekit.core.protocol.messages import NEW, Offer, OfferAnswer, Redeem
from leasekit.core.reasons import words
from leasekit.core.steps import Received, Tick
from leasekit.core.time import Term
from leasekit.policies.authority.first_fit import FirstFit

SITE, BROKER, GUEST = UnsignedIdentity("site"), UnsignedIdentity("broker"), UnsignedIdentity("guest")
COSTLY = " or ".join(f"a{number} < 0" for number in range(WORDS_MAX // 4))
"""As dear as a filter can be: all of it is asked, and no unit will do."""


def of_kinds(units: int, kinds: int) -> tuple[UnitGroup, ...]:
    """So many units, of which so many differ."""
    names = [f"u-{number}" for number in range(units)]
    return tuple(
        UnitGroup(type="vm", names=tuple(names[kind::kinds]), own={f"a{n}": str(kind + n) for n in range(128)})
        for kind in range(kinds)
    )


class Desk:
    """A site, fed by hand; it has given its units to a broker."""

    def __init__(self, units: int, kinds: int, mapper: FirstFit | None = None) -> None:
        peers = [
            Peer(name="broker", key=BROKER.public, role="broker"),
            Peer(name="guest", key=GUEST.public, role="guest"),
        ]
        given = (DelegationSpec(broker="broker", type="vm", units=units),)
        settings = AuthoritySettings(inventory=of_kinds(units, kinds), delegations=given)
        self.site = Authority("site", SITE, UNSIGNED, peers, mapper or FirstFit(), settings)
        self.site.step(Tick(0))
        ready = self.site.ready()
        assert ready is not None
        (self._offer,) = [one.message for one in ready.messages if isinstance(one.message, Offer)]
        self.site.step(Received("broker", OfferAnswer(self._offer.delegation, self._offer.number, None)))

    def redeem(self, number: int, properties: Mapping[str, str]) -> str:
        """A guest redeems a ticket for a unit; the lease's id."""
        lease = f"{key_tag(GUEST.public)}-{number}"
        given = decode_ticket(self._offer.ticket)
        text, views = properties.get("filter", ""), self.site.units.all("vm")
        one = next((view for view in views if text and parse_filter(text)(view.attributes)), None)
        one = one or views[-number % len(views)]
        ticket = delegate(
            given, BROKER, holder=GUEST.public, units=((one.classes[0], 1),), term=Term(0, 10**6), serial=number
        )
        self.site.step(Received("guest", Redeem(lease, 1, NEW, "s", ticket.encode(), {}, properties, (), b"")))
        self.site.step(Tick(0))
        return lease

    def turns(self) -> list[bool]:
        """Take all turns that are due; whether each of them makes way for other inputs."""
        found = []
        while turn := self.site.turn():
            found.append(turn.yields)
            self.site.step(turn.run())
        return found

    @property
    def counts(self) -> dict[str, int]:
        return dict(self.site.query("status", {})["filters"])

    def reasons(self, leases: Sequence[str]) -> list[str]:
        return [words(self.site.leases[lease].reason) for lease in leases]


def test_a_filter_is_asked_once_for_each_kind_of_units() -> None:
    """However many units and leases there are; not again in later turns."""
    desk = Desk(1_000, 10)
    first = desk.redeem(1, {"filter": "a0 == 3"})
    desk.turns()
    assert desk.counts["asked"] == 10
    assert desk.site.leases[first].units == ["u-3"]
    desk.redeem(2, {"filter": "a0 == 3"})
    desk.turns()
    assert desk.counts["asked"] == 10


def test_a_filter_for_names_is_asked_for_each_unit() -> None:
    """Units that are alike have names of their own."""
    desk = Desk(20, 2)
    lease = desk.redeem(1, {"filter": "unit in {u-7, u-9}"})
    desk.turns()
    assert desk.counts["asked"] == 20
    assert desk.site.leases[lease].units == ["u-7"]


@pytest.mark.parametrize("text", ["a0 in {3, 5}", "a0 == 3 or unit == u-6", "a0 > 100"])
def test_the_units_that_a_filter_accepts_are_in_the_order_of_the_inventory(text: str) -> None:
    """However they are found."""
    units = Desk(40, 10).site.units
    found = parse_filter(text)
    assert units.all("vm", text) == [view for view in units.all("vm") if found(view.attributes)]


def test_the_dearest_filter_makes_way() -> None:
    """A slice costs little more than it may; between two of them the site takes other inputs, and stays as it was."""
    desk = Desk(200, 200)
    lease = desk.redeem(1, {"filter": COSTLY})
    cost = ASKING + parse_filter(COSTLY).cost
    slices = 0
    while (turn := desk.site.turn()) is not None and turn.yields:
        slices += 1
        assert desk.site.wake_at() == 0 and desk.site.leases[lease].reason is None
        desk.site.step(turn.run())
        other = desk.redeem(1 + slices, {})
    assert slices >= 200 * cost // SLICE
    assert desk.counts["largest_slice"] < SLICE + cost
    assert turn is not None
    desk.site.step(turn.run())
    assert desk.reasons([lease])[0].startswith("no free unit of type 'vm' satisfies the filter")
    assert desk.site.leases[other].units


def test_few_different_filters_are_shown_at_once() -> None:
    """Each may mean a look at all units. All have their turn, in their order, and others come in between."""
    desk = Desk(3 * FILTERS_MAX, 10)
    leases = [desk.redeem(number, {"filter": f"a1 > {100 + number}"}) for number in range(1, 3 * FILTERS_MAX)]
    assert desk.turns() == [True, True, False]
    assert all(reason.startswith("no free unit") for reason in desk.reasons(leases))


class Hesitant(FirstFit):
    """Leaves who has a filter as it is, but for one."""

    def assign(self, cycle: AuthorityCycle) -> list[AuthorityDecision]:
        wanted = [one for one in cycle.demands if one.properties["filter"] == "a0 == 3"]
        return super().assign(cycle._replace(demands=wanted))


def test_leases_that_are_left_waiting_keep_nobody_from_the_mapper() -> None:
    """Where there are more filters than are shown at once, others are shown the next time."""
    desk = Desk(2 * FILTERS_MAX, 10, Hesitant())
    for number in range(FILTERS_MAX):
        desk.redeem(1 + number, {"filter": f"a1 > {100 + number}"})
    lease = desk.redeem(50, {"filter": "a0 == 3"})
    desk.turns()
    desk.redeem(6, {"filter": "a1 > 100"})
    desk.turns()
    assert desk.site.leases[lease].units == ["u-3"]


def test_what_filters_said_is_not_kept_for_ever() -> None:
    """Only what leases wait with, and some more."""
    desk = Desk(2 * KEPT, 2)
    for number in range(1, 2 * KEPT):
        desk.redeem(number, {"filter": f"a1 > {100 + number}"})
        desk.turns()
    assert len(desk.site.units.kinds._answers) <= KEPT + 1


def test_kinds_follow_their_units() -> None:
    """A unit whose properties change is asked about anew, and it alone; kinds that no unit is of any more go."""
    kinds = Kinds()
    kinds.put("a", "vm", {"cores": "1"})
    kinds.put("b", "vm", {"cores": "1"})
    kinds.put("c", "gpu", {"cores": "8"})

    def accepted(text: str) -> list[str]:
        accepts = kinds.accepts("vm", text)
        return [unit for unit in "ab" if accepts(unit)]

    assert accepted("cores > 4") == [] and accepted("unit == b and cores > 4") == []
    before = kinds.asked
    kinds.put("b", "vm", {"cores": "8"})
    assert accepted("cores > 4") == ["b"] and accepted("unit == b and cores > 4") == ["b"]
    assert kinds.asked == before + 2
    kinds.put("a", "vm", {"cores": "8"})
    kinds.put("b", "vm", {"cores": "2"})
    assert accepted("cores > 4") == ["a"] and accepted("unit == b and cores > 4") == []
    assert len(kinds._known) == 3


def test_a_restarted_site_asks_again() -> None:
    """What filters said is not in the store."""
    desk = Desk(10, 10)
    rows: dict[str, list[Any]] = {}
    desk.redeem(1, {"filter": "a0 == 3"})
    ready = desk.site.ready()
    assert ready is not None
    for change in ready.changes:
        if change.row is not None:
            rows.setdefault(change.table, []).append(change.row)
    again = Desk(10, 10)
    again.site.restore(rows)
    again.site.step(Tick(0))
    assert again.counts["asked"] == 0
    again.turns()
    assert again.counts["asked"] == 10
    assert again.site.leases[f"{key_tag(GUEST.public)}-1"].units == ["u-3"]


def test_units_that_nobody_declares_any_more() -> None:
    """They have the properties of their type, as the settings have them now."""
    group = UnitGroup(type="vm", names=("a", "b"), properties={"os": "debian"})

    def site(*names: str) -> Authority:
        settings = AuthoritySettings(inventory=(UnitGroup(type="vm", names=names, properties=group.properties),))
        return Authority("site", SITE, UNSIGNED, [], FirstFit(), settings)

    before = site("a", "b")
    units = [before.units[name].row() for name in ("a", "b")]
    after = site("a")
    after.restore({"units": units})
    assert [view.properties for view in after.units.all("vm", "os == debian")] == 2 * [{"os": "debian"}]
