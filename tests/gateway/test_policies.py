"""What a project's leases may be, what has to be approved first, and services that are asked."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import attrs
import httpx
import pytest
from gateway_world import GatewayUnderTest, until
from polling import PATIENCE

from leasekit.client.shapes import ApprovalRequest, LeaseRequest, SeriesAnswer, SeriesDay
from leasekit.core.frames import MEDIA_TYPE, pack, unpack
from leasekit.gateway.policies import ApprovalRecord

DAY = datetime(2031, 1, 1, tzinfo=UTC)
WISH = {"type": "vm", "length": "1h"}


@pytest.fixture(scope="module")
def manager(gateway: GatewayUnderTest) -> Iterator[httpx.Client]:
    """Who approves in the project alpha."""
    with gateway.client(gateway.token("manfred", alpha="manager")) as client:
        yield client


@contextmanager
def policy(operator: httpx.Client, **limits: Any) -> Iterator[None]:
    """The project alpha has a policy for a while."""
    answer = operator.put("/policies/alpha", json=limits)
    assert answer.status_code == 200, answer.text
    try:
        yield
    finally:
        operator.put("/policies/alpha", json={})


@pytest.mark.parametrize(
    ("limit", "wish", "told"),
    [
        ({"longest": "30m"}, {}, "length: found 1h, a lease lasts 30m at most in project alpha"),
        ({"most_units": 2}, {"units": 3}, "units: found 3, a lease has 2 units at most in project alpha"),
        ({"ahead": "7d"}, {"start": "2030-01-01T00:00:00Z"}, "a lease begins 7d from now at the latest"),
        ({"ahead": "7d"}, {"deferrable_until": "2030-01-01T00:00:00Z"}, "found 2030-01-01T00:00:00Z, a lease begins"),
        ({"lead": "1h"}, {}, "a lease is asked for 1h before its start"),
        ({"recurring": False}, {"properties": {"series": "x"}}, "every: found a lease that recurs, none may"),
    ],
)
def test_what_is_beyond_a_policy_is_refused(
    operator: httpx.Client, user: httpx.Client, manager: httpx.Client, limit: Any, wish: Any, told: str
) -> None:
    """By request and dry run, to managers as well; not to operators."""
    with policy(operator, **limit):
        for client, path in ((user, "/leases"), (manager, "/leases"), (user, "/leases/dry-run")):
            answer = client.post(path, json={**WISH, **wish})
            assert (answer.status_code, answer.json()["code"]) == (403, "policy")
            assert told in answer.json()["detail"]
        assert operator.post("/leases/dry-run?project=alpha", json={**WISH, **wish}).status_code == 200
    assert user.post("/leases/dry-run", json={**WISH, **wish}).status_code == 200


@pytest.mark.parametrize(
    ("limit", "search", "told"),
    [
        ({"longest": "30m"}, {}, "length: found 1h, a lease lasts 30m at most in project alpha"),
        ({"most_units": 2}, {"units": 3}, "units: found 3, a lease has 2 units at most in project alpha"),
        ({"ahead": "7d"}, {"start": "2030-01-01T00:00:00Z"}, "a lease begins 7d from now at the latest"),
        ({"lead": "40d"}, {}, "a lease is asked for 40d before its start"),
    ],
)
def test_windows_are_within_a_policy(
    operator: httpx.Client, user: httpx.Client, limit: Any, search: Any, told: str
) -> None:
    """What it never allows is refused in the words of a request; windows begin when one may."""
    with policy(operator, **limit):
        for path in ("/slots", "/waits"):
            answer = user.post(path, json={**WISH, **search})
            assert (answer.status_code, answer.json()["code"]) == (403, "policy"), answer.text
            assert told in answer.json()["detail"]
        assert operator.post("/slots?project=alpha", json={**WISH, **search}).status_code == 200
    with policy(operator, lead="2h", ahead="3h"):
        (slot,) = user.post("/slots", json={**WISH, "limit": 1}).json()["items"]
        dry_runs = [
            user.post("/leases/dry-run", json={**WISH, "start": slot[at]}).status_code
            for at in ("start", "latest", "end")
        ]
        assert dry_runs == [200, 200, 403]


def test_changes_are_within_a_policy(operator: httpx.Client, user: httpx.Client) -> None:
    """Extensions and modifications count the whole lease; what was there before stays."""
    lease = until(user, user.post("/leases", json={**WISH, "units": 2}).json()["id"], "active")["id"]
    with policy(operator, longest="90m", most_units=2):
        refused = user.post(f"/leases/{lease}/extend", json={"length": "1h"})
        assert (refused.status_code, refused.json()["code"]) == (403, "policy")
        assert user.patch(f"/leases/{lease}", json={"units": 3}).json()["code"] == "policy"
        assert user.post(f"/leases/{lease}/extend", json={"length": "20m"}).status_code == 200
        frame = pack({"id": 1, "kind": "command", "name": "lease.modify", "arguments": {"lease": lease, "units": 3}})
        tunnelled = user.post("/control/alpha", content=frame, headers={"content-type": MEDIA_TYPE})
        assert (tunnelled.status_code, tunnelled.json()["code"]) == (403, "policy")
    user.post(f"/leases/{lease}/close", json={})


def test_a_lease_is_not_moved_beyond_a_policy(operator: httpx.Client, user: httpx.Client) -> None:
    """One that has not begun begins no later, and lasts no longer, than one that is asked for."""
    soon = (datetime.now(UTC) + timedelta(days=1)).isoformat()
    lease = until(user, user.post("/leases", json={**WISH, "start": soon}).json()["id"], "ticketed")["id"]
    with policy(operator, ahead="7d", longest="2h"):
        refused = user.patch(f"/leases/{lease}", json={"start": "2030-01-01T00:00:00Z"}).json()
        assert (refused["code"], "begins 7d from now" in refused["detail"]) == ("policy", True)
        earlier = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
        refused = user.patch(f"/leases/{lease}", json={"start": earlier, "end": soon}).json()
        assert (refused["code"], "a lease lasts 2h at most" in refused["detail"]) == ("policy", True)
        assert user.patch(f"/leases/{lease}", json={"start": earlier}).status_code == 200
    user.post(f"/leases/{lease}/close", json={})


def test_what_is_large_is_approved_first(operator: httpx.Client, user: httpx.Client, manager: httpx.Client) -> None:
    """It is sent on as its asker's; once, whoever approves how often."""
    with policy(operator, approve_units=1):
        wish = {**WISH, "units": 2}
        refused = user.post("/leases", json=wish)
        assert (refused.status_code, refused.json()["code"]) == (403, "approval_needed")
        asked = user.post("/approvals", json={"request": wish, "why": "a demo"}).json()
        assert (asked["state"], asked["caller"], asked["asked"]["why"]) == ("pending", "ursula", "a demo")
        path = f"/approvals/{asked['id']}"
        assert user.post(f"{path}/approve", json={}).status_code == 403
        done = manager.post(f"{path}/approve", json={"reason": "fine"}).json()
        assert (done["state"], done["decided_by"], done["reason"]) == ("approved", "manfred", "fine")
        assert manager.post(f"{path}/approve", json={}).json()["code"] == "decided"
        lease = until(user, done["lease"], "active")
        assert lease["units"] == 2
        (line,) = (
            one for one in user.get(f"/leases/{lease['id']}/history").json()["items"] if one["event"] == "lease.request"
        )
        assert (line["values"]["who"], line["values"]["what"]) == ("ursula", "approved by manfred")
        # What it has it may keep; more is approved again.
        assert user.post(f"/leases/{lease['id']}/extend", json={"length": "1h"}).status_code == 200
        more = user.post("/approvals", json={"lease": lease["id"], "modify": {"units": 3}}).json()
        assert manager.post(f"/approvals/{more['id']}/refuse", json={}).json()["state"] == "refused"
        user.post(f"/leases/{lease['id']}/close", json={})
        tried = [who.post("/leases/dry-run", json=wish).json()["approval"] for who in (manager, user)]
        assert tried == ["", "units: found 2, more than 1 are approved first"]


def test_what_is_approved_is_within_the_policy_by_then(
    operator: httpx.Client, user: httpx.Client, manager: httpx.Client
) -> None:
    """One that was lowered meanwhile holds: nothing is leased, and it still waits."""
    with policy(operator, approve_units=1):
        path = f"/approvals/{user.post('/approvals', json={'request': {**WISH, 'units': 3}}).json()['id']}"
        operator.put("/policies/alpha", json={"approve_units": 1, "most_units": 2})
        refused = manager.post(f"{path}/approve", json={})
        assert (refused.status_code, refused.json()["code"]) == (403, "policy")
        assert refused.json()["detail"] == "units: found 3, a lease has 2 units at most in project alpha"
        assert (user.get(path).json()["state"], user.get(path).json()["lease"]) == ("pending", "")
        operator.put("/policies/alpha", json={"approve_units": 1, "most_units": 3})
        lease = manager.post(f"{path}/approve", json={}).json()["lease"]
        user.post(f"/leases/{lease}/close", json={})


def test_who_may_approve(
    operator: httpx.Client, user: httpx.Client, viewer: httpx.Client, stranger: httpx.Client
) -> None:
    """Whom the policy names, but nobody what they ask for themselves; strangers see nothing."""
    with policy(operator, approve_length="30m", approvers=["viktor", "ursula"]):
        asked = user.post("/approvals", json={"request": WISH}).json()
        path = f"/approvals/{asked['id']}"
        assert stranger.get(path).status_code == stranger.post(f"{path}/approve", json={}).status_code == 404
        assert "somebody else" in user.post(f"{path}/approve", json={}).json()["detail"]
        assert viewer.post(f"{path}/withdraw", json={}).status_code == 403
        lease = viewer.post(f"{path}/approve", json={}).json()["lease"]
        user.post(f"/leases/{lease}/close", json={})
        other = user.post("/approvals", json={"request": WISH}).json()
        assert user.post(f"/approvals/{other['id']}/withdraw", json={}).json()["state"] == "withdrawn"
        listed = [one["id"] for one in user.get("/approvals?state=withdrawn").json()["items"]]
        assert other["id"] in listed
        assert stranger.get("/approvals").json()["items"] == []
        assert viewer.post("/approvals", json={"request": WISH}).status_code == 403


def test_what_nobody_decides_in_time_is_over(operator: httpx.Client, user: httpx.Client, manager: httpx.Client) -> None:
    """It can't be approved any more."""
    with policy(operator, approve_units=1, approve_within="1ms"):
        asked = user.post("/approvals", json={"request": {**WISH, "units": 2}}).json()
        refused = manager.post(f"/approvals/{asked['id']}/approve", json={})
        assert (refused.status_code, refused.json()["detail"]) == (409, f"approval {asked['id']} is expired already")


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({"longest": "soon"}, "longest: "),
        ({"ask": "ftp://x"}, "ask: found 'ftp://x', expected the URL of a service"),
        ({"ask": "http://lab:x/"}, "ask: found 'http://lab:x/', expected the URL of a service"),
        ({"ask": "http:///may"}, "ask: found 'http:///may', expected the URL of a service"),
        ({"ask": "http://lab:99999/"}, "ask: found 'http://lab:99999/', expected the URL of a service"),
        ({"ask_within": "2h"}, "ask_within: found 2h, expected more than 0s and at most 1m"),
        ({"most": 3}, "body: found an unknown key 'most'"),
        ({"fails": "shut"}, "fails: found 'shut', expected one of: closed, open"),
    ],
)
def test_a_policy_that_is_wrong(operator: httpx.Client, body: Any, told: str) -> None:
    """One message, and the policy stays as it was."""
    before = operator.get("/policies").json()
    answer = operator.put("/policies/alpha", json=body)
    assert (answer.status_code, answer.json()["detail"][: len(told)]) == (422, told)
    assert operator.get("/policies").json() == before


def test_who_sets_policies(user: httpx.Client, manager: httpx.Client, stranger: httpx.Client) -> None:
    """Operators alone; who is in the project sees it."""
    assert manager.put("/policies/alpha", json={}).status_code == 403
    assert stranger.put("/policies/alpha", json={}).status_code == 404
    assert [one["project"] for one in user.get("/policies").json()["items"]] == ["alpha"]
    for body in ({}, {"request": WISH, "lease": "x"}, {"lease": "x"}, {"extend": {"length": "1h"}}):
        assert user.post("/approvals", json=body).status_code == 422


def _is_ours(body: Mapping[str, Any]) -> bool:
    """Leases of other tests may end late."""
    return bool(body["lease"]["start_date"] == "2030-01-01 00:00:00")


@contextmanager
def service(
    status: int, text: str | bytes = "", heard: threading.Event | None = None, *, ends: bool = True
) -> Iterator[tuple[str, list[Any]]]:
    """A service that is asked, its URL and what it was asked; ``heard`` is set when it is told of the end of ours. One
    whose answer never ``ends`` goes on as long as somebody reads it.
    """
    asked: list[Any] = []

    class Answering(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            asked.append((self.path, body))
            self.send_response(status)
            if ends or text:
                self.end_headers()
            self.wfile.write(text.encode() if isinstance(text, str) else text)
            with suppress(OSError):
                while not (ends or over.is_set()):
                    self.wfile.write(b"x")
                    over.wait(0.05)
            if heard is not None and self.path.endswith("/on-end") and _is_ours(body):
                heard.set()

        def log_message(self, *args: Any) -> None:
            """Nothing is printed."""

    over = threading.Event()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answering)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", asked
    finally:
        over.set()
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_service_is_asked_first(operator: httpx.Client, user: httpx.Client) -> None:
    """It hears who wants what, and its word counts."""
    with service(204) as (url, asked), policy(operator, ask=url):
        lease = user.post("/leases", json={**WISH, "units": 2}).json()["id"]
        until(user, lease, "active")
        assert user.patch(f"/leases/{lease}", json={"units": 1}).status_code == 200
        user.post(f"/leases/{lease}/close", json={})
    (_, first), (_, second) = asked
    assert (first["project"], first["caller"], first["new"], first["units"]) == ("alpha", "ursula", True, 2)
    assert (second["new"], second["lease"], second["units"]) == (False, lease, 1)
    with service(403, '{"message": "not on a Sunday"}') as (url, _), policy(operator, ask=url):
        refused = user.post("/leases", json=WISH).json()
        assert (refused["code"], refused["detail"]) == ("policy", "not on a Sunday")


def test_blazars_filter_service_is_asked_and_told(operator: httpx.Client, user: httpx.Client) -> None:
    """By its two calls that can refuse, and the one that says that a lease is over."""
    ended = threading.Event()
    with service(204, heard=ended) as (url, asked), policy(operator, ask=url, asked_as="blazar"):
        lease = user.post("/leases", json={**WISH, "start": "2030-01-01T00:00:00Z"}).json()["id"]
        until(user, lease, "ticketed")
        user.post(f"/leases/{lease}/close", json={})
        assert ended.wait(PATIENCE)
    (path, body), (last, told) = [one for one in asked if _is_ours(one[1])]
    assert (path, last) == ("/v1/check-create", "/v1/on-end")
    assert (body["context"]["user_id"], body["context"]["project_id"]) == ("ursula", "alpha")
    assert body["lease"]["end_date"] == "2030-01-01 01:00:00"
    assert body["lease"]["reservations"][0]["resource_type"] == "vm"
    assert told["context"]["project_id"] == "alpha"
    assert (told["lease"]["start_date"], told["lease"]["reservations"][0]["min"]) == ("2030-01-01 00:00:00", 1)


@pytest.mark.parametrize(("fails", "status"), [("closed", 503), ("open", 201)])
def test_a_service_that_is_away(operator: httpx.Client, user: httpx.Client, fails: str, status: int) -> None:
    """What that counts as is the policy's to say."""
    with service(500) as (broken, _):
        pass
    with policy(operator, ask=broken, fails=fails):
        answer = user.post("/leases", json=WISH)
        assert answer.status_code == status
    with service(500) as (broken, _), policy(operator, ask=broken, fails=fails):
        assert user.post("/leases", json=WISH).status_code == status
    for one in user.get("/leases").json()["items"]:
        user.post(f"/leases/{one['id']}/close", json={})


@pytest.mark.parametrize(
    ("status", "text", "ends", "code", "detail"),
    [
        (200, "", False, "policy_away", "does not answer"),
        (403, "no", False, "policy", "refuses it"),
        (403, b'{"message": "\xff"}', True, "policy", "refuses it"),
        (403, "[" * 50_000, True, "policy", "refuses it"),
        (403, '{"message": "not on\\r\\na \\u001b[31mSunday"}', True, "policy", "not on a [31mSunday"),
    ],
)
def test_a_service_that_answers_nonsense(
    operator: httpx.Client, user: httpx.Client, status: int, text: str | bytes, ends: bool, code: str, detail: str
) -> None:
    """Also for ever: nothing waits for it longer than the policy says."""
    with service(status, text, ends=ends) as (url, _), policy(operator, ask=url, ask_within="1s"):
        refused = user.post("/leases", json=WISH).json()
    assert (refused["code"], detail in refused["detail"]) == (code, True), refused


def test_an_approval_is_kept() -> None:
    """As it was."""
    asked = ApprovalRequest(request=LeaseRequest(type="vm", units=3, length="1h"), why="why")
    record = ApprovalRecord(id="1", project="alpha", caller="ursula", asked=asked, created=5, until=7, by="x")
    assert ApprovalRecord.from_row(record.row()) == record
    day = SeriesDay(start=DAY, end=DAY, status="refused", code="mapper:insufficient")
    series = SeriesAnswer(id="every-1", kept=False, days=[day], skipped=[], past=["2031-01-01"])
    record = attrs.evolve(record, series=series, begun=6)
    assert ApprovalRecord.from_row(record.row()) == record
    assert (record.state(6), record.state(7)) == ("pending", "expired")


def test_frames_are_answered(user: httpx.Client) -> None:
    """What no policy is about goes on as before."""
    frame = pack({"id": 1, "kind": "query", "name": "clock", "arguments": {}})
    answer = user.post("/control/alpha", content=frame, headers={"content-type": MEDIA_TYPE})
    assert unpack(answer.content[4:])["ok"]
