"""Which host takes a request, and who leaves it: as trying everything says, and the cases that go wrong elsewhere."""

from __future__ import annotations

import math
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from preempting_clusters import COSTS, NOW, SIZES, LargestCost, best, cluster, key, lease

from leasekit.core.time import HOUR, MINUTE
from leasekit.policies.preempting import index as indexes
from leasekit.policies.preempting import victims as choosing
from leasekit.policies.preempting.costs import CostError, CountCost, PeriodCost, PriorityCost
from leasekit.policies.preempting.hosts import HostedLease, HostRequest, LoadedHost
from leasekit.policies.preempting.index import HostIndex
from leasekit.policies.preempting.rules import WEIGHERS, PlacingRules, WeigherError
from leasekit.policies.preempting.selection import filter_and_weigh, retry, select
from leasekit.policies.preempting.victims import choose_victims, minimal_sets

MEDIUM = (2, 4000)
PLAIN = PlacingRules()


def running(name: str, minutes: int, needs: tuple[int, ...] = MEDIUM, **others: Any) -> HostedLease:
    """A preemptible lease that has run for so long."""
    return HostedLease(name, needs, NOW - minutes * MINUTE, **({"preemptible": True} | others))


def host(name: str, *leases: HostedLease, capacity: tuple[int, ...] = (8, 16_000), **others: Any) -> LoadedHost:
    """A host with leases."""
    return LoadedHost(id=name, capacity=capacity, leases=leases, **others)


def chosen(hosts: list[LoadedHost], request: HostRequest, rules: PlacingRules = PLAIN) -> tuple[str, list[str]] | None:
    """The host and the victims; the index and the retry scheduler say the same as one pass."""
    one = select(hosts, request, rules, NOW)
    assert key(HostIndex(hosts, rules).select(request, NOW)) == key(one) == key(retry(hosts, request, rules, NOW))
    return None if one is None else (one.host.id, [victim.id for victim in one.victims])


@pytest.mark.parametrize("table_max", [0, 2, 8], ids=["searched", "both", "table"])
@pytest.mark.parametrize("cost", COSTS)
@pytest.mark.parametrize("clusters", [20, pytest.param(100, marks=pytest.mark.soak)])
def test_the_choice_is_that_of_trying_everything(
    clusters: int, cost: Any, table_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """2,520 decisions on 420 full clusters (a soak: 12,600 on 2,100 others), by table and by search, while time goes on
    and leases come, go and are put on hosts: host, victims and cost are the best, and proven.
    """
    monkeypatch.setattr(choosing, "TABLE_MAX", table_max)
    monkeypatch.setattr(indexes, "TABLE_MAX", table_max)
    rng = Random(f"{cost.__name__} {table_max}" + f" {clusters}" * (clusters != 20))
    for _ in range(clusters):
        now, rules = NOW, PlacingRules(cost=cost())
        index = HostIndex(cluster(rng, rng.randint(1, 6)), rules)
        for number in range(6):
            needs = rng.choice([*SIZES, (2, 9000, 10), (8, 16_000, 0)])
            request = HostRequest(needs, rng.random() < 0.15, rng.choice((None, 0, 1)))
            hosts = list(index.hosts.values())
            one, expected = index.select(request, now), best(hosts, request, rules.cost, now)
            assert key(one) == key(select(hosts, request, rules, now)) == expected
            assert one is None or one.proven
            if one is not None and rng.random() < 0.7:
                index.put(one.host.exchanged(one.victims, lease(rng, f"N{number}", needs, now)))
            now += rng.choice((0, 1, MINUTE, 17 * MINUTE, HOUR, 12_345))


def test_many_leases_on_a_host_are_searched_exactly() -> None:
    """13 leases of three resources each: the search finds what trying all 8,192 sets does."""
    rng = Random(13)
    for cost in (PeriodCost(), CountCost(), LargestCost()):
        for _ in range(6):
            leases = [
                running(f"v{n:02}", rng.randrange(600), tuple(rng.randint(1, 20) for _ in "abc")) for n in range(13)
            ]
            missing = tuple(int(sum(one.needs[which] for one in leases) * rng.uniform(0.1, 0.6)) for which in range(3))
            full = host("h", *leases, capacity=tuple(sum(one.needs[which] for one in leases) for which in range(3)))
            found = choose_victims(leases, missing, cost, NOW)
            assert found is not None and found.proven
            expected = best([full], HostRequest(missing), cost, NOW)
            assert expected == (True, found.cost, len(found.leases), "h", tuple(one.id for one in found.leases))


def test_a_search_that_is_given_up_says_what_is_proven() -> None:
    """With one node: victims that make room, not proven, and a bound that the best victims keep."""
    rng = Random(1)
    leases = [running(f"v{n:02}", rng.randrange(600), tuple(rng.randint(1, 20) for _ in "abc")) for n in range(40)]
    missing = (120, 130, 140)
    quick, exact = (choose_victims(leases, missing, PeriodCost(), NOW, nodes) for nodes in (1, 50_000))
    assert quick is not None and exact is not None and exact.proven and not quick.proven
    assert quick.bound <= exact.cost <= quick.cost
    assert all(sum(one.needs[which] for one in quick.leases) >= missing[which] for which in range(3))
    full = host("h", *leases, capacity=tuple(sum(one.needs[which] for one in leases) for which in range(3)))
    rules = PlacingRules(nodes_max=1)
    one = HostIndex([full], rules).select(HostRequest(missing), NOW)
    assert one is not None and not one.proven and one.bound == quick.bound


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=6),
    st.tuples(st.integers(0, 20), st.integers(0, 20)),
)
def test_sets_of_victims_are_enough_and_none_is_too_large(
    needs: list[tuple[int, int]], missing: tuple[int, int]
) -> None:
    """Each set makes room, and doesn't without any one of its victims; whatever makes room has one of them in it."""
    found = minimal_sets(tuple(needs), missing)

    def enough(chosen: tuple[int, ...]) -> bool:
        return all(sum(needs[each][which] for each in chosen) >= missing[which] for which in (0, 1))

    for one in found:
        assert enough(one) and not any(enough(tuple(each for each in one if each != left)) for left in one)
    for mask in range(1 << len(needs)):
        some = tuple(each for each in range(len(needs)) if mask >> each & 1)
        assert enough(some) == any(set(one) <= set(some) for one in found)


# -- cases that go wrong elsewhere -------------------------------------------------------------------------------------


def test_exactly_enough_is_enough() -> None:
    """Of what is free, and of what a victim leaves."""
    full = host("a", running("p", 61, (2, 4000)), capacity=(2, 4000))
    assert chosen([full], HostRequest((2, 4000))) == ("a", ["p"])
    assert chosen([host("a", capacity=(2, 4000))], HostRequest((2, 4000))) == ("a", [])


def test_every_resource_must_be_enough() -> None:
    """CPUs alone make no room: memory is missing as well, so the dearer victim goes."""
    full = host("a", running("cheap", 61, (4, 1000)), running("dear", 90, (4, 15_000)))
    assert chosen([full], HostRequest((2, 4000))) == ("a", ["dear"])


def test_a_whole_period_costs_nothing_but_room_is_better() -> None:
    """After 120 minutes a victim is free of charge; where there is room on another host nobody leaves all the same."""
    full, empty = host("a", running("p", 120, (8, 16_000))), host("b")
    one = select([full], HostRequest(MEDIUM), PLAIN, NOW)
    assert one is not None and one.cost == 0 and [victim.id for victim in one.victims] == ["p"]
    assert chosen([full, empty], HostRequest(MEDIUM)) == ("b", [])


def test_a_batch_names_no_victim_twice() -> None:
    """Two on one host have two victims; three have none, and nothing has changed."""
    index = HostIndex([host("a", running("p", 61), running("q", 62), capacity=(4, 8000))], PLAIN)
    request, before = HostRequest(MEDIUM), dict(index.hosts)
    new = [HostedLease(f"n{number}", MEDIUM, NOW) for number in range(3)]
    assert len(index.place(request, new, NOW)) == 2 and dict(index.hosts) == before
    placed = index.place(request, new[:2], NOW)
    assert [one.victims[0].id for one in placed] == ["p", "q"]
    assert [one.id for one in index.hosts["a"].leases] == ["n0", "n1"]
    assert index.select(request, NOW) is None


def test_what_no_host_can_hold_kills_nobody() -> None:
    """Larger than any host, or split over two."""
    hosts = [host("a", running("p", 61, (7, 4000))), host("b", running("q", 61, (7, 4000)))]
    assert chosen(hosts, HostRequest((9, 1000))) is None
    kept = [host(name, running(name, 61, (7, 4000), preemptible=False)) for name in "ab"]
    assert chosen(kept, HostRequest((2, 1000))) is None


def test_a_preemptible_request_preempts_nobody() -> None:
    """It takes what is free, as it is."""
    full = host("a", running("p", 61, (8, 16_000)))
    assert chosen([full], HostRequest(MEDIUM, preemptible=True)) is None
    assert chosen([full, host("b")], HostRequest(MEDIUM, preemptible=True)) == ("b", [])


def test_higher_classes_and_young_leases_stay() -> None:
    """A request preempts its own class or lower, and nobody within `min_run`."""
    full = host("a", running("high", 60, priority=1), running("low", 90), running("young", 60, min_run=2 * HOUR))
    full = LoadedHost(id="a", capacity=(6, 12_000), leases=full.leases)
    assert chosen([full], HostRequest(MEDIUM, priority=0)) == ("a", ["low"])
    assert chosen([full], HostRequest(MEDIUM, priority=1)) == ("a", ["high"])
    assert chosen([full], HostRequest((4, 8000), priority=0)) is None
    index = HostIndex([full], PLAIN)
    assert index.select(HostRequest((4, 8000), priority=0), NOW) is None
    later = index.select(HostRequest((4, 8000), priority=0), NOW + HOUR)
    assert later is not None and [one.id for one in later.victims] == ["low", "young"]


def test_victims_of_a_high_class_are_the_last_ones() -> None:
    """Two of class 0 go before one of class 1."""
    full = host("a", running("p", 1, (4, 8000), priority=1), running("q", 1), running("r", 1))
    assert chosen([full], HostRequest((4, 8000)), PlacingRules(cost=PriorityCost())) == ("a", ["q", "r"])


def test_a_host_that_goes_is_forgotten() -> None:
    """As is what was known of its leases."""
    index = HostIndex([host("a"), host("b")], PLAIN)
    assert key(index.select(HostRequest(MEDIUM), NOW)) == (False, 0, 0, "a", ())
    for _ in range(2):  # also if it is not there any more
        index.discard("a")
        assert key(index.select(HostRequest(MEDIUM), NOW)) == (False, 0, 0, "b", ())


# -- plug-ins ----------------------------------------------------------------------------------------------------------


class Bad:
    """A cost plug-in that returns what it was given."""

    def __init__(self, found: Any) -> None:
        self.found = found

    def cost(self, one: HostedLease, now: int) -> Any:
        """What it was given; raised, if it is an error."""
        if isinstance(self.found, Exception):
            raise self.found
        return self.found


class BadSet(Bad):
    """The same for several leases."""

    def set_cost(self, leases: Any, now: int) -> Any:
        """As for one."""
        return self.cost(leases, now)


class Falling(PeriodCost):
    """A cost that falls."""

    def trend(self, one: HostedLease, now: int) -> tuple[int, int, int]:
        """Not allowed."""
        return 1, -1, NOW + 1


@pytest.mark.parametrize(
    ("plugin", "message"),
    [
        (Bad(math.nan), "cost Bad of lease p: found nan, expected a number of at least 0"),
        (Bad(-1), "cost Bad of lease p: found -1, expected a number of at least 0"),
        (Bad(None), "cost Bad of lease p: found None, expected a number of at least 0"),
        (Bad(KeyError("x")), "cost Bad of lease p: found KeyError: 'x', expected a number of at least 0"),
        (BadSet(math.inf), "cost BadSet of leases p: found inf, expected a number of at least 0"),
        (
            BadSet(ValueError("no")),
            "cost BadSet of several leases: found ValueError: no, expected a number of at least 0",
        ),
        (
            Falling(),
            f"cost Falling of lease p: found 1, rising by -1 until {NOW + 1}, expected a number of at least 0",
        ),
    ],
)
def test_a_cost_that_is_none_is_one_message(plugin: Any, message: str) -> None:
    """Which plug-in, for which lease, what it returned."""
    with pytest.raises(CostError) as error:
        HostIndex([host("a", running("p", 61, (8, 16_000)))], PlacingRules(cost=plugin)).select(
            HostRequest(MEDIUM), NOW
        )
    assert str(error.value) == message


def test_a_cost_that_goes_wrong_once_leaves_the_index_whole() -> None:
    """All hosts are looked at when it is right again."""

    class Once(PeriodCost):
        """Wrong for one lease, as long as it is."""

        wrong = True

        def trend(self, one: HostedLease, now: int) -> tuple[int, int, int]:
            """As it should be, or an error."""
            if self.wrong and one.id == "q":
                raise OSError("not now")
            return super().trend(one, now)

    cost = Once()
    index = HostIndex([host(name, running(name, 61, (8, 16_000))) for name in "pqr"], PlacingRules(cost=cost))
    with pytest.raises(CostError, match="lease q: found OSError: not now"):
        index.select(HostRequest(MEDIUM), NOW)
    cost.wrong = False
    assert key(index.select(HostRequest(MEDIUM, apart=frozenset("pr")), NOW)) == (True, MINUTE, 1, "q", ("q",))
    assert key(index.select(HostRequest(MEDIUM, apart=frozenset("qr")), NOW)) == (True, MINUTE, 1, "p", ("p",))


def test_filters_leave_hosts_out() -> None:
    """Attributes, affinity and anti-affinity; a host that is left out is not touched, however cheap."""
    cheap = host("a", running("p", 61, (8, 16_000)), attributes={"rack": "1"})
    dear = host("b", running("q", 119, (8, 16_000)), attributes={"rack": "2"})
    hosts = [cheap, dear]
    assert chosen(hosts, HostRequest(MEDIUM)) == ("a", ["p"])
    assert chosen(hosts, HostRequest(MEDIUM, filter="rack = '2'")) == ("b", ["q"])
    assert chosen(hosts, HostRequest(MEDIUM, near=frozenset({"q", "z"}))) == ("b", ["q"])
    assert chosen(hosts, HostRequest(MEDIUM, apart=frozenset({"p"}))) == ("b", ["q"])
    assert chosen(hosts, HostRequest(MEDIUM, apart=frozenset({"p"}), filter="rack = '1'")) is None


@pytest.mark.parametrize(
    ("weigher", "expected"), [("spread", "c"), ("pack", "b"), ("free_time", "a"), ("flops_per_watt", "b")]
)
def test_weighers_decide_between_equals(weigher: str, expected: str) -> None:
    """Hosts with room, and hosts whose victims cost the same."""
    watts = {"gflops": "10", "watts": "5"}
    hosts = [
        host("a", running("p", 60, (2, 4000))),
        host("b", running("q", 60, (4, 8000)), attributes=watts, reserved_from=NOW + HOUR),
        host("c", reserved_from=NOW),
    ]
    rules = PlacingRules(weighers=[(WEIGHERS[weigher], 1.0)])
    assert chosen(hosts, HostRequest(MEDIUM), rules) == (expected, [])
    full = [
        host(one.id, running(one.id, 60, (8, 16_000)), attributes=one.attributes, reserved_from=one.reserved_from)
        for one in hosts
    ]
    full += [host("z", running("z", 61, (8, 16_000)), attributes={"gflops": "99", "watts": "1"})]
    first = expected if weigher in ("free_time", "flops_per_watt") else "a"
    assert chosen(full, HostRequest(MEDIUM), rules) == (first, [first])


def test_weights_are_normalised() -> None:
    """Two weighers count alike, however large their numbers are: what one has of 10^9 is no more than the other's 1."""
    large = {"a": 0, "b": 10**9, "c": 6 * 10**8}
    small = {"a": 1.0, "b": 0.0, "c": 0.9}
    weighers = [(lambda one, _: large[one.id], 1.0), (lambda one, _: small[one.id], 1.0)]
    assert chosen([host(name) for name in "abc"], HostRequest(MEDIUM), PlacingRules(weighers=weighers)) == ("c", [])
    bad = PlacingRules(weighers=[(lambda one, _: math.nan, 1.0)])
    with pytest.raises(WeigherError, match="weigher <lambda> of host a: found nan, expected a finite number"):
        select([host("a"), host("b")], HostRequest(MEDIUM), bad, NOW)


def test_the_unmodified_scheduler_kills_nobody() -> None:
    """It has the heaviest host with room, or none."""
    hosts = [host("a", running("p", 61, (8, 16_000))), host("b", running("q", 1)), host("c")]
    rules = PlacingRules(weighers=[(WEIGHERS["pack"], 1.0)])
    one = filter_and_weigh(hosts, HostRequest(MEDIUM), rules)
    assert one is not None and one.host.id == "b"
    assert filter_and_weigh(hosts[:1], HostRequest(MEDIUM), rules) is None
