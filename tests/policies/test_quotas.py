"""Quotas of holders, and what a request's filter and preparation ask of sites: settings of all standard mappers."""

from __future__ import annotations

from typing import Any

import pytest
from broker_cycles import FAR, Books, grants, request
from hypothesis import given
from hypothesis import strategies as st

from leasekit.core import filters
from leasekit.core.mappers import BrokerDecision, Defer, Grant, GrantGroup, PendingRequest, Reject, Source
from leasekit.core.settings import SettingsError, structure
from leasekit.core.time import HOUR, WEEK, Term
from leasekit.policies.broker.fcfs import Fcfs, FcfsSettings
from leasekit.policies.broker.quotas import QuotaSettings
from leasekit.policies.broker.turn import GrantedToo, Quotas
from leasekit.policies.broker.waiting import Backfill, BackfillSettings


def fcfs(*quotas: dict[str, Any]) -> Fcfs:
    return Fcfs(structure(FcfsSettings, {"quotas": list(quotas)}, "mapper"))


def reasons(decisions: list[BrokerDecision]) -> list[str]:
    return [decision.reason for decision in decisions if isinstance(decision, Reject | Defer)]


# -- quotas ------------------------------------------------------------------------------------------------------


def test_units_at_once() -> None:
    """A holder has as many units at a time as the quota says, however many there are; others aren't affected."""
    mapper, books = fcfs({"units": 4}), Books({"a": 20})
    wishes = [request("l", 3), request("m", 2), request("n", 2, 10, 20), request("o", 4, holder="other")]
    decisions = mapper.allocate(books.cycle(*wishes))
    assert [grant.lease for grant in grants(decisions)] == ["l", "n", "o"]
    assert reasons(decisions) == [
        "guest's quota of 'vm' is 4 units at once: 3 are held within [@{0}, @{10}), 2 more were wanted"
    ]


def test_an_elastic_request_gets_what_the_quota_leaves() -> None:
    """Down to its least units; and a deferrable one waits for the first start at which the quota leaves enough."""
    mapper, books = fcfs({"units": 4}), Books({"a": 20})
    wishes = [request("l", 3), request("m", 3, min_units=1), request("n", 4, 0, 5, latest_start=50)]
    assert [(g.lease, g.units, g.term) for g in grants(mapper.allocate(books.cycle(*wishes)))] == [
        ("l", 3, Term(0, 10)),
        ("m", 1, Term(0, 10)),
        ("n", 4, Term(10, 15)),
    ]


def test_unit_hours_in_a_period() -> None:
    """What a holder used in a period counts in it, and a term over two periods must fit into both."""
    mapper, books = fcfs({"unit_hours": 10, "period": "1d"}), Books({"a": 20}, end=10 * WEEK)
    first = request("l", 2, 0, 4 * HOUR)
    over = request("m", 2, 22 * HOUR, 30 * HOUR)
    again = request("n", 2, 12 * HOUR, 13 * HOUR)
    decisions = mapper.allocate(books.cycle(first, over, again))
    assert [grant.lease for grant in grants(decisions)] == ["l", "n"]
    assert reasons(decisions) == [
        "guest's quota of 'vm' is 10 unit-hours in 1d: 2 are left from @{0} on, 4 were wanted"
    ]


def test_longest_term_and_how_far_ahead() -> None:
    """Neither is helped by waiting: both are refused at once, in words, by every mapper."""
    quota = {"longest": "1h", "ahead": "1d"}
    books = Books({"a": 20}, end=WEEK)
    wishes = [
        request("long", 1, 0, 2 * HOUR, latest_start=3 * HOUR),
        request("far", 1, 30 * HOUR, 31 * HOUR),
        request("fine", 1, 0, HOUR),
    ]
    for mapper in (fcfs(quota), Backfill(structure(BackfillSettings, {"quotas": [quota]}, "mapper"))):
        decisions = mapper.allocate(books.cycle(*wishes))
        assert [grant.lease for grant in grants(decisions)] == ["fine"]
        assert sorted(reasons(decisions)) == [
            "guest's quota of 'vm': a term starts at most 1d ahead, by @{86400000} for now",
            "guest's quota of 'vm': the longest term is 1h, this one is 2h",
        ]


@pytest.mark.parametrize(
    ("rest", "gap", "ok"), [("0s", 0, False), ("0s", 1, True), ("10m", 9, False), ("10m", 10, True)]
)
def test_leases_are_not_stacked_to_evade_the_longest_term(rest: str, gap: int, ok: bool) -> None:
    """An extend, or a lease anew, that goes on beyond the longest term needs a break before it."""
    mapper = fcfs({"longest": "2h", "stacked": 1, "rest": rest})
    books = Books({"a": 20}, end=WEEK)
    wishes = [request("l", 3, 0, 2 * HOUR), request("m", 3, 2 * HOUR + gap * 60_000, 3 * HOUR + gap * 60_000)]
    decisions = mapper.allocate(books.cycle(*wishes))
    assert [grant.lease for grant in grants(decisions)] == (["l", "m"] if ok else ["l"])
    if not ok:
        assert "more than 1 unit may not be held for longer than 2h without a break" in reasons(decisions)[0]


def test_as_many_as_may_be_stacked_are() -> None:
    """Units below the cap may be held for ever; an extend counts like a lease of its own."""
    mapper = fcfs({"longest": "2h", "stacked": 2})
    books = Books({"a": 20}, end=WEEK)
    books.book("a", "l", 3, 0, 2 * HOUR)
    extend = request("l", 3, 2 * HOUR, 4 * HOUR, op="extend", source="a/vm", held=3, min_units=1)
    assert [grant.units for grant in grants(mapper.allocate(books.cycle(extend)))] == [2]


def test_a_modify_counts_what_it_gives_up() -> None:
    """A lease at its quota can shrink and grow within it."""
    mapper, books = fcfs({"units": 4}), Books({"a": 20})
    books.book("a", "l", 4, 0, 10)
    modify = request("l", 4, 5, 20, op="modify", source="a/vm", held=4, held_until=10)
    assert [grant.units for grant in grants(mapper.allocate(books.cycle(modify)))] == [4]
    (refused,) = mapper.allocate(books.cycle(modify._replace(units=5, min_units=5)))
    assert isinstance(refused, Reject)
    assert "4 units at once" in refused.reason


def test_the_members_of_a_group_count_together() -> None:
    """A group whose members each keep to the quota, but not all of them, is refused; elastic ones share it."""
    mapper, books = fcfs({"units": 4}), Books({"a": 20})
    pair = tuple(request(f"g{index}", 3, group="g") for index in range(2))
    decisions = mapper.allocate(books.cycle(groups=[pair]))
    assert [type(decision) for decision in decisions] == [Reject]
    assert "4 units at once" in reasons(decisions)[0]
    (whole,) = mapper.allocate(books.cycle(groups=[tuple(each._replace(units=2, min_units=2) for each in pair)]))
    assert isinstance(whole, GrantGroup)
    (fewer,) = mapper.allocate(books.cycle(groups=[tuple(each._replace(min_units=1) for each in pair)]))
    assert [grant.units for grant in grants([fewer])] == [3, 1]


def test_the_closest_quota_counts() -> None:
    """Holder and type before holder, holder before type, and that before all."""
    quotas = Quotas(
        [
            QuotaSettings(units=1),
            QuotaSettings(type="vm", units=2),
            QuotaSettings(holder="guest", units=3),
            QuotaSettings(holder="guest", type="vm", units=4),
        ]
    )
    account = GrantedToo(Books({}).cycle())
    for holder, type_, units in (("guest", "vm", 4), ("guest", "gpu", 3), ("x", "vm", 2), ("x", "gpu", 1)):
        limit = quotas.of(request("l", holder=holder, type=type_), account, 0)
        assert limit is not None
        assert limit.units(Term(0, 10)) == units


DAY = 24 * HOUR


def ahead(lease: str, units: int, day: int, **more: Any) -> PendingRequest:
    """One for a whole day, so many days ahead."""
    return request(lease, units, day * DAY, (day + 1) * DAY, **more)


@pytest.mark.parametrize("mapper", [fcfs({"booked_hours": 48}), fcfs()])
def test_what_has_not_begun_is_limited(mapper: Fcfs) -> None:
    """By a quota, or by what the broker's settings say otherwise: who has all units for two days books no more, but may
    have what begins now; others may book; a deferrable request waits until something has begun.
    """
    books = Books({"a": 4}, end=10 * WEEK)
    held = {"guest": 3 * DAY, "other": 0}
    asked = [
        ahead("l", 4, 2), ahead("m", 1, 3), ahead("n", 2, 4), ahead("now", 4, 0), ahead("o", 4, 5, holder="other"),
        ahead("p", 1, 6, latest_start=9 * DAY), ahead("q", 9 * 4, 7, min_units=1, latest_start=9 * DAY),
    ]  # fmt: skip
    cycle = books.cycle(*asked)._replace(booked=lambda holder, type_: held[holder], booked_hours=48)
    decisions = mapper.allocate(cycle)
    assert [(one.lease, one.units) for one in grants(decisions)] == [("l", 4), ("m", 1), ("now", 4), ("o", 4)]
    assert reasons(decisions)[0] == (
        "guest's quota of 'vm': what has not begun may come to 48 hours of all 4 units: 0 unit-hours are left, "
        "48 were wanted"
    )
    assert [type(one) for one in decisions if one.lease in "npq"] == [Reject, Defer, Defer]
    begun = books.cycle(*asked[-2:])._replace(now=DAY, booked_hours=48)
    assert [(one.lease, one.units) for one in grants(mapper.allocate(begun))] == [("p", 1), ("q", 4)]


def test_a_quota_of_ones_own_counts_instead_of_the_brokers() -> None:
    """Who is named by a quota is bound by that alone."""

    def granted(mapper: Fcfs) -> int:
        asked = [ahead("l", 4, 2), ahead("m", 4, 3), ahead("n", 4, 4)]
        cycle = Books({"a": 4}, end=10 * WEEK).cycle(*asked)._replace(booked_hours=48)
        return len(list(grants(mapper.allocate(cycle))))

    assert granted(fcfs()) == 2
    assert granted(fcfs({"holder": "guest", "booked_hours": 72})) == 3
    assert granted(fcfs({"holder": "guest", "units": 4})) == 3
    assert not fcfs({"booked_hours": 1}).wants_usage


def test_bad_quotas_are_named() -> None:
    """Two of the same, a cap without its term, a negative number."""
    for quota, words in (
        ([{"units": 1}, {"units": 2}], r"quotas: .*two quotas of holder '\*' and type '\*', expected one"),
        ([{"stacked": 1}], r"quotas\[0\]: stacked: goes with longest, which it guards"),
        ([{"units": -1}], r"quotas\[0\].units: found -1, expected >= 0"),
    ):
        with pytest.raises(SettingsError, match=words):
            structure(FcfsSettings, {"quotas": quota}, "mapper")


def test_a_waiting_request_at_its_quota_holds_nobody_up() -> None:
    """The first in line whose holder has all it may have is passed over, and starts when its quota lets it."""
    mapper = Backfill(structure(BackfillSettings, {"quotas": [{"holder": "guest", "units": 2}]}, "mapper"))
    books = Books({"a": 10})
    wishes = [
        request("l", 2, 0, 30, latest_start=FAR // 2),
        request("m", 2, 0, 30, latest_start=FAR // 2),
        request("n", 8, 0, 30, latest_start=FAR // 2, holder="other"),
    ]
    decisions = mapper.allocate(books.cycle(*wishes))
    assert [grant.lease for grant in grants(decisions)] == ["l", "n"]
    for grant in grants(decisions):
        books.tables["a"].reserve(grant.lease, grant.units, grant.term)
    again = mapper.allocate(books.cycle(wishes[1]._replace(term=Term(30, 60)))._replace(now=30))
    assert [grant.lease for grant in grants(again)] == ["m"]


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 30), st.integers(1, 15), st.sampled_from((0, 40)))))
def test_no_quota_is_ever_exceeded(shapes: list[tuple[int, int, int, int]]) -> None:
    """Millisecond by millisecond, over all turns: never more than the units at once, and no run beyond the longest."""
    mapper, books = fcfs({"units": 5, "longest": 20, "stacked": 2}), Books({"a": 9}, end=200)
    held = [0] * 200
    for index, (units, start, length, slack) in enumerate(shapes):
        wish = request(f"l{index}", units, start, start + length, latest_start=start + slack)
        for grant in grants(mapper.allocate(books.cycle(wish))):
            books.grant("a", grant)
            for at in range(*grant.term):
                held[at] += grant.units
    assert max(held) <= 5
    runs = "".join("x" if units > 2 else " " for units in held).split()
    assert max(map(len, runs), default=0) <= 20


# -- filters -----------------------------------------------------------------------------------------------------


def varied(*requests: Any, now: int = 0) -> Any:
    """Three sites: of 8 GB, of 16 GB, and one with a GPU and an image."""
    books = Books({"a": 4, "b": 4, "c": 4})
    kinds = {"a": {"memory_mb": "8192"}, "b": {"memory_mb": "16384"}, "c": {"memory_mb": "10240", "images": "web, db"}}
    cycle = books.cycle(*requests)._replace(now=now)
    sources = [Source(s.id, s.site, s.type, s.units, s.term, kinds[s.site], s.free) for s in cycle.sources("vm")]
    return cycle._replace(sources=lambda type_: sources if type_ == "vm" else [])


@pytest.mark.parametrize(
    ("text", "sites"),
    [
        ("memory_mb >= 9000", {"b", "c"}),
        ('[">=", "$memory_mb", 16000]', {"b"}),
        ("site in {a, b} and not memory_mb > 9000", {"a"}),
    ],
)
def test_a_filter_chooses_among_sites(text: str, sites: set[str]) -> None:
    """Numbers are compared as numbers, and only sites that pass are filled, by every choice of a site."""
    wishes = [request(f"l{index}", 1, properties={"filter": text}) for index in range(6)]
    assert {grant.source[0] for grant in grants(Fcfs().allocate(varied(*wishes)))} == sites


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("memory_mb >= 99999", "no site passes the filter: a: memory_mb is 8192, wanted >= 99999, b: "),
        (
            "memory >= 1",
            "unknown attribute 'memory', known are: images, memory_mb, site, type (did you mean memory_mb?)",
        ),
        ("memory_mb >= ", "properties.filter: character 14: found the end, expected a number"),
    ],
)
def test_a_filter_that_nothing_passes_is_refused_in_words(text: str, words: str) -> None:
    """What each site lacks, which attributes there are, or where the filter is wrong."""
    for mapper in (Fcfs(), Backfill()):
        wish = request("l", properties={"filter": text}, latest_start=50)
        (refused,) = mapper.allocate(varied(wish))
        assert isinstance(refused, Reject)
        assert words in refused.reason


def test_a_refusal_says_which_sites_the_filter_left_out() -> None:
    """A request that would fit elsewhere without its filter learns that."""
    wish = request("l", 4, properties={"filter": "memory_mb >= 16000"})
    _, refused = Fcfs().allocate(varied(wish._replace(lease="k"), wish))
    assert isinstance(refused, Reject)
    assert refused.reason.endswith(
        "the earliest fit is at @{10} at b; the filter leaves out a: memory_mb is 8192, wanted >= 16000, "
        "c: memory_mb is 10240, wanted >= 16000"
    )


@pytest.mark.parametrize("mapper", [Fcfs, Backfill])
def test_the_filters_of_those_who_wait_are_read_once(
    mapper: type[Fcfs | Backfill], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not in every turn again, however many wait; nor by a mapper that is made to answer a question."""
    others = [request(site, 4, site=site) for site in "abc"]
    texts = [f"site != {mapper.__name__} and memory_mb != {number}" for number in range(2 * filters.KEPT_MAX)]
    wishes = [request(f"l{n}", latest_start=5, properties={"filter": text}) for n, text in enumerate(texts)]
    read: list[str] = []
    parser = filters.Parser
    monkeypatch.setattr(filters, "Parser", lambda text: read.append(text) or parser(text))
    lasting = mapper()
    for asked in (lasting, lasting, mapper()):
        assert len(list(grants(asked.allocate(varied(*others, *wishes))))) == 3
        assert sorted(read) == sorted(texts)


def test_a_filter_that_is_too_long_is_not_kept() -> None:
    """It is refused in words."""
    kept = len(filters._answers)
    (refused,) = Fcfs().allocate(varied(request("l", properties={"filter": "a" * 16_000})))
    assert isinstance(refused, Reject)
    assert "found 16000 characters, at most 4096 are allowed" in refused.reason
    assert len(filters._answers) == kept


# -- preparation -------------------------------------------------------------------------------------------------

PREPARED = {"prepare": "10ms", "image": "web"}


def test_a_site_that_has_the_image_starts_at_once() -> None:
    """Where the image must be brought first the start is later; where it is already there it isn't."""
    wish = request("l", 1, 0, 20, latest_start=100, properties=PREPARED)
    for mapper in (Fcfs(), Backfill()):
        assert list(grants(mapper.allocate(varied(wish)))) == [Grant("l", "c/vm", 1, Term(0, 20))]
        (elsewhere,) = grants(mapper.allocate(varied(wish._replace(exclude_sites=frozenset("c")))))
        assert elsewhere.term == Term(10, 30)


def test_preparation_is_reserved_before_the_term() -> None:
    """Units that are leased up to the start can't be made ready for it, and those being made ready aren't leased."""
    books = Books({"a": 1})
    books.book("a", "old", 1, 0, 100)
    ready = request("l", 1, 105, 120, latest_start=200, properties={"prepare": "10ms"})
    late = request("m", 1, 100, 110)
    decisions = Fcfs().allocate(books.cycle(ready, late))
    assert [grant.term for grant in grants(decisions)] == [Term(110, 125)]
    assert [type(decision) for decision in decisions] == [Grant, Reject]


def test_a_start_that_is_too_near_to_be_ready_is_refused() -> None:
    """It says how long making ready takes, not that there are too few units."""
    (refused,) = Fcfs().allocate(Books({"a": 1}).cycle(request("l", 1, 5, 20, properties={"prepare": "10ms"})))
    assert refused == Reject("l", "the units need 10ms to be made ready, and the latest start, @{5}, is 5ms away")
    (wrong,) = Fcfs().allocate(Books({"a": 1}).cycle(request("l", 1, 5, 20, properties={"prepare": "soon"})))
    assert isinstance(wrong, Reject)
    assert wrong.reason.startswith("properties.prepare: 'soon' is not a duration")


def test_a_grant_says_how_long_its_units_are_prepared() -> None:
    """The time before the term is in the grant."""
    wishes = [request("l", 1, 20, 30, properties={"prepare": "10ms"}), request("m", 1, 20, 30)]
    assert [grant.prepare for grant in grants(Fcfs().allocate(Books({"a": 4}).cycle(*wishes)))] == [10, 0]
