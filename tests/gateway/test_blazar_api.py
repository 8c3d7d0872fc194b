"""Blazar's API, through OpenStack's own clients and through HTTP, against real daemons."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from blazar_world import BlazarUnderTest, at, deployed, free_port, whole
from cli_daemons import running

from leasekit.runtime.client import ControlClient

RACERS = 16
RACES = 12


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BlazarUnderTest]:
    """The deployment of deploy/blazar, once for the tests of a module."""
    folder, port = tmp_path_factory.mktemp("blazar"), free_port()
    with running(deployed(folder, port)):
        yield BlazarUnderTest(port)


@pytest.fixture
def client(world: BlazarUnderTest) -> Iterator[httpx.Client]:
    """A client of the API; all leases are deleted after the test."""
    with world.client() as client:
        yield client
        for one in client.get("/leases").json()["leases"]:
            assert client.delete(f"/leases/{one['id']}").status_code == 204


def statuses(lease: dict[str, Any]) -> tuple[str, set[str], dict[str, str]]:
    """The status of a lease, of its reservations and of its events."""
    events = {one["event_type"]: one["status"] for one in lease["events"]}
    return lease["status"], {one["status"] for one in lease["reservations"]}, events


def until(client: httpx.Client, lease: str, status: str) -> dict[str, Any]:
    """The lease, once it has a status. Each event that the gateway tells is a reason to look again."""
    events = f"http://127.0.0.1:{client.base_url.port}/api/v1/events"
    with client.stream("GET", events) as answer:
        lines = answer.iter_lines()
        next(line for line in lines if line.startswith(": connected"))
        while True:
            found = dict(client.get(f"/leases/{lease}").json()["lease"])
            if found["status"] == status:
                return found
            next(line for line in lines if line.startswith("data:"))


def test_a_lease_by_the_command_blazar(world: BlazarUnderTest, client: httpx.Client) -> None:
    """Created, listed, shown by its name, prolonged, reduced, renamed and deleted, as the client's manual says."""
    wish = 'min=1,max=2,resource_properties=["==","$gpu","True"]'
    world.blazar("lease-create", "--physical-reservation", wish, "--end-date", at(120), "first")
    (lease,) = client.get("/leases").json()["leases"]
    lease = until(client, lease["id"], "ACTIVE")
    begun = {"start_lease": "DONE", "before_end_lease": "UNDONE", "end_lease": "UNDONE"}
    assert statuses(lease) == ("ACTIVE", {"active"}, begun)
    (reservation,) = lease["reservations"]
    asked = {"min": 1, "max": 2, "resource_properties": '["==","$gpu","True"]', "hypervisor_properties": ""}
    assert asked.items() <= reservation.items()
    assert "first" in world.blazar("lease-list")
    assert "ACTIVE" in world.blazar("lease-show", "first")
    world.blazar("lease-update", "--prolong-for", "1h", "first")
    longer = client.get(f"/leases/{lease['id']}").json()["lease"]["end_date"]
    assert longer > lease["end_date"]
    world.blazar("lease-update", "--reduce-by", "90m", "first")
    assert client.get(f"/leases/{lease['id']}").json()["lease"]["end_date"] < lease["end_date"]
    world.blazar("lease-update", "--name", "premier", "first")
    world.blazar("lease-delete", "premier")
    assert client.get(f"/leases/{lease['id']}").status_code == 404
    assert client.get("/leases").json() == {"leases": []}


def test_a_lease_by_the_command_openstack(world: BlazarUnderTest, client: httpx.Client) -> None:
    """The plugin of `openstack` does the same, and shows whom a host is allocated to."""
    name = '["==","$hypervisor_hostname","compute-3"]'
    made = world.openstack(
        "reservation", "lease", "create", "--start-date", at(60), "--end-date", at(120), "--reservation",
        f"resource_type=physical:host,min=1,max=1,hypervisor_properties={name}", "later",
    )  # fmt: skip
    assert made["status"] == "PENDING"
    shown = world.openstack("reservation", "allocation", "show", "host", "compute-3")
    assert [made["id"] in str(shown["reservations"]), shown["resource_id"]] == [True, "3"]
    assert [one["Id" if "Id" in one else "id"] for one in world.openstack("reservation", "lease", "list")] == [
        made["id"]
    ]
    hosts = world.openstack("reservation", "host", "list")
    assert [(one["id"], one["hypervisor_hostname"]) for one in hosts] == [
        (str(number), f"compute-{number}") for number in (1, 2, 3, 4)
    ]


def test_a_host_comes_changes_and_goes(world: BlazarUnderTest, client: httpx.Client) -> None:
    """Numbers are never given again, and a host that is reserved stays."""
    extra = ["--extra", "vcpus=8", "--extra", "memory_mb=16384", "--extra", "gpu=No"]
    world.blazar("host-create", "compute-9", *extra)
    made = next(one for one in client.get("/os-hosts").json()["hosts"] if one["hypervisor_hostname"] == "compute-9")
    assert (made["vcpus"], made["memory_mb"], made["gpu"]) == (8, 16_384, "No")
    world.blazar("host-update", "compute-9", "--extra", "gpu=Yes", "--extra", "rack=r1")
    shown = client.get(f"/os-hosts/{made['id']}").json()["host"]
    assert (shown["gpu"], shown["rack"], shown["vcpus"]) == ("Yes", "r1", 8)
    values = {one["property"]: one["values"] for one in properties(client)}
    assert values["gpu"] == ["False", "True", "Yes"]
    leased = world.lease(client, whole(resource_properties='["==", "$rack", "r1"]'))
    assert leased.status_code == 201, leased.text
    refused = client.delete(f"/os-hosts/{made['id']}")
    assert (refused.status_code, refused.json()["error_message"]) == (
        409, f"Can't delete host {made['id']}. The host is reserved.",
    )  # fmt: skip
    client.delete(f"/leases/{leased.json()['lease']['id']}")
    world.blazar("host-delete", "compute-9")
    assert client.get(f"/os-hosts/{made['id']}").status_code == 404
    world.blazar("host-create", "compute-10", *extra)
    again = next(one for one in client.get("/os-hosts").json()["hosts"] if one["hypervisor_hostname"] == "compute-10")
    assert int(again["id"]) > int(made["id"])
    assert client.delete(f"/os-hosts/{again['id']}").status_code == 204


def properties(client: httpx.Client) -> list[dict[str, Any]]:
    """All properties that can be asked for, with their values."""
    return list(client.get("/os-hosts/properties", params={"detail": "True"}).json()["resource_properties"])


def test_reservations_of_one_lease_are_granted_together(world: BlazarUnderTest, client: httpx.Client) -> None:
    """Both have what they need at least, or there is no lease."""
    both = world.lease(client, whole(1, 3), whole(1, 4)).json()["lease"]
    held = [len(one["reservations"]) for one in client.get("/os-hosts/allocations").json()["allocations"]]
    assert held == [1, 1, 1, 1]
    assert len({one["id"] for one in both["reservations"]}) == 2
    refused = world.lease(client, whole(1), whole(1))
    assert refused.status_code == 409
    assert refused.json()["error_message"].startswith("Not enough hosts available")
    client.delete(f"/leases/{both['id']}")


def test_machines_share_what_whole_hosts_leave(world: BlazarUnderTest, client: httpx.Client) -> None:
    """Reservations of instances are machines on hosts: four of four cores fit on the host that is left, five don't."""
    term = {"start_date": at(60), "end_date": at(90)}
    assert world.lease(client, whole(3), **term).status_code == 201
    four = {"resource_type": "virtual:instance", "vcpus": 4, "memory_mb": 8192, "disk_gb": 0, "amount": 4}
    assert world.lease(client, {**four, "amount": 5}, **term).status_code == 409
    made = world.lease(client, {**four, "affinity": "None"}, **term)
    assert made.status_code == 201, made.text
    (reservation,) = made.json()["lease"]["reservations"]
    assert (reservation["vcpus"], reservation["amount"], reservation["affinity"]) == (4, 4, None)
    assert world.lease(client, {**four, "amount": 1}, **term).status_code == 409


def test_touching_reservations_share_no_host(world: BlazarUnderTest, client: httpx.Client) -> None:
    """One begins when the other ends, on the same host; what overlaps by a minute is refused."""
    name = {"hypervisor_properties": '["==", "$hypervisor_hostname", "compute-1"]'}
    first = world.lease(client, whole(**name), start_date=at(60), end_date=at(120))
    second = world.lease(client, whole(**name), start_date=at(120), end_date=at(180))
    assert (first.status_code, second.status_code) == (201, 201), first.text + second.text
    assert world.lease(client, whole(**name), start_date=at(119), end_date=at(121)).status_code == 409
    (found,) = [one for one in client.get("/os-hosts/allocations").json()["allocations"] if one["resource_id"] == "1"]
    one, other = found["reservations"]
    assert one["end_date"] <= other["start_date"]


def test_a_lease_that_has_not_begun_keeps_its_dates(world: BlazarUnderTest, client: httpx.Client) -> None:
    """That it can't be moved is told, in words; its name may change."""
    made = world.lease(client, whole(), start_date=at(60), end_date=at(120)).json()["lease"]
    for change in ({"start_date": at(70)}, {"end_date": at(180)}, {"end_date": at(90)}):
        refused = client.put(f"/leases/{made['id']}", json=change)
        assert (refused.status_code, "has not begun" in refused.json()["error_message"]) == (409, True), refused.text
    shown = client.put(f"/leases/{made['id']}", json={"name": "later"}).json()["lease"]
    assert (shown["name"], shown["end_date"], shown["status"]) == ("later", made["end_date"], "PENDING")


def test_exactly_one_wins_a_race(world: BlazarUnderTest, client: httpx.Client) -> None:
    """Sixteen ask for one host at once, over and over."""
    name = {"hypervisor_properties": '["==", "$hypervisor_hostname", "compute-2"]'}

    def ask(_: int) -> tuple[int, str]:
        with world.client() as racer:
            answer = world.lease(racer, whole(**name), start_date=at(60), end_date=at(120))
            return answer.status_code, answer.json().get("lease", {}).get("id", "")

    with ThreadPoolExecutor(RACERS) as pool:
        for _ in range(RACES):
            answers = list(pool.map(ask, range(RACERS)))
            assert sorted(status for status, _ in answers) == [201] + [409] * (RACERS - 1)
            assert client.delete(f"/leases/{max(id_ for _, id_ in answers)}").status_code == 204


def test_a_lease_that_is_over_stays_in_the_list(world: BlazarUnderTest, client: httpx.Client) -> None:
    """Its statuses say that it has ended, on its own."""
    made = world.lease(client, whole(), end_date=at(0.1)).json()["lease"]  # six seconds at least to ask for it in
    lease = until(client, made["id"], "TERMINATED")
    assert statuses(lease) == (
        "TERMINATED", {"deleted"}, {"start_lease": "DONE", "before_end_lease": "DONE", "end_lease": "DONE"},
    )  # fmt: skip
    renamed = client.put(f"/leases/{made['id']}", json={"name": "past"})
    assert renamed.json()["lease"]["name"] == "past"
    longer = client.put(f"/leases/{made['id']}", json={"end_date": at(60)})
    assert (longer.status_code, longer.json()["error_message"]) == (400, "Terminated leases can only be renamed")


MACHINE = {"resource_type": "virtual:instance", "vcpus": 1, "memory_mb": 1024, "amount": 1}
BAD: list[tuple[dict[str, Any], str]] = [
    ({"start_date": "tomorrow"}, "tomorrow is an invalid date"),
    ({"end_date": "2026-13-01 00:00"}, "2026-13-01 00:00 is an invalid date"),
    ({"end_date": None}, "end_date"),
    ({"start_date": "2020-01-01 00:00"}, "Start date must be later than current date"),
    ({"start_date": at(60), "end_date": at(30)}, "End date must be later than start date"),
    ({"before_end_date": at(600)}, "Datetime is out of lease limits"),
    ({"name": ""}, "name"),
    ({"name": "x" * 81}, "name"),
    ({"reservations": []}, "reservations"),
    ({"reservations": [whole()] * 101}, "reservations"),
    ({"reservations": ["physical:host"]}, "reservations"),
    ({"reservations": [{"min": 1, "max": 1}]}, "Missing parameter resource_type"),
    ({"reservations": [{"resource_type": "virtual:floatingip"}]}, "resource type is not supported"),
    ({"reservations": [{"resource_type": "flavor:instance"}]}, "resource type is not supported"),
    ({"reservations": [whole(2, 1)]}, "Max must be equal to or larger than min"),
    ({"reservations": [whole(0)]}, "Malformed parameter min"),
    ({"reservations": [whole(-1)]}, "Malformed parameter min"),
    ({"reservations": [{**whole(), "min": ""}]}, "Missing parameter min"),
    ({"reservations": [{**whole(), "max": "many"}]}, "Malformed parameter max"),
    ({"reservations": [whole(before_end="reboot")]}, "Malformed parameter before_end"),
    ({"reservations": [whole(resource_properties="gpu")]}, "Malformed requirements"),
    ({"reservations": [whole(resource_properties='["==", "$gpu"]')]}, "Malformed requirements"),
    ({"reservations": [whole(resource_properties='{"gpu": 1}')]}, "Malformed requirements"),
    ({"reservations": [whole(resource_properties="[" * 5000)]}, "Malformed requirements"),
    ({"reservations": [{**MACHINE, "affinity": True}]}, "affinity"),
    ({"reservations": [{**MACHINE, "vcpus": "half"}]}, "Malformed parameter vcpus"),
    ({"events": [{"event_type": "notification", "event_date": at(1)}]}, "events"),
    ({"surprise": 1}, "surprise"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "words"), BAD, ids=[f"{n}-{words[:20]}" for n, (_, words) in enumerate(BAD)])
def test_bad_leases_are_refused_in_blazars_form(
    world: BlazarUnderTest, client: httpx.Client, change: dict[str, Any], words: str
) -> None:
    """What Blazar answers with 500 at times is told as what is wrong, and nothing is left of it."""
    answer = world.lease(client, **{"reservations": [whole()], **change})
    told = answer.json()
    assert (answer.status_code, told["error_code"], told["error_name"]) == (400, 400, 400), answer.text
    assert words in told["error_message"]
    assert client.get("/leases").json() == {"leases": []}


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"null", b'"x"', b"\xff", b"[" * 100_000, b'{"name": "\\ud800"}'])
def test_bodies_that_are_none_are_refused(client: httpx.Client, body: bytes) -> None:
    """Of every path that takes one."""
    for method, path in (("POST", "/leases"), ("POST", "/os-hosts"), ("PUT", "/os-hosts/1")):
        answer = client.request(method, path, content=body, headers={"content-type": "application/json"})
        assert answer.status_code == 400, (method, path, answer.text)


def test_what_there_is_not_is_told(client: httpx.Client) -> None:
    """Unknown ids, paths that are not served, versions of the API that there are not."""
    absent = "00000000-0000-0000-0000-000000000000"
    for path in (f"/leases/{absent}", "/leases/x", "/os-hosts/99", "/os-hosts/x", "/os-hosts/99/allocation"):
        assert client.get(path).json()["error_code"] == 404, path
    for method, path in (("GET", "/floatingips"), ("POST", "/floatingips/1"), ("PATCH", "/leases"), ("GET", "/x/y")):
        assert client.request(method, path).json()["error_code"] == 404, path
    assert client.get("/leases", headers={"OpenStack-API-Version": "reservation 9.0"}).status_code == 406
    assert client.get("/leases", headers={"OpenStack-API-Version": "reservation latest"}).status_code == 200
    versions = client.get("/../")
    assert (versions.status_code, versions.json()["versions"][0]["id"]) == (300, "v1.0")


def test_tokens_say_who_may_what(tmp_path_factory: pytest.TempPathFactory) -> None:
    """With a token the same clients work; hosts are an auditor's to see, and an operator's to change."""
    folder, port = tmp_path_factory.mktemp("tokens"), free_port()
    file = deployed(folder, port, **{"without_login = true ": "without_login = false "})
    with running(file), ControlClient(folder / "run/blazar/web.control.sock") as control:
        world = BlazarUnderTest(port)

        def token(name: str, *offices: str, **projects: str) -> str:
            asked = {"name": name, "caller": name, "offices": list(offices), "projects": projects, "length": None}
            return str(control.command("api", method="POST", path="/tokens", body=asked)["secret"])

        olga, ursula = token("olga", "operator"), token("ursula", guest="user")
        assert "a token is needed" in world.blazar("lease-list", status=1)
        assert len(world.openstack("reservation", "host", "list", token=olga)) == 4
        assert "ursula is no auditor" in world.blazar("host-list", token=ursula, status=1)
        world.blazar("lease-create", "--physical-reservation", "min=1,max=1", "hers", token=ursula)
        (lease,) = world.openstack("reservation", "lease", "list", token=ursula)
        assert lease["name"] == "hers"
        with world.client(headers={"x-auth-token": token("viktor", guest="viewer")}) as viewer:
            assert viewer.get("/leases").json()["leases"][0]["user_id"] == "ursula"
            assert viewer.delete(f"/leases/{lease['id']}").status_code == 403
        policy = {"longest": "1h"}
        api = httpx.Client(base_url=f"http://127.0.0.1:{port}/api/v1", headers={"authorization": f"Bearer {olga}"})
        headers = {"x-auth-token": ursula, "authorization": f"Bearer {ursula}"}
        with api, world.client(headers=headers) as user:
            assert api.put("/policies/guest", json=policy).status_code == 200
            refused = world.lease(user, whole(), end_date=at(120))
            assert (refused.status_code, refused.json()["error_code"]) == (403, 403), refused.text
            until(user, lease["id"], "ACTIVE")
            assert user.put(f"/leases/{lease['id']}", json={"end_date": at(3000)}).status_code == 403
            assert world.lease(user, whole(), end_date=at(30)).status_code == 201


def test_a_lease_moves_whose_hosts_are_chosen_later(tmp_path: Path) -> None:
    """Where tickets are redeemed shortly before the start, a lease that has not begun is deferred and prolonged."""
    port = free_port()
    with running(deployed(tmp_path, port, **{'redeem_lead = "365d"': 'redeem_lead = "5s"'})):
        world = BlazarUnderTest(port)
        with world.client() as client:
            made = world.lease(client, whole(4), start_date=at(60), end_date=at(120)).json()["lease"]
            world.blazar("lease-update", "--defer-by", "10m", "test")
            later = client.get(f"/leases/{made['id']}").json()["lease"]
            assert later["start_date"] > made["start_date"]
            for change in ({"end_date": at(180)}, {"end_date": at(90)}):
                moved = client.put(f"/leases/{made['id']}", json=change)
                assert moved.status_code == 200, moved.text
            other = world.lease(client, whole(4), start_date=at(90), end_date=at(120))
            assert other.status_code == 201, other.text
            refused = client.put(f"/leases/{made['id']}", json={"end_date": at(100)})
            assert refused.json()["error_message"].startswith("Not enough hosts available"), refused.text
            assert client.get(f"/leases/{made['id']}").json()["lease"]["end_date"] == moved.json()["lease"]["end_date"]


def test_a_broker_that_is_away_is_named_at_once(tmp_path: Path) -> None:
    """A create, or a change, that needs its answer is refused; what was to be created is being deleted."""
    port = free_port()
    file = deployed(tmp_path, port)
    world, gone = BlazarUnderTest(port), running(file, only=["broker"])
    with running(file, only=["site", "guest", "web"]), gone as broker, world.client(timeout=20) as client:
        lease = until(client, world.lease(client, whole()).json()["lease"]["id"], "ACTIVE")
        broker.send_signal(signal.SIGTERM)
        broker.wait()
        created = world.lease(client, whole(), name="other")
        changed = client.put(f"/leases/{lease['id']}", json={"end_date": at(120)})
        for answer in (created, changed):
            assert (answer.status_code, "broker is away" in answer.text) == (503, True), answer.text
        left = {one["name"]: one["status"] for one in client.get("/leases").json()["leases"]}
        assert left == {"test": "ACTIVE", "other": "DELETING"}
