"""Leases that recur, over HTTP: one answer has all days, and says which can't be had."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from cli_daemons import running, site_and_broker
from gateway_world import INVENTORY, GatewayUnderTest, give_back
from system.system_waits import wait_until
from test_client import client

from leasekit.client.shapes import ApprovalRequest, LeaseRequest
from leasekit.config.load import load
from leasekit.core.schema import Change
from leasekit.gateway.instants import instant
from leasekit.gateway.policies import ApprovalRecord
from leasekit.stores.sqlite import SqliteStore

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
        ({"until": "soon"}, "until: found 'soon', expected a day, such as 2027-03-01"),
        ({"until": "2031-13-05"}, "until: found '2031-13-05', expected a day, such as"),
        ({"request": {"type": "vm", "length": "1h"}}, "request.length: found one, expected none"),
        ({"request": {"type": "vm", "units": 1, "elastic": 2}}, "elastic: found 2"),
    ],
)
def test_what_is_wrong_with_it_is_told(user: httpx.Client, more: dict[str, Any], detail: str) -> None:
    """By its field."""
    answer = user.post("/leases/series/dry-run", json=series(1, **more))
    assert answer.status_code == 422
    assert answer.json()["detail"].startswith(detail)


@pytest.fixture
def manager(gateway: GatewayUnderTest, operator: httpx.Client) -> Iterator[httpx.Client]:
    """Who approves in the project alpha, whose policy wants two units approved."""
    operator.put("/policies/alpha", json={"approve_units": 1})
    with gateway.client(gateway.token("manfred", alpha="manager")) as client:
        yield client
    operator.put("/policies/alpha", json={})


def test_a_policy_may_allow_none(user: httpx.Client, operator: httpx.Client) -> None:
    """That recurs: it can't be asked to be approved either."""
    operator.put("/policies/alpha", json={"recurring": False})
    for path, body in (("/leases/series", series(1)), ("/approvals", {"series": series(1)})):
        answer = user.post(path, json=body)
        assert (answer.status_code, answer.json()["code"]) == (403, "policy")
    operator.put("/policies/alpha", json={})


def asked(user: httpx.Client, body: dict[str, Any]) -> str:
    """The path of an approval that was asked for, since the request was refused without."""
    refused = user.post("/leases/series", json=body)
    assert (refused.status_code, refused.json()["code"]) == (403, "approval_needed")
    assert refused.json()["detail"].endswith("ask for it for all days at once with POST /approvals (--ask-approval)")
    made = user.post("/approvals", json={"series": body, "why": "lectures"})
    assert (made.status_code, made.json()["asked"]["series"]["every"]) == (201, "mon,wed")
    return f"/approvals/{made.json()['id']}"


def test_all_days_are_approved_by_one_decision(user: httpx.Client, manager: httpx.Client) -> None:
    """And are their asker's, with who approved them; nothing is there before, and nothing is done twice."""
    tried = user.post("/leases/series/dry-run", json=series(2))
    assert (statuses(tried), tried.json()["approval"][:14]) == (["possible"] * 4, "units: found 2")
    assert manager.post("/leases/series/dry-run", json=series(2)).json()["approval"] == ""
    path = asked(user, series(2))
    assert user.get("/leases").json()["items"] == []
    assert user.post(f"{path}/approve", json={}).status_code == 403
    done = manager.post(f"{path}/approve", json={"reason": "fine"}).json()
    assert (done["state"], done["lease"], done["series"]["kept"]) == ("approved", "", True)
    assert [(day["name"], day["status"]) for day in done["series"]["days"]] == [
        (f"lab.{day}", "granted") for day in DAYS
    ]
    leases = {one["id"]: one["state"] for one in user.get("/leases").json()["items"]}
    assert leases == {day["lease"]: "ticketed" for day in done["series"]["days"]}
    for id_ in leases:
        history = user.get(f"/leases/{id_}/history").json()["items"]
        (line,) = (one for one in history if one["event"] == "lease.request")
        assert (line["values"]["who"], line["values"]["what"]) == ("ursula", "approved by manfred")
    assert manager.post(f"{path}/approve", json={}).json()["code"] == "decided"
    assert user.get(path).json() == done


def test_which_approved_days_can_not_be_had_is_told(user: httpx.Client, manager: httpx.Client, leased: Leased) -> None:
    """All or none, or each that can be had, as it was asked for."""
    leased(units=1, start="2031-01-13T10:00:00Z", name="busy")
    expected = ["possible", "possible", "refused", "possible"]
    none = manager.post(f"{asked(user, series(6))}/approve", json={}).json()
    assert (none["state"], none["series"]["kept"], [one["status"] for one in none["series"]["days"]]) == (
        "approved", False, expected,
    )  # fmt: skip
    assert none["series"]["days"][2]["code"] == "mapper:insufficient"
    assert [one["name"] for one in user.get("/leases").json()["items"]] == ["busy"]
    some = manager.post(f"{asked(user, series(6, each=True))}/approve", json={}).json()
    granted = ["granted", "granted", "refused", "granted"]
    assert (some["series"]["kept"], [one["status"] for one in some["series"]["days"]]) == (True, granted)


def test_what_an_approval_can_not_do_leaves_it_waiting(
    user: httpx.Client, manager: httpx.Client, leased: Leased
) -> None:
    """It can be approved once that is over; a refused one has no days."""
    leased(name="lab.2031-01-13", start="2031-02-01T00:00:00Z")
    path = asked(user, series(2))
    refused = manager.post(f"{path}/approve", json={})
    assert (refused.status_code, "has a lease 'lab.2031-01-13' already" in refused.json()["detail"]) == (409, True)
    assert user.get(path).json()["state"] == "pending"
    done = manager.post(f"{path}/refuse", json={"reason": "take another name"}).json()
    assert (done["state"], done["series"]) == ("refused", None)


def test_days_that_begin_before_the_approval_are_left_out(tmp_path: Path) -> None:
    """And named; the others are asked for."""
    file, now = tmp_path / "leasekit.toml", datetime.now(UTC)
    file.write_text(site_and_broker(INVENTORY, "alpha"))
    (web,) = load(file).gateways.values()
    assert web.store is not None
    web.store.parent.mkdir(parents=True)
    days = [str((now + timedelta(days=ahead)).date()) for ahead in range(-1, 3)]
    recurs = {"request": {"type": "vm"}, "every": "day", "begin": "0:00", "finish": "0:01", "until": days[-1]}
    kept = ApprovalRecord(
        id="a1", project="alpha", caller="ursula", asked=msgspec.convert({"series": recurs}, ApprovalRequest),
        created=instant(now - timedelta(days=2)) or 0, until=instant(now + timedelta(days=1)) or 0,
    )  # fmt: skip
    with closing(SqliteStore(web.store)) as store:
        store.commit([Change(ApprovalRecord.table, kept.id, kept.row())])
    with running(file):
        gateway = GatewayUnderTest(file, load(file).state)
        with gateway.client(gateway.token("manfred", alpha="manager")) as manager:
            series = manager.post("/approvals/a1/approve", json={}).json()["series"]
            assert manager.get("/approvals").json()["items"][0]["series"] == series
    assert (series["past"], series["kept"]) == (days[:2], True)
    assert [day["start"][:10] for day in series["days"]] == days[2:]


@pytest.mark.parametrize(
    "body",
    [
        {"series": series(2), "request": {"type": "vm", "length": "1h"}},
        {"series": series(2), "lease": "web"},
    ],
)
def test_one_thing_is_approved_at_once(user: httpx.Client, body: dict[str, Any]) -> None:
    """A series, or something else."""
    answer = user.post("/approvals", json=body)
    assert (answer.status_code, answer.json()["detail"].split(":")[0]) == (422, "request")


def test_the_client_asks_for_them(gateway: GatewayUnderTest) -> None:
    """As the API has it."""
    wish = LeaseRequest(type="vm", start=datetime(2031, 1, 5, tzinfo=UTC))
    with client(gateway, gateway.token("carl", alpha="user")) as api:
        told = api.recur(wish, every="mon", begin="9:00", finish="10:00", until=date(2031, 1, 13))
        assert [day.status for day in told.days] == ["granted", "granted"]
        assert {one.id for one in api.leases()} >= {day.lease for day in told.days}
