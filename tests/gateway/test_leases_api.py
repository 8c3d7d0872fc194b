"""Leases over HTTP, on real daemons: what is asked for is there; what can't be is said with key, found and allowed."""

from __future__ import annotations

import json
import select
import socket
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, ClassVar

import httpx
import pytest
import trio
from gateway_world import GatewayUnderTest, until
from starlette.requests import Request
from trio.testing import MockClock

from leasekit.gateway.incoming import BODY_WITHIN, read_body
from leasekit.gateway.leases import LeaseList, list_leases
from leasekit.gateway.problems import ProblemError

Leased = Callable[..., dict[str, Any]]
MANY = [str(number) for number in range(257)]


def test_a_refused_request_leaves_its_connection_to_the_next(gateway: GatewayUnderTest) -> None:
    """Its body comes after its head, as clients send them: the server has read it before it says no."""
    head = (
        b"POST /api/v1/leases HTTP/1.1\r\nHost: gateway\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n"
    )
    with socket.socket(socket.AF_UNIX) as one, one.makefile("rb") as answers:
        one.connect(str(gateway.folder / "web.http"))
        for _ in range(2):
            one.sendall(head)
            assert not select.select([one], [], [], 0.2)[0], "an answer before its body, that would end the connection"
            one.sendall(b"{}")
            assert answers.readline().split()[1] == b"401"
            length = 0
            while (line := answers.readline()) != b"\r\n":
                length = int(line.split()[1]) if line.lower().startswith(b"content-length") else length
            assert json.loads(answers.read(length))["code"] == "unauthenticated"


def test_a_lease_from_request_to_close(user: httpx.Client, leased: Leased) -> None:
    """It is asked for, becomes active, shows its units, is extended, changed and closed; its history says by whom."""
    asked = leased(units=2, name="web", configuration={"image": "a"})
    assert (asked["project"], asked["units"], asked["state"], asked["properties"]["deferrable"]) == (
        "alpha", 2, "nascent", "true"
    )  # fmt: skip
    lease = until(user, "web", "active")
    assert [unit["unit"] for unit in lease["members"]] == ["vm-0", "vm-1"]
    assert lease["configuration"] == {"image": "a"}
    longer = user.post(f"/leases/{lease['id']}/extend", json={"length": "30m"}).json()
    assert longer["id"] == lease["id"]
    extended = until(user, "web", "active_ticketed")
    ends = datetime.fromisoformat(extended["extended_to"]) - datetime.fromisoformat(extended["end"])
    (listed,) = (one for one in user.get("/leases").json()["items"] if one["id"] == lease["id"])
    assert (ends, extended["undo"], listed["extended_to"]) == (timedelta(minutes=30), True, extended["extended_to"])
    assert user.post("/leases/web/undo-extend").status_code == 200
    back = until(user, "web", "active")
    assert (back["extended_to"], back["undo"]) == (None, False)
    smaller = user.patch("/leases/web", json={"units": 1})
    assert smaller.status_code == 200
    assert len(until(user, "web", "active")["members"]) == 1
    closed = user.post("/leases/web/close", json={"reason": "done"})
    assert closed.status_code == 200
    assert until(user, lease["id"], "closed")["reason"] == "done"
    lines = user.get(f"/leases/{lease['id']}/history").json()["items"]
    commanded = [line["event"] for line in lines if line["code"] == "commanded"]
    assert commanded == ["lease.request", "lease.extend", "lease.undo_extend", "lease.modify", "lease.close"]
    assert {line["reason"] for line in lines if line["code"] == "commanded"} == {"commanded by ursula (token ursula)"}


def test_dry_runs_change_nothing(user: httpx.Client, leased: Leased) -> None:
    """The broker's answer comes with its code, and no lease is there."""
    before = user.get("/leases").json()
    tried = user.post("/leases/dry-run", json={"type": "vm", "units": 6, "length": "1h"}).json()
    assert (tried["status"], tried["site"], tried["units"]) == ("granted", "site", 6)
    refused = user.post("/leases/dry-run", json={"type": "vm", "units": 7, "length": "1h"}).json()
    assert (refused["status"], refused["code"]) == ("refused", "too_large")
    assert user.get("/leases").json() == before
    lease = leased(units=4)
    until(user, lease["id"], "active")
    extended = user.post(f"/leases/{lease['id']}/extend/dry-run", json={"length": "1h"}).json()
    modified = user.post(f"/leases/{lease['id']}/modify/dry-run", json={"units": 6}).json()
    assert (extended["status"], modified["status"]) == ("granted", "granted")


def test_pages_follow_each_other(user: httpx.Client, leased: Leased) -> None:
    """Those that go on come first, in the order of request, then those that are over; each once, whatever the limit."""
    made = [leased(name=f"page-{number}")["id"] for number in range(5)]
    for id_ in made:
        until(user, id_, "active")
    for id_ in made[:2]:
        user.post(f"/leases/{id_}/close", json={})
        until(user, id_, "closed")
    for limit in (1, 2, 100):
        seen: list[str] = []
        cursor: str | None = ""
        while cursor is not None:
            page = user.get("/leases", params={"all": True, "limit": limit, "cursor": cursor}).json()
            assert len(page["items"]) <= limit
            seen += [lease["id"] for lease in page["items"]]
            cursor = page["next"]
        assert len(set(seen)) == len(seen)
        assert seen[:3] == made[2:]
        assert set(made[:2]) <= set(seen[3:])
    assert [one["id"] for one in user.get("/leases", params={"state": "active"}).json()["items"]] == made[2:]
    assert user.get("/leases", params={"type": "gpu"}).json() == {"items": [], "next": None}


@pytest.mark.parametrize(
    ("body", "status", "detail"),
    [
        ({"type": "vm", "units": 0, "length": "1h"}, 422, "units: found 0, expected int >= 1"),
        ({"type": "vm", "unitz": 1}, 422, "body: found an unknown key 'unitz', expected one of"),
        (
            {"type": "vm", "project": "alpha"},
            422,
            "body: found the key 'project', which goes into the query: ?project=",
        ),
        ({"units": 1, "length": "1h"}, 422, "type: found nothing, it is needed"),
        ({"type": "vm"}, 422, "length: either length or end is to be said"),
        ({"type": "vm", "length": "1h", "end": "2030-01-01T00:00:00Z"}, 422, "length: either length or end"),
        ({"type": "vm", "length": "long"}, 422, "length: 'long' is not a duration"),
        ({"type": "vm", "length": "1h", "start": "soon"}, 422, "start: found 'soon', expected an instant"),
        ({"type": "vm", "length": "1h", "start": "2030-01-01T00:00:00"}, 422, "start: found '2030-01-01T00:00:00'"),
        ({"type": "vm", "length": "1h", "elastic": 2}, 422, "elastic: found 2, expected at most the 1 unit asked for"),
        ({"type": "vm", "length": "1h", "notice": "1m"}, 422, "notice: goes with preemptible"),
        ({"type": "vm", "length": "1h", "needs": {"cpu": "many"}}, 422, "needs: "),
        ({"type": "vm", "length": "1h", "properties": {"priority": "high"}}, 422, "properties.priority: found 'high'"),
        ({"type": "vm", "length": "0s"}, 422, "length: found 0, expected milliseconds, 1 at least"),
        ({"type": "vm", "end": "0001-01-01T00:00:00+14:00"}, 422, "end: found before the year 1, expected an"),
        ({"type": "vm", "length": "1h", "properties": {"priority": "@{-99999999999999999}"}}, 422, "before the year 1"),
        ({"type": "vm", "length": "1h", "keepalive": "1ms"}, 422, "keepalive: found '1ms', expected at least 1s"),
        ({"type": "vm", "length": "1h", "properties": dict.fromkeys(MANY, "")}, 422, "expected at most 256 of them"),
        ({"type": "vm", "length": "1h", "properties": {"a": "b", "c": 1}}, 422, "properties.c: found 1, expected str"),
        (
            {"type": "vm", "length": "1h", "start": "0001-01-01T00:00:00Z"},
            422,
            "start: found 1-01-01T00:00:00Z, expected an",
        ),
        ({"type": "vm", "length": "104249991d", "start": "2030-01-01T00:00:00Z"}, 422, "length: found more than any"),
        ([], 422, "body: found []"),
    ],
)
def test_bad_requests_are_told(user: httpx.Client, body: Any, status: int, detail: str) -> None:
    """One clear message, as problem details; nothing is asked for."""
    answer = user.post("/leases", json=body)
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert detail in answer.json()["detail"]
    assert answer.json()["status"] == status


def test_what_is_no_request_is_told(user: httpx.Client) -> None:
    """Bodies that are no JSON, too long or of another kind; queries and paths that there are not."""
    post = user.post
    for text in (b"{", b"9\r+", b'{"type": 9} }', b'{"type": "\xff"}', b"[" * 100_000):
        assert post("/leases", content=text, headers={"content-type": "application/json"}).status_code == 400
    assert post("/leases", content=b"type=vm").status_code == 415
    huge = b'{"type": "' + b"x" * 1_100_000 + b'"}'
    assert post("/leases", content=huge, headers={"content-type": "application/json"}).status_code == 413
    assert "colour" in user.get("/leases?colour=red").json()["detail"]
    assert "twice" in user.get("/leases?limit=1&limit=2").json()["detail"]
    for cursor in ("elsewhere", "past:x:", f"past:{10**30}:", f"past:{'9' * 5_000}:"):
        assert "expected what the page before gave" in user.get(f"/leases?all=true&cursor={cursor}").json()["detail"]
    slash = user.get("/leases/")  # an address that it was sent to would lack what a proxy in between has
    assert (slash.status_code, slash.json()["code"]) == (404, "not_found")
    assert user.get("/leases/nobody").json()["code"] == "not_found"
    assert user.get("/nothing").json()["code"] == "not_found"
    missing = user.delete("/leases")
    assert (missing.status_code, missing.headers["allow"]) == (405, "GET, HEAD, POST")
    assert user.post("/leases", json={}, headers={"idempotency-key": "a b"}).status_code == 422


async def test_a_body_that_never_comes_is_not_waited_for(autojump_clock: MockClock) -> None:
    """Nor one that comes byte by byte."""

    async def receive() -> dict[str, Any]:
        await trio.sleep(1)
        return {"type": "http.request", "body": b" ", "more_body": True}

    with pytest.raises(ProblemError, match="body: it did not come within 60 s") as refused:
        await read_body(Request({"type": "http", "headers": []}, receive))
    assert (refused.value.status, trio.current_time()) == (408, pytest.approx(BODY_WITHIN))


def test_leases_of_a_time_and_a_state(user: httpx.Client, leased: Leased) -> None:
    """Those that go on, and those that are over."""
    early = leased(start="2031-01-01T00:00:00Z")["id"]
    late = leased(start="2031-02-01T00:00:00Z")["id"]
    for lease in (early, late):
        until(user, lease, "ticketed")

    def listed(**params: str) -> list[str]:
        given = {"all": "true", "since": "2031-01-01T00:30:00Z", **params}
        return [one["id"] for one in user.get("/leases", params=given).json()["items"]]

    assert listed() == [early, late]
    assert listed(until="2031-01-15T00:00:00Z") == [early]
    assert listed(since="2031-01-15T00:00:00Z", state="ticketed") == [late]
    user.post(f"/leases/{early}/close", json={})
    until(user, early, "closed")
    now = datetime.now(UTC)
    over = {"since": (now - timedelta(hours=1)).isoformat(), "state": "closed"}
    assert early in listed(**over, until="2031-01-01T00:30:00Z")
    assert early not in listed(**over, until=now.isoformat())
    assert early not in listed(**{**over, "state": "failed"})


@pytest.mark.parametrize("start", [{"start": "2030-01-01T00:00:00Z"}, {}])
def test_a_key_makes_a_request_once(user: httpx.Client, leased: Leased, start: dict[str, str]) -> None:
    """The same answer for a repeat, whenever it comes; a refusal for another request with the key."""
    wish = {"type": "vm", "length": "1h", **start}
    keyed = {"idempotency-key": f"once-{len(start)}"}
    first = user.post("/leases", json=wish, headers=keyed)
    again = user.post("/leases", json=wish, headers=keyed)
    assert first.json()["id"] == again.json()["id"]
    other = user.post("/leases", json={**wish, "units": 2}, headers=keyed)
    assert (other.status_code, other.json()["code"]) == (422, "key_used")
    user.post(f"/leases/{first.json()['id']}/close", json={})


def test_a_key_makes_a_change_once(user: httpx.Client, leased: Leased) -> None:
    """A lease that goes on for so much longer does so once."""
    lease = until(user, leased()["id"], "active")["id"]
    keyed = {"idempotency-key": "longer-1"}
    assert user.post(f"/leases/{lease}/extend", json={"length": "1h"}, headers=keyed).status_code == 200
    until(user, lease, "active_ticketed")
    first = user.get(f"/leases/{lease}").json()
    again = user.post(f"/leases/{lease}/extend", json={"length": "1h"}, headers=keyed)
    assert (again.status_code, again.json()) == (200, first)


def test_an_answer_that_is_known_is_not_sent_again(user: httpx.Client, leased: Leased) -> None:
    """A tag names what was answered: of a lease to come, whose units do not join meanwhile."""
    lease = until(user, leased(start="2031-01-01T08:00:00Z")["id"], "ticketed")
    first = user.get(f"/leases/{lease['id']}")
    again = user.get(f"/leases/{lease['id']}", headers={"if-none-match": first.headers["etag"]})
    anything = user.get(f"/leases/{lease['id']}", headers={"if-none-match": "*"})
    assert (again.status_code, again.content, anything.status_code) == (304, b"", 304)


def test_what_somebody_writes_ends_no_gateway(user: httpx.Client, leased: Leased) -> None:
    """Also where it looks like an instant that no calendar has: who listens hears of it, and so does the gateway."""
    lease = leased(start="2031-01-01T08:00:00Z")["id"]
    until(user, lease, "ticketed")
    assert user.post(f"/leases/{lease}/close", json={"reason": "@{-99999999999999999}"}).status_code == 200
    until(user, lease, "closed")
    assert "before the year 1" in user.get(f"/leases/{lease}/history").text


def test_a_lease_ends_whose_holder_falls_silent(user: httpx.Client, leased: Leased) -> None:
    """As long as somebody says that they are there it goes on."""
    lease = leased(keepalive="2s")["id"]
    until(user, lease, "active")
    assert user.post(f"/leases/{lease}/keepalive", json={}).json()["keepalive"] == "2s"
    assert user.get(f"/leases/{lease}").json()["keepalive"] == "2s"
    found = until(user, lease, "closed")
    assert (found["code"], found["reason"]) == ("not_heard", "its holder was not heard of for 2s")
    plain = leased()["id"]
    refused = user.post(f"/leases/{plain}/keepalive", json={})
    assert "need not be heard of" in refused.json()["detail"]


def test_projects_don_t_see_each_other(
    gateway: GatewayUnderTest,
    user: httpx.Client,
    viewer: httpx.Client,
    stranger: httpx.Client,
    operator: httpx.Client,
    leased: Leased,
) -> None:
    """Another's lease is as one that there is not; who may look may not change."""
    lease = leased()["id"]
    absent = {**stranger.get("/leases/00000000-1").json()}
    for path in ("", "/history"):
        assert stranger.get(f"/leases/{lease}{path}").status_code == 404
    found = stranger.get(f"/leases/{lease}").json()
    assert {**found, "detail": ""} == {**absent, "detail": ""}
    for path in ("close", "extend", "undo-extend", "keepalive"):
        body = {"length": "1h"} if path == "extend" else {}
        assert stranger.post(f"/leases/{lease}/{path}", json=body).status_code == 404
        assert viewer.post(f"/leases/{lease}/{path}", json=body).status_code == 403
    assert stranger.get("/leases", params={"project": "alpha"}).status_code == 404
    assert stranger.get("/leases").json()["items"] == []
    assert viewer.get("/projects").json() == {"items": ["alpha"], "roles": {"alpha": "viewer"}}
    assert operator.get("/projects").json()["roles"] == {"alpha": "manager", "beta": "manager"}
    assert viewer.get(f"/leases/{lease}").status_code == 200
    assert viewer.post("/leases", json={"type": "vm", "length": "1h"}).status_code == 403
    assert until(user, lease, "active")["state"] == "active"
    with gateway.client() as nobody:
        answer = nobody.get("/leases")
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, 'Bearer realm="leasekit"')


class EndsMeanwhile:
    """A project's guest whose lease ends between two questions of one page."""

    name = "alpha"
    shown: ClassVar[dict[str, Any]] = {
        "id": "l-1", "name": "", "slice": "main", "type": "vm", "site": "site", "state": "active", "pending": "-",
        "join": "-", "units": 1, "start": 1000, "end": 2000, "reason": "", "because": None,
    }  # fmt: skip

    async def query(self, _: str, **__: Any) -> list[dict[str, Any]]:
        """The lease goes on."""
        return [self.shown]

    async def request(self, _op: str, _id: str, asked: dict[str, Any]) -> dict[str, Any]:
        """It is over."""
        after = {"ended": 1500, "id": "l-1"}
        return {"leases": [{**self.shown, "state": "closed"}] if not asked["ended"] else [], "after": after}


async def test_a_lease_that_ends_while_it_is_listed_is_listed_once() -> None:
    """As it is in the end: the list of what goes on was asked for first, so none is left out."""
    call: Any = SimpleNamespace(caller=None, door=SimpleNamespace(project=lambda *_: EndsMeanwhile()))
    page = await list_leases(call, LeaseList(all=True))
    assert [(one.id, one.state) for one in page.items] == [("l-1", "closed")]


def test_a_name_in_two_projects_is_no_lease(gateway: GatewayUnderTest) -> None:
    """Who may change both is asked which of them is meant; once one is over it is the other."""
    with gateway.client(gateway.token("twice", alpha="user", beta="user")) as both:
        wish = {"type": "vm", "length": "1h", "name": "twin", "start": "2031-01-01T08:00:00Z"}
        first, second = (both.post(f"/leases?project={name}", json=wish).json()["id"] for name in ("alpha", "beta"))
        for asked in (both.post("/leases/twin/close", json={}), both.get("/leases/twin")):
            assert (asked.status_code, asked.json()["code"]) == (422, "bad_argument")
            assert "expected one of alpha, beta" in asked.json()["detail"]
        assert both.post("/leases/twin/close?project=alpha", json={}).json()["id"] == first
        until(both, first, "closed")
        assert both.get("/leases/twin").json()["id"] == second
        assert both.get(f"/leases/{first}").json()["id"] == first
        both.post("/leases/twin/close", json={})


def test_a_name_in_two_slices_of_a_project_is_no_lease(gateway: GatewayUnderTest) -> None:
    """Nor is it that of the other project."""
    with gateway.client(gateway.token("thrice", alpha="user", beta="user")) as both:
        wish = {"type": "vm", "length": "1h", "name": "triplet", "start": "2031-01-01T08:00:00Z"}
        assert both.post("/slices?project=alpha", json={"name": "apart"}).is_success
        asked = [("alpha", {}), ("alpha", {"slice": "apart"}), ("beta", {})]
        made = [both.post(f"/leases?project={name}", json={**wish, **more}).json()["id"] for name, more in asked]
        refused = both.post("/leases/triplet/close", json={})
        assert (refused.status_code, refused.json()["detail"][:37]) == (409, "lease name 'triplet' is used in 2 sli")
        for id_ in made:
            assert both.post(f"/leases/{id_}/close", json={}).json()["id"] == id_


def test_states_that_there_are_are_named(user: httpx.Client) -> None:
    """Without the one that stands for all of them."""
    told = user.get("/leases", params={"state": "gone"}).json()["detail"]
    assert told.startswith("state: found 'gone', expected one of: active, ")


def test_a_change_of_nothing(user: httpx.Client, leased: Callable[..., dict[str, Any]]) -> None:
    """It is no request, whatever state the lease is in."""
    path = f"/leases/{leased(start='2031-01-01T08:00:00Z')['id']}"
    for answer in (user.patch(path, json={}), user.post(f"{path}/modify/dry-run", json={"victims": []})):
        assert (answer.status_code, answer.json()["code"]) == (422, "bad_argument")
        assert answer.json()["detail"] == (
            "body: found nothing that changes, expected at least one of units, start, end, filter, configuration, "
            "victims"
        )
