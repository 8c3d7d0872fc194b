"""Leases that recur, over HTTP: one answer has all days, and says which can't be had."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from typing import Any

import httpx
import pytest
from gateway_world import GatewayUnderTest, give_back
from system.system_waits import wait_until
from test_client import client

from leasekit.client.shapes import LeaseRequest

WEEKS = {"every": "mon,wed", "begin": "9:00", "finish": "17:00", "until": "2031-01-17"}
DAYS = ["2031-01-06", "2031-01-08", "2031-01-13", "2031-01-15"]
Leased = Callable[..., dict[str, Any]]


@pytest.fixture(autouse=True)
def nothing_left(user: httpx.Client) -> Iterator[None]:
    """What a test was granted is closed after it, and free again."""
    yield
    give_back(user, "2031-01-13T09:00:00Z")


def series(units: int, **more: Any) -> dict[str, Any]:
    """A request for both weeks."""
    return {"request": {"type": "vm", "units": units, "start": "2031-01-05T00:00:00Z", "name": "lab"}, **WEEKS, **more}


def statuses(answer: httpx.Response) -> list[str]:
    """What became of each day."""
    return [day["status"] for day in answer.json()["days"]]


def test_all_days_are_granted_once(user: httpx.Client, viewer: httpx.Client) -> None:
    """At the hours of their zone; who asks again by the same key is told of the same leases."""
    asked = series(5, zone="America/New_York")
    key = {"idempotency-key": "both-weeks"}
    answer = user.post("/leases/series", json=asked, headers=key)
    assert answer.status_code == 201, answer.text
    told = answer.json()
    assert (told["kept"], told["skipped"]) == (True, [])
    assert [(day["name"], day["status"], day["start"]) for day in told["days"]] == [
        (f"lab.{day}", "granted", f"{day}T14:00:00Z") for day in DAYS
    ]
    assert user.post("/leases/series", json=asked, headers=key).json() == told
    leases = user.get("/leases").json()["items"]
    assert {one["id"] for one in leases} == {day["lease"] for day in told["days"]}
    assert {one["state"] for one in leases} == {"ticketed"}
    assert viewer.post("/leases/series", json=asked).status_code == 403


def test_one_day_that_can_not_be_had_refuses_all(user: httpx.Client, leased: Leased) -> None:
    """Which it is is said, and which could be had by themselves; those are granted with ``each``."""
    leased(units=2, start="2031-01-13T10:00:00Z")
    expected = ["possible", "possible", "refused", "possible"]
    tried = user.post("/leases/series/dry-run", json=series(5))
    assert (tried.status_code, statuses(tried), tried.json()["kept"]) == (200, expected, False)
    none = user.post("/leases/series", json=series(5))
    assert (statuses(none), none.json()["kept"]) == (expected, False)
    assert (none.json()["days"][2]["code"], len(user.get("/leases").json()["items"])) == ("mapper:insufficient", 1)
    some = user.post("/leases/series", json=series(5, each=True))
    assert (statuses(some), some.json()["kept"]) == (["granted", "granted", "refused", "granted"], True)


def test_what_can_not_be_asked_for_leaves_nothing(user: httpx.Client, leased: Leased) -> None:
    """A name that is taken is told of once, and what was asked for before it is closed."""
    leased(name="lab.2031-01-13", start="2031-02-01T00:00:00Z")
    answer = user.post("/leases/series", json=series(1))
    assert answer.json()["detail"].startswith("name: slice 'default' has a lease 'lab.2031-01-13' already")
    others = ("lab.2031-01-06", "lab.2031-01-08")
    wait_until(
        "those that were asked for are closed",
        lambda: [one for one in user.get("/leases").json()["items"] if one["name"] in others],
    )
    each = user.post("/leases/series", json=series(1, each=True))
    assert statuses(each) == ["granted", "granted", "refused", "granted"]


@pytest.mark.parametrize(
    ("more", "detail"),
    [
        ({"every": "mun"}, "every: found mun, expected days such as mon-fri"),
        ({"begin": "9"}, "begin: found '9', expected a time of day"),
        ({"finish": "9:00"}, "finish: found 9:00, which is not after begin, 9:00"),
        ({"zone": "Mars"}, "zone: found Mars, expected a name of the time zone database"),
        ({"until": "2030-01-01"}, "until: found 2030-01-01, which is before the first day, 2031-01-05"),
        ({"until": "2031-01-05"}, "every: no such day is left"),
        ({"until": "2050-01-01"}, "until: expected at most 400 leases"),
        ({"until": "soon"}, "until: found 'soon'"),
        ({"request": {"type": "vm", "length": "1h"}}, "request.length: goes without every"),
        ({"request": {"type": "vm", "units": 1, "elastic": 2}}, "elastic: found 2"),
    ],
)
def test_what_is_wrong_with_it_is_told(user: httpx.Client, more: dict[str, Any], detail: str) -> None:
    """By its field."""
    answer = user.post("/leases/series/dry-run", json=series(1, **more))
    assert answer.status_code == 422
    assert answer.json()["detail"].startswith(detail)


def test_a_policy_holds_for_each_day(user: httpx.Client, operator: httpx.Client) -> None:
    """And may allow none that recurs, or want them approved: then a manager asks for them."""
    try:
        operator.put("/policies/alpha", json={"recurring": False})
        answer = user.post("/leases/series", json=series(1))
        assert (answer.status_code, answer.json()["code"]) == (403, "policy")
        operator.put("/policies/alpha", json={"approve_units": 1})
        answer = user.post("/leases/series", json=series(2))
        assert (answer.status_code, answer.json()["code"]) == (403, "approval_needed")
        assert answer.json()["detail"].endswith("a manager asks for it")
    finally:
        operator.put("/policies/alpha", json={})


def test_the_client_asks_for_them(gateway: GatewayUnderTest) -> None:
    """As the API has it."""
    wish = LeaseRequest(type="vm", start=datetime(2031, 1, 5, tzinfo=UTC))
    with client(gateway, gateway.token("carl", alpha="user")) as api:
        told = api.recur(wish, every="mon", begin="9:00", finish="10:00", until=date(2031, 1, 13))
        assert [day.status for day in told.days] == ["granted", "granted"]
        assert {one.id for one in api.leases()} >= {day.lease for day in told.days}
