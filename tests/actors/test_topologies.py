"""Topologies planned by one broker, held, and leased: real actors in virtual time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from deployed_world import failed
from msgspec.structs import replace
from topology_worlds import HEAD, STAR, TopologyWorld, ask, broker, guest, held, network, pair, show, site, where, world

from leasekit.core.protocol.messages import Plan, Planned, Redeem, RequestTicket, TicketUpdate, Withhold
from leasekit.core.reasons import mark, words
from leasekit.core.time import HOUR, MINUTE, SECOND, Term
from leasekit.stores.memory import MemoryStore


def planned(made: TopologyWorld, request: dict[str, Any], guest_: str = "g") -> dict[str, Any]:
    """A topology two seconds after it was asked for."""
    topology = ask(made, request, guest_)
    made.pass_time(2 * SECOND)
    return show(made, topology, guest_)


def trial(made: TopologyWorld, request: dict[str, Any], guest_: str = "g") -> dict[str, Any]:
    """What the broker says it would plan."""
    number = made.begin_command(guest_, "topology.plan", request=request)
    made.pass_time(2 * SECOND)
    reply = made.replies.pop(number)
    assert not reply.error, reply.error
    return dict(reply.result)


def test_exact_start_is_leased_at_once(tmp_path: Path) -> None:
    """Sites and path are leased over one term, redeemed when it comes, and no unit of anything stays held."""
    made = world(STAR, tmp_path)
    shown = planned(made, pair())
    assert shown["state"] == "committed" and shown["term"] == [HOUR, 2 * HOUR]
    assert where(shown) == {"r0": "N0", "r1": "N1", "l.0.0": "n0x", "l.0.1": "n1x"}
    assert not held(made)
    assert len({tuple(made.lease("g", part["lease"])["approved"]["term"]) for part in shown["parts"]}) == 1
    made.run_until(HOUR + 10 * SECOND)
    assert {part["state"] for part in show(made, shown["topology"])["parts"]} == {"active"}
    made.run_until(3 * HOUR)
    assert made.query("g", "topologies", all=False) == []
    assert {row["free_now"] == row["units"] for row in made.query("b", "sources")} == {True}


def test_links_that_are_given_anew_are_planned_on(tmp_path: Path) -> None:
    """To a broker whose store was lost: of what is taken back it does not know where it leads."""
    made = world(STAR, tmp_path)
    made.nodes["b"].store = MemoryStore()
    made.restart("b")
    for site_ in made.deployment.of_role("authority"):
        for row in made.query(site_.name, "delegations"):
            for command, asked in (
                ("delegation.reclaim", {"delegation": row["delegation"]}),
                ("delegation.give", {"broker": "b", "type": row["type"]}),
            ):
                assert not made.command(site_.name, command, **asked).error
    made.pass_time(MINUTE)
    assert {} in [row["properties"] for row in made.query("b", "sources") if row["type"] == "n0x"]
    shown = planned(made, pair())
    assert shown["state"] == "committed", shown["reason"]


def test_bandwidth_takes_whole_granules(tmp_path: Path) -> None:
    """A link of granules of 2.5 Mbit/s gives three of them for 6 Mbit/s, and what is left is what it has."""
    grain = {"link.granule_mbps": "2.5"}
    text = HEAD + site("A", 4) + site("B", 4) + network("net", "b", ab=("A", "B", 4, grain)) + broker() + guest()
    made = world(text, tmp_path)
    shown = planned(made, pair(units=1, bw=6))
    assert [part["units"] for part in shown["parts"] if part["member"] == "l"] == [3]
    shown = planned(made, pair(units=1, bw=2.6))
    assert shown["state"] == "failed" and "A-B" in shown["reason"]
    assert planned(made, pair(units=1, bw=2.5))["state"] == "committed"


def test_window_finds_the_earliest_start(tmp_path: Path) -> None:
    """In a window the start is exactly where a lease that stood in the way ends."""
    made = world(STAR, tmp_path)
    taken = [made.request("g", 8, HOUR, HOUR + 7 * MINUTE + 123, properties={}, site=name) for name in ("N0",)]
    made.request("g", 16, HOUR, HOUR + 9 * MINUTE, site="N1")
    made.pass_time(SECOND)
    assert taken
    shown = planned(made, pair(units=8, est=HOUR, lst=3 * HOUR))
    assert shown["term"] == [HOUR + 9 * MINUTE, 2 * HOUR + 9 * MINUTE]


def test_refusal_says_what_is_short_and_what_would_fit(tmp_path: Path) -> None:
    """What can't be had is refused in words, with the nearest start that would do, and nothing is held or leased."""
    made = world(STAR, tmp_path)
    made.request("g", 14, HOUR, 2 * HOUR, site="N1")
    made.pass_time(SECOND)
    shown = planned(made, pair(units=8))
    assert shown["state"] == "failed" and shown["earliest"] == 2 * HOUR
    assert "only 1 site has 8 units free: N0" in shown["reason"]
    assert f"it would fit from {mark(2 * HOUR)} on" in shown["reason"]
    assert not held(made) and not shown["parts"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"sites": [{"id": "r0", "type": "gpu", "units": 1}, {"id": "r1", "type": "vm", "units": 1}]}, "no site here"),
        (
            {"sites": [{"id": "r0", "type": "vm", "units": 1, "pin": "Q"}, {"id": "r1", "type": "vm", "units": 1}]},
            "'Q'",
        ),
        ({"avoid": ["Y"]}, "avoid: found 'Y'"),
        ({"link": {"max_latency": 0.5}}, "latency"),
        ({"link": {"pmax": 1}}, "no path of at most 1 links"),
        ({"bw": 11}, "at most 10 Mbit/s"),
    ],
)
def test_refusals_name_what_is_wrong(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    """Types, sites and points that nobody offers, and bounds that nothing keeps, are named."""
    slow = {"link.latency_ms": "1"}
    text = (
        HEAD
        + site("N0", 8)
        + site("N1", 16)
        + network("net", "b", n0x=("N0", "X", 10, slow), n1x=("N1", "X", 10, slow))
        + broker()
        + guest()
    )
    shown = planned(world(text, tmp_path), pair(**change))
    assert shown["state"] == "failed" and words in shown["reason"], shown["reason"]


def test_more_sites_than_there_are(tmp_path: Path) -> None:
    """A request for more different sites than exist is refused by their number."""
    made = world(STAR, tmp_path)
    sites = [{"id": f"r{number}", "type": "vm", "units": 1} for number in range(4)]
    links = [{"from": "r0", "to": f"r{number}", "bw": 1} for number in range(1, 4)]
    shown = planned(made, {"sites": sites, "links": links, "start": HOUR, "duration": HOUR})
    assert "4 requested sites, there are 3" in shown["reason"]


def test_bad_requests_are_refused_by_the_desk(tmp_path: Path) -> None:
    """What is wrong by itself never reaches a broker: all of it is said at once, each by its key."""
    made = world(STAR, tmp_path)
    request = pair(bw=0, est=2 * HOUR, lst=HOUR)
    request["sites"][1]["redeem_predecessor"] = "r1"
    error = failed(made.command("g", "topology.request", request=request))
    assert all(words in error for words in ("links[0].bw", "lst: found", "cycle of predecessors"))
    assert "request: found 3, expected a table" in failed(made.command("g", "topology.request", request=3))
    elastic = pair()
    elastic["sites"][0]["properties"] = {"elastic": "true"}
    assert "elastic" in failed(made.command("g", "topology.request", request=elastic))
    assert not made.letters(Plan)


def test_dry_run_holds_nothing(tmp_path: Path) -> None:
    """A dry run says the plan, and leaves nothing behind, here or there."""
    made = world(STAR, tmp_path)
    answer = trial(made, pair())
    assert answer["status"] == "planned" and answer["term"] == [HOUR, 2 * HOUR] and not answer["plan"]
    assert [part["site"] for part in answer["parts"]] == ["N0", "N1", "net", "net"]
    assert made.query("b", "holds") == [] and made.query("g", "topologies", all=True) == []
    assert trial(made, pair(units=17))["status"] == "refused"


def test_backup_path_shares_no_link(tmp_path: Path) -> None:
    """A backup is leased beside the path, over other links; without a second way there is no plan."""
    ring = network("net", "b", ab=("A", "B", 5), ax=("A", "X", 5), bx=("B", "X", 5))
    made = world(HEAD + site("A", 4) + site("B", 4) + ring + broker() + guest(), tmp_path)
    shown = planned(made, pair(units=1, link={"backup": True}))
    paths = [{part["type"] for part in shown["parts"] if part["member"] == "l" and part["path"] == n} for n in (0, 1)]
    assert sorted(map(sorted, paths)) == [["ab"], ["ax", "bx"]]
    shown = planned(made, pair(units=1, avoid=["X"], link={"backup": True}))
    assert shown["state"] == "failed" and "second path" in shown["reason"]


def test_exclusions_pins_and_filters(tmp_path: Path) -> None:
    """Sites that are excluded don't host, a pin names the only one that does, a filter looks at its properties."""
    text = (
        HEAD
        + site("N0", 8, os="linux")
        + site("N1", 8, os="bsd")
        + site("N2", 8, os="linux")
        + network("net", "b", n0x=("N0", "X", 10), n1x=("N1", "X", 10), n2x=("N2", "X", 10))
        + broker()
        + guest()
    )
    made = world(text, tmp_path)
    request = pair(units=1)
    request["sites"][0] |= {"filter": "os == linux", "exclude": ["N0"]}
    request["sites"][1] |= {"pin": "N1"}
    shown = planned(made, request)
    assert (where(shown)["r0"], where(shown)["r1"]) == ("N2", "N1")


def test_types_may_differ(tmp_path: Path) -> None:
    """Each requested site has a type of its own; a path leads from one site to the other as ever."""
    text = (
        HEAD
        + site("N0", 8)
        + site("N1", 8, type_="gpu")
        + network("net", "b", n0x=("N0", "X", 10), n1x=("N1", "X", 10))
        + broker()
        + guest()
    )
    request = pair(units=1)
    request["sites"][1]["type"] = "gpu"
    assert where(planned(world(text, tmp_path), request)) == {"r0": "N0", "r1": "N1", "l.0.0": "n0x", "l.0.1": "n1x"}


def test_predecessors_order_redeems(tmp_path: Path) -> None:
    """A member that goes after a link is redeemed when each lease of its path is active."""
    made = world(STAR, tmp_path)
    request = pair(units=1)
    request["sites"][1]["redeem_predecessor"] = "l"
    shown = planned(made, request)
    made.run_until(HOUR + 10 * SECOND)
    parts = {part["part"]: part["lease"] for part in shown["parts"]}
    order = [message.lease for message in made.letters(Redeem)]
    assert order.index(parts["l.0.0"]) < order.index(parts["l.0.1"]) < order.index(parts["r1"])


def test_load_balancing_fills_idle_sites(tmp_path: Path) -> None:
    """Option A: with the first sites half taken the plan goes to those that are idle."""
    sites = "".join(site(f"N{number}", 8) for number in range(4))
    links = network("net", "b", **{f"n{number}x": (f"N{number}", "X", 20) for number in range(4)})
    for mapper, expected in (("", {"N0", "N1"}), ("load_balancing = true", {"N2", "N3"})):
        made = world(HEAD + sites + links + broker(mapper=mapper) + guest(), tmp_path)
        made.request("g", 4, HOUR, 3 * HOUR, site="N0")
        made.request("g", 4, HOUR, 3 * HOUR, site="N1")
        made.pass_time(SECOND)
        shown = planned(made, pair(units=2))
        assert {where(shown)["r0"], where(shown)["r1"]} == expected


def test_preference_fills_preferred_sites(tmp_path: Path) -> None:
    """Option B: the sites whose pattern has the least value come first."""
    mapper = 'preference = { "N2" = 1, "N*" = 10 }'
    text = STAR.replace('name = "coallocation"\n', f'name = "coallocation"\n{mapper}\n')
    assert "N2" in where(planned(world(text, tmp_path), pair(units=2))).values()


def test_classes_scale_what_is_shown(tmp_path: Path) -> None:
    """Option C: a guest of a lower class is shown its share of what is free, and no more is planned for it."""
    text = STAR.replace('name = "coallocation"\n', 'name = "coallocation"\nclasses = { h = 0.5 }\n')
    made = world(text, tmp_path)
    assert trial(made, pair(units=5), "g")["status"] == "planned"
    assert trial(made, pair(units=5), "h")["status"] == "refused"
    assert trial(made, pair(units=4), "h")["status"] == "planned"


def test_fraction_is_for_all(tmp_path: Path) -> None:
    """Partial disclosure: of each site and link only the fraction is planned with."""
    text = STAR.replace('name = "coallocation"\n', 'name = "coallocation"\nfraction = 0.5\n')
    made = world(text, tmp_path)
    assert trial(made, pair(units=5))["status"] == "refused"
    assert trial(made, pair(units=4, bw=5))["status"] == "planned"
    assert trial(made, pair(units=4, bw=6))["status"] == "refused"


def test_a_held_plan_is_taken_from_what_is_free(tmp_path: Path) -> None:
    """While a plan is held nobody else gets its units; when it expires everybody can."""
    made = world(STAR, tmp_path)
    made.lost.add(("b", "g", "Planned"))
    topology = ask(made, pair(units=8))
    made.pass_time(2 * SECOND)
    (hold,) = held(made)
    assert hold["peer"] == "g" and hold["expires"] <= made.now + MINUTE
    assert planned(made, pair(units=8), "h")["state"] == "failed"
    made.pass_time(2 * MINUTE)
    assert held(made) == [] and show(made, topology)["state"] == "failed"
    assert planned(made, pair(units=8), "h")["state"] == "committed"


def test_a_repeated_query_has_one_answer(tmp_path: Path) -> None:
    """The same query is planned once: repeats hear the same plan, also after the broker was restarted."""
    made = world(STAR, tmp_path)
    made.lost.add(("b", "g", "Planned"))
    topology = ask(made, pair())
    made.pass_time(5 * SECOND)
    made.restart("b")
    made.pass_time(5 * SECOND)
    answers = made.letters(Planned)
    assert len(answers) >= 3 and len({(one.plan, one.parts, one.expires) for one in answers}) == 1
    assert len(held(made)) == 1
    made.lost.clear()
    made.pass_time(20 * SECOND)
    assert show(made, topology)["state"] == "committed" and held(made) == []


def test_a_restarted_broker_keeps_what_is_held(tmp_path: Path) -> None:
    """A hold is as durable as a lease: units stay booked over a restart, and expire on time."""
    made = world(STAR, tmp_path)
    made.lost |= {("g", "b", "RequestTicket"), ("g", "b", "Withdraw"), ("g", "b", "Release")}
    ask(made, pair(units=8))
    made.pass_time(2 * SECOND)
    (hold,) = held(made)
    made.restart("b")
    assert held(made) == [hold]
    table = made.broker("b").book.table_of("N0/vm@b")
    assert table.free_at(HOUR) == 0
    made.run_until(hold["expires"] + SECOND)
    assert held(made) == [] and made.broker("b").book.table_of("N0/vm@b").free_at(HOUR) == 8


def test_requests_after_expiry_are_refused_and_planned_anew(tmp_path: Path) -> None:
    """Who asks too late for what was held hears so, and the guest's next try begins with a new plan."""
    text = STAR.replace("settings = {  }", 'settings = { hold_for = "5s" }')
    made = world(text, tmp_path)
    made.lost.add(("g", "b", "RequestTicket"))
    topology = ask(made, pair())
    made.pass_time(2 * SECOND)
    first = show(made, topology)
    assert first["state"] == "committing"
    made.run_until(first["expires"] + 100)
    made.lost.clear()
    made.pass_time(15 * SECOND)
    shown = show(made, topology)
    assert shown["state"] == "committed" and shown["plan"] != first["plan"] and shown["left"] == 1
    refused = [one for one in made.letters(TicketUpdate) if one.status == "refused"]
    assert {one.reason.code for one in refused} <= {"hold_expired"}
    lost = [made.lease("g", part["lease"]) for part in first["parts"]]
    assert {lease["state"] for lease in lost} <= {"failed", "closed"}
    assert any("hold expired" in lease["reason"] for lease in lost)


def test_one_refused_member_brings_all_back(tmp_path: Path) -> None:
    """While one ticket is missing none is redeemed; when it is refused the others go back, and the guest says why."""
    made = world(STAR, tmp_path)
    topology = ask(made, pair(), tries=1)
    part = "r1"

    def spoil(sender: str, receiver: str, message: Any) -> Any:
        if isinstance(message, RequestTicket) and message.properties.get("hold", "").endswith(f"/{part}"):
            return replace(message, units=message.units + 1)
        return message

    made.alter = spoil
    made.pass_time(5 * SECOND)
    shown = show(made, topology)
    assert shown["state"] == "failed" and "what is held is not what is asked for" in shown["reason"]
    made.pass_time(2 * MINUTE)
    assert not made.letters(Redeem) and held(made) == []
    assert {lease["state"] for lease in made.query("g", "leases", all=True)} <= {"failed", "closed"}
    assert made.broker("b").book.table_of("N0/vm@b").free_at(HOUR) == 8


def test_a_guest_restarted_in_the_middle_goes_on(tmp_path: Path) -> None:
    """The decision is written down with its leases: a guest that crashes after it finishes what it began."""
    made = world(STAR, tmp_path)
    made.lost.add(("b", "g", "TicketUpdate"))
    topology = ask(made, pair())
    made.pass_time(2 * SECOND)
    assert show(made, topology)["state"] == "committing"
    made.restart("g")
    made.lost.clear()
    made.pass_time(20 * SECOND)
    assert show(made, topology)["state"] == "committed"
    made.run_until(HOUR + 10 * SECOND)
    assert {part["state"] for part in show(made, topology)["parts"]} == {"active"}


def test_nothing_is_redeemed_before_all_have_tickets(tmp_path: Path) -> None:
    """A member whose ticket is there waits for the others, even when its term has begun; then all give up."""
    made = world(STAR, tmp_path)
    topology = ask(made, pair(start=made.now + 10 * SECOND), tries=1)
    made.lose = lambda sender, receiver, message: (
        isinstance(message, TicketUpdate) and message.lease == made.query("g", "leases", all=True)[-1]["id"]
    )
    made.pass_time(40 * SECOND)
    assert show(made, topology)["state"] == "committing"
    states = [part["state"] for part in show(made, topology)["parts"]]
    assert states.count("ticketed") == 3 and not made.letters(Redeem)
    made.pass_time(2 * MINUTE)
    assert show(made, topology)["state"] == "failed" and "in time" in show(made, topology)["reason"]
    assert not made.letters(Redeem)


def test_a_topology_is_closed_whole(tmp_path: Path) -> None:
    """Closing gives up the planning, the tickets on their way, or all leases; what was held is free again."""
    made = world(STAR, tmp_path)
    early = ask(made, pair())
    assert made.command("g", "topology.close", topology=early).result["state"] == "closed"
    made.pass_time(3 * SECOND)
    assert held(made) == []
    late = planned(made, pair())["topology"]
    made.run_until(HOUR + 10 * SECOND)
    made.command("g", "topology.close", topology=late, reason="enough")
    made.pass_time(MINUTE)
    shown = show(made, late)
    assert shown["state"] == "closed" and shown["reason"] == "enough"
    assert "already" in failed(made.command("g", "topology.close", topology=late))
    assert "there are" in failed(made.command("g", "topology.close", topology="x"))


def test_holds_of_one_peer_are_bounded(tmp_path: Path) -> None:
    """No more than the limit is held for one peer; others are not in its way."""
    text = STAR.replace("settings = {  }", "settings = { holds_max = 2 }")
    made = world(text, tmp_path)
    made.lost |= {("g", "b", "RequestTicket"), ("g", "b", "Release")}
    first = [planned(made, pair(units=1, bw=1))["state"] for _ in range(2)]
    assert first == ["committing"] * 2
    shown = planned(made, pair(units=1, bw=1))
    assert shown["state"] == "failed" and "its limit" in shown["reason"]
    assert planned(made, pair(units=1, bw=1), "h")["state"] == "committed"


def test_only_the_holder_gets_what_is_held(tmp_path: Path) -> None:
    """Another guest that names a hold is refused, and so is a part that isn't as it was held."""
    made = world(STAR, tmp_path)
    made.lost |= {("g", "b", "RequestTicket")}
    shown = planned(made, pair())
    names = {"hold": f"{shown['plan']}/r0", "group_id": shown["plan"], "lease_count": "4"}
    lease = made.request("h", 4, HOUR, 2 * HOUR, site="N0", properties=names)
    made.pass_time(SECOND)
    assert "not held for h" in made.lease("h", lease)["reason"]
    lease = made.request("h", 4, HOUR, 2 * HOUR, site="N0", properties={"hold": "nothing/r0"})
    made.pass_time(SECOND)
    assert "hold expired" in made.lease("h", lease)["reason"]


def test_what_went_out_of_service_is_not_granted(tmp_path: Path) -> None:
    """Units that are held when their site takes them out of service are refused, whole, and planned elsewhere."""
    made = world(STAR, tmp_path)
    made.lost.add(("g", "b", "RequestTicket"))
    topology = ask(made, pair(units=4))
    made.pass_time(2 * SECOND)
    made.receive("b", "N0", Withhold("N0/vm@b", 99, "fans", 8, Term(HOUR, 2 * HOUR), "new fans"))
    made.lost.clear()
    made.pass_time(30 * SECOND)
    shown = show(made, topology)
    assert shown["state"] == "committed" and shown["left"] == 1
    assert set(where(shown).values()) == {"N1", "N2", "n1x", "n2x"}
    refused = [words(one.reason) for one in made.letters(TicketUpdate) if one.status == "refused"]
    assert any("out of service" in reason for reason in refused)


def test_other_mappers_plan_nothing(tmp_path: Path) -> None:
    """A broker whose mapper can't plan says so, and which one can."""
    text = STAR.replace('name = "coallocation"', 'name = "fcfs"')
    shown = planned(world(text, tmp_path), pair())
    assert shown["state"] == "failed" and "`coallocation` does" in shown["reason"]
