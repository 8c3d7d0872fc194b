"""What is shared among peers: units that are out of service, places for requests that wait."""

from __future__ import annotations

import tracemalloc
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from actor_bench import Bench, Plan
from deployed_world import CHAIN, DeployedWorld
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from leasekit.actors.broker.requests import EXCLUDED_MAX
from leasekit.actors.served import RECORD_BYTES, properties_overhead
from leasekit.actors.settings import BrokerSettings
from leasekit.actors.withheld import shares, withheld_shares
from leasekit.core.leases.records import Delegation
from leasekit.core.properties import CLASSES_MAX, PROPERTIES_MAX
from leasekit.core.protocol.codec import decode_message, encode_message
from leasekit.core.protocol.messages import ErrorReply, RequestTicket, Withhold
from leasekit.core.reasons import Code
from leasekit.core.time import HOUR, MINUTE, SECOND, Term
from leasekit.core.timetable import Timetable

TWO = CHAIN.replace('units = 4\nlength = "12h"', 'units = 3\nlength = "12h"').replace(
    "[actor.lower]",
    '[[actor.upper.delegation]]\nbroker = "other"\ntype = "vm"\nunits = 2\n'
    '[actor.other]\nrole = "broker"\n[actor.lower]',
)
"""``upper`` has six units, gives three to ``lower``, two to ``other``, and keeps one."""


def free(world: DeployedWorld, broker: str, at: int) -> int:
    """The units that a broker can grant at an instant."""
    book = world.broker(broker).book
    return sum(max(0, book.table_of(base).free_at(at)) for base in {source.base for source in book.of_type("vm")})


def all_free(world: DeployedWorld, at: int) -> list[int]:
    """What the three brokers can grant."""
    return [free(world, broker, at) for broker in ("upper", "lower", "other")]


@given(weights=st.dictionaries(st.text(max_size=3), st.integers(1, 50), min_size=1), lacking=st.integers(0, 400))
def test_shares_add_up(weights: dict[str, int], lacking: int) -> None:
    """All that is lacking is shared, nobody loses more than it has, and none more than its part, rounded up."""
    made = shares(lacking, weights)
    total = sum(weights.values())
    assert sum(made.values()) == min(lacking, total)
    for name, share in made.items():
        assert 0 <= share <= weights[name]
        assert share * total < min(lacking, total) * weights[name] + total


@settings(max_examples=300)
@given(data=st.data())
def test_windows_never_overbook(data: st.DataObject) -> None:
    """Whatever an issuer has promised, to holders that come and go and in leases of its own: at no instant in the
    window can it and its holders grant more than the units that are left.
    """
    table, units, holders = Timetable(0), 12, []
    table.add_capacity(Term(0, 100), units)
    for number in range(data.draw(st.integers(1, 5))):
        start = data.draw(st.integers(0, 90))
        term = Term(start, data.draw(st.integers(start + 1, 100)))
        most = table.available(term)
        if most:
            count = data.draw(st.integers(1, most))
            table.reserve(number, count, term)
            if data.draw(st.booleans()):
                holders.append(Delegation(str(number), "b", "vm", count, term, b"", {}, 1, "s", b"d"))
    start = data.draw(st.integers(0, 90))
    window = Term(start, data.draw(st.integers(start + 1, 100)))
    out = data.draw(st.integers(1, units))
    told = withheld_shares(out, window, table.available, [(one, one.units) for one in holders])
    for at in range(window.start, window.end):
        live = [one for one in holders if one.term.start <= at < one.term.end]
        leases = units - table.free_at(at) - sum(one.units for one in live)
        own = max(0, table.free_at(at) - out)
        passed = sum(one.units - told.get(one.id, 0) for one in live)
        assert own + passed <= max(0, units - out - leases)


def test_children_share_what_is_withheld(tmp_path: Path) -> None:
    """Two brokers below one that loses units for a while don't both lose all of them, and nobody can overbook."""
    world = DeployedWorld(TWO, tmp_path)
    world.pass_time(MINUTE)
    assert all_free(world, HOUR) == [1, 3, 2]
    world.command("site", "maintenance.add", start=HOUR, end=2 * HOUR, units=["vm-0", "vm-1", "vm-2"])
    world.pass_time(MINUTE)
    assert all_free(world, HOUR) == [0, 2, 1]
    assert all_free(world, 2 * HOUR) == [1, 3, 2]
    passed: list[Any] = list(world.letters(Withhold, "upper"))
    assert sorted((m.delegation, m.units) for m in passed) == [("upper/vm@lower", 1), ("upper/vm@other", 1)]
    for name in ("upper", "lower", "other"):
        world.restart(name)
    assert all_free(world, HOUR) == [0, 2, 1]
    world.command("site", "maintenance.add", start=HOUR, end=2 * HOUR, units=["vm-3"])
    world.pass_time(MINUTE)
    assert sum(all_free(world, HOUR)) == 2
    for window in world.query("site", "maintenance"):
        world.command("site", "maintenance.remove", window=window["window"])
    world.pass_time(MINUTE)
    assert all_free(world, HOUR) == [1, 3, 2]


def test_what_is_spare_goes_first(tmp_path: Path) -> None:
    """A window that only takes what the broker has not given away concerns nobody below."""
    world = DeployedWorld(TWO, tmp_path)
    world.command("site", "maintenance.add", start=HOUR, end=2 * HOUR, units=["vm-0"])
    world.pass_time(MINUTE)
    assert all_free(world, HOUR) == [0, 3, 2]
    assert not world.letters(Withhold, "upper")


def test_a_delegation_in_a_window(tmp_path: Path) -> None:
    """What is delegated, or renewed, when a window is known already goes on: the holder hears of its share."""
    text = TWO.replace('units = 3\nlength = "12h"', 'units = 3\nlength = "1h"\nrenew = "10m"')
    world = DeployedWorld(text, tmp_path)
    world.command("site", "maintenance.add", start=90 * MINUTE, end=100 * MINUTE, units=["vm-0", "vm-1", "vm-2"])
    world.run_until(55 * MINUTE)
    assert all_free(world, 89 * MINUTE) == [1, 3, 2]
    assert sum(all_free(world, 95 * MINUTE)) <= 3
    world.run_until(95 * MINUTE)
    lease = world.request("web", 3, world.now + 10 * SECOND, 110 * MINUTE)
    world.pass_time(30 * SECOND)
    assert world.lease("web", lease)["state"] == "failed"


def wanted(bench: Bench, guest: str, number: int) -> RequestTicket:
    """A request for a group that is never complete: it waits."""
    tag = bench.actor(guest).keyring.tag
    return RequestTicket(f"{tag}-{number}", 1, "new", "s", "vm", 1, Term(HOUR, 2 * HOUR), "", {"group_id": "g"}, b"")


@pytest.mark.parametrize("guests", [("guest", "meek"), ("guest", "meek", "third", "fourth")])
def test_a_busy_peer_leaves_others_their_share(guests: tuple[str, ...]) -> None:
    """One that sends valid requests without end fills what is for all, and its own share: each other one finds its
    share of the places for requests that wait, whenever it comes.
    """
    most = 40
    bench = Bench(Plan(broker=BrokerSettings(pending_max=most), guests=guests)).start()
    for number in range(10 * most):
        bench.receive("broker", "guest", wanted(bench, "guest", number))
    share = most // 2 // len(guests)
    assert bench.query("broker", "status")["waiting"] == most // 2 + share
    for guest in guests[1:]:
        for number in range(share):
            bench.receive("broker", guest, wanted(bench, guest, number))
    assert bench.query("broker", "status")["waiting"] == most
    assert {lease.holder for lease in bench.actor("broker").leases.values()} == set(guests)
    bench.receive("broker", "meek", wanted(bench, "meek", share))
    assert bench.query("broker", "status")["waiting"] == most


def test_a_peer_that_says_much_is_told_to_come_later() -> None:
    """Of each peer a broker keeps so many bytes: others find their room, a restart forgets none of it, and who has
    leases that are over has room again.
    """
    filler, most = {"filler": "x" * 3 * RECORD_BYTES}, 40 * RECORD_BYTES
    settings = BrokerSettings(kept_bytes=most, request_timeout=HOUR)
    bench = Bench(Plan(broker=settings, guests=("guest", "meek"))).start()

    def ask(guest: str, first: int) -> int:
        """How many of ten more requests are taken."""
        before = len(bench.actor("broker").leases)
        for number in range(first, first + 10):
            asked = wanted(bench, guest, number)
            term = Term(bench.now + HOUR, bench.now + 2 * HOUR)
            bench.receive("broker", guest, replace(asked, term=term, properties={**asked.properties, **filler}))
        return len(bench.actor("broker").leases) - before

    assert ask("guest", 0) == 9
    assert ask("guest", 10) == 0
    assert ask("meek", 0) == 9
    bench.crash("broker")
    bench.run_until(bench.now + MINUTE)
    assert len(bench.actor("broker").leases) == 18
    assert ask("guest", 20) == 0
    bench.run_until(bench.now + 2 * HOUR)
    assert not bench.actor("broker").leases
    assert ask("guest", 30) == 9


def properties_bytes(properties: Mapping[str, str]) -> int:
    """How much memory it takes to keep a property list that came in a message."""
    data = encode_message(RequestTicket("a-1", 1, "new", "s", "vm", 1, Term(1, 2), "", properties, b""))
    decode_message(data)  # what is made once is made
    tracemalloc.start()
    kept = decode_message(data)
    taken = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert isinstance(kept, RequestTicket)
    assert kept.properties == properties
    return taken


@pytest.mark.parametrize(
    "properties",
    [
        {str(number): str(number) for number in range(PROPERTIES_MAX - 1)},
        {"x": "a" * 10_000 + "\U0001f600"},
        {str(number): f"{number}é" for number in range(PROPERTIES_MAX - 1)},
    ],
)
def test_properties_count_as_what_they_take_in_memory(properties: Mapping[str, str]) -> None:
    """Many short pairs, and text of wide characters, take several times as much as their length on the wire."""
    wire = sum(len(text.encode()) for pair in properties.items() for text in pair)
    counted, taken = wire + properties_overhead(properties), properties_bytes(properties)
    assert taken > 2 * wire
    assert taken <= counted + RECORD_BYTES
    most = 10 * counted + 10 * RECORD_BYTES
    bench = Bench(Plan(broker=BrokerSettings(kept_bytes=most), guests=("guest",))).start()
    for number in range(40):
        asked = wanted(bench, "guest", number)
        bench.receive("broker", "guest", replace(asked, properties={**asked.properties, **properties}))
    kept = len(bench.actor("broker").leases)
    assert 0 < kept * taken <= most


@pytest.mark.parametrize(
    ("name", "item", "most"),
    [("exclude_sites", "site-{}", EXCLUDED_MAX), ("keep", "{:04x}:1", CLASSES_MAX)],
)
def test_lists_in_properties_are_short(name: str, item: str, most: int) -> None:
    """Lists that requests are compared by: read, each of their words takes many times its length."""
    bench = Bench(Plan(guests=("guest",))).start()
    for number, count in enumerate((most, most + 1)):
        asked = wanted(bench, "guest", number)
        text = ",".join(item.format(index) for index in range(count))
        bench.receive("broker", "guest", replace(asked, properties={**asked.properties, name: text}))
    (kept,) = bench.actor("broker").leases.values()
    assert kept.id.endswith("-0")


def test_a_site_keeps_so_much_of_a_guest(tmp_path: Path) -> None:
    """What is redeemed beyond it is refused, until leases are over."""
    text = CHAIN.replace("[actor.site]\n", f"[actor.site]\nsettings.kept_bytes = {7 * RECORD_BYTES}\n")
    world = DeployedWorld(text, tmp_path)
    world.pass_time(MINUTE)
    large = {"script": "x" * 3 * RECORD_BYTES}

    def ask() -> str:
        lease = world.request("web", 1, world.now + MINUTE, world.now + 10 * MINUTE, configuration=large)
        world.pass_time(2 * MINUTE)
        return str(world.lease("web", lease)["state"])

    assert [ask(), ask()] == ["active", "failed"]
    assert {error.reason.code for error in world.letters(ErrorReply, "site", "web")} == {Code.BUSY}
    world.pass_time(20 * MINUTE)
    assert ask() == "active"
