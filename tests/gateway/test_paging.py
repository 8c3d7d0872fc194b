"""Lists of the API in pages, and in the order of a field."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest
from gateway_world import GatewayUnderTest, until

from leasekit.core.commands import by_number
from leasekit.runtime.client import ControlClient

LISTS = ["/tokens", "/units", "/sites/inventory", "/sites/leases", "/brokers/leases", "/claims", "/peers?actor=site"]


def items(answer: httpx.Response) -> list[dict[str, Any]]:
    """What is in a list."""
    assert answer.status_code == 200, answer.text
    found = answer.json()
    return list(found if isinstance(found, list) else found["items"])


def pages(client: httpx.Client, path: str, **asked: Any) -> list[list[dict[str, Any]]]:
    """All pages of a list, by the links from one to the next."""
    answer = client.get(path, params=asked)
    found = [items(answer)]
    while "next" in answer.links:
        answer = client.get(path.partition("?")[0] + answer.links["next"]["url"])
        found.append(items(answer))
    return found


@pytest.fixture(scope="module")
def filled(user: httpx.Client, operator: httpx.Client) -> None:
    """There are some of each."""
    for number in range(4):
        asked = {"type": "vm", "start": "2031-01-01T08:00:00Z", "length": "1h", "name": f"lease-{number}"}
        until(user, user.post("/leases", json=asked).json()["id"], "ticketed")
        operator.post("/tokens", json={"name": f"ci-{number % 2}"})
    for _ in range(3):
        until(user, user.post("/leases", json={"type": "vm", "length": "1h"}).json()["id"], "active")


@pytest.mark.usefixtures("filled")
@pytest.mark.parametrize("path", LISTS)
def test_pages_are_the_list(operator: httpx.Client, path: str) -> None:
    """None is left out, none comes twice, and none has more than it may; the last one has no next."""
    whole = items(operator.get(path))
    parts = pages(operator, path, **({"actor": "site"} if "?" in path else {}), limit=2)
    called = next(iter(whole[0])) if whole else ""
    assert [len(part) for part in parts[:-1]] == [2] * (len(parts) - 1)
    assert len(parts) > 1 or path.startswith("/peers")
    assert sorted(one[called] for part in parts for one in part) == sorted(one[called] for one in whole)


@pytest.mark.usefixtures("filled")
@pytest.mark.parametrize("actor", ["site", "broker"])
def test_an_actor_answers_a_part_of_its_leases(gateway: GatewayUnderTest, actor: str) -> None:
    """In the order of request: no more of them are described than are shown."""
    with ControlClient(gateway.folder / f"{actor}.control.sock") as control:
        whole = [one["id"] for one in control.query("leases")]
        first = [one["id"] for one in control.query("leases", limit=2)]
        rest = [one["id"] for one in control.query("leases", after=first[-1])]
    assert len(first) == 2
    assert first + rest == sorted(whole, key=by_number)


@pytest.mark.usefixtures("filled")
def test_a_list_is_in_the_order_of_a_field(operator: httpx.Client) -> None:
    """Equal ones by what they are called, page by page, and the other way round; numbers in names are numbers."""
    names = [(one["name"], one["id"]) for part in pages(operator, "/tokens", limit=3, order="name") for one in part]
    assert [name for name, _ in names] == sorted(name for name, _ in names)
    turned = [(one["name"], one["id"]) for part in pages(operator, "/tokens", limit=3, order="-name") for one in part]
    assert turned == names[::-1]
    made = [one["created"] for one in items(operator.get("/tokens?order=-created"))]
    assert made == sorted(made, reverse=True)
    assert [one["unit"] for one in items(operator.get("/units?limit=1000"))] == [f"vm-{n}" for n in range(6)]


@pytest.mark.usefixtures("filled")
def test_what_goes_meanwhile_moves_nothing(operator: httpx.Client) -> None:
    """A page begins after what was last in the one before, also where that is gone."""
    first = operator.get("/tokens", params={"limit": 2, "order": "name"})
    rest = [one["id"] for one in items(operator.get("/tokens?order=name"))][2:]
    operator.post(f"/tokens/{items(first)[-1]['id']}/revoke")
    following = [one["id"] for one in items(operator.get(f"/tokens{first.links['next']['url']}"))]
    assert following == rest[:2]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"limit": "0"}, "limit: found '0', expected 1 to 1000"),
        ({"limit": "1001"}, "limit: found '1001', expected 1 to 1000"),
        ({"limit": "many"}, "limit: found 'many', expected 1 to 1000"),
        ({"cursor": "vm-2"}, "cursor: found 'vm-2', expected what the page before gave as next"),
        ({"cursor": "W10"}, "cursor: found 'W10', expected what the page before gave as next"),
        ({"order": "color"}, "order: found 'color', expected one of: asked, cap,"),
        ({"order": "-properties"}, "order: found '-properties', expected one of: asked, cap,"),
        ({"page": "2"}, "query: found an unknown key 'page'"),
    ],
)
def test_pages_that_are_none(operator: httpx.Client, asked: dict[str, str], said: str) -> None:
    """Each is told by what it is."""
    answer = operator.get("/units", params=asked)
    assert (answer.status_code, answer.json()["detail"][: len(said)]) == (422, said)


@pytest.mark.usefixtures("filled")
def test_a_page_goes_on_in_its_order(operator: httpx.Client) -> None:
    """The cursor of another order is told so."""
    url = operator.get("/units", params={"limit": 2, "order": "-unit"}).links["next"]["url"]
    answer = operator.get(f"/units{url.replace('-unit', 'unit')}")
    assert (answer.status_code, answer.json()["detail"]) == (422, "order: found 'unit', the page before had '-unit'")


@pytest.mark.usefixtures("filled")
def test_leases_are_in_the_order_of_a_field(user: httpx.Client) -> None:
    """Those that go on, page by page; what is over has an order of its own."""
    for order, is_down in (("start", False), ("-end", True)):
        parts = pages(user, "/leases", limit=2, order=order, type="vm")
        found = [one[order.removeprefix("-")] for part in parts for one in part]
        assert len(parts) > 2
        assert len({one["id"] for part in parts for one in part}) == len(found) >= 7
        assert found == sorted(found, reverse=is_down)
    for asked, said in (
        ({"order": "start", "all": "true"}, "order: found one with all, leases that are over come in the order of"),
        ({"order": "members"}, "order: found 'members', expected one of: broker,"),
        ({"order": "start", "cursor": "live:x"}, "cursor: found 'live:x', expected what the page before gave as next"),
    ):
        answer = user.get("/leases", params=asked)
        assert (answer.status_code, answer.json()["detail"][: len(said)]) == (422, said)


def test_lists_that_always_have_pages_have_links(user: httpx.Client, leased: Callable[..., dict[str, Any]]) -> None:
    """Those of leases and of histories say in their bodies and by a link where it goes on."""
    for _ in range(2):
        leased(start="2031-02-01T08:00:00Z")
    first = user.get("/leases?limit=1")
    second = user.get(f"/leases{first.links['next']['url']}")
    assert first.json()["next"] and len(second.json()["items"]) == 1
    assert second.json()["items"] != first.json()["items"]
