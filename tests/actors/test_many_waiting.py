"""One peer has very many requests waiting: each turn of the mapper looks at few of those that it has put off before."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from actor_bench import Bench, Mappers, Plan
from msgspec.structs import replace

from leasekit.actors.broker import broker
from leasekit.actors.broker.book import LOOKS_PER_SECOND
from leasekit.actors.broker.broker import Broker
from leasekit.actors.broker.requests import GROUP_MAX
from leasekit.core.mappers import BrokerCycle, BrokerDecision, Defer
from leasekit.core.protocol.messages import DryRun, RequestTicket, Withdraw
from leasekit.core.reasons import read
from leasekit.core.steps import Tick
from leasekit.core.time import HOUR, MINUTE, SECOND, Term
from leasekit.policies.broker.fair_share import FairShare
from leasekit.policies.broker.fcfs import Fcfs
from leasekit.policies.broker.preemption import PreemptionMapper
from leasekit.policies.broker.spot import SpotMapper
from leasekit.policies.broker.turn import StandardMapper
from leasekit.policies.broker.waiting import Backfill, Priority

FEW = 10
MANY = 10 * FEW
TERM = Term(2 * HOUR, 3 * HOUR)


class Watched:
    """A standard mapper; keeps how many requests each cycle had, those of groups too."""

    inline = True

    def __init__(self, mapper: StandardMapper, crowd: Crowd) -> None:
        self._mapper, self._crowd = mapper, crowd
        self.by_itself, self.by_bid = mapper.by_itself, getattr(mapper, "by_bid", False)

    def allocate(self, cycle: BrokerCycle) -> list[BrokerDecision]:
        """As it does."""
        self._crowd.shown.append(len(cycle.requests) + sum(map(len, cycle.groups)))
        if self._crowd.failing:
            raise RuntimeError("as it is told to")
        return self._mapper.allocate(cycle)


class Crowd(Bench):
    """All four units are leased over the term, and ``guest`` has many requests that wait for some."""

    def __init__(self, kind: Callable[[], StandardMapper], *, bids: bool = False) -> None:
        self.shown: list[int] = []
        """How many requests each turn was about."""
        self.failing = False
        super().__init__(Plan(guests=("guest", "meek")), Mappers(broker=lambda: Watched(kind(), self)))
        self.start()
        self.run_until(MINUTE)
        assert not self.command("meek", "lease.request", type="vm", units=4, term=list(TERM), name="all").error
        self.run_until(2 * MINUTE)
        for number in range(MANY):
            self.receive("broker", "guest", wanted(self, "guest", number, bid=number if bids else None))
        assert self.query("broker", "status")["waiting"] == MANY
        self.shown.clear()


@pytest.fixture(params=[Fcfs, PreemptionMapper, SpotMapper])
def bench(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Crowd:
    """A crowd of those who wait, where few are looked at again in one turn."""
    monkeypatch.setattr(broker, "AGAIN_MAX", FEW)
    return Crowd(request.param)


def wanted(bench: Bench, guest: str, number: int, bid: int | None = None) -> RequestTicket:
    """A request for a unit that can wait, but not for another term; it is preemptible if it bids."""
    properties = {"deferrable": "true", "latest_start": str(TERM.start + 1)}
    if bid is not None:
        properties |= {"preemptible": "true", "bid": str(bid)}
    tag = bench.actor(guest).keyring.tag
    return RequestTicket(f"{tag}-{900 + number}", 1, "new", "s", "vm", 1, TERM, "", properties, b"")


def test_others_do_not_wait_for_a_look_at_all_that_waits(bench: Crowd) -> None:
    """Another peer's request is decided without a look at what can't be had anyway, and so is a question."""
    later = Term(TERM.end, TERM.end + HOUR)
    bench.receive("broker", "meek", replace(wanted(bench, "meek", 1), term=later, properties={}))
    assert bench.shown == [1]
    bench.receive("broker", "meek", DryRun("meek-question", 1, "vm", 1, later, "", {}))
    assert bench.shown[1:] == [1]


def test_what_comes_free_is_had_by_those_who_wait(bench: Crowd) -> None:
    """Each is shown once more, a few in each turn, and gets what has come free. (The guest itself knows of none of
    these leases, and gives each back, so that in the end all have had their units.)
    """
    assert not bench.command("meek", "lease.close", lease="all").error
    bench.run_until(bench.now + 10 * MINUTE)
    assert bench.query("broker", "status")["waiting"] == 0
    granted = [row for row in bench.actor("broker").leases.values() if row.holder == "guest" and row.claims]
    assert len(granted) == MANY
    assert max(bench.shown) <= FEW
    looks = bench.actor("broker").queue.looks
    assert not any((looks.new, looks._put_off, looks._rests, looks._shown))


def test_each_holder_has_its_share_of_a_turn(bench: Crowd) -> None:
    """One who has many waiting is not looked at before one who has few, wherever that one is in line."""
    mine = replace(wanted(bench, "meek", 1), term=Term(TERM.start, TERM.end - 1))
    bench.receive("broker", "meek", mine)
    actor = bench.actor("broker")
    actor.book.note_news()
    cycles = turns(actor)
    first = [one.lease for one in cycles[0].requests]
    assert mine.lease in first and len(first) == FEW // 2 + 1
    shown = [one.lease for cycle in cycles for one in cycle.requests]
    assert sorted(shown) == sorted(actor.queue.leases)  # each once


def turns(actor: Broker) -> list[BrokerCycle]:
    """What its mapper is shown from now on, until there is nothing left to be looked at again."""
    found = [actor.cycles.show_news()]
    while (at := actor.queue.looks.due_at) is not None:
        assert at > actor.now or not found[-1].requests
        actor.step(Tick(at))
        found.append(actor.cycles.show_news())
    return found


def group_member(bench: Bench, number: int, count: int) -> RequestTicket:
    """One of ``guest``'s request group of so many members; its first one says how many."""
    group = {"group_id": "g", "latest_start": str(TERM.start + 1)} | ({"lease_count": str(count)} if not number else {})
    tag = bench.actor("guest").keyring.tag
    return replace(wanted(bench, "guest", number), lease=f"{tag}-{2000 + number}", properties=group)


def test_a_group_is_shown_whole(bench: Crowd) -> None:
    """What is granted together is looked at together, once all of it is there."""
    actor = bench.actor("broker")
    for number in range(3):
        assert not bench.actor("broker").queue.looks.new
        bench.receive("broker", "guest", group_member(bench, number, 3))
    assert bench.shown == [3]
    for _ in range(2):
        actor.book.note_news()
        assert [len(group) for cycle in turns(actor) for group in cycle.groups] == [3]
    actor.book.note_news()
    while not actor.cycles.show_news().groups:
        actor.step(Tick(actor.queue.looks.due_at))
    actor.cycles.failed()
    assert [len(group) for group in actor.cycles.show_news().groups] == [3]


def test_a_restart_looks_at_few_at_once(bench: Crowd) -> None:
    """What has waited before is looked at in turn, and others are decided meanwhile."""
    bench.crash("broker")
    bench.run_until(bench.now + MINUTE)
    assert sum(bench.shown) == MANY and max(bench.shown) <= FEW
    assert bench.query("broker", "status")["waiting"] == MANY


def test_what_a_failed_turn_was_about_is_shown_again(bench: Crowd) -> None:
    """Later, as the mapper has asked for nothing: it would wait until something comes free. Nothing else is shown to
    a mapper that fails.
    """
    bench.failing = True
    bench.actor("broker").book.note_news()
    later = Term(TERM.end, TERM.end + HOUR)
    bench.receive("broker", "meek", replace(wanted(bench, "meek", 1), term=later, properties={}))
    bench.run_until(bench.now + 10 * SECOND)
    assert len(bench.shown) > 2 and set(bench.shown) == {1 + FEW}
    bench.failing = False
    bench.shown.clear()
    bench.run_until(bench.now + MINUTE)
    assert sum(bench.shown) >= MANY and max(bench.shown) <= 1 + FEW


def test_who_has_many_waiting_takes_a_small_part_of_the_time(bench: Crowd) -> None:
    """What is looked at again waits the longer, the more of the same holder was; that of another does not."""
    actor = bench.actor("broker")
    for number in range(FEW):
        bench.receive("broker", "guest", group_member(bench, number, FEW))
    actor.book.note_news()
    began, cycles = actor.now, turns(actor)
    assert actor.now - began >= (MANY + FEW - FEW) * SECOND // LOOKS_PER_SECOND
    actor.book.note_news()
    actor.cycles.show_news()
    mine = replace(wanted(bench, "meek", 1), term=Term(TERM.start, TERM.end - 1))
    bench.receive("broker", "meek", mine)
    actor.book.note_news()
    assert mine.lease in [one.lease for one in actor.cycles.show_news().requests]
    assert len(cycles) >= MANY // FEW


def test_groups_have_so_many_members_at_most(bench: Crowd) -> None:
    """All of one are decided and answered at once."""
    waiting = bench.query("broker", "status")["waiting"]
    bench.receive("broker", "guest", group_member(bench, 0, GROUP_MAX + 1))
    assert bench.query("broker", "status")["waiting"] == waiting
    bench.receive("broker", "guest", group_member(bench, 0, GROUP_MAX))
    assert bench.query("broker", "status")["waiting"] == waiting + 1


@pytest.fixture
def market(monkeypatch: pytest.MonkeyPatch) -> Crowd:
    """The same crowd with bids, from 0 on in order of arrival."""
    monkeypatch.setattr(broker, "AGAIN_MAX", FEW)
    return Crowd(SpotMapper, bids=True)


def price(bench: Crowd) -> int:
    """What a unit costs."""
    last = read(bench.nodes["broker"].store.history("price")[-1].why)
    assert last is not None
    return last.units


def test_a_turn_looks_at_few_bids_and_the_price_goes_by_all(market: Crowd) -> None:
    """The highest of those that wait is the price, whoever is looked at."""
    assert price(market) == MANY - 1
    market.receive("broker", "meek", wanted(market, "meek", 1, bid=1))
    assert market.shown == [1] and price(market) == MANY - 1
    highest = f"{market.actor('guest').keyring.tag}-{900 + MANY - 1}"
    market.receive("broker", "guest", Withdraw(highest, 2, 1))
    market.receive("broker", "meek", wanted(market, "meek", 2, bid=1))
    assert price(market) == MANY - 2
    assert max(market.shown) <= FEW + 1


def test_the_highest_bids_have_what_comes_free(market: Crowd) -> None:
    """Though they came last, and are looked at once more among very many."""
    assert not market.command("meek", "lease.close", lease="all").error
    market.run_until(market.now + 10 * MINUTE)
    granted = [row.lease for row in market.nodes["broker"].store.log(0, 10_000) if row.event == "grant"][1:5]
    assert sorted(int(lease.rpartition("-")[2]) - 900 for lease in granted) == list(range(MANY - 4, MANY))
    assert market.query("broker", "status")["waiting"] == 0
    looks = market.actor("broker").queue.looks
    assert not any((looks.new, looks._put_off, looks._rests, looks._rounds, looks._bid, any(looks._bids.values())))


def test_low_bids_are_looked_at_where_things_come_free_again_and_again(market: Crowd) -> None:
    """Each has its turn before the highest are looked at once more."""
    actor, shown = market.actor("broker"), list[str]()
    for _ in range(MANY // FEW):
        actor.book.note_news()
        shown += [one.lease for one in actor.cycles.show_news().requests]
        actor.step(Tick(actor.now + SECOND))
    assert sorted(shown) == sorted(actor.queue.leases)


@pytest.mark.parametrize("kind", [Backfill, Priority, FairShare])
def test_a_line_is_of_so_many_of_each_holder(
    monkeypatch: pytest.MonkeyPatch, kind: Callable[[], StandardMapper]
) -> None:
    """Those that came first, and whatever is new: who has very many waiting makes no turn long. What is let in goes on
    as others leave.
    """
    monkeypatch.setattr(broker, "SHOWN_MAX", FEW)
    crowd = Crowd(kind)
    crowd.receive("broker", "guest", wanted(crowd, "guest", MANY))
    crowd.receive("broker", "meek", wanted(crowd, "meek", 1))
    assert crowd.shown == [FEW + 1, FEW + 1]
    assert crowd.actor("broker").queue.leases[wanted(crowd, "guest", MANY).lease].defer_reason is not None
    later = Term(TERM.end, TERM.end + HOUR)
    crowd.receive("broker", "guest", replace(wanted(crowd, "guest", MANY + 1), term=later, properties={}))
    assert crowd.query("broker", "status")["waiting"] == MANY + 2, "it does not wait behind those that came before"
    for number in range(3):
        crowd.receive("broker", "guest", group_member(crowd, number, 3))
    assert crowd.shown[-1] == FEW + 3 + 1
    assert not crowd.command("meek", "lease.close", lease="all").error
    crowd.run_until(crowd.now + 10 * MINUTE)
    assert crowd.query("broker", "status")["waiting"] == 0


class Tired:
    """A mapper that puts everything off, and wants to be shown those of ``guest`` again a minute later."""

    inline = by_itself = True

    def __init__(self) -> None:
        self.shown: list[list[str]] = []

    def allocate(self, cycle: BrokerCycle) -> list[BrokerDecision]:
        """Put all off."""
        self.shown.append([one.lease for one in cycle.requests])
        later = {"guest": cycle.now + MINUTE}
        return [Defer(one.lease, "tired", later.get(one.holder, 0)) for one in cycle.requests]


def test_what_was_not_looked_at_is_shown_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though nothing has come free, before the others of its holder, and none of these before that."""
    monkeypatch.setattr(broker, "AGAIN_MAX", FEW)
    mapper = Tired()
    bench = Bench(Plan(guests=("guest", "meek")), Mappers(broker=lambda: mapper))
    bench.start()
    for number in range(MANY):
        bench.receive("broker", "guest", wanted(bench, "guest", number))
    bench.receive("broker", "meek", wanted(bench, "meek", 1))
    mapper.shown.clear()
    bench.run_until(bench.now + MINUTE - SECOND)
    assert not mapper.shown
    bench.run_until(bench.now + 2 * SECOND)
    (again,) = mapper.shown
    assert len(again) == FEW and wanted(bench, "meek", 1).lease not in again
    bench.run_until(bench.now + 3 * MINUTE)
    assert [sorted(one) for one in mapper.shown] == [sorted(again)] * 4
