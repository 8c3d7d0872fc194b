"""The broker's FCFS mapper."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from broker_cycles import Books, Model, grants, request
from hypothesis import given
from hypothesis import strategies as st

from leasekit.core.mappers import (
    BrokerCycle,
    Defer,
    Grant,
    GrantGroup,
    PendingRequest,
    PlanCycle,
    Reject,
    TopologyPlan,
    Wake,
)
from leasekit.core.time import Term
from leasekit.core.topology import RequestedSite, TopologyRequest
from leasekit.policies.broker import capacity, turn
from leasekit.policies.broker.capacity import SiteFilterSettings, SiteWeigherSettings
from leasekit.policies.broker.coallocate import Coallocation, CoallocationSettings
from leasekit.policies.broker.fcfs import Fcfs, FcfsSettings

HORIZON = 30
BALANCES = ("load_balanced", "first_fit", "best_fit", "worst_fit", "random")


def mapper(balance: Any = "load_balanced") -> Fcfs:
    return Fcfs(FcfsSettings(balance=balance))


# -- new requests ------------------------------------------------------------------------------------------------


def test_a_plain_request_is_granted_as_asked() -> None:
    """All units, over the very term, where there is room."""
    cycle = Books({"a": 4}).cycle(request("l", 3, 5, 9, preemptible=True))
    assert mapper().allocate(cycle) == [Grant("l", "a/vm", 3, Term(5, 9), True)]


@pytest.mark.parametrize(
    ("balance", "site"), [("load_balanced", "d"), ("first_fit", "a"), ("best_fit", "b"), ("worst_fit", "e")]
)
def test_the_setting_chooses_the_site(balance: str, site: str) -> None:
    """Largest share free, first with enough, fewest free with enough, most free: by what is free over the term."""
    books = Books({"a": 5, "b": 9, "c": 6, "d": 4, "e": 20})
    for booked, units in (("a", 1), ("b", 6), ("c", 1), ("e", 8)):
        books.book(booked, "old", units, 0, 10)
    assert [grant.source for grant in grants(mapper(balance).allocate(books.cycle(request("l", 3))))] == [f"{site}/vm"]


def test_weighers_choose_the_site() -> None:
    """By sums of weights from 0 to 1, instead of the balance; an elastic request that none can fill goes to the one
    with most.
    """
    books = Books({"a": 10, "b": 10, "c": 2, "d": 10})
    books.book("a", "old", 4, 0, 10)
    prices = {"a": "2", "b": "4", "c": "1", "d": "what"}

    def site(*weighers: SiteWeigherSettings, balance: Any = "first_fit", **changes: Any) -> str:
        cycle = books.cycle(request("l", **{"units": 3, **changes}))
        sources = [one._replace(properties={"price": prices[one.site]}) for one in cycle.sources("vm")]
        decided = Fcfs(FcfsSettings(balance=balance, weighers=weighers)).allocate(
            cycle._replace(sources=lambda _: sources)
        )
        return next(iter(grants(decided))).source.removesuffix("/vm")

    free, share = SiteWeigherSettings(name="free"), SiteWeigherSettings(name="share_free", multiplier=-3.0)
    dear = SiteWeigherSettings(name="property", property="price")
    cheap = SiteWeigherSettings(name="property", property="price", multiplier=-1.0)
    assert site() == "a" and site(free) == "b" and site(share) == "a"
    assert site(dear) == "b" and site(cheap) == "d" and site(cheap, exclude_sites=frozenset("d")) == "a"
    assert site(cheap, units=1, exclude_sites=frozenset("d")) == "c"
    assert site(dear, share) == "a" and site(share, cheap, balance="worst_fit") == "a"
    assert site(cheap, units=12, min_units=5) == "b"


def test_weighers_choose_for_the_members_of_a_group() -> None:
    """Each member goes to the heaviest site that has enough left."""
    books = Books({"a": 4, "b": 5})
    members = tuple(request(f"l{n}", 2, group="g") for n in range(4))
    settings = FcfsSettings(weighers=(SiteWeigherSettings(name="free"),))
    (group,) = Fcfs(settings).allocate(books.cycle(groups=[members]))
    assert isinstance(group, GrantGroup)
    assert [one.source for one in group.grants] == ["b/vm", "a/vm", "b/vm", "a/vm"]


@pytest.mark.parametrize("settings", [FcfsSettings(), FcfsSettings(backfill=False)], ids=["booked", "in line"])
def test_filters_leave_out_sites(settings: FcfsSettings) -> None:
    """For whom and for which type they are, all of them; a site of which they take a part only is left out as well.
    An extend goes on where its lease is.
    """
    books = Books({"a": 10, "b": 10, "c": 10})
    prices = {"a": ("2",), "b": ("5", "3"), "c": ("4",)}
    filters = (
        SiteFilterSettings(takes="site != a", holder="web"),
        SiteFilterSettings(takes="price < 5"),
        SiteFilterSettings(takes="nothing", type="host"),
    )
    decide = Fcfs(attrs.evolve(settings, filters=filters)).allocate

    def decided(**changes: Any) -> Any:
        cycle = books.cycle(request("l", **changes))
        classes = {site: {price.encode(): {"price": price} for price in each} for site, each in prices.items()}
        sources = [one._replace(classes=classes[one.site]) for one in cycle.sources("vm")]
        (found,) = decide(cycle._replace(sources=lambda _: sources))
        return found.source.removesuffix("/vm") if isinstance(found, Grant) else found.reason

    assert decided(holder="batch") == "a"
    assert decided(holder="web") == "c"
    assert decided(holder="web", op="extend", source="a/vm") == "a"
    reason = decided(holder="web", exclude_sites=frozenset("c"))
    assert reason == ("no site passes the filter: a: site is a, wanted != a, b: price is 5, wanted < 5"), reason
    assert reason.code == "no_match"
    assert "the filter leaves out a: site is a, wanted != a" in decided(holder="web", units=11)
    assert decided(holder="web", properties={"filter": "price == 2"}) == (
        "no site passes the filter: a: site is a, wanted != a, b: price is 5, wanted < 5, c: price is 4, wanted == 2"
    )


def test_filters_of_a_broker_hold_for_topologies() -> None:
    """What they leave out is not offered to who asks for sites and links."""
    sites = (RequestedSite(id="one", type="vm", units=2), RequestedSite(id="two", type="vm", units=2))
    wanted = TopologyRequest(sites=sites, est=0, lst=0, duration=10)
    sources = tuple(Books({"a": 10, "b": 10, "c": 10}).cycle().sources("vm"))

    def places(*filters: SiteFilterSettings) -> set[str]:
        plans = Coallocation(CoallocationSettings(filters=filters)).plan(PlanCycle(0, "web", wanted, sources))
        return {part.source for plan in plans if isinstance(plan, TopologyPlan) for part in plan.parts}

    assert places(SiteFilterSettings(takes="site != a", holder="batch")) == {"a/vm", "b/vm"}
    assert places(SiteFilterSettings(takes="site != a", holder="web", type="vm")) == {"b/vm", "c/vm"}
    assert places(SiteFilterSettings(takes="site == a")) <= {"a/vm"}


@pytest.mark.parametrize("wrong", ["site !=", ""])
def test_a_filter_that_cannot_be_read_is_told(wrong: str) -> None:
    """It is told before the broker is up."""
    with pytest.raises(ValueError, match=r"^filter: character \d+: found the end, expected"):
        SiteFilterSettings(takes=wrong)


@pytest.mark.parametrize("wrong", [{"name": "property"}, {"name": "free", "property": "price"}])
def test_a_weigher_that_makes_no_sense_is_told(wrong: dict[str, str]) -> None:
    """A property is named with the weigher of properties, and with no other."""
    with pytest.raises(ValueError, match=r"^property: found .* expected the name of a property of sites"):
        SiteWeigherSettings(**wrong)


def test_load_balancing_counts_what_the_turn_has_granted() -> None:
    """Equal requests of one turn are spread evenly over equal sites."""
    cycle = Books({"a": 10, "b": 10}).cycle(*(request(f"l{n}") for n in range(6)))
    sources = [grant.source for grant in grants(mapper().allocate(cycle))]
    assert sources == ["a/vm", "b/vm"] * 3


def test_elastic_takes_what_is_free_down_to_its_least() -> None:
    """An elastic request gets as many as the roomiest site has; below its least it is refused."""
    books = Books({"a": 2, "b": 3})
    elastic = request("l", 9, min_units=3)
    assert [grant.units for grant in grants(mapper().allocate(books.cycle(elastic)))] == [3]
    books.book("b", "old", 1, 0, 5)
    (refused,) = mapper().allocate(books.cycle(elastic))
    assert isinstance(refused, Reject)
    assert refused.earliest == 5


def test_a_request_whose_window_is_over_is_refused() -> None:
    """One that was long on its way is not granted a start that it does not want."""
    late = request("l", 1, 50, 70)._replace(latest_start=40)
    (refused,) = mapper().allocate(Books({"a": 4}).cycle(late))
    assert isinstance(refused, Reject)
    assert refused.reason == "its latest start, @{40}, is past"


def test_refusal_names_type_site_free_and_earliest() -> None:
    """A request that doesn't fit is told what is free where, and when it would fit."""
    books = Books({"a": 4, "b": 4})
    books.book("a", "x", 3, 0, 70)
    books.book("b", "y", 4, 0, 50)
    (refused,) = mapper().allocate(books.cycle(request("l", 2, 0, 20)))
    assert isinstance(refused, Reject)
    assert refused.earliest == 50
    assert refused.reason == (
        "insufficient resources: 2 units of 'vm' wanted over [@{0}, @{20}), 1 free at a, 0 free at b; "
        "the earliest fit is at @{50} at b"
    )


def test_earliest_counts_what_was_granted_in_between() -> None:
    """Two equal requests are told different times when a grant between them has taken the first one's place."""
    books = Books({"a": 4})
    books.book("a", "x", 3, 0, 10)
    cycle = books.cycle(request("first", 2, 0, 10), request("holder", 3, 10, 20), request("second", 2, 0, 10))
    first, _, second = mapper().allocate(cycle)
    assert isinstance(first, Reject) and isinstance(second, Reject)
    assert (first.earliest, second.earliest) == (10, 20)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"type": "gpu"}, "no site here offers type 'gpu'"),
        ({"site": "z"}, "site 'z' offers no 'vm' here; a, b do"),
        ({"exclude_sites": frozenset("ab")}, "every site with 'vm' is excluded: a, b"),
        ({"site": "a", "exclude_sites": frozenset("a")}, "site 'a' is both asked for and excluded"),
        ({"units": 9, "min_units": 9}, "9 units of 'vm' are more than any site here has, which is 4 at most"),
        ({"units": 4, "min_units": 4, "site": "b"}, "4 units of 'vm' are more than site 'b' has, which is 3 at most"),
        (
            {"term": Term(50, 101), "latest_start": 50},
            "no delegation of 'vm' covers [@{50}, @{101}): a [@{0}, @{100}), b [@{0}, @{100})",
        ),
        (
            {"term": Term(50, 60), "latest_start": 70, "units": 9, "min_units": 9},
            "9 units of 'vm' are more than any site here has, which is 4 at most",
        ),
        (
            {"term": Term(0, 101), "latest_start": 70},
            "no delegation of 'vm' covers [@{0}, @{101}), nor with a start up to @{70}: a [@{0}, @{100}), b "
            "[@{0}, @{100})",
        ),
    ],
)
def test_what_can_never_be_filled_is_refused_with_its_own_reason(changes: dict[str, Any], words: str) -> None:
    """No such type or site, all excluded, too large, delegation too short: none of them is called insufficient."""
    books = Books({"a": 4, "b": 3}, end=100)
    assert mapper().allocate(books.cycle(request("l")._replace(**changes))) == [Reject("l", words)]


def test_pinned_and_excluded_sites_are_kept() -> None:
    """A request goes to its site though another is emptier, and never to one that it excludes."""
    books = Books({"a": 3, "b": 9, "c": 2})
    books.book("c", "old", 1, 0, 10)
    decisions = mapper().allocate(books.cycle(request("p", site="a"), request("x", exclude_sites=frozenset("b"))))
    assert [grant.source for grant in grants(decisions)] == ["a/vm", "a/vm"]


def test_deferrable_gets_its_earliest_start() -> None:
    """A deferrable request is reserved where it first fits at any site, and deferred where its window is full."""
    books = Books({"a": 4, "b": 4})
    books.book("a", "x", 2, 0, 40)
    books.book("b", "y", 2, 0, 30)
    later = request("l", 3, 0, 10, latest_start=35)
    assert mapper().allocate(books.cycle(later)) == [Grant("l", "b/vm", 3, Term(30, 40))]
    (deferred,) = mapper().allocate(books.cycle(later._replace(latest_start=29)))
    assert isinstance(deferred, Defer)
    assert deferred.reason.endswith(
        "2 free at a, 2 free at b; nothing up to its latest start, @{29}; the earliest fit is at @{30} at b"
    )


def test_who_cannot_start_in_time_is_told_when_it_would_fit() -> None:
    """After its latest start, or never; and as things are by then, not in what has passed of its window."""
    books = Books({"a": 4}, end=60)
    books.book("a", "x", 2, 0, 40)
    near, never = request("near", 3, 0, 10, latest_start=29), request("never", 3, 0, 25, latest_start=29)
    reasons = {
        decision.lease: decision.reason for decision in mapper().allocate(books.cycle(near, never)._replace(now=5))
    }
    assert reasons["near"].endswith("nothing up to its latest start, @{29}; the earliest fit is at @{40} at a")
    assert reasons["never"].endswith("nothing up to its latest start, @{29}; it fits at no later start either")


def test_only_a_few_of_many_are_told_when_they_would_fit() -> None:
    """However many wait, a turn works that out for few, and all are deferred."""
    books = Books({"a": 4})
    books.book("a", "x", 2, 0, 40)
    wishes = [request(f"l{n}", 3, 0, 10 + n, latest_start=29) for n in range(3 * turn.EXPLAINED_MAX)]
    decisions = mapper().allocate(books.cycle(*wishes))
    assert [decision.lease for decision in decisions if isinstance(decision, Defer)] == [one.lease for one in wishes]
    told = ["the earliest fit is at @{40} at a" in decision.reason for decision in decisions]
    assert told == [True] * turn.EXPLAINED_MAX + [False] * 2 * turn.EXPLAINED_MAX


def test_a_deferred_older_request_is_not_starved() -> None:
    """Small requests that come later don't push back a large deferrable one, and needn't wait for it either."""
    books = Books({"a": 4})
    books.book("a", "x", 1, 0, 20)
    wishes = [
        request("large", 4, 0, 10, latest_start=100, arrived=1),
        request("small", 2, 0, 10, latest_start=100, arrived=2),
        request("long", 2, 0, 25, latest_start=100, arrived=3),
    ]
    terms = {grant.lease: grant.term for grant in grants(mapper().allocate(books.cycle(*wishes)))}
    assert terms == {"large": Term(20, 30), "small": Term(0, 10), "long": Term(30, 55)}


# -- order -------------------------------------------------------------------------------------------------------


def test_order_is_operation_then_priority_then_arrival() -> None:
    """Extends go first, then modifies, then the higher class, then who came first; a group comes with its last."""
    books = Books({"a": 50})
    books.book("a", "e", 1, 0, 10)
    books.book("a", "m", 1, 0, 10)
    pair: dict[str, Any] = {"group": "g", "latest_start": 5}
    cycle = books.cycle(
        request("late", arrived=9),
        request("m", 2, 5, 10, op="modify", source="a/vm", held=1, held_until=10, arrived=9),
        request("early", arrived=1),
        request("vip", arrived=9, priority=3),
        request("e", 1, 10, 20, op="extend", source="a/vm", held=1, arrived=9, priority=-5),
        groups=[(request("g1", arrived=1, **pair), request("g2", arrived=4, **pair))],
    )
    assert [grant.lease for grant in grants(mapper().allocate(cycle))] == ["e", "m", "vip", "early", "g1", "g2", "late"]


def test_the_higher_class_gets_the_last_unit() -> None:
    """Of two requests for the last unit, the one of the higher class gets it, though it came later."""
    cycle = Books({"a": 1}).cycle(request("old", arrived=1), request("vip", arrived=2, priority=1))
    decisions = {decision.lease: decision for decision in mapper().allocate(cycle)}  # type: ignore[union-attr]
    assert isinstance(decisions["vip"], Grant)
    assert isinstance(decisions["old"], Reject)


def test_gathered_requests_are_decided_together_at_the_end_of_their_round() -> None:
    """With ``gather`` nothing is decided in the round in which it came, and the next round is waited for."""
    gathering = Fcfs(FcfsSettings(gather=1000))
    pair = group(1, arrived=1999), group(1, arrived=2000, group="h")
    wishes = [request("old", arrived=1999), request("new", arrived=2000)]
    books = Books({"a": 4})
    cycle = books.cycle(*wishes, groups=pair)
    decisions = gathering.allocate(cycle._replace(now=2400))
    assert decisions[0] == Wake(3000)
    assert [grant.lease for grant in grants(decisions)] == ["old", "g0"]
    assert gathering.allocate(books.cycle(request("old", arrived=1999))._replace(now=2000)) == [
        Grant("old", "a/vm", 1, Term(0, 10))
    ]


# -- extends and modifies ----------------------------------------------------------------------------------------


def extend(lease: str, units: int, **changes: Any) -> PendingRequest:
    return request(lease, units, 10, 20, op="extend", source="a/vm", held=2, site="a", **changes)


def test_extend_continues_at_its_source() -> None:
    """An extend is filled from its own delegation, though another is emptier; an elastic one with what there is."""
    books = Books({"a": 4, "b": 9})
    books.book("a", "l", 2, 0, 10)
    assert mapper().allocate(books.cycle(extend("l", 3))) == [Grant("l", "a/vm", 3, Term(10, 20))]
    books.book("a", "other", 2, 15, 30)
    (refused,) = mapper().allocate(books.cycle(extend("l", 3)))
    assert refused == Reject("l", "insufficient resources: 3 units of 'vm' wanted over [@{10}, @{20}), 2 free at a")
    elastic = extend("l", 3, min_units=1)
    assert [grant.units for grant in grants(mapper().allocate(books.cycle(elastic)))] == [2]


def test_extend_beyond_its_delegation_says_so() -> None:
    """Where the delegation ends first, or is over, or the site is excluded, that is the reason."""
    books = Books({"a": 4}, end=15)
    (short,) = mapper().allocate(books.cycle(extend("l", 1)))
    assert short == Reject("l", "no delegation of 'vm' covers [@{10}, @{20}): a [@{0}, @{15})")
    (over,) = mapper().allocate(books.cycle(extend("l", 1)._replace(source="z/vm")))
    assert over == Reject("l", "the delegation 'z/vm' that the lease is from is over")
    (barred,) = mapper().allocate(books.cycle(extend("l", 1, exclude_sites=frozenset("a"))))
    assert barred == Reject("l", "the lease is at site 'a' and can't go on anywhere else")


def test_modify_counts_what_the_lease_holds() -> None:
    """A modify needs only what it doesn't hold yet up to its old end, and all of its units after that."""
    books = Books({"a": 4})
    books.book("a", "l", 3, 0, 10)
    books.book("a", "next", 2, 12, 20)
    grow = request("l", 4, 5, 10, op="modify", source="a/vm", held=3, held_until=10)
    assert mapper().allocate(books.cycle(grow)) == [Grant("l", "a/vm", 4, Term(5, 10))]
    longer = grow._replace(units=3, min_units=3, term=Term(5, 14))
    (refused,) = mapper().allocate(books.cycle(longer))
    assert isinstance(refused, Reject)
    assert "2 to be had at a with the 3 that the lease holds there until @{10}" in refused.reason
    assert [g.units for g in grants(mapper().allocate(books.cycle(longer._replace(min_units=1))))] == [2]


def test_a_lease_can_shrink_where_units_are_out_of_service() -> None:
    """What a lease has it may keep, however much is missing; it gets no more, and nobody waits for its sake."""
    books = Books({"a": 4})
    books.book("a", "l", 3, 0, 10)
    books.tables["a"].add_capacity(Term(4, 8), -3)
    shrink = request("l", 1, 5, 10, op="modify", source="a/vm", held=3, held_until=10)
    other = request("n", 1, 8, 12, arrived=9)
    assert mapper().allocate(books.cycle(shrink, other)) == [
        Grant("l", "a/vm", 1, Term(5, 10)),
        Grant("n", "a/vm", 1, Term(8, 12)),
    ]
    for more in (shrink._replace(units=4, min_units=4), shrink._replace(units=4, min_units=4, term=Term(5, 9))):
        (refused,) = mapper().allocate(books.cycle(more))
        assert isinstance(refused, Reject) and "3 to be had at a with the 3 that the lease holds" in refused.reason
    elastic = shrink._replace(units=4)
    assert [g.units for g in grants(mapper().allocate(books.cycle(elastic)))] == [3]


def test_what_a_modify_gives_up_is_nobodys_in_the_same_turn() -> None:
    """The broker keeps it booked until the site has confirmed the modify: a grant of it would not be carried out, and
    those after it would be refused for its sake.
    """
    books = Books({"a": 4})
    books.book("a", "l", 4, 0, 10)
    shrink = request("l", 1, 5, 10, op="modify", source="a/vm", held=4, held_until=10)
    granted, refused = mapper().allocate(books.cycle(request("n", 3, 5, 10), shrink))
    assert granted == Grant("l", "a/vm", 1, Term(5, 10))
    assert isinstance(refused, Reject)
    assert refused.earliest == 10


# -- groups ------------------------------------------------------------------------------------------------------


def group(*units: int, **changes: Any) -> tuple[PendingRequest, ...]:
    fields = {"group": "g", "latest_start": 100, **changes}
    return tuple(request(f"g{index}", count, **fields) for index, count in enumerate(units))


def test_group_is_granted_whole_at_its_earliest_common_start() -> None:
    """All members over one term, spread over sites where one has too few."""
    books = Books({"a": 4, "b": 4})
    books.book("a", "x", 1, 0, 20)
    books.book("b", "y", 1, 0, 30)
    (granted,) = mapper().allocate(books.cycle(groups=[group(4, 3)]))
    assert isinstance(granted, GrantGroup)
    assert [(g.lease, g.source, g.units, g.term) for g in granted.grants] == [
        ("g0", "a/vm", 4, Term(20, 30)),
        ("g1", "b/vm", 3, Term(20, 30)),
    ]


def test_group_waits_until_its_members_fit_together() -> None:
    """Where each member fits by itself but not both, the group starts when enough has become free for both."""
    books = Books({"a": 4})
    books.book("a", "x", 2, 0, 15)
    books.book("a", "y", 1, 0, 25)
    (granted,) = mapper().allocate(books.cycle(groups=[group(2, 2)]))
    assert {grant.term for grant in grants([granted])} == {Term(25, 35)}


def test_group_that_balancing_can_not_place_is_packed() -> None:
    """Members of 4, 3 and 3 fit into 6 and 4, though the largest must not go to the emptiest site."""
    (granted,) = mapper().allocate(Books({"a": 6, "b": 4}).cycle(groups=[group(4, 3, 3)]))
    assert [grant.source for grant in grants([granted])] == ["b/vm", "a/vm", "a/vm"]


def test_group_without_a_common_start_waits_or_is_refused() -> None:
    """A full window defers every member; windows that don't meet, unequal lengths, too many units refuse them."""
    books = Books({"a": 4})
    books.book("a", "x", 1, 0, 200)
    waiting = mapper().allocate(books.cycle(groups=[group(2, 2)]))
    assert [type(decision) for decision in waiting] == [Defer, Defer]
    apart = (*group(1), request("g1", 1, 200, 210, group="g", latest_start=300))
    (refused,) = mapper().allocate(books.cycle(groups=[apart]))
    assert refused == Reject(
        "g0", "no start suits all requests of group 'g': one starts at @{200} or later, one by @{100}"
    )
    uneven = (*group(1), request("g1", 1, 0, 12, group="g", latest_start=100))
    (refused,) = mapper().allocate(books.cycle(groups=[uneven]))
    assert refused == Reject("g0", "the requests of group 'g' get one term, but ask for 10 ms and 12 ms")
    (refused,) = mapper().allocate(books.cycle(groups=[group(1, 5)]))
    assert isinstance(refused, Reject)
    assert refused.lease == "g1"
    assert "5 units of 'vm' are more than any site here has" in refused.reason


def test_members_with_fixed_starts_have_terms_of_their_own() -> None:
    """Where no member has a choice of its start, each gets its own term; one that can't be had refuses all, and what
    the others had booked is free again, for requests and quotas.
    """
    books = Books({"a": 4})
    days = tuple(request(f"g{n}", 3, 10 * n, 10 * n + 5, group="g", latest_start=10 * n) for n in range(3))
    (granted,) = mapper().allocate(books.cycle(groups=[days]))
    assert granted == GrantGroup("g", tuple(Grant(f"g{n}", "a/vm", 3, Term(10 * n, 10 * n + 5)) for n in range(3)))
    books.book("a", "x", 2, 22, 23)
    refused, *others = mapper().allocate(books.cycle(groups=[days, group(4)]))
    assert isinstance(refused, Reject)
    assert (refused.lease, refused.earliest) == ("g2", 23)
    assert [grant.term for grant in grants(others)] == [Term(0, 10)]
    overlapping = tuple(request(f"g{n}", 3, n, n + 5, group="g", latest_start=n) for n in range(2))
    (refused,) = mapper().allocate(Books({"a": 4}).cycle(groups=[overlapping]))
    assert isinstance(refused, Reject)
    (both,) = mapper().allocate(Books({"a": 4, "b": 4}).cycle(groups=[overlapping]))
    assert [grant.source for grant in grants([both])] == ["a/vm", "b/vm"]


def test_elastic_members_of_a_group_share_what_there_is() -> None:
    """Each has what it needs before any has more; then the first ones have as many as they can, over one term."""
    books = Books({"a": 8, "b": 3})
    books.book("a", "x", 8, 0, 20)
    wide = [(2, 6), (3, 4), (1, 5)]
    members = tuple(
        request(f"g{n}", most, min_units=least, group="g", latest_start=0) for n, (least, most) in enumerate(wide)
    )
    (refused,) = mapper().allocate(books.cycle(groups=[members]))
    assert isinstance(refused, Reject) and "all 6 units of the 3 requests" in refused.reason
    late = tuple(member._replace(latest_start=100) for member in members)
    (granted,) = mapper().allocate(books.cycle(groups=[late]))
    assert [(g.source, g.units, g.term) for g in grants([granted])] == [
        ("a/vm", 6, Term(20, 30)), ("b/vm", 3, Term(20, 30)), ("a/vm", 2, Term(20, 30))
    ]  # fmt: skip
    (alone,) = mapper().allocate(Books({"a": 7}).cycle(groups=[members]))
    assert [grant.units for grant in grants([alone])] == [3, 3, 1]
    (plenty,) = mapper().allocate(Books({"a": 99}).cycle(groups=[members]))
    assert [grant.units for grant in grants([plenty])] == [6, 4, 5]


def test_elastic_members_with_terms_of_their_own() -> None:
    """All that they need is booked before any has more, where their terms overlap as well."""
    days = tuple(request(f"g{n}", 6, 3 * n, 3 * n + 5, group="g", latest_start=3 * n, min_units=2) for n in range(3))
    (granted,) = mapper().allocate(Books({"a": 7}).cycle(groups=[days]))
    assert [grant.units for grant in grants([granted])] == [5, 2, 5]
    (refused,) = mapper().allocate(Books({"a": 3}).cycle(groups=[days]))
    assert isinstance(refused, Reject) and refused.lease == "g1"


def test_large_group_is_placed() -> None:
    """A group of 500 is placed in one turn, without recursing or searching for long."""
    (granted,) = mapper().allocate(Books({"a": 300, "b": 200}).cycle(groups=[group(*[1] * 500)]))
    assert len(list(grants([granted]))) == 500
    many = tuple(request(f"g{n}", 9, min_units=1, group="g", latest_start=0) for n in range(500))
    (granted,) = mapper().allocate(Books({"a": 600, "b": 300}).cycle(groups=[many]))
    assert sum(grant.units for grant in grants([granted])) > 500


def test_group_search_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A packing that can't be found within the limit defers the group instead of searching for ever."""
    monkeypatch.setattr(turn, "STARTS_MAX", 1)
    sites = {f"s{index:02}": 10 for index in range(20)}
    decisions = mapper().allocate(Books(sites).cycle(groups=[group(*[6] * 21, latest_start=1)]))
    assert {type(decision) for decision in decisions} == {Defer}


@pytest.mark.parametrize(("sites", "members", "units"), [(1, 500, 1), (8, 9, 6), (20, 21, 6)])
def test_a_group_that_fits_nowhere_costs_little(
    monkeypatch: pytest.MonkeyPatch, sites: int, members: int, units: int
) -> None:
    """Many members or few, and however many starts there are: so many places are tried in one turn."""
    books = Books({f"s{site:02}": max(10, members // sites - 1) for site in range(sites)})
    for number in range(500):
        books.book(f"s{number % sites:02}", f"l{number}", 1, 100 + 3 * number, 102 + 3 * number)
    tried = []

    def counting(*given: Any) -> tuple[list[capacity.Place] | None, int]:
        found, count = capacity.search(*given)
        tried.append(count)
        return found, count

    monkeypatch.setattr(turn, "search", counting)
    decisions = mapper().allocate(books.cycle(groups=[group(*[units] * members, latest_start=5000)]))
    assert {type(decision) for decision in decisions} == {Defer}
    assert sum(tried) <= turn.PLACED_MAX + capacity.NODES_MAX + members
    assert (sites == 1) == (not tried)


# -- properties --------------------------------------------------------------------------------------------------

SITES = ("a", "b", "c")


@st.composite
def problems(draw: st.DrawFn) -> tuple[Books, BrokerCycle]:
    """Up to three small sites with leases on them, and up to eight requests of all kinds and a group or two."""
    books = Books({site: draw(st.integers(1, 5)) for site in SITES[: draw(st.integers(1, 3))]}, end=HORIZON)
    held: list[tuple[str, str, int, Term]] = []
    for index in range(draw(st.integers(0, 6))):
        site, start = draw(st.sampled_from(sorted(books.units))), draw(st.integers(0, 20))
        end = start + draw(st.integers(1, 9))
        free = books.tables[site].available(Term(start, end))
        if free > 0:
            units = draw(st.integers(1, free))
            books.book(site, f"old{index}", units, start, end)
            held.append((f"old{index}", site, units, Term(start, end)))
    wishes = [_again(draw, *lease) for lease in held if draw(st.booleans())]
    wishes += [_fresh(draw, books, f"new{index}") for index in range(draw(st.integers(0, 6)))]
    groups = [_group(draw, books, f"g{index}") for index in range(draw(st.integers(0, 2)))]
    return books, books.cycle(*draw(st.permutations(wishes)), groups=groups)


def _shape(draw: st.DrawFn, units: int) -> dict[str, Any]:
    least = draw(st.one_of(st.just(units), st.integers(1, units)))
    return {"min_units": least, "priority": draw(st.integers(-1, 1)), "arrived": draw(st.integers(0, 3))}


def _again(draw: st.DrawFn, lease: str, site: str, units: int, term: Term) -> PendingRequest:
    wanted = draw(st.integers(1, 6))
    known = {"source": f"{site}/vm", "held": units, "held_until": term.end, "site": site, **_shape(draw, wanted)}
    if draw(st.booleans()):
        return request(lease, wanted, term.end, term.end + draw(st.integers(1, 9)), op="extend", **known)
    start = draw(st.integers(term.start, term.end - 1))
    return request(lease, wanted, start, start + draw(st.integers(1, 9)), op="modify", **known)


def _fresh(draw: st.DrawFn, books: Books, lease: str, **changes: Any) -> PendingRequest:
    units, start, length = draw(st.integers(1, 6)), draw(st.integers(0, 12)), draw(st.sampled_from((2, 5, 5, 9)))
    sites = st.sampled_from(("", *sorted(books.units)))
    fields: dict[str, Any] = {
        "latest_start": start + draw(st.sampled_from((0, 0, 4, 16))),
        "site": draw(sites),
        "exclude_sites": frozenset({draw(sites)} - {""}),
        **_shape(draw, units),
    }
    return request(lease, units, start, start + length, **{**fields, **changes})


def _group(draw: st.DrawFn, books: Books, name: str) -> tuple[PendingRequest, ...]:
    members = [_fresh(draw, books, f"{name}-{index}", group=name) for index in range(draw(st.integers(1, 3)))]
    return tuple(member._replace(min_units=member.units) for member in members)


@given(problems(), st.sampled_from(BALANCES))
def test_every_decision_is_right(problem: tuple[Books, BrokerCycle], balance: str) -> None:
    """Nothing beyond what is free; the earliest start, the right site, all that is there; groups whole."""
    books, cycle = problem
    Model(books, balance).check(cycle, mapper(balance).allocate(cycle))


@given(problems())
def test_decisions_follow_the_priority_order(problem: tuple[Books, BrokerCycle]) -> None:
    """Requests are decided in the order of operation, class and arrival."""
    _, cycle = problem
    wishes = {wish.lease: wish for wish in cycle.requests}
    order = {"extend": 0, "modify": 1, "new": 2}
    ranks = [
        (order[wish.op], -wish.priority, wish.arrived)
        for decision in mapper().allocate(cycle)
        if isinstance(decision, Grant | Defer | Reject) and (wish := wishes.get(decision.lease)) is not None
    ]
    assert ranks == sorted(ranks)


@given(st.data())
def test_decisions_are_the_same_each_time(data: st.DataObject) -> None:
    """The same cycle gives the same decisions, and deciding leaves the broker's own timetables as they were."""
    books, cycle = data.draw(problems())
    before = {site: list(table.steps(books.term)) for site, table in books.tables.items()}
    first = mapper().allocate(cycle)
    again = books.cycle(*cycle.requests, groups=cycle.groups)
    assert mapper().allocate(again) == first
    assert {site: list(table.steps(books.term)) for site, table in books.tables.items()} == before


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 300), st.integers(1, 60), st.sampled_from((0, 0, 50)))))
def test_a_burst_on_a_flat_copy_is_decided_as_on_the_view(shapes: list[tuple[int, int, int, int]]) -> None:
    """Turns with many different terms work on a copy of the timetable; their decisions are the same."""
    books = Books({"a": 5, "b": 4}, end=300)
    for index in range(12):
        books.book("a", f"x{index}", 1, index * 20, index * 20 + 35)
    spread = [(1, start * 3, 40, 50) for start in range(80)]
    wishes = [
        request(f"l{index}", units, start, start + length, latest_start=start + slack)
        for index, (units, start, length, slack) in enumerate([*shapes, *spread])
    ]
    flat = mapper().allocate(books.cycle(*wishes))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(capacity, "FLATTEN_FROM", 10**9)
        assert mapper().allocate(books.cycle(*wishes)) == flat
