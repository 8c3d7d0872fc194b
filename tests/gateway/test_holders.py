"""A lease is handed to a colleague: who may do that, what becomes of it, and what the one before may do then."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from gateway_world import GatewayUnderTest, until
from test_client import client
from test_feeds import fetched, read

from leasekit.client import ApiError
from leasekit.core.frames import MEDIA_TYPE, pack

Leased = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def colleague(gateway: GatewayUnderTest) -> Iterator[httpx.Client]:
    """Another user of the project alpha."""
    with gateway.client(gateway.token("colin", alpha="user")) as client:
        yield client


@pytest.fixture(scope="module")
def manager(gateway: GatewayUnderTest) -> Iterator[httpx.Client]:
    """The manager of the project alpha."""
    with gateway.client(gateway.token("mona", alpha="manager")) as client:
        yield client


def shown(gateway: GatewayUnderTest, path: str, name: str) -> bool:
    """Whether a calendar has a lease."""
    return any(name in event.summary.value for event in read(fetched(gateway, path).text))


def test_a_lease_is_a_colleagues_from_then_on(
    gateway: GatewayUnderTest, user: httpx.Client, colleague: httpx.Client, leased: Leased
) -> None:
    """In the calendar of theirs, and no more in the other's; both may change it, the new holder alone hands it on."""
    lease = leased(name="desk", start="2031-01-01T00:00:00Z")["id"]
    until(user, lease, "ticketed")
    mine, theirs = (one.post("/feeds", json={"mine": True}).json()["path"] for one in (user, colleague))
    assert (shown(gateway, mine, "desk"), shown(gateway, theirs, "desk")) == (True, False)
    refused = colleague.post("/leases/desk/hand", json={"to": "colin"})
    assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
    assert refused.json()["detail"].startswith(f"lease {lease} is ursula's, who hands it on")
    handed = user.post("/leases/desk/hand", json={"to": "colin", "reason": "my holidays"})
    assert (handed.status_code, handed.json()["id"]) == (200, lease), handed.text
    assert (shown(gateway, mine, "desk"), shown(gateway, theirs, "desk")) == (False, True)
    told = [
        one for one in user.get(f"/leases/{lease}/history").json()["items"] if one["event"] in ("lease.hand", "handed")
    ]
    assert [(one["values"]["who"], one["reason"]) for one in told] == [
        ("colin", "handed to colin: my holidays"),
        ("ursula", "commanded by ursula (token ursula)"),
    ]
    assert lease in {one["lease"] for one in user.get("/audit").json()["items"] if one["event"] == "lease.hand"}
    assert user.post("/leases/desk/hand", json={"to": "ursula"}).status_code == 403
    assert user.patch("/leases/desk", json={"units": 2}).status_code == 200
    assert colleague.post("/leases/desk/hand", json={"to": "ursula"}).status_code == 200
    assert (shown(gateway, mine, "desk"), shown(gateway, theirs, "desk")) == (True, False)


def test_whom_it_may_be_handed_to(
    user: httpx.Client, stranger: httpx.Client, viewer: httpx.Client, leased: Leased
) -> None:
    """A user of the project that the gateway knows; nobody else sees the lease, and who looks may not hand it."""
    leased(name="lamp", start="2031-01-01T00:00:00Z")
    for name in ("stefan", "viktor", "nobody"):
        answer = user.post("/leases/lamp/hand", json={"to": name})
        assert (answer.status_code, answer.json()["detail"]) == (
            422,
            f"to: found '{name}', who is no user of alpha that this gateway knows",
        )
    assert stranger.post("/leases/lamp/hand", json={"to": "stefan"}).status_code == 404
    assert viewer.post("/leases/lamp/hand", json={"to": "viktor"}).status_code == 403


def test_a_policy_says_who_hands_leases_on(
    user: httpx.Client, colleague: httpx.Client, manager: httpx.Client, operator: httpx.Client, leased: Leased
) -> None:
    """Managers alone, or nobody but operators."""
    leased(name="chair", start="2031-01-01T00:00:00Z")
    try:
        operator.put("/policies/alpha", json={"hands": "manager"})
        answer = user.post("/leases/chair/hand", json={"to": "colin"})
        assert (answer.status_code, answer.json()["code"]) == (403, "policy")
        assert manager.post("/leases/chair/hand", json={"to": "colin"}).status_code == 200
        operator.put("/policies/alpha", json={"hands": "nobody"})
        for one in (colleague, manager):
            assert one.post("/leases/chair/hand", json={"to": "ursula"}).json()["code"] == "policy"
        assert operator.post("/leases/chair/hand", json={"to": "ursula"}).status_code == 200
    finally:
        operator.put("/policies/alpha", json={})


def test_there_is_no_other_way_to_hand_it(gateway: GatewayUnderTest, user: httpx.Client, leased: Leased) -> None:
    """The command itself is not a user's to give; one that is over is nobody's to hand."""
    lease = leased(start="2031-01-01T00:00:00Z")["id"]
    frame = pack({"id": 1, "kind": "command", "name": "lease.hand", "arguments": {"lease": lease, "to": "ursula"}})
    assert user.post("/control/alpha", content=frame, headers={"content-type": MEDIA_TYPE}).status_code == 403
    with client(gateway, gateway.token("cleo", alpha="manager")) as api:
        assert api.hand(lease, "cleo", "mine").id == lease
        api.wait(api.close(lease), "closed")
        with pytest.raises(ApiError, match="is closed already"):
            api.hand(lease, "cleo")
