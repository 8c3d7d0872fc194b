"""The broker's mappers whose deferrable requests wait in line: backfill, priority, fair_share, and strict fcfs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from broker_cycles import FAR, Books, decayed, grants, request
from hypothesis import example, given
from hypothesis import strategies as st

from leasekit.core.mappers import BrokerCycle, BrokerDecision, Defer, Grant, GrantGroup, PendingRequest, Reject, Wake
from leasekit.core.profile import Ledger
from leasekit.core.settings import SettingsError, structure
from leasekit.core.time import Instant, Term
from leasekit.core.timetable import Timetable
from leasekit.policies.broker import waiting
from leasekit.policies.broker.fair_share import FairShare, FairShareSettings
from leasekit.policies.broker.fcfs import Fcfs, FcfsSettings
from leasekit.policies.broker.waiting import Backfill, BackfillSettings, Priority, PrioritySettings

MODES = ("easy", "conservative", "strict")


def line(*shapes: tuple[str, int, int], **changes: Any) -> list[PendingRequest]:
    """Best-effort requests (lease, units, length) that came one after the other."""
    return [
        request(lease, units, 0, length, latest_start=FAR // 2, arrived=index, **changes)
        for index, (lease, units, length) in enumerate(shapes)
    ]


def granted(decisions: Sequence[BrokerDecision]) -> list[str]:
    return [grant.lease for grant in grants(decisions)]


def backfill(**settings: Any) -> Backfill:
    return Backfill(BackfillSettings(**settings))


def busy(units: int = 10, taken: int = 6, until: Instant = 100) -> Books:
    """One site, of which some units are leased for a while."""
    books = Books({"a": units})
    books.book("a", "old", taken, 0, until)
    return books


def waits(*wishes: PendingRequest, **settings: Any) -> list[str]:
    """What each of them is told, all of which wait for four of ten units that are leased up to 100."""
    decisions = backfill(**settings).allocate(busy().cycle(*wishes))
    return [decision.reason for decision in decisions if isinstance(decision, Defer)]


# -- what is told ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_who_waits_is_told_when_it_would_fit(mode: Any) -> None:
    """And how many others wait: it isn't one of them itself. After its latest start it is told that, too."""
    (alone,) = waits(*line(("l", 5, 50)), mode=mode)
    assert "4 free at a; " in alone
    assert "the earliest fit is at @{100} at a" in alone or "its place is at @{100}" in alone
    assert "others wait" not in alone or "no others wait" in alone
    (late,) = waits(line(("l", 5, 50))[0]._replace(latest_start=60), mode=mode)
    assert "nothing up to its latest start, @{60}; the earliest fit is at @{100} at a" in late
    two = waits(*line(("l", 5, 50), ("m", 6, 50)), mode="strict")
    assert len(two) == 2 and all("; 1 other waits, it may start" in told for told in two)


# -- who may overtake --------------------------------------------------------------------------------------------

WISHES = (("big", 8, 50), ("short", 4, 100), ("long", 2, 300), ("wide", 4, 200))


@pytest.mark.parametrize(
    ("mode", "started"),
    [("strict", []), ("easy", ["short"]), ("conservative", ["short"])],
)
def test_who_may_start_before_the_first_in_line(mode: Any, started: list[str]) -> None:
    """The first can't start; one that is done before the first's place may, nobody may where order is strict."""
    assert granted(backfill(mode=mode).allocate(busy().cycle(*line(*WISHES)))) == started


def test_a_long_one_starts_beside_the_place_of_the_first() -> None:
    """What the first leaves over when it starts can be used beyond that by one that comes later."""
    wishes = line(("big", 8, 50), ("wide", 4, 200), ("narrow", 2, 300))
    assert granted(backfill().allocate(busy().cycle(*wishes))) == ["narrow"]


def test_easy_may_delay_the_second_and_conservative_may_not() -> None:
    """Only the first holds a place with easy; with conservative the second does as well."""
    wishes = line(("first", 8, 50), ("second", 10, 50), ("third", 2, 160))
    assert granted(backfill(mode="easy").allocate(busy().cycle(*wishes))) == ["third"]
    assert granted(backfill(mode="conservative").allocate(busy().cycle(*wishes))) == []
    assert granted(backfill(mode="conservative", depth=1).allocate(busy().cycle(*wishes))) == ["third"]


def test_each_site_keeps_a_place() -> None:
    """One that can go to a single site only isn't overtaken for good by those that the other's place doesn't bind."""
    books = Books({"a": 4, "b": 4})
    for site in ("a", "b"):
        books.book(site, "old", 2, 0, 100)
    wishes = [*line(("at-a", 4, 10), ("at-b", 4, 10), ("long-b", 2, 300), ("short-b", 2, 100))]
    wishes[0] = wishes[0]._replace(site="a")
    wishes[1:] = [wish._replace(site="b") for wish in wishes[1:]]
    assert granted(backfill().allocate(books.cycle(*wishes))) == ["short-b"]


def test_what_waits_is_told_why_and_asks_to_be_called() -> None:
    """Who has just joined the line learns what is free, and the mapper wakes when more will be."""
    decisions = backfill().allocate(busy().cycle(*line(("big", 8, 50))))
    assert decisions[-1] == Wake(100)
    (deferred,) = [decision for decision in decisions if isinstance(decision, Defer)]
    assert deferred.reason.startswith(
        "insufficient resources: 8 units of 'vm' wanted over [@{0}, @{50}), 4 free at a; "
    )


def test_the_mapper_wakes_before_a_reservation_takes_units_away() -> None:
    """Behind a reservation more may get free without there ever being more than now: it isn't slept through."""
    books = Books({"a": 4})
    books.book("a", "ahead", 2, 50, 60)
    mapper, wishes = backfill(), line(("l", 4, 55))
    starts = []
    now = 0
    while not starts:
        decisions = mapper.allocate(books.cycle(*wishes)._replace(now=now))
        starts = [grant.term.start for grant in grants(decisions)]
        now = next((decision.at for decision in decisions if isinstance(decision, Wake)), now)
    assert starts == [60]


def test_what_can_never_start_is_refused_at_once() -> None:
    """A request beyond all sites doesn't stand in line."""
    (refused,) = backfill().allocate(busy().cycle(*line(("huge", 11, 50))))
    assert isinstance(refused, Reject)
    assert refused.reason == "11 units of 'vm' are more than any site here has, which is 10 at most"


def test_one_whose_window_closes_too_soon_keeps_no_place() -> None:
    """The first that can't start by its latest start doesn't hold up those behind it."""
    wishes = [request("late", 10, 0, 50, latest_start=99), *line(("long", 4, 300))]
    assert granted(backfill().allocate(busy().cycle(*wishes))) == ["long"]


# -- beside the line ---------------------------------------------------------------------------------------------


def test_a_reservation_is_booked_before_the_line_until_patience_is_over() -> None:
    """A fixed term may push the first in line back, but not for ever."""
    wishes = [*line(("big", 10, 50)), request("fixed", 10, 110, 120, arrived=7)]
    for now, patience, expected in ((0, 50, ["fixed"]), (60, 61, ["fixed"]), (60, 60, [])):
        cycle = busy().cycle(*wishes)._replace(now=now)
        assert granted(backfill(patience=patience).allocate(cycle)) == expected


def test_a_higher_class_in_line_goes_before_a_reservation() -> None:
    """Class counts more than that a fixed term can't wait."""
    wishes = [*line(("big", 10, 50), priority=1), request("fixed", 10, 110, 120, arrived=7)]
    assert granted(backfill().allocate(busy().cycle(*wishes))) == []


def test_a_window_that_opens_later_is_booked_at_once() -> None:
    """Who asks for a window to come gets the earliest fit in it, as a reservation; groups are booked as well."""
    books = busy()
    books.book("a", "ahead", 6, 200, 230)
    window = request("window", 5, 200, 220, latest_start=400)
    group = (request("g0", 2, 0, 10, group="g", latest_start=50), request("g1", 2, 0, 10, group="g", latest_start=50))
    decisions = backfill().allocate(books.cycle(window, groups=[group]))
    assert Grant("window", "a/vm", 5, Term(230, 250)) in decisions
    assert any(isinstance(decision, GrantGroup) for decision in decisions)


def test_a_full_window_to_come_is_looked_at_again() -> None:
    """A reservation that was deferred is granted when its window gets free."""
    books = Books({"a": 4})
    books.book("a", "x", 4, 100, 200)
    window, mapper = request("window", 1, 100, 110, latest_start=150), backfill()
    assert [type(decision) for decision in mapper.allocate(books.cycle(window))] == [Defer]
    books.tables["a"].release("x#1")
    assert granted(mapper.allocate(books.cycle(window))) == ["window"]


# -- order -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("arrival", ["vip", "a", "b", "c"]),
        ("shortest", ["vip", "b", "a", "c"]),
        ("smallest", ["vip", "c", "b", "a"]),
        ("largest", ["vip", "a", "b", "c"]),
    ],
)
def test_priority_is_by_class_and_then_by_the_setting(order: Any, expected: list[str]) -> None:
    """A higher class starts first whenever it came; within a class the setting decides."""
    wishes = [*line(("a", 3, 20), ("b", 2, 10), ("c", 1, 30)), request("vip", latest_start=99, arrived=9, priority=1)]
    mapper = Priority(PrioritySettings(order=order))
    assert granted(mapper.allocate(Books({"a": 10}).cycle(*wishes))) == expected


def test_aging_lifts_who_has_waited() -> None:
    """After two spans of aging a request goes before one of the next class that has just come."""
    wishes = [
        request("old", 1, 0, 10, latest_start=FAR, arrived=0),
        request("vip", 1, 0, 10, latest_start=FAR, arrived=200, priority=1),
    ]
    for aging, first in ((100, "old"), (300, "vip"), (0, "vip")):
        cycle = Books({"a": 1}).cycle(*wishes)._replace(now=200)
        assert granted(Priority(PrioritySettings(aging=aging)).allocate(cycle)) == [first]
    with pytest.raises(SettingsError, match="aging: goes with order = 'arrival', not 'shortest'"):
        structure(PrioritySettings, {"aging": "1h", "order": "shortest"}, "mapper")


def test_fair_share_serves_who_has_had_least_for_the_weight() -> None:
    """Equal requests of two holders start in turn; one of double weight gets two for one."""
    wishes = [
        request(f"{holder}{index}", 1, 0, 10, latest_start=FAR, arrived=index, holder=holder)
        for holder in ("x", "y")
        for index in range(4)
    ]
    cycle = Books({"a": 6}).cycle(*wishes)
    assert granted(FairShare().allocate(cycle)) == ["x0", "y0", "x1", "y1", "x2", "y2"]
    weighted = FairShare(FairShareSettings(weights={"y": 2.0}))
    cycle = Books({"a": 6}).cycle(*wishes)
    assert sorted(granted(weighted.allocate(cycle))) == ["x0", "x1", "y0", "y1", "y2", "y3"]


def test_fair_share_forgets_by_halves() -> None:
    """What was used a half-life ago counts half of what it counted, and what is to come counts in full."""
    ledger = Ledger()
    ledger.add("x", "vm", 4, Term(0, 10))
    one = decayed(ledger, "x", "vm", 10, 1000)
    assert decayed(ledger, "x", "vm", 1010, 1000) == pytest.approx(one / 2)
    assert decayed(ledger, "x", "vm", 0, 1000) == 40


def test_fair_share_goes_by_the_usage_that_the_cycle_shows() -> None:
    """The broker's account of holders decides, also in a mapper that has just been made."""
    wishes = [request(f"{name}0", 1, 0, 10, latest_start=FAR, holder=name) for name in ("x", "y")]
    books = Books({"a": 1})
    assert granted(FairShare().allocate(books.cycle(*wishes))) == ["x0"]
    books.usage.add("x", "vm", 5, Term(0, 1000))
    assert granted(FairShare().allocate(books.cycle(*wishes))) == ["y0"]


# -- against a plain model ---------------------------------------------------------------------------------------


def plainly(books: Books, wishes: Sequence[PendingRequest], now: Instant, mode: str, depth: int) -> dict[str, Grant]:
    """Who starts now, by trying one request after the other: slow, and too simple to be wrong."""
    tables = {site: table.copy() for site, table in books.tables.items()}
    taken: set[str] = set()
    started: dict[str, Grant] = {}
    for wish in sorted(wishes, key=lambda each: (-each.priority, each.arrived)):
        length, sites = wish.term.length, [s for s in books.units if not wish.site or s == wish.site]
        term = Term(now, now + length)
        able = [s for s in sites if free(tables[s], term, books.term) >= wish.min_units]
        if able and wish.latest_start >= now:
            best = max(able, key=lambda s: (free(tables[s], term, books.term), -list(books.units).index(s)))
            units = min(wish.units, free(tables[best], term, books.term))
            tables[best].reserve(wish.lease, units, term)
            started[wish.lease] = Grant(wish.lease, f"{best}/vm", units, term)
            continue
        if mode == "strict":
            break
        if (mode == "easy" and taken.intersection(sites)) or (mode == "conservative" and depth <= 0):
            continue
        depth -= 1
        fits = [(at, s) for s in sites if (at := first(tables[s], wish, now, books.term)) is not None]
        if fits:
            at = min(start for start, _ in fits)
            there = [s for s in sites if free(tables[s], Term(at, at + length), books.term) >= wish.min_units]
            best = max(there, key=lambda s: free(tables[s], Term(at, at + length), books.term))
            units = min(wish.units, free(tables[best], Term(at, at + length), books.term))
            tables[best].reserve(wish.lease, units, Term(at, at + length))
            taken.add(best)
    return started


def free(table: Timetable, term: Term, span: Term) -> int:
    return max(0, table.available(term)) if span.contains(term) else 0


def first(table: Timetable, wish: PendingRequest, now: Instant, span: Term) -> Instant | None:
    last = min(wish.latest_start, span.end - wish.term.length)
    return table.earliest(wish.min_units, wish.term.length, now, last) if last >= now else None


SPAN = 120


@st.composite
def crowds(draw: st.DrawFn) -> tuple[Books, list[PendingRequest]]:
    """Up to three sites with leases on them, now and to come, and up to twelve requests that wait."""
    books = Books({site: draw(st.integers(1, 6)) for site in "abc"[: draw(st.integers(1, 3))]}, end=SPAN)
    for index in range(draw(st.integers(0, 6))):
        site, start = draw(st.sampled_from(sorted(books.units))), draw(st.sampled_from((0, 0, 7, 20)))
        term = Term(start, start + draw(st.integers(1, 30)))
        if (left := books.tables[site].available(term)) > 0:
            books.book(site, f"old{index}", draw(st.integers(1, left)), *term)
    most = max(books.units.values())
    wishes = []
    for index in range(draw(st.integers(0, 12))):
        units = draw(st.integers(1, most))
        sites = [site for site in books.units if books.units[site] >= units]
        wishes.append(
            request(
                f"l{index}",
                units,
                0,
                draw(st.sampled_from((2, 5, 9, 25))),
                arrived=index,
                min_units=draw(st.one_of(st.just(units), st.integers(1, units))),
                priority=draw(st.integers(0, 1)),
                latest_start=draw(st.sampled_from((1, 8, 30, 90))),
                site=draw(st.sampled_from(("", *sites))),
            )
        )
    return books, wishes


@given(crowds(), st.sampled_from(MODES), st.integers(1, 4))
def test_buckets_decide_as_one_by_one(crowd: tuple[Books, list[PendingRequest]], mode: Any, depth: int) -> None:
    """However the line is sorted, those start that would if each were tried in order, and at the same sites."""
    books, wishes = crowd
    decisions = backfill(mode=mode, depth=depth, balance="worst_fit").allocate(books.cycle(*wishes))
    assert {grant.lease: grant for grant in grants(decisions)} == plainly(books, wishes, 0, mode, depth)


MAPPERS: dict[str, Callable[[], Any]] = {
    "easy": backfill,
    "conservative": lambda: backfill(mode="conservative", depth=3),
    "strict": lambda: Fcfs(FcfsSettings(backfill=False)),
    "priority": lambda: Priority(PrioritySettings(aging=30)),
    "shortest": lambda: Priority(PrioritySettings(order="shortest")),
}


def lived(mapper: Callable[[], Any], books: Books, wishes: Sequence[PendingRequest]) -> Iterator[tuple[Instant, Grant]]:
    """Lead requests through turns, as a broker does, each checked against the book; ``mapper`` makes or keeps one."""
    waits: dict[str, PendingRequest] = {}
    coming = sorted(wishes, key=lambda each: each.arrived)
    instants = {each.arrived for each in coming}
    while instants:
        now = min(instants)
        instants.discard(now)
        while coming and coming[0].arrived <= now:
            arrived = coming.pop(0)
            waits[arrived.lease] = arrived
        for lease, wish in list(waits.items()):
            if wish.latest_start < now:
                del waits[lease]
            elif wish.term.start < now:
                waits[lease] = wish._replace(term=Term(now, now + wish.term.length))
        if not waits:
            continue
        for decision in mapper().allocate(books.cycle(*waits.values())._replace(now=now)):
            if isinstance(decision, Wake):
                assert decision.at > now
                instants.add(decision.at)
            elif isinstance(decision, Grant):
                wish = waits.pop(decision.lease)
                assert wish.term.start <= decision.term.start <= wish.latest_start
                assert wish.min_units <= decision.units <= wish.units
                assert decision.term.length == wish.term.length
                books.tables[decision.source.removesuffix("/vm")].reserve(decision.lease, decision.units, decision.term)
                yield now, decision
            elif isinstance(decision, Reject):
                del waits[decision.lease]


@st.composite
def days(draw: st.DrawFn) -> list[PendingRequest]:
    """Up to 25 requests that come over time: best effort, for now, and ahead."""
    wishes = []
    for index in range(draw(st.integers(0, 25))):
        arrived = draw(st.integers(0, 60))
        ahead = draw(st.sampled_from((0, 0, 0, 15)))
        start = arrived + ahead
        wishes.append(
            request(
                f"l{index}",
                draw(st.integers(1, 5)),
                start,
                start + draw(st.integers(1, 20)),
                arrived=arrived,
                latest_start=start + draw(st.sampled_from((0, 20, 500, 500))),
                priority=draw(st.sampled_from((0, 0, 2))),
            )
        )
    return wishes


def at_its_last() -> list[PendingRequest]:
    """All is out up to 10; behind a large request waits one that must start then."""
    now = [request("all of a", 5, 0, 10, latest_start=0), request("all of b", 3, 0, 20, latest_start=0)]
    return [
        *now,
        request("large", 5, 1, 11, arrived=1, latest_start=500),
        request("last", 1, 2, 4, arrived=2, latest_start=10),
    ]


@example(at_its_last(), "easy")
@example(at_its_last(), "priority")
@given(days(), st.sampled_from(sorted(MAPPERS)))
def test_what_is_kept_from_turn_to_turn_decides_nothing(wishes: list[PendingRequest], name: str) -> None:
    """A mapper that is made anew for each turn, as after a restart, grants the same at the same instants."""
    kept = MAPPERS[name]()
    with_memory = list(lived(lambda: kept, Books({"a": 5, "b": 3}), wishes))
    without = list(lived(MAPPERS[name], Books({"a": 5, "b": 3}), wishes))
    assert with_memory == without


@given(days(), st.sampled_from(sorted(MAPPERS)))
def test_nobody_waits_for_ever(wishes: list[PendingRequest], name: str) -> None:
    """Every best-effort request with time enough starts in the end, and only by the calls that the mapper asked for."""
    mapper = MAPPERS[name]()
    started = {grant.lease for _, grant in lived(lambda: mapper, Books({"a": 5, "b": 3}), wishes)}
    assert {wish.lease for wish in wishes if wish.latest_start - wish.term.start == 500} <= started


@given(days(), st.data())
def test_a_line_that_changed_behind_its_back_is_read_anew(wishes: list[PendingRequest], data: st.DataObject) -> None:
    """Requests that were withdrawn, or grants that weren't carried out, leave a mapper deciding as a new one would."""
    kept, books, now = backfill(), Books({"a": 3}), 70
    shown = [wish._replace(term=Term(now, now + wish.term.length), latest_start=600) for wish in wishes]
    shown.sort(key=lambda each: each.arrived)
    kept.allocate(books.cycle(*shown)._replace(now=now))
    left = [wish for wish in shown if data.draw(st.booleans())]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(waiting, "READ_ANEW", 1)
        again = kept.allocate(books.cycle(*left)._replace(now=now))
    assert again == backfill().allocate(books.cycle(*left)._replace(now=now))


def test_a_deep_line_costs_a_turn_little() -> None:
    """With 20,000 waiting on a full site, a turn looks at those that have just come, and at nobody else."""
    books = Books({"a": 4}, end=10**9)
    books.book("a", "old", 4, 0, 10**8)
    wishes = line(*((f"l{index}", 1 + index % 4, 10 + index % 7) for index in range(20_000)))
    seen = Counted(wishes)
    mapper = backfill()
    mapper.allocate(books.cycle()._replace(requests=seen))
    seen.looks = 0
    seen.items.append(request("last", 1, 0, 5, latest_start=FAR // 2, arrived=30_000))
    mapper.allocate(books.cycle()._replace(requests=seen))
    assert seen.looks <= 3


class Counted(Sequence[PendingRequest]):
    """Requests that count how often one was looked at."""

    def __init__(self, items: list[PendingRequest]) -> None:
        self.items = items
        self.looks = 0

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: Any) -> Any:
        self.looks += 1
        return self.items[index]


def test_cycles_of_the_interface_are_enough() -> None:
    """A cycle without requests, sources or anything is survived by each mapper."""
    for make in (*MAPPERS.values(), FairShare):
        assert make().allocate(BrokerCycle(0, (), (), lambda type_: ())) == []
