"""The calendar over HTTP: what is booked, out of service and free, and what of it strangers see; types, prices."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
from gateway_world import GatewayUnderTest, until

from leasekit.core.time import INSTANT_MAX
from leasekit.runtime.client import ControlClient

Leased = Callable[..., dict[str, Any]]
DAY = datetime(2030, 1, 1, tzinfo=UTC)


def at(hours: float) -> str:
    """An instant of a day to come, as the API writes it."""
    return (DAY + timedelta(hours=hours)).isoformat().replace("+00:00", "Z")


def shown(client: httpx.Client, **query: Any) -> dict[str, Any]:
    """The calendar of that day, in stretches of an hour."""
    answer = client.get("/calendar", params={"since": at(0), "until": at(24), "bins": 24, **query})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def test_bars_and_figures_are_what_was_booked(user: httpx.Client, viewer: httpx.Client, leased: Leased) -> None:
    """Who may look into the project sees whose lease it is; figures are the most booked, the least free of an hour."""
    lease = leased(units=4, start=at(2), length="90m", name="mine")
    until(user, lease["id"], "ticketed")
    seen = shown(viewer)
    (row,) = seen["rows"]
    assert (seen["start"], seen["end"], seen["step"]) == (at(0), at(24), "1h")
    assert (row["site"], row["type"], len(row["units"])) == ("site", "vm", 6)
    columns = list(zip(row["at"], row["there"], row["booked"], row["free"], strict=True))
    assert columns == [(0, 6, 0, 6), (2, 6, 4, 2), (4, 6, 0, 6)]
    (bar,) = seen["bars"]
    assert bar == {
        "row": 0, "kind": "lease", "units": 4, "start": at(2), "end": at(3.5), "lease": lease["id"], "name": "mine",
        "project": "alpha", "state": "ticketed",
    }  # fmt: skip


def test_strangers_see_that_something_is_booked_and_not_whose(
    user: httpx.Client, stranger: httpx.Client, operator: httpx.Client, leased: Leased
) -> None:
    """Neither ids, nor names, nor projects are anywhere in what they get; nor what waits, and has nothing yet."""
    lease = leased(units=2, start=at(5), length="1h", name="secret-name")
    until(user, lease["id"], "ticketed")
    waits = leased(units=6, start=at(5), length="1h", name="waits", deferrable_until=at(20), timeout="1h")
    answer = stranger.get("/calendar", params={"since": at(0), "until": at(24), "bins": 24})
    bar = answer.json()["bars"][0]
    assert (bar["units"], bar["start"], bar["end"]) == (2, at(5), at(6))
    for told in (lease["id"], "secret-name", waits["id"], "alpha", "ticketed"):
        assert told not in answer.text
    assert {bar.get("lease") for bar in shown(operator)["bars"]} >= {lease["id"]}
    assert stranger.get("/calendar", params={"project": "alpha"}).status_code == 404
    assert shown(stranger, project="beta")["bars"] == []


def test_a_lease_that_runs_is_on_its_units(user: httpx.Client, stranger: httpx.Client, leased: Leased) -> None:
    """Also for others, as they are to see which units are free."""
    lease = until(user, leased(units=2)["id"], "active")
    for client in (user, stranger):
        seen = client.get("/calendar").json()
        names = [one["name"] for one in seen["rows"][0]["units"]]
        (bar,) = [one for one in seen["bars"] if one.get("on")]
        assert sorted(names[place] for place in bar["on"]) == sorted(one["unit"] for one in lease["members"])
    name = lease["members"][0]["unit"]
    one = user.get("/calendar", params={"unit": name}).json()
    assert len(one["bars"]) == 1
    other = next(unit for unit in names if unit not in {member["unit"] for member in lease["members"]})
    assert user.get("/calendar", params={"unit": other}).json()["bars"] == []
    assert user.get("/calendar", params={"unit": "no-such-unit"}).json()["rows"] == []


def test_a_lease_to_come_is_planned_on_units(
    user: httpx.Client, stranger: httpx.Client, operator: httpx.Client
) -> None:
    """Those of a project that redeems long before are seen by all; which they are may change, and events say that."""
    start = (datetime.now(UTC) + timedelta(hours=5)).replace(microsecond=0)
    wish = {"type": "vm", "units": 2, "start": start.isoformat(), "length": "1h"}
    with operator.stream("GET", "/events", params={"all": True}) as answer:
        lines = answer.iter_lines()
        next(line for line in lines if line.startswith(": connected"))
        id_ = stranger.post("/leases", json=wish).json()["id"]

        def hear(event: str) -> dict[str, Any]:
            told = (json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {"))
            return next(one for one in told if (one.get("event"), one["actor"], one["lease"]) == (event, "site", id_))

        hear("redeem")
        lease = stranger.get(f"/leases/{id_}").json()
        assert (lease["planned"], lease["members"], lease["units"]) == (["vm-5", "vm-4"], [], 2)
        assert _units_of(user, start) == [["vm-5", "vm-4"]]
        assert operator.post("/units/vm-5/disable", json={"reason": "fan"}).status_code == 200
        assert hear("place")["reason"] == "vm-3, not vm-5"
    operator.post("/units/vm-5/enable")
    assert stranger.get(f"/leases/{id_}").json()["planned"] == ["vm-4", "vm-3"]
    assert stranger.get("/leases").json()["items"][0]["planned"] == [], "lists ask no site"
    stranger.post(f"/leases/{id_}/close", json={})


def _units_of(client: httpx.Client, since: datetime) -> list[list[str]]:
    """The units of each lease of an hour, as the calendar has them."""
    term = {"since": since.isoformat(), "until": (since + timedelta(hours=1)).isoformat()}
    seen = client.get("/calendar", params=term).json()
    return [[seen["rows"][bar["row"]]["units"][place]["name"] for place in bar["on"]] for bar in seen["bars"]]


def test_maintenance_is_seen_by_all_and_failures_with_their_reasons_by_operators(
    user: httpx.Client, stranger: httpx.Client, operator: httpx.Client
) -> None:
    """A window is a bar on its units; a unit that is out of service says so."""
    window = {"units": ["vm-1", "vm-2"], "start": at(8), "end": at(10), "reason": "new disks"}
    made = operator.post("/maintenance", json=window).json()
    operator.post("/units/vm-3/disable", json={"reason": "smoke in rack 7"})
    try:
        seen = shown(stranger)
        (bar,) = [one for one in seen["bars"] if one["kind"] == "maintenance"]
        assert (bar["start"], bar["end"], bar["units"], bar["reason"]) == (at(8), at(10), 2, "new disks")
        names = [one["name"] for one in seen["rows"][0]["units"]]
        assert [names[place] for place in bar["on"]] == ["vm-1", "vm-2"]
        states = {one["name"]: one for one in seen["rows"][0]["units"]}
        assert states["vm-3"] == {"name": "vm-3", "state": "out"}
        told = {one["name"]: one.get("reason", "") for one in shown(operator)["rows"][0]["units"]}
        assert "smoke in rack 7" in told["vm-3"]
        assert shown(user, project="alpha")["bars"] == []
    finally:
        operator.post(f"/maintenance/{made['window']}/remove", json={})
        operator.post("/units/vm-3/enable")


def test_what_is_left_out_is_counted(user: httpx.Client, stranger: httpx.Client, leased: Leased) -> None:
    """One's own bars come first, then the longest."""
    for start, length in ((12, "1h"), (14, "3h"), (18, "2h")):
        until(user, leased(start=at(start), length=length)["id"], "ticketed")
    seen = shown(stranger, limit=2)
    assert [(bar["start"], bar["end"]) for bar in seen["bars"]] == [(at(14), at(17)), (at(18), at(20))]
    assert seen["more"] == 1
    assert shown(stranger, limit=0)["bars"] == []


def test_filters_and_terms_that_are_none(user: httpx.Client) -> None:
    """By site, type and class; what is wrong is named."""
    (row,) = shown(user)["rows"]
    assert len(shown(user, site="site", type="vm", **{"class": row["class"][:8]})["rows"]) == 1
    for other in ({"site": "elsewhere"}, {"type": "gpu"}, {"class": "zz"}):
        assert shown(user, **other)["rows"] == []
    wrong = user.get("/calendar", params={"since": at(5), "until": at(4)})
    assert (wrong.status_code, wrong.json()["detail"]) == (422, "until: expected an instant after since")
    for path in ("/calendar", "/usage"):
        early = user.get(path, params={"since": "0218-03-30T06:14:04Z"})
        assert (early.status_code, early.json()["detail"]) == (
            422,
            "since: expected an instant that is not before 1970",
        )
    assert user.get("/calendar", params={"bins": 0}).status_code == 422
    ages = user.get("/calendar", params={"since": "1970-01-01T00:00:00Z", "until": "9999-12-31T00:00:00Z"})
    assert ages.status_code == 200


def test_long_answers_are_packed_where_that_is_accepted(user: httpx.Client, leased: Leased) -> None:
    """Its tag is another one then, and each finds that nothing has changed."""
    for hour in range(12):
        until(user, leased(start=at(hour), length="30m", name=f"{hour:02}" * 30)["id"], "ticketed")
    many = {"accept-encoding": "gzip;q=0, br"}
    assert "content-encoding" not in user.get("/leases", params={"all": "true"}, headers=many).headers
    with user.stream("GET", "/leases", params={"all": "true"}, headers={"accept-encoding": "br, gzip"}) as answer:
        packed = b"".join(answer.iter_raw())
    assert answer.headers["content-encoding"] == "gzip"
    assert answer.headers["vary"] == "accept-encoding"
    unpacked = gzip.decompress(packed)
    same = user.get("/leases", params={"all": "true"}, headers={"accept-encoding": "identity"})
    assert json.loads(unpacked) == same.json()
    assert answer.headers["etag"] == same.headers["etag"][:-1] + '-gzip"'
    for tag in (answer.headers["etag"], same.headers["etag"], f'"other", W/{same.headers["etag"]}'):
        again = user.get("/leases", params={"all": "true"}, headers={"if-none-match": tag})
        assert (again.status_code, again.content) == (304, b"")


def test_types_say_what_is_free_now(user: httpx.Client, leased: Leased) -> None:
    """Of each class; there are no prices where there is no market."""
    until(user, leased(units=2)["id"], "active")
    (kind,) = user.get("/types").json()["items"]
    (of,) = kind["classes"]
    assert (kind["type"], of["site"], of["there"], of["free"]) == ("vm", "site", 6, 4)
    assert user.get("/prices").json() == {"items": [], "away": []}
    assert user.get("/prices", params={"broker": "nobody"}).status_code == 404


def test_who_asks_for_figures_alone_gets_no_leases(
    gateway: GatewayUnderTest, user: httpx.Client, leased: Leased
) -> None:
    """Of any actor: a look at all leases is what takes the time."""
    until(user, leased(units=2)["id"], "active")
    for actor in ("alpha", "broker", "site"):
        with ControlClient(gateway.folder / f"{actor}.control.sock") as control:
            whole = control.query("calendar", start=0, step=INSTANT_MAX)
            figures = control.query("calendar", start=0, step=INSTANT_MAX, entries=False)
        assert whole["entries"] and not figures["entries"]
        assert (figures["classes"], figures["units"]) == (whole["classes"], whole["units"])


def test_a_change_of_what_one_has_not_seen_is_refused(
    user: httpx.Client, operator: httpx.Client, leased: Leased
) -> None:
    """A lease by its own tag, what has none by that of its list; a tag that is right, or ``*``, lets it through."""
    lease = until(user, leased(units=1)["id"], "active")
    path = f"/leases/{lease['id']}"
    tag = user.get(path).headers["etag"]
    stale = user.patch(path, json={"units": 2}, headers={"if-match": '"none"'})
    assert (stale.status_code, stale.json()["code"]) == (412, "changed_meanwhile")
    assert user.get(path).json()["units"] == 1
    assert user.patch(path, json={"units": 2}, headers={"if-match": tag}).status_code == 200
    until(user, lease["id"], "active")
    assert user.post(f"{path}/close", json={}, headers={"if-match": tag}).status_code == 412
    assert user.post(f"{path}/close", json={}, headers={"if-match": "*"}).status_code == 200
    listed = operator.get("/policies").headers["etag"]
    policy = {"most_units": 5}
    assert operator.put("/policies/beta", json=policy, headers={"if-match": '"x"'}).status_code == 412
    assert operator.put("/policies/beta", json=policy, headers={"if-match": listed}).status_code == 200
    assert operator.put("/policies/beta", json={}, headers={"if-match": listed}).status_code == 412
    assert operator.put("/policies/beta", json={}).status_code == 200
    absent = user.patch("/leases/none", json={"units": 2}, headers={"if-match": "*"})
    assert absent.status_code == 404
