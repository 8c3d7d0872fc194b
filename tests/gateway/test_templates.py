"""Templates of requests: one's own, and those that all of a project see."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Any

import httpx
import msgspec
import pytest
from gateway_world import GatewayUnderTest
from msgspec import structs
from test_client import client

from leasekit.client.shapes import LeaseRequest, SeriesHours
from leasekit.gateway.templates import TEMPLATES_MAX

WISH = {"type": "vm", "units": 2, "length": "2h", "filter": "rack == b", "configuration": {"image": "x"}}
DAYS = {"every": "mon-fri", "begin": "9:00", "finish": "17:00", "zone": "Europe/Berlin", "each": True}


def kept(client: httpx.Client, name: str, **more: Any) -> dict[str, Any]:
    """A new template."""
    answer = client.post("/templates", json={"name": name, "request": WISH, **more})
    assert answer.status_code == 201, answer.text
    return dict(answer.json())


def names(client: httpx.Client, project: str = "alpha") -> list[str]:
    """Which somebody sees."""
    return [one["name"] for one in client.get(f"/templates?project={project}").json()["items"]]


def test_who_sees_and_removes_which(
    gateway: GatewayUnderTest, user: httpx.Client, viewer: httpx.Client, stranger: httpx.Client
) -> None:
    """One's own alone, shared ones all of the project; a manager removes what is shared."""
    mine, ours = kept(user, "mine"), kept(user, "ours", shared=True)
    assert (ours["request"], ours["caller"], ours["project"]) == (WISH, "ursula", "alpha")
    with gateway.client(gateway.token("mona", alpha="manager")) as manager:
        assert (names(user), names(viewer), names(manager)) == (["mine", "ours"], ["ours"], ["ours"])
        assert stranger.get("/templates?project=alpha").status_code == 404
        assert names(stranger, "beta") == []
        assert viewer.post("/templates", json={"name": "x", "request": WISH}).status_code == 403
        for client, one, status in ((manager, mine, 404), (viewer, ours, 403), (stranger, ours, 404)):
            assert client.post(f"/templates/{one['id']}/remove").status_code == status
            assert client.get(f"/templates/{one['id']}").status_code == (200 if status == 403 else 404)
        assert manager.post(f"/templates/{ours['id']}/remove").json() == ours
    assert user.post(f"/templates/{mine['id']}/remove").json() == mine
    assert names(user) == []


def test_a_template_takes_the_place_of_ones_own(gateway: GatewayUnderTest, user: httpx.Client) -> None:
    """Of the same name; another's of that name stays."""
    with gateway.client(gateway.token("tina", alpha="user")) as other:
        theirs = kept(other, "same", shared=True)
        kept(user, "same")
        mine = kept(user, "same", shared=True)
        assert {one["id"] for one in user.get("/templates").json()["items"]} == {theirs["id"], mine["id"]}
        assert user.get("/templates/same").json() == mine
        with gateway.client(gateway.token("vera", alpha="viewer")) as third:
            several = third.get("/templates/same")
            assert (several.status_code, "of which there are several" in several.json()["detail"]) == (422, True)
            assert third.get(f"/templates/{mine['id']}").json() == mine
        for client, one in ((other, theirs), (user, mine)):
            assert client.post("/templates/same/remove").json() == one
        assert user.get("/templates/same").status_code == 404


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        ({"name": "", "request": WISH}, "name: found ''"),
        ({"name": "x", "request": {**WISH, "start": "2031-01-01T00:00:00Z"}}, "request.start: found an instant"),
        ({"name": "x", "request": {**WISH, "elastic": 3}}, "elastic: found 3"),
        ({"name": "x", "request": {**WISH, "needs": {"cpu": "much"}}}, "needs: "),
        ({"name": "x", "request": WISH, "days": DAYS}, "request.length: found one, expected none"),
        ({"name": "x", "request": {"type": "vm"}, "days": {**DAYS, "every": "mun"}}, "every: found mun"),
        ({"name": "x", "request": {"type": "vm"}, "days": {**DAYS, "finish": "9:00"}}, "finish: found 9:00"),
        ({"name": "x", "request": {"type": "vm"}, "days": {**DAYS, "zone": "Mars"}}, "zone: found Mars"),
    ],
)
def test_what_is_wrong_with_it_is_told(user: httpx.Client, body: dict[str, Any], detail: str) -> None:
    """By its field; nothing is kept."""
    answer = user.post("/templates", json=body)
    assert answer.status_code == 422
    assert answer.json()["detail"].startswith(detail)
    assert names(user) == []


def test_a_template_keeps_the_days_of_what_recurs(gateway: GatewayUnderTest, user: httpx.Client) -> None:
    """A client keeps it, sees it, asks for what it says and removes it."""
    hours = msgspec.convert({**DAYS, "every": "mon", "finish": "9:30"}, SeriesHours)
    with client(gateway, gateway.token("ursula", alpha="user")) as api:
        plain = api.keep_template("once", LeaseRequest(type="vm", units=2, length="2h"))
        lab = api.keep_template("lab", LeaseRequest(type="vm", name="lab"), days=hours, shared=True)
        assert api.templates() == [lab, plain]
        assert api.template("lab").days == hours
        assert user.get("/templates/lab").json()["days"] == {**DAYS, "every": "mon", "finish": "9:30"}
        start = datetime(2031, 1, 5, tzinfo=UTC)
        lease = api.ask_for(api.template("once"), start=start, units=1)
        assert (lease.units, lease.start, lease.end - lease.start) == (1, start, timedelta(hours=2))
        days = api.recur(structs.replace(lab.request, start=start), lab.days, until=date(2031, 1, 13)).days
        assert [(day.name, day.start.hour) for day in days] == [("lab.2031-01-06", 8), ("lab.2031-01-13", 8)]
        for one in list(api.leases()):
            api.close(one)
        assert [api.remove_template(one) for one in ("once", lab)] == [plain, lab]
        assert api.templates() == []


def test_a_project_has_so_many(user: httpx.Client) -> None:
    """One more is refused; one in the place of another is not."""
    made = [kept(user, f"t{number}")["id"] for number in range(TEMPLATES_MAX)]
    more = user.post("/templates", json={"name": "more", "request": WISH})
    assert (more.status_code, more.json()["code"]) == (409, "too_many")
    made.append(kept(user, "t0")["id"])
    for id_ in made:
        user.post(f"/templates/{id_}/remove")
    assert names(user) == []
