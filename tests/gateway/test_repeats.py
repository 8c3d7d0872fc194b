"""Requests that come again under their idempotency key, of what the gateway itself keeps, and of what one has seen."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from gateway_world import GatewayUnderTest, until

Leased = Callable[..., dict[str, Any]]


@pytest.mark.parametrize(
    ("path", "body", "other"),
    [
        ("/tokens", {"name": "ci"}, {"name": "cd"}),
        ("/feeds", {}, {"mine": True}),
        ("/waits", {"type": "vm", "units": 2, "length": "1h"}, {"type": "vm", "units": 3, "length": "1h"}),
        (
            "/templates",
            {"name": "lab", "request": {"type": "vm", "length": "1h"}},
            {"name": "x", "request": {"type": "vm", "length": "1h"}},
        ),
    ],
)
def test_a_repeat_is_answered_as_the_first_was(
    gateway: GatewayUnderTest, path: str, body: dict[str, Any], other: dict[str, Any]
) -> None:
    """It is done once, however many come at once; another request is not taken for it, nor is somebody else's."""
    keyed = {"idempotency-key": f"once{path}"}
    with (
        gateway.client(gateway.token("rita", alpha="user")) as rita,
        gateway.client(gateway.token("rolf", alpha="user")) as rolf,
    ):
        with ThreadPoolExecutor(4) as pool:
            made = list(pool.map(lambda _: rita.post(path, json=body, headers=keyed), range(4)))
        assert {one.status_code for one in made} == {201}, made[0].text
        assert len({one.content for one in made}) == 1
        again = rita.post(path, json=other, headers=keyed)
        assert (again.status_code, again.json()["code"]) == (422, "key_used")
        assert rolf.post(path, json=body, headers=keyed).json()["id"] != made[0].json()["id"]


def test_what_is_refused_is_tried_again(operator: httpx.Client) -> None:
    """Only what was done is kept."""
    keyed, user = {"idempotency-key": "user"}, {"name": "urs", "password": "correct horse battery"}
    assert operator.post("/users", json={**user, "password": "short"}, headers=keyed).status_code == 422
    assert [operator.post("/users", json=user, headers=keyed).status_code for _ in range(2)] == [201, 201]
    assert operator.post("/users", json=user).status_code == 422, "there is one of that name"
    assert [operator.delete("/users/urs", headers={"idempotency-key": "gone"}).status_code for _ in range(2)] == [
        200,
        200,
    ]


def test_a_repeat_of_a_change_of_what_was_seen(user: httpx.Client, leased: Leased) -> None:
    """That the first has changed it is no reason to refuse the second."""
    lease = until(user, leased(start="2031-01-01T08:00:00Z")["id"], "ticketed")["id"]
    seen = user.get(f"/leases/{lease}").headers["etag"]
    headers = {"if-match": seen, "idempotency-key": f"close-{lease}"}
    first, second = (user.post(f"/leases/{lease}/close", json={}, headers=headers) for _ in range(2))
    assert (first.status_code, second.content) == (200, first.content)
    assert user.post(f"/leases/{lease}/close", json={}, headers={"if-match": seen}).status_code == 412
