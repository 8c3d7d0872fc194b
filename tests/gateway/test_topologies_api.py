"""Topologies over HTTP, by a broker that plans: a dry run, a lease of all or nothing, its end; policies hold for it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from cli_daemons import running, site_and_broker, until_delegated
from gateway_world import INVENTORY, GatewayUnderTest, until

from leasekit.config.load import load

SPARE = '\n[actor.spare]\nrole = "broker"\n'
PLANS = '\n[actor.broker.mapper]\nname = "coallocation"\n'


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayUnderTest]:
    """The deployment, whose broker plans; another is away."""
    file = tmp_path_factory.mktemp("plans") / "leasekit.toml"
    file.write_text(site_and_broker(INVENTORY + PLANS, "alpha", "beta") + SPARE)
    with running(file, only=["site", "broker", "alpha", "beta", "web"]):
        until_delegated(load(file).actors["site"].control)
        yield GatewayUnderTest(file, load(file).state)


def wish(units: int, **more: Any) -> dict[str, Any]:
    """Units at one site, in an hour."""
    start = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    return {"sites": [{"id": "lab", "type": "vm", "units": units}], "est": start, "duration": "1h", **more}


def settled(client: httpx.Client, topology: str, *states: str) -> dict[str, Any]:
    """The topology, once it is in one of these states. Each event that is heard is a reason to look again."""
    with client.stream("GET", "/events") as answer:
        lines = answer.iter_lines()
        next(line for line in lines if line.startswith(": connected"))
        while (found := dict(client.get(f"/topologies/{topology}").json()))["state"] not in states:
            next(line for line in lines if line.startswith("data: "))
        return found


def test_a_topology_is_planned_leased_and_closed(user: httpx.Client, stranger: httpx.Client) -> None:
    """Its leases are the project's; another project sees none of it; the same key leases it once."""
    planned = user.post("/topologies/dry-run", json={"request": wish(2)})
    assert (planned.status_code, planned.json()["status"]) == (200, "planned"), planned.text
    body, key = {"request": wish(2), "tries": 1}, {"idempotency-key": "lab-1"}
    made = user.post("/topologies", json=body, headers=key)
    assert made.status_code == 201, made.text
    name = made.json()["topology"]
    assert user.post("/topologies", json=body, headers=key).json()["topology"] == name
    found = settled(user, name, "committed")
    assert [(part["member"], part["units"]) for part in found["parts"]] == [("lab", 2)]
    lease = user.get(f"/leases/{found['parts'][0]['lease']}").json()
    assert (lease["units"], lease["project"]) == (2, "alpha")
    told = [(one["event"], one["reason"]) for one in user.get(f"/leases/{lease['id']}/history").json()["items"]]
    assert told.index(("topology.request", "commanded by ursula (token ursula)")) < told.index(
        ("part", f"lab of {name}")
    )
    assert user.post(f"/leases/{lease['id']}/hand", json={"to": "ursula"}).status_code == 200, "it is who asked's"
    assert stranger.get(f"/topologies/{name}").status_code == 404
    assert stranger.post(f"/topologies/{name}/close", json={}).status_code == 404
    assert user.post(f"/topologies/{name}/close", json={"reason": "done"}).status_code == 200
    assert user.get("/topologies").json() == []


def test_windows_for_a_topology(user: httpx.Client) -> None:
    """Each is a plan that is granted if it is asked for; why there is none is told, and what is wrong by its path."""
    start = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=30)
    search = {
        "type": "vm", "units": 4, "length": "1h", "limit": 2, "start": start.isoformat(),
        "end": (start + timedelta(hours=4)).isoformat(), "sites": [{"id": "lab"}],
    }  # fmt: skip
    busy = {"type": "vm", "units": 3, "start": start.isoformat(), "length": "1h"}
    taken = user.post("/leases", json=busy).json()["id"]
    until(user, taken, "ticketed")
    found = user.post("/slots", json=search).json()
    windows = [(datetime.fromisoformat(one["start"]) - start, one["members"]) for one in found["items"]]
    assert windows == [(timedelta(hours=hours), {"lab": ["site"]}) for hours in (1, 2)]
    assert found["away"] == ["spare"]
    first = found["items"][0]["start"]
    asked = wish(4, est=first, sites=[{"id": "lab", "type": "vm", "units": 4}])
    made = user.post("/topologies", json={"request": asked}).json()["topology"]
    begins = settled(user, made, "committed")["term"][0]
    assert datetime.fromisoformat(begins) == datetime.fromisoformat(first)
    none = user.post("/slots", json={**search, "units": 7}).json()
    assert (none["items"], bool(none["reason"])) == ([], True), none
    for body, words in (
        ({"sites": [{"id": "lab", "colour": "red"}]}, "sites[0].colour"),
        ({"links": [{"from": "lab", "to": "moon", "bw": 1}]}, "links"),
        ({"site": "site"}, "needs, site"),
    ):
        answer = user.post("/slots", json={**search, **body})
        assert (answer.status_code, words in answer.json()["detail"]) == (422, True), answer.text
    assert user.post(f"/topologies/{made}/close", json={}).status_code == 200
    assert user.post(f"/leases/{taken}/close", json={}).status_code == 200


def test_what_is_wrong_with_a_topology_is_named(user: httpx.Client, viewer: httpx.Client) -> None:
    """By its path; who may only look leases none."""
    for body, words in (
        ({"request": wish(2, sites=[])}, "request.sites"),
        ({"request": {**wish(2), "est": "soon"}}, "request.est: found 'soon', expected an instant"),
        ({"request": wish(2), "tries": 0}, "tries"),
        ({"request": wish(2, colour="red")}, "request.colour"),
    ):
        answer = user.post("/topologies", json=body)
        assert answer.status_code == 422, answer.text
        assert words in answer.json()["detail"]
    assert viewer.post("/topologies", json={"request": wish(1)}).status_code == 403


def test_a_policy_holds_for_topologies(user: httpx.Client, operator: httpx.Client) -> None:
    """For plans of them as well."""
    try:
        assert operator.put("/policies/alpha", json={"most_units": 3, "ahead": "1d"}).status_code == 200
        late = {"lst": (datetime.now(UTC) + timedelta(days=2)).isoformat()}
        for path in ("/topologies", "/topologies/dry-run"):
            for asked in (wish(4), wish(1, **late)):
                answer = user.post(path, json={"request": asked})
                assert (answer.status_code, answer.json()["code"]) == (403, "policy"), answer.text
    finally:
        operator.put("/policies/alpha", json={})


def test_slices_have_keys_and_notes(user: httpx.Client) -> None:
    """Which are changed by their own paths."""
    assert user.post("/slices", json={"name": "team", "hold": 0}).status_code == 200
    noted = user.post("/slices/team/notes", json={"notes": {"ticket": "42"}})
    assert (noted.status_code, noted.json()["notes"]) == (200, {"ticket": "42"}), noted.text
    keyed = user.post("/slices/team/key", json={"key": "ssh-ed25519 AAAA ada"})
    assert (keyed.status_code, keyed.json()["leases"]) == (200, []), keyed.text
    assert user.post("/slices/none/notes", json={"notes": {}}).status_code in (404, 409)
