"""Hosts of a divided type: whole ones and machines on them, from inventory over brokers to places at the site."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest
from deployed_world import DeployedWorld

from leasekit.core.claims.claim import decode_ticket, delegate
from leasekit.core.leases import authority as au
from leasekit.core.leases import service_manager as sm
from leasekit.core.protocol.messages import NEW, ErrorReply, Redeem
from leasekit.core.reasons import Code, words
from leasekit.core.time import HOUR, MINUTE, SECOND, Instant, Term

HOSTS = """
[emulation]
horizon = "1d"
[actor.site]
role = "authority"
[[actor.site.inventory]]
type = "node"
names = ["a", "b"]
capacity = { cpu = 4, memory = "8GiB" }
[[actor.site.inventory]]
type = "node"
names = ["c"]
capacity = { cpu = 8, memory = "8GiB", core = 2 }
unit_properties = { rack = "c" }
[[actor.site.delegation]]
broker = "broker"
type = "node"
length = "1d"
[actor.broker]
role = "broker"
mapper = { name = "MAPPER" }
[actor.web]
role = "guest"
settings.default_broker = "broker"
[actor.batch]
role = "guest"
settings.default_broker = "broker"
"""
MAPPERS = ["fcfs", "timetable", "backfill", "priority", "fair_share"]
SMALL = {"needs.cpu": "1000", "needs.memory": "2048"}


def world_of(folder: Path, mapper: str = "fcfs") -> DeployedWorld:
    return DeployedWorld(HOSTS.replace("MAPPER", mapper), folder)


def ask(world: DeployedWorld, units: int, start: Instant, end: Instant, **more: Any) -> dict[str, Any]:
    """What became of a request, a second later."""
    guest = more.pop("guest", "web")
    lease = world.request(guest, units, start, end, type="node", **more)
    world.pass_time(SECOND)
    return world.lease(guest, lease)


def hosts(world: DeployedWorld, lease: str) -> Counter[str]:
    """On which hosts a lease's units are."""
    site = world.site()
    return Counter(site.units[name].host or name for name in site.leases[lease].units)


@pytest.mark.parametrize("mapper", MAPPERS)
def test_hosts_that_compute_most_with_a_watt_go_first(tmp_path: Path, mapper: str) -> None:
    """Of their machines, and whole ones, where any will do."""
    world = DeployedWorld(
        HOSTS.replace("MAPPER", mapper).replace('"c" }', '"c", gflops = "9", watts = "3" }'), tmp_path
    )
    start = world.now + MINUTE
    machines = ask(world, 3, start, start + HOUR, properties=SMALL)["id"]
    whole = ask(world, 1, start + 2 * HOUR, start + 3 * HOUR)["id"]
    world.run_until(start + MINUTE)
    assert hosts(world, machines) == {"c": 3}
    world.run_until(start + 2 * HOUR + MINUTE)
    assert hosts(world, whole) == {"c": 1}


def check_room(world: DeployedWorld) -> None:
    """No host has more on it than it has."""
    site = world.site()
    for host in site.units:
        on = [one for one in site.units.machines_on(host.id) if one.state != au.FREE]
        capacity = dict(site.units.inventory.hosts(host.type)[host.classes[0]].capacity)
        for name, most in capacity.items():
            assert sum(dict(one.size).get(name, 0) for one in on) <= most, host.id
        assert not on or host.state in (au.FREE, au.OUT)
    assert site.errors == [] and world.broker("broker").errors == []


@pytest.mark.parametrize("mapper", MAPPERS)
def test_machines_and_whole_hosts_share_one_calendar(tmp_path: Path, mapper: str) -> None:
    """What is there is given to machines and to whole hosts, each resource counted, and no more than that."""
    world = world_of(tmp_path, mapper)
    now = world.now
    first = ask(world, 4, now, now + HOUR, properties=SMALL)
    assert first["state"] != sm.FAILED, first["reason"]
    world.pass_time(MINUTE)
    assert world.lease("web", first["id"])["state"] == sm.ACTIVE
    assert max(hosts(world, first["id"]).values()) == 4, "what fits on one host is packed there"
    whole = ask(world, 2, now + MINUTE, now + HOUR, guest="batch")
    world.pass_time(MINUTE)
    assert world.lease("batch", whole["id"])["state"] == sm.ACTIVE
    assert hosts(world, first["id"]).keys().isdisjoint(hosts(world, whole["id"]))
    none = ask(world, 1, world.now, world.now + HOUR // 2, properties=SMALL)
    assert none["state"] == sm.FAILED, "memory is used up, whatever CPU there is"
    check_room(world)
    world.run_until(now + HOUR + MINUTE)
    again = ask(world, 12, world.now, world.now + HOUR, properties=SMALL)
    world.pass_time(MINUTE)
    assert sorted(hosts(world, again["id"]).values()) == [4, 4, 4]
    check_room(world)


def test_what_a_claim_counts(tmp_path: Path) -> None:
    """A guest's claim says how many machines of which class, what each takes, and what was asked for."""
    world = world_of(tmp_path)
    lease = ask(world, 2, world.now, world.now + HOUR, properties=SMALL)["id"]
    world.pass_time(MINUTE)
    held = world.guest("web").leases[lease].approved
    assert held is not None
    leaf, root = decode_ticket(held.ticket).leaf, decode_ticket(held.ticket).root
    assert leaf.units == 2 and leaf.sizes == ((("cpu", 1000), ("memory", 2048)),)
    assert {key: leaf.constraints[key] for key in SMALL} == SMALL
    assert root.units == 3 and dict(root.sizes[0])["memory"] == 8192


@pytest.mark.parametrize(
    "needs", [{"needs.cpu": "9000"}, {"needs.memory": "8193"}, {"needs.gpu": "1"}, {"needs.core": "1000"}]
)
def test_needs_that_no_host_has(tmp_path: Path, needs: dict[str, str]) -> None:
    """Needs above any host are refused at once, with what hosts have."""
    world = world_of(tmp_path)
    refused = ask(world, 1, world.now, world.now + HOUR, properties=needs)
    assert refused["state"] == sm.FAILED and Code.TOO_LARGE in str(refused["because"])
    assert "no host of 'node' has as much: cpu=4,memory=8GiB or cpu=8,memory=8GiB,core=2" in refused["reason"]


@pytest.mark.parametrize("text", ["x", "-1", "1.5", "nan", "9999999999"])
def test_needs_that_are_no_number(tmp_path: Path, text: str) -> None:
    """The guest itself refuses what is no amount, and names the key."""
    world = world_of(tmp_path)
    term = [world.now, world.now + HOUR]
    reply = world.command("web", "lease.request", type="node", units=1, term=term, properties={"needs.cpu": text})
    assert f"properties.needs.cpu: found {text!r}" in reply.error


def test_a_core_gives_so_much(tmp_path: Path) -> None:
    """What one virtual core needs must be what one core gives, where that is said: it is not added up."""
    world = world_of(tmp_path)
    lease = ask(world, 4, world.now, world.now + HOUR, properties={"needs.cpu": "2000", "needs.core": "2000"})
    world.pass_time(MINUTE)
    assert world.lease("web", lease["id"])["state"] == sm.ACTIVE
    filtered = {"needs.cpu": "2000", "needs.core": "3000", "filter": "rack == c"}
    assert ask(world, 1, world.now, world.now + HOUR, properties=filtered)["state"] == sm.FAILED


def test_pieces_make_no_machine(tmp_path: Path) -> None:
    """What a class has in all may be in pieces: the site refuses what has no place, by its code, says what hosts of the
    class have too little of, and counts it.
    """
    world = world_of(tmp_path)
    now = world.now
    for _ in range(2):
        one = ask(world, 1, now, now + HOUR, properties={"needs.cpu": "2500", "needs.memory": "5000"})
        assert one["state"] != sm.FAILED
    refused = ask(world, 1, world.now, now + HOUR, properties={"needs.cpu": "3000", "needs.memory": "1024"})
    world.pass_time(MINUTE)
    refused = world.lease("web", refused["id"])
    assert refused["state"] == sm.FAILED
    why = refused["because"]["causes"][0]
    assert (why["code"], why["units"], why["of"]) == (Code.FRAGMENTED, 0, 1)
    needed = {"code": Code.NEEDED, "units": 1500, "of": 3000, "detail": "3 needed, at most 1.5 free"}
    assert why["causes"] == [{"code": Code.TOO_LITTLE, "what": "cpu", "units": 2, "of": 2, "causes": [needed]}]
    assert refused["reason"].endswith("in pieces: too little cpu on 2 of 2 hosts: 3 needed, at most 1.5 free")
    status = world.query("site", "status")
    assert status["places"] == {"planned": 2, "fragmented": 1} and status["largest"] == {"node": "cpu=8,memory=8GiB"}
    check_room(world)


LARGE = {"needs.cpu": "3000", "needs.memory": "1024"}


@pytest.mark.parametrize("mapper", MAPPERS)
def test_a_broker_grants_nothing_that_no_host_has_in_one_piece(tmp_path: Path, mapper: str) -> None:
    """It hears from the site what hosts have left: another class is granted, then nothing, or from when on a host has
    more; and at once when a machine has left early.
    """
    world = world_of(tmp_path, mapper)
    now, end = world.now, world.now + HOUR
    first, _ = [
        ask(world, 1, now, end, properties={"needs.cpu": "2500", "needs.memory": "5000"})["id"] for _ in range(2)
    ]
    world.pass_time(3 * SECOND)
    third = ask(world, 1, world.now, end, properties=LARGE)["id"]
    world.pass_time(MINUTE)
    assert hosts(world, third) == {"c": 1}
    large = {**LARGE, "needs.cpu": "3900"}
    assert ask(world, 2, world.now, end, properties=large)["state"] == sm.FAILED
    assert not world.command("web", "lease.close", lease=first).error
    world.pass_time(MINUTE)
    assert ask(world, 2, world.now, end, properties=large)["state"] != sm.FAILED
    until = {"deferrable": "true", "latest_start": str(end + HOUR)}
    world.pass_time(3 * SECOND)
    put_off = ask(world, 1, world.now, world.now + HOUR, properties={**large, **until})["id"]
    world.run_until(end + MINUTE)
    assert world.lease("web", put_off)["state"] == sm.ACTIVE
    assert world.query("site", "status")["places"] == {"planned": 5, "fragmented": 0}
    check_room(world)


def test_machines_go_on_where_they_are(tmp_path: Path) -> None:
    """Extends keep machines on their hosts; a lease that grows gets more, and one that shrinks gives some up."""
    world = world_of(tmp_path)
    now = world.now
    lease = ask(world, 2, now, now + HOUR, properties=SMALL)["id"]
    world.pass_time(MINUTE)
    units, before = list(world.lease("site", lease)["units"]), hosts(world, lease)
    assert not world.command("web", "lease.extend", lease=lease, end=now + 2 * HOUR, units=5).error
    world.run_until(now + HOUR + MINUTE)
    assert set(units) < set(world.lease("site", lease)["units"])
    assert hosts(world, lease).total() == 5 and before <= hosts(world, lease)
    assert not world.command("web", "lease.modify", lease=lease, end=now + 2 * HOUR, units=1).error
    world.pass_time(MINUTE)
    assert world.lease("web", lease)["state"] == sm.ACTIVE and hosts(world, lease).total() == 1
    check_room(world)
    world.run_until(now + 3 * HOUR)
    assert not world.site().units.machines
    assert ask(world, 3, world.now, world.now + HOUR)["state"] != sm.FAILED


def test_restart_and_failure_of_a_host(tmp_path: Path) -> None:
    """Machines survive a restart of their site; those of a host that fails are replaced on others."""
    world = world_of(tmp_path)
    now = world.now
    lease = ask(world, 3, now, now + 4 * HOUR, properties=SMALL)["id"]
    later = ask(world, 1, now + HOUR, now + 2 * HOUR, properties=SMALL)["id"]
    world.pass_time(MINUTE)
    before = hosts(world, lease)
    world.restart("site")
    world.pass_time(MINUTE)
    assert hosts(world, lease) == before
    (host,) = before
    told = world.command("site", "unit.fail", unit=host, reason="fire").result
    assert (told["state"], told["reason"]) == ("out", "fire"), (
        "it is out at once, though its machines are torn down yet"
    )
    shown = {unit["unit"]: unit["state"] for unit in world.query("site", "units")}
    assert shown[host] == "out" and world.query("site", "status")["units"]["node"]["out"] == 1
    assert {state for name, state in shown.items() if name.startswith(f"{host}.")} == {"teardown"}
    world.pass_time(MINUTE)
    assert host not in hosts(world, lease) and hosts(world, lease).total() == 3
    assert world.lease("web", lease)["state"] == sm.ACTIVE
    world.run_until(now + HOUR + MINUTE)
    assert world.lease("web", later)["state"] == sm.ACTIVE
    check_room(world)


def test_all_machines_of_a_host_that_dies_come_back(tmp_path: Path) -> None:
    """However many of them are of one lease, again and again: it is no fault of theirs."""
    world = world_of(tmp_path)
    lease = ask(world, 10, world.now, world.now + HOUR, properties={"needs.cpu": "100", "needs.memory": "512"})["id"]
    world.pass_time(MINUTE)
    for _ in range(2):
        host, count = hosts(world, lease).most_common(1)[0]
        assert count == 10
        assert not world.command("site", "unit.fail", unit=host).error
        world.pass_time(MINUTE)
        assert hosts(world, lease).total() == 10 and host not in hosts(world, lease)
        assert not world.command("site", "unit.enable", unit=host).error
    check_room(world)


@pytest.mark.parametrize("needs", [{}, SMALL | {"needs.memory": "8192"}], ids=["a whole host", "a machine"])
def test_nobody_waits_for_room_behind_a_teardown_that_failed(tmp_path: Path, needs: dict[str, str]) -> None:
    """What was to come to a host when a machine has left it goes elsewhere when that machine can't be torn down; the
    host is in service again when it could be.
    """
    world = world_of(tmp_path)
    now = world.now
    machine = ask(world, 1, now, now + HOUR, properties=SMALL)["id"]
    to_come = ask(world, 1, now + HOUR, now + 2 * HOUR, guest="batch", properties=needs)["id"]
    world.pass_time(MINUTE)
    (left,), (host,) = world.site().leases[machine].units, hosts(world, machine)
    others = sorted({unit.id for unit in world.site().units} - {host})
    for other in others:
        assert not world.command("site", "unit.disable", unit=other).error
    world.failing = "teardown"
    world.run_until(now + HOUR + SECOND // 4)
    assert set(hosts(world, to_come)) == {host}, "nothing else is left"
    world.failing = ""
    for other in others:
        assert not world.command("site", "unit.enable", unit=other).error
    world.pass_time(MINUTE)
    assert world.site().units[left].is_out
    assert world.lease("batch", to_come)["state"] == sm.ACTIVE and host not in hosts(world, to_come)
    assert not world.command("site", "unit.enable", unit=left).error
    world.pass_time(MINUTE)
    assert world.site().units[host].is_clean and not world.site().units[host].retire
    check_room(world)


@pytest.mark.parametrize(
    ("needs", "size", "word"),
    [
        ({"needs.cpu": "4000", "needs.memory": "8192"}, (("cpu", 1), ("memory", 1)), "gives cpu=0.001,memory=1MiB"),
        ({"needs.cpu": "x"}, (("cpu", 1000), ("memory", 2048)), "needs.cpu: found 'x'"),
        ({"needs.gpu": "1"}, (("cpu", 1000), ("memory", 2048)), "needs gpu=1"),
        ({}, (("cpu", 1000), ("memory", 2048)), "a whole host"),
    ],
)
def test_a_broker_can_not_make_machines_look_small(
    tmp_path: Path, needs: dict[str, str], size: tuple[tuple[str, int], ...], word: str
) -> None:
    """A site refuses a ticket whose units take less than they need, whatever its broker has signed, and goes on."""
    world = world_of(tmp_path)
    broker, now = world.broker("broker"), world.now
    (source,) = broker.book.of_type("node")
    whole = broker.book.ticket(source.id)
    class_ = whole.leaf.classes[0][0]
    ticket = delegate(
        whole, broker.keyring.signer, holder=world.guest("web").keyring.signer.public, units=((class_, 1),),
        term=Term(now, now + HOUR), serial=999, constraints=needs, sizes=(size,),
    )  # fmt: skip
    lease = ask(world, 1, now, now + HOUR)["id"].rpartition("-")[0] + "-999"
    world.receive("site", "web", Redeem(lease, 1, NEW, "s", ticket.encode(), {}, {}, (), b""))
    world.pass_time(SECOND)
    words_ = [words(one.reason) for one in world.letters(ErrorReply, "site", "web")]
    assert any(word in one for one in words_), words_
    assert ask(world, 1, now + SECOND, now + HOUR, properties=SMALL)["state"] != sm.FAILED
    assert lease not in world.site().leases


def test_equal_hosts_of_two_types(tmp_path: Path) -> None:
    """What is asked for of one type has its place on no host of the other, whose hosts are as large."""
    group = '[[actor.site.inventory]]\ntype = "TYPE"\nnames = NAMES\ncapacity = { cpu = 4, memory = "8GiB" }\n'
    text = HOSTS.replace("MAPPER", "fcfs")
    a, b = text.index("[[actor.site.inventory]]"), text.index("[[actor.site.delegation]]")
    two = group.replace("TYPE", "other").replace("NAMES", '["x", "y"]') + group.replace("TYPE", "node").replace(
        "NAMES", '["a", "b"]'
    )
    world = DeployedWorld(text[:a] + two + text[b:], tmp_path)
    site, term = world.site(), Term(world.now, world.now + HOUR)
    assert site.units["a"].classes == site.units["x"].classes
    size = (("cpu", 1000), ("memory", 2048))
    assert site.calendars.places._best("node", site.units["a"].classes[0], size, term) == "a"
    first = ask(world, 2, world.now, world.now + HOUR, properties=SMALL)["id"]
    assert ask(world, 7, world.now, world.now + HOUR, properties=SMALL)["state"] == sm.FAILED
    rest = ask(world, 6, world.now, world.now + HOUR, properties=SMALL)["id"]
    world.pass_time(MINUTE)
    assert hosts(world, first) + hosts(world, rest) == Counter(a=4, b=4)
    check_room(world)


@pytest.mark.parametrize("seed", range(6))
def test_places_are_found_as_by_a_look_at_all_hosts(tmp_path: Path, seed: int) -> None:
    """The host with room that has the least left, as leases begin, end, are closed, and hosts go out of service."""
    rng, world = Random(seed), world_of(tmp_path)
    places, compared, moved = world.site().calendars.places, 0, 0
    for _ in range(80):
        start = world.now + rng.choice((0, 0, rng.randrange(HOUR)))
        term = Term(start, start + rng.randrange(MINUTE, 2 * HOUR))
        size = (("cpu", 500 * rng.randrange(1, 9)), ("memory", 1024 * rng.randrange(1, 8)))
        for class_, one in world.site().units.inventory.hosts("node").items():
            there = [
                unit for unit in world.site().units if unit.classes[0] == class_ and places.room(unit.id, size, term)
            ]
            best = min(there, key=lambda unit: (places._free(unit.id, term), unit.number), default=None)
            found = places._best("node", class_, size, term)
            assert found == (best and best.id), (size, term, one)
            compared += best is not None
        for one in world.site().leases.values():
            if one.places and world.now < one.term.end and one.ended < 0:
                claims, there = {one.claim: Term(world.now, one.term.end)}, one.places[0]
                of_class = [unit for unit in world.site().units if unit.classes == world.site().units[there].classes]
                others = [unit for unit in of_class if unit.id != there and places.can_move(claims, there, unit.id)]
                rest = claims[one.claim]
                best = min(others, key=lambda unit: (places._free(unit.id, rest), unit.number), default=None)
                assert places.elsewhere(claims, there) == (best and best.id) or not places.of(one.claim)
                moved += best is not None
        needs = {f"needs.{name}": str(much) for name, much in size}
        lease = ask(world, rng.randrange(1, 3), *term, properties=needs)["id"]
        if rng.random() < 0.3:
            world.command("web", "lease.close", lease=lease)
        host = rng.choice("abc")
        if rng.random() < 0.1:
            world.command("site", "unit.disable", unit=host)
            world.pass_time(SECOND)
            assert places.room(host, size, term) == 0
            world.command("site", "unit.enable", unit=host)
        world.pass_time(rng.randrange(10 * MINUTE))
        capacity = dict(places.largest("node"))
        assert all(
            max(max(0, amount_free(world, name, unit)) for unit in world.site().units) == capacity.get(name, 0)
            for name in ("cpu", "memory")
        )
    assert compared > 40 and moved


def amount_free(world: DeployedWorld, resource: str, host: Any) -> int:
    """How much of a host's resource its calendar has free now: none, if it is out of service."""
    site = world.site()
    table = site.calendars.places._tables.get(host.id, {}).get(resource)
    has = dict(site.units.inventory.hosts("node")[host.classes[0]].capacity)[resource]
    return 0 if host.is_out or host.retire else has if table is None else int(table.free_at(world.now))
