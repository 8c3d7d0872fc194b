"""Topologies under attack: peers that ask, hold and answer what they should not, and what happens in between."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from deployed_world import failed
from msgspec.structs import replace
from topology_worlds import HEAD, STAR, TopologyWorld, ask, broker, guest, held, network, pair, show, site, world

from leasekit.core.protocol.messages import (
    ErrorReply,
    HoldParts,
    Plan,
    Planned,
    PlanPart,
    Quote,
    Redeem,
    ReleaseParts,
    RequestTicket,
    TicketUpdate,
    Withdraw,
)
from leasekit.core.reasons import Code
from leasekit.core.time import DAY, HOUR, INSTANT_MAX, MINUTE, SECOND, Term
from leasekit.core.topology import read_topology
from leasekit.policies.broker.coallocate import CoallocationSettings
from leasekit.policies.broker.coallocation.frames import View
from leasekit.policies.broker.coallocation.search import Search

MAY = '[actor.c.permissions.b]\nmay = ["delegate", "endorse", "request"]\n'
TWO = (
    HEAD
    + site("N0", 8, "b")
    + site("N1", 8, "c")
    + network("net", "b", n0x=("N0", "X", 10))
    + network("far", "c", n1x=("N1", "X", 10))
    + broker(settings='planners = ["c"]')
    + broker("c", may=MAY)
    + guest()
    + guest("h")
)


def planned(made: TopologyWorld, request: dict[str, Any], guest_: str = "g", **more: Any) -> dict[str, Any]:
    """A topology five seconds after it was asked for."""
    topology = ask(made, request, guest_, **more)
    made.pass_time(5 * SECOND)
    found: dict[str, Any] = show(made, topology, guest_)
    return found


def test_a_guest_holds_nothing_past_the_mapper(tmp_path: Path) -> None:
    """Holding is for brokers that plan: a guest that asks a broker to hold, or to quote, is refused, so that whatever
    its mapper keeps from a guest stays kept."""
    made = world(STAR.replace('name = "coallocation"', 'name = "fair_share"'), tmp_path)
    actor = made.guest("g")
    part = PlanPart("p", "p", 0, "b", "N0/vm@b", "N0", "vm", 8)
    made.receive(
        "b", "g", HoldParts(f"{actor.keyring.tag}-plan-1", 1, actor.signer.public, Term(HOUR, 2 * HOUR), (part,), HOUR)
    )
    made.receive("b", "g", Quote("q", 2, Term(HOUR, 2 * HOUR), ("vm",)))
    made.pass_time(SECOND)
    assert held(made) == []
    assert [one.reason.code for one in made.letters(ErrorReply)] == ["forbidden", "forbidden"]


def test_far_ends_are_refused_before_others_are_asked(tmp_path: Path) -> None:
    """A request whose window is past is refused, however long it is to last: no broker is asked for what can't be."""
    made = world(TWO, tmp_path)
    made.pass_time(MINUTE)
    request = read_topology({**pair(), "start": 0, "duration": INSTANT_MAX})
    made.receive("b", "g", Plan("g-query", 1, "hold", request.to_bytes()))
    made.pass_time(5 * SECOND)
    (answer,) = made.letters(Planned)
    assert answer.status == "refused" and answer.reason.code == Code.START_PAST
    assert not made.letters(Quote)


def test_a_plan_that_is_held_for_ever_is_not_waited_for(tmp_path: Path) -> None:
    """A broker that says it holds a plan for a year, and sends no ticket, is waited for no longer than any other."""
    made = world(STAR, tmp_path)

    def alter(sender: str, receiver: str, message: Any) -> Any:
        return replace(message, expires=made.now + 365 * DAY) if isinstance(message, Planned) else message

    made.alter = alter
    made.lose = lambda sender, receiver, message: (
        isinstance(message, TicketUpdate) and message.lease == made.query("g", "leases", all=True)[-1]["id"]
    )
    shown = planned(made, pair(), tries=1)
    assert shown["state"] == "committing"
    made.pass_time(2 * MINUTE)
    shown = show(made, shown["topology"])
    assert shown["state"] == "failed" and not made.letters(Redeem)


def test_a_member_that_is_closed_takes_the_others_with_it(tmp_path: Path) -> None:
    """A member that its operator closes before all tickets are there is missed at once: the others go back."""
    made = world(STAR, tmp_path)
    made.lose = lambda sender, receiver, message: (
        isinstance(message, (TicketUpdate,)) and message.lease == made.query("g", "leases", all=True)[-1]["id"]
    )
    shown = planned(made, pair(start=20 * SECOND), tries=1)
    first = shown["parts"][0]
    assert first["state"] == "ticketed"
    made.lost |= {("N0", "g", "LeaseUpdate"), ("b", "g", "LeaseUpdate"), ("g", "b", "Relinquish")}
    made.command("g", "lease.close", lease=first["lease"])
    made.lose = lambda sender, receiver, message: False
    made.pass_time(MINUTE)
    shown = show(made, shown["topology"])
    assert shown["state"] in ("failed", "closed"), shown
    assert not made.letters(Redeem)


def test_a_broker_that_is_removed_is_asked_no_more(tmp_path: Path) -> None:
    """A topology that is planned by a broker that the operator removes comes to an end, in words."""
    made = world(STAR, tmp_path)
    made.lost.add(("b", "g", "Planned"))
    topology = ask(made, pair())
    made.pass_time(SECOND)
    made.command("g", "peer.remove", name="b")
    made.pass_time(3 * MINUTE)
    assert show(made, topology)["state"] == "failed"


@pytest.mark.parametrize("name", ["hold", "group_id", "lease_count"])
def test_properties_of_groups_are_the_guests_own(tmp_path: Path, name: str) -> None:
    """What holds a topology's leases together can't be said by who asks for one."""
    made = world(STAR, tmp_path)
    request = pair()
    request["sites"][1]["properties"] = {name: "1"}
    assert name in failed(made.command("g", "topology.request", request=request))


def test_as_many_properties_as_can_be_asked_for(tmp_path: Path) -> None:
    """A member may have all properties that a request for a ticket has room for; one more is refused in words."""
    made = world(STAR, tmp_path)
    for count in (200, 253, 254, 256):
        request = pair(units=1, bw=1)
        request["sites"][0]["properties"] = {f"p{number}": "" for number in range(count)}
        reply = made.command("g", "topology.request", request=request)
        made.pass_time(5 * SECOND)
        if not reply.error:
            assert show(made, reply.result["topology"])["state"] == "committed", count
        else:
            assert count > 253 and "r0" in reply.error and "253" in reply.error


def test_a_filter_that_no_site_meets_is_named(tmp_path: Path) -> None:
    """Who asks for what no site is hears its own filter; who asks for too much hears of units, not of CPUs."""
    made = world(STAR, tmp_path)
    request = pair()
    request["sites"][0]["filter"] = "os == plan9"
    reason = planned(made, request)["reason"]
    assert "os == plan9" in reason and "r0" in reason and "CPU" not in reason
    reason = planned(made, pair(units=17))["reason"]
    assert "17" in reason and "CPU" not in reason and "units" in reason, reason
    assert "r0 and 17" not in reason


def test_a_closed_slice_gets_no_topology(tmp_path: Path) -> None:
    """What is planned for a slice that is closed meanwhile is given up."""
    made = world(STAR, tmp_path)
    made.command("g", "slice.create", name="s")
    made.lost.add(("b", "g", "Planned"))
    topology = ask(made, pair(slice="s"))
    made.pass_time(2 * SECOND)
    made.command("g", "slice.close", name="s")
    made.lost.clear()
    made.pass_time(MINUTE)
    shown = show(made, topology)
    assert shown["state"] == "closed" and not shown["parts"], shown
    assert held(made) == []


def test_one_guest_leaves_places_to_the_others_of_its_broker(tmp_path: Path) -> None:
    """What one guest has held through a broker leaves places at the other brokers to the guests beside it."""
    made = world(TWO.replace('role = "broker"\nsettings = {  }', 'role = "broker"\nsettings = { holds_max = 4 }'),
                 tmp_path)  # fmt: skip
    made.lost |= {("g", "b", "RequestTicket"), ("g", "c", "RequestTicket"), ("g", "b", "Release")}
    for _ in range(5):
        planned(made, pair(units=1, bw=1))
    assert planned(made, pair(units=1, bw=1), "h")["state"] == "committed"


def test_a_guest_checks_pins_and_exclusions(tmp_path: Path) -> None:
    """A plan that is elsewhere than was asked for is not leased, whatever the broker says."""
    made = world(STAR, tmp_path)

    def alter(sender: str, receiver: str, message: Any) -> Any:
        if isinstance(message, Planned) and message.parts:
            return replace(message, parts=(replace(message.parts[0], site="N2"), *message.parts[1:]))
        return message

    made.alter = alter
    request = pair(units=1)
    request["sites"][0]["pin"] = "N0"
    shown = planned(made, request, tries=1)
    assert shown["state"] == "failed" and "r0" in shown["reason"] and not made.query("g", "leases", all=True)
    made.pass_time(SECOND)
    assert made.letters(ReleaseParts) and held(made) == []


def test_one_request_takes_a_bounded_effort(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that is hard at each of many starts is answered within the settings' effort (and what finding the
    words for a refusal takes), not within so many nodes for each start; what is easy is planned as ever."""
    count, spent = 16, [0]
    run = Search.run

    def counted(self: Search, *arguments: Any, **more: Any) -> Any:
        outcome = run(self, *arguments, **more)
        spent[0] += outcome.nodes
        return outcome

    monkeypatch.setattr(Search, "run", counted)
    sites = "".join(site(f"N{number}", 8) for number in range(count))
    links = {f"l{number}": (f"N{number}", f"N{(number + 1) % count}", 10) for number in range(count)}
    links |= {f"x{number}": (f"N{number}", f"N{(number + 5) % count}", 10) for number in range(count)}
    links |= {f"c{number}": (f"N{number}", "X", 10) for number in range(count)}
    made = world(HEAD + sites + network("net", "b", **links) + broker(mapper="effort = 3000") + guest(), tmp_path)
    for number in range(40):
        start = HOUR + number * MINUTE
        made.request("g", 3 + number % 3, start, start + 17 * MINUTE, site=f"N{number % count}")
    made.pass_time(SECOND)
    ends = [(number, (number + step) % 5) for step in (1, 2) for number in range(5)]
    hard = {
        "sites": [{"id": f"r{number}", "type": "vm", "units": 4 + number % 2} for number in range(5)],
        "links": [{"id": f"k{a}{b}", "from": f"r{a}", "to": f"r{b}", "bw": 6} for a, b in ends],
        "duration": HOUR,
        "est": HOUR,
        "lst": 5 * HOUR,
        "options": {"frames": {"count": 1000, "mode": "both"}},
    }
    planned(made, hard)
    assert 0 < spent[0] < 25_000
    assert planned(made, pair(units=1, bw=1, start=6 * HOUR))["state"] == "committed"


def test_starts_without_any_plan_take_a_bounded_effort(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What fits nowhere needs no search, but each start is looked at, and again for each guess at what would fit: that
    counts as effort, and a refusal says how many starts were left out.
    """
    seen, free = [0], View.free

    def counted(self: View, frame: Term) -> Any:
        seen[0] += 1
        return free(self, frame)

    monkeypatch.setattr(View, "free", counted)
    made = world(STAR, tmp_path)
    request = pair(units=2**31 - 1, est=HOUR, lst=20 * HOUR)
    request["options"] = {"frames": {"count": 1000, "mode": "equidistant"}}
    made.request("h", 1, 30 * HOUR, 31 * HOUR, site="N1")
    assert "no site with 2147483647 units free for r0" in planned(made, request)["reason"]
    assert 1000 < seen[0] < CoallocationSettings().effort + 100
    (tmp_path / "less").mkdir()
    less = world(STAR.replace('name = "coallocation"\n', 'name = "coallocation"\neffort = 400\n'), tmp_path / "less")
    reason = planned(less, request)["reason"]
    assert "800 later starts were not looked at" in reason, reason


def largest(units: int, bw: float, pmax: int, **link: Any) -> dict[str, Any]:
    """A topology of as many sites and links as there may be."""
    pairs = [(number, (number + step) % 16) for step in (1, 5) for number in range(16)]
    return {
        "sites": [{"id": f"r{number}", "type": "vm", "units": units} for number in range(16)],
        "links": [{"id": f"k{a}-{b}", "from": f"r{a}", "to": f"r{b}", "bw": bw, **link} for a, b in pairs],
        "duration": HOUR, "est": HOUR, "lst": 5 * HOUR,
        "options": {
            "pmax": pmax, "distinct_sites": units > 1, "sort": "value", "frames": {"count": 1000, "mode": "both"}
        },
    }  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize(
    "hard",
    [
        largest(1, 1, 0, backup=True), largest(1, 1, 64, backup=True, max_latency=1), largest(4, 4, 4, backup=True),
        largest(5, 6, 0), largest(8, 10, 64), largest(5, 1e-6, 64), largest(1, 1e9, 0), largest(2**31 - 1, 1, 1),
    ],
    ids=range(8),
)  # fmt: skip
def test_topologies_of_any_shape_take_bounded_effort_and_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hard: dict[str, Any]
) -> None:
    """The largest requests that there may be, with paths of any length, backups and many starts: each is answered, at
    so many nodes and so much memory, and the broker serves others afterwards."""
    count, spent, limit = 12, [0], 2000
    run = Search.run

    def counted(self: Search, *arguments: Any, **more: Any) -> Any:
        outcome = run(self, *arguments, **more)
        spent[0] += outcome.nodes
        return outcome

    monkeypatch.setattr(Search, "run", counted)
    sites = "".join(site(f"N{number}", 8) for number in range(count))
    links = {f"l{step}x{n}": (f"N{n}", f"N{(n + step) % count}", 10) for step in (1, 3, 5) for n in range(count)}
    made = world(HEAD + sites + network("net", "b", **links) + broker(mapper=f"effort = {limit}") + guest(), tmp_path)
    for number in range(20):
        start = HOUR + number * MINUTE
        made.request("g", 3 + number % 3, start, start + 17 * MINUTE, site=f"N{number % count}")
    made.pass_time(SECOND)
    tracemalloc.start()
    try:
        shown = planned(made, hard)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert shown["state"] in ("failed", "committed")
    assert spent[0] < 20 * limit  # finding the words for a refusal takes some more
    assert peak < 64 * 2**20
    assert planned(made, pair(units=1, bw=1, start=6 * HOUR))["state"] == "committed"


def test_a_member_that_goes_on_longer_does_not_hold_the_others(tmp_path: Path) -> None:
    """A lease of a committed topology is extended like any other: the others end with their term, the topology is over
    with its last lease, and nothing stays booked."""
    made = world(STAR, tmp_path)
    shown = planned(made, pair())
    made.run_until(HOUR + MINUTE)
    longer = shown["parts"][0]
    reply = made.command("g", "lease.extend", lease=longer["lease"], end=3 * HOUR, units=longer["units"])
    assert not reply.error, reply.error
    made.run_until(2 * HOUR + MINUTE)
    states = [part["state"] for part in show(made, shown["topology"])["parts"]]
    assert states[0] == "active" and set(states[1:]) == {"closed"}
    assert show(made, shown["topology"])["state"] == "committed"
    made.run_until(3 * HOUR + MINUTE)
    assert show(made, shown["topology"])["state"] == "closed"
    assert all(row["free_now"] == row["units"] for row in made.query("b", "sources"))


@pytest.mark.parametrize("past", [-1, 0, 1, 40])
def test_expiry_and_the_last_request_at_one_instant(tmp_path: Path, past: int) -> None:
    """When the last request for a part comes as its hold expires, all parts are granted, or none is; and nothing stays
    booked but what was granted."""
    made = world(STAR, tmp_path)
    kept: list[Any] = []

    def lose(sender: str, receiver: str, message: Any) -> bool:
        late = isinstance(message, RequestTicket) and message.properties.get("hold", "").endswith("/l.0.1")
        if late:
            kept.append(message)
        return late or isinstance(message, (Withdraw, ReleaseParts))

    made.lose = lose
    shown = planned(made, pair(units=8), tries=1)
    made.run_until(shown["expires"] + past)
    made.receive("b", "g", kept[0])
    booked = 8 - made.broker("b").book.table_of("N0/vm@b").free_at(HOUR)
    made.pass_time(SECOND)
    granted = [one for one in made.letters(TicketUpdate) if one.status == "granted"]
    assert len({one.lease for one in granted}) in (0, 4) and booked == (8 if granted else 0)
    assert held(made) == []


@pytest.mark.parametrize("units", [1, 99])
def test_a_guest_that_is_removed_while_others_are_asked(tmp_path: Path, units: int) -> None:
    """What a removed peer asked for is planned no further: nothing is held for it, here or elsewhere, and it is told
    nothing."""
    made = world(TWO, tmp_path)
    made.lost.add(("c", "b", "Quoted"))
    ask(made, pair(units=units))
    made.pass_time(SECOND)
    made.command("b", "peer.remove", name="g")
    made.lost.clear()
    made.pass_time(10 * SECOND)
    assert made.query("b", "holds") == [] and made.query("c", "holds") == []
    assert not made.letters(Planned)


def test_a_delegation_taken_back_while_it_is_held(tmp_path: Path) -> None:
    """What is held of a delegation that its site takes back is not granted; the next plan does without it, and no unit
    stays booked for what came to nothing."""
    made = world(STAR, tmp_path)
    made.lost.add(("g", "b", "RequestTicket"))
    topology = ask(made, pair(units=4))
    made.pass_time(2 * SECOND)
    reply = made.command("N0", "delegation.reclaim", delegation="N0/vm@b")
    assert not reply.error, reply.error
    made.pass_time(SECOND)
    made.lost.clear()
    made.pass_time(30 * SECOND)
    shown = show(made, topology)
    assert shown["state"] == "committed" and {part["site"] for part in shown["parts"]} == {"N1", "N2", "net"}
    assert made.broker("b").book.table_of("N0/vm@b").reserved_at(HOUR) == 0
