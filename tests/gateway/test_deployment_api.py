"""The deployment over HTTP: what operators do, who may see what, tokens, events, the OpenAPI document."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from importlib import import_module
from pkgutil import walk_packages
from typing import Any

import httpx
import pytest
from gateway_world import GatewayUnderTest, until
from jsonschema import Draft202012Validator
from openapi_spec_validator import validate
from system.system_waits import wait_until

import leasekit.actors
from leasekit.actors.kernel import _MARK
from leasekit.gateway.app import routes

Leased = Callable[..., dict[str, Any]]


def test_an_operator_sees_and_does_what_a_site_and_a_broker_can(operator: httpx.Client, leased: Leased) -> None:
    """Units, delegations, maintenance: as the command line has them, with instants as text."""
    lease = leased(units=2)
    until(operator, lease["id"], "active")
    units = operator.get("/units").json()
    assert [unit["state"] for unit in units] == ["active", "active", "free", "free", "free", "free"]
    (source,) = operator.get("/brokers/sources").json()
    assert (source["free_now"], source["reclaimed"]) == (4, None)
    assert source["term"][1].endswith("Z")
    disabled = operator.post("/units/vm-5/disable", json={"reason": "fan"})
    assert (disabled.json()["state"], disabled.json()["reason"]) == ("out", "fan")
    assert operator.post("/units/vm-5/enable", json={}).json()["state"] == "free"
    assert operator.post("/units/vm-50/disable", json={}).status_code == 404
    window = {"units": ["vm-0"], "reason": "dust", "start": "2030-01-01T00:00:00Z", "end": "2030-01-02T00:00:00Z"}
    made = operator.post("/maintenance", json=window).json()
    assert (made["start"], made["end"]) == ("2030-01-01T00:00:00.000Z", "2030-01-02T00:00:00.000Z")
    assert [one["window"] for one in operator.get("/maintenance").json()] == [made["window"]]
    assert operator.post(f"/maintenance/{made['window']}/remove", json={}).status_code == 200
    evicted = operator.post(f"/sites/leases/{lease['id']}/evict", json={"reason": "space is needed"})
    assert evicted.json()["holder"] == "alpha"
    assert "space is needed" in until(operator, lease["id"], "closed")["reason"]
    assert [peer["peer"] for peer in operator.get("/peers?actor=site").json()] == ["broker", "alpha", "beta"]
    audit = operator.get("/audit?actor=site").json()["items"]
    assert [line["event"] for line in audit] == [
        "unit.disable", "unit.enable", "maintenance.add", "maintenance.remove", "lease.evict"
    ]  # fmt: skip
    assert {line["values"]["who"] for line in audit} == {"olga"}
    newest = operator.get("/audit?actor=site&newest=true&limit=3").json()
    before = operator.get(f"/audit?actor=site&newest=true&limit=3&cursor={newest['next']}").json()
    assert ([*newest["items"], *before["items"]], before["next"]) == (audit[::-1], None)


def test_every_command_of_an_actor_has_a_route() -> None:
    """But for what no person commands: what a gateway and a daemon tell their actors."""
    by_hand = {
        "lease.request": "request_lease", "lease.extend": "extend_lease", "lease.modify": "modify_lease",
        "lease.close": "close_lease", "lease.keepalive": "keep_alive", "lease.undo_extend": "undo_extend",
        "lease.hand": "hand_lease", "lease.dry_run": "try_request", "lease.dry_run_extend": "try_extend",
        "lease.dry_run_modify": "try_modify", "topology.request": "request_topology", "topology.plan": "plan_topology",
        "topology.close": "close_topology", "slots.find": "find_slots",
    }  # fmt: skip
    parts = [import_module(one.name) for one in walk_packages(leasekit.actors.__path__, "leasekit.actors.")]
    methods = [
        method for part in parts for kind in vars(part).values() for method in getattr(kind, "__dict__", {}).values()
    ]
    marks = {getattr(method, _MARK, ("", "", ""))[:2] for method in methods}
    commands = {name for table, name in marks if table in ("commands", "deferred")}
    named = {route.name for route in routes()}
    assert len(commands) > len(by_hand)
    lacking = {
        name
        for name in commands
        if by_hand.get(name) not in named and not any(one.startswith(f"{name.replace('.', '_')}_") for one in named)
    }
    assert lacking == {"gateway.present", "unit.measured"}


def test_an_operator_gives_and_takes_back(operator: httpx.Client, user: httpx.Client, leased: Leased) -> None:
    """Delegations are given otherwise, and again after a reclaim; a unit is probed, operated, and said to be down."""
    given = operator.post("/delegations?actor=site", json={"broker": "broker", "type": "vm", "units": 5})
    assert (given.status_code, given.json()["chain"]) == (200, "site/vm@broker"), given.text
    taken = operator.post("/delegations/reclaim?actor=site", json={"delegation": "site/vm@broker"}).json()
    assert (taken["delegation"].partition("#")[0], taken["at"][-1]) == ("site/vm@broker", "Z")
    assert operator.post("/delegations?actor=site", json={"broker": "broker", "type": "vm"}).status_code == 200
    whole = {"type": "vm", "units": 6, "length": "1h"}
    wait_until("all units", lambda: user.post("/leases/dry-run", json=whole).json()["status"] != "granted")
    lease = until(operator, leased(units=1)["id"], "active")
    unit = lease["members"][0]["unit"]
    assert operator.post(f"/units/{unit}/probe").json()["state"] == "up"
    refused = operator.post(f"/units/{unit}/operate", json={"operation": "restart"})
    assert (refused.status_code, "restart" in refused.json()["detail"]) == (409, True), refused.text
    assert user.post(f"/units/{unit}/fail", json={}).status_code == 403
    failed = operator.post(f"/units/{unit}/fail", json={"reason": "its fan"}).json()
    assert "its fan" in failed["reason"]
    assert operator.post(f"/units/{unit}/enable", json={}).status_code == 200
    assert operator.get("/sites/saved").json() == []
    for path, body in (
        ("/delegations?actor=site", {"broker": "none", "type": "vm"}),
        ("/delegations?actor=broker", {"broker": "none"}), ("/delegations?actor=none", {"broker": "broker"}),
        ("/delegations/reclaim?actor=broker", {"delegation": "none"}), ("/brokers/sources/release", {"source": "none"}),
        ("/peers/broker/succeed?actor=site", {"succession": "none"}), ("/evidence/word", {"file": "none"}),
    ):  # fmt: skip
        answer = operator.post(path, json=body)
        assert (answer.status_code in (404, 409, 422), "none" in answer.json()["detail"]) == (True, True), answer.text
    refused = operator.post(
        "/peers/site/command?actor=broker", json={"command": "unit.enable", "arguments": {"unit": "x"}}
    )
    assert refused.status_code in (403, 409), refused.text
    peers = {"peers": [{"name": "new", "role": "guest", "key": "00"}]}
    assert operator.post("/peers/import?actor=site", json=peers).status_code in (409, 422)


def test_an_operator_changes_the_inventory(operator: httpx.Client) -> None:
    """Units come, change and go, and are as the file says again; what is wrong is told with its field."""
    added = operator.post("/units", json={"unit": "vm-9", "type": "vm", "attributes": {"rack": "b"}}).json()
    assert (added["number"], added["attributes"], added["differs"]) == (7, {"rack": "b"}, "added")
    changed = operator.patch("/units/vm-9", json={"attributes": {"rack": "c"}}).json()
    assert (changed["number"], changed["attributes"]) == (7, {"rack": "c"})
    assert operator.delete("/units/vm-0").json()["differs"] == "removed"
    listed = {row["unit"]: row["differs"] for row in operator.get("/sites/inventory").json()}
    assert (listed["vm-0"], listed["vm-1"], listed["vm-9"]) == ("removed", "", "added")
    assert operator.post("/units/vm-0/reset", json={}).json()["differs"] == ""
    assert operator.delete("/units/vm-9").status_code == 200
    assert operator.delete("/units/vm-9").status_code == 404
    assert operator.patch("/units/vm-1", json={"type": "gpu"}).status_code == 409
    assert operator.post("/units", json={"unit": "vm-1", "type": "vm"}).status_code == 409


@pytest.mark.parametrize(
    "path",
    [
        "/units",
        "/sites/inventory",
        "/delegations?actor=broker",
        "/brokers/sources",
        "/claims",
        "/peers?actor=site",
        "/audit?actor=site",
    ],
)
def test_only_those_with_an_office_look_into_sites_and_brokers(
    gateway: GatewayUnderTest, user: httpx.Client, path: str
) -> None:
    """An auditor looks at everything and changes nothing."""
    assert user.get(path).status_code == 403
    with gateway.client(gateway.token("aude", "auditor")) as auditor:
        assert auditor.get(path).status_code == 200
        assert auditor.post("/units/vm-0/disable", json={}).status_code == 403
        assert auditor.post("/leases?project=alpha", json={"type": "vm", "length": "1h"}).status_code == 403
        assert auditor.get("/leases?project=beta").status_code == 200


def test_tokens_give_no_more_than_their_maker_has(gateway: GatewayUnderTest, user: httpx.Client) -> None:
    """A token is shown once; its holder can make lesser ones; revoked, it is none."""
    made = user.post("/tokens", json={"name": "ci", "projects": {"alpha": "viewer"}})
    assert made.status_code == 201
    token = made.json()
    assert token["caller"] == "ursula"
    listed = {one["name"]: one for one in user.get("/tokens").json()["items"]}
    assert set(listed) == {"ursula", "ci"}
    assert listed["ci"]["secret"] == ""
    with gateway.client(token["secret"]) as lesser:
        assert lesser.get("/me").json() == {
            "caller": "ursula", "way": "token ci", "projects": {"alpha": "viewer"}, "offices": []
        }  # fmt: skip
        assert lesser.post("/tokens", json={"name": "x", "projects": {"alpha": "user"}}).status_code == 403
        assert user.post(f"/tokens/{token['id']}/revoke").status_code == 200
        assert lesser.get("/me").status_code == 401
    assert user.post("/tokens", json={"name": "x", "projects": {"alpha": "manager"}}).status_code == 403
    assert user.post("/tokens", json={"name": "x", "offices": ["operator"]}).status_code == 403
    assert user.post("/tokens", json={"name": "x", "projects": {"beta": "viewer"}}).status_code == 403
    assert user.post("/tokens", json={"name": "x", "caller": "olga"}).status_code == 403
    assert "gamma" in user.post("/tokens", json={"name": "x", "projects": {"gamma": "user"}}).json()["detail"]
    assert user.post("/tokens/0000/revoke").status_code == 404
    with gateway.client(gateway.token("short", length="1ms", alpha="viewer")) as late:
        assert late.get("/me").status_code == 401
    with gateway.client("lk_" + "x" * 43) as nobody:
        assert nobody.get("/me").status_code == 401


def _events(client: httpx.Client, path: str, last: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """The ids and contents of server-sent events, endless."""
    headers = {"last-event-id": last} if last else {}
    with client.stream("GET", path, headers=headers) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        id_ = ""
        for line in answer.iter_lines():
            if line.startswith("id: "):
                id_ = line.removeprefix("id: ")
            elif line.startswith("data: "):
                yield id_, json.loads(line.removeprefix("data: "))
            elif line.startswith(": connected"):
                yield id_, {}


def test_events_go_on_where_they_were_left(user: httpx.Client, leased: Leased) -> None:
    """Each transition once, in order, also for who was away meanwhile; of others' projects nothing."""
    first = _events(user, "/events")
    assert next(first)[1] == {}
    lease = leased()["id"]
    heard = [next(first) for _ in range(3)]
    assert [event["event"] for _, event in heard] == ["ask", "lease.request", "ticket"]
    assert {event["actor"] for _, event in heard} == {"alpha"}
    first.close()
    until(user, lease, "active")
    again = _events(user, "/events", heard[0][0])
    next(again)
    rest = [next(again)[1] for _ in range(4)]
    assert [event["seq"] for event in rest] == list(range(heard[1][1]["seq"], heard[1][1]["seq"] + 4))
    again.close()
    assert user.get("/events?all=true").status_code == 403


def test_who_has_heard_more_than_the_log_has_is_told_so(user: httpx.Client, leased: Leased) -> None:
    """As after an older copy of the actor's store was taken up: one hears that something was missed, and what comes."""
    last, _ = next(_events(user, "/events"))
    actor, _, end = last.rpartition(":")
    with user.stream("GET", "/events", headers={"last-event-id": f"{actor}:{int(end) + 1_000}"}) as answer:
        lines = answer.iter_lines()
        assert int(next(lines).removeprefix(f"id: {actor}:")) < int(end) + 1_000
        assert [next(lines) for _ in range(3)] == [": connected", "", "event: missed"]
    assert next(_events(user, "/events", f"{actor}:{'9' * 5_000}"))[1] == {}  # no log has such a line


def test_the_document_names_every_route(operator: httpx.Client) -> None:
    """Each path and method of the API is in it, with what goes in and comes out; every reference has its schema."""
    document = operator.get("/openapi.json").json()
    validate(document)
    assert document["openapi"] == "3.1.0"
    told = {(path.removeprefix("/api/v1"), method) for path, methods in document["paths"].items() for method in methods}
    assert told == {(route.path, route.method.lower()) for route in routes()}
    names = document["components"]["schemas"]
    text = json.dumps(document)
    assert {name.split('"')[0] for name in text.split("#/components/schemas/")[1:]} <= set(names)
    operations = [method["operationId"] for methods in document["paths"].values() for method in methods.values()]
    assert len(set(operations)) == len(operations)
    assert names["WindowDetails"]["properties"]["start"] == {"type": ["string", "null"], "format": "date-time"}


def test_answers_are_as_the_document_says(operator: httpx.Client, leased: Leased) -> None:
    """What is answered to each GET without words in its path is what its schema allows."""
    lease = leased()["id"]
    until(operator, lease, "active")
    document = operator.get("/openapi.json").json()
    for path, methods in document["paths"].items():
        if "get" not in methods or "{" in path or path.endswith("/events"):
            continue
        query = {"actor": "site"} if path.endswith(("/peers", "/delegations")) else {"project": "alpha"}
        known = {one["name"] for one in methods["get"]["parameters"]}
        answer = operator.get(path.removeprefix("/api/v1"), params={k: v for k, v in query.items() if k in known})
        assert answer.status_code == 200, (path, answer.text)
        schema = methods["get"]["responses"]["200"]["content"]["application/json"]["schema"]
        validator = Draft202012Validator({**schema, "components": document["components"]})
        validator.validate(answer.json())


def test_usage_is_told_of_ones_project(user: httpx.Client, operator: httpx.Client, leased: Leased) -> None:
    """By broker and site, of the project's own leases; of all holders to those with an office."""
    until(user, leased(units=2)["id"], "active")
    items = user.get("/usage").json()["items"]
    assert {(item["actor"], item["role"]) for item in items} == {("site", "authority"), ("broker", "broker")}
    (granted,) = [item for item in items if item["role"] == "broker"]
    assert {account["holder"] for account in granted["accounts"]} == {"alpha"}
    assert granted["accounts"][0]["granted_unit_ms"] > 0
    assert user.get("/usage?all=true").status_code == 403
    assert operator.get("/usage?all=true").status_code == 200
    wrong = user.get("/usage?since=2030-01-02T00:00:00Z&until=2030-01-01T00:00:00Z")
    assert wrong.json()["detail"] == "until: expected an instant after since"


def test_what_drivers_say_of_a_unit(user: httpx.Client, operator: httpx.Client, leased: Leased) -> None:
    """The guest's side to those of the project, the site's to those with an office."""
    lease = until(user, leased(name="logged")["id"], "active")
    unit = lease["members"][0]["unit"]
    assert any("setup" in line for line in operator.get(f"/units/{unit}/log").json()["lines"])
    assert user.get(f"/units/{unit}/log").status_code == 403
    assert user.get(f"/leases/logged/units/{unit}/log").status_code == 200
    assert user.get("/leases/logged/units/vm-99/log").status_code == 422
