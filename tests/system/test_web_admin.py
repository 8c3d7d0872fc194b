"""The pages of those who decide and administer: what waits to be approved."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from gateway.gateway_world import until
from playwright.sync_api import expect
from web_world import XSS, Person, WebLab, chromium, lab, person

__all__ = ["chromium", "lab", "person"]
pytestmark = pytest.mark.xdist_group("system")


@pytest.fixture(scope="module")
def ada(lab: WebLab) -> Iterator[httpx.Client]:
    """A user of the project, by the API."""
    with lab.client("ada") as client:
        yield client


@pytest.fixture(scope="module")
def olga(lab: WebLab) -> Iterator[httpx.Client]:
    """An operator, by the API."""
    with lab.client("olga") as client:
        yield client


@contextmanager
def policy(olga: httpx.Client, **words: Any) -> Iterator[None]:
    """The project has a policy, until the end."""
    assert olga.put("/policies/alpha", json=words).status_code == 200
    yield
    olga.put("/policies/alpha", json={})


def test_what_is_large_is_asked_for_approved_and_leased(
    person: Callable[..., Person], ada: httpx.Client, olga: httpx.Client
) -> None:
    """The asker says why where it is refused; the manager, who sees it come, sees what it would be and says why too."""
    with policy(olga, approve_units=1):
        manager = person("mona")
        queue = manager.open("/approvals")
        expect(queue.locator(".empty")).to_have_text("Nothing waits to be approved.")
        manager.check()
        who = person("ada")
        page = who.open("/request?type=vm&units=2&name=large")
        expect(page.locator(".answer")).to_have_attribute("data-kind", "granted")
        page.get_by_role("button", name="Request", exact=True).click()
        dialog = page.get_by_role("dialog")
        expect(dialog).to_contain_text("more than 1 are approved first")
        dialog.get_by_label("Why").fill(XSS)
        who.check()
        dialog.get_by_role("button", name="Ask for approval").click()
        expect(dialog).to_have_count(0)
        card = queue.get_by_role("region", name="2 \N{MULTIPLICATION SIGN} vm, large for ada")
        expect(card).to_contain_text(XSS)
        expect(card.locator(".answer")).to_contain_text("2 units at site")
        manager.check()
        card.get_by_role("button", name="Approve").click()
        queue.get_by_role("dialog").get_by_label("Why").fill(f"fine {XSS}")
        queue.get_by_role("dialog").get_by_role("button", name="Approve").click()
        expect(card).to_have_count(0)
        queue.get_by_label("State").select_option("approved")
        row = queue.get_by_role("row").filter(has_text="large")
        expect(row).to_contain_text(f"fine {XSS}")
        manager.check()
        row.get_by_role("link").click()
        expect(queue.get_by_role("heading", name="large")).to_be_visible()
        assert until(ada, "large", "active")["units"] == 2
        ada.post("/leases/large/close", json={})


def test_who_decides_what(person: Callable[..., Person], ada: httpx.Client, olga: httpx.Client) -> None:
    """An asker withdraws, an approver of the policy decides what others ask for, an operator refuses."""
    with policy(olga, approve_units=1, approvers=["bob", "ada"]):
        for name in (XSS, "second"):
            asked = {"type": "vm", "units": 2, "length": "1h", "name": name, "configuration": {XSS: XSS}}
            assert ada.post("/approvals", json={"request": asked, "why": name}).status_code == 201
        who = person("ada")
        page = who.open("/approvals")
        cards = page.locator(".approval")
        expect(cards).to_have_count(2)
        expect(page.get_by_role("button", name="Approve")).to_have_count(0)
        cards.filter(has_text="second").get_by_role("button", name="Withdraw").click()
        page.get_by_role("dialog").get_by_role("button", name="Withdraw").click()
        expect(cards).to_have_count(1)
        other = person("bob")
        expect(other.open("/approvals").get_by_role("button", name="Approve")).to_have_count(1)
        expect(other.page.get_by_role("button", name="Withdraw")).to_have_count(0)
        boss = person("olga")
        page = boss.open("/approvals")
        page.get_by_role("button", name="Refuse").click()
        page.get_by_role("dialog").get_by_label("Why").fill("no room")
        page.get_by_role("dialog").get_by_role("button", name="Refuse").click()
        expect(other.page.locator(".empty")).to_be_visible()
        page.get_by_label("State").select_option("all")
        expect(page.get_by_role("row").filter(has_text="no room")).to_contain_text("olga")
        boss.check()
        assert [one["state"] for one in ada.get("/approvals").json()["items"]][-2:] == ["refused", "withdrawn"]


def test_a_change_that_needs_approval_is_asked_for(
    person: Callable[..., Person], ada: httpx.Client, olga: httpx.Client
) -> None:
    """From the form of the lease; who approves sees what of it would change."""
    lease = ada.post("/leases", json={"type": "vm", "length": "1h", "name": "grows"}).json()["id"]
    until(ada, lease, "active")
    with policy(olga, approve_units=1):
        who = person("ada")
        page = who.open(f"/leases/{lease}")
        page.get_by_role("button", name="Change…").click()
        page.get_by_role("dialog").get_by_label("Units", exact=True).fill("3")
        page.get_by_role("dialog").get_by_role("button", name="Change", exact=True).click()
        page.get_by_role("dialog").last.get_by_label("Why").fill("more of it")
        page.get_by_role("button", name="Ask for approval").click()
        manager = person("mona")
        queue = manager.open("/approvals")
        card = queue.locator(".approval")
        expect(card).to_contain_text("more of it")
        expect(card.get_by_role("link", name=lease)).to_be_visible()
        expect(card.locator(".answer")).to_contain_text("3 units at site")
        card.get_by_role("button", name="Approve").click()
        queue.get_by_role("dialog").get_by_role("button", name="Approve").click()
        expect(card).to_have_count(0)
        assert ada.get("/approvals?state=approved").json()["items"][-1]["lease"] == lease
    ada.post(f"/leases/{lease}/close", json={})
